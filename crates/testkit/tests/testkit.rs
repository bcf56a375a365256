//! The kit itself: what it writes is right, and what it judges can be wrong.

use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};

use flexcp_testkit::{
    Options, Packet, Random, Shelf, Stats, complete_checksum, icmp_error, ip_header, quoted, said,
};
use flexcp_wire::{
    CapableFlags, CapableKeys, ChecksumState, Dss, IcmpError, IcmpKind, IpHeader, MpCapable,
    MptcpOption, ParseError, SackBlocks, TcpFlags, TcpOption, Timestamps, protocol,
};
use serde_json::json;

fn ends(v6: bool) -> (SocketAddr, SocketAddr) {
    let ends = if v6 {
        ("[fd01::1]:1000", "[fd02::2]:80")
    } else {
        ("10.1.0.1:1000", "10.2.0.2:80")
    };
    (ends.0.parse().unwrap(), ends.1.parse().unwrap())
}

fn data(v6: bool) -> Packet {
    let (from, to) = ends(v6);
    Packet::new(from, to)
        .flags(TcpFlags::ACK | TcpFlags::PSH)
        .numbers(5000, 7000)
        .with_options([TcpOption::Timestamps(Timestamps { val: 1, ecr: 2 })])
        .with_payload(*b"odd")
}

/// Whether it panics.
fn fails(what: impl FnOnce()) -> bool {
    catch_unwind(AssertUnwindSafe(what)).is_err()
}

#[test]
fn packet_is_read_as_it_was_written() {
    for v6 in [false, true] {
        let written = data(v6);
        let read = Packet::read(&written.bytes());
        assert_eq!(read.ends(), written.ends());
        let (mut ip, mut tcp) = (read.ip, read.tcp);
        (ip.header_len, ip.total_len) = (0, 0);
        (tcp.header_len, tcp.checksum) = (0, 0);
        let again = Packet { ip, tcp, ..read };
        assert_eq!(again, written);
        assert_eq!(written.clone().reversed().reversed(), written);
    }
}

#[test]
fn reader_notices_each_byte_that_is_wrong() {
    for v6 in [false, true] {
        let right = data(v6).bytes();
        // IPv6 sums neither its hops nor its flow label.
        let covered = |at: &usize| !v6 || *at >= 8;
        for at in (0..right.len()).filter(covered) {
            let mut wrong = right.clone();
            wrong[at] ^= 0x10;
            assert!(fails(|| drop(Packet::read(&wrong))), "byte {at}");
        }
        let longer = [&right[..], &[0]].concat();
        for checksum in [ChecksumState::Complete, ChecksumState::Verified] {
            assert!(fails(|| drop(Packet::read_in(&longer, checksum))));
        }
        assert!(fails(|| drop(Packet::read(&right[..right.len() - 1]))));
    }
}

#[test]
fn checksum_is_that_of_the_pseudo_header_where_a_carrier_completes_it() {
    for v6 in [false, true] {
        let packet = data(v6);
        let mut partial = packet.bytes_in(ChecksumState::Partial);
        assert!(fails(|| drop(Packet::read(&partial))));
        let read = Packet::read_in(&partial, ChecksumState::Partial);
        assert_eq!(read.payload, b"odd");
        assert!(fails(|| drop(Packet::read_in(
            &packet.bytes(),
            ChecksumState::Partial
        ))));
        complete_checksum(&mut partial);
        assert_eq!(partial, packet.bytes());
    }
}

#[test]
fn what_is_no_whole_segment_is_not_read() {
    let packet = data(false).bytes();
    for len in 0..packet.len() {
        assert_eq!(Packet::parse(&packet[..len]), None, "{len} bytes");
    }
    let mut datagram = packet;
    datagram[9] = protocol::ICMP;
    assert_eq!(Packet::parse(&datagram), None);
}

#[test]
fn options_beyond_their_room_are_refused() {
    let (from, to) = ends(false);
    let times = TcpOption::Timestamps(Timestamps { val: 1, ecr: 2 });
    let packet = Packet::new(from, to);
    assert_eq!(packet.clone().with_options([times; 3]).options.len(), 36);
    assert!(fails(|| drop(packet.with_options([times; 4]))));
}

#[test]
fn view_has_what_each_option_says() {
    let mut sack = SackBlocks::new();
    sack.push(10, 20);
    let capable = MpCapable {
        version: 1,
        flags: CapableFlags::HMAC_SHA256,
        keys: CapableKeys::SynAck { sender: 99 },
    };
    let (from, to) = ends(false);
    let packet = Packet::new(from, to).with_options([
        TcpOption::Mss(1460),
        TcpOption::WindowScale(15),
        TcpOption::SackPermitted,
        TcpOption::Sack(sack),
        TcpOption::Mptcp(MptcpOption::Capable(capable)),
    ]);
    let view = packet.view();
    assert_eq!((view.mss, view.window_scale), (Some(1460), Some(15)));
    assert!(view.sack_permitted && view.mptcp && view.is_well_formed());
    assert_eq!(view.sack.iter().copied().collect::<Vec<_>>(), [(10, 20)]);
    assert_eq!((view.capable, view.key()), (Some(capable), Some(99)));
    assert!(view.join.is_none() && view.dss.is_none() && view.timestamps.is_none());
    let dss = TcpOption::Mptcp(MptcpOption::Dss(Dss {
        data_ack: Some(flexcp_wire::DataNumber::Long(7)),
        ..Dss::default()
    }));
    let view = Packet::new(from, to).with_options([dss]).view();
    assert_eq!(view.data_ack(), Some(flexcp_wire::DataNumber::Long(7)));
    let words = said(&packet.options);
    assert_eq!(words.len(), 5);
    assert!(words[0].contains("1460"), "{words:?}");
}

#[test]
fn view_tells_what_it_could_not_read() {
    // An MP_CAPABLE of a length that there is not, then an MSS; a timestamps option that is too long for the header.
    let malformed = Options::read(&[30, 5, 0x01, 0x81, 0, 2, 4, 5, 180, 1, 1, 1]);
    assert!(malformed.malformed && malformed.mptcp && !malformed.is_well_formed());
    assert_eq!((malformed.mss, malformed.broken), (Some(1460), None));
    let broken = Options::read(&[2, 4, 5, 180, 8, 10, 0, 0]);
    assert_eq!(broken.mss, Some(1460));
    assert_eq!(
        broken.broken,
        Some(ParseError::OptionLength { kind: 8, len: 10 })
    );
    assert!(!broken.malformed && !broken.is_well_formed());
}

#[test]
fn icmp_error_quotes_the_segment_and_its_checksum_is_right() {
    for v6 in [false, true] {
        let sent = data(v6).ends();
        let icmp = if v6 { protocol::ICMPV6 } else { protocol::ICMP };
        let header = ip_header(sent.to.ip(), sent.from.ip(), icmp);
        let kind = if v6 { (2, 0) } else { (3, 4) };
        let packet = icmp_error(&header, kind, 1300, &quoted(sent, 5000));
        let ip = IpHeader::parse(&packet).unwrap();
        let message = &packet[ip.header_len..];
        assert!(IcmpError::checksum_is_right(&ip, message));
        let error = IcmpError::parse(&ip, message).unwrap();
        assert_eq!(error.kind, IcmpKind::TooBig(1300));
        assert_eq!((error.src, error.dst), (sent.from, sent.to));
        assert_eq!(error.seq, 5000);
    }
}

#[test]
fn numbers_are_those_of_splitmix() {
    // As Java's SplittableRandom gives them for the same seed.
    let mut random = Random::new(1_234_567);
    let expected = [
        6_457_827_717_110_365_317,
        3_203_168_211_198_807_973,
        9_817_491_932_198_370_423,
    ];
    assert_eq!(expected.map(|_| random.next()), expected);
    let mut same = random.clone();
    assert_eq!((random.below(0), random.next()), (0, same.next()));
    let next = same.next();
    assert_eq!(u64::from(random.word()), next >> 32);
    assert_ne!(
        Random::for_purpose(7, 1).next(),
        Random::for_purpose(7, 2).next()
    );
    for _ in 0..100 {
        assert!(random.below(3) < 3 && (5..=7).contains(&random.between(5, 7)));
        assert!(random.index(4) < 4 && [1, 2].contains(&random.pick(&[1, 2])));
        assert!(random.one_in(1) && random.chance(1_000_000) && !random.chance(0));
    }
}

#[test]
fn shelf_keeps_entries_by_slot_and_gives_slots_out_again() {
    let mut shelf = Shelf::default();
    assert_eq!((shelf.put(None, 'a'), shelf.put(None, 'b')), (0, 1));
    assert_eq!((shelf.peek(1), shelf.take(0)), ('b', 'a'));
    assert_eq!(shelf.entries().collect::<Vec<_>>(), [&'b']);
    assert_eq!((shelf.held(), shelf.next_slot()), (2, 2));
    assert_eq!(shelf.put(Some(0), 'c'), 0);
    shelf.entries_mut().for_each(|entry| *entry = 'd');
    assert_eq!(shelf.take(0), 'd');
    shelf.release(0);
    assert_eq!((shelf.held(), shelf.next_slot()), (1, 0));
    assert_eq!(shelf.put(None, 'e'), 0);
}

#[test]
fn shelf_notices_who_mistakes_a_slot() {
    let mut shelf = Shelf::default();
    shelf.put(None, 'a');
    assert!(fails(|| _ = shelf.clone().put(Some(0), 'b')), "put twice");
    assert!(fails(|| shelf.clone().release(0)), "with its entry");
    shelf.take(0);
    assert!(fails(|| _ = shelf.clone().take(0)), "taken twice");
    assert!(fails(|| _ = shelf.peek(0)), "looked at and gone");
    shelf.release(0);
    assert!(fails(|| shelf.clone().release(0)), "released twice");
    assert!(fails(|| _ = shelf.clone().put(Some(0), 'b')), "of nobody");
}

#[test]
fn stats_are_read_by_name_and_a_name_that_is_not_there_is_told() {
    let answer = json!({
        "counters": {"packets_in": 7, "other": 0},
        "causes": {"plain_syn": {"memory": 2}},
        "gauges": {"flows": "many"},
        "offload": {},
        "connections": 3,
    });
    let stats = Stats::parse(answer.to_string().as_bytes()).unwrap();
    assert_eq!(stats.counter("packets_in").unwrap(), 7);
    assert_eq!(stats.number("connections").unwrap(), 3);
    assert_eq!(stats.number("causes.plain_syn.memory").unwrap(), 2);
    let group = stats.group("counters").unwrap();
    assert_eq!(group, [("other", 0), ("packets_in", 7)]);
    assert_eq!(stats.group("offload").unwrap(), []);
    let missing = stats.counter("packets_out").unwrap_err().to_string();
    assert!(missing.starts_with("no number `counters.packets_out` in {"));
    for path in ["counters", "gauges.flows", "connections.many"] {
        assert!(stats.number(path).is_err(), "{path}");
    }
    let missing = stats.group("carrier").unwrap_err().to_string();
    assert!(missing.starts_with("no group of numbers `carrier` in {"));
    for path in ["gauges", "connections", "counters.other"] {
        assert!(stats.group(path).is_err(), "{path}");
    }
    assert!(Stats::parse(b"flexcp: not running").is_err());
}

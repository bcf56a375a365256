//! Clients whose preamble comes after the handshake (SOCKS5, late Convert), or that are refused: FlexCP is their server until
//! they have one.

use std::sync::{Arc, Mutex};

use flexcp_preamble::Protocol;
use flexcp_testkit::{Packet, icmp_error, ip_header, quoted};
use flexcp_translator::{DropReason, EventKind, Order, Ordered, Registry, SubflowRecord, Verdict};
use flexcp_wire::{ConvertError, ConvertMessage, ConvertTlv, Ends, TcpFlags, TcpOption, protocol};

use crate::guest::*;
use crate::world::*;

/// All that a client, FlexCP and a server may do without.
pub(crate) fn every_kind() -> Vec<Uses> {
    let mut all = vec![];
    for mptcp in [true, false] {
        all.push(Uses { mptcp, ..ALL });
        all.push(Uses {
            mptcp,
            scale: None,
            ..ALL
        });
        all.push(Uses {
            mptcp,
            timestamps: false,
            sack: false,
            scales: false,
            scale: None,
        });
    }
    all
}

#[test]
fn socks_client_is_connected_and_both_streams_go_on() {
    for uses in every_kind() {
        let mut guest = Guest::greeted(uses);
        let offered = guest.to_client.last().expect("an answer").tcp.window;
        let offered = u32::from(offered) << if uses.scales { 7 } else { 0 };
        assert!((1024..=2048).contains(&offered), "{offered}, {uses:?}");
        guest.say(&REQUEST);
        let [syn] = &guest.to_server[..] else {
            panic!("{:?}", guest.to_server)
        };
        // The client's numbers go on behind the request.
        assert_eq!(syn.tcp.flags, SYN);
        assert_eq!(syn.tcp.seq, guest.next.wrapping_sub(1), "{uses:?}");
        let options = syn.view();
        assert_eq!(options.window_scale, uses.scales.then_some(2));
        assert_eq!(options.sack_permitted, uses.sack);
        assert_eq!(options.timestamps.is_some(), uses.timestamps);
        guest.answer_call();
        let from = guest.source();
        let std::net::IpAddr::V4(addr) = from.ip() else {
            panic!("{from}")
        };
        let mut answer = vec![5, 0, 5, 0, 0, 1];
        answer.extend(addr.octets());
        answer.extend(from.port().to_be_bytes());
        assert_eq!(guest.heard, answer, "{uses:?}");
        let acked = &guest.to_server[1];
        assert_eq!(acked.tcp.flags, ACK);
        assert_eq!(acked.tcp.ack, SERVER.wrapping_add(1));
        guest.server_says(b"220 hello");
        guest.say(b"EHLO");
        guest.speak(ACK, &[], vec![]);
        guest.server_says(b" and welcome");
        guest.acknowledge();
        assert_eq!(guest.arrived, b"EHLO", "{uses:?}");
        assert_eq!(&guest.heard[answer.len()..], b"220 hello and welcome");
        let last = guest.to_server.last().expect("an ACK");
        assert_eq!(last.tcp.ack, guest.speaks, "{uses:?}");
        assert_eq!(guest.world.translator.counters().preambles, 1);
    }
}

#[test]
fn answer_that_gets_lost_goes_again_until_it_is_acked() {
    for uses in every_kind() {
        let mut guest = Guest::greeted(uses);
        guest.say(&REQUEST);
        guest.to_client.clear();
        guest.speak(SYN | ACK, &[], vec![TcpOption::Mss(1400)]);
        guest.speaks = guest.speaks.wrapping_add(1);
        assert_eq!(guest.to_client.len(), 1);
        for wait in [300, 600] {
            guest.to_client.clear();
            guest.pass(wait - 1);
            assert!(guest.to_client.is_empty(), "{uses:?} {wait}");
            guest.pass(1);
            assert_eq!(guest.to_client.len(), 1, "{uses:?} {wait}");
            assert_eq!(guest.to_client[0].payload.len(), 10);
        }
        guest.acknowledge();
        guest.to_client.clear();
        guest.pass(10_000);
        assert!(
            guest
                .to_client
                .iter()
                .all(|packet| packet.payload.is_empty())
        );
    }
}

#[test]
fn both_ends_may_close_after_a_refusal() {
    for uses in every_kind().into_iter().filter(|uses| !uses.mptcp) {
        let mut guest = Guest::greeted(uses);
        guest.say(&[5, 2, 0, 1, 10, 55, 9, 9, 0, 80]);
        assert!(guest.ended);
        guest.wants = guest.wants.wrapping_add(1);
        guest.send(ACK | TcpFlags::FIN, &[], vec![]);
        for _ in 0..300 {
            guest.pass(1000);
        }
        assert!(!guest.reset, "{uses:?}");
        let left = guest.world.translator.connections(guest.world.now).count();
        assert_eq!(left, 0);
    }
}

#[test]
fn nothing_of_the_stream_is_taken_before_there_is_a_server() {
    for uses in every_kind() {
        let mut guest = Guest::greeted(uses);
        let both = [&REQUEST[..], b"too early"].concat();
        guest.say_and_repeat(&both);
        assert_eq!(guest.to_server.len(), 1);
        let acked = guest.to_client.last().expect("an ACK").tcp.ack;
        assert_eq!(acked, guest.next.wrapping_add(10), "{uses:?}");
        // Nor with a packet of its own.
        guest.go(10);
        guest.say_and_repeat(b"too early");
        let acked = guest.to_client.last().expect("an ACK").tcp.ack;
        assert_eq!(acked, guest.next, "{uses:?}");
        guest.go(-10);
        guest.answer_call();
        assert!(guest.arrived.is_empty(), "{uses:?}");
        guest.say_and_repeat(&both);
        assert_eq!(guest.arrived, b"too early", "{uses:?}");
    }
}

#[test]
fn preamble_may_come_byte_by_byte() {
    for uses in every_kind() {
        let mut guest = Guest::new(Protocol::Socks5, uses, &[("joe", "secret")]);
        guest.open(&[]);
        let said = [&[5, 1, 2, 1, 3][..], b"joe", &[6], b"secret", &REQUEST].concat();
        for byte in said {
            guest.say(&[byte]);
        }
        assert_eq!(guest.heard, [5, 2, 1, 0]);
        guest.answer_call();
        assert_eq!(guest.heard.len(), 14);
    }
}

#[test]
fn whoever_does_not_say_who_he_is_or_lies_is_told_and_left() {
    let password = |name: &str, password: &str| {
        let len = |text: &str| u8::try_from(text.len()).unwrap();
        let said = [&[1, len(name)][..], name.as_bytes(), &[len(password)]];
        [said.concat(), password.into()].concat()
    };
    let wrong = [("joe", "wrong"), ("jim", "secret"), ("joe", "secre")];
    let wrong = wrong
        .into_iter()
        .chain([("joe", "secret!"), ("j", "secret")]);
    let methods = vec![5, 1, 2];
    let mut cases = vec![(vec![vec![5, 1, 0]], vec![5, 0xff])];
    cases.extend(wrong.map(|(name, told)| {
        let said = vec![methods.clone(), password(name, told)];
        (said, vec![5, 2, 1, 1])
    }));
    for uses in every_kind() {
        for (said, heard) in &cases {
            let mut guest = Guest::new(Protocol::Socks5, uses, &[("joe", "secret")]);
            guest.open(&[]);
            for message in said {
                guest.say(message);
            }
            assert_eq!(guest.heard, *heard);
            assert!(guest.ended, "{uses:?} {said:?}");
            assert!(guest.to_server.is_empty());
            assert_eq!(guest.world.translator.counters().preambles_refused, 1);
        }
    }
}

#[test]
fn wishes_that_are_not_granted_are_refused_in_the_words_of_socks() {
    let request = |command, kind, host: &[u8], port: u16| {
        [&[5, command, 0, kind][..], host, &port.to_be_bytes()].concat()
    };
    let cases = [
        (request(1, 1, &[10, 56, 1, 1], 80), 2),
        (request(1, 1, &[10, 55, 1, 1], 22), 2),
        (request(2, 1, &[10, 55, 1, 1], 80), 7),
        (request(3, 1, &[10, 55, 1, 1], 80), 7),
        (request(1, 9, &[10, 55, 1, 1], 80), 8),
    ];
    for uses in every_kind() {
        for (said, code) in &cases {
            let mut guest = Guest::greeted(uses);
            guest.say(said);
            assert_eq!(guest.heard[2..4], [5, *code], "{said:?}");
            assert!(guest.ended && guest.to_server.is_empty());
            // Who does not go is reset, and not refused once more.
            for _ in 0..30 {
                guest.pass(1000);
            }
            assert!(guest.reset, "{uses:?}");
            assert_eq!(guest.world.translator.counters().preambles_refused, 1);
        }
    }
}

#[test]
fn server_that_cannot_be_had_is_told_of() {
    for uses in every_kind() {
        let called = || {
            let mut guest = Guest::greeted(uses);
            guest.say(&REQUEST);
            guest
        };
        let told = |guest: &Guest, code: u8| {
            assert_eq!(guest.heard[2..4], [5, code], "{uses:?}");
            assert!(guest.ended);
            assert_eq!(guest.world.translator.counters().preambles_refused, 1);
        };
        let mut guest = called();
        guest.speak(TcpFlags::RST | ACK, &[], vec![]);
        told(&guest, 5);

        let mut guest = called();
        let ends = Ends {
            from: guest.source(),
            to: server(),
        };
        let quote = quoted(ends, guest.expects.wrapping_sub(1));
        let router = ip_header(end("10.55.0.1:0").ip(), ends.from.ip(), protocol::ICMP);
        let error = icmp_error(&router, (3, 0), 0, &quote);
        let (_, out) = guest.world.put_bytes(&error);
        guest.take(out);
        told(&guest, 3);

        // One about another packet says nothing.
        let mut guest = called();
        let quote = quoted(ends, guest.expects);
        let (verdict, _) = guest
            .world
            .put_bytes(&icmp_error(&router, (3, 0), 0, &quote));
        assert!(matches!(verdict, Verdict::Drop(_)));
        assert!(!guest.ended);

        let mut guest = called();
        guest.to_server.clear();
        for _ in 0..40 {
            guest.pass(500);
        }
        assert_eq!(guest.to_server.len(), 4, "after 1, 3, 7 and 15 seconds");
        told(&guest, 6);
    }
}

/// Its end is told to its responder, which is no host: nothing of that leaves, though nobody is left who has one.
#[test]
fn reset_of_the_last_client_before_its_third_packet_stays_here() {
    let mut guest = Guest::new(Protocol::Socks5, ALL, &[]);
    guest.send_syn(&[]);
    let rst = Packet::new(client(), proxy())
        .flags(TcpFlags::RST)
        .numbers(CLIENT_ISN.wrapping_add(1), 0);
    let (verdict, out) = guest.world.put(&rst);
    assert_eq!(verdict, Verdict::Consume);
    assert!(out.is_empty(), "{out:?}");
    let mut left = guest.world.translator.connections(guest.world.now);
    assert!(left.next().is_none());
}

#[test]
fn blind_packets_do_not_end_a_call() {
    let mut guest = Guest::greeted(ALL);
    guest.say(&REQUEST);
    let to = guest.source();
    let wrong = |flags, ack| Packet::new(server(), to).flags(flags).numbers(9, ack);
    for packet in [
        wrong(TcpFlags::RST | ACK, guest.expects.wrapping_add(1)),
        wrong(SYN | ACK, guest.expects.wrapping_add(1)),
        wrong(ACK, guest.expects),
    ] {
        let (verdict, _) = guest.world.put(&packet);
        assert!(matches!(verdict, Verdict::Drop(_)), "{packet:?}");
    }
    guest.answer_call();
    assert_eq!(guest.heard.len(), 12);
}

#[test]
fn client_that_says_nothing_is_left_after_ten_seconds() {
    for uses in every_kind() {
        let mut guest = Guest::greeted(uses);
        guest.pass(9_900);
        assert!(!guest.reset);
        guest.pass(200);
        assert!(guest.reset, "{uses:?}");
        for _ in 0..200 {
            guest.pass(1000);
        }
        assert_eq!(
            guest.world.translator.connections(guest.world.now).count(),
            0
        );
        assert_eq!(guest.world.translator.gauges().memory_bytes, 0);
    }
}

#[test]
fn late_convert_is_as_that_in_the_syn() {
    for uses in every_kind() {
        for in_syn in [0, 1, 4, 23] {
            let mut guest = Guest::new(Protocol::Convert, uses, &[]);
            guest.open(&CONNECT[..in_syn]);
            guest.say(&CONNECT[in_syn..]);
            guest.answer_call();
            assert_eq!(guest.heard, ANSWER, "{uses:?} {in_syn}");
            guest.say(b"GET");
            assert_eq!(guest.arrived, b"GET", "{uses:?} {in_syn}");
        }
    }
}

/// The error that a client of Convert has been told.
fn told(guest: &Guest) -> ConvertError<'_> {
    let (message, len) = ConvertMessage::parse(&guest.heard).expect("a message");
    assert_eq!(len, guest.heard.len());
    let mut tlvs = message.tlvs();
    match (tlvs.next(), tlvs.next()) {
        (Some(ConvertTlv::Error(error)), None) => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn errors_of_convert_come_in_the_stream_whether_the_message_came_in_the_syn_or_later() {
    let changed = |at: usize, to: u8| {
        let mut said = CONNECT;
        said[at] = to;
        said
    };
    let (another, port, version) = (changed(21, 56), changed(7, 22), changed(0, 9));
    let (twice, unknown) = (changed(4, 21), changed(4, 99));
    let cases: [(&[u8], ConvertError<'_>); 5] = [
        (&another, ConvertError::NotAuthorized),
        (&port, ConvertError::NotAuthorized),
        (&version, ConvertError::UnsupportedVersion(&[1])),
        (&twice, ConvertError::Malformed(&twice)),
        (&unknown, ConvertError::Unsupported(&unknown)),
    ];
    for uses in every_kind() {
        for (said, error) in &cases {
            for in_syn in [0, 24] {
                let mut guest = Guest::new(Protocol::Convert, uses, &[]);
                guest.open(&said[..in_syn]);
                if in_syn == 0 {
                    guest.say(said);
                }
                assert_eq!(told(&guest), *error, "{uses:?} {in_syn}");
                assert!(guest.ended && guest.to_server.is_empty());
            }
        }
    }
}

#[test]
fn client_is_told_by_convert_why_the_server_it_named_in_its_syn_is_not_to_be_had() {
    for uses in every_kind() {
        for unreachable in [false, true] {
            let mut guest = Guest::new(Protocol::Convert, uses, &[]);
            guest.send_syn(&CONNECT);
            assert_eq!(guest.to_server.len(), 1);
            if unreachable {
                let ends = Ends {
                    from: guest.source(),
                    to: server(),
                };
                let quote = quoted(ends, guest.expects.wrapping_sub(1));
                let router = ip_header(end("10.55.0.1:0").ip(), ends.from.ip(), protocol::ICMP);
                let (_, out) = guest
                    .world
                    .put_bytes(&icmp_error(&router, (3, 1), 0, &quote));
                guest.take(out);
            } else {
                guest.speak(TcpFlags::RST | ACK, &[], vec![]);
            }
            guest.hear_syn_ack();
            let error = if unreachable {
                ConvertError::Unreachable(1)
            } else {
                ConvertError::ConnectionReset
            };
            assert_eq!(told(&guest), error, "{uses:?}");
            assert!(guest.ended);
            assert_eq!(guest.to_server.len(), 1);
        }
    }
}

#[test]
fn client_that_asks_only_what_is_converted_is_told_and_left() {
    for uses in every_kind() {
        let mut guest = Guest::new(Protocol::Convert, uses, &[]);
        guest.open(&[1, 2, 0x22, 0x63, 1, 1, 0, 0]);
        let (message, _) = ConvertMessage::parse(&guest.heard).expect("a message");
        let first = message.tlvs().next();
        assert!(
            matches!(first, Some(ConvertTlv::SupportedExtensions(_))),
            "{first:?}"
        );
        assert!(guest.ended);
    }
}

/// SOCKS5: CONNECT to port 80 of a name.
fn request_of(name: &[u8]) -> Vec<u8> {
    let len = u8::try_from(name.len()).unwrap();
    [&[5, 1, 0, 3, len][..], name, &[0, 80]].concat()
}

#[test]
fn servers_may_be_named_by_name_and_its_addresses_are_called_in_turn() {
    for uses in every_kind() {
        let mut guest = Guest::greeted(uses);
        guest.say(&request_of(b"server.example"));
        assert!(guest.to_server.is_empty());
        let lookup = guest.world.translator.poll_lookup().expect("a name");
        assert_eq!(&*lookup.name, "server.example");
        assert_eq!(guest.world.translator.poll_lookup(), None);
        // The first is not allowed, the second does not answer.
        let addrs = ["10.56.0.1", "10.55.9.8", "10.55.9.9"].map(|addr| addr.parse().unwrap());
        guest
            .world
            .translator
            .resolved(guest.world.now, lookup.id, &addrs);
        let called = guest.world.translator.poll_transmit().expect("a SYN");
        let called = Packet::parse(called.header()).expect("a SYN");
        assert_eq!(called.ends().to, end("10.55.9.8:80"));
        let refusal = Packet::between(called.ends().reversed())
            .flags(TcpFlags::RST | ACK)
            .numbers(0, called.tcp.seq.wrapping_add(1));
        let (_, out) = guest.world.put(&refusal);
        guest.take(out);
        assert_eq!(guest.to_server.len(), 1);
        guest.answer_call();
        assert_eq!(guest.heard[..4], [5, 0, 5, 0], "{uses:?}");
        // Asked twice nobody answers twice.
        guest
            .world
            .translator
            .resolved(guest.world.now, lookup.id, &addrs);
        assert!(guest.world.translator.poll_transmit().is_none());
    }
}

#[test]
fn names_that_lead_nowhere_or_where_nobody_may_go_are_refused() {
    let cases: [(&[&str], u8); 4] = [
        (&[], 4),
        (&["10.56.0.1"], 2),
        (&["127.0.0.1"], 2),
        (&["::ffff:127.0.0.1"], 2),
    ];
    for uses in every_kind() {
        for (addrs, code) in cases {
            let mut guest = Guest::greeted(uses);
            guest.say(&request_of(b"server.example"));
            let lookup = guest.world.translator.poll_lookup().expect("a name");
            let addrs: Vec<_> = addrs.iter().map(|addr| addr.parse().unwrap()).collect();
            guest
                .world
                .translator
                .resolved(guest.world.now, lookup.id, &addrs);
            let out = guest.world.sent();
            guest.take(out);
            assert_eq!(guest.heard[2..4], [5, code], "{uses:?} {addrs:?}");
            assert!(guest.ended && guest.to_server.is_empty());
        }
        let mut guest = Guest::greeted(uses);
        guest.say(&request_of(b"server.example"));
        for _ in 0..11 {
            guest.pass(1000);
        }
        assert_eq!(guest.heard[2..4], [5, 4], "nobody has resolved it");
        let mut guest = Guest::greeted(uses);
        guest.say(&request_of(b"server\nexample"));
        assert_eq!(guest.heard[2..4], [5, 4]);
        assert_eq!(guest.world.translator.poll_lookup(), None);
    }
}

#[test]
fn connection_is_told_of_once_its_server_is_known() {
    for uses in every_kind() {
        let mut guest = Guest::new(Protocol::Socks5, uses, &[]);
        guest.world.translator.keep_events(true);
        guest.open(&[]);
        guest.say(&GREETING);
        guest.say(&REQUEST);
        let view = |guest: &Guest| {
            let mut views = guest.world.translator.connections(guest.world.now);
            views.next().expect("a connection")
        };
        assert_eq!(view(&guest).backend, end("0.0.0.0:0"));
        assert!(guest.world.translator.poll_event().is_none());
        guest.answer_call();
        let known = view(&guest);
        assert_eq!((known.backend, known.source), (server(), guest.source()));
        let event = guest.world.translator.poll_event().expect("an event");
        let EventKind::Opened {
            backend, source, ..
        } = event.kind
        else {
            panic!("{event:?}")
        };
        assert_eq!((backend, source), (server(), guest.source()));
        assert!(guest.world.translator.poll_event().is_none());
    }
}

/// The same packet with a bit of its payload flipped on the way.
fn damaged(packet: &Packet) -> Vec<u8> {
    let mut bytes = packet.bytes();
    *bytes.last_mut().expect("a payload") ^= 1;
    bytes
}

#[test]
fn what_is_damaged_on_the_way_is_not_heard() {
    for uses in every_kind() {
        let mut guest = Guest::new(Protocol::Socks5, uses, &[]);
        guest.open(&[]);
        let greeting = guest.packet(ACK, &GREETING);
        let _ = guest.world.put_bytes(&damaged(&greeting));
        assert!(guest.heard.is_empty(), "{uses:?}");
        guest.say(&GREETING);
        assert_eq!(guest.heard, [5, 0], "{uses:?}");

        let mut guest = Guest::connected(uses);
        let packet = Packet::new(server(), guest.source())
            .flags(ACK)
            .numbers(guest.speaks, guest.expects)
            .with_payload(*b"data");
        let (verdict, out) = guest.world.put_bytes(&damaged(&packet));
        assert_eq!(verdict, Verdict::Drop(DropReason::Checksum), "{uses:?}");
        assert!(out.is_empty());
    }
}

#[test]
fn nobody_else_speaks_for_a_responder_or_to_one() {
    let mut guest = Guest::greeted(ALL);
    let responder = end("0.2.0.1:1");
    for packet in [
        Packet::new(responder, client()),
        Packet::new(client(), responder),
    ] {
        let (verdict, out) = guest.world.put(&packet.flags(ACK));
        assert_eq!(verdict, Verdict::Drop(DropReason::Spoofed));
        assert!(out.is_empty());
    }
}

/// Records, each in a place of its own.
#[derive(Clone, Default, Debug)]
struct Book(Arc<Mutex<Vec<Option<SubflowRecord>>>>);

impl Registry for Book {
    fn enter(&mut self, record: &SubflowRecord) -> Option<u32> {
        let mut records = self.0.lock().expect("one thread");
        records.push(Some(*record));
        u32::try_from(records.len() - 1).ok()
    }

    fn leave(&mut self, place: u32) {
        self.0.lock().expect("one thread")[place as usize] = None;
    }
}

#[test]
fn what_outlives_the_process_names_the_server_that_took_over() {
    for uses in every_kind() {
        let book = Book::default();
        let mut guest = Guest::new(Protocol::Socks5, uses, &[]);
        let registry = Box::new(book.clone());
        guest.world.translator.set_registry(registry);
        guest.open(&[]);
        guest.say(&GREETING);
        guest.say(&REQUEST);
        guest.answer_call();
        let records = book.0.lock().expect("one thread");
        let left: Vec<_> = records.iter().flatten().collect();
        let [record] = left[..] else {
            panic!("{left:?}")
        };
        assert_eq!((record.source, record.backend), (guest.source(), server()));
    }
}

#[test]
fn what_an_operator_closes_is_told_to_the_client_alone() {
    for uses in every_kind() {
        for (named, answers) in [(false, false), (true, false), (true, true)] {
            let mut guest = Guest::greeted(uses);
            if named {
                guest.say(&REQUEST);
            }
            let before = guest.to_server.len();
            let now = guest.world.now;
            let id = guest.world.translator.connections(now).next();
            let id = id.expect("a connection").id;
            let closed = guest.world.translator.carry_out(now, id, &Order::Close);
            assert_eq!(closed, Ok(Ordered::Done), "{uses:?}");
            let out = guest.world.sent();
            guest.take(out);
            assert!(guest.reset, "{uses:?}");
            assert_eq!(guest.to_server.len(), before);
            if answers {
                // Too late.
                guest.speak(SYN | ACK, &[], vec![]);
                let [rst] = &guest.to_server[before..] else {
                    panic!("{:?}", guest.to_server)
                };
                assert!(rst.tcp.flags.contains(TcpFlags::RST));
            }
            guest.to_server.clear();
            for _ in 0..100 {
                guest.pass(1000);
            }
            assert!(guest.to_server.is_empty());
            let left = guest.world.translator.connections(guest.world.now);
            assert_eq!(left.count(), 0);
        }
    }
}

/// What stands behind a preamble in the SYN is the server's, which is not there yet: the client has to say it again.
#[test]
fn stream_in_the_syn_is_not_acked() {
    let mut guest = Guest::new(Protocol::Socks5, ALL, &[]);
    let said = [&GREETING[..], &REQUEST, EARLY].concat();
    guest.send_syn(&said);
    let [syn_ack] = &guest.to_client[..] else {
        panic!("{:?}", guest.to_client)
    };
    let preamble = u32::try_from(GREETING.len() + REQUEST.len()).unwrap();
    assert_eq!(syn_ack.tcp.ack, CLIENT_ISN.wrapping_add(1 + preamble));
}

/// DATA_FIN goes down behind the data, as with any server.
#[test]
fn refusal_comes_before_the_end() {
    let mut guest = Guest::greeted(ALL);
    guest.to_client.clear();
    guest.say(&[5, 1, 0, 1, 10, 66, 9, 9, 0, 80]);
    let data = guest
        .to_client
        .iter()
        .position(|packet| !packet.payload.is_empty());
    let ends = |packet: &Packet| packet.view().dss.is_some_and(|dss| dss.data_fin);
    let end = guest.to_client.iter().position(ends);
    assert!(data.is_some() && data < end, "{:?}", guest.to_client);
}

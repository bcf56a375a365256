//! What passes between the box and an aggregation server where that is unlucky, impatient or not what it should be.

use std::time::Duration;

use flexcp_preamble::{Protocol, Refusal};
use flexcp_testkit::keys;
use flexcp_translator::{AggregationServers, Check, DropReason, Mode, Rst, Verdict};
use flexcp_wire::{CapableFlags, CapableKeys, MpFastClose, MptcpOption, TcpOption, Timestamps};

use crate::errands::{CONVERT, SOCKS5, answer_to, answers, by, int, server_at, told};
use crate::world::*;

/// A part of the answer, from its byte `at` on.
fn piece(world: &mut World, said: &[u8], at: usize, told: usize) -> (Verdict, Vec<Out>) {
    let first = keys::idsn(SERVER_KEY).wrapping_add(1 + at as u64);
    let ssn = u32::try_from(at).unwrap() + 1;
    let len = u16::try_from(said.len()).unwrap();
    let data = dss(world.idsn() + 1, Some((first, ssn, len)));
    let numbers = [1 + int(at), 1 + int(told)];
    world.of_server(0, ACK, numbers, [data], said)
}

#[test]
fn part_of_the_answer_that_comes_again_with_the_rest_counts_once() {
    let mut world = by(&[SOCKS5]);
    let told = told(&mut world);
    let said = answer_to(Protocol::Socks5, &told, false, None);
    for len in [3, 3, 5] {
        let (verdict, out) = piece(&mut world, &said[..len], 0, told.len());
        assert_eq!((verdict, out.len()), (Verdict::Consume, 1));
    }
    let (_, out) = piece(&mut world, &said, 0, told.len());
    assert_eq!(out[1].packet.tcp.flags, SYN | ACK);
    assert_eq!(out[1].seq(), int(said.len()));
    assert_eq!(world.translator.counters().server_granted, 1);
}

#[test]
fn what_the_server_has_acked_is_not_said_again() {
    let mut world = by(&[SOCKS5]);
    let told = told(&mut world);
    let behind = 1 + int(told.len());
    let acks = dss(world.idsn() + 1 + told.len() as u64, None);
    let _ = world.of_server(0, ACK, [1, behind], [acks], &[]);
    world.pass(2000);
    let out = world.timeout();
    let [ack] = &out[..] else { panic!("{out:?}") };
    assert_eq!((ack.seq(), ack.packet.payload.len()), (behind, 0));
}

#[test]
fn ack_of_what_was_not_said_is_not_believed() {
    let mut world = by(&[SOCKS5]);
    let told = told(&mut world);
    let data_ack = dss(world.idsn() + 1, None);
    for ack in [0, 2 + int(told.len())] {
        let (verdict, _) = world.of_server(0, ACK, [1, ack], [data_ack], &[]);
        assert_eq!(verdict, Verdict::Drop(DropReason::AckOfUnsent), "{ack}");
    }
    // Of what went with a SYN all is taken, or nothing.
    let mut world = by(&[CONVERT]);
    let (_, out) = world.of_client(SYN, [0, 0], offer(), &[]);
    let half = 1 + int(out[0].packet.payload.len() / 2);
    let (verdict, out) = world.of_server(0, SYN | ACK, [0, half], answer(), &[]);
    assert_eq!(
        (verdict, out.len()),
        (Verdict::Drop(DropReason::AckOfUnsent), 0)
    );
}

/// Nothing is known of the next one of what the one before has said.
#[test]
fn next_server_is_asked_as_if_there_had_been_none_before() {
    let mut world = by(&[CONVERT, CONVERT]);
    let (_, out) = world.of_client(SYN, [0, 0], offer(), &[]);
    let told = int(out[0].packet.payload.len());
    world.pass(100);
    let _ = world.of_client(SYN, [0, 0], offer(), &[]);
    let (_, out) = world.of_server(0, RST | ACK, [0, 1 + told], [], &[]);
    assert_eq!(out[0].packet.ends().to, server_at(1));
    assert_eq!(out[0].keys(), Some(CapableKeys::Syn), "it may speak MPTCP");
    world.pass(100);
    let (_, out) = world.of_client(SYN, [0, 0], offer(), &[]);
    assert_eq!(out[0].keys(), Some(CapableKeys::Syn), "the second time");
    // The first takes no joins at its address, the second does.
    let mut world = by(&[CONVERT, CONVERT]);
    let (_, out) = world.of_client(SYN, [0, 0], offer(), &[]);
    let told = out[0].packet.payload.clone();
    let flags = CapableFlags::HMAC_SHA256.with(CapableFlags::NO_JOIN_INITIAL);
    let key = capable_with(flags, CapableKeys::SynAck { sender: SERVER_KEY });
    let closed = [offer(), vec![key]].concat();
    let behind = 1 + int(told.len());
    let _ = world.of_server(0, SYN | ACK, [0, behind], closed, &[]);
    let no = answer_to(Protocol::Convert, &told, false, Some(Refusal::NotAllowed));
    let _ = answers(&mut world, &no, told.len(), &[]);
    let _ = world.of_server(1, SYN | ACK, [0, behind], answer(), &[]);
    let yes = answer_to(Protocol::Convert, &told, false, None);
    let _ = answers(&mut world, &yes, told.len(), &[]);
    let _ = world.of_client(ACK, [1, 1 + int(yes.len())], [], &[]);
    let out = world.timeout();
    assert!(out.iter().any(|out| out.join().is_some()), "{out:?}");
}

/// Where there is one alone, too, it is asked again once it answers a probe; until then the server itself is.
#[test]
fn only_server_that_was_left_is_probed_until_it_answers() {
    let mut world = by(&[CONVERT]);
    let (_, out) = world.of_client(SYN, [0, 0], offer(), &[]);
    let told = int(out[0].packet.payload.len());
    let (_, out) = world.of_server(0, RST | ACK, [0, 1 + told], [], &[]);
    assert_eq!(out[0].packet.ends().to, server());
    world.pass(1000);
    let out = world.timeout();
    let [probe] = &out[..] else { panic!("{out:?}") };
    assert_eq!(
        (probe.packet.ends().to, probe.keys()),
        (aggregation(), None)
    );
    let _ = world.of_server(probe.subflow.unwrap(), SYN | ACK, [0, 1], [], &[]);
    let counters = world.translator.counters();
    assert_eq!((counters.backend_marked, counters.backend_back), (1, 1));
}

#[test]
fn each_silent_server_has_its_time() {
    let mut world = by(&[CONVERT, CONVERT, CONVERT]);
    let _ = world.of_client(SYN, [0, 0], offer(), &[]);
    let mut asked = vec![];
    for _ in 0..20 {
        world.pass(100);
        let out = world.timeout();
        // Probes of those that were left ask for no MPTCP.
        let out = out.iter().filter(|out| out.keys().is_some());
        asked.extend(out.map(|out| out.packet.ends().to));
    }
    assert_eq!(asked[..2], [server_at(1), server_at(2)]);
}

/// It may answer still, but not for the next one.
#[test]
fn server_that_was_left_is_not_heard() {
    let mut world = by(&[CONVERT, CONVERT]);
    let (_, out) = world.of_client(SYN, [0, 0], offer(), &[]);
    let behind = 1 + int(out[0].packet.payload.len());
    world.pass(1000);
    let _ = world.timeout();
    assert_eq!(world.peers[1], server_at(1));
    assert_eq!(
        world.translator.gauges().flows,
        2,
        "the client's and this one's"
    );
    let counts: Vec<_> = world
        .translator
        .backends()
        .map(|view| view.connections)
        .collect();
    assert_eq!(counts, [0, 1]);
    let (_, out) = world.of_server(0, SYN | ACK, [0, behind], answer(), &[]);
    assert!(out.iter().all(|out| out.subflow != Some(1)), "{out:?}");
    assert_eq!(world.translator.counters().mp_capable_synack_rx, 0);
}

#[test]
fn client_is_told_what_the_aggregation_server_offers() {
    let mut world = by(&[CONVERT]);
    let (_, out) = world.of_client(SYN, [0, 0], offer(), &[]);
    let told = out[0].packet.payload.clone();
    let key = capable(CapableKeys::SynAck { sender: SERVER_KEY });
    let options = [TcpOption::Mss(1300), TcpOption::WindowScale(3), key];
    let _ = world.of_server(0, SYN | ACK, [0, 1 + int(told.len())], options, &[]);
    let said = answer_to(Protocol::Convert, &told, false, None);
    let (_, out) = answers(&mut world, &said, told.len(), &[]);
    let view = out[1].packet.view();
    assert_eq!((view.mss, view.window_scale), (Some(1300 - 28), Some(3)));
    assert!(!view.sack_permitted);
    assert_eq!(out[1].packet.tcp.window, u16::MAX, "of 65,000 times 8");
}

/// What the aggregation server was told behind its SYN/ACK takes a part of the window in that.
#[test]
fn client_is_offered_what_the_message_has_left_of_the_window() {
    for server in [SOCKS5, CONVERT] {
        let mut world = by(&[server]);
        let (_, out) = world.of_client(SYN, [0, 0], offer(), &[]);
        let in_syn = out[0].packet.payload.clone();
        let mut syn = flexcp_testkit::Packet::new(world.peers[0], world.subflows[0])
            .flags(SYN | ACK)
            .numbers(
                world.isn_of_server(0),
                at(world.isns[0], 1 + int(in_syn.len())),
            )
            .with_options(answer());
        syn.tcp.window = 2000;
        let (_, out) = world.put(&syn);
        let behind = out
            .last()
            .map_or(Vec::new(), |out| out.packet.payload.clone());
        let told = if in_syn.is_empty() { &behind } else { &in_syn };
        let protocol = if in_syn.is_empty() {
            Protocol::Socks5
        } else {
            Protocol::Convert
        };
        let said = answer_to(protocol, told, false, None);
        let first = keys::idsn(SERVER_KEY).wrapping_add(1);
        let len = u16::try_from(said.len()).unwrap();
        let data = dss(
            world.idsn() + 1 + behind.len() as u64,
            Some((first, 1, len)),
        );
        let mut granted = flexcp_testkit::Packet::new(world.peers[0], world.subflows[0])
            .flags(ACK)
            .numbers(
                at(world.isn_of_server(0), 1),
                at(world.isns[0], 1 + int(told.len())),
            )
            .with_options([data])
            .with_payload(said.as_slice());
        granted.tcp.window = 0;
        let (verdict, out) = world.put(&granted);
        assert_eq!(verdict, Verdict::Consume, "{protocol:?}");
        let window = usize::from(out[1].packet.tcp.window);
        assert_eq!(out[1].packet.tcp.flags, SYN | ACK);
        assert_eq!(window, 2000 - behind.len(), "{protocol:?}");
    }
}

#[test]
fn client_that_asks_again_is_echoed_its_latest_clock() {
    let ts = |val, ecr| TcpOption::Timestamps(Timestamps { val, ecr });
    let mut world = by(&[CONVERT]);
    let (_, out) = world.of_client(SYN, [0, 0], [mss(), ts(100, 0)], &[]);
    let told = out[0].packet.payload.clone();
    let key = capable(CapableKeys::SynAck { sender: SERVER_KEY });
    let options = [mss(), ts(9000, 100), key];
    let _ = world.of_server(0, SYN | ACK, [0, 1 + int(told.len())], options, &[]);
    let said = answer_to(Protocol::Convert, &told, false, None);
    let first = keys::idsn(SERVER_KEY).wrapping_add(1);
    let len = u16::try_from(said.len()).unwrap();
    let data = dss(world.idsn() + 1, Some((first, 1, len)));
    let numbers = [1, 1 + int(told.len())];
    let _ = world.of_server(0, ACK, numbers, [ts(9050, 100), data], &said);
    let (_, out) = world.of_client(SYN, [0, 0], [mss(), ts(1100, 0)], &[]);
    let echoed = out[0]
        .packet
        .view()
        .timestamps
        .map(|timestamps| timestamps.ecr);
    assert_eq!(echoed, Some(1100));
}

/// What it sends may ACK something else.
#[test]
fn client_that_has_not_acked_the_answer_is_answered_anew() {
    let mut world = by(&[CONVERT]);
    let told = told(&mut world);
    let said = answer_to(Protocol::Convert, &told, false, None);
    let _ = answers(&mut world, &said, told.len(), &[]);
    let _ = world.of_client(ACK, [1, int(said.len())], [], &[]);
    let (_, out) = world.of_client(SYN, [0, 0], offer(), &[]);
    assert_eq!(out[0].packet.tcp.flags, SYN | ACK);
}

/// Behind the answer options may be taken away on the way, as with any connection.
#[test]
fn connection_by_an_aggregation_server_may_fall_back() {
    let mut world = by(&[SOCKS5]);
    let told = told(&mut world);
    let said = answer_to(Protocol::Socks5, &told, false, None);
    let _ = answers(&mut world, &said, told.len(), &[]);
    let behind = [1 + int(said.len()), 1 + int(told.len())];
    let (verdict, out) = world.of_server(0, ACK, behind, [], b"hello");
    assert_eq!(verdict, Verdict::Forward);
    assert_eq!((out[0].subflow, out[0].seq()), (None, behind[0]));
}

#[test]
fn client_hears_why_its_server_is_not_there() {
    let unreachable = Refusal::Unreachable {
        code: 1,
        is_v6: false,
    };
    for (why, cause) in [
        (Refusal::Reset, Rst::Refused),
        (unreachable, Rst::Unreachable),
    ] {
        let mut world = by(&[CONVERT]);
        let told = told(&mut world);
        let said = answer_to(Protocol::Convert, &told, false, Some(why));
        let (_, out) = answers(&mut world, &said, told.len(), &[]);
        assert_eq!((out[0].subflow, out[0].ack()), (None, 1));
        assert_eq!(world.translator.counters().causes.get(cause), 1, "{why:?}");
    }
}

/// One that has no room, or asks for what the box does not have, is passed by.
#[test]
fn server_that_takes_nobody_is_not_asked_by_the_next_connection() {
    for wants_password in [false, true] {
        let mut world = by(&[SOCKS5, SOCKS5]);
        let told = told(&mut world);
        let said = if wants_password {
            vec![5, 2]
        } else {
            answer_to(Protocol::Socks5, &told, false, Some(Refusal::NoRoom(0)))
        };
        let _ = answers(&mut world, &said, told.len(), &[]);
        assert_eq!(world.peers, [server_at(0), server_at(1)]);
        let counters = world.translator.counters();
        assert_eq!((counters.server_declined, counters.backend_marked), (1, 1));
        let errands = world.translator.backends().map(|view| view.errands);
        assert_eq!(
            errands
                .map(|of| (of.granted, of.declined))
                .collect::<Vec<_>>(),
            [(0, 1), (0, 0)]
        );
        let syn = flexcp_testkit::Packet::new(end("192.168.1.11:40000"), server())
            .flags(SYN)
            .numbers(7, 0)
            .with_options(offer());
        let _ = world.put(&syn);
        assert_eq!(world.peers[2], server_at(1));
    }
}

#[test]
fn servers_have_bounds() {
    let mut servers = AggregationServers::default();
    let approach = approach(Protocol::Convert, None);
    for _ in 0..AggregationServers::MAX {
        assert!(servers.push(aggregation(), approach.clone()));
    }
    assert!(!servers.push(aggregation(), approach));
}

/// The answer to the check would be taken for that to the connection's SYN.
#[test]
fn port_that_a_server_is_checked_from_is_no_connections() {
    let mut world = World::with(|config| {
        let service = &mut config.services[0];
        let Mode::Box {
            servers,
            source_ports,
            ..
        } = &mut service.mode
        else {
            unreachable!("it is a box");
        };
        let (protocol, user) = CONVERT;
        assert!(servers.push(aggregation(), approach(protocol, user)));
        *source_ports = 61000..=61000;
        service.intake.check = Some(Check {
            every: Duration::from_secs(1),
            timeout: Duration::from_secs(1),
            fall: 3,
            rise: 1,
        });
    });
    let mut checked = vec![];
    while checked.is_empty() {
        world.pass(100);
        checked = world.timeout();
    }
    assert_eq!(checked[0].packet.ends().from, end("10.1.0.2:61000"));
    let (_, out) = world.of_client(SYN, [0, 0], offer(), &[]);
    assert_eq!(out[0].packet.ends().from, end("10.2.0.2:61000"));
}

/// A SYN/ACK that comes again brings the answer along a second time: there is nothing in it to hear.
#[test]
fn syn_ack_of_a_server_with_tcp_that_comes_again_is_acked() {
    let mut world = by(&[CONVERT, CONVERT]);
    let (_, out) = world.of_client(SYN, [0, 0], offer(), &[]);
    let told = out[0].packet.payload.clone();
    let said = answer_to(Protocol::Convert, &told, false, None);
    let behind = [0, 1 + int(told.len())];
    let _ = world.of_server(0, SYN | ACK, behind, offer(), &said);
    for knows in [false, true] {
        if knows {
            let _ = world.of_client(ACK, [1, 1 + int(said.len())], [], &[]);
        }
        let (verdict, out) = world.of_server(0, SYN | ACK, behind, offer(), &said);
        let [ack] = &out[..] else { panic!("{out:?}") };
        assert_eq!((verdict, ack.subflow), (Verdict::Consume, Some(0)));
        assert_eq!(ack.packet.tcp.flags, ACK);
        assert_eq!(
            (ack.seq(), ack.ack()),
            (1 + int(told.len()), 1 + int(said.len()))
        );
    }
    let counters = world.translator.counters();
    assert_eq!((counters.server_granted, counters.server_declined), (1, 0));
    let errands = world.translator.backends().map(|view| view.errands);
    assert_eq!(
        errands
            .map(|of| (of.granted, of.declined))
            .collect::<Vec<_>>(),
        [(1, 0), (0, 0)]
    );
}

/// What the handshake takes is no sample of data, though its SYN has carried some.
#[test]
fn handshake_by_a_converter_is_timed_as_one() {
    let mut world = by(&[CONVERT]);
    let (_, out) = world.of_client(SYN, [0, 0], offer(), &[]);
    let behind = 1 + int(out[0].packet.payload.len());
    world.pass(30);
    let _ = world.of_server(0, SYN | ACK, [0, behind], answer(), &[]);
    let mut all = world.translator.connections(world.now);
    let path = all.next().expect("it is there").subflows[0].quality;
    let took = Some(Duration::from_millis(30));
    assert_eq!((path.rtt_least, path.rtt_variation), (took, None));
}

/// Its key proves more than its number does, which lies behind what got lost.
#[test]
fn server_that_aborts_is_left_at_once() {
    let aborts = |key| TcpOption::Mptcp(MptcpOption::FastClose(MpFastClose { key }));
    for flags in [RST | ACK, ACK] {
        let mut world = by(&[CONVERT, CONVERT]);
        let told = told(&mut world);
        let numbers = [900, 1 + int(told.len())];
        let foreign = world.box_key() ^ 1;
        let _ = world.of_server(0, flags, numbers, [aborts(foreign)], &[]);
        assert_eq!(world.peers.len(), 1, "anybody can say that");
        let own = world.box_key();
        let (_, out) = world.of_server(0, flags, numbers, [aborts(own)], &[]);
        assert_eq!(world.peers[1..], [server_at(1)], "{out:?}");
        assert_eq!(world.translator.counters().mp_fastclose_rx, 1);
    }
}

/// Of a connection whose client does not know yet that it is connected, nobody has been told.
#[test]
fn server_that_resets_what_it_has_just_granted_is_no_event() {
    let mut world = by(&[CONVERT]);
    world.translator.keep_events(true);
    let told = told(&mut world);
    let said = answer_to(Protocol::Convert, &told, false, None);
    let _ = answers(&mut world, &said, told.len(), &[]);
    let behind = [1 + int(said.len()), 1 + int(told.len())];
    let _ = world.of_server(0, RST | ACK, behind, [], &[]);
    assert!(world.translator.poll_event().is_none());
}

/// A server may map what it has sent, and has no ACK of, anew on the same subflow: behind that data and subflow numbers differ.
#[test]
fn answer_that_is_mapped_anew_behind_itself_is_heard_once() {
    let mut world = by(&[SOCKS5]);
    let told = told(&mut world);
    let said = answer_to(Protocol::Socks5, &told, false, None);
    let first = keys::idsn(SERVER_KEY).wrapping_add(1);
    let (front, rest) = said.split_at(5);
    let behind = 1 + int(told.len());
    let piece = |world: &mut World, ssn: u32, dsn: u64, bytes: &[u8]| {
        let mapping = (
            first.wrapping_add(dsn),
            ssn,
            u16::try_from(bytes.len()).unwrap(),
        );
        let data = dss(world.idsn() + 1, Some(mapping));
        world.of_server(0, ACK, [ssn.cast_signed(), behind], [data], bytes)
    };
    // Behind what is missing still.
    let (verdict, out) = piece(&mut world, 6, 0, front);
    assert_eq!(verdict, Verdict::Drop(DropReason::Unexpected));
    assert_eq!(out[0].ack(), 1);
    let _ = piece(&mut world, 1, 0, front);
    let (_, out) = piece(&mut world, 6, 0, front);
    assert_eq!(out[0].ack(), 11, "the subflow has it twice");
    let data_ack = out[0].dss().and_then(|dss| dss.data_ack);
    assert_eq!(
        data_ack,
        Some(flexcp_wire::DataNumber::Long(first.wrapping_add(5)))
    );
    let (_, out) = piece(&mut world, 11, 5, rest);
    assert_eq!(out[1].packet.tcp.flags, SYN | ACK);
    let said = int(said.len());
    assert_eq!(out[1].seq(), said);
    // The client has the stream's numbers, the subflow its own.
    let _ = world.of_client(ACK, [1, said + 1], [], &[]);
    let _ = world.of_client(ACK, [1, said + 1], [], b"GET");
    let (verdict, _) = world.of_server(0, ACK, [said + 6, behind + 3], [], &[]);
    assert_eq!(verdict, Verdict::Drop(DropReason::StaleAck), "no data ACK");
    let ssn = u32::try_from(said + 6).unwrap();
    let (_, out) = piece(&mut world, ssn, u64::try_from(said).unwrap(), b"ok");
    assert_eq!(
        (out[0].seq(), &out[0].packet.payload[..]),
        (said + 1, &b"ok"[..])
    );
    let (_, out) = world.of_client(ACK, [4, said + 3], [], &[]);
    assert_eq!((out[0].subflow, out[0].ack()), (Some(0), said + 8));
}

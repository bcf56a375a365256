//! Clients that name their server in the SYN (0-RTT Convert, RFC 8803): numbers, what FlexCP answers and repeats, who is refused.
#![forbid(unsafe_code)]

mod access;
mod guest;
mod held;
mod hosted;
mod offload;
mod proxied;
mod repeated;
mod seam;
mod strangers;
mod world;

use std::net::SocketAddr;

use flexcp_testkit::{Packet, keys};
use flexcp_translator::{
    ConnectionState, DropReason, Frame, HEADROOM, HalfOpenEvicted, Mode, Verdict,
};
use flexcp_wire::{
    CapableKeys, ChecksumState, DataNumber, Dss, DssMapping, MpPrio, MptcpOption, Offload,
    SackBlocks, TcpFlags, TcpOption, Timestamps,
};

use crate::world::*;

#[test]
fn syn_goes_to_the_server_behind_the_preamble() {
    let mut world = World::new();
    let said = [&CONNECT[..], EARLY].concat();
    let (verdict, out) = world.of_client(SYN, [0, 0], [mss(), capable(CapableKeys::Syn)], &said);
    assert_eq!(verdict, Verdict::Forward);
    let [syn] = &out[..] else { panic!("{out:?}") };
    assert!(syn.to_server);
    assert_eq!((syn.seq(), syn.packet.tcp.flags), (24, SYN));
    assert!(syn.packet.payload.is_empty() && !syn.packet.view().mptcp);
    let from = syn.packet.ends().from;
    assert!((61000..=61999).contains(&from.port()), "{from}");
    assert_eq!(world.translator.counters().preambles, 1);
    assert_eq!(world.translator.counters().mp_capable_syn_rx, 1);
}

#[test]
fn syn_ack_acks_all_of_the_syn_and_starts_before_the_servers_stream() {
    let mut world = World::new();
    let out = world.syn_ack(EARLY);
    let [syn_ack] = &out[..] else {
        panic!("{out:?}")
    };
    assert!(!syn_ack.to_server);
    assert_eq!((syn_ack.seq(), syn_ack.ack()), (-4, 25 + 10));
    assert_eq!(syn_ack.packet.tcp.flags, SYN | ACK);
    assert!(world.key.is_some() && syn_ack.packet.payload.is_empty());
    // Its first answer was of another SYN.
    let (verdict, _) = World::new_after_syn().of_server(SYN | ACK, [0, 35], [mss()], &[]);
    assert!(matches!(verdict, Verdict::Drop(_)));
}

#[test]
fn client_is_answered_and_early_data_goes_on_once_it_has_shown_where_it_is() {
    let mut world = World::new();
    let _ = world.syn_ack(EARLY);
    let out = world.third(EARLY);
    let [early, answer] = &out[..] else {
        panic!("{out:?}")
    };
    // In place of the client's ACK, which a server that has answered by a cookie could make nothing of. That knows nothing of an
    // answer, either.
    assert!(early.to_server && !answer.to_server);
    assert_eq!((early.seq(), early.ack()), (25, 1));
    assert_eq!(early.packet.payload, EARLY);
    assert_eq!((answer.seq(), answer.ack()), (-3, 35));
    assert_eq!(answer.packet.payload, ANSWER);
    assert_eq!(answer.mapping(world.idsn()), Some((1, 1, 4)));
    assert_eq!(world.translator.counters().mp_capable_ack_rx, 1);
}

#[test]
fn early_data_goes_before_data_of_the_third_packet() {
    let mut world = World::new();
    let _ = world.syn_ack(EARLY);
    let out = world.third_with(EARLY, b"abc");
    let to_server = out.iter().filter(|out| out.to_server);
    let shown: Vec<_> = to_server
        .map(|out| (out.seq(), &out.packet.payload[..]))
        .collect();
    assert_eq!(shown, [(25, EARLY), (35, &b"abc"[..])]);
}

#[test]
fn streams_stand_behind_preamble_and_answer() {
    let mut world = World::established(EARLY);
    let idsn = world.idsn();
    let (_, out) = world.of_server(ACK, [1, 35], [], b"hello");
    let [down] = &out[..] else { panic!("{out:?}") };
    assert_eq!((down.seq(), down.packet.payload.len()), (1, 5));
    assert_eq!(down.mapping(idsn), Some((5, 5, 5)));
    let client_idsn = keys::idsn(CLIENT_KEY);
    let mapping = (client_idsn.wrapping_add(1), 1, 3);
    let data_ack = dss(idsn.wrapping_add(10), Some(mapping));
    let (_, out) = world.of_client(ACK, [35, 6], [data_ack], b"abc");
    let [up] = &out[..] else { panic!("{out:?}") };
    assert!(up.to_server);
    assert_eq!((up.seq(), up.ack()), (35, 6));
    assert_eq!(up.packet.payload, b"abc");
    assert_eq!(world.translator.counters().fallback_established, 0);
}

#[test]
fn what_is_not_acked_is_repeated_and_what_is_acked_is_not() {
    let mut world = World::established(EARLY);
    let idsn = world.idsn();
    world.pass(299);
    assert!(world.timeout().is_empty());
    world.pass(1);
    let out = world.timeout();
    let [early, answer] = &out[..] else {
        panic!("{out:?}")
    };
    assert_eq!((early.seq(), &early.packet.payload[..]), (25, EARLY));
    assert_eq!(
        (answer.seq(), &answer.packet.payload[..]),
        (-3, &ANSWER[..])
    );
    assert_eq!(answer.mapping(idsn), Some((1, 1, 4)));
    assert_eq!(world.repeated(), 1);
    // The server has it, the client does not.
    let _ = world.of_server(ACK, [1, 35], [], &[]);
    world.pass(600);
    let out = world.timeout();
    let [answer] = &out[..] else {
        panic!("{out:?}")
    };
    assert_eq!(answer.packet.payload, ANSWER);
    // Half of it.
    let _ = world.of_client(ACK, [35, -1], [dss(idsn.wrapping_add(3), None)], &[]);
    world.pass(1200);
    let out = world.timeout();
    let [rest] = &out[..] else { panic!("{out:?}") };
    assert_eq!((rest.seq(), &rest.packet.payload[..]), (-1, &ANSWER[2..]));
    let _ = world.of_client(ACK, [35, 1], [dss(idsn.wrapping_add(5), None)], &[]);
    world.pass(60_000);
    assert!(world.timeout().is_empty());
    assert_eq!(world.repeated(), 3);
}

#[test]
fn server_hears_of_nothing_before_its_first_byte() {
    let mut world = World::new();
    let syn = [mss(), TcpOption::SackPermitted, capable(CapableKeys::Syn)];
    let _ = world.of_client(SYN, [0, 0], syn, &CONNECT);
    let agreed = [mss(), TcpOption::SackPermitted];
    let _ = world.of_server(SYN | ACK, [0, 25], agreed, &[]);
    let _ = world.third(&[]);
    let idsn = world.idsn();
    let _ = world.of_server(ACK, [1, 25], [], &[b'x'; 100]);
    let _ = world.of_server(ACK, [101, 25], [], &[b'x'; 100]);
    // The answer is lost, and the server's first packet has come; then the second has, and not the first.
    for (block, told) in [((1, 101), &[][..]), ((101, 201), &[(101, 201)][..])] {
        let mut blocks = SackBlocks::default();
        blocks.push(at(SERVER_ISN, block.0), at(SERVER_ISN, block.1));
        let options = [dss(idsn.wrapping_add(1), None), TcpOption::Sack(blocks)];
        let (_, out) = world.of_client(ACK, [25, -3], options, b"");
        let said: Vec<_> = out.iter().filter(|out| out.to_server).collect();
        let [ack] = &said[..] else { panic!("{out:?}") };
        assert_eq!(ack.ack(), 1);
        let sacked: Vec<_> = ack.packet.view().sack.iter().copied().collect();
        let relative = |number: u32| number.wrapping_sub(SERVER_ISN).cast_signed();
        let sacked: Vec<_> = sacked
            .iter()
            .map(|(a, b)| (relative(*a), relative(*b)))
            .collect();
        assert_eq!(sacked, told);
    }
}

#[test]
fn repeated_syn_goes_to_the_server_again() {
    let mut world = World::new_after_syn();
    // Linux sends it again without the data.
    let (verdict, out) = world.of_client(SYN, [0, 0], [mss(), capable(CapableKeys::Syn)], &[]);
    assert_eq!(verdict, Verdict::Forward);
    let [syn] = &out[..] else { panic!("{out:?}") };
    assert_eq!((syn.seq(), syn.packet.payload.len()), (24, 0));
    // In the end it gives MPTCP up.
    let (_, out) = world.of_client(SYN, [0, 0], [mss()], &[]);
    assert_eq!(out[0].seq(), 24);
    let (_, out) = world.of_server(SYN | ACK, [0, 25], [mss()], &[]);
    let [syn_ack] = &out[..] else {
        panic!("{out:?}")
    };
    assert!(!syn_ack.packet.view().mptcp);
    assert_eq!((syn_ack.seq(), syn_ack.ack()), (-4, 25));
    assert_eq!(syn_ack.packet.payload, ANSWER);
}

/// A client whose first SYN carried everything, and that has sent it again without before or behind the answer.
fn sent_again(answered: bool) -> (World, Vec<Out>) {
    let mut world = World::new();
    let syn = [mss(), capable(CapableKeys::Syn)];
    let said = [&CONNECT[..], EARLY].concat();
    let _ = world.of_client(SYN, [0, 0], syn, &said);
    if answered {
        let (_, out) = world.of_server(SYN | ACK, [0, 25], [mss()], &[]);
        assert_eq!(out[0].ack(), 35);
    }
    let _ = world.of_client(SYN, [0, 0], syn, &[]);
    let (_, out) = world.of_server(SYN | ACK, [0, 25], [mss()], &[]);
    (world, out)
}

/// Linux puts its keys into the packet behind the last SYN that it sent, and the data of the first one, which has no data number. Others
/// may send it as data like any other.
#[test]
fn client_that_sends_its_syn_again_without_data_sends_that_again_with_its_keys() {
    for mapped in [false, true] {
        let (mut world, out) = sent_again(false);
        let [syn_ack] = &out[..] else {
            panic!("{out:?}")
        };
        assert_eq!((syn_ack.seq(), syn_ack.ack()), (-4, 1));
        let said = [&CONNECT[..], EARLY].concat();
        let receiver = world.key.expect("FlexCP's");
        let keys = keys_of_third(receiver, if mapped { &said } else { &[] });
        let (_, out) = world.of_client(ACK, [1, -3], [capable(keys)], &said);
        let early = out.iter().find(|out| out.to_server).expect("early data");
        assert_eq!((early.seq(), &early.packet.payload[..]), (25, EARLY));
        let first = |out: &&Out| !out.to_server && !out.packet.payload.is_empty();
        let answer = out.iter().find(first).expect("an answer");
        // Without a number it is ACKed at once, as data of others by the server.
        let acked = if mapped { 1 } else { 35 };
        assert_eq!((answer.seq(), answer.ack()), (-3, acked));
        assert_eq!(answer.mapping(world.idsn()), Some((1, 1, 4)));
        assert_eq!(world.state(), ConnectionState::Translating);
        // The streams go on behind it, or begin there.
        let behind = if mapped { 34 } else { 0 };
        let dsn = keys::idsn(CLIENT_KEY).wrapping_add(1 + u64::from(behind));
        let data_ack = dss(world.idsn().wrapping_add(5), Some((dsn, 1 + behind, 3)));
        let (_, out) = world.of_client(ACK, [35, 1], [data_ack], b"abc");
        let [up] = &out[..] else { panic!("{out:?}") };
        assert_eq!((up.seq(), &up.packet.payload[..]), (35, &b"abc"[..]));
        let (_, out) = world.of_server(ACK, [1, 38], [], b"hello");
        assert_eq!((out[0].seq(), out[0].ack()), (1, 38));
    }
}

/// A part of what its SYN carried comes again as data: the server sees nothing of the preamble, and nothing is ACKed that has not come.
#[test]
fn preamble_that_comes_again_as_data_is_not_the_servers_to_see() {
    let (mut world, _) = sent_again(false);
    let keys = keys_of_third(world.key.expect("FlexCP's"), &CONNECT[..5]);
    let (_, out) = world.of_client(ACK, [1, -3], [capable(keys)], &CONNECT[..5]);
    for out in out.iter().filter(|out| out.to_server) {
        assert!(out.packet.payload.is_empty() || out.seq() >= 25, "{out:?}");
    }
    let (_, out) = world.of_server(ACK, [1, 35], [], b"hello");
    let [down] = &out[..] else { panic!("{out:?}") };
    let view = down.packet.view();
    let acked = view.dss.as_ref().and_then(|dss| dss.data_ack);
    let sent = keys::idsn(CLIENT_KEY).wrapping_add(1 + 5);
    assert_eq!(acked, Some(DataNumber::Long(sent)));
    assert_eq!(down.ack(), 1 + 5);
    // What the server has of the rest takes no part of its window.
    let offered = Packet::new(server(), proxy()).tcp.window;
    assert_eq!(down.packet.tcp.window, offered + 29);
}

/// Its SYN has crossed the answer, and no packet of it will ever have the keys.
#[test]
fn client_whose_syn_has_crossed_the_answer_falls_back() {
    let (mut world, _) = sent_again(true);
    let data_ack = dss(world.idsn().wrapping_add(1), None);
    let (_, out) = world.of_client(ACK, [35, -3], [data_ack], &[]);
    let [early, answer] = &out[..] else {
        panic!("{out:?}")
    };
    assert_eq!((early.seq(), &early.packet.payload[..]), (25, EARLY));
    assert_eq!(
        (answer.seq(), &answer.packet.payload[..]),
        (-3, &ANSWER[..])
    );
    assert!(!answer.packet.view().mptcp);
    assert_eq!(world.state(), ConnectionState::Fallback);
    // One that ends its stream, or has a path for backup, has sent its keys, and they were overtaken.
    for ends in [true, false] {
        let (mut world, _) = sent_again(true);
        let fin = DssMapping {
            dsn: DataNumber::Long(keys::idsn(CLIENT_KEY).wrapping_add(1)),
            ssn: 0,
            len: 1,
            checksum: None,
        };
        let says = MptcpOption::Dss(Dss {
            data_ack: Some(DataNumber::Long(world.idsn().wrapping_add(1))),
            mapping: ends.then_some(fin),
            data_fin: ends,
        });
        let backup = MptcpOption::Prio(MpPrio { backup: true });
        let options = [Some(says), (!ends).then_some(backup)];
        let options = options.into_iter().flatten().map(TcpOption::Mptcp);
        let (verdict, _) = world.of_client(ACK, [35, -3], options, &[]);
        assert_eq!(verdict, Verdict::Drop(DropReason::NotAuthenticated));
    }
    // Where only such a one can be, what has no keys has overtaken what has.
    let (mut world, _) = sent_again(false);
    let data_ack = dss(world.idsn().wrapping_add(1), None);
    let (verdict, _) = world.of_client(ACK, [35, -3], [data_ack], &[]);
    assert_eq!(verdict, Verdict::Drop(DropReason::NotAuthenticated));
}

#[test]
fn nobody_gets_more_than_came_from_there() {
    let mut world = World::new_after_syn();
    let mut sent = usize::from(u8::try_from(40 + 8 + 24).unwrap());
    let mut got = 0;
    for round in 0..20 {
        let (verdict, out) = world.of_server(SYN | ACK, [0, 25], [mss()], &[]);
        let bytes = |out: &Out| 40 + out.packet.options.len() + out.packet.payload.len();
        got += out.iter().map(bytes).sum::<usize>();
        assert!(got <= sent, "{got} bytes for {sent} in round {round}");
        if round > 0 && out.is_empty() {
            assert!(matches!(verdict, Verdict::Drop(_)), "{verdict:?}");
        }
        if round % 4 == 3 {
            let syn = [mss(), capable(CapableKeys::Syn)];
            let _ = world.of_client(SYN, [0, 0], syn, &[]);
            sent += 40 + 8;
        }
    }
    assert!(got > 60, "{got}");
    assert!(world.translator.drops().get(DropReason::Unproved) > 10);
}

/// It is gone when a client's time is over that has not shown where it is: what may not go there is no sign of life.
#[test]
fn server_that_repeats_its_syn_ack_does_not_keep_what_a_client_has_left() {
    for mptcp in [true, false] {
        let mut world = World::new();
        let options = || [Some(mss()), mptcp.then(|| capable(CapableKeys::Syn))];
        let _ = world.of_client(SYN, [0, 0], options().into_iter().flatten(), &CONNECT);
        for _ in 0..60 {
            let _ = world.of_server(SYN | ACK, [0, 25], [mss()], &[]);
            world.pass(16_000);
            let _ = world.timeout();
        }
        assert_eq!(
            world.translator.connections(world.now).count(),
            0,
            "{mptcp}"
        );
    }
}

/// One whose keys got lost, and that asks again and again whether anybody is there, is waited for.
#[test]
fn client_that_knows_flexcps_number_is_there() {
    for ack in [-3, 500] {
        let mut world = World::new();
        let _ = world.syn_ack(EARLY);
        for _ in 0..4 {
            world.pass(100_000);
            let _ = world.timeout();
            let data_ack = dss(world.idsn().wrapping_add(1), None);
            let _ = world.of_client(ACK, [34, ack], [data_ack], &[]);
        }
        let stays = world.translator.connections(world.now).count();
        assert_eq!(stays, usize::from(ack == -3), "{ack}");
    }
}

#[test]
fn plain_client_is_answered_in_the_syn_ack() {
    let mut world = World::new();
    let said = [&CONNECT[..], EARLY].concat();
    let (_, out) = world.of_client(SYN, [0, 0], [mss()], &said);
    assert_eq!((out[0].seq(), out[0].packet.payload.len()), (24, 0));
    let (_, out) = world.of_server(SYN | ACK, [0, 25], [mss()], &[]);
    let [syn_ack] = &out[..] else {
        panic!("{out:?}")
    };
    assert_eq!((syn_ack.seq(), syn_ack.ack()), (-4, 35));
    assert_eq!(syn_ack.packet.payload, ANSWER);
    // It takes it all.
    let (_, out) = world.of_client(ACK, [35, 1], [], &[]);
    let [early] = &out[..] else { panic!("{out:?}") };
    assert_eq!((early.seq(), early.ack()), (25, 1));
    assert_eq!(early.packet.payload, EARLY);
    let (_, out) = world.of_server(ACK, [1, 35], [], b"hello");
    assert_eq!((out[0].seq(), out[0].ack()), (1, 35));
    world.pass(10_000);
    assert!(world.timeout().is_empty());
}

/// What came in the SYN is in the server's window, too.
#[test]
fn client_is_offered_what_the_server_has_room_for_behind_what_the_syn_carried() {
    let mut world = World::new();
    let offered = Packet::new(server(), proxy()).tcp.window - 10;
    assert_eq!(world.syn_ack(EARLY)[0].packet.tcp.window, offered);
    let out = world.third(EARLY);
    let answer = out.iter().find(|out| !out.to_server).expect("an answer");
    assert_eq!(answer.packet.tcp.window, offered);
}

#[test]
fn server_of_a_plain_client_is_offered_what_that_has_offered() {
    let mut world = World::new();
    let scales = || [mss(), TcpOption::WindowScale(2)];
    let said = [&CONNECT[..], EARLY].concat();
    let _ = world.of_client(SYN, [0, 0], scales(), &said);
    let _ = world.of_server(SYN | ACK, [0, 25], scales(), &[]);
    let mut packet = Packet::new(client(), proxy())
        .flags(ACK)
        .numbers(at(CLIENT_ISN, 35), at(SERVER_ISN, 1));
    packet.tcp.window = 300;
    let (_, out) = world.put(&packet);
    let [early] = &out[..] else { panic!("{out:?}") };
    assert_eq!(early.packet.tcp.window, 300);
}

#[test]
fn plain_client_that_drops_data_of_a_syn_ack_is_answered_again() {
    let mut world = World::new();
    let _ = world.of_client(SYN, [0, 0], [mss()], &CONNECT);
    let _ = world.of_server(SYN | ACK, [0, 25], [mss()], &[]);
    let (_, out) = world.of_client(ACK, [25, -3], [], &[]);
    let [ack, answer] = &out[..] else {
        panic!("{out:?}")
    };
    // A server takes no ACK of less than its SYN.
    assert_eq!((ack.seq(), ack.ack()), (25, 1));
    assert_eq!((answer.seq(), answer.ack()), (-3, 25));
    assert_eq!(answer.packet.payload, ANSWER);
    world.pass(300);
    let out = world.timeout();
    assert_eq!(out[0].packet.payload, ANSWER);
    let _ = world.of_client(ACK, [25, 1], [], &[]);
    world.pass(10_000);
    assert!(world.timeout().is_empty());
}

/// PAWS drops what is older than what an end has heard since (RFC 7323 section 5.3).
#[test]
fn what_is_repeated_for_a_plain_client_has_the_latest_timestamps() {
    let stamp = |val, ecr| TcpOption::Timestamps(Timestamps { val, ecr });
    let mut world = World::new();
    let said = [&CONNECT[..], EARLY].concat();
    let _ = world.of_client(SYN, [0, 0], [mss(), stamp(1000, 0)], &said);
    let answer = [mss(), stamp(5000, 1000)];
    let _ = world.of_server(SYN | ACK, [0, 25], answer, &[]);
    let _ = world.of_client(ACK, [35, -3], [stamp(1010, 5000)], &[]);
    let _ = world.of_server(ACK, [1, 25], [stamp(5020, 1000)], &[b'x'; 100]);
    let _ = world.of_client(ACK, [35, -3], [stamp(1040, 5000)], &[]);
    world.pass(300);
    let out = world.timeout();
    let [early, answer] = &out[..] else {
        panic!("{out:?}")
    };
    let of = |out: &Out| out.packet.view().timestamps;
    assert_eq!(early.packet.payload, EARLY);
    assert_eq!(
        of(early),
        Some(Timestamps {
            val: 1040,
            ecr: 5000
        })
    );
    assert_eq!(answer.packet.payload, ANSWER);
    assert_eq!(
        of(answer),
        Some(Timestamps {
            val: 5020,
            ecr: 1040
        })
    );
}

#[test]
fn server_of_a_plain_client_hears_of_nothing_before_its_first_byte() {
    let mut world = World::new();
    let agreed = || [mss(), TcpOption::SackPermitted];
    let _ = world.of_client(SYN, [0, 0], agreed(), &CONNECT);
    let _ = world.of_server(SYN | ACK, [0, 25], agreed(), &[]);
    let _ = world.of_client(ACK, [25, -3], [], &[]);
    let _ = world.of_server(ACK, [1, 25], [], &[b'x'; 100]);
    // The answer is lost: to the server, what has come is not behind a hole.
    let mut blocks = SackBlocks::default();
    blocks.push(at(SERVER_ISN, 1), at(SERVER_ISN, 101));
    let (_, out) = world.of_client(ACK, [25, -3], [TcpOption::Sack(blocks)], &[]);
    let [ack] = &out[..] else { panic!("{out:?}") };
    assert!(ack.to_server);
    assert_eq!(ack.ack(), 1);
    assert!(ack.packet.view().sack.is_empty(), "{ack:?}");
}

#[test]
fn client_that_comes_back_without_mptcp_falls_back() {
    let mut world = World::new();
    let _ = world.syn_ack(&[]);
    let (_, out) = world.of_client(ACK, [25, -3], [], &[]);
    let [ack, answer] = &out[..] else {
        panic!("{out:?}")
    };
    assert_eq!(ack.ack(), 1);
    assert_eq!((answer.seq(), answer.dss()), (-3, None));
    assert_eq!(answer.packet.payload, ANSWER);
    assert_eq!(world.translator.counters().fallback_handshake, 1);
}

#[test]
fn who_speaks_another_protocol_is_reset() {
    let said = b"GET / HTTP/1.1\r\n\r\n";
    let mut world = World::new();
    let (verdict, out) = world.of_client(SYN, [0, 0], [mss(), capable(CapableKeys::Syn)], said);
    assert!(matches!(verdict, Verdict::Drop(DropReason::BadPreamble)));
    let [rst] = &out[..] else { panic!("{out:?}") };
    assert!(rst.packet.tcp.flags.contains(TcpFlags::RST));
    assert_eq!(rst.ack(), 1 + i32::try_from(said.len()).unwrap());
    let causes = world.translator.counters().causes;
    let moved: Vec<_> = causes.iter().filter(|(.., count)| *count > 0).collect();
    let refused = ("preamble_refused", "protocol", 1);
    assert_eq!(moved, [refused, ("rst", "preamble", 1)]);
    assert_eq!(world.translator.counters().connections_opened, 0);
}

#[test]
fn oldest_handshake_with_the_server_makes_room_when_ports_run_out() {
    let mut world = World::with(|config| {
        let Mode::Explicit { source_ports, .. } = &mut config.services[0].mode else {
            panic!("another mode");
        };
        *source_ports = 61000..=61000;
    });
    let syn = |port: u16, last: u8| {
        let mut said = CONNECT;
        said[23] = last;
        Packet::new(SocketAddr::new(client().ip(), port), proxy())
            .flags(SYN)
            .numbers(CLIENT_ISN, 0)
            .with_options([mss(), capable(CapableKeys::Syn)])
            .with_payload(said)
    };
    let elsewhere = syn(1, 8);
    // With another server: its port is free for this one.
    assert_eq!(world.put_raw(&elsewhere.bytes()), 1);
    let (_, out) = world.put(&syn(2, 9));
    assert_eq!(out.len(), 1);
    let (_, out) = world.put(&syn(3, 9));
    let [rst, syn] = &out[..] else {
        panic!("{out:?}")
    };
    assert!(rst.to_server && rst.packet.tcp.flags.contains(TcpFlags::RST));
    assert_eq!((syn.seq(), syn.packet.tcp.flags), (24, SYN));
    assert_eq!(rst.packet.ends(), syn.packet.ends());
    let causes = world.translator.counters().causes;
    assert_eq!(causes.get(HalfOpenEvicted::Ports), 1);
    let mut left: Vec<_> = world
        .translator
        .connections(world.now)
        .map(|view| view.client.port())
        .collect();
    left.sort_unstable();
    assert_eq!(left, [1, 3]);
}

#[test]
fn checksums_are_right() {
    let mut world = World::new();
    let said = [&CONNECT[..], EARLY].concat();
    let packet = Packet::new(client(), proxy())
        .flags(SYN)
        .numbers(CLIENT_ISN, 0)
        .with_options([mss(), capable(CapableKeys::Syn)])
        .with_payload(said);
    let bytes = packet.bytes();
    let mut buf = vec![0; HEADROOM + bytes.len()];
    buf[HEADROOM..].copy_from_slice(&bytes);
    let range = HEADROOM..buf.len();
    let mut frame = Frame::new(&mut buf, range, Offload::default());
    let step = world.translator.handle_packet(world.now, &mut frame);
    assert_eq!(step.verdict, Verdict::Forward);
    // Without the payload it is another sum.
    assert_eq!(frame.offload.checksum, ChecksumState::Partial);
    let _ = Packet::read_in(frame.packet(), ChecksumState::Partial);
}

/// A client without MPTCP that has not heard the SYN/ACK: its SYN goes to the server from behind the preamble each time, and the
/// server's answer comes back with the client's numbers.
/// The client's third packet has got lost behind FlexCP.
#[test]
fn syn_ack_that_is_repeated_has_the_numbers_that_it_had() {
    for hears in [true, false] {
        let mut world = World::new();
        let said = [&CONNECT[..], EARLY].concat();
        let _ = world.of_client(SYN, [0, 0], [mss()], &said);
        let first = world.of_server(SYN | ACK, [0, 25], [mss()], &[]).1;
        let _ = world.of_client(ACK, [35, if hears { 1 } else { -3 }], [], &[]);
        let (_, again) = world.of_server(SYN | ACK, [0, 25], [mss()], &[]);
        let [syn_ack] = &again[..] else {
            panic!("{again:?}")
        };
        assert_eq!((syn_ack.seq(), syn_ack.ack()), (-4, 35));
        assert_eq!((first[0].seq(), first[0].ack()), (-4, 35));
    }
}

/// It has not ACKed the answer, which takes a part of the window that it offers.
#[test]
fn early_data_of_a_plain_client_offers_what_is_left_behind_the_answer() {
    let mut world = World::new();
    let said = [&CONNECT[..], EARLY].concat();
    let _ = world.of_client(SYN, [0, 0], [mss()], &said);
    let _ = world.of_server(SYN | ACK, [0, 25], [mss()], &[]);
    let (_, out) = world.of_client(ACK, [35, -3], [], &[]);
    let early = out.iter().find(|out| out.to_server).expect("early data");
    assert_eq!((early.ack(), &early.packet.payload[..]), (1, EARLY));
    let offered = Packet::new(client(), proxy()).tcp.window;
    assert_eq!(early.packet.tcp.window, offered - 4);
}

#[test]
fn plain_client_repeats_its_syn() {
    let mut world = World::new();
    let said = [&CONNECT[..], EARLY].concat();
    let _ = world.of_client(SYN, [0, 0], [mss()], &said);
    for _ in 0..2 {
        let (_, out) = world.of_server(SYN | ACK, [0, 25], [mss()], &[]);
        let syn_ack: Vec<_> = out.iter().map(|out| (out.seq(), out.ack())).collect();
        assert_eq!(syn_ack, [(-4, 35)]);
        let (_, out) = world.of_client(SYN, [0, 0], [mss()], &[]);
        let syn: Vec<_> = out.iter().map(|out| (out.to_server, out.seq())).collect();
        assert_eq!(syn, [(true, 24)]);
    }
}

/// What an end has reset nobody repeats anything to.
#[test]
fn nothing_is_repeated_behind_a_reset() {
    let mut world = World::new();
    let said = [&CONNECT[..], EARLY].concat();
    let _ = world.of_client(SYN, [0, 0], [mss()], &said);
    let _ = world.of_server(SYN | ACK, [0, 25], [mss()], &[]);
    let _ = world.of_client(ACK, [35, 1], [], &[]);
    let _ = world.of_server(TcpFlags::RST | ACK, [1, 25], [], &[]);
    for _ in 0..10 {
        world.pass(500);
        assert!(world.timeout().is_empty());
    }
}

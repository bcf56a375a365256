//! Joins that the box asks for.

use flexcp_preamble::Protocol;
use flexcp_testkit::keys;
use flexcp_translator::{DropReason, Verdict};
use flexcp_wire::{CapableFlags, CapableKeys, MpJoin};

use crate::errands::{SOCKS5, answer_to, answers, by, int, told};
use crate::world::*;

#[test]
fn join_is_asked_for_over_the_second_uplink_once_the_server_has_the_keys() {
    let mut world = World::opened();
    assert!(world.timeout().is_empty(), "the server may not have them");
    let mut world = World::established();
    let out = world.timeout();
    let [syn] = &out[..] else { panic!("{out:?}") };
    assert_eq!((syn.subflow, syn.packet.tcp.flags), (Some(1), SYN));
    assert_eq!(syn.packet.ends().from.ip(), uplinks()[1]);
    let Some(MpJoin::Syn {
        backup,
        address_id,
        token,
        ..
    }) = syn.join()
    else {
        panic!("{out:?}")
    };
    assert_eq!((backup, address_id), (false, 2));
    assert_eq!(token, keys::token(SERVER_KEY));
    assert_eq!(world.translator.counters().mp_join_syn_tx, 1);
    world.pass(10);
    assert!(world.timeout().is_empty(), "it is asked for once");
}

#[test]
fn third_packet_proves_the_keys_and_is_repeated_until_the_server_answers() {
    let mut world = World::established();
    let _ = world.timeout();
    let out = world.answer_join(1);
    let [third] = &out[..] else { panic!("{out:?}") };
    let expected = keys::join_ack((world.box_key(), SERVER_KEY), (world.join_nonce, NONCE));
    assert_eq!(third.join(), Some(MpJoin::Ack { hmac: expected }));
    assert_eq!((third.subflow, third.seq(), third.ack()), (Some(1), 1, 1));
    world.pass(1000);
    let out = world.timeout();
    assert_eq!(out[0].join(), Some(MpJoin::Ack { hmac: expected }));
    assert_eq!(world.translator.counters().mp_join_synack_rx, 0);
    let data_ack = dss(world.idsn() + 1, None);
    let (_, _) = world.of_server(1, ACK, [1, 1], [data_ack], &[]);
    assert_eq!(world.translator.counters().mp_join_synack_rx, 1);
    world.pass(2000);
    assert!(world.timeout().iter().all(|out| out.join().is_none()));
    // Its SYN/ACK again is answered again before that.
    let mut world = World::established();
    let _ = world.timeout();
    let _ = world.answer_join(1);
    let out = world.answer_join(1);
    assert!(matches!(out[0].join(), Some(MpJoin::Ack { .. })));
}

#[test]
fn join_that_nobody_answers_is_repeated_with_ever_longer_pauses() {
    let mut world = World::established();
    let first = world.timeout();
    let mut pauses = vec![];
    let mut last = world.now;
    while world.now.0 < 60_000_000 {
        world.pass(100);
        for out in world.timeout() {
            if out.packet.tcp.flags == SYN && out.subflow == Some(1) {
                assert_eq!(out.packet.tcp.seq, first[0].packet.tcp.seq);
                pauses.push(world.now.since(last).as_millis());
                last = world.now;
            }
        }
    }
    assert_eq!(pauses, [1000, 2000, 4000, 8000]);
    assert!(
        world.subflows.len() > 2,
        "it is tried anew from another port"
    );
}

#[test]
fn wrong_hmac_is_refused_and_its_uplink_rests() {
    let mut world = World::established();
    let _ = world.timeout();
    let wrong = MpJoin::SynAck {
        backup: false,
        address_id: 0,
        hmac: 7,
        nonce: NONCE,
    };
    let (verdict, out) = world.of_server(1, SYN | ACK, [0, 1], [mss(), joins(wrong)], &[]);
    assert_eq!(verdict, Verdict::Drop(DropReason::NotAuthenticated));
    assert!(out[0].packet.tcp.flags.contains(RST), "{out:?}");
    assert_eq!(world.translator.counters().mp_join_synack_hmac_failure, 1);
    world.pass(1900);
    assert!(world.timeout().is_empty());
    world.pass(200);
    let again = world.timeout();
    assert!(matches!(again[0].join(), Some(MpJoin::Syn { .. })));
}

#[test]
fn peer_joins_nothing_of_a_box() {
    let mut world = World::established();
    let join = MpJoin::Syn {
        backup: false,
        address_id: 3,
        token: keys::token(world.box_key()),
        nonce: 9,
    };
    let syn = flexcp_testkit::Packet::new(end("10.66.6.6:4000"), world.subflows[0])
        .flags(SYN)
        .with_options([mss(), joins(join)]);
    assert!(matches!(world.put_raw(&syn), Verdict::Drop(_)));
    let view = world.translator.connections(world.now).next().unwrap();
    assert_eq!(view.subflows.len(), 1);
}

#[test]
fn reload_leaves_subflows_on_the_uplinks_that_stay() {
    let mut world = World::joined();
    world.translator.configure(World::config(), 1);
    while world.translator.end_stranded(world.now, 0, 100) {}
    let view = world.translator.connections(world.now).next().unwrap();
    assert_eq!(view.subflows.len(), 2);
}

#[test]
fn answer_without_the_option_is_refused() {
    let mut world = World::established();
    let _ = world.timeout();
    let (verdict, out) = world.of_server(1, SYN | ACK, [0, 1], [mss()], &[]);
    assert_eq!(verdict, Verdict::Drop(DropReason::NotAuthenticated));
    assert!(out[0].packet.tcp.flags.contains(RST));
}

#[test]
fn refused_join_rests_and_the_connection_goes_on() {
    let mut world = World::established();
    let _ = world.timeout();
    let (_, out) = world.of_server(1, RST | ACK, [0, 1], [], &[]);
    assert!(out.is_empty(), "{out:?}");
    let (_, out) = world.of_client(ACK, [1, 1], [], b"x");
    assert_eq!(out[0].subflow, Some(0));
    world.pass(2100);
    assert!(matches!(
        world.timeout()[0].join(),
        Some(MpJoin::Syn { .. })
    ));
}

#[test]
fn server_that_takes_no_joins_at_its_address_is_asked_for_none() {
    let mut world = World::new();
    let _ = world.of_client(SYN, [0, 0], offer(), &[]);
    let flags = CapableFlags::HMAC_SHA256.with(CapableFlags::NO_JOIN_INITIAL);
    let sender = SERVER_KEY;
    let key = capable_with(flags, CapableKeys::SynAck { sender });
    let _ = world.of_server(0, SYN | ACK, [0, 1], [offer(), vec![key]].concat(), &[]);
    let _ = world.of_client(ACK, [1, 1], [], &[]);
    let data_ack = dss(world.idsn() + 1, None);
    let _ = world.of_server(0, ACK, [1, 1], [data_ack], &[]);
    for _ in 0..100 {
        assert!(world.timeout().is_empty());
        world.pass(100);
    }
}

#[test]
fn data_of_both_subflows_is_one_stream() {
    let mut world = World::joined();
    let first = keys::idsn(SERVER_KEY).wrapping_add(1);
    let data_ack = world.idsn() + 1;
    // The second part comes over the second uplink, and before the first.
    let second = dss(data_ack, Some((first + 3, 1, 3)));
    let (_, out) = world.of_server(1, ACK, [1, 1], [second], b"def");
    assert_eq!((out[0].subflow, out[0].seq()), (None, 4));
    let part = dss(data_ack, Some((first, 1, 3)));
    let (_, out) = world.of_server(0, ACK, [1, 1], [part], b"abc");
    assert_eq!((out[0].subflow, out[0].seq()), (None, 1));
    // The client's ACK is told on both.
    let (_, out) = world.of_client(ACK, [1, 7], [], &[]);
    let mut told: Vec<_> = out.iter().map(|out| (out.subflow, out.ack())).collect();
    told.sort();
    assert_eq!(told, [(Some(0), 4), (Some(1), 4)]);
}

#[test]
fn uplink_whose_subflow_is_reset_is_joined_over_anew() {
    let mut world = World::joined();
    let (_, _) = world.of_server(1, RST | ACK, [1, 1], [], &[]);
    assert!(world.timeout().is_empty());
    world.pass(1100);
    let out = world.timeout();
    assert_eq!(out[0].packet.ends().from.ip(), uplinks()[1]);
    assert!(matches!(out[0].join(), Some(MpJoin::Syn { .. })));
}

#[test]
fn join_that_is_half_way_waits_for_its_own_time_alone() {
    let mut world = World::with(|config| {
        config.timeouts.half_open = std::time::Duration::from_secs(1);
    });
    let _ = world.of_client(SYN, [0, 0], offer(), &[]);
    let _ = world.of_server(0, SYN | ACK, [0, 1], answer(), &[]);
    let _ = world.of_client(ACK, [1, 1], [], &[]);
    let data_ack = dss(world.idsn() + 1, None);
    let _ = world.of_server(0, ACK, [1, 1], [data_ack], &[]);
    let _ = world.timeout();
    world.pass(900);
    assert!(world.timeout().is_empty());
    let out = world.answer_join(1);
    assert!(matches!(out[0].join(), Some(MpJoin::Ack { .. })), "{out:?}");
}

/// A server whose end of an earlier connection from that port is in TIME_WAIT may take no SYN, as its clock is behind: it ACKs that
/// connection, for as long as SYNs come, unless it is told that the connection is over (RFC 9293 section 3.10.7.3).
#[test]
fn earlier_connection_from_the_port_is_ended_and_the_syn_goes_again() {
    let is_reset = |out: &Out, number: i32| {
        let packet = &out.packet;
        (packet.tcp.flags, out.seq(), packet.options.len()) == (RST, number, 0)
    };
    let mut world = World::new();
    let _ = world.of_client(SYN, [0, 0], offer(), &[]);
    let (verdict, out) = world.of_server(0, ACK, [900, 5000], [], &[]);
    assert_eq!(verdict, Verdict::Drop(DropReason::Unexpected));
    let [reset, syn] = &out[..] else {
        panic!("{out:?}")
    };
    assert!(is_reset(reset, 5000), "{reset:?}");
    assert_eq!((syn.packet.tcp.flags, syn.seq()), (SYN, 0));
    assert_eq!(syn.keys(), Some(CapableKeys::Syn));
    let (_, out) = world.of_server(0, ACK, [900, 5000], [], &[]);
    assert_eq!(out.len(), 1, "the SYN goes again once");
    assert!(is_reset(&out[0], 5000));
    let (_, out) = world.of_server(0, RST | ACK, [900, 5000], [], &[]);
    assert!(out.is_empty(), "a RST has no answer");
    // The client's own repetition still asks for MPTCP.
    let (_, out) = world.of_client(SYN, [0, 0], offer(), &[]);
    assert_eq!(out[0].keys(), Some(CapableKeys::Syn));
    let mut world = World::established();
    let _ = world.timeout();
    let (verdict, out) = world.of_server(1, ACK, [900, 5000], [], &[]);
    assert_eq!(verdict, Verdict::Drop(DropReason::AckOfUnsent));
    let [reset, syn] = &out[..] else {
        panic!("{out:?}")
    };
    assert!(is_reset(reset, 5000), "{reset:?}");
    assert!(matches!(syn.join(), Some(MpJoin::Syn { .. })));
    let _ = world.answer_join(1);
    let (_, out) = world.of_server(1, ACK, [900, 5000], [], &[]);
    assert!(out.is_empty(), "the server has answered");
}

#[test]
fn joins_follow_once_the_client_is_there() {
    let mut world = by(&[SOCKS5]);
    let told = told(&mut world);
    let said = answer_to(Protocol::Socks5, &told, false, None);
    let _ = answers(&mut world, &said, told.len(), &[]);
    world.pass(2000);
    let out = world.timeout();
    assert!(out.iter().all(|out| out.join().is_none()), "{out:?}");
    let _ = world.of_client(ACK, [1, 1 + int(said.len())], [], &[]);
    let out = world.timeout();
    let joins: Vec<_> = out.iter().filter_map(Out::join).collect();
    assert_eq!(joins.len(), 1, "{out:?}");
    assert_eq!(world.peers[1], aggregation(), "to the same server");
    assert_eq!(world.subflows[1].ip(), uplinks()[1]);
}

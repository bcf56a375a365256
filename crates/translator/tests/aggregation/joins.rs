//! Joins that the box asks for.

use flexcp_preamble::Protocol;
use flexcp_testkit::keys;
use flexcp_translator::{ActiveStandby, DropReason, Rule, Verdict};
use flexcp_wire::{CapableFlags, CapableKeys, MpJoin, TcpOption, Timestamps};

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

/// The server repeats its SYN/ACK about as often as the box repeats what it lacks, and is heard at the moment of the last pause's end.
#[test]
fn join_whose_server_is_heard_at_last_is_not_given_up() {
    let mut world = World::established();
    let _ = world.timeout();
    let _ = world.answer_join(1);
    for _ in 0..310 {
        let _ = world.timeout();
        world.pass(100);
    }
    let _ = world.answer_join(1);
    let _ = world.timeout();
    world.pass(999);
    let data_ack = dss(world.idsn() + 1, None);
    let (_, _) = world.of_server(1, ACK, [1, 1], [data_ack], &[]);
    assert_eq!(world.translator.counters().mp_join_synack_rx, 1);
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

/// The server's answer to the join that was asked for last, but with another number, ACK or wish.
fn answer_with(
    world: &mut World,
    subflow: usize,
    [seq, ack]: [i32; 2],
    backup: bool,
) -> (Verdict, Vec<Out>) {
    let (keys, nonces) = ((SERVER_KEY, world.box_key()), (NONCE, world.join_nonce));
    let join = MpJoin::SynAck {
        backup,
        address_id: 0,
        hmac: keys::join_syn_ack(keys, nonces),
        nonce: NONCE,
    };
    world.of_server(subflow, SYN | ACK, [seq, ack], [mss(), joins(join)], &[])
}

#[test]
fn join_offers_what_the_client_has_offered() {
    let ts = |val, ecr| TcpOption::Timestamps(Timestamps { val, ecr });
    let mut world = World::new();
    let mut offers = offer();
    offers.push(ts(100, 0));
    let _ = world.of_client(SYN, [0, 0], offers, &[]);
    let mut answers = answer();
    answers.push(ts(9000, 100));
    let _ = world.of_server(0, SYN | ACK, [0, 1], answers, &[]);
    let _ = world.of_client(ACK, [1, 1], [ts(250, 9000)], &[]);
    let data_ack = dss(world.idsn() + 1, None);
    let _ = world.of_server(0, ACK, [1, 1], [ts(9001, 250), data_ack], &[]);
    let out = world.timeout();
    let view = out[0].packet.view();
    assert!(view.join.is_some() && view.sack_permitted);
    assert_eq!((view.mss, view.window_scale), (Some(1460), Some(7)));
    let clock = view.timestamps.map(|timestamps| timestamps.val);
    assert_eq!(clock, Some(250), "the client's");
    // The client's window is 65,000 times 128, and a SYN's is not scaled.
    assert_eq!(out[0].packet.tcp.window, u16::MAX);
}

#[test]
fn backup_in_the_answer_is_heeded() {
    for backup in [false, true] {
        let mut world = World::established();
        let _ = world.timeout();
        let _ = answer_with(&mut world, 1, [0, 1], backup);
        let data_ack = dss(world.idsn() + 1, None);
        let _ = world.of_server(1, ACK, [1, 1], [data_ack], &[]);
        let view = world.translator.connections(world.now).next().unwrap();
        assert_eq!(
            (view.subflows[0].backup, view.subflows[1].backup),
            (false, backup)
        );
    }
}

#[test]
fn only_the_answer_to_the_joins_own_syn_is_believed() {
    let mut world = World::established();
    let _ = world.timeout();
    // Whatever comes that is no answer, as long as there was none.
    let data_ack = dss(world.idsn() + 1, None);
    let (verdict, _) = world.of_server(1, ACK, [1, 1], [data_ack], &[]);
    assert_eq!(verdict, Verdict::Drop(DropReason::Unexpected));
    let view = world.translator.connections(world.now).next().unwrap();
    assert!(!view.subflows[1].established);
    let (verdict, out) = answer_with(&mut world, 1, [0, 2], false);
    assert_eq!(
        (verdict, out.len()),
        (Verdict::Drop(DropReason::AckOfUnsent), 0)
    );
    let (_, out) = answer_with(&mut world, 1, [0, 1], false);
    assert!(matches!(out[0].join(), Some(MpJoin::Ack { .. })), "{out:?}");
    // From here on its number is known.
    let (verdict, out) = answer_with(&mut world, 1, [5, 1], false);
    assert_eq!(
        (verdict, out.len()),
        (Verdict::Drop(DropReason::Unexpected), 0)
    );
}

/// Anybody can send a RST.
#[test]
fn made_up_refusal_of_a_join_is_not_believed() {
    let blind = Verdict::Drop(DropReason::BlindReset);
    let mut world = World::established();
    let _ = world.timeout();
    assert_eq!(world.of_server(1, RST, [0, 0], [], &[]).0, blind);
    let _ = world.answer_join(1);
    assert_eq!(world.of_server(1, RST | ACK, [5, 1], [], &[]).0, blind);
    assert_eq!(
        world.of_server(1, RST | ACK, [1, 1], [], &[]).0,
        Verdict::Consume
    );
    let view = world.translator.connections(world.now).next().unwrap();
    assert_eq!(view.subflows.len(), 1);
}

/// Refuses the join that is asked for; seconds until the next one is.
fn refuse(world: &mut World) -> u64 {
    let last = world.subflows.len() - 1;
    let (_, _) = world.of_server(last, RST | ACK, [0, 1], [], &[]);
    for seconds in 1..=1000 {
        world.pass(1000);
        let out = world.timeout();
        if out.iter().any(|out| out.join().is_some()) {
            return seconds;
        }
    }
    panic!("it is not asked for again");
}

#[test]
fn uplink_whose_joins_fail_rests_ever_longer_up_to_five_minutes() {
    let mut world = World::established();
    let _ = world.timeout();
    let rests: Vec<_> = (0..11).map(|_| refuse(&mut world)).collect();
    assert_eq!(rests, [2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]);
}

#[test]
fn join_that_came_about_lets_the_next_failure_count_as_the_first() {
    let mut world = World::established();
    let _ = world.timeout();
    assert_eq!([refuse(&mut world), refuse(&mut world)], [2, 4]);
    let last = world.subflows.len() - 1;
    let _ = world.answer_join(last);
    let data_ack = dss(world.idsn() + 1, None);
    let _ = world.of_server(last, ACK, [1, 1], [data_ack], &[]);
    let _ = world.of_server(last, RST | ACK, [1, 1], [], &[]);
    world.pass(1100);
    assert_eq!(world.timeout().len(), 1);
    assert_eq!(refuse(&mut world), 2);
}

#[test]
fn number_and_nonce_of_a_join_are_new_each_time() {
    let mut world = World::established();
    let _ = world.timeout();
    let mut seen = vec![];
    for _ in 0..4 {
        seen.push(*world.isns.last().unwrap());
        seen.push(world.join_nonce);
        let _ = refuse(&mut world);
    }
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), 8);
}

/// What a stripped option leaves can't be the stream's where there are two subflows.
#[test]
fn connection_with_a_join_does_not_fall_back() {
    let mut world = World::established();
    let _ = world.timeout();
    let (verdict, _) = world.of_server(0, ACK, [1, 1], [], b"x");
    assert!(matches!(verdict, Verdict::Drop(_)), "{verdict:?}");
}

/// An uplink has got another address, and the subflow from the one before is kept until there is another. What ends that does not
/// end the join.
#[test]
fn join_goes_on_when_the_subflow_ends_that_it_is_to_take_the_place_of() {
    let first = Some("10.1.0.2");
    let mut world = World::answered();
    let _ = world.of_client(ACK, [1, 1], [], &[]);
    let _ = world.with_uplinks([first, None]);
    let data_ack = dss(world.idsn() + 1, None);
    let _ = world.of_server(0, ACK, [1, 1], [data_ack], &[]);
    assert!(world.timeout().is_empty(), "there is one uplink");
    let out = world.with_uplinks([Some("10.1.0.9"), None]);
    assert!(matches!(out[0].join(), Some(MpJoin::Syn { .. })), "{out:?}");
    let _ = world.of_server(0, RST | ACK, [1, 1], [], &[]);
    world.pass(1000);
    let out = world.timeout();
    assert!(
        out.iter()
            .any(|out| out.subflow == Some(1) && out.join().is_some()),
        "{out:?}"
    );
}

#[test]
fn uplink_is_not_joined_over_at_once_when_its_subflow_ends() {
    let mut world = World::established();
    let (_, _) = world.of_server(0, RST | ACK, [1, 1], [], &[]);
    let asked = |world: &mut World| -> Vec<_> {
        let out = world.timeout();
        out.iter().map(|out| out.packet.ends().from.ip()).collect()
    };
    assert_eq!(asked(&mut world), [uplinks()[1]]);
    world.pass(1000);
    assert!(asked(&mut world).contains(&uplinks()[0]));
}

/// The uplink that rests is the one that the subflow was on, though it is not the first.
#[test]
fn other_uplinks_are_joined_over_at_once_when_a_subflow_ends() {
    let [first, second] = [Some("10.1.0.2"), Some("10.2.0.2")];
    let mut world = World::new();
    let _ = world.with_uplinks([None, second]);
    let _ = world.of_client(SYN, [0, 0], offer(), &[]);
    let _ = world.of_server(0, SYN | ACK, [0, 1], answer(), &[]);
    let _ = world.of_client(ACK, [1, 1], [], &[]);
    assert!(world.with_uplinks([first, second]).is_empty());
    let data_ack = dss(world.idsn() + 1, None);
    let _ = world.of_server(0, ACK, [1, 1], [data_ack], &[]);
    let _ = world.of_server(0, RST | ACK, [1, 1], [], &[]);
    let out = world.timeout();
    let from: Vec<_> = out.iter().map(|out| out.packet.ends().from.ip()).collect();
    assert_eq!(from, [uplinks()[0]]);
}

/// A rule that keeps paths for when others fail says so in the SYN.
#[test]
fn join_is_backup_under_a_rule_that_keeps_paths_in_reserve() {
    let mut world = World::answered_with(|config| {
        config.rules = vec![Rule {
            name: "reserve".into(),
            services: vec![],
            servers: vec![],
            ports: vec![],
            clients: vec![],
            mode: std::sync::Arc::new(ActiveStandby::default()),
            hold: std::time::Duration::ZERO,
            fail_back: std::time::Duration::ZERO,
            heeds_backup: true,
            carrier: None,
        }];
    });
    let _ = world.of_client(ACK, [1, 1], [], &[]);
    let data_ack = dss(world.idsn() + 1, None);
    let _ = world.of_server(0, ACK, [1, 1], [data_ack], &[]);
    let out = world.timeout();
    let Some(MpJoin::Syn { backup, .. }) = out[0].join() else {
        panic!("{out:?}")
    };
    assert!(backup);
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

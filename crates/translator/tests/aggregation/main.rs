//! Connections whose MPTCP leg FlexCP opens, as an aggregation box does: keys, joins, and what becomes of servers without MPTCP.
#![forbid(unsafe_code)]

mod dialogue;
mod ended;
mod errands;
mod invited;
mod joins;
mod leaves;
mod openings;
mod promises;
mod world;

use flexcp_testkit::keys;
use flexcp_translator::{
    ConnectionState, DropReason, Mode, PlainSyn, Prefix, Rule, SmallestDelay, Verdict,
};
use flexcp_wire::{CapableFlags, CapableKeys, TcpOption, Timestamps};

use crate::world::*;

#[test]
fn syn_goes_over_the_first_uplink_and_asks_for_mptcp() {
    let mut world = World::new();
    let (verdict, out) = world.of_client(SYN, [0, 0], offer(), &[]);
    assert_eq!(verdict, Verdict::Forward);
    let [syn] = &out[..] else { panic!("{out:?}") };
    assert_eq!((syn.seq(), syn.packet.tcp.flags), (0, SYN));
    assert_eq!(syn.packet.tcp.seq, CLIENT_ISN, "initial numbers pass");
    assert_eq!(syn.keys(), Some(CapableKeys::Syn));
    let view = syn.packet.view();
    assert_eq!((view.mss, view.window_scale), (Some(1460), Some(7)));
    assert!(view.sack_permitted);
    let from = syn.packet.ends().from;
    assert_eq!(from.ip(), uplinks()[0]);
    assert!((61000..=61999).contains(&from.port()), "{from}");
}

#[test]
fn answer_leaves_room_for_a_dss_and_nothing_of_mptcp() {
    let mut world = World::new();
    let _ = world.of_client(SYN, [0, 0], offer(), &[]);
    let (_, out) = world.of_server(0, SYN | ACK, [0, 1], answer(), &[]);
    let [syn_ack] = &out[..] else {
        panic!("{out:?}")
    };
    assert_eq!(
        (syn_ack.subflow, syn_ack.seq(), syn_ack.ack()),
        (None, 0, 1)
    );
    assert_eq!(syn_ack.packet.view().mss, Some(1460 - 28));
    assert_eq!(world.translator.counters().mp_capable_synack_rx, 1);
    // One that ACKs another SYN is nobody's.
    let (verdict, _) = world.of_server(0, SYN | ACK, [0, 2], answer(), &[]);
    assert_eq!(verdict, Verdict::Drop(DropReason::AckOfUnsent));
}

#[test]
fn clients_ack_brings_both_keys() {
    let mut world = World::answered();
    let (_, out) = world.of_client(ACK, [1, 1], [], &[]);
    let [third] = &out[..] else { panic!("{out:?}") };
    assert_eq!((third.subflow, third.seq(), third.ack()), (Some(0), 1, 1));
    let sender = world.box_key();
    let receiver = SERVER_KEY;
    assert_eq!(third.keys(), Some(CapableKeys::Ack { sender, receiver }));
    assert_eq!(third.dss(), None, "there is no room for both");
    assert_eq!(world.state(), Some(ConnectionState::Translating));
}

/// A rule names servers and clients as its operator sees them, whoever opens the MPTCP leg.
#[test]
fn rules_are_of_servers_and_clients() {
    let rule = |name: &str, server: std::net::SocketAddr, client: std::net::SocketAddr| Rule {
        name: name.into(),
        services: vec![],
        servers: vec![Prefix {
            addr: server.ip(),
            len: 32,
        }],
        ports: vec![server.port()..=server.port()],
        clients: vec![Prefix {
            addr: client.ip(),
            len: 32,
        }],
        mode: std::sync::Arc::new(SmallestDelay),
        hold: std::time::Duration::ZERO,
        fail_back: std::time::Duration::ZERO,
        heeds_backup: true,
        carrier: None,
    };
    let mut world = World::with(|config| {
        config.rules = vec![
            rule("exchanged", client(), server()),
            rule("right", server(), client()),
        ];
    });
    let _ = world.of_client(SYN, [0, 0], offer(), &[]);
    let named = world.translator.connections(world.now).next();
    let named = named.and_then(|view| view.rule);
    assert_eq!(named.as_deref(), Some("right"));
}

/// Data, or a FIN, that comes before the client's ACK has no room for the keys, without which the server would fall back: they go
/// out alone, and what has overtaken them comes again.
#[test]
fn keys_go_before_what_has_overtaken_the_clients_ack() {
    for (flags, seq, data) in [(ACK, 1001, &b"later"[..]), (ACK | FIN, 1, &[])] {
        let mut world = World::answered();
        let (verdict, out) = world.of_client(flags, [seq, 1], [], data);
        assert_eq!(verdict, Verdict::Drop(DropReason::Unexpected));
        let [third] = &out[..] else { panic!("{out:?}") };
        assert_eq!((third.subflow, third.seq(), third.ack()), (Some(0), 1, 1));
        assert_eq!(third.packet.tcp.flags, ACK);
        let (sender, receiver) = (world.box_key(), SERVER_KEY);
        assert_eq!(third.keys(), Some(CapableKeys::Ack { sender, receiver }));
        assert_eq!(world.state(), Some(ConnectionState::Translating));
        let (verdict, out) = world.of_client(flags, [seq, 1], [], data);
        assert_eq!(verdict, Verdict::Forward);
        assert!(out[0].dss().is_some(), "{out:?}");
    }
}

/// What has overtaken the client's ACK comes again, but its window is the first that is scaled: that of the SYN, rounded down to the
/// scale, would make an overrun of what the server sends within it.
#[test]
fn window_of_what_has_overtaken_the_clients_ack_counts() {
    let mut world = World::answered();
    let (_, out) = world.of_client(ACK, [1001, 1], [], b"later");
    let [third] = &out[..] else { panic!("{out:?}") };
    assert_eq!(third.packet.tcp.window, 65_000, "not a 128th of that");
    let first = keys::idsn(SERVER_KEY).wrapping_add(1);
    let idsn = world.idsn();
    let confirms = dss(idsn + 1, Some((first, 1, 1)));
    let _ = world.of_server(0, ACK, [1, 1], [confirms], b"x");
    assert_eq!(world.timeout().len(), 1);
    let _ = world.answer_join(1);
    // At the very end of what the SYN has offered.
    let last = dss(idsn + 1, Some((first.wrapping_add(64_999), 1, 1)));
    let (_, out) = world.of_server(1, ACK, [1, 1], [last], b"x");
    assert_eq!(out.len(), 1, "no ACK before the client's: {out:?}");
    assert_eq!((out[0].subflow, out[0].seq()), (None, 65_000));
    assert_eq!(world.translator.counters().window_overrun, 0);
}

#[test]
fn first_data_brings_both_keys_until_the_server_has_them() {
    let mut world = World::opened();
    let (sender, receiver) = (world.box_key(), SERVER_KEY);
    let keys_of = |data_len| {
        Some(CapableKeys::AckData {
            sender,
            receiver,
            data_len,
            checksum: None,
        })
    };
    let (_, out) = world.of_client(ACK, [1, 1], [], b"hello");
    assert_eq!((out[0].seq(), out[0].keys()), (1, keys_of(5)));
    // What follows has a mapping as ever.
    let (_, out) = world.of_client(ACK, [6, 1], [], b"more");
    let mapping = out[0].dss().and_then(|dss| dss.mapping).unwrap();
    assert_eq!((out[0].keys(), mapping.ssn, mapping.len), (None, 6, 4));
    let (_, out) = world.of_client(ACK, [1, 1], [], b"hello");
    assert_eq!(out[0].keys(), keys_of(5), "it is repeated as it was");
    // An ACK alone behind it has a data ACK.
    let (_, out) = world.of_server(0, ACK, [1, 6], [dss(world.idsn() + 6, None)], &[]);
    assert_eq!((out[0].subflow, out[0].ack()), (None, 6));
    let (_, out) = world.of_client(ACK, [6, 1], [], b"more");
    assert_eq!((out[0].keys(), out[0].seq()), (None, 6));
    let (_, out) = world.of_client(ACK, [10, 1], [], b"last");
    assert!(out[0].keys().is_none() && out[0].dss().is_some());
}

#[test]
fn server_that_speaks_first_has_shown_that_it_has_the_keys() {
    let mut world = World::opened();
    let first = keys::idsn(SERVER_KEY).wrapping_add(1);
    let data = dss(world.idsn() + 1, Some((first, 1, 3)));
    let (verdict, out) = world.of_server(0, ACK, [1, 1], [data], b"220");
    assert_eq!(verdict, Verdict::Forward);
    assert_eq!((out[0].subflow, out[0].seq()), (None, 1));
    assert_eq!(out[0].packet.payload, b"220");
    let (_, out) = world.of_client(ACK, [1, 4], [], &[]);
    let data_ack = out[0].dss().and_then(|dss| dss.data_ack);
    assert!(out[0].keys().is_none() && data_ack.is_some());
}

#[test]
fn server_that_has_not_got_the_third_packet_is_told_the_keys_again() {
    let mut world = World::opened();
    let (_, out) = world.of_server(0, SYN | ACK, [0, 1], answer(), &[]);
    assert_eq!(out.len(), 1);
    assert!(matches!(out[0].keys(), Some(CapableKeys::Ack { .. })));
    assert_eq!(
        (out[0].subflow, out[0].seq(), out[0].ack()),
        (Some(0), 1, 1)
    );
}

#[test]
fn both_directions_are_translated() {
    let mut world = World::established();
    let (_, out) = world.of_client(ACK, [1, 1], [], b"GET");
    let mapping = out[0].dss().and_then(|dss| dss.mapping).unwrap();
    assert_eq!((mapping.ssn, mapping.len), (1, 3));
    let first = keys::idsn(SERVER_KEY).wrapping_add(1);
    let data = dss(world.idsn() + 4, Some((first, 1, 2)));
    let (_, out) = world.of_server(0, ACK, [1, 4], [data], b"ok");
    assert_eq!((out[0].seq(), out[0].ack()), (1, 4));
    let (_, out) = world.of_client(ACK, [4, 3], [], &[]);
    assert_eq!((out[0].seq(), out[0].ack()), (4, 3));
    let [view] = &world.translator.connections(world.now).collect::<Vec<_>>()[..] else {
        panic!("one connection");
    };
    assert_eq!((view.client, view.server), (client(), server()));
    assert_eq!((view.source, view.backend), (world.subflows[0], server()));
}

#[test]
fn timestamps_pass_both_ways() {
    let ts = |val, ecr| TcpOption::Timestamps(Timestamps { val, ecr });
    let mut world = World::new();
    let _ = world.of_client(SYN, [0, 0], [mss(), ts(100, 0)], &[]);
    let key = capable(CapableKeys::SynAck { sender: SERVER_KEY });
    let (_, out) = world.of_server(0, SYN | ACK, [0, 1], [mss(), ts(9000, 100), key], &[]);
    let told = out[0].packet.view().timestamps.unwrap();
    assert_eq!((told.val, told.ecr), (9000, 100));
    let (_, out) = world.of_client(ACK, [1, 1], [ts(101, 9000)], &[]);
    let told = out[0].packet.view().timestamps.unwrap();
    assert_eq!((told.val, told.ecr), (101, 9000));
    let data_ack = dss(world.idsn() + 1, None);
    let (_, out) = world.of_client(ACK, [1, 1], [ts(102, 9000)], b"x");
    assert!(out[0].keys().is_some(), "they have room beside the keys");
    let (_, out) = world.of_server(0, ACK, [1, 2], [ts(9005, 102), data_ack], &[]);
    assert!(out.is_empty() || out[0].packet.view().timestamps.is_some());
}

#[test]
fn server_without_mptcp_has_plain_tcp_over_the_first_uplink() {
    let mut world = World::new();
    let _ = world.of_client(SYN, [0, 0], offer(), &[]);
    let (_, out) = world.of_server(0, SYN | ACK, [0, 1], offer(), &[]);
    assert_eq!(out[0].packet.view().mss, Some(1460));
    assert_eq!(world.state(), Some(ConnectionState::Plain));
    let (_, out) = world.of_client(ACK, [1, 1], [], b"GET");
    assert!(out[0].subflow == Some(0) && !out[0].packet.view().mptcp);
    assert_eq!(out[0].packet.payload, b"GET");
    let (_, out) = world.of_server(0, ACK, [1, 4], [], b"ok");
    assert_eq!((out[0].subflow, out[0].seq(), out[0].ack()), (None, 1, 4));
    assert_eq!(world.translator.counters().fallback_handshake, 1);
}

#[test]
fn server_that_wants_what_flexcp_does_not_do_has_plain_tcp() {
    let sender = SERVER_KEY;
    for flags in [
        CapableFlags::HMAC_SHA256.with(CapableFlags::CHECKSUM),
        CapableFlags::HMAC_SHA256.with(CapableFlags::EXTENSIBILITY),
        CapableFlags(0),
    ] {
        let mut world = World::new();
        let _ = world.of_client(SYN, [0, 0], offer(), &[]);
        let key = capable_with(flags, CapableKeys::SynAck { sender });
        let _ = world.of_server(0, SYN | ACK, [0, 1], [mss(), key], &[]);
        assert_eq!(world.state(), Some(ConnectionState::Plain), "{flags:?}");
        let (_, out) = world.of_client(ACK, [1, 1], [], &[]);
        assert!(!out[0].packet.view().mptcp, "{flags:?}");
    }
}

#[test]
fn connection_that_finds_no_port_passes_as_it_is_and_is_counted() {
    let mut world = World::with(|config| {
        let Mode::Box { uplinks, .. } = &mut config.services[0].mode else {
            unreachable!("it is a box");
        };
        uplinks.clear();
    });
    let syn = flexcp_testkit::Packet::new(client(), server()).flags(SYN);
    assert_eq!(world.put_raw(&syn), Verdict::Forward);
    let causes = world.translator.counters().causes;
    assert_eq!(causes.get(PlainSyn::Overload), 1);
    assert_eq!(world.state(), None);
}

#[test]
fn third_syn_goes_without_mptcp() {
    let mut world = World::new();
    let asked = [0, 1, 2].map(|_| {
        let (_, out) = world.of_client(SYN, [0, 0], offer(), &[]);
        world.pass(1000);
        out[0].keys().is_some()
    });
    assert_eq!(asked, [true, true, false]);
    assert_eq!(world.subflows.len(), 1, "from the same port");
}

#[test]
fn client_that_has_not_got_the_answer_gets_it_again() {
    let mut world = World::answered();
    for _ in 0..2 {
        let (_, out) = world.of_client(SYN, [0, 0], offer(), &[]);
        assert_eq!(out[0].keys(), Some(CapableKeys::Syn));
    }
    let (_, out) = world.of_server(0, SYN | ACK, [0, 1], answer(), &[]);
    assert_eq!((out[0].subflow, out[0].seq()), (None, 0));
    assert_eq!(world.translator.counters().mp_capable_synack_rx, 1);
    // Another number is another's.
    let (verdict, _) = world.of_server(0, SYN | ACK, [5, 1], answer(), &[]);
    assert_eq!(verdict, Verdict::Drop(DropReason::Unexpected));
}

#[test]
fn refusal_reaches_the_client_and_a_made_up_one_does_not() {
    let mut world = World::new();
    let _ = world.of_client(SYN, [0, 0], offer(), &[]);
    let (verdict, _) = world.of_server(0, RST | ACK, [0, 9], [], &[]);
    assert_eq!(verdict, Verdict::Drop(DropReason::BlindReset));
    let (_, out) = world.of_server(0, RST | ACK, [0, 1], [], &[]);
    assert_eq!((out[0].subflow, out[0].ack()), (None, 1));
    assert!(out[0].packet.tcp.flags.contains(RST));
    assert_eq!(world.state(), None);
}

#[test]
fn clients_that_speak_mptcp_pass_untouched() {
    let mut world = World::new();
    let asks = [mss(), capable(CapableKeys::Syn)];
    let syn = flexcp_testkit::Packet::new(client(), server())
        .flags(SYN)
        .with_options(asks);
    let bytes = syn.bytes();
    let mut buf = vec![0; flexcp_translator::HEADROOM + bytes.len()];
    let range = flexcp_translator::HEADROOM..buf.len();
    buf[range.clone()].copy_from_slice(&bytes);
    let mut frame = flexcp_translator::Frame::new(&mut buf, range, flexcp_wire::Offload::default());
    let step = world.translator.handle_packet(world.now, &mut frame);
    assert_eq!(step.verdict, Verdict::Forward);
    assert_eq!(frame.packet(), bytes);
    let causes = world.translator.counters().causes;
    assert_eq!(causes.get(PlainSyn::Mptcp), 1);
    assert_eq!(world.state(), None);
}

#[test]
fn ipv6_server_is_reached_over_the_first_uplink_of_its_family() {
    let world = World::with(|config| {
        let Mode::Box { uplinks, .. } = &mut config.services[0].mode else {
            unreachable!("it is a box");
        };
        let v6: std::net::IpAddr = "2001:db8::2".parse().unwrap();
        uplinks.insert(0, v6.into());
    });
    let mut world = world;
    let (_, out) = world.of_client(SYN, [0, 0], offer(), &[]);
    assert_eq!(out[0].packet.ends().from.ip(), uplinks()[0]);
}

#[test]
fn close_by_the_client_is_a_data_fin_and_the_servers_is_a_fin() {
    let mut world = World::established();
    let (_, out) = world.of_client(FIN | ACK, [1, 1], [], &[]);
    assert!(out[0].dss().is_some_and(|dss| dss.data_fin), "{out:?}");
    assert!(!out[0].packet.tcp.flags.contains(FIN));
    let (_, out) = world.of_server(0, ACK, [1, 1], [dss(world.idsn() + 2, None)], &[]);
    assert_eq!((out[0].subflow, out[0].ack()), (None, 2));
}

#[test]
fn new_connection_from_the_same_port_takes_the_place_of_one_that_never_opened() {
    let mut world = World::new();
    let _ = world.of_client(SYN, [0, 0], offer(), &[]);
    let (verdict, out) = world.of_client(SYN, [500, 0], offer(), &[]);
    assert_eq!(verdict, Verdict::Forward);
    assert_eq!(out[0].packet.tcp.seq, at(CLIENT_ISN, 500));
    // A live one is asked, and goes on.
    let mut world = World::established();
    let (verdict, out) = world.of_client(SYN, [500, 0], offer(), &[]);
    assert_eq!(verdict, Verdict::Drop(DropReason::Unexpected));
    assert_eq!((out[0].subflow, out[0].ack()), (None, 1));
    assert_eq!(world.state(), Some(ConnectionState::Translating));
}

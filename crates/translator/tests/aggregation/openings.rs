//! What is asked for, and what is believed, while a connection opens.

use flexcp_testkit::Packet;
use flexcp_translator::{
    ConnectionState, DropReason, Excepted, Mode, PlainSyn, Prefix, Uplink, Verdict,
};
use flexcp_wire::{
    CapableFlags, CapableKeys, DataNumber, Dss, DssMapping, MpCapable, MptcpOption, TcpOption,
    Timestamps,
};

use crate::world::*;

const fn ts(val: u32, ecr: u32) -> TcpOption<'static> {
    TcpOption::Timestamps(Timestamps { val, ecr })
}

#[test]
fn server_of_another_version_has_plain_tcp() {
    for version in [0, 2] {
        let mut world = World::new();
        let _ = world.of_client(SYN, [0, 0], offer(), &[]);
        let capable = TcpOption::Mptcp(MptcpOption::Capable(MpCapable {
            version,
            flags: CapableFlags::HMAC_SHA256,
            keys: CapableKeys::SynAck { sender: SERVER_KEY },
        }));
        let answer = [offer(), vec![capable]].concat();
        let _ = world.of_server(0, SYN | ACK, [0, 1], answer, &[]);
        assert_eq!(world.translator.counters().fallback_handshake, 1);
    }
}

/// A server that answers what the client has not offered has agreed on nothing.
#[test]
fn what_the_client_does_not_offer_is_not_agreed_on() {
    let mut world = World::new();
    let _ = world.of_client(SYN, [0, 0], [mss()], &[]);
    let _ = world.of_server(0, SYN | ACK, [0, 1], answer(), &[]);
    let _ = world.of_client(ACK, [1, 1], [], b"x");
    let data_ack = dss(world.idsn() + 2, None);
    let (verdict, out) = world.of_server(0, ACK, [1, 2], [data_ack], &[]);
    assert_eq!(verdict, Verdict::Forward);
    assert_eq!((out[0].subflow, out[0].packet.tcp.window), (None, 65_000));
    // A client that is told no SACK can't take what comes over two paths.
    assert!(world.timeout().is_empty());
}

#[test]
fn syn_that_comes_again_has_its_own_clock() {
    let mut world = World::new();
    for val in [100, 1100] {
        let (_, out) = world.of_client(SYN, [0, 0], [mss(), ts(val, 0)], &[]);
        let told = out[0].packet.view().timestamps;
        assert_eq!(told, Some(Timestamps { val, ecr: 0 }));
    }
}

#[test]
fn answer_to_another_syn_settles_nothing() {
    let mut world = World::new();
    let _ = world.of_client(SYN, [0, 0], offer(), &[]);
    for ack in [0, 2, 900] {
        let (verdict, out) = world.of_server(0, SYN | ACK, [0, ack], answer(), &[]);
        assert_eq!(verdict, Verdict::Drop(DropReason::AckOfUnsent), "{ack}");
        assert!(out.is_empty());
    }
    assert_eq!(world.translator.counters().mp_capable_synack_rx, 0);
}

#[test]
fn ack_of_another_answer_opens_nothing() {
    let mut world = World::answered();
    for ack in [0, 2, 900] {
        let (verdict, out) = world.of_client(ACK, [1, ack], [], &[]);
        assert_eq!(verdict, Verdict::Drop(DropReason::OutOfWindow), "{ack}");
        assert!(out.is_empty());
    }
    let (verdict, _) = world.of_client(ACK, [1, 1], [], &[]);
    assert_eq!(verdict, Verdict::Forward);
}

/// An ACK without a data ACK is what a server sends that has not got the third packet, too.
#[test]
fn ack_without_a_data_ack_does_not_show_that_the_server_has_the_keys() {
    let mut world = World::opened();
    let _ = world.of_server(0, ACK, [1, 1], [], &[]);
    assert!(world.timeout().iter().all(|out| out.join().is_none()));
    assert_eq!(world.translator.counters().mp_join_syn_tx, 0);
}

/// What passes as it is, and why.
fn passes(world: &mut World, syn: &Packet) -> [u64; 3] {
    assert_eq!(world.put_raw(syn), Verdict::Forward);
    assert_eq!(world.state(), None);
    let causes = world.translator.counters().causes;
    [PlainSyn::Data, PlainSyn::SmallMss, PlainSyn::Overload].map(|cause| causes.get(cause))
}

#[test]
fn syn_with_data_or_without_room_for_options_passes() {
    let syn = Packet::new(client(), server())
        .flags(SYN)
        .numbers(CLIENT_ISN, 0);
    let early = syn.clone().with_options(offer()).with_payload(b"GET");
    assert_eq!(passes(&mut World::new(), &early), [1, 0, 0]);
    let tiny = syn.clone().with_options([TcpOption::Mss(80)]);
    assert_eq!(passes(&mut World::new(), &tiny), [0, 1, 0]);
}

#[test]
fn what_is_for_the_box_itself_passes_to_it() {
    let mut world = World::with(|config| {
        let Mode::Box {
            uplinks,
            destinations,
            ..
        } = &mut config.services[0].mode
        else {
            unreachable!("it is a box");
        };
        uplinks[1] = Uplink::from(server().ip());
        destinations.push(Prefix {
            addr: server().ip(),
            len: 32,
        });
    });
    let syn = Packet::new(client(), server())
        .flags(SYN)
        .numbers(CLIENT_ISN, 0)
        .with_options(offer());
    assert_eq!(passes(&mut world, &syn), [0, 0, 0]);
}

/// Anybody can send a RST: the number has to be that behind the SYN.
#[test]
fn made_up_rst_of_the_clients_ends_nothing() {
    for mut world in [
        {
            let mut world = World::new();
            let _ = world.of_client(SYN, [0, 0], offer(), &[]);
            world
        },
        World::answered(),
    ] {
        let before = world.state();
        let _ = world.of_client(RST, [9, 0], [], &[]);
        assert_eq!(world.state(), before);
        let _ = world.of_client(RST, [1, 0], [], &[]);
        assert_eq!(world.state(), None);
    }
}

/// Both ends have closed, and the packet that says so ends the last subflow for another reason: there is nothing to join for.
#[test]
fn connection_that_has_ended_is_not_looked_at_again_and_again() {
    let mut world = World::established();
    assert_eq!(world.timeout().len(), 1);
    let first = flexcp_testkit::keys::idsn(SERVER_KEY).wrapping_add(1);
    let end = |data_ack, dsn, len, data_fin| {
        TcpOption::Mptcp(MptcpOption::Dss(Dss {
            data_ack: Some(DataNumber::Long(data_ack)),
            mapping: Some(DssMapping {
                dsn: DataNumber::Long(dsn),
                ssn: 0,
                len,
                checksum: None,
            }),
            data_fin,
        }))
    };
    let idsn = world.idsn();
    let fin = end(idsn + 1, first, 1, true);
    let (_, out) = world.of_server(0, ACK, [1, 1], [fin], &[]);
    assert!(out.iter().any(|out| out.packet.tcp.flags.contains(FIN)));
    let _ = world.of_client(FIN | ACK, [1, 2], [], &[]);
    // An infinite mapping, which there is none beside a join.
    let infinite = end(idsn + 2, first.wrapping_add(1), 0, false);
    let (_, out) = world.of_server(0, ACK, [1, 1], [infinite], &[]);
    assert!(out.iter().any(|out| out.packet.tcp.flags.contains(RST)));
    let mut looked = 0;
    while let Some(due) = world.translator.poll_timeout() {
        looked += 1;
        assert!(looked < 200, "at {:?}", world.now);
        world.now = world.now.max(due);
        let _ = world.timeout();
    }
    assert_eq!(world.state(), None);
    assert_eq!(world.subflows.len(), 2, "nothing is left to join for");
}

#[test]
fn exception_of_another_server_does_not_count() {
    let mut world = World::with(|config| {
        let Mode::Box { except, .. } = &mut config.services[0].mode else {
            unreachable!("it is a box");
        };
        let servers = Prefix {
            addr: end("10.55.9.8:0").ip(),
            len: 32,
        };
        let ports = vec![];
        except.push(Excepted { servers, ports });
    });
    let (_, out) = world.of_client(SYN, [0, 0], offer(), &[]);
    assert_eq!(out[0].keys(), Some(CapableKeys::Syn));
}

#[test]
fn connection_begins_on_the_next_uplink_where_the_ports_of_the_first_are_taken() {
    let mut world = World::with(|config| {
        let Mode::Box { source_ports, .. } = &mut config.services[0].mode else {
            unreachable!("it is a box");
        };
        *source_ports = 61000..=61000;
    });
    let _ = world.of_client(SYN, [0, 0], offer(), &[]);
    let syn = Packet::new(end("192.168.1.11:40000"), server())
        .flags(SYN)
        .numbers(7, 0)
        .with_options(offer());
    let (_, out) = world.put(&syn);
    assert_eq!(out[0].packet.ends().from, end("10.2.0.2:61000"));
}

/// A connection that has fallen back behind its handshake stays with what that has settled.
#[test]
fn answer_that_comes_again_behind_a_fallback_says_what_it_said() {
    let mut world = World::answered();
    let _ = world.of_client(ACK, [1, 1], [], b"GET");
    let _ = world.of_server(0, ACK, [1, 1], [], b"ok");
    assert_eq!(world.state(), Some(ConnectionState::Fallback));
    let (verdict, out) = world.of_server(0, SYN | ACK, [0, 1], answer(), &[]);
    assert_eq!((verdict, out[0].subflow), (Verdict::Forward, None));
    let view = out[0].packet.view();
    assert_eq!((view.mss, view.mptcp), (Some(1460 - 28), false));
}

/// The client sees one clock, whatever of it FlexCP says by itself.
#[test]
fn answer_that_comes_again_moves_the_clock_that_the_client_sees() {
    let mut world = World::new();
    let _ = world.of_client(SYN, [0, 0], [offer(), vec![ts(100, 0)]].concat(), &[]);
    for (val, seen) in [(9000, 9000), (10_000, 10_000), (9000, 10_000)] {
        let again = [answer(), vec![ts(val, 100)]].concat();
        let (_, out) = world.of_server(0, SYN | ACK, [0, 1], again, &[]);
        let told = out[0].packet.view().timestamps.map(|told| told.val);
        assert_eq!((out[0].subflow, told), (None, Some(seen)));
    }
    let _ = world.of_client(ACK, [1, 1], [ts(1100, 10_000)], &[]);
    let late = [offer(), vec![ts(1000, 0)]].concat();
    let (_, out) = world.of_client(SYN, [0, 0], late, &[]);
    let challenge = out.last().expect("an ACK");
    let told = challenge.packet.view().timestamps.map(|told| told.val);
    assert_eq!((challenge.subflow, told), (None, Some(10_000)));
}

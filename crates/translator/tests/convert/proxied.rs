//! Back ends that are told of their clients by a header of the PROXY protocol before each stream: its numbers, what the client hears
//! of it, when it goes again, and when the connection is offloaded.

use flexcp_testkit::{Packet, keys};
use flexcp_translator::{Config, ConnectionState, Intake, Mode, Verdict};
use flexcp_wire::{CapableKeys, SackBlocks, TcpFlags, TcpOption, Timestamps};

use crate::offload::Slots;
use crate::world::*;

/// Of 10.1.0.2:40000 to 10.2.0.1:1080, as haproxy would write it.
const HEADER: &[u8] =
    b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x0c\x0a\x01\x00\x02\x0a\x02\x00\x01\x9c\x40\x04\x38";
const LEN: i32 = 28;
/// Each packet of a client's says this window.
const WINDOW: u16 = 65000;

/// A service in reverse mode whose back end is the server.
fn told(config: &mut Config) {
    config.services[0].mode = Mode::Reverse {
        listen: vec![proxy()],
        backends: vec![server()],
        source: vec![end("10.2.0.1:0").ip()],
        source_ports: 61000..=61999,
    };
    config.services[0].intake = Intake {
        proxy_header: true,
        ..Intake::default()
    };
}

fn syn() -> [TcpOption<'static>; 2] {
    [mss(), capable(CapableKeys::Syn)]
}

/// An MPTCP client's SYN has been answered.
fn answered() -> (World, Vec<Out>) {
    let mut world = World::with(told);
    let (verdict, out) = world.of_client(SYN, [0, 0], syn(), &[]);
    assert_eq!(verdict, Verdict::Forward);
    let [syn] = &out[..] else { panic!("{out:?}") };
    assert_eq!((syn.seq(), syn.packet.payload.len()), (-LEN, 0));
    let (_, out) = world.of_server(SYN | ACK, [0, 1 - LEN], [mss()], &[]);
    (world, out)
}

fn third(world: &mut World, payload: &[u8]) -> Vec<Out> {
    let receiver = world.key.expect("a SYN/ACK that came before");
    let keys = keys_of_third(receiver, payload);
    world.of_client(ACK, [1, 1], [capable(keys)], payload).1
}

/// It has shown where it is, and the header has gone.
fn begun() -> World {
    let (mut world, _) = answered();
    let _ = third(&mut world, &[]);
    world
}

/// A packet of a client's with three bytes.
fn said(world: &mut World, at: u16) -> Vec<Out> {
    let client_idsn = keys::idsn(CLIENT_KEY);
    let mapping = (client_idsn.wrapping_add(at.into()), at.into(), 3);
    let data_ack = dss(world.idsn().wrapping_add(1), Some(mapping));
    world.of_client(ACK, [at.into(), 1], [data_ack], b"abc").1
}

/// Whether each goes to the server, its number and its payload.
fn shown(out: &[Out]) -> Vec<(bool, i32, &[u8])> {
    let shown = out
        .iter()
        .map(|out| (out.to_server, out.seq(), &out.packet.payload[..]));
    shown.collect()
}

#[test]
fn header_goes_first_in_place_of_the_clients_third_packet() {
    let (mut world, out) = answered();
    let [syn_ack] = &out[..] else {
        panic!("{out:?}")
    };
    assert_eq!((syn_ack.seq(), syn_ack.ack()), (0, 1));
    let out = third(&mut world, &[]);
    assert_eq!(shown(&out), [(true, 1 - LEN, HEADER)]);
    assert_eq!(out[0].ack(), 1);
    assert_eq!(out[0].packet.tcp.window, WINDOW);
    assert_eq!(world.translator.counters().proxy_headers, 1);
    assert_eq!(world.state(), ConnectionState::Translating);
}

#[test]
fn header_goes_before_data_of_the_third_packet() {
    let (mut world, _) = answered();
    let out = third(&mut world, b"hello");
    assert_eq!(shown(&out), [(true, 1 - LEN, HEADER), (true, 1, b"hello")]);
}

#[test]
fn nobody_is_told_of_a_client_that_has_not_shown_where_it_is() {
    let (mut world, _) = answered();
    let _ = world.of_server(SYN | ACK, [0, 1 - LEN], [mss()], &[]);
    world.pass(5000);
    assert!(world.timeout().is_empty());
    assert_eq!(world.translator.counters().proxy_headers, 0);
    // Nor of one without MPTCP, by an ACK that anybody could have made up.
    let mut world = World::with(told);
    let _ = world.of_client(SYN, [0, 0], [mss()], &[]);
    let _ = world.of_server(SYN | ACK, [0, 1 - LEN], [mss()], &[]);
    let (_, out) = world.of_client(ACK, [1, 500], [], &[]);
    assert!(out.iter().all(|out| out.packet.payload.is_empty()));
    assert_eq!(world.translator.counters().proxy_headers, 0);
}

#[test]
fn streams_have_the_same_numbers_behind_the_header() {
    let mut world = begun();
    // Before the header is ACKed, too.
    assert_eq!(shown(&said(&mut world, 1)), [(true, 1, &b"abc"[..])]);
    let (_, out) = world.of_server(ACK, [1, 4], [], b"hello");
    let [down] = &out[..] else { panic!("{out:?}") };
    assert_eq!((down.seq(), down.ack()), (1, 4));
    assert_eq!(down.mapping(world.idsn()), Some((1, 1, 5)));
    assert_eq!(shown(&said(&mut world, 4)), [(true, 4, &b"abc"[..])]);
    world.pass(60_000);
    assert!(world.timeout().is_empty());
    assert_eq!(world.repeated(), 0);
}

#[test]
fn lost_header_goes_again_until_it_is_acked() {
    let mut world = begun();
    for pause in [300, 600, 1200] {
        world.pass(pause - 1);
        assert!(world.timeout().is_empty());
        world.pass(1);
        assert_eq!(shown(&world.timeout()), [(true, 1 - LEN, HEADER)]);
    }
    // A part of it is not all of it.
    let _ = world.of_server(ACK, [1, 0], [], &[]);
    world.pass(2400);
    assert_eq!(shown(&world.timeout()), [(true, 1 - LEN, HEADER)]);
    let _ = world.of_server(ACK, [1, 1], [], &[]);
    world.pass(60_000);
    assert!(world.timeout().is_empty());
    assert_eq!(world.repeated(), 4);
    assert_eq!(world.translator.counters().proxy_headers, 1);
}

#[test]
fn server_that_repeats_its_syn_ack_gets_the_header_at_once() {
    let mut world = begun();
    world.pass(100);
    let (_, out) = world.of_server(SYN | ACK, [0, 1 - LEN], [mss()], &[]);
    assert_eq!(shown(&out), [(true, 1 - LEN, HEADER)]);
    // Not one that somebody has made up.
    let (_, out) = world.of_server(SYN | ACK, [7, 1 - LEN], [mss()], &[]);
    assert!(out.iter().all(|out| out.packet.payload.is_empty()));
}

#[test]
fn client_hears_nothing_of_acks_of_the_header() {
    let mut world = begun();
    let _ = said(&mut world, 1);
    for ack in [1 - LEN, 0] {
        let (verdict, out) = world.of_server(ACK, [1, ack], [], &[]);
        assert!(out.is_empty(), "{out:?}");
        assert_eq!(verdict, Verdict::Consume);
    }
    let (_, out) = world.of_server(ACK, [1, 1 - LEN], [], b"hi");
    let acks: Vec<_> = out.iter().map(|out| (out.to_server, out.ack())).collect();
    assert_eq!(acks, [(false, 1)]);
}

#[test]
fn server_that_never_acks_the_header_is_given_up() {
    let mut world = begun();
    let mut copies = 0;
    let rsts = loop {
        world.pass(300);
        let out = world.timeout();
        if out
            .iter()
            .any(|out| out.packet.tcp.flags.contains(TcpFlags::RST))
        {
            break out;
        }
        copies += out.len();
        assert!(copies < 100);
    };
    assert_eq!(copies, 7);
    let to_server: Vec<_> = rsts
        .iter()
        .filter(|out| out.to_server)
        .map(Out::seq)
        .collect();
    assert_eq!(to_server, [1 - LEN, 1]);
    assert!(rsts.iter().any(|out| !out.to_server));
    let causes = world.translator.counters().causes;
    let causes: Vec<_> = causes.iter().filter(|(.., count)| *count > 0).collect();
    assert_eq!(causes, [("rst", "proxy_header", 3)]);
}

#[test]
fn plain_client_has_the_same_numbers_behind_the_header() {
    let mut world = World::with(told);
    let agreed = || [mss(), TcpOption::SackPermitted];
    let (_, out) = world.of_client(SYN, [0, 0], agreed(), &[]);
    assert_eq!(shown(&out), [(true, -LEN, &b""[..])]);
    let (_, out) = world.of_server(SYN | ACK, [0, 1 - LEN], agreed(), &[]);
    assert_eq!((out[0].seq(), out[0].ack()), (0, 1));
    let (_, out) = world.of_client(ACK, [1, 1], [], &[]);
    assert_eq!(shown(&out), [(true, 1 - LEN, HEADER)]);
    // The window is the client's.
    assert_eq!((out[0].ack(), out[0].packet.tcp.window), (1, WINDOW));
    let (_, out) = world.of_client(ACK, [1, 1], [], b"hello");
    assert_eq!(shown(&out), [(true, 1, &b"hello"[..])]);
    // The header is lost: what stands behind it is not behind a hole of the client's.
    let mut blocks = SackBlocks::default();
    blocks.push(at(CLIENT_ISN, 1), at(CLIENT_ISN, 6));
    let sack = || [TcpOption::Sack(blocks)];
    let (_, out) = world.of_server(ACK, [1, 1 - LEN], sack(), &[]);
    assert!(out.is_empty());
    let (_, out) = world.of_server(ACK, [1, 1 - LEN], sack(), b"hi");
    assert_eq!(out[0].ack(), 1);
    assert!(out[0].packet.view().sack.is_empty());
    world.pass(300);
    let out = world.timeout();
    assert_eq!(shown(&out), [(true, 1 - LEN, HEADER)]);
    assert_eq!(out[0].packet.tcp.window, WINDOW);
    let (_, out) = world.of_server(ACK, [3, 6], [], b"there");
    assert_eq!((out[0].seq(), out[0].ack()), (3, 6));
    world.pass(60_000);
    assert!(world.timeout().is_empty());
    assert_eq!(world.state(), ConnectionState::Plain);
}

#[test]
fn data_of_a_plain_clients_third_packet_goes_behind_the_header() {
    let mut world = World::with(told);
    let _ = world.of_client(SYN, [0, 0], [mss()], &[]);
    let _ = world.of_server(SYN | ACK, [0, 1 - LEN], [mss()], &[]);
    let (_, out) = world.of_client(ACK, [1, 1], [], b"hello");
    assert_eq!(shown(&out), [(true, 1 - LEN, HEADER), (true, 1, b"hello")]);
}

#[test]
fn data_of_a_syn_waits_for_the_client_to_repeat_it() {
    let mut world = World::with(told);
    let (_, out) = world.of_client(SYN, [0, 0], syn(), b"GET /");
    assert_eq!(shown(&out), [(true, -LEN, &b""[..])]);
    let (_, out) = world.of_server(SYN | ACK, [0, 1 - LEN], [mss()], &[]);
    assert_eq!((out[0].seq(), out[0].ack()), (0, 1));
    let (_, out) = world.of_client(ACK, [1, 1], [], b"GET /");
    assert_eq!(shown(&out), [(true, 1 - LEN, HEADER), (true, 1, b"GET /")]);
}

#[test]
fn plain_client_repeats_its_syn_and_the_header_follows_once() {
    let mut world = World::with(told);
    for _ in 0..2 {
        let (_, out) = world.of_client(SYN, [0, 0], [mss()], &[]);
        assert_eq!(shown(&out), [(true, -LEN, &b""[..])]);
        let (_, out) = world.of_server(SYN | ACK, [0, 1 - LEN], [mss()], &[]);
        assert_eq!(
            (out[0].to_server, out[0].seq(), out[0].ack()),
            (false, 0, 1)
        );
    }
    let (_, out) = world.of_client(ACK, [1, 1], [], &[]);
    assert_eq!(shown(&out), [(true, 1 - LEN, HEADER)]);
    world.pass(10);
    let (_, out) = world.of_server(SYN | ACK, [0, 1 - LEN], [mss()], &[]);
    assert_eq!(shown(&out), [(true, 1 - LEN, HEADER)]);
}

#[test]
fn client_that_leaves_mptcp_has_the_same_header() {
    // In its SYN.
    let (mut world, _) = answered();
    let (_, out) = world.of_client(SYN, [0, 0], [mss()], &[]);
    assert_eq!(shown(&out), [(true, -LEN, &b""[..])]);
    let (_, out) = world.of_server(SYN | ACK, [0, 1 - LEN], [mss()], &[]);
    assert!(!out[0].packet.view().mptcp);
    let (_, out) = world.of_client(ACK, [1, 1], [], &[]);
    assert_eq!(shown(&out), [(true, 1 - LEN, HEADER)]);
    // In its third packet.
    let (mut world, _) = answered();
    let (_, out) = world.of_client(ACK, [1, 1], [], b"hello");
    assert_eq!(shown(&out), [(true, 1 - LEN, HEADER), (true, 1, b"hello")]);
    assert_eq!(world.translator.counters().fallback_handshake, 1);
    let (_, out) = world.of_server(ACK, [1, 6], [], b"hi");
    assert_eq!((out[0].seq(), out[0].ack()), (1, 6));
}

#[test]
fn next_back_end_gets_the_same_header() {
    let mut world = World::with(|config| {
        told(config);
        if let Mode::Reverse { backends, .. } = &mut config.services[0].mode {
            backends.insert(0, end("10.55.9.8:80"));
        }
    });
    let first = Packet::new(client(), proxy())
        .flags(SYN)
        .numbers(CLIENT_ISN, 0)
        .with_options(syn());
    assert_eq!(world.put_raw(&first.bytes()), 1);
    world.pass(1000);
    let (_, out) = world.of_client(SYN, [0, 0], syn(), &[]);
    assert_eq!(shown(&out), [(true, -LEN, &b""[..])]);
    let _ = world.of_server(SYN | ACK, [0, 1 - LEN], [mss()], &[]);
    assert_eq!(shown(&third(&mut world, &[])), [(true, 1 - LEN, HEADER)]);
}

#[test]
fn refusal_of_the_only_back_end_reaches_the_client() {
    let mut world = World::with(told);
    let _ = world.of_client(SYN, [0, 0], syn(), &[]);
    let (_, out) = world.of_server(TcpFlags::RST | ACK, [0, 1 - LEN], [], &[]);
    let [rst] = &out[..] else { panic!("{out:?}") };
    assert!(!rst.to_server && rst.packet.tcp.flags.contains(TcpFlags::RST));
    assert_eq!(rst.ack(), 1, "a client believes the RST that ACKs its SYN");
}

#[test]
fn connection_is_offloaded_once_the_header_is_acked() {
    const fn ts(val: u32, ecr: u32) -> TcpOption<'static> {
        TcpOption::Timestamps(Timestamps { val, ecr })
    }
    let (mut world, slots) = (World::with(told), Slots::default());
    world.translator.set_fast_path(Box::new(slots.clone()));
    let options = [mss(), ts(1000, 0), capable(CapableKeys::Syn)];
    let _ = world.of_client(SYN, [0, 0], options, &[]);
    let _ = world.of_server(SYN | ACK, [0, 1 - LEN], [mss(), ts(5000, 1000)], &[]);
    let keys = capable(CapableKeys::Ack {
        sender: CLIENT_KEY,
        receiver: world.key.expect("a SYN/ACK"),
    });
    let _ = world.of_client(ACK, [1, 1], [ts(1001, 5000), keys], &[]);
    let idsn = world.idsn();
    let send = |world: &mut World, round: i32, of_server: i32| {
        world.pass(1);
        let at = 1 + round * 100;
        let _ = world.of_server(ACK, [at, of_server], [ts(5001, 1001)], &[b'x'; 100]);
        let all = at + 100;
        let data_ack = dss(idsn.wrapping_add(u64::try_from(all).unwrap()), None);
        let _ = world.of_client(ACK, [1, all], [ts(1001, 5001), data_ack], &[]);
        world.translator.idle(world.now);
        slots.shelf().held()
    };
    for round in 0..40 {
        assert_eq!(
            send(&mut world, round, 0),
            0,
            "a part of the header is missing"
        );
    }
    for round in 40..80 {
        send(&mut world, round, 1);
    }
    assert_eq!(slots.shelf().held(), 1);
    let entry = *slots.shelf().entries().next().expect("an entry");
    assert_eq!(entry.subflows[0].isn_remote, CLIENT_ISN);
    assert_eq!(entry.subflows[0].isn_local, SERVER_ISN);
}

/// The client and the service that it has connected to speak IPv6, whatever the back end speaks.
#[test]
fn header_of_an_ipv6_client_has_its_addresses() {
    let (from, to) = (end("[2001:db8::2]:40000"), end("[2001:db8::1]:443"));
    let mut world = World::with(|config| {
        told(config);
        if let Mode::Reverse { listen, .. } = &mut config.services[0].mode {
            *listen = vec![to];
        }
    });
    let packet = |flags, numbers: (u32, u32)| {
        Packet::new(from, to)
            .flags(flags)
            .numbers(numbers.0, numbers.1)
            .with_options([mss()])
    };
    let (_, out) = world.put(&packet(SYN, (CLIENT_ISN, 0)));
    assert_eq!(shown(&out), [(true, -52, &b""[..])]);
    let _ = world.of_server_raw(SYN | ACK, [0, 1 - 52], [mss()]);
    let (_, out) = world.put(&packet(ACK, (at(CLIENT_ISN, 1), at(SERVER_ISN, 1))));
    let header = [
        &HEADER[..12],
        b"\x21\x21\x00\x24",
        b"\x20\x01\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\x02",
        b"\x20\x01\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\x01",
        b"\x9c\x40\x01\xbb",
    ];
    assert_eq!(shown(&out), [(true, 1 - 52, &header.concat()[..])]);
}

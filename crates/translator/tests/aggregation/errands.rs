//! Connections that go by an aggregation server: what it is told before the stream, what its answer comes to, and who is asked when it
//! does not answer.

use std::net::SocketAddr;

use flexcp_preamble::{Cookie, Dialogue, Gate, Protocol, Refusal, Turn, Wish};
use flexcp_testkit::keys;
use flexcp_translator::{
    Config, ConnectionState, DropReason, Excepted, Mode, PlainSyn, Prefix, ServerName, User,
    Verdict,
};
use flexcp_wire::{CapableKeys, TcpFlags, TcpOption, Timestamps};

use crate::world::*;

const PSH: TcpFlags = TcpFlags::PSH;

fn user() -> User {
    User {
        name: b"me".as_slice().into(),
        password: b"secret".as_slice().into(),
    }
}

/// Aggregation servers that speak this, one on each port from that of [`aggregation`] on.
pub(crate) fn by(protocols: &[(Protocol, Option<User>)]) -> World {
    World::with(|config| set(config, protocols))
}

fn set(config: &mut Config, protocols: &[(Protocol, Option<User>)]) {
    let Mode::Box { servers, .. } = &mut config.services[0].mode else {
        unreachable!("it is a box");
    };
    for (place, (protocol, user)) in protocols.iter().cloned().enumerate() {
        assert!(servers.push(server_at(place), approach(protocol, user)));
    }
}

pub(crate) fn server_at(place: usize) -> SocketAddr {
    let mut server = aggregation();
    server.set_port(server.port() + u16::try_from(place).expect("few"));
    server
}

pub(crate) const CONVERT: (Protocol, Option<User>) = (Protocol::Convert, None);
pub(crate) const SOCKS5: (Protocol, Option<User>) = (Protocol::Socks5, None);

struct Door(bool);

impl Gate for Door {
    fn asks_password(&self) -> bool {
        self.0
    }

    fn knows(&self, name: &[u8], password: &[u8]) -> bool {
        (name, password) == (b"me", b"secret")
    }

    fn judge_cookie(&self, _: Option<&[u8]>) -> Cookie {
        Cookie::Right
    }
}

/// What an aggregation server answers to what it was told, which has to name the server; with `refusal` or without.
pub(crate) fn answer_to(
    protocol: Protocol,
    told: &[u8],
    password: bool,
    refusal: Option<Refusal>,
) -> Vec<u8> {
    let (mut dialogue, mut said) = (Dialogue::new(protocol), vec![]);
    let (taken, turn) = dialogue.hear(told, &Door(password), &mut said);
    assert_eq!(taken, told.len());
    let wish = Wish {
        to: ServerName::Ip(server().ip()),
        port: server().port(),
    };
    assert_eq!(turn, Turn::Connect(wish));
    match refusal {
        None => dialogue.grant(server(), &[], &mut said),
        Some(refusal) => dialogue.refuse(refusal, &mut said),
    }
    said
}

pub(crate) fn int(len: usize) -> i32 {
    i32::try_from(len).expect("short")
}

/// The client's SYN; what the aggregation server is told with it, or behind the handshake, which it has completed.
pub(crate) fn told(world: &mut World) -> Vec<u8> {
    let (verdict, out) = world.of_client(SYN, [0, 0], offer(), &[]);
    assert_eq!(verdict, Verdict::Consume);
    let [syn] = &out[..] else { panic!("{out:?}") };
    assert_eq!(syn.keys(), Some(CapableKeys::Syn));
    let subflow = syn.subflow.expect("to the server");
    let with_syn = syn.packet.payload.clone();
    let len = int(with_syn.len());
    let (verdict, out) = world.of_server(subflow, SYN | ACK, [0, 1 + len], answer(), &[]);
    assert_eq!(verdict, Verdict::Consume);
    let [third] = &out[..] else { panic!("{out:?}") };
    assert_eq!((third.seq(), third.ack()), (1 + len, 1));
    assert!(third.keys().is_some(), "{third:?}");
    if len > 0 {
        assert!(third.packet.payload.is_empty());
        with_syn
    } else {
        third.packet.payload.clone()
    }
}

/// The answer comes, and behind it `more` of the stream.
pub(crate) fn answers(
    world: &mut World,
    said: &[u8],
    told: usize,
    more: &[u8],
) -> (Verdict, Vec<Out>) {
    let bytes = [said, more].concat();
    let first = keys::idsn(SERVER_KEY).wrapping_add(1);
    let len = u16::try_from(bytes.len()).expect("short");
    let data = dss(world.idsn() + 1, Some((first, 1, len)));
    let last = world.subflows.len() - 1;
    world.of_server(last, PSH | ACK, [1, 1 + int(told)], [data], &bytes)
}

/// Linux as a server takes the window of a SYN with data for a scaled one: it is right either way, and has room for the answer.
#[test]
fn window_beside_data_in_the_syn_is_right_scaled_too() {
    let scaled = |scale| vec![TcpOption::WindowScale(scale)];
    for (options, told) in [(scaled(7), 65_000 >> 7), (scaled(14), 64), (vec![], 65_000)] {
        let mut world = by(&[CONVERT]);
        let (_, out) = world.of_client(SYN, [0, 0], options.clone(), &[]);
        assert!(!out[0].packet.payload.is_empty());
        assert_eq!(out[0].packet.tcp.window, told);
        let mut direct = World::new();
        let (_, out) = direct.of_client(SYN, [0, 0], options, &[]);
        assert_eq!(
            out[0].packet.tcp.window, 65_000,
            "without data it is as it was"
        );
    }
}

#[test]
fn converter_is_told_with_the_syn_and_the_client_is_answered_when_it_has_connected() {
    let mut world = by(&[CONVERT]);
    let told = told(&mut world);
    assert_eq!(world.peers, [aggregation()]);
    assert_eq!(
        world.isns[0],
        CLIENT_ISN.wrapping_sub(u32::try_from(told.len()).unwrap()),
        "behind the message numbers are the client's"
    );
    let said = answer_to(Protocol::Convert, &told, false, None);
    let (verdict, out) = answers(&mut world, &said, told.len(), &[]);
    assert_eq!(verdict, Verdict::Consume);
    let [ack, syn_ack] = &out[..] else {
        panic!("{out:?}")
    };
    let (behind, first) = (1 + int(said.len()), keys::idsn(SERVER_KEY).wrapping_add(1));
    assert_eq!((ack.subflow, ack.ack()), (Some(0), behind));
    let data_ack = ack.dss().and_then(|dss| dss.data_ack);
    assert_eq!(
        data_ack,
        Some(flexcp_wire::DataNumber::Long(
            first.wrapping_add(said.len() as u64)
        ))
    );
    assert_eq!(syn_ack.packet.tcp.flags, SYN | ACK);
    assert_eq!((syn_ack.seq(), syn_ack.ack()), (int(said.len()), 1));
    let view = syn_ack.packet.view();
    assert_eq!((view.mss, view.window_scale), (Some(1460 - 28), Some(7)));
    assert!(view.sack_permitted);
    assert_eq!(world.translator.counters().server_granted, 1);
}

/// Both directions behind the errand: `told` and `said` are what went before the streams.
fn translates(world: &mut World, told: usize, said: usize) {
    let (told_ssn, said) = (int(told), int(said));
    let (_, out) = world.of_client(ACK, [1, said + 1], [], b"GET");
    let [data] = &out[..] else { panic!("{out:?}") };
    assert_eq!((data.seq(), data.ack()), (told_ssn + 1, said + 1));
    let mapping = data.dss().and_then(|dss| dss.mapping).unwrap();
    assert_eq!(mapping.len, 3);
    let flexcp_wire::DataNumber::Long(dsn) = mapping.dsn else {
        panic!("{mapping:?}");
    };
    assert_eq!(
        dsn.wrapping_sub(world.idsn()),
        u64::from(mapping.ssn),
        "data and subflow numbers count from the same byte"
    );
    let first = keys::idsn(SERVER_KEY)
        .wrapping_add(1)
        .wrapping_add_signed(said.into());
    let last = world.subflows.len() - 1;
    let ssn = u32::try_from(said + 1).unwrap();
    let down = dss(dsn + 3, Some((first, ssn, 2)));
    let (verdict, out) = world.of_server(last, ACK, [said + 1, told_ssn + 4], [down], b"ok");
    assert_eq!(verdict, Verdict::Forward);
    let [data] = &out[..] else { panic!("{out:?}") };
    assert_eq!((data.subflow, data.seq(), data.ack()), (None, said + 1, 4));
    assert_eq!(data.packet.payload, b"ok");
    assert_eq!(world.state(), Some(ConnectionState::Translating));
}

#[test]
fn both_directions_are_translated_behind_each_protocol() {
    for (protocol, user) in [CONVERT, SOCKS5, (Protocol::Socks5, Some(user()))] {
        let password = user.is_some();
        let mut world = by(&[(protocol, user)]);
        let told = told(&mut world);
        let said = answer_to(protocol, &told, password, None);
        let (_, out) = answers(&mut world, &said, told.len(), &[]);
        assert_eq!(out.len(), 2);
        translates(&mut world, told.len(), said.len());
    }
}

#[test]
fn what_a_server_says_first_comes_behind_the_answer() {
    let mut world = by(&[SOCKS5]);
    let told = told(&mut world);
    let said = answer_to(Protocol::Socks5, &told, false, None);
    let (verdict, out) = answers(&mut world, &said, told.len(), b"220 hello");
    assert_eq!(verdict, Verdict::Consume);
    let [_, syn_ack, banner] = &out[..] else {
        panic!("{out:?}")
    };
    assert_eq!(syn_ack.packet.tcp.flags, SYN | ACK);
    assert_eq!((banner.seq(), banner.ack()), (1 + int(said.len()), 1));
    assert_eq!(banner.packet.payload, b"220 hello");
    // It comes again, answer and all: the client gets no more of it than is its own.
    let (_, out) = answers(&mut world, &said, told.len(), b"220 hello");
    let [again] = &out[..] else { panic!("{out:?}") };
    assert_eq!(again.seq(), 1 + int(said.len()));
    assert_eq!(again.packet.payload, b"220 hello");
}

#[test]
fn answer_in_pieces_is_acked_piece_by_piece() {
    let mut world = by(&[SOCKS5]);
    let told = told(&mut world);
    let said = answer_to(Protocol::Socks5, &told, false, None);
    let first = keys::idsn(SERVER_KEY).wrapping_add(1);
    for (at, byte) in said.iter().enumerate() {
        let ssn = u32::try_from(at).unwrap() + 1;
        let data = dss(
            world.idsn() + 1,
            Some((first.wrapping_add(at as u64), ssn, 1)),
        );
        let ack = 1 + int(told.len());
        let (_, out) = world.of_server(0, ACK, [int(at) + 1, ack], [data], &[*byte]);
        let is_last = at + 1 == said.len();
        assert_eq!(out.len(), if is_last { 2 } else { 1 }, "{at}");
        assert_eq!(out[0].ack(), int(at) + 2);
    }
    translates(&mut world, told.len(), said.len());
}

/// A hole in the answer is not skipped.
#[test]
fn answer_that_has_overtaken_its_front_comes_again() {
    let mut world = by(&[SOCKS5]);
    let told = told(&mut world);
    let said = answer_to(Protocol::Socks5, &told, false, None);
    let first = keys::idsn(SERVER_KEY).wrapping_add(1);
    let rest = dss(
        world.idsn() + 1,
        Some((
            first.wrapping_add(2),
            3,
            u16::try_from(said.len() - 2).unwrap(),
        )),
    );
    let ack = 1 + int(told.len());
    let (verdict, out) = world.of_server(0, ACK, [3, ack], [rest], &said[2..]);
    assert_eq!(verdict, Verdict::Drop(DropReason::Unexpected));
    assert_eq!((out.len(), out[0].ack()), (1, 1), "what is missing is said");
    let (_, out) = answers(&mut world, &said, told.len(), &[]);
    assert_eq!(out[1].packet.tcp.flags, SYN | ACK);
}

#[test]
fn what_is_refused_is_refused() {
    for (protocol, _) in [CONVERT, SOCKS5] {
        let mut world = by(&[(protocol, None)]);
        let told = told(&mut world);
        let said = answer_to(protocol, &told, false, Some(Refusal::Reset));
        let (_, out) = answers(&mut world, &said, told.len(), &[]);
        let [refusal, reset] = &out[..] else {
            panic!("{out:?}")
        };
        assert_eq!((refusal.subflow, refusal.ack()), (None, 1));
        assert_eq!(refusal.packet.tcp.flags, RST | ACK);
        assert_eq!(reset.subflow, Some(0));
        assert!(reset.packet.tcp.flags.contains(RST));
        assert_eq!(world.state(), None);
        let counters = world.translator.counters();
        assert_eq!((counters.server_refused, counters.server_skipped), (1, 0));
    }
}

/// A proxy without MPTCP may end the connection in the packet that says why.
#[test]
fn refusal_that_comes_with_the_end_is_heard() {
    let mut world = by(&[SOCKS5]);
    let _ = world.of_client(SYN, [0, 0], offer(), &[]);
    let (_, out) = world.of_server(0, SYN | ACK, [0, 1], offer(), &[]);
    let told = out[0].packet.payload.clone();
    let said = answer_to(Protocol::Socks5, &told, false, Some(Refusal::Reset));
    let ack = 1 + int(told.len());
    let (_, out) = world.of_server(0, FIN | ACK, [1, ack], [], &said);
    assert_eq!((out[0].subflow, out[0].packet.tcp.flags), (None, RST | ACK));
    let counters = world.translator.counters();
    assert_eq!((counters.server_refused, counters.backend_marked), (1, 0));
    // One that ends without a word has declined.
    let mut world = by(&[SOCKS5]);
    let told = self::told(&mut world);
    let ack = 1 + int(told.len());
    let _ = world.of_server(0, FIN | ACK, [1, ack], [], &[]);
    assert_eq!(world.translator.counters().server_declined, 1);
    assert_eq!(world.peers[1], server());
}

#[test]
fn unreachable_server_is_told_at_once() {
    let mut world = by(&[CONVERT]);
    let told = told(&mut world);
    let why = Refusal::Unreachable {
        code: 1,
        is_v6: false,
    };
    let said = answer_to(Protocol::Convert, &told, false, Some(why));
    let (_, out) = answers(&mut world, &said, told.len(), &[]);
    assert_eq!(out[0].packet.tcp.flags, RST | ACK);
    assert_eq!(world.state(), None);
}

/// One that may not connect there says nothing of the server: the next one may, and the last resort is the server itself.
#[test]
fn the_next_one_is_asked_when_one_declines_and_then_the_server_itself() {
    let mut world = by(&[CONVERT, SOCKS5]);
    let first = told(&mut world);
    let said = answer_to(Protocol::Convert, &first, false, Some(Refusal::NotAllowed));
    let (_, out) = answers(&mut world, &said, first.len(), &[]);
    let [reset, syn] = &out[..] else {
        panic!("{out:?}")
    };
    assert!(reset.packet.tcp.flags.contains(RST));
    assert_eq!(
        reset.packet.view().fast_close,
        Some(SERVER_KEY),
        "a RST alone leaves it waiting for another subflow"
    );
    assert_eq!(syn.packet.tcp.flags, SYN);
    assert_eq!(world.peers, [server_at(0), server_at(1)]);
    assert!(
        syn.packet.payload.is_empty(),
        "SOCKS5 waits for the handshake"
    );
    let (_, out) = world.of_server(1, SYN | ACK, [0, 1], answer(), &[]);
    let second = out[0].packet.payload.clone();
    let said = answer_to(Protocol::Socks5, &second, false, Some(Refusal::NotAllowed));
    let (_, out) = answers(&mut world, &said, second.len(), &[]);
    let [_, syn] = &out[..] else {
        panic!("{out:?}")
    };
    assert_eq!(world.peers[2], server());
    assert_eq!(
        syn.packet.tcp.seq, CLIENT_ISN,
        "nothing stands before the stream"
    );
    let (verdict, out) = world.of_server(2, SYN | ACK, [0, 1], answer(), &[]);
    assert_eq!(verdict, Verdict::Forward);
    assert_eq!((out[0].subflow, out[0].seq()), (None, 0));
    let (_, out) = world.of_client(ACK, [1, 1], [], &[]);
    assert!(matches!(out[0].keys(), Some(CapableKeys::Ack { .. })));
    let counters = world.translator.counters();
    assert_eq!((counters.server_skipped, counters.server_bypassed), (1, 1));
    assert_eq!((counters.server_declined, counters.backend_marked), (2, 0));
}

#[test]
fn one_that_is_not_there_is_left_and_marked() {
    let mut world = by(&[CONVERT, CONVERT]);
    let (_, out) = world.of_client(SYN, [0, 0], offer(), &[]);
    let told = int(out[0].packet.payload.len());
    // Anybody can send a RST; one that ACKs nothing is nobody's.
    let (verdict, _) = world.of_server(0, RST | ACK, [0, 5], [], &[]);
    assert_eq!(verdict, Verdict::Drop(DropReason::BlindReset));
    let (verdict, out) = world.of_server(0, RST | ACK, [0, 1 + told], [], &[]);
    assert_eq!(verdict, Verdict::Consume);
    assert_eq!((out.len(), world.peers[1]), (1, server_at(1)));
    let counters = world.translator.counters();
    assert_eq!((counters.backend_marked, counters.server_skipped), (1, 1));
    // The next connection does not ask it.
    let other = flexcp_testkit::Packet::new(end("192.168.1.11:40000"), server())
        .flags(SYN)
        .numbers(7, 0)
        .with_options(offer());
    let _ = world.put(&other);
    assert_eq!(world.peers[2], server_at(1));
}

#[test]
fn one_that_is_silent_is_left_by_itself_and_when_the_client_asks_again() {
    for asks_again in [false, true] {
        let mut world = by(&[CONVERT, CONVERT]);
        let _ = world.of_client(SYN, [0, 0], offer(), &[]);
        world.pass(1000);
        let out = if asks_again {
            let (verdict, out) = world.of_client(SYN, [0, 0], offer(), &[]);
            assert_eq!(verdict, Verdict::Consume);
            out
        } else {
            world.timeout()
        };
        let syns = out.iter().filter(|out| out.packet.tcp.flags == SYN);
        let to: Vec<_> = syns.map(|syn| syn.packet.ends().to).collect();
        assert!(to.contains(&server_at(1)), "{asks_again}: {to:?}");
        let counters = world.translator.counters();
        assert_eq!(counters.server_skipped, 1, "{asks_again}");
    }
}

/// A server that takes no data with a SYN, and something on the way that takes it away, ACK the SYN alone.
#[test]
fn converter_that_took_nothing_with_the_syn_is_told_behind_the_handshake() {
    let mut world = by(&[CONVERT]);
    let (_, out) = world.of_client(SYN, [0, 0], offer(), &[]);
    let told = out[0].packet.payload.clone();
    let (_, out) = world.of_server(0, SYN | ACK, [0, 1], answer(), &[]);
    let [third] = &out[..] else { panic!("{out:?}") };
    assert_eq!(
        (third.seq(), third.packet.payload.clone()),
        (1, told.clone())
    );
    let Some(CapableKeys::AckData { data_len, .. }) = third.keys() else {
        panic!("{third:?}")
    };
    assert_eq!(usize::from(data_len), told.len());
    let said = answer_to(Protocol::Convert, &told, false, None);
    let (_, out) = answers(&mut world, &said, told.len(), &[]);
    assert_eq!(out[1].packet.tcp.flags, SYN | ACK);
    translates(&mut world, told.len(), said.len());
}

#[test]
fn what_was_said_is_said_again_until_there_is_an_answer() {
    for (protocol, _) in [CONVERT, SOCKS5] {
        let mut world = by(&[(protocol, None)]);
        let told = told(&mut world);
        world.pass(299);
        assert!(world.timeout().is_empty());
        world.pass(1);
        let out = world.timeout();
        assert_eq!(out.len(), 1, "{protocol:?}");
        assert!(out[0].keys().is_some());
        world.pass(599);
        assert!(world.timeout().is_empty(), "twice as long");
        world.pass(1);
        assert_eq!(world.timeout().len(), 1);
        let said = answer_to(protocol, &told, false, None);
        let _ = answers(&mut world, &said, told.len(), &[]);
        world.pass(5000);
        let again = world.timeout();
        let again = again.iter().filter(|out| out.keys().is_some());
        assert_eq!(again.count(), 0, "{protocol:?}");
    }
}

#[test]
fn client_that_asks_again_is_answered_anew_until_it_has_heard() {
    let mut world = by(&[CONVERT]);
    let told = told(&mut world);
    let (verdict, out) = world.of_client(SYN, [0, 0], offer(), &[]);
    assert_eq!((verdict, out.len()), (Verdict::Consume, 0), "no answer yet");
    let said = answer_to(Protocol::Convert, &told, false, None);
    let (_, out) = answers(&mut world, &said, told.len(), &[]);
    let first = out[1].packet.clone();
    let (_, out) = world.of_client(SYN, [0, 0], offer(), &[]);
    let [again] = &out[..] else { panic!("{out:?}") };
    assert_eq!(
        (&again.packet.tcp, &again.packet.options),
        (&first.tcp, &first.options)
    );
    let _ = world.of_client(ACK, [1, 1 + int(said.len())], [], &[]);
    let (_, out) = world.of_client(SYN, [0, 0], offer(), &[]);
    let [challenge] = &out[..] else {
        panic!("{out:?}")
    };
    assert_eq!(challenge.packet.tcp.flags, ACK, "RFC 5961");
}

#[test]
fn server_without_mptcp_is_asked_all_the_same() {
    for (protocol, _) in [CONVERT, SOCKS5] {
        let mut world = by(&[(protocol, None)]);
        let (_, out) = world.of_client(SYN, [0, 0], offer(), &[]);
        let mut told = out[0].packet.payload.clone();
        let ack = 1 + int(told.len());
        let (_, out) = world.of_server(0, SYN | ACK, [0, ack], offer(), &[]);
        assert!(!out[0].packet.view().mptcp);
        if told.is_empty() {
            told.clone_from(&out[0].packet.payload);
        }
        let said = answer_to(protocol, &told, false, None);
        let ack = 1 + int(told.len());
        let (_, out) = world.of_server(0, ACK, [1, ack], [], &said);
        let syn_ack = &out[1];
        assert_eq!((syn_ack.seq(), syn_ack.ack()), (int(said.len()), 1));
        assert_eq!(syn_ack.packet.view().mss, Some(1460), "there is no DSS");
        let (verdict, out) = world.of_client(ACK, [1, 1 + int(said.len())], [], b"GET");
        assert_eq!(verdict, Verdict::Forward);
        assert_eq!((out[0].seq(), out[0].ack()), (ack, 1 + int(said.len())));
        let (verdict, out) = world.of_server(0, ACK, [1 + int(said.len()), ack + 3], [], b"ok");
        assert_eq!(verdict, Verdict::Forward);
        assert_eq!((out[0].seq(), out[0].ack()), (1 + int(said.len()), 4));
    }
}

#[test]
fn answer_in_the_syn_ack_of_a_server_without_mptcp_is_heard() {
    let mut world = by(&[CONVERT]);
    let (_, out) = world.of_client(SYN, [0, 0], offer(), &[]);
    let told = out[0].packet.payload.clone();
    let said = answer_to(Protocol::Convert, &told, false, None);
    let ack = 1 + int(told.len());
    let (_, out) = world.of_server(0, SYN | ACK, [0, ack], offer(), &said);
    let syn_ack = out.last().unwrap();
    assert_eq!(syn_ack.packet.tcp.flags, SYN | ACK);
    assert_eq!((syn_ack.seq(), syn_ack.ack()), (int(said.len()), 1));
    assert_eq!(world.translator.counters().server_granted, 1);
}

/// What strips options behind the handshake would have the message read as if it stood elsewhere.
#[test]
fn answer_without_a_mapping_is_not_believed() {
    let mut world = by(&[CONVERT]);
    let told = told(&mut world);
    let said = answer_to(Protocol::Convert, &told, false, None);
    let ack = 1 + int(told.len());
    let (_, out) = world.of_server(0, ACK, [1, ack], [], &said);
    assert!(out[0].packet.tcp.flags.contains(RST));
    assert_eq!(world.peers[1], server(), "the server itself is asked");
    let mut world = by(&[CONVERT]);
    let _ = self::told(&mut world);
    let first = keys::idsn(SERVER_KEY).wrapping_add(1);
    let len = u16::try_from(said.len()).unwrap();
    let elsewhere = dss(world.idsn() + 1, Some((first.wrapping_add(9), 1, len)));
    let (_, out) = world.of_server(0, ACK, [1, ack], [elsewhere], &said);
    assert!(out[0].packet.tcp.flags.contains(RST));
}

#[test]
fn client_that_gives_up_ends_it() {
    let mut world = by(&[CONVERT]);
    let _ = told(&mut world);
    let (verdict, _) = world.of_client(RST, [9, 0], [], &[]);
    assert_eq!(verdict, Verdict::Drop(DropReason::Unexpected));
    let (verdict, out) = world.of_client(RST, [1, 0], [], &[]);
    assert_eq!(verdict, Verdict::Consume);
    assert!(out[0].packet.tcp.flags.contains(RST));
    assert_eq!((out[0].subflow, world.state()), (Some(0), None));
}

#[test]
fn timestamps_pass_behind_the_errand() {
    let ts = |val, ecr| TcpOption::Timestamps(Timestamps { val, ecr });
    let mut world = by(&[CONVERT]);
    let (_, out) = world.of_client(SYN, [0, 0], [mss(), ts(100, 0)], &[]);
    let view = out[0].packet.view();
    assert_eq!(view.timestamps, Some(Timestamps { val: 100, ecr: 0 }));
    let told = out[0].packet.payload.clone();
    let key = capable(CapableKeys::SynAck { sender: SERVER_KEY });
    let ack = 1 + int(told.len());
    let options = [mss(), ts(9000, 100), key];
    let (_, out) = world.of_server(0, SYN | ACK, [0, ack], options, &[]);
    let view = out[0].packet.view();
    assert_eq!(
        view.timestamps,
        Some(Timestamps {
            val: 100,
            ecr: 9000
        })
    );
    let said = answer_to(Protocol::Convert, &told, false, None);
    let first = keys::idsn(SERVER_KEY).wrapping_add(1);
    let len = u16::try_from(said.len()).unwrap();
    let data = dss(world.idsn() + 1, Some((first, 1, len)));
    let (_, out) = world.of_server(0, ACK, [1, ack], [ts(9050, 100), data], &said);
    let view = out[1].packet.view();
    assert_eq!(
        view.timestamps,
        Some(Timestamps {
            val: 9000,
            ecr: 100
        })
    );
    let answer = 1 + int(said.len());
    let (_, out) = world.of_client(ACK, [1, answer], [ts(160, 9000)], b"GET");
    let view = out[0].packet.view();
    assert_eq!(
        view.timestamps,
        Some(Timestamps {
            val: 160,
            ecr: 9050
        })
    );
}

#[test]
fn exceptions_pass_as_they_are() {
    let except = |ports: Vec<std::ops::RangeInclusive<u16>>| {
        let mut world = World::with(|config| {
            let Mode::Box { except, .. } = &mut config.services[0].mode else {
                unreachable!("it is a box");
            };
            let servers = Prefix {
                addr: server().ip(),
                len: 32,
            };
            except.push(Excepted { servers, ports });
        });
        let syn = flexcp_testkit::Packet::new(client(), server())
            .flags(SYN)
            .numbers(CLIENT_ISN, 0)
            .with_options(offer());
        let verdict = world.put_raw(&syn);
        assert_eq!(verdict, Verdict::Forward);
        let counted = world.translator.counters().causes.get(PlainSyn::Excepted);
        let carried = world.translator.connections(world.now).count();
        assert_eq!(usize::try_from(counted).unwrap() + carried, 1);
        carried
    };
    assert_eq!(except(vec![]), 0);
    assert_eq!(except(vec![80..=80]), 0);
    assert_eq!(except(vec![443..=443]), 1);
}

/// Whom the SYN of one more client is for.
fn next_asked(world: &mut World, port: u16) -> SocketAddr {
    let before = world.peers.len();
    let client = SocketAddr::new(client().ip(), port);
    let syn = flexcp_testkit::Packet::new(client, server())
        .flags(SYN)
        .numbers(7, 0)
        .with_options(offer());
    let _ = world.put(&syn);
    world.peers[before]
}

#[test]
fn preferred_servers_are_asked_first_and_the_others_behind_them() {
    let mut world = by(&[CONVERT, CONVERT, CONVERT]);
    let service = World::config().services[0].id;
    // One that it does not have, and one named twice, change nothing.
    let order = [server(), server_at(2), server_at(2), server_at(1)];
    world.translator.prefer_servers(service, &order);
    assert_eq!(next_asked(&mut world, 40000), server_at(2));
    let order = [server_at(1)];
    world.translator.prefer_servers(service, &order);
    let (_, out) = world.of_client(SYN, [0, 0], offer(), &[]);
    let told = int(out[0].packet.payload.len());
    let last = world.subflows.len() - 1;
    assert_eq!(world.peers[last], server_at(1));
    // It is not there: those that were not named follow in the order of the configuration, and it is marked.
    let _ = world.of_server(last, RST | ACK, [0, 1 + told], [], &[]);
    assert_eq!(world.peers[last + 1], server_at(0));
    assert_eq!(next_asked(&mut world, 40001), server_at(0));
    world
        .translator
        .prefer_servers(service, &[server_at(1), server_at(2)]);
    assert_eq!(next_asked(&mut world, 40002), server_at(2));
    world.translator.prefer_servers(service, &[]);
    assert_eq!(next_asked(&mut world, 40003), server_at(0));
}

#[test]
fn preference_lasts_as_long_as_the_list_of_servers() {
    let mut world = by(&[CONVERT, CONVERT]);
    let config = |protocols: &[(Protocol, Option<User>)]| {
        let mut config = World::config();
        set(&mut config, protocols);
        config
    };
    let service = World::config().services[0].id;
    world.translator.prefer_servers(service, &[server_at(1)]);
    world.translator.configure(config(&[CONVERT, CONVERT]), 1);
    assert_eq!(next_asked(&mut world, 40000), server_at(1));
    let three = config(&[CONVERT, CONVERT, CONVERT]);
    world.translator.configure(three, 2);
    assert_eq!(next_asked(&mut world, 40001), server_at(0));
}

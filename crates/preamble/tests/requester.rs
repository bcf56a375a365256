//! A client's side against the other: what it asks for is understood, and each answer is, however it is cut.
#![forbid(unsafe_code)]

use std::net::SocketAddr;

use flexcp_preamble::{
    Cookie, Dialogue, Fault, Gate, Heard, Identity, Protocol, Refusal, Requester, Target, Turn,
    Wish, request,
};
use flexcp_wire::{SocksAddr, SocksReply};
use proptest::prelude::*;

const ME: Identity<'static> = Identity {
    user: b"me",
    password: b"secret",
};

/// Asks for a password or not.
struct Door(bool);

impl Gate for Door {
    fn asks_password(&self) -> bool {
        self.0
    }

    fn knows(&self, user: &[u8], password: &[u8]) -> bool {
        (user, password) == (ME.user, ME.password)
    }

    fn judge_cookie(&self, _: Option<&[u8]>) -> Cookie {
        Cookie::Right
    }
}

fn to(addr: &str) -> SocketAddr {
    addr.parse().unwrap()
}

/// What the proxy answers to a whole request, with `refusal` or without.
fn answer(
    protocol: Protocol,
    server: SocketAddr,
    door: &Door,
    refusal: Option<Refusal>,
) -> Vec<u8> {
    let flight = request(protocol, server, door.0.then_some(ME));
    let (mut dialogue, mut said) = (Dialogue::new(protocol), vec![]);
    let (taken, turn) = dialogue.hear(&flight, door, &mut said);
    assert_eq!(taken, flight.len(), "all of it is the preamble");
    let wish = Wish {
        to: Target::Ip(server.ip()),
        port: server.port(),
    };
    assert_eq!(turn, Turn::Connect(wish));
    match refusal {
        None => dialogue.grant(to("192.0.2.1:4000"), &[], &mut said),
        Some(refusal) => dialogue.refuse(refusal, &mut said),
    }
    said
}

/// What a requester makes of an answer, of which `cut` bytes come first, and of what stands behind it.
fn hear(protocol: Protocol, server: SocketAddr, door: &Door, said: &[u8], cut: usize) -> Heard {
    let mut requester = Requester::new(protocol, server, door.0);
    let mut bytes = said.to_vec();
    bytes.extend_from_slice(b"banner");
    let (first, rest) = bytes.split_at(cut);
    let (taken, heard) = requester.hear(first);
    if heard != Heard::More {
        assert_eq!(taken, said.len(), "the banner is the server's");
        return heard;
    }
    assert_eq!(taken, cut);
    let (taken, heard) = requester.hear(rest);
    assert_eq!(cut + taken, said.len(), "the banner is the server's");
    heard
}

#[test]
fn proxies_understand_it_and_it_understands_them_wherever_the_answer_is_cut() {
    let kinds = [
        (Protocol::Convert, Door(false)),
        (Protocol::Socks5, Door(false)),
        (Protocol::Socks5, Door(true)),
    ];
    let servers = [to("198.51.100.7:443"), to("[2001:db8::7]:22")];
    for (protocol, door) in &kinds {
        for server in servers {
            let said = answer(*protocol, server, door, None);
            for cut in 0..=said.len() {
                let heard = hear(*protocol, server, door, &said, cut);
                assert_eq!(heard, Heard::Granted, "{protocol:?} {server} {cut}");
            }
        }
    }
}

#[test]
fn refusals_come_through() {
    let (v4, v6) = (to("198.51.100.7:443"), to("[2001:db8::7]:22"));
    let unreachable = |code, is_v6| Refusal::Unreachable { code, is_v6 };
    let cases = [
        (Protocol::Convert, v4, Refusal::Reset, Refusal::Reset),
        (
            Protocol::Convert,
            v4,
            unreachable(13, false),
            unreachable(13, false),
        ),
        (
            Protocol::Convert,
            v6,
            unreachable(1, true),
            unreachable(1, true),
        ),
        (
            Protocol::Convert,
            v4,
            Refusal::NotAllowed,
            Refusal::NotAllowed,
        ),
        (
            Protocol::Convert,
            v4,
            Refusal::NoRoom(7),
            Refusal::NoRoom(7),
        ),
        (
            Protocol::Convert,
            v4,
            Refusal::NoNetwork,
            Refusal::NoNetwork,
        ),
        (Protocol::Socks5, v4, Refusal::Reset, Refusal::Reset),
        (
            Protocol::Socks5,
            v4,
            unreachable(1, false),
            unreachable(1, false),
        ),
        (
            Protocol::Socks5,
            v6,
            unreachable(3, true),
            unreachable(3, true),
        ),
        (
            Protocol::Socks5,
            v4,
            unreachable(0, false),
            unreachable(0, false),
        ),
        (
            Protocol::Socks5,
            v4,
            Refusal::NotAllowed,
            Refusal::NotAllowed,
        ),
        (Protocol::Socks5, v4, Refusal::Expired, Refusal::Expired),
        (Protocol::Socks5, v4, Refusal::NoRoom(0), Refusal::NoRoom(0)),
    ];
    for (protocol, server, why, heard) in cases {
        let said = answer(protocol, server, &Door(false), Some(why));
        for cut in 0..=said.len() {
            let got = hear(protocol, server, &Door(false), &said, cut);
            assert_eq!(got, Heard::Refused(heard), "{protocol:?} {why:?}");
        }
    }
}

#[test]
fn refusals_of_the_server_are_told_from_those_of_the_proxy() {
    let of_server = [
        Refusal::Reset,
        Refusal::Expired,
        Refusal::Unreachable {
            code: 1,
            is_v6: false,
        },
    ];
    let of_proxy = [
        Refusal::NotAllowed,
        Refusal::ClientLimit,
        Refusal::NoRoom(3),
        Refusal::NoNetwork,
        Refusal::NoName,
    ];
    assert!(of_server.iter().all(|refusal| refusal.is_of_server()));
    assert!(!of_proxy.iter().any(|refusal| refusal.is_of_server()));
}

#[test]
fn proxies_that_can_not_be_asked_so_are_noticed() {
    let server = to("198.51.100.7:443");
    let mut place = [0; 64];
    let len = SocksReply::Command.emit(SocksAddr::Ip(server.ip()), 0, &mut place);
    let command = [&[5, 0], &place[..len]].concat();
    let cases: [(Protocol, bool, &[u8], Fault); 9] = [
        (Protocol::Socks5, false, &[4, 0], Fault::Protocol),
        (Protocol::Socks5, false, &[5, 0xff], Fault::Method),
        (Protocol::Socks5, false, &[5, 2], Fault::Method),
        (Protocol::Socks5, true, &[5, 0], Fault::Method),
        (Protocol::Socks5, true, &[5, 2, 1, 1], Fault::Credentials),
        (Protocol::Socks5, false, &command, Fault::Unsupported),
        (Protocol::Convert, false, b"SSH-2.0-x", Fault::Protocol),
        (
            Protocol::Convert,
            false,
            &[2, 1, 0x22, 0x63],
            Fault::Protocol,
        ),
        // A TLV that runs past the end.
        (
            Protocol::Convert,
            false,
            &[1, 2, 0x22, 0x63, 1, 9, 0, 0],
            Fault::Malformed,
        ),
    ];
    for (protocol, password, said, fault) in cases {
        let (_, heard) = Requester::new(protocol, server, password).hear(said);
        assert_eq!(heard, Heard::Failed(fault), "{protocol:?} {said:?}");
    }
}

#[test]
fn whoever_has_answered_is_not_believed_twice() {
    let server = to("198.51.100.7:443");
    let said = answer(Protocol::Convert, server, &Door(false), None);
    let mut requester = Requester::new(Protocol::Convert, server, false);
    assert_eq!(requester.hear(&said), (said.len(), Heard::Granted));
    assert_eq!(requester.hear(&said), (0, Heard::Failed(Fault::Protocol)));
}

proptest! {
    /// Nothing that a proxy sends is more than a message to keep, and none of it panics.
    #[test]
    fn garbage_is_taken_calmly(
        password: bool,
        convert: bool,
        parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..8),
    ) {
        let protocol = if convert { Protocol::Convert } else { Protocol::Socks5 };
        let mut requester = Requester::new(protocol, to("198.51.100.7:443"), password);
        for part in parts {
            let (taken, heard) = requester.hear(&part);
            prop_assert!(taken <= part.len());
            prop_assert!(requester.memory() <= 4096);
            if heard != Heard::More {
                break;
            }
        }
    }
}

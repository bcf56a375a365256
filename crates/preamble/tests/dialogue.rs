//! Dialogues as clients have them: at once, byte by byte, wrong ones, and what follows them.
#![forbid(unsafe_code)]

use std::net::SocketAddr;

use flexcp_preamble::{Cookie, Dialogue, Fault, Gate, Protocol, Refusal, Target, Turn, Wish};
use proptest::prelude::*;

/// Base Connect for 10.55.9.9:80, as Tessares' libconvert sends it.
const BASE: &[u8] = &[
    1, 6, 0x22, 0x63, 10, 5, 0, 80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 55, 9, 9,
];

/// What curl says with `--socks5-hostname` and `--proxy-user me:secret`, message by message.
const GREETING: &[u8] = &[5, 3, 0, 1, 2];
const CREDENTIALS: &[u8] = b"\x01\x02me\x06secret";
const REQUEST: &[u8] = b"\x05\x01\x00\x03\x0bexample.org\x00\x50";

#[derive(Clone, Copy, Default)]
struct Door {
    password: bool,
    cookie: Option<&'static [u8]>,
    hands_out: bool,
}

impl Gate for Door {
    fn asks_password(&self) -> bool {
        self.password
    }

    fn knows(&self, user: &[u8], password: &[u8]) -> bool {
        (user, password) == (b"me", b"secret")
    }

    fn judge_cookie(&self, cookie: Option<&[u8]>) -> Cookie {
        match (self.cookie, cookie) {
            (None, _) => Cookie::Right,
            (Some(right), Some(cookie)) if right == cookie => Cookie::Right,
            (Some(next), None) if self.hands_out => Cookie::Missing(next.into()),
            _ => Cookie::Wrong,
        }
    }
}

/// What a dialogue comes to: its last turn, what was said, and what is left for the stream.
fn had(protocol: Protocol, door: Door, pieces: &[&[u8]]) -> (Dialogue, Turn, Vec<u8>, Vec<u8>) {
    let mut dialogue = Dialogue::new(protocol);
    let (mut said, mut left, mut last) = (vec![], vec![], Turn::Listen);
    for piece in pieces {
        let (taken, turn) = dialogue.hear(piece, &door, &mut said);
        left.extend_from_slice(&piece[taken..]);
        if turn != Turn::Listen {
            assert_eq!(last, Turn::Listen, "one turn is the last");
            last = turn;
        }
    }
    (dialogue, last, said, left)
}

fn address(text: &str, port: u16) -> Turn {
    Turn::Connect(Wish {
        to: Target::Ip(text.parse().unwrap()),
        port,
    })
}

/// The answer to a wish that is granted.
fn granted(dialogue: &Dialogue) -> Vec<u8> {
    let mut said = vec![];
    let from: SocketAddr = "192.0.2.7:40000".parse().unwrap();
    dialogue.grant(from, &[2, 4, 5, 0xb4, 4, 2, 1, 1], &mut said);
    said
}

fn refused(dialogue: &mut Dialogue, why: Refusal) -> Vec<u8> {
    let mut said = vec![];
    dialogue.refuse(why, &mut said);
    said
}

/// A Convert message of these TLVs.
fn message(tlvs: &[&[u8]]) -> Vec<u8> {
    let tlvs = tlvs.concat();
    let words = u8::try_from(1 + tlvs.len() / 4).unwrap();
    [&[1, words, 0x22, 0x63], &tlvs[..]].concat()
}

fn converts(bytes: &[u8]) -> (Turn, Vec<u8>) {
    let (_, turn, said, _) = had(Protocol::Convert, Door::default(), &[bytes]);
    (turn, said)
}

#[test]
fn connect_of_libconvert_is_wished_and_granted() {
    let stream = [BASE, b"GET /"].concat();
    let (dialogue, turn, said, left) = had(Protocol::Convert, Door::default(), &[&stream]);
    assert_eq!(turn, address("10.55.9.9", 80));
    assert_eq!((&said[..], &left[..]), (&b""[..], &b"GET /"[..]));
    assert_eq!(
        granted(&dialogue),
        [1, 1, 0x22, 0x63],
        "it takes a bare header"
    );
}

#[test]
fn client_that_asks_is_told_extensions_and_options() {
    let asks = message(&[&[1, 1, 0, 0], &BASE[4..]]);
    let (dialogue, turn, ..) = had(Protocol::Convert, Door::default(), &[&asks]);
    assert_eq!(turn, address("10.55.9.9", 80));
    let told = [1, 3, 0x22, 0x63, 21, 2, 0, 0, 4, 8, 30, 0];
    assert_eq!(granted(&dialogue), told);
    let mut connect = BASE[4..].to_vec();
    connect[1] = 7;
    connect.extend([2, 4, 1, 1, 8, 2, 4, 2]);
    let (dialogue, turn, ..) = had(Protocol::Convert, Door::default(), &[&message(&[&connect])]);
    assert_eq!(turn, address("10.55.9.9", 80));
    let told = [1, 4, 0x22, 0x63, 20, 3, 0, 0, 2, 4, 5, 0xb4, 4, 2, 1, 1];
    assert_eq!(granted(&dialogue), told);
    // Who asks for nothing else is told, and that is all.
    let (turn, said) = converts(&message(&[&[1, 1, 0, 0]]));
    assert_eq!(
        (turn, &said[..]),
        (
            Turn::Told,
            &[1, 3, 0x22, 0x63, 21, 2, 0, 0, 4, 8, 30, 0][..]
        )
    );
}

#[test]
fn messages_that_are_wrong_are_answered_with_an_error() {
    let error = |code: u8, value: &[u8]| {
        message(&[&[
            &[30, u8::try_from(1 + value.len() / 4).unwrap(), code],
            value,
        ]
        .concat()])
    };
    let (turn, said) = converts(&[2, 6, 0x22, 0x63]);
    assert_eq!((turn, said), (Turn::Close(Fault::Protocol), error(0, &[1])));
    let twice = message(&[&[1, 1, 0, 0], &[1, 1, 0, 0]]);
    let (turn, said) = converts(&twice);
    let echo = [&[0], &twice[..]].concat();
    assert_eq!(
        (turn, said),
        (Turn::Close(Fault::Malformed), error(1, &echo))
    );
    let unknown = message(&[&[99, 1, 0, 0]]);
    let (turn, said) = converts(&unknown);
    let echo = [&[0], &unknown[..]].concat();
    assert_eq!(
        (turn, said),
        (Turn::Close(Fault::Unsupported), error(2, &echo))
    );
    for only_a_converter_says in [&[20, 1, 0, 0][..], &[21, 1, 0, 0], &[30, 1, 32, 0]] {
        let (turn, _) = converts(&message(&[&BASE[4..], only_a_converter_says]));
        assert_eq!(turn, Turn::Close(Fault::Malformed));
    }
    let (turn, _) = converts(&message(&[]));
    assert_eq!(turn, Turn::Close(Fault::Malformed), "nothing is asked for");
    for no_message in [&b"GET /"[..], &[1, 0, 0x22, 0x63]] {
        assert_eq!(converts(no_message), (Turn::Reset(Fault::Protocol), vec![]));
    }
}

#[test]
fn options_that_no_server_can_be_sent_are_named() {
    let mut connect = BASE[4..].to_vec();
    connect[1] = 8;
    // AO, fast open, MPTCP, and timestamps of the client's own.
    connect.extend([29, 2, 34, 2, 30, 2, 8, 4, 0, 0, 4, 2]);
    let (turn, said) = converts(&message(&[&connect]));
    assert_eq!(turn, Turn::Close(Fault::Unsupported));
    assert_eq!(said, message(&[&[30, 2, 33, 29, 34, 30, 8, 0]]));
}

#[test]
fn cookies_are_asked_for_handed_out_and_judged() {
    let door = |hands_out| Door {
        cookie: Some(b"12345678"),
        hands_out,
        ..Door::default()
    };
    let with = |cookie: &[u8; 8]| message(&[&BASE[4..], &[22, 3, 0, 0], cookie]);
    let judged = |door, bytes: &[u8]| {
        let (_, turn, said, _) = had(Protocol::Convert, door, &[bytes]);
        (turn, said)
    };
    assert_eq!(
        judged(door(true), &with(b"12345678")).0,
        address("10.55.9.9", 80)
    );
    let not_authorized = message(&[&[30, 1, 32, 0]]);
    let refused = (Turn::Close(Fault::Credentials), not_authorized);
    assert_eq!(judged(door(true), &with(b"87654321")), refused);
    assert_eq!(judged(door(false), BASE), refused);
    let missing = message(&[&[30, 3, 3, 0], b"12345678"]);
    assert_eq!(
        judged(door(true), BASE),
        (Turn::Close(Fault::Credentials), missing)
    );
}

#[test]
fn refusals_have_the_codes_of_convert() {
    for (why, code, value) in [
        (Refusal::NotAllowed, 32, 0),
        (Refusal::ClientLimit, 64, 0),
        (Refusal::NoRoom(60), 64, 60),
        (Refusal::NoNetwork, 65, 0),
        (Refusal::NoName, 65, 0),
        (Refusal::Expired, 65, 0),
        (Refusal::Reset, 96, 0),
        (
            Refusal::Unreachable {
                code: 10,
                is_v6: false,
            },
            97,
            10,
        ),
    ] {
        let (mut dialogue, ..) = had(Protocol::Convert, Door::default(), &[BASE]);
        let said = refused(&mut dialogue, why);
        assert_eq!(said, message(&[&[30, 1, code, value]]), "{why:?}");
        assert_eq!(refused(&mut dialogue, why), [0; 0], "once");
        assert_eq!(granted(&dialogue), [0; 0]);
    }
}

#[test]
fn dialogue_of_curl_is_had() {
    let door = Door {
        password: true,
        ..Door::default()
    };
    let pieces: [&[u8]; 3] = [GREETING, CREDENTIALS, REQUEST];
    let (dialogue, turn, said, left) = had(Protocol::Socks5, door, &pieces);
    let wish = Wish {
        to: Target::Name((*b"example.org").into()),
        port: 80,
    };
    assert_eq!(turn, Turn::Connect(wish));
    assert_eq!((&said[..], left.len()), (&[5, 2, 1, 0][..], 0));
    assert_eq!(granted(&dialogue), [5, 0, 0, 1, 192, 0, 2, 7, 0x9c, 0x40]);
    let shown = format!("{dialogue:?}");
    assert!(!shown.contains("secret"), "{shown}");
}

#[test]
fn clients_of_socks_are_refused_with_the_code_that_fits() {
    let open = Door::default();
    let door = Door {
        password: true,
        ..open
    };
    let closes = |door, pieces: &[&[u8]], fault, last: &[u8]| {
        let (_, turn, said, _) = had(Protocol::Socks5, door, pieces);
        assert_eq!(turn, Turn::Close(fault), "{pieces:?}");
        assert!(said.ends_with(last), "{said:?}");
    };
    closes(door, &[&[5, 2, 0, 1]], Fault::Method, &[5, 0xff]);
    closes(open, &[&[5, 1, 2]], Fault::Method, &[5, 0xff]);
    closes(open, &[&[5, 0]], Fault::Method, &[5, 0xff]);
    let wrong: [&[u8]; 2] = [GREETING, b"\x01\x02me\x05wrong"];
    closes(door, &wrong, Fault::Credentials, &[1, 1]);
    let asks = |request: &[u8], fault, code| {
        let last = [5, code, 0, 1, 0, 0, 0, 0, 0, 0];
        closes(open, &[&[5, 1, 0], request], fault, &last);
    };
    asks(&[5, 2, 0, 1, 192, 0, 2, 1, 0, 80], Fault::Unsupported, 7);
    asks(&[5, 3, 0, 1, 192, 0, 2, 1, 0, 80], Fault::Unsupported, 7);
    asks(&[5, 1, 0, 2, 0], Fault::Unsupported, 8);
    asks(&[5, 1, 0, 3, 0, 0, 80], Fault::Malformed, 1);
    asks(&[5, 1, 0, 1, 192, 0, 2, 1, 0, 0], Fault::Malformed, 1);
    for other in [&b"GET /"[..], &[4, 1, 0, 80]] {
        let (_, turn, said, _) = had(Protocol::Socks5, open, &[other]);
        assert_eq!((turn, said), (Turn::Reset(Fault::Protocol), vec![]));
    }
}

#[test]
fn refusals_have_the_codes_of_socks() {
    let unreachable = |code, is_v6| Refusal::Unreachable { code, is_v6 };
    for (why, code) in [
        (Refusal::NotAllowed, 2),
        (Refusal::ClientLimit, 2),
        (Refusal::NoRoom(60), 1),
        (Refusal::NoNetwork, 3),
        (Refusal::NoName, 4),
        (Refusal::Expired, 6),
        (Refusal::Reset, 5),
        (unreachable(0, false), 3),
        (unreachable(1, false), 4),
        (unreachable(3, false), 5),
        (unreachable(13, false), 2),
        (unreachable(0, true), 3),
        (unreachable(1, true), 2),
        (unreachable(3, true), 4),
        (unreachable(4, true), 5),
    ] {
        let (mut dialogue, ..) = had(Protocol::Socks5, Door::default(), &[&[5, 1, 0], REQUEST]);
        let said = refused(&mut dialogue, why);
        assert_eq!(said, [5, code, 0, 1, 0, 0, 0, 0, 0, 0], "{why:?}");
    }
}

#[test]
fn nothing_is_answered_before_there_is_a_wish() {
    let (mut dialogue, ..) = had(Protocol::Convert, Door::default(), &[&BASE[..9]]);
    assert_eq!(granted(&dialogue), [0; 0]);
    assert_eq!(refused(&mut dialogue, Refusal::Reset), [0; 0]);
    assert!(dialogue.memory() <= 1024, "one message at most is kept");
}

/// Streams of both protocols that say everything, with data behind.
fn whole() -> impl Strategy<Value = (Protocol, Vec<u8>)> {
    let socks = [GREETING, CREDENTIALS, REQUEST, b"data"].concat();
    let extended = {
        let mut connect = BASE[4..].to_vec();
        connect[1] = 6;
        connect.extend([29, 2, 0, 0]);
        message(&[&connect])
    };
    prop_oneof![
        Just((Protocol::Convert, [BASE, b"data"].concat())),
        Just((Protocol::Convert, extended)),
        Just((Protocol::Socks5, socks)),
        prop::collection::vec(any::<u8>(), 0..40)
            .prop_map(|tail| (Protocol::Socks5, [&[5, 1, 2], CREDENTIALS, &tail].concat())),
        prop::collection::vec(any::<u8>(), 0..40)
            .prop_map(|tail| (Protocol::Convert, [&[1, 5, 0x22, 0x63], &tail[..]].concat())),
        prop::collection::vec(any::<u8>(), 0..40).prop_map(|bytes| (Protocol::Socks5, bytes)),
    ]
}

proptest! {
    /// However a stream is cut, the same is wished, said and left.
    #[test]
    fn cuts_make_no_difference(
        (protocol, stream) in whole(),
        cuts in prop::collection::vec(0_usize..80, 0..80),
    ) {
        let door = Door { password: protocol == Protocol::Socks5, ..Door::default() };
        let (_, turn, said, left) = had(protocol, door, &[&stream]);
        let mut cuts: Vec<_> = cuts.into_iter().filter(|cut| *cut <= stream.len()).collect();
        cuts.extend([0, stream.len()]);
        cuts.sort_unstable();
        let pieces: Vec<_> = cuts.windows(2).map(|pair| &stream[pair[0]..pair[1]]).collect();
        let (dialogue, again, said_again, left_again) = had(protocol, door, &pieces);
        prop_assert_eq!(&again, &turn);
        prop_assert!(dialogue.memory() <= 2048);
        prop_assert_eq!(said_again, said);
        // What follows an end is nobody's.
        if matches!(turn, Turn::Connect(_)) {
            prop_assert_eq!(left_again, left);
        }
    }
}

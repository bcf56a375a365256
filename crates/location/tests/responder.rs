//! Who is answered by a responder, and with how much.

use std::net::SocketAddr;
use std::time::Duration;

use flexcp_location::probe::{Cookie, Header, Key, LONGEST, LegState, Message, Place, open, seal};
use flexcp_location::{
    Allowed, Answered, Leg, Rate, Refusal, Responder, ResponderConfig, Shape, Time,
};

const HEADERS: usize = 28;

fn key() -> Key {
    Key::new(&[1; 32]).unwrap()
}

fn home(port: u16) -> SocketAddr {
    SocketAddr::from(([198, 51, 100, 7], port))
}

fn content() -> SocketAddr {
    SocketAddr::from(([203, 0, 113, 9], 443))
}

struct Scene {
    responder: Responder,
    now: Time,
}

impl Scene {
    fn new() -> Self {
        Self::with(|_| {})
    }

    fn with(change: impl Fn(&mut ResponderConfig)) -> Self {
        let mut config = ResponderConfig {
            keys: vec![Key::new(&[2; 32]).unwrap(), key()],
            content: vec![Allowed {
                address: content().ip(),
                bits: 32,
                port: None,
            }],
            ..ResponderConfig::default()
        };
        change(&mut config);
        Self {
            responder: Responder::new(config, [3; 32]),
            now: Time::from_secs(100),
        }
    }

    fn say(&mut self, from: SocketAddr, datagram: &[u8]) -> Result<Answered, Refusal> {
        self.responder
            .handle_datagram(from, datagram, self.now, self.now)
    }

    fn answers(&mut self) -> Vec<(SocketAddr, usize, Header, Message)> {
        let mut out = [0; LONGEST];
        let mut answers = Vec::new();
        while let Some((to, length)) = self.responder.poll_transmit(&mut out) {
            let (header, message) = open(&key(), &out[..length]).unwrap();
            answers.push((to, length, header, message));
        }
        answers
    }

    /// Says hello, and has the header for what follows.
    fn greet(&mut self, from: SocketAddr, session: u64) -> Header {
        self.answers();
        assert_eq!(self.say(from, &hello(session)), Ok(Answered::Yes));
        let answers = self.answers();
        let [(to, length, header, Message::Challenge { .. })] = answers[..] else {
            panic!("{answers:?}");
        };
        assert_eq!((to, header.session), (from, session));
        assert!(length <= hello(session).len());
        header
    }
}

fn sealed(header: &Header, message: &Message, length: usize) -> Vec<u8> {
    let mut out = [0; LONGEST];
    let length = seal(&key(), header, message, length, &mut out).unwrap();
    out[..length].to_vec()
}

fn hello(session: u64) -> Vec<u8> {
    let header = Header {
        session,
        sequence: 0,
        cookie: Cookie::default(),
    };
    sealed(&header, &Message::Hello, 0)
}

fn echo(header: &Header, sequence: u32) -> Vec<u8> {
    sealed(
        &Header {
            sequence,
            ..*header
        },
        &Message::Echo,
        0,
    )
}

#[test]
fn an_echo_is_answered_once() {
    let mut scene = Scene::new();
    let header = scene.greet(home(1), 5);
    let question = echo(&header, 1);
    assert_eq!(scene.say(home(1), &question), Ok(Answered::Yes));
    let answers = scene.answers();
    assert_eq!(answers.len(), 1);
    assert_eq!((answers[0].0, answers[0].1), (home(1), question.len()));
    assert_eq!(
        (answers[0].2.sequence, answers[0].3),
        (1, Message::EchoReply)
    );
    assert_eq!(scene.say(home(1), &question), Err(Refusal::Replay));
    assert_eq!(scene.answers(), []);
}

#[test]
fn nothing_goes_to_who_has_no_key() {
    let mut scene = Scene::new();
    let mut stranger = hello(5);
    *stranger.last_mut().unwrap() ^= 1;
    assert!(matches!(
        scene.say(home(1), &stranger),
        Err(Refusal::Malformed(_))
    ));
    assert!(matches!(
        scene.say(home(1), &[0; 60]),
        Err(Refusal::Malformed(_))
    ));
    assert!(matches!(
        scene.say(home(1), &[]),
        Err(Refusal::Malformed(_))
    ));
    let header = scene.greet(home(1), 5);
    let answer = sealed(&header, &Message::EchoReply, 0);
    assert_eq!(scene.say(home(1), &answer), Err(Refusal::NotAQuestion));
    assert_eq!(scene.answers(), []);
    assert_eq!(scene.responder.counters().malformed, 4);
}

#[test]
fn what_was_heard_of_others_is_refused_from_another_address() {
    let mut scene = Scene::new();
    let header = scene.greet(home(1), 5);
    assert_eq!(scene.say(home(2), &echo(&header, 1)), Err(Refusal::Cookie));
    let other = SocketAddr::from(([198, 51, 100, 8], 1));
    assert_eq!(scene.say(other, &echo(&header, 1)), Err(Refusal::Cookie));
    assert_eq!(scene.say(home(1), &hello(5)), Err(Refusal::Replay));
    assert_eq!(scene.say(other, &hello(5)), Err(Refusal::Replay));
    assert_eq!(scene.answers(), []);
}

#[test]
fn an_older_session_of_an_address_is_over() {
    let mut scene = Scene::new();
    let old = scene.greet(home(1), 5);
    assert!(scene.say(home(1), &echo(&old, 1)).is_ok());
    scene.now = scene.now + Duration::from_secs(1);
    let new = scene.greet(home(1), 4);
    assert!(
        scene.say(home(1), &echo(&old, 2)).is_ok(),
        "until the new one is used"
    );
    assert!(scene.say(home(1), &echo(&new, 1)).is_ok());
    // What the old one has said is not known any more, so nothing of it is taken.
    assert_eq!(scene.say(home(1), &echo(&old, 1)), Err(Refusal::Cookie));
    assert_eq!(scene.say(home(1), &echo(&old, 3)), Err(Refusal::Cookie));
}

#[test]
fn a_cookie_ends_and_another_run_knows_none_of_them() {
    let mut scene = Scene::new();
    let header = scene.greet(home(1), 5);
    scene.now = scene.now + ResponderConfig::REMEMBERED_FOR;
    assert!(scene.say(home(1), &echo(&header, 1)).is_ok());
    scene.now = scene.now + Duration::from_millis(1);
    assert_eq!(scene.say(home(1), &echo(&header, 2)), Err(Refusal::Cookie));
    let mut scene = Scene::new();
    let header = scene.greet(home(1), 5);
    let config = ResponderConfig {
        keys: vec![key()],
        ..ResponderConfig::default()
    };
    scene.responder = Responder::new(config, [4; 32]);
    assert_eq!(scene.say(home(1), &echo(&header, 1)), Err(Refusal::Cookie));
}

#[test]
fn sessions_are_bounded_and_none_is_forgotten_before_its_cookie_ends() {
    let mut scene = Scene::with(|config| config.sessions = 2);
    let headers = [1, 2, 3].map(|port| scene.greet(home(port), port.into()));
    assert!(scene.say(home(1), &echo(&headers[0], 1)).is_ok());
    assert!(scene.say(home(2), &echo(&headers[1], 1)).is_ok());
    assert_eq!(
        scene.say(home(3), &echo(&headers[2], 1)),
        Err(Refusal::NoRoom)
    );
    assert_eq!(
        scene.say(home(1), &echo(&headers[0], 1)),
        Err(Refusal::Replay)
    );
    assert_eq!(scene.responder.sessions(), 2);
    scene.now = scene.now + ResponderConfig::REMEMBERED_FOR + Duration::from_secs(1);
    let header = scene.greet(home(3), 33);
    assert!(scene.say(home(3), &echo(&header, 1)).is_ok());
    assert_eq!(scene.responder.sessions(), 1);
}

#[test]
fn hellos_are_limited_in_time() {
    let mut scene = Scene::with(|config| config.hellos_per_second = 5);
    let answered = |scene: &mut Scene, sessions: std::ops::Range<u64>| {
        sessions
            .filter(|&session| {
                let said = scene.say(home(1), &hello(session)).is_ok();
                scene.answers();
                said
            })
            .count()
    };
    assert_eq!(answered(&mut scene, 0..100), 10);
    scene.now = scene.now + Duration::from_secs(1);
    assert_eq!(answered(&mut scene, 200..300), 5);
    assert_eq!(scene.responder.counters().limited, 185);
}

/// A train of `count` packets of 1200 bytes, a millisecond apart, of which some are lost; and a turn that asks for `wanted`.
fn train(scene: &mut Scene, header: &Header, count: u16, lost: u16, wanted: u16) -> usize {
    let mut bytes = 0;
    for index in 0..count {
        let place = Place {
            train: 1,
            index,
            count,
        };
        let sequence = u32::from(index) + 1;
        let packet = sealed(
            &Header {
                sequence,
                ..*header
            },
            &Message::Up(place),
            1200,
        );
        scene.now = scene.now + Duration::from_millis(1);
        if index >= lost {
            assert_eq!(scene.say(home(1), &packet), Ok(Answered::Noted));
            bytes += packet.len() + HEADERS;
        }
    }
    let turn = Message::Turn {
        train: 1,
        count: wanted,
        size: 1200,
    };
    let turn = sealed(
        &Header {
            sequence: 1000,
            ..*header
        },
        &turn,
        0,
    );
    assert_eq!(scene.say(home(1), &turn), Ok(Answered::Yes));
    bytes + turn.len() + HEADERS
}

#[test]
fn a_train_is_reported_and_pays_for_one_down() {
    let mut scene = Scene::new();
    let header = scene.greet(home(1), 5);
    let bytes = train(&mut scene, &header, 40, 0, 40);
    let answers = scene.answers();
    let sent: usize = answers.iter().map(|answer| answer.1 + HEADERS).sum();
    assert_eq!(sent, bytes);
    let Message::Report {
        train: 1,
        received: 40,
        coming: 40,
        seen: Some(seen),
    } = answers[0].3
    else {
        panic!("{:?}", answers[0]);
    };
    // 1228 bytes each millisecond.
    assert_eq!((seen.rate, seen.shape), (Rate(9_824_000), Shape::Flat));
    let places: Vec<u16> = answers[1..]
        .iter()
        .map(|answer| match answer.3 {
            Message::Down(place) => {
                assert_eq!((place.train, place.count, answer.1), (1, 40, 1200));
                place.index
            }
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(places, (0..40).collect::<Vec<u16>>());
}

#[test]
fn no_more_comes_down_than_has_come_up() {
    let mut scene = Scene::new();
    let header = scene.greet(home(1), 5);
    let bytes = train(&mut scene, &header, 40, 15, 128);
    let answers = scene.answers();
    let sent: usize = answers.iter().map(|answer| answer.1 + HEADERS).sum();
    assert!(sent <= bytes, "{sent} of {bytes}");
    assert_eq!(answers.len(), 1 + 25);
    // A turn without a train has a report that it pays for itself, and nothing more.
    let turn = Message::Turn {
        train: 2,
        count: 128,
        size: 100,
    };
    let turn = sealed(
        &Header {
            sequence: 1001,
            ..header
        },
        &turn,
        0,
    );
    assert!(scene.say(home(1), &turn).is_ok());
    let answers = scene.answers();
    assert_eq!(answers.len(), 1);
    assert!(matches!(
        answers[0].3,
        Message::Report {
            received: 0,
            coming: 0,
            seen: None,
            ..
        }
    ));
}

#[test]
fn bytes_out_are_limited_in_time() {
    let mut scene = Scene::with(|config| config.bytes_per_second = 10_000);
    let header = scene.greet(home(1), 5);
    train(&mut scene, &header, 40, 0, 40);
    let answers = scene.answers();
    assert!(matches!(
        answers[..],
        [(
            _,
            _,
            _,
            Message::Report {
                received: 40,
                coming: 0,
                ..
            }
        )]
    ));
}

#[test]
fn a_leg_is_asked_for_measured_and_told() {
    let mut scene = Scene::new();
    let header = scene.greet(home(1), 5);
    let question = |sequence, to| sealed(&Header { sequence, ..header }, &Message::Leg(to), 0);
    assert!(scene.say(home(1), &question(1, content())).is_ok());
    assert_eq!(scene.answers()[0].3, Message::LegReply(LegState::Pending));
    let now = scene.now;
    assert_eq!(scene.responder.poll_leg(now), Some(content()));
    assert_eq!(scene.responder.poll_leg(now), None);
    let leg = Leg {
        rate: Some(Rate::from_kbit(56_310)),
        delay: Some(Duration::from_micros(27_500)),
    };
    scene.responder.leg_measured(content(), leg, now);
    scene.now = now + Duration::from_secs(2);
    assert!(scene.say(home(1), &question(2, content())).is_ok());
    let age = Duration::from_secs(2);
    let known = Message::LegReply(LegState::Known { leg, age });
    assert_eq!(scene.answers()[0].3, known);
    // Nobody has the server connect to where he likes.
    let other = SocketAddr::from(([203, 0, 113, 10], 443));
    assert!(scene.say(home(1), &question(3, other)).is_ok());
    assert_eq!(scene.answers()[0].3, Message::LegReply(LegState::Refused));
    assert_eq!(scene.responder.poll_leg(scene.now), None);
}

/// Whatever comes, true or damaged, old or new, from whomever: to no address go more bytes than came from there.
#[test]
fn to_no_address_go_more_bytes_than_have_come_from_there() {
    use std::collections::HashMap;
    let (mut state, mut said) = (9_u64, 0_u32);
    let mut next = move |end: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % end
    };
    let mut scene = Scene::with(|config| config.hellos_per_second = 1000);
    let mut headers: Vec<Header> = Vec::new();
    let mut heard: Vec<Vec<u8>> = Vec::new();
    let mut downs = 0;
    let mut balance: HashMap<SocketAddr, (usize, usize)> = HashMap::new();
    for step in 0..40_000_u64 {
        said += 1;
        scene.now = scene.now + Duration::from_micros(next(3000));
        let from = home(u16::try_from(next(3)).unwrap() + 1);
        let header = match headers.len() as u64 {
            0 => Header {
                session: step,
                sequence: 0,
                cookie: Cookie::default(),
            },
            count => Header {
                sequence: said,
                ..headers[usize::try_from(next(count)).unwrap()]
            },
        };
        let message = match next(12) {
            0 => Message::Hello,
            1 | 2 => Message::Echo,
            3 => Message::Leg(content()),
            4 => Message::Turn {
                train: 1,
                count: 128,
                size: u16::try_from(next(2000)).unwrap(),
            },
            _ => Message::Up(Place {
                train: 1,
                index: 3,
                count: 4,
            }),
        };
        let mut datagram = match next(10) {
            0 if !heard.is_empty() => {
                heard[usize::try_from(next(heard.len() as u64)).unwrap()].clone()
            }
            1 => hello(step),
            _ => sealed(&header, &message, usize::try_from(next(1400)).unwrap()),
        };
        if next(20) == 0 {
            let at = usize::try_from(next(datagram.len() as u64)).unwrap();
            datagram[at] ^= 1;
        }
        balance.entry(from).or_default().0 += datagram.len() + HEADERS;
        let _ = scene.say(from, &datagram);
        heard.push(datagram);
        for (to, length, header, message) in scene.answers() {
            let account = balance.entry(to).or_default();
            account.1 += length + HEADERS;
            assert!(account.1 <= account.0, "step {step}: {account:?}");
            if let Message::Challenge { .. } = message {
                headers.push(header);
            }
            downs += usize::from(matches!(message, Message::Down(_)));
        }
        while headers.len() > 6 {
            headers.remove(0);
        }
    }
    assert!(downs > 1000, "{downs} packets of trains down");
    let counters = scene.responder.counters();
    println!("{counters:?}");
    assert!(counters.sent > 3000 && counters.replays > 100 && counters.cookies > 100);
    let out: usize = balance.values().map(|account| account.1).sum();
    assert_eq!(out as u64, counters.bytes_out);
}

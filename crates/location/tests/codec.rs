//! The probe protocol's datagrams: there and back, and what is refused.

use std::net::SocketAddr;
use std::time::Duration;

use flexcp_location::probe::{
    Cookie, Header, Key, LONGEST, LegState, Malformed, Message, Place, SHORTEST, ShortSecret,
    key_of, open, seal,
};
use flexcp_location::{Dispersion, Leg, Rate, Shape};

fn key() -> Key {
    Key::new(b"a secret of more than 16 bytes").unwrap()
}

fn header() -> Header {
    Header {
        session: 0x0102_0304_0506_0708,
        sequence: 0xa1a2_a3a4,
        cookie: Cookie([7; 16]),
    }
}

fn messages() -> Vec<Message> {
    let place = Place {
        train: 3,
        index: 127,
        count: 128,
    };
    let seen = |shape, quarters| {
        Some(Dispersion {
            rate: Rate(12_345_678_901),
            shape,
            quarters,
        })
    };
    let report = |seen| Message::Report {
        train: 9,
        received: 100,
        coming: 99,
        seen,
    };
    let known = |rate, delay| {
        Message::LegReply(LegState::Known {
            leg: Leg { rate, delay },
            age: Duration::from_millis(4_000_000_000),
        })
    };
    let (rate, delay) = (Some(Rate(56_310_000)), Some(Duration::from_micros(27_500)));
    vec![
        Message::Hello,
        Message::Challenge {
            lifetime: Duration::from_secs(600),
        },
        Message::Echo,
        Message::EchoReply,
        Message::Up(place),
        Message::Turn {
            train: 65_535,
            count: 128,
            size: 1200,
        },
        report(None),
        report(seen(Shape::Flat, 3)),
        report(seen(Shape::Knee, 1)),
        Message::Down(place),
        Message::Leg(SocketAddr::from(([203, 0, 113, 9], 443))),
        Message::Leg("[2001:db8::1]:8443".parse().unwrap()),
        Message::LegReply(LegState::Pending),
        Message::LegReply(LegState::Refused),
        known(rate, delay),
        known(None, delay),
        known(rate, None),
        known(None, None),
    ]
}

fn sealed(message: &Message, length: usize) -> Vec<u8> {
    let mut out = [0xee; LONGEST];
    let length = seal(&key(), &header(), message, length, &mut out).unwrap();
    out[..length].to_vec()
}

#[test]
fn every_message_comes_back_as_it_was() {
    for message in messages() {
        for length in [0, 100, LONGEST] {
            let datagram = sealed(&message, length);
            assert_eq!(datagram.len(), length.max(message.shortest()));
            assert_eq!(key_of(&datagram), Ok(key().id()));
            assert_eq!(open(&key(), &datagram), Ok((header(), message)));
        }
    }
}

#[test]
fn the_bytes_of_an_echo_are_those_of_the_format() {
    let datagram = sealed(&Message::Echo, 0);
    assert_eq!(datagram.len(), SHORTEST);
    assert_eq!(datagram[..8], [b'P', b'L', b'S', 1, 3, 0, 0, 56]);
    assert_eq!(datagram[8..12], key().id().to_be_bytes());
    assert_eq!(datagram[12..16], [0xa1, 0xa2, 0xa3, 0xa4]);
    assert_eq!(datagram[16..24], [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(datagram[24..40], [7; 16]);
}

/// RFC 4231, test case 2, shows that the primitive is HMAC-SHA-256; here that the tag is its first 16 bytes over all before it.
#[test]
fn the_tag_is_an_hmac_over_all_before_it() {
    use hmac::{Hmac, KeyInit, Mac};
    let datagram = sealed(&Message::Hello, 0);
    let (said, tag) = datagram.split_at(datagram.len() - 16);
    let mut mac = Hmac::<sha2::Sha256>::new_from_slice(b"a secret of more than 16 bytes").unwrap();
    mac.update(said);
    let whole: [u8; 32] = mac.finalize().into_bytes().into();
    assert_eq!(tag, &whole[..16]);
}

#[test]
fn every_truncation_is_refused() {
    for message in messages() {
        let datagram = sealed(&message, 0);
        for length in 0..datagram.len() {
            let cut = open(&key(), &datagram[..length]);
            assert_eq!(cut, Err(Malformed::Length(length)), "{message:?}");
        }
        let mut longer = datagram.clone();
        longer.push(0);
        assert_eq!(open(&key(), &longer), Err(Malformed::Length(longer.len())));
    }
}

#[test]
fn every_bit_flip_is_refused() {
    for message in messages() {
        let datagram = sealed(&message, 0);
        for bit in 0..datagram.len() * 8 {
            let mut flipped = datagram.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(open(&key(), &flipped).is_err(), "{message:?}: bit {bit}");
        }
    }
}

#[test]
fn another_key_opens_nothing() {
    let datagram = sealed(&Message::Hello, 0);
    let other = Key::new(b"another secret of 16 bytes").unwrap();
    assert_eq!(open(&other, &datagram), Err(Malformed::Key));
    assert_eq!(Key::new(&[1; 15]).unwrap_err(), ShortSecret(15));
    assert!(Key::new(&[1; 16]).is_ok());
    assert!(!format!("{other:?}").contains("another"));
}

#[test]
fn what_does_not_fit_is_not_written() {
    let message = Message::Hello;
    let mut small = [0; 59];
    assert_eq!(seal(&key(), &header(), &message, 0, &mut small), None);
    let mut large = [0; 2000];
    assert_eq!(
        seal(&key(), &header(), &message, LONGEST + 1, &mut large),
        None
    );
    assert_eq!(
        seal(&key(), &header(), &message, LONGEST, &mut large),
        Some(LONGEST)
    );
}

#[test]
fn an_answer_is_never_longer_than_its_question() {
    let pairs = [(1, 2), (3, 4), (7, 8), (11, 12)];
    let shortest = |kind: u8| {
        let of_kind = messages()
            .into_iter()
            .find(|message| sealed(message, 0)[4] == kind);
        of_kind.unwrap().shortest()
    };
    for (question, answer) in pairs {
        assert!(shortest(question) >= shortest(answer), "{question}");
    }
    for message in messages() {
        assert_eq!(message.is_question(), sealed(&message, 0)[4] % 2 == 1);
    }
}

/// A right tag over a wrong body: nobody but a holder of the key makes one, and it is refused all the same.
#[test]
fn random_bodies_with_a_right_tag_do_not_panic_and_come_back_equal() {
    use hmac::{Hmac, KeyInit, Mac};
    let (mut state, mut taken) = (1_u64, 0);
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    let template = sealed(&Message::Echo, 0);
    for round in 0..60_000_u32 {
        let length = SHORTEST + usize::from(next() % 40);
        let mut datagram: Vec<u8> = (0..length).map(|_| next() % 5).collect();
        if round % 3 > 0 {
            datagram[..12].copy_from_slice(&template[..12]);
            datagram[4] = next() % 14;
            datagram[6..8].copy_from_slice(&u16::try_from(length).unwrap().to_be_bytes());
        }
        if round % 3 > 1 {
            let said = length - 16;
            let mut mac =
                Hmac::<sha2::Sha256>::new_from_slice(b"a secret of more than 16 bytes").unwrap();
            mac.update(&datagram[..said]);
            let whole: [u8; 32] = mac.finalize().into_bytes().into();
            datagram[said..].copy_from_slice(&whole[..16]);
        }
        if let Ok((header, message)) = open(&key(), &datagram) {
            taken += 1;
            let mut again = vec![0; LONGEST];
            let length = seal(&key(), &header, &message, length, &mut again).unwrap();
            assert_eq!(open(&key(), &again[..length]), Ok((header, message)));
        }
    }
    assert!(taken > 1000, "{taken} of those with a right tag");
}

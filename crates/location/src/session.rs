//! One box as a responder sees it: the proof that it has its address, the window against replays, the account of bytes.

use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use subtle::ConstantTimeEq;

use crate::probe::{Cookie, Header, Key, Place};
use crate::time::Time;
use crate::train::{Arrival, MOST};

/// How long a cookie holds.
pub(crate) const LIFETIME: Duration = Duration::from_secs(600);

/// The cookie of a session: when it was issued, and a MAC over that, the box's address, its key and its session.
pub(crate) fn cookie(
    secret: &Key,
    issued: Time,
    from: &SocketAddr,
    (key, session): (u32, u64),
) -> Cookie {
    let ip = match from.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    let mac = secret.tag(&[
        b"cookie of PLS probes",
        &issued.0.to_be_bytes(),
        &ip.octets(),
        &from.port().to_be_bytes(),
        &key.to_be_bytes(),
        &session.to_be_bytes(),
    ]);
    let mut cookie = Cookie::default();
    cookie.0[..8].copy_from_slice(&issued.0.to_be_bytes());
    cookie.0[8..].copy_from_slice(&mac[..8]);
    cookie
}

/// When the header's cookie was issued, if that was to this address, for this key and this session.
pub(crate) fn issued(secret: &Key, key: u32, header: &Header, from: &SocketAddr) -> Option<Time> {
    let mut stamp = [0; 8];
    stamp.copy_from_slice(&header.cookie.0[..8]);
    let issued = Time(u64::from_be_bytes(stamp));
    let right = cookie(secret, issued, from, (key, header.session));
    bool::from(right.0.ct_eq(&header.cookie.0)).then_some(issued)
}

/// A box's session. It is remembered for as long as its cookie holds: were it forgotten before, what it had said could be said
/// again by others.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    pub(crate) number: u64,
    pub(crate) issued: Time,
    window: Window,
    /// Bytes that were received and not answered yet, with their headers.
    credit: usize,
    heard: Time,
    train: Option<Train>,
}

#[derive(Clone, Debug)]
struct Train {
    number: u16,
    arrivals: Vec<Arrival>,
}

/// Credit that is not used in this time is lost.
const CREDIT_HOLDS: Duration = Duration::from_secs(10);
/// Most credit: what the longest train and its turn bring.
const MOST_CREDIT: usize = (MOST as usize + 8) * 1600;

impl Session {
    pub(crate) const fn new(number: u64, issued: Time, now: Time) -> Self {
        Self {
            number,
            issued,
            window: Window::new(),
            credit: 0,
            heard: now,
            train: None,
        }
    }

    /// Whether the sequence number is a new one, which is not new any more then.
    pub(crate) const fn admit(&mut self, sequence: u32) -> bool {
        self.window.admit(sequence)
    }

    /// Takes note of bytes that have come.
    pub(crate) fn earn(&mut self, bytes: usize, now: Time) {
        if now.since(self.heard) > CREDIT_HOLDS {
            self.credit = 0;
        }
        self.heard = now;
        self.credit = (self.credit + bytes).min(MOST_CREDIT);
    }

    /// Pays for bytes that go out, if it can.
    pub(crate) const fn pay(&mut self, bytes: usize) -> bool {
        let can = bytes <= self.credit;
        if can {
            self.credit -= bytes;
        }
        can
    }

    /// Bytes that it can pay for.
    pub(crate) const fn credit(&self) -> usize {
        self.credit
    }

    /// How many packets of this size it can pay for.
    pub(crate) fn affords(&self, size: usize) -> u16 {
        u16::try_from(self.credit / size.max(1)).unwrap_or(u16::MAX)
    }

    /// A packet of a train has come.
    pub(crate) fn arrived(&mut self, place: &Place, arrival: Arrival) {
        let train = match &mut self.train {
            Some(train) if train.number == place.train => train,
            _ => self.train.insert(Train {
                number: place.train,
                arrivals: Vec::with_capacity(MOST.into()),
            }),
        };
        if train.arrivals.len() < MOST.into() {
            train.arrivals.push(arrival);
        }
    }

    /// What has come of a train, which is forgotten then.
    pub(crate) fn take_train(&mut self, number: u16) -> Vec<Arrival> {
        let train = self.train.take_if(|train| train.number == number);
        train.map(|train| train.arrivals).unwrap_or_default()
    }
}

/// Which sequence numbers have been seen: the highest, and which of the 128 up to it (as RFC 4303 section 3.4.3 does it).
#[derive(Clone, Copy, Debug)]
struct Window {
    highest: u32,
    /// Bit n is for the highest less n.
    seen: u128,
}

impl Window {
    const fn new() -> Self {
        Self {
            highest: 0,
            seen: 0,
        }
    }

    /// 0 is never new.
    const fn admit(&mut self, sequence: u32) -> bool {
        if sequence > self.highest {
            let ahead = sequence - self.highest;
            self.seen = if ahead < 128 { self.seen << ahead } else { 0 } | 1;
            self.highest = sequence;
            return true;
        }
        let behind = self.highest - sequence;
        if sequence == 0 || behind >= 128 || self.seen >> behind & 1 != 0 {
            return false;
        }
        self.seen |= 1 << behind;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_is_new_once() {
        let mut window = Window::new();
        for sequence in [1, 3, 2, 130, 129, 4, 5, 400] {
            assert!(window.admit(sequence), "{sequence}");
        }
        for sequence in [0, 1, 2, 3, 130, 129, 4, 5, 400, 272] {
            assert!(!window.admit(sequence), "{sequence}");
        }
        assert!(window.admit(273));
    }

    #[test]
    fn credit_is_bytes_received_and_is_lost_in_time() {
        let mut session = Session::new(1, Time::ZERO, Time::ZERO);
        session.earn(100, Time::ZERO);
        assert!(!session.pay(101));
        assert!(session.pay(60));
        assert!(!session.pay(41));
        session.earn(10, Time::from_secs(11));
        assert_eq!(session.credit, 10);
        session.earn(10 * MOST_CREDIT, Time::from_secs(11));
        assert_eq!(session.credit, MOST_CREDIT);
    }

    #[test]
    fn a_cookie_is_of_one_address_and_one_session() {
        let secret = Key::new(&[7; 32]).unwrap();
        let from = SocketAddr::from(([192, 0, 2, 1], 4000));
        let mut header = Header {
            session: 5,
            sequence: 1,
            cookie: cookie(&secret, Time(77), &from, (8, 5)),
        };
        assert_eq!(issued(&secret, 8, &header, &from), Some(Time(77)));
        let other = SocketAddr::from(([192, 0, 2, 1], 4001));
        assert_eq!(issued(&secret, 8, &header, &other), None);
        let other = SocketAddr::from(([192, 0, 2, 2], 4000));
        assert_eq!(issued(&secret, 8, &header, &other), None);
        assert_eq!(issued(&secret, 9, &header, &from), None);
        header.session = 6;
        assert_eq!(issued(&secret, 8, &header, &from), None);
        header.session = 5;
        header.cookie.0[7] ^= 1;
        assert_eq!(issued(&secret, 8, &header, &from), None);
    }
}

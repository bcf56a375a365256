//! One server over one uplink: what is known of it, and its session with the responder.

use core::time::Duration;

use crate::estimate::{Bandwidth, Delay, Estimate, Learned};
use crate::probe::{Cookie, Header};
use crate::rate::Rate;
use crate::round::{Findings, Round};
use crate::table::PathRow;
use crate::time::Time;
use crate::train::Length;

/// What is known of a server over an uplink.
#[derive(Clone, Debug)]
pub(crate) struct Path {
    /// The uplink is there, and has an address of the server's family.
    pub(crate) is_usable: bool,
    /// Whether the server answered the last time; `None` before it was tried.
    pub(crate) is_alive: Option<bool>,
    /// Whether its responder did.
    pub(crate) responds: Option<bool>,
    pub(crate) delay: Delay,
    pub(crate) down: Bandwidth,
    pub(crate) up: Bandwidth,
    pub(crate) length: Length,
    /// Probes of the last round that were lost, in thousandths.
    loss: u32,
    pub(crate) session: Number,
    pub(crate) round: Option<Round>,
    /// When the next round is due.
    pub(crate) next: Time,
    /// When the last one began.
    pub(crate) begun: Option<Time>,
    /// It was measured, or found not to be measurable.
    pub(crate) is_known: bool,
    /// A handshake with the server is wanted, or under way since then.
    pub(crate) handshake: Handshake,
    /// The last handshake had no answer: that of a responder does not show that connections have one.
    pub(crate) owes_handshake: bool,
}

/// A TCP handshake that the host makes, where no responder answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Handshake {
    None,
    Wanted,
    Since(Time),
}

/// The session with a responder.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Number {
    session: u64,
    sequence: u32,
    cookie: Cookie,
    until: Time,
}

impl Number {
    /// A new one, whose cookie is to come.
    pub(crate) fn begin(&mut self, session: u64) -> Header {
        *self = Self {
            session,
            ..Self::default()
        };
        self.header(0)
    }

    /// Its cookie has come.
    pub(crate) fn open(&mut self, cookie: Cookie, lifetime: Duration, now: Time) {
        self.cookie = cookie;
        // Well before it holds no more, as a round takes its time.
        self.until = now + lifetime * 3 / 4;
    }

    pub(crate) fn is_open(&self, now: Time) -> bool {
        now < self.until
    }

    pub(crate) const fn session(&self) -> u64 {
        self.session
    }

    /// The next datagram's header.
    pub(crate) const fn next(&mut self) -> Header {
        self.sequence += 1;
        self.header(self.sequence)
    }

    const fn header(&self, sequence: u32) -> Header {
        Header {
            session: self.session,
            sequence,
            cookie: self.cookie,
        }
    }
}

impl Path {
    pub(crate) fn new() -> Self {
        Self {
            is_usable: false,
            is_alive: None,
            responds: None,
            delay: Delay::default(),
            down: Bandwidth::default(),
            up: Bandwidth::default(),
            length: Length::new(),
            loss: 0,
            session: Number::default(),
            round: None,
            next: Time::ZERO,
            begun: None,
            is_known: false,
            handshake: Handshake::None,
            owes_handshake: false,
        }
    }

    /// Takes what a round has found. Says whether another one has to confirm it.
    pub(crate) fn learn(&mut self, found: &Findings, stale: Duration, now: Time) -> bool {
        self.loss = found.loss();
        if let Some(delay) = found.delay() {
            self.delay.heard(delay, now);
        }
        let mut in_doubt = false;
        if let Some((rate, shape)) = found.down() {
            let learned = self.down.trained(rate, shape, now, stale);
            in_doubt |= learned == Learned::InDoubt;
            if learned == Learned::InDoubt {
                self.length.forget();
            }
        }
        if let Some((rate, shape)) = found.up() {
            in_doubt |= self.up.trained(rate, shape, now, stale) == Learned::InDoubt;
        }
        in_doubt
    }

    /// The rate that bounds the length of trains: of the slower direction.
    pub(crate) fn slowest(&self) -> Option<Rate> {
        let rates = [self.down.of_trains(), self.up.of_trains()];
        rates.into_iter().flatten().min()
    }

    /// As the table has it.
    pub(crate) fn row(
        &self,
        window: Duration,
        ceiling: Option<Rate>,
        line: Option<Rate>,
        now: Time,
    ) -> PathRow {
        let down = self.down.estimate(window, ceiling, now);
        let down = down.map(|down| Estimate {
            rate: line.map_or(down.rate, |line| line.min(down.rate)),
            ..down
        });
        PathRow {
            is_usable: self.is_usable,
            is_alive: self.is_alive,
            delay: self.delay.value(),
            delay_at: self.delay.at(),
            down,
            up: self.up.estimate(window, None, now),
            loss: self.loss,
        }
    }
}

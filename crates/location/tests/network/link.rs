//! One direction of a path: a token bucket, a queue, traffic of others, delay, jitter, loss.

use std::time::Duration;

use flexcp_location::{Rate, Time};

use crate::random::Random;

#[derive(Clone)]
pub(crate) struct Link {
    /// The rate of the token bucket.
    pub(crate) rate: Rate,
    /// Its depth in bytes: so much passes at the line's rate after a rest.
    pub(crate) depth: u64,
    /// The rate of the line behind it.
    pub(crate) line: Rate,
    pub(crate) delay: Duration,
    /// Each packet is late by up to that much, without overtaking another.
    pub(crate) jitter: Duration,
    /// In thousandths.
    pub(crate) loss: u64,
    /// What others use of the rate, in thousandths: before each packet of ours, packets of theirs.
    pub(crate) others: u64,
    /// Packets that would wait longer than that are lost.
    pub(crate) queue: Duration,
    /// Nothing comes through.
    pub(crate) is_cut: bool,
    /// When the last packet has left the line.
    free: u64,
    /// When the bucket was last empty, if it has filled since: tokens are the time since then by the rate.
    empty: u64,
    latest: u64,
    /// When a burst of others was last drawn.
    drawn: u64,
}

impl Link {
    pub(crate) fn new(rate: Rate, delay: Duration) -> Self {
        Self {
            rate,
            depth: 0,
            line: Rate::from_kbit(1_000_000),
            delay,
            jitter: Duration::ZERO,
            loss: 0,
            others: 0,
            queue: Duration::from_millis(500),
            is_cut: false,
            free: 0,
            empty: 0,
            latest: 0,
            drawn: 0,
        }
    }

    /// When a packet that is sent now comes out, if it does.
    pub(crate) fn send(&mut self, now: Time, bytes: u64, dice: &mut Random) -> Option<Time> {
        if self.is_cut || dice.below(1000) < self.loss {
            return None;
        }
        // Others send packets of 1250 bytes at random times since the last draw: a Poisson stream by coin tosses.
        let since = now.0.saturating_sub(self.drawn).min(200_000);
        self.drawn = self.drawn.max(now.0);
        let expected = self.rate.0 * self.others / 1000 * since / 10_000 / 1_000_000;
        let rest = self.rate.0 * self.others / 1000 * since / 10_000 % 1_000_000;
        let theirs = expected + u64::from(dice.below(1_000_000) < rest);
        for _ in 0..theirs {
            self.pass(now.0.saturating_sub(dice.below(since.max(1))), 1250);
        }
        if self.free.saturating_sub(now.0) > micros(self.queue) {
            return None;
        }
        let out = self.pass(now.0, bytes);
        let late = dice.below(micros(self.jitter) + 1);
        self.latest = self.latest.max(out + micros(self.delay) + late);
        Some(Time(self.latest))
    }

    /// A packet passes the bucket and the line.
    fn pass(&mut self, now: u64, bytes: u64) -> u64 {
        let time = |bytes: u64, rate: Rate| bytes * 8_000_000 / rate.0.max(1);
        let begin = now.max(self.free);
        let full = time(self.depth.max(bytes), self.rate);
        // Tokens are counted as the time in which they came.
        self.empty = self.empty.max(begin.saturating_sub(full)) + time(bytes, self.rate);
        self.free = (begin + time(bytes, self.line)).max(self.empty);
        self.free
    }
}

fn micros(of: Duration) -> u64 {
    u64::try_from(of.as_micros()).unwrap()
}

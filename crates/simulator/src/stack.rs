//! What differs between TCP stacks, and what a connection's applications do.

use crate::tcp::Tuning;

/// One end's TCP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stack {
    /// MSS option; `None`: not sent.
    pub(crate) mss: Option<u16>,
    /// Window scale option.
    pub(crate) window_scale: Option<u8>,
    /// SACK permitted.
    pub(crate) sack: bool,
    /// Timestamps, and what the clock shows at the start.
    pub(crate) timestamps: Option<u32>,
    /// Receive buffer.
    pub(crate) buffer: u64,
    /// ACKs wait this long, in microseconds.
    pub(crate) ack_delay: u64,
    /// Or for so many segments.
    pub(crate) ack_every: u32,
    /// Reports duplicates by D-SACK.
    pub(crate) reports_duplicates: bool,
    /// Of a million segments, so many after which everything behind holes is thrown away, SACKed or not (RFC 2018
    /// section 8).
    pub(crate) reneges: u64,
    /// Only before that time, in microseconds.
    pub(crate) reneges_until: u64,
    /// Idle time after which a keepalive goes out.
    pub(crate) keepalive: Option<u64>,
    /// Sending.
    pub(crate) tuning: Tuning,
}

/// One end's application. Times in microseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct App {
    /// Bytes that it writes.
    pub(crate) writes: u64,
    /// Bytes that the other end writes.
    pub(crate) reads: u64,
    /// Bytes a millisecond that it reads; 0: all at once.
    pub(crate) rate: u64,
    /// It does not read before.
    pub(crate) reads_from: u64,
    /// It does not write before.
    pub(crate) writes_from: u64,
    /// It closes only when the other end has.
    pub(crate) closes_last: bool,
    /// It resets the connection then.
    pub(crate) aborts_at: Option<u64>,
}

/// What an application has read, and the window that follows (RFC 9293 section 3.8.6.2).
#[derive(Clone, Debug)]
pub(crate) struct Reader {
    app: App,
    buffer: u64,
    /// Bytes read.
    pub(crate) read: u64,
    /// Right edge offered.
    pub(crate) edge: u64,
    tick: Option<u64>,
    last: u64,
}

/// Pause of a slow reader.
const TICK: u64 = 5000;

impl Reader {
    /// Nothing read yet.
    #[must_use]
    pub(crate) const fn new(app: App, buffer: u64) -> Self {
        Self {
            app,
            buffer,
            read: 0,
            edge: 0,
            tick: None,
            last: 0,
        }
    }

    /// Reads what can be read of the data before `end`. `true`: the window has opened enough to tell.
    pub(crate) fn advance(&mut self, now: u64, end: u64, mss: u64) -> bool {
        let unread = end - self.read.min(end);
        if unread > 0 {
            if now < self.app.reads_from {
                self.tick = Some(self.app.reads_from);
                self.last = self.app.reads_from;
            } else if self.app.rate == 0 {
                self.read = end;
                self.tick = None;
            } else {
                let since = now.saturating_sub(self.last).min(10 * TICK);
                let can = since * self.app.rate / 1000;
                if can > 0 {
                    self.read += can.min(unread);
                    self.last = now;
                }
                self.tick = (self.read < end).then_some(now + TICK);
            }
        } else {
            self.tick = None;
        }
        let edge = self.read + self.buffer;
        let step = (self.buffer / 2).min(mss);
        let was_small = self.edge.saturating_sub(end) < 2 * mss;
        if edge >= self.edge + step {
            let opens = self.edge > 0 && was_small && edge.saturating_sub(end) >= step;
            self.edge = edge;
            return opens;
        }
        false
    }

    /// When there is more to read.
    #[must_use]
    pub(crate) const fn deadline(&self) -> Option<u64> {
        self.tick
    }

    /// The window field from `next` on, without moving the right edge to the left by more than the scale
    /// rounds off.
    #[must_use]
    pub(crate) fn window(&self, next: u64, scale: u8) -> u16 {
        let left = self.edge.saturating_sub(next) >> scale;
        u16::try_from(left).unwrap_or(u16::MAX)
    }
}

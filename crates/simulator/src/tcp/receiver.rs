//! The receiving half: reassembly, SACK (RFC 2018) with D-SACK (RFC 2883), delayed ACKs, window.

use flexcp_invariants::Ranges;

/// SACK blocks, most recent first.
pub(super) type Blocks = Vec<(u64, u64)>;

/// The receiving half.
#[derive(Clone, Debug)]
pub(crate) struct Receiver {
    /// Next expected; behind the FIN once that was received.
    pub(crate) nxt: u64,
    /// Behind the last byte, when the FIN was seen.
    pub(crate) fin: Option<u64>,
    ahead: Ranges,
    recent: [u64; 4],
    duplicate: Option<(u64, u64)>,
    duplicates: bool,
    /// Segments that wait for an ACK.
    unacked: u32,
    delay: u64,
    deadline: Option<u64>,
    /// An ACK has to go out now.
    pub(crate) ack_now: bool,
    every: u32,
}

/// What became of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Arrived {
    /// In-order data: from here on, up to `nxt`.
    pub(crate) from: u64,
}

impl Receiver {
    /// ACKs wait for `delay` microseconds or `every` segments; D-SACK if `duplicates`.
    #[must_use]
    pub(crate) const fn new(delay: u64, every: u32, duplicates: bool) -> Self {
        Self {
            nxt: 0,
            fin: None,
            ahead: Ranges::new(),
            recent: [u64::MAX; 4],
            duplicate: None,
            duplicates,
            unacked: 0,
            delay,
            deadline: None,
            ack_now: false,
            every,
        }
    }

    /// Takes `[from, to)`, and a FIN behind it; what lies beyond `edge` is dropped.
    pub(crate) fn take(&mut self, now: u64, from: u64, to: u64, fin: bool, edge: u64) -> Arrived {
        let old = self.nxt;
        let cut = to.min(edge.max(self.nxt));
        let fits = cut == to;
        if from < self.nxt && (to > from || fin) {
            self.ack_now = true;
            if to > from && to.min(self.nxt) > from && self.duplicates {
                self.duplicate = Some((from, to.min(self.nxt)));
            }
        }
        if fin && fits && self.fin.is_none() {
            self.fin = Some(to);
        }
        if !fits {
            self.ack_now = true;
        }
        if cut > self.nxt && cut > from {
            let start = from.max(self.nxt);
            if start == self.nxt {
                self.nxt = cut;
                if !self.ahead.is_empty() {
                    if let Some((_, end)) = self.ahead.range_at(cut) {
                        self.nxt = end;
                    }
                    self.ahead.release(self.nxt);
                    // A hole was filled.
                    self.ack_now = true;
                }
                self.unacked += 1;
            } else {
                if self.duplicates && self.ahead.contains(start, cut) {
                    self.duplicate = Some((start, cut));
                }
                self.ahead.insert(start, cut);
                self.remember(start);
                self.ack_now = true;
            }
        }
        if self.fin == Some(self.nxt) {
            self.nxt += 1;
            self.ack_now = true;
        }
        if self.unacked >= self.every {
            self.ack_now = true;
        } else if self.unacked > 0 && self.deadline.is_none() {
            self.deadline = Some(now + self.delay);
        }
        Arrived { from: old }
    }

    /// Throws away what lies behind holes.
    pub(crate) fn renege(&mut self) {
        self.ahead.clear();
        self.recent = [u64::MAX; 4];
    }

    /// The FIN has been received with everything before it.
    #[must_use]
    pub(crate) fn is_closed(&self) -> bool {
        self.fin.is_some_and(|fin| self.nxt > fin)
    }

    /// Behind the last byte of data in order.
    #[must_use]
    pub(crate) fn data_end(&self) -> u64 {
        self.fin.map_or(self.nxt, |fin| self.nxt.min(fin))
    }

    fn remember(&mut self, at: u64) {
        let known = self.recent.iter().position(|r| *r == at).unwrap_or(3);
        self.recent[..=known].rotate_right(1);
        self.recent[0] = at;
    }

    /// Blocks for an ACK, at most `room`; a D-SACK is reported once.
    pub(crate) fn blocks(&mut self, room: usize) -> Blocks {
        let mut blocks = Blocks::new();
        if room == 0 {
            return blocks;
        }
        if let Some(duplicate) = self.duplicate.take() {
            blocks.push(duplicate);
        }
        if self.ahead.is_empty() {
            return blocks;
        }
        for at in self.recent {
            if let Some(range) = self.ahead.range_at(at)
                && !blocks.iter().skip(1).any(|block| *block == range)
                && blocks.first() != Some(&range)
            {
                blocks.push(range);
            }
        }
        for range in self.ahead.as_slice().iter().rev() {
            if !blocks.contains(range) {
                blocks.push(*range);
            }
            if blocks.len() >= room {
                break;
            }
        }
        blocks.truncate(room);
        blocks
    }

    /// Something acknowledges now.
    pub(crate) const fn acknowledged(&mut self) {
        self.unacked = 0;
        self.deadline = None;
        self.ack_now = false;
    }

    /// When a delayed ACK is due.
    #[must_use]
    pub(crate) const fn deadline(&self) -> Option<u64> {
        self.deadline
    }

    /// The delayed ACK is due.
    pub(crate) fn timeout(&mut self, now: u64) {
        if self.deadline.is_some_and(|due| due <= now) {
            self.deadline = None;
            self.ack_now = true;
        }
    }

    /// Whether there is data behind a hole.
    #[must_use]
    pub(crate) fn has_hole(&self) -> bool {
        !self.ahead.is_empty()
    }
}

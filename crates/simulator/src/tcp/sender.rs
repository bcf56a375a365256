//! The sending half: window, congestion control (RFC 5681), loss recovery with SACK (RFC 6675), timeout
//! (RFC 6298), tail loss probe (RFC 8985 section 7), zero-window probes (RFC 9293 section 3.8.6).

use flexcp_invariants::Ranges;

use super::Rtt;

/// What differs between stacks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Tuning {
    /// Segments sent before the first ACK.
    pub(crate) initial_window: u64,
    /// Bounds of the retransmission timeout, in microseconds.
    pub(crate) min_timeout: u64,
    /// Longest of them.
    pub(crate) max_timeout: u64,
    /// Send the last segment again before the timeout.
    pub(crate) tail_probe: bool,
    /// A timeout forgets what was SACKed (RFC 2018 section 8).
    pub(crate) forgets_sack: bool,
    /// Zero-window probes carry a byte of data instead of an old number.
    pub(crate) probes_with_data: bool,
    /// Upper bound of the congestion window, in segments.
    pub(crate) max_window: u64,
}

/// Something to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Chunk {
    /// First byte.
    pub(crate) from: u64,
    /// Bytes.
    pub(crate) len: u64,
    /// The FIN comes right behind.
    pub(crate) fin: bool,
    /// It was sent before.
    pub(crate) again: bool,
    /// No data but an old number, to be answered: a zero-window probe.
    pub(crate) probe: bool,
}

/// The sending half.
#[derive(Clone, Debug)]
pub(crate) struct Sender {
    tuning: Tuning,
    /// Payload of one segment at most.
    pub(crate) mss: u64,
    /// First byte that is not acknowledged.
    pub(crate) una: u64,
    /// Next to be sent for the first time; behind the FIN when that was sent.
    pub(crate) nxt: u64,
    /// Behind the last byte that there is to send.
    pub(crate) end: u64,
    /// A FIN follows the last byte.
    pub(crate) fin: bool,
    /// The receiver's right edge.
    pub(crate) edge: u64,
    /// The largest window that the receiver has offered.
    widest: u64,
    congestion_window: u64,
    threshold: u64,
    grown: u64,
    sacked: Ranges,
    /// Bytes before it that are not SACKed count as lost.
    lost: u64,
    /// Everything lost before it has been sent again.
    resent: u64,
    /// Recovery ends when this is acknowledged.
    recovery: Option<u64>,
    /// Where the last recovery ended.
    recovered: u64,
    duplicates: u32,
    /// Round-trip time.
    pub(crate) rtt: Rtt,
    timed: Option<(u64, u64)>,
    timer: Option<u64>,
    tail_probe: Option<u64>,
    tail_probed: bool,
    probe_due: bool,
    resend_tail: bool,
}

impl Sender {
    /// Nothing sent yet.
    #[must_use]
    pub(crate) const fn new(tuning: Tuning, mss: u64) -> Self {
        Self {
            tuning,
            mss,
            una: 0,
            nxt: 0,
            end: 0,
            fin: false,
            edge: 0,
            widest: 0,
            congestion_window: tuning.initial_window * mss,
            threshold: u64::MAX,
            grown: 0,
            sacked: Ranges::new(),
            lost: 0,
            resent: 0,
            recovery: None,
            recovered: 0,
            duplicates: 0,
            rtt: Rtt::new(tuning.min_timeout, tuning.max_timeout),
            timed: None,
            timer: None,
            tail_probe: None,
            tail_probed: false,
            probe_due: false,
            resend_tail: false,
        }
    }

    /// Behind everything that there is to send, FIN included.
    #[must_use]
    pub(crate) const fn limit(&self) -> u64 {
        self.end + self.fin as u64
    }

    /// Everything is acknowledged, FIN included.
    #[must_use]
    pub(crate) const fn is_done(&self) -> bool {
        self.una == self.limit()
    }

    /// Bytes thought to be in the network (RFC 6675 "pipe").
    fn in_flight(&self) -> u64 {
        if self.sacked.is_empty() && self.lost <= self.una {
            return self.nxt - self.una;
        }
        let lost = self.lost.clamp(self.una, self.nxt);
        let resent = self.resent.clamp(self.una, lost);
        let mut count = (self.nxt - lost) + (resent - self.una);
        for &(from, to) in self.sacked.as_slice() {
            let above = to.max(lost) - from.max(lost);
            let below = to.min(resent) - from.min(resent);
            count -= above + below;
        }
        count
    }

    /// When [`timeout`](Self::timeout) wants to be called.
    #[must_use]
    pub(crate) fn deadline(&self) -> Option<u64> {
        match (self.timer, self.tail_probe) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    fn arm(&mut self, now: u64) {
        let waits = self.una < self.nxt || self.una < self.limit() && self.edge <= self.nxt;
        self.timer = waits.then(|| now + self.rtt.timeout());
        self.tail_probe = None;
        if self.tuning.tail_probe
            && !self.tail_probed
            && self.una < self.nxt
            && self.recovery.is_none()
            && let Some(smoothed) = self.rtt.smoothed()
        {
            let due = now + 2 * smoothed + 2000;
            self.tail_probe = Some(due).filter(|due| self.timer.is_some_and(|timer| *due < timer));
        }
    }

    /// Takes an ACK; `bare`: the packet had no data. How many bytes were acknowledged for the first time.
    pub(crate) fn acknowledge(
        &mut self,
        now: u64,
        ack: u64,
        blocks: &[(u64, u64)],
        edge: u64,
        bare: bool,
        echo: Option<u64>,
    ) -> u64 {
        let opened = edge > self.edge;
        let closed = self.edge <= self.una;
        self.edge = self.edge.max(edge);
        self.widest = self.widest.max(edge.saturating_sub(ack));
        let mut news = 0;
        for &(from, to) in blocks {
            if from >= self.una.max(ack) && to <= self.nxt {
                news += self.sacked.insert(from, to);
            }
        }
        if ack > self.una {
            let acked = ack - self.una;
            self.advance(now, ack, acked, echo);
            return acked;
        }
        if ack == self.una && self.una < self.nxt && (news > 0 || (bare && !opened)) {
            self.duplicates += 1;
        }
        if opened && closed && self.una < self.nxt {
            // What probed the closed window goes again at once.
            self.lost = self.nxt;
            self.resent = self.una;
            self.recovery = Some(self.nxt);
        }
        self.detect_loss();
        if opened && self.una == self.nxt {
            self.probe_due = false;
            self.rtt.calm();
            self.arm(now);
        }
        0
    }

    fn advance(&mut self, now: u64, ack: u64, acked: u64, echo: Option<u64>) {
        self.una = ack;
        self.sacked.release(ack);
        self.resent = self.resent.max(ack);
        self.duplicates = 0;
        self.tail_probed = false;
        // A timeout that was backed off stays so until there is a sample (Karn's algorithm).
        if let Some(echo) = echo {
            self.rtt.sample(now.saturating_sub(echo));
            self.rtt.calm();
        } else if let Some((at, sent)) = self.timed
            && ack >= at
        {
            self.rtt.sample(now - sent);
            self.rtt.calm();
        }
        if self.timed.is_some_and(|(at, _)| ack >= at) {
            self.timed = None;
        }
        match self.recovery {
            Some(point) if ack >= point => {
                self.recovery = None;
                self.recovered = point;
                self.congestion_window = self.threshold.max(2 * self.mss);
                self.lost = ack;
            }
            Some(_) => {
                // A partial ACK without SACK: the next one is lost too (RFC 6582).
                if self.sacked.is_empty() && self.lost <= ack {
                    self.lost = (ack + self.mss).min(self.nxt);
                    self.resent = ack;
                }
                if self.congestion_window < self.threshold {
                    self.congestion_window += acked.min(self.mss);
                }
            }
            None => self.grow(acked),
        }
        self.detect_loss();
        self.arm(now);
    }

    fn grow(&mut self, acked: u64) {
        if self.congestion_window < self.threshold {
            self.congestion_window += acked.min(2 * self.mss);
        } else {
            self.grown += acked;
            if self.grown >= self.congestion_window {
                self.grown = 0;
                self.congestion_window += self.mss;
            }
        }
        let most = self.tuning.max_window * self.mss;
        self.congestion_window = self.congestion_window.min(most);
    }

    fn detect_loss(&mut self) {
        // More than two segments SACKed behind it, or three duplicates, and a byte is lost.
        let mut above = 0;
        for &(from, to) in self.sacked.as_slice().iter().rev() {
            above += to - from;
            if above > 2 * self.mss {
                self.lost = self.lost.max(from);
                break;
            }
        }
        // What was sent again in the last recovery may cause duplicates of its own (RFC 6582 section 3.2).
        let fresh = self.una > self.recovered || self.recovered == 0;
        if self.duplicates >= 3 && fresh && self.lost <= self.una {
            self.lost = (self.una + self.mss).min(self.nxt);
        }
        if self.lost > self.una && self.recovery.is_none() {
            self.threshold = (self.in_flight() / 2).max(2 * self.mss);
            self.congestion_window = self.threshold;
            self.recovery = Some(self.nxt);
            self.resent = self.una;
            self.timed = None;
        }
    }

    /// A timer is due.
    pub(crate) fn timeout(&mut self, now: u64) {
        if self.tail_probe.is_some_and(|due| due <= now) {
            self.tail_probe = None;
            self.tail_probed = true;
            self.resend_tail = self.una < self.nxt;
            return;
        }
        if self.timer.is_none_or(|due| due > now) {
            return;
        }
        self.rtt.back_off();
        if self.una < self.nxt {
            // What is SACKed at the very start has been dropped by the receiver (RFC 2018 section 8).
            if self.tuning.forgets_sack || self.sacked.range_at(self.una).is_some() {
                self.sacked.clear();
            }
            if self.recovery.is_none() || self.rtt.backoffs() == 1 {
                self.threshold = (self.in_flight() / 2).max(2 * self.mss);
            }
            self.congestion_window = self.mss;
            self.lost = self.nxt;
            self.resent = self.una;
            self.recovery = Some(self.nxt);
            self.duplicates = 0;
            self.timed = None;
        } else {
            self.probe_due = true;
        }
        self.arm(now);
    }

    /// The next thing to send now; `room` says how many bytes from a position may share a segment.
    pub(crate) fn next(&mut self, now: u64, room: impl Fn(u64) -> u64) -> Option<Chunk> {
        if self.resend_tail {
            self.resend_tail = false;
            let from = self.una.max(self.nxt.saturating_sub(self.mss));
            return Some(self.chunk(now, from, self.nxt, &room, true));
        }
        if self.recovery.is_some()
            && let Some(chunk) = self.next_lost(now, &room)
        {
            return Some(chunk);
        }
        self.next_new(now, &room)
    }

    fn next_lost(&mut self, now: u64, room: &impl Fn(u64) -> u64) -> Option<Chunk> {
        let from = self.resent.max(self.una);
        let (from, to) = self.sacked.first_gap(from, self.lost.min(self.nxt))?;
        let flight = self.in_flight();
        if flight > 0 && flight + self.mss > self.congestion_window && from != self.una {
            return None;
        }
        if flight >= self.congestion_window.max(self.mss) && self.resent > self.una {
            return None;
        }
        let chunk = self.chunk(now, from, to, room, true);
        self.resent = chunk.from + chunk.len + u64::from(chunk.fin);
        self.timed = None;
        if self.timer.is_none() {
            self.arm(now);
        }
        Some(chunk)
    }

    fn next_new(&mut self, now: u64, room: &impl Fn(u64) -> u64) -> Option<Chunk> {
        if self.nxt >= self.limit() {
            return None;
        }
        if self.edge <= self.nxt {
            return self.next_probe(now);
        }
        let flight = self.in_flight();
        let usable = (self.edge - self.nxt).min(self.limit() - self.nxt);
        let len = usable.min(self.mss);
        if flight > 0 && flight + len > self.congestion_window {
            return None;
        }
        // Not a sliver of a window while more is on its way (RFC 9293 section 3.8.6.2.1). A small mapping is none.
        let sliver = len < self.mss.min(room(self.nxt)) && len < self.widest / 2;
        if sliver && usable < self.limit() - self.nxt && flight > 0 {
            return None;
        }
        let chunk = self.chunk(now, self.nxt, self.nxt + usable, room, false);
        let idle = self.una == self.nxt;
        self.nxt = chunk.from + chunk.len + u64::from(chunk.fin);
        if self.timed.is_none() {
            self.timed = Some((self.nxt, now));
        }
        if idle || self.timer.is_none() {
            self.arm(now);
        }
        Some(chunk)
    }

    fn next_probe(&mut self, now: u64) -> Option<Chunk> {
        if self.una < self.nxt {
            return None;
        }
        if self.timer.is_none() {
            self.arm(now);
        }
        if !self.probe_due {
            return None;
        }
        self.probe_due = false;
        if self.tuning.probes_with_data && self.nxt < self.end {
            self.nxt += 1;
            return Some(Chunk {
                from: self.nxt - 1,
                len: 1,
                fin: false,
                again: false,
                probe: false,
            });
        }
        Some(Chunk {
            from: self.una,
            len: 0,
            fin: false,
            again: true,
            probe: true,
        })
    }

    /// `[from, to)` as far as it goes in one segment.
    fn chunk(
        &self,
        _now: u64,
        from: u64,
        to: u64,
        room: &impl Fn(u64) -> u64,
        again: bool,
    ) -> Chunk {
        let data_end = to.min(self.end);
        let len = data_end
            .saturating_sub(from)
            .min(self.mss)
            .min(if from < self.end { room(from) } else { 0 });
        let behind = from + len;
        let fin = self.fin && behind == self.end && to > self.end;
        Chunk {
            from,
            len,
            fin,
            again,
            probe: false,
        }
    }

    /// Whether data added now would be sent at once.
    #[must_use]
    pub(crate) fn has_room(&self) -> bool {
        let flight = self.in_flight() + (self.end - self.nxt.min(self.end));
        flight < self.congestion_window
    }
}

//! What a path delivers, as both tiers measure it: how fast bytes get ACKed while some are outstanding, and how many are at
//! most outstanding.

use core::time::Duration;

use flexcp_wire::Ssn;

use crate::offload::EntryDelivery;
use crate::time::Instant;

/// What is measured at a time, unless a round trip is longer.
pub(crate) const SPAN: Duration = Duration::from_millis(100);

/// Bytes that a path delivers. Numbers are those of its subflow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Delivery {
    /// When the span being measured began.
    since: Instant,
    /// What was ACKed then.
    from: Ssn,
    /// The most that was outstanding in it.
    flight: u32,
    /// The same of the span before.
    window: u32,
    /// Bytes ACKed per second of the span before; 0: none yet.
    rate: u32,
}

impl Delivery {
    pub(crate) const fn new(now: Instant, una: Ssn) -> Self {
        Self {
            since: now,
            from: una,
            flight: 0,
            window: 0,
            rate: 0,
        }
    }

    /// Notes that new data went out, behind which `next` stands. With nothing outstanding before, a span begins: a path at
    /// rest delivers nothing, and is none the slower.
    pub(crate) fn sent(&mut self, now: Instant, una: Ssn, was_idle: bool, next: Ssn) {
        if was_idle {
            self.since = now;
            self.from = una;
            self.flight = 0;
        }
        self.flight = self.flight.max(next.since(una));
    }

    /// Notes that everything before `una` is ACKed. `rtt`: the smoothed one.
    pub(crate) fn acked(&mut self, now: Instant, una: Ssn, next: Ssn, rtt: Option<Duration>) {
        let took = now.since(self.since);
        if took < SPAN.max(rtt.unwrap_or_default()) {
            return;
        }
        let bytes = u64::from(una.since(self.from));
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.rate = u32::try_from(bytes * 1_000_000 / micros).unwrap_or(u32::MAX);
        self.window = self.flight;
        self.flight = next.since(una);
        self.from = una;
        self.since = now;
    }

    /// Bytes per second, the last time that it was busy for a span.
    pub(crate) const fn rate(&self) -> u32 {
        self.rate
    }

    /// The most that was outstanding, in bytes: what its sender's congestion window and the receiver's have let it be.
    pub(crate) fn window(&self) -> u32 {
        self.window.max(self.flight)
    }

    /// As a flow entry has it.
    pub(crate) const fn export(&self) -> EntryDelivery {
        EntryDelivery {
            since: self.since.0,
            from: self.from.0,
            flight: self.flight,
            window: self.window,
            rate: self.rate,
        }
    }

    /// From a flow entry.
    pub(crate) const fn import(entry: &EntryDelivery) -> Self {
        Self {
            since: Instant(entry.since),
            from: Ssn(entry.from),
            flight: entry.flight,
            window: entry.window,
            rate: entry.rate,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1000;

    /// A thousand bytes go out every millisecond, and are ACKed 20 ms later.
    fn busy(delivery: &mut Delivery, from: u64, until: u64) {
        let at = |ms: u64| Ssn(u32::try_from(ms.saturating_sub(from) * 1000).unwrap());
        for ms in from..until {
            let now = Instant(ms * MS);
            let una = at(ms.saturating_sub(20).max(from));
            delivery.acked(now, una, at(ms), None);
            delivery.sent(now, una, una == at(ms), at(ms + 1));
        }
    }

    #[test]
    fn rate_is_what_is_acked_in_a_span() {
        let mut delivery = Delivery::new(Instant(0), Ssn(0));
        busy(&mut delivery, 0, 100);
        assert_eq!(delivery.rate(), 0, "not yet");
        busy(&mut delivery, 0, 400);
        assert_eq!(delivery.rate(), 1_000_000);
        assert_eq!(delivery.window(), 21_000);
    }

    #[test]
    fn rest_does_not_count() {
        let mut delivery = Delivery::new(Instant(0), Ssn(0));
        busy(&mut delivery, 0, 400);
        let next = Ssn(400_000);
        delivery.acked(Instant(420 * MS), next, next, None);
        let before = delivery.rate();
        // An hour later, one byte, which takes 120 ms.
        let later = Instant(3_600_000 * MS);
        delivery.sent(later, next, true, next.add(1));
        delivery.acked(
            later + Duration::from_millis(50),
            next.add(1),
            next.add(1),
            None,
        );
        assert_eq!(delivery.rate(), before, "no span");
        delivery.acked(
            later + Duration::from_millis(120),
            next.add(1),
            next.add(1),
            None,
        );
        assert_eq!(delivery.rate(), 8);
    }

    #[test]
    fn span_is_no_shorter_than_a_round_trip() {
        let rtt = Some(Duration::from_millis(600));
        let mut delivery = Delivery::new(Instant(0), Ssn(0));
        delivery.sent(Instant(0), Ssn(0), true, Ssn(6000));
        delivery.acked(Instant(599 * MS), Ssn(3000), Ssn(6000), rtt);
        assert_eq!(delivery.rate(), 0);
        delivery.acked(Instant(600 * MS), Ssn(6000), Ssn(6000), rtt);
        assert_eq!(delivery.rate(), 10_000);
        assert_eq!(delivery.window(), 6000);
    }

    #[test]
    fn fastest_path_overflows_nothing() {
        let mut delivery = Delivery::new(Instant(0), Ssn(0));
        delivery.acked(Instant(100 * MS), Ssn(u32::MAX), Ssn(u32::MAX), None);
        assert_eq!(delivery.rate(), u32::MAX);
    }

    #[test]
    fn flow_entry_has_all_of_it() {
        let mut delivery = Delivery::new(Instant(7), Ssn(9));
        busy(&mut delivery, 1, 300);
        assert_eq!(Delivery::import(&delivery.export()), delivery);
    }
}

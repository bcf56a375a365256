//! When something was, in little room.

use core::time::Duration;

use crate::time::Instant;

/// A time in steps of 2^10 microseconds, in little room: a difference is right up to 50 days. 0: never.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Stamp(u32);

impl Stamp {
    #[allow(clippy::cast_possible_truncation, reason = "differences are taken")]
    pub(super) fn new(now: Instant) -> Self {
        Self(((now.0 >> 10) as u32).max(1))
    }

    /// The time since; `None`: it never was.
    pub(super) fn age(self, now: Instant) -> Option<Duration> {
        let passed = u64::from(Self::new(now).0.wrapping_sub(self.0)) << 10;
        (self != Self::default()).then(|| Duration::from_micros(passed))
    }

    /// Whether so much time has passed since, or it never was.
    pub(super) fn is_over(self, now: Instant, wait: Duration) -> bool {
        self.age(now).is_none_or(|age| age >= wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_tell_how_long_ago_they_were() {
        let at = |ms: u64| Instant::from_millis(ms);
        let stamp = Stamp::new(at(5000));
        assert!(!stamp.is_over(at(5900), Duration::from_secs(1)));
        assert!(stamp.is_over(at(6003), Duration::from_secs(1)));
        assert!(Stamp::default().is_over(at(0), Duration::from_secs(1)));
        // Over the end of what it holds.
        let late = Instant(u64::from(u32::MAX) << 10);
        let stamp = Stamp::new(late);
        assert!(!stamp.is_over(Instant(late.0 + 900_000), Duration::from_secs(1)));
        assert!(stamp.is_over(Instant(late.0 + 1_003_000), Duration::from_secs(1)));
    }
}

//! Time as an argument.

use core::ops::Add;
use core::time::Duration;

/// A point on the caller's monotonic clock, in microseconds since an origin of the caller's choice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Time(pub u64);

impl Time {
    /// The origin.
    pub const ZERO: Self = Self(0);

    /// From whole milliseconds since the origin.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1000))
    }

    /// From whole seconds since the origin.
    #[must_use]
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(1_000_000))
    }

    /// Time passed since `earlier`; zero when `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Time {
    type Output = Self;

    fn add(self, rhs: Duration) -> Self {
        Self(self.0.saturating_add(micros(rhs)))
    }
}

/// Whole microseconds.
pub(crate) fn micros(of: Duration) -> u64 {
    u64::try_from(of.as_micros()).unwrap_or(u64::MAX)
}

/// When a datagram came: the kernel's stamp, unless that cannot be, as its clock was set anew.
pub(crate) fn stamp(at: Time, now: Time) -> Time {
    if at > now || now.since(at) > Duration::from_secs(1) {
        now
    } else {
        at
    }
}

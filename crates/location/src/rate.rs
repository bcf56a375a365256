//! Rates in bits per second.

use core::fmt;
use core::iter::Sum;
use core::time::Duration;

use crate::time::micros;

/// Bits per second, of IP packets with their headers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Rate(pub u64);

impl Rate {
    /// From whole kilobits per second.
    #[must_use]
    pub const fn from_kbit(kbit: u64) -> Self {
        Self(kbit.saturating_mul(1000))
    }

    /// So many bytes in so much time; `None` when no time has passed.
    #[must_use]
    pub fn of(bytes: u64, time: Duration) -> Option<Self> {
        let bits = u128::from(bytes) * 8_000_000;
        let rate = bits.checked_div(u128::from(micros(time)))?;
        Some(Self(u64::try_from(rate).unwrap_or(u64::MAX)))
    }

    /// So many thousandths of the rate.
    #[must_use]
    pub fn thousandths(self, of: u32) -> Self {
        let scaled = u128::from(self.0) * u128::from(of) / 1000;
        Self(u64::try_from(scaled).unwrap_or(u64::MAX))
    }

    /// Bytes that pass in this time.
    #[must_use]
    pub fn bytes_in(self, time: Duration) -> u64 {
        let bytes = u128::from(self.0) * u128::from(micros(time)) / 8_000_000;
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }

    /// Midway between two rates.
    pub(crate) const fn midway(self, other: Self) -> Self {
        Self(self.0.midpoint(other.0))
    }

    /// Whether two rates differ by more than so many thousandths of the larger one.
    pub(crate) fn differs(self, other: Self, by: u32) -> bool {
        let (low, high) = (self.min(other), self.max(other));
        low < high.thousandths(1000 - by.min(1000))
    }

    /// The figure in Mbit/s alone, where a sentence has the unit elsewhere.
    pub(crate) const fn figure(self) -> Figure {
        Figure(self)
    }
}

impl Sum for Rate {
    fn sum<I: Iterator<Item = Self>>(rates: I) -> Self {
        rates.fold(Self(0), |sum, rate| Self(sum.0.saturating_add(rate.0)))
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} Mbit/s", self.figure())
    }
}

/// A rate in Mbit/s, without its unit.
pub(crate) struct Figure(Rate);

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tenths = self.0.0.saturating_add(50_000) / 100_000;
        write!(f, "{}.{}", tenths / 10, tenths % 10)
    }
}

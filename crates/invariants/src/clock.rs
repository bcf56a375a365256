//! Timestamps (RFC 7323): which values a peer has sent.

use crate::ranges::Ranges;

/// Runs of values that are remembered.
const MAX_RUNS: usize = 256;
/// First value's place, with room on both sides.
const BASE: u64 = 1 << 40;

/// The TSvals that one end has sent on one flow.
#[derive(Clone, Default, Debug)]
pub(crate) struct Sent {
    values: Ranges,
    latest: Option<u64>,
    /// Nothing below it is remembered.
    floor: u64,
    last: Option<u32>,
}

impl Sent {
    /// The value, counted on across the wraps: the one that is nearest to the latest that was sent.
    #[allow(
        clippy::cast_possible_truncation,
        reason = "the low half is what is compared"
    )]
    pub(crate) fn unwrap(&self, value: u32) -> u64 {
        let reference = self.latest.unwrap_or_else(|| BASE | u64::from(value));
        let distance = value.wrapping_sub(reference as u32).cast_signed();
        reference.wrapping_add_signed(i64::from(distance))
    }

    pub(crate) fn note(&mut self, value: u32) {
        if self.last == Some(value) {
            return;
        }
        self.last = Some(value);
        let at = self.unwrap(value);
        self.values.insert(at, at + 1);
        self.latest = Some(self.latest.map_or(at, |latest| latest.max(at)));
        if self.values.as_slice().len() > MAX_RUNS {
            let (_, end) = self.values.as_slice()[MAX_RUNS / 2];
            self.values.release(end);
            self.floor = end;
        }
    }

    /// Whether the value was sent; `true` for what is too long ago to know.
    pub(crate) fn has(&self, value: u32) -> bool {
        if self.last == Some(value) {
            return true;
        }
        let at = self.unwrap(value);
        at < self.floor || self.values.contains(at, at + 1)
    }

    /// Whether the value is not later than the latest that was sent.
    pub(crate) fn spans(&self, value: u32) -> bool {
        self.latest
            .is_some_and(|latest| self.unwrap(value) <= latest)
    }

    /// Whether the value is no further from the latest than a clock may have gone on in silence.
    pub(crate) fn is_near(&self, value: u32) -> bool {
        let Some(latest) = self.latest else {
            return true;
        };
        self.unwrap(value).abs_diff(latest) < 1 << 30
    }

    /// Whether the value is this close to the latest.
    pub(crate) fn is_within(&self, value: u32, span: u64) -> bool {
        let near = |latest: u64| self.unwrap(value).abs_diff(latest) <= span;
        self.latest.is_some_and(near)
    }

    /// Whether what was sent last is earlier than what was sent before it.
    pub(crate) fn is_late(&self) -> bool {
        let last = self.last.map(|last| self.unwrap(last));
        last < self.latest
    }

    pub(crate) fn is_latest(&self, value: u32) -> bool {
        self.last == Some(value)
    }
}

/// Whether `a` is earlier than `b`.
pub(crate) const fn earlier(a: u32, b: u32) -> bool {
    a.wrapping_sub(b).cast_signed() < 0
}

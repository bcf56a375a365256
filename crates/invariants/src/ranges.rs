//! Sets of numbers as sorted ranges.

/// A set of `u64` as sorted, disjoint, non-touching half-open ranges.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Ranges(Vec<(u64, u64)>);

impl Ranges {
    /// The empty set.
    #[must_use]
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// The ranges in ascending order.
    #[must_use]
    pub fn as_slice(&self) -> &[(u64, u64)] {
        &self.0
    }

    /// Whether nothing is in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Adds `[from, to)`; how many of its numbers were not there before.
    pub fn insert(&mut self, from: u64, to: u64) -> u64 {
        if from >= to {
            return 0;
        }
        // The usual cases: behind all, or right at the end of the last.
        match self.0.last_mut() {
            None => {
                self.0.push((from, to));
                return to - from;
            }
            Some(last) if from > last.1 => {
                self.0.push((from, to));
                return to - from;
            }
            Some(last) if from >= last.0 => {
                let new = to.saturating_sub(last.1);
                last.1 = last.1.max(to);
                return new;
            }
            Some(_) => {}
        }
        let first = self.0.partition_point(|range| range.1 < from);
        let behind = first + self.0[first..].partition_point(|range| range.0 <= to);
        if first == behind {
            self.0.insert(first, (from, to));
            return to - from;
        }
        let known: u64 = self.0[first..behind]
            .iter()
            .map(|range| range.1.min(to).saturating_sub(range.0.max(from)))
            .sum();
        let joined = (from.min(self.0[first].0), to.max(self.0[behind - 1].1));
        self.0[first] = joined;
        self.0.drain(first + 1..behind);
        to - from - known
    }

    /// Whether all of `[from, to)` is in it.
    #[must_use]
    pub fn contains(&self, from: u64, to: u64) -> bool {
        from >= to || self.range_at(from).is_some_and(|range| range.1 >= to)
    }

    /// Whether any of `[from, to)` is in it.
    #[must_use]
    pub fn intersects(&self, from: u64, to: u64) -> bool {
        let next = self.0.partition_point(|range| range.1 <= from);
        from < to && self.0.get(next).is_some_and(|range| range.0 < to)
    }

    /// The range that holds `at`.
    #[must_use]
    pub fn range_at(&self, at: u64) -> Option<(u64, u64)> {
        let next = self.0.partition_point(|range| range.1 <= at);
        self.0.get(next).copied().filter(|range| range.0 <= at)
    }

    /// The first part of `[from, to)` that is not in it.
    #[must_use]
    pub fn first_gap(&self, from: u64, to: u64) -> Option<(u64, u64)> {
        let start = self.range_at(from).map_or(from, |range| range.1);
        if start >= to {
            return None;
        }
        let next = self.0.partition_point(|range| range.0 <= start);
        let end = self.0.get(next).map_or(to, |range| range.0.min(to));
        Some((start, end))
    }

    /// Takes everything below `limit` out.
    pub fn release(&mut self, limit: u64) {
        if self.0.first().is_none_or(|range| range.0 >= limit) {
            return;
        }
        let keep = self.0.partition_point(|range| range.1 <= limit);
        self.0.drain(..keep);
        if let Some(first) = self.0.first_mut() {
            first.0 = first.0.max(limit);
        }
    }

    /// Takes `[from, to)` out.
    pub fn remove(&mut self, from: u64, to: u64) {
        if !self.intersects(from, to) {
            return;
        }
        let first = self.0.partition_point(|range| range.1 <= from);
        let behind = first + self.0[first..].partition_point(|range| range.0 < to);
        let left = (self.0[first].0, from);
        let right = (to, self.0[behind - 1].1);
        let rest = [left, right].into_iter().filter(|range| range.0 < range.1);
        self.0.splice(first..behind, rest);
    }

    /// How many numbers are in it.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().map(|range| range.1 - range.0).sum()
    }

    /// Behind the largest number.
    #[must_use]
    pub fn end(&self) -> Option<u64> {
        self.0.last().map(|range| range.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against a list of flags: every short sequence of calls on a small space.
    #[test]
    fn same_as_a_list_of_flags() {
        let mut state = 1_u64;
        let mut random = |bound: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) % bound
        };
        for _ in 0..2000 {
            let mut ranges = Ranges::new();
            let mut flags = [false; 24];
            for _ in 0..12 {
                let (a, b) = (random(24), random(25));
                let (from, to) = (a.min(b), a.max(b));
                let span = usize::try_from(from).unwrap()..usize::try_from(to).unwrap();
                match random(4) {
                    0 => {
                        ranges.release(from);
                        flags[..span.start].fill(false);
                    }
                    1 => {
                        ranges.remove(from, to);
                        flags[span.clone()].fill(false);
                    }
                    _ => {
                        let new = flags[span.clone()].iter().filter(|flag| !**flag).count();
                        assert_eq!(ranges.insert(from, to), new as u64);
                        flags[span.clone()].fill(true);
                    }
                }
                let all = flags[span.clone()].iter().all(|flag| *flag);
                let any = flags[span.clone()].iter().any(|flag| *flag);
                assert_eq!(ranges.contains(from, to), all, "{ranges:?} {from} {to}");
                assert_eq!(ranges.intersects(from, to), any);
                assert_eq!(
                    ranges.total(),
                    flags.iter().filter(|flag| **flag).count() as u64
                );
                let gap = span.clone().find(|&i| !flags[i]);
                assert_eq!(
                    ranges.first_gap(from, to).map(|gap| gap.0),
                    gap.map(|i| i as u64)
                );
            }
        }
    }
}

//! One budget of memory over all connections of a translator, [`Limits::memory`](crate::Limits::memory).
//!
//! [`RESERVE`] of it belongs to each connection, whatever others do: taking less makes room for nobody. What is left
//! is shared as switches share their buffers (dynamic thresholds, Choudhury and Hahne 1998): a connection may take one
//! part in [`SHARE`] of what is left at that moment. So the more is taken, the less each may have, those that have the
//! most are refused first, and some is always left for new connections. When it runs short:
//!
//! 1. connections that are quiet give back first what stands ready, then what they hold (`reclaim`);
//! 2. what a connection wants beyond its part is refused: mappings (`may_take`), copies, joins;
//! 3. new connections pass as plain TCP.

use crate::counters::Gauges;

/// Bytes that each connection may have: itself, two subflows, and some runs of mappings on each.
pub(crate) const RESERVE: usize = 2048;

/// One part in so many of what is left may be taken by one connection.
const SHARE: usize = 64;

/// One part in so many of the budget is kept for plain connections that FlexCP itself is the end of.
const KEPT: usize = 8;

/// What the connections of a translator take, and may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    /// Bytes in all.
    limit: usize,
    /// Bytes that connections have allocated.
    held: usize,
    /// The same, where each that has less counts as [`RESERVE`].
    taken: usize,
    /// The place of the table that is looked at next.
    hand: usize,
}

impl Budget {
    pub(crate) const fn new(limit: usize) -> Self {
        Self {
            limit,
            held: 0,
            taken: 0,
            hand: 0,
        }
    }

    /// From here on so many bytes are allowed in all. Who has more than its part then gives back as when memory runs short.
    pub(crate) const fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    const fn left(&self) -> usize {
        self.limit.saturating_sub(self.taken)
    }

    /// Whether a connection that has `held` bytes may take `more`.
    pub(crate) const fn allows(&self, held: usize, more: usize) -> bool {
        let shared = self.left().saturating_sub(self.limit / KEPT);
        held + more <= RESERVE + shared / SHARE
    }

    /// Whether it runs short.
    pub(crate) const fn is_short(&self) -> bool {
        self.left() < self.limit / KEPT + RESERVE
    }

    /// Whether there is nothing left for one more connection of any kind.
    pub(crate) const fn is_used_up(&self) -> bool {
        self.left() < RESERVE
    }

    /// A connection that had `before` bytes has `now`; 0: it is not in the table.
    fn note(&mut self, before: usize, now: usize) {
        self.held = self.held - before + now;
        self.taken = self.taken - counted(before) + counted(now);
    }

    /// Notes that a connection that counted with `charged` bytes has allocated `memory`.
    pub(crate) fn charge(&mut self, charged: &mut u32, memory: usize) {
        let before = *charged as usize;
        if memory != before {
            // A connection is far smaller than 4 GiB: 16 lanes of `limits.mappings` runs.
            *charged = u32::try_from(memory).unwrap_or(u32::MAX);
            self.note(before, *charged as usize);
        }
    }

    /// A connection that counted with `charged` bytes leaves.
    pub(crate) fn discharge(&mut self, charged: &mut u32) {
        self.note(core::mem::take(charged) as usize, 0);
    }

    /// More is taken than there is.
    pub(crate) const fn is_overdrawn(&self) -> bool {
        self.taken > self.limit
    }

    /// The next of so many places of the table, round and round.
    pub(crate) const fn next_place(&mut self, places: usize) -> usize {
        let place = self.hand;
        self.hand = if place + 1 < places { place + 1 } else { 0 };
        place
    }

    /// Adds what it shows.
    pub(crate) fn gauges(&self, others: Gauges) -> Gauges {
        let bytes = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        Gauges {
            memory_bytes: bytes(self.held),
            memory_reserved_bytes: bytes(self.taken - self.held),
            ..others
        }
    }
}

/// What counts against the budget for a connection that has so many bytes.
fn counted(held: usize) -> usize {
    if held == 0 { 0 } else { held.max(RESERVE) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn share_shrinks_with_what_is_left_and_the_reserve_stays() {
        let shared = 64 * 10_000 + 2 * RESERVE;
        let mut budget = Budget::new(shared + shared / 7);
        budget.note(0, 100);
        budget.note(0, 100);
        assert!(budget.allows(RESERVE, 10_000) && !budget.allows(RESERVE, 10_001));
        budget.note(100, RESERVE + 32 * 10_000);
        assert!(budget.allows(RESERVE, 5_000) && !budget.allows(RESERVE, 5_001));
        budget.note(100, RESERVE + 40 * 10_000);
        assert!(budget.allows(1000, RESERVE - 1000) && !budget.allows(RESERVE, 1));
        assert!(budget.is_short() && !budget.is_used_up());
        budget.note(RESERVE + 32 * 10_000, 0);
        budget.note(RESERVE + 40 * 10_000, 0);
        assert_eq!((budget.held, budget.taken), (0, 0));
    }
}

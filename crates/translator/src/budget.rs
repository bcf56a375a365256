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

use core::time::Duration;

use crate::cause::Rst;
use crate::connection::{Connection, Context, Phase, Subflow, SubflowIndex};
use crate::table::ConnectionId;
use crate::translator::{Translator, context};
use crate::{Gauges, Instant};

/// Bytes that each connection may have: itself, two subflows, and some runs of mappings on each.
pub(crate) const RESERVE: usize = 2048;

/// One part in so many of what is left may be taken by one connection.
const SHARE: usize = 64;

/// One part in so many of the budget is kept for plain connections that FlexCP itself is the end of.
const KEPT: usize = 8;

/// Places of the table that are looked at with each packet while memory is short.
const STEPS: usize = 4;

/// A client that was not heard for so long has no use for room that stands ready.
const QUIET: Duration = Duration::from_secs(1);

/// A client that was not heard for so long has to do without what it holds beyond its part.
const SILENT: Duration = Duration::from_secs(30);

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

    /// Notes what a connection has allocated: after any use of it.
    pub(crate) fn charge(&mut self, connection: &mut Connection) {
        let memory = connection.memory();
        let before = connection.charged as usize;
        if memory != before {
            // A connection is far smaller than 4 GiB: 16 lanes of `limits.mappings` runs.
            connection.charged = u32::try_from(memory).unwrap_or(u32::MAX);
            self.note(before, connection.charged as usize);
        }
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

impl Connection {
    /// Bytes that it has allocated: itself, its subflows, their mappings, a copy.
    pub(crate) fn memory(&self) -> usize {
        let lanes = |subflow: &Subflow| subflow.up.memory() + subflow.down.memory();
        size_of::<Self>()
            + self.subflows.capacity() * size_of::<Subflow>()
            + self.subflows.iter().map(lanes).sum::<usize>()
            + self.spare.as_ref().map_or(0, |spare| spare.memory())
    }

    /// Whether the budget lets it take so many bytes more; counts it if not.
    pub(crate) fn may_take(&self, ctx: &mut Context<'_>, more: usize) -> bool {
        let may = ctx.budget.allows(self.charged as usize, more);
        ctx.counters.memory_refused += u64::from(!may);
        may
    }

    /// When its client was heard last.
    fn last_heard(&self) -> Instant {
        let heard = self.subflows.iter().map(|subflow| subflow.last_heard);
        heard.fold(self.opened, Instant::max)
    }

    /// Gives back what stands ready for mappings that there are not; `true`: there was some.
    fn trim(&mut self) -> bool {
        let before = self.memory();
        for subflow in &mut self.subflows {
            subflow.up.trim();
            subflow.down.trim();
        }
        self.memory() < before
    }

    /// The subflow whose mappings take the most.
    fn largest(&self) -> SubflowIndex {
        let size = |&index: &SubflowIndex| {
            let subflow = self.subflow(index);
            subflow.up.memory() + subflow.down.memory()
        };
        self.indices().max_by_key(size).unwrap_or(0)
    }
}

impl Translator {
    /// Notes what a connection has allocated where it is used without being settled.
    pub(crate) fn charge(&mut self, id: ConnectionId) {
        if let Some(connection) = self.table.get_mut(id) {
            self.budget.charge(connection);
        }
    }

    /// A connection leaves the table.
    pub(crate) fn discharge(&mut self, id: ConnectionId) {
        if let Some(connection) = self.table.get_mut(id) {
            let before = core::mem::take(&mut connection.charged);
            self.budget.note(before as usize, 0);
        }
    }

    /// While memory is short: quiet connections among the next few places of the table give back what they do not need.
    /// So each comes to its turn, and one that was just heard has been passed by until then.
    pub(crate) fn reclaim(&mut self, now: Instant) {
        for _ in 0..STEPS {
            let hand = self.budget.hand;
            self.budget.hand = if hand + 1 < self.table.places() {
                hand + 1
            } else {
                0
            };
            if let Ok(id) = u32::try_from(hand) {
                self.reclaim_from(now, id);
            }
        }
    }

    fn reclaim_from(&mut self, now: Instant, id: ConnectionId) {
        let Some(connection) = self.table.get_mut(id) else {
            return;
        };
        let quiet = now.since(connection.last_heard());
        let reserved = connection.charged as usize <= RESERVE;
        // What is installed is not quiet, and its mappings are elsewhere.
        if reserved || connection.installation.is_installed() || quiet < QUIET {
            return;
        }
        self.counters.memory_trimmed += u64::from(connection.trim());
        self.charge(id);
        if quiet >= SILENT {
            self.pay(now, id);
        }
    }

    /// A connection that has more than its part loses the subflow whose mappings take the most.
    fn pay(&mut self, now: Instant, id: ConnectionId) {
        let Some(connection) = self.table.get_mut(id) else {
            return;
        };
        let allowed = self.budget.allows(connection.charged as usize, 0);
        if allowed || connection.phase != Phase::Established {
            return;
        }
        let largest = connection.largest();
        let mut ctx = context!(self, now);
        connection.reset_subflow(&mut ctx, largest, Rst::Memory);
        self.settle_at(now, now, id);
    }

    /// Where all is taken after all: the connection that has just taken more than what is its own pays for it.
    pub(crate) fn collect(&mut self, now: Instant, id: ConnectionId) {
        if self.budget.taken > self.budget.limit {
            self.pay(now, id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserve_holds_two_subflows_and_some_runs_on_each() {
        let bare = size_of::<Connection>() + 2 * size_of::<Subflow>();
        let lanes = 4 * 4 * 20;
        assert!(
            bare + lanes <= RESERVE,
            "{} {}",
            size_of::<Connection>(),
            size_of::<Subflow>()
        );
    }

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

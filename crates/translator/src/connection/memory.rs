//! The memory that a connection takes, and gives back.

use super::{Asking, Connection, Context, Subflow};
use crate::handle::SubflowIndex;
use crate::time::Instant;

impl Connection {
    /// Bytes that it has allocated: itself, its subflows, their mappings, a copy.
    pub(crate) fn memory(&self) -> usize {
        let lanes = |subflow: &Subflow| subflow.recv.lane.memory() + subflow.send.lane.memory();
        size_of::<Self>()
            + self.mptcp.subflows.capacity() * size_of::<Subflow>()
            + self.mptcp.subflows.iter().map(lanes).sum::<usize>()
            + self.mptcp.spare.as_ref().map_or(0, |spare| spare.memory())
            + self.front.as_ref().map_or(0, |front| front.memory())
            + self.hosted.as_ref().map_or(0, |hosted| hosted.memory())
            + self.asking.as_deref().map_or(0, Asking::memory)
    }

    /// Whether the budget lets it take so many bytes more; counts it if not.
    pub(crate) fn may_take(&self, ctx: &mut Context<'_>, more: usize) -> bool {
        let may = ctx.budget.allows(self.links.charged as usize, more);
        ctx.counters.memory_refused += u64::from(!may);
        may
    }

    /// When its client was heard last.
    pub(crate) fn last_heard(&self) -> Instant {
        let heard = self
            .mptcp
            .subflows
            .iter()
            .map(|subflow| subflow.path.last_heard);
        heard.fold(self.opened, Instant::max)
    }

    /// Gives back what stands ready for mappings that there are not; `true`: there was some.
    pub(crate) fn trim(&mut self) -> bool {
        let before = self.memory();
        for subflow in &mut self.mptcp.subflows {
            subflow.recv.lane.trim();
            subflow.send.lane.trim();
        }
        self.memory() < before
    }

    /// The subflow whose mappings take the most.
    pub(crate) fn largest(&self) -> SubflowIndex {
        let size = |&index: &SubflowIndex| {
            let subflow = self.subflow(index);
            subflow.recv.lane.memory() + subflow.send.lane.memory()
        };
        self.indices().max_by_key(size).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::RESERVE;

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
}

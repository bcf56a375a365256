//! What a connection's subflows tell of the accesses by which they come.

use super::{Connection, Context, Phase, Subflow};
use crate::access::Accesses;
use crate::arrivals::{Arrivals, Traffic};
use crate::handle::{INITIAL, SubflowIndex};
use crate::history::Sample;

impl Subflow {
    /// Notes by which way packets leave for its client. `true`: by another than before.
    pub(crate) fn find_way(&mut self, arrivals: &mut Arrivals) -> bool {
        let way = arrivals.guide.find(self.ends());
        core::mem::replace(&mut self.way, way) != way
    }
}

impl Connection {
    /// The client has shown that it is there.
    pub(crate) fn arrives(&mut self, accesses: &Accesses, arrivals: &mut Arrivals) {
        let initial = self.subflow_mut(INITIAL);
        initial.find_way(arrivals);
        let access = initial.access(accesses);
        if matches!(self.phase, Phase::Plain(_)) {
            arrivals.note_plain(access);
        } else {
            arrivals.note_opened(access);
        }
    }

    /// It is about to leave the table, and its subflows with it.
    pub(crate) fn leaves(&self, accesses: &Accesses, arrivals: &mut Arrivals) {
        self.note_history(accesses, arrivals);
        for index in self.indices() {
            if self.subflow(index).lives() {
                self.note_closed(accesses, arrivals, index);
            }
        }
    }

    /// What it has shown to those that come over the same access: what was sent again on all of its subflows, and what waits before
    /// the one that has carried the most.
    fn note_history(&self, accesses: &Accesses, arrivals: &mut Arrivals) {
        if self.phase.is_relayed() {
            return;
        }
        let initial = self.subflow(INITIAL);
        let from = initial.remote.addr().ip();
        let subflows = self.mptcp.subflows.iter();
        let sum = |of: fn(&Traffic) -> u64| subflows.clone().map(|it| of(&it.traffic)).sum();
        let busiest = subflows.clone().max_by_key(|it| it.traffic.bytes_down);
        let queue = busiest.and_then(|busiest| {
            let rtt = &busiest.path.rtt;
            Some(rtt.smoothed()?.saturating_sub(rtt.least()?))
        });
        let sample = Sample {
            several: subflows.clone().any(|it| it.remote.addr().ip() != from),
            bytes: sum(|traffic| traffic.bytes_down),
            again: sum(|traffic| traffic.retransmitted_down),
            queue,
        };
        arrivals.history(initial.access(accesses)).note(sample);
    }

    /// A subflow is over.
    pub(super) fn note_closed(
        &self,
        accesses: &Accesses,
        arrivals: &mut Arrivals,
        index: SubflowIndex,
    ) {
        let subflow = self.subflow(index);
        arrivals.note_closed(subflow.access(accesses), subflow.traffic);
    }

    /// The third packet of a join has come.
    pub(super) fn note_joined(&self, ctx: &mut Context<'_>, index: SubflowIndex) {
        let access = self.subflow(index).access(&ctx.config.accesses);
        ctx.arrivals.note_opened(access);
    }

    /// The options of a subflow do not come through.
    pub(super) fn note_stripped(&self, ctx: &mut Context<'_>, index: SubflowIndex) {
        let access = self.subflow(index).access(&ctx.config.accesses);
        ctx.arrivals.note_stripped(access);
    }

    /// Routes may have changed: asks by which ways packets leave now. `true`: some by others than before.
    pub(crate) fn find_ways(&mut self, arrivals: &mut Arrivals) -> bool {
        let mut changed = false;
        for subflow in &mut self.mptcp.subflows {
            changed |= subflow.lives() && subflow.find_way(arrivals);
        }
        changed
    }
}

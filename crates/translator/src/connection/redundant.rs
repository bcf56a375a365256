//! The server's data down several paths at once, as the redundant mode wants it.
//!
//! The active subflow carries all data, as ever. Each of the others gets a mapping of its own for the same data (RFC 8684
//! section 3.3.1), and the client takes what comes first. A copy that is lost leaves a hole on its subflow which the server
//! does not close, as the client has the data: filler has to (`hole.rs`). So that this stays little, a subflow that lags gets
//! no copies until it has caught up, and the active one is left when it lags itself.

use super::choice::PathView;
use super::place::Placed;
use super::{Connection, Context, choice};
use crate::cause::SubflowSwitch;
use crate::handle::SubflowIndex;

/// What the client may have from other paths, in bytes, of what was sent down a subflow and is not ACKed there: more than a
/// way that is longer by 20 ms makes up at 100 Mbit/s.
const LAG: u64 = 256 * 1024;

impl Connection {
    /// How far a subflow is behind: from the first byte that is not ACKed there to the data ACK.
    fn lag(&self, index: SubflowIndex) -> u64 {
        let send = &self.subflow(index).send;
        let first = send.lane.by_ssn(send.una);
        let behind = first.filter(|(missing, _)| missing.before(self.to_mptcp.acked));
        behind.map_or(0, |(missing, _)| self.to_mptcp.acked.since(missing))
    }

    /// Whether a subflow keeps up with the others, so that copies of new data have a use there.
    fn keeps_up(&self, index: SubflowIndex) -> bool {
        self.lag(index) <= LAG && !self.is_filling(index)
    }

    /// Whether data is missing on a path, so that no mode is to choose it. What others have brought of copies may still be on its
    /// way there: a path of longer delay always lacks some, and keeps up for all that.
    pub(super) fn misses(&self, path: &PathView) -> bool {
        path.hole && !(self.mptcp.steered.copies() && self.keeps_up(path.index))
    }

    /// A subflow that is silent counts as failed: no server repeats what another path has brought, so nothing else would show
    /// it.
    pub(super) fn suspect_silent(&mut self, ctx: &Context<'_>, index: SubflowIndex) {
        if self.mptcp.steered.copies() {
            let silence = ctx.config.timeouts.silence;
            let subflow = self.subflow_mut(index);
            subflow.path.suspect |= subflow.is_silent(ctx.now, silence);
        }
    }

    /// Another path becomes the active one while that lags.
    pub(super) fn leave_lagging(&mut self, ctx: &mut Context<'_>) {
        let active = self.mptcp.active;
        if !self.mptcp.steered.copies() || self.keeps_up(active) {
            return;
        }
        let good =
            |path: &PathView| choice::against(path.standing).is_none() && self.keeps_up(path.index);
        let other = self.carrying(|_| true).find(good);
        if let Some(other) = other.map(|path| path.index) {
            self.move_to(ctx, other, SubflowSwitch::Lagging);
        }
    }

    /// Where data that has its place goes, too: subflows that have nothing of it or behind it.
    pub(super) fn copy_places(
        &mut self,
        ctx: &mut Context<'_>,
        first: &Placed,
    ) -> impl Iterator<Item = Placed> + use<> {
        let mut places = [None; 8];
        if self.mptcp.steered.copies() {
            for (place, index) in places.iter_mut().zip(self.indices()) {
                if index != first.subflow {
                    *place = self.place_copy(ctx, index, first);
                }
            }
        }
        places.into_iter().flatten()
    }

    fn place_copy(
        &mut self,
        ctx: &mut Context<'_>,
        index: SubflowIndex,
        first: &Placed,
    ) -> Option<Placed> {
        let &Placed { dsn, len, .. } = first;
        let subflow = self.subflow(index);
        let ssn = subflow.send.next;
        let lane = &subflow.send.lane;
        let room = subflow.has_room(len) || subflow.has_room_untold(len);
        let in_order = lane.dsn_end().is_none_or(|end| !end.after(dsn));
        let bounded = lane.len() <= ctx.config.limits.mappings
            && (lane.takes_in_place(dsn, ssn, len) || self.may_take(ctx, lane.growth()));
        if !subflow.carries() || !room || !in_order || !bounded {
            return None;
        }
        self.suspect_silent(ctx, index);
        if choice::against(self.standing(index)).is_some() || !self.keeps_up(index) {
            return None;
        }
        Some(self.place_behind(ctx.now, index, dsn, len))
    }
}

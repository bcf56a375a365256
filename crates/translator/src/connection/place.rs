//! Where the server's data goes: which subflow, at which SSN, under which mapping.
//!
//! New data goes down on the active subflow and is declared there. Data that went down before goes
//! under the mapping it was declared with, on the same subflow, as long as that subflow can still
//! deliver it; otherwise it gets a fresh SSN (RFC 8684 section 3.3.6).
//!
//! Data that is skipped keeps its place before what has overtaken it. What the client misses before that, and
//! no subflow can deliver, takes that place: the server repeats the earliest first, and behind a hole nothing
//! would arrive, so the server would never come to what closes it.

use core::time::Duration;

use flexcp_wire::{Dsn, Ssn};

use super::subflow::{Sending, Timed};
use super::{Connection, Context};
use crate::cause::Rst;
use crate::handle::SubflowIndex;
use crate::time::Instant;

/// Longest mapping that is declared for one piece: it has to fit one IPv4 packet with all headers.
const MAX_MAPPING: u32 = 0xffff - 20 - 60;

/// How long the server repeats a byte that no subflow can deliver before one of them is given up.
const STUCK: Duration = Duration::from_secs(2);

/// A piece of the server's data and the mapping that it goes under.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Placed {
    pub(crate) subflow: SubflowIndex,
    pub(crate) dsn: Dsn,
    pub(crate) ssn: Ssn,
    pub(crate) len: u32,
    /// It went down before.
    pub(crate) again: bool,
    /// The mapping as declared: it may start before the piece and end behind it.
    pub(crate) mapping: (Dsn, Ssn, u32),
}

impl Connection {
    /// Places the data from `dsn` on, as much of `len` bytes as one mapping holds. `None`: there is no
    /// subflow to carry it, or too much is outstanding on it.
    pub(crate) fn place(&mut self, ctx: &mut Context<'_>, dsn: Dsn, len: u32) -> Option<Placed> {
        let len = len.min(MAX_MAPPING);
        let active = self.usable_active(ctx)?;
        if !dsn.before(self.to_mptcp.next) {
            // What went down before goes again all the same: its ACK makes room.
            let down = &self.subflow(active).send.lane;
            if down.len() > ctx.config.limits.mappings {
                return None;
            }
            let takes = down.takes_in_place(dsn, self.subflow(active).send.next, len);
            if !takes && !self.may_take(ctx, down.growth()) {
                return None;
            }
            let active = self.active_with_room(ctx, active, len);
            let len = self
                .trial(ctx, active, dsn)
                .map_or(len, |most| len.min(most));
            let index = self.instead_of_trial(active, len);
            return Some(self.place_new(ctx, index, dsn, len));
        }
        let left = self.to_mptcp.next.since(dsn);
        let len = u32::try_from(left).map_or(len, |left| len.min(left));
        let open = self.open_for(active, dsn);
        if dsn == self.to_mptcp.acked && self.is_stuck(ctx, open) {
            self.resolve(ctx, active);
            return self.place(ctx, dsn, len);
        }
        let suspect = |i: SubflowIndex| self.subflow(i).path.suspect && i != active;
        let best = match open {
            Some(index) if !suspect(index) => index,
            // It may be held up for a moment only; a silent path comes after that.
            _ if !self.holds(active, dsn) => active,
            Some(index) => index,
            None => active,
        };
        if self.holds(best, dsn) {
            self.place_again(ctx, best, dsn, len)
        } else {
            let len = self.trial(ctx, best, dsn).map_or(len, |most| len.min(most));
            Some(self.place_fresh(ctx, best, dsn, len))
        }
    }

    /// Whether the server has repeated the client's next byte for some time, and no subflow could deliver
    /// it though the client was heard: each misses something later that the server believes delivered, because another
    /// one SACKed it. It takes a client that dropped what it had ACKed on a subflow, and holes on all of them.
    fn is_stuck(&mut self, ctx: &Context<'_>, open: Option<SubflowIndex>) -> bool {
        if open.is_some() {
            self.to_mptcp.stuck = None;
            return false;
        }
        let since = *self.to_mptcp.stuck.get_or_insert(ctx.now);
        let heard = |index: SubflowIndex| {
            let subflow = self.subflow(index);
            subflow.carries() && subflow.path.last_heard > since
        };
        ctx.now.since(since) >= STUCK && self.indices().any(heard)
    }

    /// Gives up a subflow that can't deliver: what it SACKed is taken back with it, and the client may join
    /// again without a hole (RFC 8684 section 3.6).
    fn resolve(&mut self, ctx: &mut Context<'_>, active: SubflowIndex) {
        self.to_mptcp.stuck = None;
        let carries = |&index: &SubflowIndex| self.subflow(index).carries();
        let other = self.indices().filter(carries).find(|&i| i != active);
        self.reset_subflow(ctx, other.unwrap_or(active), Rst::Stuck);
    }

    /// Whether data on this subflow waits for later data: it went down under a fresh SSN behind a byte
    /// with a larger DSN that the client still misses. The server repeats the earliest first and would
    /// not come to what is missing.
    pub(super) fn is_blocked(&self, index: SubflowIndex, dsn: Dsn) -> bool {
        let Sending { lane, una, .. } = &self.subflow(index).send;
        // What is only reserved gives its place to earlier data.
        let first_missing = lane.mapping_by_ssn(*una).filter(|first| first.declared);
        first_missing.is_some_and(|first| first.dsn.add(una.since(first.ssn).into()).after(dsn))
    }

    /// Data behind all that went down so far. What is skipped keeps its place before it.
    fn place_new(&mut self, ctx: &Context<'_>, index: SubflowIndex, dsn: Dsn, len: u32) -> Placed {
        self.reserve_up_to(ctx.now, index, dsn);
        self.to_mptcp.next = dsn.add(u64::from(len));
        self.place_behind(ctx.now, index, dsn, len)
    }

    /// Places data behind all that went down the subflow, under a mapping of its own.
    pub(super) fn place_behind(
        &mut self,
        now: Instant,
        index: SubflowIndex,
        dsn: Dsn,
        len: u32,
    ) -> Placed {
        let subflow = self.subflow_mut(index);
        let ssn = subflow.send.next;
        subflow.send.lane.append(dsn, ssn, len);
        subflow.sent_new(now, len);
        Placed {
            subflow: index,
            dsn,
            ssn,
            len,
            again: false,
            mapping: (dsn, ssn, len),
        }
    }

    /// Data that was skipped keeps its place on the subflow: it has only been overtaken.
    fn reserve_up_to(&mut self, now: Instant, index: SubflowIndex, dsn: Dsn) {
        let start = self.to_mptcp.next;
        let Ok(gap) = u32::try_from(dsn.since(start)) else {
            return;
        };
        if gap > 0 {
            let subflow = self.subflow_mut(index);
            subflow.send.lane.reserve(start, subflow.send.next, gap);
            subflow.sent_new_hole(now, gap);
            self.to_mptcp.next = dsn;
        }
    }

    /// Whether this subflow has the data outstanding.
    pub(super) fn holds(&self, index: SubflowIndex, dsn: Dsn) -> bool {
        let subflow = self.subflow(index);
        subflow.carries()
            && subflow
                .send
                .lane
                .by_dsn_from(dsn, subflow.send.una)
                .is_some()
    }

    /// On the subflow that holds it.
    pub(super) fn place_again(
        &mut self,
        ctx: &Context<'_>,
        index: SubflowIndex,
        dsn: Dsn,
        len: u32,
    ) -> Option<Placed> {
        let subflow = self.subflow_mut(index);
        let mapping = subflow.send.lane.by_dsn_from(dsn, subflow.send.una)?;
        let offset = distance(dsn, mapping.dsn);
        let ssn = mapping.ssn.add(offset);
        let len = len.min(mapping.len - offset);
        if mapping.declared {
            subflow.sent_again(ssn, len);
            let mapping = (mapping.dsn, mapping.ssn, mapping.len);
            return Some(Placed {
                subflow: index,
                dsn,
                ssn,
                len,
                again: true,
                mapping,
            });
        }
        // Its place was reserved; this is the first time that it goes down.
        subflow.send.lane.declare(dsn, ssn, len);
        subflow.traffic.bytes_down += u64::from(len);
        subflow.path.outstanding_since = subflow.path.outstanding_since.max(ctx.now);
        Some(Placed {
            subflow: index,
            dsn,
            ssn,
            len,
            again: false,
            mapping: (dsn, ssn, len),
        })
    }

    /// Under a fresh SSN, up to what a usable subflow still holds: in the place of later data that has not come yet, or behind
    /// all others.
    fn place_fresh(
        &mut self,
        ctx: &Context<'_>,
        index: SubflowIndex,
        dsn: Dsn,
        len: u32,
    ) -> Placed {
        let len = self.fresh_len(index, dsn, len);
        self.numbers.identity = false;
        let subflow = self.subflow_mut(index);
        let Sending { lane, una, .. } = &mut subflow.send;
        let (ssn, len) = if let Some((ssn, len)) = lane.displace(*una, dsn, len) {
            subflow.sent_again(ssn, len);
            subflow.path.outstanding_since = subflow.path.outstanding_since.max(ctx.now);
            (ssn, len)
        } else {
            let ssn = subflow.send.next;
            subflow.send.lane.append(dsn, ssn, len);
            subflow.sent_new(ctx.now, len);
            subflow.path.timed = Timed::Nothing;
            subflow.traffic.retransmitted_down += u64::from(len);
            (ssn, len)
        };
        Placed {
            subflow: index,
            dsn,
            ssn,
            len,
            again: true,
            mapping: (dsn, ssn, len),
        }
    }

    /// As much of `len` bytes from `dsn` on as the subflow has to carry under a fresh SSN.
    fn fresh_len(&self, index: SubflowIndex, dsn: Dsn, len: u32) -> u32 {
        // What the subflow has not ACKed goes again where it stands: nobody else would close that hole.
        let Sending { lane, una, .. } = &self.subflow(index).send;
        let len = lane.by_dsn(dsn).map_or(len, |mapping| {
            let offset = distance(dsn, mapping.dsn);
            let ssn = mapping.ssn.add(offset);
            let acked = if ssn.before(*una) {
                una.since(ssn)
            } else {
                len
            };
            len.min(acked).min(mapping.len - offset)
        });
        match lane.next_dsn(dsn) {
            Some(next) if next.since(dsn) < u64::from(len) => distance(next, dsn),
            _ => len,
        }
    }
}

/// Distance between two DSNs that belong to one packet or mapping.
#[allow(
    clippy::cast_possible_truncation,
    reason = "a mapping is at most 64 KiB long"
)]
const fn distance(dsn: Dsn, base: Dsn) -> u32 {
    dsn.since(base) as u32
}

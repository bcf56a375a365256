//! Copies of the server's data, for when the path that it went over turns out to be dead.
//!
//! What the server sends while an answer is overdue goes over another path (its tail loss probe, RFC 8985 section 7).
//! If that is dead, too, the packet leaves a hole there that the server does not close: its retransmission timer
//! repeats its first byte, and nothing else until that is ACKed, and the client can't take it there behind the hole.
//! So a path that was silent gets one packet until its client is heard, and FlexCP keeps a copy of that packet. Whatever
//! the server repeats brings it along, and goes over each path that has it.

use alloc::boxed::Box;

use flexcp_wire::{DataNumber, Dsn, DssMapping, Ssn, TcpFlags};

use super::place::Placed;
use super::{Connection, Context, Subflow, choice};
use crate::handle::{SubflowIndex, SubflowSet};
use crate::time::Instant;

/// TCP options at most.
const OPTIONS: u16 = 40;

/// A packet's data on a subflow on which nothing else was outstanding.
#[derive(Clone, Debug)]
pub(crate) struct Spare {
    subflow: SubflowIndex,
    ssn: Ssn,
    payload: Box<[u8]>,
    /// When it went down.
    kept: Instant,
}

impl Spare {
    /// Bytes that it has allocated.
    pub(crate) const fn memory(&self) -> usize {
        size_of::<Self>() + self.payload.len()
    }
}

impl Connection {
    /// The most that goes down at `dsn` in one packet on a subflow that nothing is outstanding on, while another is
    /// silent; `None`: as much as there is.
    pub(crate) fn trial(&self, ctx: &Context<'_>, index: SubflowIndex, dsn: Dsn) -> Option<u32> {
        let subflow = self.subflow(index);
        let tries = dsn != self.to_mptcp.acked && subflow.send.una == subflow.send.next;
        let most = subflow.agreed.mss.saturating_sub(OPTIONS).max(1);
        (tries && self.follows_silence(ctx, index)).then_some(most.into())
    }

    /// Whether another subflow is silent, and the client has not been heard on this one since it should have answered there.
    fn follows_silence(&self, ctx: &Context<'_>, index: SubflowIndex) -> bool {
        let heard = self.subflow(index).path.last_heard;
        self.indices().any(|other| {
            let subflow = self.subflow(other);
            let silent = other != index && subflow.carries() && subflow.path.suspect;
            silent && heard < subflow.answer_due(ctx.config.timeouts.silence)
        })
    }

    /// The subflow for new data instead of the active one, as long as that has a packet on trial: the one that was heard
    /// last of those that have room.
    pub(crate) fn instead_of_trial(&self, active: SubflowIndex, len: u32) -> SubflowIndex {
        let on_trial = self.mptcp.spare.as_deref().is_some_and(|spare| {
            spare.subflow == active && self.subflow(active).path.last_heard < spare.kept
        });
        if !on_trial {
            return active;
        }
        let roomy = self.carrying(|subflow| subflow.has_room(len));
        choice::instead_of_trial(roomy, active).unwrap_or(active)
    }

    /// Keeps a copy of what goes down on trial.
    pub(crate) fn keep_spare(&mut self, ctx: &mut Context<'_>, placed: &Placed, payload: &[u8]) {
        let &Placed {
            subflow,
            dsn,
            ssn,
            len,
            ..
        } = placed;
        let Subflow { send, agreed, .. } = self.subflow(subflow);
        let alone = (send.una, send.next) == (ssn, ssn.add(len)) && dsn != self.to_mptcp.acked;
        let known = self
            .mptcp
            .spare
            .as_ref()
            .is_some_and(|spare| (spare.subflow, spare.ssn) == (subflow, ssn));
        let fits = payload.len() <= usize::from(agreed.mss);
        let wanted = alone && fits && !known && self.follows_silence(ctx, subflow);
        if wanted && self.may_take(ctx, size_of::<Spare>() + payload.len()) {
            self.mptcp.spare = Some(Box::new(Spare {
                subflow,
                ssn,
                payload: payload.into(),
                kept: ctx.now,
            }));
        }
    }

    /// Lets go of the copy once the client has ACKed what it holds, or the subflow is over.
    pub(crate) fn let_go_spare(&mut self, index: SubflowIndex) {
        let subflow = self.subflow(index);
        let (over, una) = (!subflow.lives(), subflow.send.una);
        self.mptcp
            .spare
            .take_if(|spare| spare.subflow == index && (over || una.after(spare.ssn)));
    }

    /// Whether this subflow has the data outstanding, and it has gone down there.
    fn has_sent(&self, index: SubflowIndex, dsn: Dsn) -> bool {
        let subflow = self.subflow(index);
        let mapping = subflow.send.lane.by_dsn_from(dsn, subflow.send.una);
        subflow.carries() && mapping.is_some_and(|mapping| mapping.declared)
    }

    /// Whether copies may go down: once in the time that counts as silence.
    pub(crate) fn may_copy(&self, ctx: &Context<'_>) -> bool {
        ctx.now.since(self.mptcp.copied) >= ctx.config.timeouts.silence
    }

    /// Sends the copy that is kept again, beside what goes down on `told`.
    pub(crate) fn repeat_spare(&mut self, ctx: &mut Context<'_>, told: SubflowSet) {
        let silence = ctx.config.timeouts.silence;
        let goes = |spare: &&Spare| {
            told & (1 << spare.subflow) != 0 && ctx.now.since(spare.kept) >= silence
        };
        let Some(spare) = self.mptcp.spare.as_deref().filter(goes) else {
            return;
        };
        let (index, ssn, payload) = (spare.subflow, spare.ssn, spare.payload.clone());
        let Some(mapping) = self.subflow(index).send.lane.mapping_by_ssn(ssn) else {
            return;
        };
        self.mptcp.copied = ctx.now;
        let len = u32::try_from(payload.len()).unwrap_or(0);
        let subflow = self.subflow_mut(index);
        subflow.sent_again(ssn, len);
        let option = DssMapping {
            dsn: DataNumber::Long(mapping.dsn.0),
            ssn: subflow.relative(mapping.ssn),
            len: u16::try_from(mapping.len).unwrap_or(u16::MAX),
            checksum: None,
        };
        let mut outgoing = self.own_to_mptcp(index, TcpFlags::ACK);
        outgoing.seq = ssn.0;
        self.push_dss(&mut outgoing, Some(option), false);
        ctx.counters.spare_tx += 1;
        ctx.send(outgoing.with_payload(payload));
    }

    /// Other places of what the server repeats, while nobody knows a path that delivers it: it goes to each.
    pub(crate) fn other_places(
        &mut self,
        ctx: &Context<'_>,
        first: &Placed,
    ) -> impl Iterator<Item = Placed> + use<> {
        let subflow = self.subflow(first.subflow);
        let waits = first.again && first.dsn == self.to_mptcp.acked;
        let doubtful = subflow.path.suspect || self.is_blocked(first.subflow, first.dsn);
        let mut places = [None; 8];
        if waits && doubtful {
            for (place, index) in places.iter_mut().zip(self.indices()) {
                if index != first.subflow && self.has_sent(index, first.dsn) {
                    *place = self.place_again(ctx, index, first.dsn, first.len);
                    self.mptcp.copied = ctx.now;
                }
            }
        }
        places.into_iter().flatten()
    }
}

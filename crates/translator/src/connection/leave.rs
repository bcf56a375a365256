//! Uplinks of an aggregation box that are lost: subflows on them are over, and the peer is told at once (`REMOVE_ADDR`, RFC 8684
//! section 3.4.2). It would go on sending there otherwise, until its own timers say that the path is dead.

use core::time::Duration;

use flexcp_wire::{MptcpOption, RemoveAddr, TcpFlags, TcpOption};

use super::ask_join::MAX_UPLINKS;
use super::{Connection, Context, Phase, Subflow, SubflowState};
use crate::event::EndCause;
use crate::handle::{INITIAL, SubflowIndex};
use crate::time::Instant;
use crate::uplink::Uplink;

/// Until the peer is told again, as nothing says that it has heard; twice as long the next time.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// So often it is told.
const MOST_TIMES: u8 = 3;

/// Addresses that the peer is told to be gone.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Removed {
    /// Their ids, a bit each.
    ids: u16,
    /// Times that it was told of them.
    times: u8,
    due: Option<Instant>,
}

impl Removed {
    pub(super) const fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Another one, to be told at once with those that were told before.
    const fn add(&mut self, now: Instant, id: u8) {
        self.ids |= 1 << id;
        self.times = 0;
        self.due = Some(now);
    }

    /// The address is there again.
    const fn forget(&mut self, id: u8) {
        self.ids &= !(1 << id);
        if self.ids == 0 {
            self.due = None;
        }
    }

    /// What is to be told now, and when again.
    fn next(&mut self, now: Instant) -> Option<u16> {
        self.due.filter(|due| *due <= now)?;
        let ids = self.ids;
        let pause = FIRST_PAUSE * (1 << self.times);
        self.times += 1;
        let again = self.times < MOST_TIMES;
        self.due = again.then(|| now + pause);
        if !again {
            self.ids = 0;
        }
        Some(ids)
    }
}

impl Connection {
    /// The id that the peer knows the address of FlexCP's end by; that of the initial subflow is 0 (RFC 8684 section 3.2).
    pub(super) fn address_id_of(&self, index: SubflowIndex) -> u8 {
        match index {
            INITIAL => 0,
            _ => self.subflow(index).join.uplink.saturating_add(1),
        }
    }

    /// The peer hears of the address of this subflow, which it may have been told to be gone.
    pub(super) fn note_address_used(&mut self, index: SubflowIndex) {
        let id = self.address_id_of(index);
        if let Some(asking) = &mut self.asking {
            asking.joins.removed.forget(id);
        }
    }

    /// The peer has not answered, and the uplink that it was asked over is gone.
    pub(crate) fn is_unheard_on_lost(&self, uplinks: &[Uplink]) -> bool {
        self.phase == Phase::SynSent && !is_there(self.subflow(INITIAL), uplinks)
    }

    /// Subflows on uplinks that are gone are over, unless there is no other.
    pub(crate) fn leave_uplinks(&mut self, ctx: &mut Context<'_>) {
        if !self.asks() || !self.phase.is_established() {
            return;
        }
        let uplinks = ctx.services.uplinks(self.service);
        let carries = |subflow: &Subflow| {
            subflow.state == SubflowState::Established && is_there(subflow, uplinks)
        };
        let another = self.mptcp.subflows.iter().any(carries);
        for index in self.indices() {
            let subflow = self.subflow(index);
            let joining = subflow.state == SubflowState::Joining;
            if !subflow.lives() || is_there(subflow, uplinks) || !(another || joining) {
                continue;
            }
            let id = self.address_id_of(index);
            if let Some(asking) = &mut self.asking {
                asking.joins.removed.add(ctx.now, id);
            }
            self.close_subflow(ctx, index, EndCause::UplinkLost);
        }
        self.repeat_removed(ctx);
    }

    /// Tells the peer of addresses that are gone, when it is due, on all subflows.
    pub(super) fn repeat_removed(&mut self, ctx: &mut Context<'_>) {
        let asking = self.asking.as_deref_mut();
        let Some(ids) = asking.and_then(|asking| asking.joins.removed.next(ctx.now)) else {
            return;
        };
        let mut list = [0; MAX_UPLINKS + 1];
        let all = (0..).take(list.len()).filter(|id| ids & (1 << id) != 0);
        let told = list.iter_mut().zip(all).map(|(place, id)| *place = id);
        let count = told.count();
        if count == 0 {
            return;
        }
        let option = TcpOption::Mptcp(MptcpOption::RemoveAddr(RemoveAddr::new(&list[..count])));
        for index in self.indices() {
            if self.subflow(index).state != SubflowState::Established {
                continue;
            }
            let mut outgoing = self.own_to_mptcp(index, TcpFlags::ACK);
            outgoing.options.push(&option);
            self.push_dss(&mut outgoing, None, false);
            ctx.counters.rm_addr_tx += 1;
            ctx.send(outgoing.own());
        }
    }
}

/// FlexCP's end is on one of these.
fn is_there(subflow: &Subflow, uplinks: &[Uplink]) -> bool {
    let addr = subflow.local.addr().ip();
    uplinks.iter().any(|uplink| uplink.has(addr))
}

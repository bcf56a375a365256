//! Paths: which subflow carries what goes down, and the client's and FlexCP's signals about addresses (RFC 8684 sections 3.3.8 and 3.4).

use core::time::Duration;

use flexcp_wire::{AddAddr, Dsn, MpJoin, MptcpOption, RemoveAddr, TcpFlags, TcpOption};

use super::{Connection, Context, SubflowState, choice};
use crate::auth::{add_addr_hmac, same_hmac};
use crate::cause::{self, Rst, SubflowSwitch};
use crate::config::Announce;
use crate::event::EndCause;
use crate::handle::{INITIAL, SubflowIndex};
use crate::segment::{Outgoing, Segment};

/// `ADD_ADDR` copies sent when the client does not echo.
const MAX_ADD_ADDR_COPIES: u8 = 6;

/// So many times as long as usual a path has to be silent before it is left for one that the steering mode does not take: past
/// the server's first timeout, and most of its second.
const LOYALTY: u32 = 3;
/// The same while others carry over its access what they did before: what is lost there is this connection's.
const LOYALTY_AMONG_OTHERS: u32 = 8;

impl Connection {
    /// The subflow for new data: the active one while nothing speaks against it, else the best one, which is active from
    /// then on.
    pub(crate) fn usable_active(&mut self, ctx: &mut Context<'_>) -> Option<SubflowIndex> {
        if self.mptcp.subflows.len() > 1 {
            // Whether it counts what the client wants as backup.
            self.find_rule(ctx.config);
        }
        let active = self.mptcp.active;
        self.suspect_silent(ctx, active);
        let cause = if self.subflow(active).carries() {
            let Some(cause) = choice::against(self.standing(active)) else {
                self.steer_data(ctx);
                self.leave_lagging(ctx);
                return Some(self.mptcp.active);
            };
            cause
        } else {
            SubflowSwitch::Closed
        };
        let best = choice::for_new(self.carrying(|_| true), active)?;
        if best != active {
            self.move_to(ctx, best, cause);
            self.fill_at_once(ctx, best);
        }
        Some(best)
    }

    /// The active subflow for `len` new bytes, or another good one that has heard of the room for them: the
    /// window is the connection's (RFC 8684 section 3.3.1), but Linux drops what comes on a subflow beyond the
    /// last edge that it has sent there itself.
    pub(crate) fn active_with_room(
        &mut self,
        ctx: &mut Context<'_>,
        active: SubflowIndex,
        len: u32,
    ) -> SubflowIndex {
        if self.subflow(active).has_room(len) {
            return active;
        }
        let steered = self.is_steered(ctx.config);
        if steered && self.subflow(active).has_room_untold(len) {
            return active;
        }
        let roomy = self.carrying(|subflow| subflow.has_room(len));
        let Some(other) = choice::with_room(roomy) else {
            return active;
        };
        if steered {
            // For this packet alone: the mode says where the connection is.
            return other;
        }
        self.move_to(ctx, other, SubflowSwitch::Room);
        other
    }

    /// The subflow for an answer that belongs to none in particular: where the client was heard last.
    pub(crate) fn answering(&self) -> Option<SubflowIndex> {
        let delivers = |&index: &SubflowIndex| self.subflow(index).delivers();
        let delivering = self.indices().filter(delivers);
        let delivering = delivering.fold(0, |set, index| set | 1 << index);
        choice::for_answer(delivering, self.mptcp.heard)
    }

    /// What a client answers on a path that works, and nothing else comes of: the byte before those that it waits for.
    pub(crate) fn keepalive_to_mptcp(&self, index: SubflowIndex) -> Outgoing {
        let mut outgoing = self.own_to_mptcp(index, TcpFlags::ACK);
        outgoing.seq = self.subflow(index).send.una.sub(1).0;
        self.push_dss(&mut outgoing, None, false);
        outgoing
    }

    /// The server sends again what it has sent: when the subflow that holds it has been silent since,
    /// its path counts as failed.
    pub(crate) fn note_server_retransmission(
        &mut self,
        ctx: &mut Context<'_>,
        from: Dsn,
        end: Dsn,
    ) {
        let silence = self.silence_to_leave(ctx);
        for index in self.indices() {
            let subflow = self.subflow(index);
            let holds = subflow.carries()
                && !subflow.path.suspect
                && (subflow
                    .send
                    .lane
                    .by_dsn(from.max(self.to_mptcp.acked))
                    .is_some()
                    || subflow.send.lane.by_dsn(end.sub(1)).is_some());
            let silent = match silence {
                Some(silence) => subflow.is_mute(ctx.now, silence),
                None => subflow.is_silent(ctx.now, ctx.config.timeouts.silence),
            };
            if holds && silent {
                self.subflow_mut(index).path.suspect = true;
            }
        }
        self.try_other(ctx);
    }

    /// How long the active path has to be silent before it is left, where that is not the usual time: all other paths are such
    /// as the steering mode does not take. On a path that is used up a burst may be lost whole, and its answer be overdue.
    fn silence_to_leave(&self, ctx: &Context<'_>) -> Option<Duration> {
        let active = self.subflow(self.mptcp.active);
        let silence = ctx.config.timeouts.silence;
        let round_trips = active.rtt().map_or(Duration::ZERO, |rtt| rtt * 2);
        if !active.is_silent(ctx.now, silence) || !self.has_none_to_take(ctx) {
            return None;
        }
        let times = if self.is_among_others(ctx) {
            LOYALTY_AMONG_OTHERS
        } else {
            LOYALTY
        };
        Some(silence.max(round_trips) * times)
    }

    /// The server sends on although an answer is overdue: its tail loss probe (RFC 8985 section 7), which is
    /// new data when there is some. Over another path it finds out within a round trip what the server's
    /// retransmission timer would take 200 ms and more for.
    pub(crate) fn note_server_probe(&mut self, ctx: &Context<'_>) {
        let silence = ctx.config.timeouts.silence;
        let overdue = self.subflow(self.mptcp.active).is_overdue(ctx.now, silence);
        if overdue && !self.has_none_to_take(ctx) {
            self.subflow_mut(self.mptcp.active).path.suspect = true;
        }
    }

    /// While every path is suspect the server's retransmissions go over one after the other: whichever
    /// works again is found without waiting for the others.
    fn try_other(&mut self, ctx: &mut Context<'_>) {
        let recently = ctx.now.since(self.mptcp.tried_other) < ctx.config.timeouts.silence;
        let active = self.mptcp.active;
        let next = choice::in_turn(self.carrying(|_| true), active);
        let Some(next) = next.filter(|_| !recently) else {
            return;
        };
        self.mptcp.tried_other = ctx.now;
        if next != active {
            self.move_to(ctx, next, SubflowSwitch::Turn);
        }
    }

    /// Options that are for FlexCP alone. `true`: there were some, so that a packet without payload has
    /// done its duty.
    pub(crate) fn take_control(
        &mut self,
        ctx: &mut Context<'_>,
        index: SubflowIndex,
        segment: &Segment,
    ) -> bool {
        let options = &segment.options;
        if let Some(add_addr) = &options.add_addr {
            if add_addr.echo {
                self.take_echo(ctx, add_addr.id);
            } else {
                self.echo_add_addr(ctx, index, add_addr);
            }
        }
        if let Some(backup) = options.prio {
            self.subflow_mut(index).path.backup = backup;
            ctx.counters.mp_prio_rx += 1;
        }
        if let Some(remove) = &options.remove_addr {
            self.take_remove_addr(ctx, remove);
        }
        if let Some(MpJoin::Ack { .. }) = options.join {
            // The client has not got the ACK that ends its join.
            self.send_ack(ctx, index, TcpFlags::ACK);
        }
        options.add_addr.is_some()
            || options.prio.is_some()
            || options.remove_addr.is_some()
            || options.join.is_some()
    }

    /// Confirms an address of the client's. Where FlexCP opens no subflows it has no other use for it.
    fn echo_add_addr(&mut self, ctx: &mut Context<'_>, index: SubflowIndex, add_addr: &AddAddr) {
        let AddAddr {
            id,
            addr,
            port,
            hmac,
            ..
        } = *add_addr;
        let remote = self.mptcp.peer_key.map_or(0, |key| key.key);
        let expected = add_addr_hmac(remote, self.mptcp.key.key, id, addr, port.unwrap_or(0));
        let authentic =
            hmac.is_some_and(|hmac| same_hmac(&hmac.to_be_bytes(), &expected.to_be_bytes()));
        if !authentic {
            return;
        }
        let echo = AddAddr {
            echo: true,
            id,
            addr,
            port,
            hmac: None,
        };
        let mut outgoing = self.own_to_mptcp(index, TcpFlags::ACK);
        outgoing
            .options
            .push(&TcpOption::Mptcp(MptcpOption::AddAddr(echo)));
        self.push_dss(&mut outgoing, None, false);
        ctx.counters.add_addr_rx += 1;
        ctx.send(outgoing.own());
        self.note_invited(ctx, index, (id, addr, port));
    }

    /// The client has got an `ADD_ADDR`.
    pub(crate) fn take_echo(&mut self, ctx: &mut Context<'_>, id: u8) {
        let bit = id
            .checked_sub(1)
            .and_then(|n| 1_u16.checked_shl(n.into()))
            .unwrap_or(0);
        if self.mptcp.announce.pending & bit == 0 {
            return;
        }
        self.mptcp.announce.pending &= !bit;
        self.mptcp.announce.copies = 0;
        self.mptcp.announce.due = Some(ctx.now);
        ctx.counters.echo_add_rx += 1;
        self.announce_next(ctx);
    }

    /// The client has lost an address: its subflows from there are over.
    fn take_remove_addr(&mut self, ctx: &mut Context<'_>, remove: &RemoveAddr) {
        ctx.counters.rm_addr_rx += 1;
        self.note_uninvited(remove);
        for index in self.indices() {
            let id = self.subflow(index).join.address_id;
            // One that still brings packets has its address.
            if index != self.mptcp.heard && remove.ids().contains(&id) {
                self.reset_subflow(ctx, index, Rst::AddressRemoved);
            }
        }
    }

    /// Starts to announce the service's addresses, once a packet with a data ACK has gone down: before
    /// that the client would not take it.
    pub(crate) fn announce_start(&mut self, ctx: &mut Context<'_>) {
        if self.mptcp.announce.started {
            return;
        }
        let announced = ctx.services.announced(self.service).mask();
        if announced == 0 {
            return;
        }
        self.mptcp.announce.started = true;
        self.mptcp.announce.pending = announced;
        self.mptcp.announce.due = Some(ctx.now);
        self.announce_next(ctx);
    }

    /// Announces the first address that has not been echoed. One at a time: a client
    /// drops a second one that comes before it has worked off the first.
    pub(crate) fn announce_next(&mut self, ctx: &mut Context<'_>) {
        if self.mptcp.announce.copies >= MAX_ADD_ADDR_COPIES {
            // The client does not want it.
            self.mptcp.announce.pending &= self.mptcp.announce.pending.wrapping_sub(1);
            self.mptcp.announce.copies = 0;
            ctx.counters.decide(cause::AddAddr::GivenUp);
        }
        // What the service announces no more, nobody is to join.
        self.mptcp.announce.pending &= ctx.services.announced(self.service).mask();
        if self.mptcp.announce.pending == 0 {
            self.mptcp.announce.due = None;
            return;
        }
        let first_pause = ctx.config.timeouts.add_addr;
        let Some(index) = self.answering() else {
            // What cannot be said is no copy: it is tried again until there is a subflow.
            self.mptcp.announce.due = Some(ctx.now + first_pause);
            return;
        };
        let pause = first_pause * (1 << self.mptcp.announce.copies);
        self.mptcp.announce.due = Some(ctx.now + pause);
        let cause = match self.mptcp.announce.copies {
            0 => cause::AddAddr::First,
            _ => cause::AddAddr::Repeated,
        };
        self.mptcp.announce.copies += 1;
        let n = self.mptcp.announce.pending.trailing_zeros();
        let address = ctx.services.announced(self.service).get(n);
        let Some(address) = address else {
            return;
        };
        let id = u8::try_from(n + 1).unwrap_or(u8::MAX);
        let outgoing = self.add_addr(index, id, address);
        ctx.counters.decide(cause);
        ctx.send(outgoing.own());
    }

    fn add_addr(&self, index: SubflowIndex, id: u8, address: Announce) -> Outgoing {
        let remote = self.mptcp.peer_key.map_or(0, |key| key.key);
        let port = address.port.unwrap_or(0);
        let hmac = add_addr_hmac(self.mptcp.key.key, remote, id, address.addr, port);
        let option = AddAddr {
            echo: false,
            id,
            addr: address.addr,
            port: address.port,
            hmac: Some(hmac),
        };
        let mut outgoing = self.own_to_mptcp(index, TcpFlags::ACK);
        let option = TcpOption::Mptcp(MptcpOption::AddAddr(option));
        if !outgoing.options.push(&option) {
            // An IPv6 address with a port leaves no room for timestamps.
            outgoing.options = flexcp_wire::OptionWriter::default();
            outgoing.options.push(&option);
        }
        // Where there is no room for both, the address alone has to do.
        self.push_dss(&mut outgoing, None, false);
        outgoing
    }

    /// Joins that did not authenticate themselves and closes that were not confirmed in time.
    pub(crate) fn expire_subflows(&mut self, ctx: &mut Context<'_>) {
        let timeouts = ctx.config.timeouts;
        for index in self.indices().filter(|&index| index != INITIAL) {
            let subflow = self.subflow(index);
            let over = match subflow.state {
                SubflowState::Joining => {
                    !self.asks() && ctx.now >= subflow.opened + timeouts.half_open_join()
                }
                SubflowState::Closing => ctx.now >= subflow.path.last_heard + timeouts.linger,
                SubflowState::Established | SubflowState::Closed => false,
            };
            if over {
                self.close_subflow(ctx, index, EndCause::Unanswered);
            }
        }
        let initial = self.subflow(INITIAL);
        if initial.state == SubflowState::Closing
            && ctx.now >= initial.path.last_heard + timeouts.linger
        {
            self.close_subflow(ctx, INITIAL, EndCause::Unanswered);
        }
    }
}

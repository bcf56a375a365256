//! Joins (RFC 8684 section 3.2): FlexCP answers them itself, the server never hears of them.
//!
//! Nothing here needs a timer of FlexCP's: the client repeats its SYN and its third packet until they
//! are answered.

use core::net::IpAddr;
use core::time::Duration;

use flexcp_wire::{MpJoin, MptcpOption, Ssn, TcpFlags, TcpOption};

use super::clock::SubflowClock;
use super::handshake::MIN_MSS;
use super::{Connection, Context, Phase, Subflow, SubflowState, choice};
use crate::auth::{join_hmac, same_hmac};
use crate::cause::{JoinEvicted, JoinRefused, Rst, SubflowSwitch};
use crate::config::Limits;
use crate::counters::DropReason;
use crate::event::EndCause;
use crate::frame::{Frame, Verdict};
use crate::handle::{INITIAL, SubflowIndex};
use crate::offload::ENTRY_SUBFLOWS;
use crate::segment::Segment;

/// Slots for subflows: a set of them fits a byte.
const MAX_SLOTS: usize = 8;
/// A join of this age makes room for another: honest clients answer sooner.
const STALE_JOIN: Duration = Duration::from_secs(3);

impl Connection {
    /// The client's SYN with `MP_JOIN`, whose token names this connection. The index of the new subflow,
    /// or why there is none.
    pub(crate) fn handle_join_syn(
        &mut self,
        ctx: &mut Context<'_>,
        segment: &Segment,
    ) -> Result<SubflowIndex, JoinRefused> {
        let Some(MpJoin::Syn {
            backup,
            address_id,
            nonce,
            ..
        }) = segment.options.join
        else {
            return Err(JoinRefused::Malformed);
        };
        let roomy = segment.options.mss.is_none_or(|mss| mss >= MIN_MSS);
        if matches!(self.phase, Phase::Fallback(_)) {
            return Err(JoinRefused::FellBack);
        }
        // Nobody listens on the uplinks of a box.
        if !self.is_joinable() || self.asks() {
            return Err(JoinRefused::State);
        }
        // Whatever comes of the join: when the client gives it up, it sends all that has no data ACK again on the
        // initial subflow (Linux), and once the SYN/ACK is there it can't fall back any more.
        self.numbers.identity = false;
        if !roomy {
            return Err(JoinRefused::SmallMss);
        }
        if !self.may_have_another() {
            return Err(JoinRefused::NoSack);
        }
        if let Some(limit) = self.full(&ctx.config.limits) {
            return Err(limit);
        }
        if self.free_slot().is_none() && !self.may_take(ctx, size_of::<Subflow>()) {
            return Err(JoinRefused::Memory);
        }
        let mut subflow = self.joining(ctx, segment);
        subflow.path.backup = backup;
        subflow.join.address_id = address_id;
        subflow.join.nonces = (nonce, ctx.secrets.next_u32());
        let Some(index) = self.seat(ctx, subflow) else {
            return Err(JoinRefused::Subflows);
        };
        ctx.counters.mp_join_syn_rx += 1;
        self.subflow_mut(index).sent_syn(ctx.now);
        self.subflow_mut(index).find_way(ctx.arrivals);
        self.joins_as_standby(ctx, index);
        self.send_join_syn_ack(ctx, index);
        Ok(index)
    }

    /// Without SACK nothing says which later data the server holds, so a subflow that carries some could never be ACKed while
    /// another one misses what comes before.
    fn may_have_another(&self) -> bool {
        self.tcp.sack || !self.mptcp.subflows.iter().any(Subflow::carries)
    }

    /// A subflow that a SYN asks for.
    fn joining(&self, ctx: &mut Context<'_>, segment: &Segment) -> Subflow {
        let isn = Ssn(ctx.secrets.next_u32());
        let mut subflow = Subflow::new(ctx.now, segment, isn);
        // Only what the server takes part in can be offered.
        subflow.agreed.sack &= self.tcp.sack;
        subflow.agreed.scales &= self.tcp.window.scale.is_some();
        if !subflow.agreed.scales {
            subflow.agreed.window_scale = 0;
        }
        subflow.clock = match (&self.tcp.clock, segment.options.timestamps) {
            (Some(server), Some(ts)) => {
                Some(SubflowClock::joined(ts.val, server.initial_now(ctx.now)))
            }
            _ => None,
        };
        subflow
    }

    /// Which limit leaves no room for a join.
    fn full(&self, limits: &Limits) -> Option<JoinRefused> {
        let count =
            |has: fn(&Subflow) -> bool| self.mptcp.subflows.iter().filter(|s| has(s)).count();
        let joining = count(|s| s.state == SubflowState::Joining);
        if count(Subflow::lives) >= limits.subflows.min(MAX_SLOTS) {
            return Some(JoinRefused::Subflows);
        }
        (joining >= limits.half_open_joins).then_some(JoinRefused::HalfOpenJoins)
    }

    /// Before a join of a connection that has all it may have: lets go of the oldest other join that an
    /// honest client would have completed by now.
    pub(crate) fn make_room_for_join(&mut self, ctx: &mut Context<'_>, segment: &Segment) {
        if self.full(&ctx.config.limits).is_some() && self.may_have_another() {
            self.evict_join(ctx, segment.ip.src);
        }
        // The flow of whoever had the slot before.
        if self.takes_joins(&ctx.config.limits)
            && let Some(free) = self.free_slot()
        {
            ctx.gone.push(free);
        }
    }

    /// Whether FlexCP may ask for another subflow.
    pub(crate) fn has_room_for_join(&self, limits: &Limits) -> bool {
        self.takes_joins(limits) && self.may_have_another()
    }

    /// Whether there is room for a join.
    fn takes_joins(&self, limits: &Limits) -> bool {
        self.is_joinable() && self.full(limits).is_none()
    }

    /// Whether joins have a place. Also after the end: a client whose subflows are gone before it has heard of
    /// the ACK of its DATA_FIN comes back for it.
    const fn is_joinable(&self) -> bool {
        matches!(self.phase, Phase::Established { .. } | Phase::Closed(_))
    }

    /// Lets a pending join go: from an address that the client has never used before one that it has, the
    /// oldest first. `from`: where the new one comes from.
    fn evict_join(&mut self, ctx: &mut Context<'_>, from: IpAddr) {
        let knows = |addr: IpAddr| {
            let mut proved = self.mptcp.subflows.iter().filter(|s| s.join.proved);
            proved.any(|subflow| subflow.remote.addr().ip() == addr)
        };
        let is_known = knows(from);
        let stale = |subflow: &Subflow| ctx.now.since(subflow.opened) >= STALE_JOIN;
        let gives_way = |&index: &SubflowIndex| {
            let subflow = self.subflow(index);
            let stranger = is_known && !knows(subflow.remote.addr().ip());
            subflow.state == SubflowState::Joining && (stale(subflow) || stranger)
        };
        let oldest = self.indices().filter(gives_way);
        let oldest = oldest.min_by_key(|&index| self.subflow(index).opened);
        if let Some(index) = oldest {
            ctx.counters.decide(if stale(self.subflow(index)) {
                JoinEvicted::Stale
            } else {
                JoinEvicted::Stranger
            });
            self.close_subflow(ctx, index, EndCause::Reset);
        }
    }

    /// The id under which the subflow's local address was announced; 0 for the initial one.
    fn local_address_id(&self, ctx: &Context<'_>, index: SubflowIndex) -> u8 {
        let local = self.subflow(index).local.addr();
        ctx.services.announced(self.service).id_of(local)
    }

    /// A slot, behind the initial subflow's, whose subflow is over. One that FlexCP gave up is left while there is
    /// other room: the client may have to hear of it again, and does nothing where it has not.
    pub(crate) fn free_slot(&self) -> Option<SubflowIndex> {
        let over = || {
            let joined = self.indices().skip(1);
            joined.filter(|&index| !self.subflow(index).lives())
        };
        let known = over().find(|&index| self.subflow(index).given_up.is_none());
        if known.is_some() || self.mptcp.subflows.len() < ENTRY_SUBFLOWS {
            return known;
        }
        over().min_by_key(|&index| self.subflow(index).path.last_heard)
    }

    /// Puts a subflow in the first free slot. The initial one's stays: what it agreed on with the server
    /// holds for the whole connection.
    pub(super) fn seat(&mut self, ctx: &mut Context<'_>, subflow: Subflow) -> Option<SubflowIndex> {
        for old in &mut self.mptcp.subflows {
            // A client that comes back from there has heard of it; told again, it would take it for the new one's.
            if old.ends() == subflow.ends() {
                old.given_up = None;
            }
        }
        if let Some(free) = self.free_slot() {
            if free == self.mptcp.active {
                self.leave_closed(ctx);
            }
            self.forget_carried(free);
            *self.subflow_mut(free) = subflow;
            return Some(free);
        }
        if self.mptcp.subflows.len() >= MAX_SLOTS {
            return None;
        }
        // Few have many: room for four at once would be idle memory.
        self.mptcp.subflows.reserve_exact(1);
        self.mptcp.subflows.push(subflow);
        self.indices().last()
    }

    /// The active subflow is over, and its place is about to be another's, which has to be chosen like any other.
    fn leave_closed(&mut self, ctx: &mut Context<'_>) {
        let carrying = self.carrying(|_| true);
        match choice::for_new(carrying, self.mptcp.active) {
            Some(best) => self.move_to(ctx, best, SubflowSwitch::Closed),
            // Nothing is told before there is a path.
            None => self.mptcp.active = INITIAL,
        }
    }

    /// Answers the SYN, first or repeated, always with the same numbers.
    fn send_join_syn_ack(&self, ctx: &mut Context<'_>, index: SubflowIndex) {
        let subflow = self.subflow(index);
        let remote = self.mptcp.peer_key.map_or(0, |key| key.key);
        let (nonce_remote, nonce_local) = subflow.join.nonces;
        let hmac = join_hmac(self.mptcp.key.key, remote, nonce_local, nonce_remote);
        let [h0, h1, h2, h3, h4, h5, h6, h7, ..] = hmac;
        let mut outgoing = self.own_to_mptcp(index, TcpFlags::SYN | TcpFlags::ACK);
        outgoing.seq = subflow.agreed.isn_local.0;
        // Windows in a SYN are not scaled (RFC 7323 section 2.2).
        let scale = self.tcp.window.scale.unwrap_or(0);
        let window = u32::from(self.tcp.window.offered) << scale;
        outgoing.window = u16::try_from(window).unwrap_or(u16::MAX);
        outgoing.options = flexcp_wire::OptionWriter::default();
        outgoing.options.push(&TcpOption::Mss(self.tcp.mss));
        if subflow.agreed.sack {
            outgoing.options.push(&TcpOption::SackPermitted);
        }
        if let (Some(clock), Some(server)) = (&subflow.clock, &self.tcp.clock) {
            let timestamps = TcpOption::Timestamps(clock.own(server));
            outgoing.options.push(&timestamps);
        }
        if let Some(scale) = self.tcp.window.scale.filter(|_| subflow.agreed.scales) {
            outgoing.options.push(&TcpOption::WindowScale(scale));
        }
        let join = MpJoin::SynAck {
            backup: self.is_standby(index),
            address_id: self.local_address_id(ctx, index),
            hmac: u64::from_be_bytes([h0, h1, h2, h3, h4, h5, h6, h7]),
            nonce: nonce_local,
        };
        outgoing
            .options
            .push(&TcpOption::Mptcp(MptcpOption::Join(join)));
        ctx.send(outgoing.own());
    }

    /// A packet on a subflow whose client has not authenticated itself: its SYN again, or the third
    /// packet with the HMAC, which is answered with an ACK that carries a DSS.
    pub(crate) fn handle_joining(
        &mut self,
        ctx: &mut Context<'_>,
        index: SubflowIndex,
        segment: &Segment,
        frame: &mut Frame<'_>,
    ) -> Verdict {
        if self.asks() {
            return self.handle_asked_join(ctx, index, segment, frame);
        }
        let subflow = self.subflow(index);
        if segment.has(TcpFlags::SYN) {
            let same = Ssn(segment.tcp.seq) == subflow.agreed.isn_remote
                && matches!(segment.options.join, Some(MpJoin::Syn { nonce, .. }) if nonce == subflow.join.nonces.0);
            if same {
                self.subflow_mut(index).sent_syn_again();
                self.send_join_syn_ack(ctx, index);
                return Verdict::Consume;
            }
            return Verdict::Drop(DropReason::Unexpected);
        }
        if segment.has(TcpFlags::RST) {
            if Ssn(segment.tcp.seq) != subflow.recv.ack {
                return Verdict::Drop(DropReason::BlindReset);
            }
            self.close_subflow(ctx, index, EndCause::Reset);
            return Verdict::Consume;
        }
        if Ssn(segment.tcp.ack) != subflow.send.next {
            return Verdict::Drop(DropReason::AckOfUnsent);
        }
        let Some(MpJoin::Ack { hmac }) = &segment.options.join else {
            // Somebody on the path takes the options away (RFC 8684 section 3.2).
            self.note_joined(ctx, index);
            self.note_stripped(ctx, index);
            self.reset_subflow(ctx, index, Rst::NoProof);
            return Verdict::Drop(DropReason::NotAuthenticated);
        };
        let remote = self.mptcp.peer_key.map_or(0, |key| key.key);
        let (nonce_remote, nonce_local) = subflow.join.nonces;
        let expected = join_hmac(remote, self.mptcp.key.key, nonce_remote, nonce_local);
        if !same_hmac(hmac, &expected[..hmac.len()]) {
            ctx.counters.mp_join_ack_hmac_failure += 1;
            self.reset_subflow(ctx, index, Rst::WrongHmac);
            return Verdict::Drop(DropReason::NotAuthenticated);
        }
        let subflow = self.subflow_mut(index);
        subflow.take_sample(ctx.now, Ssn(segment.tcp.ack));
        subflow.heard(ctx.now, segment);
        ctx.counters.mp_join_ack_rx += 1;
        self.establish_join(ctx, index);
        Verdict::Consume
    }

    pub(super) fn establish_join(&mut self, ctx: &mut Context<'_>, index: SubflowIndex) {
        self.phase.note_subflow();
        let subflow = self.subflow_mut(index);
        subflow.state = SubflowState::Established;
        subflow.join.proved = true;
        subflow.path.last_heard = ctx.now;
        self.mptcp.heard = index;
        self.last_packet = ctx.now;
        self.note_joined(ctx, index);
        self.tell_joined(ctx, index);
        self.linger(ctx);
        if !self.subflow(self.mptcp.active).lives() {
            self.move_to(ctx, index, SubflowSwitch::Closed);
        }
        self.steer_at_once(ctx);
        if !self.asks() {
            self.send_ack(ctx, index, TcpFlags::ACK);
        }
        // FINs that were held back because theirs was the last subflow.
        for other in self.indices() {
            self.answer_subflow_fin(ctx, other, false);
        }
    }
}

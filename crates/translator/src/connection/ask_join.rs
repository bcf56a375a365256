//! Joins that FlexCP asks for (RFC 8684 section 3.2), over further uplinks of an aggregation box: SYN, the peer's SYN/ACK, the third
//! packet with the HMAC, which is repeated until anything else of the peer's comes.

use core::time::Duration;

use flexcp_wire::{Ends, MpJoin, MptcpOption, Ssn, TcpFlags, TcpOption, Timestamps};

use super::clock::SubflowClock;
use super::leave::Removed;
use super::subflow::Receiving;
use super::{Connection, Context, Subflow, SubflowState};
use crate::auth::{join_hmac, same_hmac};
use crate::cause::Rst;
use crate::counters::DropReason;
use crate::endpoint::Backend;
use crate::event::EndCause;
use crate::frame::{Frame, Verdict};
use crate::handle::{INITIAL, SubflowIndex};
use crate::segment::{Outgoing, Segment};
use crate::time::Instant;
use crate::uplink::Uplink;

/// Uplinks of an aggregation box at most.
pub const MAX_UPLINKS: usize = 8;
/// Until a SYN or a third packet is sent again; twice as long each time.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// So many of them.
const MOST_TRIES: u8 = 5;
/// Until an uplink is tried anew whose join has failed; twice as long each time.
const FIRST_REST: Duration = Duration::from_secs(2);
/// The longest of those.
const LONGEST_REST: Duration = Duration::from_secs(300);

/// How far a join is that FlexCP has asked for.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum Asked {
    /// There is none, or it is there.
    #[default]
    No,
    /// The SYN waits for its answer.
    Syn(Again),
    /// The third packet does.
    Proof(Again),
}

/// What is sent again until it is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Again {
    /// Times that it was sent.
    tries: u8,
    /// When it is sent again, or given up.
    due: Instant,
}

impl Again {
    fn first(now: Instant) -> Self {
        Self {
            tries: 1,
            due: now + FIRST_PAUSE,
        }
    }

    /// The peer has been heard, and is answered: what that brings is waited for.
    fn answered(self, now: Instant) -> Self {
        Self {
            due: self.due.max(now + FIRST_PAUSE),
            ..self
        }
    }

    /// Once more; `None`: that was the last time.
    fn next(self, now: Instant) -> Option<Self> {
        (self.tries < MOST_TRIES).then(|| Self {
            tries: self.tries + 1,
            due: now + FIRST_PAUSE * (1 << self.tries),
        })
    }
}

impl Asked {
    const fn due(self) -> Option<Instant> {
        match self {
            Self::No => None,
            Self::Syn(again) | Self::Proof(again) => Some(again.due),
        }
    }
}

/// Joins over the uplinks of one connection's box.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Joins {
    /// When uplinks are looked at; `None`: not before something changes.
    due: Option<Instant>,
    /// They have been, once.
    begun: bool,
    uplinks: [Tried; MAX_UPLINKS],
    /// Addresses that the peer is told to be gone.
    pub(super) removed: Removed,
}

/// What has become of joins over one uplink.
#[derive(Clone, Copy, Default, Debug)]
struct Tried {
    /// That failed, in a row.
    failures: u8,
    /// It is not tried before.
    rests: Instant,
    /// How far the one is that is asked for.
    asked: Asked,
}

impl Joins {
    /// The peer takes joins from now on.
    pub(super) const fn begin(&mut self, now: Instant) {
        self.due = Some(now);
    }

    pub(super) const fn have_begun(&self) -> bool {
        self.begun
    }

    pub(super) const fn due(&self) -> Option<Instant> {
        self.due
    }

    /// A join over the uplink has failed: it rests.
    fn failed(&mut self, now: Instant, place: usize) {
        let Some(uplink) = self.uplinks.get_mut(place) else {
            return;
        };
        let rest = FIRST_REST * (1 << uplink.failures.min(8));
        uplink.failures = uplink.failures.saturating_add(1);
        uplink.rests = now + rest.min(LONGEST_REST);
        let first = self.due.map_or(uplink.rests, |due| due.min(uplink.rests));
        self.due = Some(first);
    }

    /// There is no subflow on the uplink any more: one is asked for no sooner than `soon`.
    fn left(&mut self, soon: Instant, place: u8) {
        if let Some(uplink) = self.uplinks.get_mut(usize::from(place)) {
            uplink.rests = uplink.rests.max(soon);
        }
        if self.begun {
            self.due = Some(self.due.map_or(soon, |due| due.min(soon)));
        }
    }

    fn asked(&self, place: u8) -> Asked {
        let uplink = self.uplinks.get(usize::from(place));
        uplink.map_or(Asked::No, |uplink| uplink.asked)
    }

    fn set_asked(&mut self, place: u8, asked: Asked) {
        if let Some(uplink) = self.uplinks.get_mut(usize::from(place)) {
            uplink.asked = asked;
        }
    }

    /// A join over the uplink is there.
    fn succeeded(&mut self, place: usize) {
        if let Some(uplink) = self.uplinks.get_mut(place) {
            *uplink = Tried::default();
        }
    }
}

impl Connection {
    /// When joins are due that FlexCP asks for: new ones, or again.
    pub(super) fn joins_due(&self) -> Option<Instant> {
        let asking = self.asking.as_deref()?;
        let again = asking.joins.uplinks.iter();
        let again = again.filter_map(|uplink| uplink.asked.due());
        let removed = asking.joins.removed.due();
        let next = asking.joins.due().filter(|_| !self.has_errand());
        again.chain(next).chain(removed).min()
    }

    /// How far a join is that FlexCP has asked for.
    fn asked(&self, index: SubflowIndex) -> Asked {
        let place = self.subflow(index).join.uplink;
        let asking = self.asking.as_deref();
        asking.map_or(Asked::No, |asking| asking.joins.asked(place))
    }

    fn set_asked(&mut self, index: SubflowIndex, asked: Asked) {
        let place = self.subflow(index).join.uplink;
        if let Some(asking) = &mut self.asking {
            asking.joins.set_asked(place, asked);
        }
    }

    /// Which of the uplinks the initial subflow goes over.
    pub(crate) fn note_first_uplink(&mut self, uplinks: &[Uplink]) {
        let addr = self.subflow(INITIAL).local.addr().ip();
        let place = uplinks.iter().position(|uplink| uplink.has(addr));
        let place = place.and_then(|place| u8::try_from(place).ok());
        self.subflow_mut(INITIAL).join.uplink = place.unwrap_or(u8::MAX);
    }

    /// A subflow is over: its uplink may be used anew, after a pause.
    pub(super) fn note_uplink_free(&mut self, now: Instant, index: SubflowIndex) {
        let place = self.subflow(index).join.uplink;
        let joins_there = |other: SubflowIndex| {
            let subflow = self.subflow(other);
            let joining = subflow.state == SubflowState::Joining;
            other != index && joining && subflow.join.uplink == place
        };
        // Where the uplink has got another address, another subflow may be asked for by now.
        if !self.indices().any(joins_there) {
            self.set_asked(index, Asked::No);
        }
        if let Some(asking) = &mut self.asking {
            asking.joins.left(now + FIRST_PAUSE, place);
        }
    }

    /// Uplinks have come or gone: those that rest may be tried at once.
    pub(crate) fn look_at_uplinks(&mut self, now: Instant) {
        let Some(asking) = &mut self.asking else {
            return;
        };
        if !asking.joins.begun {
            return;
        }
        for uplink in &mut asking.joins.uplinks {
            (uplink.failures, uplink.rests) = (0, now);
        }
        asking.joins.due = Some(now);
    }

    /// The place of the next uplink to join over, of those of the service; none for now: notes when there may be.
    pub(crate) fn next_uplink(&mut self, now: Instant, uplinks: &[Uplink]) -> Option<usize> {
        let finished = self.is_finished();
        // Nobody has been told of a connection before its client has shown that it knows.
        let opened = self.phase.is_established() && !self.has_errand();
        let asking = self.asking.as_deref_mut()?;
        if !opened || asking.joins.due.is_none_or(|due| due > now) {
            return None;
        }
        if finished {
            // Nothing is left to carry.
            asking.joins.due = None;
            return None;
        }
        let used = |uplink: &Uplink| {
            let mut living = self.mptcp.subflows.iter().filter(|s| s.lives());
            living.any(|subflow| uplink.has(subflow.local.addr().ip()))
        };
        let is_free = |uplink: &Uplink| self.join_ends(uplink).is_some() && !used(uplink);
        let asking = self.asking.as_deref()?;
        let free = uplinks.iter().zip(&asking.joins.uplinks).enumerate();
        let free = free.filter(|(_, (uplink, _))| is_free(uplink));
        let free = free.map(|(place, (_, uplink))| (uplink.rests, place));
        let next = free.min();
        let asking = self.asking.as_deref_mut()?;
        asking.joins.begun = true;
        match next {
            Some((rests, place)) if rests <= now => Some(place),
            later => {
                asking.joins.due = later.map(|(rests, _)| rests);
                None
            }
        }
    }

    /// The uplink can't be joined over for now.
    pub(crate) fn rest_uplink(&mut self, now: Instant, place: usize) {
        if let Some(asking) = &mut self.asking {
            asking.joins.failed(now, place);
        }
    }

    /// A packet that ACKs none of FlexCP's numbers has come instead of the answer to a SYN: the peer still has an earlier connection
    /// from that port, in TIME_WAIT perhaps, where it takes no SYN whose clock is behind that one's. A RST with the number that it
    /// waits for ends that (RFC 9293 section 3.10.7.3), and the SYN goes again at once, for the first such packet alone.
    pub(crate) fn end_earlier(
        &mut self,
        ctx: &mut Context<'_>,
        index: SubflowIndex,
        segment: &Segment,
    ) {
        let stays = segment.has(TcpFlags::RST) || !segment.has(TcpFlags::ACK);
        if stays || segment.has(TcpFlags::SYN) {
            return;
        }
        let mut reset = self.own_to_mptcp(index, TcpFlags::default());
        (reset.seq, reset.ack, reset.window) = (segment.tcp.ack, 0, 0);
        reset.options = flexcp_wire::OptionWriter::default();
        ctx.reset(reset, Rst::Earlier);
        if self.subflow(index).join.earlier_ended {
            return;
        }
        self.subflow_mut(index).join.earlier_ended = true;
        if index == INITIAL {
            self.forget_syns();
            self.send_syn_to_peer(ctx);
        } else {
            self.send_join_syn(ctx, index);
        }
    }

    /// Asks for another subflow, from an end of FlexCP's on the uplink `place`. Its index; `None`: there is no room.
    pub(crate) fn ask_join(
        &mut self,
        ctx: &mut Context<'_>,
        place: usize,
        Backend {
            source: local,
            addr: remote,
        }: Backend,
    ) -> Option<SubflowIndex> {
        let isn = Ssn(ctx.secrets.next_u32());
        let ends = Ends {
            from: local,
            to: remote,
        };
        let mut subflow = Subflow::towards(ctx.now, ends, isn);
        subflow.join.nonces = (0, ctx.secrets.next_u32());
        subflow.join.uplink = u8::try_from(place).unwrap_or(u8::MAX);
        let index = self.seat(ctx, subflow)?;
        self.note_address_used(index);
        self.set_asked(index, Asked::Syn(Again::first(ctx.now)));
        // As with joins of the peer's: the connection can't fall back once it may have another subflow.
        self.numbers.identity = false;
        ctx.counters.mp_join_syn_tx += 1;
        self.subflow_mut(index).sent_syn(ctx.now);
        self.subflow_mut(index).find_way(ctx.arrivals);
        self.joins_as_standby(ctx, index);
        self.send_join_syn(ctx, index);
        Some(index)
    }

    fn send_join_syn(&self, ctx: &mut Context<'_>, index: SubflowIndex) {
        let subflow = self.subflow(index);
        let mut options = flexcp_wire::OptionWriter::default();
        options.push(&TcpOption::Mss(self.tcp.mss));
        if self.tcp.sack {
            options.push(&TcpOption::SackPermitted);
        }
        if let Some(clock) = &self.tcp.clock {
            options.push(&TcpOption::Timestamps(Timestamps {
                val: clock.heard,
                ecr: 0,
            }));
        }
        if let Some(scale) = self.tcp.window.scale {
            options.push(&TcpOption::WindowScale(scale));
        }
        let join = MpJoin::Syn {
            backup: self.is_standby(index),
            // That of the initial subflow is 0.
            address_id: self.address_id_of(index),
            token: self.mptcp.peer_key.map_or(0, |key| key.token),
            nonce: subflow.join.nonces.1,
        };
        options.push(&TcpOption::Mptcp(MptcpOption::Join(join)));
        // Windows in a SYN are not scaled (RFC 7323 section 2.2).
        let scale = self.tcp.window.scale.unwrap_or(0);
        let window = u32::from(self.tcp.window.offered) << scale;
        let outgoing = Outgoing {
            ends: subflow.ends(),
            seq: subflow.agreed.isn_local.0,
            ack: 0,
            flags: TcpFlags::SYN,
            window: u16::try_from(window).unwrap_or(u16::MAX),
            urgent: 0,
            keep_ecn: false,
            flow_label: self.mptcp.label,
            options,
        };
        ctx.send(outgoing.own());
    }

    /// The third packet.
    fn send_join_proof(&self, ctx: &mut Context<'_>, index: SubflowIndex) {
        let remote = self.mptcp.peer_key.map_or(0, |key| key.key);
        let (nonce_remote, nonce_local) = self.subflow(index).join.nonces;
        let hmac = join_hmac(self.mptcp.key.key, remote, nonce_local, nonce_remote);
        let mut proof = [0; 20];
        proof.copy_from_slice(&hmac[..20]);
        let mut outgoing = self.own_to_mptcp(index, TcpFlags::ACK);
        let join = MptcpOption::Join(MpJoin::Ack { hmac: proof });
        outgoing.options.push(&TcpOption::Mptcp(join));
        ctx.send(outgoing.own());
    }

    /// A packet on a subflow that FlexCP has asked for.
    pub(super) fn handle_asked_join(
        &mut self,
        ctx: &mut Context<'_>,
        index: SubflowIndex,
        segment: &Segment,
        frame: &mut Frame<'_>,
    ) -> Verdict {
        let subflow = self.subflow(index);
        if segment.has(TcpFlags::ACK) && Ssn(segment.tcp.ack) != subflow.send.next {
            if matches!(self.asked(index), Asked::Syn(_)) {
                self.end_earlier(ctx, index, segment);
            }
            return Verdict::Drop(DropReason::AckOfUnsent);
        }
        if segment.has(TcpFlags::RST) {
            return self.take_join_refusal(ctx, index, segment);
        }
        if segment.has(TcpFlags::SYN) {
            return self.take_join_answer(ctx, index, segment);
        }
        if !matches!(self.asked(index), Asked::Proof(_)) {
            return Verdict::Drop(DropReason::Unexpected);
        }
        // Whatever it is: the peer has believed the HMAC.
        let place = usize::from(subflow.join.uplink);
        if let Some(asking) = &mut self.asking {
            asking.joins.succeeded(place);
        }
        ctx.counters.mp_join_synack_rx += 1;
        self.establish_join(ctx, index);
        // There may be a subflow that has waited for this one, to be left.
        self.leave_uplinks(ctx);
        self.handle_to_tcp(ctx, index, segment, frame)
    }

    /// The peer's SYN/ACK, first or repeated.
    fn take_join_answer(
        &mut self,
        ctx: &mut Context<'_>,
        index: SubflowIndex,
        segment: &Segment,
    ) -> Verdict {
        let subflow = self.subflow(index);
        if let Asked::Proof(again) = self.asked(index) {
            if Ssn(segment.tcp.seq) != subflow.agreed.isn_remote {
                return Verdict::Drop(DropReason::Unexpected);
            }
            self.set_asked(index, Asked::Proof(again.answered(ctx.now)));
            self.send_join_proof(ctx, index);
            return Verdict::Consume;
        }
        let Some(MpJoin::SynAck {
            backup,
            address_id,
            hmac,
            nonce,
        }) = segment.options.join
        else {
            // Somebody on the path takes the options away, or the peer has no such connection (RFC 8684 section 3.2).
            self.give_up_join(ctx, index, Some(Rst::NoProof));
            return Verdict::Drop(DropReason::NotAuthenticated);
        };
        let remote = self.mptcp.peer_key.map_or(0, |key| key.key);
        let expected = join_hmac(remote, self.mptcp.key.key, nonce, subflow.join.nonces.1);
        if !same_hmac(&hmac.to_be_bytes(), &expected[..8]) {
            ctx.counters.mp_join_synack_hmac_failure += 1;
            self.give_up_join(ctx, index, Some(Rst::WrongHmac));
            return Verdict::Drop(DropReason::NotAuthenticated);
        }
        self.learn_joined(ctx, index, segment);
        let subflow = self.subflow_mut(index);
        subflow.join.nonces.0 = nonce;
        subflow.join.address_id = address_id;
        subflow.path.backup = backup;
        self.set_asked(index, Asked::Proof(Again::first(ctx.now)));
        self.send_join_proof(ctx, index);
        Verdict::Consume
    }

    /// What the peer's SYN/ACK settles for a joined subflow.
    fn learn_joined(&mut self, ctx: &Context<'_>, index: SubflowIndex, segment: &Segment) {
        let (sack, scales) = (self.tcp.sack, self.tcp.window.scale.is_some());
        let clock = self.tcp.clock.zip(segment.options.timestamps);
        let clock =
            clock.map(|(clock, peer)| SubflowClock::joined(peer.val, clock.initial_now(ctx.now)));
        let subflow = self.subflow_mut(index);
        subflow.take_sample(ctx.now, Ssn(segment.tcp.ack));
        subflow.path.last_heard = ctx.now;
        subflow.agreed.answered_by(segment);
        subflow.recv = Receiving::from(subflow.agreed.isn_remote);
        subflow.agreed.sack &= sack;
        subflow.agreed.scales &= scales;
        if !subflow.agreed.scales {
            subflow.agreed.window_scale = 0;
        }
        subflow.clock = clock;
        let window = u32::from(segment.tcp.window);
        subflow.take_window(Ssn(segment.tcp.ack).add(window));
    }

    /// The peer, or its host, refuses the join.
    fn take_join_refusal(
        &mut self,
        ctx: &mut Context<'_>,
        index: SubflowIndex,
        segment: &Segment,
    ) -> Verdict {
        let subflow = self.subflow(index);
        let exact = match self.asked(index) {
            Asked::Syn(_) => segment.has(TcpFlags::ACK),
            _ => Ssn(segment.tcp.seq) == subflow.recv.ack,
        };
        if !exact {
            return Verdict::Drop(DropReason::BlindReset);
        }
        ctx.counters.mp_rst_rx += 1;
        self.give_up_join(ctx, index, None);
        Verdict::Consume
    }

    /// A join that comes to nothing: its uplink rests. The peer is told if there is a cause for it.
    fn give_up_join(&mut self, ctx: &mut Context<'_>, index: SubflowIndex, cause: Option<Rst>) {
        let place = usize::from(self.subflow(index).join.uplink);
        self.set_asked(index, Asked::No);
        match cause {
            Some(cause) => self.reset_subflow(ctx, index, cause),
            None => self.close_subflow(ctx, index, EndCause::Reset),
        }
        self.rest_uplink(ctx.now, place);
    }

    /// SYNs and third packets that are due again, and what the peer is told of lost addresses.
    pub(super) fn repeat_asked_joins(&mut self, ctx: &mut Context<'_>) {
        self.repeat_removed(ctx);
        for index in self.indices() {
            let asked = self.asked(index);
            let is_due = asked.due().is_some_and(|due| due <= ctx.now);
            if self.subflow(index).state != SubflowState::Joining || !is_due {
                continue;
            }
            let next = match asked {
                Asked::No => continue,
                Asked::Syn(again) => again.next(ctx.now).map(Asked::Syn),
                Asked::Proof(again) => again.next(ctx.now).map(Asked::Proof),
            };
            let Some(next) = next else {
                self.give_up_join(ctx, index, None);
                continue;
            };
            self.set_asked(index, next);
            self.subflow_mut(index).sent_syn_again();
            match next {
                Asked::Syn(_) => self.send_join_syn(ctx, index),
                _ => self.send_join_proof(ctx, index),
            }
        }
    }
}

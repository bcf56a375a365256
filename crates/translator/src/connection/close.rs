//! The end: FIN and DATA_FIN, resets on either side, fallback.
//!
//! A subflow's FIN and RST concern that subflow alone. What ends the connection is DATA_FIN and
//! MP_FASTCLOSE on the client's side, FIN and RST on the server's (RFC 8684 sections 3.3.3, 3.5, 3.6).

use core::time::Duration;

use flexcp_wire::{
    Dsn, MpFastClose, MpTcpRst, MptcpOption, OptionWriter, Ssn, TcpFlags, TcpOption, TcpSeq,
};

use super::subflow::Receiving;
use super::{Connection, Context, Phase, Relayed, Subflow, SubflowState, bytes_of};
use crate::auth::same_key;
use crate::cause::{Fallback, Rst};
use crate::counters::DropReason;
use crate::event::EndCause;
use crate::frame::{Frame, Verdict};
use crate::handle::{INITIAL, SubflowIndex};
use crate::segment::{Outgoing, Segment};
use crate::time::Instant;

/// Challenge ACKs of one leg of a connection.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Challenges {
    /// Since when they are counted, in units of 1,024 µs, round and round.
    since: u32,
    /// How many there were.
    count: u8,
}

impl Challenges {
    /// Whether another one may go out.
    fn take(&mut self, now: Instant) -> bool {
        #[allow(clippy::cast_possible_truncation, reason = "it goes round")]
        let time = (now.0 / 1024) as u32;
        if time.wrapping_sub(self.since) >= CHALLENGE_PERIOD {
            (self.since, self.count) = (time, 0);
        }
        self.count = self.count.saturating_add(1);
        self.count <= MAX_CHALLENGES
    }
}

/// Pause before FlexCP's FIN is repeated; it doubles with each copy.
pub(super) const FIN_PAUSE: Duration = Duration::from_secs(1);
/// So many such pauses, and the subflow is over: in all about as long as a Linux client waits for it.
const MAX_FINS: u8 = 6;
/// Challenge ACKs of one connection in each period.
const MAX_CHALLENGES: u8 = 10;
/// That is one second, in units of 1,024 µs.
const CHALLENGE_PERIOD: u32 = 1_000_000 / 1024;

impl Receiving {
    /// Whether the peer's FIN counts in what is ACKed.
    pub(super) fn has_acked_fin(&self) -> bool {
        self.fin_acked && self.fin == Some(self.ack)
    }

    /// Whether it does not, though everything before it does.
    fn holds_fin(&self) -> bool {
        !self.fin_acked && self.fin == Some(self.ack)
    }
}

impl Connection {
    /// Notes the client's FIN on a subflow, and its ACK of FlexCP's. `true`: it was that ACK.
    pub(crate) fn take_subflow_fin(
        &mut self,
        ctx: &mut Context<'_>,
        index: SubflowIndex,
        segment: &Segment,
    ) -> bool {
        let subflow = self.subflow_mut(index);
        // One that has been ACKed stays where it is: the ACK must not go back for another.
        if segment.has(TcpFlags::FIN) && !subflow.recv.has_acked_fin() {
            subflow.recv.fin = Some(Ssn(segment.tcp.seq).add(segment.payload_len()));
            self.reach_fin(index);
        }
        self.confirm_fins(ctx, index)
    }

    /// ACKs the client's FIN on a subflow once everything before it is ACKed.
    ///
    /// Where FlexCP's own FIN went before, the ACK ends the subflow, and on the last one no other is left for the ACK of DATA_FIN,
    /// which a client that can't join would never hear. There it waits for that, and both are said at once.
    pub(crate) fn reach_fin(&mut self, index: SubflowIndex) {
        let subflow = self.subflow(index);
        if subflow.recv.fin != Some(subflow.recv.ack) {
            return;
        }
        let unsaid = |fin: Dsn| !self.to_tcp.acked.after(fin);
        let ends = subflow.send.fin.is_some() && self.is_last(index);
        let waits = ends && self.to_tcp.fin.is_some_and(unsaid);
        self.subflow_mut(index).recv.fin_acked |= !waits;
    }

    /// Closes a subflow on which both FINs and all before them are ACKed. `true`: it is closed.
    pub(crate) fn confirm_fins(&mut self, ctx: &mut Context<'_>, index: SubflowIndex) -> bool {
        let subflow = self.subflow(index);
        let confirmed = subflow.recv.has_acked_fin()
            && subflow
                .send
                .fin
                .is_some_and(|fin| subflow.send.una.after(fin));
        if confirmed {
            self.close_subflow(ctx, index, EndCause::Finished);
        }
        confirmed
    }

    /// Answers the client's FIN on a subflow once everything before it has reached the server: the ACK
    /// carries FlexCP's own FIN, so a lost one is asked for by the client's next copy.
    ///
    /// A FIN closes one direction. On the last subflow FlexCP keeps its own back for as long as the server
    /// may have something to say.
    pub(crate) fn answer_subflow_fin(
        &mut self,
        ctx: &mut Context<'_>,
        index: SubflowIndex,
        again: bool,
    ) {
        if self.subflow(index).lives() && self.subflow(index).recv.holds_fin() {
            // Nothing more is to come there but the ACK of DATA_FIN.
            self.phase.note_orphaned(ctx.now);
        }
        let subflow = self.subflow(index);
        let waiting = subflow.recv.has_acked_fin() && subflow.lives();
        // A FIN that went before the client's may have got lost.
        let acked = |fin: Ssn| subflow.send.una.after(fin);
        let answered =
            subflow.state == SubflowState::Closing || subflow.send.fin.is_some_and(acked);
        if !waiting || (answered && !again) {
            return;
        }
        if !answered && self.is_last(index) && !self.is_finished() {
            if again {
                self.send_ack(ctx, index, TcpFlags::ACK);
            }
            if self.to_tcp.fin.is_none() {
                // Without DATA_FIN the client has left, to come back on another subflow or not at all.
                self.phase.note_orphaned(ctx.now);
            }
            return;
        }
        let subflow = self.subflow_mut(index);
        if !answered {
            let fin = *subflow.send.fin.get_or_insert(subflow.send.next);
            subflow.send.next = subflow.send.next.max(fin.add(1));
            subflow.state = SubflowState::Closing;
        }
        subflow.send.fin_due = Some(ctx.now + FIN_PAUSE);
        self.send_fin(ctx, index);
        self.note_orphan(ctx);
    }

    /// FlexCP's FIN on a subflow, with the ACK of the client's.
    fn send_fin(&self, ctx: &mut Context<'_>, index: SubflowIndex) {
        let subflow = self.subflow(index);
        let fin = subflow.send.fin.unwrap_or(subflow.send.next);
        let mut outgoing = self.own_to_mptcp(index, TcpFlags::FIN | TcpFlags::ACK);
        outgoing.seq = fin.0;
        self.push_dss(&mut outgoing, None, false);
        ctx.send(outgoing.own());
    }

    /// An ACK, with FlexCP's FIN when the client has not ACKed that: it may have got lost, too.
    pub(crate) fn acknowledge_with_fin(&self, ctx: &mut Context<'_>, index: SubflowIndex) {
        let subflow = self.subflow(index);
        let waits = |fin: Ssn| !subflow.send.una.after(fin);
        if subflow.send.fin.is_some_and(waits) {
            self.send_fin(ctx, index);
        } else {
            self.send_ack(ctx, index, TcpFlags::ACK);
        }
    }

    /// FINs that are due again. Most of the time the client asks for a lost one by repeating its own; not
    /// when that has been ACKed by another packet.
    pub(crate) fn repeat_fins(&mut self, ctx: &mut Context<'_>) {
        for index in self.indices() {
            let subflow = self.subflow_mut(index);
            let closing = subflow.state == SubflowState::Closing;
            let send = &mut subflow.send;
            if send.fin_due.is_none_or(|due| ctx.now < due) {
                continue;
            }
            send.fin_copies += 1;
            let again = closing && send.fin_copies < MAX_FINS;
            send.fin_due = again.then(|| ctx.now + FIN_PAUSE * (1 << send.fin_copies));
            if again {
                self.send_fin(ctx, index);
                self.await_answer(ctx);
            }
        }
    }

    /// A FIN has gone again, and the end may have come to its time: the answer is still heard.
    fn await_answer(&mut self, ctx: &Context<'_>) {
        if let Phase::Closed(until) = &mut self.phase {
            *until = (*until).max(ctx.now + FIN_PAUSE);
        }
    }

    /// Whether no other subflow could carry what the server still has to say.
    fn is_last(&self, index: SubflowIndex) -> bool {
        !self
            .indices()
            .any(|other| other != index && self.subflow(other).carries())
    }

    /// Both directions closed: what still comes is answered for a while.
    pub(crate) fn note_finished(&mut self, ctx: &mut Context<'_>) {
        if self.phase.is_established() && self.is_finished() {
            self.tell_closed(ctx.events, EndCause::Finished);
            self.phase = Phase::Closed(ctx.now + ctx.config.timeouts.linger);
            for index in self.indices() {
                self.answer_subflow_fin(ctx, index, false);
            }
        }
    }

    /// Something still comes, so its sender may not have heard that all is done.
    pub(crate) fn linger(&mut self, ctx: &Context<'_>) {
        if let Phase::Closed(_) = self.phase {
            self.phase = Phase::Closed(ctx.now + ctx.config.timeouts.linger);
        }
    }

    /// A subflow is over; its slot may be taken.
    pub(crate) fn close_subflow(
        &mut self,
        ctx: &mut Context<'_>,
        index: SubflowIndex,
        cause: EndCause,
    ) {
        if !self.subflow(index).lives() {
            return;
        }
        self.tell_subflow_closed(ctx, index, cause);
        self.note_closed(&ctx.config.accesses, ctx.arrivals, index);
        let subflow = self.subflow_mut(index);
        subflow.state = SubflowState::Closed;
        subflow.send.lane.clear();
        subflow.recv.lane.clear();
        subflow.send.filler = None;
        subflow.send.fin_due = None;
        self.let_go_spare(index);
        self.note_uplink_free(ctx.now, index);
        // Its flow stays known until another takes the slot: what still comes must not pass as a packet of
        // nobody's.
        self.note_orphan(ctx);
    }

    /// A packet on a subflow that is over, but no RST. One that ended with FINs is in TIME-WAIT: what the client repeats
    /// there has been taken, and the answer carries the data ACK that it may still lack. `false`: it has to be
    /// refused.
    pub(crate) fn answer_closed(
        &mut self,
        ctx: &mut Context<'_>,
        index: SubflowIndex,
        segment: &Segment,
    ) -> bool {
        let subflow = self.subflow(index);
        let (Some(_), Some(fin)) = (subflow.send.fin, subflow.recv.fin) else {
            return false;
        };
        let echo = segment.options.add_addr.as_ref().filter(|add| add.echo);
        if let Some(echo) = echo.filter(|_| segment.tcp.seq == fin.add(1).0) {
            // Its answer to what went down before the FINs.
            self.take_echo(ctx, echo.id);
        }
        let data_fin = segment.options.dss.as_ref().is_some_and(|dss| dss.data_fin);
        let repeats = data_fin || segment.sequence_len() > 0;
        if repeats {
            self.send_ack(ctx, index, TcpFlags::ACK);
            self.linger(ctx);
        }
        if data_fin && let Some(fin) = self.to_tcp.fin.filter(|fin| !self.to_tcp.acked.after(*fin))
        {
            // The server has not got it.
            let outgoing = self.own_to_tcp(self.seq_to_tcp(fin), TcpFlags::FIN | TcpFlags::ACK);
            ctx.send(outgoing.own());
        }
        true
    }

    /// Notes when no subflow is left that could carry data.
    fn note_orphan(&mut self, ctx: &Context<'_>) {
        let alone = !self
            .mptcp
            .subflows
            .iter()
            .any(|s| s.state == SubflowState::Established);
        if alone {
            self.phase.note_orphaned(ctx.now);
        }
    }

    /// FlexCP gives a subflow up.
    pub(crate) fn reset_subflow(&mut self, ctx: &mut Context<'_>, index: SubflowIndex, cause: Rst) {
        if !self.subflow(index).lives() {
            return;
        }
        let reason = cause.reason();
        self.send_reset(ctx, index, cause, reason);
        self.close_subflow(ctx, index, EndCause::Rst(cause));
        let subflow = self.subflow_mut(index);
        subflow.given_up = Some(reason);
        // No TIME-WAIT: what still comes is refused.
        subflow.send.fin = None;
    }

    /// The server repeats data that nobody carries: a client whose subflow FlexCP gave up may not have heard
    /// of it, and joins again once it has.
    pub(crate) fn repeat_resets(&self, ctx: &mut Context<'_>) {
        if self.phase.orphaned().is_none_or(|since| since == ctx.now) {
            return;
        }
        for index in self.indices() {
            if let Some(reason) = self.subflow(index).given_up {
                self.send_reset(ctx, index, Rst::Repeated, reason);
            }
        }
    }

    fn send_reset(&self, ctx: &mut Context<'_>, index: SubflowIndex, cause: Rst, reason: u8) {
        let mut outgoing = self.own_to_mptcp(index, TcpFlags::ACK);
        let reset = MpTcpRst {
            transient: reason != MpTcpRst::MPTCP_ERROR,
            reason,
        };
        outgoing
            .options
            .push(&TcpOption::Mptcp(MptcpOption::Reset(reset)));
        ctx.reset(outgoing, cause);
    }

    /// The client resets one subflow. Believed at the exact number only (RFC 5961 section 3.2); another
    /// one in the window gets a challenge ACK.
    pub(crate) fn handle_subflow_reset(
        &mut self,
        ctx: &mut Context<'_>,
        index: SubflowIndex,
        segment: &Segment,
    ) -> Verdict {
        let seq = Ssn(segment.tcp.seq);
        let subflow = self.subflow(index);
        // The key proves more than the number does, which may lie behind data that got lost.
        if let Some(key) = segment.options.fast_close
            && same_key(key, self.mptcp.key.key)
        {
            return self.handle_fast_close(ctx, key);
        }
        let expected = [subflow.recv.ack, subflow.ack_number(), self.rcv_next(index)];
        if !expected.contains(&seq) {
            let outdated = seq.before(subflow.recv.ack);
            let verdict = self.challenge(ctx, index);
            let closed = matches!(self.phase, Phase::Closed(_));
            // A client that has closed its socket refuses data that was on its way (RFC 9293 section 3.10.7.1), with the
            // number that this ACKed. It resets the challenge ACK with the exact one.
            return if closed && outdated {
                Verdict::Consume
            } else {
                verdict
            };
        }
        if segment.options.fast_close.is_some() {
            return Verdict::Drop(DropReason::NotAuthenticated);
        }
        ctx.counters.mp_rst_rx += 1;
        self.close_subflow(ctx, index, EndCause::Reset);
        Verdict::Consume
    }

    /// Behind the last data that came up on the subflow.
    fn rcv_next(&self, index: SubflowIndex) -> Ssn {
        let subflow = self.subflow(index);
        subflow
            .recv
            .lane
            .end()
            .map_or(subflow.recv.ack, |end| end.max(subflow.recv.ack))
    }

    /// Tells the sender of a doubtful packet what FlexCP expects; the true client corrects it.
    ///
    /// At most so many a second for one connection (RFC 5961 section 7); a limit that connections shared
    /// would tell one of them about another.
    pub(crate) fn challenge(&mut self, ctx: &mut Context<'_>, index: SubflowIndex) -> Verdict {
        if self.mptcp.challenges.take(ctx.now) {
            self.send_ack(ctx, index, TcpFlags::ACK);
        }
        Verdict::Drop(DropReason::BlindReset)
    }

    /// The same where the TCP leg has opened the connection, for its end.
    pub(super) fn challenge_opener(&mut self, ctx: &mut Context<'_>) -> Verdict {
        if self.tcp.challenges.take(ctx.now) {
            let challenge = self.own_to_tcp(self.bare_seq_to_tcp(), TcpFlags::ACK);
            ctx.send(challenge.own());
        }
        Verdict::Drop(DropReason::Unexpected)
    }

    /// Whether the peer aborts the connection, and proves that it is the peer.
    pub(crate) fn is_fast_closed(&self, segment: &Segment) -> bool {
        let key = segment.options.fast_close;
        key.is_some_and(|key| same_key(key, self.mptcp.key.key))
    }

    /// The client aborts the connection (RFC 8684 section 3.5): the server gets a RST, every subflow
    /// too.
    pub(crate) fn handle_fast_close(&mut self, ctx: &mut Context<'_>, key: u64) -> Verdict {
        if !same_key(key, self.mptcp.key.key) {
            return Verdict::Drop(DropReason::NotAuthenticated);
        }
        ctx.counters.mp_fastclose_rx += 1;
        self.reset_server(ctx, Rst::FastClose);
        for index in self.indices() {
            if self.subflow(index).lives() {
                ctx.reset(self.own_to_mptcp(index, TcpFlags::ACK), Rst::FastClose);
            }
        }
        self.note_reset(ctx, Rst::FastClose);
        Verdict::Consume
    }

    /// The server resets the connection: `MP_FASTCLOSE` and RST on every subflow, so that the client's
    /// application hears of it at once.
    pub(crate) fn handle_server_reset(&mut self, ctx: &mut Context<'_>, dsn: Dsn) -> Verdict {
        // The server's own number, or what an ACK of the client's made it use. Another one in the window
        // gets an ACK that the true server answers with that (RFC 5961 section 3.2).
        if dsn != self.to_mptcp.next && dsn != self.to_mptcp.acked {
            let in_window = !dsn.before(self.to_mptcp.acked) && dsn.before(self.to_mptcp.edge);
            if in_window && self.tcp.challenges.take(ctx.now) {
                let challenge = self.own_to_tcp(self.bare_seq_to_tcp(), TcpFlags::ACK);
                ctx.send(challenge.own());
            }
            return Verdict::Drop(DropReason::BlindReset);
        }
        if let Phase::Closed(_) = self.phase {
            // It has all data and has forgotten the connection: the client's last ACK reached it twice.
            return Verdict::Consume;
        }
        self.fast_close_all(ctx, Rst::ServerReset);
        self.note_reset(ctx, Rst::ServerReset);
        Verdict::Consume
    }

    /// Both ends have been told that the connection is over: what still comes is answered for a while.
    pub(crate) fn note_reset(&mut self, ctx: &mut Context<'_>, cause: Rst) {
        self.tell_closed(ctx.events, EndCause::Rst(cause));
        self.phase = Phase::Reset(ctx.now + ctx.config.timeouts.linger);
    }

    /// RST with `MP_FASTCLOSE` on every subflow.
    pub(super) fn fast_close_all(&self, ctx: &mut Context<'_>, cause: Rst) {
        let told = self.mptcp.subflows.iter().any(Subflow::lives);
        ctx.counters.mp_fastclose_tx += u64::from(told);
        for index in self.indices() {
            if self.subflow(index).lives() {
                self.send_fast_close(ctx, index, self.subflow(index).send.next, cause);
            }
        }
    }

    fn send_fast_close(&self, ctx: &mut Context<'_>, index: SubflowIndex, seq: Ssn, cause: Rst) {
        let mut outgoing = self.own_to_mptcp(index, TcpFlags::ACK);
        outgoing.seq = seq.0;
        if let Some(remote) = self.mptcp.peer_key {
            let option = MpFastClose { key: remote.key };
            outgoing
                .options
                .push(&TcpOption::Mptcp(MptcpOption::FastClose(option)));
        } else {
            // Nobody has shown to be there: it is no longer than what it answers.
            outgoing.options = OptionWriter::default();
        }
        ctx.reset(outgoing, cause);
    }

    /// RST to the server.
    pub(crate) fn reset_server(&self, ctx: &mut Context<'_>, cause: Rst) {
        if let Some(seq) = self.header_seq() {
            ctx.reset(self.own_to_tcp(seq, TcpFlags::ACK), cause);
        }
        ctx.reset(
            self.own_to_tcp(self.bare_seq_to_tcp(), TcpFlags::ACK),
            cause,
        );
    }

    /// RST to the server before the client has shown that it is there: the SYN is all that was sent.
    pub(crate) fn reset_half_open(&self, ctx: &mut Context<'_>, cause: Rst) {
        let outgoing = self.own_to_tcp(self.tcp.isn_local.add(1), TcpFlags::default());
        ctx.reset(outgoing, cause);
    }

    /// Ends a connection that nobody uses any more.
    pub(crate) fn reset_both(&self, ctx: &mut Context<'_>, cause: Rst) {
        self.fast_close_all(ctx, cause);
        self.reset_server(ctx, cause);
    }

    /// The same while the handshake is not complete, and for plain TCP, whose numbers FlexCP knows as they passed: what
    /// each end has ACKed last, and what comes next if that differs. One of the two is what it expects.
    pub(crate) fn reset_plain(&mut self, ctx: &mut Context<'_>, cause: Rst) {
        let mut down = self.own_to_mptcp(INITIAL, TcpFlags::ACK);
        // The clocks of plain connections are not followed.
        down.options = OptionWriter::default();
        if matches!(self.phase, Phase::SynSent | Phase::SynReceived) || !self.tcp.syn.answered {
            down.ack = self.subflow(INITIAL).agreed.isn_remote.add(1).0;
            if !self.tcp.syn.answered {
                // The answer to a SYN (RFC 9293 section 3.10.7.1).
                down.seq = 0;
            }
            if self.may_answer(bytes_of(&mut down, &(0..0))) {
                ctx.reset(down, cause);
            }
            return self.reset_half_open(ctx, cause);
        }
        let acked = self
            .header_seq()
            .unwrap_or_else(|| self.seq_to_tcp(self.to_tcp.acked));
        let mut up = self.own_to_tcp(acked, TcpFlags::ACK);
        up.options = OptionWriter::default();
        ctx.reset(up.clone(), cause);
        if self.to_tcp.next != self.to_tcp.acked {
            up.seq = self.seq_to_tcp(self.to_tcp.next).0;
            ctx.reset(up, cause);
        }
        self.reset_plain_client(ctx, down, cause);
    }

    /// The client's part of it, once the server has answered.
    fn reset_plain_client(&mut self, ctx: &mut Context<'_>, mut down: Outgoing, cause: Rst) {
        down.ack = self.seq_to_tcp(self.to_tcp.acked).0;
        down.seq = self.seq_to_mptcp(self.to_mptcp.acked).0;
        let bytes = bytes_of(&mut down, &(0..0));
        if self.may_answer(bytes) {
            ctx.reset(down.clone(), cause);
        }
        if self.to_mptcp.next != self.to_mptcp.acked && self.may_answer(bytes) {
            down.seq = self.seq_to_mptcp(self.to_mptcp.next).0;
            ctx.reset(down, cause);
        }
    }

    /// Resets the client of a connection whose server is a responder, which has no need to hear of it.
    pub(crate) fn turn_away(&mut self, ctx: &mut Context<'_>, cause: Rst) {
        if self.phase.is_established() {
            self.fast_close_all(ctx, cause);
        } else {
            let mut down = self.own_to_mptcp(INITIAL, TcpFlags::ACK);
            down.options = OptionWriter::default();
            self.reset_plain_client(ctx, down, cause);
        }
        self.note_reset(ctx, cause);
    }

    /// A packet of the client's after the reset: it has not got it, or not believed it because data was
    /// missing before it. The number that it ACKs is the one it will believe.
    pub(crate) fn answer_reset_client(
        &mut self,
        ctx: &mut Context<'_>,
        index: SubflowIndex,
        segment: &Segment,
    ) -> Verdict {
        if !segment.has(TcpFlags::RST) && segment.has(TcpFlags::ACK) {
            self.send_fast_close(ctx, index, Ssn(segment.tcp.ack), Rst::AfterReset);
        }
        Verdict::Consume
    }

    /// The same for the server.
    pub(crate) fn answer_reset_server(
        &mut self,
        ctx: &mut Context<'_>,
        segment: &Segment,
    ) -> Verdict {
        if !segment.has(TcpFlags::RST) && segment.has(TcpFlags::ACK) {
            let outgoing = self.own_to_tcp(TcpSeq(segment.tcp.ack), TcpFlags::ACK);
            ctx.reset(outgoing, Rst::AfterReset);
        }
        Verdict::Consume
    }

    /// The client goes on without MPTCP, or its options do not come through any more: the initial
    /// subflow becomes the TCP connection that it has been all along (RFC 8684 section 3.7). The data is
    /// relayed as it is; that there is no DSS on what goes down tells the client.
    pub(crate) fn fall_back_for_client(
        &mut self,
        ctx: &mut Context<'_>,
        index: SubflowIndex,
        segment: &Segment,
        frame: &mut Frame<'_>,
        cause: Fallback,
    ) -> Verdict {
        if !self.numbers.identity || index != INITIAL {
            self.reset_subflow(ctx, index, Rst::LateFallback);
            return Verdict::Drop(DropReason::NoMapping);
        }
        self.phase = Phase::Fallback(Relayed {
            // Its options come through on the way down, and it does not know yet: it will by the next data without a
            // mapping. Until then it needs data ACKs, or its window closes.
            wants_data_acks: cause == Fallback::NoMapping,
            midway: true,
            ..Relayed::default()
        });
        ctx.counters.decide(cause);
        self.note_stripped(ctx, index);
        self.relay_to_tcp(ctx, segment, frame)
    }

    /// The same for a packet of the server's.
    pub(crate) fn fall_back_for_server(
        &mut self,
        ctx: &mut Context<'_>,
        segment: &Segment,
        frame: &mut Frame<'_>,
    ) -> Verdict {
        self.phase = Phase::Fallback(Relayed {
            midway: true,
            ..Relayed::default()
        });
        ctx.counters.decide(Fallback::ServerFin);
        self.note_stripped(ctx, INITIAL);
        self.relay_to_mptcp(ctx, segment, frame)
    }

    /// `MP_FAIL`: the client saw a wrong checksum. FlexCP negotiates none, so this is a client that
    /// leaves MPTCP in the only way it has.
    pub(crate) fn handle_fail(
        &mut self,
        ctx: &mut Context<'_>,
        index: SubflowIndex,
        segment: &Segment,
        frame: &mut Frame<'_>,
    ) -> Verdict {
        ctx.counters.mp_fail_rx += 1;
        if self.numbers.identity && index == INITIAL {
            // RFC 8684 section 3.7: MP_FAIL is answered with MP_FAIL.
            let mut outgoing = self.own_to_mptcp(index, TcpFlags::ACK);
            let fail = flexcp_wire::MpFail {
                dsn: self.to_tcp.acked.0,
            };
            outgoing
                .options
                .push(&TcpOption::Mptcp(MptcpOption::Fail(fail)));
            ctx.send(outgoing.own());
        }
        self.fall_back_for_client(ctx, index, segment, frame, Fallback::Fail)
    }
}

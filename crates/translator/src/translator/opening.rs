//! What a SYN opens: a connection, a subflow of one, or plain TCP; and when it may.

use flexcp_wire::{Ends, MpJoin, MpTcpRst, TcpFlags};

use super::hand::Hand;
use super::{STALE_HANDSHAKE, Translator, context, lost};
use crate::cause::{HalfOpenEvicted, JoinRefused, PlainSyn, Rst};
use crate::connection::{Connection, Front, Phase, Relayed, Request, Subflow, relay, request};
use crate::counters::DropReason;
use crate::endpoint::Backend;
use crate::handle::{INITIAL, SubflowIndex};
use crate::rst::refuse;
use crate::segment::Segment;
use crate::service::Match;
use crate::table::{ConnectionId, FlowRef, Leg};
use crate::{Frame, Instant, ServiceId, Verdict};

impl Translator {
    /// Whether a SYN that no connection knows may open one, or join one.
    pub(super) fn may_open(&self, segment: &Segment) -> bool {
        let service = self.services.find(segment.destination());
        let asks = request(segment) == Request::Mptcp || segment.options.join.is_some();
        asks || matches!(
            service,
            Some(Match::Reverse { .. } | Match::Explicit { .. } | Match::Box { .. })
        )
    }

    /// Whether a SYN comes from where a joined subflow came from that is over, or whose connection is: the client has
    /// closed that socket and uses its port anew.
    fn is_free(&mut self, flow: FlowRef, segment: &Segment) -> bool {
        let Leg::Subflow(index @ 1..) = flow.leg else {
            return false;
        };
        let Some(connection) = self.table.get_mut(flow.id) else {
            return false;
        };
        let over = connection.phase.is_over();
        let subflow = connection.subflow(index);
        let same = subflow.syn_number().0 == segment.tcp.seq;
        !subflow.lives() || (over && !same)
    }

    /// Whether a SYN with another number comes while the handshake that is known may still complete.
    fn is_fresh_handshake(&mut self, now: Instant, flow: FlowRef, segment: &Segment) -> bool {
        let Some(connection) = self.table.get_mut(flow.id) else {
            return false;
        };
        let waits = matches!(connection.phase, Phase::SynSent | Phase::SynReceived);
        flow.leg == Leg::Subflow(INITIAL)
            && waits
            && connection.subflow(INITIAL).syn_number().0 != segment.tcp.seq
            && now.since(connection.opened) < STALE_HANDSHAKE
    }

    /// Whether a SYN on a known flow starts another connection: the one that is known is over, or has
    /// not come beyond its own SYN and the client has started anew.
    fn gives_way(&mut self, flow: FlowRef, segment: &Segment) -> bool {
        let Some(connection) = self.table.get_mut(flow.id) else {
            return true;
        };
        match flow.leg {
            Leg::Subflow(INITIAL) => {}
            Leg::Subflow(_) => return false,
            Leg::Server if connection.asks() => return connection.is_left_by_opener(segment),
            Leg::Server => return connection.phase.is_over(),
            Leg::Called => return false,
        }
        let same = connection.subflow(INITIAL).syn_number().0 == segment.tcp.seq;
        match connection.phase {
            // Its own SYN has come long since; this one was held up on the way.
            Phase::Reset(_) | Phase::Closed(_) | Phase::SynSent | Phase::SynReceived => !same,
            // A live one is the server's to ask about (RFC 5961 section 4): anybody can send a SYN.
            Phase::Plain(_) | Phase::Fallback(_) => {
                let over = connection.is_finished() || connection.phase.relayed().reset;
                !same && (over || !connection.tcp.syn.answered)
            }
            // All that is left of the client's end is gone, and it starts anew.
            Phase::Established { .. } => {
                !same && !connection.mptcp.subflows.iter().any(Subflow::lives)
            }
        }
    }

    /// Removes a connection that another takes the place of; a server that still has it hears of it.
    fn abandon(&mut self, now: Instant, id: ConnectionId) {
        let Some(connection) = self.table.get_mut(id) else {
            return;
        };
        if connection.phase.is_established() {
            let mut ctx = context!(self, now);
            connection.reset_server(&mut ctx, Rst::Replaced);
        }
        self.remove(id);
    }

    /// A SYN that no connection knows.
    pub(super) fn handle_syn(
        &mut self,
        now: Instant,
        segment: &Segment,
        frame: &mut Frame<'_>,
    ) -> Verdict {
        if let Some(MpJoin::Syn { token, .. }) = segment.options.join {
            return self.handle_join(now, token, segment);
        }
        match self.services.find(segment.destination()) {
            None => self.handle_unknown(segment),
            Some(Match::Transparent {
                service,
                end_to_end,
                opens,
            }) => {
                let wants = self.wants_mptcp(now, opens, segment);
                self.handle_syn_on_path(now, (service, wants), end_to_end, segment, frame)
            }
            Some(Match::Reverse { opens, .. }) if self.drain.begun || !opens => {
                self.refuse(segment, Rst::Draining);
                Verdict::Drop(DropReason::Draining)
            }
            Some(Match::Reverse { service, .. }) => {
                self.handle_syn_in_reverse(now, service, segment, frame)
            }
            Some(Match::Explicit { service, opens }) => {
                self.handle_explicit_syn(now, (service, opens), segment, frame)
            }
            Some(Match::Box { service, opens }) => {
                self.handle_syn_at_box(now, (service, opens), segment, frame)
            }
        }
    }

    /// The same for a server on the path, of a SYN that wants MPTCP or has to do without for some cause.
    fn handle_syn_on_path(
        &mut self,
        now: Instant,
        (service, wants): (ServiceId, Result<(), PlainSyn>),
        end_to_end: bool,
        segment: &Segment,
        frame: &mut Frame<'_>,
    ) -> Verdict {
        let backend = Backend {
            source: segment.source(),
            addr: segment.destination(),
        };
        let Err(cause) = wants else {
            return self.open(now, service, backend, segment, frame, end_to_end);
        };
        self.counters.decide(cause);
        if cause == PlainSyn::NoOption {
            self.note_plain(segment);
        }
        let ends = Ends {
            from: backend.source,
            to: backend.addr,
        };
        self.pass_by(ends);
        if segment.options.mptcp && !end_to_end {
            return relay(ends, segment, frame);
        }
        Verdict::Forward
    }

    /// The same for one of FlexCP's own addresses.
    fn handle_syn_in_reverse(
        &mut self,
        now: Instant,
        service: ServiceId,
        segment: &Segment,
        frame: &mut Frame<'_>,
    ) -> Verdict {
        if !self.services.takes_any(service) {
            self.refuse(segment, Rst::NoBackend);
            return Verdict::Drop(DropReason::NoBackend);
        }
        if self.splits(service, segment) {
            return Verdict::Forward;
        }
        let Some((backend, reused)) = self.room_in_reverse(now, service) else {
            // Silence would make the client give MPTCP up.
            self.refuse(segment, Rst::NoRoom);
            return Verdict::Drop(DropReason::LimitReached);
        };
        let verdict = match self.wants_mptcp(now, true, segment) {
            Ok(()) => self.open(now, service, backend, segment, frame, false),
            Err(cause) => {
                self.counters.decide(cause);
                if self.table.half_open() >= self.config.limits.half_open {
                    self.evict_half_open(
                        now,
                        self.table.oldest_half_open(),
                        HalfOpenEvicted::Plain,
                    );
                }
                self.open_plain(now, service, backend, segment, frame)
            }
        };
        if reused {
            self.put_off_syn(now, segment)
        } else {
            verdict
        }
    }

    /// Whether the SYN asks for MPTCP and there is room for it, or why it passes as plain TCP. Without room it does:
    /// clients that lose such SYNs give up MPTCP altogether.
    /// `opens`: its service takes new connections.
    fn wants_mptcp(
        &mut self,
        now: Instant,
        opens: bool,
        segment: &Segment,
    ) -> Result<(), PlainSyn> {
        self.wants(now, opens, request(segment))
    }

    /// The same of what the SYN asks for.
    pub(super) fn wants(
        &mut self,
        now: Instant,
        opens: bool,
        request: Request,
    ) -> Result<(), PlainSyn> {
        if let Request::Plain(cause) = request {
            return Err(cause);
        }
        if self.drain.begun || !opens {
            return Err(PlainSyn::Draining);
        }
        let limits = self.config.limits;
        let crowded = self.table.half_open() >= limits.half_open || self.budget.is_short();
        if crowded && self.has_stale_handshake(now) {
            self.evict_half_open(now, self.table.oldest_half_open(), HalfOpenEvicted::Stale);
        }
        let full =
            self.table.len() >= limits.connections || self.table.half_open() >= limits.half_open;
        if full {
            Err(PlainSyn::Overload)
        } else if self.budget.is_short() {
            Err(PlainSyn::Memory)
        } else {
            Ok(())
        }
    }

    /// Takes a connection into the table and sends its SYN on.
    fn open(
        &mut self,
        now: Instant,
        service: ServiceId,
        backend: Backend,
        segment: &Segment,
        frame: &mut Frame<'_>,
        end_to_end: bool,
    ) -> Verdict {
        let local = self.fresh_key();
        let initial = Subflow::new(now, segment, flexcp_wire::Ssn(0));
        let connection = Connection::new(now, service, initial, backend, local);
        let connection = self.behind_header(connection);
        self.counters.mp_capable_syn_rx += 1;
        self.enter(now, connection, segment, frame, end_to_end)
    }

    /// The same of a connection that is made.
    pub(super) fn enter(
        &mut self,
        now: Instant,
        connection: Connection,
        segment: &Segment,
        frame: &mut Frame<'_>,
        end_to_end: bool,
    ) -> Verdict {
        let id = self.table.insert(connection);
        self.counters.connections_opened += 1;
        self.note_asked(now, id);
        let Some(connection) = self.table.get_mut(id) else {
            return lost();
        };
        connection.earn(segment);
        let mut ctx = context!(self, now);
        let verdict = connection.forward_syn(&mut ctx, segment, frame, end_to_end);
        self.settle(now, id);
        verdict
    }

    /// The same connection behind a header that tells the back end of the client, if the service's back ends want one.
    fn behind_header(&self, connection: Connection) -> Connection {
        if !self.services.tells_clients(connection.service) {
            return connection;
        }
        let ends = connection.subflow(INITIAL).flow();
        connection.behind(Front::header(ends))
    }

    /// The same for a client without MPTCP, in reverse mode.
    fn open_plain(
        &mut self,
        now: Instant,
        service: ServiceId,
        backend: Backend,
        segment: &Segment,
        frame: &mut Frame<'_>,
    ) -> Verdict {
        let local = self.fresh_key();
        let initial = Subflow::new(now, segment, flexcp_wire::Ssn(0));
        let mut connection = Connection::new(now, service, initial, backend, local);
        connection.phase = Phase::Plain(Relayed::default());
        let mut connection = self.behind_header(connection);
        if connection.front.is_some() {
            return self.enter(now, connection, segment, frame, false);
        }
        connection.remember_syn(now, segment);
        let id = self.table.insert(connection);
        self.counters.connections_opened += 1;
        self.note_asked(now, id);
        let Some(connection) = self.table.get_mut(id) else {
            return lost();
        };
        let mut ctx = context!(self, now);
        let verdict = connection.relay_to_tcp(&mut ctx, segment, frame);
        self.settle(now, id);
        verdict
    }

    /// The client sends its SYN again: the server has not answered, or its answer got lost. Without
    /// `MP_CAPABLE` the client has given MPTCP up.
    pub(super) fn repeat_syn(
        &mut self,
        now: Instant,
        id: ConnectionId,
        segment: &Segment,
        frame: &mut Frame<'_>,
    ) -> Verdict {
        let Some(connection) = self.table.get_mut(id) else {
            return lost();
        };
        let (phase, has_preamble) = (connection.phase, connection.has_preamble());
        if self.leave_silent(now, id) {
            return Verdict::Consume;
        }
        if has_preamble {
            return self.repeat_explicit_syn(now, id, segment, frame);
        }
        let Some(connection) = self.table.get_mut(id) else {
            return lost();
        };
        let mut ctx = context!(self, now);
        if phase.is_plain() {
            return connection.relay_to_tcp(&mut ctx, segment, frame);
        }
        if request(segment) == Request::Mptcp {
            let end_to_end = connection.tcp.syn.offered_end_to_end;
            return connection.forward_syn(&mut ctx, segment, frame, end_to_end);
        }
        ctx.counters.decide(PlainSyn::GivenUp);
        connection.phase = Phase::Plain(Relayed::default());
        connection.relay_to_tcp(&mut ctx, segment, frame)
    }

    /// A join: by its token to its connection.
    fn handle_join(&mut self, now: Instant, token: u32, segment: &Segment) -> Verdict {
        let Some(id) = self.table.find_token(token) else {
            return self.handle_unknown_join(segment);
        };
        if let Some(mut hand) = self.hand(now, id) {
            hand.evict();
            hand.connection.make_room_for_join(&mut hand.ctx, segment);
            hand.register();
        }
        self.forget_gone(id);
        let Some(Hand {
            connection,
            mut ctx,
            ..
        }) = self.hand(now, id)
        else {
            return lost();
        };
        match connection.handle_join_syn(&mut ctx, segment) {
            Ok(index) => {
                let ends = connection.subflow(index).flow();
                let leg = Leg::Subflow(index);
                self.table.insert_flow(ends, FlowRef { id, leg });
                self.settle(now, id);
                Verdict::Consume
            }
            Err(cause) => {
                self.counters.decide(cause);
                let (reason, drop) = match cause {
                    JoinRefused::FellBack => {
                        self.settle(now, id);
                        return Verdict::Drop(DropReason::Unexpected);
                    }
                    JoinRefused::Subflows | JoinRefused::HalfOpenJoins | JoinRefused::Memory => {
                        (MpTcpRst::RESOURCES, DropReason::LimitReached)
                    }
                    _ => (Rst::JoinRefused.reason(), DropReason::Unexpected),
                };
                let rst = Rst::JoinRefused;
                refuse(&mut self.counters, &mut self.outbox, segment, rst, reason);
                self.settle(now, id);
                Verdict::Drop(drop)
            }
        }
    }

    /// A join of a connection that FlexCP does not have.
    fn handle_unknown_join(&mut self, segment: &Segment) -> Verdict {
        if self.splits_join(segment) {
            return Verdict::Forward;
        }
        self.counters.mp_join_no_token += 1;
        let service = self.services.find(segment.destination());
        if let Some(Match::Transparent { .. } | Match::Box { .. }) = service {
            // It may belong to a connection that the server keeps itself.
            return Verdict::Forward;
        }
        self.refuse(segment, Rst::UnknownToken);
        Verdict::Drop(DropReason::NoConnection)
    }

    /// A SYN on a flow that is known. `None`: it is for the connection that has it.
    pub(super) fn handle_syn_on(
        &mut self,
        now: Instant,
        flow: FlowRef,
        segment: &Segment,
        frame: &mut Frame<'_>,
    ) -> Option<Verdict> {
        if self.is_free(flow, segment) {
            self.table.remove_flow(flow);
            return Some(self.handle_syn(now, segment, frame));
        }
        if self.is_fresh_handshake(now, flow, segment) {
            // Anybody can send a SYN; one from the client itself comes again.
            return Some(Verdict::Drop(DropReason::Unexpected));
        }
        if self.gives_way(flow, segment) {
            self.abandon(now, flow.id);
            return Some(self.handle_syn(now, segment, frame));
        }
        None
    }

    /// The server's answer to a SYN.
    pub(super) fn handle_syn_ack(
        &mut self,
        now: Instant,
        id: ConnectionId,
        segment: &Segment,
        frame: &mut Frame<'_>,
    ) -> Verdict {
        let Some(connection) = self.table.get_mut(id) else {
            return lost();
        };
        let mut ctx = context!(self, now);
        if connection.tcp.syn.offered_end_to_end && segment.options.capable.is_some() {
            // The server speaks MPTCP itself: from here on FlexCP only routes.
            ctx.counters.end_to_end += 1;
            let ends = connection.server_ends();
            self.remove(id);
            self.pass_by(ends);
            return Verdict::Forward;
        }
        let verdict = connection.handle_syn_ack(&mut ctx, segment, frame);
        self.note_answer(now, id, segment);
        verdict
    }

    /// A packet of a connection that is opening: its phase is `SynSent` or `SynReceived`, or `Plain` without an answer yet.
    pub(super) fn handle_opening(
        &mut self,
        now: Instant,
        flow: FlowRef,
        segment: &Segment,
        frame: &mut Frame<'_>,
    ) -> Verdict {
        if self.table.get(flow.id).is_some_and(Connection::asks) {
            return self.handle_asking(now, flow, segment, frame);
        }
        match flow.leg {
            Leg::Subflow(index) => self.handle_opening_client(now, flow.id, index, segment, frame),
            Leg::Server => self.handle_opening_server(now, flow.id, segment, frame),
            Leg::Called => lost(),
        }
    }

    fn handle_opening_client(
        &mut self,
        now: Instant,
        id: ConnectionId,
        index: SubflowIndex,
        segment: &Segment,
        frame: &mut Frame<'_>,
    ) -> Verdict {
        let Some(Hand {
            connection,
            mut ctx,
            ..
        }) = self.hand(now, id)
        else {
            return lost();
        };
        if segment.has(TcpFlags::SYN) {
            return self.repeat_syn(now, id, segment, frame);
        }
        match connection.phase {
            Phase::SynSent => relay(connection.server_ends(), segment, frame),
            Phase::SynReceived if segment.has(TcpFlags::RST) => {
                // The server judges for itself; FlexCP believes the exact number (RFC 5961).
                let next = connection.subflow(INITIAL).agreed.isn_remote.add(1);
                let is_exact = segment.tcp.seq == next.0;
                let verdict = relay(connection.server_ends(), segment, frame);
                if is_exact {
                    self.remove(id);
                }
                verdict
            }
            Phase::SynReceived => connection.handle_answer(&mut ctx, index, segment, frame),
            _ => connection.relay_to_tcp(&mut ctx, segment, frame),
        }
    }

    fn handle_opening_server(
        &mut self,
        now: Instant,
        id: ConnectionId,
        segment: &Segment,
        frame: &mut Frame<'_>,
    ) -> Verdict {
        let Some(Hand {
            connection,
            mut ctx,
            ..
        }) = self.hand(now, id)
        else {
            return lost();
        };
        if segment.has(TcpFlags::RST) {
            return self.handle_refusal(now, id, segment, frame);
        }
        match connection.phase {
            Phase::SynSent | Phase::SynReceived
                if segment.has(TcpFlags::SYN) && segment.has(TcpFlags::ACK) =>
            {
                self.handle_syn_ack(now, id, segment, frame)
            }
            // The server still knows an earlier connection: a challenge ACK (RFC 5961), whose answer ends that, or its
            // data. On the client's own ports that is the client's: anybody can have sent the SYN, and what is only
            // forwarded FlexCP does not know. On a port of FlexCP's it may be another client's.
            Phase::SynSent if segment.payload.is_empty() || connection.keeps_ends() => {
                let ends = connection.subflow(INITIAL).ends();
                if !connection.may_relay(ends, segment, frame) {
                    return Verdict::Drop(DropReason::Unproved);
                }
                relay(ends, segment, frame)
            }
            Phase::SynSent | Phase::SynReceived => Verdict::Drop(DropReason::Unexpected),
            _ if connection.front.is_some() && segment.has(TcpFlags::SYN) => {
                let verdict = connection.answer_in_syn_ack(&mut ctx, segment, frame);
                self.note_answer(now, id, segment);
                verdict
            }
            _ => {
                let verdict = connection.relay_to_mptcp(&mut ctx, segment, frame);
                self.note_answer(now, id, segment);
                verdict
            }
        }
    }
}

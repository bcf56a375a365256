//! The entry: one packet or timer at a time goes to its connection, or makes one.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::time::Duration;

use flexcp_wire::{ChecksumState, MpJoin, MpTcpRst, TcpFlags};

use crate::astray::Astray;
use crate::auth::SecretStream;
use crate::budget::Budget;
use crate::cause::{Fallback, HalfOpenEvicted, JoinRefused, PlainSyn, Rst};
use crate::connection::{
    Backend, Connection, Context, INITIAL, Phase, Request, Subflow, SubflowIndex, SubflowState,
    relay, request,
};
use crate::counters::DropReason;
use crate::drain::Drain;
use crate::keys::Keys;
use crate::lending::{LOOK, Lender};
use crate::orphan::Orphans;
use crate::record::Registry;
use crate::rst::refuse;
use crate::segment::{Ends, Segment};
use crate::service::{Match, Services};
use crate::table::{ConnectionId, FlowRef, Leg, Table};
use crate::{Config, ConnectionView, Counters, Drops, Frame, Gauges, Instant, Transmit, Verdict};

/// Packets that may wait to be sent before memory for more is asked for.
const OUTBOX: usize = 64;

/// Before the timer looks again at a connection whose deadline stays overdue.
pub(crate) const TIMER_PROGRESS: Duration = Duration::from_millis(1);

/// The furthest that a timer is set ahead.
const FURTHEST_TIMER: Duration = Duration::from_secs(60);

/// A half-open connection of this age makes room for another: honest clients answer sooner.
pub(crate) const STALE_HANDSHAKE: Duration = Duration::from_secs(3);

/// The translator of one worker.
///
/// Feed it with [`handle_packet`](Self::handle_packet) and
/// [`handle_timeout`](Self::handle_timeout). **After each of them carry out the verdict, then drain
/// [`poll_transmit`](Self::poll_transmit) until `None`**: pieces of a split packet borrow the payload
/// of the frame just handled. [`poll_timeout`](Self::poll_timeout) may change after either.
#[derive(Debug)]
pub struct Translator {
    pub(crate) config: Config,
    pub(crate) services: Services,
    pub(crate) table: Table,
    pub(crate) secrets: SecretStream,
    pub(crate) keys: Keys,
    pub(crate) outbox: VecDeque<Transmit>,
    pub(crate) gone: Vec<SubflowIndex>,
    pub(crate) counters: Counters,
    pub(crate) budget: Budget,
    pub(crate) lender: Option<Lender>,
    pub(crate) drain: Drain,
    pub(crate) registry: Option<Box<dyn Registry>>,
    pub(crate) orphans: Option<Orphans>,
    pub(crate) astray: Option<Astray>,
    drops: Drops,
}

/// Borrows what a connection may use, beside the table that holds it.
macro_rules! context {
    ($self:ident, $now:expr) => {
        $crate::connection::Context {
            now: $now,
            config: &$self.config,
            counters: &mut $self.counters,
            budget: &$self.budget,
            astray: $self.astray.is_some(),
            secrets: &mut $self.secrets,
            outbox: &mut $self.outbox,
            gone: &mut $self.gone,
        }
    };
}
pub(crate) use context;

impl Translator {
    /// `seed` must be unpredictable: keys, nonces and sequence numbers are derived from it. The same
    /// seed and the same calls give the same packets.
    #[must_use]
    pub fn new(config: Config, seed: [u8; 32]) -> Self {
        let mut secrets = SecretStream::new(seed);
        let hash_keys = (secrets.next_u64(), secrets.next_u64());
        Self {
            keys: Keys::new(secrets.branch(), config.share),
            services: Services::new(&config),
            budget: Budget::new(config.limits.memory),
            config,
            table: Table::new(hash_keys),
            secrets,
            outbox: VecDeque::with_capacity(OUTBOX),
            gone: Vec::with_capacity(OUTBOX),
            counters: Counters::default(),
            lender: None,
            drain: Drain::default(),
            registry: None,
            orphans: None,
            astray: None,
            drops: Drops::default(),
        }
    }

    /// Translates the packet in `frame`.
    pub fn handle_packet(&mut self, now: Instant, frame: &mut Frame<'_>) -> Verdict {
        self.counters.packets_in += 1;
        let verdict = match Segment::parse(frame) {
            Ok(segment) => self.handle_segment(now, &segment, frame),
            Err(reason @ (DropReason::NotTcp | DropReason::Fragment)) => {
                self.handle_other(now, frame, reason)
            }
            Err(reason) => Verdict::Drop(reason),
        };
        match verdict {
            Verdict::Forward => self.counters.packets_forwarded += 1,
            Verdict::Consume => self.counters.packets_consumed += 1,
            Verdict::Drop(reason) => self.drops.count(reason),
        }
        verdict
    }

    /// Does what is due at `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.tend_orphans(now);
        self.tend_astray(now);
        while let Some(id) = self.table.pop_timer(now) {
            if self.leave_lent(now, id) {
                continue;
            }
            self.recall(now, id);
            self.lose_patience(now, id);
            let Some(connection) = self.table.get_mut(id) else {
                continue;
            };
            let mut ctx = context!(self, now);
            let stays = connection.handle_timeout(&mut ctx);
            // Never at once again: whatever its deadline, this loop ends.
            self.settle_at(now, now + TIMER_PROGRESS, id);
            if stays {
                self.lend_again(now, id);
            } else {
                self.remove(id);
            }
        }
        self.probe_backends(now);
    }

    /// When [`handle_timeout`](Self::handle_timeout) wants to be called; `None`: not before another
    /// packet.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let orphans = self.orphans.as_ref().map(Orphans::due);
        let astray = self.astray.as_ref().map(Astray::due);
        let times = [self.table.next_timer(), self.probes_due(), orphans, astray];
        times.into_iter().flatten().min()
    }

    /// A packet that wants to be sent.
    #[must_use]
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        self.outbox.pop_front()
    }

    /// What has been done so far.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// What has been dropped so far, and why.
    #[must_use]
    pub const fn drops(&self) -> &Drops {
        &self.drops
    }

    /// What is held now.
    #[must_use]
    pub fn gauges(&self) -> Gauges {
        let slots = self.lender.as_ref().map_or(0, Lender::held);
        Gauges {
            offload_slots: u64::from(slots),
            ..self.budget.gauges(self.table.gauges())
        }
    }

    /// Bytes of memory that its connections may take: what `memory_bytes` among the gauges stays below.
    #[must_use]
    pub const fn memory_budget(&self) -> usize {
        self.config.limits.memory
    }

    /// The connections that there are, those that are lent as they were then: call
    /// [`recall_all`](Self::recall_all) before. Costs one pass over the table; not for the packet path.
    pub fn connections(&self, now: Instant) -> impl Iterator<Item = ConnectionView> + '_ {
        self.table
            .iter()
            .map(move |connection| connection.view(now))
    }

    fn handle_segment(
        &mut self,
        now: Instant,
        segment: &Segment,
        frame: &mut Frame<'_>,
    ) -> Verdict {
        let ends = Ends {
            from: segment.source(),
            to: segment.destination(),
        };
        let not_opening = TcpFlags::ACK | TcpFlags::RST | TcpFlags::FIN;
        let is_syn = segment.has(TcpFlags::SYN) && !segment.tcp.flags.intersects(not_opening);
        let flow = self.table.find(ends);
        let changes = flow.is_some_and(|flow| self.translates(flow.id))
            || (is_syn && (flow.is_some() || self.may_open(segment)))
            || (flow.is_none() && self.is_orphaned(ends));
        // What changes a connection's state, or opens one, has to be what its sender sent.
        if changes && frame.offload.checksum == ChecksumState::Complete {
            if !segment.checksum_is_right(frame) {
                return Verdict::Drop(DropReason::Checksum);
            }
            frame.offload.checksum = ChecksumState::Verified;
        }
        let Some(flow) = flow else {
            return if is_syn {
                self.handle_syn(now, segment, frame)
            } else {
                self.handle_orphan(ends, segment)
                    .or_else(|| self.handle_probed(now, segment, frame))
                    .unwrap_or_else(|| self.handle_unknown(segment))
            };
        };
        self.recall(now, flow.id);
        if is_syn && self.is_free(flow, segment) {
            self.table.remove_flow(flow);
            return self.handle_syn(now, segment, frame);
        }
        if is_syn && self.is_fresh_handshake(now, flow, segment) {
            // Anybody can send a SYN; one from the client itself comes again.
            return Verdict::Drop(DropReason::Unexpected);
        }
        if is_syn && self.gives_way(flow, segment) {
            self.abandon(now, flow.id);
            return self.handle_syn(now, segment, frame);
        }
        let verdict = match flow.leg {
            Leg::Subflow(index) => self.handle_client(now, flow.id, index, segment, frame),
            Leg::Server => {
                self.allow_hold(now, flow.id);
                self.handle_server(now, flow.id, segment, frame)
            }
        };
        self.pass_by_connection(now, flow.id);
        self.settle(now, flow.id);
        self.note_course(now, flow.id, verdict, segment.payload.is_empty());
        verdict
    }

    /// Whether a SYN that no connection knows may open one, or join one.
    fn may_open(&self, segment: &Segment) -> bool {
        let service = self.services.find(&self.config, segment.destination());
        let asks = request(segment) == Request::Mptcp || segment.options.join.is_some();
        asks || matches!(service, Some(Match::Reverse { .. }))
    }

    /// Whether the connection's packets are more than relayed.
    fn translates(&mut self, id: ConnectionId) -> bool {
        let phase = self.table.get_mut(id).map(|connection| connection.phase);
        phase.is_some_and(|phase| !matches!(phase, Phase::Plain | Phase::Fallback))
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
        let over = matches!(connection.phase, Phase::Closed(_) | Phase::Reset(_));
        let subflow = connection.subflow(index);
        let same = subflow.isn_remote.0 == segment.tcp.seq;
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
            && connection.isn_client.0 != segment.tcp.seq
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
            Leg::Server => return matches!(connection.phase, Phase::Closed(_) | Phase::Reset(_)),
        }
        let same = connection.isn_client.0 == segment.tcp.seq;
        match connection.phase {
            // Its own SYN has come long since; this one was held up on the way.
            Phase::Reset(_) | Phase::Closed(_) | Phase::SynSent | Phase::SynReceived => !same,
            // A live one is the server's to ask about (RFC 5961 section 4): anybody can send a SYN.
            Phase::Plain | Phase::Fallback => {
                let over = connection.is_finished() || connection.plain_reset;
                !same && (over || !connection.server.answered)
            }
            // All that is left of the client's end is gone, and it starts anew.
            Phase::Established => !same && !connection.subflows.iter().any(Subflow::lives),
        }
    }

    /// Removes a connection that another takes the place of; a server that still has it hears of it.
    fn abandon(&mut self, now: Instant, id: ConnectionId) {
        let Some(connection) = self.table.get_mut(id) else {
            return;
        };
        if connection.phase == Phase::Established {
            let mut ctx = context!(self, now);
            connection.reset_server(&mut ctx, Rst::Replaced);
        }
        self.remove(id);
    }

    /// A packet of a known client.
    fn handle_client(
        &mut self,
        now: Instant,
        id: ConnectionId,
        index: u8,
        segment: &Segment,
        frame: &mut Frame<'_>,
    ) -> Verdict {
        let Some(connection) = self.table.get_mut(id) else {
            return Verdict::Consume;
        };
        let mut ctx = context!(self, now);
        match connection.phase {
            Phase::SynSent | Phase::SynReceived if segment.has(TcpFlags::SYN) => {
                self.repeat_syn(now, id, segment, frame)
            }
            Phase::SynSent => relay(connection.server_ends(), segment, frame),
            Phase::SynReceived if segment.has(TcpFlags::RST) => {
                // The server judges for itself; FlexCP believes the exact number (RFC 5961).
                let is_exact = segment.tcp.seq == connection.isn_client.add(1).0;
                let verdict = relay(connection.server_ends(), segment, frame);
                if is_exact {
                    self.remove(id);
                }
                verdict
            }
            Phase::SynReceived => {
                if connection.take_keys(&mut ctx, segment) {
                    return connection_up(&mut self.table, ctx, id, index, segment, frame);
                }
                if segment.options.mptcp {
                    // Data that overtook the packet with the keys comes again.
                    return Verdict::Drop(DropReason::NotAuthenticated);
                }
                if !connection.answers_handshake(segment) {
                    return Verdict::Drop(DropReason::OutOfWindow);
                }
                connection.phase = Phase::Fallback;
                ctx.counters.decide(Fallback::Handshake);
                connection.relay_up(&mut ctx, segment, frame)
            }
            Phase::Established | Phase::Closed(_) => match connection.subflow(index).state {
                SubflowState::Joining => connection.handle_joining(&mut ctx, index, segment),
                SubflowState::Established | SubflowState::Closing => {
                    connection.handle_up(&mut ctx, index, segment, frame)
                }
                // A RST says nothing new there, and never has an answer.
                SubflowState::Closed if segment.has(TcpFlags::RST) => Verdict::Consume,
                SubflowState::Closed => {
                    if connection.answer_closed(&mut ctx, index, segment) {
                        return Verdict::Consume;
                    }
                    self.refuse(segment, Rst::SubflowClosed);
                    Verdict::Drop(DropReason::NoSubflow)
                }
            },
            Phase::Plain if segment.has(TcpFlags::SYN) && !connection.server.answered => {
                self.repeat_syn(now, id, segment, frame)
            }
            // None can be there, as a join ends `Connection::identity`; it would not be the server's.
            Phase::Fallback if index != INITIAL => Verdict::Drop(DropReason::Unexpected),
            Phase::Plain | Phase::Fallback => connection.relay_up(&mut ctx, segment, frame),
            Phase::Reset(_) => connection.answer_reset_client(&mut ctx, index, segment),
        }
    }

    /// A packet of a known server.
    fn handle_server(
        &mut self,
        now: Instant,
        id: ConnectionId,
        segment: &Segment,
        frame: &mut Frame<'_>,
    ) -> Verdict {
        let Some(connection) = self.table.get_mut(id) else {
            return Verdict::Consume;
        };
        let mut ctx = context!(self, now);
        match connection.phase {
            Phase::SynSent | Phase::SynReceived if segment.has(TcpFlags::RST) => {
                self.handle_refusal(now, id, segment, frame)
            }
            Phase::SynSent | Phase::SynReceived
                if segment.has(TcpFlags::SYN) && segment.has(TcpFlags::ACK) =>
            {
                if connection.offered_end_to_end && segment.options.capable.is_some() {
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
            // The server still knows an earlier connection: a challenge ACK (RFC 5961), whose answer ends that, or its
            // data. On the client's own ports that is the client's: anybody can have sent the SYN, and what is only
            // forwarded FlexCP does not know. On a port of FlexCP's it may be another client's.
            Phase::SynSent if segment.payload.is_empty() || connection.keeps_ends() => {
                relay(connection.subflow(INITIAL).ends(), segment, frame)
            }
            Phase::SynSent | Phase::SynReceived => Verdict::Drop(DropReason::Unexpected),
            Phase::Established | Phase::Closed(_) => {
                connection.handle_down(&mut ctx, segment, frame)
            }
            Phase::Plain if segment.has(TcpFlags::RST) && !connection.server.answered => {
                self.handle_refusal(now, id, segment, frame)
            }
            Phase::Plain if !connection.server.answered => {
                let verdict = connection.relay_down(&mut ctx, segment, frame);
                self.note_answer(now, id, segment);
                verdict
            }
            Phase::Plain | Phase::Fallback => connection.relay_down(&mut ctx, segment, frame),
            Phase::Reset(_) => connection.answer_reset_server(&mut ctx, segment),
        }
    }

    /// A SYN that no connection knows.
    fn handle_syn(&mut self, now: Instant, segment: &Segment, frame: &mut Frame<'_>) -> Verdict {
        if let Some(MpJoin::Syn { token, .. }) = segment.options.join {
            return self.handle_join(now, token, segment);
        }
        match self.services.find(&self.config, segment.destination()) {
            None => self.handle_unknown(segment),
            Some(Match::Transparent {
                service,
                end_to_end,
            }) => {
                let backend = Backend {
                    source: segment.source(),
                    addr: segment.destination(),
                };
                let Err(cause) = self.wants_mptcp(now, segment) else {
                    return self.open(now, service, backend, segment, frame, end_to_end);
                };
                self.counters.decide(cause);
                self.pass_by(Ends {
                    from: backend.source,
                    to: backend.addr,
                });
                if segment.options.mptcp && !end_to_end {
                    return relay(
                        Ends {
                            from: backend.source,
                            to: backend.addr,
                        },
                        segment,
                        frame,
                    );
                }
                Verdict::Forward
            }
            Some(Match::Reverse { .. }) if self.drain.begun => {
                self.refuse(segment, Rst::Draining);
                Verdict::Drop(DropReason::Draining)
            }
            Some(Match::Reverse { service }) => {
                let Some((backend, reused)) = self.room_in_reverse(now, service) else {
                    // Silence would make the client give MPTCP up.
                    self.refuse(segment, Rst::NoRoom);
                    return Verdict::Drop(DropReason::LimitReached);
                };
                let Err(cause) = self.wants_mptcp(now, segment) else {
                    let verdict = self.open(now, service, backend, segment, frame, false);
                    return if reused {
                        self.put_off_syn(now, segment)
                    } else {
                        verdict
                    };
                };
                self.counters.decide(cause);
                if self.table.half_open() >= self.config.limits.half_open {
                    self.evict(now, self.table.oldest_half_open(), HalfOpenEvicted::Plain);
                }
                let verdict = self.open_plain(now, service, backend, segment, frame);
                if reused {
                    self.put_off_syn(now, segment)
                } else {
                    verdict
                }
            }
        }
    }

    /// Whether the SYN asks for MPTCP and there is room for it, or why it passes as plain TCP. Without room it does:
    /// clients that lose such SYNs give up MPTCP altogether.
    fn wants_mptcp(&mut self, now: Instant, segment: &Segment) -> Result<(), PlainSyn> {
        if let Request::Plain(cause) = request(segment) {
            return Err(cause);
        }
        if self.drain.begun {
            return Err(PlainSyn::Draining);
        }
        let limits = self.config.limits;
        let crowded = self.table.half_open() >= limits.half_open || self.budget.is_short();
        if crowded && self.has_stale_handshake(now) {
            self.evict(now, self.table.oldest_half_open(), HalfOpenEvicted::Stale);
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
        service: u16,
        backend: Backend,
        segment: &Segment,
        frame: &mut Frame<'_>,
        end_to_end: bool,
    ) -> Verdict {
        let local = self.fresh_key();
        let initial = Subflow::new(now, segment, flexcp_wire::Ssn(0));
        let connection = Connection::new(now, service, initial, backend, local);
        let id = self.table.insert(connection);
        self.counters.connections_opened += 1;
        self.counters.mp_capable_syn_rx += 1;
        self.note_asked(now, id);
        let Some(connection) = self.table.get_mut(id) else {
            return Verdict::Consume;
        };
        let mut ctx = context!(self, now);
        let verdict = connection.forward_syn(&mut ctx, segment, frame, end_to_end);
        self.settle(now, id);
        verdict
    }

    /// The same for a client without MPTCP, in reverse mode.
    fn open_plain(
        &mut self,
        now: Instant,
        service: u16,
        backend: Backend,
        segment: &Segment,
        frame: &mut Frame<'_>,
    ) -> Verdict {
        let local = self.fresh_key();
        let initial = Subflow::new(now, segment, flexcp_wire::Ssn(0));
        let mut connection = Connection::new(now, service, initial, backend, local);
        connection.phase = Phase::Plain;
        connection.remember_syn(now, segment);
        let id = self.table.insert(connection);
        self.counters.connections_opened += 1;
        self.note_asked(now, id);
        let Some(connection) = self.table.get_mut(id) else {
            return Verdict::Consume;
        };
        let mut ctx = context!(self, now);
        let verdict = connection.relay_up(&mut ctx, segment, frame);
        self.settle(now, id);
        verdict
    }

    /// The client sends its SYN again: the server has not answered, or its answer got lost. Without
    /// `MP_CAPABLE` the client has given MPTCP up.
    fn repeat_syn(
        &mut self,
        now: Instant,
        id: ConnectionId,
        segment: &Segment,
        frame: &mut Frame<'_>,
    ) -> Verdict {
        let Some(connection) = self.table.get_mut(id) else {
            return Verdict::Consume;
        };
        let phase = connection.phase;
        if self.leave_silent(now, id) {
            return Verdict::Consume;
        }
        let Some(connection) = self.table.get_mut(id) else {
            return Verdict::Consume;
        };
        let mut ctx = context!(self, now);
        if phase == Phase::Plain {
            return connection.relay_up(&mut ctx, segment, frame);
        }
        if request(segment) == Request::Mptcp {
            let end_to_end = connection.offered_end_to_end;
            return connection.forward_syn(&mut ctx, segment, frame, end_to_end);
        }
        ctx.counters.decide(PlainSyn::GivenUp);
        connection.phase = Phase::Plain;
        connection.relay_up(&mut ctx, segment, frame)
    }

    /// A join: by its token to its connection.
    fn handle_join(&mut self, now: Instant, token: u32, segment: &Segment) -> Verdict {
        let Some(id) = self.table.find_token(token) else {
            self.counters.mp_join_no_token += 1;
            if let Some(Match::Transparent { .. }) =
                self.services.find(&self.config, segment.destination())
            {
                // It may belong to a connection that the server keeps itself.
                return Verdict::Forward;
            }
            self.refuse(segment, Rst::UnknownToken);
            return Verdict::Drop(DropReason::NoConnection);
        };
        self.recall(now, id);
        let Some(connection) = self.table.get_mut(id) else {
            return Verdict::Consume;
        };
        let mut ctx = context!(self, now);
        connection.make_room_for_join(&mut ctx, segment);
        self.forget_gone(id);
        let Some(connection) = self.table.get_mut(id) else {
            return Verdict::Consume;
        };
        let mut ctx = context!(self, now);
        match connection.handle_join_syn(&mut ctx, segment) {
            Ok(index) => {
                let ends = connection.subflow(index).flow();
                self.table.insert_flow(
                    ends,
                    FlowRef {
                        id,
                        leg: Leg::Subflow(index),
                    },
                );
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

    /// A packet that belongs to nothing known. On the path it goes on; where FlexCP is the end, or was
    /// before it lost its state, it is told that there is nobody here.
    fn handle_unknown(&mut self, segment: &Segment) -> Verdict {
        let to = self.services.find(&self.config, segment.destination());
        let from = self.services.find(&self.config, segment.source());
        let on_path = |found| matches!(found, Some(Match::Transparent { .. }));
        // MPTCP that FlexCP alone could have spoken: its numbers mean nothing to the server.
        let lost = segment.options.mptcp
            && matches!(
                to,
                Some(Match::Transparent {
                    end_to_end: false,
                    ..
                })
            );
        if !lost && (on_path(to) || on_path(from)) {
            if !segment
                .tcp
                .flags
                .intersects(TcpFlags::SYN | TcpFlags::FIN | TcpFlags::RST)
            {
                self.pass_by(Ends {
                    from: segment.source(),
                    to: segment.destination(),
                });
            }
            return Verdict::Forward;
        }
        self.refuse(segment, Rst::NoConnection);
        Verdict::Drop(DropReason::NoConnection)
    }

    /// RST in answer to a segment (RFC 9293 section 3.5.2), not to another RST.
    pub(crate) fn refuse(&mut self, segment: &Segment, cause: Rst) {
        let reason = cause.reason();
        refuse(&mut self.counters, &mut self.outbox, segment, cause, reason);
    }

    /// After a connection has handled something: flows that it gave up leave the table, and its next
    /// deadline enters the queue.
    pub(crate) fn settle(&mut self, now: Instant, id: ConnectionId) {
        self.settle_at(now, now, id);
        if self.budget.is_short() {
            self.collect(now, id);
            self.reclaim(now);
        }
    }

    /// The same with `overdue` in place of a deadline that is not ahead. One that is stays as it is: nobody can tell from
    /// its time whether the connection has been lent.
    pub(crate) fn settle_at(&mut self, now: Instant, overdue: Instant, id: ConnectionId) {
        self.forget_gone(id);
        let Some(connection) = self.table.get_mut(id) else {
            return;
        };
        let mut deadline = connection.deadline(&self.config);
        if connection.lending.waits_with_slot() {
            deadline = deadline.min(now + LOOK);
        }
        // A far deadline is looked at again before: most are put off, and those must not fill the queue.
        let deadline = deadline.min(now + FURTHEST_TIMER);
        let deadline = if deadline > now { deadline } else { overdue };
        self.budget.charge(connection);
        self.table.update_half_open(id);
        self.table.arm(id, deadline);
    }

    fn forget_gone(&mut self, id: ConnectionId) {
        while let Some(index) = self.gone.pop() {
            let leg = Leg::Subflow(index);
            self.table.remove_flow(FlowRef { id, leg });
        }
        self.register(id);
    }

    pub(crate) fn remove(&mut self, id: ConnectionId) {
        self.release(id);
        self.unregister(id);
        if self.table.get_mut(id).is_some() {
            self.counters.connections_closed += 1;
            self.discharge(id);
            self.table.remove(id);
        }
    }
}

fn connection_up(
    table: &mut Table,
    mut ctx: Context<'_>,
    id: ConnectionId,
    index: u8,
    segment: &Segment,
    frame: &mut Frame<'_>,
) -> Verdict {
    let Some(connection) = table.get_mut(id) else {
        return Verdict::Consume;
    };
    connection.handle_up(&mut ctx, index, segment, frame)
}

#[cfg(test)]
mod tests;

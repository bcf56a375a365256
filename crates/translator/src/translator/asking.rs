//! Connections whose MPTCP leg FlexCP opens: those of an aggregation box, towards servers or by aggregation servers.

use core::net::SocketAddr;

use flexcp_preamble::Refusal;
use flexcp_wire::{Ends, TcpFlags};

use super::hand::Hand;
use super::{Cursor, Translator, context, lost};
use crate::cause::{PlainSyn, Rst};
use crate::connection::{Connection, MIN_MSS, News, Phase, Request, relay};
use crate::counters::DropReason;
use crate::endpoint::Backend;
use crate::handle::INITIAL;
use crate::health::MarkReason;
use crate::segment::Segment;
use crate::table::{ConnectionId, FlowRef, Leg};
use crate::{Frame, Instant, ServiceId, Verdict};

impl Translator {
    /// The SYN of a client of a box: it goes to its server over the first uplink, and asks for MPTCP. What can't be carried so
    /// passes as it is, by the host's own routes.
    pub(super) fn handle_syn_at_box(
        &mut self,
        now: Instant,
        (service, opens): (ServiceId, bool),
        segment: &Segment,
        frame: &mut Frame<'_>,
    ) -> Verdict {
        let free = match self.wants_uplinks(now, (service, opens), segment) {
            // It is for the box itself.
            Ok(()) if self.services.is_own(segment.destination().ip()) => None,
            Ok(()) => {
                let free = self.first_peer(service, segment);
                if free.is_none() {
                    self.counters.decide(PlainSyn::Overload);
                }
                free
            }
            Err(cause) => {
                self.counters.decide(cause);
                None
            }
        };
        let Some((place, backend)) = free else {
            self.pass_by(Ends {
                from: segment.source(),
                to: segment.destination(),
            });
            return Verdict::Forward;
        };
        let key = self.fresh_key();
        let ends = ends_to(backend);
        let mut connection = Connection::asking(now, (service, key), ends, segment);
        let approach = place.and_then(|at| Some((at, self.services.approach(service, at)?)));
        if approach.is_some() {
            connection.set_peer(now, ends, approach);
        }
        let id = self.table.insert(connection);
        self.counters.connections_opened += 1;
        let Some(connection) = self.table.get_mut(id) else {
            return lost();
        };
        connection.note_first_uplink(self.services.uplinks(service));
        let mut ctx = context!(self, now);
        let verdict = connection.ask_peer(&mut ctx, segment, frame);
        self.note_asked(now, id);
        self.settle(now, id);
        verdict
    }

    /// The aggregation server to ask next, but for those at the places in `tried`, and an end of FlexCP's towards it.
    fn next_server(&mut self, service: ServiceId, tried: u16) -> Option<(usize, Backend)> {
        let table = &self.table;
        let is_free = |backend: &Backend| table.find(backend.flow()).is_none();
        let secrets = &mut self.keys.numbers;
        self.services.next_server(service, tried, secrets, is_free)
    }

    /// Has a connection of a box go on by the next aggregation server, or towards the server itself. `false`: that was tried, or there
    /// is no port left.
    pub(super) fn skip_server(&mut self, now: Instant, id: ConnectionId) -> bool {
        let Some(connection) = self.table.get_mut(id) else {
            return false;
        };
        if !connection.has_errand() {
            return false;
        }
        let (service, before) = (connection.service, connection.asked_server());
        let (tried, server) = (connection.tried_servers(), connection.tcp.source.addr());
        let by = self.next_server(service, tried);
        let backend = match by {
            Some((_, backend)) => Some(backend),
            None => self.source_towards(service, server),
        };
        let Some(backend) = backend else {
            return false;
        };
        let leg = Leg::Subflow(INITIAL);
        self.table.remove_flow(FlowRef { id, leg });
        self.services.note_closed(service, before);
        match by {
            Some(_) => self.counters.server_skipped += 1,
            None => self.counters.server_bypassed += 1,
        }
        let Some(connection) = self.table.get_mut(id) else {
            return false;
        };
        let mut ctx = context!(self, now);
        let approach =
            by.and_then(|(place, _)| Some((place, self.services.approach(service, place)?)));
        connection.turn_to_peer(&mut ctx, ends_to(backend), approach);
        connection.note_first_uplink(ctx.services.uplinks(service));
        connection.ask_peer_anew(&mut ctx);
        let flow = connection.subflow(INITIAL).flow();
        self.table.insert_flow(flow, FlowRef { id, leg });
        self.note_asked(now, id);
        true
    }

    /// An aggregation server has said that it has connected on: its client is answered, and what stands behind `taken` bytes of the
    /// packet is the stream's.
    fn grant(
        &mut self,
        now: Instant,
        id: ConnectionId,
        taken: usize,
        (segment, frame): (&Segment, &mut Frame<'_>),
    ) -> Verdict {
        let Some(connection) = self.table.get(id) else {
            return lost();
        };
        self.note_granted((connection.service, connection.asked_server()));
        let Some(Hand {
            connection,
            mut ctx,
            ..
        }) = self.hand(now, id)
        else {
            return lost();
        };
        connection.be_granted(&mut ctx);
        let rest = segment.without_front(taken);
        if rest.payload.is_empty() {
            return Verdict::Consume;
        }
        connection.forward_behind_answer(&mut ctx, &rest, frame)
    }

    /// An aggregation server has connected on.
    fn note_granted(&mut self, of: (ServiceId, SocketAddr)) {
        self.services.note_errand(of, true);
        self.counters.server_granted += 1;
    }

    /// A packet of an aggregation server's has come to this.
    fn take_news(
        &mut self,
        now: Instant,
        id: ConnectionId,
        news: News,
        (segment, frame): (&Segment, &mut Frame<'_>),
    ) -> Verdict {
        let Some(connection) = self.table.get_mut(id) else {
            return lost();
        };
        let of = (connection.service, connection.asked_server());
        match news {
            News::None(verdict) => return verdict,
            News::Promised => {
                self.note_granted(of);
                self.counters.server_early += 1;
                if let Some(mut hand) = self.hand(now, id) {
                    hand.connection.be_promised(&mut hand.ctx);
                }
                return Verdict::Consume;
            }
            News::Granted(taken) => return self.grant(now, id, taken, (segment, frame)),
            News::Refused(why) => {
                let cause = match why {
                    Refusal::Reset => Rst::Refused,
                    _ => Rst::Unreachable,
                };
                let mut ctx = context!(self, now);
                ctx.counters.server_refused += 1;
                connection.refuse_opener(&mut ctx, cause);
                self.remove(id);
                return Verdict::Consume;
            }
            News::Declined { altogether } => {
                self.counters.server_declined += 1;
                self.services.note_errand(of, false);
                if altogether {
                    let marked = self.services.note_refusal(now, of, MarkReason::Refused);
                    self.note_marked(of, MarkReason::Refused, marked);
                }
            }
        }
        if !self.skip_server(now, id)
            && let Some(connection) = self.table.get_mut(id)
        {
            connection.refuse_opener(&mut context!(self, now), Rst::NoRoom);
            self.remove(id);
        }
        Verdict::Consume
    }

    /// A packet of a server's whose SYN/ACK has promised an answer that is yet to come. `None`: it passes as any other.
    pub(super) fn handle_promised(
        &mut self,
        now: Instant,
        flow: FlowRef,
        (segment, frame): (&Segment, &Frame<'_>),
    ) -> Option<Verdict> {
        let of_peer = flow.leg == Leg::Subflow(INITIAL);
        let connection = self.table.get_mut(flow.id).filter(|_| of_peer)?;
        if !connection.awaits_promised() {
            return None;
        }
        let of = (connection.service, connection.asked_server());
        let altogether = match connection.hear_promised(&context!(self, now), segment, frame) {
            Ok(()) => return None,
            Err(News::None(verdict)) => return Some(verdict),
            Err(news) => matches!(news, News::Declined { altogether: true }),
        };
        let lives = !segment.has(TcpFlags::RST);
        connection.break_promise(&mut context!(self, now), lives);
        self.services.note_errand(of, false);
        // One that has just gone may yet have meant it.
        if lives && (!segment.payload.is_empty() || !segment.options.mptcp) {
            self.services.distrust(of);
        }
        if altogether {
            let marked = self.services.note_refusal(now, of, MarkReason::Refused);
            self.note_marked(of, MarkReason::Refused, marked);
        }
        self.settle(now, flow.id);
        Some(Verdict::Consume)
    }

    /// Whether a client of a box gets MPTCP, or why its SYN passes as it is.
    fn wants_uplinks(
        &mut self,
        now: Instant,
        (service, opens): (ServiceId, bool),
        segment: &Segment,
    ) -> Result<(), PlainSyn> {
        let request = if self.services.excepts(service, segment.destination()) {
            Err(PlainSyn::Excepted)
        } else if segment.options.mptcp {
            Err(PlainSyn::Mptcp)
        } else if !segment.payload.is_empty() {
            Err(PlainSyn::Data)
        } else if segment.options.mss.is_some_and(|mss| mss < MIN_MSS) {
            Err(PlainSyn::SmallMss)
        } else {
            Ok(())
        };
        request?;
        self.wants(now, opens, Request::Mptcp)
    }

    /// Whom a connection goes by at first: an aggregation server, by its place, or the server itself; and an end on the first uplink of
    /// its family that has a port to spare.
    fn first_peer(
        &mut self,
        service: ServiceId,
        segment: &Segment,
    ) -> Option<(Option<usize>, Backend)> {
        if let Some((place, backend)) = self.next_server(service, 0) {
            return Some((Some(place), backend));
        }
        self.counters.server_bypassed += u64::from(self.services.backends(service) > 0);
        let backend = self.source_towards(service, segment.destination())?;
        Some((None, backend))
    }

    /// A packet of such a connection while it opens.
    pub(super) fn handle_asking(
        &mut self,
        now: Instant,
        flow: FlowRef,
        segment: &Segment,
        frame: &mut Frame<'_>,
    ) -> Verdict {
        match flow.leg {
            Leg::Server => self.handle_asking_opener(now, flow.id, segment, frame),
            Leg::Subflow(INITIAL) => self.handle_asked_peer(now, flow.id, segment, frame),
            Leg::Subflow(_) | Leg::Called => lost(),
        }
    }

    /// Of the client.
    fn handle_asking_opener(
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
        if segment.is_syn() && connection.has_errand() && connection.phase != Phase::SynSent {
            return connection.repeat_to_opener(&mut ctx, segment);
        }
        if segment.is_syn() {
            if self.leave_silent(now, id) {
                return Verdict::Consume;
            }
            return match self.hand(now, id) {
                Some(mut hand) => hand.connection.ask_peer(&mut hand.ctx, segment, frame),
                None => lost(),
            };
        }
        if connection.has_errand() {
            return self.handle_impatient_opener(now, id, segment);
        }
        if segment.has(TcpFlags::RST) {
            // The server judges for itself; FlexCP believes the exact number (RFC 5961).
            let is_exact = segment.tcp.seq == connection.tcp.isn_remote.add(1).0;
            let verdict = relay(connection.subflow(INITIAL).ends(), segment, frame);
            if is_exact {
                self.remove(id);
            }
            return verdict;
        }
        match connection.phase {
            Phase::SynReceived => connection.take_opener_ack(&mut ctx, segment, frame),
            _ => Verdict::Drop(DropReason::Unexpected),
        }
    }

    /// What comes of a client that has not been answered: nothing, unless it gives up.
    fn handle_impatient_opener(
        &mut self,
        now: Instant,
        id: ConnectionId,
        segment: &Segment,
    ) -> Verdict {
        let Some(connection) = self.table.get_mut(id) else {
            return lost();
        };
        let is_exact = segment.tcp.seq == connection.tcp.isn_remote.add(1).0;
        if !segment.has(TcpFlags::RST) || !is_exact {
            return Verdict::Drop(DropReason::Unexpected);
        }
        connection.leave_peer(&mut context!(self, now));
        self.remove(id);
        Verdict::Consume
    }

    /// Of its server.
    fn handle_asked_peer(
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
        if connection.has_errand() && connection.is_fast_closed(segment) {
            // Whatever its number: it may lie behind a part of the answer that got lost.
            ctx.counters.mp_fastclose_rx += 1;
            return self.handle_server_gone(now, id);
        }
        if segment.has(TcpFlags::RST) {
            let acks = segment.has(TcpFlags::ACK)
                && segment.tcp.ack == connection.subflow(INITIAL).agreed.isn_local.add(1).0;
            let next = segment.tcp.seq == connection.subflow(INITIAL).recv.ack.0;
            let is_exact = match connection.phase {
                Phase::SynSent => acks || connection.is_behind_syn(segment),
                _ => next,
            };
            if !is_exact {
                return Verdict::Drop(DropReason::BlindReset);
            }
            if connection.has_errand() {
                return self.handle_server_gone(now, id);
            }
            let verdict = relay(connection.server_ends(), segment, frame);
            self.remove(id);
            return verdict;
        }
        let answers = segment.has(TcpFlags::SYN) && segment.has(TcpFlags::ACK);
        if answers && !connection.has_errand() {
            return connection.take_answer(&mut ctx, segment, frame);
        }
        if !answers && connection.phase == Phase::SynSent {
            connection.end_earlier(&mut ctx, INITIAL, segment);
            return Verdict::Drop(DropReason::Unexpected);
        }
        if !connection.has_errand() {
            return Verdict::Drop(DropReason::Unexpected);
        }
        let news = if answers {
            connection.take_server_answer(&mut ctx, segment, frame)
        } else {
            connection.hear_server(&mut ctx, segment, frame)
        };
        if answers {
            self.note_server_answer(now, id);
        }
        self.take_news(now, id, news, (segment, frame))
    }

    /// An aggregation server refuses the connection, or leaves it before it has connected on.
    fn handle_server_gone(&mut self, now: Instant, id: ConnectionId) -> Verdict {
        if self.leave_refusing(now, id, MarkReason::Refused) {
            return Verdict::Consume;
        }
        if let Some(connection) = self.table.get_mut(id) {
            connection.lose_peer();
        }
        if self.skip_server(now, id) {
            return Verdict::Consume;
        }
        if let Some(connection) = self.table.get_mut(id) {
            connection.refuse_opener(&mut context!(self, now), Rst::NoRoom);
        }
        self.remove(id);
        Verdict::Consume
    }

    /// Uplinks have come or gone by a new configuration ([`configure`](Self::configure)), or one of their addresses has: has
    /// connections of boxes leave subflows on addresses that are gone, tell their servers (`REMOVE_ADDR`), and join over what has
    /// come. One whose last subflow is on such an address keeps it until there is another.
    ///
    /// Looks at 64 places of the table for each of `count`, and has so many connections follow at most. Where it goes on, or
    /// `None` at the end. Drain [`poll_transmit`](Self::poll_transmit) afterwards.
    pub fn follow_uplinks(&mut self, now: Instant, from: Cursor, count: usize) -> Option<Cursor> {
        self.walk(from, count, |this, id| this.follow_one(now, id))
    }

    /// `false`: it is none of a box.
    fn follow_one(&mut self, now: Instant, id: ConnectionId) -> bool {
        let Some(connection) = self.table.get_mut(id) else {
            return false;
        };
        if !connection.asks() {
            return false;
        }
        let uplinks = self.services.uplinks(connection.service);
        if connection.is_unheard_on_lost(uplinks) {
            // Its client's next SYN goes by another uplink.
            self.remove(id);
            return true;
        }
        self.evict(now, id);
        if let Some(connection) = self.table.get_mut(id) {
            connection.leave_uplinks(&mut context!(self, now));
            connection.look_at_uplinks(now);
        }
        self.join_uplinks(now, id);
        self.settle(now, id);
        true
    }

    /// Leaves uplinks that are gone, and asks for the joins that are due.
    pub(super) fn join_uplinks(&mut self, now: Instant, id: ConnectionId) {
        if let Some(connection) = self.table.get_mut(id) {
            connection.leave_uplinks(&mut context!(self, now));
        }
        while let Some((place, backend)) = self.next_join(now, id) {
            if let Some(connection) = self.table.get(id) {
                // The flow of whoever had the slot before.
                self.gone.extend(connection.free_slot());
            }
            self.forget_gone(id);
            let Some(connection) = self.table.get_mut(id) else {
                return;
            };
            let mut ctx = context!(self, now);
            let joined = backend.and_then(|b| connection.ask_join(&mut ctx, place, b));
            let Some(index) = joined else {
                connection.rest_uplink(now, place);
                continue;
            };
            let ends = connection.subflow(index).flow();
            let leg = Leg::Subflow(index);
            self.table.insert_flow(ends, FlowRef { id, leg });
        }
    }

    /// The next uplink to join over, and an end on it if there is a port to spare.
    fn next_join(&mut self, now: Instant, id: ConnectionId) -> Option<(usize, Option<Backend>)> {
        let connection = self.table.get_mut(id)?;
        let uplinks = self.services.uplinks(connection.service);
        let place = connection.next_uplink(now, uplinks)?;
        let (uplink, server) = connection.join_ends(uplinks.get(place)?)?;
        let service = connection.service;
        let is_room = connection.has_room_for_join(&self.config.limits);
        let table = &self.table;
        let is_free = |backend: &Backend| table.find(backend.flow()).is_none();
        let secrets = &mut self.keys.numbers;
        let backend = self
            .services
            .uplink_towards((service, uplink), server, secrets, is_free)
            .filter(|_| is_room);
        Some((place, backend))
    }
}

/// Of packets to a peer.
const fn ends_to(backend: Backend) -> Ends {
    Ends {
        from: backend.source,
        to: backend.addr,
    }
}

//! Connections whose MPTCP leg FlexCP opens: those of an aggregation box.

use flexcp_wire::{Ends, TcpFlags};

use super::hand::Hand;
use super::{Cursor, Translator, context, lost};
use crate::cause::PlainSyn;
use crate::connection::{Connection, MIN_MSS, Phase, Request, relay};
use crate::counters::DropReason;
use crate::endpoint::Backend;
use crate::handle::INITIAL;
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
        let free = match self.wants_uplinks(now, opens, segment) {
            // It is for the box itself.
            Ok(()) if self.services.is_own(segment.destination().ip()) => None,
            Ok(()) => {
                let free = self.first_uplink(service, segment);
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
        let Some(backend) = free else {
            self.pass_by(Ends {
                from: segment.source(),
                to: segment.destination(),
            });
            return Verdict::Forward;
        };
        let key = self.fresh_key();
        let ends = Ends {
            from: backend.source,
            to: backend.addr,
        };
        let connection = Connection::asking(now, (service, key), ends, segment);
        let id = self.table.insert(connection);
        self.counters.connections_opened += 1;
        let Some(connection) = self.table.get_mut(id) else {
            return lost();
        };
        let mut ctx = context!(self, now);
        let verdict = connection.ask_peer(&mut ctx, segment, frame);
        self.settle(now, id);
        verdict
    }

    /// Whether a client of a box gets MPTCP, or why its SYN passes as it is.
    fn wants_uplinks(
        &mut self,
        now: Instant,
        opens: bool,
        segment: &Segment,
    ) -> Result<(), PlainSyn> {
        let request = if segment.options.mptcp {
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

    /// An end on the first uplink of the server's family that has a port to spare.
    fn first_uplink(&mut self, service: ServiceId, segment: &Segment) -> Option<Backend> {
        self.source_towards(service, segment.destination())
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
        if segment.is_syn() {
            return connection.ask_peer(&mut ctx, segment, frame);
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
        if segment.has(TcpFlags::RST) {
            let acks = segment.has(TcpFlags::ACK)
                && segment.tcp.ack == connection.subflow(INITIAL).agreed.isn_local.add(1).0;
            let next = segment.tcp.seq == connection.subflow(INITIAL).recv.ack.0;
            let is_exact = match connection.phase {
                Phase::SynSent => acks,
                _ => next,
            };
            if !is_exact {
                return Verdict::Drop(DropReason::BlindReset);
            }
            let verdict = relay(connection.server_ends(), segment, frame);
            self.remove(id);
            return verdict;
        }
        if segment.has(TcpFlags::SYN) && segment.has(TcpFlags::ACK) {
            return connection.take_answer(&mut ctx, segment, frame);
        }
        Verdict::Drop(DropReason::Unexpected)
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
            let joined = backend.and_then(|b| connection.ask_join(&mut ctx, place, b.source));
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
        let server = connection.subflow(INITIAL).remote.addr();
        let uplink = uplinks.get(place)?.addr(server.is_ipv4())?;
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

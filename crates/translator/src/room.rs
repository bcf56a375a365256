//! Room for connections, and back ends to connect to: taken in turn, skipped when they refuse; handshakes
//! that nobody completes make way.

use core::net::SocketAddr;

use flexcp_wire::TcpFlags;

use crate::cause::{HalfOpenEvicted, Rst};
use crate::connection::{Backend, Connection, INITIAL, Phase, relay};
use crate::counters::DropReason;
use crate::segment::{Ends, Segment};
use crate::table::{ConnectionId, FlowRef, Leg};
use crate::translator::{STALE_HANDSHAKE, Translator, context};
use crate::{Frame, Instant, Verdict};

impl Translator {
    /// The server refuses: another back end is tried if there is one, else the client hears of it.
    pub(crate) fn handle_refusal(
        &mut self,
        now: Instant,
        id: ConnectionId,
        segment: &Segment,
        frame: &mut Frame<'_>,
    ) -> Verdict {
        let Some(connection) = self.table.get_mut(id) else {
            return Verdict::Consume;
        };
        if segment.tcp.ack != connection.isn_client.add(1).0 || !segment.has(TcpFlags::ACK) {
            return Verdict::Drop(DropReason::BlindReset);
        }
        if self.try_next_backend(now, id) {
            return Verdict::Consume;
        }
        let Some(connection) = self.table.get_mut(id) else {
            return Verdict::Consume;
        };
        let ends = connection.subflow(INITIAL).ends();
        self.remove(id);
        relay(ends, segment, frame)
    }

    /// Sends the SYN of a connection that still waits for its answer to a back end that it has not tried.
    /// `false`: there is none, or it does not wait.
    pub(crate) fn try_next_backend(&mut self, now: Instant, id: ConnectionId) -> bool {
        let Some(connection) = self.table.get_mut(id) else {
            return false;
        };
        let waits = matches!(connection.phase, Phase::SynSent | Phase::Plain);
        let more =
            self.services.backends(connection.service) > usize::from(connection.server.tried);
        waits && more && self.skip_backend(now, id)
    }

    /// Sends the SYN to the next back end. `false`: there is none.
    pub(crate) fn skip_backend(&mut self, now: Instant, id: ConnectionId) -> bool {
        let Some(connection) = self.table.get_mut(id) else {
            return false;
        };
        let (service, old) = (connection.service, connection.server_flow());
        let Some(backend) = self.next_backend(service, Some(old.from)) else {
            return false;
        };
        let leg = Leg::Server;
        self.table.remove_flow(FlowRef { id, leg });
        let Some(connection) = self.table.get_mut(id) else {
            return false;
        };
        let mut ctx = context!(self, now);
        connection.try_backend(&mut ctx, backend);
        let flow = connection.server_flow();
        self.table.insert_flow(flow, FlowRef { id, leg });
        true
    }

    /// A back end in turn, and a source address and port that are free towards it.
    pub(crate) fn next_backend(
        &mut self,
        service: u16,
        not: Option<SocketAddr>,
    ) -> Option<Backend> {
        let table = &self.table;
        self.services
            .next_backend(&self.config, service, not, &mut self.secrets, |backend| {
                table
                    .find(Ends {
                        from: backend.addr,
                        to: backend.source,
                    })
                    .is_none()
            })
    }

    /// Room for a connection in reverse mode: a back end, and a port towards it. When the table or the ports
    /// are used up, the oldest handshake that is not complete makes room: under a flood of SYNs nearly all of
    /// them never will be.
    ///
    /// `true` beside it: the port is the one that was freed just now.
    pub(crate) fn room_in_reverse(
        &mut self,
        now: Instant,
        service: u16,
    ) -> Option<(Backend, bool)> {
        let full = self.table.len() >= self.config.limits.connections;
        if full || self.budget.is_used_up() {
            let cause = if full {
                HalfOpenEvicted::Connections
            } else {
                HalfOpenEvicted::Memory
            };
            self.evict(now, self.table.oldest_half_open(), cause)?;
        }
        if let Some(free) = self.next_backend(service, None) {
            return Some((free, false));
        }
        let of_service = |connection: &Connection| connection.service == service;
        let oldest = self.table.oldest_half_open_where(of_service);
        Some((self.evict(now, oldest, HalfOpenEvicted::Ports)?, true))
    }

    /// Sends the SYN of a connection just opened behind the RST that frees its port, which waits to be sent.
    pub(crate) fn put_off_syn(&mut self, now: Instant, segment: &Segment) -> Verdict {
        let ends = Ends {
            from: segment.source(),
            to: segment.destination(),
        };
        let flow = self.table.find(ends);
        if let Some(connection) = flow.and_then(|flow| self.table.get_mut(flow.id)) {
            let mut ctx = context!(self, now);
            connection.send_syn(&mut ctx, segment.tcp.window);
        }
        Verdict::Consume
    }

    /// Lets a handshake that is not complete go, and the server know; what it used towards the server is
    /// free again.
    pub(crate) fn evict(
        &mut self,
        now: Instant,
        id: Option<ConnectionId>,
        cause: HalfOpenEvicted,
    ) -> Option<Backend> {
        let id = id?;
        let connection = self.table.get_mut(id)?;
        let backend = Backend {
            source: connection.server.source.addr(),
            addr: connection.server.backend.addr(),
        };
        let mut ctx = context!(self, now);
        connection.reset_half_open(&mut ctx, Rst::Evicted);
        self.counters.decide(cause);
        self.remove(id);
        Some(backend)
    }

    pub(crate) fn has_stale_handshake(&mut self, now: Instant) -> bool {
        let oldest = self.table.oldest_half_open();
        let opened =
            oldest.and_then(|id| self.table.get_mut(id).map(|connection| connection.opened));
        opened.is_some_and(|opened| now.since(opened) >= STALE_HANDSHAKE)
    }
}

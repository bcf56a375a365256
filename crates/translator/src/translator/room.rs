//! Room for connections, and back ends to connect to: taken in turn, left when they refuse or keep silent, passed by
//! while they are marked for that; handshakes that nobody completes make way.

use core::net::SocketAddr;

use flexcp_preamble::Refusal;
use flexcp_wire::{Ends, TcpFlags};

use super::{STALE_HANDSHAKE, Translator, context, lost};
use crate::cause::{HalfOpenEvicted, Rst};
use crate::connection::{Asked, Connection};
use crate::counters::DropReason;
use crate::endpoint::Backend;
use crate::handle::INITIAL;
use crate::health::{MarkReason, Sent};
use crate::segment::Segment;
use crate::service::Choice;
use crate::table::{ConnectionId, FlowRef, Leg};
use crate::{Frame, Instant, ServiceId, Verdict};

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
            return lost();
        };
        if segment.tcp.ack != connection.tcp.isn_local.add(1).0 || !segment.has(TcpFlags::ACK) {
            return Verdict::Drop(DropReason::BlindReset);
        }
        if self.leave_refusing(now, id, MarkReason::Refused) {
            return Verdict::Consume;
        }
        if self.host_refused(now, id, Refusal::Reset) {
            return Verdict::Consume;
        }
        let Some(connection) = self.table.get_mut(id) else {
            return lost();
        };
        let ends = connection.subflow(INITIAL).ends();
        let verdict = if connection.may_relay(ends, segment, frame) {
            connection.relay_refusal(segment, frame)
        } else {
            Verdict::Drop(DropReason::Unproved)
        };
        self.remove(id);
        verdict
    }

    /// A SYN of the connection goes to its back end: from now on that owes an answer. Does nothing on the path.
    pub(crate) fn note_asked(&mut self, now: Instant, id: ConnectionId) {
        let Some(connection) = self.table.get_mut(id) else {
            return;
        };
        let (service, addr) = (connection.service, connection.asked_server());
        self.services.note_opened(service, addr);
        if let Some(patience) = self.services.patience(service, addr) {
            // A box has the server itself to turn to.
            let others = self.services.backends(service) > 1 || connection.asks();
            connection.tcp.syn.asked = Some(Asked {
                at: now,
                due: others.then(|| now + patience),
                again: false,
            });
        }
    }

    /// The back end has answered the SYN, if that is what the segment says.
    pub(crate) fn note_answer(&mut self, now: Instant, id: ConnectionId, segment: &Segment) {
        let Some(connection) = self.table.get_mut(id) else {
            return;
        };
        let acked = segment.tcp.ack.wrapping_sub(connection.tcp.isn_local.0);
        let answers = segment.has(TcpFlags::SYN)
            && segment.has(TcpFlags::ACK)
            && (1..=u32::from(u16::MAX)).contains(&acked);
        if !answers || !connection.tcp.syn.answered {
            return;
        }
        if let Some(asked) = connection.tcp.syn.asked.take() {
            let of = (connection.service, connection.tcp.backend.addr());
            let rtt = (!asked.again).then(|| now.since(asked.at));
            let back = self.services.note_answer(now, of, rtt);
            self.note_back(of, back);
        }
    }

    /// The aggregation server of a box's connection has answered the SYN.
    pub(crate) fn note_server_answer(&mut self, now: Instant, id: ConnectionId) {
        let Some(connection) = self.table.get_mut(id) else {
            return;
        };
        let of = (connection.service, connection.asked_server());
        if let Some(asked) = connection.tcp.syn.asked.take() {
            let rtt = (!asked.again).then(|| now.since(asked.at));
            let back = self.services.note_answer(now, of, rtt);
            self.note_back(of, back);
        }
    }

    /// The back end of a connection that waits for its answer refuses: it is marked, and the SYN goes to another if
    /// there is one that has not been tried. `false`: there is none, or the connection does not wait.
    pub(crate) fn leave_refusing(
        &mut self,
        now: Instant,
        id: ConnectionId,
        reason: MarkReason,
    ) -> bool {
        let Some(connection) = self.table.get_mut(id) else {
            return false;
        };
        if !connection.awaits_server() {
            return false;
        }
        let of = (connection.service, connection.asked_server());
        let tried = usize::from(connection.tcp.syn.tried);
        let asks = connection.asks();
        let marked = self.services.note_refusal(now, of, reason);
        self.note_marked(of, reason, marked);
        if asks {
            return self.skip_server(now, id);
        }
        self.services.backends(of.0) > tried && self.skip_backend(now, id, Choice::Any)
    }

    /// The client repeats its SYN. If its back end has had its time, the SYN goes to another that is not marked; if all
    /// are, to the next once this one has been asked twice. `false`: it goes where it went.
    pub(crate) fn leave_silent(&mut self, now: Instant, id: ConnectionId) -> bool {
        let Some(asked) = self.table.get_mut(id).and_then(|c| c.tcp.syn.asked) else {
            return false;
        };
        let choice = if asked.again {
            Choice::Any
        } else {
            Choice::Living
        };
        let moved = self.note_silence(now, id) && self.skip_backend(now, id, choice);
        if !moved && let Some(asked) = self.asked_mut(id) {
            asked.again = true;
        }
        moved
    }

    /// The time of a connection's back end is over, and the client has not repeated its SYN yet: the SYN goes to one
    /// that is not marked. Without such a one the client will say how long it waits.
    pub(crate) fn lose_patience(&mut self, now: Instant, id: ConnectionId) {
        let due = self.asked_mut(id).and_then(|asked| asked.due);
        if due.is_none_or(|due| now < due) {
            return;
        }
        let moved = self.note_silence(now, id) && self.skip_backend(now, id, Choice::Living);
        if !moved && let Some(asked) = self.asked_mut(id) {
            asked.due = None;
        }
    }

    fn asked_mut(&mut self, id: ConnectionId) -> Option<&mut Asked> {
        self.table.get_mut(id)?.tcp.syn.asked.as_mut()
    }

    /// Takes note of the silence of a connection's back end. `false`: it has time left, or has answered.
    fn note_silence(&mut self, now: Instant, id: ConnectionId) -> bool {
        let Some(connection) = self.table.get_mut(id) else {
            return false;
        };
        let of = (connection.service, connection.asked_server());
        let patience = self.services.patience(of.0, of.1);
        let Some((asked, patience)) = connection.tcp.syn.asked.zip(patience) else {
            return false;
        };
        if !connection.awaits_server() || now < asked.at + patience {
            return false;
        }
        let (source, isn) = connection.asked_from();
        let sent = Sent {
            source,
            ack: isn.add(1),
            at: Some(asked.at).filter(|_| !asked.again),
        };
        let silence = (asked.at, sent);
        let marked = self.services.note_silence(now, of, silence);
        self.note_marked(of, MarkReason::Silent, marked);
        true
    }

    /// Sends the SYN to the next back end. `false`: there is none.
    fn skip_backend(&mut self, now: Instant, id: ConnectionId, choice: Choice) -> bool {
        let Some(connection) = self.table.get_mut(id) else {
            return false;
        };
        if connection.asks() {
            return self.skip_server(now, id);
        }
        let (service, old) = (connection.service, connection.server_flow());
        let Some(backend) = self.next_backend(service, Some(old.from), choice) else {
            return false;
        };
        let leg = Leg::Server;
        self.table.remove_flow(FlowRef { id, leg });
        self.services.note_closed(service, old.from);
        let Some(connection) = self.table.get_mut(id) else {
            return false;
        };
        let mut ctx = context!(self, now);
        connection.try_backend(&mut ctx, backend);
        let flow = connection.server_flow();
        self.table.insert_flow(flow, FlowRef { id, leg });
        self.note_asked(now, id);
        true
    }

    /// A back end in turn, and a source address and port that are free towards it.
    pub(crate) fn next_backend(
        &mut self,
        service: ServiceId,
        not: Option<SocketAddr>,
        choice: Choice,
    ) -> Option<Backend> {
        let (table, which) = (&self.table, (not, choice));
        let is_free = |backend: &Backend| table.find(backend.flow()).is_none();
        self.services
            .next_backend(service, which, &mut self.keys.numbers, is_free)
    }

    /// Room for a connection in reverse mode: a back end, and a port towards it. When the table or the ports
    /// are used up, the oldest handshake that is not complete makes room: under a flood of SYNs nearly all of
    /// them never will be.
    ///
    /// `true` beside it: the port is the one that was freed just now.
    pub(crate) fn room_in_reverse(
        &mut self,
        now: Instant,
        service: ServiceId,
    ) -> Option<(Backend, bool)> {
        self.room_in_table(now)?;
        if let Some(free) = self.next_backend(service, None, Choice::Any) {
            return Some((free, false));
        }
        let of_service = |connection: &Connection| {
            let addr = connection.tcp.backend.addr();
            connection.service == service && self.services.takes(service, addr)
        };
        let of_living = |connection: &Connection| {
            let addr = connection.tcp.backend.addr();
            of_service(connection) && !self.services.is_marked(service, addr)
        };
        let oldest = self.table.oldest_half_open_where(of_living);
        let oldest = oldest.or_else(|| self.table.oldest_half_open_where(of_service));
        Some((
            self.evict_half_open(now, oldest, HalfOpenEvicted::Ports)?,
            true,
        ))
    }

    /// Room in the table: where that or the memory is used up, the oldest handshake that is not complete makes some.
    pub(crate) fn room_in_table(&mut self, now: Instant) -> Option<()> {
        let full = self.table.len() >= self.config.limits.connections;
        if full || self.budget.is_used_up() {
            let cause = if full {
                HalfOpenEvicted::Connections
            } else {
                HalfOpenEvicted::Memory
            };
            self.evict_half_open(now, self.table.oldest_half_open(), cause)?;
        }
        Some(())
    }

    /// A source address and port that are free towards a server that a client has named.
    pub(crate) fn source_towards(
        &mut self,
        service: ServiceId,
        server: SocketAddr,
    ) -> Option<Backend> {
        let table = &self.table;
        let is_free = |backend: &Backend| table.find(backend.flow()).is_none();
        let secrets = &mut self.keys.numbers;
        self.services
            .source_towards(service, server, secrets, is_free)
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
    pub(crate) fn evict_half_open(
        &mut self,
        now: Instant,
        id: Option<ConnectionId>,
        cause: HalfOpenEvicted,
    ) -> Option<Backend> {
        let id = id?;
        let connection = self.table.get_mut(id)?;
        let backend = Backend {
            source: connection.tcp.source.addr(),
            addr: connection.tcp.backend.addr(),
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

//! Explicit modes: clients address FlexCP and name their server in the SYN (0-RTT Convert, RFC 8803).

use alloc::vec::Vec;
use core::net::SocketAddr;

use flexcp_preamble::{Dialogue, Turn};

use super::hosting::Guest;
use super::{Translator, context, lost};
use crate::cause::{HalfOpenEvicted, PlainSyn, PreambleRefused, Rst};
use crate::clients::Standing;
use crate::connection::{Connection, Front, Phase, Relayed, Request, Subflow, asks};
use crate::counters::DropReason;
use crate::endpoint::Backend;
use crate::hosted::Then;
use crate::lookup::named;
use crate::segment::Segment;
use crate::table::ConnectionId;
use crate::{Frame, Instant, ServiceId, Verdict};

impl Translator {
    /// A SYN for a service whose clients name their server.
    pub(super) fn handle_explicit_syn(
        &mut self,
        now: Instant,
        (service, opens): (ServiceId, bool),
        segment: &Segment,
        frame: &mut Frame<'_>,
    ) -> Verdict {
        let client = segment.source().ip();
        let standing = match self.judge_client(now, opens, segment) {
            Ok(standing) => standing,
            Err(verdict) => return verdict,
        };
        if self.splits(service, segment) {
            return self.split_explicit(now, service, segment, frame);
        }
        let Some(protocol) = self.services.protocol(service) else {
            return lost();
        };
        let said = frame.buffer(segment.payload.clone());
        let (mut dialogue, mut answer) = (Dialogue::new(protocol), Vec::new());
        let cookies = &self.guests.cookies;
        let gate = self.services.gate((service, client), now, cookies);
        let (taken, turn) = dialogue.hear(said, &gate, &mut answer);
        let wants = self.wants(now, true, asks(segment));
        let is_allowed = |server: &SocketAddr| {
            standing == Standing::Guest && self.services.allows(service, *server, client)
        };
        let server = server_of(&turn).filter(is_allowed);
        if let Some(server) = server.filter(|_| answer.is_empty()) {
            let front = Front::new(dialogue, &said[taken..]);
            return self.connect_at_once(now, (service, wants), server, front, segment, frame);
        }
        if let Turn::Reset(fault) = turn {
            self.deny_stranger(segment, None, fault.into());
            return self.turn_away(segment, Rst::Preamble, DropReason::BadPreamble);
        }
        if self.room_in_table(now).is_none() {
            return self.turn_away(segment, Rst::NoRoom, DropReason::LimitReached);
        }
        if let Turn::Connect(_) = turn
            && server.is_none()
        {
            dialogue.refuse(standing.refusal(), &mut answer);
        }
        let then = self.what_follows(turn, (server.is_some(), standing), segment);
        let in_syn = segment.payload.len();
        let guest = Guest {
            service,
            wants,
            dialogue,
            said: &answer,
            then,
            // Its stream the client says again, once there is a server.
            taken: if then == Then::Stream { taken } else { in_syn },
            wanted: server,
            standing,
        };
        self.host(now, guest, segment, frame)
    }

    /// Whether the client may open another connection, or is told that it has too many; the verdict if it is not even told.
    fn judge_client(
        &mut self,
        now: Instant,
        opens: bool,
        segment: &Segment,
    ) -> Result<Standing, Verdict> {
        if self.drain.begun || !opens {
            return Err(self.turn_away(segment, Rst::Draining, DropReason::Draining));
        }
        let (client, limits) = (segment.source().ip(), &self.config.limits);
        let standing = self.guests.clients.judge(now, client, limits);
        if standing == Standing::TurnedAway {
            self.deny_stranger(segment, None, PreambleRefused::ClientLimit);
            return Err(self.turn_away(segment, Rst::NoRoom, DropReason::LimitReached));
        }
        Ok(standing)
    }

    /// What follows the data of the SYN. A client that has said nothing that is granted is counted, and told of.
    fn what_follows(
        &mut self,
        turn: Turn,
        (granted, standing): (bool, Standing),
        segment: &Segment,
    ) -> Then {
        let (wish, refused) = match turn {
            Turn::Listen => return Then::Preamble,
            Turn::Connect(_) if granted => return Then::Stream,
            Turn::Connect(wish) => (Some(wish), standing.refusal().into()),
            Turn::Told => (None, PreambleRefused::Asked),
            Turn::Close(fault) | Turn::Reset(fault) => (None, fault.into()),
        };
        self.deny_stranger(segment, wish, refused);
        Then::Nothing
    }

    /// The client has named its server in the SYN: that is called.
    fn connect_at_once(
        &mut self,
        now: Instant,
        (service, wants): (ServiceId, Result<(), PlainSyn>),
        server: SocketAddr,
        front: Front,
        segment: &Segment,
        frame: &mut Frame<'_>,
    ) -> Verdict {
        let Some((backend, reused)) = self.room_towards(now, service, server) else {
            return self.turn_away(segment, Rst::NoRoom, DropReason::LimitReached);
        };
        let verdict = self.open_behind(now, (service, wants), backend, front, segment, frame);
        if reused {
            self.put_off_syn(now, segment)
        } else {
            verdict
        }
    }

    fn turn_away(&mut self, segment: &Segment, cause: Rst, reason: DropReason) -> Verdict {
        self.refuse(segment, cause);
        Verdict::Drop(reason)
    }

    /// Room for a connection with a server that its client has named: a port towards that. Where the table is full, or the ports
    /// towards the server are, the oldest handshake that is not complete makes room; nobody's with another server does for ports.
    ///
    /// `true` beside it: the port is the one that was freed just now.
    fn room_towards(
        &mut self,
        now: Instant,
        service: ServiceId,
        server: SocketAddr,
    ) -> Option<(Backend, bool)> {
        self.room_in_table(now)?;
        self.port_towards(now, service, server)
    }

    /// The same of the port alone.
    pub(super) fn port_towards(
        &mut self,
        now: Instant,
        service: ServiceId,
        server: SocketAddr,
    ) -> Option<(Backend, bool)> {
        if let Some(free) = self.source_towards(service, server) {
            return Some((free, false));
        }
        let of_server = |connection: &Connection| {
            connection.service == service && connection.tcp.backend.addr() == server
        };
        let oldest = self.table.oldest_half_open_where(of_server);
        let freed = self.evict_half_open(now, oldest, HalfOpenEvicted::Ports)?;
        Some((freed, true))
    }

    /// Takes the connection into the table and sends its SYN to the server.
    fn open_behind(
        &mut self,
        now: Instant,
        (service, wants): (ServiceId, Result<(), PlainSyn>),
        backend: Backend,
        front: Front,
        segment: &Segment,
        frame: &mut Frame<'_>,
    ) -> Verdict {
        let local = self.fresh_key();
        let initial =
            Subflow::behind_data(now, segment, flexcp_wire::Ssn(0), segment.payload.len());
        let mut connection = Connection::new(now, service, initial, backend, local).behind(front);
        self.begin_as(now, &mut connection, wants);
        // Others are not called a server for.
        self.admit(now, &mut connection, Standing::Guest);
        self.counters.preambles += 1;
        self.enter(now, connection, segment, frame, false)
    }

    /// A connection that is about to enter the table is MPTCP's, or plain for this cause, and then needs room among the handshakes.
    pub(super) fn begin_as(
        &mut self,
        now: Instant,
        connection: &mut Connection,
        wants: Result<(), PlainSyn>,
    ) {
        let Err(cause) = wants else {
            self.counters.mp_capable_syn_rx += 1;
            return;
        };
        self.counters.decide(cause);
        connection.phase = Phase::Plain(Relayed::default());
        if self.table.half_open() >= self.config.limits.half_open {
            let oldest = self.table.oldest_half_open();
            self.evict_half_open(now, oldest, HalfOpenEvicted::Plain);
        }
    }

    /// The client sends its SYN again. A Linux client does so without the data, and after a while without MPTCP.
    pub(super) fn repeat_explicit_syn(
        &mut self,
        now: Instant,
        id: ConnectionId,
        segment: &Segment,
        frame: &mut Frame<'_>,
    ) -> Verdict {
        let Some(connection) = self.table.get_mut(id) else {
            return lost();
        };
        if !segment.is_syn() {
            // No SYN goes to a server for what is none.
            return Verdict::Drop(DropReason::Unexpected);
        }
        let mut ctx = context!(self, now);
        if asks(segment) != Request::Mptcp && !connection.phase.is_plain() {
            ctx.counters.decide(PlainSyn::GivenUp);
            connection.phase = Phase::Plain(Relayed::default());
        }
        connection.note_syn_again(segment);
        connection.forward_syn(&mut ctx, segment, frame, false)
    }
}

/// The server of a wish that is heard, if it needs no name resolved.
pub(super) fn server_of(turn: &Turn) -> Option<SocketAddr> {
    match turn {
        Turn::Connect(wish) => named(wish),
        _ => None,
    }
}

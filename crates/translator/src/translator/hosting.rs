//! Connections whose server is FlexCP itself, until they have one: packets between them and their responders, what those learn,
//! the call to a server, and the hand-over.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use flexcp_preamble::{Dialogue, Refusal, Target, Turn, Wish};
use flexcp_wire::{ChecksumState, Ends, Offload, TcpFlags, protocol};

use super::ahead::HeldSyns;
use super::{Translator, context, lost};
use crate::cause::{PlainSyn, PreambleRefused, Rst};
use crate::clients::{Clients, Standing};
use crate::connection::{Connection, Phase, Subflow};
use crate::cookies::Cookies;
use crate::counters::DropReason;
use crate::denials::{Denial, Denials};
use crate::frame::{HEADROOM, Payload, Transmit};
use crate::handle::INITIAL;
use crate::hosted::{self, Hosted, Then, is_responder, responder_ends, wish_for};
use crate::lookup::{Lookup, named, readable};
use crate::segment::Segment;
use crate::table::{ConnectionId, FlowRef, Leg};
use crate::{Frame, Instant, ServiceId, Step, Verdict};

/// Packets that go between connections and their responders in answer to what waits: more would be a circle.
const EXCHANGE: usize = 64;

/// Connections whose server is FlexCP, or was.
#[derive(Debug)]
pub(crate) struct Guests {
    /// How many there are.
    count: usize,
    /// Names that are yet to be resolved for them.
    pub(super) lookups: VecDeque<Lookup>,
    /// Where they, and those that have named their server in the SYN, come from.
    pub(super) clients: Clients,
    pub(super) cookies: Cookies,
    /// SYNs of split connections whose servers are being called.
    pub(super) held: HeldSyns,
    /// Those that were refused.
    denials: Denials,
}

impl Guests {
    /// None. `secret`: what cookies are made with.
    pub(super) fn new(secret: [u8; 32]) -> Self {
        Self {
            count: 0,
            lookups: VecDeque::new(),
            clients: Clients::default(),
            cookies: Cookies::new(secret),
            held: HeldSyns::default(),
            denials: Denials::default(),
        }
    }

    /// Whether there are any.
    pub(super) const fn any(&self) -> bool {
        self.count > 0
    }

    /// A connection leaves the table.
    pub(super) fn leave(&mut self, is_one: bool, client: IpAddr, standing: Standing) {
        self.count -= usize::from(is_one);
        if standing != Standing::Uncounted {
            self.clients.leave(client, standing);
        }
    }
}

/// A client that is answered before its server is known.
pub(super) struct Guest<'a> {
    pub(super) service: ServiceId,
    /// Whether it speaks MPTCP, or why it has to do without.
    pub(super) wants: Result<(), PlainSyn>,
    pub(super) dialogue: Dialogue,
    /// What it is answered.
    pub(super) said: &'a [u8],
    pub(super) then: Then,
    /// Bytes of its SYN that are ACKed.
    pub(super) taken: usize,
    /// Whom it wants, if it has said so and may be connected there.
    pub(super) wanted: Option<SocketAddr>,
    pub(super) standing: Standing,
}

impl Translator {
    /// Takes the connection into the table with a responder for its server, and sends its SYN there.
    pub(super) fn host(
        &mut self,
        now: Instant,
        guest: Guest<'_>,
        segment: &Segment,
        frame: &mut Frame<'_>,
    ) -> Verdict {
        let local = self.fresh_key();
        let backend = responder_ends(local.token);
        let secret = self.keys.numbers.next_u64();
        let is_v6 = segment.ip.is_v6();
        let mut responder = hosted::responder(guest.dialogue, backend, secret, is_v6);
        responder.begin(guest.said, guest.then);
        let initial = Subflow::behind_data(now, segment, flexcp_wire::Ssn(0), guest.taken);
        let mut connection = Connection::new(now, guest.service, initial, backend, local);
        connection.hosted = Some(Box::new(Hosted::new(now, responder, guest.wanted)));
        self.begin_as(now, &mut connection, guest.wants);
        self.admit(now, &mut connection, guest.standing);
        self.guests.count += 1;
        self.counters.hosted += 1;
        self.enter(now, connection, segment, frame, false)
    }

    /// The connection, which is about to enter the table, counts for its client.
    pub(super) fn admit(&mut self, now: Instant, connection: &mut Connection, standing: Standing) {
        connection.credit.standing = standing;
        let client = connection.subflow(INITIAL).ends().to.ip();
        let limits = &self.config.limits;
        self.guests.clients.enter(now, client, standing, limits);
    }

    /// The server that a client has named in its SYN cannot be had, and the client has not been answered yet: a responder takes its
    /// place and tells it why (RFC 8803 section 4.2). `false`: it is no such client.
    pub(super) fn host_refused(&mut self, now: Instant, id: ConnectionId, why: Refusal) -> bool {
        let Some(connection) = self.table.get_mut(id) else {
            return false;
        };
        let waits = matches!(connection.phase, Phase::SynSent | Phase::Plain(_));
        let Some(front) = connection
            .front
            .take_if(|front| waits && !front.is_header() && !connection.tcp.syn.answered)
        else {
            return false;
        };
        let Some(mut dialogue) = front.into_dialogue() else {
            return false;
        };
        let (token, is_v6) = (
            connection.mptcp.key.token,
            connection.subflow(INITIAL).ends().to.is_ipv6(),
        );
        let backend = responder_ends(token);
        let mut said = Vec::new();
        dialogue.refuse(why, &mut said);
        let secret = self.keys.numbers.next_u64();
        let mut responder = hosted::responder(dialogue, backend, secret, is_v6);
        responder.begin(&said, Then::Nothing);
        let leg = Leg::Server;
        self.table.remove_flow(FlowRef { id, leg });
        let Some(connection) = self.table.get_mut(id) else {
            return false;
        };
        let mut hosted = Hosted::new(now, responder, None);
        hosted.note_wish(wish_for(connection.tcp.backend.addr()));
        connection.turn_to(backend);
        connection.hosted = Some(Box::new(hosted));
        let flow = connection.server_flow();
        let mut ctx = context!(self, now);
        connection.send_syn(&mut ctx, u16::MAX);
        self.table.insert_flow(flow, FlowRef { id, leg });
        self.guests.count += 1;
        self.counters.hosted += 1;
        self.deny(id, why);
        true
    }

    /// A packet has been handled: what goes to responders goes there, and what goes to servers that took over from one is
    /// rewritten.
    pub(super) fn cross(&mut self, now: Instant, step: Step, frame: &mut Frame<'_>) -> Step {
        let mut step = step;
        if step.verdict == Verdict::Forward && self.cross_frame(now, frame) {
            step = Verdict::Consume.into();
        }
        self.exchange(now, Some(frame));
        step
    }

    /// `true`: the packet was a responder's.
    fn cross_frame(&mut self, now: Instant, frame: &mut Frame<'_>) -> bool {
        let Some((ends, tcp_at)) = ends_of(frame.packet()) else {
            return false;
        };
        if is_responder(ends.to.ip()) {
            let packet = frame.packet().to_vec();
            self.respond(now, ends, &packet, frame.offload);
            return true;
        }
        let Some(flow) = self.table.find(ends.reversed()) else {
            return false;
        };
        let Some(hosted) = self.hosted_of(flow) else {
            return false;
        };
        let partial = frame.offload.checksum != ChecksumState::Complete;
        if hosted.cross_header(&mut frame.packet_mut()[tcp_at..], partial) {
            self.charge(flow.id);
        }
        false
    }

    /// What a connection with a seam or a responder has in a server's place.
    fn hosted_of(&mut self, flow: FlowRef) -> Option<&mut Hosted> {
        let of_server = flow.leg == Leg::Server;
        let connection = self.table.get_mut(flow.id).filter(|_| of_server)?;
        connection.hosted.as_deref_mut()
    }

    /// Carries what waits for responders to them, and their answers back, until nothing does.
    pub(super) fn exchange(&mut self, now: Instant, frame: Option<&Frame<'_>>) {
        for _ in 0..self.outbox.len() + EXCHANGE {
            let is_theirs = |transmit: &Transmit| {
                ends_of(transmit.header()).is_some_and(|(ends, _)| is_responder(ends.to.ip()))
            };
            let Some(at) = self.outbox.iter().position(is_theirs) else {
                return;
            };
            let Some(transmit) = self.outbox.remove(at) else {
                return;
            };
            // It does not leave.
            self.counters.packets_made -= 1;
            let packet = bytes_of(&transmit, frame);
            if let Some((ends, _)) = ends_of(&packet) {
                self.respond(now, ends, &packet, transmit.offload);
            }
        }
        debug_assert!(false, "a responder and its connection go round in a circle");
    }

    /// A packet for a responder.
    fn respond(&mut self, now: Instant, ends: Ends, packet: &[u8], offload: Offload) {
        let Some(flow) = self.table.find(ends.reversed()) else {
            return;
        };
        let mut buffer = packet.to_vec();
        let frame = Frame::new(&mut buffer, 0..packet.len(), offload);
        let Ok(segment) = Segment::parse(&frame) else {
            return;
        };
        // What is only relayed nobody has checked yet. As a network would it loses what is wrong.
        if !segment.checksum_is_right(&frame) {
            return;
        }
        let Some(connection) = self.table.get_mut(flow.id) else {
            return;
        };
        let whose = (
            connection.service,
            connection.subflow(INITIAL).ends().to.ip(),
        );
        let gate = self.services.gate(whose, now, &self.guests.cookies);
        let responder = connection.hosted.as_deref_mut().and_then(Hosted::responder);
        let Some(responder) = responder else {
            return;
        };
        let mut said = Vec::new();
        let payload = frame.buffer(segment.payload.clone());
        let turn = responder.receive(now, (&segment, payload), &gate, &mut said);
        let over = responder.is_over();
        let hosted = connection.hosted.as_deref_mut();
        let wanted = hosted.and_then(Hosted::take_wanted);
        self.inject(now, said);
        self.take_turn(now, flow.id, turn);
        if let Some(server) = wanted {
            self.counters.preambles += 1;
            self.call(now, flow.id, server);
        }
        if over {
            self.end_call(flow.id);
        }
        if self.table.get(flow.id).is_some() {
            self.settle(now, flow.id);
        }
    }

    /// What a client has said has come to this.
    fn take_turn(&mut self, now: Instant, id: ConnectionId, turn: Turn) {
        match turn {
            Turn::Listen => {}
            Turn::Told => self.deny(id, PreambleRefused::Asked),
            Turn::Close(fault) => self.deny(id, fault),
            Turn::Reset(fault) => {
                self.deny(id, fault);
                self.reset_guest(now, id);
            }
            Turn::Connect(wish) => {
                self.counters.preambles += 1;
                self.connect_guest(now, id, wish);
            }
        }
    }

    /// A client has named its server after its handshake.
    fn connect_guest(&mut self, now: Instant, id: ConnectionId, wish: Wish) {
        let server = named(&wish);
        let name = match &wish.to {
            Target::Name(name) => readable(name).map(Into::into),
            Target::Ip(_) => None,
        };
        let port = wish.port;
        if let Some(hosted) = self.table.get_mut(id).and_then(|c| c.hosted.as_deref_mut()) {
            hosted.note_wish(wish);
        }
        match server {
            _ if self.is_beyond(id) => self.refuse_guest(now, id, Refusal::ClientLimit),
            Some(server) => self.call(now, id, server),
            None => self.look_up(now, id, name, port),
        }
    }

    /// A client of which nothing else is known is refused.
    pub(super) fn deny_stranger(
        &mut self,
        segment: &Segment,
        wish: Option<Wish>,
        cause: PreambleRefused,
    ) {
        self.counters.decide(cause);
        self.guests.denials.note(Denial {
            client: segment.source(),
            by: segment.destination(),
            wish,
            cause,
        });
    }

    /// The client of this connection is refused. One that is refused already, and late to go, is not counted again.
    fn deny(&mut self, id: ConnectionId, cause: impl Into<PreambleRefused>) {
        let cause = cause.into();
        let Some(connection) = self.table.get_mut(id) else {
            return self.counters.decide(cause);
        };
        let flow = connection.subflow(INITIAL).flow();
        let hosted = connection.hosted.as_deref_mut();
        if hosted.as_deref().is_some_and(Hosted::is_denied) {
            return;
        }
        self.counters.decide(cause);
        let said = hosted.and_then(Hosted::deny);
        self.guests.denials.note(Denial {
            client: flow.from,
            by: flow.to,
            wish: said,
            cause,
        });
    }

    /// A client that was refused, for whoever writes a log: a few of them wait, and of the others
    /// [`denials_lost`](Self::denials_lost) has the number. Asked for now and then.
    pub fn poll_denial(&mut self) -> Option<Denial> {
        self.guests.denials.take()
    }

    /// How many refused clients found no room to wait since this was asked last.
    pub const fn denials_lost(&mut self) -> u64 {
        self.guests.denials.take_lost()
    }

    /// Whether the connection is there to tell its client that it has too many.
    fn is_beyond(&self, id: ConnectionId) -> bool {
        let connection = self.table.get(id);
        connection.is_some_and(|connection| connection.credit.standing == Standing::Beyond)
    }

    /// A packet of a server that has been called, or that has taken over from a responder. `None`: of another.
    pub(super) fn handle_hosted(
        &mut self,
        now: Instant,
        flow: FlowRef,
        segment: &Segment,
        frame: &mut Frame<'_>,
    ) -> Option<Step> {
        let taken_over = |hosted: &mut Hosted| hosted.seam().is_some();
        let called = flow.leg == Leg::Called;
        if !called && !self.hosted_of(flow).is_some_and(taken_over) {
            return None;
        }
        if !segment.checksum_is_right(frame) {
            return Some(Verdict::Drop(DropReason::Checksum).into());
        }
        if called {
            return Some(self.handle_called(now, flow.id, segment, frame).into());
        }
        match self.cross_from_server(now, flow, segment, frame) {
            Ok(segment) => Some(self.handle_known(now, flow, &segment, frame)),
            Err(verdict) => Some(verdict.into()),
        }
    }

    /// No carrier brings a packet with an address of a responder's: somebody has made it up.
    pub(super) fn is_made_up(&self, ends: Ends) -> bool {
        self.guests.any()
            && [ends.from, ends.to]
                .iter()
                .any(|end| is_responder(end.ip()))
    }

    /// The client is refused, and the server that was called hears no more.
    pub(super) fn refuse_guest(&mut self, now: Instant, id: ConnectionId, why: Refusal) {
        self.deny(id, why);
        self.end_call(id);
        let hosted = self.table.get_mut(id).and_then(|c| c.hosted.as_deref_mut());
        if let Some(hosted) = hosted {
            hosted.refuse(now, why);
        }
        self.speak(now, id, hosted_sends);
        if self.table.get(id).is_some() {
            self.settle(now, id);
        }
    }

    /// A client that has not said whom it wants in time, or nothing that can be understood.
    fn reset_guest(&mut self, now: Instant, id: ConnectionId) {
        self.end_call(id);
        let Some(connection) = self.table.get_mut(id) else {
            return;
        };
        let hosted = connection.hosted.as_deref_mut();
        if let Some(responder) = hosted.and_then(Hosted::responder)
            && responder.is_open()
        {
            responder.give_up();
            connection.turn_away(&mut context!(self, now), Rst::Preamble);
            self.settle(now, id);
        }
    }

    /// Lets a responder say something.
    pub(super) fn speak(
        &mut self,
        now: Instant,
        id: ConnectionId,
        say: impl FnOnce(&mut Hosted, Instant, &mut Vec<Transmit>),
    ) {
        let mut said = Vec::new();
        let hosted = self.table.get_mut(id).and_then(|c| c.hosted.as_deref_mut());
        if let Some(hosted) = hosted {
            say(hosted, now, &mut said);
        }
        self.inject(now, said);
    }

    /// What a responder says comes to its connection as from any server.
    fn inject(&mut self, now: Instant, said: Vec<Transmit>) {
        for transmit in said {
            let bytes = bytes_of(&transmit, None);
            let mut buffer = alloc::vec![0; HEADROOM];
            buffer.extend_from_slice(&bytes);
            let packet = HEADROOM..buffer.len();
            let offload = Offload {
                checksum: ChecksumState::Verified,
                gso: None,
            };
            let mut frame = Frame::new(&mut buffer, packet, offload);
            let Ok(segment) = Segment::parse(&frame) else {
                continue;
            };
            let before = self.outbox.len();
            let ends = Ends {
                from: segment.source(),
                to: segment.destination(),
            };
            let Some(flow) = self.table.find(ends) else {
                continue;
            };
            let step = self.handle_known(now, flow, &segment, &mut frame);
            for made in self.outbox.iter_mut().skip(before) {
                if let Payload::Frame(range) = &made.payload {
                    made.payload = Payload::Bytes(frame.buffer(range.clone()).into());
                }
            }
            if step.verdict == Verdict::Forward
                && let Some(transmit) = Transmit::of(frame.packet(), frame.offload)
            {
                self.counters.packets_made += 1;
                // What is made of it goes behind it, as with any carrier.
                self.outbox.insert(before, transmit);
            }
        }
    }

    /// Does what is due of a connection that FlexCP is the server of.
    pub(super) fn tend_hosted(&mut self, now: Instant, id: ConnectionId) {
        let Some(connection) = self.table.get_mut(id) else {
            return;
        };
        let over = connection.phase.is_over();
        let acked = connection.seq_to_tcp(connection.to_tcp.acked);
        let window = connection.tcp.window.offered;
        let Some(hosted) = connection.hosted.as_deref_mut() else {
            return;
        };
        hosted.follow_server(acked, window);
        if over {
            if let Some(responder) = hosted.responder() {
                responder.give_up();
            }
            return self.end_call(id);
        }
        if hosted.is_silent(now) {
            return self.try_next(now, id, Refusal::Expired);
        }
        if hosted.is_late(now) && hosted.resolves() {
            return self.refuse_guest(now, id, Refusal::NoName);
        }
        if hosted.is_late(now) {
            self.deny(id, PreambleRefused::Late);
            return self.reset_guest(now, id);
        }
        if hosted.calls_again(now) {
            self.send_call(id);
        }
        let mut gone = false;
        self.speak(now, id, |hosted, now, said| {
            if let Some(responder) = hosted.responder() {
                gone = !responder.repeat(now, said);
            }
        });
        if gone {
            self.reset_guest(now, id);
        }
        self.exchange(now, None);
    }

    /// A packet of a server that took over from a responder: as that would have sent it. `None`: there is no more to it.
    pub(super) fn cross_from_server(
        &mut self,
        now: Instant,
        flow: FlowRef,
        segment: &Segment,
        frame: &mut Frame<'_>,
    ) -> Result<Segment, Verdict> {
        if segment.has(TcpFlags::SYN) {
            // The ACK of its SYN/ACK has got lost.
            self.ack_server(flow.id);
            return Err(Verdict::Consume);
        }
        let Some(connection) = self.table.get_mut(flow.id) else {
            return Err(lost());
        };
        if let Some(seam) = connection.hosted.as_deref().and_then(Hosted::seam) {
            seam.rewrite_down(now, segment, frame)
                .map_err(Verdict::Drop)?;
        }
        Segment::parse(frame).map_err(Verdict::Drop)
    }

    /// The packet that is about to be sent, as the server that took over from a responder gets it. `false`: it is for a responder
    /// that does not hear of it, as when its connection is reset at an operator's wish.
    pub(super) fn cross_transmit(&mut self, transmit: &mut Transmit) -> bool {
        let Some((ends, tcp_at)) = ends_of(transmit.header()) else {
            return true;
        };
        if is_responder(ends.to.ip()) {
            return false;
        }
        if let Some(flow) = self.table.find(ends.reversed())
            && let Some(hosted) = self.hosted_of(flow)
            && hosted.cross_header(&mut transmit.header_mut()[tcp_at..], true)
        {
            self.charge(flow.id);
        }
        true
    }
}

/// What it has not said yet, or has to say again.
pub(super) fn hosted_sends(hosted: &mut Hosted, now: Instant, said: &mut Vec<Transmit>) {
    if let Some(responder) = hosted.responder() {
        responder.send(now, said);
    }
}

/// The ends of a TCP packet, and where its TCP header starts. The packet may end behind its headers: what its lengths say is not
/// looked at.
fn ends_of(packet: &[u8]) -> Option<(Ends, usize)> {
    let (from, to, at): (IpAddr, IpAddr, _) = match packet.first()? >> 4 {
        4 if *packet.get(9)? == protocol::TCP => {
            let [from, to] = [12, 16].map(|at| packet.get(at..)?.first_chunk::<4>().copied());
            let at = usize::from(packet[0] & 0xf) * 4;
            (from?.into(), to?.into(), at)
        }
        6 if *packet.get(6)? == protocol::TCP => {
            let [from, to] = [8, 24].map(|at| packet.get(at..)?.first_chunk::<16>().copied());
            (from?.into(), to?.into(), 40)
        }
        _ => return None,
    };
    let &[a, b, c, d] = packet.get(at..)?.first_chunk::<4>()?;
    let ends = Ends {
        from: SocketAddr::new(from, u16::from_be_bytes([a, b])),
        to: SocketAddr::new(to, u16::from_be_bytes([c, d])),
    };
    Some((ends, at))
}

/// The whole packet. `frame`: what a piece of it is a part of.
fn bytes_of(transmit: &Transmit, frame: Option<&Frame<'_>>) -> Vec<u8> {
    let mut bytes = transmit.header().to_vec();
    match &transmit.payload {
        Payload::None => {}
        Payload::Frame(range) => {
            bytes.extend_from_slice(frame.map_or(&[], |frame| frame.buffer(range.clone())));
        }
        Payload::Zeros(len) => bytes.resize(bytes.len() + len, 0),
        Payload::Bytes(data) => bytes.extend_from_slice(data),
    }
    bytes
}

//! The server that a client has named after its handshake: its name is resolved by somebody else, its addresses are called one
//! after the other, and the first that answers takes over from the responder.

use alloc::boxed::Box;
use core::net::{IpAddr, SocketAddr};

use flexcp_preamble::Refusal;
use flexcp_wire::{IcmpError, IcmpKind, TcpFlags};

use super::hosting::hosted_sends;
use super::icmp::unreachable;
use super::{Translator, context, lost};
use crate::cause::Rst;
use crate::counters::DropReason;
use crate::handle::{INITIAL, StableId};
use crate::hosted::Hosted;
use crate::lookup::Lookup;
use crate::segment::Segment;
use crate::table::{ConnectionId, FlowRef, Leg};
use crate::{Frame, Instant, Verdict};

/// Names that wait to be resolved at most: whoever resolves them takes them after each packet.
const LOOKUPS: usize = 64;

impl Translator {
    /// A name that is to be resolved; [`resolved`](Self::resolved) tells what has come of it. Asked for where
    /// [`poll_transmit`](Self::poll_transmit) is.
    pub fn poll_lookup(&mut self) -> Option<Lookup> {
        self.guests.lookups.pop_front()
    }

    /// A name has been resolved to these addresses, or to none. What the client is told, or a server is asked, waits in
    /// [`poll_transmit`](Self::poll_transmit) afterwards.
    pub fn resolved(&mut self, now: Instant, id: StableId, addrs: &[IpAddr]) {
        let Some(id) = self.find_id(id) else {
            return;
        };
        let Some(connection) = self.table.get_mut(id) else {
            return;
        };
        let Some(hosted) = connection.hosted.as_deref_mut() else {
            return;
        };
        let Some(port) = hosted.end_lookup() else {
            return;
        };
        let server = |addr: &IpAddr| SocketAddr::new(addr.to_canonical(), port);
        // The first one is called first, and stands last.
        hosted.set_addresses(addrs.iter().rev().map(server).collect());
        let why = if addrs.is_empty() {
            Refusal::NoName
        } else {
            Refusal::NotAllowed
        };
        self.try_next(now, id, why);
        self.exchange(now, None);
    }

    /// The client has named its server by this name, as text; `None`: it may not be looked up.
    pub(super) fn look_up(
        &mut self,
        now: Instant,
        id: ConnectionId,
        name: Option<Box<str>>,
        port: u16,
    ) {
        let Some(connection) = self.table.get_mut(id) else {
            return;
        };
        let Some(name) = name.filter(|_| self.guests.lookups.len() < LOOKUPS) else {
            return self.refuse_guest(now, id, Refusal::NoName);
        };
        let stable = connection.id();
        if let Some(hosted) = connection.hosted.as_deref_mut() {
            hosted.begin_lookup(now, port);
            self.guests.lookups.push_back(Lookup { id: stable, name });
        }
    }

    /// The server that was called is not to be had, for this reason: its next address is called, if it has one.
    pub(super) fn try_next(&mut self, now: Instant, id: ConnectionId, why: Refusal) {
        self.end_call(id);
        loop {
            let hosted = self.table.get_mut(id).and_then(|c| c.hosted.as_deref_mut());
            match hosted.and_then(Hosted::next_address) {
                Some(server) if self.begin_call(now, id, server).is_ok() => return,
                Some(_) => {}
                None => return self.refuse_guest(now, id, why),
            }
        }
    }

    /// The client wants to be connected there.
    pub(super) fn call(&mut self, now: Instant, id: ConnectionId, server: SocketAddr) {
        if let Err(why) = self.begin_call(now, id, server) {
            self.refuse_guest(now, id, why);
        }
    }

    fn begin_call(
        &mut self,
        now: Instant,
        id: ConnectionId,
        server: SocketAddr,
    ) -> Result<(), Refusal> {
        let connection = self.table.get(id).ok_or(Refusal::NotAllowed)?;
        let service = connection.service;
        let client = connection.subflow(INITIAL).ends().to.ip();
        if !self.services.allows(service, server, client) {
            return Err(Refusal::NotAllowed);
        }
        let room = Refusal::NoRoom(0);
        // A handshake that makes room is told so before the port's next SYN.
        let (backend, _) = self.port_towards(now, service, server).ok_or(room)?;
        let hosted = self.table.get_mut(id).and_then(|c| c.hosted.as_deref_mut());
        if let Some(hosted) = hosted {
            hosted.begin_call(now, backend);
        }
        let leg = Leg::Called;
        self.table.insert_flow(backend.flow(), FlowRef { id, leg });
        self.send_call(id);
        self.settle(now, id);
        Ok(())
    }

    pub(super) fn send_call(&mut self, id: ConnectionId) {
        let hosted = self.table.get(id).and_then(|c| c.hosted.as_deref());
        if let Some(syn) = hosted.and_then(Hosted::syn) {
            self.counters.packets_made += 1;
            self.outbox.push_back(syn.own());
        }
    }

    /// An error about the SYN to a server that has been called.
    pub(super) fn handle_icmp_to_called(
        &mut self,
        now: Instant,
        id: ConnectionId,
        error: &IcmpError,
    ) -> Verdict {
        let hosted = self.table.get(id).and_then(|c| c.hosted.as_deref());
        let seq = hosted.and_then(Hosted::syn).map(|syn| syn.seq);
        if seq != Some(error.seq) {
            return Verdict::Drop(DropReason::OutOfWindow);
        }
        if error.kind != IcmpKind::Unreachable {
            return Verdict::Consume;
        }
        self.try_next(now, id, unreachable(error));
        Verdict::Consume
    }

    /// A packet of a server that has been called.
    pub(super) fn handle_called(
        &mut self,
        now: Instant,
        id: ConnectionId,
        segment: &Segment,
        frame: &Frame<'_>,
    ) -> Verdict {
        let connection = self.table.get(id);
        let Some(hosted) = connection.and_then(|c| c.hosted.as_deref()) else {
            return lost();
        };
        let answers = hosted.is_answer(segment);
        if connection.is_some_and(|connection| connection.phase.is_over()) {
            // Nobody waits for it any more.
            self.end_call(id);
            self.refuse(segment, Rst::NoConnection);
            return Verdict::Drop(DropReason::NoConnection);
        }
        if segment.has(TcpFlags::RST) && answers {
            self.try_next(now, id, Refusal::Reset);
            return Verdict::Consume;
        }
        if segment.has(TcpFlags::RST) {
            return Verdict::Drop(DropReason::BlindReset);
        }
        if !answers {
            // It still knows an earlier connection from there (RFC 9293 section 3.10.7.3): the RST ends that.
            self.refuse(segment, Rst::NoConnection);
            return Verdict::Drop(DropReason::Unexpected);
        }
        if !segment.has(TcpFlags::SYN) {
            return Verdict::Drop(DropReason::Unexpected);
        }
        self.hand_over(now, id, segment, frame);
        Verdict::Consume
    }

    /// The server has answered: it takes over from the responder.
    fn hand_over(&mut self, now: Instant, id: ConnectionId, answer: &Segment, frame: &Frame<'_>) {
        for leg in [Leg::Called, Leg::Server] {
            self.table.remove_flow(FlowRef { id, leg });
        }
        // What is written down of it has the responder's address.
        self.unregister(id);
        let Some(connection) = self.table.get_mut(id) else {
            return;
        };
        let options = answer.option_bytes(frame);
        let hosted = connection.hosted.as_deref_mut();
        let Some(call) = hosted.and_then(|hosted| hosted.hand_over(now, answer, options)) else {
            return;
        };
        connection.take_server(call.backend, answer);
        let mut ctx = context!(self, now);
        connection.tell_handed_over(&mut ctx);
        let flow = connection.server_flow();
        let leg = Leg::Server;
        self.table.insert_flow(flow, FlowRef { id, leg });
        self.ack_server(id);
        self.speak(now, id, hosted_sends);
        self.settle(now, id);
    }

    /// ACKs the SYN/ACK of a server that has taken over.
    pub(super) fn ack_server(&mut self, id: ConnectionId) {
        let hosted = self.table.get(id).and_then(|c| c.hosted.as_deref());
        if let Some(acknowledgment) = hosted.and_then(Hosted::acknowledgment) {
            self.counters.packets_made += 1;
            self.outbox.push_back(acknowledgment.own());
        }
    }

    /// Nobody waits for the server's answer any more.
    pub(super) fn end_call(&mut self, id: ConnectionId) {
        let leg = Leg::Called;
        self.table.remove_flow(FlowRef { id, leg });
        let hosted = self.table.get_mut(id).and_then(|c| c.hosted.as_deref_mut());
        if let Some(hosted) = hosted {
            hosted.drop_call();
        }
    }
}

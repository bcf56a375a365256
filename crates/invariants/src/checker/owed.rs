//! What one packet calls for, and whether it has been done when the next one comes; and what goes to ends that
//! nobody knows.

use flexcp_wire::TcpFlags;

use super::{Checker, Ends, Input};
use crate::connection::Report;
use crate::packet::{Point, View};
use crate::{Rule, Violation};

/// What the packet in hand calls for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Owed {
    /// The SYN of a join: a SYN/ACK, on this subflow of this connection.
    SynAck(usize, usize),
    /// The proof of a join: an ACK.
    Ack(usize, usize),
    /// The answer of an aggregation server: a SYN/ACK to the end with TCP of this connection, or a RST.
    Reply(usize),
}

impl Checker {
    /// The next input or timer comes: what the one before has called for has been done, or never will be.
    pub(super) fn settle(&mut self) {
        let Some(owed) = self.input.owed.take() else {
            return;
        };
        let (Owed::SynAck(id, _) | Owed::Ack(id, _) | Owed::Reply(id)) = owed;
        let time = self.input.time;
        let Some(connection) = self.connections.get(id) else {
            return;
        };
        let mut report = Report {
            found: &mut self.found,
            oracle: None,
            exact_echo: false,
            time,
            bounds: self.options.bounds,
        };
        match owed {
            Owed::SynAck(_, index) => connection.judge_refusal(index, &mut report),
            Owed::Ack(_, index) => connection.judge_proof(index, &mut report),
            Owed::Reply(_) => connection.judge_no_reply(&mut report),
        }
        let client = Some(connection.client);
        for (rule, text) in std::mem::take(&mut self.found) {
            self.keep(Violation {
                time,
                rule,
                point: Point::FromClient,
                client,
                text,
            });
        }
    }

    /// A packet to ends of no connection answers one from there, or is that one, passed on.
    pub(super) fn judge_stranger(&mut self, packet: &View<'_>, ends: Ends) {
        if self.options.bounds.is_none() || self.options.hostile || !self.options.causal {
            return;
        }
        // What a box gets for none of its connections is its host's.
        let own = self.options.asks && self.input.ends == Some((ends.1, ends.0));
        let same = self.input.ends == Some(ends) || own;
        let refuses = packet.has(TcpFlags::RST) && packet.payload_len == 0;
        let passes = packet.payload_len == self.input.payload;
        if !(same && (refuses || passes)) {
            let (from, to) = (packet.source(), packet.destination());
            let text = format!("a packet from {from} to {to}, which have no connection");
            self.found.push((Rule::Translation, text));
        }
    }
}

impl Input {
    /// The packet goes to the server of this connection.
    pub(super) fn reply(&mut self, packet: &View<'_>, id: usize) {
        let tells = packet.tcp.flags.intersects(TcpFlags::SYN | TcpFlags::RST);
        if tells && self.owed == Some(Owed::Reply(id)) {
            self.owed = None;
        }
    }

    /// The packet goes to a client on this subflow.
    pub(super) fn pay(&mut self, packet: &View<'_>, id: usize, index: usize) {
        let paid = match self.owed {
            Some(Owed::SynAck(..)) => packet.has(TcpFlags::SYN),
            Some(Owed::Ack(..)) => !packet.has(TcpFlags::RST),
            Some(Owed::Reply(_)) | None => return,
        };
        let here = [Owed::SynAck(id, index), Owed::Ack(id, index)];
        if paid && self.owed.is_some_and(|owed| here.contains(&owed)) {
            self.owed = None;
        }
    }
}

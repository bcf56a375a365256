//! Ends with TCP that open, and what the proxy asks of the others for them.

use flexcp_testkit::keys;
use flexcp_wire::{MpJoin, TcpFlags};

use super::{Checker, Ends};
use crate::Rule;
use crate::asking::Offer;
use crate::connection::{Connection, Report};
use crate::packet::View;
use crate::subflow::Subflow;

impl Checker {
    /// The SYN of an end with TCP: what comes of it the proxy will show.
    pub(super) fn note_offer(&mut self, ends: Ends, packet: &View<'_>) {
        self.input.offer = Some((ends, Offer::new(packet)));
    }

    /// A SYN of the proxy's towards the MPTCP side: of a connection, of a join, or one of them again; or the end's own, which
    /// passes.
    pub(super) fn syn_to_client(&mut self, time: u64, ends: Ends, packet: &View<'_>) {
        let known = self.flows.get(&ends).is_some_and(|&(id, index)| {
            let connection = &self.connections[id];
            connection.subflows[index].isn_proxy == Some(packet.tcp.seq)
        });
        if let Some(MpJoin::Syn { token, .. }) = packet.options.join {
            if !known {
                self.join_to_client(time, ends, token, packet);
            }
            return;
        }
        let Some((from, offer)) = self.input.offer else {
            let text = "a SYN that no end has asked for".into();
            self.found.push((Rule::Translation, text));
            return;
        };
        if ends.1 == from.1 {
            let crowded = self.options.bounds.is_none_or(|bounds| bounds.turns_away());
            if !offer.passes && !crowded {
                let text = "a SYN that could ask for MPTCP passes as it is".into();
                self.found.push((Rule::Plain, text));
            }
            return;
        }
        if known {
            return;
        }
        let mut connection = Connection::new(time, Subflow::asked(packet));
        connection.note_offer(offer);
        connection.course.told = self.options.told.then_some(0);
        connection.server = Some(from);
        self.connections.push(connection);
        let id = self.connections.len() - 1;
        self.flows.insert(ends, (id, 0));
        self.servers.insert(from, id);
        self.last = [None; 2];
    }

    /// A client's SYN/ACK may bring the key that joins of the proxy's are known by.
    pub(super) fn learn_token(&mut self, id: usize, packet: &View<'_>) {
        let asks = self.options.asks && packet.has(TcpFlags::SYN);
        if let Some(key) = self.connections[id].client_key.filter(|_| asks) {
            self.tokens.insert(keys::token(key), id);
        }
    }

    fn join_to_client(&mut self, time: u64, ends: Ends, token: u32, packet: &View<'_>) {
        let Some(&id) = self.tokens.get(&token) else {
            let text = "a join with a token that no end has told".into();
            self.found.push((Rule::Join, text));
            return;
        };
        let of_uplink = |(known, found): (&Ends, &(usize, usize))| {
            (found.0 == id && known.1.ip() == ends.1.ip()).then_some(found.1)
        };
        let before: Vec<usize> = self.flows.iter().filter_map(of_uplink).collect();
        let connection = &mut self.connections[id];
        let mut report = Report {
            found: &mut self.found,
            oracle: None,
            exact_echo: false,
            time,
            bounds: self.options.bounds,
        };
        for index in before {
            let asked = connection.subflows[index].asked_at();
            connection.judge_join_again(index, asked, &mut report);
        }
        connection.note_join();
        connection.subflows.push(Subflow::asked(packet));
        let index = connection.subflows.len() - 1;
        connection.note_answered(time, index);
        self.flows.insert(ends, (id, index));
        self.last = [None; 2];
    }
}

//! Clients that name their server, and which connection the SYN to a server is of.

use std::net::SocketAddr;

use super::{Checker, Ends};
use crate::Preamble;
use crate::connection::Connection;
use crate::packet::{Point, View};

/// Payload that the proxy sends of its own to the ends of a connection with a preamble: an answer, and what a SYN carried.
const OF_ITS_OWN: u64 = 4096;

impl Checker {
    /// Clients that connect there name their server in such a preamble. Call it before the first of them does.
    pub fn expect_preambles(&mut self, listen: SocketAddr, preamble: Preamble) {
        self.explicit.insert(listen, preamble);
    }

    /// Payload that may go there without any having come.
    pub(super) fn owes_of_its_own(&mut self, point: Point, ends: Ends) -> u64 {
        let found = self.find(point, ends);
        let explicit = found.is_some_and(|(id, _)| self.connections[id].front.is_some());
        let errand = point == Point::ToClient && self.asked.errands.contains_key(&ends.0);
        if explicit || errand { OF_ITS_OWN } else { 0 }
    }

    /// A SYN towards the server belongs to the client's with the same number, or to one that has named this server and has none:
    /// its number is judged then.
    pub(super) fn syn_to_server(&mut self, ends: Ends, packet: &View<'_>) {
        let open = |connection: &Connection| {
            !connection.server_answered || connection.server == Some(ends)
        };
        let same = |connection: &Connection| {
            open(connection) && connection.isn_to_server() == Some(packet.tcp.seq)
        };
        let named = |connection: &Connection| {
            let names = |front: &crate::front::Front| front.names(ends.1);
            let free = connection.server.is_none_or(|known| known == ends);
            open(connection) && free && connection.front.as_ref().is_some_and(names)
        };
        let found = self.connections.iter().rposition(same);
        let found = found.or_else(|| self.connections.iter().rposition(named));
        let Some(id) = found else {
            return;
        };
        let connection = &mut self.connections[id];
        if connection.server != Some(ends) {
            if let Some(old) = connection.server.replace(ends) {
                self.servers.remove(&old);
            }
            self.servers.insert(ends, id);
            self.last = [None; 2];
        }
    }
}

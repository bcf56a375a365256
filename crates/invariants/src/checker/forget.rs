//! Connections that are over for good.

use std::net::SocketAddr;

use super::Checker;
use crate::connection::Connection;

/// A connection without a packet for so long is forgotten, in microseconds.
const FORGET: u64 = 4 * 3600 * 1_000_000;

impl Checker {
    /// Forgets connections that have been silent for long.
    pub(super) fn sweep(&mut self, now: u64) {
        self.forget(|connection| now.saturating_sub(connection.last_packet) > FORGET);
        self.asked.forget(|seen| now.saturating_sub(seen) > FORGET);
    }

    /// The proxy has let go of connections; it still has those that `keeps` names, each by its client's first
    /// address.
    pub fn retain(&mut self, mut keeps: impl FnMut(SocketAddr) -> bool) {
        self.forget(|connection| !keeps(connection.client));
    }

    fn forget(&mut self, mut old: impl FnMut(&Connection) -> bool) {
        if !self.connections.iter().any(&mut old) {
            return;
        }
        let mut moved = vec![None; self.connections.len()];
        let mut kept = Vec::with_capacity(self.connections.len());
        for (id, connection) in self.connections.drain(..).enumerate() {
            if !old(&connection) {
                moved[id] = Some(kept.len());
                kept.push(connection);
            }
        }
        self.connections = kept;
        self.last = [None; 2];
        let rename = |id: &mut usize| moved[*id].map(|new| *id = new).is_some();
        self.flows.retain(|_, (id, _)| rename(id));
        self.servers.retain(|_, id| rename(id));
        self.tokens.retain(|_, id| rename(id));
    }
}

//! The queue of connections whose handshake is not complete, oldest first.
//!
//! The links live in the connections, so that one leaves from the middle in constant time: under a flood
//! nearly all that enter never complete, and those that do must not have to be searched for.

use super::{ConnectionId, Connections};
use crate::connection::{HalfOpenLinks, NOBODY};

/// Both ends of the queue.
#[derive(Debug)]
pub(crate) struct HalfOpenQueue {
    oldest: ConnectionId,
    youngest: ConnectionId,
    len: usize,
}

impl HalfOpenQueue {
    pub(crate) const fn new() -> Self {
        Self {
            oldest: NOBODY,
            youngest: NOBODY,
            len: 0,
        }
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn oldest(&self) -> Option<ConnectionId> {
        (self.oldest != NOBODY).then_some(self.oldest)
    }

    /// All of them, oldest first.
    pub(crate) fn iter<'a>(
        &self,
        connections: &'a Connections,
    ) -> impl Iterator<Item = ConnectionId> + 'a {
        core::iter::successors(self.oldest(), |&id| {
            let younger = connections.get(id as usize)?.links.half_open.younger;
            (younger != NOBODY).then_some(younger)
        })
    }

    /// Enters or leaves the queue as the connection's phase asks for. `true`: it has left.
    pub(crate) fn update(&mut self, connections: &mut Connections, id: ConnectionId) -> bool {
        let Some(connection) = connections.get(id as usize) else {
            return false;
        };
        let change = (connection.links.half_open.queued, connection.is_half_open());
        match change {
            (false, true) => self.push(connections, id),
            (true, false) => self.remove(connections, id),
            _ => {}
        }
        change == (true, false)
    }

    fn push(&mut self, connections: &mut Connections, id: ConnectionId) {
        let before = self.youngest;
        if let Some(links) = links(connections, id) {
            *links = HalfOpenLinks {
                queued: true,
                older: before,
                younger: NOBODY,
            };
        }
        match links(connections, before) {
            Some(links) => links.younger = id,
            None => self.oldest = id,
        }
        self.youngest = id;
        self.len += 1;
    }

    /// Takes the connection out, if it is in.
    pub(crate) fn remove(&mut self, connections: &mut Connections, id: ConnectionId) {
        let Some(place) = links(connections, id).map(core::mem::take) else {
            return;
        };
        if !place.queued {
            return;
        }
        match links(connections, place.older) {
            Some(links) => links.younger = place.younger,
            None => self.oldest = place.younger,
        }
        match links(connections, place.younger) {
            Some(links) => links.older = place.older,
            None => self.youngest = place.older,
        }
        self.len -= 1;
    }
}

fn links(connections: &mut Connections, id: ConnectionId) -> Option<&mut HalfOpenLinks> {
    connections
        .get_mut(id as usize)
        .map(|connection| &mut connection.links.half_open)
}

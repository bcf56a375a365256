//! The tables: connections, flows to connections, tokens to connections, and the timer queue. One
//! worker's; nothing is shared.

mod half_open;

use alloc::boxed::Box;
use alloc::collections::{BinaryHeap, VecDeque};
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::hash::Hasher;
use core::net::{IpAddr, SocketAddr};

use flexcp_placement::FlowEvent;
use flexcp_wire::Ends;
use hashbrown::HashTable;
use siphasher::sip::SipHasher13;
use slab::Slab;

use self::half_open::HalfOpenQueue;
use crate::connection::Connection;
use crate::counters::Gauges;
pub(crate) use crate::handle::ConnectionId;
use crate::handle::SubflowIndex;
use crate::hosted::is_responder;
use crate::time::Instant;

/// So many entries of the timer queue may mean nothing, beside one for every four connections.
const OVERTAKEN_TIMERS: usize = 1024;

/// Handshakes that are looked at to find a certain one.
const HALF_OPEN_SEARCH: usize = 64;

/// Which packets of a connection a flow holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Leg {
    /// From the client, on this subflow.
    Subflow(SubflowIndex),
    /// From the server.
    Server,
    /// From a server that has been called, while a responder stands in its place.
    Called,
}

/// A connection and one of its flows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FlowRef {
    pub(crate) id: ConnectionId,
    pub(crate) leg: Leg,
}

/// The connections by their handles.
pub(crate) type Connections = Slab<Box<Connection>>;

/// One worker's tables.
#[derive(Debug)]
pub(crate) struct Table {
    /// Each in an allocation of its own: what many took for a while can be given back.
    connections: Connections,
    flows: HashTable<FlowRef>,
    tokens: HashTable<ConnectionId>,
    timers: BinaryHeap<Reverse<(Instant, ConnectionId)>>,
    /// Entries of the queue whose connection is gone or has an earlier one.
    overtaken: usize,
    /// Keys of the flow hash: without them nobody can aim at one bucket.
    hash_keys: (u64, u64),
    half_open: HalfOpenQueue,
    /// Flows that have come and gone, the first first; `None`: nobody wants to know.
    events: Option<VecDeque<FlowEvent>>,
}

impl Table {
    pub(crate) fn new(hash_keys: (u64, u64)) -> Self {
        Self {
            connections: Slab::new(),
            flows: HashTable::new(),
            tokens: HashTable::new(),
            timers: BinaryHeap::new(),
            overtaken: 0,
            hash_keys,
            half_open: HalfOpenQueue::new(),
            events: None,
        }
    }

    /// From now on notes the flows that come and go. What is noted must be fetched.
    pub(crate) fn watch(&mut self) {
        self.events.get_or_insert_default();
    }

    /// Whether it does.
    pub(crate) const fn is_watched(&self) -> bool {
        self.events.is_some()
    }

    /// The first that has come or gone since.
    pub(crate) fn pop_event(&mut self) -> Option<FlowEvent> {
        self.events.as_mut()?.pop_front()
    }

    fn note(&mut self, event: FlowEvent) {
        let (FlowEvent::Added(ends) | FlowEvent::Removed(ends)) = event;
        // No carrier brings what a responder sends.
        let outside = !is_responder(ends.from.ip());
        if let Some(events) = self.events.as_mut().filter(|_| outside) {
            events.push_back(event);
        }
    }

    /// Handles of connections are below it.
    pub(crate) fn places(&self) -> usize {
        self.connections.capacity()
    }

    /// The connection that has this place; a connection keeps its place for as long as it is in the table.
    pub(crate) fn at(&self, place: usize) -> Option<&Connection> {
        self.connections.get(place).map(|connection| &**connection)
    }

    /// Connections in the table.
    pub(crate) fn len(&self) -> usize {
        self.connections.len()
    }

    /// What is held now: each number counted in its own table.
    pub(crate) fn gauges(&self) -> Gauges {
        let count = |len: usize| u64::try_from(len).unwrap_or(u64::MAX);
        Gauges {
            connections: count(self.connections.len()),
            flows: count(self.flows.len()),
            tokens: count(self.tokens.len()),
            half_open: count(self.half_open.len()),
            timers: count(self.timers.len().saturating_sub(self.overtaken)),
            ..Gauges::default()
        }
    }

    /// Connections whose handshake is not complete.
    pub(crate) const fn half_open(&self) -> usize {
        self.half_open.len()
    }

    /// The one of them that came first.
    pub(crate) fn oldest_half_open(&self) -> Option<ConnectionId> {
        self.half_open.oldest()
    }

    /// The first of them that `fits`, if it is not far behind the first of all.
    pub(crate) fn oldest_half_open_where(
        &self,
        fits: impl Fn(&Connection) -> bool,
    ) -> Option<ConnectionId> {
        let ids = self
            .half_open
            .iter(&self.connections)
            .take(HALF_OPEN_SEARCH);
        ids.into_iter()
            .find(|&id| self.connections.get(id as usize).is_some_and(|c| fits(c)))
    }

    /// Counts the connection among them or not, as its phase says. `true`: it is one of them no more.
    pub(crate) fn update_half_open(&mut self, id: ConnectionId) -> bool {
        self.half_open.update(&mut self.connections, id)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Connection> {
        self.connections.iter().map(|(_, connection)| &**connection)
    }

    /// Handles of the connections that `fit`.
    pub(crate) fn ids_where(&self, fit: impl Fn(&Connection) -> bool) -> Vec<ConnectionId> {
        let fitting = self.connections.iter().filter(|(_, c)| fit(c));
        fitting
            .filter_map(|(key, _)| u32::try_from(key).ok())
            .collect()
    }

    pub(crate) fn get(&self, id: ConnectionId) -> Option<&Connection> {
        self.connections.get(id as usize).map(|c| &**c)
    }

    pub(crate) fn get_mut(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        self.connections.get_mut(id as usize).map(|c| &mut **c)
    }

    /// The connection and flow that a packet with these ends belongs to.
    pub(crate) fn find(&self, ends: Ends) -> Option<FlowRef> {
        let hash = self.hash(ends);
        self.flows
            .find(hash, |flow| self.ends_of(*flow) == Some(ends))
            .copied()
    }

    /// The connection whose token FlexCP gave this value.
    pub(crate) fn find_token(&self, token: u32) -> Option<ConnectionId> {
        let has = |&id: &ConnectionId| {
            self.connections
                .get(id as usize)
                .is_some_and(|c| c.mptcp.key.token == token)
        };
        self.tokens.find(token_hash(token), has).copied()
    }

    /// Adds a connection with its initial subflow and server flow.
    pub(crate) fn insert(&mut self, connection: Connection) -> ConnectionId {
        let token = connection.mptcp.key.token;
        let initial = connection.subflow(0).flow();
        let server = connection.server_flow();
        // The configuration allows no more than 2^32 - 1 connections, and each takes more than a kilobyte of memory.
        let id =
            u32::try_from(self.connections.insert(Box::new(connection))).expect("fewer than 2^32");
        self.insert_flow(
            initial,
            FlowRef {
                id,
                leg: Leg::Subflow(0),
            },
        );
        self.insert_flow(
            server,
            FlowRef {
                id,
                leg: Leg::Server,
            },
        );
        let connections = &self.connections;
        self.tokens.insert_unique(token_hash(token), id, |&id| {
            connections
                .get(id as usize)
                .map_or(0, |c| token_hash(c.mptcp.key.token))
        });
        id
    }

    /// Adds a flow of a connection.
    pub(crate) fn insert_flow(&mut self, ends: Ends, flow: FlowRef) {
        let hash = self.hash(ends);
        let (connections, keys) = (&self.connections, self.hash_keys);
        self.flows.insert_unique(hash, flow, |&flow| {
            ends_in(connections, flow).map_or(0, |ends| hash_ends(keys, ends))
        });
        self.note(FlowEvent::Added(ends));
    }

    /// Removes a flow. A subflow that is over may have its ends still when another one of its connection has
    /// come from there: that one's entry stays.
    pub(crate) fn remove_flow(&mut self, flow: FlowRef) {
        let Some(ends) = self.ends_of(flow) else {
            return;
        };
        let hash = self.hash(ends);
        if let Ok(entry) = self.flows.find_entry(hash, |known| *known == flow) {
            entry.remove();
            self.note(FlowEvent::Removed(ends));
        }
    }

    /// Removes a connection and all that leads to it.
    pub(crate) fn remove(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.get(id as usize) else {
            return;
        };
        let subflows = connection.indices().map(Leg::Subflow);
        let token = connection.mptcp.key.token;
        for leg in subflows.chain([Leg::Server, Leg::Called]) {
            self.remove_flow(FlowRef { id, leg });
        }
        if let Ok(entry) = self
            .tokens
            .find_entry(token_hash(token), |&other| other == id)
        {
            entry.remove();
        }
        self.half_open.remove(&mut self.connections, id);
        let connection = self.connections.remove(id as usize);
        self.shrink();
        self.overtaken += usize::from(connection.links.armed.is_some());
        debug_assert_eq!(self.tokens.len(), self.connections.len(), "a token each");
    }

    /// Gives back what many more connections than there are now have taken.
    fn shrink(&mut self) {
        let (connections, keys) = (&self.connections, self.hash_keys);
        if is_far_too_large(self.flows.capacity(), self.flows.len()) {
            self.flows.shrink_to(self.flows.len() * 2, |&flow| {
                ends_in(connections, flow).map_or(0, |ends| hash_ends(keys, ends))
            });
        }
        if is_far_too_large(self.tokens.capacity(), self.tokens.len()) {
            self.tokens.shrink_to(self.tokens.len() * 2, |&id| {
                let connection = connections.get(id as usize);
                connection.map_or(0, |c| token_hash(c.mptcp.key.token))
            });
        }
        if is_far_too_large(self.timers.capacity(), self.timers.len()) {
            self.timers.shrink_to(self.timers.len() * 2);
        }
    }

    /// Puts a connection in the timer queue, unless it stands there for an earlier time already.
    pub(crate) fn arm(&mut self, id: ConnectionId, deadline: Instant) {
        let Some(connection) = self.connections.get_mut(id as usize) else {
            return;
        };
        if connection.links.armed.is_none_or(|armed| deadline < armed) {
            self.overtaken += usize::from(connection.links.armed.is_some());
            connection.links.armed = Some(deadline);
            self.timers.push(Reverse((deadline, id)));
            self.tidy_timers();
        }
    }

    /// Drops entries that mean nothing any more when they are the most: under a flood of connections that
    /// come and go they would stand there for a minute each.
    fn tidy_timers(&mut self) {
        if self.overtaken > self.connections.len() / 4 + OVERTAKEN_TIMERS {
            let connections = &self.connections;
            let counts = |at: Instant, id: ConnectionId| {
                let connection = connections.get(id as usize);
                connection.is_some_and(|connection| connection.links.armed == Some(at))
            };
            self.timers.retain(|&Reverse((at, id))| counts(at, id));
            self.overtaken = 0;
        }
    }

    /// Entries of the timer queue, those that were overtaken included.
    #[cfg(test)]
    pub(crate) fn timer_entries(&self) -> usize {
        self.timers.len()
    }

    /// What flows, tokens and timers have room for.
    #[cfg(test)]
    pub(crate) fn capacities(&self) -> [usize; 3] {
        [
            self.flows.capacity(),
            self.tokens.capacity(),
            self.timers.capacity(),
        ]
    }

    /// When the next connection wants to be looked at.
    pub(crate) fn next_timer(&self) -> Option<Instant> {
        self.timers.peek().map(|Reverse((at, _))| *at)
    }

    /// A connection whose time has come; entries that were overtaken are dropped on the way.
    pub(crate) fn pop_timer(&mut self, now: Instant) -> Option<ConnectionId> {
        while let Some(&Reverse((at, id))) = self.timers.peek() {
            if at > now {
                return None;
            }
            self.timers.pop();
            if let Some(connection) = self.connections.get_mut(id as usize)
                && connection.links.armed == Some(at)
            {
                connection.links.armed = None;
                return Some(id);
            }
            self.overtaken = self.overtaken.saturating_sub(1);
        }
        None
    }

    fn ends_of(&self, flow: FlowRef) -> Option<Ends> {
        ends_in(&self.connections, flow)
    }

    fn hash(&self, ends: Ends) -> u64 {
        hash_ends(self.hash_keys, ends)
    }
}

fn ends_in(connections: &Connections, flow: FlowRef) -> Option<Ends> {
    let connection = connections.get(flow.id as usize)?;
    match flow.leg {
        Leg::Server => Some(connection.server_flow()),
        Leg::Called => {
            let hosted = connection.hosted.as_deref()?;
            Some(hosted.call()?.backend.flow())
        }
        Leg::Subflow(index) => connection
            .mptcp
            .subflows
            .get(usize::from(index))
            .map(|s| s.flow()),
    }
}

/// Tokens are as good as random; this brings all their bits to where the table looks.
const fn token_hash(token: u32) -> u64 {
    (token as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// A table that is worth making smaller: that costs as much as it holds, and happens at most once for every seven
/// entries that leave for each that stays.
const fn is_far_too_large(capacity: usize, len: usize) -> bool {
    capacity > 4096 && len < capacity / 8
}

fn hash_ends(keys: (u64, u64), ends: Ends) -> u64 {
    let mut hasher = SipHasher13::new_with_keys(keys.0, keys.1);
    let mut bytes = [0; 36];
    write_addr(&mut bytes[..18], ends.from);
    write_addr(&mut bytes[18..], ends.to);
    hasher.write(&bytes);
    hasher.finish()
}

fn write_addr(out: &mut [u8], addr: SocketAddr) {
    match addr.ip() {
        IpAddr::V4(ip) => out[..4].copy_from_slice(&ip.octets()),
        IpAddr::V6(ip) => out[..16].copy_from_slice(&ip.octets()),
    }
    out[16..18].copy_from_slice(&addr.port().to_be_bytes());
}

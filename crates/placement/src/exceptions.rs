//! Flows that are not where their ends say. Joined subflows are where their connection is; where a program
//! distributes packets, each worker claims those of its own in the program's map, and nobody has to hand them over.

use alloc::boxed::Box;
use core::fmt::Debug;

use flexcp_wire::Ends;
use hashbrown::HashTable;

use crate::rules::{Pair, Rules};

/// A flow that has come to a worker or has left it. The ends are those of packets in one direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlowEvent {
    /// Packets with these ends belong to a connection here from now on.
    Added(Ends),
    /// They do no more.
    Removed(Ends),
}

/// The map that whoever distributes packets reads, as one worker uses it.
pub trait FlowMap: Debug + Send {
    /// The flow's packets go to this worker from now on. `false`: the map does not take the flow.
    fn claim(&mut self, flow: Pair) -> bool;
    /// They go where their ends say, unless another worker has claimed them since.
    fn give_up(&mut self, flow: Pair);
}

/// What one worker has in the map.
#[derive(Debug)]
pub struct Exceptions {
    map: Box<dyn FlowMap>,
    claims: HashTable<Claim>,
    /// So many claims the worker may have.
    room: usize,
    /// Flows that the map did not take.
    refused: u64,
}

/// A flow in the map: it stays while packets of either direction belong here.
#[derive(Clone, Copy, Debug)]
struct Claim {
    flow: Pair,
    /// Packets from the lower end belong here.
    from_low: bool,
    /// Packets from the higher end do.
    from_high: bool,
}

impl Exceptions {
    /// None yet, and `room` for so many.
    #[must_use]
    pub fn new(map: Box<dyn FlowMap>, room: usize) -> Self {
        Self {
            map,
            claims: HashTable::new(),
            room,
            refused: 0,
        }
    }

    /// Whether one more can be claimed.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.claims.len() < self.room
    }

    /// Flows that are claimed.
    #[must_use]
    pub fn claimed(&self) -> usize {
        self.claims.len()
    }

    /// Flows that came and did not get into the map; other workers hand over their packets.
    #[must_use]
    pub const fn refused(&self) -> u64 {
        self.refused
    }

    /// Brings the map up to what has happened at `worker`.
    pub(crate) fn note(&mut self, rules: &Rules, worker: u16, event: FlowEvent) {
        match event {
            FlowEvent::Added(ends) if rules.of_ends(ends) != worker => self.add(rules, ends),
            FlowEvent::Added(_) => {}
            FlowEvent::Removed(ends) => self.remove(rules, ends),
        }
    }

    fn add(&mut self, rules: &Rules, ends: Ends) {
        let flow = Pair::of(ends);
        let hash = rules.hash(flow);
        if let Some(claim) = self.claims.find_mut(hash, |claim| claim.flow == flow) {
            claim.set(ends, true);
            // Another worker may have claimed the flow in between.
            let _ = self.map.claim(flow);
        } else if self.has_room() && self.map.claim(flow) {
            let mut claim = Claim {
                flow,
                from_low: false,
                from_high: false,
            };
            claim.set(ends, true);
            let hash_of = |claim: &Claim| rules.hash(claim.flow);
            self.claims.insert_unique(hash, claim, hash_of);
        } else {
            self.refused += 1;
        }
    }

    fn remove(&mut self, rules: &Rules, ends: Ends) {
        let flow = Pair::of(ends);
        let of_flow = |claim: &Claim| claim.flow == flow;
        let Ok(mut entry) = self.claims.find_entry(rules.hash(flow), of_flow) else {
            return;
        };
        entry.get_mut().set(ends, false);
        if entry.get().is_empty() {
            entry.remove();
            self.map.give_up(flow);
        }
    }
}

impl Claim {
    fn set(&mut self, ends: Ends, belongs_here: bool) {
        if ends.from < ends.to {
            self.from_low = belongs_here;
        } else {
            self.from_high = belongs_here;
        }
    }

    const fn is_empty(&self) -> bool {
        !self.from_low && !self.from_high
    }
}

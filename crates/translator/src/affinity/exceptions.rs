//! Flows that are not where their ends say. Joined subflows are where the connection is; where a program chooses
//! the queues, each worker notes those of its own in the program's map, and nobody has to hand them over.

use alloc::boxed::Box;
use core::fmt::Debug;

use hashbrown::HashTable;

use super::{Pair, Rules};
use crate::endpoint::Ends;
use crate::translator::Translator;

/// The program's map, as one worker uses it.
pub trait FlowMap: Debug + Send {
    /// The flow's packets go to this worker from now on. `false`: the map does not take it.
    fn claim(&mut self, flow: Pair) -> bool;
    /// They go where their ends say, unless another worker has claimed them since.
    fn give_up(&mut self, flow: Pair);
}

/// What one worker has in the map.
#[derive(Debug)]
pub struct Exceptions {
    map: Box<dyn FlowMap>,
    claimed: HashTable<Pair>,
    /// So many it may have.
    room: usize,
    /// Flows that the map did not take.
    refused: u64,
}

impl Exceptions {
    /// None yet, and `room` for so many.
    #[must_use]
    pub fn new(map: Box<dyn FlowMap>, room: usize) -> Self {
        Self {
            map,
            claimed: HashTable::new(),
            room,
            refused: 0,
        }
    }

    /// Whether one more can be claimed.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.claimed.len() < self.room
    }

    /// Flows that are claimed.
    #[must_use]
    pub fn claimed(&self) -> usize {
        self.claimed.len()
    }

    /// Flows that came and did not get into the map; others hand over their packets.
    #[must_use]
    pub const fn refused(&self) -> u64 {
        self.refused
    }

    /// Brings the map up to what has changed in the translator since the last time.
    pub(super) fn update(&mut self, rules: &Rules, worker: u16, translator: &mut Translator) {
        while let Some(ends) = translator.poll_moved() {
            let reversed = Ends {
                from: ends.to,
                to: ends.from,
            };
            let elsewhere =
                |ends| translator.table.find(ends).is_some() && rules.of_ends(ends) != worker;
            let wanted = elsewhere(ends) || elsewhere(reversed);
            self.set(rules, Pair::of(ends), wanted);
        }
    }

    fn set(&mut self, rules: &Rules, flow: Pair, wanted: bool) {
        let known = self.claimed.find_entry(rules.hash(flow), |c| *c == flow);
        match (known, wanted) {
            // Another worker may have claimed it in between.
            (Ok(_), true) => _ = self.map.claim(flow),
            (Ok(entry), false) => {
                entry.remove();
                self.map.give_up(flow);
            }
            (Err(_), true) => {
                if self.has_room() && self.map.claim(flow) {
                    let hash = |flow: &Pair| rules.hash(*flow);
                    self.claimed.insert_unique(rules.hash(flow), flow, hash);
                } else {
                    self.refused += 1;
                }
            }
            (Err(_), false) => {}
        }
    }
}

impl Translator {
    /// From now on notes which flows come and go, for [`Affinity::update`](super::Affinity::update); and a SYN on
    /// a flow that is here belongs here, as a program brings it.
    pub fn watch_flows(&mut self) {
        self.table.watch();
    }

    /// Ends of a flow that has come or gone.
    fn poll_moved(&mut self) -> Option<Ends> {
        self.table.pop_moved()
    }
}

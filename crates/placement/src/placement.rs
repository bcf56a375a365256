//! Finds the worker that owns a packet.

use flexcp_wire::Ends;

use crate::directory::Directory;
use crate::exceptions::{Exceptions, FlowEvent};
use crate::rules::{Pair, Rules};
use crate::subject::Subject;

/// What one worker knows of whose a packet is. Each worker has one, and none is shared.
#[derive(Debug)]
pub struct Placement {
    /// The number of this worker.
    worker: u16,
    rules: Rules,
    directory: Directory,
    /// What this worker has in the map of whoever distributes packets; `None`: there is no such map.
    exceptions: Option<Exceptions>,
}

/// Where a packet has to go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owner {
    /// This worker is its owner.
    This,
    /// To that worker, which is its owner.
    Worker(u16),
    /// To that worker, which knows its owner.
    Directory(u16),
}

impl Placement {
    /// For `worker`, of those that `rules` know, which has so many connections at most. The rules must be the same
    /// for all workers.
    #[must_use]
    pub fn new(worker: u16, rules: Rules, connections: usize) -> Self {
        Self {
            worker,
            rules,
            directory: Directory::new(connections),
            exceptions: None,
        }
    }

    /// From here on these rules name the owner of a packet; `workers` and `hash_keys` are as before. What they say of back
    /// ends, each worker has to know before any connects to them.
    pub fn set_rules(&mut self, rules: Rules) {
        self.rules = rules;
    }

    /// From now on a program distributes packets by the same rules and a map, in which this worker claims the flows
    /// that it has and whose ends name another.
    pub fn set_exceptions(&mut self, exceptions: Exceptions) {
        self.exceptions = Some(exceptions);
    }

    /// A flow has come to this worker or has left it. The events have to come in their order, and before anything is
    /// sent that calls forth packets of the flow.
    pub fn note(&mut self, event: FlowEvent) {
        if let Some(exceptions) = &mut self.exceptions {
            exceptions.note(&self.rules, self.worker, event);
        }
    }

    /// Flows that this worker has claimed in the map; 0 without one.
    #[must_use]
    pub fn claimed(&self) -> usize {
        self.exceptions.as_ref().map_or(0, Exceptions::claimed)
    }

    /// Flows that found no room in the map; `None`: there is no map.
    #[must_use]
    pub fn refused(&self) -> Option<u64> {
        self.exceptions.as_ref().map(Exceptions::refused)
    }

    /// Whose a packet with this subject is. A flow that this worker has is to be told by the worker first: here the
    /// flow goes by the rules and the directory alone.
    pub fn owner(&mut self, subject: Subject) -> Owner {
        if self.rules.workers <= 1 {
            return Owner::This;
        }
        match subject {
            Subject::Flow(ends) => self.owner_of_flow(ends),
            Subject::Opening(ends) => match self.rules.of_back_end(ends) {
                Some(worker) => self.named(worker),
                None => self.owner_of_syn(ends, None),
            },
            Subject::Joining { ends, token } => {
                let owner = self.rules.of_token(token);
                if owner == self.worker && self.claims() {
                    return Owner::This;
                }
                self.owner_of_syn(ends, Some(owner))
            }
        }
    }

    /// Whether a join that is taken here will be in the map: the directory need not know then.
    fn claims(&self) -> bool {
        self.exceptions.as_ref().is_some_and(Exceptions::has_room)
    }

    /// A SYN begins a flow anew, at `joined` if it joins a connection there.
    fn owner_of_syn(&mut self, ends: Ends, joined: Option<u16>) -> Owner {
        let hash = self.rules.hash(Pair::of(ends));
        let directory = self.rules.of_hash(hash);
        if directory != self.worker {
            return Owner::Directory(directory);
        }
        self.directory.forget(ends, hash);
        let Some(worker) = joined else {
            return Owner::This;
        };
        self.directory.remember(ends, hash, worker);
        self.named(worker)
    }

    fn owner_of_flow(&mut self, ends: Ends) -> Owner {
        if let Some(worker) = self.rules.of_back_end(ends) {
            return self.named(worker);
        }
        let hash = self.rules.hash(Pair::of(ends));
        let directory = self.rules.of_hash(hash);
        if directory != self.worker {
            return Owner::Directory(directory);
        }
        let owner = self.directory.evict(ends, hash);
        owner.map_or(Owner::This, |worker| self.named(worker))
    }

    fn named(&self, worker: u16) -> Owner {
        if worker == self.worker {
            Owner::This
        } else {
            Owner::Worker(worker)
        }
    }

    /// Entries of the directory's two halves.
    #[cfg(test)]
    pub(crate) fn remembered(&self) -> [usize; 2] {
        self.directory.lens()
    }
}

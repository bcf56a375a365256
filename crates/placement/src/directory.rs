//! The directory: joined subflows whose hash names a worker, and which worker has them. What nobody asks for is
//! forgotten first.

use flexcp_wire::Ends;
use hashbrown::HashTable;

/// Joined subflows that a directory remembers at most, twice.
const REMEMBERED: usize = 1 << 16;

/// One worker's.
#[derive(Debug)]
pub(crate) struct Directory {
    /// Those asked for of late, and those before.
    joined: [HashTable<Joined>; 2],
    /// So many are remembered in each.
    capacity: usize,
}

/// A joined subflow and who has it.
#[derive(Clone, Copy, Debug)]
struct Joined {
    ends: Ends,
    hash: u64,
    worker: u16,
}

impl Directory {
    /// For a worker that has so many connections at most.
    pub(crate) fn new(connections: usize) -> Self {
        Self {
            joined: [HashTable::new(), HashTable::new()],
            capacity: connections.min(REMEMBERED),
        }
    }

    /// The flow with these ends, whose hash is `hash`, is at `worker`.
    pub(crate) fn remember(&mut self, ends: Ends, hash: u64, worker: u16) {
        self.insert(Joined { ends, hash, worker });
    }

    /// Which worker has the flow; `None`: no join of it has come by, or too many since.
    pub(crate) fn evict(&mut self, ends: Ends, hash: u64) -> Option<u16> {
        let [recent, before] = &mut self.joined;
        if let Some(joined) = recent.find(hash, |joined| joined.ends == ends) {
            return Some(joined.worker);
        }
        let entry = before.find_entry(hash, |joined| joined.ends == ends);
        let joined = entry.ok()?.remove().0;
        self.insert(joined);
        Some(joined.worker)
    }

    /// The ends are used anew.
    pub(crate) fn forget(&mut self, ends: Ends, hash: u64) {
        for joined in &mut self.joined {
            if let Ok(entry) = joined.find_entry(hash, |joined| joined.ends == ends) {
                entry.remove();
            }
        }
    }

    fn insert(&mut self, joined: Joined) {
        if self.joined[0].len() >= self.capacity {
            // Those that nobody has asked for since the last time are forgotten.
            self.joined.swap(0, 1);
            self.joined[0].clear();
        }
        self.joined[0].insert_unique(joined.hash, joined, |joined| joined.hash);
    }

    /// Entries of the two halves.
    #[cfg(test)]
    pub(crate) fn lens(&self) -> [usize; 2] {
        [self.joined[0].len(), self.joined[1].len()]
    }
}

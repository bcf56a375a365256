//! Memory of connections that are over goes back to the system, by a thread of its own: it takes the allocator a while
//! to look at all that was freed.

use std::sync::mpsc::{self, SyncSender};
use std::{io, thread};

/// So many connections fewer, at least half of those there were, and it is worth while.
const WORTH: u64 = 1024;

/// A worker's eye on how many connections it has.
#[derive(Debug)]
pub(super) struct Memory {
    /// The most since memory was last given back.
    most: u64,
    cleaner: SyncSender<()>,
}

impl Memory {
    /// One for each worker, and a thread for all of them, which ends with the last.
    pub(super) fn watch(workers: usize) -> io::Result<Vec<Self>> {
        let (cleaner, asked) = mpsc::sync_channel(1);
        thread::Builder::new()
            .name("memory".into())
            .spawn(move || {
                // The thread begins before the programs are loaded, and loads none.
                let _ = flexcp_io::renounce_loading();
                while asked.recv().is_ok() {
                    let _ = flexcp_io::give_memory_back();
                }
            })?;
        let watch = |_| Self {
            most: 0,
            cleaner: cleaner.clone(),
        };
        Ok((0..workers).map(watch).collect())
    }

    /// The worker has so many connections now.
    pub(super) fn note(&mut self, connections: u64) {
        self.most = self.most.max(connections);
        if self.most - connections >= WORTH && connections <= self.most / 2 {
            self.most = connections;
            // When it is asked already, it will see this, too.
            let _ = self.cleaner.try_send(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory() -> (Memory, mpsc::Receiver<()>) {
        let (cleaner, asked) = mpsc::sync_channel(1);
        (Memory { most: 0, cleaner }, asked)
    }

    #[test]
    fn asks_when_half_of_many_are_over() {
        let (mut memory, asked) = memory();
        for connections in (0..3000).chain((1501..3000).rev()) {
            memory.note(connections);
        }
        assert!(asked.try_recv().is_err(), "more than half are there");
        memory.note(1499);
        assert!(asked.try_recv().is_ok());
        memory.note(1498);
        assert!(asked.try_recv().is_err(), "asked just now");
        memory.note(475);
        assert!(asked.try_recv().is_ok(), "half again");
    }

    #[test]
    fn does_not_ask_for_few() {
        let (mut memory, asked) = memory();
        for connections in [1023, 0, 1000, 0, 1023, 0] {
            memory.note(connections);
        }
        assert!(asked.try_recv().is_err());
    }
}

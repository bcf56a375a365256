//! A fast path that translates nothing: it keeps what is installed in it and gives it back as it was.

use flexcp_translator::{FastPath, FlowEntry, Installed};

/// A place for each installed connection; whether it is there, and whether the slot is taken.
#[derive(Default, Debug)]
pub(crate) struct Shelf {
    places: Vec<(FlowEntry, bool, bool)>,
}

impl FastPath for Shelf {
    fn install(&mut self, slot: Option<u32>, entry: &FlowEntry, _passed: Option<u32>) -> Installed {
        let free = self.places.iter().position(|&(_, _, taken)| !taken);
        let slot = match slot {
            Some(slot) => slot as usize,
            None => free.unwrap_or(self.places.len()),
        };
        if slot == self.places.len() {
            self.places.push((*entry, true, true));
        } else {
            assert!(!self.places[slot].1, "installed twice");
            self.places[slot] = (*entry, true, true);
        }
        Installed::Slot(slot as u32)
    }

    fn evict(&mut self, slot: u32) -> FlowEntry {
        let (entry, installed, taken) = &mut self.places[slot as usize];
        assert!(*installed && *taken, "evicted without being installed");
        *installed = false;
        *entry
    }

    fn peek(&self, slot: u32) -> FlowEntry {
        let (entry, installed, taken) = &self.places[slot as usize];
        assert!(*installed && *taken, "looked at without being installed");
        *entry
    }

    fn peek_all(&self, each: &mut dyn FnMut(&FlowEntry)) {
        let installed = self.places.iter().filter(|(_, installed, _)| *installed);
        installed.for_each(|(entry, ..)| each(entry));
    }

    fn release(&mut self, slot: u32) {
        let (_, installed, taken) = &mut self.places[slot as usize];
        assert!(!*installed && *taken, "released while installed");
        *taken = false;
    }

    fn held(&self) -> u32 {
        self.places.iter().filter(|(_, _, taken)| *taken).count() as u32
    }
}

//! A fast path that translates nothing: it keeps what it is given and gives it back as it was.

use flexcp_testkit::Shelf as Slots;
use flexcp_translator::{FastPath, FlowEntry, Installed};

/// A slot for each connection that it was given.
#[derive(Default, Debug)]
pub(crate) struct Shelf(Slots<FlowEntry>);

impl FastPath for Shelf {
    fn install(&mut self, slot: Option<u32>, entry: &FlowEntry, _passed: Option<u32>) -> Installed {
        Installed::Slot(self.0.put(slot, *entry))
    }

    fn evict(&mut self, slot: u32) -> FlowEntry {
        self.0.take(slot)
    }

    fn peek(&self, slot: u32) -> FlowEntry {
        self.0.peek(slot)
    }

    fn peek_all(&self, each: &mut dyn FnMut(&FlowEntry)) {
        self.0.entries().for_each(each);
    }

    fn release(&mut self, slot: u32) {
        self.0.release(slot);
    }

    fn held(&self) -> u32 {
        self.0.held()
    }
}

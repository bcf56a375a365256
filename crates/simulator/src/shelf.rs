//! A fast path that translates nothing: it keeps what it is lent and gives it back as it was.

use flexcp_translator::{FastPath, Lease, Lent};

/// A place for each lent connection; whether it is there, and whether the slot is taken.
#[derive(Default, Debug)]
pub(crate) struct Shelf {
    places: Vec<(Lease, bool, bool)>,
}

impl FastPath for Shelf {
    fn lend(&mut self, slot: Option<u32>, lease: &Lease, _passed: Option<u32>) -> Lent {
        let free = self.places.iter().position(|&(_, _, taken)| !taken);
        let slot = match slot {
            Some(slot) => slot as usize,
            None => free.unwrap_or(self.places.len()),
        };
        if slot == self.places.len() {
            self.places.push((*lease, true, true));
        } else {
            assert!(!self.places[slot].1, "lent twice");
            self.places[slot] = (*lease, true, true);
        }
        Lent::Slot(slot as u32)
    }

    fn take_back(&mut self, slot: u32) -> Lease {
        let (lease, lent, taken) = &mut self.places[slot as usize];
        assert!(*lent && *taken, "taken back without being lent");
        *lent = false;
        *lease
    }

    fn peek(&self, slot: u32) -> Lease {
        let (lease, lent, taken) = &self.places[slot as usize];
        assert!(*lent && *taken, "looked at without being lent");
        *lease
    }

    fn peek_all(&self, each: &mut dyn FnMut(&Lease)) {
        let lent = self.places.iter().filter(|(_, lent, _)| *lent);
        lent.for_each(|(lease, ..)| each(lease));
    }

    fn release(&mut self, slot: u32) {
        let (_, lent, taken) = &mut self.places[slot as usize];
        assert!(!*lent && *taken, "released while lent");
        *taken = false;
    }

    fn held(&self) -> u32 {
        self.places.iter().filter(|(_, _, taken)| *taken).count() as u32
    }
}

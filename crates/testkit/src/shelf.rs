//! The slots of a fast path that stands in for the kernel's: what it was given, and that nobody mistakes a slot.

/// A place for each flow entry. Slots are given out again, the lowest first.
#[derive(Clone, Debug)]
pub struct Shelf<T> {
    places: Vec<Place<T>>,
}

/// One slot.
#[derive(Clone, Debug)]
struct Place<T> {
    entry: T,
    /// The entry is here.
    is_in: bool,
    /// The slot belongs to somebody, whether or not the entry is here.
    is_taken: bool,
}

impl<T> Default for Shelf<T> {
    fn default() -> Self {
        Self { places: vec![] }
    }
}

impl<T: Copy> Shelf<T> {
    /// The slot that the next entry without one would get.
    #[must_use]
    pub fn next_slot(&self) -> u32 {
        let free = self.places.iter().position(|place| !place.is_taken);
        number(free.unwrap_or(self.places.len()))
    }

    /// Puts an entry into its slot, or into the next one.
    ///
    /// # Panics
    /// When there is an entry in that slot, or the slot belongs to nobody.
    #[track_caller]
    pub fn put(&mut self, slot: Option<u32>, entry: T) -> u32 {
        let place = Place {
            entry,
            is_in: true,
            is_taken: true,
        };
        let Some(slot) = slot else {
            let slot = self.next_slot();
            match self.places.get_mut(slot as usize) {
                Some(free) => *free = place,
                None => self.places.push(place),
            }
            return slot;
        };
        let known = &mut self.places[slot as usize];
        assert!(known.is_taken, "put into a slot of nobody");
        assert!(!known.is_in, "put twice");
        *known = place;
        slot
    }

    /// Takes the entry back; the slot stays with its owner.
    ///
    /// # Panics
    /// When there is none.
    #[track_caller]
    pub fn take(&mut self, slot: u32) -> T {
        let place = &mut self.places[slot as usize];
        assert!(place.is_in && place.is_taken, "evicted from an empty slot");
        place.is_in = false;
        place.entry
    }

    /// The entry, which stays.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    #[track_caller]
    pub fn peek(&self, slot: u32) -> T {
        let place = &self.places[slot as usize];
        assert!(place.is_in && place.is_taken, "looked at an empty slot");
        place.entry
    }

    /// Gives the slot back.
    ///
    /// # Panics
    /// When the entry is still there, or the slot belongs to nobody.
    #[track_caller]
    pub fn release(&mut self, slot: u32) {
        let place = &mut self.places[slot as usize];
        assert!(!place.is_in && place.is_taken, "released with its entry");
        place.is_taken = false;
    }

    /// The entries that are here, in the order of their slots.
    pub fn entries(&self) -> impl Iterator<Item = &T> {
        let here = self.places.iter().filter(|place| place.is_in);
        here.map(|place| &place.entry)
    }

    /// The same, to be changed.
    pub fn entries_mut(&mut self) -> impl Iterator<Item = &mut T> {
        let here = self.places.iter_mut().filter(|place| place.is_in);
        here.map(|place| &mut place.entry)
    }

    /// Slots that belong to somebody.
    #[must_use]
    pub fn held(&self) -> u32 {
        number(self.places.iter().filter(|place| place.is_taken).count())
    }
}

fn number(slots: usize) -> u32 {
    u32::try_from(slots).expect("few slots")
}

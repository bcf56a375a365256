//! The room that a lane's ring takes, and gives back.

use alloc::collections::VecDeque;

use super::{Dsn, Lane, Run, Ssn};

impl Lane {
    /// Whether memory stands ready for mappings, and there are none.
    pub(crate) fn has_room_to_spare(&self) -> bool {
        self.runs.is_empty() && self.runs.capacity() > 0
    }

    /// Gives that memory back.
    pub(crate) fn give_back(&mut self) {
        if self.has_room_to_spare() {
            self.runs = VecDeque::new();
        }
    }

    /// Bytes that it has allocated.
    pub(crate) fn memory(&self) -> usize {
        self.runs.capacity() * size_of::<Run>()
    }

    /// Bytes that it allocates at most when its room is used up: as much again, or the few that a ring starts with.
    pub(crate) fn growth(&self) -> usize {
        self.runs.capacity().max(3) * size_of::<Run>()
    }

    /// Gives back the room that no run needs now.
    pub(crate) fn trim(&mut self) {
        if self.runs.capacity() > self.runs.len() {
            self.runs.shrink_to_fit();
        }
    }

    /// Whether a mapping behind all others needs no more room than there is.
    pub(crate) fn takes_in_place(&self, dsn: Dsn, ssn: Ssn, len: u32) -> bool {
        let unit = len;
        let next = Run {
            dsn,
            ssn,
            len,
            unit,
        };
        !self.is_full() || self.runs.back().is_some_and(|last| last.takes(&next))
    }

    /// Whether another run needs more room.
    pub(super) fn is_full(&self) -> bool {
        self.runs.len() == self.runs.capacity()
    }

    /// Room for one run, where there is none: that is all that most connections ever need.
    pub(super) fn reserve_first(&mut self) {
        if self.runs.capacity() == 0 {
            self.runs.reserve_exact(1);
        }
    }
}

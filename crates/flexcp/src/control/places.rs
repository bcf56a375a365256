//! Places of which there are a few: whoever has none waits, or is told to come again.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Some places.
#[derive(Debug)]
pub(super) struct Places {
    taken: AtomicUsize,
    count: usize,
}

/// One of them, free again when this is dropped.
#[derive(Debug)]
pub(super) struct Place<'a>(&'a Places);

impl Places {
    pub(super) const fn new(count: usize) -> Self {
        Self {
            taken: AtomicUsize::new(0),
            count,
        }
    }

    /// A place, if one is free within `patience`.
    pub(super) fn take(&self, patience: Duration) -> Option<Place<'_>> {
        let end = Instant::now() + patience;
        let one_more = |taken| (taken < self.count).then_some(taken + 1);
        let add = || {
            let order = Ordering::Relaxed;
            self.taken.fetch_update(order, order, one_more).is_ok()
        };
        while !add() {
            if Instant::now() >= end {
                return None;
            }
            thread::sleep(PAUSE);
        }
        Some(Place(self))
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Between two tries.
const PAUSE: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn place_is_free_again_when_it_is_dropped() {
        let places = Places::new(2);
        let (first, second) = (places.take(Duration::ZERO), places.take(Duration::ZERO));
        assert!(first.is_some() && second.is_some());
        assert!(places.take(Duration::from_millis(60)).is_none());
        drop(first);
        let third = places.take(Duration::ZERO);
        assert!(third.is_some());
        assert!(places.take(Duration::ZERO).is_none());
    }
}

//! Events on their way from a worker to those who listen: a ring for each of them, for the worker to fill. One that is full
//! loses events, and counts them; the worker never waits, and wakes nobody. Other threads that have something to tell have such rings, too.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flexcp_translator::{Event, Instant, Translator};
use rtrb::{Consumer, Producer, RingBuffer};

use super::{Request, WorkerHandle};

/// An event, and where and when it happened.
#[derive(Clone, Debug)]
pub struct Heard {
    /// When the worker passed it on, which is after at most a batch of packets.
    pub at: Instant,
    /// The number of the worker; `None`: it is a split connection, or what the relay of those has found.
    pub worker: Option<usize>,
    /// What happened.
    pub event: Event,
}

/// The listener's end. The worker forgets the listener when this is dropped.
#[derive(Debug)]
pub struct Ear<T = Heard> {
    ring: Consumer<T>,
    lost: Arc<AtomicU64>,
}

/// The worker's end.
#[derive(Debug)]
pub(crate) struct Listener<T = Heard> {
    ring: Producer<T>,
    lost: Arc<AtomicU64>,
}

/// All listeners of one worker.
#[derive(Debug)]
pub(super) struct Listeners {
    worker: usize,
    all: Vec<Listener>,
}

impl<T> Ear<T> {
    /// A ring for so many events.
    pub(crate) fn new(room: usize) -> (Listener<T>, Self) {
        let (producer, consumer) = RingBuffer::new(room);
        let lost = Arc::new(AtomicU64::new(0));
        let listener = Listener {
            ring: producer,
            lost: Arc::clone(&lost),
        };
        let ear = Self {
            ring: consumer,
            lost,
        };
        (listener, ear)
    }

    /// The next event, in the order in which they happened.
    pub fn hear(&mut self) -> Option<T> {
        self.ring.pop().ok()
    }

    /// Events that were lost since this was asked last.
    #[must_use]
    pub fn take_lost(&self) -> u64 {
        self.lost.swap(0, Ordering::Relaxed)
    }

    /// The worker is gone, and all has been heard.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.ring.is_abandoned() && self.ring.is_empty()
    }
}

impl<T> Listener<T> {
    /// Nobody listens any more.
    pub(crate) fn is_deaf(&self) -> bool {
        self.ring.is_abandoned()
    }

    pub(crate) fn tell(&mut self, heard: T) {
        if self.ring.push(heard).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Listeners {
    pub(super) const fn new(worker: usize) -> Self {
        Self {
            worker,
            all: vec![],
        }
    }

    /// From here on `listener` hears of what happens.
    pub(super) fn add(&mut self, listener: Listener, translator: &mut Translator) {
        if self.all.is_empty() {
            translator.keep_events(true);
        }
        self.all.push(listener);
    }

    /// Passes on what has happened since. With the last listener gone the translator keeps no events.
    pub(super) fn pass_on(&mut self, translator: &mut Translator) {
        if self.all.is_empty() {
            return;
        }
        self.all.retain(|listener| !listener.is_deaf());
        if self.all.is_empty() {
            translator.keep_events(false);
            return;
        }
        let (at, worker) = (super::now(), Some(self.worker));
        while let Some(event) = translator.poll_event() {
            let heard = Heard { at, worker, event };
            self.all
                .iter_mut()
                .for_each(|listener| listener.tell(heard.clone()));
        }
        let lost = translator.take_lost_events();
        if lost > 0 {
            for listener in &self.all {
                listener.lost.fetch_add(lost, Ordering::Relaxed);
            }
        }
    }
}

impl WorkerHandle {
    /// What happens to the worker's connections from here on, for the listener to hear in its own time; so many events
    /// wait for it.
    #[must_use]
    pub fn listen(&self, room: usize) -> Ear {
        let (listener, ear) = Ear::new(room);
        // When the worker is gone already, its end is, too.
        let _ = self.requests.send(Request::Listen(listener));
        self.waker.wake();
        ear
    }
}

#[cfg(test)]
mod tests {
    use flexcp_translator::EventKind;

    use super::*;

    fn heard(number: u64) -> Heard {
        let backend = ([10, 0, 0, 1], 80).into();
        let kind = EventKind::BackendBack { backend };
        Heard {
            at: Instant(number),
            worker: Some(0),
            event: Event {
                service: flexcp_translator::ServiceId(0),
                kind,
            },
        }
    }

    #[test]
    fn ring_that_is_full_counts_what_it_loses() {
        let (mut listener, mut ear) = Ear::new(4);
        (0..7).for_each(|number| listener.tell(heard(number)));
        let mut told = std::iter::from_fn(|| ear.hear().map(|heard| heard.at.0));
        assert_eq!(told.by_ref().collect::<Vec<_>>(), [0, 1, 2, 3]);
        assert_eq!(ear.take_lost(), 3);
        assert_eq!(ear.take_lost(), 0);
        listener.tell(heard(7));
        assert!(!ear.is_over());
        drop(listener);
        assert!(!ear.is_over(), "one is left to hear");
        assert_eq!(ear.hear().map(|heard| heard.at.0), Some(7));
        assert!(ear.is_over());
    }
}

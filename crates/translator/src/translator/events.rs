//! Events, for whoever listens ([`event`](crate::event)).

use core::net::SocketAddr;

use super::Translator;
use crate::event::{Event, EventKind};
use crate::handle::ServiceId;
use crate::health::MarkReason;

impl Translator {
    /// From here on events are kept, or no more. Those that were kept are gone in either case.
    pub fn keep_events(&mut self, keep: bool) {
        self.events.keep(keep);
    }

    /// The next event, in the order in which they happened. Take them all after some calls of the translator: there is
    /// room for 1,024.
    #[must_use]
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.poll()
    }

    /// Events that were lost since this was asked last, as nobody had taken those before: all of them are later than those
    /// that wait.
    #[must_use]
    pub fn take_lost_events(&mut self) -> u64 {
        self.events.take_lost()
    }

    /// A back end is marked, if `is_new`: counts it, and tells.
    pub(crate) fn note_marked(
        &mut self,
        of: (ServiceId, SocketAddr),
        reason: MarkReason,
        is_new: bool,
    ) {
        if !is_new {
            return;
        }
        self.counters.backend_marked += 1;
        let (service, backend) = of;
        let kind = EventKind::BackendMarked { backend, reason };
        self.events.note(|| Event { service, kind });
    }

    /// A back end has answered that was marked, if `was_marked`: counts it, and tells.
    pub(crate) fn note_back(&mut self, of: (ServiceId, SocketAddr), was_marked: bool) {
        if !was_marked {
            return;
        }
        self.counters.backend_back += 1;
        let (service, backend) = of;
        let kind = EventKind::BackendBack { backend };
        self.events.note(|| Event { service, kind });
    }
}

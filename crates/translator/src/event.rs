//! What happens to connections and back ends, for whoever wants to hear of it as it happens.
//!
//! The translator keeps events in a ring of a fixed size until [`Translator::poll_event`] takes them; those for which
//! there is no room are lost, and counted. While nobody listens there is no ring, and no event is made.
//!
//! A connection opens when its client has shown that it is where its packets say: a flood of SYNs is no event. It closes
//! when both directions are closed, or when it is reset, and is told no more then, although stragglers are answered for a
//! while. One that was open when the listening began closes without having been told to open.

use alloc::collections::VecDeque;
use core::net::SocketAddr;

use crate::cause::Rst;
use crate::connection::{Connection, Context, INITIAL, Phase, SubflowIndex};
use crate::health::MarkReason;
use crate::translator::Translator;

/// Something that has happened. Plain data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    /// Whose: an index into the configuration's services.
    pub service: usize,
    /// What.
    pub kind: EventKind,
}

/// What has happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EventKind {
    /// A connection has opened.
    Opened {
        /// Which one.
        connection: ConnectionEnds,
        /// The address that the server sees as its client.
        source: SocketAddr,
        /// The TCP server itself.
        backend: SocketAddr,
    },
    /// A client has joined another subflow to a connection.
    Joined {
        /// Which one.
        connection: ConnectionEnds,
        /// The subflow.
        subflow: SubflowEnds,
    },
    /// A subflow of a connection that goes on is over.
    SubflowClosed {
        /// Which connection.
        connection: ConnectionEnds,
        /// The subflow.
        subflow: SubflowEnds,
        /// Why.
        cause: EndCause,
    },
    /// A connection is over, with all its subflows.
    Closed {
        /// Which one.
        connection: ConnectionEnds,
        /// Why.
        cause: EndCause,
    },
    /// A back end is marked: connections pass it by.
    BackendMarked {
        /// Its address.
        backend: SocketAddr,
        /// Why.
        reason: MarkReason,
    },
    /// A marked back end has answered.
    BackendBack {
        /// Its address.
        backend: SocketAddr,
    },
}

/// What tells a connection from all others that are open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectionEnds {
    /// The client, as on the initial subflow.
    pub client: SocketAddr,
    /// What the client connected to.
    pub server: SocketAddr,
    /// The proxy's token (RFC 8684 section 3.1); `None` unless MPTCP was negotiated.
    pub token: Option<u32>,
}

/// What tells a subflow from the others of its connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SubflowEnds {
    /// The client's address and port.
    pub client: SocketAddr,
    /// The address and port that the client joined.
    pub local: SocketAddr,
    /// The client's address id (RFC 8684 section 3.2); 0 for the initial subflow.
    pub address_id: u8,
}

/// Why a connection or a subflow is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EndCause {
    /// Both directions were closed.
    Finished,
    /// An end of plain TCP has reset it; of a subflow: its client has.
    Reset,
    /// Plain TCP: nothing has come for the idle time. MPTCP connections end by a RST with that cause.
    Idle,
    /// Of a subflow: its client has not answered the FIN.
    Unanswered,
    /// Plain TCP that the kernel forwards by itself from here on, so that nobody here sees its end.
    PassedBy,
    /// FlexCP has reset it, for this cause.
    Rst(Rst),
}

impl EndCause {
    /// For output: a word, that of the RST's cause if there is one.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Finished => "finished",
            Self::Reset => "reset",
            Self::Idle => Rst::Idle.name(),
            Self::Unanswered => "unanswered",
            Self::PassedBy => "passed_by",
            Self::Rst(cause) => cause.name(),
        }
    }
}

/// Events on their way to whoever listens.
#[derive(Default, Debug)]
pub(crate) struct Events {
    ring: Option<Ring>,
}

#[derive(Debug)]
struct Ring {
    /// No more than it had room for from the beginning.
    events: VecDeque<Event>,
    lost: u64,
}

impl Events {
    /// Keeps what `event` gives, if anybody listens.
    pub(crate) fn note(&mut self, event: impl FnOnce() -> Event) {
        let Some(ring) = &mut self.ring else {
            return;
        };
        if ring.events.len() < EVENTS {
            ring.events.push_back(event());
        } else {
            ring.lost += 1;
        }
    }
}

impl Translator {
    /// From here on events are kept, or no more. Those that were kept are gone in either case.
    pub fn keep_events(&mut self, keep: bool) {
        self.events.ring = keep.then(|| Ring {
            events: VecDeque::with_capacity(EVENTS),
            lost: 0,
        });
    }

    /// The next event, in the order in which they happened. Take them all after some calls of the translator: there is
    /// room for 1,024.
    #[must_use]
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.ring.as_mut()?.events.pop_front()
    }

    /// Events that were lost since this was asked last, as nobody had taken those before: all of them are later than those
    /// that wait.
    #[must_use]
    pub fn take_lost_events(&mut self) -> u64 {
        let ring = self.events.ring.as_mut();
        ring.map_or(0, |ring| core::mem::take(&mut ring.lost))
    }

    /// A back end is marked, if `is_new`: counts it, and tells.
    pub(crate) fn note_marked(&mut self, of: (u16, SocketAddr), reason: MarkReason, is_new: bool) {
        if !is_new {
            return;
        }
        self.counters.backend_marked += 1;
        let (service, backend) = (usize::from(of.0), of.1);
        let kind = EventKind::BackendMarked { backend, reason };
        self.events.note(|| Event { service, kind });
    }

    /// A back end has answered that was marked, if `was_marked`: counts it, and tells.
    pub(crate) fn note_back(&mut self, of: (u16, SocketAddr), was_marked: bool) {
        if !was_marked {
            return;
        }
        self.counters.backend_back += 1;
        let (service, backend) = (usize::from(of.0), of.1);
        let kind = EventKind::BackendBack { backend };
        self.events.note(|| Event { service, kind });
    }
}

impl Connection {
    /// The client has shown that it is there.
    pub(crate) fn tell_opened(&self, events: &mut Events) {
        if self.is_over() {
            return;
        }
        events.note(|| {
            self.event(EventKind::Opened {
                connection: self.ends(),
                source: self.server.source.addr(),
                backend: self.server.backend.addr(),
            })
        });
    }

    /// A subflow has joined.
    pub(crate) fn tell_joined(&self, ctx: &mut Context<'_>, index: SubflowIndex) {
        if self.is_over() {
            return;
        }
        ctx.events.note(|| {
            self.event(EventKind::Joined {
                connection: self.ends(),
                subflow: self.subflow_ends(index),
            })
        });
    }

    /// A subflow is about to be over. Nothing is told of one that never joined, nor once the connection is over.
    pub(crate) fn tell_subflow_closed(
        &self,
        ctx: &mut Context<'_>,
        index: SubflowIndex,
        cause: EndCause,
    ) {
        if self.is_over() || !self.subflow(index).proved {
            return;
        }
        ctx.events.note(|| {
            self.event(EventKind::SubflowClosed {
                connection: self.ends(),
                subflow: self.subflow_ends(index),
                cause,
            })
        });
    }

    /// The connection is about to enter the phase in which it is over. Nothing is told of one that was never open, nor
    /// twice.
    pub(crate) fn tell_closed(&self, events: &mut Events, cause: EndCause) {
        // Those that are half open are in that queue.
        if self.is_over() || self.half_open.is_queued() {
            return;
        }
        events.note(|| {
            self.event(EventKind::Closed {
                connection: self.ends(),
                cause,
            })
        });
    }

    /// The connection is about to leave the table.
    pub(crate) fn tell_removed(&self, events: &mut Events) {
        let cause = match self.phase {
            // It gives way to another one of its client.
            Phase::Established => EndCause::Rst(Rst::Replaced),
            _ if self.plain_reset => EndCause::Reset,
            _ if self.is_finished() => EndCause::Finished,
            _ if self.passed_by => EndCause::PassedBy,
            _ => EndCause::Idle,
        };
        self.tell_closed(events, cause);
    }

    /// Its end has been told.
    const fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Closed(_) | Phase::Reset(_))
    }

    fn event(&self, kind: EventKind) -> Event {
        Event {
            service: usize::from(self.service),
            kind,
        }
    }

    fn ends(&self) -> ConnectionEnds {
        let initial = self.subflow(INITIAL);
        ConnectionEnds {
            client: initial.remote.addr(),
            server: initial.local.addr(),
            token: self.token(),
        }
    }

    fn subflow_ends(&self, index: SubflowIndex) -> SubflowEnds {
        let subflow = self.subflow(index);
        SubflowEnds {
            client: subflow.remote.addr(),
            local: subflow.local.addr(),
            address_id: subflow.address_id,
        }
    }
}

/// Events that may wait: those of a batch of packets, and of a timer that ends many connections.
const EVENTS: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::translator::tests::reverse;

    #[test]
    fn ring_that_is_full_loses_the_latest_and_counts_them() {
        let mut translator = reverse(1000..=1015);
        let backend = |n: usize| SocketAddr::from(([10, 0, 0, 1], u16::try_from(n).unwrap_or(0)));
        translator.note_back((3, backend(0)), true);
        assert_eq!(translator.poll_event(), None, "nobody listens");
        translator.keep_events(true);
        for round in 0..2 {
            (0..EVENTS + 7).for_each(|n| translator.note_back((3, backend(n)), true));
            for n in 0..EVENTS {
                let expected = Event {
                    service: 3,
                    kind: EventKind::BackendBack {
                        backend: backend(n),
                    },
                };
                assert_eq!(translator.poll_event(), Some(expected), "{round}");
            }
            assert_eq!(translator.poll_event(), None);
            assert_eq!(translator.take_lost_events(), 7);
            assert_eq!(translator.take_lost_events(), 0);
        }
        translator.keep_events(false);
        translator.note_back((3, backend(0)), true);
        assert_eq!(translator.poll_event(), None);
        assert_eq!(translator.take_lost_events(), 0);
    }

    #[test]
    fn ring_does_not_grow() {
        let mut events = Events::default();
        events.ring = Some(Ring {
            events: VecDeque::with_capacity(EVENTS),
            lost: 0,
        });
        let room = events.ring.as_ref().map(|ring| ring.events.capacity());
        let event = Event {
            service: 0,
            kind: EventKind::BackendBack {
                backend: ([10, 0, 0, 1], 80).into(),
            },
        };
        (0..3 * EVENTS).for_each(|_| events.note(|| event));
        assert_eq!(events.ring.map(|ring| ring.events.capacity()), room);
    }
}

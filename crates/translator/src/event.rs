//! What happens to connections and back ends, for whoever wants to hear of it as it happens.
//!
//! The translator keeps events in a ring of a fixed size until [`Translator::poll_event`](crate::Translator::poll_event) takes them; those for which
//! there is no room are lost, and counted. While nobody listens there is no ring, and no event is made.
//!
//! A connection opens when its client has shown that it is where its packets say: a flood of SYNs is no event. It closes
//! when both directions are closed, or when it is reset, and is told no more then, although stragglers are answered for a
//! while. One that was open when the listening began closes without having been told to open.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use core::net::SocketAddr;

use crate::access::AccessId;
use crate::cause::{Rst, SubflowSwitch};
use crate::handle::{ServiceId, StableId};
use crate::health::MarkReason;

/// Something that has happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// Whose.
    pub service: ServiceId,
    /// What.
    pub kind: EventKind,
}

/// What has happened.
#[derive(Clone, PartialEq, Eq, Debug)]
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
    /// What goes down a connection moves to another subflow.
    Switched {
        /// Which connection.
        connection: ConnectionEnds,
        /// From where to where, and why.
        switch: Switch,
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
    /// A back end takes no new connections from here on, or takes them again, as somebody has said so.
    BackendMaintenance {
        /// Its address.
        backend: SocketAddr,
        /// It takes none.
        on: bool,
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
    /// What names it in listings.
    pub id: StableId,
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
    /// Its number in the connection, below 8; the initial one's is 0. One that is over leaves it to another.
    pub subflow: u8,
    /// The access that it is of.
    pub access: Option<AccessId>,
    /// The client's address and port.
    pub client: SocketAddr,
    /// The address and port that the client joined.
    pub local: SocketAddr,
    /// The client's address id (RFC 8684 section 3.2); 0 for the initial subflow.
    pub address_id: u8,
}

/// A move of what goes down to another subflow.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Switch {
    /// The subflow that is left.
    pub from: SubflowEnds,
    /// The subflow that carries new data from here on.
    pub to: SubflowEnds,
    /// Why.
    pub cause: SubflowSwitch,
    /// The rule whose mode wanted it; `None`: no mode did.
    pub rule: Option<Arc<str>>,
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
    /// Of a subflow: the uplink of an aggregation box that it was on has no carrier any more, or another address.
    UplinkLost,
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
            Self::UplinkLost => "uplink_lost",
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

    /// From here on events are kept, or no more. Those that were kept are gone in either case.
    pub(crate) fn keep(&mut self, keep: bool) {
        self.ring = keep.then(|| Ring {
            events: VecDeque::with_capacity(EVENTS),
            lost: 0,
        });
    }

    /// The next one.
    pub(crate) fn poll(&mut self) -> Option<Event> {
        self.ring.as_mut()?.events.pop_front()
    }

    /// Events that were lost since this was asked last.
    pub(crate) fn take_lost(&mut self) -> u64 {
        let ring = self.ring.as_mut();
        ring.map_or(0, |ring| core::mem::take(&mut ring.lost))
    }
}

/// Events that may wait: those of a batch of packets, and of a timer that ends many connections.
const EVENTS: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn back(n: usize) -> Event {
        let port = u16::try_from(n).unwrap_or(0);
        Event {
            service: ServiceId(3),
            kind: EventKind::BackendBack {
                backend: ([10, 0, 0, 1], port).into(),
            },
        }
    }

    #[test]
    fn ring_that_is_full_loses_the_latest_and_counts_them() {
        let mut events = Events::default();
        events.note(|| back(0));
        assert_eq!(events.poll(), None, "nobody listens");
        events.keep(true);
        for round in 0..2 {
            (0..EVENTS + 7).for_each(|n| events.note(|| back(n)));
            for n in 0..EVENTS {
                assert_eq!(events.poll(), Some(back(n)), "{round}");
            }
            assert_eq!(events.poll(), None);
            assert_eq!(events.take_lost(), 7);
            assert_eq!(events.take_lost(), 0);
        }
        events.keep(false);
        events.note(|| back(0));
        assert_eq!(events.poll(), None);
        assert_eq!(events.take_lost(), 0);
    }

    #[test]
    fn ring_does_not_grow() {
        let mut events = Events::default();
        events.keep(true);
        let room = events.ring.as_ref().map(|ring| ring.events.capacity());
        (0..3 * EVENTS).for_each(|n| events.note(|| back(n)));
        assert_eq!(events.ring.map(|ring| ring.events.capacity()), room);
    }
}

//! What a connection tells of itself ([`event`](crate::event)).

use super::{Connection, Context, Phase};
use crate::cause::{Rst, SubflowSwitch};
use crate::event::{ConnectionEnds, EndCause, Event, EventKind, Events, SubflowEnds};
use crate::handle::{INITIAL, SubflowIndex};

impl Connection {
    /// The client has shown that it is there.
    pub(crate) fn tell_opened(&self, events: &mut Events) {
        if self.is_over() {
            return;
        }
        events.note(|| {
            self.event(EventKind::Opened {
                connection: self.ends(),
                source: self.tcp.source.addr(),
                backend: self.tcp.backend.addr(),
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

    /// New data goes down another subflow from here on.
    pub(super) fn tell_switched(
        &self,
        ctx: &mut Context<'_>,
        index: SubflowIndex,
        cause: SubflowSwitch,
    ) {
        if self.is_over() {
            return;
        }
        ctx.events.note(|| {
            self.event(EventKind::Switched {
                connection: self.ends(),
                subflow: self.subflow_ends(index),
                cause,
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
        if self.is_over() || !self.subflow(index).join.proved {
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
        if self.is_over() || self.links.half_open.queued {
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
            Phase::Established { .. } => EndCause::Rst(Rst::Replaced),
            _ if self.phase.relayed().reset => EndCause::Reset,
            _ if self.is_finished() => EndCause::Finished,
            _ if self.phase.relayed().passed_by => EndCause::PassedBy,
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
            service: self.service,
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

//! What a connection tells of itself ([`event`](crate::event)).

use alloc::sync::Arc;

use super::{Connection, Context, Phase};
use crate::cause::{Rst, SubflowSwitch};
use crate::config::Settings;
use crate::event::{ConnectionEnds, EndCause, Event, EventKind, Events, SubflowEnds, Switch};
use crate::handle::SubflowIndex;

impl Connection {
    /// The client has shown that it is there.
    pub(crate) fn tell_opened(&self, events: &mut Events) {
        if self.is_over() {
            return;
        }
        events.note(|| {
            let [_, _, source, backend] = self.opener_ends();
            self.event(EventKind::Opened {
                connection: self.ends(),
                source,
                backend,
            })
        });
    }

    /// A subflow has joined.
    pub(crate) fn tell_joined(&self, ctx: &mut Context<'_>, index: SubflowIndex) {
        if self.is_over() {
            return;
        }
        let config = ctx.config;
        ctx.events.note(|| {
            self.event(EventKind::Joined {
                connection: self.ends(),
                subflow: self.subflow_ends(config, index),
            })
        });
    }

    /// What goes down moves from one subflow to another; `rule`: as its mode wants it.
    pub(crate) fn tell_switched(
        &self,
        ctx: &mut Context<'_>,
        (from, to): (SubflowIndex, SubflowIndex),
        cause: SubflowSwitch,
        rule: Option<&Arc<str>>,
    ) {
        if self.is_over() {
            return;
        }
        let config = ctx.config;
        ctx.events.note(|| {
            self.event(EventKind::Switched {
                connection: self.ends(),
                switch: Switch {
                    from: self.subflow_ends(config, from),
                    to: self.subflow_ends(config, to),
                    cause,
                    rule: rule.cloned(),
                },
            })
        });
    }

    /// A subflow is about to be over. Nothing is told of one that never joined, nor before the connection is told, or once it is over.
    pub(crate) fn tell_subflow_closed(
        &self,
        ctx: &mut Context<'_>,
        index: SubflowIndex,
        cause: EndCause,
    ) {
        let untold = self.links.half_open.queued || self.is_over();
        if untold || !self.subflow(index).join.proved {
            return;
        }
        let config = ctx.config;
        ctx.events.note(|| {
            self.event(EventKind::SubflowClosed {
                connection: self.ends(),
                subflow: self.subflow_ends(config, index),
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

    /// A server has taken over from a responder: what could not be told before it was known.
    pub(crate) fn tell_handed_over(&self, ctx: &mut Context<'_>) {
        self.tell_opened(ctx.events);
        let joined = self.indices().skip(1);
        for index in joined.filter(|&index| self.subflow(index).join.proved) {
            self.tell_joined(ctx, index);
        }
    }

    /// Its end has been told, or it has no server to tell of.
    fn is_over(&self) -> bool {
        let hosted = self.hosted.as_deref();
        hosted.is_some_and(|hosted| hosted.seam().is_none()) || self.phase.is_over()
    }

    fn event(&self, kind: EventKind) -> Event {
        Event {
            service: self.service,
            kind,
        }
    }

    fn ends(&self) -> ConnectionEnds {
        let [client, server, ..] = self.opener_ends();
        ConnectionEnds {
            id: self.id(),
            client,
            server,
            token: self.token(),
        }
    }

    fn subflow_ends(&self, config: &Settings, index: SubflowIndex) -> SubflowEnds {
        let subflow = self.subflow(index);
        SubflowEnds {
            subflow: index,
            access: subflow.access(&config.accesses),
            client: subflow.remote.addr(),
            local: subflow.local.addr(),
            address_id: subflow.join.address_id,
        }
    }
}

//! What is told of connections, held against itself: each closes once and has opened before, what joins and what ends
//! belongs to one that is open, and at the end none is.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use flexcp_translator::{ConnectionEnds, EventKind, SubflowEnds, Translator};

/// The client's end and the other.
type Which = (SocketAddr, SocketAddr);

/// Who listens.
#[derive(Default, Debug)]
pub(crate) struct Heard {
    /// The subflows of those that are open.
    open: BTreeMap<Which, BTreeSet<Which>>,
    /// The first contradiction.
    wrong: Option<String>,
}

impl Heard {
    /// Takes all that has been told since.
    pub(crate) fn listen(&mut self, translator: &mut Translator) {
        while let Some(event) = translator.poll_event() {
            if let Err(why) = self.hear(&event.kind) {
                let wrong = || format!("{why}: {event:?}");
                self.wrong.get_or_insert_with(wrong);
            }
        }
        if translator.take_lost_events() > 0 {
            self.wrong.get_or_insert_with(|| "events are lost".into());
        }
    }

    fn hear(&mut self, kind: &EventKind) -> Result<(), &'static str> {
        match kind {
            EventKind::Opened { connection, .. } => {
                let of = which(connection);
                let initial = BTreeSet::from([of]);
                let before = self.open.insert(of, initial);
                before.map_or(Ok(()), |_| Err("opened twice"))
            }
            EventKind::Joined {
                connection,
                subflow,
            } => {
                let subflows = self.subflows(connection)?;
                let is_new = subflows.insert(on(subflow));
                is_new.then_some(()).ok_or("joined twice")
            }
            EventKind::SubflowClosed {
                connection,
                subflow,
                ..
            } => {
                let subflows = self.subflows(connection)?;
                let was_there = subflows.remove(&on(subflow));
                was_there.then_some(()).ok_or("a subflow that is none")
            }
            EventKind::Closed { connection, .. } => {
                let was_open = self.open.remove(&which(connection));
                was_open.map(drop).ok_or("closed, and not open")
            }
            EventKind::BackendMarked { .. }
            | EventKind::BackendMaintenance { .. }
            | EventKind::BackendBack { .. } => Ok(()),
        }
    }

    fn subflows(
        &mut self,
        connection: &ConnectionEnds,
    ) -> Result<&mut BTreeSet<Which>, &'static str> {
        self.open.get_mut(&which(connection)).ok_or("not open")
    }

    /// What contradicts itself, or is still open at the end.
    pub(crate) fn failure(&self) -> Option<String> {
        let open = self.open.keys().next();
        let open = open.map(|which| format!("never told to close: {which:?}"));
        self.wrong.clone().or(open)
    }
}

fn which(ends: &ConnectionEnds) -> Which {
    (ends.client, ends.server)
}

fn on(ends: &SubflowEnds) -> Which {
    (ends.client, ends.local)
}

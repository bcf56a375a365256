//! Records of the subflows of established connections, kept up to date.

use alloc::boxed::Box;

use super::Translator;
use super::astray::Astray;
use super::hand::Hand;
use super::orphan::Orphans;
use crate::connection::{Connection, Phase, Subflow};
use crate::handle::{INITIAL, SubflowIndex};
use crate::record::{Recorded, Registry, SubflowRecord};
use crate::table::ConnectionId;

/// What outlives a process: records of this one's connections, and connections of an earlier one; and what is asked of the ends
/// after packets may have passed by.
#[derive(Default, Debug)]
pub(crate) struct Records {
    pub(super) registry: Option<Box<dyn Registry>>,
    pub(super) orphans: Option<Orphans>,
    pub(super) astray: Option<Astray>,
}

impl Translator {
    /// Sets where the subflows of established connections are written down. Call it once.
    pub fn set_registry(&mut self, registry: Box<dyn Registry>) {
        self.records.registry = Some(registry);
    }

    /// Takes back all records of a connection that leaves the table.
    pub(crate) fn unregister(&mut self, id: ConnectionId) {
        let (Some(registry), Some(connection)) =
            (&mut self.records.registry, self.table.get_mut(id))
        else {
            return;
        };
        for subflow in &mut connection.mptcp.subflows {
            if let Recorded::At(place) = core::mem::take(&mut subflow.recorded) {
                registry.leave(place);
            }
        }
    }
}

impl Hand<'_> {
    /// Brings the records of the connection up to date.
    pub(super) fn register(&mut self) {
        let Some(registry) = &mut self.registry else {
            return;
        };
        for index in self.connection.indices() {
            let subflow = self.connection.subflow(index);
            let leaves_behind = self.connection.leaves_behind(index);
            let recorded = match (leaves_behind, subflow.recorded) {
                (true, Recorded::No) => match registry.enter(&self.connection.record(subflow)) {
                    Some(place) => Recorded::At(place),
                    None => {
                        self.ctx.counters.records_refused += 1;
                        Recorded::Refused
                    }
                },
                (false, Recorded::At(place)) => {
                    registry.leave(place);
                    Recorded::No
                }
                (false, Recorded::Refused) => Recorded::No,
                _ => continue,
            };
            self.connection.subflow_mut(index).recorded = recorded;
        }
    }
}

impl Connection {
    /// Whether the client's end of a subflow would wait for a translator that has gone.
    fn leaves_behind(&self, index: SubflowIndex) -> bool {
        match self.phase {
            Phase::Established { .. } => self.subflow(index).delivers(),
            // On the path the ends understand each other without it.
            Phase::Plain(_) => {
                index == INITIAL && self.phase.relayed().proved && !self.keeps_ends()
            }
            Phase::Fallback(_) => index == INITIAL && !self.keeps_ends(),
            _ => false,
        }
    }

    fn record(&self, subflow: &Subflow) -> SubflowRecord {
        let mptcp = self.phase.is_established();
        SubflowRecord {
            source: self.tcp.source.addr(),
            backend: self.tcp.backend.addr(),
            client: subflow.remote.addr(),
            local: subflow.local.addr(),
            key: self.mptcp.peer_key.filter(|_| mptcp).map(|key| key.key),
        }
    }
}

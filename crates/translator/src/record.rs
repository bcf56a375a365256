//! What has to outlive the process, so that the next one can tell both ends of a connection that it is over: written
//! down once for each subflow, and taken back when that is over.

use alloc::boxed::Box;
use core::fmt::Debug;
use core::net::SocketAddr;

use crate::connection::{Connection, INITIAL, Phase, Subflow, SubflowIndex};
use crate::table::ConnectionId;
use crate::translator::Translator;

/// A subflow, and the connection that it belongs to: who has to be told, and what the client believes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct SubflowRecord {
    /// What the server sees as its client. With `backend` it stands for the connection.
    pub source: SocketAddr,
    /// The server.
    pub backend: SocketAddr,
    /// The client's end of the subflow.
    pub client: SocketAddr,
    /// What the client addresses.
    pub local: SocketAddr,
    /// The client's key, which an `MP_FASTCLOSE` to it carries (RFC 8684 section 3.5); `None`: it speaks plain TCP.
    pub key: Option<u64>,
}

/// Where records are kept.
pub trait Registry: Debug + Send {
    /// Writes a record down; its place, or `None` when there is no room.
    fn enter(&mut self, record: &SubflowRecord) -> Option<u32>;

    /// Takes back what stands at that place.
    fn leave(&mut self, place: u32);
}

/// Where a subflow's record stands.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) enum Recorded {
    /// It has none.
    #[default]
    No,
    /// There, with its registry.
    At(u32),
    /// There was no room for it.
    Refused,
}

impl Translator {
    /// Sets where the subflows of established connections are written down. Call it once.
    pub fn set_registry(&mut self, registry: Box<dyn Registry>) {
        self.registry = Some(registry);
    }

    /// Brings the records of a connection up to date.
    pub(crate) fn register(&mut self, id: ConnectionId) {
        let (Some(registry), Some(connection)) = (&mut self.registry, self.table.get_mut(id))
        else {
            return;
        };
        for index in connection.indices() {
            let subflow = connection.subflow(index);
            let recorded = match (connection.leaves_behind(index), subflow.recorded) {
                (true, Recorded::No) => match registry.enter(&connection.record(subflow)) {
                    Some(place) => Recorded::At(place),
                    None => {
                        self.counters.records_refused += 1;
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
            connection.subflow_mut(index).recorded = recorded;
        }
    }

    /// Takes back all records of a connection that leaves the table.
    pub(crate) fn unregister(&mut self, id: ConnectionId) {
        let (Some(registry), Some(connection)) = (&mut self.registry, self.table.get_mut(id))
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

//! What `flexcp show` shows. Numbers are raw (bytes, microseconds); addresses are strings.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use flexcp_translator::{ConnectionView, SubflowView};
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::action::VERSION;
use super::server::Named;

/// The answer to [`Action::Stats`](super::Action::Stats).
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct Stats {
    /// [`VERSION`].
    pub version: u32,
    /// What has been done, by the names of [`flexcp_translator::Counters`].
    pub counters: Numbers,
    /// Packets dropped, by the names of [`flexcp_translator::DropReason`].
    pub drops: Numbers,
    /// What has been decided, and for each decision why, by the names of [`flexcp_translator::Causes`].
    #[serde(default)]
    pub causes: BTreeMap<String, Numbers>,
    /// What passed FlexCP's device and what went wrong there, by the names of
    /// [`CarrierCounters`](crate::worker::CarrierCounters).
    pub carrier: Numbers,
    /// Packets of offloaded connections: translated in the kernel, or why they came up to a worker. Empty
    /// without the offload.
    pub offload: Numbers,
    /// Packets that FlexCP can't account for, by the names of [`Unaccounted`](crate::worker::Unaccounted): all 0 unless
    /// there is a defect.
    pub unaccounted: Numbers,
    /// What is held now, by the names of [`flexcp_translator::Gauges`]; `kept`, packets that wait to be written;
    /// `in_rings`, packets on their way to another worker; `claimed_flows` in the steering program's map; with the
    /// offload also `offload_flows`, entries of its table, and `offload_open`, connections that are its own.
    pub gauges: Numbers,
    /// Bytes of memory that all connections together may take: `memory_bytes` and `memory_reserved_bytes` of the gauges.
    #[serde(default)]
    pub memory_budget: u64,
    /// How the offload runs, what of it the kernel refuses and why, a line each; empty when it is not wanted.
    #[serde(default)]
    pub offload_notes: Vec<String>,
    /// Connections that there are now.
    pub connections: u64,
}

/// The answer to [`Action::Connections`](super::Action::Connections).
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct Connections {
    /// [`VERSION`].
    pub version: u32,
    /// In no particular order.
    pub connections: Vec<Connection>,
}

/// A connection as it stands.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct Connection {
    /// Name of its service.
    pub service: String,
    /// "transparent" or "reverse".
    pub mode: String,
    /// "handshake", "translating", "half-closed", "closed", "plain", "fallback" or "reset".
    pub state: String,
    /// The client, as on the initial subflow.
    pub client: SocketAddr,
    /// What the client connected to.
    pub server: SocketAddr,
    /// The address that the server sees as its client.
    pub source: SocketAddr,
    /// The TCP server itself.
    pub backend: SocketAddr,
    /// FlexCP's token (RFC 8684 section 3.1); null unless MPTCP was negotiated.
    pub token: Option<u32>,
    /// Age, in microseconds.
    pub age_us: u64,
    /// Since the last packet, in microseconds.
    pub idle_us: u64,
    /// Every subflow that there is.
    pub subflows: Vec<Subflow>,
}

/// A subflow as it stands.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct Subflow {
    /// The client's address and port.
    pub client: SocketAddr,
    /// The address and port that the client joined.
    pub local: SocketAddr,
    /// The client's address id (RFC 8684 section 3.2); 0 for the initial subflow.
    pub address_id: u8,
    /// Downstream data goes here now.
    pub active: bool,
    /// Asked to be used only when no other is left.
    pub backup: bool,
    /// Authenticated, and not closed.
    pub established: bool,
    /// Payload bytes from the client, retransmissions included.
    pub bytes_up: u64,
    /// Payload bytes to the client, retransmissions included.
    pub bytes_down: u64,
    /// Payload bytes to the client that had been sent before.
    pub retransmitted_down: u64,
    /// Smoothed round-trip time between FlexCP and the client, in microseconds; null before the
    /// first sample.
    pub rtt_us: Option<u64>,
}

/// Names and numbers, in their order: an object in JSON.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Numbers(pub Vec<(String, u64)>);

impl Numbers {
    /// Adds `more` to the numbers of the same names.
    pub fn add(&mut self, more: impl Iterator<Item = (&'static str, u64)>) {
        for (name, number) in more {
            match self.0.iter_mut().find(|(known, _)| known == name) {
                Some((_, sum)) => *sum = sum.saturating_add(number),
                None => self.0.push((name.into(), number)),
            }
        }
    }

    /// The number of that name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<u64> {
        self.0
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, number)| *number)
    }
}

impl Connections {
    /// From the views of all workers.
    pub(super) fn new(views: Vec<ConnectionView>, services: &[Named]) -> Self {
        let connections = views
            .into_iter()
            .map(|view| Connection::new(view, services))
            .collect();
        Self {
            version: VERSION,
            connections,
        }
    }
}

impl Connection {
    fn new(view: ConnectionView, services: &[Named]) -> Self {
        let named = services.iter().find(|named| named.id == view.service);
        let (service, mode) = match named {
            Some(Named { name, mode, .. }) => (name.clone(), (*mode).into()),
            None => ("?".into(), "?".into()),
        };
        Self {
            service,
            mode,
            state: view.state.name().into(),
            client: view.client,
            server: view.server,
            source: view.source,
            backend: view.backend,
            token: view.token,
            age_us: micros(view.age),
            idle_us: micros(view.idle),
            subflows: view.subflows.iter().map(Subflow::new).collect(),
        }
    }
}

impl Subflow {
    fn new(view: &SubflowView) -> Self {
        Self {
            client: view.client,
            local: view.local,
            address_id: view.address_id,
            active: view.active,
            backup: view.backup,
            established: view.established,
            bytes_up: view.bytes_up,
            bytes_down: view.bytes_down,
            retransmitted_down: view.retransmitted_down,
            rtt_us: view.rtt.map(micros),
        }
    }
}

impl Serialize for Numbers {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, number)| (name, number)))
    }
}

impl<'de> Deserialize<'de> for Numbers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;

        impl<'de> Visitor<'de> for InOrder {
            type Value = Numbers;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of numbers")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Numbers, A::Error> {
                let mut numbers = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    numbers.push(entry);
                }
                Ok(Numbers(numbers))
            }
        }

        deserializer.deserialize_map(InOrder)
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

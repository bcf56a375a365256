//! Events, as they are answered.

use std::net::SocketAddr;

use flexcp_translator::{Carrier, ConnectionEnds, EventKind, MarkReason, SubflowEnds};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{carrier_name, named, splitless};
use crate::control::server::Names;
use crate::location::Chosen;
use crate::worker::Heard;

/// A line of the answer to `/v1/events`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema, Debug)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// The first line: what happens from here on is told.
    Listening {
        /// The version of the API: 1.
        version: u32,
    },
    /// The client of a connection has shown that it is there.
    Opened {
        /// When, and where.
        #[serde(flatten)]
        noted: Noted,
        /// Which one.
        #[serde(flatten)]
        connection: Which,
        /// "transparent", "reverse", "convert", "socks5" or "box".
        mode: String,
        /// What carries it: "splitless", or "split".
        #[serde(default = "splitless")]
        carrier: String,
        /// The address that the server sees as its client.
        #[schema(value_type = String, examples(json!("192.0.2.1:443")))]
        source: SocketAddr,
        /// The TCP server itself.
        #[schema(value_type = String, examples(json!("192.0.2.1:443")))]
        backend: SocketAddr,
    },
    /// A client has joined a subflow to a connection.
    Joined {
        /// When, and where.
        #[serde(flatten)]
        noted: Noted,
        /// Which one.
        #[serde(flatten)]
        connection: Which,
        /// The subflow.
        subflow: WhichSubflow,
    },
    /// What goes down a connection moves to another subflow.
    Switched {
        /// When, and where.
        #[serde(flatten)]
        noted: Noted,
        /// Which connection.
        #[serde(flatten)]
        connection: Which,
        /// From where to where, and why.
        #[serde(flatten)]
        switch: Switch,
    },
    /// A subflow of a connection that goes on is over.
    SubflowClosed {
        /// When, and where.
        #[serde(flatten)]
        noted: Noted,
        /// Which connection.
        #[serde(flatten)]
        connection: Which,
        /// The subflow.
        subflow: WhichSubflow,
        /// Why.
        cause: String,
    },
    /// A connection is over, with all its subflows.
    Closed {
        /// When, and where.
        #[serde(flatten)]
        noted: Noted,
        /// Which one.
        #[serde(flatten)]
        connection: Which,
        /// Why.
        cause: String,
    },
    /// A worker has marked a back end: its connections pass it by.
    BackendMarked {
        /// When, and where.
        #[serde(flatten)]
        noted: Noted,
        /// Its address.
        #[schema(value_type = String, examples(json!("192.0.2.1:443")))]
        backend: SocketAddr,
        /// "refused", "silent" or "unreachable".
        reason: String,
    },
    /// A back end takes no new connections of a worker's from here on, or takes them again, as the API has said.
    BackendMaintenance {
        /// When, and where.
        #[serde(flatten)]
        noted: Noted,
        /// Its address.
        #[schema(value_type = String, examples(json!("192.0.2.1:443")))]
        backend: SocketAddr,
        /// It takes none.
        on: bool,
    },
    /// A back end that a worker had marked has answered it.
    BackendBack {
        /// When, and where.
        #[serde(flatten)]
        noted: Noted,
        /// Its address.
        #[schema(value_type = String, examples(json!("192.0.2.1:443")))]
        backend: SocketAddr,
    },
    /// A box uses another aggregation server for new connections from here on.
    ServerSwitched {
        /// When, and where.
        #[serde(flatten)]
        noted: Noted,
        /// The one before; null: it is the first that was chosen.
        from: Option<WhichServer>,
        /// The one that is used.
        to: WhichServer,
        /// Why, in a sentence that begins with the name of that one.
        reason: String,
    },
    /// Events about here are missing, as more happened than the client read.
    Lost {
        /// How many.
        count: u64,
    },
}

/// A move of what goes down to another subflow.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema, Debug)]
pub struct Switch {
    /// The subflow that is left.
    pub from: WhichSubflow,
    /// The subflow that carries new data from here on.
    pub to: WhichSubflow,
    /// Why: a cause of `subflow_switch`; "asked" by the API, or by the program that FlexCP is part of.
    pub cause: String,
    /// Name of the rule whose mode wanted it; null: no mode did.
    pub rule: Option<String>,
}

/// When and where something happened.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema, Debug)]
pub struct Noted {
    /// In microseconds since 1970 (UTC).
    pub time_us: u64,
    /// The number of the worker; null: the relay of split connections, or what chooses servers.
    pub worker: Option<usize>,
    /// Name of the service.
    pub service: String,
}

/// An aggregation server of a box.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema, Debug)]
pub struct WhichServer {
    /// Its name, as `show servers` has it.
    pub name: String,
    /// Its address.
    #[schema(value_type = String, examples(json!("203.0.113.5:7124")))]
    pub address: SocketAddr,
}

/// What tells a connection from the others.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema, Debug)]
pub struct Which {
    /// What names it, as in listings.
    pub id: String,
    /// The client, as on the initial subflow.
    #[schema(value_type = String, examples(json!("192.0.2.1:443")))]
    pub client: SocketAddr,
    /// What the client connected to.
    #[schema(value_type = String, examples(json!("192.0.2.1:443")))]
    pub server: SocketAddr,
    /// FlexCP's token (RFC 8684 section 3.1); null unless MPTCP was negotiated.
    pub token: Option<u32>,
}

/// What tells a subflow from the others of its connection.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema, Debug)]
pub struct WhichSubflow {
    /// Its number in the connection, as in listings.
    pub subflow: u8,
    /// The access that it is of; null: of none.
    pub access: Option<String>,
    /// The client's address and port.
    #[schema(value_type = String, examples(json!("192.0.2.1:443")))]
    pub client: SocketAddr,
    /// The address and port that the client joined.
    #[schema(value_type = String, examples(json!("192.0.2.1:443")))]
    pub local: SocketAddr,
    /// The client's address id (RFC 8684 section 3.2); 0 for the initial subflow.
    pub address_id: u8,
}

impl Event {
    /// `origin`: where the clock of events started, in microseconds since 1970.
    pub(in crate::control) fn new(heard: Heard, origin: u64, names: &Names) -> Self {
        let (service, mode) = named(&names.services, heard.event.service);
        let noted = Noted::new(&heard, origin, service);
        Self::of_kind(heard.event.kind, noted, mode, names)
    }

    /// The same of a choice of servers.
    pub(in crate::control) fn chosen(chosen: Chosen, origin: u64, names: &Names) -> Self {
        let (service, _) = named(&names.services, chosen.service);
        let of = |(name, address)| WhichServer { name, address };
        Self::ServerSwitched {
            noted: Noted {
                time_us: origin.saturating_add(chosen.at.0),
                worker: None,
                service,
            },
            from: chosen.from.map(of),
            to: of(chosen.to),
            reason: chosen.reason,
        }
    }

    /// `mode`: of the service.
    fn of_kind(kind: EventKind, noted: Noted, mode: String, names: &Names) -> Self {
        match kind {
            EventKind::Opened {
                connection,
                source,
                backend,
            } => Self::Opened {
                carrier: noted.carrier().into(),
                noted,
                connection: connection.into(),
                mode,
                source,
                backend,
            },
            EventKind::Joined {
                connection,
                subflow,
            } => Self::Joined {
                noted,
                connection: connection.into(),
                subflow: WhichSubflow::new(subflow, names),
            },
            EventKind::Switched { connection, switch } => Self::Switched {
                noted,
                connection: connection.into(),
                switch: Switch::new(switch, names),
            },
            EventKind::SubflowClosed {
                connection,
                subflow,
                cause,
            } => Self::SubflowClosed {
                noted,
                connection: connection.into(),
                subflow: WhichSubflow::new(subflow, names),
                cause: cause.name().into(),
            },
            EventKind::Closed { connection, cause } => Self::Closed {
                noted,
                connection: connection.into(),
                cause: cause.name().into(),
            },
            EventKind::BackendMarked { backend, reason } => marked(noted, backend, reason),
            EventKind::BackendMaintenance { backend, on } => {
                Self::BackendMaintenance { noted, backend, on }
            }
            EventKind::BackendBack { backend } => Self::BackendBack { noted, backend },
        }
    }
}

fn marked(noted: Noted, backend: SocketAddr, reason: MarkReason) -> Event {
    Event::BackendMarked {
        noted,
        backend,
        reason: reason.name().into(),
    }
}

impl Noted {
    /// What carries the connection that this is of.
    fn carrier(&self) -> &'static str {
        carrier_name(match self.worker {
            Some(_) => Carrier::Splitless,
            None => Carrier::Split,
        })
    }

    /// `origin`: where the clock of events started, in microseconds since 1970.
    const fn new(heard: &Heard, origin: u64, service: String) -> Self {
        Self {
            time_us: origin.saturating_add(heard.at.0),
            worker: heard.worker,
            service,
        }
    }
}

impl Switch {
    fn new(switch: flexcp_translator::Switch, names: &Names) -> Self {
        Self {
            from: WhichSubflow::new(switch.from, names),
            to: WhichSubflow::new(switch.to, names),
            cause: switch.cause.name().into(),
            rule: switch.rule.as_deref().map(str::to_owned),
        }
    }
}

impl From<ConnectionEnds> for Which {
    fn from(ends: ConnectionEnds) -> Self {
        Self {
            id: ends.id.to_string(),
            client: ends.client,
            server: ends.server,
            token: ends.token,
        }
    }
}

impl WhichSubflow {
    fn new(ends: SubflowEnds, names: &Names) -> Self {
        Self {
            subflow: ends.subflow,
            access: names.access(ends.access),
            client: ends.client,
            local: ends.local,
            address_id: ends.address_id,
        }
    }
}

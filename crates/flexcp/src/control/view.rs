//! What is answered, and `flexcp show` shows. Numbers are raw (bytes, microseconds); addresses are strings.

mod event;
mod servers;

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use flexcp_translator::{Carrier, ConnectionView, ServiceId, StableId, SubflowView};
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::openapi::schema::{AdditionalProperties, Object, ObjectBuilder, Type};
use utoipa::openapi::{KnownFormat, RefOr, Schema, SchemaFormat};
use utoipa::{PartialSchema, ToSchema};

use super::fault::Fault;
use super::server::{Named, Names};
use super::status::{InterfaceStatus, MarkedBackend};
use crate::config::carrier_name;
use crate::config::mar::Document;
use crate::config::told::Told;
use crate::split;

pub use self::event::{Event, Noted, Switch, Which, WhichServer, WhichSubflow};
pub use self::servers::{
    BoxServers, RateBasis, ResponderStatus, ServerOverUplink, ServerProbing, ServerRate,
    ServerStatus, Servers,
};

/// The answer to `/v1/stats`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema, Debug)]
pub struct Stats {
    /// The version of the API: 1.
    pub version: u32,
    /// What has been done, by name; `flexcp explain` says what each means.
    pub counters: Numbers,
    /// Packets dropped, by reason.
    pub drops: Numbers,
    /// What has been decided, and for each decision why, by cause.
    #[serde(default)]
    pub causes: BTreeMap<String, Numbers>,
    /// What passed FlexCP's device and what went wrong there, by name.
    pub carrier: Numbers,
    /// Packets of offloaded connections: translated in the kernel, or why they came up to a worker. Empty
    /// without the offload.
    pub offload: Numbers,
    /// What the relay of split connections has done, by name.
    #[serde(default)]
    pub split: Numbers,
    /// Packets that FlexCP can't account for, by where they are lost: all 0 unless
    /// there is a defect.
    pub unaccounted: Numbers,
    /// What is held now, by name; `kept`, packets that wait to be written;
    /// `in_rings`, packets on their way to another worker; `claimed_flows` in the placement program's map; with the
    /// offload also `offload_flows`, entries of its table, and `offload_open`, connections that are its own.
    pub gauges: Numbers,
    /// Bytes of memory that all connections together may take: `memory_bytes` and `memory_reserved_bytes` of the gauges.
    #[serde(default)]
    pub memory_budget: u64,
    /// How the offload runs, what of it the kernel refuses and why, a line each; empty when it is not wanted.
    #[serde(default)]
    pub offload_notes: Vec<String>,
    /// Connections that there are now, split ones among them.
    pub connections: u64,
}

/// The answer to `/v1/connections`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema, Debug)]
pub struct Connections {
    /// The version of the API: 1.
    pub version: u32,
    /// In no particular order.
    pub connections: Vec<Connection>,
    /// Why there are not all of them: it stands behind those that there were when it happened. Not there otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Fault>,
}

/// A connection as it stands.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema, Debug)]
pub struct Connection {
    /// What names it for as long as it lives, and no other afterwards: 16 hexadecimal digits.
    pub id: String,
    /// Name of its service.
    pub service: String,
    /// "transparent", "reverse", "convert", "socks5" or "box".
    pub mode: String,
    /// Name of the rule that says which of its paths it takes; null: none fits, or it is not MPTCP.
    #[serde(default)]
    pub rule: Option<String>,
    /// "handshake", "translating", "half-closed", "closed", "plain", "fallback" or "reset"; of split ones "handshake" while a back
    /// end is called, then "relayed".
    pub state: String,
    /// The client, as on the initial subflow.
    #[schema(value_type = String, examples(json!("192.0.2.1:443")))]
    pub client: SocketAddr,
    /// What the client connected to.
    #[schema(value_type = String, examples(json!("192.0.2.1:443")))]
    pub server: SocketAddr,
    /// The address that the server sees as its client.
    #[schema(value_type = String, examples(json!("192.0.2.1:443")))]
    pub source: SocketAddr,
    /// The TCP server itself; 0.0.0.0:0, as `source`, while its client has yet to name it.
    #[schema(value_type = String, examples(json!("192.0.2.1:443")))]
    pub backend: SocketAddr,
    /// FlexCP's token (RFC 8684 section 3.1); null unless MPTCP was negotiated.
    pub token: Option<u32>,
    /// Age, in microseconds.
    pub age_us: u64,
    /// Since the last packet, in microseconds.
    pub idle_us: u64,
    /// Every subflow that there is; none of a split connection, whose subflows the kernel has.
    pub subflows: Vec<Subflow>,
    /// What carries it: "splitless", as FlexCP translates it, or "split", by the kernel's sockets and a relay.
    #[serde(default = "splitless")]
    pub carrier: String,
    /// What the relay has carried of a split connection; null of others.
    #[serde(default)]
    pub relayed: Option<Relayed>,
}

/// What a reader takes for said where an older FlexCP says nothing.
pub(super) fn splitless() -> String {
    carrier_name(Carrier::Splitless).into()
}

/// What the relay has carried of a split connection.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema, Debug)]
pub struct Relayed {
    /// Bytes from the client that the back end's socket has taken.
    pub bytes_up: u64,
    /// Bytes from the back end that the client's socket has taken.
    pub bytes_down: u64,
}

/// A subflow as it stands.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema, Debug)]
pub struct Subflow {
    /// Its number in the connection, below 8; the initial one's is 0. One that is over leaves it to another.
    pub subflow: u8,
    /// The client's address and port.
    #[schema(value_type = String, examples(json!("192.0.2.1:443")))]
    pub client: SocketAddr,
    /// The address and port that the client joined.
    #[schema(value_type = String, examples(json!("192.0.2.1:443")))]
    pub local: SocketAddr,
    /// The client's address id (RFC 8684 section 3.2); 0 for the initial subflow.
    pub address_id: u8,
    /// The access that it is of; null: of none.
    pub access: Option<String>,
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
    /// Smoothed round-trip time between FlexCP and the client in microseconds (SRTT of RFC 6298): that of data, and while
    /// there is none, of the handshake; null: not known.
    pub rtt_us: Option<u64>,
    /// Its variation (RTTVAR), of data.
    pub rtt_variation_us: Option<u64>,
    /// The least of the last five minutes.
    pub rtt_least_us: Option<u64>,
    /// Bytes per second that the client ACKed on it, the last time that it was busy for a round trip and 100 ms; 0: never.
    pub delivery_rate: u32,
    /// Payload bytes to the client that it has not ACKed.
    pub in_flight: u32,
    /// The most of them at a time lately.
    pub window: u32,
}

/// The answer to a request about one connection.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema, Debug)]
pub struct OneConnection {
    /// The version of the API: 1.
    pub version: u32,
    /// As it stands.
    pub connection: Connection,
}

/// The answer to a request that one connection does something.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema, Debug)]
pub struct Done {
    /// The version of the API: 1.
    pub version: u32,
    /// False: it was so already.
    pub changed: bool,
}

/// The answer to a request that several connections do something.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema, Debug)]
pub struct DoneByAll {
    /// The version of the API: 1.
    pub version: u32,
    /// Connections that have done it.
    pub done: u64,
    /// Connections with which it was so already.
    pub already: u64,
    /// Connections that have not, by the reason: "not_translated", "passed_by", "no_subflow", "not_carrying", "leaving",
    /// "failed", "backup", "hole".
    pub refused: Numbers,
}

/// The answer to `/v1/accesses`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema, Debug)]
pub struct Accesses {
    /// The version of the API: 1.
    pub version: u32,
    /// In the order of the configuration; last, if there are any, the subflows that are of none.
    pub accesses: Vec<Access>,
}

/// An access: sums of its subflows.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema, Debug)]
pub struct Access {
    /// Null: subflows that are of no access.
    pub name: Option<String>,
    /// How many live.
    pub subflows: u64,
    /// Of them, those that carry their connection's data to the client.
    pub active: u64,
    /// Of them, those that are to be used when no other is left.
    pub backup: u64,
    /// Subflows that have come up so far: first ones of clients that asked for MPTCP, and joins.
    pub opened: u64,
    /// Of those, the ones whose MPTCP options did not come through, from the start or later.
    pub stripped: u64,
    /// Connections so far whose SYN was without MPTCP: the client does without, or the option was taken away.
    pub plain: u64,
    /// Payload bytes from the clients so far, retransmissions included.
    pub bytes_up: u64,
    /// Payload bytes to the clients so far, retransmissions included.
    pub bytes_down: u64,
    /// Payload bytes to the clients so far that had been sent before.
    pub retransmitted_down: u64,
    /// The mean of the living ones' smoothed RTTs, in microseconds; null: none is known.
    pub rtt_us: Option<u64>,
    /// The least RTT of the last five minutes.
    pub rtt_least_us: Option<u64>,
    /// Bytes per second that the clients ACK, of the subflows on which something is outstanding.
    pub delivery_rate: u64,
    /// Payload bytes to the clients that they have not ACKed.
    pub in_flight: u64,
}

/// The answer to `/v1/services`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema, Debug)]
pub struct Services {
    /// The version of the API: 1.
    pub version: u32,
    /// Number of the configuration in force.
    pub generation: u64,
    /// In the order of the configuration.
    pub services: Vec<Service>,
}

/// The answer to what was told about a service.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema, Debug)]
pub struct OneService {
    /// The version of the API: 1.
    pub version: u32,
    /// Number of the configuration in force.
    pub generation: u64,
    /// As it stands from then on.
    pub service: Service,
}

/// A service as it stands.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema, Debug)]
pub struct Service {
    /// Its name.
    pub name: String,
    /// "transparent", "reverse", "convert", "socks5" or "box".
    pub mode: String,
    /// Whether packets of it get through.
    pub passes: bool,
    /// Where its clients come in; empty: everywhere.
    pub interfaces: Vec<InterfaceStatus>,
    /// Back ends that new connections pass by while others are left; a worker that has not marked one takes it in turn.
    pub marked_backends: Vec<MarkedBackend>,
    /// All of them; none on the path.
    #[serde(default)]
    pub backends: Vec<BackendStatus>,
    /// Whether the API has drained it; null: it takes new connections.
    #[serde(default)]
    pub drain: Option<Drain>,
}

/// A service takes no new connections.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema, Debug)]
pub struct Drain {
    /// How far that is.
    pub state: DrainState,
    /// Until both ends of the connections that are left are told, in microseconds; 0 behind that.
    pub left_us: u64,
}

/// How far the drain of a service is.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema, Debug)]
#[serde(rename_all = "snake_case")]
pub enum DrainState {
    /// Its connections have some time to end by themselves, or their ends are being told.
    Draining,
    /// It has none any more.
    Drained,
}

/// A back end as it stands.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema, Debug)]
pub struct BackendStatus {
    /// Its address and port.
    #[schema(value_type = String, examples(json!("192.0.2.1:443")))]
    pub address: SocketAddr,
    /// Its part of all weights of the service's new connections; 0: none.
    pub weight: u16,
    /// Whether the API has set the weight, in place of the file.
    pub weight_set: bool,
    /// Whether it takes no new connections for now, whatever its weight.
    pub maintenance: bool,
    /// Whether any worker, or the relay of split connections, has found that it does not answer, so that theirs pass it by.
    pub health: Health,
    /// How many of the workers have.
    pub down_workers: u64,
    /// When it was found down last, and why; null: never since FlexCP or the back end is there.
    pub last_down: Option<LastDown>,
    /// Connections that there are to it, split ones and those that are over and linger among them.
    pub connections: u64,
}

/// Whether a back end answers.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema, Debug)]
#[serde(rename_all = "snake_case")]
pub enum Health {
    /// As far as anybody knows.
    Up,
    /// It refuses or does not answer.
    Down,
}

/// When and why a back end was found down.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema, Debug)]
pub struct LastDown {
    /// "refused", "silent" or "unreachable".
    pub reason: String,
    /// Since then, in microseconds.
    pub ago_us: u64,
}

/// The answer to `/v1/rules`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema, Debug)]
pub struct Rules {
    /// The version of the API: 1.
    pub version: u32,
    /// Number of the configuration in force.
    pub generation: u64,
    /// Where they come from.
    pub source: Source,
    /// In their order: the first that fits a connection in all that it says is its own.
    pub rules: Vec<Rule>,
}

/// The answer to `/v1/rules/{name}`.
#[derive(Clone, PartialEq, Serialize, Deserialize, ToSchema, Debug)]
pub struct OneRule {
    /// The version of the API: 1.
    pub version: u32,
    /// Number of the configuration in force.
    pub generation: u64,
    /// Where the rules come from.
    pub source: Source,
    /// Rules that stand before it.
    pub place: usize,
    /// The rule.
    pub rule: Rule,
    /// The same with the keys of `[[rule]]` in the configuration file, as it can be set.
    #[schema(value_type = Object)]
    pub keys: Told,
}

/// The answer to `/v1/mar`.
#[derive(Clone, PartialEq, Serialize, Deserialize, ToSchema, Debug)]
pub struct MarSet {
    /// The version of the API: 1.
    pub version: u32,
    /// Number of the configuration in force.
    pub generation: u64,
    /// The document, as it was set.
    #[schema(value_type = Document)]
    pub mar: serde_json::Value,
}

/// Where rules come from.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema, Debug)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// The configuration file.
    File,
    /// A client of the API has set them; the file's are not in force.
    Api,
}

/// A rule, as the configuration has it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema, Debug)]
pub struct Rule {
    /// Its name.
    pub name: String,
    /// Names of services that connections are of; empty: any.
    pub services: Vec<String>,
    /// Address prefixes of servers; empty: any.
    pub servers: Vec<String>,
    /// Ports of servers, such as "443" or "8000-8999"; empty: any.
    pub ports: Vec<String>,
    /// Address prefixes that clients come from first; empty: any.
    pub clients: Vec<String>,
    /// "active-standby", "smallest-delay", "load-balancing", "priority", "redundant", "random" or
    /// "round-robin"; "own": that of a program that FlexCP is part of.
    pub mode: String,
    /// Names of accesses, the active one first; empty where the mode has no use for them.
    pub accesses: Vec<String>,
    /// How long a connection stays where it was moved, in microseconds.
    pub hold_us: u64,
    /// How long it stays away from an access before those that it was moved to, in microseconds.
    pub fail_back_us: u64,
    /// The parts of the bytes that accesses carry; null: connections go where they fare best, or the mode has none.
    pub weights: Option<BTreeMap<String, u32>>,
    /// Round-trip time beyond which a path is left, in microseconds; null: any.
    pub max_rtt_us: Option<u64>,
    /// What may be sent again before a path is left, in ten thousandths; null: any part.
    pub max_loss: Option<u16>,
    /// Whether a path that the client wants as backup is taken when no other is left alone.
    pub client_backup: bool,
    /// What carries connections of its services and clients, "splitless", "split" or "auto"; null: what their service says.
    pub carrier: Option<String>,
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

/// Name and mode of a service.
fn named(services: &[Named], service: ServiceId) -> (String, String) {
    match services.iter().find(|named| named.id == service) {
        Some(Named { name, mode, .. }) => (name.clone(), (*mode).into()),
        None => ("?".into(), "?".into()),
    }
}

impl Connection {
    pub(super) fn new(view: ConnectionView, names: &Names) -> Self {
        let (service, mode) = named(&names.services, view.service);
        Self {
            id: view.id.to_string(),
            service,
            mode,
            rule: view.rule,
            state: view.state.name().into(),
            client: view.client,
            server: view.server,
            source: view.source,
            backend: view.backend,
            token: view.token,
            age_us: micros(view.age),
            idle_us: micros(view.idle),
            subflows: view
                .subflows
                .iter()
                .map(|subflow| Subflow::new(subflow, names))
                .collect(),
            carrier: splitless(),
            relayed: None,
        }
    }

    /// One that the relay has.
    pub(super) fn of_split(view: &split::View, names: &Names) -> Self {
        let of_service = |service| named(&names.services, service);
        let unknown = || ("?".into(), "?".into());
        let (service, mode) = view.service.map_or_else(unknown, of_service);
        let none = || SocketAddr::from(([0, 0, 0, 0], 0));
        Self {
            id: StableId::of_number(view.id).to_string(),
            service,
            mode,
            rule: None,
            state: match view.server {
                Some(_) => "relayed",
                None => "handshake",
            }
            .into(),
            client: view.client,
            server: view.local,
            source: view.source.unwrap_or_else(none),
            backend: view.server.unwrap_or_else(none),
            token: None,
            age_us: micros(view.age),
            idle_us: micros(view.idle),
            subflows: vec![],
            carrier: carrier_name(Carrier::Split).into(),
            relayed: Some(Relayed {
                bytes_up: view.bytes_up,
                bytes_down: view.bytes_down,
            }),
        }
    }
}

impl Subflow {
    fn new(view: &SubflowView, names: &Names) -> Self {
        Self {
            subflow: view.subflow,
            client: view.client,
            local: view.local,
            address_id: view.address_id,
            access: names.access(view.access),
            active: view.active,
            backup: view.backup,
            established: view.established,
            bytes_up: view.bytes_up,
            bytes_down: view.bytes_down,
            retransmitted_down: view.retransmitted_down,
            rtt_us: view.quality.rtt.map(micros),
            rtt_variation_us: view.quality.rtt_variation.map(micros),
            rtt_least_us: view.quality.rtt_least.map(micros),
            delivery_rate: view.quality.delivery_rate,
            in_flight: view.quality.in_flight,
            window: view.quality.window,
        }
    }
}

impl PartialSchema for Numbers {
    fn schema() -> RefOr<Schema> {
        let number = ObjectBuilder::new()
            .schema_type(Type::Integer)
            .format(Some(SchemaFormat::KnownFormat(KnownFormat::Int64)))
            .minimum(Some(0));
        let mut numbers = Object::with_type(Type::Object);
        numbers.description = Some("Numbers by their names.".into());
        numbers.additional_properties = Some(Box::new(AdditionalProperties::RefOr(number.into())));
        RefOr::T(numbers.into())
    }
}

impl ToSchema for Numbers {}

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

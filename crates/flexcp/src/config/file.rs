//! What the configuration file says. [`Config`] is the reference of all keys; an example with
//! comments is in `dist/flexcp.toml`.

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use flexcp_translator::{
    Announce, Carrier, Check, Excepted, Limits, Prefix, Protocol, Timeouts, User,
};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::access::{self, Access};
use super::aggregation::AggregationServer;
use super::backend::Backend;
use super::keys::{self, Keys};
use super::location::{self, Choice, Responder};
use super::modes;
use super::read::{self, Interface, Memory, Reader};
use super::rule::{self, Rule};
use super::span::{Diagnostics, Located};

/// The whole file. Every section but `[[service]]` may be left out. What a reload can't change, [`fixed`](super::fixed) says.
#[derive(Clone, Debug)]
pub struct Config {
    /// `[device]`: what FlexCP makes in the kernel.
    pub device: Device,
    /// `[offload]`: the fast path in the kernel.
    pub offload: Offload,
    /// `[control]`: how a running FlexCP is reached.
    pub control: Control,
    /// `[limits]`: bounds on state, for all services together.
    pub limits: LimitsSection,
    /// `[timeouts]`: how long state is kept. Each is a string like "30s", "2h5m" or "100ms", or a
    /// number of seconds.
    pub timeouts: TimeoutsSection,
    /// `[responder]`: what answers the probes of boxes on an aggregation server; `None`: nothing does.
    pub responder: Option<Responder>,
    /// `[[service]]`, once for each. The first that matches a connection takes it.
    pub services: Vec<Service>,
    /// `[[access]]`, once for each way by which clients come; there may be none.
    pub accesses: Vec<Access>,
    /// `[[rule]]`, once for each. The first that fits a connection says how it is steered; there may be none.
    pub rules: Vec<Rule>,
}

/// `[device]`
#[derive(Clone, Debug)]
pub struct Device {
    /// `name`: of the TUN device; at most 15 characters. Default "flexcp0".
    pub name: Located<String>,
    /// `table`: number of the routing table that leads to the device. Default 7300.
    pub table: Located<i64>,
    /// `workers`: threads that translate, each with a queue of the device and its share of the
    /// connections; 1 to 64. Default 1.
    pub workers: Located<i64>,
    /// `placement`: how packets come to one of several workers. Default "owner".
    pub placement: Located<Placement>,
    /// `pin`: each worker to a CPU of its own, of those that the process may use. Default false.
    pub pin: Located<bool>,
    /// `vrf`: the VRF that the device is put into, in which what FlexCP sends on is routed. Default: none.
    pub vrf: Option<Located<String>>,
}

/// How packets come to one of several workers. Whoever gets a packet of another hands it over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Placement {
    /// "owner": a program in the kernel brings each to the worker that has its connection. Where the kernel
    /// can't, FlexCP says so and goes on as with "kernel".
    Owner,
    /// "kernel": the kernel's own choice, mostly the worker that sent the last packet the other way.
    Kernel,
    /// "scatter": each to the next worker. Only to measure what handing over costs.
    Scatter,
}

/// How the offload's programs get at packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Attach {
    /// "auto": by tcx where the kernel has it (Linux 6.6), else as "clsact".
    Auto,
    /// "clsact": by a classic filter, behind those that others have at the device.
    Clsact,
}

/// `[offload]`
#[derive(Clone, Debug)]
pub struct Offload {
    /// `enabled`: let programs in the kernel translate what needs no decision. Where the kernel can't,
    /// FlexCP says so and runs without. Default true.
    pub enabled: Located<bool>,
    /// `connections`: so many at a time at most; about 2 KB of kernel memory each. Default 4096.
    pub connections: Located<i64>,
    /// `attach`: how they get at packets. Default "auto".
    pub attach: Located<Attach>,
    /// `mark`: bits that they set in the mark of packets of plain TCP on the path, which the kernel forwards past FlexCP
    /// then; 0: none are. Default 0x10000000.
    pub mark: Located<i64>,
}

/// `[control]`
#[derive(Clone, Debug)]
pub struct Control {
    /// `socket`: where `flexcp show` and other programs ask the daemon. Default "/run/flexcp/flexcp.sock".
    pub socket: Located<PathBuf>,
    /// `state_dir`: where FlexCP notes what it has changed in the kernel, so that it can be taken
    /// back even after a crash. Default "/run/flexcp".
    pub state_dir: Located<PathBuf>,
    /// `rules_file`: where rules that the API has set are kept. Default: in `state_dir`, by the device's name.
    pub rules_file: Option<Located<PathBuf>>,
    /// `listen`: an address and port of TCP on which the API is answered, too. Default: none.
    pub listen: Option<Located<SocketAddr>>,
    /// `token_file`: its first line is the token that whoever asks over TCP has to send. Required with `listen`; others than
    /// its owner and group must not be able to read it.
    pub token_file: Option<Located<PathBuf>>,
}

/// `[limits]`
#[derive(Clone, Debug)]
pub struct LimitsSection {
    /// `connections`: of all services together. Default 1048576.
    pub connections: Located<i64>,
    /// `half_open`: connections whose handshake is not complete; beyond it new ones pass as plain
    /// TCP. Default 16384.
    pub half_open: Located<i64>,
    /// `subflows`: of one connection, the initial one included; 1 to 8. Default 8.
    pub subflows: Located<i64>,
    /// `half_open_joins`: joins of one connection that have not authenticated themselves. Default 4.
    pub half_open_joins: Located<i64>,
    /// `mappings`: runs of unacknowledged data on one subflow and direction. Default 4096.
    pub mappings: Located<i64>,
    /// `memory`: bytes that all connections together take. Default: a quarter of the machine's memory.
    pub memory: Option<Located<i64>>,
    /// `client_connections`: of one client that names its servers, an IPv4 address or 64 bits of an IPv6 one. Default 4096.
    pub client_connections: Located<i64>,
    /// `client_rate`: the same that it opens in a second. Default 1024.
    pub client_rate: Located<i64>,
}

/// `[timeouts]`
#[derive(Clone, Debug)]
pub struct TimeoutsSection {
    /// `idle`: an established connection without a packet. Default "2h5m".
    pub idle: Located<Duration>,
    /// `half_open`: a connection whose handshake does not complete. Default "4m".
    pub half_open: Located<Duration>,
    /// `rejoin`: a connection whose last subflow is gone. Default "60s".
    pub rejoin: Located<Duration>,
    /// `linger`: a connection that both ends have closed. Default "10s".
    pub linger: Located<Duration>,
    /// `add_addr`: between two copies of an announced address that was not confirmed. Default "1s".
    pub add_addr: Located<Duration>,
    /// `silence`: a subflow with data outstanding that stays silent so long is left when the server
    /// retransmits. One that owes an answer to two segments is left after two round trips, if that is
    /// less. Default "100ms".
    pub silence: Located<Duration>,
    /// `drain`: what connections have to end by themselves when FlexCP is stopped, or a reload leaves them without a service;
    /// may be 0. Default "5s".
    pub drain: Located<Duration>,
}

/// `[[service]]`
#[derive(Clone, Debug)]
pub struct Service {
    /// Where it begins in the file.
    pub at: usize,
    /// `name`: for logs and `flexcp show`; each is used once. A reload knows a service by it.
    pub name: Located<String>,
    /// `interfaces`: on which the clients' packets come in; all when left out.
    pub interfaces: Vec<Located<String>>,
    /// `announce`: further addresses of FlexCP that clients may join, with a port when it is not the
    /// one they connected to: "192.0.2.1", `"[2001:db8::1]:444"`.
    pub announce: Vec<Located<Announce>>,
    /// `offload`: whether programs in the kernel may translate its connections. Default "auto".
    pub offload: Located<ServiceOffload>,
    /// `carrier`: what carries its connections unless a rule says otherwise. Default: FlexCP's own translation, whatever rules say.
    pub carrier: Option<Located<Carrier>>,
    /// `mode` and what belongs to it.
    pub mode: Mode,
}

/// Whether programs in the kernel may translate a service's connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ServiceOffload {
    /// "auto": where they can do all that the host's own rules ask for.
    Auto,
    /// "off": never.
    Off,
}

/// How back ends hear of their clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProxyProtocol {
    /// "off": not at all.
    Off,
    /// "v2": by a header of the PROXY protocol, version 2, before each stream.
    V2,
}

/// How clients and servers meet.
#[derive(Clone, Debug)]
pub enum Mode {
    /// `mode = "transparent"`: FlexCP is on the path; clients address the server, the server sees
    /// the client's address.
    Transparent {
        /// `destinations`: address prefixes of the servers.
        destinations: Vec<Located<Prefix>>,
        /// `ports`: of the servers: numbers, and ranges like "8000-8999"; all when left out.
        ports: Vec<Located<RangeInclusive<u16>>>,
        /// `end_to_end`: a server that speaks MPTCP itself may answer the client; FlexCP then steps
        /// aside. Default true.
        end_to_end: Located<bool>,
    },
    /// `mode = "reverse"`: clients connect to FlexCP's address and port; the back end sees FlexCP's
    /// address.
    Reverse {
        /// `listen`: addresses and ports that clients connect to.
        listen: Vec<Located<SocketAddr>>,
        /// `backends`: addresses and ports of the servers, taken in turn, or by their weights (0 to 256; 1 when left out).
        backends: Vec<Located<Backend>>,
        /// `check`: how they are asked at regular times whether they answer. Default: they are not, and connections alone find
        /// out.
        check: Option<Located<Check>>,
        /// `proxy_protocol`: whether a header before each stream tells them who the client is. Default "off".
        proxy_protocol: Located<ProxyProtocol>,
        /// `source`: FlexCP's addresses towards the back ends; those that the kernel would take when
        /// left out.
        source: Vec<Located<IpAddr>>,
        /// `source_ports`: FlexCP's ports towards the back ends. Default "61000-65534".
        source_ports: Located<RangeInclusive<u16>>,
    },
    /// `mode = "convert"` or `mode = "socks5"`: clients connect to FlexCP's address and port, and name their server (RFC 8803, RFC
    /// 1928); that sees FlexCP's address.
    Explicit {
        /// How they name it.
        protocol: Protocol,
        /// `users`: who may come in (SOCKS5, RFC 1929); nobody is asked who he is when left out.
        users: Vec<Located<User>>,
        /// `listen`: addresses and ports that clients connect to.
        listen: Vec<Located<SocketAddr>>,
        /// `allow`: prefixes of the servers that clients may name.
        allow: Vec<Located<Prefix>>,
        /// `cookies`: clients of Convert have to bring a cookie, and are given one. Default false.
        cookies: Located<bool>,
        /// `ports`: of the servers; all when left out.
        ports: Vec<Located<RangeInclusive<u16>>>,
        /// `source`: FlexCP's addresses towards the servers; those of `listen` when left out.
        source: Vec<Located<IpAddr>>,
        /// `source_ports`: FlexCP's ports towards the servers. Default "61000-65534".
        source_ports: Located<RangeInclusive<u16>>,
    },
    /// `mode = "box"`: FlexCP is on the path of clients without MPTCP, and carries their connections as MPTCP over several uplinks
    /// towards servers that speak it; those see the uplinks' addresses.
    Box {
        /// `destinations`: address prefixes of the servers.
        destinations: Vec<Located<Prefix>>,
        /// `ports`: of the servers: numbers, and ranges like "8000-8999"; all when left out.
        ports: Vec<Located<RangeInclusive<u16>>>,
        /// `except`: of those, servers whose connections pass as they are.
        except: Vec<Located<Excepted>>,
        /// `servers`: aggregation servers, which connect on, at most 16: the next when one does not answer, and the server itself
        /// without one. FlexCP connects with servers itself when left out.
        servers: Vec<Located<AggregationServer>>,
        /// `choose` and what belongs to it: in which order they are asked.
        choice: Choice,
        /// `join`: prefixes of addresses at which connections join servers that announce them; none when left out.
        join: Vec<Located<Prefix>>,
        /// `uplinks`: interfaces that connections go out by, at most 8: they begin on the first, and join over the others.
        uplinks: Vec<Located<String>>,
        /// `source_ports`: FlexCP's ports on them. Default "61000-65534".
        source_ports: Located<RangeInclusive<u16>>,
        /// `routes`: FlexCP has what leaves from an uplink's address leave by that uplink, with routes and rules of its own.
        /// Default true.
        routes: Located<bool>,
    },
}

impl Service {
    /// Whether the file says which addresses FlexCP has towards its back ends.
    #[must_use]
    pub fn names_sources(&self) -> bool {
        match &self.mode {
            Mode::Transparent { .. } => false,
            Mode::Reverse { source, .. } => !source.is_empty(),
            // Those of `listen` at least.
            Mode::Explicit { .. } => true,
            // Those that its uplinks have.
            Mode::Box { .. } => true,
        }
    }
}

impl Mode {
    /// As written in the file.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Transparent { .. } => TRANSPARENT,
            Self::Reverse { .. } => REVERSE,
            Self::Explicit { protocol, .. } => protocol_name(*protocol),
            Self::Box { .. } => BOX,
        }
    }

    /// Where clients connect to, if that is FlexCP.
    #[must_use]
    pub fn listen(&self) -> &[Located<SocketAddr>] {
        match self {
            Self::Transparent { .. } | Self::Box { .. } => &[],
            Self::Reverse { listen, .. } | Self::Explicit { listen, .. } => listen,
        }
    }

    /// The servers that it has by itself.
    #[must_use]
    pub fn backends(&self) -> &[Located<Backend>] {
        match self {
            Self::Reverse { backends, .. } => backends,
            Self::Transparent { .. } | Self::Explicit { .. } | Self::Box { .. } => &[],
        }
    }

    /// FlexCP's ports towards the servers, if those see FlexCP.
    #[must_use]
    pub const fn source_ports(&self) -> Option<&Located<RangeInclusive<u16>>> {
        match self {
            Self::Transparent { .. } => None,
            Self::Reverse { source_ports, .. }
            | Self::Explicit { source_ports, .. }
            | Self::Box { source_ports, .. } => Some(source_ports),
        }
    }
}

/// Reads the file's text. What is wrong goes to `out`; what could be read is given back all the same,
/// so that the rest can be checked. `None`: not TOML.
pub(super) fn read(text: &str, out: &mut Diagnostics) -> Option<Config> {
    let (document, errors) = DeTable::parse_recoverable(text);
    for error in &errors {
        out.error(
            error.span().map_or(text.len(), |span| span.start),
            error.message(),
        );
    }
    if !errors.is_empty() {
        return None;
    }
    let root = Reader::new(document.get_ref(), ("the file", 0), &sections(), &[], out);
    Some(Config {
        device: device(&root, out),
        offload: offload(&root, out),
        control: control(&root, out),
        limits: limits(&root, out),
        timeouts: timeouts(&root, out),
        responder: location::responder(&root, out),
        services: services(&root, out),
        accesses: access::read(&root, out),
        rules: rule::read(&root, out),
    })
}

fn device(root: &Reader<'_, '_>, out: &mut Diagnostics) -> Device {
    let empty = DeTable::new();
    let section = section(root, "device", &empty, keys::DEVICE, out);
    let name = section.optional::<Interface>("name", out);
    Device {
        name: name.map_or_else(
            || Located::default(DEVICE.into()),
            |name| Located::new(name.value.0, name.at),
        ),
        table: section.or("table", TABLE, out),
        workers: section.or("workers", 1, out),
        placement: section.or("placement", Placement::Owner, out),
        pin: section.or("pin", false, out),
        vrf: section
            .optional::<Interface>("vrf", out)
            .map(|vrf| Located::new(vrf.value.0, vrf.at)),
    }
}

fn offload(root: &Reader<'_, '_>, out: &mut Diagnostics) -> Offload {
    let empty = DeTable::new();
    let section = section(root, "offload", &empty, keys::OFFLOAD, out);
    Offload {
        enabled: section.or("enabled", true, out),
        connections: section.or("connections", OFFLOADED, out),
        attach: section.or("attach", Attach::Auto, out),
        mark: section.or("mark", MARK, out),
    }
}

fn control(root: &Reader<'_, '_>, out: &mut Diagnostics) -> Control {
    let empty = DeTable::new();
    let section = section(root, "control", &empty, keys::CONTROL, out);
    Control {
        socket: section.or("socket", SOCKET.into(), out),
        state_dir: section.or("state_dir", STATE_DIR.into(), out),
        rules_file: section.optional("rules_file", out),
        listen: section.optional("listen", out),
        token_file: section.optional("token_file", out),
    }
}

fn limits(root: &Reader<'_, '_>, out: &mut Diagnostics) -> LimitsSection {
    let empty = DeTable::new();
    let section = section(root, "limits", &empty, keys::LIMITS, out);
    let default = Limits::default();
    let memory = section.optional::<Memory>("memory", out);
    let mut limit = |key, default: usize| {
        section.or(
            key,
            i64::try_from(default).expect("a default limit is small"),
            out,
        )
    };
    LimitsSection {
        memory: memory.map(|memory| Located::new(memory.value.0, memory.at)),
        connections: limit("connections", default.connections),
        half_open: limit("half_open", default.half_open),
        subflows: limit("subflows", default.subflows),
        half_open_joins: limit("half_open_joins", default.half_open_joins),
        mappings: limit("mappings", default.mappings),
        client_connections: limit("client_connections", default.client_connections),
        client_rate: limit("client_rate", default.client_rate),
    }
}

fn timeouts(root: &Reader<'_, '_>, out: &mut Diagnostics) -> TimeoutsSection {
    let empty = DeTable::new();
    let section = section(root, "timeouts", &empty, keys::TIMEOUTS, out);
    let default = Timeouts::default();
    TimeoutsSection {
        idle: section.or("idle", default.idle, out),
        half_open: section.or("half_open", default.half_open, out),
        rejoin: section.or("rejoin", default.rejoin, out),
        linger: section.or("linger", default.linger, out),
        add_addr: section.or("add_addr", default.add_addr, out),
        silence: section.or("silence", default.silence, out),
        drain: section.or("drain", DRAIN, out),
    }
}

fn services(root: &Reader<'_, '_>, out: &mut Diagnostics) -> Vec<Service> {
    let Some(value) = root.get("service") else {
        out.error(
            0,
            "there is no service; write at least one [[service]] section",
        );
        return Vec::new();
    };
    let tables = match value.get_ref() {
        DeValue::Array(tables) if !tables.is_empty() => tables,
        DeValue::Array(_) => {
            out.error(
                value.span().start,
                "there is no service; write at least one [[service]] section",
            );
            return Vec::new();
        }
        _ => {
            out.error(
                value.span().start,
                format!(
                    "`service` is {}; write [[service]], in two brackets, for each",
                    read::kind(value)
                ),
            );
            return Vec::new();
        }
    };
    tables
        .iter()
        .filter_map(|table| service(table, out))
        .collect()
}

fn service(value: &Spanned<DeValue<'_>>, out: &mut Diagnostics) -> Option<Service> {
    let at = value.span().start;
    let DeValue::Table(entries) = value.get_ref() else {
        out.error(
            at,
            format!(
                "a service can't be {}; write a [[service]] section",
                read::kind(value)
            ),
        );
        return None;
    };
    let Some(mode) = mode(entries, at, out).or_else(|| likely_mode(entries)) else {
        return without_mode(entries, at, out);
    };
    let known = [keys::names(keys::SERVICE), keys::names(keys(mode))].concat();
    let others = MODES.into_iter().filter(|other| *other != mode);
    let places = others.flat_map(|other| {
        let place = format!("a {other} service");
        let keys = keys(other).iter();
        keys.map(move |key| (key.name, place.clone()))
    });
    let places: Vec<_> = places.collect();
    let elsewhere: Vec<_> = places
        .iter()
        .map(|(key, place)| (*key, place.as_str()))
        .collect();
    let what = format!("a {mode} service");
    let section = Reader::new(entries, (&what, at), &known, &elsewhere, out);

    let name = section.required("name", "write name = \"web\"", out);
    let interfaces = section.list::<Interface>("interfaces", out);
    let announce = section.list("announce", out);
    let mode = match mode {
        TRANSPARENT => modes::transparent(&section, out),
        CONVERT => modes::explicit(&section, Protocol::Convert, out),
        SOCKS5 => modes::explicit(&section, Protocol::Socks5, out),
        BOX => modes::aggregation_box(&section, out),
        _ => modes::reverse(&section, out),
    };
    Some(Service {
        at,
        name: name.unwrap_or_else(|| Located::new(String::new(), at)),
        interfaces: interfaces
            .into_iter()
            .map(|name| Located::new(name.value.0, name.at))
            .collect(),
        announce,
        offload: section.or("offload", ServiceOffload::Auto, out),
        carrier: section.optional("carrier", out),
        mode,
    })
}

/// The mode that a service names, which says what other keys there are.
fn mode(entries: &DeTable<'_>, at: usize, out: &mut Diagnostics) -> Option<&'static str> {
    let Some(value) = entries.get("mode") else {
        let has = |key| entries.contains_key(key);
        let hint = match (has("destinations"), has("backends"), has("allow")) {
            _ if has("uplinks") => "write mode = \"box\"",
            (true, false, false) => "write mode = \"transparent\"",
            (false, true, false) => "write mode = \"reverse\"",
            (false, false, true) => "write mode = \"convert\" or \"socks5\"",
            _ => "write mode = \"transparent\", \"reverse\", \"convert\", \"socks5\" or \"box\"",
        };
        out.error(at, format!("a service has no `mode`; {hint}"));
        return None;
    };
    let at = value.span().start;
    let Some(word) = value.get_ref().as_str() else {
        out.error(
            at,
            format!(
                "`mode` can't be {}; write \"transparent\", \"reverse\", \"convert\", \"socks5\" or \"box\"",
                read::kind(value)
            ),
        );
        return None;
    };
    let mode = MODES.into_iter().find(|mode| *mode == word);
    if mode.is_none() {
        let hint = match read::similar(word, &MODES) {
            Some(similar) => format!("did you mean \"{similar}\"?"),
            None => {
                "the modes are \"transparent\", \"reverse\", \"convert\", \"socks5\" and \"box\""
                    .into()
            }
        };
        out.error(at, format!("there is no mode \"{word}\"; {hint}"));
    }
    mode
}

/// The mode that was meant, as far as its name or the other keys tell: what they say is looked at, too.
fn likely_mode(entries: &DeTable<'_>) -> Option<&'static str> {
    let word = entries
        .get("mode")
        .and_then(|value| value.get_ref().as_str());
    let meant = word.and_then(|word| read::similar(word, &MODES));
    let has = |mode: &&str| {
        let mut keys = keys(mode).iter();
        keys.any(|key| entries.contains_key(key.name))
    };
    let allows = entries.contains_key("allow").then_some(CONVERT);
    let uplinks = entries.contains_key("uplinks").then_some(BOX);
    let likely = uplinks
        .or(allows)
        .or_else(|| [REVERSE, TRANSPARENT].into_iter().find(has));
    meant.or(likely)
}

/// Looks at what every service has.
fn without_mode(entries: &DeTable<'_>, at: usize, out: &mut Diagnostics) -> Option<Service> {
    let common = keys::names(keys::SERVICE);
    let section = Reader::new(entries, ("a service", at), &common, &[], out);
    section.required::<String>("name", "write name = \"web\"", out);
    section.list::<Interface>("interfaces", out);
    section.list::<Announce>("announce", out);
    None
}

/// The section `name`; an empty one when it is not there.
pub(super) fn section<'a, 'i>(
    root: &Reader<'a, 'i>,
    name: &str,
    empty: &'a DeTable<'i>,
    known: Keys,
    out: &mut Diagnostics,
) -> Reader<'a, 'i> {
    let what = format!("[{name}]");
    let (entries, at) = match root.get(name) {
        None => (empty, root.at()),
        Some(value) => {
            let at = value.span().start;
            match value.get_ref() {
                DeValue::Table(entries) => (entries, at),
                _ => {
                    out.error(
                        at,
                        format!(
                            "`{name}` is {}; write a [{name}] section",
                            read::kind(value)
                        ),
                    );
                    (empty, at)
                }
            }
        }
    };
    Reader::new(entries, (&what, at), &keys::names(known), &[], out)
}

/// The names of all sections.
fn sections() -> Vec<&'static str> {
    let all = keys::SECTIONS.iter().chain(keys::LISTS);
    all.map(|(name, _)| *name).collect()
}

/// The mode in which clients speak it.
const fn protocol_name(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Convert => CONVERT,
        Protocol::Socks5 => SOCKS5,
    }
}

/// What a service of a mode has beside what all have.
fn keys(mode: &str) -> Keys {
    match mode {
        TRANSPARENT => keys::TRANSPARENT,
        CONVERT => keys::CONVERT,
        SOCKS5 => keys::SOCKS5,
        BOX => keys::BOX,
        _ => keys::REVERSE,
    }
}

const TRANSPARENT: &str = "transparent";
const REVERSE: &str = "reverse";
const CONVERT: &str = "convert";
const SOCKS5: &str = "socks5";
const BOX: &str = "box";
const MODES: [&str; 5] = [TRANSPARENT, REVERSE, CONVERT, SOCKS5, BOX];
const DEVICE: &str = "flexcp0";
/// A bit that neither Docker, kube-proxy, Tailscale nor WireGuard uses.
const MARK: i64 = 0x1000_0000;
const TABLE: i64 = 7300;
/// Connections in the kernel's fast path at a time.
const OFFLOADED: i64 = 4096;
/// Where the control socket is unless the file says otherwise.
pub const SOCKET: &str = "/run/flexcp/flexcp.sock";
const STATE_DIR: &str = "/run/flexcp";
const DRAIN: Duration = Duration::from_secs(5);

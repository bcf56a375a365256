//! What the translator is told to do. Checked by whoever reads it from a file; the translator takes
//! it as it is.

use alloc::string::String;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};
use core::ops::RangeInclusive;
use core::time::Duration;

use flexcp_placement::{BackEnds, Share};
use flexcp_preamble::Protocol;

use crate::access::{Access, Accesses};
use crate::allowed::Allowed;
use crate::carrier::Carrier;
use crate::entrance::User;
use crate::handle::ServiceId;
use crate::prefix::Prefix;
use crate::steering::{Rule, Rules};
use crate::uplink::Uplink;

/// Everything the translator is configured with.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// In order of precedence: the first that matches a SYN takes it.
    pub services: Vec<Service>,
    /// Ways by which clients come, at most [`MAX_ACCESSES`](crate::MAX_ACCESSES).
    pub accesses: Vec<Access>,
    /// How connections are steered, in order of precedence: the first that fits a connection is its own. Without one the
    /// path that works stays the active one.
    pub rules: Vec<Rule>,
    /// Bounds on state.
    pub limits: Limits,
    /// How long state is kept.
    pub timeouts: Timeouts,
    /// Which connections this translator has, beside those of others.
    pub share: Share,
}

impl Config {
    /// The rules by which packets go to workers. `hash_keys` must be unpredictable, and the same for all workers.
    #[must_use]
    pub fn placement(&self, hash_keys: (u64, u64)) -> flexcp_placement::Rules {
        let back_ends = self.services.iter().filter_map(|s| match &s.mode {
            Mode::Reverse {
                backends,
                source,
                source_ports,
                ..
            } => Some(BackEnds {
                addrs: Some(backends.clone()),
                sources: source.clone(),
                ports: source_ports.clone(),
            }),
            Mode::Explicit {
                source,
                source_ports,
                ..
            } => Some(BackEnds {
                addrs: None,
                sources: source.clone(),
                ports: source_ports.clone(),
            }),
            Mode::Box {
                uplinks,
                source_ports,
                ..
            } => Some(BackEnds {
                addrs: None,
                sources: uplinks.iter().flat_map(Uplink::addrs).collect(),
                ports: source_ports.clone(),
            }),
            Mode::Transparent { .. } => None,
        });
        flexcp_placement::Rules {
            workers: self.share.workers.max(1),
            hash_keys,
            back_ends: back_ends.collect(),
        }
    }
}

/// One thing FlexCP does for its clients.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Service {
    /// Its own: no two services have one id, and whoever gives it to another service has
    /// [forgotten](crate::Translator::forget_stranded) the first.
    pub id: ServiceId,
    /// For logs and `show`.
    pub name: String,
    /// How clients and servers meet.
    pub mode: Mode,
    /// Further addresses of the proxy, announced to each client with `ADD_ADDR` (RFC 8684 section
    /// 3.4.1) so that it can join over them.
    pub announce: Vec<Announce>,
    /// How it takes new connections.
    pub intake: Intake,
}

/// How a service takes new connections. Those that are there go on, whatever is said here.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Intake {
    /// It opens none: where clients address FlexCP they are refused, on the path they pass as plain TCP.
    pub closed: bool,
    /// What each of the back ends takes, in their order; those behind the last take as much as each other.
    pub parts: Vec<Part>,
    /// How its back ends are asked whether they answer, beside what connections find out; `None`: they are not.
    pub check: Option<Check>,
    /// Clients of Convert have to bring a cookie, and are given one (RFC 8803 section 6.2.7).
    pub cookies: bool,
    /// The stream to each back end begins with a header of the PROXY protocol, version 2: the client's address and port, and those
    /// that it has connected to.
    pub proxy_header: bool,
    /// What carries its connections unless a rule says otherwise. `None`: FlexCP's own translation, whatever rules say, as no
    /// relay listens for it.
    pub carrier: Option<Carrier>,
    /// The relay's sockets take data of SYNs (RFC 7413); a connection whose SYN has some is translated otherwise.
    pub relay_takes_syn_data: bool,
}

/// Checks of back ends: SYNs of FlexCP's own at regular times.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Check {
    /// From one check of a back end to the next.
    pub every: Duration,
    /// The time that it has for its answer; no longer than `every`.
    pub timeout: Duration,
    /// After so many failures in a row it is marked.
    pub fall: u8,
    /// After so many answers in a row it is not marked any more.
    pub rise: u8,
}

/// What a back end takes of a service's new connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// Its share is its weight among the weights of all that take connections; 0: none.
    pub weight: u16,
    /// It takes none for now, whatever its weight.
    pub maintenance: bool,
}

/// An address for `ADD_ADDR`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Announce {
    /// The address clients may join.
    pub addr: IpAddr,
    /// The port, when it is not the one of the initial subflow.
    pub port: Option<u16>,
}

/// How clients and servers meet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Mode {
    /// On the path: clients address the server, the server sees the client's address.
    Transparent {
        /// Server addresses that the service covers.
        destinations: Vec<Prefix>,
        /// Server ports that the service covers; empty: all.
        ports: Vec<RangeInclusive<u16>>,
        /// Leave `MP_CAPABLE` in the SYN to the server, so that one that speaks MPTCP itself can
        /// answer it; FlexCP then steps aside.
        end_to_end: bool,
    },
    /// Clients address FlexCP; the back end sees FlexCP's address.
    Reverse {
        /// Where clients connect to.
        listen: Vec<SocketAddr>,
        /// Taken in turn; those that refuse or do not answer are passed by.
        backends: Vec<SocketAddr>,
        /// Addresses towards the back ends, at least one of the family of each back end.
        source: Vec<IpAddr>,
        /// Ports towards the back ends; at least one for each worker.
        source_ports: RangeInclusive<u16>,
    },
    /// On the path of clients without MPTCP (an aggregation box): their connections go on as MPTCP, over several uplinks. The
    /// server, or whoever stands before it, has to speak MPTCP, or has plain TCP over the first uplink.
    Box {
        /// Server addresses that the service covers.
        destinations: Vec<Prefix>,
        /// Server ports that the service covers; empty: all.
        ports: Vec<RangeInclusive<u16>>,
        /// Of those, servers whose connections pass as they are.
        except: Vec<Excepted>,
        /// Who connects on to the servers; empty: FlexCP connects with them itself.
        servers: AggregationServers,
        /// Where connections join beside the address that they begin at, if servers announce that (`ADD_ADDR`); empty: nowhere.
        join: Vec<Prefix>,
        /// At most [`MAX_UPLINKS`](crate::MAX_UPLINKS): connections begin on the first that has an address of the server's family,
        /// and join over the others. An uplink keeps its place whatever its addresses are; connections that are there hear of
        /// changes by [`follow_uplinks`](crate::Translator::follow_uplinks).
        uplinks: Vec<Uplink>,
        /// Ports on the uplinks; at least one for each worker.
        source_ports: RangeInclusive<u16>,
    },
    /// Clients address FlexCP and name their server; that sees FlexCP's address.
    Explicit {
        /// How clients name it.
        protocol: Protocol,
        /// Where clients connect to.
        listen: Vec<SocketAddr>,
        /// Servers that they may name.
        allowed: Vec<Allowed>,
        /// Who may come in (SOCKS5); empty: nobody is asked who he is.
        users: Vec<User>,
        /// Addresses towards the servers.
        source: Vec<IpAddr>,
        /// Ports towards the servers; at least one for each worker.
        source_ports: RangeInclusive<u16>,
    },
}

/// Servers whose connections a box leaves alone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Excepted {
    /// Addresses.
    pub servers: Prefix,
    /// Ports; empty: all.
    pub ports: Vec<RangeInclusive<u16>>,
}

/// Aggregation servers (T-MPTCP): proxies that speak MPTCP and connect on to whom a client of a box has addressed. The first that is
/// not marked is asked, the next when that does not answer or will not connect, and without one FlexCP connects with the addressed
/// server itself.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct AggregationServers {
    addrs: Vec<SocketAddr>,
    approaches: Vec<Approach>,
}

/// How an aggregation server is asked to connect on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Approach {
    /// What it speaks.
    pub protocol: Protocol,
    /// Whom FlexCP says it is (SOCKS5, RFC 1929).
    pub user: Option<User>,
    /// It takes a message with the SYN only once it has connected on (Convert): its SYN/ACK says so, a round trip before its answer.
    pub early: bool,
}

impl AggregationServers {
    /// Of one service at most.
    pub const MAX: usize = 16;

    /// Adds the next to be asked. `false`: there are [`MAX`](Self::MAX) of them already.
    pub fn push(&mut self, addr: SocketAddr, approach: Approach) -> bool {
        let is_room = self.addrs.len() < Self::MAX;
        if is_room {
            self.addrs.push(addr);
            self.approaches.push(approach);
        }
        is_room
    }

    /// Where they are, in their order.
    #[must_use]
    pub fn addrs(&self) -> &[SocketAddr] {
        &self.addrs
    }

    /// What the SYN/ACK of the one with this address says is not believed from here on.
    pub(crate) fn distrust(&mut self, addr: SocketAddr) {
        let place = self.addrs.iter().position(|known| *known == addr);
        if let Some(approach) = place.and_then(|place| self.approaches.get_mut(place)) {
            approach.early = false;
        }
    }

    /// How the one at this place is asked.
    #[must_use]
    pub fn approach(&self, place: usize) -> Option<&Approach> {
        self.approaches.get(place)
    }
}

impl Excepted {
    /// Whether a server is one of them.
    #[must_use]
    pub fn contains(&self, server: SocketAddr) -> bool {
        let ports = &self.ports;
        self.servers.contains(server.ip())
            && (ports.is_empty() || ports.iter().any(|range| range.contains(&server.port())))
    }
}

impl Default for Part {
    fn default() -> Self {
        Self::of(1)
    }
}

impl Part {
    /// That of a weight.
    #[must_use]
    pub const fn of(weight: u16) -> Self {
        Self {
            weight,
            maintenance: false,
        }
    }

    /// Whether it takes new connections.
    #[must_use]
    pub const fn takes(self) -> bool {
        self.weight > 0 && !self.maintenance
    }
}

impl Announce {
    /// Whether a client that joins it connects to `local`.
    #[must_use]
    pub fn is(&self, local: SocketAddr) -> bool {
        self.addr == local.ip() && self.port.is_none_or(|port| port == local.port())
    }
}

/// What the translator is configured with beside its services.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) accesses: Accesses,
    pub(crate) rules: Rules,
    pub(crate) limits: Limits,
    pub(crate) timeouts: Timeouts,
}

/// Bounds on state. What is beyond them passes as plain TCP or is refused; nothing grows past them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Connections of all services together.
    pub connections: usize,
    /// Connections whose handshake is not complete; beyond it one that is 3 s old makes room, or else new
    /// ones pass as plain TCP.
    pub half_open: usize,
    /// Subflows of one connection, the initial one included; at most 8.
    pub subflows: usize,
    /// Joins of one connection that have not authenticated themselves yet.
    pub half_open_joins: usize,
    /// Runs of unacknowledged mappings on one subflow and direction.
    pub mappings: usize,
    /// Bytes of memory that all connections together take, 2 KiB for each at least.
    pub memory: usize,
    /// Connections of one client that names its servers: of an IPv4 address, or of 64 bits of an IPv6 one.
    pub client_connections: usize,
    /// The same that it opens in a second; at most a million.
    pub client_rate: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 1 << 20,
            half_open: 1 << 14,
            subflows: 8,
            half_open_joins: 4,
            mappings: 4096,
            memory: 1 << 31,
            client_connections: 4096,
            client_rate: 1024,
        }
    }
}

/// A join that is not complete is kept so long at least.
const SHORTEST_JOIN: Duration = Duration::from_secs(8);

/// How long state is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timeouts {
    /// An established connection without a packet (RFC 5382: at least 2 h 4 min).
    pub idle: Duration,
    /// A connection or a join whose handshake does not complete (RFC 5382: at least 4 min for a
    /// connection). A join is cheap to repeat and uses a quarter of it, but eight seconds at least.
    pub half_open: Duration,
    /// A connection whose last subflow is gone: the client may join again.
    pub rejoin: Duration,
    /// After both ends have closed: what still comes is answered.
    pub linger: Duration,
    /// Between two copies of an `ADD_ADDR` that was not echoed.
    pub add_addr: Duration,
    /// A subflow with data outstanding that stays silent so long is left when the server
    /// retransmits. One that owes an answer to two segments is left after two round trips, if that is less.
    pub silence: Duration,
}

impl Timeouts {
    /// How long a join that has been answered waits for its third packet.
    ///
    /// Who asks for it repeats that until it is answered (RFC 8684 section 3.2), a FlexCP after one, three and seven seconds:
    /// that must not find the join gone.
    pub(crate) fn half_open_join(&self) -> Duration {
        (self.half_open / 4).max(SHORTEST_JOIN)
    }
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            idle: Duration::from_secs(7500),
            half_open: Duration::from_secs(240),
            rejoin: Duration::from_secs(60),
            linger: Duration::from_secs(10),
            add_addr: Duration::from_secs(1),
            silence: Duration::from_millis(100),
        }
    }
}

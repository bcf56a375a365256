//! What follows from the configuration: what the translator does, and which packets the kernel has
//! to bring to it.

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use flexcp_io::{ClientLeg, Diversion, Family, OwnEnds, Plan, Protocol};
use flexcp_placement::Share;
use flexcp_translator::{
    AggregationServers, Allowed, Excepted, Intake, Limits, Part, Prefix, ServiceId, Timeouts, User,
};

use super::access;
use super::aggregation::AggregationServer;
use super::file::{Config, Mode, ProxyProtocol, Service};
use super::span::Located;

/// How many translators there are.
#[must_use]
pub fn workers(config: &Config) -> u16 {
    // The check has seen to it.
    u16::try_from(config.device.workers.value).unwrap_or(1)
}

/// Where the API is answered over TCP, and the file of the token for that.
#[must_use]
pub fn listen(config: &Config) -> Option<(SocketAddr, &Path)> {
    let control = &config.control;
    let (listen, token) = (control.listen.as_ref()?, control.token_file.as_ref()?);
    Some((listen.value, &token.value))
}

/// The ids of services that nobody has had an id before.
#[must_use]
pub fn first_ids(config: &Config) -> Vec<ServiceId> {
    // The check allows no more.
    let count = u16::try_from(config.services.len()).unwrap_or(u16::MAX);
    (0..count).map(ServiceId).collect()
}

/// What the translator of a worker is told. `sources` are the addresses towards the back ends of each service,
/// as [`live::check`](super::live::check) gives them; `ids` are those of the services.
#[must_use]
pub fn translator(
    config: &Config,
    sources: &[Vec<IpAddr>],
    ids: &[ServiceId],
    worker: u16,
) -> flexcp_translator::Config {
    let services = config
        .services
        .iter()
        .zip(sources)
        .zip(ids)
        .map(|((service, source), id)| flexcp_translator::Service {
            id: *id,
            name: service.name.value.clone(),
            mode: mode(&service.mode, source),
            announce: service
                .announce
                .iter()
                .map(|announce| announce.value)
                .collect(),
            intake: intake(service),
        });
    // The check has seen to it that they are positive and not too large.
    let limit = |limit: i64| usize::try_from(limit).unwrap_or(usize::MAX);
    let workers = workers(config);
    let part = |of_all: i64| limit(of_all).div_ceil(workers.into());
    let (limits, timeouts) = (&config.limits, &config.timeouts);
    flexcp_translator::Config {
        services: services.collect(),
        accesses: access::named(&config.accesses),
        rules: config
            .rules
            .iter()
            .map(|rule| rule.told(config, ids))
            .collect(),
        limits: Limits {
            connections: part(limits.connections.value),
            half_open: part(limits.half_open.value),
            subflows: limit(limits.subflows.value),
            half_open_joins: limit(limits.half_open_joins.value),
            mappings: limit(limits.mappings.value),
            memory: memory(config) / usize::from(workers),
            client_connections: part(limits.client_connections.value),
            client_rate: part(limits.client_rate.value),
        },
        timeouts: Timeouts {
            idle: timeouts.idle.value,
            half_open: timeouts.half_open.value,
            rejoin: timeouts.rejoin.value,
            linger: timeouts.linger.value,
            add_addr: timeouts.add_addr.value,
            silence: timeouts.silence.value,
        },
        share: Share { worker, workers },
    }
}

/// Bytes of memory for the connections of all workers.
#[must_use]
pub fn memory(config: &Config) -> usize {
    let told = config.limits.memory.as_ref();
    // The check has seen to it that it is positive.
    let told = told.map(|memory| usize::try_from(memory.value).unwrap_or(usize::MAX));
    told.or_else(quarter_of_the_machine)
        .unwrap_or_else(|| Limits::default().memory)
}

/// The unit's `MemoryMax` is twice that: what connections take is not all that FlexCP takes.
fn quarter_of_the_machine() -> Option<usize> {
    let system = rustix::system::sysinfo();
    let total = system.totalram.checked_mul(system.mem_unit.into())?;
    usize::try_from(total / 4).ok()
}

/// Flows that a worker may claim in the placement program's map: its joined subflows, as many as it can have, within
/// reason.
#[must_use]
pub fn claimed_flows(worker: &flexcp_translator::Config) -> usize {
    let joined = worker.limits.subflows.saturating_sub(1);
    let all = worker.limits.connections.saturating_mul(joined);
    all.clamp(1, CLAIMED_FLOWS / usize::from(worker.share.workers.max(1)))
}

/// What is to be changed in the kernel of a host with the addresses `own`.
#[must_use]
pub fn kernel(config: &Config, sources: &[Vec<IpAddr>], own: &[IpAddr]) -> Plan {
    let own_backends = own_backends(config, own);
    let mut diversions = Vec::new();
    for (service, source) in config.services.iter().zip(sources) {
        for diversion in diverted(service, source, &own_backends) {
            if !diversions.contains(&diversion) {
                diversions.push(diversion);
            }
        }
    }
    let has = |family| {
        diversions
            .iter()
            .any(|diversion| diversion.family == family)
    };
    Plan {
        device: config.device.name.value.clone(),
        vrf: vrf(config).map(str::to_owned),
        // The check has seen to it.
        table: table(config),
        v4: has(Family::V4),
        v6: has(Family::V6),
        mark: mark(config),
        reserved_ports: reserved_ports(config),
        // They depend on what the host has, which changes.
        uplinks: Vec::new(),
        journal: journal(config),
        diversions,
    }
}

/// The VRF that the device is put into.
#[must_use]
pub fn vrf(config: &Config) -> Option<&str> {
    config.device.vrf.as_ref().map(|vrf| vrf.value.as_str())
}

/// The mark of packets that pass by; 0: none do.
#[must_use]
pub fn mark(config: &Config) -> u32 {
    let offload = &config.offload;
    u32::try_from(offload.mark.value)
        .ok()
        .filter(|_| offload.enabled.value)
        .unwrap_or(0)
}

/// The routing table that leads to the device.
#[must_use]
pub fn table(config: &Config) -> u32 {
    u32::try_from(config.device.table.value).unwrap_or(u32::MAX)
}

/// The back ends on this host itself, which has the addresses `own`.
#[must_use]
pub fn own_backends(config: &Config, own: &[IpAddr]) -> Vec<IpAddr> {
    let services = config.services.iter();
    let backends = services.flat_map(|service| service.mode.backends());
    let addresses = backends.map(|backend| backend.value.addr.ip());
    addresses
        .filter(|addr| addr.is_loopback() || own.contains(addr))
        .collect()
}

/// Where the changes are noted, so that they can be taken back after a crash.
#[must_use]
pub fn journal(config: &Config) -> PathBuf {
    config
        .control
        .state_dir
        .value
        .join(format!("{}.json", config.device.name.value))
}

/// Where rules that the API has set are kept.
#[must_use]
pub fn rules_file(config: &Config) -> PathBuf {
    let control = &config.control;
    let of_device = || {
        let name = format!("{}.rules.json", config.device.name.value);
        control.state_dir.value.join(name)
    };
    let named = control.rules_file.as_ref();
    named.map_or_else(of_device, |file| file.value.clone())
}

fn mode(mode: &Mode, source: &[IpAddr]) -> flexcp_translator::Mode {
    match mode {
        Mode::Transparent {
            destinations,
            ports,
            end_to_end,
        } => flexcp_translator::Mode::Transparent {
            destinations: destinations.iter().map(|to| to.value).collect(),
            ports: ports.iter().map(|ports| ports.value.clone()).collect(),
            end_to_end: end_to_end.value,
        },
        Mode::Reverse {
            listen,
            backends,
            source_ports,
            ..
        } => flexcp_translator::Mode::Reverse {
            listen: listen.iter().map(|listen| listen.value).collect(),
            backends: backends.iter().map(|backend| backend.value.addr).collect(),
            source: source.to_vec(),
            source_ports: source_ports.value.clone(),
        },
        Mode::Box {
            destinations,
            ports,
            except,
            servers,
            join,
            source_ports,
            ..
        } => {
            let path = (&destinations[..], &ports[..]);
            aggregation_box(path, except, servers, join, (source, source_ports))
        }
        Mode::Explicit {
            protocol,
            users,
            listen,
            allow,
            ports,
            source_ports,
            ..
        } => {
            let allowed = allowed(allow, ports);
            explicit((*protocol, users, listen), allowed, (source, source_ports))
        }
    }
}

/// A service whose clients name their server.
fn explicit(
    (protocol, users, listen): (
        flexcp_translator::Protocol,
        &[Located<User>],
        &[Located<SocketAddr>],
    ),
    allowed: Vec<Allowed>,
    (source, source_ports): (&[IpAddr], &Located<RangeInclusive<u16>>),
) -> flexcp_translator::Mode {
    flexcp_translator::Mode::Explicit {
        protocol,
        users: users.iter().map(|user| user.value.clone()).collect(),
        listen: listen.iter().map(|listen| listen.value).collect(),
        allowed,
        source: source.to_vec(),
        source_ports: source_ports.value.clone(),
    }
}

/// A box, whose uplinks have these addresses.
fn aggregation_box(
    (destinations, ports): (&[Located<Prefix>], &[Located<RangeInclusive<u16>>]),
    except: &[Located<Excepted>],
    servers: &[Located<AggregationServer>],
    join: &[Located<Prefix>],
    (source, source_ports): (&[IpAddr], &Located<RangeInclusive<u16>>),
) -> flexcp_translator::Mode {
    flexcp_translator::Mode::Box {
        destinations: destinations.iter().map(|to| to.value).collect(),
        ports: ports.iter().map(|ports| ports.value.clone()).collect(),
        except: except.iter().map(|set| set.value.clone()).collect(),
        servers: aggregation_servers(servers),
        join: join.iter().map(|prefix| prefix.value).collect(),
        uplinks: source.iter().map(|addr| (*addr).into()).collect(),
        source_ports: source_ports.value.clone(),
    }
}

/// Those that fit; there are no more in a file that has been checked.
fn aggregation_servers(servers: &[Located<AggregationServer>]) -> AggregationServers {
    let mut all = AggregationServers::default();
    for server in servers {
        all.push(server.value.addr, server.value.approach.clone());
    }
    all
}

/// Servers that clients may name.
fn allowed(servers: &[Located<Prefix>], ports: &[Located<RangeInclusive<u16>>]) -> Vec<Allowed> {
    let ports: Vec<_> = ports.iter().map(|ports| ports.value.clone()).collect();
    let each = servers.iter().map(|servers| Allowed {
        servers: servers.value,
        ports: ports.clone(),
    });
    each.collect()
}

/// How a service takes new connections.
fn intake(service: &Service) -> Intake {
    let of_mode = match &service.mode {
        Mode::Transparent { .. } | Mode::Box { .. } => Intake::default(),
        Mode::Explicit { cookies, .. } => Intake {
            cookies: cookies.value,
            ..Intake::default()
        },
        Mode::Reverse {
            backends,
            check,
            proxy_protocol,
            ..
        } => {
            let parts = backends.iter().map(|to| Part::of(to.value.weight));
            Intake {
                // Services are closed while FlexCP runs.
                closed: false,
                parts: parts.collect(),
                check: check.map(|check| check.value),
                proxy_header: proxy_protocol.value == ProxyProtocol::V2,
                ..Intake::default()
            }
        }
    };
    Intake {
        carrier: service.carrier.as_ref().map(|carrier| carrier.value),
        ..of_mode
    }
}

/// The clients' legs of services on the path, a leg for each prefix and range of ports.
#[must_use]
pub fn client_legs(config: &Config) -> Vec<ClientLeg> {
    let mark = mark(config);
    let mut legs = Vec::new();
    for service in &config.services {
        let (Mode::Transparent {
            destinations,
            ports,
            ..
        }
        | Mode::Box {
            destinations,
            ports,
            ..
        }) = &service.mode
        else {
            continue;
        };
        let mut ranges: Vec<_> = ports
            .iter()
            .map(|ports| Some(ports.value.clone()))
            .collect();
        if ranges.is_empty() {
            ranges.push(None);
        }
        for destination in destinations {
            legs.extend(ranges.iter().map(|ports| {
                ClientLeg {
                    interfaces: service
                        .interfaces
                        .iter()
                        .map(|name| name.value.clone())
                        .collect(),
                    destination: Some(destination.value),
                    ports: ports.clone(),
                    except_mark: mark,
                    family: family(destination.value.addr),
                }
            }));
        }
    }
    legs
}

/// The packets of a service: from its clients, to the announced addresses, and from its servers.
fn diverted(service: &Service, source: &[IpAddr], own_backends: &[IpAddr]) -> Vec<Diversion> {
    let mut diversions = diverted_from_clients(service);
    diversions.extend(diverted_from_servers(service, source, own_backends));
    diversions.extend(diverted_icmp(service, source));
    diversions
}

fn diverted_from_clients(service: &Service) -> Vec<Diversion> {
    let mut diversions = Vec::new();
    // Clients' packets come in on certain interfaces, if any are named.
    let mut from_clients = |to: Prefix, ports: Option<RangeInclusive<u16>>| {
        let to = Diversion {
            destination: Some(to),
            destination_ports: ports,
            ..any(family(to.addr))
        };
        if service.interfaces.is_empty() {
            diversions.push(to);
            return;
        }
        for interface in &service.interfaces {
            diversions.push(Diversion {
                interface: Some(interface.value.clone()),
                ..to.clone()
            });
        }
    };
    let ports = client_ports(service);
    match &service.mode {
        Mode::Transparent { destinations, .. } | Mode::Box { destinations, .. } => {
            for destination in destinations {
                ports
                    .iter()
                    .for_each(|ports| from_clients(destination.value, ports.clone()));
            }
        }
        Mode::Reverse { listen, .. } | Mode::Explicit { listen, .. } => {
            for listen in listen {
                from_clients(host(listen.value.ip()), one(listen.value));
            }
        }
    }
    for announce in &service.announce {
        let to = host(announce.value.addr);
        match announce.value.port {
            Some(port) => from_clients(to, Some(port..=port)),
            None => ports
                .iter()
                .for_each(|ports| from_clients(to, ports.clone())),
        }
    }
    diversions
}

fn diverted_from_servers(
    service: &Service,
    source: &[IpAddr],
    own_backends: &[IpAddr],
) -> Vec<Diversion> {
    let mut diversions = Vec::new();
    let ports = client_ports(service);
    match &service.mode {
        Mode::Transparent { destinations, .. } => {
            for destination in destinations {
                diversions.extend(ports.iter().map(|ports| Diversion {
                    source: Some(destination.value),
                    source_ports: ports.clone(),
                    ..any(family(destination.value.addr))
                }));
            }
        }
        Mode::Reverse {
            backends,
            source_ports,
            ..
        } => {
            for backend in backends.iter().map(|backend| backend.value.addr) {
                let same = source
                    .iter()
                    .filter(|own| own.is_ipv4() == backend.is_ipv4());
                // What this host sends itself is diverted by name only.
                let sent = own_backends.contains(&backend.ip());
                diversions.extend(same.map(|own| Diversion {
                    interface: sent.then(|| "lo".to_owned()),
                    source: Some(host(backend.ip())),
                    source_ports: one(backend),
                    destination: Some(host(*own)),
                    destination_ports: Some(source_ports.value.clone()),
                    ..any(family(*own))
                }));
            }
        }
        // Clients may name any server; the ports are FlexCP's alone.
        Mode::Explicit { source_ports, .. } | Mode::Box { source_ports, .. } => {
            diversions.extend(source.iter().map(|own| Diversion {
                destination: Some(host(*own)),
                destination_ports: Some(source_ports.value.clone()),
                ..any(family(*own))
            }));
        }
    }
    diversions
}

/// ICMP errors about what FlexCP sends go to the address that it was sent from: a server's (on the path),
/// or FlexCP's own. On the path, those for clients go by as they are: a client's address may be any. Those to
/// IPv6 addresses of this host stay with the kernel: it needs the neighbour discovery that comes along.
fn diverted_icmp(service: &Service, source: &[IpAddr]) -> Vec<Diversion> {
    let mut to = Vec::new();
    let mut own: Vec<_> = service.announce.iter().map(|own| own.value.addr).collect();
    match &service.mode {
        Mode::Transparent { destinations, .. } => {
            to.extend(destinations.iter().map(|to| to.value));
        }
        Mode::Box { .. } => own.extend(source),
        Mode::Reverse { listen, .. } | Mode::Explicit { listen, .. } => {
            own.extend(listen.iter().map(|listen| listen.value.ip()));
            own.extend(source);
        }
    }
    to.extend(own.into_iter().filter(IpAddr::is_ipv4).map(host));
    let diversion = |to: Prefix| Diversion {
        protocol: Protocol::Icmp,
        destination: Some(to),
        ..any(family(to.addr))
    };
    to.into_iter().map(diversion).collect()
}

/// The IPv6 ends that FlexCP's packets leave from with an address of this host, `sources` among those of each service: what ICMPv6
/// says of them is FlexCP's.
#[must_use]
pub fn own_ends(config: &Config, sources: &[Vec<IpAddr>]) -> Vec<OwnEnds> {
    let mut ends = Vec::new();
    let mut add = |addr: IpAddr, ports: RangeInclusive<u16>| {
        if let IpAddr::V6(addr) = addr {
            ends.push(OwnEnds { addr, ports });
        }
    };
    let nothing = Vec::new();
    let sources = sources.iter().chain(std::iter::repeat(&nothing));
    for (service, source) in config.services.iter().zip(sources) {
        for listen in service.mode.listen() {
            add(listen.value.ip(), listen.value.port()..=listen.value.port());
        }
        if let Some(ports) = service.mode.source_ports() {
            source.iter().for_each(|own| add(*own, ports.value.clone()));
        }
        for announce in service.announce.iter().map(|announce| announce.value) {
            let ports = announce
                .port
                .map_or_else(|| client_ports(service), |port| vec![Some(port..=port)]);
            for ports in ports {
                add(announce.addr, ports.unwrap_or(0..=u16::MAX));
            }
        }
    }
    ends
}

/// The ports that clients connect to; `None`: all.
fn client_ports(service: &Service) -> Vec<Option<RangeInclusive<u16>>> {
    let mut ports: Vec<_> = match &service.mode {
        Mode::Transparent { ports, .. } | Mode::Box { ports, .. } if ports.is_empty() => {
            vec![None]
        }
        Mode::Transparent { ports, .. } | Mode::Box { ports, .. } => ports
            .iter()
            .map(|ports| Some(ports.value.clone()))
            .collect(),
        Mode::Reverse { listen, .. } | Mode::Explicit { listen, .. } => {
            listen.iter().map(|listen| one(listen.value)).collect()
        }
    };
    ports.sort_by_key(|ports| ports.as_ref().map(|ports| *ports.start()));
    ports.dedup();
    ports
}

/// From the lowest to the highest port that any service uses towards its back ends.
fn reserved_ports(config: &Config) -> Option<RangeInclusive<u16>> {
    config
        .services
        .iter()
        .filter_map(|service| service.mode.source_ports())
        .map(|ports| ports.value.clone())
        .reduce(|a, b| *a.start().min(b.start())..=*a.end().max(b.end()))
}

fn any(family: Family) -> Diversion {
    Diversion {
        protocol: Protocol::Tcp,
        interface: None,
        source: None,
        destination: None,
        source_ports: None,
        destination_ports: None,
        family,
    }
}

const fn family(addr: IpAddr) -> Family {
    if addr.is_ipv4() {
        Family::V4
    } else {
        Family::V6
    }
}

const fn host(addr: IpAddr) -> Prefix {
    Prefix {
        addr,
        len: if addr.is_ipv4() { 32 } else { 128 },
    }
}

const fn one(addr: SocketAddr) -> Option<RangeInclusive<u16>> {
    Some(addr.port()..=addr.port())
}

/// Flows of all workers in the placement program's map. The kernel takes memory for those that there are, about 100
/// bytes each, and 4 MB for its index.
const CLAIMED_FLOWS: usize = 1 << 18;

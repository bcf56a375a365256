//! What the file says must make sense together. Looks at nothing but the file; what depends on the
//! host is in [`live`](super::live).

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

use flexcp_translator::{AggregationServers, MAX_UPLINKS, Prefix, User};

use super::access;
use super::backend::Backend;
use super::file::{Config, Mode, Service};
use super::location;
use super::overlap::{self, intersect, nested};
use super::rule;
use super::span::{Diagnostics, Located};
use super::split;
use super::value::{self, ShowAnnounce, ShowPorts, ShowPrefix};

/// Threads that translate, at most.
const MAX_WORKERS: i64 = 64;
/// Bytes of memory for the connections of each worker, at least: some hundred connections.
const LEAST_MEMORY: i64 = 1_000_000;
/// Connections that the offload may have room for.
const MAX_OFFLOADED: i64 = 1 << 20;

/// Services that there may be: each has an id of 16 bits.
const MAX_SERVICES: usize = 1 << 16;

/// Adds everything that is wrong with `config` to `out`.
pub(crate) fn check(config: &Config, out: &mut Diagnostics) {
    device(config, out);
    workers(config, out);
    offload(config, out);
    mark(config, out);
    control(config, out);
    limits(config, out);
    timeouts(config, out);
    access::check(&config.accesses, out);
    rule::check(config, out);
    split::check(config, out);
    if are_too_many(&config.services, out) {
        return;
    }
    names(&config.services, out);
    for service in &config.services {
        lists(service, out);
        uplinks(service, out);
        hosts(service, out);
        ports(service, out);
        if let Mode::Reverse {
            backends, source, ..
        } = &service.mode
        {
            sources(backends, source, out);
        }
        if let Some(ports) = service.mode.source_ports() {
            ports_towards_servers(ports, out);
        }
    }
    location::check(config, out);
    overlap::check(&config.services, out);
    loops(&config.services, out);
}

/// `true`: there are too many to look at each.
fn are_too_many(services: &[Service], out: &mut Diagnostics) -> bool {
    let Some(one_too_many) = services.get(MAX_SERVICES) else {
        return false;
    };
    out.error(
        one_too_many.at,
        format!(
            "there can't be more than {MAX_SERVICES} services; write fewer, with more `destinations` or `listen` each"
        ),
    );
    true
}

fn device(config: &Config, out: &mut Diagnostics) {
    let name = &config.device.name;
    let plain = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    // "all" and "default" are directories beside the devices in /proc/sys/net/ipv4/conf.
    if ["lo", "all", "default"].contains(&name.value.as_str()) || !name.value.chars().all(plain) {
        out.error(
            name.at,
            format!(
                "FlexCP can't make a device named `{}`; write a name like \"flexcp0\"",
                name.value
            ),
        );
    }
    let table = &config.device.table;
    match table.value {
        0 | 253..=255 => out.error(
            table.at,
            format!(
                "routing table {} belongs to the kernel; use another, like 7300",
                table.value
            ),
        ),
        1..=0xffff_ffff => {}
        other => out.error(
            table.at,
            format!("{other} is not a routing table; write a number from 1 to 4294967295"),
        ),
    }
}

fn workers(config: &Config, out: &mut Diagnostics) {
    let workers = &config.device.workers;
    if !(1..=MAX_WORKERS).contains(&workers.value) {
        out.error(
            workers.at,
            format!(
                "`workers` can't be {}; write a number from 1 to {MAX_WORKERS}",
                workers.value
            ),
        );
        return;
    }
    for service in &config.services {
        let Some(source_ports) = service.mode.source_ports() else {
            continue;
        };
        let ports =
            i64::from(*source_ports.value.end()) - i64::from(*source_ports.value.start()) + 1;
        if ports < workers.value {
            out.error(
                source_ports.at,
                format!(
                    "{ports} ports are too few for {} workers; each needs one at least",
                    workers.value
                ),
            );
        }
    }
}

fn offload(config: &Config, out: &mut Diagnostics) {
    let connections = &config.offload.connections;
    if !(1..=MAX_OFFLOADED).contains(&connections.value) {
        out.error(
            connections.at,
            format!(
                "`connections` of the offload can't be {}; write a number from 1 to {MAX_OFFLOADED}, or \
                 `enabled = false`",
                connections.value
            ),
        );
    }
}

fn mark(config: &Config, out: &mut Diagnostics) {
    let mark = &config.offload.mark;
    if u32::try_from(mark.value).is_err() {
        out.error(
            mark.at,
            format!(
                "`mark` can't be {}; write bits of 32, such as 0x10000000, or 0",
                mark.value
            ),
        );
    }
}

fn control(config: &Config, out: &mut Diagnostics) {
    let socket = &config.control.socket;
    let len = path_len(&socket.value);
    if len > SOCKET_PATH_MAX {
        out.error(
            socket.at,
            format!("the socket's path has {len} bytes; the kernel takes {SOCKET_PATH_MAX}"),
        );
    }
    match (&config.control.listen, &config.control.token_file) {
        (Some(listen), None) => out.error(
            listen.at,
            "`listen` has no `token_file`, without which anybody could ask; write token_file = \"/etc/flexcp/token\"",
        ),
        (None, Some(token)) => out.warning(
            token.at,
            "`token_file` is of no use without `listen`: whoever may open the socket needs no token; remove it",
        ),
        _ => {}
    }
}

fn limits(config: &Config, out: &mut Diagnostics) {
    let limits = &config.limits;
    if !(1..=8).contains(&limits.subflows.value) {
        out.error(
            limits.subflows.at,
            format!(
                "`subflows` can't be {}; a connection has 1 to 8",
                limits.subflows.value
            ),
        );
    }
    let least = LEAST_MEMORY * config.device.workers.value.clamp(1, MAX_WORKERS);
    if let Some(memory) = &limits.memory
        && memory.value < least
    {
        let megabytes = least / 1_000_000;
        out.error(
            memory.at,
            format!("`memory` is too little for the workers; write at least \"{megabytes}MB\""),
        );
    }
    for (name, limit) in [
        ("connections", &limits.connections),
        ("half_open", &limits.half_open),
        ("half_open_joins", &limits.half_open_joins),
        ("mappings", &limits.mappings),
    ] {
        if limit.value < 1 {
            out.error(
                limit.at,
                format!("`{name}` can't be {}; write at least 1", limit.value),
            );
        }
        if limit.value > i64::from(u32::MAX) {
            out.error(
                limit.at,
                format!(
                    "`{name}` can't be {}; write at most 4294967295",
                    limit.value
                ),
            );
        }
    }
}

fn timeouts(config: &Config, out: &mut Diagnostics) {
    let timeouts = &config.timeouts;
    for (name, timeout) in [
        ("idle", &timeouts.idle),
        ("half_open", &timeouts.half_open),
        ("rejoin", &timeouts.rejoin),
        ("linger", &timeouts.linger),
        ("add_addr", &timeouts.add_addr),
        ("silence", &timeouts.silence),
    ] {
        if timeout.value.is_zero() {
            out.error(
                timeout.at,
                format!("`{name}` can't be 0; write a duration like \"30s\""),
            );
        }
    }
    for (name, timeout, least, said) in [
        ("idle", &timeouts.idle, 7440, "2h4m"),
        ("half_open", &timeouts.half_open, 240, "4m"),
    ] {
        if !timeout.value.is_zero() && timeout.value < Duration::from_secs(least) {
            out.warning(
                timeout.at,
                format!(
                    "`{name}` is shorter than RFC 5382 section 5 allows; write at least \"{said}\""
                ),
            );
        }
    }
}

fn names(services: &[Service], out: &mut Diagnostics) {
    for (index, Service { name, .. }) in services.iter().enumerate() {
        // A service without a name has been complained about.
        if name.value.is_empty() && name.at == services[index].at {
            continue;
        }
        let wrong = |c: char| c.is_whitespace() || c.is_control();
        if name.value.is_empty() || name.value.contains(wrong) {
            out.error(
                name.at,
                format!(
                    "{:?} is not a name for a service; write one word, like \"web\"",
                    name.value
                ),
            );
        }
        if let Some(first) = services[..index]
            .iter()
            .find(|other| other.name.value == name.value)
        {
            let line = out.line(first.name.at);
            out.error(
                name.at,
                format!(
                    "the name `{}` is taken on line {line}; write another",
                    name.value
                ),
            );
        }
    }
}

/// What of the traffic on the path is a service's is listed once.
fn on_the_path(
    destinations: &[Located<Prefix>],
    ports: &[Located<RangeInclusive<u16>>],
    out: &mut Diagnostics,
) {
    covered(
        destinations,
        |a, b| nested(*a, *b),
        |prefix| ShowPrefix(*prefix).to_string(),
        out,
    );
    covered(ports, intersect, |ports| ShowPorts(ports).to_string(), out);
}

/// A box knows its clients by where they come in, and has uplinks that are not there.
fn uplinks(service: &Service, out: &mut Diagnostics) {
    let Mode::Box {
        uplinks, servers, ..
    } = &service.mode
    else {
        return;
    };
    if let Some(more) = servers.get(AggregationServers::MAX) {
        let most = AggregationServers::MAX;
        let said = format!("there can be {most} servers; remove this one");
        out.error(more.at, said);
    }
    if service.interfaces.is_empty() {
        let said = "a box has to know where its clients come in; write interfaces = [\"lan0\"]";
        out.error(service.at, said);
    }
    for uplink in uplinks {
        let mut clients = service.interfaces.iter();
        if clients.any(|name| name.value == uplink.value) {
            let said = format!(
                "clients come in on `{}`, so it can be no uplink",
                uplink.value
            );
            out.error(uplink.at, said);
        }
    }
    if let Some(more) = uplinks.get(MAX_UPLINKS) {
        let said = format!("there can be {MAX_UPLINKS} uplinks; remove this one");
        out.error(more.at, said);
    }
    if let Some(announce) = service.announce.first() {
        let said =
            "a box is the client of its servers, and announces no addresses; remove `announce`";
        out.error(announce.at, said);
    }
}

/// Nothing is listed twice.
fn lists(service: &Service, out: &mut Diagnostics) {
    duplicates(&service.interfaces, Clone::clone, out);
    duplicates(
        &service.announce,
        |announce| ShowAnnounce(*announce).to_string(),
        out,
    );
    match &service.mode {
        Mode::Box { .. } => lists_of_box(&service.mode, out),
        Mode::Transparent {
            destinations,
            ports,
            ..
        } => on_the_path(destinations, ports, out),
        Mode::Reverse {
            listen,
            backends,
            source,
            ..
        } => {
            duplicates(listen, ToString::to_string, out);
            duplicates(&addresses(backends), ToString::to_string, out);
            duplicates(source, ToString::to_string, out);
        }
        Mode::Explicit {
            listen,
            allow,
            ports,
            source,
            users,
            ..
        } => {
            duplicates(listen, ToString::to_string, out);
            let name = |user: &User| String::from_utf8_lossy(&user.name).into_owned();
            duplicates(users, name, out);
            // A narrow prefix within a wide one may name what that does not.
            duplicates(allow, |prefix| ShowPrefix(*prefix).to_string(), out);
            covered(ports, intersect, |ports| ShowPorts(ports).to_string(), out);
            duplicates(source, ToString::to_string, out);
        }
    }
}

/// The same of a box.
fn lists_of_box(mode: &Mode, out: &mut Diagnostics) {
    let Mode::Box {
        destinations,
        ports,
        uplinks,
        servers,
        except,
        join,
        ..
    } = mode
    else {
        return;
    };
    on_the_path(destinations, ports, out);
    duplicates(uplinks, Clone::clone, out);
    let addrs: Vec<_> = servers
        .iter()
        .map(|server| Located::new(server.value.addr, server.at))
        .collect();
    duplicates(&addrs, ToString::to_string, out);
    duplicates(join, |prefix| ShowPrefix(*prefix).to_string(), out);
    duplicates(except, |set| ShowPrefix(set.servers).to_string(), out);
}

fn duplicates<T: PartialEq>(
    list: &[Located<T>],
    show: impl Fn(&T) -> String,
    out: &mut Diagnostics,
) {
    for (index, item) in list.iter().enumerate() {
        if list[..index].iter().any(|other| other.value == item.value) {
            out.error(
                item.at,
                format!("{} is listed twice; remove one", show(&item.value)),
            );
        }
    }
}

fn covered<T: PartialEq>(
    list: &[Located<T>],
    overlap: impl Fn(&T, &T) -> bool,
    show: impl Fn(&T) -> String,
    out: &mut Diagnostics,
) {
    for (index, item) in list.iter().enumerate() {
        let Some(other) = list[..index]
            .iter()
            .find(|other| overlap(&other.value, &item.value))
        else {
            continue;
        };
        if other.value == item.value {
            out.error(
                item.at,
                format!("{} is listed twice; remove one", show(&item.value)),
            );
        } else {
            let (item_said, other_said) = (show(&item.value), show(&other.value));
            out.error(
                item.at,
                format!("{item_said} and {other_said} of the same list overlap; keep the wider"),
            );
        }
    }
}

/// Addresses are such as hosts have.
fn hosts(service: &Service, out: &mut Diagnostics) {
    let mut usable = |at, key: &str, addr: IpAddr| {
        // A server on this host may well listen there. The kernel takes packets to ::1 from no other device.
        let own = key == "backends" && addr.is_ipv4() && addr.is_loopback();
        if let Some(wrong) = value::unusable(addr).filter(|_| !own) {
            out.error(at, format!("`{key}`: {wrong}"));
        }
    };
    for announce in &service.announce {
        usable(announce.at, "announce", announce.value.addr);
    }
    match &service.mode {
        Mode::Transparent { destinations, .. } | Mode::Box { destinations, .. } => {
            // A prefix shorter than these may well have such addresses in it: 0.0.0.0/0 does.
            for destination in destinations {
                let Prefix { addr, len } = destination.value;
                if len >= if addr.is_ipv4() { 8 } else { 10 } {
                    usable(destination.at, "destinations", addr);
                }
            }
        }
        Mode::Reverse {
            listen,
            backends,
            source,
            ..
        } => {
            listen
                .iter()
                .for_each(|addr| usable(addr.at, "listen", addr.value.ip()));
            backends
                .iter()
                .for_each(|backend| usable(backend.at, "backends", backend.value.addr.ip()));
            source
                .iter()
                .for_each(|addr| usable(addr.at, "source", addr.value));
        }
        Mode::Explicit { listen, source, .. } => {
            listen
                .iter()
                .for_each(|addr| usable(addr.at, "listen", addr.value.ip()));
            source
                .iter()
                .for_each(|addr| usable(addr.at, "source", addr.value));
        }
    }
}

/// The kernel's routing rules, which bring the packets to FlexCP, know no port 65535 except among
/// all ports.
fn ports(service: &Service, out: &mut Diagnostics) {
    let mut known = |at, ports: &RangeInclusive<u16>| {
        let hint = match (*ports.start(), *ports.end()) {
            (2..u16::MAX, u16::MAX) => format!("write \"{}-65534\"", ports.start()),
            (u16::MAX, _) => "use another".into(),
            _ => return,
        };
        out.error(
            at,
            format!("the kernel's routing rules can't tell port 65535; {hint}"),
        );
    };
    for announce in &service.announce {
        if let Some(port) = announce.value.port {
            known(announce.at, &(port..=port));
        }
    }
    match &service.mode {
        Mode::Transparent { ports, .. } => {
            ports.iter().for_each(|ports| known(ports.at, &ports.value));
        }
        Mode::Box {
            ports,
            source_ports,
            ..
        } => {
            let all = ports.iter().chain([source_ports]);
            all.for_each(|ports| known(ports.at, &ports.value));
        }
        Mode::Reverse {
            listen,
            backends,
            source_ports,
            ..
        } => {
            for addr in listen.iter().chain(&addresses(backends)) {
                known(addr.at, &(addr.value.port()..=addr.value.port()));
            }
            known(source_ports.at, &source_ports.value);
        }
        Mode::Explicit {
            listen,
            source_ports,
            ..
        } => {
            for addr in listen {
                known(addr.at, &(addr.value.port()..=addr.value.port()));
            }
            known(source_ports.at, &source_ports.value);
        }
    }
}

/// There is a source address for each back end, when any is given.
fn sources(backends: &[Located<Backend>], source: &[Located<IpAddr>], out: &mut Diagnostics) {
    if source.is_empty() {
        return;
    }
    let same = |a: IpAddr, b: IpAddr| a.is_ipv4() == b.is_ipv4();
    for backend in backends {
        let addr = backend.value.addr.ip();
        if !source.iter().any(|source| same(source.value, addr)) {
            let family = value::family(addr);
            out.error(
                backend.at,
                format!(
                    "no {family} address in `source` for back end {}; add one",
                    backend.value.addr
                ),
            );
        }
    }
    for source in source {
        if !backends
            .iter()
            .any(|backend| same(source.value, backend.value.addr.ip()))
        {
            let family = value::family(source.value);
            out.warning(
                source.at,
                format!("no back end is {family}, so {} is not used", source.value),
            );
        }
    }
}

fn ports_towards_servers(ports: &Located<RangeInclusive<u16>>, out: &mut Diagnostics) {
    let count = ports.value.len();
    if *ports.value.start() < 1024 {
        out.error(
            ports.at,
            format!(
                "`source_ports` {} has ports below 1024, which belong to servers; \
                 use high ones, like \"61000-65534\"",
                ShowPorts(&ports.value)
            ),
        );
    }
    if count < FEW_PORTS {
        out.warning(
            ports.at,
            format!(
                "`source_ports` {} has {count} ports, and each connection to a server at one time \
                 takes one; use more, like \"61000-65534\"",
                ShowPorts(&ports.value)
            ),
        );
    }
}

/// No back end is FlexCP itself.
fn loops(services: &[Service], out: &mut Diagnostics) {
    for service in services {
        for backend in service.mode.backends() {
            for other in services {
                let mut listen = other.mode.listen().iter();
                if listen.any(|listen| listen.value == backend.value.addr) {
                    let (name, line) = (&other.name.value, out.line(other.at));
                    out.error(
                        backend.at,
                        format!(
                            "back end {} is where service `{name}` (line {line}) listens; \
                             write the server's own address",
                            backend.value.addr
                        ),
                    );
                }
            }
        }
    }
}

/// Where back ends are.
fn addresses(backends: &[Located<Backend>]) -> Vec<Located<SocketAddr>> {
    let addresses = backends.iter();
    addresses
        .map(|backend| Located::new(backend.value.addr, backend.at))
        .collect()
}

fn path_len(path: &Path) -> usize {
    path.as_os_str().len()
}

/// `sun_path` of unix(7) with its final zero.
const SOCKET_PATH_MAX: usize = 107;

/// Fewer ports than this are worth a remark.
const FEW_PORTS: usize = 1024;

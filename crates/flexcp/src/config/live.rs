//! What the file says must fit the host: interfaces, addresses, ports, routes.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::Path;

use flexcp_io::Interface;
use flexcp_translator::MAX_UPLINKS;

use super::backend::Backend;
use super::file::{Config, Mode, Service};
use super::overlap::intersect;
use super::plan;
use super::span::{Diagnostics, Located};
use super::value::ShowPorts;
use crate::control::status::Status;
use crate::control::{Client, Token, TokenError, target};
use crate::location::keyfile::{self, KeyError};
use crate::vrf;

/// What there is to know about the host.
pub trait Host {
    /// Whether there is a network device of that name.
    fn interface_exists(&self, name: &str) -> bool;
    /// The TUN device of a FlexCP that is running here, or that an earlier run has left to this process.
    fn diverting_device(&self) -> Option<String>;
    /// Why this process can't make files in `directory`, which is made if it is missing.
    fn refuses_files(&self, directory: &Path) -> Option<io::Error>;
    /// Why the file `path` has no token for the API.
    fn refuses_token(&self, path: &Path) -> Option<TokenError>;
    /// Why the file `path` has no keys for probes.
    fn refuses_keys(&self, path: &Path) -> Option<KeyError>;
    /// Interface and address, for each address of the host.
    fn local_addresses(&self) -> Vec<(String, IpAddr)>;
    /// All network devices.
    fn interfaces(&self) -> Vec<Interface>;
    /// The address that the kernel would use towards `destination`, in a VRF if one is named.
    fn route_source(&self, destination: IpAddr, vrf: Option<&str>) -> Option<IpAddr>;
    /// A socket of the kernel that listens on `addr`, or on all addresses with that port.
    fn tcp_listener_on(&self, addr: SocketAddr) -> Option<String>;
    /// The ports that the kernel takes for its own connections.
    fn local_port_range(&self) -> Option<RangeInclusive<u16>>;
}

/// The host that we run on.
#[derive(Clone, Default, Debug)]
pub struct ThisHost {
    /// The TUN device whose queues the service manager has passed on to this process: it is FlexCP's, with or without the
    /// rules of the run that has made it.
    pub kept: Option<String>,
    /// Where FlexCP itself listens, as its relay of split connections does.
    pub relays: Vec<SocketAddr>,
}

impl ThisHost {
    /// The host beside the FlexCP that runs with this control socket, if there is one.
    #[must_use]
    pub fn beside(socket: &Path) -> Self {
        let status = Client::new(socket).ask(target::STATUS).ok();
        let status = status.and_then(|answer| answer.read::<Status>().ok());
        Self {
            kept: None,
            relays: status.map(|status| status.split_on).unwrap_or_default(),
        }
    }
}

impl Host for ThisHost {
    fn interface_exists(&self, name: &str) -> bool {
        flexcp_io::interface_exists(name)
    }

    fn diverting_device(&self) -> Option<String> {
        self.kept.clone().or_else(flexcp_io::diverting_device)
    }

    fn refuses_files(&self, directory: &Path) -> Option<io::Error> {
        use rustix::fs::{Access, AtFlags, CWD, accessat};

        let there = directory.ancestors().find(|directory| directory.exists())?;
        // The directory itself, then an entry in it: what is no directory is found so.
        let rights = Access::WRITE_OK | Access::EXEC_OK;
        let allowed = accessat(CWD, there.join("."), rights, AtFlags::EACCESS);
        allowed.err().map(Into::into)
    }

    fn refuses_token(&self, path: &Path) -> Option<TokenError> {
        Token::read(path).err()
    }

    fn refuses_keys(&self, path: &Path) -> Option<KeyError> {
        keyfile::read(path).err()
    }

    fn local_addresses(&self) -> Vec<(String, IpAddr)> {
        flexcp_io::local_addresses()
    }

    fn interfaces(&self) -> Vec<Interface> {
        flexcp_io::interfaces().unwrap_or_default()
    }

    fn route_source(&self, destination: IpAddr, vrf: Option<&str>) -> Option<IpAddr> {
        flexcp_io::route_source(destination, vrf)
    }

    fn tcp_listener_on(&self, addr: SocketAddr) -> Option<String> {
        let own = self.relays.contains(&addr);
        (!own).then(|| flexcp_io::tcp_listener_on(addr)).flatten()
    }

    fn local_port_range(&self) -> Option<RangeInclusive<u16>> {
        let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").ok()?;
        let mut words = text.split_whitespace().map(str::parse);
        Some(words.next()?.ok()?..=words.next()?.ok()?)
    }
}

/// The addresses of this host.
#[must_use]
pub fn own_addresses() -> Vec<IpAddr> {
    let own = flexcp_io::local_addresses();
    own.into_iter().map(|(_, addr)| addr).collect()
}

/// Adds everything that does not fit `host` to `out`. Gives for each service the addresses towards
/// its back ends: none but in reverse mode.
pub fn check(config: &Config, host: &dyn Host, out: &mut Diagnostics) -> Vec<Vec<IpAddr>> {
    device(config, host, out);
    directories(config, host, out);
    token(config, host, out);
    keys(config, host, out);
    vrfs(config, &host.interfaces(), out);
    let vrf = plan::vrf(config);
    let local = host.local_addresses();
    responder(config, &local, out);
    let mut sources = Vec::new();
    for service in &config.services {
        interfaces(service, host, &local, out);
        for announce in &service.announce {
            local_or_routed(announce.at, announce.value.addr, "announce", &local, out);
            if let Some(port) = announce.value.port {
                free(
                    announce.at,
                    SocketAddr::new(announce.value.addr, port),
                    host,
                    out,
                );
            }
        }
        for listen in service.mode.listen() {
            local_or_routed(listen.at, listen.value.ip(), "listen", &local, out);
            free(listen.at, listen.value, host, out);
        }
        if let Some(source_ports) = service.mode.source_ports() {
            distinct_ports(source_ports, host, out);
        }
        if let Mode::Box { uplinks, .. } = &service.mode {
            sources.push(of_uplinks(uplinks, &local, out));
            continue;
        }
        let (Mode::Reverse { source, .. } | Mode::Explicit { source, .. }) = &service.mode else {
            sources.push(Vec::new());
            continue;
        };
        for source in source {
            local_or_routed(source.at, source.value, "source", &local, out);
        }
        let route = |addr| host.route_source(addr, vrf);
        sources.push(match &service.mode {
            Mode::Explicit { listen, .. } if source.is_empty() => addresses(listen),
            Mode::Explicit { .. } => source.iter().map(|source| source.value).collect(),
            _ => towards(service.mode.backends(), source, &route, &local, out),
        });
    }
    sources
}

/// The addresses that uplinks have: all of the first, then of the next.
fn of_uplinks(
    uplinks: &[Located<String>],
    local: &[(String, IpAddr)],
    out: &mut Diagnostics,
) -> Vec<IpAddr> {
    let mut all = Vec::new();
    for uplink in uplinks {
        let own = local.iter().filter(|(name, _)| *name == uplink.value);
        let own = own.map(|(_, addr)| *addr).filter(|addr| is_routed(*addr));
        let before = all.len();
        all.extend(own);
        if all.len() == before {
            let said = format!(
                "uplink `{}` has no address; connections go out by the others until it has one",
                uplink.value
            );
            out.warning(uplink.at, said);
        }
    }
    all.truncate(MAX_UPLINKS);
    all
}

/// Beyond its link.
pub(crate) fn is_routed(addr: IpAddr) -> bool {
    match addr {
        IpAddr::V4(addr) => !addr.is_link_local() && !addr.is_loopback(),
        IpAddr::V6(addr) => !addr.is_unicast_link_local() && !addr.is_loopback(),
    }
}

/// Those at which clients connect, each once.
fn addresses(listen: &[Located<SocketAddr>]) -> Vec<IpAddr> {
    let mut all: Vec<_> = listen.iter().map(|listen| listen.value.ip()).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// The device is to be made, and must not be somebody's already. That of a running FlexCP is none of somebody's: whether
/// there can be a second one is found out when it starts.
fn device(config: &Config, host: &dyn Host, out: &mut Diagnostics) {
    let name = &config.device.name;
    if host.interface_exists(&name.value) && host.diverting_device().as_ref() != Some(&name.value) {
        out.error(
            name.at,
            format!(
                "there is an interface `{0}` already, which is not FlexCP's; write another `name` in [device], \
                 for a device that FlexCP makes itself",
                name.value
            ),
        );
    }
}

/// The device's VRF is there, and the interfaces of services are in it.
fn vrfs(config: &Config, there: &[Interface], out: &mut Diagnostics) {
    if let Some(vrf) = &config.device.vrf
        && !there.iter().any(|one| one.is_vrf && one.name == vrf.value)
    {
        let vrfs = there.iter().filter(|interface| interface.is_vrf);
        let names: Vec<_> = vrfs.map(|vrf| vrf.name.as_str()).collect();
        let hint = match names.is_empty() {
            true => "there is none at all".to_owned(),
            false => format!("there are: {}", names.join(", ")),
        };
        out.error(
            vrf.at,
            format!("`vrf`: there is no VRF `{}`; {hint}", vrf.value),
        );
        return;
    }
    for interface in config
        .services
        .iter()
        .flat_map(|service| &service.interfaces)
    {
        if let Some(stray) = vrf::stray(there, plan::vrf(config), &interface.value) {
            out.warning(interface.at, stray);
        }
    }
}

/// Files can be made where they have to be.
fn directories(config: &Config, host: &dyn Host, out: &mut Diagnostics) {
    let (state, socket) = (&config.control.state_dir, &config.control.socket);
    let of_socket = socket.value.parent().unwrap_or_else(|| Path::new("/"));
    let mut places = vec![("state_dir", state.at, state.value.as_path())];
    if of_socket != state.value {
        places.push(("socket", socket.at, of_socket));
    }
    for (key, at, directory) in places {
        let Some(error) = host.refuses_files(directory) else {
            continue;
        };
        let directory = directory.display();
        if error.kind() == io::ErrorKind::PermissionDenied {
            let hint = "let the user that runs flexcp write there";
            out.warning(
                at,
                format!("`{key}`: this user can't make files in {directory}: {error}; {hint}"),
            );
        } else {
            let hint = "write another directory, like \"/run/flexcp\"";
            out.error(
                at,
                format!("`{key}`: no files can be made in {directory}: {error}; {hint}"),
            );
        }
    }
}

/// Whoever asks over TCP can be told from others.
fn token(config: &Config, host: &dyn Host, out: &mut Diagnostics) {
    let Some(file) = config
        .control
        .token_file
        .as_ref()
        .filter(|_| config.control.listen.is_some())
    else {
        return;
    };
    match host.refuses_token(&file.value) {
        None => {}
        Some(TokenError::Read { error, path })
            if error.kind() == io::ErrorKind::PermissionDenied =>
        {
            let path = path.display();
            out.warning(
                file.at,
                format!("`token_file`: this user can't read {path}; let the user that runs flexcp read it"),
            );
        }
        Some(wrong) => out.error(file.at, format!("`token_file`: {wrong}")),
    }
}

/// Files of keys have some, and keep them. Nothing is probed or answered with one that this user can't read.
fn keys(config: &Config, host: &dyn Host, out: &mut Diagnostics) {
    let mut files = Vec::new();
    for service in &config.services {
        if let Mode::Box {
            servers, choice, ..
        } = &service.mode
            && choice.measures()
        {
            let named = servers.iter().filter(|server| server.value.probe.is_some());
            files.extend(named.filter_map(|it| Some((it.at, it.value.key_file.as_ref()?))));
        }
    }
    let responder = config.responder.as_ref();
    let named = responder.and_then(|responder| responder.key_file.as_ref());
    files.extend(named.map(|file| (file.at, &file.value)));
    for (at, file) in files {
        match host.refuses_keys(file) {
            None => {}
            Some(KeyError::Read { error, path })
                if error.kind() == io::ErrorKind::PermissionDenied =>
            {
                let path = path.display();
                out.warning(
                    at,
                    format!("`key_file`: this user can't read {path}; let the user that runs flexcp read it"),
                );
            }
            Some(wrong) => out.error(at, format!("`key_file`: {wrong}")),
        }
    }
}

/// Where probes are answered is an address of this host, sooner or later.
fn responder(config: &Config, local: &[(String, IpAddr)], out: &mut Diagnostics) {
    let listen = config.responder.iter().flat_map(|it| &it.listen);
    for listen in listen {
        let is_there = |(_, addr): &(String, IpAddr)| *addr == listen.value.ip();
        if !local.iter().any(is_there) {
            out.warning(
                listen.at,
                format!(
                    "`listen` of [responder]: this host has no address {} now, FlexCP waits for it",
                    listen.value.ip()
                ),
            );
        }
    }
}

fn interfaces(
    service: &Service,
    host: &dyn Host,
    local: &[(String, IpAddr)],
    out: &mut Diagnostics,
) {
    for interface in &service.interfaces {
        if host.interface_exists(&interface.value) {
            continue;
        }
        let mut there: Vec<&str> = local.iter().map(|(name, _)| name.as_str()).collect();
        there.sort_unstable();
        there.dedup();
        let hint = match there.is_empty() {
            true => String::new(),
            false => format!("; with addresses there are: {}", there.join(", ")),
        };
        out.warning(
            interface.at,
            format!(
                "there is no interface `{}` now, FlexCP waits for it{hint}",
                interface.value
            ),
        );
    }
}

/// Clients reach an address that is no interface's when it is routed to the host.
fn local_or_routed(
    at: usize,
    addr: IpAddr,
    key: &str,
    local: &[(String, IpAddr)],
    out: &mut Diagnostics,
) {
    if !local.iter().any(|(_, own)| *own == addr) {
        out.warning(
            at,
            format!(
                "`{key}`: {addr} is not on any interface; packets to it must be routed to this host"
            ),
        );
    }
}

fn free(at: usize, addr: SocketAddr, host: &dyn Host, out: &mut Diagnostics) {
    if let Some(listener) = host.tcp_listener_on(addr) {
        out.error(
            at,
            format!(
                "address already in use: {addr}: a TCP socket of this host listens on {listener}; \
                     stop its program or use another address or port"
            ),
        );
    }
}

fn distinct_ports(ports: &Located<RangeInclusive<u16>>, host: &dyn Host, out: &mut Diagnostics) {
    let Some(range) = host.local_port_range() else {
        return;
    };
    if intersect(&ports.value, &range) {
        out.warning(
            ports.at,
            format!(
                "`source_ports` {} overlaps with net.ipv4.ip_local_port_range {}, from which the \
                 host's own connections take their ports; FlexCP will reserve them",
                ShowPorts(&ports.value),
                ShowPorts(&range)
            ),
        );
    }
}

/// The addresses towards `backends`: those given, or else the kernel's choice. Towards one on this host itself, where any of
/// its addresses will do, that is one that another back end needs, if there is one.
fn towards(
    backends: &[Located<Backend>],
    given: &[Located<IpAddr>],
    route: &dyn Fn(IpAddr) -> Option<IpAddr>,
    local: &[(String, IpAddr)],
    out: &mut Diagnostics,
) -> Vec<IpAddr> {
    let mut sources: Vec<IpAddr> = given.iter().map(|source| source.value).collect();
    let is_own = |addr: IpAddr| addr.is_loopback() || local.iter().any(|(_, own)| *own == addr);
    let (own, mut others): (Vec<&Located<Backend>>, Vec<_>) = backends
        .iter()
        .partition(|backend| is_own(backend.value.addr.ip()));
    if !given.is_empty() {
        others.clear();
    }
    for backend in others {
        match route(backend.value.addr.ip()) {
            Some(source) if sources.contains(&source) => {}
            Some(source) => sources.push(source),
            None => out.error(
                backend.at,
                format!(
                    "there is no route to back end {}; add one, or set `source`",
                    backend.value.addr
                ),
            ),
        }
    }
    for backend in own {
        let addr = backend.value.addr.ip();
        if !sources
            .iter()
            .any(|source| source.is_ipv4() == addr.is_ipv4())
        {
            sources.push(addr);
        }
    }
    sources
}

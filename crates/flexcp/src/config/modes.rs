//! What a service has by its mode, read from the file.

use std::ops::RangeInclusive;

use flexcp_translator::{Excepted, Protocol};

use super::aggregation::Exception;
use super::file::{Mode, ProxyProtocol};
use super::location;
use super::read::{Interface, Ports, Reader};
use super::span::{Diagnostics, Located};

const SOURCE_PORTS: RangeInclusive<u16> = 61000..=65534;

pub(super) fn transparent(section: &Reader<'_, '_>, out: &mut Diagnostics) -> Mode {
    let hint = "list the servers' prefixes, or [\"0.0.0.0/0\", \"::/0\"] for all servers";
    Mode::Transparent {
        destinations: section.required_list("destinations", hint, out),
        ports: ports(section, out),
        end_to_end: section.or("end_to_end", true, out),
    }
}

pub(super) fn aggregation_box(section: &Reader<'_, '_>, out: &mut Diagnostics) -> Mode {
    let destinations = "list the servers' prefixes, or [\"0.0.0.0/0\", \"::/0\"] for all servers";
    let uplinks = "list the interfaces that connections go out by, like [\"dsl0\", \"lte0\"]";
    let named = section.required_list::<Interface>("uplinks", uplinks, out);
    let named = named.into_iter();
    Mode::Box {
        destinations: section.required_list("destinations", destinations, out),
        ports: ports(section, out),
        except: exceptions(section, out),
        servers: section.list("servers", out),
        choice: location::choice(section, out),
        join: section.list("join", out),
        uplinks: named
            .map(|name| Located::new(name.value.0, name.at))
            .collect(),
        source_ports: source_ports(section, out),
        routes: section.or("routes", true, out),
    }
}

pub(super) fn reverse(section: &Reader<'_, '_>, out: &mut Diagnostics) -> Mode {
    let listen = "write the addresses that clients connect to, like [\"192.0.2.1:443\"]";
    let backends = "write the servers' addresses, like [\"10.0.0.11:443\"]";
    Mode::Reverse {
        listen: section.required_list("listen", listen, out),
        backends: section.required_list("backends", backends, out),
        check: section.optional("check", out),
        proxy_protocol: section.or("proxy_protocol", ProxyProtocol::Off, out),
        source: section.list("source", out),
        source_ports: source_ports(section, out),
    }
}

pub(super) fn explicit(
    section: &Reader<'_, '_>,
    protocol: Protocol,
    out: &mut Diagnostics,
) -> Mode {
    let listen = "write the addresses that clients connect to, like [\"192.0.2.1:1080\"]";
    let allow = "list the servers' prefixes, or [\"0.0.0.0/0\", \"::/0\"] for all public servers";
    Mode::Explicit {
        protocol,
        users: match protocol {
            Protocol::Convert => Vec::new(),
            Protocol::Socks5 => section.list("users", out),
        },
        listen: section.required_list("listen", listen, out),
        allow: section.required_list("allow", allow, out),
        cookies: match protocol {
            Protocol::Convert => section.or("cookies", false, out),
            Protocol::Socks5 => Located::default(false),
        },
        ports: ports(section, out),
        source: section.list("source", out),
        source_ports: source_ports(section, out),
    }
}

/// What a box leaves alone.
fn exceptions(section: &Reader<'_, '_>, out: &mut Diagnostics) -> Vec<Located<Excepted>> {
    let listed = section.list::<Exception>("except", out).into_iter();
    listed
        .map(|listed| Located::new(listed.value.0, listed.at))
        .collect()
}

/// The servers' ports.
fn ports(section: &Reader<'_, '_>, out: &mut Diagnostics) -> Vec<Located<RangeInclusive<u16>>> {
    let ports = section.list::<Ports>("ports", out).into_iter();
    ports
        .map(|ports| Located::new(ports.value.0, ports.at))
        .collect()
}

/// FlexCP's ports towards the servers.
fn source_ports(section: &Reader<'_, '_>, out: &mut Diagnostics) -> Located<RangeInclusive<u16>> {
    section.optional::<Ports>("source_ports", out).map_or_else(
        || Located::default(SOURCE_PORTS),
        |ports| Located::new(ports.value.0, ports.at),
    )
}

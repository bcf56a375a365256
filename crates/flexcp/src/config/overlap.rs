//! Each destination belongs to one service. A narrower claim before a wider one is an exception to
//! it, as the first that matches takes a connection.

use std::fmt;
use std::ops::RangeInclusive;

use flexcp_translator::Prefix;

use super::file::{Mode, Service};
use super::span::{Diagnostics, Located};
use super::value::ShowPrefix;

/// Complains about every service that claims what an earlier one has taken.
pub(super) fn check(services: &[Service], out: &mut Diagnostics) {
    for (index, service) in services.iter().enumerate() {
        for first in &services[..index] {
            overlap(first, service, out);
        }
    }
}

/// One complaint for each pair of services is enough.
fn overlap(first: &Service, second: &Service, out: &mut Diagnostics) {
    let earlier = Claim::of(first);
    for claim in Claim::of(second) {
        for taken in earlier.iter().filter(|taken| taken.overlaps(&claim)) {
            let (name, line) = (&first.name.value, out.line(first.at));
            let message = match (taken.covers(&claim), claim.covers(taken)) {
                (false, true) => continue,
                (true, true) => format!(
                    "{claim} belongs to service `{name}` (line {line}) already; \
                     leave it to one of the two{}",
                    apart(first, second)
                ),
                (true, false) => format!(
                    "{claim} never gets here: service `{name}` (line {line}) comes first and takes \
                     {taken}; put the narrower service first{}",
                    apart(first, second)
                ),
                (false, false) => format!(
                    "{claim} overlaps with {taken} of service `{name}` (line {line}); \
                     give the common part to one of the two{}",
                    apart(first, second)
                ),
            };
            out.error(claim.at, message);
            return;
        }
    }
}

/// A remark for those who expect `interfaces` to make the difference.
fn apart(first: &Service, second: &Service) -> &'static str {
    let common = |name| first.interfaces.iter().any(|other| other.value == name);
    let differ = !first.interfaces.is_empty()
        && !second.interfaces.is_empty()
        && !second
            .interfaces
            .iter()
            .any(|name| common(name.value.as_str()));
    if differ {
        " (`interfaces` does not tell services apart)"
    } else {
        ""
    }
}

/// What a service takes for itself: an address prefix and ports.
struct Claim {
    at: usize,
    prefix: Prefix,
    ports: RangeInclusive<u16>,
}

impl Claim {
    fn of(service: &Service) -> Vec<Self> {
        match &service.mode {
            Mode::Transparent {
                destinations,
                ports,
                ..
            }
            | Mode::Box {
                destinations,
                ports,
                ..
            } => {
                let all = [Located::new(1..=u16::MAX, 0)];
                let ports = if ports.is_empty() { &all[..] } else { ports };
                let with = |to: &Located<Prefix>, ports: &RangeInclusive<u16>| Self {
                    at: to.at,
                    prefix: to.value,
                    ports: ports.clone(),
                };
                destinations
                    .iter()
                    .flat_map(|to| ports.iter().map(move |ports| with(to, &ports.value)))
                    .collect()
            }
            Mode::Reverse { listen, .. } | Mode::Explicit { listen, .. } => listen
                .iter()
                .map(|to| {
                    let addr = to.value.ip();
                    let len = if addr.is_ipv4() { 32 } else { 128 };
                    let port = to.value.port();
                    Self {
                        at: to.at,
                        prefix: Prefix { addr, len },
                        ports: port..=port,
                    }
                })
                .collect(),
        }
    }

    fn overlaps(&self, other: &Self) -> bool {
        nested(self.prefix, other.prefix) && intersect(&self.ports, &other.ports)
    }

    fn covers(&self, other: &Self) -> bool {
        self.prefix.len <= other.prefix.len
            && self.prefix.contains(other.prefix.addr)
            && self.ports.contains(other.ports.start())
            && self.ports.contains(other.ports.end())
    }
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.prefix.len == if self.prefix.addr.is_ipv4() { 32 } else { 128 } {
            self.prefix.addr.fmt(f)?;
        } else {
            ShowPrefix(self.prefix).fmt(f)?;
        }
        match (*self.ports.start(), *self.ports.end()) {
            (1, u16::MAX) => f.write_str(" with all ports"),
            (first, last) if first == last => write!(f, " port {first}"),
            (first, last) => write!(f, " ports {first}-{last}"),
        }
    }
}

/// Whether one lies in the other.
pub(super) fn nested(a: Prefix, b: Prefix) -> bool {
    if a.len <= b.len {
        a.contains(b.addr)
    } else {
        b.contains(a.addr)
    }
}

/// Whether they have a port in common.
pub(super) fn intersect(a: &RangeInclusive<u16>, b: &RangeInclusive<u16>) -> bool {
    a.start() <= b.end() && b.start() <= a.end()
}

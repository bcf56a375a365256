//! What must be so on the host for packets to get through, beside what FlexCP puts back itself: it is only told.

use std::net::IpAddr;

use flexcp_io::{Interface, Plan, interfaces, route_source, switch};

use crate::config::file::{Config, Mode};
use crate::config::live::own_addresses;
use crate::config::plan;
use crate::control::status::{InterfaceStatus, ServiceStatus};
use crate::vrf;
use crate::worker::WorkerHandle;

use super::Watcher;

impl Watcher {
    /// Takes note of how the host is now, and has the workers know its addresses.
    pub(super) fn note_found(&mut self, found: Found) {
        if found.addresses != self.found.addresses {
            let tell = |worker: &WorkerHandle| worker.note_host_addresses(&found.addresses);
            self.workers.iter().for_each(tell);
            self.reloads.relay.note_host_addresses(&found.addresses);
        }
        self.found = found;
    }
}

/// What must be so, as the configuration says and the host was at the start.
#[derive(Debug)]
pub struct Expected {
    services: Vec<Service>,
    /// FlexCP's own.
    device: String,
    /// The VRF that it is to be in.
    vrf: Option<String>,
    /// Switches that must be on: below `/proc/sys`, and the interface whose packets they are about, if it is one's.
    switches: Vec<(String, Option<String>)>,
    /// Index and name of the interfaces that services name, when they were last seen.
    seen: Vec<(u32, String)>,
}

/// What a service needs.
#[derive(Debug)]
struct Service {
    name: String,
    mode: &'static str,
    interfaces: Vec<String>,
    /// The host's own at the start, and what for.
    addresses: Vec<(&'static str, IpAddr)>,
    /// Back ends whose source address is the kernel's choice.
    backends: Vec<IpAddr>,
    /// The addresses towards them.
    sources: Vec<IpAddr>,
}

/// How the host is.
#[derive(Clone, Default, Debug)]
pub(crate) struct Found {
    pub(crate) interfaces: Vec<Interface>,
    addresses: Vec<IpAddr>,
    /// Back ends, and the address that the kernel would use towards them.
    routes: Vec<(IpAddr, Option<IpAddr>)>,
    /// Of [`Expected::switches`], those that are off.
    off: Vec<String>,
}

/// Something is not as it must be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Problem {
    pub(crate) line: String,
    /// Which service it is about, by its place; `None`: about all.
    pub(crate) service: Option<usize>,
    /// Whether nothing gets through as long as it is so.
    pub(crate) stops: bool,
}

impl Expected {
    /// From the configuration, with the addresses towards each service's back ends, and what is changed in the kernel.
    #[must_use]
    pub fn new(config: &Config, sources: &[Vec<IpAddr>], plan: &Plan) -> Self {
        let local: Vec<_> = own_addresses();
        let services: Vec<_> = config
            .services
            .iter()
            .zip(sources)
            .map(|(service, sources)| Service::new(service, sources, &local))
            .collect();
        let mut switches = Vec::new();
        if plan.v4 {
            switches.push((IPV4.to_owned(), None));
            let named = services.iter().flat_map(|service| &service.interfaces);
            for interface in named.chain([&config.device.name.value]) {
                let key = format!("net/ipv4/conf/{interface}/forwarding");
                switches.push((key, Some(interface.clone())));
            }
        }
        if plan.v6 {
            switches.push((IPV6.to_owned(), None));
        }
        switches.dedup();
        Self {
            services,
            device: config.device.name.value.clone(),
            vrf: plan::vrf(config).map(str::to_owned),
            switches,
            seen: Vec::new(),
        }
    }

    /// The same of another configuration, with the interfaces that were seen.
    pub(crate) fn followed_by(&mut self, next: Self) {
        *self = Self {
            seen: std::mem::take(&mut self.seen),
            ..next
        };
    }

    /// Asks the kernel; `None` when it does not tell.
    pub(crate) fn find(&self) -> Option<Found> {
        let backends = self.services.iter().flat_map(|service| &service.backends);
        let switches = self.switches.iter().map(|(key, _)| key);
        let route = |to: &IpAddr| (*to, route_source(*to, self.vrf.as_deref()));
        Some(Found {
            interfaces: interfaces().ok()?,
            addresses: own_addresses(),
            routes: backends.map(route).collect(),
            off: switches
                .filter(|key| switch(key).as_deref() == Some("0"))
                .cloned()
                .collect(),
        })
    }

    /// What is not as it must be.
    pub(crate) fn judge(&mut self, found: &Found) -> Vec<Problem> {
        let mut problems = self.switches_off(found);
        for (at, service) in self.services.iter().enumerate() {
            let mut tell = |line, stops| {
                problems.push(Problem {
                    line,
                    service: Some(at),
                    stops,
                });
            };
            let there = |name: &String| found.interfaces.iter().any(|there| there.name == *name);
            let none = !service.interfaces.iter().any(there);
            for name in service.interfaces.iter().filter(|name| !there(name)) {
                tell(self.missing(&service.name, name, found), none);
            }
            let vrf = vrf::of_device(&found.interfaces, &self.device, self.vrf.as_deref());
            for name in &service.interfaces {
                if let Some(stray) = vrf::stray(&found.interfaces, vrf, name) {
                    tell(format!("service {}: {stray}", service.name), false);
                }
            }
            service.addresses_lost(found, &mut tell);
        }
        self.note_names(found);
        problems
    }

    fn switches_off(&self, found: &Found) -> Vec<Problem> {
        let off = |key: &str| found.off.iter().any(|off| off == key);
        let switches = self.switches.iter().filter(|(key, interface)| {
            // The switch of all sets that of each.
            off(key) && (interface.is_none() || !off(IPV4))
        });
        let told = switches.map(|(key, interface)| {
            let what = match interface {
                Some(interface) => format!("no IPv4 packet from {interface} is forwarded"),
                None if key == IPV4 => "no IPv4 packet is forwarded".to_owned(),
                None => "no IPv6 packet is forwarded".to_owned(),
            };
            let name = key.replace('/', ".");
            Problem {
                line: format!("{name} is 0, {what}: set it to 1 (sysctl -w {name}=1)"),
                service: None,
                stops: interface.is_none()
                    && self
                        .switches
                        .iter()
                        .all(|(key, interface)| interface.is_some() || off(key)),
            }
        });
        told.collect()
    }

    fn missing(&self, service: &str, name: &str, found: &Found) -> String {
        let before = self.seen.iter().find(|(_, seen)| seen == name);
        let now = before
            .and_then(|(index, _)| found.interfaces.iter().find(|there| there.index == *index));
        match now {
            Some(now) => format!(
                "interface {name} of service {service} is called {} now, which it does not name: give it its name \
                 back, or change `interfaces`",
                now.name
            ),
            None => {
                format!("interface {name} of service {service} is missing, FlexCP waits for it")
            }
        }
    }

    /// Remembers which interfaces have the names that services name.
    fn note_names(&mut self, found: &Found) {
        let there = |index| found.interfaces.iter().any(|there| there.index == index);
        self.seen.retain(|(index, _)| there(*index));
        let named = self.services.iter().flat_map(|service| &service.interfaces);
        for name in named {
            let now = found.interfaces.iter().find(|there| there.name == *name);
            if let Some(now) = now {
                self.seen
                    .retain(|(index, seen)| *index != now.index && seen != name);
                self.seen.push((now.index, name.clone()));
            }
        }
    }

    /// The services, as far as `problems` let them.
    pub(crate) fn status(&self, problems: &[Problem], found: &Found) -> Vec<ServiceStatus> {
        let services = self.services.iter().enumerate();
        let status = services.map(|(at, service)| {
            let interfaces = service.interfaces.iter().map(|name| {
                let there = found.interfaces.iter().find(|there| there.name == *name);
                InterfaceStatus {
                    name: name.clone(),
                    present: there.is_some(),
                    up: there.is_some_and(|there| there.up),
                }
            });
            let stops = |problem: &Problem| {
                problem.stops && problem.service.is_none_or(|service| service == at)
            };
            ServiceStatus {
                name: service.name.clone(),
                mode: service.mode.to_owned(),
                passes: !problems.iter().any(stops),
                interfaces: interfaces.collect(),
                marked_backends: vec![],
            }
        });
        status.collect()
    }
}

impl Service {
    fn new(service: &crate::config::file::Service, sources: &[IpAddr], local: &[IpAddr]) -> Self {
        let mut addresses: Vec<_> = service
            .announce
            .iter()
            .map(|announce| ("announced", announce.value.addr))
            .collect();
        let mut chosen = Vec::new();
        let listen = service.mode.listen().iter();
        addresses.extend(listen.map(|listen| ("listen", listen.value.ip())));
        if !matches!(service.mode, Mode::Box { .. }) {
            addresses.extend(sources.iter().map(|source| ("source", *source)));
        }
        if let Mode::Reverse {
            backends, source, ..
        } = &service.mode
            && source.is_empty()
        {
            let backends = backends.iter().map(|backend| backend.value.addr.ip());
            // To one on this host itself there is always a way.
            chosen.extend(backends.filter(|addr| !addr.is_loopback() && !local.contains(addr)));
            chosen.sort_unstable();
            chosen.dedup();
        }
        // One that is routed to this host may be no interface's.
        addresses.retain(|(_, addr)| local.contains(addr));
        addresses.dedup();
        Self {
            name: service.name.value.clone(),
            mode: service.mode.name(),
            interfaces: service
                .interfaces
                .iter()
                .map(|interface| interface.value.clone())
                .collect(),
            addresses,
            backends: chosen,
            sources: sources.to_vec(),
        }
    }

    /// Addresses of the host that are not its own any more, and back ends that it would go to from another.
    fn addresses_lost(&self, found: &Found, tell: &mut impl FnMut(String, bool)) {
        let name = &self.name;
        let lost = |addr: &IpAddr| !found.addresses.contains(addr);
        for (what, addr) in self.addresses.iter().filter(|(_, addr)| lost(addr)) {
            let all = self.addresses.iter().filter(|(other, _)| other == what);
            let none_left = all.clone().all(|(_, addr)| lost(addr));
            tell(
                format!(
                    "the {what} address {addr} of service {name} is not this host's any more: give it back (ip \
                     address add), or change it and reload flexcp (SIGHUP)"
                ),
                none_left && *what != "announced",
            );
        }
        for backend in &self.backends {
            let route = found.routes.iter().find(|(to, _)| to == backend);
            match route.and_then(|(_, source)| *source) {
                Some(source) if self.sources.contains(&source) => {}
                Some(source) => tell(
                    format!(
                        "the kernel goes to back end {backend} of service {name} from {source} now, and FlexCP does not: \
                         reload flexcp (SIGHUP), or set `source`"
                    ),
                    false,
                ),
                None => tell(
                    format!("there is no route to back end {backend} of service {name} any more"),
                    self.backends.len() == 1,
                ),
            }
        }
    }
}

const IPV4: &str = "net/ipv4/ip_forward";
const IPV6: &str = "net/ipv6/conf/all/forwarding";

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(index: u32, name: &str) -> Interface {
        Interface {
            index,
            name: name.into(),
            header: flexcp_io::LinkHeader::Ethernet,
            up: true,
            carrier: true,
            is_vrf: false,
            vrf: None,
            is_port: false,
        }
    }

    fn addr(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// A service on two interfaces, and one in front of a back end.
    fn expected() -> Expected {
        let web = Service {
            name: "web".into(),
            mode: "transparent",
            interfaces: vec!["a1".into(), "a2".into()],
            addresses: vec![("announced", addr("192.0.2.1"))],
            backends: vec![],
            sources: vec![],
        };
        let shop = Service {
            name: "shop".into(),
            mode: "reverse",
            interfaces: vec![],
            addresses: vec![("source", addr("10.0.0.1"))],
            backends: vec![addr("10.0.0.9")],
            sources: vec![addr("10.0.0.1")],
        };
        let of = |interface: &str| {
            let key = format!("net/ipv4/conf/{interface}/forwarding");
            (key, Some(interface.to_owned()))
        };
        Expected {
            services: vec![web, shop],
            device: "flexcp0".into(),
            vrf: None,
            switches: vec![(IPV4.into(), None), of("a1"), of("a2"), (IPV6.into(), None)],
            seen: vec![],
        }
    }

    fn healthy() -> Found {
        Found {
            interfaces: vec![interface(1, "lo"), interface(2, "a1"), interface(3, "a2")],
            addresses: vec![addr("192.0.2.1"), addr("10.0.0.1")],
            routes: vec![(addr("10.0.0.9"), Some(addr("10.0.0.1")))],
            off: vec![],
        }
    }

    /// The lines, and which services pass.
    fn judged(expected: &mut Expected, found: &Found) -> (Vec<String>, Vec<bool>) {
        let problems = expected.judge(found);
        let status = expected.status(&problems, found);
        (
            problems.into_iter().map(|problem| problem.line).collect(),
            status.iter().map(|service| service.passes).collect(),
        )
    }

    #[test]
    fn nothing_to_tell() {
        let found = healthy();
        assert_eq!(judged(&mut expected(), &found), (vec![], vec![true, true]));
    }

    #[test]
    fn interface_missing_renamed_and_back() {
        let mut expected = expected();
        let mut found = healthy();
        found.interfaces.pop();
        let missing = "interface a2 of service web is missing, FlexCP waits for it";
        assert_eq!(
            judged(&mut expected, &found),
            (vec![missing.into()], vec![true, true])
        );
        // One that comes with another index and name was never it.
        found.interfaces.push(interface(7, "wlan0"));
        assert_eq!(judged(&mut expected, &found).0, [missing]);
        found.interfaces[2].name = "a2".into();
        assert_eq!(judged(&mut expected, &found).0, [""; 0]);
        found.interfaces[2].name = "wlan0".into();
        let renamed = "interface a2 of service web is called wlan0 now, which it does not name: give it its name back, \
            or change `interfaces`";
        assert_eq!(judged(&mut expected, &found).0, [renamed]);
        assert_eq!(judged(&mut expected, &found).0, [renamed]);
        found.interfaces.truncate(1);
        let (lines, passes) = judged(&mut expected, &found);
        assert_eq!((lines.len(), passes), (2, vec![false, true]));
    }

    #[test]
    fn interface_in_another_vrf() {
        let mut found = healthy();
        found.interfaces[2].vrf = Some("red".into());
        let stray = "service web: interface a2 is in the VRF red, and what FlexCP sends on is routed in no VRF: write `vrf = \
            \"red\"` in [device]";
        assert_eq!(
            judged(&mut expected(), &found),
            (vec![stray.into()], vec![true, true])
        );
    }

    #[test]
    fn forwarding_off() {
        let mut found = healthy();
        let key = |name: &str| format!("net/ipv4/conf/{name}/forwarding");
        found.off = vec![key("a2")];
        let (lines, passes) = judged(&mut expected(), &found);
        assert_eq!(passes, [true, true]);
        assert_eq!(
            lines,
            [
                "net.ipv4.conf.a2.forwarding is 0, no IPv4 packet from a2 is forwarded: set it to 1 (sysctl -w \
              net.ipv4.conf.a2.forwarding=1)"
            ]
        );
        // One line, although that switch takes the others along.
        found.off = vec![IPV4.into(), key("a1"), key("a2")];
        let (lines, passes) = judged(&mut expected(), &found);
        assert_eq!((lines.len(), passes), (1, vec![true, true]));
        assert!(lines[0].starts_with("net.ipv4.ip_forward is 0, no IPv4 packet is forwarded"));
        found.off.push(IPV6.into());
        let (lines, passes) = judged(&mut expected(), &found);
        assert_eq!((lines.len(), passes), (2, vec![false, false]));
    }

    #[test]
    fn addresses_lost() {
        let mut found = healthy();
        found.addresses.remove(0);
        let (lines, passes) = judged(&mut expected(), &found);
        assert_eq!(passes, [true, true]);
        assert!(lines[0].starts_with("the announced address 192.0.2.1 of service web is not"));
        found.addresses = vec![addr("192.0.2.1"), addr("10.0.0.2")];
        found.routes[0].1 = Some(addr("10.0.0.2"));
        let (lines, passes) = judged(&mut expected(), &found);
        assert_eq!(passes, [true, false]);
        assert!(lines[0].starts_with("the source address 10.0.0.1 of service shop is not"));
        assert_eq!(
            lines[1],
            "the kernel goes to back end 10.0.0.9 of service shop from 10.0.0.2 now, and FlexCP does not: reload \
             flexcp (SIGHUP), or set `source`"
        );
        found.routes[0].1 = None;
        let (lines, _) = judged(&mut expected(), &found);
        assert!(lines[1].starts_with("there is no route to back end 10.0.0.9"));
    }
}

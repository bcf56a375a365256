//! The host's other rules, and what they mean for FlexCP: firewalls that follow connections, NAT, IPsec, routing by mark.
//!
//! Where conntrack is in use, the clients' leg of services on the path gets a zone of its own ([`Zones`]), so that each leg
//! is one connection, and NAT is applied to the servers' one; and conntrack is told not to judge windows, as the kernel's
//! programs pass it by. What those programs can't do stays with the workers: connections that are translated (each is
//! looked up before it is installed), and the services that a policy or a rule is about.

use std::fmt::Display;
use std::mem;
use std::net::IpAddr;

use flexcp_io::{
    ClientLeg, Family, Interface, InterfaceRule, IpsecDirection, IpsecPolicy, KernelTables, Zones,
    conntrack_is_active, interfaces, ipsec_policies, marks_may_be_set, rules_by_interface,
    rules_by_mark,
};
use flexcp_translator::{Prefix, ServiceId};
use tracing::{info, warn};

use crate::config::file::{self, Mode, ServiceOffload};
use crate::config::{Config, plan};
use crate::generation::InForce;
use crate::offload::Running;
use crate::vrf;
use crate::worker::WorkerHandle;

/// What is looked after.
#[derive(Debug)]
pub struct Beside {
    device: String,
    /// Of the clients' legs.
    zone: u16,
    legs: Vec<ClientLeg>,
    clients: ClientInterfaces,
    /// `None`: conntrack is not in use, or there is no service on the path, or it can't be.
    zones: Option<Zones>,
    /// Whether conntrack has been found in use.
    active: bool,
    /// Those that are drained, too.
    services: Vec<Service>,
    workers: Vec<WorkerHandle>,
    /// What is wrong, a line each.
    problems: Vec<String>,
}

/// A service and why its connections stay with the workers, if they do.
#[derive(Debug)]
struct Service {
    id: ServiceId,
    name: String,
    off: bool,
    /// The servers, and where clients of a reverse service connect to.
    addresses: Vec<Prefix>,
    /// Where clients come in.
    interfaces: Vec<String>,
    /// FlexCP's own, and the VRF that it is to be in.
    device: (String, Option<String>),
    kept: Option<String>,
}

/// What there is to know about the host.
#[derive(Default, Debug)]
pub(crate) struct Rules {
    conntrack: bool,
    /// Others' routing rules by mark, if anything sets marks.
    by_mark: Vec<String>,
    /// Others' routing rules by the interface that packets come in by.
    by_interface: Vec<InterfaceRule>,
    policies: Vec<IpsecPolicy>,
    interfaces: Vec<Interface>,
    /// Which rules could not be read, and why: they may be about anything.
    unread: Option<String>,
}

impl Rules {
    /// Asks the kernel.
    fn find() -> Self {
        let (policies, no_policies) = or_why(ipsec_policies());
        let (by_mark, no_rules) = or_why(rules_by_mark());
        let (by_interface, no_interfaces) = or_why(rules_by_interface());
        let (marks, no_marks) = or_why(marks_may_be_set());
        // Marks count only where a rule looks at them.
        let no_marks = no_marks.filter(|_| !by_mark.is_empty());
        Self {
            conntrack: conntrack_is_active(),
            by_mark: by_mark.into_iter().filter(|_| marks).collect(),
            by_interface,
            policies,
            // Without them none is in another VRF; the next look asks again.
            interfaces: interfaces().unwrap_or_default(),
            unread: no_policies.or(no_rules).or(no_interfaces).or(no_marks),
        }
    }

    /// The rules by an interface of the clients' that what comes out of `device` does not meet, a line each.
    fn unmet(&self, device: &str, clients: &ClientInterfaces) -> Vec<String> {
        let has_twin = |rule: &InterfaceRule| {
            let (theirs, own) = (format!("iif {}", rule.interface), format!("iif {device}"));
            let twin = rule.words.replacen(&theirs, &own, 1);
            self.by_interface.iter().any(|other| other.words == twin)
        };
        // One for the device is its own twin.
        let of_clients = |rule: &&InterfaceRule| clients.has(&rule.interface) && !has_twin(rule);
        let line = |rule: &InterfaceRule| {
            format!(
                "the routing rule `{}` does not meet what FlexCP has handled, which comes from {device}; \
                 add the same rule for iif {device}",
                rule.words
            )
        };
        let unmet = self.by_interface.iter().filter(of_clients);
        unmet.map(line).collect()
    }
}

/// The interfaces that clients of services come in by.
#[derive(Debug)]
struct ClientInterfaces {
    names: Vec<String>,
    /// A service has none of its own: any may be.
    any: bool,
}

impl ClientInterfaces {
    fn new(config: &Config) -> Self {
        let all = config.services.iter().map(|service| &service.interfaces);
        Self {
            any: all.clone().any(Vec::is_empty),
            names: all.flatten().map(|name| name.value.clone()).collect(),
        }
    }

    fn has(&self, name: &str) -> bool {
        self.any || self.names.iter().any(|own| own == name)
    }
}

/// What was found, or nothing and why.
fn or_why<T: Default, E: Display>(found: Result<T, E>) -> (T, Option<String>) {
    match found {
        Ok(found) => (found, None),
        Err(error) => (T::default(), Some(error.to_string())),
    }
}

/// What the host's rules would mean for FlexCP: what [`Beside`] does and tells when it runs.
#[derive(Default, Debug)]
pub struct Foreseen {
    /// What the offload would leave to the workers, and why, a line each.
    pub offload: Vec<String>,
    /// What would be wrong, a line each.
    pub problems: Vec<String>,
}

/// Looks at this host's rules for a FlexCP that does not run.
#[must_use]
pub fn foresee(config: &Config) -> Foreseen {
    let rules = Rules::find();
    let mut offload = Vec::new();
    if rules.conntrack {
        offload.push(CONNTRACK.to_owned());
    }
    let notes = config.services.iter().filter_map(|service| {
        let mut service = Service::new(config, service, ServiceId::default());
        // What the file says itself needs no word.
        service.judge(&rules);
        service.note().filter(|_| !service.off)
    });
    offload.extend(notes);
    let mut problems = rules.unmet(&config.device.name.value, &ClientInterfaces::new(config));
    let too_early = config.services.iter().filter_map(|service| {
        Service::new(config, service, ServiceId::default()).ipv6_meets(&rules)
    });
    problems.extend(too_early);
    Foreseen { offload, problems }
}

impl Beside {
    /// For the services that connections may go by.
    pub(crate) fn new(force: &InForce, workers: Vec<WorkerHandle>) -> Self {
        let config = &force.current().config;
        let table = plan::table(config);
        Self {
            device: config.device.name.value.clone(),
            zone: u16::try_from(table).unwrap_or(ZONE),
            legs: force.legs(),
            clients: ClientInterfaces::new(config),
            zones: None,
            active: false,
            services: services(force),
            workers,
            problems: Vec::new(),
        }
    }

    /// The same for other services, from the next [look](Self::look) on. Legs that stay are in their zone all the time.
    pub(crate) fn follow(&mut self, force: &InForce) {
        let before = mem::replace(&mut self.services, services(force));
        for service in &mut self.services {
            let known = before.iter().find(|known| known.id == service.id);
            service.kept = known.and_then(|known| known.kept.clone());
        }
        self.clients = ClientInterfaces::new(&force.current().config);
        let legs = force.legs();
        if legs == self.legs {
            return;
        }
        self.legs = legs;
        if self.legs.is_empty() {
            self.zones = None;
        }
        let Some(zones) = &mut self.zones else {
            return;
        };
        if let Err(error) = zones.replace(self.zone, &self.device, &self.legs) {
            warn!("{error}; NAT may not be applied to what services on the path send to servers");
        }
    }

    /// The services whose connections stay with the workers.
    pub(crate) fn kept(&self) -> Vec<ServiceId> {
        let kept = self
            .services
            .iter()
            .filter(|service| service.kept.is_some());
        kept.map(|service| service.id).collect()
    }

    /// Looks at the host's rules and does what they ask for. `true`: what there is to tell has changed.
    pub(crate) fn look(&mut self, tables: &mut KernelTables, offload: &mut Running) -> bool {
        let rules = Rules::find();
        let mut problems = rules.unmet(&self.device, &self.clients);
        problems.extend(rules.unread.clone());
        if rules.conntrack {
            self.join_conntrack(tables, offload, &mut problems);
        }
        problems.extend(
            self.services
                .iter()
                .filter_map(|service| service.ipv6_meets(&rules)),
        );
        let mut changed = self.problems != problems;
        self.problems = problems;
        for service in &mut self.services {
            changed |= service.judge(&rules);
        }
        if changed {
            let kept = self.kept();
            self.workers
                .iter()
                .for_each(|worker| worker.keep(kept.clone()));
            offload.keep(self.services.iter().filter_map(Service::note).collect());
        }
        changed
    }

    /// What is wrong, a line each.
    pub(crate) fn problems(&self) -> &[String] {
        &self.problems
    }

    /// Conntrack is in use: from here on each leg is a connection of its own to it.
    fn join_conntrack(
        &mut self,
        tables: &mut KernelTables,
        offload: &mut Running,
        problems: &mut Vec<String>,
    ) {
        if !self.active {
            self.active = true;
            info!("{CONNTRACK}");
            offload.beside_conntrack(self.zone);
            let report = &mut |change: &str| info!("kernel: {change}");
            if let Err(error) = tables.relax_conntrack(report) {
                warn!("{error}");
            }
        }
        if self.zones.is_some() || self.legs.is_empty() {
            return;
        }
        match Zones::install(self.zone, &self.device, &self.legs) {
            Ok(zones) => {
                info!(
                    "kernel: table inet {}: the clients' side in conntrack zone {}",
                    self.device, self.zone
                );
                self.zones = Some(zones);
            }
            Err(error) => problems.push(format!(
                "NAT is not applied to what services on the path send to servers: {error}"
            )),
        }
    }
}

impl Service {
    fn new(config: &Config, service: &file::Service, id: ServiceId) -> Self {
        let alone = |addr: IpAddr| Prefix {
            addr,
            len: if addr.is_ipv6() { 128 } else { 32 },
        };
        let addresses = match &service.mode {
            Mode::Transparent { destinations, .. } | Mode::Box { destinations, .. } => {
                destinations.iter().map(|to| to.value).collect()
            }
            Mode::Reverse {
                listen, backends, ..
            } => {
                let listen = listen.iter().map(|at| at.value);
                let all = listen.chain(backends.iter().map(|to| to.value.addr));
                all.map(|at| alone(at.ip())).collect()
            }
            Mode::Explicit { listen, allow, .. } => {
                let listen = listen.iter().map(|at| alone(at.value.ip()));
                let allow = allow.iter().map(|servers| servers.value);
                listen.chain(allow).collect()
            }
        };
        Self {
            id,
            name: service.name.value.clone(),
            off: service.offload.value == ServiceOffload::Off,
            addresses,
            interfaces: service
                .interfaces
                .iter()
                .map(|interface| interface.value.clone())
                .collect(),
            device: (
                config.device.name.value.clone(),
                plan::vrf(config).map(str::to_owned),
            ),
            kept: None,
        }
    }

    /// The name of its interface that is in another VRF than the device, and what that means.
    fn stray(&self, there: &[Interface]) -> Option<String> {
        let (device, told) = &self.device;
        let vrf = vrf::of_device(there, device, told.as_deref());
        let mut names = self.interfaces.iter();
        names.find_map(|name| vrf::stray(there, vrf, name))
    }

    /// Whether the policy is about its packets.
    fn is_covered_by(&self, policy: &IpsecPolicy) -> bool {
        let ours = |prefix: &Prefix| self.addresses.iter().any(|own| overlap(own, prefix));
        is_of_forwarded_tcp(policy) && (ours(&policy.source) || ours(&policy.destination))
    }

    /// What is wrong when packets meet a policy before they have come to FlexCP: IPv4 has switches against that.
    fn ipv6_meets(&self, rules: &Rules) -> Option<String> {
        let too_early =
            |policy: &&IpsecPolicy| policy.family == Family::V6 && self.is_covered_by(policy);
        let policy = rules.policies.iter().find(too_early)?;
        Some(format!(
            "service {}: IPv6 packets meet the IPsec policy {} before they come to FlexCP, and what FlexCP sends on is dropped, so \
             that no connection gets through: use an xfrm interface (ip link add type xfrm), or IPsec on another host",
            self.name,
            words(policy)
        ))
    }

    /// Why its connections have to stay with the workers, if they have. `true`: that has changed.
    fn judge(&mut self, rules: &Rules) -> bool {
        let kept = if self.off {
            Some("the configuration says so (offload = \"off\")".to_owned())
        } else if let Some(error) = &rules.unread {
            Some(format!(
                "a rule that it can't read may be about it ({error})"
            ))
        } else if let Some(policy) = rules
            .policies
            .iter()
            .find(|policy| self.is_covered_by(policy))
        {
            Some(format!(
                "an IPsec policy covers its packets ({})",
                words(policy)
            ))
        } else if let Some(stray) = self.stray(&rules.interfaces) {
            Some(stray)
        } else {
            let rule = rules.by_mark.first();
            rule.map(|rule| format!("a routing rule looks at marks that it would not get ({rule})"))
        };
        if kept == self.kept {
            return false;
        }
        match &kept {
            Some(reason) => info!("offload: not for service {}: {reason}", self.name),
            None => info!("offload: for service {} again", self.name),
        }
        self.kept = kept;
        true
    }

    fn note(&self) -> Option<String> {
        let reason = self.kept.as_ref()?;
        Some(format!("not for service {}: {reason}", self.name))
    }
}

/// The services that connections may go by. One that has changed has what it has and what it had.
fn services(force: &InForce) -> Vec<Service> {
    let mut services: Vec<Service> = Vec::new();
    for generation in force.all() {
        let config = &generation.config;
        for (service, id) in config.services.iter().zip(&generation.ids) {
            let new = Service::new(config, service, *id);
            match services.iter_mut().find(|known| known.id == *id) {
                None => services.push(new),
                Some(known) => {
                    add(&mut known.addresses, new.addresses);
                    add(&mut known.interfaces, new.interfaces);
                }
            }
        }
    }
    services
}

fn add<T: PartialEq>(known: &mut Vec<T>, more: Vec<T>) {
    for new in more {
        if !known.contains(&new) {
            known.push(new);
        }
    }
}

/// Whether packets that this host forwards may meet it: those to the host itself are not FlexCP's.
fn is_of_forwarded_tcp(policy: &IpsecPolicy) -> bool {
    let direction = policy.direction != IpsecDirection::In;
    direction && policy.interface_id.is_none() && policy.protocol.is_none_or(|number| number == TCP)
}

fn words(policy: &IpsecPolicy) -> String {
    let prefix = |prefix: &Prefix| format!("{}/{}", prefix.addr, prefix.len);
    let direction = match policy.direction {
        IpsecDirection::In => "in",
        IpsecDirection::Out => "out",
        IpsecDirection::Forward => "fwd",
    };
    format!(
        "{direction} {} to {}",
        prefix(&policy.source),
        prefix(&policy.destination)
    )
}

/// Whether an address lies in both.
fn overlap(a: &Prefix, b: &Prefix) -> bool {
    a.contains(b.addr) || b.contains(a.addr)
}

/// What follows from it.
const CONNTRACK: &str =
    "conntrack is in use: connections that NAT translates stay with the workers";
/// Its protocol number.
const TCP: u8 = 6;
/// Of the clients' legs, when the number of the routing table is none for a zone.
const ZONE: u16 = 7300;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generation::Generation;

    fn prefix(text: &str) -> Prefix {
        let (addr, len) = text.split_once('/').unwrap();
        Prefix {
            addr: addr.parse().unwrap(),
            len: len.parse().unwrap(),
        }
    }

    fn policy(source: &str, destination: &str) -> IpsecPolicy {
        IpsecPolicy {
            direction: IpsecDirection::Out,
            family: Family::V4,
            source: prefix(source),
            destination: prefix(destination),
            source_ports: None,
            destination_ports: None,
            protocol: None,
            interface_id: None,
        }
    }

    fn service() -> Service {
        Service {
            id: ServiceId(0),
            name: "web".into(),
            off: false,
            addresses: vec![prefix("10.9.0.0/16"), prefix("fd09::/16")],
            interfaces: vec!["eth0".into()],
            device: ("flexcp0".into(), None),
            kept: None,
        }
    }

    fn kept(rules: &Rules) -> Option<String> {
        let mut service = service();
        let changed = service.judge(rules);
        assert_eq!(changed, service.kept.is_some());
        assert!(!service.judge(rules), "told again");
        service.note()
    }

    #[test]
    fn policies_of_forwarded_packets_keep_a_service_from_the_offload() {
        let with = |policy| Rules {
            policies: vec![policy],
            ..Rules::default()
        };
        for (source, destination) in [
            ("0.0.0.0/0", "10.9.1.0/24"),
            ("10.9.1.2/32", "10.1.0.0/16"),
            ("0.0.0.0/0", "0.0.0.0/0"),
        ] {
            let note = kept(&with(policy(source, destination))).unwrap();
            assert_eq!(
                note,
                format!(
                    "not for service web: an IPsec policy covers its packets (out {source} to {destination})"
                )
            );
        }
        assert_eq!(kept(&with(policy("10.1.0.0/16", "10.8.0.0/16"))), None);
        for other in [
            IpsecPolicy {
                direction: IpsecDirection::In,
                ..policy("0.0.0.0/0", "10.9.0.0/16")
            },
            IpsecPolicy {
                protocol: Some(17),
                ..policy("0.0.0.0/0", "10.9.0.0/16")
            },
            IpsecPolicy {
                interface_id: Some(1),
                ..policy("0.0.0.0/0", "10.9.0.0/16")
            },
        ] {
            assert_eq!(kept(&with(other)), None);
        }
    }

    #[test]
    fn routing_by_mark_keeps_all_services_from_the_offload_while_it_is_so() {
        let rules = Rules {
            by_mark: vec!["ipv4 fwmark 0x1 -> table 100".into()],
            ..Rules::default()
        };
        let mut service = service();
        assert!(service.judge(&rules));
        assert!(service.note().unwrap().contains("fwmark 0x1"));
        assert!(service.judge(&Rules::default()));
        assert_eq!(service.note(), None);
    }

    #[test]
    fn rule_by_interface_of_the_clients_has_to_be_there_for_the_device_too() {
        let rule = |interface: &str| InterfaceRule {
            interface: interface.into(),
            words: format!("ipv4 iif {interface} to 10.9.0.0/16 -> table 100"),
        };
        let unmet = |by_interface: Vec<InterfaceRule>, any| {
            let rules = Rules {
                by_interface,
                ..Rules::default()
            };
            let names = vec!["wan0".into()];
            rules.unmet("flexcp0", &ClientInterfaces { names, any })
        };
        let lines = unmet(vec![rule("wan0"), rule("lan0")], false);
        assert_eq!(
            lines,
            [
                "the routing rule `ipv4 iif wan0 to 10.9.0.0/16 -> table 100` does not meet what FlexCP has handled, \
                 which comes from flexcp0; add the same rule for iif flexcp0"
            ]
        );
        assert_eq!(unmet(vec![rule("wan0"), rule("lan0")], true).len(), 2);
        assert_eq!(unmet(vec![rule("wan0"), rule("flexcp0")], true).len(), 0);
    }

    #[test]
    fn rules_that_cannot_be_read_keep_all_services_from_the_offload() {
        let rules = Rules {
            unread: Some("cannot list the policies of IPsec: EPERM".into()),
            ..Rules::default()
        };
        assert_eq!(
            kept(&rules).unwrap(),
            "not for service web: a rule that it can't read may be about it (cannot list the policies of IPsec: EPERM)"
        );
    }

    #[test]
    fn policy_of_ipv6_is_told() {
        let told = |policy| {
            let rules = Rules {
                policies: vec![policy],
                ..Rules::default()
            };
            service().ipv6_meets(&rules).unwrap_or_default()
        };
        let v6 = || IpsecPolicy {
            family: Family::V6,
            ..policy("fd01::/16", "fd09:1::/32")
        };
        let line = told(v6());
        assert!(
            line.starts_with(
                "service web: IPv6 packets meet the IPsec policy out fd01::/16 to fd09:1::/32 before"
            ),
            "{line}"
        );
        let of_interface = IpsecPolicy {
            interface_id: Some(1),
            ..v6()
        };
        for policy in [
            of_interface,
            policy("10.1.0.0/16", "10.9.0.0/16"),
            policy("fd01::/16", "fd08::/16"),
        ] {
            assert_eq!(told(policy), "");
        }
    }

    #[test]
    fn interface_in_another_vrf_keeps_its_service_from_the_offload() {
        let eth = |name: &str, vrf: Option<&str>| Interface {
            index: 2,
            name: name.into(),
            header: flexcp_io::LinkHeader::Ethernet,
            up: true,
            carrier: true,
            is_vrf: false,
            vrf: vrf.map(str::to_owned),
            is_port: false,
        };
        let mut rules = Rules {
            interfaces: vec![eth("eth0", Some("red")), eth("flexcp0", None)],
            ..Rules::default()
        };
        let note = kept(&rules).unwrap();
        assert!(
            note.starts_with("not for service web: interface eth0 is in the VRF red"),
            "{note}"
        );
        rules.interfaces[1].vrf = Some("red".into());
        assert_eq!(kept(&rules), None);
    }

    #[test]
    fn service_has_the_addresses_that_it_had_until_they_are_forgotten() {
        let config = |destinations: &str| {
            let text = format!(
                "[[service]]\nname = \"web\"\nmode = \"transparent\"\ndestinations = [{destinations}]\n"
            );
            crate::config::parse("f", &text).0.unwrap()
        };
        let first = Generation::first(config("\"10.8.0.0/16\""), vec![vec![]]);
        let force = InForce::new(first.into());
        let next = force.next(config("\"10.9.0.0/16\""), vec![vec![]]);
        let mut force = force.followed_by(next.unwrap().into(), 0);
        let addresses = |force: &InForce| {
            let all = services(force);
            assert_eq!(all.len(), 1);
            all[0].addresses.clone()
        };
        let (old, new) = (prefix("10.8.0.0/16"), prefix("10.9.0.0/16"));
        assert_eq!(addresses(&force), [new, old]);
        force.forget(0);
        assert_eq!(addresses(&force), [new]);
    }

    #[test]
    fn configuration_has_the_first_word() {
        let mut service = Service {
            off: true,
            ..service()
        };
        assert!(service.judge(&Rules::default()));
        assert!(service.note().unwrap().contains("offload"));
    }
}

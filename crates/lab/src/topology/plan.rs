//! Makes the namespaces and links of a lab.

use std::fmt::Write as _;
use std::process::Command;
use std::sync::Mutex;

use super::*;
use crate::process::output;

/// A lab on its way to being built.
pub(super) struct Plan {
    pub(super) spec: LabBuilder,
    pub(super) prefix: String,
    pub(super) guard: Remains,
}

impl Plan {
    pub(super) fn carry_out(self) -> Result<Lab> {
        let client = self.namespace("c")?;
        let wire = if self.spec.wire {
            Some(self.namespace("w")?)
        } else {
            None
        };
        let proxy = if self.spec.proxy_here {
            Namespace::here(&format!("{}-p", self.prefix), self.spec.keep)?
        } else {
            self.namespace("p")?
        };
        let mut servers = vec![];
        for number in 1..=self.spec.servers {
            servers.push(self.namespace(&format!("s{number}"))?);
        }

        for namespace in [&client, &proxy].into_iter().chain(&servers) {
            namespace.sysctl(COMMON_SYSCTLS)?;
        }
        proxy.sysctl(FORWARDING)?;
        client.sysctl(&borrowed(&self.spec.client_sysctls))?;
        for server in &servers {
            server.sysctl(&borrowed(&self.spec.server_sysctls))?;
        }

        self.connect(&client, wire.as_ref(), &proxy, &servers)?;
        let links = usize::from(self.spec.links);
        let mut lab = Lab {
            prefix: self.prefix,
            client,
            wire,
            proxy,
            servers,
            faults: Mutex::new(vec![LinkFaults::default(); links]),
            emulators: vec![],
            remains: self.guard,
            spec: self.spec,
        };
        lab.set_offloads_and_rates()?;
        lab.emulators = lab.start_emulators(&lab.spec)?;
        lab.load_wire()?;
        lab.address()?;
        Ok(lab)
    }

    fn namespace(&self, suffix: &str) -> Result<Namespace> {
        let name = format!("{}-{suffix}", self.prefix);
        Namespace::create(&name, self.spec.keep)
    }

    /// Makes all veth pairs and brings them up.
    fn connect(
        &self,
        client: &Namespace,
        wire: Option<&Namespace>,
        proxy: &Namespace,
        servers: &[Namespace],
    ) -> Result<()> {
        let mut ends = vec![];
        let mut pair = |near: (&Namespace, String), far: (&Namespace, String), mtu: u32| {
            let line = format!(
                "link add {} mtu {mtu} type veth peer name {} mtu {mtu} netns {}\n",
                near.1,
                far.1,
                far.0.name()
            );
            near.0.ip_batch(&line)?;
            for (namespace, name) in [near, far] {
                ends.push((namespace.clone(), name));
            }
            anyhow::Ok(())
        };
        for link in 1..=self.spec.links {
            let mtu = self.spec.mtu_of(link);
            let near = self.spec.ethernet(link, End::Client);
            let far = self.spec.ethernet(link, End::Proxy);
            match wire {
                Some(wire) => {
                    pair((client, near), (wire, format!("c{link}")), mtu)?;
                    pair((proxy, far), (wire, format!("p{link}")), mtu)?;
                }
                None => pair((client, near), (proxy, far), mtu)?,
            }
        }
        for (number, server) in (1..).zip(servers) {
            let _: u8 = number;
            pair(
                (proxy, format!("srv{number}")),
                (server, "eth0".to_owned()),
                1500,
            )?;
        }
        for namespace in [Some(client), wire, Some(proxy)]
            .into_iter()
            .flatten()
            .chain(servers)
        {
            let lines = ends.iter().filter(|end| end.0.name() == namespace.name());
            let lines = lines.map(|end| format!("link set {} up\n", end.1));
            namespace.ip_batch(&lines.collect::<String>())?;
        }
        for (link, upper) in &self.spec.upper {
            if *upper == Upper::Vlan {
                client.ip_batch(&upper.lines(*link))?;
            }
            proxy.ip_batch(&upper.lines(*link))?;
        }
        for namespace in [Some(client), wire, Some(proxy)]
            .into_iter()
            .flatten()
            .chain(servers)
        {
            if self.spec.in_order {
                keep_order(namespace)?;
            }
        }
        Ok(())
    }
}

/// One of the two of an access link.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Client,
    Proxy,
}

impl LabBuilder {
    /// What the Ethernet device at an end of an access link is called.
    fn ethernet(&self, link: u8, end: End) -> String {
        let is_below = |(number, upper): &(u8, Upper)| {
            *number == link && (end == End::Proxy || *upper == Upper::Vlan)
        };
        let below = self.upper.iter().any(is_below);
        format!("{}{link}", if below { 'e' } else { 'a' })
    }

    fn mtu_of(&self, link: u8) -> u32 {
        let found = self.mtu.iter().rev().find(|(number, _)| *number == link);
        found.map_or(1500, |(_, bytes)| *bytes)
    }

    /// The `ip` commands that give the client its side of a link.
    pub(super) fn client_link(&self, link: u8) -> String {
        let mut lines = String::new();
        for family in self.families.iter() {
            let own = access_addr(link, 2, family);
            let gateway = access_addr(link, 1, family);
            let plen = if family == Family::V4 { "24" } else { "64" };
            let nodad = if family == Family::V4 { "" } else { "nodad" };
            let table = table(link);
            let _ = write!(
                lines,
                "addr replace {own}/{plen} dev a{link} {nodad}\n\
                 route replace {gateway} dev a{link} src {own} table {table}\n\
                 route replace default via {gateway} dev a{link} src {own} table {table}\n\
                 route replace default via {gateway} dev a{link} metric {table}\n"
            );
        }
        lines
    }

    /// The client's MPTCP limits and endpoints; these survive a link's going down.
    pub(super) fn client_endpoints(&self) -> String {
        let mut lines = MPTCP_LIMITS.to_owned();
        let families = self.endpoints.unwrap_or(self.families);
        for link in 2..=self.links {
            for family in self.families.iter().filter(|family| families.has(*family)) {
                let own = access_addr(link, 2, family);
                let backup = if self.backup.contains(&link) {
                    "backup"
                } else {
                    ""
                };
                let _ = writeln!(
                    lines,
                    "mptcp endpoint add {own} dev a{link} subflow {backup}"
                );
            }
        }
        lines
    }
}

impl Lab {
    pub(super) fn address(&self) -> Result<()> {
        let mut proxy = String::new();
        for link in 1..=self.links() {
            self.configure_client_link(link)?;
            for family in self.families().iter() {
                let _ = writeln!(
                    proxy,
                    "{}",
                    addr_line(access_addr(link, 1, family), "a", link)
                );
                // In a batch file `ip rule` cannot tell the family from the address.
                let version = if family == Family::V4 { "-4" } else { "-6" };
                let own = access_addr(link, 2, family);
                self.client.ip(&format!(
                    "{version} rule add from {own} table {}",
                    table(link)
                ))?;
            }
        }
        self.client.ip_batch(&self.spec.client_endpoints())?;

        for (number, server) in (1..).zip(&self.servers) {
            let mut lines = MPTCP_LIMITS.to_owned();
            for family in self.families().iter() {
                let near = server_addr(number, 1, family);
                let _ = writeln!(proxy, "{}", addr_line(near, "srv", number));
                let plen = if family == Family::V4 {
                    "24"
                } else {
                    "64 nodad"
                };
                let own = server_addr(number, 2, family);
                let _ = writeln!(lines, "addr add {own}/{plen} dev eth0");
                let _ = writeln!(lines, "route add default via {near}");
            }
            server.ip_batch(&lines)?;
        }
        self.proxy.ip_batch(&proxy)
    }

    pub(super) fn set_offloads_and_rates(&self) -> Result<()> {
        let access: Vec<_> = (1..=self.links()).map(|link| format!("a{link}")).collect();
        if !self.spec.offloads {
            let mut devices: Vec<(&Namespace, String)> = vec![];
            for name in &access {
                devices.extend([(&self.client, name.clone()), (&self.proxy, name.clone())]);
            }
            for (number, server) in (1..).zip(&self.servers) {
                let _: u8 = number;
                devices.extend([
                    (&self.proxy, format!("srv{number}")),
                    (server, "eth0".into()),
                ]);
            }
            for (namespace, device) in devices {
                let mut command = namespace.command("ethtool");
                output(command.args(["-K", &device]).args(OFFLOADS_OFF.split(' ')))?;
            }
        }
        let queue = self.spec.queue_ms;
        for (link, mbit) in &self.spec.rate_mbit {
            let ends = match &self.wire {
                Some(wire) => [(wire, format!("c{link}")), (wire, format!("p{link}"))],
                None => [
                    (&self.client, self.spec.ethernet(*link, End::Client)),
                    (&self.proxy, self.spec.ethernet(*link, End::Proxy)),
                ],
            };
            for (namespace, device) in ends {
                namespace.tc(&format!(
                    "qdisc replace dev {device} root tbf rate {mbit}mbit burst 256kb latency {queue}ms"
                ))?;
            }
        }
        Ok(())
    }
}

/// Makes veth pairs deliver the packets of a flow in order.
///
/// A veth hands a packet to the CPU that sent it. When the sender moves to
/// another CPU its packets overtake each other, and the counters complain of
/// reordering (PAWSOldAck, retransmissions) that no link of ours was asked for.
/// Receive packet steering picks the CPU by flow instead.
pub(crate) fn keep_order(namespace: &Namespace) -> Result<()> {
    let cpus = std::thread::available_parallelism()
        .map_or(1, usize::from)
        .min(32);
    let script = format!(
        "for file in /sys/class/net/*/queues/rx-*/rps_cpus; do echo {:x} > $file; done",
        (1_u64 << cpus) - 1
    );
    // With a /sys of its own, which shows the namespace's interfaces.
    let mut command = Command::new("ip");
    output(command.args(["netns", "exec", namespace.name(), "/bin/sh", "-ec", &script]))?;
    Ok(())
}

fn borrowed(settings: &[(String, String)]) -> Vec<(&str, &str)> {
    settings
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect()
}

/// As many subflows as the kernel has; joins wherever the far end announces.
const MPTCP_LIMITS: &str = "mptcp limits set subflows 8 add_addr_accepted 8\n";

const OFFLOADS_OFF: &str = "tso off gso off gro off tx off rx off";

/// No duplicate address detection (tests start at once), no router
/// solicitations, and no reverse-path filter: clients send from every address.
///
/// The congestion control stays the host's default: outside the first namespace
/// the kernel takes only those in `tcp_allowed_congestion_control`.
pub(super) const COMMON_SYSCTLS: &[(&str, &str)] = &[
    ("net.ipv4.conf.all.rp_filter", "0"),
    ("net.ipv4.conf.default.rp_filter", "0"),
    ("net.ipv6.conf.all.accept_dad", "0"),
    ("net.ipv6.conf.default.accept_dad", "0"),
    ("net.ipv6.conf.default.router_solicitations", "0"),
    ("net.ipv6.conf.default.accept_ra", "0"),
];

/// As a router has it.
pub(super) const FORWARDING: &[(&str, &str)] = &[
    ("net.ipv4.ip_forward", "1"),
    ("net.ipv6.conf.all.forwarding", "1"),
];

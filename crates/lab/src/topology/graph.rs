//! A lab of any shape: hosts and the links between them, for what a client, a proxy and servers in a row can't say.

use std::path::Path;

use anyhow::{Context as _, Result};

use super::plan::{COMMON_SYSCTLS, FORWARDING, keep_order};
use super::{Remains, require_root};
use crate::fault::{Direction, parse_faults};
use crate::link::{Emulator, LinkSpec};
use crate::namespace::Namespace;

/// Hosts, each a namespace, and links between them. Dropping it removes everything it made.
#[derive(Debug)]
pub struct Graph {
    /// By name.
    hosts: Vec<(String, Namespace)>,
    /// Where the halves of emulated links meet.
    wire: Namespace,
    /// By number.
    links: Vec<Emulator>,
    remains: Remains,
}

/// An end of a link.
#[derive(Clone, Copy, Debug)]
pub struct End<'a> {
    host: &'a str,
    device: &'a str,
    /// With the length of its prefix, as `ip addr add` takes it.
    addr: &'a str,
}

impl<'a> End<'a> {
    /// A device of a host with its address.
    #[must_use]
    pub const fn new(host: &'a str, device: &'a str, addr: &'a str) -> Self {
        Self { host, device, addr }
    }
}

impl Graph {
    /// Hosts of these names, without a link. All of them forward packets.
    ///
    /// # Errors
    /// There are no rights to make namespaces, or something could not be made. Nothing stays behind then.
    pub fn build(hosts: &[&str]) -> Result<Self> {
        require_root()?;
        let remains = Remains::arm()?;
        let named =
            |suffix: &str| Namespace::create(&format!("{}-{suffix}", remains.prefix), false);
        let mut made = vec![];
        for host in hosts {
            let namespace = named(host)?;
            namespace.sysctl(COMMON_SYSCTLS)?;
            namespace.sysctl(FORWARDING)?;
            made.push(((*host).to_owned(), namespace));
        }
        Ok(Self {
            hosts: made,
            wire: named("wire")?,
            links: vec![],
            remains,
        })
    }

    /// A host by its name.
    ///
    /// # Errors
    /// There is none of that name.
    pub fn host(&self, name: &str) -> Result<&Namespace> {
        let mut hosts = self.hosts.iter();
        let found = hosts.find(|(known, _)| known == name);
        let (_, namespace) = found.with_context(|| format!("there is no host {name}"))?;
        Ok(namespace)
    }

    /// Its directory for configuration and logs.
    pub fn dir(&self) -> &Path {
        &self.remains.dir
    }

    /// Joins two hosts directly: the kernel carries their packets at once, as fast as it can.
    ///
    /// # Errors
    /// A host is not there, or a device could not be made.
    pub fn cable(&self, ends: [End<'_>; 2]) -> Result<()> {
        let [near, far] = ends;
        let peer = self.host(far.host)?;
        pair(self.host(near.host)?, near.device, peer, far.device)?;
        ends.iter().try_for_each(|end| self.address(end))
    }

    /// Joins two hosts by an emulated link. `faults` are those of packets from the first end, and of those from the second (see
    /// `flexcp_faults`). Gives the link's number.
    ///
    /// # Errors
    /// A host is not there, such faults are not known, or a device could not be made.
    pub fn link(&mut self, ends: [End<'_>; 2], faults: [&str; 2]) -> Result<usize> {
        let number = self.links.len();
        let halves = ["a", "b"].map(|half| format!("{half}{number}"));
        for (end, half) in ends.iter().zip(&halves) {
            pair(self.host(end.host)?, end.device, &self.wire, half)?;
            self.wire
                .ip(&format!("link set {half} addrgenmode none up"))?;
            self.address(end)?;
        }
        keep_order(&self.wire)?;
        let [up, down] = faults;
        let spec = LinkSpec {
            up: parse_faults(up)?,
            down: parse_faults(down)?,
            seed: (number as u64 + 1) << 32,
        };
        let halves = [halves[0].as_str(), halves[1].as_str()];
        self.links.push(Emulator::start(&self.wire, halves, spec)?);
        Ok(number)
    }

    /// Replaces the faults of a link, from its first end and from its second. What waits there goes on waiting.
    ///
    /// # Errors
    /// There is no such link, or such faults are not known.
    pub fn set_faults(&self, link: usize, faults: [&str; 2]) -> Result<()> {
        let link = self.links.get(link).context("there is no such link")?;
        for (direction, faults) in [Direction::Up, Direction::Down].into_iter().zip(faults) {
            link.set_faults(direction, parse_faults(faults)?)?;
        }
        Ok(())
    }

    fn address(&self, end: &End<'_>) -> Result<()> {
        let host = self.host(end.host)?;
        let End { device, addr, .. } = end;
        host.ip(&format!("addr add {addr} dev {device}"))?;
        host.ip(&format!("link set {device} up"))?;
        keep_order(host)
    }
}

/// A pair of devices, one in each namespace.
fn pair(near: &Namespace, device: &str, far: &Namespace, peer: &str) -> Result<()> {
    let far = far.name();
    near.ip(&format!(
        "link add {device} type veth peer name {peer} netns {far}"
    ))?;
    Ok(())
}

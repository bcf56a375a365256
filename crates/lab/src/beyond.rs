//! The far end of a box's uplinks, and what lies behind it: an aggregation server is a second FlexCP there, and servers stand in a network
//! that it leads to.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::daemon::{self, FlexCp};
use crate::namespace::Namespace;
use crate::topology::{Family, Lab};

/// Addresses of the servers' host and of the far end towards it.
const V4: [&str; 2] = ["10.77.0.2/24", "10.77.0.1/24"];
const V6: [&str; 2] = ["fd77::2/64", "fd77::1/64"];

/// Addresses of the far end that are on no link: all uplinks lead to them.
pub const FAR_END: [&str; 2] = ["10.200.0.1", "fd20::1"];

/// Prefixes of the networks that they are in.
pub const FAR_NETWORKS: [&str; 2] = ["10.200.0.0/16", "fd20::/16"];

impl Lab {
    /// Has ends change places for a box: the lab's client becomes the far end, with an address that is on no link, and each link an uplink
    /// with a default route, as modems give them. Which uplink a packet leaves by is FlexCP's to see to. The client in the LAN is server 1.
    pub fn turn_around(&self) -> Result<()> {
        let ends = [
            (Family::V4, "-4", FAR_END[0], 32),
            (Family::V6, "-6", FAR_END[1], 128),
        ];
        for (family, flag, addr, len) in ends {
            if !self.families().has(family) {
                continue;
            }
            let far = self.client();
            far.ip(&format!("addr add {addr}/{len} dev lo nodad"))?;
            for link in 1..=self.links() {
                let via = self.client_addr(link, family);
                let metric = u32::from(link) * 100;
                self.proxy().ip(&format!(
                    "{flag} route add default via {via} dev a{link} metric {metric}"
                ))?;
            }
        }
        Ok(())
    }

    /// Has the servers of [`Beyond`] reached from the LAN without an aggregation server as well, over the first link.
    pub fn lead_beyond(&self, family: Family) -> Result<()> {
        let (flag, servers, len) = match family {
            Family::V4 => ("-4", Beyond::NETWORKS[0], 24),
            Family::V6 => ("-6", Beyond::NETWORKS[1], 64),
        };
        let via = self.client_addr(1, family);
        self.proxy()
            .ip(&format!("{flag} route add {servers} via {via}"))?;
        let lan = daemon::network(self.server_addr(1, family));
        let back = self.proxy_addr(1, family);
        self.client()
            .ip(&format!("{flag} route add {lan}/{len} via {back}"))?;
        Ok(())
    }
}

/// A host behind a lab's client, which forwards packets to it.
#[derive(Debug)]
pub struct Beyond {
    namespace: Namespace,
}

impl Beyond {
    /// Adds it. It goes with the lab.
    pub fn build(lab: &Lab) -> Result<Self> {
        let namespace = Namespace::create(&format!("{}-b", lab.prefix()), false)?;
        let far = lab.client();
        far.ip(&format!(
            "link add b0 type veth peer name eth0 netns {}",
            namespace.name()
        ))?;
        for (host, device, which) in [(&namespace, "eth0", 0), (far, "b0", 1)] {
            host.ip(&format!("addr add {} dev {device}", V4[which]))?;
            host.ip(&format!("addr add {} dev {device} nodad", V6[which]))?;
            host.ip(&format!("link set {device} up"))?;
        }
        let gateway = |addrs: [&'static str; 2]| addrs[1].split('/').next().unwrap_or_default();
        namespace.ip(&format!("route add default via {}", gateway(V4)))?;
        namespace.ip(&format!("-6 route add default via {}", gateway(V6)))?;
        far.sysctl(&[
            ("net/ipv4/ip_forward", "1"),
            ("net/ipv6/conf/all/forwarding", "1"),
        ])?;
        Ok(Self { namespace })
    }

    /// Its namespace.
    #[must_use]
    pub const fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// An end on it.
    #[must_use]
    pub fn socket(family: Family, port: u16) -> SocketAddr {
        let addr = match family {
            Family::V4 => IpAddr::from([10, 77, 0, 2]),
            Family::V6 => IpAddr::from([0xfd77, 0, 0, 0, 0, 0, 0, 2]),
        };
        SocketAddr::new(addr, port)
    }

    /// Prefixes of the network that it is in.
    pub const NETWORKS: [&str; 2] = ["10.77.0.0/16", "fd77::/16"];
}

impl FlexCp {
    /// Starts another one with these services at the far end of a box's uplinks, which is the lab's client.
    pub fn start_at_far_end(lab: &Lab, services: &str) -> Result<Self> {
        let services = format!(
            "[timeouts]\nlinger = \"1s\"\nhalf_open = \"3s\"\nrejoin = \"5s\"\n\n{services}"
        );
        Self::start_on(lab.client(), (lab.dir(), "far"), ("", &services))
    }

    /// Starts one on a host, with these lines of its `[device]` section and these services. Its device, its files and its directory in
    /// `dir` have this name, which no other one has there.
    pub fn start_on(
        host: &Namespace,
        (dir, name): (&Path, &str),
        (device, services): (&str, &str),
    ) -> Result<Self> {
        let own: PathBuf = dir.join(name);
        fs::create_dir_all(&own).with_context(|| format!("creating {own:?}"))?;
        let offload = match daemon::offload_is_off() {
            true => "[offload]\nenabled = false\n\n",
            false => "",
        };
        let socket = own.join("flexcp.sock");
        let config = format!(
            "[device]\nname = \"{name}0\"\n{device}\n\n{offload}[control]\nsocket = {socket:?}\nstate_dir = {own:?}\n\n{services}"
        );
        let file = own.join("flexcp.toml");
        fs::write(&file, config).with_context(|| format!("writing {file:?}"))?;
        let mut command = host.command(daemon::binary()?);
        command.args(["run", "--config"]).arg(file);
        Self::spawn_at((host, name), (command, socket, dir))
    }
}

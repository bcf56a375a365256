//! The site of the paper's Table 1: a graph of hosts and links.
//!
//! ```text
//!                  ┌─ uplink1 ═╤═ server1 ═╕
//!  lan ── box ─────┤           ╪  ...      ╞═ content
//!                  └─ uplink2 ═╧═ server5 ═╛      ═ emulated
//! ```
//!
//! A rate belongs to a pair of an uplink and a server, so there is an emulated link for each of them, and one for each server's own leg.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

use super::paper::TABLE;
use crate::congestion::allow;
use crate::daemon::FlexCp;
use crate::topology::{End, Graph};
use crate::transfer::{Client, Job, Report, ServeOptions, Server};

const SOCKS: u16 = 1080;
const PROBE: u16 = 7125;
const PORT: u16 = 5000;
/// Of all ends: Linux's default.
const CONGESTION: &str = "cubic";
const KEY: &str = "0123456789abcdef0123456789abcdef";
/// Of the content server's addresses.
const CONTENT: &str = "10.78.0.0/16";
/// What probes may cost of bytes in an hour.
pub(super) const PROBE_BYTES: u64 = 4_000_000_000;
const UPLINKS: [&str; 2] = ["uplink1", "uplink2"];

/// Everything but the box.
pub(super) struct Site {
    graph: Graph,
    /// The links of each server with the uplinks.
    paths: Vec<[usize; 2]>,
    servers: Vec<FlexCp>,
    _content: Server,
}

/// How a box leads connections to the aggregation servers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Leads {
    /// By measurement, with this interval in seconds.
    Measured(u64),
    /// To each server those with an address of its own.
    Each,
}

/// The name of a server's host.
fn name(server: usize) -> String {
    format!("server{}", server + 1)
}

/// An address of the content server: one for all, and one for those who are led to this server.
fn content(server: Option<usize>) -> SocketAddr {
    let third = server.map_or(0, |server| server + 1);
    let third = u8::try_from(third).unwrap_or(u8::MAX);
    SocketAddr::from(([10, 78, third, 2], PORT))
}

/// Where a server's services are.
fn address(server: usize) -> String {
    format!("10.200.{}.1", server + 1)
}

impl Site {
    /// Builds it, with all servers running.
    ///
    /// # Errors
    /// Something could not be made, or does not start.
    pub(super) fn build() -> Result<Self> {
        let names: Vec<_> = (0..TABLE.len()).map(name).collect();
        let mut hosts = vec!["lan", "box", UPLINKS[0], UPLINKS[1], "content"];
        hosts.extend(names.iter().map(String::as_str));
        let _allowed = allow(CONGESTION)?;
        let mut graph = Graph::build(&hosts)?;
        lay_out(&graph)?;
        let mut paths = vec![];
        for server in 0..TABLE.len() {
            paths.push(join(&mut graph, server)?);
        }
        for host in hosts {
            // No connection is the better for those before.
            let host = graph.host(host)?;
            host.sysctl(&[
                ("net.ipv4.tcp_no_metrics_save", "1"),
                ("net.ipv4.tcp_congestion_control", CONGESTION),
            ])?;
        }
        let content = Server::start(graph.host("content")?, ServeOptions::tcp(PORT))?;
        let key = graph.dir().join("probe.key");
        fs::write(&key, KEY).with_context(|| format!("writing {key:?}"))?;
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600))?;
        let mut servers = vec![];
        for server in 0..TABLE.len() {
            servers.push(start_server(&graph, server, &key)?);
        }
        Ok(Self {
            graph,
            paths,
            servers,
            _content: content,
        })
    }

    /// Starts a box.
    ///
    /// # Errors
    /// It does not start.
    pub(super) fn start_box(&self, leads: Leads) -> Result<FlexCp> {
        let services = match leads {
            Leads::Measured(interval) => self.measured(interval),
            Leads::Each => (0..TABLE.len()).map(|server| self.each(server)).collect(),
        };
        let host = self.graph.host("box")?;
        FlexCp::start_on(host, (self.graph.dir(), "box"), ("", &services))
    }

    fn measured(&self, interval: u64) -> String {
        let each = (0..TABLE.len()).map(|server| self.told(server));
        let each: Vec<_> = each.collect();
        format!(
            "{}destinations = [\"10.78.0.0/24\"]\nservers = [{}]\nchoose = \"throughput\"\ncontent = \"{}\"\n\
             probe_interval = \"{interval}s\"\nprobe_bytes = \"{}MB\"\n",
            service("home"),
            each.join(", "),
            content(None),
            PROBE_BYTES / 1_000_000,
        )
    }

    /// No other server stands in for it, and no uplink leads to the content server past it.
    fn each(&self, server: usize) -> String {
        format!(
            "{}destinations = [\"{}/32\"]\nservers = [{}]\nchoose = \"fixed\"\n\n",
            service(&format!("by{}", server + 1)),
            content(Some(server)).ip(),
            self.told(server)
        )
    }

    /// A server, as the box is told of it.
    fn told(&self, server: usize) -> String {
        let addr = address(server);
        format!(
            "{{ address = \"{addr}:{SOCKS}\", mode = \"socks5\", name = \"{}\", probe = \"{addr}:{PROBE}\", \
             key_file = {:?} }}",
            name(server),
            self.graph.dir().join("probe.key")
        )
    }

    /// Does a job with the content server, by whatever server the box chooses, or by this one. A client in the LAN does it.
    ///
    /// # Errors
    /// It fails, or a byte is wrong.
    pub(super) fn run(&self, job: &Job, by: Option<usize>) -> Result<Report> {
        let client = Client::tcp(content(by));
        let report = client.run_in(self.graph.host("lan")?, job)?;
        report.ok().with_context(|| format!("{job:?} by {by:?}"))?;
        Ok(report)
    }

    /// A server's paths carry this share of their rates from here on.
    ///
    /// # Errors
    /// The emulator has ended.
    pub(super) fn set_share(&self, server: usize, share: f64) -> Result<()> {
        for (uplink, link) in self.paths[server].iter().enumerate() {
            let faults = TABLE[server].path(uplink, share);
            self.graph.set_faults(*link, [&faults[0], &faults[1]])?;
        }
        Ok(())
    }

    /// Connections that each server has carried so far, all of them by sockets over both uplinks.
    ///
    /// # Errors
    /// A server does not answer, or has translated connections.
    pub(super) fn carried(&self) -> Result<Vec<u64>> {
        let each = self.servers.iter().map(|server| {
            let stats = server.show_stats()?;
            let translated = stats.counter("connections_opened")?;
            ensure!(translated == 0, "{translated} connections not split");
            Ok(stats.counter("split")?)
        });
        each.collect()
    }

    /// Bytes of probes that have reached servers, and that those have sent.
    ///
    /// # Errors
    /// A server does not answer.
    pub(super) fn probe_bytes(&self) -> Result<[u64; 2]> {
        let mut bytes = [0; 2];
        for server in &self.servers {
            let told = &server.show_json("servers")?["responder"];
            for (sum, key) in bytes.iter_mut().zip(["bytes_in", "bytes_out"]) {
                *sum += told[key].as_u64().with_context(|| format!("no {key}"))?;
            }
        }
        Ok(bytes)
    }

    /// What servers have logged, for a run that has failed.
    pub(super) fn logs(&self) -> String {
        self.servers.iter().map(FlexCp::log).collect()
    }

    /// The end of it.
    ///
    /// # Errors
    /// A server does not end as it should.
    pub(super) fn end(self) -> Result<()> {
        self.servers.into_iter().try_for_each(FlexCp::terminate)
    }
}

/// What box services have in common.
fn service(name: &str) -> String {
    format!(
        "[[service]]\nname = {name:?}\nmode = \"box\"\ninterfaces = [\"lan0\"]\nuplinks = {UPLINKS:?}\n"
    )
}

/// The LAN, the uplinks, and the content server's addresses.
fn lay_out(graph: &Graph) -> Result<()> {
    graph.cable([
        End::new("lan", "eth0", "10.9.0.2/24"),
        End::new("box", "lan0", "10.9.0.1/24"),
    ])?;
    let lan = graph.host("lan")?;
    lan.ip("route add default via 10.9.0.1")?;
    for (number, uplink) in (1..).zip(UPLINKS) {
        let _: u8 = number;
        let ends = [format!("10.1.{number}.1/24"), format!("10.1.{number}.2/24")];
        graph.cable([
            End::new("box", uplink, &ends[0]),
            End::new(uplink, "box", &ends[1]),
        ])?;
        graph.host("box")?.ip(&format!(
            "route add default via 10.1.{number}.2 dev {uplink} metric {number}00"
        ))?;
    }
    let host = graph.host("content")?;
    for server in (0..TABLE.len()).map(Some).chain([None]) {
        host.ip(&format!("addr add {}/32 dev lo", content(server).ip()))?;
    }
    Ok(())
}

/// A server's links, and its routes. Gives the numbers of those with the uplinks.
fn join(graph: &mut Graph, server: usize) -> Result<[usize; 2]> {
    let (own, number) = (name(server), server + 1);
    let host = |graph: &Graph, line: String| graph.host(&own)?.ip(&line).map(drop);
    host(graph, format!("addr add {}/32 dev lo", address(server)))?;
    let mut paths = [0; 2];
    for (at, uplink) in UPLINKS.into_iter().enumerate() {
        let net = format!("10.{}.{number}", 101 + at);
        let ends = ["2", "1"].map(|host| format!("{net}.{host}/24"));
        let near = End::new(&own, uplink, &ends[0]);
        let far = End::new(uplink, &own, &ends[1]);
        let faults = TABLE[server].path(at, 1.0);
        paths[at] = graph.link([near, far], [&faults[0], &faults[1]])?;
        let to_box = format!("route add 10.1.{}.0/24 via {net}.1", at + 1);
        host(graph, to_box)?;
        let to_server = format!("route add {}/32 via {net}.2", address(server));
        graph.host(uplink)?.ip(&to_server)?;
    }
    let net = format!("10.77.{number}");
    let ends = ["2", "1"].map(|host| format!("{net}.{host}/24"));
    let near = End::new("content", &own, &ends[0]);
    let far = End::new(&own, "content", &ends[1]);
    let leg = TABLE[server].leg();
    graph.link([near, far], [&leg, &leg])?;
    host(graph, format!("route add {CONTENT} via {net}.2"))?;
    // A server calls content from the address that its clients know.
    let back = format!("route add {}/32 via {net}.1", address(server));
    graph.host("content")?.ip(&back)?;
    Ok(paths)
}

/// An aggregation server: its connections are split, as one download is to take both uplinks. It speaks SOCKS5: after data in a SYN, as
/// Convert has it, Linux (6.18) as the server believes in a window that is a thousand times the client's, and a download stands still.
fn start_server(graph: &Graph, server: usize, key: &Path) -> Result<FlexCp> {
    let (host, addr) = (name(server), address(server));
    let (dir, namespace): (PathBuf, _) = (graph.dir().into(), graph.host(&host)?);
    let (rate, _) = TABLE[server].own;
    let services = format!(
        "[responder]\nlisten = [\"{addr}:{PROBE}\"]\nkey_file = {key:?}\ncontent = [{CONTENT:?}]\n\
         content_rate = \"{:.0}kbit\"\n\n\
         [[service]]\nname = \"socks\"\nmode = \"socks5\"\nlisten = [\"{addr}:{SOCKS}\"]\n\
         allow = [{CONTENT:?}]\ncarrier = \"split\"\n",
        rate * 1000.0
    );
    FlexCp::start_on(namespace, (&dir, &host), ("", &services))
}

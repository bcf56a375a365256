//! The lab itself: client, wire, proxy and server namespaces and their links.
//!
//! ```text
//!            link 1  ┌──────┐ a1        srv1 ┌──────────┐
//!  client a1 ════════╡ wire ╞════ proxy ═════╡ server 1 │ eth0
//!         a2 ════════╡      ╞════       ═════╡ server 2 │ eth0
//!            link 2  └──────┘ a2        srv2 └──────────┘
//! ```
//!
//! The wire forwards frames and is where faults are injected and rates are
//! limited: between client and proxy, out of sight of both.

mod graph;
mod plan;

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::{fs, process};

use anyhow::{Context as _, Result, bail, ensure};

use crate::cleanup::{self, PREFIX, Sweep, sweep};
use crate::fault::{Direction, LinkFaults};
use crate::link::Emulator;
use crate::namespace::{self, Namespace};
use crate::process::Reaper;
use crate::upper::Upper;

pub use self::graph::{End, Graph};
use self::plan::Plan;
pub(crate) use self::plan::keep_order;

/// An IP version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// IPv4
    V4,
    /// IPv6
    V6,
}

/// Which IP versions something has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Families {
    /// None at all.
    Neither,
    /// IPv4 only
    V4,
    /// IPv6 only
    V6,
    /// Both
    Both,
}

impl Families {
    /// True if `family` is among them.
    pub fn has(self, family: Family) -> bool {
        match family {
            Family::V4 => matches!(self, Self::V4 | Self::Both),
            Family::V6 => matches!(self, Self::V6 | Self::Both),
        }
    }

    fn iter(self) -> impl Iterator<Item = Family> {
        [Family::V4, Family::V6]
            .into_iter()
            .filter(move |family| self.has(*family))
    }
}

/// What to build. Made by [`Lab::builder`].
#[derive(Clone, Debug)]
pub struct LabBuilder {
    links: u8,
    servers: u8,
    families: Families,
    /// `None`: those of the links.
    endpoints: Option<Families>,
    backup: Vec<u8>,
    wire: bool,
    proxy_here: bool,
    offloads: bool,
    in_order: bool,
    keep: bool,
    mtu: Vec<(u8, u32)>,
    rate_mbit: Vec<(u8, u32)>,
    /// What waits at most on links that have a rate, in milliseconds of it.
    queue_ms: u32,
    upper: Vec<(u8, Upper)>,
    /// Lists of faults as text; the links they name are emulated.
    pub(crate) faults: Vec<(u8, Direction, String)>,
    pub(crate) fault_seed: u64,
    client_sysctls: Vec<(String, String)>,
    server_sysctls: Vec<(String, String)>,
}

impl LabBuilder {
    /// Number of access links between client and proxy (1 to 8; default 2).
    pub fn access_links(mut self, links: u8) -> Self {
        self.links = links;
        self
    }

    /// Number of servers (1 to 8; default 1).
    pub fn servers(mut self, servers: u8) -> Self {
        self.servers = servers;
        self
    }

    /// IP versions on all links (default IPv4).
    pub fn families(mut self, families: Families) -> Self {
        self.families = families;
        self
    }

    /// IP versions of the client's MPTCP endpoints on links 2 to n.
    ///
    /// Default: those of the links. [`Families::Neither`] makes a client that
    /// never joins of its own accord; IPv6 endpoints with an IPv4 server give
    /// connections of mixed families once the far end announces an address.
    pub fn endpoints(mut self, families: Families) -> Self {
        self.endpoints = Some(families);
        self
    }

    /// Gives the endpoints of this link the backup flag.
    pub fn backup(mut self, link: u8) -> Self {
        self.backup.push(link);
        self
    }

    /// With `false`, client and proxy are joined directly: no faults, one hop less.
    pub fn wire(mut self, wire: bool) -> Self {
        self.wire = wire;
        self
    }

    /// Has the namespace of this process as the proxy, instead of one of its own. Its sysctls stay changed when the lab is
    /// gone: for machines that are made for it.
    pub fn proxy_here(mut self) -> Self {
        self.proxy_here = true;
        self
    }

    /// Switches TSO, GSO, GRO and checksum offload of every interface (default on).
    pub fn offloads(mut self, on: bool) -> Self {
        self.offloads = on;
        self
    }

    /// With `false`, the CPU that sends a packet also receives it: cheaper, but when a flow's sender moves to another
    /// CPU its packets overtake each other (default: in order).
    pub fn in_order(mut self, on: bool) -> Self {
        self.in_order = on;
        self
    }

    /// MTU of one access link.
    pub fn mtu(mut self, link: u8, bytes: u32) -> Self {
        self.mtu.push((link, bytes));
        self
    }

    /// Has a device of that kind on an access link.
    pub fn upper(mut self, link: u8, upper: Upper) -> Self {
        self.upper.push((link, upper));
        self
    }

    /// Rate of one access link, each way.
    pub fn rate_mbit(mut self, link: u8, mbit: u32) -> Self {
        self.rate_mbit.push((link, mbit));
        self
    }

    /// What waits at most on links with a rate, in milliseconds of it (default 50).
    pub fn queue_ms(mut self, ms: u32) -> Self {
        self.queue_ms = ms;
        self
    }

    /// Faults on one access link, one way, e.g. `loss=1%,delay=10ms` (see `flexcp_faults`).
    ///
    /// The link is carried by an [`Emulator`] then, and [`Lab::set_faults`] changes them while it
    /// runs; an empty list has it emulated without faults.
    pub fn faults(mut self, link: u8, direction: Direction, faults: &str) -> Self {
        self.faults.push((link, direction, faults.to_owned()));
        self
    }

    /// Decides the luck of every packet on emulated links (default 1).
    pub fn fault_seed(mut self, seed: u64) -> Self {
        self.fault_seed = seed;
        self
    }

    /// A sysctl of the client's namespace, e.g. `("net.ipv4.tcp_timestamps", "0")`.
    pub fn client_sysctl(mut self, name: &str, value: &str) -> Self {
        self.client_sysctls
            .push((name.to_owned(), value.to_owned()));
        self
    }

    /// A sysctl of every server's namespace.
    pub fn server_sysctl(mut self, name: &str, value: &str) -> Self {
        self.server_sysctls
            .push((name.to_owned(), value.to_owned()));
        self
    }

    /// Lets programs started in the lab outlive this process; see [`Lab::keep`].
    pub fn keep(mut self, keep: bool) -> Self {
        self.keep = keep;
        self
    }

    /// Builds it. On an error nothing stays behind.
    pub fn build(self) -> Result<Lab> {
        require_root()?;
        ensure!(
            (1..=8).contains(&self.links),
            "a lab has 1 to 8 access links"
        );
        ensure!((1..=8).contains(&self.servers), "a lab has 1 to 8 servers");
        ensure!(
            !self.keep || self.faults.is_empty(),
            "a lab that outlives us can't have emulated links: they are threads of ours"
        );
        let guard = Remains::arm()?;
        Plan {
            spec: self,
            prefix: guard.prefix.clone(),
            guard,
        }
        .carry_out()
    }
}

/// A running lab. Dropping it removes everything it made.
#[derive(Debug)]
pub struct Lab {
    prefix: String,
    spec: LabBuilder,
    client: Namespace,
    wire: Option<Namespace>,
    proxy: Namespace,
    servers: Vec<Namespace>,
    /// By link, from 0.
    pub(crate) faults: Mutex<Vec<LinkFaults>>,
    /// By link, from 0; `None` where the wire forwards by itself.
    pub(crate) emulators: Vec<Option<Emulator>>,
    remains: Remains,
}

impl Lab {
    /// Starts describing a lab: two IPv4 access links, one server.
    pub fn builder() -> LabBuilder {
        LabBuilder {
            links: 2,
            servers: 1,
            families: Families::V4,
            endpoints: None,
            backup: vec![],
            wire: true,
            proxy_here: false,
            offloads: true,
            in_order: true,
            keep: false,
            mtu: vec![],
            rate_mbit: vec![],
            queue_ms: 50,
            upper: vec![],
            faults: vec![],
            fault_seed: 1,
            client_sysctls: vec![],
            server_sysctls: vec![],
        }
    }

    /// What the names of its namespaces start with.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Its directory for configuration, logs and captures.
    pub fn dir(&self) -> &Path {
        &self.remains.dir
    }

    /// The client's namespace, with interfaces `a1` to `an`.
    pub fn client(&self) -> &Namespace {
        &self.client
    }

    /// The proxy's namespace, with `a1` to `an` and `srv1` to `srvm`.
    pub fn proxy(&self) -> &Namespace {
        &self.proxy
    }

    /// The namespace of server `number`, from 1, with interface `eth0`.
    pub fn server(&self, number: u8) -> &Namespace {
        &self.servers[usize::from(number) - 1]
    }

    /// The namespaces of all servers.
    pub fn servers(&self) -> &[Namespace] {
        &self.servers
    }

    /// The namespace that links client and proxy, with `c1`.. and `p1`..
    pub fn wire(&self) -> Result<&Namespace> {
        self.wire
            .as_ref()
            .context("this lab was built without a wire")
    }

    /// Number of access links.
    pub fn links(&self) -> u8 {
        self.spec.links
    }

    /// Whether a link carries so much at most, and lets the rest wait.
    pub(crate) fn has_rate(&self, link: u8) -> bool {
        let mut rates = self.spec.rate_mbit.iter();
        rates.any(|(rated, _)| *rated == link)
    }

    /// IP versions on its links.
    pub fn families(&self) -> Families {
        self.spec.families
    }

    /// The client's address on a link, from 1.
    pub fn client_addr(&self, link: u8, family: Family) -> IpAddr {
        access_addr(link, 2, family)
    }

    /// The proxy's address on an access link, from 1.
    pub fn proxy_addr(&self, link: u8, family: Family) -> IpAddr {
        access_addr(link, 1, family)
    }

    /// The address of server `number`, from 1.
    pub fn server_addr(&self, number: u8, family: Family) -> IpAddr {
        server_addr(number, 2, family)
    }

    /// The proxy's address on the link to server `number`.
    pub fn proxy_addr_towards(&self, number: u8, family: Family) -> IpAddr {
        server_addr(number, 1, family)
    }

    /// Address and port on server `number`.
    pub fn server_socket(&self, number: u8, family: Family, port: u16) -> SocketAddr {
        SocketAddr::new(self.server_addr(number, family), port)
    }

    /// Addresses, routes and MPTCP endpoints of the client on one link.
    ///
    /// Applied when the lab is built and when a link that was down is restored.
    pub(crate) fn configure_client_link(&self, link: u8) -> Result<()> {
        self.client.ip_batch(&self.spec.client_link(link))
    }

    /// The client's MPTCP endpoints anew, for links that have another index now.
    pub(crate) fn renew_client_endpoints(&self) -> Result<()> {
        self.client.ip("mptcp endpoint flush")?;
        self.client.ip_batch(&self.spec.client_endpoints())
    }

    /// Leaves namespaces and programs in place; needs [`LabBuilder::keep`].
    ///
    /// Returns the lines that tell a human how to get in and how to end it.
    pub fn keep(mut self) -> Result<String> {
        ensure!(self.spec.keep, "this lab was not built to be kept");
        cleanup::mark_kept(&self.remains.dir)?;
        self.remains.reaper.disarm();
        let mut help = String::new();
        let mut tell = |what: &str, namespace: &Namespace| {
            let _ = writeln!(
                help,
                "  {what:<9} nsenter --net={}",
                namespace.path().display()
            );
        };
        tell("client", &self.client);
        if let Some(wire) = &self.wire {
            tell("wire", wire);
        }
        tell("proxy", &self.proxy);
        for (number, server) in (1..).zip(&self.servers) {
            tell(&format!("server {number}"), server);
        }
        let _ = writeln!(help, "  {:<9} {}", "files", self.remains.dir.display());
        self.remains.dir = PathBuf::new();
        Ok(help)
    }
}

/// What has to go when the lab goes, in whatever state it is.
#[derive(Debug)]
struct Remains {
    reaper: Reaper,
    /// Empty when the lab was kept.
    dir: PathBuf,
    prefix: String,
}

impl Remains {
    /// Removes what dead processes have left, takes a prefix that nobody has, and sees to it that all of that prefix goes.
    fn arm() -> Result<Self> {
        sweep(Sweep::Leftovers);
        let prefix = next_prefix();
        let dir = cleanup::directory(&prefix);
        fs::create_dir_all(&dir).with_context(|| format!("creating {dir:?}"))?;
        Ok(Self {
            reaper: Reaper::arm(&prefix, &dir)?,
            dir,
            prefix,
        })
    }
}

impl Drop for Remains {
    fn drop(&mut self) {
        if self.dir.as_os_str().is_empty() {
            return;
        }
        let ours = format!("{}-", self.prefix);
        for name in namespace::list()
            .iter()
            .filter(|name| name.starts_with(&ours))
        {
            if let Err(error) = namespace::remove_by_name(name) {
                eprintln!("lab: {error:#}");
            }
        }
        let _ = fs::remove_dir_all(&self.dir);
        self.reaper.disarm();
    }
}

/// An error that says what to do when the caller is not root.
pub fn require_root() -> Result<()> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    bail!("the lab builds network namespaces and needs root: run it with sudo")
}

/// `fxl<pid>` for the first lab of a process, then `fxl<pid>.1` and so on.
fn next_prefix() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    match COUNT.fetch_add(1, Ordering::Relaxed) {
        0 => format!("{PREFIX}{}", process::id()),
        count => format!("{PREFIX}{}.{count}", process::id()),
    }
}

fn access_addr(link: u8, host: u8, family: Family) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::new(10, 1, link, host).into(),
        Family::V6 => Ipv6Addr::new(0xfd01, link.into(), 0, 0, 0, 0, 0, host.into()).into(),
    }
}

fn server_addr(number: u8, host: u8, family: Family) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::new(10, 9, number, host).into(),
        Family::V6 => Ipv6Addr::new(0xfd09, number.into(), 0, 0, 0, 0, 0, host.into()).into(),
    }
}

fn addr_line(address: IpAddr, device: &str, number: u8) -> String {
    match address {
        IpAddr::V4(v4) => format!("addr add {v4}/24 dev {device}{number}"),
        IpAddr::V6(v6) => format!("addr add {v6}/64 dev {device}{number} nodad"),
    }
}

/// The client's routing table for packets from its address on a link.
fn table(link: u8) -> u32 {
    100 + u32::from(link)
}

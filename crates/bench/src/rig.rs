//! The subjects, and the lab that each of them is measured in.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use anyhow::{Context as _, Result, bail, ensure};
use clap::ValueEnum;
use flexcp_lab::transfer::Proto;
use flexcp_lab::{Families, Family, FlexCp, Lab, Mib, daemon};
use serde::Serialize;

use crate::echo::Echo;
use crate::hold::Helper;
use crate::load::{Exchange, Load};
use crate::programs::{self, Program, WEB};
use crate::sink::{BACKLOG, Sink};
use crate::verify;

/// What stands between client and server.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Subject {
    /// FlexCP with the offload in the kernel
    #[value(name = "flexcp")]
    #[serde(rename = "flexcp")]
    FlexCp,
    /// The same, with 20,000 connections beside that are open and idle
    #[value(name = "flexcp-crowded")]
    #[serde(rename = "flexcp-crowded")]
    Crowded,
    /// FlexCP with the offload, asked for its statistics ten times a second
    #[value(name = "flexcp-stats")]
    #[serde(rename = "flexcp-stats")]
    Watched,
    /// The same, asked for all its connections every ten seconds
    #[value(name = "flexcp-list")]
    #[serde(rename = "flexcp-list")]
    Listed,
    /// FlexCP with the offload, and a rule that shares the connections out over two accesses
    #[value(name = "flexcp-rule")]
    #[serde(rename = "flexcp-rule")]
    Ruled,
    /// FlexCP, every packet through its translator
    #[value(name = "flexcp-translator")]
    #[serde(rename = "flexcp-translator")]
    Translator,
    /// The same; the kernel chooses which worker a packet comes to, and workers hand over what is another's
    #[value(name = "flexcp-kernel-placement")]
    #[serde(rename = "flexcp-kernel-placement")]
    KernelPlacement,
    /// The same; each packet comes to the next worker
    #[value(name = "flexcp-scatter")]
    #[serde(rename = "flexcp-scatter")]
    Scatter,
    /// nginx, stream proxy
    Nginx,
    /// haproxy, TCP mode with splice()
    Haproxy,
    /// No proxy: TCP from end to end, through a program that writes each packet of a TUN device back as it came
    Tun,
    /// No proxy: MPTCP from end to end, through a router
    Mptcp,
    /// No proxy: TCP from end to end, through a router
    Tcp,
}

impl Subject {
    /// All of them.
    pub const ALL: [Self; 13] = [
        Self::FlexCp,
        Self::Crowded,
        Self::Watched,
        Self::Listed,
        Self::Ruled,
        Self::Translator,
        Self::KernelPlacement,
        Self::Scatter,
        Self::Nginx,
        Self::Haproxy,
        Self::Tun,
        Self::Mptcp,
        Self::Tcp,
    ];

    /// Those that are compared wherever workers do not matter.
    pub(crate) const COMPARED: [Self; 6] = [
        Self::FlexCp,
        Self::Translator,
        Self::Nginx,
        Self::Haproxy,
        Self::Mptcp,
        Self::Tcp,
    ];

    /// Its name in tables and files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::FlexCp => "flexcp",
            Self::Crowded => "flexcp-crowded",
            Self::Watched => "flexcp-stats",
            Self::Listed => "flexcp-list",
            Self::Ruled => "flexcp-rule",
            Self::Translator => "flexcp-translator",
            Self::KernelPlacement => "flexcp-kernel-placement",
            Self::Scatter => "flexcp-scatter",
            Self::Nginx => "nginx",
            Self::Haproxy => "haproxy",
            Self::Tun => "tun",
            Self::Mptcp => "mptcp",
            Self::Tcp => "tcp",
        }
    }

    /// Whether it is FlexCP in one way or another.
    pub(crate) const fn is_flexcp(self) -> bool {
        matches!(
            self,
            Self::FlexCp
                | Self::Crowded
                | Self::Watched
                | Self::Listed
                | Self::Ruled
                | Self::Translator
                | Self::KernelPlacement
                | Self::Scatter
        )
    }

    /// What it has in FlexCP's `[device]` section beside the number of workers.
    const fn device(self) -> &'static str {
        match self {
            Self::KernelPlacement => "\nplacement = \"kernel\"",
            Self::Scatter => "\nplacement = \"scatter\"",
            _ => "",
        }
    }

    /// Whether it has no process of its own.
    pub(crate) const fn is_bare(self) -> bool {
        matches!(self, Self::Tun | Self::Mptcp | Self::Tcp)
    }

    /// Protocol of its client's sockets.
    pub(crate) fn client(self) -> Proto {
        match self {
            Self::Tun | Self::Tcp => Proto::Tcp,
            _ => Proto::Mptcp,
        }
    }

    /// Protocol of its server's sockets.
    pub(crate) fn server(self) -> Proto {
        match self {
            Self::Mptcp => Proto::Mptcp,
            _ => Proto::Tcp,
        }
    }
}

/// What the labs of a measurement are like.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    /// Segmentation and checksum offloads on all links, and on FlexCP's TUN device.
    pub(crate) gso: bool,
    /// The packets of a flow stay in order on all links.
    pub(crate) in_order: bool,
    /// Congestion control of all ends; the kernel's own choice when there is none.
    pub(crate) congestion: Option<String>,
    /// Sizes of the web server's objects.
    pub(crate) objects: Vec<u64>,
    /// Further addresses of the client.
    pub(crate) addresses: u8,
    /// Of FlexCP.
    pub(crate) workers: u16,
    /// The clients speak TCP, whoever the subject is.
    pub(crate) plain: bool,
}

/// A subject in its lab, with its servers, ready for load.
#[derive(Debug)]
pub(crate) struct Rig {
    pub(crate) subject: Subject,
    proxy: Option<Proxy>,
    _web: Program,
    _sink: Sink,
    addresses: u8,
    plain: bool,
    /// Connections beside, and their servers.
    crowd: Vec<Helper>,
    pub(crate) lab: Lab,
}

#[derive(Debug)]
enum Proxy {
    FlexCp(FlexCp),
    Other(Program),
    Echo(Echo),
}

impl Rig {
    /// Builds it.
    ///
    /// # Errors
    /// With the reason why this subject can't run here.
    pub(crate) fn build(subject: Subject, setting: &Setting) -> Result<Self> {
        let lab = Lab::builder()
            .access_links(2)
            .wire(false)
            .offloads(setting.gso)
            .in_order(setting.in_order)
            // Joins are switched by `subflows`.
            .endpoints(Families::Neither)
            .build()?;
        prepare(&lab)?;
        if let Some(name) = &setting.congestion {
            for namespace in [lab.client(), lab.proxy(), lab.server(1)] {
                namespace.sysctl(&[("net.ipv4.tcp_congestion_control", name)])?;
            }
        }
        for number in 0..setting.addresses {
            let own = further_address(number);
            lab.client().ip(&format!("addr add {own}/24 dev a1"))?;
        }
        let web = programs::web(&lab, subject.server(), &setting.objects)?;
        let sink = Sink::start(lab.server(1), subject.server(), &SINKS)?;
        let proxy = Proxy::start(subject, &lab, setting)?;
        let mut rig = Self {
            subject,
            proxy,
            _web: web,
            _sink: sink,
            addresses: setting.addresses,
            plain: setting.plain,
            crowd: vec![],
            lab,
        };
        if subject == Subject::Crowded {
            rig.crowd_in(CROWD)?;
        }
        Ok(rig)
    }

    /// Opens so many connections beside: each is used once, and then idle.
    pub(crate) fn crowd_in(&mut self, count: usize) -> Result<()> {
        self.crowd = self.gather(count)?;
        Ok(())
    }

    /// Clients first in what is dropped.
    fn gather(&self, count: usize) -> Result<Vec<Helper>> {
        self.subflows(1)?;
        let processes = u16::try_from(count.div_ceil(CROWD_OF_ONE))?;
        let each = count.div_ceil(usize::from(processes.max(1)));
        let (mut clients, mut servers) = (vec![], vec![]);
        for (number, port) in (CROWD_PORT..).take(processes.into()).enumerate() {
            // Of its own: with half of an address's ports taken, the kernel looks long for one that is free.
            let own = further_address(self.addresses + u8::try_from(number)?);
            self.lab.client().ip(&format!("addr add {own}/24 dev a1"))?;
            servers.push(Helper::sink(
                self.lab.server(1),
                self.subject.server(),
                port,
            )?);
            let ends = (own, self.port(port));
            let client = self.lab.client();
            clients.push(Helper::connections(client, self.proto(), ends, each)?);
        }
        for client in &mut clients {
            let open = client.line()?;
            ensure!(
                open.split_whitespace().next() == Some(&each.to_string()),
                "of {each} connections beside these are open: {open}"
            );
        }
        clients.append(&mut servers);
        Ok(clients)
    }

    /// Whether new MPTCP connections of the client get a second subflow.
    pub(crate) fn subflows(&self, count: usize) -> Result<()> {
        self.lab.client().ip("mptcp endpoint flush")?;
        if count > 1 {
            let own = self.lab.client_addr(2, Family::V4);
            self.lab
                .client()
                .ip(&format!("mptcp endpoint add {own} dev a2 subflow"))?;
        }
        Ok(())
    }

    /// Where the client finds this exchange's server.
    pub(crate) fn target(&self, exchange: Exchange) -> SocketAddr {
        let port = match exchange {
            Exchange::Get(_) => WEB,
            Exchange::Put(_) => SINKS[0],
        };
        self.port(port)
    }

    /// Where the client finds a port of the server.
    pub(crate) fn port(&self, port: u16) -> SocketAddr {
        match self.subject {
            Subject::Nginx | Subject::Haproxy => {
                SocketAddr::new(self.lab.proxy_addr(1, Family::V4), port)
            }
            _ => self.lab.server_socket(1, Family::V4, port),
        }
    }

    /// Protocol of the client's sockets.
    pub(crate) fn proto(&self) -> Proto {
        if self.plain {
            Proto::Tcp
        } else {
            self.subject.client()
        }
    }

    /// The client's addresses, when it has more than one for the first path.
    pub(crate) fn addresses(&self) -> Vec<IpAddr> {
        (0..self.addresses).map(further_address).collect()
    }

    /// The FlexCP in it.
    pub(crate) fn flexcp(&self) -> Result<&FlexCp> {
        match &self.proxy {
            Some(Proxy::FlexCp(flexcp)) => Ok(flexcp),
            _ => bail!("{} is not FlexCP", self.subject.name()),
        }
    }

    /// Process id of the proxy.
    pub(crate) fn proxy_pid(&self) -> Option<u32> {
        self.proxy.as_ref().and_then(|proxy| match proxy {
            Proxy::FlexCp(flexcp) => Some(flexcp.pid()),
            Proxy::Other(program) => Some(program.pid()),
            Proxy::Echo(_) => None,
        })
    }

    /// Runs a load from the client, and checks that it had the subflows that were asked for.
    pub(crate) fn load(&self, load: &Load, subflows: usize) -> Result<crate::load::Outcome> {
        self.subflows(subflows)?;
        let before = Mib::read(self.lab.client())?;
        let client = self.lab.client();
        let outcome = client.run(|| load.run(self.proxy_pid()))?;
        let moved = Mib::read(client)?.since(&before);
        if let Some(Proxy::Echo(echo)) = &self.proxy {
            let objects = u64::try_from(outcome.micros.len()).unwrap_or(u64::MAX);
            ensure!(echo.passed() > objects, "packets pass the TUN device by");
        }
        if self.proto() == Proto::Mptcp {
            let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
            // Some may not be complete yet, or fall back because packets were lost.
            let connections = if load.reconnect {
                count(outcome.micros.len() * 9 / 10)
            } else {
                count(load.connections)
            };
            let (made, joined) = (moved.get("MPCapableSYNACKRX"), moved.get("MPJoinSynAckRx"));
            ensure!(
                made >= connections,
                "{made} of {connections} connections speak MPTCP"
            );
            ensure!(
                (subflows > 1) == (joined > 0)
                    && (subflows == 1 || load.reconnect || joined >= connections),
                "{joined} joins of {connections} connections with {subflows} subflows"
            );
        }
        Ok(outcome)
    }

    /// Fetches an object and sends one, and compares what arrives by SHA-256.
    pub(crate) fn verify(&self, bytes: u64) -> Result<()> {
        self.subflows(2)?;
        let get = self.target(Exchange::Get(bytes));
        let put = self.target(Exchange::Put(bytes));
        self.lab
            .client()
            .run(|| verify::both_ways(self.proto(), get, put, bytes))
            .with_context(|| format!("{} does not pass objects unchanged", self.subject.name()))
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.crowd.clear();
        if let Some(Proxy::FlexCp(flexcp)) = self.proxy.take()
            && let Err(error) = flexcp.stop()
        {
            eprintln!("bench: {error:#}");
        }
    }
}

impl Proxy {
    fn start(subject: Subject, lab: &Lab, setting: &Setting) -> Result<Option<Self>> {
        let mut ports = vec![WEB];
        ports.extend(SINKS);
        Ok(Some(match subject {
            Subject::Mptcp | Subject::Tcp => return Ok(None),
            Subject::Tun => Self::Echo(Echo::start(lab)?),
            Subject::Nginx => Self::Other(programs::nginx_proxy(lab, &ports)?),
            Subject::Haproxy => Self::Other(programs::haproxy(lab, &ports)?),
            Subject::FlexCp
            | Subject::Crowded
            | Subject::Watched
            | Subject::Listed
            | Subject::Ruled
            | Subject::Translator
            | Subject::KernelPlacement
            | Subject::Scatter => {
                let mut services = daemon::transparent(lab, &[]);
                if subject == Subject::Ruled {
                    services = format!("{}{RULE}{services}", daemon::accesses(lab));
                }
                let tiers = [
                    Subject::Translator,
                    Subject::KernelPlacement,
                    Subject::Scatter,
                ];
                let offload = !tiers.contains(&subject);
                let device = format!("workers = {}{}", setting.workers, subject.device());
                let flexcp = start_flexcp(lab, offload, &device, &services)?;
                if !setting.gso {
                    let mut command = lab.proxy().command("ethtool");
                    command.args(["-K", "flexcp0", "tso", "off", "gso", "off"]);
                    flexcp_lab::output(&mut command)?;
                }
                Self::FlexCp(flexcp)
            }
        }))
    }
}

/// Room for many connections at once, in all namespaces.
pub(crate) fn prepare(lab: &Lab) -> Result<()> {
    for namespace in [lab.client(), lab.proxy(), lab.server(1)] {
        namespace.sysctl(&[
            ("net.core.somaxconn", &BACKLOG.to_string()),
            ("net.ipv4.tcp_max_syn_backlog", &BACKLOG.to_string()),
            ("net.ipv4.ip_local_port_range", "1024 65535"),
        ])?;
    }
    // Two SYNs lost on a busy machine, and the client would use TCP for an hour. Older kernels don't.
    let _ = lab.client().sysctl(&[("net.mptcp.blackhole_timeout", "0")]);
    lab.proxy()
        .ip("mptcp limits set subflows 8 add_addr_accepted 8")?;
    Ok(())
}

/// Starts FlexCP with or without its offload; `device` are lines of its `[device]` section.
///
/// # Errors
/// When this flexcp program has no offload and should, or does not know its configuration.
pub(crate) fn start_flexcp(
    lab: &Lab,
    offload: bool,
    device: &str,
    services: &str,
) -> Result<FlexCp> {
    let config = |lines: &str| daemon::config_of_device(lab, device, &format!("{lines}{services}"));
    let offered = daemon::check(lab, &config(OFFLOAD_ON))?.status.success();
    let switch = match (offload, offered) {
        (true, false) => bail!("this flexcp program has no offload"),
        (true, true) => OFFLOAD_ON,
        (false, true) => OFFLOAD_OFF,
        (false, false) => "",
    };
    let config = config(switch);
    check(lab, &config)?;
    FlexCp::start(lab, &config)
}

fn check(lab: &Lab, config: &str) -> Result<()> {
    let output = daemon::check(lab, config)?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "this flexcp program does not know the configuration: {}",
        said.lines().next().unwrap_or_default()
    );
    Ok(())
}

fn further_address(number: u8) -> IpAddr {
    Ipv4Addr::new(10, 1, 1, 100 + number).into()
}

/// FlexCP's switch for the offload.
const OFFLOAD_ON: &str = "[offload]\nenabled = true\n\n";
const OFFLOAD_OFF: &str = "[offload]\nenabled = false\n\n";

/// A mode that measures paths, counts bytes and moves connections.
const RULE: &str =
    "[[rule]]\nname = \"shared\"\nmode = \"load-balancing\"\nweights = { a = 50, b = 50 }\n\n";

/// What is open and idle beside.
const CROWD: usize = 20_000;

/// The first port of its servers, and the most connections to each: a process has a limited number of files.
const CROWD_PORT: u16 = 5100;
const CROWD_OF_ONE: usize = 5_000;

/// Ports of the sink. One is enough for uploads; a proxy needs several to have 100,000 connections
/// to one server.
pub(crate) const SINKS: [u16; 4] = [5000, 5001, 5002, 5003];

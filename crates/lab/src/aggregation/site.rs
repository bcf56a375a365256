//! A lab for one way of carrying a client's bytes, and everything that runs there.
//!
//! ```text
//!  server 1 ══ srv1 proxy a1 ═ mobile ══ client out ══ content
//!  (LAN)            (box) a2 ═ telecom ═ (far end)     (web server)
//! ```
//!
//! The lab's ends have changed places: its client is the far end of the uplinks, where aggregation servers are.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};

use super::way::{FarEnd, Network, UPLINKS, Way};
use crate::counters::Mib;
use crate::daemon::{self, FlexCp};
use crate::far_program::danted_config;
use crate::fault::Direction;
use crate::namespace::Namespace;
use crate::process::Background;
use crate::topology::{Families, Family, Lab, keep_order};
use crate::transfer::{Client, Job, Report, ServeOptions, Server};

/// The content server, in a namespace of its own behind the far end.
const CONTENT: &str = "10.20.0.2";
const GATEWAY: &str = "10.20.0.1";
const PORT: u16 = 5000;
/// An address of the far end that both uplinks lead to.
const FAR_END: &str = "10.200.0.1";
const SOCKS: u16 = 1080;
const CONVERT: u16 = 7124;
const REDSOCKS: u16 = 12345;

/// A way with all that it needs.
pub(super) struct Site {
    way: Way,
    flexcp: Option<FlexCp>,
    /// The aggregation server, if that is a FlexCP.
    converter: Option<FlexCp>,
    /// The box's first.
    programs: Vec<Background>,
    server: Server,
    pub(super) lab: Lab,
}

impl Site {
    /// Builds it, with uplinks as they are (`shaped`), or as fast as the machine carries packets.
    ///
    /// # Errors
    ///
    /// Something could not be made, or does not start.
    pub(super) fn build(way: Way, network: &Network, shaped: bool) -> Result<Self> {
        let builder = Lab::builder()
            .families(Families::V4)
            .endpoints(Families::Neither);
        let builder = if shaped {
            let uplinks = UPLINKS.into_iter().zip(network.rtts);
            (1..)
                .zip(uplinks)
                .fold(builder, |builder, (link, (uplink, rtt))| {
                    let faults = uplink.faults(rtt);
                    let builder = builder.faults(link, Direction::Up, &faults);
                    builder.faults(link, Direction::Down, &faults)
                })
        } else {
            builder.wire(false)
        };
        let lab = builder.build()?;
        let content = content(&lab)?;
        route(&lab, way)?;
        for host in [&content, lab.client(), lab.proxy(), lab.server(1)] {
            host.sysctl(&[("net.ipv4.tcp_congestion_control", &network.congestion)])?;
        }
        let options = match way {
            Way::Box(FarEnd::Direct) | Way::Kernel => ServeOptions::mptcp(PORT),
            Way::Box(_) | Way::Proxies | Way::Alone(_) => ServeOptions::tcp(PORT),
        };
        let server = Server::start(&content, options)?;
        let programs = match way {
            Way::Proxies => vec![redsocks(&lab)?, danted(&lab)?],
            Way::Box(FarEnd::Socks5) => vec![danted(&lab)?],
            Way::Box(_) | Way::Kernel | Way::Alone(_) => vec![],
        };
        let converts = way == Way::Box(FarEnd::Convert);
        let converter = converts.then(|| converter(&lab)).transpose()?;
        let flexcp = match way {
            Way::Box(far_end) => Some(flexcp(&lab, far_end)?),
            Way::Kernel | Way::Proxies | Way::Alone(_) => None,
        };
        let site = Self {
            way,
            flexcp,
            converter,
            programs,
            server,
            lab,
        };
        // The first resolves neighbours and the like.
        site.download(&Job::down(10_000))?;
        Ok(site)
    }

    /// Does a job, by a client in the LAN, or on the box's host where the client has the uplinks itself.
    ///
    /// # Errors
    ///
    /// It fails, or a byte is wrong.
    pub(super) fn download(&self, job: &Job) -> Result<Report> {
        let to = SocketAddr::new(CONTENT.parse()?, PORT);
        let (client, host) = match self.way {
            Way::Kernel => (Client::mptcp(to), self.lab.proxy()),
            _ => (Client::tcp(to), self.lab.server(1)),
        };
        let report = client.run_in(host, job)?;
        report.ok().with_context(|| {
            let log = self.flexcp.as_ref().map(FlexCp::log);
            format!("{}: {}", self.way.name(), log.unwrap_or_default())
        })?;
        Ok(report)
    }

    /// Seconds that a download takes from the SYN to the server's end of the stream.
    ///
    /// # Errors
    ///
    /// As [`Site::download`].
    pub(super) fn seconds(&self, bytes: u64) -> Result<f64> {
        let report = self.download(&Job::down(bytes))?;
        #[allow(clippy::cast_precision_loss, reason = "microseconds of minutes")]
        let micros = (report.connect_us + report.total_us) as f64;
        Ok(micros / 1e6)
    }

    /// Process ids of what runs in the box.
    pub(super) fn in_the_box(&self) -> Option<u32> {
        let program = self.programs.first().map(Background::pid);
        self.flexcp.as_ref().map(FlexCp::pid).or(program)
    }

    /// Joins that servers have answered.
    ///
    /// # Errors
    ///
    /// The counters can't be read.
    pub(super) fn joins(&self) -> Result<u64> {
        Ok(match &self.flexcp {
            Some(flexcp) => flexcp.show_stats()?.counter("mp_join_synack_rx")?,
            None => {
                let joins = Mib::read(self.lab.proxy())?.get("MPJoinSynAckRx");
                u64::try_from(joins).unwrap_or(0)
            }
        })
    }

    /// Whether connections were what they are measured as, and the end.
    ///
    /// # Errors
    ///
    /// They were not, or FlexCP does not end as it should.
    pub(super) fn end(self) -> Result<()> {
        let name = self.way.name();
        let joins = self.joins()?;
        ensure!(
            (joins > 0) == self.way.aggregates(),
            "{name}: {joins} joins"
        );
        let served = self.server.reports();
        let failed = served.iter().filter(|report| report.failure.is_some());
        ensure!(failed.count() == 0, "{name}: the server had failures");
        let Some(flexcp) = self.flexcp else {
            return Ok(());
        };
        let stats = flexcp.show_stats()?;
        for counter in ["fallback_handshake", "fallback_established"] {
            let count = stats.counter(counter)?;
            ensure!(count == 0, "{name}: {counter}: {count}");
        }
        let asked = stats.counter("server_granted")?;
        let direct = self.way == Way::Box(FarEnd::Direct);
        ensure!((asked == 0) == direct, "{name}: {asked} granted");
        flexcp.terminate()?;
        self.converter.map_or(Ok(()), FlexCp::terminate)
    }
}

/// The content server's host. It and the far end forget what they have learned of paths with each connection, so that no download is
/// the better for those before.
fn content(lab: &Lab) -> Result<Namespace> {
    let far_end = lab.client();
    let content = Namespace::create(&format!("{}-o", lab.prefix()), false)?;
    far_end.ip_batch(&format!(
        "link add out type veth peer name eth0 netns {}\naddr add {GATEWAY}/24 dev out\nlink set out up\n\
         addr add {FAR_END}/32 dev lo\n",
        content.name()
    ))?;
    content.sysctl(&[
        ("net.ipv4.conf.all.rp_filter", "0"),
        ("net.ipv4.conf.default.rp_filter", "0"),
    ])?;
    content.ip_batch(&format!(
        "addr add {CONTENT}/24 dev eth0\nlink set eth0 up\nroute add default via {GATEWAY}\n\
         mptcp limits set subflows 8 add_addr_accepted 8\n"
    ))?;
    far_end.sysctl(&[("net.ipv4.ip_forward", "1")])?;
    for host in [far_end, &content] {
        host.sysctl(&[("net.ipv4.tcp_no_metrics_save", "1")])?;
        keep_order(host)?;
    }
    Ok(content)
}

/// What leaves from an uplink's address goes by that uplink, all else by the first, or by the one that is alone. FlexCP makes the rules
/// for that itself.
fn route(lab: &Lab, way: Way) -> Result<()> {
    let first = match way {
        Way::Alone(link) => link,
        _ => 1,
    };
    let proxy = lab.proxy();
    for link in [1, 2] {
        let addr = lab.proxy_addr(link, Family::V4);
        let via = lab.client_addr(link, Family::V4);
        let metric = if link == first { 100 } else { 200 };
        proxy.ip(&format!("route add default via {via} metric {metric}"))?;
        if !matches!(way, Way::Box(_)) {
            proxy.ip(&format!("rule add from {addr} lookup 20{link} pref 100"))?;
            proxy.ip(&format!("route add default via {via} table 20{link}"))?;
        }
        if link == first {
            // A client in the LAN whose packets are only forwarded.
            let lan = "10.9.0.0/16";
            lab.client().ip(&format!("route add {lan} via {addr}"))?;
        }
    }
    if matches!(way, Way::Kernel | Way::Proxies) {
        let second = lab.proxy_addr(2, Family::V4);
        proxy.ip("mptcp limits set subflows 8 add_addr_accepted 0")?;
        proxy.ip(&format!("mptcp endpoint add {second} dev a2 subflow"))?;
    }
    Ok(())
}

fn flexcp(lab: &Lab, far_end: FarEnd) -> Result<FlexCp> {
    let servers = match far_end {
        FarEnd::Direct => String::new(),
        FarEnd::Convert => asked("\"convert\", early = true", CONVERT),
        FarEnd::Socks5 => asked("\"socks5\"", SOCKS),
    };
    let service = format!(
        "[[service]]\nname = \"home\"\nmode = \"box\"\ninterfaces = [\"srv1\"]\n\
         destinations = [\"{CONTENT}/32\"]\nuplinks = [\"a1\", \"a2\"]\n{servers}"
    );
    FlexCp::start(lab, &daemon::config(lab, &service))
}

/// The service's line for an aggregation server.
fn asked(mode: &str, port: u16) -> String {
    format!("servers = [{{ address = \"{FAR_END}:{port}\", mode = {mode} }}]\n")
}

fn converter(lab: &Lab) -> Result<FlexCp> {
    // Messages in SYNs are split connections' too.
    lab.client().sysctl(&[("net.ipv4.tcp_fastopen", "3")])?;
    let service = format!(
        "[[service]]\nname = \"convert\"\nmode = \"convert\"\nlisten = [\"{FAR_END}:{CONVERT}\"]\n\
         allow = [\"{CONTENT}/32\"]\ncarrier = \"split\"\n"
    );
    FlexCp::start_at_far_end(lab, &service)
}

/// A SOCKS server at the far end.
fn danted(lab: &Lab) -> Result<Background> {
    let danted = lab.dir().join("danted.conf");
    let socks = SocketAddr::new(FAR_END.parse()?, SOCKS);
    fs::write(&danted, danted_config(socks, "out"))?;
    start(lab, lab.client(), &["danted", "-f"], &danted, socks)
}

/// A proxy in the box, to which netfilter leads the LAN's connections.
fn redsocks(lab: &Lab) -> Result<Background> {
    let redsocks = lab.dir().join("redsocks.conf");
    fs::write(
        &redsocks,
        format!(
            "base {{\n log_debug = off;\n log_info = off;\n log = stderr;\n daemon = off;\n redirector = iptables;\n}}\n\
             redsocks {{\n local_ip = 0.0.0.0;\n local_port = {REDSOCKS};\n ip = {FAR_END};\n port = {SOCKS};\n type = socks5;\n}}\n"
        ),
    )?;
    let here = SocketAddr::from(([127, 0, 0, 1], REDSOCKS));
    let redsocks = start(lab, lab.proxy(), &["redsocks", "-c"], &redsocks, here)?;
    lab.proxy().nft(&format!(
        "table ip box {{\n chain lan {{\n  type nat hook prerouting priority dstnat\n  \
         iifname srv1 ip protocol tcp ip daddr {CONTENT} redirect to :{REDSOCKS}\n }}\n}}\n"
    ))?;
    Ok(redsocks)
}

/// A program whose sockets are MPTCP's.
fn start(
    lab: &Lab,
    host: &Namespace,
    words: &[&str],
    config: &Path,
    listens: SocketAddr,
) -> Result<Background> {
    let mut command = host.command("mptcpize");
    command.arg("run").args(words).arg(config);
    let mut program = Background::spawn(command, lab.dir(), words[0])?;
    program.wait_for_listener(host, listens)?;
    Ok(program)
}

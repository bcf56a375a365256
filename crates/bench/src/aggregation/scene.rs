//! One lab with one FlexCP, which is a box for clients in the LAN and a proxy for clients at the other end.
//!
//! The lab's client has two links. It is where MPTCP is spoken: by clients of the service in reverse mode, and by the server of clients
//! in the LAN, which is what the lab's server is for the box.

use std::cell::Cell;
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use flexcp_lab::cpu::Sample;
use flexcp_lab::transfer::Proto;
use flexcp_lab::{Families, Family, FlexCp, Lab, Namespace, carried, daemon, interfaces};
use serde::Serialize;

use super::Way;
use crate::programs::Program;
use crate::rig;

/// On no link of the MPTCP end's, so that both uplinks lead there.
pub(super) const SERVER: &str = "10.200.0.1";
const AT_SERVER: u16 = 5300;
const AT_BACK_END: u16 = 5202;
const LISTEN: u16 = 8080;

/// Before what counts: slow start, joins, and until connections are installed.
const WARM: Duration = Duration::from_secs(2);

/// One turn of a way.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Run {
    /// That came to the TCP end or left it each second, with the headers of packets of many segments.
    pub(super) megabytes: f64,
    /// CPU seconds of the whole machine for each 10^9 bytes, without those of programs that have no part in it.
    pub(super) cpu: f64,
    /// CPUs that such programs kept busy meanwhile.
    pub(super) foreign: f64,
    /// Of the packets with data, those that the kernel translated, in percent, the beginning of connections included.
    pub(super) in_kernel: f64,
}

/// Everything that runs.
pub(super) struct Scene {
    flexcp: FlexCp,
    _back_end: Program,
    /// Of the next server of clients in the LAN.
    port: Cell<u16>,
    lab: Lab,
}

/// A lab whose two links are uplinks of the proxy's, which lead to the client at [`SERVER`].
///
/// # Errors
/// It can't be built.
pub(super) fn lab() -> Result<Lab> {
    let lab = Lab::builder()
        .families(Families::V4)
        .wire(false)
        .endpoints(Families::Neither)
        .build()?;
    rig::prepare(&lab)?;
    lab.client().ip(&format!("addr add {SERVER}/32 dev lo"))?;
    let proxy = lab.proxy();
    for link in [1, 2] {
        let addr = lab.proxy_addr(link, Family::V4);
        let via = lab.client_addr(link, Family::V4);
        proxy.ip(&format!("rule add from {addr} lookup 20{link} pref 100"))?;
        proxy.ip(&format!("route add {SERVER} via {via} table 20{link}"))?;
    }
    let via = lab.client_addr(1, Family::V4);
    proxy.ip(&format!("route add {SERVER} via {via}"))?;
    Ok(lab)
}

/// The service of a box in that lab.
pub(super) fn service() -> String {
    format!(
        "[[service]]\nname = \"home\"\nmode = \"box\"\ninterfaces = [\"srv1\"]\ndestinations = [\"{SERVER}/32\"]\n\
         uplinks = [\"a1\", \"a2\"]\n"
    )
}

impl Scene {
    /// # Errors
    /// Something can't be made, or does not start.
    pub(super) fn build() -> Result<Self> {
        let lab = lab()?;
        // Of clients of the service in reverse mode.
        let second = lab.client_addr(2, Family::V4);
        lab.client()
            .ip(&format!("mptcp endpoint add {second} dev a2 subflow"))?;
        let at = lab.server_socket(1, Family::V4, AT_BACK_END);
        let back_end = start(&lab, lab.server(1), Proto::Tcp, at)?;
        let listen = SocketAddr::new(lab.proxy_addr(1, Family::V4), LISTEN).to_string();
        let services = service() + &daemon::reverse("web", &[listen], &[at.to_string()], &[]);
        let flexcp = rig::start_flexcp(&lab, true, "workers = 1", &services)?;
        Ok(Self {
            flexcp,
            _back_end: back_end,
            port: Cell::new(AT_SERVER),
            lab,
        })
    }

    pub(super) fn log(&self) -> String {
        self.flexcp.log()
    }

    /// Has so many connections carry what they can.
    ///
    /// # Errors
    /// They don't, or are not of two subflows each.
    pub(super) fn pour(&self, way: Way, connections: u64, seconds: f64) -> Result<Run> {
        let before = self.counted(way)?;
        // Of its own for each turn: a server that closes first keeps the ends of its connections for a minute (TIME_WAIT), and what is
        // to be measured is none of that.
        let at = SocketAddr::new(SERVER.parse()?, self.port.replace(self.port.get() + 1));
        let _server = if way.is_box() {
            Some(start(&self.lab, self.lab.client(), Proto::Mptcp, at)?)
        } else {
            None
        };
        let mut client = self.client(way, at, connections, seconds)?;
        thread::sleep(WARM);
        let (cpu, bytes) = (Sample::take()?, self.bytes(way)?);
        thread::sleep(Duration::from_secs_f64(seconds));
        let (used, bytes) = (Sample::take()?.since(&cpu), self.bytes(way)? - bytes);
        let status = client.wait()?;
        ensure!(status.success(), "iperf3: {status}");
        let after = self.counted(way)?;
        let joined = after.joins - before.joins;
        ensure!(
            joined >= connections,
            "{joined} joins of {connections} connections"
        );
        let (data, in_kernel) = (after.data - before.data, after.in_kernel - before.in_kernel);
        let giga = bytes as f64 / 1e9;
        Ok(Run {
            megabytes: giga * 1000.0 / used.wall,
            cpu: used.ours / giga.max(1e-9),
            foreign: used.foreign / used.wall,
            in_kernel: 100.0 * in_kernel as f64 / f64::max(data as f64, 1.0),
        })
    }

    fn client(&self, way: Way, at: SocketAddr, connections: u64, seconds: f64) -> Result<Child> {
        let (mut command, to) = if way.is_box() {
            (self.lab.server(1).command("iperf3"), at)
        } else {
            let mut command = self.lab.client().command("mptcpize");
            command.args(["run", "iperf3"]);
            let proxy = self.lab.proxy_addr(1, Family::V4);
            (command, SocketAddr::new(proxy, LISTEN))
        };
        // Longer than what counts.
        let time = (WARM.as_secs_f64() + seconds + 1.0).ceil();
        command.args(["-c", &to.ip().to_string(), "-p", &to.port().to_string()]);
        command.args(["-P", &connections.to_string(), "-t", &time.to_string()]);
        if matches!(way, Way::BoxDown | Way::ReverseDown) {
            command.arg("-R");
        }
        spawn(command)
    }

    /// Bytes that the TCP end has received or sent.
    fn bytes(&self, way: Way) -> Result<u64> {
        let counts = interfaces(self.lab.server(1))?;
        let counts = counts.get("eth0").context("no interface eth0")?;
        Ok(if way.is_to_tcp() {
            counts.rx
        } else {
            counts.tx
        })
    }

    fn counted(&self, way: Way) -> Result<Counted> {
        // Waits until the programs in the kernel have told what they have translated.
        let down = carried::down_in_kernel(&self.flexcp)?;
        let stats = self.flexcp.show_stats()?;
        let up = stats.counter("offload_packets_up")?;
        let joins = if way.is_box() {
            "mp_join_synack_rx"
        } else {
            "mp_join_ack_rx"
        };
        let (data, in_kernel) = if way.is_to_tcp() {
            (carried::from_links(&self.lab)?, up)
        } else {
            (carried::from_servers(&self.lab)?, down)
        };
        Ok(Counted {
            joins: stats.counter(joins)?,
            data,
            in_kernel,
        })
    }

    /// Whether connections were what they are measured as, and the end.
    ///
    /// # Errors
    /// They were not, or FlexCP does not end as it should.
    pub(super) fn end(self) -> Result<()> {
        let stats = self.flexcp.show_stats()?;
        for counter in ["fallback_handshake", "fallback_established"] {
            let count = stats.counter(counter)?;
            ensure!(count == 0, "{counter}: {count}");
        }
        self.flexcp.stop()
    }
}

struct Counted {
    joins: u64,
    /// Packets from where the data comes.
    data: u64,
    in_kernel: u64,
}

/// A server there.
fn start(lab: &Lab, namespace: &Namespace, proto: Proto, at: SocketAddr) -> Result<Program> {
    let port = at.port().to_string();
    let words = ["iperf3", "-s", "-p", &port];
    let name = format!("iperf3-{port}");
    Program::start((lab, namespace), &name, &words, proto, at)
}

fn spawn(mut command: Command) -> Result<Child> {
    let command = command.stdin(Stdio::null()).stdout(Stdio::null());
    command.spawn().context("iperf3")
}

//! Memory of a box with many connections that are open and idle (`bench box-memory`).

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use flexcp_lab::aim::{self, Line};
use flexcp_lab::cpu::Sample;
use flexcp_lab::transfer::{Proto, raise_file_limit};
use flexcp_lab::{FlexCp, Lab, require_root};
use serde::Serialize;

use super::scene::{SERVER, lab, service};
use crate::hold::Helper;
use crate::rig;

/// What to run, and where its results go.
#[derive(Clone, Debug, Args)]
pub struct Memory {
    /// Connections of two subflows each
    #[arg(long, default_value_t = 10_000)]
    connections: usize,
    /// Where box-memory.json goes
    #[arg(long, default_value = "bench/results/box")]
    results: PathBuf,
}

/// What FlexCP may hold, in MB.
const MOST: f64 = 64.0;
/// Connections of one process, which has a limited number of files.
const OF_ONE: usize = 5000;
/// On each uplink: enough for all, which the default is not.
const PORTS: &str = "20000-60000";
/// Port of the first server.
const PORT: u16 = 5100;
/// After the last packet: longer than what FlexCP takes to see that connections are idle.
const SETTLE: Duration = Duration::from_secs(15);
const JOINING: Duration = Duration::from_secs(60);

/// What FlexCP held.
#[derive(Clone, Debug, Serialize)]
struct Results {
    connections: usize,
    joins: u64,
    /// In MB, before the first connection.
    before: f64,
    /// With all of them, idle, and at most until then.
    with: f64,
    at_most: f64,
    /// What FlexCP says that its connections take.
    told: u64,
    lines: Vec<Line>,
}

impl Memory {
    /// Runs it, writes everything down and prints the table.
    ///
    /// # Errors
    /// The aim is missed, or something could not be run.
    pub fn run(&self) -> Result<()> {
        require_root()?;
        raise_file_limit()?;
        let lab = lab()?;
        let service = format!("{}source_ports = {PORTS:?}\n", service());
        let flexcp = rig::start_flexcp(&lab, true, "workers = 1", &service)?;
        let before = resident(&flexcp)?;
        let held = self.open(&lab)?;
        let joins = joined(&flexcp, self.connections)?;
        thread::sleep(SETTLE);
        let open = open_connections(&flexcp)?;
        ensure!(
            open >= self.connections as u64,
            "of {} connections {open} are open",
            self.connections
        );
        let with = resident(&flexcp)?;
        let mut results = Results {
            connections: self.connections,
            joins,
            before,
            with,
            at_most: peak(&flexcp)?,
            told: flexcp.show_stats()?.number("gauges.memory_bytes")?,
            lines: vec![],
        };
        results.lines = results.judge();
        drop(held);
        flexcp.terminate()?;
        fs::create_dir_all(&self.results)
            .with_context(|| format!("creating {:?}", self.results))?;
        let json = serde_json::to_string(&results)? + "\n";
        fs::write(self.results.join("box-memory.json"), json)?;
        print!("{}", aim::table(&results.lines));
        aim::judge(&results.lines)
    }

    /// Clients first in what is dropped.
    fn open(&self, lab: &Lab) -> Result<Vec<Helper>> {
        let processes = u16::try_from(self.connections.div_ceil(OF_ONE))?;
        let each = self.connections.div_ceil(usize::from(processes.max(1)));
        let (mut clients, mut servers) = (vec![], vec![]);
        for (number, port) in (100..).zip((PORT..).take(processes.into())) {
            // Of its own: with half of an address's ports taken, the kernel looks long for one that is free.
            let own = IpAddr::from(Ipv4Addr::new(10, 9, 1, number));
            lab.server(1).ip(&format!("addr add {own}/24 dev eth0"))?;
            servers.push(Helper::sink(lab.client(), Proto::Mptcp, port)?);
            let ends = (own, SocketAddr::new(SERVER.parse()?, port));
            let client = Helper::connections(lab.server(1), Proto::Tcp, ends, each)?;
            clients.push(client);
        }
        for client in &mut clients {
            let open = client.line()?;
            ensure!(
                open.split_whitespace().next() == Some(&each.to_string()),
                "of {each} connections these are open: {open}"
            );
        }
        clients.append(&mut servers);
        Ok(clients)
    }
}

impl Results {
    fn judge(&self) -> Vec<Line> {
        let each = (self.with - self.before) * 1e6 / self.connections as f64;
        vec![
            Line::at_most(
                format!(
                    "resident memory, {} connections with {} joins",
                    self.connections, self.joins
                ),
                self.with,
                MOST,
                " MB",
            ),
            Line::told(
                "before, and the most at any time",
                format!("{:.1} MB, {:.1} MB", self.before, self.at_most),
            ),
            Line::told("each connection", format!("{each:.0} bytes")),
            Line::told(
                "of that, what FlexCP counts as theirs",
                format!("{} bytes", self.told / self.connections.max(1) as u64),
            ),
        ]
    }
}

/// In MB.
fn resident(flexcp: &FlexCp) -> Result<f64> {
    Ok(Sample::take()?.resident(flexcp.pid()) as f64 / 1e6)
}

/// The most that it has held at any time, in MB.
fn peak(flexcp: &FlexCp) -> Result<f64> {
    let status = fs::read_to_string(format!("/proc/{}/status", flexcp.pid()))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilo = line.and_then(|line| line.split_whitespace().next());
    let kilo: f64 = kilo.context("no VmHWM")?.parse()?;
    Ok(kilo * 1.024e-3)
}

/// Waits until each connection has had an answer to a join.
fn joined(flexcp: &FlexCp, connections: usize) -> Result<u64> {
    let began = Instant::now();
    loop {
        let joins = flexcp.show_stats()?.counter("mp_join_synack_rx")?;
        if joins >= connections as u64 {
            return Ok(joins);
        }
        ensure!(
            began.elapsed() < JOINING,
            "{joins} joins of {connections} connections\n{}",
            flexcp.log()
        );
        thread::sleep(Duration::from_millis(200));
    }
}

fn open_connections(flexcp: &FlexCp) -> Result<u64> {
    let stats = flexcp.show_stats()?;
    let opened = stats.counter("connections_opened")?;
    Ok(opened.saturating_sub(stats.counter("connections_closed")?))
}

//! Long downloads by clients that name their server (`bench explicit`): by Convert in the SYN and by SOCKS5, beside reverse mode,
//! by turns. Behind the preamble nothing may cost more.

mod draw;

use std::fs;
use std::io::Read;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use flexcp_lab::aim::{self, Line};
use flexcp_lab::cpu::Sample;
use flexcp_lab::statistics::median;
use flexcp_lab::transfer::{Client, Proto};
use flexcp_lab::{Family, FlexCp, Lab, Mib, carried, daemon};
use serde::Serialize;

use crate::programs::{self, Program, WEB};
use crate::rig;
use crate::turns::{self, beside, spread};

/// What to run, and where its results go.
#[derive(Clone, Debug, Args)]
pub struct Explicit {
    /// Rounds, in each of which every way has its turn
    #[arg(long, default_value_t = 100)]
    rounds: usize,
    /// Bytes of each download
    #[arg(long, default_value_t = 1_000_000_000)]
    bytes: u64,
    /// Where explicit.json, explicit.md and explicit.svg go
    #[arg(long, default_value = "bench/results/explicit")]
    results: PathBuf,
}

/// How a client comes to its server.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Way {
    /// FlexCP knows the server.
    Reverse,
    /// The client names it in its SYN.
    Convert,
    /// The client names it once it is connected.
    Socks5,
}

const WAYS: [Way; 3] = [Way::Reverse, Way::Convert, Way::Socks5];

impl Way {
    const fn name(self) -> &'static str {
        match self {
            Self::Reverse => "reverse mode",
            Self::Convert => "Convert in the SYN",
            Self::Socks5 => "SOCKS5",
        }
    }

    const fn port(self) -> u16 {
        match self {
            Self::Reverse => 8080,
            Self::Convert => 5124,
            Self::Socks5 => 1080,
        }
    }
}

/// One download.
#[derive(Clone, Copy, Debug, Serialize)]
struct Run {
    /// Bits a second, in millions.
    mbit: f64,
    /// CPU seconds of the whole machine for each 10^9 bytes, without those of programs that have no part in it.
    cpu: f64,
    /// CPUs that such programs kept busy meanwhile.
    foreign: f64,
    /// Packets of the server's that came to FlexCP, and those that the kernel translated.
    data: u64,
    in_kernel: u64,
}

/// All of one way.
type Row = turns::Row<Way, Run>;

/// All of it.
#[derive(Clone, Debug, Serialize)]
struct Results {
    bytes: u64,
    rows: Vec<Row>,
    lines: Vec<Line>,
}

/// Everything that runs.
struct Scene {
    lab: Lab,
    flexcp: FlexCp,
    _web: Program,
}

/// What each way may differ from reverse mode, of 1.
const TOLERANCE: f64 = 0.05;
/// Of the server's packets in the kernel, in percent.
const OFFLOADED: f64 = 95.0;

impl Explicit {
    /// Runs it, writes everything down and prints the table.
    ///
    /// # Errors
    /// An aim is missed, or something could not be run.
    pub fn run(&self) -> Result<()> {
        flexcp_lab::require_root()?;
        let scene = Scene::build(self.bytes)?;
        let mut rows = WAYS.map(|way| Row { way, runs: vec![] });
        // The first of each resolves neighbours and the like, and each has each place in a round equally often.
        for round in 0..=self.rounds {
            for turn in 0..rows.len() {
                let row = &mut rows[(round + turn) % WAYS.len()];
                let run = scene.download(row.way, self.bytes);
                let run =
                    run.with_context(|| format!("{}: {}", row.way.name(), scene.flexcp.log()))?;
                if round > 0 {
                    row.runs.push(run);
                }
            }
        }
        scene.judge_wire(self.rounds)?;
        scene.flexcp.stop()?;
        let results = Results {
            bytes: self.bytes,
            lines: lines(&rows),
            rows: rows.into(),
        };
        self.write(&results)?;
        print!("{}", results.text());
        aim::judge(&results.lines)
    }

    fn write(&self, results: &Results) -> Result<()> {
        let file = |name: &str| self.results.join(name);
        fs::create_dir_all(&self.results)
            .with_context(|| format!("creating {:?}", self.results))?;
        fs::write(
            file("explicit.json"),
            serde_json::to_string(results)? + "\n",
        )?;
        fs::write(file("explicit.md"), results.text())?;
        fs::write(file("explicit.svg"), draw::plot(&results.rows))?;
        Ok(())
    }
}

impl Scene {
    fn build(bytes: u64) -> Result<Self> {
        let lab = Lab::builder()
            // Data goes with SYNs, without a cookie (docs/operation.md).
            .client_sysctl("net.ipv4.tcp_fastopen", "5")
            .client_sysctl("net.ipv4.tcp_fastopen_blackhole_timeout_sec", "0")
            .build()?;
        rig::prepare(&lab)?;
        let web = programs::web(&lab, Proto::Tcp, &[bytes])?;
        let server = lab.server_socket(1, Family::V4, WEB);
        let allow = [server.ip().to_string()];
        let allow: Vec<_> = allow.iter().map(String::as_str).collect();
        let services = WAYS.map(|way| {
            let at = [listen(&lab, way).to_string()];
            let mode = match way {
                Way::Reverse => return daemon::reverse("reverse", &at, &[server.to_string()], &[]),
                Way::Convert => "convert",
                Way::Socks5 => "socks5",
            };
            daemon::explicit(mode, &at, &allow).replace("\"any\"", &format!("{mode:?}"))
        });
        let flexcp = rig::start_flexcp(&lab, true, "workers = 1", &services.join("\n"))?;
        Ok(Self {
            lab,
            flexcp,
            _web: web,
        })
    }

    fn client(&self, way: Way) -> Client {
        let server = self.lab.server_socket(1, Family::V4, WEB);
        let client = Client::mptcp(listen(&self.lab, way));
        match way {
            Way::Reverse => client,
            Way::Convert => client.convert(server),
            Way::Socks5 => client.socks5(&server.ip().to_string(), server.port()),
        }
    }

    /// Downloads the object, and looks at none of its bytes.
    fn download(&self, way: Way, bytes: u64) -> Result<Run> {
        let counted = || {
            anyhow::Ok((
                carried::from_servers(&self.lab)?,
                carried::down_in_kernel(&self.flexcp)?,
            ))
        };
        let (data, in_kernel) = counted()?;
        let client = self.client(way);
        let request = format!("GET /{bytes} HTTP/1.0\r\nHost: web\r\n\r\n");
        let (before, began) = (Sample::take()?, Instant::now());
        let got = self.lab.client().run(|| {
            let mut stream = client.open(request.as_bytes())?;
            let mut buffer = vec![0; BUFFER];
            let mut got = 0;
            loop {
                match stream.read(&mut buffer)? {
                    0 => return Ok(got),
                    len => got += len as u64,
                }
            }
        })?;
        let seconds = began.elapsed().as_secs_f64();
        let cpu = Sample::take()?.since(&before);
        // A head stands before the object.
        ensure!(got > bytes && got < bytes + 4096, "{got} bytes came");
        let after = counted()?;
        let giga = bytes as f64 / 1e9;
        Ok(Run {
            mbit: bytes as f64 * 8e-6 / seconds,
            cpu: cpu.ours / giga,
            foreign: cpu.foreign / cpu.wall.max(1e-3),
            data: after.0 - data,
            in_kernel: after.1 - in_kernel,
        })
    }

    /// Whether the clients did what they are measured for: MPTCP over two paths, Convert in a SYN, no fallback.
    fn judge_wire(&self, rounds: usize) -> Result<()> {
        let stats = self.flexcp.show_stats()?;
        let each = rounds as u64 + 1;
        for (counter, right) in [
            ("mp_capable_ack_rx", 3 * each),
            ("mp_join_ack_rx", 3 * each),
            ("preambles", 2 * each),
            // A client whose preamble is all in its SYN needs no responder.
            ("hosted", each),
            ("fallback_handshake", 0),
            ("fallback_established", 0),
        ] {
            let count = stats.counter(counter)?;
            ensure!(count == right, "{counter}: {count}, not {right}");
        }
        let resets = Mib::read(self.lab.client())?.get("MPRstRx");
        ensure!(resets == 0, "{resets} subflows were reset");
        Ok(())
    }
}

fn listen(lab: &Lab, way: Way) -> SocketAddr {
    SocketAddr::new(lab.proxy_addr(1, Family::V4), way.port())
}

fn lines(rows: &[Row]) -> Vec<Line> {
    let mut lines = vec![];
    for row in rows {
        let name = row.way.name();
        let of = |of: fn(&Run) -> f64| row.runs.iter().map(of).collect::<Vec<_>>();
        lines.push(Line::told(
            format!("Mbit/s, {name}"),
            spread(&of(|run| run.mbit), 0),
        ));
        lines.push(Line::told(
            format!("CPU seconds for each GB, {name}"),
            spread(&of(|run| run.cpu), 3),
        ));
        lines.push(Line::told(
            format!("CPUs that others kept busy, {name}"),
            spread(&of(|run| run.foreign), 2),
        ));
        let share = of(|run| 100.0 * run.in_kernel as f64 / f64::max(run.data as f64, 1.0));
        let what = format!("of the server's packets in the kernel, {name}");
        lines.push(Line::at_least(what, median(&share), OFFLOADED, " %"));
        lines.push(Line::told(format!("its spread, {name}"), spread(&share, 1)));
    }
    for way in [Way::Convert, Way::Socks5] {
        let name = way.name();
        let judged = |what: &str, ratios: &[f64]| {
            let bounds = [1.0 - TOLERANCE, 1.0 + TOLERANCE];
            (
                format!("{what} of reverse mode, {name}"),
                median(ratios),
                bounds,
            )
        };
        let mbit = beside(rows, (way, Way::Reverse), |run| run.mbit);
        let (what, middle, [least, _]) = judged("throughput", &mbit);
        lines.push(Line::at_least(what, middle, least, ""));
        lines.push(Line::told(format!("its spread, {name}"), spread(&mbit, 3)));
        let cpu = beside(rows, (way, Way::Reverse), |run| run.cpu);
        let (what, middle, [_, most]) = judged("CPU time for each GB", &cpu);
        lines.push(Line::at_most(what, middle, most, ""));
        lines.push(Line::told(format!("its spread, {name}"), spread(&cpu, 3)));
    }
    lines
}

impl Results {
    /// For people to read.
    fn text(&self) -> String {
        format!(
            "Downloads of {} MB over two paths, {} rounds.\n\n{}",
            self.bytes / 1_000_000,
            self.rows.first().map_or(0, |row| row.runs.len()),
            aim::table(&self.lines)
        )
    }
}

/// Bytes that are read at once.
const BUFFER: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn row(way: Way, mbit: &[f64], cpu: f64, in_kernel: u64) -> Row {
        let run = |&mbit: &f64| Run {
            mbit,
            cpu,
            foreign: 0.0,
            data: 100,
            in_kernel,
        };
        Row {
            way,
            runs: mbit.iter().map(run).collect(),
        }
    }

    fn missed(rows: &[Row]) -> Vec<String> {
        let lines = lines(rows).into_iter().filter(|line| !line.met);
        lines.map(|line| line.what).collect()
    }

    #[test]
    fn each_way_is_held_against_reverse_mode_round_by_round() {
        let reverse = row(Way::Reverse, &[1000.0, 500.0, 100.0], 1.0, 99);
        let same = row(Way::Convert, &[960.0, 480.0, 200.0], 1.04, 99);
        let slow = row(Way::Socks5, &[940.0, 470.0, 200.0], 1.06, 94);
        assert_eq!(
            missed(&[reverse, same, slow]),
            [
                "of the server's packets in the kernel, SOCKS5",
                "throughput of reverse mode, SOCKS5",
                "CPU time for each GB of reverse mode, SOCKS5",
            ]
        );
    }

    #[test]
    fn nothing_measured_misses_the_aims() {
        let rows = WAYS.map(|way| row(way, &[], 1.0, 0));
        assert_eq!(missed(&rows).len(), 7);
    }
}

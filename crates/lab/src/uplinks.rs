//! What downloads through an aggregation box wait for when an uplink is lost (`lab uplinks`), beside MPTCP from kernel to kernel; and
//! whether one lives through addresses that change again and again.

use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;

use crate::aim::{self, Line};
use crate::daemon::{self, FlexCp};
use crate::dhcp::{DhcpClient, Modem};
use crate::fault::{Cut, Direction};
use crate::statistics::{median, quantile};
use crate::topology::{Families, Family, Lab, require_root};
use crate::transfer::{Client, Job, ServeOptions, Server};

/// Of both uplinks, each way.
const LINK: &str = "rate=50mbit:250kb,delay=10ms";
/// From the box to the server and back, in milliseconds, without what waits in queues.
const RTT: f64 = 20.0;
/// What a loss may cost beyond that.
const BEYOND: f64 = 50.0;
const BYTES: u64 = 25_000_000;
/// Receive buffers of who downloads, as `tcp_rmem`.
const WINDOW: &str = "4096 131072 1000000";
const PORT: u16 = 5000;
/// On no link of the server's.
const SERVER: &str = "10.200.0.1";
/// Bytes of the download for each change of an address.
const BETWEEN: u64 = 5_000_000;
/// Addresses that the second uplink has by turns.
const LEASES: [&str; 2] = ["10.1.2.100", "10.1.2.150"];
const PATIENCE: Duration = Duration::from_secs(10);

/// What to run, and where its results go.
#[derive(Clone, Debug, clap::Args)]
pub struct Uplinks {
    /// Rounds, in each of which every loss has its turn
    #[arg(long, default_value_t = 9)]
    pub rounds: usize,
    /// How often the address of an uplink changes under one download
    #[arg(long, default_value_t = 100)]
    pub changes: usize,
    /// Where uplinks.json and uplinks.md go
    #[arg(long, default_value = "lab/results")]
    pub results: PathBuf,
}

/// Who downloads, and how it loses its first uplink.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Loss {
    /// MPTCP of the kernel at both ends; packets are lost, and nothing says so.
    KernelSilent,
    /// The same through the box, whose client speaks TCP.
    Silent,
    /// The box sees that the carrier is gone.
    Carrier,
    /// Or the address.
    Address,
}

const LOSSES: [Loss; 4] = [
    Loss::KernelSilent,
    Loss::Silent,
    Loss::Carrier,
    Loss::Address,
];

/// What came of one kind of loss.
#[derive(Clone, Debug, Serialize)]
struct Row {
    loss: Loss,
    /// The longest time without a byte, in milliseconds, each round.
    gaps: Vec<f64>,
}

/// All of it.
#[derive(Clone, Debug, Serialize)]
struct Results {
    rows: Vec<Row>,
    lines: Vec<Line>,
}

/// The client in the LAN is the lab's server, and the server its client: the uplinks are the lab's two links.
struct Scene {
    lab: Lab,
    flexcp: FlexCp,
    _server: Server,
}

impl Uplinks {
    /// Runs everything, prints the table and writes it down.
    ///
    /// # Errors
    ///
    /// An aim is missed, or something could not be run.
    pub fn run(&self) -> Result<()> {
        require_root()?;
        let scene = Scene::build()?;
        let mut rows = LOSSES.map(|loss| Row { loss, gaps: vec![] });
        for _ in 0..self.rounds {
            for row in &mut rows {
                let gap = scene.lose(row.loss);
                row.gaps
                    .push(gap.with_context(|| format!("{:?}", row.loss))?);
            }
        }
        let mut lines = lines(&rows);
        lines.extend(scene.change(self.changes)?);
        scene.flexcp.terminate()?;
        let results = Results {
            rows: rows.into(),
            lines,
        };
        results.write(&self.results)?;
        print!("{}", aim::table(&results.lines));
        aim::judge(&results.lines)
    }
}

impl Scene {
    fn build() -> Result<Self> {
        let mut builder = Lab::builder().families(Families::V4);
        for link in [1, 2] {
            for direction in [Direction::Up, Direction::Down] {
                builder = builder.faults(link, direction, LINK);
            }
        }
        let lab = builder.build()?;
        lab.client().ip(&format!("addr add {SERVER}/32 dev lo"))?;
        let proxy = lab.proxy();
        let second = lab.proxy_addr(2, Family::V4);
        // Linux as a server sends all again that it has no data ACK of, over the path that is left: it should have no more under way
        // than both uplinks carry in the RTT, queues included.
        for host in [lab.server(1), proxy] {
            host.sysctl(&[("net.ipv4.tcp_rmem", WINDOW)])?;
        }
        proxy.ip("mptcp limits set subflow 2 add_addr_accepted 0")?;
        proxy.ip(&format!("mptcp endpoint add {second} dev a2 subflow"))?;
        let service = format!(
            "[[service]]\nname = \"home\"\nmode = \"box\"\ninterfaces = [\"srv1\"]\n\
             destinations = [\"{SERVER}/32\"]\nuplinks = [\"a1\", \"a2\"]\n"
        );
        let scene = Self {
            flexcp: FlexCp::start(&lab, &daemon::config(&lab, &service))?,
            _server: Server::start(lab.client(), ServeOptions::mptcp(PORT))?,
            lab,
        };
        scene.route(1)?;
        scene.route(2)?;
        Ok(scene)
    }

    /// The uplink has a default route, that of the first before that of the second. What leaves from which address FlexCP sees to.
    fn route(&self, link: u8) -> Result<()> {
        let via = self.lab.client_addr(link, Family::V4);
        let route = format!("route replace default via {via} dev a{link} metric {link}00");
        self.lab.proxy().ip(&route)?;
        Ok(())
    }

    fn joins(&self) -> Result<u64> {
        Ok(self.flexcp.show_stats()?.counter("mp_join_synack_rx")?)
    }

    /// Waits for one more join than there were; how long that took.
    fn joined(&self, before: u64) -> Result<Duration> {
        let began = Instant::now();
        while self.joins()? <= before {
            ensure!(
                began.elapsed() < PATIENCE,
                "nothing joins: {}{}",
                self.flexcp.show("connections")?,
                self.flexcp.log()
            );
            thread::sleep(Duration::from_millis(2));
        }
        Ok(began.elapsed())
    }

    /// The longest time without a byte of a download that loses its first uplink, in milliseconds.
    fn lose(&self, loss: Loss) -> Result<f64> {
        let server: SocketAddr = format!("{SERVER}:{PORT}").parse()?;
        let (client, host) = match loss {
            Loss::KernelSilent => (Client::mptcp(server), self.lab.proxy()),
            _ => (Client::tcp(server), self.lab.server(1)),
        };
        let before = self.joins()?;
        let report = thread::scope(|scope| {
            let run = scope.spawn(|| client.run_in(host, &Job::down(BYTES)));
            if loss != Loss::KernelSilent {
                self.joined(before)?;
            }
            thread::sleep(Duration::from_millis(800));
            self.cut(loss)?;
            let report = run.join().expect("a client does not panic");
            self.mend(loss)?;
            report
        })?;
        report.ok()?;
        Ok(report.longest_gap().as_secs_f64() * 1000.0)
    }

    fn cut(&self, loss: Loss) -> Result<()> {
        match loss {
            Loss::KernelSilent | Loss::Silent => self.set_faults("loss=100%"),
            Loss::Carrier => self.lab.cut(1, Cut::NoCarrier),
            Loss::Address => self.address(1, "del", &self.first()),
        }
    }

    fn mend(&self, loss: Loss) -> Result<()> {
        match loss {
            Loss::KernelSilent | Loss::Silent => self.set_faults(LINK)?,
            Loss::Address => self.address(1, "add", &self.first())?,
            Loss::Carrier => self.lab.restore(1)?,
        }
        self.route(1)?;
        // FlexCP has to know before the next begins.
        thread::sleep(Duration::from_millis(500));
        Ok(())
    }

    fn set_faults(&self, faults: &str) -> Result<()> {
        for direction in [Direction::Up, Direction::Down] {
            self.lab.set_faults(1, direction, faults)?;
        }
        Ok(())
    }

    fn first(&self) -> String {
        self.lab.proxy_addr(1, Family::V4).to_string()
    }

    fn address(&self, link: u8, verb: &str, addr: &str) -> Result<()> {
        let proxy = self.lab.proxy();
        proxy
            .ip(&format!("addr {verb} {addr}/24 dev a{link}"))
            .map(drop)
    }

    /// The second uplink's address goes and another comes by DHCP, again and again: a download goes on, byte by byte.
    fn change(&self, times: usize) -> Result<Vec<Line>> {
        let server: SocketAddr = format!("{SERVER}:{PORT}").parse()?;
        let job = Job::down(times as u64 * BETWEEN);
        let modem = Modem::start(&self.lab, 2, LEASES[0])?;
        let dhcp = DhcpClient::start(&self.lab, 2)?;
        dhcp.wait_for_lease(&self.lab, LEASES[0])?;
        let mut pauses = vec![];
        let before = self.joins()?;
        let report = thread::scope(|scope| {
            let run = scope.spawn(|| Client::tcp(server).run_in(self.lab.server(1), &job));
            let done = self.joined(before).and_then(|_| {
                for new in (1..).map(|time| LEASES[time % 2]).take(times) {
                    pauses.push(self.change_once(&modem, &dhcp, new)?);
                }
                Ok(run.is_finished())
            });
            let report = run.join().expect("a client does not panic")?;
            done.map(|early| (report, early))
        })?;
        let (report, early) = report;
        let exact = report.ok().is_ok() && report.down == job.down && !early;
        let pauses: Vec<_> = pauses.iter().map(|p| p.as_secs_f64() * 1000.0).collect();
        let what = format!("{times} changes of an uplink's address by DHCP under one download");
        let figure = format!("{} of {} bytes right", report.down, job.down);
        let [middle, most] = [0.5, 1.0].map(|share| quantile(&pauses, share));
        Ok(vec![
            Line::judged(what, "every byte right", figure, exact),
            Line::told(
                "from DHCP's first packet to the join over the address",
                format!("{middle:.0} ms (at most {most:.0})"),
            ),
        ])
    }

    /// The lease is given back, and the modem has another one.
    fn change_once(&self, modem: &Modem, dhcp: &DhcpClient, new: &str) -> Result<Duration> {
        modem.give(new)?;
        dhcp.release()?;
        dhcp.wait_for_none(&self.lab)?;
        // The server is told meanwhile.
        thread::sleep(Duration::from_millis(50));
        let before = self.joins()?;
        dhcp.renew()?;
        self.joined(before)
    }
}

fn lines(rows: &[Row]) -> Vec<Line> {
    let middle = |loss| {
        let row = rows.iter().find(|row| row.loss == loss);
        row.map_or(f64::NAN, |row| median(&row.gaps))
    };
    let kernel = middle(Loss::KernelSilent);
    let lines = rows.iter().map(|row| {
        let of = &row.gaps;
        let (least, most) = (quantile(of, 0.0), quantile(of, 1.0));
        let what = format!("longest gap, {} ({least:.0} to {most:.0})", row.loss.name());
        let aim = match row.loss {
            Loss::KernelSilent => return Line::told(what, format!("{kernel:.0} ms")),
            Loss::Silent => kernel + BEYOND,
            Loss::Carrier | Loss::Address => 2.0 * RTT + BEYOND,
        };
        Line::at_most(what, median(of), aim, " ms")
    });
    lines.collect()
}

impl Loss {
    const fn name(self) -> &'static str {
        match self {
            Self::KernelSilent => "silent cut, kernel to kernel",
            Self::Silent => "silent cut, box",
            Self::Carrier => "carrier lost, box",
            Self::Address => "address lost, box",
        }
    }
}

impl Results {
    fn write(&self, directory: &Path) -> Result<()> {
        fs::create_dir_all(directory)?;
        let mut text = format!("# Uplinks that are lost; {RTT} ms to the server and back\n\n");
        let _ = write!(text, "{}", aim::table(&self.lines));
        for (name, text) in [
            ("uplinks.json", serde_json::to_string_pretty(self)? + "\n"),
            ("uplinks.md", text),
        ] {
            let file = directory.join(name);
            fs::write(&file, text).with_context(|| file.display().to_string())?;
        }
        Ok(())
    }
}

//! FlexCP beside what there is without it: TCP, and MPTCP from kernel to kernel, in the same lab and
//! by turns, so that a busy machine is busy for all.

mod report;

use std::time::Duration;
use std::{fs, thread};

use anyhow::{Context as _, Result, ensure};

use crate::counters::interfaces;
use crate::daemon::{self, FlexCp};
use crate::fault::{Cut, Direction};
use crate::topology::{Family, Lab, LabBuilder};
use crate::transfer::{Client, Job, Proto, Report, ServeOptions, Server};

pub use report::{CutRow, Goodput, Results};

/// How often everything is measured.
#[derive(Clone, Debug)]
pub struct Compare {
    /// Transfers of each kind over each link.
    pub runs: usize,
    /// Transfers of each kind with a path that is cut.
    pub cuts: usize,
    /// The servers' congestion control; the kernel's own choice when there is none.
    pub congestion: Option<String>,
}

/// A kind of connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// An MPTCP client and a TCP server, FlexCP between them.
    FlexCp,
    /// TCP past FlexCP.
    Tcp,
    /// MPTCP past FlexCP.
    Mptcp,
}

impl Kind {
    const ALL: [Self; 3] = [Self::FlexCp, Self::Tcp, Self::Mptcp];

    /// FlexCP takes 4000 to 5999; the others are routed past it.
    const fn port(self) -> u16 {
        match self {
            Self::FlexCp => 5000,
            Self::Tcp => 6000,
            Self::Mptcp => 6001,
        }
    }

    fn client(self, lab: &Lab) -> Client {
        let proto = match self {
            Self::Tcp => Proto::Tcp,
            Self::FlexCp | Self::Mptcp => Proto::Mptcp,
        };
        Client::new(lab.server_socket(1, Family::V4, self.port()), proto)
    }

    fn serve(self, lab: &Lab) -> Result<Server> {
        let options = match self {
            Self::Mptcp => ServeOptions::mptcp(self.port()),
            Self::FlexCp | Self::Tcp => ServeOptions::tcp(self.port()),
        };
        Server::start(lab.server(1), options)
    }
}

/// A link to measure on.
struct Link {
    name: &'static str,
    /// On the way of the data, besides rate and delay.
    faults: &'static str,
    bytes: u64,
}

/// Loss makes a sender slow: fewer bytes take as long.
const LINKS: [Link; 4] = [
    Link {
        name: "clean",
        faults: "",
        bytes: 20_000_000,
    },
    Link {
        name: "1 % loss",
        faults: "loss=1%",
        bytes: 5_000_000,
    },
    Link {
        name: "10 % reordering",
        faults: "reorder=10%:5ms",
        bytes: 20_000_000,
    },
    Link {
        name: "1 % loss, 10 % reordering",
        faults: "loss=1%,reorder=10%:5ms",
        bytes: 5_000_000,
    },
];

/// Every link has it each way: 20 ms there and back.
const BASE: &str = "rate=100mbit:500kb,delay=10ms";

/// Of each of the two links when one is cut.
const CUT_RATE: u32 = 100;
const CUT_BYTES: u64 = 15_000_000;
/// Sysctl of congestion control.
const CONGESTION: &str = "net.ipv4.tcp_congestion_control";
const CUT_AFTER: Duration = Duration::from_millis(400);

impl Compare {
    /// Measures everything; `say` hears of each step.
    ///
    /// # Errors
    ///
    /// A transfer failed, or what was to go through FlexCP did not.
    pub fn run(&self, say: impl Fn(&str)) -> Result<Results> {
        let mut links = vec![];
        for link in &LINKS {
            say(link.name);
            links.push(self.goodput(link)?);
        }
        say("path cut");
        let chosen = || fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control");
        let congestion = self.congestion.clone().map_or_else(chosen, Ok)?;
        Ok(Results {
            base: BASE,
            congestion: congestion.trim().to_owned(),
            links,
            cut: self.cut()?,
        })
    }

    fn goodput(&self, link: &Link) -> Result<Goodput> {
        let down = match link.faults {
            "" => BASE.to_owned(),
            faults => format!("{faults},{BASE}"),
        };
        let builder = self
            .builder()
            .access_links(1)
            .faults(1, Direction::Up, BASE)
            .faults(1, Direction::Down, &down);
        let stage = Stage::set(builder.build()?)?;
        let mut mbits = [vec![], vec![], vec![]];
        for run in 0..self.runs {
            for (kind, mbits) in Kind::ALL.into_iter().zip(&mut mbits) {
                let job = Job::down(link.bytes).seed(run as u64 + 1);
                let report = stage.transfer(kind, &job)?;
                mbits.push(mbit(link.bytes, &report));
            }
        }
        stage.end(self.runs)?;
        let [flexcp, tcp, mptcp] = mbits;
        Ok(Goodput {
            link: link.name,
            faults: link.faults,
            bytes: link.bytes,
            flexcp,
            tcp,
            mptcp,
        })
    }

    /// A lab for each transfer, so that no subflow of an earlier one is still being given up.
    fn cut(&self) -> Result<CutRow> {
        let mut gaps = [vec![], vec![]];
        for _ in 0..self.cuts {
            for (kind, gaps) in [Kind::FlexCp, Kind::Mptcp].into_iter().zip(&mut gaps) {
                gaps.push(self.gap_of_a_cut(kind)?);
            }
        }
        let [flexcp, mptcp] = gaps;
        Ok(CutRow { flexcp, mptcp })
    }

    /// Longest time without a byte, in milliseconds, when the busier path is cut.
    fn gap_of_a_cut(&self, kind: Kind) -> Result<f64> {
        let builder = self.builder().rate_mbit(1, CUT_RATE).rate_mbit(2, CUT_RATE);
        let stage = Stage::set(builder.build()?)?;
        let lab = &stage.lab;
        let report = thread::scope(|scope| {
            let run = scope.spawn(|| stage.transfer(kind, &Job::down(CUT_BYTES)));
            thread::sleep(CUT_AFTER);
            lab.cut(busier_link(lab)?, Cut::Silent)?;
            run.join().expect("a client does not panic")
        })?;
        stage.end((kind == Kind::FlexCp).into())?;
        Ok(report.longest_gap().as_secs_f64() * 1000.0)
    }

    fn builder(&self) -> LabBuilder {
        match &self.congestion {
            Some(name) => Lab::builder().server_sysctl(CONGESTION, name),
            None => Lab::builder(),
        }
    }
}

/// The one that has brought the client more.
fn busier_link(lab: &Lab) -> Result<u8> {
    let bytes = interfaces(lab.client())?;
    let received = |link: u8| bytes.get(&format!("a{link}")).map_or(0, |bytes| bytes.rx);
    Ok(if received(2) > received(1) { 2 } else { 1 })
}

#[allow(clippy::cast_precision_loss, reason = "a rate for people")]
fn mbit(bytes: u64, report: &Report) -> f64 {
    bytes as f64 * 8.0 / report.total_us.max(1) as f64
}

/// A lab with FlexCP and a server of each kind.
struct Stage {
    flexcp: FlexCp,
    _servers: Vec<Server>,
    lab: Lab,
}

impl Stage {
    fn set(lab: Lab) -> Result<Self> {
        let servers = Kind::ALL.into_iter().map(|kind| kind.serve(&lab));
        let servers = servers.collect::<Result<_>>()?;
        let services = daemon::transparent(&lab, &[]);
        let flexcp = FlexCp::start(&lab, &daemon::config(&lab, &services))?;
        Ok(Self {
            flexcp,
            _servers: servers,
            lab,
        })
    }

    fn transfer(&self, kind: Kind, job: &Job) -> Result<Report> {
        let report = kind.client(&self.lab).run_in(self.lab.client(), job)?;
        report.ok().with_context(|| format!("{kind:?}: {job:?}"))?;
        Ok(report)
    }

    /// As many connections have gone through FlexCP as should have.
    fn end(self, connections: usize) -> Result<()> {
        let seen = self.flexcp.show_stats()?.counter("mp_capable_ack_rx")?;
        ensure!(
            seen == connections as u64,
            "{seen} of {connections} connections went through FlexCP"
        );
        self.flexcp.stop()
    }
}

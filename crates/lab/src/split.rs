//! Split connections beside translated ones and haproxy (`lab split`): what one download takes of two paths, and what a gigabyte
//! costs.

use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;

use crate::aim::{self, Line};
use crate::daemon::{self, FlexCp};
use crate::fault::Direction;
use crate::process::Background;
use crate::statistics::median;
use crate::topology::{Families, Family, Lab, require_root};
use crate::transfer::{Client, Job, ServeOptions, Server};

/// What each path carries, in Mbit/s.
const RATE: u32 = 50;
/// What waits before it at most, in milliseconds of it.
const QUEUE_MS: u32 = 60;
/// What a download over both has to reach, in Mbit/s.
const LEAST: f64 = 90.0;
/// What the relay may take of a processor beside haproxy.
const BESIDE_HAPROXY: f64 = 1.0;

/// `USER_HZ`
const TICKS_A_SECOND: f64 = 100.0;

const SERVER: u16 = 5000;
const SPLIT: u16 = 8081;
const SPLITLESS: u16 = 8082;
const HAPROXY: u16 = 8083;

/// What to run, and where its results go.
#[derive(Clone, Debug, clap::Args)]
pub struct Split {
    /// Rounds, in each of which every way has its turn
    #[arg(long, default_value_t = 5)]
    pub rounds: usize,
    /// Megabytes of a download over paths with a rate
    #[arg(long, default_value_t = 60)]
    pub paced: u64,
    /// Megabytes of a download over paths without one, of which the processor's time is told
    #[arg(long, default_value_t = 1000)]
    pub unpaced: u64,
    /// Where split.json and split.md go
    #[arg(long, default_value = "lab/results")]
    pub results: PathBuf,
}

/// What carries a client's bytes to its server.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Way {
    /// FlexCP's relay.
    Split,
    /// FlexCP's translation.
    Splitless,
    /// haproxy that takes MPTCP.
    Haproxy,
}

const WAYS: [Way; 3] = [Way::Split, Way::Splitless, Way::Haproxy];

/// What came of one way.
#[derive(Clone, Debug, Serialize)]
struct Row {
    way: Way,
    /// Of each round, over two paths of [`RATE`].
    mbit_per_second: Vec<f64>,
    /// Seconds of a processor that its process took for a gigabyte down, each round, over paths without a rate.
    seconds_per_gigabyte: Vec<f64>,
}

/// All of it.
#[derive(Clone, Debug, Serialize)]
struct Results {
    rows: Vec<Row>,
    lines: Vec<Line>,
}

/// Everything that runs.
struct Scene {
    lab: Lab,
    flexcp: FlexCp,
    haproxy: Background,
    _server: Server,
}

impl Split {
    /// Runs everything, prints the table and writes it down.
    ///
    /// # Errors
    ///
    /// An aim is missed, or something could not be run.
    pub fn run(&self) -> Result<()> {
        require_root()?;
        let mut rows = WAYS.map(|way| Row {
            way,
            mbit_per_second: vec![],
            seconds_per_gigabyte: vec![],
        });
        let paced = Scene::build(Some(RATE))?;
        for _ in 0..self.rounds {
            for row in &mut rows {
                row.mbit_per_second.push(paced.rate(row.way, self.paced)?);
            }
        }
        paced.end()?;
        let unpaced = Scene::build(None)?;
        for _ in 0..self.rounds {
            for row in &mut rows {
                let cost = unpaced.cost(row.way, self.unpaced)?;
                row.seconds_per_gigabyte.push(cost);
            }
        }
        unpaced.end()?;
        let mut lines = lines(&rows);
        for access in ACCESSES {
            lines.push(access.line()?);
        }
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
    fn build(rate: Option<u32>) -> Result<Self> {
        let builder = Lab::builder().families(Families::V4).queue_ms(QUEUE_MS);
        let builder = match rate {
            Some(rate) => builder.rate_mbit(1, rate).rate_mbit(2, rate),
            None => builder,
        };
        let lab = builder.build()?;
        let server = Server::start(lab.server(1), ServeOptions::tcp(SERVER))?;
        let backend = [lab.server_socket(1, Family::V4, SERVER).to_string()];
        let services = [("split", SPLIT), ("splitless", SPLITLESS)].map(|(carrier, port)| {
            let listen = [at(&lab, port).to_string()];
            let service = daemon::reverse(carrier, &listen, &backend, &[]);
            format!("{service}carrier = {carrier:?}\n")
        });
        let flexcp = FlexCp::start(&lab, &daemon::config(&lab, &services.join("\n")))?;
        let haproxy = haproxy(&lab)?;
        Ok(Self {
            lab,
            flexcp,
            haproxy,
            _server: server,
        })
    }

    fn download(&self, way: Way, megabytes: u64) -> Result<f64> {
        let port = match way {
            Way::Split => SPLIT,
            Way::Splitless => SPLITLESS,
            Way::Haproxy => HAPROXY,
        };
        let client = Client::mptcp(at(&self.lab, port));
        let report = client.run_in(self.lab.client(), &Job::down(megabytes * 1_000_000))?;
        report.ok().with_context(|| format!("{way:?}"))?;
        Ok(Duration::from_micros(report.total_us).as_secs_f64())
    }

    /// Mbit/s of one download.
    fn rate(&self, way: Way, megabytes: u64) -> Result<f64> {
        let seconds = self.download(way, megabytes)?;
        Ok(as_f64(megabytes) * 8.0 / seconds)
    }

    /// Seconds of a processor that the proxy's process takes for a gigabyte.
    fn cost(&self, way: Way, megabytes: u64) -> Result<f64> {
        let pid = match way {
            Way::Split | Way::Splitless => self.flexcp.pid(),
            Way::Haproxy => self.haproxy.pid(),
        };
        let before = processor_time(pid)?;
        self.download(way, megabytes)?;
        let taken = processor_time(pid)? - before;
        Ok(taken * 1000.0 / as_f64(megabytes))
    }

    /// Whether connections were what they are measured as, and the end.
    fn end(self) -> Result<()> {
        let stats = self.flexcp.show_stats()?;
        let refused = stats.counter("split_refused")?;
        ensure!(refused == 0, "{refused} connections were not split");
        let [split, opened] = ["split", "connections_opened"].map(|name| stats.counter(name));
        ensure!(split? > 0 && opened? > 0, "nothing was measured");
        self.flexcp.stop()
    }
}

fn at(lab: &Lab, port: u16) -> SocketAddr {
    SocketAddr::new(lab.proxy_addr(1, Family::V4), port)
}

/// Seconds of processors that a process has taken, in the kernel and outside.
fn processor_time(pid: u32) -> Result<f64> {
    let file = format!("/proc/{pid}/stat");
    let stat = fs::read_to_string(&file).with_context(|| file.clone())?;
    // The name may have anything in it but ends with the last parenthesis.
    let (_, rest) = stat.rsplit_once(')').with_context(|| file.clone())?;
    let ticks = rest.split_whitespace().skip(11).take(2);
    let ticks: u64 = ticks.map(|ticks| ticks.parse().unwrap_or(0)).sum();
    Ok(as_f64(ticks) / TICKS_A_SECOND)
}

#[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
const fn as_f64(number: u64) -> f64 {
    number as f64
}

fn haproxy(lab: &Lab) -> Result<Background> {
    let file = lab.dir().join("haproxy.cfg");
    let server = lab.server_socket(1, Family::V4, SERVER);
    let config = format!(
        "defaults\n  mode tcp\n  option splice-auto\n  timeout connect 10s\n  timeout client 1h\n  timeout server 1h\n\
         listen web\n  bind *:{HAPROXY}\n  server s {server}\n"
    );
    fs::write(&file, config)?;
    let mut command = lab.proxy().command("mptcpize");
    command.args(["run", "haproxy", "-db", "-f"]).arg(&file);
    let mut program = Background::spawn(command, lab.dir(), "haproxy")?;
    let here = SocketAddr::from(([127, 0, 0, 1], HAPROXY));
    program.wait_for_listener(lab.proxy(), here)?;
    Ok(program)
}

fn lines(rows: &[Row]) -> Vec<Line> {
    let of = |way: Way, what: fn(&Row) -> &Vec<f64>| {
        let row = rows.iter().find(|row| row.way == way);
        row.map_or(f64::NAN, |row| median(what(row)))
    };
    let rate = |way| of(way, |row| &row.mbit_per_second);
    let cost = |way| of(way, |row| &row.seconds_per_gigabyte);
    let paths = format!("one download over two paths of {RATE} Mbit/s");
    let mut lines = vec![Line::at_least(
        format!("{paths}, split"),
        rate(Way::Split),
        LEAST,
        " Mbit/s",
    )];
    for way in [Way::Splitless, Way::Haproxy] {
        let what = format!("the same, {}", way.name());
        lines.push(Line::told(what, format!("{:.1} Mbit/s", rate(way))));
    }
    for way in WAYS {
        let what = format!(
            "processor time of the process for a gigabyte, {}",
            way.name()
        );
        lines.push(Line::told(what, format!("{:.2} s", cost(way))));
    }
    let what = "the relay's, of haproxy's";
    let beside = cost(Way::Split) / cost(Way::Haproxy);
    lines.push(Line::at_most(what, beside, BESIDE_HAPROXY, " times"));
    lines
}

impl Way {
    const fn name(self) -> &'static str {
        match self {
            Self::Split => "split",
            Self::Splitless => "translated",
            Self::Haproxy => "haproxy (MPTCP, splice)",
        }
    }
}

impl Results {
    fn write(&self, directory: &Path) -> Result<()> {
        fs::create_dir_all(directory)?;
        let mut text = "# Split connections\n\n".to_owned();
        let _ = write!(text, "{}", aim::table(&self.lines));
        for (name, text) in [
            ("split.json", serde_json::to_string_pretty(self)? + "\n"),
            ("split.md", text),
        ] {
            let file = directory.join(name);
            fs::write(&file, text).with_context(|| file.display().to_string())?;
        }
        Ok(())
    }
}

/// What clients' accesses are like, and what is to carry their connections when that is left to FlexCP.
struct Access {
    name: &'static str,
    links: u8,
    /// Rate of each in Mbit/s, and what waits before it at most in milliseconds; none: as fast as it goes.
    rate: Option<(u32, u32)>,
    /// Faults of each on the way down.
    faults: Option<&'static str>,
    splits: bool,
}

const ACCESSES: [Access; 4] = [
    Access {
        name: "one access",
        links: 1,
        rate: None,
        faults: None,
        splits: false,
    },
    Access {
        name: "two that are clean",
        links: 2,
        rate: None,
        faults: None,
        splits: false,
    },
    Access {
        name: "two that lose 2 %",
        links: 2,
        rate: None,
        faults: Some("loss=2%"),
        splits: true,
    },
    Access {
        name: "two with queues of 300 ms, full",
        links: 2,
        rate: Some((20, 300)),
        faults: None,
        splits: true,
    },
];

/// Downloads by which FlexCP gets to know an access.
const KNOWN_BY: u64 = 8;
/// Downloads of which it is looked at what carries them.
const JUDGED: u64 = 24;
/// Of those that are to be split, so many are translated to see how the access is: one in eight.
const PROBED: u64 = JUDGED / 8;
/// Bytes of one.
const EACH: u64 = 2_000_000;

impl Access {
    fn line(&self) -> Result<Line> {
        let split = self.split().with_context(|| self.name)?;
        let (aim, met) = if self.splits {
            let least = JUDGED - PROBED;
            (
                format!("at least {least} of {JUDGED} split"),
                split >= least,
            )
        } else {
            ("none split".to_owned(), split == 0)
        };
        let what = format!("left to FlexCP: {}", self.name);
        Ok(Line::judged(what, aim, format!("{split} of {JUDGED}"), met))
    }

    /// How many of the downloads that are looked at were split.
    fn split(&self) -> Result<u64> {
        let builder = Lab::builder()
            .families(Families::V4)
            .access_links(self.links);
        let links = 1..=self.links;
        let builder = match self.rate {
            Some((rate, queue)) => links
                .clone()
                .fold(builder.queue_ms(queue), |it, link| it.rate_mbit(link, rate)),
            None => builder,
        };
        let builder = match self.faults {
            Some(faults) => {
                links.fold(builder, |it, link| it.faults(link, Direction::Down, faults))
            }
            None => builder,
        };
        let lab = builder.build()?;
        let _server = Server::start(lab.server(1), ServeOptions::tcp(SERVER))?;
        let backend = [lab.server_socket(1, Family::V4, SERVER).to_string()];
        let service = daemon::reverse("auto", &[at(&lab, SPLIT).to_string()], &backend, &[]);
        // What a connection has shown counts when it is forgotten.
        let services = format!("[timeouts]\nlinger = \"100ms\"\n\n{service}carrier = \"auto\"\n");
        let flexcp = FlexCp::start(&lab, &daemon::config(&lab, &services))?;
        let client = Client::mptcp(at(&lab, SPLIT));
        let download = |count: u64| -> Result<u64> {
            for _ in 0..count {
                client.run_in(lab.client(), &Job::down(EACH))?.ok()?;
                thread::sleep(Duration::from_millis(300));
            }
            let stats = flexcp.show_stats()?;
            let refused = stats.counter("split_refused")?;
            ensure!(refused == 0, "{refused} connections were not split");
            Ok(stats.counter("split")?)
        };
        let before = download(KNOWN_BY)?;
        let split = download(JUDGED)? - before;
        flexcp.stop()?;
        Ok(split)
    }
}

//! FlexCP reloads its configuration again and again under transfers (`lab reload`): services come, change and go, and every
//! tenth file is broken. What it does to connections of services that stay, and what broken files change.

use std::collections::VecDeque;
use std::fmt;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use serde::Serialize;

use crate::daemon::{self, FlexCp, Reloaded};
use crate::topology::{Families, Family, Lab};
use crate::transfer::{Client, Job, Report, ServeOptions, Server};

/// A line of the results: transfers over services that went were told, or refused.
pub const TOLD: &str = "of those told the end, or refused";
/// A line of the results: connections were installed in the offload.
pub const OFFLOADED: &str = "times a connection was offloaded";

/// What to run, and where its results go.
#[derive(Clone, Debug, clap::Args)]
pub struct Reload {
    /// How often FlexCP gets SIGHUP
    #[arg(long, default_value_t = 1000)]
    pub reloads: usize,
    /// Transfers at once over services that stay
    #[arg(long, default_value_t = 4)]
    pub transfers: usize,
    /// Where reload.json goes
    #[arg(long, default_value = "lab/results")]
    pub results: PathBuf,
}

/// What came of it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Results {
    /// Files that were to take effect, and did.
    pub reloads: usize,
    /// Files that were to take effect, and did not.
    pub refused: usize,
    /// Files that were broken, or asked for what a running process can't change.
    pub broken: usize,
    /// Of those: how many changed anything.
    pub broken_that_changed: usize,
    /// How many the log did not name with the line that is wrong.
    pub broken_without_line: usize,
    /// Transfers over services that stay: those that ended, every byte right.
    pub transfers: usize,
    /// Those that did not.
    pub lost: usize,
    /// Why, the first few.
    pub why: Vec<String>,
    /// Short transfers over services that come, change and go: those that ended.
    pub others: usize,
    /// Those that were told that they are over, or refused.
    pub others_told: usize,
    /// Those that heard nothing, or got wrong bytes.
    pub others_lost: usize,
    /// How often a connection was offloaded.
    pub offloaded: u64,
    /// The longest time that a transfer over a service that stays stood still, in milliseconds.
    pub longest_pause_ms: u64,
    /// From the signal to the end of the reload, in milliseconds: the median and the longest.
    pub median_ms: u64,
    /// The longest.
    pub longest_ms: u64,
    /// Resident memory of FlexCP after the first tenth of the reloads, in KiB.
    pub memory_before_kib: u64,
    /// The same at the end, when nothing is drained any more.
    pub memory_after_kib: u64,
}

/// A file that must not take effect, and the line that is wrong in it.
struct Broken {
    text: String,
    line: usize,
}

/// The lab, and what does not change in it.
struct Scene {
    lab: Lab,
    /// Where clients find the services that stay.
    stay: [SocketAddr; 2],
    /// Where they find those that come, change and go.
    others: Vec<SocketAddr>,
}

impl Reload {
    /// Runs everything, prints the table and writes it down.
    ///
    /// # Errors
    ///
    /// An aim is missed, or something could not be run.
    pub fn run(&self) -> Result<()> {
        let results = self.measure()?;
        results.write(&self.results)?;
        print!("{results}");
        results.judge(&[])
    }

    /// Runs it.
    ///
    /// # Errors
    ///
    /// It could not be run.
    pub fn measure(&self) -> Result<Results> {
        let scene = Scene::new()?;
        let _servers = PORTS
            .map(|port| Server::start(scene.lab.server(1), ServeOptions::tcp(port)))
            .into_iter()
            .collect::<Result<Vec<_>>>()?;
        let mut flexcp = FlexCp::start(&scene.lab, &scene.config(0))?;
        let over = AtomicBool::new(false);
        let results = thread::scope(|scope| {
            let (scene, over) = (&scene, &over);
            let stay = (0..self.transfers).map(|n| {
                let to = scene.stay[n % scene.stay.len()];
                scope.spawn(move || scene.again_and_again(to, &Job::both(LONG), over))
            });
            let stay: Vec<_> = stay.collect();
            let others = scene.others.iter();
            let others = others
                .map(|&to| scope.spawn(move || scene.again_and_again(to, &Job::down(SHORT), over)));
            let others: Vec<_> = others.collect();
            let reloaded = self.reload(scene, &mut flexcp);
            over.store(true, Ordering::Relaxed);
            let mut results = reloaded?;
            for thread in stay {
                results.note(&thread.join().map_err(|_| anyhow!("a client panicked"))??);
            }
            for thread in others {
                results.note_others(&thread.join().map_err(|_| anyhow!("a client panicked"))??);
            }
            Ok::<_, anyhow::Error>(results)
        });
        let mut results = results.with_context(|| flexcp.log())?;
        wait_until_nothing_is_drained(&flexcp)?;
        results.memory_after_kib = resident(&flexcp)?;
        let stats = flexcp.show_stats()?;
        results.offloaded = stats.counter("offload_installed")?;
        flexcp.stop()?;
        Ok(results)
    }

    /// All reloads, one after another.
    fn reload(&self, scene: &Scene, flexcp: &mut FlexCp) -> Result<Results> {
        let mut results = Results::default();
        let mut took = vec![];
        for number in 1..=self.reloads {
            if number % BROKEN_EVERY == 0 {
                scene.break_once(flexcp, number, &mut results)?;
            } else {
                let reloaded = flexcp.reload(&scene.lab, &scene.config(number))?;
                results.note_reload(&reloaded);
                took.push(millis(reloaded.took));
            }
            if number == self.reloads.div_ceil(10) {
                results.memory_before_kib = resident(flexcp)?;
            }
            thread::sleep(PAUSE);
        }
        took.sort_unstable();
        results.median_ms = took.get(took.len() / 2).copied().unwrap_or(0);
        results.longest_ms = took.last().copied().unwrap_or(0);
        Ok(results)
    }
}

impl Scene {
    fn new() -> Result<Self> {
        let lab = Lab::builder()
            .families(Families::V4)
            .rate_mbit(1, RATE)
            .rate_mbit(2, RATE)
            .build()?;
        let own = lab.proxy_addr(1, Family::V4);
        let server = |port| lab.server_socket(1, Family::V4, port);
        Ok(Self {
            stay: [server(PORTS[0]), SocketAddr::new(own, LISTEN[0])],
            others: vec![
                server(PORTS[1]),
                server(PORTS[2]),
                SocketAddr::new(own, LISTEN[1]),
            ],
            lab,
        })
    }

    /// The `number`-th configuration: two services stay; one comes and goes; one has other ports, and addresses to join; one
    /// has other back ends; and all of them stand in another order.
    fn config(&self, number: usize) -> String {
        let transparent = |name: &str, ports: &str, announce: &[String]| {
            format!(
                "[[service]]\nname = {name:?}\nmode = \"transparent\"\ninterfaces = [\"a1\", \"a2\"]\n\
                 destinations = [\"10.9.0.0/16\"]\nports = [{ports}]\nannounce = {announce:?}\n\n"
            )
        };
        let reverse = |name: &str, listen: SocketAddr, ports: &[u16]| {
            let backends = ports
                .iter()
                .map(|port| self.lab.server_socket(1, Family::V4, *port));
            let backends: Vec<_> = backends.map(|backend| backend.to_string()).collect();
            daemon::reverse(name, &[listen.to_string()], &backends, &[]) + "\n"
        };
        let mut services = VecDeque::from([
            transparent("web", &PORTS[0].to_string(), &[]),
            reverse("shop", self.stay[1], &[PORTS[0]]),
        ]);
        if number % 3 != 1 {
            services.push_back(transparent("guest", &PORTS[1].to_string(), &[]));
        }
        let second = self.lab.proxy_addr(2, Family::V4).to_string();
        services.push_back(match number % 4 {
            0 => transparent("change", &PORTS[2].to_string(), &[]),
            1 => transparent("change", &format!("{}, \"7000-7009\"", PORTS[2]), &[second]),
            2 => transparent("change", "\"7000-7009\"", &[]),
            _ => transparent("change", &PORTS[2].to_string(), &[second]),
        });
        services.push_back(match number % 5 {
            0 | 3 => reverse("pool", self.others[2], &[PORTS[1]]),
            1 => reverse("pool", self.others[2], &[PORTS[2], PORTS[1]]),
            2 => reverse("pool", self.others[2], &[PORTS[2]]),
            _ => reverse("elsewhere", self.others[2], &[PORTS[1], PORTS[2]]),
        });
        let by = number % services.len();
        services.rotate_left(by);
        let timeouts = format!(
            "[timeouts]\ndrain = \"{}ms\"\nlinger = \"{}s\"\n\n",
            DRAIN.as_millis(),
            1 + number % 3
        );
        daemon::config(
            &self.lab,
            &(timeouts + &services.make_contiguous().concat()),
        )
    }

    /// The `number`-th configuration, broken in one of several ways.
    fn broken(&self, number: usize) -> Broken {
        let good = self.config(number);
        let ways = [
            ("name = \"web\"", "name = \"web"),
            ("mode = \"transparent\"", "mode = \"tranparent\""),
            ("table = 7300", "table = 7301"),
            (
                "destinations = [\"10.9.0.0/16\"]",
                "destinations = [\"10.9.0.0/33\"]",
            ),
            ("workers = 1", "workers = 2"),
            ("ports = [", "prots = ["),
            ("interfaces = [\"a1\", \"a2\"]", "interfaces = [\"a1\"]"),
        ];
        let (from, to) = ways[number / BROKEN_EVERY % ways.len()];
        // A service that stays has it, or else the file before all services.
        let stays = good.find("name = \"web\"").unwrap_or_default();
        let in_it = good[stays..].find(from).map(|at| stays + at);
        let at = in_it.or_else(|| good.find(from)).unwrap_or_default();
        Broken {
            line: good[..at].matches('\n').count() + 1,
            text: good[..at].to_owned() + &good[at..].replacen(from, to, 1),
        }
    }

    /// Has FlexCP read a broken file.
    fn break_once(&self, flexcp: &mut FlexCp, number: usize, results: &mut Results) -> Result<()> {
        let Broken { text, line } = self.broken(number);
        wait_until_nothing_is_drained(flexcp)?;
        let before = self.state(flexcp)?;
        let reloaded = flexcp.reload(&self.lab, &text)?;
        results.broken += 1;
        if reloaded.in_force || self.state(flexcp)? != before {
            results.broken_that_changed += 1;
        }
        if !reloaded.log.contains(&format!("flexcp.toml:{line}:")) {
            results.broken_without_line += 1;
            results
                .why
                .push(format!("line {line} is not named: {}", reloaded.log));
        }
        Ok(())
    }

    /// What a broken file must not change.
    fn state(&self, flexcp: &FlexCp) -> Result<Vec<String>> {
        let status = flexcp.show_json("status")?;
        let mut state = vec![status["generation"].to_string()];
        let services = status["services"].as_array();
        let names = services.into_iter().flatten();
        state.extend(names.map(|service| service["name"].to_string()));
        state.push(self.lab.proxy().ip("rule")?);
        state.push(self.lab.proxy().ip("route show table 7300")?);
        Ok(state)
    }

    /// Does the job on one connection after another until it is over.
    fn again_and_again(&self, to: SocketAddr, job: &Job, over: &AtomicBool) -> Result<Vec<Report>> {
        let client = Client::mptcp(to).patience(PATIENCE);
        self.lab.client().run(|| {
            let mut reports = vec![];
            while !over.load(Ordering::Relaxed) {
                let report = client.run(job);
                if report.failure.is_some() {
                    thread::sleep(PAUSE);
                }
                reports.push(report);
            }
            Ok(reports)
        })
    }
}

impl Results {
    fn note_reload(&mut self, reloaded: &Reloaded) {
        if reloaded.in_force {
            self.reloads += 1;
        } else {
            self.refused += 1;
            self.why.push(format!("refused: {}", reloaded.log));
        }
    }

    /// Transfers over services that stay.
    fn note(&mut self, reports: &[Report]) {
        for report in reports {
            self.longest_pause_ms = self.longest_pause_ms.max(millis(report.longest_gap()));
            match report.ok() {
                Ok(_) => self.transfers += 1,
                Err(error) => {
                    self.lost += 1;
                    self.why.push(format!("lost: {error}"));
                }
            }
        }
    }

    /// Transfers over the others.
    fn note_others(&mut self, reports: &[Report]) {
        for report in reports {
            match report.failure_kind() {
                "" => self.others += 1,
                "ECONNRESET" | "ECONNREFUSED" | "EPIPE" => self.others_told += 1,
                kind => {
                    self.others_lost += 1;
                    self.why
                        .push(format!("another: {kind}: {:?}", report.failure));
                }
            }
        }
    }

    fn write(&self, directory: &Path) -> Result<()> {
        fs::create_dir_all(directory)?;
        let file = directory.join("reload.json");
        let text = serde_json::to_string_pretty(self)?;
        fs::write(&file, text + "\n").with_context(|| file.display().to_string())
    }

    /// What was measured, its aim, and whether that is met.
    fn lines(&self) -> Vec<(&'static str, String, String, bool)> {
        let none = |what, count: usize| (what, "0".to_owned(), count.to_string(), count == 0);
        let some = |what, count: u64| (what, "some".to_owned(), count.to_string(), count > 0);
        let pause = millis(LONGEST_PAUSE);
        let grown = self.memory_after_kib.saturating_sub(self.memory_before_kib);
        let count = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        vec![
            some("reloads that took effect", count(self.reloads)),
            none("of those that should, refused", self.refused),
            some("transfers over services that stay", count(self.transfers)),
            none("of those lost", self.lost),
            (
                "their longest pause",
                format!("{pause} ms"),
                format!("{} ms", self.longest_pause_ms),
                self.longest_pause_ms <= pause,
            ),
            some("transfers over the others", count(self.others)),
            some(TOLD, count(self.others_told)),
            none("of those left alone or with wrong bytes", self.others_lost),
            some(OFFLOADED, self.offloaded),
            some("broken files", count(self.broken)),
            none("of those that changed anything", self.broken_that_changed),
            none(
                "of those whose line the log did not name",
                self.broken_without_line,
            ),
            (
                "a reload takes, median",
                format!("{} ms", millis(MEDIAN)),
                format!("{} ms", self.median_ms),
                self.median_ms <= millis(MEDIAN),
            ),
            (
                "a reload takes, longest",
                format!("{} ms", millis(LONGEST)),
                format!("{} ms", self.longest_ms),
                self.longest_ms <= millis(LONGEST),
            ),
            (
                "memory after a tenth, and at the end",
                format!("{} KiB more", GROWTH_KIB),
                format!(
                    "{} KiB, {} KiB",
                    self.memory_before_kib, self.memory_after_kib
                ),
                grown <= GROWTH_KIB,
            ),
        ]
    }

    /// Judges all that it has lines for, but what is `left_out` by name.
    ///
    /// # Errors
    /// An aim is missed, or what is left out has no line.
    pub fn judge(&self, left_out: &[&str]) -> Result<()> {
        let lines = self.lines();
        for name in left_out {
            let known = lines.iter().any(|(what, ..)| what == name);
            ensure!(known, "no line is called {name:?}");
        }
        let judged = lines.iter().filter(|(what, ..)| !left_out.contains(what));
        let missed = judged.filter(|(.., met)| !met);
        let missed: Vec<_> = missed
            .map(|(what, _, figure, _)| format!("{what}: {figure}"))
            .collect();
        let why = self
            .why
            .iter()
            .take(5)
            .map(String::as_str)
            .collect::<Vec<_>>();
        ensure!(
            missed.is_empty(),
            "missed: {}\n{}",
            missed.join(", "),
            why.join("\n")
        );
        Ok(())
    }
}

impl fmt::Display for Results {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| what | aim | figure |\n|---|---|---|")?;
        self.lines()
            .iter()
            .try_for_each(|(what, aim, figure, met)| {
                let missed = if *met { "" } else { " (missed)" };
                writeln!(f, "| {what} | {aim} | {figure}{missed} |")
            })
    }
}

/// Waits until no connection is drained; rules that went are gone then, too.
fn wait_until_nothing_is_drained(flexcp: &FlexCp) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let status = flexcp.show_json("status")?;
        if status["draining"] == 0 {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "still drained: {status}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Resident memory of FlexCP, in KiB.
fn resident(flexcp: &FlexCp) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{}/status", flexcp.pid()))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    number
        .and_then(|number| number.parse().ok())
        .context("no VmRSS")
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Of the servers: of the services that stay, and of the others.
const PORTS: [u16; 3] = [5000, 5001, 5002];
/// Where FlexCP listens: for the service that stays, and for another.
const LISTEN: [u16; 2] = [6000, 6001];
/// Of each link, in Mbit/s: enough packets on their way, few enough for two processors.
const RATE: u32 = 200;
/// Bytes each way of a transfer over a service that stays: some seconds.
const LONG: u64 = 20_000_000;
/// The same of others.
const SHORT: u64 = 500_000;
/// So often a file is broken.
const BROKEN_EVERY: usize = 10;
/// What connections of services that went have.
const DRAIN: Duration = Duration::from_millis(100);
/// Between two reloads.
const PAUSE: Duration = Duration::from_millis(50);
/// Whoever has heard nothing for so long is counted as left alone.
const PATIENCE: Duration = Duration::from_secs(15);
/// What a transfer may stand still at most: a retransmission timeout that has doubled once, on a machine of two processors.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// What a reload may take.
const MEDIAN: Duration = Duration::from_millis(200);
/// The longest of all.
const LONGEST: Duration = Duration::from_secs(2);
/// What memory may grow by.
const GROWTH_KIB: u64 = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Results {
        Results {
            reloads: 900,
            broken: 100,
            transfers: 40,
            others: 300,
            others_told: 20,
            offloaded: 90,
            longest_pause_ms: 1000,
            median_ms: 200,
            longest_ms: 2000,
            memory_before_kib: 20_000,
            memory_after_kib: 24_096,
            ..Results::default()
        }
    }

    #[test]
    fn each_aim_can_be_missed() {
        good().judge(&[]).expect("all aims are met");
        assert!(good().judge(&["something else"]).is_err());
        let misses: [fn(&mut Results); 15] = [
            |r| r.reloads = 0,
            |r| r.refused = 1,
            |r| r.transfers = 0,
            |r| r.lost = 1,
            |r| r.longest_pause_ms = 1001,
            |r| r.others = 0,
            |r| r.others_told = 0,
            |r| r.others_lost = 1,
            |r| r.offloaded = 0,
            |r| r.broken = 0,
            |r| r.broken_that_changed = 1,
            |r| r.broken_without_line = 1,
            |r| r.median_ms = 201,
            |r| r.longest_ms = 2001,
            |r| r.memory_after_kib = 24_097,
        ];
        assert_eq!(misses.len(), good().lines().len());
        for miss in misses {
            let mut results = good();
            miss(&mut results);
            assert!(results.judge(&[]).is_err());
            let lines = results.lines();
            let missed = lines.iter().find(|(.., met)| !met);
            results
                .judge(&[missed.expect("a miss").0])
                .expect("it is left out");
            assert_eq!(results.to_string().matches("(missed)").count(), 1);
        }
    }

    #[test]
    fn only_what_is_told_is_no_loss() {
        let report = |kind: &str| Report {
            failure: (!kind.is_empty()).then(|| crate::transfer::Failure {
                kind: kind.into(),
                during: "read",
                message: String::new(),
            }),
            ..Report::default()
        };
        let kinds = ["", "ECONNRESET", "ECONNREFUSED", "EPIPE", "timeout", "data"];
        let reports = kinds.map(report);
        let mut results = Results::default();
        results.note_others(&reports);
        let others = (results.others, results.others_told, results.others_lost);
        assert_eq!(others, (1, 3, 2));
        results.note(&reports);
        assert_eq!((results.transfers, results.lost), (1, 5));
    }
}

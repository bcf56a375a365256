//! Many hostile clients that hold all the mappings they can get (`lab hostile-memory`): does FlexCP's memory stay within
//! its budget, and are honest transfers unharmed beside them?

use std::fmt;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde::Serialize;

use super::bomb::Bomb;
use super::forge::{Dice, SPOOFED};
use super::run::rss_kib;
use super::tap::{Muzzle, Watch};
use crate::daemon::{self, FlexCp};
use crate::topology::{Families, Family, Lab};
use crate::transfer::{Client, Job, Mode, ServeOptions, Server, raise_file_limit};

/// What to run, and where its results go.
#[derive(Clone, Debug, clap::Args)]
pub struct HostileMemory {
    /// Hostile connections
    #[arg(long, default_value_t = 2000)]
    pub connections: usize,
    /// Mappings that each declares, none of which can be merged with another or acknowledged
    #[arg(long, default_value_t = 4000)]
    pub mappings: u32,
    /// FlexCP's budget (`[limits] memory`), in megabytes
    #[arg(long, default_value_t = 64)]
    pub budget_mb: u64,
    /// Mappings a second, of all connections together
    #[arg(long, default_value_t = 100_000)]
    pub rate: u64,
    /// Megabytes of the honest transfers, each time
    #[arg(long, default_value_t = 100)]
    pub honest_mb: u64,
    /// Where hostile-memory.json goes
    #[arg(long, default_value = "lab/results")]
    pub results: PathBuf,
}

/// What honest transfers came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Pace {
    /// Connections, each over two links.
    pub connections: u64,
    /// Those of them that were MPTCP.
    pub mptcp: u64,
    /// Both ways together, of all connections.
    pub mbit_s: f64,
}

/// What came of it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Hoarded {
    /// Hostile connections, and mappings that each of them sent.
    pub connections: usize,
    /// Mappings that each of them sent.
    pub mappings: u32,
    /// Seconds that took.
    pub seconds: f64,
    /// The budget in bytes.
    pub budget: u64,
    /// The most that FlexCP's connections had allocated at a look (`memory_bytes`).
    pub memory: u64,
    /// The same with what is reserved for small ones.
    pub counted: u64,
    /// Resident memory of FlexCP before the hostile connections, and the most at a look, in bytes.
    pub resident: [u64; 2],
    /// `memory_refused`.
    pub refused: u64,
    /// `plain_syn` by the cause `memory`.
    pub turned_away: u64,
    /// Honest transfers before (the median of several), while mappings are declared as fast as they can be (the mean of
    /// many), and while they are held and more is wanted (the median again).
    pub honest: [Pace; 3],
}

impl HostileMemory {
    /// Runs it, prints the table and writes it down.
    ///
    /// # Errors
    ///
    /// An aim is missed, or it could not be run.
    pub fn run(&self) -> Result<()> {
        let hoarded = self.hoard()?;
        hoarded.write(&self.results)?;
        print!("{hoarded}");
        hoarded.judge()
    }

    /// The attack, in a lab of its own.
    ///
    /// # Errors
    ///
    /// It could not be run, or an honest transfer failed.
    pub fn hoard(&self) -> Result<Hoarded> {
        raise_file_limit()?;
        let lab = Lab::builder()
            .families(Families::V4)
            .rate_mbit(1, RATE_MBIT)
            .rate_mbit(2, RATE_MBIT)
            .build()?;
        let options = ServeOptions {
            patience: Duration::from_secs(600),
            ..ServeOptions::tcp(PORT)
        };
        let _server = Server::start(lab.server(1), options)?;
        let limits = format!("[limits]\nmemory = \"{}MB\"\n\n", self.budget_mb);
        let services = daemon::transparent(&lab, &[]);
        let flexcp = FlexCp::start(&lab, &daemon::config(&lab, &(limits + &services)))?;
        let result = self.beside(&lab, &flexcp);
        let hoarded = result.with_context(|| flexcp.log())?;
        flexcp.stop()?;
        Ok(hoarded)
    }

    fn beside(&self, lab: &Lab, flexcp: &FlexCp) -> Result<Hoarded> {
        let mut hoarded = Hoarded {
            connections: self.connections,
            mappings: self.mappings,
            budget: self.budget_mb * 1_000_000,
            ..Hoarded::default()
        };
        hoarded.honest[0] = self.repeated(lab, flexcp)?;
        hoarded.resident[0] = rss_kib(flexcp.pid())? * 1024;
        // Where mappings are declared as fast as they can be, queues lose packets. A client's kernel that loses a SYN with
        // MPTCP does without for an hour, and what comes after would be plain TCP by its own choice. Kernels before 6.12
        // have neither that habit nor the switch.
        let _ = lab.client().sysctl(&[("net.mptcp.blackhole_timeout", "0")]);
        let muzzle = Muzzle::open(lab.wire()?, "p1", lab.proxy(), "a1")?;
        let mut bombs = self.connect(lab, &muzzle)?;
        let began = Instant::now();
        hoarded.honest[1] = thread::scope(|scope| {
            let sender =
                scope.spawn(|| declare(&muzzle, &mut bombs, self.mappings, self.rate, || false));
            let mut all = self.honest(lab, flexcp, self.honest_mb / 10)?;
            while !sender.is_finished() {
                hoarded.look(flexcp)?;
                let next = self.honest(lab, flexcp, self.honest_mb / 10)?;
                all = Pace {
                    connections: all.connections + next.connections,
                    mptcp: all.mptcp + next.mptcp,
                    mbit_s: all.mbit_s + next.mbit_s,
                };
            }
            all.mbit_s /= (all.connections / CLIENTS) as f64;
            anyhow::Ok(all)
        })?;
        hoarded.seconds = began.elapsed().as_secs_f64();
        hoarded.look(flexcp)?;
        let stop = AtomicBool::new(false);
        let stopped = || stop.load(Ordering::Relaxed);
        hoarded.honest[2] = thread::scope(|scope| {
            scope.spawn(|| declare(&muzzle, &mut bombs, u32::MAX, GOING_ON, stopped));
            let held = self.repeated(lab, flexcp);
            stop.store(true, Ordering::Relaxed);
            held
        })?;
        hoarded.look(flexcp)?;
        Ok(hoarded)
    }

    /// The hostile clients, connected and proved.
    fn connect(&self, lab: &Lab, muzzle: &Muzzle) -> Result<Vec<Bomb>> {
        let gateway = lab.client_addr(1, Family::V4);
        lab.proxy()
            .ip(&format!("route add {SPOOFED} via {gateway} dev a1"))?;
        let watch = Watch::start(lab.wire()?, "p1")?;
        let mut dice = Dice::new(1);
        let to = service(lab);
        let connect = |_| Bomb::connect(muzzle, &watch, to, &mut dice);
        (0..self.connections).map(connect).collect()
    }

    /// The same several times: all connections, and the median of their pace.
    fn repeated(&self, lab: &Lab, flexcp: &FlexCp) -> Result<Pace> {
        let pace = |_| self.honest(lab, flexcp, self.honest_mb);
        let mut paces = (0..REPEATED).map(pace).collect::<Result<Vec<_>>>()?;
        paces.sort_by(|a, b| a.mbit_s.total_cmp(&b.mbit_s));
        Ok(Pace {
            connections: paces.iter().map(|pace| pace.connections).sum(),
            mptcp: paces.iter().map(|pace| pace.mptcp).sum(),
            mbit_s: paces[REPEATED / 2].mbit_s,
        })
    }

    /// Transfers of so many megabytes over both links, all at once, both ways.
    fn honest(&self, lab: &Lab, flexcp: &FlexCp, megabytes: u64) -> Result<Pace> {
        let rounds = megabytes * 1_000_000 / CLIENTS / (ROUND_UP + ROUND_DOWN);
        let job = Job {
            rounds: u32::try_from(rounds.max(1))?,
            ..Job::new(Mode::PingPong, ROUND_UP, ROUND_DOWN)
        };
        let client = Client::mptcp(service(lab)).patience(Duration::from_secs(30));
        let before = flexcp.show_stats()?.counter("mp_capable_ack_rx")?;
        let began = Instant::now();
        let reports = client.run_many_in(lab.client(), usize::try_from(CLIENTS)?, &job)?;
        let took = began.elapsed().as_secs_f64();
        for report in &reports {
            if let Some(failure) = &report.failure {
                bail!(
                    "an honest transfer failed: {} ({})",
                    failure.message,
                    failure.during
                );
            }
        }
        let after = flexcp.show_stats()?.counter("mp_capable_ack_rx")?;
        let bytes = u64::from(job.rounds) * (ROUND_UP + ROUND_DOWN) * CLIENTS;
        Ok(Pace {
            connections: CLIENTS,
            mptcp: after - before,
            mbit_s: bytes as f64 * 8.0 / took / 1e6,
        })
    }
}

impl Hoarded {
    /// A look at what FlexCP says, and the kernel of it.
    fn look(&mut self, flexcp: &FlexCp) -> Result<()> {
        let stats = flexcp.show_stats()?;
        let memory = stats.number("gauges.memory_bytes")?;
        let reserved = stats.number("gauges.memory_reserved_bytes")?;
        ensure!(
            stats.number("memory_budget")? == self.budget,
            "FlexCP has another budget than it was given"
        );
        self.memory = self.memory.max(memory);
        self.counted = self.counted.max(memory + reserved);
        self.resident[1] = self.resident[1].max(rss_kib(flexcp.pid())? * 1024);
        self.refused = stats.counter("memory_refused")?;
        self.turned_away = stats.number("causes.plain_syn.memory")?;
        Ok(())
    }

    /// Each aim in words, and whether it is met.
    fn aims(&self) -> [(String, bool); 5] {
        let [before, _, held] = self.honest;
        let grown = self.resident[1].saturating_sub(self.resident[0]);
        let mptcp = |pace: Pace| pace.mptcp == pace.connections;
        [
            (
                "what connections take, with what is reserved, stays within the budget".into(),
                self.counted <= self.budget,
            ),
            (
                format!(
                    "so does the growth of resident memory, with {ALLOCATOR} % for the allocator"
                ),
                grown <= self.budget + self.budget * ALLOCATOR / 100,
            ),
            (
                "the attack got as far as the budget: more was refused".into(),
                self.refused > 0 && self.memory > self.budget / 2,
            ),
            (
                "no honest connection is turned away, and those beside what is held are MPTCP"
                    .into(),
                mptcp(before) && mptcp(held) && self.turned_away == 0,
            ),
            (
                format!(
                    "honest transfers keep {HELD} % of their pace beside what is held and wanted"
                ),
                held.mbit_s * 100.0 >= before.mbit_s * HELD,
            ),
        ]
    }

    /// # Errors
    ///
    /// An aim is missed; names those.
    pub fn judge(&self) -> Result<()> {
        let missed = self.aims().into_iter().filter(|(_, met)| !met);
        let missed: Vec<_> = missed.map(|(aim, _)| aim).collect();
        ensure!(missed.is_empty(), "missed: {}", missed.join("; "));
        Ok(())
    }

    fn write(&self, directory: &Path) -> Result<()> {
        fs::create_dir_all(directory).with_context(|| format!("creating {directory:?}"))?;
        let file = directory.join("hostile-memory.json");
        let text = serde_json::to_string_pretty(self)?;
        fs::write(&file, text).with_context(|| format!("writing {file:?}"))
    }
}

impl fmt::Display for Hoarded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let megabytes = |bytes: u64| bytes as f64 / 1e6;
        writeln!(
            f,
            "{} hostile connections, {} mappings each in {:.0} s\n",
            self.connections, self.mappings, self.seconds
        )?;
        writeln!(f, "| what | MB |\n|---|---|")?;
        for (what, bytes) in [
            ("budget", self.budget),
            ("taken by connections, at most", self.memory),
            ("with what is reserved", self.counted),
            ("resident before", self.resident[0]),
            ("resident at most", self.resident[1]),
        ] {
            writeln!(f, "| {what} | {:.1} |", megabytes(bytes))?;
        }
        writeln!(f, "\n| honest transfers | MPTCP | Mbit/s |\n|---|---|---|")?;
        for (when, pace) in [
            "before",
            "while mappings are declared",
            "while they are held",
        ]
        .iter()
        .zip(self.honest)
        {
            writeln!(
                f,
                "| {when} | {} of {} | {:.0} |",
                pace.mptcp, pace.connections, pace.mbit_s
            )?;
        }
        writeln!(f)?;
        for (aim, met) in self.aims() {
            writeln!(f, "{}: {aim}", if met { "met" } else { "MISSED" })?;
        }
        Ok(())
    }
}

/// Each hostile client declares a mapping, then each its next one, until each has declared so many or all is over.
fn declare(muzzle: &Muzzle, bombs: &mut [Bomb], count: u32, rate: u64, over: impl Fn() -> bool) {
    let began = Instant::now();
    let mut sent = 0;
    for _ in 0..count {
        for bomb in &mut *bombs {
            let due = || {
                u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX) * rate / 1_000_000
            };
            while sent >= due() {
                thread::sleep(Duration::from_micros(200));
            }
            match bomb.next_bare() {
                Some(packet) if !over() => muzzle.send(&packet),
                _ => return,
            };
            sent += 1;
        }
    }
}

fn service(lab: &Lab) -> SocketAddr {
    lab.server_socket(1, Family::V4, PORT)
}

/// The server's port.
const PORT: u16 = 5000;
/// Rate of each access link.
const RATE_MBIT: u32 = 200;
/// Honest connections at once.
const CLIENTS: u64 = 4;
/// So often they are repeated where one pace is compared with another.
const REPEATED: usize = 5;
/// Bytes of a round of theirs.
const ROUND_UP: u64 = 250_000;
const ROUND_DOWN: u64 = 1_000_000;
/// What malloc may take beside what is asked of it, and what the tables take, in percent of the budget.
const ALLOCATOR: u64 = 25;
/// Mappings a second that the hostile clients go on to declare when they have all they can get.
const GOING_ON: u64 = 10_000;
/// Pace that honest transfers keep, in percent: attacker, FlexCP and both ends share two processors.
const HELD: f64 = 80.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Hoarded {
        let pace = |mbit_s| Pace {
            connections: 4,
            mptcp: 4,
            mbit_s,
        };
        Hoarded {
            budget: 64_000_000,
            memory: 50_000_000,
            counted: 56_000_000,
            resident: [10_000_000, 80_000_000],
            refused: 1,
            honest: [pace(180.0), pace(120.0), pace(175.0)],
            ..Hoarded::default()
        }
    }

    fn misses(change: impl FnOnce(&mut Hoarded)) -> usize {
        let mut hoarded = good();
        change(&mut hoarded);
        let missed = hoarded.aims().iter().filter(|(_, met)| !met).count();
        assert_eq!(hoarded.judge().is_err(), missed > 0);
        missed
    }

    #[test]
    fn each_aim_can_be_missed() {
        assert_eq!(misses(|_| {}), 0);
        assert_eq!(misses(|h| h.counted = 64_000_001), 1);
        assert_eq!(misses(|h| h.resident[1] = 91_000_000), 1);
        assert_eq!(misses(|h| h.refused = 0), 1);
        assert_eq!(misses(|h| h.honest[2].mptcp = 3), 1);
        assert_eq!(misses(|h| h.honest[2].mbit_s = 140.0), 1);
    }
}

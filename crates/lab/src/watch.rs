//! What an operator, another program or the hardware does to the kernel's tables under FlexCP, while transfers run: how
//! soon it is put back or told, how soon new connections are MPTCP again, and what becomes of those that live.

mod disturbance;

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use serde::Serialize;
use serde_json::Value;

pub use self::disturbance::{Disturbance, all, named};
use self::disturbance::{Mode, Noticed};
use crate::counters::Oracle;
use crate::daemon::{self, FlexCp};
use crate::process::text;
use crate::topology::{Family, Lab, require_root};
use crate::transfer::{Client, Job, Report, ServeOptions, Server};

/// What to run.
#[derive(Clone, Debug, clap::Args)]
pub struct Watch {
    /// Disturbances to run (default: all)
    names: Vec<String>,
    /// List the disturbances and run nothing
    #[arg(long)]
    list: bool,
    /// Transfers that run meanwhile
    #[arg(long, default_value_t = 50)]
    live: usize,
    /// Where watch.json goes
    #[arg(long, default_value = "lab/results")]
    results: PathBuf,
}

/// What came of one disturbance.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Its name.
    pub disturbance: &'static str,
    /// Whether it is to be put back, or only told.
    pub put_back: bool,
    /// From the disturbance until all was as before, or until it was told, in milliseconds.
    pub noticed_ms: u64,
    /// From then, or from its end if it was only told, until a new connection was MPTCP on all paths.
    pub new_ms: u64,
    /// Live transfers.
    pub live: usize,
    /// Of these, how many ended with an error.
    pub failed: usize,
    /// The longest time that one of the others stood still.
    pub stall_ms: u64,
    /// The longest time that one of those that failed waited for its error: what had come before could be read.
    pub failed_ms: u64,
    /// What missed its aim; empty when all is well.
    pub misses: Vec<String>,
}

/// All rows.
#[derive(Clone, Debug, Serialize)]
pub struct Results {
    /// One for each disturbance.
    pub rows: Vec<Row>,
}

/// A lab with FlexCP in it, and what is done to it.
pub(crate) struct Scene {
    pub(crate) lab: Lab,
    flexcp: FlexCp,
    oracle: Oracle,
    /// What new clients connect to.
    client: Client,
}

impl Watch {
    /// Runs them, prints a table, and writes it as JSON.
    ///
    /// # Errors
    ///
    /// When one misses its aim, or can't be judged.
    pub fn run(&self) -> Result<()> {
        let find = |name: &String| {
            let found = named(name);
            found.with_context(|| format!("there is no disturbance {name}; --list shows them"))
        };
        let disturbances = if self.names.is_empty() {
            all()
        } else {
            self.names.iter().map(find).collect::<Result<_>>()?
        };
        if self.list {
            disturbances.iter().for_each(|one| println!("{}", one.name));
            return Ok(());
        }
        require_root()?;
        let mut rows = vec![];
        for disturbance in &disturbances {
            let row = run(disturbance, self.live)?;
            eprintln!("{row}");
            rows.push(row);
        }
        let results = Results { rows };
        results.write(&self.results)?;
        print!("{results}");
        results.judge()
    }
}

/// Runs one disturbance under `live` transfers.
///
/// # Errors
///
/// When it can't be judged; what is judged and wrong is in [`Row::misses`].
pub fn run(disturbance: &Disturbance, live: usize) -> Result<Row> {
    let lab = Lab::builder().wire(false).build()?;
    let server = Server::start(lab.server(1), ServeOptions::tcp(PORT))?;
    let backend = lab.server_socket(1, Family::V4, PORT);
    let listen = std::net::SocketAddr::new(lab.proxy_addr(1, Family::V4), PORT);
    let (service, to) = match disturbance.mode {
        Mode::Transparent => (daemon::transparent(&lab, &[]), backend),
        Mode::Reverse => {
            let service =
                daemon::reverse("shop", &[listen.to_string()], &[backend.to_string()], &[]);
            (service, listen)
        }
    };
    let flexcp = FlexCp::start(&lab, &daemon::config(&lab, &service))?;
    let oracle = Oracle::start(&lab)?;
    let scene = Scene {
        lab,
        flexcp,
        oracle,
        client: Client::mptcp(to),
    };
    let row = scene.play(disturbance, live);
    let row = row.with_context(|| format!("{}\n{}", disturbance.name, scene.flexcp.log()))?;
    drop(server);
    scene.flexcp.stop()?;
    Ok(row)
}

impl Scene {
    fn play(&self, disturbance: &Disturbance, live: usize) -> Result<Row> {
        let before = self.state()?;
        thread::scope(|scope| {
            let transfers = self.start_transfers(scope, live);
            self.wait_for_joins(live)?;
            let disturbed = Instant::now();
            (disturbance.act)(self)?;
            let noticed = match disturbance.noticed {
                Noticed::PutBack => self.wait_until(disturbed, || {
                    Ok(self.state()? == before && self.status()?["mended_times"] != 0)
                }),
                Noticed::Told(words) => self.wait_until(disturbed, || {
                    let status = self.status()?;
                    Ok(status["problems"].to_string().contains(words))
                }),
            }?;
            if disturbance.lasts > Duration::ZERO {
                thread::sleep(disturbance.lasts);
            }
            let mut ended = disturbed;
            if let Some(end) = disturbance.end {
                ended = Instant::now();
                end(self)?;
                self.wait_until(ended, || {
                    Ok(self.state()? == before && self.status()?["state"] == "ready")
                })?;
            }
            let new = self.wait_until(ended, || self.is_mptcp())?;
            let reports = ended_reports(transfers)?;
            let mut row = Row::new(disturbance, noticed, new);
            row.note(&reports);
            row.judge();
            self.check_offload(disturbance, &mut row)?;
            self.check_asked(&mut row)?;
            Ok(row)
        })
    }

    /// Half of them download at a steady rate, half ask and are answered.
    fn start_transfers<'scope>(
        &'scope self,
        scope: &'scope thread::Scope<'scope, '_>,
        live: usize,
    ) -> Vec<ScopedJoinHandle<'scope, Result<Vec<Report>>>> {
        let seconds = LIVE.as_secs();
        let pause = 10;
        // A client reads its answers, too, at this rate.
        let round = pause + ANSWER * 1000 / RATE;
        let rounds = u32::try_from(seconds * 1000 / round).unwrap_or(1);
        let down = Job::down(seconds * RATE);
        let asking = Job::ping_pong(rounds, ANSWER).pause_ms(pause);
        let halves = [(down, live / 2), (asking, live - live / 2)];
        let halves = halves.into_iter().filter(|(_, count)| *count > 0);
        let start = |(job, count): (Job, usize)| {
            let client = self.client.clone().read_rate(RATE).patience(PATIENCE);
            // The server is sending all the time, not only until it is all on its way.
            let client = client.receive_buffer(BUFFER);
            scope.spawn(move || client.run_many_in(self.lab.client(), count, &job))
        };
        halves.map(start).collect()
    }

    fn wait_for_joins(&self, live: usize) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let joined = self.flexcp.show_stats()?.counter("mp_join_ack_rx")?;
            if joined >= live as u64 {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "{joined} of {live} have joined");
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// How long after `since` it is so.
    fn wait_until(&self, since: Instant, so: impl Fn() -> Result<bool>) -> Result<Duration> {
        loop {
            let done = so()?;
            let after = since.elapsed();
            if done || after > PATIENCE {
                return Ok(after);
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Whether a new connection works, is MPTCP, and has both paths.
    fn is_mptcp(&self) -> Result<bool> {
        let count = || -> Result<[i64; 2]> {
            let mib = self.oracle.client(&self.lab)?;
            Ok(["MPCapableSYNACKRX", "MPJoinSynAckRx"].map(|name| mib.get(name)))
        };
        let before = count()?;
        let client = self.client.clone().patience(Duration::from_secs(1));
        let job = Job::ping_pong(4, 500).pause_ms(30);
        let report = client.run_in(self.lab.client(), &job)?;
        let after = count()?;
        Ok(report.failure.is_none() && before.iter().zip(&after).all(|(a, b)| b > a))
    }

    /// Devices that came back have the offload again, and no other was touched.
    fn check_offload(&self, disturbance: &Disturbance, row: &mut Row) -> Result<()> {
        let status = self.status()?;
        if daemon::offload_is_off() {
            return Ok(());
        }
        let again = status["mended"]["offload"].as_u64().unwrap_or_default();
        let on = status["offload"][0].as_str().unwrap_or_default();
        if again != disturbance.offload_again
            || !["a1", "a2", "srv1"].iter().all(|name| on.contains(name))
        {
            row.misses
                .push(format!("offload {on}, {again} times again"));
        }
        Ok(())
    }

    /// Where packets may have passed by FlexCP, it has asked the ends of its connections.
    fn check_asked(&self, row: &mut Row) -> Result<()> {
        let asked = self.flexcp.show_stats()?.counter("ends_asked")?;
        if (asked != 0) != row.put_back {
            row.misses.push(format!("{asked} ends asked"));
        }
        Ok(())
    }

    /// `flexcp show status --json`
    fn status(&self) -> Result<Value> {
        self.flexcp.show_json("status")
    }

    /// What FlexCP has to see to in the kernel, and the access links.
    fn state(&self) -> Result<String> {
        let ip = |arguments: &str| {
            let mut command = self.lab.proxy().command("ip");
            text(command.args(arguments.split(' ')))
        };
        let mut state = ip("-4 rule")? + &ip("-6 rule")? + &ip("-4 route show table 7300")?;
        // A device that was made anew has another number, and comes last.
        let others = ip("-4 route show table main")? + &ip("-brief -4 addr")?;
        let mut others: Vec<_> = others
            .lines()
            .map(|line| {
                let words = line.split_whitespace();
                let words = words.map(|word| word.split('@').next().unwrap_or(word));
                words.filter(|word| *word != "linkdown").collect::<Vec<_>>()
            })
            .collect();
        others.sort_unstable();
        state += &format!("{others:?}");
        Ok(state)
    }
}

fn ended_reports(transfers: Vec<ScopedJoinHandle<'_, Result<Vec<Report>>>>) -> Result<Vec<Report>> {
    let mut reports = vec![];
    for transfer in transfers {
        let joined = transfer.join().map_err(|_| anyhow!("a client panicked"))?;
        reports.extend(joined?);
    }
    Ok(reports)
}

impl Row {
    fn new(disturbance: &Disturbance, noticed: Duration, new: Duration) -> Self {
        Self {
            disturbance: disturbance.name,
            put_back: matches!(disturbance.noticed, Noticed::PutBack),
            noticed_ms: millis(noticed),
            new_ms: millis(new),
            live: 0,
            failed: 0,
            stall_ms: 0,
            failed_ms: 0,
            misses: vec![],
        }
    }

    fn note(&mut self, reports: &[Report]) {
        self.live = reports.len();
        for report in reports {
            let gap = report.longest_gap_us / 1000;
            if report.failure.is_none() {
                self.stall_ms = self.stall_ms.max(gap);
            } else {
                self.failed += 1;
                self.failed_ms = self.failed_ms.max(gap);
            }
        }
    }

    /// Nothing has missed its aim but clients that wait for an error of theirs.
    pub fn has_left_clients_alone(&self) -> bool {
        self.misses.len() == 1 && self.failed_ms > LIVE_MS
    }

    fn judge(&mut self) {
        let measured = [
            ("noticed", self.noticed_ms, NOTICED_MS),
            ("new connections", self.new_ms, NEW_MS),
            ("stall of live transfers", self.stall_ms, LIVE_MS),
            ("failure of live transfers", self.failed_ms, LIVE_MS),
        ];
        for (what, ms, aim) in measured {
            if ms > aim {
                self.misses.push(format!("{what}: {ms} ms, aim {aim}"));
            }
        }
    }
}

impl Results {
    /// Writes `watch.json` in `directory`.
    ///
    /// # Errors
    ///
    /// It can't be written.
    pub fn write(&self, directory: &Path) -> Result<()> {
        fs::create_dir_all(directory)?;
        let file = directory.join("watch.json");
        let text = serde_json::to_string_pretty(self)?;
        fs::write(&file, text + "\n").with_context(|| file.display().to_string())
    }

    /// Everything within its aim.
    ///
    /// # Errors
    ///
    /// Names what was not.
    pub fn judge(&self) -> Result<()> {
        let missed = self.rows.iter().filter(|row| !row.misses.is_empty());
        let missed: Vec<_> = missed
            .map(|row| format!("{}: {}", row.disturbance, row.misses.join("; ")))
            .collect();
        ensure!(missed.is_empty(), "missed aims:\n{}", missed.join("\n"));
        Ok(())
    }
}

impl fmt::Display for Results {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "| disturbance | put back or told, ms (aim {NOTICED_MS}) | new connections MPTCP, ms (aim {NEW_MS}) | live, failed \
             | longest stall, ms (aim {LIVE_MS}) | waited for the error, ms (aim {LIVE_MS}) | verdict |\n|---|---|---|---|---|---|---|"
        )?;
        self.rows.iter().try_for_each(|row| writeln!(f, "{row}"))
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.misses.is_empty() {
            "passed".to_owned()
        } else {
            format!("**{}**", self.misses.join("; "))
        };
        write!(
            f,
            "| {} | {}{} | {} | {}, {} | {} | {} | {verdict} |",
            self.disturbance,
            if self.put_back { "" } else { "told " },
            self.noticed_ms,
            self.new_ms,
            self.live,
            self.failed,
            self.stall_ms,
            self.failed_ms,
        )
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

const PORT: u16 = 5000;
/// Bytes a second of a download.
const RATE: u64 = 200_000;
/// Bytes of a question, and of its answer.
const ANSWER: u64 = 2000;
/// Bytes of data that a client has room for.
const BUFFER: usize = 64 << 10;
/// How long the transfers take, undisturbed.
const LIVE: Duration = Duration::from_secs(8);
/// What takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(20);

const NOTICED_MS: u64 = 1000;
const NEW_MS: u64 = 3000;
/// Going on, or failing at once: some retransmission timeouts at most.
const LIVE_MS: u64 = 5000;

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> Row {
        Row {
            disturbance: "rules flushed",
            put_back: true,
            noticed_ms: 1000,
            new_ms: 3000,
            live: 50,
            failed: 0,
            stall_ms: 5000,
            failed_ms: 0,
            misses: vec![],
        }
    }

    fn passes(mut row: Row) -> bool {
        row.judge();
        Results { rows: vec![row] }.judge().is_ok()
    }

    #[test]
    fn each_aim_counts() {
        assert!(passes(row()));
        let noticed_ms = 1001;
        assert!(!passes(Row {
            noticed_ms,
            ..row()
        }));
        let new_ms = 3001;
        assert!(!passes(Row { new_ms, ..row() }));
        let stall_ms = 5001;
        assert!(!passes(Row { stall_ms, ..row() }));
        let failed_ms = 5001;
        assert!(!passes(Row { failed_ms, ..row() }));
    }

    #[test]
    fn clients_that_are_left_alone_are_all_that_missed() {
        for (failed_ms, stall_ms, alone) in [(5001, 0, true), (5001, 5001, false), (0, 5001, false)]
        {
            let mut row = Row {
                failed_ms,
                stall_ms,
                ..row()
            };
            row.judge();
            assert_eq!(row.has_left_clients_alone(), alone);
        }
    }

    #[test]
    fn transfers_that_fail_count_apart() {
        let failed = Report {
            longest_gap_us: 2_500_000,
            failure: Some(crate::transfer::Failure::new("read", &anyhow!("reset"))),
            ..Report::default()
        };
        let stalled = Report {
            longest_gap_us: 700_000,
            ..Report::default()
        };
        let mut row = row();
        row.stall_ms = 0;
        row.note(&[failed, stalled]);
        assert_eq!((row.live, row.failed), (2, 1));
        assert_eq!((row.failed_ms, row.stall_ms), (2500, 700));
    }

    #[test]
    fn table_has_a_column_for_each_aim() {
        let text = Results { rows: vec![row()] }.to_string();
        let columns = |line: &str| line.matches('|').count();
        assert!(text.lines().all(|line| columns(line) == 8), "{text}");
    }
}

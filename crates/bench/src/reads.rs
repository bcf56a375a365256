//! What looking costs: 64 busy connections among 50,000, alone, under a reader that asks for the statistics ten times a
//! second (`flexcp show stats --watch 0.1`), and under one that lists all connections every ten seconds.
//!
//! There is one lab, and by turns one of the three is measured in it: what differs is the reader alone. Whether a look
//! evicts flow entries shows behind that, second by second: nobody looks, or somebody does without a pause.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use flexcp_lab::statistics::median;
use flexcp_lab::{FlexCp, Sweep, require_root, sweep, transfer::raise_file_limit};

use crate::circumstances;
use crate::load::{Exchange, Load};
use crate::measure::MEGA;
use crate::plan::{Plan, turns};
use crate::record::Results;
use crate::rig::{Rig, Setting, Subject};

/// The three, by the subjects under whose names their figures stand.
const CONDITIONS: [Subject; 3] = [Subject::FlexCp, Subject::Watched, Subject::Listed];

/// The one cell.
const CELL: &str = "down/64x1-reads";

/// Connections that are busy.
const BUSY: usize = 64;

/// Between two questions for the statistics.
const STATS_EVERY: Duration = Duration::from_millis(100);

/// A time in which somebody looks without a pause, or nobody does.
const SLOT: Duration = Duration::from_secs(1);

/// Before what counts: slow start, and until connections are installed.
const WARM: Duration = Duration::from_secs(2);

impl Plan {
    /// Measures what looking costs; `say` and `keep` as in [`run`](Self::run). [`idle`](Self::idle) connections are open
    /// beside the busy ones. Each run of a load has one list in it.
    ///
    /// # Errors
    /// When this machine can't run it, or any part of it fails.
    pub fn run_reads(
        &self,
        say: impl Fn(&str),
        keep: impl Fn(&Results) -> Result<()>,
    ) -> Result<Results> {
        require_root()?;
        sweep(Sweep::Leftovers);
        raise_file_limit()?;
        let mut results = Results {
            circumstances: circumstances::gather(self)?,
            ..Results::default()
        };
        let setting = Setting {
            gso: true,
            in_order: true,
            congestion: self.congestion.clone(),
            objects: vec![MEGA],
            addresses: 0,
            workers: 1,
            plain: false,
        };
        let mut rig = Rig::build(Subject::FlexCp, &setting)?;
        rig.verify(MEGA)?;
        say(&format!("opens {} connections", self.idle));
        rig.crowd_in(self.idle)?;
        let listed = count_listed(rig.flexcp()?)?;
        ensure!(
            listed >= self.idle,
            "a list of {listed} connections, where {} are open",
            self.idle
        );
        let mut foreign = vec![];
        for round in 0..self.rounds {
            for at in turns(CONDITIONS.len(), round) {
                let subject = CONDITIONS[at];
                let run = self.one(&rig, subject)?;
                foreign.push(run.foreign);
                let mut said = format!("{}/{} {}:", round + 1, self.rounds, subject.name());
                for (metric, unit, value) in run.figures {
                    said.push_str(&format!("  {metric} {value:.3} {unit}"));
                    results.add(&format!("{metric}/{CELL}"), Some(subject), unit, value);
                }
                say(&said);
            }
            results.circumstances.foreign_median = median(&foreign);
            results.circumstances.foreign_max = foreign.iter().copied().fold(0.0, f64::max);
            keep(&results)?;
        }
        say("evictions, second by second");
        self.evictions(&rig, &mut results)?;
        keep(&results)?;
        Ok(results)
    }

    /// Evictions by who looks.
    fn evictions(&self, rig: &Rig, results: &mut Results) -> Result<()> {
        let flexcp = rig.flexcp()?;
        let slots = self.rounds * CONDITIONS.len();
        // A list that has been begun is told to its end.
        let time = 2 * SLOT * u32::try_from(slots)?;
        let seen = thread::scope(|scope| {
            let looks = scope.spawn(|| {
                thread::sleep(WARM);
                let slots = 0..slots;
                let looked = slots.map(|slot| look(flexcp, CONDITIONS[slot % CONDITIONS.len()]));
                looked.collect::<Result<Vec<_>>>()
            });
            let outcome = rig.load(&Self::load(rig, time), 1);
            let looks = looks.join().map_err(|_| anyhow!("the reader panicked"))?;
            outcome.and(looks)
        })?;
        for (slot, evicted) in seen.into_iter().enumerate() {
            let subject = CONDITIONS[slot % CONDITIONS.len()];
            let name = format!("evicted/{CELL}");
            results.add(&name, Some(subject), "entries/1000 packets", evicted);
        }
        Ok(())
    }

    /// The busy connections.
    fn load(rig: &Rig, time: Duration) -> Load {
        Load {
            to: rig.target(Exchange::Get(MEGA)),
            from: vec![],
            proto: rig.proto(),
            connections: BUSY,
            exchange: Exchange::Get(MEGA),
            reconnect: false,
            warm: WARM,
            time,
            enough: None,
        }
    }

    /// One run of the load, with its reader beside it.
    #[allow(clippy::cast_precision_loss, reason = "bytes of a few seconds")]
    fn one(&self, rig: &Rig, subject: Subject) -> Result<One> {
        let flexcp = rig.flexcp()?;
        let time = Duration::from_secs_f64(self.seconds);
        let load = Self::load(rig, time);
        let over = AtomicBool::new(false);
        let (outcome, read) = thread::scope(|scope| {
            let reader = scope.spawn(|| read(flexcp, subject, time, &over));
            let outcome = rig.load(&load, 1);
            over.store(true, Ordering::Relaxed);
            let read = reader.join().map_err(|_| anyhow!("the reader panicked"))?;
            anyhow::Ok((outcome?, read?))
        })?;
        ensure!(
            outcome.failures == 0,
            "{} failures: {}",
            outcome.failures,
            outcome.failure.as_deref().unwrap_or_default()
        );
        let rate = outcome.bytes as f64 / 1e9 / outcome.cpu.wall;
        let mut figures = vec![
            ("throughput", "GB/s", rate),
            ("cpu", "s/GB", outcome.cpu.ours / outcome.cpu.wall / rate),
        ];
        if subject != Subject::FlexCp {
            figures.push(("reader-client", "CPU s", read.client));
            figures.push(("reader-daemon", "CPU s", read.daemon));
            figures.push(("reads", "", read.answers));
            if let Some(took) = read.took {
                figures.push(("read-takes", "ms", took * 1e3));
            }
        }
        Ok(One {
            figures,
            foreign: outcome.cpu.foreign / outcome.cpu.wall,
        })
    }
}

/// What a run gave.
struct One {
    figures: Vec<(&'static str, &'static str, f64)>,
    /// CPUs that others kept busy meanwhile.
    foreign: f64,
}

/// What the reader saw, and what it took.
struct Read {
    /// CPU seconds of the processes that asked, and of the daemon's threads that answered.
    client: f64,
    daemon: f64,
    /// How many answers it got.
    answers: f64,
    /// How long the last took, in seconds, where each has a process of its own.
    took: Option<f64>,
}

/// The reader of one run: it begins with what counts, and ends before it.
fn read(flexcp: &FlexCp, subject: Subject, time: Duration, over: &AtomicBool) -> Result<Read> {
    thread::sleep(WARM);
    let begin = Instant::now();
    let end = begin + time.mul_f64(0.95);
    let cpu = Cpu::now(flexcp)?;
    let (mut answers, mut took) = (0.0, None);
    match subject {
        Subject::Watched => answers = watch(flexcp, end, over)?,
        Subject::Listed => {
            // Well inside.
            thread::sleep(time.mul_f64(0.1));
            took = Some(ask(flexcp, "connections")?);
            answers = 1.0;
        }
        _ => {}
    }
    let used = Cpu::now(flexcp)?;
    Ok(Read {
        client: used.client - cpu.client,
        daemon: used.daemon - cpu.daemon,
        answers,
        took,
    })
}

/// Looks at the statistics every [`STATS_EVERY`] until `end`, or until it is `over`; how many answers came.
fn watch(flexcp: &FlexCp, end: Instant, over: &AtomicBool) -> Result<f64> {
    let every = STATS_EVERY.as_secs_f64().to_string();
    let mut command = flexcp.asking(&["show", "stats", "--json", "--watch", &every]);
    let mut reader = command.stdout(Stdio::piped()).spawn()?;
    let answers = BufReader::new(reader.stdout.take().context("no pipe")?).lines();
    let mut count = 0.0;
    for answer in answers {
        ensure!(!answer?.is_empty(), "an empty answer");
        count += 1.0;
        if Instant::now() >= end || over.load(Ordering::Relaxed) {
            break;
        }
    }
    reader.kill()?;
    reader.wait()?;
    Ok(count)
}

/// Looks once; how long that took, in seconds.
fn ask(flexcp: &FlexCp, what: &str) -> Result<f64> {
    let began = Instant::now();
    let mut command = flexcp.asking(&["show", what, "--json"]);
    let status = command.stdout(Stdio::null()).status()?;
    ensure!(status.success(), "show {what}: {status}");
    Ok(began.elapsed().as_secs_f64())
}

/// Looks for a while without a pause, or not at all; flow entries that were evicted meanwhile, for a thousand packets.
fn look(flexcp: &FlexCp, subject: Subject) -> Result<f64> {
    let end = Instant::now() + SLOT;
    let before = entries(flexcp)?;
    while Instant::now() < end {
        match subject {
            Subject::Watched => drop(ask(flexcp, "stats")?),
            Subject::Listed => drop(ask(flexcp, "connections")?),
            _ => thread::sleep(end.saturating_duration_since(Instant::now())),
        }
    }
    let after = entries(flexcp)?;
    ensure!(after.1 > before.1, "no packet has passed");
    Ok((after.0 - before.0) / (after.1 - before.1) * 1000.0)
}

/// Flow entries evicted and packets that came in so far.
fn entries(flexcp: &FlexCp) -> Result<(f64, f64)> {
    let stats = flexcp.show_stats()?;
    let [evicted, packets] = [
        stats.counter("offload_evicted")?,
        stats.counter("packets_in")?,
    ];
    Ok((evicted as f64, packets as f64))
}

/// Connections of a whole list.
fn count_listed(flexcp: &FlexCp) -> Result<usize> {
    let view = flexcp.show_connections()?;
    view["connections"]
        .as_array()
        .map(Vec::len)
        .context("no list")
}

/// CPU seconds so far.
struct Cpu {
    /// Of processes that this one has started and that have ended.
    client: f64,
    /// Of the daemon, but for its threads that live as long as it does: what is left are those that serve one client each.
    daemon: f64,
}

impl Cpu {
    fn now(flexcp: &FlexCp) -> Result<Self> {
        let pid = flexcp.pid();
        let mut lasting = 0.0;
        for task in fs::read_dir(format!("/proc/{pid}/task"))? {
            // One that serves a client may have ended meanwhile.
            let task = task?.path();
            let read = |file: &str| fs::read_to_string(task.join(file)).unwrap_or_default();
            if read("comm").trim() != "control" {
                lasting += ticks(&read("stat"), 11..13).unwrap_or(0.0);
            }
        }
        let of = |pid: &str, fields| {
            let line = fs::read_to_string(format!("/proc/{pid}/stat"))?;
            ticks(&line, fields).with_context(|| format!("/proc/{pid}/stat"))
        };
        Ok(Self {
            client: of("self", 13..15)?,
            daemon: of(&pid.to_string(), 11..13)? - lasting,
        })
    }
}

/// The sum of some fields of a line of `/proc/<pid>/stat`, counted behind the name, in seconds.
#[allow(clippy::cast_precision_loss, reason = "ticks of a few hours")]
fn ticks(line: &str, fields: std::ops::Range<usize>) -> Option<f64> {
    // The name is in parentheses and may hold anything.
    let all: Vec<&str> = line.rsplit_once(')')?.1.split_whitespace().collect();
    let some = all.get(fields)?.iter();
    let sum: u64 = some
        .map(|field| field.parse::<u64>().ok())
        .sum::<Option<_>>()?;
    Some(sum as f64 / rustix::param::clock_ticks_per_second() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(clippy::float_cmp, reason = "whole numbers")]
    fn ticks_of_a_line_with_an_odd_name() {
        let line = "42 (a b) c) S 7 42 42 0 -1 2097152 1 2 3 4 10 20 30 40 20 0 1 0 5 6 77";
        let hertz = rustix::param::clock_ticks_per_second() as f64;
        assert_eq!(ticks(line, 11..13), Some(30.0 / hertz));
        assert_eq!(ticks(line, 13..15), Some(70.0 / hertz));
        assert_eq!(ticks("", 11..13), None);
    }
}

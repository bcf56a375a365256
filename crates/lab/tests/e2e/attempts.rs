//! How a case is run: its attempts, its time limit, and what is told about it.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};
use std::{env, fs, panic, thread};

use anyhow::{Context as _, Result, anyhow};
use flexcp_lab::repeat::{self, ATTEMPTS, Line, RECORD, ROUND};
use flexcp_lab::{Complaints, Starvation, require_root};
use libtest_mimic::{Failed, Trial};
use serde_json::json;

/// A test whose function is a case.
///
/// It fails, with the reason, when we are not root, and when it takes too long; a case that hangs is left behind on
/// its thread. There is one attempt, and a second one only if nothing failed but counters that the kernels at both ends
/// move by themselves ([`Complaints::worth_another_attempt`]), or if there is no FlexCP in the case ([`KERNELS_ALONE`]), or if
/// its client falls back in mid-stream ([`FALLS_BACK_MIDWAY`]); it is counted, and told with how long threads waited for a processor.
pub(crate) fn trial(group: &str, name: &str, case: fn() -> Result<()>) -> Trial {
    let name = format!("{group}::{name}");
    let breaks_off = group == KERNELS_ALONE || FALLS_BACK_MIDWAY.contains(&&*name);
    Trial::test(name.clone(), move || {
        require_root().map_err(|error| format!("{error:#}"))?;
        let began = Instant::now();
        let mut line = Line {
            case: name,
            round: number(ROUND).unwrap_or(1),
            passed: true,
            attempts: 0,
            seconds: 0.0,
            starved_ms: 0,
            reason: String::new(),
        };
        let outcome = attempts(case, &mut line, breaks_off);
        line.passed = outcome.is_ok();
        line.seconds = began.elapsed().as_secs_f64();
        note(&line).map_err(|error| Failed::from(format!("{error:#}")))?;
        outcome.map_err(|error| Failed::from(tell(&error)))
    })
}

/// The group in which MPTCP goes from kernel to kernel: a transfer that these break off by themselves, as Linux 6.18 does
/// now and then with data both ways, is no failure of FlexCP's.
const KERNELS_ALONE: &str = "lab";

/// Cases in which options go in mid-stream. A client that has got data a second time under fresh numbers by then is reset, as
/// it can't fall back; and a Linux 6.18 client that has fallen back loses its place where a segment overlaps another in part,
/// although all that TCP brings it is right. Either happens once in some thousand downloads.
const FALLS_BACK_MIDWAY: [&str; 3] = [
    "fallback::option_stripped_from_all_down_after_some_bytes",
    "fallback::option_stripped_from_all_both_ways_at_once",
    "fallback::option_stripped_from_mappings_down",
];

fn attempts(case: fn() -> Result<()>, line: &mut Line, breaks_off: bool) -> Result<()> {
    let allowed = number(ATTEMPTS).unwrap_or(2);
    loop {
        let starvation = Starvation::measure()?;
        let outcome = attempt(case);
        let starved = starvation.longest();
        line.attempts += 1;
        line.starved_ms = u64::try_from(starved.as_millis()).unwrap_or(u64::MAX);
        let Err(error) = outcome else { return Ok(()) };
        line.reason = tell(&error);
        let worth_another = breaks_off || Complaints::worth_another_attempt(&error);
        if line.attempts >= allowed.min(2) || !worth_another {
            return Err(error);
        }
        eprintln!(
            "{}: second attempt, threads waited {starved:?}: {}",
            line.case, line.reason
        );
    }
}

fn attempt(case: fn() -> Result<()>) -> Result<()> {
    let (sender, outcome) = mpsc::channel();
    thread::spawn(move || {
        let outcome = panic::catch_unwind(case);
        let _ = sender.send(outcome.unwrap_or_else(|_| Err(anyhow!("panicked"))));
    });
    let outcome = outcome.recv_timeout(LIMIT);
    outcome.unwrap_or_else(|_| Err(anyhow!("hangs ({LIMIT:?})")))
}

/// What went wrong first, then where.
fn tell(error: &anyhow::Error) -> String {
    let causes: Vec<_> = error.chain().map(ToString::to_string).collect();
    causes.into_iter().rev().collect::<Vec<_>>().join("\n")
}

/// What has been run so far.
static LINES: Mutex<Vec<Line>> = Mutex::new(Vec::new());

fn lines() -> MutexGuard<'static, Vec<Line>> {
    LINES.lock().unwrap_or_else(PoisonError::into_inner)
}

fn note(line: &Line) -> Result<()> {
    let mut lines = lines();
    lines.push(line.clone());
    match env::var_os(RECORD) {
        Some(file) => line.append(Path::new(&file)),
        None => Ok(()),
    }
}

/// Leaves out what a broken run of the same round has done already.
pub(crate) fn without_those_done(trials: Vec<Trial>) -> Result<Vec<Trial>> {
    let (Some(file), Some(round)) = (env::var_os(RECORD), number(ROUND)) else {
        return Ok(trials);
    };
    let mut done = repeat::read(Path::new(&file))?;
    done.retain(|line| line.round == round);
    let is_open = |trial: &Trial| done.iter().all(|line| line.case != trial.name());
    Ok(trials.into_iter().filter(is_open).collect())
}

/// Says what needed a second attempt and what failed, and of the reasons the first lines, at the very end, where it is
/// looked for; leaves the same as JSON.
pub(crate) fn close(alarms: &[String], file: &str) -> Result<()> {
    let lines = lines();
    let again: Vec<_> = lines.iter().filter(|line| line.attempts > 1).collect();
    println!(
        "{} cases, {} of them at a second attempt",
        lines.len(),
        again.len()
    );
    for line in &again {
        let waited = line.starved_ms;
        println!(
            "{}: a second attempt, threads waited {waited} ms: {}",
            line.case,
            first(line, 1)
        );
    }
    for line in lines.iter().filter(|line| !line.passed) {
        eprintln!("{}: {}", line.case, first(line, 12));
    }
    for alarm in alarms {
        eprintln!("{alarm}");
    }
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(file);
    let summary = json!({
        "cases": lines.len(),
        "second_attempts": again.len(),
        "failed": lines.iter().filter(|line| !line.passed).count(),
        "alarms": alarms,
        "runs": *lines,
    });
    // The machine that runs the cases need not be the one that they were built on.
    fs::create_dir_all(env!("CARGO_TARGET_TMPDIR"))
        .and_then(|()| fs::write(&file, format!("{summary:#}")))
        .with_context(|| format!("writing {}", file.display()))
}

fn first(line: &Line, count: usize) -> String {
    line.reason
        .lines()
        .take(count)
        .collect::<Vec<_>>()
        .join("\n  ")
}

fn number(variable: &str) -> Option<u32> {
    env::var(variable).ok()?.parse().ok()
}

/// No case takes longer than this, also on a busy machine.
const LIMIT: Duration = Duration::from_secs(150);

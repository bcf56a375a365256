//! The end-to-end tests again and again, one attempt each: how often does a case fail?
//!
//! Each case of each round leaves a line of JSON as it ends, so that a run that was broken off goes on where it was.
//! Lines belong to a commit: what was run before a change says nothing about what is after it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::process::text;
use crate::topology::require_root;

/// File to which the tests append a line for each case.
pub const RECORD: &str = "FLEXCP_E2E_RECORD";

/// Number of the round; cases that have a line of this round already are not run again.
pub const ROUND: &str = "FLEXCP_E2E_ROUND";

/// Attempts of a case, at most; 1 forbids a second one.
pub const ATTEMPTS: &str = "FLEXCP_E2E_ATTEMPTS";

/// A case of a round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// Group and name.
    pub case: String,
    /// From 1.
    pub round: u32,
    /// Whether all was as it has to be.
    pub passed: bool,
    /// Attempts that it took.
    pub attempts: u32,
    /// How long it took.
    pub seconds: f64,
    /// The longest time that a thread waited for a processor meanwhile, in milliseconds.
    pub starved_ms: u64,
    /// What was wrong, of the last attempt or of the one before it; empty when nothing was.
    pub reason: String,
}

impl Line {
    /// Appends it to a file, whole or not at all.
    pub fn append(&self, file: &Path) -> Result<()> {
        // A line that a broken run left without its end must not swallow this one.
        let line = format!("\n{}\n", serde_json::to_string(self)?);
        let mut file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(file)
            .with_context(|| format!("opening {file:?}"))?;
        Ok(file.write_all(line.as_bytes())?)
    }
}

/// All lines of a file; none when there is no file. What a broken run left unfinished is passed over.
pub fn read(file: &Path) -> Result<Vec<Line>> {
    if !file.exists() {
        return Ok(vec![]);
    }
    let text = fs::read_to_string(file).with_context(|| format!("reading {file:?}"))?;
    Ok(text
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect())
}

/// Rounds of the end-to-end tests.
#[derive(Clone, Debug, clap::Args)]
pub struct Repeat {
    /// Cases whose name has this in it; all without it
    pub filter: Option<String>,
    /// How many rounds
    #[arg(long, default_value_t = 20)]
    pub rounds: u32,
    /// Where results are kept, a directory for each commit
    #[arg(long, default_value = "target/e2e-repeat")]
    pub results: PathBuf,
}

/// What came of all rounds.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// The commit that was tested; of a changed tree with a digest of the change.
    pub commit: String,
    /// Rounds that were asked for.
    pub rounds: u32,
    /// Cases that every round has to have.
    pub cases: usize,
    /// Runs of a case that have ended.
    pub runs: usize,
    /// Failures by case.
    pub failures: BTreeMap<String, Vec<Line>>,
}

impl Repeat {
    /// Runs what is missing, prints what came of all, and judges it.
    pub fn run(&self) -> Result<()> {
        let summary = self.summary()?;
        println!("{summary}");
        summary.judge()
    }

    fn summary(&self) -> Result<Summary> {
        require_root()?;
        let commit = commit()?;
        let directory = self.results.join(&commit);
        fs::create_dir_all(&directory).with_context(|| format!("creating {directory:?}"))?;
        let record = directory.canonicalize()?.join("runs.jsonl");
        let cases = self.cases()?;
        ensure!(!cases.is_empty(), "no case has such a name");
        for round in 1..=self.rounds {
            println!("round {round} of {}", self.rounds);
            // Its exit code says that a case failed, and so do the lines.
            let mut tests = self.tests();
            tests.env(RECORD, &record).env(ROUND, round.to_string());
            tests.env(ATTEMPTS, "1").status().context("cargo test")?;
        }
        let summary = Summary::of(commit, self.rounds, &cases, &read(&record)?);
        let file = directory.join("summary.json");
        fs::write(&file, serde_json::to_string_pretty(&summary)?)
            .with_context(|| format!("writing {file:?}"))?;
        Ok(summary)
    }

    fn tests(&self) -> Command {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command.args(["test", "--release", "--locked", "--quiet"]);
        command.args(["-p", "flexcp-lab", "--test", "e2e", "--"]);
        command.args(&self.filter);
        command
    }

    /// Names of all cases.
    fn cases(&self) -> Result<BTreeSet<String>> {
        let mut list = self.tests();
        let listed = text(list.arg("--list"))?;
        let names = listed
            .lines()
            .filter_map(|line| line.strip_suffix(": test"));
        Ok(names.map(str::to_owned).collect())
    }
}

impl Summary {
    /// Of the lines of these rounds and cases.
    pub fn of(commit: String, rounds: u32, cases: &BTreeSet<String>, lines: &[Line]) -> Self {
        // The last line of a case in a round counts; there is one unless somebody has tampered with them.
        let mut runs = BTreeMap::new();
        for line in lines {
            if line.round <= rounds && cases.contains(&line.case) {
                runs.insert((line.round, &line.case), line);
            }
        }
        let mut failures = BTreeMap::<_, Vec<_>>::new();
        for line in runs.values().filter(|line| !line.passed) {
            failures
                .entry(line.case.clone())
                .or_default()
                .push((*line).clone());
        }
        Self {
            commit,
            rounds,
            cases: cases.len(),
            runs: runs.len(),
            failures,
        }
    }

    /// Runs of a case that failed.
    pub fn failed(&self) -> usize {
        self.failures.values().map(Vec::len).sum()
    }

    /// The aim: every case has run in every round, and one run failed at most.
    pub fn judge(&self) -> Result<()> {
        let wanted = self.cases * self.rounds as usize;
        ensure!(
            self.runs == wanted,
            "{} of {wanted} runs have ended",
            self.runs
        );
        let failed = self.failed();
        ensure!(
            failed <= AIM,
            "{failed} of {wanted} runs failed; the aim is {AIM} at most"
        );
        Ok(())
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        if !self.failures.is_empty() {
            text.push_str("| case | failed | rounds | first reason |\n|---|---|---|---|\n");
        }
        for (case, lines) in &self.failures {
            let rounds: Vec<_> = lines.iter().map(|line| line.round.to_string()).collect();
            let reason = lines.first().map_or("", |line| &line.reason);
            let reason = reason.lines().next().unwrap_or_default();
            writeln!(
                text,
                "| {case} | {} | {} | {reason} |",
                lines.len(),
                rounds.join(" ")
            )?;
        }
        write!(
            f,
            "{text}{} runs of {} cases in {} rounds of {}: {} failed, {AIM} may",
            self.runs,
            self.cases,
            self.rounds,
            self.commit,
            self.failed()
        )
    }
}

/// The commit of the working tree; with changes a digest of them as well.
fn commit() -> Result<String> {
    let head = text(Command::new("git").args(["rev-parse", "HEAD"]))?;
    let head = head.trim();
    let change = text(Command::new("git").args(["diff", "HEAD"]))?;
    if change.is_empty() {
        return Ok(head.to_owned());
    }
    let digest = Sha256::digest(change.as_bytes());
    let mut commit = format!("{head}-");
    for byte in &digest[..4] {
        let _ = write!(commit, "{byte:02x}");
    }
    Ok(commit)
}

/// Runs that may fail, of all rounds.
const AIM: usize = 1;

#[cfg(test)]
mod tests {
    use super::*;

    fn line(case: &str, round: u32, passed: bool) -> Line {
        Line {
            case: case.to_owned(),
            round,
            passed,
            attempts: 1,
            seconds: 1.0,
            starved_ms: 0,
            reason: if passed {
                String::new()
            } else {
                "wrong bytes\nmore".to_owned()
            },
        }
    }

    fn summary(lines: &[Line]) -> Summary {
        let cases = ["a::x", "a::y"].map(str::to_owned).into();
        Summary::of("c0ffee".to_owned(), 2, &cases, lines)
    }

    #[test]
    fn one_failure_of_all_rounds_meets_the_aim() {
        let mut lines = vec![line("a::x", 1, false), line("a::y", 1, true)];
        lines.extend([line("a::x", 2, true), line("a::y", 2, true)]);
        let one = summary(&lines);
        assert!(one.judge().is_ok());
        let said = one.to_string();
        assert!(said.contains("| a::x | 1 | 1 | wrong bytes |"), "{said}");
        lines[2].passed = false;
        let error = summary(&lines).judge().expect_err("two failed");
        assert!(error.to_string().contains("2 of 4 runs failed"), "{error}");
    }

    #[test]
    fn round_that_is_not_complete_is_no_success() {
        let lines = [
            line("a::x", 1, true),
            line("a::y", 1, true),
            line("a::x", 2, true),
        ];
        let error = summary(&lines).judge().expect_err("one is missing");
        assert!(error.to_string().contains("3 of 4 runs"), "{error}");
    }

    #[test]
    fn lines_of_other_cases_and_rounds_do_not_count() {
        let lines = [line("a::x", 3, false), line("b::z", 1, false)];
        assert_eq!((summary(&lines).runs, summary(&lines).failed()), (0, 0));
    }

    #[test]
    fn file_that_was_broken_off_is_read_up_to_there() {
        let file = std::env::temp_dir().join(format!("flexcp-repeat-{}", std::process::id()));
        line("a::x", 1, true).append(&file).expect("writable");
        line("a::y", 1, false).append(&file).expect("writable");
        let whole = fs::read_to_string(&file).expect("readable");
        fs::write(&file, &whole[..whole.len() - 9]).expect("writable");
        assert_eq!(read(&file).expect("readable"), [line("a::x", 1, true)]);
        fs::remove_file(&file).expect("there");
    }
}

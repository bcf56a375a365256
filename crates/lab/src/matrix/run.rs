//! One cell, from its lab to its outcome.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde::Serialize;
use serde_json::Value;

use super::cell::Cell;
use super::rows::Verdict;
use crate::counters::{Complaints, End, Expect, Mib, Oracle, REORDERED_OR_RENEGED, WINDOW_OVERRUN};
use crate::daemon::{self, FlexCp};
use crate::fault::Direction;
use crate::topology::Lab;
use crate::transfer::{Client, Job, Report, ServeOptions, Server};
use crate::wirecheck::WireCheck;

/// What came of a cell.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Its name.
    pub cell: String,
    /// The seed that gives the same luck again.
    pub seed: u64,
    /// Faults of the first link, up and down.
    pub faults: [String; 2],
    /// Faults of the last link, up and down.
    pub faults_last: [String; 2],
    /// Whether all was as it has to be.
    pub passed: bool,
    /// What was not; empty when it passed.
    pub detail: String,
    /// What was wrong at the first attempt, when nothing but counters were and there was a second.
    pub first_attempt: Option<String>,
    /// Bytes that arrived, up and down together.
    pub bytes: u64,
    /// How the transfer ended, if with an error (which the row may allow).
    pub ended: Option<String>,
    /// Longest time without a byte at the client, in milliseconds.
    pub longest_gap_ms: u64,
    /// Time of the transfer, in milliseconds.
    pub millis: u64,
    /// The client's counters that tell something and moved.
    pub client: Option<Mib>,
    /// The server's.
    pub server: Option<Mib>,
    /// What the emulated links did, by link.
    pub links: Vec<Value>,
}

/// Runs a cell in a lab of its own. With a directory for `captures`, those of every interface of the
/// proxy are held against the rules of the wire, and left there when the cell fails. When only counters are wrong it has a second attempt.
pub fn run(cell: &Cell, seed: u64, captures: Option<&Path>) -> Outcome {
    let ends = |link| [Direction::Up, Direction::Down].map(|way| cell.faults(link, way));
    let mut outcome = Outcome {
        cell: cell.name(),
        seed,
        faults: ends(1),
        faults_last: ends(cell.subflows),
        passed: false,
        detail: String::new(),
        first_attempt: None,
        bytes: 0,
        ended: None,
        longest_gap_ms: 0,
        millis: 0,
        client: None,
        server: None,
        links: vec![],
    };
    let mut result = attempt(cell, seed, captures, &mut outcome);
    if let Err(error) = &result
        && error.is::<Complaints>()
    {
        // The kernels of a busy machine move one on their own now and then; FlexCP errs again.
        outcome.first_attempt = Some(format!("{error:#}"));
        outcome.links.clear();
        result = attempt(cell, seed, captures, &mut outcome);
    }
    match result {
        Ok(()) => outcome.passed = true,
        Err(error) => outcome.detail = format!("{error:#}"),
    }
    outcome
}

fn attempt(cell: &Cell, seed: u64, captures: Option<&Path>, outcome: &mut Outcome) -> Result<()> {
    let lab = cell.lab(seed).build()?;
    let Some(directory) = captures else {
        return transfer(cell, seed, &lab, outcome);
    };
    let capture = lab.capture(&cell.name().replace('/', "-"))?;
    let result = transfer(cell, seed, &lab, outcome);
    let files = capture.stop()?;
    let result = result.and_then(|()| judge_wire(cell, &files));
    if result.is_err() {
        fs::create_dir_all(directory)?;
        for file in files {
            let name = file.file_name().context("a capture without a name")?;
            fs::copy(&file, directory.join(name))?;
        }
    }
    result
}

/// The rules of the wire, on the captures of a cell; the last is of the server's side.
fn judge_wire(cell: &Cell, files: &[PathBuf]) -> Result<()> {
    let Some((server, client)) = files.split_last() else {
        return Ok(());
    };
    let check = WireCheck {
        client: client.to_vec(),
        server: vec![server.clone()],
        offloads_off: !cell.offloads,
    };
    check.run()?.ok()
}

fn transfer(cell: &Cell, seed: u64, lab: &Lab, outcome: &mut Outcome) -> Result<()> {
    let server = Server::start(lab.server(1), ServeOptions::tcp(PORT))?;
    let services = daemon::transparent(lab, &[]);
    let timeouts = "[timeouts]\nlinger = \"600ms\"\nhalf_open = \"3s\"\nrejoin = \"5s\"\n\n";
    let config = daemon::config(lab, &format!("{timeouts}{services}"));
    let mut flexcp = FlexCp::start(lab, &config)?;
    let oracle = Oracle::start(lab)?;

    // Schedules and counts begin with the transfer.
    for link in 1..=lab.links() {
        for direction in [Direction::Up, Direction::Down] {
            lab.set_faults(link, direction, &cell.faults(link, direction))?;
        }
    }
    let job = Job::both(BYTES).seed(seed);
    let client = Client::mptcp(lab.server_socket(1, cell.family, PORT)).patience(PATIENCE);
    let report = client.run_in(lab.client(), &job)?;
    note(&report, outcome);
    outcome.client = Some(oracle.client(lab)?.telling());
    outcome.server = Some(oracle.server(lab, 1)?.telling());
    for link in 1..=lab.links() {
        outcome.links.push(lab.link_counters(link)?.to_json());
    }

    flexcp.alive()?;
    judge_end(cell, &report)?;
    // After an error its story is told by the counters; which ones is for the kernel to say. And a
    // client whose last subflow a NAT cut off can't tell FlexCP that it is gone.
    if report.failure.is_none() {
        oracle.check(lab, &expect(cell))?;
        forgets_everything(lab, &flexcp)?;
    }
    drop(server);
    flexcp.stop()
}

fn note(report: &Report, outcome: &mut Outcome) {
    outcome.bytes = report.up + report.down;
    outcome.longest_gap_ms = report.longest_gap_us / 1000;
    outcome.millis = (report.connect_us + report.total_us) / 1000;
    let failure = report.failure.as_ref();
    outcome.ended = failure.map(|failure| format!("{}: {}", failure.kind, failure.message));
}

/// Whether the transfer ended as the row demands.
fn judge_end(cell: &Cell, report: &Report) -> Result<()> {
    let may_fail = match cell.row.verdict {
        Verdict::Exact => false,
        Verdict::ExactIfJoined => cell.subflows == 1,
        Verdict::MayFail => true,
    };
    match &report.failure {
        None => {
            ensure!(
                report.up == BYTES && report.down == BYTES,
                "{} bytes up, {} down of {BYTES}",
                report.up,
                report.down
            );
            Ok(())
        }
        Some(failure) if failure.kind == "data" => bail!("wrong bytes: {}", failure.message),
        Some(_) if may_fail => Ok(()),
        Some(_) => report.ok().map(drop).context("the transfer failed"),
    }
}

fn expect(cell: &Cell) -> Expect {
    let expect = Expect::clean()
        .allow_at(End::Servers, WINDOW_OVERRUN)
        .allow_all(REORDERED_OR_RENEGED);
    let allowed = cell.row.allow.iter();
    allowed.fold(expect, |expect, allow| expect.allow_all(allow.counters()))
}

/// Waits until FlexCP has no connection left.
fn forgets_everything(lab: &Lab, flexcp: &FlexCp) -> Result<()> {
    let deadline = Instant::now() + FORGET;
    loop {
        let view = flexcp.show_connections()?;
        let left = view["connections"].as_array().map_or(0, Vec::len);
        if left == 0 {
            return Ok(());
        }
        ensure!(
            Instant::now() < deadline,
            "FlexCP still has {left} connections after {FORGET:?} in {}: {view}",
            lab.prefix()
        );
        thread::sleep(Duration::from_millis(50));
    }
}

const PORT: u16 = 5000;

/// Each way.
const BYTES: u64 = 2_000_000;

/// Without progress.
const PATIENCE: Duration = Duration::from_secs(12);

/// How long after the end of a transfer a connection may be known.
const FORGET: Duration = Duration::from_secs(15);

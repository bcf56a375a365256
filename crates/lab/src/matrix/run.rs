//! One cell, from its lab to its outcome.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::Serialize;
use serde_json::Value;

use super::cell::{Cell, Side};
use super::judge::{
    Draw, Evidence, judge_bytes, judge_hits, judge_joins, judge_stall, resets_at_end,
    second_syn_acks, stall,
};
use super::rows::{Joins, Row};
use super::scene::{self, Joined, PATIENCE, Scene};
use crate::complaint::Complaints;
use crate::conduct::SERVER_RESET;
use crate::counters::{End, Expect, Mib, Oracle, RENEGED, WINDOW_OVERRUN};
use crate::daemon;
use crate::fault::Direction;
use crate::link::LinkCounters;
use crate::starvation::Starvation;
use crate::topology::Lab;
use crate::transfer::{Job, Report, Server, ServerReport};
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
    /// What was wrong at the first attempt, when a machine that is too slow explains it and there was a second.
    pub first_attempt: Option<String>,
    /// Why earlier draws showed nothing, each with a seed of its own: their fault hit nothing, or nobody joined.
    pub void_draws: Vec<String>,
    /// The longest time that a thread waited for a processor, in milliseconds.
    pub starved_ms: u64,
    /// The longest gap that the fault explains, in milliseconds.
    pub gap_bound_ms: u64,
    /// Subflows that joined.
    pub joined: u64,
    /// Bytes that arrived, up and down together.
    pub bytes: u64,
    /// How the transfer ended, if with an error (which the row may allow).
    pub ended: Option<String>,
    /// Longest time without a byte at the client, in milliseconds.
    pub longest_gap_ms: u64,
    /// Time of the transfer, in milliseconds.
    pub millis: u64,
    /// Counters of the end with MPTCP that tell something and moved: the client's, in mirror the server's.
    pub client: Option<Mib>,
    /// Those of the other end.
    pub server: Option<Mib>,
    /// What the emulated links did, by link.
    pub links: Vec<Value>,
}

/// Runs a cell in a lab of its own. With a directory for `captures`, those of every interface of
/// FlexCP's host are left there when the cell fails; a proxy's are held against the rules of the wire.
///
/// A draw that shows nothing is made again with another seed, a few times at most. When nothing is wrong but
/// counters that kernels move by themselves, and threads waited for a processor meanwhile, there is a second attempt.
pub fn run(cell: &Cell, seed: u64, captures: Option<&Path>) -> Outcome {
    let mut outcome = Outcome::of(cell, seed);
    let mut result = Ok(());
    for draw in 0..DRAWS {
        outcome.seed = seed.wrapping_add(draw << 32);
        result = attempts(cell, captures, &mut outcome);
        match &result {
            Err(error) if error.is::<Void>() => outcome.void_draws.push(error.to_string()),
            _ => break,
        }
    }
    match result {
        Ok(()) => outcome.passed = true,
        Err(error) => outcome.detail = format!("{error:#}"),
    }
    outcome
}

impl Outcome {
    fn of(cell: &Cell, seed: u64) -> Self {
        let ends = |link| [Direction::Up, Direction::Down].map(|way| cell.faults(link, way));
        Self {
            cell: cell.name(),
            seed,
            faults: ends(1),
            faults_last: ends(cell.subflows),
            passed: false,
            detail: String::new(),
            first_attempt: None,
            void_draws: vec![],
            starved_ms: 0,
            gap_bound_ms: u64::try_from(stall(cell).as_millis()).unwrap_or(u64::MAX),
            joined: 0,
            bytes: 0,
            ended: None,
            longest_gap_ms: 0,
            millis: 0,
            client: None,
            server: None,
            links: vec![],
        }
    }
}

/// One draw: an attempt, and a second one when nothing failed but counters that kernels move by themselves.
fn attempts(cell: &Cell, captures: Option<&Path>, outcome: &mut Outcome) -> Result<()> {
    let first = measured(cell, captures, outcome);
    let Some(error) = first
        .as_ref()
        .err()
        .filter(|error| Complaints::worth_another_attempt(error))
    else {
        return first;
    };
    outcome.first_attempt = Some(format!("{error:#}"));
    measured(cell, captures, outcome)
}

fn measured(cell: &Cell, captures: Option<&Path>, outcome: &mut Outcome) -> Result<()> {
    outcome.links.clear();
    let starvation = Starvation::measure()?;
    let result = attempt(cell, outcome.seed, captures, &starvation, outcome);
    outcome.starved_ms = u64::try_from(starvation.longest().as_millis()).unwrap_or(u64::MAX);
    result
}

/// A draw that shows nothing.
#[derive(Debug, thiserror::Error)]
#[error("shows nothing: {0}")]
struct Void(String);

impl Draw {
    fn shows(self) -> Result<()> {
        match self {
            Self::Shows => Ok(()),
            Self::Void(reason) => Err(Void(reason).into()),
        }
    }
}

fn attempt(
    cell: &Cell,
    seed: u64,
    captures: Option<&Path>,
    starvation: &Starvation,
    outcome: &mut Outcome,
) -> Result<()> {
    let lab = scene::lab(cell, seed)?;
    let Some(directory) = captures else {
        return transfer(cell, &lab, starvation, outcome);
    };
    let capture = lab.capture(&cell.name().replace('/', "-"))?;
    let result = transfer(cell, &lab, starvation, outcome);
    let files = capture.stop()?;
    let result = match cell.side {
        Side::Proxy | Side::Box | Side::Converter => result.and_then(|()| judge_wire(cell, &files)),
        Side::Kernel => result,
    };
    if result.is_err() {
        fs::create_dir_all(directory)?;
        for file in files {
            let name = file.file_name().context("a capture without a name")?;
            fs::copy(&file, directory.join(name))?;
        }
    }
    result
}

/// The rules of the wire, on the captures of a cell; the last is of the side with TCP.
fn judge_wire(cell: &Cell, files: &[PathBuf]) -> Result<()> {
    let Some((server, client)) = files.split_last() else {
        return Ok(());
    };
    let check = WireCheck {
        client: client.to_vec(),
        server: vec![server.clone()],
        offloads_off: !cell.offloads,
        offload: !daemon::offload_is_off(),
        aggregates: cell.side.is_mirrored(),
        explicit: scene::aggregation_servers(cell)?,
    };
    check.run()?.ok()
}

fn transfer(cell: &Cell, lab: &Lab, starvation: &Starvation, outcome: &mut Outcome) -> Result<()> {
    let mut scene = Scene::start(cell, lab)?;
    let oracle = Oracle::start(lab)?;

    // Schedules and counts begin with the transfer.
    for link in 1..=lab.links() {
        for direction in [Direction::Up, Direction::Down] {
            lab.set_faults(link, direction, &cell.faults(link, direction))?;
        }
    }
    let job = Job::both(cell.row.bytes).seed(outcome.seed);
    let report = scene.run(lab, &job)?;
    note(&report, outcome);
    let served = served(&scene.server, &report)?;
    let (mptcp, tcp) = (oracle.client(lab)?, oracle.server(lab, 1)?);
    let told = scene.told()?;
    let joins = told.joins(cell.side, &mptcp, &tcp);
    outcome.joined = joins.joined;
    outcome.client = Some(mptcp.telling());
    outcome.server = Some(tcp.telling());
    let mut found = Evidence {
        job: &job,
        report: &report,
        served: &served,
        links: count_links(lab, outcome)?,
        joins,
        starved: starvation.longest(),
    };
    // Bytes first: what is wrong there is wrong whatever the draw shows.
    judge_bytes(cell, &found)?;
    judge_stall(cell, &found)?;
    judge_joins(cell, &found)?.shows()?;
    scene.check(&oracle, lab, &expect(cell, &report, joins), &told)?;
    if !cannot_end(cell) {
        scene.forgets_everything(lab)?;
        // The FINs of subflows may cross the links after both ends are content.
        found.links = count_links(lab, outcome)?;
    }
    judge_hits(cell, &found).shows()?;
    scene.end()
}

/// What the links have done so far, also for the outcome.
fn count_links(lab: &Lab, outcome: &mut Outcome) -> Result<Vec<LinkCounters>> {
    let links = (1..=lab.links()).map(|link| lab.link_counters(link));
    let links = links.collect::<Result<Vec<_>>>()?;
    outcome.links = links.iter().map(LinkCounters::to_json).collect();
    Ok(links)
}

/// The server's word on every connection that it has accepted. It gives up on its own, at the latest when it has waited
/// three times: a write that takes some bytes before its time is over counts as progress, and a kernel that has reset all subflows of
/// a connection still takes two.
fn served(server: &Server, report: &Report) -> Result<Vec<ServerReport>> {
    let least = usize::from(report.failure.is_none());
    let count = server.accepted().max(least);
    server.wait_for(count, 3 * PATIENCE + Duration::from_secs(6))
}

/// A client whose only subflow a NAT cut off can't tell FlexCP that it is gone, nor can FlexCP reach it. A box joins anew.
fn cannot_end(cell: &Cell) -> bool {
    cell.row.name == "nat-rebind" && cell.subflows == 1 && !cell.side.is_mirrored()
}

fn note(report: &Report, outcome: &mut Outcome) {
    outcome.bytes = report.up + report.down;
    outcome.longest_gap_ms = report.longest_gap_us / 1000;
    outcome.millis = (report.connect_us + report.total_us) / 1000;
    let failure = report.failure.as_ref();
    outcome.ended = failure.map(|failure| format!("{}: {}", failure.kind, failure.message));
}

/// What the counters may show. After an error that the row allows its story is told by them: which of the counters of
/// resets and fallbacks moved is for the kernels to say, all others still mean what they say.
fn expect(cell: &Cell, report: &Report, joins: Joined) -> Expect {
    let mut expect = own(&cell.row)
        .disturbed("the fault")
        .allow_at(End::Servers, WINDOW_OVERRUN);
    for allow in cell.row.allow {
        expect = expect.allow_all(allow.counters());
    }
    if !is_clean(&cell.row) {
        // Where packets are lost, late or changed, a subflow may have to send again what it was told by SACK to be there.
        expect = expect.allow_all(RENEGED);
    }
    if report.failure.is_some() {
        expect = expect
            .own(SERVER_RESET, "the client has given up")
            .allow_all(AFTER_AN_ERROR)
            .allow_all(crate::FALLBACKS);
    }
    if joins.bypassed {
        const PASSED: &str =
            "the aggregation server was passed by for the server itself, which speaks TCP";
        let moved = [
            "backend_marked",
            "fallback_handshake",
            "unproved",
            SERVER_RESET,
        ];
        expect = moved
            .iter()
            .fold(expect, |expect, name| expect.own(name, PASSED));
    }
    // Last, as they bound what has not been allowed for another reason.
    let (opener, second) = match cell.side.is_mirrored() {
        true => (End::Servers, i64::from(second_syn_acks(cell))),
        false => (End::Client, second_syn_acks(cell).into()),
    };
    expect
        .up_to(opener, SECOND_SYN_ACK, second)
        .up_to(
            End::Client,
            SECOND_SYN,
            if opener == End::Client { 0 } else { second },
        )
        .up_to(End::Client, &["MPRstTx"], resets_at_end(cell).into())
}

fn is_clean(row: &Row) -> bool {
    row.faults.is_empty() && row.back.is_empty()
}

/// What FlexCP itself may drop, refuse and reset in a row: under a fault packets come late, twice and changed, and
/// which reasons they are dropped for is for the scenarios to say. What no fault on a link explains is not among them.
fn own(row: &Row) -> Expect {
    const FAULT: &str = "the fault";
    let names: &[&str] = if is_clean(row) { &[] } else { UNDER_A_FAULT };
    let expect = names
        .iter()
        .fold(Expect::clean(), |expect, name| expect.own(name, FAULT));
    match row.joins {
        Joins::Prevented(reason) | Joins::Unjudged(reason) => [
            "mp_join_refused",
            "plain_syn",
            "fallback_handshake",
            "fallback_established",
        ]
        .iter()
        .fold(expect, |expect, name| expect.own(name, reason)),
        Joins::All | Joins::Some => expect,
    }
}

/// How often a cell is drawn until it shows something. A loss of 0.1 % misses a transfer now and then.
const DRAWS: u64 = 6;

/// What the end that opens counts when a SYN+ACK comes to a subflow that is open.
const SECOND_SYN_ACK: &[&str] = &["TcpInErrs", "TCPChallengeACK"];

/// What a server counts when several SYNs of a connection come at once, or one to a connection that is open.
const SECOND_SYN: &[&str] = &["TcpInErrs", "TCPChallengeACK", "TCPACKSkippedSynRecv"];

/// What an end that gives up, and one that is told so, count.
const AFTER_AN_ERROR: &[&str] = &[
    "MPRstTx",
    "MPRstRx",
    "MPFastcloseTx",
    "MPFastcloseRx",
    "MPFailTx",
    "MPFailRx",
    "TCPChallengeACK",
    "TCPACKSkippedChallenge",
];

/// Counters of FlexCP's that any fault on a link may move.
const UNDER_A_FAULT: &[&str] = &[
    "checksum",
    "malformed",
    "malformed_options",
    "no_connection",
    "out_of_window",
    "stale_ack",
    "ack_of_unsent",
    "bad_mapping",
    "not_authenticated",
    "no_mapping",
    "congestion",
    "no_subflow",
    "blind_reset",
    "unexpected",
    "mp_rst_tx",
    "mp_fastclose_tx",
    "mp_fail_rx",
    "mp_join_no_token",
    "plain_syn",
];

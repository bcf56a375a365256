//! The judges themselves, with the real thing: what they have to notice is brought about on purpose.

use std::fs;
use std::process;

use anyhow::{Context as _, Result, ensure};
use flexcp_lab::matrix::{Cell, Joins, Outcome, Side, Verdict, run};
use flexcp_lab::transfer::{Client, Job};
use flexcp_lab::{Direction, Expect, Family, KernelLog, Lab};

use crate::rig::{PORT, transparent};

crate::cases!("oracle":
    record_of_the_kernels_log_is_seen,
    plain_syn_that_no_case_named_is_noticed,
    loss_on_links_that_are_called_clean_is_noticed,
    corrupted_upload_is_noticed_where_a_transfer_may_fail,
    fault_that_hits_nothing_is_noticed,
    join_that_does_not_come_about_is_noticed,
);

fn record_of_the_kernels_log_is_seen() -> Result<()> {
    let text = format!("flexcp-lab: only a test of process {}", process::id());
    let before = KernelLog::watching_for(Some(&text))?;
    fs::write("/dev/kmsg", format!("{text}\n"))?;
    let after = KernelLog::watching_for(Some(&text))?;
    let seen = before.complaints()?;
    ensure!(seen == [format!("kernel log: {text}")], "{seen:?}");
    let seen = after.complaints()?;
    ensure!(seen.is_empty(), "what was there before: {seen:?}");
    Ok(())
}

/// What a case that has to fail said.
fn failure(outcome: Result<()>, expected: &str) -> Result<()> {
    let said = match outcome {
        Ok(()) => String::new(),
        Err(error) => format!("{error:#}"),
    };
    ensure!(said.contains(expected), "no `{expected}` in: {said}");
    Ok(())
}

fn plain_syn_that_no_case_named_is_noticed() -> Result<()> {
    let outcome = transparent(Lab::builder().build()?, |rig| {
        let client = Client::tcp(rig.lab.server_socket(1, Family::V4, PORT));
        rig.run_client(&client, &Job::both(10_000))?;
        Ok(Expect::clean())
    });
    failure(outcome, "FlexCP: plain_syn moved by 1")
}

fn loss_on_links_that_are_called_clean_is_noticed() -> Result<()> {
    let lossy = "loss=5%,rate=400mbit:400kb";
    let lab = Lab::builder()
        .access_links(1)
        .faults(1, Direction::Up, lossy)
        .faults(1, Direction::Down, lossy)
        .build()?;
    let outcome = transparent(lab, |rig| {
        rig.run(Family::V4, &Job::down(40_000_000))?;
        Ok(Expect::clean())
    });
    failure(outcome, "segments sent again")
}

/// A cell of the matrix with another fault.
fn cell(name: &str, faults: &'static str) -> Result<Cell> {
    let cells = Cell::all(Side::Proxy).into_iter();
    let mut cells = cells.filter(|cell| cell.name() == name);
    let mut cell = cells.next().with_context(|| format!("no cell {name}"))?;
    cell.row.faults = faults;
    Ok(cell)
}

fn failed(outcome: &Outcome, expected: &str) -> Result<()> {
    ensure!(
        !outcome.passed && outcome.detail.contains(expected),
        "no `{expected}`: {outcome:#?}"
    );
    Ok(())
}

/// Bits change and checksums are put right again: nobody but the server's application can tell.
fn corrupted_upload_is_noticed_where_a_transfer_may_fail() -> Result<()> {
    let mut cell = cell("strip-dss-data/v4/up/1/plain", "corrupt=2%:payload:fixed")?;
    ensure!(cell.row.verdict == Verdict::MayFail);
    failed(&run(&cell, 1, None), "wrong bytes at the server")?;
    cell.row.verdict = Verdict::ExactIfJoined;
    failed(&run(&cell, 2, None), "wrong bytes at the server")
}

fn fault_that_hits_nothing_is_noticed() -> Result<()> {
    let outcome = run(
        &cell("clean/v4/up/1/plain", "blackhole=100s..101s")?,
        1,
        None,
    );
    failed(&outcome, "`blackhole=100s..101s` hit nothing")?;
    ensure!(outcome.void_draws.len() > 1, "drawn once: {outcome:#?}");
    Ok(())
}

fn join_that_does_not_come_about_is_noticed() -> Result<()> {
    let cell = cell("clean/v4/up/2/plain", "strip=mp-join@syn")?;
    ensure!(cell.row.joins == Joins::All);
    let outcome = run(&cell, 1, None);
    failed(
        &outcome,
        "0 of 1 subflows joined, and their links lost no packet",
    )
}

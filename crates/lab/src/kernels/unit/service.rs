//! FlexCP's service as systemd has it, on the machine that runs here.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};
use flexcp_testkit::Stats;

use super::item::wait_until;
use crate::process::{output, text};

/// Has systemd do something with it: `start`, `restart`, `stop`. Returns when that is done.
///
/// # Errors
///
/// It was not done.
pub(super) fn systemctl(verb: &str) -> Result<()> {
    output(Command::new("systemctl").args([verb, UNIT]))?;
    Ok(())
}

/// A property of it, as `systemctl show` tells it.
pub(super) fn property(name: &str) -> Result<String> {
    let mut command = Command::new("systemctl");
    let value = text(command.args(["show", "--value", "-p", name, UNIT]))?;
    Ok(value.trim().to_owned())
}

/// A moment that systemd has noted of it, since the boot.
pub(super) fn moment(name: &str) -> Result<Duration> {
    let value = property(&format!("{name}TimestampMonotonic"))?;
    let micros = value.parse();
    let micros = micros.with_context(|| format!("{name} is {value:?}"))?;
    Ok(Duration::from_micros(micros))
}

/// Its main process.
pub(super) fn main_process() -> Result<u32> {
    let pid = property("MainPID")?;
    pid.parse().with_context(|| format!("main process {pid}"))
}

/// What it has logged, each run of it, and what systemd has said of it.
pub(super) fn log() -> Result<String> {
    let mut command = Command::new("journalctl");
    text(command.args(["--no-pager", "-q", "-o", "cat", "-u", UNIT]))
}

/// What the run that began last has logged, once `line` is part of it.
///
/// # Errors
///
/// It is not, in time.
pub(super) fn log_with(line: &str) -> Result<String> {
    let mut last = String::new();
    let said = wait_until("the log", LOGGED, || {
        let all = log()?;
        let begins = all.rfind(BEGINS).unwrap_or(0);
        all[begins..].clone_into(&mut last);
        Ok(last.contains(line))
    });
    said.with_context(|| format!("no `{line}` in the log of the last run"))?;
    Ok(last)
}

/// `flexcp show stats --json`
pub(super) fn stats() -> Result<Stats> {
    let mut command = Command::new("/usr/bin/flexcp");
    let said = text(command.args(["show", "stats", "--json"]))?;
    Stats::parse(said.as_bytes()).context("flexcp show stats --json")
}

const UNIT: &str = "flexcp.service";

/// The first line of a run.
const BEGINS: &str = "INFO flexcp ";

/// What the journal may take for a line.
const LOGGED: Duration = Duration::from_secs(10);

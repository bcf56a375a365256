//! Where it is measured.

use std::process::Command;
use std::{fs, thread};

use anyhow::Result;

use crate::plan::Plan;
use crate::record::Circumstances;

/// What there is to know before the first run.
pub(crate) fn gather(plan: &Plan) -> Result<Circumstances> {
    let line = |file: &str| fs::read_to_string(file).map(|text| text.trim().to_owned());
    let chosen = || line("/proc/sys/net/ipv4/tcp_congestion_control");
    let versions = [("nginx", "-v"), ("haproxy", "-v")];
    Ok(Circumstances {
        kernel: line("/proc/sys/kernel/osrelease")?,
        cpus: thread::available_parallelism().map_or(1, usize::from),
        congestion: plan.congestion.clone().map_or_else(chosen, Ok)?,
        programs: versions
            .iter()
            .map(|(name, flag)| version(name, flag))
            .collect(),
        rounds: plan.rounds,
        seconds: plan.seconds,
        foreign_median: 0.0,
        foreign_max: 0.0,
    })
}

/// The first line that a program prints about its version.
fn version(name: &str, flag: &str) -> String {
    let Ok(output) = Command::new(name).arg(flag).output() else {
        return format!("no {name}");
    };
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    said.lines().next().unwrap_or_default().to_owned()
}

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
        backlog_drops: 0,
    })
}

/// Packets that this machine has dropped because too many waited to be received
/// (`net.core.netdev_max_backlog`), since it was started.
pub(crate) fn backlog_drops() -> u64 {
    fs::read_to_string("/proc/net/softnet_stat").map_or(0, |text| dropped(&text))
}

/// The second column, hexadecimal, a line for each CPU.
fn dropped(softnet: &str) -> u64 {
    let column = |line: &str| u64::from_str_radix(line.split(' ').nth(1)?, 16).ok();
    softnet.lines().filter_map(column).sum()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_of_all_cpus_are_added() {
        let text = "0a 0000001f 00000003 0\n0b 00000001 00000000 0\n";
        assert_eq!(dropped(text), 32);
    }
}

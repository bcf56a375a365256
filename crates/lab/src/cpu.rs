//! CPU time of everything that takes part in a measurement, kernel work included.
//!
//! What a proxy costs is not what its process is charged: packets are handled in softirqs, in whatever
//! process they interrupt, and in kernel threads. So the whole machine is measured, and what is *not*
//! ours is taken off: the CPU time of processes that this one has not started.

use std::collections::BTreeMap;
use std::fs;
use std::process;
use std::time::Instant;

use anyhow::{Context as _, Result};

/// The counters at one moment.
#[derive(Debug)]
pub struct Sample {
    at: Instant,
    /// Ticks in which some CPU was not idle.
    busy: u64,
    processes: BTreeMap<u32, Process>,
}

/// CPU time between two moments, in seconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Use {
    /// By the clock.
    pub wall: f64,
    /// On all CPUs, less `foreign`.
    pub ours: f64,
    /// Of processes that have no part in the measurement.
    pub foreign: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Process {
    parent: u32,
    kernel: bool,
    /// Its own ticks, and those of children that have ended: the sum over all processes does not
    /// change when one ends.
    ticks: u64,
    /// Pages of memory that it holds.
    pages: u64,
}

impl Sample {
    /// Reads `/proc`.
    ///
    /// # Errors
    /// When `/proc/stat` can't be read.
    pub fn take() -> Result<Self> {
        let stat = fs::read_to_string("/proc/stat").context("reading /proc/stat")?;
        let mut processes = BTreeMap::new();
        for entry in fs::read_dir("/proc")?.flatten() {
            let name = entry.file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            // It may have ended meanwhile.
            let Ok(line) = fs::read_to_string(entry.path().join("stat")) else {
                continue;
            };
            processes.extend(process(&line).map(|process| (pid, process)));
        }
        Ok(Self {
            at: Instant::now(),
            busy: busy(&stat).context("/proc/stat has no line for all CPUs")?,
            processes,
        })
    }

    /// CPU time since `before`.
    pub fn since(&self, before: &Self) -> Use {
        let us = process::id();
        let foreign = seconds(self.foreign(us).saturating_sub(before.foreign(us)));
        Use {
            wall: (self.at - before.at).as_secs_f64(),
            ours: (seconds(self.busy - before.busy) - foreign).max(0.0),
            foreign,
        }
    }

    /// CPU seconds since `before` that are charged to a process and what it has started.
    pub fn of_tree_since(&self, before: &Self, root: u32) -> f64 {
        seconds(self.tree(root).saturating_sub(before.tree(root)))
    }

    /// Bytes of memory that a process and what it has started hold.
    pub fn resident(&self, root: u32) -> u64 {
        let tree = self.processes.iter();
        let tree = tree.filter(|(pid, _)| self.below(**pid, root));
        let pages: u64 = tree.map(|(_, process)| process.pages).sum();
        pages * rustix::param::page_size() as u64
    }

    /// Ticks of all user processes outside the tree below `us`.
    fn foreign(&self, us: u32) -> u64 {
        let foreign = |(pid, process): &(&u32, &Process)| !process.kernel && !self.below(**pid, us);
        let foreign = self.processes.iter().filter(foreign);
        foreign.map(|(_, process)| process.ticks).sum()
    }

    fn tree(&self, root: u32) -> u64 {
        let tree = self.processes.iter();
        let tree = tree.filter(|(pid, _)| self.below(**pid, root));
        tree.map(|(_, process)| process.ticks).sum()
    }

    /// Whether `pid` is `root` or one that `root` has started, at any remove.
    fn below(&self, mut pid: u32, root: u32) -> bool {
        loop {
            if pid == root {
                return true;
            }
            match self.processes.get(&pid) {
                Some(process) if process.parent != 0 => pid = process.parent,
                _ => return false,
            }
        }
    }
}

/// Ticks of the first line of `/proc/stat` that are neither idle nor stolen by the hypervisor.
fn busy(stat: &str) -> Option<u64> {
    let fields: Vec<u64> = stat
        .lines()
        .next()?
        .strip_prefix("cpu ")?
        .split_whitespace()
        .map_while(|field| field.parse().ok())
        .collect();
    // user nice system idle iowait irq softirq steal; guest time is in user time already.
    Some(fields[..3].iter().sum::<u64>() + fields.get(5)? + fields.get(6)?)
}

/// A line of `/proc/<pid>/stat`.
fn process(line: &str) -> Option<Process> {
    // The name is in parentheses and may hold anything, blanks and parentheses too.
    let fields: Vec<&str> = line.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
    Some(Process {
        parent: u32::try_from(number(1)?).ok()?,
        kernel: number(6)? & PF_KTHREAD != 0,
        ticks: number(11)? + number(12)? + number(13)? + number(14)?,
        pages: number(21)?,
    })
}

#[allow(clippy::cast_precision_loss, reason = "ticks of a few hours")]
fn seconds(ticks: u64) -> f64 {
    ticks as f64 / rustix::param::clock_ticks_per_second() as f64
}

/// Of the kernel's `include/linux/sched.h`.
const PF_KTHREAD: u64 = 0x0020_0000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_leaves_out_idle_and_stolen_time() {
        let stat = "cpu  1 2 4 1000 2000 8 16 4000 1 1\ncpu0 9 9 9 9 9 9 9 9 9 9\n";
        assert_eq!(busy(stat), Some(31));
    }

    #[test]
    fn process_line_with_an_odd_name() {
        let line = "42 (a b) c) S 7 42 42 0 -1 2097152 1 2 3 4 10 20 30 40 20 0 1 0 5 6 77";
        let expected = Process {
            parent: 7,
            kernel: true,
            ticks: 100,
            pages: 77,
        };
        assert_eq!(process(line), Some(expected));
    }

    /// init (1) has started us (10) and somebody else (20); 11 is ours, 2 a kernel thread.
    fn sample(busy: u64, ticks: [u64; 5]) -> Sample {
        let rows = [
            (1, 0, false),
            (2, 0, true),
            (10, 1, false),
            (11, 10, false),
            (20, 1, false),
        ];
        let processes = rows.into_iter().zip(ticks);
        let processes = processes.map(|((pid, parent, kernel), ticks)| {
            let process = Process {
                parent,
                kernel,
                ticks,
                pages: ticks,
            };
            (pid, process)
        });
        Sample {
            at: Instant::now(),
            busy,
            processes: processes.collect(),
        }
    }

    #[test]
    fn only_processes_outside_our_tree_are_foreign() {
        let sample = sample(0, [1, 10, 100, 1000, 10_000]);
        assert_eq!(sample.foreign(10), 10_001);
        assert_eq!(sample.tree(10), 1100);
        assert_eq!(sample.tree(11), 1000);
    }

    #[test]
    fn a_process_that_ends_leaves_its_time_to_its_parent() {
        let before = sample(0, [0, 0, 0, 0, 500]);
        let mut after = sample(100, [520, 0, 0, 0, 0]);
        after.processes.remove(&20);
        assert_eq!(after.foreign(10) - before.foreign(10), 20);
    }
}

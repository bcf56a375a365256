//! Runs seeds.
#![forbid(unsafe_code)]

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::num::NonZero;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, anyhow, ensure};
use clap::Parser;
use flexcp_simulator::{
    Errands, Outcome, describe, describe_mirrored, run, run_mirrored, run_mirrored_undisturbed,
    run_traced, run_undisturbed,
};

/// The translator between models of servers and clients, in virtual time.
#[derive(Parser, Debug)]
struct Arguments {
    /// Seeds to run: `A..B`, without B; `A..A` with `--time` or `--packets` goes on from A.
    #[arg(long, default_value = "0..1000")]
    seeds: String,
    /// In mirror: FlexCP is an aggregation box.
    #[arg(long)]
    mirror: bool,
    /// Without faults, resets and limits.
    #[arg(long)]
    undisturbed: bool,
    /// One seed alone.
    #[arg(long)]
    seed: Option<u64>,
    /// Print each packet of the one seed.
    #[arg(long)]
    trace: bool,
    /// Print the plan of the one seed.
    #[arg(long)]
    plan: bool,
    /// Go on behind the seeds until so many packets have passed.
    #[arg(long)]
    packets: Option<u64>,
    /// Go on behind the seeds for so many seconds.
    #[arg(long)]
    time: Option<u64>,
    /// Run every n-th seed twice: both runs have to be the same.
    #[arg(long, default_value_t = 64)]
    twice: u64,
    /// Print one hash of what the translator sent in all of the seeds, and nothing else.
    #[arg(long)]
    hash: bool,
    /// Stop after so many failures.
    #[arg(long, default_value_t = 20)]
    failures: usize,
}

impl Arguments {
    fn run(&self, seed: u64) -> Outcome {
        match (self.mirror, self.undisturbed) {
            (true, true) => run_mirrored_undisturbed(seed, self.trace),
            (true, false) => run_mirrored(seed, self.trace),
            (false, true) => run_undisturbed(seed),
            (false, false) if self.trace => run_traced(seed),
            (false, false) => run(seed),
        }
    }
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    if let Some(seed) = arguments.seed {
        return one(seed, &arguments);
    }
    let (first, behind) = arguments
        .seeds
        .split_once("..")
        .and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)))
        .context("--seeds takes A..B")?;
    if arguments.hash {
        println!("{:016x}", hash(first..behind, &arguments)?);
        return Ok(());
    }
    many(first, behind, &arguments)
}

/// What the translator sent in all of these seeds, in no order: a change that is only a move leaves it as it was.
fn hash(seeds: Range<u64>, arguments: &Arguments) -> Result<u64> {
    let next = AtomicU64::new(seeds.start);
    let share = || {
        let mut all = 0;
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return Ok(all);
            }
            let outcome = arguments.run(seed);
            ensure!(outcome.failures.is_empty(), "seed {seed} fails");
            all ^= BuildHasherDefault::<DefaultHasher>::default().hash_one((seed, outcome.hash));
        }
    };
    thread::scope(|scope| {
        let threads = thread::available_parallelism().map_or(1, NonZero::get);
        let shares: Vec<_> = (0..threads).map(|_| scope.spawn(share)).collect();
        let hashes = shares.into_iter().map(|share| share.join());
        hashes.into_iter().try_fold(0, |all, hash| {
            let hash = hash.map_err(|_| anyhow!("a thread panicked"))??;
            Ok(all ^ hash)
        })
    })
}

fn one(seed: u64, arguments: &Arguments) -> Result<()> {
    if arguments.plan {
        let describe = if arguments.mirror {
            describe_mirrored
        } else {
            describe
        };
        println!("{}", describe(seed));
    }
    let outcome = arguments.run(seed);
    report(&outcome);
    println!(
        "seed {seed}: {} packets, {} virtual seconds, hash {:016x}",
        outcome.packets,
        outcome.time / 1_000_000,
        outcome.hash
    );
    if !outcome.failures.is_empty() {
        std::process::exit(1);
    }
    Ok(())
}

fn report(outcome: &Outcome) {
    for failure in outcome.failures.iter().take(5) {
        println!("seed {}: {failure}", outcome.seed);
    }
}

fn many(first: u64, behind: u64, arguments: &Arguments) -> Result<()> {
    let start = Instant::now();
    let (mut packets, mut time, mut stood, mut led, mut failed) = (0, 0, 0, 0, vec![]);
    let (mut seed, mut errands) = (first, Errands::default());
    let goes_on = |seed: u64, packets: u64| {
        seed < behind
            || arguments.packets.is_some_and(|goal| packets < goal)
            || arguments
                .time
                .is_some_and(|goal| start.elapsed().as_secs() < goal)
    };
    while goes_on(seed, packets) && failed.len() < arguments.failures {
        let mut outcome = arguments.run(seed);
        let twice = arguments.twice > 0 && seed.is_multiple_of(arguments.twice);
        if twice && arguments.run(seed) != outcome {
            outcome
                .failures
                .push("I13: the same seed, another run".into());
        }
        packets += outcome.packets;
        time += outcome.time;
        stood = stood.max(outcome.stood);
        led += outcome.led;
        errands += outcome.errands;
        if !outcome.failures.is_empty() {
            report(&outcome);
            failed.push(seed);
        }
        seed += 1;
    }
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "seeds {first}..{seed}: {packets} packets, {:.1} virtual hours, {:.2} million packets/s, at most {}, stood still for {} % of what it may, moved {led} times by rules, {} failed {failed:?}",
        time as f64 / 3.6e9,
        packets as f64 / seconds / 1e6,
        peak_memory(),
        stood / 10,
        failed.len()
    );
    if arguments.mirror {
        println!("{errands:?}");
    }
    if !failed.is_empty() {
        std::process::exit(1);
    }
    Ok(())
}

/// The most memory that was ever resident, as the kernel says it.
fn peak_memory() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    peak.map_or_else(|| "?".into(), |peak| peak.trim().into())
}

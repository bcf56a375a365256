//! What single operations cost: nanoseconds, and instructions as valgrind counts them.

use std::env;
use std::hint::black_box;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use flexcp_lab::statistics::median;
use flexcp_simulator::Conversation;
use flexcp_translator::internals::Lane;
use flexcp_wire::{
    DataNumber, Dsn, Dss, DssMapping, MptcpOption, OptionWriter, Ssn, TcpOption, TcpOptions,
    Timestamps,
};

use crate::record::Results;

/// An operation that can be repeated: how long that many repetitions take.
type Operation = fn(u32) -> Duration;

/// Name and operation. The last four are exchanges of which the packets are worked out.
const OPERATIONS: [(&str, Operation); 11] = [
    ("option-parse", parse_options),
    ("option-emit", emit_options),
    ("dtree-append-1", |count| append(count, 1)),
    ("dtree-append-1000", |count| append(count, 1000)),
    ("dtree-by-dsn-1", |count| by_dsn(count, 1)),
    ("dtree-by-dsn-1000", |count| by_dsn(count, 1000)),
    ("dtree-by-ssn-1000", |count| by_ssn(count, 1000)),
    (ONE, |count| exchange(count, 1, true)),
    (MANY, |count| exchange(count, BURST, true)),
    (ONE_MADE, |count| exchange(count, 1, false)),
    (MANY_MADE, |count| exchange(count, BURST, false)),
];

/// One data packet down and its ACK up; several, and one ACK for all.
const ONE: &str = "1-down-1-up";
const MANY: &str = "16-down-1-up";
/// The same without translating them.
const ONE_MADE: &str = "made-1-down-1-up";
const MANY_MADE: &str = "made-16-down-1-up";
const BURST: u32 = 16;

/// Measures all of them.
pub(crate) fn measure(results: &mut Results, rounds: usize, say: &impl Fn(&str)) {
    for _ in 0..rounds {
        let nanos: Vec<_> = OPERATIONS
            .iter()
            .map(|(name, operation)| (*name, nanoseconds(*operation)))
            .collect();
        add(results, "time", "ns", &nanos);
    }
    say("micro: nanoseconds done");
    let counted = OPERATIONS
        .iter()
        .map(|(name, _)| Ok((*name, instructions(name)?)))
        .collect::<Result<Vec<_>>>();
    match counted {
        Ok(counted) => add(results, "instructions", "instructions", &counted),
        Err(error) => results.miss("instructions", None, &format!("{error:#}")),
    }
    say("micro: instructions done");
}

/// Repeats one operation, for valgrind to count.
pub(crate) fn repeat(name: &str, count: u32) -> Result<()> {
    let found = OPERATIONS.iter().find(|(known, _)| *known == name);
    let (_, operation) = found.with_context(|| format!("no operation {name}"))?;
    black_box(operation(count));
    Ok(())
}

fn add(results: &mut Results, metric: &str, unit: &'static str, values: &[(&str, f64)]) {
    for (name, value) in values.iter().filter(|(name, _)| !name.ends_with("-up")) {
        results.add(&format!("{metric}/{name}"), None, unit, *value);
    }
    let get = |wanted: &str| {
        let found = values.iter().find(|(name, _)| *name == wanted);
        found.map_or(f64::NAN, |(_, value)| *value)
    };
    let (down, up) = packets(get(ONE) - get(ONE_MADE), get(MANY) - get(MANY_MADE));
    results.add(&format!("{metric}/translate-data-down"), None, unit, down);
    results.add(&format!("{metric}/translate-ack-up"), None, unit, up);
}

/// What a packet down and an ACK up cost, from what one of each costs and `BURST` of the first with
/// one of the second.
fn packets(one: f64, many: f64) -> (f64, f64) {
    let down = (many - one) / f64::from(BURST - 1);
    (down, one - down)
}

fn nanoseconds(operation: Operation) -> f64 {
    let rounds = (0..ROUNDS).map(|_| operation(REPEATED).as_secs_f64() * 1e9);
    let rounds: Vec<_> = rounds.map(|nanos| nanos / f64::from(REPEATED)).collect();
    median(&rounds)
}

/// Instructions of one repetition: what more repetitions take more.
fn instructions(name: &str) -> Result<f64> {
    let (few, many) = (1000, 6000);
    let counted = (count(name, few)?, count(name, many)?);
    Ok((counted.1 - counted.0) / f64::from(many - few))
}

fn count(name: &str, repetitions: u32) -> Result<f64> {
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]);
    command.arg(env::current_exe()?);
    let output = command
        .args(["micro", name, &repetitions.to_string()])
        .output()
        .context("no valgrind")?;
    let said = String::from_utf8_lossy(&output.stderr);
    let Some(count) = collected(&said) else {
        bail!("valgrind: {}", said.trim());
    };
    Ok(count)
}

/// The number behind `Collected :`.
fn collected(said: &str) -> Option<f64> {
    let line = said.lines().find(|line| line.contains("Collected"))?;
    line.rsplit(' ').next()?.parse().ok()
}

fn timed(work: impl FnOnce()) -> Duration {
    let began = Instant::now();
    work();
    began.elapsed()
}

fn data_options() -> [TcpOption<'static>; 2] {
    [
        TcpOption::Timestamps(Timestamps { val: 1, ecr: 2 }),
        TcpOption::Mptcp(MptcpOption::Dss(Dss {
            data_ack: Some(DataNumber::Long(0x0102_0304_0506_0708)),
            mapping: Some(DssMapping {
                dsn: DataNumber::Long(0x1112_1314_1516_1718),
                ssn: 1,
                len: 1420,
                checksum: None,
            }),
            data_fin: false,
        })),
    ]
}

/// Timestamps and a DSS with both numbers, as in every data packet.
fn parse_options(count: u32) -> Duration {
    let mut writer = OptionWriter::new();
    for option in data_options() {
        writer.push(&option);
    }
    let bytes = writer.finish().to_vec();
    timed(|| {
        for _ in 0..count {
            for option in TcpOptions::new(black_box(&bytes)) {
                let _ = black_box(option);
            }
        }
    })
}

fn emit_options(count: u32) -> Duration {
    let options = data_options();
    timed(|| {
        for _ in 0..count {
            let mut writer = OptionWriter::new();
            for option in black_box(&options) {
                writer.push(option);
            }
            black_box(writer.finish());
        }
    })
}

/// A tree of that many runs that do not merge.
fn tree(runs: u32) -> Lane {
    let mut lane = Lane::default();
    for run in 0..runs {
        lane.append(dsn(run), ssn(run), LEN);
    }
    lane
}

/// Runs with room between them, so that no two merge.
fn dsn(run: u32) -> Dsn {
    Dsn(u64::from(run) * u64::from(2 * LEN))
}

fn ssn(run: u32) -> Ssn {
    Ssn(run.wrapping_mul(2 * LEN))
}

/// Insertion in order, and removal of the oldest run, so that there are always as many.
fn append(count: u32, runs: u32) -> Duration {
    let mut lane = tree(runs);
    timed(|| {
        for new in runs..runs + count {
            lane.append(dsn(new), ssn(new), LEN);
            let oldest = new + 1 - runs;
            lane.release(ssn(oldest), dsn(oldest));
        }
        black_box(&lane);
    })
}

fn by_dsn(count: u32, runs: u32) -> Duration {
    let lane = tree(runs);
    timed(|| {
        for n in 0..count {
            black_box(lane.by_dsn(black_box(dsn(n.wrapping_mul(7919) % runs))));
        }
    })
}

fn by_ssn(count: u32, runs: u32) -> Duration {
    let lane = tree(runs);
    timed(|| {
        for n in 0..count {
            black_box(lane.by_ssn(black_box(ssn(n.wrapping_mul(7919) % runs))));
        }
    })
}

/// `burst` data packets from the server, and the client's ACK of all of them.
fn exchange(count: u32, burst: u32, translate: bool) -> Duration {
    let mut conversation = Conversation::open();
    if !translate {
        conversation.only_make();
    }
    timed(|| {
        for _ in 0..count {
            for _ in 0..burst {
                conversation.data_down();
            }
            conversation.ack_up();
        }
    })
}

/// Repetitions timed together, and how often that is done.
const REPEATED: u32 = 2000;
const ROUNDS: usize = 15;

/// Bytes of a mapping.
const LEN: u32 = 1000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_worked_out_of_pairs() {
        let (down, up) = packets(300.0, 100.0 + 16.0 * 200.0);
        assert!((down - 200.0).abs() < 1e-9 && (up - 100.0).abs() < 1e-9);
    }

    #[test]
    fn valgrind_is_understood() {
        assert_eq!(
            collected("==1== \n==1== Collected : 12345\n"),
            Some(12_345.0)
        );
        assert_eq!(collected("command not found"), None);
    }

    #[test]
    fn every_operation_runs() {
        for (name, _) in OPERATIONS {
            repeat(name, 100).unwrap();
        }
    }
}

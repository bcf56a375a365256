//! Runs fuzz targets on the stable toolchain: the corpus, then mutated inputs, for a number of runs or a
//! time. Says how fast that was, what the slowest input took, and how far memory has grown.
#![forbid(unsafe_code)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use std::{env, fs};

use flexcp_fuzz::mutate::Mutator;
use flexcp_fuzz::{TARGETS, Target, corpus, find};

const USAGE: &str = "usage: flexcp-fuzz [TARGET...] [--runs N | --seconds N] [--seed N] [--minimise FILE] [--replay FILE...]";
/// An input that takes longer, every time it is tried, counts as a hang.
const HANG: Duration = Duration::from_millis(10);
/// Memory that may be added once the first tenth of the runs is over, in KiB.
const GROWTH: u64 = 32 * 1024;

struct Options {
    targets: Vec<&'static Target>,
    runs: u64,
    time: Option<Duration>,
    seed: u64,
    replay: Vec<String>,
    minimise: Option<String>,
}

fn main() -> ExitCode {
    let options = match options(env::args().skip(1)) {
        Ok(options) => options,
        Err(message) => {
            eprintln!("{message}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let mut failed = false;
    for target in &options.targets {
        let run = if let Some(file) = &options.minimise {
            minimise(target, file)
        } else if options.replay.is_empty() {
            fuzz(target, &options)
        } else {
            replay(target, &options.replay)
        };
        match run {
            Ok(line) => println!("{line}"),
            Err(message) => {
                println!("{}: FAILED: {message}", target.name);
                failed = true;
            }
        }
    }
    if failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

fn options(args: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut options = Options {
        targets: Vec::new(),
        runs: 100_000,
        time: None,
        seed: 1,
        replay: Vec::new(),
        minimise: None,
    };
    let mut args = args;
    while let Some(arg) = args.next() {
        let mut number = |name: &str| {
            let value = args
                .next()
                .ok_or_else(|| format!("{name} takes a number"))?;
            value
                .parse::<u64>()
                .map_err(|_| format!("{name}: {value:?} is no number"))
        };
        match arg.as_str() {
            "--runs" => options.runs = number("--runs")?,
            "--seconds" => options.time = Some(Duration::from_secs(number("--seconds")?)),
            "--seed" => options.seed = number("--seed")?,
            "--minimise" => options.minimise = args.next(),
            "--replay" => options.replay = args.by_ref().collect(),
            name => {
                let known = || {
                    TARGETS
                        .iter()
                        .map(|t| t.name)
                        .collect::<Vec<_>>()
                        .join(", ")
                };
                let target = find(name);
                let target = target.ok_or_else(|| format!("no target {name:?}: {}", known()))?;
                options.targets.push(target);
            }
        }
    }
    if options.targets.is_empty() {
        options.targets = TARGETS.iter().collect();
    }
    Ok(options)
}

fn replay(target: &Target, files: &[String]) -> Result<String, String> {
    for file in files {
        let input = fs::read(file).map_err(|error| format!("{file}: {error}"))?;
        (target.run)(&input);
    }
    Ok(format!("{}: {} inputs replayed", target.name, files.len()))
}

/// Makes a failing input shorter and simpler for as long as it fails.
fn minimise(target: &Target, file: &str) -> Result<String, String> {
    let mut input = fs::read(file).map_err(|error| format!("{file}: {error}"))?;
    std::panic::set_hook(Box::new(|_| {}));
    let fails = |input: &[u8]| catch_unwind(AssertUnwindSafe(|| (target.run)(input))).is_err();
    if !fails(&input) {
        return Err(format!("{file} does not fail"));
    }
    loop {
        let before = input.clone();
        let mut size = input.len() / 2;
        while size > 0 {
            let mut at = 0;
            while at + size <= input.len() {
                let mut shorter = input.clone();
                shorter.drain(at..at + size);
                if fails(&shorter) {
                    input = shorter
                } else {
                    at += size
                }
            }
            size /= 2;
        }
        for at in 0..input.len() {
            for simpler in [0, 1, input[at] / 2] {
                let mut other = input.clone();
                other[at] = simpler;
                if simpler < input[at] && fails(&other) {
                    input = other;
                }
            }
        }
        if input == before {
            break;
        }
    }
    fs::write(file, &input).map_err(|error| format!("{file}: {error}"))?;
    Ok(format!(
        "{}: {file} has {} bytes: {input:02x?}",
        target.name,
        input.len()
    ))
}

fn fuzz(target: &Target, options: &Options) -> Result<String, String> {
    let known = corpus::load(target).map_err(|error| error.to_string())?;
    let known: Vec<Vec<u8>> = known.into_iter().map(|(_, input)| input).collect();
    let mut slowest = Duration::ZERO;
    for input in &known {
        slowest = slowest.max(once(target, input)?);
    }
    let mut mutator = Mutator::new(options.seed, &known, target.words, target.max_len);
    let start = Instant::now();
    let (mut runs, mut warm) = (0_u64, None);
    while options
        .time
        .map_or(runs < options.runs, |time| start.elapsed() < time)
    {
        let input = mutator.next_input();
        slowest = slowest.max(once(target, &input)?);
        runs += 1;
        let is_warm = options.time.map_or(runs * 10 >= options.runs, |time| {
            start.elapsed() * 10 >= time
        });
        if warm.is_none() && is_warm {
            warm = Some(resident());
        }
    }
    let growth = resident().saturating_sub(warm.unwrap_or_else(resident));
    let seconds = start.elapsed().as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    let rate = runs as f64 / seconds.max(1e-9);
    let line = format!(
        "{}: {} from the corpus, {runs} mutated in {seconds:.1} s, {rate:.0}/s, slowest {} us, memory +{growth} KiB",
        target.name,
        known.len(),
        slowest.as_micros(),
    );
    if growth > GROWTH {
        return Err(format!("memory grows: {line}"));
    }
    Ok(line)
}

/// Runs one input; what it took. A failure leaves the input in a file.
fn once(target: &Target, input: &[u8]) -> Result<Duration, String> {
    let mut best = Duration::MAX;
    // On a busy machine one slow run means nothing.
    for _ in 0..5 {
        let start = Instant::now();
        let result = catch_unwind(AssertUnwindSafe(|| (target.run)(input)));
        best = best.min(start.elapsed());
        if result.is_err() {
            return Err(format!("panic; input in {}", save(target, input)));
        }
        if best <= HANG {
            return Ok(best);
        }
    }
    Err(format!(
        "{} ms; input in {}",
        best.as_millis(),
        save(target, input)
    ))
}

fn save(target: &Target, input: &[u8]) -> String {
    let hash = input.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    let name = format!("fuzz-{}-{hash:016x}", target.name);
    let path = env::temp_dir().join(name);
    match fs::write(&path, input) {
        Ok(()) => path.display().to_string(),
        Err(error) => format!("nowhere ({error}): {input:02x?}"),
    }
}

/// Memory in use, in KiB; 0 where /proc does not say.
fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}

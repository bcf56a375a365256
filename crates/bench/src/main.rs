//! `bench`: FlexCP beside nginx, haproxy, kernel MPTCP and TCP.

#![forbid(unsafe_code)]

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use clap::{Parser, Subcommand};
use flexcp_bench::{
    Aggregation, Explicit, Figure10, Helping, Memory, Plan, Report, Results, Subject, files, plots,
};
use flexcp_lab::congestion::allow;

/// Measures FlexCP and its peers by turns.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    /// Only 1 MB objects down over 64 connections, in three rounds
    #[arg(long)]
    quick: bool,
    /// Rounds, in each of which every subject has its turn [default: 5, quick: 3, reads: 9]
    #[arg(long)]
    rounds: Option<usize>,
    /// Seconds that count, of each run of a load [default: 3, reads: 10]
    #[arg(long)]
    seconds: Option<f64>,
    /// Cells whose name has this in it (may be given several times)
    #[arg(long)]
    only: Vec<String>,
    /// Subjects [default: all]
    #[arg(long = "subject", value_enum)]
    subjects: Vec<Subject>,
    /// Congestion control of all ends, e.g. cubic [default: the kernel's own choice]
    #[arg(long)]
    congestion: Option<String>,
    /// Connections that are open and idle: when their memory is measured [default: 100000], beside busy ones
    /// [reads: 50000]
    #[arg(long)]
    idle: Option<usize>,
    /// Only what looking at many connections costs, in nine rounds
    #[arg(long)]
    reads: bool,
    /// Exit with an error when a floor is missed
    #[arg(long)]
    strict: bool,
    /// List the cells and measure nothing
    #[arg(long)]
    list: bool,
    /// Where latest.json, latest.md and the plots go
    #[arg(long, default_value = "bench/results")]
    results: PathBuf,
}

/// What is no measurement by turns.
#[derive(Subcommand)]
enum Command {
    /// Downloads over one path, two, one that becomes slow, and two again: the paper's Figure 10
    Figure10(Figure10),
    /// Long downloads by clients that name their server, beside reverse mode
    Explicit(Explicit),
    /// Many connections through an aggregation box, beside the proxy turned around
    Box(Aggregation),
    /// Memory of an aggregation box with many connections that are open and idle
    BoxMemory(Memory),
    #[command(flatten)]
    Helping(Helping),
}

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> Result<()> {
    match cli.command {
        Some(Command::Figure10(figure)) => return figure.run(),
        Some(Command::Explicit(explicit)) => return explicit.run(),
        Some(Command::Box(aggregation)) => return aggregation.run(),
        Some(Command::BoxMemory(memory)) => return memory.run(),
        Some(Command::Helping(helping)) => return helping.run(),
        None => {}
    }
    let (rounds, seconds, idle) = match (cli.reads, cli.quick) {
        (true, _) => (9, 10.0, 50_000),
        (false, true) => (3, 3.0, 100_000),
        (false, false) => (5, 3.0, 100_000),
    };
    let plan = Plan {
        rounds: cli.rounds.unwrap_or(rounds),
        seconds: cli.seconds.unwrap_or(seconds),
        quick: cli.quick,
        only: cli.only,
        subjects: if cli.subjects.is_empty() {
            Subject::ALL.to_vec()
        } else {
            cli.subjects
        },
        congestion: cli.congestion,
        idle: cli.idle.unwrap_or(idle),
    };
    if cli.list {
        for cell in plan.cells() {
            println!("{cell}");
        }
        return Ok(());
    }
    fs::create_dir_all(&cli.results).with_context(|| format!("creating {:?}", cli.results))?;
    let [json, markdown] = files(&cli.results);
    let keep = |results: &Results| {
        results.write(&json)?;
        for (name, plot) in plots(results) {
            fs::write(cli.results.join(name), plot)?;
        }
        let text = Report(results).to_string();
        fs::write(&markdown, text).with_context(|| format!("writing {markdown:?}"))
    };
    let allowed = plan.congestion.as_deref().map(allow).transpose()?;
    let say = |step: &str| eprintln!("{step}");
    let results = if cli.reads {
        plan.run_reads(say, keep)?
    } else {
        plan.run(say, keep)?
    };
    drop(allowed);
    print!("{}", Report(&results));
    let (missed, floors) = results.floors();
    ensure!(!cli.strict || floors > 0, "no floor could be judged");
    ensure!(
        !cli.strict || missed == 0,
        "{missed} of {floors} floors missed"
    );
    Ok(())
}

//! Figures 5a and 5b of T-MPTCP with an aggregation box, beside its peers (`lab box`), and what a gigabyte costs each of them.

mod cost;
mod draw;
mod phases;
mod site;
mod sizes;
mod way;

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use clap::ValueEnum;
use serde::Serialize;

use self::cost::Cost;
use self::phases::Figure5a;
use self::sizes::Cell;
use self::way::{Network, PAYLOAD, QUEUE, RTTS, UPLINKS, sum};
use crate::aim::{self, Line};
use crate::congestion::allow;
use crate::topology::require_root;

/// What to run, and where its results go.
#[derive(Clone, Debug, clap::Args)]
pub struct Aggregation {
    /// One part alone
    #[arg(long, value_enum)]
    only: Option<Part>,
    /// Sizes of downloads in MB
    #[arg(long, value_delimiter = ',', default_values_t = [0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0])]
    sizes: Vec<f64>,
    /// Rounds, in each of which every way has its turn; those of 30 MB and more have two at most, those up to 1 MB five turns each
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// RTTs of the mobile and of the telecom uplink in milliseconds, without queues
    #[arg(long, value_delimiter = ',', default_values_t = RTTS)]
    rtts: Vec<u32>,
    /// Congestion control of all ends; cubic is Linux's default
    #[arg(long, default_value = "cubic")]
    congestion: String,
    /// Where box.json, box.md and the plots go
    #[arg(long, default_value = "lab/results")]
    results: PathBuf,
}

/// A part of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Part {
    /// One download while uplinks come and go
    #[value(name = "5a")]
    Phases,
    /// Downloads by size, beside the peers
    #[value(name = "5b")]
    Sizes,
    /// What a gigabyte costs of processors
    Cost,
}

/// All of it.
#[derive(Clone, Debug, Serialize)]
struct Results {
    /// Of the mobile and of the telecom uplink, in milliseconds.
    rtts: [u32; 2],
    congestion: String,
    sizes: Vec<Cell>,
    phases: Option<Figure5a>,
    cost: Vec<Cost>,
    lines: Vec<Line>,
}

/// Rounds of downloads of which the processors' time is told, for each of the others.
const COSTS: usize = 3;

impl Aggregation {
    /// Runs it, writes everything down and prints the tables.
    ///
    /// # Errors
    ///
    /// An aim is missed, or something could not be run.
    pub fn run(&self) -> Result<()> {
        require_root()?;
        let positive = self.sizes.iter().all(|size| *size > 0.0 && *size < 1e6);
        ensure!(positive, "sizes are MB above 0, as in --sizes 0.1,10");
        let rtts = <[u32; 2]>::try_from(&self.rtts[..]);
        let rtts = rtts.context("RTTs are two, as in --rtts 30,45")?;
        let network = Network {
            rtts,
            congestion: self.congestion.clone(),
        };
        let _allowed = allow(&self.congestion)?;
        let asked = |part| self.only.is_none_or(|only| only == part);
        let mut results = Results {
            rtts,
            congestion: self.congestion.clone(),
            sizes: vec![],
            phases: None,
            cost: vec![],
            lines: vec![],
        };
        if asked(Part::Sizes) {
            results.sizes = sizes::run(&self.sizes, self.rounds, &network)?;
            results.lines.extend(sizes::lines(&results.sizes, rtts));
        }
        if asked(Part::Phases) {
            let figure = phases::run(&network)?;
            results.lines.extend(figure.lines());
            results.phases = Some(figure);
        }
        if asked(Part::Cost) {
            results.cost = cost::run(COSTS * self.rounds, &network)?;
            results.lines.extend(cost::lines(&results.cost));
        }
        self.write(&results)?;
        print!("{}", results.text());
        if self.only == Some(Part::Cost) {
            return Ok(());
        }
        aim::judge(&results.lines)
    }

    fn write(&self, results: &Results) -> Result<()> {
        let plots = [
            (!results.sizes.is_empty()).then(|| ("box-5b.svg", draw::by_size(&results.sizes))),
            results
                .phases
                .as_ref()
                .map(|figure| ("box-5a.svg", draw::by_time(figure))),
        ];
        let texts = [
            ("box.json", serde_json::to_string(results)? + "\n"),
            ("box.md", results.text()),
        ];
        fs::create_dir_all(&self.results)
            .with_context(|| format!("creating {:?}", self.results))?;
        for (name, text) in texts.into_iter().chain(plots.into_iter().flatten()) {
            let file = self.results.join(name);
            fs::write(&file, text).with_context(|| file.display().to_string())?;
        }
        Ok(())
    }
}

impl Results {
    /// For people to read.
    fn text(&self) -> String {
        let mut text = "# An aggregation box beside its peers\n\n".to_owned();
        for (uplink, rtt) in UPLINKS.into_iter().zip(self.rtts) {
            let _ = writeln!(
                text,
                "- {}: {} MB/s of IP packets, {rtt} ms to the far end and back, a queue of {QUEUE} ms.",
                uplink.name,
                uplink.rate()
            );
        }
        let _ = write!(
            text,
            "\nBoth carry {:.2} MB/s of IP packets, {:.2} of payload (1420 of 1500 bytes). All ends have {}.\n",
            sum(),
            sum() * PAYLOAD,
            self.congestion
        );
        if !self.sizes.is_empty() {
            text += "\nMB/s from the SYN to the end of the stream, the middle (slowest to fastest):\n\n";
            text += &sizes::table(&self.sizes);
        }
        if !self.cost.is_empty() {
            text += "\nOver uplinks without a rate, 1 GB each:\n\n";
            text += &cost::table(&self.cost);
        }
        text += "\n";
        text += &aim::table(&self.lines);
        text
    }
}

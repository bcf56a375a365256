//! Figure 10 of the FlexCP paper (`bench figure10`): connections that download all the time, over one path, over two, over
//! two of which one becomes slow, and over both again. What each path carries, every tenth of a second.

mod draw;
mod phases;
mod run;

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result, anyhow};
use clap::{Args, ValueEnum};
use flexcp_lab::aim;
use flexcp_lab::congestion::allow;
use serde::Serialize;

use self::phases::Phases;
use self::run::Run;

/// What to run, and where its results go.
#[derive(Clone, Debug, Args)]
pub struct Figure10 {
    /// How paths are chosen: lines of a [[rule]], over accesses `a` and `b`; empty: no rule
    #[arg(long, default_value = RULE)]
    rule: String,
    /// Connections, each of which downloads objects of 1 MB all the time
    #[arg(long, default_value_t = 256)]
    connections: usize,
    /// Rate of each path in Mbit/s
    #[arg(long, default_value_t = 200)]
    rate_mbit: u32,
    /// What each path keeps waiting, in milliseconds of its rate
    #[arg(long, default_value_t = 60)]
    queue_ms: u32,
    /// With the offload or without it [default: with, then without]
    #[arg(long, value_enum)]
    offload: Option<Offload>,
    /// Seconds of the four phases: one path, two, one of them slow, two again
    #[arg(long, value_delimiter = ',', default_values_t = [8.0, 10.0, 8.0, 14.0])]
    seconds: Vec<f64>,
    /// Congestion control of all ends; cubic is Linux's default
    #[arg(long, default_value = "cubic")]
    congestion: String,
    /// Where figure10.json, figure10.md and the plots go
    #[arg(long, default_value = "bench/results/figure10")]
    results: PathBuf,
}

/// Whether programs in the kernel may translate.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Offload {
    /// They may.
    On,
    /// Every packet goes through the translator.
    Off,
}

impl Offload {
    const fn name(self) -> &'static str {
        match self {
            Self::On => "on",
            Self::Off => "off",
        }
    }
}

/// Runs of one rule.
#[derive(Serialize)]
struct Results<'a> {
    rule: &'a str,
    connections: usize,
    rate_mbit: u32,
    queue_ms: u32,
    congestion: &'a str,
    runs: Vec<Run>,
}

impl Figure10 {
    /// Runs it, writes everything down and prints the table.
    ///
    /// # Errors
    /// An aim is missed, or something could not be run, FlexCP with such a rule for instance.
    pub fn run(&self) -> Result<()> {
        flexcp_lab::require_root()?;
        let phases = Phases::new(&self.seconds)?;
        let _allowed = allow(&self.congestion)?;
        let both = [Offload::On, Offload::Off];
        let asked = both
            .into_iter()
            .filter(|offload| self.offload.is_none_or(|asked| asked == *offload));
        let mut results = Results {
            rule: &self.rule,
            connections: self.connections,
            rate_mbit: self.rate_mbit,
            queue_ms: self.queue_ms,
            congestion: &self.congestion,
            runs: vec![],
        };
        let mut failures = vec![];
        for offload in asked {
            eprintln!("offload {} ...", offload.name());
            let name = offload.name();
            match self.once(offload, &phases) {
                Ok(run) => {
                    let missed = aim::judge(&run.lines).err();
                    failures.extend(missed.map(|error| format!("offload {name}: {error:#}")));
                    results.runs.push(run);
                }
                Err(error) => failures.push(format!("offload {name}: {error:#}")),
            }
            self.write(&results, &phases)?;
        }
        print!("{}", results.text());
        if failures.is_empty() {
            return Ok(());
        }
        Err(anyhow!("{}", failures.join("\n")))
    }

    fn write(&self, results: &Results<'_>, phases: &Phases) -> Result<()> {
        let file = |name: &str| self.results.join(name);
        fs::create_dir_all(&self.results)
            .with_context(|| format!("creating {:?}", self.results))?;
        let json = serde_json::to_string(results)?;
        fs::write(file("figure10.json"), json + "\n")?;
        fs::write(file("figure10.md"), results.text())?;
        for run in &results.runs {
            let plot = draw::plot(run, phases);
            fs::write(file(&format!("offload-{}.svg", run.offload.name())), plot)?;
        }
        Ok(())
    }
}

impl Results<'_> {
    /// For people to read.
    fn text(&self) -> String {
        let mut text = format!(
            "{} connections, two paths of {} Mbit/s with queues of {} ms, {}.\n\n```\n{}\n```\n",
            self.connections, self.rate_mbit, self.queue_ms, self.congestion, self.rule
        );
        for run in &self.runs {
            text += &format!("\n## Offload {}\n\n", run.offload.name());
            text += &aim::table(&run.lines);
        }
        text
    }
}

/// The policy of the paper: load balancing, away from a path that has become slow.
const RULE: &str = "mode = \"load-balancing\"\nweights = { a = 50, b = 50 }\nmax_rtt = \"80ms\"\nhold = \"1s\"\n\
                    fail_back = \"2s\"";

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        figure: Figure10,
    }

    #[test]
    fn phases_are_as_asked_for() {
        let figure = Cli::parse_from(["figure10"]).figure;
        assert_eq!(figure.seconds, [8.0, 10.0, 8.0, 14.0]);
        Phases::new(&figure.seconds).expect("long enough");
        let four = Cli::parse_from(["figure10", "--seconds", "1,2,3,4.5"]).figure;
        assert_eq!(four.seconds, [1.0, 2.0, 3.0, 4.5]);
    }
}

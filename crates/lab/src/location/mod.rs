//! Table 1 of T-MPTCP on sockets (`lab location`): a box chooses among five aggregation servers, and downloads by each show whether it is
//! right.

mod choice;
mod draw;
mod paper;
mod site;

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;

use self::choice::Choice;
use self::paper::{ORDER, TABLE, numbers, order};
use self::site::{Leads, Site};
use crate::aim::{self, Line};
use crate::statistics::median;
use crate::transfer::Job;

/// What to run, and where its results go.
#[derive(Clone, Debug, clap::Args)]
pub struct Location {
    /// Rounds, in each of which there is a download by every server
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// How long a download takes, in seconds, if it goes as the paper predicts
    #[arg(long, default_value_t = 12.0)]
    seconds: f64,
    /// How long the box is watched while nothing changes, in seconds
    #[arg(long, default_value_t = 180)]
    stable: u64,
    /// How often the best server becomes slow, and fast again
    #[arg(long, default_value_t = 3)]
    changes: u32,
    /// Where location.json, location.md and location.svg go
    #[arg(long, default_value = "lab/results")]
    results: PathBuf,
}

/// The box's interval between two rounds of probes over a path, in seconds, and its hold time, two fifths of it.
const INTERVAL: u64 = 10;
const HOLD: f64 = 4.0;

/// A server: rates in Mbit/s.
#[derive(Clone, PartialEq, Debug, Serialize)]
struct Row {
    /// As the paper counts.
    server: usize,
    /// The paper's min(ΣB, Bs), and what it has measured.
    predicted: f64,
    papers: f64,
    /// What the box has measured, the middle of the looks at it.
    measured: f64,
    /// Payload of downloads.
    downloads: Vec<f64>,
}

/// All of it.
#[derive(Clone, Debug, Serialize)]
struct Results {
    rows: Vec<Row>,
    choice: Choice,
    lines: Vec<Line>,
}

impl Location {
    /// Runs it, writes everything down and prints the table.
    ///
    /// # Errors
    ///
    /// An aim is missed, or something could not be run.
    pub fn run(&self) -> Result<()> {
        ensure!(
            self.rounds > 0 && self.seconds > 0.0 && self.seconds < 1000.0,
            "a round at least, of downloads of some seconds"
        );
        let site = Site::build()?;
        let results = self.measure(&site).with_context(|| site.logs())?;
        site.end()?;
        results.write(self)?;
        print!("{}{}", table(&results.rows), aim::table(&results.lines));
        aim::judge(&results.lines)
    }

    fn measure(&self, site: &Site) -> Result<Results> {
        let downloads = self.downloads(site)?;
        let choice = Choice::measure(site, self.stable, self.changes)?;
        let rows = rows(&choice, downloads);
        let mut lines = lines(&rows);
        lines.extend(choice.lines());
        Ok(Results {
            rows,
            choice,
            lines,
        })
    }

    /// Mbit/s of downloads by each server, from the SYN to their ends.
    fn downloads(&self, site: &Site) -> Result<Vec<Vec<f64>>> {
        let flexcp = site.start_box(Leads::Each)?;
        let mut rates = vec![vec![]; TABLE.len()];
        for round in 1..=self.rounds {
            for (at, server) in TABLE.iter().enumerate() {
                let job = Job::down(bytes(server.predicted(), self.seconds));
                let before = site.carried()?;
                let report = site.run(&job, Some(at)).with_context(|| flexcp.log())?;
                let now = site.carried()?;
                ensure!(
                    now[at] == before[at] + 1,
                    "a download by server {} went elsewhere",
                    at + 1
                );
                #[allow(clippy::cast_precision_loss, reason = "bits in microseconds")]
                let rate = (8 * job.down) as f64 / (report.connect_us + report.total_us) as f64;
                eprintln!("round {round}, server {}: {rate:.1} Mbit/s", at + 1);
                rates[at].push(rate);
            }
        }
        let joins = flexcp.show_stats()?.counter("mp_join_synack_rx")?;
        let downloads = self.rounds * TABLE.len();
        ensure!(
            joins >= downloads as u64,
            "{joins} joins of {downloads} downloads"
        );
        flexcp.terminate()?;
        Ok(rates)
    }
}

/// Bytes of a download that takes so long at this rate in Mbit/s.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "some megabytes"
)]
fn bytes(mbit: f64, seconds: f64) -> u64 {
    (mbit * 125_000.0 * seconds) as u64
}

fn rows(choice: &Choice, downloads: Vec<Vec<f64>>) -> Vec<Row> {
    let measured = (0..TABLE.len()).map(|server| choice.carries(server));
    let each = TABLE.iter().zip(measured).zip(downloads);
    let rows = (1..)
        .zip(each)
        .map(|(number, ((server, measured), downloads))| Row {
            server: number,
            predicted: server.predicted(),
            papers: server.throughput,
            measured,
            downloads,
        });
    rows.collect()
}

/// What the box has measured and what downloads had, beside the paper's order.
fn lines(rows: &[Row]) -> Vec<Line> {
    let paper = numbers(&ORDER);
    let ordered = |what: &str, of: &dyn Fn(&Row) -> f64| {
        let figures: Vec<_> = rows.iter().map(of).collect();
        let is = numbers(&order(&figures));
        let met = is == paper && figures.iter().all(|figure| figure.is_finite());
        Line::judged(what, paper.clone(), is, met)
    };
    vec![
        ordered("order by what the box measured", &|row| row.measured),
        ordered("order of downloads by each server", &|row| {
            median(&row.downloads)
        }),
    ]
}

/// The paper's table, with what it is here.
fn table(rows: &[Row]) -> String {
    let mut text = "Mbit/s\n\n| server | min(ΣB, Bs) | measured by the box | downloads, the middle (least to most) | \
                    of min(ΣB, Bs) | downloads in the paper |\n|---|---|---|---|---|---|\n"
        .to_owned();
    for row in rows {
        let rate = median(&row.downloads);
        let least = row.downloads.iter().copied().fold(f64::NAN, f64::min);
        let most = row.downloads.iter().copied().fold(f64::NAN, f64::max);
        let _ = writeln!(
            text,
            "| {} | {:.1} | {:.1} | {rate:.1} ({least:.1} to {most:.1}) | {:.0} % | {:.1} |",
            row.server,
            row.predicted,
            row.measured,
            100.0 * rate / row.predicted,
            row.papers
        );
    }
    text + "\n"
}

impl Results {
    fn write(&self, run: &Location) -> Result<()> {
        fs::create_dir_all(&run.results)?;
        let text = format!(
            "# T-MPTCP's Table 1: a box and five aggregation servers, {INTERVAL} s between probes\n\n{}{}",
            table(&self.rows),
            aim::table(&self.lines)
        );
        for (name, text) in [
            ("location.json", serde_json::to_string_pretty(self)? + "\n"),
            ("location.md", text),
            ("location.svg", draw::bars(&self.rows)),
        ] {
            let file = run.results.join(name);
            fs::write(&file, text).with_context(|| file.display().to_string())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn papers(measured: [f64; 5]) -> Vec<Row> {
        let rows = (1..).zip(TABLE).zip(measured);
        let rows = rows.map(|((server, of), measured)| Row {
            server,
            predicted: of.predicted(),
            papers: of.throughput,
            measured,
            downloads: vec![of.throughput, 0.0, 90.0],
        });
        rows.collect()
    }

    #[test]
    fn orders_are_judged_by_the_middle_and_by_the_papers() {
        let met = |measured| {
            lines(&papers(measured))
                .iter()
                .map(|line| line.met)
                .collect::<Vec<_>>()
        };
        assert_eq!(met([35.0, 38.0, 47.0, 15.0, 18.0]), [true, true]);
        assert_eq!(met([38.0, 35.0, 47.0, 15.0, 18.0]), [false, true]);
        assert_eq!(met([35.0, 38.0, 47.0, f64::NAN, 18.0]), [false, true]);
        let mut slow = papers([35.0, 38.0, 47.0, 15.0, 18.0]);
        slow[4].downloads = vec![1.0];
        assert_eq!(lines(&slow)[1].figure, "3, 2, 1, 4, 5");
        assert!(!lines(&slow)[1].met);
        assert!(table(&slow).contains("| 3 | 47.3 | 47.0 | 36.9 (0.0 to 90.0) | 78 % | 36.9 |"));
        assert_eq!(bytes(8.0, 2.0), 2_000_000);
    }
}

//! An aggregation box beside the proxy turned around (`bench box`): many connections of two subflows over links without a limit, by
//! turns in one lab and through one FlexCP. The same stream goes the same way through both, from MPTCP to TCP or back; what differs is
//! who opened the connection.

mod memory;
mod scene;

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::Args;
use flexcp_lab::aim::{self, Line};
use flexcp_lab::require_root;
use flexcp_lab::statistics::median;
use serde::Serialize;

pub use self::memory::Memory;
use self::scene::{Run, Scene};
use crate::turns::{self, beside, spread};

/// What to run, and where its results go.
#[derive(Clone, Debug, Args)]
pub struct Aggregation {
    /// Rounds, in each of which every way has its turn
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// Seconds that count, of each turn
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Connections at once
    #[arg(long, default_value_t = 64)]
    connections: u64,
    /// Where box.json and box.md go
    #[arg(long, default_value = "bench/results/box")]
    results: PathBuf,
}

/// Who opens the connections, and which way the bytes go.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Way {
    /// TCP clients in the LAN download through the box, over all uplinks.
    BoxDown,
    /// MPTCP clients upload to TCP servers, over both of their links.
    ReverseUp,
    /// TCP clients in the LAN upload through the box, each over one uplink.
    BoxUp,
    /// MPTCP clients download from TCP servers, each over one of their links.
    ReverseDown,
}

const WAYS: [Way; 4] = [Way::BoxDown, Way::ReverseUp, Way::BoxUp, Way::ReverseDown];

/// The box, and the proxy whose bytes go the same way.
const PAIRS: [(Way, Way); 2] = [
    (Way::BoxDown, Way::ReverseUp),
    (Way::BoxUp, Way::ReverseDown),
];

/// How much worse than the other of its pair the box may be, of 1.
const TOLERANCE: f64 = 0.1;

/// All of one way.
type Row = turns::Row<Way, Run>;

/// All of it.
#[derive(Clone, Debug, Serialize)]
struct Results {
    connections: u64,
    rows: Vec<Row>,
    lines: Vec<Line>,
}

impl Way {
    const fn name(self) -> &'static str {
        match self {
            Self::BoxDown => "box, down",
            Self::ReverseUp => "reverse mode, up",
            Self::BoxUp => "box, up",
            Self::ReverseDown => "reverse mode, down",
        }
    }

    /// Whether the client in the LAN opens the connections.
    const fn is_box(self) -> bool {
        matches!(self, Self::BoxDown | Self::BoxUp)
    }

    /// Whether the bytes come by MPTCP and leave by TCP.
    const fn is_to_tcp(self) -> bool {
        matches!(self, Self::BoxDown | Self::ReverseUp)
    }
}

impl Aggregation {
    /// Runs it, writes everything down and prints the table.
    ///
    /// # Errors
    /// An aim is missed, or something could not be run.
    pub fn run(&self) -> Result<()> {
        require_root()?;
        let scene = Scene::build()?;
        let mut rows = WAYS.map(|way| Row { way, runs: vec![] });
        for round in 0..self.rounds {
            for turn in 0..WAYS.len() {
                let row = &mut rows[(round + turn) % WAYS.len()];
                let run = scene.pour(row.way, self.connections, self.seconds);
                let run = run.with_context(|| format!("{}: {}", row.way.name(), scene.log()))?;
                eprintln!(
                    "{}/{} {}: {:.0} MB/s, {:.2} CPU s/GB, others {:.2} CPUs",
                    round + 1,
                    self.rounds,
                    row.way.name(),
                    run.megabytes,
                    run.cpu,
                    run.foreign
                );
                row.runs.push(run);
            }
        }
        scene.end()?;
        let results = Results {
            connections: self.connections,
            lines: lines(&rows),
            rows: rows.into(),
        };
        self.write(&results)?;
        print!("{}", results.text());
        aim::judge(&results.lines)
    }

    fn write(&self, results: &Results) -> Result<()> {
        fs::create_dir_all(&self.results)
            .with_context(|| format!("creating {:?}", self.results))?;
        let json = serde_json::to_string(results)? + "\n";
        fs::write(self.results.join("box.json"), json)?;
        fs::write(self.results.join("box.md"), results.text())?;
        Ok(())
    }
}

fn lines(rows: &[Row]) -> Vec<Line> {
    let mut lines = vec![];
    for row in rows {
        let name = row.way.name();
        let of = |of: fn(&Run) -> f64| row.runs.iter().map(of).collect::<Vec<_>>();
        for (what, figure) in [
            ("MB/s", spread(&of(|run| run.megabytes), 0)),
            ("CPU seconds for each GB", spread(&of(|run| run.cpu), 2)),
            (
                "of the packets with data in the kernel, %",
                spread(&of(|run| run.in_kernel), 1),
            ),
            (
                "CPUs that others kept busy",
                spread(&of(|run| run.foreign), 2),
            ),
        ] {
            lines.push(Line::told(format!("{what}, {name}"), figure));
        }
    }
    for pair in PAIRS {
        let names = format!("{} of {}", pair.0.name(), pair.1.name());
        let rates = beside(rows, pair, |run| run.megabytes);
        let what = format!("throughput: {names}");
        lines.push(Line::at_least(what, median(&rates), 1.0 - TOLERANCE, ""));
        lines.push(Line::told("its spread", spread(&rates, 2)));
        let cpu = beside(rows, pair, |run| run.cpu);
        let what = format!("CPU time for each GB: {names}");
        lines.push(Line::at_most(what, median(&cpu), 1.0 + TOLERANCE, ""));
        lines.push(Line::told("its spread", spread(&cpu, 2)));
    }
    let downs = (Way::BoxDown, Way::ReverseDown);
    let told = [
        beside(rows, downs, |run| run.megabytes),
        beside(rows, downs, |run| run.cpu),
    ];
    let told = told.map(|ratios| spread(&ratios, 2));
    lines.push(Line::told(
        "downloads by the box, of those by reverse mode",
        format!("{} of the throughput, {} of the CPU time", told[0], told[1]),
    ));
    lines
}

impl Results {
    /// For people to read.
    fn text(&self) -> String {
        format!(
            "{} connections of two subflows, links without a limit, {} rounds.\n\n{}",
            self.connections,
            self.rows.first().map_or(0, |row| row.runs.len()),
            aim::table(&self.lines)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(way: Way, megabytes: &[f64], cpu: f64) -> Row {
        let run = |&megabytes: &f64| Run {
            megabytes,
            cpu,
            foreign: 0.0,
            in_kernel: 99.0,
        };
        Row {
            way,
            runs: megabytes.iter().map(run).collect(),
        }
    }

    fn missed(rows: &[Row]) -> Vec<String> {
        let lines = lines(rows).into_iter().filter(|line| !line.met);
        lines.map(|line| line.what).collect()
    }

    #[test]
    fn each_direction_is_held_against_the_same_of_the_proxy() {
        let rows = [
            row(Way::BoxDown, &[910.0, 500.0, 91.0], 1.09),
            row(Way::ReverseUp, &[1000.0, 500.0, 100.0], 1.0),
            row(Way::BoxUp, &[890.0, 500.0, 89.0], 1.11),
            row(Way::ReverseDown, &[1000.0, 500.0, 100.0], 1.0),
        ];
        assert_eq!(
            missed(&rows),
            [
                "throughput: box, up of reverse mode, down",
                "CPU time for each GB: box, up of reverse mode, down"
            ]
        );
    }

    #[test]
    fn nothing_measured_misses_the_aims() {
        assert_eq!(missed(&WAYS.map(|way| row(way, &[], 1.0))).len(), 4);
    }
}

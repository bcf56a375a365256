//! Many connections with much data over links that lose single segments: does the client ever see a mapping
//! that does not fit?

use std::fmt;
use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;

use crate::counters::{Mib, Oracle};
use crate::daemon::{self, FlexCp};
use crate::fault::Direction;
use crate::topology::{Families, Family, Lab};
use crate::transfer::{Client, Job, ServeOptions, Server};

const PORT: u16 = 5000;
/// What tells that a mapping did not fit, or what came of it.
pub const MISFITS: [&str; 4] = ["DSSNotMatching", "DSSNoMatchTCP", "DssFallback", "MPRstTx"];

/// What to run.
#[derive(Clone, Debug)]
pub struct Lossy {
    /// Loss in each direction of both links, each for itself, e.g. `0.1%`.
    pub losses: Vec<String>,
    /// Connections at once, of two subflows each.
    pub connections: usize,
    /// Of all connections at all losses together, up and down together.
    pub bytes: u64,
    /// Chooses the luck of every packet and the payload.
    pub seed: u64,
}

/// What came of one loss.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// In each direction of both links.
    pub loss: String,
    /// Bytes that arrived and were right, up and down together.
    pub bytes: u64,
    /// How long it took, in seconds.
    pub seconds: f64,
    /// Connections at once.
    pub connections: usize,
    /// Subflows that were joined.
    pub joined: i64,
    /// Packets that the links have lost.
    pub lost: u64,
    /// The client's [`MISFITS`].
    pub misfits: [i64; 4],
    /// All counters of the client that tell something and moved.
    pub client: Mib,
}

/// All rows.
#[derive(Clone, Debug, Serialize)]
pub struct Results {
    /// One for each loss.
    pub rows: Vec<Row>,
}

impl Lossy {
    /// Runs everything; `say` hears of each row.
    ///
    /// # Errors
    ///
    /// A transfer failed, or bytes were wrong.
    pub fn run(&self, say: impl Fn(&Row)) -> Result<Results> {
        let mut rows = vec![];
        for loss in &self.losses {
            let row = self.row(loss)?;
            say(&row);
            rows.push(row);
        }
        Ok(Results { rows })
    }

    /// Without offloads, so that it is segments of a burst that are lost.
    fn row(&self, loss: &str) -> Result<Row> {
        let faults = format!("loss={loss}");
        let mut builder = Lab::builder()
            .families(Families::V4)
            .offloads(false)
            .fault_seed(self.seed);
        for link in [1, 2] {
            for direction in [Direction::Up, Direction::Down] {
                builder = builder.faults(link, direction, &faults);
            }
        }
        let lab = builder.build()?;
        let server = Server::start(lab.server(1), ServeOptions::tcp(PORT))?;
        let flexcp = FlexCp::start(&lab, &daemon::config(&lab, &daemon::transparent(&lab, &[])))?;
        let oracle = Oracle::start(&lab)?;
        let shares = (self.losses.len() * self.connections * 2) as u64;
        let job = Job::both((self.bytes / shares).max(1)).seed(self.seed);
        let client = Client::mptcp(lab.server_socket(1, Family::V4, PORT));
        let start = Instant::now();
        let reports = client.run_many_in(lab.client(), self.connections, &job)?;
        let seconds = start.elapsed().as_secs_f64();
        let mut bytes = 0;
        for report in &reports {
            report.ok()?;
            bytes += report.up + report.down;
        }
        let mib = oracle.client(&lab)?;
        let mut lost = 0;
        for link in [1, 2] {
            let counters = lab.link_counters(link)?;
            lost += counters.up.lost_loss + counters.down.lost_loss;
        }
        drop(server);
        flexcp.stop()?;
        Ok(Row {
            loss: loss.to_owned(),
            bytes,
            seconds,
            connections: self.connections,
            joined: mib.get("MPJoinSynAckRx"),
            lost,
            misfits: MISFITS.map(|name| mib.get(name)),
            client: mib.telling(),
        })
    }
}

impl Results {
    /// Writes `lossy.json` in `directory`.
    ///
    /// # Errors
    ///
    /// It can't be written.
    pub fn write(&self, directory: &Path) -> Result<()> {
        fs::create_dir_all(directory)?;
        let file = directory.join("lossy.json");
        let text = serde_json::to_string_pretty(self)?;
        fs::write(&file, text + "\n").with_context(|| file.display().to_string())
    }

    /// No mapping misfitted, every connection had its second subflow, and packets were lost at all.
    ///
    /// # Errors
    ///
    /// Says which was otherwise.
    pub fn judge(&self) -> Result<()> {
        for row in &self.rows {
            let Row { loss, misfits, .. } = row;
            ensure!(*misfits == [0; 4], "at {loss}: {MISFITS:?} are {misfits:?}");
            let connections = i64::try_from(row.connections)?;
            ensure!(
                row.joined >= connections,
                "at {loss}: {} subflows were joined to {connections} connections",
                row.joined
            );
            ensure!(row.lost > 0, "at {loss}: no packet was lost");
        }
        Ok(())
    }
}

impl fmt::Display for Results {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "| loss | bytes | seconds | packets lost | joined | {} |\n|---|---|---|---|---|---|---|---|---|",
            MISFITS.join(" | ")
        )?;
        for row in &self.rows {
            writeln!(f, "{row}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            loss,
            bytes,
            lost,
            joined,
            ..
        } = self;
        write!(
            f,
            "| {loss} | {bytes} | {:.0} | {lost} | {joined} |",
            self.seconds
        )?;
        self.misfits
            .iter()
            .try_for_each(|value| write!(f, " {value} |"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> Row {
        Row {
            loss: "1%".to_owned(),
            bytes: 10,
            seconds: 1.5,
            connections: 64,
            joined: 64,
            lost: 7,
            misfits: [0; 4],
            client: Mib::default(),
        }
    }

    fn passes(row: Row) -> bool {
        Results { rows: vec![row] }.judge().is_ok()
    }

    #[test]
    fn row_passes_only_without_misfits_with_joins_and_with_loss() {
        assert!(passes(row()));
        assert!(!passes(Row {
            misfits: [0, 0, 1, 0],
            ..row()
        }));
        assert!(!passes(Row {
            joined: 63,
            ..row()
        }));
        assert!(!passes(Row { lost: 0, ..row() }));
    }

    #[test]
    fn table_has_a_column_for_each_misfit() {
        let results = Results { rows: vec![row()] };
        let text = results.to_string();
        let columns = |line: &str| line.matches('|').count();
        assert!(text.lines().all(|line| columns(line) == 10), "{text}");
        assert!(
            text.contains("| 1% | 10 | 2 | 7 | 64 | 0 | 0 | 0 | 0 |"),
            "{text}"
        );
    }
}

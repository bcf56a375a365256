//! The fault matrix: small transfers through FlexCP, one cell for each combination of a fault, an IP
//! version, a direction, a number of subflows and offloads; on each [`Side`] that FlexCP may be.
//!
//! [`rows`] says which faults there are, [`Cell::all`] makes the cells, [`run`] runs one, [`write()`]
//! puts the results down.

mod cell;
mod judge;
mod report;
mod rows;
mod run;
mod scene;

use std::path::PathBuf;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

pub use cell::{Cell, Side, Way};
pub use report::write;
pub use rows::{Allow, Joins, Mirror, Reach, Row, Verdict, rows};
pub use run::{Outcome, run};

/// Which cells to run, and for how long.
#[derive(Clone, Debug)]
pub struct Matrix {
    /// What FlexCP is in them.
    pub sides: Vec<Side>,
    /// Cells whose name has one of these in it; all when there are none.
    pub only: Vec<String>,
    /// At most that many, spread over the whole list.
    pub sample: Option<usize>,
    /// No cell starts later than that.
    pub limit: Option<Duration>,
    /// Cells at once.
    pub jobs: usize,
    /// Chooses the luck of every packet and the payload.
    pub seed: u64,
    /// Where captures of failed cells go; they cost time.
    pub captures: Option<PathBuf>,
}

impl Matrix {
    /// The cells chosen, in the order of the rows.
    pub fn cells(&self) -> Vec<Cell> {
        let mut cells: Vec<_> = self.sides.iter().copied().flat_map(Cell::all).collect();
        if !self.only.is_empty() {
            cells.retain(|cell| {
                let name = cell.name();
                self.only.iter().any(|part| name.contains(part.as_str()))
            });
        }
        let Some(sample) = self.sample.filter(|sample| *sample < cells.len()) else {
            return cells;
        };
        let len = cells.len();
        (0..sample)
            .map(|number| cells[number * len / sample].clone())
            .collect()
    }

    /// Runs the cells; `each` hears of every outcome at once.
    pub fn run(&self, each: impl Fn(&Outcome) + Sync) -> Result<Vec<Outcome>> {
        let start = Instant::now();
        let cells = self.cells();
        let next = Mutex::new(cells.iter().enumerate());
        let outcomes = Mutex::new(vec![]);
        let work = || {
            while self.limit.is_none_or(|limit| start.elapsed() < limit) {
                let Some((index, cell)) = lock(&next).next() else {
                    return;
                };
                let outcome = run(cell, self.seed, self.captures.as_deref());
                each(&outcome);
                lock(&outcomes).push((index, outcome));
            }
        };
        thread::scope(|scope| {
            for _ in 0..self.jobs.max(1) {
                scope.spawn(work);
            }
        });
        let mut outcomes = outcomes.into_inner()?;
        outcomes.sort_by_key(|(index, _)| *index);
        Ok(outcomes.into_iter().map(|(_, outcome)| outcome).collect())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

//! The run: groups, rounds, and whose turn it is.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use flexcp_lab::statistics::median;
use flexcp_lab::transfer::raise_file_limit;
use flexcp_lab::{Sweep, require_root, sweep};

use crate::circumstances;
use crate::measure::{self, Group, Pace};
use crate::record::Results;
use crate::rig::{Rig, Subject};
use crate::{memory, micro};

/// What to measure, and how often.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Rounds, in each of which every subject has its turn.
    pub rounds: usize,
    /// Seconds that count, of each run of a load.
    pub seconds: f64,
    /// The first item alone: 1 MB objects down over 64 connections.
    pub quick: bool,
    /// Cells whose name has one of these in it; all when there are none.
    pub only: Vec<String>,
    /// Of whom.
    pub subjects: Vec<Subject>,
    /// Congestion control of all ends; the kernel's own choice when there is none.
    pub congestion: Option<String>,
    /// Connections that are open and idle when their memory is measured, or beside busy ones.
    pub idle: usize,
}

impl Plan {
    /// Names of the cells it will measure.
    pub fn cells(&self) -> Vec<String> {
        let cells = |group: Group| {
            group
                .cells
                .into_iter()
                .map(move |cell| full(group.name, &cell.name))
        };
        let loads = self.groups().into_iter().flat_map(cells);
        let others = [MICRO, MEMORY].into_iter().filter(|name| self.wants(name));
        loads.chain(others.map(str::to_owned)).collect()
    }

    /// Whether what is neither load nor in the first item is to be measured.
    fn wants(&self, name: &str) -> bool {
        !self.quick && (self.only.is_empty() || self.only.iter().any(|only| name.contains(only)))
    }

    /// Measures; `say` hears of each step, and `keep` gets the results after every round.
    ///
    /// # Errors
    /// When this machine can't run any of it; a subject that fails is in the results.
    pub fn run(
        &self,
        say: impl Fn(&str),
        keep: impl Fn(&Results) -> Result<()>,
    ) -> Result<Results> {
        require_root()?;
        sweep(Sweep::Leftovers);
        raise_file_limit()?;
        let mut results = Results {
            circumstances: circumstances::gather(self)?,
            ..Results::default()
        };
        let mut foreign = vec![];
        for group in self.groups() {
            self.measure(&group, &mut results, &mut foreign, &say, &keep)?;
        }
        if self.wants(MICRO) {
            micro::measure(&mut results, self.rounds, &say);
            keep(&results)?;
        }
        if self.wants(MEMORY) {
            memory::measure(&mut results, &self.subjects, self.idle, &say);
            keep(&results)?;
        }
        ensure!(!results.records.is_empty(), "nothing could be measured");
        Ok(results)
    }

    fn groups(&self) -> Vec<Group> {
        let mut groups = if self.quick {
            measure::quick()
        } else {
            measure::all()
        };
        for group in &mut groups {
            group.setting.congestion.clone_from(&self.congestion);
            let chosen = |cell: &str| {
                let name = full(group.name, cell);
                self.only.is_empty() || self.only.iter().any(|only| name.contains(only))
            };
            group.cells.retain(|cell| chosen(&cell.name));
            group
                .subjects
                .retain(|subject| self.subjects.contains(subject));
        }
        groups.retain(|group| !group.cells.is_empty() && !group.subjects.is_empty());
        groups
    }

    /// Builds a rig and has it pass objects. A peer whose kernel alters one has two more attempts, so
    /// that it can be measured at all; each that failed is in the results.
    fn rig(&self, subject: Subject, group: &Group, results: &mut Results) -> Result<Rig> {
        let rig = Rig::build(subject, &group.setting)?;
        let attempts = if subject.is_flexcp() { 1 } else { 3 };
        for attempt in 1..=attempts {
            match rig.verify(group.setting.objects[0]) {
                Ok(()) => break,
                Err(error) if attempt == attempts => return Err(error),
                Err(error) => results.miss(group.name, Some(subject), &format!("{error:#}; again")),
            }
        }
        Ok(rig)
    }

    fn measure(
        &self,
        group: &Group,
        results: &mut Results,
        foreign: &mut Vec<f64>,
        say: &impl Fn(&str),
        keep: &impl Fn(&Results) -> Result<()>,
    ) -> Result<()> {
        let mut rigs = vec![];
        for subject in group.subjects.iter().copied() {
            match self.rig(subject, group, results) {
                Ok(rig) => rigs.push(rig),
                Err(error) => {
                    say(&format!("{}: {}: {error:#}", group.name, subject.name()));
                    results.miss(group.name, Some(subject), &format!("{error:#}"));
                }
            }
        }
        let earlier = results.circumstances.backlog_drops;
        let drops = circumstances::backlog_drops();
        let pace = Pace {
            warm: Duration::from_secs_f64(WARM),
            time: Duration::from_secs_f64(self.seconds),
        };
        for round in 0..self.rounds {
            for cell in &group.cells {
                let name = full(group.name, &cell.name);
                for at in turns(rigs.len(), round) {
                    let rig = &rigs[at];
                    let run = match cell.work.run(rig, pace) {
                        Ok(run) => run,
                        Err(error) => {
                            say(&format!("{name}: {}: {error:#}", rig.subject.name()));
                            results.miss(&name, Some(rig.subject), &format!("{error:#}"));
                            continue;
                        }
                    };
                    foreign.push(run.foreign);
                    let mut said = format!(
                        "{}/{} {name}: {}",
                        round + 1,
                        self.rounds,
                        rig.subject.name()
                    );
                    for (metric, unit, value) in run.figures {
                        said.push_str(&format!("  {value:.3} {unit}"));
                        let name = format!("{metric}/{}", cell.name);
                        results.add(&name, Some(rig.subject), unit, value);
                    }
                    say(&said);
                }
            }
            results.circumstances.foreign_median = median(foreign);
            results.circumstances.foreign_max = foreign.iter().copied().fold(0.0, f64::max);
            let dropped = circumstances::backlog_drops().saturating_sub(drops);
            results.circumstances.backlog_drops = earlier + dropped;
            keep(results)?;
        }
        Ok(())
    }
}

/// Who goes when: every round begins with the next one.
pub(crate) fn turns(count: usize, round: usize) -> impl Iterator<Item = usize> {
    (0..count).map(move |turn| (turn + round) % count)
}

fn full(group: &str, cell: &str) -> String {
    format!("{group}/{cell}")
}

/// Where the results are written.
#[must_use]
pub fn files(directory: &Path) -> [std::path::PathBuf; 2] {
    ["latest.json", "latest.md"].map(|name| directory.join(name))
}

/// Seconds before those that count.
const WARM: f64 = 0.7;

/// What is no load.
const MICRO: &str = "micro";
const MEMORY: &str = "memory";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everyone_has_each_turn() {
        let rounds: Vec<Vec<usize>> = (0..3).map(|round| turns(3, round).collect()).collect();
        assert_eq!(rounds, [[0, 1, 2], [1, 2, 0], [2, 0, 1]]);
        assert_eq!(turns(0, 1).count(), 0);
    }

    fn plan(only: &[&str]) -> Plan {
        Plan {
            rounds: 1,
            seconds: 1.0,
            quick: false,
            only: only.iter().map(|&name| name.to_owned()).collect(),
            subjects: Subject::ALL.to_vec(),
            congestion: None,
            idle: 0,
        }
    }

    #[test]
    fn cells_are_chosen_by_a_part_of_their_name() {
        assert_eq!(plan(&["bulk/up/256x1"]).cells(), ["bulk/up/256x1"]);
        assert_eq!(plan(&["/64MB"]).cells(), ["small/64MB"]);
        assert!(plan(&["nothing"]).cells().is_empty());
        let mut all = plan(&[]).cells();
        let count = all.len();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), count, "names of cells are unique");
    }

    #[test]
    fn quick_is_the_first_item() {
        let quick = Plan {
            quick: true,
            ..plan(&[])
        };
        assert_eq!(quick.cells(), ["bulk/down/64x1", "bulk/down/64x2"]);
    }
}

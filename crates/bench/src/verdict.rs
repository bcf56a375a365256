//! FlexCP against the others, and against the floors that it is held to.

use flexcp_lab::statistics::median;

use crate::record::{Missing, Results};
use crate::rig::Subject;

/// Something FlexCP is held to.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Floor {
    subject: Subject,
    against: Subject,
    kind: Kind,
    /// Least ratio, or greatest share.
    bound: f64,
    /// What the names of its cells end with; nothing: those of the main measurement.
    cells: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// Throughput of the subject, divided by the other's.
    Throughput,
    /// CPU time per byte that the subject adds to what TCP takes, divided by what the other adds.
    AddedCpu,
    /// Throughput divided by the other's of the same round, the middle of all rounds.
    Paired,
    /// Flow entries evicted per packet, divided by the other's of the seconds beside those, the middle of all. Looking
    /// without a pause at 64 connections evicts about twice as many, if it evicts those that it looks at.
    Evicted,
}

/// How a floor was met in one cell.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Judgement {
    pub(crate) cell: String,
    pub(crate) subject: Subject,
    /// What is compared, in words.
    pub(crate) what: String,
    /// `None` when the other adds nothing to compare with, or the subject failed.
    pub(crate) ratio: Option<f64>,
    /// The bound, in words.
    pub(crate) bound: String,
    pub(crate) met: bool,
}

const FLOORS: [Floor; 18] = {
    use Kind::{AddedCpu, Evicted, Paired, Throughput};
    use Subject::{
        Crowded, FlexCp, Haproxy, Listed, Mptcp, Nginx, Ruled, Tcp, Translator, Watched,
    };
    const fn floor(subject: Subject, against: Subject, kind: Kind, bound: f64) -> Floor {
        Floor {
            subject,
            against,
            kind,
            bound,
            cells: "",
        }
    }
    const fn at(cells: &'static str, floor: Floor) -> Floor {
        Floor { cells, ..floor }
    }
    [
        floor(FlexCp, Haproxy, Throughput, 3.0),
        floor(FlexCp, Nginx, Throughput, 1.6),
        floor(FlexCp, Mptcp, Throughput, 1.5),
        floor(FlexCp, Tcp, Throughput, 0.8),
        floor(FlexCp, Haproxy, AddedCpu, 1.0 / 7.0),
        floor(FlexCp, Nginx, AddedCpu, 1.0 / 3.5),
        floor(Translator, Haproxy, Throughput, 2.0),
        floor(Translator, Nginx, Throughput, 1.2),
        at("-plain", floor(FlexCp, Tcp, Throughput, 0.9)),
        at("-unsteered", floor(FlexCp, Tcp, Throughput, 1.0)),
        at("-sustained", floor(FlexCp, Mptcp, Throughput, 0.33)),
        at("-crowd", floor(Crowded, FlexCp, Throughput, 0.9)),
        at("-crowd-plain", floor(Crowded, FlexCp, Throughput, 0.9)),
        at("-rule", floor(Ruled, FlexCp, Paired, 0.98)),
        at("-reads", floor(Watched, FlexCp, Paired, 0.98)),
        at("-reads", floor(Listed, FlexCp, Paired, 0.95)),
        at("-reads", floor(Watched, FlexCp, Evicted, 1.5)),
        at("-reads", floor(Listed, FlexCp, Evicted, 1.5)),
    ]
};

/// Every floor in every cell of the main measurement that has both sides, or lacks the subject because
/// it failed there.
pub(crate) fn judge(results: &Results) -> Vec<Judgement> {
    let mut judgements = vec![];
    for name in results.names() {
        let Some(cell) = name.strip_prefix("throughput/") else {
            continue;
        };
        let floors = FLOORS.iter().filter(|floor| floor.cells == variant(cell));
        judgements.extend(floors.filter_map(|floor| floor.judge(results, cell)));
    }
    judgements
}

/// Whether a subject was to run this cell and failed.
fn failed(results: &Results, cell: &str, subject: Subject) -> bool {
    let here = |missing: &&Missing| {
        let name = missing.name.split_once('/').map(|(_, name)| name);
        missing.subject == Some(subject) && name == Some(cell)
    };
    results
        .median(&format!("throughput/{cell}"), subject)
        .is_none()
        && results.missing.iter().any(|missing| here(&missing))
}

impl Results {
    /// Floors that were missed, and how many were judged.
    #[must_use]
    pub fn floors(&self) -> (usize, usize) {
        let judged = judge(self);
        let missed = judged.iter().filter(|judgement| !judgement.met);
        (missed.count(), judged.len())
    }
}

/// What tells a cell from that of the usual case (offloads on, one worker), if anything does.
fn variant(cell: &str) -> &str {
    cell.find('-').map_or("", |at| &cell[at..])
}

impl Floor {
    fn judge(self, results: &Results, cell: &str) -> Option<Judgement> {
        let get = |metric: &str, subject| results.median(&format!("{metric}/{cell}"), subject);
        let (subject, against) = (self.subject, self.against);
        let ratio = match self.kind {
            _ if failed(results, cell, subject) => {
                get("throughput", against)?;
                None
            }
            Kind::Throughput => Some(get("throughput", subject)? / get("throughput", against)?),
            Kind::Paired => Some(paired(results, "throughput", cell, (subject, against))?),
            Kind::Evicted => Some(paired(results, "evicted", cell, (subject, against))?),
            Kind::AddedCpu => {
                let tcp = get("cpu", Subject::Tcp)?;
                added_share(get("cpu", subject)? - tcp, get("cpu", against)? - tcp)
            }
        };
        let (what, bound, met) = match self.kind {
            Kind::Throughput => (
                format!("throughput / {}'s", against.name()),
                format!(">= {}", self.bound),
                ratio.is_some_and(|ratio| ratio >= self.bound),
            ),
            Kind::Paired => (
                format!("throughput / {}'s, by rounds", against.name()),
                format!(">= {}", self.bound),
                ratio.is_some_and(|ratio| ratio >= self.bound),
            ),
            Kind::Evicted => (
                format!("entries evicted per packet / {}'s", against.name()),
                format!("<= {}", self.bound),
                ratio.is_some_and(|ratio| ratio <= self.bound),
            ),
            Kind::AddedCpu => (
                format!("CPU added to TCP's / {}'s", against.name()),
                format!("<= 1/{}", 1.0 / self.bound),
                ratio.is_some_and(|ratio| ratio <= self.bound),
            ),
        };
        Some(Judgement {
            cell: cell.to_owned(),
            subject,
            what,
            ratio,
            bound,
            met,
        })
    }
}

/// The middle of what a metric is divided by another's of the same round.
fn paired(
    results: &Results,
    metric: &str,
    cell: &str,
    (subject, against): (Subject, Subject),
) -> Option<f64> {
    let runs = |subject| Some(&results.get(&format!("{metric}/{cell}"), subject)?.runs);
    let pairs = runs(subject)?.iter().zip(runs(against)?);
    let ratios: Vec<_> = pairs.map(|(own, other)| own / other).collect();
    Some(median(&ratios))
}

/// What one adds, as a share of what another adds; `None` when that is nothing.
fn added_share(own: f64, other: f64) -> Option<f64> {
    (other > 0.0).then(|| own.max(0.0) / other)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results(rows: &[(&str, Subject, f64)]) -> Results {
        let mut results = Results::default();
        for (name, subject, value) in rows {
            results.add(name, Some(*subject), "", *value);
        }
        results
    }

    #[test]
    fn throughput_is_held_against_its_floor() {
        for (flexcp, met) in [(2.25, true), (2.24, false)] {
            let judged = judge(&results(&[
                ("throughput/down/64x1", Subject::FlexCp, flexcp),
                ("throughput/down/64x1", Subject::Haproxy, 0.75),
            ]));
            assert_eq!(
                judged.len(),
                1,
                "floors without the other side are not judged"
            );
            assert_eq!(judged[0].met, met, "{judged:?}");
            assert_eq!(judged[0].bound, ">= 3");
        }
    }

    #[test]
    fn added_cpu_is_what_is_above_tcp() {
        let judged = judge(&results(&[
            ("throughput/down/64x1", Subject::FlexCp, 1.0),
            ("cpu/down/64x1", Subject::FlexCp, 0.8),
            ("cpu/down/64x1", Subject::Tcp, 0.6),
            ("cpu/down/64x1", Subject::Haproxy, 2.1),
            ("cpu/down/64x1", Subject::Nginx, 1.2),
        ]));
        let rows: Vec<_> = judged
            .iter()
            .map(|judgement| (judgement.bound.as_str(), judgement.met))
            .collect();
        // 0.2 of 1.5 and 0.2 of 0.6.
        assert_eq!(rows, [("<= 1/7", true), ("<= 1/3.5", false)]);
    }

    #[test]
    fn nothing_added_is_not_divided_by() {
        assert_eq!(added_share(0.1, 0.0), None);
        assert_eq!(added_share(-0.1, 0.5), Some(0.0));
    }

    #[test]
    fn a_subject_that_failed_has_missed() {
        let mut results = results(&[("throughput/up/256x2", Subject::Haproxy, 1.0)]);
        assert!(judge(&results).is_empty(), "nobody else was to run");
        results.miss("bulk/up/256x2", Some(Subject::Translator), "stalled");
        let judged = judge(&results);
        assert_eq!(judged.len(), 1, "{judged:?}");
        assert!(!judged[0].met && judged[0].ratio.is_none());
    }

    #[test]
    fn some_other_cases_have_floors_of_their_own() {
        let judged = judge(&results(&[
            ("throughput/down/256x1-plain", Subject::FlexCp, 0.89),
            ("throughput/down/256x1-plain", Subject::Tcp, 1.0),
            ("throughput/up/256x1-crowd", Subject::Crowded, 0.9),
            ("throughput/up/256x1-crowd", Subject::FlexCp, 1.0),
        ]));
        let rows: Vec<_> = judged
            .iter()
            .map(|judgement| (judgement.cell.as_str(), judgement.met))
            .collect();
        assert_eq!(
            rows,
            [("down/256x1-plain", false), ("up/256x1-crowd", true)]
        );
    }

    #[test]
    fn reads_are_compared_round_by_round() {
        // The machine gets slower: each pair stands for itself.
        let mut rows = vec![];
        for (round, factor) in [1.0, 0.8, 0.5].into_iter().enumerate() {
            let share = [0.99, 0.97, 0.98][round];
            rows.push(("throughput/down/64x1-reads", Subject::FlexCp, factor));
            rows.push((
                "throughput/down/64x1-reads",
                Subject::Watched,
                factor * share,
            ));
            rows.push(("evicted/down/64x1-reads", Subject::FlexCp, 10.0));
            rows.push(("evicted/down/64x1-reads", Subject::Watched, 15.2));
        }
        let judged = judge(&results(&rows));
        let rows: Vec<_> = judged
            .iter()
            .map(|judgement| (judgement.bound.as_str(), judgement.met))
            .collect();
        assert_eq!(rows, [(">= 0.98", true), ("<= 1.5", false)]);
    }

    #[test]
    fn floors_are_about_the_usual_case() {
        let judged = judge(&results(&[
            ("throughput/down/64x1-no-gso", Subject::FlexCp, 1.0),
            ("throughput/down/64x1-no-gso", Subject::Haproxy, 1.0),
        ]));
        assert!(judged.is_empty());
    }
}

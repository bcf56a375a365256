//! What became of each bug: kept in a file, so that a run that was stopped can go on, and as a table.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::list::Bug;

/// Share of the bugs that has to be noticed, in percent.
const WANTED: usize = 95;
/// Share of the bugs that has to be noticed without root and within [`SOON`], in percent.
const WANTED_SOON: usize = 50;
/// Seconds of tests, building left out.
const SOON: f64 = 60.0;

/// What the tests say of a bug.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Verdict {
    /// A test failed.
    Caught,
    /// The tests did not end in time, and none had failed by then: nobody says what is wrong.
    NoEnd,
    /// All tests passed.
    Survived,
    /// All tests without root passed, and root it was not.
    NeedsRoot,
    /// It does not compile: the bug is wrong.
    DoesNotBuild,
}

/// What became of one bug.
#[derive(Clone, Serialize, Deserialize, Debug)]
pub(crate) struct Outcome {
    pub(crate) name: String,
    /// Of the bug's text.
    pub(crate) fingerprint: String,
    pub(crate) verdict: Verdict,
    /// The test that noticed; why it does not build.
    pub(crate) test: String,
    /// The level of that test, or the last that had no end.
    pub(crate) level: String,
    /// How many levels were run.
    pub(crate) levels: usize,
    /// Whether that level needs root.
    pub(crate) root: bool,
    /// Seconds in which tests ran until then.
    pub(crate) test_seconds: f64,
    /// Seconds of building.
    pub(crate) build_seconds: f64,
}

impl Outcome {
    /// Of a bug of which nothing is known yet.
    pub(crate) fn of(bug: &Bug) -> Self {
        Self {
            name: bug.name.clone(),
            fingerprint: bug.fingerprint(),
            verdict: Verdict::Survived,
            test: String::new(),
            level: String::new(),
            levels: 0,
            root: false,
            test_seconds: 0.0,
            build_seconds: 0.0,
        }
    }

    /// Noticed by tests that everybody can run, within a minute.
    fn is_soon(&self) -> bool {
        self.verdict == Verdict::Caught && !self.root && self.test_seconds <= SOON
    }

    /// A line of the table: bug, verdict, test, level, seconds.
    pub(crate) fn row(&self, equivalent: Option<&str>) -> String {
        let verdict = match (self.verdict, equivalent) {
            (Verdict::Caught, _) => "caught".to_owned(),
            (_, Some(reason)) => format!("equivalent: {reason}"),
            (Verdict::NoEnd, _) => "**no end**".to_owned(),
            (Verdict::Survived, _) => "**survived**".to_owned(),
            (Verdict::NeedsRoot, _) => "not tried to the end: needs root".to_owned(),
            (Verdict::DoesNotBuild, _) => "**does not compile**".to_owned(),
        };
        let root = if self.root { ", root" } else { "" };
        let level = if self.level.is_empty() {
            String::new()
        } else {
            format!("{}{root}", self.level)
        };
        format!(
            "| {} | {verdict} | {} | {level} | {:.0} |",
            self.name, self.test, self.test_seconds
        )
    }
}

/// All that is known of the bugs in one state of the sources.
#[derive(Default, Serialize, Deserialize, Debug)]
pub(crate) struct Results {
    /// Digest of the sources.
    pub(crate) source: String,
    /// Commit that was checked out.
    pub(crate) commit: String,
    /// Seconds that the tests of each level take without a bug, by its name.
    pub(crate) levels: BTreeMap<String, f64>,
    pub(crate) outcomes: Vec<Outcome>,
}

impl Results {
    /// Those of `file` if they are about the same sources; none otherwise.
    pub(crate) fn resume(file: &Path, source: &str, commit: &str) -> Result<Self, String> {
        let empty = Self {
            source: source.to_owned(),
            commit: commit.to_owned(),
            ..Self::default()
        };
        let Ok(text) = fs::read_to_string(file) else {
            return Ok(empty);
        };
        let known: Self = serde_json::from_str(&text)
            .map_err(|error| format!("{}: {error}; delete it to start anew", file.display()))?;
        Ok(if known.source == source { known } else { empty })
    }

    /// What is known of a bug, tried as far as it can be.
    pub(crate) fn known(&self, bug: &Bug, root: bool) -> Option<&Outcome> {
        let fingerprint = bug.fingerprint();
        self.outcomes
            .iter()
            .find(|known| known.name == bug.name && known.fingerprint == fingerprint)
            .filter(|known| !root || known.verdict != Verdict::NeedsRoot)
    }

    /// Keeps an outcome, in place of an earlier one.
    pub(crate) fn keep(&mut self, outcome: Outcome) {
        self.outcomes.retain(|known| known.name != outcome.name);
        self.outcomes.push(outcome);
    }

    /// Writes the file anew.
    pub(crate) fn write(&self, file: &Path) -> Result<(), String> {
        let say = |error| format!("{}: {error}", file.display());
        if let Some(directory) = file.parent() {
            fs::create_dir_all(directory).map_err(say)?;
        }
        let text = serde_json::to_string_pretty(self).map_err(|error| error.to_string())?;
        fs::write(file, text + "\n").map_err(say)
    }
}

/// How many of some bugs were noticed.
#[derive(Default, PartialEq, Eq, Debug)]
pub(crate) struct Score {
    /// Without those that change nothing.
    all: usize,
    caught: usize,
    soon: usize,
    no_end: usize,
    untried: usize,
    broken: usize,
}

impl Score {
    pub(crate) fn of<'a>(
        outcomes: impl Iterator<Item = &'a Outcome>,
        equivalents: &Equivalents,
    ) -> Self {
        let mut score = Self::default();
        for outcome in outcomes {
            if outcome.verdict != Verdict::Caught && equivalents.contains_key(&outcome.name) {
                continue;
            }
            score.all += 1;
            score.soon += usize::from(outcome.is_soon());
            match outcome.verdict {
                Verdict::Caught => score.caught += 1,
                Verdict::NoEnd => score.no_end += 1,
                Verdict::NeedsRoot => score.untried += 1,
                Verdict::DoesNotBuild => score.broken += 1,
                Verdict::Survived => {}
            }
        }
        score
    }

    /// Whether enough of them were.
    pub(crate) fn passes(&self) -> bool {
        self.broken == 0
            && self.caught * 100 >= self.all * WANTED
            && self.soon * 100 >= self.all * WANTED_SOON
    }
}

impl std::fmt::Display for Score {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            all,
            caught,
            soon,
            no_end,
            untried,
            broken,
        } = self;
        write!(
            f,
            "{caught} of {all} caught (at least {WANTED} % wanted); {soon} of them without root and within {SOON} s of \
             tests, building left out (at least {WANTED_SOON} % wanted)"
        )?;
        let rest = [
            (no_end, "without an end"),
            (untried, "not tried to the end: need root"),
            (broken, "do not compile"),
        ];
        let mut text = String::new();
        for (count, what) in rest.iter().filter(|(count, _)| **count > 0) {
            write!(text, "; {count} {what}")?;
        }
        f.write_str(&text)
    }
}

/// Why a bug changes nothing, by its name.
pub(crate) type Equivalents = BTreeMap<String, String>;

/// Reads `NAME: equivalent: REASON` lines; those that start with `#` explain.
pub(crate) fn equivalents(text: &str) -> Result<Equivalents, String> {
    let lines = text
        .lines()
        .filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let (name, reason) = line
                .split_once(": equivalent: ")
                .ok_or_else(|| format!("{line:?} is not \"NAME: equivalent: REASON\""))?;
            Ok((name.trim().to_owned(), reason.trim().to_owned()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(name: &str, verdict: Verdict) -> Outcome {
        let bug = Bug {
            name: name.to_owned(),
            ..Bug::default()
        };
        Outcome {
            verdict,
            ..Outcome::of(&bug)
        }
    }

    #[test]
    fn bug_without_an_end_counts_as_not_caught() {
        let mut outcomes = vec![outcome("a", Verdict::Caught), outcome("b", Verdict::NoEnd)];
        let score = Score::of(outcomes.iter(), &Equivalents::new());
        assert!(!score.passes(), "{score}");
        outcomes.pop();
        assert!(Score::of(outcomes.iter(), &Equivalents::new()).passes());
    }

    #[test]
    fn half_have_to_be_noticed_soon_and_without_root() {
        let mut late = outcome("a", Verdict::Caught);
        late.test_seconds = SOON + 1.0;
        let mut root = outcome("b", Verdict::Caught);
        root.root = true;
        let soon = outcome("c", Verdict::Caught);
        let none = Equivalents::new();
        assert!(Score::of([&late, &soon].into_iter(), &none).passes());
        assert!(Score::of([&root, &soon].into_iter(), &none).passes());
        assert!(!Score::of([&late, &root, &soon].into_iter(), &none).passes());
    }

    #[test]
    fn bug_that_changes_nothing_does_not_count_unless_it_is_caught() {
        let known = equivalents("# why\nseed 1 #2: equivalent: it is set again below\n").unwrap();
        let survived = outcome("seed 1 #2", Verdict::Survived);
        let score = Score::of([&survived].into_iter(), &known);
        assert_eq!(score.all, 0);
        assert!(
            survived
                .row(known.get("seed 1 #2").map(String::as_str))
                .contains("set again below")
        );
        assert!(equivalents("seed 1 #2 is fine").is_err());
    }

    #[test]
    fn outcome_is_known_for_the_same_bug_alone() {
        let mut results = Results::default();
        results.keep(outcome("a", Verdict::NeedsRoot));
        let bug = Bug {
            name: "a".to_owned(),
            ..Bug::default()
        };
        assert!(results.known(&bug, false).is_some());
        assert!(
            results.known(&bug, true).is_none(),
            "as root there is more to try"
        );
        let other = Bug {
            new: "other".to_owned(),
            ..bug
        };
        assert!(results.known(&other, false).is_none());
    }
}

//! What each kernel did, against what it has to do.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;

use super::item::{CARRIED, Form, items};
use super::word::{Outcome, Word};

/// One kernel.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// As `uname -r` says it.
    pub release: String,
    /// Under QEMU, or as it runs here.
    pub emulated: bool,
    /// From the making of its root to the power off.
    pub seconds: f64,
    /// One for each item that came to an end.
    pub outcomes: Vec<Outcome>,
    /// What the kernel complained of.
    pub alarms: Vec<String>,
    /// Why it did not come to its end.
    pub failed: Option<String>,
    /// The item that began last.
    begun: String,
}

impl Row {
    pub(super) fn new(release: &str, emulated: bool) -> Self {
        Self {
            release: release.to_owned(),
            emulated,
            seconds: 0.0,
            outcomes: vec![],
            alarms: vec![],
            failed: None,
            begun: "boot".to_owned(),
        }
    }

    pub(super) fn hear(&mut self, word: Word) {
        match word {
            Word::Kernel { release } => self.release = release,
            Word::Begin { item } => self.begun = item,
            Word::Ended(outcome) => self.outcomes.push(outcome),
            Word::End => self.begun = "power off".to_owned(),
        }
    }

    fn outcome(&self, item: &str) -> Option<&Outcome> {
        self.outcomes.iter().find(|outcome| outcome.item == item)
    }
}

/// All kernels.
#[derive(Clone, Debug, Serialize)]
pub struct Results {
    /// The items, in their order.
    pub items: Vec<&'static str>,
    /// Data packets in the kernel that are wanted, of 100.
    pub aim_percent: f64,
    /// Everything together.
    pub seconds: f64,
    /// What that may be at most. The short form, as a part of the tests, is not judged by it.
    pub aim_seconds: f64,
    /// Whether a longer time is a miss.
    pub timed: bool,
    /// One for each kernel.
    pub kernels: Vec<Row>,
}

impl Results {
    pub(super) fn new(form: Form, kernels: Vec<Row>, took: Duration) -> Self {
        Self {
            items: items(form).iter().map(|item| item.name).collect(),
            aim_percent: AIM_PERCENT,
            seconds: took.as_secs_f64(),
            aim_seconds: match form {
                Form::Short => 120.0,
                Form::Full => 1200.0,
            },
            timed: form == Form::Full,
            kernels,
        }
    }

    /// Those of other items, in which the kernel has to carry most of the data. Their first run fetches what they are made
    /// of, so they are not judged by their time.
    pub(super) fn of_items(items: &[&'static str], kernels: Vec<Row>, took: Duration) -> Self {
        Self {
            items: items.to_vec(),
            aim_percent: 50.0,
            aim_seconds: 300.0,
            ..Self::new(Form::Short, kernels, took)
        }
    }

    /// Writes `NAME.json` and `NAME.md` into a directory.
    pub fn write(&self, directory: &Path, name: &str) -> Result<()> {
        fs::create_dir_all(directory).with_context(|| format!("creating {directory:?}"))?;
        let json = serde_json::to_string_pretty(self)?;
        for (end, text) in [("json", json), ("md", self.to_string())] {
            let file = directory.join(format!("{name}.{end}"));
            fs::write(&file, text).with_context(|| format!("writing {file:?}"))?;
        }
        Ok(())
    }

    /// Every item of every kernel passed, its transfers were carried in the kernel, no kernel complained, and all of it
    /// together was done in time.
    ///
    /// # Errors
    ///
    /// Names all that was otherwise.
    pub fn judge(&self) -> Result<()> {
        let rows = self.kernels.iter();
        let mut misses: Vec<_> = rows.flat_map(|row| self.misses(row)).collect();
        if self.timed && self.seconds > self.aim_seconds {
            misses.push(format!(
                "{:.0} s in all, at most {:.0} are the aim",
                self.seconds, self.aim_seconds
            ));
        }
        ensure!(!self.kernels.is_empty(), "no kernel was tried");
        ensure!(
            misses.is_empty(),
            "{} misses:\n{}",
            misses.len(),
            misses.join("\n")
        );
        Ok(())
    }

    fn misses(&self, row: &Row) -> Vec<String> {
        let mut misses = vec![];
        let mut miss = |what: String| misses.push(format!("{}: {what}", row.release));
        if let Some(failed) = &row.failed {
            miss(format!("in {:?}: {failed}", row.begun));
        }
        for item in &self.items {
            match row.outcome(item) {
                None => miss(format!("{item} was not run")),
                Some(Outcome {
                    not_had: Some(feature),
                    ..
                }) => {
                    // Debian's kernels have it all, as modules.
                    if row.emulated {
                        miss(format!("{item} was not run: the kernel has no {feature}"));
                    }
                }
                Some(outcome) if !outcome.passed => miss(format!("{item} failed")),
                Some(outcome) => {
                    let share = outcome.carried.map(|carried| carried.percent());
                    if let Some(share) = share.filter(|share| *share < self.aim_percent) {
                        miss(format!(
                            "{item}: {share:.1} % of the data packets in the kernel"
                        ));
                    }
                    for late in outcome.waits.iter().filter(|wait| !wait.is_short()) {
                        miss(format!(
                            "{item}, {}: {:.1} s, at most {:.1} are the aim",
                            late.what, late.seconds, late.most
                        ));
                    }
                }
            }
        }
        if row
            .outcome(CARRIED)
            .is_some_and(|outcome| outcome.passed && outcome.carried.is_none())
        {
            miss(format!("{CARRIED}: nobody knows who carried it"));
        }
        row.alarms
            .iter()
            .for_each(|line| miss(format!("kernel's log: {line}")));
        misses
    }

    /// A line for each thing that an item has waited for.
    fn waits(&self, f: &mut fmt::Formatter<'_>, item: &str) -> fmt::Result {
        let of = |row: &Row| {
            row.outcome(item)
                .map_or(vec![], |found| found.waits.clone())
        };
        let all: Vec<_> = self.kernels.iter().flat_map(of).collect();
        let aims: BTreeMap<_, _> = all.iter().map(|wait| (&wait.what, wait.most)).collect();
        for (what, most) in aims {
            let aim = format!("at most {most:.1} s");
            self.line(f, &format!("{item}: {what}"), &aim, |row| {
                let found = of(row).into_iter().find(|wait| wait.what == *what);
                match found {
                    None => "unknown".to_owned(),
                    Some(wait) => format!("{:.1} s", wait.seconds),
                }
            })?;
        }
        Ok(())
    }

    fn line(
        &self,
        f: &mut fmt::Formatter<'_>,
        what: &str,
        aim: &str,
        cell: impl Fn(&Row) -> String,
    ) -> fmt::Result {
        write!(f, "| {what} | {aim} |")?;
        self.kernels
            .iter()
            .try_for_each(|row| write!(f, " {} |", cell(row)))?;
        writeln!(f)
    }
}

impl fmt::Display for Results {
    /// A table in Markdown: a line for each item, a column for each kernel.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.line(f, "item", "aim", |row| row.release.clone())?;
        self.line(f, "---", "---", |_| "---".to_owned())?;
        self.line(f, "where", "", |row| {
            if row.emulated {
                "emulated"
            } else {
                "as it runs"
            }
            .to_owned()
        })?;
        for item in &self.items {
            self.line(f, item, "passes", |row| match row.outcome(item) {
                None => "not run".to_owned(),
                Some(Outcome {
                    not_had: Some(feature),
                    ..
                }) => format!("not had: {feature}"),
                Some(outcome) if outcome.passed && !outcome.detail.is_empty() => {
                    format!("ok at the second attempt, {:.1} s", outcome.seconds)
                }
                Some(outcome) if outcome.passed => format!("ok, {:.1} s", outcome.seconds),
                Some(outcome) => format!("FAILED, {:.1} s", outcome.seconds),
            })?;
            let carried = |row: &Row| row.outcome(item).and_then(|outcome| outcome.carried);
            if self.kernels.iter().any(|row| carried(row).is_some()) {
                let what = format!("{item}: data packets in the kernel");
                let aim = format!("at least {:.0} %", self.aim_percent);
                self.line(f, &what, &aim, |row| match carried(row) {
                    None => "unknown".to_owned(),
                    Some(c) => format!("{:.1} % ({} of {})", c.percent(), c.in_kernel, c.data),
                })?;
            }
            self.waits(f, item)?;
        }
        self.line(f, "kernel's log", "0 complaints", |row| {
            row.alarms.len().to_string()
        })?;
        self.line(f, "all of it, seconds", "", |row| {
            format!("{:.0}", row.seconds)
        })?;
        writeln!(
            f,
            "\nIn all {:.0} s (aim: less than {:.0} s).",
            self.seconds, self.aim_seconds
        )
    }
}

/// Of the data packets of the transfer that is the same on every kernel.
pub(super) const AIM_PERCENT: f64 = 90.0;

#[cfg(test)]
mod tests {
    use super::super::word::Wait;
    use super::*;
    use crate::carried::Carried;

    fn outcome(item: &str, in_kernel: Option<u64>) -> Outcome {
        Outcome {
            item: item.to_owned(),
            passed: true,
            not_had: None,
            seconds: 1.25,
            carried: in_kernel.map(|in_kernel| Carried {
                data: 1000,
                in_kernel,
                installed: 1,
            }),
            waits: vec![],
            detail: String::new(),
        }
    }

    fn good() -> Results {
        let mut row = Row::new("6.1.0-1", true);
        for item in items(Form::Short) {
            let carried = (item.name == CARRIED).then_some(950);
            row.hear(Word::Ended(outcome(item.name, carried)));
        }
        Results::new(Form::Short, vec![row], Duration::from_secs(50))
    }

    fn misses(change: impl FnOnce(&mut Row)) -> String {
        let mut results = good();
        change(&mut results.kernels[0]);
        results.judge().unwrap_err().to_string()
    }

    #[test]
    fn kernel_that_does_all_passes() {
        good().judge().unwrap();
        let text = good().to_string();
        assert!(
            text.contains("| at least 90 % | 95.0 % (950 of 1000) |"),
            "{text}"
        );
        let columns = |line: &str| line.matches('|').count();
        assert!(
            text.lines().take(7).all(|line| columns(line) == 4),
            "{text}"
        );
    }

    #[test]
    fn second_attempt_stands_in_the_table() {
        let mut results = good();
        results.kernels[0].outcomes[0].detail = "a second attempt".to_owned();
        results.judge().unwrap();
        let text = results.to_string();
        assert!(
            text.contains("| ok at the second attempt, 1.2 s |"),
            "{text}"
        );
    }

    #[test]
    fn item_that_failed_or_was_not_run_is_a_miss() {
        let failed = misses(|row| row.outcomes[0].passed = false);
        assert!(
            failed.contains("6.1.0-1: rules of the offload failed"),
            "{failed}"
        );
        let missing = misses(|row| drop(row.outcomes.remove(0)));
        assert!(
            missing.contains("rules of the offload was not run"),
            "{missing}"
        );
    }

    #[test]
    fn what_the_running_kernel_has_not_is_told_and_no_miss() {
        let not_had = |row: &mut Row| {
            row.outcomes[0].passed = false;
            row.outcomes[0].not_had = Some("VLAN".to_owned());
        };
        let missing = misses(not_had);
        assert!(
            missing.contains("rules of the offload was not run: the kernel has no VLAN"),
            "{missing}"
        );
        let mut results = good();
        results.kernels[0].emulated = false;
        not_had(&mut results.kernels[0]);
        results.judge().unwrap();
        let text = results.to_string();
        assert!(
            text.contains("| rules of the offload | passes | not had: VLAN |"),
            "{text}"
        );
    }

    #[test]
    fn share_below_the_aim_is_a_miss() {
        let few = misses(|row| row.outcomes[1] = outcome(CARRIED, Some(899)));
        assert!(few.contains("89.9 % of the data packets"), "{few}");
        let unknown = misses(|row| row.outcomes[1] = outcome(CARRIED, None));
        assert!(unknown.contains("nobody knows"), "{unknown}");
    }

    #[test]
    fn alarm_or_early_end_is_a_miss() {
        let alarm = misses(|row| row.alarms.push("[ 1.0] WARNING: x".to_owned()));
        assert!(alarm.contains("kernel's log: [ 1.0] WARNING: x"), "{alarm}");
        let off = misses(|row| row.failed = Some("off before all was run".to_owned()));
        assert!(off.contains("in \"boot\": off before"), "{off}");
    }

    #[test]
    fn full_form_that_takes_too_long_is_a_miss() {
        let mut results = good();
        results.seconds = 1201.0;
        results.judge().unwrap();
        results.aim_seconds = 1200.0;
        results.timed = true;
        assert!(
            results
                .judge()
                .unwrap_err()
                .to_string()
                .contains("1201 s in all")
        );
        results.seconds = 1199.0;
        results.judge().unwrap();
        assert!(Results::new(Form::Full, vec![], Duration::ZERO).timed);
    }

    #[test]
    fn wait_beyond_its_aim_is_a_miss() {
        let wait = |seconds| Wait {
            what: "ready after".to_owned(),
            seconds,
            most: 5.0,
        };
        let late = misses(|row| row.outcomes[0].waits = vec![wait(5.1)]);
        assert!(late.contains("ready after: 5.1 s, at most 5.0"), "{late}");
        let mut results = good();
        results.kernels[0].outcomes[0].waits = vec![wait(5.0)];
        results.judge().unwrap();
        let text = results.to_string();
        assert!(
            text.contains("| rules of the offload: ready after | at most 5.0 s | 5.0 s |"),
            "{text}"
        );
    }

    #[test]
    fn no_kernel_is_no_pass() {
        let none = Results::new(Form::Short, vec![], Duration::ZERO);
        assert!(none.judge().is_err());
    }
}

//! Figures: what was measured, of whom, run by run.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use flexcp_lab::statistics::median;
use serde::Serialize;

use crate::rig::Subject;

/// One measurement of one subject.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Record {
    /// What was measured, e.g. `throughput/down/64x2`.
    pub name: String,
    /// Of whom; `None` for what has no subject.
    pub subject: Option<Subject>,
    /// Unit of all values.
    pub unit: &'static str,
    /// The middle one, or the mean of the two in the middle.
    pub median: f64,
    /// The least.
    pub min: f64,
    /// The greatest.
    pub max: f64,
    /// All of them, in the order of the rounds.
    pub runs: Vec<f64>,
}

/// Something that was to be measured and was not.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Missing {
    /// What was to be measured.
    pub name: String,
    /// Of whom.
    pub subject: Option<Subject>,
    /// Why not.
    pub reason: String,
}

/// Where and how it was measured.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Circumstances {
    /// Kernel release.
    pub kernel: String,
    /// CPUs, which all parties share.
    pub cpus: usize,
    /// Congestion control of all ends.
    pub congestion: String,
    /// Versions of the programs.
    pub programs: Vec<String>,
    /// Rounds, in each of which every subject has its turn.
    pub rounds: usize,
    /// Seconds that count, of each run of a load.
    pub seconds: f64,
    /// CPU time that other processes of the machine took meanwhile, in CPUs: the middle and the most of
    /// all runs. The more, the less the figures are worth.
    pub foreign_median: f64,
    /// See `foreign_median`.
    pub foreign_max: f64,
    /// Packets dropped meanwhile because too many waited to be received: losses that no path had.
    pub backlog_drops: u64,
}

/// Everything.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Results {
    /// Where and how.
    pub circumstances: Circumstances,
    /// Figures, in the order of measurement.
    pub records: Vec<Record>,
    /// What there are no figures of.
    pub missing: Vec<Missing>,
}

impl Results {
    /// Adds the value of one run.
    pub fn add(&mut self, name: &str, subject: Option<Subject>, unit: &'static str, value: f64) {
        let same = |record: &Record| record.name == name && record.subject == subject;
        let at = self.records.iter().position(same).unwrap_or_else(|| {
            self.records.push(Record {
                name: name.to_owned(),
                subject,
                unit,
                median: 0.0,
                min: 0.0,
                max: 0.0,
                runs: vec![],
            });
            self.records.len() - 1
        });
        let record = &mut self.records[at];
        record.runs.push(value);
        record.median = median(&record.runs);
        record.min = record.runs.iter().copied().fold(f64::INFINITY, f64::min);
        record.max = record
            .runs
            .iter()
            .copied()
            .fold(f64::NEG_INFINITY, f64::max);
    }

    /// Notes that there is no figure, once for each reason.
    pub fn miss(&mut self, name: &str, subject: Option<Subject>, reason: &str) {
        let missing = Missing {
            name: name.to_owned(),
            subject,
            reason: reason.to_owned(),
        };
        if !self.missing.contains(&missing) {
            self.missing.push(missing);
        }
    }

    /// The record of that name and subject.
    pub fn get(&self, name: &str, subject: Subject) -> Option<&Record> {
        let same = |record: &&Record| record.name == name && record.subject == Some(subject);
        self.records.iter().find(same)
    }

    /// Its median.
    pub fn median(&self, name: &str, subject: Subject) -> Option<f64> {
        self.get(name, subject).map(|record| record.median)
    }

    /// Names of all records, each once, in the order of measurement.
    pub fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = vec![];
        for record in &self.records {
            if !names.contains(&record.name.as_str()) {
                names.push(&record.name);
            }
        }
        names
    }

    /// Writes them as JSON.
    ///
    /// # Errors
    /// When the file can't be written.
    pub fn write(&self, file: &Path) -> Result<()> {
        let mut text = serde_json::to_string_pretty(self)?;
        text.push('\n');
        fs::write(file, text).with_context(|| format!("writing {file:?}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn same(left: f64, right: f64) {
        assert!((left - right).abs() < 1e-12, "{left} {right}");
    }

    #[test]
    fn runs_of_a_subject_make_one_record() {
        let mut results = Results::default();
        for (subject, value) in [
            (Subject::Tcp, 2.0),
            (Subject::Nginx, 9.0),
            (Subject::Tcp, 1.0),
            (Subject::Tcp, 4.0),
        ] {
            results.add("a", Some(subject), "GB/s", value);
        }
        results.add("b", Some(Subject::Tcp), "GB/s", 0.0);
        assert_eq!(results.names(), ["a", "b"]);
        let record = results.get("a", Subject::Tcp).unwrap();
        assert_eq!(record.runs, [2.0, 1.0, 4.0]);
        same(record.median, 2.0);
        same(record.min, 1.0);
        same(record.max, 4.0);
    }

    #[test]
    fn a_reason_is_noted_once() {
        let mut results = Results::default();
        for reason in ["x", "x", "y"] {
            results.miss("a", Some(Subject::FlexCp), reason);
        }
        assert_eq!(results.missing.len(), 2);
    }

    #[test]
    fn json_has_what_a_reader_of_it_needs() {
        let mut results = Results::default();
        results.add("a", Some(Subject::Translator), "GB/s", 1.5);
        results.miss("a", Some(Subject::FlexCp), "none");
        let json = serde_json::to_value(&results).unwrap();
        let expected = serde_json::json!({
            "name": "a", "subject": "flexcp-translator", "unit": "GB/s",
            "median": 1.5, "min": 1.5, "max": 1.5, "runs": [1.5],
        });
        assert_eq!(json["records"][0], expected);
        let expected = serde_json::json!({"name": "a", "subject": "flexcp", "reason": "none"});
        assert_eq!(json["missing"][0], expected);
        assert!(json["circumstances"]["rounds"].is_u64());
    }
}

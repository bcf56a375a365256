//! The results as tables in Markdown.

use std::fmt;

use crate::record::{Record, Results};
use crate::rig::Subject;
use crate::verdict::{self, Judgement};

/// Results for people to read.
#[derive(Clone, Copy, Debug)]
pub struct Report<'a>(pub &'a Results);

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.circumstances(f)?;
        self.figures(f)?;
        self.ratios(f)?;
        self.floors(f)?;
        self.missing(f)
    }
}

impl Report<'_> {
    fn circumstances(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let here = &self.0.circumstances;
        writeln!(
            f,
            "Linux {}, {} CPUs for all parties together, {}; {} rounds by turns, {} s each.\n\
             Other processes kept {:.2} CPUs busy meanwhile (median of all runs; at most {:.2}).\n\
             {} packets were lost in the machine's own queues (net.core.netdev_max_backlog).",
            here.kernel,
            here.cpus,
            here.congestion,
            here.rounds,
            here.seconds,
            here.foreign_median,
            here.foreign_max,
            here.backlog_drops
        )?;
        for program in &here.programs {
            writeln!(f, "{program}.")?;
        }
        Ok(())
    }

    fn subjects(&self) -> Vec<Subject> {
        let has = |subject: &Subject| {
            let mut records = self.0.records.iter();
            records.any(|record| record.subject == Some(*subject))
        };
        Subject::ALL.into_iter().filter(has).collect()
    }

    fn figures(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let subjects = self.subjects();
        writeln!(f, "\n## Medians (least to greatest)\n")?;
        if !subjects.is_empty() {
            head(f, "", &subjects)?;
        }
        for name in self.0.names() {
            let record = |subject: &Subject| self.0.get(name, *subject);
            let Some(unit) = subjects.iter().find_map(record).map(|record| record.unit) else {
                continue;
            };
            write!(f, "| {name}, {unit} |")?;
            for subject in &subjects {
                let told = record(subject).map_or_else(|| "-".to_owned(), spread);
                write!(f, " {told} |")?;
            }
            writeln!(f)?;
        }
        self.alone(f)
    }

    /// Records that belong to no subject.
    fn alone(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let alone = |record: &&Record| record.subject.is_none();
        let mut records = self.0.records.iter().filter(alone).peekable();
        if records.peek().is_some() {
            writeln!(f, "\n| | |\n|---|---|")?;
        }
        for record in records {
            writeln!(
                f,
                "| {}, {} | {} |",
                record.name,
                record.unit,
                spread(record)
            )?;
        }
        Ok(())
    }

    fn ratios(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let others = [
            Subject::Haproxy,
            Subject::Nginx,
            Subject::Mptcp,
            Subject::Tcp,
        ];
        for own in [Subject::FlexCp, Subject::Translator] {
            let compared = |name: &&str| {
                let other = |other: &Subject| self.0.get(name, *other).is_some();
                self.0.get(name, own).is_some() && others.iter().any(other)
            };
            let names: Vec<_> = self.0.names().into_iter().filter(compared).collect();
            if names.is_empty() {
                continue;
            }
            writeln!(f, "\n## {}, divided by the others\n", own.name())?;
            head(f, "", &others)?;
            for name in names {
                write!(f, "| {name} |")?;
                for other in others {
                    let pair = self.0.median(name, own).zip(self.0.median(name, other));
                    let ratio = pair.map(|(own, other)| format!("{:.2}", own / other));
                    write!(f, " {} |", ratio.unwrap_or_else(|| "-".to_owned()))?;
                }
                writeln!(f)?;
            }
        }
        Ok(())
    }

    fn floors(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let judged = verdict::judge(self.0);
        if judged.is_empty() {
            return Ok(());
        }
        let missed = judged.iter().filter(|judgement| !judgement.met).count();
        writeln!(f, "\n## Floors: {missed} of {} missed\n", judged.len())?;
        writeln!(
            f,
            "| cell | | compared | is | floor | |\n|---|---|---|---|---|---|"
        )?;
        for judgement in &judged {
            let Judgement {
                cell,
                subject,
                what,
                ratio,
                bound,
                met,
            } = judgement;
            let ratio = ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"));
            let verdict = if *met { "met" } else { "**MISS**" };
            let subject = subject.name();
            writeln!(
                f,
                "| {cell} | {subject} | {what} | {ratio} | {bound} | {verdict} |"
            )?;
        }
        for subject in [Subject::FlexCp, Subject::Translator] {
            if !self.subjects().contains(&subject) {
                let name = subject.name();
                writeln!(
                    f,
                    "\nThe floors of {name} are not judged: it was not measured."
                )?;
            }
        }
        Ok(())
    }

    fn missing(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.missing.is_empty() {
            return Ok(());
        }
        writeln!(f, "\n## Not measured, or not in every round\n")?;
        for missing in &self.0.missing {
            let subject = missing.subject.map_or("", Subject::name);
            writeln!(f, "- {} {subject}: {}", missing.name, missing.reason)?;
        }
        Ok(())
    }
}

fn head(f: &mut fmt::Formatter<'_>, first: &str, subjects: &[Subject]) -> fmt::Result {
    write!(f, "| {first} |")?;
    for subject in subjects {
        write!(f, " {} |", subject.name())?;
    }
    writeln!(f, "\n|---|{}", "---|".repeat(subjects.len()))
}

/// `median (least-greatest)`.
fn spread(record: &Record) -> String {
    let Record {
        median, min, max, ..
    } = record;
    match record.runs.len() {
        1 => figure(*median),
        _ => format!("{} ({}-{})", figure(*median), figure(*min), figure(*max)),
    }
}

/// Three digits that mean something.
fn figure(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results() -> Results {
        let mut results = Results::default();
        for value in [1.6, 1.5, 1.7] {
            results.add(
                "throughput/down/64x1",
                Some(Subject::Translator),
                "GB/s",
                value,
            );
        }
        results.add("throughput/down/64x1", Some(Subject::Haproxy), "GB/s", 1.0);
        results.add("throughput/down/64x1", Some(Subject::Nginx), "GB/s", 1.25);
        results.add("translate/down", None, "ns", 123.4);
        results.miss("bulk", Some(Subject::FlexCp), "no offload");
        results
    }

    #[test]
    fn table_has_medians_ratios_and_what_is_missing() {
        let text = Report(&results()).to_string();
        for line in [
            "| throughput/down/64x1, GB/s | 1.60 (1.50-1.70) | 1.25 | 1.00 |",
            "| throughput/down/64x1 | 1.60 | 1.28 | - | - |",
            "| translate/down, ns | 123 |",
            "- bulk flexcp: no offload",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }

    #[test]
    fn a_miss_is_printed_as_one() {
        let text = Report(&results()).to_string();
        assert!(text.contains("Floors: 1 of 2 missed"), "{text}");
        assert!(
            text.contains("The floors of flexcp are not judged"),
            "{text}"
        );
        let rows: Vec<_> = text.lines().filter(|line| line.contains(">=")).collect();
        assert!(
            rows[0].contains("haproxy") && rows[0].contains("**MISS**"),
            "{text}"
        );
        assert!(
            rows[1].contains("nginx") && rows[1].contains("| met |"),
            "{text}"
        );
    }
}

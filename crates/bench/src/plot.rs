//! Plots of the results as SVG: bars of medians with the spread of the runs, and lines over size.

use std::fmt::Write as _;

use flexcp_lab::plot::{BOTTOM, LEFT, MIN_WIDTH, TOP, frame};

use crate::record::{Record, Results};
use crate::rig::Subject;

/// File names and contents of all plots that there are figures for.
pub fn plots(results: &Results) -> Vec<(&'static str, String)> {
    let mut plots = vec![];
    for (file, metric, title) in [
        ("throughput.svg", "throughput", "1 MB objects, GB/s"),
        ("cpu.svg", "cpu", "CPU seconds of all parties per GB"),
    ] {
        let groups = groups(results, metric);
        if !groups.is_empty() {
            plots.push((file, bars(title, &groups)));
        }
    }
    let lines = response_lines(results);
    if lines.iter().any(|(_, points)| points.len() > 1) {
        let title = "Response time of one object, its connection included: median, ms";
        plots.push(("response.svg", curves(title, &lines)));
    }
    plots
}

/// Cells of a metric that are in GB, with the record of each subject.
fn groups<'a>(results: &'a Results, metric: &str) -> Vec<(&'a str, Vec<(Subject, &'a Record)>)> {
    let mut groups = vec![];
    for name in results.names() {
        let Some(cell) = name
            .strip_prefix(metric)
            .and_then(|rest| rest.strip_prefix('/'))
        else {
            continue;
        };
        let records = Subject::ALL.into_iter();
        let records = records.filter_map(|subject| Some((subject, results.get(name, subject)?)));
        let records: Vec<_> = records
            .filter(|(_, record)| record.unit.contains("GB"))
            .collect();
        if !records.is_empty() {
            groups.push((cell, records));
        }
    }
    groups
}

fn bars(title: &str, groups: &[(&str, Vec<(Subject, &Record)>)]) -> String {
    let records = || groups.iter().flat_map(|(_, records)| records);
    let top = records().map(|(_, record)| record.max).fold(0.0, f64::max);
    let scale = |value: f64| BOTTOM - value / top.max(f64::MIN_POSITIVE) * (BOTTOM - TOP);
    let mut at = LEFT;
    let mut body = String::new();
    for (cell, records) in groups {
        let begin = at;
        for (subject, record) in records {
            let (y, color) = (scale(record.median), color(*subject));
            let middle = at + BAR / 2.0;
            let _ = writeln!(
                body,
                "<rect x=\"{at:.1}\" y=\"{y:.1}\" width=\"{BAR}\" height=\"{:.1}\" fill=\"{color}\"/>\
                 <path d=\"M{middle:.1} {:.1}V{:.1}\" stroke=\"#000\"/>\
                 <text x=\"{middle:.1}\" y=\"{:.1}\" class=\"v\">{:.2}</text>",
                BOTTOM - y,
                scale(record.min),
                scale(record.max),
                scale(record.max) - 4.0,
                record.median,
            );
            at += BAR + 3.0;
        }
        let middle = f64::midpoint(begin, at);
        let _ = writeln!(
            body,
            "<text x=\"{middle:.1}\" y=\"{:.1}\" class=\"c\">{cell}</text>",
            BOTTOM + 16.0
        );
        at += GAP;
    }
    let subjects = Subject::ALL.into_iter();
    let shown = subjects.filter(|subject| records().any(|(of, _)| of == subject));
    frame(title, at.max(MIN_WIDTH), &(legend(shown) + &body))
}

/// Size in bytes and milliseconds, by subject.
fn response_lines(results: &Results) -> Vec<(Subject, Vec<(f64, f64)>)> {
    let names = results.names();
    let points = |subject: Subject| {
        let point = |name: &&str| {
            let size = name.strip_prefix("response-median/")?;
            Some((bytes(size)?, results.median(name, subject)? / 1000.0))
        };
        names.iter().filter_map(point).collect::<Vec<_>>()
    };
    let subjects = Subject::ALL.into_iter();
    let lines = subjects.map(|subject| (subject, points(subject)));
    lines.filter(|(_, points)| !points.is_empty()).collect()
}

/// `16KB` is 16000.
fn bytes(size: &str) -> Option<f64> {
    let (number, unit) = size.split_at_checked(size.len().checked_sub(2)?)?;
    let unit = match unit {
        "KB" => 1e3,
        "MB" => 1e6,
        _ => return None,
    };
    Some(number.parse::<f64>().ok()? * unit)
}

/// Both axes are logarithmic, a line for every power of ten.
fn curves(title: &str, lines: &[(Subject, Vec<(f64, f64)>)]) -> String {
    let points = || lines.iter().flat_map(|(_, points)| points.iter().copied());
    let x = Axis::over(points().map(|(x, _)| x), LEFT, MIN_WIDTH - 20.0);
    let y = Axis::over(points().map(|(_, y)| y), BOTTOM, TOP);
    let mut body = legend(lines.iter().map(|(subject, _)| *subject));
    for power in y.powers() {
        let (at, label) = (y.place(power), power);
        let _ = writeln!(
            body,
            "<path d=\"M{LEFT} {at:.1}H{:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{:.1}\" y=\"{at:.1}\" class=\"y\">{label}</text>",
            MIN_WIDTH - 20.0,
            LEFT - 4.0,
        );
    }
    for power in x.powers() {
        let at = x.place(power);
        let label = if power < 1e6 {
            format!("{} KB", power / 1e3)
        } else {
            format!("{} MB", power / 1e6)
        };
        let _ = writeln!(
            body,
            "<text x=\"{at:.1}\" y=\"{:.1}\" class=\"c\">{label}</text>",
            BOTTOM + 16.0
        );
    }
    for (subject, points) in lines {
        let path: Vec<_> = points
            .iter()
            .map(|(size, time)| format!("{:.1},{:.1}", x.place(*size), y.place(*time)))
            .collect();
        let _ = writeln!(
            body,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>",
            path.join(" "),
            color(*subject)
        );
    }
    frame(title, MIN_WIDTH, &body)
}

/// A logarithmic axis between two places.
struct Axis {
    least: f64,
    greatest: f64,
    from: f64,
    to: f64,
}

impl Axis {
    fn over(values: impl Iterator<Item = f64> + Clone, from: f64, to: f64) -> Self {
        let least = values.clone().fold(f64::INFINITY, f64::min);
        let greatest = values.fold(f64::MIN_POSITIVE, f64::max);
        Self {
            least: least.log10(),
            greatest: greatest.log10(),
            from,
            to,
        }
    }

    fn place(&self, value: f64) -> f64 {
        let share = (value.log10() - self.least) / (self.greatest - self.least).max(1e-9);
        self.from + share * (self.to - self.from)
    }

    #[allow(
        clippy::cast_possible_truncation,
        reason = "a power of ten that is on the axis"
    )]
    fn powers(&self) -> impl Iterator<Item = f64> {
        let (first, last) = (self.least.ceil() as i32, self.greatest.floor() as i32);
        (first..=last).map(|power| 10_f64.powi(power))
    }
}

fn legend(subjects: impl Iterator<Item = Subject>) -> String {
    let mut text = String::new();
    let mut at = LEFT;
    for subject in subjects {
        let (name, color) = (subject.name(), color(subject));
        let _ = writeln!(
            text,
            "<rect x=\"{at}\" y=\"28\" width=\"10\" height=\"10\" fill=\"{color}\"/>\
             <text x=\"{}\" y=\"37\">{name}</text>",
            at + 14.0
        );
        at += 120.0;
    }
    text
}

/// Told apart by the colour-blind too (Okabe and Ito).
const fn color(subject: Subject) -> &'static str {
    match subject {
        Subject::FlexCp => "#d55e00",
        Subject::Crowded | Subject::Listed => "#8b2500",
        Subject::Watched | Subject::Ruled => "#b07aa1",
        Subject::Translator => "#e69f00",
        Subject::KernelPlacement => "#f0e442",
        Subject::Scatter => "#cc79a7",
        Subject::Nginx => "#009e73",
        Subject::Haproxy => "#56b4e9",
        Subject::Tun => "#8c6d31",
        Subject::Mptcp => "#0072b2",
        Subject::Tcp => "#999999",
    }
}

const BAR: f64 = 22.0;
const GAP: f64 = 24.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn results() -> Results {
        let mut results = Results::default();
        results.add("throughput/down/64x1", Some(Subject::Tcp), "GB/s", 2.0);
        results.add("throughput/down/64x1", Some(Subject::Nginx), "GB/s", 1.0);
        results.add(
            "cpu/1KB/64-at-once",
            Some(Subject::Tcp),
            "us/connection",
            9.0,
        );
        for (size, time) in [("1KB", 100.0), ("1MB", 1000.0)] {
            let name = format!("response-median/{size}");
            results.add(&name, Some(Subject::Tcp), "us", time);
        }
        results
    }

    #[test]
    fn only_what_was_measured_is_plotted() {
        let plots = plots(&results());
        let files: Vec<_> = plots.iter().map(|(file, _)| *file).collect();
        assert_eq!(files, ["throughput.svg", "response.svg"]);
        assert!(super::plots(&Results::default()).is_empty());
    }

    #[test]
    fn bars_are_as_high_as_their_values() {
        let (_, svg) = plots(&results()).swap_remove(0);
        assert!(svg.contains("height=\"270.0\" fill=\"#999999\""), "{svg}");
        assert!(svg.contains("height=\"135.0\" fill=\"#009e73\""), "{svg}");
    }

    #[test]
    fn lines_go_from_corner_to_corner() {
        let (_, svg) = plots(&results()).swap_remove(1);
        assert!(svg.contains("points=\"50.0,330.0 800.0,60.0\""), "{svg}");
    }

    #[test]
    fn sizes_are_read() {
        assert_eq!(bytes("16KB"), Some(16_000.0));
        assert_eq!(bytes("64MB"), Some(64e6));
        assert_eq!(bytes("x"), None);
        assert_eq!(bytes("1KB/16-connections"), None);
    }
}

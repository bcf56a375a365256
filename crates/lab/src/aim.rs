//! What was measured, beside what it has to be.

use std::fmt::Write as _;

use anyhow::{Result, ensure};
use serde::Serialize;

/// A line of a table: a figure, and the aim that it meets or misses.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Line {
    /// What it is of.
    pub what: String,
    /// What it has to be; `None`: it is only told.
    pub aim: Option<String>,
    /// What it is, with its unit.
    pub figure: String,
    /// Whether the aim is met. A figure that is only told misses nothing.
    pub met: bool,
}

impl Line {
    /// A figure that may not be less.
    pub fn at_least(what: impl Into<String>, figure: f64, least: f64, unit: &str) -> Self {
        let aim = format!("at least {}", number(least, unit));
        Self::judged(what, aim, number(figure, unit), figure >= least)
    }

    /// A figure that may not be more.
    pub fn at_most(what: impl Into<String>, figure: f64, most: f64, unit: &str) -> Self {
        let aim = format!("at most {}", number(most, unit));
        Self::judged(what, aim, number(figure, unit), figure <= most)
    }

    /// A figure between two bounds, both included.
    pub fn between(what: impl Into<String>, figure: f64, bounds: [f64; 2], unit: &str) -> Self {
        let [least, most] = bounds;
        let aim = format!("{} to {}", number(least, ""), number(most, unit));
        let met = (least..=most).contains(&figure);
        Self::judged(what, aim, number(figure, unit), met)
    }

    /// A time after which something is over; `None`: it never was.
    pub fn within(what: impl Into<String>, after: Option<f64>, most: f64) -> Self {
        let aim = format!("within {}", number(most, " s"));
        let figure = after.map_or_else(|| "never".to_owned(), |after| number(after, " s"));
        Self::judged(what, aim, figure, after.is_some_and(|after| after <= most))
    }

    /// A figure that is judged by somebody else, in words.
    pub fn judged(
        what: impl Into<String>,
        aim: impl Into<String>,
        figure: impl Into<String>,
        met: bool,
    ) -> Self {
        Self {
            what: what.into(),
            aim: Some(aim.into()),
            figure: figure.into(),
            met,
        }
    }

    /// A figure without an aim.
    pub fn told(what: impl Into<String>, figure: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            aim: None,
            figure: figure.into(),
            met: true,
        }
    }
}

/// All lines as a table in Markdown.
pub fn table(lines: &[Line]) -> String {
    let mut text = "| what | aim | figure |\n|---|---|---|\n".to_owned();
    for line in lines {
        let missed = if line.met { "" } else { " (missed)" };
        let aim = line.aim.as_deref().unwrap_or("");
        let _ = writeln!(text, "| {} | {aim} | {}{missed} |", line.what, line.figure);
    }
    text
}

/// An error that names each aim that is missed, or says that there was none.
///
/// # Errors
/// An aim is missed, or no line has one.
pub fn judge(lines: &[Line]) -> Result<()> {
    ensure!(
        lines.iter().any(|line| line.aim.is_some()),
        "nothing was judged"
    );
    let missed = lines.iter().filter(|line| !line.met);
    let missed: Vec<_> = missed
        .map(|line| format!("{}: {}", line.what, line.figure))
        .collect();
    ensure!(missed.is_empty(), "missed: {}", missed.join("; "));
    Ok(())
}

/// Whole numbers without a fraction, small ones with enough of it to be told apart.
fn number(value: f64, unit: &str) -> String {
    if value.fract() == 0.0 || value.abs() >= 1000.0 {
        format!("{value:.0}{unit}")
    } else if value.abs() >= 10.0 {
        format!("{value:.1}{unit}")
    } else {
        format!("{value:.2}{unit}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_on_the_bound_meet_the_aim_and_those_beyond_miss_it() {
        let met = |line: Line| line.met;
        assert!(met(Line::at_least("", 1.9, 1.9, "x")));
        assert!(!met(Line::at_least("", 1.899, 1.9, "x")));
        assert!(met(Line::at_most("", 5.0, 5.0, " %")));
        assert!(!met(Line::at_most("", 5.001, 5.0, " %")));
        assert!(met(Line::between("", 40.0, [40.0, 60.0], " %")));
        assert!(!met(Line::between("", 39.9, [40.0, 60.0], " %")));
        assert!(!met(Line::between("", 60.1, [40.0, 60.0], " %")));
        assert!(met(Line::within("", Some(1.0), 1.0)));
        assert!(!met(Line::within("", Some(1.01), 1.0)));
        assert!(!met(Line::within("", None, 1.0)));
    }

    #[test]
    fn what_is_no_number_misses_every_aim() {
        assert!(!Line::at_least("", f64::NAN, 0.0, "").met);
        assert!(!Line::at_most("", f64::NAN, 9.0, "").met);
        assert!(!Line::between("", f64::NAN, [0.0, 9.0], "").met);
        assert!(!Line::within("", Some(f64::NAN), 9.0).met);
    }

    #[test]
    fn a_miss_is_named_and_nothing_judged_is_an_error() {
        let good = Line::at_most("first", 1.0, 2.0, "");
        let bad = Line::at_most("second", 3.0, 2.0, " s");
        judge(std::slice::from_ref(&good)).expect("met");
        let error = judge(&[good.clone(), bad.clone()]).unwrap_err().to_string();
        assert_eq!(error, "missed: second: 3 s");
        assert!(judge(&[Line::told("third", "7")]).is_err());
        assert!(table(&[good, bad]).contains("| second | at most 2 s | 3 s (missed) |"));
    }
}

//! Results as files: JSON for machines, a table for people.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

use super::run::Outcome;

/// Writes `NAME.json` (a row for each cell) and `NAME.md` (a line for each fault, then what
/// failed) into a directory.
pub fn write(outcomes: &[Outcome], directory: &Path, name: &str) -> Result<()> {
    fs::create_dir_all(directory).with_context(|| format!("creating {directory:?}"))?;
    let json = serde_json::to_string_pretty(outcomes)?;
    for (kind, text) in [("json", json), ("md", table(outcomes))] {
        let file = directory.join(format!("{name}.{kind}"));
        fs::write(&file, text).with_context(|| format!("writing {file:?}"))?;
    }
    Ok(())
}

fn table(outcomes: &[Outcome]) -> String {
    let mut rows: BTreeMap<String, Vec<&Outcome>> = BTreeMap::new();
    for outcome in outcomes {
        let fault = outcome.cell.split('/').next().unwrap_or_default();
        let by = match outcome.cell.ends_with("/converter") {
            true => " by a converter",
            false => "",
        };
        rows.entry(format!("{fault}{by}"))
            .or_default()
            .push(outcome);
    }
    let passed = outcomes.iter().filter(|outcome| outcome.passed).count();
    let mut text = format!(
        "# Fault matrix\n\n{passed} of {} cells passed.\n\n\
         | fault | cells | passed | at the second attempt | ended with an error | MB | median ms | longest gap ms |\n\
         |---|---|---|---|---|---|---|---|\n",
        outcomes.len()
    );
    for (row, cells) in &rows {
        let count = |what: fn(&Outcome) -> bool| cells.iter().filter(|cell| what(cell)).count();
        let mut millis: Vec<_> = cells.iter().map(|cell| cell.millis).collect();
        millis.sort_unstable();
        let _ = writeln!(
            text,
            "| {row} | {} | {} | {} | {} | {} | {} | {} |",
            cells.len(),
            count(|cell| cell.passed),
            count(|cell| cell.passed && cell.first_attempt.is_some()),
            count(|cell| cell.ended.is_some()),
            cells.iter().map(|cell| cell.bytes).sum::<u64>() / 1_000_000,
            millis[millis.len() / 2],
            cells
                .iter()
                .map(|cell| cell.longest_gap_ms)
                .max()
                .unwrap_or(0),
        );
    }
    let failed = outcomes.iter().filter(|outcome| !outcome.passed);
    let lines: Vec<_> = failed
        .map(|outcome| {
            let detail = outcome.detail.replace('\n', " ");
            format!("- `{}` (seed {}): {detail}\n", outcome.cell, outcome.seed)
        })
        .collect();
    let again = outcomes.iter().filter_map(|outcome| {
        let first = outcome.first_attempt.as_ref()?;
        let first = first.lines().next().unwrap_or_default();
        Some(format!("- `{}`: {first}\n", outcome.cell))
    });
    let again: Vec<_> = again.collect();
    if !again.is_empty() {
        let _ = write!(
            text,
            "\n## Counters that were wrong at the first attempt\n\n{}",
            again.concat()
        );
    }
    if !lines.is_empty() {
        let _ = write!(text, "\n## What failed\n\n{}", lines.concat());
    }
    text
}

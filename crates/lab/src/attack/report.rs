//! Results as files: JSON for machines, a table for people.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

use super::run::Outcome;

/// Writes `attack.json` and `attack.md` into a directory.
pub fn write(outcomes: &[Outcome], directory: &Path) -> Result<()> {
    fs::create_dir_all(directory).with_context(|| format!("creating {directory:?}"))?;
    let json = serde_json::to_string_pretty(outcomes)?;
    for (name, text) in [("attack.json", json), ("attack.md", table(outcomes))] {
        let file = directory.join(name);
        fs::write(&file, text).with_context(|| format!("writing {file:?}"))?;
    }
    Ok(())
}

/// A line for each attack, then what was not met.
///
/// `slower` compares with the run without an attack, when that is among the outcomes; `out/in` is what
/// FlexCP's host sent to spoofed addresses for each byte sent to it, and what of it FlexCP added.
pub fn table(outcomes: &[Outcome]) -> String {
    let still = outcomes.iter().find(|outcome| outcome.attack == "none");
    let mut text =
        "| attack | packets | pps | MPTCP ms | slower | gap ms | short ok | connect p99 ms | \
        RSS MiB before, middle, end | out/in all, own | CPU | verdict |\n\
        |---|---|---|---|---|---|---|---|---|---|---|---|\n"
            .to_owned();
    for outcome in outcomes {
        let slower = still.map_or_else(String::new, |still| {
            let ratio = outcome.mptcp_ms as f64 / still.mptcp_ms.max(1) as f64;
            format!("{ratio:.2}x")
        });
        let [before, middle, end] = outcome.rss_kib.map(|kib| kib as f64 / 1024.0);
        let sent = outcome.sent.bytes.max(1) as f64;
        let all = outcome.to_spoofed.bytes;
        let own = all.saturating_sub(outcome.answered_by_server);
        let _ = writeln!(
            text,
            "| {} | {} | {:.0} | {} | {slower} | {} | {} of {} | {:.1} | {before:.1}, {middle:.1}, {end:.1} \
             | {:.2}, {:.2} | {:.0} % | {} |",
            outcome.attack,
            outcome.sent.packets,
            outcome.rate,
            outcome.mptcp_ms,
            outcome.mptcp_gap_ms,
            outcome.shorts.succeeded,
            outcome.shorts.tried,
            outcome.shorts.connect_us_p99 as f64 / 1000.0,
            all as f64 / sent,
            own as f64 / sent,
            outcome.cpu * 100.0,
            if outcome.passed() { "pass" } else { "**FAIL**" },
        );
    }
    for outcome in outcomes.iter().filter(|outcome| !outcome.passed()) {
        let _ = writeln!(
            text,
            "\n- `{}`: {}",
            outcome.attack,
            outcome.failures().join("; ")
        );
    }
    text
}

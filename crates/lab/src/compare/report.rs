//! Figures and their table.

use std::fmt;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde::Serialize;

use crate::statistics::median;

/// Transfers over one kind of link.
#[derive(Clone, Debug, Serialize)]
pub struct Goodput {
    /// The link's name.
    pub link: &'static str,
    /// Faults on the way of the data.
    pub faults: &'static str,
    /// Bytes of each transfer.
    pub bytes: u64,
    /// Mbit/s through FlexCP, run by run.
    pub flexcp: Vec<f64>,
    /// Mbit/s of TCP.
    pub tcp: Vec<f64>,
    /// Mbit/s of MPTCP from kernel to kernel.
    pub mptcp: Vec<f64>,
}

/// Transfers over two links, of which the busier is cut.
#[derive(Clone, Debug, Serialize)]
pub struct CutRow {
    /// The application's longest gap through FlexCP, in milliseconds, run by run.
    pub flexcp: Vec<f64>,
    /// The same from kernel to kernel.
    pub mptcp: Vec<f64>,
}

/// All figures.
#[derive(Clone, Debug, Serialize)]
pub struct Results {
    /// Rate and delay of every link, each way.
    pub base: &'static str,
    /// Congestion control of the servers.
    pub congestion: String,
    /// Goodput by link.
    pub links: Vec<Goodput>,
    /// Gaps.
    pub cut: CutRow,
}

/// FlexCP may take that much longer than kernel to kernel, in milliseconds.
const GAP_MARGIN: f64 = 50.0;

impl CutRow {
    /// Whether FlexCP's median gap is at most 50 ms longer.
    pub fn passes(&self) -> bool {
        median(&self.flexcp) <= median(&self.mptcp) + GAP_MARGIN
    }
}

impl Results {
    /// Writes `compare.json` into a directory.
    pub fn write(&self, directory: &Path) -> Result<()> {
        fs::create_dir_all(directory).with_context(|| format!("creating {directory:?}"))?;
        let file = directory.join("compare.json");
        fs::write(&file, serde_json::to_string_pretty(self)?)
            .with_context(|| format!("writing {file:?}"))
    }
}

impl fmt::Display for Results {
    /// A table in Markdown: medians, and how far the runs spread.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Links: {}; {}.\n", self.base, self.congestion)?;
        writeln!(
            f,
            "| link | FlexCP Mbit/s | TCP Mbit/s | MPTCP Mbit/s | FlexCP / TCP | FlexCP / MPTCP |\n\
             |---|---|---|---|---|---|"
        )?;
        for row in &self.links {
            let flexcp = median(&row.flexcp);
            writeln!(
                f,
                "| {} | {} | {} | {} | {:.2} | {:.2} |",
                row.link,
                spread(&row.flexcp),
                spread(&row.tcp),
                spread(&row.mptcp),
                flexcp / median(&row.tcp),
                flexcp / median(&row.mptcp),
            )?;
        }
        let (flexcp, mptcp) = (&self.cut.flexcp, &self.cut.mptcp);
        writeln!(
            f,
            "\n| longest gap, busier path cut | FlexCP ms | MPTCP ms | difference | at most {GAP_MARGIN:.0} ms |\n\
             |---|---|---|---|---|\n\
             | {} runs | {} | {} | {:+.1} | {} |",
            flexcp.len(),
            spread(flexcp),
            spread(mptcp),
            median(flexcp) - median(mptcp),
            if self.cut.passes() { "yes" } else { "no" },
        )
    }
}

/// `median (least-greatest)`.
fn spread(values: &[f64]) -> String {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let greatest = values.iter().copied().fold(0.0, f64::max);
    format!("{:.1} ({least:.1}-{greatest:.1})", median(values))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gap_passes_up_to_fifty_milliseconds_more() {
        let row = |flexcp| CutRow {
            flexcp: vec![flexcp],
            mptcp: vec![200.0],
        };
        assert!(row(250.0).passes());
        assert!(!row(250.1).passes());
    }

    #[test]
    fn table_has_medians_and_ratios() {
        let results = Results {
            base: "",
            congestion: String::new(),
            links: vec![Goodput {
                link: "clean",
                faults: "",
                bytes: 1,
                flexcp: vec![45.0, 44.0, 46.0],
                tcp: vec![90.0],
                mptcp: vec![60.0],
            }],
            cut: CutRow {
                flexcp: vec![210.0],
                mptcp: vec![200.0],
            },
        };
        let text = results.to_string();
        assert!(text.contains("| clean | 45.0 (44.0-46.0) |"), "{text}");
        assert!(text.contains("| 0.50 | 0.75 |"), "{text}");
        assert!(text.contains("| +10.0 | yes |"), "{text}");
    }
}

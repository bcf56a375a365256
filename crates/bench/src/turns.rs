//! What has its turn again and again beside others, and how it did beside them.

use flexcp_lab::statistics::quantile;
use serde::Serialize;

/// A way of doing the same, and its runs, one each round.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row<W, R> {
    pub(crate) way: W,
    pub(crate) runs: Vec<R>,
}

/// A way beside another, round by round.
pub(crate) fn beside<W: Copy + PartialEq, R>(
    rows: &[Row<W, R>],
    (way, other): (W, W),
    of: impl Fn(&R) -> f64,
) -> Vec<f64> {
    let runs = |way| {
        let row = rows.iter().find(|row| row.way == way);
        row.map_or(&[][..], |row| &row.runs[..])
    };
    let pairs = runs(way).iter().zip(runs(other));
    pairs.map(|(run, other)| of(run) / of(other)).collect()
}

/// The middle, and between which the middle half lies.
pub(crate) fn spread(values: &[f64], digits: usize) -> String {
    let [middle, least, most] = [0.5, 0.25, 0.75].map(|share| quantile(values, share));
    format!("{middle:.digits$} ({least:.digits$} to {most:.digits$})")
}

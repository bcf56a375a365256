//! Figure 5b: the rate of downloads by their size.

use anyhow::Result;
use serde::Serialize;

use super::site::Site;
use super::way::{FarEnd, MOBILE, Network, PAYLOAD, TELECOM, WAYS, Way, sum};
use crate::aim::Line;
use crate::statistics::{median, quantile};

/// Downloads of one size by one way.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Cell {
    pub(super) way: Way,
    /// Of 10^6 bytes.
    pub(super) megabytes: f64,
    /// From the SYN to the end of the stream.
    pub(super) seconds: Vec<f64>,
}

/// What the largest downloads have to reach of what both uplinks carry.
const OF_SUM: f64 = 90.0;
/// The least of them, in MB.
const LARGE: f64 = 100.0;
/// The least of those that take long, in MB.
const LONG: f64 = 30.0;
/// What others have to reach of the better uplink alone.
const OF_BETTER: f64 = 95.0;
/// The least of them, in MB.
const MIDDLING: f64 = 1.0;

/// Runs all of them, by turns. The short ones have more turns, and the long ones no more than two.
///
/// # Errors
///
/// A download fails, or was not what it is measured as.
pub(super) fn run(sizes: &[f64], rounds: usize, network: &Network) -> Result<Vec<Cell>> {
    let sites = WAYS.map(|way| Site::build(way, network, true));
    let sites = sites.into_iter().collect::<Result<Vec<_>>>()?;
    let mut cells = vec![];
    for &megabytes in sizes {
        cells.extend(WAYS.map(|way| Cell {
            way,
            megabytes,
            seconds: vec![],
        }));
    }
    for round in 0..rounds {
        for row in cells.chunks_mut(WAYS.len()) {
            let turns = turns(row[0].megabytes, round);
            for turn in 0..turns {
                for number in 0..row.len() {
                    let number = (round + turn + number) % row.len();
                    let seconds = sites[number].seconds(bytes(row[number].megabytes))?;
                    row[number].seconds.push(seconds);
                }
            }
            if turns > 0 {
                let size = row[0].megabytes;
                eprintln!("round {}: {size} MB: {}", round + 1, told(row));
            }
        }
    }
    sites.into_iter().try_for_each(Site::end)?;
    Ok(cells)
}

/// Turns of the short ones in each round.
const OFTEN: usize = 5;

fn turns(megabytes: f64, round: usize) -> usize {
    if megabytes <= MIDDLING {
        OFTEN
    } else {
        usize::from(megabytes < LONG || round < 2)
    }
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "sizes are small and positive"
)]
fn bytes(megabytes: f64) -> u64 {
    (megabytes * 1e6) as u64
}

fn told(row: &[Cell]) -> String {
    let told = row.iter();
    let told = told.map(|cell| format!("{} {:.2} MB/s", cell.way.name(), cell.rate()));
    told.collect::<Vec<_>>().join(", ")
}

impl Cell {
    /// The middle, in MB/s.
    pub(super) fn rate(&self) -> f64 {
        self.megabytes / median(&self.seconds)
    }

    /// The middle, and what the slowest and the fastest had, for people.
    fn spread(&self) -> String {
        let [slowest, fastest] =
            [1.0, 0.0].map(|share| self.megabytes / quantile(&self.seconds, share));
        format!("{:.2} ({slowest:.2} to {fastest:.2})", self.rate())
    }
}

/// The figure as a table in Markdown, MB/s.
pub(super) fn table(cells: &[Cell]) -> String {
    let names = WAYS.map(Way::name).join(" | ");
    let mut text = format!("| MB | {names} |\n|---|{}\n", "---|".repeat(WAYS.len()));
    for row in cells.chunks(WAYS.len()) {
        let rates: Vec<_> = row.iter().map(Cell::spread).collect();
        text += &format!("| {} | {} |\n", row[0].megabytes, rates.join(" | "));
    }
    text
}

/// Each box beside what it has to be.
pub(super) fn lines(cells: &[Cell], rtts: [u32; 2]) -> Vec<Line> {
    let mut lines = vec![];
    for row in cells.chunks(WAYS.len()) {
        let of = |way| {
            let cell = row.iter().find(|cell| cell.way == way);
            cell.map_or(f64::NAN, |cell| median(&cell.seconds))
        };
        let alone = [MOBILE, TELECOM].map(|link| of(Way::Alone(link)));
        let better = if alone[0] <= alone[1] { 0 } else { 1 };
        let better = (alone[better], f64::from(rtts[better]));
        for cell in row {
            if let Way::Box(far_end) = cell.way {
                lines.extend(judge(cell, far_end, better));
            }
        }
    }
    lines
}

/// What the better uplink takes alone, in seconds, and its RTT in milliseconds.
fn judge(cell: &Cell, far_end: FarEnd, (better, rtt): (f64, f64)) -> Vec<Line> {
    let (name, size) = (cell.way.name(), cell.megabytes);
    let seconds = median(&cell.seconds);
    if size < MIDDLING {
        let what = format!("{size} MB, {name}: beyond the better uplink alone");
        let beyond = (seconds - better) * 1000.0;
        return vec![Line::at_most(
            what,
            beyond,
            far_end.handshakes() * rtt,
            " ms",
        )];
    }
    let what = format!("{size} MB, {name}: of the better uplink alone");
    let mut lines = vec![Line::at_least(
        what,
        100.0 * better / seconds,
        OF_BETTER,
        " %",
    )];
    if size >= LARGE {
        let what = format!("{size} MB, {name}: of the payload that both uplinks carry");
        let share = 100.0 * cell.rate() / (sum() * PAYLOAD);
        lines.push(Line::at_least(what, share, OF_SUM, " %"));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What boxes take, in the order of [`WAYS`], and each uplink alone, in seconds.
    fn row(megabytes: f64, boxes: [f64; 3], alone: [f64; 2]) -> Vec<Cell> {
        let others = [9.0, 0.1].into_iter().chain(alone);
        let seconds = boxes.into_iter().chain(others);
        let cells = WAYS.into_iter().zip(seconds);
        let cells = cells.map(|(way, seconds)| Cell {
            way,
            megabytes,
            seconds: vec![seconds],
        });
        cells.collect()
    }

    fn missed(cells: &[Cell]) -> Vec<String> {
        let lines = lines(cells, [30, 45]).into_iter().filter(|line| !line.met);
        lines.map(|line| line.what).collect()
    }

    #[test]
    fn large_downloads_are_held_against_the_sum_of_payload() {
        // 90 % of 5.5 MB/s take 21.34 s with headers.
        let good = row(100.0, [21.3; 3], [30.0, 60.0]);
        assert!(missed(&good).is_empty());
        let bad = row(100.0, [21.4, 21.3, 21.4], [30.0, 60.0]);
        assert_eq!(
            missed(&bad),
            [
                "100 MB, box, direct: of the payload that both uplinks carry",
                "100 MB, box, SOCKS5: of the payload that both uplinks carry"
            ]
        );
    }

    #[test]
    fn others_are_held_against_the_better_uplink() {
        assert!(missed(&row(1.0, [0.40; 3], [0.39, 0.80])).is_empty());
        assert_eq!(missed(&row(1.0, [0.42; 3], [0.39, 0.80])).len(), 3);
        // One RTT of the better, three with SOCKS5: 45 ms of telecom's, then 30 of mobile's.
        assert!(missed(&row(0.3, [0.22, 0.22, 0.31], [0.25, 0.18])).is_empty());
        assert!(missed(&row(0.3, [0.20, 0.20, 0.26], [0.18, 0.25])).is_empty());
        let direct = missed(&row(0.3, [0.23, 0.22, 0.31], [0.25, 0.18]));
        assert_eq!(
            direct,
            ["0.3 MB, box, direct: beyond the better uplink alone"]
        );
        let later = missed(&row(0.3, [0.20, 0.22, 0.28], [0.18, 0.25]));
        assert_eq!(
            later,
            [
                "0.3 MB, box, Convert: beyond the better uplink alone",
                "0.3 MB, box, SOCKS5: beyond the better uplink alone"
            ]
        );
        let nothing = row(1.0, [f64::NAN; 3], [f64::NAN; 2]);
        assert_eq!(missed(&nothing).len(), 3);
    }

    #[test]
    fn short_ones_have_more_turns_and_long_ones_fewer() {
        let all = |megabytes| (0..3).map(|round| turns(megabytes, round)).sum::<usize>();
        let turns = [0.1, 1.0, 3.0, 10.0, 30.0, 100.0].map(all);
        assert_eq!(turns, [15, 15, 3, 3, 2, 2]);
    }
}

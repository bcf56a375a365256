//! Round robin and random: how many connections take each path.

use anyhow::Result;

use super::load::{Running, failures};
use super::scene::{Scene, Shape};
use crate::aim::Line;
use crate::fault::Direction;
use crate::series::Series;
use crate::transfer::Job;

/// How connections are spread over two paths.
#[derive(Clone, Copy, Debug)]
pub(super) enum Spread {
    /// By turns.
    Even,
    /// Each as it happens.
    Random,
}

/// Runs connections that transfer alike, all at once.
pub(super) fn run(rule: &str, spread: Spread) -> Result<Vec<Line>> {
    let mut scene = Scene::start(SHAPE, rule)?;
    let load = Running::jobs(&scene, CONNECTIONS, Job::down(ENDLESS).rate(RATE))?;
    scene.wait_for_joins(usize::try_from(CONNECTIONS)?)?;
    let from = scene.pass(WARM);
    let first = scene.active()?;
    let to = scene.pass(MEASURED);
    let last = scene.active()?;
    let steady = scene.steadiness()?;
    load.stop();
    scene.close();
    let (failed, why) = failures(&load.finish()?);
    let series = scene.finish()?;
    let mut lines = judge(spread, [first, last], &series, [from, to]);
    lines.push(Line::at_most(
        format!("connections that failed {why}"),
        failed,
        0.0,
        "",
    ));
    lines.extend(steady.lines(Some(HOLD)));
    Ok(lines)
}

/// Judges how many took each path, at the beginning and the end of a span, and what came over them.
fn judge(spread: Spread, active: [[usize; 2]; 2], series: &Series, span: [f64; 2]) -> Vec<Line> {
    let all = CONNECTIONS as f64;
    let off = match spread {
        // One more or less on each path: some may have come or gone between.
        Spread::Even => 2.0,
        // Three standard deviations of so many tosses: one run in 370 has more.
        Spread::Random => 3.0 * (all / 4.0).sqrt(),
    };
    let bounds = [all / 2.0 - off, all / 2.0 + off];
    let [first, last] = active;
    let share = |of: [usize; 2]| 100.0 * of[0] as f64 / (of[0] + of[1]) as f64;
    let apart = (series.share(1, Direction::Down, span) - share(last)).abs();
    let all_there = (last[0] + last[1]) as f64;
    vec![
        Line::at_least("connections", all_there, all, ""),
        Line::between("of them on path a", last[0] as f64, bounds, ""),
        Line::at_most(
            "more or fewer than seconds before",
            first[0].abs_diff(last[0]) as f64,
            MOVED,
            "",
        ),
        Line::at_most(
            "bytes over path a, off its part of the connections",
            apart,
            POINTS,
            " points",
        ),
    ]
}

const SHAPE: Shape = Shape {
    rate_mbit: 100,
    queue_ms: 50,
    delay_ms: [5, 5],
};
const CONNECTIONS: u64 = 64;
/// Of each, in bytes a second.
const RATE: u64 = 60_000;
/// More than any transfers in that time.
const ENDLESS: u64 = 1 << 40;
/// Not measured at first, in seconds.
const WARM: f64 = 3.0;
const MEASURED: f64 = 5.0;
/// On paths to which nothing happens nobody has a reason to move.
const MOVED: f64 = 1.0;
/// Bytes are those of the connections, in percent of all.
const POINTS: f64 = 5.0;
/// Of a rule that does not say, in seconds.
const HOLD: f64 = 1.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn missed(spread: Spread, active: [[usize; 2]; 2], bytes: [u64; 2]) -> Vec<usize> {
        let lines = judge(spread, active, &Series::of(&[bytes; 20]), [0.0, 2.0]);
        (0..lines.len()).filter(|at| !lines[*at].met).collect()
    }

    #[test]
    fn turns_are_even_and_tosses_nearly() {
        let one = [[34, 30]; 2];
        assert!(missed(Spread::Even, one, [53, 47]).is_empty());
        let uneven = [[35, 29]; 2];
        assert_eq!(missed(Spread::Even, uneven, [55, 45]), [1]);
        assert!(missed(Spread::Random, uneven, [55, 45]).is_empty());
        let lopsided = [[45, 19]; 2];
        assert_eq!(missed(Spread::Random, lopsided, [70, 30]), [1]);
        let all = [[64, 0]; 2];
        assert_eq!(missed(Spread::Random, all, [100, 0]), [1]);
    }

    #[test]
    fn connections_that_are_missing_or_move_or_carry_nothing_are_noticed() {
        assert_eq!(missed(Spread::Even, [[32, 31]; 2], [50, 50]), [0]);
        assert_eq!(missed(Spread::Even, [[30, 34], [32, 32]], [50, 50]), [2]);
        assert_eq!(missed(Spread::Even, [[32, 32]; 2], [60, 40]), [3]);
        assert_eq!(missed(Spread::Even, [[32, 32]; 2], [0, 0]), [3]);
    }
}

//! Redundant: small messages over both paths, so that neither's cut is felt.

use std::time::Duration;

use anyhow::Result;

use super::load::{Running, failures};
use super::scene::{Scene, Shape};
use crate::aim::Line;
use crate::fault::Direction;
use crate::series::Series;
use crate::transfer::{Job, Report};

/// A message every ten milliseconds to each client, while each path is cut in turn.
pub(super) fn run(rule: &str) -> Result<Vec<Line>> {
    let scene = Scene::start(SHAPE, rule)?;
    let load = Running::jobs(&scene, CONNECTIONS, Job::down(RATE * SECONDS).rate(RATE))?;
    scene.wait_for_joins(usize::try_from(CONNECTIONS)?)?;
    load.stop();
    let from = scene.pass(WARM);
    let to = scene.pass(MEASURED);
    let steady = scene.steadiness()?;
    for link in [1, 2] {
        scene.cut(link)?;
        scene.pass(DEAD);
        scene.restore(link)?;
        scene.pass(REST);
    }
    let filler = scene.counter("filler_tx")?;
    let reports = load.finish()?;
    let (failed, why) = failures(&reports);
    let mut lines = judge(&reports, &scene.finish()?, [from, to]);
    let cuts = CONNECTIONS * 2;
    lines.extend([
        Line::at_most(
            "packets of filler for each cut of a connection's",
            filler as f64 / cuts as f64,
            FILLER,
            "",
        ),
        Line::at_most(format!("connections that failed {why}"), failed, 0.0, ""),
    ]);
    lines.extend(steady.lines(None));
    Ok(lines)
}

/// Judges gaps over all, and what each path brought in a span in which nothing was cut.
fn judge(reports: &[Report], series: &Series, span: [f64; 2]) -> Vec<Line> {
    let most = (RTO + SHAPE.rtt()).as_secs_f64();
    let gaps = reports
        .iter()
        .map(|report| report.longest_gap().as_secs_f64());
    let gap = gaps.reduce(f64::max).unwrap_or(f64::NAN);
    let asked = (CONNECTIONS * RATE) as f64 * (span[1] - span[0]);
    let part = |link| 100.0 * series.bytes(link, Direction::Down, span) / asked;
    let line = |what, link| Line::at_least(what, part(link), COPIED, " % of all messages");
    vec![
        Line::at_most("longest gap, each path cut for 2 s: a RTO", gap, most, " s"),
        line("path a brings", 1),
        line("path b brings", 2),
    ]
}

const SHAPE: Shape = Shape {
    rate_mbit: 60,
    queue_ms: 50,
    delay_ms: [10, 10],
};
const CONNECTIONS: u64 = 8;
/// A thousand bytes every ten milliseconds.
const RATE: u64 = 100_000;
const SECONDS: u64 = 17;
/// Not measured at first, in seconds.
const WARM: f64 = 1.0;
const MEASURED: f64 = 2.0;
/// How long each cut lasts, and how long it is over then: a path that was silent is asked after 2 s, then after 4 s.
const DEAD: f64 = 2.0;
const REST: f64 = 5.0;
/// The shortest retransmission timeout of Linux, to which its round trip comes.
const RTO: Duration = Duration::from_millis(200);
/// A message each: what is copied within a tenth of a second and two round trips, and as much again for what is repeated.
const FILLER: f64 = 30.0;
/// Of all that is sent, in percent, on each path.
const COPIED: f64 = 90.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn missed(gap_ms: u64, bytes: [u64; 2]) -> Vec<usize> {
        let reports = [1, gap_ms].map(|ms| Report {
            longest_gap_us: ms * 1000,
            ..Report::default()
        });
        let lines = judge(&reports, &Series::of(&[bytes; 20]), [0.0, 2.0]);
        (0..lines.len()).filter(|at| !lines[*at].met).collect()
    }

    #[test]
    fn each_aim_can_be_missed() {
        assert!(missed(220, [80_000, 72_001]).is_empty());
        assert_eq!(missed(221, [80_000, 80_000]), [0]);
        assert_eq!(missed(20, [71_000, 80_000]), [1]);
        assert_eq!(missed(20, [80_000, 0]), [2]);
        let lines = judge(&[], &Series::of(&[[0, 0]; 20]), [0.0, 2.0]);
        assert!(lines.iter().all(|line| !line.met));
    }
}

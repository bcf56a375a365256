//! Priority: the preferred access alone until it is full, then the other one beside it, and back.

use anyhow::Result;

use super::load::{Running, failures};
use super::scene::{Scene, Shape};
use crate::aim::Line;
use crate::fault::Direction;
use crate::series::Series;
use crate::transfer::Job;

/// When the demand changed.
#[derive(Clone, Copy)]
struct Marks {
    /// It was measured from here on.
    low: f64,
    /// More is asked for than the preferred access carries.
    high: f64,
    /// No more.
    low_again: f64,
    end: f64,
}

/// Some connections all the time, and more of them for a while.
pub(super) fn run(rule: &str) -> Result<Vec<Line>> {
    let mut scene = Scene::start(SHAPE, rule)?;
    let base = Running::jobs(&scene, BASE, Job::down(ENDLESS).rate(RATE))?;
    scene.wait_for_joins(usize::try_from(BASE)?)?;
    let low = scene.pass(WARM);
    scene.pass(LOW);
    let steady = scene.steadiness()?;
    let more = Job::down(RATE * MORE_SECONDS).rate(RATE);
    let more = Running::jobs(&scene, MORE, more)?;
    let high = scene.now();
    scene.pass(WARM);
    more.stop();
    // Those that are under way take their time, and a little more as the path is full.
    let failed_of_more = failures(&more.finish()?);
    let low_again = scene.now();
    let end = scene.pass(RETURN + WARM);
    base.stop();
    scene.close();
    let (failed, why) = failures(&base.finish()?);
    let series = scene.finish()?;
    let marks = Marks {
        low,
        high,
        low_again,
        end,
    };
    let mut lines = judge(&series, marks);
    let all = failed + failed_of_more.0;
    let why = format!("connections that failed {why}{}", failed_of_more.1);
    lines.push(Line::at_most(why, all, 0.0, ""));
    lines.extend(steady.lines(Some(HOLD)));
    Ok(lines)
}

fn judge(series: &Series, marks: Marks) -> Vec<Line> {
    let before = [marks.low, marks.high];
    // While all of them ask, and those that will end have not begun to.
    let full = [marks.high + WARM + 1.0, marks.high + MORE_SECONDS as f64];
    let second = |span| series.share(SECOND, Direction::Down, span);
    let mbit = |link| series.bytes(link, Direction::Down, full) * 8e-6 / (full[1] - full[0]);
    let demand = ((BASE + MORE) * RATE) as f64 * 8e-6;
    let rate = f64::from(SHAPE.rate_mbit);
    let back = [marks.low_again, marks.end];
    vec![
        Line::at_most(
            "over the second access, while the first has room",
            second(before),
            FEW,
            " %",
        ),
        Line::at_least(
            "over the first, when more is asked for",
            mbit(1),
            rate * FULL,
            " Mbit/s",
        ),
        Line::at_least(
            "over the second",
            mbit(SECOND),
            (demand - rate) * FULL,
            " Mbit/s",
        ),
        Line::at_least(
            "over both, of what is asked for",
            series.mbit(Direction::Down, full),
            demand * DELIVERED,
            " Mbit/s",
        ),
        Line::within(
            "over the first alone again after",
            series.settles((SECOND, Direction::Down), [0.0, BACK], back, WINDOW),
            RETURN,
        ),
    ]
}

const SHAPE: Shape = Shape {
    rate_mbit: 30,
    queue_ms: 200,
    delay_ms: [10, 10],
};
/// The link of the second access.
const SECOND: u8 = 2;
/// Connections all the time, and those that come for a while: 12 and 30 Mbit/s.
const BASE: u64 = 15;
const MORE: u64 = 37;
const RATE: u64 = 100_000;
const MORE_SECONDS: u64 = 8;
const ENDLESS: u64 = 1 << 40;
/// Not measured at first, in seconds.
const WARM: f64 = 2.0;
const LOW: f64 = 4.0;
/// The fail-back delay, and what a full queue and looking take.
const RETURN: f64 = 6.0;
/// In percent: what a path carries that is not used.
const FEW: f64 = 2.0;
const BACK: f64 = 5.0;
/// Of its rate: below it the first access is not full, and needs no help.
const FULL: f64 = 0.7;
/// Of all that is asked for: headers come to it.
const DELIVERED: f64 = 0.95;
/// Shares are those of so many seconds, where one is looked for.
const WINDOW: f64 = 0.5;
/// Of the rule, in seconds.
const HOLD: f64 = 1.0;

#[cfg(test)]
mod tests {
    use super::*;

    const MARKS: Marks = Marks {
        low: 2.0,
        high: 6.0,
        low_again: 15.0,
        end: 23.0,
    };

    /// Bytes of a tenth of a second, at so many Mbit/s.
    fn mbit(links: [u64; 2]) -> [u64; 2] {
        links.map(|mbit| mbit * 12_500)
    }

    fn missed(change: impl Fn(f64) -> Option<[u64; 2]>) -> Vec<usize> {
        let tenths = (0..230).map(|tenth| {
            let at = f64::from(tenth) / 10.0 + 0.05;
            let good = match at {
                _ if at < MARKS.high => [12, 0],
                _ if at < MARKS.low_again + 3.0 => [27, 15],
                _ => [12, 0],
            };
            mbit(change(at).unwrap_or(good))
        });
        let series = Series::of(&tenths.collect::<Vec<_>>());
        let lines = judge(&series, MARKS);
        (0..lines.len()).filter(|at| !lines[*at].met).collect()
    }

    #[test]
    fn each_aim_can_be_missed() {
        assert!(missed(|_| None).is_empty());
        let before = |at: f64| (at < MARKS.high).then_some([11, 1]);
        assert_eq!(missed(before), [0]);
        let during = |links| {
            missed(move |at: f64| (MARKS.high..MARKS.low_again).contains(&at).then_some(links))
        };
        assert_eq!(during([20, 22]), [1]);
        assert_eq!(during([34, 8]), [2]);
        assert_eq!(during([25, 10]), [3]);
        assert_eq!(during([30, 0]), [2, 3]);
        let stays = |at: f64| (at > MARKS.low_again).then_some([9, 3]);
        assert_eq!(missed(stays), [4]);
    }
}

//! Smallest delay: the shorter path, whichever that is.

use anyhow::Result;

use super::load::{Running, failures};
use super::scene::{Scene, Shape};
use crate::aim::Line;
use crate::fault::Direction;
use crate::series::Series;
use crate::transfer::Job;

/// When the delays were swapped.
#[derive(Clone, Copy)]
struct Marks {
    /// It was measured from here on.
    begin: f64,
    /// The second path is the longer one.
    swapped: f64,
    /// It is the shorter one again.
    back: f64,
    end: f64,
}

/// The second path is shorter, then the first, then the second.
pub(super) fn run(rule: &str) -> Result<Vec<Line>> {
    let mut scene = Scene::start(SHAPE, rule)?;
    let load = Running::jobs(&scene, CONNECTIONS, Job::down(ENDLESS).rate(RATE))?;
    scene.wait_for_joins(usize::try_from(CONNECTIONS)?)?;
    let begin = scene.pass(WARM);
    scene.pass(MEASURED);
    let steady = scene.steadiness()?;
    let swapped = scene.swap()?;
    scene.pass(SOON + MEASURED);
    let back = scene.swap()?;
    let end = scene.pass(SOON + MEASURED);
    load.stop();
    scene.close();
    let (failed, why) = failures(&load.finish()?);
    let series = scene.finish()?;
    let marks = Marks {
        begin,
        swapped,
        back,
        end,
    };
    let mut lines = judge(&series, marks);
    lines.push(Line::at_most(
        format!("connections that failed {why}"),
        failed,
        0.0,
        "",
    ));
    lines.extend(steady.lines(Some(HOLD)));
    Ok(lines)
}

fn judge(series: &Series, marks: Marks) -> Vec<Line> {
    let way = (SECOND, Direction::Down);
    let settles = |bounds, from, to| series.settles(way, bounds, [from, to], WINDOW);
    vec![
        Line::at_least(
            "over the second path, which is shorter",
            series.share(SECOND, Direction::Down, [marks.begin, marks.swapped]),
            MOST,
            " %",
        ),
        Line::within(
            "it is longer: all but 5 % over the first after",
            settles([0.0, 100.0 - MOST], marks.swapped, marks.back),
            SOON,
        ),
        Line::within(
            "it is shorter again: all but 5 % over it after",
            settles([MOST, 100.0], marks.back, marks.end),
            SOON,
        ),
    ]
}

const SHAPE: Shape = Shape {
    rate_mbit: 100,
    queue_ms: 50,
    delay_ms: [20, 5],
};
/// The link of the second path.
const SECOND: u8 = 2;
const CONNECTIONS: u64 = 16;
/// Of each, in bytes a second.
const RATE: u64 = 150_000;
const ENDLESS: u64 = 1 << 40;
/// Not measured at first, in seconds.
const WARM: f64 = 1.0;
const MEASURED: f64 = 3.0;
/// What the kernel forwards is looked at every two seconds, an idle path is to be measured anew, and `hold` is one second.
const SOON: f64 = 4.0;
/// The part of the path that is taken, in percent.
const MOST: f64 = 95.0;
/// Shares are those of so many seconds, where one is looked for.
const WINDOW: f64 = 0.5;
/// Of the rule, in seconds.
const HOLD: f64 = 1.0;

#[cfg(test)]
mod tests {
    use super::*;

    const MARKS: Marks = Marks {
        begin: 0.0,
        swapped: 3.0,
        back: 10.0,
        end: 17.0,
    };

    /// The shorter path after so many seconds each.
    fn missed(first: f64, second: f64, third: f64) -> Vec<usize> {
        let tenths = (0..170).map(|tenth| {
            let at = f64::from(tenth) / 10.0 + 0.05;
            let on_the_second = match at {
                _ if at < MARKS.swapped => at >= first,
                _ if at < MARKS.back => at < MARKS.swapped + second,
                _ => at >= MARKS.back + third,
            };
            if on_the_second { [0, 1000] } else { [1000, 0] }
        });
        let series = Series::of(&tenths.collect::<Vec<_>>());
        let lines = judge(&series, MARKS);
        (0..lines.len()).filter(|at| !lines[*at].met).collect()
    }

    #[test]
    fn each_aim_can_be_missed() {
        assert!(missed(0.1, 3.9, 3.9).is_empty());
        assert_eq!(missed(0.3, 1.0, 1.0), [0]);
        assert_eq!(missed(0.0, 4.3, 1.0), [1]);
        assert_eq!(missed(0.0, 9.0, 1.0), [1]);
        assert_eq!(missed(0.0, 1.0, 4.3), [2]);
        assert_eq!(missed(0.0, 1.0, 9.0), [2]);
    }
}

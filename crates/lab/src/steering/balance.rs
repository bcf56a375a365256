//! Load balancing: the part of the bytes that each path carries, beside its weight.

use anyhow::Result;

use super::load::{Running, Sizes, failures};
use super::scene::{Scene, Shape};
use crate::aim::Line;
use crate::fault::Direction;
use crate::series::Series;

/// Runs transfers of such sizes; `percent` of the bytes have to come over path `a`.
pub(super) fn run(rule: &str, percent: f64, sizes: Sizes, seed: u64) -> Result<Vec<Line>> {
    let mut scene = Scene::start(SHAPE, rule)?;
    let slots = match sizes {
        Sizes::Equal(_) => FEW,
        Sizes::Pareto { .. } => MANY,
    };
    let load = Running::transfers(&scene, slots, sizes, seed)?;
    let from = scene.pass(WARM);
    let to = scene.pass(MEASURED);
    let steady = scene.steadiness()?;
    load.stop();
    scene.close();
    let reports = load.finish()?;
    let series = scene.finish()?;
    let (failed, why) = failures(&reports);
    let mut lines = judge(&series, [from, to], percent);
    lines.push(Line::at_least(
        "transfers",
        reports.len() as f64,
        slots as f64,
        "",
    ));
    lines.push(Line::at_most(
        format!("of them failed {why}"),
        failed,
        0.0,
        "",
    ));
    lines.extend(steady.lines(Some(HOLD)));
    Ok(lines)
}

/// Judges what came in a span.
fn judge(series: &Series, span: [f64; 2], percent: f64) -> Vec<Line> {
    let share = series.share(1, Direction::Down, span);
    let busiest = [1, 2].map(|link| series.bytes(link, Direction::Down, span));
    let mbit = busiest[0].max(busiest[1]) * 8e-6 / (span[1] - span[0]);
    let room = f64::from(SHAPE.rate_mbit) * ROOM;
    vec![
        Line::between(
            "of all bytes over path a",
            share,
            [percent - POINTS, percent + POINTS],
            " %",
        ),
        Line::at_most("the busier path carries", mbit, room, " Mbit/s"),
        Line::told(
            "both carry",
            format!("{:.1} Mbit/s", series.mbit(Direction::Down, span)),
        ),
    ]
}

const SHAPE: Shape = Shape {
    rate_mbit: 100,
    queue_ms: 50,
    delay_ms: [5, 5],
};
/// Clients at once: of equal transfers 250 kB/s each; of the others 25 kB/s in the mean.
const FEW: u64 = 24;
const MANY: u64 = 192;
/// Not measured at first, in seconds.
const WARM: f64 = 4.0;
const MEASURED: f64 = 16.0;
/// What a share may be off its weight, in percent of all bytes.
const POINTS: f64 = 5.0;
/// Of a link's rate: beyond it the link decides and not the rule.
const ROOM: f64 = 0.8;
/// Of the rules, in seconds.
const HOLD: f64 = 1.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn met(bytes: [u64; 2], percent: f64) -> Vec<bool> {
        let lines = judge(&Series::of(&[bytes; 20]), [0.0, 2.0], percent);
        lines.iter().map(|line| line.met).collect()
    }

    #[test]
    fn shares_are_held_against_weights_and_links_have_room() {
        assert_eq!(met([350, 650], 30.0), [true, true, true]);
        assert_eq!(met([251, 749], 30.0), [true, true, true]);
        assert_eq!(met([351, 649], 30.0), [false, true, true]);
        assert_eq!(met([249, 751], 30.0), [false, true, true]);
        // 80.8 Mbit/s on a link of 100.
        assert_eq!(met([1_010_000, 1_000_000], 50.0), [true, false, true]);
        assert_eq!(met([0, 0], 50.0), [false, true, true]);
    }
}

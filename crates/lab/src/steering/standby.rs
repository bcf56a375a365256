//! Active-standby: nothing on the standby path, a short gap at a silent cut of the active one, and back.

use std::thread;
use std::time::Duration;

use anyhow::{Result, anyhow};

use super::load::{Running, failures};
use super::scene::{HEAD_START, LINKS, PORT, Scene, Shape};
use crate::aim::Line;
use crate::fault::Direction;
use crate::series::Series;
use crate::topology::{Family, Lab};
use crate::transfer::{Client, Job, Report, ServeOptions, Server};

/// What was seen around the cut.
struct Seen {
    series: Series,
    /// Payload on the standby path, up and down, in the time before the cut.
    standby: [u64; 2],
    cut: f64,
    restored: f64,
    end: f64,
    /// The longest gaps of downloads and uploads, in seconds.
    gaps: [f64; 2],
    /// The longest of an upload from kernel to kernel.
    kernels: f64,
    rtt: Duration,
}

/// Downloads and uploads at once. The connections begin on the standby path.
pub(super) fn run(rule: &str) -> Result<Vec<Line>> {
    let scene = Scene::start(SHAPE, rule)?;
    let bytes = RATE * SECONDS;
    let down = Running::jobs(&scene, EACH, Job::down(bytes).rate(RATE))?;
    let up = Running::jobs(&scene, EACH, Job::up(bytes).rate(RATE))?;
    scene.wait_for_joins(usize::try_from(2 * EACH)?)?;
    scene.pass(WARM);
    down.stop();
    up.stop();
    let before = scene.payload(STANDBY)?;
    scene.pass(BEFORE);
    let after = scene.payload(STANDBY)?;
    let steady = scene.steadiness()?;
    let cut = scene.cut(ACTIVE)?;
    scene.pass(DEAD);
    let restored = scene.restore(ACTIVE)?;
    let end = scene.pass(RETURN + WARM);
    let rtt = SHAPE.rtt();
    let reports = [down.finish()?, up.finish()?];
    let gaps = [longest(&reports[0], false), longest(&reports[1], true)];
    let (failed, why) = failures(&reports.concat());
    let seen = Seen {
        series: scene.finish()?,
        standby: [0, 1].map(|way: usize| after[way] - before[way]),
        cut,
        restored,
        end,
        gaps,
        kernels: between_kernels()?,
        rtt,
    };
    let mut lines = judge(&seen);
    lines.push(Line::at_most(
        format!("transfers that failed {why}"),
        failed,
        0.0,
        "",
    ));
    lines.extend(steady.lines(Some(HOLD)));
    Ok(lines)
}

/// The longest gap of uploads between two kernels, when the active path is cut and the other one is the client's backup. Its
/// kernel takes that once its retransmission timer has run out twice, and sends again what the cut path has only there.
fn between_kernels() -> Result<f64> {
    let mut builder = Lab::builder().backup(ACTIVE);
    for link in LINKS {
        let faults = SHAPE.faults(usize::from(link) - 1);
        for direction in [Direction::Up, Direction::Down] {
            builder = builder.faults(link, direction, &faults);
        }
    }
    let lab = builder.build()?;
    let _server = Server::start(lab.server(1), ServeOptions::mptcp(PORT))?;
    let client = Client::mptcp(lab.server_socket(1, Family::V4, PORT)).head_start(HEAD_START);
    let job = Job::up(RATE * KERNELS).rate(RATE);
    let each = usize::try_from(EACH)?;
    let reports = thread::scope(|scope| {
        let uploads = scope.spawn(|| client.run_many_in(lab.client(), each, &job));
        thread::sleep(HEAD_START + Duration::from_secs_f64(WARM));
        for direction in [Direction::Up, Direction::Down] {
            lab.set_faults(3 - ACTIVE, direction, "loss=100%")?;
        }
        uploads.join().map_err(|_| anyhow!("an upload panicked"))?
    })?;
    Ok(longest(&reports, true))
}

/// The longest gap that whoever received has seen, in seconds.
fn longest(reports: &[Report], up: bool) -> f64 {
    let gap = |report: &Report| {
        let micros = if up {
            report.server_gap_us?
        } else {
            report.longest_gap_us
        };
        Some(Duration::from_micros(micros).as_secs_f64())
    };
    // One that told nothing is one that never went on.
    let gaps = reports
        .iter()
        .map(|report| gap(report).unwrap_or(f64::INFINITY));
    gaps.reduce(f64::max).unwrap_or(f64::NAN)
}

fn judge(seen: &Seen) -> Vec<Line> {
    let most = RTO.as_secs_f64() + 2.0 * seen.rtt.as_secs_f64() + SLACK;
    let gap = |what: &str, gap: f64| Line::at_most(what, gap, most, " s");
    let payload = |what: &str, bytes: u64| Line::at_most(what, bytes as f64, 0.0, " bytes");
    let preferred = |direction| {
        seen.series.settles(
            (ACTIVE, direction),
            [95.0, 100.0],
            [seen.restored, seen.end],
            WINDOW,
        )
    };
    let dead = [seen.cut + 1.0, seen.restored];
    let over = |direction| seen.series.bytes(3 - ACTIVE, direction, dead);
    vec![
        payload(
            "payload down the standby path before the cut",
            seen.standby[1],
        ),
        payload(
            "payload up the standby path before the cut",
            seen.standby[0],
        ),
        gap("longest gap of a download: a RTO and a RTT", seen.gaps[0]),
        Line::at_most(
            "longest gap of an upload: the same, or what two kernels take",
            seen.gaps[1],
            most.max(seen.kernels + LIKE),
            " s",
        ),
        Line::told(
            "of an upload between two kernels",
            format!("{:.2} s", seen.kernels),
        ),
        Line::at_least(
            "over the standby path meanwhile, down",
            over(Direction::Down) / (dead[1] - dead[0]),
            MOST * (EACH * RATE) as f64,
            " B/s",
        ),
        Line::within(
            "back on the active path after, down",
            preferred(Direction::Down),
            RETURN,
        ),
        Line::within(
            "back on the active path after, up",
            preferred(Direction::Up),
            RETURN,
        ),
    ]
}

const SHAPE: Shape = Shape {
    rate_mbit: 60,
    queue_ms: 50,
    delay_ms: [10, 10],
};
/// The link of the active access, and the name of the other one.
const ACTIVE: u8 = 2;
const STANDBY: &str = "a";
/// Downloads, and as many uploads.
const EACH: u64 = 8;
/// Of each, in bytes a second.
const RATE: u64 = 100_000;
/// How long each takes.
const SECONDS: u64 = 18;
/// Not measured at first, in seconds.
const WARM: f64 = 1.0;
const BEFORE: f64 = 3.0;
/// How long the cut lasts.
const DEAD: f64 = 3.0;
/// The fail-back delay, and what it takes until a path that was silent is asked again (2 s, then 4 s).
const RETURN: f64 = 7.0;
/// The shortest retransmission timeout of Linux. Its round trip comes to it, and another one for what is sent again.
const RTO: Duration = Duration::from_millis(200);
/// Uploads between kernels take so many seconds.
const KERNELS: u64 = 4;
/// What differs by less is alike, in seconds: it takes the client a tick of its timers.
const LIKE: f64 = 0.05;
/// A piece of a paced transfer, and what threads wait for a processor.
const SLACK: f64 = 0.03;
/// Of what is asked for.
const MOST: f64 = 0.9;
/// Shares are those of so many seconds, where one is looked for.
const WINDOW: f64 = 0.5;
/// Of the rule, in seconds.
const HOLD: f64 = 1.0;

#[cfg(test)]
mod tests {
    use super::*;

    /// What came down each tenth of a second: the cut after 3 s, the end of it after 6 s.
    fn seen(down: impl Fn(f64) -> [u64; 2]) -> Seen {
        let tenths = (0..160).map(|tenth| down(f64::from(tenth) / 10.0 + 0.05));
        Seen {
            series: Series::of(&tenths.collect::<Vec<_>>()),
            standby: [0, 0],
            cut: 3.0,
            restored: 6.0,
            end: 14.0,
            gaps: [0.25, 0.25],
            kernels: 0.2,
            rtt: Duration::from_millis(20),
        }
    }

    fn good(at: f64) -> [u64; 2] {
        if (3.0..12.0).contains(&at) {
            [80_000, 0]
        } else {
            [0, 80_000]
        }
    }

    fn missed(seen: &Seen) -> Vec<usize> {
        let lines = judge(seen);
        (0..lines.len()).filter(|at| !lines[*at].met).collect()
    }

    #[test]
    fn each_aim_can_be_missed() {
        type Miss = fn(&mut Seen);
        assert!(missed(&seen(good)).is_empty(), "{:#?}", judge(&seen(good)));
        let misses: [(Miss, usize); 4] = [
            (|seen| seen.standby[1] = 1, 0),
            (|seen| seen.standby[0] = 1, 1),
            (|seen| seen.gaps[0] = 0.28, 2),
            (|seen| seen.gaps[1] = 0.28, 3),
        ];
        let mut slow = seen(good);
        (slow.gaps[1], slow.kernels) = (0.4, 0.36);
        assert!(missed(&slow).is_empty(), "no slower than kernels are");
        for (miss, line) in misses {
            let mut seen = seen(good);
            miss(&mut seen);
            assert_eq!(missed(&seen), [line]);
        }
        let stays = |at: f64| if at < 3.0 { [0, 80_000] } else { [80_000, 0] };
        assert_eq!(missed(&seen(stays)), [6, 7]);
        let nothing = |at: f64| if at < 3.0 { [0, 80_000] } else { [0, 0] };
        assert_eq!(missed(&seen(nothing)), [5, 6, 7]);
    }

    #[test]
    fn gaps_are_those_of_whoever_receives() {
        let report = |own, server| Report {
            longest_gap_us: own,
            server_gap_us: server,
            ..Report::default()
        };
        let reports = [report(100_000, Some(300_000)), report(200_000, Some(1))];
        let near = |a: f64, b: f64| (a - b).abs() < 1e-9;
        assert!(near(longest(&reports, false), 0.2));
        assert!(near(longest(&reports, true), 0.3));
        assert!(longest(&[report(1, None)], true).is_infinite());
        assert!(longest(&[], false).is_nan());
    }
}

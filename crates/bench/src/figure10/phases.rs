//! The phases, and what each of them has to show.

use anyhow::{Result, ensure};
use flexcp_lab::Direction;
use flexcp_lab::aim::Line;
use flexcp_lab::series::Series;
use serde::Serialize;

/// How long the phases are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Phases([f64; 4]);

/// When the phases began, and when the last one ended, in seconds of the series.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Marks {
    /// One path; nobody has downloaded before.
    pub(super) one: f64,
    /// The second path is there.
    pub(super) two: f64,
    /// The second path is slow.
    pub(super) slow: f64,
    /// It is as before.
    pub(super) back: f64,
    pub(super) end: f64,
}

impl Phases {
    /// In seconds, each long enough for what is measured in it.
    pub(super) fn new(seconds: &[f64]) -> Result<Self> {
        let least = [ONE, TWO, SLOW, BACK].map(|steady| steady + SHORTEST);
        let phases = <[f64; 4]>::try_from(seconds)?;
        let long = phases.iter().zip(least);
        ensure!(
            long.into_iter().all(|(seconds, least)| *seconds >= least),
            "the phases have to take {least:?} seconds at least"
        );
        Ok(Self(phases))
    }

    pub(super) const fn seconds(&self) -> [f64; 4] {
        self.0
    }

    /// All of them.
    pub(super) fn total(&self) -> f64 {
        self.0.iter().sum()
    }
}

/// Judges what came to the client.
pub(super) fn judge(series: &Series, marks: &Marks) -> Vec<Line> {
    let steady = |begin: f64, skipped: f64, end: f64| [begin + skipped, end];
    let one = steady(marks.one, ONE, marks.two);
    let two = steady(marks.two, TWO, marks.slow);
    let slow = steady(marks.slow, SLOW, marks.back);
    let back = steady(marks.back, BACK, marks.end);
    let mbit = |span| series.mbit(Direction::Down, span);
    let second = |span| series.share(SECOND, Direction::Down, span);
    let times = |what: &str, span, least| {
        Line::at_least(what, mbit(span) / mbit(one), least, " times one path")
    };
    let settles =
        |bounds, from, to| series.settles((SECOND, Direction::Down), bounds, [from, to], WINDOW);
    let seconds = |settled: Option<f64>| {
        settled.map_or_else(|| "never".to_owned(), |after| format!("{after:.1} s"))
    };
    vec![
        Line::told("one path", format!("{:.1} Mbit/s", mbit(one))),
        Line::at_most("on the path that is not there", second(one), 1.0, " %"),
        times("two paths", two, TWICE),
        Line::between("on the second", second(two), HALF, " %"),
        Line::told(
            "half of all comes over it after",
            seconds(settles(HALF, marks.two, marks.slow)),
        ),
        Line::within(
            "it is slow: less than 5 % come over it after",
            settles([0.0, FEW], marks.slow, marks.back),
            SOON,
        ),
        Line::at_most("over it from then on", second(slow), FEW, " %"),
        times("the first alone", slow, ALONE),
        times("two paths again", back, TWICE),
        Line::between("on the second", second(back), HALF, " %"),
        Line::told(
            "half of all comes over it again after",
            seconds(settles(HALF, marks.back, marks.end)),
        ),
    ]
}

/// The link of the second path.
const SECOND: u8 = 2;

/// Not measured at the beginning of each phase, in seconds: slow start, joining, and what steering takes: `hold`,
/// `fail_back`, and a path that carried nothing has to be measured.
const ONE: f64 = 3.0;
const TWO: f64 = 4.0;
const SLOW: f64 = SOON;
const BACK: f64 = 7.0;
/// Measured at least.
const SHORTEST: f64 = 1.0;

/// Two paths carry that much more than one.
const TWICE: f64 = 1.9;
/// The part of each of two paths, in percent.
const HALF: [f64; 2] = [40.0, 60.0];
/// The part of a path that is avoided.
const FEW: f64 = 5.0;
/// What the other path carries meanwhile, compared with one path.
const ALONE: f64 = 0.95;
/// Within that many seconds a slow path is avoided.
const SOON: f64 = 1.0;
/// Shares are those of so many seconds, where one is looked for.
const WINDOW: f64 = 0.3;

#[cfg(test)]
mod tests {
    use flexcp_lab::InterfaceBytes;
    use flexcp_lab::aim;
    use flexcp_lab::series::Sample;

    use super::*;

    const MARKS: Marks = Marks {
        one: 0.0,
        two: 8.0,
        slow: 16.0,
        back: 22.0,
        end: 32.0,
    };

    /// What the links bring each tenth of a second, by time.
    fn series(down: impl Fn(f64) -> [u64; 2]) -> Series {
        let mut series = Series::default();
        let mut sums = [0, 0];
        for tenth in 0..=320 {
            let at = f64::from(tenth) / 10.0;
            let links = sums.map(|rx| InterfaceBytes { rx, tx: 0 });
            series.samples.push(Sample {
                at,
                links: links.to_vec(),
            });
            // In the middle of the tenth: which phase it is of must not hang on rounding.
            for (sum, more) in sums.iter_mut().zip(down(at + 0.05)) {
                *sum += more;
            }
        }
        series
    }

    fn good(at: f64) -> [u64; 2] {
        match at {
            _ if at < MARKS.two => [1000, 0],
            _ if at < MARKS.two + 1.0 => [1000, 100],
            _ if at < MARKS.slow + 0.5 => [1000, 1000],
            _ if at < MARKS.back + 3.0 => [1000, 10],
            _ => [1000, 1000],
        }
    }

    #[test]
    fn what_the_paper_shows_is_met() {
        aim::judge(&judge(&series(good), &MARKS)).expect("all aims are met");
    }

    #[test]
    fn each_aim_can_be_missed() {
        type Down = fn(f64) -> [u64; 2];
        let within = |from: f64, to: f64, other: Down| {
            move |at: f64| {
                if (from..to).contains(&at) {
                    other(at)
                } else {
                    good(at)
                }
            }
        };
        let cases: [(f64, f64, Down, &[usize]); 8] = [
            (0.0, 8.0, |_| [1000, 20], &[1]),
            (8.0, 16.0, |_| [900, 900], &[2]),
            (8.0, 16.0, |_| [1300, 700], &[3]),
            (16.5, 17.2, |_| [1000, 1000], &[5]),
            (21.0, 22.0, |_| [1000, 200], &[5]),
            (17.0, 22.0, |_| [900, 0], &[7]),
            (25.0, 32.0, |_| [900, 900], &[8]),
            (25.0, 32.0, |_| [1300, 700], &[9]),
        ];
        for (from, to, other, missed) in cases {
            let lines = judge(&series(within(from, to, other)), &MARKS);
            let found: Vec<_> = (0..lines.len()).filter(|at| !lines[*at].met).collect();
            assert_eq!(found, missed, "{from} to {to}: {lines:#?}");
        }
        // A path that is avoided late, and then not for good.
        let late = judge(&series(within(16.0, 22.0, |_| [1000, 60])), &MARKS);
        assert!(!late[5].met && !late[6].met);
    }

    #[test]
    fn nothing_that_comes_misses_all() {
        let lines = judge(&series(|_| [0, 0]), &MARKS);
        assert!(lines.iter().all(|line| !line.met || line.aim.is_none()));
    }

    #[test]
    fn phases_are_long_enough_to_measure() {
        assert!(Phases::new(&[8.0, 8.0, 6.0, 10.0]).is_ok());
        assert!(Phases::new(&[3.0, 8.0, 6.0, 10.0]).is_err());
        assert!(Phases::new(&[8.0, 8.0, 6.0]).is_err());
    }
}

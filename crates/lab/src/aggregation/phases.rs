//! Figure 5a: one download over both uplinks, over one, over the other, and over both again.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde::Serialize;

use super::site::Site;
use super::way::{FarEnd, MOBILE, Network, PAYLOAD, TELECOM, Way, sum, uplink};
use crate::aim::Line;
use crate::fault::{Cut, Direction};
use crate::series::{Recorder, Series};
use crate::transfer::Job;

/// The whole figure.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Figure5a {
    pub(super) phases: Vec<Phase>,
    pub(super) series: Series,
}

/// A time in which the uplinks stay as they are.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Phase {
    pub(super) name: &'static str,
    /// In seconds of the series.
    pub(super) span: [f64; 2],
    /// What the uplinks that are there carry of IP packets, in MB/s.
    pub(super) room: f64,
    /// What the paper's Figure 5a has, in MB/s, where it has this phase.
    pub(super) paper: Option<f64>,
    /// What came in each ten seconds, in MB/s of IP packets.
    pub(super) means: Vec<f64>,
    /// What each uplink brought, and what came in all.
    links: [f64; 2],
    all: f64,
}

/// Between two samples.
const EVERY: Duration = Duration::from_millis(250);
/// Of the means, in seconds, as in the paper.
const WINDOW: f64 = 10.0;
/// Means in each phase of the paper's, and in the last one.
const WINDOWS: [u32; 4] = [3, 3, 3, 1];
/// What a phase has to reach of what its uplinks carry, in percent. It begins with the loss of an uplink, or its return.
const OF_ROOM: f64 = 90.0;
/// The paper's mean over both uplinks, in MB/s.
const PAPER: f64 = 4.8;
const PATIENCE: Duration = Duration::from_secs(10);
/// Of a packet of full size, in bytes: what the interface counts, and what the link's rate is of.
const FRAME: f64 = 1514.0;
const PACKET: f64 = 1500.0;

/// Runs it.
///
/// # Errors
///
/// The download fails, a byte is wrong, or the uplink that came back is not joined.
pub(super) fn run(network: &Network) -> Result<Figure5a> {
    let site = Site::build(Way::Box(FarEnd::Direct), network, true)?;
    let recorder = Recorder::start_at(site.lab.proxy(), site.lab.links(), EVERY)?;
    let job = Job::down(enough());
    let marks = thread::scope(|scope| {
        let download = scope.spawn(|| site.download(&job));
        let marks = lose_and_return(&site, &recorder);
        let early = download.is_finished();
        let report = download.join().expect("a client does not panic");
        report.and(marks).map(|marks| (marks, early))
    });
    let (marks, early) = marks?;
    ensure!(!early, "the download was over before the last phase");
    let series = recorder.finish()?;
    site.end()?;
    Ok(Figure5a {
        phases: phases(&series, &marks),
        series,
    })
}

/// Bytes that no phase is too short for, and some more for the last one.
fn enough() -> u64 {
    let rates = PHASES.map(|(_, room, _)| room());
    let bytes = rates.iter().zip(WINDOWS);
    let bytes = bytes.map(|(rate, windows)| rate * f64::from(windows) * WINDOW);
    let bytes = (bytes.sum::<f64>() + 2.0 * sum()) * PAYLOAD * 1e6;
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "hundreds of millions"
    )]
    let bytes = bytes as u64;
    bytes
}

type Told = (&'static str, fn() -> f64, Option<f64>);

/// Their names, what their uplinks carry, and what the paper has.
const PHASES: [Told; 4] = [
    ("both uplinks", sum, Some(PAPER)),
    ("mobile alone", || uplink(MOBILE).rate(), Some(3.7)),
    ("telecom alone", || uplink(TELECOM).rate(), Some(1.8)),
    ("both again", sum, None),
];

/// Takes the uplinks' carriers and gives them back: when each phase begins, and the last one ends.
fn lose_and_return(site: &Site, recorder: &Recorder) -> Result<Vec<f64>> {
    let mut marks = vec![];
    let mut wait = |windows: u32| {
        marks.push(recorder.now());
        thread::sleep(Duration::from_secs_f64(f64::from(windows) * WINDOW));
    };
    wait(WINDOWS[0]);
    site.lab.cut(TELECOM, Cut::NoCarrier)?;
    wait(WINDOWS[1]);
    let before = site.joins()?;
    site.lab.restore(TELECOM)?;
    joined(site, before)?;
    site.lab.cut(MOBILE, Cut::NoCarrier)?;
    wait(WINDOWS[2]);
    site.lab.restore(MOBILE)?;
    wait(WINDOWS[3]);
    marks.push(recorder.now());
    Ok(marks)
}

fn joined(site: &Site, before: u64) -> Result<()> {
    let began = Instant::now();
    while site.joins()? <= before {
        ensure!(
            began.elapsed() < PATIENCE,
            "nothing joins over the uplink that came back"
        );
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

fn phases(series: &Series, marks: &[f64]) -> Vec<Phase> {
    let spans = marks.windows(2).map(|two| [two[0], two[1]]);
    let phases = PHASES.into_iter().zip(WINDOWS).zip(spans);
    let phases = phases.map(|(((name, room, paper), windows), span)| {
        let windows = (0..windows).map(|number| {
            let from = span[0] + f64::from(number) * WINDOW;
            [from, from + WINDOW]
        });
        Phase {
            name,
            span,
            room: room(),
            paper,
            means: windows.map(|span| all(series, span)).collect(),
            links: [MOBILE, TELECOM].map(|link| rate(series, link, span)),
            all: all(series, span),
        }
    });
    phases.collect()
}

/// What an uplink brought of IP packets, in MB/s.
pub(super) fn rate(series: &Series, link: u8, [from, to]: [f64; 2]) -> f64 {
    series.bytes(link, Direction::Down, [from, to]) * PACKET / FRAME / 1e6 / (to - from)
}

fn all(series: &Series, span: [f64; 2]) -> f64 {
    [MOBILE, TELECOM]
        .map(|link| rate(series, link, span))
        .iter()
        .sum()
}

impl Figure5a {
    /// Each phase beside what it has to be.
    pub(super) fn lines(&self) -> Vec<Line> {
        self.phases.iter().flat_map(Phase::lines).collect()
    }
}

impl Phase {
    fn lines(&self) -> Vec<Line> {
        let means = self.means.iter().map(|mean| format!("{mean:.2}"));
        let means = means.collect::<Vec<_>>().join(", ");
        let [mobile, telecom] = self.links;
        let paper = self
            .paper
            .map_or_else(String::new, |paper| format!("; the paper {paper}"));
        let what = format!("MB/s of IP packets, {}", self.name);
        let told = format!(
            "{:.2} (mobile {mobile:.2}, telecom {telecom:.2}; each ten seconds {means}{paper})",
            self.all
        );
        let share = 100.0 * self.all / self.room;
        let of = format!("of what they carry, {}", self.name);
        vec![
            Line::told(what, told),
            Line::at_least(of, share, OF_ROOM, " %"),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_are_told_by_ten_seconds_and_held_against_their_uplinks() {
        // The two links bring 3.7 and 1.8 MB/s of packets for 30 s, then one of them 3.3 alone.
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "hundreds of thousands"
        )]
        let frames = |mega: f64| (mega * FRAME / PACKET * 1e5) as u64;
        let mut down = vec![[frames(3.7), frames(1.8)]; 300];
        down.extend([[frames(3.3), 0]; 300]);
        let phases = phases(&Series::of(&down), &[0.0, 30.0, 60.0]);
        assert_eq!(phases.len(), 2);
        assert_eq!(phases[0].means.len(), 3);
        assert!((phases[0].all - 5.5).abs() < 1e-3, "{phases:?}");
        let met = |phase: &Phase| phase.lines()[1].met;
        assert!(met(&phases[0]));
        assert!(!met(&phases[1]), "{phases:?}");
        assert!(
            phases[1].lines()[0]
                .figure
                .contains("3.30, 3.30, 3.30; the paper 3.7")
        );
    }
}

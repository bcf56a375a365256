//! Bytes that access links bring the client and take from it, over time: what its interfaces count.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use serde::Serialize;

use crate::counters::{InterfaceBytes, interfaces};
use crate::fault::Direction;
use crate::namespace::Namespace;
use crate::topology::Lab;

/// Counts of all access links, again and again.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Series {
    /// In order of time.
    pub samples: Vec<Sample>,
}

/// The counts at one moment.
#[derive(Clone, Debug, Serialize)]
pub struct Sample {
    /// Since the recorder was started, in seconds.
    pub at: f64,
    /// Of each link, the first one first, since the interface was made.
    pub links: Vec<InterfaceBytes>,
}

/// Takes samples until it is asked for them.
#[derive(Debug)]
pub struct Recorder {
    began: Instant,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<Series>>>,
}

impl Recorder {
    /// Takes the first sample at once, then one every so often.
    ///
    /// # Errors
    /// The counters can't be read.
    pub fn start(lab: &Lab, every: Duration) -> Result<Self> {
        Self::start_at(lab.client(), lab.links(), every)
    }

    /// The same at another end of the access links: their interfaces `a1` to `an` there.
    ///
    /// # Errors
    /// As [`Recorder::start`].
    pub fn start_at(host: &Namespace, links: u8, every: Duration) -> Result<Self> {
        let began = Instant::now();
        let over = Arc::new(AtomicBool::new(false));
        let host = host.clone();
        let take = move || {
            let counts = interfaces(&host)?;
            let of = |link| counts.get(&format!("a{link}")).copied();
            let counts: Option<Vec<_>> = (1..=links).map(of).collect();
            Ok::<_, anyhow::Error>(Sample {
                at: began.elapsed().as_secs_f64(),
                links: counts.context("an access link is gone")?,
            })
        };
        let mut series = Series {
            samples: vec![take()?],
        };
        let stop = Arc::clone(&over);
        let record = move || {
            let mut due = began;
            while !stop.load(Ordering::Relaxed) {
                due += every;
                thread::sleep(due.saturating_duration_since(Instant::now()));
                series.samples.push(take()?);
            }
            Ok(series)
        };
        let thread = Some(thread::Builder::new().name("series".into()).spawn(record)?);
        Ok(Self {
            began,
            over,
            thread,
        })
    }

    /// The time of samples that are taken now.
    pub fn now(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    /// Ends it; all samples.
    ///
    /// # Errors
    /// The counters could not be read.
    pub fn finish(mut self) -> Result<Series> {
        self.over.store(true, Ordering::Relaxed);
        let thread = self.thread.take().context("it has been finished")?;
        thread.join().map_err(|_| anyhow!("a recorder panicked"))?
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

impl Series {
    /// Bytes that a link, from 1, carried one way between two times. Between two samples they come evenly.
    pub fn bytes(&self, link: u8, direction: Direction, [from, to]: [f64; 2]) -> f64 {
        self.count(link, direction, to) - self.count(link, direction, from)
    }

    /// The same of all links.
    pub fn all_bytes(&self, direction: Direction, span: [f64; 2]) -> f64 {
        let links = self.samples.first().map_or(0, |sample| sample.links.len());
        let links = 1..=u8::try_from(links).unwrap_or(u8::MAX);
        links.map(|link| self.bytes(link, direction, span)).sum()
    }

    /// The part of all that came one way that a link brought, in percent; not a number where nothing came.
    pub fn share(&self, link: u8, direction: Direction, span: [f64; 2]) -> f64 {
        let part = self.bytes(link, direction, span) / self.all_bytes(direction, span);
        // What is worked out between two samples is not exact to the last bit.
        (100.0 * part).clamp(0.0, 100.0)
    }

    /// What all links carried one way, in Mbit/s.
    pub fn mbit(&self, direction: Direction, span: [f64; 2]) -> f64 {
        self.all_bytes(direction, span) * 8e-6 / (span[1] - span[0])
    }

    /// How long after the beginning of a span the share of a link is within bounds, and stays so to its end, in seconds:
    /// the share of each `window` seconds. `None`: it is not at the end. Where nothing comes the share is of no bounds.
    pub fn settles(
        &self,
        (link, direction): (u8, Direction),
        bounds: [f64; 2],
        [from, to]: [f64; 2],
        window: f64,
    ) -> Option<f64> {
        let within = |at: f64| {
            let share = self.share(link, direction, [at, at + window]);
            (bounds[0]..=bounds[1]).contains(&share)
        };
        let starts = self.samples.iter().map(|sample| sample.at);
        let starts = std::iter::once(from).chain(starts.filter(|at| *at > from));
        let starts: Vec<_> = starts.filter(|at| at + window <= to).collect();
        let outside = starts.iter().rposition(|at| !within(*at));
        let first = outside.map_or(0, |outside| outside + 1);
        starts.get(first).map(|at| at - from)
    }

    /// What a link has counted by then.
    fn count(&self, link: u8, direction: Direction, at: f64) -> f64 {
        let after = self.samples.partition_point(|sample| sample.at < at);
        let value = |index: usize| {
            let sample = self.samples.get(index)?;
            let counts = sample.links.get(usize::from(link).checked_sub(1)?)?;
            let bytes = match direction {
                Direction::Up => counts.tx,
                Direction::Down => counts.rx,
            };
            // Exact up to 2^53 bytes.
            Some((sample.at, bytes as f64))
        };
        match (after.checked_sub(1).and_then(value), value(after)) {
            (Some((t0, b0)), Some((t1, b1))) => b0 + (b1 - b0) * (at - t0) / (t1 - t0),
            (Some((_, bytes)), None) | (None, Some((_, bytes))) => bytes,
            (None, None) => f64::NAN,
        }
    }
}

#[cfg(test)]
impl Series {
    /// Links that bring so many bytes in each tenth of a second.
    pub(crate) fn of(down: &[[u64; 2]]) -> Self {
        let mut series = Self::default();
        let mut sums = [0, 0];
        for number in 0..=down.len() {
            let links = sums.map(|rx| InterfaceBytes { rx, tx: rx / 2 });
            series.samples.push(Sample {
                at: number as f64 / 10.0,
                links: links.to_vec(),
            });
            for link in [0, 1] {
                sums[link] += down.get(number).map_or(0, |bytes| bytes[link]);
            }
        }
        series
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-6
    }

    #[test]
    fn shares_and_rates_are_those_of_the_span() {
        let series = Series::of(&[[100, 0], [100, 0], [50, 150], [50, 150]]);
        assert!(near(series.bytes(1, Direction::Down, [0.05, 0.15]), 100.0));
        assert!(near(series.share(2, Direction::Down, [0.2, 0.4]), 75.0));
        assert!(near(series.share(2, Direction::Down, [0.1, 0.3]), 50.0));
        assert!(near(series.mbit(Direction::Down, [0.2, 0.4]), 0.016));
        assert!(near(series.mbit(Direction::Up, [0.2, 0.4]), 0.008));
        // Beyond the samples nothing came.
        assert!(near(series.bytes(1, Direction::Down, [0.4, 9.0]), 0.0));
        assert!(series.share(1, Direction::Down, [0.4, 9.0]).is_nan());
    }

    #[test]
    fn a_share_settles_when_it_leaves_the_bounds_no_more() {
        let mut down = vec![[50, 50]; 10];
        down.extend([[100, 0]; 10]);
        let at =
            |series: &Series, bounds| series.settles((2, Direction::Down), bounds, [0.5, 2.0], 0.1);
        let series = Series::of(&down);
        assert!(near(at(&series, [0.0, 5.0]).unwrap(), 0.5));
        assert!(at(&series, [40.0, 60.0]).is_none());
        assert!(near(at(&series, [0.0, 100.0]).unwrap(), 0.0));
        // Once more at the end: it has not settled.
        down[18] = [50, 50];
        assert!(near(at(&Series::of(&down), [0.0, 5.0]).unwrap(), 1.4));
        down[19] = [50, 50];
        assert!(at(&Series::of(&down), [0.0, 5.0]).is_none());
    }

    #[test]
    fn a_link_that_is_idle_has_no_share_though_it_had_much() {
        let mut down = vec![[0, 10]; 10];
        down[0] = [1_000_000_003, 10];
        let series = Series::of(&down);
        let at = |link, bounds| series.settles((link, Direction::Down), bounds, [0.0, 1.0], 0.1);
        assert!(near(at(2, [95.0, 100.0]).unwrap(), 0.1));
        assert!(near(at(1, [0.0, 5.0]).unwrap(), 0.1));
    }

    #[test]
    fn nothing_that_comes_settles_nowhere() {
        let series = Series::of(&[[0, 0]; 20]);
        let settled = series.settles((2, Direction::Down), [0.0, 5.0], [0.0, 2.0], 0.3);
        assert_eq!(settled, None);
    }
}

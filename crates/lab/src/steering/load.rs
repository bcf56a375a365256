//! Loads: many clients that transfer something at their own pace, so that links have room and shares are the rule's doing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use anyhow::{Result, anyhow};
use flexcp_testkit::Random;

use super::scene::Scene;
use crate::transfer::{Client, Job, Report, raise_file_limit};

/// How much each transfer takes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Sizes {
    /// Always so many bytes.
    Equal(u64),
    /// A bounded Pareto distribution: most are small, and most bytes are those of a few.
    Pareto { alpha: f64, least: u64, most: u64 },
}

impl Sizes {
    /// The next size.
    pub(super) fn draw(self, random: &mut Random) -> u64 {
        match self {
            Self::Equal(bytes) => bytes,
            Self::Pareto { alpha, least, most } => {
                let ratio = (least as f64 / most as f64).powf(alpha);
                let luck = f64::from(random.word()) / (f64::from(u32::MAX) + 1.0);
                let size = least as f64 * (1.0 - luck * (1.0 - ratio)).powf(-1.0 / alpha);
                #[allow(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "it is between the bounds"
                )]
                let size = size as u64;
                size.clamp(least, most)
            }
        }
    }
}

/// How fast a transfer of that size goes: about two seconds each, as far as a link carries it beside others.
pub(super) fn pace(bytes: u64) -> u64 {
    (bytes / 2).clamp(1, FASTEST)
}

/// Clients at work. Each does one transfer after another on connections of their own.
pub(super) struct Running {
    over: Arc<AtomicBool>,
    thread: JoinHandle<Result<Vec<Report>>>,
}

impl Running {
    /// So many clients, each with sizes of its own from a seed.
    pub(super) fn transfers(scene: &Scene, slots: u64, sizes: Sizes, seed: u64) -> Result<Self> {
        let next = move |slot: u64| {
            let mut random = Random::for_purpose(seed, slot);
            move || {
                let bytes = sizes.draw(&mut random);
                Job::down(bytes).rate(pace(bytes)).seed(random.next() >> 32)
            }
        };
        Self::start(scene, slots, next)
    }

    /// So many clients that do this once, or again if it ends before the load does.
    pub(super) fn jobs(scene: &Scene, count: u64, job: Job) -> Result<Self> {
        Self::start(scene, count, move |slot| move || job.seed(slot))
    }

    fn start<N: FnMut() -> Job + Send + 'static>(
        scene: &Scene,
        slots: u64,
        next: impl Fn(u64) -> N + Send + 'static,
    ) -> Result<Self> {
        raise_file_limit()?;
        let over = Arc::new(AtomicBool::new(false));
        let (namespace, client) = (scene.lab.client().clone(), scene.client());
        let stop = Arc::clone(&over);
        let work = move || namespace.run(|| all(&client, slots, next, &stop));
        let thread = thread::Builder::new().name("load".into()).spawn(work)?;
        Ok(Self { over, thread })
    }

    /// Begins nothing more. What has begun goes on.
    pub(super) fn stop(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    /// Waits for the end of what has begun: what came of each, but of what was broken off after the stop.
    pub(super) fn finish(self) -> Result<Vec<Report>> {
        self.stop();
        let reports = self.thread.join();
        reports.map_err(|_| anyhow!("a load panicked"))?
    }
}

fn all<N: FnMut() -> Job + Send>(
    client: &Client,
    slots: u64,
    next: impl Fn(u64) -> N,
    stop: &AtomicBool,
) -> Result<Vec<Report>> {
    thread::scope(|scope| {
        let mut threads = vec![];
        for slot in 0..slots {
            let mut next = next(slot);
            let again = move || {
                let mut reports = vec![];
                while !stop.load(Ordering::Relaxed) {
                    let report = client.run(&next());
                    // What is broken off at the end is no failure of the network's.
                    if report.failure.is_none() || !stop.load(Ordering::Relaxed) {
                        reports.push(report);
                    }
                }
                reports
            };
            let builder = thread::Builder::new().stack_size(STACK);
            threads.push(builder.spawn_scoped(scope, again)?);
        }
        let mut reports = vec![];
        for thread in threads {
            reports.extend(thread.join().map_err(|_| anyhow!("a client panicked"))?);
        }
        Ok(reports)
    })
}

/// How many of them failed, and the first reason.
pub(super) fn failures(reports: &[Report]) -> (f64, String) {
    let failed = reports.iter().filter_map(|report| report.ok().err());
    let failed: Vec<_> = failed.map(|error| format!("{error:#}")).collect();
    let first = failed.first().cloned().unwrap_or_default();
    (failed.len() as f64, first)
}

/// Bytes a second of the fastest transfer: a third of a link of 100 Mbit/s.
const FASTEST: u64 = 4_000_000;
/// Of a client's thread.
const STACK: usize = 128 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    const HEAVY: Sizes = Sizes::Pareto {
        alpha: 1.2,
        least: 10_000,
        most: 50_000_000,
    };

    #[test]
    fn heavy_tailed_sizes_are_of_the_seed_and_within_bounds() {
        let draw = |seed| {
            let mut random = Random::new(seed);
            (0..20_000)
                .map(|_| HEAVY.draw(&mut random))
                .collect::<Vec<_>>()
        };
        let mut sizes = draw(7);
        assert_eq!(sizes, draw(7));
        assert_ne!(sizes, draw(8));
        sizes.sort_unstable();
        assert!(sizes[0] >= 10_000 && sizes[19_999] <= 50_000_000);
        // The median of this distribution is 10,000 times the 1.2th root of 2.
        assert!(
            (17_000..18_700).contains(&sizes[10_000]),
            "{}",
            sizes[10_000]
        );
        let all: u64 = sizes.iter().sum();
        let largest: u64 = sizes[19_800..].iter().sum();
        assert!(
            largest * 4 > all,
            "a hundredth of them has a quarter of all bytes"
        );
    }

    #[test]
    fn small_ones_are_as_long_under_way_as_larger_ones() {
        assert_eq!(pace(500_000), 250_000);
        assert_eq!(pace(10_000), 5_000);
        assert_eq!(pace(50_000_000), FASTEST);
    }

    #[test]
    fn failures_are_counted_with_the_first_reason() {
        let failed = Report {
            failure: Some(crate::transfer::Failure {
                kind: "eof".into(),
                during: "read",
                message: "no more".into(),
            }),
            ..Report::default()
        };
        let (count, first) = failures(&[Report::default(), failed.clone(), failed]);
        assert_eq!(count.to_bits(), 2.0_f64.to_bits());
        assert!(first.starts_with("no more"), "{first}");
    }
}

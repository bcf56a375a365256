//! Honest traffic beside an attack: long transfers, and short connections one after another.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use serde::Serialize;

use crate::namespace::Namespace;
use crate::transfer::{Client, Job, Report};

/// A long transfer on a thread of its own.
#[derive(Debug)]
pub(super) struct Long(JoinHandle<Result<Report>>);

impl Long {
    pub(super) fn start(namespace: &Namespace, client: Client, job: Job) -> Self {
        let namespace = namespace.clone();
        Self(thread::spawn(move || client.run_in(&namespace, &job)))
    }

    pub(super) fn is_over(&self) -> bool {
        self.0.is_finished()
    }

    pub(super) fn report(self) -> Result<Report> {
        self.0.join().map_err(|_| anyhow!("a transfer panicked"))?
    }
}

/// What became of short connections.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Shorts {
    /// How many there were.
    pub tried: usize,
    /// How many moved all their bytes and closed.
    pub succeeded: usize,
    /// Connections a second.
    pub rate: f64,
    /// Median time to connect, in microseconds.
    pub connect_us: u64,
    /// The 99th percentile.
    pub connect_us_p99: u64,
    /// What the first that failed said.
    pub first_failure: Option<String>,
}

/// What one stream did, and how long it took.
type Stretch = (Vec<Report>, Duration);

/// Short connections, one after another, until told to stop.
#[derive(Debug)]
pub(super) struct ShortStream {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Result<Stretch>>>,
}

impl ShortStream {
    pub(super) fn start(namespace: &Namespace, clients: Vec<Client>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let begin = |client: Client| {
            let (namespace, stop) = (namespace.clone(), Arc::clone(&stop));
            thread::spawn(move || {
                namespace.run(|| {
                    let began = Instant::now();
                    let mut reports = vec![];
                    while !stop.load(Ordering::Relaxed) {
                        let seed = u64::try_from(reports.len()).unwrap_or_default();
                        reports.push(client.run(&Job::ping_pong(1, 500).seed(seed)));
                        thread::sleep(PAUSE);
                    }
                    Ok((reports, began.elapsed()))
                })
            })
        };
        let threads = clients.into_iter().map(begin).collect();
        Self { stop, threads }
    }

    pub(super) fn finish(self) -> Result<Shorts> {
        self.stop.store(true, Ordering::Relaxed);
        let mut shorts = Shorts::default();
        let mut connect = vec![];
        for thread in self.threads {
            let joined = thread.join().map_err(|_| anyhow!("a client panicked"))?;
            let (reports, took) = joined?;
            shorts.tried += reports.len();
            shorts.rate += reports.len() as f64 / took.as_secs_f64();
            for report in reports {
                match &report.failure {
                    None => shorts.succeeded += 1,
                    Some(failure) => {
                        let text = format!("{} ({})", failure.message, failure.during);
                        shorts.first_failure.get_or_insert(text);
                    }
                }
                connect.push(report.connect_us);
            }
        }
        connect.sort_unstable();
        let at = |share: usize| connect.get(connect.len() * share / 100).copied();
        shorts.connect_us = at(50).unwrap_or_default();
        shorts.connect_us_p99 = at(99).unwrap_or_default();
        Ok(shorts)
    }
}

/// Between two short connections of one stream.
const PAUSE: Duration = Duration::from_millis(10);

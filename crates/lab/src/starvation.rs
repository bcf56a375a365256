//! How long threads wait for a processor: the measure of a machine that is too slow for what runs on it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::Result;

/// Measures until it is dropped, on a thread that sleeps and looks how late it wakes up.
#[derive(Debug)]
pub struct Starvation {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    longest_us: AtomicU64,
    stop: AtomicBool,
}

impl Starvation {
    /// A thread that waits longer than this for a processor explains what kernels do at their time limits: the
    /// shortest of them (delayed ACKs, loss probes) are 40 ms and less.
    pub const EXPLAINS: Duration = Duration::from_millis(30);

    /// Begins to measure.
    pub fn measure() -> Result<Self> {
        let shared = Arc::new(Shared::default());
        let thread = {
            let shared = Arc::clone(&shared);
            thread::Builder::new()
                .name("starvation".to_owned())
                .spawn(move || shared.run())?
        };
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// The longest wait so far.
    pub fn longest(&self) -> Duration {
        Duration::from_micros(self.shared.longest_us.load(Ordering::Relaxed))
    }
}

impl Drop for Starvation {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn run(&self) {
        while !self.stop.load(Ordering::Relaxed) {
            let began = Instant::now();
            thread::sleep(NAP);
            let late = began.elapsed().saturating_sub(NAP);
            let late = u64::try_from(late.as_micros()).unwrap_or(u64::MAX);
            self.longest_us.fetch_max(late, Ordering::Relaxed);
        }
    }
}

const NAP: Duration = Duration::from_millis(5);

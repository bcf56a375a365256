//! The first seeds, each a run of its own.
#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use flexcp_simulator::{Outcome, run};

const SEEDS: u64 = 2000;
/// Every so many, a seed runs twice.
const TWICE: u64 = 50;

#[test]
fn first_seeds() {
    let next = AtomicU64::new(0);
    let work = || {
        let mut failed = vec![];
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= SEEDS {
                return failed;
            }
            let outcome = run(seed);
            if seed.is_multiple_of(TWICE) {
                assert_eq!(outcome, run(seed), "I13: seed {seed} runs differently");
            }
            if !outcome.failures.is_empty() {
                failed.push(outcome);
            }
        }
    };
    let workers = thread::available_parallelism().map_or(1, usize::from);
    let failed: Vec<Outcome> = thread::scope(|scope| {
        let running: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        running
            .into_iter()
            .flat_map(|worker| worker.join().expect("a worker ends"))
            .collect()
    });
    let seeds: Vec<u64> = failed.iter().map(|outcome| outcome.seed).collect();
    let first = failed.iter().map(|outcome| &outcome.failures[0]).next();
    assert!(
        failed.is_empty(),
        "seeds {seeds:?} fail (`simulator --seed N --trace`), the first of them: {}",
        first.map_or("", String::as_str)
    );
}

//! Which seeds a test runs: fixed ones, so that what once held is held, and fresh ones, so that each run of the tests
//! sees what none has seen.

use std::hash::{BuildHasher, RandomState};
use std::ops::Range;

/// The seeds that are to be run by one test: those of `fixed`, then `fresh` others in a row from where the operating
/// system's randomness says, which is printed. `FLEXCP_SEED` in the environment names one to be run instead,
/// `FLEXCP_SEEDS` how many from there.
///
/// # Panics
/// When one of the variables is no number.
#[must_use]
pub fn seeds(fixed: Range<u64>, fresh: u64) -> Vec<u64> {
    if let Some(first) = number("FLEXCP_SEED") {
        let count = number("FLEXCP_SEEDS").unwrap_or(1);
        return (first..first.saturating_add(count)).collect();
    }
    // Twelve digits: they are to be read, and typed again.
    let first = RandomState::new().hash_one(fixed.end) % 1_000_000_000_000;
    println!("fresh seeds: {first}..{}", first + fresh);
    fixed.chain(first..first + fresh).collect()
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{variable}={text}: a number is expected")))
}

//! Fresh seeds: luck that no run had before, and that can be had again.

use std::collections::BTreeSet;
use std::env;
use std::hash::{BuildHasher as _, RandomState};
use std::num::ParseIntError;

use flexcp_faults::Random;

/// The seed that `FLEXCP_SEED` names, or a new one; small enough to be typed.
///
/// Whoever uses it prints it with whatever fails.
pub fn fresh() -> u64 {
    let told = env::var("FLEXCP_SEED").ok();
    of(told.as_deref(), RandomState::new().hash_one(0))
}

/// `count` different numbers below `below`, the same ones for a seed each time.
pub fn choose(seed: u64, below: usize, count: usize) -> BTreeSet<usize> {
    let mut random = Random::of_part(seed, 0);
    let mut chosen = BTreeSet::new();
    while chosen.len() < count.min(below) {
        let number = random.below(u64::try_from(below).unwrap_or(u64::MAX));
        chosen.extend(usize::try_from(number));
    }
    chosen
}

/// A seed of the command line: a number, or `fresh`.
pub fn parse(text: &str) -> Result<u64, ParseIntError> {
    if text == "fresh" {
        return Ok(fresh());
    }
    text.parse()
}

fn of(told: Option<&str>, random: u64) -> u64 {
    told.and_then(|told| told.parse().ok())
        .unwrap_or(random % 1_000_000 + 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seed_is_what_the_environment_says() {
        assert_eq!(of(Some("77"), 5), 77);
    }

    #[test]
    fn choice_is_the_seeds_and_has_no_number_twice() {
        let chosen = choose(7, 950, 4);
        assert_eq!(chosen.len(), 4);
        assert!(chosen.iter().all(|number| *number < 950));
        assert_eq!(chosen, choose(7, 950, 4));
        assert_ne!(chosen, choose(8, 950, 4));
        assert_eq!(choose(7, 3, 9).len(), 3);
    }

    #[test]
    fn fresh_seeds_are_none_of_the_fixed_ones() {
        assert!((0..10).all(|random| of(None, random) >= 1000));
        assert_eq!(of(Some("nonsense"), 1), 1001);
    }
}

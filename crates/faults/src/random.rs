//! A small generator of random numbers: xoshiro256++ seeded by SplitMix64 (both by Blackman and
//! Vigna, in the public domain). Not for secrets.

use crate::fault::Ppm;

/// Random numbers that depend on nothing but the seed.
#[derive(Clone, Debug)]
pub struct Random([u64; 4]);

impl Random {
    /// The sequence of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut state = seed;
        Self([(); 4].map(|()| split_mix(&mut state)))
    }

    /// The sequence of one part of something that has a seed: parts don't disturb each other.
    #[must_use]
    pub fn of_part(seed: u64, part: u64) -> Self {
        let mut state = part;
        Self::new(seed ^ split_mix(&mut state))
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        let [s0, s1, s2, s3] = &mut self.0;
        let result = s0.wrapping_add(*s3).rotate_left(23).wrapping_add(*s0);
        let shifted = *s1 << 17;
        *s2 ^= *s0;
        *s3 ^= *s1;
        *s1 ^= *s2;
        *s0 ^= *s3;
        *s2 ^= shifted;
        *s3 = s3.rotate_left(45);
        result
    }

    /// A number below `bound`; 0 when `bound` is 0. The bias is below 2^-64 * `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        let wide = u128::from(self.next_u64()) * u128::from(bound);
        u64::try_from(wide >> 64).unwrap_or(0)
    }

    /// True with that probability.
    pub fn chance(&mut self, probability: Ppm) -> bool {
        self.below(u64::from(Ppm::ALWAYS.0)) < u64::from(probability.0)
    }
}

fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// First numbers for the state 1, 2, 3, 4, from the authors' reference code.
    #[test]
    fn known_state_gives_the_reference_sequence() {
        let mut random = Random([1, 2, 3, 4]);
        let got = [(); 4].map(|()| random.next_u64());
        assert_eq!(
            got,
            [
                41_943_041,
                58_720_359,
                3_588_806_011_781_223,
                3_591_011_842_654_386
            ]
        );
    }

    #[test]
    fn parts_of_a_seed_differ() {
        let first = |part| Random::of_part(1, part).next_u64();
        assert_ne!(first(0), first(1));
        assert_eq!(first(1), first(1));
    }

    #[test]
    fn chance_at_its_ends_is_certain() {
        let mut random = Random::new(1);
        assert!((0..1000).all(|_| random.chance(Ppm::ALWAYS)));
        assert!((0..1000).all(|_| !random.chance(Ppm(0))));
    }
}

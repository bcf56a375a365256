//! Numbers that follow from a seed.

/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014). It spreads probes over time and makes session numbers, which have to be
/// unique and need not be secret.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`; 0 when `end` is 0.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        let scaled = (u128::from(self.next()) * u128::from(end)) >> 64;
        u64::try_from(scaled).unwrap_or(0)
    }
}

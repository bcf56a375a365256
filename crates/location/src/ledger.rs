//! Bytes that probes have cost in the last hour.

use core::time::Duration;

use crate::time::Time;

/// One slot for each minute of an hour, and one for the minute that the hour's begin falls into: so their sum is never less
/// than what any stretch of 3600 s has seen.
const SLOTS: usize = 61;
const SLOT: u64 = 60_000_000;

/// A bound on the bytes of any hour, as a sum over minutes.
#[derive(Clone, Debug)]
pub(crate) struct Ledger {
    spent: [u64; SLOTS],
    /// The minute of the newest slot, counted from the clock's origin.
    minute: u64,
    /// Most bytes of an hour.
    budget: u64,
}

impl Ledger {
    pub(crate) const fn new(budget: u64) -> Self {
        Self {
            spent: [0; SLOTS],
            minute: 0,
            budget,
        }
    }

    /// Bytes of the last hour, rounded up to a minute.
    pub(crate) fn spent(&mut self, now: Time) -> u64 {
        self.advance(now);
        self.spent.iter().sum()
    }

    /// Whether so many bytes fit in.
    pub(crate) fn affords(&mut self, bytes: u64, now: Time) -> bool {
        self.spent(now).saturating_add(bytes) <= self.budget
    }

    /// Takes note of bytes that are spent.
    pub(crate) fn spend(&mut self, bytes: u64, now: Time) {
        self.advance(now);
        let slot = self.slot();
        self.spent[slot] = self.spent[slot].saturating_add(bytes);
    }

    /// The time that has to lie between two rounds which cost this, if nothing else is bought.
    pub(crate) fn pace(&self, bytes: u64) -> Duration {
        let micros = u128::from(bytes) * 3_660_000_000 / u128::from(self.budget.max(1));
        Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
    }

    fn advance(&mut self, now: Time) {
        let minute = now.0 / SLOT;
        if minute <= self.minute {
            return;
        }
        if minute - self.minute >= SLOTS as u64 {
            self.spent = [0; SLOTS];
            self.minute = minute;
        }
        while self.minute < minute {
            self.minute += 1;
            let slot = self.slot();
            self.spent[slot] = 0;
        }
    }

    fn slot(&self) -> usize {
        usize::try_from(self.minute % SLOTS as u64).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_stretch_of_an_hour_has_more_than_the_budget() {
        let mut ledger = Ledger::new(1000);
        let mut spent: alloc::vec::Vec<(u64, u64)> = alloc::vec::Vec::new();
        for step in 0..20_000_u64 {
            let at = step * 1_300_000;
            let bytes = step * 7 % 13;
            if ledger.affords(bytes, Time(at)) {
                ledger.spend(bytes, Time(at));
                spent.push((at, bytes));
            }
        }
        for &(begin, _) in &spent {
            let hour: u64 = spent
                .iter()
                .filter(|&&(at, _)| at >= begin && at - begin <= 3_600_000_000)
                .map(|&(_, bytes)| bytes)
                .sum();
            assert!(hour <= 1000, "{hour} bytes in the hour from {begin} us on");
        }
        assert!(spent.iter().map(|&(_, bytes)| bytes).sum::<u64>() > 6000);
    }

    #[test]
    fn a_long_pause_gives_the_whole_budget_back() {
        let mut ledger = Ledger::new(10);
        ledger.spend(10, Time::from_secs(5));
        assert!(!ledger.affords(1, Time::from_secs(3605)));
        assert!(ledger.affords(10, Time::from_secs(5 + 3660)));
    }
}

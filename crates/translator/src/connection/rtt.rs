//! Round-trip times of a path, as both tiers keep them: RFC 6298 section 2, and the least of the last minutes.

use core::num::NonZeroU32;
use core::time::Duration;

use crate::offload::EntryRtt;
use crate::time::Instant;

/// How long the least counts without being met again, in [epochs](epoch): five minutes, as Linux keeps its own
/// (`tcp_min_rtt_wlen`).
pub(crate) const LEAST_EPOCHS: u32 = 286;

/// Round-trip times between FlexCP and the peer, in microseconds.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Rtt {
    /// SRTT of data; `None` before its first sample.
    smoothed: Option<NonZeroU32>,
    /// RTTVAR of data.
    variation: u32,
    /// The last sample of data; 0: there is none.
    last: u32,
    /// The shorter of the last two; the last, where that is the first.
    recent: u32,
    /// Of data and handshake; 0: neither has given a sample.
    least: u32,
    /// Epoch of the least.
    least_at: u32,
}

impl Rtt {
    /// Takes a sample of data, which is more than nothing, and obeys Karn's rule: what it times went out once.
    pub(crate) fn sample(&mut self, now: Instant, sample: Duration) {
        let sample = micros(sample);
        let (smoothed, variation) = match self.smoothed.map(NonZeroU32::get) {
            None => (sample, sample / 2),
            Some(smoothed) => (
                smoothed - smoothed / 8 + sample / 8,
                self.variation - self.variation / 4 + smoothed.abs_diff(sample) / 4,
            ),
        };
        self.smoothed = NonZeroU32::new(smoothed);
        self.variation = variation;
        self.recent = match self.last {
            0 => sample,
            last => last.min(sample),
        };
        self.last = sample;
        self.take_least(now, sample);
    }

    /// Takes a sample of a path at rest, which had none for some time: what was known before counts no more.
    pub(crate) fn restart(&mut self, now: Instant, sample: Duration) {
        self.smoothed = None;
        self.last = 0;
        self.sample(now, sample);
    }

    /// Takes a sample of the handshake, which no queue of data has lengthened: what data takes is not smoothed with it.
    pub(crate) fn sample_handshake(&mut self, now: Instant, sample: Duration) {
        self.take_least(now, micros(sample));
    }

    fn take_least(&mut self, now: Instant, sample: u32) {
        let over = epoch(now).wrapping_sub(self.least_at) >= LEAST_EPOCHS;
        if self.least == 0 || sample <= self.least || over {
            self.least = sample;
            self.least_at = epoch(now);
        }
    }

    /// SRTT of data.
    pub(crate) fn smoothed(&self) -> Option<Duration> {
        self.smoothed.map(|micros| micros_of(micros.get()))
    }

    /// RTTVAR of data.
    pub(crate) fn variation(&self) -> Option<Duration> {
        self.smoothed.map(|_| micros_of(self.variation))
    }

    /// The least of the last five minutes.
    pub(crate) fn least(&self) -> Option<Duration> {
        (self.least != 0).then(|| micros_of(self.least))
    }

    /// SRTT of data, and while there is none what the handshake took.
    pub(crate) fn known(&self) -> Option<Duration> {
        self.smoothed().or_else(|| self.least())
    }

    /// What both of the last two samples of data show, and while there is none what the handshake took: a path that has become
    /// slow shows after two round trips, which the smoothed one takes ten for, and one late answer does not.
    pub(crate) fn recent(&self) -> Option<Duration> {
        self.smoothed
            .map(|_| micros_of(self.recent))
            .or_else(|| self.least())
    }

    /// The last sample of data.
    pub(crate) fn last(&self) -> Option<Duration> {
        (self.last != 0).then(|| micros_of(self.last))
    }

    /// As a flow entry has it.
    pub(crate) fn export(&self) -> EntryRtt {
        EntryRtt {
            smoothed: self.smoothed.map_or(0, NonZeroU32::get),
            variation: self.variation,
            last: self.last,
            recent: self.recent,
            least: self.least,
            least_at: self.least_at,
        }
    }

    /// From a flow entry.
    pub(crate) fn import(entry: &EntryRtt) -> Self {
        Self {
            smoothed: NonZeroU32::new(entry.smoothed),
            variation: entry.variation,
            last: entry.last,
            recent: entry.recent,
            least: entry.least,
            least_at: entry.least_at,
        }
    }
}

/// Time in steps of 2^20 microseconds, for what a program in the kernel divides by shifting.
#[allow(
    clippy::cast_possible_truncation,
    reason = "differences are taken, and wrap after 142 years"
)]
const fn epoch(now: Instant) -> u32 {
    (now.0 >> 20) as u32
}

fn micros(time: Duration) -> u32 {
    u32::try_from(time.as_micros()).unwrap_or(u32::MAX)
}

const fn micros_of(micros: u32) -> Duration {
    Duration::from_micros(micros as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn after(samples: &[(u64, u64)]) -> Rtt {
        let mut rtt = Rtt::default();
        for &(at, millis) in samples {
            rtt.sample(Instant(at), ms(millis));
        }
        rtt
    }

    #[test]
    fn recent_is_the_shorter_of_the_last_two() {
        let recent = |samples: &[(u64, u64)]| after(samples).recent();
        assert_eq!(recent(&[]), None);
        assert_eq!(recent(&[(0, 80)]), Some(ms(80)));
        assert_eq!(recent(&[(0, 50), (1, 150)]), Some(ms(50)));
        assert_eq!(recent(&[(0, 50), (1, 150), (2, 140)]), Some(ms(140)));
        assert_eq!(recent(&[(0, 50), (1, 150), (2, 60)]), Some(ms(60)));
        let mut rtt = after(&[(0, 50)]);
        rtt.restart(Instant(1), ms(150));
        assert_eq!(rtt.recent(), Some(ms(150)));
        rtt.sample(Instant(2), ms(200));
        assert_eq!(rtt.recent(), Some(ms(150)));
    }

    #[test]
    fn first_sample_is_the_time_and_half_of_it_the_variation() {
        let rtt = after(&[(0, 80)]);
        assert_eq!(rtt.smoothed(), Some(ms(80)));
        assert_eq!(rtt.variation(), Some(ms(40)));
        assert_eq!(rtt.least(), Some(ms(80)));
        let none = Rtt::default();
        assert_eq!(
            (none.smoothed(), none.variation(), none.least()),
            (None, None, None)
        );
    }

    #[test]
    fn handshake_is_known_until_data_is() {
        let mut rtt = Rtt::default();
        rtt.sample_handshake(Instant(0), ms(30));
        assert_eq!((rtt.smoothed(), rtt.variation()), (None, None));
        assert_eq!((rtt.known(), rtt.least()), (Some(ms(30)), Some(ms(30))));
        rtt.sample(Instant(1), ms(80));
        assert_eq!((rtt.known(), rtt.smoothed()), (Some(ms(80)), Some(ms(80))));
        assert_eq!(rtt.least(), Some(ms(30)));
    }

    /// RFC 6298 section 2.3: the variation is moved by the old SRTT, with 1/4, SRTT with 1/8.
    #[test]
    fn later_samples_move_it_by_an_eighth_and_the_variation_by_a_quarter() {
        let rtt = after(&[(0, 80), (1, 160)]);
        assert_eq!(rtt.smoothed(), Some(ms(90)));
        assert_eq!(rtt.variation(), Some(ms(50)));
        let rtt = after(&[(0, 80), (1, 160), (2, 10)]);
        assert_eq!(rtt.smoothed(), Some(ms(80)));
        assert_eq!(rtt.variation(), Some(Duration::from_micros(57_500)));
    }

    #[test]
    fn path_at_rest_is_measured_anew() {
        let mut rtt = after(&[(0, 80), (1, 160)]);
        rtt.restart(Instant(2), ms(30));
        assert_eq!(
            (rtt.smoothed(), rtt.variation()),
            (Some(ms(30)), Some(ms(15)))
        );
        assert_eq!(rtt.least(), Some(ms(30)));
    }

    #[test]
    fn longest_samples_overflow_nothing() {
        let mut rtt = Rtt::default();
        for _ in 0..100 {
            rtt.sample(Instant(0), Duration::MAX);
        }
        assert!(rtt.smoothed() > Some(Duration::from_secs(4200)));
        rtt.sample(Instant(0), Duration::from_micros(1));
        assert_eq!(rtt.least(), Some(Duration::from_micros(1)));
    }

    #[test]
    fn least_is_forgotten_after_five_minutes_without_its_like() {
        let known = [(0, 20), (10 * SECOND, 30), (299 * SECOND, 40)];
        assert_eq!(after(&known).least(), Some(ms(20)));
        let later = [known.as_slice(), &[(301 * SECOND, 40)]].concat();
        assert_eq!(after(&later).least(), Some(ms(40)));
        // Met again in between it stays.
        let again = [(0, 20), (200 * SECOND, 20), (301 * SECOND, 40)];
        assert_eq!(after(&again).least(), Some(ms(20)));
    }

    #[test]
    fn flow_entry_has_all_of_it() {
        let rtt = after(&[(7 * SECOND, 80), (8 * SECOND, 160)]);
        assert_eq!(Rtt::import(&rtt.export()), rtt);
        assert_eq!(Rtt::import(&Rtt::default().export()), Rtt::default());
    }
}

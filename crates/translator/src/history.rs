//! What an access has been like of late, as the connections that were translated over it have shown, and what is to carry the next
//! ones: `carrier = "auto"`.
//!
//! A connection is split where that helps: where its clients use a second access, and the first one loses much or queues long, so
//! that one path is a bottleneck, and its losses are better made up for from nearby. Else it is translated, which costs less.
//!
//! Split connections show nothing here, so that of those that would be split some are translated all the same
//! ([`PROBES`]). An access changes sides by one step at a time and by other bounds than back, and nothing is judged by few.

use core::time::Duration;

use crate::carrier::Carrier;

/// Connections that an access has to have shown before anything is split.
const FEW: u8 = 4;
/// Of so many connections that would be split one is translated.
pub(crate) const PROBES: u8 = 8;
/// What a sample counts: 1 of so many.
const SHARE: u32 = 4;

/// Parts of 10,000.
const ALL: u32 = 10_000;
/// So many connections use a second access before any is split, and as long as some are.
const SEVERAL: [u32; 2] = [5_000, 2_500];
/// What is sent again of what went down, before any is split; as long as some are.
const LOSS: [u32; 2] = [100, 30];
/// The same of what waits in queues, in microseconds.
const QUEUE: [u32; 2] = [100_000, 40_000];
/// No connection counts for more than so many times the bound: what has happened to one alone, such as a burst that a queue of the
/// host dropped, splits nothing.
const MOST: u32 = SHARE - 1;

/// What a translated connection has shown of the access that it came over first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Sample {
    /// It has used another access, too.
    pub(crate) several: bool,
    /// Bytes that went down over the access.
    pub(crate) bytes: u64,
    /// Of those, the ones that had gone before.
    pub(crate) again: u64,
    /// By how much the smoothed round-trip time was longer than the least.
    pub(crate) queue: Option<Duration>,
}

/// A connection that carried less shows nothing.
const LEAST_BYTES: u64 = 100_000;

/// What an access has been like of late.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct History {
    /// Samples, up to [`FEW`].
    samples: u8,
    /// Connections with a second access, in parts of 10,000.
    several: u32,
    /// What was sent again, in parts of 10,000.
    loss: u32,
    /// What waited in queues, in microseconds.
    queue: u32,
    /// Connections over it are split.
    splits: bool,
    /// Connections that were to be split, round and round.
    turn: u8,
}

impl History {
    /// A connection has shown something.
    pub(crate) fn note(&mut self, sample: Sample) {
        if sample.bytes < LEAST_BYTES {
            return;
        }
        let again = sample.again.saturating_mul(ALL.into()) / sample.bytes;
        let loss = u32::try_from(again).unwrap_or(ALL).min(MOST * LOSS[0]);
        let several = if sample.several { ALL } else { 0 };
        // The first ones count alike.
        let weight = u32::from(self.samples + 1).min(SHARE);
        let mean = |known: u32, new: u32| {
            let sum = u64::from(known) * u64::from(weight - 1) + u64::from(new);
            u32::try_from(sum / u64::from(weight)).unwrap_or(u32::MAX)
        };
        self.several = mean(self.several, several);
        self.loss = mean(self.loss, loss);
        if let Some(queue) = sample.queue {
            let micros = u32::try_from(queue.as_micros()).unwrap_or(u32::MAX);
            self.queue = mean(self.queue, micros.min(MOST * QUEUE[0]));
        }
        self.samples = self.samples.saturating_add(1).min(FEW);
        self.splits = self.judge();
    }

    /// Whether connections over it are to be split.
    const fn judge(&self) -> bool {
        let bound = self.splits as usize;
        let bad = self.loss >= LOSS[bound] || self.queue >= QUEUE[bound];
        self.samples >= FEW && self.several >= SEVERAL[bound] && bad
    }

    /// What is to carry the next connection.
    pub(crate) const fn choose(&mut self) -> Carrier {
        if !self.splits {
            return Carrier::Splitless;
        }
        self.turn = (self.turn + 1) % PROBES;
        match self.turn {
            0 => Carrier::Splitless,
            _ => Carrier::Split,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A connection of 1 MB: what was sent again of it in parts of 10,000, what waited in milliseconds.
    const fn sample(several: bool, again: u64, queue: u64) -> Sample {
        Sample {
            several,
            bytes: 1_000_000,
            again: again * 100,
            queue: Some(Duration::from_millis(queue)),
        }
    }

    fn after(samples: impl IntoIterator<Item = Sample>) -> History {
        let mut history = History::default();
        samples.into_iter().for_each(|sample| history.note(sample));
        history
    }

    #[test]
    fn access_is_split_by_what_it_has_been_like() {
        // Whether clients use a second access; sent again; waiting; whether the next are split.
        let cases = [
            ("one access", sample(false, 0, 5), false),
            ("one access that loses 2 %", sample(false, 200, 5), false),
            ("one access that queues", sample(false, 0, 150), false),
            ("two that are clean", sample(true, 0, 5), false),
            ("two, a few losses", sample(true, 50, 30), false),
            ("two, 2 % loss", sample(true, 200, 5), true),
            ("two, a queue over 100 ms", sample(true, 0, 120), true),
        ];
        for (name, sample, split) in cases {
            let history = after([sample; 8]);
            assert_eq!(history.splits, split, "{name}: {history:?}");
        }
    }

    #[test]
    fn few_connections_and_small_ones_say_nothing() {
        let bad = sample(true, 500, 200);
        assert!(!after([bad; 3]).splits);
        assert!(after([bad; 4]).splits);
        let small = Sample {
            bytes: 99_999,
            ..bad
        };
        assert_eq!(after([small; 20]), History::default());
    }

    #[test]
    fn what_comes_to_and_fro_does_not_flap() {
        // Between the bounds of both directions it stays as it was.
        let between = [sample(true, 40, 90), sample(true, 90, 50)];
        let flaps = |mut history: History| {
            let before = history.splits;
            let turns = between.iter().cycle().take(200).filter(|sample| {
                history.note(**sample);
                history.splits != before
            });
            turns.count()
        };
        assert_eq!(flaps(after([sample(true, 0, 5); 8])), 0);
        assert_eq!(flaps(after([sample(true, 500, 5); 8])), 0);
        // One bad connection among good ones changes nothing, nor a good one among bad ones.
        let mut history = after([sample(true, 0, 5); 8]);
        history.note(sample(true, 300, 5));
        assert!(!history.splits);
        let mut history = after([sample(true, 300, 5); 8]);
        history.note(sample(true, 0, 5));
        assert!(history.splits);
    }

    #[test]
    fn one_connection_splits_nothing_however_bad_and_whenever_it_comes() {
        let good = sample(true, 0, 5);
        for bad in [sample(true, 9_000, 5), sample(true, 0, 60_000)] {
            for place in 0..12 {
                let mut samples = [good; 12];
                samples[place] = bad;
                let mut history = History::default();
                for sample in samples {
                    history.note(sample);
                    assert!(!history.splits, "{bad:?} at {place}: {history:?}");
                }
            }
            assert!(after([good, good, good, good, bad, bad]).splits);
        }
    }

    #[test]
    fn access_that_has_become_good_is_translated_again() {
        let mut history = after([sample(true, 300, 150); 8]);
        let samples = (1..).find(|_| {
            history.note(sample(true, 0, 5));
            !history.splits
        });
        assert!((3..=12).contains(&samples.unwrap()), "{samples:?}");
    }

    #[test]
    fn some_that_would_be_split_are_translated_to_see_how_it_is() {
        let mut history = after([sample(true, 300, 5); 8]);
        let split = (0..80)
            .filter(|_| history.choose() == Carrier::Split)
            .count();
        assert_eq!(split, 70);
        let mut history = after([sample(true, 0, 5); 8]);
        let split = (0..80)
            .filter(|_| history.choose() == Carrier::Split)
            .count();
        assert_eq!(split, 0);
    }
}

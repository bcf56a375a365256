//! What is known of one path: its round trip, and its bandwidth from trains and from real transfers.
//!
//! A train gives an upper bound of what a transfer gets, a transfer a lower one, as its ends may have had no more to send. A
//! transfer that the path itself has held up (by a queue or by losses) is the best that there is, and goes before trains. As
//! with BBR (draft-ietf-ccwg-bbr, section 5.5), the largest rate of a window counts.

use alloc::collections::VecDeque;
use core::fmt;
use core::time::Duration;

use crate::rate::Rate;
use crate::time::Time;
use crate::train::Shape;

/// What a real transfer over a path has carried while it was busy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transfer {
    /// Bytes of IP packets.
    pub bytes: u64,
    /// The time that they took, without pauses.
    pub busy: Duration,
    /// The path held it up: its round trip had grown by a queue, or packets were lost. Else its ends may have been slower
    /// than the path.
    pub by_path: bool,
}

/// What a bandwidth was judged by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Basis {
    /// Real transfers that the path held up.
    Transfers,
    /// Real transfers that may have been slower than the path: a lower bound.
    AtLeast,
    /// Trains whose tail was judged behind a knee.
    Trains,
    /// Trains without a knee: an upper bound, if a deep token bucket stands in the way.
    AtMost,
}

/// A bandwidth, and how it was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Estimate {
    /// The bandwidth.
    pub rate: Rate,
    /// What it was judged by.
    pub basis: Basis,
    /// When it was measured.
    pub at: Time,
}

/// Fewest bytes of a transfer that says something.
const LEAST_BYTES: u64 = 128 * 1024;
/// Shortest transfer that says something: a few round trips.
const LEAST_BUSY: Duration = Duration::from_millis(200);
/// A round whose trains differ by more than so many thousandths from what was held is in doubt, and comes again soon.
const DOUBT: u32 = 200;

/// A round trip, smoothed over rounds.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Delay(Option<(Duration, Time)>);

impl Delay {
    /// The least round trip of a round or of a connection's opening.
    pub(crate) fn heard(&mut self, sample: Duration, now: Time) {
        let held = self.0.map_or(sample, |(held, _)| held);
        // Half of the way to each new one, but at once to one that is far away.
        let is_far = sample > held * 2 || held > sample * 2;
        let value = if is_far { sample } else { (held + sample) / 2 };
        self.0 = Some((value, now));
    }

    pub(crate) fn value(&self) -> Option<Duration> {
        self.0.map(|(value, _)| value)
    }

    pub(crate) fn at(&self) -> Option<Time> {
        self.0.map(|(_, at)| at)
    }
}

/// What became of a round's rate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Learned {
    /// It is as it was.
    Same,
    /// It is far from what was held: another round has to confirm it.
    InDoubt,
    /// It is held from now on: the first one, or one that was confirmed.
    New,
}

/// The bandwidth of one direction of a path.
#[derive(Clone, Default, Debug)]
pub(crate) struct Bandwidth {
    held: Option<Held>,
    doubt: Option<Rate>,
    by_path: Largest,
    at_least: Largest,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    rate: Rate,
    shape: Shape,
    at: Time,
}

impl fmt::Display for Basis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Transfers => "by transfers",
            Self::AtLeast => "at least, by transfers",
            Self::Trains => "by trains",
            Self::AtMost => "at most, by trains",
        })
    }
}

impl Bandwidth {
    /// What a round's trains have shown. What is older than `stale` is not held against it.
    pub(crate) fn trained(
        &mut self,
        rate: Rate,
        shape: Shape,
        now: Time,
        stale: Duration,
    ) -> Learned {
        let fresh = |rate| Held {
            rate,
            shape,
            at: now,
        };
        let held = self.held.filter(|held| now.since(held.at) <= stale);
        let (held, learned) = match held {
            None => (fresh(rate), Learned::New),
            Some(held) if !held.rate.differs(rate, DOUBT) => {
                self.doubt = None;
                (fresh(held.rate.midway(rate)), Learned::Same)
            }
            Some(held) => match self.doubt.take() {
                Some(doubt) if !doubt.differs(rate, DOUBT) => {
                    (fresh(doubt.midway(rate)), Learned::New)
                }
                _ => {
                    self.doubt = Some(rate);
                    (held, Learned::InDoubt)
                }
            },
        };
        self.held = Some(held);
        learned
    }

    /// What a real transfer has shown: its rate, unless it was too short to show any.
    pub(crate) fn transferred(&mut self, transfer: &Transfer, now: Time) -> Option<Rate> {
        if transfer.bytes < LEAST_BYTES || transfer.busy < LEAST_BUSY {
            return None;
        }
        let rate = Rate::of(transfer.bytes, transfer.busy)?;
        let filter = if transfer.by_path {
            &mut self.by_path
        } else {
            &mut self.at_least
        };
        filter.add(rate, now);
        Some(rate)
    }

    /// The rate of flat trains, if that is what is held.
    pub(crate) fn flat(&self) -> Option<Rate> {
        let held = self.held.filter(|held| held.shape == Shape::Flat)?;
        Some(held.rate)
    }

    /// The rate of the trains, whatever their shape.
    pub(crate) fn of_trains(&self) -> Option<Rate> {
        self.held.map(|held| held.rate)
    }

    /// Whether a transfer has shown within this time what the path lets through.
    pub(crate) fn is_shown(&self, within: Duration, now: Time) -> bool {
        self.by_path
            .newest()
            .is_some_and(|at| now.since(at) <= within)
    }

    /// The bandwidth. Transfers count for `window`, and longer while there are no trains that are newer. `ceiling` bounds what
    /// flat trains say.
    pub(crate) fn estimate(
        &self,
        window: Duration,
        ceiling: Option<Rate>,
        now: Time,
    ) -> Option<Estimate> {
        let least = self.at_least.largest(window, now);
        let trained = self.held.map(|held| held.at);
        let is_last = self.by_path.newest() > trained;
        let shown = self
            .by_path
            .largest(window, now)
            .or_else(|| self.by_path.last().filter(|_| is_last));
        let measured = shown.map(|(rate, at)| Estimate {
            rate,
            basis: Basis::Transfers,
            at,
        });
        let measured = measured.or_else(|| self.by_trains(ceiling));
        let Some((rate, at)) = least else {
            return measured;
        };
        // A transfer that was faster than what was measured has shown that there is more.
        let basis = Basis::AtLeast;
        Some(
            measured
                .filter(|measured| measured.rate >= rate)
                .unwrap_or(Estimate { rate, basis, at }),
        )
    }

    fn by_trains(&self, ceiling: Option<Rate>) -> Option<Estimate> {
        let held = self.held?;
        Some(match (held.shape, ceiling) {
            (Shape::Flat, Some(ceiling)) if ceiling < held.rate => Estimate {
                rate: ceiling,
                basis: Basis::Transfers,
                at: held.at,
            },
            (shape, _) => Estimate {
                rate: held.rate,
                basis: match shape {
                    Shape::Flat => Basis::AtMost,
                    Shape::Knee => Basis::Trains,
                },
                at: held.at,
            },
        })
    }
}

/// The largest of the rates of a window: those that a later and larger one has made useless are forgotten.
#[derive(Clone, Default, Debug)]
struct Largest(VecDeque<(Rate, Time)>);

/// Most rates of a window.
const KEPT: usize = 16;

impl Largest {
    fn add(&mut self, rate: Rate, now: Time) {
        while self.0.back().is_some_and(|&(last, _)| last <= rate) {
            self.0.pop_back();
        }
        if self.0.len() >= KEPT {
            self.0.pop_back();
        }
        self.0.push_back((rate, now));
    }

    fn largest(&self, window: Duration, now: Time) -> Option<(Rate, Time)> {
        let is_in = |&&(_, at): &&(Rate, Time)| now.since(at) <= window;
        self.0.iter().find(is_in).copied()
    }

    fn last(&self) -> Option<(Rate, Time)> {
        self.0.back().copied()
    }

    fn newest(&self) -> Option<Time> {
        self.last().map(|(_, at)| at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_secs(60);
    const STALE: Duration = Duration::from_secs(180);

    fn at(secs: u64) -> Time {
        Time::from_secs(secs)
    }

    fn mbit(rate: u64) -> Rate {
        Rate::from_kbit(rate * 1000)
    }

    fn transfer(rate: u64, by_path: bool) -> Transfer {
        Transfer {
            bytes: mbit(rate).bytes_in(Duration::from_secs(1)),
            busy: Duration::from_secs(1),
            by_path,
        }
    }

    fn rate_of(of: &Bandwidth, secs: u64) -> Option<(Rate, Basis)> {
        let estimate = of.estimate(WINDOW, None, at(secs))?;
        Some((estimate.rate, estimate.basis))
    }

    #[test]
    fn one_round_that_differs_is_confirmed_before_it_counts() {
        let mut down = Bandwidth::default();
        assert_eq!(
            down.trained(mbit(20), Shape::Knee, at(0), STALE),
            Learned::New
        );
        assert_eq!(
            down.trained(mbit(5), Shape::Knee, at(60), STALE),
            Learned::InDoubt
        );
        assert_eq!(rate_of(&down, 60), Some((mbit(20), Basis::Trains)));
        assert_eq!(
            down.trained(mbit(20), Shape::Knee, at(75), STALE),
            Learned::Same
        );
        assert_eq!(
            down.trained(mbit(5), Shape::Knee, at(120), STALE),
            Learned::InDoubt
        );
        assert_eq!(
            down.trained(mbit(5), Shape::Knee, at(135), STALE),
            Learned::New
        );
        assert_eq!(rate_of(&down, 135), Some((mbit(5), Basis::Trains)));
    }

    #[test]
    fn what_is_stale_is_not_held_against_a_new_round() {
        let mut down = Bandwidth::default();
        down.trained(mbit(20), Shape::Flat, at(0), STALE);
        assert_eq!(
            down.trained(mbit(5), Shape::Flat, at(181), STALE),
            Learned::New
        );
        assert_eq!(rate_of(&down, 181), Some((mbit(5), Basis::AtMost)));
    }

    #[test]
    fn transfers_that_the_path_held_up_go_before_trains() {
        let mut down = Bandwidth::default();
        down.trained(mbit(100), Shape::Flat, at(0), STALE);
        down.transferred(&transfer(20, true), at(10));
        down.transferred(&transfer(18, true), at(12));
        assert_eq!(rate_of(&down, 70), Some((mbit(20), Basis::Transfers)));
        assert_eq!(rate_of(&down, 71), Some((mbit(18), Basis::Transfers)));
        // They stay until there is something newer.
        assert_eq!(rate_of(&down, 500), Some((mbit(18), Basis::Transfers)));
        down.trained(mbit(30), Shape::Knee, at(501), STALE);
        assert_eq!(rate_of(&down, 501), Some((mbit(30), Basis::Trains)));
    }

    #[test]
    fn other_transfers_are_a_lower_bound() {
        let mut down = Bandwidth::default();
        down.transferred(&transfer(3, false), at(0));
        assert_eq!(rate_of(&down, 0), Some((mbit(3), Basis::AtLeast)));
        down.trained(mbit(10), Shape::Knee, at(1), STALE);
        assert_eq!(rate_of(&down, 1), Some((mbit(10), Basis::Trains)));
        down.transferred(&transfer(12, false), at(2));
        assert_eq!(rate_of(&down, 2), Some((mbit(12), Basis::AtLeast)));
        assert_eq!(rate_of(&down, 63), Some((mbit(10), Basis::Trains)));
    }

    #[test]
    fn short_transfers_say_nothing() {
        let mut down = Bandwidth::default();
        let mut short = transfer(50, true);
        short.busy = Duration::from_millis(199);
        assert_eq!(down.transferred(&short, at(0)), None);
        let few = Transfer {
            bytes: LEAST_BYTES - 1,
            ..transfer(50, true)
        };
        assert_eq!(down.transferred(&few, at(0)), None);
        assert_eq!(rate_of(&down, 0), None);
    }

    #[test]
    fn a_ceiling_bounds_flat_trains_alone() {
        let mut down = Bandwidth::default();
        down.trained(mbit(100), Shape::Flat, at(0), STALE);
        let seen = down.estimate(WINDOW, Some(mbit(20)), at(0)).unwrap();
        assert_eq!(seen.rate, mbit(20));
        let mut down = Bandwidth::default();
        down.trained(mbit(100), Shape::Knee, at(0), STALE);
        let seen = down.estimate(WINDOW, Some(mbit(20)), at(0)).unwrap();
        assert_eq!(seen.rate, mbit(100));
    }

    #[test]
    fn no_more_rates_are_kept_than_there_is_room_for() {
        let mut largest = Largest::default();
        for step in 0..100 {
            largest.add(Rate(1000 - step), at(step));
        }
        assert_eq!(largest.0.len(), KEPT);
        assert_eq!(largest.newest(), Some(at(99)));
    }
}

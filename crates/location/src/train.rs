//! Trains of packets: what their dispersion says of a path, and how long they have to be.
//!
//! Packets sent back to back leave the narrowest link of their way spaced by its rate, so bytes over time at the receiver is
//! what the path lets through (packet dispersion: Dovrolis, Ramanathan and Moore, INFOCOM 2001). With traffic of others that
//! is between the available bandwidth and the capacity: an upper bound of what a transfer will get.
//!
//! A token bucket lets its depth pass at the speed of the line behind it. A train that is shorter than the bucket's depth
//! measures that line. So only the tail of a train is judged, behind the last place where it became much slower, the *knee*; a
//! train without a knee is *flat*, and the next one is longer, up to a bound. A train that is flat at the bound may have
//! met a plain link or a bucket that is deeper still: its rate remains an upper bound and is marked so.

use alloc::vec::Vec;
use core::time::Duration;

use crate::rate::Rate;
use crate::time::Time;

/// One packet of a train, as it has arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arrival {
    /// When it came, by the receiver's clock.
    pub at: Time,
    /// Bytes of the IP packet.
    pub bytes: u32,
}

/// How a train went through.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shape {
    /// At one rate: of a plain link, or of the line behind a bucket which is deeper than the train is long.
    Flat,
    /// Fast at first and much slower then: the tail shows the rate that is sustained.
    Knee,
}

/// What the arrivals of a train say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dispersion {
    /// The rate of the part that is judged.
    pub rate: Rate,
    /// Whether there was a faster part before it.
    pub shape: Shape,
    /// Quarters of the train that are judged, 1 to 3. With one alone the knee may lie inside it.
    pub quarters: u8,
}

/// Why a train says nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Useless {
    /// Fewer than 16 packets have arrived: so many.
    TooFew(usize),
    /// They came at the same time, as far as the clock says.
    NoTime,
}

/// Fewest packets of a train that are judged: four for each quarter.
pub(crate) const LEAST: u16 = 16;
/// Most packets of a train.
pub(crate) const MOST: u16 = 128;
/// A part of a train that is slower than so many thousandths of the part before it begins behind a knee. Buckets let their depth
/// pass at a multiple of their rate; noise alone rarely looks so.
const KNEE: u32 = 600;

/// What a train says whose packets arrived so, in this order.
///
/// # Errors
/// [`Useless`] when it says nothing.
pub fn dispersion(arrivals: &[Arrival]) -> Result<Dispersion, Useless> {
    if arrivals.len() < usize::from(LEAST) {
        return Err(Useless::TooFew(arrivals.len()));
    }
    let curve = Curve::new(arrivals);
    let bound = |quarter: usize| quarter * curve.last() / 4;
    let mut first = 3;
    while first > 0 {
        let tail = curve.rate(bound(first), curve.last());
        let before = curve.rate(bound(first - 1), bound(first));
        // A bucket makes no train faster: a part that was slower by chance is judged with the rest.
        if tail < before.thousandths(KNEE) {
            break;
        }
        first -= 1;
    }
    // The even part's first quarter may hold the knee itself, if that is near to its begin.
    let judged = (first + 1).min(3);
    let rate = curve.median(bound(judged)).ok_or(Useless::NoTime)?;
    Ok(Dispersion {
        rate,
        shape: if first == 0 { Shape::Flat } else { Shape::Knee },
        quarters: [4, 3, 2, 1][judged],
    })
}

/// Bytes that had arrived at each point in time.
struct Curve(Vec<(Time, u64)>);

impl Curve {
    /// Time stamps that step back are taken for the latest one before them.
    fn new(arrivals: &[Arrival]) -> Self {
        let mut points = Vec::with_capacity(arrivals.len());
        let (mut latest, mut sum) = (Time::ZERO, 0);
        for arrival in arrivals {
            latest = latest.max(arrival.at);
            sum += u64::from(arrival.bytes);
            points.push((latest, sum));
        }
        Self(points)
    }

    const fn last(&self) -> usize {
        self.0.len() - 1
    }

    /// The rate between two points; without end when no time has passed.
    fn rate(&self, from: usize, to: usize) -> Rate {
        let (begin, before) = self.0[from];
        let (end, after) = self.0[to];
        Rate::of(after - before, end.since(begin)).unwrap_or(Rate(u64::MAX))
    }

    /// The median of the rates over each half of the points from `from` on. Single packets that were held up, and packets that
    /// the receiver's card hands over in clumps, move it little.
    fn median(&self, from: usize) -> Option<Rate> {
        let half = (self.last() - from) / 2;
        let mut rates: Vec<Rate> = (from..=self.last() - half)
            .map(|begin| self.rate(begin, begin + half))
            .collect();
        rates.sort_unstable();
        let middle = rates[rates.len() / 2];
        (middle < Rate(u64::MAX)).then_some(middle)
    }
}

/// How many packets the next train of a path has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Length {
    packets: u16,
    /// A train of the greatest length was flat: short ones say the same until further notice.
    is_flat: bool,
    /// Trains since then.
    since: u8,
}

/// How often the greatest length is tried again on a path where it was flat: each so many trains.
const AGAIN: u8 = 24;
/// How long a train may take at the rate that its path is known to have.
const LONGEST: Duration = Duration::from_millis(250);

impl Length {
    pub(crate) const fn new() -> Self {
        Self {
            packets: 24,
            is_flat: false,
            since: 0,
        }
    }

    /// Packets of the next train, if it may have `most`.
    pub(crate) fn next(&self, most: u16) -> u16 {
        let wanted = if self.is_flat && self.since >= AGAIN {
            most
        } else {
            self.packets
        };
        wanted.clamp(LEAST, most.max(LEAST))
    }

    /// Takes note of what a train of `sent` packets has shown when it might have had `most`.
    pub(crate) fn learn(&mut self, sent: u16, most: u16, seen: &Dispersion) {
        match seen.shape {
            Shape::Knee if seen.quarters > 1 => {
                self.packets = sent;
                self.is_flat = false;
            }
            Shape::Flat if sent >= most => {
                *self = Self::new();
                self.is_flat = true;
            }
            Shape::Flat if self.is_flat => self.since = self.since.saturating_add(1),
            Shape::Flat | Shape::Knee => {
                self.packets = sent.saturating_mul(2).min(MOST);
                self.is_flat = false;
            }
        }
    }

    /// The path has changed: what is known of its buckets may be wrong.
    pub(crate) const fn forget(&mut self) {
        *self = Self::new();
    }
}

/// Most packets of a train of this size of IP packets on a path that is known to have this rate.
pub(crate) fn most_packets(rate: Option<Rate>, size: usize, bound: u16) -> u16 {
    let Some(rate) = rate else { return bound };
    let packets = rate.bytes_in(LONGEST) / (size.max(1) as u64);
    u16::try_from(packets)
        .unwrap_or(u16::MAX)
        .clamp(LEAST, bound.max(LEAST))
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    const SIZE: u32 = 1250;

    /// Packets with these gaps in microseconds before each but the first.
    fn spaced(gaps: impl IntoIterator<Item = u64>) -> Vec<Arrival> {
        let mut at = Time::from_millis(5);
        let mut arrivals = vec![Arrival { at, bytes: SIZE }];
        for gap in gaps {
            at = Time(at.0 + gap);
            arrivals.push(Arrival { at, bytes: SIZE });
        }
        arrivals
    }

    #[test]
    fn a_plain_link_is_flat_at_its_rate() {
        // 10,000 bits each 500 us.
        let seen = dispersion(&spaced([500; 31])).unwrap();
        assert_eq!(seen.rate, Rate::from_kbit(20_000));
        assert_eq!((seen.shape, seen.quarters), (Shape::Flat, 3));
    }

    #[test]
    fn the_depth_of_a_bucket_is_not_judged() {
        let gaps = [10; 20].into_iter().chain([1000; 43]);
        let seen = dispersion(&spaced(gaps)).unwrap();
        assert_eq!(seen.rate, Rate::from_kbit(10_000));
        assert_eq!(seen.shape, Shape::Knee);
        assert_eq!(seen.quarters, 2);
    }

    #[test]
    fn no_bucket_that_a_train_outlasts_by_half_moves_the_rate() {
        for depth in 0..=32 {
            let gaps = (1..64).map(|packet| if packet <= depth { 10 } else { 1000 });
            let seen = dispersion(&spaced(gaps)).unwrap();
            assert_eq!(seen.rate, Rate::from_kbit(10_000), "{depth} packets");
        }
    }

    #[test]
    fn a_knee_in_the_last_quarter_asks_for_a_longer_train() {
        let gaps = [10; 50].into_iter().chain([1000; 13]);
        let seen = dispersion(&spaced(gaps)).unwrap();
        assert_eq!((seen.shape, seen.quarters), (Shape::Knee, 1));
        let mut length = Length::new();
        length.learn(64, MOST, &seen);
        assert_eq!(length.next(MOST), 128);
    }

    #[test]
    fn one_packet_that_was_held_up_changes_little() {
        let mut gaps = [500; 39];
        gaps[20] = 3500;
        gaps[21..27].fill(0);
        let seen = dispersion(&spaced(gaps)).unwrap();
        assert!(
            !seen.rate.differs(Rate::from_kbit(20_000), 50),
            "{}",
            seen.rate
        );
    }

    #[test]
    fn clumps_of_four_packets_do_not_hide_the_rate() {
        let gaps = (1..64).map(|packet| if packet % 4 == 0 { 2000 } else { 0 });
        let seen = dispersion(&spaced(gaps)).unwrap();
        assert!(
            !seen.rate.differs(Rate::from_kbit(20_000), 70),
            "{}",
            seen.rate
        );
        assert_eq!(seen.shape, Shape::Flat);
    }

    #[test]
    fn few_packets_or_no_time_say_nothing() {
        assert_eq!(dispersion(&spaced([500; 14])), Err(Useless::TooFew(15)));
        assert_eq!(dispersion(&spaced([0; 31])), Err(Useless::NoTime));
    }

    #[test]
    fn stamps_that_step_back_do_not_panic() {
        let mut arrivals = spaced([500; 31]);
        arrivals[7].at = Time::ZERO;
        arrivals[31].at = Time(3);
        let seen = dispersion(&arrivals).unwrap();
        assert!(!seen.rate.differs(Rate::from_kbit(20_000), 100));
    }

    #[test]
    fn flat_trains_grow_to_the_bound_and_then_rest() {
        let flat = Dispersion {
            rate: Rate::from_kbit(1000),
            shape: Shape::Flat,
            quarters: 3,
        };
        let mut length = Length::new();
        let mut lengths = Vec::new();
        for _ in 0..30 {
            let sent = length.next(MOST);
            lengths.push(sent);
            length.learn(sent, MOST, &flat);
        }
        assert_eq!(lengths[..5], [24, 48, 96, 128, 24]);
        assert_eq!(lengths[5..28], [24; 23]);
        assert_eq!(lengths[28..], [128, 24]);
    }

    #[test]
    fn slow_paths_have_short_trains() {
        assert_eq!(most_packets(Some(Rate::from_kbit(1380)), 1250, MOST), 34);
        assert_eq!(most_packets(Some(Rate::from_kbit(100)), 1250, MOST), LEAST);
        assert_eq!(most_packets(None, 1250, MOST), MOST);
    }
}

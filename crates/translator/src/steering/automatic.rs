//! Automatic load balancing: connections go where one fares better (3GPP: autonomous load balancing).

use core::time::Duration;

use super::{Load, Move, SteeredPath, SteeringMode, Thresholds, View};
use crate::cause::SubflowSwitch;

/// A connection moves when one there is faster by a quarter than one here.
const BETTER: [u64; 2] = [4, 5];

/// Connections go where one of them gets more bytes per second than where they are, those counted that have just come there.
/// On accesses that are used up the connections are as fast then on one as on the other, so that each access carries what it
/// can; where none is, nothing moves.
///
/// An access that carries nothing is tried by one connection at a time. A path beyond the thresholds is left while there is
/// one that is [better](Thresholds::relieves).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Automatic {
    /// How bad a path may be.
    pub thresholds: Thresholds,
}

/// Bytes per second that one connection more would get.
fn share_of_another(load: &Load) -> u64 {
    load.rate.saturating_mul(16) / load.flows().saturating_add(16)
}

/// Nobody is there whose rate would tell what it carries.
fn is_unknown(load: &Load) -> bool {
    load.rate == 0 && load.arrivals < 8
}

impl SteeringMode for Automatic {
    fn choose(&self, view: &View<'_>) -> Option<Move> {
        let active = &view.active;
        let to = |path: &SteeredPath, cause| Move {
            to: path.subflow,
            cause,
            back: false,
        };
        let others = view
            .others
            .iter()
            .filter(|path| path.access != active.access);
        let share = |path: &&SteeredPath| share_of_another(&path.load);
        let better = others
            .clone()
            .filter(|path| self.thresholds.relieves(active, path));
        if let Some(best) = better.max_by_key(share) {
            return Some(to(best, SubflowSwitch::Congested));
        }
        let others = others.filter(|path| self.thresholds.bears(active, path));
        let best = others.clone().max_by_key(share)?;
        // One that is alone shares nothing with anybody.
        if active.load.flows() >= 32
            && let Some(unknown) = others.clone().find(|path| is_unknown(&path.load))
        {
            return Some(to(unknown, SubflowSwitch::Balance));
        }
        let [less, more] = BETTER;
        let here = active.load.flow_rate;
        let better = share_of_another(&best.load).saturating_mul(less) > here.saturating_mul(more);
        (here > 0 && better).then(|| to(best, SubflowSwitch::Balance))
    }

    fn admits(&self, path: &SteeredPath) -> bool {
        self.thresholds.admit(path)
    }

    fn patience(&self, view: &View<'_>) -> Option<Duration> {
        let elsewhere = |path: &SteeredPath| path.access != view.active.access;
        self.thresholds.patience(view, elsewhere)
    }

    fn shares(&self) -> bool {
        true
    }

    fn measures(&self) -> bool {
        self.thresholds.rtt.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::AccessId;
    use crate::steering::Flow;

    /// A path whose access carries so many connections of one rate.
    fn path(number: u8, flows: u64, flow_rate: u64) -> SteeredPath {
        SteeredPath {
            subflow: number,
            access: Some(AccessId(number)),
            rtt: None,
            load: Load {
                rate: flows * flow_rate,
                flow_rate,
                ..Load::default()
            },
        }
    }

    fn to(active: SteeredPath, other: SteeredPath) -> Option<u8> {
        let view = View {
            flow: Flow::default(),
            active,
            others: &[other],
        };
        let moved = Automatic::default().choose(&view);
        moved.map(|moved| {
            assert_eq!(moved.cause, SubflowSwitch::Balance);
            moved.to
        })
    }

    #[test]
    fn connection_goes_where_one_more_would_be_faster_by_a_quarter() {
        assert_eq!(to(path(0, 9, 100), path(1, 3, 168)), Some(1), "504 of 4");
        assert_eq!(to(path(0, 9, 100), path(1, 3, 166)), None, "498 of 4");
        assert_eq!(to(path(0, 9, 100), path(1, 9, 100)), None);
    }

    #[test]
    fn those_that_have_just_come_count() {
        let mut other = path(1, 3, 400);
        assert_eq!(to(path(0, 9, 100), other), Some(1), "300 each");
        other.load.arrivals = 6 * 16;
        assert_eq!(to(path(0, 9, 100), other), None, "120 each");
    }

    #[test]
    fn access_of_nobody_is_tried_by_one_of_several() {
        let nobody = path(1, 0, 0);
        assert_eq!(to(path(0, 2, 100), nobody), Some(1));
        assert_eq!(to(path(0, 1, 100), nobody), None, "alone");
        let mut tried = nobody;
        tried.load.arrivals = 16;
        assert_eq!(to(path(0, 9, 100), tried), None);
    }

    #[test]
    fn unknown_rates_move_nothing() {
        assert_eq!(to(path(0, 0, 0), path(1, 3, 400)), None);
    }

    #[test]
    fn path_beyond_the_thresholds_is_left() {
        let mode = Automatic {
            thresholds: Thresholds {
                rtt: Some(Duration::from_millis(80)),
                loss: None,
            },
        };
        let at = |path: SteeredPath, ms| SteeredPath {
            rtt: Some(Duration::from_millis(ms)),
            ..path
        };
        let view = |active, others| View {
            flow: Flow::default(),
            active,
            others,
        };
        let [one, two] = [path(0, 1, 100), path(1, 9, 1)];
        let within = [at(two, 64)];
        let left = mode.choose(&view(at(one, 81), &within)).unwrap();
        assert_eq!((left.to, left.cause), (1, SubflowSwitch::Congested));
        assert_eq!(mode.choose(&view(at(one, 80), &within)), None);
        let fast = [at(path(1, 1, 9000), 65)];
        assert_eq!(mode.choose(&view(at(one, 10), &fast)), None);
        assert_eq!(mode.patience(&view(one, &within)), mode.thresholds.rtt);
        let longer = Duration::from_millis(65) * 5 / 4;
        assert_eq!(mode.patience(&view(one, &fast)), Some(longer));
        assert!(mode.choose(&view(at(one, 87), &fast)).is_some());
        assert!(mode.measures() && !Automatic::default().measures() && mode.shares());
    }
}

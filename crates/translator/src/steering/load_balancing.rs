//! Load balancing: each access carries its part of the bytes.

use core::time::Duration;

use alloc::vec::Vec;

use super::{Move, SteeredPath, SteeringMode, Thresholds, View};
use crate::access::AccessId;
use crate::cause::SubflowSwitch;

/// So far ahead a connection's rate counts, in seconds: what it will have carried before it may move again.
const AHEAD: u64 = 2;

/// Each access carries the part of the rule's bytes that its weight is of the sum; what the connections carry that have one
/// path alone does not count. A connection moves where that brings the bytes of both accesses nearer to their parts: those
/// that were carried of late, and those to be expected of it and of others. Accesses without a weight carry nothing while there is another.
///
/// A path beyond the thresholds is left, whatever its part, while there is one that is [better](Thresholds::relieves).
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct LoadBalancing {
    /// The weight of each access.
    pub weights: Vec<(AccessId, u32)>,
    /// How bad a path may be.
    pub thresholds: Thresholds,
}

impl LoadBalancing {
    fn weight(&self, path: &SteeredPath) -> u64 {
        let mut weights = self.weights.iter();
        let own = weights.find(|(access, _)| Some(*access) == path.access);
        own.map_or(0, |(_, weight)| u64::from(*weight))
    }

    /// By how many bytes the access of each path has carried more than its part, or less.
    fn excess<'a>(
        &'a self,
        paths: impl Iterator<Item = &'a SteeredPath> + Clone + 'a,
    ) -> impl Fn(&SteeredPath) -> i64 + 'a {
        let (mut bytes, mut weights) = (0_u64, 0);
        for path in each_access(paths) {
            bytes = bytes.saturating_add(due(path));
            weights += self.weight(path);
        }
        move |path| {
            let part = u128::from(bytes) * u128::from(self.weight(path));
            let part = part.checked_div(weights.into()).unwrap_or(0);
            let part = i64::try_from(part).unwrap_or(i64::MAX);
            i64::try_from(due(path))
                .unwrap_or(i64::MAX)
                .saturating_sub(part)
        }
    }
}

/// A move to the path.
fn to(path: &SteeredPath, cause: SubflowSwitch) -> Move {
    Move {
        to: path.subflow,
        cause,
        back: false,
    }
}

/// What an access has carried, and is expected to.
fn due(path: &SteeredPath) -> u64 {
    let ahead = path.load.expected().saturating_mul(AHEAD);
    path.load.carried.saturating_add(ahead)
}

/// One path of each access.
fn each_access<'a>(
    paths: impl Iterator<Item = &'a SteeredPath> + Clone,
) -> impl Iterator<Item = &'a SteeredPath> {
    let all = paths.clone();
    paths.enumerate().filter_map(move |(place, path)| {
        let mut before = all.clone().take(place);
        let met = before.any(|other| other.access == path.access);
        (!met).then_some(path)
    })
}

impl SteeringMode for LoadBalancing {
    fn choose(&self, view: &View<'_>) -> Option<Move> {
        let active = &view.active;
        let others = view
            .others
            .iter()
            .filter(|path| path.access != active.access && self.weight(path) > 0);
        let better = others
            .clone()
            .filter(|path| self.thresholds.relieves(active, path));
        if let Some(best) = better
            .clone()
            .min_by_key(|path| self.excess(better.clone())(path))
        {
            return Some(to(best, SubflowSwitch::Congested));
        }
        let others = others.filter(|path| self.thresholds.bears(active, path));
        let excess = self.excess(core::iter::once(active).chain(others.clone()));
        let best = others.min_by_key(|path| excess(path))?;
        if self.weight(active) == 0 {
            return Some(to(best, SubflowSwitch::Balance));
        }
        let moved = view.flow.expected.saturating_mul(AHEAD);
        let least = if view.flow.rate == 0 {
            // Nothing goes down yet: a move costs nothing, and to the nearest is near enough.
            moved
        } else {
            let both = [active, best].map(due).iter().sum::<u64>();
            // Half as much again as it takes to be as far apart the other way, so that few moves do.
            (moved.saturating_mul(3) / 2).max(both / 16)
        };
        let least = i64::try_from(least).unwrap_or(i64::MAX);
        let apart = excess(active).saturating_sub(excess(best));
        (apart > least).then(|| to(best, SubflowSwitch::Balance))
    }

    fn admits(&self, path: &SteeredPath) -> bool {
        self.thresholds.admit(path)
    }

    fn patience(&self, view: &View<'_>) -> Option<Duration> {
        let elsewhere =
            |path: &SteeredPath| path.access != view.active.access && self.weight(path) > 0;
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
    use alloc::vec;

    use super::*;
    use crate::steering::{Flow, Load};

    /// A path of the access with its number, with so many bytes carried and a rate.
    fn path(number: u8, carried: u64, rate: u64) -> SteeredPath {
        SteeredPath {
            subflow: number,
            access: Some(AccessId(number)),
            rtt: None,
            load: Load {
                carried,
                rate,
                ..Load::default()
            },
        }
    }

    fn mode(weights: [u32; 2]) -> LoadBalancing {
        let [one, two] = weights;
        LoadBalancing {
            weights: vec![(AccessId(0), one), (AccessId(1), two)],
            thresholds: Thresholds::default(),
        }
    }

    fn moved(mode: &LoadBalancing, rate: u64, paths: [SteeredPath; 2]) -> Option<Move> {
        let flow = Flow {
            rate,
            expected: rate,
            ..Flow::default()
        };
        moved_as(mode, flow, paths)
    }

    fn moved_as(mode: &LoadBalancing, flow: Flow, paths: [SteeredPath; 2]) -> Option<Move> {
        let [active, other] = paths;
        mode.choose(&View {
            flow,
            active,
            others: &[other],
        })
    }

    #[test]
    fn connection_moves_where_that_brings_the_bytes_nearer_to_their_parts() {
        let even = mode([50, 50]);
        let to = |rate, paths| moved(&even, rate, paths).map(|moved| moved.to);
        // A million apart, of which the connection would take thrice its rate.
        let unequal = [path(0, 2_000_000, 0), path(1, 1_000_000, 0)];
        assert_eq!(to(333_000, unequal), Some(1));
        assert_eq!(to(334_000, unequal), None);
        let [one, two] = unequal;
        assert_eq!(to(1, [two, one]), None);
        assert_eq!(
            moved(&even, 1, unequal).unwrap().cause,
            SubflowSwitch::Balance
        );
    }

    #[test]
    fn parts_are_those_of_the_weights() {
        let carried = [path(0, 700_000, 0), path(1, 300_000, 0)];
        assert_eq!(moved(&mode([70, 30]), 1, carried), None);
        assert_eq!(moved(&mode([68, 32]), 1, carried), None);
        assert!(moved(&mode([66, 34]), 1, carried).is_some());
        assert_eq!(moved(&mode([80, 20]), 1, carried), None);
    }

    #[test]
    fn bytes_to_come_count_for_two_seconds() {
        let even = mode([1, 1]);
        let busy = [path(0, 0, 100_000), path(1, 140_000, 0)];
        assert_eq!(moved(&even, 21_000, busy), None);
        assert!(moved(&even, 19_000, busy).is_some());
        // Others have left for there just now.
        let mut left = busy;
        left[0].load.coming = -20_000;
        assert_eq!(moved(&even, 19_000, left), None);
    }

    #[test]
    fn small_differences_move_nothing() {
        let even = mode([1, 1]);
        let nearly = [path(0, 1_000_000, 0), path(1, 890_000, 0)];
        assert_eq!(moved(&even, 1, nearly), None);
        let apart = [path(0, 1_000_000, 0), path(1, 880_000, 0)];
        assert!(moved(&even, 1, apart).is_some());
    }

    #[test]
    fn connection_that_carries_nothing_yet_goes_where_less_is() {
        let even = mode([1, 1]);
        let new = |expected, paths| {
            let flow = Flow {
                expected,
                ..Flow::default()
            };
            moved_as(&even, flow, paths).is_some()
        };
        let carried = [path(0, 2_000_000, 0), path(1, 1_000_000, 0)];
        assert!(new(499_000, carried));
        assert!(!new(500_000, carried));
        let nearly = [path(0, 1_000_000, 0), path(1, 990_000, 0)];
        assert!(new(4_000, nearly), "a move costs nothing");
    }

    #[test]
    fn access_without_a_weight_is_left_and_not_taken() {
        let even = mode([1, 1]);
        let other = path(7, 0, 0);
        assert!(moved(&even, 0, [other, path(1, 9_000_000, 0)]).is_some());
        assert_eq!(moved(&even, 0, [path(1, 9_000_000, 0), other]), None);
        assert_eq!(
            moved(&mode([1, 0]), 0, [path(0, 9_000_000, 0), path(1, 0, 0)]),
            None
        );
    }

    #[test]
    fn paths_of_one_access_are_one_part() {
        let even = mode([1, 1]);
        let twin = SteeredPath {
            subflow: 5,
            ..path(0, 1_000_000, 0)
        };
        let others = [twin, path(1, 1_000_000, 0)];
        let view = View {
            flow: Flow::default(),
            active: path(0, 1_000_000, 0),
            others: &others,
        };
        assert_eq!(even.choose(&view), None);
    }

    #[test]
    fn path_beyond_the_thresholds_is_left_for_one_within() {
        let limited = LoadBalancing {
            thresholds: Thresholds {
                rtt: Some(Duration::from_millis(80)),
                loss: None,
            },
            ..mode([1, 1])
        };
        let at = |path: SteeredPath, ms| SteeredPath {
            rtt: Some(Duration::from_millis(ms)),
            ..path
        };
        let [one, two] = [path(0, 0, 0), path(1, 9_000_000, 0)];
        let there = moved(&limited, 0, [at(one, 81), at(two, 64)]).unwrap();
        assert_eq!((there.to, there.cause), (1, SubflowSwitch::Congested));
        assert_eq!(moved(&limited, 0, [at(one, 80), at(two, 64)]), None);
        assert_eq!(moved(&limited, 0, [at(one, 81), at(two, 65)]), None);
        // Where all are, one that is much worse is left, and others are balanced all the same.
        assert!(moved(&limited, 0, [at(one, 200), at(two, 160)]).is_some());
        assert_eq!(moved(&limited, 0, [at(one, 200), at(two, 161)]), None);
        let even = moved(&limited, 1, [at(two, 151), at(one, 151)]).unwrap();
        assert_eq!((even.to, even.cause), (0, SubflowSwitch::Balance));
        assert_eq!(moved(&limited, 1, [at(two, 150), at(one, 151)]), None);
        // Nor is one beyond them taken to balance bytes.
        assert_eq!(moved(&limited, 1, [at(two, 10), at(one, 65)]), None);
        assert!(moved(&limited, 1, [at(two, 10), at(one, 64)]).is_some());
        let view = |others| View {
            flow: Flow::default(),
            active: one,
            others,
        };
        let known = [at(two, 10)];
        assert_eq!(limited.patience(&view(&known)), limited.thresholds.rtt);
        let slow = [at(two, 65)];
        let longer = Duration::from_millis(65) * 5 / 4;
        assert_eq!(limited.patience(&view(&slow)), Some(longer));
        assert_eq!(limited.patience(&view(&[])), None);
        assert!(limited.measures() && !mode([1, 1]).measures() && limited.shares());
    }
}

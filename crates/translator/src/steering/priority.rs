//! Priority: the access with the highest priority until it is congested, then also the next.

use alloc::vec::Vec;
use core::time::Duration;

use super::{Move, SteeredPath, SteeringMode, Thresholds, View};
use crate::access::AccessId;
use crate::cause::SubflowSwitch;

/// At most one in so many of an access's connections is led away, or back, before it is known what that has changed.
const AT_A_TIME: u64 = 4;

/// All go over the first of these accesses, and while a path there is beyond the thresholds some of them over the next, as many
/// as it takes: a quarter at a time. They come back, a quarter at a time, while the path is well within.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Priority {
    /// The highest priority first. Other accesses, and paths of none, come after them.
    pub accesses: Vec<AccessId>,
    /// Beyond which a path is congested. Without any, one is left only when it fails.
    pub thresholds: Thresholds,
}

impl Priority {
    fn rank(&self, path: &SteeredPath) -> usize {
        let named = self.accesses.iter().position(|id| Some(*id) == path.access);
        named.unwrap_or(self.accesses.len())
    }
}

impl SteeringMode for Priority {
    fn choose(&self, view: &View<'_>) -> Option<Move> {
        let active = &view.active;
        let here = self.rank(active);
        if self.thresholds.exceeded_by(active) {
            let others = view.others.iter();
            let next = others
                .filter(|path| self.rank(path) != here && self.thresholds.relieves(active, path))
                .min_by_key(|path| self.rank(path))?;
            let left = active.load.arrivals.min(0).unsigned_abs() * AT_A_TIME;
            return (left <= active.load.flows()).then_some(Move {
                to: next.subflow,
                cause: SubflowSwitch::Congested,
                back: false,
            });
        }
        let better = view.others.iter();
        let best = better
            .filter(|path| self.rank(path) < here && self.thresholds.admit(path))
            .min_by_key(|path| self.rank(path))?;
        let come = best.load.arrivals.max(0).unsigned_abs() * AT_A_TIME;
        (come <= best.load.flows()).then_some(Move {
            to: best.subflow,
            cause: SubflowSwitch::Preferred,
            back: true,
        })
    }

    fn admits(&self, path: &SteeredPath) -> bool {
        self.thresholds.admit(path)
    }

    fn patience(&self, view: &View<'_>) -> Option<Duration> {
        let here = self.rank(&view.active);
        self.thresholds
            .patience(view, |path| self.rank(path) != here)
    }

    fn shares(&self) -> bool {
        true
    }

    fn measures(&self) -> bool {
        self.thresholds.rtt.is_some()
    }

    fn tells_standby(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::steering::{Flow, Load};

    /// A path of the access with its number, with this RTT, over which so many connections go.
    fn path(number: u8, rtt: u64, flows: u64) -> SteeredPath {
        SteeredPath {
            subflow: number,
            access: Some(AccessId(number)),
            rtt: Some(Duration::from_millis(rtt)),
            load: Load {
                rate: flows * 1024,
                flow_rate: 1024,
                ..Load::default()
            },
        }
    }

    fn mode() -> Priority {
        Priority {
            accesses: vec![AccessId(0), AccessId(1)],
            thresholds: Thresholds {
                rtt: Some(Duration::from_millis(50)),
                loss: None,
            },
        }
    }

    fn moved(active: SteeredPath, others: &[SteeredPath]) -> Option<(u8, SubflowSwitch, bool)> {
        let view = View {
            flow: Flow::default(),
            active,
            others,
        };
        let moved = mode().choose(&view);
        moved.map(|moved| (moved.to, moved.cause, moved.back))
    }

    const CONGESTED: SubflowSwitch = SubflowSwitch::Congested;

    #[test]
    fn congested_path_is_left_for_the_next() {
        let next = path(1, 30, 0);
        assert_eq!(moved(path(0, 51, 9), &[next]), Some((1, CONGESTED, false)));
        assert_eq!(moved(path(0, 50, 9), &[next]), None);
        assert_eq!(moved(path(0, 51, 9), &[path(1, 41, 0)]), None);
        let none = path(7, 1, 0);
        assert_eq!(
            moved(path(0, 51, 9), &[none, next]),
            Some((1, CONGESTED, false))
        );
        // From the lower one, too, and not to another path of the same.
        assert_eq!(
            moved(path(1, 51, 9), &[path(0, 30, 9)]),
            Some((0, CONGESTED, false))
        );
        let twin = SteeredPath {
            subflow: 5,
            ..path(0, 10, 9)
        };
        assert_eq!(moved(path(0, 51, 9), &[twin]), None);
    }

    #[test]
    fn higher_priority_is_taken_again_when_it_is_well_within() {
        let back = Some((0, SubflowSwitch::Preferred, true));
        assert_eq!(moved(path(1, 30, 0), &[path(0, 40, 9)]), back);
        assert_eq!(moved(path(1, 30, 0), &[path(0, 41, 9)]), None);
        assert_eq!(moved(path(0, 30, 0), &[path(1, 1, 9)]), None);
        assert_eq!(
            moved(path(7, 1, 0), &[path(1, 30, 9), path(0, 30, 9)]),
            back
        );
    }

    #[test]
    fn quarter_goes_at_a_time() {
        let with = |path: SteeredPath, arrivals: i64| SteeredPath {
            load: Load {
                arrivals: arrivals * 16,
                ..path.load
            },
            ..path
        };
        // Of twenty, three have left, and five.
        let next = path(1, 30, 0);
        assert!(moved(with(path(0, 51, 20), -3), &[next]).is_some());
        assert_eq!(moved(with(path(0, 51, 20), -5), &[next]), None);
        let here = path(1, 30, 20);
        assert!(moved(here, &[with(path(0, 40, 20), 4)]).is_some());
        assert_eq!(moved(here, &[with(path(0, 40, 20), 7)]), None);
        assert!(moved(here, &[path(0, 40, 0)]).is_some(), "the first");
    }

    #[test]
    fn patience_ends_at_the_threshold_where_there_is_another() {
        let view = |others| View {
            flow: Flow::default(),
            active: path(0, 10, 1),
            others,
        };
        let next = [path(1, 30, 0)];
        assert_eq!(
            mode().patience(&view(&next)),
            Some(Duration::from_millis(50))
        );
        let slow = [path(1, 41, 0)];
        let longer = Duration::from_millis(41) * 5 / 4;
        assert_eq!(mode().patience(&view(&slow)), Some(longer));
        let plain = Priority {
            thresholds: Thresholds::default(),
            ..mode()
        };
        assert_eq!(plain.patience(&view(&next)), None);
        assert!(mode().measures() && !plain.measures());
        assert!(mode().tells_standby() && mode().shares());
    }
}

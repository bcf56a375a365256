//! Redundant: the same data over every path, so that nobody waits for one that fails.

use alloc::vec::Vec;
use core::time::Duration;

use super::{Move, SteeredPath, SteeringMode, Thresholds, View};
use crate::access::AccessId;
use crate::cause::SubflowSwitch;

/// All that goes down the active path goes down the others, too: the client takes what comes first (RFC 8684 section 3.3.1). A
/// path that lags gets nothing more until it has caught up, and connections with copies are carried by no fast path.
///
/// With thresholds there are copies only while the active path is beyond them, and no other within (3GPP TS 23.501 section
/// 5.32.8).
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Redundant {
    /// The access of the active path, while that works and is within the thresholds. Empty: any; of several the first.
    pub primary: Vec<AccessId>,
    /// How bad a path may be before its data is copied. Without any, it always is.
    pub thresholds: Thresholds,
}

impl Redundant {
    fn rank(&self, path: &SteeredPath) -> usize {
        let mut named = self.primary.iter();
        let place = named.position(|access| Some(*access) == path.access);
        place.unwrap_or(self.primary.len())
    }
}

impl SteeringMode for Redundant {
    fn choose(&self, view: &View<'_>) -> Option<Move> {
        let active = &view.active;
        let exceeded = self.thresholds.exceeded_by(active);
        let (cause, back) = if exceeded {
            (SubflowSwitch::Congested, false)
        } else {
            (SubflowSwitch::Preferred, true)
        };
        let here = self.rank(active);
        let better = view.others.iter().filter(|path| {
            let wanted = exceeded || self.rank(path) < here;
            wanted && self.thresholds.admit(path)
        });
        let best = better.min_by_key(|path| self.rank(path))?;
        Some(Move {
            to: best.subflow,
            cause,
            back,
        })
    }

    fn copies(&self, view: &View<'_>) -> bool {
        !self.thresholds.are_set() || self.thresholds.exceeded_by(&view.active)
    }

    fn admits(&self, path: &SteeredPath) -> bool {
        self.thresholds.admit(path)
    }

    fn patience(&self, view: &View<'_>) -> Option<Duration> {
        // There is something to do even where no other path is within: copies.
        self.thresholds.rtt.filter(|_| !view.others.is_empty())
    }

    fn shares(&self) -> bool {
        self.thresholds.loss.is_some()
    }

    fn measures(&self) -> bool {
        self.thresholds.rtt.is_some()
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::steering::Flow;

    fn path(number: u8, ms: u64) -> SteeredPath {
        SteeredPath {
            subflow: number,
            access: Some(AccessId(number)),
            rtt: Some(Duration::from_millis(ms)),
            ..SteeredPath::default()
        }
    }

    fn limited(primary: &[u8]) -> Redundant {
        Redundant {
            primary: primary.iter().copied().map(AccessId).collect(),
            thresholds: Thresholds {
                rtt: Some(Duration::from_millis(50)),
                loss: None,
            },
        }
    }

    /// Where it moves, and whether there are copies.
    fn asked(
        mode: &Redundant,
        active: SteeredPath,
        other: SteeredPath,
    ) -> (Option<(u8, SubflowSwitch)>, bool) {
        let others = [other];
        let view = View {
            flow: Flow::default(),
            active,
            others: &others,
        };
        let moved = mode.choose(&view).map(|moved| (moved.to, moved.cause));
        (moved, mode.copies(&view))
    }

    #[test]
    fn without_thresholds_all_is_copied_and_the_primary_access_comes_first() {
        let any = Redundant::default();
        assert_eq!(asked(&any, path(0, 999), path(1, 1)), (None, true));
        let second = Redundant {
            primary: vec![AccessId(1)],
            ..Redundant::default()
        };
        let back = Some((1, SubflowSwitch::Preferred));
        assert_eq!(asked(&second, path(0, 1), path(1, 999)), (back, true));
        assert_eq!(asked(&second, path(1, 999), path(0, 1)), (None, true));
        assert!(!any.shares() && !any.measures());
    }

    #[test]
    fn with_thresholds_data_is_copied_while_no_path_is_within() {
        let mode = limited(&[1]);
        assert_eq!(asked(&mode, path(1, 50), path(0, 1)), (None, false));
        let away = Some((0, SubflowSwitch::Congested));
        assert_eq!(asked(&mode, path(1, 51), path(0, 40)), (away, true));
        assert_eq!(asked(&mode, path(1, 51), path(0, 41)), (None, true));
        let back = Some((1, SubflowSwitch::Preferred));
        assert_eq!(asked(&mode, path(0, 1), path(1, 40)), (back, false));
        assert_eq!(asked(&mode, path(0, 1), path(1, 41)), (None, false));
        assert!(mode.measures() && !mode.shares());
    }

    #[test]
    fn fast_path_asks_beyond_the_threshold_where_there_is_another_path() {
        let mode = limited(&[]);
        let others = [path(1, 999)];
        let view = |others| View {
            flow: Flow::default(),
            active: path(0, 1),
            others,
        };
        assert_eq!(mode.patience(&view(&others)), mode.thresholds.rtt);
        assert_eq!(mode.patience(&view(&[])), None);
        assert_eq!(Redundant::default().patience(&view(&others)), None);
    }
}

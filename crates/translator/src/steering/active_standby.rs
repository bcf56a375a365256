//! Active-standby: the access that the operator prefers, as long as nothing speaks against the path.

use alloc::vec::Vec;

use super::{Move, SteeredPath, SteeringMode, View};
use crate::access::AccessId;
use crate::cause::SubflowSwitch;

/// The path on the first of these accesses. Paths of other accesses, and of none, come after them; among paths of one
/// access none is preferred.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct ActiveStandby {
    /// The active access, then standby accesses in their order. None: the path that works is the active one.
    pub accesses: Vec<AccessId>,
}

impl ActiveStandby {
    fn rank(&self, path: &SteeredPath) -> usize {
        let named = self.accesses.iter().position(|id| Some(*id) == path.access);
        named.unwrap_or(self.accesses.len())
    }
}

impl SteeringMode for ActiveStandby {
    fn choose(&self, view: &View<'_>) -> Option<Move> {
        let best = view.others.iter().min_by_key(|path| self.rank(path))?;
        (self.rank(best) < self.rank(&view.active)).then_some(Move {
            to: best.subflow,
            cause: SubflowSwitch::Preferred,
            back: true,
        })
    }

    fn tells_standby(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::steering::Flow;

    fn path(subflow: u8, access: Option<u8>) -> SteeredPath {
        SteeredPath {
            subflow,
            access: access.map(AccessId),
            ..SteeredPath::default()
        }
    }

    fn choose(mode: &ActiveStandby, active: SteeredPath, others: &[SteeredPath]) -> Option<Move> {
        mode.choose(&View {
            flow: Flow::default(),
            active,
            others,
        })
    }

    fn to(mode: &ActiveStandby, active: SteeredPath, others: &[SteeredPath]) -> Option<u8> {
        choose(mode, active, others).map(|moved| moved.to)
    }

    #[test]
    fn preferred_access_is_left_for_none_and_taken_back() {
        let mode = ActiveStandby {
            accesses: vec![AccessId(1), AccessId(0)],
        };
        let [dsl, lte, other] = [path(0, Some(1)), path(1, Some(0)), path(2, None)];
        assert_eq!(to(&mode, dsl, &[lte, other]), None);
        assert_eq!(to(&mode, lte, &[other, dsl]), Some(0));
        assert_eq!(to(&mode, other, &[lte]), Some(1));
        assert_eq!(to(&mode, other, &[lte, dsl]), Some(0));
        assert_eq!(to(&mode, lte, &[other]), None);
        let back = choose(&mode, lte, &[dsl]).unwrap();
        assert_eq!((back.cause, back.back), (SubflowSwitch::Preferred, true));
        assert!(mode.tells_standby());
    }

    #[test]
    fn paths_that_are_preferred_alike_are_left_as_they_are() {
        let mode = ActiveStandby {
            accesses: vec![AccessId(1)],
        };
        assert_eq!(to(&mode, path(0, Some(1)), &[path(1, Some(1))]), None);
        assert_eq!(to(&mode, path(0, Some(7)), &[path(1, None)]), None);
        let none = ActiveStandby::default();
        assert_eq!(to(&none, path(0, None), &[path(1, Some(1))]), None);
    }
}

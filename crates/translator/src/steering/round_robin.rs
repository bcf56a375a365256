//! Round robin: one connection after the other on the next access.

use super::{Move, SteeredPath, SteeringMode, View};
use crate::cause::SubflowSwitch;

/// The accesses in turn, one connection each, in the order of the configuration.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct RoundRobin;

impl SteeringMode for RoundRobin {
    fn choose(&self, view: &View<'_>) -> Option<Move> {
        let before = |path: &SteeredPath| {
            let earlier =
                |other: &&SteeredPath| (other.access, other.subflow) < (path.access, path.subflow);
            view.paths().filter(earlier).count()
        };
        let turn = usize::from(view.flow.turn) % (view.others.len() + 1);
        let next = view.others.iter().find(|path| before(path) == turn)?;
        Some(Move {
            to: next.subflow,
            cause: SubflowSwitch::Dealt,
            back: true,
        })
    }

    fn shares(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::AccessId;
    use crate::steering::Flow;

    fn path(subflow: u8, access: u8) -> SteeredPath {
        SteeredPath {
            subflow,
            access: Some(AccessId(access)),
            ..SteeredPath::default()
        }
    }

    fn dealt(turn: u8, active: SteeredPath, others: &[SteeredPath]) -> Option<u8> {
        let view = View {
            flow: Flow {
                turn,
                ..Flow::default()
            },
            active,
            others,
        };
        let moved = RoundRobin.choose(&view);
        moved.map(|moved| {
            assert_eq!((moved.cause, moved.back), (SubflowSwitch::Dealt, true));
            moved.to
        })
    }

    #[test]
    fn accesses_have_their_turns_in_their_order() {
        // Subflow 0 came over the last access, 1 over the first.
        let [last, first, middle] = [path(0, 9), path(1, 2), path(2, 5)];
        let of = |turn| dealt(turn, last, &[first, middle]);
        assert_eq!([0, 1, 2, 3].map(of), [Some(1), Some(2), None, Some(1)]);
        let stays = |turn| dealt(turn, first, &[last, middle]);
        assert_eq!([0, 1, 2].map(stays), [None, Some(2), Some(0)]);
        assert_eq!(dealt(5, last, &[]), None);
        assert!(RoundRobin.shares());
    }
}

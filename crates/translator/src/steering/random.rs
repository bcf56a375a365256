//! Random: each connection on an access of its own luck.

use super::{Move, SteeredPath, SteeringMode, View};
use crate::cause::SubflowSwitch;

/// Each connection has its luck with each access, and takes the one where that is best. It comes back there when the path works
/// again, and one more access moves none but those that it has more luck with.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Random;

/// Any number, always the same for this connection and access: the finalizer of MurmurHash3.
const fn luck(token: u32, path: &SteeredPath) -> u32 {
    let access = match path.access {
        Some(access) => access.0 as u32 + 1,
        None => 0,
    };
    let mut hash = token ^ access.wrapping_mul(0x9e37_79b9);
    hash = (hash ^ (hash >> 16)).wrapping_mul(0x85eb_ca6b);
    hash = (hash ^ (hash >> 13)).wrapping_mul(0xc2b2_ae35);
    hash ^ (hash >> 16)
}

impl SteeringMode for Random {
    fn choose(&self, view: &View<'_>) -> Option<Move> {
        let luck = |path: &&SteeredPath| luck(view.flow.token, path);
        let best = view.paths().max_by_key(luck)?;
        (luck(&best) > luck(&&view.active)).then_some(Move {
            to: best.subflow,
            cause: SubflowSwitch::Dealt,
            back: true,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::AccessId;
    use crate::steering::Flow;

    fn path(number: u8) -> SteeredPath {
        SteeredPath {
            subflow: number,
            access: Some(AccessId(number)),
            ..SteeredPath::default()
        }
    }

    /// Where a connection on path 0 of `count` goes.
    fn dealt(token: u32, count: u8) -> u8 {
        let others: alloc::vec::Vec<_> = (1..count).map(path).collect();
        let view = View {
            flow: Flow {
                token,
                ..Flow::default()
            },
            active: path(0),
            others: &others,
        };
        let moved = Random.choose(&view);
        moved.map_or(0, |moved| {
            assert_eq!((moved.cause, moved.back), (SubflowSwitch::Dealt, true));
            moved.to
        })
    }

    #[test]
    fn each_path_gets_its_part() {
        for paths in 2..=4 {
            let mut counts = [0_u32; 4];
            for token in 0..4000 {
                counts[usize::from(dealt(token, paths))] += 1;
            }
            let fair = 4000 / u32::from(paths);
            for count in &counts[..usize::from(paths)] {
                assert!(count.abs_diff(fair) < fair / 10, "{counts:?}");
            }
        }
    }

    #[test]
    fn path_that_comes_moves_none_but_to_itself() {
        for token in 0..1000 {
            let (two, three) = (dealt(token, 2), dealt(token, 3));
            assert!(three == two || three == 2, "{token}");
        }
    }

    #[test]
    fn connection_stays_where_it_is_dealt() {
        for token in 0..1000 {
            let to = dealt(token, 2);
            let view = View {
                flow: Flow {
                    token,
                    ..Flow::default()
                },
                active: path(to),
                others: &[path(1 - to)],
            };
            assert_eq!(Random.choose(&view), None);
        }
    }
}

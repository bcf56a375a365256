//! Smallest delay: the path with the shortest round-trip time.

use core::time::Duration;

use super::{Move, SteeredPath, SteeringMode, View};
use crate::cause::SubflowSwitch;

/// A path has to be faster than the active one by this, and by a quarter of its time: what differs less is the noise of
/// the queues.
const MARGIN: Duration = Duration::from_millis(2);

/// The path with the shortest round-trip time between FlexCP and the client. The active one stays while another is not
/// shorter by a quarter and 2 ms. Paths whose time is not known are not chosen, and one whose time is not known is not
/// left.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SmallestDelay;

impl SteeringMode for SmallestDelay {
    fn choose(&self, view: &View<'_>) -> Option<Move> {
        let here = view.active.rtt?;
        let (there, best) = fastest(view.others)?;
        (there + MARGIN < here - here / 4).then_some(Move {
            to: best.subflow,
            cause: SubflowSwitch::Delay,
            back: false,
        })
    }

    fn patience(&self, view: &View<'_>) -> Option<Duration> {
        let (there, _) = fastest(view.others)?;
        Some((there + MARGIN) * 4 / 3)
    }

    fn measures(&self) -> bool {
        true
    }
}

fn fastest(paths: &[SteeredPath]) -> Option<(Duration, &SteeredPath)> {
    let known = paths.iter().filter_map(|path| Some((path.rtt?, path)));
    known.min_by_key(|(rtt, _)| *rtt)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steering::Flow;

    fn path(subflow: u8, rtt: Option<u64>) -> SteeredPath {
        SteeredPath {
            subflow,
            rtt: rtt.map(Duration::from_millis),
            ..SteeredPath::default()
        }
    }

    fn view(active: Option<u64>, others: &[SteeredPath]) -> View<'_> {
        View {
            flow: Flow::default(),
            active: path(0, active),
            others,
        }
    }

    fn to(active: Option<u64>, others: &[Option<u64>]) -> Option<u8> {
        let numbered = (1..).zip(others).map(|(index, rtt)| path(index, *rtt));
        let others: alloc::vec::Vec<_> = numbered.collect();
        let moved = SmallestDelay.choose(&view(active, &others));
        moved.map(|moved| moved.to)
    }

    #[test]
    fn shortest_path_is_chosen() {
        assert_eq!(to(Some(80), &[Some(40), Some(20), Some(30)]), Some(2));
        assert_eq!(to(Some(20), &[Some(40), Some(80)]), None);
        let moved = SmallestDelay.choose(&view(Some(80), &[path(1, Some(10))]));
        let moved = moved.unwrap();
        assert_eq!((moved.cause, moved.back), (SubflowSwitch::Delay, false));
    }

    #[test]
    fn what_differs_little_moves_nothing() {
        assert_eq!(to(Some(80), &[Some(58)]), None);
        assert_eq!(to(Some(80), &[Some(57)]), Some(1));
        assert_eq!(to(Some(2), &[Some(0)]), None, "2 ms at least");
        assert_eq!(to(Some(4), &[Some(0)]), Some(1));
    }

    /// What is slower by a microsecond than that is left, so that nobody has to ask before.
    #[test]
    fn patience_ends_where_another_path_is_chosen() {
        let others = [path(1, Some(20)), path(2, Some(50)), path(3, None)];
        let patience = SmallestDelay.patience(&view(Some(80), &others)).unwrap();
        let at = |rtt| {
            let mut view = view(None, &others);
            view.active.rtt = Some(rtt);
            SmallestDelay.choose(&view)
        };
        assert_eq!(at(patience), None);
        assert!(at(patience + Duration::from_micros(2)).is_some());
        assert_eq!(SmallestDelay.patience(&view(Some(80), &others[2..])), None);
        assert!(SmallestDelay.measures());
    }

    #[test]
    fn unknown_times_move_nothing() {
        assert_eq!(to(None, &[Some(1)]), None);
        assert_eq!(to(Some(80), &[None]), None);
        assert_eq!(to(Some(80), &[None, Some(10)]), Some(2));
    }
}

//! Path choice, as data: which subflow carries what, from what is known of each. Nothing here changes anything or looks
//! anywhere else, so each rule is a table of tests.
//!
//! The order of the criteria is the policy: the active subflow as long as nothing speaks against it (active-standby, with
//! the subflow that works as the active one).

use flexcp_wire::Dsn;

use super::{Connection, Subflow};
use crate::cause::SubflowSwitch;
use crate::handle::{SubflowIndex, SubflowSet};
use crate::time::Instant;

/// What may speak against a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Standing {
    /// The peer has closed its side.
    pub(crate) leaving: bool,
    /// It was silent while data was outstanding.
    pub(crate) suspect: bool,
    /// The peer wants it used when no other is left (RFC 8684 section 3.3.8), or the operator does.
    pub(crate) backup: bool,
}

/// What the choice knows of a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PathView {
    pub(crate) index: SubflowIndex,
    pub(crate) standing: Standing,
    /// It misses data that the peer has from another one: what is sent now waits for filler.
    pub(crate) hole: bool,
    pub(crate) last_heard: Instant,
}

/// What a path has to do with data that went out before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RepeatView {
    pub(crate) path: PathView,
    /// Filler goes before it.
    pub(crate) filling: bool,
    /// It stands there already.
    pub(crate) holds: bool,
}

/// What speaks against new data on the active path; `None`: nothing does.
pub(crate) const fn against(active: Standing) -> Option<SubflowSwitch> {
    if active.leaving {
        Some(SubflowSwitch::Leaving)
    } else if active.suspect {
        Some(SubflowSwitch::Failed)
    } else if active.backup {
        Some(SubflowSwitch::Backup)
    } else {
        None
    }
}

/// The path for new data among those that carry any, when something speaks against the active one. One that the peer has
/// closed its side of counts the least, then one that is suspect, that the peer wants as backup, that has a hole.
pub(crate) fn for_new(
    paths: impl Iterator<Item = PathView>,
    active: SubflowIndex,
) -> Option<SubflowIndex> {
    let badness = |path: &PathView| {
        let elsewhere = path.index != active;
        let hole = elsewhere && path.hole;
        let Standing {
            leaving,
            suspect,
            backup,
        } = path.standing;
        (leaving, suspect, backup, hole, elsewhere)
    };
    paths.min_by_key(badness).map(|path| path.index)
}

/// The path for new data that the active one has no room for, among those that have: one against which nothing speaks.
pub(crate) fn with_room(mut paths: impl Iterator<Item = PathView>) -> Option<SubflowIndex> {
    let good = |path: &PathView| against(path.standing).is_none() && !path.hole;
    paths.find(good).map(|path| path.index)
}

/// The path instead of the active one while that has a packet on trial, among those that have room: the one that was
/// heard last.
pub(crate) fn instead_of_trial(
    paths: impl Iterator<Item = PathView>,
    active: SubflowIndex,
) -> Option<SubflowIndex> {
    let others = paths.filter(|path| path.index != active);
    let last = others.max_by_key(|path| path.last_heard);
    last.map(|path| path.index)
}

/// While every path is suspect: the next one in turn. `None`: one of them is not, or there is none.
pub(crate) fn in_turn(
    paths: impl Iterator<Item = PathView> + Clone,
    active: SubflowIndex,
) -> Option<SubflowIndex> {
    if paths.clone().any(|path| !path.standing.suspect) {
        return None;
    }
    let behind = paths.clone().find(|path| path.index > active);
    let next = behind.or_else(|| paths.clone().next());
    next.map(|path| path.index)
}

/// The path for data that went out before, among those where it is delivered without waiting for later data: first where
/// nothing speaks against the path, then where no filler goes before it, then where it stands already, then the active one.
pub(crate) fn for_repeated(
    paths: impl Iterator<Item = RepeatView>,
    active: SubflowIndex,
) -> Option<SubflowIndex> {
    let badness = |view: &RepeatView| {
        let elsewhere = view.path.index != active;
        let suspect = view.path.standing.suspect && elsewhere;
        (suspect, view.filling, !view.holds, elsewhere)
    };
    paths.min_by_key(badness).map(|view| view.path.index)
}

/// The path for an answer that belongs to none in particular, among those that deliver: where the peer was heard last.
pub(crate) fn for_answer(delivering: SubflowSet, heard: SubflowIndex) -> Option<SubflowIndex> {
    match delivering {
        0 => None,
        set if set & (1 << heard) != 0 => Some(heard),
        #[allow(clippy::cast_possible_truncation, reason = "a set has eight members")]
        set => Some(set.trailing_zeros() as SubflowIndex),
    }
}

impl Connection {
    /// What may speak against a subflow.
    pub(super) fn standing(&self, index: SubflowIndex) -> Standing {
        let Subflow { path, recv, .. } = self.subflow(index);
        Standing {
            leaving: recv.fin.is_some(),
            suspect: path.suspect,
            backup: (path.backup && !self.mptcp.steered.slights_backup())
                || self.is_asked_backup(index),
        }
    }

    /// What the choice knows of a subflow.
    pub(super) fn path_view(&self, index: SubflowIndex) -> PathView {
        PathView {
            index,
            standing: self.standing(index),
            hole: self.has_hole(index),
            last_heard: self.subflow(index).path.last_heard,
        }
    }

    /// Those of the subflows that carry data and fit.
    pub(super) fn carrying<'a>(
        &'a self,
        fits: impl Fn(&Subflow) -> bool + Clone + 'a,
    ) -> impl Iterator<Item = PathView> + Clone + 'a {
        let carrying = self.indices().filter(move |&index| {
            let subflow = self.subflow(index);
            subflow.carries() && fits(subflow)
        });
        carrying.map(|index| self.path_view(index))
    }

    /// Those of the subflows where this data, which went out before, waits for nothing later.
    pub(super) fn open_for(&self, active: SubflowIndex, dsn: Dsn) -> Option<SubflowIndex> {
        let open = self.carrying(|_| true);
        let open = open.filter(|path| !self.is_blocked(path.index, dsn));
        let views = open.map(|path| RepeatView {
            path,
            filling: self.is_filling(path.index),
            holds: self.holds(path.index, dsn),
        });
        for_repeated(views, active)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FINE: Standing = Standing {
        leaving: false,
        suspect: false,
        backup: false,
    };
    const GOOD: PathView = path(FINE);

    const fn path(standing: Standing) -> PathView {
        PathView {
            index: 0,
            standing,
            hole: false,
            last_heard: Instant(0),
        }
    }

    /// The paths, numbered as they stand.
    fn paths<const N: usize>(paths: [PathView; N]) -> impl Iterator<Item = PathView> + Clone {
        (0..)
            .zip(paths)
            .map(|(index, path)| PathView { index, ..path })
    }

    const LEAVING: PathView = path(Standing {
        leaving: true,
        ..FINE
    });
    const SUSPECT: PathView = path(Standing {
        suspect: true,
        ..FINE
    });
    const BACKUP: PathView = path(Standing {
        backup: true,
        ..FINE
    });
    const HOLE: PathView = PathView { hole: true, ..GOOD };

    #[test]
    fn what_speaks_against_a_path_is_told_by_its_weight() {
        assert_eq!(against(FINE), None);
        assert_eq!(against(BACKUP.standing), Some(SubflowSwitch::Backup));
        let both = Standing {
            suspect: true,
            ..BACKUP.standing
        };
        assert_eq!(against(both), Some(SubflowSwitch::Failed));
        let all = Standing {
            leaving: true,
            ..both
        };
        assert_eq!(against(all), Some(SubflowSwitch::Leaving));
    }

    #[test]
    fn new_data_goes_where_the_least_speaks_against_it() {
        let best = |all, active| for_new(paths(all), active);
        assert_eq!(best([SUSPECT, GOOD, GOOD], 0), Some(1));
        assert_eq!(best([SUSPECT, HOLE, GOOD], 0), Some(2));
        assert_eq!(best([SUSPECT, BACKUP, LEAVING], 0), Some(1));
        assert_eq!(best([LEAVING, SUSPECT, SUSPECT], 0), Some(1));
        // Where all are alike the active one stays, and its own hole does not count.
        assert_eq!(best([BACKUP, BACKUP, BACKUP], 2), Some(2));
        let backup_with_hole = PathView {
            hole: true,
            ..BACKUP
        };
        assert_eq!(best([BACKUP, backup_with_hole, BACKUP], 1), Some(1));
        assert_eq!(for_new(paths([]), 0), None);
    }

    #[test]
    fn room_counts_only_where_nothing_speaks_against_the_path() {
        let of = |all| with_room(paths(all));
        assert_eq!(of([SUSPECT, BACKUP, HOLE, LEAVING]), None);
        assert_eq!(of([SUSPECT, BACKUP, GOOD, GOOD]), Some(2));
    }

    #[test]
    fn instead_of_a_trial_goes_who_was_heard_last() {
        let heard = |at| PathView {
            last_heard: Instant(at),
            ..SUSPECT
        };
        let all = paths([heard(9), heard(3), heard(5), heard(4)]);
        assert_eq!(instead_of_trial(all.clone(), 0), Some(2));
        assert_eq!(instead_of_trial(all, 2), Some(0));
        assert_eq!(instead_of_trial(paths([GOOD]), 0), None);
    }

    #[test]
    fn turns_are_taken_only_while_all_are_suspect() {
        assert_eq!(in_turn(paths([SUSPECT, GOOD]), 0), None);
        let all = paths([SUSPECT; 3]);
        let turns = [0, 1, 2].map(|active| in_turn(all.clone(), active));
        assert_eq!(turns, [Some(1), Some(2), Some(0)]);
        assert_eq!(in_turn(paths([]), 0), None);
    }

    #[test]
    fn repeated_data_goes_where_it_is_delivered_soonest() {
        let view = |path, filling, holds| RepeatView {
            path,
            filling,
            holds,
        };
        let best = |views: [RepeatView; 3], active| {
            let numbered = (0..).zip(views).map(|(index, view)| RepeatView {
                path: PathView { index, ..view.path },
                ..view
            });
            for_repeated(numbered, active)
        };
        let [plain, holds] = [false, true].map(|holds| view(GOOD, false, holds));
        assert_eq!(best([plain, holds, holds], 0), Some(1));
        assert_eq!(best([plain, plain, plain], 2), Some(2));
        let filling = view(GOOD, true, true);
        assert_eq!(best([filling, plain, plain], 0), Some(1));
        let suspect = view(SUSPECT, false, true);
        assert_eq!(
            best([suspect, filling, suspect], 0),
            Some(0),
            "the active one"
        );
        assert_eq!(best([suspect, filling, suspect], 1), Some(1));
    }

    #[test]
    fn answer_goes_where_the_peer_was_heard_if_that_delivers() {
        assert_eq!(for_answer(0b0110, 2), Some(2));
        assert_eq!(for_answer(0b0110, 0), Some(1));
        assert_eq!(for_answer(0, 0), None);
    }
}

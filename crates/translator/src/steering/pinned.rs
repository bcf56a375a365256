//! Pinned: the path that somebody has named, as long as it works.

use super::{Move, SteeredPath, SteeringMode, View};
use crate::access::AccessId;
use crate::cause::SubflowSwitch;
use crate::handle::SubflowIndex;

/// Where a connection is to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// On a subflow of this access.
    Access(AccessId),
    /// On this subflow, by its number. When that is over, another one may get the number.
    Subflow(u8),
}

impl Target {
    /// Whether a subflow of that number and access is meant.
    #[must_use]
    pub fn is(self, subflow: SubflowIndex, access: Option<AccessId>) -> bool {
        match self {
            Self::Access(wanted) => access == Some(wanted),
            Self::Subflow(wanted) => subflow == wanted,
        }
    }
}

/// A connection stays on one path, or on those of one access. While something speaks against those it goes elsewhere; the
/// rule's fail-back delay says when it comes back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pinned(pub Target);

impl SteeringMode for Pinned {
    fn choose(&self, view: &View<'_>) -> Option<Move> {
        let is_wanted = |path: &&SteeredPath| self.0.is(path.subflow, path.access);
        if is_wanted(&&view.active) {
            return None;
        }
        let to = view.others.iter().find(is_wanted)?.subflow;
        Some(Move {
            to,
            cause: SubflowSwitch::Asked,
            back: true,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steering::Flow;

    fn path(subflow: u8, access: Option<u8>) -> SteeredPath {
        SteeredPath {
            subflow,
            access: access.map(AccessId),
            ..SteeredPath::default()
        }
    }

    fn chosen(to: Target, active: SteeredPath, others: &[SteeredPath]) -> Option<u8> {
        let flow = Flow::default();
        let view = View {
            flow,
            active,
            others,
        };
        Pinned(to).choose(&view).map(|wanted| wanted.to)
    }

    #[test]
    fn connection_goes_to_the_path_that_was_named_and_stays() {
        let (one, two, three) = (path(0, Some(0)), path(1, Some(1)), path(2, Some(1)));
        let access = |id| Target::Access(AccessId(id));
        assert_eq!(chosen(access(1), one, &[two, three]), Some(1));
        assert_eq!(chosen(access(1), three, &[one, two]), None);
        assert_eq!(chosen(Target::Subflow(2), one, &[two, three]), Some(2));
        assert_eq!(chosen(Target::Subflow(2), three, &[one, two]), None);
    }

    #[test]
    fn connection_stays_where_it_is_while_that_path_is_not_there() {
        let (one, two) = (path(0, None), path(1, Some(1)));
        assert_eq!(chosen(Target::Access(AccessId(7)), one, &[two]), None);
        assert_eq!(chosen(Target::Subflow(7), one, &[two]), None);
    }
}

//! What a client was told by SACK on a subflow. A server with more holes than an ACK has room for names the latest blocks
//! only (RFC 2018 section 4), and those of another subflow may take all the room. An ACK that stops where an earlier
//! block began would look to the client as if the server had dropped that (section 8).

use flexcp_wire::Ssn;

/// Ranges that are remembered: those of one server's ACK at most.
const RANGES: usize = 4;

/// Ranges behind the ACK of a subflow, none of which touch.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Told {
    ranges: [(Ssn, Ssn); RANGES],
    len: u8,
}

impl Told {
    pub(crate) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Remembers that `[left, right)` was told. When there is no room, the one furthest ahead is forgotten.
    pub(crate) fn note(&mut self, mut left: Ssn, mut right: Ssn) {
        let mut kept = Self::default();
        for &(from, to) in self.as_slice() {
            if left.after(to) || from.after(right) {
                kept.push((from, to));
            } else {
                left = left.min(from);
                right = right.max(to);
            }
        }
        let furthest = (0..kept.as_slice().len()).reduce(|a, b| {
            if kept.ranges[b].0.after(kept.ranges[a].0) {
                b
            } else {
                a
            }
        });
        match furthest.filter(|_| kept.as_slice().len() == RANGES) {
            None => kept.push((left, right)),
            Some(at) if kept.ranges[at].0.after(left) => kept.ranges[at] = (left, right),
            Some(_) => {}
        }
        *self = kept;
    }

    /// Where an ACK that has got to `ack` has to go on to.
    pub(crate) fn reach(&self, ack: Ssn) -> Ssn {
        let covers = |(from, to): &&(Ssn, Ssn)| !from.after(ack) && to.after(ack);
        let range = self.as_slice().iter().find(covers);
        range.map_or(ack, |&(_, to)| to)
    }

    /// Forgets what an ACK of `ack` says.
    pub(crate) fn forget_before(&mut self, ack: Ssn) {
        if self.is_empty() {
            return;
        }
        let mut kept = Self::default();
        for &(from, to) in self.as_slice().iter().filter(|(_, to)| to.after(ack)) {
            kept.push((from, to));
        }
        *self = kept;
    }

    fn as_slice(&self) -> &[(Ssn, Ssn)] {
        &self.ranges[..self.len.into()]
    }

    fn push(&mut self, range: (Ssn, Ssn)) {
        self.ranges[usize::from(self.len)] = range;
        self.len += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(ranges: &[(u32, u32)]) -> Told {
        let mut told = Told::default();
        for &(left, right) in ranges {
            told.note(Ssn(left), Ssn(right));
        }
        told
    }

    #[test]
    fn ranges_that_touch_are_one() {
        let mut told = told(&[(10, 20), (30, 40), (20, 30)]);
        assert_eq!(told.as_slice(), [(Ssn(10), Ssn(40))]);
        for (ack, reached) in [(9, 9), (10, 40), (39, 40), (40, 40)] {
            assert_eq!(told.reach(Ssn(ack)), Ssn(reached));
        }
        told.forget_before(Ssn(39));
        assert!(!told.is_empty());
        told.forget_before(Ssn(40));
        assert!(told.is_empty());
    }

    #[test]
    fn furthest_is_forgotten_where_there_is_no_room() {
        let last = u32::MAX - 5;
        let told = told(&[(last, last + 5), (16, 21), (5, 6), (1, 2), (8, 9), (36, 46)]);
        assert_eq!(told.as_slice().len(), RANGES);
        for (ack, reached) in [(last, last + 5), (5, 6), (1, 2), (8, 9), (16, 16), (36, 36)] {
            assert_eq!(told.reach(Ssn(ack)), Ssn(reached));
        }
    }
}

//! Which back end is next: in turn while those that take connections have one weight, else by smooth weighted round robin.
//!
//! That is nginx's way: with each choice every one that takes connections saves up its weight, the one with the most is
//! chosen, and pays for all. So of four connections one with weight 3 gets the first, the third and the fourth, and the other,
//! with weight 1, the second. Nothing is drawn, and a choice allocates nothing.

use alloc::vec;
use alloc::vec::Vec;

use crate::config::Part;

/// Whose turn it is among a service's back ends.
#[derive(Default, Debug)]
pub struct Turns {
    /// Back end that is next in turn.
    next: usize,
    /// What each back end takes.
    parts: Vec<Part>,
    /// What each has saved up; all together 0.
    saved: Vec<i64>,
}

impl Turns {
    /// For `count` back ends, of which the first take what `parts` say, and the others as much as each other. The turn
    /// begins with `next`.
    #[must_use]
    pub fn new(count: usize, parts: &[Part], next: usize) -> Self {
        let part = |at| parts.get(at).copied().unwrap_or_default();
        Self {
            next,
            parts: (0..count).map(part).collect(),
            saved: vec![0; count],
        }
    }

    /// The same turns with what `old` had saved up, if back ends and weights are those.
    pub(crate) fn or_old(self, old: Self) -> Self {
        let weights = |turns: &Self| {
            turns
                .parts
                .iter()
                .map(|part| part.weight)
                .collect::<Vec<_>>()
        };
        let same = weights(&self) == weights(&old);
        Self {
            saved: if same { old.saved } else { self.saved },
            ..self
        }
    }

    /// Back end that is next in turn.
    pub(crate) const fn next(&self) -> usize {
        self.next
    }

    /// What a back end takes.
    pub(crate) fn part(&self, at: usize) -> Part {
        self.parts.get(at).copied().unwrap_or_default()
    }

    /// Has those that `takes` lets take a connection tried by `found`, in the order of their turns, until it makes something
    /// of one. That one has had its turn then.
    pub fn find<T>(
        &mut self,
        takes: impl Fn(usize) -> bool,
        mut found: impl FnMut(usize) -> Option<T>,
    ) -> Option<T> {
        let even = self.is_even(&takes);
        let mut tried = None;
        while let Some(rank) = self.best(&takes, even, tried) {
            let at = rank.at;
            if let Some(made) = found(at) {
                if !even {
                    self.pay(&takes, at);
                }
                self.next = (at + 1) % self.parts.len();
                return Some(made);
            }
            tried = Some(rank);
        }
        None
    }

    /// Whether those that take connections have one weight.
    fn is_even(&self, takes: impl Fn(usize) -> bool) -> bool {
        let mut weights = self.taking(takes).map(|(_, weight)| weight);
        let first = weights.next();
        weights.all(|weight| Some(weight) == first)
    }

    /// The one whose turn it is, behind those that have been `tried`.
    fn best(&self, takes: impl Fn(usize) -> bool, even: bool, tried: Option<Rank>) -> Option<Rank> {
        let count = self.parts.len();
        let ranks = self.taking(takes).map(|(at, weight)| Rank {
            saved: if even { 0 } else { self.saved[at] + weight },
            early: count - (at + count - self.next) % count,
            at,
        });
        ranks
            .filter(|&rank| tried.is_none_or(|tried| rank < tried))
            .max()
    }

    /// All save up their weight, and the chosen one pays for all.
    fn pay(&mut self, takes: impl Fn(usize) -> bool, chosen: usize) {
        let mut total = 0;
        for (at, part) in self.parts.iter().enumerate() {
            if part.takes() && takes(at) {
                self.saved[at] += i64::from(part.weight);
                total += i64::from(part.weight);
            }
        }
        self.saved[chosen] -= total;
    }

    /// Those that take connections, and their weights.
    fn taking(&self, takes: impl Fn(usize) -> bool) -> impl Iterator<Item = (usize, i64)> {
        let parts = self.parts.iter().enumerate();
        parts
            .filter(move |&(at, part)| part.takes() && takes(at))
            .map(|(at, part)| (at, i64::from(part.weight)))
    }
}

/// How soon it is a back end's turn: more is sooner. No two have the same.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Rank {
    /// With its weight; 0 where all have one.
    saved: i64,
    early: usize,
    at: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turns(weights: &[u16]) -> Turns {
        let parts: Vec<_> = weights.iter().map(|&weight| Part::of(weight)).collect();
        Turns::new(weights.len(), &parts, 0)
    }

    /// Whose turn it is `count` times, as digits.
    fn played(
        turns: &mut Turns,
        takes: impl Fn(usize) -> bool,
        count: usize,
    ) -> alloc::string::String {
        let one = |_| {
            turns
                .find(&takes, Some)
                .map_or_else(|| "-".into(), |at| alloc::format!("{at}"))
        };
        (0..count).map(one).collect()
    }

    #[test]
    fn equal_weights_are_taken_in_turn() {
        for weights in [[1, 1, 1], [7, 7, 7]] {
            let mut turns = turns(&weights);
            assert_eq!(played(&mut turns, |_| true, 4), "0120");
            assert_eq!(played(&mut turns, |at| at != 1, 3), "202");
            assert_eq!(played(&mut turns, |_| true, 3), "012");
        }
    }

    #[test]
    fn connections_are_spread_by_weight_and_evenly() {
        assert_eq!(played(&mut turns(&[3, 1]), |_| true, 8), "01000100");
        assert_eq!(played(&mut turns(&[5, 1, 1]), |_| true, 7), "0010200");
        let all = played(&mut turns(&[1, 256, 16]), |_| true, 273 * 3);
        let times = |digit| all.chars().filter(|&other| other == digit).count();
        assert_eq!(['0', '1', '2'].map(times), [3, 768, 48]);
    }

    #[test]
    fn weight_0_and_maintenance_take_nothing() {
        assert_eq!(played(&mut turns(&[0, 1, 0]), |_| true, 3), "111");
        assert_eq!(played(&mut turns(&[0, 0]), |_| true, 2), "--");
        let mut turns = turns(&[1, 4, 1]);
        turns.parts[1].maintenance = true;
        assert_eq!(played(&mut turns, |_| true, 4), "0202");
        assert_eq!(played(&mut Turns::default(), |_| true, 1), "-");
    }

    #[test]
    fn what_can_not_be_had_leaves_the_turn_to_the_next_best() {
        let mut turns = turns(&[1, 3, 2]);
        let mut tried = alloc::vec![];
        let found = turns.find(
            |_| true,
            |at| {
                tried.push(at);
                None::<()>
            },
        );
        assert_eq!((found, tried), (None, alloc::vec![1, 2, 0]));
        assert_eq!(turns.saved, [0, 0, 0], "nobody has had a turn");
        let found = turns.find(|_| true, |at| (at != 1).then_some(at));
        assert_eq!(found, Some(2));
        assert_eq!(turns.saved, [1, 3, -4]);
    }

    #[test]
    fn savings_stay_with_the_weights_that_made_them() {
        let mut before = turns(&[3, 1]);
        assert_eq!(played(&mut before, |_| true, 1), "0");
        let mut parts = [Part::of(3), Part::of(1)];
        parts[1].maintenance = true;
        let mut turns = Turns::new(2, &parts, 1).or_old(before);
        assert_eq!(turns.saved, [-1, 1]);
        parts[0].weight = 2;
        turns = Turns::new(2, &parts, 1).or_old(turns);
        assert_eq!(turns.saved, [0, 0]);
    }
}

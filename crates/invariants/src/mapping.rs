//! Data sequence mappings as they were declared on one subflow and direction.

use std::collections::VecDeque;

/// `[at, at + len)` of the subflow carries `[to, to + len)` of the data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Mapping {
    /// Position on the subflow.
    pub(crate) at: u64,
    /// Position in the data.
    pub(crate) to: u64,
    pub(crate) len: u64,
}

impl Mapping {
    pub(crate) const fn end(&self) -> u64 {
        self.at + self.len
    }

    /// The data position of a subflow position inside.
    pub(crate) const fn data(&self, at: u64) -> u64 {
        self.to + (at - self.at)
    }
}

/// Mappings, sorted by their place on the subflow; they do not overlap.
#[derive(Default, Debug)]
pub(crate) struct Mappings(VecDeque<Mapping>);

impl Mappings {
    /// The mapping that holds `at`.
    pub(crate) fn find(&self, at: u64) -> Option<Mapping> {
        let last = self.0.back()?;
        if at >= last.at {
            return Some(*last).filter(|mapping| at < mapping.end());
        }
        let index = self.0.partition_point(|mapping| mapping.end() <= at);
        self.0
            .get(index)
            .copied()
            .filter(|mapping| mapping.at <= at)
    }

    /// Whether the byte `to` of the data stands at `from` or behind.
    pub(crate) fn brings(&self, to: u64, from: u64) -> bool {
        let first = self.0.partition_point(|mapping| mapping.end() <= from);
        let mut rest = self.0.iter().skip(first);
        rest.any(|m| (m.to..m.to + m.len).contains(&to) && m.at + (to - m.to) >= from)
    }

    /// Whether the byte `to` of the data is the one at `from`.
    pub(crate) fn brings_next(&self, to: u64, from: u64) -> bool {
        self.find(from)
            .is_some_and(|mapping| mapping.data(from) == to)
    }

    /// Takes a declaration that has to repeat what is known exactly.
    ///
    /// # Errors
    /// The known mapping that it contradicts.
    pub(crate) fn declare_exactly(&mut self, new: Mapping) -> Result<(), Mapping> {
        if self.0.back().is_none_or(|last| new.at >= last.end()) {
            self.0.push_back(new);
            return Ok(());
        }
        let index = self.0.partition_point(|mapping| mapping.end() <= new.at);
        match self.0.get(index) {
            Some(known) if *known == new => Ok(()),
            Some(known) if known.at < new.end() => Err(*known),
            _ => {
                self.0.insert(index, new);
                Ok(())
            }
        }
    }

    /// Takes what a declaration adds; what is known stays as it is.
    pub(crate) fn declare_more(&mut self, new: Mapping) {
        let mut at = new.at;
        while at < new.end() {
            let index = self.0.partition_point(|mapping| mapping.end() <= at);
            let next = self.0.get(index).map_or(u64::MAX, |mapping| mapping.at);
            if next <= at {
                at = self.0[index].end();
                continue;
            }
            let end = new.end().min(next);
            let part = Mapping {
                at,
                to: new.data(at),
                len: end - at,
            };
            self.0.insert(index, part);
            at = end;
        }
    }

    /// Where the first mapping behind `at` starts.
    pub(crate) fn next_from(&self, at: u64) -> Option<u64> {
        let next = self.0.partition_point(|known| known.at <= at);
        self.0.get(next).map(|known| known.at)
    }

    /// What is known of `[from, to)`, each mapping cut to that.
    pub(crate) fn within(&self, from: u64, to: u64) -> impl Iterator<Item = Mapping> {
        let to = to.max(from);
        self.around(from, to).map(move |known| {
            let at = known.at.max(from);
            Mapping {
                at,
                to: known.data(at),
                len: known.end().min(to) - at,
            }
        })
    }

    /// The mappings of which a part lies between two places, whole.
    pub(crate) fn around(&self, from: u64, to: u64) -> impl Iterator<Item = Mapping> {
        let first = self.0.partition_point(|known| known.end() <= from);
        let overlapping = self.0.range(first..);
        overlapping.take_while(move |known| known.at < to).copied()
    }

    /// Whether a known mapping says something else about any of the same places.
    pub(crate) fn contradicts(&self, new: Mapping) -> bool {
        let first = self.0.partition_point(|known| known.end() <= new.at);
        let overlapping = self.0.range(first..);
        overlapping
            .take_while(|known| known.at < new.end())
            .any(|known| known.to.wrapping_sub(known.at) != new.to.wrapping_sub(new.at))
    }

    /// Lets go of mappings that are acknowledged at both levels.
    pub(crate) fn release(&mut self, subflow_ack: u64, data_ack: u64) {
        while self
            .0
            .front()
            .is_some_and(|front| front.end() <= subflow_ack && front.to + front.len <= data_ack)
        {
            self.0.pop_front();
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

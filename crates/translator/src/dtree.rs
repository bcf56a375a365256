//! The D-tree: data sequence mappings that are not done with yet (FlexCP paper section 3.2).
//!
//! One [`Lane`] per subflow and direction; the lanes of a connection and direction together are its
//! D-tree. A lane is a ring of runs sorted by subflow sequence number. While the client and FlexCP keep
//! to one rule, larger DSN means larger SSN, it is sorted by DSN as well, and both look-ups are binary
//! searches; a lane knows how many neighbours break the rule (data sent again under a fresh SSN) and
//! searches them one by one while there are any. In an undisturbed connection a lane holds one run.
//!
//! A run stands for consecutive mappings of equal length, contiguous in both spaces, so merging runs
//! does not lose the bounds of the mappings: a receiver takes a retransmission only under the mapping
//! that was first declared for it (RFC 8684 section 3.3.1).

mod installed;
mod room;
#[cfg(test)]
mod tests;

use alloc::collections::VecDeque;

use flexcp_wire::{Dsn, Ssn};

/// Longest stretch that one run may stand for: well within half the SSN space.
pub(crate) const MAX_RUN: u32 = 1 << 30;

/// Consecutive mappings of equal length. Packed, so that there is no gap behind the numbers of 32 bits.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[repr(Rust, packed(4))]
pub(crate) struct Run {
    pub(crate) dsn: Dsn,
    pub(crate) ssn: Ssn,
    /// Bytes in all.
    pub(crate) len: u32,
    /// Bytes of each mapping, the last one may be shorter. 0: no bounds to keep, because nothing has
    /// been declared yet (downstream) or because the peer keeps them (upstream).
    unit: u32,
}

/// One mapping as it was declared, or the part of a reserved stretch from the byte asked for on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Mapping {
    pub(crate) dsn: Dsn,
    pub(crate) ssn: Ssn,
    pub(crate) len: u32,
    /// `false`: the bytes have their SSNs, but no mapping has been sent for them.
    pub(crate) declared: bool,
}

/// Why a mapping of the peer's is not taken, or only in part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refused {
    /// It contradicts one that is known (RFC 8684 section 3.3.1: it must not change).
    Contradiction,
    /// There is no room, and none may be made.
    Full,
}

/// The mappings of one subflow in one direction.
#[derive(Clone, Default)]
pub(crate) struct Lane {
    runs: VecDeque<Run>,
    /// Neighbours whose DSNs are not in the order of their SSNs.
    inversions: u32,
    /// The last run that was let go: what a late D-SACK may still name. Of no length: there is none.
    recent: Run,
}

impl Run {
    const fn dsn_end(&self) -> Dsn {
        self.dsn.add(self.len as u64)
    }

    const fn ssn_end(&self) -> Ssn {
        self.ssn.add(self.len)
    }

    /// Whether `next` may become part of this run.
    const fn takes(&self, next: &Self) -> bool {
        let contiguous = self.dsn_end().0 == next.dsn.0 && self.ssn_end().0 == next.ssn.0;
        let short_enough = self.len.wrapping_add(next.len) <= MAX_RUN;
        let bounds_kept = if self.unit == 0 || next.unit == 0 {
            self.unit == next.unit
        } else {
            self.len.is_multiple_of(self.unit)
                && (next.unit == self.unit || (next.len == next.unit && next.unit < self.unit))
        };
        contiguous && short_enough && bounds_kept
    }

    /// The mapping that holds the byte `offset` into the run.
    const fn mapping_at(&self, offset: u32) -> Mapping {
        let start = if self.unit == 0 {
            offset
        } else {
            offset - offset % self.unit
        };
        let rest = self.len - start;
        let len = if self.unit == 0 || rest < self.unit {
            rest
        } else {
            self.unit
        };
        Mapping {
            dsn: self.dsn.add(start as u64),
            ssn: self.ssn.add(start),
            len,
            declared: self.unit != 0,
        }
    }

    /// Without its first `count` bytes.
    const fn without_first(&self, count: u32) -> Self {
        Self {
            dsn: self.dsn.add(count as u64),
            ssn: self.ssn.add(count),
            len: self.len - count,
            unit: self.unit,
        }
    }
}

impl Lane {
    /// Adds a mapping behind all others: FlexCP's own, downstream.
    pub(crate) fn append(&mut self, dsn: Dsn, ssn: Ssn, len: u32) {
        self.push_back(Run {
            dsn,
            ssn,
            len,
            unit: len,
        });
    }

    /// Gives a stretch of data its SSNs before it has come.
    pub(crate) fn reserve(&mut self, dsn: Dsn, ssn: Ssn, len: u32) {
        self.push_back(Run {
            dsn,
            ssn,
            len,
            unit: 0,
        });
    }

    /// Declares a mapping inside a reserved stretch; what is outside of it is not noted.
    pub(crate) fn declare(&mut self, dsn: Dsn, ssn: Ssn, len: u32) {
        let Some(index) = self.index_of_ssn(ssn) else {
            return;
        };
        let run = self.runs[index];
        // The run has a byte at `ssn`.
        let before = ssn.since(run.ssn);
        let len = len.min(run.len - before);
        let after = run.len - before - len;
        debug_assert!(run.unit == 0 && run.dsn.add(u64::from(before)) == dsn);
        let declared = Run {
            dsn,
            ssn,
            len,
            unit: len,
        };
        if after > 0 {
            self.runs.insert(index + 1, run.without_first(before + len));
        }
        if before > 0 {
            self.runs[index].len = before;
            self.runs.insert(index + 1, declared);
            return;
        }
        self.runs[index] = declared;
        self.join_before(index);
    }

    /// Declares data at the start of the first stretch, from `from` on, that is reserved for later data. That moves up, and
    /// what there is no room for any more loses its place. Where, and how many of the `len` bytes; `None`: there is no such
    /// stretch.
    pub(crate) fn displace(&mut self, from: Ssn, dsn: Dsn, len: u32) -> Option<(Ssn, u32)> {
        let first = self.runs.partition_point(|run| run.ssn.before(from));
        let later = |run: &Run| run.unit == 0 && run.dsn.after(dsn);
        let index = first + self.runs.iter().skip(first).position(later)?;
        let run = self.runs[index];
        let len = len.min(run.len);
        let unit = len;
        let declared = Run {
            dsn,
            len,
            unit,
            ..run
        };
        self.inversions -= self.inverted_before(index) + self.inverted_before(index + 1);
        self.runs[index] = declared;
        if len < run.len {
            let rest = Run {
                ssn: run.ssn.add(len),
                len: run.len - len,
                ..run
            };
            self.runs.insert(index + 1, rest);
            self.inversions += self.inverted_before(index + 2);
        }
        self.inversions += self.inverted_before(index) + self.inverted_before(index + 1);
        self.join_before(index);
        Some((run.ssn, len))
    }

    /// Makes the run part of the one before it, if that takes it.
    fn join_before(&mut self, index: usize) {
        let run = self.runs[index];
        if index > 0 && self.runs[index - 1].takes(&run) {
            self.runs[index - 1].len += run.len;
            self.runs.remove(index);
        }
    }

    /// Adds a mapping that the peer declared: anywhere, and possibly known in part. `grows`: more room may be made.
    ///
    /// # Errors
    /// When known bytes would get another DSN, or there is no room.
    pub(crate) fn insert(
        &mut self,
        dsn: Dsn,
        ssn: Ssn,
        len: u32,
        grows: bool,
    ) -> Result<(), Refused> {
        let end = ssn.add(len);
        let unit = 0;
        // The usual case: the next mapping behind all others.
        let last = self.runs.back();
        if last.is_none_or(|last| !last.ssn_end().after(ssn)) {
            let run = Run {
                dsn,
                ssn,
                len,
                unit,
            };
            if !last.is_some_and(|last| last.takes(&run)) && !grows && self.is_full() {
                return Err(Refused::Full);
            }
            self.push_back(run);
            return Ok(());
        }
        let mut at = ssn;
        let mut index = self.runs.partition_point(|run| !run.ssn_end().after(ssn));
        while at.before(end) {
            let dsn_at = dsn.add(u64::from(at.since(ssn)));
            match self.runs.get(index).copied() {
                Some(run) if !run.ssn.after(at) => {
                    if run.dsn.add(u64::from(at.since(run.ssn))) != dsn_at {
                        return Err(Refused::Contradiction);
                    }
                    at = run.ssn_end().min(end);
                    index += 1;
                }
                next => {
                    let stop = next.map_or(end, |run| run.ssn.min(end));
                    let piece = Run {
                        dsn: dsn_at,
                        ssn: at,
                        len: stop.since(at),
                        unit,
                    };
                    index = self.insert_at(index, piece, grows)?;
                    at = stop;
                }
            }
        }
        Ok(())
    }

    /// The mapping that holds this data, the latest one when it was sent more than once.
    pub(crate) fn by_dsn(&self, dsn: Dsn) -> Option<Mapping> {
        let holds = |run: &Run| !dsn.before(run.dsn) && dsn.before(run.dsn_end());
        let run = if self.inversions == 0 {
            let index = self.runs.partition_point(|run| !run.dsn_end().after(dsn));
            self.runs.get(index).filter(|run| holds(run))
        } else {
            self.runs.iter().rev().find(|run| holds(run))
        }?;
        Some(run.mapping_at(offset(dsn, run.dsn)))
    }

    /// Where the next stretch of data behind `dsn` starts that this lane holds.
    pub(crate) fn next_dsn(&self, dsn: Dsn) -> Option<Dsn> {
        if self.inversions == 0 {
            let index = self.runs.partition_point(|run| !run.dsn.after(dsn));
            return self.runs.get(index).map(|run| run.dsn);
        }
        let behind = self
            .runs
            .iter()
            .map(|run| run.dsn)
            .filter(|start| start.after(dsn));
        behind.reduce(Dsn::min)
    }

    /// The data at this place in the subflow, and how many bytes from there on are contiguous.
    pub(crate) fn by_ssn(&self, ssn: Ssn) -> Option<(Dsn, u32)> {
        let run = self.runs.get(self.index_of_ssn(ssn)?)?;
        let offset = ssn.since(run.ssn);
        Some((run.dsn.add(u64::from(offset)), run.len - offset))
    }

    /// Like [`by_ssn`](Self::by_ssn), looking also at what was let go last.
    pub(crate) fn by_ssn_late(&self, ssn: Ssn) -> Option<(Dsn, u32)> {
        self.by_ssn(ssn).or_else(|| {
            let run = self.recent;
            let inside = !ssn.before(run.ssn) && ssn.before(run.ssn_end());
            let offset = ssn.since(run.ssn);
            inside.then(|| (run.dsn.add(u64::from(offset)), run.len - offset))
        })
    }

    /// Calls `each` with every stretch of the subflow, as (SSN, DSN, length), that carries data of
    /// `[from, to)`, in subflow order.
    pub(crate) fn for_each_in(&self, from: Dsn, to: Dsn, mut each: impl FnMut(Ssn, Dsn, u32)) {
        let first = if self.inversions == 0 {
            self.runs.partition_point(|run| !run.dsn_end().after(from))
        } else {
            0
        };
        for run in self.runs.iter().skip(first) {
            let start = run.dsn.max(from);
            let end = run.dsn_end().min(to);
            if start.before(end) {
                each(
                    run.ssn.add(offset(start, run.dsn)),
                    start,
                    offset(end, start),
                );
            } else if self.inversions == 0 && !run.dsn.before(to) {
                break;
            }
        }
    }

    /// The first stretch, as (SSN, DSN, length).
    pub(crate) fn front(&self) -> Option<(Ssn, Dsn, u32)> {
        self.runs.front().map(|run| (run.ssn, run.dsn, run.len))
    }

    /// The first mapping, in subflow order, that holds this data at `from` or behind.
    pub(crate) fn by_dsn_from(&self, dsn: Dsn, from: Ssn) -> Option<Mapping> {
        if self.inversions == 0 {
            let mapping = self.by_dsn(dsn)?;
            let ssn = mapping.ssn.add(offset(dsn, mapping.dsn));
            return (!ssn.before(from)).then_some(mapping);
        }
        let first = self.runs.partition_point(|run| !run.ssn_end().after(from));
        self.runs.iter().skip(first).find_map(|run| {
            let inside = !dsn.before(run.dsn) && dsn.before(run.dsn_end());
            let at = offset(dsn, run.dsn);
            (inside && !run.ssn.add(at).before(from)).then(|| run.mapping_at(at))
        })
    }

    /// Whether this data stands in the subflow before `end`, once at least.
    pub(crate) fn has_before(&self, dsn: Dsn, end: Ssn) -> bool {
        self.front()
            .and_then(|(first, ..)| self.by_dsn_from(dsn, first))
            .is_some_and(|mapping| mapping.ssn.add(offset(dsn, mapping.dsn)).before(end))
    }

    /// The mapping that holds this number of the subflow.
    pub(crate) fn mapping_by_ssn(&self, ssn: Ssn) -> Option<Mapping> {
        let run = self.runs.get(self.index_of_ssn(ssn)?)?;
        Some(run.mapping_at(ssn.since(run.ssn)))
    }

    /// Lets go of the first `count` bytes of the front run.
    pub(crate) fn advance_front(&mut self, count: u32) {
        let Some(front) = self.runs.front().copied() else {
            return;
        };
        if count >= front.len {
            self.remember(front);
            self.pop_front();
            return;
        }
        self.remember(Run {
            len: count,
            ..front
        });
        self.runs[0] = front.without_first(count);
    }

    /// Lets go of mappings that are acknowledged at both levels, whole ones only, from the front on
    /// (RFC 8684 section 3.3.6: data is kept until both).
    pub(crate) fn release(&mut self, acked: Ssn, data_acked: Dsn) {
        while let Some(front) = self.runs.front().copied() {
            if !front.ssn_end().after(acked) && !front.dsn_end().after(data_acked) {
                self.remember(front);
                self.pop_front();
                continue;
            }
            if acked.after(front.ssn) && data_acked.after(front.dsn) && front.unit != 0 {
                let both = acked.since(front.ssn).min(offset(data_acked, front.dsn));
                let whole = both - both % front.unit;
                if whole > 0 && whole < front.len {
                    self.remember(Run {
                        len: whole,
                        ..front
                    });
                    self.runs[0] = front.without_first(whole);
                }
            }
            break;
        }
    }

    /// Behind the last number held.
    pub(crate) fn end(&self) -> Option<Ssn> {
        self.runs.back().map(Run::ssn_end)
    }

    /// Runs held.
    pub(crate) fn len(&self) -> usize {
        self.runs.len()
    }

    /// Forgets everything, and the memory with it.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Every run, for checks.
    #[cfg(test)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Run> {
        self.runs.iter()
    }

    fn index_of_ssn(&self, ssn: Ssn) -> Option<usize> {
        let index = self.runs.partition_point(|run| !run.ssn_end().after(ssn));
        self.runs
            .get(index)
            .filter(|run| !run.ssn.after(ssn))
            .map(|_| index)
    }

    fn push_back(&mut self, run: Run) {
        match self.runs.back_mut() {
            Some(last) if last.takes(&run) => last.len += run.len,
            Some(last) => {
                self.inversions += u32::from(run.dsn.before(last.dsn_end()));
                self.runs.push_back(run);
            }
            None => {
                self.reserve_first();
                self.runs.push_back(run);
            }
        }
    }

    /// Inserts or merges; the index behind the piece.
    fn insert_at(&mut self, index: usize, piece: Run, grows: bool) -> Result<usize, Refused> {
        if index > 0 && self.runs[index - 1].takes(&piece) {
            self.inversions -= self.inverted_before(index);
            self.runs[index - 1].len += piece.len;
            self.inversions += self.inverted_before(index);
            if let Some(next) = self.runs.get(index).copied()
                && self.runs[index - 1].takes(&next)
            {
                self.runs[index - 1].len += next.len;
                self.runs.remove(index);
                // The neighbour that was swallowed has been looked at as far as it overlaps: the
                // caller stops at its start and finds it again by the merged run.
                return Ok(index - 1);
            }
            return Ok(index);
        }
        if let Some(next) = self.runs.get(index).copied()
            && piece.takes(&next)
        {
            self.inversions -= self.inverted_before(index);
            self.runs[index] = Run {
                len: piece.len + next.len,
                ..piece
            };
            self.inversions += self.inverted_before(index);
            return Ok(index);
        }
        if !grows && self.is_full() {
            return Err(Refused::Full);
        }
        self.inversions -= self.inverted_before(index);
        self.reserve_first();
        self.runs.insert(index, piece);
        self.inversions += self.inverted_before(index) + self.inverted_before(index + 1);
        Ok(index + 1)
    }

    /// 1 when the run at `index` breaks the order with the one before it.
    fn inverted_before(&self, index: usize) -> u32 {
        let Some(previous) = index.checked_sub(1).and_then(|i| self.runs.get(i)) else {
            return 0;
        };
        u32::from(
            self.runs
                .get(index)
                .is_some_and(|run| run.dsn.before(previous.dsn_end())),
        )
    }

    fn pop_front(&mut self) {
        self.inversions -= self.inverted_before(1);
        self.runs.pop_front();
    }

    fn remember(&mut self, run: Run) {
        let recent = self.recent;
        let goes_on =
            recent.len > 0 && recent.dsn_end().0 == run.dsn.0 && recent.ssn_end() == run.ssn;
        self.recent = if goes_on && recent.len + run.len <= MAX_RUN {
            Run {
                len: recent.len + run.len,
                ..recent
            }
        } else {
            run
        };
    }
}

/// Distance between two DSNs inside one run.
#[allow(
    clippy::cast_possible_truncation,
    reason = "a run is at most MAX_RUN long"
)]
const fn offset(dsn: Dsn, base: Dsn) -> u32 {
    dsn.since(base) as u32
}

//! Target `lane`: the D-tree against the simplest thing that does the same, a list of mappings in
//! subflow order that is walked from its start for every question.
//!
//! The numbers of the model count from 0 and never wrap; the lane's start right before the wrap of
//! both spaces. What callers promise is kept: appended numbers lie behind all others, a mapping is
//! declared inside what was reserved, no more is let go at the front than the front run holds.

use flexcp_translator::internals::{Lane, Mapping};
use flexcp_wire::{Dsn, Ssn};

use crate::input::Input;

/// Operations of one input at most.
const MAX_STEPS: usize = 400;
/// Stretches held at most: the model is slow.
const MAX_HELD: usize = 60;

/// A stretch of the subflow with one mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Entry {
    ssn: u64,
    dsn: u64,
    len: u64,
    declared: bool,
}

impl Entry {
    const fn ssn_end(&self) -> u64 {
        self.ssn + self.len
    }

    const fn dsn_end(&self) -> u64 {
        self.dsn + self.len
    }

    const fn holds_dsn(&self, dsn: u64) -> bool {
        self.dsn <= dsn && dsn < self.dsn_end()
    }

    /// Whether `next` goes on where this one ends, in both spaces.
    const fn goes_on_with(&self, next: &Self) -> bool {
        self.ssn_end() == next.ssn && self.dsn_end() == next.dsn
    }
}

/// The list.
#[derive(Default, Debug)]
struct Model {
    /// In subflow order. Stretches without bounds that go on in both spaces are one.
    entries: Vec<Entry>,
    /// What was let go last.
    recent: Option<Entry>,
}

impl Model {
    fn push(&mut self, entry: Entry) {
        match self.entries.last_mut() {
            Some(last) if !last.declared && !entry.declared && last.goes_on_with(&entry) => {
                last.len += entry.len;
            }
            _ => self.entries.push(entry),
        }
    }

    fn end(&self) -> u64 {
        self.entries.last().map_or(0, Entry::ssn_end)
    }

    /// The place of the entry that holds this number.
    fn at_ssn(&self, ssn: u64) -> Option<usize> {
        self.entries
            .iter()
            .position(|entry| entry.ssn <= ssn && ssn < entry.ssn_end())
    }

    /// What the look-ups give for the byte `ssn` of an entry: declared bounds, or the rest.
    fn mapping(&self, index: usize, ssn: u64) -> Entry {
        let entry = self.entries[index];
        let into = if entry.declared { 0 } else { ssn - entry.ssn };
        Entry {
            ssn: entry.ssn + into,
            dsn: entry.dsn + into,
            len: entry.len - into,
            ..entry
        }
    }

    fn by_dsn(&self, dsn: u64) -> Option<Entry> {
        let index = self
            .entries
            .iter()
            .rposition(|entry| entry.holds_dsn(dsn))?;
        let entry = self.entries[index];
        Some(self.mapping(index, entry.ssn + (dsn - entry.dsn)))
    }

    fn by_dsn_from(&self, dsn: u64, from: u64) -> Option<Entry> {
        self.entries.iter().enumerate().find_map(|(index, entry)| {
            let ssn = entry.ssn + dsn.checked_sub(entry.dsn)?;
            (entry.holds_dsn(dsn) && ssn >= from).then(|| self.mapping(index, ssn))
        })
    }

    /// Declares part of what is reserved.
    fn declare(&mut self, index: usize, ssn: u64, len: u64) {
        let old = self.entries.remove(index);
        let before = ssn - old.ssn;
        let after = old.len - before - len;
        let part = |from: u64, len: u64, declared| Entry {
            ssn: old.ssn + from,
            dsn: old.dsn + from,
            len,
            declared,
        };
        let parts = [
            part(0, before, false),
            part(before, len, true),
            part(before + len, after, false),
        ];
        let parts = parts.into_iter().filter(|part| part.len > 0);
        self.entries.splice(index..index, parts);
    }

    /// Takes a mapping of the peer's, up to where it contradicts a known one.
    fn insert(&mut self, new: Entry) -> bool {
        let mut at = new.ssn;
        while at < new.ssn_end() {
            let dsn = new.dsn + (at - new.ssn);
            if let Some(index) = self.at_ssn(at) {
                let known = self.entries[index];
                if known.dsn + (at - known.ssn) != dsn {
                    self.join();
                    return false;
                }
                at = known.ssn_end();
                continue;
            }
            let next = self.entries.iter().position(|entry| entry.ssn > at);
            let stop = next
                .map_or(u64::MAX, |i| self.entries[i].ssn)
                .min(new.ssn_end());
            let piece = Entry {
                ssn: at,
                dsn,
                len: stop - at,
                declared: false,
            };
            self.entries
                .insert(next.unwrap_or(self.entries.len()), piece);
            at = stop;
        }
        self.join();
        true
    }

    /// Joins stretches without bounds that go on in both spaces.
    fn join(&mut self) {
        let entries = std::mem::take(&mut self.entries);
        entries.into_iter().for_each(|entry| self.push(entry));
    }

    fn let_go(&mut self, count: u64) {
        let front = &mut self.entries[0];
        let gone = Entry {
            len: count,
            ..*front
        };
        if count == front.len {
            self.entries.remove(0);
        } else {
            front.ssn += count;
            front.dsn += count;
            front.len -= count;
        }
        self.recent = match self.recent {
            Some(recent) if recent.goes_on_with(&gone) => Some(Entry {
                len: recent.len + gone.len,
                ..recent
            }),
            _ => Some(gone),
        };
    }

    fn release(&mut self, acked: u64, data_acked: u64) {
        while let Some(&front) = self.entries.first() {
            if front.ssn_end() > acked || front.dsn_end() > data_acked {
                break;
            }
            self.let_go(front.len);
        }
    }

    /// Data of `[from, to)`, in subflow order, joined where it goes on.
    fn in_range(&self, from: u64, to: u64) -> Vec<Entry> {
        let mut found = Vec::new();
        for entry in &self.entries {
            let (start, end) = (entry.dsn.max(from), entry.dsn_end().min(to));
            if start < end {
                let part = Entry {
                    ssn: entry.ssn + (start - entry.dsn),
                    dsn: start,
                    len: end - start,
                    declared: false,
                };
                add_joined(&mut found, part);
            }
        }
        found
    }
}

fn add_joined(list: &mut Vec<Entry>, part: Entry) {
    match list.last_mut() {
        Some(last) if last.goes_on_with(&part) => last.len += part.len,
        _ => list.push(part),
    }
}

/// Both, side by side.
struct Pair {
    lane: Lane,
    model: Model,
    /// Where the lane's numbers start.
    ssn: Ssn,
    dsn: Dsn,
    /// The next data to be appended.
    next_dsn: u64,
    /// Numbers are never given twice, also when everything has been let go.
    next_ssn: u64,
    /// What the lane has let go of.
    low_ssn: u64,
}

/// Target.
pub fn target(data: &[u8]) {
    let mut input = Input::new(data);
    let form = input.u8();
    let mut pair = Pair {
        lane: Lane::default(),
        model: Model::default(),
        ssn: Ssn(if form & 2 == 0 { 5 } else { u32::MAX - 300 }),
        dsn: Dsn(if form & 4 == 0 { 9 } else { u64::MAX - 500 }),
        next_dsn: 2000,
        next_ssn: 0,
        low_ssn: 0,
    };
    for _ in 0..MAX_STEPS {
        if input.is_empty() {
            break;
        }
        if form & 1 == 0 {
            pair.down(&mut input);
        } else {
            pair.up(&mut input);
        }
        pair.compare(&mut input);
    }
}

impl Pair {
    /// A length; a few of them over and over, so that runs merge.
    fn len(input: &mut Input<'_>) -> u64 {
        match input.u8() {
            0..=127 => 10,
            128..=191 => 7,
            len => u64::from(len % 40) + 1,
        }
    }

    /// An operation on a lane that FlexCP fills.
    fn down(&mut self, input: &mut Input<'_>) {
        let kind = input.u8();
        let full = self.model.entries.len() >= MAX_HELD;
        match kind {
            0..=119 if !full => {
                // New data; now and then some is skipped, or a number is.
                self.next_dsn += u64::from(kind % 8 == 7) * Self::len(input);
                self.next_ssn += u64::from(kind % 16 == 6);
                let (dsn, len) = (self.next_dsn, Self::len(input));
                self.append(dsn, len);
                self.next_dsn += len;
            }
            120..=149 if !full => {
                // Data that went down before, under a fresh number.
                let back = u64::from(input.u8()).min(self.next_dsn);
                let len = Self::len(input).min(back.max(1));
                self.append(self.next_dsn - back, len);
            }
            150..=179 if !full => {
                let (dsn, len) = (self.next_dsn, Self::len(input) * 3);
                self.lane
                    .reserve(self.dsn(dsn), self.ssn(self.next_ssn), narrow(len));
                self.model.push(Entry {
                    ssn: self.next_ssn,
                    dsn,
                    len,
                    declared: false,
                });
                self.next_ssn += len;
                self.next_dsn += len;
            }
            180..=219 => self.declare(input),
            220..=253 => {
                let front = self.model.entries.first().copied();
                let (ssn, dsn) = front.map_or((0, 0), |front| (front.ssn, front.dsn));
                let acked = (ssn + u64::from(input.u8())).min(self.next_ssn);
                let data_acked = (dsn + u64::from(input.u8())).saturating_sub(30);
                self.lane.release(self.ssn(acked), self.dsn(data_acked));
                self.model.release(acked, data_acked);
                self.low_ssn = self.low_ssn.max(acked);
            }
            254 => {
                self.lane.clear();
                self.model = Model::default();
            }
            _ => {}
        }
    }

    fn append(&mut self, dsn: u64, len: u64) {
        let ssn = self.next_ssn;
        self.lane.append(self.dsn(dsn), self.ssn(ssn), narrow(len));
        self.model.push(Entry {
            ssn,
            dsn,
            len,
            declared: true,
        });
        self.next_ssn += len;
    }

    fn declare(&mut self, input: &mut Input<'_>) {
        let reserved: Vec<usize> = (0..self.model.entries.len())
            .filter(|&index| !self.model.entries[index].declared)
            .collect();
        if reserved.is_empty() {
            return;
        }
        let index = reserved[input.below(reserved.len())];
        let entry = self.model.entries[index];
        let before = u64::from(input.u8()) % entry.len;
        let len = Self::len(input).min(entry.len - before);
        let (ssn, dsn) = (entry.ssn + before, entry.dsn + before);
        self.lane.declare(self.dsn(dsn), self.ssn(ssn), narrow(len));
        self.model.declare(index, ssn, len);
    }

    /// An operation on a lane that the peer fills.
    fn up(&mut self, input: &mut Input<'_>) {
        match input.u8() {
            kind @ 0..=179 if self.model.entries.len() < MAX_HELD => {
                // Three streams that contradict each other where they meet.
                let base = [2000, 2000, 2000, 2000, 900, 5000][usize::from(kind % 6)];
                let ssn = self.low_ssn + u64::from(input.u8());
                let entry = Entry {
                    ssn,
                    dsn: base + ssn,
                    len: Self::len(input),
                    declared: false,
                };
                let taken =
                    self.lane
                        .insert(self.dsn(entry.dsn), self.ssn(entry.ssn), narrow(entry.len));
                assert_eq!(taken, self.model.insert(entry), "insert {entry:?}");
            }
            180..=249 => {
                let Some((_, _, len)) = self.lane.front() else {
                    return;
                };
                let len = u64::from(len);
                let count = match input.u8() {
                    0..=99 => len,
                    part => 1 + u64::from(part) % len,
                };
                self.lane.advance_front(narrow(count));
                // The model's stretches never end inside a run of the lane's.
                self.model.let_go(count);
                self.low_ssn = self.model.recent.map_or(0, |recent| recent.ssn_end());
            }
            250 => {
                self.lane.clear();
                self.model = Model::default();
            }
            _ => {}
        }
    }

    /// Asks both everything that there is to ask: about every edge, and about places that the input
    /// names.
    fn compare(&self, input: &mut Input<'_>) {
        assert_eq!(self.lane.is_empty(), self.model.entries.is_empty());
        assert!(
            self.lane.len() <= self.model.entries.len(),
            "more runs than mappings"
        );
        let end = (!self.model.entries.is_empty()).then(|| self.ssn(self.model.end()));
        assert_eq!(self.lane.end(), end);
        self.compare_front();
        let place = self.model.entries.get(input.below(MAX_HELD)).copied();
        let place = place.or_else(|| self.model.entries.last().copied());
        let (ssn, dsn, len) = place.map_or((0, 2000, 1), |e| (e.ssn, e.dsn, e.len));
        let into = u64::from(input.u8()) % len;
        for at in [
            ssn,
            ssn + into,
            ssn + len - 1,
            ssn + len,
            ssn.saturating_sub(1),
        ] {
            self.compare_ssn(at);
        }
        let far = u64::from(input.u8()) * 4;
        for at in [
            dsn,
            dsn + into,
            dsn + len - 1,
            dsn + len,
            dsn.saturating_sub(1),
            dsn + far,
        ] {
            self.compare_dsn(at);
            for from in [0, ssn + into, ssn + len, self.model.end()] {
                let found = self
                    .lane
                    .by_dsn_from(self.dsn(at), self.ssn(from.max(self.low_ssn)));
                let known = self.model.by_dsn_from(at, from.max(self.low_ssn));
                assert_eq!(
                    found,
                    known.map(|e| self.real(e)),
                    "by_dsn_from({at}, {from})"
                );
            }
        }
        for (from, to) in [
            (dsn, dsn + len),
            (dsn + into, dsn + far),
            (0, self.next_dsn + 9000),
        ] {
            let mut found = Vec::new();
            self.lane
                .for_each_in(self.dsn(from), self.dsn(to.max(from)), |ssn, dsn, len| {
                    let (ssn, dsn) = (u64::from(ssn.since(self.ssn)), dsn.since(self.dsn));
                    let len = u64::from(len);
                    add_joined(
                        &mut found,
                        Entry {
                            ssn,
                            dsn,
                            len,
                            declared: false,
                        },
                    );
                });
            assert_eq!(
                found,
                self.model.in_range(from, to),
                "for_each_in({from}, {to})"
            );
        }
    }

    fn compare_front(&self) {
        let Some((ssn, dsn, len)) = self.lane.front() else {
            assert!(self.model.entries.is_empty());
            return;
        };
        let front = self.model.entries[0];
        assert_eq!((ssn, dsn), (self.ssn(front.ssn), self.dsn(front.dsn)));
        assert!(
            u64::from(len) >= front.len,
            "the front run is shorter than its first mapping"
        );
        self.assert_contiguous(front.ssn, front.dsn, len.into());
    }

    fn compare_ssn(&self, at: u64) {
        let index = self.model.at_ssn(at);
        let ssn = self.ssn(at);
        let mapping = index.map(|index| self.real(self.model.mapping(index, at)));
        assert_eq!(
            self.lane.mapping_by_ssn(ssn),
            mapping,
            "mapping_by_ssn({at})"
        );
        match (self.lane.by_ssn(ssn), index) {
            (None, None) => {
                let known = self
                    .model
                    .recent
                    .filter(|e| e.ssn <= at && at < e.ssn_end());
                let known =
                    known.map(|e| (self.dsn(e.dsn + (at - e.ssn)), narrow(e.ssn_end() - at)));
                assert_eq!(self.lane.by_ssn_late(ssn), known, "by_ssn_late({at})");
            }
            (Some((dsn, rest)), Some(index)) => {
                let entry = self.model.entries[index];
                let data = entry.dsn + (at - entry.ssn);
                assert_eq!(dsn, self.dsn(data), "by_ssn({at})");
                assert!(
                    u64::from(rest) >= entry.ssn_end() - at,
                    "by_ssn({at}) ends early"
                );
                self.assert_contiguous(at, data, rest.into());
                assert_eq!(self.lane.by_ssn_late(ssn), Some((dsn, rest)));
            }
            (found, known) => panic!("by_ssn({at}) is {found:?}, not {known:?}"),
        }
    }

    fn compare_dsn(&self, at: u64) {
        let dsn = self.dsn(at);
        let known = self.model.by_dsn(at);
        assert_eq!(
            self.lane.by_dsn(dsn),
            known.map(|e| self.real(e)),
            "by_dsn({at})"
        );
        let next = self.lane.next_dsn(dsn).map(|next| next.since(self.dsn));
        let starts = self
            .model
            .entries
            .iter()
            .map(|e| e.dsn)
            .filter(|&start| start > at);
        if known.is_none() {
            assert_eq!(next, starts.min(), "next_dsn({at})");
        } else if let Some(next) = next {
            // Inside a run only the next run counts.
            let is_start = self.model.entries.iter().any(|e| e.dsn == next);
            assert!(next > at && is_start, "next_dsn({at}) is {next}");
        }
    }

    /// `len` bytes from here on are known and go on in both spaces.
    fn assert_contiguous(&self, ssn: u64, dsn: u64, len: u64) {
        let mut done = 0;
        while done < len {
            let index = self
                .model
                .at_ssn(ssn + done)
                .expect("a byte that nobody mapped");
            let entry = self.model.entries[index];
            assert_eq!(
                entry.dsn + (ssn + done - entry.ssn),
                dsn + done,
                "not contiguous"
            );
            done = entry.ssn_end() - ssn;
        }
    }

    fn real(&self, entry: Entry) -> Mapping {
        Mapping {
            dsn: self.dsn(entry.dsn),
            ssn: self.ssn(entry.ssn),
            len: narrow(entry.len),
            declared: entry.declared,
        }
    }

    fn ssn(&self, number: u64) -> Ssn {
        self.ssn.add(narrow(number))
    }

    const fn dsn(&self, number: u64) -> Dsn {
        self.dsn.add(number)
    }
}

fn narrow(number: u64) -> u32 {
    u32::try_from(number).expect("a short test")
}

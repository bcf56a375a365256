//! A lane on its way to a fast path and back. Downwards it is one stretch of both spaces that grows at its end and
//! shrinks at its front; upwards the subflow has no hole, but its runs may stand anywhere in the data.

use core::fmt;

use super::{Dsn, Lane, MAX_RUN, Run, Ssn};

impl Lane {
    /// The first run's place, if all runs are declared and stand one behind the other in both spaces.
    pub(crate) fn declared_stretch(&self) -> Option<(Ssn, Dsn)> {
        let front = self.runs.front()?;
        let (mut ssn, mut dsn) = (front.ssn, front.dsn);
        for run in &self.runs {
            if run.unit == 0 || run.ssn != ssn || run.dsn.0 != dsn.0 {
                return None;
            }
            (ssn, dsn) = (run.ssn_end(), run.dsn_end());
        }
        Some((front.ssn, front.dsn))
    }

    /// Where the data of the last run ends.
    pub(crate) fn dsn_end(&self) -> Option<Dsn> {
        self.runs.back().map(Run::dsn_end)
    }

    /// Adds `count` mappings of `len` bytes each behind all others.
    pub(crate) fn append_equal(&mut self, dsn: Dsn, ssn: Ssn, len: u32, count: u32) {
        if count == 0 {
            return;
        }
        // The first may end a run of longer ones; the others are the start of another, then.
        self.append(dsn, ssn, len);
        let mut at = len;
        let mut rest = (count - 1) * len;
        while rest > 0 {
            let part = rest.min(MAX_RUN - MAX_RUN % len);
            self.push_back(Run {
                dsn: dsn.add(u64::from(at)),
                ssn: ssn.add(at),
                len: part,
                unit: len,
            });
            at += part;
            rest -= part;
        }
    }

    /// Lets go of everything, as acknowledged.
    pub(crate) fn let_go(&mut self) {
        while let Some(front) = self.runs.front().copied() {
            self.remember(front);
            self.pop_front();
        }
    }

    /// Notes a stretch up to `dsn` and `ssn` of which nothing is left by now.
    pub(crate) fn pass(&mut self, dsn: Dsn, ssn: Ssn, len: u64) {
        if len == 0 {
            return;
        }
        let len = u32::try_from(len).map_or(MAX_RUN, |len| len.min(MAX_RUN));
        self.remember(Run {
            dsn: dsn.sub(u64::from(len)),
            ssn: ssn.sub(len),
            len,
            unit: 0,
        });
    }

    /// How many of `count` mappings of `len` bytes from `dsn` on lie before `acked`.
    pub(crate) fn whole_before(dsn: Dsn, len: u32, count: u32, acked: Dsn) -> u32 {
        if len == 0 || !acked.after(dsn) {
            return 0;
        }
        let whole = acked.since(dsn) / u64::from(len);
        u32::try_from(whole).map_or(count, |whole| whole.min(count))
    }

    /// The peer's data as (DSN, length), run by run, if that is all of `[from, to)`, and behind it nothing but the rest
    /// of the last run.
    pub(crate) fn received(&self, from: Ssn, to: Ssn) -> Option<impl Iterator<Item = (Dsn, u32)>> {
        let mut at = from;
        for run in &self.runs {
            if run.ssn != at {
                return None;
            }
            at = run.ssn_end();
        }
        let last = self.runs.back().map_or(from, |run| run.ssn);
        let all = !to.after(at) && !last.after(to);
        all.then(|| self.runs.iter().map(|run| (run.dsn, run.len)))
    }

    /// The data that was let go last, as (DSN, length), if it stood right before this number.
    pub(crate) fn recent_before(&self, ssn: Ssn) -> Option<(Dsn, u32)> {
        let recent = self.recent;
        (recent.len > 0 && recent.ssn_end() == ssn).then_some((recent.dsn, recent.len))
    }

    /// Holds these runs of the peer's data, from `ssn` on, and nothing else.
    pub(crate) fn set_received(&mut self, mut ssn: Ssn, runs: impl Iterator<Item = (Dsn, u32)>) {
        self.runs.clear();
        self.inversions = 0;
        for (dsn, len) in runs {
            let run = Run {
                dsn,
                ssn,
                len,
                unit: 0,
            };
            self.push_back(run);
            ssn = run.ssn_end();
        }
    }

    /// The data that was let go last: `len` bytes from `dsn` on that stood right before this number.
    pub(crate) const fn set_recent_before(&mut self, ssn: Ssn, dsn: Dsn, len: u32) {
        self.recent = Run {
            dsn,
            ssn: ssn.sub(len),
            len,
            unit: 0,
        };
    }
}

/// Shows the mappings that are held, the same for equal ones whatever runs they happen to stand in.
impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut list = f.debug_list();
        // Where it starts, the length of each mapping (0: not declared), and the bytes in all.
        let mut known: Option<(Run, u32)> = None;
        for run in &self.runs {
            let tail = run.len.checked_rem(run.unit).unwrap_or(0);
            let parts = [(run.unit, run.len - tail), (tail, tail)];
            let mut rest = *run;
            for (unit, len) in parts.into_iter().filter(|(_, len)| *len > 0) {
                let part = Run { len, unit, ..rest };
                rest = rest.without_first(len);
                match &mut known {
                    Some((known, bytes))
                        if known.unit == unit
                            && known.dsn.add(u64::from(*bytes)).0 == part.dsn.0
                            && known.ssn.add(*bytes) == part.ssn =>
                    {
                        *bytes += len;
                    }
                    _ => {
                        if let Some((run, bytes)) = known.replace((part, len)) {
                            list.entry(&(run.dsn, run.ssn, run.unit, bytes));
                        }
                    }
                }
            }
        }
        if let Some((run, bytes)) = known {
            list.entry(&(run.dsn, run.ssn, run.unit, bytes));
        }
        list.finish()
    }
}

//! The share of one worker: which tokens and which ports name it.

use core::ops::RangeInclusive;

use crate::rules::of_token;

/// Which of several workers somebody is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Share {
    /// Its number, from 0.
    pub worker: u16,
    /// How many workers there are.
    pub workers: u16,
}

impl Default for Share {
    /// The only one.
    fn default() -> Self {
        Self {
            worker: 0,
            workers: 1,
        }
    }
}

impl Share {
    /// Whether connections with this token belong here.
    #[must_use]
    pub fn has_token(self, token: u32) -> bool {
        of_token(token, self.workers) == self.worker
    }

    /// The port for the `n`-th of those in `ports` that name this worker, counted round; `None`: none does.
    #[must_use]
    pub fn port(self, ports: &RangeInclusive<u16>, n: u32) -> Option<u16> {
        let workers = self.workers.max(1);
        let ahead = (self.worker + workers - ports.start() % workers) % workers;
        let first = ports.start().checked_add(ahead)?;
        let span = ports.end().checked_sub(first)?;
        let step = n % (u32::from(span / workers) + 1);
        Some(first + u16::try_from(step).ok()? * workers)
    }
}

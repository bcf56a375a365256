//! The choice: policies that order servers, and the hysteresis before one is left for another.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use crate::rate::Rate;
use crate::reason::{self, Cause, Reason};
use crate::table::{Reach, ServerRow, Table};
use crate::time::Time;

/// How servers are ordered.
pub trait Policy: fmt::Debug + Send {
    /// Its name, as the configuration has it.
    fn name(&self) -> &'static str;

    /// All servers of the table, the best first. Whether they can be reached does not matter here.
    fn rank(&self, table: &Table) -> Vec<usize>;

    /// Whether one is so much better than another that it is worth a switch.
    fn is_better(&self, candidate: &ServerRow, current: &ServerRow, margin: Margin) -> bool;

    /// What speaks for a server, in words, with the one that comes next.
    fn explain(&self, table: &Table, server: usize, next: Option<usize>) -> String;
}

/// By how much one has to be better than the other, in thousandths.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Margin(pub u32);

impl Margin {
    fn rate(self, candidate: Rate, current: Rate) -> bool {
        candidate > Rate(0) && candidate >= current.thousandths(1000 + self.0)
    }

    /// Delays that differ by no more than 2 ms are as good as equal.
    fn delay(self, candidate: Duration, current: Duration) -> bool {
        let gain = current.saturating_sub(candidate);
        gain > Duration::from_millis(2) && gain >= candidate * self.0 / 1000
    }
}

/// The largest `min(B_1 + ... + B_N, Bs)` first; where two are equal within a tolerance, the one with the smaller delay.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Throughput {
    /// Rates that differ by no more than so many thousandths of the larger one count as equal.
    pub tolerance: u32,
}

impl Default for Throughput {
    fn default() -> Self {
        Self { tolerance: 50 }
    }
}

impl Policy for Throughput {
    fn name(&self) -> &'static str {
        "throughput"
    }

    fn rank(&self, table: &Table) -> Vec<usize> {
        let rows = &table.servers;
        let mut by_rate: Vec<usize> = (0..rows.len()).collect();
        by_rate.sort_by_key(|&at| core::cmp::Reverse(rows[at].throughput()));
        grouped(
            &by_rate,
            |best, other| match (rows[best].throughput(), rows[other].throughput()) {
                (Some(best), Some(other)) => !best.differs(other, self.tolerance),
                (best, other) => best == other,
            },
            |at| rows[at].delay().unwrap_or(Duration::MAX),
        )
    }

    fn is_better(&self, candidate: &ServerRow, current: &ServerRow, margin: Margin) -> bool {
        match (candidate.throughput(), current.throughput()) {
            (Some(better), Some(rate)) if better.differs(rate, self.tolerance) => {
                margin.rate(better, rate)
            }
            (Some(_), None) => true,
            (None, Some(_)) => false,
            _ => is_nearer(candidate, current, margin),
        }
    }

    fn explain(&self, table: &Table, server: usize, next: Option<usize>) -> String {
        reason::by_rate(table, server, next, self.tolerance)
    }
}

/// The smallest delay first; where two are equal within 2 ms, the one with the larger bandwidth.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Latency;

impl Policy for Latency {
    fn name(&self) -> &'static str {
        "latency"
    }

    fn rank(&self, table: &Table) -> Vec<usize> {
        let rows = &table.servers;
        let delay = |at: usize| rows[at].delay().unwrap_or(Duration::MAX);
        let mut by_delay: Vec<usize> = (0..rows.len()).collect();
        by_delay.sort_by_key(|&at| delay(at));
        grouped(
            &by_delay,
            |best, other| delay(other).saturating_sub(delay(best)) <= Duration::from_millis(2),
            |at| core::cmp::Reverse(rows[at].throughput()),
        )
    }

    fn is_better(&self, candidate: &ServerRow, current: &ServerRow, margin: Margin) -> bool {
        is_nearer(candidate, current, margin)
    }

    fn explain(&self, table: &Table, server: usize, next: Option<usize>) -> String {
        reason::by_delay(table, server, next)
    }
}

/// The order of the configuration.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Fixed;

impl Policy for Fixed {
    fn name(&self) -> &'static str {
        "fixed"
    }

    fn rank(&self, table: &Table) -> Vec<usize> {
        (0..table.servers.len()).collect()
    }

    fn is_better(&self, _: &ServerRow, _: &ServerRow, _: Margin) -> bool {
        true
    }

    fn explain(&self, table: &Table, server: usize, next: Option<usize>) -> String {
        reason::by_order(table, server, next)
    }
}

fn is_nearer(candidate: &ServerRow, current: &ServerRow, margin: Margin) -> bool {
    match (candidate.delay(), current.delay()) {
        (Some(better), Some(delay)) => margin.delay(better, delay),
        (better, delay) => better.is_some() && delay.is_none(),
    }
}

/// Orders what is sorted by a first measure, and by a second one where the first says equal. Being equal within a tolerance is
/// not transitive, so that no comparison of two gives an order: the best that is left, and those equal to it, come next.
fn grouped<K: Ord>(
    sorted: &[usize],
    is_equal: impl Fn(usize, usize) -> bool,
    second: impl Fn(usize) -> K,
) -> Vec<usize> {
    let mut order = Vec::with_capacity(sorted.len());
    let mut left = sorted;
    while let Some(&best) = left.first() {
        let end = left.iter().take_while(|&&at| is_equal(best, at)).count();
        let (group, rest) = left.split_at(end.max(1));
        let begin = order.len();
        order.extend_from_slice(group);
        order[begin..].sort_by_key(|&at| second(at));
        left = rest;
    }
    order
}

/// A change of the server in use.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Switch {
    /// The one that was in use; `None` at the beginning.
    pub from: Option<usize>,
    /// The one that is.
    pub to: usize,
    /// Why.
    pub reason: Reason,
}

/// The server in use, and what has to happen for another to be used.
///
/// Another one has to be better by a margin, for a hold time without a break, and no switch follows another within a hold
/// time. A server that cannot be reached is left at once. Until all paths have been measured once the order of the
/// configuration holds; then the best is taken.
#[derive(Debug)]
pub struct Chooser {
    policy: Box<dyn Policy>,
    margin: Margin,
    hold: Duration,
    current: Option<usize>,
    /// Since when there is a better one.
    better: Option<Time>,
    /// A choice was made by measurement.
    is_settled: bool,
    order: Vec<usize>,
    cause: Cause,
    reason: Option<Reason>,
}

impl Chooser {
    /// By this policy.
    #[must_use]
    pub fn new(policy: Box<dyn Policy>, margin: Margin, hold: Duration) -> Self {
        Self {
            policy,
            margin,
            hold,
            current: None,
            better: None,
            is_settled: false,
            order: Vec::new(),
            cause: Cause::First,
            reason: None,
        }
    }

    /// All servers in the order in which they are to be tried: the one in use, the others by the policy, and last those that
    /// cannot be reached. Empty before the first [`update`](Self::update).
    #[must_use]
    pub fn order(&self) -> &[usize] {
        &self.order
    }

    /// Why the one in use is in use.
    #[must_use]
    pub const fn reason(&self) -> Option<&Reason> {
        self.reason.as_ref()
    }

    /// The policy's name.
    #[must_use]
    pub fn policy(&self) -> &'static str {
        self.policy.name()
    }

    /// When to call [`update`](Self::update) even if nothing new is known.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        Some(self.better? + self.hold)
    }

    /// Looks at what is known. Says so if another server is used from here on.
    pub fn update(&mut self, table: &Table, now: Time) -> Option<Switch> {
        let mut order = self.policy.rank(table);
        // Nothing has been compared yet: the operator's order is the best guess.
        if !table.is_complete && !self.is_settled {
            order.sort_unstable();
        }
        order.sort_by_key(|&at| table.servers[at].reach == Reach::No);
        let to = self.judge(table, &order, now)?;
        order.retain(|&at| at != to);
        order.insert(0, to);
        let from = self.current;
        if from != Some(to) {
            self.current = Some(to);
            self.better = None;
        }
        let next = order.get(1).copied();
        let next = next.filter(|&at| table.servers[at].reach != Reach::No);
        let reason = Reason {
            cause: self.cause,
            left: from.map(|at| table.servers[at].name.clone()),
            text: self.policy.explain(table, to, next),
        };
        self.order = order;
        if from == Some(to) {
            let left = self.reason.take().and_then(|reason| reason.left);
            self.reason = Some(Reason { left, ..reason });
            return None;
        }
        self.reason = Some(reason.clone());
        Some(Switch { from, to, reason })
    }

    /// Which one is to be used, when this is the policy's order.
    fn judge(&mut self, table: &Table, order: &[usize], now: Time) -> Option<usize> {
        let &best = order.first()?;
        let settles = table.is_complete && !self.is_settled;
        self.is_settled |= settles;
        let Some(current) = self.current.filter(|&at| at < table.servers.len()) else {
            self.cause = Cause::First;
            return Some(best);
        };
        if best == current {
            self.better = None;
            return Some(current);
        }
        let row = &table.servers[current];
        if row.reach == Reach::No {
            self.cause = Cause::Unreachable;
            return Some(best);
        }
        if settles {
            self.cause = Cause::Measured;
            return Some(best);
        }
        let mut before = order.iter().take_while(|&&at| at != current);
        let better = before.find(|&&at| {
            let candidate = &table.servers[at];
            self.policy.is_better(candidate, row, self.margin)
        });
        let Some(&better) = better else {
            self.better = None;
            return Some(current);
        };
        let since = *self.better.get_or_insert(now);
        // This counts from the last switch on at the earliest, so that no two switches come within a hold time.
        if now.since(since) < self.hold {
            return Some(current);
        }
        self.cause = Cause::Better(now.since(since));
        Some(better)
    }
}

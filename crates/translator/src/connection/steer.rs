//! A connection under its steering rule: new data goes down another path when the mode wants that, and the time since the
//! last move allows it.

use core::time::Duration;

use super::choice::PathView;
use super::{Connection, Context, choice};
use crate::cause::SubflowSwitch;
use crate::config::Settings;
use crate::handle::{INITIAL, SubflowIndex, SubflowSet};
use crate::steering::{Descriptor, Move, SteeredPath};
use crate::time::Instant;

/// How often a mode is asked at most. Both ways of handling packets come to the same answers, as this follows from the
/// packets' times alone.
const TICK: Duration = Duration::from_millis(100);

/// How long a path that was silent waits for the first packet that asks whether it works again; then twice as long each
/// time. A Linux client that uploads takes a path for stale only while nothing comes over it (docs/numbers.md).
const PROBE: Duration = Duration::from_secs(2);

/// How often [`PROBE`] doubles at most.
const MAX_DOUBLINGS: u8 = 3;

/// When a connection was steered last.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Steered {
    /// When its mode was asked.
    asked: Stamp,
    /// When it was moved, by its mode or because something spoke against a path; never: not yet.
    moved: Stamp,
    /// When paths that were silent were probed, or the first was found to be.
    probed: Stamp,
    /// Times that they were, in a row.
    probes: u8,
}

/// A time in steps of 2^10 microseconds, in little room: a difference is right up to 50 days. 0: never.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct Stamp(u32);

impl Stamp {
    #[allow(clippy::cast_possible_truncation, reason = "differences are taken")]
    fn new(now: Instant) -> Self {
        Self(((now.0 >> 10) as u32).max(1))
    }

    /// Whether so much time has passed since, or it never was.
    fn is_over(self, now: Instant, wait: Duration) -> bool {
        let passed = u64::from(Self::new(now).0.wrapping_sub(self.0)) << 10;
        self == Self::default() || Duration::from_micros(passed) >= wait
    }
}

impl Connection {
    /// From here on new data goes down `to`.
    pub(super) fn move_to(&mut self, ctx: &mut Context<'_>, to: SubflowIndex, why: SubflowSwitch) {
        self.mptcp.active = to;
        self.mptcp.steered.moved = Stamp::new(ctx.now);
        ctx.counters.decide(why);
    }

    /// Asks the mode, if it is time to and nothing else speaks against the active path.
    #[inline]
    pub(crate) fn steer(&mut self, ctx: &mut Context<'_>) {
        if !ctx.config.rules.is_empty() && self.mptcp.subflows.len() > 1 {
            self.steer_by_rule(ctx);
        }
    }

    /// A path has joined: the mode is asked whatever the time.
    pub(super) fn steer_at_once(&mut self, ctx: &mut Context<'_>) {
        self.mptcp.steered.asked = Stamp::default();
        self.steer(ctx);
    }

    fn steer_by_rule(&mut self, ctx: &mut Context<'_>) {
        if !self.mptcp.steered.asked.is_over(ctx.now, TICK) {
            return;
        }
        self.mptcp.steered.asked = Stamp::new(ctx.now);
        if !self.is_steered(ctx.config) {
            return;
        }
        self.probe_silent(ctx);
        if let Some(wanted) = self.wanted(ctx.now, ctx.config) {
            self.move_to(ctx, wanted.to, wanted.cause);
        }
    }

    /// Where its mode wants it, if it may go there now.
    pub(crate) fn wanted(&self, now: Instant, config: &Settings) -> Option<Move> {
        if config.rules.is_empty() || self.mptcp.subflows.len() < 2 {
            return None;
        }
        let rule = config.rules.of(&self.descriptor())?;
        let active = self.mptcp.active;
        let good = |standing| choice::against(standing).is_none();
        if !self.subflow(active).carries() || !good(self.standing(active)) {
            return None;
        }
        let mut others = [SteeredPath::default(); 8];
        let mut count = 0;
        for path in self.carrying(|_| true) {
            if good(path.standing) && !path.hole && path.index != active {
                others[count] = self.steered_path(config, path.index);
                count += 1;
            }
        }
        let others = &others[..count];
        let active = self.steered_path(config, active);
        let wanted = rule.mode.choose(&active, others)?;
        let wait = if wanted.back {
            rule.hold.max(rule.fail_back)
        } else {
            rule.hold
        };
        // A mode from outside may name what it was not given.
        let known = others.iter().any(|path| path.subflow == wanted.to);
        (known && self.mptcp.steered.moved.is_over(now, wait)).then_some(wanted)
    }

    /// Asks clients on paths that were silent whether those work again. As nothing new goes down them, nobody would find out,
    /// and no mode could come back to them.
    fn probe_silent(&mut self, ctx: &mut Context<'_>) {
        let active = self.mptcp.active;
        let silent = |path: &PathView| path.standing.suspect && path.index != active;
        let silent = self.carrying(|_| true).filter(silent);
        let silent = silent.fold(0, |set: SubflowSet, path| set | 1 << path.index);
        let steered = &mut self.mptcp.steered;
        if silent == 0 {
            (steered.probed, steered.probes) = (Stamp::default(), 0);
            return;
        }
        if steered.probed == Stamp::default() {
            steered.probed = Stamp::new(ctx.now);
        }
        let wait = PROBE * (1 << steered.probes.min(MAX_DOUBLINGS));
        if !steered.probed.is_over(ctx.now, wait) {
            return;
        }
        steered.probed = Stamp::new(ctx.now);
        steered.probes = steered.probes.saturating_add(1);
        for index in self.indices().filter(|index| silent & (1 << index) != 0) {
            let probe = self.keepalive_to_mptcp(index);
            ctx.counters.path_probe_tx += 1;
            ctx.send(probe.own());
        }
    }

    /// Whether a rule says which of its paths it takes.
    pub(super) fn is_steered(&self, config: &Settings) -> bool {
        config.rules.of(&self.descriptor()).is_some()
    }

    /// What rules know of it.
    fn descriptor(&self) -> Descriptor {
        Descriptor {
            service: self.service,
            server: self.tcp.backend.addr(),
            client: self.subflow(INITIAL).remote.addr().ip(),
        }
    }

    fn steered_path(&self, config: &Settings, index: SubflowIndex) -> SteeredPath {
        let subflow = self.subflow(index);
        SteeredPath {
            subflow: index,
            access: subflow.access(&config.accesses),
            rtt: subflow.path.rtt.known(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_tell_how_long_ago_they_were() {
        let at = |ms: u64| Instant::from_millis(ms);
        let stamp = Stamp::new(at(5000));
        assert!(!stamp.is_over(at(5900), Duration::from_secs(1)));
        assert!(stamp.is_over(at(6003), Duration::from_secs(1)));
        assert!(Stamp::default().is_over(at(0), Duration::from_secs(1)));
        // Over the end of what it holds.
        let late = Instant(u64::from(u32::MAX) << 10);
        let stamp = Stamp::new(late);
        assert!(!stamp.is_over(Instant(late.0 + 900_000), Duration::from_secs(1)));
        assert!(stamp.is_over(Instant(late.0 + 1_003_000), Duration::from_secs(1)));
    }
}

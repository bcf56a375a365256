//! A connection under its steering rule: new data goes down another path when the mode wants that, and the time since the
//! last move allows it.

use alloc::sync::Arc;
use core::time::Duration;

use flexcp_wire::TcpFlags;

use super::carried::Carried;
use super::choice::PathView;
use super::stamp::Stamp;
use super::standby::Standby;
use super::{Connection, Context, choice};
use crate::access::AccessId;
use crate::cause::SubflowSwitch;
use crate::config::Settings;
use crate::handle::{INITIAL, SubflowIndex, SubflowSet};
use crate::offload::FlowEntry;
use crate::steering::{Account, Descriptor, Flow, Ledger, Move, Rule, RuleId, SteeredPath, View};
use crate::time::Instant;

/// How often a mode is asked at most; of what the fast path carries, when the connection comes back from there.
const TICK: Duration = Duration::from_millis(100);

/// How long a path that was silent waits for the first packet that asks whether it works again; then twice as long each
/// time. A Linux client that uploads takes a path for stale only while nothing comes over it (docs/numbers.md).
const PROBE: Duration = Duration::from_secs(2);

/// How often a path that carries nothing is measured at most.
const MEASURE: Duration = Duration::from_secs(1);

/// The same where others have left the path since.
const REMEASURE: Duration = Duration::from_millis(100);

/// For so long what others have done says something of a path.
const OF_LATE: Duration = Duration::from_secs(1);

/// The answer of a path that is measured is waited for so long: the mode is asked when it has come, not at the next look.
const ANSWERED: Duration = Duration::from_millis(500);

/// How often [`PROBE`] doubles at most.
const MAX_DOUBLINGS: u8 = 3;

/// What is known of a connection's rule, and when it was steered last.
#[derive(Default, Debug)]
pub(crate) struct Steered {
    /// When its mode was asked.
    asked: Stamp,
    /// When it was moved, by its mode or because something spoke against a path; never: not yet.
    moved: Stamp,
    /// When paths that were silent were probed, or the first was found to be.
    probed: Stamp,
    /// The rules among which its own was looked for.
    generation: u16,
    /// The one of them that is its own.
    rule: Option<RuleId>,
    /// What it was given in place of those: they do not count.
    own: Option<Arc<Rule>>,
    /// Where what it carries over the active path is counted; `None`: nowhere, or it has no other path.
    account: Option<Account>,
    /// What it had carried when its mode was asked.
    pub(super) carried: Carried,
    /// Times that silent paths were probed, in a row.
    probes: u8,
    /// Which one it is of its rule's; 0: it has not been counted.
    turn: u8,
    /// What the client wants as backup does not count.
    slights_backup: bool,
    /// Its mode moved it last, for what the path was, or somebody who asked for it.
    led: bool,
    /// What goes down the active path goes down the others, too.
    copies: bool,
    pub(super) standby: Standby,
}

impl Steered {
    /// What the client wants as backup does not count.
    pub(super) const fn slights_backup(&self) -> bool {
        self.slights_backup
    }

    /// What goes down the active path goes down the others, too.
    pub(super) const fn copies(&self) -> bool {
        self.copies
    }
}

/// What a fast path is told of a connection's steering.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Limits {
    /// Round-trip time of the active path above which the mode is to be asked.
    pub(crate) patience: Option<Duration>,
    /// Where what goes down is counted.
    pub(crate) account: Option<Account>,
    /// Its next packet takes another path, or several, which the fast path would not.
    pub(crate) moves: bool,
    /// The connection is to be looked at after this time: the mode wants what it may not have yet.
    look: Option<Duration>,
}

impl Limits {
    /// When the connection is to be looked at, `most` from now at the latest.
    pub(crate) fn look(&self, most: Duration) -> Duration {
        self.look.map_or(most, |look| look.min(most))
    }
}

impl FlowEntry {
    /// The same, for a fast path that keeps to these limits.
    pub(crate) fn limited(mut self, limits: &Limits) -> Self {
        self.account = Account::export(limits.account);
        let micros = |time: Duration| u32::try_from(time.as_micros()).unwrap_or(u32::MAX);
        self.patience = limits.patience.map_or(0, micros);
        self
    }
}

/// The paths of a connection that its mode may choose.
pub(super) struct Paths {
    active: SteeredPath,
    /// First those, then the ones that have to be measured before.
    pub(super) others: [SteeredPath; 8],
    pub(super) count: usize,
    outdated: usize,
}

impl Paths {
    fn others(&self) -> &[SteeredPath] {
        &self.others[..self.count]
    }

    /// Those that have to be measured are among them.
    fn all_others(&self) -> &[SteeredPath] {
        &self.others[..self.count + self.outdated]
    }
}

impl Connection {
    /// From here on new data goes down `to`.
    pub(super) fn move_to(&mut self, ctx: &mut Context<'_>, to: SubflowIndex, why: SubflowSwitch) {
        self.move_by(ctx, to, why, None);
    }

    /// The same; `rule`: whose mode wants it.
    fn move_by(
        &mut self,
        ctx: &mut Context<'_>,
        to: SubflowIndex,
        why: SubflowSwitch,
        rule: Option<&Arc<str>>,
    ) {
        self.tell_switched(ctx, (self.mptcp.active, to), why, rule);
        self.mptcp.active = to;
        self.mptcp.steered.moved = Stamp::new(ctx.now);
        self.mptcp.steered.led = false;
        ctx.counters.decide(why);
        let from = self.mptcp.steered.account;
        if let Some(left) = from {
            if matches!(why, SubflowSwitch::Congested | SubflowSwitch::Failed) {
                ctx.ledger.note_congested(ctx.now, left);
            }
            let to = self.account(ctx.config, to);
            self.mptcp.steered.account = to;
            let loads = [from, to].into_iter().flatten();
            let loads = loads.map(|account| ctx.ledger.load(ctx.now, account));
            let rate = self.expected(loads);
            ctx.ledger.transfer(ctx.now, from, to, rate);
        }
    }

    /// Data has come. Asks the mode where it goes, if it is time to and nothing else speaks against the active path.
    #[inline]
    pub(crate) fn steer_data(&mut self, ctx: &mut Context<'_>) {
        self.ask(ctx, true);
    }

    /// Asks the mode, if it is time to.
    #[inline]
    pub(crate) fn steer(&mut self, ctx: &mut Context<'_>) {
        self.ask(ctx, false);
    }

    /// The same; `at_hand`: there is data to be carried.
    #[inline]
    fn ask(&mut self, ctx: &mut Context<'_>, at_hand: bool) {
        if self.mptcp.subflows.len() < 2 {
            return;
        }
        self.find_rule(ctx.config);
        let steered = &self.mptcp.steered;
        let told = steered.standby.paths | steered.standby.changed;
        let has_rule = steered.rule.is_some() || steered.own.is_some();
        if (!has_rule && told == 0) || !steered.asked.is_over(ctx.now, TICK) {
            return;
        }
        if has_rule {
            self.steer_by(ctx, at_hand);
        } else {
            self.note_standby(false);
        }
    }

    /// It stays where it is for the hold time, unless something speaks against that.
    pub(super) fn hold_here(&mut self, now: Instant) {
        self.mptcp.steered.moved = Stamp::new(now);
        self.mptcp.steered.led = true;
    }

    /// From here on it is steered by `own`, or by the first of the operator's rules that fits.
    pub(super) fn steer_by_own(&mut self, ctx: &mut Context<'_>, own: Option<Arc<Rule>>) {
        let steered = &mut self.mptcp.steered;
        steered.own = own;
        // Its rule is looked for anew.
        steered.generation = 0;
        self.steer_at_once(ctx);
        if self.rule_in_force(ctx.config).is_none() {
            self.note_standby(false);
        }
    }

    /// Its server is another than it was: so may its rule be.
    pub(super) const fn forget_rule(&mut self) {
        self.mptcp.steered.generation = 0;
    }

    /// A path has joined: the mode is asked whatever the time.
    pub(super) fn steer_at_once(&mut self, ctx: &mut Context<'_>) {
        self.mptcp.steered.asked = Stamp::default();
        self.steer(ctx);
    }

    /// Other rules are in force, and where the connection is to be is not left to time: its mode is asked as if the connection
    /// had never been moved.
    pub(crate) fn judge_anew(&mut self, ctx: &mut Context<'_>) {
        self.mptcp.steered.moved = Stamp::default();
        self.steer_at_once(ctx);
        self.tell_standby(ctx);
    }

    /// Whether there is more than one path.
    pub(crate) fn has_choice(&self) -> bool {
        self.mptcp.subflows.len() > 1
    }

    /// Looks for its rule, if those have changed since.
    #[inline]
    pub(super) fn find_rule(&mut self, config: &Settings) {
        if self.has_outdated_rule(config) {
            let found = self.rule(config);
            let steered = &mut self.mptcp.steered;
            steered.generation = config.rules.generation();
            steered.rule = found;
            steered.account = None;
            steered.copies = false;
            let rule = self.rule_in_force(config);
            let slights = rule.is_some_and(|rule| !rule.heeds_backup);
            self.mptcp.steered.slights_backup = slights;
        }
    }

    fn steer_by(&mut self, ctx: &mut Context<'_>, at_hand: bool) {
        let config = ctx.config;
        let own = self.mptcp.steered.own.clone();
        let Some(rule) = own.as_deref().or_else(|| self.listed_rule(config)) else {
            return;
        };
        let since = self.mptcp.steered.asked.age(ctx.now);
        self.mptcp.steered.asked = Stamp::new(ctx.now);
        let carries = self.note_carried(since) || at_hand;
        self.probe_silent(ctx);
        let Some(mut paths) = self.steered_paths(ctx.now, config, ctx.ledger, rule) else {
            self.mptcp.steered.account = None;
            return;
        };
        if self.enter(ctx, &paths, since.unwrap_or_default()) {
            // What it will carry itself is in its account.
            paths.active = self.steered_path(ctx.now, config, ctx.ledger, self.mptcp.active);
        }
        if let Some(wanted) = self.wanted_by(ctx.now, rule, &paths) {
            self.move_by(ctx, wanted.to, wanted.cause, Some(&rule.name));
            // Where its part led it, nothing was said for the path.
            self.mptcp.steered.led = wanted.cause != SubflowSwitch::Balance;
        }
        self.mptcp.steered.copies = rule.mode.copies(&self.view_of(&paths));
        // Where the connection carries nothing nobody has to know, and the answers would keep it from ever being idle.
        if rule.mode.measures() && carries {
            self.measure_paths(ctx);
        }
        self.note_standby(rule.mode.tells_standby());
    }

    /// Has the client answer on paths that carry nothing, so that their round-trip times are known: it echoes the TSval of the
    /// first packet in the answer to the second.
    fn measure_paths(&mut self, ctx: &mut Context<'_>) {
        let Some(server) = self.tcp.clock else {
            return;
        };
        for index in self.indices() {
            let subflow = self.subflow(index);
            let outdated = self.is_outdated(ctx.config, ctx.ledger, index);
            let pause = if outdated { REMEASURE } else { MEASURE };
            if index == self.mptcp.active
                || !subflow.carries()
                || subflow.path.suspect
                || !subflow.is_to_be_measured(ctx.now, pause)
                || !ctx
                    .ledger
                    .may_measure(ctx.now, subflow.access(&ctx.config.accesses))
            {
                continue;
            }
            let mut told = self.own_to_mptcp(index, TcpFlags::ACK);
            self.push_dss(&mut told, None, false);
            let asks = self.keepalive_to_mptcp(index);
            self.subflow_mut(index).sent_echoed(ctx.now, server.heard);
            ctx.counters.path_probe_tx += 1;
            ctx.send(told.own());
            ctx.send(asks.own());
        }
    }

    /// What it carries is counted from here on, if its mode goes by that and it has a choice. `true`: it has not had one before.
    fn enter(&mut self, ctx: &mut Context<'_>, paths: &Paths, since: Duration) -> bool {
        let account = self.account_of(ctx.config, paths.active.access);
        let account = account.filter(|_| paths.count > 0);
        self.mptcp.steered.account = account;
        let Some(account) = account else {
            return false;
        };
        let rate = self.mptcp.steered.carried.rate();
        ctx.ledger.tell(ctx.now, account, rate.into(), since);
        let first = self.account_of(ctx.config, None);
        let Some(first) = first.filter(|_| self.mptcp.steered.turn == 0) else {
            return false;
        };
        self.mptcp.steered.turn = ctx.ledger.next_turn(first);
        let expected = self.view_of(paths).flow.expected;
        ctx.ledger.begin(ctx.now, account, expected);
        true
    }

    /// Where what goes down a subflow is counted.
    fn account(&self, config: &Settings, index: SubflowIndex) -> Option<Account> {
        self.account_of(config, self.subflow(index).access(&config.accesses))
    }

    /// The same of an access.
    fn account_of(&self, config: &Settings, access: Option<AccessId>) -> Option<Account> {
        config.rules.account(self.rule(config)?, access)
    }

    /// Notes what went down a subflow.
    #[inline]
    pub(super) fn count_carried(
        &self,
        ctx: &mut Context<'_>,
        index: SubflowIndex,
        len: u32,
        again: bool,
    ) {
        let Some(account) = self.mptcp.steered.account else {
            return;
        };
        let account = if index == self.mptcp.active {
            Some(account)
        } else {
            self.account(ctx.config, index)
        };
        if let Some(account) = account {
            let again = if again { len } else { 0 };
            ctx.ledger.carry(ctx.now, account, len.into(), again.into());
        }
    }

    /// Whether all other paths that nothing speaks against are such as its mode does not take, those among them on which data is
    /// missing: it would go on there if the active path failed.
    pub(super) fn has_none_to_take(&self, ctx: &Context<'_>) -> bool {
        let Some(rule) = self.rule_in_force(ctx.config) else {
            return false;
        };
        let active = self.mptcp.active;
        let good = |path: &PathView| choice::against(path.standing).is_none();
        if choice::against(self.standing(active)).is_some() {
            return false;
        }
        let takes = |path: PathView| {
            let (config, ledger) = (ctx.config, &*ctx.ledger);
            let unknown = rule.mode.measures() && self.is_outdated(config, ledger, path.index);
            let path = self.steered_path(ctx.now, config, ledger, path.index);
            !unknown && rule.mode.admits(&path)
        };
        let others = self.carrying(|_| true);
        let mut others = others.filter(|path| path.index != active && good(path));
        others
            .next()
            .is_some_and(|first| !takes(first) && !others.any(takes))
    }

    /// Whether others carry over the active path's access what they carried before.
    pub(super) fn is_among_others(&self, ctx: &Context<'_>) -> bool {
        let account = self.account(ctx.config, self.mptcp.active);
        account.is_some_and(|account| ctx.ledger.delivers(ctx.now, account))
    }

    /// Where its mode wants it, if it may go there now.
    fn wanted_by(&self, now: Instant, rule: &Rule, paths: &Paths) -> Option<Move> {
        let wanted = rule.mode.choose(&self.view_of(paths))?;
        // A mode from outside may name what it was not given.
        let others = paths.others();
        let known = others.iter().any(|path| path.subflow == wanted.to);
        let wait = self.wait(rule, &wanted);
        (known && self.mptcp.steered.moved.is_over(now, wait)).then_some(wanted)
    }

    /// How long after the last move it may be moved so. Where a path failed, it had no choice, and where its part led it, it made
    /// none: it leaves the other at once, if that is bad.
    fn wait(&self, rule: &Rule, wanted: &Move) -> Duration {
        if wanted.back {
            rule.hold.max(rule.fail_back)
        } else if wanted.cause == SubflowSwitch::Congested && !self.mptcp.steered.led {
            Duration::ZERO
        } else {
            rule.hold
        }
    }

    /// What is left of that.
    fn wait_left(&self, now: Instant, rule: &Rule, wanted: &Move) -> Duration {
        let since = self.mptcp.steered.moved.age(now).unwrap_or(Duration::MAX);
        self.wait(rule, wanted).saturating_sub(since).max(TICK)
    }

    /// What a fast path is told.
    pub(crate) fn limits(&self, now: Instant, config: &Settings, ledger: &Ledger) -> Limits {
        let Some(rule) = self.rule_in_force(config) else {
            return Limits::default();
        };
        let Some(paths) = self.steered_paths(now, config, ledger, rule) else {
            return Limits::default();
        };
        let view = self.view_of(&paths);
        let patience = rule.mode.patience(&self.view_of_all(&paths));
        // What is over already would bring each packet up, until the mode may have what it wants.
        let over = patience.is_some_and(|most| view.active.rtt.is_some_and(|rtt| rtt > most));
        Limits {
            patience: patience.filter(|_| !over),
            account: self.mptcp.steered.account,
            moves: self.wanted_by(now, rule, &paths).is_some() || rule.mode.copies(&view),
            look: match rule.mode.choose(&view) {
                Some(wanted) => Some(self.wait_left(now, rule, &wanted)),
                None if self.is_sudden(&paths, rule) => Some(REMEASURE),
                None if over && self.awaits(now, rule, &paths) => Some(REMEASURE * 2),
                None => Some(REMEASURE * 2).filter(|_| self.is_answered_soon(now, rule)),
            },
        }
    }

    /// Whether a path was asked how long it takes, and nothing has come yet.
    fn is_answered_soon(&self, now: Instant, rule: &Rule) -> bool {
        let mut subflows = self.mptcp.subflows.iter();
        rule.mode.measures() && subflows.any(|subflow| subflow.is_being_measured(now, ANSWERED))
    }

    /// Whether what is known of other paths is old, and is about to be known anew.
    fn awaits(&self, now: Instant, rule: &Rule, paths: &Paths) -> bool {
        let old = |path: &SteeredPath| {
            let subflow = self.subflow(path.subflow);
            subflow.is_to_be_measured(now, MEASURE) || subflow.is_being_measured(now, Duration::MAX)
        };
        let measures = rule.mode.measures() && self.mptcp.steered.carried.rate() > 0;
        paths.outdated > 0 || (measures && paths.others().iter().any(old))
    }

    pub(super) fn view_of<'a>(&self, paths: &'a Paths) -> View<'a> {
        let all = paths.others().iter().chain([&paths.active]);
        View {
            flow: Flow {
                token: self.mptcp.key.token,
                turn: self.mptcp.steered.turn,
                rate: self.mptcp.steered.carried.rate().into(),
                expected: self.expected(all.map(|path| path.load)),
            },
            active: paths.active,
            others: paths.others(),
        }
    }

    /// The same with the paths that have to be measured first.
    fn view_of_all<'a>(&self, paths: &'a Paths) -> View<'a> {
        View {
            others: paths.all_others(),
            ..self.view_of(paths)
        }
    }

    /// The paths that nothing speaks against, under this rule. `None`: something speaks against the active path.
    pub(super) fn steered_paths(
        &self,
        now: Instant,
        config: &Settings,
        ledger: &Ledger,
        rule: &Rule,
    ) -> Option<Paths> {
        let active = self.mptcp.active;
        let good = |standing| choice::against(standing).is_none();
        if self.mptcp.subflows.len() < 2
            || !self.subflow(active).carries()
            || !good(self.standing(active))
        {
            return None;
        }
        let path = |index| self.steered_path(now, config, ledger, index);
        let mut paths = Paths {
            active: path(active),
            others: [SteeredPath::default(); 8],
            count: 0,
            outdated: 0,
        };
        let mut outdated = [SteeredPath::default(); 8];
        for other in self.carrying(|_| true) {
            if !good(other.standing) || self.misses(&other) || other.index == active {
                continue;
            }
            let known = path(other.index);
            if rule.mode.measures() && self.is_outdated(config, ledger, other.index) {
                outdated[paths.outdated] = SteeredPath { rtt: None, ..known };
                paths.outdated += 1;
            } else {
                paths.others[paths.count] = known;
                paths.count += 1;
            }
        }
        paths.others[paths.count..][..paths.outdated].copy_from_slice(&outdated[..paths.outdated]);
        if self.is_sudden(&paths, rule) && self.is_left(now, config, ledger) {
            paths.active.rtt = self.subflow(active).path.rtt.last();
        }
        Some(paths)
    }

    /// Whether the last sample of the active path is by an eighth longer than its mode has patience with, and the one before was not:
    /// an accident, or the path has become slow.
    fn is_sudden(&self, paths: &Paths, rule: &Rule) -> bool {
        let last = self.subflow(self.mptcp.active).path.rtt.last();
        let patience = || rule.mode.patience(&self.view_of_all(paths));
        let slow = |rtt: Option<Duration>| {
            rtt.zip(patience())
                .is_some_and(|(rtt, most)| rtt > most + most / 8)
        };
        last > paths.active.rtt && slow(last)
    }

    /// Others have left the active path's access within a second, as it had become bad: that is no accident.
    fn is_left(&self, now: Instant, config: &Settings, ledger: &Ledger) -> bool {
        let account = self.account(config, self.mptcp.active);
        let left = account.and_then(|account| ledger.congested(account));
        left.is_some_and(|left| now.since(left) < OF_LATE)
    }

    /// Others have left the path's access, as it had become bad, since the path was measured last.
    fn is_outdated(&self, config: &Settings, ledger: &Ledger, index: SubflowIndex) -> bool {
        let subflow = self.subflow(index);
        let account = self.account(config, index);
        let left = account.and_then(|account| ledger.congested(account));
        left.is_some_and(|left| !subflow.is_known_since(left))
    }

    /// Its rule among those of `config`, unless it has one of its own.
    fn rule(&self, config: &Settings) -> Option<RuleId> {
        if self.mptcp.steered.own.is_some() {
            None
        } else if self.has_outdated_rule(config) {
            config.rules.find(&self.descriptor())
        } else {
            self.mptcp.steered.rule
        }
    }

    /// What that says.
    fn listed_rule<'a>(&self, config: &'a Settings) -> Option<&'a Rule> {
        config.rules.get(self.rule(config)?)
    }

    /// The rule that steers it: its own, or the operator's.
    pub(super) fn rule_in_force<'a>(&'a self, config: &'a Settings) -> Option<&'a Rule> {
        let own = self.mptcp.steered.own.as_deref();
        own.or_else(|| self.listed_rule(config))
    }

    pub(super) fn steered_path(
        &self,
        now: Instant,
        config: &Settings,
        ledger: &Ledger,
        index: SubflowIndex,
    ) -> SteeredPath {
        let subflow = self.subflow(index);
        let access = subflow.access(&config.accesses);
        let account = self.account_of(config, access);
        SteeredPath {
            subflow: index,
            access,
            rtt: subflow.path.rtt.recent(),
            load: account.map_or_else(Default::default, |account| ledger.load(now, account)),
        }
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

    /// Whether a rule says which of its paths it takes, or somebody has.
    pub(super) fn is_steered(&self, config: &Settings) -> bool {
        self.mptcp.steered.led || self.rule_in_force(config).is_some()
    }

    /// The name of its rule, if it is MPTCP.
    pub(crate) fn rule_name<'a>(&self, config: &'a Settings) -> Option<&'a str> {
        if self.phase.is_relayed() {
            return None;
        }
        let rule = config.rules.get(self.rule(config)?)?;
        Some(&rule.name)
    }

    /// Whether its rule among those of `config` has to be looked for.
    pub(crate) fn has_outdated_rule(&self, config: &Settings) -> bool {
        self.mptcp.steered.generation != config.rules.generation()
    }

    /// What rules know of it.
    fn descriptor(&self) -> Descriptor {
        let (mptcp, tcp) = (self.subflow(INITIAL).remote.addr(), self.tcp.backend.addr());
        let (client, server) = if self.asks() {
            (tcp, mptcp)
        } else {
            (mptcp, tcp)
        };
        Descriptor {
            service: self.service,
            server,
            client: client.ip(),
        }
    }
}

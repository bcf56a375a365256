//! What is told of connections, held against itself and against the rules that steer them: each closes once and has opened
//! before, what joins and what ends belongs to one that is open, new data switches to another of its subflows where its
//! rule's mode may want that and no earlier, and at the end no connection is open.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use flexcp_invariants::Checker;
use flexcp_translator::{
    AccessId, ConnectionEnds, Event, EventKind, ServiceId, SubflowEnds, SubflowSwitch, Translator,
};

use crate::client::Action;
use crate::steering::{RulePlan, Stage, is_of_mode};
use crate::swarm::Plan;
use crate::trace::Trace;

/// The client's end and the other.
type Which = (SocketAddr, SocketAddr);

/// A mode is asked so often, in microseconds, and the translator counts in steps of 1,024.
const TICK: u64 = 100_000 + STEP;
const STEP: u64 = 1024;

/// What has gone down several paths is ACKed on each of them so soon after a mode has ended that wants that, in microseconds: it is
/// noticed within a [`TICK`], and a round trip and a delayed ACK of the simulation's are shorter than the rest. Until then a path of
/// longer delay lacks what the others have ACKed.
const COPIED: u64 = 1_000_000;

/// A connection that is open.
#[derive(Debug)]
struct Course {
    service: ServiceId,
    /// The TCP server.
    backend: SocketAddr,
    /// Subflows, and since when they are there.
    subflows: BTreeMap<Which, u64>,
    /// Where new data goes.
    active: Which,
    /// When it was moved there, and whether that was its mode.
    moved: Option<(u64, bool)>,
    /// Subflows where new data has gone.
    used: BTreeSet<Which>,
    /// Something spoke against one of its paths.
    forced: bool,
    /// Its client was answered before its server was known: what it did until then nobody is told.
    hosted: bool,
}

/// Who listens.
#[derive(Default, Debug)]
pub(crate) struct Heard {
    /// Those that are open.
    open: BTreeMap<Which, Course>,
    /// How they are steered.
    stages: Vec<Stage>,
    /// The last of those that has begun.
    stage: usize,
    /// Connections whose clients want no subflow as backup.
    without_backup: Vec<bool>,
    /// Services whose clients name their servers.
    explicit: BTreeSet<ServiceId>,
    /// FlexCP is a box.
    mirrored: bool,
    /// What a mode wants has to come about, as nothing goes wrong.
    strict: bool,
    /// Moves that modes have made, as told.
    pub(crate) led: u64,
    /// The first contradiction.
    wrong: Option<String>,
}

impl Heard {
    /// For the connections of a run.
    pub(crate) fn new(plan: &Plan) -> Self {
        let connections = plan.connections.iter();
        let without_backup = connections.map(|connection| {
            let mut actions = connection.mptcp.actions.iter();
            !actions.any(|(_, action)| matches!(action, Action::Join { backup: true, .. }))
        });
        Self {
            stages: plan.stages.clone(),
            without_backup: without_backup.collect(),
            explicit: plan.explicit_services(),
            mirrored: plan.is_mirrored(),
            strict: plan.is_undisturbed(),
            ..Self::default()
        }
    }

    /// Nothing is said of when what a mode wants comes about.
    pub(crate) const fn allow_delays(&mut self) {
        self.strict = false;
    }

    /// The next stage has begun.
    pub(crate) const fn enter_next_stage(&mut self) {
        self.stage += 1;
    }

    /// Takes all that has been told since, and tells the checker where new data goes.
    pub(crate) fn listen(
        &mut self,
        now: u64,
        translator: &mut Translator,
        checker: &mut Checker,
        trace: &Trace,
    ) {
        while let Some(event) = translator.poll_event() {
            if let EventKind::Switched { switch, .. } = &event.kind {
                let (subflow, cause) = (&switch.to, &switch.cause);
                let what = || format!("switch to {}: {}", subflow.client, cause.name());
                trace.note(now, what);
                // A copy that lags shows nothing on the wire.
                let as_ruled = is_of_mode(*cause) || *cause == SubflowSwitch::Lagging;
                checker.observe_switch(now, on(subflow), as_ruled);
            }
            if let Err(why) = self.hear(now, &event) {
                self.note(now, &format!("{why}: {event:?}"));
            }
        }
        if translator.take_lost_events() > 0 {
            self.note(now, "events are lost");
        }
    }

    fn note(&mut self, now: u64, wrong: &str) {
        let wrong = || format!("at {} us: {wrong}", now);
        self.wrong.get_or_insert_with(wrong);
    }

    fn hear(&mut self, now: u64, event: &Event) -> Result<(), String> {
        match &event.kind {
            EventKind::Opened {
                connection,
                source,
                backend,
            } => {
                let of = which(connection);
                // A box opens towards the end with MPTCP, which is the other of what is told.
                let initial = if self.mirrored {
                    (*backend, *source)
                } else {
                    of
                };
                let course = Course {
                    service: event.service,
                    backend: *backend,
                    subflows: BTreeMap::from([(initial, now)]),
                    active: initial,
                    moved: None,
                    used: BTreeSet::from([initial]),
                    forced: false,
                    hosted: self.explicit.contains(&event.service),
                };
                let before = self.open.insert(of, course);
                before.map_or(Ok(()), |_| Err("opened twice".into()))
            }
            EventKind::Joined {
                connection,
                subflow,
            } => {
                let before = self.course(connection)?.subflows.insert(on(subflow), now);
                before.map_or(Ok(()), |_| Err("joined twice".into()))
            }
            EventKind::Switched { connection, switch } => {
                // Another subflow may have the number of one that is over.
                let is_over = switch.cause == SubflowSwitch::Closed;
                let course = self.course(connection)?;
                let elsewhere = on(&switch.from);
                if course.hosted && course.moved.is_none() {
                    course.active = elsewhere;
                } else if !is_over && elsewhere != course.active {
                    return Err("from where it is not".into());
                }
                self.hear_switch(now, connection, &switch.to, switch.cause)
            }
            EventKind::SubflowClosed {
                connection,
                subflow,
                ..
            } => {
                let was_there = self.course(connection)?.subflows.remove(&on(subflow));
                was_there
                    .map(drop)
                    .ok_or_else(|| "a subflow that is none".into())
            }
            EventKind::Closed { connection, .. } => {
                let was_open = self.open.remove(&which(connection));
                was_open
                    .map(drop)
                    .ok_or_else(|| "closed, and not open".into())
            }
            EventKind::BackendMarked { .. }
            | EventKind::BackendMaintenance { .. }
            | EventKind::BackendBack { .. } => Ok(()),
        }
    }

    fn hear_switch(
        &mut self,
        now: u64,
        connection: &ConnectionEnds,
        subflow: &SubflowEnds,
        cause: SubflowSwitch,
    ) -> Result<(), String> {
        let (of, to) = (which(connection), on(subflow));
        let course = self.open.get(&of).ok_or("not open")?;
        if !course.subflows.contains_key(&to) {
            return Err("to a subflow that is none".into());
        }
        if course.active == to {
            return Err("to where it is".into());
        }
        let rule = self.rule(of, course);
        if is_of_mode(cause) {
            self.judge_mode(now, course, rule, to, cause)?;
        } else if cause == SubflowSwitch::Lagging && !rule.is_some_and(|rule| rule.mode.copies()) {
            return Err("its data goes over one path".into());
        } else if cause == SubflowSwitch::Room && rule.is_some() {
            return Err("its mode says where it is".into());
        } else if cause == SubflowSwitch::Backup && rule.is_some_and(|rule| !rule.heeds_backup) {
            return Err("what the client wants as backup does not count".into());
        }
        self.led += u64::from(is_of_mode(cause));
        let course = self.course(connection)?;
        course.forced |= !is_of_mode(cause);
        // Where its part led it, nothing was said for the path.
        let led = is_of_mode(cause) && cause != SubflowSwitch::Balance;
        course.moved = Some((now, led));
        course.active = to;
        course.used.insert(to);
        Ok(())
    }

    /// Whether the mode of a connection's rule may move it now.
    fn judge_mode(
        &self,
        now: u64,
        course: &Course,
        rule: Option<&RulePlan>,
        to: Which,
        cause: SubflowSwitch,
    ) -> Result<(), String> {
        let rule = rule.ok_or("it has no rule")?;
        let (from, there) = (self.access(course.active), self.access(to));
        if !rule.mode.moves(cause, from, there) {
            let why = format!("{:?} does not move from {from:?} to {there:?}", rule.mode);
            return Err(why);
        }
        let Some((moved, led)) = course.moved else {
            return Ok(());
        };
        let (passed, wait) = (now - moved, rule.wait(cause, !led));
        if passed + STEP < wait {
            return Err(format!("{passed} us after it was moved, not {wait}"));
        }
        Ok(())
    }

    /// The server of this service has sent data, which goes down: in a run where nothing goes wrong it takes the access that
    /// is always preferred, once it may.
    pub(crate) fn judge_place(&mut self, now: u64, service: ServiceId) {
        if !self.strict || self.stages.is_empty() {
            return;
        }
        let of_service = self.open.iter().find(|(_, it)| it.service == service);
        let known = |course: &Course| !course.forced && !course.hosted;
        let Some((&of, course)) = of_service.filter(|(_, course)| known(course)) else {
            return;
        };
        let Some(rule) = self.rule(of, course) else {
            return;
        };
        let without_backup = self.without_backup.get(usize::from(service.0));
        if rule.heeds_backup && without_backup != Some(&true) {
            return;
        }
        let moved = course
            .moved
            .map_or(0, |(at, _)| at + rule.wait(SubflowSwitch::Preferred, false));
        let copied = self.copied_until(of, course).map_or(0, |at| at + COPIED);
        let since = moved.max(self.stages[self.stage].at).max(copied);
        let here = self.access(course.active);
        let overdue = course.subflows.iter().find(|&(path, joined)| {
            let better = rule.mode.prefers(self.access(*path), here);
            better && !course.used.contains(path) && now > since.max(*joined) + TICK
        });
        if let Some((path, _)) = overdue {
            let why = format!("{of:?} stays on {:?}, not {path:?}", course.active);
            self.note(now, &why);
        }
    }

    /// When the last rule has ended before its present one that had its data go down several paths.
    fn copied_until(&self, of: Which, course: &Course) -> Option<u64> {
        let copies = |stage: &usize| {
            let rule = self.rule_in(*stage, of, course);
            rule.is_some_and(|rule| rule.mode.copies())
        };
        let last = (0..self.stage).rev().find(copies)?;
        Some(self.stages[last + 1].at)
    }

    fn rule(&self, of: Which, course: &Course) -> Option<&RulePlan> {
        self.rule_in(self.stage, of, course)
    }

    fn rule_in(&self, stage: usize, of: Which, course: &Course) -> Option<&RulePlan> {
        let stage = self.stages.get(stage)?;
        let server = (course.backend.ip(), course.backend.port());
        stage.rule(course.service, server, of.0.ip())
    }

    fn access(&self, (client, local): Which) -> Option<AccessId> {
        let stage = self.stages.get(self.stage)?;
        stage.access(client.ip(), local.ip())
    }

    fn course(&mut self, connection: &ConnectionEnds) -> Result<&mut Course, String> {
        let course = self.open.get_mut(&which(connection));
        course.ok_or_else(|| "not open".into())
    }

    /// What contradicts itself.
    pub(crate) fn contradiction(&self) -> Option<&str> {
        self.wrong.as_deref()
    }

    /// The same, or what is still open at the end.
    pub(crate) fn failure(&self) -> Option<String> {
        let open = self.open.keys().next();
        let open = open.map(|which| format!("never told to close: {which:?}"));
        self.wrong.clone().or(open)
    }
}

fn which(ends: &ConnectionEnds) -> Which {
    (ends.client, ends.server)
}

fn on(ends: &SubflowEnds) -> Which {
    (ends.client, ends.local)
}

//! Runs in which nothing goes wrong: no faults, nobody who resets or closes early, no limit that is reached.
//!
//! Whatever FlexCP then does without being asked it does without a cause: every request for MPTCP and every join is
//! accepted, no connection falls back, and no RST is FlexCP's own.

use crate::client::Action;
use crate::explicit::ExplicitPlan;
use crate::mirror::AnswerPlan;
use crate::swarm::{PathPlan, Plan};
use crate::world::World;

/// Decisions that none of these runs gives a cause for, and those causes that it may give all the same.
const NONE: &[(&str, &[&str])] = &[
    ("rst", &["join_refused"]),
    ("plain_syn", &["no_option"]),
    // What joined subflows carry can't be ACKed there without the server's SACK.
    ("join_refused", &["no_sack"]),
    ("half_open_evicted", &[]),
    ("join_evicted", &[]),
    ("fallback", &[]),
];

impl Plan {
    /// Whether nothing in the plan gives FlexCP a cause to refuse or to reset anything.
    pub(crate) fn is_undisturbed(&self) -> bool {
        let calm = |path: &PathPlan| path.faults == path.calm;
        let both = |paths: &(PathPlan, PathPlan)| calm(&paths.0) && calm(&paths.1);
        let honest = self.connections.iter().all(|connection| {
            let joins = |action: &(u64, Action)| matches!(action.1, Action::Join { .. });
            let loses = connection.mptcp.drops + connection.server.reneges;
            !connection.aborts && loses == 0 && connection.mptcp.actions.iter().all(joins)
        });
        let explicit = self
            .connections
            .iter()
            .filter_map(|it| it.explicit.as_ref());
        let granted = explicit.into_iter().all(ExplicitPlan::is_granted);
        let mut answers = self.connections.iter().filter_map(|it| it.answers.as_ref());
        let mut servers = self.connections.iter().flat_map(|it| &it.errands);
        let excepted = self.connections.iter().any(|it| it.excepted);
        let answered =
            !excepted && answers.all(AnswerPlan::is_granted) && servers.all(AnswerPlan::is_granted);
        honest
            && granted
            && answered
            && !self.small_limits
            && self.uplinks.is_empty()
            && both(&self.server)
            && self.links.iter().all(both)
    }

    /// The plan without what may disturb.
    pub(crate) fn undisturbed(mut self) -> Self {
        self.small_limits = false;
        self.uplinks.clear();
        let links = self.links.iter_mut().chain([&mut self.server]);
        for path in links.flat_map(|(up, down)| [up, down]) {
            path.faults.clone_from(&path.calm);
        }
        for connection in &mut self.connections {
            connection.aborts = false;
            connection.client_app.aborts_at = None;
            connection.server_app.aborts_at = None;
            connection.server.reneges = 0;
            if let Some(explicit) = &mut connection.explicit {
                explicit.grant();
            }
            let answers = connection.answers.iter_mut();
            answers
                .chain(&mut connection.errands)
                .for_each(AnswerPlan::grant);
            connection.excepted = false;
            let plan = &mut connection.mptcp;
            plan.drops = 0;
            plan.actions
                .retain(|(_, action)| matches!(action, Action::Join { .. }));
        }
        self
    }
}

/// What an undisturbed run shows that should not be.
pub(crate) fn failures(world: &World) -> Vec<String> {
    let counters = world.proxy.translator.counters();
    let needless = counters.causes.iter().filter(|(decision, cause, count)| {
        let known = NONE.iter().find(|(name, _)| name == decision);
        *count > 0 && known.is_some_and(|(_, may)| !may.contains(cause))
    });
    let mut failures: Vec<String> = needless
        .map(|(decision, cause, count)| {
            format!("undisturbed: {decision} for {cause}, {count} times")
        })
        .collect();
    let (asking, plain) = world.requests();
    if world.plan.is_mirrored() {
        let answers = counters.mp_capable_synack_rx;
        let count = asking + plain;
        if answers != count {
            failures.push(format!(
                "undisturbed: {answers} answers with MPTCP, not {count}"
            ));
        }
        return failures;
    }
    for (what, expected, counted) in [
        ("requests for MPTCP", asking, counters.mp_capable_syn_rx),
        (
            "clients that prove their keys",
            asking,
            counters.mp_capable_ack_rx,
        ),
        ("plain SYNs", plain, counters.plain_syn),
    ] {
        if expected != counted {
            failures.push(format!("undisturbed: {counted} {what}, not {expected}"));
        }
    }
    failures
}

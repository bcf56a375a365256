//! The steering modes of rules, and the keys that each takes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use flexcp_translator::{
    AccessId, ActiveStandby, Automatic, LoadBalancing, Priority, Random, Redundant, RoundRobin,
    SmallestDelay, SteeringMode, Thresholds,
};

use super::file::Config;
use super::rule::Rule;
use super::span::{Diagnostics, Located};

/// The modes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Steering {
    /// "active-standby": down the path of the first access that works.
    ActiveStandby,
    /// "smallest-delay": down the path with the shortest round-trip time.
    SmallestDelay,
    /// "load-balancing": each access its part of the bytes; without weights, where connections fare best.
    LoadBalancing,
    /// "priority": down the path of the first access until it is congested, then also of the next.
    Priority,
    /// "redundant": down all paths at once.
    Redundant,
    /// "random": each connection down a path of its own luck.
    Random,
    /// "round-robin": one connection after the other down the next path.
    RoundRobin,
}

impl Steering {
    const ALL: [Self; 7] = [
        Self::ActiveStandby,
        Self::SmallestDelay,
        Self::LoadBalancing,
        Self::Priority,
        Self::Redundant,
        Self::Random,
        Self::RoundRobin,
    ];

    /// As the file has it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ActiveStandby => "active-standby",
            Self::SmallestDelay => "smallest-delay",
            Self::LoadBalancing => "load-balancing",
            Self::Priority => "priority",
            Self::Redundant => "redundant",
            Self::Random => "random",
            Self::RoundRobin => "round-robin",
        }
    }
}

/// One of the names.
pub(super) fn steering(text: &str) -> Result<Steering, String> {
    let found = Steering::ALL.into_iter().find(|mode| mode.name() == text);
    found.ok_or_else(|| {
        let names = Steering::ALL.map(|mode| format!("\"{}\"", mode.name()));
        let (last, others) = names.split_last().unwrap_or((&names[0], &[]));
        let others = others.join(", ");
        format!("there is no steering mode `{text}`; write {others} or {last}")
    })
}

/// `weights`: the parts of the accesses with these names, of any sum.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Weights(pub Vec<(String, u32)>);

/// A part of a whole in ten thousandths, which the file has in percent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Percent(pub u16);

/// The largest weight.
const MOST_WEIGHT: i64 = 1_000_000;

impl Weights {
    /// From the keys and values of a table.
    pub(super) fn new(
        entries: impl Iterator<Item = (String, Result<i64, String>)>,
    ) -> Result<Self, String> {
        let weight = |(name, weight): (String, Result<i64, String>)| {
            let weight = weight.map_err(|error| format!("`{name}`: {error}"))?;
            let fits = (0..=MOST_WEIGHT).contains(&weight);
            let weight = u32::try_from(weight).ok().filter(|_| fits);
            weight.map(|weight| (name.clone(), weight)).ok_or_else(|| {
                format!("the weight of `{name}` has to be a number from 0 to {MOST_WEIGHT}")
            })
        };
        entries.map(weight).collect::<Result<_, _>>().map(Self)
    }
}

impl Percent {
    /// Of a number of percent.
    pub(super) fn new(percent: f64) -> Result<Self, String> {
        if !(0.0..100.0).contains(&percent) {
            return Err(format!(
                "{percent} is no part of a whole; write percent, like 2 or 0.5"
            ));
        }
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "from 0 to 10,000"
        )]
        Ok(Self((percent * 100.0).round() as u16))
    }
}

/// The longest round-trip time that a threshold may be.
const MOST_RTT: Duration = Duration::from_mins(1);

/// Adds what is wrong with the keys that are for some modes alone.
pub(super) fn check(config: &Config, rule: &Rule, out: &mut Diagnostics) {
    check_accesses(config, rule, out);
    check_weights(config, rule, out);
    check_thresholds(rule, out);
}

fn check_accesses(config: &Config, rule: &Rule, out: &mut Diagnostics) {
    let mode = rule.mode.value;
    let ordered = matches!(mode, Steering::ActiveStandby | Steering::Priority);
    let told = rule.accesses.first();
    if ordered && told.is_none() {
        let said = format!(
            "a rule of {} names no `accesses`; write the active one first, like accesses = [\"dsl\", \"lte\"]",
            mode.name()
        );
        out.error(rule.at, said);
    }
    if !ordered
        && mode != Steering::Redundant
        && let Some(first) = told
    {
        let said = format!(
            "`accesses` is for active-standby, priority and redundant alone, as {} takes all of them; remove it",
            mode.name()
        );
        out.error(first.at, said);
    }
    let apart = matches!(mode, Steering::LoadBalancing | Steering::Random);
    if apart && config.accesses.is_empty() {
        let said = format!(
            "{} tells paths apart by their accesses, and there are none; write an [[access]] for each",
            mode.name()
        );
        out.error(rule.mode.at, said);
    }
}

fn check_weights(config: &Config, rule: &Rule, out: &mut Diagnostics) {
    let Some(weights) = &rule.weights else {
        return;
    };
    if rule.mode.value != Steering::LoadBalancing {
        let said = format!(
            "`weights` is for load-balancing alone, not {}; remove it",
            rule.mode.value.name()
        );
        out.error(weights.at, said);
    }
    let known: BTreeSet<_> = config.accesses.iter().map(|it| &it.name.value).collect();
    for (name, _) in &weights.value.0 {
        if !known.contains(name) {
            let said = format!(
                "there is no access `{name}`; write the name of one, or a [[access]] of that name"
            );
            out.error(weights.at, said);
        }
    }
    if weights.value.0.iter().all(|(_, weight)| *weight == 0) {
        let said = "no access has a weight; write them like { dsl = 30, lte = 70 }, or remove `weights`: \
                    connections go where they fare best then";
        out.error(weights.at, said);
    }
}

fn check_thresholds(rule: &Rule, out: &mut Diagnostics) {
    let mode = rule.mode.value;
    let takes = matches!(
        mode,
        Steering::LoadBalancing | Steering::Priority | Steering::Redundant
    );
    let told = [
        ("max_rtt", rule.max_rtt.map(|rtt| rtt.at)),
        ("max_loss", rule.max_loss.map(|loss| loss.at)),
    ];
    for (key, at) in told {
        if let Some(at) = at.filter(|_| !takes) {
            let said = format!(
                "`{key}` is for load-balancing, priority and redundant alone, not {}; remove it",
                mode.name()
            );
            out.error(at, said);
        }
    }
    if mode == Steering::Priority && told.iter().all(|(_, at)| at.is_none()) {
        out.error(
            rule.at,
            "a rule of priority does not say when an access is congested; write max_rtt = \"50ms\" or max_loss = 2, or take \
             active-standby",
        );
    }
    let fits = |rtt: &Located<Duration>| (Duration::from_millis(1)..=MOST_RTT).contains(&rtt.value);
    if let Some(rtt) = rule.max_rtt.filter(|rtt| !fits(rtt)) {
        let said = "`max_rtt` has to be between 1ms and 1m; write one like \"50ms\"";
        out.error(rtt.at, said);
    }
}

/// The rule's mode, as the translator has it.
pub(super) fn told(config: &Config, rule: &Rule) -> Arc<dyn SteeringMode> {
    let id = |name: &str| {
        let mut numbered = (0..).map(AccessId).zip(&config.accesses);
        let found = numbered.find(|(_, access)| access.name.value == name);
        found.map(|(id, _)| id)
    };
    let accesses = || {
        let named = rule.accesses.iter();
        named.filter_map(|name| id(&name.value)).collect()
    };
    let thresholds = Thresholds {
        rtt: rule.max_rtt.map(|rtt| rtt.value),
        loss: rule.max_loss.map(|loss| loss.value.0),
    };
    match (rule.mode.value, &rule.weights) {
        (Steering::ActiveStandby, _) => Arc::new(ActiveStandby {
            accesses: accesses(),
        }),
        (Steering::SmallestDelay, _) => Arc::new(SmallestDelay),
        (Steering::LoadBalancing, Some(weights)) => {
            let weights = weights.value.0.iter();
            let known = weights.filter_map(|(name, weight)| Some((id(name)?, *weight)));
            Arc::new(LoadBalancing {
                weights: known.collect(),
                thresholds,
            })
        }
        (Steering::LoadBalancing, None) => Arc::new(Automatic { thresholds }),
        (Steering::Priority, _) => Arc::new(Priority {
            accesses: accesses(),
            thresholds,
        }),
        (Steering::Redundant, _) => Arc::new(Redundant {
            primary: accesses(),
            thresholds,
        }),
        (Steering::Random, _) => Arc::new(Random),
        (Steering::RoundRobin, _) => Arc::new(RoundRobin),
    }
}

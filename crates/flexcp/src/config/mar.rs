//! Multi-access rules as a session management function writes them (3GPP TS 29.244, MAR): a document of them becomes rules,
//! and what can't be honoured is refused by its field.
//!
//! Two accesses of the configuration are bound to the names "3gpp" and "non_3gpp". Numbers of forwarding action rules, usage
//! reporting rules and radio access types say nothing to FlexCP: they are kept with the document.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json, json};
use utoipa::ToSchema;

use super::file::Config;
use super::rule::Rule;
use super::told::{self, Told, Wrong};

mod sdf;

/// A document of multi-access rules.
#[derive(Deserialize, ToSchema, Debug)]
#[serde(deny_unknown_fields)]
pub struct Document {
    /// Which accesses of the configuration are the two of 3GPP.
    accesses: Binding,
    /// All multi-access rules: they take the place of what was set.
    mars: Vec<Mar>,
}

/// Names of accesses of the configuration.
#[derive(Deserialize, ToSchema, Debug)]
#[serde(deny_unknown_fields)]
struct Binding {
    /// The 3GPP access.
    #[serde(rename = "3gpp")]
    cellular: String,
    /// The non-3GPP access.
    #[serde(rename = "non_3gpp")]
    other: String,
}

/// A multi-access rule, with the precedence and the traffic of its packet detection rule.
#[derive(Deserialize, ToSchema, Debug)]
#[serde(deny_unknown_fields)]
struct Mar {
    /// MAR ID (section 8.2.114); each is used once.
    mar_id: u16,
    /// Rules with a lower number come first; each is used once.
    precedence: u32,
    /// Which connections it is for: all, or those that all of it fits.
    #[serde(default)]
    traffic: Option<Traffic>,
    /// The same as flow descriptions, each of which is enough: "permit out ip from 198.51.100.0/24 443 to assigned".
    #[serde(default)]
    sdf_filters: Vec<String>,
    /// Only "mptcp".
    steering_functionality: Functionality,
    /// The steering mode.
    steering_mode: Mode,
    /// What is told of the 3GPP access.
    #[serde(rename = "3gpp")]
    cellular: Forwarding,
    /// What is told of the non-3GPP access.
    #[serde(rename = "non_3gpp")]
    other: Forwarding,
    /// For "load-balancing" with a fixed split, "priority-based" and "redundant".
    #[serde(default)]
    thresholds: Option<Limits>,
    /// For "load-balancing".
    #[serde(default)]
    indicator: Option<Indicator>,
    /// Is for MPQUIC: not to be had.
    #[serde(default)]
    transport_mode: Option<String>,
    /// Of redundant sending, by the other end: not to be had.
    #[serde(default)]
    suspend: Option<bool>,
    /// The same.
    #[serde(default)]
    resume: Option<bool>,
}

/// Which connections a rule is for: those that all of it fits, with the values of `[[rule]]` in the configuration file.
#[derive(Clone, Deserialize, ToSchema, Default, Debug)]
#[serde(deny_unknown_fields, default)]
struct Traffic {
    /// Names of services.
    services: Vec<String>,
    /// Address prefixes of servers.
    servers: Vec<String>,
    /// Ports of servers: numbers, or such as "8000-8999".
    ports: Vec<Ports>,
    /// Address prefixes that clients come from first.
    clients: Vec<String>,
}

/// A port or a range of them.
#[derive(Clone, Serialize, Deserialize, ToSchema, Debug)]
#[serde(untagged)]
enum Ports {
    Number(u16),
    Text(String),
}

/// Forwarding action information of an access.
#[derive(Deserialize, ToSchema, Debug)]
#[serde(deny_unknown_fields)]
struct Forwarding {
    /// FAR ID; kept with the document.
    #[allow(dead_code, reason = "the document is kept as it came")]
    far_id: u32,
    /// For "load-balancing": the part of the bytes in percent; those of both accesses sum to 100.
    #[serde(default)]
    #[schema(maximum = 100)]
    weight: Option<u8>,
    /// For "active-standby", "priority-based" and "redundant".
    #[serde(default)]
    priority: Option<Rank>,
    /// URR IDs; kept with the document.
    #[allow(dead_code, reason = "the document is kept as it came")]
    #[serde(default)]
    urr_ids: Vec<u32>,
    /// The radio access type's number; kept with the document.
    #[allow(dead_code, reason = "the document is kept as it came")]
    #[serde(default)]
    rat_type: Option<u8>,
}

/// Steering functionality (section 8.2.115).
#[derive(Clone, Copy, PartialEq, Eq, Deserialize, ToSchema, Debug)]
#[serde(rename_all = "kebab-case")]
enum Functionality {
    AtsssLl,
    Mptcp,
    Mpquic,
}

/// Steering mode (section 8.2.116).
#[derive(Clone, Copy, PartialEq, Eq, Deserialize, ToSchema, Debug)]
#[serde(rename_all = "kebab-case")]
enum Mode {
    ActiveStandby,
    SmallestDelay,
    LoadBalancing,
    PriorityBased,
    Redundant,
}

/// Priority of an access (section 8.2.120).
#[derive(Clone, Copy, PartialEq, Eq, Deserialize, ToSchema, Debug)]
#[serde(rename_all = "kebab-case")]
enum Rank {
    Active,
    Standby,
    NoStandby,
    High,
    Low,
    Primary,
    Secondary,
}

/// Thresholds (IE 288): one of them at least.
#[derive(Clone, Copy, Deserialize, ToSchema, Debug)]
#[serde(deny_unknown_fields)]
struct Limits {
    /// The round-trip time in milliseconds.
    #[serde(default)]
    rtt_ms: Option<u16>,
    /// The packet loss rate in percent.
    #[serde(default)]
    #[schema(maximum = 99)]
    plr_pct: Option<u8>,
}

/// Steering mode indicator (IE 289).
#[derive(Clone, Copy, Deserialize, ToSchema, Default, Debug)]
#[serde(deny_unknown_fields, default)]
struct Indicator {
    /// The split may be another where that carries more: connections go where they fare best.
    albi: bool,
    /// The client's assistance: not to be had.
    ueai: bool,
}

/// Which part of a document a rule is from.
struct Origin {
    mar: usize,
    sdf_filter: Option<usize>,
}

/// The rules that a document becomes, as they are told and as they are read.
///
/// # Errors
/// With the first thing that is wrong or can't be honoured, by its field, such as `mars[0].thresholds.rtt_ms`.
pub fn rules(config: &Config, document: &Json) -> Result<(Vec<Told>, Vec<Rule>), Wrong> {
    let document: Document = serde_path_to_error::deserialize(document).map_err(|error| {
        let path = error.path().to_string();
        let field = if path == "." { "the body".into() } else { path };
        Wrong::new(
            field,
            format!("{}; docs/rules.md says what stands there", error.inner()),
        )
    })?;
    check_binding(config, &document.accesses)?;
    let mut told = Vec::new();
    let mut origins = Vec::new();
    for (place, mar) in in_order(&document.mars)? {
        let steering = mar.steering(&document.accesses, place)?;
        for (number, (traffic, sdf_filter)) in mar.traffic(place)?.into_iter().enumerate() {
            let mut rule = steering.clone();
            let name = match number {
                0 => format!("mar-{}", mar.mar_id),
                number => format!("mar-{}.{}", mar.mar_id, number + 1),
            };
            rule.insert("name".into(), name.into());
            traffic.add_to(&mut rule);
            told.push(rule);
            origins.push(Origin {
                mar: place,
                sdf_filter,
            });
        }
    }
    let rules = told::named_rules(config, &told, |place| place.to_string());
    let rules = rules.map_err(|Wrong { field, message }| {
        let (place, key) = field.split_once('.').unwrap_or((&field, ""));
        let origin = place
            .parse()
            .ok()
            .and_then(|place: usize| origins.get(place));
        Wrong::new(
            origin.map_or_else(|| field.clone(), |origin| origin.field(key)),
            message,
        )
    })?;
    Ok((told, rules))
}

fn check_binding(config: &Config, binding: &Binding) -> Result<(), Wrong> {
    let Binding { cellular, other } = binding;
    for (field, name) in [("accesses.3gpp", cellular), ("accesses.non_3gpp", other)] {
        if config
            .accesses
            .iter()
            .all(|access| access.name.value != *name)
        {
            let said = format!(
                "there is no access `{name}`; write the name of one, or a [[access]] of that name"
            );
            return Err(Wrong::new(field, said));
        }
    }
    if cellular == other {
        let said = format!("`{other}` is the 3GPP access; bind another");
        return Err(Wrong::new("accesses.non_3gpp", said));
    }
    Ok(())
}

/// By precedence, each with its place in the document.
fn in_order(mars: &[Mar]) -> Result<Vec<(usize, &Mar)>, Wrong> {
    let mut ids = BTreeSet::new();
    let mut precedences = BTreeMap::new();
    for (place, mar) in mars.iter().enumerate() {
        if !ids.insert(mar.mar_id) {
            let said = format!(
                "there is a MAR {} already; give each its own number",
                mar.mar_id
            );
            return Err(Wrong::new(format!("mars[{place}].mar_id"), said));
        }
        if let Some(other) = precedences.insert(mar.precedence, mar.mar_id) {
            let said = format!(
                "MAR {other} has it as well; give each its own, so that their order is told"
            );
            return Err(Wrong::new(format!("mars[{place}].precedence"), said));
        }
    }
    let mut order: Vec<_> = mars.iter().enumerate().collect();
    order.sort_by_key(|(_, mar)| mar.precedence);
    Ok(order)
}

impl Origin {
    /// What in the document a key of the rule is from.
    fn field(&self, key: &str) -> String {
        let of_traffic = ["services", "servers", "ports", "clients"].contains(&key);
        let part = match (key, self.sdf_filter) {
            (_, Some(filter)) if of_traffic => format!("sdf_filters[{filter}]"),
            (_, None) if of_traffic => format!("traffic.{key}"),
            ("mode", _) => "steering_mode".into(),
            ("weights", _) => "3gpp.weight".into(),
            ("accesses", _) => "3gpp.priority".into(),
            ("max_rtt", _) => "thresholds.rtt_ms".into(),
            ("max_loss", _) => "thresholds.plr_pct".into(),
            _ => return format!("mars[{}]", self.mar),
        };
        format!("mars[{}].{part}", self.mar)
    }
}

impl Traffic {
    fn add_to(&self, rule: &mut Told) {
        let lists = [
            ("services", json!(self.services)),
            ("servers", json!(self.servers)),
            ("ports", json!(self.ports)),
            ("clients", json!(self.clients)),
        ];
        let told = lists.into_iter().filter(|(_, list)| list != &json!([]));
        rule.extend(told.map(|(key, list)| (key.to_owned(), list)));
    }
}

impl Mar {
    /// What it is for, in parts of which each is enough, with the places of flow descriptions.
    fn traffic(&self, place: usize) -> Result<Vec<(Traffic, Option<usize>)>, Wrong> {
        if self.sdf_filters.is_empty() {
            return Ok(vec![(self.traffic.clone().unwrap_or_default(), None)]);
        }
        if self.traffic.is_some() {
            let said = "the traffic is told twice; write either `traffic` or `sdf_filters`";
            return Err(Wrong::new(format!("mars[{place}].sdf_filters"), said));
        }
        let read = self.sdf_filters.iter().enumerate().map(|(number, filter)| {
            let field = format!("mars[{place}].sdf_filters[{number}]");
            let traffic = sdf::read(filter).map_err(|said| Wrong::new(field, said))?;
            Ok((traffic, Some(number)))
        });
        read.collect()
    }

    /// The keys of a rule that say how it steers.
    fn steering(&self, binding: &Binding, place: usize) -> Result<Told, Wrong> {
        let wrong =
            |(field, said): (&str, &str)| Wrong::new(format!("mars[{place}].{field}"), said);
        self.refusal().map_err(wrong)?;
        let mut rule = Map::new();
        let mode = match self.steering_mode {
            Mode::ActiveStandby => "active-standby",
            Mode::SmallestDelay => "smallest-delay",
            Mode::LoadBalancing => "load-balancing",
            Mode::PriorityBased => "priority",
            Mode::Redundant => "redundant",
        };
        rule.insert("mode".into(), mode.into());
        let accesses = self.order(binding).map_err(wrong)?;
        if !accesses.is_empty() {
            rule.insert("accesses".into(), json!(accesses));
        }
        if let Some([cellular, other]) = self.split().map_err(wrong)? {
            let weights = json!({ &binding.cellular: cellular, &binding.other: other });
            rule.insert("weights".into(), weights);
        }
        if let Some(limits) = self.limits().map_err(wrong)? {
            let rtt = limits
                .rtt_ms
                .map(|rtt| ("max_rtt", json!(format!("{rtt}ms"))));
            let loss = limits.plr_pct.map(|loss| ("max_loss", json!(loss)));
            let both = rtt.into_iter().chain(loss);
            rule.extend(both.map(|(key, limit)| (key.to_owned(), limit)));
        }
        Ok(rule)
    }

    /// What FlexCP has not got at all.
    fn refusal(&self) -> Result<(), (&'static str, &'static str)> {
        let indicator = self.indicator.unwrap_or_default();
        let balances = self.steering_mode == Mode::LoadBalancing;
        let refusals = [
            (
                self.steering_functionality != Functionality::Mptcp,
                "steering_functionality",
                "FlexCP steers connections of MPTCP alone; write \"mptcp\"",
            ),
            (
                self.transport_mode.is_some(),
                "transport_mode",
                "it is for MPQUIC, which FlexCP does not speak; leave it out",
            ),
            (
                self.suspend.is_some(),
                "suspend",
                "redundant sending is not suspended by the other end (PMF); leave it out, and set thresholds",
            ),
            (
                self.resume.is_some(),
                "resume",
                "redundant sending is not resumed by the other end (PMF); leave it out, and set thresholds",
            ),
            (
                indicator.albi && indicator.ueai,
                "indicator",
                "`albi` and `ueai` exclude each other; leave `ueai` out",
            ),
            (
                indicator.ueai,
                "indicator.ueai",
                "the client's wish for a split comes by PMF, which FlexCP does not speak; leave it out",
            ),
            (
                indicator.albi && !balances,
                "indicator.albi",
                "it is for load-balancing alone; leave it out",
            ),
        ];
        let mut met = refusals.into_iter().filter(|(is_met, ..)| *is_met);
        met.next()
            .map_or(Ok(()), |(_, field, said)| Err((field, said)))
    }

    /// The accesses in their order, where the mode has one.
    fn order<'a>(
        &self,
        binding: &'a Binding,
    ) -> Result<Vec<&'a str>, (&'static str, &'static str)> {
        let ranks = (self.cellular.priority, self.other.priority);
        let (cellular, other) = (binding.cellular.as_str(), binding.other.as_str());
        let (first, second, said) = match self.steering_mode {
            Mode::ActiveStandby => (
                Rank::Active,
                Rank::Standby,
                "one access has to be active and the other standby, as the other is taken where the active one fails; write both",
            ),
            Mode::PriorityBased => (
                Rank::High,
                Rank::Low,
                "one access has to be high and the other low; write both",
            ),
            Mode::Redundant if ranks == (None, None) => return Ok(vec![]),
            Mode::Redundant => {
                let said =
                    "one access has to be primary and the other secondary; write both, or none";
                let order = ordered(ranks, (Rank::Primary, Rank::Secondary), said)?;
                return Ok(vec![if order { cellular } else { other }]);
            }
            Mode::SmallestDelay | Mode::LoadBalancing => {
                let said =
                    "it is for active-standby, priority-based and redundant alone; leave it out";
                return match ranks {
                    (None, None) => Ok(vec![]),
                    (Some(_), _) => Err(("3gpp.priority", said)),
                    (None, Some(_)) => Err(("non_3gpp.priority", said)),
                };
            }
        };
        let order = ordered(ranks, (first, second), said)?;
        Ok(if order {
            vec![cellular, other]
        } else {
            vec![other, cellular]
        })
    }

    /// The parts of the accesses, where a fixed split is wanted.
    fn split(&self) -> Result<Option<[u8; 2]>, (&'static str, &'static str)> {
        let weights = (self.cellular.weight, self.other.weight);
        let may_differ = self.indicator.is_some_and(|indicator| indicator.albi);
        if self.steering_mode != Mode::LoadBalancing {
            let said = "it is for load-balancing alone; leave it out";
            return match weights {
                (None, None) => Ok(None),
                (Some(_), _) => Err(("3gpp.weight", said)),
                (None, Some(_)) => Err(("non_3gpp.weight", said)),
            };
        }
        match weights {
            (None, None) if may_differ => Ok(None),
            (Some(cellular), Some(other)) if u16::from(cellular) + u16::from(other) == 100 => {
                Ok(Some([cellular, other]).filter(|_| !may_differ))
            }
            (Some(_), Some(_)) => Err((
                "3gpp.weight",
                "the weights of both accesses have to sum to 100; change one",
            )),
            (None, _) => Err((
                "3gpp.weight",
                "load-balancing takes the part of each access; write them in percent",
            )),
            (_, None) => Err((
                "non_3gpp.weight",
                "load-balancing takes the part of each access; write them in percent",
            )),
        }
    }

    fn limits(&self) -> Result<Option<Limits>, (&'static str, &'static str)> {
        let may_differ = self.indicator.is_some_and(|indicator| indicator.albi);
        let said = match (self.steering_mode, self.thresholds) {
            (Mode::PriorityBased, None) => {
                "FlexCP tells by them when an access is congested; write them, like {\"rtt_ms\": 50}"
            }
            (_, None) => return Ok(None),
            (Mode::ActiveStandby | Mode::SmallestDelay, _) => {
                "they are for load-balancing, priority-based and redundant alone; leave them out"
            }
            (Mode::LoadBalancing, _) if may_differ => {
                "they are for a fixed split, and `albi` lets it be another; leave one of them out"
            }
            (
                _,
                Some(Limits {
                    rtt_ms: None,
                    plr_pct: None,
                }),
            ) => "there is none; write `rtt_ms`, `plr_pct` or both",
            (_, limits) => return Ok(limits),
        };
        Err(("thresholds", said))
    }
}

/// Whether the first access is the first of both ranks.
fn ordered(
    ranks: (Option<Rank>, Option<Rank>),
    (first, second): (Rank, Rank),
    said: &'static str,
) -> Result<bool, (&'static str, &'static str)> {
    match ranks {
        (Some(cellular), Some(other)) if (cellular, other) == (first, second) => Ok(true),
        (Some(cellular), Some(other)) if (cellular, other) == (second, first) => Ok(false),
        (Some(cellular), _) if cellular == first || cellular == second => {
            Err(("non_3gpp.priority", said))
        }
        _ => Err(("3gpp.priority", said)),
    }
}

#[cfg(test)]
mod tests;

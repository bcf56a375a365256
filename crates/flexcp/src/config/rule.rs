//! `[[rule]]`: how connections are steered.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use flexcp_translator::{Carrier, MAX_RULES, Prefix, ServiceId, SteeringMode};
use toml::Spanned;
use toml::de::DeValue;

use super::file::Config;
use super::keys;
use super::read::{self, Ports, Reader};
use super::span::{Diagnostics, Located};
use super::split;
use super::steering::{self, Percent, Steering, Weights};

/// How long a connection stays where it was moved, if the rule does not say.
const HOLD: Duration = Duration::from_secs(1);
/// How long it stays away from what the operator prefers, if the rule does not say.
const FAIL_BACK: Duration = Duration::from_secs(5);
/// No connection is moved more often: measuring a path takes some round trips.
const LEAST_HOLD: Duration = Duration::from_millis(100);
/// What times can be told apart of.
const MOST_HOLD: Duration = Duration::from_secs(24 * 3600);

/// `[[rule]]`: connections that fit in all that it says are steered so, unless a rule before it fits.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Where it begins in the file.
    pub at: usize,
    /// `name`: for `flexcp show`; each is used once.
    pub name: Located<String>,
    /// `services`: names of services that connections are of; any when left out.
    pub services: Vec<Located<String>>,
    /// `servers`: address prefixes of servers; any when left out.
    pub servers: Vec<Located<Prefix>>,
    /// `ports`: of servers, each a number or "8000-8999"; any when left out.
    pub ports: Vec<Located<RangeInclusive<u16>>>,
    /// `clients`: address prefixes that clients come from first; any when left out.
    pub clients: Vec<Located<Prefix>>,
    /// `mode`: see [`Steering`].
    pub mode: Located<Steering>,
    /// What a program that FlexCP is part of has in the mode's place.
    pub own_mode: Option<Arc<dyn SteeringMode>>,
    /// `accesses`: names of accesses, the active one first, then those for when it fails or is congested; for
    /// "active-standby", "priority" and "redundant" alone.
    pub accesses: Vec<Located<String>>,
    /// `weights`: the parts of the bytes that accesses carry; for "load-balancing" alone.
    pub weights: Option<Located<Weights>>,
    /// `max_rtt`: round-trip time beyond which a path is left, or copies begin; for "load-balancing", "priority" and
    /// "redundant" alone; 1 ms to a minute.
    pub max_rtt: Option<Located<Duration>>,
    /// `max_loss`: what may be sent again, in percent; the same.
    pub max_loss: Option<Located<Percent>>,
    /// `hold`: how long a connection stays where it was moved; 100 ms to a day. Default 1 s.
    pub hold: Located<Duration>,
    /// `fail_back`: how long it stays away from an access before those it was moved to; up to a day. Default 5 s.
    pub fail_back: Located<Duration>,
    /// `client_backup`: a path that the client wants as backup is taken when no other is left. Default true.
    pub client_backup: Located<bool>,
    /// `carrier`: what carries connections of its services and clients, of services that have a carrier. Default: what those say.
    pub carrier: Option<Located<Carrier>>,
}

/// Reads all of them.
pub(super) fn read(root: &Reader<'_, '_>, out: &mut Diagnostics) -> Vec<Rule> {
    let Some(value) = root.get("rule") else {
        return Vec::new();
    };
    let DeValue::Array(tables) = value.get_ref() else {
        let kind = read::kind(value);
        out.error(
            value.span().start,
            format!("`rule` is {kind}; write [[rule]], in two brackets, for each"),
        );
        return Vec::new();
    };
    let read = tables.iter().filter_map(|table| one(table, out));
    read.collect()
}

fn one(value: &Spanned<DeValue<'_>>, out: &mut Diagnostics) -> Option<Rule> {
    let at = value.span().start;
    let DeValue::Table(entries) = value.get_ref() else {
        let kind = read::kind(value);
        out.error(
            at,
            format!("a rule can't be {kind}; write a [[rule]] section"),
        );
        return None;
    };
    let known = keys::names(keys::RULE);
    let section = Reader::new(entries, ("a rule", at), &known, &[], out);
    let name = section.required::<String>("name", "write name = \"video\"", out);
    if let Some(name) = name.as_ref().filter(|name| name.value.is_empty()) {
        out.error(name.at, "`name` is empty; write one like \"video\"");
    }
    let mode = section.required("mode", "write mode = \"smallest-delay\"", out);
    let ports = section.list::<Ports>("ports", out).into_iter();
    Some(Rule {
        at,
        name: name.unwrap_or_else(|| Located::new(String::new(), at)),
        services: section.list("services", out),
        servers: section.list("servers", out),
        ports: ports
            .map(|ports| Located::new(ports.value.0, ports.at))
            .collect(),
        clients: section.list("clients", out),
        mode: mode.unwrap_or_else(|| Located::new(Steering::SmallestDelay, at)),
        own_mode: None,
        accesses: section.list("accesses", out),
        weights: section.optional("weights", out),
        max_rtt: section.optional("max_rtt", out),
        max_loss: section.optional("max_loss", out),
        hold: section.or("hold", HOLD, out),
        fail_back: section.or("fail_back", FAIL_BACK, out),
        client_backup: section.or("client_backup", true, out),
        carrier: section.optional("carrier", out),
    })
}

/// Adds what is wrong with them to `out`.
pub(super) fn check(config: &Config, out: &mut Diagnostics) {
    if let Some(first) = config.rules.get(MAX_RULES) {
        let said = format!("there can't be more than {MAX_RULES} rules; remove those from here on");
        out.error(first.at, said);
    }
    let mut names = BTreeSet::new();
    let mut widest: Option<&Rule> = None;
    for rule in &config.rules {
        let name = &rule.name;
        let is_new = names.insert(name.value.as_str());
        if !is_new && !name.value.is_empty() {
            let said = format!(
                "there is a rule named `{}` already; give each its own name",
                name.value
            );
            out.error(name.at, said);
        }
        let services = config.services.iter().map(|service| &service.name);
        known("service", &rule.services, services, out);
        let accesses = config.accesses.iter().map(|access| &access.name);
        known("access", &rule.accesses, accesses, out);
        steering::check(config, rule, out);
        times(rule, out);
        split::of_rule(config, rule, out);
        if let Some(all) = widest {
            let said = format!(
                "no connection can be of this rule: all are of `{}` before it; put it there, or narrow the other",
                all.name.value
            );
            out.error(rule.at, said);
        } else if rule.fits_all() {
            widest = Some(rule);
        }
    }
}

/// Names of what is there.
fn known<'a>(
    what: &str,
    names: &[Located<String>],
    there: impl Iterator<Item = &'a Located<String>> + Clone,
    out: &mut Diagnostics,
) {
    for name in names {
        if there.clone().all(|known| known.value != name.value) {
            let said = format!(
                "there is no {what} `{}`; write the name of one, or a [[{what}]] of that name",
                name.value
            );
            out.error(name.at, said);
        }
    }
}

fn times(rule: &Rule, out: &mut Diagnostics) {
    if !(LEAST_HOLD..=MOST_HOLD).contains(&rule.hold.value) {
        let said = "`hold` has to be between 100ms and 24h; write one like \"1s\"";
        out.error(rule.hold.at, said);
    }
    if rule.fail_back.value > MOST_HOLD {
        let said = "`fail_back` can't be more than 24h; write one like \"5s\"";
        out.error(rule.fail_back.at, said);
    }
}

impl Rule {
    /// Whether every connection fits.
    const fn fits_all(&self) -> bool {
        self.services.is_empty()
            && self.servers.is_empty()
            && self.ports.is_empty()
            && self.clients.is_empty()
    }

    /// As the translator has it. `ids` are those of the services of `config`.
    pub(super) fn told(&self, config: &Config, ids: &[ServiceId]) -> flexcp_translator::Rule {
        let named = |name: &Located<String>| {
            let mut services = config.services.iter().zip(ids);
            let found = services.find(|(service, _)| service.name.value == name.value);
            found.map(|(_, id)| *id)
        };
        flexcp_translator::Rule {
            name: self.name.value.as_str().into(),
            services: self.services.iter().filter_map(named).collect(),
            servers: self.servers.iter().map(|prefix| prefix.value).collect(),
            ports: self.ports.iter().map(|ports| ports.value.clone()).collect(),
            clients: self.clients.iter().map(|prefix| prefix.value).collect(),
            mode: match &self.own_mode {
                Some(own) => Arc::clone(own),
                None => steering::told(config, self),
            },
            hold: self.hold.value,
            fail_back: self.fail_back.value,
            heeds_backup: self.client_backup.value,
            carrier: self.carrier.as_ref().map(|carrier| carrier.value),
        }
    }
}

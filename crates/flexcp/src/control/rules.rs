//! The rules of the configuration in force, as they are answered.

use super::VERSION;
use super::view::{Rule, Rules};
use crate::config::rule as configured;
use crate::config::span::Located;
use crate::config::{ShowPorts, ShowPrefix};
use crate::generation::Generation;

/// All of them, in their order.
pub(super) fn rules(generation: &Generation) -> Rules {
    Rules {
        version: VERSION,
        generation: generation.number,
        rules: generation.config.rules.iter().map(rule).collect(),
    }
}

fn rule(rule: &configured::Rule) -> Rule {
    let names = |names: &[Located<String>]| names.iter().map(|name| name.value.clone()).collect();
    let prefixes = |prefixes: &[Located<flexcp_translator::Prefix>]| {
        let prefixes = prefixes.iter();
        prefixes
            .map(|prefix| ShowPrefix(prefix.value).to_string())
            .collect()
    };
    let ports = rule.ports.iter();
    let micros = |time: std::time::Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    Rule {
        name: rule.name.value.clone(),
        services: names(&rule.services),
        servers: prefixes(&rule.servers),
        ports: ports
            .map(|ports| ShowPorts(&ports.value).to_string())
            .collect(),
        clients: prefixes(&rule.clients),
        mode: rule.mode.value.name().into(),
        accesses: names(&rule.accesses),
        hold_us: micros(rule.hold.value),
        fail_back_us: micros(rule.fail_back.value),
        weights: rule.weights.as_ref().map(|weights| {
            let weights = weights.value.0.iter();
            weights
                .map(|(name, weight)| (name.clone(), *weight))
                .collect()
        }),
        max_rtt_us: rule.max_rtt.map(|rtt| micros(rtt.value)),
        max_loss: rule.max_loss.map(|loss| loss.value.0),
        client_backup: rule.client_backup.value,
    }
}

//! The rules of the configuration in force, as they are answered.

use axum::extract::rejection::BytesRejection;
use bytes::Bytes;
use serde::Deserialize;
use utoipa::ToSchema;

use super::VERSION;
use super::fault::{Fault, Refused};
use super::view::{Rule, Rules, Source};
use crate::config::rule as configured;
use crate::config::span::Located;
use crate::config::told::{Told, Wrong};
use crate::config::{ShowPorts, ShowPrefix};
use crate::generation::Generation;
use crate::watch::ChangeError;

/// The body of `PUT /v1/rules`.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RulesToSet {
    /// All of them, in their order: objects with the keys of `[[rule]]` in the configuration file, which
    /// `/v1/config/schema` describes.
    #[schema(value_type = Vec<Object>)]
    rules: Vec<Told>,
}

impl RulesToSet {
    /// From a body, if it could be read.
    pub(super) fn read(body: Result<Bytes, BytesRejection>) -> Result<Vec<Told>, Refused> {
        let body = body.map_err(|error| {
            Refused::new(error.status(), Fault::new("the body", &error.body_text()))
        })?;
        let read = serde_json::from_slice::<Self>(&body);
        let told = read.map_err(|error| {
            let message =
                format!("{error}; send {{\"rules\": [{{\"name\": ..., \"mode\": ...}}, ...]}}");
            Fault::new("the body", &message)
        });
        Ok(told?.rules)
    }
}

impl From<ChangeError> for Refused {
    fn from(error: ChangeError) -> Self {
        match error {
            ChangeError::Rules(Wrong { field, message }) => Fault::new(field, &message).into(),
            error => Self::silent("flexcp", &error),
        }
    }
}

/// Whether the answer waits until the rules are saved.
pub(super) fn waits(query: Option<&str>) -> Result<bool, Fault> {
    match query {
        None | Some("" | "saved=false") => Ok(false),
        Some("saved=true") => Ok(true),
        Some(_) => Err(Fault::new(
            "the query",
            "only `saved` is known here; write `saved=true` to have the answer wait until the rules are saved",
        )),
    }
}

/// All of them, in their order; `set`: by the API.
pub(super) fn rules(generation: &Generation, set: bool) -> Rules {
    Rules {
        version: VERSION,
        generation: generation.number,
        source: if set { Source::Api } else { Source::File },
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
        mode: match &rule.own_mode {
            Some(_) => "own".into(),
            None => rule.mode.value.name().into(),
        },
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

//! The rules of the configuration in force, as they are answered, and what clients send to change them.

use axum::extract::rejection::BytesRejection;
use axum::http::StatusCode;
use bytes::Bytes;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use utoipa::{IntoParams, ToSchema};

use super::VERSION;
use super::fault::{Fault, Refused};
use super::view::{OneRule, Rule, Rules, Source};
use super::wanted;
use crate::config::edit::Edit;
use crate::config::rule as configured;
use crate::config::span::Located;
use crate::config::told::{self, Told, Wrong};
use crate::config::{ShowPorts, ShowPrefix, carrier_name};
use crate::watch::{ChangeError, Steered};

/// The body of `PUT /v1/rules`.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RulesToSet {
    /// All of them, in their order: objects with the keys of `[[rule]]` in the configuration file, which
    /// `/v1/config/schema` describes.
    #[schema(value_type = Vec<Object>)]
    rules: Vec<Told>,
}

/// The body of `PATCH /v1/rules`.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ChangesToMake {
    /// One behind the other.
    changes: Vec<RuleChange>,
}

/// A change of one rule.
#[derive(Deserialize, ToSchema)]
#[serde(untagged, try_from = "ChangeParts")]
enum RuleChange {
    /// Sets a rule.
    Set {
        /// It takes the place of the rule of its name, or is new: an object with the keys of `[[rule]]` in the configuration
        /// file.
        #[schema(value_type = Object)]
        set: Told,
        /// The name of the rule that it is placed before. Without it, it stays in its place, and a new one is the last.
        before: Option<String>,
    },
    /// Adds a rule.
    Add {
        /// The same of which there must be none of its name.
        #[schema(value_type = Object)]
        add: Told,
        /// The name of the rule that it is placed before. Without it, it is the last.
        before: Option<String>,
    },
    /// Removes a rule.
    Remove {
        /// Its name.
        remove: String,
    },
}

/// What may stand in a change.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ChangeParts {
    set: Option<Told>,
    add: Option<Told>,
    before: Option<String>,
    remove: Option<String>,
}

/// The body of `PUT /v1/rules/{name}`: an object with the keys of `[[rule]]` in the configuration file; `name` may be left
/// out.
#[derive(Deserialize, ToSchema)]
#[schema(value_type = Object)]
pub(super) struct RuleToSet(Told);

impl RulesToSet {
    /// From a body, if it could be read.
    pub(super) fn read(body: Result<Bytes, BytesRejection>) -> Result<Vec<Told>, Refused> {
        let form = "{\"rules\": [{\"name\": ..., \"mode\": ...}, ...]}";
        Ok(read::<Self>(body, form)?.rules)
    }
}

impl ChangesToMake {
    /// From a body, if it could be read.
    pub(super) fn read(body: Result<Bytes, BytesRejection>) -> Result<Vec<Edit>, Refused> {
        let form =
            "{\"changes\": [{\"set\": {\"name\": ..., \"mode\": ...}}, {\"remove\": ...}, ...]}";
        let changes = read::<Self>(body, form)?.changes.into_iter();
        let edit = |change| match change {
            RuleChange::Set { set, before } => Edit::Set {
                rule: set,
                new: false,
                before,
            },
            RuleChange::Add { add, before } => Edit::Set {
                rule: add,
                new: true,
                before,
            },
            RuleChange::Remove { remove } => Edit::Remove(remove),
        };
        Ok(changes.map(edit).collect())
    }
}

impl TryFrom<ChangeParts> for RuleChange {
    type Error = &'static str;

    fn try_from(parts: ChangeParts) -> Result<Self, Self::Error> {
        match (parts.set, parts.add, parts.remove, parts.before) {
            (Some(set), None, None, before) => Ok(Self::Set { set, before }),
            (None, Some(add), None, before) => Ok(Self::Add { add, before }),
            (None, None, Some(remove), None) => Ok(Self::Remove { remove }),
            (None, None, _, Some(_)) => Err("`before` goes with `set` or `add`"),
            _ => Err("a change has either `set`, `add` or `remove`"),
        }
    }
}

impl RuleToSet {
    /// From a body, if it could be read, for the rule `name`.
    pub(super) fn read(body: Result<Bytes, BytesRejection>, name: &str) -> Result<Told, Refused> {
        let Self(mut rule) = read(body, "{\"mode\": ...}")?;
        let told = rule.insert("name".into(), name.into());
        if told.is_some_and(|told| told != name) {
            let message =
                format!("the path names the rule `{name}`; write the same, or leave it out");
            return Err(Fault::new("name", &message).into());
        }
        Ok(rule)
    }
}

/// What a body says; `form`: what it should look like.
pub(super) fn read<T: DeserializeOwned>(
    body: Result<Bytes, BytesRejection>,
    form: &str,
) -> Result<T, Refused> {
    let body = body.map_err(|error| {
        Refused::new(error.status(), Fault::new("the body", &error.body_text()))
    })?;
    let mut reader = serde_json::Deserializer::from_slice(&body);
    let read = serde_path_to_error::deserialize(&mut reader)
        .map_err(|error| (error.path().to_string(), error.to_string()));
    let whole = read.and_then(|read| match reader.end() {
        Ok(()) => Ok(read),
        Err(error) => Err((".".into(), error.to_string())),
    });
    whole.map_err(|(path, error)| {
        let place = if path == "." { "the body" } else { &path };
        Fault::new(place, &format!("{error}; send {form}")).into()
    })
}

impl From<ChangeError> for Refused {
    fn from(error: ChangeError) -> Self {
        match error {
            ChangeError::Rules(Wrong { field, message }) => Fault::new(field, &message).into(),
            error => Self::silent("flexcp", &error),
        }
    }
}

/// What is wrong with a change of one rule, in the words of its request.
pub(super) fn of_one(error: ChangeError, name: &str) -> Refused {
    let ChangeError::Rules(Wrong { field, message }) = error else {
        return error.into();
    };
    let field = match field.strip_prefix("changes[0].") {
        Some("remove") => return unknown(name),
        Some("before") => "parameter `before`",
        Some("set") => "the body",
        Some(field) => field.strip_prefix("set.").unwrap_or(field),
        None => &field,
    };
    Fault::new(field, &message).into()
}

/// There is no rule of the name that the path has.
pub(super) fn unknown(name: &str) -> Refused {
    let message = format!("there is no rule `{name}`; GET /v1/rules says which there are");
    Refused::new(StatusCode::NOT_FOUND, Fault::new("the path", &message))
}

/// The query of a change, as the document says it.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "it is what the document says; `Query` reads it")]
pub(super) struct OfChange {
    /// The answer waits until the rules are saved.
    saved: Option<bool>,
    /// Connections that are there are judged by the rules at once.
    r#move: Option<bool>,
}

/// What the query of a change says.
#[derive(Default)]
pub(super) struct Query {
    /// The answer waits until it is saved.
    pub(super) saved: bool,
    /// Connections that are there are judged at once.
    pub(super) moves: bool,
    /// The rule that the one that is set is placed before.
    pub(super) before: Option<String>,
}

impl Query {
    /// Of any change.
    pub(super) fn of_change(query: Option<&str>) -> Result<Self, Fault> {
        Self::read(query, &["saved", "move"])
    }

    /// Of what is told about services.
    pub(super) fn of_saved(query: Option<&str>) -> Result<Self, Fault> {
        Self::read(query, &["saved"])
    }

    /// Of a rule that may be placed.
    pub(super) fn of_placed(query: Option<&str>) -> Result<Self, Fault> {
        Self::read(query, &["saved", "move", "before"])
    }

    fn read(query: Option<&str>, known: &[&str]) -> Result<Self, Fault> {
        let mut read = Self::default();
        let mut seen = Vec::new();
        for (name, value) in form_urlencoded::parse(query.unwrap_or_default().as_bytes()) {
            if !known.contains(&name.as_ref()) {
                return Err(wanted::unknown(&name, known));
            }
            if seen.contains(&name) {
                return Err(wanted::twice(&name));
            }
            match name.as_ref() {
                "saved" => read.saved = flag(&name, &value)?,
                "move" => read.moves = flag(&name, &value)?,
                _ => read.before = Some(value.into_owned()),
            }
            seen.push(name);
        }
        Ok(read)
    }
}

fn flag(name: &str, value: &str) -> Result<bool, Fault> {
    value.parse().map_err(|_| {
        Fault::parameter(
            name,
            &format!("`{value}` is neither true nor false; write `{name}=true`"),
        )
    })
}

/// All of them, in their order.
pub(super) fn rules(of: &Steered) -> Rules {
    Rules {
        version: VERSION,
        generation: of.generation.number,
        source: source(of),
        rules: of.generation.config.rules.iter().map(view).collect(),
    }
}

/// The one of that name.
pub(super) fn rule(of: &Steered, name: &str) -> Option<OneRule> {
    let mut rules = of.generation.config.rules.iter();
    let place = rules.position(|rule| rule.name.value == name)?;
    let rule = of.generation.config.rules.get(place)?;
    Some(OneRule {
        version: VERSION,
        generation: of.generation.number,
        source: source(of),
        place,
        rule: view(rule),
        keys: told::of(rule),
    })
}

fn source(of: &Steered) -> Source {
    match of.set.rules {
        Some(_) => Source::Api,
        None => Source::File,
    }
}

fn view(rule: &configured::Rule) -> Rule {
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
        carrier: rule
            .carrier
            .as_ref()
            .map(|carrier| carrier_name(carrier.value).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_of_a_change_says_what_goes_with_it() {
        let read =
            |query| Query::of_placed(Some(query)).map(|read| (read.saved, read.moves, read.before));
        let before = Some("a b".into());
        assert_eq!(
            read("saved=true&before=a%20b&move=true"),
            Ok((true, true, before))
        );
        assert_eq!(read("saved=false&move=false"), Ok((false, false, None)));
        assert_eq!(read("move=true"), Ok((false, true, None)));
        assert_eq!(read(""), Ok((false, false, None)));
        for (query, place) in [
            ("move=1", "move"),
            ("move=true&move=true", "move"),
            ("moved=true", "moved"),
        ] {
            assert_eq!(
                read(query).unwrap_err().place,
                format!("parameter `{place}`")
            );
        }
        let placed = Query::of_change(Some("before=a"));
        assert_eq!(placed.map(|_| ()).unwrap_err().place, "parameter `before`");
    }
}

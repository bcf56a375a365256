//! How rules are read and changed: all of them, single ones, batches, and documents of multi-access rules.

use std::sync::Arc;

use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::extract::{Path, RawQuery, State};
use axum::http::StatusCode;
use bytes::Bytes;

use super::fault::{Fault, Refusal, Refused};
use super::routes::{Answer, Daemon, json};
use super::rules::{self, ChangesToMake, OfChange, Query, RulesToSet};
use super::view::{MarSet, OneRule, Rules};
use super::{VERSION, wanted};
use crate::config::edit::Edit;
use crate::config::mar::Document;
use crate::rulebook::Change;
use crate::watch::{ChangeError, Steered, Unwatched};

/// The rules of the configuration in force, in their order
#[utoipa::path(get, path = "/v1/rules", operation_id = "rules", responses(
    (status = 200, body = Rules), (status = 400, body = Refusal), (status = 503, body = Refusal),
))]
pub(super) async fn rules(State(daemon): State<Arc<Daemon>>, RawQuery(query): RawQuery) -> Answer {
    wanted::none(query.as_deref())?;
    json(&rules::rules(&in_force(&daemon).await?))
}

/// Set the rules, all of them at once
///
/// From then on they are in force in place of the file's, over reloads and restarts. They are saved within about a second;
/// with `saved=true` the answer comes when they are. What is wrong with them is named by its field, and then nothing changes.
/// Connections that are there go by them when their time has come; with `move=true` at once.
#[utoipa::path(put, path = "/v1/rules", operation_id = "set_rules", request_body = RulesToSet,
    params(OfChange),
    responses(
        (status = 200, body = Rules), (status = 400, body = Refusal), (status = 413, body = Refusal),
        (status = 503, body = Refusal),
    )
)]
pub(super) async fn set_rules(
    State(daemon): State<Arc<Daemon>>,
    RawQuery(query): RawQuery,
    body: Result<Bytes, BytesRejection>,
) -> Answer {
    let query = Query::of_change(query.as_deref())?;
    let change = Change::Set(RulesToSet::read(body)?);
    json(&rules::rules(&changed(&daemon, change, &query).await??))
}

/// Change some of the rules: all of these changes, or none
///
/// They are made one behind the other, in one step: no connection is judged in between. The first change to the rules of the
/// configuration file makes all of them rules that are set.
#[utoipa::path(patch, path = "/v1/rules", operation_id = "change_rules", request_body = ChangesToMake,
    params(OfChange),
    responses(
        (status = 200, body = Rules), (status = 400, body = Refusal), (status = 413, body = Refusal),
        (status = 503, body = Refusal),
    )
)]
pub(super) async fn change_rules(
    State(daemon): State<Arc<Daemon>>,
    RawQuery(query): RawQuery,
    body: Result<Bytes, BytesRejection>,
) -> Answer {
    let query = Query::of_change(query.as_deref())?;
    let change = Change::Edit(ChangesToMake::read(body)?);
    json(&rules::rules(&changed(&daemon, change, &query).await??))
}

/// Take back the rules that were set: those of the configuration file are in force again
#[utoipa::path(delete, path = "/v1/rules", operation_id = "take_back_rules",
    params(OfChange),
    responses((status = 200, body = Rules), (status = 400, body = Refusal), (status = 503, body = Refusal))
)]
pub(super) async fn take_back_rules(
    State(daemon): State<Arc<Daemon>>,
    RawQuery(query): RawQuery,
) -> Answer {
    let query = Query::of_change(query.as_deref())?;
    json(&rules::rules(
        &changed(&daemon, Change::TakeBack, &query).await??,
    ))
}

/// The rule of a name, and its place among the others
#[utoipa::path(get, path = "/v1/rules/{name}", operation_id = "rule",
    params(("name" = String, Path, description = "The rule's name.")),
    responses(
        (status = 200, body = OneRule), (status = 400, body = Refusal), (status = 404, body = Refusal),
        (status = 503, body = Refusal),
    )
)]
pub(super) async fn rule(
    State(daemon): State<Arc<Daemon>>,
    name: Name,
    RawQuery(query): RawQuery,
) -> Answer {
    wanted::none(query.as_deref())?;
    let name = read(name)?;
    let rule = rules::rule(&in_force(&daemon).await?, &name);
    json(&rule.ok_or_else(|| rules::unknown(&name))?)
}

/// Set the rule of a name; others stay
///
/// It takes the place of the one of its name. A new one is the last, unless `before` names another.
#[utoipa::path(put, path = "/v1/rules/{name}", operation_id = "set_rule", request_body = rules::RuleToSet,
    params(
        ("name" = String, Path, description = "The rule's name."),
        ("before" = Option<String>, Query, description = "The name of the rule that it is placed before."),
        OfChange,
    ),
    responses(
        (status = 200, body = OneRule), (status = 201, body = OneRule, description = "There was none of that name."),
        (status = 400, body = Refusal), (status = 413, body = Refusal), (status = 503, body = Refusal),
    )
)]
pub(super) async fn set_rule(
    State(daemon): State<Arc<Daemon>>,
    name: Name,
    RawQuery(query): RawQuery,
    body: Result<Bytes, BytesRejection>,
) -> Answer {
    let query = Query::of_placed(query.as_deref())?;
    let name = read(name)?;
    let rule = rules::RuleToSet::read(body, &name)?;
    let edit = Edit::Set {
        rule,
        new: false,
        before: query.before.clone(),
    };
    let change = Change::Edit(vec![edit]);
    let steered = changed(&daemon, change, &query).await?;
    let steered = steered.map_err(|error| rules::of_one(error, &name))?;
    let rule = rules::rule(&steered, &name).ok_or_else(|| rules::unknown(&name))?;
    let mut answer = json(&rule)?;
    if steered.new > 0 {
        *answer.status_mut() = StatusCode::CREATED;
    }
    Ok(answer)
}

/// Remove the rule of a name; others stay
#[utoipa::path(delete, path = "/v1/rules/{name}", operation_id = "remove_rule",
    params(
        ("name" = String, Path, description = "The rule's name."),
        OfChange,
    ),
    responses(
        (status = 200, body = Rules), (status = 400, body = Refusal), (status = 404, body = Refusal),
        (status = 503, body = Refusal),
    )
)]
pub(super) async fn remove_rule(
    State(daemon): State<Arc<Daemon>>,
    name: Name,
    RawQuery(query): RawQuery,
) -> Answer {
    let query = Query::of_change(query.as_deref())?;
    let name = read(name)?;
    let change = Change::Edit(vec![Edit::Remove(name.clone())]);
    let steered = changed(&daemon, change, &query).await?;
    let steered = steered.map_err(|error| rules::of_one(error, &name))?;
    json(&rules::rules(&steered))
}

/// The document of multi-access rules that the rules are from
///
/// It is as it was set. Its path is none of a rule, whatever the rules' names.
#[utoipa::path(get, path = "/v1/mar", operation_id = "mar", responses(
    (status = 200, body = MarSet), (status = 400, body = Refusal),
    (status = 404, body = Refusal, description = "The rules are from no document, or were changed since."),
    (status = 503, body = Refusal),
))]
pub(super) async fn mar(State(daemon): State<Arc<Daemon>>, RawQuery(query): RawQuery) -> Answer {
    wanted::none(query.as_deref())?;
    let steered = in_force(&daemon).await?;
    let Some(document) = steered.set.mar else {
        let message = "the rules are from no document of multi-access rules; set one with PUT, or see GET /v1/rules";
        return Err(Refused::new(
            StatusCode::NOT_FOUND,
            Fault::new("the path", message),
        ));
    };
    json(&MarSet {
        version: VERSION,
        generation: steered.generation.number,
        mar: (*document).clone(),
    })
}

/// Set a document of multi-access rules (3GPP TS 29.244)
///
/// It becomes rules, which take the place of those there; what can't be honoured is refused by its field. The document is kept
/// with them until they are changed.
#[utoipa::path(put, path = "/v1/mar", operation_id = "set_mar", request_body = Document,
    params(OfChange),
    responses(
        (status = 200, body = Rules), (status = 400, body = Refusal), (status = 413, body = Refusal),
        (status = 503, body = Refusal),
    )
)]
pub(super) async fn set_mar(
    State(daemon): State<Arc<Daemon>>,
    RawQuery(query): RawQuery,
    body: Result<Bytes, BytesRejection>,
) -> Answer {
    let query = Query::of_change(query.as_deref())?;
    let form = "{\"accesses\": {\"3gpp\": ..., \"non_3gpp\": ...}, \"mars\": [...]}";
    let change = Change::Mar(rules::read(body, form)?);
    json(&rules::rules(&changed(&daemon, change, &query).await??))
}

/// A rule's name, if the path could be read.
type Name = Result<Path<String>, PathRejection>;

fn read(name: Name) -> Result<String, Fault> {
    let wrong =
        |error: PathRejection| format!("{}; write it in UTF-8, percent-encoded", error.body_text());
    let name = name.map_err(|error| Fault::new("the path", &wrong(error)))?;
    Ok(name.0)
}

async fn in_force(daemon: &Daemon) -> Result<Steered, Refused> {
    let steered = daemon.told("the watcher", |asked| {
        Ok::<_, Unwatched>(Steered {
            generation: asked.watch.generation()?,
            set: asked.watch.rules_set()?,
            new: 0,
        })
    });
    steered.await
}

/// Has the rules changed, and waits until that is saved if it is wanted. What is wrong with the change is the inner error.
async fn changed(
    daemon: &Daemon,
    change: Change,
    query: &Query,
) -> Result<Result<Steered, ChangeError>, Refused> {
    let moves = query.moves;
    let steered = match daemon
        .ask(move |asked| asked.watch.steer(change, moves))
        .await?
    {
        Ok(steered) => steered,
        Err(error) => return Ok(Err(error)),
    };
    daemon.save(steered.set.changes, query.saved).await?;
    Ok(Ok(steered))
}

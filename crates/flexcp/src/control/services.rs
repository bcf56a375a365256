//! Services and their back ends as they stand, and what can be told about them.

use std::net::SocketAddr;
use std::time::Duration;

use axum::extract::Path;
use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::http::StatusCode;
use bytes::Bytes;
use flexcp_io::monotonic_micros;
use flexcp_translator::{BackendView, Mark};
use serde::Deserialize;
use serde_json::Value as Json;
use utoipa::ToSchema;

use super::VERSION;
use super::fault::{Fault, Refused};
use super::server::Asked;
use super::view::{
    BackendStatus, Drain, DrainState, Health, LastDown, OneService, Service, Services,
};
use crate::config::backend::Backend;
use crate::generation::Generation;
use crate::orders::{Change, Unknown};
use crate::watch::ServicesNow;

/// All of them.
pub(super) fn services(asked: &Asked) -> Result<Services, String> {
    let now = asked.watch.services().map_err(|gone| gone.to_string())?;
    let views = Views {
        workers: views(asked)?,
        relay: asked.split.backends(),
    };
    let ServicesNow {
        generation,
        status,
        closings,
    } = now;
    let at = monotonic_micros();
    let each = status.into_iter().enumerate().map(|(place, status)| {
        let backends = backends(&generation, place, &views, at);
        let drains = generation.orders.drains(&status.name);
        let drain = drains.then(|| drain(&closings, &status.name, at));
        Service {
            name: status.name,
            mode: status.mode,
            passes: status.passes,
            interfaces: status.interfaces,
            marked_backends: status.marked_backends,
            backends,
            drain,
        }
    });
    Ok(Services {
        version: VERSION,
        generation: generation.number,
        services: each.collect(),
    })
}

/// How far the drain of a service is, at a moment in microseconds.
fn drain(closings: &[(String, u64)], name: &str, at: u64) -> Drain {
    let closing = closings.iter().find(|(closing, _)| closing == name);
    match closing {
        Some((_, until)) => Drain {
            state: DrainState::Draining,
            left_us: until.saturating_sub(at),
        },
        None => Drain {
            state: DrainState::Drained,
            left_us: 0,
        },
    }
}

/// The one of this name, when something was told about it.
pub(super) fn one(asked: &Asked, name: &str) -> Result<OneService, String> {
    let all = services(asked)?;
    let mut services = all.services.into_iter();
    let service = services.find(|service| service.name == name);
    Ok(OneService {
        version: VERSION,
        generation: all.generation,
        service: service.ok_or("the service has gone meanwhile")?,
    })
}

/// Back ends, as those who call them see them.
struct Views {
    workers: Vec<BackendView>,
    relay: Vec<BackendView>,
}

/// Each worker's.
pub(super) fn views(asked: &Asked) -> Result<Vec<BackendView>, String> {
    let workers = asked.workers.iter().enumerate();
    let views = workers.map(|(number, worker)| {
        let views = worker.backends();
        views.map_err(|error| format!("worker {number}: {error}"))
    });
    Ok(views.collect::<Result<Vec<_>, _>>()?.concat())
}

/// Those of a service by its place, at a moment in microseconds.
fn backends(generation: &Generation, place: usize, views: &Views, at: u64) -> Vec<BackendStatus> {
    let service = generation.config.services.get(place);
    let Some((service, id)) = service.zip(generation.ids.get(place)) else {
        return vec![];
    };
    let each = service.mode.backends().iter().map(|backend| {
        let (part, set) = generation.orders.part(&service.name.value, backend.value);
        let is = |view: &&BackendView| (view.service, view.addr) == (*id, backend.value.addr);
        BackendStatus {
            address: backend.value.addr,
            weight: part.weight,
            weight_set: set,
            maintenance: part.maintenance,
            ..status(
                [&views.workers, &views.relay].map(|views| views.iter().filter(is)),
                backend.value,
                at,
            )
        }
    });
    each.collect()
}

/// One back end, as the workers and the relay see it.
fn status<'a>(
    [workers, relay]: [impl Iterator<Item = &'a BackendView> + Clone; 2],
    backend: Backend,
    at: u64,
) -> BackendStatus {
    let is_down = |view: &&BackendView| view.mark.is_some();
    let down = workers.clone().filter(is_down).count();
    let views = workers.chain(relay);
    let last = views.clone().filter_map(|view| view.last_mark);
    let last = last.max_by_key(|mark| mark.since);
    BackendStatus {
        address: backend.addr,
        weight: backend.weight,
        weight_set: false,
        maintenance: false,
        health: match views.clone().any(|view| is_down(&view)) {
            true => Health::Down,
            false => Health::Up,
        },
        down_workers: u64::try_from(down).unwrap_or(u64::MAX),
        last_down: last.map(|mark: Mark| LastDown {
            reason: mark.reason.name().into(),
            ago_us: at.saturating_sub(mark.since.0),
        }),
        connections: views.map(|view| view.connections).sum(),
    }
}

/// The body of `PUT /v1/services/{service}/backends/{address}`: what changes; the rest stays.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(min_properties = 1)]
#[expect(
    dead_code,
    reason = "it is what the document says; the body is read field by field"
)]
pub(super) struct BackendToSet {
    /// Its part of all weights of the service's new connections; null: that of the configuration file.
    #[schema(maximum = 256)]
    weight: Option<u16>,
    /// Whether it takes no new connections for now, whatever its weight.
    #[schema(value_type = bool, required = false)]
    maintenance: Option<bool>,
}

/// What a body says of a back end.
pub(super) fn change(body: Result<Bytes, BytesRejection>) -> Result<Change, Refused> {
    let fields = fields(body, &["weight", "maintenance"], BACKEND)?;
    let mut change = Change::default();
    for (name, value) in &fields {
        match (name.as_str(), value) {
            ("weight", Json::Null) => change.weight = Some(None),
            ("weight", value) => change.weight = Some(Some(weight(value)?)),
            (_, Json::Bool(maintenance)) => change.maintenance = Some(*maintenance),
            (_, value) => {
                let message = format!("{value} is neither; write true or false");
                return Err(Fault::new("maintenance", &message).into());
            }
        }
    }
    if change == Change::default() {
        let message = format!("there is nothing to change; send {BACKEND}");
        return Err(Fault::new("the body", &message).into());
    }
    Ok(change)
}

fn weight(value: &Json) -> Result<u16, Fault> {
    let wrong = |message: &str| Fault::new("weight", message);
    let Some(number) = whole(value) else {
        let most = Backend::MOST_WEIGHT;
        let message = format!("{value} is no weight; write a number from 0 to {most}, or null");
        return Err(wrong(&message));
    };
    Backend::checked_weight(number).map_err(|message| wrong(&message))
}

/// A whole number, which 60.0 is in JSON, too.
fn whole(value: &Json) -> Option<i64> {
    let written = value.as_number()?.to_string();
    written.strip_suffix(".0").unwrap_or(&written).parse().ok()
}

/// The body of `POST /v1/services/{service}/drain`, which may be left out.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[expect(
    dead_code,
    reason = "it is what the document says; the body is read field by field"
)]
pub(super) struct ServiceToDrain {
    /// What its connections have to end by themselves, a day at most; `drain` in `[timeouts]` when left out.
    within: Option<Within>,
}

/// A time, as in the configuration file.
#[derive(Deserialize, ToSchema)]
#[serde(untagged)]
#[schema(examples(json!("30s"), json!(30)))]
#[expect(dead_code, reason = "as of `ServiceToDrain`")]
enum Within {
    Text(String),
    Seconds(u32),
}

/// How long the connections of a service that is drained have, as a body says.
pub(super) fn within(body: Result<Bytes, BytesRejection>) -> Result<Option<Duration>, Refused> {
    let is_left_out = |body: &Bytes| matches!(body.as_ref(), b"" | b"null");
    if body.as_ref().is_ok_and(is_left_out) {
        return Ok(None);
    }
    let fields = fields(body, &["within"], DRAIN)?;
    let within = match fields.get("within") {
        None | Some(Json::Null) => return Ok(None),
        Some(Json::String(text)) => crate::config::duration(text),
        Some(value) => whole(value)
            .and_then(|seconds| u64::try_from(seconds).ok())
            .map(Duration::from_secs)
            .ok_or_else(|| format!("{value} is no time; write one like \"30s\", or seconds")),
    };
    let within = within.map_err(|message| Fault::new("within", &message))?;
    if within > LONGEST {
        let message = "that is more than a day; write less";
        return Err(Fault::new("within", message).into());
    }
    Ok(Some(within))
}

/// The fields of a body that is an object, of which none is unknown. `example`: what to send.
fn fields(
    body: Result<Bytes, BytesRejection>,
    known: &[&str],
    example: &str,
) -> Result<serde_json::Map<String, Json>, Refused> {
    let body = body.map_err(|error| {
        Refused::new(error.status(), Fault::new("the body", &error.body_text()))
    })?;
    let read = serde_json::from_slice::<serde_json::Map<String, Json>>(&body);
    let wrong = |error| Fault::new("the body", &format!("{error}; send {example}"));
    let fields = read.map_err(wrong)?;
    let unknown = fields.keys().find(|name| !known.contains(&name.as_str()));
    match unknown {
        Some(unknown) => {
            let message = format!("there is no such field; known here: {}", known.join(", "));
            Err(Fault::new(unknown.as_str(), &message).into())
        }
        None => Ok(fields),
    }
}

/// What stands in a path.
pub(super) fn segments<T>(path: Result<Path<T>, PathRejection>) -> Result<T, Refused> {
    match path {
        Ok(Path(segments)) => Ok(segments),
        Err(error) => {
            let message = format!("{}; escape names as RFC 3986 says", error.body_text());
            Err(Fault::new("the path", &message).into())
        }
    }
}

/// The address of a back end in a path; nothing stands in a path that has none.
pub(super) fn address(text: &str) -> Result<SocketAddr, Refused> {
    let message = format!("`{text}` is no address with a port; write one like 192.0.2.1:443");
    let fault = || Fault::new("the back end's address", &message);
    text.parse()
        .map_err(|_| Refused::new(StatusCode::NOT_FOUND, fault()))
}

impl From<Unknown> for Refused {
    fn from(unknown: Unknown) -> Self {
        let place = match unknown {
            Unknown::Service(_) => "the service",
            Unknown::Backend(..) => "the back end's address",
        };
        Self::new(
            StatusCode::NOT_FOUND,
            Fault::new(place, &unknown.to_string()),
        )
    }
}

/// What a body about a service's drain may be.
const DRAIN: &str = "{\"within\": \"30s\"}, or nothing";

/// Whoever waits longer wants something else.
const LONGEST: Duration = Duration::from_secs(86_400);

/// What a body about a back end may be.
const BACKEND: &str = "{\"weight\": 2} or {\"maintenance\": true}";

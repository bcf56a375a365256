//! What can be asked: a function for each path, which is the path's description in the API's document, too.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::extract::{DefaultBodyLimit, Extension, Path, RawQuery, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::{Router, body::Body};
use bytes::Bytes;
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::fault::{Fault, Refusal, Refused};
use super::listing::Listing;
use super::metrics::{self, Format};
use super::patience::{Dawdling, Patience};
use super::rules::RulesToSet;
use super::server::Asked;
use super::services::{BackendToSet, ServiceToDrain};
use super::status::Status;
use super::view::{Accesses, Connections, Event, OneService, Rules, Services, Stats};
use super::wanted::{self, Wanted};
use super::{accesses, events, pieces, rules, services, stats as numbers};
use crate::config;
use crate::config::told::Told;
use crate::orders::Order;
use crate::watch::Unwatched;

/// What clients are answered from.
pub(super) struct Daemon {
    asked: Arc<Asked>,
    /// For clients that are being told the connections, which may be many.
    listings: Arc<Semaphore>,
    /// For clients that are being told what happens.
    listeners: Arc<Semaphore>,
}

/// The frame of the document.
#[derive(OpenApi)]
#[openapi(info(
    title = "FlexCP",
    description = "What a running FlexCP says of itself. Every answer in JSON has the `version` of the API; new fields may come \
                   at any time. Times are microseconds, sizes bytes. Errors are answered with a `Refusal`.",
))]
struct Document;

/// All paths; whoever is asked is `daemon`.
pub(super) fn router(daemon: Arc<Daemon>) -> Router {
    let (router, _) = described().split_for_parts();
    router
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(LARGEST))
        .with_state(daemon)
}

/// The document of the API (OpenAPI 3.1), in JSON.
#[must_use]
pub fn document() -> String {
    let (_, document) = described().split_for_parts();
    // It is made of strings alone.
    document.to_json().unwrap_or_default()
}

fn described() -> OpenApiRouter<Arc<Daemon>> {
    OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(status))
        .routes(routes!(stats))
        .routes(routes!(services_of))
        .routes(routes!(set_backend))
        .routes(routes!(drain, undrain))
        .routes(routes!(accesses_of))
        .routes(routes!(rules_of, set_rules, take_back_rules))
        .routes(routes!(connections))
        .routes(routes!(events_of))
        .routes(routes!(schema))
        .routes(routes!(metrics_of))
        .routes(routes!(openapi))
}

impl Daemon {
    pub(super) fn new(asked: Arc<Asked>) -> Self {
        Self {
            asked,
            listings: Arc::new(Semaphore::new(LISTINGS)),
            listeners: Arc::new(Semaphore::new(LISTENERS)),
        }
    }

    /// How many workers there are.
    pub(super) fn workers(&self) -> usize {
        self.asked.workers.len()
    }

    /// Waits for an answer of workers or the watcher, which may take a while, beside the thread that serves.
    pub(super) async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Asked) -> T + Send + 'static,
    ) -> Result<T, Refused> {
        let asked = Arc::clone(&self.asked);
        let answer = tokio::task::spawn_blocking(move || question(&asked)).await;
        answer.map_err(|error| Refused::silent("flexcp", &error))
    }

    /// The same, of what can fail.
    async fn told<T: Send + 'static, E: fmt::Display + Send + 'static>(
        &self,
        place: &str,
        question: impl FnOnce(&Asked) -> Result<T, E> + Send + 'static,
    ) -> Result<T, Refused> {
        let answer = self.ask(question).await?;
        answer.map_err(|error| Refused::silent(place, &error))
    }

    /// A place among those that are told the connections, if one is free in time.
    async fn listing(&self) -> Result<OwnedSemaphorePermit, Refused> {
        let place = Arc::clone(&self.listings).acquire_owned();
        let place = tokio::time::timeout(TURN, place)
            .await
            .ok()
            .and_then(Result::ok);
        place.ok_or_else(|| {
            Refused::full(&format!(
                "{LISTINGS} clients are being told the connections already; ask again later"
            ))
        })
    }
}

/// Whether packets get through, and what is in their way
#[utoipa::path(get, path = "/v1/status", responses(
    (status = 200, body = Status), (status = 400, body = Refusal), (status = 503, body = Refusal),
))]
async fn status(State(daemon): State<Arc<Daemon>>, RawQuery(query): RawQuery) -> Answer {
    wanted::none(query.as_deref())?;
    json(
        &daemon
            .told("the watcher", |asked| asked.watch.status())
            .await?,
    )
}

/// What has been done and dropped so far
#[utoipa::path(get, path = "/v1/stats", responses(
    (status = 200, body = Stats), (status = 400, body = Refusal), (status = 503, body = Refusal),
))]
async fn stats(State(daemon): State<Arc<Daemon>>, RawQuery(query): RawQuery) -> Answer {
    wanted::none(query.as_deref())?;
    json(&daemon.told("the workers", numbers::stats).await?)
}

/// The services, their interfaces and their back ends
#[utoipa::path(get, path = "/v1/services", operation_id = "services", responses(
    (status = 200, body = Services), (status = 400, body = Refusal), (status = 503, body = Refusal),
))]
async fn services_of(State(daemon): State<Arc<Daemon>>, RawQuery(query): RawQuery) -> Answer {
    wanted::none(query.as_deref())?;
    json(&daemon.told("the workers", services::services).await?)
}

/// Tell a back end's weight or maintenance
///
/// It holds at once for new connections, and over reloads and restarts, until it is taken back or the configuration has the back
/// end no more. The connections that the back end has go on.
#[utoipa::path(put, path = "/v1/services/{service}/backends/{address}", operation_id = "set_backend",
    request_body = BackendToSet,
    params(
        ("service" = String, Path, description = "Its name."),
        ("address" = String, Path, description = "The back end's address and port, such as 192.0.2.1:443."),
        ("saved" = Option<bool>, Query, description = "The answer waits until that is saved."),
    ),
    responses(
        (status = 200, body = OneService), (status = 400, body = Refusal), (status = 404, body = Refusal),
        (status = 413, body = Refusal), (status = 503, body = Refusal),
    )
)]
async fn set_backend(
    State(daemon): State<Arc<Daemon>>,
    path: Result<Path<(String, String)>, PathRejection>,
    RawQuery(query): RawQuery,
    body: Result<Bytes, BytesRejection>,
) -> Answer {
    let waits = rules::waits(query.as_deref())?;
    let (service, address) = services::segments(path)?;
    let order = Order::Backend {
        service,
        address: services::address(&address)?,
        change: services::change(body)?,
    };
    put_order(&daemon, order, waits).await
}

/// Drain a service: it takes no new connections
///
/// Where clients address FlexCP they are refused, on the path they pass as plain TCP. The connections that the service has may
/// end by themselves for a time, then both ends of the rest are told. It stays drained over reloads and restarts.
#[utoipa::path(post, path = "/v1/services/{service}/drain", operation_id = "drain", request_body = Option<ServiceToDrain>,
    params(
        ("service" = String, Path, description = "Its name."),
        ("saved" = Option<bool>, Query, description = "The answer waits until that is saved."),
    ),
    responses(
        (status = 200, body = OneService), (status = 400, body = Refusal), (status = 404, body = Refusal),
        (status = 413, body = Refusal), (status = 503, body = Refusal),
    )
)]
async fn drain(
    State(daemon): State<Arc<Daemon>>,
    path: Result<Path<String>, PathRejection>,
    RawQuery(query): RawQuery,
    body: Result<Bytes, BytesRejection>,
) -> Answer {
    let waits = rules::waits(query.as_deref())?;
    let order = Order::Drain {
        service: services::segments(path)?,
        within: services::within(body)?,
    };
    put_order(&daemon, order, waits).await
}

/// Take back the drain of a service: it takes new connections
///
/// Connections whose ends have not been told yet go on.
#[utoipa::path(delete, path = "/v1/services/{service}/drain", operation_id = "undrain",
    params(
        ("service" = String, Path, description = "Its name."),
        ("saved" = Option<bool>, Query, description = "The answer waits until that is saved."),
    ),
    responses(
        (status = 200, body = OneService), (status = 400, body = Refusal), (status = 404, body = Refusal),
        (status = 503, body = Refusal),
    )
)]
async fn undrain(
    State(daemon): State<Arc<Daemon>>,
    path: Result<Path<String>, PathRejection>,
    RawQuery(query): RawQuery,
) -> Answer {
    let waits = rules::waits(query.as_deref())?;
    let service = services::segments(path)?;
    put_order(&daemon, Order::Undrain { service }, waits).await
}

async fn put_order(daemon: &Daemon, order: Order, waits: bool) -> Answer {
    let name = order.service().to_owned();
    let (_, set) = daemon
        .told("the watcher", |asked| asked.watch.order(order))
        .await??;
    save(daemon, set.changes, waits).await?;
    json(
        &daemon
            .told("the workers", move |asked| services::one(asked, &name))
            .await?,
    )
}

/// The accesses, and what their subflows do
///
/// It goes through all connections, and takes one of the places for that.
#[utoipa::path(get, path = "/v1/accesses", operation_id = "accesses", responses(
    (status = 200, body = Accesses), (status = 400, body = Refusal), (status = 503, body = Refusal),
))]
async fn accesses_of(State(daemon): State<Arc<Daemon>>, RawQuery(query): RawQuery) -> Answer {
    wanted::none(query.as_deref())?;
    let place = daemon.listing().await?;
    let sums = daemon.told("the workers", move |asked| {
        // The place is free when it is done, whether somebody waits for the answer or not.
        let _place = place;
        accesses::sums(asked)
    });
    json(&sums.await?)
}

/// The rules of the configuration in force, in their order
#[utoipa::path(get, path = "/v1/rules", operation_id = "rules", responses(
    (status = 200, body = Rules), (status = 400, body = Refusal), (status = 503, body = Refusal),
))]
async fn rules_of(State(daemon): State<Arc<Daemon>>, RawQuery(query): RawQuery) -> Answer {
    wanted::none(query.as_deref())?;
    let (generation, set) = daemon
        .told("the watcher", |asked| {
            let generation = asked.watch.generation()?;
            Ok::<_, Unwatched>((generation, asked.watch.rules_set()?.rules.is_some()))
        })
        .await?;
    json(&rules::rules(&generation, set))
}

/// Set the rules, all of them at once
///
/// From then on they are in force in place of the file's, over reloads and restarts. They are saved within about a second;
/// with `saved=true` the answer comes when they are. What is wrong with them is named by its field, and then nothing changes.
#[utoipa::path(put, path = "/v1/rules", operation_id = "set_rules", request_body = RulesToSet,
    params(("saved" = Option<bool>, Query, description = "The answer waits until the rules are saved.")),
    responses(
        (status = 200, body = Rules), (status = 400, body = Refusal), (status = 413, body = Refusal),
        (status = 503, body = Refusal),
    )
)]
async fn set_rules(
    State(daemon): State<Arc<Daemon>>,
    RawQuery(query): RawQuery,
    body: Result<Bytes, BytesRejection>,
) -> Answer {
    let waits = rules::waits(query.as_deref())?;
    let told = RulesToSet::read(body)?;
    put_rules(&daemon, Some(told), waits).await
}

/// Take back the rules that were set: those of the configuration file are in force again
#[utoipa::path(delete, path = "/v1/rules", operation_id = "take_back_rules",
    params(("saved" = Option<bool>, Query, description = "The answer waits until that is saved.")),
    responses((status = 200, body = Rules), (status = 400, body = Refusal), (status = 503, body = Refusal))
)]
async fn take_back_rules(State(daemon): State<Arc<Daemon>>, RawQuery(query): RawQuery) -> Answer {
    let waits = rules::waits(query.as_deref())?;
    put_rules(&daemon, None, waits).await
}

async fn put_rules(daemon: &Daemon, told: Option<Vec<Told>>, waits: bool) -> Answer {
    let (generation, set) = daemon.ask(|asked| asked.watch.steer(told)).await??;
    save(daemon, set.changes, waits).await?;
    json(&rules::rules(&generation, set.rules.is_some()))
}

/// Has what was set saved soon; `waits`: before this returns.
async fn save(daemon: &Daemon, changes: u64, waits: bool) -> Result<(), Refused> {
    let keeper = &daemon.asked.keeper;
    keeper.wake();
    if waits && let Err(error) = keeper.until_saved(changes).await {
        let message = format!("it is in force, but can't be saved: {error}; look into the log");
        return Err(Refused::new(
            StatusCode::SERVICE_UNAVAILABLE,
            Fault::new("flexcp", &message),
        ));
    }
    Ok(())
}

/// The connections that there are, and their subflows
///
/// They come as they are read, a page of one worker at a time: one that comes or goes meanwhile may be missing, each
/// of the others stands there once.
#[utoipa::path(get, path = "/v1/connections", params(Wanted), responses(
    (status = 200, body = Connections), (status = 400, body = Refusal), (status = 503, body = Refusal),
))]
async fn connections(
    State(daemon): State<Arc<Daemon>>,
    Extension(patience): Extension<Arc<Patience>>,
    RawQuery(query): RawQuery,
) -> Answer {
    let wanted = Wanted::from_query(query.as_deref().unwrap_or_default())?;
    let names = daemon
        .told("the watcher", |asked| asked.watch.names())
        .await?;
    let filter = wanted.filter(&names)?;
    let place = daemon.listing().await?;
    patience.set(Dawdling::Piece);
    let (out, body) = pieces::body();
    tokio::spawn(Listing::new(names, filter).tell(daemon, out, place));
    Ok(response("application/json", body))
}

/// What happens to connections and back ends from now on
///
/// An event a line, until the client goes; the first says that the daemon listens. What a client does not read in time is
/// lost to it, and it is told how much that was.
#[utoipa::path(get, path = "/v1/events", operation_id = "events", responses(
    (status = 200, body = Event, content_type = "application/x-ndjson"),
    (status = 400, body = Refusal), (status = 503, body = Refusal),
))]
async fn events_of(
    State(daemon): State<Arc<Daemon>>,
    Extension(patience): Extension<Arc<Patience>>,
    method: Method,
    RawQuery(query): RawQuery,
) -> Answer {
    wanted::none(query.as_deref())?;
    let Ok(place) = Arc::clone(&daemon.listeners).try_acquire_owned() else {
        let message = format!("{LISTENERS} clients are listening already; end one of them");
        return Err(Refused::full(&message));
    };
    let (out, body) = pieces::body();
    if method == Method::GET {
        patience.set(Dawdling::Endless);
        let ears = events::listen(&daemon.asked.workers);
        tokio::spawn(events::tell(daemon, ears, out, place));
    }
    Ok(response("application/x-ndjson", body))
}

/// What a configuration file may say, as a JSON Schema
#[utoipa::path(get, path = "/v1/config/schema", operation_id = "config_schema", responses(
    (status = 200, body = serde_json::Value, content_type = "application/schema+json"), (status = 400, body = Refusal),
))]
async fn schema(RawQuery(query): RawQuery) -> Answer {
    wanted::none(query.as_deref())?;
    Ok(response(
        "application/schema+json",
        config::schema().to_string(),
    ))
}

/// The numbers, for Prometheus
///
/// As OpenMetrics for who asks for it, else in Prometheus' text format.
#[utoipa::path(get, path = "/metrics", operation_id = "metrics", responses(
    (status = 200, body = String, content_type = "text/plain"),
    (status = 400, body = Refusal), (status = 503, body = Refusal),
))]
async fn metrics_of(
    State(daemon): State<Arc<Daemon>>,
    headers: HeaderMap,
    RawQuery(query): RawQuery,
) -> Answer {
    wanted::none(query.as_deref())?;
    let accept = headers
        .get(header::ACCEPT)
        .and_then(|accept| accept.to_str().ok());
    let format = Format::wanted(accept);
    // Without a place, whoever scrapes goes without what the accesses do.
    let place = daemon.listing().await.ok();
    let numbers = daemon.told("the workers", move |asked| {
        let numbers = metrics::Numbers::gather(asked, place.is_some());
        drop(place);
        numbers
    });
    Ok(response(format.content_type(), numbers.await?.text(format)))
}

/// This document
#[utoipa::path(get, path = "/openapi.json", responses(
    (status = 200, body = serde_json::Value), (status = 400, body = Refusal),
))]
async fn openapi(RawQuery(query): RawQuery) -> Answer {
    wanted::none(query.as_deref())?;
    Ok(response("application/json", document()))
}

async fn unknown_path(uri: Uri) -> Refused {
    let fault = Fault::new(
        format!("path {}", uri.path()),
        "there is nothing here; `/openapi.json` says what there is",
    );
    Refused::new(StatusCode::NOT_FOUND, fault)
}

async fn wrong_method(method: Method, uri: Uri) -> Refused {
    let message = match uri.path() {
        "/v1/rules" => "rules are read and set as a whole; use GET, PUT or DELETE",
        path if path.starts_with("/v1/services/") => {
            "this is only set; use PUT for a back end, POST or DELETE for a drain, and read /v1/services"
        }
        _ => "this is only read; use GET",
    };
    let fault = Fault::new(format!("method {method}"), message);
    Refused::new(StatusCode::METHOD_NOT_ALLOWED, fault)
}

type Answer = Result<Response, Refused>;

fn json(answer: &impl Serialize) -> Answer {
    let mut line = serde_json::to_vec(answer).map_err(|error| Refused::silent("flexcp", &error))?;
    line.push(b'\n');
    Ok(response("application/json", Bytes::from(line)))
}

fn response(content_type: &'static str, body: impl Into<Body>) -> Response {
    let mut response = body.into().into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    // It is of this moment.
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Of a request's body, in bytes: as many rules as there can be.
const LARGEST: usize = 8 << 20;

/// Clients that are told the connections at a time: others have room beside slow ones.
const LISTINGS: usize = 8;

/// Clients that are told what happens.
const LISTENERS: usize = 8;

/// How long a client waits for its turn to be told the connections.
const TURN: Duration = Duration::from_secs(5);

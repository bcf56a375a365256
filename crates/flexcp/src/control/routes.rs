//! What can be asked: a function for each path, which is the path's description in the API's document, too.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, Extension, Path as UrlPath, RawQuery, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::{Router, body::Body};
use bytes::Bytes;
use flexcp_translator::{Filter, Order};
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::fault::{Fault, Refusal, Refused};
use super::gate::OverTcp;
use super::listing::Listing;
use super::metrics::{self, Format};
use super::orders::{self, MoveTo, Named};
use super::patience::{Dawdling, Patience};
use super::server::{Asked, Names};
use super::status::Status;
use super::view::{Accesses, Connections, Done, DoneByAll, Event, OneConnection, Stats};
use super::wanted::{self, Wanted};
use super::{
    accesses, document, events, filter, pieces, rule_routes, service_routes, stats as numbers,
};
use crate::config;

/// What clients are answered from.
pub(super) struct Daemon {
    pub(super) asked: Arc<Asked>,
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

/// All paths with their descriptions.
pub(super) fn described() -> OpenApiRouter<Arc<Daemon>> {
    OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(status))
        .routes(routes!(stats))
        .routes(routes!(service_routes::services))
        .routes(routes!(service_routes::servers))
        .routes(routes!(service_routes::set_backend))
        .routes(routes!(service_routes::drain, service_routes::undrain))
        .routes(routes!(accesses_of))
        .routes(routes!(
            rule_routes::rules,
            rule_routes::set_rules,
            rule_routes::change_rules,
            rule_routes::take_back_rules
        ))
        .routes(routes!(
            rule_routes::rule,
            rule_routes::set_rule,
            rule_routes::remove_rule
        ))
        .routes(routes!(rule_routes::mar, rule_routes::set_mar))
        .routes(routes!(connections))
        .routes(routes!(move_several))
        .routes(routes!(close_several))
        .routes(routes!(connection, close))
        .routes(routes!(move_one))
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
    pub(super) async fn told<T: Send + 'static, E: fmt::Display + Send + 'static>(
        &self,
        place: &str,
        question: impl FnOnce(&Asked) -> Result<T, E> + Send + 'static,
    ) -> Result<T, Refused> {
        let answer = self.ask(question).await?;
        answer.map_err(|error| Refused::silent(place, &error))
    }

    /// What services and accesses are called.
    async fn names(&self) -> Result<Names, Refused> {
        self.told("the watcher", |asked| asked.watch.names()).await
    }

    /// Has what was set saved soon; `waits`: before this returns.
    pub(super) async fn save(&self, changes: u64, waits: bool) -> Result<(), Refused> {
        let keeper = &self.asked.keeper;
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
    let names = daemon.names().await?;
    let filter = wanted.filter(&names)?;
    if let Some(rule) = &wanted.rule {
        let generation = daemon.told("the watcher", |asked| asked.watch.generation());
        filter::known_rule(rule, &generation.await?.config)?;
    }
    let place = daemon.listing().await?;
    patience.set(Dawdling::Piece);
    let (out, body) = pieces::body();
    tokio::spawn(Listing::new(names, filter).tell(daemon, out, place));
    Ok(response("application/json", body))
}

/// Move what goes down all connections that the query finds to another access or subflow
///
/// As of one connection. The query has to name something. Connections have their turn one after the other: one that comes
/// meanwhile may be left out.
#[utoipa::path(post, path = "/v1/connections/move", operation_id = "move_connections", params(Wanted),
    request_body = MoveTo, responses(
        (status = 200, body = DoneByAll), (status = 400, body = Refusal), (status = 413, body = Refusal),
        (status = 503, body = Refusal),
    )
)]
async fn move_several(
    State(daemon): State<Arc<Daemon>>,
    RawQuery(query): RawQuery,
    body: Result<Bytes, BytesRejection>,
) -> Answer {
    let wanted = orders::several(query.as_deref())?;
    let to = MoveTo::read(body)?;
    let names = daemon.names().await?;
    order_several(&daemon, wanted.filter(&names)?, to.order(&names)?).await
}

/// Close all connections that the query finds: both ends are told
///
/// The query has to name something.
#[utoipa::path(post, path = "/v1/connections/close", operation_id = "close_connections", params(Wanted), responses(
    (status = 200, body = DoneByAll), (status = 400, body = Refusal), (status = 503, body = Refusal),
))]
async fn close_several(State(daemon): State<Arc<Daemon>>, RawQuery(query): RawQuery) -> Answer {
    let wanted = orders::several(query.as_deref())?;
    let names = daemon.names().await?;
    order_several(&daemon, wanted.filter(&names)?, Order::Close).await
}

async fn order_several(daemon: &Daemon, filter: Filter, order: Order) -> Answer {
    let place = daemon.listing().await?;
    let done = daemon.told("the workers", move |asked| {
        // The place is free when it is done, whether somebody waits for the answer or not.
        let _place = place;
        orders::carry_out_all(asked, filter, &order)
    });
    json(&done.await?)
}

/// One connection, by its id, and its subflows
#[utoipa::path(get, path = "/v1/connections/{id}", params(("id" = String, Path, pattern = "^[0-9a-fA-F]{16}$", description = "As it was listed.")),
    responses(
        (status = 200, body = OneConnection), (status = 400, body = Refusal), (status = 404, body = Refusal),
        (status = 503, body = Refusal),
    )
)]
async fn connection(
    State(daemon): State<Arc<Daemon>>,
    UrlPath(id): UrlPath<String>,
    RawQuery(query): RawQuery,
) -> Answer {
    wanted::none(query.as_deref())?;
    let named = Named::read(&id)?;
    json(&daemon.ask(move |asked| named.look(asked)).await??)
}

/// Close a connection: both ends are told
#[utoipa::path(delete, path = "/v1/connections/{id}", operation_id = "close_connection",
    params(("id" = String, Path, pattern = "^[0-9a-fA-F]{16}$", description = "As it was listed.")),
    responses(
        (status = 200, body = Done), (status = 400, body = Refusal), (status = 404, body = Refusal),
        (status = 409, body = Refusal), (status = 503, body = Refusal),
    )
)]
async fn close(
    State(daemon): State<Arc<Daemon>>,
    UrlPath(id): UrlPath<String>,
    RawQuery(query): RawQuery,
) -> Answer {
    wanted::none(query.as_deref())?;
    let named = Named::read(&id)?;
    let done = daemon.ask(move |asked| named.carry_out(asked, Order::Close));
    json(&done.await??)
}

/// Move what goes down a connection to another access or subflow
///
/// It stays there for the hold time of its rule at least, while nothing speaks against the subflow. When something does,
/// the request is refused.
#[utoipa::path(post, path = "/v1/connections/{id}/move", operation_id = "move_connection", request_body = MoveTo,
    params(("id" = String, Path, pattern = "^[0-9a-fA-F]{16}$", description = "As it was listed.")),
    responses(
        (status = 200, body = Done), (status = 400, body = Refusal), (status = 404, body = Refusal),
        (status = 409, body = Refusal), (status = 413, body = Refusal), (status = 503, body = Refusal),
    )
)]
async fn move_one(
    State(daemon): State<Arc<Daemon>>,
    UrlPath(id): UrlPath<String>,
    RawQuery(query): RawQuery,
    body: Result<Bytes, BytesRejection>,
) -> Answer {
    wanted::none(query.as_deref())?;
    let named = Named::read(&id)?;
    let to = MoveTo::read(body)?;
    let order = to.order(&daemon.names().await?)?;
    let done = daemon.ask(move |asked| named.carry_out(asked, order));
    json(&done.await??)
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
        let ears = events::Ears::new(&daemon.asked);
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
async fn openapi(over_tcp: Option<Extension<OverTcp>>, RawQuery(query): RawQuery) -> Answer {
    wanted::none(query.as_deref())?;
    let document = match over_tcp {
        Some(_) => document::document_over_tcp(),
        None => document(),
    };
    Ok(response("application/json", document))
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
        "/v1/rules" => "rules are read, set and changed; use GET, PUT, PATCH or DELETE",
        path if path.starts_with("/v1/rules/") => {
            "a rule is read, set and removed; use GET, PUT or DELETE"
        }
        "/v1/mar" => "it is read and set; use GET or PUT, and DELETE /v1/rules to take it back",
        "/v1/connections" => {
            "all connections are only read; use GET, or POST to /v1/connections/close"
        }
        path if path.starts_with("/v1/services/") => {
            "this is only set; use PUT for a back end, POST or DELETE for a drain, and read /v1/services"
        }
        path if path.ends_with("/move") || path.ends_with("/close") => {
            "this is only done; use POST"
        }
        path if path.starts_with("/v1/connections/") => {
            "a connection is read and closed; use GET or DELETE"
        }
        _ => "this is only read; use GET",
    };
    let fault = Fault::new(format!("method {method}"), message);
    Refused::new(StatusCode::METHOD_NOT_ALLOWED, fault)
}

pub(super) type Answer = Result<Response, Refused>;

pub(super) fn json(answer: &impl Serialize) -> Answer {
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

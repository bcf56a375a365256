//! How services are read, their back ends are told weights and maintenance, and they are drained.

use std::sync::Arc;

use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::extract::{Path, RawQuery, State};
use bytes::Bytes;

use super::fault::Refusal;
use super::routes::{Answer, Daemon, json};
use super::rules::Query;
use super::servers;
use super::services::{self, BackendToSet, ServiceToDrain};
use super::view::{OneService, Servers, Services};
use super::wanted;
use crate::orders::Order;

/// The services, their interfaces and their back ends
#[utoipa::path(get, path = "/v1/services", operation_id = "services", responses(
    (status = 200, body = Services), (status = 400, body = Refusal), (status = 503, body = Refusal),
))]
pub(super) async fn services(
    State(daemon): State<Arc<Daemon>>,
    RawQuery(query): RawQuery,
) -> Answer {
    wanted::none(query.as_deref())?;
    json(&daemon.told("the workers", services::services).await?)
}

/// The aggregation servers of boxes: what was measured of them, in which order they are asked, and why
#[utoipa::path(get, path = "/v1/servers", operation_id = "servers", responses(
    (status = 200, body = Servers), (status = 400, body = Refusal), (status = 503, body = Refusal),
))]
pub(super) async fn servers(
    State(daemon): State<Arc<Daemon>>,
    RawQuery(query): RawQuery,
) -> Answer {
    wanted::none(query.as_deref())?;
    json(&daemon.told("flexcp", servers::servers).await?)
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
pub(super) async fn set_backend(
    State(daemon): State<Arc<Daemon>>,
    path: Result<Path<(String, String)>, PathRejection>,
    RawQuery(query): RawQuery,
    body: Result<Bytes, BytesRejection>,
) -> Answer {
    let waits = Query::of_saved(query.as_deref())?.saved;
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
pub(super) async fn drain(
    State(daemon): State<Arc<Daemon>>,
    path: Result<Path<String>, PathRejection>,
    RawQuery(query): RawQuery,
    body: Result<Bytes, BytesRejection>,
) -> Answer {
    let waits = Query::of_saved(query.as_deref())?.saved;
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
pub(super) async fn undrain(
    State(daemon): State<Arc<Daemon>>,
    path: Result<Path<String>, PathRejection>,
    RawQuery(query): RawQuery,
) -> Answer {
    let waits = Query::of_saved(query.as_deref())?.saved;
    let service = services::segments(path)?;
    put_order(&daemon, Order::Undrain { service }, waits).await
}

async fn put_order(daemon: &Daemon, order: Order, waits: bool) -> Answer {
    let name = order.service().to_owned();
    let told = daemon.told("the watcher", |asked| asked.watch.order(order));
    let steered = told.await??;
    daemon.save(steered.set.changes, waits).await?;
    let one = daemon.told("the workers", move |asked| services::one(asked, &name));
    json(&one.await?)
}

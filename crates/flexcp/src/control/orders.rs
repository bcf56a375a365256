//! What connections are asked to do: one by its id, or all that a filter finds.

use std::fmt;
use std::sync::Arc;

use axum::extract::rejection::BytesRejection;
use axum::http::StatusCode;
use bytes::Bytes;
use flexcp_placement::Share;
use flexcp_translator::{Filter, Order, Ordered, Refused as Reason, StableId, Tally, Target};
use serde::Deserialize;
use utoipa::ToSchema;

use super::VERSION;
use super::fault::{Fault, Refused};
use super::filter;
use super::server::{Asked, Names};
use super::split;
use super::view::{Connection, Done, DoneByAll, Numbers, OneConnection};
use super::wanted::Wanted;
use crate::worker::{Gone, WorkerHandle};

/// The body of a request to move connections: one of the two.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum MoveTo {
    /// To a subflow of the access with this name.
    Access(String),
    /// To the subflow with this number.
    Subflow(SubflowNumber),
}

/// The number of a subflow of a connection.
#[derive(Deserialize, ToSchema)]
#[schema(maximum = 255)]
pub(super) struct SubflowNumber(u8);

impl MoveTo {
    /// From a body, if it could be read.
    pub(super) fn read(body: Result<Bytes, BytesRejection>) -> Result<Self, Refused> {
        let body = body.map_err(|error| {
            Refused::new(error.status(), Fault::new("the body", &error.body_text()))
        })?;
        let read = serde_json::from_slice::<Self>(&body);
        let wrong = |error| Fault::new("the body", &format!("{error}; {SEND}"));
        Ok(read.map_err(wrong)?)
    }

    /// Where that is.
    pub(super) fn order(&self, names: &Names) -> Result<Order, Fault> {
        let target = match self {
            Self::Access(access) => {
                let found = filter::access(&names.accesses, access);
                Target::Access(found.map_err(|message| Fault::new("access", &message))?)
            }
            Self::Subflow(subflow) => Target::Subflow(subflow.0),
        };
        Ok(Order::Move(target))
    }
}

/// What a body says.
const SEND: &str = "send {\"access\": \"lte\"} or {\"subflow\": 1}";

/// A connection, as a request names it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Named(StableId);

impl Named {
    pub(super) fn read(text: &str) -> Result<Self, Fault> {
        let id = text.parse().map_err(|error| {
            let message = format!("`{text}` is {error}; take it from /v1/connections");
            Fault::new("the path", &message)
        });
        Ok(Self(id?))
    }

    /// Why a connection does not do something, or is not there.
    pub(super) fn refused(self, reason: Reason) -> Refused {
        let status = match reason {
            Reason::Unknown => StatusCode::NOT_FOUND,
            _ => StatusCode::CONFLICT,
        };
        Refused::new(status, Fault::new(self.to_string(), &reason.to_string()))
    }

    /// As it stands.
    pub(super) fn look(self, asked: &Asked) -> Result<OneConnection, Refused> {
        let silent = |error: &dyn fmt::Display| Refused::silent("the worker", &error);
        let names = asked.watch.names().map_err(|error| silent(&error))?;
        if let Some(view) = split::find(asked, self.0) {
            return Ok(OneConnection {
                version: VERSION,
                connection: Connection::of_split(&view, &names),
            });
        }
        let worker = worker_of(&asked.workers, self.0);
        let view = worker.map_or(Ok(None), |worker| worker.connection(self.0));
        let view = view.map_err(|error| silent(&error))?;
        let view = view.ok_or_else(|| self.refused(Reason::Unknown))?;
        Ok(OneConnection {
            version: VERSION,
            connection: Connection::new(view, &names),
        })
    }

    /// Has it do something.
    pub(super) fn carry_out(self, asked: &Asked, order: Order) -> Result<Done, Refused> {
        if let Some(outcome) = split::carry_out(asked, self.0, &order) {
            let outcome = outcome.map_err(|reason| self.refused(reason))?;
            return Ok(Done {
                version: VERSION,
                changed: outcome == Ordered::Done,
            });
        }
        let worker = worker_of(&asked.workers, self.0);
        let outcome = worker.map_or(Ok(Err(Reason::Unknown)), |worker| {
            worker.order(self.0, order)
        });
        let outcome = outcome.map_err(|gone| Refused::silent("the worker", &gone))?;
        let outcome = outcome.map_err(|reason| self.refused(reason))?;
        Ok(Done {
            version: VERSION,
            changed: outcome == Ordered::Done,
        })
    }
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "connection {}", self.0)
    }
}

/// The worker that has the connection with this id, if there is one.
pub(crate) fn worker_of(workers: &[WorkerHandle], id: StableId) -> Option<&WorkerHandle> {
    let count = u16::try_from(workers.len()).ok()?;
    let share = |worker| Share {
        worker,
        workers: count,
    };
    let number = (0..count).find(|&worker| share(worker).has_token(id.token()))?;
    workers.get(usize::from(number))
}

/// Which connections a request to several is about: it has to say so.
pub(super) fn several(query: Option<&str>) -> Result<Wanted, Fault> {
    let wanted = Wanted::from_query(query.unwrap_or_default())?;
    if wanted == Wanted::default() {
        return Err(Fault::new(
            "the query",
            "it does not say which connections; name some, as with service=web or state=translating",
        ));
    }
    Ok(wanted)
}

/// Has all connections that fit do something.
pub(super) fn carry_out_all(
    asked: &Asked,
    filter: Filter,
    order: &Order,
) -> Result<DoneByAll, Gone> {
    let filter = Arc::new(filter);
    let mut sum = Tally::default();
    for view in split::wanted(asked, &filter) {
        sum.count(split::ordered(asked, &view, order));
    }
    for worker in &asked.workers {
        sum.add(&worker.order_all(&filter, order)?);
    }
    let refused = sum
        .refused()
        .map(|(reason, count)| (reason.name().into(), count));
    Ok(DoneByAll {
        version: VERSION,
        done: sum.done,
        already: sum.already,
        refused: Numbers(refused.collect()),
    })
}

//! Why a request is not carried out.

use std::fmt;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::VERSION;

/// The answer to a request that can't be carried out.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema, Debug)]
pub struct Refusal {
    /// The version of the API: 1.
    pub version: u32,
    /// Why not.
    pub error: Fault,
}

/// What is wrong, where, and what to do.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema, Debug)]
pub struct Fault {
    /// What is wrong.
    pub what: String,
    /// The part of the request, or of FlexCP, that it is about.
    #[serde(rename = "where")]
    pub place: String,
    /// What to do about it; empty when nobody knows.
    pub fix: String,
}

/// A request that is answered with a status of HTTP and a [`Fault`].
#[derive(Debug)]
pub(super) struct Refused {
    status: StatusCode,
    fault: Fault,
}

impl Fault {
    /// From a message as all of FlexCP writes them: what is wrong and, behind a semicolon, what would be right.
    pub(super) fn new(place: impl Into<String>, message: &str) -> Self {
        let (what, fix) = message.split_once("; ").unwrap_or((message, ""));
        Self {
            what: what.into(),
            place: place.into(),
            fix: fix.into(),
        }
    }

    /// About a parameter of the query.
    pub(super) fn parameter(name: &str, message: &str) -> Self {
        Self::new(format!("parameter `{name}`"), message)
    }
}

impl Refused {
    pub(super) const fn new(status: StatusCode, fault: Fault) -> Self {
        Self { status, fault }
    }

    /// All places are taken.
    pub(super) fn full(message: &str) -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            Fault::new("flexcp", message),
        )
    }

    /// Whoever knows the answer does not give it.
    pub(super) fn silent(place: &str, error: &impl fmt::Display) -> Self {
        let message = format!("{error}; ask again, and if it stays so, look into the log");
        Self::new(StatusCode::SERVICE_UNAVAILABLE, Fault::new(place, &message))
    }

    /// The answer's body.
    pub(super) fn body(&self) -> Vec<u8> {
        let refusal = Refusal {
            version: VERSION,
            error: self.fault.clone(),
        };
        // Numbers and strings can always be written.
        serde_json::to_vec(&refusal).unwrap_or_default()
    }

    /// The whole answer as it goes to a client that is not waited for.
    pub(super) fn message(&self) -> Vec<u8> {
        let body = self.body();
        let mut message = format!(
            "HTTP/1.1 {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nretry-after: 1\r\nconnection: close\r\n\r\n",
            self.status,
            body.len()
        )
        .into_bytes();
        message.extend_from_slice(&body);
        message
    }
}

impl From<Fault> for Refused {
    /// The client's fault.
    fn from(fault: Fault) -> Self {
        Self::new(StatusCode::BAD_REQUEST, fault)
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let mut response = (self.status, self.body()).into_response();
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        );
        match self.status {
            StatusCode::SERVICE_UNAVAILABLE => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
            StatusCode::UNAUTHORIZED => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            _ => {}
        }
        response
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        if !self.fix.is_empty() {
            write!(f, "; {}", self.fix)?;
        }
        Ok(())
    }
}

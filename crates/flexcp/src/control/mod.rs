//! The API of a running FlexCP: HTTP and JSON over a Unix stream socket that only the daemon's own user may open, and over
//! TCP, with a token, if the configuration says so.
//!
//! What can be asked is in `routes`, what is answered in [`view`] and [`status`]; the document of both is answered at
//! `/openapi.json`. One thread takes all requests and never waits for an answer itself: workers and the watcher are asked by
//! message, from a few threads beside it. What may be long is sent as it comes: connections by the page, events by the line.

mod accesses;
mod bind;
mod client;
mod document;
mod events;
mod fault;
mod filter;
mod gate;
mod listing;
mod metrics;
mod orders;
mod patience;
mod pieces;
mod routes;
mod rule_routes;
mod rules;
mod server;
mod servers;
mod service_routes;
mod services;
mod split;
mod stats;
pub mod status;
mod streamed;
#[cfg(test)]
mod tests;
pub mod view;
mod wanted;

pub use accesses::Floors;
pub use bind::{BindError, SocketFile};
pub use client::{Answer, Client, ClientError, target};
pub use document::document;
pub use fault::{Fault, Refusal};
pub use gate::{Token, TokenError};
pub use server::{Asked, Control, Named, Names};
pub(crate) use stats::{all_connections, stats};
pub use wanted::Wanted;

/// Stands in every answer. It is raised when a field changes its meaning or goes away; new fields
/// may come at any time.
pub const VERSION: u32 = 1;

//! The control socket of a running FlexCP: one request line in JSON, one answer line in JSON, over a
//! Unix stream socket that only the daemon's own user may open.
//!
//! What can be asked is [`Action`], what is answered is in [`view`] and [`status`]. The server never runs on a
//! worker: it asks the workers and the watcher by message and puts their answers together, for each client on a thread of
//! its own. What may be long is sent as it comes: connections by the page, events by the line.

mod accesses;
mod action;
mod client;
mod events;
mod exchange;
mod filter;
mod listing;
mod places;
mod server;
pub mod status;
mod streamed;
#[cfg(test)]
mod tests;
pub mod view;

pub use action::{Action, Refusal, VERSION, Wanted};
pub use client::{Answer, ClientError, ask};
pub use server::{Asked, BindError, Control, Named, Names, SocketFile};
pub(crate) use server::{all_connections, stats};
pub use streamed::{connections, events};

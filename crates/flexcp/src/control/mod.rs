//! The control socket of a running FlexCP: one request line in JSON, one answer line in JSON, over a
//! Unix stream socket that only the daemon's own user may open.
//!
//! What can be asked is [`Action`], what is answered is in [`view`] and [`status`]. The server never runs on a
//! worker: it asks the workers and the watcher by message and puts their answers together, for each client on a thread of
//! its own.

mod action;
mod client;
mod exchange;
mod server;
pub mod status;
#[cfg(test)]
mod tests;
pub mod view;

pub use action::{Action, Refusal, VERSION};
pub use client::{Answer, ClientError, ask};
pub use server::{Asked, BindError, Control, Named, SocketFile};
pub(crate) use server::{connections, stats};

//! The rules that every packet around FlexCP obeys, checked from the outside.
//!
//! A [`Checker`] sees each packet that passes on either side of the proxy, in order, and nothing else:
//! it knows no internals, so the same one serves property tests, the simulator, fuzzing, and captures
//! of a running proxy. What it holds against the proxy is a [`Violation`] of a [`Rule`].
//!
//! Positions. Both directions are counted in data bytes from an origin (`position.rs`), the same for
//! TCP sequence numbers, data sequence numbers and each subflow's own: the first byte of data stands at
//! the origin in all of them, whatever the initial numbers are, and nothing wraps.
#![forbid(unsafe_code)]

mod asking;
mod causes;
mod checker;
mod clock;
mod conduct;
mod connection;
mod content;
mod errand;
mod from_client;
mod from_server;
mod front;
mod kept;
mod mapping;
mod packet;
mod position;
mod preamble;
mod ranges;
mod subflow;
mod to_client;
mod to_server;
mod violation;

pub use causes::{Bounds, JITTER};
pub use checker::{Checker, Options};
pub use conduct::Side;
pub use content::Oracle;
pub use packet::{Observation, Payload, Point};
pub use preamble::Preamble;
pub use ranges::Ranges;
pub use violation::{Rule, Violation};

/// Way of data.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Direction {
    /// Client to server.
    Up,
    /// Server to client.
    Down,
}

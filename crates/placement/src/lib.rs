//! Placement: which of several workers has a packet. Workers share nothing, so every packet of a connection has to
//! come to the same one.
//!
//! - The initial subflow and, on the path, the server's side are the same pair of ends: the pair's hash, which is the
//!   same in both directions, names the worker ([`Rules`]).
//! - The port that the proxy chose towards a back end names the worker, and so do the back end's packets.
//! - The key that the proxy chose has a token that names the worker: a SYN with `MP_JOIN` (RFC 8684 section 3.2) goes by
//!   it. The token space is divided into equal parts ([`Share`]).
//! - What follows on a joined subflow says neither. A map that whoever distributes packets reads can hold these flows
//!   ([`Exceptions`]): the worker that has one claims it there. Without such a map, or when the map is full, the worker
//!   that the flow's hash names is the flow's *directory*: the SYN comes by there, and the directory remembers where the
//!   SYN went ([`Owner::Directory`]).
//!
//! What a packet says of its owner is its [`Subject`], read once. [`Placement`] answers for one worker; it hears of the
//! flows that the worker has by [`FlowEvent`]s. There is no clock, socket, thread or randomness in the crate.
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::too_many_lines))]

extern crate alloc;

mod directory;
mod exceptions;
mod placement;
mod rules;
mod share;
mod subject;

pub use exceptions::{Exceptions, FlowEvent, FlowMap};
pub use placement::{Owner, Placement};
pub use rules::{BackEnds, Pair, Rules};
pub use share::Share;
pub use subject::Subject;

#[cfg(test)]
mod tests;

//! What tests, models and judges need to make packets, to read them, and to read what FlexCP says of itself.
//!
//! It stands on `wire` alone, so that the unit tests of every other crate can use it, and it shares no code with what
//! they test: [`keys`] is written from RFC 8684, apart from the translator's own. Nothing of the product uses it.
//!
//! - [`Packet`]: a TCP packet to change and to write, or one that was read; [`write_headers`] and
//!   [`complete_checksum`] for those who own the buffer;
//! - [`icmp_error`]: what a router says of a packet;
//! - [`Options`]: what the options of a packet say;
//! - [`keys`]: tokens, initial data sequence numbers and HMACs;
//! - [`Random`]: numbers from a seed; [`Shelf`]: slots of a fast path; [`Stats`]: the answer of `flexcp show stats`.
#![forbid(unsafe_code)]

mod icmp;
pub mod keys;
mod options;
mod packet;
mod random;
mod shelf;
mod stats;

pub use icmp::{icmp_error, quoted};
pub use options::{Options, said};
pub use packet::{Packet, complete_checksum, ip_header, write_headers};
pub use random::Random;
pub use shelf::Shelf;
pub use stats::{Stats, StatsError};

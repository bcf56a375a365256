//! Proxy Location Selection (PLS): which of several aggregation servers a box uses, by measurement.
//!
//! T-MPTCP (Han et al., IEEE Network 2021) puts aggregation servers in different places and lets the box measure, for each
//! server, the bandwidth `B_i` and the delay `D_i` over each uplink, and has the server report `(Bs, Ds)` of its own leg to
//! the content server. The server with the largest `min(B_1 + ... + B_N, Bs)` is used.
//!
//! - [`Locator`] is the box's side: it says what to probe next, learns from the answers and from real transfers, keeps the
//!   table and the order of the servers.
//! - [`Responder`] is the server's side: it answers authenticated probes, with never more bytes than it has received.
//! - [`probe`] is what the two say to each other.
//!
//! There is no clock, socket, thread or randomness here: time, datagrams and seeds are arguments. Rates are bits per second
//! of IP packets with their headers, delays are round trips.
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::too_many_lines))]

extern crate alloc;

mod choice;
mod config;
mod estimate;
mod ledger;
mod leg;
mod locator;
mod path;
pub mod probe;
mod random;
mod rate;
mod reason;
mod responder;
mod round;
mod session;
mod table;
mod time;
mod train;

pub use choice::{Chooser, Fixed, Latency, Margin, Policy, Switch, Throughput};
pub use config::{Config, ConfigError, Server, Uplink};
pub use estimate::{Basis, Estimate, Transfer};
pub use leg::{Allowed, Leg};
pub use locator::{Counters, Errand, Event, Ignored, Locator, Transmit};
pub use rate::Rate;
pub use reason::{Cause, Reason};
pub use responder::{Answered, Refusal, Responder, ResponderConfig, ResponderCounters};
pub use table::{PathRow, Probing, Reach, ServerRow, Table};
pub use time::Time;
pub use train::{Arrival, Dispersion, Shape, Useless, dispersion};

/// Bytes of the IP and UDP headers of a datagram to or from this address.
#[must_use]
pub(crate) const fn overhead(of: &core::net::SocketAddr) -> usize {
    match of.ip().to_canonical() {
        core::net::IpAddr::V4(_) => 28,
        core::net::IpAddr::V6(_) => 48,
    }
}

//! The sans-IO translator between MPTCP clients and TCP servers.
//!
//! It takes packets and the time, and gives back verdicts and packets. There is no clock, socket,
//! thread or source of randomness in it.
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::too_many_lines))]

extern crate alloc;

mod affinity;
mod announced;
mod astray;
mod auth;
mod budget;
mod bypass;
mod cause;
mod config;
mod connection;
mod counters;
mod drain;
mod dtree;
mod endpoint;
mod frame;
mod half_open;
mod health;
mod hold;
mod icmp;
mod install;
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod internals;
mod keys;
mod offload;
mod orphan;
mod probe;
mod record;
mod reload;
mod room;
mod rst;
mod segment;
mod service;
mod superseded;
mod table;
mod time;
mod translator;
mod view;

pub use affinity::{Affinity, BackEnds, Exceptions, FlowMap, Owner, Pair, Rules, Share};
pub use cause::{
    AddAddr, Causes, Decision, Fallback, HalfOpenEvicted, JoinEvicted, JoinRefused, PlainSyn, Rst,
    SubflowSwitch,
};
pub use config::{Announce, Config, Limits, Mode, Prefix, Service, ServiceId, Timeouts};
pub use counters::{Counters, DropReason, Drops, Gauges, Meaning};
pub use frame::{Frame, HEADROOM, Payload, Transmit, Verdict};
pub use health::{BackendState, Mark, MarkReason};
pub use hold::LONGEST_QUEUE;
pub use offload::{
    ENTRY_HOLES, ENTRY_RUNS, ENTRY_SUBFLOWS, ENTRY_UPS, EntrySubflow, FastPath, FlowEntry, Hole,
    Installed, MappingRun, UpRun,
};
pub use record::{Registry, SubflowRecord};
pub use segment::Ends;
pub use superseded::supersedes;
pub use time::Instant;
pub use translator::Translator;
pub use view::{ConnectionState, ConnectionView, SubflowView};

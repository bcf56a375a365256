//! The sans-IO translator between MPTCP clients and TCP servers.
//!
//! It takes packets and the time, and gives back verdicts and packets. There is no clock, socket,
//! thread or source of randomness in it.
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::too_many_lines))]

extern crate alloc;

mod access;
mod admission;
mod allowed;
mod announced;
mod arrivals;
mod auth;
mod budget;
mod carrier;
mod cause;
mod clients;
mod config;
mod connection;
mod cookies;
mod counters;
mod denials;
mod dtree;
mod endpoint;
mod entrance;
mod event;
mod frame;
mod handle;
mod health;
mod history;
mod hosted;
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod internals;
mod keys;
mod lookup;
mod offload;
mod order;
mod prefix;
mod record;
mod rst;
mod segment;
mod service;
mod steering;
mod superseded;
mod table;
mod time;
mod translator;
mod turns;
mod uplink;
mod view;
mod way;

pub use flexcp_preamble::{Protocol, Target as ServerName, Wish};

pub use access::{Access, AccessId, MAX_ACCESSES};
pub use admission::{Admission, Visitor, Wanted};
pub use allowed::Allowed;
pub use arrivals::AccessTotals;
pub use carrier::Carrier;
pub use cause::{
    AddAddr, Causes, Decision, Fallback, HalfOpenEvicted, JoinEvicted, JoinRefused, Meaning,
    PlainSyn, PreambleRefused, Rst, SubflowSwitch,
};
pub use config::{
    AggregationServers, Announce, Approach, Check, Config, Excepted, Intake, Limits, Mode, Part,
    Service, Timeouts,
};
pub use connection::MAX_UPLINKS;
pub use counters::{Counters, DropReason, Drops, Gauges};
pub use denials::Denial;
pub use entrance::User;
pub use event::{ConnectionEnds, EndCause, Event, EventKind, SubflowEnds, Switch};
pub use frame::{Frame, HEADROOM, Install, Payload, Step, Transmit, Verdict};
pub use handle::{NotAnId, ServiceId, StableId};
pub use health::{BackendState, BackendView, ErrandCounts, Mark, MarkReason};
pub use lookup::Lookup;
pub use offload::{
    ENTRY_HOLES, ENTRY_RUNS, ENTRY_SUBFLOWS, ENTRY_UPS, EntryDelivery, EntryRtt, EntrySubflow,
    FastPath, FlowEntry, Hole, Installed, MappingRun, UpRun,
};
pub use order::{Order, Ordered, Refused, Tally};
pub use prefix::Prefix;
pub use record::{Registry, SubflowRecord};
pub use steering::{
    ActiveStandby, Automatic, Flow, Load, LoadBalancing, MAX_RULES, Move, Pinned, Priority, Random,
    Redundant, RoundRobin, Rule, SmallestDelay, SteeredPath, SteeringMode, Target, Thresholds,
    View,
};
pub use superseded::supersedes;
pub use time::Instant;
pub use translator::{Ahead, Cursor, Filter, LONGEST_QUEUE, Place, Translator};
pub use turns::Turns;
pub use uplink::Uplink;
pub use view::{ConnectionState, ConnectionView, PathQuality, SubflowView};
pub use way::{MAX_WAYS, Way, Ways};

//! FlexCP beside what does the same work: nginx and haproxy as MPTCP-TCP proxies, and what needs no
//! proxy at all, MPTCP and TCP from end to end.
//!
//! Every subject has a lab of its own, with the same links and the same servers, and they are measured
//! by turns, so that a busy machine is busy for all. `make bench` runs it.

#![forbid(unsafe_code)]

mod aggregation;
mod circumstances;
mod echo;
mod explicit;
mod figure10;
mod helper;
mod hold;
mod http;
mod load;
mod measure;
mod memory;
mod micro;
mod plan;
mod plot;
mod programs;
mod reads;
mod record;
mod report;
mod rig;
mod sink;
mod turns;
mod verdict;
mod verify;

pub use aggregation::{Aggregation, Memory};
pub use explicit::Explicit;
pub use figure10::{Figure10, Offload};
pub use helper::Helping;
pub use plan::{Plan, files};
pub use plot::plots;
pub use record::{Circumstances, Missing, Record, Results};
pub use report::Report;
pub use rig::Subject;

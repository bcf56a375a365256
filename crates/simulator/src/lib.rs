//! The translator between models of TCP servers and MPTCP clients, in virtual time.
//!
//! One seed is one run: it draws the topology, the stacks, what applications do, and what the paths do
//! to packets. Every packet in and out of the translator is held against the wire's rules
//! (`flexcp-invariants`), every byte is checked where it arrives, and after the faults everything has to
//! come to its end and leave nothing behind.
#![forbid(unsafe_code)]
#![allow(
    clippy::cast_possible_truncation,
    reason = "numbers on the wire are the low halves of positions, all over the models"
)]

mod client;
mod conversation;
mod errand;
mod explicit;
mod fresh;
mod heard;
mod key;
mod liveness;
mod mirror;
mod net;
mod payload;
mod proxy;
mod run;
mod server;
mod shelf;
mod stack;
mod steering;
mod swarm;
mod tcp;
mod told;
mod trace;
mod twin;
mod undisturbed;
mod uplinks;
mod world;

pub use conversation::Conversation;
pub use errand::Errands;
pub use fresh::seeds;
pub use proxy::{Kernel, Taken};
pub use run::{
    Offloaded, Outcome, describe, describe_mirrored, run, run_at_once, run_installed, run_mirrored,
    run_mirrored_installed, run_mirrored_on, run_mirrored_undisturbed, run_mirrored_unsteered,
    run_on, run_traced, run_undisturbed, steers,
};

//! FlexCP, the program: a splitless proxy between MPTCP clients and TCP servers.
//!
//! This crate reads the configuration ([`config`]), moves packets between the device and the
//! translator ([`worker`]), loads the kernel's programs ([`offload`]), watches over what it has
//! changed in the kernel ([`watch`]), answers operators ([`control`], [`show`]), tells the service manager that it is alive
//! ([`watchdog`]), carries connections that are split ([`split`]), starts, reloads and ends all of that ([`proxy`]), does so as a
//! daemon ([`run`]), and inside other programs ([`listener`]). What happens to a packet is decided in `flexcp-translator`; what is done to the
//! kernel, in `flexcp-io`.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::too_many_lines))]

pub mod beside;
pub mod config;
pub mod connect;
pub mod control;
mod denied;
pub mod explain;
pub mod generation;
mod leftover;
pub mod listener;
pub mod location;
mod names;
pub mod offload;
mod orders;
pub mod proxy;
pub mod rulebook;
pub mod run;
pub mod show;
pub mod split;
mod stop;
mod uplinks;
mod vrf;
pub mod watch;
pub mod watchdog;
pub mod worker;

//! Hostile peers: floods, blind injection and a malicious client, beside honest traffic through FlexCP.
//!
//! An [`Attack`] is a name, a kind and a rate. [`run`] brings up a lab of its own for one, starts FlexCP and
//! the victims (a long MPTCP transfer on two subflows, a long plain one, short connections one after
//! another), sends forged packets through raw sockets (from the wire, as if from anywhere, or from the
//! server's side), and says by every criterion whether FlexCP stood it. [`write()`] puts the results down.

mod aim;
mod bomb;
mod forge;
mod hoard;
mod kinds;
mod loris;
mod report;
mod run;
mod tap;
mod victim;

pub use hoard::{Hoarded, HostileMemory, Pace};
pub use kinds::{Attack, Blind, Flood, Kind, Leg, Service};
pub use report::{table, write};
pub use run::{Criterion, Options, Outcome, Volume, run};
pub use victim::Shorts;

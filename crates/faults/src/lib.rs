//! Network faults as data: what a link loses, delays, reorders and changes.
//!
//! A [`Path`] is one direction of a link. IP packets go in with [`Path::send`] and come out of
//! [`Path::receive`] later, perhaps fewer, more, or changed. Time is an argument and randomness
//! comes from a seed, so that the same packets at the same times meet the same fate: in a simulator
//! with virtual time as well as in an emulator of real links. There is no clock, thread or socket
//! here.
//!
//! The [`Fault`]s of a path are nodes in a list, met in order. A list has a text form:
//!
//! ```
//! use flexcp_faults::{Faults, Path, Time};
//!
//! let faults: Faults = "loss=1%, delay=20ms".parse()?;
//! let mut path = Path::new(faults.0, 7);
//! path.send(Time::ZERO, vec![0x45; 100]);
//! while let Some(at) = path.poll_timeout() {
//!     assert_eq!(at, Time::from_millis(20));
//!     assert!(path.receive(at).is_some());
//! }
//! # Ok::<(), flexcp_faults::FaultError>(())
//! ```
#![forbid(unsafe_code)]

mod class;
mod counters;
mod fault;
mod node;
mod packet;
mod path;
mod random;
mod shared;
mod text;
mod time;

pub use class::{Class, OptionKind};
pub use counters::Counters;
pub use fault::{
    Coalesce, Corrupt, DropNth, Fault, Faults, GilbertElliott, Jitter, Nat, Place, Ppm, Rate,
    Reorder, Strip, Which,
};
pub use packet::{checksums_right, segments};
pub use path::Path;
pub use random::Random;
pub use text::FaultError;
pub use time::Time;

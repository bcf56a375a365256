//! Steering: down which of its paths a connection's new data goes, as an operator wants it (3GPP TS 23.501 section
//! 5.32.8 has the modes).
//!
//! What speaks against a path comes first (`connection/choice.rs`): a mode chooses among those that nothing speaks against.
//! The [`Rule`] of the connection says which mode that is, and how often a connection may move.

mod active_standby;
mod rule;
mod smallest_delay;

use core::fmt::Debug;
use core::time::Duration;

pub use active_standby::ActiveStandby;
pub use rule::Rule;
pub(crate) use rule::{Descriptor, Rules};
pub use smallest_delay::SmallestDelay;

use crate::access::AccessId;
use crate::cause::SubflowSwitch;
use crate::handle::SubflowIndex;

/// A path that nothing speaks against, as a mode knows it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SteeredPath {
    /// Which of the connection's subflows it is.
    pub subflow: SubflowIndex,
    /// The access that it is of.
    pub access: Option<AccessId>,
    /// SRTT of data, and while there is none the least that the handshake took.
    pub rtt: Option<Duration>,
}

/// What a mode wants: another path for new data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Move {
    /// The path.
    pub to: SubflowIndex,
    /// Why.
    pub cause: SubflowSwitch,
    /// The path is the one that the operator prefers, and the connection had to leave it: the fail-back delay holds.
    pub back: bool,
}

/// How a connection's path is chosen.
pub trait SteeringMode: Debug + Send + Sync {
    /// Where new data goes instead of `active`. `None`: it stays. `others` are the other paths that nothing speaks
    /// against, in the order in which they joined.
    fn choose(&self, active: &SteeredPath, others: &[SteeredPath]) -> Option<Move>;
}

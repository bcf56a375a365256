//! Steering: down which of its paths a connection's new data goes, as an operator wants it (3GPP TS 23.501 section
//! 5.32.8 has the modes).
//!
//! What speaks against a path comes first (`connection/choice.rs`): a mode chooses among those that nothing speaks against.
//! The [`Rule`] of the connection says which mode that is, and how often a connection may move. What its connections carry
//! over each access stands in a ledger, for modes that share them out.

mod active_standby;
mod automatic;
mod index;
mod ledger;
mod load_balancing;
mod pinned;
mod priority;
mod random;
mod redundant;
mod round_robin;
mod rule;
mod smallest_delay;
mod thresholds;

use core::fmt::Debug;
use core::time::Duration;

pub use active_standby::ActiveStandby;
pub use automatic::Automatic;
pub use ledger::Load;
pub(crate) use ledger::{Account, Ledger, expected_of_another};
pub use load_balancing::LoadBalancing;
pub use pinned::{Pinned, Target};
pub use priority::Priority;
pub use random::Random;
pub use redundant::Redundant;
pub use round_robin::RoundRobin;
pub(crate) use rule::{Descriptor, RuleId, Rules};
pub use rule::{MAX_RULES, Rule};
pub use smallest_delay::SmallestDelay;
pub use thresholds::Thresholds;

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
    /// Round-trip time that both of the last two samples show, and while there is none the least that the handshake took.
    pub rtt: Option<Duration>,
    /// What the connections of the rule carry over the access. Nothing unless the mode [shares](SteeringMode::shares).
    pub load: Load,
}

/// A connection, as its mode knows it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Flow {
    /// Differs from connection to connection, and stays the same.
    pub token: u32,
    /// Which one it is of its rule's; the numbers go round. 0 unless the mode [shares](SteeringMode::shares).
    pub turn: u8,
    /// Bytes per second that went down of late, repeated ones included; 0: not known yet.
    pub rate: u64,
    /// Bytes per second to be expected: those, or while they are not known what others of its rule carried. 0 unless the mode
    /// [shares](SteeringMode::shares).
    pub expected: u64,
}

/// What a mode chooses by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct View<'a> {
    /// The connection.
    pub flow: Flow,
    /// Where its new data goes.
    pub active: SteeredPath,
    /// The other paths that nothing speaks against, in the order in which they joined.
    pub others: &'a [SteeredPath],
}

impl View<'_> {
    /// All paths, the active one first.
    pub fn paths(&self) -> impl Iterator<Item = &SteeredPath> + Clone {
        core::iter::once(&self.active).chain(self.others)
    }
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

/// How a connection's path is chosen. All that a mode knows is in the [`View`]: the same view gets the same answer.
pub trait SteeringMode: Debug + Send + Sync {
    /// Where new data goes instead of the active path. `None`: it stays.
    fn choose(&self, view: &View<'_>) -> Option<Move>;

    /// Whether a path may be taken while another one works. `false`: the active one is left for it only when that is beyond
    /// doubt silent.
    fn admits(&self, _path: &SteeredPath) -> bool {
        true
    }

    /// Whether what goes down the active path goes down the others, too. Those that lag are left out until they have caught up.
    fn copies(&self, _view: &View<'_>) -> bool {
        false
    }

    /// Round-trip time of the active path above which the mode is to be asked at once. `None`: it goes by others.
    fn patience(&self, _view: &View<'_>) -> Option<Duration> {
        None
    }

    /// Whether it goes by what the rule's connections carry over each access: that is counted then.
    fn shares(&self) -> bool {
        false
    }

    /// Whether it goes by round-trip times: paths that carry nothing are measured then.
    fn measures(&self) -> bool {
        false
    }

    /// Whether clients are told that paths beside the active one are for when that fails, so that what they send keeps to it,
    /// too (RFC 8684 section 3.3.8).
    fn tells_standby(&self) -> bool {
        false
    }
}

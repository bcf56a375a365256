//! The MPTCP leg: subflows, and what the peer on them is told beside data.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::Subflow;
use super::close::Challenges;
use super::reopened::Reopened;
use super::spare::Spare;
use super::steer::Steered;
use crate::auth::Key;
use crate::handle::{INITIAL, SubflowIndex, SubflowSet};
use crate::time::Instant;

/// The MPTCP leg of a connection.
#[derive(Debug)]
pub(crate) struct MptcpLeg {
    pub(crate) key: Key,
    /// The peer's key, known from its third packet on.
    pub(crate) peer_key: Option<Key>,
    pub(crate) subflows: Vec<Subflow>,
    /// Where new data goes.
    pub(crate) active: SubflowIndex,
    /// The subflow that the peer was heard on last.
    pub(crate) heard: SubflowIndex,
    /// When all subflows were suspect and another was tried.
    pub(crate) tried_other: Instant,
    pub(crate) steered: Steered,
    /// When data last went over more than one subflow, or again from a copy.
    pub(crate) copied: Instant,
    /// A copy of data on a subflow that has yet to be heard.
    pub(crate) spare: Option<Box<Spare>>,
    /// Subflows on which the peer has repeated what was ACKed there: it has missed that, and the next answer of the TCP
    /// leg has to go there, whatever else it is about.
    pub(crate) owed: SubflowSet,
    /// Subflows on which a probe of the TCP leg's went out: their next ACK is the answer, whatever it says.
    pub(crate) asked: SubflowSet,
    pub(crate) announce: Announcements,
    /// The window of the TCP leg is open again, and some subflows have yet to hear of it.
    pub(crate) reopened: Reopened,
    /// Challenge ACKs to the peer.
    pub(crate) challenges: Challenges,
    /// IPv6 flow label of what goes out: that of the packets of the TCP leg. 0 for IPv4.
    pub(crate) label: u32,
}

/// `ADD_ADDR`s that the peer has not echoed yet.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Announcements {
    pub(crate) started: bool,
    /// Bit n: the service's n-th address.
    pub(crate) pending: u16,
    /// Copies of the first pending one that have been sent.
    pub(crate) copies: u8,
    /// When the next copy is due; `None`: not started, or done.
    pub(crate) due: Option<Instant>,
}

impl MptcpLeg {
    /// With its first subflow.
    pub(super) fn new(now: Instant, key: Key, initial: Subflow) -> Self {
        Self {
            key,
            peer_key: None,
            subflows: alloc::vec![initial],
            active: INITIAL,
            heard: INITIAL,
            tried_other: now,
            steered: Steered::default(),
            copied: now,
            spare: None,
            owed: 0,
            asked: 0,
            announce: Announcements::default(),
            reopened: Reopened::default(),
            challenges: Challenges::default(),
            label: 0,
        }
    }
}

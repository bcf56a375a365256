//! A connection's places in the tables of its translator: they live in the connection, so that each is found at once.

use crate::handle::ConnectionId;
use crate::time::Instant;

/// The connection's places in the tables of its translator.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Links {
    pub(crate) half_open: HalfOpenLinks,
    /// When the timer queue will look at the connection; `None`: it is not in the queue.
    pub(crate) armed: Option<Instant>,
    /// Bytes that it counts with in the budget.
    pub(crate) charged: u32,
}

/// A connection's place in the queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct HalfOpenLinks {
    pub(crate) queued: bool,
    pub(crate) older: ConnectionId,
    pub(crate) younger: ConnectionId,
}

impl Default for HalfOpenLinks {
    fn default() -> Self {
        Self {
            queued: false,
            older: NOBODY,
            younger: NOBODY,
        }
    }
}

/// No neighbour.
pub(crate) const NOBODY: ConnectionId = ConnectionId::MAX;

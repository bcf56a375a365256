//! The two directions of the stream, in data sequence numbers.

use flexcp_wire::Dsn;

use crate::handle::{INITIAL, SubflowIndex};
use crate::time::Instant;

/// Data that the subflows bring and the TCP leg carries on.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct ToTcp {
    /// Behind the last data that went to the TCP leg, DATA_FIN included.
    pub(crate) next: Dsn,
    /// The TCP leg's ACK.
    pub(crate) acked: Dsn,
    /// The DATA_FIN.
    pub(crate) fin: Option<Dsn>,
    /// Packets with what is next on their subflow that have come again since the TCP leg's ACK moved on.
    pub(crate) repeated: u8,
}

/// Data that the TCP leg brings and the subflows carry on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ToMptcp {
    /// Behind the last data that went to a subflow, DATA_FIN included.
    pub(crate) next: Dsn,
    /// The data ACK.
    pub(crate) acked: Dsn,
    /// The TCP leg's FIN.
    pub(crate) fin: Option<Dsn>,
    /// When it first went to a subflow without data.
    pub(crate) fin_sent: Option<Instant>,
    /// Right edge of the window at the data level: the furthest that was offered.
    pub(crate) edge: Dsn,
    /// The largest window that was ever offered, in bytes.
    pub(crate) window: u32,
    /// The subflow that took the last repetition of what the client ACKs next; nothing was repeated: any.
    pub(crate) repeated_on: SubflowIndex,
    /// Since when the TCP leg repeats what no subflow can deliver.
    pub(crate) stuck: Option<Instant>,
}

impl ToMptcp {
    /// Nothing has gone yet.
    pub(super) const fn new(idsn: Dsn) -> Self {
        Self {
            next: idsn.add(1),
            acked: idsn.add(1),
            fin: None,
            fin_sent: None,
            edge: idsn.add(1),
            window: 0,
            repeated_on: INITIAL,
            stuck: None,
        }
    }
}

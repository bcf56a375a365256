//! What an MPTCP client does, and how.

/// Something that a client does at its time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    /// Opens a subflow over a link.
    Join {
        /// Index of the link.
        link: usize,
        /// As backup.
        backup: bool,
    },
    /// Resets the n-th living subflow.
    Reset(usize),
    /// Closes the n-th living subflow with FIN, if there is another.
    Close(usize),
    /// Changes the n-th living subflow's priority.
    Prio(usize, bool),
    /// Has lost the address of the n-th living subflow.
    RemoveAddr(usize),
    /// Announces an address.
    AddAddr,
    /// Ends the connection (RFC 8684 section 3.5): with RST on all subflows, or with an ACK on one.
    FastClose {
        /// `MP_FASTCLOSE` in RSTs.
        by_reset: bool,
    },
}

/// Which subflow carries what goes up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Scheduler {
    /// In turn.
    RoundRobin,
    /// The first with room.
    First,
    /// Any.
    Random,
}

/// How a client's MPTCP works.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct MptcpPlan {
    /// Uses MPTCP at all.
    pub(crate) enabled: bool,
    /// What happens, by time.
    pub(crate) actions: Vec<(u64, Action)>,
    /// Longest mapping in bytes: less than a segment, or several.
    pub(crate) mapping: u64,
    /// Data numbers and data ACKs of 64 bits, of a million.
    pub(crate) long_numbers: u64,
    /// Data ACKs of 64 bits, of a million.
    pub(crate) long_acks: u64,
    /// The mapping stands in every packet of it; otherwise in its first only, and in what is resent.
    pub(crate) repeats_mapping: bool,
    /// DATA_FIN in the last mapping.
    pub(crate) fin_with_data: bool,
    /// Of a million pieces that the subflow has acknowledged and that are dropped then.
    pub(crate) drops: u64,
    /// What is sent again goes only on a subflow with nothing outstanding, as Linux does it.
    pub(crate) repeats_on_idle: bool,
    /// Of a million mappings that are sent on another subflow too.
    pub(crate) redundant: u64,
    /// Order of subflows.
    pub(crate) scheduler: Scheduler,
    /// Pause before another subflow replaces the last.
    pub(crate) rejoin: u64,
}

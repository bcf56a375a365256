//! What connections and subflows are called inside a translator.

/// A connection while it is in the table.
pub(crate) type ConnectionId = u32;

/// What names a service for as long as it, or a connection of its own, is there: its place in the configuration may
/// change. Small numbers, as there is a slot for each up to the largest.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct ServiceId(pub u16);

/// Index of a subflow in its connection; the initial one is 0.
pub(crate) type SubflowIndex = u8;

/// Set of subflows, by index: bit n is subflow n.
pub(crate) type SubflowSet = u8;

/// The initial subflow.
pub(crate) const INITIAL: SubflowIndex = 0;

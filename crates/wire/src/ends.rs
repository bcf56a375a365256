//! The two ends of a flow.

use core::net::SocketAddr;

/// The two ends of a packet.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ends {
    /// Who sends it.
    pub from: SocketAddr,
    /// Who gets it.
    pub to: SocketAddr,
}

impl Ends {
    /// Those of a packet in the other direction.
    #[must_use]
    pub const fn reversed(self) -> Self {
        Self {
            from: self.to,
            to: self.from,
        }
    }
}

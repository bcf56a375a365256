//! What an operator may see of a connection.

use alloc::string::String;
use alloc::vec::Vec;
use core::net::SocketAddr;
use core::time::Duration;

use crate::access::AccessId;
use crate::handle::{ServiceId, StableId};

/// A connection as it stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConnectionView {
    /// What names it.
    pub id: StableId,
    /// Which service it is of.
    pub service: ServiceId,
    /// Name of the rule that says which of its paths it takes; `None`: no rule fits, or it has no paths to choose from.
    pub rule: Option<String>,
    /// What FlexCP does with the connection's packets.
    pub state: ConnectionState,
    /// The client, as on the initial subflow.
    pub client: SocketAddr,
    /// What the client connected to.
    pub server: SocketAddr,
    /// The address that the server sees as its client.
    pub source: SocketAddr,
    /// The TCP server itself: `server` in transparent mode, a back end in reverse mode, what the client has named in explicit ones;
    /// 0.0.0.0:0, and so is `source`, while it is not known.
    pub backend: SocketAddr,
    /// The proxy's token (RFC 8684 section 3.1); `None` unless MPTCP was negotiated.
    pub token: Option<u32>,
    /// Age.
    pub age: Duration,
    /// Since the last packet.
    pub idle: Duration,
    /// Every subflow that there is.
    pub subflows: Vec<SubflowView>,
}

/// What FlexCP does with the connection's packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConnectionState {
    /// The handshake is not complete.
    Handshake,
    /// MPTCP at the client, TCP at the server.
    Translating,
    /// One end has closed.
    HalfClosed,
    /// Both ends have closed; what still comes is answered.
    Closed,
    /// Plain TCP from the start.
    Plain,
    /// Fallen back to TCP.
    Fallback,
    /// Reset, by either end.
    Reset,
}

impl ConnectionState {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Handshake,
        Self::Translating,
        Self::HalfClosed,
        Self::Closed,
        Self::Plain,
        Self::Fallback,
        Self::Reset,
    ];

    /// For output: one lower-case word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Handshake => "handshake",
            Self::Translating => "translating",
            Self::HalfClosed => "half-closed",
            Self::Closed => "closed",
            Self::Plain => "plain",
            Self::Fallback => "fallback",
            Self::Reset => "reset",
        }
    }
}

/// A subflow as it stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SubflowView {
    /// Its number in the connection, below 8; the initial one's is 0. One that is over leaves it to another.
    pub subflow: u8,
    /// The client's address and port.
    pub client: SocketAddr,
    /// The address and port that the client joined.
    pub local: SocketAddr,
    /// The client's address id (RFC 8684 section 3.2); 0 for the initial subflow.
    pub address_id: u8,
    /// The access that it is of, by its place in the configuration; `None`: none of them.
    pub access: Option<AccessId>,
    /// Downstream data goes here now.
    pub active: bool,
    /// Asked to be used only when no other is left.
    pub backup: bool,
    /// Authenticated, and not closed.
    pub established: bool,
    /// Payload bytes from the client, retransmissions included.
    pub bytes_up: u64,
    /// Payload bytes to the client, retransmissions included.
    pub bytes_down: u64,
    /// Payload bytes to the client that had been sent before.
    pub retransmitted_down: u64,
    /// What is measured of its path.
    pub quality: PathQuality,
}

/// What is measured of a path between FlexCP and the client.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PathQuality {
    /// Smoothed round-trip time between FlexCP and the client (RFC 6298): that of data, and while there is none, of the
    /// handshake. `None`: not known.
    pub rtt: Option<Duration>,
    /// Its variation (RTTVAR), of data.
    pub rtt_variation: Option<Duration>,
    /// The least of the last five minutes.
    pub rtt_least: Option<Duration>,
    /// Bytes per second that the client ACKed on it, the last time that it was busy for a round trip and 100 ms.
    pub delivery_rate: u32,
    /// Bytes to the client that it has not ACKed.
    pub in_flight: u32,
    /// The most of them at a time lately: what the windows of sender and receiver have let it be.
    pub window: u32,
}

//! What has to outlive the process, so that the next one can tell both ends of a connection that it is over: written
//! down once for each subflow, and taken back when that is over.

use core::fmt::Debug;
use core::net::SocketAddr;

/// A subflow, and the connection that it belongs to: who has to be told, and what the client believes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct SubflowRecord {
    /// What the server sees as its client. With `backend` it stands for the connection.
    pub source: SocketAddr,
    /// The server.
    pub backend: SocketAddr,
    /// The client's end of the subflow.
    pub client: SocketAddr,
    /// What the client addresses.
    pub local: SocketAddr,
    /// The client's key, which an `MP_FASTCLOSE` to it carries (RFC 8684 section 3.5); `None`: it speaks plain TCP.
    pub key: Option<u64>,
}

/// Where records are kept.
pub trait Registry: Debug + Send {
    /// Writes a record down; its place, or `None` when there is no room.
    fn enter(&mut self, record: &SubflowRecord) -> Option<u32>;

    /// Takes back what stands at that place.
    fn leave(&mut self, place: u32);
}

/// Where a subflow's record stands.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) enum Recorded {
    /// It has none.
    #[default]
    No,
    /// There, with its registry.
    At(u32),
    /// There was no room for it.
    Refused,
}

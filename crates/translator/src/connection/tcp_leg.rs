//! The TCP leg: one plain connection, and what its peer offers.

use flexcp_wire::{Dsn, TcpSeq};

use super::acknowledge::RepeatedSegments;
use super::clock::ServerClock;
use super::close::Challenges;
use crate::endpoint::Backend;
use crate::endpoint::Endpoint;
use crate::time::Instant;

/// The TCP leg of a connection.
#[derive(Debug)]
pub(crate) struct TcpLeg {
    /// FlexCP's end, as the peer sees it.
    pub(crate) source: Endpoint,
    /// The peer.
    pub(crate) backend: Endpoint,
    /// The SYN to it.
    pub(crate) syn: SynSent,
    /// Number of the SYN to the peer.
    pub(crate) isn_local: TcpSeq,
    /// Number of the peer's SYN; 0 until it has answered.
    pub(crate) isn_remote: TcpSeq,
    /// Largest payload plus options that the peer takes in a segment.
    pub(crate) mss: u16,
    pub(crate) sack: bool,
    pub(crate) window: PeerWindow,
    /// Of its data, what it may still hear about as duplicates.
    pub(crate) repeated: RepeatedSegments,
    /// Timestamps, when both legs have agreed on them.
    pub(crate) clock: Option<ServerClock>,
    /// Challenge ACKs to the peer.
    pub(crate) challenges: Challenges,
    /// IPv6 flow label of what goes out: that of the initial subflow. 0 for IPv4.
    pub(crate) label: u32,
}

/// The SYN to the peer, and what has come of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SynSent {
    /// Back ends tried so far, one that was tried again included.
    pub(crate) tried: u8,
    /// It owes an answer (reverse mode); `None`: it has answered.
    pub(crate) asked: Option<Asked>,
    /// The peer has answered.
    pub(crate) answered: bool,
    /// The SYN carried `MP_CAPABLE`.
    pub(crate) offered_end_to_end: bool,
}

/// A SYN that a back end has to answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    /// When it was sent to this back end first.
    pub(crate) at: Instant,
    /// When it goes to another one by itself; `None`: when the client repeats it.
    pub(crate) due: Option<Instant>,
    /// The client has repeated it since: which one an answer is to, nobody can tell.
    pub(crate) again: bool,
}

/// The window that the peer of the TCP leg offers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerWindow {
    /// What it offered last, unscaled.
    pub(crate) offered: u16,
    /// Shift of what it offers; `None`: it does without scaling, and so does the initial subflow.
    pub(crate) scale: Option<u8>,
    /// `offered` was in its SYN/ACK, where no window is scaled: the next one may be smaller.
    pub(crate) of_syn: bool,
    /// The largest that it ever offered, in bytes.
    pub(crate) max: u32,
    /// The furthest right edge that it offered since its SYN/ACK.
    pub(crate) edge: Option<Dsn>,
}

impl TcpLeg {
    /// To a peer that has been sent a SYN with this number.
    pub(super) fn towards(backend: Backend, isn: TcpSeq) -> Self {
        Self {
            source: backend.source.into(),
            backend: backend.addr.into(),
            syn: SynSent {
                tried: 1,
                asked: None,
                answered: false,
                offered_end_to_end: false,
            },
            isn_local: isn,
            isn_remote: TcpSeq(0),
            mss: 0,
            sack: false,
            window: PeerWindow {
                offered: 0,
                scale: None,
                of_syn: true,
                max: 0,
                edge: None,
            },
            repeated: RepeatedSegments::default(),
            clock: None,
            challenges: Challenges::default(),
            label: 0,
        }
    }
}

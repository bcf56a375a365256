//! What may go to a client that names its server itself and has not shown yet where it is: no more bytes than came from there.
//!
//! Its SYN may come from anybody, in anybody's name, and the rule makes FlexCP useless for whoever wants others to be sent more than
//! he sends. It holds for each packet that goes there, whoever made it: the SYN/ACK and its repetitions, an answer in it, a RST or
//! data of the server's, an ICMP error. A client that is really there says the same again, and has more credit then.

use core::ops::Range;

use flexcp_wire::{Ends, TCP_HEADER_LEN};

use super::{Connection, Request, asks};
use crate::clients::Standing;
use crate::frame::Frame;
use crate::segment::{Outgoing, Segment};

/// A SYN/ACK's `MP_CAPABLE` has a key, which that of the SYN has not (RFC 8684 section 3.1).
const KEY: usize = 8;

/// What a client that names its server itself may have.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Credit {
    /// How the connection counts for it.
    pub(crate) standing: Standing,
    /// Bytes of IP packets that came from its address, less those that went there, until it has shown where it is.
    bytes: u32,
}

impl Connection {
    /// Whether its client names its server itself, and has not shown yet where it is.
    pub(crate) fn is_stranger(&self) -> bool {
        self.credit.standing != Standing::Uncounted && self.is_half_open()
    }

    /// A packet has come from the client's address. The one exception: a SYN that asks for MPTCP and has not named a server yet
    /// counts as if it had as much data as a key at least, or nobody could be answered with one before his preamble.
    pub(crate) fn earn(&mut self, segment: &Segment) {
        if !self.is_stranger() {
            return;
        }
        let hears = self.front.is_none() && segment.is_syn();
        let key = if hears && asks(segment) == Request::Mptcp {
            KEY.saturating_sub(segment.payload.len())
        } else {
            0
        };
        let more = u32::try_from(segment.ip.total_len + key).unwrap_or(u32::MAX);
        self.credit.bytes = self.credit.bytes.saturating_add(more);
    }

    /// Whether so many bytes may go to the client's address; they count as gone then.
    pub(crate) fn may_answer(&mut self, bytes: usize) -> bool {
        if !self.is_stranger() {
            return true;
        }
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let left = self.credit.bytes.checked_sub(bytes);
        self.credit.bytes = left.unwrap_or(self.credit.bytes);
        left.is_some()
    }

    /// The same of a packet of the server's that is only relayed.
    pub(crate) fn may_relay(&mut self, ends: Ends, segment: &Segment, frame: &Frame<'_>) -> bool {
        let headers = ip_header_len(ends) + segment.tcp.header_len;
        let most = frame.offload.gso.map_or(usize::MAX, |gso| gso.size.into());
        // Each segment has headers of its own.
        let packets = segment.payload.len().div_ceil(most.max(1)).max(1);
        self.may_answer(headers * packets + segment.payload.len())
    }
}

/// What a packet with this payload takes, the IP header included.
pub(crate) fn bytes_of(outgoing: &mut Outgoing, payload: &Range<usize>) -> usize {
    let options = outgoing.options.finish().len();
    ip_header_len(outgoing.ends) + TCP_HEADER_LEN + options + payload.len()
}

const fn ip_header_len(ends: Ends) -> usize {
    if ends.to.is_ipv6() { 40 } else { 20 }
}

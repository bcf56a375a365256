//! The packet in hand: what it asks for, and what has come out for it (I9).

use flexcp_wire::{MpJoin, TcpFlags};

use super::Ends;
use super::owed::Owed;
use crate::Rule;
use crate::asking::Offer;
use crate::causes::{asks_for_mptcp, is_honoured};
use crate::connection::Report;
use crate::kept::Kept;
use crate::packet::{Payload, Point, View};
use crate::subflow::Subflow;

/// Packets of filler for one packet in, for each subflow.
const MAX_FILLER: u64 = 17;
/// Payload of a packet that the proxy may repeat from a copy of its own.
const MAX_COPY: u64 = 9216;
/// Pieces that one packet may be cut into.
const MAX_PIECES: u64 = 32;

/// The packet that went in last, and what has come out since.
#[derive(Debug)]
pub(super) struct Input {
    pub(super) subflows: u64,
    pub(super) payload: u64,
    /// Payload that may come out for it and never came in, or long before.
    pub(super) own: u64,
    /// Its checksum was wrong.
    pub(super) corrupt: bool,
    /// It was a RST, from these ends.
    pub(super) reset: Option<(Ends, Point)>,
    /// It was a SYN on a flow that is known already.
    pub(super) syn: Option<(Ends, Opening)>,
    /// Of a hostile end, its headers and payload.
    pub(super) kept: Kept,
    pub(super) payload_out: u64,
    pub(super) pieces_out: u64,
    pub(super) filler_out: u64,
    pub(super) bare_out: u64,
    /// When it came, and its flow: of the side that it came from.
    pub(super) time: u64,
    pub(super) ends: Option<Ends>,
    /// It is a RST; it is not TCP at all.
    pub(super) rst: bool,
    pub(super) foreign: bool,
    pub(super) owed: Option<Owed>,
    /// It is the SYN of an end with TCP.
    pub(super) offer: Option<(Ends, Offer)>,
    /// More payload has come out for it than it brought.
    pub(super) copied: bool,
}

/// What a client's SYN asks for.
#[derive(Debug)]
pub(super) struct Opening {
    pub(super) subflow: Subflow,
    /// Token of the connection that it joins.
    pub(super) token: Option<u32>,
    /// It asks for MPTCP that can be translated.
    pub(super) capable: bool,
    /// The same, and the rest of the SYN leaves room for it.
    pub(super) asks: bool,
}

impl Opening {
    pub(super) fn new(packet: &View<'_>) -> Self {
        Self {
            subflow: Subflow::new(packet),
            token: match packet.options.join {
                Some(MpJoin::Syn { token, .. }) => Some(token),
                _ => None,
            },
            capable: packet.options.capable.is_some_and(is_honoured),
            asks: asks_for_mptcp(packet),
        }
    }
}

impl Default for Input {
    fn default() -> Self {
        Self {
            subflows: 8,
            payload: 0,
            own: 0,
            corrupt: false,
            reset: None,
            syn: None,
            kept: Kept::default(),
            payload_out: 0,
            pieces_out: 0,
            filler_out: 0,
            bare_out: 0,
            time: 0,
            ends: None,
            rst: false,
            foreign: false,
            owed: None,
            offer: None,
            copied: false,
        }
    }
}

impl Input {
    /// Whether more payload has come out than went in, for the first time.
    pub(super) fn begins_to_copy(&mut self) -> bool {
        let copies = self.payload_out > self.payload + self.own;
        copies && !std::mem::replace(&mut self.copied, copies)
    }

    /// I9.
    pub(super) fn count(
        &mut self,
        packet: &View<'_>,
        ends: Ends,
        point: Point,
        report: &mut Report<'_>,
    ) {
        let is_reset = packet.has(TcpFlags::RST);
        let source = match point {
            Point::ToClient => Point::FromClient,
            _ => Point::FromServer,
        };
        if is_reset && self.reset == Some((ends, source)) {
            report.add(
                Rule::Amplification,
                format!("a RST is answered with a RST ({point:?})"),
            );
        }
        if packet.payload_len == 0 {
            self.bare_out += 1;
        } else if matches!(packet.payload, Payload::Zeros) {
            self.filler_out += 1;
        } else {
            self.payload_out += packet.payload_len;
            self.pieces_out += 1;
        }
        // A path is measured by two, and its client told by a third whether it is for when others fail.
        let bare = 3 * self.subflows + 1;
        report.expect(self.bare_out <= bare, Rule::Amplification, || {
            format!("{} packets without payload for one", self.bare_out)
        });
        report.expect(self.pieces_out <= MAX_PIECES, Rule::Amplification, || {
            format!("{} pieces of one packet", self.pieces_out)
        });
        let filler = MAX_FILLER * self.subflows;
        report.expect(self.filler_out <= filler, Rule::Amplification, || {
            format!("{} fillers for one packet", self.filler_out)
        });
        // Now and then the server's data goes over every path, see `judge_copies`.
        let most = match point {
            Point::ToClient if self.subflows > 1 => self.payload * self.subflows + MAX_COPY,
            _ => self.payload,
        };
        let most = most + self.own;
        report.expect(self.payload_out <= most, Rule::Amplification, || {
            format!("{} bytes for {}", self.payload_out, self.payload)
        });
    }
}

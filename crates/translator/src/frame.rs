//! What goes in and out of the translator: a packet in a buffer with headroom, a verdict on it, and
//! the packets the translator makes itself.

use alloc::boxed::Box;
use core::ops::Range;

use flexcp_wire::{IpHeader, MAX_HEADERS_LEN, Offload, TcpHeader};

use crate::counters::DropReason;

/// Room a carrier leaves before a packet, so that its headers can grow in place: the IPv4 to IPv6
/// difference and a full set of TCP options, and the carrier's own header before it.
pub const HEADROOM: usize = 128;

/// One packet, from the IP header on, inside a buffer with [`HEADROOM`] bytes before it.
#[derive(Debug)]
pub struct Frame<'a> {
    buf: &'a mut [u8],
    start: usize,
    end: usize,
    /// What the carrier knows, or has to do, about checksum and segmentation.
    pub offload: Offload,
    new_ack: bool,
}

impl<'a> Frame<'a> {
    /// The packet stands at `packet` in `buf`.
    ///
    /// # Panics
    /// When `packet` does not lie inside `buf`: a defect of the carrier.
    #[must_use]
    pub fn new(buf: &'a mut [u8], packet: Range<usize>, offload: Offload) -> Self {
        assert!(
            packet.start <= packet.end && packet.end <= buf.len(),
            "packet outside its buffer"
        );
        Self {
            buf,
            start: packet.start,
            end: packet.end,
            offload,
            new_ack: false,
        }
    }

    /// Whether the translated packet ACKs, without payload, what nobody can take for a duplicate ACK (RFC 5681 section
    /// 2) or wait for as an answer. A later one may make it superfluous ([`supersedes`](crate::supersedes)).
    #[must_use]
    pub const fn is_new_ack(&self) -> bool {
        self.new_ack
    }

    /// Says whether it is one: the translator knows.
    pub const fn set_new_ack(&mut self, is: bool) {
        self.new_ack = is;
    }

    /// The packet's bytes.
    #[must_use]
    pub fn packet(&self) -> &[u8] {
        &self.buf[self.start..self.end]
    }

    /// The packet's bytes, to change.
    pub fn packet_mut(&mut self) -> &mut [u8] {
        &mut self.buf[self.start..self.end]
    }

    /// Where the packet stands in the buffer.
    #[must_use]
    pub const fn range(&self) -> Range<usize> {
        self.start..self.end
    }

    /// Any part of the buffer, such as the payload a [`Transmit`] names.
    #[must_use]
    pub fn buffer(&self, range: Range<usize>) -> &[u8] {
        &self.buf[range]
    }

    /// The whole buffer and where the packet stands in it: for a carrier that puts its own header
    /// right before the packet.
    pub fn parts_mut(&mut self) -> (&mut [u8], Range<usize>) {
        (self.buf, self.start..self.end)
    }

    /// Puts `header` right before `payload`; the packet is then both. `false`, and nothing changed,
    /// when the headroom does not suffice.
    pub(crate) fn replace_header(&mut self, header: &[u8], payload: Range<usize>) -> bool {
        let Some(start) = payload.start.checked_sub(header.len()) else {
            return false;
        };
        self.buf[start..payload.start].copy_from_slice(header);
        self.start = start;
        self.end = payload.end;
        true
    }
}

/// What becomes of the packet in hand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Verdict {
    /// Send the frame on: it now holds the translated packet.
    Forward,
    /// The packet is at its end here, as it should be; answers to it may wait in `poll_transmit`.
    Consume,
    /// The packet goes no further; the reason has been counted.
    Drop(DropReason),
}

/// What a packet has come to, and what it asks its carrier to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub struct Step {
    /// What becomes of the packet.
    pub verdict: Verdict,
    /// When [`Translator::sent`](crate::Translator::sent) is to be called.
    pub install: Install,
}

/// Whether a packet was the last one before its connection is installed in the fast path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Install {
    /// It was not.
    No,
    /// The connection is installed before the packet is sent, when all earlier ones are on their way: it is an ACK, and
    /// what that calls forth then finds the fast path, and joins no queue.
    BeforeSent,
    /// The connection is installed as soon as the packet, and all that it called forth, is on its way: a later one might
    /// overtake it.
    WhenSent,
}

impl From<Verdict> for Step {
    fn from(verdict: Verdict) -> Self {
        Self {
            verdict,
            install: Install::No,
        }
    }
}

/// A packet that the translator made: its headers, and where its payload comes from.
#[derive(Clone, Debug)]
pub struct Transmit {
    header: [u8; MAX_HEADERS_LEN],
    header_len: u8,
    ip_header_len: u8,
    /// What stands behind the headers.
    pub payload: Payload,
    /// What the carrier has to do about checksum and segmentation.
    pub offload: Offload,
}

/// Where the payload of a [`Transmit`] comes from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Payload {
    /// No payload.
    None,
    /// This part of the buffer of the frame last handled: the pieces of a packet that was split.
    Frame(Range<usize>),
    /// So many zero bytes: filler for a hole that nobody waits for any more.
    Zeros(usize),
    /// These bytes: data that the translator has kept a copy of.
    Bytes(Box<[u8]>),
}

impl Payload {
    /// Its bytes.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Frame(range) => range.len(),
            Self::Zeros(len) => *len,
            Self::Bytes(bytes) => bytes.len(),
        }
    }
}

impl Transmit {
    /// The first `header_len` bytes of `header` are the headers, the first `ip_header_len` of these IP's.
    pub(crate) fn new(
        header: [u8; MAX_HEADERS_LEN],
        header_len: usize,
        ip_header_len: usize,
        payload: Payload,
        offload: Offload,
    ) -> Self {
        // No length is greater than that of the array.
        let short = |len: usize| u8::try_from(len.min(MAX_HEADERS_LEN)).unwrap_or_default();
        Self {
            header,
            header_len: short(header_len),
            ip_header_len: short(ip_header_len),
            payload,
            offload,
        }
    }

    /// A packet that stands in a buffer, from its IP header on; `None`: it is none of TCP.
    pub(crate) fn of(packet: &[u8], offload: Offload) -> Option<Self> {
        let ip = IpHeader::parse(packet).ok()?;
        let (tcp, _) = TcpHeader::parse(packet.get(ip.header_len..)?).ok()?;
        let len = ip.header_len + tcp.header_len;
        let mut header = [0; MAX_HEADERS_LEN];
        header.get_mut(..len)?.copy_from_slice(packet.get(..len)?);
        let data = packet.get(len..ip.total_len)?;
        let payload = if data.is_empty() {
            Payload::None
        } else {
            Payload::Bytes(data.into())
        };
        Some(Self::new(header, len, ip.header_len, payload, offload))
    }

    /// IP and TCP header, to change.
    pub(crate) fn header_mut(&mut self) -> &mut [u8] {
        &mut self.header[..usize::from(self.header_len)]
    }

    /// IP and TCP header.
    #[must_use]
    pub fn header(&self) -> &[u8] {
        &self.header[..usize::from(self.header_len)]
    }

    /// Bytes of the whole packet.
    #[must_use]
    pub fn packet_len(&self) -> usize {
        usize::from(self.header_len) + self.payload.len()
    }

    /// Length of the IP header alone: the TCP header's place.
    #[must_use]
    pub const fn ip_header_len(&self) -> usize {
        self.ip_header_len as usize
    }
}

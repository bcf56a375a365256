//! Messages of nfnetlink and XFRM: a head of fixed length, then attributes, which may hold attributes again.

use std::convert::Infallible;
use std::ffi::c_int;

use netlink_packet_core::{
    NLA_F_NESTED, NLA_HEADER_SIZE, NetlinkDeserializable, NetlinkHeader, NetlinkPayload,
    NetlinkSerializable, NlasIterator,
};

/// A message, or attributes in the making.
#[derive(Clone, Debug)]
pub(super) struct Message {
    /// As the header names it; nfnetlink's have the subsystem in the upper byte.
    pub(super) kind: u16,
    bytes: Vec<u8>,
}

impl Message {
    /// `head`: what comes before the attributes, a multiple of four bytes.
    pub(super) fn new(kind: u16, head: &[u8]) -> Self {
        Self {
            kind,
            bytes: head.to_vec(),
        }
    }

    /// A message of nfnetlink's subsystem `subsystem` about things of the family `family`.
    pub(super) fn netfilter(subsystem: c_int, kind: c_int, family: c_int) -> Self {
        let kind = u16::from(small(subsystem)) << 8 | u16::from(small(kind));
        Self::new(kind, &[small(family), NFNETLINK_V0, 0, 0])
    }

    /// The begin or the end of a batch for nf_tables.
    pub(super) fn batch(kind: c_int) -> Self {
        let [high, low] = u16::from(small(libc::NFNL_SUBSYS_NFTABLES)).to_be_bytes();
        Self::new(u16::from(small(kind)), &[0, NFNETLINK_V0, high, low])
    }

    /// The attributes, behind a head of `head` bytes.
    pub(super) fn body(&self, head: usize) -> &[u8] {
        self.bytes.get(head..).unwrap_or_default()
    }

    /// Of which family nfnetlink's message is.
    pub(super) fn family(&self) -> c_int {
        self.bytes.first().copied().unwrap_or_default().into()
    }

    /// Appends an attribute.
    pub(super) fn put(&mut self, kind: u16, value: &[u8]) {
        self.nest_as(kind, |inner| inner.bytes.extend_from_slice(value));
    }

    /// Appends an attribute with words, which the kernel wants ended by a zero.
    pub(super) fn put_words(&mut self, kind: u16, words: &str) {
        self.nest_as(kind, |inner| {
            inner.bytes.extend_from_slice(words.as_bytes());
            inner.bytes.push(0);
        });
    }

    /// Appends an attribute that holds those which `fill` appends.
    pub(super) fn nest(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) {
        self.nest_as(kind | NLA_F_NESTED, fill);
    }

    /// Appends the attributes of `other`.
    pub(super) fn join(&mut self, other: &Self) {
        self.bytes.extend_from_slice(&other.bytes);
    }

    fn nest_as(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; NLA_HEADER_SIZE]);
        fill(self);
        let len = self.bytes.len() - start;
        // What FlexCP sends is far shorter than the 64 KB of an attribute.
        let len_field = u16::try_from(len).unwrap_or(u16::MAX);
        self.bytes[start..start + 2].copy_from_slice(&len_field.to_ne_bytes());
        self.bytes[start + 2..start + 4].copy_from_slice(&kind.to_ne_bytes());
        self.bytes.resize(start + len.next_multiple_of(4), 0);
    }
}

impl NetlinkSerializable for Message {
    fn message_type(&self) -> u16 {
        self.kind
    }

    fn buffer_len(&self) -> usize {
        self.bytes.len()
    }

    fn serialize(&self, buffer: &mut [u8]) {
        buffer.copy_from_slice(&self.bytes);
    }
}

impl NetlinkDeserializable for Message {
    type Error = Infallible;

    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> Result<Self, Infallible> {
        Ok(Self::new(header.message_type, payload))
    }
}

impl From<Message> for NetlinkPayload<Message> {
    fn from(message: Message) -> Self {
        Self::InnerMessage(message)
    }
}

/// The attributes in `bytes`, by their kinds, up to the first that is cut off.
pub(super) fn attributes(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    NlasIterator::new(bytes)
        .map_while(Result::ok)
        .map(|attribute| {
            let (kind, len) = (attribute.kind(), usize::from(attribute.length()));
            let value = attribute.into_inner().get(NLA_HEADER_SIZE..len);
            (kind, value.unwrap_or_default())
        })
}

/// The first attribute of that kind in `bytes`, empty if there is none.
pub(super) fn attribute(bytes: &[u8], kind: u16) -> &[u8] {
    attributes(bytes)
        .find_map(|(found, value)| (found == kind).then_some(value))
        .unwrap_or_default()
}

/// Whether there is an attribute of that kind in `bytes`, even an empty one.
pub(super) fn has_attribute(bytes: &[u8], kind: u16) -> bool {
    attributes(bytes).any(|(found, _)| found == kind)
}

/// The numbers of `libc` that are a byte of a message, as all of these are.
fn small(number: c_int) -> u8 {
    u8::try_from(number).unwrap_or(u8::MAX)
}

const NFNETLINK_V0: u8 = 0;

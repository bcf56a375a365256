//! Looking into packets and changing them with their checksums kept.
//!
//! A checksum that was right stays right, and one that was wrong stays wrong: changes are
//! incremental (RFC 1624), so that a rewriting fault does not repair what an earlier one broke.

use core::net::IpAddr;
use core::ops::Range;

use flexcp_wire::{IpHeader, Sum, TCP_HEADER_LEN, TcpHeader, kind, protocol, update_checksum};

/// Where the parts of a TCP packet are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    pub(crate) ip: IpHeader,
    pub(crate) tcp: TcpHeader,
}

impl Segment {
    /// `None` when this is no TCP, or nothing that makes sense.
    pub(crate) fn parse(packet: &[u8]) -> Option<Self> {
        let ip = IpHeader::parse(packet).ok()?;
        if ip.protocol != protocol::TCP {
            return None;
        }
        let (tcp, _) = TcpHeader::parse(packet.get(ip.header_len..ip.total_len)?).ok()?;
        Some(Self { ip, tcp })
    }

    /// The TCP header with its options.
    pub(crate) const fn header(&self) -> Range<usize> {
        self.ip.header_len..self.ip.header_len + self.tcp.header_len
    }

    pub(crate) const fn options(&self) -> Range<usize> {
        self.ip.header_len + TCP_HEADER_LEN..self.ip.header_len + self.tcp.header_len
    }

    pub(crate) const fn payload(&self) -> Range<usize> {
        self.ip.header_len + self.tcp.header_len..self.ip.total_len
    }

    /// Both ends of the flow, in the direction of this packet.
    pub(crate) const fn flow(&self) -> Flow {
        Flow {
            src: (self.ip.src, self.tcp.src_port),
            dst: (self.ip.dst, self.tcp.dst_port),
        }
    }
}

/// One direction of a connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Flow {
    pub(crate) src: (IpAddr, u16),
    pub(crate) dst: (IpAddr, u16),
}

impl Flow {
    pub(crate) const fn reversed(self) -> Self {
        Self {
            src: self.dst,
            dst: self.src,
        }
    }
}

/// A TCP option's place in its packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawOption {
    start: usize,
    len: usize,
}

impl RawOption {
    pub(crate) const fn range(&self) -> Range<usize> {
        self.start..self.start + self.len
    }
}

/// The options of a segment that have a length byte; ends at what is malformed.
pub(crate) fn raw_options(packet: &[u8], segment: &Segment) -> impl Iterator<Item = RawOption> {
    let Range { start, end } = segment.options();
    let mut at = start;
    core::iter::from_fn(move || {
        while at < end && packet[at] == kind::NOP {
            at += 1;
        }
        if at + 1 >= end || packet[at] == kind::END {
            return None;
        }
        let len = usize::from(packet[at + 1]);
        if len < 2 || at + len > end {
            at = end;
            return None;
        }
        let option = RawOption { start: at, len };
        at += len;
        Some(option)
    })
}

/// The first option of a kind with exactly `len` bytes.
pub(crate) fn option_of(packet: &[u8], segment: &Segment, kind: u8, len: usize) -> Option<usize> {
    let found = raw_options(packet, segment)
        .find(|option| option.len == len && packet[option.start] == kind);
    found.map(|option| option.start)
}

/// Changes bytes of the TCP header in place; the checksum follows. The payload must not move.
pub(crate) fn edit_tcp(packet: &mut [u8], segment: &Segment, edit: impl FnOnce(&mut [u8])) {
    let header = segment.header();
    let old = Sum::of(&packet[header.clone()]);
    let checksum = tcp_checksum(packet, segment);
    edit(packet);
    let new = Sum::of(&packet[header]);
    // The checksum field itself was in both sums with the same value.
    set_tcp_checksum(packet, segment, update_checksum(checksum, old, new));
}

/// Changes the IP header in place; the IPv4 checksum follows, and that of TCP with its
/// pseudo-header. Lengths must not change.
pub(crate) fn edit_ip(packet: &mut [u8], segment: Option<&Segment>, edit: impl FnOnce(&mut [u8])) {
    let Ok(ip) = IpHeader::parse(packet) else {
        return;
    };
    edit(packet);
    let Ok(changed) = IpHeader::parse(packet) else {
        return;
    };
    if !ip.is_v6() {
        fix_ipv4_checksum(packet, ip.header_len);
    }
    if let Some(segment) = segment {
        let [old, new] = [ip, changed].map(|ip| ip.pseudo_header_sum(0));
        let checksum = update_checksum(tcp_checksum(packet, segment), old, new);
        set_tcp_checksum(packet, segment, checksum);
    }
}

/// Appends bytes (a multiple of 4 of them) to the option block; false when they don't fit.
pub(crate) fn append_options(packet: &mut Vec<u8>, segment: &Segment, bytes: &[u8]) -> bool {
    let header_len = segment.tcp.header_len + bytes.len();
    let (Ok(_), true) = (
        u16::try_from(segment.ip.total_len + bytes.len()),
        header_len <= 60 && bytes.len().is_multiple_of(4),
    ) else {
        return false;
    };
    let right = checksums_right(packet);
    let at = segment.payload().start;
    packet.splice(at..at, bytes.iter().copied());
    let words = u8::try_from(header_len / 4).unwrap_or(15);
    let offset = &mut packet[segment.ip.header_len + 12];
    *offset = (words << 4) | (*offset & 0x0f);
    set_total_len(packet, &segment.ip, segment.ip.total_len + bytes.len());
    complete(packet, segment.ip.header_len, right);
    true
}

/// Cuts a segment after `offset` bytes of payload; `None` when it has no more than that.
///
/// Both halves have all options. Halves of a segment with a wrong checksum have wrong ones.
pub(crate) fn split(packet: &[u8], segment: &Segment, offset: usize) -> Option<[Vec<u8>; 2]> {
    let len = segment.payload().len();
    if len <= offset || offset == 0 {
        return None;
    }
    let right = checksums_right(packet);
    Some([0..offset, offset..len].map(|part| cut(packet, segment, part, right)))
}

/// Segmentation offload: a TCP packet as segments with at most `size` bytes of payload each, with
/// checksums made right whatever stood there. Anything but TCP, and any packet when `size` is 0,
/// comes back as it is.
#[must_use]
pub fn segments(packet: &[u8], size: usize) -> Vec<Vec<u8>> {
    let Some(segment) = Segment::parse(packet).filter(|_| size > 0) else {
        return vec![packet.to_vec()];
    };
    let len = segment.payload().len();
    let starts = (0..len.max(1)).step_by(size);
    starts
        .map(|start| cut(packet, &segment, start..len.min(start + size), true))
        .collect()
}

/// A part of a segment's payload as a segment of its own.
///
/// FIN and PSH go with the last part, CWR with the first; IPv4 identifications count up.
fn cut(packet: &[u8], segment: &Segment, part: Range<usize>, right: bool) -> Vec<u8> {
    let payload = segment.payload();
    let tcp_at = segment.ip.header_len;
    let mut out = Vec::with_capacity(payload.start + part.len());
    out.extend_from_slice(&packet[..payload.start]);
    out.extend_from_slice(&packet[payload.start + part.start..payload.start + part.end]);
    if part.end < payload.len() {
        out[tcp_at + 13] &= !(FIN | PSH);
    }
    if part.start > 0 {
        out[tcp_at + 13] &= !CWR;
        let shift = u32::try_from(part.start).unwrap_or(u32::MAX);
        put_u32(&mut out, tcp_at + 4, segment.tcp.seq.wrapping_add(shift));
        if !segment.ip.is_v6() {
            let number = part.start.div_ceil(part.len().max(1));
            let number = u16::try_from(number).unwrap_or(u16::MAX);
            let id = segment.ip.identification.wrapping_add(number);
            put_u16(&mut out, 4, id);
        }
    }
    let len = out.len();
    set_total_len(&mut out, &segment.ip, len);
    complete(&mut out, tcp_at, right);
    out
}

/// Appends the payload of `next`, which follows `packet` directly, to it. Flags are united.
pub(crate) fn join(packet: &mut Vec<u8>, first: &Segment, next: &[u8], second: &Segment) {
    packet.truncate(first.ip.total_len);
    packet.extend_from_slice(&next[second.payload()]);
    packet[first.ip.header_len + 13] |= next[second.ip.header_len + 13];
    let len = packet.len();
    set_total_len(packet, &first.ip, len);
    complete(packet, first.ip.header_len, true);
}

/// Whether the IPv4 header checksum and, for TCP, the TCP checksum are right. True for other
/// protocols, false for what is not IP.
#[must_use]
pub fn checksums_right(packet: &[u8]) -> bool {
    let Ok(ip) = IpHeader::parse(packet) else {
        return false;
    };
    if !ip.is_v6() && Sum::of(&packet[..ip.header_len]).fold() != 0xffff {
        return false;
    }
    if ip.protocol != protocol::TCP {
        return true;
    }
    let tcp = &packet[ip.header_len..ip.total_len];
    Sum::of(tcp).add(ip.pseudo_header_sum(tcp.len())).fold() == 0xffff
}

/// Writes the TCP checksum anew, over whatever stands in the segment.
pub(crate) fn fix_tcp_checksum(packet: &mut [u8]) {
    let Ok(ip) = IpHeader::parse(packet) else {
        return;
    };
    if ip.protocol != protocol::TCP || ip.total_len < ip.header_len + TCP_HEADER_LEN {
        return;
    }
    let at = ip.header_len + CHECKSUM_AT;
    packet[at..at + 2].fill(0);
    let tcp = &packet[ip.header_len..ip.total_len];
    let checksum = Sum::of(tcp).add(ip.pseudo_header_sum(tcp.len())).checksum();
    packet[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
}

pub(crate) fn put_u16(packet: &mut [u8], at: usize, value: u16) {
    packet[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

pub(crate) fn put_u32(packet: &mut [u8], at: usize, value: u32) {
    packet[at..at + 4].copy_from_slice(&value.to_be_bytes());
}

pub(crate) fn get_u32(packet: &[u8], at: usize) -> u32 {
    let bytes = packet[at..].first_chunk().copied();
    u32::from_be_bytes(bytes.unwrap_or_default())
}

/// Checksums of a packet whose length changed: right, or wrong when it was wrong before.
fn complete(packet: &mut [u8], tcp_at: usize, right: bool) {
    if packet[0] >> 4 == 4 {
        fix_ipv4_checksum(packet, tcp_at);
    }
    fix_tcp_checksum(packet);
    if !right {
        packet[tcp_at + CHECKSUM_AT] ^= 0x55;
    }
}

fn fix_ipv4_checksum(packet: &mut [u8], header_len: usize) {
    packet[10..12].fill(0);
    let checksum = Sum::of(&packet[..header_len]).checksum();
    put_u16(packet, 10, checksum);
}

fn set_total_len(packet: &mut [u8], ip: &IpHeader, total_len: usize) {
    let (at, value) = if ip.is_v6() {
        (4, total_len - 40)
    } else {
        (2, total_len)
    };
    put_u16(packet, at, u16::try_from(value).unwrap_or(u16::MAX));
}

fn tcp_checksum(packet: &[u8], segment: &Segment) -> u16 {
    let at = segment.ip.header_len + CHECKSUM_AT;
    u16::from_be_bytes([packet[at], packet[at + 1]])
}

fn set_tcp_checksum(packet: &mut [u8], segment: &Segment, checksum: u16) {
    put_u16(packet, segment.ip.header_len + CHECKSUM_AT, checksum);
}

/// Offset of the checksum in the TCP header.
pub(crate) const CHECKSUM_AT: usize = 16;

/// Flags in byte 13 of the TCP header.
const FIN: u8 = 0x01;
const PSH: u8 = 0x08;
const CWR: u8 = 0x80;

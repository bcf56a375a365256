//! IPv4 (RFC 791) and IPv6 (RFC 8200) headers.
//!
//! Reading accepts options and extension headers and skips them; writing never makes any. Fragments
//! are refused: a transport header is not found in them.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::bytes::{Reader, Writer, length_field};
use crate::{ParseError, Sum};

/// Parsed IP header of one packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IpHeader {
    /// Source address.
    pub src: IpAddr,
    /// Destination address; of the same family as `src`.
    pub dst: IpAddr,
    /// Protocol of the upper layer (see [`protocol`]), behind IPv6 extension headers.
    pub protocol: u8,
    /// Bytes before the upper layer: header with options or extension headers.
    pub header_len: usize,
    /// Bytes of the whole packet as the header says; what lies behind is link padding.
    pub total_len: usize,
    /// DSCP (upper six bits) and ECN (lower two).
    pub traffic_class: u8,
    /// IPv4 time to live, IPv6 hop limit.
    pub ttl: u8,
    /// IPv4 identification; 0 for IPv6.
    pub identification: u16,
    /// IPv4 don't-fragment flag; always set for IPv6.
    pub dont_fragment: bool,
    /// IPv6 flow label, 20 bits; 0 for IPv4.
    pub flow_label: u32,
}

impl IpHeader {
    /// Reads the header at the start of `bytes`.
    ///
    /// The IPv4 header checksum is not verified: the kernel that handed us the packet did.
    ///
    /// # Errors
    ///
    /// Not IP, lengths that contradict each other or `bytes`, fragments, too many extension headers,
    /// a routing header with segments left.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        match bytes.first().ok_or(ParseError::Truncated)? >> 4 {
            4 => Self::parse_v4(bytes),
            6 => Self::parse_v6(bytes),
            version => Err(ParseError::Version(version)),
        }
    }

    /// Whether this is IPv6.
    #[must_use]
    #[inline]
    pub const fn is_v6(&self) -> bool {
        self.src.is_ipv6() || self.dst.is_ipv6()
    }

    /// Bytes that [`emit`](Self::emit) writes: 20 or 40.
    #[must_use]
    #[inline]
    pub const fn emitted_len(&self) -> usize {
        if self.is_v6() {
            IPV6_HEADER_LEN
        } else {
            IPV4_HEADER_LEN
        }
    }

    /// Writes a fresh header without options for `payload_len` bytes behind it, with the IPv4
    /// checksum; returns its length. `header_len` and `total_len` of `self` play no part.
    ///
    /// # Panics
    ///
    /// When `out` is shorter than [`emitted_len`](Self::emitted_len).
    #[inline]
    pub fn emit(&self, payload_len: usize, out: &mut [u8]) -> usize {
        match (self.src, self.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => self.emit_v4(src, dst, payload_len, out),
            (src, dst) => self.emit_v6(to_v6(src), to_v6(dst), payload_len, out),
        }
    }

    /// Sum of the pseudo-header (RFC 9293 section 3.1, RFC 8200 section 8.1) for `tcp_len` bytes of
    /// TCP header and payload.
    #[must_use]
    #[inline]
    pub fn pseudo_header_sum(&self, tcp_len: usize) -> Sum {
        let addresses = match (self.src, self.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                Sum::default().add_u32(src.to_bits()).add_u32(dst.to_bits())
            }
            (src, dst) => Sum::of(&to_v6(src).octets()).add(Sum::of(&to_v6(dst).octets())),
        };
        addresses
            .add_u64(tcp_len as u64)
            .add_u16(u16::from(self.protocol))
    }

    fn parse_v4(bytes: &[u8]) -> Result<Self, ParseError> {
        let fixed: &[u8; IPV4_HEADER_LEN] = bytes.first_chunk().ok_or(ParseError::Truncated)?;
        let [
            version_ihl,
            traffic_class,
            l0,
            l1,
            i0,
            i1,
            f0,
            f1,
            ttl,
            protocol,
            ..,
        ] = *fixed;
        let [.., s0, s1, s2, s3, d0, d1, d2, d3] = *fixed;

        let header_len = usize::from(version_ihl & 0x0f) * 4;
        let total_len = usize::from(u16::from_be_bytes([l0, l1]));
        if header_len < IPV4_HEADER_LEN {
            return Err(ParseError::IpHeaderLength(header_len));
        }
        if total_len < header_len {
            return Err(ParseError::IpTotalLength(total_len));
        }
        if total_len > bytes.len() {
            return Err(ParseError::Truncated);
        }
        let fragment = u16::from_be_bytes([f0, f1]);
        if fragment & (MORE_FRAGMENTS | FRAGMENT_OFFSET) != 0 {
            return Err(ParseError::Fragment);
        }
        Ok(Self {
            src: IpAddr::V4(Ipv4Addr::new(s0, s1, s2, s3)),
            dst: IpAddr::V4(Ipv4Addr::new(d0, d1, d2, d3)),
            protocol,
            header_len,
            total_len,
            traffic_class,
            ttl,
            identification: u16::from_be_bytes([i0, i1]),
            dont_fragment: fragment & DONT_FRAGMENT != 0,
            flow_label: 0,
        })
    }

    fn parse_v6(bytes: &[u8]) -> Result<Self, ParseError> {
        let mut reader = Reader::new(bytes);
        let fixed = (|| {
            Some((
                reader.u32()?,
                reader.u16()?,
                reader.u8()?,
                reader.u8()?,
                reader.array::<16>()?,
                reader.array::<16>()?,
            ))
        })();
        let (word, payload_len, next_header, ttl, src, dst) = fixed.ok_or(ParseError::Truncated)?;

        let total_len = IPV6_HEADER_LEN + usize::from(payload_len);
        let packet = bytes.get(..total_len).ok_or(ParseError::Truncated)?;
        let (protocol, header_len) = skip_extension_headers(packet, next_header)?;
        let [b0, b1, ..] = word.to_be_bytes();
        Ok(Self {
            src: IpAddr::V6(Ipv6Addr::from(src)),
            dst: IpAddr::V6(Ipv6Addr::from(dst)),
            protocol,
            header_len,
            total_len,
            traffic_class: (b0 << 4) | (b1 >> 4),
            ttl,
            identification: 0,
            dont_fragment: true,
            flow_label: word & FLOW_LABEL,
        })
    }

    fn emit_v4(&self, src: Ipv4Addr, dst: Ipv4Addr, payload_len: usize, out: &mut [u8]) -> usize {
        let mut header = [0; IPV4_HEADER_LEN];
        let mut writer = Writer::new(&mut header);
        writer.u8(0x45);
        writer.u8(self.traffic_class);
        writer.u16(length_field(IPV4_HEADER_LEN + payload_len));
        writer.u16(self.identification);
        writer.u16(if self.dont_fragment { DONT_FRAGMENT } else { 0 });
        writer.u8(self.ttl);
        writer.u8(self.protocol);
        writer.u16(0);
        writer.put(&src.octets());
        writer.put(&dst.octets());
        let checksum = Sum::of(&header).checksum();
        header[10..12].copy_from_slice(&checksum.to_be_bytes());
        out[..IPV4_HEADER_LEN].copy_from_slice(&header);
        IPV4_HEADER_LEN
    }

    fn emit_v6(&self, src: Ipv6Addr, dst: Ipv6Addr, payload_len: usize, out: &mut [u8]) -> usize {
        let mut writer = Writer::new(out);
        let label = self.flow_label & FLOW_LABEL;
        writer.u32((6 << 28) | (u32::from(self.traffic_class) << 20) | label);
        writer.u16(length_field(payload_len));
        writer.u8(self.protocol);
        writer.u8(self.ttl);
        writer.put(&src.octets());
        writer.put(&dst.octets());
        writer.len()
    }
}

/// Upper-layer protocol and its offset, behind the extension headers that hosts skip (RFC 8200
/// section 4).
fn skip_extension_headers(packet: &[u8], first: u8) -> Result<(u8, usize), ParseError> {
    let mut next = first;
    let mut offset = IPV6_HEADER_LEN;
    for _ in 0..=MAX_EXTENSION_HEADERS {
        match next {
            protocol::HOP_BY_HOP | protocol::ROUTING | protocol::DESTINATION_OPTIONS => {}
            protocol::FRAGMENT => return Err(ParseError::Fragment),
            _ => return Ok((next, offset)),
        }
        let rest = packet.get(offset..).ok_or(ParseError::Truncated)?;
        let [following, len, _, segments_left, ..] = *rest else {
            return Err(ParseError::IpTotalLength(packet.len()));
        };
        if next == protocol::ROUTING && segments_left != 0 {
            return Err(ParseError::RoutingHeader);
        }
        offset += (usize::from(len) + 1) * 8;
        if offset > packet.len() {
            return Err(ParseError::IpTotalLength(packet.len()));
        }
        next = following;
    }
    Err(ParseError::ExtensionHeaders)
}

/// Headers of mixed families don't come from a packet; they are written as IPv6.
const fn to_v6(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

/// Numbers of the IPv4 protocol and IPv6 next header fields.
pub mod protocol {
    /// IPv6 hop-by-hop options.
    pub const HOP_BY_HOP: u8 = 0;
    /// ICMP.
    pub const ICMP: u8 = 1;
    /// TCP.
    pub const TCP: u8 = 6;
    /// IPv6 routing header.
    pub const ROUTING: u8 = 43;
    /// IPv6 fragment header.
    pub const FRAGMENT: u8 = 44;
    /// ICMPv6.
    pub const ICMPV6: u8 = 58;
    /// IPv6 destination options.
    pub const DESTINATION_OPTIONS: u8 = 60;
}

const IPV4_HEADER_LEN: usize = 20;
const IPV6_HEADER_LEN: usize = 40;
const DONT_FRAGMENT: u16 = 0x4000;
const MORE_FRAGMENTS: u16 = 0x2000;
const FRAGMENT_OFFSET: u16 = 0x1fff;
const FLOW_LABEL: u32 = 0x000f_ffff;

/// RFC 8200 section 4.1 names six that make sense, destination options twice among them.
const MAX_EXTENSION_HEADERS: usize = 8;

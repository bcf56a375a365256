//! ICMP (RFC 792) and ICMPv6 (RFC 4443) errors about TCP segments.
//!
//! An error quotes the start of the packet it is about: its IP header and at least the first 8 bytes
//! behind it, which hold ports and sequence number. Nothing else of the segment is looked at.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::bytes::Reader;
use crate::{IpHeader, Sum, protocol};

/// Type, code, checksum and four bytes that depend on the type.
const ICMP_HEADER_LEN: usize = 8;
/// Where the checksum stands.
const CHECKSUM: usize = 2;
/// Where an IPv4 header without options ends.
const IPV4_HEADER_LEN: usize = 20;
/// Where an IPv6 header ends.
const IPV6_HEADER_LEN: usize = 40;

/// What an ICMP error says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IcmpKind {
    /// The packet did not reach its destination.
    Unreachable,
    /// It was longer than a link on the path takes (RFC 1191, RFC 8201): the MTU of that link in bytes,
    /// IP header included; 0 from routers that do not say.
    TooBig(u32),
    /// It travelled too far.
    TimeExceeded,
}

/// An ICMP error about a TCP segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IcmpError {
    /// What it says.
    pub kind: IcmpKind,
    /// The code of its type, as it came: for "destination unreachable", why.
    pub code: u8,
    /// Source of the segment.
    pub src: SocketAddr,
    /// Destination of the segment; of the same family.
    pub dst: SocketAddr,
    /// Sequence number of the segment, in the number space of the leg it was on.
    pub seq: u32,
    /// Where the quoted TCP header starts in the message.
    tcp: usize,
}

impl IcmpError {
    /// Reads the message behind `ip`. `None`: not an error, or not about a TCP segment whose start can be
    /// read.
    #[must_use]
    pub fn parse(ip: &IpHeader, message: &[u8]) -> Option<Self> {
        let mut head = Reader::new(message);
        let (kind, code) = (head.u8()?, head.u8()?);
        let (_checksum, value) = (head.u16()?, head.u32()?);
        let kind = match (ip.protocol, kind, code) {
            // Only its lower half is the MTU (RFC 1191 section 4).
            (protocol::ICMP, 3, 4) => IcmpKind::TooBig(value & 0xffff),
            (protocol::ICMP, 3, _) | (protocol::ICMPV6, 1, _) => IcmpKind::Unreachable,
            (protocol::ICMP, 11, _) | (protocol::ICMPV6, 3, _) => IcmpKind::TimeExceeded,
            (protocol::ICMPV6, 2, _) => IcmpKind::TooBig(value),
            _ => return None,
        };
        let quoted = message.get(ICMP_HEADER_LEN..)?;
        let (src, dst, ip_len) = match quoted.first()? >> 4 {
            4 if ip.protocol == protocol::ICMP => quoted_v4(quoted)?,
            6 if ip.protocol == protocol::ICMPV6 => quoted_v6(quoted)?,
            _ => return None,
        };
        let mut tcp = Reader::new(quoted.get(ip_len..)?);
        Some(Self {
            kind,
            code,
            src: SocketAddr::new(src, tcp.u16()?),
            dst: SocketAddr::new(dst, tcp.u16()?),
            seq: tcp.u32()?,
            tcp: ICMP_HEADER_LEN + ip_len,
        })
    }

    /// Whether the checksum of the message behind `ip` is right.
    #[must_use]
    pub fn checksum_is_right(ip: &IpHeader, message: &[u8]) -> bool {
        message_sum(ip, message).fold() == 0xffff
    }

    /// Writes `self` over the error that was read from `message`, for a packet with the header `ip`: the
    /// MTU, and the addresses, ports and sequence number of the quoted segment, all of the same families.
    ///
    /// The quoted TCP checksum is left alone: nobody can check it against a part of the segment.
    ///
    /// `false`, and nothing is written, when the families differ or `message` is not the one that `self` was read from.
    #[must_use]
    pub fn rewrite(&self, ip: &IpHeader, message: &mut [u8]) -> bool {
        let quoted_len = match (self.src, self.dst) {
            (SocketAddr::V4(_), SocketAddr::V4(_)) => IPV4_HEADER_LEN,
            (SocketAddr::V6(_), SocketAddr::V6(_)) => IPV6_HEADER_LEN,
            _ => return false,
        };
        let family = message.get(ICMP_HEADER_LEN).map(|first| first >> 4);
        if family != Some(if self.src.is_ipv4() { 4 } else { 6 })
            || self.tcp < ICMP_HEADER_LEN + quoted_len
            || message.len() < self.tcp + 8
        {
            return false;
        }
        if let IcmpKind::TooBig(mtu) = self.kind {
            message[4..8].copy_from_slice(&mtu.to_be_bytes());
        }
        let quoted = &mut message[ICMP_HEADER_LEN..self.tcp];
        match (self.src.ip(), self.dst.ip()) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                quoted[12..16].copy_from_slice(&src.octets());
                quoted[16..20].copy_from_slice(&dst.octets());
                quoted[10..12].fill(0);
                let checksum = Sum::of(quoted).checksum();
                quoted[10..12].copy_from_slice(&checksum.to_be_bytes());
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                quoted[8..24].copy_from_slice(&src.octets());
                quoted[24..40].copy_from_slice(&dst.octets());
            }
            _ => return false,
        }
        let tcp = &mut message[self.tcp..self.tcp + 8];
        tcp[..2].copy_from_slice(&self.src.port().to_be_bytes());
        tcp[2..4].copy_from_slice(&self.dst.port().to_be_bytes());
        tcp[4..].copy_from_slice(&self.seq.to_be_bytes());
        message[CHECKSUM..CHECKSUM + 2].fill(0);
        let checksum = message_sum(ip, message).checksum();
        message[CHECKSUM..CHECKSUM + 2].copy_from_slice(&checksum.to_be_bytes());
        true
    }
}

/// ICMPv6 counts a pseudo-header (RFC 4443 section 2.3), ICMP does not.
fn message_sum(ip: &IpHeader, message: &[u8]) -> Sum {
    let sum = Sum::of(message);
    if ip.is_v6() {
        ip.pseudo_header_sum(message.len()).add(sum)
    } else {
        sum
    }
}

/// Addresses of a quoted packet, and the length of its IP header. `None`: not TCP, or a later fragment.
fn quoted_v4(quoted: &[u8]) -> Option<(IpAddr, IpAddr, usize)> {
    let &[
        version_ihl,
        _,
        _,
        _,
        _,
        _,
        f0,
        f1,
        _,
        upper,
        _,
        _,
        s0,
        s1,
        s2,
        s3,
        d0,
        d1,
        d2,
        d3,
    ] = quoted.first_chunk()?;
    let offset = u16::from_be_bytes([f0, f1]) & 0x1fff;
    let len = usize::from(version_ihl & 0x0f) * 4;
    if upper != protocol::TCP || offset != 0 || len < 20 {
        return None;
    }
    let src = Ipv4Addr::new(s0, s1, s2, s3);
    Some((src.into(), Ipv4Addr::new(d0, d1, d2, d3).into(), len))
}

/// The same for IPv6. FlexCP never sends extension headers.
fn quoted_v6(quoted: &[u8]) -> Option<(IpAddr, IpAddr, usize)> {
    let fixed: &[u8; IPV6_HEADER_LEN] = quoted.first_chunk()?;
    let mut addresses = Reader::new(&fixed[8..]);
    let (src, dst) = (addresses.array::<16>()?, addresses.array::<16>()?);
    if fixed[6] != protocol::TCP {
        return None;
    }
    Some((
        Ipv6Addr::from(src).into(),
        Ipv6Addr::from(dst).into(),
        IPV6_HEADER_LEN,
    ))
}

//! The virtio-net header that a TUN device with `IFF_VNET_HDR` puts before each packet
//! (`struct virtio_net_hdr`, 10 bytes, host byte order unless `TUNSETVNETLE/BE` says otherwise).
//!
//! Only what a TCP packet can ask for is understood; anything else is an error, because passing it
//! on with our offsets would damage the packet.

use crate::ParseError;
use crate::bytes::length_field;

/// Length of the header in bytes, as TUN has it by default (no `num_buffers`).
pub const VNET_HEADER_LEN: usize = 10;

/// What is left for the carrier to do with a packet.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Offload {
    /// State of the TCP checksum.
    pub checksum: ChecksumState,
    /// Set when the packet is longer than one segment and has to be (or was) put together of
    /// several.
    pub gso: Option<Gso>,
}

/// What is known of the TCP checksum.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub enum ChecksumState {
    /// A full checksum stands in the packet; nobody checked it.
    #[default]
    Complete,
    /// The carrier has checked it (`VIRTIO_NET_HDR_F_DATA_VALID`).
    Verified,
    /// Only the sum of the pseudo-header stands in the packet; the carrier completes it
    /// (`VIRTIO_NET_HDR_F_NEEDS_CSUM`).
    Partial,
}

/// Segmentation of a packet that carries several segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gso {
    /// Address family.
    pub kind: GsoKind,
    /// Payload bytes per segment (the last may have fewer); never 0.
    pub size: u16,
    /// The first segment alone carries CWR (`VIRTIO_NET_HDR_GSO_ECN`).
    pub ecn: bool,
}

/// Kinds of segmentation for TCP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GsoKind {
    /// TCP in IPv4.
    TcpV4,
    /// TCP in IPv6.
    TcpV6,
}

/// Reads a header.
///
/// # Errors
///
/// Segmentation that is not TCP or has no size; a partial checksum that is not where TCP has it.
#[inline]
pub fn parse_vnet(header: &[u8; VNET_HEADER_LEN]) -> Result<Offload, ParseError> {
    let [flags, gso_type, _, _, g0, g1, _, _, o0, o1] = *header;
    let checksum = if flags & FLAG_NEEDS_CSUM != 0 {
        let offset = u16::from_ne_bytes([o0, o1]);
        if offset != TCP_CHECKSUM_OFFSET {
            return Err(ParseError::ChecksumOffset(offset));
        }
        ChecksumState::Partial
    } else if flags & FLAG_DATA_VALID != 0 {
        ChecksumState::Verified
    } else {
        ChecksumState::Complete
    };
    let kind = match gso_type & !GSO_ECN {
        GSO_NONE => {
            return Ok(Offload {
                checksum,
                gso: None,
            });
        }
        GSO_TCPV4 => GsoKind::TcpV4,
        GSO_TCPV6 => GsoKind::TcpV6,
        _ => return Err(ParseError::GsoType(gso_type)),
    };
    let size = u16::from_ne_bytes([g0, g1]);
    if size == 0 {
        return Err(ParseError::GsoSize);
    }
    let gso = Gso {
        kind,
        size,
        ecn: gso_type & GSO_ECN != 0,
    };
    Ok(Offload {
        checksum,
        gso: Some(gso),
    })
}

/// Writes a header for a packet with headers of these lengths in bytes (options included).
#[inline]
pub fn emit_vnet(
    offload: &Offload,
    ip_header_len: usize,
    tcp_header_len: usize,
    out: &mut [u8; VNET_HEADER_LEN],
) {
    let (flags, csum_start, csum_offset) = match offload.checksum {
        ChecksumState::Complete => (0, 0, 0),
        ChecksumState::Verified => (FLAG_DATA_VALID, 0, 0),
        ChecksumState::Partial => (
            FLAG_NEEDS_CSUM,
            length_field(ip_header_len),
            TCP_CHECKSUM_OFFSET,
        ),
    };
    let (gso_type, hdr_len, gso_size) = match offload.gso {
        None => (GSO_NONE, 0, 0),
        Some(gso) => {
            let kind = match gso.kind {
                GsoKind::TcpV4 => GSO_TCPV4,
                GsoKind::TcpV6 => GSO_TCPV6,
            };
            let ecn = if gso.ecn { GSO_ECN } else { 0 };
            (
                kind | ecn,
                length_field(ip_header_len + tcp_header_len),
                gso.size,
            )
        }
    };
    let [h0, h1] = hdr_len.to_ne_bytes();
    let [g0, g1] = gso_size.to_ne_bytes();
    let [s0, s1] = csum_start.to_ne_bytes();
    let [o0, o1] = csum_offset.to_ne_bytes();
    *out = [flags, gso_type, h0, h1, g0, g1, s0, s1, o0, o1];
}

/// Offset of the checksum field in a TCP header, in bytes.
const TCP_CHECKSUM_OFFSET: u16 = 16;

// linux/virtio_net.h
const FLAG_NEEDS_CSUM: u8 = 1;
const FLAG_DATA_VALID: u8 = 2;
const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
const GSO_ECN: u8 = 0x80;

//! Why bytes could not be understood.

use core::error::Error;
use core::fmt;

/// What was wrong with a packet, a header or an option. Carries the value seen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ParseError {
    /// The virtio-net header asks to complete a checksum that is not the one of TCP.
    ChecksumOffset(u16),
    /// A DATA_FIN flag in a DSS without a mapping: nothing says which number it has.
    DataFinWithoutMapping,
    /// More IPv6 extension headers than anybody has a use for.
    ExtensionHeaders,
    /// The packet is an IP fragment (also the "atomic" one of RFC 6946).
    Fragment,
    /// The virtio-net header has segmentation without a segment size.
    GsoSize,
    /// The virtio-net header has a segmentation type that is not TCP.
    GsoType(u8),
    /// The IPv4 header length, in bytes, is below 20 or beyond the packet.
    IpHeaderLength(usize),
    /// The IP total length is shorter than the headers it has to cover.
    IpTotalLength(usize),
    /// The length of an MPTCP option (kind and length bytes counted) is none that its subtype has.
    MptcpLength {
        /// Upper four bits of the option's third byte.
        subtype: u8,
        /// Length byte as received.
        len: u8,
    },
    /// The length byte of a TCP option is below 2, past the end, or wrong for its kind.
    OptionLength {
        /// Kind byte as received.
        kind: u8,
        /// Length byte as received; 0 when the options end before it.
        len: u8,
    },
    /// A header of the PROXY protocol that is none of version 2 for TCP over IP.
    ProxyHeader,
    /// An IPv6 routing header that is not used up: the final destination is another one.
    RoutingHeader,
    /// The TCP header length, in bytes, is below 20 or beyond the segment.
    TcpHeaderLength(usize),
    /// The bytes end before the packet does.
    Truncated,
    /// Neither IPv4 nor IPv6.
    Version(u8),
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::ChecksumOffset(offset) => write!(f, "checksum offset {offset} is not TCP"),
            Self::DataFinWithoutMapping => f.write_str("DATA_FIN without a mapping"),
            Self::ExtensionHeaders => f.write_str("too many IPv6 extension headers"),
            Self::Fragment => f.write_str("IP fragment"),
            Self::GsoSize => f.write_str("segmentation with segment size 0"),
            Self::GsoType(gso_type) => write!(f, "segmentation type {gso_type:#04x} is not TCP"),
            Self::IpHeaderLength(len) => write!(f, "bad IP header length {len}"),
            Self::IpTotalLength(len) => write!(f, "bad IP total length {len}"),
            Self::MptcpLength { subtype, len } => {
                write!(f, "bad length {len} of MPTCP option subtype {subtype:#x}")
            }
            Self::OptionLength { kind, len } => {
                write!(f, "bad length {len} of TCP option kind {kind}")
            }
            Self::ProxyHeader => f.write_str("no PROXY header of TCP over IP"),
            Self::RoutingHeader => f.write_str("IPv6 routing header with segments left"),
            Self::TcpHeaderLength(len) => write!(f, "bad TCP header length {len}"),
            Self::Truncated => f.write_str("truncated packet"),
            Self::Version(version) => write!(f, "unknown IP version {version}"),
        }
    }
}

impl Error for ParseError {}

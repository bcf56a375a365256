//! Bytes <-> meaning: IP and TCP headers, TCP options, every MPTCP option of RFC 8684, what
//! stands before a stream (RFC 8803, SOCKS5, the PROXY protocol), the virtio-net header,
//! checksums, and the number spaces.
//!
//! The crate owns the layout of what is on the wire and nothing else: no state, no clock, no I/O,
//! no allocation. Parsing takes network input and can't panic; what is malformed is a
//! [`ParseError`] that says why. Writing takes our own values: a buffer that is too short there is
//! a bug of the caller and panics. For every well-formed header or option `emit(parse(x)) = x`,
//! where well-formed means that reserved bits are zero: they are ignored when read (as the RFCs
//! ask) and written as zero.
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::too_many_lines))]

mod bytes;
mod checksum;
mod convert;
mod ends;
mod error;
mod icmp;
mod ip;
mod mptcp;
mod option;
mod pretty;
mod proxy_header;
mod seq;
mod socks;
mod tcp;
mod vnet;

pub use checksum::{Sum, dss_checksum, update_checksum};
pub use convert::{
    CONVERT_HEADER_LEN, CONVERT_MAX_LEN, CONVERT_VERSION, Connect, ConvertError, ConvertFault,
    ConvertMessage, ConvertTlv, ConvertWriter,
};
pub use ends::Ends;
pub use error::ParseError;
pub use icmp::{IcmpError, IcmpKind};
pub use ip::{IpHeader, protocol};
pub use mptcp::{
    AddAddr, CapableFlags, CapableKeys, DataNumber, Dss, DssMapping, MpCapable, MpExperimental,
    MpFail, MpFastClose, MpJoin, MpPrio, MpTcpRst, MpUnknown, MptcpOption, OptionData, RemoveAddr,
    Subtype,
};
pub use option::{OptionWriter, SackBlocks, TcpOption, TcpOptions, Timestamps, kind};
pub use pretty::PacketLine;
pub use proxy_header::{PROXY_HEADER_MAX_LEN, ProxyHeader};
pub use seq::{Dsn, Ssn, TcpSeq};
pub use socks::{
    SOCKS_MAX_LEN, SocksAddr, SocksCommand, SocksCredentials, SocksFault, SocksGreeting,
    SocksReply, SocksRequest, parse_socks_judgement, parse_socks_method, socks_credentials_judged,
    socks_method, socks_method_chosen,
};
pub use tcp::{TcpFlags, TcpHeader};
pub use vnet::{ChecksumState, Gso, GsoKind, Offload, VNET_HEADER_LEN, emit_vnet, parse_vnet};

/// Length of a TCP header without options, in bytes.
pub const TCP_HEADER_LEN: usize = 20;

/// Most bytes that options can take in one TCP header (the data offset is a 4-bit word count).
pub const MAX_TCP_OPTIONS_LEN: usize = 40;

/// Most bytes of headers that this crate ever writes: IPv6 without extension headers, then a full
/// TCP header.
pub const MAX_HEADERS_LEN: usize = 40 + TCP_HEADER_LEN + MAX_TCP_OPTIONS_LEN;

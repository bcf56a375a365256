//! The TLVs (RFC 8803 sections 6.2.3 to 6.2.7). Each is a multiple of four bytes, padded with zeros.

use core::net::{IpAddr, Ipv6Addr};

use super::{ConvertError, TlvFault};
use crate::bytes::{Reader, Writer, length_byte};
use crate::option::kind;

/// A type, a length, and what they say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConvertTlv<'a> {
    /// The client asks which TCP extensions are converted.
    Info,
    /// The client asks for a connection.
    Connect(Connect<'a>),
    /// The TCP options of the server's SYN/ACK, padding included when received.
    ExtendedTcpHeader(&'a [u8]),
    /// Kinds of the TCP options that are converted; zeros behind them are padding.
    SupportedExtensions(&'a [u8]),
    /// What shows that the client can be reached where it says, padding included when received.
    Cookie(&'a [u8]),
    /// Why the connection is refused, or has ended.
    Error(ConvertError<'a>),
}

/// What a connection is asked for to. Nothing that cannot be connected to can be read: no multicast, broadcast, loopback or
/// unspecified address, and no port 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Connect<'a> {
    /// Of the server; an IPv4 address stands as a mapped one on the wire.
    pub addr: IpAddr,
    /// The server's.
    pub port: u16,
    /// TCP options for the SYN to the server, each a kind, a length and perhaps a value, with the zeros behind them. Empty: none
    /// are asked for, and none are told in the answer.
    pub options: &'a [u8],
}

/// The first TLV and what is behind it; `None`: there is no more.
pub(super) fn split(tlvs: &[u8]) -> Result<Option<(ConvertTlv<'_>, &[u8])>, TlvFault> {
    let [kind, words, ..] = *tlvs else {
        return Ok(None);
    };
    let len = usize::from(words) * 4;
    let (tlv, rest) = tlvs.split_at_checked(len).ok_or(TlvFault::Malformed)?;
    let value = tlv.get(2..).ok_or(TlvFault::Malformed)?;
    Ok(Some((ConvertTlv::parse(kind, value)?, rest)))
}

impl<'a> ConvertTlv<'a> {
    /// From what stands behind the length.
    fn parse(kind: u8, value: &'a [u8]) -> Result<Self, TlvFault> {
        let behind_zero = || value.get(2..).ok_or(TlvFault::Malformed);
        match kind {
            INFO if value.len() == 2 => Ok(Self::Info),
            INFO => Err(TlvFault::Malformed),
            CONNECT => Connect::parse(value).map(Self::Connect),
            EXTENDED_TCP_HEADER => behind_zero().map(Self::ExtendedTcpHeader),
            SUPPORTED_EXTENSIONS => behind_zero().map(Self::SupportedExtensions),
            COOKIE => behind_zero().map(Self::Cookie),
            ERROR => ConvertError::parse(value).map(Self::Error),
            other => Err(TlvFault::Unsupported(other)),
        }
    }

    /// Its type (section 6.2.2).
    pub(super) const fn kind(&self) -> u8 {
        match self {
            Self::Info => INFO,
            Self::Connect(_) => CONNECT,
            Self::ExtendedTcpHeader(_) => EXTENDED_TCP_HEADER,
            Self::SupportedExtensions(_) => SUPPORTED_EXTENSIONS,
            Self::Cookie(_) => COOKIE,
            Self::Error(_) => ERROR,
        }
    }

    /// Bytes on the wire, padding included.
    pub(super) fn len(&self) -> usize {
        let value = match self {
            Self::Info => 2,
            Self::Connect(connect) => 18 + connect.options.len(),
            Self::ExtendedTcpHeader(value)
            | Self::SupportedExtensions(value)
            | Self::Cookie(value) => 2 + value.len(),
            Self::Error(error) => error.len(),
        };
        (2 + value).next_multiple_of(4)
    }

    /// Writes it to zeroed room of its length.
    pub(super) fn emit(&self, out: &mut Writer<'_>) {
        out.put(&[self.kind(), length_byte(self.len() / 4)]);
        match self {
            Self::Info => {}
            Self::Connect(connect) => connect.emit(out),
            Self::ExtendedTcpHeader(value)
            | Self::SupportedExtensions(value)
            | Self::Cookie(value) => {
                out.u16(0);
                out.put(value);
            }
            Self::Error(error) => error.emit(out),
        }
    }
}

impl<'a> Connect<'a> {
    fn parse(value: &'a [u8]) -> Result<Self, TlvFault> {
        let mut reader = Reader::new(value);
        let fields = (reader.u16(), reader.array::<16>(), value.get(18..));
        let (Some(port), Some(addr), Some(options)) = fields else {
            return Err(TlvFault::Malformed);
        };
        let connect = Self {
            addr: Ipv6Addr::from(addr).to_canonical(),
            port,
            options,
        };
        let sound = connect.can_be_reached() && are_options(options);
        sound.then_some(connect).ok_or(TlvFault::Malformed)
    }

    fn can_be_reached(&self) -> bool {
        let nobody =
            self.addr.is_multicast() || self.addr.is_loopback() || self.addr.is_unspecified();
        let all = matches!(self.addr, IpAddr::V4(addr) if addr.is_broadcast());
        self.port != 0 && !nobody && !all
    }

    fn emit(&self, out: &mut Writer<'_>) {
        let addr = match self.addr {
            IpAddr::V4(addr) => addr.to_ipv6_mapped(),
            IpAddr::V6(addr) => addr,
        };
        out.u16(self.port);
        out.put(&addr.octets());
        out.put(self.options);
    }

    /// The TCP options that are asked for: their kinds and values. An empty value is the converter's to choose.
    pub fn tcp_options(&self) -> impl Iterator<Item = KindAndValue<'a>> + use<'a> {
        let mut rest = self.options;
        core::iter::from_fn(move || {
            let (option, behind) = first_option(rest)?;
            rest = behind;
            Some(option)
        })
    }
}

/// A TCP option's kind and value.
type KindAndValue<'a> = (u8, &'a [u8]);

/// The first option and what is behind it; `None`: there is none.
fn first_option(options: &[u8]) -> Option<(KindAndValue<'_>, &[u8])> {
    let [kind, len, ..] = *options else {
        return None;
    };
    let (option, rest) = options.split_at_checked(len.into())?;
    let without_length = matches!(kind, kind::END | kind::NOP);
    (!without_length).then_some(())?;
    Some(((kind, option.get(2..)?), rest))
}

/// Whether options stand one behind the other, and zeros behind them: fewer than a word.
fn are_options(options: &[u8]) -> bool {
    let mut rest = options;
    while let Some((_, behind)) = first_option(rest) {
        rest = behind;
    }
    rest.len() < 4 && rest.iter().all(|byte| *byte == 0)
}

const INFO: u8 = 1;
const CONNECT: u8 = 10;
const EXTENDED_TCP_HEADER: u8 = 20;
const SUPPORTED_EXTENSIONS: u8 = 21;
const COOKIE: u8 = 22;
const ERROR: u8 = 30;

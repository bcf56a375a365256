//! The Error TLV (RFC 8803 section 6.2.8).

use core::fmt;

use super::TlvFault;
use crate::bytes::Writer;

/// Why a converter refuses a connection, or has to end it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConvertError<'a> {
    /// The versions that are known; zeros behind them are padding.
    UnsupportedVersion(&'a [u8]),
    /// The message, or as much of it as the answer may repeat.
    Malformed(&'a [u8]),
    /// The same of a message that has a TLV of an unknown type.
    Unsupported(&'a [u8]),
    /// A cookie for the next attempt, padding included when received.
    MissingCookie(&'a [u8]),
    /// The client may not have that.
    NotAuthorized,
    /// Kinds of TCP options that the server cannot be sent; zeros behind them are padding.
    UnsupportedOption(&'a [u8]),
    /// The converter has no room: seconds to wait, 0 for at least 30.
    ResourceExceeded(u8),
    /// The converter has no way to the server: seconds to wait, 0 for at least 30.
    NetworkFailure(u8),
    /// The server has answered with a reset.
    ConnectionReset,
    /// The code of the ICMP error that has come instead of the server's answer.
    Unreachable(u8),
    /// A code that RFC 8803 does not have.
    Unknown {
        /// The code as received.
        code: u8,
        /// What stands behind it.
        value: &'a [u8],
    },
}

impl<'a> ConvertError<'a> {
    /// From what stands behind the length: a code and a value.
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Self, TlvFault> {
        let Some((&code, value)) = bytes.split_first() else {
            return Err(TlvFault::Malformed);
        };
        let Some((&first, behind)) = value.split_first() else {
            return Err(TlvFault::Malformed);
        };
        Ok(match code {
            UNSUPPORTED_VERSION => Self::UnsupportedVersion(value),
            MALFORMED => Self::Malformed(behind),
            UNSUPPORTED => Self::Unsupported(behind),
            MISSING_COOKIE => Self::MissingCookie(behind),
            NOT_AUTHORIZED if behind.is_empty() => Self::NotAuthorized,
            UNSUPPORTED_OPTION => Self::UnsupportedOption(value),
            RESOURCE_EXCEEDED if behind.is_empty() => Self::ResourceExceeded(first),
            NETWORK_FAILURE if behind.is_empty() => Self::NetworkFailure(first),
            CONNECTION_RESET if behind.is_empty() => Self::ConnectionReset,
            UNREACHABLE if behind.is_empty() => Self::Unreachable(first),
            code => Self::Unknown { code, value },
        })
    }

    /// Its code.
    #[must_use]
    pub const fn code(&self) -> u8 {
        match *self {
            Self::UnsupportedVersion(_) => UNSUPPORTED_VERSION,
            Self::Malformed(_) => MALFORMED,
            Self::Unsupported(_) => UNSUPPORTED,
            Self::MissingCookie(_) => MISSING_COOKIE,
            Self::NotAuthorized => NOT_AUTHORIZED,
            Self::UnsupportedOption(_) => UNSUPPORTED_OPTION,
            Self::ResourceExceeded(_) => RESOURCE_EXCEEDED,
            Self::NetworkFailure(_) => NETWORK_FAILURE,
            Self::ConnectionReset => CONNECTION_RESET,
            Self::Unreachable(_) => UNREACHABLE,
            Self::Unknown { code, .. } => code,
        }
    }

    /// What stands behind the code: one byte, and more.
    const fn value(&self) -> (u8, &'a [u8]) {
        match *self {
            Self::UnsupportedVersion(list) | Self::UnsupportedOption(list) => first_and_rest(list),
            Self::Malformed(more) | Self::Unsupported(more) | Self::MissingCookie(more) => {
                (0, more)
            }
            Self::NotAuthorized | Self::ConnectionReset => (0, &[]),
            Self::ResourceExceeded(first)
            | Self::NetworkFailure(first)
            | Self::Unreachable(first) => (first, &[]),
            Self::Unknown { value, .. } => first_and_rest(value),
        }
    }

    /// Bytes of code and value, without padding.
    pub(super) const fn len(&self) -> usize {
        2 + self.value().1.len()
    }

    pub(super) fn emit(&self, out: &mut Writer<'_>) {
        let (first, more) = self.value();
        out.put(&[self.code(), first]);
        out.put(more);
    }
}

const fn first_and_rest(value: &[u8]) -> (u8, &[u8]) {
    match value.split_first() {
        Some((&first, rest)) => (first, rest),
        None => (0, &[]),
    }
}

impl fmt::Display for ConvertError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnsupportedVersion(_) => f.write_str("unsupported version"),
            Self::Malformed(_) => f.write_str("malformed message"),
            Self::Unsupported(_) => f.write_str("unsupported message"),
            Self::MissingCookie(_) => f.write_str("missing cookie"),
            Self::NotAuthorized => f.write_str("not authorized"),
            Self::UnsupportedOption(_) => f.write_str("unsupported TCP option"),
            Self::ResourceExceeded(_) => f.write_str("resource exceeded"),
            Self::NetworkFailure(_) => f.write_str("network failure"),
            Self::ConnectionReset => f.write_str("connection reset"),
            Self::Unreachable(code) => write!(f, "destination unreachable, ICMP code {code}"),
            Self::Unknown { code, .. } => write!(f, "error {code}"),
        }
    }
}

const UNSUPPORTED_VERSION: u8 = 0;
const MALFORMED: u8 = 1;
const UNSUPPORTED: u8 = 2;
const MISSING_COOKIE: u8 = 3;
const NOT_AUTHORIZED: u8 = 32;
const UNSUPPORTED_OPTION: u8 = 33;
const RESOURCE_EXCEEDED: u8 = 64;
const NETWORK_FAILURE: u8 = 65;
const CONNECTION_RESET: u8 = 96;
const UNREACHABLE: u8 = 97;

//! MP_CAPABLE (RFC 8684 section 3.1, figure 4).

use core::fmt;
use core::ops::BitOr;

use super::{Body, Subtype, subtype_byte};
use crate::bytes::Writer;

/// MP_CAPABLE: opens a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MpCapable {
    /// Protocol version, 4 bits; RFC 8684 is version 1.
    pub version: u8,
    /// What the sender asks for.
    pub flags: CapableFlags,
    /// The keys, and with the first data its mapping.
    pub keys: CapableKeys,
}

/// What the length of an MP_CAPABLE says it carries. "Sender" and "receiver" are those of the packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CapableKeys {
    /// Length 4: no key (SYN).
    Syn,
    /// Length 12: one key (SYN/ACK; the SYN in version 0).
    SynAck {
        /// Key of the packet's sender.
        sender: u64,
    },
    /// Length 20: both keys (third ACK).
    Ack {
        /// Key of the packet's sender.
        sender: u64,
        /// Key of the packet's receiver.
        receiver: u64,
    },
    /// Length 22 or 24: both keys and the mapping of the first data, whose DSN is the initial one
    /// plus 1 and whose relative SSN is 1.
    AckData {
        /// Key of the packet's sender.
        sender: u64,
        /// Key of the packet's receiver.
        receiver: u64,
        /// Data-level length in bytes.
        data_len: u16,
        /// DSS checksum; `None` when not negotiated (length 22).
        checksum: Option<u16>,
    },
}

impl MpCapable {
    #[inline]
    pub(super) fn parse(body: Body<'_>) -> Option<Self> {
        let Body {
            len,
            flags: version,
            ..
        } = body;
        let mut reader = body.reader();
        let flags = CapableFlags(reader.u8()?);
        let keys = match len {
            4 => CapableKeys::Syn,
            12 => CapableKeys::SynAck {
                sender: reader.u64()?,
            },
            20 => CapableKeys::Ack {
                sender: reader.u64()?,
                receiver: reader.u64()?,
            },
            22 | 24 => CapableKeys::AckData {
                sender: reader.u64()?,
                receiver: reader.u64()?,
                data_len: reader.u16()?,
                checksum: reader.u16(),
            },
            _ => return None,
        };
        Some(Self {
            version,
            flags,
            keys,
        })
    }

    #[inline]
    pub(super) const fn len(&self) -> usize {
        match self.keys {
            CapableKeys::Syn => 4,
            CapableKeys::SynAck { .. } => 12,
            CapableKeys::Ack { .. } => 20,
            CapableKeys::AckData { checksum: None, .. } => 22,
            CapableKeys::AckData {
                checksum: Some(_), ..
            } => 24,
        }
    }

    #[inline]
    pub(super) fn emit(&self, out: &mut Writer<'_>) {
        out.put(&[subtype_byte(Subtype::Capable, self.version), self.flags.0]);
        match self.keys {
            CapableKeys::Syn => {}
            CapableKeys::SynAck { sender } => out.u64(sender),
            CapableKeys::Ack { sender, receiver } => {
                out.u64(sender);
                out.u64(receiver);
            }
            CapableKeys::AckData {
                sender,
                receiver,
                data_len,
                checksum,
            } => {
                out.u64(sender);
                out.u64(receiver);
                out.u16(data_len);
                if let Some(checksum) = checksum {
                    out.u16(checksum);
                }
            }
        }
    }
}

/// Flags of MP_CAPABLE, named A (0x80) to H (0x01) in the RFC. All eight are kept as received.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct CapableFlags(pub u8);

impl CapableFlags {
    /// A: checksum required.
    pub const CHECKSUM: Self = Self(0x80);
    /// B: extensibility; MUST be 0, an option with it set is to be ignored.
    pub const EXTENSIBILITY: Self = Self(0x40);
    /// C: the sender accepts no further subflows to this address and port.
    pub const NO_JOIN_INITIAL: Self = Self(0x20);
    /// H: HMAC-SHA256.
    pub const HMAC_SHA256: Self = Self(0x01);

    /// Whether all of `flags` are set.
    #[must_use]
    #[inline]
    pub const fn contains(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// These and `flags`.
    #[must_use]
    #[inline]
    pub const fn with(self, flags: Self) -> Self {
        Self(self.0 | flags.0)
    }

    /// These but not `flags`.
    #[must_use]
    #[inline]
    pub const fn without(self, flags: Self) -> Self {
        Self(self.0 & !flags.0)
    }
}

impl BitOr for CapableFlags {
    type Output = Self;

    #[inline]
    fn bitor(self, other: Self) -> Self {
        self.with(other)
    }
}

/// The RFC's letters: `AH`.
impl fmt::Display for CapableFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (0_u8..8)
            .filter(|index| self.contains(Self(0x80 >> index)))
            .try_for_each(|index| write!(f, "{}", char::from(b'A' + index)))
    }
}

impl fmt::Debug for CapableFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CapableFlags({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_sets() {
        let both = CapableFlags::CHECKSUM | CapableFlags::HMAC_SHA256;
        assert_eq!(both, CapableFlags(0x81));
        assert!(both.contains(CapableFlags::CHECKSUM) && both.contains(both));
        assert!(!both.contains(CapableFlags::CHECKSUM | CapableFlags::EXTENSIBILITY));
        assert_eq!(
            both.without(CapableFlags::CHECKSUM),
            CapableFlags::HMAC_SHA256
        );
        assert_eq!(CapableFlags::default().with(both), both);
    }
}

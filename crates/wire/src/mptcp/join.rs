//! MP_JOIN (RFC 8684 section 3.2, figures 5 to 7).

use super::{Body, Subtype, subtype_byte};
use crate::bytes::Writer;

/// MP_JOIN: opens a further subflow. Its length says which of the three handshake packets it is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MpJoin {
    /// Length 12 (SYN).
    Syn {
        /// The sender wants this subflow as backup only.
        backup: bool,
        /// Of the packet's source address, in the sender's numbering.
        address_id: u8,
        /// By which the packet's receiver knows the connection.
        token: u32,
        /// Random number of the sender.
        nonce: u32,
    },
    /// Length 16 (SYN/ACK).
    SynAck {
        /// The sender wants this subflow as backup only.
        backup: bool,
        /// Of the packet's source address, in the sender's numbering.
        address_id: u8,
        /// Leftmost 64 bits of the sender's HMAC.
        hmac: u64,
        /// Random number of the sender.
        nonce: u32,
    },
    /// Length 24 (third ACK).
    Ack {
        /// Leftmost 160 bits of the sender's HMAC.
        hmac: [u8; 20],
    },
}

impl MpJoin {
    #[inline]
    pub(super) fn parse(body: Body<'_>) -> Option<Self> {
        let Body { len, flags, .. } = body;
        let mut reader = body.reader();
        let backup = flags & BACKUP != 0;
        let address_id = reader.u8()?;
        Some(match len {
            12 => Self::Syn {
                backup,
                address_id,
                token: reader.u32()?,
                nonce: reader.u32()?,
            },
            16 => Self::SynAck {
                backup,
                address_id,
                hmac: reader.u64()?,
                nonce: reader.u32()?,
            },
            24 => Self::Ack {
                hmac: reader.array()?,
            },
            _ => return None,
        })
    }

    #[inline]
    pub(super) const fn len(&self) -> usize {
        match self {
            Self::Syn { .. } => 12,
            Self::SynAck { .. } => 16,
            Self::Ack { .. } => 24,
        }
    }

    #[inline]
    pub(super) fn emit(&self, out: &mut Writer<'_>) {
        match *self {
            Self::Syn {
                backup,
                address_id,
                token,
                nonce,
            } => {
                out.put(&[subtype_byte(Subtype::Join, u8::from(backup)), address_id]);
                out.u32(token);
                out.u32(nonce);
            }
            Self::SynAck {
                backup,
                address_id,
                hmac,
                nonce,
            } => {
                out.put(&[subtype_byte(Subtype::Join, u8::from(backup)), address_id]);
                out.u64(hmac);
                out.u32(nonce);
            }
            Self::Ack { ref hmac } => {
                out.put(&[subtype_byte(Subtype::Join, 0), 0]);
                out.put(hmac);
            }
        }
    }
}

const BACKUP: u8 = 0x01;

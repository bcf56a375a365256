//! The small signals: MP_PRIO (RFC 8684 section 3.3.8), MP_FAIL (3.7), MP_FASTCLOSE (3.5),
//! MP_TCPRST (3.6), MP_EXPERIMENTAL (7.2), and subtypes that nobody has assigned.

use core::fmt;
use core::ops::Deref;

use super::{Body, Subtype, subtype_byte};
use crate::bytes::{Writer, length_byte};

/// MP_PRIO: changes the priority of the subflow that carries it (figure 11).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MpPrio {
    /// The sender wants this subflow as backup only.
    pub backup: bool,
}

impl MpPrio {
    pub(super) const LEN: usize = 3;

    #[inline]
    pub(super) fn parse(body: Body<'_>) -> Option<Self> {
        (usize::from(body.len) == Self::LEN).then_some(Self {
            backup: body.flags & BACKUP != 0,
        })
    }

    #[inline]
    pub(super) fn emit(&self, out: &mut Writer<'_>) {
        out.u8(subtype_byte(Subtype::Prio, u8::from(self.backup)));
    }
}

/// MP_FAIL: a checksum failed (figure 16).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MpFail {
    /// Data sequence number, 64 bits, at the start of the mapping that failed.
    pub dsn: u64,
}

impl MpFail {
    pub(super) const LEN: usize = 12;

    #[inline]
    pub(super) fn parse(body: Body<'_>) -> Option<Self> {
        parse_u64(body).map(|dsn| Self { dsn })
    }

    #[inline]
    pub(super) fn emit(&self, out: &mut Writer<'_>) {
        out.put(&[subtype_byte(Subtype::Fail, 0), 0]);
        out.u64(self.dsn);
    }
}

/// MP_FASTCLOSE: closes the connection abruptly (figure 14).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MpFastClose {
    /// Key of the packet's receiver.
    pub key: u64,
}

impl MpFastClose {
    pub(super) const LEN: usize = 12;

    #[inline]
    pub(super) fn parse(body: Body<'_>) -> Option<Self> {
        parse_u64(body).map(|key| Self { key })
    }

    #[inline]
    pub(super) fn emit(&self, out: &mut Writer<'_>) {
        out.put(&[subtype_byte(Subtype::FastClose, 0), 0]);
        out.u64(self.key);
    }
}

/// MP_TCPRST: why a subflow is reset (figure 15).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MpTcpRst {
    /// T: the condition may pass, the receiver may try this path again.
    pub transient: bool,
    /// Reason code, one of the constants here or one assigned later.
    pub reason: u8,
}

impl MpTcpRst {
    /// Unspecified error.
    pub const UNSPECIFIED: u8 = 0;
    /// MPTCP-specific error.
    pub const MPTCP_ERROR: u8 = 1;
    /// Lack of resources.
    pub const RESOURCES: u8 = 2;
    /// Administratively prohibited.
    pub const PROHIBITED: u8 = 3;
    /// Too much outstanding data.
    pub const TOO_MUCH_DATA: u8 = 4;
    /// Unacceptable performance.
    pub const BAD_PERFORMANCE: u8 = 5;
    /// Middlebox interference.
    pub const MIDDLEBOX: u8 = 6;

    pub(super) const LEN: usize = 4;

    #[inline]
    pub(super) fn parse(body: Body<'_>) -> Option<Self> {
        let reason = body.reader().u8()?;
        (usize::from(body.len) == Self::LEN).then_some(Self {
            transient: body.flags & TRANSIENT != 0,
            reason,
        })
    }

    #[inline]
    pub(super) fn emit(&self, out: &mut Writer<'_>) {
        out.put(&[
            subtype_byte(Subtype::Reset, u8::from(self.transient)),
            self.reason,
        ]);
    }
}

/// MP_EXPERIMENTAL: reserved for private use; RFC 8684 gives it no layout.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MpExperimental {
    /// Lower four bits of the subtype's byte.
    pub flags: u8,
    /// What follows the subtype's byte.
    pub data: OptionData,
}

impl MpExperimental {
    #[inline]
    pub(super) fn emit(&self, out: &mut Writer<'_>) {
        out.u8(subtype_byte(Subtype::Experimental, self.flags));
        out.put(&self.data);
    }
}

/// An option with a subtype that nobody has assigned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MpUnknown {
    /// The subtype, 4 bits.
    pub subtype: u8,
    /// Lower four bits of the subtype's byte.
    pub flags: u8,
    /// What follows the subtype's byte.
    pub data: OptionData,
}

impl MpUnknown {
    #[inline]
    pub(super) fn emit(&self, out: &mut Writer<'_>) {
        out.u8((self.subtype << 4) | (self.flags & 0x0f));
        out.put(&self.data);
    }
}

/// Up to 37 bytes inline: as much as one MPTCP option has room for behind the subtype's byte.
/// Behaves as a slice.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct OptionData {
    /// Unused ones are zero.
    bytes: [u8; Self::MAX],
    len: u8,
}

impl OptionData {
    /// Most bytes that fit.
    pub const MAX: usize = 37;

    /// The first [`MAX`](Self::MAX) bytes of `bytes`.
    #[must_use]
    #[inline]
    pub fn new(bytes: &[u8]) -> Self {
        let bytes = bytes.get(..Self::MAX).unwrap_or(bytes);
        let mut data = Self {
            bytes: [0; Self::MAX],
            len: length_byte(bytes.len()),
        };
        data.bytes[..bytes.len()].copy_from_slice(bytes);
        data
    }

    /// The bytes.
    #[must_use]
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    #[inline]
    pub(super) const fn len(&self) -> usize {
        self.len as usize
    }
}

impl Deref for OptionData {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &Self::Target {
        self.as_slice()
    }
}

impl fmt::Debug for OptionData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_slice(), f)
    }
}

/// Layout of MP_FAIL and MP_FASTCLOSE: a reserved byte, then 64 bits.
#[inline]
fn parse_u64(body: Body<'_>) -> Option<u64> {
    if body.len != 12 {
        return None;
    }
    let mut reader = body.reader();
    reader.u8()?;
    reader.u64()
}

const BACKUP: u8 = 0x01;
const TRANSIENT: u8 = 0x01;

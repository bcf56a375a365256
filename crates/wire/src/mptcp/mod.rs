//! MPTCP options (RFC 8684), one file per group of subtypes.
//!
//! A value is what its sender meant; the bits reserved by the RFC are ignored when read and zero
//! when written. Which form is right at which point of a connection is not judged here.

mod address;
mod capable;
mod control;
mod dss;
mod join;

pub use address::{AddAddr, RemoveAddr};
pub use capable::{CapableFlags, CapableKeys, MpCapable};
pub use control::{MpExperimental, MpFail, MpFastClose, MpPrio, MpTcpRst, MpUnknown, OptionData};
pub use dss::{DataNumber, Dss, DssMapping};
pub use join::MpJoin;

use crate::bytes::{Reader, Writer, length_byte};
use crate::{MAX_TCP_OPTIONS_LEN, ParseError, kind};

/// One MPTCP option.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MptcpOption {
    /// MP_CAPABLE (section 3.1).
    Capable(MpCapable),
    /// MP_JOIN (section 3.2).
    Join(MpJoin),
    /// DSS (section 3.3).
    Dss(Dss),
    /// ADD_ADDR (section 3.4.1).
    AddAddr(AddAddr),
    /// REMOVE_ADDR (section 3.4.2).
    RemoveAddr(RemoveAddr),
    /// MP_PRIO (section 3.3.8).
    Prio(MpPrio),
    /// MP_FAIL (section 3.7).
    Fail(MpFail),
    /// MP_FASTCLOSE (section 3.5).
    FastClose(MpFastClose),
    /// MP_TCPRST (section 3.6).
    Reset(MpTcpRst),
    /// MP_EXPERIMENTAL (section 7.2).
    Experimental(MpExperimental),
    /// A subtype that nobody has assigned.
    Unknown(MpUnknown),
}

#[expect(clippy::len_without_is_empty, reason = "an option is never empty")]
impl MptcpOption {
    /// Reads one whole option, kind and length bytes included.
    ///
    /// # Errors
    ///
    /// Not kind 30, a length byte that is not the length of `option`, a length that the subtype
    /// does not have, a DATA_FIN without a mapping.
    #[inline]
    pub fn parse(option: &[u8]) -> Result<Self, ParseError> {
        let [kind::MPTCP, len, first, ref rest @ ..] = *option else {
            let [kind, len] = [option.first(), option.get(1)].map(|byte| byte.map_or(0, |b| *b));
            return Err(ParseError::OptionLength { kind, len });
        };
        if usize::from(len) != option.len() || option.len() > MAX_TCP_OPTIONS_LEN {
            return Err(ParseError::OptionLength {
                kind: kind::MPTCP,
                len,
            });
        }
        let subtype = first >> 4;
        let flags = first & 0x0f;
        let body = Body { len, flags, rest };
        // The one that nearly every segment has.
        if subtype == Subtype::Dss as u8 {
            return Dss::parse(body).map(Self::Dss);
        }
        Self::parse_signal(subtype, body).ok_or(ParseError::MptcpLength { subtype, len })
    }

    /// Bytes on the wire, kind and length included, without padding.
    #[must_use]
    #[inline]
    pub const fn len(&self) -> usize {
        match self {
            Self::Capable(option) => option.len(),
            Self::Join(option) => option.len(),
            Self::Dss(option) => option.len(),
            Self::AddAddr(option) => option.len(),
            Self::RemoveAddr(option) => option.len(),
            Self::Prio(_) => MpPrio::LEN,
            Self::Fail(_) => MpFail::LEN,
            Self::FastClose(_) => MpFastClose::LEN,
            Self::Reset(_) => MpTcpRst::LEN,
            Self::Experimental(option) => 3 + option.data.len(),
            Self::Unknown(option) => 3 + option.data.len(),
        }
    }

    /// Writes the option without padding; returns its length.
    ///
    /// # Panics
    ///
    /// When `out` is shorter than [`len`](Self::len).
    #[inline]
    pub fn emit(&self, out: &mut [u8]) -> usize {
        let mut writer = Writer::new(out);
        let out = &mut writer;
        out.put(&[kind::MPTCP, length_byte(self.len())]);
        match self {
            Self::Capable(option) => option.emit(out),
            Self::Join(option) => option.emit(out),
            Self::Dss(option) => option.emit(out),
            Self::AddAddr(option) => option.emit(out),
            Self::RemoveAddr(option) => option.emit(out),
            Self::Prio(option) => option.emit(out),
            Self::Fail(option) => option.emit(out),
            Self::FastClose(option) => option.emit(out),
            Self::Reset(option) => option.emit(out),
            Self::Experimental(option) => option.emit(out),
            Self::Unknown(option) => option.emit(out),
        }
        writer.len()
    }

    /// The subtype's four bits.
    #[must_use]
    #[inline]
    pub const fn subtype(&self) -> u8 {
        match self {
            Self::Capable(_) => Subtype::Capable as u8,
            Self::Join(_) => Subtype::Join as u8,
            Self::Dss(_) => Subtype::Dss as u8,
            Self::AddAddr(_) => Subtype::AddAddr as u8,
            Self::RemoveAddr(_) => Subtype::RemoveAddr as u8,
            Self::Prio(_) => Subtype::Prio as u8,
            Self::Fail(_) => Subtype::Fail as u8,
            Self::FastClose(_) => Subtype::FastClose as u8,
            Self::Reset(_) => Subtype::Reset as u8,
            Self::Experimental(_) => Subtype::Experimental as u8,
            Self::Unknown(option) => option.subtype & 0x0f,
        }
    }

    /// Anything but a DSS.
    #[inline(never)]
    fn parse_signal(subtype: u8, body: Body<'_>) -> Option<Self> {
        let Body { flags, rest, .. } = body;
        match Subtype::from_nibble(subtype) {
            Some(Subtype::Capable) => MpCapable::parse(body).map(Self::Capable),
            Some(Subtype::Join) => MpJoin::parse(body).map(Self::Join),
            Some(Subtype::AddAddr) => AddAddr::parse(body).map(Self::AddAddr),
            Some(Subtype::RemoveAddr) => RemoveAddr::parse(rest).map(Self::RemoveAddr),
            Some(Subtype::Prio) => MpPrio::parse(body).map(Self::Prio),
            Some(Subtype::Fail) => MpFail::parse(body).map(Self::Fail),
            Some(Subtype::FastClose) => MpFastClose::parse(body).map(Self::FastClose),
            Some(Subtype::Reset) => MpTcpRst::parse(body).map(Self::Reset),
            Some(Subtype::Experimental) => {
                let data = OptionData::new(rest);
                Some(Self::Experimental(MpExperimental { flags, data }))
            }
            Some(Subtype::Dss) | None => {
                let data = OptionData::new(rest);
                Some(Self::Unknown(MpUnknown {
                    subtype,
                    flags,
                    data,
                }))
            }
        }
    }
}

/// Assigned subtypes of the MPTCP option (RFC 8684 section 7.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Subtype {
    /// MP_CAPABLE.
    Capable = 0x0,
    /// MP_JOIN.
    Join = 0x1,
    /// DSS.
    Dss = 0x2,
    /// ADD_ADDR.
    AddAddr = 0x3,
    /// REMOVE_ADDR.
    RemoveAddr = 0x4,
    /// MP_PRIO.
    Prio = 0x5,
    /// MP_FAIL.
    Fail = 0x6,
    /// MP_FASTCLOSE.
    FastClose = 0x7,
    /// MP_TCPRST.
    Reset = 0x8,
    /// MP_EXPERIMENTAL.
    Experimental = 0xf,
}

impl Subtype {
    /// The subtype with this number; `None` when it is not assigned.
    #[must_use]
    #[inline]
    pub const fn from_nibble(nibble: u8) -> Option<Self> {
        Some(match nibble {
            0x0 => Self::Capable,
            0x1 => Self::Join,
            0x2 => Self::Dss,
            0x3 => Self::AddAddr,
            0x4 => Self::RemoveAddr,
            0x5 => Self::Prio,
            0x6 => Self::Fail,
            0x7 => Self::FastClose,
            0x8 => Self::Reset,
            0xf => Self::Experimental,
            _ => return None,
        })
    }
}

/// An option whose kind, length and subtype are known, on its way into its own type.
#[derive(Clone, Copy)]
struct Body<'a> {
    /// Of the whole option, kind and length bytes included.
    len: u8,
    /// Lower four bits of the third byte.
    flags: u8,
    /// What follows the third byte.
    rest: &'a [u8],
}

impl<'a> Body<'a> {
    #[inline]
    const fn reader(self) -> Reader<'a> {
        Reader::new(self.rest)
    }
}

/// Third byte of an option.
#[inline]
const fn subtype_byte(subtype: Subtype, flags: u8) -> u8 {
    ((subtype as u8) << 4) | (flags & 0x0f)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subtype_numbers_go_both_ways() {
        for nibble in 0..16 {
            let subtype = Subtype::from_nibble(nibble);
            assert_eq!(
                subtype.map(|subtype| subtype as u8),
                (nibble < 9 || nibble == 15).then_some(nibble)
            );
        }
    }

    /// It is copied per packet: a growing variant should be noticed.
    #[test]
    fn option_is_at_most_56_bytes() {
        assert!(
            size_of::<MptcpOption>() <= 56,
            "{}",
            size_of::<MptcpOption>()
        );
    }
}

//! DSS, the data sequence signal (RFC 8684 section 3.3, figure 9).

use super::{Body, Subtype, subtype_byte};
use crate::bytes::{Reader, Writer};
use crate::{Dsn, ParseError};

/// DSS: data ACK and data sequence mapping, either or both.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Dss {
    /// Next data sequence number that the sender expects.
    pub data_ack: Option<DataNumber>,
    /// Where the data of the subflow belongs in the connection.
    pub mapping: Option<DssMapping>,
    /// The last number of the mapping is a DATA_FIN; only with a mapping.
    pub data_fin: bool,
}

/// Data sequence mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DssMapping {
    /// Data sequence number of the first byte mapped.
    pub dsn: DataNumber,
    /// Subflow sequence number of the first byte mapped, relative to the initial one: the SYN is 0,
    /// the first byte 1. 0 for a DATA_FIN without data.
    pub ssn: u32,
    /// Data-level length: bytes, plus 1 for the DATA_FIN. 0 is the infinite mapping (section 3.7).
    pub len: u16,
    /// DSS checksum; `None` when not negotiated.
    pub checksum: Option<u16>,
}

/// A data sequence number or data ACK as it is on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DataNumber {
    /// The lower 32 bits.
    Short(u32),
    /// All 64 bits.
    Long(u64),
}

impl DataNumber {
    /// The 64-bit number; a short one is taken as the one nearest to `base`.
    #[must_use]
    #[inline]
    pub const fn expand(self, base: Dsn) -> Dsn {
        match self {
            Self::Short(low) => base.expand(low),
            Self::Long(number) => Dsn(number),
        }
    }

    /// Bytes on the wire: 4 or 8.
    const fn wire_len(self) -> usize {
        match self {
            Self::Short(_) => 4,
            Self::Long(_) => 8,
        }
    }

    #[inline]
    fn read(reader: &mut Reader<'_>, long: bool) -> Option<Self> {
        if long {
            reader.u64().map(Self::Long)
        } else {
            reader.u32().map(Self::Short)
        }
    }

    #[inline]
    fn emit(self, out: &mut Writer<'_>) {
        match self {
            Self::Short(number) => out.u32(number),
            Self::Long(number) => out.u64(number),
        }
    }
}

impl Dss {
    #[inline]
    pub(super) fn parse(body: Body<'_>) -> Result<Self, ParseError> {
        let len = body.len;
        let dss = Self::read(body)
            .filter(|dss| dss.len() == usize::from(len)) // whatever else the length says, the flags disagree
            .ok_or(ParseError::MptcpLength {
                subtype: Subtype::Dss as u8,
                len,
            })?;
        if dss.data_fin && dss.mapping.is_none() {
            return Err(ParseError::DataFinWithoutMapping);
        }
        Ok(dss)
    }

    /// The fields that the flags announce and, behind a mapping, the checksum when two bytes are
    /// left.
    #[inline]
    fn read(body: Body<'_>) -> Option<Self> {
        let mut reader = body.reader();
        let flags = reader.u8()?;
        let mut dss = Self {
            data_fin: flags & DATA_FIN != 0,
            ..Self::default()
        };
        // "The flags "a" and "m" only have meaning if the corresponding "A" or "M" flags are set;
        // otherwise, they will be ignored."
        if flags & HAS_ACK != 0 {
            dss.data_ack = Some(DataNumber::read(&mut reader, flags & LONG_ACK != 0)?);
        }
        if flags & HAS_MAPPING != 0 {
            dss.mapping = Some(DssMapping {
                dsn: DataNumber::read(&mut reader, flags & LONG_DSN != 0)?,
                ssn: reader.u32()?,
                len: reader.u16()?,
                checksum: reader.u16(),
            });
        }
        Some(dss)
    }

    #[inline]
    pub(super) const fn len(&self) -> usize {
        let ack = match self.data_ack {
            Some(number) => number.wire_len(),
            None => 0,
        };
        let mapping = match &self.mapping {
            Some(mapping) => {
                mapping.dsn.wire_len() + 6 + if mapping.checksum.is_some() { 2 } else { 0 }
            }
            None => 0,
        };
        4 + ack + mapping
    }

    #[inline]
    pub(super) fn emit(&self, out: &mut Writer<'_>) {
        let ack_flags = match self.data_ack {
            Some(DataNumber::Long(_)) => HAS_ACK | LONG_ACK,
            Some(DataNumber::Short(_)) => HAS_ACK,
            None => 0,
        };
        let mapping_flags = match self.mapping {
            Some(DssMapping {
                dsn: DataNumber::Long(_),
                ..
            }) => HAS_MAPPING | LONG_DSN,
            Some(_) => HAS_MAPPING,
            None => 0,
        };
        let data_fin = if self.data_fin { DATA_FIN } else { 0 };
        out.put(&[
            subtype_byte(Subtype::Dss, 0),
            ack_flags | mapping_flags | data_fin,
        ]);
        if let Some(number) = self.data_ack {
            number.emit(out);
        }
        if let Some(mapping) = self.mapping {
            mapping.dsn.emit(out);
            out.u32(mapping.ssn);
            out.u16(mapping.len);
            if let Some(checksum) = mapping.checksum {
                out.u16(checksum);
            }
        }
    }
}

const HAS_ACK: u8 = 0x01; // A
const LONG_ACK: u8 = 0x02; // a
const HAS_MAPPING: u8 = 0x04; // M
const LONG_DSN: u8 = 0x08; // m
const DATA_FIN: u8 = 0x10; // F

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_number_is_expanded_and_long_one_is_taken_as_it_is() {
        let base = Dsn(0x5_ffff_fff0);
        assert_eq!(DataNumber::Short(0x10).expand(base), Dsn(0x6_0000_0010));
        assert_eq!(
            DataNumber::Short(0xffff_ff00).expand(base),
            Dsn(0x5_ffff_ff00)
        );
        assert_eq!(DataNumber::Long(0x10).expand(base), Dsn(0x10));
    }
}

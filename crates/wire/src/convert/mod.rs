//! The messages of the 0-RTT TCP Convert Protocol (RFC 8803 section 6): a fixed header and TLVs, the first bytes of a stream in each
//! direction.

mod error;
mod tlv;

use crate::bytes::{Reader, Writer, length_byte};

pub use error::ConvertError;
pub use tlv::{Connect, ConvertTlv};

/// Length of the fixed header in bytes (section 6.1).
pub const CONVERT_HEADER_LEN: usize = 4;

/// Most bytes of a message, its header among them: 255 words.
pub const CONVERT_MAX_LEN: usize = 1020;

/// The version that this is (section 6.1).
pub const CONVERT_VERSION: u8 = 1;

/// A message whose form is right: each of its TLVs is known, as long as it has to be, and stands there once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConvertMessage<'a> {
    tlvs: &'a [u8],
}

/// Why the first bytes of a stream are no message, or none yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConvertFault {
    /// There have to be so many bytes at least before anything can be said.
    Incomplete(usize),
    /// Another magic number: it is something else.
    NotConvert,
    /// A length of zero, which is answered with a reset (section 6.1).
    NoLength,
    /// Another version: [`ConvertError::UnsupportedVersion`].
    Version(u8),
    /// A TLV that runs past the end, has a wrong form, names an address that nobody can connect to, or stands there twice:
    /// [`ConvertError::Malformed`].
    Malformed {
        /// Bytes of the message, which has come as a whole.
        len: usize,
    },
    /// A TLV of a type that there is not: [`ConvertError::Unsupported`].
    Unsupported {
        /// Bytes of the message, which has come as a whole.
        len: usize,
        /// The type.
        kind: u8,
    },
}

/// What is wrong with a TLV.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum TlvFault {
    Malformed,
    Unsupported(u8),
}

impl TlvFault {
    /// The same of the message that has it.
    const fn of_message(self, len: usize) -> ConvertFault {
        match self {
            Self::Malformed => ConvertFault::Malformed { len },
            Self::Unsupported(kind) => ConvertFault::Unsupported { len, kind },
        }
    }
}

impl<'a> ConvertMessage<'a> {
    /// Reads the message at the front of a stream, and says how many bytes it takes.
    ///
    /// # Errors
    /// With what is wrong; of several faults the first.
    pub fn parse(stream: &'a [u8]) -> Result<(Self, usize), ConvertFault> {
        let len = Self::len_of(stream)?;
        let tlvs = stream.get(CONVERT_HEADER_LEN..len);
        let tlvs = tlvs.ok_or(ConvertFault::Incomplete(len))?;
        let mut seen = 0_u64;
        let mut rest = tlvs;
        while let Some((tlv, behind)) = tlv::split(rest).map_err(|fault| fault.of_message(len))? {
            // All types that there are lie below 64.
            let bit = 1_u64 << (tlv.kind() & 63);
            if seen & bit != 0 {
                return Err(ConvertFault::Malformed { len });
            }
            seen |= bit;
            rest = behind;
        }
        Ok((Self { tlvs }, len))
    }

    /// How long the message is, as its header says.
    fn len_of(stream: &[u8]) -> Result<usize, ConvertFault> {
        let mut reader = Reader::new(stream);
        let header = (reader.u8(), reader.u8(), reader.u16());
        let (Some(version), Some(words), Some(magic)) = header else {
            return Err(ConvertFault::Incomplete(CONVERT_HEADER_LEN));
        };
        if magic != MAGIC {
            Err(ConvertFault::NotConvert)
        } else if version != CONVERT_VERSION {
            Err(ConvertFault::Version(version))
        } else if words == 0 {
            Err(ConvertFault::NoLength)
        } else {
            Ok(usize::from(words) * 4)
        }
    }

    /// Its TLVs, in their order.
    pub fn tlvs(&self) -> impl Iterator<Item = ConvertTlv<'a>> + use<'a> {
        let mut rest = self.tlvs;
        core::iter::from_fn(move || {
            let (tlv, behind) = tlv::split(rest).ok()??;
            rest = behind;
            Some(tlv)
        })
    }
}

/// Writes a message TLV by TLV.
#[derive(Debug)]
pub struct ConvertWriter<'a> {
    out: &'a mut [u8],
    len: usize,
}

impl<'a> ConvertWriter<'a> {
    /// Begins a message at the front of `out`.
    ///
    /// # Panics
    /// When there is no room for a header.
    #[must_use]
    pub fn new(out: &'a mut [u8]) -> Self {
        assert!(out.len() >= CONVERT_HEADER_LEN, "room for a header");
        Self {
            out,
            len: CONVERT_HEADER_LEN,
        }
    }

    /// Writes a TLV behind the others. `false`: there is no room for it, and the message is as before.
    pub fn push(&mut self, tlv: &ConvertTlv<'_>) -> bool {
        let end = self.len + tlv.len();
        if end > CONVERT_MAX_LEN {
            return false;
        }
        let Some(room) = self.out.get_mut(self.len..end) else {
            return false;
        };
        room.fill(0);
        tlv.emit(&mut Writer::new(room));
        self.len = end;
        true
    }

    /// Ends the message; returns its length in bytes.
    #[must_use]
    pub fn finish(self) -> usize {
        let mut writer = Writer::new(self.out);
        writer.u8(CONVERT_VERSION);
        writer.u8(length_byte(self.len / 4));
        writer.u16(MAGIC);
        self.len
    }
}

/// What tells a message from other data (section 6.1).
const MAGIC: u16 = 0x2263;

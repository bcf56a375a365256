//! TCP options: reading a header's option bytes one by one, writing a block of them.

use core::fmt;
use core::iter::FusedIterator;
use core::ops::Deref;

use crate::bytes::{Reader, Writer, length_byte};
use crate::{MAX_TCP_OPTIONS_LEN, MptcpOption, ParseError};

/// One TCP option.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TcpOption<'a> {
    /// Maximum segment size in bytes (RFC 9293 section 3.7.1).
    Mss(u16),
    /// Window scale shift as received; above 14 counts as 14 (RFC 7323 section 2.3).
    WindowScale(u8),
    /// SACK permitted (RFC 2018).
    SackPermitted,
    /// SACK blocks (RFC 2018).
    Sack(SackBlocks),
    /// Timestamps (RFC 7323 section 3).
    Timestamps(Timestamps),
    /// TCP Fast Open cookie (RFC 7413): empty asks for one, else 4 to 16 bytes, even. With another
    /// length it "MUST be ignored" and shows up as [`Unknown`](Self::Unknown).
    FastOpen(&'a [u8]),
    /// Multipath TCP (RFC 8684).
    Mptcp(MptcpOption),
    /// Any other kind; `data` is what follows the length byte.
    Unknown {
        /// Kind byte; not 0 or 1, which have no length byte.
        kind: u8,
        /// What follows the length byte.
        data: &'a [u8],
    },
}

#[expect(clippy::len_without_is_empty, reason = "an option is never empty")]
impl<'a> TcpOption<'a> {
    /// Bytes on the wire, kind and length included, without padding.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Self::Mss(_) => 4,
            Self::WindowScale(_) => 3,
            Self::SackPermitted => 2,
            Self::Sack(blocks) => 2 + 8 * blocks.len(),
            Self::Timestamps(_) => TIMESTAMPS_LEN,
            Self::FastOpen(data) | Self::Unknown { data, .. } => 2 + data.len(),
            Self::Mptcp(option) => option.len(),
        }
    }

    /// Writes the option without padding; returns its length.
    ///
    /// # Panics
    ///
    /// When `out` is shorter than [`len`](Self::len).
    #[inline]
    pub fn emit(&self, out: &mut [u8]) -> usize {
        let len = length_byte(self.len());
        let mut writer = Writer::new(out);
        match self {
            Self::Mss(mss) => {
                writer.put(&[kind::MSS, len]);
                writer.u16(*mss);
            }
            Self::WindowScale(shift) => writer.put(&[kind::WINDOW_SCALE, len, *shift]),
            Self::SackPermitted => writer.put(&[kind::SACK_PERMITTED, len]),
            Self::Sack(blocks) => {
                writer.put(&[kind::SACK, len]);
                for (left, right) in blocks {
                    writer.u32(*left);
                    writer.u32(*right);
                }
            }
            Self::Timestamps(timestamps) => {
                writer.put(&[kind::TIMESTAMPS, len]);
                writer.u32(timestamps.val);
                writer.u32(timestamps.ecr);
            }
            Self::FastOpen(data) => {
                writer.put(&[kind::FAST_OPEN, len]);
                writer.put(data);
            }
            Self::Mptcp(option) => return option.emit(out),
            Self::Unknown { kind, data } => {
                writer.put(&[*kind, len]);
                writer.put(data);
            }
        }
        writer.len()
    }

    /// `option` is one whole option whose length byte equals its length.
    #[inline]
    fn parse(option: &'a [u8]) -> Result<Self, ParseError> {
        match *option {
            [kind::MPTCP, ..] => MptcpOption::parse(option).map(Self::Mptcp),
            [kind::TIMESTAMPS, _, v0, v1, v2, v3, e0, e1, e2, e3] => {
                Ok(Self::Timestamps(Timestamps {
                    val: u32::from_be_bytes([v0, v1, v2, v3]),
                    ecr: u32::from_be_bytes([e0, e1, e2, e3]),
                }))
            }
            [kind::SACK, len, ref blocks @ ..] => {
                SackBlocks::parse(blocks)
                    .map(Self::Sack)
                    .ok_or(ParseError::OptionLength {
                        kind: kind::SACK,
                        len,
                    })
            }
            [kind::MSS, _, m0, m1] => Ok(Self::Mss(u16::from_be_bytes([m0, m1]))),
            [kind::WINDOW_SCALE, _, shift] => Ok(Self::WindowScale(shift)),
            [kind::SACK_PERMITTED, _] => Ok(Self::SackPermitted),
            [
                kind @ (kind::TIMESTAMPS | kind::MSS | kind::WINDOW_SCALE | kind::SACK_PERMITTED),
                len,
                ..,
            ] => Err(ParseError::OptionLength { kind, len }),
            [kind::FAST_OPEN, _, ref cookie @ ..] if is_cookie_length(cookie.len()) => {
                Ok(Self::FastOpen(cookie))
            }
            [kind, _, ref data @ ..] => Ok(Self::Unknown { kind, data }),
            _ => Err(ParseError::Truncated),
        }
    }
}

/// Timestamps option (RFC 7323 section 3.2).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Timestamps {
    /// TSval: the sender's clock.
    pub val: u32,
    /// TSecr: the clock value that the sender echoes.
    pub ecr: u32,
}

/// Up to four SACK blocks, each (left edge, right edge) with the right one excluded, in the sequence
/// space of the segment they came in. Behaves as a slice.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct SackBlocks {
    /// Unused ones are zero.
    blocks: [(u32, u32); Self::MAX],
    len: u8,
}

impl SackBlocks {
    /// Most blocks that fit in one TCP header.
    pub const MAX: usize = 4;

    /// No blocks yet.
    #[must_use]
    #[inline]
    pub const fn new() -> Self {
        Self {
            blocks: [(0, 0); Self::MAX],
            len: 0,
        }
    }

    /// Appends a block; false, and nothing changed, when there are four already.
    #[inline]
    pub fn push(&mut self, left: u32, right: u32) -> bool {
        let Some(slot) = self.blocks.get_mut(usize::from(self.len)) else {
            return false;
        };
        *slot = (left, right);
        self.len += 1;
        true
    }

    /// Keeps the first `len` blocks (the first is the most recent one, RFC 2018 section 4).
    #[inline]
    pub fn truncate(&mut self, len: usize) {
        if len < usize::from(self.len) {
            self.blocks[len..].fill((0, 0));
            self.len = length_byte(len);
        }
    }

    /// The blocks.
    #[must_use]
    #[inline]
    pub fn as_slice(&self) -> &[(u32, u32)] {
        &self.blocks[..usize::from(self.len)]
    }

    /// `bytes` follow the length byte. `None` when the length is not 1 to 4 blocks.
    fn parse(bytes: &[u8]) -> Option<Self> {
        if bytes.is_empty() || !bytes.len().is_multiple_of(8) {
            return None;
        }
        let mut blocks = Self::new();
        for block in bytes.chunks_exact(8) {
            let mut reader = Reader::new(block);
            if !blocks.push(reader.u32()?, reader.u32()?) {
                return None;
            }
        }
        Some(blocks)
    }
}

impl Deref for SackBlocks {
    type Target = [(u32, u32)];

    #[inline]
    fn deref(&self) -> &Self::Target {
        self.as_slice()
    }
}

impl<'a> IntoIterator for &'a SackBlocks {
    type Item = &'a (u32, u32);
    type IntoIter = core::slice::Iter<'a, (u32, u32)>;

    #[inline]
    fn into_iter(self) -> Self::IntoIter {
        self.as_slice().iter()
    }
}

impl fmt::Debug for SackBlocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self).finish()
    }
}

/// Iterator over the options of one header. Skips NOPs, stops at the end-of-list option.
///
/// Yields an error, and then nothing more, at a length byte that is below 2, past the end, or wrong
/// for a kind that we know. A malformed MPTCP option with a length byte that leads to its end yields
/// an error too, but the options behind it follow. At most 20 items for at most 40 bytes.
#[derive(Clone, Debug)]
pub struct TcpOptions<'a> {
    rest: &'a [u8],
}

impl<'a> TcpOptions<'a> {
    /// Over the option bytes of one header, of which only the first 40 can be there.
    #[must_use]
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self {
            rest: bytes.get(..MAX_TCP_OPTIONS_LEN).unwrap_or(bytes),
        }
    }

    /// Ends the iteration with an error.
    fn stop(&mut self, kind: u8, len: u8) -> Option<Result<TcpOption<'a>, ParseError>> {
        self.rest = &[];
        Some(Err(ParseError::OptionLength { kind, len }))
    }
}

impl<'a> Iterator for TcpOptions<'a> {
    type Item = Result<TcpOption<'a>, ParseError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        while let [kind::NOP, rest @ ..] = self.rest {
            self.rest = rest;
        }
        let (kind, len) = match *self.rest {
            [] | [kind::END, ..] => {
                self.rest = &[];
                return None;
            }
            [kind] => return self.stop(kind, 0),
            [kind, len, ..] => (kind, len),
        };
        let Some((option, rest)) = self.rest.split_at_checked(len.into()) else {
            return self.stop(kind, len);
        };
        if option.len() < 2 {
            return self.stop(kind, len);
        }
        let parsed = TcpOption::parse(option);
        self.rest = if parsed.is_err() && kind != kind::MPTCP {
            &[]
        } else {
            rest
        };
        Some(parsed)
    }
}

impl FusedIterator for TcpOptions<'_> {}

/// Writes options one behind the other into at most 40 bytes, padded as Linux does it.
///
/// Timestamps, SACK and window scale end on a 4-byte boundary (NOPs before them: `NOP NOP TS`);
/// MPTCP options start on one (NOPs behind them); others are put where the last one ended, so that
/// SACK permitted and timestamps share three words.
#[derive(Clone, Copy, Debug)]
pub struct OptionWriter {
    buf: [u8; MAX_TCP_OPTIONS_LEN],
    len: usize,
    /// The last option was one of MPTCP: the next starts on a boundary.
    align_next: bool,
}

impl OptionWriter {
    /// Nothing written yet.
    #[must_use]
    #[inline]
    pub const fn new() -> Self {
        Self {
            buf: [kind::NOP; MAX_TCP_OPTIONS_LEN],
            len: 0,
            align_next: false,
        }
    }

    /// Appends an option; false, and nothing changed, when it does not fit with its padding.
    #[inline]
    pub fn push(&mut self, option: &TcpOption<'_>) -> bool {
        let len = option.len();
        let is_mptcp = matches!(option, TcpOption::Mptcp(_));
        let floor = if is_mptcp || self.align_next {
            align(self.len)
        } else {
            self.len
        };
        let start = match option {
            TcpOption::Timestamps(_) | TcpOption::Sack(_) | TcpOption::WindowScale(_) => {
                align(floor + len) - len
            }
            _ => floor,
        };
        let Some(out) = self.buf.get_mut(start..start + len) else {
            return false;
        };
        option.emit(out); // what was skipped holds NOPs
        self.len = start + len;
        self.align_next = is_mptcp;
        true
    }

    /// Bytes left behind the next 4-byte boundary; every option that is not longer than this fits.
    #[must_use]
    #[inline]
    pub const fn remaining(&self) -> usize {
        MAX_TCP_OPTIONS_LEN - align(self.len)
    }

    /// The block, padded with NOPs to a multiple of 4 bytes.
    #[inline]
    pub fn finish(&mut self) -> &[u8] {
        self.len = align(self.len); // what is skipped holds NOPs
        &self.buf[..self.len]
    }
}

impl Default for OptionWriter {
    #[inline]
    fn default() -> Self {
        Self::new()
    }
}

const fn align(len: usize) -> usize {
    len.next_multiple_of(4)
}

/// RFC 7413 section 4.1.1.
const fn is_cookie_length(len: usize) -> bool {
    len == 0 || (len >= 4 && len <= 16 && len.is_multiple_of(2))
}

/// Kind bytes of the TCP options that we know.
pub mod kind {
    /// End of option list.
    pub const END: u8 = 0;
    /// No operation: padding.
    pub const NOP: u8 = 1;
    /// Maximum segment size.
    pub const MSS: u8 = 2;
    /// Window scale.
    pub const WINDOW_SCALE: u8 = 3;
    /// SACK permitted.
    pub const SACK_PERMITTED: u8 = 4;
    /// SACK.
    pub const SACK: u8 = 5;
    /// Timestamps.
    pub const TIMESTAMPS: u8 = 8;
    /// Multipath TCP.
    pub const MPTCP: u8 = 30;
    /// TCP Fast Open cookie.
    pub const FAST_OPEN: u8 = 34;
}

const TIMESTAMPS_LEN: usize = 10;

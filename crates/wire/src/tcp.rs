//! The TCP header (RFC 9293 section 3.1), without the meaning of its options.

use core::fmt;
use core::ops::{BitOr, BitOrAssign};

use crate::bytes::Writer;
use crate::{MAX_TCP_OPTIONS_LEN, ParseError, TCP_HEADER_LEN};

/// The fixed part of a TCP header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TcpHeader {
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Sequence number; which space it belongs to depends on the leg.
    pub seq: u32,
    /// Acknowledgment number; meaningful with [`TcpFlags::ACK`].
    pub ack: u32,
    /// Control bits.
    pub flags: TcpFlags,
    /// Window field as it stands in the header, not scaled.
    pub window: u16,
    /// Checksum field as it stands in the header.
    pub checksum: u16,
    /// Urgent pointer; meaningful with [`TcpFlags::URG`].
    pub urgent: u16,
    /// Header length with options, in bytes: 20 to 60, a multiple of 4.
    pub header_len: usize,
}

impl TcpHeader {
    /// Reads the header at the start of a TCP segment; also returns the option bytes.
    ///
    /// # Errors
    ///
    /// The segment is shorter than a header, or the header length is wrong.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), ParseError> {
        let fixed: &[u8; TCP_HEADER_LEN] = bytes.first_chunk().ok_or(ParseError::Truncated)?;
        let [s0, s1, d0, d1, q0, q1, q2, q3, a0, a1, a2, a3, rest @ ..] = *fixed;
        let [offset_flags, flags, w0, w1, c0, c1, u0, u1] = rest;

        let header_len = usize::from(offset_flags >> 4) * 4;
        let options = bytes
            .get(TCP_HEADER_LEN..header_len)
            .ok_or(ParseError::TcpHeaderLength(header_len))?;
        let header = Self {
            src_port: u16::from_be_bytes([s0, s1]),
            dst_port: u16::from_be_bytes([d0, d1]),
            seq: u32::from_be_bytes([q0, q1, q2, q3]),
            ack: u32::from_be_bytes([a0, a1, a2, a3]),
            flags: TcpFlags(u16::from_be_bytes([offset_flags, flags]) & TcpFlags::MASK),
            window: u16::from_be_bytes([w0, w1]),
            checksum: u16::from_be_bytes([c0, c1]),
            urgent: u16::from_be_bytes([u0, u1]),
            header_len,
        };
        Ok((header, options))
    }

    /// Writes the 20 bytes. The data offset comes from `options_len`, the length in bytes of the
    /// options that the caller puts behind (not from `header_len`); the checksum is the one in
    /// `self`. Reserved bits are zero.
    ///
    /// # Panics
    ///
    /// When `out` is shorter than 20 bytes. In debug builds, when `options_len` is not a multiple of
    /// 4 up to 40.
    #[inline]
    pub fn emit(&self, options_len: usize, out: &mut [u8]) {
        debug_assert!(options_len.is_multiple_of(4) && options_len <= MAX_TCP_OPTIONS_LEN);
        #[expect(clippy::cast_possible_truncation, reason = "at most 15 after the mask")]
        let words = (((TCP_HEADER_LEN + options_len) / 4) & 0xf) as u16;
        let mut header = [0; TCP_HEADER_LEN];
        let mut writer = Writer::new(&mut header);
        writer.u16(self.src_port);
        writer.u16(self.dst_port);
        writer.u32(self.seq);
        writer.u32(self.ack);
        writer.u16((words << 12) | (self.flags.0 & TcpFlags::MASK));
        writer.u16(self.window);
        writer.u16(self.checksum);
        writer.u16(self.urgent);
        out[..TCP_HEADER_LEN].copy_from_slice(&header);
    }
}

/// Set of TCP control bits, as the low bits of header bytes 12 and 13.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct TcpFlags(pub u16);

impl TcpFlags {
    /// No more data from the sender.
    pub const FIN: Self = Self(0x001);
    /// Synchronize sequence numbers.
    pub const SYN: Self = Self(0x002);
    /// Reset the connection.
    pub const RST: Self = Self(0x004);
    /// Push.
    pub const PSH: Self = Self(0x008);
    /// The acknowledgment field is significant.
    pub const ACK: Self = Self(0x010);
    /// The urgent pointer is significant.
    pub const URG: Self = Self(0x020);
    /// ECN echo (RFC 3168).
    pub const ECE: Self = Self(0x040);
    /// Congestion window reduced (RFC 3168).
    pub const CWR: Self = Self(0x080);
    /// Accurate ECN (RFC 9768).
    pub const AE: Self = Self(0x100);

    const MASK: u16 = 0x1ff;

    /// Whether all of `flags` are set.
    #[must_use]
    #[inline]
    pub const fn contains(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// Whether any of `flags` is set.
    #[must_use]
    #[inline]
    pub const fn intersects(self, flags: Self) -> bool {
        self.0 & flags.0 != 0
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

impl BitOr for TcpFlags {
    type Output = Self;

    #[inline]
    fn bitor(self, other: Self) -> Self {
        self.with(other)
    }
}

impl BitOrAssign for TcpFlags {
    #[inline]
    fn bitor_assign(&mut self, other: Self) {
        *self = self.with(other);
    }
}

/// As tcpdump prints them: `S`, `S.`, `F.`, `P.`, `.`, `none`.
impl fmt::Display for TcpFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 & Self::MASK == 0 {
            return f.write_str("none");
        }
        let letters = [
            (Self::FIN, "F"),
            (Self::SYN, "S"),
            (Self::RST, "R"),
            (Self::PSH, "P"),
            (Self::ACK, "."),
            (Self::URG, "U"),
            (Self::ECE, "E"),
            (Self::CWR, "W"),
            (Self::AE, "e"),
        ];
        letters
            .into_iter()
            .filter(|(flag, _)| self.contains(*flag))
            .try_for_each(|(_, letter)| f.write_str(letter))
    }
}

impl fmt::Debug for TcpFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TcpFlags({self})")
    }
}

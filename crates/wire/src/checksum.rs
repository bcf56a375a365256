//! One's complement sums (RFC 1071), incremental update (RFC 1624), and the DSS checksum
//! (RFC 8684 section 3.3.1).

use crate::Dsn;

/// Running one's complement sum (RFC 1071) of 16-bit big-endian words.
///
/// Held modulo 2^64 - 1, of which 2^16 - 1 is a divisor, so that carries need folding only once at
/// the end. Parts are summed separately and added in any order, as long as each of them starts at
/// an even offset of the whole.
#[derive(Clone, Copy, Default, Debug)]
pub struct Sum(u64);

impl Sum {
    /// Sum of `bytes`; an odd length is padded with a zero byte.
    #[must_use]
    #[inline]
    pub fn of(bytes: &[u8]) -> Self {
        // The sum does not depend on the byte order in which it is taken (RFC 1071 section 2 (B)):
        // native words here, one swap at the end. Two lanes of 32 bits in 64 have room for the
        // carries of 2^32 words.
        let (chunks, mut tail) = bytes.as_chunks::<8>();
        let mut native = chunks.iter().fold(0_u64, |sum, chunk| {
            let word = u64::from_ne_bytes(*chunk);
            sum + (word & 0xffff_ffff) + (word >> 32)
        });
        if let Some((word, rest)) = tail.split_first_chunk() {
            native += u64::from(u32::from_ne_bytes(*word));
            tail = rest;
        }
        if let Some((word, rest)) = tail.split_first_chunk() {
            native += u64::from(u16::from_ne_bytes(*word));
            tail = rest;
        }
        if let [last] = *tail {
            native += u64::from(u16::from_ne_bytes([last, 0]));
        }
        Self(u64::from(u16::from_be(fold(native))))
    }

    /// Sum of both.
    #[must_use]
    #[inline]
    pub const fn add(self, other: Self) -> Self {
        let (sum, carry) = self.0.overflowing_add(other.0);
        Self(sum + carry as u64)
    }

    /// Adds one 16-bit word.
    #[must_use]
    #[inline]
    pub const fn add_u16(self, value: u16) -> Self {
        self.add(Self(value as u64))
    }

    /// Adds the two words of a 32-bit number.
    #[must_use]
    #[inline]
    pub const fn add_u32(self, value: u32) -> Self {
        self.add(Self(value as u64))
    }

    /// Adds the four words of a 64-bit number.
    #[must_use]
    #[inline]
    pub const fn add_u64(self, value: u64) -> Self {
        self.add(Self(value))
    }

    /// Takes `other` out again, for updates as of RFC 1624.
    #[must_use]
    #[inline]
    pub const fn sub(self, other: Self) -> Self {
        self.add(Self(!other.0))
    }

    /// Folded to 16 bits, not complemented: what stands in the TCP checksum field when the carrier
    /// completes the checksum.
    #[must_use]
    #[inline]
    pub const fn fold(self) -> u16 {
        fold(self.0)
    }

    /// Folded and complemented: the checksum.
    #[must_use]
    #[inline]
    pub const fn checksum(self) -> u16 {
        !self.fold()
    }
}

/// The checksum after bytes with the sum `old` were replaced by bytes with the sum `new`
/// (RFC 1624 equation 3). Both are sums of parts that start at even offsets.
#[must_use]
#[inline]
pub const fn update_checksum(checksum: u16, old: Sum, new: Sum) -> u16 {
    Sum(0).add_u16(!checksum).sub(old).add(new).checksum()
}

/// Checksum of a data sequence mapping (RFC 8684 section 3.3.1, figure 10): pseudo-header and data.
///
/// `relative_ssn` and `len` are those of the mapping (initial SSN = 0; the DATA_FIN is counted);
/// `data` is the sum of the mapped bytes. To verify a received one, compare.
#[must_use]
#[inline]
pub const fn dss_checksum(dsn: Dsn, relative_ssn: u32, len: u16, data: Sum) -> u16 {
    data.add_u64(dsn.0)
        .add_u32(relative_ssn)
        .add_u16(len)
        .checksum()
}

#[inline]
#[expect(
    clippy::cast_possible_truncation,
    reason = "the last step leaves at most 16 bits"
)]
const fn fold(sum: u64) -> u16 {
    let sum = (sum & 0xffff_ffff) + (sum >> 32); // at most 33 bits
    let sum = (sum & 0xffff) + (sum >> 16); // at most 18 bits
    let sum = (sum & 0xffff) + (sum >> 16); // at most 17 bits
    ((sum & 0xffff) + (sum >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fold_of_the_largest_sums_keeps_every_carry() {
        for (sum, folded) in [
            (0, 0),
            (0xffff, 0xffff),
            (0x1_0000, 1),
            (0x1_ffff, 1),
            (0xffff_ffff_0000_0001, 1),
            (0xffff_ffff_0001_0000, 1),
            (u64::MAX - 1, 0xfffe),
            (u64::MAX, 0xffff),
        ] {
            assert_eq!(fold(sum), folded, "{sum:#x}");
        }
    }

    #[test]
    fn update_of_a_checksum_by_nothing_leaves_it() {
        for checksum in [0, 1, 0x1234, 0xfffe] {
            assert_eq!(
                update_checksum(checksum, Sum::default(), Sum::default()),
                checksum
            );
        }
    }
}

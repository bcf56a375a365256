//! From data sequence numbers to the sequence numbers of the TCP leg, and back.
//!
//! Both legs carry the same bytes, so in each direction the numbers are a constant shift apart. Where one leg has bytes that
//! the other has not, as a preamble, the shift is another; the rest of the connection does not see that.

use flexcp_wire::{Dsn, TcpSeq};

/// The numbers of a connection, each direction for itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NumberMap {
    /// Data that the subflows bring.
    pub(crate) to_tcp: Shift,
    /// Data that the TCP leg brings.
    pub(crate) to_mptcp: Shift,
    /// So far SSN and TCP sequence numbers of the initial subflow are the same, and nobody ever asked for
    /// another subflow: only then can the connection fall back (RFC 8684 section 3.7).
    pub(crate) identity: bool,
}

/// What is added to the low half of a DSN to get the TCP sequence number of the same byte, modulo 2^32.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Shift(u32);

impl NumberMap {
    /// Of a connection whose peer on the MPTCP leg starts with this number. The other numbers are known later.
    pub(super) const fn new(isn: TcpSeq) -> Self {
        Self {
            to_tcp: Shift::between(isn, Dsn(0)),
            to_mptcp: Shift(0),
            identity: true,
        }
    }
}

#[allow(clippy::cast_possible_truncation, reason = "TCP sees the low 32 bits")]
impl Shift {
    /// Of a byte that has both numbers.
    pub(crate) const fn between(seq: TcpSeq, dsn: Dsn) -> Self {
        Self(seq.0.wrapping_sub(dsn.0 as u32))
    }

    /// The TCP sequence number of a byte.
    pub(crate) const fn seq(self, dsn: Dsn) -> TcpSeq {
        TcpSeq((dsn.0 as u32).wrapping_add(self.0))
    }

    /// The DSN of a byte: the one nearest to `near`.
    pub(crate) fn dsn(self, seq: TcpSeq, near: Dsn) -> Dsn {
        let distance = seq.offset_from(self.seq(near));
        Dsn(near.0.wrapping_add_signed(i64::from(distance)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Dsn = Dsn(u64::MAX - 2);

    /// A preamble of 40 bytes on the TCP leg alone: the first byte of the stream stands behind it.
    const BEHIND_PREAMBLE: Shift = Shift::between(TcpSeq(u32::MAX - 9).add(40), FIRST);

    #[test]
    fn numbers_go_there_and_back_across_both_wraps() {
        for ahead in [0, 1, 2, 3, 100, 1 << 20, 1 << 30] {
            let dsn = FIRST.add(u64::from(ahead));
            let seq = BEHIND_PREAMBLE.seq(dsn);
            assert_eq!(seq, TcpSeq(30_u32.wrapping_add(ahead)), "{ahead}");
            for near in [dsn, dsn.add(1 << 30), dsn.sub(1 << 30)] {
                assert_eq!(BEHIND_PREAMBLE.dsn(seq, near), dsn, "{ahead}");
            }
        }
    }

    #[test]
    fn dsn_is_the_nearest_one_after_4_gigabytes() {
        let dsn = FIRST.add((5 << 32) + 7);
        let seq = BEHIND_PREAMBLE.seq(dsn);
        assert_eq!(BEHIND_PREAMBLE.dsn(seq, dsn.sub(1000)), dsn);
        assert_eq!(BEHIND_PREAMBLE.dsn(seq, dsn.add(1000)), dsn);
    }
}

//! Number spaces. Each is a type of its own, so that a subflow sequence number can't be used where
//! a TCP or a data sequence number is meant. All arithmetic is modular (RFC 9293 section 3.4,
//! RFC 8684 section 3.3.1); there is deliberately no `Ord`.

use core::fmt;

macro_rules! sequence_space {
    ($(#[$doc:meta])* $name:ident, $raw:ty, $signed:ty) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
        pub struct $name(pub $raw);

        impl $name {
            /// The number `count` further on.
            #[must_use]
            pub const fn add(self, count: $raw) -> Self {
                Self(self.0.wrapping_add(count))
            }

            /// The number `count` before this one.
            #[must_use]
            pub const fn sub(self, count: $raw) -> Self {
                Self(self.0.wrapping_sub(count))
            }

            /// How far this number lies after `base`; meaningful when it is known not to lie before.
            #[must_use]
            pub const fn since(self, base: Self) -> $raw {
                self.0.wrapping_sub(base.0)
            }

            /// Signed distance from `base` to this number.
            #[must_use]
            pub const fn offset_from(self, base: Self) -> $signed {
                self.0.wrapping_sub(base.0).cast_signed()
            }

            /// Whether this number lies strictly before `other`.
            #[must_use]
            pub const fn before(self, other: Self) -> bool {
                self.offset_from(other) < 0
            }

            /// Whether this number lies strictly after `other`.
            #[must_use]
            pub const fn after(self, other: Self) -> bool {
                self.offset_from(other) > 0
            }

            /// The later of the two.
            #[must_use]
            pub const fn max(self, other: Self) -> Self {
                if self.before(other) { other } else { self }
            }

            /// The earlier of the two.
            #[must_use]
            pub const fn min(self, other: Self) -> Self {
                if self.after(other) { other } else { self }
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

sequence_space!(
    /// Sequence number on the plain TCP leg, as it stands in the TCP header.
    TcpSeq, u32, i32
);
sequence_space!(
    /// Subflow sequence number as it stands in the subflow's TCP header (absolute: the SYN's number
    /// is the initial one). The relative form, SYN = 0, exists only inside a DSS option.
    Ssn, u32, i32
);
sequence_space!(
    /// Data sequence number, always expanded to 64 bits (RFC 8684 section 3.3.1).
    Dsn, u64, i64
);

impl Dsn {
    /// The 64-bit number with these low 32 bits that lies nearest to this one (RFC 8684 section
    /// 3.3.1: "the data sequence number [...] sent as the lower 32 bits").
    #[must_use]
    #[allow(
        clippy::cast_possible_truncation,
        reason = "the low half is what is compared"
    )]
    pub const fn expand(self, low: u32) -> Self {
        let distance = low.wrapping_sub(self.0 as u32).cast_signed();
        Self(self.0.wrapping_add_signed(distance as i64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_survives_the_wrap() {
        let late = TcpSeq(u32::MAX);
        let early = late.add(5);
        assert!(late.before(early));
        assert!(early.after(late));
        assert_eq!(early.since(late), 5);
        assert_eq!(late.offset_from(early), -5);
        assert_eq!(late.max(early), early);
        assert_eq!(late.min(early), late);
    }

    #[test]
    fn expand_picks_the_nearest_epoch() {
        let base = Dsn(0x1_ffff_fff0);
        assert_eq!(base.expand(0xffff_ffff), Dsn(0x1_ffff_ffff));
        assert_eq!(base.expand(0x10), Dsn(0x2_0000_0010));
        assert_eq!(Dsn(0x2_0000_0010).expand(0xffff_fff0), Dsn(0x1_ffff_fff0));
        assert_eq!(Dsn(3).expand(0xffff_ffff), Dsn(u64::MAX));
    }
}

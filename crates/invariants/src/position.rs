//! Positions in a stream: numbers of any space, unwrapped and counted from one origin.

/// Where the first byte of data stands. There is room below it for what lies before: the SYN, probes.
pub(crate) const ORIGIN: u64 = 1 << 40;

/// The position of `number` in a 32-bit space whose initial number is `isn`, the one nearest to
/// `reference`.
pub(crate) fn from_seq(number: u32, isn: u32, reference: u64) -> u64 {
    let relative = number.wrapping_sub(isn).wrapping_sub(1);
    near(reference, relative)
}

/// The value with the low 32 bits of `ORIGIN + relative` that lies nearest to `reference`.
#[allow(
    clippy::cast_possible_truncation,
    reason = "the low half is what is compared"
)]
fn near(reference: u64, relative: u32) -> u64 {
    let low = relative.wrapping_add(ORIGIN as u32);
    let distance = low.wrapping_sub(reference as u32).cast_signed();
    reference.wrapping_add_signed(i64::from(distance))
}

/// A length as numbers of 32 bits count it.
#[allow(
    clippy::cast_possible_truncation,
    reason = "the low half is what counts"
)]
pub(crate) const fn low(len: u64) -> u32 {
    len as u32
}

/// The position of a 64-bit data sequence number in a space whose initial one is `idsn`.
pub(crate) const fn from_dsn(dsn: u64, idsn: u64) -> u64 {
    ORIGIN.wrapping_add(dsn.wrapping_sub(idsn).wrapping_sub(1))
}

/// The position of the low 32 bits of a data sequence number, the one nearest to `reference`.
#[allow(
    clippy::cast_possible_truncation,
    reason = "the low half is what is compared"
)]
pub(crate) fn from_short_dsn(low: u32, idsn: u64, reference: u64) -> u64 {
    from_seq(low, idsn as u32, reference)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_byte_is_at_the_origin_in_every_space() {
        assert_eq!(from_seq(0, u32::MAX, ORIGIN), ORIGIN);
        assert_eq!(from_dsn(3, 2), ORIGIN);
        assert_eq!(from_dsn(0, u64::MAX), ORIGIN);
        assert_eq!(from_short_dsn(0, 0xffff_ffff, ORIGIN), ORIGIN);
    }

    #[test]
    fn numbers_unwrap_near_the_reference() {
        let far = ORIGIN + (5 << 32) + 17;
        let isn = 0xffff_fff0_u32;
        let number = isn.wrapping_add(1).wrapping_add(17);
        assert_eq!(from_seq(number, isn, far + 1000), far);
        assert_eq!(from_seq(number, isn, far - 1000), far);
        assert_eq!(from_seq(isn, isn, ORIGIN), ORIGIN - 1);
    }
}

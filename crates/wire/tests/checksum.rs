//! Checksums against the definition in RFC 1071, taken word by word.

mod common;

use common::bytes;
use flexcp_wire::{Dsn, Sum, dss_checksum, update_checksum};
use proptest::collection::vec;
use proptest::prelude::*;

/// RFC 1071 section 4.1, in plain words.
fn definition(bytes: &[u8]) -> u16 {
    let mut sum = 0_u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u32::from(*low));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(sum).expect("folded")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2048))]

    #[test]
    fn sum_of_any_bytes_equals_the_definition(bytes in vec(any::<u8>(), 0..300)) {
        prop_assert_eq!(Sum::of(&bytes).fold(), definition(&bytes));
        prop_assert_eq!(Sum::of(&bytes).checksum(), !definition(&bytes));
    }

    #[test]
    fn sum_of_saturated_bytes_equals_the_definition(
        bytes in vec(prop_oneof![Just(0xff), Just(0)], 0..300),
    ) {
        prop_assert_eq!(Sum::of(&bytes).fold(), definition(&bytes));
    }

    #[test]
    fn sums_of_even_parts_add_up(bytes in vec(any::<u8>(), 0..300), cut in 0..150_usize) {
        let cut = (2 * cut).min(bytes.len());
        let (head, tail) = bytes.split_at(cut);
        prop_assert_eq!(Sum::of(head).add(Sum::of(tail)).fold(), definition(&bytes));
    }

    #[test]
    fn numbers_add_as_their_bytes_do(start in any::<u16>(), a: u16, b: u32, c: u64) {
        let bytes = [
            &start.to_be_bytes()[..], &a.to_be_bytes(), &b.to_be_bytes(), &c.to_be_bytes(),
        ].concat();
        let sum = Sum::default().add_u16(start).add_u16(a).add_u32(b).add_u64(c);
        prop_assert_eq!(sum.fold(), definition(&bytes));
    }

    #[test]
    fn numbers_at_the_edge_keep_their_carries(values in vec(prop_oneof![
        Just(u64::MAX), Just(u64::MAX - 1), Just(1), Just(0), Just(1 << 63), any::<u64>(),
    ], 0..20)) {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_be_bytes()).collect();
        let sum = values.iter().fold(Sum::default(), |sum, value| sum.add_u64(*value));
        prop_assert_eq!(sum.fold(), definition(&bytes));
    }

    #[test]
    fn update_equals_a_full_recompute(
        fixed in vec(any::<u8>(), 0..40),
        old in vec(any::<u8>(), 0..40),
        new in vec(any::<u8>(), 0..40),
    ) {
        // A real packet is never all zero (the pseudo-header has a protocol); the fixed part here.
        let fixed = [&fixed[..fixed.len() & !1], &[0, 6]].concat();
        let before = Sum::of(&fixed).add(Sum::of(&old)).checksum();
        let after = Sum::of(&fixed).add(Sum::of(&new)).checksum();
        prop_assert_eq!(update_checksum(before, Sum::of(&old), Sum::of(&new)), after);
    }

    #[test]
    fn sub_undoes_add(fixed in vec(1..=255_u8, 2..40), part in vec(any::<u8>(), 0..40)) {
        let sum = Sum::of(&fixed);
        let again = sum.add(Sum::of(&part)).sub(Sum::of(&part));
        prop_assert_eq!(again.fold(), sum.fold());
    }

    #[test]
    fn dss_checksum_equals_the_sum_over_figure_10(
        dsn: u64, ssn: u32, len: u16, data in vec(any::<u8>(), 0..100),
    ) {
        let whole = [
            &dsn.to_be_bytes()[..], &ssn.to_be_bytes(), &len.to_be_bytes(), &[0, 0], &data,
        ].concat();
        prop_assert_eq!(dss_checksum(Dsn(dsn), ssn, len, Sum::of(&data)), !definition(&whole));
    }
}

#[test]
fn example_of_rfc_1071_section_3() {
    assert_eq!(Sum::of(&bytes("0001 f203 f4f5 f6f7")).fold(), 0xddf2);
}

#[test]
fn example_of_rfc_1624_section_4_does_not_give_minus_zero() {
    let (old, new) = (
        Sum::default().add_u16(0x5555),
        Sum::default().add_u16(0x3285),
    );
    assert_eq!(update_checksum(0xdd2f, old, new), 0x0000);
}

#[test]
fn ipv4_header_checksum_of_a_known_packet() {
    let header = bytes("4500 0073 0000 4000 4011 0000 c0a8 0001 c0a8 00c7");
    assert_eq!(Sum::of(&header).checksum(), 0xb861);
}

#[test]
fn an_odd_byte_is_padded_behind() {
    assert_eq!(Sum::of(&[]).fold(), 0);
    assert_eq!(Sum::of(&[0xab]).fold(), 0xab00);
    assert_eq!(
        Sum::of(&bytes("0102030405060708 09")).fold(),
        definition(&bytes("0102030405060708 09"))
    );
}

#[test]
fn the_largest_packet_keeps_its_carries() {
    let bytes = vec![0xff; 65_535];
    assert_eq!(Sum::of(&bytes).fold(), definition(&bytes));
}

/// DATA_FIN alone: SSN 0, length 1, the checksum covers the pseudo-header only (section 3.3.3).
#[test]
fn dss_checksum_of_a_lone_data_fin() {
    let sum = 0x0102_u32 + 0x0304 + 0x0506 + 0x0708 + 1;
    let checksum = dss_checksum(Dsn(0x0102_0304_0506_0708), 0, 1, Sum::default());
    assert_eq!(u32::from(!checksum), sum);
}

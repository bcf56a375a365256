//! Option blocks: any bytes are survived, what is written is read back, the layout is that of Linux.

mod common;

use common::{bytes, emitted, mptcp_option, sack_blocks, timestamps};
use flexcp_wire::{
    CapableFlags, CapableKeys, MpCapable, MpPrio, MpTcpRst, MptcpOption, OptionWriter, ParseError,
    SackBlocks, TcpOption, TcpOptions, Timestamps, kind,
};
use proptest::collection::vec;
use proptest::prelude::*;

/// Every option but the ones that borrow, which `any_option` adds.
fn owned_option() -> impl Strategy<Value = TcpOption<'static>> {
    prop_oneof![
        any::<u16>().prop_map(TcpOption::Mss),
        any::<u8>().prop_map(TcpOption::WindowScale),
        Just(TcpOption::SackPermitted),
        sack_blocks().prop_map(TcpOption::Sack),
        timestamps().prop_map(TcpOption::Timestamps),
        mptcp_option().prop_map(TcpOption::Mptcp),
        (0..=7_usize).prop_map(|n| TcpOption::FastOpen(
            &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16][..COOKIE_LENGTHS[n]]
        )),
        (35..=255_u8, 0..=38_usize).prop_map(|(kind, len)| TcpOption::Unknown {
            kind,
            data: &[0xaa; 38][..len]
        }),
    ]
}

/// Any byte, more often one that is a kind, a length or a subtype.
fn likely_byte() -> impl Strategy<Value = u8> {
    let likely = [
        1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 18, 24, 30, 30, 34, 0x10, 0x20, 0x30, 0x80,
    ];
    prop_oneof![3 => proptest::sample::select(likely.to_vec()), 1 => any::<u8>()]
}

const COOKIE_LENGTHS: [usize; 8] = [0, 4, 6, 8, 10, 12, 14, 16];

/// MSS, SACK permitted, timestamps 1 and 0, window scale 7, as Linux orders them in a SYN.
fn syn_options() -> [TcpOption<'static>; 4] {
    [
        TcpOption::Mss(1460),
        TcpOption::SackPermitted,
        TcpOption::Timestamps(Timestamps { val: 1, ecr: 0 }),
        TcpOption::WindowScale(7),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn any_mptcp_option_written_is_read_back(option in mptcp_option()) {
        let wire = emitted(&option);
        prop_assert_eq!(MptcpOption::parse(&wire), Ok(option));
        // Written again, the bytes are the same: nothing of them is lost.
        prop_assert_eq!(emitted(&MptcpOption::parse(&wire)?), wire);
    }

    #[test]
    fn any_option_written_is_read_back(option in owned_option()) {
        let mut out = [0; 64];
        let len = option.emit(&mut out);
        prop_assert_eq!(len, option.len());
        let parsed: Vec<_> = TcpOptions::new(&out[..len]).collect();
        prop_assert_eq!(parsed, [Ok(option)]);
    }

    #[test]
    fn any_bytes_yield_few_items_and_good_ones_are_written_as_read(
        bytes in vec(likely_byte(), 0..=80),
    ) {
        check_walk(&bytes)?;
    }

    #[test]
    fn any_bytes_behind_an_mptcp_header_are_survived(
        (len, third, rest) in (0..=45_u8, any::<u8>(), vec(any::<u8>(), 0..=45)),
    ) {
        let mut option = vec![kind::MPTCP, len, third];
        option.extend(rest);
        check_walk(&option)?;
        let _ = MptcpOption::parse(&option);
        let fitting = option.get(..usize::from(len)).unwrap_or(&option);
        let _ = MptcpOption::parse(fitting);
    }

    #[test]
    fn bytes_of_a_good_option_with_reserved_bits_zero_are_written_as_read(
        bytes in vec(any::<u8>(), 3..=40),
        subtype in 0..16_u8,
    ) {
        let mut option = bytes;
        option[0] = kind::MPTCP;
        option[1] = u8::try_from(option.len())?;
        option[2] = subtype << 4 | option[2] & 0x0f;
        if let Ok(parsed) = MptcpOption::parse(&option) {
            zero_reserved_bits(&mut option);
            prop_assert_eq!(emitted(&parsed), option);
        }
    }

    #[test]
    fn options_pushed_are_read_back_in_order(options in vec(owned_option(), 0..8)) {
        let mut writer = OptionWriter::new();
        let pushed: Vec<_> = options.into_iter().filter(|option| {
            let before = writer.clone().finish().to_vec();
            let fits_by_promise = option.len() <= writer.remaining();
            let pushed = writer.push(option);
            assert!(pushed || !fits_by_promise, "{option:?} fits but was refused");
            assert!(pushed || writer.finish() == before, "refused but changed");
            pushed
        }).collect();
        let block = writer.finish();
        prop_assert!(block.len() <= 40 && block.len().is_multiple_of(4));
        let parsed: Result<Vec<_>, _> = TcpOptions::new(block).collect();
        prop_assert_eq!(parsed, Ok(pushed));
    }
}

/// The iteration ends soon, each good option is written as some part of the bytes.
fn check_walk(bytes: &[u8]) -> Result<(), TestCaseError> {
    let items: Vec<_> = TcpOptions::new(bytes).take(41).collect();
    prop_assert!(items.len() <= 20);
    let mut left = 40;
    for option in items.iter().flatten() {
        let mut out = [0; 40];
        let len = option.emit(&mut out);
        prop_assert_eq!(len, option.len());
        prop_assert!(len <= left);
        left -= len;
        let again: Vec<_> = TcpOptions::new(&out[..len]).collect();
        prop_assert_eq!(again, [Ok(*option)]);
    }
    Ok(())
}

/// Clears what the RFC reserves (or, in a DSS, what "will be ignored").
fn zero_reserved_bits(option: &mut [u8]) {
    match (option[2] >> 4, option.len()) {
        (0x1, 24) => option[2..4].copy_from_slice(&[0x10, 0]),
        (0x1 | 0x3 | 0x5 | 0x8, _) => option[2] &= 0xf1,
        (0x2, _) => {
            option[2] &= 0xf0;
            option[3] &= 0x1f;
            if option[3] & 0x01 == 0 {
                option[3] &= !0x02;
            }
            if option[3] & 0x04 == 0 {
                option[3] &= !0x08;
            }
        }
        (0x4, _) => option[2] &= 0xf0,
        (0x6 | 0x7, _) => {
            option[2] &= 0xf0;
            option[3] = 0;
        }
        _ => {}
    }
}

#[test]
fn end_of_list_hides_what_follows() {
    let block = bytes("01 02 04 05b4 00 08 0a 00000001 00000000");
    let parsed: Vec<_> = TcpOptions::new(&block).collect();
    assert_eq!(parsed, [Ok(TcpOption::Mss(1460))]);
}

#[test]
fn a_wrong_length_byte_ends_the_iteration_with_one_error() {
    for (hex, kind, len) in [
        ("02 00 05b4 0303 07", 2, 0),       // below 2
        ("fe 01 05b4 0303 07", 254, 1),     // below 2
        ("1e 01 05b4 0303 07", 30, 1),      // below 2
        ("08 0a 00000001 000000", 8, 10),   // past the end
        ("1e 08 20 01 000000", 30, 8),      // past the end
        ("02", 2, 0),                       // no length byte
        ("02 05 05b400 0303 07", 2, 5),     // MSS
        ("03 02 0204 05b4", 3, 2),          // window scale
        ("04 03 00 0204 05b4", 4, 3),       // SACK permitted
        ("05 02 0204 05b4", 5, 2),          // SACK without a block
        ("05 06 00000001 0204 05b4", 5, 6), // half a SACK block
        ("08 06 00000001 0204 05b4", 8, 6), // timestamps
    ] {
        let parsed: Vec<_> = TcpOptions::new(&bytes(hex))
            .map(|item| item.err())
            .collect();
        assert_eq!(
            parsed,
            [Some(ParseError::OptionLength { kind, len })],
            "{hex}"
        );
    }
    let five_blocks = [&[5, 42][..], &[0; 38]].concat();
    assert!(
        TcpOptions::new(&five_blocks)
            .next()
            .is_some_and(|item| item.is_err())
    );
}

#[test]
fn a_malformed_mptcp_option_does_not_hide_those_behind_it() {
    let block = bytes("1e 05 20 01 00 1e 02 04 02 1e 03 51");
    let parsed: Vec<_> = TcpOptions::new(&block).collect();
    assert_eq!(
        parsed,
        [
            Err(ParseError::MptcpLength { subtype: 2, len: 5 }),
            Err(ParseError::OptionLength { kind: 30, len: 2 }),
            Ok(TcpOption::SackPermitted),
            Ok(TcpOption::Mptcp(MptcpOption::Prio(MpPrio { backup: true }))),
        ]
    );
}

#[test]
fn bytes_beyond_the_40th_are_not_looked_at() {
    let mut block = vec![1; 40];
    block.extend(bytes("02 04 05b4"));
    assert_eq!(TcpOptions::new(&block).count(), 0);
    let mut across = vec![1; 38];
    across.extend(bytes("02 04 05b4"));
    let parsed: Vec<_> = TcpOptions::new(&across).collect();
    assert_eq!(parsed, [Err(ParseError::OptionLength { kind: 2, len: 4 })]);
}

#[test]
fn fast_open_cookie_of_a_length_that_must_be_ignored_is_unknown() {
    for len in 0..=38_u8 {
        let option = [&[34, len + 2][..], &vec![7; len.into()]].concat();
        let cookie = &option[2..];
        let expected = if COOKIE_LENGTHS.contains(&cookie.len()) {
            TcpOption::FastOpen(cookie)
        } else {
            TcpOption::Unknown {
                kind: 34,
                data: cookie,
            }
        };
        assert_eq!(TcpOptions::new(&option).collect::<Vec<_>>(), [Ok(expected)]);
    }
}

#[test]
fn sack_blocks_hold_four_and_compare_by_content() {
    let mut blocks = SackBlocks::default();
    assert!(blocks.is_empty());
    for n in 0..4 {
        assert!(blocks.push(n, n + 1));
    }
    assert!(!blocks.push(9, 10));
    assert_eq!(blocks.len(), 4);
    blocks.truncate(5);
    assert_eq!(blocks.len(), 4);
    blocks.truncate(1);
    assert_eq!(blocks.as_slice(), [(0, 1)]);
    let mut one = SackBlocks::new();
    one.push(0, 1);
    assert_eq!(blocks, one);
}

#[test]
fn a_syn_is_laid_out_as_linux_does() {
    let mut writer = OptionWriter::new();
    for option in &syn_options() {
        assert!(writer.push(option));
    }
    let capable = MpCapable {
        version: 1,
        flags: CapableFlags::HMAC_SHA256,
        keys: CapableKeys::Syn,
    };
    assert!(writer.push(&TcpOption::Mptcp(MptcpOption::Capable(capable))));
    assert_eq!(
        writer.finish(),
        bytes("020405b4 0402080a 00000001 00000000 01030307 1e040101")
    );
}

#[test]
fn timestamps_alone_and_sack_behind_them_end_on_a_boundary() {
    let mut writer = OptionWriter::new();
    let mut blocks = SackBlocks::new();
    blocks.push(5, 6);
    assert!(writer.push(&TcpOption::Timestamps(Timestamps { val: 1, ecr: 2 })));
    assert!(writer.push(&TcpOption::Sack(blocks)));
    assert_eq!(
        writer.finish(),
        bytes("0101080a 00000001 00000002 0101050a 00000005 00000006")
    );
}

#[test]
fn mptcp_options_are_padded_behind() {
    let mut writer = OptionWriter::new();
    let prio = TcpOption::Mptcp(MptcpOption::Prio(MpPrio { backup: true }));
    let reset = MpTcpRst {
        transient: false,
        reason: MpTcpRst::MPTCP_ERROR,
    };
    assert!(writer.push(&prio));
    assert_eq!(writer.remaining(), 36);
    assert!(writer.push(&TcpOption::Mptcp(MptcpOption::Reset(reset))));
    assert!(writer.push(&prio));
    assert!(writer.push(&TcpOption::SackPermitted));
    assert_eq!(
        writer.finish(),
        bytes("1e035101 1e048001 1e035101 04020101")
    );
}

#[test]
fn an_option_that_fits_only_without_its_padding_is_refused() {
    let mut writer = OptionWriter::new();
    let filler = TcpOption::Unknown {
        kind: 254,
        data: &[0; 31],
    };
    assert!(writer.push(&filler));
    assert_eq!(writer.remaining(), 4);
    let before = writer.clone().finish().to_vec();
    // 33 + 5 bytes fit, but an MPTCP option starts at 36.
    let remove = flexcp_wire::RemoveAddr::new(&[1, 2]);
    assert!(!writer.push(&TcpOption::Mptcp(MptcpOption::RemoveAddr(remove))));
    assert_eq!(writer.finish(), before);
}

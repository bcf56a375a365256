//! Messages of RFC 8803: what is read, what is refused and why, and what is written.
#![forbid(unsafe_code)]

use std::net::IpAddr;

use flexcp_wire::{
    CONVERT_MAX_LEN, Connect, ConvertError, ConvertFault, ConvertMessage, ConvertTlv, ConvertWriter,
};
use proptest::prelude::*;

/// Base Connect for 10.55.9.9:80, as Tessares' libconvert sends it.
const BASE: &[u8] = &[
    1, 6, 0x22, 0x63, 10, 5, 0, 80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 55, 9, 9,
];

fn parsed(bytes: &[u8]) -> Result<(Vec<ConvertTlv<'_>>, usize), ConvertFault> {
    let (message, len) = ConvertMessage::parse(bytes)?;
    Ok((message.tlvs().collect(), len))
}

/// A message of one TLV.
fn of_one(tlv: &[u8]) -> Vec<u8> {
    let words = u8::try_from(1 + tlv.len() / 4).unwrap();
    [&[1, words, 0x22, 0x63], tlv].concat()
}

fn written(tlvs: &[ConvertTlv<'_>]) -> Vec<u8> {
    let mut out = [0xaa; CONVERT_MAX_LEN];
    let mut writer = ConvertWriter::new(&mut out);
    assert!(tlvs.iter().all(|tlv| writer.push(tlv)), "there is room");
    let len = writer.finish();
    out[..len].to_vec()
}

#[test]
fn base_connect_is_as_libconvert_sends_it() {
    let stream = [BASE, b"GET /"].concat();
    let connect = ConvertTlv::Connect(Connect {
        addr: "10.55.9.9".parse().unwrap(),
        port: 80,
        options: &[],
    });
    assert_eq!(parsed(&stream), Ok((vec![connect], 24)), "data is left");
    assert_eq!(written(&[connect]), BASE);
    let cookie = ConvertTlv::Cookie(b"secretcookie");
    let bytes = written(&[connect, cookie]);
    assert_eq!(bytes[24..28], [0x16, 4, 0, 0]);
    assert_eq!(parsed(&bytes), Ok((vec![connect, cookie], 40)));
}

#[test]
fn bare_header_is_a_message() {
    assert_eq!(parsed(&[1, 1, 0x22, 0x63]), Ok((vec![], 4)));
    assert_eq!(written(&[]), [1, 1, 0x22, 0x63]);
}

#[test]
fn what_has_not_come_yet_is_waited_for() {
    for len in 0..4 {
        assert_eq!(parsed(&BASE[..len]), Err(ConvertFault::Incomplete(4)));
    }
    for len in 4..BASE.len() {
        assert_eq!(parsed(&BASE[..len]), Err(ConvertFault::Incomplete(24)));
    }
}

#[test]
fn other_streams_versions_and_lengths_are_told_apart() {
    assert_eq!(parsed(b"GET / HTTP"), Err(ConvertFault::NotConvert));
    assert_eq!(parsed(&[2, 6, 0x22, 0x63]), Err(ConvertFault::Version(2)));
    assert_eq!(parsed(&[1, 0, 0x22, 0x63]), Err(ConvertFault::NoLength));
}

#[test]
fn tlvs_of_a_wrong_form_are_malformed() {
    for tlv in [
        // Longer than the message, and of no length.
        &[1, 2, 0, 0][..],
        &[1, 0, 0, 0],
        // Info is one word, Connect five at least.
        &[1, 2, 0, 0, 0, 0, 0, 0],
        &[10, 1, 0, 80],
        &[10, 4, 0, 80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff],
    ] {
        assert_eq!(
            parsed(&of_one(tlv)),
            Err(ConvertFault::Malformed { len: 4 + tlv.len() }),
            "{tlv:?}"
        );
    }
    let twice = [&[1, 3, 0x22, 0x63], &[1, 1, 0, 0][..], &[1, 1, 0, 0]].concat();
    assert_eq!(parsed(&twice), Err(ConvertFault::Malformed { len: 12 }));
    for kind in [0, 2, 63, 64 + 1, 255] {
        let fault = Err(ConvertFault::Unsupported { len: 8, kind });
        assert_eq!(parsed(&of_one(&[kind, 1, 0, 0])), fault);
    }
}

#[test]
fn nobody_connects_to_what_no_host_has() {
    for (addr, port) in [
        ("224.0.0.1", 80),
        ("255.255.255.255", 80),
        ("127.0.0.1", 80),
        ("0.0.0.0", 80),
        ("ff02::1", 80),
        ("::1", 80),
        ("::", 80),
        ("192.0.2.1", 0),
    ] {
        let addr: IpAddr = addr.parse().unwrap();
        let connect = Connect {
            addr,
            port,
            options: &[],
        };
        let bytes = written(&[ConvertTlv::Connect(connect)]);
        assert_eq!(
            parsed(&bytes),
            Err(ConvertFault::Malformed { len: 24 }),
            "{addr}:{port}"
        );
    }
}

#[test]
fn options_of_a_connect_are_read_one_by_one() {
    let connect = |options: &[u8]| {
        let head = [&BASE[4..], options].concat();
        let mut tlv = head;
        tlv[1] = u8::try_from(tlv.len() / 4).unwrap();
        of_one(&tlv)
    };
    let asked = connect(&[34, 2, 30, 2, 254, 5, 1, 2, 3, 0, 0, 0]);
    let (message, _) = ConvertMessage::parse(&asked).unwrap();
    let Some(ConvertTlv::Connect(read)) = message.tlvs().next() else {
        panic!("a Connect");
    };
    let options: Vec<_> = read.tcp_options().collect();
    assert_eq!(options, [(34, &[][..]), (30, &[]), (254, &[1, 2, 3])]);
    for options in [
        // NOP and end have no length; a length is two at least, and does not run past the end; padding is zero, and short.
        &[1, 1, 34, 2][..],
        &[0, 0, 34, 2],
        &[34, 1, 0, 0],
        &[34, 5, 0, 0],
        &[34, 3, 0, 7],
        &[0, 0, 0, 0],
    ] {
        let len = BASE.len() + options.len();
        let fault = Err(ConvertFault::Malformed { len });
        assert_eq!(parsed(&connect(options)), fault, "{options:?}");
    }
}

#[test]
fn errors_have_the_codes_of_the_rfc() {
    for (error, code, value) in [
        (ConvertError::UnsupportedVersion(&[1]), 0, &[1][..]),
        (ConvertError::Malformed(&[7; 4]), 1, &[0, 7, 7, 7, 7]),
        (ConvertError::Unsupported(&[7; 4]), 2, &[0, 7, 7, 7, 7]),
        (
            ConvertError::MissingCookie(&[9; 8]),
            3,
            &[0, 9, 9, 9, 9, 9, 9, 9, 9],
        ),
        (ConvertError::NotAuthorized, 32, &[0]),
        (ConvertError::UnsupportedOption(&[29]), 33, &[29]),
        (ConvertError::ResourceExceeded(60), 64, &[60]),
        (ConvertError::NetworkFailure(0), 65, &[0]),
        (ConvertError::ConnectionReset, 96, &[0]),
        (ConvertError::Unreachable(3), 97, &[3]),
        (
            ConvertError::Unknown {
                code: 98,
                value: &[5],
            },
            98,
            &[5],
        ),
    ] {
        let bytes = written(&[ConvertTlv::Error(error)]);
        let words = u8::try_from(bytes.len() / 4 - 1).unwrap();
        assert_eq!(bytes[4..7], [30, words, code], "{error}");
        assert_eq!(bytes[7..7 + value.len()], *value, "{error}");
        assert_eq!(error.code(), code);
        assert_eq!(
            parsed(&bytes),
            Ok((vec![ConvertTlv::Error(error)], bytes.len()))
        );
    }
}

#[test]
fn what_has_no_room_is_not_written() {
    let mut out = [0; 12];
    let mut writer = ConvertWriter::new(&mut out);
    assert!(writer.push(&ConvertTlv::Info));
    assert!(!writer.push(&ConvertTlv::Cookie(b"cookie")));
    assert!(writer.push(&ConvertTlv::SupportedExtensions(&[])));
    assert_eq!(writer.finish(), 12);
    assert_eq!(out, [1, 3, 0x22, 0x63, 1, 1, 0, 0, 21, 1, 0, 0]);
    let mut out = [0; 2048];
    let mut writer = ConvertWriter::new(&mut out);
    assert!(
        !writer.push(&ConvertTlv::Cookie(&[1; 1013])),
        "a length has a byte"
    );
    assert!(writer.push(&ConvertTlv::Cookie(&[1; 1012])));
    assert_eq!(writer.finish(), CONVERT_MAX_LEN);
}

/// Bytes that are often near a message.
fn nearly() -> impl Strategy<Value = Vec<u8>> {
    let kind = prop_oneof![
        Just(1_u8),
        Just(10),
        Just(20),
        Just(21),
        Just(22),
        Just(30),
        any::<u8>()
    ];
    let tlv = (kind, 1_u8..8, prop::collection::vec(any::<u8>(), 30)).prop_map(
        |(kind, words, mut value)| {
            value.truncate(usize::from(words) * 4 - 2);
            if matches!(kind, 1 | 20 | 21 | 22) {
                value[..2].fill(0);
            }
            [vec![kind, words], value].concat()
        },
    );
    prop::collection::vec(tlv, 0..5).prop_map(|tlvs| of_one(&tlvs.concat()))
}

proptest! {
    #[test]
    fn what_is_read_is_written_the_same(bytes in nearly()) {
        if let Ok((tlvs, len)) = parsed(&bytes) {
            prop_assert_eq!(len, bytes.len());
            // A reserved byte may have been anything.
            let zeroed = tlvs.iter().all(|tlv| !matches!(tlv, ConvertTlv::Error(_)));
            let again = written(&tlvs);
            prop_assert!(!zeroed || again == bytes, "{:?} {:?}", again, bytes);
            prop_assert_eq!(parsed(&again), Ok((tlvs, len)));
        }
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        if let Err(ConvertFault::Incomplete(len)) = parsed(&bytes) {
            prop_assert!(len > bytes.len());
        }
    }
}

//! Options written by hand from the figures of RFC 8684, both ways.

mod common;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use common::{bytes, emitted};
use flexcp_wire::{
    AddAddr, CapableFlags, CapableKeys, DataNumber, Dss, DssMapping, MpCapable, MpExperimental,
    MpFail, MpFastClose, MpJoin, MpPrio, MpTcpRst, MpUnknown, MptcpOption, OptionData, ParseError,
    RemoveAddr,
};

#[track_caller]
fn check(hex: &str, option: MptcpOption) {
    assert_eq!(MptcpOption::parse(&bytes(hex)), Ok(option));
    assert_eq!(emitted(&option), bytes(hex));
    assert_eq!(option.subtype(), bytes(hex)[2] >> 4);
}

#[test]
fn capable_syn_has_no_key() {
    check(
        "1e 04 01 01",
        MptcpOption::Capable(MpCapable {
            version: 1,
            flags: CapableFlags::HMAC_SHA256,
            keys: CapableKeys::Syn,
        }),
    );
}

#[test]
fn capable_syn_of_version_0_has_the_senders_key() {
    check(
        "1e 0c 00 81 0102030405060708",
        MptcpOption::Capable(MpCapable {
            version: 0,
            flags: CapableFlags::CHECKSUM | CapableFlags::HMAC_SHA256,
            keys: CapableKeys::SynAck {
                sender: 0x0102_0304_0506_0708,
            },
        }),
    );
}

#[test]
fn capable_syn_ack_has_the_senders_key() {
    check(
        "1e 0c 01 21 557cfc6f9e8ce594",
        MptcpOption::Capable(MpCapable {
            version: 1,
            flags: CapableFlags::NO_JOIN_INITIAL | CapableFlags::HMAC_SHA256,
            keys: CapableKeys::SynAck {
                sender: 0x557c_fc6f_9e8c_e594,
            },
        }),
    );
}

#[test]
fn capable_ack_has_both_keys() {
    check(
        "1e 14 01 41 050334cfe2462c44 557cfc6f9e8ce594",
        MptcpOption::Capable(MpCapable {
            version: 1,
            flags: CapableFlags::EXTENSIBILITY | CapableFlags::HMAC_SHA256,
            keys: CapableKeys::Ack {
                sender: 0x0503_34cf_e246_2c44,
                receiver: 0x557c_fc6f_9e8c_e594,
            },
        }),
    );
}

#[test]
fn capable_with_data_has_the_mapping_with_or_without_checksum() {
    let capable = |checksum| {
        MptcpOption::Capable(MpCapable {
            version: 1,
            flags: CapableFlags::HMAC_SHA256,
            keys: CapableKeys::AckData {
                sender: 0x0503_34cf_e246_2c44,
                receiver: 0x557c_fc6f_9e8c_e594,
                data_len: 1000,
                checksum,
            },
        })
    };
    check(
        "1e 16 01 01 050334cfe2462c44 557cfc6f9e8ce594 03e8",
        capable(None),
    );
    check(
        "1e 18 01 01 050334cfe2462c44 557cfc6f9e8ce594 03e8 beef",
        capable(Some(0xbeef)),
    );
}

/// Values captured between two Linux 6.18 hosts.
#[test]
fn join_handshake_of_a_capture() {
    check(
        "1e 0c 10 02 bf8ddc39 b1b1e86c",
        MptcpOption::Join(MpJoin::Syn {
            backup: false,
            address_id: 2,
            token: 0xbf8d_dc39,
            nonce: 0xb1b1_e86c,
        }),
    );
    check(
        "1e 10 11 00 7f58f50cd9003e98 b4202970",
        MptcpOption::Join(MpJoin::SynAck {
            backup: true,
            address_id: 0,
            hmac: 0x7f58_f50c_d900_3e98,
            nonce: 0xb420_2970,
        }),
    );
    let hmac = bytes("fb09e695b561955a7a767830c3d44e9ccf0583f9");
    check(
        "1e 18 10 00 fb09e695b561955a7a767830c3d44e9ccf0583f9",
        MptcpOption::Join(MpJoin::Ack {
            hmac: hmac.try_into().expect("20 bytes"),
        }),
    );
}

#[test]
fn dss_in_all_18_combinations_of_fields() {
    let acks = [
        (0x00, "", None),
        (0x01, "a1a2a3a4", Some(DataNumber::Short(0xa1a2_a3a4))),
        (
            0x03,
            "b1b2b3b4b5b6b7b8",
            Some(DataNumber::Long(0xb1b2_b3b4_b5b6_b7b8)),
        ),
    ];
    let dsns = [
        (0x04, "c1c2c3c4", DataNumber::Short(0xc1c2_c3c4)),
        (
            0x0c,
            "d1d2d3d4d5d6d7d8",
            DataNumber::Long(0xd1d2_d3d4_d5d6_d7d8),
        ),
    ];
    for (ack_flags, ack_hex, data_ack) in acks {
        let dss = Dss {
            data_ack,
            mapping: None,
            data_fin: false,
        };
        let len = 4 + ack_hex.len() / 2;
        check(
            &format!("1e {len:02x} 20 {ack_flags:02x} {ack_hex}"),
            MptcpOption::Dss(dss),
        );
        for (dsn_flags, dsn_hex, dsn) in dsns {
            for (checksum_hex, checksum) in [("", None), ("beef", Some(0xbeef))] {
                for (fin_flag, data_fin) in [(0x00, false), (0x10, true)] {
                    let mapping = DssMapping {
                        dsn,
                        ssn: 0xe1e2_e3e4,
                        len: 0xf1f2,
                        checksum,
                    };
                    let flags = ack_flags | dsn_flags | fin_flag;
                    let body = format!("{ack_hex}{dsn_hex} e1e2e3e4 f1f2 {checksum_hex}");
                    let len = 4 + bytes(&body).len();
                    check(
                        &format!("1e {len:02x} 20 {flags:02x} {body}"),
                        MptcpOption::Dss(Dss {
                            data_ack,
                            mapping: Some(mapping),
                            data_fin,
                        }),
                    );
                }
            }
        }
    }
}

#[test]
fn dss_ignores_size_flags_of_absent_fields_and_reserved_bits() {
    let empty = Dss::default();
    assert_eq!(
        MptcpOption::parse(&bytes("1e 04 2f ea")),
        Ok(MptcpOption::Dss(empty))
    );
    let ack = Dss {
        data_ack: Some(DataNumber::Short(7)),
        ..empty
    };
    assert_eq!(
        MptcpOption::parse(&bytes("1e 08 20 e9 00000007")),
        Ok(MptcpOption::Dss(ack))
    );
}

#[test]
fn dss_with_data_fin_but_no_mapping_is_malformed() {
    for hex in [
        "1e 04 20 10",
        "1e 08 20 11 00000001",
        "1e 0c 20 13 0000000000000001",
    ] {
        assert_eq!(
            MptcpOption::parse(&bytes(hex)),
            Err(ParseError::DataFinWithoutMapping),
            "{hex}"
        );
    }
}

#[test]
fn add_addr_v4_and_v6_with_and_without_port_announced_and_echoed() {
    let v4 = IpAddr::V4(Ipv4Addr::new(10, 1, 2, 3));
    let v6 = IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 9));
    let add_addr = |echo, addr, port| {
        let hmac = if echo {
            None
        } else {
            Some(0x1112_1314_1516_1718)
        };
        MptcpOption::AddAddr(AddAddr {
            echo,
            id: 5,
            addr,
            port,
            hmac,
        })
    };
    let v6_hex = "fd000000000000000000000000000009";
    check(
        "1e 10 30 05 0a010203 1112131415161718",
        add_addr(false, v4, None),
    );
    check(
        "1e 12 30 05 0a010203 1f90 1112131415161718",
        add_addr(false, v4, Some(8080)),
    );
    check(
        &format!("1e 1c 30 05 {v6_hex} 1112131415161718"),
        add_addr(false, v6, None),
    );
    check(
        &format!("1e 1e 30 05 {v6_hex} 1f90 1112131415161718"),
        add_addr(false, v6, Some(8080)),
    );
    check("1e 08 31 05 0a010203", add_addr(true, v4, None));
    check("1e 0a 31 05 0a010203 1f90", add_addr(true, v4, Some(8080)));
    check(&format!("1e 14 31 05 {v6_hex}"), add_addr(true, v6, None));
    check(
        &format!("1e 16 31 05 {v6_hex} 1f90"),
        add_addr(true, v6, Some(8080)),
    );
}

#[test]
fn add_addr_echo_is_written_without_an_hmac_even_when_one_is_set() {
    let addr = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let echo = AddAddr {
        echo: true,
        id: 1,
        addr,
        port: None,
        hmac: Some(1),
    };
    assert_eq!(
        emitted(&MptcpOption::AddAddr(echo)),
        bytes("1e 08 31 01 7f000001")
    );
}

#[test]
fn remove_addr_with_one_and_with_many_ids() {
    check(
        "1e 04 40 07",
        MptcpOption::RemoveAddr(RemoveAddr::new(&[7])),
    );
    check(
        "1e 06 40 07 00 ff",
        MptcpOption::RemoveAddr(RemoveAddr::new(&[7, 0, 255])),
    );
    let most: Vec<u8> = (1..=37).collect();
    let option = RemoveAddr::new(&most);
    assert_eq!(option.ids(), most);
    let all = emitted(&MptcpOption::RemoveAddr(option));
    assert_eq!(all.len(), 40);
    assert_eq!(
        MptcpOption::parse(&all),
        Ok(MptcpOption::RemoveAddr(option))
    );
}

#[test]
fn remove_addr_of_more_ids_than_fit_keeps_the_first_37() {
    let ids: Vec<u8> = (1..=38).collect();
    assert_eq!(RemoveAddr::new(&ids).ids(), &ids[..37]);
}

#[test]
fn prio() {
    check("1e 03 50", MptcpOption::Prio(MpPrio { backup: false }));
    check("1e 03 51", MptcpOption::Prio(MpPrio { backup: true }));
}

#[test]
fn fail() {
    check(
        "1e 0c 60 00 8811e886b334e30d",
        MptcpOption::Fail(MpFail {
            dsn: 0x8811_e886_b334_e30d,
        }),
    );
}

#[test]
fn fastclose() {
    check(
        "1e 0c 70 00 557cfc6f9e8ce594",
        MptcpOption::FastClose(MpFastClose {
            key: 0x557c_fc6f_9e8c_e594,
        }),
    );
}

#[test]
fn tcprst() {
    let reset = |transient, reason| MptcpOption::Reset(MpTcpRst { transient, reason });
    check("1e 04 80 01", reset(false, MpTcpRst::MPTCP_ERROR));
    check("1e 04 81 02", reset(true, MpTcpRst::RESOURCES));
    check("1e 04 80 06", reset(false, MpTcpRst::MIDDLEBOX));
}

#[test]
fn experimental_and_unassigned_subtypes_are_kept_whole() {
    let data = OptionData::new(&[1, 2, 3]);
    check(
        "1e 06 fc 010203",
        MptcpOption::Experimental(MpExperimental { flags: 0xc, data }),
    );
    check(
        "1e 06 95 010203",
        MptcpOption::Unknown(MpUnknown {
            subtype: 9,
            flags: 5,
            data,
        }),
    );
    let empty = OptionData::new(&[]);
    check(
        "1e 03 e0",
        MptcpOption::Unknown(MpUnknown {
            subtype: 14,
            flags: 0,
            data: empty,
        }),
    );
}

#[test]
fn reserved_bits_are_ignored_when_read_and_zero_when_written() {
    for (received, canonical) in [
        (
            "1e 0c 1e 02 bf8ddc39 b1b1e86c",
            "1e 0c 10 02 bf8ddc39 b1b1e86c",
        ),
        (
            "1e 18 1f ff fb09e695b561955a7a767830c3d44e9ccf0583f9",
            "1e 18 10 00 fb09e695b561955a7a767830c3d44e9ccf0583f9",
        ),
        ("1e 08 2f e1 00000007", "1e 08 20 01 00000007"),
        (
            "1e 10 3e 05 0a010203 1112131415161718",
            "1e 10 30 05 0a010203 1112131415161718",
        ),
        ("1e 04 4f 07", "1e 04 40 07"),
        ("1e 03 5e", "1e 03 50"),
        (
            "1e 0c 6f ff 8811e886b334e30d",
            "1e 0c 60 00 8811e886b334e30d",
        ),
        (
            "1e 0c 7f ff 557cfc6f9e8ce594",
            "1e 0c 70 00 557cfc6f9e8ce594",
        ),
        ("1e 04 8e 01", "1e 04 80 01"),
    ] {
        let option = MptcpOption::parse(&bytes(received)).expect(received);
        assert_eq!(emitted(&option), bytes(canonical));
    }
}

#[test]
fn every_length_that_a_subtype_does_not_have_is_refused() {
    // Per third byte (and for DSS fourth byte): the lengths the RFC has.
    let forms: [(u8, u8, &[u8]); 17] = [
        (0x01, 0x01, &[4, 12, 20, 22, 24]),
        (0x10, 0x00, &[12, 16, 24]),
        (0x20, 0x00, &[4]),
        (0x20, 0x01, &[8]),
        (0x20, 0x03, &[12]),
        (0x20, 0x04, &[14, 16]),
        (0x20, 0x0c, &[18, 20]),
        (0x20, 0x05, &[18, 20]),
        (0x20, 0x07, &[22, 24]),
        (0x20, 0x0d, &[22, 24]),
        (0x20, 0x0f, &[26, 28]),
        (0x30, 0x00, &[16, 18, 28, 30]),
        (0x31, 0x00, &[8, 10, 20, 22]),
        (0x50, 0x00, &[3]),
        (0x60, 0x00, &[12]),
        (0x70, 0x00, &[12]),
        (0x80, 0x00, &[4]),
    ];
    for (third, fourth, lengths) in forms {
        for len in 3..=40_u8 {
            let mut option = vec![0; usize::from(len)];
            option[..3].copy_from_slice(&[30, len, third]);
            if let Some(byte) = option.get_mut(3) {
                *byte = fourth;
            }
            let parsed = MptcpOption::parse(&option);
            if lengths.contains(&len) {
                assert!(
                    parsed.is_ok(),
                    "{third:#04x} {fourth:#04x} length {len}: {parsed:?}"
                );
            } else {
                let error = ParseError::MptcpLength {
                    subtype: third >> 4,
                    len,
                };
                assert_eq!(
                    parsed,
                    Err(error),
                    "{third:#04x} {fourth:#04x} length {len}"
                );
            }
        }
    }
}

#[test]
fn remove_addr_without_ids_is_malformed() {
    let error = ParseError::MptcpLength { subtype: 4, len: 3 };
    assert_eq!(MptcpOption::parse(&bytes("1e 03 40")), Err(error));
}

#[test]
fn prio_of_version_0_with_an_address_id_is_malformed() {
    let error = ParseError::MptcpLength { subtype: 5, len: 4 };
    assert_eq!(MptcpOption::parse(&bytes("1e 04 50 01")), Err(error));
}

#[test]
fn bytes_that_are_not_one_whole_mptcp_option_are_refused() {
    for hex in ["", "1e", "1e 02", "1e 04 50", "1e 03 50 00", "08 03 50"] {
        let parsed = MptcpOption::parse(&bytes(hex));
        assert!(
            matches!(parsed, Err(ParseError::OptionLength { .. })),
            "{hex}: {parsed:?}"
        );
    }
    let mut long = vec![0; 41];
    long[..3].copy_from_slice(&[30, 41, 0xf0]);
    let error = ParseError::OptionLength { kind: 30, len: 41 };
    assert_eq!(MptcpOption::parse(&long), Err(error));
}

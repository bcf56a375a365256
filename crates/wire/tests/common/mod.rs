//! What the property tests share: generators of every option, and the captured packets.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::net::IpAddr;

use flexcp_wire::{
    AddAddr, CapableFlags, CapableKeys, DataNumber, Dss, DssMapping, MpCapable, MpExperimental,
    MpFail, MpFastClose, MpJoin, MpPrio, MpTcpRst, MpUnknown, MptcpOption, OptionData, RemoveAddr,
    SackBlocks, Timestamps,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

/// Every packet of the capture, from its IP header on.
pub(crate) fn captured_packets() -> Vec<Vec<u8>> {
    include_str!("../data/linux-6.18.hex")
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(bytes)
        .collect()
}

/// Bytes from hexadecimal digits, spaces ignored.
pub(crate) fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex
        .chars()
        .filter(|c| !c.is_whitespace())
        .map(|c| u8::try_from(c.to_digit(16).expect("a hexadecimal digit")).expect("a digit"))
        .collect();
    digits
        .chunks(2)
        .map(|pair| pair[0] << 4 | pair[1])
        .collect()
}

/// The option as it is on the wire.
pub(crate) fn emitted(option: &MptcpOption) -> Vec<u8> {
    let mut out = vec![0; option.len()];
    assert_eq!(option.emit(&mut out), out.len());
    out
}

/// Every MPTCP option in every form, with any content.
pub(crate) fn mptcp_option() -> impl Strategy<Value = MptcpOption> {
    prop_oneof![
        (0..16_u8, any::<u8>(), capable_keys()).prop_map(|(version, flags, keys)| {
            MptcpOption::Capable(MpCapable {
                version,
                flags: CapableFlags(flags),
                keys,
            })
        }),
        join().prop_map(MptcpOption::Join),
        dss().prop_map(MptcpOption::Dss),
        add_addr().prop_map(MptcpOption::AddAddr),
        vec(any::<u8>(), 1..=37).prop_map(|ids| MptcpOption::RemoveAddr(RemoveAddr::new(&ids))),
        any::<bool>().prop_map(|backup| MptcpOption::Prio(MpPrio { backup })),
        any::<u64>().prop_map(|dsn| MptcpOption::Fail(MpFail { dsn })),
        any::<u64>().prop_map(|key| MptcpOption::FastClose(MpFastClose { key })),
        any::<(bool, u8)>()
            .prop_map(|(transient, reason)| { MptcpOption::Reset(MpTcpRst { transient, reason }) }),
        (0..16_u8, option_data()).prop_map(|(flags, data)| {
            MptcpOption::Experimental(MpExperimental { flags, data })
        }),
        (9..15_u8, 0..16_u8, option_data()).prop_map(|(subtype, flags, data)| {
            MptcpOption::Unknown(MpUnknown {
                subtype,
                flags,
                data,
            })
        }),
    ]
}

pub(crate) fn dss() -> impl Strategy<Value = Dss> {
    let mapping = (
        data_number(),
        any::<u32>(),
        any::<u16>(),
        option::of(any::<u16>()),
    )
        .prop_map(|(dsn, ssn, len, checksum)| DssMapping {
            dsn,
            ssn,
            len,
            checksum,
        });
    (
        option::of(data_number()),
        option::of(mapping),
        any::<bool>(),
    )
        .prop_map(|(data_ack, mapping, data_fin)| Dss {
            data_ack,
            mapping,
            data_fin: data_fin && mapping.is_some(),
        })
}

pub(crate) fn sack_blocks() -> impl Strategy<Value = SackBlocks> {
    vec(any::<(u32, u32)>(), 1..=4).prop_map(|pairs| {
        let mut blocks = SackBlocks::new();
        for (left, right) in pairs {
            assert!(blocks.push(left, right));
        }
        blocks
    })
}

pub(crate) fn timestamps() -> impl Strategy<Value = Timestamps> {
    any::<(u32, u32)>().prop_map(|(val, ecr)| Timestamps { val, ecr })
}

fn capable_keys() -> impl Strategy<Value = CapableKeys> {
    prop_oneof![
        Just(CapableKeys::Syn),
        any::<u64>().prop_map(|sender| CapableKeys::SynAck { sender }),
        any::<(u64, u64)>().prop_map(|(sender, receiver)| CapableKeys::Ack { sender, receiver }),
        any::<(u64, u64, u16, Option<u16>)>().prop_map(|(sender, receiver, data_len, checksum)| {
            CapableKeys::AckData {
                sender,
                receiver,
                data_len,
                checksum,
            }
        }),
    ]
}

fn join() -> impl Strategy<Value = MpJoin> {
    prop_oneof![
        any::<(bool, u8, u32, u32)>().prop_map(|(backup, address_id, token, nonce)| {
            MpJoin::Syn {
                backup,
                address_id,
                token,
                nonce,
            }
        }),
        any::<(bool, u8, u64, u32)>().prop_map(|(backup, address_id, hmac, nonce)| {
            MpJoin::SynAck {
                backup,
                address_id,
                hmac,
                nonce,
            }
        }),
        any::<[u8; 20]>().prop_map(|hmac| MpJoin::Ack { hmac }),
    ]
}

fn add_addr() -> impl Strategy<Value = AddAddr> {
    any::<(bool, u8, IpAddr, Option<u16>, u64)>().prop_map(|(echo, id, addr, port, hmac)| AddAddr {
        echo,
        id,
        addr,
        port,
        hmac: (!echo).then_some(hmac),
    })
}

fn data_number() -> impl Strategy<Value = DataNumber> {
    prop_oneof![
        any::<u32>().prop_map(DataNumber::Short),
        any::<u64>().prop_map(DataNumber::Long),
    ]
}

fn option_data() -> impl Strategy<Value = OptionData> {
    vec(any::<u8>(), 0..=37).prop_map(|bytes| OptionData::new(&bytes))
}

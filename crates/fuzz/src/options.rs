//! MPTCP options out of a fuzzer's bytes, and target `options`: what is built is parsed as it was.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use flexcp_wire::{
    AddAddr, CapableFlags, CapableKeys, DataNumber, Dss, DssMapping, MAX_TCP_OPTIONS_LEN,
    MpCapable, MpExperimental, MpFail, MpFastClose, MpJoin, MpPrio, MpTcpRst, MptcpOption,
    OptionData, OptionWriter, RemoveAddr, SackBlocks, TcpOption, TcpOptions, Timestamps,
};

use crate::input::Input;

/// Target: options built from the bytes, then the bytes themselves as options.
pub fn target(data: &[u8]) {
    let mut input = Input::new(data);
    let mut writer = OptionWriter::new();
    let mut written = Vec::new();
    while !input.is_empty() && written.len() < 16 {
        let option = tcp(&mut input);
        alone(&option);
        let before = writer.remaining();
        let pushed = writer.push(&option);
        assert!(
            pushed || option.len() > before,
            "{option:?} fits in {before}"
        );
        if pushed {
            written.push(option);
        }
    }
    let block = writer.finish().to_vec();
    assert!(block.len() <= MAX_TCP_OPTIONS_LEN && block.len().is_multiple_of(4));
    let read: Vec<_> = TcpOptions::new(&block)
        .map(|option| option.expect("well-formed"))
        .collect();
    assert_eq!(read, written);
    raw(data);
}

/// One option by itself.
fn alone(option: &TcpOption<'_>) {
    let mut buf = [0x55; 64];
    let len = option.emit(&mut buf);
    assert_eq!(len, option.len(), "{option:?}");
    assert_eq!(usize::from(buf[1]), len, "length byte of {option:?}");
    assert!(
        buf[len..].iter().all(|&byte| byte == 0x55),
        "written past the end: {option:?}"
    );
    if len <= MAX_TCP_OPTIONS_LEN {
        let read: Vec<_> = TcpOptions::new(&buf[..len]).collect();
        assert_eq!(read, [Ok(*option)]);
    }
    if let TcpOption::Mptcp(option) = option {
        assert_eq!(option.subtype(), buf[2] >> 4, "{option:?}");
    }
}

/// Whatever can be read is written so that it is read the same.
fn raw(bytes: &[u8]) {
    for option in TcpOptions::new(bytes).flatten() {
        let mut buf = [0; 64];
        let len = option.emit(&mut buf);
        assert!(len <= MAX_TCP_OPTIONS_LEN, "{option:?}");
        let again: Vec<_> = TcpOptions::new(&buf[..len]).collect();
        assert_eq!(again, [Ok(option)]);
    }
    if let Ok(option) = MptcpOption::parse(bytes) {
        assert_eq!(option.len(), bytes.len(), "{option:?}");
    }
}

fn tcp<'a>(input: &mut Input<'a>) -> TcpOption<'a> {
    match input.below(12) {
        0 => TcpOption::Mss(input.u16()),
        1 => TcpOption::WindowScale(input.u8()),
        2 => TcpOption::SackPermitted,
        3 => {
            let mut blocks = SackBlocks::new();
            for _ in 0..=input.below(4) {
                blocks.push(input.u32(), input.u32());
            }
            TcpOption::Sack(blocks)
        }
        4 => TcpOption::Timestamps(Timestamps {
            val: input.u32(),
            ecr: input.u32(),
        }),
        5 => {
            let count = [0, 4, 6, 8, 16][input.below(5)];
            match input.bytes(count) {
                cookie if cookie.len() == count => TcpOption::FastOpen(cookie),
                _ => TcpOption::FastOpen(&[]),
            }
        }
        6 => {
            let kind = 35 + input.u8() % 200;
            let count = input.below(36);
            let data = input.bytes(count);
            TcpOption::Unknown { kind, data }
        }
        _ => TcpOption::Mptcp(mptcp(input)),
    }
}

/// Any MPTCP option.
pub(crate) fn mptcp(input: &mut Input<'_>) -> MptcpOption {
    match input.below(11) {
        0 => MptcpOption::Capable(MpCapable {
            version: input.u8() & 0xf,
            flags: CapableFlags(input.u8()),
            keys: capable_keys(input),
        }),
        1 => MptcpOption::Join(join(input)),
        2..=4 => MptcpOption::Dss(dss(input)),
        5 => MptcpOption::AddAddr(add_addr(input)),
        6 => {
            let count = 1 + input.below(36);
            let ids = input.bytes(count);
            MptcpOption::RemoveAddr(RemoveAddr::new(if ids.is_empty() { &[0] } else { ids }))
        }
        7 => MptcpOption::Prio(MpPrio {
            backup: input.bool(),
        }),
        8 => match input.below(3) {
            0 => MptcpOption::Fail(MpFail { dsn: input.u64() }),
            1 => MptcpOption::FastClose(MpFastClose { key: input.u64() }),
            _ => {
                let count = input.below(36);
                MptcpOption::Experimental(MpExperimental {
                    flags: input.u8() & 0xf,
                    data: OptionData::new(input.bytes(count)),
                })
            }
        },
        _ => MptcpOption::Reset(MpTcpRst {
            transient: input.bool(),
            reason: input.u8(),
        }),
    }
}

fn capable_keys(input: &mut Input<'_>) -> CapableKeys {
    let (kind, sender, receiver) = (input.below(5), input.u64(), input.u64());
    match kind {
        0 => CapableKeys::Syn,
        1 => CapableKeys::SynAck { sender },
        2 => CapableKeys::Ack { sender, receiver },
        _ => CapableKeys::AckData {
            sender,
            receiver,
            data_len: input.u16(),
            checksum: (kind == 3).then(|| input.u16()),
        },
    }
}

fn join(input: &mut Input<'_>) -> MpJoin {
    let (kind, backup, address_id) = (input.below(3), input.bool(), input.u8());
    match kind {
        0 => MpJoin::Syn {
            backup,
            address_id,
            token: input.u32(),
            nonce: input.u32(),
        },
        1 => MpJoin::SynAck {
            backup,
            address_id,
            hmac: input.u64(),
            nonce: input.u32(),
        },
        _ => {
            let mut hmac = [0; 20];
            let bytes = input.bytes(20);
            hmac[..bytes.len()].copy_from_slice(bytes);
            MpJoin::Ack { hmac }
        }
    }
}

fn dss(input: &mut Input<'_>) -> Dss {
    let form = input.u8();
    let number = |long: bool, input: &mut Input<'_>| {
        if long {
            DataNumber::Long(input.u64())
        } else {
            DataNumber::Short(input.u32())
        }
    };
    let data_ack = (form & 1 != 0).then(|| number(form & 2 != 0, input));
    let mapping = (form & 4 != 0).then(|| DssMapping {
        dsn: number(form & 8 != 0, input),
        ssn: input.u32(),
        len: input.u16(),
        checksum: (form & 16 != 0).then(|| input.u16()),
    });
    Dss {
        data_ack,
        mapping,
        data_fin: mapping.is_some() && form & 32 != 0,
    }
}

fn add_addr(input: &mut Input<'_>) -> AddAddr {
    let form = input.u8();
    let echo = form & 1 != 0;
    let addr = if form & 2 != 0 {
        let bits = u128::from(input.u64()) << 64 | u128::from(input.u64());
        IpAddr::V6(Ipv6Addr::from_bits(bits))
    } else {
        IpAddr::V4(Ipv4Addr::from_bits(input.u32()))
    };
    AddAddr {
        echo,
        id: input.u8(),
        addr,
        port: (form & 4 != 0).then(|| input.u16()),
        hmac: (!echo).then(|| input.u64()),
    }
}

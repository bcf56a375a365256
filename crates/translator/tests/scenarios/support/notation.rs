//! Packets as lines of text, in relative numbers, the same for what goes in and what comes out:
//!
//! `P. 1:101(100) ack 1 win 64 <ts 5001 1000,dss ack 1 map 1:101@1> gso 1400`
//!
//! Flags as tcpdump writes them, sequence range, ACK, window as in the header, `urg` pointer, options
//! in their order, then what is special about the packet. See [`parse_option`].

use std::net::{IpAddr, SocketAddr};

use flexcp_testkit::{Packet, keys};
use flexcp_wire::{
    AddAddr, CapableFlags, CapableKeys, ChecksumState, DataNumber, Dss, DssMapping, Gso, GsoKind,
    IpHeader, MpCapable, MpFail, MpFastClose, MpJoin, MpPrio, MpTcpRst, MptcpOption, Offload,
    RemoveAddr, SackBlocks, TcpFlags, TcpOption, Timestamps,
};

use super::net::{Bases, Direction, Leg, Net, SERVER_KEY, low, stream};

/// A line, read.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) flags: TcpFlags,
    pub(crate) seq: u32,
    pub(crate) len: usize,
    pub(crate) ack: u32,
    pub(crate) window: Option<u16>,
    pub(crate) urgent: u16,
    pub(crate) options: Vec<u8>,
    pub(crate) mapping: Option<(u32, u32, u64)>,
    pub(crate) extras: Extras,
}

/// What stands behind the options.
#[derive(Default, Debug)]
pub(crate) struct Extras {
    /// `gso N`: longer than one segment, which carries N bytes.
    gso: Option<u16>,
    /// `partial`, `verified`: state of the checksum; else it is complete.
    checksum: ChecksumState,
    /// `bad`: the checksum is wrong.
    bad: bool,
    /// `bytes N`: the payload is that of the stream from N on.
    bytes: Option<u32>,
    /// `ect0`, `ect1`, `ce`, or `tc N`: the traffic class.
    traffic_class: u8,
    /// `ttl N`.
    ttl: u8,
}

/// Reads a line of a packet from `leg`.
pub(crate) fn parse(net: &Net, leg: Leg, line: &str) -> Line {
    let bases = net.bases(leg, true);
    let (head, options, tail) = split(line);
    let mut words = head.split_whitespace();
    let flags = parse_flags(words.next().expect("flags"));
    let (seq, len) = parse_range(words.next().expect("range"), bases.seq);
    let mut parsed = Line {
        flags,
        seq,
        len,
        ack: 0,
        window: None,
        urgent: 0,
        options: Vec::new(),
        mapping: None,
        extras: parse_extras(tail),
    };
    while let Some(word) = words.next() {
        let value = words
            .next()
            .unwrap_or_else(|| panic!("value of {word} in {line:?}"));
        match word {
            "ack" => parsed.ack = bases.ack.wrapping_add(relative(value)),
            "win" => parsed.window = Some(value.parse().expect("window")),
            "urg" => parsed.urgent = value.parse().expect("urgent pointer"),
            _ => panic!("unknown word {word:?} in {line:?}"),
        }
    }
    for option in options.split(',').filter(|option| !option.is_empty()) {
        parse_option(net, leg, bases, option, &mut parsed);
    }
    while !parsed.options.len().is_multiple_of(4) {
        parsed.options.push(1);
    }
    assert!(
        parsed.options.len() <= 40,
        "options take {} bytes: {line:?}",
        parsed.options.len()
    );
    parsed
}

fn split(line: &str) -> (&str, &str, &str) {
    let Some((head, rest)) = line.split_once('<') else {
        // Without options, extras begin at the first word that is none of the head's.
        let marks = [
            "gso", "partial", "verified", "bad", "bytes", "ect0", "ect1", "ce", "tc", "ttl",
        ];
        let at = marks
            .iter()
            .filter_map(|mark| line.find(&format!(" {mark}")))
            .min();
        let (head, tail) = line.split_at(at.unwrap_or(line.len()));
        return (head, "", tail);
    };
    let (options, tail) = rest.split_once('>').expect("> behind the options");
    (head, options, tail)
}

fn parse_flags(text: &str) -> TcpFlags {
    text.chars().fold(TcpFlags::default(), |flags, letter| {
        flags.with(match letter {
            'F' => TcpFlags::FIN,
            'S' => TcpFlags::SYN,
            'R' => TcpFlags::RST,
            'P' => TcpFlags::PSH,
            '.' => TcpFlags::ACK,
            'U' => TcpFlags::URG,
            'E' => TcpFlags::ECE,
            'W' => TcpFlags::CWR,
            'e' => TcpFlags::AE,
            '-' => TcpFlags::default(),
            _ => panic!("unknown flag {letter:?}"),
        })
    })
}

/// `a:b(len)`.
fn parse_range(text: &str, base: u32) -> (u32, usize) {
    let (start, rest) = text.split_once(':').expect("a:b(len)");
    let (end, len) = rest
        .trim_end_matches(')')
        .split_once('(')
        .expect("a:b(len)");
    let (start, end) = (relative(start), relative(end));
    let len: u32 = len.parse().expect("length");
    assert_eq!(end.wrapping_sub(start), len, "range {text}");
    (base.wrapping_add(start), len as usize)
}

/// A relative number; below 0 it is before the initial one.
#[expect(
    clippy::cast_sign_loss,
    clippy::cast_possible_truncation,
    reason = "modular"
)]
fn relative(text: &str) -> u32 {
    text.parse::<i64>()
        .unwrap_or_else(|_| panic!("number {text:?}")) as u32
}

#[expect(
    clippy::cast_sign_loss,
    clippy::cast_possible_truncation,
    reason = "modular"
)]
fn relative_long(text: &str) -> u64 {
    text.parse::<i128>()
        .unwrap_or_else(|_| panic!("number {text:?}")) as u64
}

fn parse_extras(text: &str) -> Extras {
    let mut extras = Extras {
        ttl: 60,
        ..Extras::default()
    };
    let mut words = text.split_whitespace();
    while let Some(word) = words.next() {
        let mut number = || {
            words
                .next()
                .expect("number")
                .parse::<u32>()
                .expect("number")
        };
        match word {
            "gso" => extras.gso = Some(number().try_into().expect("16 bits")),
            "partial" => extras.checksum = ChecksumState::Partial,
            "verified" => extras.checksum = ChecksumState::Verified,
            "bad" => extras.bad = true,
            "bytes" => extras.bytes = Some(number()),
            "ect0" => extras.traffic_class = 2,
            "ect1" => extras.traffic_class = 1,
            "ce" => extras.traffic_class = 3,
            "tc" => extras.traffic_class = number().try_into().expect("8 bits"),
            "ttl" => extras.ttl = number().try_into().expect("8 bits"),
            _ => panic!("unknown word {word:?}"),
        }
    }
    extras
}

/// One option of an incoming packet:
///
/// - `mss N`, `sackok`, `ws N`, `ts VAL ECR`, `sack A:B C:D`, `fo HEX`, `raw HEX` (any bytes)
/// - `capable [v N] [flags HEX] [data LEN] [csum HEX] [badkey] [key-only]`: the length follows from the flags
/// - `join [id N] [b] [token HEX] [bad]`: likewise
/// - `dss [ack D | ack32 D] [map A:B@SSN | map32 A:B@SSN] [fin | fin D] [infinite D@SSN] [csum HEX]`
/// - `add-addr id N ADDR[:PORT] [echo]`, `rm-addr N M`, `prio [b]`, `fail D`, `fastclose [bad]`,
///   `rst reason N [transient]`; an `add-addr` with `bad` has a wrong HMAC
fn parse_option(net: &Net, leg: Leg, bases: Bases, text: &str, line: &mut Line) {
    let mut words = text.split_whitespace();
    let name = words.next().expect("option");
    let rest: Vec<&str> = words.collect();
    let number = |i: usize| relative(rest.get(i).unwrap_or_else(|| panic!("number in {text:?}")));
    let mut buf = [0; 64];
    let option = match name {
        "mss" => TcpOption::Mss(number(0).try_into().expect("16 bits")),
        "sackok" => TcpOption::SackPermitted,
        "ws" => TcpOption::WindowScale(number(0).try_into().expect("8 bits")),
        "ts" => TcpOption::Timestamps(Timestamps {
            val: number(0),
            ecr: number(1),
        }),
        "sack" => {
            let mut blocks = SackBlocks::new();
            for block in &rest {
                let (left, right) = block.split_once(':').expect("a:b");
                let at = |text| bases.ack.wrapping_add(relative(text));
                assert!(blocks.push(at(left), at(right)), "too many blocks");
            }
            TcpOption::Sack(blocks)
        }
        "fo" => {
            line.options.extend_from_slice(&[34, 2]);
            return;
        }
        "raw" => {
            let hex = rest.concat();
            let bytes = (0..hex.len())
                .step_by(2)
                .map(|i| u8::from_str_radix(&hex[i..i + 2], 16));
            line.options.extend(bytes.map(|byte| byte.expect("hex")));
            return;
        }
        "capable" => parse_capable(net, leg, &rest, line),
        "join" => parse_join(net, leg, &rest, line.flags),
        "dss" => {
            let dss = parse_dss(bases, &rest);
            if let Some(mapping) = dss.mapping {
                let len = u32::from(mapping.len).saturating_sub(u32::from(dss.data_fin));
                let dsn = match mapping.dsn {
                    DataNumber::Long(dsn) => dsn.wrapping_sub(bases.map),
                    DataNumber::Short(dsn) => u64::from(dsn.wrapping_sub(low(bases.map))),
                };
                line.mapping = Some((mapping.ssn, len, dsn));
            }
            mptcp(MptcpOption::Dss(dss))
        }
        "add-addr" => mptcp(MptcpOption::AddAddr(parse_add_addr(net, leg, &rest))),
        "rm-addr" => {
            let ids: Vec<u8> = rest.iter().map(|id| id.parse().expect("id")).collect();
            mptcp(MptcpOption::RemoveAddr(RemoveAddr::new(&ids)))
        }
        "prio" => mptcp(MptcpOption::Prio(MpPrio {
            backup: rest.contains(&"b"),
        })),
        "fail" => {
            let dsn = bases.map.wrapping_add(relative_long(rest[0]));
            mptcp(MptcpOption::Fail(MpFail { dsn }))
        }
        "fastclose" => {
            let key = net.connection(leg).flexcp_key.unwrap_or(0);
            let key = key ^ u64::from(rest.contains(&"bad"));
            mptcp(MptcpOption::FastClose(MpFastClose { key }))
        }
        "rst" => {
            let (transient, reason) = (
                rest.contains(&"transient"),
                rest[1].parse().expect("reason"),
            );
            mptcp(MptcpOption::Reset(MpTcpRst { transient, reason }))
        }
        _ => panic!("unknown option {text:?}"),
    };
    let len = option.emit(&mut buf);
    pad_before(&option, len, &mut line.options);
    line.options.extend_from_slice(&buf[..len]);
}

/// NOPs before an option, as Linux has them.
fn pad_before(option: &TcpOption<'_>, len: usize, options: &mut Vec<u8>) {
    const NOP: u8 = 1;
    let counted = match option {
        TcpOption::Timestamps(_) | TcpOption::Sack(_) | TcpOption::WindowScale(_) => len,
        TcpOption::Mptcp(_) => 0,
        _ => return,
    };
    while !(options.len() + counted).is_multiple_of(4) {
        options.push(NOP);
    }
}

const fn mptcp(option: MptcpOption) -> TcpOption<'static> {
    TcpOption::Mptcp(option)
}

fn parse_capable(net: &Net, leg: Leg, rest: &[&str], line: &mut Line) -> TcpOption<'static> {
    let connection = net.connection(leg);
    let after = |word: &str| {
        rest.iter()
            .position(|w| *w == word)
            .and_then(|i| rest.get(i + 1))
    };
    let hex = |text: &&str| u16::from_str_radix(text, 16).expect("hex");
    let sender = if matches!(leg, Leg::Client(_)) {
        connection.client_key
    } else {
        SERVER_KEY
    };
    let receiver = connection.flexcp_key.unwrap_or(0) ^ u64::from(rest.contains(&"badkey"));
    let keys = if rest.contains(&"key-only") {
        CapableKeys::SynAck { sender }
    } else if !line.flags.contains(TcpFlags::SYN) {
        match after("data") {
            Some(len) => {
                let data_len: u16 = len.parse().expect("length");
                line.mapping = Some((1, u32::from(data_len), 1));
                CapableKeys::AckData {
                    sender,
                    receiver,
                    data_len,
                    checksum: after("csum").map(hex),
                }
            }
            None => CapableKeys::Ack { sender, receiver },
        }
    } else if line.flags.contains(TcpFlags::ACK) {
        CapableKeys::SynAck { sender }
    } else {
        CapableKeys::Syn
    };
    let flags = after("flags").map_or(CapableFlags::HMAC_SHA256.0, |text| {
        u8::from_str_radix(text, 16).expect("hex")
    });
    let version = after("v").map_or(1, |text| text.parse().expect("version"));
    mptcp(MptcpOption::Capable(MpCapable {
        version,
        flags: CapableFlags(flags),
        keys,
    }))
}

fn parse_join(net: &Net, leg: Leg, rest: &[&str], flags: TcpFlags) -> TcpOption<'static> {
    let Leg::Client(id) = leg else {
        panic!("a server does not join")
    };
    let (connection, flow) = (net.connection(leg), net.flow(id));
    let after = |word: &str| {
        rest.iter()
            .position(|w| *w == word)
            .and_then(|i| rest.get(i + 1))
    };
    let flexcp_key = connection.flexcp_key.unwrap_or(0);
    let join = if flags.contains(TcpFlags::SYN) {
        let token = after("token").map(|text| u32::from_str_radix(text, 16).expect("hex"));
        let nonce = after("nonce").map(|text| u32::from_str_radix(text, 16).expect("hex"));
        MpJoin::Syn {
            backup: rest.contains(&"b"),
            address_id: after("id").map_or(flow.id, |text| text.parse().expect("id")),
            token: token.unwrap_or_else(|| keys::token(flexcp_key)),
            nonce: nonce.unwrap_or(flow.nonce_client),
        }
    } else {
        let nonces = (flow.nonce_client, flow.nonce_flexcp);
        let mut hmac = keys::join_ack((connection.client_key, flexcp_key), nonces);
        hmac[19] ^= u8::from(rest.contains(&"bad"));
        MpJoin::Ack { hmac }
    };
    mptcp(MptcpOption::Join(join))
}

fn parse_dss(bases: Bases, rest: &[&str]) -> Dss {
    let mut dss = Dss {
        data_ack: None,
        mapping: None,
        data_fin: false,
    };
    let mut checksum = None;
    let mut words = rest.iter().peekable();
    while let Some(&word) = words.next() {
        let mut next = || *words.next().unwrap_or_else(|| panic!("value of {word}"));
        match word {
            "ack" => {
                let number = bases.data_ack.wrapping_add(relative_long(next()));
                dss.data_ack = Some(DataNumber::Long(number));
            }
            "ack32" => {
                let number = bases.data_ack.wrapping_add(relative_long(next()));
                dss.data_ack = Some(DataNumber::Short(low(number)));
            }
            "map" | "map32" => {
                let (range, ssn) = next().split_once('@').expect("a:b@ssn");
                let (start, end) = range.split_once(':').expect("a:b@ssn");
                let (start, end) = (relative_long(start), relative_long(end));
                let dsn = bases.map.wrapping_add(start);
                dss.mapping = Some(DssMapping {
                    dsn: if word == "map" {
                        DataNumber::Long(dsn)
                    } else {
                        DataNumber::Short(low(dsn))
                    },
                    ssn: relative(ssn),
                    len: end.wrapping_sub(start).try_into().expect("length"),
                    checksum: None,
                });
            }
            "infinite" => {
                let (dsn, ssn) = next().split_once('@').expect("dsn@ssn");
                let dsn = DataNumber::Long(bases.map.wrapping_add(relative_long(dsn)));
                dss.mapping = Some(DssMapping {
                    dsn,
                    ssn: relative(ssn),
                    len: 0,
                    checksum: None,
                });
            }
            "fin" | "fin32" => {
                dss.data_fin = true;
                if let Some(mapping) = &mut dss.mapping {
                    mapping.len += 1;
                } else {
                    let dsn = bases.map.wrapping_add(relative_long(next()));
                    let dsn = if word == "fin" {
                        DataNumber::Long(dsn)
                    } else {
                        DataNumber::Short(low(dsn))
                    };
                    dss.mapping = Some(DssMapping {
                        dsn,
                        ssn: 0,
                        len: 1,
                        checksum: None,
                    });
                }
            }
            "csum" => checksum = Some(u16::from_str_radix(next(), 16).expect("hex")),
            _ => panic!("unknown word {word:?} in a dss"),
        }
    }
    if let Some(mapping) = &mut dss.mapping {
        mapping.checksum = checksum;
    }
    dss
}

fn parse_add_addr(net: &Net, leg: Leg, rest: &[&str]) -> AddAddr {
    let after = |word: &str| rest.iter().position(|w| *w == word).map(|i| rest[i + 1]);
    let id: u8 = after("id").expect("id").parse().expect("id");
    let text = rest
        .iter()
        .find(|w| w.contains('.') || w.contains(':'))
        .expect("address");
    let (addr, port) = match text.parse::<IpAddr>() {
        Ok(addr) => (addr, None),
        Err(_) => {
            let addr: SocketAddr = text.parse().expect("address and port");
            (addr.ip(), Some(addr.port()))
        }
    };
    let echo = rest.contains(&"echo");
    let connection = net.connection(leg);
    let ours = connection.flexcp_key.unwrap_or(0);
    let hmac = keys::add_addr((connection.client_key, ours), id, addr, port);
    let hmac = hmac ^ u64::from(rest.contains(&"bad"));
    AddAddr {
        echo,
        id,
        addr,
        port,
        hmac: (!echo).then_some(hmac),
    }
}

/// Every sender has its own.
fn flow_label(leg: Leg, src: SocketAddr) -> u32 {
    match leg {
        _ if src.is_ipv4() => 0,
        Leg::Client(id) => 0xa_bc00 + u32::try_from(id).expect("small"),
        Leg::Server { .. } => 0xc_de00,
    }
}

/// The packet as bytes, and what a carrier knows of it.
pub(crate) fn build(net: &Net, leg: Leg, line: &Line) -> (Vec<u8>, Offload) {
    let (src, dst) = net.ends_from(leg);
    let bases = net.bases(leg, true);
    let at = line.seq.wrapping_sub(bases.seq);
    let payload = match leg {
        Leg::Client(id) => {
            let flow = net.flow(id);
            let syn = u32::from(line.flags.contains(TcpFlags::SYN));
            let offset = line
                .extras
                .bytes
                .unwrap_or_else(|| flow.stream_offset(at.wrapping_add(syn)));
            match line.extras.bytes {
                Some(_) => stream(Direction::Up, offset, line.len),
                // Byte by byte: one packet may run over several mappings.
                None => (0..line.len)
                    .flat_map(|i| {
                        let ssn = at
                            .wrapping_add(syn)
                            .wrapping_add(u32::try_from(i).expect("short"));
                        stream(Direction::Up, flow.stream_offset(ssn), 1)
                    })
                    .collect(),
            }
        }
        Leg::Server { .. } => {
            let syn = u32::from(line.flags.contains(TcpFlags::SYN));
            let offset = line.extras.bytes.unwrap_or_else(|| at.wrapping_add(syn));
            stream(Direction::Down, offset, line.len)
        }
    };
    let mut packet = Packet::new(src, dst)
        .flags(line.flags)
        .numbers(line.seq, line.ack)
        .with_payload(payload);
    packet.ip = IpHeader {
        traffic_class: line.extras.traffic_class,
        ttl: line.extras.ttl,
        identification: if src.is_ipv4() { 0x1234 } else { 0 },
        flow_label: flow_label(leg, src),
        ..packet.ip
    };
    packet.tcp.window = line.window.expect("window");
    packet.tcp.urgent = line.urgent;
    packet.options.clone_from(&line.options);
    let mut checksum = line.extras.checksum;
    if line.extras.gso.is_some() && checksum == ChecksumState::Complete {
        checksum = ChecksumState::Partial;
    }
    let mut bytes = packet.bytes_in(checksum);
    if line.extras.bad {
        let place = packet.ip.emitted_len() + 16;
        let field = u16::from_be_bytes([bytes[place], bytes[place + 1]]);
        bytes[place..place + 2].copy_from_slice(&field.wrapping_add(0x101).to_be_bytes());
    }
    let kind = if src.is_ipv6() {
        GsoKind::TcpV6
    } else {
        GsoKind::TcpV4
    };
    let ecn = line.flags.contains(TcpFlags::CWR);
    let gso = line.extras.gso.map(|size| Gso { kind, size, ecn });
    (bytes, Offload { checksum, gso })
}

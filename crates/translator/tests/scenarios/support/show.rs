//! FlexCP's packets as lines, in the notation of `notation`.

use std::fmt::Write as _;
use std::net::SocketAddr;

use flexcp_testkit::{Options, keys};
use flexcp_wire::{
    AddAddr, CapableFlags, CapableKeys, DataNumber, Dss, IpHeader, MpCapable, MpJoin, MptcpOption,
    Offload, TcpFlags, TcpHeader, TcpOption, TcpOptions, Timestamps,
};

use super::net::{Bases, Leg, Net, SERVER_KEY, low};

/// A packet that FlexCP sends, taken apart.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) leg: Leg,
    pub(crate) tcp: TcpHeader,
    pub(crate) options: Vec<u8>,
    pub(crate) payload: Vec<u8>,
    pub(crate) ip: IpHeader,
}

impl Seen {
    pub(crate) fn dss(&self) -> Option<Dss> {
        self.view().dss
    }

    pub(crate) fn timestamps(&self) -> Option<Timestamps> {
        self.view().timestamps
    }

    fn view(&self) -> Options {
        Options::read(&self.options)
    }
}

/// The packet's line, behind the name of the leg it goes to.
pub(crate) fn show(net: &mut Net, seen: &Seen, offload: Offload, filler: bool) -> String {
    let tcp = &seen.tcp;
    learn(net, seen);
    let bases = net.bases(seen.leg, false);
    let seq = tcp.seq.wrapping_sub(bases.seq);
    let end = seq.wrapping_add(u32::try_from(seen.payload.len()).expect("short"));
    let mut text = format!(
        "{} {} {}:{}({})",
        net.name(seen.leg),
        tcp.flags,
        near(seq),
        near(end),
        seen.payload.len()
    );
    let mut put = |part: String| write!(text, " {part}").expect("memory");
    if tcp.flags.contains(TcpFlags::ACK) {
        put(format!("ack {}", near(tcp.ack.wrapping_sub(bases.ack))));
    }
    put(format!("win {}", tcp.window));
    if tcp.urgent != 0 {
        put(format!("urg {}", tcp.urgent));
    }
    let options: Vec<String> = TcpOptions::new(&seen.options)
        .map(|option| match option {
            Ok(option) => show_option(net, seen, bases, option),
            Err(error) => format!("[{error}]"),
        })
        .collect();
    if !options.is_empty() {
        put(format!("<{}>", options.join(",")));
    }
    if let Some(gso) = offload.gso {
        put(format!(
            "gso {}{}",
            gso.size,
            if gso.ecn { " ecn" } else { "" }
        ));
    }
    match seen.ip.traffic_class {
        0 => {}
        1 => put("ect1".into()),
        2 => put("ect0".into()),
        3 => put("ce".into()),
        other => put(format!("tc {other}")),
    }
    if filler {
        put("zeros".into());
    }
    text
}

/// What a packet teaches: FlexCP's key, its numbers and nonces.
fn learn(net: &mut Net, seen: &Seen) {
    let Leg::Client(id) = seen.leg else { return };
    if !seen.tcp.flags.contains(TcpFlags::SYN | TcpFlags::ACK) {
        return;
    }
    let view = seen.view();
    if let Some(key) = view.key().filter(|key| *key != SERVER_KEY) {
        let known = &mut net.connection_mut(seen.leg).flexcp_key;
        known.get_or_insert(key);
    }
    if let Some(MpJoin::SynAck { nonce, .. }) = view.join {
        let flow = net.flow_mut(id);
        flow.isn_flexcp = seen.tcp.seq;
        flow.nonce_flexcp = nonce;
    }
}

/// Options of outgoing packets, as in `notation`. What should follow from a secret is checked, and
/// marked when it is wrong.
fn show_option(net: &Net, seen: &Seen, bases: Bases, option: TcpOption<'_>) -> String {
    let right = |is_right: bool| if is_right { "" } else { " WRONG" };
    let connection = net.connection(seen.leg);
    let flexcp_key = connection.flexcp_key.unwrap_or(0);
    let option = match option {
        TcpOption::Mss(mss) => return format!("mss {mss}"),
        TcpOption::SackPermitted => return "sackok".into(),
        TcpOption::WindowScale(shift) => return format!("ws {shift}"),
        TcpOption::Timestamps(ts) => return format!("ts {} {}", ts.val, ts.ecr),
        TcpOption::Sack(blocks) => {
            let block = |&(left, right): &(u32, u32)| {
                let at = |number: u32| near(number.wrapping_sub(bases.ack));
                format!(" {}:{}", at(left), at(right))
            };
            return format!("sack{}", blocks.iter().map(block).collect::<String>());
        }
        TcpOption::FastOpen(cookie) => return format!("fo {cookie:02x?}"),
        TcpOption::Unknown { kind, data } => return format!("opt-{kind} {data:02x?}"),
        TcpOption::Mptcp(option) => option,
    };
    match option {
        MptcpOption::Capable(MpCapable {
            keys: CapableKeys::SynAck { sender: SERVER_KEY },
            ..
        }) => "capable of the server".into(),
        MptcpOption::Capable(capable) => {
            let wrong = match capable.keys {
                CapableKeys::SynAck { sender } => sender != flexcp_key,
                CapableKeys::Syn => false,
                _ => true,
            } || capable.version != 1
                || capable.flags != CapableFlags::HMAC_SHA256;
            format!("capable{}", right(!wrong))
        }
        MptcpOption::Join(MpJoin::SynAck {
            backup,
            address_id,
            hmac,
            nonce,
        }) => {
            let Leg::Client(id) = seen.leg else {
                return "join WRONG".into();
            };
            let flow = net.flow(id);
            let keys = (flexcp_key, connection.client_key);
            let is_right = hmac == keys::join_syn_ack(keys, (nonce, flow.nonce_client));
            format!(
                "join id {address_id}{}{}",
                if backup { " b" } else { "" },
                right(is_right)
            )
        }
        MptcpOption::Join(_) => "join WRONG".into(),
        MptcpOption::Dss(dss) => show_dss(bases, &dss),
        MptcpOption::AddAddr(add) => show_add_addr(flexcp_key, connection.client_key, &add),
        MptcpOption::RemoveAddr(remove) => format!("rm-addr {:?}", remove.ids()),
        MptcpOption::Prio(prio) => format!("prio{}", if prio.backup { " b" } else { "" }),
        MptcpOption::Fail(fail) => format!("fail {}", near_long(fail.dsn.wrapping_sub(bases.map))),
        MptcpOption::FastClose(close) => {
            format!("fastclose{}", right(close.key == connection.client_key))
        }
        MptcpOption::Reset(reset) => {
            format!(
                "rst reason {}{}",
                reset.reason,
                if reset.transient { " transient" } else { "" }
            )
        }
        other => format!("{other:?}"),
    }
}

fn show_dss(bases: Bases, dss: &Dss) -> String {
    let mut text = "dss".to_string();
    let number = |number: DataNumber, base: u64| match number {
        DataNumber::Long(long) => (near_long(long.wrapping_sub(base)), ""),
        DataNumber::Short(short) => (near(short.wrapping_sub(low(base))), "32"),
    };
    if let Some(ack) = dss.data_ack {
        let (ack, width) = number(ack, bases.data_ack);
        write!(text, " ack{width} {ack}").expect("memory");
    }
    if let Some(mapping) = dss.mapping {
        let (start, width) = number(mapping.dsn, bases.map);
        let len = i128::from(mapping.len) - i128::from(dss.data_fin);
        let end = start.parse::<i128>().expect("number") + len;
        if dss.data_fin && len == 0 && mapping.ssn == 0 {
            write!(text, " fin{width} {start}").expect("memory");
        } else if mapping.len == 0 {
            write!(text, " infinite {start}@{}", mapping.ssn).expect("memory");
        } else {
            write!(text, " map{width} {start}:{end}@{}", mapping.ssn).expect("memory");
            if dss.data_fin {
                text.push_str(" fin");
            }
        }
        if let Some(checksum) = mapping.checksum {
            write!(text, " csum {checksum:04x}").expect("memory");
        }
    }
    text
}

fn show_add_addr(sender: u64, receiver: u64, add: &AddAddr) -> String {
    let hmac = keys::add_addr((sender, receiver), add.id, add.addr, add.port);
    let is_right = add.hmac.is_none_or(|said| said == hmac);
    let addr = match add.port {
        Some(port) => SocketAddr::new(add.addr, port).to_string(),
        None => add.addr.to_string(),
    };
    let echo = if add.echo { " echo" } else { "" };
    format!(
        "add-addr id {} {addr}{echo}{}",
        add.id,
        if is_right { "" } else { " WRONG" }
    )
}

/// A relative number as it is said: a little below 0 as negative.
fn near(number: u32) -> String {
    if number > 0xfff0_0000 {
        number.cast_signed().to_string()
    } else {
        number.to_string()
    }
}

fn near_long(number: u64) -> String {
    if number > u64::MAX - 0xf_ffff {
        number.cast_signed().to_string()
    } else {
        number.to_string()
    }
}

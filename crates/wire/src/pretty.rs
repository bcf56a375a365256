//! Packets and options as text, in the notation of tcpdump and, for MPTCP, packetdrill.

use core::fmt::{self, Display, Formatter, Write};

use crate::{
    AddAddr, CapableKeys, DataNumber, Dss, IpHeader, MpCapable, MpJoin, MptcpOption, ParseError,
    RemoveAddr, TcpFlags, TcpHeader, TcpOption, TcpOptions, protocol,
};

/// One IP packet as a line of text, for logs and failing tests:
///
/// `10.1.1.2.40000 > 10.9.0.2.80: S 100:100(0) win 65535 <mss 1460,sackOK,TS 1 0,wscale 7>`
///
/// Numbers are absolute, as they stand in the packet; the range ends behind the payload (SYN and
/// FIN are not counted). What can't be parsed shows as `[why]`.
#[derive(Clone, Copy, Debug)]
pub struct PacketLine<'a>(pub &'a [u8]);

impl Display for PacketLine<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let ip = match IpHeader::parse(self.0) {
            Ok(ip) => ip,
            Err(error) => return write!(f, "[{error}] {} bytes", self.0.len()),
        };
        let upper = self.0.get(ip.header_len..ip.total_len).unwrap_or_default();
        if ip.protocol != protocol::TCP {
            return write!(
                f,
                "{} > {}: protocol {} ({})",
                ip.src,
                ip.dst,
                ip.protocol,
                upper.len()
            );
        }
        match TcpHeader::parse(upper) {
            Ok((tcp, options)) => fmt_tcp(f, &ip, &tcp, options, upper.len() - tcp.header_len),
            Err(error) => write!(
                f,
                "{} > {}: [{error}] {} bytes",
                ip.src,
                ip.dst,
                upper.len()
            ),
        }
    }
}

fn fmt_tcp(
    f: &mut Formatter<'_>,
    ip: &IpHeader,
    tcp: &TcpHeader,
    options: &[u8],
    payload_len: usize,
) -> fmt::Result {
    let (src, dst) = ((ip.src, tcp.src_port), (ip.dst, tcp.dst_port));
    #[expect(
        clippy::cast_possible_truncation,
        reason = "an IP payload is shorter than 2^16"
    )]
    let end = tcp.seq.wrapping_add(payload_len as u32);
    write!(
        f,
        "{}.{} > {}.{}: {} ",
        src.0, src.1, dst.0, dst.1, tcp.flags
    )?;
    write!(f, "{}:{end}({payload_len})", tcp.seq)?;
    if tcp.flags.contains(TcpFlags::ACK) {
        write!(f, " ack {}", tcp.ack)?;
    }
    write!(f, " win {}", tcp.window)?;
    if tcp.flags.contains(TcpFlags::URG) {
        write!(f, " urg {}", tcp.urgent)?;
    }
    let mut separator = " <";
    for option in TcpOptions::new(options) {
        f.write_str(separator)?;
        fmt_option(f, option)?;
        separator = ",";
    }
    if separator == "," {
        f.write_char('>')
    } else {
        Ok(())
    }
}

fn fmt_option(f: &mut Formatter<'_>, option: Result<TcpOption<'_>, ParseError>) -> fmt::Result {
    match option {
        Ok(option) => Display::fmt(&option, f),
        Err(error) => write!(f, "[{error}]"),
    }
}

impl Display for TcpOption<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mss(mss) => write!(f, "mss {mss}"),
            Self::WindowScale(shift) => write!(f, "wscale {shift}"),
            Self::SackPermitted => f.write_str("sackOK"),
            Self::Sack(blocks) => {
                f.write_str("sack")?;
                blocks
                    .iter()
                    .try_for_each(|(left, right)| write!(f, " {left}:{right}"))
            }
            Self::Timestamps(timestamps) => write!(f, "TS {} {}", timestamps.val, timestamps.ecr),
            Self::FastOpen(cookie) => write!(f, "FO {}", Hex(cookie)),
            Self::Mptcp(option) => Display::fmt(option, f),
            Self::Unknown { kind, data } => write!(f, "opt-{kind} {}", Hex(data)),
        }
    }
}

impl Display for MptcpOption {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Capable(option) => fmt_capable(f, option),
            Self::Join(option) => fmt_join(f, option),
            Self::Dss(option) => fmt_dss(f, option),
            Self::AddAddr(option) => fmt_add_addr(f, option),
            Self::RemoveAddr(option) => fmt_remove_addr(f, option),
            Self::Prio(option) => {
                f.write_str("mp_prio")?;
                fmt_backup(f, option.backup)
            }
            Self::Fail(option) => write!(f, "mp_fail dsn8={}", option.dsn),
            Self::FastClose(option) => write!(f, "mp_fastclose key={:016x}", option.key),
            Self::Reset(option) => {
                let transient = if option.transient { " transient" } else { "" };
                write!(f, "mp_tcprst reason={}{transient}", option.reason)
            }
            Self::Experimental(option) => {
                write!(
                    f,
                    "mp_experimental flags={:#x} {}",
                    option.flags,
                    Hex(&option.data)
                )
            }
            Self::Unknown(option) => write!(
                f,
                "mptcp-{:#x} flags={:#x} {}",
                option.subtype,
                option.flags,
                Hex(&option.data)
            ),
        }
    }
}

fn fmt_capable(f: &mut Formatter<'_>, option: &MpCapable) -> fmt::Result {
    write!(f, "mpcapable v{} flags [{}]", option.version, option.flags)?;
    match option.keys {
        CapableKeys::Syn => f.write_str(" nokey"),
        CapableKeys::SynAck { sender } => write!(f, " key={sender:016x}"),
        CapableKeys::Ack { sender, receiver } => {
            write!(f, " key={sender:016x} peer={receiver:016x}")
        }
        CapableKeys::AckData {
            sender,
            receiver,
            data_len,
            checksum,
        } => {
            write!(f, " key={sender:016x} peer={receiver:016x} dll={data_len}")?;
            fmt_checksum(f, checksum)
        }
    }
}

fn fmt_join(f: &mut Formatter<'_>, option: &MpJoin) -> fmt::Result {
    match option {
        MpJoin::Syn {
            backup,
            address_id,
            token,
            nonce,
        } => {
            f.write_str("mp_join_syn")?;
            fmt_backup(f, *backup)?;
            write!(
                f,
                " address_id={address_id} token={token:08x} rand={nonce:08x}"
            )
        }
        MpJoin::SynAck {
            backup,
            address_id,
            hmac,
            nonce,
        } => {
            f.write_str("mp_join_syn_ack")?;
            fmt_backup(f, *backup)?;
            write!(
                f,
                " address_id={address_id} sender_hmac={hmac:016x} rand={nonce:08x}"
            )
        }
        MpJoin::Ack { hmac } => write!(f, "mp_join_ack sender_hmac={}", Hex(hmac)),
    }
}

fn fmt_dss(f: &mut Formatter<'_>, option: &Dss) -> fmt::Result {
    f.write_str("dss")?;
    match option.data_ack {
        Some(DataNumber::Short(number)) => write!(f, " dack4={number}")?,
        Some(DataNumber::Long(number)) => write!(f, " dack8={number}")?,
        None => {}
    }
    if let Some(mapping) = option.mapping {
        match mapping.dsn {
            DataNumber::Short(number) => write!(f, " dsn4={number}")?,
            DataNumber::Long(number) => write!(f, " dsn8={number}")?,
        }
        write!(f, " ssn={} dll={}", mapping.ssn, mapping.len)?;
        fmt_checksum(f, mapping.checksum)?;
    }
    if option.data_fin {
        f.write_str(" FIN")
    } else {
        Ok(())
    }
}

fn fmt_add_addr(f: &mut Formatter<'_>, option: &AddAddr) -> fmt::Result {
    f.write_str(if option.echo {
        "add_addr echo"
    } else {
        "add_addr"
    })?;
    write!(f, " address_id={} {}", option.id, option.addr)?;
    if let Some(port) = option.port {
        write!(f, " port={port}")?;
    }
    option
        .hmac
        .map_or(Ok(()), |hmac| write!(f, " hmac={hmac:016x}"))
}

fn fmt_remove_addr(f: &mut Formatter<'_>, option: &RemoveAddr) -> fmt::Result {
    write!(f, "remove_addr address_id={:?}", option.ids())
}

fn fmt_checksum(f: &mut Formatter<'_>, checksum: Option<u16>) -> fmt::Result {
    match checksum {
        Some(checksum) => write!(f, " cs={checksum:04x}"),
        None => f.write_str(" nocs"),
    }
}

fn fmt_backup(f: &mut Formatter<'_>, backup: bool) -> fmt::Result {
    if backup {
        f.write_str(" backup")
    } else {
        Ok(())
    }
}

/// Bytes as hexadecimal digits without separators.
struct Hex<'a>(&'a [u8]);

impl Display for Hex<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

//! What a packet says, whatever the order of its options and the state of its checksum.

use std::net::SocketAddr;

use flexcp_wire::{
    Dss, IpHeader, MptcpOption, SackBlocks, TcpFlags, TcpHeader, TcpOption, TcpOptions, Timestamps,
};

/// A packet that FlexCP sends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Headers {
    from: SocketAddr,
    to: SocketAddr,
    seq: u32,
    ack: u32,
    flags: TcpFlags,
    window: u16,
    flow_label: u32,
    timestamps: Option<Timestamps>,
    pub(crate) dss: Option<Dss>,
    sack: SackBlocks,
    /// Other options, and those that cannot be read.
    others: Vec<String>,
    payload: Vec<u8>,
}

/// What it says; `None`: it is not TCP.
pub(crate) fn headers(bytes: &[u8]) -> Option<Headers> {
    let ip = IpHeader::parse(bytes).ok()?;
    let segment = bytes.get(ip.header_len..ip.total_len)?;
    let (tcp, options) = TcpHeader::parse(segment).ok()?;
    let mut headers = Headers {
        from: (ip.src, tcp.src_port).into(),
        to: (ip.dst, tcp.dst_port).into(),
        seq: tcp.seq,
        ack: tcp.ack,
        flags: tcp.flags,
        window: tcp.window,
        flow_label: ip.flow_label,
        timestamps: None,
        dss: None,
        sack: SackBlocks::default(),
        others: Vec::new(),
        payload: segment[tcp.header_len..].to_vec(),
    };
    for option in TcpOptions::new(options) {
        match option {
            Ok(TcpOption::Timestamps(found)) if headers.timestamps.is_none() => {
                headers.timestamps = Some(found);
            }
            Ok(TcpOption::Mptcp(MptcpOption::Dss(found))) if headers.dss.is_none() => {
                headers.dss = Some(found);
            }
            Ok(TcpOption::Sack(found)) if headers.sack.is_empty() => headers.sack = found,
            other => headers.others.push(format!("{other:?}")),
        }
    }
    Some(headers)
}

//! Packets that come out, as the ends see them. What must hold for them the checker of the rules of the wire
//! says (`flexcp-invariants`); it knows TCP only, so what else comes out is looked at here.

use std::net::SocketAddr;

use flexcp_wire::{
    Dss, IcmpError, IpHeader, MpCapable, MpJoin, MptcpOption, SackBlocks, Sum, TcpHeader,
    TcpOption, TcpOptions, Timestamps, protocol,
};

use crate::world::Party;

/// Timer calls until a connection must be over.
pub(crate) const MAX_TIMEOUTS: usize = 10_000;

/// A packet of FlexCP's.
#[derive(Clone, Debug)]
pub(crate) struct Output {
    /// Whom it is for; filled in by the world.
    pub(crate) party: Party,
    pub(crate) from: SocketAddr,
    pub(crate) to: SocketAddr,
    pub(crate) tcp: TcpHeader,
    pub(crate) options: Seen,
    pub(crate) payload: Vec<u8>,
}

/// The options of a packet.
#[derive(Clone, Default, Debug)]
pub(crate) struct Seen {
    pub(crate) timestamps: Option<Timestamps>,
    pub(crate) sack: SackBlocks,
    pub(crate) capable: Option<MpCapable>,
    pub(crate) join: Option<MpJoin>,
    pub(crate) dss: Option<Dss>,
}

impl Output {
    /// `None`: not a TCP packet.
    pub(crate) fn parse(packet: &[u8]) -> Option<Self> {
        let ip = IpHeader::parse(packet).ok()?;
        let segment = packet.get(ip.header_len..ip.total_len)?;
        let (tcp, option_bytes) = TcpHeader::parse(segment).ok()?;
        let mut options = Seen::default();
        for option in TcpOptions::new(option_bytes).flatten() {
            match option {
                TcpOption::Timestamps(timestamps) => options.timestamps = Some(timestamps),
                TcpOption::Sack(sack) => options.sack = sack,
                TcpOption::Mptcp(MptcpOption::Capable(capable)) => options.capable = Some(capable),
                TcpOption::Mptcp(MptcpOption::Join(join)) => options.join = Some(join),
                TcpOption::Mptcp(MptcpOption::Dss(dss)) => options.dss = Some(dss),
                _ => {}
            }
        }
        Some(Self {
            party: Party::Server,
            from: (ip.src, tcp.src_port).into(),
            to: (ip.dst, tcp.dst_port).into(),
            payload: segment[tcp.header_len..].to_vec(),
            tcp,
            options,
        })
    }
}

/// What every packet has, TCP or not: lengths and header checksums, the one of ICMP included.
pub(crate) fn addressed(packet: &[u8]) {
    let ip = IpHeader::parse(packet).expect("an IP packet");
    assert_eq!(ip.total_len, packet.len(), "IP total length");
    if !ip.is_v6() {
        let sum = Sum::of(&packet[..ip.header_len]).fold();
        assert_eq!(sum, 0xffff, "IP header checksum");
    }
    let message = &packet[ip.header_len..];
    if matches!(ip.protocol, protocol::ICMP | protocol::ICMPV6) {
        assert!(IcmpError::checksum_is_right(&ip, message), "ICMP checksum");
        assert!(IcmpError::parse(&ip, message).is_some(), "ICMP error");
    }
}

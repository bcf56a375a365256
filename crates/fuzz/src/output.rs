//! Packets that come out, as the ends see them. What must hold for them the checker of the rules of the wire
//! says (`flexcp-invariants`); it knows TCP only, so what else comes out is looked at here.

use std::net::SocketAddr;

use flexcp_testkit::{Options, Packet};
use flexcp_wire::{IcmpError, IpHeader, Sum, TcpHeader, protocol};

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
    pub(crate) options: Options,
    pub(crate) payload: Vec<u8>,
}

impl Output {
    /// `None`: not a TCP packet.
    pub(crate) fn parse(packet: &[u8]) -> Option<Self> {
        let packet = Packet::parse(packet)?;
        let (ends, options) = (packet.ends(), packet.view());
        Some(Self {
            party: Party::Server,
            from: ends.from,
            to: ends.to,
            tcp: packet.tcp,
            options,
            payload: packet.payload,
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

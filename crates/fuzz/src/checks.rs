//! What must hold for every packet that comes out, whatever went in. Invariants that need to know the
//! whole conversation belong in a checker of their own: [`Output`] and the packets sent are all it
//! has to see.

use std::net::SocketAddr;

use flexcp_wire::{
    ChecksumState, Dss, GsoKind, IcmpError, IpHeader, MpCapable, MpJoin, MptcpOption, Offload,
    SackBlocks, Sum, TcpHeader, TcpOption, TcpOptions, Timestamps, protocol,
};

use crate::world::Party;

/// Packets that may come out of one that goes in: pieces, and an ACK or a burst of filler for each
/// subflow.
const MAX_OUTPUTS: usize = 64;
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
    /// Zeros for a hole.
    pub(crate) filler: bool,
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
    pub(crate) fn parse(packet: &[u8], filler: bool) -> Option<Self> {
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
            filler,
        })
    }
}

/// Headers, lengths and checksums of a packet that goes out. `same`: it passes as it came. `broken`: it
/// came with a wrong checksum, which must not come out right.
pub(crate) fn well_formed(packet: &[u8], offload: Offload, same: bool, broken: bool) {
    if same {
        return;
    }
    let ip = IpHeader::parse(packet).expect("an IP packet");
    assert_eq!(ip.total_len, packet.len(), "IP total length");
    assert_eq!(ip.protocol, 6, "protocol");
    assert_eq!(ip.src.is_ipv4(), ip.dst.is_ipv4(), "two families");
    if !ip.is_v6() {
        let sum = Sum::of(&packet[..ip.header_len]).fold();
        assert_eq!(sum, 0xffff, "IP header checksum");
    }
    let segment = &packet[ip.header_len..];
    let (tcp, option_bytes) = TcpHeader::parse(segment).expect("a TCP segment");
    assert!(
        option_bytes.len() <= 40,
        "options of {}",
        option_bytes.len()
    );
    for option in TcpOptions::new(option_bytes) {
        assert!(option.is_ok(), "option {option:?} in {option_bytes:02x?}");
    }
    let pseudo = ip.pseudo_header_sum(segment.len());
    match offload.checksum {
        ChecksumState::Partial => {
            assert!(!broken, "a wrong checksum is to be completed");
            assert_eq!(tcp.checksum, pseudo.fold(), "pseudo-header sum");
        }
        _ => {
            let right = pseudo.add(Sum::of(segment)).fold() == 0xffff;
            assert_eq!(right, !broken, "checksum right: {right}");
        }
    }
    if let Some(gso) = offload.gso {
        let payload = segment.len() - tcp.header_len;
        assert_eq!(
            gso.kind == GsoKind::TcpV6,
            ip.is_v6(),
            "segmentation of the wrong family"
        );
        assert!(
            usize::from(gso.size) < payload,
            "segmentation of one segment"
        );
        assert_ne!(
            offload.checksum,
            ChecksumState::Complete,
            "segmentation needs the checksum"
        );
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

/// Work bound of one call.
pub(crate) fn bounded(outputs: usize) {
    assert!(outputs <= MAX_OUTPUTS, "{outputs} packets out of one call");
}

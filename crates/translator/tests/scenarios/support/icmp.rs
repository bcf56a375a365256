//! ICMP errors in the notation: `too-big 1400 about 101`, `unreachable about 1`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use flexcp_wire::{IcmpError, IcmpKind, IpHeader, Offload, Sum, protocol};

use super::net::{Leg, Net};
use super::{Outcome, Scenario};

impl Scenario {
    /// A router tells about a segment that FlexCP has sent to `leg`: `line` says what, and the segment's
    /// number relative to that leg's first.
    #[track_caller]
    pub(crate) fn icmp(&mut self, leg: Leg, line: &str) -> Outcome {
        let bytes = self.icmp_bytes(leg, line);
        self.raw(format!("icmp {line}"), &bytes, Offload::default())
    }

    pub(crate) fn icmp_bytes(&self, leg: Leg, line: &str) -> Vec<u8> {
        let (dst, src) = self.net.ends_from(leg);
        let (what, about) = line.split_once(" about ").expect("`about`");
        let number: i64 = about.parse().expect("a number");
        let base = self.net.bases(leg, false).seq;
        let seq = base.wrapping_add_signed(i32::try_from(number).expect("near"));
        let (kind, mtu) = match what.split_once(' ') {
            Some(("too-big", mtu)) => ("too-big", mtu.parse().expect("an MTU")),
            _ => (what, 0),
        };
        build(src, dst, seq, kind, mtu)
    }
}

fn build(src: SocketAddr, dst: SocketAddr, seq: u32, kind: &str, mtu: u32) -> Vec<u8> {
    let v6 = src.is_ipv6();
    let router: IpAddr = if v6 {
        Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1).into()
    } else {
        Ipv4Addr::new(10, 77, 0, 1).into()
    };
    let quoted = header(src.ip(), dst.ip(), protocol::TCP);
    let ip = header(
        router,
        src.ip(),
        if v6 { protocol::ICMPV6 } else { protocol::ICMP },
    );
    let (icmp_type, code) = match (kind, v6) {
        ("too-big", false) => (3, 4),
        ("too-big", true) => (2, 0),
        ("unreachable", false) => (3, 1),
        ("unreachable", true) => (1, 0),
        ("time-exceeded", false) => (11, 0),
        ("time-exceeded", true) => (3, 0),
        _ => panic!("{kind}"),
    };
    let mut message = vec![icmp_type, code, 0, 0];
    message.extend_from_slice(&mtu.to_be_bytes());
    let mut inner = vec![0; 60];
    // The quote says how long the packet was, not how much of it is quoted.
    let len = quoted.emit(1400, &mut inner);
    message.extend_from_slice(&inner[..len]);
    message.extend_from_slice(&src.port().to_be_bytes());
    message.extend_from_slice(&dst.port().to_be_bytes());
    message.extend_from_slice(&seq.to_be_bytes());
    let pseudo = if v6 {
        ip.pseudo_header_sum(message.len())
    } else {
        Sum::default()
    };
    let checksum = pseudo.add(Sum::of(&message)).checksum();
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
    let mut bytes = vec![0; 60];
    let len = ip.emit(message.len(), &mut bytes);
    bytes.truncate(len);
    bytes.extend(message);
    bytes
}

fn header(src: IpAddr, dst: IpAddr, protocol: u8) -> IpHeader {
    IpHeader {
        src,
        dst,
        protocol,
        header_len: 0,
        total_len: 0,
        traffic_class: 0,
        ttl: 60,
        identification: 0,
        dont_fragment: true,
        flow_label: 0,
    }
}

/// An ICMP error that FlexCP sends on: whom it reaches, what it says, and about which of its numbers.
pub(crate) fn show(net: &mut Net, ip: &IpHeader, packet: &[u8]) -> String {
    let message = &packet[ip.header_len..];
    let error = IcmpError::parse(ip, message).expect("an ICMP error");
    assert!(IcmpError::checksum_is_right(ip, message), "ICMP checksum");
    assert_eq!(ip.dst, error.src.ip(), "it goes to whom it is about");
    if !ip.is_v6() {
        let quoted = &message[8..28];
        assert_eq!(
            Sum::of(quoted).fold(),
            0xffff,
            "checksum of the quoted header"
        );
    }
    let leg = net.leg_to(error.dst, error.src, None).expect("a known leg");
    let number = error.seq.wrapping_sub(net.bases(leg, true).seq);
    let what = match error.kind {
        IcmpKind::TooBig(mtu) => format!("too-big {mtu}"),
        IcmpKind::Unreachable => "unreachable".into(),
        IcmpKind::TimeExceeded => "time-exceeded".into(),
    };
    format!("{} icmp {what} about {number}", net.name(leg))
}

//! ICMP errors in the notation: `too-big 1400 about 101`, `unreachable about 1`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use flexcp_testkit::{icmp_error, ip_header, quoted};
use flexcp_wire::{Ends, IcmpError, IcmpKind, IpHeader, Offload, Sum, protocol};

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
    let upper = if v6 { protocol::ICMPV6 } else { protocol::ICMP };
    let kind_and_code = match (kind, v6) {
        ("too-big", false) => (3, 4),
        ("too-big", true) => (2, 0),
        ("unreachable", false) => (3, 1),
        ("unreachable", true) => (1, 0),
        ("time-exceeded", false) => (11, 0),
        ("time-exceeded", true) => (3, 0),
        _ => panic!("{kind}"),
    };
    let segment = Ends { from: src, to: dst };
    let ip = ip_header(router, src.ip(), upper);
    icmp_error(&ip, kind_and_code, mtu, &quoted(segment, seq))
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

//! ICMP errors: what they say about which segment, and rewriting them.

use std::net::SocketAddr;

use flexcp_testkit::{icmp_error, ip_header, quoted};
use flexcp_wire::{Ends, IcmpError, IcmpKind, IpHeader, Sum, protocol};
use proptest::prelude::*;

/// A router's error about a segment from `src` to `dst`: its header, and the message.
fn message(src: SocketAddr, dst: SocketAddr, head: [u8; 8], seq: u32) -> (IpHeader, Vec<u8>) {
    let upper = if src.is_ipv6() {
        protocol::ICMPV6
    } else {
        protocol::ICMP
    };
    let ip = ip_header(src.ip(), dst.ip(), upper);
    let [kind, code, _, _, value @ ..] = head;
    let quoted = quoted(Ends { from: src, to: dst }, seq);
    let packet = icmp_error(&ip, (kind, code), u32::from_be_bytes(value), &quoted);
    (ip, packet[ip.emitted_len()..].to_vec())
}

fn addr(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

#[test]
fn kinds_are_told_apart() {
    let v4 = (addr("192.0.2.1:80"), addr("198.51.100.2:40000"));
    let v6 = (addr("[2001:db8::1]:80"), addr("[2001:db8::2]:40000"));
    let kind = |(src, dst), head| {
        let (ip, bytes) = message(src, dst, head, 7);
        IcmpError::parse(&ip, &bytes).map(|error| error.kind)
    };
    // The upper half of the field is another's (RFC 4884).
    let too_big = kind(v4, [3, 4, 0, 0, 9, 9, 5, 0x78]);
    assert_eq!(too_big, Some(IcmpKind::TooBig(1400)));
    assert_eq!(
        kind(v4, [3, 1, 0, 0, 0, 0, 0, 0]),
        Some(IcmpKind::Unreachable)
    );
    assert_eq!(
        kind(v4, [11, 0, 0, 0, 0, 0, 0, 0]),
        Some(IcmpKind::TimeExceeded)
    );
    assert_eq!(kind(v4, [8, 0, 0, 0, 0, 0, 0, 0]), None, "a ping");
    assert_eq!(
        kind(v4, [1, 0, 0, 0, 0, 0, 0, 0]),
        None,
        "the other family's"
    );
    let too_big = kind(v6, [2, 0, 0, 0, 0, 1, 5, 0x78]);
    assert_eq!(too_big, Some(IcmpKind::TooBig(0x1_0578)));
    assert_eq!(
        kind(v6, [1, 4, 0, 0, 0, 0, 0, 0]),
        Some(IcmpKind::Unreachable)
    );
    assert_eq!(
        kind(v6, [3, 0, 0, 0, 0, 0, 0, 0]),
        Some(IcmpKind::TimeExceeded)
    );
    assert_eq!(kind(v6, [128, 0, 0, 0, 0, 0, 0, 0]), None, "a ping");
    assert_eq!(
        kind(v6, [11, 0, 0, 0, 0, 0, 0, 0]),
        None,
        "the other family's"
    );
}

#[test]
fn quote_that_is_no_segment_is_none() {
    let (ip, bytes) = message(
        addr("192.0.2.1:80"),
        addr("192.0.2.2:1"),
        [3, 4, 0, 0, 0, 0, 5, 0],
        1,
    );
    assert!(IcmpError::parse(&ip, &bytes).is_some());
    for len in 0..bytes.len() {
        assert_eq!(IcmpError::parse(&ip, &bytes[..len]), None, "{len} bytes");
    }
    let edited = |at: usize, value: u8| {
        let mut bytes = bytes.clone();
        bytes[at] = value;
        IcmpError::parse(&ip, &bytes)
    };
    assert_eq!(edited(8 + 9, 17), None, "UDP");
    assert_eq!(edited(8 + 7, 1), None, "a later fragment");
    assert_eq!(edited(8, 0x44), None, "a header of 16 bytes");
    assert_eq!(edited(8, 0x4f), None, "a header beyond the quote");
    assert_eq!(edited(8, 0x60), None, "IPv6 in ICMP");
}

proptest! {
    #[test]
    fn rewritten_error_says_what_it_was_told(
        v6: bool, seq: u32, other_seq: u32, mtu in 0_u32..=0xffff, ports: (u16, u16), other: (u16, u16),
    ) {
        let ends = |ports: (u16, u16), n: u8| if v6 {
            (addr(&format!("[2001:db8::{n}]:{}", ports.0)), addr(&format!("[2001:db8::1{n}]:{}", ports.1)))
        } else {
            (addr(&format!("192.0.2.{n}:{}", ports.0)), addr(&format!("198.51.100.{n}:{}", ports.1)))
        };
        let (src, dst) = ends(ports, 1);
        let head = if v6 { [2, 0, 0, 0, 0, 0, 5, 0] } else { [3, 4, 0, 0, 0, 0, 5, 0] };
        let (ip, mut bytes) = message(src, dst, head, seq);
        prop_assert!(IcmpError::checksum_is_right(&ip, &bytes));
        let mut error = IcmpError::parse(&ip, &bytes).unwrap();
        prop_assert_eq!((error.kind, error.src, error.dst, error.seq), (IcmpKind::TooBig(1280), src, dst, seq));
        error.kind = IcmpKind::TooBig(mtu);
        (error.src, error.dst) = ends(other, 2);
        error.seq = other_seq;
        // Nothing else can be written over it, and what can't leaves it as it is.
        let before = bytes.clone();
        let other_family = if v6 { addr("10.0.0.1:1") } else { addr("[::1]:1") };
        for (src, dst) in [(other_family, other_family), (other_family, dst), (src, other_family)] {
            let mut other = error;
            (other.src, other.dst) = (src, dst);
            prop_assert!(!other.rewrite(&ip, &mut bytes));
        }
        let len = bytes.len();
        prop_assert!(!error.rewrite(&ip, &mut bytes[..len.min(35)]));
        prop_assert!(!error.rewrite(&ip, &mut []));
        prop_assert_eq!(&bytes, &before);
        prop_assert!(error.rewrite(&ip, &mut bytes));
        prop_assert_eq!(IcmpError::parse(&ip, &bytes), Some(error));
        prop_assert!(IcmpError::checksum_is_right(&ip, &bytes));
        if !v6 {
            prop_assert_eq!(Sum::of(&bytes[8..28]).fold(), 0xffff, "checksum of the quoted header");
        }
        bytes[30] ^= 1;
        prop_assert!(!IcmpError::checksum_is_right(&ip, &bytes));
    }

    #[test]
    fn arbitrary_bytes_are_read_to_their_end_at_most(v6: bool, bytes: Vec<u8>) {
        let (src, dst) = if v6 { ("[::1]:1", "[::2]:2") } else { ("10.0.0.1:1", "10.0.0.2:2") };
        let (ip, _) = message(addr(src), addr(dst), [0; 8], 0);
        if let Some(error) = IcmpError::parse(&ip, &bytes) {
            let mut bytes = bytes.clone();
            prop_assert!(error.rewrite(&ip, &mut bytes));
            prop_assert_eq!(IcmpError::parse(&ip, &bytes), Some(error));
        }
    }
}

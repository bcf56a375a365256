//! IP and TCP headers and the vnet header; etherparse is the second opinion.

mod common;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use common::bytes;
use etherparse::{IpHeaders, IpNumber, Ipv4Header, Ipv6Header, TcpHeaderSlice};
use flexcp_wire::{
    ChecksumState, Gso, GsoKind, IpHeader, Offload, ParseError, Sum, TcpFlags, TcpHeader,
    emit_vnet, parse_vnet, protocol, update_checksum,
};
use proptest::collection::vec;
use proptest::prelude::*;

fn ip_header() -> impl Strategy<Value = IpHeader> {
    let v4 = any::<(Ipv4Addr, Ipv4Addr, u8, u8, u16, bool)>().prop_map(
        |(src, dst, traffic_class, ttl, identification, dont_fragment)| IpHeader {
            src: IpAddr::V4(src),
            dst: IpAddr::V4(dst),
            protocol: protocol::TCP,
            header_len: 20,
            total_len: 20,
            traffic_class,
            ttl,
            identification,
            dont_fragment,
            flow_label: 0,
        },
    );
    let v6 = (any::<(Ipv6Addr, Ipv6Addr, u8, u8)>(), 0..1_u32 << 20).prop_map(
        |((src, dst, traffic_class, ttl), flow_label)| IpHeader {
            src: IpAddr::V6(src),
            dst: IpAddr::V6(dst),
            protocol: protocol::TCP,
            header_len: 40,
            total_len: 40,
            traffic_class,
            ttl,
            identification: 0,
            dont_fragment: true,
            flow_label,
        },
    );
    prop_oneof![v4, v6]
}

fn tcp_header() -> impl Strategy<Value = TcpHeader> {
    (
        any::<(u16, u16, u32, u32, u16, u16, u16)>(),
        0..0x200_u16,
        0..=10_usize,
    )
        .prop_map(
            |((src_port, dst_port, seq, ack, window, checksum, urgent), flags, words)| TcpHeader {
                src_port,
                dst_port,
                seq,
                ack,
                flags: TcpFlags(flags),
                window,
                checksum,
                urgent,
                header_len: 20 + 4 * words,
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2048))]

    #[test]
    fn ip_header_written_is_read_back_and_etherparse_agrees(
        ip in ip_header(),
        payload in vec(any::<u8>(), 0..100),
    ) {
        let mut packet = vec![0; ip.emitted_len()];
        prop_assert_eq!(ip.emit(payload.len(), &mut packet), packet.len());
        packet.extend(&payload);
        packet.extend([0xee; 7]); // link padding
        let total_len = ip.header_len + payload.len();
        prop_assert_eq!(IpHeader::parse(&packet), Ok(IpHeader { total_len, ..ip }));

        if ip.is_v6() {
            let (oracle, rest) = Ipv6Header::from_slice(&packet)?;
            prop_assert_eq!(IpAddr::from(oracle.source), ip.src);
            prop_assert_eq!(IpAddr::from(oracle.destination), ip.dst);
            prop_assert_eq!(oracle.traffic_class, ip.traffic_class);
            prop_assert_eq!(oracle.flow_label.value(), ip.flow_label);
            prop_assert_eq!(oracle.hop_limit, ip.ttl);
            prop_assert_eq!(oracle.next_header, IpNumber::TCP);
            prop_assert_eq!(usize::from(oracle.payload_length), payload.len());
            prop_assert_eq!(rest.len(), payload.len() + 7);
        } else {
            let (oracle, _) = Ipv4Header::from_slice(&packet)?;
            prop_assert_eq!(IpAddr::from(oracle.source), ip.src);
            prop_assert_eq!(IpAddr::from(oracle.destination), ip.dst);
            prop_assert_eq!(oracle.dscp.value() << 2 | oracle.ecn.value(), ip.traffic_class);
            prop_assert_eq!(oracle.identification, ip.identification);
            prop_assert_eq!(oracle.dont_fragment, ip.dont_fragment);
            prop_assert_eq!(oracle.time_to_live, ip.ttl);
            prop_assert_eq!(oracle.protocol, IpNumber::TCP);
            prop_assert_eq!(usize::from(oracle.total_len), total_len);
            prop_assert_eq!(oracle.header_checksum, oracle.calc_header_checksum());
        }
    }

    #[test]
    fn tcp_header_written_is_read_back_and_etherparse_agrees(
        tcp in tcp_header(),
        payload in vec(any::<u8>(), 0..50),
    ) {
        let options_len = tcp.header_len - 20;
        let mut segment = vec![1; tcp.header_len];
        tcp.emit(options_len, &mut segment);
        segment.extend(payload);
        let (parsed, options) = TcpHeader::parse(&segment)?;
        prop_assert_eq!(parsed, tcp);
        prop_assert_eq!(options, vec![1; options_len]);

        let oracle = TcpHeaderSlice::from_slice(&segment)?;
        prop_assert_eq!(oracle.source_port(), tcp.src_port);
        prop_assert_eq!(oracle.destination_port(), tcp.dst_port);
        prop_assert_eq!(oracle.sequence_number(), tcp.seq);
        prop_assert_eq!(oracle.acknowledgment_number(), tcp.ack);
        prop_assert_eq!(oracle.window_size(), tcp.window);
        prop_assert_eq!(oracle.checksum(), tcp.checksum);
        prop_assert_eq!(oracle.urgent_pointer(), tcp.urgent);
        prop_assert_eq!(usize::from(oracle.data_offset()) * 4, tcp.header_len);
        prop_assert_eq!(oracle.fin(), tcp.flags.contains(TcpFlags::FIN));
        prop_assert_eq!(oracle.syn(), tcp.flags.contains(TcpFlags::SYN));
        prop_assert_eq!(oracle.rst(), tcp.flags.contains(TcpFlags::RST));
        prop_assert_eq!(oracle.psh(), tcp.flags.contains(TcpFlags::PSH));
        prop_assert_eq!(oracle.ack(), tcp.flags.contains(TcpFlags::ACK));
        prop_assert_eq!(oracle.urg(), tcp.flags.contains(TcpFlags::URG));
        prop_assert_eq!(oracle.ece(), tcp.flags.contains(TcpFlags::ECE));
        prop_assert_eq!(oracle.cwr(), tcp.flags.contains(TcpFlags::CWR));
        prop_assert_eq!(oracle.ns(), tcp.flags.contains(TcpFlags::AE));
    }

    #[test]
    fn tcp_checksum_equals_that_of_etherparse(
        ip in ip_header(),
        tcp in tcp_header(),
        payload in vec(any::<u8>(), 0..3000),
    ) {
        let tcp = TcpHeader { header_len: 20, checksum: 0, ..tcp };
        let mut segment = vec![0; 20];
        tcp.emit(0, &mut segment);
        segment.extend(&payload);
        let ours = ip.pseudo_header_sum(segment.len()).add(Sum::of(&segment)).checksum();

        let header = TcpHeaderSlice::from_slice(&segment)?.to_header();
        let theirs = match (ip.src, ip.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                header.calc_checksum_ipv4_raw(src.octets(), dst.octets(), &payload)?
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                header.calc_checksum_ipv6_raw(src.octets(), dst.octets(), &payload)?
            }
            _ => unreachable!("both of one family"),
        };
        prop_assert_eq!(ours, theirs);
    }

    #[test]
    fn tcp_checksum_updated_for_new_addresses_and_header_equals_a_fresh_one(
        (old_ip, new_ip) in (ip_header(), ip_header()),
        (old, new) in (tcp_header(), tcp_header()),
        payload in vec(any::<u8>(), 0..200),
    ) {
        let parts = |ip: &IpHeader, tcp: &TcpHeader| {
            let mut header = vec![1; tcp.header_len];
            TcpHeader { checksum: 0, ..*tcp }.emit(tcp.header_len - 20, &mut header);
            ip.pseudo_header_sum(header.len() + payload.len()).add(Sum::of(&header))
        };
        let (old, new) = (parts(&old_ip, &old), parts(&new_ip, &new));
        let data = Sum::of(&payload);
        let updated = update_checksum(old.add(data).checksum(), old, new);
        prop_assert_eq!(updated, new.add(data).checksum());
    }

    #[test]
    fn any_bytes_are_survived(bytes in vec(any::<u8>(), 0..200)) {
        if let Ok(ip) = IpHeader::parse(&bytes) {
            prop_assert!(ip.header_len <= ip.total_len && ip.total_len <= bytes.len());
        }
        if let Ok((tcp, options)) = TcpHeader::parse(&bytes) {
            prop_assert!(tcp.header_len <= bytes.len());
            prop_assert_eq!(options.len(), tcp.header_len - 20);
        }
        let _ = flexcp_wire::PacketLine(&bytes).to_string();
    }

    #[test]
    fn any_ipv6_extension_headers_are_survived_and_etherparse_agrees(
        next in any::<u8>(),
        rest in vec(prop_oneof![Just(0), Just(43), Just(60), Just(6), 0..4_u8], 0..160),
    ) {
        let mut packet = vec![0x60, 0, 0, 0, 0, u8::try_from(rest.len())?, next, 64];
        packet.extend([0; 32]);
        packet.extend(&rest);
        if let Ok(ip) = IpHeader::parse(&packet) {
            prop_assert!((40..=packet.len()).contains(&ip.header_len));
            // etherparse also walks headers that we take for the upper layer, and wants
            // hop-by-hop first; where it walks what we walk, both end at the same place.
            if let Ok((headers, payload)) = IpHeaders::from_slice(&packet)
                && payload.ip_number.0 == ip.protocol
            {
                prop_assert_eq!(headers.header_len(), ip.header_len);
            }
        }
    }

    #[test]
    fn vnet_header_written_is_read_back(
        checksum in prop_oneof![
            Just(ChecksumState::Complete),
            Just(ChecksumState::Verified),
            Just(ChecksumState::Partial),
        ],
        gso in proptest::option::of((any::<bool>(), 1..=u16::MAX, any::<bool>())),
    ) {
        let gso = gso.map(|(v6, size, ecn)| {
            Gso { kind: if v6 { GsoKind::TcpV6 } else { GsoKind::TcpV4 }, size, ecn }
        });
        let offload = Offload { checksum, gso };
        let mut header = [0xff; 10];
        emit_vnet(&offload, 40, 32, &mut header);
        prop_assert_eq!(parse_vnet(&header), Ok(offload));
    }

    #[test]
    fn any_vnet_header_is_survived(header: [u8; 10]) {
        let _ = parse_vnet(&header);
    }
}

fn ipv4_packet() -> Vec<u8> {
    bytes("45b8001c 1234 4000 4006 0000 0a010102 0a090002 0102030405060708")
}

#[test]
fn ipv4_fields_by_hand() {
    assert_eq!(
        IpHeader::parse(&ipv4_packet()),
        Ok(IpHeader {
            src: IpAddr::V4(Ipv4Addr::new(10, 1, 1, 2)),
            dst: IpAddr::V4(Ipv4Addr::new(10, 9, 0, 2)),
            protocol: 6,
            header_len: 20,
            total_len: 28,
            traffic_class: 0xb8,
            ttl: 64,
            identification: 0x1234,
            dont_fragment: true,
            flow_label: 0,
        })
    );
}

#[test]
fn ipv4_with_options_is_read_past_them_and_written_without() {
    let mut packet = ipv4_packet();
    packet[0] = 0x46;
    let ip = IpHeader::parse(&packet).expect("an IPv4 packet");
    assert_eq!((ip.header_len, ip.emitted_len()), (24, 20));
}

#[test]
fn ipv4_fragments_are_refused() {
    for field in [[0x20, 0x00], [0x00, 0x01], [0x1f, 0xff], [0x20, 0x10]] {
        let mut packet = ipv4_packet();
        packet[6..8].copy_from_slice(&field);
        assert_eq!(IpHeader::parse(&packet), Err(ParseError::Fragment));
    }
}

#[test]
fn ipv4_lengths_that_contradict_each_other_are_refused() {
    let with = |index: usize, value: u8| {
        let mut packet = ipv4_packet();
        packet[index] = value;
        IpHeader::parse(&packet)
    };
    assert_eq!(with(0, 0x44), Err(ParseError::IpHeaderLength(16)));
    assert_eq!(with(0, 0x48), Err(ParseError::IpTotalLength(28)));
    assert_eq!(with(3, 19), Err(ParseError::IpTotalLength(19)));
    assert_eq!(with(3, 29), Err(ParseError::Truncated));
    assert!(with(3, 20).is_ok());
    assert_eq!(
        IpHeader::parse(&ipv4_packet()[..19]),
        Err(ParseError::Truncated)
    );
    assert_eq!(IpHeader::parse(&[]), Err(ParseError::Truncated));
    assert_eq!(with(0, 0x55), Err(ParseError::Version(5)));
}

fn ipv6_packet(next_header: u8, payload: &str) -> Vec<u8> {
    let payload = bytes(payload);
    let mut packet = bytes("6b812345");
    packet.extend([
        0,
        u8::try_from(payload.len()).expect("short"),
        next_header,
        63,
    ]);
    packet.extend(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1).octets());
    packet.extend(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2).octets());
    packet.extend(payload);
    packet
}

#[test]
fn ipv6_fields_by_hand() {
    assert_eq!(
        IpHeader::parse(&ipv6_packet(6, "00112233")),
        Ok(IpHeader {
            src: IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1)),
            dst: IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2)),
            protocol: 6,
            header_len: 40,
            total_len: 44,
            traffic_class: 0xb8,
            ttl: 63,
            identification: 0,
            dont_fragment: true,
            flow_label: 0x1_2345,
        })
    );
}

#[test]
fn ipv6_extension_headers_are_walked() {
    // Hop-by-hop (8 bytes), destination options (16), used-up routing header (8), then TCP.
    let chain = "3c00010400000000 2b01010c000000000000000000000000 0600000000000000 aabb";
    let ip = IpHeader::parse(&ipv6_packet(0, chain)).expect("an IPv6 packet");
    assert_eq!((ip.protocol, ip.header_len, ip.total_len), (6, 72, 74));
}

#[test]
fn ipv6_fragments_are_refused_the_atomic_one_too() {
    let atomic = "0600000000000001 aabb";
    assert_eq!(
        IpHeader::parse(&ipv6_packet(44, atomic)),
        Err(ParseError::Fragment)
    );
    let behind_options = "2c00010400000000 0600000100000001";
    assert_eq!(
        IpHeader::parse(&ipv6_packet(60, behind_options)),
        Err(ParseError::Fragment)
    );
}

#[test]
fn ipv6_routing_header_with_segments_left_is_refused() {
    let routing = "0600000100000000";
    assert_eq!(
        IpHeader::parse(&ipv6_packet(43, routing)),
        Err(ParseError::RoutingHeader)
    );
}

#[test]
fn ipv6_lengths_that_contradict_each_other_are_refused() {
    let beyond = "0601010400000000"; // says 16 bytes, 8 are there
    assert_eq!(
        IpHeader::parse(&ipv6_packet(60, beyond)),
        Err(ParseError::IpTotalLength(48))
    );
    assert_eq!(
        IpHeader::parse(&ipv6_packet(60, "0600")),
        Err(ParseError::IpTotalLength(42))
    );
    let packet = ipv6_packet(6, "00112233");
    assert_eq!(IpHeader::parse(&packet[..43]), Err(ParseError::Truncated));
    assert_eq!(IpHeader::parse(&packet[..39]), Err(ParseError::Truncated));
}

#[test]
fn ipv6_with_a_ninth_extension_header_is_refused() {
    let header = "3c00010400000000";
    let last = "0600010400000000";
    let eight = header.repeat(7) + last;
    assert_eq!(
        IpHeader::parse(&ipv6_packet(60, &eight)).map(|ip| ip.protocol),
        Ok(6)
    );
    let nine = header.repeat(8) + last;
    assert_eq!(
        IpHeader::parse(&ipv6_packet(60, &nine)),
        Err(ParseError::ExtensionHeaders)
    );
}

#[test]
fn tcp_header_lengths_outside_20_to_the_segment_are_refused() {
    let mut segment = [0_u8; 24];
    for (words, expected) in [(4, None), (5, Some(0)), (6, Some(4)), (7, None), (0, None)] {
        segment[12] = words << 4;
        let parsed = TcpHeader::parse(&segment).map(|(_, options)| options.len());
        let error = ParseError::TcpHeaderLength(usize::from(words) * 4);
        assert_eq!(parsed, expected.ok_or(error));
    }
    assert_eq!(TcpHeader::parse(&segment[..19]), Err(ParseError::Truncated));
}

#[test]
fn tcp_reserved_bits_are_ignored_when_read_and_zero_when_written() {
    let mut segment = [0_u8; 20];
    segment[12..14].copy_from_slice(&[0x5f, 0x12]);
    let (tcp, _) = TcpHeader::parse(&segment).expect("a TCP header");
    assert_eq!(tcp.flags, TcpFlags::AE | TcpFlags::SYN | TcpFlags::ACK);
    tcp.emit(0, &mut segment);
    assert_eq!(segment[12..14], [0x51, 0x12]);
}

#[test]
fn flags_are_shown_as_tcpdump_does() {
    for (flags, text) in [
        (TcpFlags::SYN, "S"),
        (TcpFlags::SYN | TcpFlags::ACK, "S."),
        (TcpFlags::FIN | TcpFlags::ACK, "F."),
        (TcpFlags::PSH | TcpFlags::ACK, "P."),
        (TcpFlags::ACK, "."),
        (TcpFlags::RST, "R"),
        (
            TcpFlags::SYN | TcpFlags::ECE | TcpFlags::CWR | TcpFlags::AE,
            "SEWe",
        ),
        (TcpFlags::default(), "none"),
    ] {
        assert_eq!(flags.to_string(), text);
    }
    assert_eq!(
        format!("{:?}", TcpFlags::SYN | TcpFlags::ACK),
        "TcpFlags(S.)"
    );
}

#[test]
fn flags_are_sets() {
    let mut flags = TcpFlags::SYN;
    flags |= TcpFlags::ACK;
    assert!(flags.contains(TcpFlags::SYN) && flags.contains(TcpFlags::SYN | TcpFlags::ACK));
    assert!(!flags.contains(TcpFlags::SYN | TcpFlags::FIN));
    assert!(flags.intersects(TcpFlags::SYN | TcpFlags::FIN));
    assert!(!flags.intersects(TcpFlags::RST | TcpFlags::FIN));
    assert_eq!(flags.without(TcpFlags::SYN | TcpFlags::FIN), TcpFlags::ACK);
    assert_eq!(TcpFlags::ACK.with(TcpFlags::SYN), flags);
}

/// `struct virtio_net_hdr` on this machine.
fn vnet(flags: u8, gso_type: u8, rest: [u16; 4]) -> [u8; 10] {
    let mut header = [flags, gso_type, 0, 0, 0, 0, 0, 0, 0, 0];
    for (field, value) in header[2..].chunks_exact_mut(2).zip(rest) {
        field.copy_from_slice(&value.to_ne_bytes());
    }
    header
}

#[test]
fn vnet_header_of_a_tso_packet_by_hand() {
    let gso = Gso {
        kind: GsoKind::TcpV4,
        size: 1448,
        ecn: false,
    };
    let offload = Offload {
        checksum: ChecksumState::Partial,
        gso: Some(gso),
    };
    let mut header = [0; 10];
    emit_vnet(&offload, 20, 32, &mut header);
    assert_eq!(header, vnet(1, 1, [52, 1448, 20, 16]));
}

#[test]
fn vnet_header_of_a_plain_packet_is_zero() {
    let mut header = [0xff; 10];
    emit_vnet(&Offload::default(), 20, 20, &mut header);
    assert_eq!(header, [0; 10]);
}

#[test]
fn vnet_header_of_a_received_ipv6_packet_by_hand() {
    let verified = Offload {
        checksum: ChecksumState::Verified,
        gso: None,
    };
    assert_eq!(parse_vnet(&vnet(2, 0, [0; 4])), Ok(verified));
    let gso = Gso {
        kind: GsoKind::TcpV6,
        size: 1428,
        ecn: true,
    };
    let offload = Offload {
        checksum: ChecksumState::Partial,
        gso: Some(gso),
    };
    assert_eq!(parse_vnet(&vnet(1, 0x84, [72, 1428, 40, 16])), Ok(offload));
}

#[test]
fn vnet_header_that_is_not_for_tcp_is_refused() {
    assert_eq!(
        parse_vnet(&vnet(1, 0, [0, 0, 20, 6])),
        Err(ParseError::ChecksumOffset(6))
    );
    for gso_type in [2, 3, 5, 0x83] {
        let error = ParseError::GsoType(gso_type);
        assert_eq!(
            parse_vnet(&vnet(1, gso_type, [28, 1400, 20, 16])),
            Err(error)
        );
    }
    assert_eq!(
        parse_vnet(&vnet(1, 1, [52, 0, 20, 16])),
        Err(ParseError::GsoSize)
    );
}

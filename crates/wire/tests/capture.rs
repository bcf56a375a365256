//! Packets of two real hosts: everything in them is understood, and written back byte for byte.

mod common;

use std::collections::{HashMap, HashSet};
use std::mem::discriminant;

use common::{captured_packets, emitted};
use flexcp_wire::{
    CapableKeys, DataNumber, Dsn, Dss, IpHeader, MptcpOption, OptionWriter, PacketLine, Sum,
    TcpHeader, TcpOption, TcpOptions, dss_checksum,
};

struct Segment<'a> {
    ip: IpHeader,
    tcp: TcpHeader,
    option_bytes: &'a [u8],
    options: Vec<TcpOption<'a>>,
    segment: &'a [u8],
    payload: &'a [u8],
}

fn segment(packet: &[u8]) -> Segment<'_> {
    let ip = IpHeader::parse(packet).expect("an IP header");
    let segment = &packet[ip.header_len..ip.total_len];
    let (tcp, option_bytes) = TcpHeader::parse(segment).expect("a TCP header");
    let options: Result<_, _> = TcpOptions::new(option_bytes).collect();
    let options = options.unwrap_or_else(|error| panic!("{error} in {}", PacketLine(packet)));
    let payload = &segment[tcp.header_len..];
    Segment {
        ip,
        tcp,
        option_bytes,
        options,
        segment,
        payload,
    }
}

#[test]
fn headers_and_options_are_written_back_byte_for_byte() {
    for packet in captured_packets() {
        let Segment {
            ip,
            tcp,
            options,
            payload,
            ..
        } = segment(&packet);
        let mut writer = OptionWriter::new();
        for option in &options {
            assert!(writer.push(option));
        }
        let option_bytes = writer.finish();
        let mut out = vec![0; ip.emitted_len()];
        ip.emit(20 + option_bytes.len() + payload.len(), &mut out);
        let tcp_start = out.len();
        out.resize(tcp_start + 20, 0);
        tcp.emit(option_bytes.len(), &mut out[tcp_start..]);
        out.extend(option_bytes);
        out.extend(payload);
        assert_eq!(out, packet, "{}", PacketLine(&packet));
    }
}

#[test]
fn tcp_checksums_add_up() {
    for packet in captured_packets() {
        let Segment { ip, segment, .. } = segment(&packet);
        let sum = ip.pseudo_header_sum(segment.len()).add(Sum::of(segment));
        assert_eq!(sum.checksum(), 0, "{}", PacketLine(&packet));
    }
}

/// A mapping may be spread over several segments; the sums of their data add up.
#[test]
fn dss_checksums_match() {
    let mut mappings = HashMap::new();
    for packet in captured_packets() {
        let Segment {
            tcp,
            options,
            payload,
            ..
        } = segment(&packet);
        for option in &options {
            let TcpOption::Mptcp(MptcpOption::Dss(Dss {
                mapping: Some(mapping),
                ..
            })) = option
            else {
                continue;
            };
            let Some(checksum) = mapping.checksum else {
                continue;
            };
            let DataNumber::Long(dsn) = mapping.dsn else {
                panic!("Linux sends 64 bits")
            };
            let key = (
                tcp.src_port,
                tcp.dst_port,
                dsn,
                mapping.ssn,
                mapping.len,
                checksum,
            );
            let data = mappings.entry(key).or_insert_with(Sum::default);
            *data = data.add(Sum::of(payload));
        }
    }
    assert_eq!(mappings.len(), 16);
    for ((_, _, dsn, ssn, len, checksum), data) in mappings {
        assert_eq!(
            dss_checksum(Dsn(dsn), ssn, len, data),
            checksum,
            "DSN {dsn}, length {len}"
        );
    }
}

/// The first data goes with the keys; its DSN shows in the data ACK that follows.
#[test]
fn checksum_of_the_mapping_in_an_mp_capable_matches() {
    let packets = captured_packets();
    let mut checked = 0;
    for pair in packets.windows(2) {
        let (first, second) = (segment(&pair[0]), segment(&pair[1]));
        for option in &first.options {
            if let TcpOption::Mptcp(MptcpOption::Capable(capable)) = option
                && let CapableKeys::AckData {
                    data_len,
                    checksum: Some(checksum),
                    ..
                } = capable.keys
                && let Some(TcpOption::Mptcp(MptcpOption::Dss(dss))) = second.options.last()
                && let Some(DataNumber::Long(data_ack)) = dss.data_ack
            {
                let dsn = Dsn(data_ack).sub(data_len.into());
                assert_eq!(
                    dss_checksum(dsn, 1, data_len, Sum::of(first.payload)),
                    checksum
                );
                checked += 1;
            }
        }
    }
    assert_eq!(checked, 3);
}

#[test]
fn the_capture_has_most_kinds_of_options() {
    let packets = captured_packets();
    let mut kinds = HashSet::new();
    let mut forms = HashSet::new();
    for packet in &packets {
        let Segment {
            options,
            option_bytes,
            ..
        } = segment(packet);
        assert_eq!(option_bytes.len() % 4, 0);
        for option in options {
            kinds.insert(discriminant(&option));
            if let TcpOption::Mptcp(option) = option {
                forms.insert((option.subtype(), option.len()));
                assert_eq!(emitted(&option).len(), option.len());
            }
        }
    }
    assert_eq!(kinds.len(), 5); // MSS, window scale, SACK permitted, timestamps, MPTCP
    for form in [
        (0, 4),
        (0, 12),
        (0, 20),
        (0, 22),
        (0, 24),
        (1, 12),
        (1, 16),
        (1, 24),
        (2, 12),
        (2, 26),
        (2, 28),
        (3, 8),
        (3, 16),
        (3, 20),
        (3, 28),
        (4, 4),
        (5, 3),
        (7, 12),
        (8, 4),
    ] {
        assert!(forms.contains(&form), "{form:?} in {forms:?}");
    }
}

//! An installed connection and packets of its ends, byte by byte.

use std::net::{IpAddr, Ipv6Addr};

use flexcp_testkit::{self as testkit, ip_header, write_headers};
use flexcp_translator::{EntryRtt, EntrySubflow, FlowEntry, Installed, UpRun};
use flexcp_wire::{ChecksumState, IpHeader, Sum, TCP_HEADER_LEN, TcpFlags, TcpHeader, protocol};

pub(crate) const NOW: u64 = 50_000_000;
/// Ends of the connection: the server, the client on two paths.
pub(crate) const SERVER: [u8; 4] = [203, 0, 113, 80];
pub(crate) const CLIENTS: [[u8; 4]; 2] = [[198, 51, 100, 1], [198, 51, 100, 2]];
pub(crate) const PORTS: [u16; 2] = [50_001, 50_002];
/// Bytes on their way in either direction.
pub(crate) const OUTSTANDING: u32 = 5_000;

/// A packet to try. Its options are raw bytes, its checksum is made right at the end.
#[derive(Clone)]
pub(crate) struct Packet {
    pub(crate) ip: IpHeader,
    pub(crate) tcp: TcpHeader,
    pub(crate) options: Vec<u8>,
    pub(crate) payload: usize,
    /// Byte of the finished IP packet, and what it is changed with (XOR).
    pub(crate) damage: Option<(usize, u8)>,
    /// As `damage`, before the checksum is made.
    pub(crate) twist: Option<(usize, u8)>,
    /// Bytes of the link behind it.
    pub(crate) padding: usize,
    /// First byte of the frame's destination.
    pub(crate) station: u8,
}

impl Packet {
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut packet = vec![0; self.ip.emitted_len() + TCP_HEADER_LEN + self.options.len()];
        write_headers(
            &self.ip,
            &self.tcp,
            &self.options,
            self.payload,
            &mut packet,
        );
        packet.extend((0..self.payload).map(|at| at.to_le_bytes()[0]));
        let checksum = self.ip.emitted_len() + 16..self.ip.emitted_len() + 18;
        packet[checksum.clone()].fill(0);
        if let Some((at, with)) = self.twist {
            packet[at] ^= with;
        }
        let segment = &packet[self.ip.emitted_len()..];
        let pseudo = self.ip.pseudo_header_sum(segment.len());
        let sum = pseudo.add(Sum::of(segment)).checksum();
        packet[checksum].copy_from_slice(&sum.to_be_bytes());
        if let Some((at, with)) = self.damage {
            packet[at] ^= with;
        }
        packet.resize(packet.len() + self.padding, 0);
        packet
    }

    /// The same between the IPv6 addresses that start with its IPv4 ones.
    pub(crate) fn six(&self) -> Self {
        let mut six = self.clone();
        for address in [&mut six.ip.src, &mut six.ip.dst] {
            if let IpAddr::V4(four) = *address {
                *address = alike(four.octets());
            }
        }
        six.ip.header_len = 40;
        six
    }

    /// The IP packet as it is while its TCP checksum is in this state.
    pub(crate) fn bytes_in(&self, checksum: ChecksumState) -> Vec<u8> {
        let mut packet = self.bytes();
        if checksum == ChecksumState::Partial {
            let at = self.ip.header_len;
            let sum = self.ip.pseudo_header_sum(packet.len() - at).fold();
            assert_ne!(packet[at + 16..at + 18], sum.to_be_bytes());
            packet[at + 16..at + 18].copy_from_slice(&sum.to_be_bytes());
        }
        packet
    }

    pub(crate) fn frame(&self) -> Vec<u8> {
        let mut frame = vec![0; 12];
        frame[0] = self.station;
        let protocol: u16 = if self.ip.is_v6() { 0x86dd } else { 0x0800 };
        frame.extend_from_slice(&protocol.to_be_bytes());
        frame.extend(self.bytes());
        frame
    }
}

/// What a packet came out as.
pub(crate) struct Out {
    pub(crate) ip: IpHeader,
    pub(crate) tcp: TcpHeader,
    pub(crate) options: Vec<u8>,
    pub(crate) payload: usize,
}

#[track_caller]
pub(crate) fn read(frame: &[u8]) -> Out {
    read_part(frame, ChecksumState::Complete, 0)
}

/// The same of a packet whose TCP checksum is in this state, and whose payload starts with byte `first`.
#[track_caller]
pub(crate) fn read_part(frame: &[u8], checksum: ChecksumState, first: usize) -> Out {
    let read = testkit::Packet::read_in(&frame[14..], checksum);
    for (at, byte) in (first..).zip(&read.payload) {
        assert_eq!(*byte, at.to_le_bytes()[0], "byte {at} of the payload");
    }
    Out {
        ip: read.ip,
        tcp: read.tcp,
        options: read.options,
        payload: read.payload.len(),
    }
}

/// The slot that a connection got.
pub(crate) fn slot_of(installed: Installed) -> u32 {
    let Installed::Slot(slot) = installed else {
        panic!("not installed: {installed:?}");
    };
    slot
}

pub(crate) fn addr(octets: [u8; 4]) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&octets);
    bytes
}

/// An IPv6 address whose first bytes are those of an IPv4 one.
pub(crate) fn alike(octets: [u8; 4]) -> IpAddr {
    IpAddr::from(Ipv6Addr::from(addr(octets)))
}

/// A connection with two subflows, data on its way in both directions on the first, close to the end of the
/// 32-bit numbers.
pub(crate) fn entry() -> FlowEntry {
    let mut entry = FlowEntry {
        server_addr: addr(SERVER),
        source_addr: addr(CLIENTS[0]),
        server_port: 80,
        source_port: PORTS[0],
        active: 0,
        heard: 0,
        down_next: 0x5_ffff_ff00,
        down_acked: 0x5_ffff_ff00 - u64::from(OUTSTANDING),
        down_edge: 0x5_ffff_ff00 + 60_000,
        up_next: 0x7_ffff_fff0,
        up_acked: 0x7_ffff_fff0 - u64::from(OUTSTANDING),
        server_edge: 0x7_ffff_fff0 + 60_000,
        seq_down: 0xffff_ff80,
        seq_up: 0xffff_fff8,
        server_window: 508,
        server_scale: 7,
        sent_scale: 7,
        server_window_max: 65_024,
        server_mss: 1460,
        client_window: 65_000,
        initial_scale: 5,
        ts_sent: 7_000,
        ts_heard: 9_000,
        ts_echo: 8_990,
        silence: 1_000_000,
        ..FlowEntry::default()
    };
    for (at, subflow) in entry.subflows.iter_mut().take(2).enumerate() {
        *subflow = EntrySubflow {
            installed: 1,
            remote_addr: addr(CLIENTS[at]),
            remote_port: PORTS[at],
            local_addr: addr(SERVER),
            local_port: 80,
            window_scale: 7,
            isn_remote: 1_000,
            isn_local: 2_000,
            snd_next: 0xffff_fe00,
            snd_una: 0xffff_fe00 - OUTSTANDING,
            snd_edge: 0xffff_fe00_u32.wrapping_add(60_000),
            rcv_ack: 0xffff_fd00 - OUTSTANDING,
            rcv_high: 0xffff_fd00,
            clock_offset: 100,
            clock_heard: 6_900,
            clock_recent: 6_800,
            rtt: EntryRtt {
                smoothed: 10_000,
                variation: 2_000,
                last: 10_000,
                recent: 10_000,
                least: 10_000,
                least_at: 0,
            },
            mss: 1460,
            outstanding_since: NOW - 1_000,
            ..EntrySubflow::default()
        };
    }
    entry.subflows[1].snd_una = entry.subflows[1].snd_next;
    entry.subflows[1].rcv_ack = entry.subflows[1].rcv_high;
    entry.subflows[0].ups_used = 1;
    entry.ups[0][0] = UpRun {
        dsn: 0xffff_fff0 - OUTSTANDING,
        len: OUTSTANDING,
    };
    entry
}

pub(crate) fn packet(
    from: ([u8; 4], u16),
    to: ([u8; 4], u16),
    options: Vec<u8>,
    payload: usize,
) -> Packet {
    Packet {
        ip: IpHeader {
            header_len: 20,
            identification: 7,
            ..ip_header(from.0.into(), to.0.into(), protocol::TCP)
        },
        tcp: TcpHeader {
            src_port: from.1,
            dst_port: to.1,
            flags: TcpFlags::ACK,
            window: 508,
            ..TcpHeader::default()
        },
        options,
        payload,
        damage: None,
        twist: None,
        padding: 0,
        station: 0,
    }
}

pub(crate) fn timestamps(val: u32, ecr: u32) -> Vec<u8> {
    let mut options = vec![1, 1, 8, 10];
    options.extend(val.to_be_bytes());
    options.extend(ecr.to_be_bytes());
    options
}

/// The server's next data, and its ACK says nothing new.
pub(crate) fn data_down(entry: &FlowEntry) -> Packet {
    let ends = ((SERVER, 80), (CLIENTS[0], PORTS[0]));
    let mut packet = packet(ends.0, ends.1, timestamps(9_001, 6_995), 1_000);
    packet.tcp.seq = entry.seq_down;
    packet.tcp.ack = entry.seq_up - OUTSTANDING;
    packet
}

/// The server ACKs a thousand bytes.
pub(crate) fn ack_down(entry: &FlowEntry) -> Packet {
    let mut packet = data_down(entry);
    packet.payload = 0;
    packet.tcp.ack = packet.tcp.ack.wrapping_add(1_000);
    packet
}

/// A DSS as Linux writes it: data ACK and numbers of 64 bits or 32.
pub(crate) fn dss(
    data_ack: u64,
    is_long: bool,
    map: Option<(u64, u32, u16)>,
    long_map: bool,
) -> Vec<u8> {
    fn number(option: &mut Vec<u8>, number: u64, is_long: bool) {
        let bytes = number.to_be_bytes();
        option.extend(&bytes[if is_long { 0 } else { 4 }..]);
    }
    let map_flags = map.map_or(0, |_| 4 | (u8::from(long_map) << 3));
    let mut option = vec![30, 0, 0x20, 1 | (u8::from(is_long) << 1) | map_flags];
    number(&mut option, data_ack, is_long);
    if let Some((dsn, ssn, len)) = map {
        number(&mut option, dsn, long_map);
        option.extend(ssn.to_be_bytes());
        option.extend(len.to_be_bytes());
    }
    option[1] = option.len().to_le_bytes()[0];
    option.resize(option.len().next_multiple_of(4), 1);
    option
}

/// The client ACKs a thousand bytes on its first subflow.
pub(crate) fn ack_up(entry: &FlowEntry) -> Packet {
    let ends = ((CLIENTS[0], PORTS[0]), (SERVER, 80));
    let mut options = timestamps(6_950, 9_000);
    options.extend(dss(entry.down_acked + 1_000, true, None, false));
    let mut packet = packet(ends.0, ends.1, options, 0);
    packet.tcp.seq = entry.subflows[0].rcv_high;
    packet.tcp.ack = entry.subflows[0].snd_una.wrapping_add(1_000);
    packet
}

/// The client's next data.
pub(crate) fn data_up(entry: &FlowEntry) -> Packet {
    let ssn = entry.subflows[0].rcv_high.wrapping_sub(1_000);
    data_up_with(entry, true, true, (entry.up_next, ssn, 500))
}

pub(crate) fn data_up_with(
    entry: &FlowEntry,
    long: bool,
    long_map: bool,
    map: (u64, u32, u16),
) -> Packet {
    let mut packet = ack_up(entry);
    packet.options.truncate(12);
    let data_ack = entry.down_acked + 1_000;
    packet
        .options
        .extend(dss(data_ack, long, Some(map), long_map));
    packet.payload = 500;
    packet
}

//! TCP packets: to be written, and as they were read.

use std::net::{IpAddr, SocketAddr};

use flexcp_wire::{
    ChecksumState, Ends, IpHeader, OptionWriter, Sum, TCP_HEADER_LEN, TcpFlags, TcpHeader,
    TcpOption, protocol,
};

use crate::options::Options;

/// A TCP packet. What a test is about it changes; the rest is as an honest end has it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Packet {
    /// Lengths follow from the rest when the packet is written.
    pub ip: IpHeader,
    /// Checksum and length follow from the rest when the packet is written.
    pub tcp: TcpHeader,
    /// As they stand in the header: a multiple of four bytes, at most 40, or the packet can't be written.
    pub options: Vec<u8>,
    /// What it carries.
    pub payload: Vec<u8>,
}

impl Packet {
    /// An ACK alone: numbers of 0, a window of 65,000 without scale, no options, no payload.
    #[must_use]
    pub fn new(from: SocketAddr, to: SocketAddr) -> Self {
        Self {
            ip: ip_header(from.ip(), to.ip(), protocol::TCP),
            tcp: TcpHeader {
                src_port: from.port(),
                dst_port: to.port(),
                flags: TcpFlags::ACK,
                window: 65_000,
                ..TcpHeader::default()
            },
            options: vec![],
            payload: vec![],
        }
    }

    /// The same between these ends.
    #[must_use]
    pub fn between(ends: Ends) -> Self {
        Self::new(ends.from, ends.to)
    }

    /// The same with these flags.
    #[must_use]
    pub const fn flags(mut self, flags: TcpFlags) -> Self {
        self.tcp.flags = flags;
        self
    }

    /// The same with these numbers: sequence number and acknowledgment number.
    #[must_use]
    pub const fn numbers(mut self, seq: u32, ack: u32) -> Self {
        (self.tcp.seq, self.tcp.ack) = (seq, ack);
        self
    }

    /// The same with these options alone, aligned as the writer of `wire` does it.
    ///
    /// # Panics
    /// When there is no room for them.
    #[must_use]
    #[track_caller]
    pub fn with_options<'a>(mut self, options: impl IntoIterator<Item = TcpOption<'a>>) -> Self {
        let mut writer = OptionWriter::new();
        for option in options {
            assert!(writer.push(&option), "no room for {option:?}");
        }
        self.options = writer.finish().to_vec();
        self
    }

    /// The same with this payload.
    #[must_use]
    pub fn with_payload(mut self, payload: impl Into<Vec<u8>>) -> Self {
        self.payload = payload.into();
        self
    }

    /// The ends.
    #[must_use]
    pub fn ends(&self) -> Ends {
        Ends {
            from: (self.ip.src, self.tcp.src_port).into(),
            to: (self.ip.dst, self.tcp.dst_port).into(),
        }
    }

    /// The same from the other end: addresses and ports change places.
    #[must_use]
    pub const fn reversed(mut self) -> Self {
        (self.ip.src, self.ip.dst) = (self.ip.dst, self.ip.src);
        (self.tcp.src_port, self.tcp.dst_port) = (self.tcp.dst_port, self.tcp.src_port);
        self
    }

    /// The whole packet, from its IP header on, with all checksums in full.
    #[must_use]
    #[track_caller]
    pub fn bytes(&self) -> Vec<u8> {
        self.bytes_in(ChecksumState::Complete)
    }

    /// The same with its TCP checksum in this state: that of the pseudo-header alone where a carrier completes it.
    ///
    /// # Panics
    /// When lengths do not fit their fields.
    #[must_use]
    #[track_caller]
    pub fn bytes_in(&self, checksum: ChecksumState) -> Vec<u8> {
        let headers = self.ip.emitted_len() + TCP_HEADER_LEN + self.options.len();
        let mut packet = vec![0; headers];
        let payload_len = self.payload.len();
        write_headers(&self.ip, &self.tcp, &self.options, payload_len, &mut packet);
        packet.extend_from_slice(&self.payload);
        if checksum != ChecksumState::Partial {
            complete_checksum(&mut packet);
        }
        packet
    }

    /// Reads a packet, from its IP header on; its checksums may be anything. `None`: it is no whole TCP packet.
    #[must_use]
    pub fn parse(packet: &[u8]) -> Option<Self> {
        let ip = IpHeader::parse(packet).ok()?;
        let segment = packet.get(ip.header_len..ip.total_len)?;
        if ip.protocol != protocol::TCP {
            return None;
        }
        let (tcp, options) = TcpHeader::parse(segment).ok()?;
        Some(Self {
            ip,
            tcp,
            options: options.to_vec(),
            payload: segment[tcp.header_len..].to_vec(),
        })
    }

    /// The same of a packet that has to be as long as it says, and whose checksums have to be right.
    ///
    /// # Panics
    /// When they are not, or it is no TCP packet.
    #[must_use]
    #[track_caller]
    pub fn read(packet: &[u8]) -> Self {
        Self::read_in(packet, ChecksumState::Complete)
    }

    /// The same of a packet whose TCP checksum is in this state.
    ///
    /// # Panics
    /// As [`read`](Self::read).
    #[must_use]
    #[track_caller]
    pub fn read_in(packet: &[u8], checksum: ChecksumState) -> Self {
        let read = Self::parse(packet).unwrap_or_else(|| panic!("no TCP packet: {packet:02x?}"));
        assert_eq!(read.ip.total_len, packet.len(), "length of {packet:02x?}");
        let (header, segment) = packet.split_at(read.ip.header_len);
        if !read.ip.is_v6() {
            let sum = Sum::of(header).fold();
            assert_eq!(sum, 0xffff, "IP checksum of {packet:02x?}");
        }
        let pseudo = read.ip.pseudo_header_sum(segment.len());
        match checksum {
            ChecksumState::Complete => {
                let sum = pseudo.add(Sum::of(segment)).fold();
                assert_eq!(sum, 0xffff, "TCP checksum of {packet:02x?}");
            }
            ChecksumState::Partial => {
                let field = read.tcp.checksum;
                assert_eq!(field, pseudo.fold(), "pseudo-header's sum");
            }
            ChecksumState::Verified => {}
        }
        read
    }

    /// What its options say.
    #[must_use]
    pub fn view(&self) -> Options {
        Options::read(&self.options)
    }
}

/// An IP header as hosts write it for short packets of a protocol: no ECN, 64 hops, not to be fragmented.
#[must_use]
pub const fn ip_header(src: IpAddr, dst: IpAddr, protocol: u8) -> IpHeader {
    IpHeader {
        src,
        dst,
        protocol,
        header_len: 0,
        total_len: 0,
        traffic_class: 0,
        ttl: 64,
        identification: 0,
        dont_fragment: true,
        flow_label: 0,
    }
}

/// Writes the headers of a TCP packet in front of `payload_len` bytes of payload, which are the caller's, and gives
/// their length. The checksum's field has the sum of the pseudo-header, for whoever completes it. Nothing is allocated.
///
/// # Panics
/// When `out` is too short, or lengths do not fit their fields.
#[track_caller]
pub fn write_headers(
    ip: &IpHeader,
    tcp: &TcpHeader,
    options: &[u8],
    payload_len: usize,
    out: &mut [u8],
) -> usize {
    let options_at = TCP_HEADER_LEN;
    let tcp_len = options_at + options.len() + payload_len;
    let start = ip.emit(tcp_len, out);
    let segment = &mut out[start..];
    let tcp = TcpHeader {
        checksum: ip.pseudo_header_sum(tcp_len).fold(),
        ..*tcp
    };
    tcp.emit(options.len(), segment);
    segment[options_at..options_at + options.len()].copy_from_slice(options);
    start + options_at + options.len()
}

/// Writes the whole TCP checksum of a packet, whatever stands in its field.
///
/// # Panics
/// When it is no whole TCP packet.
#[track_caller]
pub fn complete_checksum(packet: &mut [u8]) {
    let ip = IpHeader::parse(packet).expect("an IP packet");
    let segment = &mut packet[ip.header_len..ip.total_len];
    segment[CHECKSUM..CHECKSUM + 2].fill(0);
    let pseudo = ip.pseudo_header_sum(segment.len());
    let sum = pseudo.add(Sum::of(segment)).checksum();
    segment[CHECKSUM..CHECKSUM + 2].copy_from_slice(&sum.to_be_bytes());
}

/// Where the checksum stands in a TCP header.
const CHECKSUM: usize = 16;

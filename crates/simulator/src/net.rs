//! Packets as the model ends read and write them.

use std::net::SocketAddr;

use flexcp_wire::{
    AddAddr, Dss, IpHeader, MpCapable, MpJoin, MptcpOption, OptionWriter, SackBlocks, Sum,
    TCP_HEADER_LEN, TcpFlags, TcpHeader, TcpOption, TcpOptions, Timestamps, protocol,
};

/// A packet that arrived.
#[derive(Clone, Debug)]
pub(crate) struct Incoming<'a> {
    /// Sender.
    pub(crate) from: SocketAddr,
    /// Receiver.
    pub(crate) to: SocketAddr,
    /// Fixed header.
    pub(crate) tcp: TcpHeader,
    /// Options.
    pub(crate) options: Options,
    /// Data.
    pub(crate) payload: &'a [u8],
}

/// The options that the model ends know.
#[derive(Clone, Default, Debug)]
pub(crate) struct Options {
    /// Maximum segment size.
    pub(crate) mss: Option<u16>,
    /// Window scale.
    pub(crate) window_scale: Option<u8>,
    /// SACK permitted.
    pub(crate) sack_permitted: bool,
    /// SACK blocks.
    pub(crate) sack: SackBlocks,
    /// Timestamps.
    pub(crate) timestamps: Option<Timestamps>,
    /// `MP_CAPABLE`.
    pub(crate) capable: Option<MpCapable>,
    /// `MP_JOIN`.
    pub(crate) join: Option<MpJoin>,
    /// DSS.
    pub(crate) dss: Option<Dss>,
    /// `ADD_ADDR`.
    pub(crate) add_addr: Option<AddAddr>,
    /// Key of an `MP_FASTCLOSE`.
    pub(crate) fast_close: Option<u64>,
    /// `MP_FAIL`.
    pub(crate) fail: bool,
    /// Any MPTCP option.
    pub(crate) mptcp: bool,
}

impl<'a> Incoming<'a> {
    /// `None`: not a TCP packet, or damaged when `checked`.
    #[must_use]
    pub(crate) fn parse(packet: &'a [u8], checked: bool) -> Option<Self> {
        let ip = IpHeader::parse(packet).ok()?;
        if ip.protocol != protocol::TCP {
            return None;
        }
        let segment = packet.get(ip.header_len..ip.total_len)?;
        if checked {
            let sum = ip.pseudo_header_sum(segment.len()).add(Sum::of(segment));
            let header = Sum::of(&packet[..ip.header_len]);
            if sum.fold() != 0xffff || (!ip.is_v6() && header.fold() != 0xffff) {
                return None;
            }
        }
        let (tcp, option_bytes) = TcpHeader::parse(segment).ok()?;
        let mut options = Options::default();
        for option in TcpOptions::new(option_bytes) {
            options.take(option.ok()?);
        }
        Some(Self {
            from: SocketAddr::new(ip.src, tcp.src_port),
            to: SocketAddr::new(ip.dst, tcp.dst_port),
            payload: &segment[tcp.header_len..],
            tcp,
            options,
        })
    }

    /// Whether all of these flags are set.
    #[must_use]
    pub(crate) fn has(&self, flags: TcpFlags) -> bool {
        self.tcp.flags.contains(flags)
    }

    /// Length of the data.
    #[must_use]
    pub(crate) const fn len(&self) -> u64 {
        self.payload.len() as u64
    }

    /// Whether there is no data.
    #[must_use]
    pub(crate) const fn is_empty(&self) -> bool {
        self.payload.is_empty()
    }
}

impl Options {
    fn take(&mut self, option: TcpOption<'_>) {
        match option {
            TcpOption::Mss(mss) => self.mss = Some(mss),
            TcpOption::WindowScale(shift) => self.window_scale = Some(shift),
            TcpOption::SackPermitted => self.sack_permitted = true,
            TcpOption::Sack(blocks) => self.sack = blocks,
            TcpOption::Timestamps(timestamps) => self.timestamps = Some(timestamps),
            TcpOption::FastOpen(_) | TcpOption::Unknown { .. } => {}
            TcpOption::Mptcp(option) => {
                self.mptcp = true;
                match option {
                    MptcpOption::Capable(capable) => self.capable = Some(capable),
                    MptcpOption::Join(join) => self.join = Some(join),
                    MptcpOption::Dss(dss) => self.dss = Some(dss),
                    MptcpOption::AddAddr(add_addr) => self.add_addr = Some(add_addr),
                    MptcpOption::FastClose(close) => self.fast_close = Some(close.key),
                    MptcpOption::Fail(_) => self.fail = true,
                    _ => {}
                }
            }
        }
    }
}

/// A packet to be sent.
#[derive(Clone, Debug)]
pub(crate) struct Outgoing {
    /// Sender.
    pub(crate) from: SocketAddr,
    /// Receiver.
    pub(crate) to: SocketAddr,
    /// Sequence number.
    pub(crate) seq: u32,
    /// Acknowledgment number.
    pub(crate) ack: u32,
    /// Flags.
    pub(crate) flags: TcpFlags,
    /// Window field.
    pub(crate) window: u16,
    /// Options.
    pub(crate) options: OptionWriter,
}

/// Packets that wait to be sent, and buffers for more.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    /// Waiting.
    pub(crate) packets: Vec<Vec<u8>>,
    /// Buffers.
    pub(crate) pool: Vec<Vec<u8>>,
    /// Sums are written in full, as on a wire; otherwise the carrier is trusted.
    pub(crate) checksums: bool,
    identification: u16,
}

impl Outbox {
    /// Nothing waits; `checksums`: sums are written in full.
    #[must_use]
    pub(crate) fn new(checksums: bool) -> Self {
        Self {
            checksums,
            ..Self::default()
        }
    }

    /// A buffer.
    pub(crate) fn buffer(&mut self) -> Vec<u8> {
        let mut buffer = self.pool.pop().unwrap_or_default();
        buffer.clear();
        buffer
    }

    /// Writes a packet.
    pub(crate) fn send(&mut self, mut outgoing: Outgoing, payload: &[u8]) {
        let mut packet = self.buffer();
        self.identification = self.identification.wrapping_add(1);
        let ip = IpHeader {
            src: outgoing.from.ip(),
            dst: outgoing.to.ip(),
            protocol: protocol::TCP,
            header_len: 0,
            total_len: 0,
            traffic_class: 0,
            ttl: 64,
            identification: self.identification,
            dont_fragment: true,
            flow_label: 0,
        };
        let options = outgoing.options.finish();
        let ip_len = ip.emitted_len();
        let header_len = ip_len + TCP_HEADER_LEN + options.len();
        packet.resize(header_len, 0);
        ip.emit(TCP_HEADER_LEN + options.len() + payload.len(), &mut packet);
        let tcp_len = TCP_HEADER_LEN + options.len() + payload.len();
        let pseudo = ip.pseudo_header_sum(tcp_len);
        let tcp = TcpHeader {
            src_port: outgoing.from.port(),
            dst_port: outgoing.to.port(),
            seq: outgoing.seq,
            ack: outgoing.ack,
            flags: outgoing.flags,
            window: outgoing.window,
            checksum: if self.checksums { 0 } else { pseudo.fold() },
            urgent: 0,
            header_len: TCP_HEADER_LEN + options.len(),
        };
        tcp.emit(options.len(), &mut packet[ip_len..]);
        packet[ip_len + TCP_HEADER_LEN..].copy_from_slice(options);
        packet.extend_from_slice(payload);
        if self.checksums {
            complete(&mut packet, ip_len, pseudo);
        }
        self.packets.push(packet);
    }
}

/// Writes the TCP checksum of a packet whose field is zero.
pub(crate) fn complete(packet: &mut [u8], ip_len: usize, pseudo: Sum) {
    let sum = pseudo.add(Sum::of(&packet[ip_len..])).checksum();
    packet[ip_len + 16..ip_len + 18].copy_from_slice(&sum.to_be_bytes());
}

/// Whether timestamp `a` is earlier than `b` (RFC 7323 section 5.2).
#[must_use]
pub(crate) const fn earlier(a: u32, b: u32) -> bool {
    a.wrapping_sub(b).cast_signed() < 0
}

//! Packets as the model ends read and write them.

use std::net::SocketAddr;

use flexcp_testkit::{Options, complete_checksum, ip_header, write_headers};
use flexcp_wire::{IpHeader, OptionWriter, Sum, TCP_HEADER_LEN, TcpFlags, TcpHeader, protocol};

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
        let options = Options::read(option_bytes);
        options.is_well_formed().then(|| Self {
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
            identification: self.identification,
            ..ip_header(outgoing.from.ip(), outgoing.to.ip(), protocol::TCP)
        };
        let tcp = TcpHeader {
            src_port: outgoing.from.port(),
            dst_port: outgoing.to.port(),
            seq: outgoing.seq,
            ack: outgoing.ack,
            flags: outgoing.flags,
            window: outgoing.window,
            ..TcpHeader::default()
        };
        let options = outgoing.options.finish();
        packet.resize(ip.emitted_len() + TCP_HEADER_LEN + options.len(), 0);
        write_headers(&ip, &tcp, options, payload.len(), &mut packet);
        packet.extend_from_slice(payload);
        if self.checksums {
            complete_checksum(&mut packet);
        }
        self.packets.push(packet);
    }
}

/// Whether timestamp `a` is earlier than `b` (RFC 7323 section 5.2).
#[must_use]
pub(crate) const fn earlier(a: u32, b: u32) -> bool {
    a.wrapping_sub(b).cast_signed() < 0
}

//! Packets that nobody's TCP would send: any source, any number, any option bytes.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use flexcp_wire::{IpHeader, Sum, TcpFlags, TcpHeader, TcpOption, protocol};

/// A forged TCP segment.
#[derive(Clone, Debug)]
pub(super) struct Forged {
    /// Claimed source.
    pub(super) from: SocketAddr,
    pub(super) to: SocketAddr,
    pub(super) seq: u32,
    pub(super) ack: u32,
    pub(super) flags: TcpFlags,
    /// As it stands: padded by [`Forged::bytes`], not checked.
    pub(super) options: Vec<u8>,
    pub(super) payload: Vec<u8>,
}

impl Forged {
    pub(super) fn new(from: SocketAddr, to: SocketAddr, flags: TcpFlags) -> Self {
        Self {
            from,
            to,
            seq: 0,
            ack: 0,
            flags,
            options: vec![],
            payload: vec![],
        }
    }

    pub(super) fn numbers(mut self, seq: u32, ack: u32) -> Self {
        (self.seq, self.ack) = (seq, ack);
        self
    }

    pub(super) fn option(mut self, option: &TcpOption<'_>) -> Self {
        let mut bytes = [0; 40];
        let len = option.emit(&mut bytes);
        self.options.extend_from_slice(&bytes[..len]);
        self
    }

    pub(super) fn raw_options(mut self, bytes: &[u8]) -> Self {
        self.options.extend_from_slice(bytes);
        self
    }

    pub(super) fn payload(mut self, bytes: &[u8]) -> Self {
        self.payload.extend_from_slice(bytes);
        self
    }

    /// The packet, from the IP header on, with both checksums right.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut options = self.options.clone();
        options.truncate(40);
        options.resize(options.len().next_multiple_of(4), 1);
        let tcp_len = 20 + options.len() + self.payload.len();
        let ip = ip_header(self.from.ip(), self.to.ip(), protocol::TCP);
        let ip_len = ip.emitted_len();
        let mut packet = vec![0; ip_len + tcp_len];
        ip.emit(tcp_len, &mut packet);
        let tcp = TcpHeader {
            src_port: self.from.port(),
            dst_port: self.to.port(),
            seq: self.seq,
            ack: self.ack,
            flags: self.flags,
            window: 4096,
            ..TcpHeader::default()
        };
        tcp.emit(options.len(), &mut packet[ip_len..]);
        let segment = &mut packet[ip_len..];
        segment[20..20 + options.len()].copy_from_slice(&options);
        segment[20 + options.len()..].copy_from_slice(&self.payload);
        let sum = ip.pseudo_header_sum(tcp_len).add(Sum::of(segment));
        segment[16..18].copy_from_slice(&sum.checksum().to_be_bytes());
        packet
    }
}

/// An ICMP error of kind `kind` and code `code` from `router`, about a segment with number `seq` that went
/// from `quoted.0` to `quoted.1`. IPv4.
pub(super) fn icmp(
    router: IpAddr,
    kind: [u8; 2],
    mtu: u16,
    quoted: (SocketAddr, SocketAddr),
    seq: u32,
) -> Vec<u8> {
    let inner = Forged::new(quoted.0, quoted.1, TcpFlags::ACK).numbers(seq, 0);
    let mut message = vec![kind[0], kind[1], 0, 0, 0, 0];
    message.extend_from_slice(&mtu.to_be_bytes());
    message.extend_from_slice(&inner.bytes()[..28]);
    let sum = Sum::of(&message).checksum();
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let ip = ip_header(router, quoted.0.ip(), protocol::ICMP);
    let mut packet = vec![0; ip.emitted_len()];
    ip.emit(message.len(), &mut packet);
    packet.extend_from_slice(&message);
    packet
}

fn ip_header(src: IpAddr, dst: IpAddr, protocol: u8) -> IpHeader {
    IpHeader {
        src,
        dst,
        protocol,
        header_len: 0,
        total_len: 0,
        traffic_class: 0,
        ttl: FORGED_TTL,
        identification: 0,
        dont_fragment: true,
        flow_label: 0,
    }
}

/// SplitMix64: which numbers an attack tries. The same seed gives the same attack.
#[derive(Debug)]
pub(super) struct Dice(pub(super) u64);

impl Dice {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(super) fn word(&mut self) -> u32 {
        let [a, b, c, d, ..] = self.next().to_be_bytes();
        u32::from_be_bytes([a, b, c, d])
    }

    pub(super) fn below(&mut self, end: u32) -> u32 {
        self.word() % end.max(1)
    }

    /// A number that no receiver could take: a quarter of the space or more from `right`.
    pub(super) fn far_from(&mut self, right: u32) -> u32 {
        right
            .wrapping_add(1 << 30)
            .wrapping_add(self.below(1 << 31))
    }

    /// An address of the [`SPOOFED`] network, with a port.
    pub(super) fn stranger(&mut self) -> SocketAddr {
        let host = self.below(1 << 17);
        let port = 1024 + self.below(60_000);
        let address = Ipv4Addr::from_bits(Ipv4Addr::new(198, 18, 0, 0).to_bits() | host);
        SocketAddr::new(address.into(), u16::try_from(port).unwrap_or(1024))
    }
}

/// Whether an address is of the network that spoofed packets claim to come from.
pub(super) fn is_spoofed(address: IpAddr) -> bool {
    matches!(address, IpAddr::V4(v4) if v4.octets()[0] == 198 && v4.octets()[1] & 0xfe == 18)
}

/// Tells forged packets from the others where both are seen.
pub(super) const FORGED_TTL: u8 = 99;

/// For benchmarks of networks (RFC 2544): nobody lives there.
pub(super) const SPOOFED: &str = "198.18.0.0/15";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forged_segment_parses_and_its_checksum_is_right() {
        let from = "198.18.0.1:1024".parse().unwrap();
        let to = "10.9.1.2:5000".parse().unwrap();
        let forged = Forged::new(from, to, TcpFlags::SYN)
            .numbers(7, 0)
            .raw_options(&[2, 4, 5, 180, 3])
            .payload(b"abc");
        let packet = forged.bytes();
        let ip = IpHeader::parse(&packet).unwrap();
        assert_eq!((ip.src, ip.dst), (from.ip(), to.ip()));
        let (tcp, options) = TcpHeader::parse(&packet[ip.header_len..]).unwrap();
        assert_eq!((tcp.seq, options), (7, &[2, 4, 5, 180, 3, 1, 1, 1][..]));
        let segment = &packet[ip.header_len..];
        let sum = ip.pseudo_header_sum(segment.len()).add(Sum::of(segment));
        assert_eq!(sum.checksum(), 0);
    }

    #[test]
    fn far_numbers_are_far_and_strangers_are_spoofed() {
        let mut dice = Dice(1);
        for _ in 0..1000 {
            let right = dice.word();
            let offset = dice.far_from(right).wrapping_sub(right);
            assert!((1 << 30..3 << 30).contains(&offset));
            assert!(is_spoofed(dice.stranger().ip()));
        }
        assert!(!is_spoofed("198.20.0.1".parse().unwrap()));
    }
}

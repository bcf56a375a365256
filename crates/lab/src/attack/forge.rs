//! Packets that nobody's TCP would send: any source, any number, any option bytes.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use flexcp_testkit::{self as testkit, Packet, Random, icmp_error, ip_header};
use flexcp_wire::{Ends, IpHeader, TcpFlags, TcpOption, protocol};

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
        let mut packet = Packet::new(self.from, self.to)
            .flags(self.flags)
            .numbers(self.seq, self.ack)
            .with_payload(&self.payload[..]);
        (packet.ip.ttl, packet.tcp.window) = (FORGED_TTL, 4096);
        packet.options = options;
        packet.bytes()
    }
}

/// An ICMP error of kind `kind` and code `code` from `router`, about a segment with number `seq` that went
/// from `quoted.0` to `quoted.1`. IPv4.
pub(super) fn icmp(
    router: IpAddr,
    kind: (u8, u8),
    mtu: u16,
    quoted: (SocketAddr, SocketAddr),
    seq: u32,
) -> Vec<u8> {
    let (from, to) = quoted;
    let ip = IpHeader {
        ttl: FORGED_TTL,
        ..ip_header(router, from.ip(), protocol::ICMP)
    };
    let segment = testkit::quoted(Ends { from, to }, seq);
    icmp_error(&ip, kind, mtu.into(), &segment)
}

/// Which numbers an attack tries. The same seed gives the same attack.
#[derive(Debug)]
pub(super) struct Dice(Random);

impl Dice {
    pub(super) const fn new(seed: u64) -> Self {
        Self(Random::new(seed))
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0.next()
    }

    pub(super) fn word(&mut self) -> u32 {
        self.0.word()
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
        let packet = Packet::read(&forged.bytes());
        assert_eq!(packet.ends(), Ends { from, to });
        assert_eq!(packet.tcp.seq, 7);
        assert_eq!(packet.options, [2, 4, 5, 180, 3, 1, 1, 1]);
        assert_eq!(packet.ip.ttl, FORGED_TTL);
    }

    #[test]
    fn far_numbers_are_far_and_strangers_are_spoofed() {
        let mut dice = Dice::new(1);
        for _ in 0..1000 {
            let right = dice.word();
            let offset = dice.far_from(right).wrapping_sub(right);
            assert!((1 << 30..3 << 30).contains(&offset));
            assert!(is_spoofed(dice.stranger().ip()));
        }
        assert!(!is_spoofed("198.20.0.1".parse().unwrap()));
    }
}

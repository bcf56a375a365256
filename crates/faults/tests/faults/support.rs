//! Packets to send through paths, and ways to look at what came out.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use flexcp_faults::{Path, Time, checksums_right};
use flexcp_testkit::Packet;
use flexcp_wire::{TcpFlags, TcpOption, TcpOptions};

/// A TCP packet to be built.
#[derive(Clone)]
pub(crate) struct Tcp {
    pub(crate) src: (IpAddr, u16),
    pub(crate) dst: (IpAddr, u16),
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) flags: TcpFlags,
    pub(crate) traffic_class: u8,
    pub(crate) options: Vec<u8>,
    pub(crate) payload: Vec<u8>,
}

impl Tcp {
    /// A data segment of 1000 bytes over IPv4.
    pub(crate) fn data() -> Self {
        Self {
            src: (Ipv4Addr::new(10, 0, 0, 1).into(), 1000),
            dst: (Ipv4Addr::new(10, 0, 0, 2).into(), 80),
            seq: 5000,
            ack: 7000,
            flags: TcpFlags::ACK,
            traffic_class: 0,
            options: vec![],
            payload: (0..1000_u32).map(|byte| byte.to_le_bytes()[0]).collect(),
        }
    }

    pub(crate) fn syn() -> Self {
        Self {
            flags: TcpFlags::SYN,
            payload: vec![],
            ..Self::data()
        }
    }

    pub(crate) fn ack() -> Self {
        Self {
            payload: vec![],
            ..Self::data()
        }
    }

    /// The same over IPv6.
    pub(crate) fn v6(mut self) -> Self {
        let address = |host| Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, host);
        self.src.0 = address(1).into();
        self.dst.0 = address(2).into();
        self
    }

    /// From the other end.
    pub(crate) fn reversed(mut self) -> Self {
        std::mem::swap(&mut self.src, &mut self.dst);
        self
    }

    pub(crate) fn options(mut self, options: &[u8]) -> Self {
        assert!(options.len().is_multiple_of(4));
        self.options = options.to_vec();
        self
    }

    pub(crate) fn build(&self) -> Vec<u8> {
        let mut packet = Packet::new(self.src.into(), self.dst.into())
            .flags(self.flags)
            .numbers(self.seq, self.ack)
            .with_payload(&self.payload[..]);
        (packet.ip.identification, packet.tcp.window) = (77, 500);
        packet.ip.traffic_class = self.traffic_class;
        packet.options.clone_from(&self.options);
        let bytes = packet.bytes();
        assert!(checksums_right(&bytes));
        bytes
    }
}

/// What a packet says; its checksums have to be right.
pub(crate) fn read(packet: &[u8]) -> Tcp {
    assert!(checksums_right(packet), "wrong checksum in {packet:02x?}");
    let read = Packet::read(packet);
    Tcp {
        src: (read.ip.src, read.tcp.src_port),
        dst: (read.ip.dst, read.tcp.dst_port),
        seq: read.tcp.seq,
        ack: read.tcp.ack,
        flags: read.tcp.flags,
        traffic_class: read.ip.traffic_class,
        options: read.options,
        payload: read.payload,
    }
}

/// The options of a packet, which have to be well-formed.
pub(crate) fn options_of(tcp: &Tcp) -> Vec<TcpOption<'_>> {
    let options = TcpOptions::new(&tcp.options).collect::<Result<_, _>>();
    options.expect("well-formed options")
}

pub(crate) fn path(faults: &str, seed: u64) -> Path {
    Path::new(
        faults.parse::<flexcp_faults::Faults>().expect(faults).0,
        seed,
    )
}

pub(crate) fn pair(first: &str, second: &str) -> (Path, Path) {
    let faults = |text: &str| text.parse::<flexcp_faults::Faults>().expect(text).0;
    Path::pair(faults(first), faults(second), 3)
}

/// Everything that still comes out, with its time.
pub(crate) fn drain(path: &mut Path) -> Vec<(Time, Vec<u8>)> {
    let mut out = vec![];
    while let Some(at) = path.poll_timeout() {
        while let Some(packet) = path.receive_timed(at) {
            out.push(packet);
        }
    }
    out
}

/// Sends a packet at a time and returns all that comes out of it, whenever.
pub(crate) fn through(path: &mut Path, at: Duration, packet: Vec<u8>) -> Vec<Vec<u8>> {
    path.send(at.into(), packet);
    drain(path).into_iter().map(|(_, packet)| packet).collect()
}

/// Packets that carry their number, `gap` apart; what comes out, with times and numbers.
pub(crate) fn stream(path: &mut Path, count: u32, gap: Duration) -> Vec<(Time, u32)> {
    let mut out = vec![];
    let mut collect = |path: &mut Path, now| {
        while let Some((at, packet)) = path.receive_timed(now) {
            let number = packet.last_chunk().expect("a number");
            out.push((at, u32::from_be_bytes(*number)));
        }
    };
    for number in 0..count {
        let now = Time::ZERO + gap * number;
        collect(path, now);
        let mut packet = vec![0x50; 100];
        packet.extend_from_slice(&number.to_be_bytes());
        path.send(now, packet);
    }
    while let Some(at) = path.poll_timeout() {
        collect(path, at);
    }
    out
}

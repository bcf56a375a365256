//! Packets of a capture, read one by one: for the order of captures, and for tests that look for something themselves.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::Result;
use flexcp_wire::{
    IpHeader, MptcpOption, TCP_HEADER_LEN, TcpFlags, TcpHeader, TcpOption, TcpOptions, protocol,
};

use super::frames::Frames;

/// A TCP packet of a capture.
#[derive(Clone, Debug)]
pub struct Taken {
    /// Nanoseconds since 1970.
    pub time: u64,
    /// Its sender.
    pub from: SocketAddr,
    /// Its receiver.
    pub to: SocketAddr,
    /// Its flags.
    pub flags: TcpFlags,
    /// What it says of MPTCP.
    pub mptcp: Vec<MptcpOption>,
    /// Bytes of payload.
    pub payload: usize,
}

impl Taken {
    /// Whether it is the first packet of a flow.
    #[must_use]
    pub const fn is_syn(&self) -> bool {
        self.flags.contains(TcpFlags::SYN) && !self.flags.contains(TcpFlags::ACK)
    }
}

/// What orders a packet among the others of its flow.
pub(super) struct Segment {
    pub(super) header: TcpHeader,
    pub(super) tsval: Option<u32>,
    pub(super) mptcp: Vec<MptcpOption>,
    /// Bytes, also those that the capture has not kept.
    pub(super) payload: usize,
}

/// The TCP packets of a file, in its order.
pub fn packets(file: &Path) -> Result<Vec<Taken>> {
    let mut frames = Frames::open(file)?;
    let mut taken = vec![];
    while let Some(frame) = frames.next()? {
        if let Some((from, to, segment)) = tcp_ends(&frame.packet) {
            taken.push(Taken {
                time: frame.time,
                from,
                to,
                flags: segment.header.flags,
                mptcp: segment.mptcp,
                payload: segment.payload,
            });
        }
    }
    Ok(taken)
}

/// Sender, receiver and header of a TCP packet, and how many bytes of payload it says that it has; `None` for anything else.
pub(super) fn tcp_ends(packet: &[u8]) -> Option<(SocketAddr, SocketAddr, Segment)> {
    // The IP length counts bytes that were not kept.
    let mut header = [0; 120];
    let kept = packet.len().min(header.len());
    header[..kept].copy_from_slice(&packet[..kept]);
    let is_v4 = header[0] >> 4 == 4;
    let (at, value) = if is_v4 {
        (2, kept)
    } else {
        (4, kept.checked_sub(40)?)
    };
    let said = usize::from(u16::from_be_bytes([header[at], header[at + 1]])) + kept - value;
    header[at..at + 2].copy_from_slice(&u16::try_from(value).ok()?.to_be_bytes());
    let ip = IpHeader::parse(&header[..kept]).ok()?;
    if ip.protocol != protocol::TCP {
        return None;
    }
    let ip_len = if is_v4 {
        usize::from(header[0] & 0x0f) * 4
    } else {
        40
    };
    let (tcp, options) = TcpHeader::parse(header.get(ip_len..kept)?).ok()?;
    Some((
        SocketAddr::new(ip.src, tcp.src_port),
        SocketAddr::new(ip.dst, tcp.dst_port),
        Segment {
            header: tcp,
            tsval: tsval(options),
            mptcp: mptcp(options),
            payload: said.saturating_sub(ip_len + TCP_HEADER_LEN + options.len()),
        },
    ))
}

fn tsval(options: &[u8]) -> Option<u32> {
    TcpOptions::new(options).find_map(|option| match option {
        Ok(TcpOption::Timestamps(timestamps)) => Some(timestamps.val),
        _ => None,
    })
}

fn mptcp(options: &[u8]) -> Vec<MptcpOption> {
    let said = TcpOptions::new(options).filter_map(|option| match option {
        Ok(TcpOption::Mptcp(option)) => Some(option),
        _ => None,
    });
    said.collect()
}

#[cfg(test)]
mod tests {
    use flexcp_testkit::Packet;

    use super::*;

    #[test]
    fn payload_is_what_the_packet_says_though_not_all_was_kept() {
        let ends: [[SocketAddr; 2]; 2] = [
            [([10, 1, 1, 2], 1).into(), ([10, 9, 1, 2], 80).into()],
            [([0xfd01; 8], 1).into(), ([0xfd09; 8], 80).into()],
        ];
        for [from, to] in ends {
            let payload = |len| {
                let mut packet = Packet::new(from, to).with_payload(vec![0; len]).bytes();
                packet.truncate(61);
                tcp_ends(&packet).unwrap().2.payload
            };
            assert_eq!([payload(0), payload(1), payload(1400)], [0, 1, 1400]);
        }
    }
}

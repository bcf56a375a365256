//! ICMP errors about TCP segments, as routers send them.

use flexcp_wire::{Ends, IpHeader, Sum, protocol};

use crate::packet::ip_header;

/// An ICMP error with the header `ip`, whose protocol says of which family it is: type and code, the four bytes that
/// depend on the type, what it quotes. All checksums are right.
#[must_use]
#[track_caller]
pub fn icmp_error(ip: &IpHeader, (kind, code): (u8, u8), value: u32, quoted: &[u8]) -> Vec<u8> {
    let mut message = vec![kind, code, 0, 0];
    message.extend_from_slice(&value.to_be_bytes());
    message.extend_from_slice(quoted);
    let mut sum = Sum::of(&message);
    if ip.protocol == protocol::ICMPV6 {
        sum = sum.add(ip.pseudo_header_sum(message.len()));
    }
    message[2..4].copy_from_slice(&sum.checksum().to_be_bytes());
    let mut packet = vec![0; ip.emitted_len()];
    ip.emit(message.len(), &mut packet);
    packet.extend_from_slice(&message);
    packet
}

/// The start of a segment of 1,380 bytes with this number, as errors quote it: the IP header and 8 bytes behind it.
#[must_use]
pub fn quoted(ends: Ends, seq: u32) -> Vec<u8> {
    let ip = ip_header(ends.from.ip(), ends.to.ip(), protocol::TCP);
    let mut quoted = vec![0; ip.emitted_len()];
    // The quote says how long the packet was, not how much of it is quoted.
    ip.emit(1400, &mut quoted);
    quoted.extend_from_slice(&ends.from.port().to_be_bytes());
    quoted.extend_from_slice(&ends.to.port().to_be_bytes());
    quoted.extend_from_slice(&seq.to_be_bytes());
    quoted
}

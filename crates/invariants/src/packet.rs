//! One packet as the checker sees it.

use std::net::SocketAddr;

use flexcp_testkit::Options;
use flexcp_wire::{ChecksumState, IpHeader, Offload, Sum, TcpFlags, TcpHeader, protocol};

/// Where a packet was seen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Point {
    /// From a client into the proxy.
    FromClient,
    /// From the proxy to a client.
    ToClient,
    /// From a server into the proxy.
    FromServer,
    /// From the proxy to a server.
    ToServer,
}

impl Point {
    /// Whether the proxy receives the packet.
    #[must_use]
    pub const fn is_input(self) -> bool {
        matches!(self, Self::FromClient | Self::FromServer)
    }
}

/// The payload of an observed packet.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// The bytes, of which a capture may hold only the first.
    Bytes(&'a [u8]),
    /// Zeros that the proxy made.
    Zeros,
}

/// A packet that passed.
#[derive(Clone, Copy, Debug)]
pub struct Observation<'a> {
    /// When, in microseconds; never less than that of an earlier packet.
    pub time: u64,
    /// Where.
    pub point: Point,
    /// IP and TCP header with options.
    pub header: &'a [u8],
    /// What stands behind the headers.
    pub payload: Payload<'a>,
    /// Checksum state and segmentation.
    pub offload: Offload,
}

impl<'a> Observation<'a> {
    /// From one whole packet. `None` when its headers can't be found.
    #[must_use]
    pub fn whole(time: u64, point: Point, packet: &'a [u8], offload: Offload) -> Option<Self> {
        let ip_len = ip_header_len(packet)?;
        let tcp_len = usize::from(packet.get(ip_len + 12)? >> 4) * 4;
        let (header, payload) = packet.split_at_checked(ip_len + tcp_len)?;
        Some(Self {
            time,
            point,
            header,
            payload: Payload::Bytes(payload),
            offload,
        })
    }
}

/// Length of the fixed IPv6 header.
const IPV6: usize = 40;

/// Length of the IP header, with the extension headers that may stand before a segment.
fn ip_header_len(packet: &[u8]) -> Option<usize> {
    let first = *packet.first()?;
    match first >> 4 {
        4 => Some(usize::from(first & 0x0f) * 4),
        6 => {
            let (mut next, mut len) = (*packet.get(6)?, IPV6);
            // Hop-by-hop options, routing, destination options (RFC 8200 section 4).
            while matches!(next, 0 | 43 | 60) {
                next = *packet.get(len)?;
                len += (usize::from(*packet.get(len + 1)?) + 1) * 8;
            }
            Some(len)
        }
        _ => None,
    }
}

/// The headers' meaning.
#[derive(Clone, Debug)]
pub(crate) struct View<'a> {
    pub(crate) ip: IpHeader,
    pub(crate) tcp: TcpHeader,
    pub(crate) options_len: usize,
    pub(crate) options: Options,
    pub(crate) payload: Payload<'a>,
    /// As the IP header says.
    pub(crate) payload_len: u64,
    /// Payload of its longest segment.
    pub(crate) segment: u64,
}

impl<'a> View<'a> {
    /// # Errors
    /// What is malformed.
    pub(crate) fn parse(seen: &Observation<'a>) -> Result<Self, String> {
        let header = seen.header;
        let (mut fixed, ip_len) = fixed_header(header)?;
        // The IP length counts payload that is not in the header slice.
        let total = ip_total_len(header);
        set_total_len(&mut fixed, header.len());
        let ip = IpHeader::parse(&fixed[..header.len()]).map_err(|error| error.to_string())?;
        if ip.protocol != protocol::TCP {
            return Err("not TCP".into());
        }
        let (tcp, option_bytes) = header
            .get(ip_len..)
            .ok_or("cut short")
            .and_then(|bytes| TcpHeader::parse(bytes).map_err(|_| "bad TCP header"))?;
        let payload_len = total
            .checked_sub(ip_len + tcp.header_len)
            .ok_or("IP length shorter than the headers")?;
        let options = Options::read(option_bytes);
        if let Some(error) = options.broken {
            return Err(error.to_string());
        }
        Ok(Self {
            ip,
            tcp,
            options_len: tcp.header_len - flexcp_wire::TCP_HEADER_LEN,
            options,
            payload: seen.payload,
            payload_len: payload_len as u64,
            segment: seen.offload.gso.map_or(payload_len as u64, |gso| {
                (payload_len as u64).min(gso.size.into())
            }),
        })
    }

    pub(crate) fn source(&self) -> SocketAddr {
        SocketAddr::new(self.ip.src, self.tcp.src_port)
    }

    pub(crate) fn destination(&self) -> SocketAddr {
        SocketAddr::new(self.ip.dst, self.tcp.dst_port)
    }

    pub(crate) fn has(&self, flag: TcpFlags) -> bool {
        self.tcp.flags.contains(flag)
    }

    /// Whether it asks for a connection: a SYN without ACK. With RST beside it nobody takes it for one (RFC 9293
    /// section 3.10.7.2).
    pub(crate) fn opens(&self) -> bool {
        let odd = TcpFlags::ACK | TcpFlags::RST;
        self.has(TcpFlags::SYN) && !self.tcp.flags.intersects(odd)
    }

    /// The bytes that there are; none for zeros.
    pub(crate) fn bytes(&self) -> &'a [u8] {
        match self.payload {
            Payload::Bytes(bytes) => {
                let len = usize::try_from(self.payload_len).unwrap_or(usize::MAX);
                bytes.get(..len).unwrap_or(bytes)
            }
            Payload::Zeros => &[],
        }
    }

    /// Whether everything that is known of the payload is zero.
    pub(crate) fn is_zeros(&self) -> bool {
        match self.payload {
            Payload::Bytes(_) => self.bytes().iter().all(|byte| *byte == 0),
            Payload::Zeros => true,
        }
    }

    /// Whether the checksum field is right: of the whole packet, or of the pseudo-header when the carrier
    /// completes it. `None` when it can't be known.
    pub(crate) fn checksum_is_right(&self, seen: &Observation<'_>) -> Option<bool> {
        self.checksum_is(seen, seen.offload.checksum)
    }

    /// The same, whatever the offload says of it, of a packet that nobody has to complete.
    pub(crate) fn sum_is_right(&self, seen: &Observation<'_>) -> Option<bool> {
        self.checksum_is(seen, ChecksumState::Complete)
    }

    fn checksum_is(&self, seen: &Observation<'_>, state: ChecksumState) -> Option<bool> {
        let ip_len = seen.header.len() - self.tcp.header_len;
        let tcp_len = self.tcp.header_len + usize::try_from(self.payload_len).unwrap_or(usize::MAX);
        let pseudo = self.ip.pseudo_header_sum(tcp_len);
        match state {
            ChecksumState::Verified => None,
            ChecksumState::Partial => Some(same_sum(self.tcp.checksum, pseudo.fold())),
            ChecksumState::Complete => {
                let payload = match self.payload {
                    Payload::Bytes(bytes) if bytes.len() as u64 >= self.payload_len => {
                        Sum::of(self.bytes())
                    }
                    Payload::Bytes(_) => return None,
                    Payload::Zeros => Sum::default(),
                };
                let sum = pseudo.add(Sum::of(&seen.header[ip_len..])).add(payload);
                Some(sum.fold() == 0xffff || sum.fold() == 0)
            }
        }
    }

    /// Whether the IPv4 header checksum is right.
    pub(crate) fn ip_checksum_is_right(&self, seen: &Observation<'_>) -> bool {
        let ip_len = seen.header.len() - self.tcp.header_len;
        self.ip.is_v6() || Sum::of(&seen.header[..ip_len]).fold() == 0xffff
    }
}

/// Both forms of zero are the same sum.
fn same_sum(a: u16, b: u16) -> bool {
    a == b || (matches!(a, 0 | 0xffff) && matches!(b, 0 | 0xffff))
}

/// A copy of the header to parse, and the length of the IP header.
fn fixed_header(header: &[u8]) -> Result<([u8; 128], usize), String> {
    let mut fixed = [0; 128];
    let ip_len = ip_header_len(header).ok_or("not IP")?;
    let copy = fixed.get_mut(..header.len()).ok_or("headers too long")?;
    copy.copy_from_slice(header);
    if header.len() < ip_len + flexcp_wire::TCP_HEADER_LEN {
        return Err("headers cut short".into());
    }
    Ok((fixed, ip_len))
}

fn ip_total_len(header: &[u8]) -> usize {
    let field = |at: usize| usize::from(u16::from_be_bytes([header[at], header[at + 1]]));
    if header[0] >> 4 == 4 {
        field(2)
    } else {
        IPV6 + field(4)
    }
}

/// Makes the header's length that of the slice, which has no payload.
fn set_total_len(fixed: &mut [u8; 128], len: usize) {
    let (at, value) = if fixed[0] >> 4 == 4 {
        (2, len)
    } else {
        (4, len - IPV6)
    };
    let value = u16::try_from(value).unwrap_or(u16::MAX).to_be_bytes();
    fixed[at..at + 2].copy_from_slice(&value);
}

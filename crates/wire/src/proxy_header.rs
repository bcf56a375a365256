//! The header of the PROXY protocol, version 2, by haproxy: who a connection is from, told a server before the stream
//! (<https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt>).

use core::net::{IpAddr, SocketAddr};

use crate::bytes::{Reader, Writer};
use crate::{Ends, ParseError};

/// Most bytes that this crate writes of such a header: that of IPv6.
pub const PROXY_HEADER_MAX_LEN: usize = 16 + 36;

/// Who a connection is from, and whom it has asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProxyHeader {
    /// Of the client and of what it has connected to. Of two families, the IPv4 one is written as a mapped address.
    pub ends: Ends,
}

impl ProxyHeader {
    /// Writes it; returns its length.
    ///
    /// # Panics
    /// When `out` is shorter than [`PROXY_HEADER_MAX_LEN`], and there is no room.
    pub fn emit(&self, out: &mut [u8]) -> usize {
        let mut writer = Writer::new(out);
        writer.put(&SIGNATURE);
        writer.u8(VERSION_AND_PROXY);
        let (from, to) = (self.ends.from, self.ends.to);
        if let (IpAddr::V4(source), IpAddr::V4(destination)) = (from.ip(), to.ip()) {
            writer.u8(TCP_OVER_IPV4);
            writer.u16(12);
            writer.put(&source.octets());
            writer.put(&destination.octets());
        } else {
            writer.u8(TCP_OVER_IPV6);
            writer.u16(36);
            writer.put(&mapped(from.ip()));
            writer.put(&mapped(to.ip()));
        }
        writer.u16(from.port());
        writer.u16(to.port());
        writer.len()
    }

    /// Reads it at the front of a stream; returns its length, too. TLVs behind the addresses are passed over.
    ///
    /// # Errors
    /// When it is not complete, or none of TCP over IP that a proxy has written.
    pub fn parse(stream: &[u8]) -> Result<(Self, usize), ParseError> {
        let mut reader = Reader::new(stream);
        let signature = reader.array::<12>().ok_or(ParseError::Truncated)?;
        let fields = (reader.u8(), reader.u8(), reader.u16());
        let (Some(version), Some(family), Some(len)) = fields else {
            return Err(ParseError::Truncated);
        };
        if signature != SIGNATURE || version != VERSION_AND_PROXY {
            return Err(ParseError::ProxyHeader);
        }
        let len = 16 + usize::from(len);
        let behind = stream.get(16..len).ok_or(ParseError::Truncated)?;
        let ends = match family {
            TCP_OVER_IPV4 => ends::<4>(behind),
            TCP_OVER_IPV6 => ends::<16>(behind),
            _ => None,
        };
        let ends = ends.ok_or(ParseError::ProxyHeader)?;
        Ok((Self { ends }, len))
    }
}

/// Two addresses, then two ports.
fn ends<const N: usize>(bytes: &[u8]) -> Option<Ends>
where
    IpAddr: From<[u8; N]>,
{
    let mut reader = Reader::new(bytes);
    let (source, destination) = (reader.array::<N>()?, reader.array::<N>()?);
    Some(Ends {
        from: SocketAddr::new(source.into(), reader.u16()?),
        to: SocketAddr::new(destination.into(), reader.u16()?),
    })
}

fn mapped(addr: IpAddr) -> [u8; 16] {
    match addr {
        IpAddr::V4(addr) => addr.to_ipv6_mapped().octets(),
        IpAddr::V6(addr) => addr.octets(),
    }
}

const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
const VERSION_AND_PROXY: u8 = 0x21;
const TCP_OVER_IPV4: u8 = 0x11;
const TCP_OVER_IPV6: u8 = 0x21;

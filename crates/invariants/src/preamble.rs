//! What clients say to proxies that connect on, and what they are answered (RFC 8803, RFC 1928, RFC 1929).

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use flexcp_wire::{
    ConvertError, ConvertFault, ConvertMessage, ConvertTlv, SocksAddr, SocksCommand,
    SocksCredentials, SocksFault, SocksGreeting, SocksReply, SocksRequest, parse_socks_judgement,
    parse_socks_method, socks_method,
};

/// What a client says before its stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Preamble {
    /// TLVs of 0-RTT TCP Convert (RFC 8803).
    Convert,
    /// The same, to a converter that takes a message with the SYN only once it has connected on.
    Early,
    /// The messages of SOCKS5 (RFC 1928, RFC 1929).
    Socks5,
}

/// Bytes of a stream's beginning that are kept: more than any preamble and a segment behind it.
const KEPT: usize = 4096;

/// A server, as its client names it: its address, unless that is a name, and its port.
pub(crate) type Named = (Option<IpAddr>, u16);

/// The first bytes of a stream, in their order.
#[derive(Default, Debug)]
pub(crate) struct Head {
    pub(crate) bytes: Vec<u8>,
    /// Those that came before what stands in front of them.
    later: BTreeMap<usize, Vec<u8>>,
}

impl Head {
    /// Takes bytes from an offset on. `false`: others stand there.
    pub(crate) fn put(&mut self, at: u64, bytes: &[u8]) -> bool {
        let same = self.matches(at, bytes);
        let at = usize::try_from(at).unwrap_or(KEPT);
        if at < KEPT {
            self.later.insert(at, bytes.to_vec());
        }
        while let Some(entry) = self.later.first_entry() {
            let Some(known) = self.bytes.len().checked_sub(*entry.key()) else {
                break;
            };
            let part = entry.remove();
            self.bytes
                .extend_from_slice(part.get(known..).unwrap_or(&[]));
        }
        same
    }

    /// Whether nothing that is known contradicts these bytes.
    pub(crate) fn matches(&self, at: u64, bytes: &[u8]) -> bool {
        let at = usize::try_from(at).unwrap_or(usize::MAX);
        let known = self.bytes.get(at..).unwrap_or(&[]);
        known.iter().zip(bytes).all(|(known, byte)| known == byte)
    }
}

/// What the bytes so far are.
pub(crate) enum Read<T> {
    More,
    Whole(T),
    /// Nothing that leads to a connection.
    Wrong,
}

/// What an answer comes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    Connected,
    /// The server is not there: it has refused, can't be reached, or is silent.
    Refused,
    /// Whoever answers will not, or cannot, connect there.
    Declined,
}

impl Preamble {
    /// Whom the client names, and how long its preamble is.
    pub(crate) fn read(self, bytes: &[u8]) -> Read<(Named, usize)> {
        match self {
            Self::Convert | Self::Early => read_convert(bytes),
            Self::Socks5 => read_socks(bytes),
        }
    }

    /// What the answer is, and how long.
    pub(crate) fn read_answer(self, bytes: &[u8]) -> Read<(Answer, usize)> {
        match self {
            Self::Convert | Self::Early => read_convert_answer(bytes),
            Self::Socks5 => read_socks_answer(bytes),
        }
    }
}

/// Whether a client that has said that has named this server, as far as it can be told.
pub(crate) fn names((ip, port): Named, server: SocketAddr) -> bool {
    port == server.port() && ip.is_none_or(|ip| ip == server.ip().to_canonical())
}

/// Whom the client names, and how long its preamble is.
fn read_convert(bytes: &[u8]) -> Read<(Named, usize)> {
    let (message, len) = match ConvertMessage::parse(bytes) {
        Ok(read) => read,
        Err(ConvertFault::Incomplete(_)) => return Read::More,
        Err(_) => return Read::Wrong,
    };
    let connect = message.tlvs().find_map(|tlv| match tlv {
        ConvertTlv::Connect(connect) => Some(connect),
        _ => None,
    });
    connect.map_or(Read::Wrong, |connect| {
        Read::Whole(((Some(connect.addr), connect.port), len))
    })
}

/// The same by SOCKS5. Whether a user name stands before the request, the version of the message tells.
fn read_socks(bytes: &[u8]) -> Read<(Named, usize)> {
    let read = || {
        let (_, mut at) = SocksGreeting::parse(bytes)?;
        match SocksCredentials::parse(&bytes[at..]) {
            Ok((_, len)) => at += len,
            Err(SocksFault::Version(_)) => {}
            Err(fault) => return Err(fault),
        }
        let (request, len) = SocksRequest::parse(&bytes[at..])?;
        let ip = match request.to {
            SocksAddr::Ip(ip) => Some(ip.to_canonical()),
            SocksAddr::Name(_) => None,
        };
        Ok((request.command, (ip, request.port), at + len))
    };
    match read() {
        Ok((SocksCommand::Connect, named, len)) => Read::Whole((named, len)),
        Err(SocksFault::Incomplete(_)) => Read::More,
        Ok(_) | Err(_) => Read::Wrong,
    }
}

fn read_convert_answer(bytes: &[u8]) -> Read<(Answer, usize)> {
    let (message, len) = match ConvertMessage::parse(bytes) {
        Ok(read) => read,
        Err(ConvertFault::Incomplete(_)) => return Read::More,
        Err(_) => return Read::Wrong,
    };
    let error = message.tlvs().find_map(|tlv| match tlv {
        ConvertTlv::Error(error) => Some(error),
        _ => None,
    });
    let answer = match error {
        None => Answer::Connected,
        Some(ConvertError::ConnectionReset | ConvertError::Unreachable(_)) => Answer::Refused,
        Some(_) => Answer::Declined,
    };
    Read::Whole((answer, len))
}

/// The same by SOCKS5.
fn read_socks_answer(bytes: &[u8]) -> Read<(Answer, usize)> {
    let read = || {
        let (method, mut at) = parse_socks_method(bytes)?;
        let mut knows = method != socks_method::UNACCEPTABLE;
        if method == socks_method::PASSWORD {
            let (right, len) = parse_socks_judgement(&bytes[at..])?;
            knows = right;
            at += len;
        }
        if !knows {
            return Ok((Answer::Declined, at));
        }
        let (reply, _, _, len) = SocksReply::parse(&bytes[at..])?;
        let answer = match reply {
            SocksReply::Succeeded => Answer::Connected,
            SocksReply::NetworkUnreachable
            | SocksReply::HostUnreachable
            | SocksReply::Refused
            | SocksReply::Expired => Answer::Refused,
            _ => Answer::Declined,
        };
        Ok((answer, at + len))
    };
    match read() {
        Ok(read) => Read::Whole(read),
        Err(SocksFault::Incomplete(_)) => Read::More,
        Err(_) => Read::Wrong,
    }
}

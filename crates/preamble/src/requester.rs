//! The client's side: what is said to a proxy that is to connect on, all at once, and what its answer means.
//!
//! SOCKS5 is said without waiting for the answers in between (as "optimistic" clients do): method, user name and password, and
//! request are one flight, of which each server reads one message after the other.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::net::SocketAddr;

use flexcp_wire::{
    CONVERT_MAX_LEN, Connect, ConvertError, ConvertFault, ConvertMessage, ConvertTlv,
    ConvertWriter, SOCKS_MAX_LEN, SocksAddr, SocksCommand, SocksCredentials, SocksFault,
    SocksGreeting, SocksReply, SocksRequest, parse_socks_judgement, parse_socks_method,
    socks_method,
};

use crate::{Fault, Protocol, Refusal};

/// Whom a client says it is (RFC 1929).
#[derive(Clone, Copy)]
pub struct Identity<'a> {
    /// Its name, 1 to 255 bytes.
    pub user: &'a [u8],
    /// Its password, 1 to 255 bytes.
    pub password: &'a [u8],
}

/// What asks a proxy for a connection with a server: the whole of it, in one flight. With an `identity` that is what the client says
/// it is where the protocol asks for that (SOCKS5).
#[must_use]
pub fn request(protocol: Protocol, to: SocketAddr, identity: Option<Identity<'_>>) -> Box<[u8]> {
    match protocol {
        Protocol::Convert => convert_request(to, None).into(),
        Protocol::Socks5 => socks_request(to, identity).into(),
    }
}

/// The same for a converter, with a cookie that it has handed out; one that is too long for a message is left out.
#[must_use]
pub fn convert_request(to: SocketAddr, cookie: Option<&[u8]>) -> Vec<u8> {
    let mut message = alloc::vec![0; CONVERT_MAX_LEN];
    let mut writer = ConvertWriter::new(&mut message);
    writer.push(&ConvertTlv::Connect(Connect {
        addr: to.ip(),
        port: to.port(),
        options: &[],
    }));
    if let Some(cookie) = cookie {
        writer.push(&ConvertTlv::Cookie(cookie));
    }
    let len = writer.finish();
    message.truncate(len);
    message
}

fn socks_request(to: SocketAddr, identity: Option<Identity<'_>>) -> Vec<u8> {
    let mut flight = Vec::new();
    let mut message = [0; SOCKS_MAX_LEN];
    let methods = [identity.map_or(socks_method::NONE, |_| socks_method::PASSWORD)];
    let len = SocksGreeting { methods: &methods }.emit(&mut message);
    flight.extend_from_slice(&message[..len]);
    if let Some(Identity { user, password }) = identity {
        let len = SocksCredentials { user, password }.emit(&mut message);
        flight.extend_from_slice(&message[..len]);
    }
    let wish = SocksRequest {
        command: SocksCommand::Connect,
        to: SocksAddr::Ip(to.ip()),
        port: to.port(),
    };
    let len = wish.emit(&mut message);
    flight.extend_from_slice(&message[..len]);
    flight
}

/// What has been heard of the answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Heard {
    /// It is not complete.
    More,
    /// The connection is there: what stands behind the answer is the server's.
    Granted,
    /// There is none, for what the proxy says of the server or of the client.
    Refused(Refusal),
    /// The proxy can't be asked so.
    Failed(Fault),
}

/// One proxy's answer, as it comes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Requester {
    stage: Stage,
    is_v6: bool,
    /// The front of a message that is not complete.
    kept: Vec<u8>,
}

/// The message that comes next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// Convert: the only one.
    Message,
    /// SOCKS5: the method that is taken.
    Method { password: bool },
    /// Whether user name and password are right.
    Judgement,
    /// The answer to the request.
    Reply,
    /// None.
    Over,
}

/// What a message says: bytes that it takes, and what follows.
enum Read {
    More,
    Next(usize, Stage),
    End(usize, Heard),
}

impl Requester {
    /// Of whoever has said [`request`] with the same arguments.
    #[must_use]
    pub const fn new(protocol: Protocol, to: SocketAddr, has_identity: bool) -> Self {
        Self {
            stage: match protocol {
                Protocol::Convert => Stage::Message,
                Protocol::Socks5 => Stage::Method {
                    password: has_identity,
                },
            },
            is_v6: to.is_ipv6(),
            kept: Vec::new(),
        }
    }

    /// Takes the next bytes of the proxy. Says how many of them are of its answer, and what that has come to.
    pub fn hear(&mut self, bytes: &[u8]) -> (usize, Heard) {
        let before = self.kept.len();
        self.kept.extend_from_slice(bytes);
        let mut taken = 0;
        loop {
            match self.read(&self.kept[taken..]) {
                Read::More => {
                    self.kept.drain(..taken);
                    return (bytes.len(), Heard::More);
                }
                Read::Next(len, stage) => {
                    taken += len;
                    self.stage = stage;
                }
                Read::End(len, heard) => {
                    self.kept = Vec::new();
                    self.stage = Stage::Over;
                    return ((taken + len).saturating_sub(before), heard);
                }
            }
        }
    }

    fn read(&self, bytes: &[u8]) -> Read {
        match self.stage {
            Stage::Message => self.read_convert(bytes),
            Stage::Method { password } => read_method(bytes, password),
            Stage::Judgement => match parse_socks_judgement(bytes) {
                Ok((true, len)) => Read::Next(len, Stage::Reply),
                Ok((false, len)) => Read::End(len, Heard::Failed(Fault::Credentials)),
                Err(fault) => unread(fault),
            },
            Stage::Reply => self.read_reply(bytes),
            Stage::Over => Read::End(0, Heard::Failed(Fault::Protocol)),
        }
    }

    fn read_convert(&self, bytes: &[u8]) -> Read {
        let (message, len) = match ConvertMessage::parse(bytes) {
            Ok(read) => read,
            Err(ConvertFault::Incomplete(_)) => return Read::More,
            Err(ConvertFault::NotConvert | ConvertFault::NoLength | ConvertFault::Version(_)) => {
                return Read::End(0, Heard::Failed(Fault::Protocol));
            }
            Err(ConvertFault::Malformed { len }) => {
                return Read::End(len, Heard::Failed(Fault::Malformed));
            }
            Err(ConvertFault::Unsupported { len, .. }) => {
                return Read::End(len, Heard::Failed(Fault::Unsupported));
            }
        };
        let error = message.tlvs().find_map(|tlv| match tlv {
            ConvertTlv::Error(error) => Some(error),
            _ => None,
        });
        let heard = error.map_or(Heard::Granted, |error| self.refused_by_converter(&error));
        Read::End(len, heard)
    }

    const fn refused_by_converter(&self, error: &ConvertError<'_>) -> Heard {
        match *error {
            ConvertError::UnsupportedVersion(_) => Heard::Failed(Fault::Protocol),
            ConvertError::Malformed(_) => Heard::Failed(Fault::Malformed),
            ConvertError::MissingCookie(_) => Heard::Failed(Fault::Credentials),
            ConvertError::NotAuthorized => Heard::Refused(Refusal::NotAllowed),
            ConvertError::ResourceExceeded(seconds) => Heard::Refused(Refusal::NoRoom(seconds)),
            ConvertError::NetworkFailure(_) => Heard::Refused(Refusal::NoNetwork),
            ConvertError::ConnectionReset => Heard::Refused(Refusal::Reset),
            ConvertError::Unreachable(code) => Heard::Refused(Refusal::Unreachable {
                code,
                is_v6: self.is_v6,
            }),
            ConvertError::Unsupported(_)
            | ConvertError::UnsupportedOption(_)
            | ConvertError::Unknown { .. } => Heard::Failed(Fault::Unsupported),
        }
    }

    fn read_reply(&self, bytes: &[u8]) -> Read {
        let (reply, len) = match SocksReply::parse(bytes) {
            Ok((reply, _, _, len)) => (reply, len),
            Err(fault) => return unread(fault),
        };
        let unreachable = |v4, v6| {
            let code = if self.is_v6 { v6 } else { v4 };
            Heard::Refused(Refusal::Unreachable {
                code,
                is_v6: self.is_v6,
            })
        };
        let heard = match reply {
            SocksReply::Succeeded => Heard::Granted,
            SocksReply::NotAllowed => Heard::Refused(Refusal::NotAllowed),
            SocksReply::NetworkUnreachable => unreachable(0, 0),
            SocksReply::HostUnreachable => unreachable(1, 3),
            SocksReply::Refused => Heard::Refused(Refusal::Reset),
            SocksReply::Expired => Heard::Refused(Refusal::Expired),
            SocksReply::Failure => Heard::Refused(Refusal::NoRoom(0)),
            SocksReply::Command | SocksReply::AddressType | SocksReply::Unknown(_) => {
                Heard::Failed(Fault::Unsupported)
            }
        };
        Read::End(len, heard)
    }

    /// Bytes that it has allocated: never more than one message and a packet.
    #[must_use]
    pub const fn memory(&self) -> usize {
        self.kept.capacity()
    }
}

fn read_method(bytes: &[u8], password: bool) -> Read {
    let wanted = if password {
        socks_method::PASSWORD
    } else {
        socks_method::NONE
    };
    match parse_socks_method(bytes) {
        Ok((method, len)) if method == wanted && password => Read::Next(len, Stage::Judgement),
        Ok((method, len)) if method == wanted => Read::Next(len, Stage::Reply),
        Ok((_, len)) => Read::End(len, Heard::Failed(Fault::Method)),
        Err(fault) => unread(fault),
    }
}

/// The bytes are no message, or none yet.
const fn unread(fault: SocksFault) -> Read {
    match fault {
        SocksFault::Incomplete(_) => Read::More,
        SocksFault::Version(_) => Read::End(0, Heard::Failed(Fault::Protocol)),
        SocksFault::AddressType(_) => Read::End(0, Heard::Failed(Fault::Unsupported)),
        SocksFault::Empty => Read::End(0, Heard::Failed(Fault::Malformed)),
    }
}

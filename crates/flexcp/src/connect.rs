//! The other end of `mode = "convert"`: connects by a converter (RFC 8803) over MPTCP, for programs that speak neither.
//!
//! The message goes with the SYN where the kernel lets it (`net.ipv4.tcp_fastopen` = 5), and behind the handshake otherwise. Names
//! are resolved here, as Convert has none.

mod local;

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::time::Duration;

use flexcp_wire::{
    CONVERT_HEADER_LEN, CONVERT_MAX_LEN, Connect, ConvertError, ConvertFault, ConvertMessage,
    ConvertTlv, ConvertWriter,
};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, ipproto};

pub use self::local::{Local, relay};

/// Data goes with the SYN (`MSG_FASTOPEN`, RFC 7413).
const FAST_OPEN: SendFlags = SendFlags::from_bits_retain(0x2000_0000);

/// A converter has to answer within this time: it waits for the server.
const PATIENCE: Duration = Duration::from_secs(30);

/// Why there is no connection.
#[derive(Debug)]
pub enum Unconnected {
    /// The converter itself is not to be had.
    Converter(io::Error),
    /// What it says is no answer of Convert.
    Garbled,
    /// The name is unknown.
    NoName(String),
    /// It refuses.
    Refused(Refused),
}

/// What a converter has answered in place of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// The client may not have that.
    NotAuthorized,
    /// The server has answered with a reset.
    Reset,
    /// An ICMP error with this code has come instead of the server's answer.
    Unreachable(u8),
    /// No answer, or no room.
    Failed,
    /// Another error.
    Other,
}

impl Unconnected {
    /// Whether another address of the same server may do.
    const fn may_try_next(&self) -> bool {
        matches!(self, Self::Refused(_))
    }
}

/// Connects with a server, named by an address or a name, by the converter at `by`.
///
/// # Errors
/// What the last of its addresses has come to.
pub fn connect(by: SocketAddr, host: &str, port: u16) -> Result<TcpStream, Unconnected> {
    let addrs = (host, port).to_socket_addrs();
    let mut last = Unconnected::NoName(host.into());
    for server in addrs.into_iter().flatten() {
        match connect_to(by, server) {
            Ok(stream) => return Ok(stream),
            Err(error) if error.may_try_next() => last = error,
            Err(error) => return Err(error),
        }
    }
    Err(last)
}

/// The same for one address.
///
/// # Errors
/// What it has come to.
pub fn connect_to(by: SocketAddr, server: SocketAddr) -> Result<TcpStream, Unconnected> {
    match ask(by, &message(server, None))? {
        Answered::Connected(stream) => Ok(stream),
        // One that comes with a cookie is asked for none.
        Answered::WantsCookie(cookie) => match ask(by, &message(server, Some(&cookie)))? {
            Answered::Connected(stream) => Ok(stream),
            Answered::WantsCookie(_) => Err(Unconnected::Refused(Refused::Other)),
        },
    }
}

/// What a converter has answered that does not refuse.
enum Answered {
    Connected(TcpStream),
    /// It wants this cookie with the message, on another connection (RFC 8803 section 6.2.7).
    WantsCookie(Vec<u8>),
}

fn ask(by: SocketAddr, message: &[u8]) -> Result<Answered, Unconnected> {
    let mut stream = open(by, message).map_err(Unconnected::Converter)?;
    let patient = stream.set_read_timeout(Some(PATIENCE));
    patient.map_err(Unconnected::Converter)?;
    if let Some(cookie) = take_answer(&mut stream)? {
        return Ok(Answered::WantsCookie(cookie));
    }
    let ready = stream
        .set_read_timeout(None)
        .and_then(|()| stream.set_nodelay(true));
    ready.map_err(Unconnected::Converter)?;
    Ok(Answered::Connected(stream))
}

/// A connection with this first on it, in its SYN if the kernel lets it; over MPTCP if it has that.
fn open(to: SocketAddr, first: &[u8]) -> io::Result<TcpStream> {
    let socket = socket(to)?;
    match rustix::net::sendto(&socket, first, FAST_OPEN, &to) {
        Ok(sent) => {
            let mut stream = TcpStream::from(socket);
            stream.write_all(&first[sent..])?;
            Ok(stream)
        }
        // Not allowed by net.ipv4.tcp_fastopen.
        Err(Errno::OPNOTSUPP) => {
            rustix::net::connect(&socket, &to)?;
            let mut stream = TcpStream::from(socket);
            stream.write_all(first)?;
            Ok(stream)
        }
        Err(error) => Err(error.into()),
    }
}

fn socket(to: SocketAddr) -> rustix::io::Result<OwnedFd> {
    let family = if to.is_ipv6() {
        AddressFamily::INET6
    } else {
        AddressFamily::INET
    };
    let of = |protocol| {
        rustix::net::socket_with(
            family,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            Some(protocol),
        )
    };
    match of(ipproto::MPTCP) {
        // A kernel without MPTCP, or one that is told not to.
        Err(Errno::PROTONOSUPPORT | Errno::INVAL | Errno::NOPROTOOPT) => of(ipproto::TCP),
        other => other,
    }
}

/// What asks a converter for a connection with a server, as Tessares' libconvert writes it.
fn message(server: SocketAddr, cookie: Option<&[u8]>) -> Vec<u8> {
    let mut message = vec![0; CONVERT_MAX_LEN];
    let mut writer = ConvertWriter::new(&mut message);
    let wish = ConvertTlv::Connect(Connect {
        addr: server.ip(),
        port: server.port(),
        options: &[],
    });
    let fits = writer.push(&wish);
    debug_assert!(fits, "a message has room for one TLV");
    if let Some(cookie) = cookie {
        // One that is too long for a message is left out, and the converter refuses.
        writer.push(&ConvertTlv::Cookie(cookie));
    }
    let len = writer.finish();
    message.truncate(len);
    message
}

/// Takes the converter's answer; the cookie that it wants, if that is what it says.
fn take_answer(stream: &mut TcpStream) -> Result<Option<Vec<u8>>, Unconnected> {
    let mut message = vec![0; CONVERT_HEADER_LEN];
    stream
        .read_exact(&mut message)
        .map_err(Unconnected::Converter)?;
    // What is no answer may not be as long as its second byte says.
    let begun = ConvertMessage::parse(&message);
    if !matches!(begun, Ok(_) | Err(ConvertFault::Incomplete(_))) {
        return Err(Unconnected::Garbled);
    }
    let len = usize::from(message[1]) * 4;
    message.resize(len.max(CONVERT_HEADER_LEN), 0);
    stream
        .read_exact(&mut message[CONVERT_HEADER_LEN..])
        .map_err(Unconnected::Converter)?;
    let (answer, _) = ConvertMessage::parse(&message).map_err(|_| Unconnected::Garbled)?;
    let error = answer.tlvs().find_map(|tlv| match tlv {
        ConvertTlv::Error(error) => Some(error),
        _ => None,
    });
    match error {
        None => Ok(None),
        Some(ConvertError::MissingCookie(cookie)) if !cookie.is_empty() => {
            Ok(Some(cookie.to_vec()))
        }
        Some(error) => Err(Unconnected::Refused(refused(&error))),
    }
}

const fn refused(error: &ConvertError<'_>) -> Refused {
    match error {
        ConvertError::NotAuthorized => Refused::NotAuthorized,
        ConvertError::ConnectionReset => Refused::Reset,
        ConvertError::Unreachable(code) => Refused::Unreachable(*code),
        ConvertError::NetworkFailure(_) | ConvertError::ResourceExceeded(_) => Refused::Failed,
        _ => Refused::Other,
    }
}

impl fmt::Display for Unconnected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Converter(error) => write!(f, "the converter is not to be had: {error}"),
            Self::Garbled => f.write_str(
                "what answers is no converter; is it a service with mode = \"convert\"?",
            ),
            Self::NoName(name) => write!(f, "{name} is unknown"),
            Self::Refused(refused) => match refused {
                Refused::NotAuthorized => f.write_str(
                    "the converter does not allow that server; its `allow` and `ports` say which",
                ),
                Refused::Reset => f.write_str("the server refuses the connection"),
                Refused::Unreachable(code) => {
                    write!(f, "the server is unreachable (ICMP code {code})")
                }
                Refused::Failed => f.write_str("the server does not answer"),
                Refused::Other => f.write_str("the converter refuses"),
            },
        }
    }
}

impl std::error::Error for Unconnected {}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};
    use std::thread;

    use super::*;

    /// A converter that hears these messages, each on a connection of its own, and gives these answers.
    fn converter(talk: Vec<(Vec<u8>, Vec<u8>)>) -> (SocketAddr, thread::JoinHandle<()>) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let by = listener.local_addr().unwrap();
        let serve = move || {
            for (wanted, answer) in talk {
                let (mut stream, _) = listener.accept().unwrap();
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                let mut heard = vec![0; wanted.len()];
                stream.read_exact(&mut heard).unwrap();
                assert_eq!(heard, wanted);
                stream.write_all(&answer).unwrap();
            }
        };
        (by, thread::spawn(serve))
    }

    const GRANTED: [u8; 4] = [1, 1, 0x22, 0x63];
    /// "Missing Cookie" with eight bytes of one.
    const MISSING: [u8; 16] = [1, 4, 0x22, 0x63, 30, 3, 3, 0, 1, 2, 3, 4, 5, 6, 7, 8];

    fn with_cookie(server: SocketAddr) -> Vec<u8> {
        let mut message = message(server, None);
        message[1] += 3;
        message.extend_from_slice(&[22, 3, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
        message
    }

    #[test]
    fn cookie_that_a_converter_wants_is_brought_once() {
        let server = "192.0.2.1:80".parse().unwrap();
        let first = message(server, None);
        let talk = vec![
            (first.clone(), MISSING.to_vec()),
            (with_cookie(server), GRANTED.to_vec()),
        ];
        let (by, served) = converter(talk);
        assert!(connect_to(by, server).is_ok());
        served.join().unwrap();
        // Who is never content is left.
        let talk = vec![
            (first, MISSING.to_vec()),
            (with_cookie(server), MISSING.to_vec()),
        ];
        let (by, served) = converter(talk);
        let refused = connect_to(by, server);
        assert!(matches!(refused, Err(Unconnected::Refused(Refused::Other))));
        served.join().unwrap();
    }
}

//! A converter that is asked for one server after the other, each time on a connection of its own.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Duration;

use flexcp_io::syn_data_taken;
use flexcp_preamble::convert_request;
use flexcp_wire::{CONVERT_HEADER_LEN, ConvertError, ConvertFault, ConvertMessage, ConvertTlv};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, ipproto, sockopt};

use super::{Refused, Unconnected};

/// Data goes with the SYN (`MSG_FASTOPEN`, RFC 7413).
const FAST_OPEN: SendFlags = SendFlags::from_bits_retain(0x2000_0000);
/// A client whose SYN said everything has nothing to repeat: if its third ACK is lost, this often something has to show the converter
/// that the client is there.
const REMINDER: Duration = Duration::from_secs(1);

/// A connection with the first of some servers that a converter connects with.
#[derive(Debug)]
pub(super) struct Asking {
    by: SocketAddr,
    /// The first is the one that it is asked for.
    servers: VecDeque<SocketAddr>,
    /// It wanted this with the message (RFC 8803 section 6.2.7).
    cookie: Option<Vec<u8>>,
}

/// A connection on which the converter has yet to answer.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) stream: TcpStream,
    /// The converter has the message, so what stands behind that on the stream can be the server's.
    pub(super) is_heard: bool,
}

/// What an answer comes to.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    Connected,
    /// To be asked again: with a cookie, or for another server.
    Again,
}

/// What a converter has answered.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Answer {
    Connected,
    WantsCookie(Vec<u8>),
    Refused(Refused),
}

impl Asking {
    /// Nothing is asked yet. There has to be a server.
    pub(super) fn new(by: SocketAddr, servers: VecDeque<SocketAddr>) -> Self {
        Self {
            by,
            servers,
            cookie: None,
        }
    }

    /// Connects with the converter and asks it.
    pub(super) fn ask(&self) -> Result<Asked, Unconnected> {
        let Some(server) = self.servers.front() else {
            return Err(Unconnected::Refused(Refused::Other));
        };
        let message = convert_request(*server, self.cookie.as_deref());
        open(self.by, &message).map_err(Unconnected::Converter)
    }

    /// What to do after that answer.
    pub(super) fn judge(&mut self, answer: Answer) -> Result<Outcome, Unconnected> {
        match answer {
            Answer::Connected => Ok(Outcome::Connected),
            Answer::WantsCookie(cookie) if self.cookie.is_none() => {
                self.cookie = Some(cookie);
                Ok(Outcome::Again)
            }
            // One that comes with a cookie is asked for none.
            Answer::WantsCookie(_) => Err(Unconnected::Refused(Refused::Other)),
            Answer::Refused(_) if self.servers.len() > 1 => {
                self.servers.pop_front();
                Ok(Outcome::Again)
            }
            Answer::Refused(refused) => Err(Unconnected::Refused(refused)),
        }
    }
}

/// A connection with this first on it, in its SYN if the kernel lets it; over MPTCP if it has that.
fn open(to: SocketAddr, first: &[u8]) -> io::Result<Asked> {
    let socket = socket(to)?;
    let sent = match rustix::net::sendto(&socket, first, FAST_OPEN, &to) {
        Ok(sent) => sent,
        // Not allowed by net.ipv4.tcp_fastopen.
        Err(Errno::OPNOTSUPP) => {
            rustix::net::connect(&socket, &to)?;
            0
        }
        Err(error) => return Err(error.into()),
    };
    // A kernel that can't say so may have sent the message behind the handshake.
    let is_heard = sent == first.len() && syn_data_taken(&socket).unwrap_or(false);
    if is_heard {
        remind(&socket);
    }
    let mut stream = TcpStream::from(socket);
    stream.set_nodelay(true)?;
    stream.write_all(&first[sent..])?;
    Ok(Asked { stream, is_heard })
}

/// Kernels that can't do this for MPTCP do without.
fn remind(socket: &OwnedFd) {
    let _ = sockopt::set_tcp_keepidle(socket, REMINDER);
    let _ = sockopt::set_tcp_keepintvl(socket, REMINDER);
    let _ = sockopt::set_socket_keepalive(socket, true);
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

impl Asked {
    /// Waits for the converter's answer and takes it; what stands behind it is left on the stream.
    pub(super) fn take_answer(&mut self, patience: Duration) -> Result<Answer, Unconnected> {
        let stream = &mut self.stream;
        let patient = stream.set_read_timeout(Some(patience));
        patient.map_err(Unconnected::Converter)?;
        let answer = read_answer(stream)?;
        let impatient = stream.set_read_timeout(None);
        impatient.map_err(Unconnected::Converter)?;
        // The converter is there, and an idle connection is the program's own business.
        let _ = sockopt::set_socket_keepalive(&*stream, false);
        Ok(answer)
    }
}

fn read_answer(stream: &mut impl Read) -> Result<Answer, Unconnected> {
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
    Ok(match error {
        None => Answer::Connected,
        Some(ConvertError::MissingCookie(cookie)) if !cookie.is_empty() => {
            Answer::WantsCookie(cookie.to_vec())
        }
        Some(error) => Answer::Refused(refused(&error)),
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: &str = "192.0.2.1:80";
    const SECOND: &str = "[2001:db8::1]:80";

    fn asking(servers: &[&str]) -> Asking {
        let servers = servers.iter().map(|server| server.parse().unwrap());
        Asking::new("203.0.113.5:1080".parse().unwrap(), servers.collect())
    }

    /// Reads an answer of which each byte comes alone.
    fn read(answer: &[u8]) -> Result<Answer, Unconnected> {
        let mut bytes = answer;
        let mut slow = io::BufReader::with_capacity(1, &mut bytes);
        let read = read_answer(&mut slow);
        drop(slow);
        read
    }

    #[test]
    fn next_server_is_asked_for_when_one_is_refused() {
        let mut asking = asking(&[FIRST, SECOND]);
        let next = asking.judge(Answer::Refused(Refused::Reset)).unwrap();
        assert_eq!(next, Outcome::Again);
        assert_eq!(asking.servers, [SECOND.parse().unwrap()]);
        let last = asking.judge(Answer::Refused(Refused::Failed));
        assert!(matches!(last, Err(Unconnected::Refused(Refused::Failed))));
    }

    #[test]
    fn cookie_is_brought_once() {
        let mut asking = asking(&[FIRST, SECOND]);
        let wants = || Answer::WantsCookie(vec![1; 8]);
        assert_eq!(asking.judge(wants()).unwrap(), Outcome::Again);
        assert_eq!(asking.cookie, Some(vec![1; 8]));
        // Who is never content is left.
        let never = asking.judge(wants());
        assert!(matches!(never, Err(Unconnected::Refused(Refused::Other))));
        let connected = asking.judge(Answer::Connected).unwrap();
        assert_eq!(connected, Outcome::Connected);
    }

    #[test]
    fn message_is_that_of_libconvert() {
        let message_of = |cookie| convert_request(FIRST.parse().unwrap(), cookie);
        let connect = [
            10, 5, 0, 80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 192, 0, 2, 1,
        ];
        assert_eq!(
            message_of(None),
            [&[1, 6, 0x22, 0x63][..], &connect].concat()
        );
        let cookie = [22, 3, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
        let with_cookie = [&[1, 9, 0x22, 0x63][..], &connect, &cookie].concat();
        assert_eq!(message_of(Some(&cookie[4..])), with_cookie);
    }

    #[test]
    fn answers_are_read_as_they_come() {
        assert_eq!(read(&[1, 1, 0x22, 0x63]).unwrap(), Answer::Connected);
        let missing = [1, 4, 0x22, 0x63, 30, 3, 3, 0, 1, 2, 3, 4, 5, 6, 7, 8];
        let wanted = Answer::WantsCookie(vec![1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(read(&missing).unwrap(), wanted);
        let unreachable = [1, 2, 0x22, 0x63, 30, 1, 97, 1];
        let refused = Answer::Refused(Refused::Unreachable(1));
        assert_eq!(read(&unreachable).unwrap(), refused);
        assert!(matches!(
            read(b"HTTP/1.1 400 Bad Request\r\n"),
            Err(Unconnected::Garbled)
        ));
        assert!(matches!(
            read(&unreachable[..5]),
            Err(Unconnected::Converter(_))
        ));
    }
}

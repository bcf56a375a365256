//! The other end of `mode = "convert"`: connects by a converter (RFC 8803) over MPTCP, for programs that speak neither.
//!
//! The message goes with the SYN where the kernel lets it (`net.ipv4.tcp_fastopen` = 5), and behind the handshake otherwise. Names
//! are resolved here, as Convert has none. A program that speaks first loses no round trip: once the SYN/ACK shows that the converter
//! has the message, what the program says goes there before the answer is in.

mod asking;
mod early;
mod local;

use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};

use self::asking::Asking;
pub use self::early::{Begun, Settled};
pub use self::local::{Grant, Local, relay};

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
    /// The program is gone.
    Program(io::Error),
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

/// Asks the converter at `by` for a connection with a server, named by an address or a name, whose addresses are tried one after
/// the other.
///
/// # Errors
/// The name is unknown, or the converter is not to be had.
pub fn begin(by: SocketAddr, host: &str, port: u16) -> Result<Begun, Unconnected> {
    let servers = (host, port).to_socket_addrs();
    let servers = servers.map_err(|_| Unconnected::NoName(host.into()))?;
    Begun::new(Asking::new(by, servers.collect()))
}

/// The same for one address.
///
/// # Errors
/// The converter is not to be had.
pub fn begin_to(by: SocketAddr, server: SocketAddr) -> Result<Begun, Unconnected> {
    Begun::new(Asking::new(by, [server].into()))
}

impl fmt::Display for Unconnected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Converter(error) => write!(f, "the converter is not to be had: {error}"),
            Self::Garbled => f.write_str(
                "what answers is no converter; is it a service with mode = \"convert\"?",
            ),
            Self::NoName(name) => write!(f, "{name} is unknown"),
            Self::Program(error) => write!(f, "the program is gone: {error}"),
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

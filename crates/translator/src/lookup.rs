//! Servers as clients name them: by their addresses, or by names, which somebody else resolves.

use alloc::boxed::Box;
use core::net::{IpAddr, SocketAddr};

use flexcp_preamble::{Target, Wish};

use crate::handle::StableId;

/// A name to be resolved for a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lookup {
    /// Whose it is.
    pub id: StableId,
    /// As the client has written it: 1 to 255 bytes of letters, digits, dots, hyphens, underscores and colons.
    pub name: Box<str>,
}

/// The server that a client has named by its address.
pub(crate) fn named(wish: &Wish) -> Option<SocketAddr> {
    let Target::Ip(addr) = wish.to else {
        return None;
    };
    // By its mapped address an IPv4 server is the same one.
    let addr = match addr {
        IpAddr::V6(v6) => v6.to_canonical(),
        IpAddr::V4(_) => addr,
    };
    Some(SocketAddr::new(addr, wish.port))
}

/// A name that may be looked up, as text.
pub(crate) fn readable(name: &[u8]) -> Option<&str> {
    let usual = |byte: &u8| byte.is_ascii_alphanumeric() || b".-_:".contains(byte);
    let name = core::str::from_utf8(name).ok()?;
    name.bytes().all(|byte| usual(&byte)).then_some(name)
}

//! Ends of packets and connections. Connections keep addresses in 20 bytes, where `SocketAddr` takes 32.

use core::net::{IpAddr, Ipv6Addr, SocketAddr};

use flexcp_wire::Ends;

/// A server to connect to, and the address that it will see.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Backend {
    pub(crate) source: SocketAddr,
    pub(crate) addr: SocketAddr,
}

impl Backend {
    /// Its packets, as the flow table knows them.
    pub(crate) const fn flow(&self) -> Ends {
        Ends {
            from: self.addr,
            to: self.source,
        }
    }
}

/// One end of a TCP connection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Endpoint {
    /// An IPv4 address in the first four bytes.
    octets: [u8; 16],
    port: u16,
    is_v4: bool,
}

impl Endpoint {
    /// As everybody else writes it.
    pub(crate) fn addr(self) -> SocketAddr {
        let [a, b, c, d, ..] = self.octets;
        let ip = if self.is_v4 {
            IpAddr::from([a, b, c, d])
        } else {
            IpAddr::V6(Ipv6Addr::from(self.octets))
        };
        SocketAddr::new(ip, self.port)
    }

    pub(crate) const fn is_ipv4(self) -> bool {
        self.is_v4
    }

    pub(crate) const fn port(self) -> u16 {
        self.port
    }

    /// Its address in network order, an IPv4 one in the first four bytes.
    pub(crate) const fn octets(self) -> [u8; 16] {
        self.octets
    }
}

impl From<SocketAddr> for Endpoint {
    fn from(addr: SocketAddr) -> Self {
        let mut octets = [0; 16];
        match addr.ip() {
            IpAddr::V4(ip) => octets[..4].copy_from_slice(&ip.octets()),
            IpAddr::V6(ip) => octets = ip.octets(),
        }
        Self {
            octets,
            port: addr.port(),
            is_v4: addr.is_ipv4(),
        }
    }
}

impl core::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.addr().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comes_back_as_it_was() {
        for text in [
            "192.0.2.1:80",
            "[2001:db8::1]:65535",
            "[::ffff:192.0.2.1]:1",
            "0.0.0.0:0",
        ] {
            let addr: SocketAddr = text.parse().expect("an address");
            assert_eq!(Endpoint::from(addr).addr(), addr);
        }
        assert!(size_of::<Endpoint>() <= 20);
    }
}

//! Uplinks of an aggregation box.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// FlexCP's addresses on one uplink of a box: none while it has no carrier, or nobody has given it one.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Uplink {
    /// IPv4.
    pub v4: Option<Ipv4Addr>,
    /// IPv6.
    pub v6: Option<Ipv6Addr>,
}

impl Uplink {
    /// The address of a family.
    #[must_use]
    pub fn addr(&self, is_v4: bool) -> Option<IpAddr> {
        match is_v4 {
            true => self.v4.map(IpAddr::V4),
            false => self.v6.map(IpAddr::V6),
        }
    }

    /// Its addresses.
    pub fn addrs(&self) -> impl Iterator<Item = IpAddr> + use<> {
        [self.addr(true), self.addr(false)].into_iter().flatten()
    }

    /// Whether it has this address.
    #[must_use]
    pub fn has(&self, addr: IpAddr) -> bool {
        self.addr(addr.is_ipv4()) == Some(addr)
    }
}

impl From<IpAddr> for Uplink {
    /// One that has this address alone.
    fn from(addr: IpAddr) -> Self {
        match addr {
            IpAddr::V4(addr) => Self {
                v4: Some(addr),
                v6: None,
            },
            IpAddr::V6(addr) => Self {
                v4: None,
                v6: Some(addr),
            },
        }
    }
}

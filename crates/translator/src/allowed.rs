//! Where clients may be connected that name a server themselves (explicit modes).
//!
//! Nothing is allowed that the configuration does not name. A wide prefix, all of IPv4 for instance, names no address that means
//! something else here than elsewhere: loopback, link-local and private ones, those of groups. They are allowed by a prefix that
//! lies within such a range. An address of this host, of a service, or of the client itself is allowed by a prefix of nothing
//! else. An IPv6 address that carries an IPv4 one (RFC 6052, RFC 3056) is no way around that: it is allowed by a prefix that names
//! as much of what it carries.

use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::ops::RangeInclusive;

use crate::prefix::Prefix;

/// Servers that clients may name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Allowed {
    /// Their addresses.
    pub servers: Prefix,
    /// Their ports; empty: all.
    pub ports: Vec<RangeInclusive<u16>>,
}

/// Ranges that no wider prefix names (RFC 6890).
const APART: [Prefix; 20] = [
    v4([0, 0, 0, 0], 8),
    v4([10, 0, 0, 0], 8),
    v4([100, 64, 0, 0], 10),
    v4([127, 0, 0, 0], 8),
    v4([169, 254, 0, 0], 16),
    v4([172, 16, 0, 0], 12),
    v4([192, 0, 0, 0], 24),
    v4([192, 168, 0, 0], 16),
    v4([198, 18, 0, 0], 15),
    v4([224, 0, 0, 0], 4),
    v4([240, 0, 0, 0], 4),
    v6(0, 96),
    // IPv4 in IPv6, by which a refused address would come in at the back door: mapped, NAT64, 6to4.
    v6(0xffff << 32, 96),
    v6(0x0064_ff9b << 96, 96),
    v6(0x0064_ff9b_0001 << 80, 48),
    v6(0x2002 << 112, 16),
    v6(0xfc00 << 112, 7),
    v6(0xfe80 << 112, 10),
    v6(0xfec0 << 112, 10),
    v6(0xff00 << 112, 8),
];

const fn v4([a, b, c, d]: [u8; 4], len: u8) -> Prefix {
    Prefix {
        addr: IpAddr::V4(Ipv4Addr::new(a, b, c, d)),
        len,
    }
}

const fn v6(bits: u128, len: u8) -> Prefix {
    Prefix {
        addr: IpAddr::V6(Ipv6Addr::from_bits(bits)),
        len,
    }
}

/// IPv6 prefixes behind which an IPv4 address stands: mapped (RFC 4291), NAT64 (RFC 6052), 6to4 (RFC 3056).
const CARRYING: [Prefix; 4] = [APART[11], APART[12], APART[13], APART[15]];

/// Whether a client may be connected with `server`. `own`: addresses that a prefix has to name alone.
pub(crate) fn allows(
    allowed: &[Allowed],
    own: impl Fn(IpAddr) -> bool,
    server: SocketAddr,
) -> bool {
    let addr = server.ip();
    let least = least(addr, &own);
    server.port() != 0
        && allowed.iter().any(|allowed| {
            let ports = &allowed.ports;
            allowed.servers.len >= least
                && allowed.servers.contains(addr)
                && (ports.is_empty() || ports.iter().any(|range| range.contains(&server.port())))
        })
}

/// Bits that a prefix has to have at least to name this address.
fn least(addr: IpAddr, own: &impl Fn(IpAddr) -> bool) -> u8 {
    if own(addr) {
        return if addr.is_ipv4() { 32 } else { 128 };
    }
    let apart = APART.iter().filter(|range| range.contains(addr));
    let apart = apart.map(|range| range.len).max().unwrap_or(0);
    match carried(addr) {
        Some((before, within)) => match least(within.into(), own) {
            0 => apart,
            bits => before + bits,
        },
        None => apart,
    }
}

/// The IPv4 address that an IPv6 one carries, and how many bits stand before it.
fn carried(addr: IpAddr) -> Option<(u8, Ipv4Addr)> {
    let IpAddr::V6(v6) = addr else {
        return None;
    };
    let range = CARRYING.iter().find(|range| range.contains(addr))?;
    let bits = v6.to_bits() >> (96 - range.len);
    #[allow(clippy::cast_possible_truncation, reason = "what stands behind")]
    let within = Ipv4Addr::from_bits(bits as u32);
    Some((range.len, within))
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    fn servers(prefix: &str, ports: &[u16]) -> Allowed {
        let (addr, len) = prefix.split_once('/').expect("a prefix");
        Allowed {
            servers: Prefix {
                addr: addr.parse().expect("an address"),
                len: len.parse().expect("a length"),
            },
            ports: ports.iter().map(|port| *port..=*port).collect(),
        }
    }

    fn is_allowed(allowed: &[Allowed], server: &str) -> bool {
        let own: [IpAddr; 2] =
            ["198.51.100.1", "2001:db8::1"].map(|ip| ip.parse().expect("an address"));
        allows(
            allowed,
            |addr| own.contains(&addr),
            server.parse().expect("an end"),
        )
    }

    #[test]
    fn nothing_is_allowed_that_nobody_names() {
        assert!(!is_allowed(&[], "192.0.2.1:80"));
        let web = [servers("192.0.2.0/24", &[80, 443])];
        assert!(is_allowed(&web, "192.0.2.1:443"));
        for other in [
            "192.0.2.1:22",
            "192.0.3.1:80",
            "[2001:db8::2]:80",
            "192.0.2.1:0",
        ] {
            assert!(!is_allowed(&web, other), "{other}");
        }
    }

    #[test]
    fn wide_prefixes_name_no_address_with_a_meaning_of_its_own() {
        let all = [servers("0.0.0.0/0", &[]), servers("::/0", &[])];
        for public in [
            "192.0.2.1:80",
            "[2001:db8::2]:80",
            "100.128.0.1:80",
            "172.32.0.1:80",
        ] {
            assert!(is_allowed(&all, public), "{public}");
        }
        for apart in [
            "0.0.0.0:80",
            "10.1.2.3:80",
            "100.64.0.1:80",
            "127.0.0.1:80",
            "169.254.169.254:80",
            "172.16.0.1:80",
            "192.168.1.1:80",
            "198.18.0.1:80",
            "224.0.0.1:80",
            "255.255.255.255:80",
            "[::]:80",
            "[::1]:80",
            "[::ffff:127.0.0.1]:80",
            "[64:ff9b::10.0.0.1]:80",
            "[64:ff9b:1::1]:80",
            "[2002:a00:1::1]:80",
            "[fc00::1]:80",
            "[fe80::1]:80",
            "[fec0::1]:80",
            "[ff02::1]:80",
            "198.51.100.1:80",
            "[2001:db8::1]:80",
        ] {
            assert!(!is_allowed(&all, apart), "{apart}");
        }
    }

    #[test]
    fn they_are_allowed_by_name() {
        let named = vec![
            servers("10.1.0.0/16", &[]),
            servers("127.0.0.1/32", &[]),
            servers("198.51.100.1/32", &[]),
            servers("fd00::/8", &[]),
        ];
        for server in [
            "10.1.2.3:80",
            "127.0.0.1:80",
            "198.51.100.1:80",
            "[fd00::1]:80",
        ] {
            assert!(is_allowed(&named, server), "{server}");
        }
        for server in ["10.2.2.3:80", "127.0.0.2:80", "[2001:db8::1]:80"] {
            assert!(!is_allowed(&named, server), "{server}");
        }
        // Half of the addresses there are is no name for one's own.
        assert!(!is_allowed(
            &[servers("198.0.0.0/8", &[])],
            "198.51.100.1:80"
        ));
    }

    #[test]
    fn what_an_ipv6_address_carries_has_to_be_named_as_well() {
        let by_nat64 = [servers("64:ff9b::/96", &[]), servers("2002::/16", &[])];
        for public in ["[64:ff9b::192.0.2.1]:80", "[2002:c000:201::1]:80"] {
            assert!(is_allowed(&by_nat64, public), "{public}");
        }
        for apart in [
            "[64:ff9b::10.0.0.1]:80",
            "[64:ff9b::127.0.0.1]:80",
            "[64:ff9b::169.254.169.254]:80",
            "[64:ff9b::198.51.100.1]:80",
            "[2002:a00:1::1]:80",
            "[2002:c633:6401::1]:80",
        ] {
            assert!(!is_allowed(&by_nat64, apart), "{apart}");
        }
        // 10.0.0.0/8 stands behind 96 bits, and behind 16.
        let named = [
            servers("64:ff9b::a00:0/104", &[]),
            servers("2002:a00::/24", &[]),
        ];
        for server in ["[64:ff9b::10.0.0.1]:80", "[2002:a00:1::1]:80"] {
            assert!(is_allowed(&named, server), "{server}");
        }
        assert!(!is_allowed(&named, "[64:ff9b::192.168.0.1]:80"));
    }
}

//! Sockets of this host that listen where FlexCP is to: their connections would vanish into it.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The address of a kernel socket that listens on `addr`, or on its port for every address.
/// A wildcard of IPv6 is taken to listen for IPv4 too, as it does by default.
#[must_use]
pub fn tcp_listener_on(addr: SocketAddr) -> Option<String> {
    // Of the thread: `/proc/net` is that of the process' first thread.
    ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"]
        .into_iter()
        .find_map(|path| {
            find(BufReader::new(File::open(path).ok()?), addr).map(|socket| socket.to_string())
        })
}

fn find(table: impl BufRead, addr: SocketAddr) -> Option<SocketAddr> {
    table
        .lines()
        .map_while(Result::ok)
        .filter_map(|line| listener(&line))
        .find(|socket| {
            let anywhere = match socket.ip() {
                IpAddr::V4(ip) => ip.is_unspecified() && addr.is_ipv4(),
                IpAddr::V6(ip) => ip.is_unspecified(),
            };
            socket.port() == addr.port()
                && (anywhere || socket.ip().to_canonical() == addr.ip().to_canonical())
        })
}

/// The socket of one line (`sl local_address rem_address st ...`), if it listens.
fn listener(line: &str) -> Option<SocketAddr> {
    const LISTEN: &str = "0A";
    let mut fields = line.split_ascii_whitespace().skip(1);
    let (addr, port) = fields.next()?.split_once(':')?;
    if fields.nth(1)? != LISTEN {
        return None;
    }
    let port = u16::from_str_radix(port, 16).ok()?;
    Some(SocketAddr::new(address(addr)?, port))
}

/// Addresses are printed as 32-bit words in the host's byte order.
fn address(hex: &str) -> Option<IpAddr> {
    let word = |at: usize| {
        Some(
            u32::from_str_radix(hex.get(at * 8..at * 8 + 8)?, 16)
                .ok()?
                .to_ne_bytes(),
        )
    };
    match hex.len() {
        8 => Some(Ipv4Addr::from(word(0)?).into()),
        32 => {
            let mut octets = [0; 16];
            for (at, octets) in octets.chunks_exact_mut(4).enumerate() {
                octets.copy_from_slice(&word(at)?);
            }
            Some(Ipv6Addr::from(octets).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find_in(table: &str, addr: &str) -> Option<String> {
        find(table.as_bytes(), addr.parse().unwrap()).map(|socket| socket.to_string())
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn listeners_of_ipv4() {
        const TABLE: &str = "\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:0277 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1
   1: 00000000:0050 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 2 1
   2: 0201010A:1F90 0100010A:D431 01 00000000:00000000 00:00000000 00000000     0        0 3 1
";
        assert_eq!(
            find_in(TABLE, "127.0.0.1:631").as_deref(),
            Some("127.0.0.1:631")
        );
        assert_eq!(find_in(TABLE, "127.0.0.2:631"), None);
        assert_eq!(find_in(TABLE, "10.1.1.2:80").as_deref(), Some("0.0.0.0:80"));
        assert_eq!(find_in(TABLE, "[fd01::1]:80"), None);
        // A connection, no listener.
        assert_eq!(find_in(TABLE, "10.1.1.2:8080"), None);
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn listeners_of_ipv6() {
        const TABLE: &str = "\
  sl  local_address                         remote_address                        st tx_queue
   0: 00000000000000000000000000000000:01BB 00000000000000000000000000000000:0000 0A 00000000
   1: B80D0120000000000000000001000000:0050 00000000000000000000000000000000:0000 0A 00000000
   2: 0000000000000000FFFF00000201010A:0051 00000000000000000000000000000000:0000 0A 00000000
";
        assert_eq!(find_in(TABLE, "10.1.1.2:443").as_deref(), Some("[::]:443"));
        assert_eq!(
            find_in(TABLE, "[2001:db8::1]:80").as_deref(),
            Some("[2001:db8::1]:80")
        );
        assert_eq!(
            find_in(TABLE, "10.1.1.2:81").as_deref(),
            Some("[::ffff:10.1.1.2]:81")
        );
    }

    #[test]
    fn lines_that_are_none() {
        for line in [
            "",
            "0:",
            "0: 0A",
            "0: 0:0 0 0A",
            "0: 0100007F:zz 0 0A",
            "0: é00007F:0050 0 0A",
        ] {
            assert_eq!(listener(line), None, "{line}");
        }
    }
}

//! The values that a configuration is made of, from text. Each error says what is wrong and, after
//! a semicolon, what would be right.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::time::Duration;

use flexcp_translator::{Announce, Carrier, Prefix, User};

use super::file::{Attach, Placement, ProxyProtocol, ServiceOffload};

/// "30s", "2h5m", "100ms".
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let wrong =
        || format!("`{text}` is not a duration; write it like \"30s\", \"2h5m\" or \"100ms\"");
    let mut rest = text;
    let mut sum = Duration::ZERO;
    let mut last = u64::MAX;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
        let number: u64 = rest[..digits].parse().map_err(|_| wrong())?;
        rest = &rest[digits..];
        let letters = rest
            .find(|c: char| !c.is_ascii_alphabetic())
            .unwrap_or(rest.len());
        let unit = UNITS
            .iter()
            .find(|(unit, _)| *unit == &rest[..letters])
            .ok_or_else(wrong)?
            .1;
        rest = &rest[letters..];
        // Each unit once, the largest first: "5m2h" is more likely a slip than meant.
        if unit >= last {
            return Err(wrong());
        }
        last = unit;
        let micros = number.checked_mul(unit).ok_or_else(wrong)?;
        sum = sum
            .checked_add(Duration::from_micros(micros))
            .ok_or_else(wrong)?;
    }
    if text.is_empty() {
        Err(wrong())
    } else {
        Ok(sum)
    }
}

/// "512MB", "4GB", "512MiB": bytes.
pub(super) fn memory(text: &str) -> Result<i64, String> {
    let wrong =
        || format!("`{text}` is not an amount of memory; write it like \"512MB\" or \"4GB\"");
    let digits = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
    let (number, unit) = text.split_at(digits);
    let number: i64 = number.parse().map_err(|_| wrong())?;
    let unit = AMOUNTS.iter().find(|(name, _)| *name == unit);
    let unit = unit.ok_or_else(wrong)?.1;
    number.checked_mul(unit).ok_or_else(wrong)
}

/// "owner", "kernel" or "scatter".
pub(super) fn placement(text: &str) -> Result<Placement, String> {
    match text {
        "owner" => Ok(Placement::Owner),
        "kernel" => Ok(Placement::Kernel),
        "scatter" => Ok(Placement::Scatter),
        _ => Err(format!(
            "there is no placement `{text}`; write \"owner\", \"kernel\" or \"scatter\""
        )),
    }
}

/// "auto" or "off".
pub(super) fn service_offload(text: &str) -> Result<ServiceOffload, String> {
    match text {
        "auto" => Ok(ServiceOffload::Auto),
        "off" => Ok(ServiceOffload::Off),
        _ => Err(format!(
            "a service has no offload `{text}`; write \"auto\" or \"off\""
        )),
    }
}

/// "off" or "v2".
pub(super) fn proxy_protocol(text: &str) -> Result<ProxyProtocol, String> {
    match text {
        "off" => Ok(ProxyProtocol::Off),
        "v2" => Ok(ProxyProtocol::V2),
        _ => Err(format!(
            "there is no PROXY protocol `{text}`; write \"v2\" or \"off\""
        )),
    }
}

/// "splitless", "split" or "auto".
pub(super) fn carrier(text: &str) -> Result<Carrier, String> {
    let mut all = [Carrier::Splitless, Carrier::Split, Carrier::Auto].into_iter();
    let found = all.find(|carrier| carrier_name(*carrier) == text);
    found.ok_or_else(|| {
        format!("nothing called `{text}` carries connections; write \"splitless\", \"split\" or \"auto\"")
    })
}

/// As a file has it.
pub(crate) const fn carrier_name(carrier: Carrier) -> &'static str {
    match carrier {
        Carrier::Splitless => "splitless",
        Carrier::Split => "split",
        Carrier::Auto => "auto",
    }
}

/// "auto" or "clsact".
pub(super) fn attach(text: &str) -> Result<Attach, String> {
    match text {
        "auto" => Ok(Attach::Auto),
        "clsact" => Ok(Attach::Clsact),
        _ => Err(format!(
            "there is no way to attach `{text}`; write \"auto\" or \"clsact\""
        )),
    }
}

/// "192.0.2.0/24", or an address alone.
pub(crate) fn prefix(text: &str) -> Result<Prefix, String> {
    let (address, len) = match text.split_once('/') {
        Some((address, len)) => (address, Some(len)),
        None => (text, None),
    };
    let addr = ip(address).map_err(|_| {
        format!(
            "`{text}` is not an address prefix; write it like \"192.0.2.0/24\" or \"2001:db8::/32\""
        )
    })?;
    let max = if addr.is_ipv4() { 32 } else { 128 };
    let len = match len {
        None => max,
        Some(len) => len.parse().ok().filter(|len| *len <= max).ok_or_else(|| {
            format!(
                "`/{len}` is not a prefix length; an {} prefix has 0 to {max} bits",
                family(addr)
            )
        })?,
    };
    let network = network(addr, len);
    if network != addr {
        return Err(format!(
            "`{text}` has bits set behind the prefix; the network is {network}/{len}"
        ));
    }
    Ok(Prefix { addr, len })
}

/// "192.0.2.1".
pub(super) fn ip(text: &str) -> Result<IpAddr, String> {
    if let Ok(addr) = text.parse() {
        return Ok(addr);
    }
    if let Ok(addr) = text.parse::<SocketAddr>() {
        return Err(format!(
            "`{text}` has a port; only an address belongs here: \"{}\"",
            addr.ip()
        ));
    }
    Err(format!(
        "`{text}` is not an address; write it like \"192.0.2.1\" or \"2001:db8::1\""
    ))
}

/// "192.0.2.1:443", "[2001:db8::1]:443".
pub(super) fn socket(text: &str) -> Result<SocketAddr, String> {
    if let Ok(addr) = text.parse::<SocketAddr>() {
        return if addr.port() == 0 {
            Err(format!("`{text}` has port 0; ports are 1 to 65535"))
        } else {
            Ok(addr)
        };
    }
    match text.trim_matches(['[', ']']).parse() {
        Ok(IpAddr::V4(addr)) => Err(format!(
            "`{text}` has no port; write it like \"{addr}:443\""
        )),
        Ok(IpAddr::V6(addr)) => Err(format!(
            "`{text}` has no port; write it like \"[{addr}]:443\""
        )),
        Err(_) => Err(format!(
            "`{text}` is not an address and port; write it like \"192.0.2.1:443\" or \"[2001:db8::1]:443\""
        )),
    }
}

/// "192.0.2.1", "[2001:db8::1]:444".
pub(super) fn announce(text: &str) -> Result<Announce, String> {
    if let Ok(addr) = text.trim_start_matches('[').trim_end_matches(']').parse() {
        return Ok(Announce { addr, port: None });
    }
    if text.parse::<SocketAddr>().is_ok() {
        return socket(text).map(|addr| Announce {
            addr: addr.ip(),
            port: Some(addr.port()),
        });
    }
    Err(format!(
        "`{text}` is not an address; write it like \"192.0.2.1\", or \"192.0.2.1:444\" with a port of its own"
    ))
}

/// "8000-8999", "80".
pub(super) fn ports(text: &str) -> Result<RangeInclusive<u16>, String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let number = |text: &str| text.trim().parse::<i64>().ok();
    let (Some(first), Some(last)) = (number(first), number(last)) else {
        return Err(format!(
            "`{text}` is not a port or range; write it like 80 or \"8000-8999\""
        ));
    };
    let range = port(first)?..=port(last)?;
    if range.is_empty() {
        return Err(format!(
            "range {first}-{last} is upside down; write \"{last}-{first}\""
        ));
    }
    Ok(range)
}

/// A port as a number.
pub(super) fn port(number: i64) -> Result<u16, String> {
    u16::try_from(number)
        .ok()
        .filter(|port| *port != 0)
        .ok_or_else(|| format!("{number} is not a port; ports are 1 to 65535"))
}

/// A user and its password, which no message repeats.
pub(super) fn user(text: &str) -> Result<User, String> {
    let Some((name, password)) = text.split_once(':') else {
        return Err("a user is written with its password; write \"name:password\"".into());
    };
    for (what, part) in [("name", name), ("password", password)] {
        if !(1..=255).contains(&part.len()) {
            return Err(format!(
                "the {what} of a user has {} bytes; SOCKS5 takes 1 to 255",
                part.len()
            ));
        }
    }
    Ok(User {
        name: name.as_bytes().into(),
        password: password.as_bytes().into(),
    })
}

/// A name that the kernel takes for a network device.
pub(super) fn interface(text: &str) -> Result<String, String> {
    if text.len() > 15 {
        return Err(format!(
            "`{text}` has {} characters; the kernel takes 15 in the name of an interface",
            text.len()
        ));
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || "_.-@:".contains(c);
    if text.is_empty() || text == "." || text == ".." || !text.chars().all(plain) {
        return Err(format!(
            "`{text}` is not the name of an interface; use up to 15 letters, digits, `_`, `.` and `-`"
        ));
    }
    Ok(text.into())
}

/// Why `addr` can't be the address of a host on a network; `None` when it can.
pub(super) fn unusable(addr: IpAddr) -> Option<String> {
    let kind = match addr {
        IpAddr::V4(v4) if v4.is_broadcast() => "the broadcast address",
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => {
            let v4 = v6.to_ipv4_mapped()?;
            return Some(format!(
                "{addr} is an IPv4 address in IPv6 clothes; write {v4}"
            ));
        }
        IpAddr::V6(v6) if v6.is_unicast_link_local() => "a link-local address",
        _ if addr.is_unspecified() => "the unspecified address",
        _ if addr.is_multicast() => "a multicast address",
        _ if addr.is_loopback() => "a loopback address",
        _ => return None,
    };
    Some(format!(
        "{addr} is {kind}; write an address that other hosts can reach"
    ))
}

/// "IPv4" or "IPv6".
pub(super) const fn family(addr: IpAddr) -> &'static str {
    match addr {
        IpAddr::V4(_) => "IPv4",
        IpAddr::V6(_) => "IPv6",
    }
}

/// `addr` with everything behind the first `len` bits set to 0.
pub(super) fn network(addr: IpAddr, len: u8) -> IpAddr {
    match addr {
        IpAddr::V4(v4) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(len)).unwrap_or(0);
            Ipv4Addr::from_bits(v4.to_bits() & mask).into()
        }
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0);
            Ipv6Addr::from_bits(v6.to_bits() & mask).into()
        }
    }
}

/// An address prefix, as people write it.
pub(crate) struct ShowPrefix(pub(crate) Prefix);

impl fmt::Display for ShowPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.0.addr, self.0.len)
    }
}

/// A time, as people write it: "1s", "1500ms".
pub(super) struct ShowDuration(pub(super) Duration);

impl fmt::Display for ShowDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.0.as_micros();
        let whole = |(_, unit): &&(&str, u64)| micros.is_multiple_of((*unit).into());
        match UNITS.iter().find(whole) {
            Some((name, unit)) if micros > 0 => write!(f, "{}{name}", micros / u128::from(*unit)),
            _ => f.write_str("0s"),
        }
    }
}

/// An announced address, as people write it.
pub(super) struct ShowAnnounce(pub(super) Announce);

impl fmt::Display for ShowAnnounce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.port {
            Some(port) => SocketAddr::new(self.0.addr, port).fmt(f),
            None => self.0.addr.fmt(f),
        }
    }
}

/// A port range, as people write it.
pub(crate) struct ShowPorts<'a>(pub(crate) &'a RangeInclusive<u16>);

impl fmt::Display for ShowPorts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.start() == self.0.end() {
            self.0.start().fmt(f)
        } else {
            write!(f, "{}-{}", self.0.start(), self.0.end())
        }
    }
}

/// Amounts of memory and their bytes.
const AMOUNTS: [(&str, i64); 6] = [
    ("kB", 1000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
];

/// Units of durations and their microseconds.
const UNITS: [(&str, u64); 6] = [
    ("d", 86_400_000_000),
    ("h", 3_600_000_000),
    ("m", 60_000_000),
    ("s", 1_000_000),
    ("ms", 1000),
    ("us", 1),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        assert_eq!(duration("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(duration("2h5m"), Ok(Duration::from_secs(7500)));
        assert_eq!(duration("1d1ms"), Ok(Duration::from_millis(86_400_001)));
        for wrong in [
            "",
            "30",
            "s",
            "5m2h",
            "1s1s",
            "1.5s",
            "3 s",
            "99999999999999999999s",
            "9999999999999999d",
        ] {
            let said = duration(wrong).unwrap_err();
            assert!(
                said.starts_with(&format!("`{wrong}` is not a duration; ")),
                "{said}"
            );
        }
    }

    #[test]
    fn prefixes_must_be_networks() {
        assert_eq!(prefix("10.0.0.0/8").unwrap().len, 8);
        assert_eq!(prefix("0.0.0.0/0").unwrap().len, 0);
        assert_eq!(prefix("::/0").unwrap().len, 0);
        assert_eq!(prefix("192.0.2.7").unwrap().len, 32);
        assert_eq!(
            prefix("10.1.2.3/8").unwrap_err(),
            "`10.1.2.3/8` has bits set behind the prefix; the network is 10.0.0.0/8"
        );
        assert_eq!(
            prefix("2001:db8::1/32").unwrap_err(),
            "`2001:db8::1/32` has bits set behind the prefix; the network is 2001:db8::/32"
        );
        assert_eq!(
            prefix("10.0.0.0/33").unwrap_err(),
            "`/33` is not a prefix length; an IPv4 prefix has 0 to 32 bits"
        );
    }

    #[test]
    fn ports_and_ranges() {
        assert_eq!(ports("80"), Ok(80..=80));
        assert_eq!(ports("8000-8999"), Ok(8000..=8999));
        assert_eq!(
            ports("0").unwrap_err(),
            "0 is not a port; ports are 1 to 65535"
        );
        assert_eq!(
            ports("1-70000").unwrap_err(),
            "70000 is not a port; ports are 1 to 65535"
        );
        assert_eq!(
            ports("90-80").unwrap_err(),
            "range 90-80 is upside down; write \"80-90\""
        );
        assert_eq!(
            ports("http").unwrap_err(),
            "`http` is not a port or range; write it like 80 or \"8000-8999\""
        );
    }

    #[test]
    fn socket_addresses_say_how_to_write_the_port() {
        assert_eq!(
            socket("192.0.2.1").unwrap_err(),
            "`192.0.2.1` has no port; write it like \"192.0.2.1:443\""
        );
        assert_eq!(
            socket("2001:db8::5:443").unwrap_err(),
            "`2001:db8::5:443` has no port; write it like \"[2001:db8::5:443]:443\""
        );
        assert_eq!(
            socket("192.0.2.1:0").unwrap_err(),
            "`192.0.2.1:0` has port 0; ports are 1 to 65535"
        );
        assert!(
            socket("www:80")
                .unwrap_err()
                .starts_with("`www:80` is not an address and port; ")
        );
    }

    #[test]
    fn announced_addresses_have_a_port_or_not() {
        let v6 = "2001:db8::1".parse().unwrap();
        assert_eq!(
            announce("2001:db8::1"),
            Ok(Announce {
                addr: v6,
                port: None
            })
        );
        assert_eq!(
            announce("[2001:db8::1]:444"),
            Ok(Announce {
                addr: v6,
                port: Some(444)
            })
        );
        assert_eq!(
            announce("1.2.3.4:0").unwrap_err(),
            "`1.2.3.4:0` has port 0; ports are 1 to 65535"
        );
    }

    #[test]
    fn unusable_addresses() {
        for (addr, said) in [
            ("0.0.0.0", "the unspecified address"),
            ("::", "the unspecified address"),
            ("127.0.0.1", "a loopback address"),
            ("224.0.0.1", "a multicast address"),
            ("255.255.255.255", "the broadcast address"),
            ("fe80::1", "a link-local address"),
        ] {
            assert_eq!(
                unusable(addr.parse().unwrap()),
                Some(format!(
                    "{addr} is {said}; write an address that other hosts can reach"
                ))
            );
        }
        assert_eq!(unusable("192.0.2.1".parse().unwrap()), None);
    }
}

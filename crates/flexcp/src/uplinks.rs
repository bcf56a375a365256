//! The uplinks of boxes, as the host has them.

pub(crate) mod ways;

use std::net::IpAddr;

use flexcp_io::Interface;
use flexcp_translator::Uplink;

use crate::config::Config;
use crate::config::file::Mode;
use crate::config::live::is_routed;

/// Of each service, in their order; none of one that is no box.
pub(crate) type Uplinks = Vec<Vec<Uplink>>;

/// As they are now. The kernel is asked when there is a box.
pub(crate) fn find(config: &Config) -> Uplinks {
    let mut services = config.services.iter();
    if !services.any(|service| matches!(service.mode, Mode::Box { .. })) {
        return of(config, &[], &[]);
    }
    let interfaces = flexcp_io::interfaces().unwrap_or_default();
    of(config, &interfaces, &flexcp_io::local_addresses())
}

/// One without a carrier has no address that anybody could use.
fn of(config: &Config, interfaces: &[Interface], addrs: &[(String, IpAddr)]) -> Uplinks {
    let carries = |name: &str| {
        let mut named = interfaces.iter().filter(|there| there.name == name);
        named.any(|there| there.carrier)
    };
    let uplink = |name: &str| {
        let own = addrs.iter().filter(|(of, _)| of == name && carries(name));
        let own = own.map(|(_, addr)| *addr).filter(|addr| is_routed(*addr));
        let mut uplink = Uplink::default();
        for addr in own {
            match addr {
                IpAddr::V4(addr) => uplink.v4 = uplink.v4.or(Some(addr)),
                IpAddr::V6(addr) => uplink.v6 = uplink.v6.or(Some(addr)),
            }
        }
        uplink
    };
    let services = config.services.iter().map(|service| match &service.mode {
        Mode::Box { uplinks, .. } => uplinks.iter().map(|name| uplink(&name.value)).collect(),
        _ => Vec::new(),
    });
    services.collect()
}

/// Of those that connections go by, what there is still.
pub(crate) fn left(before: &Uplinks, now: &Uplinks) -> Uplinks {
    let left = |(before, now): (&Uplink, &Uplink)| Uplink {
        v4: before.v4.filter(|addr| now.v4 == Some(*addr)),
        v6: before.v6.filter(|addr| now.v6 == Some(*addr)),
    };
    let services = before.iter().zip(now);
    let left = services.map(|(before, now)| before.iter().zip(now).map(left).collect());
    left.collect()
}

/// What is new about them, a line each.
pub(crate) fn changes(config: &Config, before: &Uplinks, now: &Uplinks) -> Vec<String> {
    let mut lines = Vec::new();
    for ((service, before), now) in config.services.iter().zip(before).zip(now) {
        let Mode::Box { uplinks, .. } = &service.mode else {
            continue;
        };
        for ((name, before), now) in uplinks.iter().zip(before).zip(now) {
            if before != now {
                lines.push(format!("uplink {}: {}", name.value, said(now)));
            }
        }
    }
    lines.dedup();
    lines
}

fn said(uplink: &Uplink) -> String {
    let addrs: Vec<_> = uplink.addrs().map(|addr| addr.to_string()).collect();
    match addrs.is_empty() {
        true => "no carrier, or no address; connections leave it".to_owned(),
        false => addrs.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(name: &str, carrier: bool) -> Interface {
        Interface {
            index: 1,
            name: name.into(),
            header: flexcp_io::LinkHeader::Ethernet,
            up: true,
            carrier,
            is_vrf: false,
            vrf: None,
            is_port: false,
        }
    }

    fn config() -> Config {
        let text = "[[service]]\nname = 'home'\nmode = 'box'\ninterfaces = ['lan0']\n\
            destinations = ['0.0.0.0/0']\nuplinks = ['dsl0', 'lte0']\n";
        crate::config::parse("f", text).0.expect("a configuration")
    }

    fn addr(name: &str, addr: &str) -> (String, IpAddr) {
        (name.into(), addr.parse().expect("an address"))
    }

    #[test]
    fn uplink_has_the_first_routed_address_of_each_family_and_its_place() {
        let there = [interface("dsl0", true), interface("lte0", true)];
        let addrs = [
            addr("lte0", "fe80::1"),
            addr("lte0", "2001:db8::5"),
            addr("lte0", "2001:db8::6"),
            addr("lte0", "10.64.0.5"),
            addr("lan0", "192.168.1.1"),
        ];
        let both = Uplink {
            v4: Some([10, 64, 0, 5].into()),
            v6: Some("2001:db8::5".parse().expect("an address")),
        };
        assert_eq!(of(&config(), &there, &addrs), [[Uplink::default(), both]]);
    }

    #[test]
    fn uplink_without_a_carrier_has_no_address() {
        let addrs = [addr("dsl0", "198.51.100.7"), addr("lte0", "10.64.0.5")];
        let there = [interface("dsl0", false), interface("lte0", true)];
        let found = of(&config(), &there, &addrs);
        let lte: IpAddr = [10, 64, 0, 5].into();
        assert_eq!(found, [[Uplink::default(), lte.into()]]);
        let all = [interface("dsl0", true), interface("lte0", true)];
        let before = of(&config(), &all, &addrs);
        let lines = changes(&config(), &before, &found);
        assert_eq!(
            lines,
            ["uplink dsl0: no carrier, or no address; connections leave it"]
        );
        assert_eq!(left(&before, &found), found);
        assert_eq!(left(&found, &before), found);
        let back = changes(&config(), &found, &before);
        assert_eq!(back, ["uplink dsl0: 198.51.100.7"]);
    }
}

//! Policies of IPsec as `ip xfrm` makes them, and news of these and of rules.

use std::net::IpAddr;
use std::time::Duration;

use flexcp_io::{Changes, Family, IpsecDirection, IpsecPolicy, Waker, ipsec_policies, wait};
use flexcp_translator::Prefix;

use crate::host::{Host, ip};
use crate::netfilter::nft;

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("ipsec_policies_none", none),
    ("ipsec_policies_of_each_direction", directions),
    ("ipsec_policies_of_ports_and_protocols", ports),
    ("ipsec_policies_of_ipv6", v6),
    ("ipsec_policies_of_xfrm_interfaces", interface),
    ("ipsec_policies_that_do_nothing", nothing),
    ("changes_of_rules_and_policies", changes),
    ("changes_that_got_lost", changes_lost),
];

const TEMPLATE: &str = "tmpl src 192.0.2.1 dst 192.0.2.2 proto esp mode tunnel";

fn none() {
    assert_eq!(ipsec_policies().unwrap(), []);
}

fn directions() {
    for (word, direction) in [
        ("in", IpsecDirection::In),
        ("out", IpsecDirection::Out),
        ("fwd", IpsecDirection::Forward),
    ] {
        add(&format!(
            "src 10.1.0.0/16 dst 10.9.0.0/24 dir {word} {TEMPLATE}"
        ));
        let expected = IpsecPolicy {
            direction,
            ..plain()
        };
        assert_eq!(ipsec_policies().unwrap(), [expected]);
        ip("xfrm policy flush");
    }
}

fn ports() {
    add(&format!(
        "src 10.1.0.0/16 dst 10.9.0.0/24 proto tcp sport 4000 dport 443 dir out {TEMPLATE}"
    ));
    assert_eq!(
        ipsec_policies().unwrap(),
        [IpsecPolicy {
            source_ports: Some(4000..=4000),
            destination_ports: Some(443..=443),
            protocol: Some(6),
            ..plain()
        }]
    );
}

fn v6() {
    add("src fd01::/64 dst fd09::2/128 dir out tmpl src fd01::1 dst fd09::1 proto esp mode tunnel");
    assert_eq!(
        ipsec_policies().unwrap(),
        [IpsecPolicy {
            family: Family::V6,
            source: prefix("fd01::", 64),
            destination: prefix("fd09::2", 128),
            ..plain()
        }]
    );
}

fn interface() {
    add(&format!(
        "src 10.1.0.0/16 dst 10.9.0.0/24 dir out {TEMPLATE} if_id 9"
    ));
    assert_eq!(
        ipsec_policies().unwrap(),
        [IpsecPolicy {
            interface_id: Some(9),
            ..plain()
        }]
    );
}

fn nothing() {
    add("src 10.1.0.0/16 dst 10.9.0.0/24 dir out action allow");
    assert_eq!(ipsec_policies().unwrap(), []);
    ip("xfrm policy flush");
    add("src 10.1.0.0/16 dst 10.9.0.0/24 dir out action block");
    assert_eq!(ipsec_policies().unwrap(), [plain()]);
}

fn changes() {
    let mut changes = Changes::open().unwrap();
    assert!(!has_news(&changes, Duration::ZERO) && !changes.drain());
    let policy = format!("xfrm policy add src 10.1.0.0/16 dst 10.9.0.0/24 dir out {TEMPLATE}");
    let steps: [&dyn Fn(); 5] = [
        &|| drop(nft("add table ip t")),
        &|| drop(nft("add chain ip t c")),
        &|| drop(nft("flush ruleset")),
        &|| drop(ip(&policy)),
        &|| drop(ip("xfrm policy flush")),
    ];
    for (number, step) in steps.into_iter().enumerate() {
        step();
        assert!(has_news(&changes, Duration::from_secs(5)), "step {number}");
        assert!(changes.drain(), "step {number}");
        assert!(!has_news(&changes, Duration::ZERO) && !changes.drain());
    }
    // Neither is of concern, nor is another namespace.
    ip("address add 192.0.2.1 dev lo");
    Host::new().run(|| drop(nft("add table ip t")));
    assert!(!changes.drain());
}

fn changes_lost() {
    let mut changes = Changes::open().unwrap();
    // More than the socket holds: then there is an error to be read, and the rest of the messages.
    for table in 0..40 {
        let rules = "ip saddr 192.0.2.1 counter;".repeat(60);
        nft(&format!("table ip t{table} {{ chain c {{ {rules} }}; }}"));
    }
    assert!(has_news(&changes, Duration::from_secs(5)));
    assert!(changes.drain());
    assert!(!has_news(&changes, Duration::ZERO) && !changes.drain());
    nft("flush ruleset");
    assert!(changes.drain());
}

fn has_news(changes: &Changes, patience: Duration) -> bool {
    wait(changes, &Waker::new().unwrap(), Some(patience))
        .unwrap()
        .packets
}

fn add(policy: &str) {
    ip(&format!("xfrm policy add {policy}"));
}

/// From 10.1.0.0/16 to 10.9.0.0/24, whatever it is, as it leaves.
fn plain() -> IpsecPolicy {
    IpsecPolicy {
        direction: IpsecDirection::Out,
        family: Family::V4,
        source: prefix("10.1.0.0", 16),
        destination: prefix("10.9.0.0", 24),
        source_ports: None,
        destination_ports: None,
        protocol: None,
        interface_id: None,
    }
}

fn prefix(addr: &str, len: u8) -> Prefix {
    let addr: IpAddr = addr.parse().unwrap();
    Prefix { addr, len }
}

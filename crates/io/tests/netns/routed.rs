//! By which interface the kernel routes what comes from the device, as accesses by interface are told.

use flexcp_io::RoutedWays;
use flexcp_translator::{Way, Ways as _};
use flexcp_wire::Ends;

use crate::host::{ip, set_sysctl};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("routed_ways_by_address", by_address),
    ("routed_ways_by_rules", by_rules),
    ("routed_ways_of_interfaces_that_come_and_go", come_and_go),
];

/// A device `flexcp0`, and two links whose routes lead to 10.1.0.0/16 and 2001:db8:1::/48, and so on.
fn ways() -> RoutedWays {
    ip("tuntap add flexcp0 mode tun");
    ip("link set flexcp0 up");
    for link in [1, 2] {
        ip(&format!("link add a{link} type veth peer name p{link}"));
        ip(&format!("link set p{link} up"));
        ip(&format!("link set a{link} up"));
        ip(&format!("route add 10.{link}.0.0/16 dev a{link}"));
        ip(&format!("route add 2001:db8:{link}::/48 dev a{link}"));
    }
    for (key, value) in [
        ("ipv4/ip_forward", "1"),
        ("ipv4/conf/all/rp_filter", "0"),
        ("ipv4/conf/flexcp0/rp_filter", "0"),
        ("ipv6/conf/all/forwarding", "1"),
    ] {
        set_sysctl(key, value);
    }
    RoutedWays::open("flexcp0", vec!["a2".into(), "a1".into(), "a3".into()]).unwrap()
}

fn find(ways: &mut RoutedWays, from: &str, to: &str) -> Way {
    ways.find(Ends {
        from: from.parse().unwrap(),
        to: to.parse().unwrap(),
    })
}

fn by_address() {
    let mut ways = ways();
    let mut find = |to: &str| {
        let v6 = to.starts_with('[');
        let from = if v6 {
            "[2001:db8:9::1]:443"
        } else {
            "10.9.0.1:443"
        };
        find(&mut ways, from, to)
    };
    assert_eq!(find("10.1.0.5:4000"), Way::named(1));
    assert_eq!(find("10.2.0.5:4000"), Way::named(0));
    assert_eq!(find("[2001:db8:1::5]:4000"), Way::named(1));
    assert_eq!(find("[2001:db8:2::5]:4000"), Way::named(0));
    // No route, and one by an interface that no access names.
    assert_eq!(find("10.5.0.5:4000"), Way::OTHER);
    ip("link add b1 type veth peer name b2");
    ip("link set b2 up");
    ip("link set b1 up");
    ip("route add 10.5.0.0/16 dev b1");
    assert_eq!(find("10.5.0.5:4000"), Way::OTHER);
}

/// Whatever a rule may go by: addresses, ports, and the interface that packets come from.
fn by_rules() {
    let mut ways = ways();
    ip("route add default dev a2 table 7");
    let mut find = |from: &str| find(&mut ways, from, "10.1.0.5:4000");
    assert_eq!(find("10.9.0.1:443"), Way::named(1));
    for (rule, taken, left) in [
        ("from 10.9.0.1", "10.9.0.1:443", "10.9.0.2:443"),
        ("ipproto tcp sport 443", "10.9.0.1:443", "10.9.0.1:80"),
        ("iif flexcp0 from 10.9.0.1", "10.9.0.1:80", "10.9.0.2:80"),
    ] {
        ip(&format!("rule add {rule} lookup 7 priority 100"));
        assert_eq!(find(taken), Way::named(0), "{rule}");
        assert_eq!(find(left), Way::named(1), "{rule}");
        ip("rule del priority 100");
    }
    ip("rule add iif lo lookup 7 priority 100");
    assert_eq!(
        find("10.9.0.1:443"),
        Way::named(1),
        "it is no packet of the host's"
    );
}

/// Numbers of interfaces change, their names count.
fn come_and_go() {
    let mut ways = ways();
    let mut find = || find(&mut ways, "10.9.0.1:443", "10.3.0.5:4000");
    assert_eq!(find(), Way::OTHER);
    for _ in 0..2 {
        ip("link add a3 type veth peer name p3");
        ip("link set p3 up");
        ip("link set a3 up");
        ip("route add 10.3.0.0/16 dev a3");
        assert_eq!(find(), Way::named(2));
        ip("link del a3");
        assert_eq!(find(), Way::OTHER);
    }
}

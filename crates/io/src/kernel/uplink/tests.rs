//! Which routes the tables of uplinks have, and which addresses have rules.

use netlink_packet_route::route::{RouteNextHop, RouteScope};
use netlink_packet_route::rule::{RuleAction, RuleAttribute, RuleFlags};

use super::*;

const DSL: u32 = 2;
const LTE: u32 = 3;
const LAN: u32 = 4;

fn addr(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// "10.0.0.0/8", or "0.0.0.0/0".
fn to(text: &str) -> RouteMessage {
    let (network, len) = text.split_once('/').unwrap();
    let mut route = RouteMessage::default();
    route.header.address_family = Family::of(addr(network)).netlink();
    route.header.destination_prefix_length = len.parse().unwrap();
    route.header.protocol = RouteProtocol::Static;
    route.header.kind = RouteType::Unicast;
    route.attributes.push(RouteAttribute::Table(TABLE_MAIN));
    if route.header.destination_prefix_length > 0 {
        let network = RouteAttribute::Destination(addr(network).into());
        route.attributes.push(network);
    }
    route
}

fn with(mut route: RouteMessage, parts: &[RouteAttribute]) -> RouteMessage {
    route.attributes.extend_from_slice(parts);
    route
}

fn via(route: RouteMessage, gateway: &str, index: u32) -> RouteMessage {
    let gateway = RouteAttribute::Gateway(addr(gateway).into());
    with(route, &[gateway, RouteAttribute::Oif(index)])
}

fn connected(network: &str, index: u32) -> RouteMessage {
    let mut route = with(to(network), &[RouteAttribute::Oif(index)]);
    route.header.protocol = RouteProtocol::Kernel;
    route.header.scope = RouteScope::Link;
    route
}

fn metric(route: RouteMessage, metric: u32) -> RouteMessage {
    with(route, &[RouteAttribute::Priority(metric)])
}

fn uplinks() -> Vec<Uplink> {
    let uplink = |interface: &str, table, index| Uplink {
        interface: interface.into(),
        table,
        index,
    };
    vec![uplink("dsl0", 7301, DSL), uplink("lte0", 7302, LTE)]
}

fn addresses() -> Vec<(String, IpAddr)> {
    [
        ("lan0", "192.168.1.1"),
        ("dsl0", "198.51.100.7"),
        ("lte0", "10.64.0.5"),
    ]
    .map(|(name, own)| (name.to_owned(), addr(own)))
    .into()
}

fn seen(main: Vec<RouteMessage>) -> Seen {
    let main = main.into_iter().filter(is_of_interest).collect();
    Seen {
        rules: vec![],
        main,
    }
}

/// As `ip route` lists them, more or less.
fn words(way: &UplinkWay) -> Vec<String> {
    let word = |part: &RouteAttribute| match part {
        RouteAttribute::Gateway(RouteAddress::Inet(to)) => format!(" via {to}"),
        RouteAttribute::Gateway(RouteAddress::Inet6(to)) => format!(" via {to}"),
        RouteAttribute::Oif(index) => format!(" dev {index}"),
        RouteAttribute::Priority(metric) => format!(" metric {metric}"),
        RouteAttribute::Table(table) => {
            assert_eq!(*table, way.table);
            String::new()
        }
        RouteAttribute::Destination(_) => String::new(),
        other => format!(" {other:?}"),
    };
    let of = |route: &RouteMessage| {
        assert!(route::is_ours(route), "{route:?}");
        let to = route.attributes.iter().find_map(|part| match part {
            RouteAttribute::Destination(RouteAddress::Inet(to)) => Some(to.to_string()),
            RouteAttribute::Destination(RouteAddress::Inet6(to)) => Some(to.to_string()),
            _ => None,
        });
        let to = to.map_or_else(
            || "default".to_owned(),
            |to| format!("{to}/{}", route.header.destination_prefix_length),
        );
        let parts = route.attributes.iter().map(word);
        to + &parts.collect::<String>()
    };
    way.routes.0.iter().map(of).collect()
}

#[test]
fn table_has_the_default_of_its_interface_and_no_network_behind_another_uplink() {
    let main = vec![
        via(to("0.0.0.0/0"), "198.51.100.1", DSL),
        metric(via(to("0.0.0.0/0"), "10.64.0.1", LTE), 200),
        connected("198.51.100.0/24", DSL),
        connected("10.64.0.0/24", LTE),
        connected("192.168.1.0/24", LAN),
        via(to("192.168.0.0/16"), "192.168.1.2", LAN),
        via(to("9.9.9.9/32"), "10.64.0.1", LTE),
    ];
    let found = seen(main).ways(&uplinks(), &addresses());
    let [dsl, lte] = &found.ways[..] else {
        panic!("{found:?}");
    };
    assert_eq!(
        words(dsl),
        [
            "198.51.100.0/24 dev 2",
            "192.168.1.0/24 dev 4",
            "192.168.0.0/16 via 192.168.1.2 dev 4",
            "default via 198.51.100.1 dev 2",
        ]
    );
    assert_eq!(
        words(lte),
        [
            "9.9.9.9/32 via 10.64.0.1 dev 3",
            "10.64.0.0/24 dev 3",
            "192.168.1.0/24 dev 4",
            "192.168.0.0/16 via 192.168.1.2 dev 4",
            "default via 10.64.0.1 dev 3 metric 200",
        ]
    );
    assert_eq!(
        (&dsl.addresses[..], &lte.addresses[..]),
        (&[addr("198.51.100.7")][..], &[addr("10.64.0.5")][..])
    );
    assert!(found.lacking.is_empty() && found.shared.is_empty());
}

#[test]
fn default_of_an_interface_is_that_with_the_lowest_metric() {
    let main = vec![
        metric(via(to("0.0.0.0/0"), "198.51.100.3", DSL), 300),
        metric(via(to("0.0.0.0/0"), "198.51.100.1", DSL), 100),
        via(to("0.0.0.0/0"), "10.64.0.1", LTE),
        metric(via(to("0.0.0.0/0"), "198.51.100.2", DSL), 200),
    ];
    let seen = seen(main);
    let default = |index| seen.default_of(Family::V4, index).map(|r| priority(&r));
    assert_eq!((default(DSL), default(LTE)), (Some(100), Some(0)));
    assert_eq!(default(LAN), None);
}

#[test]
fn default_without_a_gateway_and_one_of_several_next_hops() {
    let mut point_to_point = with(to("0.0.0.0/0"), &[RouteAttribute::Oif(DSL)]);
    point_to_point.header.scope = RouteScope::Link;
    let mut hop = RouteNextHop::default();
    hop.interface_index = LTE;
    hop.flags = RouteNextHopFlags::Onlink;
    hop.attributes = vec![RouteAttribute::Gateway(addr("10.64.0.1").into())];
    let mut other = hop.clone();
    other.interface_index = LAN;
    let both = RouteAttribute::MultiPath(vec![other, hop]);
    let main = vec![point_to_point, metric(with(to("0.0.0.0/0"), &[both]), 50)];
    let found = seen(main).ways(&uplinks(), &addresses());
    assert_eq!(words(&found.ways[0]), ["default dev 2"]);
    assert_eq!(found.ways[0].routes.0[0].header.scope, RouteScope::Link);
    let mut lte = words(&found.ways[1]);
    lte.iter_mut()
        .for_each(|line| *line = line.replace(" metric 50", ""));
    assert_eq!(lte, ["default via 10.64.0.1 dev 3"]);
    assert_eq!(found.ways[1].routes.0[0].header.flags, RouteFlags::Onlink);
}

#[test]
fn what_no_table_of_an_uplink_has() {
    let mut learned = via(to("203.0.113.0/24"), "192.168.1.2", LAN);
    learned.header.protocol = RouteProtocol::Bird;
    let mut by_source = via(to("2001:db8:1::/48"), "2001:db8::1", LAN);
    by_source.header.source_prefix_length = 64;
    let mut of_host = to("192.168.1.1/32");
    of_host.header.kind = RouteType::Local;
    let none = [
        learned,
        by_source,
        of_host,
        connected("fe80::/64", LAN),
        connected("ff00::/8", LAN),
    ];
    for route in none {
        assert!(!is_of_interest(&route), "{route:?}");
    }
    // Whoever has set it, there is but one that leads to everything.
    let mut default = via(to("0.0.0.0/0"), "198.51.100.1", DSL);
    default.header.protocol = RouteProtocol::Bird;
    assert!(is_of_interest(&default));
    // An unreachable default is none.
    default.header.kind = RouteType::Unreachable;
    assert_eq!(seen(vec![default]).default_of(Family::V4, DSL), None);
}

#[test]
fn of_two_routes_alike_that_of_the_uplink_stays() {
    let main = vec![
        via(to("0.0.0.0/0"), "192.168.1.254", LTE),
        connected("192.168.1.0/24", LAN),
        connected("192.168.1.0/24", LTE),
    ];
    let found = seen(main).ways(&uplinks(), &addresses());
    assert_eq!(
        words(&found.ways[1]),
        ["192.168.1.0/24 dev 3", "default via 192.168.1.254 dev 3"]
    );
}

#[test]
fn address_without_a_default_route_has_no_rule_and_is_told() {
    let main = vec![
        via(to("0.0.0.0/0"), "198.51.100.1", DSL),
        connected("10.64.0.0/24", LTE),
    ];
    let found = seen(main).ways(&uplinks(), &addresses());
    assert_eq!(found.lacking, [("lte0".to_owned(), addr("10.64.0.5"))]);
    assert!(found.ways[1].addresses.is_empty() && found.ways[1].routes.0.is_empty());
    // IPv6 has its own.
    let mut addresses = addresses();
    addresses.push(("dsl0".into(), addr("2001:db8::5")));
    let main = vec![via(to("0.0.0.0/0"), "198.51.100.1", DSL)];
    let found = seen(main).ways(&uplinks()[..1], &addresses);
    assert_eq!(found.lacking, [("dsl0".to_owned(), addr("2001:db8::5"))]);
    assert_eq!(found.ways[0].addresses, [addr("198.51.100.7")]);
}

fn others(source: &str, len: u8) -> RuleMessage {
    let mut rule = RuleMessage::default();
    rule.header.action = RuleAction::ToTable;
    rule.header.src_len = len;
    rule.attributes = vec![
        RuleAttribute::Source(addr(source)),
        RuleAttribute::Table(102),
        RuleAttribute::Priority(100),
        RuleAttribute::SuppressPrefixLen(u32::MAX),
    ];
    rule
}

#[test]
fn address_that_a_rule_of_others_is_about_is_left_to_it() {
    let main = || {
        seen(vec![
            via(to("0.0.0.0/0"), "198.51.100.1", DSL),
            metric(via(to("0.0.0.0/0"), "10.64.0.1", LTE), 200),
        ])
    };
    let mut with_theirs = main();
    with_theirs.rules.push(others("10.64.0.0", 10));
    let found = with_theirs.ways(&uplinks(), &addresses());
    assert_eq!(found.ways[0].addresses, [addr("198.51.100.7")]);
    assert!(found.ways[1].addresses.is_empty());
    assert!(found.ways[1].routes.0.is_empty() && found.lacking.is_empty());
    // Those that are about some of what leaves from there, about another address, or FlexCP's own, leave it to FlexCP.
    let mut some = others("10.64.0.5", 32);
    some.attributes.push(RuleAttribute::FwMark(1));
    let mut inverted = others("192.0.2.0", 24);
    inverted.header.flags = RuleFlags::Invert;
    let mut suppressed = others("10.64.0.5", 32);
    suppressed.attributes[3] = RuleAttribute::SuppressPrefixLen(0);
    let mut own = others("10.64.0.5", 32);
    let ours = RuleAttribute::Protocol(RouteProtocol::from(PROTOCOL));
    own.attributes.push(ours);
    for rule in [some, inverted, suppressed, own, others("10.128.0.0", 10)] {
        let mut seen = main();
        seen.rules.push(rule);
        let found = seen.ways(&uplinks(), &addresses());
        assert_eq!(found.ways[1].addresses, [addr("10.64.0.5")], "{seen:?}");
    }
}

#[test]
fn address_that_two_uplinks_have_is_the_first_ones() {
    let main = vec![
        via(to("0.0.0.0/0"), "192.168.8.1", DSL),
        metric(via(to("0.0.0.0/0"), "192.168.8.1", LTE), 200),
    ];
    let both = ["dsl0", "lte0"].map(|name| (name.to_owned(), addr("192.168.8.100")));
    let found = seen(main).ways(&uplinks(), &both);
    assert_eq!(found.shared, [("lte0".to_owned(), addr("192.168.8.100"))]);
    assert_eq!(found.ways[0].addresses, [addr("192.168.8.100")]);
    assert!(found.ways[1].addresses.is_empty());
}

#[test]
fn copy_of_a_copy_is_the_same() {
    let mut listed = metric(via(to("0.0.0.0/0"), "198.51.100.1", DSL), 100);
    listed.header.table = 254;
    listed.header.flags = RouteFlags::Linkdown | RouteFlags::Onlink;
    listed.attributes.reverse();
    let source = RouteAttribute::PrefSource(addr("198.51.100.7").into());
    listed.attributes.push(source);
    let once = copy(&listed, 7301);
    assert_eq!(copy(&once, 7301), once);
    assert_eq!(route::table(&once), 7301);
    assert_eq!(once.header.flags, RouteFlags::Onlink);
    assert_eq!(once.attributes.len(), 4, "{once:?}");
}

//! Rules as they are arranged, in words.

use std::path::PathBuf;

use super::super::{Copies, UplinkWay};
use super::*;

fn prefix(addr: &str, len: u8) -> Option<Prefix> {
    Some(Prefix {
        addr: addr.parse().unwrap(),
        len,
    })
}

fn diversion(family: Family) -> Diversion {
    Diversion {
        protocol: Protocol::Tcp,
        interface: None,
        source: None,
        destination: None,
        source_ports: None,
        destination_ports: None,
        family,
    }
}

fn plan(diversions: Vec<Diversion>) -> Plan {
    Plan {
        device: "flexcp0".into(),
        vrf: None,
        table: 7300,
        diversions,
        v4: true,
        v6: true,
        mark: 0,
        reserved_ports: None,
        uplinks: vec![],
        journal: PathBuf::new(),
    }
}

fn kernels(preference: u32, table: u32) -> RuleMessage {
    let mut rule = RuleMessage::default();
    rule.header.action = RuleAction::ToTable;
    rule.attributes = vec![
        RuleAttribute::Table(table),
        RuleAttribute::SuppressPrefixLen(u32::MAX),
        RuleAttribute::Protocol(RouteProtocol::Kernel),
    ];
    if preference > 0 {
        rule.attributes.push(RuleAttribute::Priority(preference));
    }
    rule
}

fn usual() -> Vec<RuleMessage> {
    vec![kernels(0, 255), kernels(32766, 254), kernels(32767, 253)]
}

fn words(layout: &Layout) -> Vec<String> {
    let words = |rule: &Rule| format!("{}: {rule}", rule.preference);
    layout.rules.iter().map(words).collect()
}

/// One diversion to an address of this host's own, and one of packets that pass.
fn both() -> Plan {
    let mut own = diversion(Family::V4);
    own.destination = prefix("192.0.2.1", 32);
    own.source_ports = Some(0..=1023);
    own.destination_ports = Some(0..=65535);
    let mut passing = diversion(Family::V4);
    passing.interface = Some("eth0".into());
    passing.source = prefix("10.1.0.0", 16);
    passing.destination = prefix("0.0.0.0", 0);
    passing.destination_ports = Some(80..=80);
    plan(vec![passing, diversion(Family::V6), own])
}

#[test]
fn own_addresses_stand_before_local_and_others_behind() {
    let layout = arrange(&both(), Family::V4, &usual()).unwrap();
    assert_eq!(
        words(&layout),
        [
            "1: all -> table local",
            "0: iif lo -> rule 1",
            "0: iif flexcp0 -> rule 1",
            "0: to 192.0.2.1/32 tcp sport 1-1023 -> table 7300",
            "2: all -> next rule",
            "1: iif lo -> rule 2",
            "1: iif flexcp0 -> rule 2",
            "1: iif eth0 from 10.1.0.0/16 tcp dport 80 -> table 7300",
        ]
    );
    assert_eq!(layout.local, Some(kernels(0, 255)));
    assert!(layout.rules.iter().all(|rule| is_ours(&rule.message())));
}

#[test]
fn what_the_host_sends_stands_before_the_exceptions() {
    let mut plan = both();
    let mut sent = plan.diversions[2].clone();
    sent.interface = Some("lo".into());
    sent.source = prefix("192.0.2.1", 32);
    plan.diversions.push(sent);
    let layout = arrange(&plan, Family::V4, &usual()).unwrap();
    assert_eq!(
        words(&layout)[1..4],
        [
            "0: iif lo from 192.0.2.1/32 to 192.0.2.1/32 tcp sport 1-1023 -> table 7300",
            "0: iif lo -> rule 1",
            "0: iif flexcp0 -> rule 1",
        ]
    );
}

#[test]
fn without_own_addresses_local_stays_where_it_is() {
    let layout = arrange(&both(), Family::V6, &usual()).unwrap();
    assert_eq!(
        words(&layout),
        [
            "2: all -> next rule",
            "1: iif lo -> rule 2",
            "1: iif flexcp0 -> rule 2",
            "1: tcp -> table 7300",
        ]
    );
    assert_eq!(layout.local, None);
}

fn way(interface: &str, table: u32, addresses: &[&str]) -> UplinkWay {
    let addresses = addresses.iter().map(|addr| addr.parse().unwrap());
    UplinkWay {
        interface: interface.into(),
        table,
        addresses: addresses.collect(),
        routes: Copies::default(),
    }
}

#[test]
fn addresses_of_uplinks_stand_directly_behind_the_diversions() {
    let mut plan = both();
    plan.uplinks = vec![
        way("dsl0", 7301, &["198.51.100.7", "2001:db8::7"]),
        way("lte0", 7302, &["10.64.0.5"]),
    ];
    let layout = arrange(&plan, Family::V4, &usual()).unwrap();
    let listed = words(&layout);
    assert_eq!(
        listed[listed.len() - 2..],
        [
            "3: from 198.51.100.7/32 -> table 7301",
            "3: from 10.64.0.5/32 -> table 7302",
        ]
    );
    assert!(layout.rules.iter().all(|rule| is_ours(&rule.message())));
    let layout = arrange(&plan, Family::V6, &usual()).unwrap();
    let listed = words(&layout);
    assert_eq!(listed[4..], ["3: from 2001:db8::7/128 -> table 7301"]);
    // Nobody else's rule may stand there, where there are any.
    let there = [kernels(0, 255), kernels(3, 99), kernels(32766, 254)];
    let error = arrange(&plan, Family::V4, &there).unwrap_err();
    assert!(matches!(error, KernelError::RuleInTheWay { .. }), "{error}");
    assert!(arrange(&both(), Family::V4, &there).is_ok());
    plan.uplinks.truncate(0);
    assert_eq!(last(&plan, Family::V4), BEHIND_ALL);
}

#[test]
fn icmp_has_the_number_of_its_family() {
    for (family, protocol) in [(Family::V4, IpProtocol::Icmp), (Family::V6, ICMPV6)] {
        let icmp = Diversion {
            protocol: Protocol::Icmp,
            ..diversion(family)
        };
        let layout = arrange(&plan(vec![icmp]), family, &usual()).unwrap();
        assert_eq!(words(&layout)[3], "1: icmp -> table 7300");
        let message = layout.rules[3].message();
        assert!(
            message
                .attributes
                .contains(&RuleAttribute::IpProtocol(protocol))
        );
    }
}

#[test]
fn no_diversion_no_rule() {
    let layout = arrange(&plan(vec![]), Family::V4, &[kernels(1, 99)]).unwrap();
    assert!(layout.rules.is_empty() && layout.local.is_none());
}

#[test]
fn local_elsewhere_stays_there() {
    let there = [kernels(1000, 99), kernels(32765, 255), kernels(32766, 254)];
    let layout = arrange(&both(), Family::V4, &there).unwrap();
    assert_eq!(words(&layout)[0], "1: all -> next rule");
    assert_eq!(layout.local, None);
}

#[test]
fn foreign_rules_at_our_preferences_are_in_the_way() {
    let mut marked = kernels(0, 255);
    marked.attributes.push(RuleAttribute::FwMark(1));
    for there in [
        vec![kernels(0, 99), kernels(32766, 254)],
        vec![marked, kernels(32766, 254)],
        vec![kernels(0, 255), kernels(0, 99), kernels(32766, 254)],
        vec![kernels(0, 255), kernels(1, 255), kernels(32766, 254)],
        vec![kernels(0, 255), kernels(2, 99), kernels(32766, 254)],
    ] {
        let error = arrange(&both(), Family::V4, &there).unwrap_err();
        assert!(matches!(error, KernelError::RuleInTheWay { .. }), "{error}");
    }
    // Behind the table `local` a rule at preference 0 is in nobody's way.
    assert!(arrange(&both(), Family::V6, &[kernels(0, 99)]).is_ok());
}

#[test]
fn a_rule_names_its_preference_when_it_is_deleted() {
    let mut rule = kernels(0, 255);
    rule.header.flags = RuleFlags::IifDetached | RuleFlags::Invert;
    let rule = with_preference(rule);
    assert_eq!(rule.attributes.last(), Some(&RuleAttribute::Priority(0)));
    assert_eq!(rule.header.flags, RuleFlags::Invert);
    let again = with_preference(with_preference(kernels(7, 255)));
    assert_eq!(again.attributes, kernels(7, 255).attributes);
}

#[test]
fn ports_the_kernel_has_rules_for() {
    assert_eq!(selector(&(0..=65535)), None);
    assert_eq!(selector(&(1..=65535)), None);
    assert_eq!(selector(&(0..=7)), Some(1..=7));
    for ports in [0..=65535, 1..=65534, 80..=80] {
        assert!(check_ports(&ports).is_ok(), "{ports:?}");
    }
    for ports in [2..=65535, 65535..=65535, 0..=0, RangeInclusive::new(9, 8)] {
        assert!(check_ports(&ports).is_err(), "{ports:?}");
    }
}

//! Split connections are the kernel's: the translator sends their SYNs on to the host's own sockets, and what it does not know
//! where a relay listens.

use flexcp_translator::{Carrier, Prefix, SmallestDelay};

use crate::support::{Scenario, Setup, Shelf};

const SYN: &str = "S 0:0(0) win 65535 <mss 1460,sackok,ws 8,capable>";
const PLAIN_SYN: &str = "S 0:0(0) win 65535 <mss 1460,sackok,ws 8>";
const JOIN: &str = "S 0:0(0) win 65535 <mss 1460,join token 1234>";
/// What leaves is what came.
const SENT_ON: &str = "10.1.0.2:40000 > 10.9.0.2:80 S";
const JOIN_SENT_ON: &str = "10.1.1.2:40001 > 10.9.0.2:80 S";

/// A service with a back end that takes its connections so, where the kernel knows its sockets.
fn setup(carrier: Option<Carrier>) -> Setup {
    let mut setup = Setup::new().backends(1);
    setup.intake.carrier = carrier;
    setup
}

fn started(setup: Setup) -> Scenario {
    let mut scenario = setup.start();
    scenario.fast_path(&Shelf::with_sockets());
    // Its twins know no sockets.
    scenario.uncompared();
    scenario
}

#[test]
fn start_syn_of_a_split_service_goes_to_the_kernel_as_it_is() {
    for syn in [SYN, PLAIN_SYN] {
        let mut t = started(setup(Some(Carrier::Split)));
        assert_eq!(t.client(0, syn).lines(), [SENT_ON]);
        assert_eq!(t.state(), "gone");
        assert_eq!(t.moved(), "split+1");
    }
}

#[test]
fn start_syn_of_another_is_translated() {
    for carrier in [None, Some(Carrier::Splitless)] {
        let mut t = started(setup(carrier));
        let _ = t.client(0, SYN);
        assert_eq!(t.moved(), "mp_capable_syn_rx+1 connections_opened+1");
    }
}

#[test]
fn start_syn_is_translated_where_packets_for_sockets_would_come_here() {
    let mut t = setup(Some(Carrier::Split)).start();
    let _ = t.client(0, SYN);
    assert_eq!(
        t.moved(),
        "mp_capable_syn_rx+1 split_refused+1 connections_opened+1"
    );
}

#[test]
fn start_syn_with_data_is_split_where_sockets_take_data_of_syns() {
    const WITH_DATA: &str = "S 0:5(5) win 65535 <mss 1460,sackok,ws 8>";
    for takes in [false, true] {
        let mut setup = setup(Some(Carrier::Split));
        setup.intake.relay_takes_syn_data = takes;
        let mut t = started(setup);
        let _ = t.client(0, WITH_DATA);
        let moved = if takes {
            "split+1"
        } else {
            "split_refused+1 connections_opened+1"
        };
        assert!(t.moved().contains(moved), "{}", t.moved());
    }
}

#[test]
fn start_first_rule_that_says_a_carrier_for_the_client_says_it() {
    let from = |addr: [u8; 4]| Prefix {
        addr: addr.into(),
        len: 24,
    };
    // What the rule says; its clients; a port of servers that it is for; whether the connection is split.
    let cases = [
        (Some(Carrier::Split), vec![], None, true),
        (Some(Carrier::Split), vec![from([10, 1, 0, 0])], None, true),
        (Some(Carrier::Split), vec![from([10, 1, 9, 0])], None, false),
        (None, vec![], None, false),
        // Which server it will be nobody knows yet.
        (Some(Carrier::Split), vec![], Some(80), false),
    ];
    for (carrier, clients, port, split) in cases {
        let mut setup = setup(Some(Carrier::Splitless)).steered(SmallestDelay, [0, 0]);
        setup.change_rule(|rule| {
            rule.carrier = carrier;
            rule.clients = clients;
            rule.ports = port.into_iter().map(|port| port..=port).collect();
        });
        let mut t = started(setup);
        let _ = t.client(0, SYN);
        let expected = match split {
            true => "split+1",
            false => "mp_capable_syn_rx+1 connections_opened+1",
        };
        assert_eq!(t.moved(), expected, "{carrier:?} {port:?}");
    }
}

#[test]
fn start_rule_does_not_split_where_no_relay_listens() {
    let mut setup = setup(None).steered(SmallestDelay, [0, 0]);
    setup.change_rule(|rule| rule.carrier = Some(Carrier::Split));
    let mut t = started(setup);
    let _ = t.client(0, SYN);
    assert_eq!(t.moved(), "mp_capable_syn_rx+1 connections_opened+1");
}

#[test]
fn start_drained_service_refuses_before_anything_is_split() {
    let mut setup = setup(Some(Carrier::Split));
    setup.intake.closed = true;
    let mut t = started(setup);
    let outcome = t.client(0, SYN);
    assert_eq!(outcome.lines().len(), 2, "dropped and reset");
    assert_eq!(t.moved(), "draining+1");
    assert_eq!(t.why(), "rst.draining+1");
}

#[test]
fn start_join_with_an_unknown_token_follows_to_the_kernel() {
    let mut t = started(setup(Some(Carrier::Splitless)));
    assert_eq!(t.client(1, JOIN).lines(), [JOIN_SENT_ON]);
    assert_eq!(t.moved(), "split_joins+1");
}

#[test]
fn start_join_at_an_announced_address_follows_too() {
    let mut t = started(setup(Some(Carrier::Split)).announce("10.8.1.1"));
    t.net.flow_mut(1).local = "10.8.1.1:80".parse().expect("an end");
    assert_eq!(
        t.client(1, JOIN).lines(),
        ["10.1.1.2:40001 > 10.8.1.1:80 S"]
    );
    assert_eq!(t.moved(), "split_joins+1");
}

#[test]
fn established_join_of_a_translated_connection_stays_here() {
    let mut t = setup(Some(Carrier::Splitless)).established();
    t.fast_path(&Shelf::with_sockets());
    t.uncompared();
    t.client(1, "S 0:0(0) win 65535 <mss 1460,sackok,ws 8,join>")
        .gives(&["client1 S. 0:0(0) ack 1 win 65152 <mss 1460,sackok,ws 7,join id 0>"]);
    assert_eq!(t.moved(), "mp_join_syn_rx+1");
}

#[test]
fn start_packet_of_nothing_known_is_for_the_kernel_to_refuse() {
    let mut t = started(setup(Some(Carrier::Split)));
    // The third packet of a handshake that the kernel keeps no socket for (SYN cookies) is among them.
    assert_eq!(
        t.client(0, ". 1:1(0) ack 1 win 512").lines(),
        ["10.1.0.2:40000 > 10.9.0.2:80 ."]
    );
    assert_eq!(t.moved(), "");
}

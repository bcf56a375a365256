//! `mode = "box"`: what the kernel and the translator are told, and what is wrong.

use std::net::IpAddr;

use super::host::{FakeHost, diversions};
use super::{good, live, plan, said};
use crate::config::span::Diagnostics;

const BOX: &str = "[[service]]\nname = 'home'\nmode = 'box'\ninterfaces = ['eth2']\n\
                   destinations = ['10.9.0.0/16']\nports = [443]\nuplinks = ['eth0', 'eth1']\n";

#[test]
fn packets_of_clients_and_to_uplinks_are_diverted() {
    let config = good(BOX);
    let uplinks: Vec<IpAddr> = ["203.0.113.5", "10.0.0.1"]
        .map(|addr| addr.parse().unwrap())
        .into();
    let sources = std::slice::from_ref(&uplinks);
    assert_eq!(
        diversions(&config, sources),
        [
            "iif eth2 to 10.9.0.0/16 dport 443",
            "to 203.0.113.5/32 dport 61000-65534",
            "to 10.0.0.1/32 dport 61000-65534",
            "to 203.0.113.5/32 icmp",
            "to 10.0.0.1/32 icmp",
        ]
    );
    let ids = plan::first_ids(&config);
    let told = plan::translator(&config, sources, &ids, 0);
    let flexcp_translator::Mode::Box { uplinks: told, .. } = &told.services[0].mode else {
        panic!("another mode");
    };
    let expected = uplinks.iter().map(|addr| (*addr).into());
    assert_eq!(*told, expected.collect::<Vec<flexcp_translator::Uplink>>());
}

#[test]
fn uplinks_have_the_addresses_of_their_interfaces_in_their_order() {
    let config = good(BOX);
    let mut found = Diagnostics::new("f", BOX);
    let sources = live::check(&config, &FakeHost, &mut found);
    let shown: Vec<_> = sources[0].iter().map(ToString::to_string).collect();
    assert_eq!(shown, ["203.0.113.5", "2001:db8::5", "10.0.0.1"]);
    let config = good(&BOX.replace("'eth1'", "'eth3'"));
    let _ = live::check(&config, &FakeHost, &mut found);
    let said = found.to_string();
    assert!(said.contains("uplink `eth3` has no address"), "{said}");
}

#[test]
fn what_is_no_box_says_so() {
    said(
        &BOX.replace("interfaces = ['eth2']\n", ""),
        &[
            "f:1:1: error: a box has to know where its clients come in; write interfaces = [\"lan0\"]",
        ],
    );
    said(
        &BOX.replace("['eth2']", "['eth1']"),
        &["f:7:20: error: clients come in on `eth1`, so it can be no uplink"],
    );
    let nine: Vec<_> = (0..9).map(|n| format!("'wan{n}'")).collect();
    said(
        &BOX.replace("'eth0', 'eth1'", &nine.join(", ")),
        &["f:7:76: error: there can be 8 uplinks; remove this one"],
    );
    said(
        &BOX.replace("['eth0', 'eth1']", "['eth0', 'eth0']"),
        &["f:7:20: error: eth0 is listed twice; remove one"],
    );
    said(
        &format!("{BOX}announce = ['192.0.2.1']\n"),
        &[
            "f:8:13: error: a box is the client of its servers, and announces no addresses; remove `announce`",
        ],
    );
    said(
        &BOX.replace("uplinks = ['eth0', 'eth1']\n", ""),
        &[
            "f:1:1: error: a box service has no `uplinks`; list the interfaces that connections go out by, like [\"dsl0\", \"lte0\"]",
        ],
    );
}

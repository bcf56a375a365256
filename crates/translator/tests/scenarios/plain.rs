//! Plain TCP clients, and packets that belong to nothing, in transparent mode.

use crate::support::{Scenario, Setup};

#[test]
fn start_plain_connection_passes_untouched() {
    let mut t = Setup::new().start();
    t.client(0, "S 0:0(0) win 65535 <mss 1460,sackok,ts 7 0,ws 8>")
        .gives(&["server S 0:0(0) win 65535 <mss 1460,sackok,ts 7 0,ws 8>"]);
    t.server("S. 0:0(0) ack 1 win 65160 <mss 1400,sackok,ts 9 7,ws 7>")
        .gives(&["client0 S. 0:0(0) ack 1 win 65160 <mss 1400,sackok,ts 9 7,ws 7>"]);
    t.client(0, ". 1:1(0) ack 1 win 512 <ts 8 9>")
        .gives(&["server . 1:1(0) ack 1 win 512 <ts 8 9>"]);
    t.client(0, "P. 1:101(100) ack 1 win 512 <ts 8 9>")
        .gives(&["server P. 1:101(100) ack 1 win 512 <ts 8 9>"]);
    t.server("FP. 1:101(100) ack 101 win 64 <ts 10 8>")
        .gives(&["client0 FP. 1:101(100) ack 101 win 64 <ts 10 8>"]);
    assert_eq!(t.state(), "gone", "nothing is kept of it");
    assert_eq!(t.moved(), "plain_syn+1");
}

#[test]
fn start_plain_syn_with_unknown_options_keeps_them() {
    let mut t = Setup::new().start();
    t.client(0, "S 0:0(0) win 65535 <mss 1460,fo,raw fd04aabb>")
        .gives(&["server S 0:0(0) win 65535 <mss 1460,fo [],opt-253 [aa, bb]>"]);
    assert_eq!(t.moved(), "plain_syn+1");
}

#[test]
fn start_packet_of_an_unknown_connection_passes() {
    let mut t = Setup::new().start();
    t.client(0, "P. 1:101(100) ack 1")
        .gives(&["server P. 1:101(100) ack 1 win 512"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn start_mptcp_packet_of_an_unknown_connection_is_refused() {
    // Only FlexCP can have spoken MPTCP with it: its numbers are not the server's.
    let mut t = Setup::new().start();
    t.client(0, "P. 1:101(100) ack 1 <prio b>").gives(&[
        "drop no_connection",
        "client0 R 1:1(0) win 0 <rst reason 0>",
    ]);
    t.client(0, "R. 1:1(0) ack 1 <rst reason 0>")
        .gives(&["drop no_connection"]);
    assert_eq!(t.moved(), "no_connection+2");
}

#[test]
fn start_mptcp_packet_of_an_unknown_connection_passes_to_a_server_that_may_speak_it() {
    let mut t = Setup::new().end_to_end().start();
    t.client(0, "P. 1:101(100) ack 1 <prio b>")
        .gives(&["server P. 1:101(100) ack 1 win 512 <prio b>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn start_syn_to_a_port_outside_the_service_is_not_taken() {
    let mut t = Setup::new().start();
    t.net.flow_mut(0).local.set_port(443);
    t.net.flow_mut(0).isn_flexcp = 0;
    t.client(0, "S 0:0(0) win 65535 <mss 1460,capable>")
        .gives(&[
            "drop no_connection",
            "client0 R. 0:0(0) ack 1 win 0 <rst reason 0>",
        ]);
    assert_eq!(t.moved(), "no_connection+1");
    t.net.flow_mut(0).local.set_port(89);
    let outcome = t.client(0, "S 0:0(0) win 65535 <mss 1460,capable>");
    assert_eq!(
        outcome.lines(),
        ["10.1.0.2:40000 > 10.9.0.2:89 S"],
        "the last port of its range"
    );
    assert_eq!(t.moved(), "mp_capable_syn_rx+1 connections_opened+1");
}

#[test]
fn start_syn_to_an_address_outside_the_service_is_not_taken() {
    let mut t = Setup::new().start();
    t.net.flow_mut(0).isn_flexcp = 0;
    t.net.flow_mut(0).local = "10.9.1.2:80".parse().expect("an address");
    t.client(0, "S 0:0(0) win 65535 <mss 1460,capable>")
        .gives(&[
            "drop no_connection",
            "client0 R. 0:0(0) ack 1 win 0 <rst reason 0>",
        ]);
    assert_eq!(t.moved(), "no_connection+1");
}

#[test]
fn established_other_connections_packets_pass_by() {
    let mut t = Setup::new().connections(2).established();
    t.client(10, "S 0:0(0) win 65535 <mss 1460>")
        .gives(&["server#1 S 0:0(0) win 65535 <mss 1460>"]);
    t.client(10, ". 1:1(0) ack 1")
        .gives(&["server#1 . 1:1(0) ack 1 win 512"]);
    assert_eq!(t.moved(), "plain_syn+1");
}

#[test]
fn start_plain_corrupted_packet_stays_corrupted() {
    let mut t = Setup::new().start();
    t.client(0, "P. 1:101(100) ack 1 bad")
        .gives(&["server P. 1:101(100) ack 1 win 512 bad"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn start_stripped_syn_that_was_corrupted_stays_corrupted() {
    let mut t = Setup::new().start();
    t.client(0, "S 0:0(0) win 65535 <mss 1460,capable v 2> bad")
        .gives(&["server S 0:0(0) win 65535 <mss 1460> bad"]);
    assert_eq!(t.moved(), "plain_syn+1");
}

#[test]
fn plain_ttl_and_class_pass() {
    let mut t = Scenario::established();
    t.client(
        0,
        "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1> tc 184 ttl 3",
    )
    .gives(&["server P. 1:101(100) ack 1 win 512 tc 184"]);
    assert_eq!(t.moved(), "");
}

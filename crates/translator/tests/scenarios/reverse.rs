//! Reverse mode: clients address FlexCP, back ends see FlexCP's address, and one that refuses or does
//! not answer is skipped.

use crate::support::{Scenario, Setup};

const SYN: &str = "S 0:0(0) win 65535 <mss 1460,sackok,ws 8,capable>";
const SYN_ACK: &str = "S. 0:0(0) ack 1 win 65160 <mss 1460,sackok,ws 7>";
const SYN_ACK_DOWN: &str = "client0 S. 0:0(0) ack 1 win 65160 <mss 1460,sackok,ws 7,capable>";
const REFUSED: &str = "R. 0:0(0) ack 1 win 0";

fn syn_up(backend: usize) -> String {
    format!("server{backend} S 0:0(0) win 65535 <mss 1432,sackok,ws 8>")
}

#[test]
fn start_syn_goes_to_a_back_end_from_an_address_of_flexcps() {
    let mut t = Setup::new().backends(2).start();
    t.client(0, SYN).gives(&[&syn_up(0)]);
    let view = t.view().expect("a connection");
    assert_eq!(view.backend.to_string(), "10.8.0.1:8080");
    assert_eq!(view.source.ip().to_string(), "10.8.0.100");
    assert!((50_000..=50_999).contains(&view.source.port()));
    assert_eq!(view.server.to_string(), "10.9.0.2:80");
    assert_eq!(t.moved(), "mp_capable_syn_rx+1 connections_opened+1");
}

#[test]
fn established_data_passes_both_ways() {
    let mut t = Scenario::reverse(1);
    t.client(0, "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1>")
        .gives(&["server0 P. 1:101(100) ack 1 win 512"]);
    t.server("P. 1:201(200) ack 101")
        .gives(&["client0 P. 1:201(200) ack 101 win 64 <dss ack 101 map 1:201@1>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn established_join_to_the_listening_address_works() {
    let mut t = Setup::new().backends(1).two_subflows();
    t.client(1, "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1>")
        .gives(&["server0 P. 1:101(100) ack 1 win 512"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn start_back_ends_are_taken_in_turn() {
    let mut t = Setup::new().backends(3).connections(4).start();
    for (client, server) in [
        (0, "server0"),
        (10, "server1#1"),
        (20, "server2#2"),
        (30, "server0#3"),
    ] {
        t.client(client, SYN).gives(&[&format!(
            "{server} S 0:0(0) win 65535 <mss 1432,sackok,ws 8>"
        )]);
    }
    assert_eq!(t.moved(), "mp_capable_syn_rx+4 connections_opened+4");
}

#[test]
fn syn_sent_data_of_an_earlier_connection_on_that_port_stays_where_it_is() {
    // It may be another client's.
    let mut t = Setup::new().backends(1).syn_sent();
    t.server("P. 901:1001(100) ack 601 win 512")
        .gives(&["drop unexpected"]);
    assert_eq!(t.moved(), "unexpected+1");
}

#[test]
fn syn_sent_refused_goes_to_the_next_back_end_with_the_same_syn() {
    let mut t = Setup::new().backends(2).syn_sent();
    t.server(REFUSED).gives(&[&syn_up(1)]);
    t.backend(1, SYN_ACK).gives(&[SYN_ACK_DOWN]);
    t.client(0, ". 1:1(0) ack 1 win 512 <capable>")
        .gives(&["server1 . 1:1(0) ack 1 win 512"]);
    assert_eq!(
        t.moved(),
        "mp_capable_ack_rx+1 backend_skipped+1 backend_marked+1"
    );
    t.server("P. 1:101(100) ack 1")
        .gives(&["client0 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn syn_sent_refused_with_timestamps_the_same_syn_has_them() {
    let mut t = Setup::new().ts().backends(2).syn_sent();
    t.server(REFUSED)
        .gives(&["server1 S 0:0(0) win 65535 <mss 1432,sackok,ts 1000 0,ws 8>"]);
    assert_eq!(t.moved(), "backend_skipped+1 backend_marked+1");
}

#[test]
fn syn_sent_all_refuse_and_the_client_hears_of_it() {
    let mut t = Setup::new().backends(3).syn_sent();
    t.server(REFUSED).gives(&[&syn_up(1)]);
    t.backend(1, REFUSED).gives(&[&syn_up(2)]);
    t.backend(2, REFUSED)
        .gives(&["client0 R. 0:0(0) ack 1 win 0"]);
    assert_eq!(t.state(), "gone");
    assert_eq!(
        t.moved(),
        "connections_closed+1 backend_skipped+2 backend_marked+3"
    );
}

#[test]
fn syn_sent_one_back_end_that_refuses_and_the_client_hears_of_it() {
    let mut t = Setup::new().backends(1).syn_sent();
    t.server(REFUSED).gives(&["client0 R. 0:0(0) ack 1 win 0"]);
    assert_eq!(t.moved(), "connections_closed+1 backend_marked+1");
}

#[test]
fn syn_sent_unreachable_goes_to_the_next_back_end_when_the_client_asks_again() {
    let mut t = Setup::new().backends(2).syn_sent();
    t.at(1000);
    t.client(0, SYN).gives(&[&syn_up(1)]);
    t.backend(1, SYN_ACK).gives(&[SYN_ACK_DOWN]);
    assert_eq!(t.moved(), "backend_skipped+1 backend_marked+1");
}

#[test]
fn syn_sent_all_unreachable_the_last_one_is_asked_again() {
    let mut t = Setup::new().backends(2).syn_sent();
    t.at(1000);
    t.client(0, SYN).gives(&[&syn_up(1)]);
    t.at(3000);
    t.client(0, SYN).gives(&[&syn_up(1)]);
    assert_eq!(t.moved(), "backend_skipped+1 backend_marked+2");
}

#[test]
fn skipped_back_end_that_answers_late_is_reset() {
    let mut t = Setup::new().backends(2).syn_sent();
    t.at(1000);
    t.client(0, SYN).gives(&[&syn_up(1)]);
    t.backend(0, SYN_ACK)
        .gives(&["drop no_connection", "server0 R 1:1(0) win 0"]);
    t.backend(1, SYN_ACK).gives(&[SYN_ACK_DOWN]);
    assert_eq!(
        t.moved(),
        "backend_skipped+1 backend_marked+1 backend_back+1 no_connection+1"
    );
}

#[test]
fn syn_received_syn_again_stays_with_its_back_end() {
    let mut t = Setup::new().backends(2).syn_received();
    t.client(0, SYN).gives(&[&syn_up(0)]);
    t.server(SYN_ACK).gives(&[SYN_ACK_DOWN]);
    assert_eq!(t.moved(), "");
}

#[test]
fn syn_sent_blind_refusal_is_dropped() {
    let mut t = Setup::new().backends(2).syn_sent();
    t.server("R. 0:0(0) ack 7 win 0")
        .gives(&["drop blind_reset"]);
    assert_eq!(t.moved(), "blind_reset+1");
}

#[test]
fn established_server_rst_is_no_refusal() {
    let mut t = Scenario::reverse(2);
    t.server("R. 1:1(0) ack 1 win 0")
        .gives(&["client0 R. 1:1(0) ack 1 win 509 <fastclose>"]);
    assert_eq!(t.moved(), "mp_fastclose_tx+1");
}

#[test]
fn ipv4_client_reaches_an_ipv6_back_end() {
    let mut t = Setup::new().backends(1).backends_v6().established();
    t.client(0, "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1>")
        .gives(&["server0 P. 1:101(100) ack 1 win 512"]);
    t.server("P. 1:101(100) ack 101")
        .gives(&["client0 P. 1:101(100) ack 101 win 64 <dss ack 101 map 1:101@1>"]);
    assert_eq!(
        t.view().expect("a connection").source.ip().to_string(),
        "fd00:8::64"
    );
    assert_eq!(t.moved(), "");
}

#[test]
fn ipv6_client_reaches_an_ipv4_back_end() {
    let mut t = Setup::new().v6().backends(1).established();
    t.client(0, "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1>")
        .gives(&["server0 P. 1:101(100) ack 1 win 512"]);
    t.server("P. 1:101(100) ack 101")
        .gives(&["client0 P. 1:101(100) ack 101 win 64 <dss ack 101 map 1:101@1>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn start_syn_without_capable_is_proxied_too() {
    let mut t = Setup::new().backends(2).start();
    t.client(0, "S 0:0(0) win 65535 <mss 1460,sackok,ws 8>")
        .gives(&["server0 S 0:0(0) win 65535 <mss 1460,sackok,ws 8>"]);
    t.server(SYN_ACK)
        .gives(&["client0 S. 0:0(0) ack 1 win 65160 <mss 1460,sackok,ws 7>"]);
    t.client(0, ". 1:1(0) ack 1")
        .gives(&["server0 . 1:1(0) ack 1 win 512"]);
    t.client(0, "P. 1:101(100) ack 1")
        .gives(&["server0 P. 1:101(100) ack 1 win 512"]);
    t.server("P. 1:101(100) ack 101")
        .gives(&["client0 P. 1:101(100) ack 101 win 64"]);
    assert_eq!(t.state(), "plain");
    assert_eq!(t.moved(), "plain_syn+1 connections_opened+1");
}

#[test]
fn plain_refused_goes_to_the_next_back_end() {
    let mut t = Setup::new().backends(2).start();
    t.client(0, "S 0:0(0) win 65535 <mss 1460,sackok,ws 8>")
        .gives(&["server0 S 0:0(0) win 65535 <mss 1460,sackok,ws 8>"]);
    t.server(REFUSED)
        .gives(&["server1 S 0:0(0) win 65535 <mss 1460,sackok,ws 8>"]);
    t.backend(1, SYN_ACK)
        .gives(&["client0 S. 0:0(0) ack 1 win 65160 <mss 1460,sackok,ws 7>"]);
    assert_eq!(
        t.moved(),
        "plain_syn+1 connections_opened+1 backend_skipped+1 backend_marked+1"
    );
}

#[test]
fn plain_unreachable_goes_to_the_next_back_end_when_the_client_asks_again() {
    let mut t = Setup::new().backends(2).start();
    t.client(0, "S 0:0(0) win 65535 <mss 1460>")
        .gives(&["server0 S 0:0(0) win 65535 <mss 1460>"]);
    t.at(1000);
    t.client(0, "S 0:0(0) win 65535 <mss 1460>")
        .gives(&["server1 S 0:0(0) win 65535 <mss 1460>"]);
    assert_eq!(
        t.moved(),
        "plain_syn+1 connections_opened+1 backend_skipped+1 backend_marked+1"
    );
}

#[test]
fn plain_closed_by_fins_leaves_after_lingering() {
    let mut t = Setup::new().backends(1).start();
    t.client(0, "S 0:0(0) win 65535 <mss 1460>")
        .gives(&["server0 S 0:0(0) win 65535 <mss 1460>"]);
    t.server("S. 0:0(0) ack 1 win 65160 <mss 1460>")
        .gives(&["client0 S. 0:0(0) ack 1 win 65160 <mss 1460>"]);
    t.client(0, "F. 1:1(0) ack 1")
        .gives(&["server0 F. 1:1(0) ack 1 win 512"]);
    t.server("F. 1:1(0) ack 2")
        .gives(&["client0 F. 1:1(0) ack 2 win 64"]);
    t.client(0, ". 2:2(0) ack 2")
        .gives(&["server0 . 2:2(0) ack 2 win 512"]);
    t.at(10_000);
    t.timeout().gives(&[]);
    assert_eq!(t.state(), "gone");
    assert_eq!(
        t.moved(),
        "plain_syn+1 connections_opened+1 connections_closed+1"
    );
}

#[test]
fn plain_rst_passes() {
    let mut t = Setup::new().backends(2).start();
    t.client(0, "S 0:0(0) win 65535 <mss 1460>")
        .gives(&["server0 S 0:0(0) win 65535 <mss 1460>"]);
    t.server("S. 0:0(0) ack 1 win 65160 <mss 1460>")
        .gives(&["client0 S. 0:0(0) ack 1 win 65160 <mss 1460>"]);
    t.client(0, ". 1:1(0) ack 1")
        .gives(&["server0 . 1:1(0) ack 1 win 512"]);
    t.server("R. 1:1(0) ack 1 win 0")
        .gives(&["client0 R. 1:1(0) ack 1 win 0"]);
    t.at(60_000);
    t.timeout().gives(&[]);
    assert_eq!(t.state(), "gone");
    assert_eq!(
        t.moved(),
        "plain_syn+1 connections_opened+1 connections_closed+1"
    );
}

#[test]
fn syn_sent_syn_again_without_capable_makes_it_plain_tcp() {
    let mut t = Setup::new().backends(1).syn_sent();
    t.at(3000);
    t.client(0, "S 0:0(0) win 65535 <mss 1460,sackok,ws 8>")
        .gives(&["server0 S 0:0(0) win 65535 <mss 1460,sackok,ws 8>"]);
    t.server(SYN_ACK)
        .gives(&["client0 S. 0:0(0) ack 1 win 65160 <mss 1460,sackok,ws 7>"]);
    assert_eq!(t.moved(), "plain_syn+1 backend_marked+1 backend_back+1");
}

#[test]
fn start_segment_of_no_connection_is_reset() {
    let mut t = Setup::new().backends(1).start();
    t.client(0, ". 1:1(0) ack 1")
        .gives(&["drop no_connection", "client0 R 1:1(0) win 0"]);
    t.net.flow_mut(0).isn_flexcp = 0;
    t.client(0, "P 1:101(100)")
        .gives(&["drop no_connection", "client0 R. 0:0(0) ack 101 win 0"]);
    t.client(0, "R 1:1(0)").gives(&["drop no_connection"]);
    assert_eq!(t.moved(), "no_connection+3");
}

#[test]
fn start_ports_that_are_all_taken_refuse_the_connection() {
    let mut t = Setup::new()
        .backends(1)
        .ports(1)
        .connections(2)
        .established();
    let outcome = t.client(10, SYN);
    assert_eq!(outcome.lines()[0], "drop limit_reached");
    let _ = t.moved();
    assert_eq!(t.why(), "rst.no_room+1");
}

#[test]
fn start_port_of_a_handshake_that_is_not_complete_makes_room() {
    // Under a flood of SYNs none of them ever will be; the back end is told first.
    let mut t = Setup::new().backends(1).ports(1).connections(3).start();
    t.client(0, SYN).gives(&[&syn_up(0)]);
    let outcome = t.client(10, SYN);
    assert_eq!(outcome.lines()[0], "server0 R 1:1(0) win 0");
    assert!(
        outcome.lines()[1].contains(" S 0:0(0) win 65535 <mss 1432"),
        "{outcome:?}"
    );
    assert_eq!(t.state_of(0), None);
    t.restart(0);
    let outcome = t.client(20, "S 0:0(0) win 65535 <mss 1460>");
    assert_eq!(outcome.lines().len(), 2);
    assert!(
        outcome.lines()[1].contains(" S 0:0(0) win 65535 <mss 1460>"),
        "{outcome:?}"
    );
    let _ = t.moved();
}

#[test]
fn closed_connection_gives_its_port_back() {
    let mut t = Setup::new().backends(1).ports(1).connections(2).start();
    t.client(0, SYN).gives(&[&syn_up(0)]);
    t.server(REFUSED).gives(&["client0 R. 0:0(0) ack 1 win 0"]);
    t.client(10, SYN)
        .gives(&["server0#1 S 0:0(0) win 65535 <mss 1432,sackok,ws 8>"]);
    assert_eq!(
        t.moved(),
        "mp_capable_syn_rx+2 connections_opened+2 connections_closed+1 backend_marked+1"
    );
}

#[test]
fn syn_received_refusal_by_rst_is_not_tried_elsewhere() {
    let mut t = Setup::new().backends(2).syn_received();
    t.server("R. 1:1(0) ack 1 win 0")
        .gives(&["client0 R. 1:1(0) ack 1 win 0"]);
    assert_eq!(t.moved(), "connections_closed+1");
}

#[test]
fn syn_received_syn_without_capable_then_rst_is_no_refusal() {
    let mut t = Setup::new().backends(2).syn_received();
    let _ = t.client(0, "S 0:0(0) win 65535 <mss 1460,sackok,ws 8>");
    t.client(0, ". 1:1(0) ack 1")
        .gives(&["server0 . 1:1(0) ack 1 win 512"]);
    t.server("R. 1:1(0) ack 1 win 0")
        .gives(&["client0 R. 1:1(0) ack 1 win 0"]);
    assert_eq!(t.moved(), "plain_syn+1");
}

#[test]
fn skipped_back_end_and_the_next_are_reached_from_ports_of_their_own() {
    let mut t = Setup::new().backends(2).syn_sent();
    let first = t.view().expect("a connection").source;
    t.server(REFUSED).gives(&[&syn_up(1)]);
    let second = t.view().expect("a connection").source;
    assert_ne!(first, second);
    assert_eq!(t.net.connections[0].sources, [Some(first), Some(second)]);
    assert_eq!(t.moved(), "backend_skipped+1 backend_marked+1");
}

#[test]
fn plain_refused_with_timestamps_the_same_syn_has_them() {
    let mut t = Setup::new().backends(2).start();
    t.client(0, "S 0:0(0) win 65535 <mss 1460,sackok,ts 1000 0,ws 8>")
        .gives(&["server0 S 0:0(0) win 65535 <mss 1460,sackok,ts 1000 0,ws 8>"]);
    t.server(REFUSED)
        .gives(&["server1 S 0:0(0) win 65535 <mss 1460,sackok,ts 1000 0,ws 8>"]);
    assert_eq!(
        t.moved(),
        "plain_syn+1 connections_opened+1 backend_skipped+1 backend_marked+1"
    );
}

//! Plain TCP on the path: the kernel forwards it by itself, once it is known to be plain.

use flexcp_wire::Ends;

use crate::support::{Scenario, Setup, Shelf, millis};

const SYN: &str = "S 0:0(0) win 65535 <mss 1460,sackok,ws 8,capable>";
const PLAIN_SYN: &str = "S 0:0(0) win 65535 <mss 1460,sackok,ws 8>";
const SYN_ACK: &str = "S. 0:0(0) ack 1 win 65160 <mss 1460,sackok,ws 7>";

/// A fast path that plain TCP may pass by.
fn passing(scenario: &mut Scenario) -> Shelf {
    let shelf = Shelf::passing();
    scenario.fast_path(&shelf);
    // Its twins pass nothing by.
    scenario.uncompared();
    shelf
}

/// From the client to the server.
fn up(scenario: &Scenario) -> Ends {
    Ends {
        from: scenario.net.flow(0).client,
        to: scenario.net.flow(0).local,
    }
}

fn down(scenario: &Scenario) -> Ends {
    let Ends { from, to } = up(scenario);
    Ends { from: to, to: from }
}

#[test]
fn start_plain_syn_passes_by() {
    let mut t = Setup::new().start();
    let shelf = passing(&mut t);
    t.client(0, PLAIN_SYN)
        .gives(&["server S 0:0(0) win 65535 <mss 1460,sackok,ws 8>"]);
    assert_eq!(shelf.passed_by(), [up(&t)]);
    assert_eq!(t.moved(), "plain_syn+1 passed_by+1");
}

#[test]
fn start_syn_that_asks_for_mptcp_does_not() {
    let mut t = Setup::new().start();
    let shelf = passing(&mut t);
    let _ = t.client(0, SYN);
    let _ = t.server(SYN_ACK);
    let _ = t.client(0, ". 1:1(0) ack 1 win 512 <capable>");
    let _ = t.client(0, "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1>");
    assert_eq!(shelf.passed_by(), []);
    assert_eq!(
        t.moved(),
        "mp_capable_syn_rx+1 mp_capable_ack_rx+1 connections_opened+1"
    );
}

#[test]
fn start_plain_syn_to_flexcp_does_not() {
    let mut t = Setup::new().backends(1).start();
    let shelf = passing(&mut t);
    let _ = t.client(0, PLAIN_SYN);
    let _ = t.server(SYN_ACK);
    let _ = t.client(0, ". 1:1(0) ack 1 win 512");
    assert_eq!(shelf.passed_by(), []);
    assert_eq!(t.moved(), "plain_syn+1 connections_opened+1");
}

#[test]
fn start_packet_of_an_unknown_plain_connection_passes_by_from_either_end() {
    let mut t = Setup::new().start();
    let shelf = passing(&mut t);
    let _ = t.client(0, "P. 1:101(100) ack 1");
    assert_eq!(shelf.passed_by(), [up(&t)]);
    // Nor is it opened by what ends one.
    let _ = t.client(0, "F. 101:101(0) ack 1");
    let _ = t.client(0, "R 101:101(0) win 0");
    assert_eq!(shelf.passed_by(), []);
    t.net.connections[0].sources[0] = Some(t.net.flow(0).client);
    let _ = t.server(". 1:1(0) ack 1");
    assert_eq!(shelf.passed_by(), [down(&t)]);
    assert_eq!(t.moved(), "passed_by+2");
}

#[test]
fn start_mptcp_packet_of_an_unknown_connection_does_not() {
    let mut t = Setup::new().start();
    let shelf = passing(&mut t);
    let _ = t.client(0, "P. 1:101(100) ack 1 <prio b>");
    assert_eq!(shelf.passed_by(), []);
    assert_eq!(t.moved(), "no_connection+1");
}

#[test]
fn syn_sent_server_that_speaks_mptcp_itself_passes_by() {
    let mut t = Setup::new().end_to_end().start();
    let shelf = passing(&mut t);
    let _ = t.client(0, SYN);
    let _ = t.server("S. 0:0(0) ack 1 win 65160 <mss 1460,sackok,ws 7,capable>");
    assert_eq!(shelf.passed_by(), [up(&t)]);
    assert_eq!(t.state(), "gone");
    let _ = t.moved();
}

#[test]
fn fallback_at_the_handshake_passes_by_and_is_soon_forgotten() {
    let mut t = Setup::new()
        .timeouts(|timeouts| timeouts.linger = millis(500))
        .syn_received();
    let shelf = passing(&mut t);
    t.client(0, ". 1:1(0) ack 1 win 512")
        .gives(&["server . 1:1(0) ack 1 win 512"]);
    assert_eq!(shelf.passed_by(), [up(&t)]);
    // What was on its way.
    t.at(400);
    t.server("P. 1:101(100) ack 1 win 512")
        .gives(&["client0 P. 1:101(100) ack 1 win 512"]);
    assert_eq!(shelf.passed_by(), [], "once");
    t.at(899);
    t.timeout().gives(&[]);
    assert_eq!(t.state(), "fallback");
    t.at(900);
    t.timeout().gives(&[]);
    assert_eq!(t.state(), "gone");
    assert_eq!(
        t.moved(),
        "fallback_handshake+1 passed_by+1 connections_closed+1"
    );
}

#[test]
fn fallback_at_the_handshake_passes_by_once_its_packet_is_sent() {
    let mut t = Setup::new().syn_received();
    let shelf = passing(&mut t);
    t.backlog(true);
    let _ = t.client(0, ". 1:1(0) ack 1 win 512");
    assert_eq!(shelf.passed_by(), [], "the next packet would overtake it");
    t.sent();
    assert_eq!(shelf.passed_by(), [up(&t)]);
    assert_eq!(t.moved(), "fallback_handshake+1 passed_by+1");
}

#[test]
fn fallback_that_the_kernel_does_not_take_asks_it_once() {
    let mut t = Setup::new().syn_received();
    t.fast_path(&Shelf::new(usize::MAX));
    t.uncompared();
    t.backlog(true);
    let _ = t.client(0, ". 1:1(0) ack 1 win 512");
    t.sent();
    let _ = t.client(0, "P. 1:101(100) ack 1 win 512");
    assert!(!t.installs_when_sent());
    assert_eq!(t.state(), "fallback");
    assert_eq!(t.moved(), "fallback_handshake+1");
}

#[test]
fn syn_again_without_mptcp_passes_by_once_the_server_has_answered() {
    let mut t = Setup::new().syn_sent();
    let shelf = passing(&mut t);
    let _ = t.client(0, PLAIN_SYN);
    assert_eq!(shelf.passed_by(), []);
    let _ = t.server(SYN_ACK);
    assert_eq!(shelf.passed_by(), [up(&t)]);
    assert_eq!(t.translator.gauges().half_open, 0, "nobody waits for it");
    let _ = t.moved();
}

#[test]
fn established_fallback_in_mid_stream_passes_by_once_nothing_of_it_waits() {
    let mut t = Setup::new().ts().established();
    let shelf = passing(&mut t);
    for end in [11, 21, 31] {
        let _ = t.server(&format!(
            "P. {}:{end}(10) ack 1 win 64 <ts 5000 1000>",
            end - 10
        ));
        let _ = t.client(
            0,
            &format!(". 1:1(0) ack {end} win 512 <ts 1000 5000,dss ack {end}>"),
        );
    }
    assert_eq!(shelf.taken(), 1);
    let _ = t.server("P. 31:101(70) ack 1 win 64 <ts 5000 1000>");
    for _ in 0..2 {
        let _ = t.client(0, ". 1:1(0) ack 101 win 512 <ts 1000 5000>");
    }
    assert_eq!(t.why(), "fallback.no_option+1");
    let _ = t.moved();
    for at in [0, 19, 38] {
        t.at(at);
        let _ = t.timeout();
        let from = at + 101;
        let sent = format!("P. {from}:{}(19) ack 1 win 64 <ts 5000 1000>", from + 19);
        t.server(&sent).gives(&[&format!("client0 {sent}")]);
    }
    t.at(57);
    t.timeout().gives(&[]);
    assert_eq!((t.moved(), shelf.passed_by()), (String::new(), vec![]));
    assert_eq!(shelf.taken(), 1);
    t.at(58);
    t.timeout().gives(&[]);
    assert_eq!((shelf.passed_by(), shelf.taken()), (vec![up(&t)], 0));
    assert_eq!(t.moved(), "passed_by+1");
}

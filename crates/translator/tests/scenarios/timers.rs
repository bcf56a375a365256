//! Timers: how long state is kept, and that nobody is woken for nothing.

use flexcp_translator::internals;

use crate::support::{Scenario, Setup, millis};

#[test]
fn start_no_timer_runs() {
    let mut t = Setup::new().start();
    assert_eq!(t.next_timeout(), None);
    t.timeout().gives(&[]);
    assert_eq!(t.moved(), "");
}

#[test]
fn syn_sent_without_an_answer_leaves() {
    let mut t = Setup::new()
        .timeouts(|timeouts| timeouts.half_open = millis(5000))
        .syn_sent();
    assert_eq!(t.next_timeout(), Some(5000));
    t.at(4999);
    t.timeout().gives(&[]);
    assert_eq!(t.state(), "handshake");
    t.at(5000);
    t.timeout().gives(&[]);
    assert_eq!(t.state(), "gone");
    assert_eq!(t.moved(), "connections_closed+1");
    t.at(6000);
    t.timeout().gives(&[]);
    assert_eq!(t.next_timeout(), None);
}

#[test]
fn syn_sent_syn_again_starts_the_time_anew() {
    let mut t = Setup::new()
        .timeouts(|timeouts| timeouts.half_open = millis(5000))
        .syn_sent();
    t.at(3000);
    let _ = t.client(0, "S 0:0(0) win 65535 <mss 1460,sackok,ws 8,capable>");
    t.at(5000);
    t.timeout().gives(&[]);
    assert_eq!(t.state(), "handshake");
    t.at(8000);
    t.timeout().gives(&[]);
    assert_eq!(t.state(), "gone");
    assert_eq!(t.moved(), "connections_closed+1");
}

#[test]
fn syn_received_without_a_third_ack_leaves() {
    let mut t = Setup::new()
        .timeouts(|timeouts| timeouts.half_open = millis(5000))
        .syn_received();
    t.at(5000);
    t.timeout().gives(&[]);
    assert_eq!(t.state(), "gone");
    assert_eq!(t.moved(), "connections_closed+1");
}

#[test]
fn established_idle_connection_is_reset_on_both_sides() {
    let mut t = Setup::new()
        .timeouts(|timeouts| timeouts.idle = millis(9000))
        .two_subflows();
    assert_eq!(t.next_timeout(), Some(9000));
    t.at(9000);
    t.timeout().gives(&[
        "client0 R. 1:1(0) ack 1 win 509 <fastclose>",
        "client1 R. 1:1(0) ack 1 win 509 <fastclose>",
        "server R. 1:1(0) ack 1 win 512",
    ]);
    assert_eq!(t.state(), "reset");
    assert_eq!(t.moved(), "mp_fastclose_tx+1");
}

#[test]
fn established_any_packet_keeps_it() {
    let mut t = Setup::new()
        .timeouts(|timeouts| timeouts.idle = millis(9000))
        .established();
    t.at(8000);
    t.client(0, ". 1:1(0) ack 1 <dss ack 1>")
        .gives(&["server . 1:1(0) ack 1 win 512"]);
    t.at(9000);
    t.timeout().gives(&[]);
    t.at(16_000);
    t.server(". 1:1(0) ack 1")
        .gives(&["client0 . 1:1(0) ack 1 win 64 <dss ack 1>"]);
    t.at(24_999);
    t.timeout().gives(&[]);
    assert_eq!(t.state(), "translating");
    t.at(25_000);
    let _ = t.timeout();
    assert_eq!(t.state(), "reset");
    assert_eq!(t.moved(), "mp_fastclose_tx+1");
}

#[test]
fn established_packets_that_are_dropped_do_not_keep_it() {
    let mut t = Setup::new()
        .timeouts(|timeouts| timeouts.idle = millis(9000))
        .established();
    t.at(8000);
    t.client(0, "R 50:50(0) win 0").gives(&[
        "drop blind_reset",
        "client0 . 1:1(0) ack 1 win 509 <dss ack 1>",
    ]);
    t.server("P. 1:101(100) ack 500")
        .gives(&["drop ack_of_unsent"]);
    t.at(9000);
    let _ = t.timeout();
    assert_eq!(t.state(), "reset");
    assert_eq!(t.moved(), "mp_fastclose_tx+1 ack_of_unsent+1 blind_reset+1");
}

#[test]
fn orphaned_connection_resets_the_server_after_a_while() {
    let mut t = Scenario::two_subflows();
    t.at(1000);
    t.client(0, "R 1:1(0) win 0").gives(&[]);
    t.at(2000);
    t.client(1, "R 1:1(0) win 0").gives(&[]);
    t.at(61_999);
    t.timeout().gives(&[]);
    t.at(62_000);
    t.timeout().gives(&["server R. 1:1(0) ack 1 win 512"]);
    assert_eq!(t.moved(), "mp_rst_rx+2");
}

#[test]
fn orphaned_connection_that_is_joined_again_stays() {
    let mut t = Scenario::established();
    t.client(0, "R 1:1(0) win 0").gives(&[]);
    t.at(59_000);
    Setup::new().join(&mut t, 1);
    t.at(61_000);
    t.timeout().gives(&[]);
    assert_eq!(t.state(), "translating");
    assert_eq!(
        t.moved(),
        "mp_join_syn_rx+1 mp_join_ack_rx+1 mp_rst_rx+1 subflow_switch+1"
    );
}

#[test]
fn orphaned_join_that_does_not_authenticate_does_not_keep_it() {
    let mut t = Scenario::established();
    t.client(0, "R 1:1(0) win 0").gives(&[]);
    t.at(59_000);
    let _ = t.client(1, &Setup::new().join_syn(1));
    t.at(60_000);
    let _ = t.timeout();
    assert_eq!(t.state(), "reset");
    assert_eq!(t.moved(), "mp_join_syn_rx+1 mp_fastclose_tx+1 mp_rst_rx+1");
}

#[test]
fn plain_idle_connection_leaves() {
    let mut t = Setup::new()
        .backends(1)
        .timeouts(|timeouts| timeouts.idle = millis(9000))
        .start();
    t.client(0, "S 0:0(0) win 65535 <mss 1460>")
        .gives(&["server0 S 0:0(0) win 65535 <mss 1460>"]);
    let _ = t.server("S. 0:0(0) ack 1 <mss 1460>");
    let _ = t.client(0, ". 1:1(0) ack 1");
    t.at(8999);
    t.timeout().gives(&[]);
    assert_eq!(t.state(), "plain");
    t.at(9000);
    t.timeout().gives(&[]);
    assert_eq!(t.state(), "gone");
    assert_eq!(
        t.moved(),
        "plain_syn+1 connections_opened+1 connections_closed+1"
    );
}

#[test]
fn established_timer_of_one_connection_leaves_the_others() {
    let mut t = Setup::new()
        .connections(2)
        .timeouts(|timeouts| timeouts.half_open = millis(5000))
        .syn_sent();
    t.at(1000);
    let _ = t.client(10, "S 0:0(0) win 65535 <mss 1460,capable>");
    t.at(5000);
    t.timeout().gives(&[]);
    assert_eq!(t.state_of(0), None);
    assert!(t.state_of(1).is_some());
    t.at(6000);
    t.timeout().gives(&[]);
    assert_eq!(t.state_of(1), None);
    assert_eq!(
        t.moved(),
        "mp_capable_syn_rx+1 connections_opened+1 connections_closed+2"
    );
}

#[test]
fn established_timer_queue_does_not_grow_with_packets() {
    let mut t = Setup::new().established();
    for n in 0..1000 {
        t.at(n);
        t.client(0, ". 1:1(0) ack 1 <dss ack 1>")
            .gives(&["server . 1:1(0) ack 1 win 512"]);
    }
    // One wake-up at the time that was asked for first, the next one idle time later.
    t.at(7_500_000);
    t.timeout().gives(&[]);
    assert_eq!(t.next_timeout(), Some(7_500_999));
    assert_eq!(t.moved(), "");
}

#[test]
fn view_tells_age_and_idle_time() {
    let mut t = Scenario::established();
    t.at(300);
    t.client(0, ". 1:1(0) ack 1 <dss ack 1>")
        .gives(&["server . 1:1(0) ack 1 win 512"]);
    t.at(500);
    let view = t.view().expect("a connection");
    assert_eq!((view.age, view.idle), (millis(500), millis(200)));
    assert_eq!(t.moved(), "");
}

#[test]
fn plain_packets_of_either_end_keep_it() {
    let mut t = Setup::new()
        .backends(1)
        .timeouts(|timeouts| timeouts.idle = millis(9000))
        .start();
    let _ = t.client(0, "S 0:0(0) win 65535 <mss 1460>");
    let _ = t.server("S. 0:0(0) ack 1 win 65160 <mss 1460>");
    t.at(8000);
    t.client(0, ". 1:1(0) ack 1")
        .gives(&["server0 . 1:1(0) ack 1 win 512"]);
    t.at(16_000);
    t.timeout().gives(&[]);
    assert_eq!(t.state(), "plain");
    t.server("P. 1:101(100) ack 1")
        .gives(&["client0 P. 1:101(100) ack 1 win 64"]);
    t.at(24_999);
    t.timeout().gives(&[]);
    assert_eq!(t.state(), "plain");
    t.at(25_000);
    t.timeout().gives(&[]);
    assert_eq!(t.state(), "gone");
    assert_eq!(
        t.moved(),
        "plain_syn+1 connections_opened+1 connections_closed+1"
    );
}

#[test]
fn established_join_keeps_it() {
    let mut t = Setup::new()
        .timeouts(|timeouts| timeouts.idle = millis(9000))
        .established();
    t.at(8000);
    Setup::new().join(&mut t, 1);
    t.at(16_000);
    t.timeout().gives(&[]);
    assert_eq!(t.state(), "translating");
    assert_eq!(t.moved(), "mp_join_syn_rx+1 mp_join_ack_rx+1");
}

#[test]
fn syn_received_syn_ack_again_starts_the_time_anew() {
    let mut t = Setup::new()
        .timeouts(|timeouts| timeouts.half_open = millis(5000))
        .syn_received();
    t.at(4000);
    let _ = t.server("S. 0:0(0) ack 1 win 65160 <mss 1460,sackok,ws 7>");
    t.at(8000);
    t.timeout().gives(&[]);
    assert_eq!(t.state(), "handshake");
    assert_eq!(t.moved(), "");
}

#[test]
fn established_idle_connection_gives_its_memory_back() {
    let mut t = Setup::new().established();
    t.server(". 1:1001(1000) ack 1 win 512")
        .gives(&["client0 . 1:1001(1000) ack 1 win 512 <dss ack 1 map 1:1001@1>"]);
    let _ = t.client(0, ". 1:1(0) ack 1001 win 509 <dss ack 1001>");
    assert_eq!(internals::spare_lanes(&t.translator), 1);
    assert_eq!(t.next_timeout(), Some(10_000));
    t.at(8000);
    let _ = t.client(0, ". 1:1(0) ack 1001 win 510 <dss ack 1001>");
    t.at(10_000);
    t.timeout().gives(&[]);
    assert_eq!(internals::spare_lanes(&t.translator), 1, "not idle yet");
    t.at(18_000);
    t.timeout().gives(&[]);
    assert_eq!(internals::spare_lanes(&t.translator), 0);
    assert_eq!(t.moved(), "");
}

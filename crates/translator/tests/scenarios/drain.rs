//! The end of FlexCP itself: new clients are turned away, and both ends of what is left are told.

use crate::support::{Scenario, Setup, millis};

const SYN: &str = "S 0:0(0) win 65535 <mss 1460,sackok,ws 8,capable>";
const PLAIN_SYN: &str = "S 0:0(0) win 65535 <mss 1460,sackok,ws 8>";
const SYN_ACK: &str = "S. 0:0(0) ack 1 win 65160 <mss 1460,sackok,ws 7>";

#[test]
fn draining_syn_on_the_path_passes_as_plain_tcp() {
    let mut t = Setup::new().start();
    t.drain();
    t.client(0, SYN)
        .gives(&["server S 0:0(0) win 65535 <mss 1460,sackok,ws 8>"]);
    assert_eq!(t.state(), "gone", "nothing is kept of it");
    assert_eq!(t.why(), "plain_syn.draining+1");
    assert_eq!(t.moved(), "plain_syn+1");
}

#[test]
fn draining_syn_to_flexcp_is_refused() {
    for syn in [SYN, PLAIN_SYN] {
        let mut t = Setup::new().backends(1).start();
        t.net.flow_mut(0).isn_flexcp = 0;
        t.drain();
        let reason = if syn == SYN {
            " <rst reason 2 transient>"
        } else {
            ""
        };
        t.client(0, syn).gives(&[
            "drop draining",
            &format!("client0 R. 0:0(0) ack 1 win 0{reason}"),
        ]);
        assert_eq!(t.why(), "rst.draining+1");
        assert_eq!(t.moved(), "draining+1");
    }
}

#[test]
fn draining_connection_goes_on_and_takes_joins() {
    let mut t = Scenario::established();
    t.drain();
    t.client(0, "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1>")
        .gives(&["server P. 1:101(100) ack 1 win 512"]);
    let answer = t.client(1, "S 0:0(0) win 65535 <mss 1460,sackok,ws 8,join 1>");
    assert!(answer.lines()[0].starts_with("client1 S."), "{answer:?}");
    assert_eq!(t.translator.dependent(), 1);
    assert_eq!(t.moved(), "mp_join_syn_rx+1");
}

#[test]
fn ended_connection_both_ends_are_told_at_the_next_number() {
    let mut t = Setup::new().two_subflows();
    t.server("P. 1:101(100) ack 1")
        .gives(&["client0 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>"]);
    t.client(1, "P. 1:51(50) ack 1 <dss ack 1 map 1:51@1>")
        .gives(&["server P. 1:51(50) ack 1 win 512"]);
    t.drain();
    t.end(1).gives(&[
        "client0 R. 101:101(0) ack 1 win 64 <fastclose>",
        "client1 R. 1:1(0) ack 1 win 64 <fastclose>",
        "server R. 51:51(0) ack 1 win 512",
    ]);
    assert_eq!(t.state(), "reset");
    assert_eq!(t.translator.dependent(), 0);
    assert_eq!(t.why(), "rst.ending+3");
    assert_eq!(t.moved(), "mp_fastclose_tx+1");
}

#[test]
fn ended_connection_end_that_expects_another_number_gets_that() {
    let mut t = Scenario::established();
    t.server("P. 1:101(100) ack 1")
        .gives(&["client0 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>"]);
    t.drain();
    t.end(usize::MAX).gives(&[
        "client0 R. 101:101(0) ack 1 win 64 <fastclose>",
        "server R. 1:1(0) ack 1 win 512",
    ]);
    // The data has got lost.
    t.client(0, ". 1:1(0) ack 1 <dss ack 1>")
        .gives(&["client0 R. 1:1(0) ack 1 win 64 <fastclose>"]);
    t.server(". 101:101(0) ack 1")
        .gives(&["server R. 1:1(0) ack 1 win 512"]);
    assert_eq!(t.why(), "rst.after_reset+2 rst.ending+2");
    let _ = t.moved();
}

#[test]
fn ended_connection_told_again_when_asked_again() {
    let mut t = Scenario::established();
    t.drain();
    let told = [
        "client0 R. 1:1(0) ack 1 win 509 <fastclose>",
        "server R. 1:1(0) ack 1 win 512",
    ];
    t.end(1).gives(&told);
    t.end(1).gives(&told);
    assert_eq!(t.why(), "rst.repeated+2 rst.ending+2");
    assert_eq!(t.moved(), "mp_fastclose_tx+2");
}

#[test]
fn ended_connection_that_was_over_is_left_alone() {
    let mut t = Scenario::established();
    t.server("F. 1:1(0) ack 1")
        .gives(&["client0 . 1:1(0) ack 1 win 64 <dss ack 1 fin 1>"]);
    let _ = t.client(0, ". 1:1(0) ack 1 <dss ack 2 fin 1>");
    let _ = t.server(". 2:2(0) ack 2");
    assert_eq!(t.state(), "closed");
    t.drain();
    assert_eq!(t.translator.dependent(), 0);
    t.end(1).gives(&[]);
    assert_eq!(t.why(), "");
    let _ = t.moved();
}

#[test]
fn ended_handshake_on_the_path_can_do_without_flexcp() {
    for mut t in [Setup::new().syn_sent(), Setup::new().syn_received()] {
        t.drain();
        assert_eq!(t.translator.dependent(), 0);
        t.end(1).gives(&[]);
        assert_eq!(t.moved(), "");
    }
}

#[test]
fn ended_handshake_to_flexcp_both_ends_are_told() {
    let mut t = Setup::new().backends(1).syn_sent();
    t.net.flow_mut(0).isn_flexcp = 0;
    t.drain();
    assert_eq!(t.translator.dependent(), 1);
    t.end(1)
        .gives(&["client0 R. 0:0(0) ack 1 win 0", "server0 R 1:1(0) win 0"]);
    assert_eq!(t.moved(), "");
    let mut t = Setup::new().backends(1).syn_received();
    t.drain();
    t.end(1)
        .gives(&["client0 R. 1:1(0) ack 1 win 509", "server0 R 1:1(0) win 0"]);
    assert_eq!(t.why(), "rst.ending+2");
    // The SYN/ACK had not come.
    t.client(0, SYN).gives(&[]);
    assert_eq!(t.moved(), "");
}

#[test]
fn ended_plain_connection_to_flexcp_both_ends_are_told_at_what_they_have_acked_and_at_what_is_next()
{
    let mut t = Setup::new().backends(1).start();
    let _ = t.client(0, PLAIN_SYN);
    let _ = t.server(SYN_ACK);
    let _ = t.client(0, ". 1:1(0) ack 1 win 512");
    t.drain();
    assert_eq!(t.translator.dependent(), 1);
    let _ = t.server("P. 1:101(100) ack 1 win 512");
    t.end(1).gives(&[
        "server0 R. 1:1(0) ack 1 win 0",
        "client0 R. 1:1(0) ack 1 win 0",
        "client0 R. 101:101(0) ack 1 win 0",
    ]);
    assert_eq!(t.why(), "plain_syn.no_option+1 rst.ending+3");
    assert_eq!(t.translator.dependent(), 0);
    let _ = t.moved();
}

#[test]
fn ended_plain_connection_on_the_path_goes_on() {
    let mut t = Setup::new().syn_sent();
    // The client gives MPTCP up.
    let _ = t.client(0, PLAIN_SYN);
    let _ = t.server(SYN_ACK);
    let _ = t.client(0, ". 1:1(0) ack 1 win 512");
    t.drain();
    assert_eq!(t.translator.dependent(), 0);
    t.end(1).gives(&[]);
    let _ = t.moved();
}

#[test]
fn ended_connections_leave_after_their_time() {
    let mut t = Setup::new()
        .timeouts(|timeouts| timeouts.linger = millis(500))
        .established();
    t.at(100);
    t.drain();
    let _ = t.end(1);
    t.at(600);
    t.timeout().gives(&[]);
    assert_eq!(t.state(), "gone");
    assert_eq!(t.moved(), "mp_fastclose_tx+1 connections_closed+1");
}

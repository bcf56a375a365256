//! After the end: what still comes of a connection that both ends have closed (RFC 8684 section 3.3.3).

use crate::close::{DATA_FIN, DATA_FIN_DOWN, FIN_UP, SERVER_FIN};
use crate::support::{Scenario, Setup, millis};

/// Both have closed, without any data, and both have acknowledged it.
fn closed() -> Scenario {
    let mut t = Scenario::established();
    t.server(SERVER_FIN).gives(&[DATA_FIN_DOWN]);
    t.client(0, ". 1:1(0) ack 1 <dss ack 2 fin 1>")
        .gives(&["server F. 1:1(0) ack 2 win 512"]);
    t.server(". 2:2(0) ack 2")
        .gives(&["client0 . 1:1(0) ack 1 win 64 <dss ack 2>"]);
    assert_eq!(t.moved(), "");
    assert_eq!(t.state(), "closed");
    t
}

#[test]
fn closed_is_closed_when_both_fins_are_acknowledged() {
    let _ = closed().moved();
}

#[test]
fn closed_by_the_client_first() {
    let mut t = Scenario::established();
    t.client(0, DATA_FIN).gives(&[FIN_UP]);
    t.server("F. 1:1(0) ack 2")
        .gives(&["client0 . 1:1(0) ack 1 win 64 <dss ack 2 fin 1>"]);
    assert_eq!(t.state(), "half-closed");
    t.client(0, ". 1:1(0) ack 1 <dss ack 2>")
        .gives(&["server . 2:2(0) ack 2 win 512"]);
    assert_eq!(t.state(), "closed");
    assert_eq!(t.moved(), "");
}

#[test]
fn closed_by_both_at_once() {
    let mut t = Scenario::established();
    t.server(SERVER_FIN).gives(&[DATA_FIN_DOWN]);
    t.client(0, DATA_FIN).gives(&[FIN_UP]);
    t.server(". 2:2(0) ack 2")
        .gives(&["client0 . 1:1(0) ack 1 win 64 <dss ack 2>"]);
    t.client(0, ". 1:1(0) ack 1 <dss ack 2>")
        .gives(&["server . 2:2(0) ack 2 win 512"]);
    assert_eq!(t.state(), "closed");
    assert_eq!(t.moved(), "");
}

#[test]
fn closed_server_that_has_forgotten_resets_nothing() {
    // It repeats its FIN while the ACK of that is on its way, and FlexCP ACKs it once more.
    let mut t = closed();
    t.server(SERVER_FIN)
        .gives(&["server . 2:2(0) ack 2 win 512"]);
    t.server("R 2:2(0)").gives(&[]);
    assert_eq!(t.state(), "closed");
    t.client(0, "F. 1:1(0) ack 1 <dss ack 2>")
        .gives(&["client0 F. 1:1(0) ack 2 win 64 <dss ack 2>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn closed_subflow_fin_is_answered_with_fin() {
    let mut t = closed();
    t.client(0, "F. 1:1(0) ack 1 <dss ack 2>")
        .gives(&["client0 F. 1:1(0) ack 2 win 64 <dss ack 2>"]);
    t.client(0, ". 2:2(0) ack 2 <dss ack 2>").gives(&[]);
    assert_eq!(t.subflows(), Vec::<String>::new());
    assert_eq!(t.moved(), "");
}

#[test]
fn closed_subflow_fin_again_is_answered_again_with_the_same_number() {
    let mut t = closed();
    for _ in 0..3 {
        t.client(0, "F. 1:1(0) ack 1 <dss ack 2>")
            .gives(&["client0 F. 1:1(0) ack 2 win 64 <dss ack 2>"]);
    }
    assert_eq!(t.moved(), "");
}

#[test]
fn closed_keepalive_behind_the_clients_fin_is_answered() {
    // The client has not got FlexCP's FIN, and asks.
    let mut t = closed();
    let fin = "client0 F. 1:1(0) ack 2 win 64 <dss ack 2>";
    t.client(0, "F. 1:1(0) ack 1 <dss ack 2>").gives(&[fin]);
    t.client(0, ". 1:1(0) ack 1 <dss ack 2>").gives(&[fin]);
    assert_eq!(t.moved(), "");
}

#[test]
fn closed_server_fin_again_after_the_client_is_gone_is_acknowledged_by_flexcp() {
    let mut t = closed();
    let _ = t.client(0, "F. 1:1(0) ack 1 <dss ack 2>");
    t.client(0, ". 2:2(0) ack 2 <dss ack 2>").gives(&[]);
    t.server("F. 1:1(0) ack 2")
        .gives(&["server . 2:2(0) ack 2 win 512"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn closed_client_data_fin_again_is_acknowledged() {
    // The client has not got the last data ACK.
    let mut t = closed();
    let outcome = t.client(0, ". 1:1(0) ack 1 <dss ack 2 fin 1>");
    let answered = outcome.lines().iter().any(|line| {
        line.starts_with("server F.") || line == "client0 . 1:1(0) ack 1 win 64 <dss ack 2>"
    });
    assert!(answered, "{:?}", outcome.lines());
    assert_eq!(t.moved(), "");
}

#[test]
fn closed_connection_leaves_after_lingering() {
    let mut t = closed();
    assert_eq!(t.next_timeout(), Some(10_000));
    t.at(10_000);
    t.timeout().gives(&[]);
    assert_eq!(t.state(), "gone");
    assert_eq!(t.moved(), "connections_closed+1");
}

#[test]
fn closed_connection_hears_the_answer_to_a_fin_that_goes_again_as_it_leaves() {
    let setup = Setup::new().timeouts(|timeouts| timeouts.linger = millis(1000));
    let mut t = setup.established();
    t.server(SERVER_FIN).gives(&[DATA_FIN_DOWN]);
    let _ = t.client(0, ". 1:1(0) ack 1 <dss ack 2 fin 1>");
    let _ = t.server(". 2:2(0) ack 2");
    let fin = "client0 F. 1:1(0) ack 2 win 64 <dss ack 2>";
    t.client(0, "F. 1:1(0) ack 1 <dss ack 2>").gives(&[fin]);
    t.at(1000);
    t.timeout().gives(&[fin]);
    t.at(1999);
    t.client(0, ". 2:2(0) ack 2 <dss ack 2>").gives(&[]);
    t.at(2999);
    t.timeout().gives(&[]);
    assert_eq!(t.state(), "gone");
    assert_eq!(t.moved(), "connections_closed+1");
}

#[test]
fn closed_syn_from_the_same_port_opens_a_new_connection() {
    let mut t = closed();
    t.restart(0);
    t.client(0, "S 0:0(0) win 65535 <mss 1460,sackok,ws 8,capable>")
        .gives(&["server S 0:0(0) win 65535 <mss 1432,sackok,ws 8>"]);
    assert_eq!(
        t.moved(),
        "mp_capable_syn_rx+1 connections_opened+1 connections_closed+1"
    );
}

#[test]
fn closed_syn_that_was_held_up_on_the_way_opens_nothing() {
    let mut t = closed();
    // The one that began the connection, doubled by the path. The server may listen again by now.
    t.client(0, "S 0:0(0) win 65535 <mss 1460,sackok,ws 8,capable>")
        .gives(&[
            "drop blind_reset",
            "client0 . 1:1(0) ack 1 win 64 <dss ack 2>",
        ]);
    assert_eq!(t.moved(), "blind_reset+1");
}

/// Data has gone up, both have closed, and nothing has ended the subflow.
fn closed_after_data() -> Scenario {
    let mut t = Scenario::established();
    t.client(0, "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1 fin>")
        .gives(&["server FP. 1:101(100) ack 1 win 512"]);
    t.server("F. 1:1(0) ack 102")
        .gives(&["client0 . 1:1(0) ack 101 win 64 <dss ack 102 fin 1>"]);
    t.client(0, ". 101:101(0) ack 1 <dss ack 2>")
        .gives(&["server . 102:102(0) ack 2 win 512"]);
    assert_eq!(t.state(), "closed");
    t
}

#[test]
fn closed_client_that_refuses_what_was_on_its_way_is_asked_and_believed() {
    let mut t = closed_after_data();
    // What it refuses went down before FlexCP had ACKed its data.
    t.client(0, "R 1:1(0) win 0")
        .gives(&["client0 . 1:1(0) ack 101 win 64 <dss ack 102>"]);
    t.client(0, "R 101:101(0) win 0").gives(&[]);
    assert_eq!(t.subflows(), Vec::<String>::new());
    assert_eq!(t.moved(), "mp_rst_rx+1");
}

#[test]
fn closed_reset_with_a_number_that_was_never_acked_is_blind() {
    let mut t = closed_after_data();
    t.client(0, "R 102:102(0) win 0").gives(&[
        "drop blind_reset",
        "client0 . 1:1(0) ack 101 win 64 <dss ack 102>",
    ]);
    assert_eq!(t.moved(), "blind_reset+1");
}

#[test]
fn half_closed_reset_with_an_outdated_number_is_blind() {
    let mut t = Scenario::established();
    t.client(0, "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1 fin>")
        .gives(&["server FP. 1:101(100) ack 1 win 512"]);
    t.server(". 1:1(0) ack 102")
        .gives(&["client0 . 1:1(0) ack 101 win 64 <dss ack 102>"]);
    t.client(0, "R 1:1(0) win 0").gives(&[
        "drop blind_reset",
        "client0 . 1:1(0) ack 101 win 64 <dss ack 102>",
    ]);
    assert_eq!(t.moved(), "blind_reset+1");
}

#[test]
fn closed_join_of_a_client_that_has_not_heard_of_the_end_gets_the_data_ack() {
    // The subflow ended with FINs before the server had ACKed DATA_FIN; a client that has no other joins again.
    let mut t = Scenario::established();
    t.server(SERVER_FIN).gives(&[DATA_FIN_DOWN]);
    t.at(1000);
    let _ = t.server(SERVER_FIN);
    let _ = t.client(0, "F. 1:1(0) ack 2 <dss ack 2 fin 1>");
    let _ = t.server(". 2:2(0) ack 2");
    assert_eq!(t.state(), "closed");
    let _ = t.moved();
    t.at(9000);
    t.client(1, "S 0:0(0) win 65535 <mss 1460,sackok,ws 8,join>")
        .gives(&["client1 S. 0:0(0) ack 1 win 8192 <mss 1460,sackok,ws 7,join id 0>"]);
    t.client(1, ". 1:1(0) ack 1 win 512 <join>")
        .gives(&["client1 . 1:1(0) ack 1 win 64 <dss ack 2>"]);
    t.client(1, "F. 1:1(0) ack 1 <dss ack 2>")
        .gives(&["client1 F. 1:1(0) ack 2 win 64 <dss ack 2>"]);
    t.client(1, ". 2:2(0) ack 2").gives(&[]);
    assert_eq!(t.state(), "closed");
    assert_eq!(
        t.moved(),
        "mp_join_syn_rx+1 mp_join_ack_rx+1 subflow_switch+1"
    );
    // It lingers from here on.
    t.at(18_000);
    t.timeout().gives(&[]);
    assert_eq!(t.state(), "closed");
    t.at(19_000);
    t.timeout().gives(&[]);
    assert_eq!(t.state(), "gone");
    assert_eq!(t.moved(), "connections_closed+1");
}

#[test]
fn closed_client_data_again_behind_flexcps_fin_is_answered_with_that_fin() {
    let mut t = Scenario::established();
    let _ = t.client(0, "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1>");
    let _ = t.server("F. 1:1(0) ack 101");
    let _ = t.client(0, ". 101:101(0) ack 1 <dss ack 2 fin 101>");
    let _ = t.server(". 2:2(0) ack 102");
    t.client(0, "F. 101:101(0) ack 1 <dss ack 2>")
        .gives(&["client0 F. 1:1(0) ack 102 win 64 <dss ack 102>"]);
    t.client(0, "P. 1:101(100) ack 1 <dss ack 2 map 1:101@1>")
        .gives(&["client0 F. 1:1(0) ack 102 win 64 <dss ack 102>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn closed_window_probe_is_answered() {
    // The client has not heard that the window is open again, so its subflow's FIN has to wait.
    let mut t = closed();
    t.client(0, ". 0:0(0) ack 1 <dss ack 2>")
        .gives(&["client0 . 1:1(0) ack 1 win 64 <dss ack 2>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn closed_with_two_subflows_each_fin_is_answered() {
    let mut t = Scenario::two_subflows();
    t.server(SERVER_FIN).gives(&[DATA_FIN_DOWN]);
    t.client(0, ". 1:1(0) ack 1 <dss ack 2 fin 1>")
        .gives(&["server F. 1:1(0) ack 2 win 512"]);
    t.server(". 2:2(0) ack 2")
        .gives(&["client0 . 1:1(0) ack 1 win 64 <dss ack 2>"]);
    for id in 0..2 {
        t.client(id, "F. 1:1(0) ack 1 <dss ack 2>")
            .gives(&[&format!("client{id} F. 1:1(0) ack 2 win 64 <dss ack 2>")]);
        t.client(id, ". 2:2(0) ack 2").gives(&[]);
    }
    assert_eq!(t.moved(), "");
    assert_eq!(t.subflows(), Vec::<String>::new());
}

#[test]
fn closed_late_copy_on_another_subflow_and_its_fin_are_acknowledged() {
    let mut t = Scenario::two_subflows();
    let _ = t.client(0, "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1>");
    let _ = t.server("F. 1:1(0) ack 101");
    let _ = t.client(0, ". 101:101(0) ack 1 <dss ack 2 fin 101>");
    let _ = t.server(". 2:2(0) ack 102");
    assert_eq!(t.state(), "closed");
    t.client(1, "FP. 1:101(100) ack 1 <dss ack 2 map 1:101@1>")
        .gives(&["client1 F. 1:1(0) ack 102 win 64 <dss ack 102>"]);
    let _ = t.moved();
}

#[test]
fn closed_connection_lingers_on_while_its_ends_repeat_themselves() {
    let mut t = Scenario::established();
    let _ = t.client(0, ". 1:1(0) ack 1 <dss ack 1 fin 1>");
    let _ = t.server("F. 1:1(0) ack 2");
    let _ = t.client(0, ". 1:1(0) ack 1 <dss ack 2>");
    assert_eq!(t.state(), "closed");
    for at in [9_000, 18_000] {
        t.at(at);
        assert_eq!(t.server("F. 1:1(0) ack 2").lines().len(), 1);
        t.timeout().gives(&[]);
    }
    t.at(27_000);
    assert_eq!(
        t.client(0, ". 1:1(0) ack 1 <dss ack 2 fin 1>")
            .lines()
            .len(),
        1
    );
    t.at(36_999);
    t.timeout().gives(&[]);
    assert_eq!(t.state(), "closed");
    t.at(37_000);
    t.timeout().gives(&[]);
    assert_eq!(t.state(), "gone");
    let _ = t.moved();
}

#[test]
fn closed_join_syn_again_leaves_the_connection_alone() {
    let mut t = Scenario::established();
    let join = "S 0:0(0) win 65535 <mss 1460,sackok,ws 8,join>";
    let _ = t.client(1, join);
    let _ = t.client(0, ". 1:1(0) ack 1 <dss ack 1 fin 1>");
    let _ = t.server("F. 1:1(0) ack 2");
    let _ = t.client(0, ". 1:1(0) ack 1 <dss ack 2>");
    assert_eq!(t.state(), "closed");
    t.client(1, join)
        .gives(&["client1 S. 0:0(0) ack 1 win 8192 <mss 1460,sackok,ws 7,join id 0>"]);
    assert_eq!(t.state(), "closed");
    let _ = t.moved();
}

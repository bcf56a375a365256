//! Packets of somebody who knows the ends of a connection but not its numbers (RFC 5961, RFC 9293
//! section 3.10.7.4): they change nothing, and the true ends never notice.

use crate::support::{Scenario, Setup};

/// Data both ways still goes through as ever.
fn lives(t: &mut Scenario) {
    t.server("P. 1:101(100) ack 1")
        .gives(&["client0 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>"]);
    t.client(0, "P. 1:101(100) ack 101 <dss ack 101 map 1:101@1>")
        .gives(&["server P. 1:101(100) ack 101 win 512"]);
    t.server("F. 101:101(0) ack 101")
        .gives(&["client0 . 101:101(0) ack 101 win 64 <dss ack 101 fin 101>"]);
    t.client(0, ". 101:101(0) ack 101 <dss ack 102 fin 101>")
        .gives(&["server F. 101:101(0) ack 102 win 512"]);
}

/// Gives `line`s of one end to a fresh connection: each is dropped for `reason`, and the rest goes on.
fn from_server(line: &str, reason: &str) {
    let mut t = Scenario::established();
    t.server(line).gives(&[&format!("drop {reason}")]);
    assert_eq!(t.moved(), format!("{reason}+1"));
    lives(&mut t);
}

fn from_client(line: &str, reason: &str) {
    let mut t = Scenario::established();
    t.client(0, line).gives(&[&format!("drop {reason}")]);
    assert_eq!(t.moved(), format!("{reason}+1"));
    lives(&mut t);
}

#[test]
fn established_old_fin_of_the_server_is_not_its_end() {
    from_server("F. -200000:-200000(0) ack 1", "out_of_window");
}

#[test]
fn established_fin_of_the_server_beyond_the_window_is_not_its_end() {
    from_server("F. 300000:300000(0) ack 1", "out_of_window");
}

#[test]
fn established_fin_below_what_the_client_has_is_answered_and_forgotten() {
    let mut t = Scenario::established();
    t.server("P. 1:101(100) ack 1")
        .gives(&["client0 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>"]);
    t.client(0, ". 1:1(0) ack 101 <dss ack 101>")
        .gives(&["server . 1:1(0) ack 101 win 512"]);
    t.server("F. 51:51(0) ack 1")
        .gives(&["server . 1:1(0) ack 101 win 512"]);
    t.server("F. 101:101(0) ack 1")
        .gives(&["client0 . 101:101(0) ack 1 win 64 <dss ack 1 fin 101>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn established_data_beyond_the_clients_window_goes_nowhere() {
    // The client offers 512 << 8 bytes.
    from_server("P. 200000:200100(100) ack 1", "out_of_window");
}

#[test]
fn established_data_at_the_edge_of_the_clients_window_goes_down() {
    let mut t = Scenario::established();
    let outcome = t.server("P. 130973:131073(100) ack 1");
    assert!(outcome.lines()[0].starts_with("client0 P. 130973:131073(100)"));
    assert_eq!(t.moved(), "");
}

#[test]
fn established_old_ack_of_the_server_is_not_its_ack() {
    from_server("P. 1:101(100) ack -20000000", "ack_of_unsent");
}

#[test]
fn established_data_of_the_client_beyond_the_servers_window_goes_nowhere() {
    from_client(
        "P. 30000000:30000100(100) ack 1 <dss ack 1 map 1:101@30000000>",
        "out_of_window",
    );
}

#[test]
fn established_mapping_beyond_the_servers_window_is_not_believed() {
    from_client(
        "P. 1:101(100) ack 1 <dss ack 1 map 30000000:30000100@1>",
        "bad_mapping",
    );
}

#[test]
fn established_data_fin_beyond_the_servers_window_is_not_its_end() {
    from_client(". 1:1(0) ack 1 <dss ack 1 fin 30000000>", "bad_mapping");
}

#[test]
fn established_ancient_subflow_ack_is_not_believed() {
    from_client(". 1:1(0) ack -30000000 <dss ack 1>", "ack_of_unsent");
}

#[test]
fn two_subflows_ancient_data_ack_says_nothing() {
    let mut t = Scenario::two_subflows();
    // It may be a path that was held up while others went on.
    t.client(
        1,
        "P. 1:101(100) ack 1 win 9000 <dss ack32 -30000000 map 1:101@1>",
    )
    .gives(&["server P. 1:101(100) ack 1 win 512"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn established_packets_without_options_from_nowhere_do_not_end_mptcp() {
    let mut t = Scenario::established();
    for _ in 0..3 {
        t.client(0, ". 30000000:30000000(0) ack 1")
            .gives(&["drop out_of_window"]);
        t.client(0, "F. 30000000:30000000(0) ack 1")
            .gives(&["drop out_of_window"]);
        t.client(0, ". 1:1(0) ack -30000000")
            .gives(&["drop ack_of_unsent"]);
    }
    assert_eq!(t.state(), "translating");
    assert_eq!(t.moved(), "out_of_window+6 ack_of_unsent+3");
    lives(&mut t);
}

#[test]
fn syn_received_packet_without_options_has_to_know_the_numbers_to_end_mptcp() {
    let mut t = Scenario::syn_received();
    for line in [
        ". 1:1(0) ack 2 win 512",
        ". 1:1(0) ack 0 win 512",
        ". 100000:100000(0) ack 1 win 512",
        ". 0:0(0) ack 1 win 512",
    ] {
        t.client(0, line).gives(&["drop out_of_window"]);
    }
    assert_eq!(t.moved(), "out_of_window+4");
    t.client(0, ". 1:1(0) ack 1 win 512")
        .gives(&["server . 1:1(0) ack 1 win 512"]);
    assert_eq!(t.moved(), "fallback_handshake+1");
}

/// A plain connection through a reverse service, with data both ways.
fn plain() -> Scenario {
    let mut t = Setup::new().backends(1).start();
    t.client(0, "S 0:0(0) win 65535 <mss 1460>")
        .gives(&["server0 S 0:0(0) win 65535 <mss 1460>"]);
    let _ = t.server("S. 0:0(0) ack 1 <mss 1460>");
    let _ = t.client(0, "P. 1:101(100) ack 1");
    let _ = t.server("P. 1:101(100) ack 101");
    let _ = t.client(0, ". 101:101(0) ack 101");
    let _ = t.moved();
    t
}

#[test]
fn plain_rst_with_another_number_passes_and_ends_nothing() {
    let mut t = plain();
    t.client(0, "R 90:90(0) win 0")
        .gives(&["server0 R 90:90(0) win 0"]);
    t.server("R 90:90(0) win 0")
        .gives(&["client0 R 90:90(0) win 0"]);
    t.at(60_000);
    t.timeout().gives(&[]);
    assert_eq!(t.state(), "plain");
}

#[test]
fn plain_rst_with_the_expected_number_ends_it_soon() {
    for by_client in [true, false] {
        let mut t = plain();
        if by_client {
            let _ = t.client(0, "R 101:101(0) win 0");
        } else {
            let _ = t.server("R 101:101(0) win 0");
        }
        t.at(60_000);
        t.timeout().gives(&[]);
        assert_eq!(t.state(), "gone");
        assert_eq!(t.moved(), "connections_closed+1");
    }
}

#[test]
fn plain_rst_that_was_not_believed_ends_nothing() {
    let mut t = plain();
    let _ = t.client(0, "R 101:101(0) win 0");
    let _ = t.server("P. 101:201(100) ack 101");
    t.at(60_000);
    t.timeout().gives(&[]);
    assert_eq!(t.state(), "plain");
}

#[test]
fn plain_old_fins_end_nothing() {
    let mut t = plain();
    let _ = t.client(0, "F. 50:50(0) ack 101");
    let _ = t.server("F. 50:50(0) ack 101");
    t.at(60_000);
    t.timeout().gives(&[]);
    assert_eq!(t.state(), "plain");
}

#[test]
fn plain_syn_with_another_number_is_the_servers_to_ask_about() {
    let mut t = plain();
    t.client(0, "S 5000:5000(0) win 65535 <mss 1460>")
        .gives(&["server0 S 5000:5000(0) win 65535 <mss 1460>"]);
    assert_eq!(t.state(), "plain");
    assert_eq!(t.moved(), "");
    t.client(0, "P. 101:201(100) ack 101")
        .gives(&["server0 P. 101:201(100) ack 101 win 512"]);
}

#[test]
fn established_challenges_are_few() {
    // RFC 5961 section 7.
    let mut t = Scenario::established();
    let mut answers = 0;
    for _ in 0..100 {
        answers += t.client(0, "S 5000:5000(0) win 65535").lines().len() - 1;
    }
    assert_eq!(answers, 10);
    t.at(1000);
    answers += t.client(0, "S 5000:5000(0) win 65535").lines().len() - 1;
    assert_eq!(answers, 11);
    assert_eq!(t.moved(), "blind_reset+101");
}

#[test]
fn established_syn_on_the_tuple_of_a_client_that_is_gone_starts_anew() {
    let mut t = Scenario::established();
    t.client(0, "R 1:1(0) win 0").gives(&[]);
    t.restart(0);
    let outcome = t.client(0, "S 0:0(0) win 65535 <mss 1460,capable>");
    assert!(
        outcome.lines()[0].starts_with("server S 0:0(0)"),
        "{outcome:?}"
    );
    assert!(outcome.lines()[1].contains(" R. "), "{outcome:?}");
    assert_eq!(t.state(), "handshake");
    assert_eq!(
        t.moved(),
        "mp_capable_syn_rx+1 mp_rst_rx+1 connections_opened+1 connections_closed+1"
    );
    assert_eq!(t.why(), "rst.replaced+1");
}

#[test]
fn two_subflows_old_data_of_a_subflow_that_was_held_up_is_taken() {
    let mut t = Scenario::two_subflows();
    let mut at = 1;
    // 3 MB, far more than the server's window, over flow 0.
    for _ in 0..50 {
        let next = at + 60_000;
        let _ = t.client(
            0,
            &format!("P. {at}:{next}(60000) ack 1 <dss ack 1 map {at}:{next}@{at}> gso 1400"),
        );
        let _ = t.server(&format!(". 1:1(0) ack {next} win 500"));
        at = next;
    }
    let _ = t.moved();
    t.client(1, "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1>")
        .gives(&["server P. 1:101(100) ack 1 win 512"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn established_challenges_to_the_server_are_few() {
    let mut t = Scenario::established();
    let mut answers = 0;
    for _ in 0..20 {
        answers += t.server("R 1001:1001(0) win 0").lines().len() - 1;
    }
    assert_eq!(answers, 10);
    assert_eq!(t.moved(), "blind_reset+20");
}

#[test]
fn established_fin_ahead_of_the_servers_data_is_not_its_end() {
    // It has the right ACK and lies in the window; the server repeats a true one.
    let mut t = Scenario::established();
    t.server("F. 50001:50001(0) ack 1")
        .gives(&["client0 . 1:1(0) ack 1 win 64 <dss ack 1>"]);
    t.server("FP. 60001:60101(100) ack 1")
        .gives(&["client0 P. 60001:60101(100) ack 1 win 64 <dss ack 1 map 60001:60101@60001>"]);
    assert_eq!(t.state(), "translating");
    t.server("F. 60101:60101(0) ack 1")
        .gives(&["client0 . 60101:60101(0) ack 1 win 64 <dss ack 1 fin 60101>"]);
    assert_eq!(t.state(), "half-closed");
    assert_eq!(t.moved(), "");
}

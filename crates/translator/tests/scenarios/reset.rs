//! The abrupt end: RST and MP_FASTCLOSE on either side, and RSTs that nobody should believe (RFC 8684
//! sections 3.5 and 3.6, RFC 5961).

use crate::support::{Scenario, Setup, millis};

#[test]
fn established_server_rst_becomes_fastclose_with_rst() {
    let mut t = Scenario::established();
    t.server("R. 1:1(0) ack 1 win 0")
        .gives(&["client0 R. 1:1(0) ack 1 win 509 <fastclose>"]);
    assert_eq!(t.moved(), "mp_fastclose_tx+1");
    assert_eq!(t.state(), "reset");
}

#[test]
fn established_server_rst_without_ack_becomes_fastclose_with_rst() {
    let mut t = Scenario::established();
    t.server("R 1:1(0) win 0")
        .gives(&["client0 R. 1:1(0) ack 1 win 509 <fastclose>"]);
    assert_eq!(t.moved(), "mp_fastclose_tx+1");
}

#[test]
fn two_subflows_server_rst_becomes_fastclose_on_each() {
    let mut t = Scenario::two_subflows();
    t.server("R. 1:1(0) ack 1 win 0").gives(&[
        "client0 R. 1:1(0) ack 1 win 509 <fastclose>",
        "client1 R. 1:1(0) ack 1 win 509 <fastclose>",
    ]);
    assert_eq!(t.moved(), "mp_fastclose_tx+1");
}

#[test]
fn established_with_timestamps_server_rst_becomes_fastclose() {
    let mut t = Setup::new().ts().established();
    t.server("R. 1:1(0) ack 1 win 0")
        .gives(&["client0 R. 1:1(0) ack 1 win 509 <ts 5000 1000,fastclose>"]);
    assert_eq!(t.moved(), "mp_fastclose_tx+1");
}

#[test]
fn established_server_rst_with_a_wrong_number_is_dropped() {
    let mut t = Scenario::established();
    t.server("P. 1:101(100) ack 1")
        .gives(&["client0 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>"]);
    t.client(0, ". 1:1(0) ack 101 <dss ack 101>")
        .gives(&["server . 1:1(0) ack 101 win 512"]);
    t.server("R 100:100(0) win 0").gives(&["drop blind_reset"]);
    t.server("R 200000:200000(0) win 0")
        .gives(&["drop out_of_window"]);
    assert_eq!(t.moved(), "out_of_window+1 blind_reset+1");
    assert_eq!(t.state(), "translating");
}

#[test]
fn established_server_rst_in_the_window_but_not_exact_does_not_end_it() {
    // RFC 5961 section 3.2: only the exact next number resets.
    let mut t = Scenario::established();
    t.server("R 41:41(0) win 60000")
        .gives(&["drop blind_reset", "server . 1:1(0) ack 1 win 512"]);
    assert_eq!(t.state(), "translating");
    assert_eq!(t.moved(), "blind_reset+1");
    // The true server answers that ACK with the number it says.
    t.server("R 1:1(0) win 0")
        .gives(&["client0 R. 1:1(0) ack 1 win 509 <fastclose>"]);
    assert_eq!(t.moved(), "mp_fastclose_tx+1");
}

#[test]
fn established_server_rst_with_unacknowledged_data_is_believed() {
    let mut t = Scenario::established();
    t.server("P. 1:101(100) ack 1")
        .gives(&["client0 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>"]);
    t.server("R. 101:101(0) ack 1 win 0")
        .gives(&["client0 R. 101:101(0) ack 1 win 64 <fastclose>"]);
    assert_eq!(t.moved(), "mp_fastclose_tx+1");
}

#[test]
fn established_server_rst_at_the_acked_number_is_believed() {
    // The answer to a segment: its number is what the client's ACK said.
    let mut t = Scenario::established();
    t.server("P. 1:101(100) ack 1")
        .gives(&["client0 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>"]);
    t.server("R 1:1(0) win 0")
        .gives(&["client0 R. 101:101(0) ack 1 win 64 <fastclose>"]);
    assert_eq!(t.moved(), "mp_fastclose_tx+1");
}

#[test]
fn reset_client_that_does_not_believe_it_gets_the_number_it_expects() {
    let mut t = Scenario::established();
    t.server("P. 1:101(100) ack 1")
        .gives(&["client0 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>"]);
    t.server("R. 101:101(0) ack 1 win 0")
        .gives(&["client0 R. 101:101(0) ack 1 win 64 <fastclose>"]);
    t.client(0, ". 1:1(0) ack 1 <dss ack 1>")
        .gives(&["client0 R. 1:1(0) ack 1 win 64 <fastclose>"]);
    assert_eq!(t.moved(), "mp_fastclose_tx+1");
}

#[test]
fn reset_client_data_is_answered_with_fastclose() {
    let mut t = Scenario::two_subflows();
    let _ = t.server("R. 1:1(0) ack 1 win 0");
    t.client(1, "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1>")
        .gives(&["client1 R. 1:1(0) ack 1 win 509 <fastclose>"]);
    assert_eq!(t.moved(), "mp_fastclose_tx+1");
}

#[test]
fn reset_client_rst_is_not_answered() {
    let mut t = Scenario::established();
    let _ = t.server("R. 1:1(0) ack 1 win 0");
    t.client(0, "R. 1:1(0) ack 1 win 0").gives(&[]);
    assert_eq!(t.moved(), "mp_fastclose_tx+1");
}

#[test]
fn reset_server_data_is_answered_with_rst() {
    let mut t = Scenario::established();
    let _ = t.client(0, ". 1:1(0) ack 1 <dss ack 1,fastclose>");
    t.server("P. 1:101(100) ack 1")
        .gives(&["server R. 1:1(0) ack 1 win 512"]);
    t.server("R. 1:1(0) ack 1").gives(&[]);
    assert_eq!(t.moved(), "mp_fastclose_rx+1");
}

#[test]
fn reset_connection_leaves_after_lingering() {
    let mut t = Scenario::established();
    let _ = t.server("R. 1:1(0) ack 1 win 0");
    t.at(9999);
    t.timeout().gives(&[]);
    assert_eq!(t.state(), "reset");
    t.at(10_000);
    t.timeout().gives(&[]);
    assert_eq!(t.state(), "gone");
    assert_eq!(t.moved(), "mp_fastclose_tx+1 connections_closed+1");
}

#[test]
fn reset_syn_from_the_same_port_opens_a_new_connection() {
    let mut t = Scenario::established();
    let _ = t.server("R. 1:1(0) ack 1 win 0");
    t.restart(0);
    t.client(0, "S 0:0(0) win 65535 <mss 1460,capable>")
        .gives(&["server S 0:0(0) win 65535 <mss 1432>"]);
    assert_eq!(
        t.moved(),
        "mp_capable_syn_rx+1 mp_fastclose_tx+1 connections_opened+1 connections_closed+1"
    );
}

#[test]
fn reset_syn_that_was_held_up_on_the_way_opens_nothing() {
    let mut t = Scenario::established();
    let _ = t.server("R. 1:1(0) ack 1 win 0");
    t.client(0, "S 0:0(0) win 65535 <mss 1460,capable>")
        .gives(&[]);
    assert_eq!(t.state(), "reset");
    let _ = t.moved();
    // The server has refused: the client asks on until it hears of that.
    let mut t = Setup::new().start();
    let syn = "S 0:0(0) win 65535 <mss 1460,capable>";
    let _ = t.client(0, syn);
    let _ = t.server("R. 0:0(0) ack 1 win 0");
    t.client(0, syn)
        .gives(&["server S 0:0(0) win 65535 <mss 1432>"]);
    let _ = t.moved();
}

#[test]
fn reset_join_is_refused() {
    let mut t = Scenario::established();
    let _ = t.server("R. 1:1(0) ack 1 win 0");
    t.client(1, "S 0:0(0) win 65535 <mss 1460,join>").gives(&[
        "drop unexpected",
        "client1 R. 0:0(0) ack 1 win 0 <rst reason 3>",
    ]);
    assert_eq!(
        t.moved(),
        "mp_join_refused+1 mp_fastclose_tx+1 unexpected+1"
    );
}

#[test]
fn established_fastclose_on_an_ack_resets_the_server_and_is_answered_with_rst() {
    let mut t = Scenario::established();
    t.client(0, ". 1:1(0) ack 1 <dss ack 1,fastclose>").gives(&[
        "server R. 1:1(0) ack 1 win 512",
        "client0 R. 1:1(0) ack 1 win 509",
    ]);
    assert_eq!(t.moved(), "mp_fastclose_rx+1");
    assert_eq!(t.state(), "reset");
}

#[test]
fn two_subflows_fastclose_on_an_ack_resets_each() {
    let mut t = Scenario::two_subflows();
    t.client(1, ". 1:1(0) ack 1 <dss ack 1,fastclose>").gives(&[
        "server R. 1:1(0) ack 1 win 512",
        "client0 R. 1:1(0) ack 1 win 509",
        "client1 R. 1:1(0) ack 1 win 509",
    ]);
    assert_eq!(t.moved(), "mp_fastclose_rx+1");
}

#[test]
fn two_subflows_fastclose_on_a_rst_resets_the_server_and_the_other_subflow() {
    let mut t = Scenario::two_subflows();
    let outcome = t.client(0, "R. 1:1(0) ack 1 <fastclose>");
    assert_eq!(outcome.lines()[0], "server R. 1:1(0) ack 1 win 512");
    assert!(
        outcome
            .lines()
            .contains(&"client1 R. 1:1(0) ack 1 win 509".to_string())
    );
    assert_eq!(t.moved(), "mp_fastclose_rx+1");
    assert_eq!(t.state(), "reset");
}

#[test]
fn established_fastclose_behind_data_resets_the_server_behind_it() {
    let mut t = Scenario::established();
    t.client(0, "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1>")
        .gives(&["server P. 1:101(100) ack 1 win 512"]);
    let outcome = t.client(0, "R. 101:101(0) ack 1 <fastclose>");
    assert_eq!(outcome.lines()[0], "server R. 101:101(0) ack 1 win 512");
    assert_eq!(t.moved(), "mp_fastclose_rx+1");
}

#[test]
fn established_fastclose_with_a_wrong_key_is_dropped() {
    let mut t = Scenario::established();
    t.client(0, ". 1:1(0) ack 1 <dss ack 1,fastclose bad>")
        .gives(&["drop not_authenticated"]);
    t.client(0, "R. 1:1(0) ack 1 <fastclose bad>")
        .gives(&["drop not_authenticated"]);
    assert_eq!(t.moved(), "not_authenticated+2");
    assert_eq!(t.state(), "translating");
}

#[test]
fn established_fastclose_on_a_blind_rst_gets_a_challenge() {
    let mut t = Scenario::established();
    t.client(0, "R. 50:50(0) ack 1 <fastclose bad>").gives(&[
        "drop blind_reset",
        "client0 . 1:1(0) ack 1 win 509 <dss ack 1>",
    ]);
    assert_eq!(t.moved(), "blind_reset+1");
}

#[test]
fn two_subflows_rst_on_one_ends_that_one_alone() {
    let mut t = Scenario::two_subflows();
    t.client(1, "R 1:1(0) win 0 <rst reason 5 transient>")
        .gives(&[]);
    assert_eq!(t.subflows(), ["0 active"]);
    t.client(0, "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1>")
        .gives(&["server P. 1:101(100) ack 1 win 512"]);
    assert_eq!(t.moved(), "mp_rst_rx+1");
}

#[test]
fn two_subflows_rst_behind_data_in_flight_is_believed() {
    let mut t = Scenario::two_subflows();
    t.client(1, "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1>")
        .gives(&["server P. 1:101(100) ack 1 win 512"]);
    t.client(1, "R 101:101(0) win 0").gives(&[]);
    assert_eq!(t.moved(), "mp_rst_rx+1");
    assert_eq!(t.subflows(), ["0 active"]);
}

#[test]
fn two_subflows_blind_rst_gets_a_challenge() {
    let mut t = Scenario::two_subflows();
    t.client(1, "R 2:2(0) win 0").gives(&[
        "drop blind_reset",
        "client1 . 1:1(0) ack 1 win 509 <dss ack 1>",
    ]);
    t.client(1, "R 0:0(0) win 0").gives(&[
        "drop blind_reset",
        "client1 . 1:1(0) ack 1 win 509 <dss ack 1>",
    ]);
    assert_eq!(t.moved(), "blind_reset+2");
    assert_eq!(t.subflows(), ["0 active", "1"]);
}

#[test]
fn established_rst_far_away_is_dropped_without_an_answer() {
    let mut t = Scenario::established();
    t.client(0, "R 1500000001:1500000001(0) win 0")
        .gives(&["drop out_of_window"]);
    assert_eq!(t.moved(), "out_of_window+1");
}

#[test]
fn established_syn_in_the_middle_gets_a_challenge() {
    let mut t = Scenario::established();
    t.client(0, "S 100:100(0) win 65535 <mss 1460,capable>")
        .gives(&[
            "drop blind_reset",
            "client0 . 1:1(0) ack 1 win 509 <dss ack 1>",
        ]);
    assert_eq!(t.moved(), "blind_reset+1");
}

#[test]
fn established_syn_of_another_epoch_gets_a_challenge_too() {
    // The client has rebooted and takes the same port; its RST in answer to the challenge clears it.
    let mut t = Scenario::established();
    t.client(0, "S 2000000000:2000000000(0) win 65535 <mss 1460,capable>")
        .gives(&[
            "drop blind_reset",
            "client0 . 1:1(0) ack 1 win 509 <dss ack 1>",
        ]);
    assert_eq!(t.moved(), "blind_reset+1");
}

#[test]
fn established_rst_of_the_only_subflow_leaves_the_server_alone_for_a_while() {
    let mut t = Setup::new()
        .timeouts(|timeouts| timeouts.rejoin = millis(3000))
        .established();
    t.client(0, "R 1:1(0) win 0").gives(&[]);
    assert_eq!(t.state(), "translating");
    assert_eq!(t.next_timeout(), Some(3000));
    t.at(3000);
    t.timeout().gives(&["server R. 1:1(0) ack 1 win 512"]);
    assert_eq!(t.state(), "reset");
    // It expects another number (RFC 5961 section 3.2), and gets it.
    t.server(". 1:1(0) ack 1")
        .gives(&["server R. 1:1(0) ack 1 win 512"]);
    t.at(13_000);
    t.timeout().gives(&[]);
    assert_eq!(t.state(), "gone");
    assert_eq!(t.moved(), "mp_rst_rx+1 connections_closed+1");
}

#[test]
fn orphaned_server_rst_ends_it() {
    let mut t = Scenario::established();
    t.client(0, "R 1:1(0) win 0").gives(&[]);
    t.server("R. 1:1(0) ack 1 win 0").gives(&[]);
    assert_eq!(t.state(), "reset");
    assert_eq!(t.moved(), "mp_rst_rx+1");
}

#[test]
fn two_subflows_packet_on_one_that_was_reset_is_not_the_connections() {
    let mut t = Scenario::two_subflows();
    t.client(1, "R 1:1(0) win 0").gives(&[]);
    let outcome = t.client(1, "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1>");
    assert_eq!(
        outcome.lines(),
        ["drop no_subflow", "client1 R 1:1(0) win 0 <rst reason 0>"],
    );
    assert_eq!(t.moved(), "mp_rst_rx+1 no_subflow+1");
}

#[test]
fn reverse_packet_on_a_subflow_that_was_reset_is_answered_with_rst() {
    let setup = Setup::new().backends(1);
    let mut t = setup.clone().two_subflows();
    t.client(1, "R 1:1(0) win 0").gives(&[]);
    t.client(1, "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1>")
        .gives(&["drop no_subflow", "client1 R 1:1(0) win 0 <rst reason 0>"]);
    assert_eq!(t.moved(), "mp_rst_rx+1 no_subflow+1");
}

#[test]
fn half_closed_server_rst_becomes_fastclose() {
    let mut t = Scenario::established();
    t.client(0, ". 1:1(0) ack 1 <dss ack 1 fin 1>")
        .gives(&["server F. 1:1(0) ack 1 win 512"]);
    t.server("R. 1:1(0) ack 2 win 0")
        .gives(&["client0 R. 1:1(0) ack 1 win 509 <fastclose>"]);
    assert_eq!(t.moved(), "mp_fastclose_tx+1");
}

#[test]
fn orphaned_packet_on_the_initial_subflow_is_answered_with_rst() {
    let mut t = Scenario::established();
    t.client(0, "R 1:1(0) win 0").gives(&[]);
    t.client(0, "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1>")
        .gives(&["drop no_subflow", "client0 R 1:1(0) win 0 <rst reason 0>"]);
    // Its RSTs say nothing new.
    t.client(0, "R 1:1(0) win 0").gives(&[]);
    assert_eq!(t.moved(), "mp_rst_rx+1 no_subflow+1");
}

#[test]
fn two_subflows_packet_on_the_initial_one_that_was_reset_is_answered_with_rst() {
    let mut t = Scenario::two_subflows();
    t.client(0, "R 1:1(0) win 0").gives(&[]);
    t.client(0, ". 1:1(0) ack 1 <dss ack 1>")
        .gives(&["drop no_subflow", "client0 R 1:1(0) win 0 <rst reason 0>"]);
    t.client(1, "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1>")
        .gives(&["server P. 1:101(100) ack 1 win 512"]);
    assert_eq!(t.moved(), "mp_rst_rx+1 no_subflow+1");
}

//! Back to plain TCP, or the end of a subflow, where MPTCP does not work (RFC 8684 section 3.7).

use crate::support::{Scenario, Setup};

/// Data flows both ways without MPTCP, unchanged but for addresses.
fn is_plain(t: &mut Scenario, up: u32, down: u32) {
    let (up_end, down_end) = (up + 100, down + 100);
    t.client(0, &format!("P. {up}:{up_end}(100) ack {down} win 300"))
        .gives(&[&format!("server P. {up}:{up_end}(100) ack {down} win 300")]);
    t.server(&format!("P. {down}:{down_end}(100) ack {up_end} win 70"))
        .gives(&[&format!(
            "client0 P. {down}:{down_end}(100) ack {up_end} win 70"
        )]);
    assert_eq!(t.state(), "fallback");
}

#[test]
fn syn_received_third_ack_without_capable_falls_back() {
    let mut t = Scenario::syn_received();
    t.client(0, ". 1:1(0) ack 1 win 512")
        .gives(&["server . 1:1(0) ack 1 win 512"]);
    assert_eq!(t.moved(), "fallback_handshake+1");
    is_plain(&mut t, 1, 1);
    assert_eq!(t.moved(), "");
}

#[test]
fn syn_received_data_without_capable_falls_back() {
    let mut t = Scenario::syn_received();
    t.client(0, "P. 1:101(100) ack 1 win 512")
        .gives(&["server P. 1:101(100) ack 1 win 512"]);
    assert_eq!(t.moved(), "fallback_handshake+1");
    is_plain(&mut t, 101, 1);
    assert_eq!(t.moved(), "");
}

#[test]
fn syn_received_fallback_keeps_timestamps_and_sack() {
    let mut t = Setup::new().ts().syn_received();
    t.client(0, ". 1:1(0) ack 1 win 512 <ts 1001 5000>")
        .gives(&["server . 1:1(0) ack 1 win 512 <ts 1001 5000>"]);
    t.server(". 1:101(100) ack 1 win 64 <ts 5001 1001,sack 5:9>")
        .gives(&["client0 . 1:101(100) ack 1 win 64 <ts 5001 1001,sack 5:9>"]);
    t.client(0, ". 1:1(0) ack 1 win 512 <ts 1002 5001,sack 51:101>")
        .gives(&["server . 1:1(0) ack 1 win 512 <ts 1002 5001,sack 51:101>"]);
    assert_eq!(t.moved(), "fallback_handshake+1");
}

#[test]
fn established_two_bare_acks_fall_back() {
    let mut t = Scenario::established();
    t.server("P. 1:101(100) ack 1")
        .gives(&["client0 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>"]);
    t.client(0, ". 1:1(0) ack 51")
        .gives(&["server . 1:1(0) ack 51 win 512"]);
    assert_eq!(t.moved(), "");
    t.client(0, ". 1:1(0) ack 101")
        .gives(&["server . 1:1(0) ack 101 win 512"]);
    assert_eq!(t.moved(), "fallback_established+1");
    is_plain(&mut t, 1, 101);
    assert_eq!(t.moved(), "");
}

#[test]
fn established_bare_ack_between_others_does_not_fall_back() {
    let mut t = Scenario::established();
    t.server("P. 1:101(100) ack 1")
        .gives(&["client0 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>"]);
    t.client(0, ". 1:1(0) ack 31")
        .gives(&["server . 1:1(0) ack 31 win 512"]);
    t.client(0, ". 1:1(0) ack 51 <dss ack 51>")
        .gives(&["server . 1:1(0) ack 51 win 512"]);
    t.client(0, ". 1:1(0) ack 101")
        .gives(&["server . 1:1(0) ack 101 win 512"]);
    assert_eq!(t.moved(), "");
    assert_eq!(t.state(), "translating");
}

#[test]
fn established_bare_fin_of_the_clients_falls_back() {
    let mut t = Scenario::established();
    t.client(0, "F. 1:1(0) ack 1")
        .gives(&["server F. 1:1(0) ack 1 win 512"]);
    assert_eq!(t.moved(), "fallback_established+1");
}

#[test]
fn established_server_fin_after_a_bare_ack_falls_back() {
    let mut t = Scenario::established();
    t.server("P. 1:101(100) ack 1")
        .gives(&["client0 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>"]);
    t.client(0, ". 1:1(0) ack 101")
        .gives(&["server . 1:1(0) ack 101 win 512"]);
    t.server("F. 101:101(0) ack 1")
        .gives(&["client0 F. 101:101(0) ack 1 win 64"]);
    assert_eq!(t.moved(), "fallback_established+1");
    assert_eq!(t.why(), "fallback.server_fin+1");
}

#[test]
fn established_first_data_without_a_mapping_falls_back() {
    let mut t = Scenario::established();
    t.client(0, "P. 1:101(100) ack 1")
        .gives(&["server P. 1:101(100) ack 1 win 512"]);
    assert_eq!(t.moved(), "fallback_established+1");
    // Until the client has heard, its window needs data ACKs.
    t.server(". 1:1(0) ack 101")
        .gives(&["client0 . 1:1(0) ack 101 win 64 <dss ack 101>"]);
    is_plain(&mut t, 101, 1);
    assert_eq!(t.moved(), "");
}

#[test]
fn established_later_data_without_a_mapping_falls_back() {
    let mut t = Scenario::established();
    t.client(0, "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1>")
        .gives(&["server P. 1:101(100) ack 1 win 512"]);
    t.server("P. 1:101(100) ack 101")
        .gives(&["client0 P. 1:101(100) ack 101 win 64 <dss ack 101 map 1:101@1>"]);
    t.client(0, "P. 101:201(100) ack 101")
        .gives(&["server P. 101:201(100) ack 101 win 512"]);
    assert_eq!(t.moved(), "fallback_established+1");
    is_plain(&mut t, 201, 101);
    assert_eq!(t.moved(), "");
}

#[test]
fn established_infinite_mapping_falls_back() {
    let mut t = Scenario::established();
    t.client(0, "P. 1:101(100) ack 1 <dss ack 1 infinite 1@1>")
        .gives(&["server P. 1:101(100) ack 1 win 512"]);
    assert_eq!(t.moved(), "fallback_established+1");
    is_plain(&mut t, 101, 1);
    assert_eq!(t.moved(), "");
}

#[test]
fn established_infinite_mapping_on_an_ack_falls_back() {
    let mut t = Scenario::established();
    t.client(0, ". 1:1(0) ack 1 <dss ack 1 infinite 1@1>")
        .gives(&["server . 1:1(0) ack 1 win 512"]);
    assert_eq!(t.moved(), "fallback_established+1");
    assert_eq!(t.state(), "fallback");
}

#[test]
fn established_mp_fail_falls_back_and_is_answered_with_mp_fail() {
    // RFC 8684 section 3.7: "the receiver of an MP_FAIL MUST also respond with an MP_FAIL in the reverse
    // direction and entirely revert to a regular TCP session".
    let mut t = Scenario::established();
    t.server("P. 1:101(100) ack 1")
        .gives(&["client0 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>"]);
    let outcome = t.client(0, ". 1:1(0) ack 101 <dss ack 1,fail 1>");
    assert_eq!(t.state(), "fallback");
    assert_eq!(t.moved(), "fallback_established+1 mp_fail_rx+1");
    assert!(
        outcome
            .lines()
            .iter()
            .any(|line| line.starts_with("client0") && line.contains("fail")),
        "{:?}",
        outcome.lines()
    );
}

#[test]
fn two_subflows_data_without_a_mapping_on_the_joined_one_resets_it() {
    let mut t = Scenario::two_subflows();
    t.client(1, "P. 1:101(100) ack 1").gives(&[
        "drop no_mapping",
        "client1 R. 1:1(0) ack 1 win 509 <rst reason 6 transient>",
    ]);
    assert_eq!(t.moved(), "mp_rst_tx+1 no_mapping+1");
    assert_eq!(t.subflows(), ["0 active"]);
}

#[test]
fn two_subflows_data_without_a_mapping_on_the_initial_one_resets_it() {
    let mut t = Scenario::two_subflows();
    t.client(0, "P. 1:101(100) ack 1").gives(&[
        "drop no_mapping",
        "client0 R. 1:1(0) ack 1 win 509 <rst reason 6 transient>",
    ]);
    assert_eq!(t.moved(), "mp_rst_tx+1 no_mapping+1");
    t.server("P. 1:101(100) ack 1")
        .gives(&["client1 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>"]);
    assert_eq!(t.moved(), "subflow_switch+1");
}

#[test]
fn two_subflows_data_with_dss_but_beyond_any_mapping_waits_for_it() {
    let mut t = Scenario::two_subflows();
    t.client(1, "P. 1:101(100) ack 1 <dss ack 1>")
        .gives(&["drop no_mapping"]);
    assert_eq!(t.moved(), "no_mapping+1");
    assert_eq!(t.subflows(), ["0 active", "1"]);
}

#[test]
fn two_subflows_data_whose_mapping_ends_in_it_goes_up_as_far_as_it_reaches() {
    let mut t = Scenario::two_subflows();
    let _ = t.client(1, "P. 1:101(100) ack 1 <dss ack 1 map 1:51@1>");
    let view = t.view().expect("a connection");
    assert_eq!(view.subflows.len(), 2);
    let _ = t.moved();
}

#[test]
fn two_subflows_old_data_without_a_mapping_is_acknowledged() {
    let mut t = Scenario::two_subflows();
    for n in 0..3 {
        let (a, b) = (1 + 100 * n, 101 + 100 * n);
        t.client(
            1,
            &format!("P. {a}:{b}(100) ack 1 <dss ack 1 map {a}:{b}@{a}>"),
        )
        .gives(&[&format!("server P. {a}:{b}(100) ack 1 win 512")]);
        t.server(&format!(". 1:1(0) ack {b}"))
            .gives(&[&format!("client1 . 1:1(0) ack {b} win 64 <dss ack {b}>")]);
    }
    let outcome = t.client(1, "P. 1:101(100) ack 1");
    let fine = [
        "client1 . 1:1(0) ack 301 win 64 <dss ack 301>",
        "server P. 1:101(100) ack 1 win 512",
    ];
    assert!(
        fine.contains(&outcome.lines()[0].as_str()),
        "{:?}",
        outcome.lines()
    );
    assert_eq!(t.moved(), "");
}

#[test]
fn two_subflows_infinite_mapping_resets_the_subflow() {
    let mut t = Scenario::two_subflows();
    t.client(1, "P. 1:101(100) ack 1 <dss ack 1 infinite 1@1>")
        .gives(&[
            "drop no_mapping",
            "client1 R. 1:1(0) ack 1 win 509 <rst reason 1>",
        ]);
    assert_eq!(t.moved(), "mp_rst_tx+1 no_mapping+1");
}

#[test]
fn two_subflows_mp_fail_resets_the_subflow() {
    let mut t = Scenario::two_subflows();
    t.client(1, ". 1:1(0) ack 1 <dss ack 1,fail 1>").gives(&[
        "drop no_mapping",
        "client1 R. 1:1(0) ack 1 win 509 <rst reason 1>",
    ]);
    assert_eq!(t.moved(), "mp_fail_rx+1 mp_rst_tx+1 no_mapping+1");
}

#[test]
fn two_subflows_rst_with_mp_fail_ends_the_subflow_and_its_data_goes_down_elsewhere() {
    let mut t = Scenario::two_subflows();
    t.server("P. 1:101(100) ack 1")
        .gives(&["client0 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>"]);
    t.client(0, "R. 1:1(0) ack 101 <fail 1>").gives(&[]);
    t.server("P. 1:101(100) ack 1")
        .gives(&["client1 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>"]);
    let _ = t.moved();
}

#[test]
fn left_by_its_joined_subflow_data_without_a_mapping_resets_the_initial_one() {
    // Numbers may no longer be the same: it can't fall back.
    let mut t = Scenario::two_subflows();
    t.client(1, "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1>")
        .gives(&["server P. 1:101(100) ack 1 win 512"]);
    t.client(1, "R 101:101(0) win 0").gives(&[]);
    t.client(0, "P. 1:101(100) ack 1").gives(&[
        "drop no_mapping",
        "client0 R. 1:1(0) ack 1 win 509 <rst reason 6 transient>",
    ]);
    assert_eq!(t.moved(), "mp_rst_tx+1 mp_rst_rx+1 no_mapping+1");
}

#[test]
fn established_data_sent_again_under_fresh_numbers_can_not_fall_back() {
    let mut t = Scenario::established();
    t.server("P. 1:101(100) ack 1")
        .gives(&["client0 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>"]);
    t.client(0, ". 1:1(0) ack 101 <dss ack 1>")
        .gives(&["drop stale_ack"]);
    t.server("P. 1:101(100) ack 1")
        .gives(&["client0 P. 101:201(100) ack 1 win 64 <dss ack 1 map 1:101@101>"]);
    t.client(0, "P. 1:101(100) ack 201").gives(&[
        "drop no_mapping",
        "client0 R. 201:201(0) ack 1 win 64 <rst reason 6 transient>",
    ]);
    assert_eq!(
        t.moved(),
        "mp_rst_tx+1 retransmitted_down_bytes+100 stale_ack+1 no_mapping+1"
    );
}

#[test]
fn fallen_back_mptcp_options_of_the_client_stay_behind() {
    let mut t = Scenario::syn_received();
    t.client(0, ". 1:1(0) ack 1 win 512")
        .gives(&["server . 1:1(0) ack 1 win 512"]);
    t.client(0, "P. 1:101(100) ack 1 win 512 <dss ack 1 map 1:101@1>")
        .gives(&["server P. 1:101(100) ack 1 win 512"]);
    assert_eq!(t.moved(), "fallback_handshake+1");
}

#[test]
fn fallen_back_window_and_urgent_pointer_pass_as_they_are() {
    let mut t = Scenario::syn_received();
    t.client(0, ". 1:1(0) ack 1 win 512")
        .gives(&["server . 1:1(0) ack 1 win 512"]);
    t.client(0, "P.U 1:101(100) ack 1 win 3 urg 7")
        .gives(&["server P.U 1:101(100) ack 1 win 3 urg 7"]);
    assert_eq!(t.moved(), "fallback_handshake+1");
}

#[test]
fn fallen_back_fins_pass_and_the_connection_leaves() {
    let mut t = Scenario::syn_received();
    t.client(0, ". 1:1(0) ack 1 win 512")
        .gives(&["server . 1:1(0) ack 1 win 512"]);
    t.server("F. 1:1(0) ack 1")
        .gives(&["client0 F. 1:1(0) ack 1 win 64"]);
    t.client(0, "F. 1:1(0) ack 2")
        .gives(&["server F. 1:1(0) ack 2 win 512"]);
    t.server(". 2:2(0) ack 2")
        .gives(&["client0 . 2:2(0) ack 2 win 64"]);
    t.at(10_000);
    t.timeout().gives(&[]);
    assert_eq!(t.state(), "gone");
    assert_eq!(t.moved(), "fallback_handshake+1 connections_closed+1");
}

#[test]
fn fallen_back_rst_passes_and_the_connection_leaves_soon() {
    for rst_of_client in [true, false] {
        let mut t = Scenario::syn_received();
        t.client(0, ". 1:1(0) ack 1 win 512")
            .gives(&["server . 1:1(0) ack 1 win 512"]);
        if rst_of_client {
            t.client(0, "R. 1:1(0) ack 1 win 0")
                .gives(&["server R. 1:1(0) ack 1 win 0"]);
        } else {
            t.server("R. 1:1(0) ack 1 win 0")
                .gives(&["client0 R. 1:1(0) ack 1 win 0"]);
        }
        t.at(60_000);
        t.timeout().gives(&[]);
        assert_eq!(t.state(), "gone");
        assert_eq!(t.moved(), "fallback_handshake+1 connections_closed+1");
    }
}

#[test]
fn fallen_back_syn_from_the_same_port_is_the_servers_to_ask_about() {
    // RFC 5961 section 4: anybody could have sent it.
    let mut t = Scenario::syn_received();
    t.client(0, ". 1:1(0) ack 1 win 512")
        .gives(&["server . 1:1(0) ack 1 win 512"]);
    t.restart(0);
    t.client(0, "S 0:0(0) win 65535 <mss 1460,capable>")
        .gives(&["server S 0:0(0) win 65535 <mss 1460>"]);
    assert_eq!(t.state(), "fallback");
    assert_eq!(t.moved(), "fallback_handshake+1");
}

#[test]
fn fallen_back_syn_behind_the_clients_reset_opens_a_new_connection() {
    let mut t = Scenario::syn_received();
    t.client(0, ". 1:1(0) ack 1 win 512")
        .gives(&["server . 1:1(0) ack 1 win 512"]);
    t.client(0, "R 1:1(0) win 0")
        .gives(&["server R 1:1(0) win 0"]);
    t.restart(0);
    t.client(0, "S 0:0(0) win 65535 <mss 1460,capable>")
        .gives(&["server S 0:0(0) win 65535 <mss 1432>"]);
    assert_eq!(
        t.moved(),
        "mp_capable_syn_rx+1 fallback_handshake+1 connections_opened+1 connections_closed+1"
    );
}

#[test]
fn established_packet_with_an_unreadable_dss_is_as_one_without() {
    let mut t = Scenario::two_subflows();
    t.client(1, "P. 1:101(100) ack 1 <raw 1e052003ff>")
        .gives(&["drop no_mapping"]);
    assert_eq!(t.moved(), "no_mapping+1");
}

#[test]
fn established_client_that_repeats_data_under_other_numbers_can_not_fall_back() {
    // Its subflow numbers are not the server's any more.
    let mut t = Scenario::established();
    let _ = t.client(0, "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1>");
    t.client(0, "P. 101:201(100) ack 1 <dss ack 1 map 1:101@101>")
        .gives(&["server P. 1:101(100) ack 1 win 512"]);
    t.client(0, "P. 201:301(100) ack 1").gives(&[
        "drop no_mapping",
        "client0 R. 1:1(0) ack 1 win 509 <rst reason 6 transient>",
    ]);
    assert_eq!(t.moved(), "mp_rst_tx+1 no_mapping+1");
}

#[test]
fn established_data_without_a_mapping_after_a_refused_join_can_not_fall_back() {
    // Behind the RST a Linux client sends what has no data ACK again under fresh numbers: the server would take it for
    // new data.
    let mut t = Setup::new()
        .limits(|limits| limits.subflows = 1)
        .established();
    t.client(0, "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1>")
        .gives(&["server P. 1:101(100) ack 1 win 512"]);
    t.client(1, "S 0:0(0) win 65535 <mss 1460,sackok,ws 8,join>")
        .gives(&[
            "drop limit_reached",
            "client1 R. 0:0(0) ack 1 win 0 <rst reason 2 transient>",
        ]);
    let _ = t.moved();
    // The first hundred bytes once more.
    t.client(0, "P. 101:201(100) ack 1").gives(&[
        "drop no_mapping",
        "client0 R. 1:1(0) ack 1 win 509 <rst reason 6 transient>",
    ]);
    assert_eq!(t.moved(), "mp_rst_tx+1 no_mapping+1");
}

#[test]
fn established_data_without_a_mapping_while_a_join_is_pending_can_not_fall_back() {
    // The client may count it as joined. The join then carries the connection on.
    let mut t = Scenario::established();
    let _ = t.client(1, "S 0:0(0) win 65535 <mss 1460,sackok,ws 8,join>");
    let _ = t.moved();
    t.client(0, "P. 1:101(100) ack 1").gives(&[
        "drop no_mapping",
        "client0 R. 1:1(0) ack 1 win 509 <rst reason 6 transient>",
    ]);
    assert_eq!(t.moved(), "mp_rst_tx+1 no_mapping+1");
    t.client(1, ". 1:1(0) ack 1 win 512 <join>")
        .gives(&["client1 . 1:1(0) ack 1 win 509 <dss ack 1>"]);
    t.client(1, "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1>")
        .gives(&["server P. 1:101(100) ack 1 win 512"]);
    let _ = t.moved();
}

//! Data from the client to the server: any number of subflows become one stream.

use crate::support::{Scenario, Setup};

#[test]
fn established_data_goes_up_under_its_data_numbers() {
    let mut t = Scenario::established();
    t.client(0, "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1>")
        .gives(&["server P. 1:101(100) ack 1 win 512"]);
    t.client(0, "P. 101:201(100) ack 1 <dss ack 1 map 101:201@101>")
        .gives(&["server P. 101:201(100) ack 1 win 512"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn established_v6_data_goes_up() {
    let mut t = Scenario::established_v6();
    t.client(0, "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1>")
        .gives(&["server P. 1:101(100) ack 1 win 512"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn two_subflows_data_from_both_becomes_one_stream() {
    let mut t = Scenario::two_subflows();
    t.client(0, "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1>")
        .gives(&["server P. 1:101(100) ack 1 win 512"]);
    t.client(1, "P. 1:101(100) ack 1 <dss ack 1 map 101:201@1>")
        .gives(&["server P. 101:201(100) ack 1 win 512"]);
    t.client(0, "P. 101:201(100) ack 1 <dss ack 1 map 201:301@101>")
        .gives(&["server P. 201:301(100) ack 1 win 512"]);
    t.server(". 1:1(0) ack 301").gives(&[
        "client0 . 1:1(0) ack 201 win 64 <dss ack 301>",
        "client1 . 1:1(0) ack 101 win 64 <dss ack 301>",
    ]);
    assert_eq!(t.moved(), "");
}

#[test]
fn two_subflows_data_ahead_on_the_joined_one_goes_up_at_once() {
    let mut t = Scenario::two_subflows();
    t.client(1, "P. 1:101(100) ack 1 <dss ack 1 map 101:201@1>")
        .gives(&["server P. 101:201(100) ack 1 win 512"]);
    t.client(0, "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1>")
        .gives(&["server P. 1:101(100) ack 1 win 512"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn two_subflows_data_on_both_goes_up_twice() {
    // Reinjection: the server drops the second copy, and each subflow gets its ACK.
    let mut t = Scenario::two_subflows();
    t.client(0, "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1>")
        .gives(&["server P. 1:101(100) ack 1 win 512"]);
    t.client(1, "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1>")
        .gives(&["server P. 1:101(100) ack 1 win 512"]);
    t.server(". 1:1(0) ack 101").gives(&[
        "client0 . 1:1(0) ack 101 win 64 <dss ack 101>",
        "client1 . 1:1(0) ack 101 win 64 <dss ack 101>",
    ]);
    assert_eq!(t.moved(), "");
}

#[test]
fn mixed_data_over_ipv6_reaches_an_ipv4_server() {
    let mut t = Scenario::mixed();
    t.client(1, "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1>")
        .gives(&["server P. 1:101(100) ack 1 win 512"]);
    t.server(". 1:1(0) ack 101")
        .gives(&["client1 . 1:1(0) ack 101 win 64 <dss ack 101>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn established_retransmission_goes_up_again() {
    let mut t = Scenario::established();
    for _ in 0..2 {
        t.client(0, "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1>")
            .gives(&["server P. 1:101(100) ack 1 win 512"]);
    }
    assert_eq!(t.moved(), "");
}

#[test]
fn established_retransmission_with_other_bounds_goes_up() {
    let mut t = Scenario::established();
    t.client(0, "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1>")
        .gives(&["server P. 1:101(100) ack 1 win 512"]);
    t.client(0, "P. 101:201(100) ack 1 <dss ack 1 map 101:201@101>")
        .gives(&["server P. 101:201(100) ack 1 win 512"]);
    t.client(0, "P. 51:151(100) ack 1 <dss ack 1 map 51:151@51>")
        .gives(&["server P. 51:151(100) ack 1 win 512"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn established_retransmission_of_acknowledged_data_goes_up() {
    let mut t = Scenario::established();
    t.client(0, "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1>")
        .gives(&["server P. 1:101(100) ack 1 win 512"]);
    t.server(". 1:1(0) ack 101")
        .gives(&["client0 . 1:1(0) ack 101 win 64 <dss ack 101>"]);
    t.client(0, "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1>")
        .gives(&["server P. 1:101(100) ack 1 win 512"]);
    t.server(". 1:1(0) ack 101")
        .gives(&["client0 . 1:1(0) ack 101 win 64 <dss ack 101>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn established_data_without_dss_belongs_to_the_mapping_before() {
    let mut t = Scenario::established();
    t.client(0, ". 1:101(100) ack 1 <dss ack 1 map 1:301@1>")
        .gives(&["server . 1:101(100) ack 1 win 512"]);
    t.client(0, ". 101:201(100) ack 1 <dss ack 1>")
        .gives(&["server . 101:201(100) ack 1 win 512"]);
    t.client(0, "P. 201:301(100) ack 1")
        .gives(&["server P. 201:301(100) ack 1 win 512"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn two_subflows_data_without_dss_belongs_to_the_mapping_before_on_its_subflow() {
    let mut t = Scenario::two_subflows();
    t.client(1, ". 1:101(100) ack 1 <dss ack 1 map 1001:1201@1>")
        .gives(&["server . 1001:1101(100) ack 1 win 512"]);
    t.client(1, "P. 101:201(100) ack 1")
        .gives(&["server P. 1101:1201(100) ack 1 win 512"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn two_subflows_mapping_that_starts_before_the_packet_counts_from_its_own_start() {
    // One mapping over a long packet, of which this is the second segment.
    let mut t = Scenario::two_subflows();
    t.client(1, "P. 101:201(100) ack 1 <dss ack 1 map 1:301@1>")
        .gives(&["server P. 101:201(100) ack 1 win 512"]);
    t.client(1, "P. 1:101(100) ack 1 <dss ack 1 map 1:301@1>")
        .gives(&["server P. 1:101(100) ack 1 win 512"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn two_subflows_packet_over_two_mappings_is_split() {
    let mut t = Scenario::two_subflows();
    t.client(1, ". 1:101(100) ack 1 <dss ack 1 map 1:101@1>")
        .gives(&["server . 1:101(100) ack 1 win 512"]);
    t.client(1, ". 101:201(100) ack 1 <dss ack 1 map 501:601@101>")
        .gives(&["server . 501:601(100) ack 1 win 512"]);
    t.client(1, "P. 51:151(100) ack 1 <dss ack 1>").gives(&[
        "server P. 51:101(50) ack 1 win 512",
        "server P. 501:551(50) ack 1 win 512",
    ]);
    assert_eq!(t.moved(), "");
}

#[test]
fn two_subflows_mapping_that_contradicts_an_earlier_one_is_dropped() {
    let mut t = Scenario::two_subflows();
    t.client(1, ". 1:101(100) ack 1 <dss ack 1 map 1:101@1>")
        .gives(&["server . 1:101(100) ack 1 win 512"]);
    t.client(1, ". 51:151(100) ack 1 <dss ack 1 map 501:601@51>")
        .gives(&["drop bad_mapping"]);
    assert_eq!(t.moved(), "bad_mapping+1");
}

#[test]
fn established_mapping_out_of_reach_is_dropped() {
    let mut t = Scenario::established();
    t.client(
        0,
        ". 1:101(100) ack 1 <dss ack 1 map 1500000001:1500000101@1>",
    )
    .gives(&["drop bad_mapping"]);
    t.client(0, ". 1:101(100) ack 1 <dss ack 1 map 1:101@1500000001>")
        .gives(&["drop bad_mapping"]);
    assert_eq!(t.moved(), "bad_mapping+2");
}

#[test]
fn established_data_out_of_reach_is_dropped() {
    let mut t = Scenario::established();
    t.client(
        0,
        ". 1500000001:1500000101(100) ack 1 <dss ack 1 map 1:101@1>",
    )
    .gives(&["drop out_of_window"]);
    assert_eq!(t.moved(), "out_of_window+1");
}

#[test]
fn two_subflows_data_outside_its_mapping_is_dropped() {
    let mut t = Scenario::two_subflows();
    t.client(1, ". 1:101(100) ack 1 <dss ack 1 map 1:101@201>")
        .gives(&["drop no_mapping"]);
    assert_eq!(t.moved(), "no_mapping+1");
}

#[test]
fn established_mapping_with_a_checksum_that_was_not_negotiated_resets_the_subflow() {
    // RFC 8684 section 3.3: "the receiver MUST close the subflow with a RST".
    let mut t = Scenario::two_subflows();
    t.client(1, "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1 csum 1234>")
        .gives(&[
            "drop bad_mapping",
            "client1 R. 1:1(0) ack 1 win 509 <rst reason 1>",
        ]);
    assert_eq!(t.moved(), "mp_rst_tx+1 bad_mapping+1");
    assert_eq!(t.why(), "rst.dss_checksum+1");
}

#[test]
fn established_short_data_numbers_are_understood() {
    let mut t = Scenario::established();
    t.client(0, "P. 1:101(100) ack 1 <dss ack32 1 map32 1:101@1>")
        .gives(&["server P. 1:101(100) ack 1 win 512"]);
    t.server("P. 1:101(100) ack 101")
        .gives(&["client0 P. 1:101(100) ack 101 win 64 <dss ack 101 map 1:101@1>"]);
    t.client(0, ". 101:101(0) ack 101 <dss ack32 101>")
        .gives(&["server . 101:101(0) ack 101 win 512"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn established_ack_of_unsent_on_the_subflow_is_dropped() {
    let mut t = Scenario::established();
    t.client(0, "P. 1:101(100) ack 2 <dss ack 1 map 1:101@1>")
        .gives(&["drop ack_of_unsent"]);
    assert_eq!(t.moved(), "ack_of_unsent+1");
}

#[test]
fn established_data_ack_of_unsent_is_dropped() {
    let mut t = Scenario::established();
    t.client(0, "P. 1:101(100) ack 1 <dss ack 2 map 1:101@1>")
        .gives(&["drop ack_of_unsent"]);
    assert_eq!(t.moved(), "ack_of_unsent+1");
}

#[test]
fn established_segment_without_ack_flag_is_dropped() {
    let mut t = Scenario::established();
    t.client(0, "P 1:101(100) <dss map 1:101@1>")
        .gives(&["drop unexpected"]);
    assert_eq!(t.moved(), "unexpected+1");
}

#[test]
fn established_urgent_data_passes() {
    let mut t = Scenario::established();
    t.client(
        0,
        "P.U 1:101(100) ack 1 win 512 urg 100 <dss ack 1 map 1:101@1>",
    )
    .gives(&["server P.U 1:101(100) ack 1 win 512 urg 100"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn established_keepalive_of_the_clients_asks_the_server() {
    let mut t = Scenario::established();
    t.client(0, "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1>")
        .gives(&["server P. 1:101(100) ack 1 win 512"]);
    t.server(". 1:1(0) ack 101")
        .gives(&["client0 . 1:1(0) ack 101 win 64 <dss ack 101>"]);
    t.client(0, ". 100:100(0) ack 1 <dss ack 1>")
        .gives(&["server . 100:100(0) ack 1 win 512"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn established_ack_that_data_has_overtaken_asks_nobody() {
    let mut t = Scenario::established();
    t.client(0, "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1>")
        .gives(&["server P. 1:101(100) ack 1 win 512"]);
    t.server(". 1:1(0) ack 101")
        .gives(&["client0 . 1:1(0) ack 101 win 64 <dss ack 101>"]);
    // Sent before the data: no keepalive, and no duplicate that the server should count.
    t.client(0, ". 1:1(0) ack 1 <dss ack 1>")
        .gives(&["drop stale_ack"]);
    assert_eq!(t.moved(), "stale_ack+1");
}

#[test]
fn two_subflows_keepalive_on_the_joined_one_is_answered_by_flexcp() {
    let mut t = Scenario::two_subflows();
    t.client(1, ". 0:0(0) ack 1 <dss ack 1>")
        .gives(&["client1 . 1:1(0) ack 1 win 509 <dss ack 1>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn two_subflows_counts_bytes_up_on_each() {
    let mut t = Scenario::two_subflows();
    t.client(0, "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1>")
        .gives(&["server P. 1:101(100) ack 1 win 512"]);
    t.client(1, "P. 1:51(50) ack 1 <dss ack 1 map 101:151@1>")
        .gives(&["server P. 101:151(50) ack 1 win 512"]);
    let view = t.view().expect("a connection");
    assert_eq!(
        [view.subflows[0].bytes_up, view.subflows[1].bytes_up],
        [100, 50]
    );
    assert_eq!(t.moved(), "");
}

#[test]
fn established_with_many_mappings_resets_the_subflow_at_the_limit() {
    let mut t = Setup::new()
        .limits(|limits| limits.mappings = 4)
        .two_subflows();
    // Each leaves a gap, so that no two can be one.
    for n in 0..4 {
        let (ssn, end) = (1 + n * 20, 11 + n * 20);
        t.client(
            1,
            &format!(". {ssn}:{end}(10) ack 1 <dss ack 1 map {ssn}:{end}@{ssn}>"),
        )
        .gives(&[&format!("server . {ssn}:{end}(10) ack 1 win 512")]);
    }
    t.client(1, ". 81:91(10) ack 1 <dss ack 1 map 81:91@81>")
        .gives(&[
            "drop limit_reached",
            "client1 R. 1:1(0) ack 1 win 509 <rst reason 4 transient>",
        ]);
    assert_eq!(t.moved(), "mp_rst_tx+1 limit_reached+1");
    assert_eq!(t.why(), "rst.mappings+1");
}

#[test]
fn two_subflows_urgent_data_that_is_split_keeps_its_pointer_on_the_first_piece() {
    let mut t = Scenario::two_subflows();
    t.client(1, ". 1:101(100) ack 1 <dss ack 1 map 1:101@1>")
        .gives(&["server . 1:101(100) ack 1 win 512"]);
    t.client(1, ". 101:201(100) ack 1 <dss ack 1 map 501:601@101>")
        .gives(&["server . 501:601(100) ack 1 win 512"]);
    t.client(1, "P.UW 51:151(100) ack 1 win 512 urg 20 <dss ack 1>")
        .gives(&[
            "server P.UW 51:101(50) ack 1 win 512 urg 20",
            "server P. 501:551(50) ack 1 win 512",
        ]);
    assert_eq!(t.moved(), "");
}

#[test]
fn established_ack_with_an_urgent_pointer_loses_it() {
    let mut t = Scenario::established();
    t.client(0, ". 1:1(0) ack 1 win 600 urg 9 <dss ack 1>")
        .gives(&["server . 1:1(0) ack 1 win 600"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn two_subflows_acknowledged_data_without_a_mapping_goes_up_where_it_belongs() {
    let mut t = Scenario::two_subflows();
    t.client(1, "P. 1:101(100) ack 1 <dss ack 1 map 501:601@1>")
        .gives(&["server P. 501:601(100) ack 1 win 512"]);
    t.server(". 1:1(0) ack 1 win 64 <sack 501:601>")
        .gives(&["client1 . 1:1(0) ack 101 win 64 <dss ack 1>"]);
    t.client(1, "P. 1:101(100) ack 1")
        .gives(&["server P. 501:601(100) ack 1 win 512"]);
    t.client(1, "P. 41:81(40) ack 1")
        .gives(&["server P. 541:581(40) ack 1 win 512"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn two_subflows_mapping_ahead_of_what_was_sent_is_not_acknowledged_beyond_it() {
    // The rest of the mapping reaches the server on the other subflow first.
    let mut t = Scenario::two_subflows();
    t.client(1, ". 1:51(50) ack 1 <dss ack 1 map 1:101@1>")
        .gives(&["server . 1:51(50) ack 1 win 512"]);
    t.client(0, ". 1:51(50) ack 1 <dss ack 1 map 51:101@1>")
        .gives(&["server . 51:101(50) ack 1 win 512"]);
    t.server(". 1:1(0) ack 101").gives(&[
        "client0 . 1:1(0) ack 51 win 64 <dss ack 101>",
        "client1 . 1:1(0) ack 51 win 64 <dss ack 101>",
    ]);
    t.client(1, ". 51:101(50) ack 1 <dss ack 1 map 1:101@1>")
        .gives(&["server . 51:101(50) ack 1 win 512"]);
    t.server(". 1:1(0) ack 101")
        .gives(&["client1 . 1:1(0) ack 101 win 64 <dss ack 101>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn established_data_for_a_server_with_a_tiny_mss_is_not_cut_to_dust() {
    let mut t = Setup::new().start();
    let _ = t.client(0, "S 0:0(0) win 65535 <mss 1460,capable>");
    let _ = t.server("S. 0:0(0) ack 1 win 65160 <mss 8>");
    let _ = t.client(0, ". 1:1(0) ack 1 win 512 <capable>");
    t.client(0, "P. 1:1001(1000) ack 1 <dss ack 1 map 1:1001@1>")
        .gives(&["server P. 1:1001(1000) ack 1 win 512 gso 48"]);
    let _ = t.moved();
}

#[test]
fn established_ack_that_moved_on_the_subflow_alone_is_no_duplicate() {
    // The client has taken the data on the subflow and not yet on the connection.
    let mut t = Scenario::established();
    let _ = t.server("P. 1:101(100) ack 1");
    t.client(0, ". 1:1(0) ack 51 <dss ack 1>")
        .gives(&["drop stale_ack"]);
    t.client(0, ". 1:1(0) ack 51 <dss ack 1>")
        .gives(&["server . 1:1(0) ack 1 win 512"]);
    assert_eq!(t.moved(), "stale_ack+1");
}

#[test]
fn keepalive_of_the_only_subflow_left_reaches_the_server() {
    let mut t = Scenario::two_subflows();
    let _ = t.client(1, "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1>");
    let _ = t.server(". 1:1(0) ack 101");
    t.client(0, "R 1:1(0) win 0").gives(&[]);
    t.client(1, ". 100:100(0) ack 1 <dss ack 1>")
        .gives(&["server . 100:100(0) ack 1 win 512"]);
    let _ = t.moved();
}

#[test]
fn established_data_whose_mapping_got_lost_comes_again() {
    // RFC 8684 section 3.3.1: a mapping need not stand in each of its packets.
    let mut t = Scenario::established();
    t.client(0, "P. 201:301(100) ack 1 <dss ack 1 map 201:301@201>")
        .gives(&["server P. 201:301(100) ack 1 win 512"]);
    t.client(0, "P. 101:201(100) ack 1 <dss ack 1>")
        .gives(&["drop no_mapping"]);
    assert_eq!(t.state(), "translating");
    t.client(0, "P. 1:101(100) ack 1 <dss ack 1 map 1:201@1>")
        .gives(&["server P. 1:101(100) ack 1 win 512"]);
    t.client(0, "P. 101:201(100) ack 1 <dss ack 1>")
        .gives(&["server P. 101:201(100) ack 1 win 512"]);
    assert_eq!(t.moved(), "no_mapping+1");
}

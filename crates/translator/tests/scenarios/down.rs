//! Data from the server to the client: one subflow at a time, a mapping for each packet, and the same
//! mapping again for what is sent again (RFC 8684 section 3.3.1).

use crate::support::{Scenario, Setup};

fn first(t: &mut Scenario) {
    t.server("P. 1:101(100) ack 1")
        .gives(&["client0 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>"]);
}

/// Two packets of 100 bytes.
fn second(t: &mut Scenario) {
    first(t);
    t.server("P. 101:201(100) ack 1")
        .gives(&["client0 P. 101:201(100) ack 1 win 64 <dss ack 1 map 101:201@101>"]);
}

#[test]
fn established_data_goes_down_with_its_mapping() {
    let mut t = Scenario::established();
    second(&mut t);
    assert_eq!(t.moved(), "");
}

#[test]
fn established_v6_data_goes_down_with_its_mapping() {
    let mut t = Scenario::established_v6();
    second(&mut t);
    assert_eq!(t.moved(), "");
}

#[test]
fn established_with_timestamps_data_fills_the_options() {
    let mut t = Setup::new().ts().established();
    t.server("P. 1:101(100) ack 1 win 64 <ts 5001 1000>")
        .gives(&["client0 P. 1:101(100) ack 1 win 64 <ts 5001 1000,dss ack 1 map 1:101@1>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn established_retransmission_has_the_mapping_of_the_first_time() {
    let mut t = Scenario::established();
    second(&mut t);
    t.server("P. 1:101(100) ack 1")
        .gives(&["client0 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>"]);
    t.server("P. 101:201(100) ack 1")
        .gives(&["client0 P. 101:201(100) ack 1 win 64 <dss ack 1 map 101:201@101>"]);
    assert_eq!(t.moved(), "retransmitted_down_bytes+200");
}

#[test]
fn established_retransmission_of_a_part_has_the_whole_mapping() {
    let mut t = Scenario::established();
    first(&mut t);
    t.server("P. 21:61(40) ack 1")
        .gives(&["client0 P. 21:61(40) ack 1 win 64 <dss ack 1 map 1:101@1>"]);
    assert_eq!(t.moved(), "retransmitted_down_bytes+40");
}

#[test]
fn established_retransmission_over_two_mappings_is_split() {
    let mut t = Scenario::established();
    second(&mut t);
    t.server("P. 1:201(200) ack 1").gives(&[
        "client0 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>",
        "client0 P. 101:201(100) ack 1 win 64 <dss ack 1 map 101:201@101>",
    ]);
    assert_eq!(t.moved(), "retransmitted_down_bytes+200");
}

#[test]
fn established_retransmission_over_parts_of_two_mappings_is_split() {
    let mut t = Scenario::established();
    second(&mut t);
    t.server("P. 51:151(100) ack 1").gives(&[
        "client0 P. 51:101(50) ack 1 win 64 <dss ack 1 map 1:101@1>",
        "client0 P. 101:151(50) ack 1 win 64 <dss ack 1 map 101:201@101>",
    ]);
    assert_eq!(t.moved(), "retransmitted_down_bytes+100");
}

#[test]
fn established_retransmission_with_new_data_behind_is_split() {
    let mut t = Scenario::established();
    first(&mut t);
    t.server("P. 1:201(200) ack 1").gives(&[
        "client0 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>",
        "client0 P. 101:201(100) ack 1 win 64 <dss ack 1 map 101:201@101>",
    ]);
    t.server("P. 101:201(100) ack 1")
        .gives(&["client0 P. 101:201(100) ack 1 win 64 <dss ack 1 map 101:201@101>"]);
    assert_eq!(t.moved(), "retransmitted_down_bytes+200");
}

#[test]
fn established_retransmission_over_mappings_of_many_lengths_is_split_at_each() {
    let mut t = Scenario::established();
    let mut at = 1;
    for len in [100, 100, 70, 30, 100, 1] {
        let end = at + len;
        t.server(&format!(". {at}:{end}({len}) ack 1"))
            .gives(&[&format!(
                "client0 . {at}:{end}({len}) ack 1 win 64 <dss ack 1 map {at}:{end}@{at}>"
            )]);
        at = end;
    }
    t.server(". 1:402(401) ack 1").gives(&[
        "client0 . 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>",
        "client0 . 101:201(100) ack 1 win 64 <dss ack 1 map 101:201@101>",
        "client0 . 201:271(70) ack 1 win 64 <dss ack 1 map 201:271@201>",
        "client0 . 271:301(30) ack 1 win 64 <dss ack 1 map 271:301@271>",
        "client0 . 301:401(100) ack 1 win 64 <dss ack 1 map 301:401@301>",
        "client0 . 401:402(1) ack 1 win 64 <dss ack 1 map 401:402@401>",
    ]);
    assert_eq!(t.moved(), "retransmitted_down_bytes+401");
}

#[test]
fn established_retransmission_after_a_partial_data_ack_keeps_the_mapping() {
    let mut t = Scenario::established();
    second(&mut t);
    t.client(0, ". 1:1(0) ack 51 <dss ack 51>")
        .gives(&["server . 1:1(0) ack 51 win 512"]);
    t.server("P. 51:101(50) ack 1")
        .gives(&["client0 P. 51:101(50) ack 1 win 64 <dss ack 1 map 1:101@1>"]);
    assert_eq!(t.moved(), "retransmitted_down_bytes+50");
}

#[test]
fn established_retransmission_of_acknowledged_data_is_answered_by_flexcp() {
    let mut t = Scenario::established();
    first(&mut t);
    t.client(0, ". 1:1(0) ack 101 <dss ack 101>")
        .gives(&["server . 1:1(0) ack 101 win 512"]);
    // It also hears that it came twice (RFC 2883).
    t.server("P. 1:101(100) ack 1")
        .gives(&["server . 1:1(0) ack 101 win 512 <sack 1:101>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn established_retransmission_of_partly_acknowledged_data_goes_without_the_known_part() {
    let mut t = Scenario::established();
    second(&mut t);
    t.client(0, ". 1:1(0) ack 101 <dss ack 101>")
        .gives(&["server . 1:1(0) ack 101 win 512"]);
    t.server("P. 1:201(200) ack 1")
        .gives(&["client0 P. 101:201(100) ack 1 win 64 <dss ack 1 map 101:201@101>"]);
    assert_eq!(t.moved(), "retransmitted_down_bytes+100");
}

#[test]
fn established_new_data_out_of_order_keeps_the_numbers_of_what_it_overtook() {
    let mut t = Scenario::established();
    t.server("P. 101:201(100) ack 1")
        .gives(&["client0 P. 101:201(100) ack 1 win 64 <dss ack 1 map 101:201@101>"]);
    t.server("P. 1:101(100) ack 1")
        .gives(&["client0 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>"]);
    t.server("P. 201:301(100) ack 1")
        .gives(&["client0 P. 201:301(100) ack 1 win 64 <dss ack 1 map 201:301@201>"]);
    t.client(0, ". 1:1(0) ack 301 <dss ack 301>")
        .gives(&["server . 1:1(0) ack 301 win 512"]);
    let _ = t.moved();
}

#[test]
fn established_new_data_overtaken_is_not_retransmitted() {
    let mut t = Scenario::established();
    t.server("P. 101:201(100) ack 1")
        .gives(&["client0 P. 101:201(100) ack 1 win 64 <dss ack 1 map 101:201@101>"]);
    t.server("P. 1:101(100) ack 1")
        .gives(&["client0 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>"]);
    assert_eq!(t.moved(), "");
    assert_eq!(
        t.view().expect("a connection").subflows[0].retransmitted_down,
        0
    );
}

#[test]
fn established_hole_filled_in_pieces_declares_each_piece() {
    let mut t = Scenario::established();
    t.server("P. 301:401(100) ack 1")
        .gives(&["client0 P. 301:401(100) ack 1 win 64 <dss ack 1 map 301:401@301>"]);
    t.server(". 101:201(100) ack 1")
        .gives(&["client0 . 101:201(100) ack 1 win 64 <dss ack 1 map 101:201@101>"]);
    t.server(". 1:101(100) ack 1")
        .gives(&["client0 . 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>"]);
    t.server(". 201:301(100) ack 1")
        .gives(&["client0 . 201:301(100) ack 1 win 64 <dss ack 1 map 201:301@201>"]);
    t.server("P. 1:401(400) ack 1").gives(&[
        "client0 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>",
        "client0 P. 101:201(100) ack 1 win 64 <dss ack 1 map 101:201@101>",
        "client0 P. 201:301(100) ack 1 win 64 <dss ack 1 map 201:301@201>",
        "client0 P. 301:401(100) ack 1 win 64 <dss ack 1 map 301:401@301>",
    ]);
    let _ = t.moved();
}

#[test]
fn established_hole_filled_beyond_its_end_is_split() {
    let mut t = Scenario::established();
    t.server("P. 101:201(100) ack 1")
        .gives(&["client0 P. 101:201(100) ack 1 win 64 <dss ack 1 map 101:201@101>"]);
    t.server(". 51:151(100) ack 1").gives(&[
        "client0 . 51:101(50) ack 1 win 64 <dss ack 1 map 51:101@51>",
        "client0 . 101:151(50) ack 1 win 64 <dss ack 1 map 101:201@101>",
    ]);
    let _ = t.moved();
}

#[test]
fn established_data_acked_on_the_subflow_alone_gets_fresh_numbers_when_sent_again() {
    let mut t = Scenario::established();
    first(&mut t);
    t.client(0, ". 1:1(0) ack 101 <dss ack 1>")
        .gives(&["drop stale_ack"]);
    t.server("P. 1:101(100) ack 1")
        .gives(&["client0 P. 101:201(100) ack 1 win 64 <dss ack 1 map 1:101@101>"]);
    t.server("P. 101:201(100) ack 1")
        .gives(&["client0 P. 201:301(100) ack 1 win 64 <dss ack 1 map 101:201@201>"]);
    t.client(0, ". 1:1(0) ack 301 <dss ack 201>")
        .gives(&["server . 1:1(0) ack 201 win 512"]);
    assert_eq!(t.moved(), "retransmitted_down_bytes+100 stale_ack+1");
}

#[test]
fn established_fresh_numbers_are_kept_when_sent_once_more() {
    let mut t = Scenario::established();
    first(&mut t);
    t.client(0, ". 1:1(0) ack 101 <dss ack 1>")
        .gives(&["drop stale_ack"]);
    for _ in 0..3 {
        t.server("P. 1:101(100) ack 1")
            .gives(&["client0 P. 101:201(100) ack 1 win 64 <dss ack 1 map 1:101@101>"]);
    }
    assert_eq!(t.moved(), "retransmitted_down_bytes+300 stale_ack+1");
}

#[test]
fn established_data_half_acked_on_the_subflow_is_split_between_old_and_fresh_numbers() {
    let mut t = Scenario::established();
    second(&mut t);
    t.client(0, ". 1:1(0) ack 101 <dss ack 1>")
        .gives(&["drop stale_ack"]);
    t.server("P. 1:201(200) ack 1").gives(&[
        "client0 P. 201:301(100) ack 1 win 64 <dss ack 1 map 1:101@201>",
        "client0 P. 101:201(100) ack 1 win 64 <dss ack 1 map 101:201@101>",
    ]);
    assert_eq!(t.moved(), "retransmitted_down_bytes+200 stale_ack+1");
}

#[test]
fn established_data_far_ahead_is_dropped() {
    let mut t = Scenario::established();
    t.server("P. 1500000001:1500000101(100) ack 1")
        .gives(&["drop out_of_window"]);
    t.server("P. -1500000100:-1500000000(100) ack 1")
        .gives(&["drop out_of_window"]);
    assert_eq!(t.moved(), "out_of_window+2");
}

#[test]
fn established_segment_without_ack_flag_is_dropped() {
    let mut t = Scenario::established();
    t.server("P 1:101(100)").gives(&["drop unexpected"]);
    assert_eq!(t.moved(), "unexpected+1");
}

#[test]
fn established_ack_of_unsent_is_dropped() {
    let mut t = Scenario::established();
    t.server("P. 1:101(100) ack 2")
        .gives(&["drop ack_of_unsent"]);
    assert_eq!(t.moved(), "ack_of_unsent+1");
}

#[test]
fn established_push_and_urgent_pass() {
    let mut t = Scenario::established();
    t.server("P.U 1:101(100) ack 1 win 64 urg 50")
        .gives(&["client0 P.U 1:101(100) ack 1 win 64 urg 50 <dss ack 1 map 1:101@1>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn established_split_urgent_data_keeps_the_pointer_on_its_first_piece() {
    let mut t = Scenario::established();
    second(&mut t);
    t.server("P.U 1:201(200) ack 1 win 64 urg 50").gives(&[
        "client0 P.U 1:101(100) ack 1 win 64 urg 50 <dss ack 1 map 1:101@1>",
        "client0 P. 101:201(100) ack 1 win 64 <dss ack 1 map 101:201@101>",
    ]);
    assert_eq!(t.moved(), "retransmitted_down_bytes+200");
}

#[test]
fn established_keepalive_of_the_servers_asks_the_client() {
    let mut t = Scenario::established();
    first(&mut t);
    t.client(0, ". 1:1(0) ack 101 <dss ack 101>")
        .gives(&["server . 1:1(0) ack 101 win 512"]);
    t.server(". 100:100(0) ack 1")
        .gives(&["client0 . 100:100(0) ack 1 win 64 <dss ack 1>"]);
    t.client(0, ". 1:1(0) ack 101 <dss ack 101>")
        .gives(&["server . 1:1(0) ack 101 win 512"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn established_ack_of_the_servers_that_data_has_overtaken_asks_nobody() {
    let mut t = Scenario::established();
    first(&mut t);
    t.client(0, ". 1:1(0) ack 101 <dss ack 101>")
        .gives(&["server . 1:1(0) ack 101 win 512"]);
    t.server(". 1:1(0) ack 1").gives(&["drop stale_ack"]);
    assert_eq!(t.moved(), "stale_ack+1");
}

#[test]
fn established_ack_of_the_servers_that_data_has_overtaken_still_acknowledges() {
    let mut t = Scenario::established();
    first(&mut t);
    t.client(0, "P. 1:51(50) ack 101 <dss ack 101 map 1:51@1>")
        .gives(&["server P. 1:51(50) ack 101 win 512"]);
    t.server(". 1:1(0) ack 51")
        .gives(&["client0 . 101:101(0) ack 51 win 64 <dss ack 51>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn established_keepalive_with_a_byte_is_answered() {
    let mut t = Scenario::established();
    first(&mut t);
    t.client(0, ". 1:1(0) ack 101 <dss ack 101>")
        .gives(&["server . 1:1(0) ack 101 win 512"]);
    t.server(". 100:101(1) ack 1")
        .gives(&["server . 1:1(0) ack 101 win 512 <sack 100:101>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn two_subflows_data_stays_on_the_active_one() {
    let mut t = Scenario::two_subflows();
    first(&mut t);
    t.client(1, ". 1:1(0) ack 1 win 600 <dss ack 101>")
        .gives(&["server . 1:1(0) ack 101 win 600"]);
    t.server("P. 101:201(100) ack 1")
        .gives(&["client0 P. 101:201(100) ack 1 win 64 <dss ack 1 map 101:201@101>"]);
    assert_eq!(t.moved(), "");
    assert_eq!(t.subflows(), ["0 active", "1"]);
}

#[test]
fn established_counts_bytes_down() {
    let mut t = Scenario::established();
    second(&mut t);
    t.server("P. 1:101(100) ack 1")
        .gives(&["client0 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>"]);
    let view = t.view().expect("a connection");
    assert_eq!(
        (
            view.subflows[0].bytes_down,
            view.subflows[0].retransmitted_down
        ),
        (300, 100)
    );
    assert_eq!(t.moved(), "retransmitted_down_bytes+100");
}

#[test]
fn established_data_ack_samples_the_rtt() {
    let mut t = Scenario::established();
    first(&mut t);
    t.at(30);
    t.client(0, ". 1:1(0) ack 101 <dss ack 101>")
        .gives(&["server . 1:1(0) ack 101 win 512"]);
    assert_eq!(
        t.view().expect("a connection").subflows[0].quality.rtt,
        Some(crate::support::millis(30))
    );
    assert_eq!(t.moved(), "");
}

#[test]
fn established_data_sent_twice_gives_no_rtt_sample() {
    let mut t = Scenario::established();
    first(&mut t);
    t.at(20);
    t.server("P. 1:101(100) ack 1")
        .gives(&["client0 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>"]);
    t.at(30);
    t.client(0, ". 1:1(0) ack 101 <dss ack 101>")
        .gives(&["server . 1:1(0) ack 101 win 512"]);
    assert_eq!(
        t.view().expect("a connection").subflows[0].quality.rtt,
        None
    );
    assert_eq!(t.moved(), "retransmitted_down_bytes+100");
}

#[test]
fn established_window_of_the_servers_passes() {
    let mut t = Scenario::established();
    t.server(". 1:1(0) ack 1 win 0")
        .gives(&["client0 . 1:1(0) ack 1 win 0 <dss ack 1>"]);
    t.server(". 1:1(0) ack 1 win 77")
        .gives(&["client0 . 1:1(0) ack 1 win 77 <dss ack 1>"]);
    assert_eq!(t.moved(), "");
}

//! Data that the server has sent and that never came, or found no subflow: it keeps its place before what has overtaken it,
//! unless the client misses earlier data, which nothing could deliver behind that.

use crate::support::Scenario;

const SYN: &str = "S 0:0(0) win 65535 <mss 1460,sackok,ws 8,join>";

/// 1:201 got lost with flow 0, 201:401 found no subflow. Flow 1 has joined, and brought 1:101; then the server has sent
/// 401:501.
fn rejoined() -> Scenario {
    let mut t = Scenario::established();
    let _ = t.server("P. 1:101(100) ack 1");
    let _ = t.server("P. 101:201(100) ack 1");
    t.client(0, "R 1:1(0) win 0").gives(&[]);
    t.server("P. 201:301(100) ack 1")
        .gives(&["drop no_subflow"]);
    t.server("P. 301:401(100) ack 1")
        .gives(&["drop no_subflow"]);
    let _ = t.client(1, SYN);
    let _ = t.client(1, ". 1:1(0) ack 1 win 512 <join>");
    t.server("P. 1:101(100) ack 1")
        .gives(&["client1 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>"]);
    t.client(1, ". 1:1(0) ack 101 <dss ack 101>")
        .gives(&["server . 1:1(0) ack 101 win 512"]);
    t.server("P. 401:501(100) ack 1")
        .gives(&["client1 P. 301:401(100) ack 1 win 64 <dss ack 1 map 401:501@301>"]);
    let _ = t.moved();
    t
}

#[test]
fn orphaned_data_that_was_skipped_gives_its_place_to_what_got_lost_before() {
    let mut t = rejoined();
    t.client(1, ". 1:1(0) ack 101 <dss ack 101,sack 301:401>")
        .gives(&["server . 1:1(0) ack 101 win 512 <sack 401:501>"]);
    // The server repeats one packet after the other, and each has to arrive before the next.
    t.server("P. 101:201(100) ack 1")
        .gives(&["client1 P. 101:201(100) ack 1 win 64 <dss ack 1 map 101:201@101>"]);
    t.client(1, ". 1:1(0) ack 201 <dss ack 201,sack 301:401>")
        .gives(&["server . 1:1(0) ack 201 win 512 <sack 401:501>"]);
    t.server("P. 201:301(100) ack 1")
        .gives(&["client1 P. 201:301(100) ack 1 win 64 <dss ack 1 map 201:301@201>"]);
    t.client(1, ". 1:1(0) ack 401 <dss ack 301>")
        .gives(&["server . 1:1(0) ack 301 win 512 <sack 401:501>"]);
    t.server("P. 301:401(100) ack 1")
        .gives(&["client1 P. 401:501(100) ack 1 win 64 <dss ack 1 map 301:401@401>"]);
    t.client(1, ". 1:1(0) ack 501 <dss ack 501>")
        .gives(&["server . 1:1(0) ack 501 win 512"]);
    assert_eq!(t.moved(), "retransmitted_down_bytes+200");
}

#[test]
fn orphaned_data_that_comes_late_finds_what_is_left_of_its_place() {
    let mut t = rejoined();
    t.server("P. 151:201(50) ack 1")
        .gives(&["client1 P. 101:151(50) ack 1 win 64 <dss ack 1 map 151:201@101>"]);
    t.server("P. 201:401(200) ack 1").gives(&[
        "client1 P. 151:301(150) ack 1 win 64 <dss ack 1 map 201:351@151>",
        "client1 P. 401:451(50) ack 1 win 64 <dss ack 1 map 351:401@401>",
    ]);
    assert_eq!(t.moved(), "retransmitted_down_bytes+100");
}

#[test]
fn orphaned_data_that_got_lost_takes_no_more_than_was_skipped() {
    let mut t = Scenario::established();
    let _ = t.server("P. 1:401(400) ack 1");
    t.client(0, "R 1:1(0) win 0").gives(&[]);
    t.server("P. 401:501(100) ack 1")
        .gives(&["drop no_subflow"]);
    let _ = t.client(1, SYN);
    let _ = t.client(1, ". 1:1(0) ack 1 win 512 <join>");
    t.server("P. 501:601(100) ack 1")
        .gives(&["client1 P. 101:201(100) ack 1 win 64 <dss ack 1 map 501:601@101>"]);
    t.server("P. 1:401(400) ack 1").gives(&[
        "client1 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>",
        "client1 P. 201:501(300) ack 1 win 64 <dss ack 1 map 101:401@201>",
    ]);
    t.server("P. 401:501(100) ack 1")
        .gives(&["client1 P. 501:601(100) ack 1 win 64 <dss ack 1 map 401:501@501>"]);
    let _ = t.moved();
}

#[test]
fn two_subflows_the_active_one_takes_what_got_lost_before_skipped_data() {
    let mut t = rejoined();
    let _ = t.client(2, SYN);
    let _ = t.client(2, ". 1:1(0) ack 1 win 512 <join>");
    t.server("P. 101:201(100) ack 1")
        .gives(&["client1 P. 101:201(100) ack 1 win 64 <dss ack 1 map 101:201@101>"]);
    let _ = t.moved();
}

#[test]
fn two_subflows_data_that_was_skipped_gives_its_place_to_what_a_silent_one_holds() {
    let mut t = Scenario::two_subflows();
    let _ = t.server("P. 1:101(100) ack 1");
    let _ = t.server("P. 101:201(100) ack 1");
    t.at(200);
    t.server("P. 1:101(100) ack 1")
        .gives(&["client1 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>"]);
    t.server("P. 401:501(100) ack 1")
        .gives(&["client1 P. 301:401(100) ack 1 win 64 <dss ack 1 map 401:501@301>"]);
    t.client(1, ". 1:1(0) ack 101 <dss ack 101,sack 301:401>")
        .gives(&["server . 1:1(0) ack 101 win 512 <sack 401:501>"]);
    t.server("P. 101:201(100) ack 1")
        .gives(&["client1 P. 101:201(100) ack 1 win 64 <dss ack 1 map 101:201@101>"]);
    let _ = t.moved();
}

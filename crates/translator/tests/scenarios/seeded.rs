//! What a seeded bug (`make seeded-bugs`) got past every other scenario with.

use crate::support::{Scenario, Setup};

/// The client's initial data number lies less than 700 before a wrap of the low 32 bits.
const CLIENT_LOW: u64 = 0x0503_34cf_0074_9a39;

#[test]
fn wrapped_data_numbers_ack_of_the_server_from_before_the_wrap_is_taken() {
    let mut t = Setup::new().keys(CLIENT_LOW, 7).established();
    t.client(0, "P. 1:601(600) ack 1 <dss ack 1 map 1:601@1>")
        .gives(&["server P. 1:601(600) ack 1 win 512"]);
    t.client(0, "P. 601:1001(400) ack 1 <dss ack 1 map 601:1001@601>")
        .gives(&["server P. 601:1001(400) ack 1 win 512"]);
    t.server(". 1:1(0) ack 601")
        .gives(&["client0 . 1:1(0) ack 601 win 64 <dss ack 601>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn syn_sent_without_scaling_server_that_scales_all_the_same_is_not_believed() {
    let mut t = Setup::new().scales(None, None).syn_sent();
    let _ = t.server("S. 0:0(0) ack 1 win 65160 <mss 1460,sackok,ws 7>");
    let _ = t.client(0, ". 1:1(0) ack 1 win 512 <capable>");
    t.server(". 1:1(0) ack 1 win 50")
        .gives(&["client0 . 1:1(0) ack 1 win 50 <dss ack 1>"]);
    assert_eq!(t.moved(), "mp_capable_ack_rx+1");
}

#[test]
fn left_subflow_sack_right_at_the_data_ack_is_not_passed_on() {
    let mut t = Scenario::two_subflows();
    for line in [". 1:101(100) ack 1", ". 101:201(100) ack 1"] {
        assert!(t.server(line).lines()[0].starts_with("client0"));
    }
    t.at(1000);
    let again = t.server(". 1:101(100) ack 1");
    assert!(again.lines()[0].starts_with("client1"), "{again:?}");
    let _ = t.client(1, ". 1:1(0) ack 101 <dss ack 101>");
    // Flow 0 has the second packet, and the client waits for the first one on it.
    let late = t.client(0, ". 1:1(0) ack 1 <sack 101:201,dss ack 101>");
    let sacked = late.lines().iter().any(|line| line.contains("sack"));
    assert!(!sacked, "{late:?}");
    let _ = t.moved();
}

#[test]
fn three_subflows_data_that_a_good_one_holds_goes_again_there() {
    let mut t = Scenario::two_subflows();
    let _ = t.client(2, "S 0:0(0) win 65535 <mss 1460,sackok,ws 8,join>");
    let _ = t.client(2, ". 1:1(0) ack 1 <join>");
    assert!(t.server(". 1:101(100) ack 1").lines()[0].starts_with("client0"));
    t.at(1000);
    assert!(t.server(". 1:101(100) ack 1").lines()[0].starts_with("client1"));
    // Flow 0 has failed, flow 1 holds the data, and new data goes down on flow 2.
    let _ = t.client(1, ". 1:1(0) ack 1 <dss ack 1,prio b>");
    t.server(". 1:101(100) ack 1")
        .gives(&["client1 . 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>"]);
    let _ = t.moved();
}

#[test]
fn failed_subflow_that_acks_a_part_is_good_again() {
    let mut t = Scenario::two_subflows();
    for line in [". 1:101(100) ack 1", ". 101:201(100) ack 1"] {
        assert!(t.server(line).lines()[0].starts_with("client0"));
    }
    t.at(1000);
    let again = t.server(". 101:201(100) ack 1");
    assert!(again.lines()[0].starts_with("client1"), "{again:?}");
    let _ = t.client(0, ". 1:1(0) ack 101 <dss ack 101>");
    let _ = t.client(1, ". 1:1(0) ack 1 <dss ack 101,prio b>");
    let new = t.server(". 201:301(100) ack 1");
    let goes = |line: &String| line.starts_with("client0") && line.contains("map 201:301");
    assert!(new.lines().iter().any(goes), "{new:?}");
    let _ = t.moved();
}

//! Which ACKs nobody can take for a duplicate or wait for as an answer: those alone may be left out when a later
//! packet says the same (RFC 5681 section 2, RFC 9293 section 3.8.4).

use crate::support::{Scenario, Setup};

/// 200 bytes are on their way down.
fn outstanding() -> Scenario {
    let mut t = Scenario::two_subflows();
    for start in [1, 101] {
        let _ = t.server(&format!("P. {start}:{}(100) ack 1", start + 100));
    }
    t
}

#[test]
fn ack_that_moves_on_is_new_and_its_duplicate_is_not() {
    let mut t = outstanding();
    assert!(t.client(0, ". 1:1(0) ack 101 <dss ack 101>").new_ack);
    let again = t.client(0, ". 1:1(0) ack 101 <dss ack 101>");
    again.gives(&["server . 1:1(0) ack 101 win 512"]);
    assert!(!again.new_ack);
    assert_eq!(t.moved(), "");
}

#[test]
fn ack_with_a_duplicate_sack_is_not_new() {
    let mut t = outstanding();
    let outcome = t.client(0, ". 1:1(0) ack 1 <sack 101:201,dss ack 1>");
    outcome.gives(&["server . 1:1(0) ack 1 win 512 <sack 101:201>"]);
    assert!(!outcome.new_ack);
    assert_eq!(t.moved(), "");
}

#[test]
fn window_update_is_new_when_nothing_is_outstanding() {
    let mut t = outstanding();
    let update = t.client(0, ". 1:1(0) ack 1 win 600 <dss ack 1>");
    update.gives(&["server . 1:1(0) ack 1 win 600"]);
    assert!(!update.new_ack, "a server may take it for a duplicate");
    assert!(
        t.client(0, ". 1:1(0) ack 201 win 600 <dss ack 201>")
            .new_ack
    );
    let update = t.client(0, ". 1:1(0) ack 201 win 700 <dss ack 201>");
    update.gives(&["server . 1:1(0) ack 201 win 700"]);
    assert!(update.new_ack);
    assert_eq!(t.moved(), "");
}

#[test]
fn third_packet_of_the_handshake_is_new() {
    let setup = Setup::new();
    let mut t = setup.clone().syn_received();
    assert!(t.client(0, &setup.third()).new_ack);
    let _ = t.moved();
}

#[test]
fn question_and_answer_are_not_new() {
    let mut t = Scenario::established();
    let asks = t.client(0, ". 0:0(0) ack 1 <dss ack 1>");
    asks.gives(&["server . 0:0(0) ack 1 win 512"]);
    assert!(!asks.new_ack);
    let asks = t.server(". 0:0(0) ack 1");
    asks.gives(&["client0 . 0:0(0) ack 1 win 64 <dss ack 1>"]);
    assert!(!asks.new_ack);
    let answer = t.client(0, ". 1:1(0) ack 1 <dss ack 1>");
    answer.gives(&["server . 1:1(0) ack 1 win 512"]);
    assert!(!answer.new_ack);
    assert_eq!(t.moved(), "");
}

#[test]
fn servers_ack_is_new_where_it_moves_the_subflows() {
    let mut t = Scenario::two_subflows();
    let _ = t.client(0, "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1>");
    let _ = t.client(0, "P. 101:201(100) ack 1 <dss ack 1 map 101:201@101>");
    let acked = t.server(". 1:1(0) ack 101");
    acked.gives(&["client0 . 1:1(0) ack 101 win 64 <dss ack 101>"]);
    assert!(acked.new_ack);
    let again = t.server(". 1:1(0) ack 101");
    again.gives(&["client0 . 1:1(0) ack 101 win 64 <dss ack 101>"]);
    assert!(!again.new_ack);
    let asks = t.server(". 0:0(0) ack 201");
    assert!(!asks.new_ack, "{:?}", asks.lines());
    assert_eq!(t.moved(), "");
}

#[test]
fn packet_with_data_is_no_ack_alone() {
    let mut t = outstanding();
    let data = t.client(0, "P. 1:101(100) ack 101 <dss ack 101 map 1:101@1>");
    assert!(!data.new_ack);
    assert!(!t.server("P. 201:301(100) ack 101").new_ack);
    assert_eq!(t.moved(), "");
}

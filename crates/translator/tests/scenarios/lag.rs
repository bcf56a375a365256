//! A client that has ACKed all on the subflow, and not in its data ACK: FlexCP asks it for that.

use crate::support::{Scenario, Setup};

const ASKS: &str = "client0 . 200:200(0) ack 1 win 64 <dss ack 1>";

/// At 10 ms: 1:201 is ACKed on the subflow, and none of it by the data ACK.
fn behind() -> Scenario {
    let mut t = Setup::new().established();
    t.server(". 1:101(100) ack 1")
        .gives(&["client0 . 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>"]);
    t.server("P. 101:201(100) ack 1")
        .gives(&["client0 P. 101:201(100) ack 1 win 64 <dss ack 1 map 101:201@101>"]);
    t.at(10);
    t.client(0, ". 1:1(0) ack 201 <dss ack 1>")
        .gives(&["drop stale_ack"]);
    assert_eq!(t.moved(), "stale_ack+1");
    t
}

#[test]
fn data_ack_that_stays_behind_is_asked_for_after_a_millisecond() {
    let mut t = behind();
    assert_eq!(t.next_timeout(), Some(11));
    t.timeout().gives(&[]);
    t.at(11);
    t.timeout().gives(&[ASKS]);
    t.client(0, ". 1:1(0) ack 201 <dss ack 201>")
        .gives(&["server . 1:1(0) ack 201 win 512"]);
    assert_eq!(t.moved(), "data_ack_probe_tx+1");
}

#[test]
fn data_ack_that_stays_behind_is_asked_for_once() {
    let mut t = behind();
    t.at(11);
    t.timeout().gives(&[ASKS]);
    t.at(1000);
    t.client(0, ". 1:1(0) ack 201 win 600 <dss ack 1>")
        .gives(&["server . 1:1(0) ack 1 win 600"]);
    for at in [1001, 10_000] {
        t.at(at);
        t.timeout().gives(&[]);
    }
    assert_eq!(t.moved(), "data_ack_probe_tx+1");
}

/// The answer ACKs a part. The client is heard again at `at`, with no news of that.
fn behind_again(at: u64) -> Scenario {
    let mut t = behind();
    t.at(11);
    t.timeout().gives(&[ASKS]);
    t.client(0, ". 1:1(0) ack 201 <dss ack 101>")
        .gives(&["server . 1:1(0) ack 101 win 512"]);
    t.at(at);
    t.client(0, ". 1:1(0) ack 201 win 600 <dss ack 101>")
        .gives(&["server . 1:1(0) ack 101 win 600"]);
    t.at(at + 1);
    t
}

#[test]
fn data_ack_that_stays_behind_once_more_is_asked_for_once_more() {
    let mut t = behind_again(610);
    t.timeout().gives(&[ASKS]);
    assert_eq!(t.moved(), "data_ack_probe_tx+2");
}

#[test]
fn data_ack_that_stays_behind_once_more_is_not_asked_for_before_clients_answer() {
    let mut t = behind_again(609);
    t.timeout().gives(&[]);
    t.at(2000);
    t.timeout().gives(&[]);
    assert_eq!(t.moved(), "data_ack_probe_tx+1");
}

#[test]
fn data_ack_that_comes_is_not_asked_for() {
    let mut t = behind();
    t.client(0, ". 1:1(0) ack 201 <dss ack 201>")
        .gives(&["server . 1:1(0) ack 201 win 512"]);
    t.at(1000);
    t.timeout().gives(&[]);
    assert_eq!(t.moved(), "");
}

#[test]
fn data_ack_behind_more_data_is_not_asked_for() {
    let mut t = behind();
    t.server("P. 201:301(100) ack 1")
        .gives(&["client0 P. 201:301(100) ack 1 win 64 <dss ack 1 map 201:301@201>"]);
    t.at(1000);
    t.timeout().gives(&[]);
    assert_eq!(t.moved(), "");
}

#[test]
fn data_ack_is_not_asked_for_where_the_subflow_is_behind_as_well() {
    let mut t = Setup::new().established();
    let _ = t.server(". 1:101(100) ack 1");
    let _ = t.server("P. 101:201(100) ack 1");
    t.client(0, ". 1:1(0) ack 101 <dss ack 1>")
        .gives(&["drop stale_ack"]);
    t.at(1000);
    t.timeout().gives(&[]);
    assert_eq!(t.moved(), "stale_ack+1");
}

#[test]
fn data_ack_is_not_asked_for_where_another_subflow_owes_the_data() {
    let mut t = Scenario::two_subflows();
    let _ = t.server(". 1:101(100) ack 1");
    t.at(10);
    // The server's next data goes down on flow 1, and that has it all.
    let _ = t.client(0, ". 1:1(0) ack 1 <dss ack 1,prio b>");
    t.server("P. 101:201(100) ack 1")
        .gives(&["client1 P. 1:101(100) ack 1 win 64 <dss ack 1 map 101:201@1>"]);
    let _ = t.client(1, ". 1:1(0) ack 101 <dss ack 1>");
    let _ = t.moved();
    t.at(1000);
    t.timeout().gives(&[]);
    assert_eq!(t.moved(), "");
}

#[test]
fn data_ack_that_stays_behind_is_asked_for_where_the_data_is() {
    let mut t = Scenario::two_subflows();
    t.at(10);
    let _ = t.client(0, ". 1:1(0) ack 1 <dss ack 1,prio b>");
    t.server("P. 1:101(100) ack 1")
        .gives(&["client1 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>"]);
    let _ = t.client(1, ". 1:1(0) ack 101 <dss ack 1>");
    let _ = t.moved();
    t.at(11);
    t.timeout()
        .gives(&["client1 . 100:100(0) ack 1 win 64 <dss ack 1>"]);
    assert_eq!(t.moved(), "data_ack_probe_tx+1");
}

#[test]
fn data_ack_is_not_asked_for_while_the_client_is_heard() {
    let mut t = behind();
    t.at(11);
    let _ = t.client(0, ". 1:1(0) ack 201 win 600 <dss ack 1>");
    t.timeout().gives(&[]);
    t.at(12);
    t.timeout().gives(&[ASKS]);
    assert_eq!(t.moved(), "data_ack_probe_tx+1");
}

#[test]
fn data_ack_is_not_asked_for_on_a_subflow_that_has_ended() {
    let mut t = Scenario::two_subflows();
    t.at(10);
    let _ = t.server("P. 1:101(100) ack 1");
    let _ = t.client(0, ". 1:1(0) ack 101 <dss ack 1>");
    let _ = t.client(0, "R 1:1(0)");
    assert_eq!(t.subflows().len(), 1);
    let _ = t.moved();
    t.at(1000);
    t.timeout().gives(&[]);
    assert_eq!(t.moved(), "");
}

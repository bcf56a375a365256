//! A tail loss probe of the server's (RFC 8985 section 7) while the active subflow owes an answer: it goes
//! over another path.

use crate::support::{Scenario, Setup};

/// At 10 ms: the round trip on flow 0 is known to be 10 ms, and 3000 bytes are outstanding there, so that an
/// answer is overdue from 35 ms on.
fn owing() -> Scenario {
    let mut t = Scenario::two_subflows();
    t.server("P. 1:101(100) ack 1")
        .gives(&["client0 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>"]);
    t.at(10);
    t.client(0, ". 1:1(0) ack 101 <dss ack 101>")
        .gives(&["server . 1:1(0) ack 101 win 512"]);
    for start in [101, 1101, 2101] {
        let end = start + 1000;
        t.server(&format!(". {start}:{end}(1000) ack 1"))
            .gives(&[&format!(
                "client0 . {start}:{end}(1000) ack 1 win 64 <dss ack 1 map {start}:{end}@{start}>"
            )]);
    }
    t
}

/// A probe of new data that stays on flow 0.
fn stays(t: &mut Scenario) {
    t.server("P. 3101:3201(100) ack 1")
        .gives(&["client0 P. 3101:3201(100) ack 1 win 64 <dss ack 1 map 3101:3201@3101>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn two_subflows_new_data_goes_to_the_other_when_an_answer_is_overdue() {
    let mut t = owing();
    t.at(35);
    t.server("P. 3101:3201(100) ack 1")
        .gives(&["client1 P. 1:101(100) ack 1 win 64 <dss ack 1 map 3101:3201@1>"]);
    // The server learns from the SACK what is lost, and that goes the same way.
    t.client(1, ". 1:1(0) ack 101 <dss ack 101>")
        .gives(&["server . 1:1(0) ack 101 win 512 <sack 3101:3201>"]);
    t.server(". 101:1101(1000) ack 1")
        .gives(&["client1 . 101:1101(1000) ack 1 win 64 <dss ack 1 map 101:1101@101>"]);
    assert_eq!(t.moved(), "subflow_switch+1 retransmitted_down_bytes+1000");
}

#[test]
fn two_subflows_repeated_data_goes_to_the_other_when_an_answer_is_overdue() {
    let mut t = owing();
    t.at(35);
    t.server("P. 2101:3101(1000) ack 1")
        .gives(&["client1 P. 1:1001(1000) ack 1 win 64 <dss ack 1 map 2101:3101@1>"]);
    assert_eq!(t.moved(), "subflow_switch+1 retransmitted_down_bytes+1000");
}

#[test]
fn two_subflows_an_answer_is_not_overdue_before_two_round_trips() {
    let mut t = owing();
    t.at(34);
    stays(&mut t);
}

#[test]
fn two_subflows_an_answer_is_not_overdue_while_the_client_answers() {
    let mut t = owing();
    t.at(30);
    t.client(0, ". 1:1(0) ack 101 <sack 1101:2101,dss ack 101>")
        .gives(&["server . 1:1(0) ack 101 win 512 <sack 1101:2101>"]);
    t.at(54);
    stays(&mut t);
}

/// Flow 0 was suspected at 35 ms, and its client, which wants no data on flow 1, answers there at `then`; from 500 ms on
/// it owes an answer on flow 0 anew.
fn answered_late(then: u64) -> Scenario {
    let mut t = owing();
    t.at(35);
    t.server("P. 3101:3201(100) ack 1")
        .gives(&["client1 P. 1:101(100) ack 1 win 64 <dss ack 1 map 3101:3201@1>"]);
    let _ = t.client(1, ". 1:1(0) ack 101 <prio b,dss ack 101>");
    t.at(then);
    t.client(0, ". 1:1(0) ack 3101 <dss ack 3201>")
        .gives(&["server . 1:1(0) ack 3201 win 512"]);
    t.at(500);
    t.server(". 3201:6201(3000) ack 1 gso 1000")
        .gives(&["client0 . 3101:6101(3000) ack 1 win 64 <dss ack 1 map 3201:6201@3101> gso 1000"]);
    t
}

/// A probe at `at` goes over flow 1, and one a millisecond before that does not.
fn is_left_at(mut t: Scenario, at: u64) {
    t.at(at - 1);
    t.server("P. 6201:6301(100) ack 1")
        .gives(&["client0 P. 6101:6201(100) ack 1 win 64 <dss ack 1 map 6201:6301@6101>"]);
    t.at(at);
    t.server("P. 6301:6401(100) ack 1")
        .gives(&["client1 P. 101:201(100) ack 1 win 64 <dss ack 1 map 6301:6401@101>"]);
    assert_eq!(t.moved(), "mp_prio_rx+1 subflow_switch+3");
}

#[test]
fn two_subflows_path_that_was_suspected_in_vain_is_waited_for_longer() {
    // Two round trips, which are smoothed to 14.25 ms, and the 44 ms.
    is_left_at(answered_late(10 + 44), 500 + 73);
}

#[test]
fn two_subflows_path_that_was_dead_is_waited_for_no_longer() {
    // Two round trips of 40.75 ms, and 5 ms.
    is_left_at(answered_late(10 + 256), 500 + 87);
}

#[test]
fn two_subflows_no_answer_is_owed_for_less_than_two_segments() {
    let mut t = owing();
    t.client(0, ". 1:1(0) ack 1101 <dss ack 1101>")
        .gives(&["server . 1:1(0) ack 1101 win 512"]);
    t.at(90);
    stays(&mut t);
}

#[test]
fn two_subflows_new_data_stays_when_the_other_path_does_not_answer_either() {
    let mut t = owing();
    t.at(35);
    t.server("P. 3101:3201(100) ack 1")
        .gives(&["client1 P. 1:101(100) ack 1 win 64 <dss ack 1 map 3101:3201@1>"]);
    t.client(1, ". 1:1(0) ack 101 <dss ack 101>")
        .gives(&["server . 1:1(0) ack 101 win 512 <sack 3101:3201>"]);
    t.server(". 3201:6201(3000) ack 1")
        .gives(&["client1 . 101:3101(3000) ack 1 win 64 <dss ack 1 map 3201:6201@101> gso 1432"]);
    t.at(300);
    t.server("P. 6201:6301(100) ack 1")
        .gives(&["client1 P. 3101:3201(100) ack 1 win 64 <dss ack 1 map 6201:6301@3101>"]);
    assert_eq!(t.moved(), "subflow_switch+1");
}

#[test]
fn established_new_data_stays_when_there_is_no_other_path() {
    let mut t = Scenario::established();
    t.server(". 1:3001(3000) ack 1 gso 1000")
        .gives(&["client0 . 1:3001(3000) ack 1 win 64 <dss ack 1 map 1:3001@1> gso 1000"]);
    t.at(5000);
    t.server("P. 3001:3101(100) ack 1")
        .gives(&["client0 P. 3001:3101(100) ack 1 win 64 <dss ack 1 map 3001:3101@3001>"]);
    assert_eq!(t.moved(), "");
}

/// A probe went over flow 1, and what the server sent behind it over flow 0.
fn tried() -> Scenario {
    let mut t = owing();
    t.at(35);
    t.server("P. 3101:3201(100) ack 1")
        .gives(&["client1 P. 1:101(100) ack 1 win 64 <dss ack 1 map 3101:3201@1>"]);
    t.server("P. 3201:3301(100) ack 1")
        .gives(&["client0 P. 3101:3201(100) ack 1 win 64 <dss ack 1 map 3201:3301@3101>"]);
    assert_eq!(t.moved(), "subflow_switch+1");
    t
}

/// What the server repeats at 300 ms goes over both, and the probe with it.
fn repeated() -> Scenario {
    let mut t = tried();
    t.at(300);
    t.server(". 101:1101(1000) ack 1").gives(&[
        "client1 . 101:1101(1000) ack 1 win 64 <dss ack 1 map 101:1101@101>",
        "client0 . 101:1101(1000) ack 1 win 64 <dss ack 1 map 101:1101@101>",
        "client1 . 1:101(100) ack 1 win 64 <dss ack 1 map 3101:3201@1>",
    ]);
    assert_eq!(t.moved(), "retransmitted_down_bytes+2000 spare_tx+1");
    t
}

#[test]
fn two_subflows_both_dead_the_probed_one_works_again_first() {
    let mut t = repeated();
    t.client(1, ". 1:1(0) ack 1101 <dss ack 1101>")
        .gives(&["server . 1:1(0) ack 1101 win 512 <sack 3101:3201>"]);
    t.server(". 1101:2101(1000) ack 1")
        .gives(&["client1 . 1101:2101(1000) ack 1 win 64 <dss ack 1 map 1101:2101@1101>"]);
    let _ = t.moved();
}

#[test]
fn two_subflows_both_dead_the_one_that_was_left_works_again_first() {
    let mut t = repeated();
    t.client(0, ". 1:1(0) ack 1101 <dss ack 1101>")
        .gives(&["server . 1:1(0) ack 1101 win 512"]);
    t.server(". 1101:2101(1000) ack 1")
        .gives(&["client0 . 1101:2101(1000) ack 1 win 64 <dss ack 1 map 1101:2101@1101>"]);
    let _ = t.moved();
}

#[test]
fn two_subflows_probed_one_that_answers_gets_all_that_follows() {
    let mut t = tried();
    t.at(40);
    t.client(1, ". 1:1(0) ack 101 <dss ack 101>")
        .gives(&["server . 1:1(0) ack 101 win 512 <sack 3101:3201>"]);
    t.server(". 3301:6301(3000) ack 1 gso 1000")
        .gives(&["client1 . 101:3101(3000) ack 1 win 64 <dss ack 1 map 3301:6301@101> gso 1000"]);
    t.at(60);
    t.server(". 101:1101(1000) ack 1")
        .gives(&["client1 . 3101:4101(1000) ack 1 win 64 <dss ack 1 map 101:1101@3101>"]);
    let _ = t.moved();
}

#[test]
fn two_subflows_connection_with_a_packet_on_trial_is_not_installed() {
    let mut t = Setup::new().ts().two_subflows();
    let _ = t.server("P. 1:101(100) ack 1 win 64 <ts 5000 1000>");
    t.at(10);
    let _ = t.client(0, ". 1:1(0) ack 101 win 512 <ts 1010 5000,dss ack 101>");
    let _ = t.server(". 101:3101(3000) ack 1 win 64 <ts 5010 1010> gso 1000");
    t.at(35);
    t.server("P. 3101:3201(100) ack 1 win 64 <ts 5035 1010>")
        .gives(&["client1 P. 1:101(100) ack 1 win 64 <ts 5035 900000,dss ack 1 map 3101:3201@1>"]);
    let _ = t.client(0, ". 1:1(0) ack 3101 win 512 <ts 1036 5010,dss ack 3101>");
    assert_eq!(t.installed(), []);
    let _ = t.client(1, ". 1:1(0) ack 101 win 512 <ts 900036 5035,dss ack 3201>");
    assert_eq!(t.installed().len(), 1);
    let _ = t.moved();
}

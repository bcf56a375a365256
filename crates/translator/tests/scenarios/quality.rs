//! What is measured of a path: round trips, handshakes among them, and what it delivers. That the kernel's programs measure
//! alike, the twins say.

use std::time::Duration;

use flexcp_translator::PathQuality;

use crate::support::{Scenario, Setup, millis};

const SYN: &str = "S 0:0(0) win 65535 <mss 1460,sackok,ws 8,capable>";
const SYN_UP: &str = "server S 0:0(0) win 65535 <mss 1432,sackok,ws 8>";
const SYN_ACK: &str = "S. 0:0(0) ack 1 win 65160 <mss 1460,sackok,ws 7>";
const SYN_ACK_DOWN: &str = "client0 S. 0:0(0) ack 1 win 65160 <mss 1460,sackok,ws 7,capable>";
const THIRD: &str = ". 1:1(0) ack 1 win 512 <capable>";
const THIRD_UP: &str = "server . 1:1(0) ack 1 win 512";

const JOIN: &str = "S 0:0(0) win 65535 <mss 1460,sackok,ws 8,join>";
const JOIN_SYN_ACK: &str = "client1 S. 0:0(0) ack 1 win 65152 <mss 1460,sackok,ws 7,join id 0>";
const JOIN_THIRD: &str = ". 1:1(0) ack 1 win 512 <join>";
const JOIN_FOURTH: &str = "client1 . 1:1(0) ack 1 win 509 <dss ack 1>";

fn path(t: &Scenario, index: usize) -> PathQuality {
    t.view().expect("a connection").subflows[index].quality
}

/// Smoothed, variation, least.
fn round_trips(t: &Scenario, index: usize) -> [Option<Duration>; 3] {
    let path = path(t, index);
    [path.rtt, path.rtt_variation, path.rtt_least]
}

/// The client's SYN at 0, the server's answer at 40 ms, the client's at 70.
fn opened() -> Scenario {
    let mut t = Setup::new().start();
    t.client(0, SYN).gives(&[SYN_UP]);
    t.at(40);
    t.server(SYN_ACK).gives(&[SYN_ACK_DOWN]);
    t.at(70);
    t.client(0, THIRD).gives(&[THIRD_UP]);
    let _ = t.moved();
    t
}

/// The same, with data that goes down then and is ACKed at 180 ms.
fn sampled() -> Scenario {
    let mut t = opened();
    t.server("P. 1:101(100) ack 1")
        .gives(&["client0 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>"]);
    t.at(180);
    t.client(0, ". 1:1(0) ack 101 <dss ack 101>")
        .gives(&["server . 1:1(0) ack 101 win 512"]);
    t
}

#[test]
fn handshake_times_the_client_alone() {
    let t = opened();
    assert_eq!(
        round_trips(&t, 0),
        [Some(millis(30)), None, Some(millis(30))]
    );
}

#[test]
fn syn_ack_that_went_twice_times_nothing() {
    let mut t = Setup::new().start();
    t.client(0, SYN).gives(&[SYN_UP]);
    t.at(40);
    t.server(SYN_ACK).gives(&[SYN_ACK_DOWN]);
    t.at(60);
    t.server(SYN_ACK).gives(&[SYN_ACK_DOWN]);
    t.at(70);
    t.client(0, THIRD).gives(&[THIRD_UP]);
    assert_eq!(round_trips(&t, 0), [None; 3]);
    let _ = t.moved();
}

#[test]
fn join_times_its_path() {
    let mut t = opened();
    t.at(100);
    t.client(1, JOIN).gives(&[JOIN_SYN_ACK]);
    assert_eq!(round_trips(&t, 1), [None; 3]);
    t.at(180);
    t.client(1, JOIN_THIRD).gives(&[JOIN_FOURTH]);
    assert_eq!(
        round_trips(&t, 1),
        [Some(millis(80)), None, Some(millis(80))]
    );
    let _ = t.moved();
}

#[test]
fn join_that_is_asked_for_again_times_nothing() {
    let mut t = opened();
    t.at(100);
    t.client(1, JOIN).gives(&[JOIN_SYN_ACK]);
    t.at(1100);
    t.client(1, JOIN).gives(&[JOIN_SYN_ACK]);
    t.at(1180);
    t.client(1, JOIN_THIRD).gives(&[JOIN_FOURTH]);
    assert_eq!(round_trips(&t, 1), [None; 3]);
    let _ = t.moved();
}

#[test]
fn data_is_not_smoothed_with_the_handshake() {
    let mut t = sampled();
    let expected = [110, 55, 30].map(|time| Some(millis(time)));
    assert_eq!(round_trips(&t, 0), expected);
    let _ = t.moved();
}

/// The first packet of two is lost: what the second takes, until the first has come again, is no round trip.
#[test]
fn data_behind_a_hole_times_nothing() {
    let mut t = sampled();
    let known = round_trips(&t, 0);
    // Timed is the first of these, which comes; the second does not.
    for from in [101, 201, 301] {
        let _ = t.server(&format!("P. {from}:{}(100) ack 1", from + 100));
    }
    t.at(190);
    let _ = t.client(0, ". 1:1(0) ack 201 <dss ack 201>");
    let once = round_trips(&t, 0);
    assert_ne!(once, known);
    // Timed from here on: behind the hole.
    let _ = t.server("P. 401:501(100) ack 1");
    let _ = t.client(0, ". 1:1(0) ack 201 <dss ack 201,sack 301:401>");
    t.at(500);
    let _ = t.client(0, ". 1:1(0) ack 501 <dss ack 501>");
    assert_eq!(round_trips(&t, 0), once);
    // The next is timed again.
    let _ = t.server("P. 501:601(100) ack 1");
    t.at(510);
    let _ = t.client(0, ". 1:1(0) ack 601 <dss ack 601>");
    assert_ne!(round_trips(&t, 0), once);
    let _ = t.moved();
}

/// SACK says when what stands behind a hole has come, and whether it has.
#[test]
fn data_behind_a_hole_is_timed_by_sack() {
    let mut t = sampled();
    for from in [101, 201, 301] {
        let _ = t.server(&format!("P. {from}:{}(100) ack 1", from + 100));
    }
    t.at(190);
    let _ = t.client(0, ". 1:1(0) ack 201 <dss ack 201>");
    let known = round_trips(&t, 0);
    let _ = t.server("P. 401:501(100) ack 1");
    t.at(200);
    let _ = t.client(0, ". 1:1(0) ack 201 <dss ack 201,sack 301:401>");
    // What is missing goes again, before what is timed.
    let _ = t.server("P. 201:301(100) ack 1");
    assert_eq!(round_trips(&t, 0), known);
    t.at(230);
    let _ = t.client(0, ". 1:1(0) ack 201 <dss ack 201,sack 301:501>");
    let timed = round_trips(&t, 0);
    assert_ne!(timed, known);
    let smoothed = (known[0].unwrap() * 7 + millis(40)) / 8;
    assert_eq!(timed[0].unwrap().as_millis(), smoothed.as_millis());
    // The next is missing itself, and its ACK times the repair.
    let _ = t.server("P. 501:601(100) ack 1");
    let _ = t.server("P. 601:701(100) ack 1");
    let _ = t.client(0, ". 1:1(0) ack 501 <dss ack 501,sack 601:701>");
    t.at(400);
    let _ = t.client(0, ". 1:1(0) ack 701 <dss ack 701>");
    assert_eq!(round_trips(&t, 0), timed);
    let _ = t.moved();
}

/// The ACK of what was missing before it says nothing of what stands behind.
#[test]
fn data_behind_what_goes_again_is_not_timed_by_its_ack() {
    let mut t = sampled();
    for from in [101, 201, 301] {
        let _ = t.server(&format!("P. {from}:{}(100) ack 1", from + 100));
    }
    t.at(190);
    let _ = t.client(0, ". 1:1(0) ack 201 <dss ack 201>");
    let known = round_trips(&t, 0);
    let _ = t.server("P. 401:501(100) ack 1");
    let _ = t.server("P. 201:301(100) ack 1");
    t.at(400);
    let _ = t.client(0, ". 1:1(0) ack 501 <dss ack 501>");
    assert_eq!(round_trips(&t, 0), known);
    let _ = t.moved();
}

/// A tail loss probe says nothing of what went down before it.
#[test]
fn data_before_what_goes_again_is_timed() {
    let mut t = sampled();
    let known = round_trips(&t, 0);
    let _ = t.server("P. 101:201(100) ack 1");
    let _ = t.server("P. 201:301(100) ack 1");
    t.at(220);
    let _ = t.server("P. 201:301(100) ack 1");
    t.at(250);
    let _ = t.client(0, ". 1:1(0) ack 201 <dss ack 201>");
    let smoothed = (known[0].unwrap() * 7 + millis(70)) / 8;
    let timed = round_trips(&t, 0)[0].unwrap();
    assert_eq!(timed.as_millis(), smoothed.as_millis());
    let _ = t.moved();
}

/// What went down got lost, and filler takes its place: its ACK says nothing about the first (Karn's rule).
#[test]
fn data_whose_place_filler_has_taken_times_nothing() {
    let mut t = Scenario::two_subflows();
    let before = round_trips(&t, 0);
    t.server("P. 1:101(100) ack 1")
        .gives(&["client0 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>"]);
    t.at(200);
    let _ = t.server("P. 1:101(100) ack 1");
    let _ = t.client(1, ". 1:1(0) ack 101 <dss ack 101>");
    t.at(400);
    assert!(t.timeout().lines()[0].ends_with("zeros"));
    t.at(410);
    let _ = t.client(0, ". 1:1(0) ack 101 <dss ack 101>");
    assert_eq!(round_trips(&t, 0), before);
    let _ = t.moved();
}

/// A queue that fills makes the first flight take longer than the handshake.
#[test]
fn first_flight_is_not_overdue_by_the_handshake() {
    let mut t = opened();
    t.client(1, JOIN).gives(&[JOIN_SYN_ACK]);
    t.client(1, JOIN_THIRD).gives(&[JOIN_FOURTH]);
    for start in [1, 1001, 2001] {
        let end = start + 1000;
        t.server(&format!(". {start}:{end}(1000) ack 1"))
            .gives(&[&format!(
                "client0 . {start}:{end}(1000) ack 1 win 64 <dss ack 1 map {start}:{end}@{start}>"
            )]);
    }
    // Two round trips of the handshake are over.
    t.at(140);
    t.server("P. 3001:3101(100) ack 1")
        .gives(&["client0 P. 3001:3101(100) ack 1 win 64 <dss ack 1 map 3001:3101@3001>"]);
    let _ = t.moved();
}

#[test]
fn what_a_path_delivers_is_what_is_acked_in_a_span() {
    let mut t = opened();
    for (start, at) in [(1, 70), (10_001, 100), (20_001, 130)] {
        t.at(at);
        let end = start + 10_000;
        let _ = t.server(&format!(". {start}:{end}(10000) ack 1"));
    }
    let before = path(&t, 0);
    assert_eq!((before.in_flight, before.window), (30_000, 30_000));
    t.at(150);
    let _ = t.client(0, ". 1:1(0) ack 10001 <dss ack 10001>");
    assert_eq!(path(&t, 0).delivery_rate, 0, "80 ms are no span");
    t.at(270);
    let _ = t.client(0, ". 1:1(0) ack 20001 <dss ack 20001>");
    let after = path(&t, 0);
    // 20,000 bytes in 200 ms.
    assert_eq!(after.delivery_rate, 100_000);
    assert_eq!((after.in_flight, after.window), (10_000, 30_000));
    let _ = t.moved();
}

//! ACKs of a server's that wait until their connection is installed.

use flexcp_translator::{Instant, internals};

use crate::support::{Scenario, Setup, Shelf};

/// The client's n-th hundred bytes on a subflow, from 0 on, which are the m-th of the connection.
fn data_of(n: u32, m: u32) -> String {
    let (at, dsn) = (n * 100 + 1, m * 100 + 1);
    let (end, dsn_end) = (at + 100, dsn + 100);
    format!(". {at}:{end}(100) ack 1 win 512 <ts 1000 5000,dss ack 1 map {dsn}:{dsn_end}@{at}>")
}

/// The same on the only subflow.
fn data(n: u32) -> String {
    data_of(n, n)
}

/// The server ACKs as many hundred bytes.
fn ack(n: u32) -> String {
    format!(". 1:1(0) ack {} win 64 <ts 5000 1000>", n * 100 + 1)
}

/// What a client gets of that.
fn told(n: u32) -> String {
    let ack = n * 100 + 1;
    format!("client0 . 1:1(0) ack {ack} win 64 <ts 5000 1000,dss ack {ack}>")
}

/// A connection with a slot that is not installed: its client has sent two hundred bytes, and many packets wait. Two that
/// `passed` have been handled.
fn waiting() -> (Scenario, Shelf) {
    let shelf = Shelf::new(8);
    let mut t = Setup::new().ts().established();
    // The window that counts is not that of its SYN/ACK.
    let _ = t.server(&ack(0));
    t.fast_path(&shelf);
    t.uncompared();
    shelf.passed(0);
    let _ = t.client(0, &data(0));
    let _ = t.client(0, &data(1));
    assert_eq!(shelf.entries().len(), 1);
    // It comes back with the first packet, and the next is behind that.
    t.backlog(true);
    shelf.passed(2);
    let _ = t.server(&ack(1));
    assert_eq!(shelf.entries(), []);
    let _ = t.moved();
    (t, shelf)
}

#[test]
fn ack_is_held_until_the_last_packet_on_its_way_has_come() {
    let (mut t, shelf) = waiting();
    shelf.passed(3);
    t.server(&ack(2)).gives(&[]);
    assert!(!t.installs_when_sent(), "one is behind it");
    shelf.passed(3);
    t.client(0, &data(2))
        .gives(&["server . 201:301(100) ack 1 win 512 <ts 1000 5000>"]);
    assert_eq!(
        shelf.entries(),
        [],
        "what is sent last is not on its way yet"
    );
    t.sent_with().gives(&[&told(2)]);
    let [entry] = shelf.entries()[..] else {
        panic!("one connection");
    };
    assert_eq!(entry.up_next - entry.up_acked, 100);
    assert_eq!(t.moved(), "acks_held+1 offload_installed+1");
}

#[test]
fn ack_that_comes_last_is_sent_as_soon_as_its_connection_is_installed() {
    let (mut t, shelf) = waiting();
    shelf.passed(2);
    t.server(&ack(2)).gives(&[]);
    assert_eq!(shelf.entries(), []);
    t.sent_with().gives(&[&told(2)]);
    assert_eq!(shelf.entries().len(), 1);
    assert_eq!(t.moved(), "acks_held+1 offload_installed+1");
}

#[test]
fn several_that_are_held_are_sent_as_one() {
    let (mut t, shelf) = waiting();
    let _ = t.client(0, &data(2));
    for n in 2..4 {
        shelf.passed(5);
        t.server(&ack(n)).gives(&[]);
    }
    let _ = t.client(0, &data(3));
    t.sent_with().gives(&[&told(3)]);
    assert_eq!(t.moved(), "acks_held+2 offload_installed+1");
}

#[test]
fn each_subflow_that_is_owed_an_ack_gets_its_own() {
    let shelf = Shelf::new(8);
    let mut t = Setup::new().ts().two_subflows();
    let _ = t.server(&ack(0));
    t.fast_path(&shelf);
    t.uncompared();
    shelf.passed(0);
    let _ = t.client(0, &data_of(0, 0));
    let _ = t.client(0, &data_of(1, 1));
    t.backlog(true);
    shelf.passed(1);
    let _ = t.client(1, &data_of(0, 2));
    shelf.passed(4);
    t.server(&ack(2)).gives(&[]);
    t.server(&ack(3)).gives(&[]);
    let _ = t.client(0, &data_of(2, 3));
    t.sent_with().gives(&[
        "client0 . 1:1(0) ack 201 win 64 <ts 5000 1000,dss ack 301>",
        "client1 . 1:1(0) ack 101 win 64 <ts 5000 900000,dss ack 301>",
    ]);
    assert_eq!(shelf.entries().len(), 1);
    let moved = t.moved();
    assert!(moved.contains("acks_held+2 "), "{moved}");
}

#[test]
fn what_says_more_than_how_far_the_server_is_goes_on_at_once() {
    // Data, a duplicate, SACK blocks of what stands behind a hole, a keep-alive, a FIN.
    for line in [
        ". 1:101(100) ack 201 win 64 <ts 5000 1000>",
        ". 1:1(0) ack 101 win 64 <ts 5000 1000>",
        ". 1:1(0) ack 101 win 64 <ts 5000 1000,sack 151:201>",
        ". 1:1(0) ack 151 win 64 <ts 5000 1000,sack 176:201>",
        ". 0:0(0) ack 201 win 64 <ts 5000 1000>",
        "F. 1:1(0) ack 201 win 64 <ts 5000 1000>",
    ] {
        let (mut t, shelf) = waiting();
        shelf.passed(3);
        let lines = t.server(line).lines().len();
        assert_eq!(lines, 1, "{line}");
        assert_eq!(t.translator.counters().acks_held, 0, "{line}");
    }
    let (mut t, shelf) = waiting();
    // The server's window is used up, and opens.
    shelf.passed(4);
    t.server(". 1:1(0) ack 201 win 0 <ts 5000 1000>").gives(&[]);
    t.server(". 1:1(0) ack 201 win 640 <ts 5000 1000>")
        .gives(&["client0 . 1:1(0) ack 201 win 640 <ts 5000 1000,dss ack 201>"]);
    assert_eq!(t.moved(), "acks_held+1");
}

#[test]
fn ack_goes_on_at_once_where_nothing_waits_or_the_connection_has_no_slot() {
    let (mut t, shelf) = waiting();
    t.backlog(false);
    shelf.passed(3);
    let _ = t.client(0, &data(2));
    let _ = t.moved();
    shelf.passed(5);
    t.server(&ack(2)).gives(&[&told(2)]);
    let mut t = Setup::new().ts().established();
    let _ = t.server(&ack(0));
    let shelf = Shelf::new(0);
    t.fast_path(&shelf);
    shelf.passed(0);
    t.uncompared();
    t.backlog(true);
    for n in 0..4 {
        let _ = t.client(0, &data(n));
    }
    t.server(&ack(2)).gives(&[&told(2)]);
    let moved = t.moved();
    assert!(!moved.contains("acks_held"), "{moved}");
}

#[test]
fn ack_goes_on_at_once_while_the_connection_could_not_be_installed() {
    let (mut t, shelf) = waiting();
    shelf.passed(5);
    // A hole in what the client has sent.
    let _ = t.client(0, &data(3));
    t.server(&ack(2)).gives(&[&told(2)]);
    assert_eq!(t.moved(), "");
}

#[test]
fn data_tells_what_an_ack_would() {
    let (mut t, shelf) = waiting();
    shelf.passed(4);
    t.server(&ack(2)).gives(&[]);
    let _ = t.server(". 1:101(100) ack 201 win 64 <ts 5000 1000>");
    let _ = t.client(0, &data(2));
    t.sent_with().gives(&[]);
    assert_eq!(shelf.entries().len(), 1);
    assert_eq!(t.moved(), "acks_held+1 offload_installed+1");
}

#[test]
fn ack_that_goes_on_tells_what_was_held() {
    let (mut t, shelf) = waiting();
    shelf.passed(5);
    t.server(&ack(2)).gives(&[]);
    // A hole, so that nothing is held.
    let _ = t.client(0, &data(3));
    t.server(". 1:1(0) ack 201 win 128 <ts 5000 1000>")
        .gives(&["client0 . 1:1(0) ack 201 win 128 <ts 5000 1000,dss ack 201>"]);
    t.at(200);
    t.others(0);
    t.released().gives(&[]);
    assert_eq!(t.moved(), "acks_held+1");
}

#[test]
fn none_is_held_for_longer_than_200_ms_and_then_none_for_a_while() {
    let (mut t, shelf) = waiting();
    shelf.passed(1000);
    t.server(&ack(2)).gives(&[]);
    t.at(199);
    t.others(0);
    t.released().gives(&[]);
    t.at(200);
    t.others(0);
    t.released().gives(&[&told(2)]);
    let _ = t.client(0, &data(2));
    t.at(299);
    t.server(&ack(3)).gives(&[&told(3)]);
    let _ = t.client(0, &data(3));
    t.at(300);
    t.server(&ack(4)).gives(&[]);
    assert_eq!(t.moved(), "acks_held+2");
}

#[test]
fn ack_of_a_connection_whose_time_is_over_goes_on() {
    let (mut t, shelf) = waiting();
    shelf.passed(1000);
    t.server(&ack(2)).gives(&[]);
    let _ = t.client(0, &data(2));
    // Nobody has looked at those that are held yet.
    t.at(200);
    t.server(&ack(3)).gives(&[&told(3)]);
    t.others(0);
    t.released().gives(&[]);
    assert_eq!(t.moved(), "acks_held+1");
}

#[test]
fn what_is_missing_when_all_that_waited_has_been_handled_got_lost() {
    let (mut t, shelf) = waiting();
    // Two of its packets never come.
    shelf.passed(4);
    t.server(&ack(2)).gives(&[]);
    t.others(10_999);
    t.released().gives(&[]);
    assert_eq!(shelf.entries(), []);
    t.others(1);
    t.released().gives(&[&told(2)]);
    assert_eq!(shelf.entries().len(), 1);
    assert_eq!(t.moved(), "acks_held+1 offload_installed+1");
}

#[test]
fn one_that_has_come_since_is_not_lost() {
    let (mut t, shelf) = waiting();
    shelf.passed(4);
    t.server(&ack(2)).gives(&[]);
    shelf.passed(5);
    t.others(11_000);
    t.released().gives(&[&told(2)]);
    assert_eq!(shelf.entries(), []);
    assert_eq!(t.moved(), "acks_held+1");
}

#[test]
fn where_no_packet_waits_any_more_none_is_held() {
    let (mut t, shelf) = waiting();
    // One is on its way that nobody has seen wait.
    shelf.passed(4);
    t.server(&ack(2)).gives(&[]);
    t.translator.idle(Instant::default());
    t.released().gives(&[&told(2)]);
    assert_eq!(shelf.entries(), []);
    // None is.
    let _ = t.client(0, &data(2));
    shelf.passed(5);
    t.server(&ack(3)).gives(&[]);
    shelf.passed(4);
    t.translator.idle(Instant::default());
    t.released().gives(&[&told(3)]);
    assert_eq!(shelf.entries().len(), 1);
    assert_eq!(t.moved(), "acks_held+2 offload_installed+1");
}

#[test]
fn connection_that_comes_back_soon_is_held_up_no_more_for_a_while() {
    let (mut t, shelf) = waiting();
    shelf.passed(2);
    t.server(&ack(2)).gives(&[]);
    t.sent_with().gives(&[&told(2)]);
    assert_eq!(shelf.entries().len(), 1);
    // As when the client sends again what got lost.
    shelf.passed(4);
    let _ = t.client(0, &data(2));
    t.server(&ack(3)).gives(&[&told(3)]);
    let _ = t.client(0, &data(3));
    t.at(100);
    shelf.passed(7);
    t.server(&ack(4)).gives(&[]);
    let moved = t.moved();
    assert!(moved.contains("acks_held+2 "), "{moved}");
}

#[test]
fn connection_that_comes_back_at_once_waits_for_as_many_packets_as_one_without_a_slot() {
    let (mut t, shelf) = waiting();
    shelf.passed(2);
    t.server(&ack(2)).gives(&[]);
    t.sent_with().gives(&[&told(2)]);
    shelf.passed(3);
    let _ = t.client(0, &data(2));
    assert!(!t.installs_when_sent(), "one alone is not enough");
    shelf.passed(4);
    let _ = t.client(0, &data(3));
    t.sent();
    assert_eq!(shelf.entries().len(), 1);
    let _ = t.moved();
}

#[test]
fn acks_of_1024_connections_are_held_at_a_time() {
    for (others, is_held) in [(1023, true), (1024, false)] {
        let (mut t, shelf) = waiting();
        shelf.passed(1000);
        internals::fill_holds(&mut t.translator, Instant::default(), others);
        let outcome = t.server(&ack(2));
        assert_eq!(outcome.lines().is_empty(), is_held, "{others}");
        // The time of the others is over, which makes room.
        t.at(200);
        t.others(0);
        let _ = t.released();
        let _ = t.client(0, &data(2));
        t.at(300);
        t.server(&ack(3)).gives(&[]);
        let _ = t.moved();
    }
}

#[test]
fn client_that_leaves_mptcp_meanwhile_gets_no_data_ack() {
    let (mut t, shelf) = waiting();
    shelf.passed(1000);
    t.server(&ack(2)).gives(&[]);
    let _ = t.client(
        0,
        ". 201:201(0) ack 1 win 512 <ts 1000 5000,dss ack 1 infinite 201@201>",
    );
    assert_eq!(t.state(), "fallback");
    t.at(200);
    t.others(0);
    t.released().gives(&[]);
    let moved = t.moved();
    assert!(moved.contains("acks_held+1"), "{moved}");
}

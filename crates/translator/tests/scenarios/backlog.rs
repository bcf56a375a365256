//! Installing while packets wait, of the connection's own and of others.

use crate::install::{ack, data, given};
use flexcp_translator::Install;

use crate::support::{Leg, Scenario, Setup, Shelf};

#[test]
fn where_packets_wait_the_twentieth_in_a_row_installs_for_the_first_time() {
    let shelf = Shelf::new(8);
    let mut t = Setup::new().ts().established();
    t.translator.set_fast_path(Box::new(shelf.clone()));
    t.backlog(true);
    let _ = t.server(&data(0));
    for n in 1..20 {
        assert_eq!(shelf.entries(), [], "after {n}");
        let _ = t.client(0, &ack(0));
    }
    assert_eq!(shelf.entries().len(), 1);
    assert_eq!(t.moved(), "offload_installed+1");
}

#[test]
fn where_packets_wait_an_ack_installs_before_it_is_sent_and_data_does_not() {
    let (mut t, shelf) = given(Setup::new(), 8);
    t.backlog(true);
    for n in 0..4 {
        let _ = t.server(&data(n));
        assert_eq!(shelf.entries(), [], "data may be overtaken");
    }
    let _ = t.client(0, &ack(0));
    let [entry] = shelf.entries()[..] else {
        panic!("one connection");
    };
    assert_eq!(entry.down_next - entry.down_acked, 300);
    // What waited evicts it; an ACK installs it again, once two packets were forwarded.
    let _ = t.server(&data(4));
    assert_eq!(shelf.entries(), []);
    let _ = t.client(0, &ack(1));
    assert_eq!(shelf.entries().len(), 1);
    assert_eq!(t.moved(), "offload_installed+2 offload_evicted+1");
}

/// Two packets of the server's have installed a connection, after `passed` that do not count.
fn with_slot(passed: u32) -> (Scenario, Shelf) {
    let shelf = Shelf::new(8);
    let mut t = Setup::new().ts().established();
    t.fast_path(&shelf);
    shelf.passed(passed);
    for n in 0..2 {
        let _ = t.server(&data(n));
    }
    (t, shelf)
}

#[test]
fn where_packets_wait_data_installs_when_sent_and_none_of_its_own_is_on_its_way() {
    let (mut t, shelf) = with_slot(1000);
    assert_eq!(shelf.entries().len(), 1);
    t.backlog(true);
    shelf.passed(1001);
    let _ = t.server(&data(2));
    assert_eq!(shelf.entries(), [], "the first is not enough yet");
    // One more is on its way behind it.
    shelf.passed(1003);
    let _ = t.server(&data(3));
    assert!(!t.installs_when_sent());
    let _ = t.client(0, &ack(0));
    assert_eq!(
        shelf.entries().len(),
        1,
        "an ACK alone installs before it is sent"
    );
    shelf.passed(1005);
    let _ = t.client(0, &ack(1));
    assert_eq!(shelf.entries(), [], "with another behind it it does not");
    let _ = t.server(&data(4));
    assert_eq!(shelf.entries(), [], "data may be overtaken");
    t.sent();
    assert_eq!(shelf.entries().len(), 1);
    // What comes on its way while a packet is sent would evict it.
    for n in 5..7 {
        shelf.passed(1001 + n);
        let _ = t.server(&data(n));
    }
    shelf.passed(1008);
    t.sent();
    assert_eq!(shelf.entries(), []);
    assert_eq!(t.moved(), "offload_installed+3 offload_evicted+3");
}

#[test]
fn where_packets_wait_a_connection_is_due_with_one_packet_alone() {
    let (mut t, shelf) = with_slot(1000);
    t.backlog(true);
    for (passed, n) in [(1001, 2), (1002, 3)] {
        shelf.passed(passed);
        let _ = t.server(&data(n));
    }
    assert!(t.installs_when_sent());
    // Nobody has installed it, and others are on their way now.
    shelf.passed(1004);
    let _ = t.server(&data(4));
    assert!(!t.installs_when_sent());
    // With an ACK alone, and none behind it, it is due before that is sent.
    let ends = |t: &Scenario| (t.install == Install::BeforeSent, t.installs_when_sent());
    for (passed, due) in [(1006, false), (1006, false), (1006, true)] {
        shelf.passed(passed);
        let (bytes, offload) = t.bytes(Leg::Client(0), &ack(0));
        let _ = t.alone(&bytes, offload);
        assert_eq!(ends(&t), (due, false));
    }
    t.uncompared();
    let moved = t.moved();
    assert!(moved.starts_with("offload_installed+1"), "{moved}");
}

#[test]
fn where_packets_wait_those_that_get_lost_are_waited_for_no_longer_than_4096() {
    let (mut t, shelf) = with_slot(0);
    t.backlog(true);
    // Of two that passed one never comes. Behind every other packet there is one that does.
    for n in 0..4096 {
        shelf.passed(n + 2 + (n + 1) % 2);
        let _ = t.client(0, &ack(0));
        assert_eq!(shelf.entries(), [], "{n}");
    }
    shelf.passed(4099);
    let _ = t.client(0, &ack(0));
    assert_eq!(shelf.entries(), [], "there is one behind it");
    shelf.passed(4099);
    let _ = t.client(0, &ack(1));
    assert_eq!(shelf.entries().len(), 1);
    t.uncompared();
    let moved = t.moved();
    assert!(moved.starts_with("offload_installed+2"), "{moved}");
}

#[test]
fn where_packets_wait_unknown_to_the_counts_none_is_taken_for_the_last() {
    let (mut t, shelf) = with_slot(1000);
    assert_eq!(shelf.entries().len(), 1);
    t.backlog(true);
    // They had passed before the connection had a slot.
    for n in 2..30 {
        let _ = t.server(&data(n));
        assert!(!t.installs_when_sent(), "{n}");
    }
    shelf.passed(1001);
    let _ = t.server(&data(30));
    assert!(t.installs_when_sent());
    t.uncompared();
    let moved = t.moved();
    assert!(moved.starts_with("offload_installed+1"), "{moved}");
}

#[test]
fn where_no_packet_waits_one_on_its_way_is_waited_for_but_one_that_got_lost_not_for_long() {
    let (mut t, shelf) = with_slot(0);
    assert_eq!(shelf.entries().len(), 1);
    shelf.passed(1);
    let _ = t.server(&data(2));
    // One has passed and is not there yet.
    shelf.passed(3);
    let _ = t.server(&data(3));
    assert_eq!(shelf.entries(), []);
    // It comes.
    let _ = t.server(&data(4));
    assert_eq!(shelf.entries().len(), 1);
    // Of the next two one never does.
    for n in 5..8 {
        shelf.passed(n);
        let _ = t.server(&data(n));
        assert_eq!(shelf.entries(), [], "{n}");
    }
    let mut packets = 0;
    while shelf.entries().is_empty() && packets < 10 {
        packets += 1;
        shelf.passed(7 + packets);
        let _ = t.client(0, &ack(0));
    }
    assert_eq!(packets, 3);
    t.uncompared();
    let moved = t.moved();
    assert!(
        moved.starts_with("offload_installed+3 offload_evicted+2"),
        "{moved}"
    );
}

#[test]
fn where_no_packet_waits_any_more_data_installs_too() {
    let (mut t, shelf) = given(Setup::new(), 8);
    t.backlog(true);
    let _ = t.server(&data(0));
    let _ = t.server(&data(1));
    assert_eq!(shelf.entries(), []);
    t.backlog(false);
    let _ = t.server(&data(2));
    assert_eq!(shelf.entries().len(), 1);
    // That moment is over for ACKs, too, until packets wait again.
    for n in 0..2 {
        let (bytes, offload) = t.bytes(Leg::Client(0), &ack(n));
        let _ = t.alone(&bytes, offload);
        assert_eq!(shelf.entries(), []);
    }
    t.uncompared();
    let moved = t.moved();
    assert!(
        moved.starts_with("offload_installed+1 offload_evicted+1"),
        "{moved}"
    );
}

//! What is written down of each subflow, so that the next run can tell its ends that it is over.

use std::sync::{Arc, Mutex};

use flexcp_translator::{Registry, SubflowRecord};

use crate::support::{Scenario, Setup};

/// Places for so many records.
#[derive(Clone, Debug, Default)]
struct Book {
    places: Arc<Mutex<Vec<Option<SubflowRecord>>>>,
    room: usize,
    calls: Arc<Mutex<usize>>,
}

impl Registry for Book {
    fn enter(&mut self, record: &SubflowRecord) -> Option<u32> {
        *self.calls.lock().expect("one thread") += 1;
        let mut places = self.places.lock().expect("one thread");
        let free = places.iter().position(Option::is_none);
        let place = free.unwrap_or(places.len());
        if place == self.room {
            return None;
        }
        if place == places.len() {
            places.push(None);
        }
        places[place] = Some(*record);
        u32::try_from(place).ok()
    }

    fn leave(&mut self, place: u32) {
        *self.calls.lock().expect("one thread") += 1;
        let left = self.places.lock().expect("one thread")[place as usize].take();
        assert!(left.is_some(), "left twice");
    }
}

impl Book {
    fn of(scenario: &mut Scenario, room: usize) -> Self {
        let book = Self {
            room,
            ..Self::default()
        };
        scenario.translator.set_registry(Box::new(book.clone()));
        // Its twins write nothing down.
        scenario.uncompared();
        book
    }

    fn has(&self) -> Vec<SubflowRecord> {
        let places = self.places.lock().expect("one thread");
        places.iter().flatten().copied().collect()
    }

    fn calls(&self) -> usize {
        *self.calls.lock().expect("one thread")
    }
}

#[test]
fn syn_received_nothing_is_written_down() {
    let mut t = Setup::new().start();
    let book = Book::of(&mut t, 9);
    let _ = t.client(0, "S 0:0(0) win 65535 <mss 1460,sackok,ws 8,capable>");
    let _ = t.server("S. 0:0(0) ack 1 win 65160 <mss 1460,sackok,ws 7>");
    assert_eq!(book.has(), []);
    let _ = t.client(0, ". 1:1(0) ack 1 win 512 <capable>");
    assert_eq!(
        book.has(),
        [t.record(0, Some(t.net.connections[0].client_key))]
    );
    let _ = t.moved();
}

#[test]
fn established_each_subflow_is_written_once_and_taken_back_with_its_end() {
    let mut t = Setup::new().two_subflows();
    let book = Book::of(&mut t, 9);
    let key = Some(t.net.connections[0].client_key);
    for round in 0..5 {
        t.client(0, ". 1:1(0) ack 1 <dss ack 1>")
            .gives(&["server . 1:1(0) ack 1 win 512"]);
        assert_eq!(book.calls(), 2, "round {round}");
    }
    assert_eq!(book.has(), [t.record(0, key), t.record(1, key)]);
    t.client(0, "R 1:1(0) win 0").gives(&[]);
    assert_eq!(book.has(), [t.record(1, key)]);
    let _ = t.client(1, "R. 1:1(0) ack 1 win 0 <fastclose>");
    assert_eq!(book.has(), []);
    let _ = t.moved();
}

#[test]
fn established_join_is_written_down_once_it_is_authenticated() {
    let mut t = Setup::new().established();
    let book = Book::of(&mut t, 9);
    let setup = Setup::new();
    setup.join(&mut t, 1);
    let key = Some(t.net.connections[0].client_key);
    assert_eq!(book.has(), [t.record(0, key), t.record(1, key)]);
    let _ = t.moved();
}

#[test]
fn connection_that_leaves_the_table_takes_its_records_along() {
    let mut t = Setup::new()
        .timeouts(|timeouts| timeouts.linger = crate::support::millis(500))
        .two_subflows();
    let book = Book::of(&mut t, 9);
    let _ = t.client(0, ". 1:1(0) ack 1 <dss ack 1>");
    assert_eq!(book.has().len(), 2);
    t.server("R 1:1(0) win 0").gives(&[
        "client0 R. 1:1(0) ack 1 win 509 <fastclose>",
        "client1 R. 1:1(0) ack 1 win 509 <fastclose>",
    ]);
    assert_eq!(book.has(), [], "the client has been told");
    let _ = t.moved();
}

#[test]
fn without_room_the_connection_goes_on_and_asks_no_more() {
    let mut t = Setup::new().two_subflows();
    let book = Book::of(&mut t, 1);
    for _ in 0..3 {
        t.client(0, ". 1:1(0) ack 1 <dss ack 1>")
            .gives(&["server . 1:1(0) ack 1 win 512"]);
    }
    assert_eq!((book.has().len(), book.calls()), (1, 2));
    assert_eq!(t.moved(), "records_refused+1");
}

const SYN: &str = "S 0:0(0) win 65535 <mss 1460,sackok,ws 8>";
const SYN_ACK: &str = "S. 0:0(0) ack 1 win 65160 <mss 1460,sackok,ws 7>";

#[test]
fn plain_connection_is_written_down_where_flexcp_is_addressed() {
    let mut t = Setup::new().backends(1).start();
    let book = Book::of(&mut t, 9);
    let _ = t.client(0, SYN);
    let _ = t.server(SYN_ACK);
    assert_eq!(book.has(), []);
    let _ = t.client(0, ". 1:1(0) ack 1 win 512");
    assert_eq!(book.has(), [t.record(0, None)]);
    let _ = t.moved();

    let mut t = Setup::new().syn_sent();
    let book = Book::of(&mut t, 9);
    // The client gives MPTCP up.
    let _ = t.client(0, SYN);
    let _ = t.server(SYN_ACK);
    let _ = t.client(0, ". 1:1(0) ack 1 win 512");
    assert_eq!(book.has(), []);
    let _ = t.moved();
}

#[test]
fn plain_connection_that_another_takes_the_place_of_leaves_no_record() {
    let mut t = Setup::new().backends(1).start();
    let book = Book::of(&mut t, 9);
    let _ = t.client(0, SYN);
    let _ = t.server(SYN_ACK);
    let _ = t.client(0, ". 1:1(0) ack 1 win 512");
    assert_eq!(book.has().len(), 1);
    let _ = t.server("R. 1:1(0) ack 1 win 0");
    t.restart(0);
    let _ = t.client(0, SYN);
    assert_eq!(book.has(), []);
    let _ = t.moved();
}

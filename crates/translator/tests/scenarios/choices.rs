//! Decisions with more than one candidate, and with a cause each.

use crate::support::{Scenario, Setup};

const SYN: &str = "S 0:0(0) win 65535 <mss 1460,sackok,ws 8,capable>";
const JOIN: &str = "S 0:0(0) win 65535 <mss 1460,sackok,ws 8,join>";
const THIRD: &str = ". 1:1(0) ack 1 win 512 <join>";

#[test]
fn of_two_stale_handshakes_at_the_limit_the_older_makes_room() {
    let mut t = Setup::new()
        .connections(3)
        .limits(|limits| limits.half_open = 2)
        .start();
    let _ = t.client(0, SYN);
    t.at(500);
    let _ = t.client(10, SYN);
    t.at(3600);
    t.client(20, SYN).gives(&[
        "server#2 S 0:0(0) win 65535 <mss 1432,sackok,ws 8>",
        "server R 1:1(0) win 0",
    ]);
    assert_eq!(
        [0, 1, 2].map(|n| t.state_of(n).is_some()),
        [false, true, true]
    );
    assert_eq!(t.why(), "rst.evicted+1 half_open_evicted.stale+1");
    let _ = t.moved();
}

#[test]
fn of_several_handshakes_on_the_ports_the_oldest_makes_room() {
    let mut t = Setup::new().backends(1).ports(2).connections(3).start();
    let _ = t.client(0, SYN);
    t.at(500);
    let _ = t.client(10, SYN);
    t.at(600);
    assert_eq!([0, 1].map(|n| t.state_of(n).is_some()), [true, true]);
    let _ = t.client(20, SYN);
    assert_eq!(
        [0, 1, 2].map(|n| t.state_of(n).is_some()),
        [false, true, true]
    );
    assert_eq!(t.why(), "rst.evicted+1 half_open_evicted.ports+1");
    let _ = t.moved();
}

#[test]
fn of_several_stale_joins_the_oldest_makes_room() {
    let mut t = Setup::new()
        .limits(|limits| limits.half_open_joins = 2)
        .established();
    let _ = t.client(1, JOIN);
    t.at(500);
    let _ = t.client(2, JOIN);
    t.at(4000);
    t.client(3, JOIN)
        .gives(&["client3 S. 0:0(0) ack 1 win 65152 <mss 1460,sackok,ws 7,join id 0>"]);
    t.client(2, THIRD)
        .gives(&["client2 . 1:1(0) ack 1 win 509 <dss ack 1>"]);
    let outcome = t.client(1, THIRD);
    assert_eq!(outcome.lines()[0], "drop no_connection");
    assert_eq!(t.why(), "rst.no_connection+1 join_evicted.stale+1");
    let _ = t.moved();
}

#[test]
fn second_announcement_has_pauses_of_its_own() {
    let mut t = Setup::new()
        .announce("10.7.0.1")
        .announce("10.7.0.2")
        .established();
    let first = "client0 . 1:1(0) ack 1 win 64 <add-addr id 1 10.7.0.1,dss ack 1>";
    let second = "client0 . 1:1(0) ack 1 win 64 <add-addr id 2 10.7.0.2,dss ack 1>";
    let _ = t.server(". 1:1(0) ack 1");
    for at in [1000, 3000] {
        t.at(at);
        t.timeout().gives(&[first]);
    }
    t.client(0, ". 1:1(0) ack 1 <add-addr id 1 10.7.0.1 echo>")
        .gives(&[second]);
    for (at, out) in [
        (3999, None),
        (4000, Some(second)),
        (5999, None),
        (6000, Some(second)),
    ] {
        t.at(at);
        t.timeout().gives(&Vec::from_iter(out));
    }
    assert_eq!(t.why(), "add_addr.first+2 add_addr.repeated+4");
    let _ = t.moved();
}

#[test]
fn switch_for_room_passes_over_a_subflow_with_a_hole() {
    let setup = Setup::new();
    let mut t = setup.clone().two_subflows();
    setup.join(&mut t, 2);
    // The first joined subflow misses half of what the client has from the second.
    let _ = t.client(0, ". 1:1(0) ack 1 <dss ack 1,prio b>");
    let _ = t.server("P. 1:101(100) ack 1");
    t.at(200);
    let _ = t.server("P. 1:101(100) ack 1");
    let _ = t.client(2, ". 1:1(0) ack 101 win 2000 <dss ack 101>");
    let _ = t.client(1, ". 1:1(0) ack 51 win 2000 <dss ack 101>");
    // The initial one carries on: it knows of 512 units of 256 bytes.
    let _ = t.client(0, ". 1:1(0) ack 1 <dss ack 101,prio>");
    let _ = t.client(2, ". 1:1(0) ack 101 win 2000 <dss ack 101,prio b>");
    let _ = t.client(1, ". 1:1(0) ack 51 win 2000 <dss ack 101,prio b>");
    let _ = t.server("P. 101:65101(65000) ack 1");
    assert_eq!(t.subflows(), ["0 active", "1 backup", "2 backup"]);
    let _ = t.client(2, ". 1:1(0) ack 101 win 2000 <dss ack 101,prio>");
    let _ = t.client(1, ". 1:1(0) ack 51 win 2000 <dss ack 101,prio>");
    let _ = t.server("P. 65101:130101(65000) ack 1");
    let _ = t.server("P. 130101:132101(2000) ack 1");
    assert_eq!(t.subflows(), ["0", "1", "2 active"]);
    assert!(t.why().contains("room+1"), "{}", t.why());
    let _ = t.moved();
    assert_eq!(
        t.why(),
        "subflow_switch.failed+1 subflow_switch.backup+2 subflow_switch.room+1"
    );
}

#[test]
fn retransmission_is_looked_up_beyond_its_first_byte() {
    let mut t = Scenario::two_subflows();
    let _ = t.server("P. 1:101(100) ack 1");
    t.client(0, ". 1:1(0) ack 1 <dss ack 1,prio b>").gives(&[]);
    let _ = t.server("P. 101:201(100) ack 1");
    let _ = t.client(0, ". 1:1(0) ack 1 <dss ack 1,prio>");
    assert_eq!(t.why(), "subflow_switch.backup+1");
    t.at(300);
    // Both subflows have been silent, the active one holds the second half: all paths have failed.
    let _ = t.server("P. 1:201(200) ack 1");
    assert_eq!(t.why(), "subflow_switch.backup+1 subflow_switch.turn+1");
    let _ = t.moved();
}

#[test]
fn stall_that_has_passed_is_no_reason_to_give_a_subflow_up() {
    // The client drops what it has ACKed on the only subflow, twice. What went wrong first has long been mended when the
    // server repeats something else that no subflow could deliver.
    let mut t = Scenario::two_subflows();
    let _ = t.server("P. 1:101(100) ack 1");
    let _ = t.server("P. 101:201(100) ack 1");
    let _ = t.client(0, ". 1:1(0) ack 101 <dss ack 1>");
    let _ = t.client(1, "R 1:1(0) win 0");
    t.server("P. 1:101(100) ack 1")
        .gives(&["client0 P. 201:301(100) ack 1 win 64 <dss ack 1 map 1:101@201>"]);
    t.at(1000);
    let _ = t.client(0, ". 1:1(0) ack 301 <dss ack 201>");
    let _ = t.server("P. 201:301(100) ack 1");
    let _ = t.server("P. 301:401(100) ack 1");
    t.at(3000);
    let _ = t.client(0, ". 1:1(0) ack 401 <dss ack 201>");
    t.server("P. 201:301(100) ack 1")
        .gives(&["client0 P. 501:601(100) ack 1 win 64 <dss ack 1 map 201:301@501>"]);
    assert_eq!(t.why(), "");
    let _ = t.moved();
}

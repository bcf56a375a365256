//! Data of the server's that overtakes other on its way to a fast path, and comes back as the translator would have
//! placed it. The harness compares with a translator whose fast path takes what it can.

use crate::flow_entry::{SERVER, alone, steady, taken};
use crate::support::{Scenario, Setup};

/// 101:201 and 401:501 are missing; 501:601 came before 301:401. All that came is the fast path's.
fn overtaken() -> Scenario {
    let mut t = alone();
    let packets = [
        (SERVER, ". 201:301(100) ack 1 win 64 <ts 5010 1000>"),
        (SERVER, ". 501:601(100) ack 1 win 64 <ts 5010 1000>"),
        (SERVER, ". 301:401(100) ack 1 win 64 <ts 5010 1000>"),
    ];
    assert_eq!(taken(&mut t, &packets), 3);
    t
}

#[test]
fn data_that_overtakes_and_what_it_overtook_are_the_fast_paths() {
    let mut t = overtaken();
    let packets = [
        (
            0,
            ". 1:1(0) ack 101 win 512 <ts 1020 5000,sack 201:401,dss ack 101>",
        ),
        (SERVER, ". 101:151(50) ack 1 win 64 <ts 5010 1000>"),
        (SERVER, ". 151:201(50) ack 1 win 64 <ts 5010 1000>"),
        (0, ". 1:1(0) ack 401 win 512 <ts 1020 5010,dss ack 401>"),
        (SERVER, ". 401:501(100) ack 1 win 64 <ts 5010 1000>"),
        (0, ". 1:1(0) ack 601 win 512 <ts 1020 5010,dss ack 601>"),
    ];
    assert_eq!(taken(&mut t, &packets), 6);
    assert_eq!(t.moved(), "");
}

#[test]
fn hole_that_comes_back_open_keeps_its_place() {
    let mut t = overtaken();
    // A repetition is the translator's.
    t.server(". 501:601(100) ack 1 win 64 <ts 5020 1000>")
        .gives(&["client0 . 501:601(100) ack 1 win 64 <ts 5020 1000,dss ack 1 map 501:601@501>"]);
    t.server(". 101:201(100) ack 1 win 64 <ts 5020 1000>")
        .gives(&["client0 . 101:201(100) ack 1 win 64 <ts 5020 1000,dss ack 1 map 101:201@101>"]);
    t.server(". 401:501(100) ack 1 win 64 <ts 5020 1000>")
        .gives(&["client0 . 401:501(100) ack 1 win 64 <ts 5020 1000,dss ack 1 map 401:501@401>"]);
    let again = t.server(". 351:401(50) ack 1 win 64 <ts 5020 1000>");
    assert!(again.lines()[0].contains("map 301:401@301"), "{again:?}");
    assert_eq!(t.moved(), "retransmitted_down_bytes+150");
}

#[test]
fn hole_that_comes_back_filled_in_part_keeps_the_rest() {
    let mut t = overtaken();
    let packets = [(SERVER, ". 101:131(30) ack 1 win 64 <ts 5010 1000>")];
    assert_eq!(taken(&mut t, &packets), 1);
    t.server(". 101:201(100) ack 1 win 64 <ts 5020 1000>")
        .gives(&[
            "client0 . 101:131(30) ack 1 win 64 <ts 5020 1000,dss ack 1 map 101:131@101>",
            "client0 . 131:201(70) ack 1 win 64 <ts 5020 1000,dss ack 1 map 131:201@131>",
        ]);
    assert_eq!(t.moved(), "retransmitted_down_bytes+30");
}

#[test]
fn data_in_the_middle_of_a_hole_is_the_translators() {
    let mut t = overtaken();
    let before = t.taken();
    t.server(". 151:201(50) ack 1 win 64 <ts 5010 1000>")
        .gives(&["client0 . 151:201(50) ack 1 win 64 <ts 5010 1000,dss ack 1 map 151:201@151>"]);
    assert_eq!(t.taken(), before);
    t.server(". 101:151(50) ack 1 win 64 <ts 5010 1000>")
        .gives(&["client0 . 101:151(50) ack 1 win 64 <ts 5010 1000,dss ack 1 map 101:151@101>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn mappings_behind_one_that_is_forgotten_keep_their_place() {
    let mut t = alone();
    let packets = [
        (SERVER, ". 201:301(100) ack 1 win 64 <ts 5010 1000>"),
        (SERVER, ". 301:361(60) ack 1 win 64 <ts 5010 1000>"),
        (SERVER, ". 101:201(100) ack 1 win 64 <ts 5010 1000>"),
        // What came first is forgotten, what it had overtaken is not yet.
        (0, ". 1:1(0) ack 301 win 512 <ts 1020 5010,dss ack 301>"),
        (SERVER, ". 361:461(100) ack 1 win 64 <ts 5010 1000>"),
    ];
    assert_eq!(taken(&mut t, &packets), 5);
    t.server(". 331:361(30) ack 1 win 64 <ts 5020 1000>")
        .gives(&["client0 . 331:361(30) ack 1 win 64 <ts 5020 1000,dss ack 1 map 301:361@301>"]);
    t.server(". 411:461(50) ack 1 win 64 <ts 5020 1000>")
        .gives(&["client0 . 411:461(50) ack 1 win 64 <ts 5020 1000,dss ack 1 map 361:461@361>"]);
    assert_eq!(t.moved(), "retransmitted_down_bytes+80");
}

#[test]
fn hole_that_is_all_that_is_left_before_the_end_comes_back() {
    let mut t = alone();
    let packets = [
        (SERVER, ". 101:201(100) ack 1 win 64 <ts 5010 1000>"),
        (0, ". 1:1(0) ack 201 win 512 <ts 1020 5010,dss ack 201>"),
        (SERVER, ". 301:401(100) ack 1 win 64 <ts 5010 1000>"),
        (
            0,
            ". 1:1(0) ack 201 win 512 <ts 1020 5010,sack 301:401,dss ack 201>",
        ),
    ];
    assert_eq!(taken(&mut t, &packets), 4);
    t.server(". 151:301(150) ack 1 win 64 <ts 5020 1000>")
        .gives(&["client0 . 201:301(100) ack 1 win 64 <ts 5020 1000,dss ack 1 map 201:301@201>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn sack_for_a_server_that_takes_none_is_the_translators() {
    let mut t = Setup::new().ts().no_sack().established();
    let _ = t.server(". 1:101(100) ack 1 win 64 <ts 5000 1000>");
    let packets = [
        (0, ". 1:1(0) ack 101 win 512 <ts 1000 5000,dss ack 101>"),
        (SERVER, ". 201:301(100) ack 1 win 64 <ts 5010 1000>"),
    ];
    assert_eq!(taken(&mut t, &packets), 2);
    let before = t.taken();
    t.client(
        0,
        ". 1:1(0) ack 101 win 512 <ts 1000 5000,sack 201:301,dss ack 101>",
    )
    .gives(&["server . 1:1(0) ack 101 win 512 <ts 1000 5000>"]);
    assert_eq!(t.taken(), before);
    assert_eq!(t.moved(), "");
}

#[test]
fn ack_that_data_has_overtaken_is_owed_nothing() {
    let mut t = steady();
    let data = "P. 1:101(100) ack 1 win 600 <ts 900020 5000,dss ack 101 map 1:101@1>";
    assert_eq!(taken(&mut t, &[(1, data)]), 1);
    let _ = t.server(". 101:101(0) ack 101 win 64 <ts 5010 1000>");
    let _ = t.client(1, ". 1:1(0) ack 1 win 600 <ts 900020 5000,dss ack 101>");
    let _ = t.server(". 101:201(100) ack 101 win 64 <ts 5010 1000>");
    assert_eq!(t.installed().len(), 1);
    // Data is.
    let _ = t.client(1, data);
    let _ = t.server(". 201:301(100) ack 101 win 64 <ts 5010 1000>");
    assert_eq!(t.installed().len(), 0);
    let _ = t.server(". 301:301(0) ack 101 win 64 <ts 5010 1000>");
    assert_eq!(t.installed().len(), 1);
    let _ = t.moved();
}

#[test]
fn answer_to_a_probe_goes_where_that_was_although_another_subflow_was_heard_since() {
    let mut t = steady();
    t.client(0, ". 0:0(0) ack 101 win 512 <ts 1010 5000,dss ack 101>")
        .gives(&["server . 0:0(0) ack 101 win 600 <ts 1010 5000>"]);
    let data = "P. 1:101(100) ack 1 win 600 <ts 900020 5000,dss ack 101 map 1:101@1>";
    let _ = t.client(1, data);
    t.server(". 101:101(0) ack 101 win 64 <ts 5010 1000>")
        .gives(&[
            "client0 . 101:101(0) ack 1 win 64 <ts 5010 1000,dss ack 101>",
            "client1 . 1:1(0) ack 101 win 64 <ts 5010 900020,dss ack 101>",
        ]);
    assert_eq!(t.moved(), "");
}

#[test]
fn data_down_is_the_answer_that_a_repetition_is_owed() {
    let mut t = alone();
    let packets = [(
        0,
        "P. 1:101(100) ack 101 win 512 <ts 1000 5000,dss ack 101 map 1:101@1>",
    )];
    assert_eq!(taken(&mut t, &packets), 1);
    let _ = t.server(". 101:101(0) ack 101 win 64 <ts 5010 1000>");
    let _ = t.client(
        0,
        "P. 1:101(100) ack 101 win 512 <ts 1000 5000,dss ack 101 map 1:101@1>",
    );
    assert_eq!(t.installed().len(), 0);
    let _ = t.server(". 101:201(100) ack 101 win 64 <ts 5010 1000>");
    assert_eq!(t.installed().len(), 1);
    let _ = t.moved();
}

#[test]
fn data_that_the_server_had_from_elsewhere_refuses() {
    let mut t = alone();
    let packets = [(
        0,
        "P. 1:101(100) ack 101 win 512 <ts 1000 5000,dss ack 101 map 1:101@1>",
    )];
    assert_eq!(taken(&mut t, &packets), 1);
    let _ = t.server(". 101:101(0) ack 101 win 64 <ts 5010 1000>");
    assert_eq!(t.installed().len(), 1);
    // The client sends it anew; the server's next packet ACKs that, whatever it is about.
    let _ = t.client(
        0,
        "P. 101:201(100) ack 101 win 512 <ts 1000 5000,dss ack 101 map 1:101@101>",
    );
    assert_eq!(t.installed().len(), 0);
    t.server(". 101:201(100) ack 101 win 64 <ts 5010 1000>")
        .gives(&[
            "client0 . 101:201(100) ack 201 win 64 <ts 5010 1000,dss ack 101 map 101:201@101>",
        ]);
    let _ = t.moved();
}

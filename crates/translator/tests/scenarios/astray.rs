//! Packets have gone past FlexCP while its rules or routes were missing: both ends are asked.

use crate::support::{Scenario, Setup};

/// One connection with two subflows, on which each end has sent something.
fn asked(t: &mut Scenario) {
    t.server("P. 1:101(100) ack 1")
        .gives(&["client0 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>"]);
    t.client(0, "P. 1:51(50) ack 101 <dss ack 101 map 1:51@1>")
        .gives(&["server P. 1:51(50) ack 101 win 512"]);
    t.server(". 101:101(0) ack 51")
        .gives(&["client0 . 101:101(0) ack 51 win 64 <dss ack 51>"]);
    t.note_astray();
    t.timeout().gives(&[
        "server . 50:50(0) ack 101 win 512",
        "client0 . 100:100(0) ack 51 win 64 <dss ack 51>",
        "client1 . 0:0(0) ack 1 win 64 <dss ack 51>",
    ]);
}

#[test]
fn ends_are_asked_twice_for_their_numbers() {
    let mut t = Setup::new().two_subflows();
    asked(&mut t);
    assert_eq!(t.next_timeout(), Some(1000));
    t.at(1000);
    t.timeout().gives(&[
        "server . 50:50(0) ack 101 win 512",
        "client0 . 100:100(0) ack 51 win 64 <dss ack 51>",
        "client1 . 0:0(0) ack 1 win 64 <dss ack 51>",
    ]);
    assert_eq!(t.next_timeout(), Some(3000));
    t.at(3000);
    t.timeout().gives(&[]);
    assert_eq!(t.moved(), "ends_asked+6");
}

#[test]
fn ends_that_agree_go_on() {
    let mut t = Setup::new().two_subflows();
    asked(&mut t);
    t.server(". 101:101(0) ack 51")
        .gives(&["client0 . 101:101(0) ack 51 win 64 <dss ack 51>"]);
    t.client(1, ". 1:1(0) ack 1 <dss ack 101>")
        .gives(&["drop stale_ack"]);
    t.server("P. 101:201(100) ack 51")
        .gives(&["client0 P. 101:201(100) ack 51 win 64 <dss ack 51 map 101:201@101>"]);
    assert_eq!(t.state(), "translating");
    let _ = t.moved();
}

#[test]
fn server_that_has_forgotten_the_connection_the_client_hears_of_it() {
    let mut t = Setup::new().two_subflows();
    asked(&mut t);
    t.server("R 101:101(0) win 0").gives(&[
        "client0 R. 101:101(0) ack 51 win 64 <fastclose>",
        "client1 R. 1:1(0) ack 1 win 64 <fastclose>",
    ]);
    assert_eq!(t.why(), "rst.server_reset+2");
    let _ = t.moved();
}

#[test]
fn server_that_has_what_never_came_here_both_ends_are_told() {
    let mut t = Setup::new().two_subflows();
    asked(&mut t);
    t.server(". 101:101(0) ack 81").gives(&[
        "client0 R. 101:101(0) ack 51 win 64 <fastclose>",
        "client1 R. 1:1(0) ack 1 win 64 <fastclose>",
        "server R. 51:51(0) ack 101 win 512",
        "server R. 81:81(0) ack 101 win 512",
    ]);
    assert_eq!(t.state(), "reset");
    assert_eq!(t.why(), "rst.after_reset+1 rst.astray+3");
    let _ = t.moved();
}

#[test]
fn client_that_has_what_never_came_here_both_ends_are_told() {
    let mut t = Setup::new().two_subflows();
    asked(&mut t);
    t.client(1, ". 1:1(0) ack 41 <dss ack 101>").gives(&[
        "client0 R. 101:101(0) ack 51 win 64 <fastclose>",
        "client1 R. 1:1(0) ack 1 win 64 <fastclose>",
        "server R. 51:51(0) ack 101 win 512",
        "client1 R. 41:41(0) ack 1 win 64 <fastclose>",
    ]);
    assert_eq!(t.state(), "reset");
    assert_eq!(t.why(), "rst.after_reset+1 rst.astray+3");
    let _ = t.moved();
}

#[test]
fn ack_of_what_was_never_sent_is_anybodys_at_other_times() {
    let mut t = Setup::new().two_subflows();
    asked(&mut t);
    t.at(1000);
    let _ = t.timeout();
    t.at(3000);
    let _ = t.timeout();
    t.server(". 101:101(0) ack 81")
        .gives(&["drop ack_of_unsent"]);
    t.client(1, ". 1:1(0) ack 41 <dss ack 101>")
        .gives(&["drop ack_of_unsent"]);
    assert_eq!(t.state(), "translating");
    let _ = t.moved();
}

#[test]
fn plain_connection_in_reverse_mode_is_asked_at_what_its_ends_have_acked() {
    let mut t = Setup::new().backends(1).start();
    let _ = t.client(0, "S 0:0(0) win 65535 <mss 1460,sackok,ws 8>");
    let _ = t.server("S. 0:0(0) ack 1 win 65160 <mss 1460,sackok,ws 7>");
    let _ = t.client(0, ". 1:1(0) ack 1");
    let _ = t.client(0, "P. 1:51(50) ack 1");
    let _ = t.server(". 1:1(0) ack 51");
    t.note_astray();
    t.timeout().gives(&[
        "server0 . 50:50(0) ack 1 win 0",
        "client0 . 0:0(0) ack 51 win 0",
    ]);
    t.server("R 1:1(0) win 0")
        .gives(&["client0 R 1:1(0) win 0"]);
    let _ = t.moved();
}

#[test]
fn plain_connection_on_the_path_needs_no_asking() {
    let mut t = Setup::new().start();
    let _ = t.client(0, "S 0:0(0) win 65535 <mss 1460,sackok,ws 8,capable>");
    let _ = t.server("S. 0:0(0) ack 1 win 65160 <mss 1460,sackok,ws 7>");
    let _ = t.client(0, ". 1:1(0) ack 1");
    t.note_astray();
    t.timeout().gives(&[]);
    let _ = t.moved();
}

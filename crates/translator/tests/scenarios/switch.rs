//! Which subflow carries what goes down: one at a time, and another when that one dies, is closed, is
//! made backup, or stays silent.

use crate::support::{Scenario, Setup, millis};

/// 100 bytes went down on flow 0.
fn first(t: &mut Scenario) {
    t.server("P. 1:101(100) ack 1")
        .gives(&["client0 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>"]);
}

#[test]
fn two_subflows_retransmission_after_silence_goes_to_the_other() {
    let mut t = Scenario::two_subflows();
    first(&mut t);
    t.at(200);
    t.server("P. 1:101(100) ack 1")
        .gives(&["client1 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>"]);
    t.server("P. 101:201(100) ack 1")
        .gives(&["client1 P. 101:201(100) ack 1 win 64 <dss ack 1 map 101:201@101>"]);
    assert_eq!(t.moved(), "subflow_switch+1 retransmitted_down_bytes+100");
    assert_eq!(t.subflows(), ["0", "1 active"]);
}

#[test]
fn two_subflows_retransmission_soon_stays() {
    let mut t = Scenario::two_subflows();
    first(&mut t);
    t.at(99);
    t.server("P. 1:101(100) ack 1")
        .gives(&["client0 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>"]);
    assert_eq!(t.moved(), "retransmitted_down_bytes+100");
}

#[test]
fn two_subflows_retransmission_stays_while_the_subflow_is_heard() {
    let mut t = Scenario::two_subflows();
    first(&mut t);
    t.server("P. 101:201(100) ack 1")
        .gives(&["client0 P. 101:201(100) ack 1 win 64 <dss ack 1 map 101:201@101>"]);
    t.at(150);
    t.client(0, ". 1:1(0) ack 1 <sack 101:201,dss ack 1>")
        .gives(&["server . 1:1(0) ack 1 win 512 <sack 101:201>"]);
    t.at(200);
    t.server("P. 1:101(100) ack 1")
        .gives(&["client0 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>"]);
    assert_eq!(t.moved(), "retransmitted_down_bytes+100");
}

#[test]
fn two_subflows_silence_is_configurable() {
    let mut t = Setup::new()
        .timeouts(|timeouts| timeouts.silence = millis(500))
        .two_subflows();
    first(&mut t);
    t.at(400);
    t.server("P. 1:101(100) ack 1")
        .gives(&["client0 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>"]);
    t.at(500);
    t.server("P. 1:101(100) ack 1")
        .gives(&["client1 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>"]);
    assert_eq!(t.moved(), "subflow_switch+1 retransmitted_down_bytes+200");
}

#[test]
fn two_subflows_silence_without_a_retransmission_changes_nothing() {
    let mut t = Scenario::two_subflows();
    first(&mut t);
    t.at(5000);
    t.server("P. 101:201(100) ack 1")
        .gives(&["client0 P. 101:201(100) ack 1 win 64 <dss ack 1 map 101:201@101>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn established_silence_of_the_only_subflow_changes_nothing() {
    let mut t = Scenario::established();
    first(&mut t);
    t.at(5000);
    t.server("P. 1:101(100) ack 1")
        .gives(&["client0 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>"]);
    assert_eq!(t.moved(), "retransmitted_down_bytes+100");
}

#[test]
fn two_subflows_both_silent_data_goes_on_over_both() {
    let mut t = Scenario::two_subflows();
    first(&mut t);
    t.at(200);
    t.server("P. 1:101(100) ack 1")
        .gives(&["client1 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>"]);
    t.at(600);
    t.server("P. 1:101(100) ack 1").gives(&[
        "client0 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>",
        "client1 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>",
    ]);
    assert_eq!(t.moved(), "subflow_switch+2 retransmitted_down_bytes+300");
}

#[test]
fn switched_subflow_that_is_heard_again_gets_old_data_but_no_new() {
    let mut t = Scenario::two_subflows();
    first(&mut t);
    t.at(200);
    t.server("P. 1:101(100) ack 1")
        .gives(&["client1 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>"]);
    t.client(0, "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1>")
        .gives(&["server P. 1:101(100) ack 1 win 512"]);
    t.server("P. 101:201(100) ack 1")
        .gives(&["client1 P. 101:201(100) ack 1 win 64 <dss ack 1 map 101:201@101>"]);
    assert_eq!(t.moved(), "subflow_switch+1 retransmitted_down_bytes+100");
}

#[test]
fn two_subflows_rst_on_the_active_one_moves_its_data() {
    let mut t = Scenario::two_subflows();
    first(&mut t);
    t.client(0, "R 1:1(0) win 0").gives(&[]);
    t.server("P. 1:101(100) ack 1")
        .gives(&["client1 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>"]);
    t.server("P. 101:201(100) ack 1")
        .gives(&["client1 P. 101:201(100) ack 1 win 64 <dss ack 1 map 101:201@101>"]);
    assert_eq!(
        t.moved(),
        "mp_rst_rx+1 subflow_switch+1 retransmitted_down_bytes+100"
    );
}

#[test]
fn two_subflows_fin_on_the_active_one_moves_its_data() {
    let mut t = Scenario::two_subflows();
    first(&mut t);
    t.client(0, "F. 1:1(0) ack 101 <dss ack 101>").gives(&[
        "server . 1:1(0) ack 101 win 512",
        "client0 F. 101:101(0) ack 2 win 64 <dss ack 1>",
    ]);
    t.server("P. 101:201(100) ack 1")
        .gives(&["client1 P. 1:101(100) ack 1 win 64 <dss ack 1 map 101:201@1>"]);
    assert_eq!(t.moved(), "subflow_switch+1");
}

#[test]
fn two_subflows_prio_backup_on_the_active_one_moves_new_data_only() {
    let mut t = Scenario::two_subflows();
    first(&mut t);
    t.client(0, ". 1:1(0) ack 1 <dss ack 1,prio b>").gives(&[]);
    t.server("P. 101:201(100) ack 1")
        .gives(&["client1 P. 1:101(100) ack 1 win 64 <dss ack 1 map 101:201@1>"]);
    t.server("P. 1:101(100) ack 1")
        .gives(&["client0 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>"]);
    assert_eq!(
        t.moved(),
        "mp_prio_rx+1 subflow_switch+1 retransmitted_down_bytes+100"
    );
    assert_eq!(t.subflows(), ["0 backup", "1 active"]);
}

#[test]
fn two_subflows_retransmission_over_both_is_split_between_them() {
    let mut t = Scenario::two_subflows();
    first(&mut t);
    t.client(0, ". 1:1(0) ack 1 <dss ack 1,prio b>").gives(&[]);
    t.server("P. 101:201(100) ack 1")
        .gives(&["client1 P. 1:101(100) ack 1 win 64 <dss ack 1 map 101:201@1>"]);
    t.server("P. 51:151(100) ack 1").gives(&[
        "client0 P. 51:101(50) ack 1 win 64 <dss ack 1 map 1:101@1>",
        "client1 P. 1:51(50) ack 1 win 64 <dss ack 1 map 101:201@1>",
    ]);
    assert_eq!(
        t.moved(),
        "mp_prio_rx+1 subflow_switch+1 retransmitted_down_bytes+100"
    );
}

#[test]
fn two_subflows_retransmission_behind_a_switch_with_new_data_is_split() {
    let mut t = Scenario::two_subflows();
    first(&mut t);
    t.client(0, ". 1:1(0) ack 1 <dss ack 1,prio b>").gives(&[]);
    t.server("P. 51:201(150) ack 1").gives(&[
        "client0 P. 51:101(50) ack 1 win 64 <dss ack 1 map 1:101@1>",
        "client1 P. 1:101(100) ack 1 win 64 <dss ack 1 map 101:201@1>",
    ]);
    assert_eq!(
        t.moved(),
        "mp_prio_rx+1 subflow_switch+1 retransmitted_down_bytes+50"
    );
}

#[test]
fn two_subflows_prio_on_a_subflow_without_data_is_obeyed_and_not_passed_on() {
    let mut t = Scenario::two_subflows();
    t.client(1, ". 1:1(0) ack 1 <dss ack 1,prio b>").gives(&[]);
    assert_eq!(t.subflows(), ["0 active", "1 backup"]);
    t.client(1, ". 1:1(0) ack 1 <dss ack 1,prio>").gives(&[]);
    assert_eq!(t.subflows(), ["0 active", "1"]);
    assert_eq!(t.moved(), "mp_prio_rx+2");
}

#[test]
fn two_subflows_prio_with_data_is_obeyed() {
    let mut t = Scenario::two_subflows();
    t.client(0, "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1,prio b>")
        .gives(&["server P. 1:101(100) ack 1 win 512"]);
    t.server("P. 1:101(100) ack 1")
        .gives(&["client1 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>"]);
    assert_eq!(t.moved(), "mp_prio_rx+1 subflow_switch+1");
}

#[test]
fn two_subflows_backup_alone_is_used_when_the_other_dies() {
    let mut t = Scenario::two_subflows();
    t.client(1, ". 1:1(0) ack 1 <dss ack 1,prio b>").gives(&[]);
    first(&mut t);
    t.client(0, "R 1:1(0) win 0").gives(&[]);
    t.server("P. 101:201(100) ack 1")
        .gives(&["client1 P. 1:101(100) ack 1 win 64 <dss ack 1 map 101:201@1>"]);
    assert_eq!(t.moved(), "mp_prio_rx+1 mp_rst_rx+1 subflow_switch+1");
}

#[test]
fn two_subflows_both_backup_the_active_one_stays() {
    let mut t = Scenario::two_subflows();
    t.client(1, ". 1:1(0) ack 1 <dss ack 1,prio b>").gives(&[]);
    t.client(0, ". 1:1(0) ack 1 <dss ack 1,prio b>").gives(&[]);
    first(&mut t);
    assert_eq!(t.moved(), "mp_prio_rx+2");
}

#[test]
fn backup_in_use_gives_way_to_a_subflow_that_joins() {
    let mut t = Scenario::established();
    first(&mut t);
    t.client(0, ". 1:1(0) ack 101 <dss ack 101,prio b>")
        .gives(&["server . 1:1(0) ack 101 win 512"]);
    Setup::new().join(&mut t, 1);
    t.server("P. 101:201(100) ack 1")
        .gives(&["client1 P. 1:101(100) ack 1 win 64 <dss ack 1 map 101:201@1>"]);
    assert_eq!(
        t.moved(),
        "mp_join_syn_rx+1 mp_join_ack_rx+1 mp_prio_rx+1 subflow_switch+1"
    );
}

#[test]
fn switched_data_that_both_subflows_hold_stays_with_the_active_one() {
    let mut t = Scenario::two_subflows();
    first(&mut t);
    t.at(200);
    t.server("P. 1:101(100) ack 1")
        .gives(&["client1 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>"]);
    t.at(210);
    t.server("P. 1:101(100) ack 1")
        .gives(&["client1 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>"]);
    assert_eq!(t.moved(), "subflow_switch+1 retransmitted_down_bytes+200");
}

#[test]
fn switched_back_data_goes_behind_what_went_before() {
    let mut t = Scenario::two_subflows();
    first(&mut t);
    t.client(0, ". 1:1(0) ack 101 <dss ack 101,prio b>")
        .gives(&["server . 1:1(0) ack 101 win 512"]);
    t.server("P. 101:201(100) ack 1")
        .gives(&["client1 P. 1:101(100) ack 1 win 64 <dss ack 1 map 101:201@1>"]);
    t.client(0, ". 1:1(0) ack 101 <dss ack 101,prio>")
        .gives(&[]);
    t.client(1, ". 1:1(0) ack 101 <dss ack 201,prio b>")
        .gives(&["server . 1:1(0) ack 201 win 512"]);
    t.server("P. 201:301(100) ack 1")
        .gives(&["client0 P. 101:201(100) ack 1 win 64 <dss ack 1 map 201:301@101>"]);
    assert_eq!(t.moved(), "mp_prio_rx+3 subflow_switch+2");
}

#[test]
fn two_subflows_none_left_server_data_is_dropped() {
    let mut t = Scenario::two_subflows();
    t.client(0, "R 1:1(0) win 0").gives(&[]);
    t.client(1, "R 1:1(0) win 0").gives(&[]);
    t.server("P. 1:101(100) ack 1").gives(&["drop no_subflow"]);
    assert_eq!(t.moved(), "mp_rst_rx+2 no_subflow+1");
    assert_eq!(t.state(), "translating");
}

#[test]
fn mixed_switch_goes_over_the_other_family() {
    let mut t = Scenario::mixed();
    first(&mut t);
    t.at(200);
    t.server("P. 1:101(100) ack 1")
        .gives(&["client1 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>"]);
    assert_eq!(t.moved(), "subflow_switch+1 retransmitted_down_bytes+100");
}

#[test]
fn two_subflows_silence_counts_from_when_the_data_went_down() {
    let mut t = Scenario::two_subflows();
    t.at(5000);
    first(&mut t);
    t.at(5050);
    t.server("P. 1:101(100) ack 1")
        .gives(&["client0 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>"]);
    assert_eq!(t.moved(), "retransmitted_down_bytes+100");
}

#[test]
fn two_subflows_silence_counts_from_the_last_ack() {
    let mut t = Scenario::two_subflows();
    first(&mut t);
    t.server("P. 101:201(100) ack 1")
        .gives(&["client0 P. 101:201(100) ack 1 win 64 <dss ack 1 map 101:201@101>"]);
    t.at(80);
    t.client(0, ". 1:1(0) ack 101 <dss ack 101>")
        .gives(&["server . 1:1(0) ack 101 win 512"]);
    // The round trip takes 80 ms, so that twice as long is no silence yet.
    t.at(239);
    t.server("P. 101:201(100) ack 1")
        .gives(&["client0 P. 101:201(100) ack 1 win 64 <dss ack 1 map 101:201@101>"]);
    t.at(240);
    t.server("P. 101:201(100) ack 1")
        .gives(&["client1 P. 1:101(100) ack 1 win 64 <dss ack 1 map 101:201@1>"]);
    assert_eq!(t.moved(), "subflow_switch+1 retransmitted_down_bytes+200");
}

#[test]
fn two_subflows_with_a_long_round_trip_silence_is_longer_too() {
    let mut t = Scenario::two_subflows();
    first(&mut t);
    t.at(300);
    t.client(0, ". 1:1(0) ack 101 <dss ack 101>")
        .gives(&["server . 1:1(0) ack 101 win 512"]);
    t.server("P. 101:201(100) ack 1")
        .gives(&["client0 P. 101:201(100) ack 1 win 64 <dss ack 1 map 101:201@101>"]);
    t.at(899);
    t.server("P. 101:201(100) ack 1")
        .gives(&["client0 P. 101:201(100) ack 1 win 64 <dss ack 1 map 101:201@101>"]);
    t.at(900);
    t.server("P. 101:201(100) ack 1")
        .gives(&["client1 P. 1:101(100) ack 1 win 64 <dss ack 1 map 101:201@1>"]);
    assert_eq!(t.moved(), "subflow_switch+1 retransmitted_down_bytes+200");
}

#[test]
fn two_subflows_while_both_are_silent_retransmissions_take_turns() {
    let mut t = Scenario::two_subflows();
    first(&mut t);
    t.at(200);
    let _ = t.server("P. 1:101(100) ack 1");
    assert_eq!(t.subflows(), ["0", "1 active"]);
    t.at(600);
    t.server("P. 1:101(100) ack 1").gives(&[
        "client0 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>",
        "client1 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>",
    ]);
    // And over both no more often than that.
    t.at(650);
    t.server("P. 1:101(100) ack 1")
        .gives(&["client0 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>"]);
    t.at(1400);
    t.server("P. 1:101(100) ack 1").gives(&[
        "client1 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>",
        "client0 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>",
    ]);
    t.client(1, ". 1:1(0) ack 101 <dss ack 101>")
        .gives(&["server . 1:1(0) ack 101 win 512"]);
    assert_eq!(t.moved(), "subflow_switch+3 retransmitted_down_bytes+600");
}

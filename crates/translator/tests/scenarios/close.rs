//! The orderly end: FIN and DATA_FIN, half-close both ways, and the FINs of subflows (RFC 8684 section
//! 3.3.3).

use crate::support::{Scenario, Setup, millis};

pub(crate) const SERVER_FIN: &str = "F. 1:1(0) ack 1";
pub(crate) const DATA_FIN_DOWN: &str = "client0 . 1:1(0) ack 1 win 64 <dss ack 1 fin 1>";
pub(crate) const DATA_FIN: &str = ". 1:1(0) ack 1 <dss ack 1 fin 1>";
pub(crate) const FIN_UP: &str = "server F. 1:1(0) ack 1 win 512";

#[test]
fn established_server_fin_becomes_data_fin() {
    let mut t = Scenario::established();
    t.server(SERVER_FIN).gives(&[DATA_FIN_DOWN]);
    assert_eq!(t.moved(), "");
    assert_eq!(t.state(), "half-closed");
}

#[test]
fn established_server_fin_again_ends_the_subflow_too() {
    // A client that has fallen back unnoticed understands nothing else.
    let mut t = Scenario::established();
    t.server(SERVER_FIN).gives(&[DATA_FIN_DOWN]);
    // That may be a data ACK that got lost.
    t.at(999);
    t.server(SERVER_FIN).gives(&[DATA_FIN_DOWN]);
    for at in [1000, 1300] {
        t.at(at);
        t.server(SERVER_FIN)
            .gives(&["client0 F. 1:1(0) ack 1 win 64 <dss ack 1 fin 1>"]);
    }
    assert_eq!(t.moved(), "");
    // One that has not goes on: its subflow is open in the other direction.
    t.client(0, "P. 1:101(100) ack 2 <dss ack 2 map 1:101@1>")
        .gives(&["server P. 1:101(100) ack 2 win 512"]);
    assert_eq!(t.state(), "half-closed");
}

#[test]
fn established_server_fin_with_data_goes_alone_behind_it() {
    let mut t = Scenario::established();
    for _ in 0..2 {
        t.server("FP. 1:101(100) ack 1").gives(&[
            "client0 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>",
            "client0 . 101:101(0) ack 1 win 64 <dss ack 1 fin 101>",
        ]);
    }
    assert_eq!(t.moved(), "retransmitted_down_bytes+100");
}

#[test]
fn established_server_fin_with_data_that_went_without_it_goes_alone_behind_it() {
    let mut t = Scenario::established();
    t.server("P. 1:101(100) ack 1")
        .gives(&["client0 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>"]);
    t.server("FP. 1:101(100) ack 1").gives(&[
        "client0 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>",
        "client0 . 101:101(0) ack 1 win 64 <dss ack 1 fin 101>",
    ]);
    assert_eq!(t.moved(), "retransmitted_down_bytes+100");
}

#[test]
fn established_server_fin_with_a_part_of_the_data_again_goes_alone_behind_it() {
    let mut t = Scenario::established();
    t.server("FP. 1:101(100) ack 1").gives(&[
        "client0 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>",
        "client0 . 101:101(0) ack 1 win 64 <dss ack 1 fin 101>",
    ]);
    t.server("FP. 61:101(40) ack 1").gives(&[
        "client0 P. 61:101(40) ack 1 win 64 <dss ack 1 map 1:101@1>",
        "client0 . 101:101(0) ack 1 win 64 <dss ack 1 fin 101>",
    ]);
    assert_eq!(t.moved(), "retransmitted_down_bytes+40");
}

#[test]
fn established_server_fin_over_two_mappings_goes_behind_the_second() {
    let mut t = Scenario::established();
    t.server("P. 1:101(100) ack 1")
        .gives(&["client0 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>"]);
    t.server("FP. 51:151(100) ack 1").gives(&[
        "client0 P. 51:101(50) ack 1 win 64 <dss ack 1 map 1:101@1>",
        "client0 P. 101:151(50) ack 1 win 64 <dss ack 1 map 101:151@101>",
        "client0 . 151:151(0) ack 1 win 64 <dss ack 1 fin 151>",
    ]);
    assert_eq!(t.moved(), "retransmitted_down_bytes+50");
}

#[test]
fn established_server_fin_before_its_data_waits_for_it() {
    // It may be anybody's; the server repeats its own.
    let mut t = Scenario::established();
    t.server("F. 101:101(0) ack 1")
        .gives(&["client0 . 1:1(0) ack 1 win 64 <dss ack 1>"]);
    t.server("P. 1:101(100) ack 1")
        .gives(&["client0 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>"]);
    t.server("F. 101:101(0) ack 1")
        .gives(&["client0 . 101:101(0) ack 1 win 64 <dss ack 1 fin 101>"]);
    t.client(0, ". 1:1(0) ack 101 <dss ack 102>")
        .gives(&["server . 1:1(0) ack 102 win 512"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn established_server_fin_behind_data_that_the_client_has_goes_alone() {
    let mut t = Scenario::established();
    t.server("P. 1:101(100) ack 1")
        .gives(&["client0 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>"]);
    t.client(0, ". 1:1(0) ack 101 <dss ack 101>")
        .gives(&["server . 1:1(0) ack 101 win 512"]);
    t.server("FP. 1:101(100) ack 1")
        .gives(&["client0 P. 101:101(0) ack 1 win 64 <dss ack 1 fin 101>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn ack_in_data_behind_the_servers_fin_is_told_all_the_same() {
    let mut t = Scenario::established();
    t.server("FP. 1:101(100) ack 1").gives(&[
        "client0 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>",
        "client0 . 101:101(0) ack 1 win 64 <dss ack 1 fin 101>",
    ]);
    t.client(0, "P. 1:51(50) ack 1 <dss ack 1 map 1:51@1>")
        .gives(&["server P. 1:51(50) ack 1 win 512"]);
    t.server("P. 1:201(200) ack 51").gives(&[
        "drop unexpected",
        "client0 . 101:101(0) ack 51 win 64 <dss ack 51>",
    ]);
    assert_eq!(t.moved(), "unexpected+1");
}

#[test]
fn two_subflows_another_fin_does_not_turn_the_ack_back() {
    let mut t = Scenario::two_subflows();
    let fin = "client0 F. 1:1(0) ack 2 win 509 <dss ack 1>";
    t.client(0, "F. 1:1(0) ack 1 <dss ack 1>").gives(&[fin]);
    t.client(0, "F. 1:3(2) ack 1 <dss ack 1 map 1:3@1>")
        .gives(&["server . 1:3(2) ack 1 win 512", fin]);
    assert_eq!(t.moved(), "");
}

#[test]
fn two_subflows_fin_that_the_server_repeats_goes_over_the_other_path_too() {
    let mut t = Scenario::two_subflows();
    t.server(SERVER_FIN).gives(&[DATA_FIN_DOWN]);
    // Nothing says whether the path that it went over is there.
    t.at(300);
    t.server(SERVER_FIN).gives(&[
        DATA_FIN_DOWN,
        "client1 . 1:1(0) ack 1 win 64 <dss ack 1 fin 1>",
    ]);
    t.client(1, ". 1:1(0) ack 1 <dss ack 2>")
        .gives(&["server . 1:1(0) ack 2 win 512"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn server_data_behind_its_fin_is_dropped() {
    let mut t = Scenario::established();
    t.server("FP. 1:101(100) ack 1").gives(&[
        "client0 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>",
        "client0 . 101:101(0) ack 1 win 64 <dss ack 1 fin 101>",
    ]);
    t.server("P. 1:201(200) ack 1").gives(&["drop unexpected"]);
    t.server("P. 102:201(99) ack 1").gives(&["drop unexpected"]);
    t.server("F. 51:51(0) ack 1").gives(&["drop unexpected"]);
    t.server(". 102:102(0) ack 1")
        .gives(&["client0 . 101:101(0) ack 1 win 64 <dss ack 1>"]);
    assert_eq!(t.moved(), "unexpected+3");
}

#[test]
fn client_data_behind_its_data_fin_is_dropped() {
    let mut t = Scenario::established();
    t.client(0, "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1 fin>")
        .gives(&["server FP. 1:101(100) ack 1 win 512"]);
    t.client(0, "P. 101:201(100) ack 1 <dss ack 1 map 101:201@101>")
        .gives(&["drop bad_mapping"]);
    assert_eq!(t.moved(), "bad_mapping+1");
}

#[test]
fn half_closed_by_the_server_client_data_goes_up() {
    let mut t = Scenario::established();
    t.server(SERVER_FIN).gives(&[DATA_FIN_DOWN]);
    t.client(0, ". 1:1(0) ack 1 <dss ack 2>")
        .gives(&["server . 1:1(0) ack 2 win 512"]);
    t.client(0, "P. 1:101(100) ack 1 <dss ack 2 map 1:101@1>")
        .gives(&["server P. 1:101(100) ack 2 win 512"]);
    t.server(". 2:2(0) ack 101")
        .gives(&["client0 . 1:1(0) ack 101 win 64 <dss ack 101>"]);
    assert_eq!(t.moved(), "");
    assert_eq!(t.state(), "half-closed");
}

#[test]
fn half_closed_by_the_server_fin_again_after_its_data_ack_is_acknowledged_by_flexcp() {
    let mut t = Scenario::established();
    t.server(SERVER_FIN).gives(&[DATA_FIN_DOWN]);
    t.client(0, ". 1:1(0) ack 1 <dss ack 2>")
        .gives(&["server . 1:1(0) ack 2 win 512"]);
    t.server(SERVER_FIN)
        .gives(&["server . 1:1(0) ack 2 win 512"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn established_data_fin_becomes_fin() {
    let mut t = Scenario::established();
    t.client(0, DATA_FIN).gives(&[FIN_UP]);
    assert_eq!(t.moved(), "");
    assert_eq!(t.state(), "half-closed");
}

#[test]
fn established_data_fin_again_becomes_fin_again() {
    let mut t = Scenario::established();
    t.client(0, DATA_FIN).gives(&[FIN_UP]);
    t.client(0, DATA_FIN).gives(&[FIN_UP]);
    assert_eq!(t.moved(), "");
}

#[test]
fn established_short_data_fin_becomes_fin() {
    let mut t = Scenario::established();
    t.client(0, ". 1:1(0) ack 1 <dss ack32 1 fin32 1>")
        .gives(&[FIN_UP]);
    assert_eq!(t.moved(), "");
}

#[test]
fn established_data_fin_with_data_becomes_fin_with_data() {
    let mut t = Scenario::established();
    for _ in 0..2 {
        t.client(0, "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1 fin>")
            .gives(&["server FP. 1:101(100) ack 1 win 512"]);
    }
    t.server(". 1:1(0) ack 102")
        .gives(&["client0 . 1:1(0) ack 101 win 64 <dss ack 102>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn established_data_fin_of_a_mapping_over_several_packets_goes_with_the_last() {
    let mut t = Scenario::established();
    t.client(0, ". 1:101(100) ack 1 <dss ack 1 map 1:201@1 fin>")
        .gives(&["server . 1:101(100) ack 1 win 512"]);
    t.client(0, "P. 101:201(100) ack 1 <dss ack 1 map 1:201@1 fin>")
        .gives(&["server FP. 101:201(100) ack 1 win 512"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn established_data_fin_that_contradicts_the_first_is_dropped() {
    let mut t = Scenario::established();
    t.client(0, DATA_FIN).gives(&[FIN_UP]);
    t.client(0, ". 1:1(0) ack 1 <dss ack 1 fin 2>")
        .gives(&["drop bad_mapping"]);
    assert_eq!(t.moved(), "bad_mapping+1");
}

#[test]
fn established_data_fin_before_the_end_of_the_data_is_dropped() {
    let mut t = Scenario::established();
    t.client(0, "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1>")
        .gives(&["server P. 1:101(100) ack 1 win 512"]);
    t.client(0, ". 101:101(0) ack 1 <dss ack 1 fin 100>")
        .gives(&["drop bad_mapping"]);
    t.client(0, ". 101:101(0) ack 1 <dss ack 1 fin 101>")
        .gives(&["server F. 101:101(0) ack 1 win 512"]);
    assert_eq!(t.moved(), "bad_mapping+1");
}

#[test]
fn two_subflows_data_fin_on_the_joined_one_becomes_fin() {
    let mut t = Scenario::two_subflows();
    t.client(0, "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1>")
        .gives(&["server P. 1:101(100) ack 1 win 512"]);
    t.client(1, ". 1:1(0) ack 1 <dss ack 1 fin 101>")
        .gives(&["server F. 101:101(0) ack 1 win 512"]);
    t.server(". 1:1(0) ack 102")
        .gives(&["client0 . 1:1(0) ack 101 win 64 <dss ack 102>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn two_subflows_server_ack_of_data_fin_alone_goes_where_the_client_was_heard() {
    let mut t = Scenario::two_subflows();
    t.client(1, DATA_FIN).gives(&[FIN_UP]);
    t.server(". 1:1(0) ack 2")
        .gives(&["client1 . 1:1(0) ack 1 win 64 <dss ack 2>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn half_closed_by_the_client_server_data_goes_down() {
    let mut t = Scenario::established();
    t.client(0, DATA_FIN).gives(&[FIN_UP]);
    t.server(". 1:1(0) ack 2")
        .gives(&["client0 . 1:1(0) ack 1 win 64 <dss ack 2>"]);
    t.server("P. 1:101(100) ack 2")
        .gives(&["client0 P. 1:101(100) ack 1 win 64 <dss ack 2 map 1:101@1>"]);
    t.client(0, ". 1:1(0) ack 101 <dss ack 101>")
        .gives(&["server . 2:2(0) ack 101 win 512"]);
    assert_eq!(t.moved(), "");
    assert_eq!(t.state(), "half-closed");
}

#[test]
fn half_closed_by_the_client_with_a_subflow_fin_server_data_still_goes_down() {
    // A FIN on a subflow closes one direction only, as in TCP.
    let mut t = Scenario::established();
    let _ = t.client(0, "F. 1:1(0) ack 1 <dss ack 1 fin 1>");
    let outcome = t.server("P. 1:101(100) ack 2");
    assert!(
        outcome.lines()[0].starts_with("client0 P. 1:101(100)"),
        "{:?}",
        outcome.lines()
    );
    let _ = t.moved();
}

#[test]
fn two_subflows_fin_on_one_concerns_that_one_alone() {
    let mut t = Scenario::two_subflows();
    t.client(1, "F. 1:1(0) ack 1 <dss ack 1>")
        .gives(&["client1 F. 1:1(0) ack 2 win 509 <dss ack 1>"]);
    t.client(1, ". 2:2(0) ack 2 <dss ack 1>").gives(&[]);
    assert_eq!(t.subflows(), ["0 active"]);
    t.client(0, "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1>")
        .gives(&["server P. 1:101(100) ack 1 win 512"]);
    assert_eq!(t.moved(), "");
    assert_eq!(t.state(), "translating");
}

#[test]
fn two_subflows_fin_with_data_is_answered_when_the_server_has_the_data() {
    let mut t = Scenario::two_subflows();
    t.client(1, "FP. 1:101(100) ack 1 <dss ack 1 map 1:101@1>")
        .gives(&["server P. 1:101(100) ack 1 win 512"]);
    t.server(". 1:1(0) ack 101").gives(&[
        "client1 . 1:1(0) ack 102 win 64 <dss ack 101>",
        "client1 F. 1:1(0) ack 102 win 64 <dss ack 101>",
    ]);
    assert_eq!(t.moved(), "");
}

#[test]
fn two_subflows_fin_before_its_data_waits_for_it() {
    let mut t = Scenario::two_subflows();
    t.client(1, "F. 101:101(0) ack 1 <dss ack 1>").gives(&[]);
    t.client(1, "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1>")
        .gives(&["server P. 1:101(100) ack 1 win 512"]);
    let outcome = t.server(". 1:1(0) ack 101");
    assert_eq!(
        outcome.lines().last().expect("a FIN"),
        "client1 F. 1:1(0) ack 102 win 64 <dss ack 101>"
    );
    assert_eq!(t.moved(), "");
}

#[test]
fn two_subflows_fin_never_takes_up_a_data_number() {
    let mut t = Scenario::two_subflows();
    let _ = t.client(1, "F. 1:1(0) ack 1 <dss ack 1>");
    t.client(0, "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1>")
        .gives(&["server P. 1:101(100) ack 1 win 512"]);
    t.client(0, ". 101:101(0) ack 1 <dss ack 1 fin 101>")
        .gives(&["server F. 101:101(0) ack 1 win 512"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn closing_subflow_that_is_never_confirmed_expires() {
    let mut t = Scenario::two_subflows();
    let _ = t.client(1, "F. 1:1(0) ack 1 <dss ack 1>");
    assert_eq!(t.next_timeout(), Some(1000), "its FIN may have got lost");
    t.at(10_000);
    t.timeout().gives(&[]);
    assert_eq!(t.subflows(), ["0 active"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn closing_subflow_still_gets_acks_for_its_data() {
    let mut t = Scenario::two_subflows();
    t.client(1, "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1>")
        .gives(&["server P. 1:101(100) ack 1 win 512"]);
    t.client(1, "F. 101:101(0) ack 1 <dss ack 1>").gives(&[]);
    t.server(". 1:1(0) ack 51")
        .gives(&["client1 . 1:1(0) ack 51 win 64 <dss ack 51>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn established_fin_of_the_only_subflow_closes_one_direction_of_it() {
    let mut t = Scenario::established();
    t.client(0, "F. 1:1(0) ack 1 <dss ack 1>")
        .gives(&["client0 . 1:1(0) ack 2 win 509 <dss ack 1>"]);
    t.client(0, "F. 1:1(0) ack 1 <dss ack 1>")
        .gives(&["client0 . 1:1(0) ack 2 win 509 <dss ack 1>"]);
    assert_eq!(t.state(), "translating");
    t.server("P. 1:101(100) ack 1")
        .gives(&["client0 P. 1:101(100) ack 2 win 64 <dss ack 1 map 1:101@1>"]);
    t.client(0, ". 2:2(0) ack 101 <dss ack 101>")
        .gives(&["server . 1:1(0) ack 101 win 512"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn half_closed_by_the_client_with_a_subflow_fin_the_subflow_ends_with_the_connection() {
    let mut t = Scenario::established();
    t.client(0, "F. 1:1(0) ack 1 <dss ack 1 fin 1>").gives(&[
        "server F. 1:1(0) ack 1 win 512",
        "client0 . 1:1(0) ack 2 win 509 <dss ack 1>",
    ]);
    t.server("FP. 1:101(100) ack 2").gives(&[
        "client0 P. 1:101(100) ack 2 win 64 <dss ack 2 map 1:101@1>",
        "client0 . 101:101(0) ack 2 win 64 <dss ack 2 fin 101>",
    ]);
    t.client(0, ". 2:2(0) ack 101 <dss ack 102>").gives(&[
        "server . 2:2(0) ack 102 win 512",
        "client0 F. 101:101(0) ack 2 win 64 <dss ack 2>",
    ]);
    t.client(0, ". 2:2(0) ack 102 <dss ack 102>").gives(&[]);
    assert_eq!(t.subflows(), Vec::<String>::new());
    assert_eq!(t.moved(), "");
}

#[test]
fn fin_of_the_only_subflow_then_a_join_the_connection_goes_on() {
    let mut t = Scenario::established();
    let _ = t.client(0, "F. 1:1(0) ack 1 <dss ack 1>");
    let _ = t.client(1, "S 0:0(0) win 65535 <mss 1460,sackok,ws 8,join>");
    t.client(1, ". 1:1(0) ack 1 win 512 <join>").gives(&[
        "client1 . 1:1(0) ack 1 win 509 <dss ack 1>",
        "client0 F. 1:1(0) ack 2 win 509 <dss ack 1>",
    ]);
    t.client(1, "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1>")
        .gives(&["server P. 1:101(100) ack 1 win 512"]);
    t.client(0, ". 2:2(0) ack 2 <dss ack 1>").gives(&[]);
    assert_eq!(t.subflows(), ["1"]);
    t.server("P. 1:101(100) ack 101")
        .gives(&["client1 P. 1:101(100) ack 101 win 64 <dss ack 101 map 1:101@1>"]);
    let _ = t.moved();
}

#[test]
fn server_fin_goes_down_on_the_subflow_that_is_left() {
    let mut t = Scenario::two_subflows();
    t.client(0, "R 1:1(0) win 0").gives(&[]);
    t.server(SERVER_FIN)
        .gives(&["client1 . 1:1(0) ack 1 win 64 <dss ack 1 fin 1>"]);
    assert_eq!(t.moved(), "mp_rst_rx+1 subflow_switch+1");
}

#[test]
fn server_fin_again_after_silence_goes_down_on_the_other_subflow() {
    let mut t = Scenario::two_subflows();
    t.server("FP. 1:101(100) ack 1").gives(&[
        "client0 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>",
        "client0 . 101:101(0) ack 1 win 64 <dss ack 1 fin 101>",
    ]);
    t.at(200);
    t.server("FP. 1:101(100) ack 1").gives(&[
        "client1 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>",
        "client1 . 101:101(0) ack 1 win 64 <dss ack 1 fin 101>",
    ]);
    assert_eq!(t.moved(), "subflow_switch+1 retransmitted_down_bytes+100");
}

#[test]
fn established_server_fin_again_while_data_is_missing_takes_no_number_on_the_subflow() {
    // The client has ACKed the data on the subflow and dropped it: it still needs a fresh number.
    let mut t = Scenario::established();
    t.server("FP. 1:101(100) ack 1").gives(&[
        "client0 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>",
        "client0 . 101:101(0) ack 1 win 64 <dss ack 1 fin 101>",
    ]);
    t.client(0, ". 1:1(0) ack 101 <dss ack 1>")
        .gives(&["drop stale_ack"]);
    t.server("F. 101:101(0) ack 1")
        .gives(&["client0 . 101:101(0) ack 1 win 64 <dss ack 1 fin 101>"]);
    t.server("P. 1:101(100) ack 1")
        .gives(&["client0 P. 101:201(100) ack 1 win 64 <dss ack 1 map 1:101@101>"]);
    assert_eq!(t.moved(), "retransmitted_down_bytes+100 stale_ack+1");
}

#[test]
fn established_server_fin_again_to_a_client_that_has_all_data_ends_the_subflow_too() {
    // Options may be stripped on the way down, and then it understands nothing else.
    let mut t = Scenario::established();
    t.server("F. 1:1(0) ack 1")
        .gives(&["client0 . 1:1(0) ack 1 win 64 <dss ack 1 fin 1>"]);
    t.at(1000);
    t.server("F. 1:1(0) ack 1")
        .gives(&["client0 F. 1:1(0) ack 1 win 64 <dss ack 1 fin 1>"]);
    t.server("F. 1:1(0) ack 1")
        .gives(&["client0 F. 1:1(0) ack 1 win 64 <dss ack 1 fin 1>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn fin_of_the_only_subflow_without_data_fin_is_kept_for_a_join_only_so_long() {
    let mut t = Scenario::established();
    let _ = t.client(0, "F. 1:1(0) ack 1 <dss ack 1>");
    t.at(30_000);
    // The client is still heard, so it is still there.
    t.server("P. 1:101(100) ack 1")
        .gives(&["client0 P. 1:101(100) ack 2 win 64 <dss ack 1 map 1:101@1>"]);
    t.client(0, ". 2:2(0) ack 101 <dss ack 101>")
        .gives(&["server . 1:1(0) ack 101 win 512"]);
    t.at(89_999);
    t.timeout().gives(&[]);
    assert_eq!(t.state(), "translating");
    t.at(90_000);
    t.timeout().gives(&[
        "client0 R. 101:101(0) ack 2 win 64 <fastclose>",
        "server R. 1:1(0) ack 101 win 512",
    ]);
    assert_eq!(t.state(), "reset");
    assert_eq!(t.moved(), "mp_fastclose_tx+1");
}

#[test]
fn server_data_goes_to_the_subflow_that_the_client_has_not_closed() {
    let mut t = Scenario::established();
    let _ = t.client(0, "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1>");
    let _ = t.client(0, "F. 101:101(0) ack 1 <dss ack 1>");
    let _ = t.client(1, "S 0:0(0) win 65535 <mss 1460,sackok,ws 8,join>");
    // Its FIN still waits for data that the server has not ACKed.
    let _ = t.client(1, ". 1:1(0) ack 1 win 512 <join>");
    t.server("P. 1:101(100) ack 1")
        .gives(&["client1 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>"]);
    let _ = t.moved();
}

#[test]
fn data_fin_again_on_a_subflow_that_ended_with_fins_gets_its_data_ack() {
    // What ended the subflow said that, too, and may have got lost.
    let mut t = Scenario::established();
    t.server(SERVER_FIN).gives(&[DATA_FIN_DOWN]);
    t.at(1000);
    let _ = t.server(SERVER_FIN);
    let _ = t.client(0, "F. 1:1(0) ack 2 <dss ack 2 fin 1>");
    let _ = t.server(". 2:2(0) ack 2");
    t.client(0, ". 2:2(0) ack 3 <dss ack 2 fin 1>")
        .gives(&["client0 . 2:2(0) ack 2 win 64 <dss ack 2>"]);
    let _ = t.moved();
}

#[test]
fn subflow_whose_fins_cross_stays_until_its_data_is_acknowledged() {
    let mut t = Scenario::established();
    t.server(SERVER_FIN).gives(&[DATA_FIN_DOWN]);
    t.at(1000);
    // FlexCP's FIN goes first, and the client ACKs it with its last data and its own.
    let _ = t.server(SERVER_FIN);
    t.client(0, "FP. 1:101(100) ack 2 <dss ack 2 map 1:101@1 fin>")
        .gives(&["server FP. 1:101(100) ack 2 win 512"]);
    assert_eq!(t.subflows(), ["0 active"]);
    t.server(". 2:2(0) ack 102")
        .gives(&["client0 . 2:2(0) ack 102 win 64 <dss ack 102>"]);
    assert_eq!(t.subflows(), Vec::<String>::new());
    assert_eq!(t.state(), "closed");
    assert_eq!(t.moved(), "");
}

/// One that can't join, as a server that a box has connected to, would never hear of its DATA_FIN otherwise.
#[test]
fn fin_that_would_end_the_last_subflow_waits_for_the_ack_of_data_fin() {
    let mut t = Scenario::established();
    t.server(SERVER_FIN).gives(&[DATA_FIN_DOWN]);
    t.at(1000);
    let _ = t.server(SERVER_FIN);
    for _ in 0..2 {
        t.client(0, "FP. 1:101(100) ack 2 <dss ack 2 map 1:101@1 fin>")
            .gives(&["server FP. 1:101(100) ack 2 win 512"]);
    }
    // Data alone: the server's FIN may be on its way still.
    t.server(". 2:2(0) ack 101")
        .gives(&["client0 . 2:2(0) ack 101 win 64 <dss ack 101>"]);
    assert_eq!(t.subflows(), ["0 active"]);
    t.server(". 2:2(0) ack 102")
        .gives(&["client0 . 2:2(0) ack 102 win 64 <dss ack 102>"]);
    assert_eq!(t.state(), "closed");
    assert_eq!(t.moved(), "");
}

#[test]
fn fin_that_waits_for_a_server_that_is_gone_waits_only_so_long() {
    let mut t = Scenario::established();
    t.server(SERVER_FIN).gives(&[DATA_FIN_DOWN]);
    t.at(1000);
    let _ = t.server(SERVER_FIN);
    t.client(0, "F. 1:1(0) ack 2 <dss ack 2 fin 1>")
        .gives(&["server F. 1:1(0) ack 2 win 512"]);
    t.at(60_999);
    t.timeout().gives(&[]);
    t.at(61_000);
    t.timeout().gives(&[
        "client0 R. 2:2(0) ack 1 win 64 <fastclose>",
        "server R. 2:2(0) ack 2 win 512",
    ]);
    assert_eq!(t.moved(), "mp_fastclose_tx+1");
}

/// Whatever the server does later, the ACK does not go back.
#[test]
fn fin_that_was_acknowledged_before_flexcps_stays_so() {
    let mut t = Scenario::established();
    t.client(0, "F. 1:1(0) ack 1 <dss ack 1 fin 1>").gives(&[
        "server F. 1:1(0) ack 1 win 512",
        "client0 . 1:1(0) ack 2 win 509 <dss ack 1>",
    ]);
    let _ = t.server(SERVER_FIN);
    t.at(1000);
    for _ in 0..2 {
        t.server(SERVER_FIN)
            .gives(&["client0 F. 1:1(0) ack 2 win 64 <dss ack 1 fin 1>"]);
    }
    let _ = t.moved();
}

#[test]
fn subflow_fin_of_flexcps_that_went_before_the_clients_and_got_lost_is_repeated() {
    let mut t = Scenario::established();
    t.server(SERVER_FIN).gives(&[DATA_FIN_DOWN]);
    t.at(1000);
    let _ = t.server(SERVER_FIN);
    t.client(0, "FP. 1:101(100) ack 1 <dss ack 2 map 1:101@1 fin>")
        .gives(&["server FP. 1:101(100) ack 2 win 512"]);
    t.server(". 2:2(0) ack 102").gives(&[
        "client0 . 2:2(0) ack 102 win 64 <dss ack 102>",
        "client0 F. 1:1(0) ack 102 win 64 <dss ack 102>",
    ]);
    t.client(0, ". 102:102(0) ack 2 <dss ack 2>").gives(&[]);
    assert_eq!(t.subflows(), Vec::<String>::new());
    assert_eq!(t.moved(), "");
}

#[test]
fn closed_subflow_fin_of_flexcps_is_repeated_for_a_minute() {
    let setup = Setup::new().timeouts(|timeouts| timeouts.linger = millis(100_000));
    let mut t = setup.two_subflows();
    t.server(SERVER_FIN).gives(&[DATA_FIN_DOWN]);
    let _ = t.client(0, ". 1:1(0) ack 1 <dss ack 2 fin 1>");
    let _ = t.server(". 2:2(0) ack 2");
    assert_eq!(t.state(), "closed");
    t.at(1000);
    let fin = "client0 F. 1:1(0) ack 2 win 64 <dss ack 2>";
    t.client(0, "F. 1:1(0) ack 1 <dss ack 2>").gives(&[fin]);
    for at in [2000, 4000, 8000, 16_000, 32_000] {
        t.at(at - 1);
        t.timeout().gives(&[]);
        t.at(at);
        t.timeout().gives(&[fin]);
    }
    for at in (32_000..102_000).step_by(500) {
        t.at(at);
        t.timeout().gives(&[]);
    }
    assert_eq!(t.state(), "gone");
    assert_eq!(t.moved(), "connections_closed+1");
}

#[test]
fn data_fin_again_on_a_subflow_that_is_over_still_reaches_the_server() {
    let mut t = Scenario::two_subflows();
    let _ = t.client(1, "F. 1:1(0) ack 1 <dss ack 1>");
    let _ = t.client(1, ". 2:2(0) ack 2 <dss ack 1>");
    assert_eq!(t.subflows(), ["0 active"]);
    t.client(0, DATA_FIN).gives(&[FIN_UP]);
    t.client(1, ". 2:2(0) ack 2 <dss ack 1 fin 1>")
        .gives(&["client1 . 2:2(0) ack 2 win 509 <dss ack 1>", FIN_UP]);
    let _ = t.server(". 1:1(0) ack 2");
    t.client(1, ". 2:2(0) ack 2 <dss ack 1 fin 1>")
        .gives(&["client1 . 2:2(0) ack 2 win 64 <dss ack 2>"]);
    let _ = t.moved();
}

#[test]
fn subflow_fin_of_flexcps_that_gets_lost_is_repeated() {
    // The client's own was ACKed by another packet, so it does not ask.
    let mut t = Scenario::two_subflows();
    let fin = "client1 F. 1:1(0) ack 2 win 509 <dss ack 1>";
    t.client(1, "F. 1:1(0) ack 1 <dss ack 1>").gives(&[fin]);
    for at in [1000, 3000, 7000] {
        t.at(at - 1);
        t.timeout().gives(&[]);
        t.at(at);
        t.timeout().gives(&[fin]);
    }
    t.client(1, ". 2:2(0) ack 2 <dss ack 1>").gives(&[]);
    assert_eq!(t.subflows(), ["0 active"]);
    t.at(60_000);
    t.timeout().gives(&[]);
    assert_eq!(t.moved(), "");
}

//! ACKs and SACKs: the data ACK is the server's ACK, each subflow gets one of its own, and SACK blocks
//! go through the D-tree (RFC 8684 section 3.3.2).

use crate::support::{Scenario, Setup};

/// 100 bytes went down on flow 0 at `start`.
fn down(t: &mut Scenario, flow: usize, start: u32, ssn: u32) {
    let (end, ssn_end) = (start + 100, ssn + 100);
    t.server(&format!(". {start}:{end}(100) ack 1"))
        .gives(&[&format!(
            "client{flow} . {ssn}:{ssn_end}(100) ack 1 win 64 <dss ack 1 map {start}:{end}@{ssn}>"
        )]);
}

/// 100 bytes on `flow` at `ssn` went up as `start`.
fn up(t: &mut Scenario, flow: usize, start: u32, ssn: u32) {
    let (end, ssn_end) = (start + 100, ssn + 100);
    t.client(
        flow,
        &format!(". {ssn}:{ssn_end}(100) ack 1 <dss ack 1 map {start}:{end}@{ssn}>"),
    )
    .gives(&[&format!("server . {start}:{end}(100) ack 1 win 512")]);
}

/// Two subflows: 1:101 went down on flow 0, then the client made it backup, and 101:301 went down on
/// flow 1 at SSN 1.
fn spread() -> Scenario {
    let mut t = Scenario::two_subflows();
    down(&mut t, 0, 1, 1);
    t.client(0, ". 1:1(0) ack 1 <dss ack 1,prio b>").gives(&[]);
    down(&mut t, 1, 101, 1);
    down(&mut t, 1, 201, 101);
    assert_eq!(t.moved(), "mp_prio_rx+1 subflow_switch+1");
    t
}

#[test]
fn established_data_ack_becomes_the_servers_ack() {
    let mut t = Scenario::established();
    down(&mut t, 0, 1, 1);
    t.client(0, ". 1:1(0) ack 101 <dss ack 101>")
        .gives(&["server . 1:1(0) ack 101 win 512"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn established_subflow_ack_counts_only_without_mptcp_options_and_while_the_subflow_is_alone() {
    let mut t = Scenario::established();
    down(&mut t, 0, 1, 1);
    t.client(0, "P. 1:101(100) ack 101 <dss map 1:101@1>")
        .gives(&["server P. 1:101(100) ack 1 win 512"]);
    // Without any MPTCP option it is a TCP ACK: options may be stripped.
    t.client(0, ". 101:101(0) ack 101")
        .gives(&["server . 101:101(0) ack 101 win 512"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn two_subflows_subflow_ack_is_not_a_data_ack() {
    let mut t = Scenario::two_subflows();
    down(&mut t, 0, 1, 1);
    t.client(0, "P. 1:101(100) ack 101 <dss map 1:101@1>")
        .gives(&["server P. 1:101(100) ack 1 win 512"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn established_data_ack_behind_the_subflow_ack_counts() {
    let mut t = Scenario::established();
    down(&mut t, 0, 1, 1);
    t.client(0, ". 1:1(0) ack 101 <dss ack 51>")
        .gives(&["server . 1:1(0) ack 51 win 512"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn two_subflows_data_ack_on_the_other_one_reaches_the_server() {
    let mut t = Scenario::two_subflows();
    down(&mut t, 0, 1, 1);
    t.client(1, ". 1:1(0) ack 1 <dss ack 101>")
        .gives(&["server . 1:1(0) ack 101 win 512"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn two_subflows_stale_ack_on_the_other_one_is_dropped() {
    let mut t = Scenario::two_subflows();
    down(&mut t, 0, 1, 1);
    down(&mut t, 0, 101, 101);
    t.client(0, ". 1:1(0) ack 201 <dss ack 201>")
        .gives(&["server . 1:1(0) ack 201 win 512"]);
    t.client(1, ". 1:1(0) ack 1 <dss ack 101>")
        .gives(&["drop stale_ack"]);
    assert_eq!(t.moved(), "stale_ack+1");
}

#[test]
fn two_subflows_ack_that_repeats_the_last_one_on_the_other_is_dropped() {
    let mut t = Scenario::two_subflows();
    down(&mut t, 0, 1, 1);
    t.client(1, ". 1:1(0) ack 1 <dss ack 1>")
        .gives(&["drop stale_ack"]);
    t.client(1, ". 1:1(0) ack 1 <dss ack 1>")
        .gives(&["drop stale_ack"]);
    assert_eq!(t.moved(), "stale_ack+2");
}

#[test]
fn two_subflows_duplicate_ack_of_the_one_that_carries_the_data_passes() {
    let mut t = Scenario::two_subflows();
    down(&mut t, 0, 1, 1);
    down(&mut t, 0, 101, 101);
    for _ in 0..3 {
        t.client(0, ". 1:1(0) ack 1 <sack 101:201,dss ack 1>")
            .gives(&["server . 1:1(0) ack 1 win 512 <sack 101:201>"]);
    }
    assert_eq!(t.moved(), "");
}

#[test]
fn spread_duplicate_ack_of_the_subflow_with_the_missing_data_passes() {
    let mut t = spread();
    t.client(0, ". 1:1(0) ack 1 <dss ack 1>")
        .gives(&["server . 1:1(0) ack 1 win 512"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn two_subflows_old_data_ack_with_data_does_not_take_the_ack_back() {
    let mut t = Scenario::two_subflows();
    down(&mut t, 0, 1, 1);
    t.client(0, ". 1:1(0) ack 101 <dss ack 101>")
        .gives(&["server . 1:1(0) ack 101 win 512"]);
    t.client(1, "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1>")
        .gives(&["server P. 1:101(100) ack 101 win 512"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn established_short_data_ack_is_expanded() {
    let mut t = Scenario::established();
    down(&mut t, 0, 1, 1);
    t.client(0, ". 1:1(0) ack 101 <dss ack32 101>")
        .gives(&["server . 1:1(0) ack 101 win 512"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn established_sack_goes_up() {
    let mut t = Scenario::established();
    down(&mut t, 0, 1, 1);
    down(&mut t, 0, 101, 101);
    t.client(0, ". 1:1(0) ack 1 <sack 101:201,dss ack 1>")
        .gives(&["server . 1:1(0) ack 1 win 512 <sack 101:201>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn established_sack_goes_up_on_data_too() {
    let mut t = Scenario::established();
    down(&mut t, 0, 1, 1);
    down(&mut t, 0, 101, 101);
    t.client(0, ". 1:101(100) ack 1 <sack 101:201,dss ack 1 map 1:101@1>")
        .gives(&["server . 1:101(100) ack 1 win 512 <sack 101:201>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn established_sack_blocks_keep_their_order() {
    let mut t = Scenario::established();
    (0..5).for_each(|n| down(&mut t, 0, 1 + 100 * n, 1 + 100 * n));
    t.client(0, ". 1:1(0) ack 1 <sack 401:501 201:301,dss ack 1>")
        .gives(&["server . 1:1(0) ack 1 win 512 <sack 401:501 201:301>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn established_duplicate_sack_goes_up() {
    let mut t = Scenario::established();
    down(&mut t, 0, 1, 1);
    down(&mut t, 0, 101, 101);
    down(&mut t, 0, 1, 1);
    t.client(0, ". 1:1(0) ack 101 <dss ack 101>")
        .gives(&["server . 1:1(0) ack 101 win 512"]);
    t.client(0, ". 1:1(0) ack 101 <sack 1:101,dss ack 101>")
        .gives(&["server . 1:1(0) ack 101 win 512 <sack 1:101>"]);
    assert_eq!(t.moved(), "retransmitted_down_bytes+100");
}

#[test]
fn established_server_hears_of_no_more_duplicates_than_it_repeated() {
    let mut t = Scenario::established();
    down(&mut t, 0, 1, 1);
    down(&mut t, 0, 101, 101);
    t.client(0, ". 1:1(0) ack 101 <dss ack 101>")
        .gives(&["server . 1:1(0) ack 101 win 512"]);
    // The path has doubled it.
    t.client(0, ". 1:1(0) ack 101 <sack 1:101,dss ack 101>")
        .gives(&["server . 1:1(0) ack 101 win 512"]);
    down(&mut t, 0, 101, 101);
    // It came in two pieces.
    t.client(0, ". 1:1(0) ack 201 <sack 101:131,dss ack 201>")
        .gives(&["server . 1:1(0) ack 201 win 512 <sack 101:131>"]);
    t.client(0, ". 1:1(0) ack 201 <sack 131:201,dss ack 201>")
        .gives(&["server . 1:1(0) ack 201 win 512"]);
    assert_eq!(t.moved(), "retransmitted_down_bytes+100");
}

#[test]
fn established_sack_of_what_was_never_sent_is_dropped() {
    let mut t = Scenario::established();
    down(&mut t, 0, 1, 1);
    t.client(0, ". 1:1(0) ack 1 <sack 201:301,dss ack 1>")
        .gives(&["server . 1:1(0) ack 1 win 512"]);
    t.client(0, ". 1:1(0) ack 1 <sack 51:301,dss ack 1>")
        .gives(&["server . 1:1(0) ack 1 win 512"]);
    t.client(0, ". 1:1(0) ack 1 <sack 101:51,dss ack 1>")
        .gives(&["server . 1:1(0) ack 1 win 512"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn established_without_sack_at_the_server_none_goes_up() {
    let mut t = Setup::new().no_sack().established();
    down(&mut t, 0, 1, 1);
    down(&mut t, 0, 101, 101);
    t.client(0, ". 1:1(0) ack 1 <sack 101:201,dss ack 1>")
        .gives(&["server . 1:1(0) ack 1 win 512"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn spread_sack_of_a_joined_subflow_is_translated() {
    let mut t = spread();
    t.client(1, ". 1:1(0) ack 1 <sack 101:201,dss ack 1>")
        .gives(&["server . 1:1(0) ack 1 win 512 <sack 201:301>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn spread_ack_of_data_behind_a_hole_on_another_subflow_becomes_sack() {
    let mut t = spread();
    t.client(1, ". 1:1(0) ack 101 <dss ack 1>")
        .gives(&["server . 1:1(0) ack 1 win 512 <sack 101:201>"]);
    t.client(1, ". 1:1(0) ack 201 <dss ack 1>")
        .gives(&["server . 1:1(0) ack 1 win 512 <sack 101:301>"]);
    t.client(0, ". 1:1(0) ack 101 <dss ack 301>")
        .gives(&["server . 1:1(0) ack 301 win 512"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn spread_ack_and_sack_of_a_joined_subflow_both_reach_the_server() {
    let mut t = spread();
    down(&mut t, 1, 301, 201);
    t.client(1, ". 1:1(0) ack 101 <sack 201:301,dss ack 1>")
        .gives(&["server . 1:1(0) ack 1 win 512 <sack 301:401 101:201>"]);
    assert_eq!(t.moved(), "");
}

/// The client repeats what the server may have and can't say, and never comes to what it lacks: after a timeout it repeats the first
/// segment alone.
#[test]
fn established_without_sack_at_the_server_what_stands_before_the_missing_data_is_let_go() {
    for (setup, let_go) in [(Setup::new().no_sack(), true), (Setup::new(), false)] {
        let mut t = setup.established();
        t.client(0, "P. 1:101(100) ack 1 <dss ack 1 map 101:201@1>")
            .gives(&["server P. 101:201(100) ack 1 win 512"]);
        // This is lost.
        t.client(0, "P. 101:201(100) ack 1 <dss ack 1 map 1:101@101>")
            .gives(&["server P. 1:101(100) ack 1 win 512"]);
        let again = "P. 1:101(100) ack 1 <dss ack 1 map 101:201@1>";
        for _ in 0..2 {
            t.client(0, again)
                .gives(&["server P. 101:201(100) ack 1 win 512"]);
        }
        let ack = "client0 . 1:1(0) ack 101 win 509 <dss ack 1>";
        let given = ["server P. 101:201(100) ack 1 win 512", ack];
        t.client(0, again).gives(&given[..1 + usize::from(let_go)]);
        assert_eq!(t.moved(), if let_go { "let_go_up+1" } else { "" });
    }
}

#[test]
fn established_subflow_ack_ahead_of_the_data_ack_without_a_hole_is_no_sack() {
    let mut t = Scenario::established();
    down(&mut t, 0, 1, 1);
    down(&mut t, 0, 101, 101);
    t.client(0, ". 1:1(0) ack 201 <dss ack 101>")
        .gives(&["server . 1:1(0) ack 101 win 512"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn sack_over_data_that_went_to_other_places_falls_apart() {
    let mut t = Scenario::two_subflows();
    down(&mut t, 0, 1, 1);
    t.client(0, ". 1:1(0) ack 1 <dss ack 1,prio b>").gives(&[]);
    down(&mut t, 1, 101, 1);
    t.client(1, ". 1:1(0) ack 1 <dss ack 1,prio b>").gives(&[]);
    t.client(0, ". 1:1(0) ack 1 <dss ack 1,prio>").gives(&[]);
    down(&mut t, 0, 201, 101);
    // SSN 51 to 151 of flow 0 holds data 51 to 101 and 201 to 251.
    t.client(0, ". 1:1(0) ack 1 <sack 51:151,dss ack 1>")
        .gives(&["server . 1:1(0) ack 1 win 512 <sack 51:101 201:251>"]);
    assert_eq!(t.moved(), "mp_prio_rx+3 subflow_switch+2");
}

#[test]
fn established_with_timestamps_three_sack_blocks_fit_up() {
    let mut t = Setup::new().ts().established();
    for n in 0..8 {
        let (a, b) = (1 + 100 * n, 101 + 100 * n);
        t.server(&format!(". {a}:{b}(100) ack 1 win 64 <ts 5001 1000>"))
            .gives(&[&format!(
                "client0 . {a}:{b}(100) ack 1 win 64 <ts 5001 1000,dss ack 1 map {a}:{b}@{a}>"
            )]);
    }
    t.client(
        0,
        ". 1:1(0) ack 1 win 512 <ts 1001 5001,sack 701:801,dss ack 1>",
    )
    .gives(&["server . 1:1(0) ack 1 win 512 <ts 1001 5001,sack 701:801>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn established_server_ack_becomes_data_ack_and_subflow_ack() {
    let mut t = Scenario::established();
    up(&mut t, 0, 1, 1);
    t.server(". 1:1(0) ack 101")
        .gives(&["client0 . 1:1(0) ack 101 win 64 <dss ack 101>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn established_server_ack_of_a_part_acks_the_part() {
    let mut t = Scenario::established();
    up(&mut t, 0, 1, 1);
    t.server(". 1:1(0) ack 31")
        .gives(&["client0 . 1:1(0) ack 31 win 64 <dss ack 31>"]);
    t.server(". 1:1(0) ack 101")
        .gives(&["client0 . 1:1(0) ack 101 win 64 <dss ack 101>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn two_subflows_server_ack_reaches_each_subflow_that_brought_data() {
    let mut t = Scenario::two_subflows();
    up(&mut t, 0, 1, 1);
    up(&mut t, 1, 101, 1);
    t.server(". 1:1(0) ack 201").gives(&[
        "client0 . 1:1(0) ack 101 win 64 <dss ack 201>",
        "client1 . 1:1(0) ack 101 win 64 <dss ack 201>",
    ]);
    assert_eq!(t.moved(), "");
}

#[test]
fn two_subflows_server_ack_reaches_only_the_subflow_that_brought_the_data() {
    let mut t = Scenario::two_subflows();
    up(&mut t, 1, 1, 1);
    t.server(". 1:1(0) ack 101")
        .gives(&["client1 . 1:1(0) ack 101 win 64 <dss ack 101>"]);
    up(&mut t, 0, 101, 1);
    t.server(". 1:1(0) ack 201")
        .gives(&["client0 . 1:1(0) ack 101 win 64 <dss ack 201>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn two_subflows_server_data_with_an_ack_for_the_other_subflow_acks_it_apart() {
    let mut t = Scenario::two_subflows();
    up(&mut t, 1, 1, 1);
    t.server("P. 1:101(100) ack 101").gives(&[
        "client0 P. 1:101(100) ack 1 win 64 <dss ack 101 map 1:101@1>",
        "client1 . 1:1(0) ack 101 win 64 <dss ack 101>",
    ]);
    assert_eq!(t.moved(), "");
}

#[test]
fn two_subflows_server_ack_without_news_goes_where_the_client_was_heard_last() {
    let mut t = Scenario::two_subflows();
    t.server(". 1:1(0) ack 1 win 65")
        .gives(&["client1 . 1:1(0) ack 1 win 65 <dss ack 1>"]);
    t.client(0, ". 1:1(0) ack 1 win 600 <dss ack 1>")
        .gives(&["server . 1:1(0) ack 1 win 600"]);
    t.server(". 1:1(0) ack 1 win 66")
        .gives(&["client0 . 1:1(0) ack 1 win 66 <dss ack 1>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn two_subflows_server_ack_behind_a_hole_leaves_the_other_subflow_unacked() {
    let mut t = Scenario::two_subflows();
    up(&mut t, 1, 101, 1);
    up(&mut t, 0, 1, 1);
    t.server(". 1:1(0) ack 101")
        .gives(&["client0 . 1:1(0) ack 101 win 64 <dss ack 101>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn two_subflows_server_sack_acks_the_subflow_that_brought_the_data() {
    // The client keeps it until the data ACK, so that the server may still drop it.
    let mut t = Scenario::two_subflows();
    up(&mut t, 1, 101, 1);
    t.server(". 1:1(0) ack 1 win 64 <sack 101:201>")
        .gives(&["client1 . 1:1(0) ack 101 win 64 <dss ack 1>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn established_server_sack_behind_a_hole_becomes_the_subflows() {
    let mut t = Scenario::established();
    t.client(0, ". 101:201(100) ack 1 <dss ack 1 map 101:201@101>")
        .gives(&["server . 101:201(100) ack 1 win 512"]);
    t.server(". 1:1(0) ack 1 win 64 <sack 101:201>")
        .gives(&["client0 . 1:1(0) ack 1 win 64 <dss ack 1,sack 101:201>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn two_subflows_server_sack_behind_a_hole_of_the_subflow_is_translated() {
    let mut t = Scenario::two_subflows();
    t.client(1, ". 101:201(100) ack 1 <dss ack 1 map 301:401@101>")
        .gives(&["server . 301:401(100) ack 1 win 512"]);
    t.server(". 1:1(0) ack 1 win 64 <sack 301:401>")
        .gives(&["client1 . 1:1(0) ack 1 win 64 <dss ack 1,sack 101:201>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn two_subflows_ack_goes_on_over_what_was_told_by_sack_though_the_server_has_no_room_for_that_any_more()
 {
    let mut t = Scenario::two_subflows();
    t.client(0, ". 101:201(100) ack 1 <dss ack 1 map 201:301@101>")
        .gives(&["server . 201:301(100) ack 1 win 512"]);
    t.server(". 1:1(0) ack 1 win 64 <sack 201:301>")
        .gives(&["client0 . 1:1(0) ack 1 win 64 <dss ack 1,sack 101:201>"]);
    for (dsn, ssn) in [(401, 1), (601, 101), (801, 201), (1001, 301)] {
        up(&mut t, 1, dsn, ssn);
    }
    t.server(". 1:1(0) ack 1 win 64 <sack 1001:1101 801:901 601:701 401:501>")
        .gives(&["client1 . 1:1(0) ack 401 win 64 <dss ack 1>"]);
    up(&mut t, 0, 1, 1);
    t.server(". 1:1(0) ack 101 win 64 <sack 1001:1101 801:901 601:701 401:501>")
        .gives(&["client0 . 1:1(0) ack 201 win 64 <dss ack 101>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn two_subflows_server_sack_over_both_is_told_to_each() {
    let mut t = Scenario::two_subflows();
    t.client(0, ". 101:201(100) ack 1 <dss ack 1 map 101:201@101>")
        .gives(&["server . 101:201(100) ack 1 win 512"]);
    t.client(1, ". 101:201(100) ack 1 <dss ack 1 map 201:301@101>")
        .gives(&["server . 201:301(100) ack 1 win 512"]);
    t.server(". 1:1(0) ack 1 win 64 <sack 101:301>").gives(&[
        "client0 . 1:1(0) ack 1 win 64 <dss ack 1,sack 101:201>",
        "client1 . 1:1(0) ack 1 win 64 <dss ack 1,sack 101:201>",
    ]);
    assert_eq!(t.moved(), "");
}

#[test]
fn established_server_sacks_that_do_not_fit_beside_a_mapping_are_cut() {
    let mut t = Scenario::established();
    for n in [1, 3, 5] {
        up(&mut t, 0, 1 + 100 * n, 1 + 100 * n);
    }
    t.server(". 1:1(0) ack 1 win 64 <sack 501:601 301:401 101:201>")
        .gives(&["client0 . 1:1(0) ack 1 win 64 <dss ack 1,sack 501:601 301:401 101:201>"]);
    t.server("P. 1:101(100) ack 1 win 64 <sack 501:601 301:401 101:201>")
        .gives(&["client0 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1,sack 501:601>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn established_with_timestamps_one_server_sack_fits_an_ack_and_none_fits_data() {
    let mut t = Setup::new().ts().established();
    for n in [1, 3] {
        let (a, b) = (1 + 100 * n, 101 + 100 * n);
        t.client(
            0,
            &format!(". {a}:{b}(100) ack 1 win 512 <ts 1001 5000,dss ack 1 map {a}:{b}@{a}>"),
        )
        .gives(&[&format!(
            "server . {a}:{b}(100) ack 1 win 512 <ts 1001 5000>"
        )]);
    }
    t.server(". 1:1(0) ack 1 win 64 <ts 5001 1001,sack 301:401 101:201>")
        .gives(&["client0 . 1:1(0) ack 1 win 64 <ts 5001 1001,dss ack 1,sack 301:401>"]);
    t.server("P. 1:101(100) ack 1 win 64 <ts 5001 1001,sack 301:401>")
        .gives(&["client0 P. 1:101(100) ack 1 win 64 <ts 5001 1001,dss ack 1 map 1:101@1>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn two_subflows_one_without_sack_gets_none() {
    let mut t = Scenario::established();
    t.client(1, "S 0:0(0) win 65535 <mss 1460,ws 8,join>")
        .gives(&["client1 S. 0:0(0) ack 1 win 65152 <mss 1460,ws 7,join id 0>"]);
    t.client(1, ". 1:1(0) ack 1 win 512 <join>")
        .gives(&["client1 . 1:1(0) ack 1 win 509 <dss ack 1>"]);
    t.client(1, ". 101:201(100) ack 1 <dss ack 1 map 301:401@101>")
        .gives(&["server . 301:401(100) ack 1 win 512"]);
    t.server(". 1:1(0) ack 1 win 64 <sack 301:401>")
        .gives(&["client1 . 1:1(0) ack 1 win 64 <dss ack 1>"]);
    assert_eq!(t.moved(), "mp_join_syn_rx+1 mp_join_ack_rx+1");
}

#[test]
fn established_server_sack_of_what_the_client_never_sent_is_ignored() {
    let mut t = Scenario::established();
    up(&mut t, 0, 1, 1);
    t.server(". 1:1(0) ack 1 win 64 <sack 201:301>")
        .gives(&["client0 . 1:1(0) ack 1 win 64 <dss ack 1>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn established_server_duplicate_sack_does_not_ack_anything() {
    let mut t = Scenario::established();
    up(&mut t, 0, 1, 1);
    t.server(". 1:1(0) ack 101")
        .gives(&["client0 . 1:1(0) ack 101 win 64 <dss ack 101>"]);
    t.server(". 1:1(0) ack 101 win 64 <sack 1:101>")
        .gives(&["client0 . 1:1(0) ack 101 win 64 <dss ack 101>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn two_subflows_late_server_ack_does_not_take_anything_back() {
    let mut t = Scenario::two_subflows();
    up(&mut t, 0, 1, 1);
    up(&mut t, 0, 101, 101);
    t.server(". 1:1(0) ack 201")
        .gives(&["client0 . 1:1(0) ack 201 win 64 <dss ack 201>"]);
    t.server(". 1:1(0) ack 101 win 70")
        .gives(&["client0 . 1:1(0) ack 201 win 64 <dss ack 201>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn two_subflows_third_bare_ack_on_the_joined_one_resets_it() {
    // RFC 8684 section 3.7: an ACK for data without a data ACK on an additional subflow.
    let mut t = spread();
    for _ in 0..2 {
        let _ = t.client(1, ". 1:1(0) ack 101");
    }
    t.client(1, ". 1:1(0) ack 101")
        .gives(&["client1 R. 201:201(0) ack 1 win 64 <rst reason 6 transient>"]);
    let moved = t.moved();
    assert!(moved.contains("mp_rst_tx+1"), "{moved}");
}

#[test]
fn two_subflows_server_sack_beyond_what_was_sent_acks_nothing() {
    let mut t = Scenario::two_subflows();
    up(&mut t, 1, 101, 1);
    t.server(". 1:1(0) ack 1 win 64 <sack 101:999>")
        .gives(&["client1 . 1:1(0) ack 1 win 64 <dss ack 1>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn two_subflows_sack_of_what_a_subflow_has_only_announced_goes_where_it_was_sent() {
    let mut t = Scenario::two_subflows();
    let _ = t.client(0, "P. 1:101(100) ack 1 <dss ack 1 map 1:201@1>");
    let _ = t.client(1, "P. 1:101(100) ack 1 <dss ack 1 map 101:201@1>");
    t.server(". 1:1(0) ack 1 <sack 101:201>")
        .gives(&["client1 . 1:1(0) ack 101 win 64 <dss ack 1>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn two_subflows_server_sack_of_what_came_behind_a_fin_is_no_block_at_the_ack() {
    // The FIN's own number, and the next: a block there would say that the ACK stops short (RFC 2018 section 3).
    let mut t = Scenario::two_subflows();
    t.client(0, "F. 1:1(0) ack 1 <dss ack 1>")
        .gives(&["client0 F. 1:1(0) ack 2 win 509 <dss ack 1>"]);
    let _ = t.client(0, ". 2:102(100) ack 1 <dss ack 1 map 101:201@2>");
    t.server(". 1:1(0) ack 1 win 64 <sack 101:201>")
        .gives(&["client0 . 2:2(0) ack 2 win 64 <dss ack 1>"]);
    let _ = t.moved();
}

#[test]
fn two_subflows_repeated_data_is_acknowledged_where_it_came_whatever_else_the_server_says() {
    // The ACK on flow 0 got lost; the server's answer is about data of flow 1 too. (An upload over paths
    // that went up and down stood still: flow 0 repeated its first byte for ever.)
    let mut t = Scenario::two_subflows();
    let _ = t.client(0, "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1>");
    let _ = t.server(". 1:1(0) ack 101");
    let _ = t.client(1, "P. 1:101(100) ack 1 <dss ack 1 map 201:301@1>");
    t.server(". 1:1(0) ack 101 <sack 201:301>")
        .gives(&["client1 . 1:1(0) ack 101 win 64 <dss ack 101>"]);
    let _ = t.client(1, "P. 201:301(100) ack 1 <dss ack 1 map 401:501@201>");
    let _ = t.client(0, "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1>");
    t.server(". 1:1(0) ack 101 <sack 1:101 401:501>").gives(&[
        "client0 . 1:1(0) ack 101 win 64 <dss ack 101>",
        "client1 . 1:1(0) ack 101 win 64 <dss ack 101,sack 201:301>",
    ]);
    t.server(". 1:1(0) ack 101 <sack 1:101 401:501>")
        .gives(&["client1 . 1:1(0) ack 101 win 64 <dss ack 101,sack 201:301>"]);
    let _ = t.moved();
}

//! Timestamps: one clock towards the server, each subflow's own towards the client (RFC 7323).

use crate::support::{Scenario, Setup};

/// Flow 1 has joined at 40 ms, with a clock that showed 900,000 then.
fn joined() -> Scenario {
    let mut t = Setup::new().ts().established();
    t.at(40);
    t.client(
        1,
        "S 0:0(0) win 65535 <mss 1460,sackok,ts 900000 0,ws 8,join>",
    )
    .gives(&["client1 S. 0:0(0) ack 1 win 65152 <mss 1460,sackok,ts 5000 900000,ws 7,join id 0>"]);
    t.client(1, ". 1:1(0) ack 1 win 512 <ts 900000 5000,join>")
        .gives(&["client1 . 1:1(0) ack 1 win 509 <ts 5000 900000,dss ack 1>"]);
    assert_eq!(t.moved(), "mp_join_syn_rx+1 mp_join_ack_rx+1");
    t
}

#[test]
fn established_timestamps_of_the_initial_subflow_pass() {
    let mut t = Setup::new().ts().established();
    t.at(10);
    t.client(
        0,
        "P. 1:101(100) ack 1 win 512 <ts 1010 5000,dss ack 1 map 1:101@1>",
    )
    .gives(&["server P. 1:101(100) ack 1 win 512 <ts 1010 5000>"]);
    t.server(". 1:1(0) ack 101 win 64 <ts 5010 1010>")
        .gives(&["client0 . 1:1(0) ack 101 win 64 <ts 5010 1010,dss ack 101>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn joined_timestamps_move_onto_the_initial_clock() {
    let mut t = joined();
    t.at(50);
    t.client(
        1,
        "P. 1:101(100) ack 1 win 512 <ts 900010 5000,dss ack 1 map 1:101@1>",
    )
    .gives(&["server P. 1:101(100) ack 1 win 512 <ts 1050 5000>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn joined_echo_moves_back_to_the_subflows_clock() {
    let mut t = joined();
    t.at(50);
    t.client(
        1,
        "P. 1:101(100) ack 1 win 512 <ts 900010 5000,dss ack 1 map 1:101@1>",
    )
    .gives(&["server P. 1:101(100) ack 1 win 512 <ts 1050 5000>"]);
    t.server(". 1:1(0) ack 101 win 64 <ts 5050 1050>")
        .gives(&["client1 . 1:1(0) ack 101 win 64 <ts 5050 900010,dss ack 101>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn joined_late_packet_of_the_slower_path_does_not_turn_the_clock_back() {
    let mut t = joined();
    t.client(
        1,
        ". 1:101(100) ack 1 win 512 <ts 900100 5000,dss ack 1 map 101:201@1>",
    )
    .gives(&["server . 101:201(100) ack 1 win 512 <ts 1140 5000>"]);
    t.client(
        0,
        ". 1:101(100) ack 1 win 512 <ts 1060 5000,dss ack 1 map 1:101@1>",
    )
    .gives(&["server . 1:101(100) ack 1 win 512 <ts 1140 5000>"]);
    t.client(
        0,
        ". 101:201(100) ack 1 win 512 <ts 1150 5000,dss ack 1 map 201:301@101>",
    )
    .gives(&["server . 201:301(100) ack 1 win 512 <ts 1150 5000>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn joined_echo_of_what_another_subflow_sent_is_cut_to_what_this_one_has() {
    let mut t = joined();
    t.client(
        0,
        ". 1:101(100) ack 1 win 512 <ts 1060 5000,dss ack 1 map 1:101@1>",
    )
    .gives(&["server . 1:101(100) ack 1 win 512 <ts 1060 5000>"]);
    t.client(
        1,
        ". 1:101(100) ack 1 win 512 <ts 900100 5000,dss ack 1 map 101:201@1>",
    )
    .gives(&["server . 101:201(100) ack 1 win 512 <ts 1140 5000>"]);
    t.server("P. 1:101(100) ack 1 win 64 <ts 5100 1140>")
        .gives(&["client0 P. 1:101(100) ack 1 win 64 <ts 5100 1060,dss ack 1 map 1:101@1>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn joined_echo_is_of_what_is_repeated_though_the_server_waits_for_another_subflow() {
    let mut t = joined();
    // 1:101 gets lost on flow 0. The server's echo stands still, and flow 1 repeats its part.
    t.client(
        1,
        ". 1:101(100) ack 1 win 512 <ts 900020 5000,dss ack 1 map 101:201@1>",
    )
    .gives(&["server . 101:201(100) ack 1 win 512 <ts 1060 5000>"]);
    t.client(
        1,
        ". 1:101(100) ack 1 win 512 <ts 901020 5000,dss ack 1 map 101:201@1>",
    )
    .gives(&["server . 101:201(100) ack 1 win 512 <ts 2060 5000>"]);
    t.server(". 1:1(0) ack 1 win 64 <ts 6100 1040,sack 101:201>")
        .gives(&["client1 . 1:1(0) ack 101 win 64 <ts 6100 901020,dss ack 1>"]);
    // What came behind a gap, or without data, is not what is ACKed next.
    t.client(
        1,
        ". 201:301(100) ack 1 win 512 <ts 901500 5000,dss ack 1 map 301:401@201>",
    )
    .gives(&["server . 301:401(100) ack 1 win 512 <ts 2540 5000>"]);
    t.client(1, ". 101:101(0) ack 1 win 600 <ts 901600 5000,dss ack 1>")
        .gives(&["server . 401:401(0) ack 1 win 600 <ts 2640 5000>"]);
    t.server(". 1:1(0) ack 1 win 64 <ts 6200 1040,sack 101:201 301:401>")
        .gives(&["client1 . 1:1(0) ack 101 win 64 <ts 6200 901020,dss ack 1,sack 201:301>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn joined_echo_of_what_the_server_has_got_is_not_of_a_later_copy() {
    let mut t = joined();
    let data =
        |val: u32| format!(". 1:101(100) ack 1 win 512 <ts {val} 5000,dss ack 1 map 1:101@1>");
    for val in [1060, 1300] {
        let out = format!("server . 1:101(100) ack 1 win 512 <ts {val} 5000>");
        t.client(0, &data(val)).gives(&[out.as_str()]);
    }
    t.server(". 1:1(0) ack 101 win 64 <ts 5100 1060>")
        .gives(&["client0 . 1:1(0) ack 101 win 64 <ts 5100 1060,dss ack 101>"]);
    // The copy has arrived, too.
    t.server("P. 1:101(100) ack 101 win 64 <ts 5300 1300>")
        .gives(&["client0 P. 1:101(100) ack 101 win 64 <ts 5300 1300,dss ack 101 map 1:101@1>"]);
    let _ = t.moved();
}

#[test]
fn joined_echo_of_what_another_subflow_brought_says_nothing_of_copies() {
    let mut t = joined();
    let data =
        |val: u32| format!(". 1:101(100) ack 1 win 512 <ts {val} 5000,dss ack 1 map 101:201@1>");
    for val in [1060, 1300] {
        let _ = t.client(0, &data(val));
    }
    t.client(
        1,
        ". 1:101(100) ack 1 win 512 <ts 900010 5000,dss ack 1 map 1:101@1>",
    )
    .gives(&["server . 1:101(100) ack 1 win 512 <ts 1300 5000>"]);
    t.server(". 1:1(0) ack 201 win 64 <ts 5100 1050>").gives(&[
        "client0 . 1:1(0) ack 101 win 64 <ts 5100 1300,dss ack 201>",
        "client1 . 1:1(0) ack 101 win 64 <ts 5100 900010,dss ack 201>",
    ]);
    assert_eq!(t.moved(), "");
}

#[test]
fn joined_ack_of_flexcps_own_has_the_servers_latest() {
    let mut t = joined();
    t.client(
        0,
        ". 1:101(100) ack 1 win 512 <ts 1060 5000,dss ack 1 map 1:101@1>",
    )
    .gives(&["server . 1:101(100) ack 1 win 512 <ts 1060 5000>"]);
    t.client(
        1,
        ". 1:101(100) ack 1 win 512 <ts 900020 5000,dss ack 1 map 101:201@1>",
    )
    .gives(&["server . 101:201(100) ack 1 win 512 <ts 1060 5000>"]);
    t.server(". 1:1(0) ack 201 win 64 <ts 5100 1060>").gives(&[
        "client0 . 1:1(0) ack 101 win 64 <ts 5100 1060,dss ack 201>",
        "client1 . 1:1(0) ack 101 win 64 <ts 5100 900020,dss ack 201>",
    ]);
    assert_eq!(t.moved(), "");
}

#[test]
fn joined_server_timestamps_pass_unchanged_on_both() {
    let mut t = joined();
    t.server("P. 1:101(100) ack 1 win 64 <ts 5100 1000>")
        .gives(&["client0 P. 1:101(100) ack 1 win 64 <ts 5100 1000,dss ack 1 map 1:101@1>"]);
    t.client(0, "R 1:1(0) win 0").gives(&[]);
    t.server("P. 101:201(100) ack 1 win 64 <ts 5200 1000>")
        .gives(&["client1 P. 1:101(100) ack 1 win 64 <ts 5200 900000,dss ack 1 map 101:201@1>"]);
    assert_eq!(t.moved(), "mp_rst_rx+1 subflow_switch+1");
}

#[test]
fn joined_older_echo_of_the_slower_path_is_not_sent_to_the_server() {
    let mut t = joined();
    t.server("P. 1:101(100) ack 1 win 64 <ts 5100 1000>")
        .gives(&["client0 P. 1:101(100) ack 1 win 64 <ts 5100 1000,dss ack 1 map 1:101@1>"]);
    t.client(0, ". 1:1(0) ack 101 win 512 <ts 1060 5100,dss ack 101>")
        .gives(&["server . 1:1(0) ack 101 win 512 <ts 1060 5100>"]);
    t.client(
        1,
        ". 1:101(100) ack 1 win 512 <ts 900050 5000,dss ack 101 map 1:101@1>",
    )
    .gives(&["server . 1:101(100) ack 101 win 512 <ts 1090 5100>"]);
    assert_eq!(t.moved(), "");
}

/// The server has sent 1:101, which went down on flow 0, and repeated it 300 ms later.
fn repeated() -> Scenario {
    let mut t = joined();
    for val in [5100, 5400] {
        let out =
            format!("client0 P. 1:101(100) ack 1 win 64 <ts {val} 1000,dss ack 1 map 1:101@1>");
        t.server(&format!("P. 1:101(100) ack 1 win 64 <ts {val} 1000>"))
            .gives(&[out.as_str()]);
    }
    assert_eq!(t.moved(), "retransmitted_down_bytes+100");
    t
}

#[test]
fn joined_ack_of_what_is_repeated_on_another_subflow_echoes_the_repetition() {
    let mut t = repeated();
    // By an older echo the server would have repeated that in vain (RFC 3522).
    t.client(1, ". 1:1(0) ack 1 win 512 <ts 900500 5000,dss ack 101>")
        .gives(&["server . 1:1(0) ack 101 win 512 <ts 1540 5400>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn joined_ack_where_what_is_repeated_went_echoes_what_has_arrived() {
    let mut t = repeated();
    // It has been repeated in vain indeed.
    t.client(0, ". 1:1(0) ack 101 win 512 <ts 1500 5100,dss ack 101>")
        .gives(&["server . 1:1(0) ack 101 win 512 <ts 1500 5100>"]);
    // What comes after that has not been repeated.
    t.server("P. 101:201(100) ack 1 win 64 <ts 5600 1500>")
        .gives(&["client0 P. 101:201(100) ack 1 win 64 <ts 5600 1500,dss ack 1 map 101:201@101>"]);
    t.client(1, ". 1:1(0) ack 1 win 512 <ts 900700 5000,dss ack 201>")
        .gives(&["server . 1:1(0) ack 201 win 512 <ts 1740 5100>"]);
    assert_eq!(t.moved(), "");
}

/// The server has sent 1:101, which went down on flow 0 and was lost there, and repeated it on flow 1.
fn repeated_elsewhere() -> Scenario {
    let mut t = joined();
    t.server("P. 1:101(100) ack 1 win 64 <ts 5100 1000>")
        .gives(&["client0 P. 1:101(100) ack 1 win 64 <ts 5100 1000,dss ack 1 map 1:101@1>"]);
    t.at(300);
    t.server("P. 1:101(100) ack 1 win 64 <ts 5400 1000>")
        .gives(&["client1 P. 1:101(100) ack 1 win 64 <ts 5400 900000,dss ack 1 map 1:101@1>"]);
    t.moved();
    t
}

#[test]
fn joined_ack_where_what_is_repeated_elsewhere_was_lost_echoes_the_repetition() {
    // Another FlexCP ACKs here, too, what has come there.
    for ack in [1, 101] {
        let mut t = repeated_elsewhere();
        t.client(
            0,
            &format!(". 1:1(0) ack {ack} win 512 <ts 1500 5100,dss ack 101>"),
        )
        .gives(&["server . 1:1(0) ack 101 win 512 <ts 1500 5400>"]);
        assert_eq!(t.moved(), "");
    }
}

#[test]
fn joined_ack_where_what_is_repeated_has_not_come_echoes_the_repetition() {
    let mut t = repeated();
    t.client(0, ". 1:1(0) ack 1 win 512 <ts 1500 5000,dss ack 101>")
        .gives(&["server . 1:1(0) ack 101 win 512 <ts 1500 5400>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn joined_ack_of_what_comes_before_what_is_repeated_echoes_no_repetition() {
    let mut t = joined();
    for (seq, val) in [(1, 5100), (101, 5200), (101, 5400)] {
        let end = seq + 100;
        let out = format!(
            "client0 . {seq}:{end}(100) ack 1 win 64 <ts {val} 1000,dss ack 1 map {seq}:{end}@{seq}>"
        );
        t.server(&format!(". {seq}:{end}(100) ack 1 win 64 <ts {val} 1000>"))
            .gives(&[out.as_str()]);
    }
    t.client(1, ". 1:1(0) ack 1 win 512 <ts 900500 5000,dss ack 101>")
        .gives(&["server . 1:1(0) ack 101 win 512 <ts 1540 5000>"]);
    assert_eq!(t.moved(), "retransmitted_down_bytes+100");
}

#[test]
fn joined_ack_that_brings_nothing_new_echoes_no_repetition() {
    let mut t = repeated();
    t.client(1, ". 1:1(0) ack 1 win 600 <ts 900500 5000,dss ack 1>")
        .gives(&["server . 1:1(0) ack 1 win 600 <ts 1540 5000>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn established_echo_of_what_the_server_never_sent_is_not_passed_on() {
    let mut t = Setup::new().ts().established();
    t.client(
        0,
        "P. 1:101(100) ack 1 win 512 <ts 1010 99999,dss ack 1 map 1:101@1>",
    )
    .gives(&["server P. 1:101(100) ack 1 win 512 <ts 1010 5000>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn established_packet_that_stays_does_not_move_the_servers_clock() {
    // Two leaps of less than half a round each are more than half of it, if the server sees only where they end.
    let (half, most) = (1000 + 0x6000_0000_u32, 1000 + 0xc000_0000_u32);
    let mut t = Setup::new().ts().established();
    t.client(
        0,
        &format!("P. 1:101(100) ack 1 win 512 <ts {half} 5000,dss ack 1 map 1:101@1>"),
    )
    .gives(&[&format!(
        "server P. 1:101(100) ack 1 win 512 <ts {half} 5000>"
    )]);
    t.client(
        0,
        &format!(". 101:101(0) ack 1 win 512 <ts {most} 5000,dss ack 1,prio>"),
    )
    .gives(&[]);
    t.client(
        0,
        "P. 101:201(100) ack 1 win 512 <ts 1010 5000,dss ack 1 map 101:201@101>",
    )
    .gives(&[&format!(
        "server P. 101:201(100) ack 1 win 512 <ts {half} 5000>"
    )]);
    assert_eq!(t.moved(), "mp_prio_rx+1");
}

#[test]
fn established_client_packet_without_timestamps_gets_some() {
    let mut t = Setup::new().ts().established();
    t.at(70);
    t.client(0, "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1>")
        .gives(&["server P. 1:101(100) ack 1 win 512 <ts 1070 5000>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn established_joined_subflow_without_timestamps_gets_the_initial_clock() {
    let mut t = Setup::new().ts().established();
    t.client(1, "S 0:0(0) win 65535 <mss 1460,sackok,ws 8,join>")
        .gives(&["client1 S. 0:0(0) ack 1 win 65152 <mss 1460,sackok,ws 7,join id 0>"]);
    t.client(1, ". 1:1(0) ack 1 win 512 <join>")
        .gives(&["client1 . 1:1(0) ack 1 win 509 <dss ack 1>"]);
    t.at(30);
    t.client(1, "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1>")
        .gives(&["server P. 1:101(100) ack 1 win 512 <ts 1030 5000>"]);
    t.server(". 1:1(0) ack 101 win 64 <ts 5030 1030>")
        .gives(&["client1 . 1:1(0) ack 101 win 64 <dss ack 101>"]);
    assert_eq!(t.moved(), "mp_join_syn_rx+1 mp_join_ack_rx+1");
}

#[test]
fn established_client_with_timestamps_and_a_server_without_uses_none() {
    let mut t = Setup::new().start();
    t.client(0, "S 0:0(0) win 65535 <mss 1460,ts 1000 0,capable>")
        .gives(&["server S 0:0(0) win 65535 <mss 1432,ts 1000 0>"]);
    t.server("S. 0:0(0) ack 1 win 65160 <mss 1460>")
        .gives(&["client0 S. 0:0(0) ack 1 win 65160 <mss 1460,capable>"]);
    t.client(0, ". 1:1(0) ack 1 win 512 <capable>")
        .gives(&["server . 1:1(0) ack 1 win 512"]);
    t.server("P. 1:101(100) ack 1")
        .gives(&["client0 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>"]);
    assert_eq!(
        t.moved(),
        "mp_capable_syn_rx+1 mp_capable_ack_rx+1 connections_opened+1"
    );
}

#[test]
fn established_clock_of_the_client_wraps() {
    let mut t = Setup::new().start();
    t.client(0, "S 0:0(0) win 65535 <mss 1460,ts 4294967290 0,capable>")
        .gives(&["server S 0:0(0) win 65535 <mss 1432,ts 4294967290 0>"]);
    t.server("S. 0:0(0) ack 1 win 65160 <mss 1460,ts 4294967000 4294967290>")
        .gives(&["client0 S. 0:0(0) ack 1 win 65160 <mss 1460,ts 4294967000 4294967290,capable>"]);
    t.client(0, ". 1:1(0) ack 1 win 512 <ts 5 4294967000,capable>")
        .gives(&["server . 1:1(0) ack 1 win 512 <ts 5 4294967000>"]);
    t.server(". 1:1(0) ack 1 win 64 <ts 10 5>")
        .gives(&["client0 . 1:1(0) ack 1 win 64 <ts 10 5,dss ack 1>"]);
    t.client(
        0,
        "P. 1:101(100) ack 1 win 512 <ts 8 10,dss ack 1 map 1:101@1>",
    )
    .gives(&["server P. 1:101(100) ack 1 win 512 <ts 8 10>"]);
    assert_eq!(
        t.moved(),
        "mp_capable_syn_rx+1 mp_capable_ack_rx+1 connections_opened+1"
    );
}

#[test]
fn joined_clock_that_wraps_goes_on_at_the_server() {
    let mut t = Setup::new().ts().established();
    t.client(
        1,
        "S 0:0(0) win 65535 <mss 1460,sackok,ts 4294967290 0,ws 8,join>",
    )
    .gives(&[
        "client1 S. 0:0(0) ack 1 win 65152 <mss 1460,sackok,ts 5000 4294967290,ws 7,join id 0>",
    ]);
    t.client(1, ". 1:1(0) ack 1 win 512 <ts 4294967292 5000,join>")
        .gives(&["client1 . 1:1(0) ack 1 win 509 <ts 5000 4294967292,dss ack 1>"]);
    t.client(
        1,
        "P. 1:101(100) ack 1 win 512 <ts 4 5000,dss ack 1 map 1:101@1>",
    )
    .gives(&["server P. 1:101(100) ack 1 win 512 <ts 1010 5000>"]);
    t.server(". 1:1(0) ack 101 win 64 <ts 5010 1010>")
        .gives(&["client1 . 1:1(0) ack 101 win 64 <ts 5010 4,dss ack 101>"]);
    assert_eq!(t.moved(), "mp_join_syn_rx+1 mp_join_ack_rx+1");
}

#[test]
fn syn_sent_syn_again_with_a_later_timestamp_starts_the_clock_there() {
    let mut t = Setup::new().ts().syn_sent();
    t.at(1000);
    t.client(
        0,
        "S 0:0(0) win 65535 <mss 1460,sackok,ts 2000 0,ws 8,capable>",
    )
    .gives(&["server S 0:0(0) win 65535 <mss 1432,sackok,ts 2000 0,ws 8>"]);
    t.server("S. 0:0(0) ack 1 win 65160 <mss 1460,sackok,ts 5000 2000,ws 7>")
        .gives(&["client0 S. 0:0(0) ack 1 win 65160 <mss 1460,sackok,ts 5000 2000,ws 7,capable>"]);
    t.client(0, ". 1:1(0) ack 1 win 512 <ts 2001 5000,capable>")
        .gives(&["server . 1:1(0) ack 1 win 512 <ts 2001 5000>"]);
    assert_eq!(t.moved(), "mp_capable_ack_rx+1");
}

#[test]
fn syn_sent_syn_again_that_was_held_up_does_not_turn_the_clock_back() {
    let syn = |val| format!("S 0:0(0) win 65535 <mss 1460,sackok,ts {val} 0,ws 8,capable>");
    let up = "server S 0:0(0) win 65535 <mss 1432,sackok,ts 2000 0,ws 8>";
    let mut t = Setup::new().ts().syn_sent();
    t.at(1000);
    t.client(0, &syn(2000)).gives(&[up]);
    t.client(0, &syn(1000)).gives(&[up]);
    t.server("S. 0:0(0) ack 1 win 65160 <mss 1460,sackok,ts 5000 2000,ws 7>")
        .gives(&["client0 S. 0:0(0) ack 1 win 65160 <mss 1460,sackok,ts 5000 2000,ws 7,capable>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn late_packet_of_the_server_does_not_turn_the_clients_view_back() {
    // FlexCP's own ACK has told the client of 5010 already; an older value would be dropped (PAWS).
    let mut t = Setup::new().ts().established();
    t.server(". 1:1(0) ack 1 win 64 <ts 5010 1000>")
        .gives(&["client0 . 1:1(0) ack 1 win 64 <ts 5010 1000,dss ack 1>"]);
    t.server("P. 1:101(100) ack 1 win 64 <ts 5003 1000>")
        .gives(&["client0 P. 1:101(100) ack 1 win 64 <ts 5010 1000,dss ack 1 map 1:101@1>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn joined_syn_ack_again_echoes_the_initial_subflow_and_has_the_servers_latest() {
    // The server has not heard the third packet, only data of the other subflow, and repeats its SYN/ACK: as it is
    // it would echo the other subflow's clock, or be older than what the client has heard from FlexCP.
    let again = |val: u32, echo: u32| {
        format!("S. 0:0(0) ack 1 win 65160 <mss 1460,sackok,ts {val} {echo},ws 7>")
    };
    let mut t = joined();
    t.at(50);
    t.client(
        1,
        "P. 1:101(100) ack 1 win 512 <ts 900010 5000,dss ack 1 map 1:101@1>",
    )
    .gives(&["server P. 1:101(100) ack 1 win 512 <ts 1050 5000>"]);
    t.server(&again(5060, 1050))
        .gives(&["client0 S. 0:0(0) ack 1 win 65160 <mss 1460,sackok,ts 5060 1000,ws 7,capable>"]);
    t.server(&again(5002, 1000))
        .gives(&["client0 S. 0:0(0) ack 1 win 65160 <mss 1460,sackok,ts 5060 1000,ws 7,capable>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn syn_received_syn_again_may_be_echoed_by_the_syn_ack_again() {
    let mut t = Setup::new().ts().syn_received();
    t.at(1000);
    t.client(
        0,
        "S 0:0(0) win 65535 <mss 1460,sackok,ts 2000 0,ws 8,capable>",
    )
    .gives(&["server S 0:0(0) win 65535 <mss 1432,sackok,ts 2000 5000,ws 8>"]);
    t.server("S. 0:0(0) ack 1 win 65160 <mss 1460,sackok,ts 6000 2000,ws 7>")
        .gives(&["client0 S. 0:0(0) ack 1 win 65160 <mss 1460,sackok,ts 6000 2000,ws 7,capable>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn syn_ack_with_timestamps_that_the_client_did_not_offer_brings_none() {
    let mut t = Setup::new().syn_sent();
    t.server("S. 0:0(0) ack 1 win 65160 <mss 1460,sackok,ts 5000 0,ws 7>")
        .gives(&["client0 S. 0:0(0) ack 1 win 65160 <mss 1460,sackok,ws 7,capable>"]);
    assert_eq!(t.moved(), "");
}

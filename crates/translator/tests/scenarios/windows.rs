//! Windows: relative to the data ACK on both sides, each leg with its own scale, and the right edge
//! never moves left (RFC 8684 section 3.3.4).

use crate::support::{Scenario, Setup};

/// A connection whose client has offered 256 bytes so far.
fn small() -> Scenario {
    let mut t = Scenario::syn_received();
    t.client(0, ". 1:1(0) ack 1 win 1 <capable>")
        .gives(&["server . 1:1(0) ack 1 win 1"]);
    assert_eq!(t.moved(), "mp_capable_ack_rx+1");
    t
}

/// Flow 1 joins with this window scale.
fn join(t: &mut Scenario, scale: &str, window: u16) {
    let _ = t.client(
        1,
        &format!("S 0:0(0) win 65535 <mss 1460,sackok{scale},join>"),
    );
    let _ = t.client(1, &format!(". 1:1(0) ack 1 win {window} <join>"));
    assert_eq!(t.moved(), "mp_join_syn_rx+1 mp_join_ack_rx+1");
}

#[test]
fn established_window_of_the_client_passes() {
    let mut t = Scenario::established();
    t.client(0, ". 1:1(0) ack 1 win 600 <dss ack 1>")
        .gives(&["server . 1:1(0) ack 1 win 600"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn established_window_that_shrinks_is_not_told_to_the_server() {
    let mut t = Scenario::established();
    t.client(0, ". 1:1(0) ack 1 win 100 <dss ack 1>")
        .gives(&["server . 1:1(0) ack 1 win 512"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn established_window_closes_as_data_is_acknowledged() {
    let mut t = small();
    t.server(". 1:257(256) ack 1")
        .gives(&["client0 P. 1:257(256) ack 1 win 64 <dss ack 1 map 1:257@1>"]);
    t.client(0, ". 1:1(0) ack 257 win 0 <dss ack 257>")
        .gives(&["server . 1:1(0) ack 257 win 0"]);
    t.client(0, ". 1:1(0) ack 257 win 3 <dss ack 257>")
        .gives(&["server . 1:1(0) ack 257 win 3"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn data_that_uses_up_a_small_window_is_pushed() {
    // A Linux client delays the ACK of a window of one segment by 40 ms unless it is pushed.
    let mut t = small();
    t.server(". 1:65(64) ack 1")
        .gives(&["client0 . 1:65(64) ack 1 win 64 <dss ack 1 map 1:65@1>"]);
    t.server(". 65:193(128) ack 1")
        .gives(&["client0 P. 65:193(128) ack 1 win 64 <dss ack 1 map 65:193@65>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn data_that_uses_up_a_large_window_is_not_pushed() {
    let mut t = Scenario::syn_received();
    t.client(0, ". 1:1(0) ack 1 win 23 <capable>")
        .gives(&["server . 1:1(0) ack 1 win 23"]);
    assert_eq!(t.moved(), "mp_capable_ack_rx+1");
    t.server(". 1:5889(5888) ack 1")
        .gives(&["client0 . 1:5889(5888) ack 1 win 64 <dss ack 1 map 1:5889@1> gso 1432"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn closed_window_probe_reaches_the_client_and_its_answer_the_server() {
    let mut t = small();
    t.server(". 1:257(256) ack 1")
        .gives(&["client0 P. 1:257(256) ack 1 win 64 <dss ack 1 map 1:257@1>"]);
    t.client(0, ". 1:1(0) ack 257 win 0 <dss ack 257>")
        .gives(&["server . 1:1(0) ack 257 win 0"]);
    t.at(200);
    t.server(". 256:256(0) ack 1")
        .gives(&["client0 . 256:256(0) ack 1 win 64 <dss ack 1>"]);
    t.client(0, ". 1:1(0) ack 257 win 0 <dss ack 257>")
        .gives(&["server . 1:1(0) ack 257 win 0"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn server_probe_on_another_subflow_is_answered_whatever_the_answer_says() {
    // The server has missed that the window is open again, and nobody else would tell it.
    let mut t = Scenario::two_subflows();
    t.client(1, ". 1:1(0) ack 1 win 600 <dss ack 1>")
        .gives(&["server . 1:1(0) ack 1 win 600"]);
    t.server(". 0:0(0) ack 1")
        .gives(&["client1 . 0:0(0) ack 1 win 64 <dss ack 1>"]);
    t.client(1, ". 1:1(0) ack 1 win 600 <dss ack 1>")
        .gives(&["server . 1:1(0) ack 1 win 600"]);
    // One answer to one question.
    t.client(1, ". 1:1(0) ack 1 win 600 <dss ack 1>")
        .gives(&["drop stale_ack"]);
    assert_eq!(t.moved(), "stale_ack+1");
}

#[test]
fn closed_window_of_the_server_at_the_end_leaves_room_for_the_fins_of_subflows() {
    let mut t = Scenario::established();
    let _ = t.server("F. 1:1(0) ack 1 win 0");
    let _ = t.client(0, ". 1:1(0) ack 1 <dss ack 2 fin 1>");
    let _ = t.server(". 2:2(0) ack 2 win 0");
    assert_eq!(t.state(), "closed");
    t.client(0, ". 0:0(0) ack 1 <dss ack 2>")
        .gives(&["client0 . 1:1(0) ack 1 win 1 <dss ack 2>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn closed_window_probe_of_the_clients_reaches_the_server() {
    let mut t = Scenario::established();
    t.client(0, "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1>")
        .gives(&["server P. 1:101(100) ack 1 win 512"]);
    t.server(". 1:1(0) ack 101 win 0")
        .gives(&["client0 . 1:1(0) ack 101 win 0 <dss ack 101>"]);
    t.at(200);
    t.client(0, ". 100:100(0) ack 1 <dss ack 1>")
        .gives(&["server . 100:100(0) ack 1 win 512"]);
    t.server(". 1:1(0) ack 101 win 0")
        .gives(&["client0 . 1:1(0) ack 101 win 0 <dss ack 101>"]);
    t.server(". 1:1(0) ack 101 win 9")
        .gives(&["client0 . 1:1(0) ack 101 win 9 <dss ack 101>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn established_window_of_a_partial_unit_is_rounded_down() {
    let mut t = small();
    t.server(". 1:101(100) ack 1")
        .gives(&["client0 . 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>"]);
    // 156 bytes are left of the 256.
    t.client(0, ". 1:1(0) ack 101 win 0 <dss ack 101>")
        .gives(&["server . 1:1(0) ack 101 win 0"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn joined_without_scaling_window_is_rescaled_for_the_server() {
    let mut t = small();
    join(&mut t, "", 200);
    t.client(1, ". 1:1(0) ack 1 win 60000 <dss ack 1>")
        .gives(&["server . 1:1(0) ack 1 win 234"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn joined_with_a_larger_scale_window_is_rescaled_for_the_server() {
    let mut t = small();
    join(&mut t, ",ws 10", 0);
    t.client(1, ". 1:1(0) ack 1 win 100 <dss ack 1>")
        .gives(&["server . 1:1(0) ack 1 win 400"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn joined_with_a_larger_scale_window_is_capped_at_what_the_field_holds() {
    let mut t = small();
    join(&mut t, ",ws 14", 0);
    t.client(1, ". 1:1(0) ack 1 win 65535 <dss ack 1>")
        .gives(&["server . 1:1(0) ack 1 win 65535"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn joined_without_scaling_gets_the_servers_window_in_bytes() {
    let mut t = Scenario::established();
    join(&mut t, "", 60000);
    t.client(1, ". 1:101(100) ack 1 <dss ack 1 map 1:101@1>")
        .gives(&["server . 1:101(100) ack 1 win 512"]);
    t.server(". 1:1(0) ack 101 win 10")
        .gives(&["client1 . 1:1(0) ack 101 win 1280 <dss ack 101>"]);
    t.client(1, ". 101:201(100) ack 1 <dss ack 1 map 101:201@101>")
        .gives(&["server . 101:201(100) ack 1 win 512"]);
    // The window was used up: both hear that there is room again.
    t.server(". 1:1(0) ack 201 win 1000").gives(&[
        "client0 . 1:1(0) ack 1 win 1000 <dss ack 201>",
        "client1 . 1:1(0) ack 201 win 65535 <dss ack 201>",
    ]);
    assert_eq!(t.moved(), "");
}

#[test]
fn two_subflows_window_that_opens_is_told_to_both() {
    // The path where the client was heard last may be dead, and nobody repeats an ACK.
    let mut t = Scenario::two_subflows();
    let _ = t.client(1, "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1>");
    t.server(". 1:1(0) ack 101 win 0")
        .gives(&["client1 . 1:1(0) ack 101 win 0 <dss ack 101>"]);
    t.server(". 1:1(0) ack 101 win 500").gives(&[
        "client0 . 1:1(0) ack 1 win 500 <dss ack 101>",
        "client1 . 1:1(0) ack 101 win 500 <dss ack 101>",
    ]);
    t.server(". 1:1(0) ack 101 win 600")
        .gives(&["client1 . 1:1(0) ack 101 win 600 <dss ack 101>"]);
    assert_eq!(t.moved(), "");
}

/// A window that is used up and opens again, with the client heard lately on flow 1 alone.
fn opened_twice(window: u16) -> Scenario {
    let mut t = Scenario::two_subflows();
    let _ = t.client(1, "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1>");
    let _ = t.server(". 1:1(0) ack 101 win 0");
    t.at(200);
    let _ = t.server(". 1:1(0) ack 101 win 1");
    t.at(210);
    let _ = t.client(1, "P. 101:201(100) ack 1 <dss ack 1 map 101:201@101>");
    t.at(220);
    let told = format!("client1 . 1:1(0) ack 201 win {window} <dss ack 201>");
    t.server(&format!(". 1:1(0) ack 201 win {window}"))
        .gives(&[&told]);
    t
}

#[test]
fn two_subflows_window_that_opens_is_told_later_where_the_client_was_not_heard() {
    // Linux would not take that path for stale as long as it hears of every opening there.
    let mut t = opened_twice(500);
    t.at(319);
    t.timeout().gives(&[]);
    t.at(320);
    t.timeout()
        .gives(&["client1 . 1:1(0) ack 201 win 500 <dss ack 201>"]);
    // A retransmission timeout of the client's runs as long as its data has no ACK.
    t.at(1219);
    t.timeout().gives(&[]);
    t.at(1220);
    t.timeout().gives(&[
        "client0 . 1:1(0) ack 1 win 500 <dss ack 201>",
        "client1 . 1:1(0) ack 201 win 500 <dss ack 201>",
    ]);
    t.at(5000);
    t.timeout().gives(&[]);
    assert_eq!(t.moved(), "");
}

/// Client and server go on by one piece, which uses the window up and opens it again.
fn one_piece(t: &mut Scenario, sent: &mut u64) {
    let next = *sent + 128;
    let map = format!("<dss ack 1 map {sent}:{next}@{sent}>");
    let _ = t.client(1, &format!("P. {sent}:{next}(128) ack 1 {map}"));
    let _ = t.server(&format!(". 1:1(0) ack {next} win 0"));
    let _ = t.server(&format!(". 1:1(0) ack {next} win 1"));
    *sent = next;
}

/// Flow 0 hears of the opening `wait` milliseconds after it.
fn told_to_both_after(t: &mut Scenario, opened: u64, wait: u64, sent: u64) {
    t.at(opened + 100);
    let _ = t.timeout();
    t.at(opened + wait - 1);
    t.timeout().gives(&[]);
    t.at(opened + wait);
    t.timeout().gives(&[
        &format!("client0 . 1:1(0) ack 1 win 1 <dss ack {sent}>"),
        &format!("client1 . 1:1(0) ack {sent} win 1 <dss ack {sent}>"),
    ]);
}

#[test]
fn two_subflows_window_that_opens_is_told_ever_later_where_nobody_answers() {
    let mut t = opened_twice(1);
    let (mut at, mut sent) = (220, 201);
    for wait in [1000, 2000, 4000, 8000, 16_000, 16_000] {
        told_to_both_after(&mut t, at, wait, sent);
        at += wait + 10;
        t.at(at);
        one_piece(&mut t, &mut sent);
    }
    // Once the client was heard on both, the wait is short again.
    let _ = t.client(0, ". 1:1(0) ack 1 <dss ack 1>");
    one_piece(&mut t, &mut sent);
    at += 300;
    t.at(at);
    one_piece(&mut t, &mut sent);
    told_to_both_after(&mut t, at, 1000, sent);
    assert_eq!(t.moved(), "");
}

#[test]
fn two_subflows_window_that_opens_is_not_told_again_to_a_client_that_sends() {
    let mut t = opened_twice(500);
    // Up to the edge that it knew of before says nothing.
    let _ = t.client(1, "P. 201:229(28) ack 1 <dss ack 1 map 201:229@201>");
    let _ = t.client(1, "P. 229:329(100) ack 1 <dss ack 1 map 229:329@229>");
    t.at(320);
    t.timeout().gives(&[]);
    assert_eq!(t.moved(), "");
}

#[test]
fn two_subflows_window_that_opens_is_told_to_both_when_neither_was_heard() {
    let mut t = opened_twice(2);
    t.at(310);
    t.server(". 1:1(0) ack 201 win 600").gives(&[
        "client0 . 1:1(0) ack 1 win 600 <dss ack 201>",
        "client1 . 1:1(0) ack 201 win 600 <dss ack 201>",
    ]);
    t.at(5000);
    t.timeout().gives(&[]);
    assert_eq!(t.moved(), "");
}

#[test]
fn two_subflows_data_beyond_the_servers_window_does_not_hold_up_its_subflow() {
    let mut t = Scenario::two_subflows();
    // Room for 128 bytes; the first 100 get lost on flow 1.
    t.server(". 1:1(0) ack 1 win 1")
        .gives(&["client1 . 1:1(0) ack 1 win 1 <dss ack 1>"]);
    t.client(0, "P. 1:29(28) ack 1 <dss ack 1 map 101:129@1>")
        .gives(&["server P. 101:129(28) ack 1 win 512"]);
    assert_eq!(t.moved(), "");
    t.server(". 1:1(0) ack 1 win 1 <sack 101:129>")
        .gives(&["client0 . 1:1(0) ack 29 win 1 <dss ack 1>"]);
    t.client(0, "P. 29:129(100) ack 1 <dss ack 1 map 129:229@29>")
        .gives(&[
            "server P. 129:229(100) ack 1 win 512",
            "client0 . 1:1(0) ack 129 win 1 <dss ack 1>",
        ]);
    assert_eq!(t.moved(), "window_overrun+1");
    // Nothing is outstanding on flow 0, so the client sends there what it misses.
    t.client(0, "P. 129:229(100) ack 1 <dss ack 1 map 1:101@129>")
        .gives(&["server P. 1:101(100) ack 1 win 512"]);
    t.server(". 1:1(0) ack 129 win 2").gives(&[
        "client0 . 1:1(0) ack 229 win 2 <dss ack 129>",
        "client1 . 1:1(0) ack 1 win 2 <dss ack 129>",
    ]);
    t.client(0, "P. 229:329(100) ack 1 <dss ack 1 map 129:229@229>")
        .gives(&["server P. 129:229(100) ack 1 win 512"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn two_subflows_ack_after_data_beyond_the_servers_window_stays_within_it() {
    let mut t = Scenario::two_subflows();
    t.server("P. 1:101(100) ack 1 win 1")
        .gives(&["client0 P. 1:101(100) ack 1 win 1 <dss ack 1 map 1:101@1>"]);
    t.client(0, "P. 1:201(200) ack 1 <dss ack 1 map 101:301@1>")
        .gives(&[
            "server P. 101:301(200) ack 1 win 512",
            "client0 . 101:101(0) ack 201 win 1 <dss ack 1>",
        ]);
    t.client(0, ". 201:201(0) ack 101 <dss ack 101>")
        .gives(&["server . 129:129(0) ack 101 win 512"]);
    t.server("P. 1:101(100) ack 1 win 1")
        .gives(&["server . 129:129(0) ack 101 win 512 <sack 1:101>"]);
    assert_eq!(t.moved(), "window_overrun+1");
}

#[test]
fn two_subflows_window_that_rounds_down_takes_nothing_back() {
    let mut t = Scenario::two_subflows();
    t.server(". 1:1(0) ack 1 win 2")
        .gives(&["client1 . 1:1(0) ack 1 win 2 <dss ack 1>"]);
    t.client(0, "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1>")
        .gives(&["server P. 1:101(100) ack 1 win 512"]);
    // The edge was 257; by these numbers it would be 229.
    t.server(". 1:1(0) ack 101 win 1")
        .gives(&["client0 . 1:1(0) ack 101 win 1 <dss ack 101>"]);
    t.client(0, "P. 101:251(150) ack 1 <dss ack 1 map 101:251@101>")
        .gives(&["server P. 101:251(150) ack 1 win 512"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn two_subflows_data_beyond_the_servers_window_waits_for_what_is_before_it() {
    let mut t = Scenario::two_subflows();
    t.server(". 1:1(0) ack 1 win 1")
        .gives(&["client1 . 1:1(0) ack 1 win 1 <dss ack 1>"]);
    t.client(0, "P. 101:201(100) ack 1 <dss ack 1 map 101:201@101>")
        .gives(&["server P. 101:201(100) ack 1 win 512"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn established_data_beyond_the_servers_window_is_not_acked_on_the_only_subflow() {
    let mut t = Scenario::established();
    t.server(". 1:1(0) ack 1 win 1")
        .gives(&["client0 . 1:1(0) ack 1 win 1 <dss ack 1>"]);
    t.client(0, "P. 1:201(200) ack 1 <dss ack 1 map 1:201@1>")
        .gives(&["server P. 1:201(200) ack 1 win 512"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn server_window_of_an_overtaken_packet_does_not_come_back() {
    let mut t = Setup::new().ts().established();
    t.server(". 1:1(0) ack 1 win 500 <ts 5010 1000>")
        .gives(&["client0 . 1:1(0) ack 1 win 500 <ts 5010 1000,dss ack 1>"]);
    t.server(". 1:1(0) ack 1 win 0 <ts 5009 1000>")
        .gives(&["client0 . 1:1(0) ack 1 win 500 <ts 5010 1000,dss ack 1>"]);
    let _ = t.client(
        0,
        "P. 1:101(100) ack 1 <ts 1001 5010,dss ack 1 map 1:101@1>",
    );
    t.server(". 1:1(0) ack 101 win 400 <ts 5011 1001>")
        .gives(&["client0 . 1:1(0) ack 101 win 400 <ts 5011 1001,dss ack 101>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn server_without_scaling_windows_are_taken_as_they_are() {
    let mut t = Setup::new().scales(Some(8), None).established();
    t.server(". 1:1(0) ack 1 win 500")
        .gives(&["client0 . 1:1(0) ack 1 win 500 <dss ack 1>"]);
    t.client(0, ". 1:1(0) ack 1 win 60000 <dss ack 1>")
        .gives(&["server . 1:1(0) ack 1 win 60000"]);
    join(&mut t, ",ws 8", 512);
    t.client(1, ". 1:1(0) ack 1 win 61000 <dss ack 1>")
        .gives(&["server . 1:1(0) ack 1 win 61000"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn client_without_scaling_windows_are_taken_as_they_are() {
    let mut t = Setup::new().scales(None, Some(7)).established();
    t.server(". 1:1(0) ack 1 win 500")
        .gives(&["client0 . 1:1(0) ack 1 win 500 <dss ack 1>"]);
    t.client(0, ". 1:1(0) ack 1 win 60000 <dss ack 1>")
        .gives(&["server . 1:1(0) ack 1 win 60000"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn two_subflows_window_without_a_data_ack_is_not_believed() {
    let mut t = Scenario::two_subflows();
    t.client(1, "P. 1:101(100) ack 1 win 9000 <dss map 1:101@1>")
        .gives(&["server P. 1:101(100) ack 1 win 512"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn two_subflows_stale_window_of_the_slower_path_does_not_shrink_it() {
    let mut t = Scenario::two_subflows();
    t.server(". 1:101(100) ack 1")
        .gives(&["client0 . 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>"]);
    t.client(0, ". 1:1(0) ack 101 win 600 <dss ack 101>")
        .gives(&["server . 1:1(0) ack 101 win 600"]);
    t.client(1, "P. 1:101(100) ack 1 win 512 <dss ack 1 map 1:101@1>")
        .gives(&["server P. 1:101(100) ack 101 win 600"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn two_subflows_window_update_on_the_other_one_reaches_the_server() {
    let mut t = Scenario::two_subflows();
    t.client(1, ". 1:1(0) ack 1 win 700 <dss ack 1>")
        .gives(&["server . 1:1(0) ack 1 win 700"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn two_subflows_data_beyond_the_edge_of_one_goes_down_on_the_other() {
    let mut t = Scenario::two_subflows();
    t.client(1, ". 1:1(0) ack 1 win 513 <dss ack 1>")
        .gives(&["server . 1:1(0) ack 1 win 513"]);
    t.server("P. 1:65001(65000) ack 1")
        .gives(&["client0 P. 1:65001(65000) ack 1 win 64 <dss ack 1 map 1:65001@1> gso 1432"]);
    t.server("P. 65001:130001(65000) ack 1").gives(&[
        "client0 P. 65001:130001(65000) ack 1 win 64 <dss ack 1 map 65001:130001@65001> gso 1432",
    ]);
    // The initial subflow knows of 512 units of 256 bytes.
    t.server("P. 130001:131101(1100) ack 1")
        .gives(&["client1 P. 1:1101(1100) ack 1 win 64 <dss ack 1 map 130001:131101@1>"]);
    assert_eq!(t.moved(), "subflow_switch+1");
}

#[test]
fn two_subflows_server_window_of_a_late_packet_is_not_told() {
    let mut t = Scenario::two_subflows();
    t.client(0, ". 1:101(100) ack 1 <dss ack 1 map 1:101@1>")
        .gives(&["server . 1:101(100) ack 1 win 512"]);
    t.server(". 1:1(0) ack 101 win 70")
        .gives(&["client0 . 1:1(0) ack 101 win 70 <dss ack 101>"]);
    t.server("P. 1:101(100) ack 1 win 99")
        .gives(&["client0 P. 1:101(100) ack 101 win 70 <dss ack 101 map 1:101@1>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn two_subflows_data_that_the_server_threw_away_does_not_hold_up_the_subflows() {
    let mut t = Scenario::two_subflows();
    // Flow 0 loses its first 100 bytes on the way to the server; what flow 1 brings is SACKed, and ACKed there.
    t.client(0, "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1>")
        .gives(&["server P. 1:101(100) ack 1 win 512"]);
    t.client(1, "P. 1:101(100) ack 1 <dss ack 1 map 101:201@1>")
        .gives(&["server P. 101:201(100) ack 1 win 512"]);
    t.server(". 1:1(0) ack 1 <sack 101:201>")
        .gives(&["client1 . 1:1(0) ack 101 win 64 <dss ack 1>"]);
    t.client(1, "P. 101:201(100) ack 1 <dss ack 1 map 201:301@101>")
        .gives(&["server P. 201:301(100) ack 1 win 512"]);
    // It throws that away (RFC 2018 section 8), and gets what was lost, at last.
    for _ in 0..2 {
        t.client(0, "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1>")
            .gives(&["server P. 1:101(100) ack 1 win 512"]);
    }
    t.server(". 1:1(0) ack 101")
        .gives(&["client0 . 1:1(0) ack 101 win 64 <dss ack 101>"]);
    // No subflow will bring 101:201. New data waits for the server, and so does what is repeated ...
    t.client(0, "P. 101:201(100) ack 1 <dss ack 1 map 301:401@101>")
        .gives(&["server P. 301:401(100) ack 1 win 512"]);
    for _ in 0..2 {
        t.client(1, "P. 101:201(100) ack 1 <dss ack 1 map 201:301@101>")
            .gives(&["server P. 201:301(100) ack 1 win 512"]);
    }
    assert_eq!(t.moved(), "");
    // ... but not for ever.
    t.client(1, "P. 101:201(100) ack 1 <dss ack 1 map 201:301@101>")
        .gives(&[
            "server P. 201:301(100) ack 1 win 512",
            "client1 . 1:1(0) ack 201 win 64 <dss ack 101>",
        ]);
    assert_eq!(t.moved(), "let_go_up+1");
    // Nothing is outstanding on flow 1, so the client sends it there; then there is no reason any more.
    t.client(1, "P. 201:301(100) ack 1 <dss ack 1 map 101:201@201>")
        .gives(&["server P. 101:201(100) ack 1 win 512"]);
    t.client(0, "P. 101:201(100) ack 1 <dss ack 1 map 301:401@101>")
        .gives(&["server P. 301:401(100) ack 1 win 512"]);
    t.server(". 1:1(0) ack 301")
        .gives(&["client1 . 1:1(0) ack 301 win 64 <dss ack 301>"]);
    assert_eq!(t.moved(), "");
}

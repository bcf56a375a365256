//! Joins (RFC 8684 section 3.2), which FlexCP answers alone.

use flexcp_translator::ConnectionState;

use crate::support::{Leg, Scenario, Setup, millis};

const SYN: &str = "S 0:0(0) win 65535 <mss 1460,sackok,ws 8,join>";
const SYN_ACK: &str = "client1 S. 0:0(0) ack 1 win 65152 <mss 1460,sackok,ws 7,join id 0>";
const THIRD: &str = ". 1:1(0) ack 1 win 512 <join>";
const FOURTH: &str = "client1 . 1:1(0) ack 1 win 509 <dss ack 1>";

#[test]
fn established_join_is_answered_with_the_servers_options_and_window() {
    let mut t = Scenario::established();
    t.client(1, SYN).gives(&[SYN_ACK]);
    assert_eq!(t.moved(), "mp_join_syn_rx+1");
    assert_eq!(t.subflows(), ["0 active", "1 down"]);
}

#[test]
fn established_join_after_a_window_update_offers_the_new_window() {
    let mut t = Scenario::established();
    t.server(". 1:1(0) ack 1 win 100")
        .gives(&["client0 . 1:1(0) ack 1 win 100 <dss ack 1>"]);
    t.client(1, SYN)
        .gives(&["client1 S. 0:0(0) ack 1 win 12800 <mss 1460,sackok,ws 7,join id 0>"]);
    t.client(1, THIRD)
        .gives(&["client1 . 1:1(0) ack 1 win 100 <dss ack 1>"]);
    assert_eq!(t.moved(), "mp_join_syn_rx+1 mp_join_ack_rx+1");
}

#[test]
fn established_join_with_a_great_window_offers_what_a_syn_can_say() {
    let mut t = Scenario::established();
    t.server(". 1:1(0) ack 1 win 2000")
        .gives(&["client0 . 1:1(0) ack 1 win 2000 <dss ack 1>"]);
    t.client(1, SYN)
        .gives(&["client1 S. 0:0(0) ack 1 win 65535 <mss 1460,sackok,ws 7,join id 0>"]);
    assert_eq!(t.moved(), "mp_join_syn_rx+1");
}

#[test]
fn established_join_gets_timestamps_that_go_on_from_the_servers() {
    let mut t = Setup::new().ts().established();
    t.at(40);
    t.client(
        1,
        "S 0:0(0) win 65535 <mss 1460,sackok,ts 900000 0,ws 8,join>",
    )
    .gives(&["client1 S. 0:0(0) ack 1 win 65152 <mss 1460,sackok,ts 5000 900000,ws 7,join id 0>"]);
    t.client(1, ". 1:1(0) ack 1 win 512 <ts 900010 5000,join>")
        .gives(&["client1 . 1:1(0) ack 1 win 509 <ts 5000 900010,dss ack 1>"]);
    assert_eq!(t.moved(), "mp_join_syn_rx+1 mp_join_ack_rx+1");
}

#[test]
fn established_without_sack_at_the_server_only_one_subflow_at_a_time() {
    // Nobody would know which later data the server holds while a subflow that is gone owes what is before.
    let mut t = Setup::new().no_sack().established();
    t.client(1, SYN).gives(&[
        "drop unexpected",
        "client1 R. 0:0(0) ack 1 win 0 <rst reason 3>",
    ]);
    t.client(0, "R 1:1(0) win 0").gives(&[]);
    t.client(1, SYN)
        .gives(&["client1 S. 0:0(0) ack 1 win 65152 <mss 1460,ws 7,join id 0>"]);
    assert_eq!(
        t.moved(),
        "mp_join_syn_rx+1 mp_join_refused+1 mp_rst_rx+1 unexpected+1"
    );
}

#[test]
fn established_without_scaling_join_is_not_offered_it() {
    let mut t = Setup::new().scales(None, None).established();
    t.client(1, SYN)
        .gives(&["client1 S. 0:0(0) ack 1 win 65160 <mss 1460,sackok,join id 0>"]);
    t.client(1, THIRD)
        .gives(&["client1 . 1:1(0) ack 1 win 65160 <dss ack 1>"]);
    assert_eq!(t.moved(), "mp_join_syn_rx+1 mp_join_ack_rx+1");
}

#[test]
fn established_without_timestamps_join_is_not_offered_them() {
    let mut t = Scenario::established();
    t.client(
        1,
        "S 0:0(0) win 65535 <mss 1460,sackok,ts 900000 0,ws 8,join>",
    )
    .gives(&[SYN_ACK]);
    assert_eq!(t.moved(), "mp_join_syn_rx+1");
}

#[test]
fn established_join_without_options_is_offered_none() {
    let mut t = Setup::new().ts().established();
    t.client(1, "S 0:0(0) win 65535 <join>")
        .gives(&["client1 S. 0:0(0) ack 1 win 65152 <mss 1460,join id 0>"]);
    assert_eq!(t.moved(), "mp_join_syn_rx+1");
}

#[test]
fn joining_syn_again_is_answered_alike() {
    let mut t = Scenario::established();
    t.client(1, SYN).gives(&[SYN_ACK]);
    let (isn, nonce) = (t.net.flow(1).isn_flexcp, t.net.flow(1).nonce_flexcp);
    t.client(1, SYN).gives(&[SYN_ACK]);
    assert_eq!(
        (t.net.flow(1).isn_flexcp, t.net.flow(1).nonce_flexcp),
        (isn, nonce)
    );
    assert_eq!(t.moved(), "mp_join_syn_rx+1");
}

#[test]
fn joining_syn_with_another_nonce_is_dropped() {
    let mut t = Scenario::established();
    t.client(1, SYN).gives(&[SYN_ACK]);
    t.client(
        1,
        "S 0:0(0) win 65535 <mss 1460,sackok,ws 8,join nonce 1234>",
    )
    .gives(&["drop unexpected"]);
    assert_eq!(t.moved(), "mp_join_syn_rx+1 unexpected+1");
}

#[test]
fn joining_third_ack_is_answered_with_a_data_ack() {
    let mut t = Scenario::established();
    t.client(1, SYN).gives(&[SYN_ACK]);
    t.client(1, THIRD).gives(&[FOURTH]);
    assert_eq!(t.moved(), "mp_join_syn_rx+1 mp_join_ack_rx+1");
    assert_eq!(t.subflows(), ["0 active", "1"]);
}

#[test]
fn joined_third_ack_again_is_answered_again() {
    let mut t = Scenario::established();
    t.client(1, SYN).gives(&[SYN_ACK]);
    t.client(1, THIRD).gives(&[FOURTH]);
    t.client(1, THIRD).gives(&[FOURTH]);
    assert_eq!(t.moved(), "mp_join_syn_rx+1 mp_join_ack_rx+1");
}

#[test]
fn joining_third_ack_with_a_wrong_hmac_resets_the_subflow() {
    let mut t = Scenario::established();
    t.client(1, SYN).gives(&[SYN_ACK]);
    let outcome = t.client(1, ". 1:1(0) ack 1 win 512 <join bad>");
    assert_eq!(outcome.lines()[0], "drop not_authenticated");
    assert!(outcome.lines()[1].starts_with("client1 R. 1:1(0) ack 1 win 509 <rst reason"));
    assert_eq!(outcome.lines().len(), 2);
    assert_eq!(
        t.moved(),
        "mp_join_syn_rx+1 mp_join_ack_hmac_failure+1 mp_rst_tx+1 not_authenticated+1"
    );
    let outcome = t.client(1, THIRD);
    assert_eq!(
        outcome.lines(),
        ["drop no_subflow", "client1 R 1:1(0) win 0 <rst reason 0>"],
        "as it belongs to nothing"
    );
    assert_eq!(t.moved(), "no_subflow+1");
    assert_eq!(t.why(), "rst.wrong_hmac+1 rst.subflow_closed+1");
}

#[test]
fn joining_third_ack_without_join_resets_the_subflow() {
    // RFC 8684 section 3.2: if the MP_JOIN option is missing from the ACK, it MUST close the subflow.
    let mut t = Scenario::established();
    t.client(1, SYN).gives(&[SYN_ACK]);
    t.client(1, ". 1:1(0) ack 1 win 512").gives(&[
        "drop not_authenticated",
        "client1 R. 1:1(0) ack 1 win 509 <rst reason 1>",
    ]);
    assert_eq!(
        t.moved(),
        "mp_join_syn_rx+1 mp_rst_tx+1 not_authenticated+1"
    );
    assert_eq!(t.why(), "rst.no_proof+1");
}

#[test]
fn joining_data_never_reaches_the_server() {
    let mut t = Scenario::established();
    t.client(1, SYN).gives(&[SYN_ACK]);
    let outcome = t.client(1, "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1>");
    assert_eq!(outcome.lines()[0], "drop not_authenticated");
    assert!(
        !outcome
            .lines()
            .iter()
            .any(|line| line.starts_with("server"))
    );
    let _ = t.moved();
}

#[test]
fn joining_ack_of_another_number_is_dropped() {
    let mut t = Scenario::established();
    t.client(1, SYN).gives(&[SYN_ACK]);
    t.client(1, ". 1:1(0) ack 2 win 512 <join>")
        .gives(&["drop ack_of_unsent"]);
    assert_eq!(t.moved(), "mp_join_syn_rx+1 ack_of_unsent+1");
    t.client(1, THIRD).gives(&[FOURTH]);
    assert_eq!(t.moved(), "mp_join_ack_rx+1");
}

#[test]
fn joining_rst_ends_it_and_the_server_hears_nothing() {
    let mut t = Scenario::established();
    t.client(1, SYN).gives(&[SYN_ACK]);
    t.client(1, "R 1:1(0) win 0").gives(&[]);
    assert_eq!(t.moved(), "mp_join_syn_rx+1");
    assert_eq!(t.subflows(), ["0 active"]);
}

#[test]
fn joining_blind_rst_is_dropped() {
    let mut t = Scenario::established();
    t.client(1, SYN).gives(&[SYN_ACK]);
    t.client(1, "R 2:2(0) win 0").gives(&["drop blind_reset"]);
    assert_eq!(t.moved(), "mp_join_syn_rx+1 blind_reset+1");
    t.client(1, THIRD).gives(&[FOURTH]);
    assert_eq!(t.moved(), "mp_join_ack_rx+1");
}

#[test]
fn established_server_data_does_not_use_a_joining_subflow() {
    let mut t = Scenario::established();
    t.client(1, SYN).gives(&[SYN_ACK]);
    t.server("P. 1:101(100) ack 1")
        .gives(&["client0 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>"]);
    assert_eq!(t.moved(), "mp_join_syn_rx+1");
}

#[test]
fn established_join_with_an_unknown_token_passes_a_transparent_proxy() {
    let mut t = Scenario::established();
    let outcome = t.client(1, "S 0:0(0) win 65535 <mss 1460,join token 1234>");
    assert_eq!(outcome.lines(), ["10.1.1.2:40001 > 10.9.0.2:80 S"]);
    assert_eq!(t.moved(), "mp_join_no_token+1");
}

#[test]
fn reverse_join_with_an_unknown_token_is_reset() {
    let mut t = Scenario::reverse(1);
    t.client(1, "S 0:0(0) win 65535 <mss 1460,join token 1234>")
        .gives(&[
            "drop no_connection",
            "client1 R. 0:0(0) ack 1 win 0 <rst reason 1>",
        ]);
    assert_eq!(t.moved(), "mp_join_no_token+1 no_connection+1");
    assert_eq!(t.why(), "rst.unknown_token+1");
}

#[test]
fn syn_received_join_is_refused() {
    let mut t = Scenario::syn_received();
    t.client(1, SYN).gives(&[
        "drop unexpected",
        "client1 R. 0:0(0) ack 1 win 0 <rst reason 3>",
    ]);
    assert_eq!(t.moved(), "mp_join_refused+1 unexpected+1");
}

#[test]
fn established_join_beyond_the_subflow_limit_is_refused() {
    let mut t = Setup::new()
        .limits(|limits| limits.subflows = 2)
        .two_subflows();
    t.client(2, SYN).gives(&[
        "drop limit_reached",
        "client2 R. 0:0(0) ack 1 win 0 <rst reason 2 transient>",
    ]);
    assert_eq!(t.moved(), "mp_join_refused+1 limit_reached+1");
    t.client(1, "R 1:1(0) win 0").gives(&[]);
    t.client(2, SYN)
        .gives(&["client2 S. 0:0(0) ack 1 win 65152 <mss 1460,sackok,ws 7,join id 0>"]);
    assert_eq!(t.moved(), "mp_join_syn_rx+1 mp_rst_rx+1");
}

#[test]
fn established_join_beyond_the_half_open_limit_is_refused() {
    let mut t = Setup::new()
        .limits(|limits| limits.half_open_joins = 1)
        .established();
    t.client(1, SYN).gives(&[SYN_ACK]);
    t.client(2, SYN).gives(&[
        "drop limit_reached",
        "client2 R. 0:0(0) ack 1 win 0 <rst reason 2 transient>",
    ]);
    assert_eq!(
        t.moved(),
        "mp_join_syn_rx+1 mp_join_refused+1 limit_reached+1"
    );
    t.client(1, THIRD).gives(&[FOURTH]);
    t.client(2, SYN)
        .gives(&["client2 S. 0:0(0) ack 1 win 65152 <mss 1460,sackok,ws 7,join id 0>"]);
    assert_eq!(t.moved(), "mp_join_syn_rx+1 mp_join_ack_rx+1");
}

#[test]
fn established_eight_subflows_are_the_most() {
    let setup = Setup::new();
    let mut t = setup.clone().established();
    for id in 1..8 {
        setup.join(&mut t, id);
    }
    t.client(8, SYN).gives(&[
        "drop limit_reached",
        "client8 R. 0:0(0) ack 1 win 0 <rst reason 2 transient>",
    ]);
    assert_eq!(
        t.moved(),
        "mp_join_syn_rx+7 mp_join_ack_rx+7 mp_join_refused+1 limit_reached+1"
    );
}

#[test]
fn established_join_with_little_mss_is_refused() {
    let mut t = Scenario::established();
    t.client(1, "S 0:0(0) win 65535 <mss 100,join>").gives(&[
        "drop unexpected",
        "client1 R. 0:0(0) ack 1 win 0 <rst reason 3>",
    ]);
    assert_eq!(t.moved(), "mp_join_refused+1 unexpected+1");
}

#[test]
fn established_backup_join_is_noted() {
    let mut t = Scenario::established();
    t.client(1, "S 0:0(0) win 65535 <mss 1460,sackok,ws 8,join b>")
        .gives(&[SYN_ACK]);
    t.client(1, THIRD).gives(&[FOURTH]);
    assert_eq!(t.subflows(), ["0 active", "1 backup"]);
    assert_eq!(t.moved(), "mp_join_syn_rx+1 mp_join_ack_rx+1");
}

#[test]
fn established_join_keeps_the_clients_address_id() {
    let mut t = Scenario::established();
    t.client(1, "S 0:0(0) win 65535 <mss 1460,sackok,ws 8,join id 9>")
        .gives(&[SYN_ACK]);
    assert_eq!(t.view().expect("a connection").subflows[1].address_id, 9);
    assert_eq!(t.moved(), "mp_join_syn_rx+1");
}

#[test]
fn established_join_over_the_other_family_works() {
    let mut t = Setup::new().mixed().established();
    t.client(1, SYN).gives(&[SYN_ACK]);
    t.client(1, THIRD).gives(&[FOURTH]);
    t.client(1, "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1>")
        .gives(&["server P. 1:101(100) ack 1 win 512"]);
    assert_eq!(t.moved(), "mp_join_syn_rx+1 mp_join_ack_rx+1");
}

#[test]
fn two_subflows_syn_on_a_joined_one_gets_a_challenge() {
    let mut t = Scenario::two_subflows();
    t.client(1, "S 7:7(0) win 65535 <mss 1460,join>")
        .gives(&["drop blind_reset", FOURTH]);
    assert_eq!(t.moved(), "blind_reset+1");
}

#[test]
fn two_subflows_join_from_a_flow_that_was_reset_takes_its_place() {
    let mut t = Scenario::two_subflows();
    t.client(1, "R 1:1(0) win 0").gives(&[]);
    t.restart(1);
    t.client(1, SYN).gives(&[SYN_ACK]);
    t.client(1, THIRD).gives(&[FOURTH]);
    t.client(1, "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1>")
        .gives(&["server P. 1:101(100) ack 1 win 512"]);
    assert_eq!(t.moved(), "mp_join_syn_rx+1 mp_join_ack_rx+1 mp_rst_rx+1");
    assert_eq!(t.subflows(), ["0 active", "1"]);
}

#[test]
fn join_in_the_place_of_a_flow_that_has_come_back_takes_nothing_from_it() {
    let setup = Setup::new();
    let mut t = setup.clone().two_subflows();
    setup.join(&mut t, 2);
    t.client(1, "R 1:1(0) win 0").gives(&[]);
    t.client(2, "R 1:1(0) win 0").gives(&[]);
    // It takes the first place that is free, that of the other one.
    t.restart(2);
    t.client(2, SYN)
        .gives(&["client2 S. 0:0(0) ack 1 win 65152 <mss 1460,sackok,ws 7,join id 0>"]);
    setup.join(&mut t, 3);
    t.client(2, THIRD)
        .gives(&["client2 . 1:1(0) ack 1 win 509 <dss ack 1>"]);
    assert_eq!(t.subflows(), ["0 active", "2", "3"]);
    assert_eq!(t.moved(), "mp_join_syn_rx+3 mp_join_ack_rx+3 mp_rst_rx+2");
}

/// Two connections; the first one had a joined subflow.
fn two_connections() -> Scenario {
    let setup = Setup::new().connections(2);
    let mut t = setup.clone().two_subflows();
    let _ = t.client(10, &setup.syn());
    let _ = t.server_of(1, &setup.syn_ack());
    let _ = t.client(10, &setup.third());
    let _ = t.moved();
    t
}

#[test]
fn join_from_a_port_of_a_connection_that_was_reset_is_answered() {
    let mut t = two_connections();
    let _ = t.client(0, ". 1:1(0) ack 1 <dss ack 1,fastclose>");
    // The SYN of then, held up on the way, is nobody's.
    t.client(1, SYN).gives(&[]);
    t.take_port(11, 1);
    t.client(11, SYN)
        .gives(&["client11 S. 0:0(0) ack 1 win 65152 <mss 1460,sackok,ws 7,join id 0>"]);
    t.client(11, THIRD)
        .gives(&["client11 . 1:1(0) ack 1 win 509 <dss ack 1>"]);
    assert_eq!(
        t.moved(),
        "mp_join_syn_rx+1 mp_join_ack_rx+1 mp_fastclose_rx+1"
    );
    // What is left of the first one leaves without it.
    t.at(10_000);
    t.timeout().gives(&[]);
    t.client(11, "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1>")
        .gives(&["server#1 P. 1:101(100) ack 1 win 512"]);
    assert_eq!(t.moved(), "connections_closed+1");
    assert_eq!(t.why(), "rst.fast_close+3");
}

#[test]
fn join_from_a_port_of_a_connection_that_is_closed_is_answered() {
    let mut t = two_connections();
    let _ = t.server("F. 1:1(0) ack 1");
    let _ = t.client(0, ". 1:1(0) ack 1 <dss ack 2 map 1:1@0 fin>");
    let _ = t.server(". 2:2(0) ack 2");
    assert_eq!(t.state_of(0), Some(ConnectionState::Closed));
    t.take_port(11, 1);
    t.client(11, SYN)
        .gives(&["client11 S. 0:0(0) ack 1 win 65152 <mss 1460,sackok,ws 7,join id 0>"]);
    assert_eq!(t.moved(), "mp_join_syn_rx+1");
}

#[test]
fn orphaned_join_carries_on() {
    let mut t = Scenario::established();
    t.server("P. 1:101(100) ack 1")
        .gives(&["client0 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>"]);
    t.client(0, "R 1:1(0) win 0").gives(&[]);
    t.at(2000);
    t.client(1, SYN)
        .gives(&["client1 S. 0:0(0) ack 1 win 8192 <mss 1460,sackok,ws 7,join id 0>"]);
    t.client(1, THIRD)
        .gives(&["client1 . 1:1(0) ack 1 win 64 <dss ack 1>"]);
    assert_eq!(t.subflows(), ["1 active"]);
    t.server("P. 1:101(100) ack 1")
        .gives(&["client1 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>"]);
    assert_eq!(t.why(), "subflow_switch.closed+1");
    assert_eq!(
        t.moved(),
        "mp_join_syn_rx+1 mp_join_ack_rx+1 mp_rst_rx+1 subflow_switch+1 retransmitted_down_bytes+100"
    );
}

#[test]
fn orphaned_join_in_the_place_of_the_active_subflow_is_chosen_like_any_other() {
    let mut t = Scenario::established();
    let _ = t.client(1, SYN);
    let _ = t.client(1, THIRD);
    let _ = t.client(0, "R 1:1(0) win 0");
    let _ = t.server("P. 1:101(100) ack 1");
    assert_eq!(t.subflows(), ["1 active"]);
    let _ = t.client(1, "R 1:1(0) win 0");
    t.at(2000);
    let _ = t.client(2, SYN);
    let _ = t.moved();
    let _ = t.client(2, THIRD);
    assert_eq!(t.subflows(), ["2 active"]);
    // One when the first subflow went, one now.
    assert_eq!(t.why(), "subflow_switch.closed+2");
    assert_eq!(t.moved(), "mp_join_ack_rx+1 subflow_switch+1");
}

#[test]
fn joining_without_a_third_ack_expires() {
    let mut t = Setup::new()
        .timeouts(|timeouts| timeouts.half_open = millis(40_000))
        .established();
    t.client(1, SYN).gives(&[SYN_ACK]);
    assert_eq!(t.next_timeout(), Some(10_000));
    t.at(10_000);
    t.timeout().gives(&[]);
    assert_eq!(t.subflows(), ["0 active"]);
    assert_eq!(t.moved(), "mp_join_syn_rx+1");
}

#[test]
fn joining_third_ack_that_got_lost_three_times_comes_in_time_whatever_the_limit() {
    let mut t = Setup::new()
        .timeouts(|timeouts| timeouts.half_open = millis(3000))
        .established();
    t.client(1, SYN).gives(&[SYN_ACK]);
    t.at(7100);
    t.timeout().gives(&[]);
    t.client(1, THIRD)
        .gives(&["client1 . 1:1(0) ack 1 win 509 <dss ack 1>"]);
    assert_eq!(t.subflows(), ["0 active", "1"]);
    assert_eq!(t.moved(), "mp_join_syn_rx+1 mp_join_ack_rx+1");
}

#[test]
fn fallen_back_join_has_no_answer() {
    // Told so, a Linux client that has not heard of the fallback sends what has no data ACK again on the initial
    // subflow: to the server new data.
    let mut t = Scenario::established();
    let _ = t.client(0, "P. 1:101(100) ack 1");
    assert_eq!(t.state(), "fallback");
    for _ in 0..2 {
        t.client(1, SYN).gives(&["drop unexpected"]);
    }
    assert_eq!(t.why(), "join_refused.fell_back+2 fallback.no_mapping+1");
    assert_eq!(
        t.moved(),
        "fallback_established+1 mp_join_refused+2 unexpected+2"
    );
}

#[test]
fn established_join_with_data_in_the_syn_never_passes_it_on() {
    let mut t = Scenario::established();
    let outcome = t.client(1, "S 0:10(10) win 65535 <mss 1460,join>");
    assert!(
        !outcome
            .lines()
            .iter()
            .any(|line| line.starts_with("server")),
        "{:?}",
        outcome.lines()
    );
    let _ = t.moved();
}

#[test]
fn established_join_from_the_servers_side_does_nothing() {
    let mut t = Scenario::established();
    t.edited(
        Leg::Server {
            connection: 0,
            backend: 0,
        },
        "S 0:0(0) win 65535 <mss 1460>",
        |_| {},
    )
    .gives(&["drop ack_of_unsent"]);
    assert_eq!(t.moved(), "ack_of_unsent+1");
}

#[test]
fn fallen_back_in_the_handshake_join_has_no_answer() {
    let mut t = Scenario::syn_received();
    let _ = t.client(0, "P. 1:101(100) ack 1");
    assert_eq!(t.state(), "fallback");
    t.client(1, SYN).gives(&["drop unexpected"]);
    let _ = t.moved();
}

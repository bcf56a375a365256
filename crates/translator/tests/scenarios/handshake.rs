//! The initial handshake (RFC 8684 section 3.1): numbers unchanged, `MP_CAPABLE` answered by FlexCP, and
//! everything it can't honour as plain TCP.

use crate::support::{Scenario, Setup};

const SYN: &str = "S 0:0(0) win 65535 <mss 1460,sackok,ws 8,capable>";
const SYN_UP: &str = "server S 0:0(0) win 65535 <mss 1432,sackok,ws 8>";
const SYN_ACK: &str = "S. 0:0(0) ack 1 win 65160 <mss 1460,sackok,ws 7>";
const SYN_ACK_DOWN: &str = "client0 S. 0:0(0) ack 1 win 65160 <mss 1460,sackok,ws 7,capable>";

#[test]
fn start_syn_goes_to_the_server_without_capable_and_with_less_mss() {
    let mut t = Setup::new().start();
    t.client(0, SYN).gives(&[SYN_UP]);
    assert_eq!(t.moved(), "mp_capable_syn_rx+1 connections_opened+1");
    assert_eq!(t.state(), "handshake");
}

#[test]
fn start_syn_over_ipv6_goes_to_the_server() {
    let mut t = Setup::new().v6().start();
    t.client(0, SYN).gives(&[SYN_UP]);
    t.server(SYN_ACK).gives(&[SYN_ACK_DOWN]);
    assert_eq!(t.moved(), "mp_capable_syn_rx+1 connections_opened+1");
}

#[test]
fn start_syn_with_timestamps_keeps_them() {
    let mut t = Setup::new().start();
    t.client(
        0,
        "S 0:0(0) win 65535 <mss 1460,sackok,ts 1000 0,ws 8,capable>",
    )
    .gives(&["server S 0:0(0) win 65535 <mss 1432,sackok,ts 1000 0,ws 8>"]);
    t.server("S. 0:0(0) ack 1 win 65160 <mss 1460,sackok,ts 5000 1000,ws 7>")
        .gives(&["client0 S. 0:0(0) ack 1 win 65160 <mss 1460,sackok,ts 5000 1000,ws 7,capable>"]);
    assert_eq!(t.moved(), "mp_capable_syn_rx+1 connections_opened+1");
}

#[test]
fn start_syn_without_capable_passes_as_it_is() {
    let mut t = Setup::new().start();
    t.client(0, "S 0:0(0) win 65535 <mss 1460,sackok,ws 8>")
        .gives(&["server S 0:0(0) win 65535 <mss 1460,sackok,ws 8>"]);
    assert_eq!(t.moved(), "plain_syn+1");
    assert_eq!(t.state(), "gone");
}

#[test]
fn start_syn_with_version_0_passes_as_plain_tcp() {
    let mut t = Setup::new().start();
    t.client(
        0,
        "S 0:0(0) win 65535 <mss 1460,sackok,ws 8,capable v 0 key-only>",
    )
    .gives(&["server S 0:0(0) win 65535 <mss 1460,sackok,ws 8>"]);
    assert_eq!(t.moved(), "plain_syn+1");
}

#[test]
fn start_syn_with_version_2_passes_as_plain_tcp() {
    let mut t = Setup::new().start();
    t.client(0, "S 0:0(0) win 65535 <mss 1460,ws 8,capable v 2>")
        .gives(&["server S 0:0(0) win 65535 <mss 1460,ws 8>"]);
    assert_eq!(t.moved(), "plain_syn+1");
}

#[test]
fn start_syn_that_requires_checksums_passes_as_plain_tcp() {
    let mut t = Setup::new().start();
    t.client(0, "S 0:0(0) win 65535 <mss 1460,capable flags 81>")
        .gives(&["server S 0:0(0) win 65535 <mss 1460>"]);
    assert_eq!(t.moved(), "plain_syn+1");
}

#[test]
fn start_syn_with_the_extensibility_flag_passes_as_plain_tcp() {
    let mut t = Setup::new().start();
    t.client(0, "S 0:0(0) win 65535 <mss 1460,capable flags 41>")
        .gives(&["server S 0:0(0) win 65535 <mss 1460>"]);
    assert_eq!(t.moved(), "plain_syn+1");
}

#[test]
fn start_syn_without_a_known_hmac_passes_as_plain_tcp() {
    let mut t = Setup::new().start();
    t.client(0, "S 0:0(0) win 65535 <mss 1460,capable flags 00>")
        .gives(&["server S 0:0(0) win 65535 <mss 1460>"]);
    t.client(0, "S 0:0(0) win 65535 <mss 1460,capable flags 02>")
        .gives(&["server S 0:0(0) win 65535 <mss 1460>"]);
    assert_eq!(t.moved(), "plain_syn+2");
}

#[test]
fn start_syn_that_wants_no_joins_to_its_address_is_taken() {
    let mut t = Setup::new().start();
    t.client(0, "S 0:0(0) win 65535 <mss 1460,capable flags 21>")
        .gives(&["server S 0:0(0) win 65535 <mss 1432>"]);
    assert_eq!(t.moved(), "mp_capable_syn_rx+1 connections_opened+1");
}

#[test]
fn start_syn_with_a_capable_of_wrong_length_passes_as_plain_tcp() {
    let mut t = Setup::new().start();
    t.client(0, "S 0:0(0) win 65535 <mss 1460,raw 1e05010100,ws 8>")
        .gives(&["server S 0:0(0) win 65535 <mss 1460,ws 8>"]);
    assert_eq!(t.moved(), "plain_syn+1");
}

#[test]
fn start_syn_with_data_passes_as_plain_tcp() {
    let mut t = Setup::new().start();
    t.client(0, "S 0:100(100) win 65535 <mss 1460,capable>")
        .gives(&["server S 0:100(100) win 65535 <mss 1460>"]);
    assert_eq!(t.moved(), "plain_syn+1");
}

#[test]
fn start_syn_with_little_mss_passes_as_plain_tcp() {
    let mut t = Setup::new().start();
    t.client(0, "S 0:0(0) win 65535 <mss 115,capable>")
        .gives(&["server S 0:0(0) win 65535 <mss 115>"]);
    assert_eq!(t.moved(), "plain_syn+1");
    t.client(0, "S 0:0(0) win 65535 <mss 116,capable>")
        .gives(&["server S 0:0(0) win 65535 <mss 88>"]);
    assert_eq!(t.moved(), "mp_capable_syn_rx+1 connections_opened+1");
}

#[test]
fn start_syn_without_mss_gets_the_default_less_the_dss() {
    let mut t = Setup::new().start();
    t.client(0, "S 0:0(0) win 65535 <capable>")
        .gives(&["server S 0:0(0) win 65535 <mss 508>"]);
    assert_eq!(t.moved(), "mp_capable_syn_rx+1 connections_opened+1");
    let mut t = Setup::new().v6().start();
    t.client(0, "S 0:0(0) win 65535 <capable>")
        .gives(&["server S 0:0(0) win 65535 <mss 1192>"]);
    assert_eq!(t.moved(), "mp_capable_syn_rx+1 connections_opened+1");
}

#[test]
fn start_syn_with_options_that_flexcp_does_not_know_loses_them() {
    let mut t = Setup::new().start();
    t.client(0, "S 0:0(0) win 65535 <mss 1460,fo,raw fd04aabb,capable>")
        .gives(&["server S 0:0(0) win 65535 <mss 1432>"]);
    assert_eq!(t.moved(), "mp_capable_syn_rx+1 connections_opened+1");
}

#[test]
fn start_syn_with_a_window_scale_above_14_counts_as_14() {
    let mut t = Setup::new().start();
    t.client(0, "S 0:0(0) win 65535 <mss 1460,ws 15,capable>")
        .gives(&["server S 0:0(0) win 65535 <mss 1432,ws 14>"]);
    assert_eq!(t.moved(), "mp_capable_syn_rx+1 connections_opened+1");
}

#[test]
fn start_syn_that_offers_ecn_passes_the_offer_on() {
    let mut t = Setup::new().start();
    t.client(0, "SEW 0:0(0) win 65535 <mss 1460,capable>")
        .gives(&["server SEW 0:0(0) win 65535 <mss 1432>"]);
    t.server("S.E 0:0(0) ack 1 win 65160 <mss 1460>")
        .gives(&["client0 S.E 0:0(0) ack 1 win 65160 <mss 1460,capable>"]);
    assert_eq!(t.moved(), "mp_capable_syn_rx+1 connections_opened+1");
}

#[test]
fn syn_sent_syn_again_goes_to_the_server_again() {
    let mut t = Scenario::syn_sent();
    t.at(1000);
    t.client(0, SYN).gives(&[SYN_UP]);
    assert_eq!(t.moved(), "");
    assert_eq!(t.state(), "handshake");
}

#[test]
fn syn_sent_syn_again_without_capable_makes_it_plain_tcp() {
    let mut t = Scenario::syn_sent();
    t.at(3000);
    t.client(0, "S 0:0(0) win 65535 <mss 1460,sackok,ws 8>")
        .gives(&["server S 0:0(0) win 65535 <mss 1460,sackok,ws 8>"]);
    t.server(SYN_ACK)
        .gives(&["client0 S. 0:0(0) ack 1 win 65160 <mss 1460,sackok,ws 7>"]);
    t.client(0, ". 1:1(0) ack 1 win 512")
        .gives(&["server . 1:1(0) ack 1 win 512"]);
    assert_eq!(t.moved(), "plain_syn+1");
    assert_eq!(t.state(), "plain");
}

#[test]
fn syn_sent_syn_with_another_number_starts_anew_when_the_first_has_had_its_time() {
    // Sooner it may be anybody's, and the true one would be lost.
    let mut t = Scenario::syn_sent();
    t.restart(0);
    t.at(2999);
    t.client(0, SYN).gives(&["drop unexpected"]);
    t.at(3000);
    t.client(0, SYN).gives(&[SYN_UP]);
    t.server(SYN_ACK).gives(&[SYN_ACK_DOWN]);
    assert_eq!(
        t.moved(),
        "mp_capable_syn_rx+1 connections_opened+1 connections_closed+1 unexpected+1"
    );
}

#[test]
fn syn_sent_syn_ack_goes_to_the_client_with_capable() {
    let mut t = Scenario::syn_sent();
    t.server(SYN_ACK).gives(&[SYN_ACK_DOWN]);
    assert_eq!(t.moved(), "");
    assert_eq!(t.state(), "handshake");
}

#[test]
fn syn_sent_syn_ack_with_a_capable_of_the_servers_gets_flexcps_instead() {
    let mut t = Scenario::syn_sent();
    t.server("S. 0:0(0) ack 1 win 65160 <mss 1460,capable,ws 7>")
        .gives(&["client0 S. 0:0(0) ack 1 win 65160 <mss 1460,ws 7,capable>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn syn_sent_syn_ack_with_unknown_options_loses_them() {
    let mut t = Scenario::syn_sent();
    t.server("S. 0:0(0) ack 1 win 65160 <mss 1460,raw fd04aabb>")
        .gives(&["client0 S. 0:0(0) ack 1 win 65160 <mss 1460,capable>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn syn_sent_syn_ack_without_mss_says_the_default() {
    let mut t = Scenario::syn_sent();
    t.server("S. 0:0(0) ack 1 win 65160 <sackok>")
        .gives(&["client0 S. 0:0(0) ack 1 win 65160 <mss 536,sackok,capable>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn syn_sent_syn_ack_of_another_syn_is_dropped() {
    let mut t = Scenario::syn_sent();
    t.server("S. 0:0(0) ack 2 win 65160 <mss 1460>")
        .gives(&["drop ack_of_unsent"]);
    assert_eq!(t.moved(), "ack_of_unsent+1");
    t.server(SYN_ACK).gives(&[SYN_ACK_DOWN]);
    assert_eq!(t.moved(), "");
}

#[test]
fn syn_sent_challenge_of_the_servers_reaches_the_client() {
    // RFC 5961 section 4: the server knows an earlier connection, and the client's RST ends that.
    let mut t = Scenario::syn_sent();
    t.server(". 1:1(0) ack 1")
        .gives(&["client0 . 1:1(0) ack 1 win 64"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn syn_sent_data_of_a_connection_that_is_only_forwarded_passes() {
    // The SYN was anybody's: on these ports there is a connection that FlexCP does not know.
    let mut t = Scenario::syn_sent();
    t.client(0, "P. 501:601(100) ack 901 win 512")
        .gives(&["server P. 501:601(100) ack 901 win 512"]);
    t.server("P. 901:1001(100) ack 601 win 512")
        .gives(&["client0 P. 901:1001(100) ack 601 win 512"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn syn_sent_refusal_reaches_the_client() {
    let mut t = Scenario::syn_sent();
    t.server("R. 0:0(0) ack 1 win 0")
        .gives(&["client0 R. 0:0(0) ack 1 win 0"]);
    assert_eq!(t.moved(), "connections_closed+1");
    assert_eq!(t.state(), "gone");
}

#[test]
fn syn_sent_rst_that_does_not_ack_the_syn_is_dropped() {
    let mut t = Scenario::syn_sent();
    t.server("R. 0:0(0) ack 5 win 0")
        .gives(&["drop blind_reset"]);
    t.server("R 0:0(0) win 0").gives(&["drop blind_reset"]);
    assert_eq!(t.moved(), "blind_reset+2");
    t.server(SYN_ACK).gives(&[SYN_ACK_DOWN]);
    assert_eq!(t.moved(), "");
}

#[test]
fn syn_received_syn_ack_again_goes_with_the_same_key() {
    let mut t = Scenario::syn_received();
    t.server(SYN_ACK).gives(&[SYN_ACK_DOWN]);
    assert_eq!(t.moved(), "");
}

#[test]
fn syn_received_syn_ack_with_another_number_is_dropped() {
    let mut t = Scenario::syn_received();
    t.server("S. 7:7(0) ack 1 win 65160 <mss 1460>")
        .gives(&["drop unexpected"]);
    assert_eq!(t.moved(), "unexpected+1");
}

#[test]
fn syn_received_syn_again_goes_to_the_server_again() {
    let mut t = Scenario::syn_received();
    t.client(0, SYN).gives(&[SYN_UP]);
    t.server(SYN_ACK).gives(&[SYN_ACK_DOWN]);
    t.client(0, ". 1:1(0) ack 1 win 512 <capable>")
        .gives(&["server . 1:1(0) ack 1 win 512"]);
    assert_eq!(t.moved(), "mp_capable_ack_rx+1");
    assert_eq!(t.state(), "translating");
}

#[test]
fn syn_received_third_ack_goes_to_the_server_without_capable() {
    let mut t = Scenario::syn_received();
    t.client(0, ". 1:1(0) ack 1 win 512 <capable>")
        .gives(&["server . 1:1(0) ack 1 win 512"]);
    assert_eq!(t.moved(), "mp_capable_ack_rx+1");
    assert_eq!(t.state(), "translating");
    assert_eq!(t.subflows(), ["0 active"]);
}

#[test]
fn syn_received_data_with_capable_does_for_a_lost_third_ack() {
    let mut t = Scenario::syn_received();
    t.client(0, "P. 1:101(100) ack 1 win 512 <capable data 100>")
        .gives(&["server P. 1:101(100) ack 1 win 512"]);
    t.server(". 1:1(0) ack 101")
        .gives(&["client0 . 1:1(0) ack 101 win 64 <dss ack 101>"]);
    assert_eq!(t.moved(), "mp_capable_ack_rx+1");
}

#[test]
fn syn_received_third_ack_behind_the_first_data_is_an_ack() {
    let mut t = Scenario::syn_received();
    t.client(0, "P. 1:101(100) ack 1 win 512 <capable data 100>")
        .gives(&["server P. 1:101(100) ack 1 win 512"]);
    t.client(0, ". 1:1(0) ack 1 win 512 <capable>")
        .gives(&["server . 101:101(0) ack 1 win 512"]);
    assert_eq!(t.moved(), "mp_capable_ack_rx+1");
}

#[test]
fn established_data_with_capable_again_is_the_first_data() {
    let mut t = Scenario::established();
    for _ in 0..2 {
        t.client(0, "P. 1:101(100) ack 1 <capable data 100>")
            .gives(&["server P. 1:101(100) ack 1 win 512"]);
    }
    assert_eq!(t.moved(), "");
}

#[test]
fn established_data_with_capable_for_more_than_the_packet_maps_the_next_one_too() {
    let mut t = Scenario::established();
    t.client(0, ". 1:101(100) ack 1 <capable data 150>")
        .gives(&["server . 1:101(100) ack 1 win 512"]);
    t.client(0, "P. 101:151(50) ack 1 <dss ack 1>")
        .gives(&["server P. 101:151(50) ack 1 win 512"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn syn_received_data_that_overtook_the_keys_is_dropped() {
    let mut t = Scenario::syn_received();
    t.client(0, "P. 1:101(100) ack 1 win 512 <dss ack 1 map 1:101@1>")
        .gives(&["drop not_authenticated"]);
    assert_eq!(t.moved(), "not_authenticated+1");
    assert_eq!(t.state(), "handshake");
}

#[test]
fn syn_received_third_ack_with_the_wrong_key_is_dropped() {
    let mut t = Scenario::syn_received();
    t.client(0, ". 1:1(0) ack 1 win 512 <capable badkey>")
        .gives(&["drop not_authenticated"]);
    t.client(0, ". 1:1(0) ack 1 win 512 <capable v 0>")
        .gives(&["drop not_authenticated"]);
    assert_eq!(t.moved(), "not_authenticated+2");
    t.client(0, ". 1:1(0) ack 1 win 512 <capable>")
        .gives(&["server . 1:1(0) ack 1 win 512"]);
    assert_eq!(t.moved(), "mp_capable_ack_rx+1");
}

#[test]
fn syn_received_data_of_the_servers_is_dropped() {
    let mut t = Scenario::syn_received();
    t.server("P. 1:101(100) ack 1").gives(&["drop unexpected"]);
    assert_eq!(t.moved(), "unexpected+1");
}

#[test]
fn syn_received_client_rst_ends_it() {
    let mut t = Scenario::syn_received();
    t.client(0, "R 1:1(0) win 0")
        .gives(&["server R 1:1(0) win 0"]);
    assert_eq!(t.moved(), "connections_closed+1");
    assert_eq!(t.state(), "gone");
}

#[test]
fn syn_received_rst_with_a_wrong_number_does_not_end_it() {
    let mut t = Scenario::syn_received();
    let _ = t.client(0, "R 5000:5000(0) win 0");
    assert_eq!(t.state(), "handshake");
    let _ = t.moved();
}

#[test]
fn syn_received_server_rst_reaches_the_client() {
    let mut t = Scenario::syn_received();
    t.server("R. 1:1(0) ack 1 win 0")
        .gives(&["client0 R. 1:1(0) ack 1 win 0"]);
    assert_eq!(t.moved(), "connections_closed+1");
}

#[test]
fn established_first_ack_of_the_servers_says_a_data_ack() {
    let mut t = Scenario::established();
    t.server(". 1:1(0) ack 1 win 500")
        .gives(&["client0 . 1:1(0) ack 1 win 500 <dss ack 1>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn established_syn_ack_again_asks_the_client_for_its_third_ack() {
    let mut t = Scenario::established();
    t.server(SYN_ACK).gives(&[SYN_ACK_DOWN]);
    t.client(0, ". 1:1(0) ack 1 <capable>")
        .gives(&["server . 1:1(0) ack 1 win 512"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn end_to_end_syn_keeps_capable_and_a_server_without_it_gets_translated() {
    let mut t = Setup::new().end_to_end().start();
    t.client(0, SYN)
        .gives(&["server S 0:0(0) win 65535 <mss 1432,sackok,ws 8,capable>"]);
    t.server(SYN_ACK).gives(&[SYN_ACK_DOWN]);
    assert_eq!(t.moved(), "mp_capable_syn_rx+1 connections_opened+1");
}

#[test]
fn end_to_end_server_that_speaks_mptcp_makes_flexcp_step_aside() {
    let mut t = Setup::new().end_to_end().syn_sent();
    t.server("S. 0:0(0) ack 1 win 65160 <mss 1460,sackok,ws 7,capable>")
        .gives(&["client0 S. 0:0(0) ack 1 win 65160 <mss 1460,sackok,ws 7,capable of the server>"]);
    assert_eq!(t.moved(), "end_to_end+1 connections_closed+1");
    t.client(0, ". 1:1(0) ack 1 win 512 <prio b>")
        .gives(&["server . 1:1(0) ack 1 win 512 <prio b>"]);
    t.server(". 1:1(0) ack 1 win 512 <prio>")
        .gives(&["client0 . 1:1(0) ack 1 win 512 <prio>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn end_to_end_syn_that_flexcp_can_not_honour_passes_as_it_is() {
    let mut t = Setup::new().end_to_end().start();
    let outcome = t.client(0, "S 0:0(0) win 65535 <mss 1460,capable flags 81>");
    assert!(outcome.lines()[0].starts_with("server S 0:0(0) win 65535 <mss 1460,capable"));
    assert_eq!(t.moved(), "plain_syn+1");
}

#[test]
fn two_connections_have_two_keys() {
    let mut t = Setup::new().connections(2).established();
    t.client(10, SYN)
        .gives(&["server#1 S 0:0(0) win 65535 <mss 1432,sackok,ws 8>"]);
    t.server_of(1, SYN_ACK)
        .gives(&["client10 S. 0:0(0) ack 1 win 65160 <mss 1460,sackok,ws 7,capable>"]);
    t.client(10, ". 1:1(0) ack 1 win 512 <capable>")
        .gives(&["server#1 . 1:1(0) ack 1 win 512"]);
    assert_ne!(
        t.net.connections[0].flexcp_key,
        t.net.connections[1].flexcp_key
    );
    assert_eq!(
        t.moved(),
        "mp_capable_syn_rx+1 mp_capable_ack_rx+1 connections_opened+1"
    );
    t.server_of(1, "P. 1:101(100) ack 1")
        .gives(&["client10 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>"]);
    assert_eq!(t.moved(), "");
}

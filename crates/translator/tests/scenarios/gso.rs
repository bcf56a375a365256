//! Segmentation and checksums: packets of many segments stay whole, with a segment size that leaves room
//! for the DSS, and a checksum that was wrong is never made right.

use flexcp_wire::ChecksumState;

use crate::support::{Scenario, Setup};

#[test]
fn established_long_packet_goes_down_whole_under_one_mapping() {
    let mut t = Scenario::established();
    t.server("P. 1:14001(14000) ack 1 gso 1400")
        .gives(&["client0 P. 1:14001(14000) ack 1 win 64 <dss ack 1 map 1:14001@1> gso 1400"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn established_segments_down_leave_room_for_the_dss() {
    let mut t = Scenario::established();
    t.server("P. 1:14601(14600) ack 1 gso 1460")
        .gives(&["client0 P. 1:14601(14600) ack 1 win 64 <dss ack 1 map 1:14601@1> gso 1432"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn established_segments_down_leave_room_for_timestamps_too() {
    let mut t = Setup::new().ts().established();
    t.server("P. 1:14481(14480) ack 1 win 64 <ts 5001 1000> gso 1448").gives(&[
        "client0 P. 1:14481(14480) ack 1 win 64 <ts 5001 1000,dss ack 1 map 1:14481@1> gso 1420",
    ]);
    assert_eq!(t.moved(), "");
}

#[test]
fn established_single_packet_beyond_the_clients_mss_is_marked_for_segmentation() {
    let mut t = Scenario::established();
    t.server("P. 1:1461(1460) ack 1")
        .gives(&["client0 P. 1:1461(1460) ack 1 win 64 <dss ack 1 map 1:1461@1> gso 1432"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn established_packet_of_exactly_one_segment_is_not_marked() {
    let mut t = Scenario::established();
    t.server("P. 1:1433(1432) ack 1")
        .gives(&["client0 P. 1:1433(1432) ack 1 win 64 <dss ack 1 map 1:1433@1>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn established_v6_segmentation_is_of_its_family() {
    let mut t = Scenario::established_v6();
    t.server("P. 1:14001(14000) ack 1 gso 1400")
        .gives(&["client0 P. 1:14001(14000) ack 1 win 64 <dss ack 1 map 1:14001@1> gso 1400"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn mixed_segmentation_changes_with_the_family() {
    let mut t = Scenario::mixed();
    t.client(0, "R 1:1(0) win 0").gives(&[]);
    t.server("P. 1:14001(14000) ack 1 gso 1400")
        .gives(&["client1 P. 1:14001(14000) ack 1 win 64 <dss ack 1 map 1:14001@1> gso 1400"]);
    t.client(
        1,
        "P. 1:7001(7000) ack 14001 <dss ack 14001 map 1:7001@1> gso 1400",
    )
    .gives(&["server P. 1:7001(7000) ack 14001 win 512 gso 1400"]);
    assert_eq!(t.moved(), "mp_rst_rx+1 subflow_switch+1");
}

#[test]
fn established_long_packet_goes_up_whole() {
    let mut t = Scenario::established();
    t.client(
        0,
        "P. 1:14001(14000) ack 1 <dss ack 1 map 1:14001@1> gso 1400",
    )
    .gives(&["server P. 1:14001(14000) ack 1 win 512 gso 1400"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn established_segments_up_respect_the_servers_mss() {
    let mut t = Setup::new().start();
    t.client(0, "S 0:0(0) win 65535 <mss 1460,capable>")
        .gives(&["server S 0:0(0) win 65535 <mss 1432>"]);
    t.server("S. 0:0(0) ack 1 win 65160 <mss 1000>")
        .gives(&["client0 S. 0:0(0) ack 1 win 65160 <mss 1000,capable>"]);
    t.client(0, ". 1:1(0) ack 1 win 512 <capable>")
        .gives(&["server . 1:1(0) ack 1 win 512"]);
    t.client(
        0,
        "P. 1:14001(14000) ack 1 <dss ack 1 map 1:14001@1> gso 1400",
    )
    .gives(&["server P. 1:14001(14000) ack 1 win 512 gso 1000"]);
    assert_eq!(
        t.moved(),
        "mp_capable_syn_rx+1 mp_capable_ack_rx+1 connections_opened+1"
    );
}

#[test]
fn joined_segments_respect_the_mss_of_their_subflow() {
    let mut t = Scenario::established();
    let _ = t.client(1, "S 0:0(0) win 65535 <mss 1000,sackok,ws 8,join>");
    let _ = t.client(1, ". 1:1(0) ack 1 win 512 <join>");
    t.client(0, "R 1:1(0) win 0").gives(&[]);
    t.server("P. 1:14001(14000) ack 1 gso 1400")
        .gives(&["client1 P. 1:14001(14000) ack 1 win 64 <dss ack 1 map 1:14001@1> gso 972"]);
    assert_eq!(
        t.moved(),
        "mp_join_syn_rx+1 mp_join_ack_rx+1 mp_rst_rx+1 subflow_switch+1"
    );
}

#[test]
fn established_one_segment_of_a_long_packet_again_has_the_long_mapping() {
    let mut t = Scenario::established();
    t.server("P. 1:14001(14000) ack 1 gso 1400")
        .gives(&["client0 P. 1:14001(14000) ack 1 win 64 <dss ack 1 map 1:14001@1> gso 1400"]);
    t.server(". 2801:4201(1400) ack 1")
        .gives(&["client0 . 2801:4201(1400) ack 1 win 64 <dss ack 1 map 1:14001@1>"]);
    assert_eq!(t.moved(), "retransmitted_down_bytes+1400");
}

#[test]
fn established_long_packet_over_two_mappings_is_split_into_two_long_ones() {
    let mut t = Scenario::established();
    for (a, b) in [(1, 7001), (7001, 14_001)] {
        t.server(&format!("P. {a}:{b}(7000) ack 1 gso 1400"))
            .gives(&[&format!(
                "client0 P. {a}:{b}(7000) ack 1 win 64 <dss ack 1 map {a}:{b}@{a}> gso 1400"
            )]);
    }
    t.server("P. 1:14001(14000) ack 1 gso 1400").gives(&[
        "client0 P. 1:7001(7000) ack 1 win 64 <dss ack 1 map 1:7001@1> gso 1400",
        "client0 P. 7001:14001(7000) ack 1 win 64 <dss ack 1 map 7001:14001@7001> gso 1400",
    ]);
    assert_eq!(t.moved(), "retransmitted_down_bytes+14000");
}

#[test]
fn established_longest_packet_that_ip_allows_still_fits_with_the_dss() {
    // 65,535 bytes with 40 of headers: the DSS makes it longer than an IP packet can be.
    let mut t = Scenario::established();
    let outcome = t.server("P. 1:65496(65495) ack 1 gso 1400");
    let mut at = 1;
    for line in outcome.lines() {
        let start = format!("client0 P. {at}:");
        let rest = line
            .strip_prefix(&start)
            .unwrap_or_else(|| panic!("{line}"));
        at = rest
            .split('(')
            .next()
            .expect("an end")
            .parse()
            .expect("a number");
    }
    assert_eq!(at, 65_496, "{:?}", outcome.lines());
    assert_eq!(t.moved(), "");
}

#[test]
fn established_v6_longest_packet_still_fits_with_the_dss() {
    let mut t = Scenario::established_v6();
    let outcome = t.server("P. 1:65516(65515) ack 1 gso 1400");
    assert!(
        outcome.lines().last().expect("a line").contains(":65516("),
        "{:?}",
        outcome.lines()
    );
    assert_eq!(t.moved(), "");
}

#[test]
fn ipv4_server_longest_packet_to_an_ipv6_client_still_fits() {
    let mut t = Setup::new().v6().backends(1).established();
    let outcome = t.server("P. 1:65496(65495) ack 1 gso 1400");
    assert!(
        outcome.lines().last().expect("a line").contains(":65496("),
        "{:?}",
        outcome.lines()
    );
    assert_eq!(t.moved(), "");
}

#[test]
fn longest_packet_up_from_ipv6_that_ipv4_can_not_hold_is_dropped() {
    // An IPv4 length counts its header, an IPv6 one does not.
    let mut t = Setup::new().v6().backends(1).established();
    t.client(0, ". 1:2(1) ack 1 <dss ack 1 map 1:65531@1>")
        .gives(&["server0 . 1:2(1) ack 1 win 512"]);
    t.client(0, "P. 2:65502(65500) ack 1 gso 1400")
        .gives(&["drop no_headroom"]);
    t.client(0, "P. 2:65497(65495) ack 1 gso 1400")
        .gives(&["server0 P. 2:65497(65495) ack 1 win 512 gso 1400"]);
    assert_eq!(t.moved(), "no_headroom+1");
}

#[test]
fn longest_plain_packet_from_ipv6_that_ipv4_can_not_hold_is_dropped() {
    let mut t = Setup::new().v6().backends(1).syn_received();
    t.client(0, ". 1:1(0) ack 1")
        .gives(&["server0 . 1:1(0) ack 1 win 512"]);
    t.client(0, "P. 1:65501(65500) ack 1 gso 1400")
        .gives(&["drop no_headroom"]);
    assert_eq!(t.moved(), "fallback_handshake+1 no_headroom+1");
}

#[test]
fn established_filler_of_a_long_mapping_is_segmented() {
    let mut t = Scenario::two_subflows();
    t.server("P. 1:14001(14000) ack 1 gso 1400")
        .gives(&["client0 P. 1:14001(14000) ack 1 win 64 <dss ack 1 map 1:14001@1> gso 1400"]);
    t.at(200);
    t.server("P. 1:14001(14000) ack 1 gso 1400")
        .gives(&["client1 P. 1:14001(14000) ack 1 win 64 <dss ack 1 map 1:14001@1> gso 1400"]);
    t.client(1, ". 1:1(0) ack 14001 <dss ack 14001>")
        .gives(&["server . 1:1(0) ack 14001 win 512"]);
    t.at(400);
    t.timeout()
        .gives(&["client0 . 1:14001(14000) ack 1 win 64 <dss ack 1 map 1:14001@1> gso 1432 zeros"]);
    assert_eq!(
        t.moved(),
        "subflow_switch+1 retransmitted_down_bytes+14000 filler_tx+1"
    );
}

#[test]
fn established_complete_checksum_that_is_right_is_left_to_the_carrier() {
    let mut t = Scenario::established();
    let down = t.server("P. 1:101(100) ack 1");
    down.gives(&["client0 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>"]);
    assert_eq!(down.checksums, [ChecksumState::Partial]);
    let up = t.client(0, "P. 1:101(100) ack 101 <dss ack 101 map 1:101@1>");
    up.gives(&["server P. 1:101(100) ack 101 win 512"]);
    assert_eq!(up.checksums, [ChecksumState::Partial]);
    assert_eq!(t.moved(), "");
}

#[test]
fn established_partial_and_verified_checksums_are_left_to_the_carrier() {
    let mut t = Scenario::established();
    for state in ["partial", "verified"] {
        let down = t.server(&format!("P. 1:101(100) ack 1 {state}"));
        down.gives(&["client0 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>"]);
        assert_eq!(down.checksums, [ChecksumState::Partial]);
        let up = t.client(
            0,
            &format!("P. 1:101(100) ack 1 <dss ack 1 map 1:101@1> {state}"),
        );
        up.gives(&["server P. 1:101(100) ack 1 win 512"]);
        assert_eq!(up.checksums, [ChecksumState::Partial]);
    }
    assert_eq!(t.moved(), "retransmitted_down_bytes+100");
}

#[test]
fn established_odd_payload_checksum_is_right() {
    let mut t = Scenario::established();
    t.server("P. 1:102(101) ack 1")
        .gives(&["client0 P. 1:102(101) ack 1 win 64 <dss ack 1 map 1:102@1>"]);
    t.client(0, "P. 1:2(1) ack 1 <dss ack 1 map 1:2@1>")
        .gives(&["server P. 1:2(1) ack 1 win 512"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn mixed_checksum_is_right_between_families() {
    let mut t = Scenario::mixed();
    let up = t.client(1, "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1>");
    up.gives(&["server P. 1:101(100) ack 1 win 512"]);
    assert_eq!(up.checksums, [ChecksumState::Partial]);
    t.client(1, "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1> bad")
        .gives(&["drop checksum"]);
    assert_eq!(t.moved(), "checksum+1");
}

#[test]
fn established_corrupted_packet_that_must_be_split_is_dropped() {
    let mut t = Scenario::established();
    for (a, b) in [(1, 101), (101, 201)] {
        t.server(&format!("P. {a}:{b}(100) ack 1"))
            .gives(&[&format!(
                "client0 P. {a}:{b}(100) ack 1 win 64 <dss ack 1 map {a}:{b}@{a}>"
            )]);
    }
    t.server("P. 1:201(200) ack 1 bad")
        .gives(&["drop checksum"]);
    let _ = t.moved();
}

#[test]
fn established_corrupted_packet_that_must_be_segmented_is_dropped() {
    let mut t = Scenario::established();
    t.server("P. 1:1461(1460) ack 1 bad")
        .gives(&["drop checksum"]);
    assert_eq!(t.moved(), "checksum+1");
}

#[test]
fn two_subflows_corrupted_packet_up_that_must_be_split_is_dropped() {
    let mut t = Scenario::two_subflows();
    t.client(1, ". 1:101(100) ack 1 <dss ack 1 map 1:101@1>")
        .gives(&["server . 1:101(100) ack 1 win 512"]);
    t.client(1, ". 101:201(100) ack 1 <dss ack 1 map 501:601@101>")
        .gives(&["server . 501:601(100) ack 1 win 512"]);
    t.client(1, "P. 51:151(100) ack 1 <dss ack 1> bad")
        .gives(&["drop checksum"]);
    assert_eq!(t.moved(), "checksum+1");
}

#[test]
fn established_ecn_mark_passes_where_it_was_negotiated() {
    let mut t = Setup::new().start();
    let _ = t.client(0, "SEW 0:0(0) win 65535 <mss 1460,capable>");
    let _ = t.server("S.E 0:0(0) ack 1 win 65160 <mss 1460>");
    let _ = t.client(0, ". 1:1(0) ack 1 win 512 <capable>");
    t.server("P. 1:101(100) ack 1 ce")
        .gives(&["client0 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1> ce"]);
    t.client(0, "P.E 1:101(100) ack 101 <dss ack 101 map 1:101@1> ect0")
        .gives(&["server P.E 1:101(100) ack 101 win 512 ect0"]);
    assert_eq!(
        t.moved(),
        "mp_capable_syn_rx+1 mp_capable_ack_rx+1 connections_opened+1"
    );
}

#[test]
fn established_ecn_mark_is_cleared_where_it_was_not_negotiated() {
    let mut t = Scenario::established();
    t.server("P. 1:101(100) ack 1 ect0")
        .gives(&["client0 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn established_dscp_passes() {
    let mut t = Scenario::established();
    t.server("P. 1:101(100) ack 1 tc 184")
        .gives(&["client0 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1> tc 184"]);
    assert_eq!(t.moved(), "");
}

#[test]
fn established_congestion_mark_of_a_long_packet_keeps_its_flag() {
    let mut t = Setup::new().start();
    let _ = t.client(0, "SEW 0:0(0) win 65535 <mss 1460,capable>");
    let _ = t.server("S.E 0:0(0) ack 1 win 65160 <mss 1460>");
    let _ = t.client(0, ". 1:1(0) ack 1 win 512 <capable>");
    t.server("P.W 1:14001(14000) ack 1 gso 1400 ect0").gives(&[
        "client0 P.W 1:14001(14000) ack 1 win 64 <dss ack 1 map 1:14001@1> gso 1400 ecn ect0",
    ]);
    assert_eq!(
        t.moved(),
        "mp_capable_syn_rx+1 mp_capable_ack_rx+1 connections_opened+1"
    );
}

#[test]
fn established_ecn_that_the_server_did_not_confirm_is_not_used() {
    let mut t = Setup::new().start();
    let _ = t.client(0, "SEW 0:0(0) win 65535 <mss 1460,capable>");
    let _ = t.server("S. 0:0(0) ack 1 win 65160 <mss 1460>");
    let _ = t.client(0, ". 1:1(0) ack 1 win 512 <capable>");
    t.server("P. 1:101(100) ack 1 ect0")
        .gives(&["client0 P. 1:101(100) ack 1 win 64 <dss ack 1 map 1:101@1>"]);
    assert_eq!(
        t.moved(),
        "mp_capable_syn_rx+1 mp_capable_ack_rx+1 connections_opened+1"
    );
}

#[test]
fn two_subflows_ecn_of_a_joined_one_was_not_negotiated() {
    let mut t = Setup::new().start();
    let _ = t.client(0, "SEW 0:0(0) win 65535 <mss 1460,sackok,capable>");
    let _ = t.server("S.E 0:0(0) ack 1 win 65160 <mss 1460,sackok>");
    let _ = t.client(0, ". 1:1(0) ack 1 win 512 <capable>");
    let _ = t.client(1, "SEW 0:0(0) win 65535 <mss 1460,join>");
    let _ = t.client(1, ". 1:1(0) ack 1 win 512 <join>");
    t.client(1, "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1> ect0")
        .gives(&["server P. 1:101(100) ack 1 win 512"]);
    let _ = t.moved();
    // RFC 6040 section 4.2: what can't be marked is dropped, so that the server slows down all the same.
    t.client(0, ". 1:1(0) ack 1 <prio b,dss ack 1>").gives(&[]);
    t.server("P. 1:101(100) ack 101 ce").gives(&[
        "drop congestion",
        "client1 . 1:1(0) ack 101 win 64 <dss ack 101>",
    ]);
    t.server("P. 1:101(100) ack 101 ect0")
        .gives(&["client1 P. 1:101(100) ack 101 win 64 <dss ack 101 map 1:101@1>"]);
    let _ = t.moved();
}

#[test]
fn two_subflows_packets_of_flexcps_own_are_not_ecn_capable() {
    let mut t = Scenario::two_subflows();
    t.client(1, ". 0:0(0) ack 1 <dss ack 1> ect0")
        .gives(&["client1 . 1:1(0) ack 1 win 509 <dss ack 1>"]);
    assert_eq!(t.moved(), "");
}

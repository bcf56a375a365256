//! ICMP errors about what FlexCP sent: believed when they quote what is in flight (RFC 5927), passed on
//! in the numbers of the end that they are for, path MTU with room for a DSS (RFC 1191, RFC 8201).

use crate::support::{Leg, Scenario, Setup};

const SERVER: Leg = Leg::Server {
    connection: 0,
    backend: 0,
};

/// 1400 bytes are on their way down.
fn outstanding(mut t: Scenario) -> Scenario {
    t.server("P. 1:1401(1400) ack 1")
        .gives(&["client0 P. 1:1401(1400) ack 1 win 64 <dss ack 1 map 1:1401@1>"]);
    t
}

#[test]
fn smaller_mtu_down_reaches_the_server_with_room_for_a_dss() {
    for setup in [Setup::new(), Setup::new().backends(1)] {
        let mut t = outstanding(setup.established());
        let server = t.net.name(SERVER);
        t.icmp(Leg::Client(0), "too-big 1400 about 1")
            .gives(&[&format!("{server} icmp too-big 1372 about 1")]);
        assert_eq!(t.moved(), "icmp_translated+1 path_mtu_lowered+1");
    }
}

#[test]
fn smaller_mtu_down_counts_at_once() {
    let mut t = outstanding(Scenario::established());
    let _ = t.icmp(Leg::Client(0), "too-big 1400 about 1");
    // 1400 - 40 - 28: the server does not know yet.
    t.server("P. 1:1401(1400) ack 1")
        .gives(&["client0 P. 1:1401(1400) ack 1 win 64 <dss ack 1 map 1:1401@1> gso 1332"]);
    let _ = t.moved();
}

#[test]
fn smaller_mtu_down_over_ipv6() {
    let mut t = outstanding(Setup::new().v6().established());
    t.icmp(Leg::Client(0), "too-big 1400 about 1")
        .gives(&["server icmp too-big 1372 about 1"]);
    t.server("P. 1:1401(1400) ack 1")
        .gives(&["client0 P. 1:1401(1400) ack 1 win 64 <dss ack 1 map 1:1401@1> gso 1312"]);
    let _ = t.moved();
}

#[test]
fn smaller_mtu_of_a_joined_subflow_is_told_in_the_servers_numbers() {
    let mut t = Scenario::two_subflows();
    t.client(0, ". 1:1(0) ack 1 <prio b,dss ack 1>").gives(&[]);
    let _ = t.server("P. 1:101(100) ack 1");
    let _ = t.server("P. 101:1501(1400) ack 1");
    let _ = t.client(1, ". 1:1(0) ack 101 <dss ack 101>");
    let _ = t.moved();
    t.icmp(Leg::Client(1), "too-big 1400 about 101")
        .gives(&["server icmp too-big 1372 about 101"]);
    assert_eq!(t.moved(), "icmp_translated+1 path_mtu_lowered+1");
}

#[test]
fn smaller_mtu_between_families_counts_without_being_told() {
    let mut t = outstanding(Setup::new().backends(1).backends_v6().established());
    t.icmp(Leg::Client(0), "too-big 1400 about 1").gives(&[]);
    assert_eq!(t.moved(), "path_mtu_lowered+1");
    let outcome = t.server("P. 1:1401(1400) ack 1");
    assert!(outcome.lines()[0].ends_with(" gso 1332"), "{outcome:?}");
    let _ = t.moved();
}

#[test]
fn smaller_mtu_that_quotes_nothing_in_flight_is_not_believed() {
    let mut t = outstanding(Scenario::established());
    t.client(0, ". 1:1(0) ack 701 <dss ack 701>")
        .gives(&["server . 1:1(0) ack 701 win 512"]);
    for about in [-100_000, 700, 1402, 100_000] {
        t.icmp(Leg::Client(0), &format!("too-big 600 about {about}"))
            .gives(&["drop out_of_window"]);
    }
    assert_eq!(t.moved(), "out_of_window+4");
    t.server("P. 1401:2801(1400) ack 1")
        .gives(&["client0 P. 1401:2801(1400) ack 1 win 64 <dss ack 1 map 1401:2801@1401>"]);
}

#[test]
fn tiny_mtu_is_not_taken_at_its_word() {
    for (setup, headers, least) in [(Setup::new(), 40, 552), (Setup::new().v6(), 60, 1280)] {
        let mut t = outstanding(setup.established());
        let _ = t.icmp(Leg::Client(0), "too-big 68 about 1");
        let outcome = t.server("P. 1:1401(1400) ack 1");
        let gso = format!(" gso {}", least - headers - 28);
        assert!(outcome.lines()[0].ends_with(&gso), "{outcome:?}");
        let _ = t.moved();
    }
}

#[test]
fn larger_mtu_changes_nothing() {
    let mut t = outstanding(Scenario::established());
    let _ = t.icmp(Leg::Client(0), "too-big 9000 about 1");
    t.server("P. 1:1401(1400) ack 1")
        .gives(&["client0 P. 1:1401(1400) ack 1 win 64 <dss ack 1 map 1:1401@1>"]);
    let _ = t.moved();
}

#[test]
fn unreachable_client_is_told_to_the_server_which_judges_for_itself() {
    let mut t = outstanding(Setup::new().backends(1).established());
    t.icmp(Leg::Client(0), "unreachable about 1")
        .gives(&["server0 icmp unreachable about 1"]);
    t.icmp(Leg::Client(0), "time-exceeded about 1")
        .gives(&["server0 icmp time-exceeded about 1"]);
    assert_eq!(t.moved(), "icmp_translated+2");
    assert_eq!(t.state(), "translating");
}

#[test]
fn smaller_mtu_towards_the_server_counts_at_once() {
    let mut t = Setup::new().backends(1).established();
    let data = "P. 1:1401(1400) ack 1 <dss ack 1 map 1:1401@1>";
    let _ = t.client(0, data);
    t.icmp(SERVER, "too-big 1400 about 1").gives(&[]);
    t.client(0, data)
        .gives(&["server0 P. 1:1401(1400) ack 1 win 512 gso 1360"]);
    t.icmp(SERVER, "too-big 600 about 1402")
        .gives(&["drop out_of_window"]);
    t.icmp(SERVER, "unreachable about 1").gives(&[]);
    assert_eq!(t.moved(), "path_mtu_lowered+1 out_of_window+1");
}

#[test]
fn reverse_back_end_that_can_not_be_reached_is_skipped() {
    let mut t = Setup::new().backends(2).syn_sent();
    t.icmp(SERVER, "unreachable about 1")
        .gives(&["drop out_of_window"]);
    t.icmp(SERVER, "unreachable about 0")
        .gives(&["server1 S 0:0(0) win 65535 <mss 1432,sackok,ws 8>"]);
    assert_eq!(
        t.moved(),
        "backend_skipped+1 backend_marked+1 out_of_window+1"
    );
}

#[test]
fn reverse_client_hears_at_once_that_no_back_end_can_be_reached() {
    for syn in [
        "S 0:0(0) win 65535 <mss 1460>",
        "S 0:0(0) win 65535 <mss 1460,capable>",
    ] {
        let mut t = Setup::new().backends(1).start();
        let _ = t.client(0, syn);
        let _ = t.moved();
        let outcome = t.icmp(SERVER, "unreachable about 0");
        let [line] = outcome.lines() else {
            panic!("{outcome:?}");
        };
        assert!(line.starts_with("client0 R. "), "{line}");
        assert!(line.ends_with("(0) ack 1 win 0"), "{line}");
        assert_eq!(t.state(), "gone");
        assert_eq!(t.moved(), "connections_closed+1 backend_marked+1");
    }
}

#[test]
fn plain_errors_pass_both_ways_with_the_ends_addresses() {
    let mut t = Setup::new().backends(1).start();
    let _ = t.client(0, "S 0:0(0) win 65535 <mss 1460>");
    let _ = t.server("S. 0:0(0) ack 1 <mss 1460>");
    let _ = t.client(0, "P. 1:1401(1400) ack 1");
    let _ = t.server("P. 1:1401(1400) ack 1");
    let _ = t.moved();
    t.icmp(SERVER, "too-big 1400 about 1")
        .gives(&["client0 icmp too-big 1400 about 1"]);
    t.icmp(Leg::Client(0), "too-big 1400 about 1")
        .gives(&["server0 icmp too-big 1400 about 1"]);
    t.icmp(Leg::Client(0), "too-big 1400 about 1402")
        .gives(&["drop out_of_window"]);
    assert_eq!(t.moved(), "icmp_translated+2 out_of_window+1");
}

#[test]
fn error_with_a_wrong_checksum_is_dropped() {
    let mut t = outstanding(Scenario::established());
    let mut bytes = t.icmp_bytes(Leg::Client(0), "too-big 1400 about 1");
    bytes[27] ^= 1;
    t.raw("icmp".into(), &bytes, flexcp_wire::Offload::default())
        .gives(&["drop checksum"]);
    assert_eq!(t.moved(), "checksum+1");
}

#[test]
fn icmp_of_others_passes() {
    let mut t = Scenario::established();
    let mut bytes = t.icmp_bytes(Leg::Client(0), "unreachable about 1");
    // Cut anywhere, it is not understood, and not FlexCP's to judge.
    for len in 20..bytes.len() {
        let mut cut = bytes[..len].to_vec();
        let total = u16::try_from(len).expect("short").to_be_bytes();
        cut[2..4].copy_from_slice(&total);
        t.raw(
            format!("{len} bytes"),
            &cut,
            flexcp_wire::Offload::default(),
        )
        .gives(&["the same"]);
    }
    // A ping, and a fragment of one.
    bytes[20] = 8;
    t.raw("ping".into(), &bytes, flexcp_wire::Offload::default())
        .gives(&["the same"]);
    bytes[7] = 100;
    t.raw("fragment".into(), &bytes, flexcp_wire::Offload::default())
        .gives(&["the same"]);
    assert_eq!(t.moved(), "");
}

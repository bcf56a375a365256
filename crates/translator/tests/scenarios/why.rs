//! What FlexCP says of its decisions: the cause of each, as `show stats` counts it.

use crate::support::{Scenario, Setup, millis};

#[test]
fn plain_syn_has_its_cause() {
    for (options, cause) in [
        ("mss 1460", "no_option"),
        ("mss 1460,capable v 0 key-only", "version"),
        ("mss 1460,capable v 2", "version"),
        ("mss 1460,capable key-only", "keys"),
        ("mss 1460,capable flags 81", "checksum"),
        ("mss 1460,capable flags 41", "algorithm"),
        ("mss 1460,capable flags 00", "algorithm"),
        ("mss 115,capable", "small_mss"),
    ] {
        let mut t = Setup::new().start();
        let _ = t.client(0, &format!("S 0:0(0) win 65535 <{options}>"));
        assert_eq!(t.why(), format!("plain_syn.{cause}+1"), "{options}");
        let _ = t.moved();
    }
    let mut t = Setup::new().start();
    let _ = t.client(0, "S 0:100(100) win 65535 <mss 1460,capable>");
    assert_eq!(t.why(), "plain_syn.data+1");
    let _ = t.moved();
    let mut t = Setup::new().syn_sent();
    t.at(3000);
    let _ = t.client(0, "S 0:0(0) win 65535 <mss 1460,sackok,ws 8>");
    assert_eq!(t.why(), "plain_syn.given_up+1");
    let _ = t.moved();
    let full = Setup::new()
        .connections(2)
        .limits(|limits| limits.half_open = 1);
    let mut t = full.syn_sent();
    let _ = t.client(10, "S 0:0(0) win 65535 <mss 1460,capable>");
    assert_eq!(t.why(), "plain_syn.overload+1");
    let _ = t.moved();
}

/// What a client says on a subflow, and why that is reset.
#[test]
fn reset_subflow_has_its_cause() {
    for (client, line, cause) in [
        (1, "P. 1:101(100) ack 1", "rst.no_mapping+1"),
        (
            1,
            ". 1:1(0) ack 1 <dss ack 1,fail 1>",
            "rst.late_fallback+1",
        ),
        (
            1,
            "P. 1:101(100) ack 1 <dss ack 1 infinite 1@1>",
            "rst.late_fallback+1",
        ),
        (
            0,
            ". 1:1(0) ack 1 <dss ack 1,rm-addr 1>",
            "rst.address_removed+1",
        ),
    ] {
        let mut t = Scenario::two_subflows();
        let _ = t.client(client, line);
        assert_eq!(t.why(), cause, "{line}");
        let _ = t.moved();
    }
    let mut t = Scenario::two_subflows();
    for _ in 0..3 {
        let _ = t.client(1, ". 1:1(0) ack 1");
    }
    assert_eq!(t.why(), "rst.stripped+1");
    let _ = t.moved();
}

#[test]
fn reset_connection_has_its_cause() {
    let mut t = Scenario::two_subflows();
    let _ = t.server("R. 1:1(0) ack 1 win 0");
    assert_eq!(t.why(), "rst.server_reset+2");
    let _ = t.client(0, ". 1:1(0) ack 1 <dss ack 1>");
    assert_eq!(t.why(), "rst.server_reset+2 rst.after_reset+1");
    let _ = t.moved();
    for (limit, cause) in [(1000, "rst.idle+3"), (8000, "")] {
        let short = Setup::new().timeouts(|timeouts| timeouts.idle = millis(limit));
        let mut t = short.two_subflows();
        t.at(4000);
        let _ = t.timeout();
        assert_eq!(t.why(), cause);
        let _ = t.moved();
    }
    let mut t = Scenario::established();
    let _ = t.client(0, "R 1:1(0) win 0");
    t.at(60_000);
    let _ = t.timeout();
    assert_eq!(
        t.why(),
        "rst.abandoned+1",
        "only the server is there to hear of it"
    );
    let _ = t.moved();
}

#[test]
fn refused_join_has_its_cause() {
    let join = "S 0:0(0) win 65535 <mss 1460,sackok,ws 8,join>";
    type Make = fn() -> Scenario;
    let cases: [(Make, &str, &str); 5] = [
        (
            || {
                Setup::new()
                    .limits(|limits| limits.subflows = 1)
                    .established()
            },
            join,
            "subflows",
        ),
        (
            || {
                Setup::new()
                    .limits(|limits| limits.half_open_joins = 0)
                    .established()
            },
            join,
            "half_open_joins",
        ),
        (
            Scenario::established,
            "S 0:0(0) win 65535 <mss 100,join>",
            "small_mss",
        ),
        (Scenario::syn_received, join, "state"),
        (
            || Setup::new().no_sack().established(),
            "S 0:0(0) win 65535 <mss 1460,join>",
            "no_sack",
        ),
    ];
    for (make, line, cause) in cases {
        let mut t = make();
        let _ = t.client(1, line);
        assert_eq!(
            t.why(),
            format!("rst.join_refused+1 join_refused.{cause}+1")
        );
        let _ = t.moved();
    }
}

#[test]
fn switch_and_fallback_have_their_causes() {
    let data = "P. 1:101(100) ack 1";
    for (line, cause) in [
        ("R 1:1(0) win 0", "closed"),
        ("F. 1:1(0) ack 1 <dss ack 1>", "closed"),
        // Data before the FIN is missing, so the subflow is not over.
        ("F. 101:101(0) ack 1 <dss ack 1>", "leaving"),
        (". 1:1(0) ack 1 <dss ack 1,prio b>", "backup"),
    ] {
        let mut t = Scenario::two_subflows();
        let _ = t.client(0, line);
        let _ = t.server(data);
        assert_eq!(t.why(), format!("subflow_switch.{cause}+1"));
        let _ = t.moved();
    }
    let mut t = Scenario::two_subflows();
    let _ = t.server(data);
    t.at(200);
    let _ = t.server(data);
    assert_eq!(t.why(), "subflow_switch.failed+1");
    let _ = t.moved();
    for (line, cause) in [
        ("P. 1:101(100) ack 1", "no_mapping"),
        ("P. 1:101(100) ack 1 <dss ack 1 infinite 1@1>", "infinite"),
        (". 1:1(0) ack 1 <dss ack 1,fail 1>", "fail"),
        ("F. 1:1(0) ack 1", "no_option"),
    ] {
        let mut t = Scenario::established();
        let _ = t.client(0, line);
        assert_eq!(t.why(), format!("fallback.{cause}+1"));
        let _ = t.moved();
    }
}

#[test]
fn evicted_handshake_has_its_cause() {
    let syn = "S 0:0(0) win 65535 <mss 1460,sackok,ws 8,capable>";
    let reverse = || Setup::new().backends(1).connections(2);
    // A SYN that finds the table full, or all places of handshakes taken.
    for (setup, at, cause) in [
        (
            reverse().limits(|limits| limits.connections = 1),
            0,
            "rst.evicted+1 half_open_evicted.connections+1",
        ),
        (
            reverse().limits(|limits| limits.half_open = 1),
            0,
            "plain_syn.overload+1 rst.evicted+1 half_open_evicted.plain+1",
        ),
        (
            reverse().limits(|limits| limits.half_open = 1),
            3000,
            "rst.evicted+1 half_open_evicted.stale+1",
        ),
    ] {
        let mut t = setup.syn_sent();
        t.at(at);
        let _ = t.client(10, syn);
        assert_eq!(t.why(), cause);
        let _ = t.moved();
    }
}

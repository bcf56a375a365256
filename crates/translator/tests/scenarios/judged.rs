//! Other rules, and connections that are judged by them at once.

use flexcp_translator::{AccessId, ActiveStandby};

use crate::support::{Outcome, Scenario, Setup};

/// What has moved since the start: with the join, and by the other rule.
const ONCE: &str = "subflow_switch.preferred+1";
const TWICE: &str = "subflow_switch.preferred+2";

/// The first access is preferred, or the second; no time is short enough for a move.
fn preferring(first: u8) -> Setup {
    let accesses = vec![AccessId(first), AccessId(1 - first)];
    let mode = ActiveStandby { accesses };
    Setup::new()
        .ts()
        .accesses(2)
        .steered(mode, [60_000, 60_000])
}

/// A second path has joined, and the rule, which prefers it, has moved the connection there.
fn moved() -> Scenario {
    let mut t = preferring(1).established();
    let _ = t.client(
        1,
        "S 0:0(0) win 65535 <mss 1460,sackok,ts 900000 0,ws 8,join>",
    );
    let _ = t.client(1, ". 1:1(0) ack 1 win 512 <ts 900000 5000,join>");
    assert_eq!(t.why(), ONCE);
    let _ = t.moved();
    t.at(1000);
    t
}

/// Two paths, of which a rule prefers the second and has moved the connection there; then the rule prefers the first. It is
/// 1000 ms.
fn moved_and_told_otherwise() -> Scenario {
    let mut t = moved();
    t.configure_as(&preferring(0), 1);
    t
}

fn path_of_data(gave: &Outcome) -> &str {
    let data = gave.lines().iter().find(|line| line.contains("P. "));
    data.and_then(|line| line.split(' ').next())
        .unwrap_or_default()
}

#[test]
fn without_it_a_connection_stays_for_its_time() {
    let mut t = moved_and_told_otherwise();
    let gave = t.server("P. 1:101(100) ack 1 win 64 <ts 5010 1000>");
    assert_eq!(path_of_data(&gave), "client1", "{gave:?}");
    assert_eq!(t.why(), ONCE);
    let _ = t.moved();
}

#[test]
fn connection_moves_at_once_and_its_client_is_told() {
    let mut t = moved_and_told_otherwise();
    let gave = t.judge_anew();
    assert_eq!(t.why(), TWICE);
    let rule = t.view().and_then(|view| view.rule);
    assert_eq!(rule.as_deref(), Some("all"));
    let prios = gave.lines().iter().filter(|line| line.contains("prio"));
    let prios: Vec<_> = prios
        .map(|line| (line.starts_with("client1"), line.contains("prio b")))
        .collect();
    assert_eq!(prios, [(false, false), (true, true)], "{gave:?}");
    let gave = t.server("P. 1:101(100) ack 1 win 64 <ts 5010 1000>");
    assert_eq!(path_of_data(&gave), "client0", "{gave:?}");
    // Its times hold from then on.
    t.at(1500);
    t.configure_as(&preferring(1), 2);
    // Without a timestamp no packet is the fast path's.
    let gave = t.server("P. 101:201(100) ack 1 win 64");
    assert_eq!(path_of_data(&gave), "client0", "{gave:?}");
    assert_eq!(t.why(), TWICE);
    let _ = t.moved();
}

/// The connection is carried by a fast path, on its second subflow.
fn installed() -> Scenario {
    let mut t = moved();
    let _ = t.server(". 1:101(100) ack 1 win 64 <ts 5000 1000>");
    for ts in 900_010..900_013 {
        let ack = format!(
            ". 1:1(0) ack 101 win {} <ts {ts} 5000,dss ack 101>",
            ts % 1000 + 600
        );
        let _ = t.client(1, &ack);
    }
    let active: Vec<_> = t.installed().iter().map(|entry| entry.active).collect();
    assert_eq!(active, [1]);
    t
}

#[test]
fn connection_of_the_fast_path_moves_at_once() {
    let mut t = installed();
    t.configure_as(&preferring(0), 1);
    let _ = t.judge_anew();
    assert_eq!(t.why(), TWICE);
    let gave = t.server("P. 101:201(100) ack 1 win 64 <ts 5010 1000>");
    assert_eq!(path_of_data(&gave), "client0", "{gave:?}");
    let _ = t.moved();
}

#[test]
fn connection_of_the_fast_path_that_is_right_stays_there() {
    let mut t = installed();
    t.configure_as(&preferring(1), 1);
    let _ = t.judge_anew();
    let active: Vec<_> = t.installed().iter().map(|entry| entry.active).collect();
    assert_eq!((active, t.why()), (vec![1], ONCE.to_owned()));
    let _ = t.moved();
}

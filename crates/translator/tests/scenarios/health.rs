//! Health of back ends: who is marked, passed by, probed, and back again.

use crate::support::{Outcome, Scenario, Setup};

const SYN: &str = "S 0:0(0) win 65535 <mss 1460,sackok,ws 8,capable>";
const PLAIN: &str = "S 0:0(0) win 65535 <mss 1460>";
const SYN_ACK: &str = "S. 0:0(0) ack 1 win 65160 <mss 1460,sackok,ws 7>";
const SYN_ACK_DOWN: &str = "client0 S. 0:0(0) ack 1 win 65160 <mss 1460,sackok,ws 7,capable>";
const REFUSED: &str = "R. 0:0(0) ack 1 win 0";

fn syn_to(server: &str) -> String {
    format!("{server} S 0:0(0) win 65535 <mss 1432,sackok,ws 8>")
}

/// The last line is a probe of this back end; the number of its SYN.
fn probe_of(backend: usize, outcome: &Outcome) -> i64 {
    let line = outcome.lines().last().expect("a probe");
    let rest = line.strip_prefix(&format!("server{backend} S "));
    let rest = rest.unwrap_or_else(|| panic!("{outcome:?}"));
    assert!(rest.ends_with("(0) win 65535 <mss 1460>"), "{outcome:?}");
    let number = rest.trim_start_matches('-').split(':').next();
    let number: i64 = number.expect("a number").parse().expect("a number");
    if rest.starts_with('-') {
        -number
    } else {
        number
    }
}

/// Marks that have changed since: `0 silent`, `1 -`.
fn changes(t: &mut Scenario) -> Vec<String> {
    let states = std::iter::from_fn(|| t.poll_backend());
    let reason =
        |mark: Option<flexcp_translator::Mark>| mark.map_or("-", |mark| mark.reason.name());
    states
        .map(|state| format!("{} {}", state.backend, reason(state.mark)))
        .collect()
}

#[test]
fn refusing_back_end_is_passed_by() {
    let mut t = Setup::new().backends(3).connections(6).start();
    t.client(0, SYN).gives(&[&syn_to("server0")]);
    t.server(REFUSED).gives(&[&syn_to("server1")]);
    assert_eq!(changes(&mut t), ["0 refused"]);
    for (client, server) in [
        (10, "server2#1"),
        (20, "server1#2"),
        (30, "server2#3"),
        (40, "server1#4"),
    ] {
        t.client(client, SYN).gives(&[&syn_to(server)]);
    }
    assert!(changes(&mut t).is_empty());
    assert_eq!(
        t.moved(),
        "mp_capable_syn_rx+5 connections_opened+5 backend_skipped+1 backend_marked+1"
    );
}

#[test]
fn silent_back_end_is_left_without_the_client() {
    let mut t = Setup::new().backends(2).connections(2).start();
    t.client(0, SYN).gives(&[&syn_to("server0")]);
    assert_eq!(t.next_timeout(), Some(500));
    t.at(499);
    t.timeout().gives(&[]);
    t.at(500);
    let outcome = t.timeout();
    assert_eq!(outcome.lines()[0], syn_to("server1"));
    let _ = probe_of(0, &outcome);
    assert_eq!(changes(&mut t), ["0 silent"]);
    t.backend(1, SYN_ACK).gives(&[SYN_ACK_DOWN]);
    t.client(10, SYN).gives(&[&syn_to("server1#1")]);
    assert_eq!(
        t.moved(),
        "mp_capable_syn_rx+2 connections_opened+2 backend_skipped+1 backend_marked+1 backend_probes_tx+1"
    );
}

#[test]
fn plain_connection_leaves_a_silent_back_end_without_the_client() {
    let mut t = Setup::new().backends(2).start();
    t.client(0, PLAIN)
        .gives(&["server0 S 0:0(0) win 65535 <mss 1460>"]);
    t.at(500);
    let outcome = t.timeout();
    assert_eq!(outcome.lines()[0], "server1 S 0:0(0) win 65535 <mss 1460>");
    t.backend(1, "S. 0:0(0) ack 1 win 65160 <mss 1460>")
        .gives(&["client0 S. 0:0(0) ack 1 win 65160 <mss 1460>"]);
    t.at(1600);
    let _ = probe_of(0, &t.timeout());
    assert_eq!(
        t.moved(),
        "plain_syn+1 connections_opened+1 backend_skipped+1 backend_marked+1 backend_probes_tx+2"
    );
}

#[test]
fn plain_back_end_that_answers_is_not_left() {
    let mut t = Setup::new().backends(2).start();
    let _ = t.client(0, PLAIN);
    t.at(100);
    let _ = t.server("S. 0:0(0) ack 1 win 65160 <mss 1460>");
    t.at(1000);
    t.timeout().gives(&[]);
    assert!(changes(&mut t).is_empty());
    assert_eq!(t.moved(), "plain_syn+1 connections_opened+1");
}

#[test]
fn back_end_that_is_known_gets_the_time_that_its_answers_take() {
    for (answers, patience) in [(10, 250), (200, 600)] {
        let mut t = Setup::new().backends(2).connections(3).start();
        let _ = t.client(0, SYN);
        t.at(answers);
        t.server(SYN_ACK).gives(&[SYN_ACK_DOWN]);
        let _ = t.client(10, SYN);
        t.client(20, SYN).gives(&[&syn_to("server0#2")]);
        let _ = t.backend_of(1, 1, SYN_ACK);
        t.at(answers + patience - 1);
        t.timeout().gives(&[]);
        t.at(answers + patience);
        assert_eq!(t.timeout().lines()[0], syn_to("server1#2"));
        assert_eq!(changes(&mut t), ["0 silent"]);
        let _ = t.moved();
    }
}

#[test]
fn answer_to_a_repeated_syn_says_nothing_of_the_time_it_takes() {
    let mut t = Setup::new().backends(2).connections(3).start();
    let _ = t.client(0, SYN);
    t.at(400);
    t.client(0, SYN).gives(&[&syn_to("server0")]);
    t.at(450);
    t.server(SYN_ACK).gives(&[SYN_ACK_DOWN]);
    let _ = t.client(10, SYN);
    let _ = t.backend_of(1, 1, SYN_ACK);
    t.client(20, SYN).gives(&[&syn_to("server0#2")]);
    t.at(950);
    assert_eq!(t.timeout().lines()[0], syn_to("server1#2"));
    let _ = t.moved();
}

#[test]
fn lost_syn_marks_nobody_who_answers_another_one() {
    let mut t = Setup::new().backends(2).connections(3).start();
    let _ = t.client(0, SYN);
    let _ = t.client(10, SYN);
    let _ = t.backend_of(1, 1, SYN_ACK);
    t.at(5);
    t.client(20, SYN).gives(&[&syn_to("server0#2")]);
    let _ = t.server_of(2, SYN_ACK);
    t.at(500);
    t.timeout().gives(&[&syn_to("server1")]);
    t.backend(1, SYN_ACK).gives(&[SYN_ACK_DOWN]);
    assert!(changes(&mut t).is_empty());
    assert_eq!(
        t.moved(),
        "mp_capable_syn_rx+3 connections_opened+3 backend_skipped+1"
    );
}

#[test]
fn client_that_repeats_its_syn_too_soon_stays_where_it_is() {
    let mut t = Setup::new().backends(2).start();
    let _ = t.client(0, SYN);
    t.at(499);
    t.client(0, SYN).gives(&[&syn_to("server0")]);
    assert_eq!(t.moved(), "mp_capable_syn_rx+1 connections_opened+1");
    t.at(500);
    t.client(0, SYN).gives(&[&syn_to("server1")]);
    assert_eq!(t.moved(), "backend_skipped+1 backend_marked+1");
}

#[test]
fn all_marked_are_taken_in_turn() {
    let mut t = Setup::new().backends(2).connections(4).start();
    let _ = t.client(0, SYN);
    let _ = t.server(REFUSED);
    t.backend(1, REFUSED)
        .gives(&["client0 R. 0:0(0) ack 1 win 0"]);
    for (client, server) in [(10, "server0#1"), (20, "server1#2"), (30, "server0#3")] {
        t.client(client, SYN).gives(&[&syn_to(server)]);
    }
    assert_eq!(changes(&mut t), ["0 refused", "1 refused"]);
    let _ = t.moved();
}

#[test]
fn all_marked_are_probed_at_once() {
    let mut t = Setup::new().backends(2).start();
    let _ = t.client(0, SYN);
    let _ = t.server(REFUSED);
    assert_eq!(t.next_timeout(), Some(500), "the other one's patience");
    t.at(100);
    let _ = t.backend(1, REFUSED);
    assert_eq!(t.next_timeout(), Some(100));
    assert_eq!(t.timeout().lines().len(), 2);
    t.at(1099);
    t.timeout().gives(&[]);
    let moved = t.moved();
    assert!(
        moved.ends_with("backend_marked+2 backend_probes_tx+2"),
        "{moved}"
    );
}

#[test]
fn probe_that_is_answered_brings_the_back_end_back() {
    let mut t = Setup::new().backends(2).connections(3).start();
    let _ = t.client(0, SYN);
    let _ = t.server(REFUSED);
    assert_eq!(changes(&mut t), ["0 refused"]);
    let _ = t.backend(1, SYN_ACK);
    let _ = t.moved();
    t.at(999);
    t.timeout().gives(&[]);
    t.at(1000);
    let probe = probe_of(0, &t.timeout()) + 1;
    t.backend(
        0,
        &format!("S. 0:0(0) ack {} win 65160 <mss 1460>", probe + 1),
    )
    .gives(&[
        "drop no_connection",
        &format!("server0 R {0}:{0}(0) win 0", probe + 1),
    ]);
    assert!(
        changes(&mut t).is_empty(),
        "another number than the probe's"
    );
    let answer = format!("S. 0:0(0) ack {probe} win 65160 <mss 1460>");
    t.backend(0, &format!("{answer} bad"))
        .gives(&["drop checksum"]);
    t.backend(0, &answer)
        .gives(&[&format!("server0 R {probe}:{probe}(0) win 0")]);
    assert_eq!(changes(&mut t), ["0 -"]);
    assert_eq!(t.why(), "rst.probed+1 rst.no_connection+1");
    t.client(10, SYN).gives(&[&syn_to("server0#1")]);
    assert_eq!(
        t.moved(),
        "mp_capable_syn_rx+1 connections_opened+1 backend_back+1 backend_probes_tx+1 checksum+1 no_connection+1"
    );
}

#[test]
fn probe_that_is_refused_says_so() {
    let mut t = Setup::new().backends(2).start();
    let _ = t.client(0, SYN);
    t.at(500);
    let probe = probe_of(0, &t.timeout()) + 1;
    assert_eq!(changes(&mut t), ["0 silent"]);
    t.backend(0, &format!("R. 0:0(0) ack {} win 0", probe + 1))
        .gives(&["drop no_connection"]);
    t.backend(0, &format!("R. 0:0(0) ack {probe} win 0"))
        .gives(&[]);
    assert_eq!(changes(&mut t), ["0 refused"]);
    assert_eq!(t.next_timeout(), Some(1000), "the other one's patience");
    let _ = t.moved();
}

#[test]
fn late_answer_brings_the_back_end_back() {
    let mut t = Setup::new().backends(2).connections(3).start();
    let _ = t.client(0, SYN);
    t.at(600);
    // The probe, which comes with the timer, would hide where the first SYN came from.
    t.client(0, SYN).gives(&[&syn_to("server1")]);
    assert_eq!(changes(&mut t), ["0 silent"]);
    t.at(700);
    t.backend(0, SYN_ACK)
        .gives(&["drop no_connection", "server0 R 1:1(0) win 0"]);
    assert_eq!(changes(&mut t), ["0 -"]);
    t.client(10, SYN).gives(&[&syn_to("server0#1")]);
    t.at(1100);
    let _ = t.timeout();
    assert_eq!(changes(&mut t), ["1 silent"]);
    t.at(2799);
    let _ = t.timeout();
    assert!(changes(&mut t).is_empty(), "it gets three times 700 ms");
    t.at(2800);
    let _ = t.timeout();
    assert_eq!(changes(&mut t), ["0 silent"]);
    let _ = t.moved();
}

#[test]
fn slow_back_end_is_returned_to_when_the_other_is_dead() {
    let mut t = Setup::new().backends(2).syn_sent();
    t.at(500);
    t.client(0, SYN).gives(&[&syn_to("server1")]);
    t.at(600);
    let _ = t.backend(0, SYN_ACK);
    t.at(1500);
    t.client(0, SYN).gives(&[&syn_to("server0")]);
    t.at(2100);
    t.client(0, SYN).gives(&[&syn_to("server0")]);
    t.backend(0, SYN_ACK).gives(&[SYN_ACK_DOWN]);
    let _ = t.moved();
}

#[test]
fn lost_syn_to_the_only_living_one_comes_again_there() {
    let mut t = Setup::new().backends(2).connections(2).start();
    let _ = t.client(0, SYN);
    let _ = t.server(REFUSED);
    let _ = t.backend(1, SYN_ACK);
    t.at(1);
    t.client(10, SYN).gives(&[&syn_to("server1#1")]);
    t.at(251);
    // Probes, and no SYN of the connection's to one that is marked.
    let outcome = t.timeout();
    let probes = |line: &String| line.ends_with("<mss 1460>");
    assert!(outcome.lines().iter().all(probes), "{outcome:?}");
    assert_eq!(outcome.lines().len(), 2, "{outcome:?}");
    t.at(1000);
    t.client(10, SYN).gives(&[&syn_to("server1#1")]);
    t.at(3000);
    t.client(10, SYN).gives(&[&syn_to("server0#1")]);
    let _ = t.moved();
}

#[test]
fn only_back_end_is_marked_and_asked_by_clients_alone() {
    let mut t = Setup::new().backends(1).connections(2).start();
    let _ = t.client(0, SYN);
    assert_ne!(t.next_timeout(), Some(500));
    t.at(1000);
    t.client(0, SYN).gives(&[&syn_to("server0")]);
    assert_eq!(changes(&mut t), ["0 silent"]);
    t.at(5000);
    t.timeout().gives(&[]);
    t.client(10, SYN).gives(&[&syn_to("server0#1")]);
    let _ = t.server_of(1, SYN_ACK);
    assert_eq!(changes(&mut t), ["0 -"]);
    assert_eq!(
        t.moved(),
        "mp_capable_syn_rx+2 connections_opened+2 backend_marked+1 backend_back+1"
    );
}

#[test]
fn who_is_about_to_end_probes_nobody() {
    let mut t = Setup::new().backends(2).start();
    let _ = t.client(0, SYN);
    let _ = t.server(REFUSED);
    let _ = t.backend(1, SYN_ACK);
    t.drain();
    t.at(5000);
    t.timeout().gives(&[]);
    let _ = t.moved();
}

#[test]
fn port_of_a_probe_is_not_a_connections() {
    let mut t = Setup::new().backends(2).ports(2).connections(3).start();
    let _ = t.client(0, SYN);
    let _ = t.server(REFUSED);
    t.at(100);
    let _ = t.backend(1, REFUSED);
    // One of two ports towards each.
    assert_eq!(t.timeout().lines().len(), 2);
    let probed = t.net.connections[0].sources.clone();
    for (connection, backend) in [(1, 0), (2, 1)] {
        let _ = t.client(connection * 10, SYN);
        let view = t.view_of(connection).expect("a connection");
        assert_ne!(Some(view.source), probed[backend]);
    }
    let _ = t.moved();
}

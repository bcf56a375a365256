//! Checks of back ends: when they leave, what answers them, and what they find.

use flexcp_translator::Mark;

use crate::support::{FLOWS_PER_CONNECTION, Outcome, Scenario, Setup};

const SYN: &str = "S 0:0(0) win 65535 <mss 1460,sackok,ws 8,capable>";
const SYN_ACK: &str = "S. 0:0(0) ack 1 win 65160 <mss 1460,sackok,ws 7>";
const REFUSED: &str = "R. 0:0(0) ack 1 win 0";

/// What has left at `now` are checks alone, in milliseconds: their back ends, and the ACKs of their SYNs.
fn checks(outcome: &Outcome) -> Vec<(usize, i64)> {
    let one = |line: &String| {
        let rest = line.strip_prefix("server").expect("to a server");
        assert!(rest.ends_with("(0) win 65535 <mss 1460>"), "{line}");
        let (backend, rest) = rest.split_once(" S ").expect("a SYN");
        let number = rest.rsplit_once(':').expect("a number").0;
        let number: i64 = number.parse().expect("a number");
        (backend.parse().expect("a number"), number + 1)
    };
    outcome.lines().iter().map(one).collect()
}

/// Lets the timer run at `now`, in milliseconds.
fn checked_at(t: &mut Scenario, now: u64) -> Vec<(usize, i64)> {
    t.at(now);
    checks(&t.timeout())
}

fn backends_checked_at(t: &mut Scenario, now: u64) -> Vec<usize> {
    let all = checked_at(t, now).into_iter();
    all.map(|(backend, _)| backend).collect()
}

/// The back end answers the check with this ACK: it gets a RST.
fn pass(t: &mut Scenario, (backend, ack): (usize, i64)) {
    t.backend(
        backend,
        &format!("S. 0:0(0) ack {ack} win 65160 <mss 1460>"),
    )
    .gives(&[&format!("server{backend} R {ack}:{ack}(0) win 0")]);
}

fn refuse(t: &mut Scenario, (backend, ack): (usize, i64)) {
    t.backend(backend, &format!("R. 0:0(0) ack {ack} win 0"))
        .gives(&[]);
}

/// Marks that have changed since: `0 silent`, `1 -`.
fn changes(t: &mut Scenario) -> Vec<String> {
    let states = std::iter::from_fn(|| t.poll_backend());
    let reason = |mark: Option<Mark>| mark.map_or("-", |mark| mark.reason.name());
    states
        .map(|state| format!("{} {}", state.backend, reason(state.mark)))
        .collect()
}

#[test]
fn checks_leave_at_regular_times_one_after_the_other() {
    let mut t = Setup::new().backends(2).checked().start();
    assert_eq!(t.next_timeout(), Some(0));
    assert_eq!(backends_checked_at(&mut t, 5), [0]);
    assert_eq!(t.next_timeout(), Some(1005));
    assert_eq!(
        backends_checked_at(&mut t, 1005),
        [1],
        "and the first has failed"
    );
    assert_eq!(
        t.next_timeout(),
        Some(2005),
        "the first again, and the second fails"
    );
    assert_eq!(backends_checked_at(&mut t, 2004), [0; 0]);
    assert_eq!(backends_checked_at(&mut t, 2005), [0]);
    assert_eq!(backends_checked_at(&mut t, 3005), [1]);
    assert_eq!(t.moved(), "backend_checks_tx+4 backend_checks_failed+3");
}

#[test]
fn back_end_falls_after_so_many_failures_in_a_row_and_rises_after_so_many_answers() {
    let mut t = Setup::new().backends(1).checked().start();
    for (now, falls) in [(0, false), (2000, false), (4000, true)] {
        let check = checked_at(&mut t, now)[0];
        if now == 2000 {
            refuse(&mut t, check);
        } else {
            t.at(now + 999);
            t.timeout().gives(&[]);
            assert!(changes(&mut t).is_empty(), "its time is not over");
            t.at(now + 1000);
            t.timeout().gives(&[]);
        }
        let expected: &[&str] = if falls { &["0 silent"] } else { &[] };
        assert_eq!(changes(&mut t), expected, "{now}");
    }
    assert_eq!(t.next_timeout(), Some(6000), "there are no probes beside");
    let check = checked_at(&mut t, 6000)[0];
    pass(&mut t, check);
    assert!(changes(&mut t).is_empty(), "once is not enough");
    let check = checked_at(&mut t, 8000)[0];
    refuse(&mut t, check);
    assert!(changes(&mut t).is_empty(), "it is marked already");
    for now in [10_000, 12_000] {
        assert!(changes(&mut t).is_empty());
        let check = checked_at(&mut t, now)[0];
        pass(&mut t, check);
    }
    assert_eq!(changes(&mut t), ["0 -"]);
    assert_eq!(t.why(), "rst.probed+3");
    assert_eq!(
        t.moved(),
        "backend_marked+1 backend_back+1 backend_checks_tx+7 backend_checks_failed+4"
    );
}

#[test]
fn only_what_answers_the_check_in_time_counts() {
    let mut t = Setup::new().backends(1).checked().start();
    let (backend, ack) = checked_at(&mut t, 0)[0];
    t.backend(backend, &format!("R. 0:0(0) ack {} win 0", ack + 1))
        .gives(&["drop no_connection"]);
    t.at(1000);
    t.timeout().gives(&[]);
    // Late: it gets its RST, and nothing is learnt.
    pass(&mut t, (backend, ack));
    for now in [2000, 4000] {
        let _ = checked_at(&mut t, now);
        let _ = checked_at(&mut t, now + 1000);
    }
    assert_eq!(changes(&mut t), ["0 silent"]);
    assert_eq!(
        t.moved(),
        "backend_marked+1 backend_checks_tx+3 backend_checks_failed+3 no_connection+1"
    );
}

#[test]
fn new_connections_pass_by_whom_checks_have_found_down_whatever_it_answers_them() {
    let mut t = Setup::new().backends(2).checked().connections(3).start();
    for now in [0, 1000, 2000, 3000, 4000] {
        for check in checked_at(&mut t, now) {
            if check.0 == 1 {
                pass(&mut t, check);
            }
        }
    }
    t.at(4900);
    let early = t.client(0, SYN);
    assert!(early.lines()[0].starts_with("server0 "), "{early:?}");
    for check in checked_at(&mut t, 5000) {
        pass(&mut t, check);
    }
    assert_eq!(changes(&mut t), ["0 silent"]);
    t.backend(0, SYN_ACK)
        .gives(&["client0 S. 0:0(0) ack 1 win 65160 <mss 1460,sackok,ws 7,capable>"]);
    assert!(changes(&mut t).is_empty(), "checks say when it is back");
    for n in [1, 2] {
        let outcome = t.client(n * FLOWS_PER_CONNECTION, SYN);
        assert!(outcome.lines()[0].starts_with("server1"), "{outcome:?}");
    }
    let _ = t.moved();
}

#[test]
fn mark_that_a_connection_has_set_goes_with_one_answer_to_a_check() {
    let mut t = Setup::new().backends(2).checked().start();
    let check = checked_at(&mut t, 0)[0];
    refuse(&mut t, check);
    t.at(100);
    let _ = t.client(0, SYN);
    let _ = t.server(REFUSED);
    assert_eq!(changes(&mut t), ["0 refused"]);
    let _ = t.backend(1, SYN_ACK);
    t.at(1000);
    let _ = t.timeout();
    t.at(1100);
    let probe = t.timeout();
    assert_eq!(
        checks(&probe).len(),
        1,
        "a second after the mark it is probed: {probe:?}"
    );
    let check = checked_at(&mut t, 2000)[0];
    assert_eq!(check.0, 0);
    pass(&mut t, check);
    assert_eq!(changes(&mut t), ["0 -"]);
    let _ = t.moved();
}

#[test]
fn port_of_a_check_is_not_a_connections() {
    let mut t = Setup::new()
        .backends(1)
        .ports(2)
        .checked()
        .connections(2)
        .start();
    let _ = checked_at(&mut t, 0);
    let checked = t.net.connections[0].sources[0];
    for n in [0, 1] {
        let _ = t.client(n * FLOWS_PER_CONNECTION, SYN);
        let view = t.view_of(n).expect("a connection");
        assert_ne!(Some(view.source), checked, "{n}");
    }
    let _ = t.moved();
}

#[test]
fn check_takes_no_connections_port_and_says_nothing_without_one() {
    let mut t = Setup::new().backends(1).ports(1).checked().start();
    let _ = t.client(0, SYN);
    for now in [0, 2000, 4000, 6000] {
        assert_eq!(checked_at(&mut t, now), []);
    }
    assert!(changes(&mut t).is_empty());
    let _ = t.moved();
}

#[test]
fn checks_change_with_the_configuration() {
    let mut t = Setup::new().backends(2).checked().start();
    for now in [0, 1000, 2000, 3000, 4000] {
        for check in checked_at(&mut t, now) {
            if check.0 == 1 {
                pass(&mut t, check);
            }
        }
    }
    t.at(5000);
    let _ = t.timeout();
    assert_eq!(changes(&mut t), ["0 silent"]);
    t.configure(&[Setup::new().backends(2).service(0)], 1);
    assert_eq!(changes(&mut t), ["0 silent"], "told anew");
    // Who is checked no more is probed, as it is marked.
    let probe = checked_at(&mut t, 5001);
    assert_eq!(probe.len(), 1);
    pass(&mut t, probe[0]);
    assert_eq!(changes(&mut t), ["0 -"]);
    assert_eq!(t.next_timeout(), None);
    let _ = t.moved();
}

#[test]
fn who_is_about_to_end_checks_nobody() {
    let mut t = Setup::new().backends(2).checked().start();
    let _ = checked_at(&mut t, 0);
    t.drain();
    assert_eq!(checked_at(&mut t, 5000), []);
    let _ = t.moved();
}

//! How a service takes new connections: its back ends by their weights, and none in maintenance.

use flexcp_translator::{Part, Service};

use crate::support::{FLOWS_PER_CONNECTION, Scenario, Setup};

const SYN: &str = "S 0:0(0) win 65535 <mss 1460,sackok,ws 8,capable>";
const PLAIN: &str = "S 0:0(0) win 65535 <mss 1460>";
const REFUSED: &str = "R. 0:0(0) ack 1 win 0";

/// The back end that the n-th connection's SYN goes to.
fn backend_of(t: &mut Scenario, n: usize) -> char {
    let outcome = t.client(n * FLOWS_PER_CONNECTION, SYN);
    let line = outcome.lines().first().expect("a SYN").clone();
    let server = line.strip_prefix("server").expect("to a server");
    server.chars().next().expect("a number")
}

/// Those of the connections in this range.
fn backends_of(t: &mut Scenario, connections: std::ops::Range<usize>) -> String {
    connections.map(|n| backend_of(t, n)).collect()
}

/// The service with these back ends' parts: a weight, or `m` for maintenance.
fn service(parts: &[&str]) -> Service {
    let parts = parts.iter().map(|part| match part.strip_suffix('m') {
        Some(weight) => Part {
            maintenance: true,
            ..Part::of(weight.parse().expect("a weight"))
        },
        None => Part::of(part.parse().expect("a weight")),
    });
    let mut service = Setup::new().backends(parts.len()).service(0);
    service.intake.parts = parts.collect();
    service
}

#[test]
fn back_ends_are_taken_by_their_weights() {
    let mut t = Setup::new().weights(&[3, 1]).connections(8).start();
    assert_eq!(backends_of(&mut t, 0..8), "01000100");
    let _ = t.moved();
    let mut t = Setup::new().weights(&[0, 5, 5]).connections(4).start();
    assert_eq!(backends_of(&mut t, 0..4), "1212");
    let _ = t.moved();
}

#[test]
fn back_end_that_is_marked_leaves_its_share_to_the_others_by_their_weights() {
    let mut t = Setup::new().weights(&[4, 2, 1]).connections(8).start();
    assert_eq!(backend_of(&mut t, 0), '0');
    t.server(REFUSED)
        .gives(&["server1 S 0:0(0) win 65535 <mss 1432,sackok,ws 8>"]);
    let rest = backends_of(&mut t, 1..7);
    assert_eq!(rest.matches('1').count(), 4, "{rest}");
    assert_eq!(rest.matches('2').count(), 2, "{rest}");
    let _ = t.moved();
}

#[test]
fn syn_is_not_sent_on_to_a_back_end_that_takes_none() {
    let mut t = Setup::new().weights(&[1, 0, 1]).start();
    let _ = t.client(0, SYN);
    t.server(REFUSED)
        .gives(&["server2 S 0:0(0) win 65535 <mss 1432,sackok,ws 8>"]);
    t.backend(2, REFUSED)
        .gives(&["server0 S 0:0(0) win 65535 <mss 1432,sackok,ws 8>"]);
    let _ = t.moved();
}

/// The RST for this SYN.
fn refusal(flow: usize, syn: &str) -> String {
    let reason = if syn == SYN {
        " <rst reason 2 transient>"
    } else {
        ""
    };
    format!("client{flow} R. 0:0(0) ack 1 win 0{reason}")
}

#[test]
fn client_is_refused_when_no_back_end_takes_connections() {
    for syn in [SYN, PLAIN] {
        let mut t = Setup::new().weights(&[0, 0]).start();
        t.net.flow_mut(0).isn_flexcp = 0;
        t.client(0, syn)
            .gives(&["drop no_backend", &refusal(0, syn)]);
        assert_eq!(
            (t.moved().as_str(), t.why().as_str()),
            ("no_backend+1", "rst.no_backend+1")
        );
        assert_eq!(t.state(), "gone");
    }
}

#[test]
fn handshake_of_a_back_end_that_takes_none_does_not_make_room() {
    let mut t = Setup::new().backends(2).ports(1).connections(3).start();
    assert_eq!(backends_of(&mut t, 0..2), "01");
    t.configure(&[with_ports(&["1m", "1"])], 1);
    // Of both back ends the only port is taken.
    let outcome = t.client(2 * FLOWS_PER_CONNECTION, SYN);
    assert!(
        outcome
            .lines()
            .iter()
            .any(|line| line.starts_with("server1")),
        "{outcome:?}"
    );
    assert!(t.view_of(0).is_some(), "it may complete");
    let _ = t.moved();
}

/// The same with one port towards them.
fn with_ports(parts: &[&str]) -> Service {
    let mut service = Setup::new().backends(parts.len()).ports(1).service(0);
    service.intake = self::service(parts).intake;
    service
}

#[test]
fn back_end_in_maintenance_keeps_its_connections_and_gets_none() {
    let mut t = Setup::new().backends(2).connections(4).established();
    assert_eq!(
        t.view().expect("a connection").backend.to_string(),
        "10.8.0.1:8080"
    );
    t.configure(&[service(&["1m", "1"])], 1);
    assert_eq!(backends_of(&mut t, 1..3), "11");
    t.end_stranded(0).gives(&[]);
    t.client(0, "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1>")
        .gives(&["server0 P. 1:101(100) ack 1 win 512"]);
    t.configure(&[service(&["1", "1"])], 2);
    assert_eq!(backends_of(&mut t, 3..4), "0");
    let _ = t.moved();
}

#[test]
fn syn_that_waits_for_a_back_end_that_goes_into_maintenance_is_its_own() {
    let mut t = Setup::new().backends(2).start();
    let _ = t.client(0, SYN);
    t.configure(&[service(&["1m", "1"])], 1);
    t.at(100);
    t.server("S. 0:0(0) ack 1 win 65160 <mss 1460,sackok,ws 7>")
        .gives(&["client0 S. 0:0(0) ack 1 win 65160 <mss 1460,sackok,ws 7,capable>"]);
    let _ = t.moved();
}

/// The connections of each back end, as the translator counts them.
fn loads(t: &Scenario) -> Vec<u64> {
    t.translator
        .backends()
        .map(|view| view.connections)
        .collect()
}

#[test]
fn connections_are_counted_where_they_are() {
    let mut t = Setup::new().backends(2).connections(3).start();
    assert_eq!(loads(&t), [0, 0]);
    assert_eq!(backends_of(&mut t, 0..3), "010");
    assert_eq!(loads(&t), [2, 1]);
    t.backend_of(2, 0, REFUSED)
        .gives(&["server1#2 S 0:0(0) win 65535 <mss 1432,sackok,ws 8>"]);
    assert_eq!(loads(&t), [1, 2], "one has moved");
    t.backend_of(1, 1, REFUSED)
        .gives(&["server0#1 S 0:0(0) win 65535 <mss 1432,sackok,ws 8>"]);
    t.backend_of(1, 0, REFUSED)
        .gives(&["client10 R. 0:0(0) ack 1 win 0"]);
    assert_eq!(loads(&t), [1, 1], "one is gone");
    let _ = t.moved();
}

#[test]
fn connections_of_a_back_end_that_went_are_its_own_when_it_is_back() {
    let mut t = Setup::new().backends(2).connections(2).start();
    assert_eq!(backends_of(&mut t, 0..2), "01");
    let both = service(&["1", "1"]);
    let mut first = both.clone();
    if let flexcp_translator::Mode::Reverse { backends, .. } = &mut first.mode {
        backends.truncate(1);
    }
    t.configure(std::slice::from_ref(&first), 1);
    assert_eq!(loads(&t), [1]);
    t.configure(std::slice::from_ref(&both), 2);
    assert_eq!(loads(&t), [1, 1]);
    t.configure(&[first], 3);
    let _ = t.end_stranded(2);
    t.forget_stranded(2);
    t.configure(&[both], 4);
    assert_eq!(loads(&t), [1, 0]);
    let _ = t.moved();
}

#[test]
fn last_mark_is_known_when_it_has_gone() {
    let mut t = Setup::new().backends(2).start();
    let _ = t.client(0, SYN);
    let last = |t: &Scenario| {
        t.translator
            .backends()
            .next()
            .and_then(|view| view.last_mark)
    };
    assert_eq!(last(&t), None);
    t.at(7);
    let _ = t.server(REFUSED);
    let marked = last(&t).expect("a mark");
    assert_eq!((marked.reason.name(), marked.since.0), ("refused", 7_000));
    t.at(1007);
    let probe = t.timeout();
    let number = probe.lines()[0]
        .split([' ', ':'])
        .nth(2)
        .expect("a number")
        .to_owned();
    let number: i64 = number.parse().expect("a number");
    let _ = t.backend(
        0,
        &format!("S. 0:0(0) ack {} win 65160 <mss 1460>", number + 1),
    );
    let view = t.translator.backends().next().expect("a back end");
    assert_eq!((view.mark, view.last_mark), (None, Some(marked)));
    let _ = t.moved();
}

/// The service, which takes no new connections.
fn closed(mut service: Service) -> Service {
    service.intake.closed = true;
    service
}

#[test]
fn service_that_is_closed_refuses_where_it_is_addressed_and_its_connections_go_on() {
    let reverse = || Setup::new().backends(1).service(0);
    for syn in [SYN, PLAIN] {
        let mut t = Setup::new().backends(1).connections(3).established();
        t.configure(&[closed(reverse())], 1);
        t.net.flow_mut(FLOWS_PER_CONNECTION).isn_flexcp = 0;
        t.client(FLOWS_PER_CONNECTION, syn)
            .gives(&["drop draining", &refusal(FLOWS_PER_CONNECTION, syn)]);
        t.client(0, "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1>")
            .gives(&["server0 P. 1:101(100) ack 1 win 512"]);
        assert_eq!(t.why(), "rst.draining+1");
        t.end_stranded(0).gives(&[]);
        t.configure(&[reverse()], 2);
        let again = t.client(2 * FLOWS_PER_CONNECTION, SYN);
        assert!(again.lines()[0].starts_with("server0#2 S "), "{again:?}");
        let _ = t.moved();
    }
}

#[test]
fn service_on_the_path_that_is_closed_lets_new_connections_pass_as_plain_tcp() {
    let mut t = Setup::new().connections(2).established();
    t.configure(&[closed(Setup::new().service(0))], 1);
    t.client(FLOWS_PER_CONNECTION, SYN)
        .gives(&["server#1 S 0:0(0) win 65535 <mss 1460,sackok,ws 8>"]);
    assert_eq!(t.why(), "plain_syn.draining+1");
    let answer = t.client(1, "S 0:0(0) win 65535 <mss 1460,sackok,ws 8,join 1>");
    assert!(answer.lines()[0].starts_with("client1 S."), "{answer:?}");
    let _ = t.moved();
}

#[test]
fn connections_of_a_service_are_told_the_end_and_no_others() {
    let mut t = Setup::new().established();
    t.configure(&[closed(Setup::new().service(0))], 1);
    t.end_service(1).gives(&[]);
    t.end_service(0).gives(&[
        "client0 R. 1:1(0) ack 1 win 509 <fastclose>",
        "server R. 1:1(0) ack 1 win 512",
    ]);
    assert_eq!(t.why(), "rst.ending+2");
    assert_eq!(t.state(), "reset");
    let _ = t.moved();
}

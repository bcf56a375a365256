//! Another configuration under connections that live on.

use std::time::Duration;

use flexcp_translator::{Mode, Prefix, Service, ServiceId};

use crate::install::installed;
use crate::support::{FLOWS_PER_CONNECTION, Scenario, Setup};

/// The initial flow of the second connection.
const SECOND: usize = FLOWS_PER_CONNECTION;

const SYN: &str = "S 0:0(0) win 65535 <mss 1460,sackok,ws 8,capable>";
const PLAIN: &str = "S 0:0(0) win 65535 <mss 1460,sackok,ws 8>";
const DATA: &str = "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1>";

/// The service on the path, as it is at the start.
fn on_path(id: u16) -> Service {
    Setup::new().service(id)
}

/// Another one that covers none of the flows.
fn elsewhere(id: u16) -> Service {
    let mut service = on_path(id);
    service.mode = Mode::Transparent {
        destinations: vec![Prefix {
            addr: [192, 0, 2, 0].into(),
            len: 24,
        }],
        ports: vec![],
        end_to_end: false,
    };
    service
}

/// The service with these back ends of three.
fn in_front_of(backends: &[usize]) -> Service {
    let mut service = Setup::new().backends(3).service(0);
    if let Mode::Reverse { backends: all, .. } = &mut service.mode {
        *all = backends.iter().map(|&n| all[n]).collect();
    }
    service
}

fn ids(t: &Scenario) -> Vec<u16> {
    let ids = t.translator.service_ids();
    ids.into_iter().map(|ServiceId(id)| id).collect()
}

#[test]
fn service_that_went_opens_nothing_and_its_connections_go_on_until_they_are_told() {
    let mut t = Setup::new().connections(2).established();
    t.configure(&[elsewhere(1)], 1);
    t.client(0, DATA)
        .gives(&["server P. 1:101(100) ack 1 win 512"]);
    let answer = t.client(1, "S 0:0(0) win 65535 <mss 1460,sackok,ws 8,join 1>");
    assert!(answer.lines()[0].starts_with("client1 S."), "{answer:?}");
    t.client(SECOND, SYN)
        .gives(&["server#1 S 0:0(0) win 65535 <mss 1460,sackok,ws 8>"]);
    assert_eq!(t.why(), "plain_syn.draining+1");
    assert_eq!(ids(&t), [0, 1], "the id is in use");
    t.end_stranded(0).gives(&[
        "client0 R. 1:1(0) ack 1 win 509 <fastclose>",
        "client1 R. 1:1(0) ack 1 win 509 <fastclose>",
        "server R. 101:101(0) ack 1 win 512",
    ]);
    assert_eq!(t.state(), "reset");
    t.forget_stranded(0);
    assert_eq!((t.state(), ids(&t)), ("gone", vec![1]));
    let _ = t.moved();
}

#[test]
fn service_that_went_refuses_where_it_is_addressed() {
    for syn in [SYN, PLAIN] {
        let mut t = Setup::new().backends(1).start();
        t.net.flow_mut(0).isn_flexcp = 0;
        t.configure(&[elsewhere(1)], 1);
        let outcome = t.client(0, syn);
        assert_eq!(outcome.lines()[0], "drop draining");
        assert_eq!(t.why(), "rst.draining+1");
        let _ = t.moved();
        t.forget_stranded(0);
        let outcome = t.client(0, syn);
        assert_eq!(outcome.lines()[0], "drop no_connection", "it is nobody's");
        let _ = t.moved();
    }
}

#[test]
fn service_that_comes_back_under_its_id_has_its_connections() {
    let mut t = Setup::new().established();
    t.configure(&[elsewhere(1)], 1);
    t.configure(&[elsewhere(1), on_path(0)], 2);
    t.end_stranded(1).gives(&[]);
    t.forget_stranded(1);
    t.client(0, DATA)
        .gives(&["server P. 1:101(100) ack 1 win 512"]);
    assert_eq!((t.state(), ids(&t)), ("translating", vec![0, 1]));
    assert_eq!(t.moved(), "");
}

#[test]
fn connection_is_told_when_the_time_of_the_last_generation_that_covers_it_is_over() {
    let mut t = Setup::new().established();
    t.configure(&[on_path(0), elsewhere(1)], 1);
    // The service has covered the connection in generations 0 to 2.
    t.configure(&[on_path(0)], 2);
    t.configure(&[], 3);
    t.end_stranded(0).gives(&[]);
    t.forget_stranded(0);
    t.end_stranded(1).gives(&[]);
    t.forget_stranded(1);
    assert_eq!((t.state(), ids(&t)), ("translating", vec![0]));
    assert_eq!(t.end_stranded(2).lines().len(), 2);
    t.forget_stranded(2);
    assert_eq!(ids(&t), [0; 0]);
    let _ = t.moved();
}

#[test]
fn services_that_go_one_after_the_other_have_their_time_each() {
    let mut t = Setup::new().established();
    t.configure(&[on_path(0), elsewhere(1)], 1);
    t.configure(&[elsewhere(1)], 2);
    t.configure(&[], 3);
    assert_eq!(ids(&t), [0, 1]);
    t.end_stranded(0).gives(&[]);
    assert_eq!(t.end_stranded(1).lines().len(), 2);
    t.forget_stranded(1);
    assert_eq!(ids(&t), [1]);
    let _ = t.moved();
}

#[test]
fn order_of_services_is_the_precedence_of_new_connections_alone() {
    let mut t = Setup::new().connections(2).established();
    t.configure(&[on_path(5), on_path(0)], 1);
    assert_eq!(t.view().map(|view| view.service), Some(ServiceId(0)));
    let _ = t.client(SECOND, SYN);
    let of_second = t.view_of(1).map(|view| view.service);
    assert_eq!(of_second, Some(ServiceId(5)));
    t.end_stranded(0).gives(&[]);
    t.client(0, DATA)
        .gives(&["server P. 1:101(100) ack 1 win 512"]);
    let _ = t.moved();
}

#[test]
fn changed_service_strands_only_what_it_covers_no_more() {
    let mut t = Setup::new().connections(2).established();
    let mut wider = on_path(0);
    if let Mode::Transparent { ports, .. } = &mut wider.mode {
        ports.push(1000..=1001);
    }
    t.configure(&[wider], 1);
    t.end_stranded(0).gives(&[]);
    t.forget_stranded(0);
    assert_eq!(t.state(), "translating");
    let mut other = on_path(0);
    if let Mode::Transparent { ports, .. } = &mut other.mode {
        *ports = vec![81..=89];
    }
    t.configure(&[other], 2);
    t.client(0, DATA)
        .gives(&["server P. 1:101(100) ack 1 win 512"]);
    let _ = t.client(SECOND, SYN);
    assert_eq!(t.why(), "plain_syn.draining+1");
    assert_eq!(t.end_stranded(1).lines().len(), 2);
    t.forget_stranded(1);
    assert_eq!((t.state(), ids(&t)), ("gone", vec![0]));
    let _ = t.moved();
}

#[test]
fn back_end_that_went_has_its_connections_for_the_drain_alone() {
    let mut t = Setup::new().backends(3).established();
    let backend = t.view().expect("a connection").backend;
    assert_eq!(backend, ([10, 8, 0, 1], 8080).into());
    t.configure(&[in_front_of(&[2, 0])], 1);
    t.end_stranded(0).gives(&[]);
    t.forget_stranded(0);
    assert_eq!(t.state(), "translating");
    t.configure(&[in_front_of(&[2])], 2);
    assert_eq!(t.end_stranded(1).lines().len(), 2);
    t.forget_stranded(1);
    assert_eq!(t.state(), "gone");
    let _ = t.moved();
}

#[test]
fn back_end_that_stays_keeps_its_mark_and_is_told_by_its_new_place() {
    let mut t = Setup::new().backends(3).syn_sent();
    t.net.flow_mut(0).isn_flexcp = 0;
    let _ = t.server("R. 0:0(0) ack 1 win 0");
    let state = t.poll_backend().expect("it refuses");
    assert_eq!((state.service, state.backend), (ServiceId(0), 0));
    assert!(state.mark.is_some() && t.poll_backend().is_none());
    t.configure(&[in_front_of(&[2, 0])], 1);
    let again = t.poll_backend().expect("told anew");
    assert_eq!((again.backend, again.mark), (1, state.mark));
    assert!(t.poll_backend().is_none());
    t.configure(&[in_front_of(&[2])], 2);
    assert!(t.poll_backend().is_none(), "its mark went with it");
    let _ = t.moved();
}

#[test]
fn subflow_at_an_address_that_is_announced_no_more_is_given_up() {
    let setup = Setup::new().announce("10.9.1.9");
    let mut t = setup.clone().established();
    t.net.flow_mut(1).local = ([10, 9, 1, 9], 80).into();
    setup.join(&mut t, 1);
    let _ = t.moved();
    t.configure(&[on_path(0)], 1);
    assert_eq!(t.subflows().len(), 2);
    let outcome = t.end_stranded(0);
    assert_eq!(outcome.lines().len(), 1);
    assert!(outcome.lines()[0].starts_with("client1 R."), "{outcome:?}");
    t.end_stranded(0).gives(&[]);
    t.forget_stranded(0);
    t.client(0, DATA)
        .gives(&["server P. 1:101(100) ack 1 win 512"]);
    assert_eq!(t.why(), "rst.ending+1");
    let _ = t.moved();
}

#[test]
fn flow_entry_of_an_unchanged_service_stays() {
    let (mut t, shelf) = installed(Setup::new());
    assert_eq!(shelf.entries().len(), 1);
    t.configure(&[elsewhere(3), on_path(0)], 1);
    t.end_stranded(0).gives(&[]);
    t.forget_stranded(0);
    assert_eq!((shelf.entries().len(), t.moved()), (1, String::new()));
    t.configure(&[elsewhere(3)], 2);
    assert_eq!(shelf.entries().len(), 1, "also of one that is drained");
    let _ = t.end_stranded(1);
    assert_eq!(shelf.entries().len(), 0);
    t.uncompared();
    let _ = t.moved();
}

#[test]
fn plain_connection_on_the_path_of_a_service_that_went_is_forgotten_without_a_word() {
    let mut t = Setup::new().syn_sent();
    let _ = t.client(0, PLAIN);
    let _ = t.server("S. 0:0(0) ack 1 win 65160 <mss 1460,sackok,ws 7>");
    let _ = t.client(0, ". 1:1(0) ack 1 win 512");
    t.configure(&[], 1);
    t.end_stranded(0).gives(&[]);
    assert_eq!(t.state(), "plain");
    t.client(0, ". 1:1(0) ack 1 win 512")
        .gives(&["server . 1:1(0) ack 1 win 512"]);
    t.forget_stranded(0);
    assert_eq!((t.state(), ids(&t)), ("gone", vec![]));
    let _ = t.moved();
}

#[test]
fn limits_and_timeouts_hold_at_once() {
    let setup = Setup::new().connections(2);
    let mut t = setup.clone().established();
    let config = |connections| flexcp_translator::Config {
        services: vec![on_path(0)],
        limits: flexcp_translator::Limits {
            connections,
            memory: 1 << 20,
            ..setup.limits
        },
        timeouts: flexcp_translator::Timeouts {
            idle: Duration::from_secs(30),
            ..setup.timeouts
        },
        ..flexcp_translator::Config::default()
    };
    for translator in t.translators() {
        translator.configure(config(1), 1);
    }
    assert_eq!(t.translator.memory_budget(), 1 << 20);
    let _ = t.client(SECOND, SYN);
    assert_eq!(t.why(), "plain_syn.overload+1");
    // The timer that is set looks after a minute.
    t.at(60_001);
    let _ = t.timeout();
    assert_eq!(t.state(), "reset");
    let _ = t.moved();
}

//! Accesses by the interface that packets leave by, and what has come over each.

use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use flexcp_translator::{Access, AccessId, AccessTotals, ActiveStandby, Cursor, Way, Ways};
use flexcp_wire::Ends;

use crate::support::{Outcome, Scenario, Setup};

const JOIN: &str = "S 0:0(0) win 65535 <mss 1460,sackok,ts 900000 0,ws 8,join>";
const JOIN_THIRD: &str = ". 1:1(0) ack 1 win 512 <ts 900000 5000,join>";

/// Where packets for clients leave by their third number: 10.1.0.0/24 and 10.1.1.0/24.
#[derive(Clone, Default, Debug)]
struct Routes(Arc<Mutex<[Way; 2]>>);

impl Routes {
    fn lead(&self, ways: [usize; 2]) {
        *self.0.lock().unwrap() = ways.map(Way::named);
    }
}

impl Ways for Routes {
    fn find(&mut self, ends: Ends) -> Way {
        let IpAddr::V4(client) = ends.to.ip() else {
            return Way::OTHER;
        };
        let ways = *self.0.lock().unwrap();
        ways[usize::from(client.octets()[2])]
    }
}

/// Access n is way n; the second is preferred.
fn setup() -> Setup {
    let of = |place: usize| Access {
        name: format!("access{place}"),
        clients: vec![],
        addresses: vec![],
        ways: vec![Way::named(place)],
    };
    let accesses = vec![AccessId(1), AccessId(0)];
    let mut setup = Setup::new().ts();
    setup.accesses = vec![of(0), of(1)];
    setup.steered(ActiveStandby { accesses }, [60_000, 60_000])
}

fn find_ways(t: &mut Scenario) -> Outcome {
    t.tell(&|translator, now| {
        let mut next = Some(Cursor::default());
        while let Some(from) = next {
            next = translator.find_ways(now, from, 1);
        }
    })
}

fn accesses(t: &Scenario) -> Vec<Option<u8>> {
    let view = t.view().expect("a connection");
    let subflows = view.subflows.iter();
    subflows
        .map(|subflow| subflow.access.map(|id| id.0))
        .collect()
}

/// A connection that has come before anybody knew of ways, and one more path.
fn joined(ways: [usize; 2]) -> (Scenario, Routes, Outcome) {
    let mut t = setup().established();
    assert_eq!(accesses(&t), [None]);
    let routes = Routes::default();
    routes.lead(ways);
    for translator in t.translators() {
        translator.set_ways(Box::new(routes.clone()));
    }
    let _ = find_ways(&mut t);
    let gave = t.client(1, JOIN);
    let _ = t.client(1, JOIN_THIRD);
    (t, routes, gave)
}

#[test]
fn subflow_is_of_the_access_that_its_packets_leave_by() {
    let (mut t, _, gave) = joined([0, 1]);
    assert_eq!(accesses(&t), [Some(0), Some(1)]);
    // The way is known when the SYN is answered.
    assert!(gave.lines()[0].contains("join id 0>"), "{gave:?}");
    assert_eq!(t.subflows(), ["0", "1 active"]);
    let (mut other, _, gave) = joined([1, 0]);
    assert_eq!(accesses(&other), [Some(1), Some(0)]);
    assert!(gave.lines()[0].contains("join id 0 b"), "{gave:?}");
    assert_eq!(other.subflows(), ["0 active", "1"]);
    let (mut none, ..) = joined([0, 7]);
    assert_eq!(accesses(&none), [Some(0), None]);
    for t in [&mut t, &mut other, &mut none] {
        let _ = (t.moved(), t.why());
    }
}

#[test]
fn connection_is_judged_at_once_where_routes_lead_elsewhere() {
    let (mut t, routes, _) = joined([0, 1]);
    assert_eq!(t.why(), "subflow_switch.preferred+1");
    t.at(1000);
    routes.lead([0, 1]);
    let gave = find_ways(&mut t);
    assert!(gave.lines().is_empty(), "nothing has changed: {gave:?}");
    routes.lead([1, 0]);
    let _ = find_ways(&mut t);
    assert_eq!(accesses(&t), [Some(1), Some(0)]);
    assert_eq!(t.subflows(), ["0 active", "1"]);
    assert_eq!(t.why(), "subflow_switch.preferred+2");
    let _ = t.moved();
}

fn totals(t: &Scenario) -> Vec<AccessTotals> {
    t.translator.access_totals().collect()
}

#[test]
fn what_comes_over_an_access_counts_when_it_is_over() {
    let mut t = Setup::new().accesses(2).two_subflows();
    let opened = AccessTotals {
        opened: 1,
        ..AccessTotals::default()
    };
    assert_eq!(totals(&t), [opened, opened, AccessTotals::default()]);
    let _ = t.server("P. 1:101(100) ack 1");
    let _ = t.client(0, ". 1:1(0) ack 101 <dss ack 101>");
    let _ = t.client(0, "P. 1:51(50) ack 101 <dss ack 101 map 1:51@1>");
    assert_eq!(totals(&t)[0], opened, "it lives");
    let _ = t.client(0, "R 51:51(0)");
    let over = AccessTotals {
        bytes_up: 50,
        bytes_down: 100,
        ..opened
    };
    assert_eq!(totals(&t)[0], over);
    // Another order of accesses, of which one is new.
    let mut other = Setup::new().accesses(2);
    other.accesses.reverse();
    other.accesses[0].name = "new".into();
    t.configure_as(&other, 1);
    let none = AccessTotals::default();
    assert_eq!(totals(&t), [none, over, none]);
    let _ = (t.moved(), t.why());
}

#[test]
fn access_that_takes_options_away_is_counted() {
    let mut t = Setup::new().accesses(2).syn_received();
    let _ = t.client(0, ". 1:1(0) ack 1");
    let stripped = AccessTotals {
        opened: 1,
        stripped: 1,
        ..AccessTotals::default()
    };
    assert_eq!(t.state(), "fallback");
    assert_eq!(totals(&t)[0], stripped);
    let _ = (t.moved(), t.why());
    // A join whose proof is taken away.
    let mut t = Setup::new().accesses(2).established();
    let _ = t.client(1, "S 0:0(0) win 65535 <mss 1460,sackok,ws 8,join>");
    let _ = t.client(1, ". 1:1(0) ack 1 win 512");
    assert_eq!(totals(&t)[1], stripped);
    let _ = (t.moved(), t.why());
    // From the SYN on nobody can tell it from a client that does without.
    let mut t = Setup::new().accesses(2).start();
    let _ = t.client(0, "S 0:0(0) win 65535 <mss 1460,sackok,ws 8>");
    let _ = t.server("S. 0:0(0) ack 1 win 65160 <mss 1460,sackok,ws 7>");
    let _ = t.client(0, ". 1:1(0) ack 1 win 512");
    let plain = AccessTotals {
        plain: 1,
        ..AccessTotals::default()
    };
    assert_eq!(totals(&t)[0], plain);
    let _ = (t.moved(), t.why());
}

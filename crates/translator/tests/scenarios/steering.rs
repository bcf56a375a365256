//! Steering: an operator's rule moves the server's data from one path to another, at most once in its time.

use std::sync::{Arc, Mutex};

use flexcp_translator::{
    AccessId, ActiveStandby, Move, SmallestDelay, SteeringMode, SubflowSwitch, View,
};

use crate::support::{Scenario, Setup};

const SYN: &str = "S 0:0(0) win 65535 <mss 1460,sackok,ws 8,capable>";
const SYN_ACK: &str = "S. 0:0(0) ack 1 win 65160 <mss 1460,sackok,ws 7>";
const THIRD: &str = ". 1:1(0) ack 1 win 512 <capable>";
const JOIN: &str = "S 0:0(0) win 65535 <mss 1460,sackok,ws 8,join>";
const JOIN_THIRD: &str = ". 1:1(0) ack 1 win 512 <join>";

/// The handshake on flow 0 takes 80 ms, the join on flow 1 that long; it is 1000 ms.
fn paths(setup: Setup, join: u64) -> Scenario {
    let mut t = setup.start();
    let _ = t.client(0, SYN);
    let _ = t.server(SYN_ACK);
    t.at(80);
    let _ = t.client(0, THIRD);
    let _ = (t.why(), t.moved());
    t.at(500);
    let _ = t.client(1, JOIN);
    t.at(500 + join);
    let _ = t.client(1, JOIN_THIRD);
    t.at(1000);
    t
}

/// The next hundred bytes of the server's go down on `flow` and are ACKed `rtt` milliseconds later.
fn sends(
    t: &mut Scenario,
    at: &mut u64,
    dsn: &mut u32,
    flow: usize,
    ssns: &mut [u32; 2],
    rtt: u64,
) {
    let (from, end) = (*dsn, *dsn + 100);
    let (ssn, after) = (ssns[flow], ssns[flow] + 100);
    t.server(&format!("P. {from}:{end}(100) ack 1"))
        .gives(&[&format!(
            "client{flow} P. {ssn}:{after}(100) ack 1 win 64 <dss ack 1 map {from}:{end}@{ssn}>"
        )]);
    *at += rtt;
    t.at(*at);
    t.client(
        flow,
        &format!(". 1:1(0) ack {after} win 512 <dss ack {end}>"),
    )
    .gives(&[&format!("server . 1:1(0) ack {end} win 512")]);
    (*dsn, ssns[flow]) = (end, after);
}

struct Flow {
    t: Scenario,
    at: u64,
    dsn: u32,
    ssns: [u32; 2],
}

impl Flow {
    fn new(t: Scenario) -> Self {
        Self {
            t,
            at: 1000,
            dsn: 1,
            ssns: [1, 1],
        }
    }

    fn sends(&mut self, flow: usize, rtt: u64) {
        sends(
            &mut self.t,
            &mut self.at,
            &mut self.dsn,
            flow,
            &mut self.ssns,
            rtt,
        );
    }

    fn waits(&mut self, ms: u64) {
        self.at += ms;
        self.t.at(self.at);
    }
}

const JOINED: &str = "mp_join_syn_rx+1 mp_join_ack_rx+1";

#[test]
fn smallest_delay_is_known_from_the_handshakes() {
    let setup = Setup::new().steered(SmallestDelay, [1000, 0]);
    let mut f = Flow::new(paths(setup, 20));
    f.sends(1, 20);
    assert_eq!(f.t.why(), "subflow_switch.delay+1");
    let _ = f.t.moved();
    let setup = Setup::new().steered(SmallestDelay, [1000, 0]);
    let mut f = Flow::new(paths(setup, 90));
    f.sends(0, 80);
    assert_eq!(f.t.moved(), JOINED);
}

#[test]
fn without_a_rule_delays_move_nothing() {
    let mut f = Flow::new(paths(Setup::new(), 20));
    f.sends(0, 80);
    f.sends(0, 80);
    assert_eq!(f.t.moved(), JOINED);
}

#[test]
fn connection_stays_for_the_hold_time() {
    let setup = Setup::new().steered(SmallestDelay, [2000, 0]);
    let mut f = Flow::new(paths(setup, 20));
    // The connection was moved with the join, at 520 ms; the path is slow since.
    f.sends(1, 400);
    f.sends(1, 400);
    f.waits(190);
    f.sends(1, 400);
    f.sends(1, 400);
    f.sends(0, 80);
    assert_eq!(f.t.why(), "subflow_switch.delay+2");
    let _ = f.t.moved();
}

#[test]
fn mode_is_asked_every_tenth_of_a_second() {
    let setup = Setup::new().steered(SmallestDelay, [100, 0]);
    let mut f = Flow::new(paths(setup, 70));
    // It was asked at 1000 ms, and would move from here on.
    f.sends(0, 99);
    f.t.server("P. 101:201(100) ack 1")
        .gives(&["client0 P. 101:201(100) ack 1 win 64 <dss ack 1 map 101:201@101>"]);
    f.waits(5);
    f.t.server("P. 201:301(100) ack 1")
        .gives(&["client1 P. 1:101(100) ack 1 win 64 <dss ack 1 map 201:301@1>"]);
    assert_eq!(f.t.why(), "subflow_switch.delay+1");
    let _ = f.t.moved();
}

#[test]
fn rules_of_another_configuration_hold_from_then_on() {
    let setup = Setup::new().steered(SmallestDelay, [100, 0]);
    let service = setup.service(0);
    let mut f = Flow::new(paths(setup, 70));
    f.sends(0, 200);
    f.t.configure(&[service], 1);
    f.sends(0, 200);
    assert_eq!(f.t.moved(), JOINED);
}

/// Active-standby of which the client is not told: `steered.rs` has that.
#[derive(Debug)]
struct Untold(ActiveStandby);

impl SteeringMode for Untold {
    fn choose(&self, view: &View<'_>) -> Option<Move> {
        self.0.choose(view)
    }
}

fn standby() -> Untold {
    Untold(ActiveStandby {
        accesses: vec![AccessId(1), AccessId(0)],
    })
}

#[test]
fn preferred_access_is_taken_as_soon_as_it_is_there() {
    let setup = Setup::new().accesses(2).steered(standby(), [1000, 3000]);
    let mut f = Flow::new(paths(setup, 90));
    f.sends(1, 90);
    f.sends(1, 90);
    assert_eq!(f.t.why(), "subflow_switch.preferred+1");
    let _ = f.t.moved();
}

/// The preferred path, flow 1, is silent: at 1400 ms the server's data has come over flow 0.
fn failed_over() -> Flow {
    let setup = Setup::new().accesses(2).steered(standby(), [100, 3000]);
    let mut f = Flow::new(paths(setup, 90));
    f.sends(1, 90);
    let t = &mut f.t;
    let _ = t.server("P. 101:201(100) ack 1");
    t.at(1390);
    t.server("P. 101:201(100) ack 1")
        .gives(&["client0 P. 1:101(100) ack 1 win 64 <dss ack 1 map 101:201@1>"]);
    t.at(1400);
    t.client(0, ". 1:1(0) ack 101 win 512 <dss ack 201>")
        .gives(&["server . 1:1(0) ack 201 win 512"]);
    (f.at, f.dsn, f.ssns) = (1400, 201, [101, 101]);
    f
}

#[test]
fn connection_comes_back_after_the_fail_back_delay() {
    let mut f = failed_over();
    f.waits(100);
    // It is heard again.
    let _ = f.t.client(1, ". 1:1(0) ack 201 win 512 <dss ack 201>");
    f.ssns[1] = 201;
    f.waits(2800);
    f.sends(0, 30);
    f.waits(110);
    f.sends(1, 90);
    assert_eq!(
        f.t.why(),
        "subflow_switch.failed+1 subflow_switch.preferred+2"
    );
    let _ = f.t.moved();
}

#[test]
fn path_that_was_silent_is_probed_ever_later_until_it_is_heard() {
    let mut f = failed_over();
    let probe = "client1 . 100:100(0) ack 1 win 64 <dss ack 1>";
    let mut probes = vec![];
    while f.at < 20_000 {
        let (from, ssn) = (f.dsn, f.ssns[0]);
        let gave = f.t.server(&format!("P. {from}:{}(100) ack 1", from + 100));
        probes.extend(
            gave.lines()
                .iter()
                .any(|line| line == probe)
                .then_some(f.at),
        );
        (f.dsn, f.ssns[0]) = (from + 100, ssn + 100);
        let ack = format!(
            ". 1:1(0) ack {} win 512 <dss ack {}>",
            ssn + 100,
            from + 100
        );
        let _ = f.t.client(0, &ack);
        f.waits(100);
        let _ = f.t.timeout();
    }
    assert_eq!(probes, [3600, 7700, 15_700]);
    // The client answers.
    let _ = f.t.client(1, ". 1:1(0) ack 201 win 512 <dss ack 201>");
    f.ssns[1] = 201;
    f.sends(1, 90);
    f.waits(20_000);
    f.sends(1, 90);
    let _ = f.t.moved();
}

#[test]
fn path_that_something_speaks_against_is_not_chosen() {
    let setup = Setup::new().accesses(2).steered(standby(), [100, 100]);
    let mut f = Flow::new(paths(setup, 90));
    let _ = f.t.client(1, ". 1:1(0) ack 1 win 512 <dss ack 1,prio b>");
    f.sends(0, 80);
    f.waits(500);
    f.sends(0, 80);
    let _ = f.t.moved();
}

#[test]
fn what_a_path_has_no_room_for_goes_down_another_and_moves_nothing() {
    let setup = Setup::new().steered(SmallestDelay, [1000, 0]);
    let mut t = paths(setup, 20);
    let _ = t.client(0, ". 1:1(0) ack 1 win 512 <dss ack 1>");
    t.server("P. 1:59001(59000) ack 1")
        .gives(&["client1 P. 1:59001(59000) ack 1 win 64 <dss ack 1 map 1:59001@1> gso 1432"]);
    // More than a client offers when it joins.
    t.server("P. 59001:61001(2000) ack 1")
        .gives(&["client0 P. 1:2001(2000) ack 1 win 64 <dss ack 1 map 59001:61001@1> gso 1432"]);
    t.at(1010);
    let _ = t.client(1, ". 1:1(0) ack 59001 win 512 <dss ack 59001>");
    t.server("P. 61001:61101(100) ack 1")
        .gives(&["client1 P. 59001:59101(100) ack 1 win 64 <dss ack 1 map 61001:61101@59001>"]);
    assert_eq!(t.why(), "subflow_switch.delay+1");
    let _ = t.moved();
}

/// Names paths that are not there.
#[derive(Debug)]
struct Astray;

impl SteeringMode for Astray {
    fn choose(&self, view: &View<'_>) -> Option<Move> {
        let to = view.active.subflow.wrapping_add(7);
        let cause = SubflowSwitch::Delay;
        Some(Move {
            to,
            cause,
            back: false,
        })
    }
}

#[test]
fn mode_that_names_a_path_that_is_not_there_moves_nothing() {
    let mut f = Flow::new(paths(Setup::new().steered(Astray, [100, 0]), 20));
    f.sends(0, 80);
    f.waits(200);
    f.sends(0, 80);
    assert_eq!(f.t.moved(), JOINED);
}

/// Moves to the second path, and notes the rates that it is told.
#[derive(Clone, Debug)]
struct Rates(Arc<Mutex<Vec<u64>>>);

impl SteeringMode for Rates {
    fn choose(&self, view: &View<'_>) -> Option<Move> {
        self.0.lock().unwrap().push(view.flow.rate);
        let second = view.others.iter().find(|path| path.subflow == 1)?;
        Some(Move {
            to: second.subflow,
            cause: SubflowSwitch::Preferred,
            back: false,
        })
    }
}

/// What it carried on a subflow whose place another takes is nothing that it did not carry.
#[test]
fn rate_is_none_of_a_subflow_whose_place_is_taken() {
    let rates = Rates(Arc::default());
    let setup = Setup::new().accesses(2).steered(rates.clone(), [0, 0]);
    let mut t = setup.clone().two_subflows();
    for n in 0..5_u32 {
        t.at(1000 + u64::from(n) * 110);
        let (from, end) = (n * 1000 + 1, n * 1000 + 1001);
        let _ = t.server(&format!("P. {from}:{end}(1000) ack 1"));
        let _ = t.client(1, &format!(". 1:1(0) ack {end} <dss ack {end}>"));
    }
    assert_eq!(t.subflows(), ["0", "1 active"]);
    let _ = t.client(1, "R 1:1(0)");
    let _ = t.client(2, &setup.join_syn(2));
    for n in 5..8_u32 {
        t.at(1000 + u64::from(n) * 110);
        let (from, end) = (n * 1000 + 1, n * 1000 + 1001);
        let _ = t.server(&format!("P. {from}:{end}(1000) ack 1"));
    }
    let _ = t.client(2, &setup.join_third(2));
    for n in 8..11_u32 {
        t.at(1000 + u64::from(n) * 110);
        let (from, end) = (n * 1000 + 1, n * 1000 + 1001);
        let _ = t.server(&format!("P. {from}:{end}(1000) ack 1"));
    }
    let most = rates.0.lock().unwrap().iter().copied().max();
    assert!((5_000..20_000).contains(&most.unwrap()), "{rates:?}");
    let _ = (t.why(), t.moved());
}

//! What steering takes beside a choice: paths that are measured, clients that are told which are for when others fail, and
//! bytes that are counted.

use std::time::Duration;

use flexcp_translator::{
    AccessId, ActiveStandby, LoadBalancing, RoundRobin, Rule, SmallestDelay, Thresholds,
};

use crate::support::{Scenario, Setup, Shelf, millis};

/// Two subflows with timestamps, under a mode; it is 1000 ms, and nothing has been sent.
fn two(setup: Setup) -> Scenario {
    let mut t = setup.ts().two_subflows();
    let _ = (t.why(), t.moved());
    t.at(1000);
    t
}

fn standby() -> ActiveStandby {
    ActiveStandby {
        accesses: vec![AccessId(0), AccessId(1)],
    }
}

/// Packets that went to the client on flow 1.
fn on_the_second(lines: &[String]) -> Vec<String> {
    let second = lines.iter().filter(|line| line.starts_with("client1"));
    second.cloned().collect()
}

#[test]
fn path_at_rest_is_measured_by_the_echo_of_a_timestamp() {
    let mut t = two(Setup::new().steered(SmallestDelay, [100, 0]));
    let gave = t.server("P. 1:101(100) ack 1 win 64 <ts 5010 1000>");
    // The first brings a TSval, the second asks for an answer.
    assert_eq!(
        on_the_second(gave.lines()),
        [
            "client1 . 1:1(0) ack 1 win 64 <ts 5010 900000,dss ack 1>",
            "client1 . 0:0(0) ack 1 win 64 <ts 5010 900000,dss ack 1>"
        ]
    );
    let rtt = |t: &Scenario| t.view().unwrap().subflows[1].quality.rtt;
    let before = rtt(&t);
    t.at(1020);
    // What the client sent before it got those is no answer.
    let _ = t.client(1, ". 1:1(0) ack 1 win 600 <ts 900020 5000,dss ack 1>");
    assert_eq!(rtt(&t), before);
    t.at(1030);
    let _ = t.client(1, ". 1:1(0) ack 1 win 600 <ts 900030 5010,dss ack 1>");
    assert_eq!(rtt(&t), Some(Duration::from_millis(30)));
    // Once: a later echo says nothing.
    t.at(1060);
    let _ = t.client(1, ". 1:1(0) ack 1 win 600 <ts 900060 5010,dss ack 1>");
    assert_eq!(rtt(&t), Some(Duration::from_millis(30)));
    let _ = t.moved();
}

#[test]
fn path_at_rest_is_measured_once_in_a_second() {
    let mut t = two(Setup::new().steered(SmallestDelay, [100, 0]));
    let mut measured = vec![];
    for n in 0..25_u32 {
        let at = 1000 + u64::from(n) * 110;
        t.at(at);
        let (from, end) = (n * 100 + 1, n * 100 + 101);
        // Without a timestamp no packet is the fast path's.
        let gave = t.server(&format!("P. {from}:{end}(100) ack 1 win 64"));
        if !on_the_second(gave.lines()).is_empty() {
            measured.push(at);
        }
        let _ = t.client(
            0,
            &format!(
                ". 1:1(0) ack {end} win 512 <ts {} 5000,dss ack {end}>",
                1010 + n
            ),
        );
    }
    assert_eq!(measured, [1000, 2100, 3200]);
    let _ = t.moved();
}

/// Answers are packets, too: a connection that is asked again and again, for what nothing depends on, would never be idle.
#[test]
fn connection_at_rest_is_asked_nothing_and_ends_when_its_time_is_over() {
    let idle = Setup::new().timeouts(|timeouts| timeouts.idle = millis(30_000));
    let mut t = two(idle.steered(SmallestDelay, [100, 0]));
    t.fast_path(&Shelf::new(8));
    for n in 0..4_u32 {
        let (from, end) = (n * 100 + 1, n * 100 + 101);
        let _ = t.server(&format!("P. {from}:{end}(100) ack 1 win 64 <ts 5010 1000>"));
        let _ = t.client(
            0,
            &format!(". 1:1(0) ack {end} win 512 <ts 1010 5010,dss ack {end}>"),
        );
    }
    let _ = t.client(1, ". 1:1(0) ack 1 win 600 <ts 900030 5010,dss ack 401>");
    let mut asked = vec![];
    let mut now = 1000;
    while t.state() == "translating" && now < 200_000 {
        now = t.next_timeout().expect("the end of an idle connection");
        t.at(now);
        let gave = t.timeout();
        if on_the_second(gave.lines()).len() == 2 {
            asked.push(now);
            now += 30;
            t.at(now);
            let _ = t.client(
                1,
                &format!(
                    ". 1:1(0) ack 1 win 600 <ts {} 5010,dss ack 401>",
                    900_000 + now
                ),
            );
        }
    }
    // What has gone down since the mode was asked is worth one question.
    assert_eq!((asked, t.state(), now), (vec![3000], "reset", 33_030));
    let _ = (t.why(), t.moved());
}

#[test]
fn path_that_carries_data_is_measured_by_that() {
    let mut t = two(Setup::new().steered(SmallestDelay, [100, 0]));
    let _ = t.server("P. 1:101(100) ack 1 win 64 <ts 5010 1000>");
    // The echo comes late, when data is outstanding there.
    let _ = t.client(
        0,
        ". 1:1(0) ack 101 win 512 <ts 1010 5010,dss ack 101,prio b>",
    );
    let gave = t.server("P. 101:201(100) ack 1 win 64 <ts 5020 1000>");
    assert!(gave.lines()[0].starts_with("client1 P. 1:101"), "{gave:?}");
    t.at(1500);
    let _ = t.client(1, ". 1:1(0) ack 1 win 600 <ts 900020 5010,dss ack 101>");
    t.at(1520);
    let _ = t.client(1, ". 1:1(0) ack 101 win 600 <ts 900020 5020,dss ack 201>");
    let rtt = t.view().unwrap().subflows[1].quality.rtt;
    assert_eq!(rtt, Some(Duration::from_millis(520)));
    let _ = t.moved();
}

#[test]
fn modes_that_go_by_no_times_measure_none() {
    let mut t = two(Setup::new().accesses(2).steered(RoundRobin, [100, 0]));
    let gave = t.server("P. 1:101(100) ack 1 win 64 <ts 5010 1000>");
    assert_eq!(gave.lines().len(), 1, "{gave:?}");
    let _ = t.moved();
}

#[test]
fn join_of_a_standby_path_is_told_so() {
    let setup = Setup::new().accesses(2).steered(standby(), [100, 0]).ts();
    let mut t = setup.established();
    let gave = t.client(
        1,
        "S 0:0(0) win 65535 <mss 1460,sackok,ts 900000 0,ws 8,join>",
    );
    let [answer] = gave.lines() else {
        panic!("{gave:?}");
    };
    assert!(answer.contains("join id 0 b"), "{answer}");
    // And nothing more, as it is known then.
    let gave = t.client(1, ". 1:1(0) ack 1 win 512 <ts 900000 5000,join>");
    assert!(
        !gave.lines().iter().any(|line| line.contains("prio")),
        "{gave:?}"
    );
    let _ = t.moved();
}

#[test]
fn join_of_the_preferred_path_leaves_the_other_as_standby() {
    let preferred = ActiveStandby {
        accesses: vec![AccessId(1), AccessId(0)],
    };
    let setup = Setup::new().accesses(2).steered(preferred, [100, 0]).ts();
    let mut t = setup.established();
    let gave = t.client(
        1,
        "S 0:0(0) win 65535 <mss 1460,sackok,ts 900000 0,ws 8,join>",
    );
    assert!(gave.lines()[0].ends_with("join id 0>"), "{gave:?}");
    let gave = t.client(1, ". 1:1(0) ack 1 win 512 <ts 900000 5000,join>");
    let prio = "client0 . 1:1(0) ack 1 win 509 <ts 5000 1000,prio b,dss ack 1>";
    assert!(gave.lines().iter().any(|line| line == prio), "{gave:?}");
    // Nobody confirms it: it is told three times, whoever sends.
    let mut told = vec![];
    for n in 0..5_u32 {
        let at = 1000 + u64::from(n) * 110;
        t.at(at);
        let (from, end) = (n * 10 + 1, n * 10 + 11);
        let gave = t.client(
            1,
            &format!("P. {from}:{end}(10) ack 1 win 512 <ts 900010 5000,dss ack 1 map {from}:{end}@{from}>"),
        );
        if gave.lines().iter().any(|line| line.contains("prio b")) {
            told.push(at);
        }
    }
    assert_eq!(told, [1000, 1110]);
    let _ = t.moved();
}

#[test]
fn path_that_takes_over_is_told_and_so_is_the_one_that_failed() {
    let mut t = two(Setup::new().accesses(2).steered(standby(), [100, 60_000]));
    let _ = t.server("P. 1:101(100) ack 1 win 64 <ts 5010 1000>");
    t.at(1500);
    let gave = t.server("P. 1:101(100) ack 1 win 64 <ts 5510 1000>");
    assert!(gave.lines()[0].starts_with("client1 P. 1:101"), "{gave:?}");
    t.at(1700);
    let gave = t.server("P. 101:201(100) ack 1 win 64 <ts 5710 1000>");
    let prios: Vec<_> = gave
        .lines()
        .iter()
        .filter(|line| line.contains("prio"))
        .map(|line| (line.starts_with("client1"), line.contains("prio b")))
        .collect();
    assert_eq!(prios, [(false, true), (true, false)], "{gave:?}");
    // Behind the data: a client reads no options of a packet whose number is old.
    let second = on_the_second(gave.lines());
    assert!(second[0].starts_with("client1 P. 101:201"), "{second:?}");
    assert!(second[1].starts_with("client1 . 201:201(0)"), "{second:?}");
    let _ = t.moved();
}

#[test]
fn rules_that_go_take_standby_back() {
    let setup = Setup::new().accesses(2).steered(standby(), [100, 0]);
    let service = setup.service(0);
    let mut t = two(setup);
    t.configure(&[service], 1);
    let gave = t.server("P. 1:101(100) ack 1 win 64 <ts 5010 1000>");
    let told = on_the_second(gave.lines());
    assert_eq!(told.len(), 1, "{gave:?}");
    assert!(told[0].contains("prio,"), "{told:?}");
    let _ = t.moved();
}

/// The packet that comes first after the change goes by the rules that are in force then.
#[test]
fn rules_that_slight_what_the_client_wants_as_backup_hold_at_once() {
    let mut setup = Setup::new().accesses(2).steered(RoundRobin, [100, 0]);
    let service = setup.service(0);
    // The first connection's turn is the second path.
    let mut t = two(setup.clone());
    let prio = ". 1:1(0) ack 1 win 600 <ts 900010 5000,dss ack 1,prio b>";
    let _ = t.client(1, prio);
    setup.change_rule(|rule: &mut Rule| rule.heeds_backup = false);
    t.configure_with(&[service], &setup, 1);
    let gave = t.server("P. 1:101(100) ack 1 win 64 <ts 5010 1000>");
    assert!(gave.lines()[0].starts_with("client1 P."), "{gave:?}");
    let _ = t.moved();
}

#[test]
fn rule_may_slight_what_the_client_wants_as_backup() {
    for heeds in [true, false] {
        let mut setup = Setup::new().accesses(2).steered(RoundRobin, [100, 0]);
        setup.change_rule(|rule: &mut Rule| rule.heeds_backup = heeds);
        // The first connection's turn is the second path.
        let mut t = two(setup);
        let _ = t.client(
            1,
            ". 1:1(0) ack 1 win 600 <ts 900010 5000,dss ack 1,prio b>",
        );
        let gave = t.server("P. 1:101(100) ack 1 win 64 <ts 5010 1000>");
        let active = if heeds { "client0" } else { "client1" };
        assert!(gave.lines()[0].starts_with(active), "{gave:?}");
        let _ = t.moved();
    }
}

#[test]
fn path_that_a_rule_takes_against_the_clients_wish_is_installed() {
    let mut setup = Setup::new().accesses(2).steered(RoundRobin, [100, 0]);
    setup.change_rule(|rule: &mut Rule| rule.heeds_backup = false);
    let mut t = two(setup);
    let _ = t.server(". 1:101(100) ack 1 win 64 <ts 5000 1000>");
    let _ = t.client(0, ". 1:1(0) ack 1 win 512 <ts 1010 5000,dss ack 101>");
    let _ = t.client(
        1,
        ". 1:1(0) ack 101 win 600 <ts 900010 5000,dss ack 101,prio b>",
    );
    let _ = t.client(1, ". 1:1(0) ack 101 win 610 <ts 900011 5000,dss ack 101>");
    let [entry] = t.installed()[..] else {
        panic!("not installed");
    };
    assert_eq!(entry.active, 1);
    let _ = t.moved();
}

#[test]
fn answer_to_a_join_says_the_same_when_it_is_repeated() {
    let mut t = two(Setup::new().accesses(3).steered(standby(), [100, 60_000]));
    let syn = "S 0:0(0) win 65535 <mss 1460,sackok,ts 800000 0,ws 8,join>";
    let gave = t.client(2, syn);
    assert!(gave.lines()[0].contains("join id 0 b"), "{gave:?}");
    // The active path fails meanwhile, and the clients hear of that.
    let _ = t.server("P. 1:101(100) ack 1 win 64 <ts 5010 1000>");
    t.at(1500);
    let _ = t.server("P. 1:101(100) ack 1 win 64 <ts 5510 1000>");
    t.at(1700);
    let gave = t.server("P. 101:201(100) ack 1 win 64 <ts 5710 1000>");
    assert!(
        gave.lines().iter().any(|line| line.contains("prio")),
        "{gave:?}"
    );
    let gave = t.client(2, syn);
    assert!(gave.lines()[0].contains("join id 0 b"), "{gave:?}");
    let _ = t.moved();
}

fn halves(max_rtt: Option<u64>) -> LoadBalancing {
    LoadBalancing {
        weights: vec![(AccessId(0), 1), (AccessId(1), 1)],
        thresholds: Thresholds {
            rtt: max_rtt.map(Duration::from_millis),
            loss: None,
        },
    }
}

#[test]
fn flow_entry_has_an_account_and_the_patience_of_the_mode() {
    let setup = Setup::new()
        .accesses(2)
        .steered(halves(Some(80)), [1000, 0]);
    let mut t = two(setup);
    let _ = t.server(". 1:101(100) ack 1 win 64 <ts 5000 1000>");
    let _ = t.client(0, ". 1:1(0) ack 101 win 512 <ts 1000 5000,dss ack 101>");
    let _ = t.client(1, ". 1:1(0) ack 1 win 600 <ts 900000 5000,dss ack 101>");
    let [entry] = t.installed()[..] else {
        panic!("not installed");
    };
    assert_eq!((entry.account, entry.patience), (2, 80_000));
    let _ = t.moved();
}

#[test]
fn bytes_of_a_connection_with_one_path_are_on_no_account() {
    let setup = Setup::new()
        .accesses(2)
        .steered(halves(Some(80)), [1000, 0]);
    let shelf = Shelf::new(8);
    let mut t = setup.ts().established();
    t.fast_path(&shelf);
    for n in 0..30_u32 {
        let (from, end) = (n * 100 + 1, n * 100 + 101);
        let _ = t.server(&format!("P. {from}:{end}(100) ack 1 win 64 <ts 5010 1000>"));
    }
    let [entry] = shelf.entries()[..] else {
        panic!("{:?}", shelf.entries());
    };
    assert_eq!((entry.account, entry.patience), (0, 0));
    let _ = t.moved();
}

/// The server sends a kilobyte every 100 ms, and the client ACKs it 20 ms later: how many went down flow 0 and flow 1. No
/// timestamps: what is installed is asked less often, and would go elsewhere.
fn split(t: &mut Scenario, packets: u32) -> [u32; 2] {
    let mut counts = [0; 2];
    let mut next = [1, 1];
    for n in 0..packets {
        let at = 1000 + u64::from(n) * 100;
        t.at(at);
        let (from, end) = (n * 1000 + 1, n * 1000 + 1001);
        let gave = t.server(&format!("P. {from}:{end}(1000) ack 1"));
        let flow = usize::from(gave.lines()[0].starts_with("client1"));
        counts[flow] += 1;
        next[flow] += 1000;
        t.at(at + 20);
        let ack = next[flow];
        let _ = t.client(flow, &format!(". 1:1(0) ack {ack} win 600 <dss ack {end}>"));
    }
    counts
}

#[test]
fn connection_alone_shares_its_bytes_out_in_time() {
    let setup = Setup::new().accesses(2).steered(halves(None), [1000, 0]);
    let mut t = setup.two_subflows();
    let _ = (t.why(), t.moved());
    let counts = split(&mut t, 600);
    let [one, two] = counts;
    assert!(one.abs_diff(two) <= 60, "{counts:?}");
    let why = t.why();
    let moves: u32 = why
        .strip_prefix("subflow_switch.balance+")
        .and_then(|count| count.parse().ok())
        .unwrap_or_else(|| panic!("{why}"));
    // No more than once in its hold time, and seldom: bytes to come count.
    assert!((4..=30).contains(&moves), "{moves}");
    let _ = t.moved();
}

/// A packet on flow 0 got lost, and the connection had to go on over flow 1, where a round trip takes 100 ms.
fn on_a_bad_path() -> Scenario {
    let setup = Setup::new()
        .accesses(2)
        .steered(halves(Some(80)), [1000, 0]);
    let mut t = setup.two_subflows();
    t.at(1000);
    let _ = t.server("P. 1:101(100) ack 1");
    t.at(1010);
    let _ = t.client(0, ". 1:1(0) ack 101 <dss ack 101>");
    t.at(1020);
    let _ = t.server("P. 101:201(100) ack 1");
    t.at(1400);
    let again = t.server("P. 101:201(100) ack 1");
    assert!(again.lines()[0].starts_with("client1"), "{again:?}");
    t.at(1500);
    let _ = t.client(1, ". 1:1(0) ack 101 <dss ack 201>");
    let gave = t.server("P. 201:301(100) ack 1");
    assert!(gave.lines()[0].starts_with("client1"), "{gave:?}");
    // Filler has come through, and the path works again.
    let _ = t.client(0, ". 1:1(0) ack 201 <dss ack 201>");
    t
}

/// The same connection, whose mode has led it back to flow 0.
fn back_from_a_bad_path() -> Scenario {
    let mut t = on_a_bad_path();
    t.at(1600);
    let _ = t.client(1, ". 1:1(0) ack 201 <dss ack 301>");
    t.at(1720);
    let gave = t.server("P. 301:401(100) ack 1");
    assert!(gave.lines()[0].starts_with("client0"), "{gave:?}");
    assert_eq!(
        t.why(),
        "subflow_switch.failed+1 subflow_switch.congested+1"
    );
    let _ = t.moved();
    t
}

#[test]
fn connection_that_had_no_choice_leaves_a_bad_path_within_the_hold_time() {
    let _ = back_from_a_bad_path();
}

#[test]
fn path_is_left_later_for_one_that_the_mode_does_not_take() {
    let mut t = back_from_a_bad_path();
    t.at(1740);
    let _ = t.client(0, ". 1:1(0) ack 301 <dss ack 401>");
    t.at(2000);
    let _ = t.server("P. 401:501(100) ack 1");
    for (at, flow) in [(2220, "client0"), (2290, "client0"), (2500, "client1")] {
        t.at(at);
        let gave = t.server("P. 401:501(100) ack 1");
        assert!(gave.lines()[0].starts_with(flow), "{at}: {gave:?}");
    }
    assert_eq!(
        t.why(),
        "subflow_switch.failed+2 subflow_switch.congested+1"
    );
    let _ = t.moved();
}

#[test]
fn path_is_left_later_for_one_on_which_data_is_missing_that_the_mode_does_not_take() {
    let mut t = on_a_bad_path();
    t.at(1590);
    let gave = t.server("P. 301:401(100) ack 1");
    assert!(gave.lines()[0].starts_with("client1"), "{gave:?}");
    t.at(1600);
    let _ = t.client(1, ". 1:1(0) ack 201 <dss ack 301>");
    t.at(1720);
    let gave = t.server("P. 401:501(100) ack 1");
    assert!(gave.lines()[0].starts_with("client0"), "{gave:?}");
    t.at(1740);
    // The data ACK has passed what went down flow 1; the ACK of flow 1 itself is still to come.
    let _ = t.client(0, ". 1:1(0) ack 301 <dss ack 501>");
    t.at(2000);
    let _ = t.server("P. 501:601(100) ack 1");
    for (at, flow) in [(2220, "client0"), (2290, "client0"), (2500, "client1")] {
        t.at(at);
        let gave = t.server("P. 501:601(100) ack 1");
        assert!(gave.lines()[0].starts_with(flow), "{at}: {gave:?}");
    }
    assert_eq!(
        t.why(),
        "subflow_switch.failed+2 subflow_switch.congested+1"
    );
    let _ = t.moved();
}

/// One answer that comes late is an accident, unless others have left the access.
#[test]
fn one_late_answer_does_not_make_a_path_bad() {
    let setup = Setup::new()
        .accesses(2)
        .steered(halves(Some(80)), [1000, 0]);
    let mut t = setup.two_subflows();
    let _ = (t.why(), t.moved());
    let mut at = 1000;
    for (n, late) in [20, 20, 20, 300].into_iter().enumerate() {
        let (from, end) = (n * 100 + 1, n * 100 + 101);
        t.at(at);
        let gave = t.server(&format!("P. {from}:{end}(100) ack 1"));
        assert!(gave.lines()[0].starts_with("client0"), "{n}: {gave:?}");
        t.at(at + late);
        let _ = t.client(0, &format!(". 1:1(0) ack {end} win 600 <dss ack {end}>"));
        at += late + 100;
    }
    t.at(at);
    let gave = t.server("P. 401:501(100) ack 1");
    assert!(gave.lines()[0].starts_with("client0"), "{gave:?}");
    assert_eq!(t.why(), "");
    let _ = t.moved();
}

//! Policies over tables, and the hysteresis.

use std::time::Duration;

use flexcp_location::{
    Basis, Cause, Chooser, Estimate, Fixed, Latency, Leg, Margin, PathRow, Policy, Probing, Rate,
    Reach, ServerRow, Table, Throughput, Time,
};

const HOLD: Duration = Duration::from_secs(30);

fn mbit(tenths: u64) -> Rate {
    Rate::from_kbit(tenths * 100)
}

/// A server with rates over two uplinks and of its own, in tenths of Mbit/s, and a delay in milliseconds.
fn row(name: &str, rates: [u64; 2], own: Option<u64>, delay: u64) -> ServerRow {
    let path = |rate| PathRow {
        is_usable: true,
        is_alive: Some(true),
        delay: Some(Duration::from_millis(delay)),
        down: Some(Estimate {
            rate: mbit(rate),
            basis: Basis::Trains,
            at: Time::ZERO,
        }),
        ..PathRow::default()
    };
    ServerRow {
        name: name.into(),
        paths: rates.map(path).to_vec(),
        leg: own.map(|own| Leg {
            rate: Some(mbit(own)),
            delay: None,
        }),
        leg_at: None,
        reach: Reach::Yes,
        probing: Probing::Answers,
    }
}

fn table(servers: Vec<ServerRow>) -> Table {
    Table {
        uplinks: vec!["dsl0".into(), "lte0".into()],
        servers,
        is_complete: true,
    }
}

fn chooser() -> Chooser {
    Chooser::new(Box::new(Throughput::default()), Margin(100), HOLD)
}

fn at(secs: u64) -> Time {
    Time::from_secs(secs)
}

#[test]
fn the_smaller_of_sum_and_own_leg_counts() {
    let servers = vec![
        row("a", [300, 341], Some(400), 10),
        row("b", [200, 241], Some(900), 90),
        row("c", [100, 100], None, 1),
    ];
    assert_eq!(servers[0].throughput(), Some(mbit(400)));
    assert_eq!(servers[1].throughput(), Some(mbit(441)));
    assert_eq!(servers[2].throughput(), Some(mbit(200)));
    assert_eq!(Throughput::default().rank(&table(servers)), [1, 0, 2]);
}

#[test]
fn delay_decides_between_rates_within_the_tolerance() {
    // 50.0, 48.0 and 46.0: the last is within five percent of the second, but not of the first.
    let servers = vec![
        row("a", [460, 0], None, 1),
        row("b", [480, 0], None, 20),
        row("c", [500, 0], None, 30),
    ];
    assert_eq!(
        Throughput::default().rank(&table(servers.clone())),
        [1, 2, 0]
    );
    assert_eq!(
        Throughput { tolerance: 0 }.rank(&table(servers.clone())),
        [2, 1, 0]
    );
    assert_eq!(
        Throughput { tolerance: 90 }.rank(&table(servers)),
        [0, 1, 2]
    );
}

#[test]
fn what_is_not_known_comes_last_and_a_dead_path_counts_nothing() {
    let mut servers = vec![
        row("a", [0, 0], None, 1),
        row("b", [300, 200], None, 50),
        row("c", [100, 100], None, 50),
    ];
    for path in &mut servers[0].paths {
        path.down = None;
    }
    servers[1].paths[0].is_alive = Some(false);
    servers[1].paths[1].is_usable = false;
    assert_eq!(servers[1].throughput(), None);
    assert_eq!(servers[1].delay(), None);
    assert_eq!(Throughput::default().rank(&table(servers)), [2, 0, 1]);
}

#[test]
fn latency_goes_by_delay_and_then_by_rate() {
    let servers = vec![
        row("a", [900, 0], None, 40),
        row("b", [100, 0], None, 20),
        row("c", [200, 0], None, 22),
    ];
    assert_eq!(Latency.rank(&table(servers.clone())), [2, 1, 0]);
    assert_eq!(Fixed.rank(&table(servers)), [0, 1, 2]);
}

#[test]
fn a_better_server_is_used_after_a_hold_time_and_not_before() {
    let mut chooser = chooser();
    let first = table(vec![
        row("a", [400, 0], None, 9),
        row("b", [300, 0], None, 9),
    ]);
    let begin = chooser.update(&first, at(0)).unwrap();
    assert_eq!((begin.from, begin.to), (None, 0));
    let later = table(vec![
        row("a", [400, 0], None, 9),
        row("b", [441, 0], None, 9),
    ]);
    assert_eq!(chooser.update(&later, at(100)), None);
    assert_eq!(chooser.poll_timeout(), Some(at(130)));
    assert_eq!(chooser.update(&later, at(129)), None);
    assert_eq!(chooser.order(), [0, 1]);
    let switch = chooser.update(&later, at(130)).unwrap();
    assert_eq!((switch.from, switch.to), (Some(0), 1));
    assert_eq!(switch.reason.cause, Cause::Better(HOLD));
    assert_eq!(chooser.order(), [1, 0]);
    assert_eq!(chooser.poll_timeout(), None);
}

#[test]
fn being_better_with_a_break_begins_anew() {
    let mut chooser = chooser();
    let low = table(vec![
        row("a", [400, 0], None, 9),
        row("b", [430, 0], None, 9),
    ]);
    let high = table(vec![
        row("a", [400, 0], None, 9),
        row("b", [450, 0], None, 9),
    ]);
    chooser.update(
        &table(vec![row("a", [400, 0], None, 9), row("b", [1, 0], None, 9)]),
        at(0),
    );
    assert_eq!(chooser.update(&high, at(100)), None);
    assert_eq!(
        chooser.update(&low, at(120)),
        None,
        "7 percent are less than the margin"
    );
    assert_eq!(chooser.update(&high, at(125)), None);
    assert_eq!(chooser.update(&high, at(154)), None);
    assert!(chooser.update(&high, at(155)).is_some());
}

#[test]
fn no_switch_follows_another_within_a_hold_time() {
    let mut chooser = chooser();
    let to_b = table(vec![
        row("a", [400, 0], None, 9),
        row("b", [800, 0], None, 9),
    ]);
    let to_a = table(vec![
        row("a", [800, 0], None, 9),
        row("b", [400, 0], None, 9),
    ]);
    chooser.update(&to_a, at(0));
    let mut switches = Vec::new();
    for second in 1..1000 {
        let table = if second / 31 % 2 == 0 { &to_b } else { &to_a };
        if chooser.update(table, at(second)).is_some() {
            switches.push(second);
        }
    }
    assert!(switches.len() > 5, "{switches:?}");
    assert!(
        switches.windows(2).all(|pair| pair[1] - pair[0] >= 30),
        "{switches:?}"
    );
}

#[test]
fn one_that_cannot_be_reached_is_left_at_once_and_is_the_last() {
    let mut chooser = chooser();
    let mut servers = vec![
        row("a", [400, 0], None, 9),
        row("b", [200, 0], None, 9),
        row("c", [300, 0], None, 9),
    ];
    chooser.update(&table(servers.clone()), at(0));
    servers[0].reach = Reach::No;
    let switch = chooser.update(&table(servers.clone()), at(1)).unwrap();
    assert_eq!(switch.to, 2);
    assert_eq!(chooser.order(), [2, 1, 0]);
    servers[2].reach = Reach::No;
    assert_eq!(
        chooser.update(&table(servers.clone()), at(2)).unwrap().to,
        1
    );
    servers[1].reach = Reach::No;
    // There is nobody to go to.
    assert_eq!(
        chooser
            .update(&table(servers), at(3))
            .map(|switch| switch.to),
        Some(0)
    );
    assert_eq!(chooser.order(), [0, 2, 1]);
}

#[test]
fn until_all_are_measured_the_order_of_the_configuration_holds() {
    let mut chooser = chooser();
    let mut first = table(vec![row("a", [1, 0], None, 9), row("b", [800, 0], None, 9)]);
    first.is_complete = false;
    assert_eq!(chooser.update(&first, at(0)).unwrap().to, 0);
    assert_eq!(chooser.update(&first, at(1)), None);
    first.is_complete = true;
    let switch = chooser.update(&first, at(2)).unwrap();
    assert_eq!((switch.to, switch.reason.cause), (1, Cause::Measured));
}

#[test]
fn reasons_are_plain_sentences() {
    let fsn = || row("hetzner-fsn", [341, 300], Some(473), 20);
    let said = |servers: Vec<ServerRow>| {
        let mut chooser = chooser();
        chooser.update(&table(servers), at(0));
        chooser.reason().unwrap().to_string()
    };
    assert_eq!(
        said(vec![fsn(), row("ovh-gra", [200, 180], Some(900), 10)]),
        "hetzner-fsn: 47.3 Mbit/s = min(64.1 over dsl0+lte0, 47.3 of its own), next is ovh-gra with 38.0 Mbit/s"
    );
    assert_eq!(
        said(vec![fsn(), row("ovh-gra", [280, 180], Some(900), 32)]),
        "hetzner-fsn: 47.3 Mbit/s = min(64.1 over dsl0+lte0, 47.3 of its own), next is ovh-gra with 46.0 Mbit/s, \
         which counts as equal, but is 12.0 ms farther"
    );
    let mut unknown = row("home", [100, 0], None, 20);
    unknown.paths[1].down = None;
    assert_eq!(
        said(vec![unknown.clone()]),
        "home: 10.0 Mbit/s over dsl0, lte0 not measured (its own leg is not known)"
    );
    unknown.paths[0].down = None;
    assert_eq!(said(vec![unknown]), "home: no rate is known, 20.0 ms");
}

/// Prefers servers by the length of their name.
#[derive(Debug)]
struct Shortest;

impl Policy for Shortest {
    fn name(&self) -> &'static str {
        "shortest"
    }

    fn rank(&self, table: &Table) -> Vec<usize> {
        let mut order: Vec<usize> = (0..table.servers.len()).collect();
        order.sort_by_key(|&at| table.servers[at].name.len());
        order
    }

    fn is_better(&self, candidate: &ServerRow, current: &ServerRow, _: Margin) -> bool {
        candidate.name.len() < current.name.len()
    }

    fn explain(&self, table: &Table, server: usize, _: Option<usize>) -> String {
        format!("{}: its name is short", table.servers[server].name)
    }
}

#[test]
fn another_policy_can_be_plugged_in() {
    let mut chooser = Chooser::new(Box::new(Shortest), Margin(0), HOLD);
    chooser.update(
        &table(vec![
            row("long", [1, 1], None, 1),
            row("b", [1, 1], None, 1),
        ]),
        at(0),
    );
    assert_eq!(
        (chooser.order(), chooser.policy()),
        (&[1, 0][..], "shortest")
    );
    assert_eq!(
        chooser.reason().unwrap().to_string(),
        "b: its name is short"
    );
}

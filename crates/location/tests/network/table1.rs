//! Table 1 of the T-MPTCP paper: five servers, two uplinks.

use std::time::Duration;

use flexcp_location::{Leg, Rate, Time};

use crate::link::Link;
use crate::random::Random;
use crate::world::{World, config, mbit};

/// `B1, D1, B2, D2, Bs, Ds`, in hundredths of Mbit/s and of milliseconds, and the throughput that the paper measured.
const TABLE: [([u64; 6], u64); 5] = [
    ([2189, 5337, 1345, 9175, 9280, 4264], 2438),
    ([2263, 4460, 1538, 6434, 9840, 3605], 2845),
    ([2757, 5397, 1975, 6766, 5631, 2750], 3689),
    ([138, 4367, 1391, 5745, 3631, 3819], 1303),
    ([510, 11315, 1290, 17958, 6328, 3690], 1702),
];

/// The paper's prediction and its measurement: 3, 2, 1, 5, 4.
const ORDER: [usize; 5] = [2, 1, 0, 4, 3];

fn millis(hundredths: u64) -> Duration {
    Duration::from_micros(hundredths * 10)
}

/// A path whose direction down is as the table has it; up has a quarter of that.
fn path(rate: u64, delay: u64) -> [Link; 2] {
    let way = millis(delay) / 2;
    let mut links = [Link::new(mbit(rate / 4), way), Link::new(mbit(rate), way)];
    for link in &mut links {
        link.depth = 16_000;
        link.jitter = Duration::from_micros(300);
        link.loss = 1;
    }
    links
}

pub(crate) fn table1() -> Vec<(Vec<[Link; 2]>, Leg)> {
    let row = |&([b1, d1, b2, d2, bs, ds], _): &([u64; 6], u64)| {
        let leg = Leg {
            rate: Some(mbit(bs)),
            delay: Some(millis(ds)),
        };
        (vec![path(b1, d1), path(b2, d2)], leg)
    };
    TABLE.iter().map(row).collect()
}

#[test]
fn server_3_is_picked_and_the_measured_order_is_the_predicted_one() {
    let mut world = World::new(config(5, 2), table1(), 1);
    world.run(180);
    let table = world.locator.table(world.now);
    for (row, (figures, _)) in table.servers.iter().zip(TABLE) {
        let sum = mbit(figures[0] + figures[2]);
        println!(
            "{}: sum {} of {sum}, own {}",
            row.name,
            row.sum().unwrap(),
            row.own_rate().unwrap()
        );
        assert!(is_near(row.sum().unwrap(), sum, 30), "{}", row.name);
        assert_eq!(row.own_rate(), Some(mbit(figures[4])));
        let nearest = millis(figures[1].min(figures[3]) + figures[5]);
        let delay = row.delay().unwrap();
        assert!(
            delay >= nearest && delay < nearest + Duration::from_millis(3),
            "{delay:?}"
        );
    }
    assert_eq!(world.measured_order(), ORDER);
    assert_eq!(world.locator.order(), ORDER);
    let reason = world.locator.reason().unwrap().to_string();
    println!("{reason}");
    assert!(reason.starts_with("server3: 4"), "{reason}");
    assert!(
        reason.contains(" over dsl0+lte0, 56.3 of its own), next is server2 with 3"),
        "{reason}"
    );
    println!(
        "probe bytes of 3 minutes: {}",
        world.locator.counters().bytes
    );
}

/// The paper's own measurement has the order of its prediction.
#[test]
fn the_papers_throughputs_have_the_predicted_order() {
    let mut measured: Vec<usize> = (0..5).collect();
    measured.sort_by_key(|&at| std::cmp::Reverse(TABLE[at].1));
    assert_eq!(measured, ORDER);
    let predicted = |at: usize| {
        let [b1, _, b2, _, bs, _] = TABLE[at].0;
        (b1 + b2).min(bs)
    };
    let mut order: Vec<usize> = (0..5).collect();
    order.sort_by_key(|&at| std::cmp::Reverse(predicted(at)));
    assert_eq!(order, ORDER);
}

/// A download of 20 MB over the same links: each packet comes over the server's leg and takes the uplink that has it out
/// first.
#[test]
fn downloads_over_the_links_have_the_measured_order() {
    let mut rates = Vec::new();
    for (mut links, leg) in table1() {
        let mut dice = Random::new(5);
        let mut own = Link::new(leg.rate.unwrap(), Duration::ZERO);
        for pair in &mut links {
            pair[1].queue = Duration::from_secs(3600);
            pair[1].loss = 0;
        }
        let (mut last, mut now) = (Time::ZERO, Time::ZERO);
        own.queue = Duration::from_secs(3600);
        for _ in 0..16_000 {
            now = own.send(now, 1250, &mut dice).unwrap();
            let out = links.iter().enumerate().map(|(at, pair)| {
                let mut copy = pair[1].clone();
                (copy.send(now, 1250, &mut dice.clone()).unwrap(), at)
            });
            let (_, uplink) = out.min().unwrap();
            last = last.max(links[uplink][1].send(now, 1250, &mut dice).unwrap());
        }
        rates.push(Rate::of(20_000_000, last.since(Time::ZERO)).unwrap());
    }
    let mut order: Vec<usize> = (0..5).collect();
    order.sort_by_key(|&at| std::cmp::Reverse(rates[at]));
    println!("{rates:?}");
    assert_eq!(order, ORDER);
}

pub(crate) fn is_near(is: Rate, wanted: Rate, thousandths: u64) -> bool {
    is.0.abs_diff(wanted.0) * 1000 <= wanted.0 * thousandths
}

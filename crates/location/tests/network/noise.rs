//! Stable paths with noise: few switches, and bytes within the bound.

use std::net::SocketAddr;
use std::time::Duration;

use flexcp_location::probe::{Key, LONGEST};
use flexcp_location::{Fixed, Leg, Locator, Time};

use crate::link::Link;
use crate::table1::table1;
use crate::world::{World, config, mbit, octet, responder};

/// Sums of 40, 42 and 44 Mbit/s, under traffic of others, jitter and loss.
fn alike() -> Vec<(Vec<[Link; 2]>, Leg)> {
    let path = |rate: u64, delay: u64| {
        let mut links =
            [mbit(rate / 2), mbit(rate)].map(|rate| Link::new(rate, Duration::from_millis(delay)));
        for link in &mut links {
            link.depth = 10_000;
            link.jitter = Duration::from_millis(2);
            link.loss = 10;
            link.others = 200;
        }
        links
    };
    let leg = Leg {
        rate: Some(mbit(9000)),
        delay: Some(Duration::from_millis(20)),
    };
    [(2500, 1500), (2600, 1600), (2700, 1700)]
        .map(|(first, second)| (vec![path(first, 15), path(second, 25)], leg))
        .to_vec()
}

#[test]
fn at_most_one_switch_in_a_hold_time_on_stable_but_noisy_paths() {
    let hold = config(3, 2).hold;
    let (mut total, mut most) = (0, 0);
    for seed in 0..100 {
        let mut world = World::new(config(3, 2), alike(), seed);
        world.run(900);
        let switches: Vec<Time> = world.switches().iter().map(|&(at, _)| at).collect();
        for pair in switches.windows(2) {
            assert!(pair[1].since(pair[0]) >= hold, "seed {seed}: {switches:?}");
        }
        total += switches.len();
        most = most.max(switches.len());
        // In 30 hold times.
        assert!(switches.len() <= 6, "seed {seed}: {switches:?}");
    }
    println!("100 runs of 15 minutes: {total} switches, {most} at most in one run");
    assert!(
        total <= 200,
        "{total}: the first one of each run is the choice by the first measurement"
    );
}

#[test]
fn the_bytes_of_any_hour_are_within_the_bound() {
    for budget in [4 << 20, 16 << 20, 64 << 20] {
        let mut config = config(5, 2);
        config.bytes_per_hour = budget;
        config.server_bytes_per_hour = budget / 3;
        let mut world = World::new(config, table1(), 11);
        world.run(120);
        // A small budget is shared out: no path takes what others need to be known at all.
        assert!(world.locator.table(world.now).is_complete);
        assert_eq!(world.locator.order()[0], 2);
        world.run(3 * 3600);
        let worst = world.worst_hour();
        let counted = world.locator.counters().bytes;
        let carried: u64 = world.carried.iter().map(|&(_, bytes)| bytes).sum();
        println!(
            "{budget} bytes an hour allowed: {worst} in the worst, a round each {:?}",
            world.locator.interval(),
        );
        assert!(worst <= budget, "{worst}");
        assert!(carried <= counted, "{carried} bytes, {counted} counted");
        assert!(
            worst * 4 >= budget,
            "{worst} bytes of {budget}: the budget is not used"
        );
        assert_eq!(world.locator.order()[0], 2);
        // Nobody is left behind.
        let longest = world.locator.interval() * 3;
        for row in &world.locator.table(world.now).servers {
            for path in &row.paths {
                assert!(
                    world.now.since(path.delay_at.unwrap()) < longest,
                    "{}",
                    row.name
                );
                assert!(
                    world.now.since(path.down.unwrap().at) < longest,
                    "{}",
                    row.name
                );
            }
        }
    }
}

#[test]
fn a_budget_for_hardly_anything_is_kept_too() {
    let mut links = table1();
    for (paths, _) in &mut links {
        paths.push(paths[0].clone());
    }
    let mut config = config(5, 3);
    config.interval = Duration::from_secs(10);
    config.bytes_per_hour = 80_000;
    config.server_bytes_per_hour = 80_000;
    let mut world = World::new(config, links, 3);
    world.run(3 * 3600);
    let worst = world.worst_hour();
    let up: u64 = world.hosts.iter().map(|host| host.bytes_in).sum();
    let down: u64 = world.hosts.iter().map(|host| host.bytes_out).sum();
    println!("80000 bytes an hour allowed: {worst} in the worst; {up} up, {down} down");
    // No train is begun that cannot be paid for with its answer.
    assert!(down * 100 >= up * 98, "{up} up, {down} down");
    assert!((20_000..=80_000).contains(&worst), "{worst}");
    assert!(world.locator.counters().starved > 0);
}

/// Two trains begin at a time, and each would have been paid for alone.
#[test]
fn two_trains_at_a_time_keep_the_budget() {
    let mut config = config(2, 2);
    config.bytes_per_hour = 80_000;
    config.server_bytes_per_hour = 80_000;
    let mut locator = Locator::new(config, Box::new(Fixed), 1).unwrap();
    let mut hosts = [1, 2].map(|key| responder(Key::new(&[key; 32]).unwrap(), 1));
    let mut now = Time::from_secs(1);
    for at in 0..2 {
        locator.set_path(at, at, true, now);
    }
    locator.activity(now);
    let (mut out, mut trains) = ([0; LONGEST], [0; 2]);
    for _ in 0..6 {
        locator.handle_timeout(now);
        let mut answers = Vec::new();
        while let Some(sent) = locator.poll_transmit(now, &mut out) {
            trains[sent.server] += usize::from(sent.length == 1200);
            let from = SocketAddr::from(([198, 51, 100, 10 + octet(sent.uplink)], 40_000));
            let host = &mut hosts[sent.server];
            let datagram = out[..sent.length].to_vec();
            host.handle_datagram(from, &datagram, now, now).unwrap();
            while let Some((_, length)) = host.poll_transmit(&mut out) {
                answers.push((sent.server, sent.uplink, out[..length].to_vec()));
            }
        }
        now = now + Duration::from_millis(10);
        for (server, uplink, answer) in answers {
            let _ = locator.handle_datagram((server, uplink), &answer, now, now);
        }
    }
    assert!(trains[0] > 0 && trains[1] > 0, "{trains:?}");
    let counters = locator.counters();
    assert!(counters.bytes <= 80_000, "{counters:?}");
    assert!(counters.starved > 0);
}

#[test]
fn a_path_that_had_no_bytes_is_measured_once_there_are_some() {
    let mut config = config(5, 2);
    config.bytes_per_hour = 400_000;
    config.server_bytes_per_hour = 400_000;
    let mut world = World::new(config, table1(), 3);
    world.run(3300);
    let missing = |world: &World| {
        let servers = world.locator.table(world.now).servers;
        let paths = servers.iter().flat_map(|row| &row.paths);
        paths.filter(|path| path.down.is_none()).count()
    };
    assert!(missing(&world) > 0, "the first hour's bytes do not suffice");
    world.run(600);
    assert_eq!(missing(&world), 0);
    assert!(world.worst_hour() <= 400_000);
}

#[test]
fn the_bytes_for_one_server_are_bounded_too() {
    let mut config = config(2, 2);
    config.server_bytes_per_hour = 1 << 20;
    let mut world = World::new(config, table1()[..2].to_vec(), 11);
    world.run(3600);
    for host in &world.hosts {
        assert!(host.bytes_in + host.bytes_out <= 1 << 20);
        assert!(host.bytes_in > 100_000);
    }
}

#[test]
fn nothing_is_probed_without_connections() {
    let mut world = World::new(config(5, 2), table1(), 1);
    world.run(300);
    world.is_busy = false;
    // The last connection was just there, and rounds that have begun end.
    world.run(650);
    world.carried.clear();
    world.run(3 * 3600);
    assert_eq!(world.carried.len(), 0);
    assert_eq!(world.locator.order()[0], 2, "what was known holds");
    world.is_busy = true;
    world.run(10);
    assert!(
        world.carried.len() > 100,
        "the first connection has all probed"
    );
}

//! Paths and legs that change: the choice is right again within two intervals.

use std::time::Duration;

use flexcp_location::{Rate, Time};

use crate::table1::table1;
use crate::world::{World, config, mbit};

const INTERVAL: u64 = 60;

/// Runs until this server is used, and says after how long.
fn until_used(world: &mut World, server: usize) -> Duration {
    let begin = world.now;
    let end = begin + Duration::from_secs(10 * INTERVAL);
    let at = world.run_until(end, |world| world.locator.order()[0] == server);
    at.unwrap_or(Time(u64::MAX)).since(begin)
}

#[test]
fn the_choice_is_right_again_within_two_intervals_after_a_bandwidth_changes() {
    let mut worst = Duration::ZERO;
    for seed in 0..20 {
        let mut world = World::new(config(5, 2), table1(), seed);
        // The change comes anywhere in an interval.
        world.run(300 + seed * 3);
        assert_eq!(world.locator.order()[0], 2, "seed {seed}");
        world.hosts[2].links[0][1].rate = mbit(500);
        let took = until_used(&mut world, 1);
        worst = worst.max(took);
        assert!(
            took <= Duration::from_secs(2 * INTERVAL),
            "seed {seed}: {took:?}"
        );
        world.run(200);
        assert_eq!(world.locator.order()[0], 1, "seed {seed}");
        world.hosts[2].links[0][1].rate = mbit(2757);
        let took = until_used(&mut world, 2);
        worst = worst.max(took);
        assert!(
            took <= Duration::from_secs(2 * INTERVAL),
            "seed {seed}: back after {took:?}"
        );
    }
    println!("right again after {worst:?} at most, with an interval of {INTERVAL} s");
}

#[test]
fn the_choice_is_right_again_within_two_intervals_after_a_leg_changes() {
    for seed in 0..20 {
        let mut world = World::new(config(5, 2), table1(), seed);
        world.run(300 + seed * 3);
        world.hosts[2].leg.rate = Some(Rate::from_kbit(20_000));
        let took = until_used(&mut world, 1);
        assert!(
            took <= Duration::from_secs(2 * INTERVAL),
            "seed {seed}: {took:?}"
        );
    }
}

#[test]
fn a_round_that_was_disturbed_once_changes_nothing() {
    let mut world = World::new(config(5, 2), table1(), 3);
    world.run(300);
    let before = world.switches().len();
    // One round over one path sees a fifth of the bandwidth, and no longer.
    let measured = |world: &World| world.locator.table(world.now).servers[2].paths[0].delay_at;
    let first = measured(&world);
    world.hosts[2].links[0][1].rate = mbit(500);
    let end = world.now + Duration::from_secs(2 * INTERVAL);
    world
        .run_until(end, |world| measured(world) != first)
        .unwrap();
    world.hosts[2].links[0][1].rate = mbit(2757);
    world.run(300);
    assert_eq!(world.switches().len(), before);
}

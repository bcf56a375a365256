//! Servers that cannot be reached, do not answer probes, or are started anew; buckets deeper than any train.

use std::net::SocketAddr;
use std::time::Duration;

use flexcp_location::probe::Key;
use flexcp_location::{
    Basis, Event, Fixed, Ignored, Latency, Leg, Locator, Probing, Rate, Reach, Responder,
    Throughput, Time, Transfer,
};

use crate::link::Link;
use crate::table1::{is_near, table1};
use crate::world::{World, config, mbit, octet, responder};

fn cut(world: &mut World, server: usize, is_cut: bool) {
    for links in &mut world.hosts[server].links {
        for link in links {
            link.is_cut = is_cut;
        }
    }
}

#[test]
fn a_server_that_cannot_be_reached_is_left_and_comes_back() {
    let mut world = World::new(config(5, 2), table1(), 1);
    world.run(300);
    cut(&mut world, 2, true);
    world.run(120);
    assert_eq!(world.locator.order(), [1, 0, 4, 3, 2]);
    let gone = Event::Reach {
        server: 2,
        is_reachable: false,
    };
    assert!(world.events.iter().any(|(_, event)| *event == gone));
    cut(&mut world, 2, false);
    world.run(120);
    assert_eq!(world.locator.order()[0], 2);
}

#[test]
fn a_connection_without_an_answer_leaves_a_server_at_once() {
    let mut world = World::new(config(5, 2), table1(), 1);
    world.run(300);
    let now = world.now;
    world.locator.handshake(2, 0, None, now);
    // Over the other uplink it is still there, with less.
    assert_eq!(world.locator.order()[0], 2);
    world.locator.handshake(2, 1, None, now);
    assert_eq!(world.locator.order(), [1, 0, 4, 3, 2]);
    let reason = world.locator.reason().unwrap().to_string();
    assert!(
        reason.ends_with("; server3 could not be reached"),
        "{reason}"
    );
}

#[test]
fn a_server_whose_responder_alone_answers_is_not_used_again() {
    let mut world = World::new(config(5, 2), table1(), 1);
    world.run(300);
    world.hosts[2].listens = false;
    for uplink in 0..2 {
        world.locator.handshake(2, uplink, None, world.now);
    }
    let switches = world.switches().len();
    world.run(600);
    assert_eq!(world.locator.order(), [1, 0, 4, 3, 2]);
    assert_eq!(world.switches().len(), switches + 1);
    let probing = world.locator.table(world.now).servers[2].probing;
    assert_eq!(probing, Probing::Answers);
    world.hosts[2].listens = true;
    world.run(150);
    assert_eq!(world.locator.order()[0], 2);
}

#[test]
fn an_uplink_that_goes_takes_its_rates_with_it() {
    let mut world = World::new(config(5, 2), table1(), 1);
    world.run(300);
    for server in 0..5 {
        world.locator.set_path(server, 0, false, world.now);
    }
    world.run(90);
    // Over the second uplink alone: 13.45, 15.38, 19.75, 13.91, 12.90.
    assert_eq!(world.measured_order()[..2], [2, 1]);
    let table = world.locator.table(world.now);
    assert!(is_near(table.servers[2].sum().unwrap(), mbit(1975), 50));
    let reason = world.locator.reason().unwrap().to_string();
    assert!(reason.contains(" over lte0, "), "{reason}");
}

#[test]
fn a_server_without_a_responder_has_round_trips_alone() {
    let mut config = config(2, 2);
    config.servers[1].key = None;
    let mut links = table1();
    links.truncate(2);
    let mut world = World::new(config, links, 1);
    world.hosts[0].responder = None;
    world.run(120);
    let table = world.locator.table(world.now);
    assert_eq!(table.servers[0].probing, Probing::Silent);
    assert_eq!(table.servers[1].probing, Probing::Keyless);
    for row in &table.servers {
        assert_eq!(row.reach, Reach::Yes);
        assert_eq!(row.throughput(), None);
    }
    assert!(table.is_complete);
    // 44.60 against 53.37 ms.
    assert_eq!(world.locator.order(), [1, 0]);
    let reason = world.locator.reason().unwrap().to_string();
    assert!(
        reason.starts_with("server2: no rate is known, 44.6 ms, next is server1"),
        "{reason}"
    );
    // A real transfer gives it a rate.
    let transfer = Transfer {
        bytes: 3_000_000,
        busy: Duration::from_secs(1),
        by_path: false,
    };
    world.locator.transferred(1, 0, &transfer, world.now);
    let table = world.locator.table(world.now);
    assert_eq!(table.servers[1].throughput(), Some(Rate::from_kbit(24_000)));
    assert_eq!(
        table.servers[1].paths[0].down.unwrap().basis,
        Basis::AtLeast
    );
}

#[test]
fn a_responder_that_was_started_anew_is_asked_anew_in_the_same_round() {
    let mut world = World::new(config(2, 2), table1()[..2].to_vec(), 1);
    world.run(200);
    for seed in 0..5 {
        for server in 0..2 {
            let key = Key::new(&[octet(server) + 1; 32]).unwrap();
            world.hosts[server].responder = Some(responder(key, 100 + seed));
        }
        world.run(70);
    }
    assert_eq!(world.locator.counters().silent_rounds, 0);
    let table = world.locator.table(world.now);
    assert!(world.now.since(table.servers[0].paths[0].delay_at.unwrap()) < Duration::from_secs(70));
}

#[test]
fn cookies_are_renewed_before_they_end() {
    let mut world = World::new(config(2, 2), table1()[..2].to_vec(), 1);
    world.run(2000);
    assert_eq!(world.locator.counters().silent_rounds, 0);
    for host in &world.hosts {
        let counters = host.responder.as_ref().unwrap().counters();
        assert_eq!((counters.cookies, counters.replays), (0, 0));
    }
}

/// A bucket of `depth` bytes before a path of `rate`.
fn bucket(depth: u64, rate: u64) -> (Vec<[Link; 2]>, Leg) {
    let mut down = Link::new(mbit(rate), Duration::from_millis(10));
    down.depth = depth;
    down.line = Rate::from_kbit(200_000);
    let up = Link::new(mbit(rate), Duration::from_millis(10));
    (vec![[up, down]], Leg::default())
}

#[test]
fn trains_outlast_a_bucket() {
    for depth in [10_000, 30_000, 60_000, 100_000] {
        let mut world = World::new(config(1, 1), vec![bucket(depth, 1000)], 1);
        world.run(130);
        let down = world.locator.table(world.now).servers[0].paths[0]
            .down
            .unwrap();
        println!("bucket of {depth} bytes: {} {:?}", down.rate, down.basis);
        assert!(is_near(down.rate, mbit(1000), 60), "{depth}: {}", down.rate);
    }
}

fn by_path(rate: Rate) -> Transfer {
    let busy = Duration::from_secs(1);
    Transfer {
        bytes: rate.bytes_in(busy),
        busy,
        by_path: true,
    }
}

/// Two servers behind an uplink whose bucket no train outlasts: real transfers to the one that is used show 10 Mbit/s, trains
/// of the other 200.
#[test]
fn a_bucket_deeper_than_any_train_does_not_make_the_choice_go_to_and_fro() {
    let links = vec![bucket(2_000_000, 1000), bucket(2_000_000, 1000)];
    let mut world = World::new(config(2, 1), links, 1);
    world.run(130);
    let down = world.locator.table(world.now).servers[0].paths[0]
        .down
        .unwrap();
    assert_eq!(down.basis, Basis::AtMost);
    assert!(down.rate > mbit(15_000));
    let before = world.switches().len();
    for _ in 0..60 {
        let used = world.locator.order()[0];
        world
            .locator
            .transferred(used, 0, &by_path(mbit(1000)), world.now);
        world.run(30);
    }
    assert!(
        world.switches().len() <= before + 1,
        "{:?}",
        world.switches()
    );
}

#[test]
fn transfers_take_the_place_of_trains() {
    let mut world = World::new(config(1, 1), vec![bucket(10_000, 2000)], 1);
    world.run(130);
    world.carried.clear();
    for _ in 0..30 {
        world
            .locator
            .transferred(0, 0, &by_path(mbit(1900)), world.now);
        world.run(20);
    }
    let bytes: u64 = world.carried.iter().map(|&(_, bytes)| bytes).sum();
    assert!(bytes < 20_000, "{bytes} bytes in ten minutes: echoes alone");
    let down = world.locator.table(world.now).servers[0].paths[0]
        .down
        .unwrap();
    assert_eq!((down.rate, down.basis), (mbit(1900), Basis::Transfers));
}

#[test]
fn the_operators_word_bounds_an_uplink() {
    let mut config = config(1, 1);
    config.uplinks[0].line = Some(mbit(800));
    let mut world = World::new(config, vec![bucket(2_000_000, 1000)], 1);
    world.run(130);
    let table = world.locator.table(world.now);
    assert_eq!(table.servers[0].sum(), Some(mbit(800)));
}

#[test]
fn a_leg_that_may_not_be_asked_for_bounds_nothing() {
    let mut config = config(1, 2);
    config.content = Some("198.18.0.1:443".parse().unwrap());
    let mut world = World::new(config, table1()[2..3].to_vec(), 1);
    world.run(100);
    let table = world.locator.table(world.now);
    assert_eq!(table.servers[0].leg, None);
    assert!(is_near(
        table.servers[0].throughput().unwrap(),
        mbit(4732),
        50
    ));
    let reason = world.locator.reason().unwrap().to_string();
    assert!(reason.contains("(its own leg is not known)"), "{reason}");
    let counters = *world.hosts[0].responder.as_ref().unwrap().counters();
    assert!(counters.legs_refused > 0);
}

#[test]
fn five_percent_of_loss_and_long_jitter_are_survived() {
    let mut links = table1();
    for link in links.iter_mut().flat_map(|row| row.0.iter_mut().flatten()) {
        link.loss = 50;
        link.jitter = Duration::from_millis(5);
    }
    let mut world = World::new(config(5, 2), links, 5);
    world.run(900);
    assert_eq!(world.locator.order()[0], 2);
    let table = world.locator.table(world.now);
    assert!(table.servers.iter().all(|row| row.reach == Reach::Yes));
    assert!(table.servers.iter().any(|row| row.paths[0].loss > 0));
}

#[test]
fn latency_and_fixed_choose_otherwise() {
    // 53.37+42.64, 44.60+36.05, 53.97+27.50, 43.67+38.19, 113.15+36.90 ms.
    let mut world = World::with(config(5, 2), table1(), Box::new(Latency), 1);
    world.run(180);
    let order = world.locator.order().to_vec();
    assert_eq!(order[4], 4);
    assert_eq!(order[3], 0);
    let reason = world.locator.reason().unwrap().to_string();
    println!("{reason}");
    assert!(reason.contains(" ms of it its own, next is "), "{reason}");
    let mut world = World::with(config(5, 2), table1(), Box::new(Fixed), 1);
    world.run(180);
    assert_eq!(world.locator.order(), [0, 1, 2, 3, 4]);
    cut(&mut world, 0, true);
    world.run(180);
    assert_eq!(world.locator.order(), [1, 2, 3, 4, 0]);
    cut(&mut world, 0, false);
    world.run(180);
    assert_eq!(world.locator.order(), [0, 1, 2, 3, 4]);
}

#[test]
fn a_leg_is_never_older_than_an_interval() {
    let mut config = config(1, 1);
    config.interval = Duration::from_secs(300);
    let mut world = World::new(config, vec![bucket(10_000, 1000)], 1);
    world.run(60);
    for _ in 0..200 {
        world.run(10);
        let leg_at = world.locator.table(world.now).servers[0].leg_at.unwrap();
        let age = world.now.since(leg_at);
        assert!(age < Duration::from_secs(345), "{age:?}");
    }
}

/// What goes over the path of a locator and a responder that are one millisecond apart.
fn exchange(locator: &mut Locator, host: &mut Responder, now: Time) -> Option<Vec<u8>> {
    let mut out = [0; 1472];
    locator.handle_timeout(now);
    let sent = locator.poll_transmit(now, &mut out)?;
    let from = SocketAddr::from(([198, 51, 100, 10], 40_000));
    host.handle_datagram(from, &out[..sent.length], now, now)
        .unwrap();
    let (_, length) = host.poll_transmit(&mut out)?;
    Some(out[..length].to_vec())
}

#[test]
fn an_answer_of_an_earlier_session_is_not_taken() {
    let mut locator = Locator::new(config(1, 1), Box::new(Throughput::default()), 1).unwrap();
    let mut host = responder(Key::new(&[1; 32]).unwrap(), 1);
    let mut echoes = Vec::new();
    for second in [1, 2] {
        let now = Time::from_secs(second);
        locator.set_path(0, 0, false, now);
        locator.set_path(0, 0, true, now);
        locator.activity(now);
        let challenge = exchange(&mut locator, &mut host, now).unwrap();
        let later = now + Duration::from_millis(1);
        locator
            .handle_datagram((0, 0), &challenge, later, later)
            .unwrap();
        echoes.push(exchange(&mut locator, &mut host, later).unwrap());
    }
    // Both answer an echo with the number 1.
    let now = Time::from_millis(2002);
    let heard = locator.handle_datagram((0, 0), &echoes[0], now, now);
    assert_eq!(heard, Err(Ignored::Unasked));
    assert_eq!(
        locator.handle_datagram((0, 0), &echoes[1], now, now),
        Ok(())
    );
    let again = locator.handle_datagram((0, 0), &echoes[1], now, now);
    assert_eq!(again, Err(Ignored::Unasked));
}

#[test]
fn anything_at_all_may_come_instead_of_answers() {
    let mut locator = Locator::new(config(2, 2), Box::new(Throughput::default()), 1).unwrap();
    locator.set_path(0, 0, true, Time::ZERO);
    locator.activity(Time::ZERO);
    locator.handle_timeout(Time::ZERO);
    let mut out = [0; 1472];
    let sent = locator.poll_transmit(Time::ZERO, &mut out).unwrap();
    let question = out[..sent.length].to_vec();
    for (server, uplink) in [(0, 0), (1, 1), (2, 0), (0, 2), (usize::MAX, 0)] {
        for datagram in [&question[..], &[], &[0; 60]] {
            let heard = locator.handle_datagram((server, uplink), datagram, Time(5), Time(5));
            assert!(heard.is_err());
        }
    }
    assert_eq!(locator.counters().ignored, 15);
}

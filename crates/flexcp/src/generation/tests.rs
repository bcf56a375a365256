use std::collections::BTreeSet;

use flexcp_io::Protocol;

use super::*;
use crate::config;

fn service(name: &str, port: u16) -> String {
    format!(
        "[[service]]\nname = \"{name}\"\nmode = \"transparent\"\ndestinations = [\"10.9.0.0/16\"]\nports = [{port}]\n"
    )
}

fn read(text: &str) -> Config {
    let (config, found) = config::parse("f.toml", text);
    assert!(!found.has_errors(), "{found}");
    config.unwrap()
}

fn first(services: &[(&str, u16)]) -> InForce {
    let config = configured(services);
    let sources = vec![vec![]; config.services.len()];
    InForce::new(Arc::new(Generation::first(config, sources)))
}

fn configured(services: &[(&str, u16)]) -> Config {
    let services = services.iter().map(|(name, port)| service(name, *port));
    read(&services.collect::<String>())
}

/// The next generation at a moment in seconds, with a drain of 5 s.
fn follow(force: &InForce, services: &[(&str, u16)], seconds: u64) -> InForce {
    let config = configured(services);
    let sources = vec![vec![]; config.services.len()];
    let next = force.next(config, sources).unwrap();
    force.followed_by(Arc::new(next), seconds * 1_000_000)
}

fn ids(force: &InForce) -> Vec<u16> {
    force.current().ids.iter().map(|id| id.0).collect()
}

/// The ports of the servers that packets are diverted from, in the order of the plan.
fn ports(force: &InForce) -> Vec<u16> {
    let plan = force.plan(&[]);
    let from = plan
        .diversions
        .iter()
        .filter(|d| d.protocol == Protocol::Tcp);
    let ports = from.filter_map(|diversion| diversion.source_ports.clone());
    ports.map(|ports| *ports.start()).collect()
}

#[test]
fn service_has_its_id_by_its_name_and_none_is_used_twice() {
    let force = first(&[("a", 80), ("b", 81), ("c", 82)]);
    assert_eq!(ids(&force), [0, 1, 2]);
    let force = follow(&force, &[("c", 82), ("d", 83), ("a", 80)], 1);
    assert_eq!(ids(&force), [2, 3, 0], "the id of b is in use");
    assert_eq!(force.drained(), ["b"]);
    let back = follow(&force, &[("b", 81), ("e", 84)], 2);
    assert_eq!(ids(&back), [1, 4]);
    let mut force = force;
    force.forget(force.over(6_000_000).unwrap());
    let force = follow(&force, &[("e", 84), ("a", 80)], 7);
    assert_eq!(ids(&force), [1, 0], "the id of b is free");
}

#[test]
fn packets_of_what_went_are_brought_until_its_time_is_over() {
    let force = first(&[("a", 80), ("b", 81)]);
    let mut force = follow(&force, &[("a", 80), ("c", 82)], 1);
    assert_eq!(ports(&force), [80, 82, 81]);
    assert_eq!(
        (force.due(), force.over(5_999_999)),
        (Some(6_000_000), None)
    );
    assert_eq!(force.over(6_000_000), Some(0));
    force.divert_no_more(0);
    assert_eq!(ports(&force), [80, 82]);
    assert_eq!(
        force.drained(),
        ["b"],
        "it has its name until it is forgotten"
    );
    force.forget(0);
    assert_eq!((force.due(), force.drained()), (None, vec![]));
}

#[test]
fn what_only_adds_drains_nothing() {
    let force = first(&[("a", 80)]);
    let force = follow(&force, &[("b", 81), ("a", 80)], 1);
    assert_eq!(
        (force.due(), force.current().number, force.epoch()),
        (None, 2, 1)
    );
    let force = follow(&force, &[("a", 80), ("b", 81)], 2);
    assert_eq!(force.due(), None, "another order is none");
}

#[test]
fn shorter_drain_is_for_all_that_are_drained() {
    let force = first(&[("a", 80), ("b", 81)]);
    let force = follow(&force, &[("a", 80)], 1);
    let config = read(&("[timeouts]\ndrain = \"1s\"\n".to_owned() + &service("a", 80)));
    let next = Arc::new(force.next(config, vec![vec![]]).unwrap());
    assert_eq!(force.followed_by(next, 2_000_000).due(), Some(3_000_000));
}

#[test]
fn services_are_gone_that_no_later_generation_has() {
    let force = first(&[("a", 80), ("b", 81), ("c", 82)]);
    let force = follow(&force, &[("a", 80), ("c", 82)], 1);
    let force = follow(&force, &[("a", 80)], 2);
    assert_eq!(force.gone(0), [ServiceId(1)], "c is in the next one");
    let two: BTreeSet<_> = [ServiceId(1), ServiceId(2)].into();
    assert_eq!(BTreeSet::from_iter(force.gone(1)), two);
    let back = follow(&force, &[("a", 80), ("b", 81)], 3);
    assert_eq!(back.gone(0), [], "b is back");
}

#[test]
fn what_could_not_take_effect_is_forgotten_behind_those_before_it() {
    let before = follow(&first(&[("a", 80), ("b", 81)]), &[("a", 80)], 1);
    let failed = follow(&before, &[("x", 90)], 2);
    let force = failed.taken_back(before, 2_000_000);
    assert_eq!(
        (force.current().number, force.epoch(), ports(&force)),
        (2, 3, vec![80, 81])
    );
    assert_eq!(force.over(6_000_000), Some(2));
    // Its id is not given away before the translators have forgotten it.
    assert_eq!(ids(&follow(&force, &[("y", 91)], 3)), [3]);
}

#[test]
fn so_many_are_drained_at_a_time() {
    let mut force = first(&[("a", 1)]);
    for port in 2..=65 {
        force = follow(&force, &[("a", port)], 1);
    }
    let refused = force.next(configured(&[("a", 66)]), vec![vec![]]);
    assert_eq!(refused.unwrap_err(), NotNow::Drained);
    force.forget(force.over(6_000_000).unwrap());
    assert!(force.next(configured(&[("a", 66)]), vec![vec![]]).is_ok());
}

#[test]
fn orders_follow_their_services_and_drain_nothing() {
    let shop = "[[service]]\nname = 'shop'\nmode = 'reverse'\nlisten = ['203.0.113.5:443']\n\
        backends = ['10.0.0.11:443', '10.0.0.12:443']\n";
    let config = read(shop);
    let force = InForce::new(Arc::new(Generation::first(config.clone(), vec![vec![]])));
    let order = crate::orders::Order::Backend {
        service: "shop".into(),
        address: ([10, 0, 0, 12], 443).into(),
        change: crate::orders::Change {
            weight: Some(Some(7)),
            maintenance: Some(true),
        },
    };
    let orders = force.current().orders.with(&config, &order).unwrap();
    let next = force.current().with_orders(Arc::new(orders));
    assert_eq!(next.number, 2);
    let force = force.followed_by(Arc::new(next), 1);
    assert_eq!(
        force.draining(),
        0,
        "no connection is left without its service"
    );
    let parts = |generation: &Generation| {
        let services = generation.translator(0).services;
        let parts = services[0].intake.parts.iter();
        parts
            .map(|part| (part.weight, part.maintenance))
            .collect::<Vec<_>>()
    };
    assert_eq!(parts(force.current()), [(1, false), (7, true)]);
    // A reload keeps it for as long as the back end is there.
    let same = force.next(config, vec![vec![]]).unwrap();
    assert_eq!(parts(&same), [(1, false), (7, true)]);
    let fewer = read(&shop.replace(", '10.0.0.12:443'", ""));
    let fewer = force.next(fewer, vec![vec![]]).unwrap();
    assert_eq!(*fewer.orders, Orders::default());
}

#[test]
fn uplinks_that_change_drain_nothing_and_keep_their_packets() {
    let home = "[[service]]\nname = 'home'\nmode = 'box'\ninterfaces = ['lan0']\n\
        destinations = ['10.9.0.0/16']\nuplinks = ['dsl0', 'lte0']\n";
    let dsl: IpAddr = [198, 51, 100, 7].into();
    let uplinks = |lte: [u8; 4]| vec![vec![dsl.into(), IpAddr::from(lte).into()]];
    let generation = Generation::first(read(home), vec![vec![]]);
    let generation = generation.with_uplinks(uplinks([10, 64, 0, 1]));
    let mut force = InForce::new(Arc::new(generation));
    for last in 2..=100 {
        force = force.with_uplinks(uplinks([10, 64, 0, last]));
    }
    assert_eq!((force.draining(), force.epoch()), (0, 99));
    let current = force.current();
    assert_eq!(current.number, 1, "the file's is the same");
    let mode = current.translator(0).services.remove(0).mode;
    let Mode::Box { uplinks: told, .. } = mode else {
        panic!("{mode:?}");
    };
    assert_eq!(told, uplinks([10, 64, 0, 100])[0]);
    // What comes to its last addresses is not the kernel's.
    let known = &current.sources[0];
    let has = |last| known.contains(&IpAddr::from([10, 64, 0, last]));
    assert!(has(100) && has(99) && has(95) && !has(90), "{known:?}");
    assert_eq!(known.len(), KNOWN_ADDRESSES);
}

#[test]
fn packets_to_all_addresses_of_uplinks_are_flexcps() {
    let home = "[[service]]\nname = 'home'\nmode = 'box'\ninterfaces = ['lan0']\n\
        destinations = ['10.9.0.0/16']\nuplinks = ['dsl0', 'lte0']\n";
    let uplink = |n: u8| Uplink {
        v4: Some([10, 64, 0, n].into()),
        v6: Some([0x2001, 0xdb8, 0, 0, 0, 0, 0, n.into()].into()),
    };
    let generation = Generation::first(read(home), vec![vec![]]);
    let generation = generation.with_uplinks(vec![(1..=8).map(uplink).collect()]);
    assert_eq!(generation.sources[0].len(), 16);
}

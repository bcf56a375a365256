//! The index of steering rules against a look at each (`make bench-rules`): nanoseconds to find a connection's rule, and
//! milliseconds to take rules over, the median of several rounds, as a Markdown table.
//!
//! The rules differ in service, server, port and client, as those of an operator with many customers would; half of the
//! connections are of one of the last rules, the others of none.

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use flexcp_translator::internals::RuleTable;
use flexcp_translator::{Prefix, Rule, ServiceId, SmallestDelay};

/// Rules held.
const SIZES: [u32; 4] = [16, 256, 4096, 16_384];
/// Look-ups timed together.
const BATCH: u32 = 256;
/// Batches of which the median is taken.
const ROUNDS: usize = 21;

/// What rules look like.
#[derive(Clone, Copy)]
struct Kind {
    name: &'static str,
    rule: fn(u32) -> Rule,
    /// A connection of the rule with this number.
    of: fn(u32) -> (ServiceId, SocketAddr, IpAddr),
}

const KINDS: [Kind; 4] = [
    Kind {
        name: "a client each",
        rule: |n| Rule {
            clients: vec![prefix(host(10, n), 32)],
            ..plain(n)
        },
        of: |n| (ServiceId(0), (host(192, 1), 443).into(), host(10, n)),
    },
    Kind {
        name: "a server and a range of ports each",
        rule: |n| Rule {
            servers: vec![prefix(host(172, n / 4 * 256), 24)],
            ports: vec![ports(n)],
            ..plain(n)
        },
        of: |n| {
            let server = (host(172, n / 4 * 256 + 7), *ports(n).end());
            (ServiceId(0), server.into(), host(10, n))
        },
    },
    Kind {
        name: "services, servers, ports and clients, mixed",
        rule: mixed,
        of: |n| {
            let server = (host(172, n), 443 + port(n % 7));
            (service(n), server.into(), host(10, n))
        },
    },
    Kind {
        name: "a port each, of one service",
        rule: |n| Rule {
            services: vec![ServiceId(1)],
            ports: vec![1000 + port(n)..=1000 + port(n)],
            ..plain(n)
        },
        of: |n| {
            let server = (host(192, 1), 1000 + port(n));
            (ServiceId(1), server.into(), host(10, n))
        },
    },
];

fn main() {
    println!(
        "| rules | how many | found by the index, ns | by a look at each, ns | taken over, ms |"
    );
    println!("|---|---|---|---|---|");
    for kind in KINDS {
        for size in SIZES {
            line(kind, size);
        }
    }
}

fn line(kind: Kind, size: u32) {
    let rules = || (0..size).map(kind.rule).collect::<Vec<_>>();
    let taken_over = median(5, || {
        let rules = rules();
        let began = Instant::now();
        let table = black_box(RuleTable::new(rules));
        let took = began.elapsed();
        drop(table);
        took
    });
    let table = RuleTable::new(rules());
    // Half of them have a rule: one of the last quarter.
    let connection = |n: u32| {
        let place = size - 1 - n.wrapping_mul(2_654_435_761) % size.div_ceil(4);
        let (service, server, client) = (kind.of)(place);
        if n.is_multiple_of(2) {
            (service, server, client)
        } else {
            (ServiceId(9999), (host(203, n), 1).into(), host(204, n))
        }
    };
    for n in 0..BATCH {
        let (service, server, client) = connection(n);
        let found = table.find(service, server, client);
        assert_eq!(found, table.find_one_by_one(service, server, client));
        assert!(
            found.is_some() || !n.is_multiple_of(2),
            "{}: {n}",
            kind.name
        );
    }
    let batch = |find: &dyn Fn(ServiceId, SocketAddr, IpAddr) -> bool| {
        let took = median(ROUNDS, || {
            let began = Instant::now();
            for n in 0..BATCH {
                let (service, server, client) = connection(n);
                black_box(find(service, server, client));
            }
            began.elapsed()
        });
        took.as_nanos() / u128::from(BATCH)
    };
    let index = batch(&|a, b, c| table.find(a, b, c).is_some());
    let each = batch(&|a, b, c| table.find_one_by_one(a, b, c).is_some());
    println!(
        "| {} | {size} | {index} | {each} | {:.2} |",
        kind.name,
        taken_over.as_secs_f64() * 1e3
    );
}

fn median(rounds: usize, mut once: impl FnMut() -> Duration) -> Duration {
    let mut all: Vec<_> = (0..rounds).map(|_| once()).collect();
    all.sort_unstable();
    all[rounds / 2]
}

fn plain(n: u32) -> Rule {
    Rule {
        name: format!("rule {n}").into(),
        services: vec![],
        servers: vec![],
        ports: vec![],
        clients: vec![],
        mode: Arc::new(SmallestDelay),
        hold: Duration::ZERO,
        fail_back: Duration::ZERO,
        heeds_backup: true,
        carrier: None,
    }
}

/// Each says three things or four, and prefixes are of several lengths.
fn mixed(n: u32) -> Rule {
    let server = prefix(host(172, n), [24, 32, 28, 30][n as usize % 4]);
    let client = prefix(host(10, n), [32, 24, 32, 16][n as usize % 4]);
    let base = 443 + port(n % 7);
    Rule {
        services: if n.is_multiple_of(3) {
            vec![]
        } else {
            vec![service(n)]
        },
        servers: if n.is_multiple_of(5) {
            vec![]
        } else {
            vec![server]
        },
        ports: if n.is_multiple_of(7) {
            vec![]
        } else {
            vec![base..=base + 3]
        },
        clients: vec![client],
        ..plain(n)
    }
}

fn service(n: u32) -> ServiceId {
    ServiceId(port(n % 100))
}

fn ports(n: u32) -> std::ops::RangeInclusive<u16> {
    let first = 1000 + port(n % 4) * 1000;
    first..=first + 499
}

/// The low half of a number.
fn port(n: u32) -> u16 {
    u16::try_from(n % 65_536).unwrap_or(0)
}

fn host(net: u8, n: u32) -> IpAddr {
    Ipv4Addr::from_bits((u32::from(net) << 24) | (n % (1 << 24))).into()
}

fn prefix(addr: IpAddr, len: u8) -> Prefix {
    Prefix { addr, len }
}

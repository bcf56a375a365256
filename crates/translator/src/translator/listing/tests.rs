//! Listings while connections come and go between their pages.

use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use core::net::{IpAddr, Ipv4Addr};
use core::time::Duration;

use super::*;
use crate::access::Access;
use crate::auth::SecretStream;
use crate::connection::Phase;
use crate::steering::{Rule, Rules, SmallestDelay};
use crate::translator::tests::{open, reverse};
use flexcp_wire::Ends;

const NOW: Instant = Instant::from_millis(5);

/// A translator with a connection from each of these ports of the client.
fn with(ports: impl IntoIterator<Item = u16>) -> Translator {
    let mut translator = reverse(1000..=60_999);
    ports
        .into_iter()
        .for_each(|port| open(&mut translator, NOW, port));
    translator
}

fn client(port: u16) -> SocketAddr {
    ([10, 1, 1, 2], port).into()
}

fn id(translator: &Translator, port: u16) -> u32 {
    let ends = Ends {
        from: client(port),
        to: ([10, 9, 1, 2], 80).into(),
    };
    translator.table.find(ends).expect("a connection").id
}

fn close(translator: &mut Translator, port: u16) {
    let id = id(translator, port);
    translator.remove(id);
}

/// The ports of all pages in their order; `between` is done after each page.
fn told(
    translator: &mut Translator,
    filter: &Filter,
    mut between: impl FnMut(&mut Translator),
) -> Vec<Vec<u16>> {
    let mut pages = alloc::vec![];
    let mut next = Some(Cursor::default());
    while let Some(cursor) = next {
        let mut page = alloc::vec![];
        next = translator.list(NOW, cursor, filter, &mut page);
        pages.push(page.iter().map(|view| view.client.port()).collect());
        between(translator);
        assert!(pages.len() < 100_000, "a listing without an end");
    }
    pages
}

#[test]
fn every_connection_is_told_once_in_pages_of_a_bounded_size() {
    let mut translator = with(1..=1000);
    let pages = told(&mut translator, &Filter::default(), |_| {});
    assert!(pages.iter().all(|page| page.len() <= Translator::PAGE));
    assert_eq!(pages.len(), 1000_usize.div_ceil(Translator::PAGE));
    assert_eq!(pages.concat(), Vec::from_iter(1..=1000));
    let pages = told(&mut with([]), &Filter::default(), |_| {});
    assert_eq!(pages, [[0_u16; 0]]);
}

#[test]
fn those_that_stay_are_told_once_whatever_comes_and_goes_between_pages() {
    let mut draws = SecretStream::new([3; 32]);
    for _ in 0..20 {
        let mut translator = with(1..=2000);
        let mut stay: BTreeSet<u16> = (1..=2000).collect();
        let mut live = Vec::from_iter(1..=2000);
        let mut next_port = 2001;
        let pages = told(&mut translator, &Filter::default(), |translator| {
            for _ in 0..draws.next_u32() % 200 {
                let at = draws.next_u32() as usize % live.len();
                let port = live.swap_remove(at);
                stay.remove(&port);
                close(translator, port);
            }
            // The table grows by some, and the places of those that are gone are taken.
            for _ in 0..draws.next_u32() % 200 {
                open(translator, NOW, next_port);
                live.push(next_port);
                next_port += 1;
            }
        });
        let all = pages.concat();
        let once: BTreeSet<u16> = all.iter().copied().collect();
        assert_eq!(once.len(), all.len(), "told twice");
        assert!(stay.len() > 100 && stay.is_subset(&once), "left out");
    }
}

#[test]
fn table_that_shrinks_between_pages_ends_the_listing() {
    let mut translator = with(1..=12_000);
    let mut page = alloc::vec![];
    let cursor = translator.list(NOW, Cursor::default(), &Filter::default(), &mut page);
    (1..12_000).for_each(|port| close(&mut translator, port));
    let mut rest = alloc::vec![];
    let mut next = cursor;
    while let Some(cursor) = next {
        next = translator.list(NOW, cursor, &Filter::default(), &mut rest);
    }
    let ports: Vec<_> = rest.iter().map(|view| view.client.port()).collect();
    assert_eq!(ports, [12_000]);
    // A cursor from before the table was smaller than that.
    let end = translator.list(NOW, Cursor(1 << 40), &Filter::default(), &mut rest);
    assert_eq!((end, rest.len()), (None, 1));
}

#[test]
fn page_looks_at_a_bounded_number_of_places() {
    // Many that the filter leaves out, then many empty places.
    let mut translator = with(1..=12_000);
    (5_001..12_000).for_each(|port| close(&mut translator, port));
    let last = Filter {
        client: Some(Place {
            prefix: None,
            port: Some(12_000),
        }),
        ..Filter::default()
    };
    let mut looked = alloc::vec![];
    let mut next = Some(Cursor::default());
    while let Some(cursor) = next {
        let mut page = alloc::vec![];
        next = translator.list(NOW, cursor, &last, &mut page);
        let places = next.map_or(0, |next| next.0 - cursor.0);
        looked.push((places, page.len()));
    }
    assert_eq!(looked[0], (256, 0), "connections that are left out");
    assert!(looked.contains(&(4096, 0)), "empty places");
    assert!(looked.iter().all(|&(places, _)| places <= 4096));
    assert_eq!(looked.iter().map(|&(_, told)| told).sum::<usize>(), 1);
}

#[test]
fn filter_fits_by_state_service_and_ends() {
    let mut translator = with(1..=10);
    let id = id(&translator, 3);
    translator.table.get_mut(id).expect("a connection").phase = Phase::Reset(NOW);
    let place = |text: &str, len| {
        let addr: IpAddr = text.parse().expect("an address");
        Some(Place {
            prefix: Some(Prefix { addr, len }),
            port: None,
        })
    };
    let port = |port| {
        Some(Place {
            prefix: None,
            port: Some(port),
        })
    };
    let mut count = |filter: Filter| told(&mut translator, &filter, |_| {}).concat();
    let all = Vec::from_iter(1..=10);
    let none: Vec<u16> = alloc::vec![];
    let states = |states: &[ConnectionState]| Filter {
        states: states.to_vec(),
        ..Filter::default()
    };
    assert_eq!(count(states(&[ConnectionState::Reset])), [3]);
    let both = [ConnectionState::Reset, ConnectionState::Plain];
    assert_eq!(count(states(&both)), all);
    assert_eq!(count(states(&[ConnectionState::Closed])), none);
    let service = |service| Filter {
        service: Some(service),
        ..Filter::default()
    };
    assert_eq!(count(service(ServiceId(0))), all);
    assert_eq!(count(service(ServiceId(1))), none);
    let client = |client| Filter {
        client,
        ..Filter::default()
    };
    assert_eq!(count(client(place("10.1.0.0", 16))), all);
    assert_eq!(count(client(place("10.8.1.2", 32))), none);
    assert_eq!(count(client(port(7))), [7]);
    // The address that was connected to, and the back end's.
    let server = |server| Filter {
        server,
        ..Filter::default()
    };
    assert_eq!(count(server(place("10.9.1.2", 32))), all);
    assert_eq!(count(server(place("10.8.1.2", 32))), all);
    assert_eq!(count(server(place("10.1.0.0", 16))), none);
    assert_eq!(count(server(port(80))), all);
    assert_eq!(count(server(port(443))), none);
    // All of them have to fit.
    let mixed = Filter {
        client: port(7),
        ..states(&[ConnectionState::Reset])
    };
    assert_eq!(count(mixed), none);
}

/// A rule for a port of servers.
fn rule(name: &str, port: u16) -> Rule {
    Rule {
        name: name.into(),
        services: alloc::vec![],
        servers: alloc::vec![],
        ports: alloc::vec![port..=port],
        clients: alloc::vec![],
        mode: Arc::new(SmallestDelay),
        hold: Duration::ZERO,
        fail_back: Duration::ZERO,
        heeds_backup: true,
        carrier: None,
    }
}

#[test]
fn filter_fits_by_the_rule_that_is_the_first_to_fit() {
    let mut translator = with(1..=3);
    let rules = alloc::vec![rule("mail", 25), rule("web", 80), rule("again", 80)];
    translator.config.rules = Rules::new(rules, 0, &Rules::default());
    // The others are plain TCP, which no rule steers.
    let id = id(&translator, 3);
    translator.table.get_mut(id).expect("a connection").phase = Phase::Reset(NOW);
    let mut of = |rule: &str| {
        let filter = Filter {
            rule: Some(rule.into()),
            ..Filter::default()
        };
        told(&mut translator, &filter, |_| {}).concat()
    };
    assert_eq!(
        (of("web"), of("mail"), of("again")),
        (alloc::vec![3], alloc::vec![], alloc::vec![])
    );
    let rules: Vec<_> = translator.connections(NOW).map(|view| view.rule).collect();
    assert_eq!(rules, [None, None, Some("web".into())]);
}

#[test]
fn rules_that_have_to_be_looked_for_make_a_page_shorter() {
    let mut translator = with(1..=1000);
    let mut page = alloc::vec![];
    let next = translator.list(NOW, Cursor::default(), &Filter::default(), &mut page);
    assert_eq!((page.len(), next), (64, Some(Cursor(64))));
    let rules = (0..8 * 1024).map(|_| rule("far", 25)).collect();
    translator.config.rules = Rules::new(rules, 0, &Rules::default());
    page.clear();
    let next = translator.list(NOW, Cursor::default(), &Filter::default(), &mut page);
    assert_eq!((page.len(), next), (4, Some(Cursor(4))));
}

#[test]
fn place_is_addresses_ports_or_both() {
    let of = |prefix, port| Place { prefix, port };
    let net = Prefix {
        addr: Ipv4Addr::new(10, 1, 0, 0).into(),
        len: 16,
    };
    let here: SocketAddr = ([10, 1, 1, 2], 80).into();
    assert!(of(None, None).contains(here));
    assert!(of(Some(net), Some(80)).contains(here));
    assert!(!of(Some(net), Some(81)).contains(here));
    assert!(!of(Some(net), None).contains(([10, 2, 1, 2], 80).into()));
    let v6: SocketAddr = "[2001:db8::1]:80".parse().expect("an address");
    assert!(!of(Some(net), None).contains(v6));
}

#[test]
fn filter_fits_by_access() {
    let mut translator = with([1, 2]);
    let access = |addr: [u8; 4]| Access {
        name: "dsl".into(),
        clients: alloc::vec![Prefix {
            addr: addr.into(),
            len: 24
        }],
        addresses: Vec::new(),
        ways: Vec::new(),
    };
    let accesses = alloc::vec![access([10, 2, 1, 0]), access([10, 1, 1, 0])];
    translator.config.accesses = Accesses::new(accesses);
    for (id, ports) in [(0, Vec::new()), (1, alloc::vec![1, 2])] {
        let filter = Filter {
            access: Some(AccessId(id)),
            ..Filter::default()
        };
        assert_eq!(told(&mut translator, &filter, |_| {}).concat(), ports);
    }
}

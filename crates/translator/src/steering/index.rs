//! The first rule that fits, without a look at each: a tree over what rules say of services, ports, servers and clients.
//!
//! What a rule says of one of the four is a few prefixes of a number, a range of ports too. A node of the tree sorts its rules by
//! the one that tells them apart best. Its children hold the rules of one prefix each, and a look-up goes on in those that the
//! connection's number has: one binary search for each length that occurs. No child is looked at whose first rule comes behind
//! one that has been found to fit. Where nothing tells rules apart, or what tells them apart would take too much memory, they
//! are tried one by one.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::net::IpAddr;
use core::ops::RangeInclusive;

use super::{Descriptor, Rule};
use crate::prefix::Prefix;

/// So many rules are tried one by one.
const FEW: usize = 4;
/// A node's children hold at most so many rules for each of its own.
const COPIES: usize = 8;
/// All nodes together hold at most so many for each rule.
const ALL_COPIES: usize = 16;

/// The tree.
#[derive(Default, Debug)]
pub(super) struct Index {
    root: Option<Node>,
}

/// Rules by their places, lowest first.
#[derive(Debug)]
enum Node {
    One(u16),
    /// Tried one by one.
    Few(Box<[u16]>),
    Split(Box<Split>),
}

/// Rules sorted by one of what they say.
#[derive(Debug)]
struct Split {
    by: By,
    /// The kinds of prefixes that occur, and the first rule of each: the lowest first.
    kinds: Box<[(u8, u16)]>,
    /// In their order.
    children: Box<[Child]>,
}

#[derive(Debug)]
struct Child {
    key: Key,
    first: u16,
    node: Node,
}

/// What rules are sorted by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum By {
    Service,
    Port,
    Server,
    Client,
}

/// A prefix of a number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Key {
    /// Its length in bits; of an IPv4 address, that and [`V4`]; or [`ANY`].
    kind: u8,
    /// The other bits are 0.
    bits: u128,
}

/// Lengths of IPv6 prefixes go up to 128.
const V4: u8 = 129;
/// Whatever the number is.
const ANY: u8 = u8::MAX;

impl Index {
    /// Of rules in order of precedence.
    pub(super) fn new(rules: &[Rule]) -> Self {
        let places: Vec<u16> = (0..).zip(rules).map(|(place, _)| place).collect();
        let mut builder = Builder {
            rules,
            left: rules.len() * ALL_COPIES,
        };
        let root = (!places.is_empty()).then(|| builder.node(places, By::ALL.to_vec()));
        Self { root }
    }

    /// The place of the first rule that fits; `fits` says whether the one at a place does.
    pub(super) fn find(&self, of: &Descriptor, fits: impl Fn(usize) -> bool) -> Option<usize> {
        let found = search(self.root.as_ref()?, of, &fits, u16::MAX);
        (found != u16::MAX).then(|| found.into())
    }
}

/// The first that fits of those before `limit`, or `limit`.
fn search(node: &Node, of: &Descriptor, fits: &impl Fn(usize) -> bool, limit: u16) -> u16 {
    match node {
        Node::One(place) if *place < limit && fits((*place).into()) => *place,
        Node::One(_) => limit,
        Node::Few(places) => {
            let before = places.iter().take_while(|place| **place < limit);
            let mut fitting = before.filter(|place| fits((**place).into()));
            fitting.next().copied().unwrap_or(limit)
        }
        Node::Split(split) => {
            let mut limit = limit;
            for (kind, first) in &split.kinds {
                if *first >= limit {
                    break;
                }
                let key = split.by.key_of(*kind, of);
                if let Some(child) = key.and_then(|key| split.child(key))
                    && child.first < limit
                {
                    limit = search(&child.node, of, fits, limit);
                }
            }
            limit
        }
    }
}

impl Split {
    fn child(&self, key: Key) -> Option<&Child> {
        let found = self.children.binary_search_by_key(&key, |child| child.key);
        self.children.get(found.ok()?)
    }
}

impl By {
    const ALL: [Self; 4] = [Self::Service, Self::Port, Self::Server, Self::Client];

    /// The prefix of this kind that the connection's number has; `None`: it is of the other family.
    fn key_of(self, kind: u8, of: &Descriptor) -> Option<Key> {
        if kind == ANY {
            return Some(Key { kind, bits: 0 });
        }
        let bits = match self {
            Self::Service => of.service.0.into(),
            Self::Port => masked(of.server.port().into(), 16, kind),
            Self::Server => bits_of(of.server.ip(), kind)?,
            Self::Client => bits_of(of.client, kind)?,
        };
        Some(Key { kind, bits })
    }

    /// What a rule says of it.
    fn keys(self, rule: &Rule, keys: &mut Vec<Key>) {
        match self {
            Self::Service => keys.extend(rule.services.iter().map(|id| Key {
                kind: 16,
                bits: id.0.into(),
            })),
            Self::Port => {
                for range in &rule.ports {
                    port_keys(range, keys);
                }
            }
            Self::Server => keys.extend(rule.servers.iter().filter_map(prefix_key)),
            Self::Client => keys.extend(rule.clients.iter().filter_map(prefix_key)),
        }
        let says_nothing = match self {
            Self::Service => rule.services.is_empty(),
            Self::Port => rule.ports.is_empty(),
            Self::Server => rule.servers.is_empty(),
            Self::Client => rule.clients.is_empty(),
        };
        if says_nothing {
            keys.push(Key { kind: ANY, bits: 0 });
        }
        keys.sort_unstable();
        keys.dedup();
    }
}

/// The first `len` bits of a number that is `width` bits wide.
fn masked(number: u128, width: u8, len: u8) -> u128 {
    let cut = u32::from(width.saturating_sub(len));
    let mask = u128::MAX.checked_shl(cut).unwrap_or(0);
    number & mask
}

/// The same of an address; `None`: it is of the other family.
fn bits_of(addr: IpAddr, kind: u8) -> Option<u128> {
    match (addr, kind.checked_sub(V4)) {
        (IpAddr::V4(addr), Some(len)) => Some(masked(addr.to_bits().into(), 32, len)),
        (IpAddr::V6(addr), None) => Some(masked(addr.to_bits(), 128, kind)),
        _ => None,
    }
}

fn prefix_key(prefix: &Prefix) -> Option<Key> {
    let kind = match prefix.addr {
        IpAddr::V4(_) => V4 + prefix.len.min(32),
        IpAddr::V6(_) => prefix.len.min(128),
    };
    let bits = bits_of(prefix.addr, kind)?;
    Some(Key { kind, bits })
}

/// A range of ports as the fewest prefixes.
fn port_keys(range: &RangeInclusive<u16>, keys: &mut Vec<Key>) {
    let (mut low, end) = (u32::from(*range.start()), u32::from(*range.end()) + 1);
    while low < end {
        // As much as begins at a multiple of itself, and does not go beyond the end.
        let aligned = low.trailing_zeros().min(16);
        let size = aligned.min((end - low).ilog2());
        keys.push(Key {
            kind: u8::try_from(16 - size).unwrap_or(16),
            bits: low.into(),
        });
        low += 1 << size;
    }
}

struct Builder<'a> {
    rules: &'a [Rule],
    /// Rules that nodes may hold yet.
    left: usize,
}

/// A node's rules, sorted by one of what they say.
struct Sorted {
    by: By,
    pairs: Vec<(Key, u16)>,
    /// Rules that share a child, squared and summed up: what a look-up has to tell apart yet.
    alike: usize,
}

impl Builder<'_> {
    /// A node of some rules, which are sorted by none of `among` yet.
    fn node(&mut self, places: Vec<u16>, mut among: Vec<By>) -> Node {
        let count = places.len();
        if let [place] = places[..] {
            return Node::One(place);
        }
        if count <= FEW {
            return Node::Few(places.into());
        }
        let mut best: Option<Sorted> = None;
        among.retain(|&by| {
            let Some(sorted) = self.sorted(&places, by) else {
                return true;
            };
            // Where all say the same, nobody has to ask.
            let same = sorted.pairs.len() == count && sorted.alike == count * count;
            let mean = |it: &Sorted| it.alike / it.pairs.len().max(1);
            let helps =
                mean(&sorted) < count && best.as_ref().is_none_or(|b| mean(&sorted) < mean(b));
            if !same && helps {
                best = Some(sorted);
            }
            !same
        });
        match best {
            // All are alike: where the first does not fit, none does.
            _ if among.is_empty() => Node::One(places[0]),
            None => Node::Few(places.into()),
            Some(sorted) => {
                self.left -= sorted.pairs.len();
                among.retain(|&by| by != sorted.by);
                self.split(&sorted, &among)
            }
        }
    }

    /// `None`: that would take too much memory.
    fn sorted(&self, places: &[u16], by: By) -> Option<Sorted> {
        let (mut pairs, mut keys) = (Vec::new(), Vec::new());
        for place in places {
            keys.clear();
            by.keys(self.rules.get(usize::from(*place))?, &mut keys);
            pairs.extend(keys.iter().map(|key| (*key, *place)));
            if pairs.len() > (places.len() * COPIES).min(self.left) {
                return None;
            }
        }
        pairs.sort_unstable();
        let groups = pairs.chunk_by(|a, b| a.0 == b.0);
        let alike = groups.map(|group| group.len() * group.len()).sum();
        Some(Sorted { by, pairs, alike })
    }

    fn split(&mut self, sorted: &Sorted, among: &[By]) -> Node {
        let mut kinds: Vec<(u8, u16)> = Vec::new();
        let mut children = Vec::new();
        for group in sorted.pairs.chunk_by(|a, b| a.0 == b.0) {
            let [(key, first), ..] = *group else {
                continue;
            };
            match kinds.last_mut().filter(|(kind, _)| *kind == key.kind) {
                Some((_, lowest)) => *lowest = first.min(*lowest),
                None => kinds.push((key.kind, first)),
            }
            let places = group.iter().map(|(_, place)| *place).collect();
            let node = self.node(places, among.to_vec());
            children.push(Child { key, first, node });
        }
        kinds.sort_unstable_by_key(|(_, first)| *first);
        Node::Split(Box::new(Split {
            by: sorted.by,
            kinds: kinds.into(),
            children: children.into(),
        }))
    }
}

#[cfg(test)]
mod tests {
    use alloc::sync::Arc;
    use alloc::vec;
    use core::net::{Ipv4Addr, Ipv6Addr};
    use core::time::Duration;

    use flexcp_testkit::Random;

    use super::*;
    use crate::handle::ServiceId;
    use crate::steering::{Rules, SmallestDelay};

    /// Few enough of each that rules and connections meet.
    fn address(random: &mut Random, spread: u64) -> IpAddr {
        let host = u32::try_from(random.below(spread)).unwrap();
        if random.one_in(3) {
            let high = u128::from(host) << 90;
            Ipv6Addr::from_bits((0x2001_0db8 << 96) ^ high ^ u128::from(host)).into()
        } else {
            Ipv4Addr::from_bits(0x0a00_0000 ^ host.rotate_right(random.word() % 2 * 16)).into()
        }
    }

    fn prefixes(random: &mut Random, spread: u64) -> Vec<Prefix> {
        let count = random.pick(&[0, 0, 1, 1, 1, 2, 9]);
        let prefix = |random: &mut Random| {
            let addr = address(random, spread);
            let whole = if addr.is_ipv4() { 32 } else { 128 };
            let len = random.pick(&[0, 8, 16, 20, 24, 31, 32, 48, 64, 127, 128]);
            let len = whole.min(len);
            Prefix { addr, len }
        };
        (0..count).map(|_| prefix(random)).collect()
    }

    fn rule(random: &mut Random, spread: u64) -> Rule {
        let port = |random: &mut Random| u16::try_from(random.below(spread * 7) % 65_536).unwrap();
        let range = |random: &mut Random| {
            let low = port(random);
            let long = random.pick(&[0, 0, 0, 1, 30, 5000, u16::MAX]);
            low..=low.saturating_add(long)
        };
        let (services, ports) = (random.pick(&[0, 1, 1, 3]), random.pick(&[0, 1, 1, 3]));
        Rule {
            name: "".into(),
            services: (0..services)
                .map(|_| ServiceId(u16::try_from(random.below(spread)).unwrap()))
                .collect(),
            servers: prefixes(random, spread),
            ports: (0..ports).map(|_| range(random)).collect(),
            clients: prefixes(random, spread),
            mode: Arc::new(SmallestDelay),
            hold: Duration::ZERO,
            fail_back: Duration::ZERO,
            heeds_backup: true,
            carrier: None,
        }
    }

    fn connection(random: &mut Random, spread: u64) -> Descriptor {
        let port = u16::try_from(random.below(spread * 7) % 65_536).unwrap();
        Descriptor {
            service: ServiceId(u16::try_from(random.below(spread)).unwrap()),
            server: (address(random, spread), port).into(),
            client: address(random, spread),
        }
    }

    #[test]
    fn finds_what_a_look_at_each_finds() {
        let mut found = [0, 0];
        for seed in 0..400 {
            let mut random = Random::new(seed);
            let random = &mut random;
            let spread = random.pick(&[1, 3, 30, 1000, 60_000]);
            let count = random.pick(&[0, 1, 4, 5, 20, 100, 500]);
            // Some sets say the same of one thing, or nothing.
            let [same, bare] = [0, 1].map(|_| random.below(9));
            let model = rule(random, spread);
            let mut drawn = |_| {
                let mut rule = rule(random, spread);
                for (of, change) in [(same, Some(&model)), (bare, None)] {
                    match of {
                        0 => rule.services = change.map_or(vec![], |it| it.services.clone()),
                        1 => rule.servers = change.map_or(vec![], |it| it.servers.clone()),
                        2 => rule.ports = change.map_or(vec![], |it| it.ports.clone()),
                        3 => rule.clients = change.map_or(vec![], |it| it.clients.clone()),
                        _ => {}
                    }
                }
                rule
            };
            let all: Vec<Rule> = (0..count).map(&mut drawn).collect();
            let rules = Rules::new(all, 0, &Rules::default());
            for _ in 0..200 {
                let of = connection(random, spread);
                let place = rules.find(&of);
                assert_eq!(place, rules.find_one_by_one(&of), "seed {seed}: {of:?}");
                found[usize::from(place.is_some())] += 1;
            }
        }
        assert!(found[0] > 5000 && found[1] > 5000, "{found:?}");
    }

    #[test]
    fn ranges_of_ports_are_the_fewest_prefixes() {
        let keys = |range| {
            let mut keys = vec![];
            port_keys(&range, &mut keys);
            let pairs = keys.iter().map(|key| (key.kind, key.bits));
            pairs.collect::<Vec<_>>()
        };
        assert_eq!(keys(443..=443), [(16, 443)]);
        assert_eq!(keys(0..=65_535), [(0, 0)]);
        assert_eq!(keys(1..=6), [(16, 1), (15, 2), (15, 4), (16, 6)]);
        assert_eq!(keys(65_534..=65_535), [(15, 65_534)]);
        assert_eq!(keys(1..=65_534).len(), 30);
    }

    /// Rules whose ranges of ports overlap are too many copies: they are tried one by one, and take no memory.
    #[test]
    fn memory_is_bounded() {
        let rules: Vec<Rule> = (0..2000_u16)
            .map(|n| Rule {
                ports: vec![n + 1..=65_534 - n, 2 * n + 1..=60_000 + n],
                services: vec![],
                servers: vec![],
                clients: vec![],
                ..rule(&mut Random::new(1), 1)
            })
            .collect();
        let index = Index::new(&rules);
        let Some(Node::Few(places)) = index.root else {
            panic!("{:?}", index.root);
        };
        assert_eq!(places.len(), 2000);
    }
}

//! What leaves from an address of an uplink leaves by that uplink: which rules and routes FlexCP has for that, and what keeps an
//! address from having them.

use std::net::IpAddr;

use flexcp_io::{UplinkWay, interfaces, local_addresses, uplink_ways};
use flexcp_translator::Uplink;

use super::Uplinks;
use crate::config::file::Mode;
use crate::config::live::is_routed;
use crate::config::{Config, plan};

/// What is known of the ways of uplinks. Times are of the monotonic clock, in microseconds.
#[derive(Default, Debug)]
pub(crate) struct Ways {
    /// Addresses that have no default route.
    lacking: Vec<Lack>,
    /// Addresses that an uplink has, and one before it, too.
    shared: Vec<(String, IpAddr)>,
    /// Why the kernel has not what it should.
    failed: Option<String>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Lack {
    interface: String,
    addr: IpAddr,
    since: u64,
    /// Whether it has lasted: no default route is on its way.
    lasts: bool,
}

impl Ways {
    /// The ways as they should be now, of those `names`d, each with the table that it has among the `known` ones, or else one of
    /// those behind `table`.
    pub(crate) fn find(
        &mut self,
        names: &[String],
        known: &[UplinkWay],
        table: u32,
        now: u64,
    ) -> Vec<UplinkWay> {
        if names.is_empty() {
            *self = Self::default();
            return Vec::new();
        }
        let mut addresses = local_addresses();
        addresses.retain(|(_, addr)| is_routed(*addr));
        let found = match uplink_ways(&tables(names, known, table), &addresses) {
            Ok(found) => found,
            Err(error) => {
                self.note_failure(&error);
                return known.to_vec();
            }
        };
        self.failed = None;
        let there = interfaces().unwrap_or_default();
        let carries = |name: &str| there.iter().any(|one| one.name == name && one.carrier);
        // Without a carrier it is no uplink, and misses nothing.
        let lacking = found.lacking.into_iter().filter(|(name, _)| carries(name));
        self.note_lacking(lacking, now);
        self.shared = found.shared;
        found.ways
    }

    fn note_lacking(&mut self, lacking: impl Iterator<Item = (String, IpAddr)>, now: u64) {
        let before = std::mem::take(&mut self.lacking);
        self.lacking = lacking
            .map(|(interface, addr)| {
                let same = |known: &&Lack| known.interface == interface && known.addr == addr;
                let since = before.iter().find(same).map_or(now, |known| known.since);
                Lack {
                    lasts: now >= since + PATIENCE,
                    interface,
                    addr,
                    since,
                }
            })
            .collect();
    }

    /// The kernel has not been brought to what it should have.
    pub(crate) fn note_failure(&mut self, error: &dyn std::error::Error) {
        let said = format!("what leaves from uplinks' addresses may not leave by them: {error}");
        self.failed = Some(said);
    }

    /// When to look again for a default route that may be on its way.
    pub(crate) fn due(&self) -> Option<u64> {
        let waiting = self.lacking.iter().filter(|lack| !lack.lasts);
        waiting.map(|lack| lack.since + PATIENCE).min()
    }

    /// Leaves out addresses that are new and wait for their default route: what left from them would leave by another uplink.
    pub(crate) fn hold_back(&self, before: &Uplinks, found: &mut Uplinks) {
        let waits = |addr: IpAddr| {
            let mut lacking = self.lacking.iter();
            lacking.any(|lack| lack.addr == addr && !lack.lasts)
        };
        let is_known = |addr: IpAddr| {
            let mut known = before.iter().flatten().flat_map(Uplink::addrs);
            known.any(|known| known == addr)
        };
        for uplink in found.iter_mut().flatten() {
            let new = |addr: &IpAddr| is_known(*addr) || !waits(*addr);
            uplink.v4 = uplink.v4.filter(|addr| new(&(*addr).into()));
            uplink.v6 = uplink.v6.filter(|addr| new(&(*addr).into()));
        }
    }

    /// What is wrong, a line each.
    pub(crate) fn problems(&self) -> impl Iterator<Item = String> {
        let lacking = self.lacking.iter().filter(|lack| lack.lasts);
        let lacking = lacking.map(|Lack { interface, addr, .. }| {
            format!(
                "uplink {interface} has the address {addr} and no default route in the table main, so what leaves from there \
                 is routed as anything else: add one (ip route add default … dev {interface} metric 1000), or write `routes = \
                 false` if you route it yourself"
            )
        });
        let shared = self.shared.iter().map(|(interface, addr)| {
            format!(
                "uplink {interface} has the address {addr}, which one before it has, too: what leaves from there leaves by \
                 that one; give the modems different networks"
            )
        });
        lacking.chain(shared).chain(self.failed.clone())
    }
}

/// The uplinks of boxes that FlexCP routes, each once. In a VRF it leaves that to the host.
pub(crate) fn routed(config: &Config) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for service in &config.services {
        if let Mode::Box {
            uplinks, routes, ..
        } = &service.mode
            && routes.value
            && plan::vrf(config).is_none()
        {
            let new = uplinks.iter().map(|name| &name.value);
            let new = new.filter(|name| !names.contains(name)).cloned();
            names.extend(new.collect::<Vec<_>>());
        }
    }
    names
}

/// The ways as they should be at the start.
pub(crate) fn first(config: &Config) -> Vec<UplinkWay> {
    let mut ways = Ways::default();
    ways.find(&routed(config), &[], plan::table(config), 0)
}

/// A table for each of the uplinks: that which it has, or else the first behind `own` that is free.
fn tables(names: &[String], known: &[UplinkWay], own: u32) -> Vec<(String, u32)> {
    let has = |name: &String| known.iter().find(|way| way.interface == *name);
    let mut taken: Vec<_> = names.iter().filter_map(has).map(|way| way.table).collect();
    let mut all = Vec::new();
    for name in names {
        let table = has(name).map(|way| way.table).or_else(|| {
            let mut behind = (1..).map(|n| own.wrapping_add(n));
            behind.find(|table| !KERNELS.contains(table) && !taken.contains(table))
        });
        all.extend(table.map(|table| (name.clone(), table)));
        taken.extend(table);
    }
    all
}

/// What is new about where packets leave, a line each.
pub(crate) fn new(before: &[UplinkWay], now: &[UplinkWay]) -> Vec<String> {
    let had = |way: &UplinkWay, addr: &IpAddr| {
        let mut same = before
            .iter()
            .filter(|old| old.interface == way.interface && old.table == way.table);
        same.any(|old| old.addresses.contains(addr))
    };
    let lines = now.iter().flat_map(|way| {
        let new = way.addresses.iter().filter(move |addr| !had(way, addr));
        new.map(|addr| {
            let (interface, table) = (&way.interface, way.table);
            format!("uplink {interface}: what leaves from {addr} leaves by it (table {table})")
        })
    });
    lines.collect()
}

/// So long an address waits for its default route: a DHCP client sets it right after the address.
const PATIENCE: u64 = 1_000_000;
/// Tables that are the kernel's.
const KERNELS: [u32; 4] = [0, 253, 254, 255];

#[cfg(test)]
mod tests {
    use flexcp_io::Copies;

    use super::*;

    fn way(interface: &str, table: u32, addresses: &[[u8; 4]]) -> UplinkWay {
        UplinkWay {
            interface: interface.into(),
            table,
            addresses: addresses.iter().map(|addr| IpAddr::from(*addr)).collect(),
            routes: Copies::default(),
        }
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn numbers(of: &[&str], known: &[UplinkWay], own: u32) -> Vec<u32> {
        let tables = tables(&names(of), known, own);
        tables.into_iter().map(|(_, table)| table).collect()
    }

    #[test]
    fn tables_follow_that_of_the_device_and_stay() {
        assert_eq!(numbers(&["dsl0", "lte0"], &[], 7300), [7301, 7302]);
        let known = [way("dsl0", 7301, &[]), way("lte0", 7302, &[])];
        assert_eq!(numbers(&["lte0", "sat0"], &known, 7300), [7302, 7301]);
        let three = numbers(&["sat0", "lte0", "dsl0"], &known, 7300);
        assert_eq!(three, [7303, 7302, 7301]);
        assert_eq!(numbers(&["dsl0", "lte0"], &[], 252), [256, 257]);
        assert_eq!(numbers(&["dsl0"], &[], u32::MAX), [1]);
    }

    #[test]
    fn uplinks_that_flexcp_routes_are_each_named_once() {
        let text = |name: &str, uplinks: &str, rest: &str| {
            format!(
                "[[service]]\nname = '{name}'\nmode = 'box'\ninterfaces = ['lan0']\n\
                 destinations = ['10.{}.0.0/16']\nuplinks = {uplinks}\n{rest}\n",
                name.len()
            )
        };
        let all = |last: &str| {
            let services = [
                text("a", "['dsl0', 'lte0']", ""),
                text("bb", "['sat0']", "routes = false"),
                text("ccc", "['lte0', 'wifi0']", "routes = true"),
            ];
            let config = crate::config::parse("f", &(services.concat() + last)).0;
            routed(&config.expect("a configuration"))
        };
        assert_eq!(all(""), names(&["dsl0", "lte0", "wifi0"]));
        assert_eq!(all("[device]\nvrf = 'red'\n"), names(&[]));
    }

    #[test]
    fn address_waits_a_second_for_its_default_route() {
        let addr: IpAddr = [10, 64, 0, 5].into();
        let lack = || [("lte0".to_owned(), addr)].into_iter();
        let of = |addr: IpAddr| vec![vec![Uplink::default(), addr.into()]];
        let none = vec![vec![Uplink::default(), Uplink::default()]];
        let held = |ways: &Ways, before: &Uplinks| {
            let mut found = of(addr);
            ways.hold_back(before, &mut found);
            found == none
        };
        let mut ways = Ways::default();
        assert!(!held(&ways, &none));
        ways.note_lacking(lack(), 5);
        assert_eq!(
            (ways.problems().count(), ways.due()),
            (0, Some(5 + PATIENCE))
        );
        assert!(held(&ways, &none) && !held(&ways, &of(addr)));
        assert!(held(&ways, &of([10, 64, 0, 4].into())));
        ways.note_lacking(lack(), 4 + PATIENCE);
        assert!(held(&ways, &none));
        ways.note_lacking(lack(), 5 + PATIENCE);
        assert!(!held(&ways, &none));
        assert_eq!(ways.due(), None);
        let told: Vec<_> = ways.problems().collect();
        assert!(
            told[0].starts_with("uplink lte0 has the address 10.64.0.5 and no"),
            "{told:?}"
        );
        ways.note_lacking(std::iter::empty(), 6 + PATIENCE);
        assert_eq!(ways.problems().count(), 0);
    }

    #[test]
    fn what_leaves_by_another_way_is_told() {
        let before = [way("lte0", 7302, &[[10, 64, 0, 5]])];
        let now = [way("lte0", 7302, &[[10, 64, 0, 5], [10, 64, 0, 6]])];
        assert_eq!(
            new(&before, &now),
            ["uplink lte0: what leaves from 10.64.0.6 leaves by it (table 7302)"]
        );
        assert_eq!(new(&now, &before), [""; 0]);
    }
}

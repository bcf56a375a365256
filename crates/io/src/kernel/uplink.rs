//! What leaves from an address of an uplink leaves by that uplink.
//!
//! Each uplink has a table: the default route of its interface, and all routes of the table `main` to single networks but for
//! those behind other uplinks, so that what leads to the LAN does so from every address. A rule `from ADDRESS lookup TABLE`
//! for each address leads there.
//!
//! The rules name no interface: what FlexCP sends comes from its device, what this host sends itself from `lo`, and the
//! filter for the reverse path asks as if from either. An address that a rule of others is about is left to that rule.

#[cfg(test)]
mod tests;

use std::net::IpAddr;

use flexcp_translator::Prefix;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_REPLACE};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteNextHopFlags, RouteProtocol,
    RouteType,
};
use netlink_packet_route::rule::RuleMessage;

use super::address::interface_index;
use super::netlink::Netlink;
use super::{Family, KernelError, PROTOCOL, Plan, route, rules};

/// An uplink, and how packets from its addresses leave.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UplinkWay {
    /// The interface.
    pub interface: String,
    /// The routing table that it has for itself.
    pub table: u32,
    /// The addresses whose packets look up that table.
    pub addresses: Vec<IpAddr>,
    /// What is in the table.
    pub routes: Copies,
}

/// Routes of the table `main`, as another table holds them: those to the smallest networks first.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Copies(Vec<RouteMessage>);

/// The ways of a host's uplinks as they should be now.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct FoundWays {
    /// Of each uplink that is there, in the order that was asked for.
    pub ways: Vec<UplinkWay>,
    /// Addresses whose interface, which comes first, has no default route.
    pub lacking: Vec<(String, IpAddr)>,
    /// Addresses that an uplink has, and one before it, too.
    pub shared: Vec<(String, IpAddr)>,
}

/// Asks the kernel how packets from the addresses of uplinks should leave. `uplinks`: interfaces, and the table of each;
/// `addresses`: of this host, with the names of their interfaces.
///
/// # Errors
/// When rules or routes cannot be read.
pub fn uplink_ways(
    uplinks: &[(String, u32)],
    addresses: &[(String, IpAddr)],
) -> Result<FoundWays, KernelError> {
    let mut netlink = Netlink::open()?;
    let mut seen = Seen::default();
    for family in Family::BOTH {
        let rules = rules::dump(&mut netlink, family)?;
        seen.rules.extend(rules);
        let keep = &mut |route: RouteMessage| {
            if is_of_interest(&route) {
                seen.main.push(route);
            }
        };
        route::of_table(&mut netlink, family, TABLE_MAIN, keep).map_err(|source| {
            KernelError::Route {
                action: "read",
                family,
                table: TABLE_MAIN,
                source,
            }
        })?;
    }
    let uplinks = uplinks.iter().filter_map(|(interface, table)| {
        Some(Uplink {
            interface: interface.clone(),
            table: *table,
            index: interface_index(interface)?,
        })
    });
    Ok(seen.ways(&uplinks.collect::<Vec<_>>(), addresses))
}

/// An uplink that is there.
#[derive(Clone, Debug)]
struct Uplink {
    interface: String,
    table: u32,
    index: u32,
}

/// What the kernel tells, of both families.
#[derive(Default, Debug)]
struct Seen {
    rules: Vec<RuleMessage>,
    /// Of the table `main`.
    main: Vec<RouteMessage>,
}

impl Seen {
    fn ways(&self, uplinks: &[Uplink], addresses: &[(String, IpAddr)]) -> FoundWays {
        let mut found = FoundWays::default();
        let mut known: Vec<IpAddr> = Vec::new();
        for uplink in uplinks {
            let mut way = UplinkWay {
                interface: uplink.interface.clone(),
                table: uplink.table,
                addresses: Vec::new(),
                routes: Copies::default(),
            };
            for family in Family::BOTH {
                let own = addresses.iter().filter(|(name, _)| *name == way.interface);
                let own = own.map(|(_, addr)| *addr);
                let of_family = own.filter(|addr| Family::of(*addr) == family);
                let mut own: Vec<_> = of_family.take(MOST_ADDRESSES).collect();
                own.retain(|addr| {
                    let shared = known.contains(addr);
                    if shared {
                        found.shared.push((way.interface.clone(), *addr));
                    }
                    !shared && !self.is_left_to_others(*addr)
                });
                known.extend(&own);
                let Some(default) = self.default_of(family, uplink.index) else {
                    let lacking = own.into_iter().map(|addr| (way.interface.clone(), addr));
                    found.lacking.extend(lacking);
                    continue;
                };
                if !own.is_empty() {
                    way.addresses.extend(own);
                    let single = self.single_networks(family, uplink, uplinks);
                    let all = single.into_iter().chain([default]);
                    way.routes
                        .0
                        .extend(all.map(|route| copy(&route, way.table)));
                }
            }
            found.ways.push(way);
        }
        found
    }

    /// Whether somebody else has a rule for all that leaves from that address.
    fn is_left_to_others(&self, addr: IpAddr) -> bool {
        let mut prefixes = self.rules.iter().filter_map(rules::is_by_source);
        prefixes.any(|prefix| prefix.contains(addr))
    }

    /// The default route by an interface that the kernel prefers.
    fn default_of(&self, family: Family, index: u32) -> Option<RouteMessage> {
        let defaults = self.main.iter().filter(|route| {
            let header = &route.header;
            header.address_family == family.netlink()
                && header.destination_prefix_length == 0
                && header.kind == RouteType::Unicast
        });
        let by_it = defaults.filter_map(|route| by_interface(route, index));
        by_it.min_by_key(priority)
    }

    /// What leads to less than everything, and to no network behind another uplink.
    fn single_networks(
        &self,
        family: Family,
        uplink: &Uplink,
        all: &[Uplink],
    ) -> Vec<RouteMessage> {
        let is_other = |index: u32| index != uplink.index && all.iter().any(|o| o.index == index);
        let routes = self.main.iter().filter(|route| {
            route.header.address_family == family.netlink()
                && route.header.destination_prefix_length > 0
                && !interface_of(route).is_some_and(is_other)
        });
        let mut routes: Vec<_> = routes.cloned().collect();
        // Gateways have to be reachable first; of those that are alike the kernel takes the first.
        routes.sort_by_key(|route| {
            let len = u8::MAX - route.header.destination_prefix_length;
            (len, interface_of(route) != Some(uplink.index))
        });
        let mut each: Vec<RouteMessage> = Vec::new();
        for route in routes {
            if !each.iter().any(|known| is_alike(known, &route)) {
                each.push(route);
            }
        }
        each.truncate(MOST_ROUTES);
        each
    }
}

/// Whether a table of an uplink may have a copy of the route: of single networks that whose route somebody has set, a DHCP
/// client or the kernel, and not those that a routing daemon learns, of which there may be a million.
fn is_of_interest(route: &RouteMessage) -> bool {
    use RouteProtocol as By;
    let header = &route.header;
    if header.source_prefix_length > 0 || header.tos > 0 {
        return false;
    }
    let has = |part: fn(&RouteAttribute) -> bool| route.attributes.iter().any(part);
    if header.destination_prefix_length == 0 {
        return !has(|part| matches!(part, RouteAttribute::Encap(_)));
    }
    let of_link = |part: &RouteAttribute| match part {
        RouteAttribute::Destination(RouteAddress::Inet6(to)) => {
            to.is_unicast_link_local() || to.is_multicast()
        }
        RouteAttribute::MultiPath(_) | RouteAttribute::Encap(_) => true,
        _ => false,
    };
    matches!(
        header.protocol,
        By::Kernel | By::Boot | By::Static | By::Ra | By::Dhcp
    ) && matches!(
        header.kind,
        RouteType::Unicast | RouteType::BlackHole | RouteType::Unreachable | RouteType::Prohibit
    ) && !route.attributes.iter().any(of_link)
}

/// The route if it leads to that interface; of several next hops, the one there.
fn by_interface(route: &RouteMessage, index: u32) -> Option<RouteMessage> {
    let mut hops = route.attributes.iter().filter_map(|part| match part {
        RouteAttribute::MultiPath(hops) => Some(hops),
        _ => None,
    });
    let Some(hops) = hops.next() else {
        return (interface_of(route) == Some(index)).then(|| route.clone());
    };
    let hop = hops.iter().find(|hop| hop.interface_index == index)?;
    let mut single = route.clone();
    let several = |part: &RouteAttribute| matches!(part, RouteAttribute::MultiPath(_));
    single.attributes.retain(|part| !several(part));
    single.attributes.push(RouteAttribute::Oif(index));
    single.attributes.extend(hop.attributes.iter().cloned());
    if hop.flags.contains(RouteNextHopFlags::Onlink) {
        single.header.flags |= RouteFlags::Onlink;
    }
    Some(single)
}

fn interface_of(route: &RouteMessage) -> Option<u32> {
    route.attributes.iter().find_map(|part| match part {
        RouteAttribute::Oif(index) => Some(*index),
        _ => None,
    })
}

/// The metric: the kernel takes the least.
fn priority(route: &RouteMessage) -> u32 {
    let priority = |part: &RouteAttribute| match part {
        RouteAttribute::Priority(priority) => Some(*priority),
        _ => None,
    };
    route.attributes.iter().find_map(priority).unwrap_or(0)
}

/// Whether one takes the other's place in a table.
fn is_alike(a: &RouteMessage, b: &RouteMessage) -> bool {
    let to = |route: &RouteMessage| {
        let destination = |part: &RouteAttribute| match part {
            RouteAttribute::Destination(to) => Some(to.clone()),
            _ => None,
        };
        let destination = route.attributes.iter().find_map(destination);
        let header = &route.header;
        let len = header.destination_prefix_length;
        (header.address_family, len, destination, priority(route))
    };
    to(a) == to(b)
}

/// The route as it is in another table, as FlexCP's. Those that are listed by the kernel and copied once more are the same.
/// Which source address it prefers is left out: whoever looks it up has one.
fn copy(route: &RouteMessage, table: u32) -> RouteMessage {
    let mut copy = RouteMessage::default();
    copy.header.address_family = route.header.address_family;
    copy.header.destination_prefix_length = route.header.destination_prefix_length;
    copy.header.protocol = RouteProtocol::from(PROTOCOL);
    copy.header.scope = route.header.scope;
    copy.header.kind = route.header.kind;
    copy.header.flags = route.header.flags & RouteFlags::Onlink;
    copy.attributes.push(RouteAttribute::Table(table));
    let kinds: [fn(&RouteAttribute) -> bool; 6] = [
        |part| matches!(part, RouteAttribute::Destination(_)),
        |part| matches!(part, RouteAttribute::Gateway(_)),
        |part| matches!(part, RouteAttribute::Via(_)),
        |part| matches!(part, RouteAttribute::Oif(_)),
        |part| matches!(part, RouteAttribute::Priority(_)),
        |part| matches!(part, RouteAttribute::Metrics(_)),
    ];
    for kind in kinds {
        let part = route.attributes.iter().find(|part| kind(part));
        copy.attributes.extend(part.cloned());
    }
    copy
}

impl Plan {
    /// The addresses of uplinks, of one family, and the table of each.
    pub(super) fn addresses_of_uplinks(
        &self,
        family: Family,
    ) -> impl Iterator<Item = (Prefix, u32)> {
        let each = self.uplinks.iter().flat_map(|way| {
            let addresses = way.addresses.iter();
            addresses.map(|addr| (*addr, way.table))
        });
        let of_family = each.filter(move |(addr, _)| Family::of(*addr) == family);
        of_family.map(move |(addr, table)| {
            let len = family.address_len();
            (Prefix { addr, len }, table)
        })
    }

    fn routes_of_uplinks(&self, family: Family) -> impl Iterator<Item = &RouteMessage> {
        let all = self.uplinks.iter().flat_map(|way| &way.routes.0);
        all.filter(move |route| route.header.address_family == family.netlink())
    }
}

/// Refuses when somebody else has routes in the tables of uplinks, but for those that are `known` as FlexCP's.
pub(super) fn check_unused(
    netlink: &mut Netlink,
    plan: &Plan,
    family: Family,
    known: &[UplinkWay],
) -> Result<(), KernelError> {
    let is_known = |table: &u32| known.iter().any(|way| way.table == *table);
    let mut tables = plan.uplinks.iter().map(|way| way.table);
    tables.try_for_each(|table| match is_known(&table) {
        true => Ok(()),
        false => route::check_unused(netlink, family, table),
    })
}

/// Adds what the tables of uplinks lack, or only counts it when `change` is not said. What the kernel refuses because an
/// address or a link has just gone is left out: it tells of that, too, and what should be there is found anew.
pub(super) fn fill(
    netlink: &mut Netlink,
    plan: &Plan,
    family: Family,
    change: bool,
) -> Result<u32, KernelError> {
    if plan.uplinks.is_empty() {
        return Ok(0);
    }
    let there = listed(netlink, plan, family)?;
    let mut missing = 0;
    for route in plan.routes_of_uplinks(family) {
        if there.iter().any(|(known, _)| known == route) {
            continue;
        }
        let message = RouteNetlinkMessage::NewRoute(route.clone());
        let added = match change {
            true => netlink.change(message, NLM_F_CREATE | NLM_F_REPLACE),
            false => Ok(()),
        };
        match added {
            Err(error) if error.refusal().is_some_and(is_over) => {}
            added => {
                added.map_err(|source| KernelError::Route {
                    action: "add",
                    family,
                    table: route::table(route),
                    source,
                })?;
                missing += 1;
            }
        }
    }
    Ok(missing)
}

/// Takes away FlexCP's routes that neither its own table nor those of uplinks should have, or only counts them.
pub(super) fn clear(
    netlink: &mut Netlink,
    plan: &Plan,
    family: Family,
    change: bool,
) -> Result<u32, KernelError> {
    let mut surplus = 0;
    for (known, as_listed) in listed(netlink, plan, family)? {
        if plan.routes_of_uplinks(family).any(|route| *route == known) {
            continue;
        }
        if change {
            route::delete(netlink, family, as_listed, &mut |_| {})?;
        }
        surplus += 1;
    }
    Ok(surplus)
}

/// FlexCP's routes in other tables than that which leads to its device: as copies, and as the kernel lists them.
fn listed(
    netlink: &mut Netlink,
    plan: &Plan,
    family: Family,
) -> Result<Vec<(RouteMessage, RouteMessage)>, KernelError> {
    let ours = route::dump_ours(netlink, family)?.into_iter();
    let pairs = ours.map(|route| (copy(&route, route::table(&route)), route));
    Ok(pairs
        .filter(|(_, route)| route::table(route) != plan.table)
        .collect())
}

/// Whether the kernel refuses a route so because the link or the gateway that it leads to is not there any more.
fn is_over(refusal: i32) -> bool {
    matches!(
        refusal,
        libc::ENETUNREACH | libc::EHOSTUNREACH | libc::ENETDOWN | libc::ENODEV | libc::EINVAL
    )
}

const TABLE_MAIN: u32 = 254;
/// Of an uplink, and of one family, that have rules.
const MOST_ADDRESSES: usize = 16;
/// To single networks that a table of an uplink has, of one family.
const MOST_ROUTES: usize = 1024;

//! Our routing table: one default route through the TUN device per family. And routes of ours in whichever table.

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::route::{
    RouteAttribute, RouteMessage, RouteProtocol, RouteScope, RouteType,
};

use super::netlink::{Netlink, NetlinkError};
use super::{Family, KernelError, PROTOCOL};

/// Refuses when there are routes in the table that are not ours: they would not survive us, or we not them.
pub(crate) fn check_unused(
    netlink: &mut Netlink,
    family: Family,
    table: u32,
) -> Result<(), KernelError> {
    let routes = dump(netlink, family, table).map_err(|source| KernelError::Route {
        action: "read",
        family,
        table,
        source,
    })?;
    if routes.iter().all(is_ours) {
        Ok(())
    } else {
        Err(KernelError::TableInUse { family, table })
    }
}

/// Adds `default dev <index> table <table>`.
pub(crate) fn add_default(
    netlink: &mut Netlink,
    family: Family,
    table: u32,
    index: u32,
) -> Result<(), KernelError> {
    let mut route = RouteMessage::default();
    route.header.address_family = family.netlink();
    route.header.protocol = RouteProtocol::from(PROTOCOL);
    route.header.scope = match family {
        Family::V4 => RouteScope::Link,
        Family::V6 => RouteScope::Universe,
    };
    route.header.kind = RouteType::Unicast;
    route.attributes = vec![RouteAttribute::Table(table), RouteAttribute::Oif(index)];
    netlink
        .change(
            RouteNetlinkMessage::NewRoute(route),
            NLM_F_CREATE | NLM_F_EXCL,
        )
        .map_err(|source| KernelError::Route {
            action: "add",
            family,
            table,
            source,
        })
}

/// Whether the route that [`add_default`] adds is there.
pub(crate) fn is_there(
    netlink: &mut Netlink,
    family: Family,
    table: u32,
    index: u32,
) -> Result<bool, KernelError> {
    let routes = dump(netlink, family, table).map_err(|source| KernelError::Route {
        action: "read",
        family,
        table,
        source,
    })?;
    Ok(routes.iter().any(|route| {
        route.header.protocol == RouteProtocol::from(PROTOCOL)
            && route.header.destination_prefix_length == 0
            && route.header.kind == RouteType::Unicast
            && route.attributes.contains(&RouteAttribute::Oif(index))
    }))
}

/// Removes the table's routes through the device, of both families.
pub(crate) fn remove(netlink: &mut Netlink, table: u32, index: u32) -> Result<(), KernelError> {
    let through = |route: &RouteMessage| route.attributes.contains(&RouteAttribute::Oif(index));
    remove_those(netlink, table, &through, &mut |_| {})
}

/// The same of one family, each told to `report`.
pub(crate) fn remove_of(
    netlink: &mut Netlink,
    family: Family,
    table: u32,
    index: u32,
    report: &mut dyn FnMut(&str),
) -> Result<(), KernelError> {
    let of_it = |route: &RouteMessage| {
        route.header.address_family == family.netlink()
            && route.attributes.contains(&RouteAttribute::Oif(index))
    };
    remove_those(netlink, table, &of_it, report)
}

/// Removes the routes that are FlexCP's by their protocol, whichever table they are in and whatever they lead to.
pub(crate) fn remove_ours(
    netlink: &mut Netlink,
    report: &mut dyn FnMut(&str),
) -> Result<(), KernelError> {
    for family in Family::BOTH {
        for route in dump_ours(netlink, family)? {
            delete(netlink, family, route, report)?;
        }
    }
    Ok(())
}

fn remove_those(
    netlink: &mut Netlink,
    table: u32,
    which: &dyn Fn(&RouteMessage) -> bool,
    report: &mut dyn FnMut(&str),
) -> Result<(), KernelError> {
    for family in Family::BOTH {
        let failed = |source| KernelError::Route {
            action: "remove",
            family,
            table,
            source,
        };
        for route in dump(netlink, family, table).map_err(failed)? {
            if which(&route) {
                delete(netlink, family, route, report)?;
            }
        }
    }
    Ok(())
}

/// Deletes a route as the kernel lists it. That it is gone already, as its device is down or away, is no error.
pub(super) fn delete(
    netlink: &mut Netlink,
    family: Family,
    route: RouteMessage,
    report: &mut dyn FnMut(&str),
) -> Result<(), KernelError> {
    let table = table(&route);
    match netlink.change(RouteNetlinkMessage::DelRoute(route), 0) {
        Err(error) if error.refusal() == Some(libc::ESRCH) => Ok(()),
        done => {
            done.map_err(|source| KernelError::Route {
                action: "remove",
                family,
                table,
                source,
            })?;
            report(&format!("route: {family} of table {table} removed"));
            Ok(())
        }
    }
}

/// The table that a route is in.
pub(super) fn table(route: &RouteMessage) -> u32 {
    let table = |attribute: &RouteAttribute| match attribute {
        RouteAttribute::Table(table) => Some(*table),
        _ => None,
    };
    let mut attributes = route.attributes.iter();
    attributes
        .find_map(table)
        .unwrap_or_else(|| route.header.table.into())
}

/// The routes of a family that are FlexCP's, of all tables.
pub(super) fn dump_ours(
    netlink: &mut Netlink,
    family: Family,
) -> Result<Vec<RouteMessage>, KernelError> {
    let mut question = RouteMessage::default();
    question.header.address_family = family.netlink();
    question.header.protocol = RouteProtocol::from(PROTOCOL);
    let mut ours = Vec::new();
    each(netlink, question, &mut |route| {
        if is_ours(&route) && route.header.address_family == family.netlink() {
            ours.push(route);
        }
    })
    .map_err(|source| KernelError::Route {
        action: "read",
        family,
        table: 0,
        source,
    })?;
    Ok(ours)
}

/// Whether it is FlexCP's by its protocol.
pub(super) fn is_ours(route: &RouteMessage) -> bool {
    route.header.protocol == RouteProtocol::from(PROTOCOL)
}

fn dump(
    netlink: &mut Netlink,
    family: Family,
    table: u32,
) -> Result<Vec<RouteMessage>, NetlinkError> {
    let mut routes = Vec::new();
    of_table(netlink, family, table, &mut |route| routes.push(route))?;
    Ok(routes)
}

/// The routes of a table, one after the other.
pub(super) fn of_table(
    netlink: &mut Netlink,
    family: Family,
    table: u32,
    found: &mut dyn FnMut(RouteMessage),
) -> Result<(), NetlinkError> {
    let mut question = RouteMessage::default();
    question.header.address_family = family.netlink();
    question.attributes = vec![RouteAttribute::Table(table)];
    each(netlink, question, &mut |route| {
        if route.header.address_family == family.netlink() && self::table(&route) == table {
            found(route);
        }
    })
}

fn each(
    netlink: &mut Netlink,
    question: RouteMessage,
    found: &mut dyn FnMut(RouteMessage),
) -> Result<(), NetlinkError> {
    let asked = netlink.dump_each(RouteNetlinkMessage::GetRoute(question), &mut |answer| {
        if let RouteNetlinkMessage::NewRoute(route) = answer {
            found(route);
        }
    });
    match asked {
        // No such table yet, or no such family.
        Err(error)
            if matches!(
                error.refusal(),
                Some(libc::ENOENT | libc::EAFNOSUPPORT | libc::EOPNOTSUPP)
            ) =>
        {
            Ok(())
        }
        asked => asked,
    }
}

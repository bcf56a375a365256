//! Our routing table: one default route through the TUN device per family.

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::route::{
    RouteAttribute, RouteMessage, RouteProtocol, RouteScope, RouteType,
};

use super::netlink::{Netlink, NetlinkError};
use super::{Family, KernelError, PROTOCOL};

/// Refuses when there are routes in the table: they would not survive us, or we not them.
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
    if routes.is_empty() {
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

/// Removes the table's routes that are FlexCP's by their protocol, whatever they lead to.
pub(crate) fn remove_ours(
    netlink: &mut Netlink,
    table: u32,
    report: &mut dyn FnMut(&str),
) -> Result<(), KernelError> {
    let ours = |route: &RouteMessage| route.header.protocol == RouteProtocol::from(PROTOCOL);
    remove_those(netlink, table, &ours, report)
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
            if !which(&route) {
                continue;
            }
            match netlink.change(RouteNetlinkMessage::DelRoute(route), 0) {
                // The device went down or away in the meantime.
                Err(error) if error.refusal() == Some(libc::ESRCH) => {}
                done => {
                    done.map_err(failed)?;
                    report(&format!("route: {family} of table {table} removed"));
                }
            }
        }
    }
    Ok(())
}

fn dump(
    netlink: &mut Netlink,
    family: Family,
    table: u32,
) -> Result<Vec<RouteMessage>, NetlinkError> {
    let mut question = RouteMessage::default();
    question.header.address_family = family.netlink();
    question.attributes = vec![RouteAttribute::Table(table)];
    let answers = match netlink.dump(RouteNetlinkMessage::GetRoute(question)) {
        // No such table yet, or no such family.
        Err(error)
            if matches!(
                error.refusal(),
                Some(libc::ENOENT | libc::EAFNOSUPPORT | libc::EOPNOTSUPP)
            ) =>
        {
            return Ok(Vec::new());
        }
        answers => answers?,
    };
    let of_table = |route: &RouteMessage| {
        route.header.address_family == family.netlink()
            && route.attributes.contains(&RouteAttribute::Table(table))
    };
    let routes = answers.into_iter().filter_map(|answer| match answer {
        RouteNetlinkMessage::NewRoute(route) => Some(route),
        _ => None,
    });
    Ok(routes.filter(of_table).collect())
}

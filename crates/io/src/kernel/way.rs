//! By which interface packets of FlexCP's leave for a client: the kernel's answer for packets that come from the device, with
//! all rules and tables that hold for them.

use flexcp_translator::{Way, Ways};
use flexcp_wire::Ends;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::route::{RouteAttribute, RouteMessage};
use rustix::net::netdevice;

use super::address::{interface_index, route_to};
use super::netlink::{Netlink, NetlinkError};

/// Asks the kernel for routes, one at a time: some microseconds each.
#[derive(Debug)]
pub struct RoutedWays {
    netlink: Netlink,
    /// Where the packets come from.
    device: Option<u32>,
    /// The interfaces that accesses name, in their order.
    names: Vec<String>,
}

impl RoutedWays {
    /// For packets that come from the device with this name. An interface that is not there is found once it is.
    ///
    /// # Errors
    /// When the kernel gives no socket to ask by.
    pub fn open(device: &str, names: Vec<String>) -> Result<Self, NetlinkError> {
        Ok(Self {
            netlink: Netlink::open()?,
            device: interface_index(device),
            names,
        })
    }

    /// The name of the interface; `None`: there is no route.
    fn interface(&mut self, ends: Ends) -> Option<String> {
        let mut question = route_to(ends.to.ip());
        question.header.source_prefix_length = question.header.destination_prefix_length;
        question.attributes.extend([
            RouteAttribute::Source(ends.from.ip().into()),
            // Rules may go by them, and so does the choice among several next hops.
            RouteAttribute::IpProto(TCP),
            RouteAttribute::Sport(ends.from.port()),
            RouteAttribute::Dport(ends.to.port()),
        ]);
        question
            .attributes
            .extend(self.device.map(RouteAttribute::Iif));
        let answers = self
            .netlink
            .get(RouteNetlinkMessage::GetRoute(question))
            .ok()?;
        let index = answers.into_iter().find_map(|answer| match answer {
            RouteNetlinkMessage::NewRoute(route) => leaves_by(&route),
            _ => None,
        });
        netdevice::index_to_name(self.netlink.socket(), index?).ok()
    }
}

impl Ways for RoutedWays {
    fn find(&mut self, ends: Ends) -> Way {
        if self.names.is_empty() {
            return Way::OTHER;
        }
        let name = self.interface(ends);
        let place = name.and_then(|name| self.names.iter().position(|named| *named == name));
        place.map_or(Way::OTHER, Way::named)
    }
}

fn leaves_by(route: &RouteMessage) -> Option<u32> {
    let mut attributes = route.attributes.iter();
    attributes.find_map(|attribute| match attribute {
        RouteAttribute::Oif(index) => Some(*index),
        _ => None,
    })
}

/// The protocol's number.
const TCP: u8 = 6;

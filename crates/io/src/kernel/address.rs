//! What the namespace has: interfaces, addresses, and the way to a destination.

use std::net::IpAddr;

use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{
    InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkLayerType, LinkMessage,
};
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use rustix::net::{AddressFamily as SocketFamily, SocketFlags, SocketType, netdevice, socket_with};

use super::netlink::{Netlink, NetlinkError};

/// Whether there is an interface of this name.
#[must_use]
pub fn interface_exists(name: &str) -> bool {
    interface_index(name).is_some()
}

/// Whether an interface can have this name (the kernel's `dev_valid_name`).
pub(crate) fn is_interface_name(name: &str) -> bool {
    let forbidden = |byte: u8| byte.is_ascii_whitespace() || b"\x0b/:\0".contains(&byte);
    !matches!(name, "" | "." | "..") && name.len() < libc::IFNAMSIZ && !name.bytes().any(forbidden)
}

pub(crate) fn interface_index(name: &str) -> Option<u32> {
    netdevice::name_to_index(any_socket()?, name).ok()
}

/// A network device as it is now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Interface {
    /// The kernel's number for it, which it keeps when it is renamed.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// What its packets have before the IP header.
    pub header: LinkHeader,
    /// Whether somebody has taken it up.
    pub up: bool,
    /// Whether packets get through: it is up, and so is its link.
    pub carrier: bool,
    /// Whether it is a VRF.
    pub is_vrf: bool,
    /// The VRF that it is in: packets from it are routed there.
    pub vrf: Option<String>,
    /// Whether it is a part of another device, as a bridge or a bond: its packets come in a second time, from that one.
    pub is_port: bool,
}

/// What a device's packets have before the IP header where programs at its ingress see them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LinkHeader {
    /// Ethernet's.
    Ethernet,
    /// Nothing: TUN, WireGuard, modems in raw IP mode, PPP, whose own header its driver takes off.
    Nothing,
    /// Something else, or FlexCP does not know.
    Other,
}

impl LinkHeader {
    /// By the kernel's type of a device (`ARPHRD_*`).
    fn of(kind: LinkLayerType) -> Self {
        match kind {
            LinkLayerType::Ether => Self::Ethernet,
            LinkLayerType::None | LinkLayerType::Rawip | LinkLayerType::Ppp => Self::Nothing,
            _ => Self::Other,
        }
    }
}

/// All network devices.
///
/// # Errors
/// When the kernel does not tell.
pub fn interfaces() -> Result<Vec<Interface>, NetlinkError> {
    let question = RouteNetlinkMessage::GetLink(LinkMessage::default());
    let answers = Netlink::open()?.dump(question)?;
    let named = answers.into_iter().filter_map(|answer| match answer {
        RouteNetlinkMessage::NewLink(message) => Interface::of(message),
        _ => None,
    });
    let (mut all, controllers): (Vec<_>, Vec<_>) = named.unzip();
    let vrfs: Vec<_> = all
        .iter()
        .filter(|interface| interface.is_vrf)
        .map(|vrf| (vrf.index, vrf.name.clone()))
        .collect();
    for (interface, controller) in all.iter_mut().zip(controllers) {
        let vrf = vrfs.iter().find(|(index, _)| controller == Some(*index));
        interface.vrf = vrf.map(|(_, name)| name.clone());
        interface.is_port = controller.is_some() && vrf.is_none();
    }
    Ok(all)
}

impl Interface {
    /// As the kernel describes it, and the index of what it is enslaved to, which may be a VRF.
    fn of(message: LinkMessage) -> Option<(Self, Option<u32>)> {
        let (mut name, mut controller, mut is_vrf) = (None, None, false);
        for attribute in message.attributes {
            match attribute {
                LinkAttribute::IfName(is) => name = Some(is),
                LinkAttribute::Controller(index) => controller = Some(index),
                LinkAttribute::LinkInfo(info) => {
                    is_vrf = info.contains(&LinkInfo::Kind(InfoKind::Vrf));
                }
                _ => {}
            }
        }
        let interface = Self {
            index: message.header.index,
            name: name?,
            header: LinkHeader::of(message.header.link_layer_type),
            up: message.header.flags.contains(LinkFlags::Up),
            carrier: message.header.flags.contains(LinkFlags::Running),
            is_vrf,
            vrf: None,
            is_port: false,
        };
        Some((interface, controller))
    }
}

/// The value of a switch below `/proc/sys`, such as `net/ipv4/ip_forward`; `None` when there is none of that name.
#[must_use]
pub fn switch(key: &str) -> Option<String> {
    super::sysctl::read(key).ok()?.pop()
}

/// The addresses of this host with the names of their interfaces, of both families; empty when the
/// kernel does not tell.
#[must_use]
pub fn local_addresses() -> Vec<(String, IpAddr)> {
    let answers = Netlink::open()
        .and_then(|mut netlink| {
            netlink.dump(RouteNetlinkMessage::GetAddress(AddressMessage::default()))
        })
        .unwrap_or_default();
    let Some(socket) = any_socket() else {
        return Vec::new();
    };
    let named = answers.into_iter().filter_map(|answer| {
        let RouteNetlinkMessage::NewAddress(message) = answer else {
            return None;
        };
        let name = netdevice::index_to_name(&socket, message.header.index).ok()?;
        Some((name, address(&message)?))
    });
    named.collect()
}

/// On a point-to-point link `Address` is the peer's, and `Local` ours; IPv6 mostly has no `Local`.
fn address(message: &AddressMessage) -> Option<IpAddr> {
    let local = message
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            AddressAttribute::Local(addr) => Some(*addr),
            _ => None,
        });
    local.or_else(|| {
        message
            .attributes
            .iter()
            .find_map(|attribute| match attribute {
                AddressAttribute::Address(addr) => Some(*addr),
                _ => None,
            })
    })
}

/// The source address that the kernel would use towards `dst`, in a VRF if one is named; `None` when there is no route.
#[must_use]
pub fn route_source(dst: IpAddr, vrf: Option<&str>) -> Option<IpAddr> {
    let mut question = route_to(dst);
    if let Some(vrf) = vrf {
        question
            .attributes
            .push(RouteAttribute::Oif(interface_index(vrf)?));
    }
    let answers = Netlink::open()
        .ok()?
        .get(RouteNetlinkMessage::GetRoute(question))
        .ok()?;
    answers.into_iter().find_map(|answer| {
        let RouteNetlinkMessage::NewRoute(route) = answer else {
            return None;
        };
        route
            .attributes
            .into_iter()
            .find_map(|attribute| match attribute {
                RouteAttribute::PrefSource(RouteAddress::Inet(addr)) => Some(addr.into()),
                RouteAttribute::PrefSource(RouteAddress::Inet6(addr)) => Some(addr.into()),
                _ => None,
            })
    })
}

/// A question about the route to one address.
pub(super) fn route_to(dst: IpAddr) -> RouteMessage {
    let mut question = RouteMessage::default();
    (
        question.header.address_family,
        question.header.destination_prefix_length,
    ) = match dst {
        IpAddr::V4(_) => (AddressFamily::Inet, 32),
        IpAddr::V6(_) => (AddressFamily::Inet6, 128),
    };
    question.attributes = vec![RouteAttribute::Destination(dst.into())];
    question
}

/// Interfaces are asked about through any socket of the namespace.
fn any_socket() -> Option<rustix::fd::OwnedFd> {
    let open = |family| socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None).ok();
    open(SocketFamily::UNIX).or_else(|| open(SocketFamily::INET))
}

//! The TUN device itself: its size, its own settings, up and down.
//!
//! Its settings go by netlink and not through `/proc/sys`, which is read-only in a container.

use flexcp_translator::{LONGEST_QUEUE, Prefix};
use netlink_packet_core::{DefaultNla, Emitable};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};

use super::netlink::{Netlink, NetlinkError};
use super::{KernelError, Plan, interface_index};

/// Prepares the device for packets that pass through: nothing is to come from it that is not one.
pub(crate) fn prepare(netlink: &mut Netlink, index: u32, plan: &Plan) -> Result<(), KernelError> {
    let mut step = |action, attributes: &[LinkAttribute], mask| {
        set(netlink, index, attributes, LinkFlags::empty(), mask)
            .map_err(|source| KernelError::Link { action, source })
    };
    // A device that can do multicast joins the group of all routers when it is made, and reports
    // so when it goes up, even after it left the group. With less than an IPv6 packet has to fit,
    // the kernel forgets IPv6 on the device; with more, it begins anew, now without multicast.
    let small = LinkAttribute::Mtu(IPV6_MIN_MTU - 1);
    step("set the flags of", &[small], LinkFlags::Multicast)?;
    let size = [
        LinkAttribute::Mtu(MTU),
        LinkAttribute::TxQueueLen(QUEUE_LEN),
    ];
    step("set the size of", &size, LinkFlags::empty())?;
    if plan.v4 {
        set_ipv4_options(netlink, index, plan)?;
    }
    let none = LinkFlags::empty();
    let set = set(netlink, index, &[ipv6_options()], none, none);
    match set.map_err(|source| KernelError::Link {
        action: "set the ipv6 options of",
        source,
    }) {
        // The kernel has no IPv6 to be kept quiet.
        Err(KernelError::Link { source, .. })
            if source.refusal() == Some(libc::EAFNOSUPPORT) && !plan.v6 =>
        {
            Ok(())
        }
        done => done,
    }
}

/// Has the device take IPv4 packets as they pass through: also from the host's own addresses, and where the plan has such
/// ones, from 127.0.0.0/8.
pub(crate) fn set_ipv4_options(
    netlink: &mut Netlink,
    index: u32,
    plan: &Plan,
) -> Result<(), KernelError> {
    let options = [ipv4_options(has_loopback(plan))];
    let none = LinkFlags::empty();
    set(netlink, index, &options, none, none).map_err(|source| KernelError::Link {
        action: "set the ipv4 options of",
        source,
    })
}

/// Puts the device into a VRF, whose routes what comes out of it takes from then on. The kernel forgets the routes through
/// a device that is up.
pub(crate) fn enter_vrf(netlink: &mut Netlink, index: u32, vrf: &str) -> Result<(), KernelError> {
    let controller = interface_index(vrf).ok_or_else(|| KernelError::NoInterface {
        name: vrf.to_owned(),
    })?;
    let controller = [LinkAttribute::Controller(controller)];
    let none = LinkFlags::empty();
    set(netlink, index, &controller, none, none).map_err(|source| KernelError::Link {
        action: "set the VRF of",
        source,
    })
}

/// Takes the device up.
pub(crate) fn bring_up(netlink: &mut Netlink, index: u32) -> Result<(), KernelError> {
    set(netlink, index, &[], LinkFlags::Up, LinkFlags::Up).map_err(|source| KernelError::Link {
        action: "take up",
        source,
    })
}

/// A device as it is now.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) name: String,
    pub(crate) up: bool,
    /// The index of the VRF, or of what else it is enslaved to.
    pub(crate) controller: Option<u32>,
}

/// How the device is; `None` when it is gone.
pub(crate) fn state(netlink: &mut Netlink, index: u32) -> Result<Option<State>, NetlinkError> {
    let mut question = LinkMessage::default();
    question.header.index = index;
    let answers = match netlink.get(RouteNetlinkMessage::GetLink(question)) {
        Err(error) if error.refusal() == Some(libc::ENODEV) => return Ok(None),
        answers => answers?,
    };
    let found = answers.into_iter().find_map(|answer| match answer {
        RouteNetlinkMessage::NewLink(link) if link.header.index == index => Some(link),
        _ => None,
    });
    Ok(found.map(|link| {
        let mut state = State {
            name: String::new(),
            up: link.header.flags.contains(LinkFlags::Up),
            controller: None,
        };
        for attribute in link.attributes {
            match attribute {
                LinkAttribute::IfName(name) => state.name = name,
                LinkAttribute::Controller(index) => state.controller = Some(index),
                _ => {}
            }
        }
        state
    }))
}

/// Gives the device its name back.
pub(crate) fn rename(netlink: &mut Netlink, index: u32, name: &str) -> Result<(), NetlinkError> {
    let name = [LinkAttribute::IfName(name.to_owned())];
    set(
        netlink,
        index,
        &name,
        LinkFlags::empty(),
        LinkFlags::empty(),
    )
}

/// Takes the device down; that it is gone already is no error.
pub(crate) fn take_down(netlink: &mut Netlink, index: u32) -> Result<(), KernelError> {
    match set(netlink, index, &[], LinkFlags::empty(), LinkFlags::Up) {
        Err(error) if error.refusal() == Some(libc::ENODEV) => Ok(()),
        done => done.map_err(|source| KernelError::Link {
            action: "take down",
            source,
        }),
    }
}

fn set(
    netlink: &mut Netlink,
    index: u32,
    attributes: &[LinkAttribute],
    flags: LinkFlags,
    mask: LinkFlags,
) -> Result<(), NetlinkError> {
    let mut link = LinkMessage::default();
    link.header.index = index;
    link.header.flags = flags;
    link.header.change_mask = mask;
    link.attributes = attributes.to_vec();
    netlink.change(RouteNetlinkMessage::SetLink(link), 0)
}

/// Whether packets to or from 127.0.0.0/8 are diverted.
fn has_loopback(plan: &Plan) -> bool {
    let is_loopback = |prefix: Prefix| prefix.addr.is_loopback();
    plan.diversions.iter().any(|diversion| {
        diversion.source.is_some_and(is_loopback) || diversion.destination.is_some_and(is_loopback)
    })
}

/// What is written to the device comes from anywhere, also from the host's own addresses (reverse
/// mode), and goes on. `loopback`: also from and to those of the loopback device, which no other device may carry.
///
/// Policies of IPsec are about the other side of each packet. What goes into the device is not encrypted, or it would pass
/// FlexCP by; it is when it goes on. What comes out of it need not have been: that was asked of it when it came in.
fn ipv4_options(loopback: bool) -> LinkAttribute {
    let on = |number, value: u32| DefaultNla::new(number, value.to_ne_bytes().to_vec());
    let options = [
        on(IPV4_DEVCONF_FORWARDING, 1),
        on(IPV4_DEVCONF_RP_FILTER, 0),
        on(IPV4_DEVCONF_NOXFRM, 1),
        on(IPV4_DEVCONF_NOPOLICY, 1),
        on(IPV4_DEVCONF_ACCEPT_LOCAL, 1),
        on(IPV4_DEVCONF_ROUTE_LOCALNET, loopback.into()),
    ];
    let inet = DefaultNla::new(IFLA_INET_CONF, bytes(&options[..]));
    af_spec(libc::AF_INET, inet)
}

/// No link-local address, and so no solicitations and reports from it: whatever the kernel sends
/// into the device is to be a packet for the translator.
fn ipv6_options() -> LinkAttribute {
    af_spec(
        libc::AF_INET6,
        DefaultNla::new(IFLA_INET6_ADDR_GEN_MODE, vec![IN6_ADDR_GEN_MODE_NONE]),
    )
}

fn af_spec(family: i32, option: DefaultNla) -> LinkAttribute {
    let family = u16::try_from(family).expect("families are small numbers");
    let family = DefaultNla::new(family, bytes(&[option][..]));
    LinkAttribute::Other(DefaultNla::new(IFLA_AF_SPEC, bytes(&[family][..])))
}

fn bytes(attributes: &[DefaultNla]) -> Vec<u8> {
    let mut bytes = vec![0; attributes.buffer_len()];
    attributes.emit(&mut bytes);
    bytes
}

/// The largest that the TUN driver takes. Packets of one segment are as large as they come; this
/// only has to be in nobody's way.
pub(crate) const MTU: u32 = 65535;
const IPV6_MIN_MTU: u32 = 1280;
/// Packets, of up to 64 KiB, that may wait for a worker: bursts of many connections, and no more.
const QUEUE_LEN: u32 = LONGEST_QUEUE;

// linux/if_link.h, linux/ip.h: the kernel's ABI; libc does not have them.
const IFLA_AF_SPEC: u16 = 26;
const IFLA_INET_CONF: u16 = 1;
const IFLA_INET6_ADDR_GEN_MODE: u16 = 8;
const IN6_ADDR_GEN_MODE_NONE: u8 = 1;
const IPV4_DEVCONF_FORWARDING: u16 = 1;
const IPV4_DEVCONF_RP_FILTER: u16 = 8;
const IPV4_DEVCONF_NOXFRM: u16 = 15;
const IPV4_DEVCONF_NOPOLICY: u16 = 16;
const IPV4_DEVCONF_ACCEPT_LOCAL: u16 = 23;
const IPV4_DEVCONF_ROUTE_LOCALNET: u16 = 26;

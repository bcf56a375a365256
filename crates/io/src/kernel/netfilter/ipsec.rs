//! The policies of IPsec (XFRM), which say what packets are encrypted, or have to have been.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;

use flexcp_translator::Prefix;
use netlink_sys::protocols::NETLINK_XFRM;

use super::super::Family;
use super::super::netlink::NetlinkError;
use super::message::{Message, attribute, has_attribute};
use super::{Kernel, NetfilterError};

/// A policy of IPsec: packets that match are transformed, have to have been, or are discarded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IpsecPolicy {
    /// Which packets it is about.
    pub direction: IpsecDirection,
    /// The family of both prefixes.
    pub family: Family,
    /// Where they come from.
    pub source: Prefix,
    /// Where they go to.
    pub destination: Prefix,
    /// Their source port; `None` is any, and may stand for more than the policy says if its ports are no range.
    pub source_ports: Option<RangeInclusive<u16>>,
    /// Their destination port, likewise.
    pub destination_ports: Option<RangeInclusive<u16>>,
    /// The number of their protocol; `None` is any.
    pub protocol: Option<u8>,
    /// The identifier of the interfaces of kind `xfrm` through which alone packets meet the policy; `None`: all do.
    pub interface_id: Option<u32>,
}

/// Which packets a policy is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IpsecDirection {
    /// Those to this host.
    In,
    /// Those that leave it, forwarded ones too.
    Out,
    /// Those that it forwards, as they come in.
    Forward,
}

/// The policies of this network namespace. Those of single sockets are left out, and those that let packets pass as they are;
/// none if the kernel is without XFRM.
///
/// # Errors
/// When the kernel refuses to list them.
pub fn ipsec_policies() -> Result<Vec<IpsecPolicy>, NetfilterError> {
    let list = || match Kernel::open(NETLINK_XFRM) {
        Err(NetlinkError::Socket { source })
            if source.raw_os_error() == Some(libc::EPROTONOSUPPORT) =>
        {
            Ok(Vec::new())
        }
        kernel => kernel?.dump(
            &Message::new(XFRM_MSG_GETPOLICY, &[0; USERPOLICY_ID_LEN]),
            IpsecPolicy::of,
        ),
    };
    list().map_err(|source| NetfilterError::Refused {
        action: "list the policies of IPsec",
        source,
    })
}

impl IpsecPolicy {
    /// Reads `struct xfrm_userpolicy_info` and the attributes behind it.
    fn of(message: &Message) -> Option<Self> {
        let info = message.body(0).first_chunk::<USERPOLICY_INFO_LEN>()?;
        let attributes = message.body(USERPOLICY_INFO_LEN);
        let direction = match info[160] {
            0 => IpsecDirection::In,
            1 => IpsecDirection::Out,
            2 => IpsecDirection::Forward,
            _ => return None,
        };
        let blocks = info[161] != 0;
        if !blocks && !has_attribute(attributes, XFRMA_TMPL) {
            return None;
        }
        let family = match u16::from_ne_bytes([info[40], info[41]]).into() {
            libc::AF_INET => Family::V4,
            libc::AF_INET6 => Family::V6,
            _ => return None,
        };
        Some(Self {
            direction,
            family,
            source: prefix(family, info[16..32].first_chunk()?, info[43]),
            destination: prefix(family, info[..16].first_chunk()?, info[42]),
            source_ports: ports([info[36], info[37]], [info[38], info[39]]),
            destination_ports: ports([info[32], info[33]], [info[34], info[35]]),
            protocol: (info[44] != 0).then_some(info[44]),
            interface_id: attribute(attributes, XFRMA_IF_ID)
                .try_into()
                .ok()
                .map(u32::from_ne_bytes)
                .filter(|&id| id != 0),
        })
    }
}

fn prefix(family: Family, address: &[u8; 16], len: u8) -> Prefix {
    let addr = match family {
        Family::V4 => {
            let [a, b, c, d, ..] = *address;
            IpAddr::V4(Ipv4Addr::new(a, b, c, d))
        }
        Family::V6 => IpAddr::V6(Ipv6Addr::from(*address)),
    };
    Prefix { addr, len }
}

/// A port and its mask, as a range if they are one.
fn ports(port: [u8; 2], mask: [u8; 2]) -> Option<RangeInclusive<u16>> {
    let [port, mask] = [port, mask].map(u16::from_be_bytes);
    let first = port & mask;
    (mask != 0 && mask.leading_ones() + mask.trailing_zeros() == u16::BITS)
        .then_some(first..=first | !mask)
}

const XFRM_MSG_GETPOLICY: u16 = 0x15;
/// Of `struct xfrm_userpolicy_id`.
const USERPOLICY_ID_LEN: usize = 64;
const USERPOLICY_INFO_LEN: usize = 168;
const XFRMA_TMPL: u16 = 5;
const XFRMA_IF_ID: u16 = 31;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masked_ports_are_ranges_or_any() {
        assert_eq!(ports([0, 80], [0xff, 0xff]), Some(80..=80));
        assert_eq!(ports([0x10, 0x7f], [0xff, 0]), Some(0x1000..=0x10ff));
        assert_eq!(ports([0, 0], [0, 0]), None);
        assert_eq!(ports([0, 1], [0, 0xff]), None);
    }
}

//! ICMPv6 errors about what FlexCP sends from addresses of this host: the programs hand them to FlexCP's device.

use std::collections::BTreeMap;
use std::net::Ipv6Addr;
use std::ops::RangeInclusive;

use aya::maps::HashMap;

use super::{Offload, OffloadError};

/// Ends of FlexCP's own: what it sends from there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OwnEnds {
    /// An address of this host.
    pub addr: Ipv6Addr,
    /// Ports that are FlexCP's at it.
    pub ports: RangeInclusive<u16>,
}

/// Key of the map `own` (`struct own_key`).
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct OwnKey {
    addr: [u8; 16],
    /// As it stands in a packet; 0: a range of them.
    port: [u8; 2],
    zero: u16,
}

/// Its value (`struct own_ports`).
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct OwnPorts {
    first: u16,
    last: u16,
}

// SAFETY: `repr(C)` of bytes and then a number of 16 bits at an even place, without padding: every byte is initialised, and every
// pattern of bytes is a value.
unsafe impl aya::Pod for OwnKey {}
// SAFETY: the same, two numbers of 16 bits.
unsafe impl aya::Pod for OwnPorts {}

impl Offload {
    /// Hands ICMPv6 errors about packets from these ends, and no others, to FlexCP's device from here on. Several ranges of one
    /// address count as one from the first port to the last: what is not about a connection of FlexCP's comes back from there.
    ///
    /// # Errors
    /// When the kernel takes them not, or not all of them.
    pub fn take_errors(&mut self, ends: &[OwnEnds]) -> Result<(), OffloadError> {
        let wanted = own(ends);
        let map = self.ebpf.map_mut("own");
        let map = map.ok_or(OffloadError::Missing("map of own ends"))?;
        let mut own: HashMap<_, OwnKey, OwnPorts> = HashMap::try_from(map)?;
        let gone = own.keys().filter_map(Result::ok);
        let gone: Vec<_> = gone.filter(|key| !wanted.contains_key(key)).collect();
        for key in gone {
            own.remove(&key)?;
        }
        for (key, ports) in wanted {
            own.insert(key, ports, 0)?;
        }
        Ok(())
    }
}

/// As the programs look them up.
fn own(ends: &[OwnEnds]) -> BTreeMap<OwnKey, OwnPorts> {
    let mut own = BTreeMap::new();
    for OwnEnds { addr, ports } in ends {
        let (first, last) = (*ports.start(), *ports.end());
        let single = if first == last { first } else { 0 };
        let key = OwnKey {
            addr: addr.octets(),
            port: single.to_be_bytes(),
            zero: 0,
        };
        let known = own.entry(key).or_insert(OwnPorts { first, last });
        known.first = known.first.min(first);
        known.last = known.last.max(last);
    }
    own
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_an_address_are_one_and_ports_stand_alone() {
        let of = |ports| OwnEnds {
            addr: Ipv6Addr::LOCALHOST,
            ports,
        };
        let own = own(&[of(443..=443), of(100..=200), of(80..=80), of(50..=60)]);
        let shown: Vec<_> = own
            .iter()
            .map(|(key, ports)| (u16::from_be_bytes(key.port), ports.first, ports.last))
            .collect();
        assert_eq!(shown, [(0, 50, 200), (80, 80, 80), (443, 443, 443)]);
    }
}

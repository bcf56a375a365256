//! Accesses: named ways by which clients come, such as a mobile network and a DSL line, as an operator sorts them.

use alloc::string::String;
use alloc::vec::Vec;
use core::net::IpAddr;

use crate::prefix::Prefix;
use crate::way::Way;

/// Accesses that there may be.
pub const MAX_ACCESSES: usize = 64;

/// An access's place in the configuration.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct AccessId(pub u8);

/// A way by which clients come. A subflow is of the first access that it fits in all that it says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Access {
    /// For logs, rules and `show`.
    pub name: String,
    /// Where the client's end of a subflow lies; anywhere when empty.
    pub clients: Vec<Prefix>,
    /// Addresses that the client addresses; any when empty.
    pub addresses: Vec<IpAddr>,
    /// Interfaces by which packets leave for the client's end; any when empty.
    pub ways: Vec<Way>,
}

impl Access {
    fn fits(&self, client: IpAddr, local: IpAddr, way: Way) -> bool {
        let from = self.clients.iter().any(|prefix| prefix.contains(client));
        let to = self.addresses.contains(&local);
        (self.clients.is_empty() || from)
            && (self.addresses.is_empty() || to)
            && (self.ways.is_empty() || self.ways.contains(&way))
    }
}

/// All of them, in the order of the configuration.
#[derive(Default, Debug)]
pub(crate) struct Accesses(Vec<Access>);

impl Accesses {
    /// The first [`MAX_ACCESSES`] of `accesses`.
    pub(crate) fn new(mut accesses: Vec<Access>) -> Self {
        accesses.truncate(MAX_ACCESSES);
        Self(accesses)
    }

    pub(crate) const fn count(&self) -> usize {
        self.0.len()
    }

    /// Their names, in order.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|access| access.name.as_str())
    }

    /// Which of them a subflow is of.
    pub(crate) fn of(&self, client: IpAddr, local: IpAddr, way: Way) -> Option<AccessId> {
        let mut numbered = (0..).map(AccessId).zip(&self.0);
        let found = numbered.find(|(_, access)| access.fits(client, local, way));
        found.map(|(id, _)| id)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    fn access(clients: &[(&str, u8)], addresses: &[&str]) -> Access {
        let prefix = |&(addr, len): &(&str, u8)| Prefix {
            addr: addr.parse().unwrap(),
            len,
        };
        Access {
            name: String::new(),
            clients: clients.iter().map(prefix).collect(),
            addresses: addresses.iter().map(|addr| addr.parse().unwrap()).collect(),
            ways: vec![],
        }
    }

    #[test]
    fn subflow_is_of_the_first_access_that_it_fits_in_all() {
        let accesses = Accesses::new(vec![
            access(&[("10.1.0.0", 16), ("2001:db8:1::", 48)], &["192.0.2.1"]),
            access(&[("10.1.0.0", 16)], &[]),
            access(&[], &["192.0.2.2", "2001:db8::2"]),
        ]);
        let of = |client: &str, local: &str| {
            let ends = (client.parse().unwrap(), local.parse().unwrap());
            accesses.of(ends.0, ends.1, Way::OTHER).map(|id| id.0)
        };
        assert_eq!(of("10.1.2.3", "192.0.2.1"), Some(0));
        assert_eq!(of("10.1.2.3", "192.0.2.2"), Some(1), "in order");
        assert_eq!(of("10.2.2.3", "192.0.2.2"), Some(2));
        assert_eq!(of("2001:db8:1::7", "2001:db8::2"), Some(2), "by address");
        assert_eq!(of("2001:db8:1::7", "192.0.2.1"), Some(0));
        assert_eq!(of("10.2.2.3", "192.0.2.3"), None);
    }

    #[test]
    fn access_by_ways_takes_those_alone() {
        let by = |ways: &[usize]| Access {
            ways: ways.iter().map(|place| Way::named(*place)).collect(),
            ..access(&[("10.1.0.0", 16)], &[])
        };
        let accesses = Accesses::new(vec![by(&[0, 2]), by(&[1])]);
        let of = |client: &str, way| {
            let local = "192.0.2.1".parse().unwrap();
            accesses
                .of(client.parse().unwrap(), local, way)
                .map(|id| id.0)
        };
        assert_eq!(of("10.1.2.3", Way::named(2)), Some(0));
        assert_eq!(of("10.1.2.3", Way::named(1)), Some(1));
        assert_eq!(of("10.1.2.3", Way::OTHER), None);
        assert_eq!(of("10.2.2.3", Way::named(0)), None, "in all that it says");
    }

    #[test]
    fn there_are_no_more_than_fit() {
        let all = vec![access(&[("0.0.0.0", 0)], &[]); MAX_ACCESSES + 1];
        assert_eq!(Accesses::new(all).0.len(), MAX_ACCESSES);
    }
}

//! The addresses that a service announces, under address ids that stay what they are: a client knows an address by the id
//! that it was told (RFC 8684 section 3.4.1).

use alloc::vec::Vec;
use core::net::SocketAddr;

use crate::config::Announce;

/// Address ids of a service; 0 is the initial subflow's.
const IDS: usize = 15;

/// What a service announces, and what it has announced before.
#[derive(Default, Debug)]
pub(crate) struct Announced {
    /// The address with the id 1, and so on; `None`: the id is free.
    places: Vec<Option<Place>>,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    address: Announce,
    /// Clients may still know it, but no other is told.
    retired: bool,
}

impl Announced {
    pub(crate) const fn new() -> Self {
        Self { places: Vec::new() }
    }

    /// From here on `addresses` are announced. Those that were before keep their ids, and those that go have theirs until
    /// they are [forgotten](Self::forget_all_but). What finds no id waits for that.
    pub(crate) fn change(&mut self, addresses: &[Announce]) {
        for place in self.places.iter_mut().flatten() {
            place.retired = !addresses.contains(&place.address);
        }
        for &address in addresses {
            self.add(address);
        }
    }

    fn add(&mut self, address: Announce) {
        if self.position(address).is_some() {
            return;
        }
        let free = self.places.iter().position(Option::is_none);
        let new = Some(Place {
            address,
            retired: false,
        });
        match free {
            Some(at) => self.places[at] = new,
            None if self.places.len() < IDS => self.places.push(new),
            None => {}
        }
    }

    fn position(&self, address: Announce) -> Option<usize> {
        let is = |place: &Option<Place>| place.is_some_and(|place| place.address == address);
        self.places.iter().position(is)
    }

    /// Frees the ids of addresses that are announced no more, but for `known`, which a client may still have.
    pub(crate) fn forget_all_but(&mut self, known: &[Announce]) {
        for place in &mut self.places {
            let over = |place: &mut Place| place.retired && !known.contains(&place.address);
            place.take_if(over);
        }
        while self.places.pop_if(|last| last.is_none()).is_some() {}
    }

    /// Bit n: the address with the id n + 1 is announced.
    pub(crate) fn mask(&self) -> u16 {
        let bits = self.places.iter().enumerate();
        bits.filter(|(_, place)| place.is_some_and(|place| !place.retired))
            .fold(0, |mask, (n, _)| mask | 1 << n)
    }

    /// The address with the id n + 1.
    pub(crate) fn get(&self, n: u32) -> Option<Announce> {
        let place = self.places.get(usize::try_from(n).ok()?)?;
        place.map(|place| place.address)
    }

    /// The id under which `local` was announced; 0: it was not.
    pub(crate) fn id_of(&self, local: SocketAddr) -> u8 {
        let is = |place: &Option<Place>| place.is_some_and(|place| place.address.is(local));
        let position = self.places.iter().position(is).map_or(0, |n| n + 1);
        u8::try_from(position).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(last: &[u8]) -> Vec<Announce> {
        let address = |last: &u8| Announce {
            addr: [192, 0, 2, *last].into(),
            port: None,
        };
        last.iter().map(address).collect()
    }

    fn ids(announced: &Announced) -> Vec<(u8, u8)> {
        let known = (0..=255).map(|last| {
            let local = SocketAddr::from(([192, 0, 2, last], 80));
            (last, announced.id_of(local))
        });
        known.filter(|(_, id)| *id != 0).collect()
    }

    #[test]
    fn address_keeps_its_id_while_a_client_may_know_it() {
        let mut announced = Announced::new();
        announced.change(&addresses(&[7, 8, 9]));
        assert_eq!(ids(&announced), [(7, 1), (8, 2), (9, 3)]);
        announced.change(&addresses(&[9, 5]));
        assert_eq!(ids(&announced), [(5, 4), (7, 1), (8, 2), (9, 3)]);
        assert_eq!(announced.mask(), 0b1100);
        announced.forget_all_but(&addresses(&[7]));
        announced.change(&addresses(&[9, 5, 6, 4]));
        assert_eq!(
            ids(&announced),
            [(4, 5), (5, 4), (6, 2), (7, 1), (9, 3)],
            "a free id is used first"
        );
        assert_eq!(announced.get(0), Some(addresses(&[7])[0]));
    }

    #[test]
    fn ids_are_bounded() {
        let mut announced = Announced::new();
        let many: Vec<_> = (1..=16).collect();
        announced.change(&addresses(&many));
        assert_eq!(announced.mask(), 0x7fff);
        announced.change(&[]);
        assert_eq!((announced.mask(), ids(&announced).len()), (0, 15));
        announced.forget_all_but(&[]);
        assert!(ids(&announced).is_empty() && announced.places.is_empty());
    }
}

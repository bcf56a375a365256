//! Ways: by which interface packets leave for a client, among those that accesses name.

use alloc::boxed::Box;
use core::fmt::Debug;

use flexcp_wire::Ends;

/// Interfaces that accesses may name.
pub const MAX_WAYS: usize = u8::MAX as usize;

/// One of the interfaces that accesses name, by its place among them; or none of them.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Way(u8);

impl Way {
    /// An interface that no access names, or none at all: there is no route, or nobody knows it.
    pub const OTHER: Self = Self(0);

    /// The interface that has this place among those that are named; [`OTHER`](Self::OTHER) beyond [`MAX_WAYS`].
    #[must_use]
    pub fn named(place: usize) -> Self {
        u8::try_from(place.saturating_add(1)).map_or(Self::OTHER, Self)
    }
}

/// Who knows by which way packets leave, as the kernel routes them.
pub trait Ways: Debug + Send {
    /// The way of packets with these ends, from FlexCP's to the client's. It is asked once a subflow, and again where routes may
    /// have changed.
    fn find(&mut self, ends: Ends) -> Way;
}

/// Asks for ways, where accesses name interfaces.
#[derive(Default, Debug)]
pub(crate) struct Guide(pub(crate) Option<Box<dyn Ways>>);

impl Guide {
    /// [`Way::OTHER`] where nobody needs to know.
    pub(crate) fn find(&mut self, ends: Ends) -> Way {
        self.0.as_mut().map_or(Way::OTHER, |ways| ways.find(ends))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_distinct_and_bounded() {
        assert_ne!(Way::named(0), Way::OTHER);
        assert_ne!(Way::named(0), Way::named(1));
        assert_ne!(Way::named(MAX_WAYS - 1), Way::OTHER);
        assert_eq!(Way::named(MAX_WAYS), Way::OTHER);
        assert_eq!(Way::named(usize::MAX), Way::OTHER);
    }
}

//! The ways by which packets leave for clients, where accesses go by them.

use alloc::boxed::Box;

use super::Translator;
use super::listing::Cursor;
use crate::segment::Segment;
use crate::table::ConnectionId;
use crate::time::Instant;
use crate::way::{Way, Ways};

impl Translator {
    /// A SYN without MPTCP passes by. Nobody has proved to be there, so that the kernel is not asked for the way.
    pub(super) fn note_plain(&mut self, segment: &Segment) {
        let (client, server) = (segment.source().ip(), segment.destination().ip());
        let access = self.config.accesses.of(client, server, Way::OTHER);
        self.accounts.arrivals.note_plain(access);
    }

    /// Sets who knows by which way packets leave; the accesses of the configuration have their ways as numbered there. For
    /// connections that are there, [`find_ways`](Self::find_ways).
    pub fn set_ways(&mut self, ways: Box<dyn Ways>) {
        self.accounts.arrivals.guide.0 = Some(ways);
    }

    /// Whether anybody does.
    #[must_use]
    pub const fn has_ways(&self) -> bool {
        self.accounts.arrivals.guide.0.is_some()
    }

    /// Routes may have changed: asks anew by which ways packets leave. A connection with a choice of paths of which one leaves by
    /// another way is judged by its rule at once.
    ///
    /// Looks at 64 places of the table for each of `count`, and asks about so many connections at most. Where it goes on, or `None`
    /// at the end. Drain [`poll_transmit`](Self::poll_transmit) afterwards.
    pub fn find_ways(&mut self, now: Instant, from: Cursor, count: usize) -> Option<Cursor> {
        self.walk(from, count, |this, id| this.find_ways_of(now, id))
    }

    /// `false`: there is no such connection.
    fn find_ways_of(&mut self, now: Instant, id: ConnectionId) -> bool {
        let Some(connection) = self.table.get_mut(id) else {
            return false;
        };
        if connection.find_ways(&mut self.accounts.arrivals) {
            self.judge_one(now, id);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::translator::tests::{open, reverse};
    use flexcp_wire::Ends;

    #[derive(Debug)]
    struct Nowhere;

    impl Ways for Nowhere {
        fn find(&mut self, _: Ends) -> Way {
            Way::OTHER
        }
    }

    #[test]
    fn work_of_a_call_is_bounded() {
        let now = Instant::from_millis(5);
        let mut translator = reverse(1000..=60_999);
        assert!(!translator.has_ways());
        translator.set_ways(Box::new(Nowhere));
        assert!(translator.has_ways());
        (1..=1000).for_each(|port| open(&mut translator, now, port));
        let mut next = Some(Cursor::default());
        let mut calls = 0;
        while let Some(from) = next {
            next = translator.find_ways(now, from, 16);
            calls += 1;
        }
        assert_eq!(calls, 1000_usize.div_ceil(16));
    }
}

//! What comes over each access: by which way, and what has come so far.

use alloc::string::String;
use alloc::vec::Vec;

use crate::access::{AccessId, Accesses};
use crate::history::History;
use crate::way::Guide;

/// What has come over an access since the translator began, or since the access was first named.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct AccessTotals {
    /// Subflows that came up: first ones of clients that asked for MPTCP, and joins, those that failed to prove themselves too.
    pub opened: u64,
    /// Of those, the ones whose MPTCP options did not come through, from the start or later.
    pub stripped: u64,
    /// Connections whose SYN was without MPTCP: the client does without, or something on the path takes the option away.
    pub plain: u64,
    /// Payload bytes from clients, retransmissions included, of subflows that are over.
    pub bytes_up: u64,
    /// The same to clients.
    pub bytes_down: u64,
    /// Of `bytes_down`, what went again.
    pub retransmitted_down: u64,
}

/// Payload in bytes, seen from the MPTCP peer: up is what it sends.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Traffic {
    pub(crate) bytes_up: u64,
    pub(crate) bytes_down: u64,
    /// Of `bytes_down`, what went again.
    pub(crate) retransmitted_down: u64,
}

/// What comes over each access.
#[derive(Default, Debug)]
pub(crate) struct Arrivals {
    pub(crate) guide: Guide,
    /// By the name of the access.
    known: Vec<(String, Known)>,
    /// Of subflows that are of none.
    elsewhere: Known,
}

/// What is known of an access.
#[derive(Clone, Copy, Default, Debug)]
struct Known {
    totals: AccessTotals,
    history: History,
}

impl Arrivals {
    /// There are these accesses; those that were there before keep what has come.
    pub(crate) fn name(&mut self, accesses: &Accesses) {
        let before = core::mem::take(&mut self.known);
        let known = |name: &str| {
            let mut before = before.iter();
            let known = before.find(|(known, _)| known == name);
            known.map_or_else(Known::default, |(_, known)| *known)
        };
        let named = accesses.names().map(|name| (name.into(), known(name)));
        self.known = named.collect();
    }

    fn of(&mut self, access: Option<AccessId>) -> &mut AccessTotals {
        &mut self.known_of(access).totals
    }

    fn known_of(&mut self, access: Option<AccessId>) -> &mut Known {
        let known = access.and_then(|id| self.known.get_mut(usize::from(id.0)));
        match known {
            Some((_, known)) => known,
            None => &mut self.elsewhere,
        }
    }

    /// What connections that come over an access first have shown of it.
    pub(crate) fn history(&mut self, access: Option<AccessId>) -> &mut History {
        &mut self.known_of(access).history
    }

    /// A subflow has come up.
    pub(crate) fn note_opened(&mut self, access: Option<AccessId>) {
        self.of(access).opened += 1;
    }

    /// A connection without MPTCP has.
    pub(crate) fn note_plain(&mut self, access: Option<AccessId>) {
        self.of(access).plain += 1;
    }

    /// The options of a subflow do not come through.
    pub(crate) fn note_stripped(&mut self, access: Option<AccessId>) {
        self.of(access).stripped += 1;
    }

    /// A subflow is over.
    pub(crate) fn note_closed(&mut self, access: Option<AccessId>, traffic: Traffic) {
        let totals = self.of(access);
        totals.bytes_up += traffic.bytes_up;
        totals.bytes_down += traffic.bytes_down;
        totals.retransmitted_down += traffic.retransmitted_down;
    }

    /// Those of each access, in order; the last are of none.
    pub(crate) fn totals(&self) -> impl Iterator<Item = AccessTotals> {
        let named = self.known.iter().map(|(_, known)| known.totals);
        named.chain([self.elsewhere.totals])
    }
}

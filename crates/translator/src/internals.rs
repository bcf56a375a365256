//! What tests and benchmarks see of the inside: feature `internals`, no part of the API.
//!
//! [`Lane`] is the D-tree: it hands every call through; what a test needs to read comes as plain values.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use flexcp_wire::{Dsn, Ssn};

use crate::steering::{Descriptor, Rules};
use crate::{Instant, Rule, ServiceId, Translator, dtree};

/// What an answer may take beyond two round trips before it is overdue.
pub const JITTER: Duration = crate::connection::JITTER;
/// The largest distance at which the client's numbers are believed.
pub const MAX_SPAN: u32 = crate::connection::FAR;
/// The least.
pub const MIN_SPAN: u32 = crate::connection::MIN_SPAN;
/// Longest stretch of one entry of a [`Lane`].
pub const MAX_RUN: u32 = dtree::MAX_RUN;

/// Connections are installed in the fast path at every opportunity; `untimed`: even those without timestamps, for which
/// it can do nothing.
pub const fn install_eagerly(translator: &mut Translator, untimed: bool) {
    translator.install_eagerly(untimed);
}

/// Connections are installed for the first time as soon as they are later on.
pub const fn install_soon(translator: &mut Translator) {
    translator.install_soon();
}

/// So many packets of other connections have been handled.
pub fn count_turns(translator: &mut Translator, count: u32) {
    translator.count_turns(count);
}

/// ACKs of so many other connections are held, from `now` on.
pub fn fill_holds(translator: &mut Translator, now: Instant, count: u32) {
    translator.fill_holds(now, count);
}

/// All that each connection knows, as text, except for its place in the timer queue and what the fast path has
/// to do with it.
#[must_use]
pub fn states(translator: &Translator) -> Vec<String> {
    let state = |connection| {
        let text = format!("{connection:?}");
        // These two stand last.
        let end = text.rfind(", links: ").unwrap_or(text.len());
        text[..end].into()
    };
    translator.table.iter().map(state).collect()
}

/// Directions of subflows that keep memory ready for mappings, and have none.
#[must_use]
pub fn spare_lanes(translator: &Translator) -> usize {
    let subflows = translator.table.iter().flat_map(|c| &c.mptcp.subflows);
    let lanes = subflows.flat_map(|s| [&s.recv.lane, &s.send.lane]);
    lanes.filter(|lane| lane.has_room_to_spare()).count()
}

/// Mappings of subflows that are over, which nobody needs any more.
#[must_use]
pub fn mappings_left_over(translator: &Translator) -> usize {
    let subflows = translator.table.iter().flat_map(|c| &c.mptcp.subflows);
    let over = subflows.filter(|subflow| !subflow.lives());
    over.map(|s| s.recv.lane.len() + s.send.lane.len()).sum()
}

/// Bytes that the connections have allocated, counted anew one by one.
#[must_use]
pub fn memory(translator: &Translator) -> u64 {
    let connections = translator.table.iter();
    connections
        .map(|connection| connection.memory() as u64)
        .sum()
}

/// A mapping, or the rest of a reserved stretch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// Its first byte.
    pub dsn: Dsn,
    /// Where that stands on the subflow.
    pub ssn: Ssn,
    /// Bytes.
    pub len: u32,
    /// It has been sent.
    pub declared: bool,
}

/// The mappings of one subflow in one direction.
#[derive(Clone, Default, Debug)]
pub struct Lane(dtree::Lane);

impl From<dtree::Mapping> for Mapping {
    fn from(mapping: dtree::Mapping) -> Self {
        let dtree::Mapping {
            dsn,
            ssn,
            len,
            declared,
        } = mapping;
        Self {
            dsn,
            ssn,
            len,
            declared,
        }
    }
}

impl Lane {
    /// Adds a mapping behind all others.
    pub fn append(&mut self, dsn: Dsn, ssn: Ssn, len: u32) {
        self.0.append(dsn, ssn, len);
    }

    /// Gives a stretch of data its SSNs before it has come.
    pub fn reserve(&mut self, dsn: Dsn, ssn: Ssn, len: u32) {
        self.0.reserve(dsn, ssn, len);
    }

    /// Declares a mapping inside a reserved stretch.
    pub fn declare(&mut self, dsn: Dsn, ssn: Ssn, len: u32) {
        self.0.declare(dsn, ssn, len);
    }

    /// Adds a mapping of the peer's; `false`: it contradicts a known one.
    pub fn insert(&mut self, dsn: Dsn, ssn: Ssn, len: u32) -> bool {
        self.0.insert(dsn, ssn, len, true).is_ok()
    }

    /// The latest mapping that holds this data.
    #[must_use]
    pub fn by_dsn(&self, dsn: Dsn) -> Option<Mapping> {
        self.0.by_dsn(dsn).map(Mapping::from)
    }

    /// The first mapping that holds this data at `from` or behind.
    #[must_use]
    pub fn by_dsn_from(&self, dsn: Dsn, from: Ssn) -> Option<Mapping> {
        self.0.by_dsn_from(dsn, from).map(Mapping::from)
    }

    /// Where the next stretch of data behind `dsn` starts.
    #[must_use]
    pub fn next_dsn(&self, dsn: Dsn) -> Option<Dsn> {
        self.0.next_dsn(dsn)
    }

    /// The data at this number, and how many bytes are contiguous from there on.
    #[must_use]
    pub fn by_ssn(&self, ssn: Ssn) -> Option<(Dsn, u32)> {
        self.0.by_ssn(ssn)
    }

    /// The same, looking also at what was let go last.
    #[must_use]
    pub fn by_ssn_late(&self, ssn: Ssn) -> Option<(Dsn, u32)> {
        self.0.by_ssn_late(ssn)
    }

    /// The mapping that holds this number.
    #[must_use]
    pub fn mapping_by_ssn(&self, ssn: Ssn) -> Option<Mapping> {
        self.0.mapping_by_ssn(ssn).map(Mapping::from)
    }

    /// Every stretch, as (SSN, DSN, length), that carries data of `[from, to)`.
    pub fn for_each_in(&self, from: Dsn, to: Dsn, each: impl FnMut(Ssn, Dsn, u32)) {
        self.0.for_each_in(from, to, each);
    }

    /// The first stretch, as (SSN, DSN, length).
    #[must_use]
    pub fn front(&self) -> Option<(Ssn, Dsn, u32)> {
        self.0.front()
    }

    /// Lets go of the first bytes of the front run.
    pub fn advance_front(&mut self, count: u32) {
        self.0.advance_front(count);
    }

    /// Lets go of what is acknowledged at both levels.
    pub fn release(&mut self, acked: Ssn, data_acked: Dsn) {
        self.0.release(acked, data_acked);
    }

    /// Behind the last number held.
    #[must_use]
    pub fn end(&self) -> Option<Ssn> {
        self.0.end()
    }

    /// Runs held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether no run is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.len() == 0
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

/// Rules as a translator keeps them.
#[derive(Debug)]
pub struct RuleTable(Rules);

impl RuleTable {
    /// Of rules in order of precedence.
    #[must_use]
    pub fn new(rules: Vec<Rule>) -> Self {
        Self(Rules::new(rules, 0, &Rules::default()))
    }

    /// The name of the first that fits a connection.
    #[must_use]
    pub fn find(&self, service: ServiceId, server: SocketAddr, client: IpAddr) -> Option<&str> {
        let id = self.0.find(&descriptor(service, server, client))?;
        self.0.get(id).map(|rule| &*rule.name)
    }

    /// The same by a look at each.
    #[must_use]
    pub fn find_one_by_one(
        &self,
        service: ServiceId,
        server: SocketAddr,
        client: IpAddr,
    ) -> Option<&str> {
        let id = self
            .0
            .find_one_by_one(&descriptor(service, server, client))?;
        self.0.get(id).map(|rule| &*rule.name)
    }
}

const fn descriptor(service: ServiceId, server: SocketAddr, client: IpAddr) -> Descriptor {
    Descriptor {
        service,
        server,
        client,
    }
}

//! Who gives back memory when it runs short ([`budget`](crate::budget)).

use core::time::Duration;

use super::{Translator, context};
use crate::Instant;
use crate::budget::RESERVE;
use crate::cause::Rst;
use crate::table::ConnectionId;

/// Places of the table that are looked at with each packet while memory is short.
const STEPS: usize = 4;

/// A client that was not heard for so long has no use for room that stands ready.
const QUIET: Duration = Duration::from_secs(1);

/// A client that was not heard for so long has to do without what it holds beyond its part.
const SILENT: Duration = Duration::from_secs(30);

impl Translator {
    /// Notes what a connection has allocated where it is used without being settled.
    pub(crate) fn charge(&mut self, id: ConnectionId) {
        if let Some(connection) = self.table.get_mut(id) {
            let memory = connection.memory();
            self.budget.charge(&mut connection.links.charged, memory);
        }
    }

    /// A connection leaves the table.
    pub(crate) fn discharge(&mut self, id: ConnectionId) {
        if let Some(connection) = self.table.get_mut(id) {
            self.budget.discharge(&mut connection.links.charged);
        }
    }

    /// While memory is short: quiet connections among the next few places of the table give back what they do not need.
    /// So each comes to its turn, and one that was just heard has been passed by until then.
    pub(crate) fn reclaim(&mut self, now: Instant) {
        for _ in 0..STEPS {
            let place = self.budget.next_place(self.table.places());
            if let Ok(id) = u32::try_from(place) {
                self.reclaim_from(now, id);
            }
        }
    }

    fn reclaim_from(&mut self, now: Instant, id: ConnectionId) {
        let Some(connection) = self.table.get_mut(id) else {
            return;
        };
        let quiet = now.since(connection.last_heard());
        let reserved = connection.links.charged as usize <= RESERVE;
        // What is installed is not quiet, and its mappings are elsewhere.
        if reserved || connection.installation.is_installed() || quiet < QUIET {
            return;
        }
        self.counters.memory_trimmed += u64::from(connection.trim());
        self.charge(id);
        if quiet >= SILENT {
            self.pay(now, id);
        }
    }

    /// A connection that has more than its part loses the subflow whose mappings take the most.
    fn pay(&mut self, now: Instant, id: ConnectionId) {
        let Some(connection) = self.table.get_mut(id) else {
            return;
        };
        let allowed = self.budget.allows(connection.links.charged as usize, 0);
        if allowed || !connection.phase.is_established() {
            return;
        }
        let largest = connection.largest();
        let mut ctx = context!(self, now);
        connection.reset_subflow(&mut ctx, largest, Rst::Memory);
        self.settle_at(now, now, id);
    }

    /// Where all is taken after all: the connection that has just taken more than what is its own pays for it.
    pub(crate) fn collect(&mut self, now: Instant, id: ConnectionId) {
        if self.budget.is_overdrawn() {
            self.pay(now, id);
        }
    }
}

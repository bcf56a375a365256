//! The connections, told in pages: each costs a bounded amount of work, so that packets have their turn between two.
//!
//! A connection keeps its place in the table for as long as it lives, and a listing goes through the places in their
//! order. So a connection that is there from the first page to the last is told exactly once, whatever comes and goes
//! meanwhile, and however the table grows or shrinks; one that comes or goes meanwhile is told once or not at all.

#[cfg(test)]
mod tests;

use alloc::string::String;
use alloc::vec::Vec;
use core::net::SocketAddr;

use super::Translator;
use crate::access::{AccessId, Accesses};
use crate::config::Settings;
use crate::connection::{Connection, Subflow};
use crate::handle::INITIAL;
use crate::handle::ServiceId;
use crate::prefix::Prefix;
use crate::time::Instant;
use crate::view::{ConnectionState, ConnectionView};

/// Where a listing goes on: at this place of the table. The default is the beginning.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Cursor(pub usize);

/// Which connections a listing tells: those that every field fits. The default fits all.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Filter {
    /// In one of these states; in any when there are none.
    pub states: Vec<ConnectionState>,
    /// Of this service.
    pub service: Option<ServiceId>,
    /// From there: the client as on the initial subflow, or on any that lives.
    pub client: Option<Place>,
    /// To there: what the client connected to, or the back end.
    pub server: Option<Place>,
    /// With a subflow that lives and is of this access.
    pub access: Option<AccessId>,
    /// Of the rule of this name.
    pub rule: Option<String>,
}

/// Addresses, ports, or both.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Place {
    /// The addresses; `None`: all of them, of both families.
    pub prefix: Option<Prefix>,
    /// The port; `None`: any.
    pub port: Option<u16>,
}

impl Translator {
    /// Appends to `page` the next connections that `filter` fits, as they are now, the installed ones too, which stay
    /// installed. Where the listing goes on, or `None` at its end.
    ///
    /// A page has at most [`Self::PAGE`] connections, and fewer, down to none, where the table is sparse or the filter
    /// leaves most of them out: the work of a call is bounded, not what comes of it.
    #[must_use]
    pub fn list(
        &self,
        now: Instant,
        from: Cursor,
        filter: &Filter,
        page: &mut Vec<ConnectionView>,
    ) -> Option<Cursor> {
        let mut effort = EFFORT;
        for place in from.0..self.table.places() {
            if effort == 0 {
                return Some(Cursor(place));
            }
            let spent = match self.table.at(place) {
                None => EMPTY,
                Some(connection) if filter.fits(connection, &self.config) => {
                    let entry = self.peek(connection);
                    page.push(connection.view(now, &self.config, entry.as_ref()));
                    TOLD + self.search(connection)
                }
                Some(connection) if filter.rule.is_some() => LEFT_OUT + self.search(connection),
                Some(_) => LEFT_OUT,
            };
            effort = effort.saturating_sub(spent);
        }
        None
    }

    /// What it costs to find a connection's rule, if that is not known.
    fn search(&self, connection: &Connection) -> u32 {
        let rules = u32::try_from(self.config.rules.len()).unwrap_or(u32::MAX);
        let outdated = connection.has_outdated_rule(&self.config);
        if outdated { rules / RULES } else { 0 }
    }

    /// All connections that there are: those of all pages one behind the other, not for the packet path.
    pub fn connections(&self, now: Instant) -> impl Iterator<Item = ConnectionView> + '_ {
        let filter = Filter::default();
        let mut next = Some(Cursor::default());
        let pages = core::iter::from_fn(move || {
            let mut page = Vec::new();
            next = self.list(now, next?, &filter, &mut page);
            Some(page)
        });
        pages.flatten()
    }

    /// The most connections that a call of [`list`](Self::list) tells.
    pub const PAGE: usize = (EFFORT / TOLD) as usize;
}

impl Filter {
    pub(super) fn fits(&self, connection: &Connection, config: &Settings) -> bool {
        let of_service = self
            .service
            .is_none_or(|service| service == connection.service);
        let in_state = self.states.is_empty() || self.states.contains(&connection.state());
        of_service
            && in_state
            && self.fits_client(connection)
            && self.fits_server(connection)
            && self.fits_access(connection, &config.accesses)
            && self.fits_rule(connection, config)
    }

    fn fits_rule(&self, connection: &Connection, config: &Settings) -> bool {
        let rule = self.rule.as_deref();
        rule.is_none_or(|rule| connection.rule_name(config) == Some(rule))
    }

    fn fits_access(&self, connection: &Connection, accesses: &Accesses) -> bool {
        let Some(access) = self.access else {
            return true;
        };
        let living = connection.mptcp.subflows.iter().filter(|s| s.lives());
        let mut of = living.map(|subflow| subflow.access(accesses));
        of.any(|of| of == Some(access))
    }

    fn fits_client(&self, connection: &Connection) -> bool {
        let Some(place) = self.client else {
            return true;
        };
        let initial = connection.subflow(INITIAL);
        let mut living = connection
            .mptcp
            .subflows
            .iter()
            .filter(|s| Subflow::lives(s));
        place.contains(initial.remote.addr())
            || living.any(|subflow| place.contains(subflow.remote.addr()))
    }

    fn fits_server(&self, connection: &Connection) -> bool {
        let server = connection.subflow(INITIAL).local.addr();
        self.server.is_none_or(|place| {
            place.contains(server) || place.contains(connection.tcp.backend.addr())
        })
    }
}

impl Place {
    /// Whether `addr` lies there.
    #[must_use]
    pub fn contains(&self, addr: SocketAddr) -> bool {
        self.prefix.is_none_or(|prefix| prefix.contains(addr.ip()))
            && self.port.is_none_or(|port| port == addr.port())
    }
}

/// The work of a page, in looks at an empty place of the table: well below 0.2 ms, as long as a batch of packets takes.
pub(super) const EFFORT: u32 = 4096;
/// What an empty place costs.
pub(super) const EMPTY: u32 = 1;
/// What a connection costs that the filter leaves out: its memory may have to come into the cache.
pub(super) const LEFT_OUT: u32 = 16;
/// Rules that are tried at the cost of an empty place.
pub(super) const RULES: u32 = 8;
/// What a connection costs that is told: a fast path may have to be asked for its counters.
pub(super) const TOLD: u32 = 64;

//! Another configuration under connections that live on.
//!
//! Connections go on as long as what they have begun under covers them, whatever else changes. Those that the present
//! services cover no more are *stranded*: their service is gone, or has lost the address, the port or the back end that
//! they use. They go on until whoever has changed the configuration says that their time is over. Then both ends are told
//! ([`end_stranded`](Translator::end_stranded)), and with [`forget_stranded`](Translator::forget_stranded) the last of them
//! leave the table, and ids of services that are gone are free.

use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use super::{Translator, context};
use crate::cause::Rst;
use crate::config::{Config, Settings};
use crate::connection::{Connection, Context};
use crate::cookies::Cookies;
use crate::endpoint::Backend;
use crate::event::{Event, EventKind};
use crate::handle::INITIAL;
use crate::service::{Services, Used};
use crate::table::ConnectionId;
use crate::{Instant, ServiceId};

/// Places of the table that are looked at for one that is told.
const LOOKS: usize = 64;

impl Translator {
    /// From here on `config` says what the translator does; it is the configuration of generation `generation`, a number
    /// larger than those before (the first was 0).
    ///
    /// - Services are told apart by their ids. One that is in both configurations keeps its connections, those that are
    ///   offloaded too; back ends that stay keep what is known of them, and announced addresses keep their address ids.
    ///   Clients that are there are not told of new addresses.
    /// - A service that is new opens connections at once, and one that is gone opens none any more: where clients
    ///   address FlexCP they are refused, on the path they pass as plain TCP.
    /// - Limits hold for whatever comes next; connections beyond them stay. Timeouts hold from the next look at each
    ///   connection on, at the latest a minute later.
    /// - Subflows are sorted by the new accesses at once.
    /// - The share stays as it was.
    ///
    /// Costs nothing per connection. Each back end that is marked is told anew by
    /// [`poll_backend`](Self::poll_backend).
    pub fn configure(&mut self, mut config: Config, generation: u64) {
        self.budget.set_limit(config.limits.memory);
        let services = core::mem::take(&mut config.services);
        let before = &self.config.rules;
        self.config = Settings::new(config, before, &mut self.accounts);
        let events = &mut self.events;
        let tell = |service, backend, on| {
            let kind = EventKind::BackendMaintenance { backend, on };
            events.note(|| Event { service, kind });
        };
        self.services.change(services, generation, tell);
    }

    /// The host has these addresses from here on. Where clients name their server they are no servers unless the configuration
    /// names each alone. Connections that there are stay.
    pub fn set_host_addresses(&mut self, addrs: Vec<IpAddr>) {
        self.services.set_host(addrs);
    }

    /// A box asks these aggregation servers before the others from here on, in this order, as was found to be best; the others
    /// come behind them in the order of the configuration, and those that are marked are passed by all the same. None: the
    /// configuration's order. Servers that the service does not have are passed over; another list of servers ends the preference.
    pub fn prefer_servers(&mut self, service: ServiceId, order: &[SocketAddr]) {
        self.services.prefer_servers(service, order);
    }

    /// Cookies are made with this secret from here on; it must be unpredictable. Translators of which clients' connections come to
    /// any have to have the same.
    pub fn set_cookie_secret(&mut self, secret: [u8; 32]) {
        self.guests.cookies = Cookies::new(secret);
    }

    /// No connection to these servers is offloaded from here on: they are on this host itself, where a fast path sees
    /// nothing.
    pub fn leave_out(&mut self, servers: &[IpAddr]) {
        if let Some(installer) = &mut self.installer {
            installer.leave_out(servers);
        }
    }

    /// Tells both ends of connections that have been stranded since a generation up to `upto`, as
    /// [`end_some`](Self::end_some) does, and gives up subflows that came to an address that is announced no more. Looks at
    /// 64 places of the table for each of `count`. `false`: that was the last place; the next call begins anew, and
    /// repeats what it has told. Drain [`poll_transmit`](Self::poll_transmit) afterwards.
    pub fn end_stranded(&mut self, now: Instant, upto: u64, count: usize) -> bool {
        self.end_where(count, |it, id| it.end_if_stranded(now, upto, id))
    }

    /// The same of all connections of a service, whatever covers them.
    pub fn end_service(&mut self, now: Instant, service: ServiceId, count: usize) -> bool {
        self.end_where(count, |it, id| it.end_if_of(now, service, id))
    }

    /// Has `end_one` tell the ends of connections, `count` of them at most; it says whether somebody was told.
    fn end_where(
        &mut self,
        count: usize,
        mut end_one: impl FnMut(&mut Self, ConnectionId) -> bool,
    ) -> bool {
        let first = self.drain.next_stranded;
        let end = first.saturating_add(count.saturating_mul(LOOKS));
        let end = end.min(self.table.places());
        let mut told = 0;
        let mut next = first;
        while next < end && told < count {
            let Ok(id) = u32::try_from(next) else {
                break;
            };
            told += usize::from(end_one(self, id));
            next += 1;
        }
        let more = next < self.table.places();
        self.drain.next_stranded = if more { next } else { 0 };
        more
    }

    /// `true`: somebody was told.
    fn end_if_of(&mut self, now: Instant, service: ServiceId, id: ConnectionId) -> bool {
        let known = self.table.get_mut(id);
        if known.is_none_or(|connection| connection.service != service) {
            return false;
        }
        self.evict(now, id);
        let Some(connection) = self.table.get_mut(id) else {
            return false;
        };
        let mut ctx = context!(self, now);
        connection.end(&mut ctx);
        self.settle(now, id);
        true
    }

    /// `true`: somebody was told.
    fn end_if_stranded(&mut self, now: Instant, upto: u64, id: ConnectionId) -> bool {
        let Some(connection) = self.table.get_mut(id) else {
            return false;
        };
        let stranded = self.services.strands(&connection.used(), upto);
        if !stranded && !connection.has_stranded_subflow(&self.services, upto) {
            return false;
        }
        self.evict(now, id);
        let Some(connection) = self.table.get_mut(id) else {
            return false;
        };
        let mut ctx = context!(self, now);
        if stranded {
            connection.end(&mut ctx);
        } else {
            connection.end_stranded_subflows(&mut ctx, upto);
        }
        self.settle(now, id);
        true
    }

    /// Forgets connections that have been stranded since a generation up to `upto`, and what services were until then: no
    /// packet of theirs comes any more. From here on the id of a service that is gone may be given to another. Costs one pass
    /// over the table.
    pub fn forget_stranded(&mut self, upto: u64) {
        let services = &self.services;
        let stranded = |connection: &Connection| services.strands(&connection.used(), upto);
        for id in self.table.ids_where(stranded) {
            self.remove(id);
        }
        self.services.forget(upto);
    }

    /// The services that there are, with those that are gone and not forgotten yet, by their ids.
    #[must_use]
    pub fn service_ids(&self) -> Vec<ServiceId> {
        self.services.ids().collect()
    }
}

impl Connection {
    /// What it uses of its service.
    fn used(&self) -> Used {
        Used {
            service: self.service,
            backend: Backend {
                source: self.tcp.source.addr(),
                addr: self.tcp.backend.addr(),
            },
            local: self.subflow(INITIAL).local.addr(),
            keeps_ends: self.keeps_ends(),
        }
    }

    fn has_stranded_subflow(&self, services: &Services, upto: u64) -> bool {
        let stranded = |index| {
            let subflow = self.subflow(index);
            subflow.lives() && !services.has_local(self.service, subflow.local.addr(), upto)
        };
        self.indices()
            .filter(|&index| index != INITIAL)
            .any(stranded)
    }

    /// Gives up the subflows that came to an address that is announced no more.
    fn end_stranded_subflows(&mut self, ctx: &mut Context<'_>, upto: u64) {
        for index in self.indices().filter(|&index| index != INITIAL) {
            let local = self.subflow(index).local.addr();
            if !ctx.services.has_local(self.service, local, upto) {
                self.reset_subflow(ctx, index, Rst::Ending);
            }
        }
    }
}

//! Access control of services whose clients name their server, for a relay that speaks to clients of split connections itself. Whom
//! the translator lets in, and where to, the relay does: it is the same code.
//!
//! What a client has at a time is counted by each of them for itself, as workers do.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use flexcp_preamble::{Dialogue, Refusal, Target, Turn, Wish};

use crate::ServiceId;
use crate::clients::{Clients, Standing};
use crate::config::{Config, Limits};
use crate::cookies::Cookies;
use crate::lookup::{named, readable};
use crate::service::Services;
use crate::time::Instant;

/// Who may come in, and be connected where.
#[derive(Debug)]
pub struct Admission {
    services: Services,
    clients: Clients,
    cookies: Cookies,
    limits: Limits,
}

/// A client that is in, until [`Admission::leave`] is told that it has left.
#[derive(Debug)]
pub struct Visitor {
    service: ServiceId,
    client: IpAddr,
    standing: Standing,
}

/// The server that a client wants.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Wanted {
    /// It has named its address.
    Address(SocketAddr),
    /// It has named it by a name that is to be resolved, and this port.
    Name(Box<str>, u16),
    /// It gets none, for this reason.
    Refused(Refusal),
}

impl Admission {
    /// By the services and limits of `config`. `cookie_secret`: what the translators make cookies with.
    #[must_use]
    pub fn new(config: Config, cookie_secret: [u8; 32]) -> Self {
        Self {
            services: Services::new(config.services, config.share),
            clients: Clients::default(),
            cookies: Cookies::new(cookie_secret),
            limits: config.limits,
        }
    }

    /// Goes by `config` from here on. Who is in stays.
    pub fn configure(&mut self, config: Config) {
        let host = self.services.take_host();
        self.services = Services::new(config.services, config.share);
        self.services.set_host(host);
        self.limits = config.limits;
    }

    /// The host has these addresses from here on.
    pub fn set_host_addresses(&mut self, addrs: Vec<IpAddr>) {
        self.services.set_host(addrs);
    }

    /// A client of the service has connected. `None`: it has too many connections, and is reset without a word.
    pub fn enter(&mut self, now: Instant, service: ServiceId, client: IpAddr) -> Option<Visitor> {
        let standing = self.clients.judge(now, client, &self.limits);
        if standing == Standing::TurnedAway {
            return None;
        }
        self.clients.enter(now, client, standing, &self.limits);
        Some(Visitor {
            service,
            client,
            standing,
        })
    }

    /// It has left.
    pub fn leave(&mut self, visitor: &Visitor) {
        self.clients.leave(visitor.client, visitor.standing);
    }

    /// What the client and FlexCP say to each other before its stream; `None`: clients of this service name no server.
    #[must_use]
    pub fn dialogue(&self, service: ServiceId) -> Option<Dialogue> {
        self.services.protocol(service).map(Dialogue::new)
    }

    /// Takes the next bytes of the client, as [`Dialogue::hear`] does.
    pub fn hear(
        &self,
        now: Instant,
        visitor: &Visitor,
        (dialogue, bytes): (&mut Dialogue, &[u8]),
        say: &mut Vec<u8>,
    ) -> (usize, Turn) {
        let whose = (visitor.service, visitor.client);
        let gate = self.services.gate(whose, now, &self.cookies);
        dialogue.hear(bytes, &gate, say)
    }

    /// What the client wants, if it may have any server at all. Whether it may have this one says [`allows`](Self::allows).
    #[must_use]
    pub fn wanted(&self, visitor: &Visitor, wish: &Wish) -> Wanted {
        if visitor.standing != Standing::Guest {
            return Wanted::Refused(visitor.standing.refusal());
        }
        if let Some(server) = named(wish) {
            return Wanted::Address(server);
        }
        match &wish.to {
            Target::Name(name) => match readable(name) {
                Some(name) => Wanted::Name(name.into(), wish.port),
                None => Wanted::Refused(Refusal::NoName),
            },
            Target::Ip(_) => Wanted::Refused(Refusal::NotAllowed),
        }
    }

    /// Whether the client may be connected with this server, whose name has been resolved by now.
    #[must_use]
    pub fn allows(&self, visitor: &Visitor, server: SocketAddr) -> bool {
        self.services
            .allows(visitor.service, server, visitor.client)
    }
}

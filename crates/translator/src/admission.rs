//! Access control of services whose clients name their server, for a relay that speaks to clients of split connections itself. Whom
//! the translator lets in, and where to, the relay does: it is the same code.
//!
//! What a client has at a time is counted by each of them for itself, as workers do.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use flexcp_preamble::{Dialogue, Refusal, Target, Turn, Wish};

use crate::clients::{Clients, Standing};
use crate::config::{Config, Limits};
use crate::cookies::Cookies;
use crate::handle::ServiceId;
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

impl Visitor {
    /// Whether it has no more connections than it may.
    #[must_use]
    pub fn may_be_connected(&self) -> bool {
        self.standing == Standing::Guest
    }
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

#[cfg(test)]
mod tests {
    use alloc::vec;

    use flexcp_preamble::{Fault, Protocol};

    use super::*;
    use crate::allowed::Allowed;
    use crate::config::{Intake, Mode, Service};
    use crate::entrance::User;
    use crate::prefix::Prefix;

    const SERVICE: ServiceId = ServiceId(0);
    const REQUEST: [u8; 10] = [5, 1, 0, 1, 192, 0, 2, 80, 0, 80];

    fn addr(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    /// SOCKS5 for joe, with all servers there are; a client may have one connection.
    fn config() -> Config {
        let servers = Prefix {
            addr: addr("0.0.0.0"),
            len: 0,
        };
        let joe = User {
            name: (*b"joe").into(),
            password: (*b"secret").into(),
        };
        let service = Service {
            id: SERVICE,
            name: "any".into(),
            mode: Mode::Explicit {
                protocol: Protocol::Socks5,
                listen: vec!["198.51.100.1:1080".parse().expect("an end")],
                users: vec![joe],
                allowed: vec![Allowed {
                    servers,
                    ports: vec![],
                }],
                source: vec![],
                source_ports: 61000..=61999,
            },
            announce: vec![],
            intake: Intake::default(),
        };
        let limits = Limits {
            client_connections: 1,
            ..Limits::default()
        };
        Config {
            services: vec![service],
            limits,
            ..Config::default()
        }
    }

    fn admission() -> Admission {
        let mut admission = Admission::new(config(), [1; 32]);
        admission.set_host_addresses(vec![addr("203.0.113.9")]);
        admission
    }

    fn enter(admission: &mut Admission, client: &str) -> Visitor {
        let visitor = admission.enter(Instant::from_millis(5000), SERVICE, addr(client));
        visitor.expect("it is not turned away")
    }

    fn wish(said: &[u8]) -> (Vec<u8>, Turn) {
        let mut admission = admission();
        let visitor = enter(&mut admission, "192.0.2.7");
        let mut dialogue = admission.dialogue(SERVICE).expect("SOCKS5");
        let mut answer = vec![];
        let now = Instant::from_millis(5000);
        let (_, turn) = admission.hear(now, &visitor, (&mut dialogue, said), &mut answer);
        (answer, turn)
    }

    #[test]
    fn client_is_heard_by_the_services_own_users() {
        let login = |password: &[u8]| {
            let len = [3, b'j', b'o', b'e', u8::try_from(password.len()).unwrap()];
            [&[5, 1, 2, 1][..], &len, password, &REQUEST].concat()
        };
        let (answer, turn) = wish(&login(b"secret"));
        assert_eq!(answer, [5, 2, 1, 0]);
        assert!(matches!(turn, Turn::Connect(_)), "{turn:?}");
        let (_, turn) = wish(&login(b"secre"));
        assert_eq!(turn, Turn::Close(Fault::Credentials));
        let (_, turn) = wish(&[&[5, 1, 0][..], &REQUEST].concat());
        assert_eq!(turn, Turn::Close(Fault::Method));
    }

    #[test]
    fn servers_are_those_that_the_service_allows_after_a_reload_too() {
        let mut admission = admission();
        let visitor = enter(&mut admission, "192.0.2.7");
        for _ in 0..2 {
            for (server, allowed) in [
                ("192.0.2.80:80", true),
                ("10.1.2.3:80", false),
                // The host's, the service's and the client's own.
                ("203.0.113.9:80", false),
                ("198.51.100.1:80", false),
                ("192.0.2.7:80", false),
            ] {
                let server = server.parse().expect("an end");
                assert_eq!(admission.allows(&visitor, server), allowed, "{server}");
            }
            admission.configure(config());
        }
    }

    #[test]
    fn client_beyond_its_limit_gets_no_server_until_it_has_left() {
        let mut admission = admission();
        let wish = Wish {
            to: Target::Ip(addr("192.0.2.80")),
            port: 80,
        };
        let first = enter(&mut admission, "192.0.2.7");
        let server = Wanted::Address("192.0.2.80:80".parse().expect("an end"));
        assert_eq!(admission.wanted(&first, &wish), server);
        let second = enter(&mut admission, "192.0.2.7");
        assert!(first.may_be_connected() && !second.may_be_connected());
        let refused = Wanted::Refused(Refusal::ClientLimit);
        assert_eq!(admission.wanted(&second, &wish), refused);
        admission.leave(&first);
        let third = enter(&mut admission, "192.0.2.7");
        assert_eq!(admission.wanted(&third, &wish), server);
    }

    #[test]
    fn names_are_resolved_unless_they_are_none() {
        let mut admission = admission();
        let visitor = enter(&mut admission, "192.0.2.7");
        let of = |name: &[u8]| {
            let wish = Wish {
                to: Target::Name(name.into()),
                port: 80,
            };
            admission.wanted(&visitor, &wish)
        };
        assert_eq!(
            of(b"www.example.org"),
            Wanted::Name("www.example.org".into(), 80)
        );
        assert_eq!(of(b"a\nb"), Wanted::Refused(Refusal::NoName));
    }
}

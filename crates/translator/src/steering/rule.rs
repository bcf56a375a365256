//! Rules: which connections are steered how.

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};
use core::ops::RangeInclusive;
use core::time::Duration;

use super::SteeringMode;
use crate::handle::ServiceId;
use crate::prefix::Prefix;

/// How the connections that fit in all that it says are steered (a multi-access rule, 3GPP TS 29.244).
#[derive(Clone, Debug)]
pub struct Rule {
    /// For logs and `show`.
    pub name: String,
    /// Services that connections are of; any when empty.
    pub services: Vec<ServiceId>,
    /// Where servers lie; anywhere when empty.
    pub servers: Vec<Prefix>,
    /// Ports of servers; any when empty.
    pub ports: Vec<RangeInclusive<u16>>,
    /// Where clients lie, by the address that they came from first; anywhere when empty.
    pub clients: Vec<Prefix>,
    /// Which of its paths a connection takes.
    pub mode: Arc<dyn SteeringMode>,
    /// A connection is moved by its mode at the earliest so long after it was moved last.
    pub hold: Duration,
    /// The same where the mode moves it back to what the operator prefers, if that is longer.
    pub fail_back: Duration,
}

/// What rules know of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Descriptor {
    pub(crate) service: ServiceId,
    pub(crate) server: SocketAddr,
    /// Where the client came from first.
    pub(crate) client: IpAddr,
}

impl Rule {
    fn fits(&self, of: &Descriptor) -> bool {
        let within = |all: &[Prefix], addr: IpAddr| {
            all.is_empty() || all.iter().any(|prefix| prefix.contains(addr))
        };
        let port = of.server.port();
        let port_fits = self.ports.is_empty() || self.ports.iter().any(|p| p.contains(&port));
        let service_fits = self.services.is_empty() || self.services.contains(&of.service);
        service_fits
            && port_fits
            && within(&self.servers, of.server.ip())
            && within(&self.clients, of.client)
    }
}

/// All of them, in order of precedence.
#[derive(Default, Debug)]
pub(crate) struct Rules(Vec<Rule>);

impl Rules {
    pub(crate) const fn new(rules: Vec<Rule>) -> Self {
        Self(rules)
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The first that fits. `None`: the path that works stays the active one.
    pub(crate) fn of(&self, connection: &Descriptor) -> Option<&Rule> {
        self.0.iter().find(|rule| rule.fits(connection))
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::steering::SmallestDelay;

    fn rule(name: &str) -> Rule {
        Rule {
            name: name.into(),
            services: vec![],
            servers: vec![],
            ports: vec![],
            clients: vec![],
            mode: Arc::new(SmallestDelay),
            hold: Duration::ZERO,
            fail_back: Duration::ZERO,
        }
    }

    fn prefix(addr: &str, len: u8) -> Prefix {
        Prefix {
            addr: addr.parse().unwrap(),
            len,
        }
    }

    #[test]
    fn first_rule_that_fits_in_all_is_the_connections() {
        let rules = Rules::new(vec![
            Rule {
                services: vec![ServiceId(3)],
                ports: vec![443..=443, 8000..=8999],
                ..rule("ports")
            },
            Rule {
                servers: vec![prefix("192.0.2.0", 24), prefix("2001:db8::", 32)],
                clients: vec![prefix("10.1.0.0", 16)],
                ..rule("ends")
            },
            Rule {
                services: vec![ServiceId(3)],
                ..rule("service")
            },
        ]);
        let of = |service: u16, server: &str, client: &str| {
            let descriptor = Descriptor {
                service: ServiceId(service),
                server: server.parse().unwrap(),
                client: client.parse().unwrap(),
            };
            rules.of(&descriptor).map(|rule| rule.name.as_str())
        };
        assert_eq!(of(3, "192.0.2.1:8999", "10.1.0.1"), Some("ports"));
        assert_eq!(of(4, "192.0.2.1:8999", "10.1.0.1"), Some("ends"));
        assert_eq!(of(3, "192.0.2.1:9000", "10.1.0.1"), Some("ends"));
        assert_eq!(of(3, "192.0.3.1:9000", "10.1.0.1"), Some("service"));
        assert_eq!(of(3, "192.0.2.1:9000", "10.2.0.1"), Some("service"));
        assert_eq!(of(4, "[2001:db8::1]:80", "10.1.0.1"), Some("ends"));
        assert_eq!(of(4, "[2001:db9::1]:80", "10.1.0.1"), None);
        assert!(!rules.is_empty() && Rules::default().is_empty());
    }
}

//! Services: which one a SYN is for, and in reverse mode which back end it goes to and from where.

use alloc::vec::Vec;
use core::net::SocketAddr;

use crate::auth::SecretStream;
use crate::config::{Config, Mode, Service};
use crate::connection::Backend;

/// Ports tried before a source address counts as full.
const PORT_TRIES: usize = 64;

/// What a service does with a SYN.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Match {
    Transparent { service: u16, end_to_end: bool },
    Reverse { service: u16 },
}

/// Run-time state of the services.
#[derive(Debug)]
pub(crate) struct Services {
    state: Vec<State>,
}

/// One service's.
#[derive(Default, Debug)]
struct State {
    /// Back end that is next in turn.
    next: usize,
    /// Back ends that there are.
    backends: usize,
    /// Its connections are not lent.
    kept: bool,
}

impl Services {
    pub(crate) fn new(config: &Config) -> Self {
        let state = config.services.iter().map(|service| match &service.mode {
            Mode::Transparent { .. } => State {
                backends: 1,
                ..State::default()
            },
            Mode::Reverse { backends, .. } => State {
                backends: backends.len(),
                ..State::default()
            },
        });
        Self {
            state: state.collect(),
        }
    }

    /// Says of which services no connection is lent, in the order of the configuration.
    pub(crate) fn keep(&mut self, kept: &[bool]) {
        for (index, state) in self.state.iter_mut().enumerate() {
            state.kept = kept.get(index) == Some(&true);
        }
    }

    /// Whether no connection of this service is lent.
    pub(crate) fn is_kept(&self, service: u16) -> bool {
        self.state
            .get(usize::from(service))
            .is_some_and(|state| state.kept)
    }

    /// The service that clients reach at `destination`.
    pub(crate) fn find(&self, config: &Config, destination: SocketAddr) -> Option<Match> {
        let index = config
            .services
            .iter()
            .position(|service| covers(service, destination))?;
        let service = u16::try_from(index).ok()?;
        Some(match &config.services[index].mode {
            Mode::Transparent { end_to_end, .. } => Match::Transparent {
                service,
                end_to_end: *end_to_end,
            },
            Mode::Reverse { .. } => Match::Reverse { service },
        })
    }

    /// Back ends of a service.
    pub(crate) fn backends(&self, service: u16) -> usize {
        self.state
            .get(usize::from(service))
            .map_or(0, |state| state.backends)
    }

    /// The next back end in turn, other than `not`, with a source that `is_free` towards it.
    pub(crate) fn next_backend(
        &mut self,
        config: &Config,
        service: u16,
        not: Option<SocketAddr>,
        secrets: &mut SecretStream,
        is_free: impl Fn(&Backend) -> bool,
    ) -> Option<Backend> {
        let Mode::Reverse {
            backends,
            source,
            source_ports,
            ..
        } = &config.services.get(usize::from(service))?.mode
        else {
            return None;
        };
        let state = self.state.get_mut(usize::from(service))?;
        for _ in 0..backends.len() {
            let addr = backends[state.next % backends.len()];
            state.next = (state.next + 1) % backends.len();
            if Some(addr) == not {
                continue;
            }
            for ip in source.iter().filter(|ip| ip.is_ipv4() == addr.is_ipv4()) {
                for _ in 0..PORT_TRIES {
                    // Not to be guessed (RFC 6056).
                    let port = config.share.port(source_ports, secrets.next_u32())?;
                    let source = SocketAddr::new(*ip, port);
                    let backend = Backend { source, addr };
                    if is_free(&backend) {
                        return Some(backend);
                    }
                }
            }
        }
        None
    }
}

/// Whether clients reach the service at `destination`.
fn covers(service: &Service, destination: SocketAddr) -> bool {
    match &service.mode {
        Mode::Transparent {
            destinations,
            ports,
            ..
        } => {
            destinations
                .iter()
                .any(|prefix| prefix.contains(destination.ip()))
                && (ports.is_empty() || ports.iter().any(|p| p.contains(&destination.port())))
        }
        Mode::Reverse { listen, .. } => listen.contains(&destination),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::affinity::Share;
    use crate::config::{Limits, Timeouts};

    #[test]
    fn second_source_address_is_used_when_the_ports_of_the_first_are_taken() {
        let [first, second] = ["10.8.0.1", "10.8.0.2"].map(|ip| ip.parse().expect("an address"));
        let config = Config {
            services: alloc::vec![Service {
                name: "two".into(),
                mode: Mode::Reverse {
                    listen: alloc::vec![],
                    backends: alloc::vec!["10.9.0.1:80".parse().expect("an end")],
                    source: alloc::vec![first, second],
                    source_ports: 50_000..=50_001,
                },
                announce: alloc::vec![],
            }],
            limits: Limits::default(),
            timeouts: Timeouts::default(),
            share: Share::default(),
        };
        let mut services = Services::new(&config);
        let mut secrets = SecretStream::new([7; 32]);
        let mut next = |taken: &[core::net::IpAddr]| {
            let is_free = |backend: &Backend| !taken.contains(&backend.source.ip());
            let found = services.next_backend(&config, 0, None, &mut secrets, is_free);
            found.map(|backend| backend.source.ip())
        };
        assert_eq!(next(&[]), Some(first));
        assert_eq!(next(&[first]), Some(second));
        assert_eq!(next(&[first, second]), None);
    }
}

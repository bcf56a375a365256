//! Services: which one a SYN is for, and in reverse mode which back end it goes to and from where.

use alloc::vec::Vec;
use core::net::SocketAddr;
use core::time::Duration;

use flexcp_wire::TcpSeq;

use crate::auth::SecretStream;
use crate::config::{Config, Mode, Service};
use crate::endpoint::Backend;
use crate::health::{AnswerTo, BackendState, Health, MarkReason, Sent};
use crate::time::Instant;

/// Ports tried before a source address counts as full.
const PORT_TRIES: usize = 64;

/// What a service does with a SYN.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Match {
    Transparent { service: u16, end_to_end: bool },
    Reverse { service: u16 },
}

/// Which back ends a connection may go to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Choice {
    /// Those that are not marked.
    Living,
    /// The same, or any if all are marked.
    Any,
}

/// Run-time state of the services.
#[derive(Debug)]
pub(crate) struct Services {
    state: Vec<State>,
    /// Back ends that are marked.
    marked: usize,
    /// When the first probe is due; `None`: there is nobody to probe.
    probe_due: Option<Instant>,
    /// Marks have changed, and nobody has been told.
    untold: bool,
}

/// One service's.
#[derive(Default, Debug)]
struct State {
    /// Back end that is next in turn.
    next: usize,
    /// Of each back end, in the order of the configuration; none on the path.
    health: Vec<Health>,
    /// Its connections are not installed.
    kept: bool,
}

impl Services {
    pub(crate) fn new(config: &Config) -> Self {
        let state = config.services.iter().map(|service| State {
            health: backends(service)
                .iter()
                .map(|_| Health::default())
                .collect(),
            ..State::default()
        });
        Self {
            state: state.collect(),
            marked: 0,
            probe_due: None,
            untold: false,
        }
    }

    /// Says of which services no connection is installed, in the order of the configuration.
    pub(crate) fn keep(&mut self, kept: &[bool]) {
        for (index, state) in self.state.iter_mut().enumerate() {
            state.kept = kept.get(index) == Some(&true);
        }
    }

    /// Whether no connection of this service is installed.
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

    /// Back ends of a service; none on the path.
    pub(crate) fn backends(&self, service: u16) -> usize {
        self.state
            .get(usize::from(service))
            .map_or(0, |state| state.health.len())
    }

    /// The next back end in turn, other than `not`, with a source that `is_free` towards it.
    pub(crate) fn next_backend(
        &mut self,
        config: &Config,
        service: u16,
        (not, choice): (Option<SocketAddr>, Choice),
        secrets: &mut SecretStream,
        is_free: impl Fn(&Backend) -> bool,
    ) -> Option<Backend> {
        let service = usize::from(service);
        let mode = &config.services.get(service)?.mode;
        let state = self.state.get_mut(service)?;
        let all = backends(&config.services[service]);
        let fits = |at: usize| Some(all[at]) != not;
        let lives = |at: usize| fits(at) && !state.health[at].is_marked();
        let any_lives = (0..all.len()).any(lives);
        if !any_lives && choice == Choice::Living {
            return None;
        }
        let turn = (0..all.len()).map(|n| (state.next + n) % all.len());
        for at in turn.filter(|&at| if any_lives { lives(at) } else { fits(at) }) {
            let health = &state.health[at];
            let free = |to: &Backend| is_free(to) && !health.has_probe_from(to.source);
            if let Some(found) = source_towards(config, mode, all[at], secrets, free) {
                state.next = (at + 1) % all.len();
                return Some(found);
            }
        }
        None
    }

    /// How long this back end may take to answer a SYN; `None`: it is none of the service's.
    pub(crate) fn patience(
        &self,
        config: &Config,
        service: u16,
        addr: SocketAddr,
    ) -> Option<Duration> {
        let at = place(config, service, addr)?;
        Some(self.state[usize::from(service)].health[at].patience())
    }

    /// Whether connections pass this back end by.
    pub(crate) fn is_marked(&self, config: &Config, service: u16, addr: SocketAddr) -> bool {
        let health =
            place(config, service, addr).map(|at| &self.state[usize::from(service)].health[at]);
        health.is_some_and(Health::is_marked)
    }

    /// The back end has refused a SYN. `true`: it is marked from now on.
    pub(crate) fn note_refusal(
        &mut self,
        config: &Config,
        now: Instant,
        (service, addr): (u16, SocketAddr),
        reason: MarkReason,
    ) -> bool {
        self.change(config, now, (service, addr), |health| {
            health.note_refusal(now, reason)
        })
    }

    /// The back end has not answered a SYN of `asked`. `true`: it is marked from now on.
    pub(crate) fn note_silence(
        &mut self,
        config: &Config,
        now: Instant,
        (service, addr): (u16, SocketAddr),
        (asked, sent): (Instant, Sent),
    ) -> bool {
        self.change(config, now, (service, addr), |health| {
            health.note_silence(now, asked, sent)
        })
    }

    /// The back end has answered a SYN, after `rtt` if that is known. `true`: it was marked.
    pub(crate) fn note_answer(
        &mut self,
        config: &Config,
        now: Instant,
        (service, addr): (u16, SocketAddr),
        rtt: Option<Duration>,
    ) -> bool {
        self.change(config, now, (service, addr), |health| {
            health.note_answer(now, rtt)
        })
    }

    /// What is known of a back end changes. When the last of a service's is marked, all of them are probed soon.
    fn change(
        &mut self,
        config: &Config,
        now: Instant,
        (service, addr): (u16, SocketAddr),
        change: impl FnOnce(&mut Health) -> bool,
    ) -> bool {
        let Some(at) = place(config, service, addr) else {
            return false;
        };
        let health = &mut self.state[usize::from(service)].health;
        let before = health[at].is_marked();
        let told = change(&mut health[at]);
        self.untold |= health[at].untold;
        match (before, health[at].is_marked()) {
            (false, true) => {
                self.marked += 1;
                if health.iter().all(Health::is_marked) {
                    health.iter_mut().for_each(|health| health.hasten(now));
                }
            }
            (true, false) => self.marked -= 1,
            _ => return told,
        }
        self.find_due();
        told
    }

    fn find_due(&mut self) {
        let probed = self.state.iter().filter(|state| state.health.len() > 1);
        let dues = probed.flat_map(|state| state.health.iter().filter_map(Health::probe_due));
        self.probe_due = dues.min();
    }

    /// When the next probe is due; `None`: there is nobody to probe.
    pub(crate) const fn probe_due(&self) -> Option<Instant> {
        self.probe_due
    }

    /// A back end to probe now, from where, and the number of the SYN.
    pub(crate) fn next_probe(
        &mut self,
        config: &Config,
        now: Instant,
        secrets: &mut SecretStream,
        is_free: impl Fn(&Backend) -> bool,
    ) -> Option<(Backend, TcpSeq)> {
        while self.probe_due.is_some_and(|due| due <= now) {
            let states = self.state.iter_mut().zip(&config.services);
            let mut all =
                states
                    .filter(|(state, _)| state.health.len() > 1)
                    .flat_map(|(state, service)| {
                        let addrs = backends(service).iter();
                        let each = state.health.iter_mut().zip(addrs);
                        each.map(|(health, addr)| (health, &service.mode, *addr))
                    });
            let due = |health: &Health| health.probe_due().is_some_and(|due| due <= now);
            let (health, mode, addr) = all.find(|(health, ..)| due(health))?;
            let isn = TcpSeq(secrets.next_u32());
            let found = source_towards(config, mode, addr, secrets, &is_free);
            let probe = found.map(|found| Sent {
                source: found.source,
                ack: isn.add(1),
                at: Some(now),
            });
            health.note_probe(now, probe);
            self.find_due();
            if let Some(found) = found {
                return Some((found, isn));
            }
        }
        None
    }

    /// The SYN without a connection that a packet from `addr` to `source` with this ACK answers: which service's, and
    /// what it was sent for.
    pub(crate) fn find_sent(
        &self,
        config: &Config,
        (addr, source): (SocketAddr, SocketAddr),
        ack: TcpSeq,
    ) -> Option<(u16, AnswerTo, Sent)> {
        if self.marked == 0 {
            return None;
        }
        let places = (0..).zip(&self.state).filter_map(|(service, state)| {
            let at = place(config, service, addr)?;
            let (to, sent) = state.health[at].find_sent(source, ack)?;
            Some((service, to, sent))
        });
        places.into_iter().next()
    }

    /// A back end whose mark has changed since this was asked last.
    pub(crate) fn next_untold(&mut self) -> Option<BackendState> {
        if !self.untold {
            return None;
        }
        for (service, state) in self.state.iter_mut().enumerate() {
            for (backend, health) in state.health.iter_mut().enumerate() {
                if core::mem::take(&mut health.untold) {
                    return Some(BackendState {
                        service,
                        backend,
                        mark: health.mark(),
                    });
                }
            }
        }
        self.untold = false;
        None
    }
}

/// The back ends of a service, in their order; none on the path.
fn backends(service: &Service) -> &[SocketAddr] {
    match &service.mode {
        Mode::Reverse { backends, .. } => backends,
        Mode::Transparent { .. } => &[],
    }
}

/// Which back end of the service that is.
fn place(config: &Config, service: u16, addr: SocketAddr) -> Option<usize> {
    let service = config.services.get(usize::from(service))?;
    backends(service).iter().position(|known| *known == addr)
}

/// A source address and port that are free towards the back end. The port names this worker.
fn source_towards(
    config: &Config,
    mode: &Mode,
    addr: SocketAddr,
    secrets: &mut SecretStream,
    is_free: impl Fn(&Backend) -> bool,
) -> Option<Backend> {
    let Mode::Reverse {
        source,
        source_ports,
        ..
    } = mode
    else {
        return None;
    };
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
    None
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
            ..Config::default()
        };
        let mut services = Services::new(&config);
        let mut secrets = SecretStream::new([7; 32]);
        let mut next = |taken: &[core::net::IpAddr]| {
            let is_free = |backend: &Backend| !taken.contains(&backend.source.ip());
            let found =
                services.next_backend(&config, 0, (None, Choice::Any), &mut secrets, is_free);
            found.map(|backend| backend.source.ip())
        };
        assert_eq!(next(&[]), Some(first));
        assert_eq!(next(&[first]), Some(second));
        assert_eq!(next(&[first, second]), None);
    }
}

//! Services: which one a SYN is for, and in reverse mode which back end it goes to and from where.
//!
//! A service is known by its id. The configuration changes while connections live on: what a service was before
//! ([`Retired`]) opens nothing any more, and goes on to cover the connections that it has until it is forgotten.

mod aggregation;
mod judged;
mod relayed;
mod source;

use alloc::vec::Vec;
use core::mem;
use core::net::{IpAddr, SocketAddr};

use flexcp_placement::Share;
use flexcp_preamble::Protocol;

use crate::allowed;
use crate::announced::Announced;
use crate::auth::SecretStream;
use crate::carrier::Carrier;
use crate::config::{Announce, Check, Mode, Service};
use crate::cookies::Cookies;
use crate::endpoint::Backend;
use crate::entrance::Entrance;
use crate::handle::ServiceId;
use crate::health::Health;
use crate::hosted::is_responder;
use crate::time::Instant;
use crate::turns::Turns;

use self::aggregation::Preferred;
pub(crate) use self::judged::CheckStep;
use self::source::source_towards;

/// What a service does with a SYN. `opens`: whether it takes new connections, or is drained.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Match {
    Transparent {
        service: ServiceId,
        end_to_end: bool,
        opens: bool,
    },
    Reverse {
        service: ServiceId,
        opens: bool,
    },
    Explicit {
        service: ServiceId,
        opens: bool,
    },
    /// On the path of clients that are to use several uplinks.
    Box {
        service: ServiceId,
        opens: bool,
    },
}

/// What a connection uses of its service.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Used {
    pub(crate) service: ServiceId,
    pub(crate) backend: Backend,
    /// What the client addressed.
    pub(crate) local: SocketAddr,
    /// The server sees the client's own address and port.
    pub(crate) keeps_ends: bool,
}

/// Which back ends a connection may go to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Choice {
    /// Those that are not marked.
    Living,
    /// The same, or any if all are marked.
    Any,
}

/// The services as the present configuration has them, what is left of earlier ones, and their run-time state.
#[derive(Debug)]
pub(crate) struct Services {
    share: Share,
    /// By their ids; `None`: nobody has the id, and no connection either.
    slots: Vec<Option<Slot>>,
    /// Those of the present configuration, in order of precedence.
    order: Vec<ServiceId>,
    /// What services were before: connections that only this covers are drained. The latest stands last.
    retired: Vec<Retired>,
    /// Number of the present configuration.
    generation: u64,
    /// Back ends that are marked.
    marked: usize,
    /// When the first probe is due; `None`: there is nobody to probe.
    probe_due: Option<Instant>,
    /// When the first check is due, or over; `None`: there is nobody to check.
    check_due: Option<Instant>,
    /// Marks have changed, and nobody has been told.
    untold: bool,
    /// Addresses of the host.
    host: Vec<IpAddr>,
}

/// One service's.
#[derive(Debug)]
struct Slot {
    mode: Mode,
    announce: Vec<Announce>,
    /// The same, and what clients were told before, by address ids.
    announced: Announced,
    /// Which back end is next.
    turns: Turns,
    /// Which of a box's aggregation servers are asked first.
    preferred: Preferred,
    /// Of each back end, in the order of the configuration; none on the path.
    health: Vec<Health>,
    /// How they are checked.
    check: Option<Check>,
    /// Connections of back ends that it has no more, where there are any.
    left: Vec<(SocketAddr, u64)>,
    /// It opens no connection for now.
    closed: bool,
    /// Its connections are not offloaded.
    kept: bool,
    /// Its clients have to bring a cookie.
    cookies: bool,
    /// Its back ends are told of their clients.
    proxy_header: bool,
    /// What carries its connections unless a rule says otherwise.
    carrier: Option<Carrier>,
    /// The relay's sockets take data of SYNs.
    relay_takes_syn_data: bool,
}

/// What a service was, up to a generation.
#[derive(Debug)]
struct Retired {
    service: ServiceId,
    /// The last generation in which it was so.
    generation: u64,
    mode: Mode,
    announce: Vec<Announce>,
}

impl Services {
    pub(crate) fn new(services: Vec<Service>, share: Share) -> Self {
        let mut new = Self {
            share,
            slots: Vec::new(),
            order: Vec::new(),
            retired: Vec::new(),
            generation: 0,
            marked: 0,
            probe_due: None,
            check_due: None,
            untold: false,
            host: Vec::new(),
        };
        new.change(services, 0, |_, _, _| {});
        new
    }

    /// From here on `services` are those of generation `generation`. What an unchanged service has stays; a changed one
    /// keeps what is known of the back ends that stay; what a service was and is no more is noted. `tell` hears of each back end
    /// that enters maintenance (`true`) or leaves it.
    pub(crate) fn change(
        &mut self,
        services: Vec<Service>,
        generation: u64,
        mut tell: impl FnMut(ServiceId, SocketAddr, bool),
    ) {
        let before = mem::replace(&mut self.order, services.iter().map(|s| s.id).collect());
        for id in before {
            self.note_end(id, services.iter().find(|service| service.id == id));
        }
        self.generation = generation;
        for service in services {
            let at = usize::from(service.id.0);
            if self.slots.len() <= at {
                self.slots.resize_with(at + 1, || None);
            }
            let old = self.slots[at].take();
            if let Some(old) = &old {
                old.compare_maintenance(&service, |addr, on| tell(service.id, addr, on));
            }
            self.slots[at] = Some(Slot::new(service, old));
        }
        self.take_stock();
    }

    /// Notes what the service `id` was, unless `new` is the same.
    fn note_end(&mut self, id: ServiceId, new: Option<&Service>) {
        let Some(slot) = self.slots.get(usize::from(id.0)).and_then(Option::as_ref) else {
            return;
        };
        if new.is_some_and(|new| is_same(&new.mode, &slot.mode) && new.announce == slot.announce) {
            return;
        }
        let (mode, announce) = (slot.mode.clone(), slot.announce.clone());
        // One that comes and goes in turn is noted once.
        self.retired.retain(|known| {
            known.service != id || known.mode != mode || known.announce != announce
        });
        self.retired.push(Retired {
            service: id,
            generation: self.generation,
            mode,
            announce,
        });
    }

    /// Forgets what services were up to generation `upto`, and frees the ids of those that are no more. Connections that
    /// only this covered have to be gone.
    pub(crate) fn forget(&mut self, upto: u64) {
        self.retired.retain(|retired| retired.generation > upto);
        let (order, retired) = (&self.order, &self.retired);
        for (id, slot) in (0..).map(ServiceId).zip(&mut self.slots) {
            let known = || retired.iter().filter(|known| known.service == id);
            if !order.contains(&id) && known().next().is_none() {
                *slot = None;
            } else if let Some(slot) = slot {
                let told: Vec<_> = known().flat_map(|known| &known.announce).copied().collect();
                slot.announced.forget_all_but(&told);
                slot.announced.change(if order.contains(&id) {
                    &slot.announce
                } else {
                    &[]
                });
            }
        }
        while self.slots.pop_if(|last| last.is_none()).is_some() {}
        self.take_stock();
    }

    /// Whether a connection is covered neither by the present services nor by what they were behind generation `upto`.
    pub(crate) fn strands(&self, used: &Used, upto: u64) -> bool {
        let id = used.service;
        let present = self.order.contains(&id).then(|| self.slot(id)).flatten();
        let retired = self.retired.iter();
        let retired = retired.filter(|known| known.service == id && known.generation > upto);
        !present
            .map(|slot| &slot.mode)
            .into_iter()
            .chain(retired.map(|known| &known.mode))
            .any(|mode| carries(mode, used))
    }

    /// Whether `local`, which a client has joined, is an address of the service's, or was one behind generation `upto`.
    pub(crate) fn has_local(&self, id: ServiceId, local: SocketAddr, upto: u64) -> bool {
        let present = self.order.contains(&id).then(|| self.slot(id)).flatten();
        let announced = |announce: &[Announce]| announce.iter().any(|known| known.is(local));
        present.is_some_and(|slot| is_local(&slot.mode, local) || announced(&slot.announce))
            || self.retired.iter().any(|known| {
                known.service == id
                    && known.generation > upto
                    && (is_local(&known.mode, local) || announced(&known.announce))
            })
    }

    /// Counts what is marked, and finds out who is probed next; whoever is told of marks hears all of them anew.
    fn take_stock(&mut self) {
        self.marked = 0;
        for health in self
            .slots
            .iter_mut()
            .flatten()
            .flat_map(|slot| &mut slot.health)
        {
            health.untold = health.is_marked();
            self.marked += usize::from(health.is_marked());
        }
        self.untold = self.marked > 0;
        self.find_due();
    }

    /// The ids in use.
    pub(crate) fn ids(&self) -> impl Iterator<Item = ServiceId> {
        let slots = (0..).map(ServiceId).zip(&self.slots);
        slots.filter_map(|(id, slot)| slot.is_some().then_some(id))
    }

    fn slot(&self, id: ServiceId) -> Option<&Slot> {
        self.slots.get(usize::from(id.0))?.as_ref()
    }

    /// The addresses that a service announces, in the order of their address ids from 1 on; `None`: the id is not in use.
    pub(crate) fn announced(&self, id: ServiceId) -> &Announced {
        static NONE: Announced = Announced::new();
        self.slot(id).map_or(&NONE, |slot| &slot.announced)
    }

    /// Says of which services no connection is offloaded.
    pub(crate) fn keep(&mut self, kept: &[ServiceId]) {
        for (at, slot) in self.slots.iter_mut().enumerate() {
            if let Some(slot) = slot {
                slot.kept = kept.iter().any(|id| usize::from(id.0) == at);
            }
        }
    }

    /// Whether no connection of this service is offloaded.
    pub(crate) fn is_kept(&self, service: ServiceId) -> bool {
        self.slot(service).is_some_and(|slot| slot.kept)
    }

    /// The service that clients reach at `destination`: a present one if there is one, else one that is drained.
    pub(crate) fn find(&self, destination: SocketAddr) -> Option<Match> {
        let present = self.order.iter().find_map(|&id| {
            let mode = &self.slot(id)?.mode;
            covers(mode, destination).then(|| Match::new(id, mode, !self.is_closed(id)))
        });
        present.or_else(|| {
            let known = self.retired.iter().rev();
            let mut known = known.filter(|known| covers(&known.mode, destination));
            known
                .next()
                .map(|known| Match::new(known.service, &known.mode, false))
        })
    }

    /// Whether the service opens no connection for now.
    fn is_closed(&self, service: ServiceId) -> bool {
        self.slot(service).is_some_and(|slot| slot.closed)
    }

    /// Back ends of a service; none on the path.
    pub(crate) fn backends(&self, service: ServiceId) -> usize {
        self.slot(service).map_or(0, |slot| slot.health.len())
    }

    /// The next back end in turn, other than `not`, with a source that `is_free` towards it.
    pub(crate) fn next_backend(
        &mut self,
        service: ServiceId,
        (not, choice): (Option<SocketAddr>, Choice),
        secrets: &mut SecretStream,
        is_free: impl Fn(&Backend) -> bool,
    ) -> Option<Backend> {
        let share = self.share;
        let state = self.slots.get_mut(usize::from(service.0))?.as_mut()?;
        let mode = &state.mode;
        let all = backends(mode);
        let turns = &mut state.turns;
        let fits = |at: usize| Some(all[at]) != not;
        let lives = |at: usize| fits(at) && !state.health[at].is_marked();
        let any_lives = (0..all.len()).any(|at| lives(at) && turns.part(at).takes());
        if !any_lives && choice == Choice::Living {
            return None;
        }
        let takes = |at| if any_lives { lives(at) } else { fits(at) };
        turns.find(takes, |at| {
            let health = &state.health[at];
            let free = |to: &Backend| is_free(to) && !health.has_sent_from(to.source);
            source_towards(share, mode, all[at], secrets, free)
        })
    }

    /// How the clients of a service name their server; `None`: they don't.
    pub(crate) fn protocol(&self, service: ServiceId) -> Option<Protocol> {
        match self.slot(service)?.mode {
            Mode::Explicit { protocol, .. } => Some(protocol),
            _ => None,
        }
    }

    /// The way in to the service for this client.
    pub(crate) fn gate<'a>(
        &'a self,
        (service, client): (ServiceId, IpAddr),
        now: Instant,
        cookies: &'a Cookies,
    ) -> Entrance<'a> {
        let slot = self.slot(service);
        let users = match slot.map(|slot| &slot.mode) {
            Some(Mode::Explicit { users, .. }) => users.as_slice(),
            _ => &[],
        };
        let asks = slot.is_some_and(|slot| slot.cookies);
        Entrance {
            users,
            cookies: asks.then_some(cookies),
            client,
            now,
        }
    }

    /// The addresses of the host, which it has no more.
    pub(crate) fn take_host(&mut self) -> Vec<IpAddr> {
        mem::take(&mut self.host)
    }

    /// The host has these addresses from here on.
    pub(crate) fn set_host(&mut self, addrs: Vec<IpAddr>) {
        self.host = addrs;
    }

    /// Whether this client of the service may name this server.
    pub(crate) fn allows(&self, service: ServiceId, server: SocketAddr, client: IpAddr) -> bool {
        let Some(Mode::Explicit { allowed, .. }) = self.slot(service).map(|slot| &slot.mode) else {
            return false;
        };
        let own = |addr| addr == client.to_canonical() || self.is_own(addr);
        allowed::allows(allowed, own, server)
    }

    /// Whether an address is the host's or a service's.
    pub(crate) fn is_own(&self, addr: IpAddr) -> bool {
        let of_slot = |slot: &Slot| {
            let announced = slot.announce.iter().any(|told| told.addr == addr);
            announced || is_own(&slot.mode, addr)
        };
        self.host.contains(&addr) || self.slots.iter().flatten().any(of_slot)
    }

    /// Whether a header before each stream tells the back ends of the service who its client is.
    pub(crate) fn tells_clients(&self, service: ServiceId) -> bool {
        self.slot(service).is_some_and(|slot| slot.proxy_header)
    }

    /// Whether any back end of the service takes new connections.
    pub(crate) fn takes_any(&self, service: ServiceId) -> bool {
        let slot = self.slot(service);
        slot.is_some_and(|slot| (0..slot.health.len()).any(|at| slot.turns.part(at).takes()))
    }

    /// Whether this back end of the service takes new connections.
    pub(crate) fn takes(&self, service: ServiceId, addr: SocketAddr) -> bool {
        let slot = self.slot(service);
        let at = slot.and_then(|slot| Some((slot, place(&slot.mode, addr)?)));
        at.is_some_and(|(slot, at)| slot.turns.part(at).takes())
    }
}

impl Slot {
    /// What a service has that is new.
    fn empty(mode: Mode) -> Self {
        Self {
            mode,
            announce: Vec::new(),
            announced: Announced::new(),
            turns: Turns::default(),
            preferred: Preferred::default(),
            health: Vec::new(),
            check: None,
            left: Vec::new(),
            closed: false,
            kept: false,
            cookies: false,
            proxy_header: false,
            carrier: None,
            relay_takes_syn_data: false,
        }
    }

    /// Tells which back ends enter maintenance, or leave it, when the service becomes `new`.
    fn compare_maintenance(&self, new: &Service, mut tell: impl FnMut(SocketAddr, bool)) {
        let parts = backends(&new.mode).iter().zip(&new.intake.parts);
        for (&addr, part) in parts {
            let at = place(&self.mode, addr);
            let before = at.is_some_and(|at| self.turns.part(at).maintenance);
            if before != part.maintenance {
                tell(addr, part.maintenance);
            }
        }
    }

    /// The service's, with what stays of `old`.
    fn new(service: Service, old: Option<Self>) -> Self {
        let mut old = old.unwrap_or_else(|| Self::empty(service.mode.clone()));
        let known = backends(&old.mode);
        let turn = known.get(old.turns.next()).copied();
        let new = backends(&service.mode);
        let gone = known.iter().zip(&old.health);
        let gone = gone.filter(|(addr, health)| health.connections > 0 && !new.contains(addr));
        let mut left = mem::take(&mut old.left);
        left.retain(|(_, connections)| *connections > 0);
        left.extend(gone.map(|(addr, health)| (*addr, health.connections)));
        let health = new.iter().map(|addr| {
            let at = known.iter().position(|known| known == addr);
            let kept = at.and_then(|at| old.health.get_mut(at)).map(mem::take);
            let mut health = kept.unwrap_or_default();
            if let Some(at) = left.iter().position(|(known, _)| known == addr) {
                health.connections = left.swap_remove(at).1;
            }
            if old.check != service.intake.check {
                health.check_anew(service.intake.check);
            }
            health
        });
        let health = health.collect();
        let next = new.iter().position(|addr| Some(*addr) == turn);
        let turns = Turns::new(new.len(), &service.intake.parts, next.unwrap_or(0));
        let turns = match known == new {
            true => turns.or_old(mem::take(&mut old.turns)),
            false => turns,
        };
        let preferred = match known == new {
            true => old.preferred,
            false => Preferred::default(),
        };
        old.announced.change(&service.announce);
        Self {
            health,
            check: service.intake.check,
            closed: service.intake.closed,
            cookies: service.intake.cookies,
            proxy_header: service.intake.proxy_header,
            carrier: service.intake.carrier,
            relay_takes_syn_data: service.intake.relay_takes_syn_data,
            left,
            turns,
            preferred,
            mode: service.mode,
            announce: service.announce,
            ..old
        }
    }
}

impl Match {
    const fn new(service: ServiceId, mode: &Mode, opens: bool) -> Self {
        match mode {
            Mode::Transparent { end_to_end, .. } => Self::Transparent {
                service,
                end_to_end: *end_to_end,
                opens,
            },
            Mode::Reverse { .. } => Self::Reverse { service, opens },
            Mode::Explicit { .. } => Self::Explicit { service, opens },
            Mode::Box { .. } => Self::Box { service, opens },
        }
    }
}

/// The back ends of a service, or the aggregation servers of a box, in their order; none on the path.
fn backends(mode: &Mode) -> &[SocketAddr] {
    match mode {
        Mode::Reverse { backends, .. } => backends,
        Mode::Box { servers, .. } => servers.addrs(),
        Mode::Transparent { .. } | Mode::Explicit { .. } => &[],
    }
}

/// Which back end of the service that is.
fn place(mode: &Mode, addr: SocketAddr) -> Option<usize> {
    backends(mode).iter().position(|known| *known == addr)
}

/// Whether a service is the same to its connections: uplinks come and go under them.
fn is_same(new: &Mode, old: &Mode) -> bool {
    let mut old = old.clone();
    if let (Mode::Box { uplinks, .. }, Mode::Box { uplinks: known, .. }) = (new, &mut old) {
        known.clone_from(uplinks);
    }
    *new == old
}

/// Whether packets of a connection come to FlexCP, from both sides, by what the service is.
fn carries(mode: &Mode, used: &Used) -> bool {
    let Backend { source, addr } = used.backend;
    match mode {
        Mode::Transparent { .. } => used.keeps_ends && covers(mode, addr),
        // The TCP leg's FlexCP end is what the client has addressed. Uplinks come and go under a connection.
        Mode::Box { source_ports, .. } => {
            covers(mode, source) && source_ports.contains(&used.local.port())
        }
        Mode::Reverse {
            backends,
            source: sources,
            source_ports,
            ..
        } => {
            !used.keeps_ends
                && covers(mode, used.local)
                && backends.contains(&addr)
                && sources.contains(&source.ip())
                && source_ports.contains(&source.port())
        }
        Mode::Explicit {
            source: sources,
            source_ports,
            ..
        } => {
            !used.keeps_ends
                && covers(mode, used.local)
                && (is_responder(addr.ip())
                    || covers_server(mode, addr)
                        && sources.contains(&source.ip())
                        && source_ports.contains(&source.port()))
        }
    }
}

/// Whether clients of a service may name this server, of whom nothing else is known.
fn covers_server(mode: &Mode, server: SocketAddr) -> bool {
    let Mode::Explicit { allowed, .. } = mode else {
        return false;
    };
    allowed::allows(allowed, |addr| is_own(mode, addr), server)
}

/// Whether an address is one of the service's own.
fn is_own(mode: &Mode, addr: IpAddr) -> bool {
    match mode {
        Mode::Transparent { .. } => false,
        Mode::Box { uplinks, .. } => uplinks.iter().any(|uplink| uplink.has(addr)),
        Mode::Reverse { listen, source, .. } | Mode::Explicit { listen, source, .. } => {
            source.contains(&addr) || listen.iter().any(|end| end.ip() == addr)
        }
    }
}

/// Whether FlexCP's end of a subflow may be `local`.
fn is_local(mode: &Mode, local: SocketAddr) -> bool {
    match mode {
        Mode::Box { .. } => true,
        _ => covers(mode, local),
    }
}

/// Whether clients reach the service at `destination`.
fn covers(mode: &Mode, destination: SocketAddr) -> bool {
    match mode {
        Mode::Transparent {
            destinations,
            ports,
            ..
        }
        | Mode::Box {
            destinations,
            ports,
            ..
        } => {
            destinations
                .iter()
                .any(|prefix| prefix.contains(destination.ip()))
                && (ports.is_empty() || ports.iter().any(|p| p.contains(&destination.port())))
        }
        Mode::Reverse { listen, .. } | Mode::Explicit { listen, .. } => {
            listen.contains(&destination)
        }
    }
}

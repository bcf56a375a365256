//! The choice of one box: its locator, the sockets that it probes by, and what the workers are told.

use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use flexcp_io::StampedSocket;
use flexcp_location::probe::Key;
use flexcp_location::{Config, Event, Latency, Locator, Policy, Server, Switch, Throughput, Time};
use flexcp_translator::{ServiceId, Uplink};
use tracing::{debug, info, warn};

use super::handshake::Handshakes;
use super::passive::{self, Brought, Received};
use super::{BoxFacts, Chosen, keyfile, now};
use crate::config::aggregation::AggregationServer;
use crate::config::file::{Mode, Service};
use crate::config::location::{Choice, Choose};
use crate::worker::{Marks, WorkerHandle};

/// What the choice is made of: as long as this is the same, what was measured holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Setup {
    pub(super) service: String,
    servers: Vec<AggregationServer>,
    uplinks: Vec<String>,
    choose: Choose,
    content: Option<SocketAddr>,
    interval: Duration,
    bytes: u64,
    /// Of each server: which key it is.
    keys: Vec<Option<u32>>,
}

/// The choice of one box.
#[derive(Debug)]
pub(super) struct Choosing {
    pub(super) setup: Setup,
    service: ServiceId,
    locator: Locator,
    uplinks: Vec<Uplink>,
    /// Of each server over each uplink; `None`: none is needed yet, or there is no address.
    sockets: Vec<Option<StampedSocket>>,
    /// With servers over uplinks.
    pub(super) handshakes: Handshakes<(usize, usize)>,
    marks: Vec<Arc<Marks>>,
    /// Which servers were marked at the last look.
    marked: Vec<bool>,
    /// The order that the workers have been told.
    told: Vec<usize>,
    /// Since when the first server is the first.
    since: Time,
    /// What uplinks have brought.
    brought: Vec<Brought>,
    /// What connections with servers have come to, by the workers' counters.
    opened: u64,
    has_complained: bool,
}

impl Setup {
    /// That of a box whose servers are chosen by measurement.
    pub(super) fn of(service: &Service) -> Option<Self> {
        let Mode::Box {
            servers,
            uplinks,
            choice,
            ..
        } = &service.mode
        else {
            return None;
        };
        if !choice.measures() || servers.is_empty() {
            return None;
        }
        let servers: Vec<_> = servers.iter().map(|server| server.value.clone()).collect();
        let keys = servers.iter().map(|server| key(server).map(|key| key.id()));
        let Choice {
            choose,
            content,
            interval,
            bytes,
        } = choice;
        Some(Self {
            service: service.name.value.clone(),
            keys: keys.collect(),
            servers,
            uplinks: uplinks.iter().map(|name| name.value.clone()).collect(),
            choose: choose.value,
            content: content.as_ref().map(|content| content.value),
            interval: interval.value,
            bytes: u64::try_from(bytes.value).unwrap_or(0),
        })
    }

    /// What the locator is told.
    fn config(&self) -> Config {
        let servers = self.servers.iter().map(|server| Server {
            name: server.name(),
            // One without a responder has no key, and is not probed.
            probe: server.probe.unwrap_or(server.addr),
            key: server.probe.and_then(|_| key(server)),
        });
        let uplinks = self.uplinks.iter().map(|name| flexcp_location::Uplink {
            name: name.clone(),
            line: None,
        });
        let of_one = self.bytes / if self.servers.len() > 1 { 2 } else { 1 };
        Config {
            content: self.content,
            interval: self.interval,
            hold: self.interval * 2 / 5,
            idle: IDLE.max(self.interval * 2),
            bytes_per_hour: self.bytes,
            server_bytes_per_hour: of_one,
            ..Config::new(servers.collect(), uplinks.collect())
        }
    }

    fn policy(&self) -> Box<dyn Policy> {
        match self.choose {
            Choose::Throughput => Box::new(Throughput::default()),
            Choose::Latency => Box::new(Latency),
            Choose::Fixed => Box::new(flexcp_location::Fixed),
        }
    }
}

/// The key that is shared with a server; the check has looked at it.
fn key(server: &AggregationServer) -> Option<Key> {
    let file = server
        .key_file
        .as_ref()
        .filter(|_| server.probe.is_some())?;
    let keys = keyfile::read(file);
    let keys = keys.inspect_err(|error| warn!("server {} is not probed: {error}", server.name()));
    keys.ok()?.into_iter().next()
}

impl Choosing {
    /// Begins with nothing known.
    pub(super) fn new(setup: Setup) -> Option<Self> {
        let wrong =
            |error: String| warn!("box {}: servers are not measured: {error}", setup.service);
        let seed = flexcp_io::random_bytes().map_err(|error| wrong(error.to_string()));
        let locator = Locator::new(
            setup.config(),
            setup.policy(),
            u64::from_ne_bytes(seed.ok()?),
        );
        let locator = locator.map_err(|error| wrong(error.to_string())).ok()?;
        let (servers, uplinks) = (setup.servers.len(), setup.uplinks.len());
        info!(
            "box {}: measures {servers} servers over {uplinks} uplinks, by {}",
            setup.service,
            setup.choose.name()
        );
        Some(Self {
            setup,
            service: ServiceId(0),
            told: locator.order().to_vec(),
            locator,
            uplinks: vec![Uplink::default(); uplinks],
            sockets: (0..servers * uplinks).map(|_| None).collect(),
            handshakes: Handshakes::new(),
            marks: Vec::new(),
            marked: vec![false; servers],
            since: now(),
            brought: vec![Brought::default(); uplinks],
            opened: 0,
            has_complained: false,
        })
    }

    /// The service has this id, its uplinks these addresses, and the workers note their marks there.
    pub(super) fn follow(
        &mut self,
        id: ServiceId,
        uplinks: &[Uplink],
        marks: &[Arc<Marks>],
        now: Time,
    ) {
        self.service = id;
        self.marks = marks.to_vec();
        for (uplink, is) in uplinks.iter().enumerate().take(self.uplinks.len()) {
            let was = std::mem::replace(&mut self.uplinks[uplink], *is);
            for server in 0..self.setup.servers.len() {
                let v4 = self.setup.servers[server].addr.is_ipv4();
                let (was, is) = (was.addr(v4), is.addr(v4));
                // Another address is another path.
                if was != is {
                    self.locator.set_path(server, uplink, false, now);
                    let socket = server * self.uplinks.len() + uplink;
                    self.sockets[socket] = None;
                    self.handshakes.give_up(|of| *of == (server, uplink));
                    self.locator.set_path(server, uplink, is.is_some(), now);
                }
            }
        }
    }

    /// What to wait for.
    pub(super) fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.sockets.iter().flatten().map(|socket| socket.as_fd())
    }

    /// When there is something to do.
    pub(super) fn due(&self, now: Time) -> Option<Time> {
        self.locator.poll_timeout(now)
    }

    /// Takes what has come, does what is due, and tells the workers if that has another order come of it. Gives each choice of another
    /// server.
    pub(super) fn work(&mut self, workers: &[WorkerHandle], buffer: &mut [u8]) -> Vec<Chosen> {
        self.receive(buffer);
        for ((server, uplink), delay) in self.handshakes.over(now()) {
            self.locator.handshake(server, uplink, delay, now());
        }
        if self.due(now()).is_some_and(|due| due <= now()) {
            self.locator.handle_timeout(now());
        }
        while let Some(transmit) = self.locator.poll_transmit(now(), buffer) {
            let of = (transmit.server, transmit.uplink);
            self.send(of, &buffer[..transmit.length], transmit.to);
        }
        while let Some(errand) = self.locator.poll_errand(now()) {
            self.shake_hands(errand.server, errand.uplink);
        }
        let mut chosen = Vec::new();
        while let Some(event) = self.locator.poll_event() {
            self.log(&event);
            if let Event::Switched(switch) = &event {
                chosen.push(self.chosen(switch));
            }
        }
        if self.locator.order() != self.told {
            self.tell_workers(workers);
        }
        chosen
    }

    fn chosen(&self, switch: &Switch) -> Chosen {
        let of = |server: usize| {
            let server = &self.setup.servers[server];
            (server.name(), server.addr)
        };
        Chosen {
            at: now(),
            service: self.service,
            from: switch.from.map(of),
            to: of(switch.to),
            reason: switch.reason.to_string(),
        }
    }

    /// Tells the workers the order that holds.
    pub(super) fn tell_workers(&mut self, workers: &[WorkerHandle]) {
        let order = self.locator.order();
        if self.told.first() != order.first() {
            self.since = now();
        }
        self.told = order.to_vec();
        let places = self.told.iter();
        let addrs: Vec<_> = places
            .map(|&place| self.setup.servers[place].addr)
            .collect();
        for worker in workers {
            worker.prefer_servers(self.service, &addrs);
        }
    }

    /// Looks at what connections show: whether there are any, which servers they have marked, and what uplinks bring.
    pub(super) fn look(&mut self, workers: &[WorkerHandle], now: Time) {
        let open = self.connections(workers);
        let opened = self.opened(workers);
        let is_busy = open.iter().any(|open| *open > 0);
        if is_busy || std::mem::replace(&mut self.opened, opened) != opened {
            self.locator.activity(now);
        }
        self.note_marks(now);
        self.credit(&open, now);
    }

    /// Connections with each server.
    fn connections(&self, workers: &[WorkerHandle]) -> Vec<u64> {
        let mut open = vec![0; self.setup.servers.len()];
        // A worker that does not answer is about to end, as FlexCP is.
        let views = workers.iter().filter_map(|worker| worker.backends().ok());
        for view in views.flatten().filter(|view| view.service == self.service) {
            let mut servers = self.setup.servers.iter();
            if let Some(place) = servers.position(|server| server.addr == view.addr) {
                open[place] += view.connections;
            }
        }
        open
    }

    /// Connections that were opened so far, of any service: some are over between two looks.
    fn opened(&self, workers: &[WorkerHandle]) -> u64 {
        let stats = workers.iter().filter_map(|worker| worker.stats().ok());
        let counters = stats.map(|stats| stats.counters);
        counters
            .map(|all| all.server_granted + all.server_skipped + all.server_bypassed)
            .sum()
    }

    /// A server that connections have marked had no answer for them. Once it has no mark any more a handshake shows how far it is.
    fn note_marks(&mut self, now: Time) {
        for server in 0..self.marked.len() {
            let mut marks = self.marks.iter();
            let is_marked = marks.any(|marks| marks.of(self.service, server).is_some());
            if is_marked == std::mem::replace(&mut self.marked[server], is_marked) {
                continue;
            }
            for uplink in 0..self.uplinks.len() {
                if self.source(server, uplink).is_none() {
                    continue;
                }
                if is_marked {
                    self.locator.handshake(server, uplink, None, now);
                } else {
                    self.shake_hands(server, uplink);
                }
            }
        }
    }

    /// What uplinks have brought within the last second is the work of the server in use, if it was in use all the time and has all
    /// of the box's connections.
    fn credit(&mut self, open: &[u64], now: Time) {
        let first = self.told.first().copied();
        let has_all = |first: usize| {
            let mut others = open.iter().enumerate().filter(|(place, _)| *place != first);
            open[first] > 0 && others.all(|(_, open)| *open == 0)
        };
        let received = Received::now();
        for uplink in 0..self.uplinks.len() {
            let bytes = received.by(&self.setup.uplinks[uplink]);
            let Some(transfer) = self.brought[uplink].look(bytes, now) else {
                continue;
            };
            let Some(first) = first.filter(|first| has_all(*first)) else {
                continue;
            };
            let was_first = now.since(self.since) >= transfer.busy;
            if was_first && passive::is_prompt(&transfer) && self.source(first, uplink).is_some() {
                self.locator.transferred(first, uplink, &transfer, now);
            }
        }
    }

    /// This box's end of the path to a server over an uplink.
    fn source(&self, server: usize, uplink: usize) -> Option<std::net::IpAddr> {
        self.uplinks[uplink].addr(self.setup.servers[server].addr.is_ipv4())
    }

    fn receive(&mut self, buffer: &mut [u8]) {
        for path in 0..self.sockets.len() {
            let (server, uplink) = (path / self.uplinks.len(), path % self.uplinks.len());
            for _ in 0..AT_ONCE {
                let Some(socket) = &self.sockets[path] else {
                    break;
                };
                let stamped = match socket.receive(buffer) {
                    Ok(Some(stamped)) => stamped,
                    Ok(None) => break,
                    // What routers say of a datagram is seen by the answer that does not come.
                    Err(error) => {
                        debug!("box {}: {error}", self.setup.service);
                        break;
                    }
                };
                if Some(stamped.from) != self.setup.servers[server].probe {
                    continue;
                }
                self.brought[uplink].probe(stamped.length + HEADERS);
                let datagram = &buffer[..stamped.length.min(buffer.len())];
                let at = Time(stamped.at);
                // What is not taken is counted.
                let of = (server, uplink);
                let _ = self.locator.handle_datagram(of, datagram, at, now());
            }
        }
    }

    fn send(&mut self, (server, uplink): (usize, usize), datagram: &[u8], to: SocketAddr) {
        let Some(source) = self.uplinks[uplink].addr(to.is_ipv4()) else {
            return;
        };
        let path = server * self.uplinks.len() + uplink;
        if self.sockets[path].is_none() {
            match StampedSocket::bind(SocketAddr::new(source, 0)) {
                Ok(socket) => self.sockets[path] = Some(socket),
                Err(error) => return self.complain(uplink, &error.to_string()),
            }
        }
        let sent = self.sockets[path].as_ref().map(|it| it.send(datagram, to));
        if let Some(Err(error)) = sent {
            debug!("box {}: to {to}: {error}", self.setup.service);
        }
    }

    fn shake_hands(&mut self, server: usize, uplink: usize) {
        let Some(source) = self.source(server, uplink) else {
            return;
        };
        let ends = (Some(source), self.setup.servers[server].addr);
        if let Err(error) = self.handshakes.begin((server, uplink), ends, now()) {
            self.complain(uplink, &error.to_string());
            self.locator.handshake(server, uplink, None, now());
        }
    }

    /// Says once why there can be no probes; what comes of it is seen in the table.
    fn complain(&mut self, uplink: usize, error: &str) {
        if !std::mem::replace(&mut self.has_complained, true) {
            warn!(
                "box {}: can't probe over {}: {error}; under systemd, the drop-in sockets.conf \
                 (RestrictAddressFamilies=AF_INET AF_INET6) allows sockets",
                self.setup.service, self.setup.uplinks[uplink]
            );
        }
    }

    fn log(&self, event: &Event) {
        let of = |server: &usize| self.setup.servers[*server].name();
        let service = &self.setup.service;
        match event {
            Event::Switched(switch) => info!("box {service}: by {}", switch.reason),
            Event::Reach {
                server,
                is_reachable: true,
            } => info!("box {service}: server {} answers", of(server)),
            Event::Reach { server, .. } => {
                info!("box {service}: server {} does not answer", of(server));
            }
            Event::Probing {
                server,
                answers: true,
            } => info!("box {service}: server {} answers probes", of(server)),
            Event::Probing { server, .. } => info!(
                "box {service}: server {} does not answer probes: known by handshakes and transfers alone",
                of(server)
            ),
        }
    }

    /// How it stands.
    pub(super) fn facts(&mut self) -> BoxFacts {
        let at = now();
        BoxFacts {
            service: self.service,
            table: self.locator.table(at),
            order: self.told.clone(),
            reason: self.locator.reason().map(ToString::to_string),
            bytes: [self.locator.bytes_of_hour(at), self.setup.bytes],
            counters: *self.locator.counters(),
            at,
        }
    }
}

/// Without a connection for so long nothing is probed.
const IDLE: Duration = Duration::from_secs(600);
/// Datagrams of one path before the others have their turn: a train, and more.
const AT_ONCE: usize = 256;
/// Bytes before a datagram's own on the wire: Ethernet, IPv4, UDP.
const HEADERS: usize = 42;

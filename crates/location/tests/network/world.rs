//! A box, its servers, and the links between them, in virtual time.

use std::collections::BinaryHeap;
use std::net::SocketAddr;
use std::time::Duration;

use flexcp_location::probe::{Key, LONGEST};
use flexcp_location::{
    Allowed, Config, Errand, Event, Leg, Locator, Policy, Rate, Responder, ResponderConfig, Server,
    Throughput, Time, Uplink,
};

use crate::link::Link;
use crate::random::Random;

/// Headers of a datagram.
const HEADERS: u64 = 28;

/// A server and its links, which tests change as they like.
pub(crate) struct Host {
    pub(crate) responder: Option<Responder>,
    pub(crate) leg: Leg,
    /// For each uplink, up and down.
    pub(crate) links: Vec<[Link; 2]>,
    /// Whether it answers TCP handshakes.
    pub(crate) listens: bool,
    /// Bytes from and to the box as the wire has them.
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum What {
    AtServer(usize, usize, Vec<u8>),
    AtBox(usize, usize, Vec<u8>),
    LegFound(usize),
    Shaken(usize, usize, Option<Duration>),
}

pub(crate) struct World {
    pub(crate) now: Time,
    pub(crate) locator: Locator,
    pub(crate) hosts: Vec<Host>,
    pub(crate) events: Vec<(Time, Event)>,
    /// There are connections all the time.
    pub(crate) is_busy: bool,
    /// Bytes of probes that the wire has carried, and when.
    pub(crate) carried: Vec<(Time, u64)>,
    queue: BinaryHeap<std::cmp::Reverse<(Time, u64, What)>>,
    order: u64,
    dice: Random,
}

pub(crate) fn content() -> SocketAddr {
    SocketAddr::from(([203, 0, 113, 9], 443))
}

pub(crate) fn mbit(hundredths: u64) -> Rate {
    Rate::from_kbit(hundredths * 10)
}

fn address_of_box(uplink: usize) -> SocketAddr {
    SocketAddr::from(([198, 51, 100, 10 + octet(uplink)], 40_000))
}

/// What a test begins with: keys for all servers, a minute between rounds.
pub(crate) fn config(servers: usize, uplinks: usize) -> Config {
    let servers = (0..servers).map(|server| Server {
        name: format!("server{}", server + 1),
        probe: SocketAddr::from(([192, 0, 2, 1 + octet(server)], 7300)),
        key: Some(Key::new(&[octet(server) + 1; 32]).unwrap()),
    });
    let names = ["dsl0", "lte0", "sat0"];
    let uplinks = names[..uplinks].iter().map(|name| Uplink {
        name: (*name).into(),
        line: None,
    });
    Config {
        content: Some(content()),
        interval: Duration::from_secs(60),
        hold: Duration::from_secs(30),
        bytes_per_hour: 400 << 20,
        server_bytes_per_hour: 200 << 20,
        ..Config::new(servers.collect(), uplinks.collect())
    }
}

impl World {
    pub(crate) fn new(config: Config, links: Vec<(Vec<[Link; 2]>, Leg)>, seed: u64) -> Self {
        Self::with(config, links, Box::new(Throughput::default()), seed)
    }

    pub(crate) fn with(
        config: Config,
        links: Vec<(Vec<[Link; 2]>, Leg)>,
        policy: Box<dyn Policy>,
        seed: u64,
    ) -> Self {
        let (keys, uplinks): (Vec<_>, _) = (
            config.servers.iter().map(|it| it.key.clone()).collect(),
            config.uplinks.len(),
        );
        let hosts = links.into_iter().zip(keys).map(|((links, leg), key)| Host {
            responder: key.map(|key| responder(key, seed)),
            leg,
            links,
            listens: true,
            bytes_in: 0,
            bytes_out: 0,
        });
        let hosts: Vec<Host> = hosts.collect();
        let mut locator = Locator::new(config, policy, seed).unwrap();
        for server in 0..hosts.len() {
            for uplink in 0..uplinks {
                locator.set_path(server, uplink, true, Time::ZERO);
            }
        }
        Self {
            now: Time::from_secs(1),
            locator,
            hosts,
            events: Vec::new(),
            is_busy: true,
            carried: Vec::new(),
            queue: BinaryHeap::new(),
            order: 0,
            dice: Random::new(seed),
        }
    }

    pub(crate) fn run(&mut self, secs: u64) {
        let end = self.now + Duration::from_secs(secs);
        self.run_until(end, |_| false);
    }

    /// Runs until something holds, or until then; says when it did.
    pub(crate) fn run_until(&mut self, end: Time, holds: impl Fn(&Self) -> bool) -> Option<Time> {
        let mut steps = 0_u64;
        while self.now < end {
            if self.is_busy {
                self.locator.activity(self.now);
            }
            self.locator.handle_timeout(self.now);
            self.drain();
            if holds(self) {
                return Some(self.now);
            }
            let packet = self.queue.peek().map(|next| next.0.0);
            let timer = self.locator.poll_timeout(self.now);
            let beat = self.is_busy.then_some(self.now + Duration::from_secs(5));
            let next = packet.into_iter().chain(timer).chain(beat).min();
            let Some(next) = next.filter(|&next| next < end) else {
                self.now = end;
                break;
            };
            assert!(
                next > self.now || packet == Some(self.now),
                "no timer stands still"
            );
            self.now = self.now.max(next);
            while self.queue.peek().is_some_and(|next| next.0.0 <= self.now) {
                let std::cmp::Reverse((at, _, what)) = self.queue.pop().unwrap();
                self.happen(at, what);
                self.drain();
            }
            steps += 1;
            assert!(steps < 50_000_000, "the world stands still");
        }
        None
    }

    fn happen(&mut self, at: Time, what: What) {
        match what {
            What::AtServer(server, uplink, datagram) => {
                let host = &mut self.hosts[server];
                host.bytes_in += datagram.len() as u64 + HEADERS;
                let from = address_of_box(uplink);
                if let Some(responder) = &mut host.responder {
                    let _ = responder.handle_datagram(from, &datagram, at, at);
                }
            }
            What::AtBox(server, uplink, datagram) => {
                let _ = self
                    .locator
                    .handle_datagram((server, uplink), &datagram, at, at);
            }
            What::LegFound(server) => {
                let host = &mut self.hosts[server];
                if let Some(responder) = &mut host.responder {
                    responder.leg_measured(content(), host.leg, at);
                }
            }
            What::Shaken(server, uplink, delay) => {
                self.locator.handshake(server, uplink, delay, at);
            }
        }
    }

    /// Carries all that anybody has to send.
    fn drain(&mut self) {
        let mut out = [0; LONGEST];
        let now = self.now;
        while let Some(sent) = self.locator.poll_transmit(now, &mut out) {
            let bytes = sent.length as u64 + HEADERS;
            self.carried.push((now, bytes));
            let link = &mut self.hosts[sent.server].links[sent.uplink][0];
            if let Some(at) = link.send(now, bytes, &mut self.dice) {
                let datagram = out[..sent.length].to_vec();
                self.later(at, What::AtServer(sent.server, sent.uplink, datagram));
            }
        }
        while let Some(Errand { server, uplink }) = self.locator.poll_errand(now) {
            let links = &self.hosts[server].links[uplink];
            let is_there = self.hosts[server].listens && links.iter().all(|link| !link.is_cut);
            let delay = links[0].delay + links[1].delay;
            let (after, found) = if is_there {
                (delay, Some(delay))
            } else {
                (Duration::from_secs(3), None)
            };
            self.later(now + after, What::Shaken(server, uplink, found));
        }
        for server in 0..self.hosts.len() {
            self.drain_server(server, &mut out);
        }
        while let Some(event) = self.locator.poll_event() {
            self.events.push((now, event));
        }
    }

    fn drain_server(&mut self, server: usize, out: &mut [u8]) {
        let now = self.now;
        let host = &mut self.hosts[server];
        let Some(responder) = &mut host.responder else {
            return;
        };
        let mut later = Vec::new();
        while let Some((to, length)) = responder.poll_transmit(out) {
            let uplinks = host.links.len();
            let uplink = (0..uplinks).find(|&at| address_of_box(at) == to).unwrap();
            let bytes = length as u64 + HEADERS;
            host.bytes_out += bytes;
            self.carried.push((now, bytes));
            if let Some(at) = host.links[uplink][1].send(now, bytes, &mut self.dice) {
                later.push((at, What::AtBox(server, uplink, out[..length].to_vec())));
            }
        }
        while responder.poll_leg(now).is_some() {
            later.push((now + Duration::from_millis(80), What::LegFound(server)));
        }
        for (at, what) in later {
            self.later(at, what);
        }
        let host = &self.hosts[server];
        assert!(host.bytes_out <= host.bytes_in, "more bytes out than in");
    }

    fn later(&mut self, at: Time, what: What) {
        self.order += 1;
        self.queue.push(std::cmp::Reverse((at, self.order, what)));
    }

    /// When another server was used, and which.
    pub(crate) fn switches(&self) -> Vec<(Time, usize)> {
        let switch = |(at, event): &(Time, Event)| match event {
            Event::Switched(switch) if switch.from.is_some() => Some((*at, switch.to)),
            _ => None,
        };
        self.events.iter().filter_map(switch).collect()
    }

    /// Most bytes that any hour has carried.
    pub(crate) fn worst_hour(&self) -> u64 {
        let (mut begin, mut sum, mut worst) = (0, 0, 0);
        for &(at, bytes) in &self.carried {
            sum += bytes;
            while at.since(self.carried[begin].0) > Duration::from_secs(3600) {
                sum -= self.carried[begin].1;
                begin += 1;
            }
            worst = worst.max(sum);
        }
        worst
    }

    /// The order by what has been measured, without regard for what is in use.
    pub(crate) fn measured_order(&self) -> Vec<usize> {
        Throughput::default().rank(&self.locator.table(self.now))
    }
}

pub(crate) fn responder(key: Key, seed: u64) -> Responder {
    let config = ResponderConfig {
        keys: vec![key],
        content: vec![Allowed {
            address: content().ip(),
            bits: 24,
            port: Some(443),
        }],
        ..ResponderConfig::default()
    };
    let mut secret = [9; 32];
    secret[..8].copy_from_slice(&seed.to_be_bytes());
    Responder::new(config, secret)
}

pub(crate) fn octet(of: usize) -> u8 {
    u8::try_from(of).unwrap()
}

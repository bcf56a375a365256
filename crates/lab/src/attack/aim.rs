//! The attacker at work: which connection it aims at, and how fast it sends.

use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::bomb::Bomb;
use super::forge::{self, Dice};
use super::kinds::{self, Attack, Blind, Flood, Kind, Leg, Service};
use super::loris::Loris;
use super::tap::{Muzzle, Numbers, Watch};
use crate::daemon::FlexCp;
use crate::namespace::Namespace;
use crate::topology::Lab;

/// Raw sockets on both legs, and what they see.
pub(super) struct Position {
    /// From the first access link's wire to FlexCP.
    client_side: Muzzle,
    /// From the server to FlexCP.
    server_side: Muzzle,
    /// What FlexCP sends on the access links, by link from 0.
    to_clients: Vec<Watch>,
    /// What the server sends.
    from_server: Watch,
    /// What it gets.
    to_server: Watch,
}

impl Position {
    /// Takes position, and gives the spoofed addresses a route back to where nobody answers.
    pub(super) fn take(lab: &Lab) -> Result<Self> {
        let (wire, proxy) = (lab.wire()?, lab.proxy());
        let gateway = lab.client_addr(1, crate::topology::Family::V4);
        proxy.ip(&format!(
            "route add {} via {gateway} dev a1",
            forge::SPOOFED
        ))?;
        let watch = |link| Watch::start(wire, &format!("p{link}"));
        Ok(Self {
            client_side: Muzzle::open(wire, "p1", proxy, "a1")?,
            server_side: Muzzle::open(lab.server(1), "eth0", proxy, "srv1")?,
            to_clients: (1..=lab.links()).map(watch).collect::<Result<_>>()?,
            from_server: Watch::start(proxy, "srv1")?,
            to_server: Watch::start(lab.server(1), "eth0")?,
        })
    }

    /// Packets and bytes that FlexCP's host sent to spoofed addresses so far.
    pub(super) fn to_spoofed(&self) -> (u64, u64) {
        let sent = self.to_clients.iter().map(|watch| watch.seen().to_spoofed);
        sent.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }

    /// Bytes of it that the server made FlexCP send: what it sent to those addresses itself, or, when it
    /// sees FlexCP as its client, its SYN/ACKs.
    /// Where clients name the server that is FlexCP's own doing.
    pub(super) fn answered_by_server(&self, service: Service) -> u64 {
        let seen = self.from_server.seen();
        match service {
            Service::Transparent => seen.to_spoofed.1,
            Service::Reverse => seen.syn_acks,
            Service::Convert | Service::Socks5 | Service::Split => 0,
        }
    }

    /// SYNs that the server has got so far.
    pub(super) fn syns_to_server(&self) -> u64 {
        self.to_server.seen().syns
    }
}

/// The ends and the token of a translated connection.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) token: u32,
    pub(super) client: IpAddr,
    /// Client and FlexCP's end of each subflow.
    pub(super) subflows: Vec<(SocketAddr, SocketAddr)>,
    /// The server, and what it sees as its client.
    pub(super) server: (SocketAddr, SocketAddr),
}

impl Target {
    /// The connection that has carried most, with its established subflows; `None` if nothing is translated.
    pub(super) fn busiest(flexcp: &FlexCp) -> Result<Option<Self>> {
        let view = flexcp.show_connections()?;
        let connections = view["connections"].as_array().into_iter().flatten();
        let translated = connections.filter(|c| c["state"] == "translating");
        let busiest = translated.max_by_key(|connection| carried(connection));
        busiest.map(Self::read).transpose()
    }

    fn read(connection: &Value) -> Result<Self> {
        let subflows = connection["subflows"].as_array().into_iter().flatten();
        let established = subflows.filter(|subflow| subflow["established"] == true);
        let ends =
            |subflow: &Value| Ok((address(&subflow["client"])?, address(&subflow["local"])?));
        let token = connection["token"].as_u64().context("no token")?;
        Ok(Self {
            token: u32::try_from(token)?,
            client: address(&connection["client"])?.ip(),
            subflows: established.map(ends).collect::<Result<_>>()?,
            server: (
                address(&connection["backend"])?,
                address(&connection["source"])?,
            ),
        })
    }
}

fn carried(connection: &Value) -> u64 {
    let subflows = connection["subflows"].as_array().into_iter().flatten();
    subflows
        .map(|s| s["bytes_down"].as_u64().unwrap_or(0) + s["bytes_up"].as_u64().unwrap_or(0))
        .sum()
}

fn address(value: &Value) -> Result<SocketAddr> {
    Ok(value.as_str().context("no address")?.parse()?)
}

/// What has been sent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sent {
    pub(super) packets: u64,
    pub(super) bytes: u64,
    pub(super) took: Duration,
    /// Hostile clients that were let in, and those of them that FlexCP ended.
    pub(super) bombs: (u64, u64),
}

/// An attacker in position, with a target.
pub(super) struct Attacker<'a> {
    pub(super) attack: Attack,
    pub(super) position: &'a Position,
    pub(super) target: &'a Target,
    /// Where hostile clients are that have sockets.
    pub(super) client: &'a Namespace,
    /// The service that floods go to.
    pub(super) service: SocketAddr,
    pub(super) dice: Dice,
}

impl Attacker<'_> {
    /// Sends until told to stop.
    pub(super) fn run(mut self, stop: impl Fn() -> bool + Send) -> Result<Sent> {
        if self.attack.kind == Kind::SlowLoris {
            let loris = Loris {
                service: self.service,
                said: self.attack.service.unending(self.target.server.0),
                rate: self.attack.rate,
            };
            return self.client.run(|| loris.run(stop));
        }
        let began = Instant::now();
        let mut sent = Sent::default();
        let mut bomb = None;
        while !stop() {
            let due = u64::from(self.attack.rate) * micros(began.elapsed()) / 1_000_000;
            while sent.packets < due {
                let (muzzle, packet) = match self.attack.kind {
                    Kind::Nothing | Kind::SlowLoris => return Ok(sent),
                    Kind::Flood(kind) => (&self.position.client_side, self.flood(kind)),
                    Kind::Blind(leg, kind) => self.blind(leg, kind)?,
                    Kind::MapBomb => {
                        let packet = self.next_of_bomb(&mut bomb, &mut sent)?;
                        (&self.position.client_side, packet)
                    }
                };
                sent.packets += 1;
                if muzzle.send(&packet) {
                    sent.bytes += packet.len() as u64;
                }
            }
            thread::sleep(Duration::from_micros(500));
        }
        sent.took = began.elapsed();
        Ok(sent)
    }

    fn flood(&mut self, kind: Flood) -> Vec<u8> {
        let known = (self.target.client, self.target.token, self.target.server.0);
        kinds::flood(kind, self.service, known, &mut self.dice)
    }

    fn blind(&mut self, leg: Leg, kind: Blind) -> Result<(&Muzzle, Vec<u8>)> {
        let position = self.position;
        match leg {
            Leg::Client => {
                let count = self.target.subflows.len();
                ensure!(count > 0, "the connection has no subflow");
                let index = usize::try_from(self.dice.below(u32::try_from(count)?))?;
                let (client, local) = self.target.subflows[index];
                let mut watches = position.to_clients.iter();
                let seen = watches.find_map(|watch| watch.numbers(local, client));
                let seen = seen.context("FlexCP sent nothing on that subflow")?;
                // What the client would send next, seen from what FlexCP said to it.
                let right = Numbers {
                    next: seen.ack,
                    ack: seen.next,
                };
                let packet = kinds::blind(kind, client, local, right, &mut self.dice);
                Ok((&position.client_side, packet))
            }
            Leg::Server => {
                let (server, source) = self.target.server;
                let right = position.from_server.numbers(server, source);
                let right = right.context("the server sent nothing")?;
                let packet = kinds::blind(kind, server, source, right, &mut self.dice);
                Ok((&position.server_side, packet))
            }
        }
    }

    /// The next mapping of a hostile client; a new client when the one before has nothing left.
    fn next_of_bomb(&mut self, bomb: &mut Option<Bomb>, sent: &mut Sent) -> Result<Vec<u8>> {
        let watch = &self.position.to_clients[0];
        let packet = match bomb.as_mut().map(|bomb| (bomb.is_reset(watch), bomb)) {
            Some((true, _)) => {
                sent.bombs.1 += 1;
                None
            }
            Some((false, bomb)) => bomb.next(),
            None => None,
        };
        if let Some(packet) = packet {
            return Ok(packet);
        }
        sent.bombs.0 += 1;
        let muzzle = &self.position.client_side;
        let fresh = Bomb::connect(muzzle, watch, self.service, &mut self.dice)?;
        bomb.insert(fresh)
            .next()
            .context("a fresh client has nothing to send")
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

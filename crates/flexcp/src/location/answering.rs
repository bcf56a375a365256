//! `[responder]`: probes of boxes are answered, and legs to content servers measured.

use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd};

use flexcp_io::StampedSocket;
use flexcp_location::probe::Key;
use flexcp_location::{Allowed, Leg, Rate, Responder, ResponderConfig, Time};
use tracing::{debug, info, warn};

use super::handshake::Handshakes;
use super::{ResponderFacts, keyfile, now};
use crate::config::location::Responder as Section;

/// What answers.
#[derive(Debug)]
pub(super) struct Answering {
    section: Section,
    keys: Vec<u32>,
    responder: Responder,
    ports: Vec<Port>,
    /// With content servers, whose legs they measure.
    pub(super) handshakes: Handshakes<SocketAddr>,
    rate: Option<Rate>,
}

/// Where it listens; `None`: it could not be bound.
#[derive(Debug)]
struct Port {
    addr: SocketAddr,
    socket: Option<StampedSocket>,
    has_complained: bool,
}

impl Answering {
    /// The same if the section and its keys are as they were, else one anew, or none.
    pub(super) fn followed(before: Option<Self>, section: Option<&Section>) -> Option<Self> {
        let section = section?;
        let file = &section.key_file.as_ref()?.value;
        let keys = match keyfile::read(file) {
            Ok(keys) => keys,
            Err(error) => {
                warn!("responder: nobody is answered: {error}");
                return None;
            }
        };
        let ids: Vec<_> = keys.iter().map(Key::id).collect();
        if let Some(before) = before
            && (&before.section, &before.keys) == (section, &ids)
        {
            return Some(before);
        }
        // Bound ports are free by now.
        Self::new(section, keys, ids)
    }

    fn new(section: &Section, keys: Vec<Key>, ids: Vec<u32>) -> Option<Self> {
        let secret = flexcp_io::random_bytes();
        let secret = secret.inspect_err(|error| warn!("responder: nobody is answered: {error}"));
        let config = ResponderConfig {
            keys,
            content: allowed(section),
            sessions: SESSIONS,
            bytes_per_second: BYTES_PER_SECOND,
            hellos_per_second: HELLOS_PER_SECOND,
        };
        let ports = section.listen.iter().map(|listen| Port {
            addr: listen.value,
            socket: None,
            has_complained: false,
        });
        let mut answering = Self {
            section: section.clone(),
            keys: ids,
            responder: Responder::new(config, secret.ok()?),
            ports: ports.collect(),
            handshakes: Handshakes::new(),
            rate: section.content_rate.map(|rate| rate.value),
        };
        answering.look();
        Some(answering)
    }

    /// Tries again to bind what could not be bound.
    pub(super) fn look(&mut self) {
        for port in self.ports.iter_mut().filter(|port| port.socket.is_none()) {
            match StampedSocket::bind(port.addr) {
                Ok(socket) => {
                    info!("responder: probes are answered at {}", port.addr);
                    port.socket = Some(socket);
                }
                Err(error) if !port.has_complained => {
                    port.has_complained = true;
                    warn!(
                        "responder: can't be bound to {}: {error}; tries again (under systemd, the drop-in sockets.conf allows it)",
                        port.addr
                    );
                }
                Err(_) => {}
            }
        }
    }

    /// Answers what has come.
    pub(super) fn work(&mut self, buffer: &mut [u8]) {
        for port in 0..self.ports.len() {
            for _ in 0..AT_ONCE {
                let Some(socket) = &self.ports[port].socket else {
                    break;
                };
                let stamped = match socket.receive(buffer) {
                    Ok(Some(stamped)) => stamped,
                    Ok(None) => break,
                    Err(error) => {
                        debug!("responder: {error}");
                        break;
                    }
                };
                let datagram = &buffer[..stamped.length.min(buffer.len())];
                // Who is refused, and why, is counted.
                let at = Time(stamped.at);
                let _ = self
                    .responder
                    .handle_datagram(stamped.from, datagram, at, now());
                while let Some((to, length)) = self.responder.poll_transmit(buffer) {
                    if let Err(error) = socket.send(&buffer[..length], to) {
                        debug!("responder: to {to}: {error}");
                    }
                }
            }
        }
        self.measure_legs();
    }

    fn measure_legs(&mut self) {
        for (content, delay) in self.handshakes.over(now()) {
            // One that does not answer has no delay; that it carries what the operator says is not believed then.
            let rate = self.rate.filter(|_| delay.is_some());
            self.responder
                .leg_measured(content, Leg { rate, delay }, now());
        }
        while self.handshakes.len() < LEGS_AT_ONCE
            && let Some(content) = self.responder.poll_leg(now())
        {
            if let Err(error) = self.handshakes.begin(content, (None, content), now()) {
                debug!("responder: the leg to {content}: {error}");
                self.responder.leg_measured(content, Leg::default(), now());
            }
        }
    }

    pub(super) fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let bound = self.ports.iter().filter_map(|port| port.socket.as_ref());
        bound.map(|socket| socket.as_fd())
    }

    pub(super) fn facts(&self) -> ResponderFacts {
        ResponderFacts {
            sessions: self.responder.sessions(),
            counters: *self.responder.counters(),
        }
    }
}

/// Content servers that may be asked about.
fn allowed(section: &Section) -> Vec<Allowed> {
    let ports = section.ports.iter();
    let ports = ports.filter_map(|port| u16::try_from(port.value).ok());
    let mut ports: Vec<_> = ports.map(Some).collect();
    if ports.is_empty() {
        ports.push(None);
    }
    let prefixes = section.content.iter().map(|prefix| prefix.value);
    let pairs = prefixes.flat_map(|prefix| {
        ports.iter().map(move |port| Allowed {
            address: prefix.addr,
            bits: prefix.len,
            port: *port,
        })
    });
    pairs.collect()
}

/// Boxes' addresses that are known at a time, and what is sent and greeted in a second over all of them.
const SESSIONS: usize = 256;
const BYTES_PER_SECOND: u64 = 2_000_000;
const HELLOS_PER_SECOND: u32 = 50;
/// Datagrams of one port before the others have their turn.
const AT_ONCE: usize = 256;
/// Content servers to which legs are measured at a time.
const LEGS_AT_ONCE: usize = 8;

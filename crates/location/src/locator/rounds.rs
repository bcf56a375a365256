//! Rounds of probes: when they begin, what they are given, and what becomes of what they have found.

use alloc::vec::Vec;
use core::time::Duration;

use super::{Ignored, Locator};
use crate::overhead;
use crate::path::Handshake;
use crate::probe;
use crate::round::{Around, Findings, LegSaid, Round, Wanted};
use crate::time::{Time, micros};
use crate::train::most_packets;

/// A bit for each server, and for each uplink, with a round under way.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Busy {
    servers: u32,
    uplinks: u32,
}

impl Busy {
    pub(super) const fn has(self, (server, uplink): (usize, usize)) -> bool {
        self.servers >> server & 1 != 0 || self.uplinks >> uplink & 1 != 0
    }
}

impl Locator {
    /// A path's round, with what it needs.
    pub(super) fn around(
        &mut self,
        server: usize,
        uplink: usize,
        now: Time,
    ) -> Option<(&mut Round, Around<'_>)> {
        let config = self.config.servers.get(server)?;
        let uplinks = self.config.uplinks.len();
        let path = self.paths.get_mut(server * uplinks + uplink)?;
        let known = (path.delay.value(), path.slowest());
        let servers = self.servers.len() as u64;
        let of_server = self.config.server_bytes_per_hour / uplinks as u64;
        let part = of_server.min(self.config.bytes_per_hour / uplinks as u64 / servers) / 2;
        let round = path.round.as_mut()?;
        let around = Around {
            key: config.key.as_ref()?,
            session: &mut path.session,
            length: &mut path.length,
            ledgers: [&mut self.ledger, &mut self.servers[server].ledger],
            part,
            known,
            packet: self.config.packet.into(),
            overhead: overhead(&config.probe),
            train: self.config.train,
            fresh: self.random.next(),
            now,
        };
        Some((round, around))
    }

    pub(super) fn send(
        &mut self,
        server: usize,
        uplink: usize,
        now: Time,
        out: &mut [u8],
    ) -> Option<(usize, usize)> {
        let (round, mut around) = self.around(server, uplink, now)?;
        round.poll_transmit(&mut around, out)
    }

    pub(super) fn hear(
        &mut self,
        (server, uplink): (usize, usize),
        datagram: &[u8],
        at: Time,
        now: Time,
    ) -> Result<(), Ignored> {
        if uplink >= self.config.uplinks.len() {
            return Err(Ignored::Nobody);
        }
        let Some(config) = self.config.servers.get(server) else {
            return Err(Ignored::Nobody);
        };
        let key = config.key.as_ref().ok_or(Ignored::Nobody)?;
        let (header, message) = probe::open(key, datagram).map_err(Ignored::Malformed)?;
        let Some((round, mut around)) = self.around(server, uplink, now) else {
            return Err(Ignored::Unasked);
        };
        if header.session != around.session.session() {
            return Err(Ignored::Unasked);
        }
        if round.handle(&header, &message, (at, datagram.len()), &mut around) {
            Ok(())
        } else {
            Err(Ignored::Unasked)
        }
    }

    /// Begins the rounds that are due. No two run at a time over one uplink or to one server: they would measure each other.
    pub(super) fn begin_rounds(&mut self, now: Time) {
        let mut due: Vec<usize> = (0..self.paths.len())
            .filter(|&at| self.is_due(at, now))
            .collect();
        due.sort_by_key(|&at| self.paths[at].next);
        for at in due {
            let (server, uplink) = self.place(at);
            if !self.busy().has((server, uplink)) {
                self.begin(at, server, now);
            }
        }
    }

    /// Servers and uplinks with a round under way.
    pub(super) fn busy(&self) -> Busy {
        let mut busy = Busy::default();
        for at in (0..self.paths.len()).filter(|&at| self.paths[at].round.is_some()) {
            let (server, uplink) = self.place(at);
            busy.servers |= 1 << server;
            busy.uplinks |= 1 << uplink;
        }
        busy
    }

    pub(super) fn is_due(&self, at: usize, now: Time) -> bool {
        let path = &self.paths[at];
        let is_free = path.round.is_none() && path.handshake == Handshake::None;
        path.is_usable && is_free && path.next <= now
    }

    pub(super) fn begin(&mut self, at: usize, server: usize, now: Time) {
        self.schedule(at, now);
        let half = self.config.interval / 2;
        let has_key = self.config.servers[server].key.is_some();
        let wants_trains = has_key && !self.paths[at].down.is_shown(half, now);
        let least = if wants_trains {
            self.cost(at) / 2
        } else {
            Round::SMALL
        };
        if !self.affords(server, least, now) {
            self.counters.starved += 1;
            // There may be bytes again long before the path's turn.
            self.paths[at].next = now + self.config.interval;
            return;
        }
        let path = &mut self.paths[at];
        path.begun = Some(now);
        if !has_key {
            path.handshake = Handshake::Wanted;
            return;
        }
        let leg = self.servers[server].leg;
        let wants_leg = leg.is_none_or(|(_, at)| now.since(at) > half);
        let wanted = Wanted {
            trains: wants_trains,
            leg: self.config.content.filter(|_| wants_leg),
        };
        path.round = Some(Round::new(wanted, path.session.is_open(now), now));
    }

    /// When a path's next round is due, if nothing comes between.
    pub(super) fn schedule(&mut self, at: usize, now: Time) {
        let interval = micros(self.interval());
        let spread = interval / 1000 * u64::from(self.config.jitter);
        let moved = self.random.below(spread * 2 + 1);
        let after = (interval - spread).saturating_add(moved);
        self.paths[at].next = now + Duration::from_micros(after);
    }

    /// Bytes of a path's next round, as far as can be said.
    pub(super) fn cost(&self, at: usize) -> u64 {
        let path = &self.paths[at];
        let (server, _) = self.place(at);
        let config = &self.config.servers[server];
        if !path.is_usable {
            return 0;
        }
        if config.key.is_none() || path.responds == Some(false) {
            return Round::SMALL;
        }
        let packet = usize::from(self.config.packet);
        let most = most_packets(path.slowest(), packet, self.config.train);
        let train = u64::from(path.length.next(most)) * (packet + overhead(&config.probe)) as u64;
        Round::SMALL + train * 4
    }

    /// Takes what a round has found, if it is over.
    pub(super) fn finish(&mut self, server: usize, uplink: usize, now: Time) {
        let is_over = |round: &mut Round| round.findings().is_some();
        let path = self.path_mut(server, uplink);
        let Some(round) = path.and_then(|path| path.round.take_if(is_over)) else {
            return;
        };
        let stale = self.interval() * 3;
        let soon = now + self.config.interval / 4;
        let (Some(found), Some(path)) = (round.findings(), self.path_mut(server, uplink)) else {
            return;
        };
        path.responds = Some(found.is_answered);
        path.is_known |= found.is_answered;
        if found.is_answered && !path.owes_handshake {
            path.is_alive = Some(true);
        } else {
            // It may be that datagrams alone do not come through, or nothing but datagrams.
            path.handshake = Handshake::Wanted;
        }
        if path.learn(found, stale, now) {
            path.next = path.next.min(soon);
        }
        self.note(server, found, now);
        if self.is_active(now) {
            self.begin_rounds(now);
        }
        self.choose(now);
    }

    pub(super) fn note(&mut self, server: usize, found: &Findings, now: Time) {
        self.counters.rounds += 1;
        self.counters.silent_rounds += u64::from(!found.is_answered);
        self.counters.starved += u64::from(found.is_starved);
        match found.leg {
            Some(LegSaid::Known(leg, age)) => {
                let at = Time(now.0.saturating_sub(micros(age)));
                self.servers[server].leg = Some((leg, at));
            }
            Some(LegSaid::Refused) => self.servers[server].leg = None,
            None => {}
        }
    }
}

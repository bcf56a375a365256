//! A server's own leg: between it and a content server, measured by the server's host and kept here.

use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use crate::probe::LegState;
use crate::rate::Rate;
use crate::time::Time;

/// What is known of the way between an aggregation server and a content server: the paper's `(Bs, Ds)`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Leg {
    /// Its bandwidth towards the aggregation server, if it is known.
    pub rate: Option<Rate>,
    /// Its round trip, if it is known.
    pub delay: Option<Duration>,
}

/// Content servers that a responder may be asked about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Allowed {
    /// The prefix's address.
    pub address: IpAddr,
    /// Bits of the address that count; more than it has count as all.
    pub bits: u8,
    /// The port, or any.
    pub port: Option<u16>,
}

impl Allowed {
    /// Whether it is one of them.
    #[must_use]
    pub fn contains(&self, server: &SocketAddr) -> bool {
        if self.port.is_some_and(|port| port != server.port()) || server.port() == 0 {
            return false;
        }
        match (self.address, server.ip()) {
            (IpAddr::V4(prefix), IpAddr::V4(ip)) => {
                let shift = 32_u32.saturating_sub(self.bits.into());
                (prefix.to_bits() ^ ip.to_bits())
                    .checked_shr(shift)
                    .unwrap_or(0)
                    == 0
            }
            (IpAddr::V6(prefix), IpAddr::V6(ip)) => {
                let shift = 128_u32.saturating_sub(self.bits.into());
                (prefix.to_bits() ^ ip.to_bits())
                    .checked_shr(shift)
                    .unwrap_or(0)
                    == 0
            }
            _ => false,
        }
    }
}

/// Most content servers that are remembered.
const MOST: usize = 64;
/// A leg that was measured longer ago is measured again when it is asked for.
pub(crate) const FRESH: Duration = Duration::from_secs(30);
/// So long a measurement may take before it is asked for again.
const PATIENCE: Duration = Duration::from_secs(10);

/// The legs of one server.
#[derive(Clone, Default, Debug)]
pub(crate) struct Legs(Vec<Entry>);

#[derive(Clone, Copy, Debug)]
struct Entry {
    to: SocketAddr,
    known: Option<(Leg, Time)>,
    /// When the host was last to measure it.
    ordered: Option<Time>,
    asked: Time,
    is_wanted: bool,
}

impl Legs {
    /// What is known of one, which is measured again if that is old. The one that was not asked for longest makes room.
    pub(crate) fn ask(&mut self, to: SocketAddr, now: Time) -> LegState {
        let found = self.0.iter().position(|entry| entry.to == to);
        let at = found.unwrap_or_else(|| self.make_room(to, now));
        let entry = &mut self.0[at];
        entry.asked = now;
        let is_old = entry.known.is_none_or(|(_, at)| now.since(at) > FRESH);
        let is_ordered = entry.ordered.is_some_and(|at| now.since(at) < PATIENCE);
        entry.is_wanted |= is_old && !is_ordered;
        match entry.known {
            None => LegState::Pending,
            Some((leg, at)) => LegState::Known {
                leg,
                age: now.since(at),
            },
        }
    }

    fn make_room(&mut self, to: SocketAddr, now: Time) -> usize {
        if self.0.len() >= MOST {
            let oldest = (0..self.0.len()).min_by_key(|&at| self.0[at].asked);
            self.0.swap_remove(oldest.unwrap_or(0));
        }
        self.0.push(Entry {
            to,
            known: None,
            ordered: None,
            asked: now,
            is_wanted: false,
        });
        self.0.len() - 1
    }

    /// The next one that is to be measured.
    pub(crate) fn poll(&mut self, now: Time) -> Option<SocketAddr> {
        let entry = self.0.iter_mut().find(|entry| entry.is_wanted)?;
        entry.is_wanted = false;
        entry.ordered = Some(now);
        Some(entry.to)
    }

    /// What was measured.
    pub(crate) fn measured(&mut self, to: SocketAddr, leg: Leg, now: Time) {
        if let Some(entry) = self.0.iter_mut().find(|entry| entry.to == to) {
            entry.known = Some((leg, now));
            entry.ordered = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(host: u8) -> SocketAddr {
        SocketAddr::from(([203, 0, 113, host], 443))
    }

    #[test]
    fn prefix_and_port_bound_what_may_be_asked() {
        let rule = Allowed {
            address: IpAddr::from([203, 0, 113, 0]),
            bits: 25,
            port: Some(443),
        };
        assert!(rule.contains(&content(127)));
        assert!(!rule.contains(&content(128)));
        assert!(!rule.contains(&SocketAddr::from(([203, 0, 113, 1], 80))));
        assert!(!rule.contains(&"[2001:db8::1]:443".parse().unwrap()));
        let all = Allowed {
            address: IpAddr::from([0, 0, 0, 0]),
            bits: 0,
            port: None,
        };
        assert!(all.contains(&content(1)));
        let one = Allowed {
            address: "2001:db8::1".parse().unwrap(),
            bits: 128,
            port: None,
        };
        assert!(one.contains(&"[2001:db8::1]:1".parse().unwrap()));
        assert!(!one.contains(&"[2001:db8::2]:1".parse().unwrap()));
    }

    #[test]
    fn a_leg_is_measured_once_and_again_when_it_is_old() {
        let mut legs = Legs::default();
        assert_eq!(legs.ask(content(1), Time::ZERO), LegState::Pending);
        assert_eq!(legs.poll(Time::ZERO), Some(content(1)));
        assert_eq!(legs.ask(content(1), Time::from_secs(1)), LegState::Pending);
        assert_eq!(legs.poll(Time::from_secs(1)), None);
        let leg = Leg {
            rate: Some(Rate(9)),
            delay: None,
        };
        legs.measured(content(1), leg, Time::from_secs(2));
        let age = Duration::from_secs(3);
        assert_eq!(
            legs.ask(content(1), Time::from_secs(5)),
            LegState::Known { leg, age }
        );
        assert_eq!(legs.poll(Time::from_secs(5)), None);
        legs.ask(content(1), Time::from_secs(40));
        assert_eq!(legs.poll(Time::from_secs(40)), Some(content(1)));
    }

    #[test]
    fn no_more_than_the_bound_is_remembered() {
        let mut legs = Legs::default();
        for host in 0..=255 {
            legs.ask(content(host), Time::from_secs(host.into()));
        }
        assert_eq!(legs.0.len(), MOST);
        assert!(
            legs.0
                .iter()
                .all(|entry| entry.asked >= Time::from_secs(192))
        );
    }
}

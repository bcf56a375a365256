//! What both directions of a link know together: mappings that have to be undone on the way back.

use core::net::IpAddr;
use core::sync::atomic::{AtomicBool, Ordering};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use flexcp_wire::{IpHeader, TcpFlags, kind};

use crate::counters::Counters;
use crate::fault::Nat;
use crate::packet::{self, Flow, Segment};
use crate::random::Random;
use crate::time::{Time, nanos};

/// One of the two paths of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    First,
    Second,
}

impl Side {
    const fn other(self) -> Self {
        match self {
            Self::First => Self::Second,
            Self::Second => Self::First,
        }
    }
}

/// Shared by the two paths of a link.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// By side: whether anything has ever to be undone on the way back.
    used: [AtomicBool; 2],
    state: Mutex<[Mappings; 2]>,
}

/// What one side's faults did to its packets.
#[derive(Debug, Default)]
pub(crate) struct Mappings {
    /// In the order in which they were applied.
    applied: Vec<Mapping>,
    nat: NatTable,
    /// Shift of the sequence numbers, by flow.
    isn: BTreeMap<Flow, u32>,
    timestamp_shift: u32,
}

/// A kind of change that has an inverse.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mapping {
    Nat,
    Isn,
    Timestamp,
}

impl Shared {
    /// Declares the changes that the faults of a side make, in their order.
    pub(crate) fn declare(&self, side: Side, applied: Vec<Mapping>) {
        if applied.is_empty() && !self.used[side as usize].load(Ordering::Relaxed) {
            return;
        }
        self.used[side as usize].store(true, Ordering::Relaxed);
        self.lock()[side as usize].applied = applied;
    }

    /// Changes a packet of a side.
    pub(crate) fn with<T>(&self, side: Side, change: impl FnOnce(&mut Mappings) -> T) -> T {
        change(&mut self.lock()[side as usize])
    }

    /// Undoes what the other side did to packets that `packet` answers; false: it is lost.
    pub(crate) fn undo(&self, side: Side, packet: &mut [u8], counters: &mut Counters) -> bool {
        let other = side.other() as usize;
        if !self.used[other].load(Ordering::Relaxed) {
            return true;
        }
        let mappings = &self.lock()[other];
        for mapping in mappings.applied.iter().rev() {
            match mapping {
                Mapping::Nat => {
                    if !mappings.nat.undo(packet, counters) {
                        return false;
                    }
                }
                Mapping::Isn => mappings.undo_isn(packet, counters),
                Mapping::Timestamp => mappings.undo_timestamp(packet),
            }
        }
        true
    }

    fn lock(&self) -> MutexGuard<'_, [Mappings; 2]> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Mappings {
    /// Rewrites the source of a packet.
    pub(crate) fn nat(
        &mut self,
        packet: &mut [u8],
        rule: &Nat,
        random: &mut Random,
        counters: &mut Counters,
    ) {
        self.nat.apply(packet, rule, random, counters);
    }

    /// Forgets the NAT's mappings when their time is over. `since` is when the rule was made.
    pub(crate) fn rebind(&mut self, rule: &Nat, since: Time, now: Time) {
        let age = now.since(since);
        let epoch = rule
            .every
            .filter(|every| !every.is_zero())
            .map_or(0, |every| nanos(age) / nanos(every));
        let passed = rule.at.iter().filter(|at| **at <= age).count() as u64;
        if self.nat.epoch != (since, epoch, passed) {
            self.nat.epoch = (since, epoch, passed);
            self.nat.forget();
        }
    }

    /// Shifts the sequence number; draws the shift at the SYN.
    pub(crate) fn isn(&mut self, packet: &mut [u8], random: &mut Random, counters: &mut Counters) {
        let Some(segment) = Segment::parse(packet) else {
            return;
        };
        if segment.tcp.flags.contains(TcpFlags::SYN) {
            let draw = || u32::try_from(random.below(1 << 32)).unwrap_or(0);
            self.isn.entry(segment.flow()).or_insert_with(draw);
        }
        let Some(shift) = self.isn.get(&segment.flow()) else {
            return;
        };
        counters.shifted += 1;
        let seq = segment.tcp.seq.wrapping_add(*shift);
        packet::edit_tcp(packet, &segment, |packet| {
            packet::put_u32(packet, segment.ip.header_len + 4, seq);
        });
    }

    /// Adds to TSval.
    pub(crate) fn timestamp(&mut self, packet: &mut [u8], shift: u32, counters: &mut Counters) {
        self.timestamp_shift = shift;
        let Some(segment) = Segment::parse(packet) else {
            return;
        };
        if let Some(at) = packet::option_of(packet, &segment, kind::TIMESTAMPS, 10) {
            counters.rewritten += 1;
            let value = packet::get_u32(packet, at + 2).wrapping_add(shift);
            packet::edit_tcp(packet, &segment, |packet| {
                packet::put_u32(packet, at + 2, value);
            });
        }
    }

    /// Takes the shift of the other direction out of the acknowledgment and the SACK blocks.
    fn undo_isn(&self, packet: &mut [u8], counters: &mut Counters) {
        let Some(segment) = Segment::parse(packet) else {
            return;
        };
        let Some(shift) = self.isn.get(&segment.flow().reversed()) else {
            return;
        };
        if !segment.tcp.flags.contains(TcpFlags::ACK) {
            return;
        }
        counters.shifted += 1;
        let blocks: Vec<usize> = packet::raw_options(packet, &segment)
            .filter(|option| packet[option.range().start] == kind::SACK)
            .flat_map(|option| (option.range().start + 2..option.range().end - 3).step_by(4))
            .collect();
        packet::edit_tcp(packet, &segment, |packet| {
            for at in blocks.into_iter().chain([segment.ip.header_len + 8]) {
                let value = packet::get_u32(packet, at).wrapping_sub(*shift);
                packet::put_u32(packet, at, value);
            }
        });
    }

    fn undo_timestamp(&self, packet: &mut [u8]) {
        let Some(segment) = Segment::parse(packet) else {
            return;
        };
        if !segment.tcp.flags.contains(TcpFlags::ACK) {
            return;
        }
        if let Some(at) = packet::option_of(packet, &segment, kind::TIMESTAMPS, 10) {
            let value = packet::get_u32(packet, at + 6).wrapping_sub(self.timestamp_shift);
            packet::edit_tcp(packet, &segment, |packet| {
                packet::put_u32(packet, at + 6, value);
            });
        }
    }
}

/// Address and port of one end.
type Endpoint = (IpAddr, u16);

/// Mappings that do not depend on the destination (RFC 4787 section 4.1), for TCP.
#[derive(Debug, Default)]
struct NatTable {
    outside: BTreeMap<Endpoint, Endpoint>,
    /// `None`: rebound since.
    inside: BTreeMap<Endpoint, Option<Endpoint>>,
    /// Counts rebindings: when the rule was made, periods passed, moments passed.
    epoch: (Time, u64, u64),
}

impl NatTable {
    fn apply(
        &mut self,
        packet: &mut [u8],
        rule: &Nat,
        random: &mut Random,
        counters: &mut Counters,
    ) {
        let Some(segment) = Segment::parse(packet) else {
            return;
        };
        let src = segment.flow().src;
        let mapped = match self.outside.get(&src) {
            Some(mapped) => *mapped,
            None => self.bind(src, rule, random),
        };
        counters.translated += 1;
        rewrite(packet, &segment, mapped, End::Source);
    }

    /// Draws a port that no mapping has or had.
    fn bind(&mut self, src: Endpoint, rule: &Nat, random: &mut Random) -> Endpoint {
        let address = match src.0 {
            IpAddr::V4(own) => IpAddr::V4(rule.v4.unwrap_or(own)),
            IpAddr::V6(own) => IpAddr::V6(rule.v6.unwrap_or(own)),
        };
        let mut draw = || {
            let port = FIRST_PORT + random.below(PORTS);
            (address, u16::try_from(port).unwrap_or(u16::MAX))
        };
        let mut mapped = draw();
        // A table that is all but full takes over old ports in the end.
        for _ in 0..64 {
            if !self.inside.contains_key(&mapped) {
                break;
            }
            mapped = draw();
        }
        self.outside.insert(src, mapped);
        self.inside.insert(mapped, Some(src));
        mapped
    }

    fn forget(&mut self) {
        self.outside.clear();
        self.inside.values_mut().for_each(|inside| *inside = None);
    }

    /// Rewrites the destination; false when its mapping is gone.
    fn undo(&self, packet: &mut [u8], counters: &mut Counters) -> bool {
        let Some(segment) = Segment::parse(packet) else {
            return true;
        };
        match self.inside.get(&segment.flow().dst) {
            Some(Some(inside)) => {
                counters.translated += 1;
                rewrite(packet, &segment, *inside, End::Destination);
                true
            }
            Some(None) => {
                counters.lost_nat += 1;
                false
            }
            None => true, // older than the NAT
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Source,
    Destination,
}

fn rewrite(packet: &mut [u8], segment: &Segment, (address, port): Endpoint, end: End) {
    let destination = usize::from(end == End::Destination);
    packet::edit_ip(packet, Some(segment), |packet| match address {
        IpAddr::V4(v4) => {
            let at = 12 + 4 * destination;
            packet[at..at + 4].copy_from_slice(&v4.octets());
        }
        IpAddr::V6(v6) => {
            let at = 8 + 16 * destination;
            packet[at..at + 16].copy_from_slice(&v6.octets());
        }
    });
    packet::edit_tcp(packet, segment, |packet| {
        packet::put_u16(packet, segment.ip.header_len + 2 * destination, port);
    });
    debug_assert!(IpHeader::parse(packet).is_ok());
}

/// Ports that a NAT gives out.
const FIRST_PORT: u64 = 20_000;
const PORTS: u64 = 40_000;

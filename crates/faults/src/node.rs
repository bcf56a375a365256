//! Faults at work: each with its own state and its own random numbers.

use core::time::Duration;
use std::collections::BTreeMap;

use flexcp_wire::{TcpFlags, kind};

use crate::class::Class;
use crate::counters::Counters;
use crate::fault::{
    Coalesce, Corrupt, DropNth, Fault, GilbertElliott, Jitter, Place, Rate, Strip, Which,
};
use crate::packet::{self, Flow, Segment};
use crate::random::Random;
use crate::shared::{Mapping, Shared, Side};
use crate::time::{Time, nanos};

/// One fault and what it remembers.
#[derive(Debug)]
pub(crate) struct Node {
    fault: Fault,
    random: Random,
    /// When it was put in place.
    since: Time,
    state: State,
}

/// What a node remembers; each fault uses the part that it needs.
#[derive(Debug, Default)]
struct State {
    /// Packets seen, of the class that counts.
    seen: u32,
    /// Gilbert-Elliott: in the bad state.
    bad: bool,
    /// Jitter in order: when the last packet leaves. Rate: until when the line is busy.
    busy_until: Time,
    /// Rate: parts of a nanosecond (of `bits_per_second`) that the line is busy beyond that.
    remainder: u64,
    /// Coalesce: segments that wait for the next one of their flow.
    held: BTreeMap<Flow, Held>,
    /// Coalesce: when the node will be called.
    armed: Option<Time>,
}

#[derive(Debug)]
struct Held {
    packet: Vec<u8>,
    until: Time,
}

/// What a node does its work with.
pub(crate) struct Context<'a> {
    pub(crate) side: Side,
    pub(crate) shared: &'a Shared,
    pub(crate) counters: &'a mut Counters,
    /// Packets and when they leave the node.
    pub(crate) out: &'a mut Vec<(Time, Vec<u8>)>,
    /// When the node wants to be called by [`Node::expire`].
    pub(crate) timer: &'a mut Option<Time>,
}

impl Node {
    pub(crate) fn new(fault: Fault, seed: u64, index: usize, now: Time) -> Self {
        Self {
            fault,
            random: Random::of_part(seed, index as u64),
            since: now,
            state: State::default(),
        }
    }

    /// The change that the other direction has to undo, if this node makes one.
    pub(crate) const fn mapping(&self) -> Option<Mapping> {
        match self.fault {
            Fault::Nat(_) => Some(Mapping::Nat),
            Fault::IsnRandomiser => Some(Mapping::Isn),
            Fault::TimestampShift(_) => Some(Mapping::Timestamp),
            _ => None,
        }
    }

    /// A packet arrives.
    pub(crate) fn process(&mut self, now: Time, mut packet: Vec<u8>, context: &mut Context<'_>) {
        let Self {
            fault,
            random,
            since,
            state,
        } = self;
        let Context {
            side,
            shared,
            counters,
            out,
            timer,
        } = context;
        let age = now.since(*since);
        let mut leaves = now;
        let lost = match fault {
            Fault::Loss(chance) => count_if(random.chance(*chance), &mut counters.lost_loss),
            Fault::Burst(model) => count_if(state.burst(*model, random), &mut counters.lost_burst),
            Fault::Drop(rule) => count_if(state.is_nth(rule, &packet), &mut counters.lost_drop),
            Fault::Blackhole { from, until } => count_if(
                age >= *from && until.is_none_or(|until| age < until),
                &mut counters.lost_blackhole,
            ),
            Fault::Flap { period, down } => {
                count_if(is_down(age, *period, *down), &mut counters.lost_flap)
            }
            Fault::Rate(rate) => match state.transmit(now, packet.len(), *rate) {
                Some(at) => {
                    leaves = at;
                    false
                }
                None => count_if(true, &mut counters.lost_queue),
            },
            Fault::Delay(delay) => {
                leaves = now + *delay;
                false
            }
            Fault::Jitter(jitter) => {
                leaves = state.jitter(now, *jitter, random);
                false
            }
            Fault::Reorder(rule) => {
                if state.chosen(rule.which, random) {
                    counters.reordered += 1;
                    leaves = now + rule.extra;
                }
                false
            }
            Fault::Duplicate(chance) => {
                if random.chance(*chance) {
                    counters.duplicated += 1;
                    out.push((now, packet.clone()));
                }
                false
            }
            Fault::Corrupt(rule) => {
                counters.corrupted += u64::from(corrupt(&mut packet, *rule, random));
                false
            }
            Fault::Strip(rule) => {
                counters.stripped += state.strip(&mut packet, rule);
                false
            }
            Fault::WindowScale(shift) => {
                let shift = *shift;
                counters.rewritten += u64::from(set_syn_option(
                    &mut packet,
                    (kind::WINDOW_SCALE, 3),
                    |option| {
                        (option[2] != shift)
                            .then_some(&[shift][..])
                            .map(<[u8]>::to_vec)
                    },
                ));
                false
            }
            Fault::MssClamp(most) => {
                let most = *most;
                counters.rewritten +=
                    u64::from(set_syn_option(&mut packet, (kind::MSS, 4), |option| {
                        let mss = u16::from_be_bytes([option[2], option[3]]);
                        (mss > most).then(|| most.to_be_bytes().to_vec())
                    }));
                false
            }
            Fault::DoubleOption { option, class } => {
                let doubled = double_option(&mut packet, *class, |packet, found| {
                    option.matches(packet, found)
                });
                counters.rewritten += u64::from(doubled);
                false
            }
            Fault::TimestampShift(shift) => {
                shared.with(*side, |mappings| {
                    mappings.timestamp(&mut packet, *shift, counters);
                });
                false
            }
            Fault::Nat(rule) => {
                shared.with(*side, |mappings| {
                    mappings.rebind(rule, *since, now);
                    mappings.nat(&mut packet, rule, random, counters);
                });
                false
            }
            Fault::IsnRandomiser => {
                shared.with(*side, |mappings| {
                    mappings.isn(&mut packet, random, counters);
                });
                false
            }
            Fault::CeMark(chance) => {
                counters.marked += u64::from(mark_ce(&mut packet, random, *chance));
                false
            }
            Fault::Resegment { offset, chance } => {
                if let Some(halves) = resegment(&packet, *offset, *chance, random) {
                    counters.split += 1;
                    out.extend(halves.map(|half| (now, half)));
                    return;
                }
                false
            }
            Fault::Coalesce(rule) => {
                state.coalesce(now, packet, *rule, counters, out);
                **timer = state.arm();
                return;
            }
        };
        if !lost {
            out.push((leaves, packet));
        }
    }

    /// The time of [`Context::timer`] has come.
    pub(crate) fn expire(&mut self, now: Time, context: &mut Context<'_>) {
        let due = |_: &Flow, held: &mut Held| held.until <= now;
        for (_, held) in self.state.held.extract_if(.., due) {
            context.out.push((now, held.packet));
        }
        if self.state.armed.is_some_and(|armed| armed <= now) {
            self.state.armed = None;
        }
        *context.timer = self.state.arm();
    }

    /// Packets that the node still holds, when its list is replaced.
    pub(crate) fn into_held(self) -> impl Iterator<Item = Vec<u8>> {
        self.state.held.into_values().map(|held| held.packet)
    }
}

impl State {
    /// When the node has to be called for what it holds, if that is not arranged yet.
    fn arm(&mut self) -> Option<Time> {
        let due = self.held.values().map(|held| held.until).min()?;
        if self.armed.is_some_and(|armed| armed <= due) {
            return None;
        }
        self.armed = Some(due);
        self.armed
    }

    /// One step of the model; whether the packet is lost in the state it finds.
    fn burst(&mut self, model: GilbertElliott, random: &mut Random) -> bool {
        let turn = if self.bad { model.leave } else { model.enter };
        self.bad ^= random.chance(turn);
        random.chance(if self.bad { model.bad } else { model.good })
    }

    fn is_nth(&mut self, rule: &DropNth, packet: &[u8]) -> bool {
        if !rule.class.matches(packet, Segment::parse(packet).as_ref()) {
            return false;
        }
        self.seen = self.seen.saturating_add(1);
        (rule.first..=rule.last).contains(&self.seen)
    }

    fn chosen(&mut self, which: Which, random: &mut Random) -> bool {
        match which {
            Which::Chance(chance) => random.chance(chance),
            Which::Every(n) => {
                self.seen = self.seen.wrapping_add(1);
                self.seen.is_multiple_of(n.max(1))
            }
        }
    }

    fn jitter(&mut self, now: Time, jitter: Jitter, random: &mut Random) -> Time {
        let extra = random.below(nanos(jitter.max).saturating_add(1));
        let leaves = now + Duration::from_nanos(extra);
        if jitter.reorder {
            return leaves;
        }
        self.busy_until = self.busy_until.max(leaves);
        self.busy_until
    }

    /// When the packet has been sent; `None` when the queue is full.
    fn transmit(&mut self, now: Time, len: usize, rate: Rate) -> Option<Time> {
        let bits = u128::from(rate.bits_per_second.max(1));
        if self.busy_until < now {
            (self.busy_until, self.remainder) = (now, 0);
        }
        let backlog = self.busy_until.since(now).as_nanos() * bits / PER_BYTE;
        if backlog > 0 && backlog + len as u128 > u128::from(rate.queue_bytes) {
            return None;
        }
        let ticks = len as u128 * PER_BYTE + u128::from(self.remainder);
        let whole = u64::try_from(ticks / bits).unwrap_or(u64::MAX);
        self.remainder = u64::try_from(ticks % bits).unwrap_or(0);
        self.busy_until = self.busy_until + Duration::from_nanos(whole);
        Some(self.busy_until)
    }

    /// Overwrites options by NOPs; how many.
    fn strip(&mut self, packet: &mut [u8], rule: &Strip) -> u64 {
        let segment = Segment::parse(packet);
        if !rule.class.matches(packet, segment.as_ref()) {
            return 0;
        }
        self.seen = self.seen.saturating_add(1);
        let Some(segment) = segment.filter(|_| self.seen >= rule.from) else {
            return 0;
        };
        let found: Vec<_> = packet::raw_options(packet, &segment)
            .filter(|option| rule.option.matches(packet, option))
            .collect();
        packet::edit_tcp(packet, &segment, |packet| {
            for option in &found {
                packet[option.range()].fill(kind::NOP);
            }
        });
        found.len() as u64
    }

    /// Joins the packet to the one before it or lets it wait in its place.
    fn coalesce(
        &mut self,
        now: Time,
        packet: Vec<u8>,
        rule: Coalesce,
        counters: &mut Counters,
        out: &mut Vec<(Time, Vec<u8>)>,
    ) {
        let Some(segment) = Segment::parse(&packet) else {
            out.push((now, packet));
            return;
        };
        let flow = segment.flow();
        if let Some(held) = self.held.get_mut(&flow) {
            if try_join(&mut held.packet, &packet, &segment, rule.max_len) {
                counters.joined += 1;
                let pushed = segment.tcp.flags.intersects(TcpFlags::PSH | TcpFlags::FIN);
                if pushed && let Some(held) = self.held.remove(&flow) {
                    out.push((now, held.packet));
                }
                return;
            }
            let before = self.held.remove(&flow);
            out.extend(before.map(|held| (now, held.packet)));
        }
        let plain = TcpFlags::ACK;
        if segment.payload().is_empty() || segment.tcp.flags != plain {
            out.push((now, packet));
            return;
        }
        let until = now + rule.wait;
        self.held.insert(flow, Held { packet, until });
    }
}

/// As GRO does: same flow, options and acknowledgment, the next sequence number, nothing special.
fn try_join(held: &mut Vec<u8>, next: &[u8], second: &Segment, max_len: u16) -> bool {
    let Some(first) = Segment::parse(held) else {
        return false;
    };
    let allowed = TcpFlags::ACK | TcpFlags::PSH | TcpFlags::FIN;
    let len = u32::try_from(first.payload().len()).unwrap_or(u32::MAX);
    let fits = first.ip.total_len + second.payload().len() <= usize::from(max_len);
    let same = held[first.options()] == next[second.options()]
        && first.tcp.ack == second.tcp.ack
        && first.ip.traffic_class == second.ip.traffic_class
        && first.ip.ttl == second.ip.ttl;
    let follows = first.tcp.seq.wrapping_add(len) == second.tcp.seq
        && !second.payload().is_empty()
        && second.tcp.flags.contains(TcpFlags::ACK)
        && second.tcp.flags.without(allowed) == TcpFlags::default();
    let whole = packet::checksums_right(held) && packet::checksums_right(next);
    if !(fits && same && follows && whole) {
        return false;
    }
    packet::join(held, &first, next, second);
    true
}

fn count_if(lost: bool, counter: &mut u64) -> bool {
    *counter += u64::from(lost);
    lost
}

fn is_down(age: Duration, period: Duration, down: Duration) -> bool {
    let into = nanos(age) % nanos(period).max(1);
    into >= nanos(period).saturating_sub(nanos(down))
}

/// Turns a bit that is 0 into 1; false when the packet was left alone. The other way round, too, what two links do to a
/// packet might cancel in its checksum, and nobody could know (once in a billion packets).
fn corrupt(packet: &mut [u8], rule: Corrupt, random: &mut Random) -> bool {
    if !random.chance(rule.chance) {
        return false;
    }
    let Some(segment) = Segment::parse(packet) else {
        return false;
    };
    let place = match rule.place {
        Place::Payload => segment.payload(),
        Place::Header => segment.header(),
    };
    if place.is_empty() {
        return false;
    }
    let bits = place.len() * 8;
    let draw = usize::try_from(random.below(bits as u64)).unwrap_or(0);
    let checksum = segment.ip.header_len + packet::CHECKSUM_AT;
    let byte_of = |bit: usize| {
        let at = place.start + bit / 8;
        // Instead of the checksum the urgent pointer, which nobody minds.
        if at & !1 == checksum { at + 2 } else { at }
    };
    let from_there = (0..bits).map(|n| (draw + n) % bits);
    let mut zeros = from_there.filter(|&bit| packet[byte_of(bit)] >> (bit % 8) & 1 == 0);
    let Some(bit) = zeros.next() else {
        return false;
    };
    let at = byte_of(bit);
    packet[at] |= 1 << (bit % 8);
    if rule.fixed {
        packet::fix_tcp_checksum(packet);
    }
    true
}

/// Changes what follows the length byte of an option in a SYN or SYN+ACK.
fn set_syn_option(
    packet: &mut [u8],
    (kind, len): (u8, usize),
    change: impl FnOnce(&[u8]) -> Option<Vec<u8>>,
) -> bool {
    let segment = Segment::parse(packet);
    let Some(segment) = segment.filter(|s| s.tcp.flags.contains(TcpFlags::SYN)) else {
        return false;
    };
    let Some(at) = packet::option_of(packet, &segment, kind, len) else {
        return false;
    };
    let Some(value) = change(&packet[at..at + len]) else {
        return false;
    };
    packet::edit_tcp(packet, &segment, |packet| {
        packet[at + 2..at + 2 + value.len()].copy_from_slice(&value);
    });
    true
}

fn double_option(
    packet: &mut Vec<u8>,
    class: Class,
    wanted: impl Fn(&[u8], &packet::RawOption) -> bool,
) -> bool {
    let Some(segment) = Segment::parse(packet) else {
        return false;
    };
    if !class.matches(packet, Some(&segment)) {
        return false;
    }
    let found = packet::raw_options(packet, &segment).find(|option| wanted(packet, option));
    let Some(option) = found else {
        return false;
    };
    let mut copy = packet[option.range()].to_vec();
    copy.resize(copy.len().next_multiple_of(4), kind::NOP);
    packet::append_options(packet, &segment, &copy)
}

fn mark_ce(packet: &mut [u8], random: &mut Random, chance: crate::fault::Ppm) -> bool {
    let segment = Segment::parse(packet);
    let ect = segment.is_some_and(|s| !matches!(s.ip.traffic_class & CE, 0 | CE));
    if !ect || !random.chance(chance) {
        return false;
    }
    packet::edit_ip(packet, None, |packet| {
        if packet[0] >> 4 == 4 {
            packet[1] |= CE;
        } else {
            packet[1] |= CE << 4;
        }
    });
    true
}

fn resegment(
    packet: &[u8],
    offset: u16,
    chance: crate::fault::Ppm,
    random: &mut Random,
) -> Option<[Vec<u8>; 2]> {
    let segment = Segment::parse(packet)?;
    if segment.tcp.flags.intersects(TcpFlags::SYN | TcpFlags::URG) || !random.chance(chance) {
        return None;
    }
    packet::split(packet, &segment, offset.into())
}

/// Congestion experienced (RFC 3168 section 5).
const CE: u8 = 0b11;

/// Bits of a byte times nanoseconds of a second.
const PER_BYTE: u128 = 8_000_000_000;

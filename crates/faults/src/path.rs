//! One direction of a link.

use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

use core::cmp::Reverse;

use crate::counters::Counters;
use crate::fault::Fault;
use crate::node::{Context, Node};
use crate::random::Random;
use crate::shared::{Shared, Side};
use crate::time::Time;

/// One direction of a link: packets go in at one time and come out at another.
///
/// Call [`send`](Self::send) when a packet arrives, and [`receive`](Self::receive) until it has
/// nothing more whenever the time of [`poll_timeout`](Self::poll_timeout) has come. Every call may
/// change that time. What happens inside happens at the times that the faults say, however late it
/// is asked for: a caller that is late gets the same packets in the same order.
///
/// Times must not go backwards; an earlier `now` counts as the latest seen.
#[derive(Debug)]
pub struct Path {
    nodes: Vec<Node>,
    /// What is under way inside, by time, then by order of arrival.
    events: BinaryHeap<Reverse<Event>>,
    /// What has left the last node.
    ready: VecDeque<(Time, Vec<u8>)>,
    counters: Counters,
    /// Number of the next event.
    next_event: u64,
    /// Number of the list of faults, from 0: events of earlier ones skip the nodes.
    generation: u32,
    /// The latest time seen.
    now: Time,
    seed: u64,
    side: Side,
    shared: Arc<Shared>,
}

impl Path {
    /// A path of its own. Faults that both directions have to know of (`nat`, `isn`, `shift-ts`)
    /// want a [`pair`](Self::pair).
    #[must_use]
    pub fn new(faults: Vec<Fault>, seed: u64) -> Self {
        Self::on_side(faults, seed, Side::First, Arc::default())
    }

    /// Both directions of a link: what one of them maps, the other maps back.
    #[must_use]
    pub fn pair(first: Vec<Fault>, second: Vec<Fault>, seed: u64) -> (Self, Self) {
        let shared = Arc::<Shared>::default();
        let second_seed = Random::of_part(seed, u64::MAX).next_u64();
        (
            Self::on_side(first, seed, Side::First, Arc::clone(&shared)),
            Self::on_side(second, second_seed, Side::Second, shared),
        )
    }

    /// A packet, which starts with its IP header, goes in.
    pub fn send(&mut self, now: Time, mut packet: Vec<u8>) {
        self.advance(now);
        self.counters.packets_in += 1;
        self.counters.bytes_in += packet.len() as u64;
        if self.shared.undo(self.side, &mut packet, &mut self.counters) {
            self.enter(0, self.now, packet);
        }
    }

    /// When to call [`receive`](Self::receive) next; `None`: not before the next packet goes in.
    ///
    /// That is when the next packet comes out, unless a fault loses it on its last stretch.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let ready = self.ready.front().map(|(at, _)| *at);
        ready.or_else(|| self.events.peek().map(|event| event.0.at))
    }

    /// The next packet that has come out by `now`.
    pub fn receive(&mut self, now: Time) -> Option<Vec<u8>> {
        self.receive_timed(now).map(|(_, packet)| packet)
    }

    /// As [`receive`](Self::receive), with the time when it came out.
    pub fn receive_timed(&mut self, now: Time) -> Option<(Time, Vec<u8>)> {
        self.advance(now);
        let (at, packet) = self.ready.pop_front()?;
        self.counters.packets_out += 1;
        self.counters.bytes_out += packet.len() as u64;
        Some((at, packet))
    }

    /// Whether nothing is under way.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.poll_timeout().is_none()
    }

    /// What happened so far.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Replaces the faults. Schedules and counts of the new ones start now; packets that are under
    /// way come out when they would have left the node that holds them. The mappings of `nat` and
    /// `isn` stay, as long as the new list has the fault too.
    pub fn set_faults(&mut self, now: Time, faults: Vec<Fault>) {
        self.advance(now);
        self.generation += 1;
        for node in std::mem::take(&mut self.nodes) {
            let held = node.into_held().map(|packet| (self.now, packet));
            self.ready.extend(held);
        }
        let seed = Random::of_part(self.seed, u64::from(self.generation)).next_u64();
        self.place(faults, seed);
    }

    fn on_side(faults: Vec<Fault>, seed: u64, side: Side, shared: Arc<Shared>) -> Self {
        let mut path = Self {
            nodes: vec![],
            events: BinaryHeap::new(),
            ready: VecDeque::new(),
            counters: Counters::default(),
            next_event: 0,
            generation: 0,
            now: Time::ZERO,
            seed,
            side,
            shared,
        };
        path.place(faults, seed);
        path
    }

    fn place(&mut self, faults: Vec<Fault>, seed: u64) {
        let nodes = faults.into_iter().enumerate();
        self.nodes = nodes
            .map(|(index, fault)| Node::new(fault, seed, index, self.now))
            .collect();
        let mappings = self.nodes.iter().filter_map(Node::mapping).collect();
        self.shared.declare(self.side, mappings);
    }

    /// Lets everything happen that happens up to `now`.
    fn advance(&mut self, now: Time) {
        while let Some(event) = self.next_due(now) {
            let current = event.generation == self.generation;
            match event.what {
                What::Packet(packet) if current => self.enter(event.stage, event.at, packet),
                What::Packet(packet) => self.ready.push_back((event.at, packet)),
                What::Timer if current => self.expire(event.stage, event.at),
                What::Timer => {}
            }
        }
        self.now = self.now.max(now);
    }

    fn next_due(&mut self, now: Time) -> Option<Event> {
        let due = self.events.peek().is_some_and(|event| event.0.at <= now);
        due.then(|| self.events.pop())
            .flatten()
            .map(|event| event.0)
    }

    /// A packet comes to a stage; what leaves it at once goes on to the next.
    fn enter(&mut self, stage: usize, at: Time, packet: Vec<u8>) {
        if stage == self.nodes.len() {
            self.ready.push_back((at, packet));
            return;
        }
        self.work(stage, at, |node, context| node.process(at, packet, context));
    }

    fn expire(&mut self, stage: usize, at: Time) {
        self.work(stage, at, |node, context| node.expire(at, context));
    }

    fn work(&mut self, stage: usize, at: Time, act: impl FnOnce(&mut Node, &mut Context<'_>)) {
        let (mut out, mut timer) = (vec![], None);
        let mut context = Context {
            side: self.side,
            shared: &self.shared,
            counters: &mut self.counters,
            out: &mut out,
            timer: &mut timer,
        };
        act(&mut self.nodes[stage], &mut context);
        if let Some(due) = timer {
            self.push(due, stage, What::Timer);
        }
        for (leaves, packet) in out {
            if leaves > at {
                self.push(leaves, stage + 1, What::Packet(packet));
            } else {
                self.enter(stage + 1, at, packet);
            }
        }
    }

    fn push(&mut self, at: Time, stage: usize, what: What) {
        self.events.push(Reverse(Event {
            at,
            number: self.next_event,
            stage,
            generation: self.generation,
            what,
        }));
        self.next_event += 1;
    }
}

/// Something that happens inside a path.
#[derive(Debug)]
struct Event {
    at: Time,
    number: u64,
    stage: usize,
    generation: u32,
    what: What,
}

#[derive(Debug)]
enum What {
    /// A packet comes to the stage.
    Packet(Vec<u8>),
    /// The node of the stage asked for it.
    Timer,
}

impl PartialEq for Event {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Event {}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Event {
    fn cmp(&self, other: &Self) -> core::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

//! A download and an upload through the translator, between models of a TCP server and of an MPTCP
//! client that deliver in order on each subflow, over paths that lose, delay and reorder packets. Every
//! byte arrives, and nothing stalls. One seed gives one run; a failure names it.

mod ends;
mod line;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use self::ends::{Client, Server};
use self::line::Packet;
use crate::support::{Scenario, Setup};

/// Virtual time in which everything has to be done.
const DEADLINE: u64 = 400_000;
/// Every so many milliseconds the client looks for subflows that FlexCP has reset, and joins anew.
const AGAIN: u64 = 500;

/// What the paths do, and who sends how much.
#[derive(Clone, Copy, Debug)]
struct World {
    seed: u64,
    down: u32,
    up: u32,
    /// Subflows from the start.
    subflows: usize,
    /// Of 1000 packets on each hop.
    loss: u64,
    /// Milliseconds that a packet takes on each hop, at most.
    delay: u64,
    /// Of 1000 pieces that the client has ACKed on the subflow and drops after that.
    pruned: u64,
    /// Every so many milliseconds: one path goes dark, and the one before comes back.
    flap: u64,
    /// Every so many milliseconds: the client changes a subflow's priority.
    prio: u64,
    /// Every so many milliseconds: the client resets a subflow and joins another.
    rejoin: u64,
}

impl World {
    const fn new(seed: u64) -> Self {
        Self {
            seed,
            down: 60_000,
            up: 0,
            subflows: 1,
            loss: 0,
            delay: 10,
            pruned: 0,
            flap: 0,
            prio: 0,
            rejoin: 0,
        }
    }
}

/// Small, seeded, good enough.
#[derive(Clone, Debug)]
struct Random(u64);

impl Random {
    /// Below `bound`.
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        if bound == 0 {
            0
        } else {
            (self.0 >> 16) % bound
        }
    }

    fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }
}

/// Where a packet arrives.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Arrival {
    /// At FlexCP, from the server.
    FromServer(String),
    /// At FlexCP, from a flow of the client.
    FromClient(usize, String),
    /// At the server or the client, as FlexCP's line.
    Out(String),
}

#[derive(Debug)]
struct Simulation {
    t: Scenario,
    world: World,
    random: Random,
    now: u64,
    order: u64,
    queue: BinaryHeap<Reverse<(u64, u64, Arrival)>>,
    server: Server,
    client: Client,
    dark: Option<usize>,
    log: Vec<String>,
}

impl Simulation {
    fn new(world: World) -> Self {
        let setup = Setup::new();
        let mut t = setup.clone().established();
        for id in 1..world.subflows {
            setup.join(&mut t, id);
        }
        Self {
            t,
            world,
            random: Random(world.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            now: 0,
            order: 0,
            queue: BinaryHeap::new(),
            server: Server::new(world.down, world.up),
            client: Client::new(world.subflows, world.down, world.up),
            dark: None,
            log: Vec::new(),
        }
    }

    fn run(mut self) {
        while !self.is_done() {
            if self.now > DEADLINE {
                self.fail("stalled");
            }
            self.step();
        }
        assert!(
            ["closed", "half-closed"].contains(&self.t.state()),
            "{}",
            self.t.state()
        );
        let _ = self.t.moved();
    }

    fn is_done(&self) -> bool {
        self.server.is_done() && self.client.is_done()
    }

    /// One millisecond.
    fn step(&mut self) {
        self.now += 1;
        self.t.at(self.now);
        while let Some(Reverse((at, ..))) = self.queue.peek()
            && *at <= self.now
        {
            let Some(Reverse((.., arrival))) = self.queue.pop() else {
                break;
            };
            self.arrive(arrival);
        }
        if self.t.next_timeout().is_some_and(|at| at <= self.now) {
            let outcome = self.t.timeout();
            self.forward(outcome.lines());
        }
        self.change_paths();
        for line in self.server.tick(self.now, &mut self.random) {
            self.send(Arrival::FromServer(line));
        }
        for (flow, line) in self.client.tick(self.now, &mut self.random) {
            self.send(Arrival::FromClient(flow, line));
        }
    }

    fn arrive(&mut self, arrival: Arrival) {
        match arrival {
            Arrival::FromServer(line) => {
                self.note(format!("server > {line}"));
                let outcome = self.t.server(&line);
                self.forward(outcome.lines());
            }
            Arrival::FromClient(flow, line) => {
                self.note(format!("client{flow} > {line}"));
                let outcome = self.t.client(flow, &line);
                self.forward(outcome.lines());
            }
            Arrival::Out(line) => {
                self.note(format!("at {line}"));
                let packet = Packet::parse(&line);
                match packet.flow {
                    None => {
                        for line in self.server.take(self.now, &packet) {
                            self.send(Arrival::FromServer(line));
                        }
                    }
                    Some(flow) => {
                        match self
                            .client
                            .take(&packet, &mut self.random, self.world.pruned)
                        {
                            Ok(lines) => {
                                for line in lines {
                                    self.send(Arrival::FromClient(flow, line));
                                }
                            }
                            Err(why) => self.fail(&why),
                        }
                    }
                }
            }
        }
    }

    /// What FlexCP sends starts on its way.
    fn forward(&mut self, lines: &[String]) {
        for line in lines {
            self.note(format!("    {line}"));
            if line.starts_with('!') {
                self.fail("a rule was broken");
            }
            if line.starts_with("server R") {
                self.fail("the server was reset");
            }
            if !["!", "drop", "server", "client"]
                .iter()
                .any(|is| line.starts_with(is))
            {
                self.fail("to nobody of this connection");
            }
            if !line.starts_with("drop") {
                self.send(Arrival::Out(line.clone()));
            }
        }
    }

    /// A packet starts on its hop, and may get lost on it.
    fn send(&mut self, arrival: Arrival) {
        let flow = match &arrival {
            Arrival::FromServer(_) => None,
            Arrival::FromClient(flow, _) => Some(*flow),
            Arrival::Out(line) => Packet::parse(line).flow,
        };
        let is_dark = flow.is_some() && flow == self.dark;
        if is_dark || self.random.chance(self.world.loss) {
            self.note(format!("  lost: {arrival:?}"));
            return;
        }
        let at = self.now + 1 + self.random.below(self.world.delay);
        self.order += 1;
        self.queue.push(Reverse((at, self.order, arrival)));
    }

    fn change_paths(&mut self) {
        let due = |every: u64, now: u64| every > 0 && now.is_multiple_of(every);
        if due(self.world.flap, self.now) {
            let next = self.dark.map_or(0, |flow| flow + 1);
            self.dark = (next < self.world.subflows).then_some(next);
            self.note(format!("  dark: {:?}", self.dark));
        }
        if due(self.world.prio, self.now) {
            let flow =
                usize::try_from(self.random.below(self.client.flows.len() as u64)).expect("small");
            let backup = self.random.chance(500);
            if let Some(line) = self.client.prio(flow, backup) {
                self.send(Arrival::FromClient(flow, line));
            }
        }
        if due(AGAIN, self.now) && self.client.lacks_subflows(self.world.subflows) {
            self.join();
        }
        if due(self.world.rejoin, self.now)
            && self.client.flows.len() < 8
            && self.t.state() == "translating"
        {
            let old = self.client.oldest_alive();
            if let Some(line) = self.client.reset(old) {
                // Its RST arrives before anything else of that path: no packet crosses it.
                self.note(format!("client{old} > {line}"));
                let outcome = self.t.client(old, &line);
                self.forward(outcome.lines());
            }
            self.join();
        }
    }

    /// The client joins another subflow; the handshake itself meets no trouble.
    fn join(&mut self) {
        let id = self.client.join();
        Setup::new().join(&mut self.t, id);
    }

    fn note(&mut self, line: String) {
        if self.log.len() > 400 {
            self.log.drain(..200);
        }
        self.log.push(format!("{:6} {line}", self.now));
    }

    fn fail(&mut self, why: &str) -> ! {
        let tail = self.log.len().saturating_sub(120);
        let log = self.log[tail..].join("\n");
        panic!(
            "{log}\n{why}\n{:?}\n{:?}\n{:?}",
            self.world, self.server, self.client
        );
    }
}

/// Runs each seed.
fn each_seed(count: u64, world: impl Fn(u64) -> World) {
    let extra: u64 = std::env::var("SIMULATION_SEEDS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(0);
    for seed in 1..=count + extra {
        Simulation::new(world(seed)).run();
    }
}

#[test]
fn download_over_a_good_path() {
    each_seed(3, World::new);
}

#[test]
fn upload_over_a_good_path() {
    each_seed(3, |seed| World {
        down: 0,
        up: 60_000,
        ..World::new(seed)
    });
}

#[test]
fn both_ways_with_loss() {
    each_seed(10, |seed| World {
        up: 40_000,
        loss: 20,
        delay: 15,
        ..World::new(seed)
    });
}

#[test]
fn download_with_much_loss_and_reordering() {
    each_seed(10, |seed| World {
        loss: 80,
        delay: 60,
        ..World::new(seed)
    });
}

#[test]
fn upload_over_two_paths_with_loss() {
    each_seed(10, |seed| World {
        down: 0,
        up: 60_000,
        subflows: 2,
        loss: 20,
        delay: 30,
        ..World::new(seed)
    });
}

#[test]
fn both_ways_over_three_paths_with_loss() {
    each_seed(10, |seed| World {
        up: 60_000,
        subflows: 3,
        loss: 20,
        delay: 30,
        ..World::new(seed)
    });
}

#[test]
fn download_while_priorities_change() {
    each_seed(10, |seed| World {
        subflows: 2,
        loss: 20,
        delay: 20,
        prio: 37,
        ..World::new(seed)
    });
}

#[test]
fn download_while_paths_go_dark_and_come_back() {
    each_seed(10, |seed| World {
        subflows: 2,
        delay: 20,
        flap: 700,
        ..World::new(seed)
    });
}

#[test]
fn both_ways_while_paths_go_dark_with_loss() {
    each_seed(10, |seed| World {
        up: 30_000,
        subflows: 3,
        loss: 10,
        delay: 20,
        flap: 900,
        ..World::new(seed)
    });
}

#[test]
fn download_while_the_client_drops_what_it_has_acked_on_the_subflow() {
    each_seed(10, |seed| World {
        pruned: 50,
        delay: 5,
        ..World::new(seed)
    });
    each_seed(10, |seed| World {
        pruned: 50,
        loss: 20,
        subflows: 2,
        delay: 20,
        ..World::new(seed)
    });
}

#[test]
fn download_while_subflows_are_reset_and_others_join() {
    each_seed(10, |seed| World {
        subflows: 2,
        loss: 20,
        delay: 20,
        rejoin: 600,
        ..World::new(seed)
    });
}

#[test]
fn everything_at_once() {
    each_seed(10, |seed| World {
        up: 30_000,
        subflows: 3,
        loss: 20,
        delay: 30,
        pruned: 5,
        flap: 1100,
        prio: 170,
        ..World::new(seed)
    });
}

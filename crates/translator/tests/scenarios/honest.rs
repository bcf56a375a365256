//! Ends that keep to the protocol over a network that does anything: packets of both legs are lost, doubled
//! and delivered in any order. The checker of the rules of the wire sees each of them (the harness shows them to
//! it), finds nothing wrong with what FlexCP sends, and holds nothing against the ends, so that no rule is left
//! out.

use std::sync::atomic::{AtomicU32, Ordering};

use flexcp_invariants::Ranges;
use proptest::prelude::*;

use crate::support::{Outcome, Scenario, Setup};

/// Runs, and those behind a part of which the kernel's programs were not compared ([`Scenario::may_part`]).
static PLAYED: AtomicU32 = AtomicU32::new(0);
static PARTED: AtomicU32 = AtomicU32::new(0);

/// What happens next. Indices count modulo what there is.
#[derive(Clone, Debug)]
enum Step {
    /// New data on a flow of the client's.
    ClientData(usize, u32),
    /// Data that the client has sent, again under its mapping, or under a new one on the other flow.
    ClientAgain(usize, usize, bool),
    ClientAck(usize),
    ClientFin(usize),
    ServerData(u32),
    /// From the first byte on that is not ACKed, or later.
    ServerAgain(u32, u32),
    ServerAck,
    ServerFin,
    /// A packet on its way to FlexCP, or from it, gets there.
    In(usize, Fate),
    Out(usize, Fate),
    /// The oldest packets of both ways get there.
    All,
    Wait(u64),
}

#[derive(Clone, Copy, Debug)]
enum Fate {
    Arrives,
    ArrivesTwice,
    IsLost,
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![
        6 => Just(Fate::Arrives),
        1 => Just(Fate::ArrivesTwice),
        2 => Just(Fate::IsLost),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let len = || prop_oneof![1..200_u32, 1000..1401_u32, 1..6000_u32];
    prop_oneof![
        4 => (0..2_usize, len()).prop_map(|(k, len)| Step::ClientData(k, len)),
        2 => (0..2_usize, 0..8_usize, any::<bool>())
            .prop_map(|(k, nth, moved)| Step::ClientAgain(k, nth, moved)),
        4 => (0..2_usize).prop_map(Step::ClientAck),
        4 => len().prop_map(Step::ServerData),
        2 => (0..3000_u32, len()).prop_map(|(skip, len)| Step::ServerAgain(skip, len)),
        3 => Just(Step::ServerAck),
        8 => (0..8_usize, fate()).prop_map(|(nth, fate)| Step::In(nth, fate)),
        8 => (0..8_usize, fate()).prop_map(|(nth, fate)| Step::Out(nth, fate)),
        2 => Just(Step::All),
        2 => prop_oneof![1..50_u64, 100..3000_u64].prop_map(Step::Wait),
        1 => prop_oneof![(0..2_usize).prop_map(Step::ClientFin), Just(Step::ServerFin)],
    ]
}

/// Little goes wrong: the connection runs its steady course most of the time.
fn calm_step() -> impl Strategy<Value = Step> {
    let len = || prop_oneof![3 => 1..300_u32, 3 => Just(100_u32), 1 => 1000..4000_u32];
    let arrives = || Just(Fate::Arrives);
    prop_oneof![
        6 => (0..4_usize, len()).prop_map(|(k, len)| Step::ClientData(k / 3, len)),
        8 => len().prop_map(Step::ServerData),
        4 => (0..4_usize).prop_map(|k| Step::ClientAck(k / 3)),
        3 => Just(Step::ServerAck),
        12 => (Just(0_usize), arrives()).prop_map(|(nth, fate)| Step::In(nth, fate)),
        12 => (Just(0_usize), arrives()).prop_map(|(nth, fate)| Step::Out(nth, fate)),
        6 => Just(Step::All),
        3 => (0..60_u64).prop_map(Step::Wait),
        1 => prop_oneof![
            2 => Just(Step::Wait(2500)),
            2 => (0..1500_u32, len()).prop_map(|(skip, len)| Step::ServerAgain(skip, len)),
            1 => (0..2_usize, 0..8_usize, any::<bool>())
                .prop_map(|(k, nth, moved)| Step::ClientAgain(k, nth, moved)),
            2 => (0..4_usize, fate()).prop_map(|(nth, fate)| Step::Out(nth, fate)),
        ],
    ]
}

/// One way of the data, as its two ends know it; the first byte has number 1.
#[derive(Default, Debug)]
struct Stream {
    /// The next number of the sender's.
    next: u64,
    fin: bool,
    /// What its receiver has got, and where it ends.
    got: Ranges,
    end: Option<u64>,
    /// The latest ACK that came back.
    acked: u64,
}

impl Stream {
    fn new() -> Self {
        Self {
            next: 1,
            acked: 1,
            ..Self::default()
        }
    }

    /// What the receiver ACKs.
    fn ack(&self) -> u64 {
        let reached = reached(&self.got);
        reached + u64::from(self.end == Some(reached))
    }
}

/// A flow of the client's: its numbers on the way up, and what came down on it.
#[derive(Default, Debug)]
struct Flow {
    next: u64,
    /// (SSN, DSN, length).
    sent: Vec<(u64, u64, u64)>,
    got: Ranges,
    heard: u64,
}

fn reached(got: &Ranges) -> u64 {
    got.range_at(1).map_or(1, |range| range.1)
}

/// Everybody around FlexCP.
struct World {
    t: Scenario,
    now: u64,
    clocks: bool,
    flows: [Flow; 2],
    up: Stream,
    down: Stream,
    /// No more data than this each way.
    most: u64,
    server_heard: u64,
    /// Packets on their way: to FlexCP with the flow (`None`: of the server), and from it.
    inward: Vec<(Option<usize>, String)>,
    outward: Vec<String>,
}

impl World {
    fn new(setup: Setup, clocks: bool) -> Self {
        let setup = if clocks { setup.ts() } else { setup };
        let mut t = setup.two_subflows();
        t.may_part();
        let flow = || Flow {
            next: 1,
            heard: 5000,
            ..Flow::default()
        };
        Self {
            t,
            now: 0,
            clocks,
            flows: [flow(), flow()],
            up: Stream::new(),
            down: Stream::new(),
            most: 30_000,
            server_heard: 1000,
            inward: Vec::new(),
            outward: Vec::new(),
        }
    }

    fn play(&mut self, steps: &[Step]) {
        for step in steps {
            self.step(step);
        }
        self.step(&Step::All);
        assert_eq!(self.t.breaches(), [], "held against honest ends");
        let played = PLAYED.fetch_add(1, Ordering::Relaxed) + 1;
        let parted = u32::from(self.t.parted());
        let parted = PARTED.fetch_add(parted, Ordering::Relaxed) + parted;
        // 8 % do.
        assert!(parted * 4 <= played + 100, "{parted} of {played} parted");
        let _ = self.t.moved();
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::ClientData(k, len) if !self.up.fin && self.up.next < self.most => {
                let mapping = (self.flows[k].next, self.up.next, u64::from(len));
                self.up.next += mapping.2;
                self.client_data(k, mapping, true);
            }
            Step::ClientAgain(k, nth, moved) => {
                let sent = &self.flows[k].sent;
                let Some(&(ssn, dsn, len)) = sent.get(nth % sent.len().max(1)) else {
                    return;
                };
                if moved {
                    let mapping = (self.flows[1 - k].next, dsn, len);
                    self.client_data(1 - k, mapping, true);
                } else {
                    self.client_data(k, (ssn, dsn, len), false);
                }
            }
            Step::ClientAck(k) => self.client_bare(k, ""),
            Step::ClientFin(k) => {
                self.up.fin = true;
                let fin = format!(" fin {}", self.up.next);
                self.client_bare(k, &fin);
            }
            Step::ServerData(len) if !self.down.fin && self.down.next < self.most => {
                let at = self.down.next;
                self.down.next += u64::from(len);
                self.server(at, len.into(), false);
            }
            Step::ServerAgain(skip, len) => {
                let at = (self.down.acked + u64::from(skip)).min(self.down.next);
                let at = if skip < 1500 {
                    self.down.acked.min(at)
                } else {
                    at
                };
                self.server(at, u64::from(len).min(self.down.next - at), false);
            }
            Step::ServerFin => {
                self.down.fin = true;
                self.server(self.down.next, 0, true);
            }
            Step::ServerAck => {
                let at = self.down.next + u64::from(self.down.fin);
                self.server(at, 0, false);
            }
            Step::In(nth, fate) => self.enter(nth, fate),
            Step::Out(nth, fate) => self.leave(nth, fate),
            Step::All => {
                while !self.inward.is_empty() || !self.outward.is_empty() {
                    self.enter(0, Fate::Arrives);
                    self.leave(0, Fate::Arrives);
                }
            }
            Step::Wait(millis) => {
                self.now += millis;
                self.t.at(self.now);
                let outcome = self.t.timeout();
                self.sends(&outcome);
            }
            Step::ClientData(..) | Step::ServerData(_) => {}
        }
    }

    fn client_data(&mut self, k: usize, mapping: (u64, u64, u64), fresh: bool) {
        let (ssn, dsn, len) = mapping;
        if fresh {
            self.flows[k].next += len;
            self.flows[k].sent.push(mapping);
        }
        let ack = self.client_acks(k);
        let gso = if len > 1400 { " gso 1400" } else { "" };
        let line = format!(
            "P. {ssn}:{}({len}) ack {} win 512 <{}dss ack {} map {dsn}:{}@{ssn}>{gso}",
            ssn + len,
            ack.0,
            ack.1,
            self.down.ack(),
            dsn + len,
        );
        self.inward.push((Some(k), line));
    }

    /// A packet without data.
    fn client_bare(&mut self, k: usize, fin: &str) {
        let (ack, clock) = self.client_acks(k);
        let blocks = if fin.is_empty() {
            sack(&self.flows[k].got, ack)
        } else {
            String::new()
        };
        let at = self.flows[k].next;
        let data_ack = self.down.ack();
        let line =
            format!(". {at}:{at}(0) ack {ack} win 512 <{clock}{blocks}dss ack {data_ack}{fin}>");
        self.inward.push((Some(k), line));
    }

    /// The ACK of a flow, and its timestamps.
    fn client_acks(&self, k: usize) -> (u64, String) {
        let flow = &self.flows[k];
        let base = if k == 0 { 1000 } else { 900_000 };
        let clock = format!("ts {} {},", base + self.now, flow.heard);
        let clock = if self.clocks { clock } else { String::new() };
        (reached(&flow.got), clock)
    }

    fn server(&mut self, at: u64, len: u64, fin: bool) {
        let clock = format!("ts {} {},", 5000 + self.now, self.server_heard);
        let clock = if self.clocks { clock } else { String::new() };
        let ack = self.up.ack();
        let blocks = sack(&self.up.got, ack);
        let options = format!("{clock}{blocks}");
        let options = options.trim_end_matches(',');
        let options = if options.is_empty() {
            String::new()
        } else {
            format!(" <{options}>")
        };
        let flags = if fin { "F." } else { "." };
        let gso = if len > 1400 { " gso 1400" } else { "" };
        let line = format!(
            "{flags} {at}:{}({len}) ack {ack} win 512{options}{gso}",
            at + len
        );
        self.inward.push((None, line));
    }

    fn enter(&mut self, nth: usize, fate: Fate) {
        if self.inward.is_empty() {
            return;
        }
        let (from, line) = self.inward.remove(nth % self.inward.len());
        let times = match fate {
            Fate::IsLost => 0,
            Fate::Arrives => 1,
            Fate::ArrivesTwice => 2,
        };
        for _ in 0..times {
            let gone = self.t.state() == "gone";
            if gone {
                return;
            }
            let outcome = match from {
                Some(k) => self.t.client(k, &line),
                None => self.t.server(&line),
            };
            self.sends(&outcome);
        }
    }

    /// What FlexCP sends is on its way.
    fn sends(&mut self, outcome: &Outcome) {
        let wrong = outcome.lines().iter().any(|line| line.starts_with('!'));
        assert!(!wrong, "{:?}", outcome);
        self.outward.extend_from_slice(outcome.lines());
    }

    fn leave(&mut self, nth: usize, fate: Fate) {
        if self.outward.is_empty() {
            return;
        }
        let line = self.outward.remove(nth % self.outward.len());
        if !matches!(fate, Fate::IsLost) {
            self.arrives(&line);
        }
    }

    /// A packet of FlexCP's reaches its end: `client1 P. 1:101(100) ack 1 win 64 <…,dss ack 1 map 1:101@1>`.
    fn arrives(&mut self, line: &str) {
        let Some((to, packet)) = line.split_once(' ') else {
            return;
        };
        let flags = packet.split(' ').next().unwrap_or("");
        if flags.contains('S') || flags.contains('R') {
            return;
        }
        let Some(span) = packet.split(' ').nth(1).and_then(range) else {
            return;
        };
        let number_behind = |word: &str| {
            let rest = packet.split_once(word)?.1;
            let digits = rest.split(|c: char| !c.is_ascii_digit()).next()?;
            digits.parse::<u64>().ok()
        };
        let clock = number_behind("ts ");
        let Some(ack) = number_behind(" ack ") else {
            return;
        };
        if to == "server" {
            self.server_heard = self.server_heard.max(clock.unwrap_or(0));
            self.down.acked = self.down.acked.max(ack.min(self.down.next));
            self.up.got.insert(span.0, span.1);
            if flags.contains('F') {
                self.up.end = Some(span.1);
            }
            return;
        }
        let k = usize::from(to == "client1");
        self.flows[k].heard = self.flows[k].heard.max(clock.unwrap_or(0));
        self.flows[k].got.insert(span.0, span.1);
        if let Some(acked) = number_behind("dss ack ") {
            self.up.acked = self.up.acked.max(acked);
        }
        let Some((_, dss)) = packet.split_once("dss ack ") else {
            return;
        };
        if let Some((_, map)) = dss.split_once(" map ")
            && let (Some((from, to)), Some(ssn)) = (range(map), number_behind("@"))
        {
            let at = from + (span.0 - ssn);
            self.down.got.insert(at, at + (span.1 - span.0));
            if dss.contains(" fin") {
                self.down.end = Some(to);
            }
        } else if let Some(fin) = number_behind(" fin ") {
            self.down.end = Some(fin);
        }
    }
}

/// `from:to` at the start of a text.
fn range(text: &str) -> Option<(u64, u64)> {
    let (from, rest) = text.split_once(':')?;
    let to = rest.split(|c: char| !c.is_ascii_digit()).next()?;
    Some((from.parse().ok()?, to.parse().ok()?))
}

/// The first block behind the ACK, with a comma; one always fits.
fn sack(got: &Ranges, ack: u64) -> String {
    let mut behind = got.as_slice().iter().filter(|range| range.0 > ack);
    behind
        .next()
        .map_or_else(String::new, |(left, right)| format!("sack {left}:{right},"))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn two_subflows_packets_in_any_order_break_no_rule(
        steps in prop::collection::vec(step(), 1..80),
        clocks in any::<bool>(),
    ) {
        World::new(Setup::new(), clocks).play(&steps);
    }

    #[test]
    fn two_subflows_at_the_wrap_packets_in_any_order_break_no_rule(
        steps in prop::collection::vec(step(), 1..80),
        clocks in any::<bool>(),
    ) {
        let setup = Setup::new().isns(u32::MAX - 2000, u32::MAX - 3000);
        World::new(setup, clocks).play(&steps);
    }

    /// The harness compares with a translator whose fast path takes what it can.
    #[test]
    fn two_subflows_in_their_steady_course_need_nothing_but_the_fast_path(
        steps in prop::collection::vec(calm_step(), 100..300),
        v6 in any::<bool>(),
    ) {
        let setup = if v6 { Setup::new().v6() } else { Setup::new() };
        let mut world = World::new(setup.isns(u32::MAX - 9000, u32::MAX - 7000), true);
        world.most = 120_000;
        world.play(&steps);
    }
}

//! The run itself: hosts, paths and the proxy in virtual time.

use flexcp_faults::{Path, Time};
use flexcp_invariants::{Direction, Point};

use flexcp_testkit::Random;
use flexcp_translator::Protocol;

use crate::client::{Client, Outcome, Phase, Setup};
use crate::errand::place_of;
use crate::explicit::Fate;
use crate::key::find_key;
use crate::mirror::{BEHIND, Greeting};
use crate::net::{Incoming, Outbox};
use crate::payload::Payload;
use crate::proxy::{Kernel, Proxy, destination_net, goes_to_server};
use crate::server::{Server, State, refuse_any};
use crate::swarm::{PathPlan, Plan, initial_number};
use crate::told::Told;
use crate::trace::Trace;

/// A path and when it has something to give.
#[derive(Debug)]
struct Line {
    path: Path,
    due: u64,
}

impl Line {
    fn new(plan: &PathPlan, seed: u64) -> Self {
        Self {
            path: Path::new(plan.faults.clone(), seed),
            due: u64::MAX,
        }
    }

    fn send(&mut self, now: u64, packet: Vec<u8>) {
        self.path.send(Time::from_micros(now), packet);
        self.look();
    }

    fn look(&mut self) {
        // Up to the next whole microsecond.
        self.due = self
            .path
            .poll_timeout()
            .map_or(u64::MAX, |at| at.0.div_ceil(1000));
    }
}

/// One client and its server.
#[derive(Debug)]
struct Pair {
    client: Client,
    /// Aggregation servers that connect on to it.
    others: Vec<Client>,
    server: Server,
    started: bool,
    starts: u64,
    due: u64,
    aborts: bool,
    /// What is to come of it that its client names its server.
    fate: Option<Fate>,
    /// Nothing goes wrong.
    strict: bool,
    /// How the client answers, where the server opens.
    greeting: Option<Greeting>,
    /// One of the aggregation servers says that the server is not there, or does not say what its SYN/ACK has said, as its path takes
    /// options away.
    refuses: bool,
    /// Uplinks come and go.
    loses_uplinks: bool,
}

impl Pair {
    fn look(&mut self) {
        let client = if self.started {
            self.client.deadline()
        } else {
            Some(self.starts)
        };
        let others = self.others.iter().filter_map(Client::deadline).min();
        let all = [client, self.server.deadline(), others];
        self.due = all.into_iter().flatten().min().unwrap_or(u64::MAX);
    }

    /// The end with MPTCP, and those that stand in for it.
    fn ends(&self) -> impl Iterator<Item = &Client> {
        [&self.client].into_iter().chain(&self.others)
    }

    fn end_mut(&mut self, place: usize) -> Option<&mut Client> {
        match place.checked_sub(1) {
            Some(place) if !self.others.is_empty() => self.others.get_mut(place),
            _ => Some(&mut self.client),
        }
    }

    fn is_done(&self) -> bool {
        let client_reset = self.ends().any(|end| end.phase == Phase::Reset);
        let server_reset = self.server.state == State::Reset;
        let refused = self.refuses || self.greeting == Some(Greeting::Refuses);
        let refused = refused && server_reset;
        if refused || self.aborts && (client_reset || server_reset) {
            return true;
        }
        if self.client.outcome().is_some() && self.is_refused() {
            return true;
        }
        // The last ACKs of an end that has closed went over an uplink that was lost, and it knows nothing of joins any more. Or its
        // only subflow had to be reset for its limits.
        let alone = |end: &Client| (self.loses_uplinks && end.is_done()) || end.is_cut_off();
        if server_reset && self.ends().any(alone) {
            return true;
        }
        let over = |end: &Client| end.is_done() || end.is_left_behind();
        self.ends().any(over) && self.server.is_done()
    }

    /// Whether the client has been told that it is not connected, and has closed; or has been given up before.
    fn is_refused(&self) -> bool {
        let refused = matches!(self.client.outcome(), Some(Outcome::Refused(..)));
        refused && self.client.is_done() || self.client.is_reset_early()
    }

    /// What came of the client's wish is another thing than what had to.
    fn contradiction(&self, now: u64) -> Option<String> {
        let (fate, outcome) = (self.fate?, self.client.outcome()?);
        let refused = matches!(outcome, Outcome::Refused(..));
        let waits = outcome == Outcome::Waits && self.client.is_reset_early();
        let early = waits && !self.client.is_given_up(now) && !self.aborts;
        let wrong = self.strict && fate == Fate::Granted && refused || early;
        wrong.then(|| format!("{outcome:?}, not {fate:?}: {}", self.client.summary()))
    }
}

/// Everything in a run.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) plan: Plan,
    /// Virtual time in microseconds.
    pub(crate) now: u64,
    /// The proxy.
    pub(crate) proxy: Proxy,
    /// What the translator's keys come from.
    secret: [u8; 32],
    pairs: Vec<Pair>,
    up: Vec<Line>,
    down: Vec<Line>,
    to_server: Line,
    from_server: Line,
    outbox: Outbox,
    checked: bool,
    calm: bool,
    /// When the proxy's carrier sends what it keeps.
    sends: u64,
    /// The stage of the plan that steers the connections.
    stage: usize,
    /// Changes of uplinks that have been made.
    changes: usize,
}

impl World {
    /// Before anything has happened.
    #[must_use]
    pub(crate) fn new(plan: Plan, trace: Trace) -> Self {
        let mut random = Random::for_purpose(plan.seed, 20);
        let mut secret = [0; 32];
        for chunk in secret.chunks_mut(8) {
            chunk.copy_from_slice(&random.next().to_le_bytes());
        }
        let proxy = Proxy::new(&plan, secret, trace);
        let mut line = |plan: &PathPlan| Line::new(plan, random.next());
        let up = plan.links.iter().map(|link| line(&link.0)).collect();
        let down = plan.links.iter().map(|link| line(&link.1)).collect();
        let to_server = line(&plan.server.0);
        let from_server = line(&plan.server.1);
        let pairs = (0..plan.connections.len())
            .map(|n| pair(&plan, n, &mut random))
            .collect();
        let checked = plan.checksums == flexcp_wire::ChecksumState::Complete;
        Self {
            now: 0,
            proxy,
            secret,
            pairs,
            up,
            down,
            to_server,
            from_server,
            outbox: Outbox::new(checked),
            checked,
            calm: false,
            sends: u64::MAX,
            stage: 0,
            changes: 0,
            plan,
        }
    }

    /// Goes on to the next event. `false`: there is none before `limit`.
    pub(crate) fn step(&mut self, limit: u64) -> bool {
        let mut next = self.proxy.poll_timeout().min(self.sends);
        next = next.min(self.next_stage()).min(self.next_change());
        let lines = self.up.iter().chain(&self.down);
        for line in lines.chain([&self.to_server, &self.from_server]) {
            next = next.min(line.due);
        }
        for pair in &self.pairs {
            next = next.min(pair.due);
        }
        if next > limit {
            return false;
        }
        self.now = self.now.max(next);
        if !self.calm && self.now >= self.plan.calm {
            self.become_calm();
        }
        while self.next_stage() <= self.now {
            self.stage += 1;
            let config = self.plan.config(self.stage);
            self.proxy.configure(self.now, config, self.stage);
        }
        while self.next_change() <= self.now {
            self.change_uplink();
        }
        self.deliver();
        self.run_timers();
        true
    }

    /// When an uplink is lost, or is back.
    fn next_change(&self) -> u64 {
        let next = self.plan.uplinks.get(self.changes);
        next.map_or(u64::MAX, |change| change.at)
    }

    fn change_uplink(&mut self) {
        let change = self.plan.uplinks[self.changes];
        self.changes += 1;
        self.plan.change_uplink(change);
        let lost = self.plan.has_lost(change.link);
        let of = [false, true].map(|of_v6| Plan::uplink(change.link, of_v6));
        let config = self.plan.config(self.stage);
        self.proxy
            .follow_uplinks(self.now, (config, self.stage), of.map(|addr| (addr, lost)));
        self.send_from_proxy();
    }

    /// When other rules hold.
    fn next_stage(&self) -> u64 {
        let next = self.plan.stages.get(self.stage + 1);
        next.map_or(u64::MAX, |stage| stage.at)
    }

    /// The faults are over.
    fn become_calm(&mut self) {
        self.calm = true;
        let now = Time::from_micros(self.now);
        let plans = &self.plan.links;
        for (line, plan) in self.up.iter_mut().zip(plans) {
            line.path.set_faults(now, plan.0.calm.clone());
            line.look();
        }
        for (line, plan) in self.down.iter_mut().zip(plans) {
            line.path.set_faults(now, plan.1.calm.clone());
            line.look();
        }
        let (up, down) = (&self.plan.server.0, &self.plan.server.1);
        self.to_server.path.set_faults(now, up.calm.clone());
        self.from_server.path.set_faults(now, down.calm.clone());
        self.to_server.look();
        self.from_server.look();
    }

    /// Packets at the end of their way.
    fn deliver(&mut self) {
        let now = self.now;
        let time = Time::from_micros(now);
        for index in 0..self.up.len() {
            if self.up[index].due <= now {
                while let Some(packet) = self.up[index].path.receive(time) {
                    self.proxy.receive(now, Point::FromClient, &packet);
                    self.outbox.pool.push(packet);
                }
                self.proxy.flush(now);
                self.up[index].look();
                self.send_from_proxy();
            }
        }
        if self.from_server.due <= now {
            while let Some(packet) = self.from_server.path.receive(time) {
                self.proxy.receive(now, Point::FromServer, &packet);
                self.outbox.pool.push(packet);
            }
            self.proxy.flush(now);
            self.from_server.look();
            self.send_from_proxy();
        }
        for index in 0..self.down.len() {
            if self.down[index].due <= now {
                while let Some(packet) = self.down[index].path.receive(time) {
                    self.at_client(&packet);
                    self.proxy.outbox.pool.push(packet);
                }
                self.down[index].look();
            }
        }
        if self.to_server.due <= now {
            while let Some(packet) = self.to_server.path.receive(time) {
                self.at_server(&packet);
                self.proxy.outbox.pool.push(packet);
            }
            self.to_server.look();
        }
    }

    fn at_client(&mut self, packet: &[u8]) {
        let Some(incoming) = Incoming::parse(packet, self.checked) else {
            return;
        };
        let n = usize::from(incoming.to.port() / 1000).wrapping_sub(10);
        if let Some(pair) = self.pairs.get_mut(n) {
            if let Some(end) = pair.end_mut(place_of(incoming.to.port())) {
                end.receive(self.now, &incoming, &mut self.outbox);
            }
            pair.look();
            self.send_from_hosts();
        }
    }

    fn at_server(&mut self, packet: &[u8]) {
        let Some(incoming) = Incoming::parse(packet, self.checked) else {
            return;
        };
        let n = usize::from(incoming.to.port()).wrapping_sub(8000);
        if let Some(pair) = self.pairs.get_mut(n) {
            pair.server.receive(self.now, &incoming, &mut self.outbox);
            pair.look();
            self.send_from_hosts();
        }
    }

    fn run_timers(&mut self) {
        let now = self.now;
        for index in 0..self.pairs.len() {
            let pair = &mut self.pairs[index];
            if pair.due > now {
                continue;
            }
            if pair.started {
                pair.client.timeout(now, &mut self.outbox);
                for other in &mut pair.others {
                    other.timeout(now, &mut self.outbox);
                }
            } else if pair.starts <= now {
                pair.started = true;
                if pair.greeting.is_some() {
                    pair.server.start(now, &mut self.outbox);
                } else {
                    pair.client.start(now, &mut self.outbox);
                }
            }
            pair.server.timeout(now, &mut self.outbox);
            pair.look();
            self.send_from_hosts();
        }
        if self.proxy.poll_timeout() <= now {
            self.proxy.timeout(now);
            self.send_from_proxy();
        }
        if self.sends <= now {
            self.send_from_proxy();
        }
    }

    /// What hosts send starts on its way: clients' packets by their source, or the uplink that they go to, servers' on the other side.
    fn send_from_hosts(&mut self) {
        for packet in std::mem::take(&mut self.outbox.packets) {
            let net = link_net(source_net(&packet), destination_net(&packet));
            let uplink = destination_net(&packet);
            if source_net(&packet) == 200 {
                self.from_server.send(self.now, packet);
            } else if self.plan.has_lost_net(uplink) {
                // Nobody has that address.
                self.outbox.pool.push(packet);
            } else if let Some(line) = self.up.get_mut(usize::from(net).wrapping_sub(1)) {
                line.send(self.now, packet);
            }
        }
    }

    /// What the proxy sends starts on its way, or is kept for a while first.
    fn send_from_proxy(&mut self) {
        let kept = self.proxy.outbox.packets.len();
        if self.plan.keeps > 0 && kept > 0 {
            self.sends = self.sends.min(self.now + self.plan.keeps);
            if self.now < self.sends && kept < KEPT {
                return;
            }
            self.proxy.leave_out();
        }
        self.sends = u64::MAX;
        for packet in std::mem::take(&mut self.proxy.outbox.packets) {
            if packet.is_empty() || self.plan.has_lost_net(source_net(&packet)) {
                continue;
            }
            if goes_to_server(&packet) {
                self.to_server.send(self.now, packet);
                continue;
            }
            if self.plan.is_for_host(destination_net(&packet)) {
                self.refuse_at_host(&packet);
                continue;
            }
            let net = link_net(destination_net(&packet), source_net(&packet));
            if let Some(line) = self.down.get_mut(usize::from(net).wrapping_sub(1)) {
                line.send(self.now, packet);
            }
        }
    }

    /// What is none of the box's connections is its host's, where nobody listens.
    fn refuse_at_host(&mut self, packet: &[u8]) {
        let Some(incoming) = Incoming::parse(packet, self.checked) else {
            return;
        };
        let mut outbox = Outbox::new(self.checked);
        refuse_any(&incoming, &mut outbox);
        for packet in outbox.packets {
            let net = usize::from(source_net(&packet));
            if let Some(line) = self.down.get_mut(net.wrapping_sub(1)) {
                line.send(self.now, packet);
            }
        }
    }

    /// What has moved on the n-th connection, and whether only its end is left; `None`: it is over.
    #[must_use]
    pub(crate) fn progress(&self, n: usize) -> Option<(u64, bool)> {
        let pair = self.pairs.get(n).filter(|pair| !pair.is_done())?;
        let moved = pair.ends().map(Client::progress).sum::<u64>() + pair.server.acknowledged();
        Some((moved, pair.ends().any(|end| end.phase == Phase::Closed)))
    }

    /// Connections whose clients ask for MPTCP, and those whose clients do not.
    #[must_use]
    pub(crate) fn requests(&self) -> (u64, u64) {
        let asks = |pair: &&Pair| pair.client.asks_for_mptcp();
        let asking = self.pairs.iter().filter(asks).count();
        (asking as u64, (self.pairs.len() - asking) as u64)
    }

    /// Aggregation servers that have connected on, by how they were asked.
    pub(crate) fn connected_on(&self, by: Protocol) -> u64 {
        let ends = self.pairs.iter().flat_map(|pair| &pair.others);
        ends.filter(|end| end.connected_by() == Some(by)).count() as u64
    }

    /// Whether all connections have come to their end.
    #[must_use]
    pub(crate) fn is_done(&self) -> bool {
        self.pairs.iter().all(Pair::is_done)
    }

    /// What went wrong at a host.
    #[must_use]
    pub(crate) fn failure(&self) -> Option<&str> {
        self.pairs.iter().find_map(|pair| {
            let client = pair.ends().find_map(|end| end.failure.as_deref());
            client.or(pair.server.failure.as_deref())
        })
    }

    /// Puts the kernel's fast path under the translator.
    pub(crate) fn put_on(&mut self, kernel: Box<dyn Kernel>) {
        self.proxy.put_on(kernel, self.plan.config(0), self.secret);
        // What the kernel translates would overtake what is kept.
        self.plan.keeps = 0;
    }

    /// A client whose wish has come to something else than it had to.
    #[must_use]
    pub(crate) fn contradiction(&self) -> Option<String> {
        let mut pairs = self.pairs.iter();
        pairs.find_map(|pair| pair.contradiction(self.now))
    }

    /// The connections that have not come to their end.
    #[must_use]
    pub(crate) fn unfinished(&self) -> String {
        use std::fmt::Write;
        let mut text = String::new();
        for (n, pair) in self.pairs.iter().enumerate().filter(|(_, p)| !p.is_done()) {
            let _ = write!(
                text,
                "\n  connection {n}: client {}\n    server {}",
                pair.client.summary(),
                pair.server.summary()
            );
            for other in &pair.others {
                let _ = write!(text, "\n    aggregation server {}", other.summary());
            }
        }
        for view in self
            .proxy
            .translator
            .connections(flexcp_translator::Instant(self.now))
        {
            let _ = write!(text, "\n  {view:?}");
        }
        text
    }
}

/// Packets that a carrier keeps at most.
const KEPT: usize = 64;

/// The number of the link of a packet of an end with MPTCP: its own, or that of the uplink that FlexCP has there.
const fn link_net(net: u8, of_proxy: u8) -> u8 {
    match (net, of_proxy) {
        // What passes a box as it is takes the first.
        (BEHIND, 200) => 1,
        (BEHIND, uplink) => uplink,
        _ => net,
    }
}

fn source_net(header: &[u8]) -> u8 {
    let at = if header[0] >> 4 == 4 { 13 } else { 11 };
    header.get(at).copied().unwrap_or(0)
}

fn pair(plan: &Plan, n: usize, random: &mut Random) -> Pair {
    let connection = &plan.connections[n];
    let fate = connection.explicit.as_ref().map(|explicit| explicit.fate);
    let addresses: Vec<_> = if connection.answers.is_some() {
        vec![plan.remote(n)]
    } else {
        let addresses = (0..plan.links.len()).map(|link| plan.client_address(n, link));
        addresses.collect()
    };
    let first = addresses[0];
    let client = Client::new(Setup {
        stack: connection.client,
        app: connection.client_app,
        plan: connection.mptcp.clone(),
        addresses,
        remote: plan.remote(n),
        isn: connection.isns.0,
        speech: connection
            .explicit
            .as_ref()
            .map(|explicit| explicit.speech(plan.server_address(n), n)),
        key: find_key(random, connection.wraps),
        random: Random::for_purpose(random.next(), 30),
    });
    let server = Server::new(
        connection.server,
        connection.server_app,
        plan.server_address(n),
        first,
        connection.isns.1,
        Random::for_purpose(random.next(), 31),
    )
    .meets(fate.unwrap_or(Fate::Granted))
    .wants(if connection.told {
        Told::of(first, plan.remote(n))
    } else {
        Told::nothing()
    });
    let (client, server) = match &connection.answers {
        Some(answers) => {
            let client = client.connected_to(answers.clone(), connection.isns.0);
            (client, server.opening(answers.passes))
        }
        None => (client, server),
    };
    let mut pair = Pair {
        client,
        others: aggregation_servers(plan, n),
        server,
        started: false,
        starts: connection.starts,
        due: 0,
        aborts: connection.aborts,
        fate,
        strict: plan.is_undisturbed(),
        greeting: connection.answers.as_ref().map(|answers| answers.greeting),
        refuses: plan.errands_of(n).any(|(_, errand)| errand.may_refuse()),
        loses_uplinks: !plan.uplinks.is_empty(),
    };
    pair.look();
    pair
}

/// Those that the n-th connection may go by.
fn aggregation_servers(plan: &Plan, n: usize) -> Vec<Client> {
    let connection = &plan.connections[n];
    let mut random = Random::for_purpose(plan.seed, 40 + n as u64);
    let random = &mut random;
    let server = plan.remote(n);
    let streams = [Direction::Up, Direction::Down].map(|way| Payload::of(server, way));
    let all = connection.errands.iter().enumerate();
    let ends = all.filter_map(|(place, answers)| {
        let errand = answers.errand.as_ref()?;
        let client = Client::new(Setup {
            stack: connection.client,
            app: connection.client_app,
            plan: connection.mptcp.clone(),
            addresses: vec![plan.aggregation_server(n, place)],
            remote: server,
            isn: 0,
            speech: None,
            key: find_key(random, connection.wraps),
            random: Random::for_purpose(random.next(), 32),
        });
        let client = client.connected_to(answers.clone(), initial_number(random));
        let talk = errand.talk(server, connection.client_app.writes_from);
        Some(client.connecting_on(errand, talk, streams.into()))
    });
    ends.collect()
}

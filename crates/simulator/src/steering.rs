//! How a run's connections are steered: accesses, rules of every mode, and other rules in the midst of it.
//!
//! What a rule means is told twice: to the translator, as its configuration, and here, in the words of the documentation.
//! [`Heard`](crate::heard::Heard) holds what the translator does against the second.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use flexcp_testkit::Random;
use flexcp_translator::{
    Access, AccessId, ActiveStandby, Automatic, Config, LoadBalancing, Prefix, Priority, Redundant,
    RoundRobin, Rule, ServiceId, SmallestDelay, SteeringMode, SubflowSwitch, Thresholds,
};

use crate::client::Action;
use crate::swarm::{Plan, SECOND, announced, link_prefixes};

/// From a time on, what steers the connections.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Stage {
    /// In microseconds.
    pub(crate) at: u64,
    pub(crate) accesses: Vec<Access>,
    pub(crate) rules: Vec<RulePlan>,
}

/// A rule.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct RulePlan {
    name: String,
    services: Vec<ServiceId>,
    servers: Vec<Prefix>,
    ports: Vec<RangeInclusive<u16>>,
    clients: Vec<Prefix>,
    pub(crate) mode: ModePlan,
    /// In microseconds, like the other.
    hold: u64,
    fail_back: u64,
    pub(crate) heeds_backup: bool,
}

/// A mode, with accesses by their places.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum ModePlan {
    ActiveStandby(Vec<AccessId>),
    SmallestDelay,
    LoadBalancing(Vec<(AccessId, u32)>, Thresholds),
    Automatic(Thresholds),
    Priority(Vec<AccessId>, Thresholds),
    Random,
    RoundRobin,
    Redundant(Vec<AccessId>, Thresholds),
}

impl Stage {
    /// The stages of a seed: none where nothing is steered.
    pub(crate) fn of(plan: &Plan) -> Vec<Self> {
        let mut random = Random::for_purpose(plan.seed, 14);
        let random = &mut random;
        if random.one_in(2) {
            return vec![];
        }
        let changes = random.pick(&[0, 0, 1, 2, 5]);
        let mut times: Vec<u64> = (0..changes)
            .map(|_| random.below(plan.calm + SECOND))
            .collect();
        times.push(0);
        times.sort_unstable();
        let accesses = accesses(random, plan);
        let stage = |at| Self {
            at,
            accesses: if random.one_in(4) {
                self::accesses(random, plan)
            } else {
                accesses.clone()
            },
            rules: rules(random, plan),
        };
        times.into_iter().map(stage).collect()
    }

    /// The translator's configuration with these rules.
    pub(crate) fn configure(&self, config: Config) -> Config {
        Config {
            accesses: self.accesses.clone(),
            rules: self.rules.iter().map(RulePlan::rule).collect(),
            ..config
        }
    }

    /// The first rule that fits a connection: of this service, by these addresses.
    pub(crate) fn rule(
        &self,
        service: ServiceId,
        server: (IpAddr, u16),
        client: IpAddr,
    ) -> Option<&RulePlan> {
        let (server, port) = server;
        self.rules.iter().find(|rule| {
            let of_service = rule.services.is_empty() || rule.services.contains(&service);
            let on_port = rule.ports.is_empty() || rule.ports.iter().any(|p| p.contains(&port));
            of_service && on_port && lies(server, &rule.servers) && lies(client, &rule.clients)
        })
    }

    /// The access of a subflow.
    pub(crate) fn access(&self, client: IpAddr, local: IpAddr) -> Option<AccessId> {
        let fits = |access: &Access| {
            lies(client, &access.clients)
                && (access.addresses.is_empty() || access.addresses.contains(&local))
        };
        let place = self.accesses.iter().position(fits)?;
        Some(AccessId(u8::try_from(place).ok()?))
    }
}

/// Has most connections that are steered last for seconds, over all links: long enough to be moved some times.
pub(crate) fn keep_busy(plan: &mut Plan) {
    let mut random = Random::for_purpose(plan.seed, 15);
    let random = &mut random;
    if plan.stages.is_empty() || random.one_in(3) {
        return;
    }
    let links = plan.links.len();
    for connection in &mut plan.connections {
        let down = random.between(50_000, 500_000);
        connection.server_app.writes = down;
        connection.client_app.reads = down;
        connection.client_app.rate = down / random.between(1000, 10_000) + 1;
        connection.mptcp.enabled = true;
        let actions = &mut connection.mptcp.actions;
        for link in 1..links {
            let backup = random.one_in(8);
            let join = Action::Join { link, backup };
            actions.push((random.below(SECOND / 2), join));
        }
        actions.sort_by_key(|(at, _)| *at);
    }
}

/// Whether an address lies in one of these, or there are none.
fn lies(addr: IpAddr, prefixes: &[Prefix]) -> bool {
    let bytes = |addr: IpAddr| match addr {
        IpAddr::V4(addr) => addr.octets().to_vec(),
        IpAddr::V6(addr) => addr.octets().to_vec(),
    };
    let addr = bytes(addr);
    prefixes.is_empty()
        || prefixes.iter().any(|prefix| {
            let net = bytes(prefix.addr);
            let same = |bit: usize| (net[bit / 8] ^ addr[bit / 8]) & (0x80 >> (bit % 8)) == 0;
            net.len() == addr.len() && (0..usize::from(prefix.len)).all(same)
        })
}

impl RulePlan {
    fn rule(&self) -> Rule {
        Rule {
            name: self.name.as_str().into(),
            services: self.services.clone(),
            servers: self.servers.clone(),
            ports: self.ports.clone(),
            clients: self.clients.clone(),
            mode: self.mode.mode(),
            hold: Duration::from_micros(self.hold),
            fail_back: Duration::from_micros(self.fail_back),
            heeds_backup: self.heeds_backup,
            carrier: None,
        }
    }

    /// How long a connection stays after a move before its mode moves it for this cause, in microseconds. `forced`: something
    /// spoke against the path that it was on before.
    pub(crate) fn wait(&self, cause: SubflowSwitch, forced: bool) -> u64 {
        match cause {
            // Back to what the operator prefers.
            SubflowSwitch::Preferred | SubflowSwitch::Dealt => self.hold.max(self.fail_back),
            SubflowSwitch::Congested if forced => 0,
            _ => self.hold,
        }
    }
}

impl ModePlan {
    fn mode(&self) -> Arc<dyn SteeringMode> {
        match self.clone() {
            Self::ActiveStandby(accesses) => Arc::new(ActiveStandby { accesses }),
            Self::SmallestDelay => Arc::new(SmallestDelay),
            Self::LoadBalancing(weights, thresholds) => Arc::new(LoadBalancing {
                weights,
                thresholds,
            }),
            Self::Automatic(thresholds) => Arc::new(Automatic { thresholds }),
            Self::Priority(accesses, thresholds) => Arc::new(Priority {
                accesses,
                thresholds,
            }),
            Self::Random => Arc::new(flexcp_translator::Random),
            Self::RoundRobin => Arc::new(RoundRobin),
            Self::Redundant(primary, thresholds) => Arc::new(Redundant {
                primary,
                thresholds,
            }),
        }
    }

    /// Whether the mode may move a connection from a path of one access to a path of another for this cause.
    pub(crate) fn moves(
        &self,
        cause: SubflowSwitch,
        from: Option<AccessId>,
        to: Option<AccessId>,
    ) -> bool {
        use SubflowSwitch::{Balance, Congested, Dealt, Delay, Preferred};
        match self {
            Self::ActiveStandby(order) => cause == Preferred && rank(order, to) < rank(order, from),
            Self::SmallestDelay => cause == Delay,
            Self::LoadBalancing(weights, thresholds) => {
                let weighs = |&(access, weight): &(AccessId, u32)| weight > 0 && Some(access) == to;
                let congested = cause == Congested && thresholds.are_set();
                from != to && weights.iter().any(weighs) && (congested || cause == Balance)
            }
            Self::Automatic(thresholds) => {
                let congested = cause == Congested && thresholds.are_set();
                from != to && (congested || cause == Balance)
            }
            Self::Priority(order, thresholds) => {
                let (here, there) = (rank(order, from), rank(order, to));
                let congested = cause == Congested && thresholds.are_set() && here != there;
                congested || (cause == Preferred && there < here)
            }
            Self::Random | Self::RoundRobin => cause == Dealt,
            Self::Redundant(primary, thresholds) => {
                let congested = cause == Congested && thresholds.are_set();
                let back = cause == Preferred && rank(primary, to) < rank(primary, from);
                congested || back
            }
        }
    }

    /// Whether the same data may go down several paths.
    pub(crate) const fn copies(&self) -> bool {
        matches!(self, Self::Redundant(..))
    }

    /// Whether a path of one access is always taken instead of a path of the other, where nothing speaks against either.
    pub(crate) fn prefers(&self, this: Option<AccessId>, other: Option<AccessId>) -> bool {
        match self {
            Self::ActiveStandby(order) => rank(order, this) < rank(order, other),
            Self::Redundant(primary, thresholds) if !thresholds.are_set() => {
                rank(primary, this) < rank(primary, other)
            }
            _ => false,
        }
    }
}

fn rank(order: &[AccessId], access: Option<AccessId>) -> usize {
    let named = order.iter().position(|id| Some(*id) == access);
    named.unwrap_or(order.len())
}

/// Whether it is a mode that moves a connection for this cause, not what speaks against its path.
pub(crate) const fn is_of_mode(cause: SubflowSwitch) -> bool {
    match cause {
        SubflowSwitch::Preferred
        | SubflowSwitch::Delay
        | SubflowSwitch::Balance
        | SubflowSwitch::Congested
        | SubflowSwitch::Dealt => true,
        SubflowSwitch::Failed
        | SubflowSwitch::Closed
        | SubflowSwitch::Leaving
        | SubflowSwitch::Backup
        | SubflowSwitch::Room
        | SubflowSwitch::Lagging
        | SubflowSwitch::Turn
        | SubflowSwitch::Asked => false,
    }
}

/// An access for each link, as a rule; some links share one, some have none.
fn accesses(random: &mut Random, plan: &Plan) -> Vec<Access> {
    let count = plan.links.len();
    let mut all = vec![];
    for link in 0..count {
        if random.one_in(8) {
            continue;
        }
        let mut clients = link_prefixes(link).to_vec();
        if random.one_in(8) {
            clients.extend(link_prefixes(random.index(count)));
        }
        let addresses = if random.one_in(8) {
            vec![announced(false), announced(true)]
        } else {
            vec![]
        };
        let access = Access {
            name: format!("link{link}"),
            clients,
            addresses,
            ways: vec![],
        };
        let access = if plan.is_mirrored() {
            plan.access_by_uplinks(access)
        } else {
            access
        };
        let place = random.index(all.len() + 1);
        all.insert(place, access);
    }
    all
}

fn rules(random: &mut Random, plan: &Plan) -> Vec<RulePlan> {
    let count = random.pick(&[0, 1, 1, 1, 2, 3, 5]);
    // Names come again, at other places.
    let first = random.index(4);
    (0..count)
        .map(|n| rule(random, plan, format!("rule{}", first + n)))
        .collect()
}

fn rule(random: &mut Random, plan: &Plan, name: String) -> RulePlan {
    let connections = plan.connections.len();
    let narrow = random.one_in(2);
    let some = |random: &mut Random| narrow && random.one_in(3);
    let n = random.index(connections);
    let services = if some(random) {
        let id = |n: usize| ServiceId(u16::try_from(n).unwrap_or(u16::MAX));
        vec![id(n), id(random.index(connections))]
    } else {
        vec![]
    };
    let near = |random: &mut Random, addr: IpAddr| {
        let whole = if addr.is_ipv4() { 32 } else { 128 };
        let len = random.pick(&[0, 1, 8, 16, 24, 31, 32, 64, 127, 128]);
        let len = len.min(whole);
        vec![Prefix { addr, len }]
    };
    let (client, server) = plan.caller_and_called(n);
    RulePlan {
        name,
        services,
        servers: if some(random) {
            near(random, server.ip())
        } else {
            vec![]
        },
        ports: if some(random) {
            let port = server.port();
            vec![1..=7, port.saturating_sub(1)..=port]
        } else {
            vec![]
        },
        clients: if some(random) {
            near(random, client.ip())
        } else {
            vec![]
        },
        mode: mode(random, plan.links.len()),
        hold: random.pick(&[0, 100_000, SECOND, SECOND, 5 * SECOND]),
        fail_back: random.pick(&[0, 0, SECOND / 2, 3 * SECOND, 10 * SECOND]),
        heeds_backup: !random.one_in(3),
    }
}

fn mode(random: &mut Random, links: usize) -> ModePlan {
    let order = |random: &mut Random| {
        let mut order: Vec<AccessId> = vec![];
        for place in 0..random.index(links + 1) + 1 {
            let access = AccessId(u8::try_from(place).unwrap_or(0));
            order.insert(random.index(order.len() + 1), access);
        }
        order
    };
    match random.below(8) {
        0 => ModePlan::ActiveStandby(order(random)),
        1 => ModePlan::SmallestDelay,
        2 => {
            let weights = order(random).into_iter();
            let weigh = |access| (access, random.pick(&[0, 1, 1, 30, 70, 100]));
            let weights = weights.map(weigh).collect();
            ModePlan::LoadBalancing(weights, thresholds(random))
        }
        3 => ModePlan::Automatic(thresholds(random)),
        4 => ModePlan::Priority(order(random), thresholds(random)),
        5 => ModePlan::Random,
        6 => ModePlan::Redundant(order(random), thresholds(random)),
        _ => ModePlan::RoundRobin,
    }
}

fn thresholds(random: &mut Random) -> Thresholds {
    let rtt = random.pick(&[None, Some(1), Some(10), Some(50), Some(200)]);
    Thresholds {
        rtt: rtt.map(Duration::from_millis),
        loss: random.pick(&[None, None, Some(1), Some(100), Some(1000)]),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Each mode, changes of rules, and none at all are drawn by some of the first seeds.
    #[test]
    fn everything_is_drawn() {
        let plans: Vec<Plan> = (0..1000).map(Plan::of).collect();
        let unsteered = plans.iter().filter(|plan| plan.stages.is_empty()).count();
        assert!((400..600).contains(&unsteered), "{unsteered}");
        let changed = plans.iter().filter(|plan| plan.stages.len() > 1).count();
        assert!(changed > 100, "{changed}");
        let stages = plans.iter().flat_map(|plan| &plan.stages);
        let modes = stages.flat_map(|stage| &stage.rules);
        let modes: BTreeSet<String> = modes
            .map(|rule| format!("{:?}", rule.mode))
            .map(|text| text.chars().take_while(|c| c.is_alphabetic()).collect())
            .collect();
        assert_eq!(modes.len(), 8, "{modes:?}");
    }
}

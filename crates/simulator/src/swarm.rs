//! What a seed stands for. Swarm testing: each run has some of the features and faults, so that those
//! that hide each other get runs of their own.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use flexcp_faults::{Fault, Faults};
use flexcp_invariants::Preamble;
use flexcp_testkit::Random;
use flexcp_translator::{Announce, Config, Limits, Mode, Prefix, Service, ServiceId, Timeouts};
use flexcp_wire::ChecksumState;

use crate::client::{Action, MptcpPlan, Scheduler};
use crate::explicit::{self, ExplicitPlan};
use crate::mirror::AnswerPlan;
use crate::stack::{App, Stack};
use crate::steering::{Stage, keep_busy};
use crate::tcp::Tuning;
use crate::told;
use crate::uplinks::UplinkChange;

pub(crate) const MILLI: u64 = 1000;
pub(crate) const SECOND: u64 = 1_000_000;
/// The first server's port.
pub(crate) const FIRST_PORT: u16 = 8000;

/// One direction of a link.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct PathPlan {
    /// While the faults last.
    pub(crate) faults: Vec<Fault>,
    /// After them: the delay alone.
    pub(crate) calm: Vec<Fault>,
    /// As text.
    pub(crate) text: String,
}

/// One connection.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct ConnectionPlan {
    /// When the client begins.
    pub(crate) starts: u64,
    /// The client.
    pub(crate) client: Stack,
    /// Its application.
    pub(crate) client_app: App,
    /// Its MPTCP.
    pub(crate) mptcp: MptcpPlan,
    /// The server.
    pub(crate) server: Stack,
    /// Its application.
    pub(crate) server_app: App,
    /// IPv6 instead of IPv4.
    pub v6: bool,
    /// Numbers of the SYNs.
    pub(crate) isns: (u32, u32),
    /// The client's data numbers are about to wrap.
    pub(crate) wraps: bool,
    /// Somebody ends it early.
    pub(crate) aborts: bool,
    /// The client names its server.
    pub(crate) explicit: Option<ExplicitPlan>,
    /// The server wants to be told of the client.
    pub(crate) told: bool,
    /// FlexCP is a box: the server opens, and the client answers.
    pub(crate) answers: Option<AnswerPlan>,
    /// The box's aggregation servers for it, in their order.
    pub(crate) errands: Vec<AnswerPlan>,
    /// The box leaves it alone.
    pub(crate) excepted: bool,
}

/// Everything about a run.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Plan {
    /// Where it comes from.
    pub(crate) seed: u64,
    /// Client to proxy and back, for each link.
    pub(crate) links: Vec<(PathPlan, PathPlan)>,
    /// Proxy to server and back.
    pub(crate) server: (PathPlan, PathPlan),
    /// Connections.
    pub(crate) connections: Vec<ConnectionPlan>,
    /// When the faults end, and when the last change of the client's comes.
    pub(crate) calm: u64,
    /// Clients address the proxy.
    pub(crate) reverse: bool,
    /// Trains of packets come in as one.
    pub(crate) joins_trains: bool,
    /// What the carrier knows of checksums.
    pub(crate) checksums: ChecksumState,
    /// Addresses that the proxy announces.
    pub(crate) announces: bool,
    /// Small tables.
    pub(crate) small_limits: bool,
    /// How long the carrier keeps packets to send them together, in microseconds; 0: it does not.
    pub(crate) keeps: u64,
    /// How connections are steered, from the beginning on and from later times on; nothing: they are not.
    pub(crate) stages: Vec<Stage>,
    /// When a box loses uplinks, and gets them back.
    pub(crate) uplinks: Vec<UplinkChange>,
    /// Links whose uplink it has lost, a bit each.
    pub(crate) lost: u32,
}

impl Plan {
    /// The plan of a seed.
    #[must_use]
    pub(crate) fn of(seed: u64) -> Self {
        let plan = Self::unsteered(seed);
        let stages = Stage::of(&plan);
        let mut plan = Self { stages, ..plan };
        keep_busy(&mut plan);
        explicit::draw(&mut plan);
        told::draw(&mut plan);
        plan
    }

    /// The same without what steers its connections. That is drawn apart, so that the rest is what it was before there was any.
    #[must_use]
    pub(crate) fn unsteered(seed: u64) -> Self {
        let mut random = Random::for_purpose(seed, 10);
        let random = &mut random;
        let link_count = random.pick(&[1, 2, 2, 2, 3, 3, 4]);
        let faulty = !random.one_in(6);
        let corrupts = faulty && random.one_in(10);
        let calm = random.pick(&[2, 5, 10, 20]) * SECOND;
        let style = Style::of(random, faulty, corrupts);
        let links = (0..link_count)
            .map(|_| {
                let delay = style.delay(random);
                (style.path(random, delay), style.path(random, delay))
            })
            .collect();
        let server_style = Style {
            faulty: faulty && random.one_in(2),
            ..Style::of(random, faulty, corrupts)
        };
        let delay = server_style.delay(random);
        let server = (
            server_style.path(random, delay),
            server_style.path(random, delay),
        );
        let count = random.pick(&[1, 1, 1, 2, 3, 4]);
        let mut connections: Vec<ConnectionPlan> = (0..count)
            .map(|_| connection(random, link_count, calm))
            .collect();
        drop_after_ack(seed, &mut connections);
        renege(seed, calm, &mut connections);
        let partial = random.pick(&[
            ChecksumState::Partial,
            ChecksumState::Partial,
            ChecksumState::Verified,
            ChecksumState::Complete,
        ]);
        Self {
            seed,
            links,
            server,
            connections,
            calm,
            reverse: random.one_in(3),
            joins_trains: random.one_in(2),
            // What is cut gets full sums.
            checksums: if corrupts || style.resegment || server_style.resegment {
                ChecksumState::Complete
            } else {
                partial
            },
            announces: random.one_in(4),
            small_limits: random.one_in(12),
            keeps: keeps(seed),
            stages: vec![],
            uplinks: vec![],
            lost: 0,
        }
    }

    /// The translator's configuration in one of its stages.
    #[must_use]
    pub(crate) fn config(&self, stage: usize) -> Config {
        let services = (0..self.connections.len()).map(|n| self.service(n));
        let limits = if self.small_limits {
            Limits {
                subflows: 3,
                half_open_joins: 1,
                mappings: 256,
                ..Limits::default()
            }
        } else {
            Limits::default()
        };
        let config = Config {
            services: services.collect(),
            limits,
            // Longer than a client waits before it sends again what it has not seen acknowledged.
            timeouts: Timeouts {
                linger: Duration::from_secs(100),
                ..Timeouts::default()
            },
            ..Config::default()
        };
        let stage = self.stages.get(stage);
        match stage {
            Some(stage) => stage.configure(config),
            None => config,
        }
    }

    /// Where clients name their server, and how.
    pub(crate) fn preambles(&self) -> impl Iterator<Item = (SocketAddr, Preamble)> {
        let all = self.connections.iter().enumerate();
        all.filter_map(|(n, connection)| {
            let explicit = connection.explicit.as_ref()?;
            Some((self.remote(n), explicit.preamble()))
        })
    }

    /// Services whose clients name their servers.
    pub(crate) fn explicit_services(&self) -> BTreeSet<ServiceId> {
        let named = |n: &usize| self.connections[*n].explicit.is_some();
        let explicit = (0..self.connections.len()).filter(named);
        explicit.map(|n| ServiceId(n as u16)).collect()
    }

    fn service(&self, n: usize) -> Service {
        let server = self.server_address(n);
        let mode = if self.connections[n].answers.is_some() {
            self.box_mode(n)
        } else if let Some(explicit) = &self.connections[n].explicit {
            explicit.mode(self.remote(n), server)
        } else if self.reverse {
            let source = from_proxy(server.is_ipv6());
            Mode::Reverse {
                listen: vec![self.remote(n)],
                backends: vec![server],
                source: vec![source],
                source_ports: 20_000..=29_999,
            }
        } else {
            Mode::Transparent {
                destinations: vec![Prefix {
                    addr: server.ip(),
                    len: if server.is_ipv4() { 32 } else { 128 },
                }],
                ports: vec![server.port()..=server.port()],
                end_to_end: false,
            }
        };
        let announce = Announce {
            addr: announced(self.connections[n].v6),
            port: None,
        };
        Service {
            id: ServiceId(u16::try_from(n).unwrap_or(u16::MAX)),
            name: format!("s{n}"),
            mode,
            announce: if self.announces {
                vec![announce]
            } else {
                vec![]
            },
            intake: flexcp_translator::Intake {
                proxy_header: self.connections[n].told,
                ..flexcp_translator::Intake::default()
            },
        }
    }

    /// Whom the n-th client connects to.
    #[must_use]
    pub(crate) fn remote(&self, n: usize) -> SocketAddr {
        if self.connections[n].answers.is_some() {
            return self.answering(n);
        }
        if !self.reverse && self.connections[n].explicit.is_none() {
            return self.server_address(n);
        }
        let ip = if self.connections[n].v6 {
            v6(250, 1)
        } else {
            IpAddr::V4(Ipv4Addr::new(10, 250, 0, 1))
        };
        SocketAddr::new(ip, FIRST_PORT + n as u16)
    }

    /// The n-th server.
    #[must_use]
    pub(crate) fn server_address(&self, n: usize) -> SocketAddr {
        let connection = &self.connections[n];
        let explicit = connection.explicit.as_ref();
        let crosses = explicit.is_some_and(|explicit| explicit.crosses);
        let ip = if connection.v6 != crosses {
            v6(200, 1)
        } else {
            IpAddr::V4(Ipv4Addr::new(10, 200, 0, 1))
        };
        SocketAddr::new(ip, FIRST_PORT + n as u16)
    }

    /// The n-th client on a link.
    #[must_use]
    pub(crate) fn client_address(&self, n: usize, link: usize) -> SocketAddr {
        let (net, host) = (link as u8 + 1, n as u8 + 1);
        let ip = if self.connections[n].v6 {
            v6(net, host)
        } else {
            IpAddr::V4(Ipv4Addr::new(10, net, 0, host))
        };
        SocketAddr::new(ip, 10_000 + n as u16 * 1000)
    }
}

/// The address of the proxy that it announces to clients of a family.
pub(crate) fn announced(of_v6: bool) -> IpAddr {
    if of_v6 {
        v6(250, 9)
    } else {
        IpAddr::V4(Ipv4Addr::new(10, 250, 0, 9))
    }
}

/// The address that the proxy connects from.
pub(crate) fn from_proxy(to_v6: bool) -> IpAddr {
    if to_v6 {
        v6(250, 2)
    } else {
        IpAddr::V4(Ipv4Addr::new(10, 250, 0, 2))
    }
}

/// Where the clients of a link lie, by both families.
pub(crate) fn link_prefixes(link: usize) -> [Prefix; 2] {
    let net = link as u8 + 1;
    let v4 = IpAddr::V4(Ipv4Addr::new(10, net, 0, 0));
    [(v4, 16), (v6(net, 0), 32)].map(|(addr, len)| Prefix { addr, len })
}

pub(crate) fn v6(net: u8, host: u8) -> IpAddr {
    IpAddr::V6(Ipv6Addr::new(
        0xfd00,
        net.into(),
        0,
        0,
        0,
        0,
        0,
        host.into(),
    ))
}

/// What kind of faults a side has in this run.
#[derive(Clone, Copy, Debug)]
struct Style {
    faulty: bool,
    loss: bool,
    burst: bool,
    jitter: bool,
    reorder: bool,
    duplicate: bool,
    corrupt: bool,
    dark: bool,
    flap: bool,
    rate: bool,
    resegment: bool,
    /// Milliseconds.
    delay: u64,
}

impl Style {
    fn of(random: &mut Random, faulty: bool, corrupt: bool) -> Self {
        Self {
            faulty,
            loss: random.one_in(2),
            burst: random.one_in(5),
            jitter: random.one_in(3),
            reorder: random.one_in(4),
            duplicate: random.one_in(4),
            corrupt,
            dark: random.one_in(4),
            flap: random.one_in(8),
            rate: random.one_in(4),
            resegment: random.one_in(12),
            delay: random.pick(&[0, 1, 5, 20, 50, 100]),
        }
    }

    fn delay(&self, random: &mut Random) -> u64 {
        random.below(self.delay * MILLI + 1) + 10
    }

    /// One direction.
    fn path(&self, random: &mut Random, delay: u64) -> PathPlan {
        let calm = format!("delay={delay}us");
        let mut parts = vec![calm.clone()];
        if self.faulty && !random.one_in(3) {
            self.add_faults(random, &mut parts);
        }
        let text = parts.join(",");
        let parse = |text: &str| text.parse::<Faults>().expect("a list of faults").0;
        PathPlan {
            faults: parse(&text),
            calm: parse(&calm),
            text,
        }
    }

    fn add_faults(&self, random: &mut Random, parts: &mut Vec<String>) {
        if self.loss {
            let percent = random.pick(&["0.1", "0.5", "1", "2", "5", "10"]);
            parts.push(format!("loss={percent}%"));
        }
        if self.burst {
            parts.push(format!("burst=0.5%:{}%", random.pick(&[10, 25, 50])));
        }
        if self.jitter {
            let reorder = random.pick(&["", ":reorder"]);
            parts.push(format!("jitter={}us{reorder}", random.between(1, 30_000)));
        }
        if self.reorder {
            parts.push(format!(
                "reorder={}%:{}us",
                random.between(1, 10),
                random.between(10, 20_000)
            ));
        }
        if self.duplicate {
            parts.push(format!("duplicate={}%", random.pick(&[1, 5])));
        }
        if self.corrupt {
            parts.push("corrupt=0.5%".into());
        }
        if self.dark && random.one_in(2) {
            let from = random.below(5000);
            let len = random.pick(&[100, 500, 2000, 6000]);
            parts.push(format!("blackhole={from}ms..{}ms", from + len));
        }
        if self.flap && random.one_in(2) {
            let period = random.between(300, 3000);
            parts.push(format!("flap={period}ms:{}ms", period / 3));
        }
        if self.rate {
            let rate = random.pick(&["1mbit:20kb", "5mbit:30kb", "20mbit:100kb"]);
            parts.push(format!("rate={rate}"));
        }
        if self.resegment {
            parts.push(format!("resegment={}:20%", random.between(100, 700)));
        }
    }
}

fn connection(random: &mut Random, links: u64, calm: u64) -> ConnectionPlan {
    let aborts = random.one_in(10);
    let sizes = [0, 1, 500, 5000, 30_000, 100_000, 300_000];
    let (mut down, mut up) = (random.pick(&sizes), random.pick(&sizes));
    down += random.below(down + 1);
    up += random.below(up + 1);
    if random.one_in(20) {
        down *= 8;
    }
    let closes_last = random.one_in(2);
    let server_last = !closes_last && random.one_in(2);
    let client_app = app(random, up, down, closes_last);
    let mut server_app = app(random, down, up, server_last);
    let abort = random.below(calm);
    if aborts && random.one_in(2) {
        server_app.aborts_at = Some(abort);
    }
    let aborts_up = aborts && server_app.aborts_at.is_none();
    let timestamps = random.below(4);
    let client = stack(random, timestamps != 0);
    let server = stack(random, timestamps != 1);
    let mptcp = mptcp(random, links, calm, aborts_up.then_some(abort));
    ConnectionPlan {
        starts: random.below(200) * MILLI,
        client,
        client_app,
        mptcp,
        server,
        server_app,
        v6: random.one_in(4),
        isns: (initial_number(random), initial_number(random)),
        wraps: random.one_in(4),
        aborts,
        explicit: None,
        told: false,
        answers: None,
        errands: vec![],
        excepted: false,
    }
}

/// Some clients drop data that the subflow has acknowledged (RFC 8684 section 3.3.2).
fn drop_after_ack(seed: u64, connections: &mut [ConnectionPlan]) {
    let mut random = Random::for_purpose(seed, 11);
    if random.one_in(16) {
        for connection in connections {
            connection.mptcp.drops = random.pick(&[0, 1000, 10_000]);
        }
    }
}

/// Some servers throw away what they have SACKed, and some clients then are slow to send it anew.
fn renege(seed: u64, calm: u64, connections: &mut [ConnectionPlan]) {
    let mut random = Random::for_purpose(seed, 12);
    if random.one_in(8) {
        for connection in connections {
            connection.server.reneges = random.pick(&[1000, 30_000, 300_000]);
            connection.server.reneges_until = calm;
            // In pieces of a few bytes, one at a time, that takes for ever.
            let long = connection.mptcp.mapping >= 5000;
            connection.mptcp.repeats_on_idle = random.one_in(2) && long;
        }
    }
}

/// Often just before the wrap.
pub(crate) fn initial_number(random: &mut Random) -> u32 {
    if random.one_in(2) {
        u32::MAX - random.word() % 200_000
    } else {
        random.word()
    }
}

fn app(random: &mut Random, writes: u64, reads: u64, closes_last: bool) -> App {
    let slow = random.one_in(5);
    App {
        writes,
        reads,
        rate: if slow { reads / 4000 + 20 } else { 0 },
        reads_from: if random.one_in(8) {
            random.below(3 * SECOND)
        } else {
            0
        },
        writes_from: if random.one_in(4) {
            random.below(2 * SECOND)
        } else {
            0
        },
        closes_last,
        aborts_at: None,
    }
}

fn stack(random: &mut Random, timestamps: bool) -> Stack {
    let scales = !random.one_in(6);
    let scale = random.pick(&[0, 1, 2, 7, 7, 10, 14]);
    let buffer = if scales {
        random.pick(&[20_000, 65_000, 200_000, 1_000_000])
    } else {
        random.pick(&[4000, 20_000, 65_000])
    };
    let mss = random.pick(&[
        Some(1460),
        Some(1460),
        Some(1400),
        Some(536),
        Some(200),
        Some(8960),
        None,
    ]);
    Stack {
        mss,
        window_scale: scales.then_some(scale),
        sack: !random.one_in(6),
        timestamps: timestamps.then(|| clock(random)),
        // A window that its scale rounds to nothing never opens.
        buffer: buffer.max(4 << if scales { scale } else { 0 }),
        ack_delay: random.pick(&[1, 10, 40, 200]) * MILLI,
        ack_every: random.pick(&[1, 2, 2, 4]),
        reports_duplicates: random.one_in(2),
        reneges: 0,
        reneges_until: 0,
        keepalive: random.one_in(6).then(|| random.between(1, 10) * SECOND),
        tuning: Tuning {
            initial_window: random.pick(&[2, 4, 10]),
            min_timeout: random.pick(&[200, 200, 1000]) * MILLI,
            max_timeout: random.pick(&[4, 8]) * SECOND,
            tail_probe: random.one_in(2),
            forgets_sack: random.one_in(4),
            probes_with_data: random.one_in(2),
            max_window: random.pick(&[20, 64, 256]),
        },
    }
}

/// Sometimes just before the wrap, or before the sign changes.
fn clock(random: &mut Random) -> u32 {
    match random.below(4) {
        0 => u32::MAX - random.word() % 5000,
        1 => (1 << 31) - random.word() % 5000,
        _ => random.word(),
    }
}

fn mptcp(random: &mut Random, links: u64, calm: u64, abort: Option<u64>) -> MptcpPlan {
    let enabled = !random.one_in(12);
    let joins = random.below(links + 1);
    let mut actions: Vec<(u64, Action)> = (0..joins)
        .map(|n| {
            let link = ((n + 1) % links) as usize;
            let at = random.pick(&[1, 50, 500, 3000]) * MILLI;
            let backup = random.one_in(6);
            (random.below(at), Action::Join { link, backup })
        })
        .collect();
    if random.one_in(3) {
        for _ in 0..random.below(8) {
            let action = action(random, links);
            actions.push((random.below(calm), action));
        }
    }
    if let Some(at) = abort {
        let by_reset = random.one_in(2);
        actions.push((at, Action::FastClose { by_reset }));
    }
    actions.sort_by_key(|(at, _)| *at);
    MptcpPlan {
        enabled,
        actions,
        mapping: random.pick(&[50, 500, 1300, 5000, 20_000, 60_000]),
        long_numbers: random.pick(&[0, 500_000, 1_000_000]),
        long_acks: random.pick(&[0, 500_000, 1_000_000]),
        repeats_mapping: !random.one_in(4),
        fin_with_data: random.one_in(2),
        drops: 0,
        repeats_on_idle: false,
        redundant: random.pick(&[0, 0, 0, 20_000, 1_000_000]),
        scheduler: random.pick(&[Scheduler::RoundRobin, Scheduler::First, Scheduler::Random]),
        rejoin: random.below(2 * SECOND),
    }
}

fn action(random: &mut Random, links: u64) -> Action {
    let n = random.below(4) as usize;
    match random.below(7) {
        0 | 1 => Action::Join {
            link: random.below(links) as usize,
            backup: random.one_in(4),
        },
        2 => Action::Reset(n),
        3 => Action::Close(n),
        4 => Action::Prio(n, random.one_in(2)),
        5 => Action::RemoveAddr(n),
        _ => Action::AddAddr,
    }
}

/// Drawn apart, so that the rest of a seed's plan is what it was before carriers kept packets.
fn keeps(seed: u64) -> u64 {
    let mut random = Random::for_purpose(seed, 13);
    if random.one_in(3) {
        random.pick(&[50, 500, 5_000])
    } else {
        0
    }
}

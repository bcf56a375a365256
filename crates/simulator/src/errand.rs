//! Aggregation servers in runs in mirror: what a box tells them before its client's stream, and what comes of that.
//!
//! Drawn apart from the rest of a seed, so that other seeds are what they were before there was any of this.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use flexcp_invariants::{Checker, Preamble};
use flexcp_testkit::Random;
use flexcp_translator::{AggregationServers, Approach, Excepted, PlainSyn, Prefix, Protocol, User};

use crate::explicit::{Gate, mapped};
use crate::mirror::{AnswerPlan, BEHIND};
use crate::swarm::{MILLI, Plan, v6};
use crate::world::World;

/// What one aggregation server does about what it is told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ErrandPlan {
    pub(crate) protocol: Protocol,
    /// The box says who it is (SOCKS5).
    says_user: bool,
    /// It takes what the SYN carries (Convert).
    pub(crate) takes_syn: bool,
    /// It takes that only once it has connected on, as the box knows.
    pub(crate) early: bool,
    pub(crate) reply: Reply,
    /// Its answer has a second part (Convert: another TLV; SOCKS5: an address of the other family).
    long: bool,
    /// Without MPTCP it answers with its SYN/ACK, if it has taken what the SYN carried.
    pub(crate) with_syn_ack: bool,
    /// It takes so long to connect on, in microseconds.
    connects: u64,
    /// Where it pauses within its answer, and for how long.
    pieces: Vec<(u64, u64)>,
    /// The stream does not come in a packet with the answer, but so much later.
    behind: Option<u64>,
}

/// What becomes of the errand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reply {
    /// It connects on.
    Grants,
    /// The server has refused.
    Refused,
    /// The server can't be reached.
    Unreachable,
    /// Nobody may connect there.
    NotAllowed,
    /// It has no room.
    NoRoom,
    /// It ends without a word.
    Leaves,
}

/// What is said, and what is answered to it.
#[derive(Clone, Debug)]
pub(crate) struct Talk {
    /// All that the box says before the stream.
    pub(crate) told: Vec<u8>,
    /// The answer.
    pub(crate) says: Vec<u8>,
    /// Where it waits before it goes on.
    pub(crate) gates: Vec<Gate>,
}

/// What has come of errands, in connections, but for probes and withdrawals.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Errands {
    /// Aggregation servers that have connected on, asked by Convert, and by SOCKS5.
    pub granted: [u64; 2],
    /// Those of them whose SYN/ACK has said so before.
    pub early: u64,
    /// Those whose answer then did not come.
    pub retracted: u64,
    /// Servers that are not there, as aggregation servers have said.
    pub refused: u64,
    /// Aggregation servers that would not connect on.
    pub declined: u64,
    /// Connections that another of them was asked for.
    pub skipped: u64,
    /// Servers that were asked themselves.
    pub bypassed: u64,
    /// Those that passed as they were, as their servers are left alone.
    pub excepted: u64,
    /// SYNs that asked whether an aggregation server answers again.
    pub probes: u64,
    /// `REMOVE_ADDR` for uplinks that were lost.
    pub withdrawals: u64,
}

impl Errands {
    /// What has come of them in a run.
    pub(crate) fn of(world: &World) -> Self {
        let counters = world.proxy.translator.counters();
        Self {
            granted: [Protocol::Convert, Protocol::Socks5].map(|by| world.connected_on(by)),
            early: counters.server_early,
            retracted: counters.server_retracted,
            refused: counters.server_refused,
            declined: counters.server_declined,
            skipped: counters.server_skipped,
            bypassed: counters.server_bypassed,
            excepted: counters.causes.get(PlainSyn::Excepted),
            probes: counters.backend_probes_tx,
            withdrawals: counters.rm_addr_tx,
        }
    }
}

impl std::ops::AddAssign for Errands {
    fn add_assign(&mut self, other: Self) {
        for (sum, more) in self.granted.iter_mut().zip(other.granted) {
            *sum += more;
        }
        self.early += other.early;
        self.retracted += other.retracted;
        self.refused += other.refused;
        self.declined += other.declined;
        self.skipped += other.skipped;
        self.bypassed += other.bypassed;
        self.excepted += other.excepted;
        self.probes += other.probes;
        self.withdrawals += other.withdrawals;
    }
}

impl ErrandPlan {
    fn draw(random: &mut Random) -> Self {
        let protocol = random.pick(&[Protocol::Convert, Protocol::Socks5]);
        let pieces = if random.one_in(3) {
            let pause = random.pick(&[0, 1, 100, 400]) * MILLI;
            let mut at: Vec<u64> = (0..random.between(1, 4))
                .map(|_| random.between(1, 12))
                .collect();
            at.sort_unstable();
            at.dedup();
            let paused = |at| (at, random.below(pause + 1));
            at.into_iter().map(paused).collect()
        } else {
            vec![]
        };
        use Reply::{Grants, Leaves, NoRoom, NotAllowed, Refused, Unreachable};
        let others = [Refused, Unreachable, NotAllowed, NotAllowed, NoRoom, Leaves];
        Self {
            protocol,
            says_user: protocol == Protocol::Socks5 && random.one_in(3),
            takes_syn: !random.one_in(4),
            early: false,
            reply: if random.one_in(3) {
                random.pick(&others)
            } else {
                Grants
            },
            long: random.one_in(3),
            with_syn_ack: random.one_in(2),
            connects: random.pick(&[0, 0, 1, 50, 500, 3000]) * MILLI,
            pieces,
            behind: random.one_in(2).then(|| random.pick(&[0, 1, 100]) * MILLI),
        }
    }

    /// A converter that takes a message with the SYN only once it has connected on.
    fn draw_early(&mut self, random: &mut Random) {
        if self.protocol == Protocol::Convert && random.one_in(3) {
            self.early = true;
            self.takes_syn &= self.grants();
            self.long &= !self.takes_syn;
        }
    }

    /// Who connects on.
    pub(crate) fn grants(&self) -> bool {
        self.reply == Reply::Grants
    }

    /// Whether it says that the server is not there.
    pub(crate) const fn refuses(&self) -> bool {
        matches!(self.reply, Reply::Refused | Reply::Unreachable)
    }

    /// Whether it may come to the same as one that says that the server is not there.
    pub(crate) const fn may_refuse(&self) -> bool {
        self.refuses() || (self.early && self.takes_syn)
    }

    /// What it is to the checker.
    pub(crate) const fn preamble(&self) -> Preamble {
        match self.protocol {
            Protocol::Convert if self.early => Preamble::Early,
            Protocol::Convert => Preamble::Convert,
            Protocol::Socks5 => Preamble::Socks5,
        }
    }

    /// What is said for a connection with `server`, and the stream behind the answer, which has begun at `from` at the earliest.
    pub(crate) fn talk(&self, server: SocketAddr, from: u64) -> Talk {
        let told = match self.protocol {
            Protocol::Convert => convert(server),
            Protocol::Socks5 => socks(server, self.says_user),
        };
        let says = match (self.reply, self.protocol) {
            (Reply::Leaves, _) => vec![],
            (_, Protocol::Convert) => self.convert_answer(),
            (_, Protocol::Socks5) => self.socks_answer(),
        };
        let len = says.len() as u64;
        let mut gates = vec![Gate {
            at: 0,
            heard: told.len() as u64,
            pause: self.connects,
        }];
        let pieces = self.pieces.iter().filter(|(at, _)| *at < len);
        gates.extend(pieces.map(|&(at, pause)| Gate {
            at,
            heard: 0,
            pause,
        }));
        let behind = self.behind.or_else(|| (from > 0).then_some(0));
        gates.extend(behind.map(|pause| Gate {
            at: len,
            heard: 0,
            pause,
        }));
        Talk { told, says, gates }
    }

    /// RFC 8803 section 6: one message, with an error or without.
    fn convert_answer(&self) -> Vec<u8> {
        let tlv: &[u8] = match self.reply {
            // The server's options: SACK permitted.
            Reply::Grants if self.long => &[20, 2, 0, 0, 4, 2, 0, 0],
            Reply::Grants | Reply::Leaves => &[],
            Reply::NotAllowed => &[30, 1, 32, 0],
            Reply::NoRoom => &[30, 1, 64, 9],
            Reply::Refused => &[30, 1, 96, 0],
            Reply::Unreachable => &[30, 1, 97, 1],
        };
        let mut message = vec![1, 1 + tlv.len() as u8 / 4, 0x22, 0x63];
        message.extend(tlv);
        message
    }

    /// RFC 1928 section 6.
    fn socks_answer(&self) -> Vec<u8> {
        let mut answer = if self.says_user {
            vec![5, 2, 1, 0]
        } else {
            vec![5, 0]
        };
        let code = match self.reply {
            Reply::Grants | Reply::Leaves => 0,
            Reply::NoRoom => 1,
            Reply::NotAllowed => 2,
            Reply::Unreachable => 4,
            Reply::Refused => 5,
        };
        answer.extend([5, code, 0]);
        if self.long {
            answer.push(4);
            answer.extend([0xfd; 16]);
        } else {
            answer.extend([1, 10, 0, 0, 1]);
        }
        answer.extend([0x12, 0x34]);
        answer
    }
}

impl Plan {
    /// Draws who goes by aggregation servers, and whose connections pass as they are: nobody in half of the seeds.
    pub(crate) fn draw_errands(&mut self) {
        let mut random = Random::for_purpose(self.seed, 21);
        let random = &mut random;
        if random.one_in(2) {
            return;
        }
        for connection in &mut self.connections {
            connection.excepted = random.one_in(10);
            let count = random.pick(&[0, 1, 1, 1, 2, 2, 3]);
            for _ in 0..count {
                let answers = AnswerPlan::draw(random, self.calm);
                connection.errands.push(AnswerPlan {
                    errand: Some(ErrandPlan::draw(random)),
                    ..answers
                });
            }
            if count > 0 {
                // Neither does who takes no joins get again what it has ACKed and dropped, nor who is told of a server.
                connection.mptcp.drops = 0;
            }
        }
        let mut random = Random::for_purpose(self.seed, 23);
        let all = self.connections.iter_mut();
        let errands = all.flat_map(|connection| &mut connection.errands);
        for errand in errands.filter_map(|answers| answers.errand.as_mut()) {
            errand.draw_early(&mut random);
        }
    }

    /// The aggregation servers of the n-th connection.
    pub(crate) fn aggregation_servers(&self, n: usize) -> AggregationServers {
        let mut servers = AggregationServers::default();
        for (addr, errand) in self.errands_of(n) {
            let user = errand.says_user.then(|| User {
                name: USER.into(),
                password: PASSWORD.into(),
            });
            let approach = Approach {
                protocol: errand.protocol,
                user,
                early: errand.early,
            };
            servers.push(addr, approach);
        }
        servers
    }

    /// Tells the checker whom the box asks, and whom it leaves alone.
    pub(crate) fn tell_of_errands(&self, checker: &mut Checker) {
        for n in 0..self.connections.len() {
            let servers = self.errands_of(n);
            checker.expect_errands(servers.map(|(addr, errand)| (addr, errand.preamble())));
            if self.connections[n].excepted {
                checker.expect_to_pass(self.answering(n));
            }
        }
    }

    /// Where they are, and what they do.
    pub(crate) fn errands_of(&self, n: usize) -> impl Iterator<Item = (SocketAddr, &ErrandPlan)> {
        let all = self.connections[n].errands.iter().enumerate();
        all.filter_map(move |(place, answers)| {
            let errand = answers.errand.as_ref()?;
            Some((self.aggregation_server(n, place), errand))
        })
    }

    /// Whether an aggregation server says of a server that it is not there.
    pub(crate) fn refuses(&self) -> bool {
        let mut all = (0..self.connections.len()).flat_map(|n| self.errands_of(n));
        all.any(|(_, errand)| errand.refuses())
    }

    /// The one at this place.
    pub(crate) fn aggregation_server(&self, n: usize, place: usize) -> SocketAddr {
        let (host, place) = (n as u8 + 1, place as u8 + 1);
        let host = host + place * HOSTS;
        let ip = if self.connections[n].v6 {
            v6(BEHIND, host)
        } else {
            IpAddr::V4(Ipv4Addr::new(10, BEHIND, 0, host))
        };
        SocketAddr::new(ip, 10_000 + n as u16 * 1000 + u16::from(place) * PORTS)
    }

    /// The servers that the n-th connection's service leaves alone: its own, if it is one of those, and others that nobody asks for.
    pub(crate) fn excepted_servers(&self, n: usize) -> Vec<Excepted> {
        let server = self.answering(n);
        let only = |addr: IpAddr| Prefix {
            addr,
            len: if addr.is_ipv4() { 32 } else { 128 },
        };
        let other = Excepted {
            servers: only(server.ip()),
            ports: vec![1..=server.port() - 1],
        };
        let own = Excepted {
            servers: only(server.ip()),
            ports: vec![server.port() - 1..=server.port()],
        };
        if self.connections[n].excepted {
            vec![other, own]
        } else if self.connections[n].errands.is_empty() {
            vec![]
        } else {
            vec![other]
        }
    }
}

/// The place of an end that answers among those of its connection: 0 is the server itself, the others connect on to it.
pub(crate) fn place_of(port: u16) -> usize {
    usize::from(port % 1000 / PORTS)
}

/// By which end the bytes of a connection are known, whoever connects on to that.
pub(crate) fn stream_of(end: SocketAddr) -> SocketAddr {
    let port = end.port() - end.port() % 1000;
    let ip = match end.ip() {
        IpAddr::V4(ip) if ip.octets()[1] == BEHIND => {
            let [a, b, c, host] = ip.octets();
            IpAddr::V4(Ipv4Addr::new(a, b, c, host % HOSTS))
        }
        IpAddr::V6(ip) if ip.segments()[1] == u16::from(BEHIND) => {
            v6(BEHIND, (ip.segments()[7] % u16::from(HOSTS)) as u8)
        }
        other => other,
    };
    SocketAddr::new(ip, port)
}

/// Hosts and ports between those of an end that answers, and those of whoever connects on to it.
const HOSTS: u8 = 16;
const PORTS: u16 = 100;

const USER: &[u8] = b"box";
const PASSWORD: &[u8] = b"of its own";

/// RFC 8803 section 6.2.2: the server's port, and its address as IPv6.
fn convert(server: SocketAddr) -> Vec<u8> {
    let mut message = vec![1, 6, 0x22, 0x63, 10, 5];
    message.extend(server.port().to_be_bytes());
    message.extend(mapped(server.ip()).octets());
    message
}

/// RFC 1928 and RFC 1929, in one flight.
fn socks(server: SocketAddr, says_user: bool) -> Vec<u8> {
    let mut flight = vec![5, 1, 0];
    if says_user {
        flight = vec![5, 1, 2, 1, USER.len() as u8];
        flight.extend(USER);
        flight.push(PASSWORD.len() as u8);
        flight.extend(PASSWORD);
    }
    flight.extend([5, 1, 0]);
    match server.ip() {
        IpAddr::V4(ip) => {
            flight.push(1);
            flight.extend(ip.octets());
        }
        IpAddr::V6(ip) => {
            flight.push(4);
            flight.extend(ip.octets());
        }
    }
    flight.extend(server.port().to_be_bytes());
    flight
}

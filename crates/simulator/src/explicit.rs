//! Clients that name their server: what they say before their stream, in which pieces, and what is to come of it.
//!
//! Drawn apart from the rest of a seed, so that other seeds are what they were before there was any of this.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use flexcp_invariants::Preamble;
use flexcp_testkit::Random;
use flexcp_translator::{Allowed, Lookup, Mode, Prefix, Protocol, StableId, User};

use crate::swarm::{MILLI, Plan, SECOND, from_proxy};

/// A client's preamble.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct ExplicitPlan {
    pub(crate) protocol: Protocol,
    /// It asks which TCP extensions are converted (Convert).
    informs: bool,
    /// It asks for the server's TCP options (Convert).
    asks_options: bool,
    /// It says who it is (SOCKS5).
    says_user: bool,
    /// It names its server by a name (SOCKS5), which is resolved after so long.
    pub(crate) lookup: Option<u64>,
    /// Under this name another address stands first, where nobody listens.
    pub(crate) detour: bool,
    /// So many bytes of what it says stand in its SYN, the first of its stream among them.
    pub(crate) in_syn: u64,
    /// It does not wait for answers.
    hasty: bool,
    /// Where it pauses within the preamble, and for how long.
    pieces: Vec<(u64, u64)>,
    pub(crate) fate: Fate,
    /// The server has an address of the other family.
    pub(crate) crosses: bool,
}

/// What is to come of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    Granted,
    /// The server refuses.
    Refused,
    /// The server never answers.
    Silent,
    /// The configuration does not allow the server.
    NotAllowed,
    /// Nobody knows the name.
    NoName,
    /// The password is wrong.
    WrongPassword,
}

/// A point that the client does not go beyond before something has happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Gate {
    /// Bytes of the preamble.
    pub(crate) at: u64,
    /// So many bytes have been answered; `u64::MAX`: it is connected.
    pub(crate) heard: u64,
    /// Then it pauses, in microseconds.
    pub(crate) pause: u64,
}

/// What a client says, and is answered.
#[derive(Clone, Debug)]
pub(crate) struct Speech {
    pub(crate) protocol: Protocol,
    pub(crate) says_user: bool,
    pub(crate) says: Vec<u8>,
    pub(crate) gates: Vec<Gate>,
    pub(crate) in_syn: u64,
    pub(crate) fate: Fate,
    /// Where FlexCP connects from.
    pub(crate) source: IpAddr,
}

impl ExplicitPlan {
    fn draw(random: &mut Random) -> Self {
        let protocol = random.pick(&[Protocol::Convert, Protocol::Convert, Protocol::Socks5]);
        let socks = protocol == Protocol::Socks5;
        let lookup = (socks && random.one_in(2)).then(|| random.pick(&[0, 1, 50, 2000]) * MILLI);
        let says_user = socks && random.one_in(2);
        let pieces = if random.one_in(2) {
            let pause = random.pick(&[0, 1, 100, 400]) * MILLI;
            let count = random.between(1, 6);
            let mut at: Vec<u64> = (0..count).map(|_| random.between(1, 40)).collect();
            at.sort_unstable();
            at.dedup();
            at.into_iter()
                .map(|at| (at, random.below(pause + 1)))
                .collect()
        } else {
            vec![]
        };
        let fate = match random.below(20) {
            0 => Fate::Refused,
            1 => Fate::Silent,
            2 => Fate::NotAllowed,
            3 if lookup.is_some() => Fate::NoName,
            4 if says_user => Fate::WrongPassword,
            _ => Fate::Granted,
        };
        // Who has named it in the SYN is not answered at all: its own SYN is given up some time.
        let late = fate == Fate::Silent;
        Self {
            protocol,
            informs: random.one_in(4),
            asks_options: random.one_in(4),
            says_user,
            lookup,
            detour: lookup.is_some() && random.one_in(3),
            in_syn: match if late { 0 } else { random.below(6) } {
                0 | 1 => 0,
                2 => random.between(1, 60),
                3 => random.between(20, 400),
                _ => 24,
            },
            hasty: random.one_in(3),
            pieces,
            fate,
            crosses: random.one_in(4),
        }
    }

    /// Its server listens, and is to be reached; nothing is in its SYN that would have to be said again.
    pub(crate) fn grant(&mut self) {
        self.fate = Fate::Granted;
        if self.protocol == Protocol::Socks5 {
            self.in_syn = self.in_syn.min(SHORTEST);
        }
    }

    /// Whether it is connected, and by MPTCP.
    pub(crate) fn is_granted(&self) -> bool {
        let in_part = self.protocol == Protocol::Socks5 && self.in_syn > SHORTEST;
        self.fate == Fate::Granted && !in_part
    }

    /// What it is to the checker.
    pub(crate) const fn preamble(&self) -> Preamble {
        match self.protocol {
            Protocol::Convert => Preamble::Convert,
            Protocol::Socks5 => Preamble::Socks5,
        }
    }

    /// What is said for a connection with `server`.
    pub(crate) fn speech(&self, server: SocketAddr, n: usize) -> Speech {
        let messages = match self.protocol {
            Protocol::Convert => vec![(self.convert(server), u64::MAX)],
            Protocol::Socks5 => self.socks(server, n),
        };
        let mut says = vec![];
        let mut gates: Vec<Gate> = vec![];
        let mut heard = 0;
        for (message, answer) in messages {
            says.extend_from_slice(&message);
            heard += answer.min(u64::MAX - heard);
            if !self.hasty {
                let at = says.len() as u64;
                gates.push(Gate {
                    at,
                    heard,
                    pause: 0,
                });
            }
        }
        for &(at, pause) in self.pieces.iter().filter(|(at, _)| *at < says.len() as u64) {
            gates.push(Gate {
                at,
                heard: 0,
                pause,
            });
        }
        gates.sort_by_key(|gate| gate.at);
        Speech {
            protocol: self.protocol,
            says_user: self.says_user,
            says,
            gates,
            in_syn: self.in_syn,
            fate: self.fate,
            source: from_proxy(server.is_ipv6()),
        }
    }

    /// RFC 8803 section 6.
    fn convert(&self, server: SocketAddr) -> Vec<u8> {
        let mut tlvs = vec![];
        if self.informs {
            tlvs.extend([1, 1, 0, 0]);
        }
        // SACK permitted and timestamps.
        let options: &[u8] = if self.asks_options {
            &[4, 2, 8, 2]
        } else {
            &[]
        };
        tlvs.extend([10, 5 + options.len() as u8 / 4]);
        tlvs.extend(self.port(server).to_be_bytes());
        tlvs.extend(mapped(server.ip()).octets());
        tlvs.extend(options);
        let mut message = vec![1, 1 + tlvs.len() as u8 / 4, 0x22, 0x63];
        message.extend(tlvs);
        message
    }

    /// RFC 1928 and RFC 1929: messages, and the lengths of their answers.
    fn socks(&self, server: SocketAddr, n: usize) -> Vec<(Vec<u8>, u64)> {
        let mut messages = vec![];
        if self.says_user {
            messages.push((vec![5, 2, 0, 2], 2));
            let password: &[u8] = if self.fate == Fate::WrongPassword {
                b"guess"
            } else {
                PASSWORD
            };
            let mut credentials = vec![1, USER.len() as u8];
            credentials.extend(USER);
            credentials.push(password.len() as u8);
            credentials.extend(password);
            messages.push((credentials, 2));
        } else {
            messages.push((vec![5, 1, 0], 2));
        }
        let mut request = vec![5, 1, 0];
        match (self.lookup, server.ip()) {
            (Some(_), _) => {
                let name = format!("s{n}.example");
                request.extend([3, name.len() as u8]);
                request.extend(name.as_bytes());
            }
            (None, IpAddr::V4(ip)) => {
                request.push(1);
                request.extend(ip.octets());
            }
            (None, IpAddr::V6(ip)) => {
                request.push(4);
                request.extend(ip.octets());
            }
        }
        request.extend(self.port(server).to_be_bytes());
        messages.push((request, u64::MAX));
        messages
    }

    fn port(&self, server: SocketAddr) -> u16 {
        if self.fate == Fate::NotAllowed {
            server.port() + 1000
        } else {
            server.port()
        }
    }

    /// What its name is resolved to.
    pub(crate) fn addresses(&self, server: IpAddr) -> Vec<IpAddr> {
        let mut all = vec![];
        if self.fate == Fate::NoName {
            return all;
        }
        if self.detour {
            all.push(beside(server));
        }
        all.push(server);
        all
    }

    /// The mode of its service.
    pub(crate) fn mode(&self, listen: SocketAddr, server: SocketAddr) -> Mode {
        let allowed = |addr: IpAddr| Allowed {
            servers: Prefix {
                addr,
                len: if addr.is_ipv4() { 32 } else { 128 },
            },
            ports: vec![server.port()..=server.port()],
        };
        Mode::Explicit {
            protocol: self.protocol,
            listen: vec![listen],
            allowed: vec![allowed(server.ip()), allowed(beside(server.ip()))],
            users: if self.says_user {
                vec![User {
                    name: USER.into(),
                    password: PASSWORD.into(),
                }]
            } else {
                vec![]
            },
            source: vec![from_proxy(server.is_ipv6())],
            source_ports: 20_000..=29_999,
        }
    }
}

/// Draws who names its server: nobody in most seeds.
pub(crate) fn draw(plan: &mut Plan) {
    let mut random = Random::for_purpose(plan.seed, 16);
    let random = &mut random;
    if !random.one_in(4) {
        return;
    }
    let all = random.one_in(2);
    for connection in &mut plan.connections {
        if all || random.one_in(2) {
            let drawn = ExplicitPlan::draw(random);
            if drawn.fate != Fate::Granted {
                // What is not connected has nobody to end it early.
                connection.aborts = false;
                connection.client_app.aborts_at = None;
                connection.server_app.aborts_at = None;
                let ends = |action: &crate::client::Action| {
                    matches!(action, crate::client::Action::FastClose { .. })
                };
                connection.mptcp.actions.retain(|(_, action)| !ends(action));
            }
            if drawn.in_syn > 0 {
                // Until the client has shown where it is, it is sent no more than came from it. If its third packet gets lost it
                // has to speak up itself.
                connection.client.keepalive.get_or_insert(5 * SECOND);
            }
            connection.explicit = Some(drawn);
        }
    }
}

/// Names that are being resolved.
#[derive(Debug)]
pub(crate) struct Names {
    /// What each connection's name is resolved to, and after how long.
    known: Vec<(Vec<IpAddr>, u64)>,
    asked: Vec<(u64, StableId, usize)>,
}

impl Names {
    pub(crate) fn of(plan: &Plan) -> Self {
        let known = plan.connections.iter().enumerate().map(|(n, connection)| {
            let server = plan.server_address(n).ip();
            let explicit = connection.explicit.as_ref();
            let addresses = explicit.map_or(vec![], |explicit| explicit.addresses(server));
            let delay = explicit.and_then(|explicit| explicit.lookup);
            (addresses, delay.unwrap_or(0))
        });
        Self {
            known: known.collect(),
            asked: vec![],
        }
    }

    /// A name is asked for: `sN.example` is the N-th connection's.
    pub(crate) fn ask(&mut self, now: u64, lookup: &Lookup) {
        let name = lookup.name.strip_prefix('s');
        let n = name.and_then(|name| name.strip_suffix(".example")?.parse().ok());
        let n: usize = n.expect("a name of this run");
        self.asked.push((now + self.known[n].1, lookup.id, n));
    }

    /// When the next one is resolved.
    pub(crate) fn due(&self) -> u64 {
        self.asked
            .iter()
            .map(|asked| asked.0)
            .min()
            .unwrap_or(u64::MAX)
    }

    /// One that is.
    pub(crate) fn next(&mut self, now: u64) -> Option<(StableId, Vec<IpAddr>)> {
        let at = self.asked.iter().position(|asked| asked.0 <= now)?;
        let (_, id, n) = self.asked.remove(at);
        Some((id, self.known[n].0.clone()))
    }
}

/// A client has to say whom it wants in this time.
pub(crate) const PATIENCE: u64 = 10 * SECOND;

/// Bytes that every preamble of SOCKS5 has at least.
const SHORTEST: u64 = 13;
const USER: &[u8] = b"alice";
const PASSWORD: &[u8] = b"in wonderland";

/// Another address, where nobody listens.
fn beside(server: IpAddr) -> IpAddr {
    match server {
        IpAddr::V4(ip) => IpAddr::V4((ip.to_bits() + 8).into()),
        IpAddr::V6(ip) => IpAddr::V6((ip.to_bits() + 8).into()),
    }
}

/// An address as IPv6.
pub(crate) fn mapped(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
}

//! A translator between one client and one server: packets go in, what comes out is checked and handed
//! to whom it is for.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::LazyLock;
use std::time::Duration;

use flexcp_invariants::{Checker, Observation, Options, Payload as Seen, Point};
use flexcp_testkit as testkit;
use flexcp_translator::{
    Announce, Config, Frame, HEADROOM, Instant, Limits, Mode, Payload, Prefix, Service, Timeouts,
    Translator, Verdict, internals,
};
use flexcp_wire::{
    ChecksumState, Gso, GsoKind, IpHeader, Offload, PacketLine, TCP_HEADER_LEN, TcpFlags,
};

use crate::far::{self, Aggregation, Far, Preamble};
use crate::input::Input;
use crate::output::{self, Output};

/// The window that everybody offers, in SYNs and behind them unless the input wants another.
pub(crate) const SYN_WINDOW: u16 = 65_000;

/// Flows that a client may have.
pub(crate) const FLOWS: usize = 4;

/// Client keys: an ordinary one, one whose IDSN lies 325 bytes before a 32-bit wrap, and one with the
/// highest half full.
const CLIENT_KEYS: [u64; 3] = [
    0x0503_34cf_e246_2c44,
    0x0503_34cf_0074_9a39,
    0x0503_34cf_0786_69f2,
];
/// Seeds that give FlexCP a key of each of these kinds.
const SEEDS: [u64; 3] = [7, 0x61_6aa8, 0x47d_a46e];
/// Packets that one call can make FlexCP send at most, by far: more is a loop without an end.
const ENDLESS: usize = 100_000;

/// Who sends or gets a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Party {
    /// The client, on this flow.
    Client(usize),
    Server,
}

/// What client and server can do, and how FlexCP is set up.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) v6: bool,
    pub(crate) mixed: bool,
    pub(crate) timestamps: bool,
    pub(crate) sack: bool,
    pub(crate) reverse: bool,
    pub(crate) announce: bool,
    pub(crate) end_to_end: bool,
    pub(crate) scales: (Option<u8>, Option<u8>),
    /// Little room in every table.
    tight: bool,
    /// Initial numbers right before the wrap.
    wrap: bool,
    client_key: u64,
    seed: u64,
    /// FlexCP is an aggregation box.
    pub(crate) aggregation: Option<Aggregation>,
}

/// One flow of the client's. Numbers are those in its TCP headers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flow {
    pub(crate) client: SocketAddr,
    pub(crate) local: SocketAddr,
    pub(crate) isn: u32,
    /// Of the SYN/ACK; the server's for the initial flow.
    pub(crate) peer_isn: u32,
    pub(crate) nonce: u32,
    pub(crate) peer_nonce: u32,
    pub(crate) id: u8,
}

/// Everybody.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) translator: Translator,
    pub(crate) now: Instant,
    pub(crate) setup: Setup,
    pub(crate) client_key: u64,
    /// Learned from the SYN/ACK.
    pub(crate) proxy_key: Option<u64>,
    pub(crate) flows: [Flow; FLOWS],
    pub(crate) server: SocketAddr,
    /// Where numbers of the server count from: that of its SYN, but where FlexCP tells an aggregation server something before.
    pub(crate) server_isn: u32,
    /// That of its SYN.
    pub(crate) lan_isn: u32,
    /// What stands before the streams of a box.
    pub(crate) preamble: Preamble,
    /// What the server sees as its client: learned from the SYN.
    pub(crate) source: SocketAddr,
    /// The latest TSval that came to each flow, and to the server behind them.
    pub(crate) heard: [u32; FLOWS + 1],
    /// Sees every packet, and judges those of FlexCP's.
    pub(crate) checker: Checker,
    /// The packet that has come last has a wrong checksum, or may have.
    broken: bool,
    /// The checker does not know what has happened.
    pub(crate) unjudged: bool,
    /// Connections that FlexCP had let go of when the checker was told last.
    closed: u64,
    buf: Vec<u8>,
}

/// A packet to be sent. Numbers are absolute.
#[derive(Clone, Debug)]
pub(crate) struct Packet {
    pub(crate) from: Party,
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) flags: TcpFlags,
    pub(crate) window: u16,
    pub(crate) urgent: u16,
    /// A multiple of 4 bytes, at most 40.
    pub(crate) options: Vec<u8>,
    pub(crate) payload: Vec<u8>,
    pub(crate) checksum: ChecksumState,
    /// Segment size.
    pub(crate) gso: Option<u16>,
    /// The checksum is wrong.
    pub(crate) broken: bool,
}

impl Packet {
    pub(crate) fn new(from: Party, seq: u32, ack: u32, flags: TcpFlags) -> Self {
        Self {
            from,
            seq,
            ack,
            flags,
            window: SYN_WINDOW,
            urgent: 0,
            options: Vec::new(),
            payload: Vec::new(),
            checksum: ChecksumState::Verified,
            gso: None,
            broken: false,
        }
    }
}

impl Setup {
    pub(crate) fn read(input: &mut Input<'_>) -> Self {
        let (a, b) = (input.u8(), input.u8());
        let bit = |byte: u8, n: u8| byte & (1 << n) != 0;
        let scales = match b >> 6 {
            0 => (Some(8), Some(7)),
            1 => (Some(0), Some(14)),
            2 => (None, Some(7)),
            _ => (Some(10), None),
        };
        Self {
            v6: bit(a, 0),
            mixed: bit(a, 1),
            timestamps: bit(a, 2),
            sack: !bit(a, 3),
            reverse: bit(a, 4),
            announce: bit(a, 5),
            end_to_end: bit(a, 6),
            wrap: bit(a, 7),
            tight: bit(b, 0),
            scales,
            client_key: CLIENT_KEYS[usize::from(b >> 1 & 3) % 3],
            seed: SEEDS[usize::from(b >> 3 & 3) % 3],
            aggregation: None,
        }
    }

    /// The same of an aggregation box.
    pub(crate) fn read_of_box(input: &mut Input<'_>) -> Self {
        Self {
            reverse: false,
            announce: false,
            end_to_end: false,
            aggregation: Some(Aggregation::read(input)),
            ..Self::read(input)
        }
    }

    /// The family of a flow.
    pub(crate) const fn v6_at(&self, k: usize) -> bool {
        self.v6 ^ (self.mixed && k % 2 == 1)
    }

    /// `peer`: the far end of a box.
    pub(crate) fn config(&self, server: SocketAddr, peer: SocketAddr) -> Config {
        let mode = if let Some(aggregation) = self.aggregation {
            aggregation.mode(self, peer)
        } else if self.reverse {
            Mode::Reverse {
                listen: vec![SocketAddr::new(address(self.v6, 7, 1), 443)],
                backends: vec![server],
                source: vec![address(self.v6, 8, 1)],
                source_ports: 40_000..=41_000,
            }
        } else {
            // The servers' network alone: the world is told apart by addresses, and a client's must not be
            // a server's too.
            let prefix = Prefix {
                addr: server.ip(),
                len: if self.v6 { 48 } else { 24 },
            };
            Mode::Transparent {
                destinations: vec![prefix],
                ports: Vec::new(),
                end_to_end: self.end_to_end,
            }
        };
        let addr = address(self.v6, 7, 2);
        let announce = [
            Announce { addr, port: None },
            Announce {
                addr,
                port: Some(444),
            },
        ];
        let limits = if self.tight {
            Limits {
                connections: 2,
                half_open: 1,
                subflows: 3,
                half_open_joins: 1,
                mappings: 4,
                memory: 8192,
                client_connections: 2,
                client_rate: 1,
            }
        } else {
            Limits {
                mappings: 64,
                ..Limits::default()
            }
        };
        Config {
            services: vec![Service {
                id: flexcp_translator::ServiceId(0),
                name: "fuzz".into(),
                mode,
                announce: if self.announce {
                    announce.into()
                } else {
                    Vec::new()
                },
                intake: flexcp_translator::Intake::default(),
            }],
            limits,
            // Short, so that the end of everything comes soon.
            timeouts: Timeouts {
                idle: Duration::from_secs(100),
                half_open: Duration::from_secs(40),
                rejoin: Duration::from_secs(20),
                ..Timeouts::default()
            },
            ..Config::default()
        }
    }
}

/// Says what happens, for a look at one input.
fn trace(line: impl FnOnce() -> String) {
    static WANTED: LazyLock<bool> = LazyLock::new(|| std::env::var_os("FUZZ_TRACE").is_some());
    if *WANTED {
        eprintln!("{}", line());
    }
}

pub(crate) fn address(v6: bool, net: u8, host: u8) -> IpAddr {
    if v6 {
        Ipv6Addr::new(0x2001, 0xdb8, u16::from(net), 0, 0, 0, 0, u16::from(host)).into()
    } else {
        Ipv4Addr::new(10, net, 0, host).into()
    }
}

impl World {
    pub(crate) fn new(setup: Setup) -> Self {
        let server = SocketAddr::new(address(setup.v6, 9, 1), 443);
        let mut seed = [7; 32];
        seed[..8].copy_from_slice(&setup.seed.to_be_bytes());
        let base: u32 = if setup.wrap {
            u32::MAX - 200
        } else {
            0x1000_0000
        };
        let reach = |v6, k: u8| {
            let host = SocketAddr::new(address(v6, 7, 1 + k), 443);
            if k == 0 && !setup.reverse {
                server
            } else {
                host
            }
        };
        let flows = std::array::from_fn(|k| {
            let n = u8::try_from(k).expect("a handful");
            let v6 = setup.v6_at(k);
            let ends = match setup.aggregation {
                // The port is FlexCP's to choose.
                Some(_) => (
                    SocketAddr::new(address(v6, 0, 2), 50_000),
                    SocketAddr::new(far::local(&setup, k), 0),
                ),
                None => (
                    SocketAddr::new(address(v6, n, 2), 50_000 + u16::from(n)),
                    reach(v6, n),
                ),
            };
            Flow {
                client: ends.0,
                local: ends.1,
                isn: base.wrapping_add(u32::from(n) * 0x0100_0000),
                peer_isn: 0,
                nonce: 0x0bad_cafe + u32::from(n),
                peer_nonce: 0,
                id: n,
            }
        });
        let config = setup.config(server, flows[0].client);
        let source = setup.aggregation.map_or(flows[0].client, |aggregation| {
            aggregation.server(setup.v6, flows[0].client)
        });
        let server_isn = base.wrapping_add(0x2000_0000 * u32::from(!setup.wrap));
        Self {
            translator: Translator::new(config, seed),
            now: Instant::default(),
            client_key: setup.client_key,
            proxy_key: None,
            source,
            flows,
            server,
            server_isn,
            lan_isn: server_isn,
            preamble: Preamble::default(),
            heard: [0; FLOWS + 1],
            checker: Checker::new(
                Options {
                    hostile: true,
                    asks: setup.aggregation.is_some(),
                    ..Options::default()
                },
                None,
            ),
            setup,
            broken: false,
            unjudged: false,
            closed: 0,
            buf: Vec::new(),
        }
    }

    /// Sends a packet; what comes out of it has been checked.
    pub(crate) fn send(&mut self, packet: &Packet) -> Vec<Output> {
        let (bytes, offload) = self.build(packet);
        self.broken = packet.broken;
        self.buf.clear();
        self.buf.resize(HEADROOM, 0xa5);
        self.buf.extend_from_slice(&bytes);
        let mut buf = std::mem::take(&mut self.buf);
        let end = buf.len();
        self.observe_input(&bytes, offload);
        let mut frame = Frame::new(&mut buf, HEADROOM..end, offload);
        let verdict = self.translator.handle_packet(self.now, &mut frame).verdict;
        let mut out = Vec::new();
        trace(|| {
            format!(
                "{:>7} {:?} sends {}",
                self.now.0 / 1000,
                packet.from,
                PacketLine(&bytes)
            )
        });
        if let Verdict::Drop(reason) = verdict {
            trace(|| format!("        drop {}", reason.name()));
        }
        if verdict == Verdict::Forward {
            let (packet_out, offload) = (frame.packet().to_vec(), frame.offload);
            self.deliver(&packet_out, offload, false, &mut out);
        }
        self.drain(Some(&frame), &mut out);
        self.forget_closed();
        self.buf = buf;
        out
    }

    /// Any bytes as a packet.
    pub(crate) fn send_raw(&mut self, bytes: &[u8], offload: Offload) {
        self.broken = true;
        let mut buf = vec![0xa5; HEADROOM + bytes.len()];
        buf[HEADROOM..].copy_from_slice(bytes);
        let end = buf.len();
        let mut frame = Frame::new(&mut buf, HEADROOM..end, offload);
        trace(|| format!("        raw {}", PacketLine(bytes)));
        self.observe_input(bytes, offload);
        let verdict = self.translator.handle_packet(self.now, &mut frame).verdict;
        if verdict == Verdict::Forward && frame.packet() != bytes {
            trace(|| format!("        FlexCP sends {}", PacketLine(frame.packet())));
            output::addressed(frame.packet());
        }
        let mut out = Vec::new();
        self.drain(Some(&frame), &mut out);
        self.forget_closed();
    }

    /// Time goes on to `now`, with all that is due on the way.
    pub(crate) fn advance(&mut self, now: Instant) -> Vec<Output> {
        let mut out = Vec::new();
        for _ in 0..output::MAX_TIMEOUTS {
            match self.translator.poll_timeout() {
                Some(due) if due <= now => self.now = self.now.max(due),
                _ => break,
            }
            self.checker.observe_timeout();
            self.translator.handle_timeout(self.now);
            self.drain(None, &mut out);
            self.forget_closed();
            let next = self.translator.poll_timeout();
            assert!(next.is_none_or(|next| next > self.now), "timer left over");
        }
        self.now = self.now.max(now);
        out
    }

    /// Everybody is silent until every timer has run: nothing may be left.
    pub(crate) fn run_down(&mut self) {
        for _ in 0..output::MAX_TIMEOUTS {
            let Some(due) = self.translator.poll_timeout() else {
                break;
            };
            if self.probes() && self.translator.connections(self.now).count() == 0 {
                break;
            }
            let _ = self.advance(due);
        }
        let left = self.translator.connections(self.now).count();
        assert_eq!(left, 0, "connections left after every timeout");
        if !self.probes() {
            assert_eq!(self.translator.poll_timeout(), None, "timers left");
        }
        let held = self.translator.gauges().memory_bytes;
        assert_eq!(held, 0, "memory of nobody");
    }

    /// An aggregation server does not answer: it is asked again and again whether it does.
    fn probes(&self) -> bool {
        let mut servers = self.translator.backends();
        servers.any(|server| server.mark.is_some())
    }

    pub(crate) fn drain(&mut self, frame: Option<&Frame<'_>>, out: &mut Vec<Output>) {
        while let Some(transmit) = self.translator.poll_transmit() {
            assert!(out.len() < ENDLESS, "FlexCP sends without an end");
            let mut packet = transmit.header().to_vec();
            let filler = matches!(transmit.payload, Payload::Zeros(_));
            match &transmit.payload {
                Payload::None => {}
                Payload::Frame(range) => {
                    let frame = frame.expect("a piece of a frame without one");
                    packet.extend_from_slice(frame.buffer(range.clone()));
                }
                Payload::Bytes(bytes) => packet.extend_from_slice(bytes),
                Payload::Zeros(len) => packet.resize(packet.len() + len, 0),
            }
            self.deliver(&packet, transmit.offload, filler, out);
        }
    }

    /// The ends of a box are not honest from here on.
    pub(crate) fn note_dishonest(&mut self) {
        self.unjudged |= self.setup.aggregation.is_some();
    }

    /// The checker knows boxes between honest ends, joins where they begin, and nothing of aggregation servers: beyond that the ends judge.
    pub(crate) fn is_judged(&self) -> bool {
        let aggregation = self.setup.aggregation;
        let knows = |of: Aggregation| of.far == Far::Server && of.joinable;
        !self.unjudged && aggregation.is_none_or(knows)
    }

    /// Shows the checker a packet that goes in.
    fn observe_input(&mut self, packet: &[u8], offload: Offload) {
        if !self.is_judged() {
            return;
        }
        let from_server = IpHeader::parse(packet).is_ok_and(|ip| ip.src == self.server.ip());
        let point = if from_server {
            Point::FromServer
        } else {
            Point::FromClient
        };
        match Observation::whole(self.now.0, point, packet, offload) {
            Some(seen) => self.checker.observe(&seen),
            None => self.checker.observe_timeout(),
        }
    }

    /// Shows the checker a packet that comes out.
    fn judge(&mut self, packet: &[u8], offload: Offload, filler: bool) {
        if !self.is_judged() {
            output::addressed(packet);
            // What is relayed stays wrong if it was.
            if !self.broken && Output::parse(packet).is_some() {
                let _ = testkit::Packet::read_in(packet, offload.checksum);
            }
            return;
        }
        let to_server = IpHeader::parse(packet).is_ok_and(|ip| ip.dst == self.server.ip());
        let point = if to_server {
            Point::ToServer
        } else {
            Point::ToClient
        };
        let Some(mut seen) = Observation::whole(self.now.0, point, packet, offload) else {
            return;
        };
        if filler {
            seen.payload = Seen::Zeros;
        }
        self.checker.observe(&seen);
        if let Some(violation) = self.checker.violations().first() {
            let breaches: Vec<_> = self
                .checker
                .breaches()
                .filter(|(client, ..)| Some(*client) == violation.client)
                .map(|(_, side, breach)| (side, breach))
                .collect();
            panic!("{violation}; breaches so far: {breaches:?}");
        }
    }

    /// Tells the checker which connections FlexCP has let go of.
    pub(crate) fn forget_closed(&mut self) {
        let gauges = self.translator.gauges();
        let walked = internals::memory(&self.translator);
        assert_eq!(gauges.memory_bytes, walked, "memory that nobody has noted");
        let closed = self.translator.counters().connections_closed;
        if closed != self.closed {
            self.closed = closed;
            let views = self.translator.connections(self.now);
            let left: Vec<SocketAddr> = views.map(|view| view.client).collect();
            self.checker.retain(|client| left.contains(&client));
        }
    }

    /// Finds out whom a packet is for.
    fn deliver(&mut self, packet: &[u8], offload: Offload, filler: bool, out: &mut Vec<Output>) {
        trace(|| format!("        FlexCP sends {}", PacketLine(packet)));
        self.judge(packet, offload, filler);
        let Some(output) = Output::parse(packet) else {
            return;
        };
        let (from, to) = (output.from, output.to);
        if self.setup.aggregation.is_some() && output.tcp.flags == TcpFlags::SYN {
            let over = |k: &usize| far::local(&self.setup, *k) == from.ip();
            let k = (0..FLOWS)
                .filter(over)
                .find(|k| self.flows[*k].client == to);
            if let Some(k) = k {
                self.flows[k].local = from;
            }
        }
        let flow = self
            .flows
            .iter()
            .position(|flow| (flow.local, flow.client) == (from, to));
        let party = match flow {
            Some(flow) => Party::Client(flow),
            None if to == self.server => Party::Server,
            None => return,
        };
        if party == Party::Server && output.tcp.flags.contains(TcpFlags::SYN) {
            self.source = from;
        }
        out.push(Output { party, ..output });
    }

    /// Source and destination of a packet from here.
    fn ends(&self, from: Party) -> (SocketAddr, SocketAddr) {
        match from {
            Party::Client(k) => (self.flows[k].client, self.flows[k].local),
            Party::Server => (self.server, self.source),
        }
    }

    fn build(&self, packet: &Packet) -> (Vec<u8>, Offload) {
        let (src, dst) = self.ends(packet.from);
        let v6 = src.is_ipv6();
        let mut built = testkit::Packet::new(src, dst)
            .flags(packet.flags)
            .numbers(packet.seq, packet.ack);
        (built.tcp.window, built.tcp.urgent) = (packet.window, packet.urgent);
        let most = 65_535 - built.ip.emitted_len() - TCP_HEADER_LEN - packet.options.len();
        built.options.clone_from(&packet.options);
        built.payload = packet.payload[..packet.payload.len().min(most)].to_vec();
        let mut checksum = packet.checksum;
        let gso = packet
            .gso
            .filter(|&size| built.payload.len() > usize::from(size.max(1)));
        if gso.is_some() && checksum == ChecksumState::Complete {
            checksum = ChecksumState::Partial;
        }
        let mut bytes = built.bytes_in(checksum);
        if packet.broken && checksum == ChecksumState::Complete {
            let field = built.ip.emitted_len() + 16;
            bytes[field..field + 2]
                .iter_mut()
                .for_each(|byte| *byte ^= 0x5a);
        }
        let kind = if v6 { GsoKind::TcpV6 } else { GsoKind::TcpV4 };
        let gso = gso.map(|size| Gso {
            kind,
            size: size.max(1),
            ecn: packet.flags.contains(TcpFlags::CWR),
        });
        (bytes, Offload { checksum, gso })
    }
}

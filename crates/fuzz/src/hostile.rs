//! Target `hostile`: anybody who says what comes before a stream, in anybody's name, and servers that answer as they like.
//!
//! The input chooses who sends what next: SYNs with a preamble, a part of one, or anything; what comes behind them, late, again, or
//! without having heard an answer; what servers say to FlexCP's calls; what names resolve to; and time. What must hold: nobody gets
//! more bytes than came from his address before his third packet (but for a key), no server gets more SYNs than clients have sent
//! before that, nothing grows beyond its bounds, and everything has an end.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use flexcp_testkit::{Packet, icmp_error, ip_header, keys, quoted};
use flexcp_translator::{
    Allowed, Config, Frame, HEADROOM, Instant, Intake, Limits, Mode, Order, Payload, Prefix,
    Protocol, Service, ServiceId, StableId, Timeouts, Translator, User, Verdict, internals,
};
use flexcp_wire::{
    CapableFlags, CapableKeys, ChecksumState, DataNumber, Dss, DssMapping, Ends, IpHeader,
    MpCapable, MptcpOption, Offload, TcpFlags, TcpOption, Timestamps, protocol,
};

use crate::input::Input;
use crate::output::{MAX_TIMEOUTS, addressed};

/// Steps of one input at most.
const MAX_STEPS: usize = 150;
/// Packets that one packet or timer can make FlexCP send at most, by far.
const MOST_AT_ONCE: usize = 400;
/// What an answer is longer than what it answers: a key (RFC 8684 section 3.1).
const KEY: usize = 8;
/// SYNs for one server of a client that has shown where it is: FlexCP repeats them then.
const SYNS_OF_A_CALL: usize = 6;
/// An answer before the server's stream has at most so many bytes, so that an ACK in there may be a client's.
const LONGEST_ANSWER: u32 = 1020;
/// Nothing may live longer after everybody has gone silent, in seconds.
const LONGEST_LIFE: u64 = 1000;
/// Clients' key.
const CLIENT_KEY: u64 = 0x0503_34cf_e246_2c44;
/// Number of each client's SYN.
const ISN: u32 = 0xffff_ff00;

const SYN: TcpFlags = TcpFlags::SYN;
const ACK: TcpFlags = TcpFlags::ACK;

/// Convert for 10.55.9.9:80.
const CONNECT: [u8; 24] = [
    1, 6, 0x22, 0x63, 10, 5, 0, 80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 55, 9, 9,
];
/// The same for a server that nobody may name.
const REFUSED: [u8; 24] = [
    1, 6, 0x22, 0x63, 10, 5, 0, 80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 56, 9, 9,
];

/// One client's end, and what has passed between that and one of FlexCP's addresses.
#[derive(Clone, Copy, Default, Debug)]
struct Client {
    came: usize,
    went: usize,
    /// Bytes that may go beyond what came: keys.
    keys: usize,
    /// It has ACKed what FlexCP's SYN/ACK alone could tell it.
    proved: bool,
    /// Number of the latest SYN/ACK.
    peer_isn: Option<u32>,
    proxy_key: Option<u64>,
    /// What it has said behind the SYN's number, the SYN's data with it, and how much of that was the SYN's.
    said: u32,
    in_syn: u32,
    /// FlexCP's next number, as far as it has come.
    next: u32,
    mptcp: bool,
}

/// Everybody.
struct World {
    translator: Translator,
    now: Instant,
    clients: BTreeMap<(SocketAddr, SocketAddr), Client>,
    /// FlexCP's SYNs: its end, the server, and the number; and how far the server has come.
    calls: Vec<(Ends, u32, u32)>,
    lookups: Vec<StableId>,
    syns: (usize, usize),
    /// Addresses that names have resolved to.
    resolved: usize,
    buf: Vec<u8>,
}

/// Target.
pub fn target(data: &[u8]) {
    let mut input = Input::new(data);
    let mut world = World::new(&mut input);
    for _ in 0..MAX_STEPS {
        if input.is_empty() {
            break;
        }
        world.step(&mut input);
        world.check_bounds();
    }
    world.run_down();
}

fn addr(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn listeners(at: usize) -> [SocketAddr; 2] {
    let port = [1080, 1081][at];
    ["10.2.0.1", "2001:db8:2::1"].map(|ip| SocketAddr::new(addr(ip), port))
}

fn service(at: usize, setup: u8) -> Service {
    let prefix = |text, len| Allowed {
        servers: Prefix {
            addr: addr(text),
            len,
        },
        ports: vec![80..=81],
    };
    let user = User {
        name: b"joe".as_slice().into(),
        password: b"secret".as_slice().into(),
    };
    let is_socks = at == 1;
    Service {
        id: ServiceId(u16::try_from(at).expect("a handful")),
        name: format!("service {at}"),
        mode: Mode::Explicit {
            protocol: [Protocol::Convert, Protocol::Socks5][at],
            listen: listeners(at).into(),
            users: if is_socks && setup & 1 != 0 {
                vec![user]
            } else {
                vec![]
            },
            allowed: vec![prefix("10.55.0.0", 16), prefix("2001:db8:55::", 48)],
            source: listeners(at).map(|end| end.ip()).into(),
            // Few, so that they are used up.
            source_ports: if setup & 2 != 0 {
                61_000..=61_001
            } else {
                61_000..=61_999
            },
        },
        announce: vec![],
        intake: Intake {
            cookies: !is_socks && setup & 4 != 0,
            ..Intake::default()
        },
    }
}

fn config(setup: u8) -> Config {
    let limits = Limits {
        connections: if setup & 8 != 0 { 3 } else { 64 },
        half_open: if setup & 16 != 0 { 2 } else { 64 },
        client_connections: if setup & 32 != 0 { 2 } else { 64 },
        client_rate: if setup & 64 != 0 { 2 } else { 1000 },
        memory: if setup & 128 != 0 { 16_384 } else { 1 << 22 },
        ..Limits::default()
    };
    Config {
        services: (0..2).map(|at| service(at, setup)).collect(),
        limits,
        timeouts: Timeouts {
            idle: Duration::from_secs(100),
            half_open: Duration::from_secs(40),
            rejoin: Duration::from_secs(20),
            ..Timeouts::default()
        },
        ..Config::default()
    }
}

/// What a client may say: what is right, and what is not.
fn words(input: &mut Input<'_>) -> Vec<u8> {
    let whole: &[u8] = match input.below(12) {
        0 => &CONNECT,
        1 => &REFUSED,
        2 => &[1, 2, 0x22, 0x63, 1, 1, 0, 0],
        3 => &[5, 1, 0],
        4 => &[5, 2, 0, 2],
        5 => &[
            1, 3, b'j', b'o', b'e', 6, b's', b'e', b'c', b'r', b'e', b't',
        ],
        6 => &[5, 1, 0, 1, 10, 55, 9, 9, 0, 80],
        7 => &[5, 1, 0, 3, 4, b'h', b'o', b's', b't', 0, 80],
        8 => &[
            5, 1, 0, 4, 0x20, 1, 0xd, 0xb8, 0, 0x55, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 80,
        ],
        9 => b"GET / HTTP/1.1\r\n\r\n",
        10 => &[],
        _ => input.bytes(usize::from(input.clone().u8()) % 64),
    };
    let mut said = whole.to_vec();
    match input.u8() {
        0..=159 => {}
        // The front of it, or the end.
        160..=189 => said.truncate(input.below(256)),
        190..=209 => drop(said.drain(..input.below(256).min(said.len()))),
        // A byte of it is another.
        210..=229 => {
            let (at, to) = (input.below(256), input.u8());
            if let Some(byte) = said.get_mut(at) {
                *byte = to;
            }
        }
        // More behind it.
        _ => said.extend_from_slice(input.bytes(40)),
    }
    said
}

fn capable(keys: CapableKeys) -> TcpOption<'static> {
    TcpOption::Mptcp(MptcpOption::Capable(MpCapable {
        version: 1,
        flags: CapableFlags::HMAC_SHA256,
        keys,
    }))
}

impl World {
    fn new(input: &mut Input<'_>) -> Self {
        let mut translator = Translator::new(config(input.u8()), [7; 32]);
        translator.set_host_addresses(vec![addr("10.2.0.1"), addr("10.55.0.1")]);
        Self {
            translator,
            now: Instant::from_millis(10_000),
            clients: BTreeMap::new(),
            calls: vec![],
            lookups: vec![],
            syns: (0, 0),
            resolved: 0,
            buf: vec![],
        }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.u8() {
            0..=59 => self.syn(input),
            60..=94 => self.third(input),
            95..=139 => self.say(input),
            140..=159 => self.guess(input),
            160..=204 => self.server(input),
            205..=212 => self.error(input),
            213..=236 => self.wait(input),
            237..=244 => self.resolve(input),
            245..=249 => self.close(input),
            _ => self.raw(input),
        }
    }

    /// A client's end, and the one of FlexCP's that it addresses.
    fn ends(input: &mut Input<'_>) -> (SocketAddr, SocketAddr) {
        let byte = input.u8();
        let hosts = ["10.1.0.2", "10.1.0.3", "10.1.0.4", "2001:db8:1::2"];
        let host = addr(hosts[usize::from(byte & 3)]);
        let port = 40_000 + u16::from(byte >> 2 & 7);
        let to = listeners(usize::from(byte >> 5 & 1))[usize::from(host.is_ipv6())];
        (SocketAddr::new(host, port), to)
    }

    fn syn(&mut self, input: &mut Input<'_>) {
        let ends = Self::ends(input);
        let kind = input.u8();
        let mut options = vec![];
        if kind & 1 == 0 {
            options.push(TcpOption::Mss(if kind & 0x30 == 0x30 { 90 } else { 1460 }));
        }
        if kind & 2 == 0 {
            options.push(TcpOption::SackPermitted);
            options.push(TcpOption::Timestamps(self.timestamps()));
        }
        if kind & 4 == 0 {
            options.push(TcpOption::WindowScale(7));
        }
        let mptcp = kind & 8 == 0;
        if mptcp {
            options.push(capable(CapableKeys::Syn));
        }
        let said = words(input);
        let isn = ISN.wrapping_add(if kind < 0xf0 { 0 } else { input.u32() });
        let client = self.clients.entry(ends).or_default();
        let said_len = u32::try_from(said.len()).expect("short");
        (client.said, client.in_syn, client.mptcp) = (said_len, said_len, mptcp);
        if mptcp {
            client.keys += KEY.saturating_sub(said.len());
        }
        let packet = Packet::new(ends.0, ends.1).flags(SYN).numbers(isn, 0);
        let packet = packet.with_options(options).with_payload(said);
        self.syns.0 += 1;
        self.client_sends(ends, &packet, input);
    }

    fn timestamps(&self) -> Timestamps {
        let val = u32::try_from(self.now.0 / 1000).expect("soon");
        Timestamps { val, ecr: 1 }
    }

    /// The answer to a SYN/ACK, right or without one.
    fn third(&mut self, input: &mut Input<'_>) {
        let ends = Self::ends(input);
        let client = self.clients.get(&ends).copied().unwrap_or_default();
        let mut options = vec![];
        if client.mptcp && input.u8() < 220 {
            options.push(capable(CapableKeys::Ack {
                sender: CLIENT_KEY,
                receiver: client.proxy_key.unwrap_or(1),
            }));
        }
        let ack = client.peer_isn.unwrap_or(0).wrapping_add(1);
        let seq = ISN.wrapping_add(1 + client.in_syn);
        let packet = Packet::new(ends.0, ends.1).flags(ACK).numbers(seq, ack);
        self.client_sends(ends, &packet.with_options(options), input);
    }

    /// More of a preamble, or of a stream.
    fn say(&mut self, input: &mut Input<'_>) {
        let ends = Self::ends(input);
        let said = words(input);
        let client = self.clients.entry(ends).or_default();
        let len = u16::try_from(said.len()).expect("short");
        let seq = ISN.wrapping_add(1 + client.said);
        let mut options = vec![];
        if client.mptcp {
            let dss = Dss {
                data_ack: Some(DataNumber::Long(keys::idsn(client.proxy_key.unwrap_or(1)))),
                mapping: (len > 0).then(|| DssMapping {
                    dsn: DataNumber::Long(
                        keys::idsn(CLIENT_KEY)
                            .wrapping_add(1 + u64::from(client.said - client.in_syn)),
                    ),
                    ssn: 1 + client.said - client.in_syn,
                    len,
                    checksum: None,
                }),
                data_fin: false,
            };
            options.push(TcpOption::Mptcp(MptcpOption::Dss(dss)));
        }
        let fin = if input.u8() > 240 {
            TcpFlags::FIN
        } else {
            TcpFlags::PSH
        };
        let again = input.u8() > 220;
        if !again {
            client.said = (client.said + u32::from(len)).min(1 << 20);
        }
        let packet = Packet::new(ends.0, ends.1).flags(ACK | fin);
        let packet = packet.numbers(seq, client.next.wrapping_add(input.delta()));
        let packet = packet.with_options(options).with_payload(said);
        self.client_sends(ends, &packet, input);
    }

    /// What somebody sends who has not heard anything.
    fn guess(&mut self, input: &mut Input<'_>) {
        let ends = Self::ends(input);
        let kinds = [
            ACK,
            TcpFlags::RST,
            TcpFlags::FIN | ACK,
            SYN | ACK,
            TcpFlags::RST | ACK,
        ];
        let flags = kinds[input.below(kinds.len())];
        let client = self.clients.entry(ends).or_default();
        let (seq, ack) = (
            ISN.wrapping_add(1 + client.said),
            client.peer_isn.unwrap_or(0),
        );
        let packet = Packet::new(ends.0, ends.1).flags(flags);
        let packet = packet.numbers(
            seq.wrapping_add(input.delta()),
            ack.wrapping_add(input.delta()),
        );
        let packet = packet.with_payload(input.bytes(usize::from(input.clone().u8() & 15)));
        self.client_sends(ends, &packet, input);
    }

    fn client_sends(
        &mut self,
        ends: (SocketAddr, SocketAddr),
        packet: &Packet,
        input: &mut Input<'_>,
    ) {
        let mut bytes = packet.bytes();
        let client = self.clients.entry(ends).or_default();
        client.came += bytes.len();
        let right = packet
            .tcp
            .ack
            .wrapping_sub(client.peer_isn.unwrap_or(packet.tcp.ack));
        let is_ack = packet.tcp.flags.contains(ACK);
        client.proved |= is_ack && (1..=1 + LONGEST_ANSWER).contains(&right);
        let checksum = match input.u8() {
            0..=239 => ChecksumState::Verified,
            240..=250 => ChecksumState::Complete,
            _ => {
                let last = bytes.len() - 1;
                bytes[last] ^= 0x5a;
                ChecksumState::Complete
            }
        };
        self.put(&bytes, checksum);
    }

    /// A server answers a call, or says what it likes.
    fn server(&mut self, input: &mut Input<'_>) {
        if self.calls.is_empty() {
            return;
        }
        let at = self.calls.len() - 1 - input.below(self.calls.len().min(4));
        let (ends, seq, told) = self.calls[at];
        let isn = 0x7000_0000;
        let ack = seq.wrapping_add(1);
        let (flags, number, ack, data): (_, u32, _, &[u8]) = match input.below(10) {
            0..=3 => (SYN | ACK, isn, ack, &[]),
            4 => (TcpFlags::RST | ACK, 0, ack, &[]),
            5 => (TcpFlags::RST | ACK, 0, ack.wrapping_add(input.delta()), &[]),
            6 => (SYN | ACK, isn, ack, b"at once"),
            7 => (ACK, isn + 1 + told, ack, &[0x55; 700]),
            8 => (TcpFlags::FIN | ACK, isn + 1 + told, ack, &[]),
            _ => (
                ACK,
                isn.wrapping_add(input.delta()),
                ack.wrapping_add(input.delta()),
                &[],
            ),
        };
        let len = u32::try_from(data.len()).expect("short");
        self.calls[at].2 = told.wrapping_add(if flags.contains(SYN) { 0 } else { len }) & 0xffff;
        let mut options = vec![];
        if flags.contains(SYN) {
            options.push(TcpOption::Mss(1400));
            options.push(TcpOption::SackPermitted);
        }
        if input.bool() {
            options.push(TcpOption::Timestamps(self.timestamps()));
        }
        if input.bool() && flags.contains(SYN) {
            options.push(TcpOption::WindowScale(9));
        }
        let packet = Packet::new(ends.to, ends.from).flags(flags);
        let packet = packet.numbers(number, ack).with_options(options);
        self.put(&packet.with_payload(data).bytes(), ChecksumState::Verified);
    }

    /// An ICMP error about a SYN to a server.
    fn error(&mut self, input: &mut Input<'_>) {
        let Some(&(ends, seq, _)) = self.calls.last() else {
            return;
        };
        let quote = quoted(ends, seq.wrapping_add(input.delta()));
        let (proto, kind) = if ends.to.is_ipv6() {
            (protocol::ICMPV6, (1, input.u8() % 7))
        } else {
            (protocol::ICMP, (3, input.u8() % 16))
        };
        let ip = ip_header(ends.to.ip(), ends.from.ip(), proto);
        let error = icmp_error(&ip, kind, u32::from(input.u8()) << 3, &quote);
        self.put(&error, ChecksumState::Verified);
    }

    fn wait(&mut self, input: &mut Input<'_>) {
        let millis = match input.u8() {
            short @ 0..=199 => u64::from(short) * 10,
            long => u64::from(long) * u64::from(input.u8()),
        };
        self.advance(self.now + Duration::from_millis(millis));
    }

    fn resolve(&mut self, input: &mut Input<'_>) {
        if self.lookups.is_empty() {
            return;
        }
        let id = self
            .lookups
            .remove(input.below(self.lookups.len().min(256)));
        let known = [
            "10.55.9.9",
            "10.56.0.1",
            "127.0.0.1",
            "::ffff:10.55.9.8",
            "2001:db8:55::1",
        ];
        let count = input.below(5);
        let addrs: Vec<_> = (0..count)
            .map(|_| addr(known[input.below(known.len())]))
            .collect();
        self.resolved += addrs.len();
        self.translator.resolved(self.now, id, &addrs);
        self.take(None);
    }

    /// An operator's wish.
    fn close(&mut self, input: &mut Input<'_>) {
        let views = self.translator.connections(self.now);
        let ids: Vec<_> = views.map(|view| view.id).collect();
        if ids.is_empty() {
            return;
        }
        let id = ids[input.below(ids.len().min(256))];
        let _ = self.translator.carry_out(self.now, id, &Order::Close);
        self.take(None);
    }

    /// Any bytes behind the addresses of a client's.
    fn raw(&mut self, input: &mut Input<'_>) {
        let ends = Self::ends(input);
        let mut bytes = Packet::new(ends.0, ends.1).bytes();
        let start = if ends.0.is_ipv6() { 44 } else { 24 };
        let said = input.bytes(40);
        for (byte, said) in bytes[start..].iter_mut().zip(said) {
            *byte = *said;
        }
        let client = self.clients.entry(ends).or_default();
        client.came += bytes.len();
        // It may be a SYN, and an ACK that is right is nobody's luck.
        self.syns.0 += 1;
        self.put(&bytes, ChecksumState::Verified);
    }

    fn put(&mut self, bytes: &[u8], checksum: ChecksumState) {
        let mut buf = std::mem::take(&mut self.buf);
        buf.clear();
        buf.resize(HEADROOM, 0xa5);
        buf.extend_from_slice(bytes);
        let range = HEADROOM..buf.len();
        let offload = Offload {
            checksum,
            gso: None,
        };
        let mut frame = Frame::new(&mut buf, range, offload);
        let verdict = self.translator.handle_packet(self.now, &mut frame).verdict;
        if verdict == Verdict::Forward {
            let packet = frame.packet().to_vec();
            self.deliver(&packet);
        }
        self.take(Some(&frame));
        self.buf = buf;
    }

    /// Takes what waits to be sent.
    fn take(&mut self, frame: Option<&Frame<'_>>) {
        let mut count = 0;
        while let Some(transmit) = self.translator.poll_transmit() {
            count += 1;
            assert!(count < MOST_AT_ONCE, "FlexCP sends without an end");
            let mut packet = transmit.header().to_vec();
            match &transmit.payload {
                Payload::None => {}
                Payload::Frame(range) => {
                    let frame = frame.expect("a piece of a frame without one");
                    packet.extend_from_slice(frame.buffer(range.clone()));
                }
                Payload::Bytes(bytes) => packet.extend_from_slice(bytes),
                Payload::Zeros(len) => packet.resize(packet.len() + len, 0),
            }
            self.deliver(&packet);
        }
        let mut waits = 0;
        while let Some(lookup) = self.translator.poll_lookup() {
            waits += 1;
            self.lookups.push(lookup.id);
        }
        assert!(waits <= 64, "{waits} names at once");
        let denials = std::iter::from_fn(|| self.translator.poll_denial()).count();
        assert!(denials <= 16, "{denials} refusals wait");
    }

    /// A packet of FlexCP's: whom it is for, and whether it may go there.
    fn deliver(&mut self, bytes: &[u8]) {
        addressed(bytes);
        let ip = IpHeader::parse(bytes).expect("an IP packet");
        let Some(packet) = Packet::parse(bytes) else {
            let mut proved = self.clients.iter().filter(|(_, client)| client.proved);
            let to_client = self.clients.keys().any(|(from, _)| from.ip() == ip.dst);
            let knows = proved.any(|((from, _), _)| from.ip() == ip.dst);
            assert!(
                !to_client || knows,
                "ICMP for somebody who has not shown where he is"
            );
            return;
        };
        let ends = packet.ends();
        if let Some(client) = self.clients.get_mut(&(ends.to, ends.from)) {
            client.hear(&packet, bytes.len());
            let (went, came) = (client.went, client.came + client.keys);
            assert!(
                client.proved || went <= came,
                "{went} bytes for {came} to {}: {packet:?}",
                ends.to
            );
            return;
        }
        if packet.tcp.flags.contains(SYN) && !packet.tcp.flags.contains(ACK) {
            self.syns.1 += 1;
            let called = (ends, packet.tcp.seq);
            if !self.calls.iter().any(|call| (call.0, call.1) == called) {
                self.calls.push((ends, packet.tcp.seq, 0));
            }
        }
        let proved = self.clients.values().filter(|client| client.proved).count();
        let (came, went) = self.syns;
        let calls = SYNS_OF_A_CALL * (proved * (1 + came) + self.resolved);
        assert!(went <= came + calls, "{went} SYNs for {came}");
    }

    fn advance(&mut self, now: Instant) {
        for _ in 0..MAX_TIMEOUTS {
            match self.translator.poll_timeout() {
                Some(due) if due <= now => self.now = self.now.max(due),
                _ => break,
            }
            self.translator.handle_timeout(self.now);
            self.take(None);
            let next = self.translator.poll_timeout();
            assert!(next.is_none_or(|next| next > self.now), "timer left over");
        }
        self.now = self.now.max(now);
    }

    fn check_bounds(&self) {
        let gauges = self.translator.gauges();
        let walked = internals::memory(&self.translator);
        assert_eq!(gauges.memory_bytes, walked, "memory that nobody has noted");
        assert!(
            gauges.connections <= 64,
            "{} connections",
            gauges.connections
        );
    }

    /// Everybody is silent until every timer has run: nothing may be left.
    fn run_down(&mut self) {
        let from = self.now;
        for _ in 0..MAX_TIMEOUTS {
            let Some(due) = self.translator.poll_timeout() else {
                break;
            };
            self.advance(due);
        }
        let left = self.translator.connections(self.now).count();
        assert_eq!(left, 0, "connections left after every timeout");
        assert_eq!(self.translator.poll_timeout(), None, "timers left");
        assert_eq!(self.translator.gauges().memory_bytes, 0, "memory of nobody");
        let lasted = self.now.since(from).as_secs();
        assert!(lasted <= LONGEST_LIFE, "it took {lasted} s");
    }
}

impl Client {
    fn hear(&mut self, packet: &Packet, len: usize) {
        self.went += len;
        let flags = packet.tcp.flags;
        if flags.contains(SYN) {
            self.peer_isn = Some(packet.tcp.seq);
            self.next = packet.tcp.seq.wrapping_add(1);
            if let Some(MpCapable {
                keys: CapableKeys::SynAck { sender },
                ..
            }) = packet.view().capable
            {
                self.proxy_key = Some(sender);
            }
        } else if packet.tcp.seq == self.next {
            let len = u32::try_from(packet.payload.len()).expect("short");
            self.next = self.next.wrapping_add(len);
        }
    }
}

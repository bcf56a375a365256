//! Clients that name their server in the SYN (0-RTT Convert, RFC 8803): numbers, what FlexCP answers and repeats, who is refused.
#![forbid(unsafe_code)]

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use flexcp_preamble::Protocol;
use flexcp_testkit::{Packet, Shelf, keys};
use flexcp_translator::{
    Allowed, Config, ConnectionState, DropReason, FastPath, FlowEntry, Frame, HEADROOM,
    HalfOpenEvicted, Installed, Instant, Intake, Limits, Mode, Payload, Prefix, Service, ServiceId,
    Timeouts, Translator, Verdict,
};
use flexcp_wire::{
    CapableFlags, CapableKeys, ChecksumState, DataNumber, Dss, DssMapping, MpCapable, MptcpOption,
    Offload, SackBlocks, TcpFlags, TcpOption, Timestamps,
};

/// Connect for 10.55.9.9:80, as Tessares' libconvert sends it.
const CONNECT: [u8; 24] = [
    1, 6, 0x22, 0x63, 10, 5, 0, 80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 55, 9, 9,
];
/// What it is answered: nothing more than that this is Convert.
const ANSWER: [u8; 4] = [1, 1, 0x22, 0x63];
/// Data behind it.
const EARLY: &[u8] = b"GET / HTTP";

const CLIENT_ISN: u32 = 0xffff_fff0;
const SERVER_ISN: u32 = 2;
const CLIENT_KEY: u64 = 0x0503_34cf_e246_2c44;

const SYN: TcpFlags = TcpFlags::SYN;
const ACK: TcpFlags = TcpFlags::ACK;

/// FlexCP between a client and the server that it names. Numbers of what goes in and comes out are counted from the SYNs.
struct World {
    translator: Translator,
    now: Instant,
    /// Where FlexCP connects from.
    source: Option<SocketAddr>,
    key: Option<u64>,
}

/// A packet that came out.
#[derive(Debug)]
struct Out {
    to_server: bool,
    packet: Packet,
}

impl Out {
    fn seq(&self) -> i32 {
        let base = if self.to_server {
            CLIENT_ISN
        } else {
            SERVER_ISN
        };
        self.packet.tcp.seq.wrapping_sub(base).cast_signed()
    }

    fn ack(&self) -> i32 {
        let base = if self.to_server {
            SERVER_ISN
        } else {
            CLIENT_ISN
        };
        self.packet.tcp.ack.wrapping_sub(base).cast_signed()
    }

    fn dss(&self) -> Option<Dss> {
        self.packet.view().dss
    }

    /// DSN, SSN and length.
    fn mapping(&self, idsn: u64) -> Option<(u64, u32, u16)> {
        let mapping = self.dss()?.mapping?;
        let DataNumber::Long(dsn) = mapping.dsn else {
            panic!("a short DSN");
        };
        Some((dsn.wrapping_sub(idsn), mapping.ssn, mapping.len))
    }
}

fn end(text: &str) -> SocketAddr {
    text.parse().expect("an end")
}

fn client() -> SocketAddr {
    end("10.1.0.2:40000")
}

fn proxy() -> SocketAddr {
    end("10.2.0.1:1080")
}

fn server() -> SocketAddr {
    end("10.55.9.9:80")
}

impl World {
    fn new() -> Self {
        Self::with(|_| {})
    }

    fn with(change: impl FnOnce(&mut Config)) -> Self {
        let servers = Prefix {
            addr: end("10.55.0.0:0").ip(),
            len: 16,
        };
        let mut config = Config {
            services: vec![Service {
                id: ServiceId(0),
                name: "converter".into(),
                mode: Mode::Explicit {
                    protocol: Protocol::Convert,
                    listen: vec![proxy()],
                    allowed: vec![Allowed {
                        servers,
                        ports: vec![80..=80],
                    }],
                    source: vec![end("10.2.0.1:0").ip()],
                    source_ports: 61000..=61999,
                },
                announce: vec![],
                intake: Intake::default(),
            }],
            limits: Limits::default(),
            timeouts: Timeouts::default(),
            ..Config::default()
        };
        change(&mut config);
        Self {
            translator: Translator::new(config, [7; 32]),
            now: Instant::from_millis(1000),
            source: None,
            key: None,
        }
    }

    fn pass(&mut self, millis: u64) {
        self.now = self.now + Duration::from_millis(millis);
    }

    fn put(&mut self, packet: &Packet) -> (Verdict, Vec<Out>) {
        let bytes = packet.bytes();
        let mut buf = vec![0; HEADROOM + bytes.len()];
        buf[HEADROOM..].copy_from_slice(&bytes);
        let range = HEADROOM..buf.len();
        let mut frame = Frame::new(&mut buf, range, Offload::default());
        let verdict = self.translator.handle_packet(self.now, &mut frame).verdict;
        let mut out = vec![];
        if verdict == Verdict::Forward {
            out.push(frame.packet().to_vec());
        }
        while let Some(sent) = self.translator.poll_transmit() {
            let mut bytes = sent.header().to_vec();
            match &sent.payload {
                Payload::None => {}
                Payload::Frame(range) => bytes.extend_from_slice(frame.buffer(range.clone())),
                Payload::Zeros(len) => bytes.resize(bytes.len() + len, 0),
                Payload::Bytes(data) => bytes.extend_from_slice(data),
            }
            out.push(bytes);
        }
        (verdict, self.read(&out))
    }

    /// The same of bytes; how many packets come out.
    fn put_raw(&mut self, bytes: &[u8]) -> usize {
        let mut buf = vec![0; HEADROOM + bytes.len()];
        buf[HEADROOM..].copy_from_slice(bytes);
        let range = HEADROOM..buf.len();
        let mut frame = Frame::new(&mut buf, range, Offload::default());
        let verdict = self.translator.handle_packet(self.now, &mut frame).verdict;
        let made = std::iter::from_fn(|| self.translator.poll_transmit()).count();
        made + usize::from(verdict == Verdict::Forward)
    }

    /// Does what is due, if something is.
    fn timeout(&mut self) -> Vec<Out> {
        if self
            .translator
            .poll_timeout()
            .is_none_or(|due| due > self.now)
        {
            return vec![];
        }
        self.translator.handle_timeout(self.now);
        let mut out = vec![];
        while let Some(sent) = self.translator.poll_transmit() {
            let mut bytes = sent.header().to_vec();
            if let Payload::Bytes(data) = &sent.payload {
                bytes.extend_from_slice(data);
            }
            out.push(bytes);
        }
        self.read(&out)
    }

    fn read(&mut self, out: &[Vec<u8>]) -> Vec<Out> {
        let read = out.iter().map(|bytes| {
            let packet = Packet::parse(bytes).expect("a TCP packet");
            let to_server = packet.ends().to == server();
            assert!(to_server || packet.ends().to == client(), "{packet:?}");
            if to_server {
                self.source = Some(packet.ends().from);
            } else if let Some(MpCapable {
                keys: CapableKeys::SynAck { sender },
                ..
            }) = packet.view().capable
            {
                self.key = Some(sender);
            }
            Out { to_server, packet }
        });
        read.collect()
    }

    fn of_client<'a>(
        &mut self,
        flags: TcpFlags,
        [seq, ack]: [i32; 2],
        options: impl IntoIterator<Item = TcpOption<'a>>,
        payload: &[u8],
    ) -> (Verdict, Vec<Out>) {
        let packet = Packet::new(client(), proxy())
            .flags(flags)
            .numbers(at(CLIENT_ISN, seq), at(SERVER_ISN, ack))
            .with_options(options)
            .with_payload(payload);
        self.put(&packet)
    }

    fn of_server<'a>(
        &mut self,
        flags: TcpFlags,
        [seq, ack]: [i32; 2],
        options: impl IntoIterator<Item = TcpOption<'a>>,
        payload: &[u8],
    ) -> (Verdict, Vec<Out>) {
        let to = self.source.expect("a SYN that came before");
        let packet = Packet::new(server(), to)
            .flags(flags)
            .numbers(at(SERVER_ISN, seq), at(CLIENT_ISN, ack))
            .with_options(options)
            .with_payload(payload);
        self.put(&packet)
    }

    /// FlexCP's IDSN.
    fn idsn(&self) -> u64 {
        keys::idsn(self.key.expect("a SYN/ACK that came before"))
    }

    /// The SYN of an MPTCP client with so much behind the preamble, and the server's answer.
    fn syn_ack(&mut self, early: &[u8]) -> Vec<Out> {
        let said = [&CONNECT[..], early].concat();
        let (verdict, out) = self.of_client(SYN, [0, 0], [mss(), capable(CapableKeys::Syn)], &said);
        assert_eq!(verdict, Verdict::Forward);
        assert_eq!(out.len(), 1);
        self.of_server(SYN | ACK, [0, 25], [mss()], &[]).1
    }

    /// The client's third packet.
    fn third(&mut self, early: &[u8]) -> Vec<Out> {
        let next = 25 + i32::try_from(early.len()).unwrap();
        let keys = CapableKeys::Ack {
            sender: CLIENT_KEY,
            receiver: self.key.expect("a SYN/ACK that came before"),
        };
        self.of_client(ACK, [next, -3], [capable(keys)], &[]).1
    }

    fn established(early: &[u8]) -> Self {
        let mut world = Self::new();
        let _ = world.syn_ack(early);
        let _ = world.third(early);
        assert_eq!(world.state(), ConnectionState::Translating);
        world
    }

    fn state(&self) -> ConnectionState {
        let mut all = self.translator.connections(self.now);
        all.next().expect("a connection").state
    }

    fn repeated(&self) -> u64 {
        self.translator.counters().front_repeated
    }
}

fn at(base: u32, relative: i32) -> u32 {
    base.wrapping_add_signed(relative)
}

const fn mss() -> TcpOption<'static> {
    TcpOption::Mss(1460)
}

const fn capable(keys: CapableKeys) -> TcpOption<'static> {
    TcpOption::Mptcp(MptcpOption::Capable(MpCapable {
        version: 1,
        flags: CapableFlags::HMAC_SHA256,
        keys,
    }))
}

/// A data ACK, and a mapping of DSN, SSN and length.
fn dss(data_ack: u64, mapping: Option<(u64, u32, u16)>) -> TcpOption<'static> {
    TcpOption::Mptcp(MptcpOption::Dss(Dss {
        data_ack: Some(DataNumber::Long(data_ack)),
        mapping: mapping.map(|(dsn, ssn, len)| DssMapping {
            dsn: DataNumber::Long(dsn),
            ssn,
            len,
            checksum: None,
        }),
        data_fin: false,
    }))
}

#[test]
fn syn_goes_to_the_server_behind_the_preamble() {
    let mut world = World::new();
    let said = [&CONNECT[..], EARLY].concat();
    let (verdict, out) = world.of_client(SYN, [0, 0], [mss(), capable(CapableKeys::Syn)], &said);
    assert_eq!(verdict, Verdict::Forward);
    let [syn] = &out[..] else { panic!("{out:?}") };
    assert!(syn.to_server);
    assert_eq!((syn.seq(), syn.packet.tcp.flags), (24, SYN));
    assert!(syn.packet.payload.is_empty() && !syn.packet.view().mptcp);
    let from = syn.packet.ends().from;
    assert!((61000..=61999).contains(&from.port()), "{from}");
    assert_eq!(world.translator.counters().preambles, 1);
    assert_eq!(world.translator.counters().mp_capable_syn_rx, 1);
}

#[test]
fn syn_ack_acks_all_of_the_syn_and_starts_before_the_servers_stream() {
    let mut world = World::new();
    let out = world.syn_ack(EARLY);
    let [syn_ack] = &out[..] else {
        panic!("{out:?}")
    };
    assert!(!syn_ack.to_server);
    assert_eq!((syn_ack.seq(), syn_ack.ack()), (-4, 25 + 10));
    assert_eq!(syn_ack.packet.tcp.flags, SYN | ACK);
    assert!(world.key.is_some() && syn_ack.packet.payload.is_empty());
    // Its first answer was of another SYN.
    let (verdict, _) = World::new_after_syn().of_server(SYN | ACK, [0, 35], [mss()], &[]);
    assert!(matches!(verdict, Verdict::Drop(_)));
}

impl World {
    fn new_after_syn() -> Self {
        let mut world = Self::new();
        let _ = world.of_client(SYN, [0, 0], [mss(), capable(CapableKeys::Syn)], &CONNECT);
        world
    }
}

#[test]
fn client_is_answered_and_early_data_goes_on_once_it_has_shown_where_it_is() {
    let mut world = World::new();
    let _ = world.syn_ack(EARLY);
    let out = world.third(EARLY);
    let [ack, early, answer] = &out[..] else {
        panic!("{out:?}")
    };
    // The server knows nothing of an answer.
    assert!(ack.to_server && early.to_server && !answer.to_server);
    assert_eq!((ack.ack(), ack.packet.payload.len()), (1, 0));
    assert_eq!((early.seq(), early.ack()), (25, 1));
    assert_eq!(early.packet.payload, EARLY);
    assert_eq!((answer.seq(), answer.ack()), (-3, 35));
    assert_eq!(answer.packet.payload, ANSWER);
    assert_eq!(answer.mapping(world.idsn()), Some((1, 1, 4)));
    assert_eq!(world.translator.counters().mp_capable_ack_rx, 1);
}

#[test]
fn streams_stand_behind_preamble_and_answer() {
    let mut world = World::established(EARLY);
    let idsn = world.idsn();
    let (_, out) = world.of_server(ACK, [1, 35], [], b"hello");
    let [down] = &out[..] else { panic!("{out:?}") };
    assert_eq!((down.seq(), down.packet.payload.len()), (1, 5));
    assert_eq!(down.mapping(idsn), Some((5, 5, 5)));
    let client_idsn = keys::idsn(CLIENT_KEY);
    let mapping = (client_idsn.wrapping_add(1), 1, 3);
    let data_ack = dss(idsn.wrapping_add(10), Some(mapping));
    let (_, out) = world.of_client(ACK, [35, 6], [data_ack], b"abc");
    let [up] = &out[..] else { panic!("{out:?}") };
    assert!(up.to_server);
    assert_eq!((up.seq(), up.ack()), (35, 6));
    assert_eq!(up.packet.payload, b"abc");
    assert_eq!(world.translator.counters().fallback_established, 0);
}

#[test]
fn what_is_not_acked_is_repeated_and_what_is_acked_is_not() {
    let mut world = World::established(EARLY);
    let idsn = world.idsn();
    world.pass(299);
    assert!(world.timeout().is_empty());
    world.pass(1);
    let out = world.timeout();
    let [early, answer] = &out[..] else {
        panic!("{out:?}")
    };
    assert_eq!((early.seq(), &early.packet.payload[..]), (25, EARLY));
    assert_eq!(
        (answer.seq(), &answer.packet.payload[..]),
        (-3, &ANSWER[..])
    );
    assert_eq!(answer.mapping(idsn), Some((1, 1, 4)));
    assert_eq!(world.repeated(), 1);
    // The server has it, the client does not.
    let _ = world.of_server(ACK, [1, 35], [], &[]);
    world.pass(600);
    let out = world.timeout();
    let [answer] = &out[..] else {
        panic!("{out:?}")
    };
    assert_eq!(answer.packet.payload, ANSWER);
    // Half of it.
    let _ = world.of_client(ACK, [35, -1], [dss(idsn.wrapping_add(3), None)], &[]);
    world.pass(1200);
    let out = world.timeout();
    let [rest] = &out[..] else { panic!("{out:?}") };
    assert_eq!((rest.seq(), &rest.packet.payload[..]), (-1, &ANSWER[2..]));
    let _ = world.of_client(ACK, [35, 1], [dss(idsn.wrapping_add(5), None)], &[]);
    world.pass(60_000);
    assert!(world.timeout().is_empty());
    assert_eq!(world.repeated(), 3);
}

#[test]
fn server_hears_of_nothing_before_its_first_byte() {
    let mut world = World::established(&[]);
    let idsn = world.idsn();
    let _ = world.of_server(ACK, [1, 25], [], &[b'x'; 100]);
    // The answer is lost; what the server sent has come.
    let mut blocks = SackBlocks::default();
    blocks.push(at(SERVER_ISN, 1), at(SERVER_ISN, 101));
    let options = [dss(idsn.wrapping_add(1), None), TcpOption::Sack(blocks)];
    let (_, out) = world.of_client(ACK, [25, -3], options, &[]);
    for to_server in out.iter().filter(|out| out.to_server) {
        assert_eq!(to_server.ack(), 1);
        assert!(to_server.packet.view().sack.is_empty(), "{to_server:?}");
    }
}

#[test]
fn repeated_syn_goes_to_the_server_again() {
    let mut world = World::new_after_syn();
    // Linux sends it again without the data.
    let (verdict, out) = world.of_client(SYN, [0, 0], [mss(), capable(CapableKeys::Syn)], &[]);
    assert_eq!(verdict, Verdict::Forward);
    let [syn] = &out[..] else { panic!("{out:?}") };
    assert_eq!((syn.seq(), syn.packet.payload.len()), (24, 0));
    // In the end it gives MPTCP up.
    let (_, out) = world.of_client(SYN, [0, 0], [mss()], &[]);
    assert_eq!(out[0].seq(), 24);
    let (_, out) = world.of_server(SYN | ACK, [0, 25], [mss()], &[]);
    let [syn_ack] = &out[..] else {
        panic!("{out:?}")
    };
    assert!(!syn_ack.packet.view().mptcp);
    assert_eq!((syn_ack.seq(), syn_ack.ack()), (-4, 25));
    assert_eq!(syn_ack.packet.payload, ANSWER);
}

#[test]
fn nobody_gets_more_than_came_from_there() {
    let mut world = World::new_after_syn();
    let mut sent = usize::from(u8::try_from(40 + 8 + 24).unwrap());
    let mut got = 0;
    for round in 0..20 {
        let (verdict, out) = world.of_server(SYN | ACK, [0, 25], [mss()], &[]);
        let bytes = |out: &Out| 40 + out.packet.options.len() + out.packet.payload.len();
        got += out.iter().map(bytes).sum::<usize>();
        assert!(got <= sent, "{got} bytes for {sent} in round {round}");
        if round > 0 && out.is_empty() {
            assert!(matches!(verdict, Verdict::Drop(_)), "{verdict:?}");
        }
        if round % 4 == 3 {
            let syn = [mss(), capable(CapableKeys::Syn)];
            let _ = world.of_client(SYN, [0, 0], syn, &[]);
            sent += 40 + 8;
        }
    }
    assert!(got > 60, "{got}");
    assert!(world.translator.drops().get(DropReason::Unproved) > 10);
}

#[test]
fn plain_client_is_answered_in_the_syn_ack() {
    let mut world = World::new();
    let said = [&CONNECT[..], EARLY].concat();
    let (_, out) = world.of_client(SYN, [0, 0], [mss()], &said);
    assert_eq!((out[0].seq(), out[0].packet.payload.len()), (24, 0));
    let (_, out) = world.of_server(SYN | ACK, [0, 25], [mss()], &[]);
    let [syn_ack] = &out[..] else {
        panic!("{out:?}")
    };
    assert_eq!((syn_ack.seq(), syn_ack.ack()), (-4, 35));
    assert_eq!(syn_ack.packet.payload, ANSWER);
    // It takes it all.
    let (_, out) = world.of_client(ACK, [35, 1], [], &[]);
    let [ack, early] = &out[..] else {
        panic!("{out:?}")
    };
    assert_eq!((ack.seq(), ack.ack()), (35, 1));
    assert_eq!((early.seq(), &early.packet.payload[..]), (25, EARLY));
    let (_, out) = world.of_server(ACK, [1, 35], [], b"hello");
    assert_eq!((out[0].seq(), out[0].ack()), (1, 35));
    world.pass(10_000);
    assert!(world.timeout().is_empty());
}

#[test]
fn plain_client_that_drops_data_of_a_syn_ack_is_answered_again() {
    let mut world = World::new();
    let _ = world.of_client(SYN, [0, 0], [mss()], &CONNECT);
    let _ = world.of_server(SYN | ACK, [0, 25], [mss()], &[]);
    let (_, out) = world.of_client(ACK, [25, -3], [], &[]);
    let [ack, answer] = &out[..] else {
        panic!("{out:?}")
    };
    // A server takes no ACK of less than its SYN.
    assert_eq!((ack.seq(), ack.ack()), (25, 1));
    assert_eq!((answer.seq(), answer.ack()), (-3, 25));
    assert_eq!(answer.packet.payload, ANSWER);
    world.pass(300);
    let out = world.timeout();
    assert_eq!(out[0].packet.payload, ANSWER);
    let _ = world.of_client(ACK, [25, 1], [], &[]);
    world.pass(10_000);
    assert!(world.timeout().is_empty());
}

#[test]
fn client_that_comes_back_without_mptcp_falls_back() {
    let mut world = World::new();
    let _ = world.syn_ack(&[]);
    let (_, out) = world.of_client(ACK, [25, -3], [], &[]);
    let [ack, answer] = &out[..] else {
        panic!("{out:?}")
    };
    assert_eq!(ack.ack(), 1);
    assert_eq!((answer.seq(), answer.dss()), (-3, None));
    assert_eq!(answer.packet.payload, ANSWER);
    assert_eq!(world.translator.counters().fallback_handshake, 1);
}

#[test]
fn whoever_is_not_understood_or_not_allowed_is_refused() {
    let port = |port: u8| {
        let mut said = CONNECT;
        said[7] = port;
        said.to_vec()
    };
    let server = |octet: u8| {
        let mut said = CONNECT;
        said[21] = octet;
        said.to_vec()
    };
    let cases = [
        (vec![], "preamble"),
        (CONNECT[..20].to_vec(), "preamble"),
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), "preamble"),
        (port(22), "not_allowed"),
        (server(56), "not_allowed"),
    ];
    for (said, why) in cases {
        let mut world = World::new();
        let (verdict, out) =
            world.of_client(SYN, [0, 0], [mss(), capable(CapableKeys::Syn)], &said);
        assert!(matches!(verdict, Verdict::Drop(_)), "{said:?}");
        let [rst] = &out[..] else { panic!("{out:?}") };
        assert!(rst.packet.tcp.flags.contains(TcpFlags::RST));
        assert_eq!(rst.ack(), 1 + i32::try_from(said.len()).unwrap());
        let causes = world.translator.counters().causes;
        let moved: Vec<_> = causes.iter().filter(|(.., count)| *count > 0).collect();
        assert_eq!(moved, [("rst", why, 1)]);
        assert_eq!(world.translator.counters().connections_opened, 0);
    }
}

#[test]
fn oldest_handshake_with_the_server_makes_room_when_ports_run_out() {
    let mut world = World::with(|config| {
        let Mode::Explicit { source_ports, .. } = &mut config.services[0].mode else {
            panic!("another mode");
        };
        *source_ports = 61000..=61000;
    });
    let syn = |port: u16, last: u8| {
        let mut said = CONNECT;
        said[23] = last;
        Packet::new(SocketAddr::new(client().ip(), port), proxy())
            .flags(SYN)
            .numbers(CLIENT_ISN, 0)
            .with_options([mss(), capable(CapableKeys::Syn)])
            .with_payload(said)
    };
    let elsewhere = syn(1, 8);
    // With another server: its port is free for this one.
    assert_eq!(world.put_raw(&elsewhere.bytes()), 1);
    let (_, out) = world.put(&syn(2, 9));
    assert_eq!(out.len(), 1);
    let (_, out) = world.put(&syn(3, 9));
    let [rst, syn] = &out[..] else {
        panic!("{out:?}")
    };
    assert!(rst.to_server && rst.packet.tcp.flags.contains(TcpFlags::RST));
    assert_eq!((syn.seq(), syn.packet.tcp.flags), (24, SYN));
    assert_eq!(rst.packet.ends(), syn.packet.ends());
    let causes = world.translator.counters().causes;
    assert_eq!(causes.get(HalfOpenEvicted::Ports), 1);
    let mut left: Vec<_> = world
        .translator
        .connections(world.now)
        .map(|view| view.client.port())
        .collect();
    left.sort_unstable();
    assert_eq!(left, [1, 3]);
}

#[test]
fn server_that_refuses_is_heard() {
    let mut world = World::new_after_syn();
    let (_, out) = world.of_server(TcpFlags::RST | ACK, [0, 25], [], &[]);
    let [rst] = &out[..] else { panic!("{out:?}") };
    assert!(!rst.to_server && rst.packet.tcp.flags.contains(TcpFlags::RST));
    assert_eq!(rst.ack(), 25);
    assert_eq!(world.translator.connections(world.now).count(), 0);
}

#[test]
fn checksums_are_right() {
    let mut world = World::new();
    let said = [&CONNECT[..], EARLY].concat();
    let packet = Packet::new(client(), proxy())
        .flags(SYN)
        .numbers(CLIENT_ISN, 0)
        .with_options([mss(), capable(CapableKeys::Syn)])
        .with_payload(said);
    let bytes = packet.bytes();
    let mut buf = vec![0; HEADROOM + bytes.len()];
    buf[HEADROOM..].copy_from_slice(&bytes);
    let range = HEADROOM..buf.len();
    let mut frame = Frame::new(&mut buf, range, Offload::default());
    let step = world.translator.handle_packet(world.now, &mut frame);
    assert_eq!(step.verdict, Verdict::Forward);
    // Without the payload it is another sum.
    assert_eq!(frame.offload.checksum, ChecksumState::Partial);
    let _ = Packet::read_in(frame.packet(), ChecksumState::Partial);
}

/// A fast path that says how many connections it has.
#[derive(Clone, Debug, Default)]
struct Slots(Arc<Mutex<Shelf<FlowEntry>>>);

impl Slots {
    fn shelf(&self) -> MutexGuard<'_, Shelf<FlowEntry>> {
        self.0.lock().expect("one thread")
    }
}

impl FastPath for Slots {
    fn install(&mut self, slot: Option<u32>, entry: &FlowEntry, _: Option<u32>) -> Installed {
        Installed::Slot(self.shelf().put(slot, *entry))
    }

    fn evict(&mut self, slot: u32) -> FlowEntry {
        self.shelf().take(slot)
    }

    fn peek(&self, slot: u32) -> FlowEntry {
        self.shelf().peek(slot)
    }

    fn peek_all(&self, each: &mut dyn FnMut(&FlowEntry)) {
        self.shelf().entries().for_each(each);
    }

    fn release(&mut self, slot: u32) {
        self.shelf().release(slot);
    }

    fn held(&self) -> u32 {
        self.shelf().held()
    }

    fn punted(&self, _: u32) -> Option<u32> {
        None
    }

    fn pass_by(&mut self, _: flexcp_wire::Ends) -> bool {
        false
    }
}

#[test]
fn connection_is_offloaded_once_its_client_has_the_answer() {
    const fn ts(val: u32, ecr: u32) -> TcpOption<'static> {
        TcpOption::Timestamps(Timestamps { val, ecr })
    }
    let (mut world, slots) = (World::new(), Slots::default());
    world.translator.set_fast_path(Box::new(slots.clone()));
    let options = [mss(), ts(1000, 0), capable(CapableKeys::Syn)];
    let _ = world.of_client(SYN, [0, 0], options, &CONNECT);
    let _ = world.of_server(SYN | ACK, [0, 25], [mss(), ts(5000, 1000)], &[]);
    let keys = capable(CapableKeys::Ack {
        sender: CLIENT_KEY,
        receiver: world.key.expect("a SYN/ACK"),
    });
    let _ = world.of_client(ACK, [25, -3], [ts(1001, 5000), keys], &[]);
    let idsn = world.idsn();
    let _ = world.of_server(ACK, [1, 25], [ts(5001, 1001)], &[]);
    let send = |world: &mut World, round: i32, acked: u64, ack: i32| {
        world.pass(10);
        let at = 1 + round * 100;
        let _ = world.of_server(ACK, [at, 25], [ts(5001, 1001)], &[b'x'; 100]);
        let data_ack = dss(idsn.wrapping_add(acked), None);
        let _ = world.of_client(ACK, [25, ack], [ts(1001, 5001), data_ack], &[]);
        world.translator.idle(world.now);
        slots.shelf().held()
    };
    for round in 0..30 {
        assert_eq!(send(&mut world, round, 1, -3), 0, "the answer is missing");
    }
    for round in 30..60 {
        let all = 1 + (round + 1) * 100;
        send(&mut world, round, u64::try_from(all + 4).unwrap(), all);
    }
    assert_eq!(slots.shelf().held(), 1);
    let entry = *slots.shelf().entries().next().expect("an entry");
    let subflow = entry.subflows[0];
    // Mappings count from behind the preamble, and from before the answer.
    assert_eq!(subflow.isn_remote, at(CLIENT_ISN, 24));
    assert_eq!(subflow.isn_local, at(SERVER_ISN, -4));
}

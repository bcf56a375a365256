//! A client, FlexCP, and the server that the client names.

use std::net::SocketAddr;
use std::time::Duration;

use flexcp_preamble::Protocol;
use flexcp_testkit::{Packet, keys};
use flexcp_translator::{
    Allowed, Config, ConnectionState, Frame, HEADROOM, Instant, Intake, Limits, Mode, Payload,
    Prefix, Service, ServiceId, Timeouts, Translator, Verdict,
};
use flexcp_wire::{
    CapableFlags, CapableKeys, DataNumber, Dss, DssMapping, MpCapable, MptcpOption, Offload,
    TcpFlags, TcpOption,
};

/// Connect for 10.55.9.9:80, as Tessares' libconvert sends it.
pub(crate) const CONNECT: [u8; 24] = [
    1, 6, 0x22, 0x63, 10, 5, 0, 80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 55, 9, 9,
];
/// What it is answered: nothing more than that this is Convert.
pub(crate) const ANSWER: [u8; 4] = [1, 1, 0x22, 0x63];
/// Data behind it.
pub(crate) const EARLY: &[u8] = b"GET / HTTP";

pub(crate) const CLIENT_ISN: u32 = 0xffff_fff0;
pub(crate) const SERVER_ISN: u32 = 2;
pub(crate) const CLIENT_KEY: u64 = 0x0503_34cf_e246_2c44;

pub(crate) const SYN: TcpFlags = TcpFlags::SYN;
pub(crate) const ACK: TcpFlags = TcpFlags::ACK;

/// FlexCP between a client and the server that it names. Numbers of what goes in and comes out are counted from the SYNs.
pub(crate) struct World {
    pub(crate) translator: Translator,
    pub(crate) now: Instant,
    /// Where FlexCP connects from.
    source: Option<SocketAddr>,
    pub(crate) key: Option<u64>,
}

/// A packet that came out.
#[derive(Debug)]
pub(crate) struct Out {
    pub(crate) to_server: bool,
    pub(crate) packet: Packet,
}

impl Out {
    pub(crate) fn seq(&self) -> i32 {
        let base = if self.to_server {
            CLIENT_ISN
        } else {
            SERVER_ISN
        };
        self.packet.tcp.seq.wrapping_sub(base).cast_signed()
    }

    pub(crate) fn ack(&self) -> i32 {
        let base = if self.to_server {
            SERVER_ISN
        } else {
            CLIENT_ISN
        };
        self.packet.tcp.ack.wrapping_sub(base).cast_signed()
    }

    pub(crate) fn dss(&self) -> Option<Dss> {
        self.packet.view().dss
    }

    /// DSN, SSN and length.
    pub(crate) fn mapping(&self, idsn: u64) -> Option<(u64, u32, u16)> {
        let mapping = self.dss()?.mapping?;
        let DataNumber::Long(dsn) = mapping.dsn else {
            panic!("a short DSN");
        };
        Some((dsn.wrapping_sub(idsn), mapping.ssn, mapping.len))
    }
}

pub(crate) fn end(text: &str) -> SocketAddr {
    text.parse().expect("an end")
}

pub(crate) fn client() -> SocketAddr {
    end("10.1.0.2:40000")
}

pub(crate) fn proxy() -> SocketAddr {
    end("10.2.0.1:1080")
}

pub(crate) fn server() -> SocketAddr {
    end("10.55.9.9:80")
}

impl World {
    pub(crate) fn new() -> Self {
        Self::with(|_| {})
    }

    pub(crate) fn with(change: impl FnOnce(&mut Config)) -> Self {
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
                    users: vec![],
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

    pub(crate) fn pass(&mut self, millis: u64) {
        self.now = self.now + Duration::from_millis(millis);
    }

    pub(crate) fn put(&mut self, packet: &Packet) -> (Verdict, Vec<Out>) {
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

    /// The same of bytes; the TCP packets that come out.
    pub(crate) fn put_bytes(&mut self, bytes: &[u8]) -> (Verdict, Vec<Out>) {
        let mut buf = vec![0; HEADROOM + bytes.len()];
        buf[HEADROOM..].copy_from_slice(bytes);
        let range = HEADROOM..buf.len();
        let mut frame = Frame::new(&mut buf, range, Offload::default());
        let verdict = self.translator.handle_packet(self.now, &mut frame).verdict;
        (verdict, self.sent())
    }

    /// The same of bytes; how many packets come out.
    pub(crate) fn put_raw(&mut self, bytes: &[u8]) -> usize {
        let mut buf = vec![0; HEADROOM + bytes.len()];
        buf[HEADROOM..].copy_from_slice(bytes);
        let range = HEADROOM..buf.len();
        let mut frame = Frame::new(&mut buf, range, Offload::default());
        let verdict = self.translator.handle_packet(self.now, &mut frame).verdict;
        let made = std::iter::from_fn(|| self.translator.poll_transmit()).count();
        made + usize::from(verdict == Verdict::Forward)
    }

    /// Does what is due, if something is.
    pub(crate) fn timeout(&mut self) -> Vec<Out> {
        if self
            .translator
            .poll_timeout()
            .is_none_or(|due| due > self.now)
        {
            return vec![];
        }
        self.translator.handle_timeout(self.now);
        self.sent()
    }

    /// What waits to be sent.
    pub(crate) fn sent(&mut self) -> Vec<Out> {
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

    pub(crate) fn read(&mut self, out: &[Vec<u8>]) -> Vec<Out> {
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

    pub(crate) fn of_client<'a>(
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

    pub(crate) fn of_server<'a>(
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

    /// The same; what it gives is for a client who is not looked at here.
    pub(crate) fn of_server_raw<'a>(
        &mut self,
        flags: TcpFlags,
        [seq, ack]: [i32; 2],
        options: impl IntoIterator<Item = TcpOption<'a>>,
    ) -> usize {
        let to = self.source.expect("a SYN that came before");
        let packet = Packet::new(server(), to)
            .flags(flags)
            .numbers(at(SERVER_ISN, seq), at(CLIENT_ISN, ack))
            .with_options(options);
        self.put_raw(&packet.bytes())
    }

    /// Where FlexCP connects from, once it has.
    pub(crate) const fn source(&self) -> Option<SocketAddr> {
        self.source
    }

    /// FlexCP's IDSN.
    pub(crate) fn idsn(&self) -> u64 {
        keys::idsn(self.key.expect("a SYN/ACK that came before"))
    }

    /// The SYN of an MPTCP client with so much behind the preamble, and the server's answer.
    pub(crate) fn syn_ack(&mut self, early: &[u8]) -> Vec<Out> {
        let said = [&CONNECT[..], early].concat();
        let (verdict, out) = self.of_client(SYN, [0, 0], [mss(), capable(CapableKeys::Syn)], &said);
        assert_eq!(verdict, Verdict::Forward);
        assert_eq!(out.len(), 1);
        self.of_server(SYN | ACK, [0, 25], [mss()], &[]).1
    }

    /// The client's third packet.
    pub(crate) fn third(&mut self, early: &[u8]) -> Vec<Out> {
        self.third_with(early, &[])
    }

    /// With data behind what its SYN carried.
    pub(crate) fn third_with(&mut self, early: &[u8], payload: &[u8]) -> Vec<Out> {
        let next = 25 + i32::try_from(early.len()).unwrap();
        let receiver = self.key.expect("a SYN/ACK that came before");
        let keys = keys_of_third(receiver, payload);
        self.of_client(ACK, [next, -3], [capable(keys)], payload).1
    }

    pub(crate) fn established(early: &[u8]) -> Self {
        let mut world = Self::new();
        let _ = world.syn_ack(early);
        let _ = world.third(early);
        assert_eq!(world.state(), ConnectionState::Translating);
        world
    }

    pub(crate) fn state(&self) -> ConnectionState {
        let mut all = self.translator.connections(self.now);
        all.next().expect("a connection").state
    }

    pub(crate) fn repeated(&self) -> u64 {
        self.translator.counters().front_repeated
    }
}

pub(crate) fn at(base: u32, relative: i32) -> u32 {
    base.wrapping_add_signed(relative)
}

pub(crate) const fn mss() -> TcpOption<'static> {
    TcpOption::Mss(1460)
}

pub(crate) const fn capable(keys: CapableKeys) -> TcpOption<'static> {
    TcpOption::Mptcp(MptcpOption::Capable(MpCapable {
        version: 1,
        flags: CapableFlags::HMAC_SHA256,
        keys,
    }))
}

/// A data ACK, and a mapping of DSN, SSN and length.
pub(crate) fn dss(data_ack: u64, mapping: Option<(u64, u32, u16)>) -> TcpOption<'static> {
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

impl World {
    pub(crate) fn new_after_syn() -> Self {
        let mut world = Self::new();
        let _ = world.of_client(SYN, [0, 0], [mss(), capable(CapableKeys::Syn)], &CONNECT);
        world
    }
}

/// The keys in a client's third packet.
pub(crate) fn keys_of_third(receiver: u64, payload: &[u8]) -> CapableKeys {
    let sender = CLIENT_KEY;
    match u16::try_from(payload.len()).expect("a segment") {
        0 => CapableKeys::Ack { sender, receiver },
        data_len => CapableKeys::AckData {
            sender,
            receiver,
            data_len,
            checksum: None,
        },
    }
}

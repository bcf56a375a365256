//! A client without MPTCP, a box with two uplinks, and a server that speaks it.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use flexcp_testkit::{Packet, keys};
use flexcp_translator::{
    AggregationServers, Approach, Config, ConnectionState, Frame, HEADROOM, Instant, Intake, Mode,
    Payload, Prefix, Protocol, Service, ServiceId, Translator, Uplink, User, Verdict,
};
use flexcp_wire::{
    CapableFlags, CapableKeys, DataNumber, Dss, DssMapping, MpCapable, MpJoin, MptcpOption,
    Offload, TcpFlags, TcpOption,
};

pub(crate) const CLIENT_ISN: u32 = 0xffff_fff0;
pub(crate) const SERVER_ISN: u32 = 0x7fff_fffe;
pub(crate) const SERVER_KEY: u64 = 0x0503_34cf_e246_2c44;
/// The server's nonce, and number, of each join.
pub(crate) const NONCE: u32 = 0x1234_5678;
pub(crate) const JOIN_ISN: u32 = 77;

pub(crate) const SYN: TcpFlags = TcpFlags::SYN;
pub(crate) const ACK: TcpFlags = TcpFlags::ACK;
pub(crate) const RST: TcpFlags = TcpFlags::RST;
pub(crate) const FIN: TcpFlags = TcpFlags::FIN;

pub(crate) struct World {
    pub(crate) translator: Translator,
    pub(crate) now: Instant,
    /// The box's ends of the subflows, in the order in which their SYNs came.
    pub(crate) subflows: Vec<SocketAddr>,
    /// Whom each goes to.
    pub(crate) peers: Vec<SocketAddr>,
    /// Which of them are joins.
    pub(crate) joins: Vec<bool>,
    /// The number of the box's SYN on each.
    pub(crate) isns: Vec<u32>,
    /// The box's key, once it has said that.
    pub(crate) key: Option<u64>,
    /// The nonce of its last join.
    pub(crate) join_nonce: u32,
}

/// A packet that came out.
#[derive(Debug)]
pub(crate) struct Out {
    pub(crate) packet: Packet,
    /// On which subflow; `None`: to the client.
    pub(crate) subflow: Option<usize>,
    isn: u32,
    remote: u32,
}

impl Out {
    /// Counted from the SYN.
    pub(crate) fn seq(&self) -> i32 {
        let base = self.subflow.map_or(SERVER_ISN, |_| self.isn);
        self.packet.tcp.seq.wrapping_sub(base).cast_signed()
    }

    /// The same of what it ACKs.
    pub(crate) fn ack(&self) -> i32 {
        let base = match self.subflow {
            None => CLIENT_ISN,
            Some(_) => self.remote,
        };
        self.packet.tcp.ack.wrapping_sub(base).cast_signed()
    }

    pub(crate) fn keys(&self) -> Option<CapableKeys> {
        Some(self.packet.view().capable?.keys)
    }

    pub(crate) fn join(&self) -> Option<MpJoin> {
        self.packet.view().join
    }

    pub(crate) fn dss(&self) -> Option<Dss> {
        self.packet.view().dss
    }

    /// Ids of addresses that it withdraws.
    pub(crate) fn removed(&self) -> Vec<u8> {
        let removed = self.packet.view().remove_addr;
        removed.map_or_else(Vec::new, |removed| removed.ids().to_vec())
    }
}

pub(crate) fn end(text: &str) -> SocketAddr {
    text.parse().expect("an end")
}

pub(crate) fn client() -> SocketAddr {
    end("192.168.1.10:40000")
}

pub(crate) fn server() -> SocketAddr {
    end("10.55.9.9:80")
}

/// An aggregation server; its port says what it speaks.
pub(crate) fn aggregation() -> SocketAddr {
    end("203.0.113.5:7124")
}

/// How an aggregation server that speaks this is asked.
pub(crate) fn approach(protocol: Protocol, user: Option<User>) -> Approach {
    let early = false;
    Approach {
        protocol,
        user,
        early,
    }
}

pub(crate) fn uplinks() -> [IpAddr; 2] {
    ["10.1.0.2", "10.2.0.2"].map(|addr| addr.parse().expect("an address"))
}

impl World {
    pub(crate) fn new() -> Self {
        Self::with(|_| {})
    }

    pub(crate) fn config() -> Config {
        let servers = Prefix {
            addr: end("10.55.0.0:0").ip(),
            len: 16,
        };
        Config {
            services: vec![Service {
                id: ServiceId(0),
                name: "home".into(),
                mode: Mode::Box {
                    destinations: vec![servers],
                    ports: vec![],
                    except: vec![],
                    servers: AggregationServers::default(),
                    join: vec![],
                    uplinks: uplinks().map(Uplink::from).into(),
                    source_ports: 61000..=61999,
                },
                announce: vec![],
                intake: Intake::default(),
            }],
            ..Config::default()
        }
    }

    pub(crate) fn with(change: impl FnOnce(&mut Config)) -> Self {
        let mut config = Self::config();
        change(&mut config);
        Self {
            translator: Translator::new(config, [7; 32]),
            now: Instant::from_millis(1000),
            subflows: vec![],
            peers: vec![],
            joins: vec![],
            isns: vec![],
            key: None,
            join_nonce: 0,
        }
    }

    /// The uplinks have these addresses from now on; what comes of it.
    pub(crate) fn with_uplinks(&mut self, addrs: [Option<&str>; 2]) -> Vec<Out> {
        self.with_uplinks_at(addrs, 61000..=61999)
    }

    /// The same, and new subflows come from these ports.
    pub(crate) fn with_uplinks_at(
        &mut self,
        addrs: [Option<&str>; 2],
        ports: std::ops::RangeInclusive<u16>,
    ) -> Vec<Out> {
        let mut config = Self::config();
        let Mode::Box {
            uplinks,
            source_ports,
            ..
        } = &mut config.services[0].mode
        else {
            unreachable!("it is a box");
        };
        *source_ports = ports;
        let uplink = |addr: &str| Uplink::from(addr.parse::<IpAddr>().expect("an address"));
        *uplinks = addrs
            .map(|addr| addr.map(uplink).unwrap_or_default())
            .into();
        self.translator.configure(config, self.now.0);
        let mut from = Some(flexcp_translator::Cursor::default());
        while let Some(next) = from {
            from = self.translator.follow_uplinks(self.now, next, 100);
        }
        while self.translator.end_stranded(self.now, self.now.0, 100) {}
        self.timeout()
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
            out.push(Packet::read_in(frame.packet(), frame.offload.checksum));
        }
        while let Some(sent) = self.translator.poll_transmit() {
            let mut bytes = sent.header().to_vec();
            match &sent.payload {
                Payload::None => {}
                Payload::Frame(range) => bytes.extend_from_slice(frame.buffer(range.clone())),
                Payload::Zeros(len) => bytes.resize(bytes.len() + len, 0),
                Payload::Bytes(data) => bytes.extend_from_slice(data),
            }
            out.push(Packet::parse(&bytes).expect("a TCP packet"));
        }
        (verdict, self.read(out))
    }

    /// The same of a packet whose answer is for somebody else.
    pub(crate) fn put_raw(&mut self, packet: &Packet) -> Verdict {
        let bytes = packet.bytes();
        let mut buf = vec![0; HEADROOM + bytes.len()];
        buf[HEADROOM..].copy_from_slice(&bytes);
        let range = HEADROOM..buf.len();
        let mut frame = Frame::new(&mut buf, range, Offload::default());
        let verdict = self.translator.handle_packet(self.now, &mut frame).verdict;
        while self.translator.poll_transmit().is_some() {}
        verdict
    }

    /// What is due, done; what comes of it.
    pub(crate) fn timeout(&mut self) -> Vec<Out> {
        let due = self.translator.poll_timeout();
        if due.is_some_and(|due| due <= self.now) {
            self.translator.handle_timeout(self.now);
        }
        let mut out = vec![];
        while let Some(sent) = self.translator.poll_transmit() {
            let mut bytes = sent.header().to_vec();
            if let Payload::Bytes(data) = &sent.payload {
                bytes.extend_from_slice(data);
            }
            out.push(Packet::parse(&bytes).expect("a TCP packet"));
        }
        self.read(out)
    }

    fn read(&mut self, out: Vec<Packet>) -> Vec<Out> {
        let read = out.into_iter().map(|packet| {
            let ends = packet.ends();
            if ends.to == client() {
                assert!(!packet.view().mptcp, "{packet:?}");
                assert_eq!(ends.from, server(), "{packet:?}");
                let (subflow, isn) = (None, SERVER_ISN);
                return Out {
                    packet,
                    subflow,
                    isn,
                    remote: CLIENT_ISN,
                };
            }
            let to = ends.to;
            assert!(to == server() || to.ip() == aggregation().ip() || to.is_ipv6());
            assert!(ends.from.port() >= 61000, "{packet:?}");
            let known = self.subflows.iter().position(|known| *known == ends.from);
            match known {
                Some(known) if packet.tcp.flags == SYN => self.isns[known] = packet.tcp.seq,
                None if packet.tcp.flags == SYN => {
                    self.subflows.push(ends.from);
                    self.peers.push(ends.to);
                    self.joins.push(packet.view().join.is_some());
                    self.isns.push(packet.tcp.seq);
                }
                _ => {}
            }
            if let Some(CapableKeys::Ack { sender, .. } | CapableKeys::AckData { sender, .. }) =
                packet.view().capable.map(|capable| capable.keys)
            {
                self.key = Some(sender);
            }
            if let Some(MpJoin::Syn { nonce, .. }) = packet.view().join {
                self.join_nonce = nonce;
            }
            let known = self.subflows.iter().position(|known| *known == ends.from);
            let subflow = known.expect("a SYN that came before");
            Out {
                packet,
                subflow: Some(subflow),
                isn: self.isns[subflow],
                remote: self.isn_of_server(subflow),
            }
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
        let packet = Packet::new(client(), server())
            .flags(flags)
            .numbers(at(CLIENT_ISN, seq), at(SERVER_ISN, ack))
            .with_options(options)
            .with_payload(payload);
        self.put(&packet)
    }

    pub(crate) fn of_server<'a>(
        &mut self,
        subflow: usize,
        flags: TcpFlags,
        [seq, ack]: [i32; 2],
        options: impl IntoIterator<Item = TcpOption<'a>>,
        payload: &[u8],
    ) -> (Verdict, Vec<Out>) {
        let base = self.isn_of_server(subflow);
        let packet = Packet::new(self.peers[subflow], self.subflows[subflow])
            .flags(flags)
            .numbers(at(base, seq), at(self.isns[subflow], ack))
            .with_options(options)
            .with_payload(payload);
        self.put(&packet)
    }

    /// The client's SYN, and the server's answer to the box's.
    pub(crate) fn answered() -> Self {
        Self::answered_with(|_| {})
    }

    pub(crate) fn answered_with(change: impl FnOnce(&mut Config)) -> Self {
        let mut world = Self::with(change);
        let (_, out) = world.of_client(SYN, [0, 0], offer(), &[]);
        assert_eq!(out.len(), 1);
        let (verdict, _) = world.of_server(0, SYN | ACK, [0, 1], answer(), &[]);
        assert_eq!(verdict, Verdict::Forward);
        world
    }

    /// The same, and the client's ACK.
    pub(crate) fn opened() -> Self {
        let mut world = Self::answered();
        let (verdict, _) = world.of_client(ACK, [1, 1], [], &[]);
        assert_eq!(verdict, Verdict::Forward);
        world
    }

    /// The same, and the server has shown that it has the keys.
    pub(crate) fn established() -> Self {
        let mut world = Self::opened();
        let data_ack = dss(world.idsn() + 1, None);
        let _ = world.of_server(0, ACK, [1, 1], [data_ack], &[]);
        world
    }

    /// The same, and the box has joined over its second uplink.
    pub(crate) fn joined() -> Self {
        let mut world = Self::established();
        assert_eq!(world.timeout().len(), 1);
        let _ = world.answer_join(1);
        let data_ack = dss(world.idsn() + 1, None);
        let _ = world.of_server(1, ACK, [1, 1], [data_ack], &[]);
        world
    }

    /// The server's answer to a join.
    pub(crate) fn answer_join(&mut self, subflow: usize) -> Vec<Out> {
        let nonce = self.join_nonce;
        let hmac = keys::join_syn_ack((SERVER_KEY, self.box_key()), (NONCE, nonce));
        let join = MpJoin::SynAck {
            backup: false,
            address_id: 0,
            hmac,
            nonce: NONCE,
        };
        self.of_server(subflow, SYN | ACK, [0, 1], [mss(), joins(join)], &[])
            .1
    }

    /// The number of the server's SYN on a subflow.
    pub(crate) fn isn_of_server(&self, subflow: usize) -> u32 {
        if self.joins[subflow] {
            JOIN_ISN
        } else {
            SERVER_ISN
        }
    }

    /// The box's key.
    pub(crate) fn box_key(&self) -> u64 {
        self.key.expect("keys that came before")
    }

    /// Its IDSN.
    pub(crate) fn idsn(&self) -> u64 {
        keys::idsn(self.box_key())
    }

    pub(crate) fn state(&self) -> Option<ConnectionState> {
        let mut all = self.translator.connections(self.now);
        all.next().map(|view| view.state)
    }
}

pub(crate) fn at(base: u32, relative: i32) -> u32 {
    base.wrapping_add_signed(relative)
}

pub(crate) const fn mss() -> TcpOption<'static> {
    TcpOption::Mss(1460)
}

/// What the client's SYN offers.
pub(crate) fn offer() -> Vec<TcpOption<'static>> {
    vec![mss(), TcpOption::SackPermitted, TcpOption::WindowScale(7)]
}

/// What the server's SYN/ACK does.
pub(crate) fn answer() -> Vec<TcpOption<'static>> {
    let key = capable(CapableKeys::SynAck { sender: SERVER_KEY });
    [offer(), vec![key]].concat()
}

pub(crate) const fn capable(keys: CapableKeys) -> TcpOption<'static> {
    capable_with(CapableFlags::HMAC_SHA256, keys)
}

pub(crate) const fn capable_with(flags: CapableFlags, keys: CapableKeys) -> TcpOption<'static> {
    TcpOption::Mptcp(MptcpOption::Capable(MpCapable {
        version: 1,
        flags,
        keys,
    }))
}

pub(crate) const fn joins(join: MpJoin) -> TcpOption<'static> {
    TcpOption::Mptcp(MptcpOption::Join(join))
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

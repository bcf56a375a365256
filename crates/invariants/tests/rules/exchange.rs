//! Packets by hand, on both sides of an imagined proxy.

use std::net::SocketAddr;

use flexcp_invariants::{Checker, Observation, Options, Point, Rule};
use flexcp_testkit::{self as testkit, keys};
use flexcp_wire::{
    CapableFlags, CapableKeys, ChecksumState, DataNumber, Dss, DssMapping, Gso, GsoKind, MpCapable,
    MpJoin, MptcpOption, Offload, SackBlocks, TcpFlags, TcpOption, Timestamps,
};

pub(crate) const ISN_CLIENT: u32 = u32::MAX - 50;
pub(crate) const ISN_SERVER: u32 = 5000;
pub(crate) const ISN_JOIN: u32 = 70_000;
pub(crate) const ISN_JOIN_PROXY: u32 = u32::MAX - 3;
pub(crate) const KEY_PROXY: u64 = 0x1111;
pub(crate) const KEY_CLIENT: u64 = 0x2222;

/// Where a packet goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Flow {
    First,
    Joined,
    Third,
    /// From the proxy's other uplink.
    Uplink,
    /// To whom the end with TCP has addressed.
    Wanted,
    Server,
    /// Of another end with TCP, with the same server.
    Other,
}

/// A packet that can still be changed.
#[derive(Clone, Debug)]
pub(crate) struct Packet {
    pub(crate) point: Point,
    pub(crate) flow: Flow,
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) flags: TcpFlags,
    pub(crate) window: u16,
    pub(crate) timestamps: Option<(u32, u32)>,
    pub(crate) sack: Vec<(u32, u32)>,
    pub(crate) mptcp: Option<MptcpOption>,
    pub(crate) others: Vec<TcpOption<'static>>,
    pub(crate) payload: Vec<u8>,
    pub(crate) damaged: bool,
    pub(crate) gso: Option<u16>,
}

/// A byte of the transfer.
pub(crate) fn byte(offset: u64) -> u8 {
    (offset.wrapping_mul(37) % 251) as u8 + 1
}

pub(crate) fn bytes(from: u64, len: u64) -> Vec<u8> {
    (from..from + len).map(byte).collect()
}

/// Data number of an offset in what goes down, or up.
pub(crate) fn dsn_down(offset: u64) -> u64 {
    keys::idsn(KEY_PROXY).wrapping_add(1).wrapping_add(offset)
}

pub(crate) fn dsn_up(offset: u64) -> u64 {
    keys::idsn(KEY_CLIENT).wrapping_add(1).wrapping_add(offset)
}

pub(crate) fn seq(isn: u32, offset: u64) -> u32 {
    isn.wrapping_add(1).wrapping_add(offset as u32)
}

pub(crate) fn dss(ack: u64, mapping: Option<(u64, u32, u16)>, data_fin: bool) -> MptcpOption {
    MptcpOption::Dss(Dss {
        data_ack: Some(DataNumber::Long(ack)),
        mapping: mapping.map(|(dsn, ssn, len)| DssMapping {
            dsn: DataNumber::Long(dsn),
            ssn,
            len,
            checksum: None,
        }),
        data_fin,
    })
}

pub(crate) fn capable(keys: CapableKeys) -> MptcpOption {
    MptcpOption::Capable(MpCapable {
        version: 1,
        flags: CapableFlags::HMAC_SHA256,
        keys,
    })
}

impl Packet {
    pub(crate) fn new(point: Point, flow: Flow, seq: u32, ack: u32) -> Self {
        Self {
            point,
            flow,
            seq,
            ack,
            flags: TcpFlags::ACK,
            window: 1000,
            timestamps: None,
            sack: vec![],
            mptcp: None,
            others: vec![],
            payload: vec![],
            damaged: false,
            gso: None,
        }
    }

    pub(crate) fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    fn ends(&self) -> (SocketAddr, SocketAddr) {
        let (client, proxy) = match self.flow {
            Flow::First => ("10.1.0.1:1000", "10.9.0.1:80"),
            Flow::Joined => ("10.2.0.1:2000", "10.9.0.1:80"),
            Flow::Third => ("10.3.0.1:3000", "10.9.0.1:80"),
            Flow::Uplink => ("10.1.0.1:1000", "10.9.1.1:81"),
            Flow::Wanted => ("10.9.0.2:3000", "10.9.0.1:80"),
            Flow::Other => ("10.9.0.2:3000", "10.8.0.2:80"),
            Flow::Server => ("10.9.0.2:3000", "10.8.0.1:80"),
        };
        let ends = (client.parse().unwrap(), proxy.parse().unwrap());
        match self.point {
            Point::FromClient | Point::ToServer => ends,
            Point::ToClient | Point::FromServer => (ends.1, ends.0),
        }
    }

    fn emit(&self) -> Vec<u8> {
        let (from, to) = self.ends();
        let stamp = |(val, ecr)| TcpOption::Timestamps(Timestamps { val, ecr });
        let mut sack = SackBlocks::new();
        for &(left, right) in &self.sack {
            sack.push(left, right);
        }
        let others = self.others.iter().copied();
        let options = others
            .chain(self.timestamps.map(stamp))
            .chain(self.mptcp.map(TcpOption::Mptcp))
            .chain((!sack.is_empty()).then_some(TcpOption::Sack(sack)));
        let mut packet = testkit::Packet::new(from, to)
            .flags(self.flags)
            .numbers(self.seq, self.ack)
            .with_options(options)
            .with_payload(&self.payload[..]);
        packet.tcp.window = self.window;
        let mut bytes = packet.bytes();
        // The last bit of the TCP checksum.
        bytes[37] ^= u8::from(self.damaged);
        bytes
    }
}

/// An exchange so far.
pub(crate) struct Exchange {
    pub(crate) checker: Checker,
    /// The first flow is with whom the end with TCP has addressed.
    pub(crate) direct: bool,
    time: u64,
}

impl Exchange {
    /// Established: SYN, SYN/ACK and third packet have passed. Window scales 0 and 2, timestamps if `clocks`.
    pub(crate) fn established(clocks: bool) -> Self {
        Self::with_options(clocks, Options::default())
    }

    pub(crate) fn with_options(clocks: bool, options: Options) -> Self {
        let keys = CapableKeys::Ack {
            sender: KEY_CLIENT,
            receiver: KEY_PROXY,
        };
        Self::opened(clocks, options, Some(capable(keys)))
    }

    /// Nothing has passed.
    pub(crate) fn start(options: Options) -> Self {
        Self {
            checker: Checker::new(options, None),
            direct: false,
            time: 0,
        }
    }

    /// Some time passes, in milliseconds.
    pub(crate) const fn wait(mut self, millis: u64) -> Self {
        self.time += millis * 1000;
        self
    }

    /// The same with something else in the client's third packet.
    pub(crate) fn opened(clocks: bool, options: Options, proof: Option<MptcpOption>) -> Self {
        let mut exchange = Self::start(options);
        let stamp = |val, ecr| clocks.then_some((val, ecr));
        let syn_options = |scale| {
            vec![
                TcpOption::Mss(1000),
                TcpOption::SackPermitted,
                TcpOption::WindowScale(scale),
            ]
        };
        let syn = |point, flow| {
            Packet::new(point, flow, ISN_CLIENT, 0).with(|p| {
                p.flags = TcpFlags::SYN;
                p.others = syn_options(2);
                p.timestamps = stamp(100, 0);
            })
        };
        let syn_ack = |point, flow| {
            Packet::new(point, flow, ISN_SERVER, ISN_CLIENT.wrapping_add(1)).with(|p| {
                p.flags = TcpFlags::SYN | TcpFlags::ACK;
                p.others = syn_options(0);
                p.timestamps = stamp(900, 100);
            })
        };
        exchange.see(&syn(Point::FromClient, Flow::First).with(|p| {
            p.mptcp = Some(capable(CapableKeys::Syn));
        }));
        exchange.see(&syn(Point::ToServer, Flow::Server));
        exchange.see(&syn_ack(Point::FromServer, Flow::Server));
        exchange.see(&syn_ack(Point::ToClient, Flow::First).with(|p| {
            p.mptcp = Some(capable(CapableKeys::SynAck { sender: KEY_PROXY }));
        }));
        let third = Packet::new(
            Point::FromClient,
            Flow::First,
            seq(ISN_CLIENT, 0),
            seq(ISN_SERVER, 0),
        );
        exchange.see(&third.clone().with(|p| {
            p.mptcp = proof;
            p.timestamps = stamp(101, 900);
        }));
        exchange.see(&third.with(|p| {
            p.point = Point::ToServer;
            p.flow = Flow::Server;
            p.timestamps = stamp(101, 900);
        }));
        exchange
    }

    /// A second subflow, established.
    pub(crate) fn join(mut self) -> Self {
        self.see(&join_syn(Flow::Joined));
        self.see(&join_syn_ack(Flow::Joined, ISN_JOIN_PROXY));
        self.see(
            &Packet::new(
                Point::FromClient,
                Flow::Joined,
                seq(ISN_JOIN, 0),
                seq(ISN_JOIN_PROXY, 0),
            )
            .with(|p| p.mptcp = Some(join_proof())),
        );
        self
    }

    /// A packet passes.
    pub(crate) fn see(&mut self, packet: &Packet) {
        self.time += 10;
        let mut packet = packet.clone();
        if self.direct && packet.flow == Flow::First {
            packet.flow = Flow::Wanted;
        }
        let bytes = packet.emit();
        let offload = Offload {
            checksum: ChecksumState::Complete,
            gso: packet.gso.map(|size| Gso {
                kind: GsoKind::TcpV4,
                size,
                ecn: false,
            }),
        };
        let seen = Observation::whole(self.time, packet.point, &bytes, offload).unwrap();
        self.checker.observe(&seen);
    }

    /// All these pass.
    pub(crate) fn pass(mut self, packets: &[Packet]) -> Self {
        for packet in packets {
            self.see(packet);
        }
        self
    }

    /// The proxy tells that new data goes down this flow.
    pub(crate) fn switches_to(mut self, flow: Flow, as_ruled: bool) -> Self {
        let ends = Packet::new(Point::FromClient, flow, 0, 0).ends();
        self.checker.observe_switch(self.time, ends, as_ruled);
        self
    }

    /// Nothing is wrong.
    #[track_caller]
    pub(crate) fn clean(self) -> Self {
        assert!(
            self.checker.violations().is_empty(),
            "{:#?}",
            self.checker.violations()
        );
        self
    }

    /// The last packet broke this rule first.
    #[track_caller]
    pub(crate) fn breaks(mut self, rule: Rule, last: &Packet) {
        self = self.clean();
        self.see(last);
        let found: Vec<Rule> = self.checker.violations().iter().map(|v| v.rule).collect();
        assert!(
            found.contains(&rule),
            "{rule} is not among {:#?}",
            self.checker.violations()
        );
    }
}

fn join_options(scale: u8) -> Vec<TcpOption<'static>> {
    vec![
        TcpOption::Mss(1000),
        TcpOption::SackPermitted,
        TcpOption::WindowScale(scale),
    ]
}

/// `MP_JOIN` of a join's third packet, with an HMAC that is not right.
pub(crate) const fn join_proof() -> MptcpOption {
    MptcpOption::Join(MpJoin::Ack { hmac: [0; 20] })
}

/// `MP_JOIN` of a join's third packet with the right one, for the nonces of [`join_syn`] and [`join_syn_ack`].
pub(crate) fn right_join_proof() -> MptcpOption {
    let hmac = keys::join_ack((KEY_CLIENT, KEY_PROXY), (1, 2));
    MptcpOption::Join(MpJoin::Ack { hmac })
}

/// A join's SYN.
pub(crate) fn join_syn(flow: Flow) -> Packet {
    let syn = MpJoin::Syn {
        backup: false,
        address_id: 1,
        token: keys::token(KEY_PROXY),
        nonce: 1,
    };
    Packet::new(Point::FromClient, flow, ISN_JOIN, 0).with(|p| {
        p.flags = TcpFlags::SYN;
        p.others = join_options(2);
        p.mptcp = Some(MptcpOption::Join(syn));
    })
}

/// Its answer, with the proxy's number.
pub(crate) fn join_syn_ack(flow: Flow, isn_proxy: u32) -> Packet {
    let answer = MpJoin::SynAck {
        backup: false,
        address_id: 0,
        hmac: 1,
        nonce: 2,
    };
    let ack = ISN_JOIN.wrapping_add(1);
    Packet::new(Point::ToClient, flow, isn_proxy, ack).with(|p| {
        p.flags = TcpFlags::SYN | TcpFlags::ACK;
        p.others = join_options(0);
        p.mptcp = Some(MptcpOption::Join(answer));
    })
}

/// Data of the server's, as it comes in.
pub(crate) fn server_data(offset: u64, len: u64) -> Packet {
    Packet::new(
        Point::FromServer,
        Flow::Server,
        seq(ISN_SERVER, offset),
        seq(ISN_CLIENT, 0),
    )
    .with(|p| p.payload = bytes(offset, len))
}

/// The same on its way to the client, under a mapping of its own.
pub(crate) fn data_down(flow: Flow, ssn: u64, offset: u64, len: u64) -> Packet {
    let (isn, ack) = match flow {
        Flow::Joined => (ISN_JOIN_PROXY, seq(ISN_JOIN, 0)),
        _ => (ISN_SERVER, seq(ISN_CLIENT, 0)),
    };
    Packet::new(Point::ToClient, flow, seq(isn, ssn), ack).with(|p| {
        p.payload = bytes(offset, len);
        let mapping = (dsn_down(offset), ssn as u32 + 1, len as u16);
        p.mptcp = Some(dss(dsn_up(0), Some(mapping), false));
    })
}

/// A client's ACK.
pub(crate) fn client_ack(flow: Flow, ssn: u64, data: u64) -> Packet {
    let (isn, own) = match flow {
        Flow::Joined => (ISN_JOIN_PROXY, seq(ISN_JOIN, 0)),
        _ => (ISN_SERVER, seq(ISN_CLIENT, 0)),
    };
    Packet::new(Point::FromClient, flow, own, seq(isn, ssn))
        .with(|p| p.mptcp = Some(dss(dsn_down(data), None, false)))
}

/// An ACK to the server.
pub(crate) fn ack_up(data: u64) -> Packet {
    Packet::new(
        Point::ToServer,
        Flow::Server,
        seq(ISN_CLIENT, 0),
        seq(ISN_SERVER, data),
    )
}

/// Data of the client's.
pub(crate) fn client_data(flow: Flow, ssn: u64, offset: u64, len: u64) -> Packet {
    let (isn, ack) = match flow {
        Flow::Joined => (ISN_JOIN, seq(ISN_JOIN_PROXY, 0)),
        _ => (ISN_CLIENT, seq(ISN_SERVER, 0)),
    };
    Packet::new(Point::FromClient, flow, seq(isn, ssn), ack).with(|p| {
        p.payload = bytes(offset, len);
        let mapping = (dsn_up(offset), ssn as u32 + 1, len as u16);
        p.mptcp = Some(dss(dsn_down(0), Some(mapping), false));
    })
}

/// The same on its way to the server.
pub(crate) fn data_up(offset: u64, len: u64) -> Packet {
    Packet::new(
        Point::ToServer,
        Flow::Server,
        seq(ISN_CLIENT, offset),
        seq(ISN_SERVER, 0),
    )
    .with(|p| p.payload = bytes(offset, len))
}

/// The server's ACK.
pub(crate) fn server_ack(data: u64) -> Packet {
    Packet::new(
        Point::FromServer,
        Flow::Server,
        seq(ISN_SERVER, 0),
        seq(ISN_CLIENT, data),
    )
}

/// An ACK to the client.
pub(crate) fn ack_down(flow: Flow, ssn: u64, data: u64) -> Packet {
    let (isn, own) = match flow {
        Flow::Joined => (ISN_JOIN, seq(ISN_JOIN_PROXY, 0)),
        _ => (ISN_CLIENT, seq(ISN_SERVER, 0)),
    };
    Packet::new(Point::ToClient, flow, own, seq(isn, ssn))
        .with(|p| p.mptcp = Some(dss(dsn_up(data), None, false)))
}

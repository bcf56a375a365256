//! The role of an aggregation box: the client is in the LAN and speaks TCP, FlexCP opens the MPTCP leg. In the world that is
//! `Party::Server` for the end with TCP and `Party::Client` for the one with MPTCP, as everywhere behind the opening, which is here.
//!
//! Whoever has MPTCP may be an aggregation server: what it is told before the stream, and what it answers, counts as if the ends had
//! sent it to each other, so that numbers are those on the wire.

use std::net::SocketAddr;

use flexcp_testkit::keys;
use flexcp_translator::{AggregationServers, Approach, Cursor, Mode, Prefix, Protocol, Uplink};
use flexcp_wire::{
    CapableKeys, DataNumber, Dss, DssMapping, MpJoin, MptcpOption, TcpFlags, TcpOption,
};

use crate::input::Input;
use crate::opening::Stage;
use crate::output::Output;
use crate::world::{FLOWS, Packet, Party, Setup, World, address};

/// What stands at the far end of a box.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Far {
    /// The server itself.
    Server,
    /// A converter that takes what comes with the SYN.
    Converter,
    /// One that does not, and is told behind the handshake.
    LateConverter,
    /// A SOCKS5 server.
    Socks,
}

/// A box, and who is at its far end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Aggregation {
    pub(crate) far: Far,
    /// Joins are taken where the initial subflow goes (without flag C).
    pub(crate) joinable: bool,
    /// There is a second aggregation server, which does not answer.
    second: bool,
    /// A converter's SYN/ACK is taken for its word that it has connected on.
    early: bool,
    /// Uplinks that are there, a bit each.
    pub(crate) uplinks: u8,
    /// Which of its addresses each has.
    addrs: [u8; FLOWS],
}

/// Behind the handshake, before the streams: bytes that the far end is told under data numbers, and that it says.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Preamble {
    pub(crate) told: u32,
    pub(crate) said: u32,
}

/// A converter has connected.
const CONVERTED: [u8; 4] = [1, 1, 0x22, 0x63];
/// A SOCKS5 server has: the method, then its reply.
const CONNECTED: [u8; 12] = [5, 0, 5, 0, 0, 1, 0, 0, 0, 0, 0, 0];

impl Aggregation {
    pub(crate) fn read(input: &mut Input<'_>) -> Self {
        let byte = input.u8();
        Self {
            far: [Far::Server, Far::Converter, Far::LateConverter, Far::Socks]
                [usize::from(byte & 3)],
            joinable: byte & 0x0c != 0x0c,
            second: byte & 0x40 != 0,
            early: byte & 0x80 != 0,
            uplinks: if byte & 0x30 == 0x30 { 1 } else { 0x0f },
            addrs: [0; FLOWS],
        }
    }

    /// Whom the client in the LAN addresses, where `peer` is at the far end.
    pub(crate) fn server(self, v6: bool, peer: SocketAddr) -> SocketAddr {
        match self.far {
            Far::Server => peer,
            _ => SocketAddr::new(address(v6, 5, 1), 443),
        }
    }

    pub(crate) fn mode(self, setup: &Setup, peer: SocketAddr) -> Mode {
        let net = |v6| Prefix {
            addr: address(v6, 0, 0),
            len: if v6 { 48 } else { 24 },
        };
        let server = self.server(setup.v6, peer).ip();
        let mut servers = AggregationServers::default();
        let protocol = match self.far {
            Far::Server => None,
            Far::Converter | Far::LateConverter => Some(Protocol::Convert),
            Far::Socks => Some(Protocol::Socks5),
        };
        if let Some(protocol) = protocol {
            let approach = Approach {
                protocol,
                user: None,
                early: self.early && protocol == Protocol::Convert,
            };
            let beside = SocketAddr::new(peer.ip(), peer.port() + 1);
            for addr in [peer, beside]
                .into_iter()
                .take(1 + usize::from(self.second))
            {
                assert!(servers.push(addr, approach.clone()), "there is room");
            }
        }
        Mode::Box {
            destinations: vec![Prefix {
                addr: server,
                len: if server.is_ipv6() { 128 } else { 32 },
            }],
            ports: vec![],
            except: vec![],
            servers,
            join: vec![net(false), net(true)],
            uplinks: self.uplinks(setup),
            source_ports: 40_000..=41_000,
        }
    }

    /// The client in the LAN is answered with the far end's SYN/ACK, before its answer.
    fn promises(self) -> bool {
        self.early && self.far == Far::Converter
    }

    fn uplinks(self, setup: &Setup) -> Vec<Uplink> {
        let all = (0..FLOWS).map(|k| match self.uplinks >> k & 1 {
            0 => Uplink::default(),
            _ => Uplink::from(local(setup, k)),
        });
        all.collect()
    }
}

/// FlexCP's address on an uplink.
pub(crate) fn local(setup: &Setup, k: usize) -> std::net::IpAddr {
    let n = u8::try_from(k).expect("a handful");
    let at = setup
        .aggregation
        .map_or(0, |aggregation| aggregation.addrs[k]);
    address(setup.v6_at(k), 8, (1 + n) | at << 4)
}

impl World {
    /// Plays the handshakes of a box up to `stage`.
    pub(crate) fn open_far(&mut self, stage: Stage) {
        if stage >= Stage::SynSent {
            let out = self.send(&self.syn_of_lan());
            self.learn(&out);
        }
        if stage >= Stage::SynReceived {
            let out = self.send(&self.answer_of_far());
            self.learn(&out);
            if self.aggregation().promises() {
                self.preamble.said = u32::try_from(CONVERTED.len()).expect("short");
            } else {
                self.grant();
            }
        }
        if stage >= Stage::Established {
            let out = self.send(&self.third_of_lan());
            self.learn(&out);
            if self.aggregation().promises() {
                self.grant();
            }
            let out = self.send(&self.confirmation());
            self.learn(&out);
        }
        let joins = match stage {
            Stage::OneJoin => 1,
            Stage::TwoJoins => 2,
            _ => 0,
        };
        if joins > 0 {
            let out = self.advance(self.now);
            self.learn(&out);
        }
        for k in (1..FLOWS)
            .filter(|k| self.flows[*k].peer_nonce != 0)
            .take(joins)
            .collect::<Vec<_>>()
        {
            let out = self.send(&self.join_answer(k, false));
            self.learn(&out);
            let mut ack = self.confirmation();
            ack.from = Party::Client(k);
            let flow = self.flows[k];
            (ack.seq, ack.ack) = (flow.isn.wrapping_add(1), flow.peer_isn.wrapping_add(1));
            let out = self.send(&ack);
            self.learn(&out);
        }
    }

    /// The SYN of the client in the LAN.
    pub(crate) fn syn_of_lan(&self) -> Packet {
        let mut syn = Packet::new(Party::Server, self.lan_isn, 0, TcpFlags::SYN);
        syn.options = self.syn_options(FLOWS, self.setup.scales.1, None, 0);
        syn
    }

    /// The SYN/ACK of the far end.
    pub(crate) fn answer_of_far(&self) -> Packet {
        let flow = self.flows[0];
        // What a converter has taken with the SYN; where nothing went with it that is nothing.
        let ack = match self.aggregation().far {
            Far::Converter => self.lan_isn,
            _ => flow.peer_isn,
        };
        let flags = TcpFlags::SYN | TcpFlags::ACK;
        let ack = ack.wrapping_add(1);
        let mut answer = Packet::new(Party::Client(0), flow.isn, ack, flags);
        let mut capable = self.capable(CapableKeys::SynAck {
            sender: self.client_key,
        });
        if let (false, MptcpOption::Capable(capable)) = (self.aggregation().joinable, &mut capable)
        {
            capable.flags = capable
                .flags
                .with(flexcp_wire::CapableFlags::NO_JOIN_INITIAL);
        }
        let scale = self
            .setup
            .scales
            .0
            .filter(|_| self.setup.scales.1.is_some());
        answer.options = self.syn_options(0, scale, Some(capable), self.heard[0]);
        answer
    }

    /// The answer of an aggregation server, if there is one.
    fn grant(&mut self) {
        let said: &[u8] = match self.aggregation().far {
            Far::Server => return,
            Far::Converter | Far::LateConverter => &CONVERTED,
            Far::Socks => &CONNECTED,
        };
        let packet = self.said_by_far(said);
        let out = self.send(&packet);
        self.learn(&out);
    }

    /// An answer of an aggregation server, right, cut, with another byte, refusing, or anything; where it belongs, or near.
    pub(crate) fn some_answer(&mut self, input: &mut Input<'_>) -> Packet {
        let whole: &[u8] = match input.below(6) {
            0 => &CONVERTED,
            1 => &CONNECTED,
            2 => &[1, 2, 0x22, 0x63, 30, 1, input.u8(), 0],
            3 => &[5, 0, 5, input.u8() & 15, 0, 1, 0, 0, 0, 0, 0, 0],
            4 => &[5, 2],
            _ => input.bytes(24),
        };
        let mut said = whole.to_vec();
        match input.u8() {
            0..=159 => {}
            160..=199 => said.truncate(input.below(16)),
            200..=229 => {
                let (at, to) = (input.below(16), input.u8());
                if let Some(byte) = said.get_mut(at) {
                    *byte = to;
                }
            }
            _ => said.extend_from_slice(input.bytes(20)),
        }
        let (told, preamble) = (self.flows[0].peer_isn, self.preamble);
        let mut packet = self.said_by_far(&said);
        if input.bool() {
            // It has not got what stands before.
            (self.flows[0].peer_isn, self.preamble) = (told, preamble);
        }
        packet.seq = packet.seq.wrapping_add(input.delta());
        packet
    }

    /// The far end says this behind what it was told.
    fn said_by_far(&mut self, said: &[u8]) -> Packet {
        // Nothing, where FlexCP's SYN has not come.
        let told = Some(self.lan_isn.wrapping_sub(self.flows[0].peer_isn));
        let told = told.filter(|told| *told < 2000).unwrap_or(0);
        if self.aggregation().far == Far::Converter {
            // Numbers on the subflow count from behind what went with the SYN.
            self.flows[0].peer_isn = self.lan_isn;
        } else {
            self.preamble.told = told;
        }
        self.server_isn = self.flows[0].peer_isn;
        self.preamble.said = u32::try_from(said.len()).expect("short");
        let mut packet = self.confirmation();
        packet.seq = self.flows[0].isn.wrapping_add(1);
        let idsn = keys::idsn(self.client_key);
        let mapping = DssMapping {
            dsn: DataNumber::Long(idsn.wrapping_add(1)),
            ssn: 1,
            len: u16::try_from(said.len()).expect("short"),
            checksum: None,
        };
        packet.options = self.options(0, &[self.data_ack(Some(mapping))]);
        packet.payload = said.to_vec();
        packet
    }

    /// The answer to the SYN/ACK, of the client in the LAN.
    pub(crate) fn third_of_lan(&self) -> Packet {
        let (seq, ack) = (
            self.lan_isn.wrapping_add(1),
            self.flows[0].isn.wrapping_add(1 + self.preamble.said),
        );
        let mut third = Packet::new(Party::Server, seq, ack, TcpFlags::ACK);
        third.options = self.options(FLOWS, &[]);
        third
    }

    /// The far end shows that it has the keys.
    pub(crate) fn confirmation(&self) -> Packet {
        let flow = self.flows[0];
        let (seq, ack) = (
            flow.isn.wrapping_add(1 + self.preamble.said),
            flow.peer_isn.wrapping_add(1 + self.preamble.told),
        );
        let mut packet = Packet::new(Party::Client(0), seq, ack, TcpFlags::ACK);
        packet.options = self.options(0, &[self.data_ack(None)]);
        packet
    }

    fn data_ack(&self, mapping: Option<DssMapping>) -> TcpOption<'static> {
        let idsn = keys::idsn(self.proxy_key.unwrap_or(0));
        let ack = idsn.wrapping_add(1 + u64::from(self.preamble.told));
        TcpOption::Mptcp(MptcpOption::Dss(Dss {
            data_ack: Some(DataNumber::Long(ack)),
            mapping,
            data_fin: false,
        }))
    }

    /// The far end's answer to a join.
    pub(crate) fn join_answer(&self, k: usize, backup: bool) -> Packet {
        let flow = self.flows[k];
        let proxy = self.proxy_key.unwrap_or(0);
        let hmac = keys::join_syn_ack((self.client_key, proxy), (flow.nonce, flow.peer_nonce));
        let join = MptcpOption::Join(MpJoin::SynAck {
            backup,
            address_id: flow.id,
            hmac,
            nonce: flow.nonce,
        });
        let flags = TcpFlags::SYN | TcpFlags::ACK;
        let ack = flow.peer_isn.wrapping_add(1);
        let mut answer = Packet::new(Party::Client(k), flow.isn, ack, flags);
        let scale = self
            .setup
            .scales
            .0
            .filter(|_| self.setup.scales.1.is_some());
        answer.options = self.syn_options(k, scale, Some(join), self.heard[k]);
        answer
    }

    /// Uplinks come and go: from now on there are those of `uplinks`. Those that come have another address, or theirs (the high bit).
    /// All are joined at once then; the checker knows the pauses of uplinks that stay.
    pub(crate) fn change_uplinks(&mut self, uplinks: u8) -> Vec<Output> {
        let same = uplinks & 0x80 != 0;
        self.unjudged = true;
        if let Some(aggregation) = &mut self.setup.aggregation {
            let new = uplinks & !aggregation.uplinks;
            for (k, at) in aggregation.addrs.iter_mut().enumerate() {
                *at = (*at + (new >> k & u8::from(!same) & 1)) & 15;
            }
            aggregation.uplinks = uplinks & 0x0f;
        }
        let config = self.setup.config(self.server, self.flows[0].client);
        self.translator.configure(config, self.now.0);
        let mut out = Vec::new();
        let mut from = Some(Cursor::default());
        self.checker.observe_timeout();
        while let Some(next) = from {
            from = self.translator.follow_uplinks(self.now, next, 100);
            self.drain(None, &mut out);
        }
        while self.translator.end_stranded(self.now, self.now.0, 100) {
            self.drain(None, &mut out);
        }
        self.drain(None, &mut out);
        self.forget_closed();
        let due = self.now;
        out.append(&mut self.advance(due));
        out
    }

    pub(crate) fn aggregation(&self) -> Aggregation {
        self.setup.aggregation.expect("it is a box")
    }
}

//! A client whose server is not known when it is answered, step by step.

use std::net::SocketAddr;

use flexcp_preamble::Protocol;
use flexcp_testkit::{Packet, keys};
use flexcp_translator::{Config, Mode, User, Verdict};
use flexcp_wire::{
    CapableKeys, DataNumber, Dss, DssMapping, MptcpOption, TcpFlags, TcpOption, Timestamps,
};

use crate::world::*;

/// SOCKS5: no authentication is offered.
pub(crate) const GREETING: [u8; 3] = [5, 1, 0];
/// SOCKS5: CONNECT to 10.55.9.9:80.
pub(crate) const REQUEST: [u8; 10] = [5, 1, 0, 1, 10, 55, 9, 9, 0, 80];

/// Number of the server's SYN.
pub(crate) const SERVER: u32 = 0xffff_fffa;
/// What the server's clock shows.
pub(crate) const SERVER_CLOCK: u32 = 777;

/// What the two ends agree to use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Uses {
    pub(crate) mptcp: bool,
    /// The client scales windows.
    pub(crate) scales: bool,
    /// The server's scale of windows, if it has one.
    pub(crate) scale: Option<u8>,
    pub(crate) timestamps: bool,
    pub(crate) sack: bool,
}

pub(crate) const ALL: Uses = Uses {
    mptcp: true,
    scales: true,
    scale: Some(9),
    timestamps: true,
    sack: true,
};

/// A client, and the server that it gets.
pub(crate) struct Guest {
    pub(crate) world: World,
    pub(crate) uses: Uses,
    /// The client's next number, and the next that it waits for.
    pub(crate) next: u32,
    pub(crate) wants: u32,
    /// The same of data: what it has sent, and what it has got.
    sent: u64,
    pub(crate) got: u64,
    /// Bytes of the SYN.
    in_syn: u32,
    pub(crate) heard: Vec<u8>,
    /// It has got a FIN or a DATA_FIN.
    pub(crate) ended: bool,
    pub(crate) reset: bool,
    /// The latest timestamp of FlexCP's.
    pub(crate) shown: u32,
    /// What the server has got, and its next number.
    pub(crate) arrived: Vec<u8>,
    pub(crate) expects: u32,
    pub(crate) speaks: u32,
    /// Packets to the server since the last look.
    pub(crate) to_server: Vec<Packet>,
    /// Those to the client.
    pub(crate) to_client: Vec<Packet>,
}

/// Its service is of this protocol.
pub(crate) fn speaks(config: &mut Config, protocol: Protocol, users: &[(&str, &str)]) {
    let Mode::Explicit {
        protocol: is,
        users: known,
        ..
    } = &mut config.services[0].mode
    else {
        panic!("another mode");
    };
    *is = protocol;
    *known = users
        .iter()
        .map(|(name, password)| User {
            name: name.as_bytes().into(),
            password: password.as_bytes().into(),
        })
        .collect();
}

impl Guest {
    /// Before its SYN.
    pub(crate) fn new(protocol: Protocol, uses: Uses, users: &[(&str, &str)]) -> Self {
        Self {
            world: World::with(|config| speaks(config, protocol, users)),
            uses,
            next: CLIENT_ISN,
            wants: 0,
            sent: 0,
            got: 0,
            in_syn: 0,
            heard: vec![],
            ended: false,
            reset: false,
            shown: 0,
            arrived: vec![],
            expects: 0,
            speaks: SERVER,
            to_server: vec![],
            to_client: vec![],
        }
    }

    /// A SOCKS5 client that is connected with FlexCP.
    pub(crate) fn greeted(uses: Uses) -> Self {
        let mut guest = Self::new(Protocol::Socks5, uses, &[]);
        guest.open(&[]);
        guest.say(&GREETING);
        assert_eq!(guest.heard, [5, 0]);
        guest
    }

    /// The same, and connected with its server.
    pub(crate) fn connected(uses: Uses) -> Self {
        let mut guest = Self::greeted(uses);
        guest.say(&REQUEST);
        guest.answer_call();
        guest.heard.clear();
        guest
    }

    /// The client's clock.
    fn clock(&self) -> u32 {
        u32::try_from(self.world.now.0 / 1000).unwrap() + 0x7000_0000
    }

    /// SYN with so much data, SYN/ACK, third packet.
    pub(crate) fn open(&mut self, data: &[u8]) {
        self.send_syn(data);
        self.hear_syn_ack();
    }

    pub(crate) fn send_syn(&mut self, data: &[u8]) {
        let mut options = vec![mss()];
        if self.uses.scales {
            options.push(TcpOption::WindowScale(2));
        }
        if self.uses.sack {
            options.push(TcpOption::SackPermitted);
        }
        if self.uses.timestamps {
            options.push(self.timestamps());
        }
        if self.uses.mptcp {
            options.push(capable(CapableKeys::Syn));
        }
        let packet = Packet::new(client(), proxy())
            .flags(SYN)
            .numbers(self.next, 0)
            .with_options(options)
            .with_payload(data);
        self.in_syn = u32::try_from(data.len()).unwrap();
        self.next = self.next.wrapping_add(1 + self.in_syn);
        self.put(&packet);
    }

    /// SYN/ACK, third packet, and the ACK of what comes then.
    pub(crate) fn hear_syn_ack(&mut self) {
        let [syn_ack] = &self.to_client[..] else {
            panic!("{:?}", self.to_client)
        };
        assert_eq!(syn_ack.tcp.flags, SYN | ACK);
        assert_eq!(syn_ack.tcp.ack, self.next);
        assert!(syn_ack.payload.is_empty());
        let view = syn_ack.view();
        assert_eq!(view.timestamps.is_some(), self.uses.timestamps);
        self.wants = syn_ack.tcp.seq.wrapping_add(1);
        self.to_client.clear();
        if self.uses.mptcp {
            let keys = CapableKeys::Ack {
                sender: CLIENT_KEY,
                receiver: self.world.key.expect("a key"),
            };
            self.send(ACK, &[], vec![capable(keys)]);
        } else {
            self.send(ACK, &[], vec![]);
        }
        self.acknowledge();
    }

    fn timestamps(&self) -> TcpOption<'static> {
        TcpOption::Timestamps(Timestamps {
            val: self.clock(),
            ecr: self.shown,
        })
    }

    fn idsn(&self) -> u64 {
        keys::idsn(CLIENT_KEY)
    }

    fn dss(&self, len: u16, fin: bool) -> TcpOption<'static> {
        let mapping = (len > 0).then(|| DssMapping {
            dsn: DataNumber::Long(self.idsn().wrapping_add(1 + self.sent)),
            // Data of the SYN has no DSN.
            ssn: self.next.wrapping_sub(CLIENT_ISN).wrapping_sub(self.in_syn),
            len,
            checksum: None,
        });
        TcpOption::Mptcp(MptcpOption::Dss(Dss {
            data_ack: Some(DataNumber::Long(
                self.world.idsn().wrapping_add(1 + self.got),
            )),
            mapping,
            data_fin: fin,
        }))
    }

    /// A packet of the client's, with these options and those that every packet has.
    pub(crate) fn send(&mut self, flags: TcpFlags, data: &[u8], more: Vec<TcpOption<'_>>) {
        let mut options = more;
        if self.uses.timestamps {
            options.push(self.timestamps());
        }
        let packet = Packet::new(client(), proxy())
            .flags(flags)
            .numbers(self.next, self.wants)
            .with_options(options)
            .with_payload(data);
        let (_, out) = self.world.put(&packet);
        self.take(out);
    }

    /// What the client would say.
    pub(crate) fn packet(&self, flags: TcpFlags, data: &[u8]) -> Packet {
        let mut options = vec![];
        if self.uses.mptcp {
            options.push(self.dss(u16::try_from(data.len()).unwrap(), false));
        }
        if self.uses.timestamps {
            options.push(self.timestamps());
        }
        Packet::new(client(), proxy())
            .flags(flags)
            .numbers(self.next, self.wants)
            .with_options(options)
            .with_payload(data)
    }

    /// The client says something, and ACKs what it has got.
    pub(crate) fn say(&mut self, data: &[u8]) {
        self.say_and_repeat(data);
        let len = u32::try_from(data.len()).unwrap();
        self.next = self.next.wrapping_add(len);
        self.sent += u64::from(len);
        self.acknowledge();
    }

    /// The same without going on: as if nothing had been ACKed.
    pub(crate) fn say_and_repeat(&mut self, data: &[u8]) {
        let len = u16::try_from(data.len()).unwrap();
        let options = if self.uses.mptcp {
            vec![self.dss(len, false)]
        } else {
            vec![]
        };
        self.send(ACK | TcpFlags::PSH, data, options);
    }

    /// The client goes so far on, or back.
    pub(crate) fn go(&mut self, bytes: i32) {
        self.next = self.next.wrapping_add_signed(bytes);
        self.sent = self.sent.wrapping_add_signed(bytes.into());
    }

    pub(crate) fn acknowledge(&mut self) {
        let options = if self.uses.mptcp {
            vec![self.dss(0, false)]
        } else {
            vec![]
        };
        self.send(ACK, &[], options);
    }

    fn put(&mut self, packet: &Packet) {
        let (verdict, out) = self.world.put(packet);
        assert!(
            !matches!(verdict, Verdict::Drop(_)),
            "{verdict:?}: {packet:?}"
        );
        self.take(out);
    }

    pub(crate) fn take(&mut self, out: Vec<Out>) {
        for Out { to_server, packet } in out {
            if to_server {
                self.server_gets(packet);
            } else {
                self.client_gets(packet);
            }
        }
    }

    fn client_gets(&mut self, packet: Packet) {
        assert_eq!(packet.ends().from, proxy());
        let view = packet.view();
        self.reset |= packet.tcp.flags.contains(TcpFlags::RST);
        if let Some(timestamps) = view.timestamps {
            let earlier = timestamps.val.wrapping_sub(self.shown).cast_signed() < 0;
            assert!(!earlier || self.shown == 0, "the clock goes back");
            self.shown = timestamps.val;
        }
        let syn = packet.tcp.flags.contains(SYN);
        if !syn && packet.tcp.seq == self.wants && !packet.payload.is_empty() {
            let len = u32::try_from(packet.payload.len()).unwrap();
            self.wants = self.wants.wrapping_add(len);
            self.got += u64::from(len);
            self.heard.extend_from_slice(&packet.payload);
            if self.uses.mptcp {
                let mapping = view.dss.and_then(|dss| dss.mapping).expect("a mapping");
                let last = self.world.idsn().wrapping_add(self.got);
                let DataNumber::Long(dsn) = mapping.dsn else {
                    panic!("a short DSN")
                };
                let end = dsn.wrapping_add(u64::from(mapping.len)).wrapping_sub(1);
                assert!(end >= last && dsn <= last, "{mapping:?}");
            }
        }
        let fin = packet.tcp.flags.contains(TcpFlags::FIN) && !self.uses.mptcp;
        self.ended |= fin || view.dss.is_some_and(|dss| dss.data_fin);
        self.to_client.push(packet);
    }

    fn server_gets(&mut self, packet: Packet) {
        assert!(!packet.view().mptcp);
        if packet.tcp.flags.contains(SYN) {
            self.expects = packet.tcp.seq.wrapping_add(1);
        } else {
            let known = usize::try_from(self.expects.wrapping_sub(packet.tcp.seq)).unwrap();
            let fresh = packet.payload.get(known..).unwrap_or(&[]);
            let len = u32::try_from(fresh.len()).unwrap();
            self.expects = self.expects.wrapping_add(len);
            self.arrived.extend_from_slice(fresh);
        }
        self.to_server.push(packet);
    }

    /// Where FlexCP calls from.
    pub(crate) fn source(&self) -> SocketAddr {
        self.to_server.first().expect("a SYN").ends().from
    }

    /// The server's SYN/ACK; the client ACKs what it then hears.
    pub(crate) fn answer_call(&mut self) {
        let mut options = vec![TcpOption::Mss(1400)];
        options.extend(self.uses.scale.map(TcpOption::WindowScale));
        if self.uses.sack {
            options.push(TcpOption::SackPermitted);
        }
        self.speak(SYN | ACK, &[], options);
        self.speaks = self.speaks.wrapping_add(1);
        self.acknowledge();
    }

    /// A packet of the server's.
    pub(crate) fn speak(&mut self, flags: TcpFlags, data: &[u8], more: Vec<TcpOption<'_>>) {
        let mut options = more;
        if self.uses.timestamps {
            options.push(TcpOption::Timestamps(Timestamps {
                val: SERVER_CLOCK + u32::try_from(self.world.now.0 / 1000).unwrap() - 1000,
                ecr: 1,
            }));
        }
        let to = self.world.source().expect("a SYN");
        let packet = Packet::new(server(), to)
            .flags(flags)
            .numbers(self.speaks, self.expects)
            .with_options(options)
            .with_payload(data);
        let (_, out) = self.world.put(&packet);
        self.take(out);
    }

    /// The server says something and goes on.
    pub(crate) fn server_says(&mut self, data: &[u8]) {
        self.speak(ACK | TcpFlags::PSH, data, vec![]);
        self.speaks = self.speaks.wrapping_add(u32::try_from(data.len()).unwrap());
    }

    /// Time passes, and what is due is done.
    pub(crate) fn pass(&mut self, millis: u64) {
        self.world.pass(millis);
        let out = self.world.timeout();
        self.take(out);
    }
}

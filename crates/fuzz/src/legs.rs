//! Target `legs`: a client with several flows, a server, and time. The input chooses who does what next
//! and which packets are lost; numbers are right unless it asks for an arbitrary packet. As long as
//! everybody is honest, every byte that comes out must be the one that belongs there.

use std::time::Duration;

use flexcp_translator::ConnectionState;
use flexcp_wire::{
    AddAddr, DataNumber, Dss, DssMapping, MpFastClose, MpPrio, MptcpOption, RemoveAddr, TcpFlags,
    TcpOption, Timestamps,
};

use crate::checks::Output;
use crate::ends::{Client, Mapping, Server, byte, mapping_of, stream};
use crate::input::Input;
use crate::keys;
use crate::opening::Stage;
use crate::stream::{Numbers, arbitrary};
use crate::world::{FLOWS, Packet, Party, Setup, World};

/// Steps of one input at most.
const MAX_STEPS: usize = 120;

/// Both legs.
struct Legs {
    world: World,
    client: Client,
    server: Server,
    /// Initial data numbers: of the client and of FlexCP.
    idsn: (u64, u64),
    /// Nobody has sent what is not right so far.
    honest: bool,
    /// The packets that are lost next, one bit each.
    losses: u32,
}

/// Target.
pub fn target(data: &[u8]) {
    let mut input = Input::new(data);
    let mut setup = Setup::read(&mut input);
    setup.end_to_end = false;
    let mut world = World::new(setup);
    let stage = match input.below(4) {
        0 => Stage::Established,
        1 => Stage::TwoJoins,
        _ => Stage::OneJoin,
    };
    world.open(stage);
    let mut client = Client::new();
    for k in 0..FLOWS {
        client.flows[k].joined = k == 0 || world.flows[k].peer_nonce != 0;
    }
    let idsn = (
        keys::idsn(world.client_key),
        keys::idsn(world.proxy_key.unwrap_or(0)),
    );
    let mut legs = Legs {
        world,
        client,
        server: Server::new(),
        idsn,
        honest: true,
        losses: 0,
    };
    for _ in 0..MAX_STEPS {
        if input.is_empty() {
            break;
        }
        legs.step(&mut input);
    }
    legs.world.run_down();
}

impl Legs {
    fn step(&mut self, input: &mut Input<'_>) {
        match input.u8() {
            0..=39 => self.client_data(input),
            40..=59 => self.client_again(input),
            60..=99 => self.client_ack(input),
            100..=139 => self.server_data(input),
            140..=164 => self.server_again(input),
            165..=189 => self.server_ack(),
            190..=209 => self.wait(input),
            210..=216 => self.losses = input.u32(),
            217..=222 => self.join(input),
            223..=229 => self.client_fin(input),
            230..=235 => self.server_fin(),
            236..=243 => self.signal(input),
            244..=247 => self.reset(input),
            248..=250 => self.bare(input),
            _ => self.arbitrary(input),
        }
    }

    /// One of the flows that the client thinks it has.
    fn flow(&self, input: &mut Input<'_>) -> usize {
        let k = input.below(FLOWS);
        if self.client.flows[k].joined { k } else { 0 }
    }

    fn client_data(&mut self, input: &mut Input<'_>) {
        let k = self.flow(input);
        let len = input.len(20_000).max(1);
        if self.client.fin || self.client.next > 1 << 24 {
            return;
        }
        let mapping = (self.client.flows[k].next, self.client.next, len);
        self.client.next += u64::from(len);
        self.client.flows[k].next += len;
        self.client.remember(k, mapping);
        self.send_data(k, mapping, mapping.0, len);
    }

    /// Something that went up before: on its flow, in part, or on another one.
    fn client_again(&mut self, input: &mut Input<'_>) {
        let (k, other) = (self.flow(input), self.flow(input));
        let sent = &self.client.flows[k].sent;
        if sent.is_empty() {
            return;
        }
        let (ssn, dsn, len) = sent[input.below(sent.len())];
        if k == other {
            let skip = u32::from(input.u8()) % len;
            self.send_data(k, (ssn, dsn, len), ssn + skip, len - skip);
            return;
        }
        let mapping = (self.client.flows[other].next, dsn, len);
        self.client.flows[other].next += len;
        self.client.remember(other, mapping);
        self.send_data(other, mapping, mapping.0, len);
    }

    /// Payload at `ssn` of a mapping.
    fn send_data(&mut self, k: usize, mapping: Mapping, ssn: u32, len: u32) {
        let mut packet = self.client_packet(k, Some(mapping), false);
        packet.seq = self.world.flows[k].isn.wrapping_add(ssn);
        let at = mapping.1 + u64::from(ssn - mapping.0);
        packet.payload = stream(true, at, len);
        if len > 1400 {
            packet.gso = Some(1400);
        }
        self.send(&packet);
    }

    fn client_ack(&mut self, input: &mut Input<'_>) {
        let k = self.flow(input);
        let mut packet = self.client_packet(k, None, input.u8() < 200);
        if input.u8() > 240 {
            packet.window = input.u16();
        }
        self.send(&packet);
    }

    /// A packet of the client's with all that it knows to say.
    fn client_packet(&mut self, k: usize, mapping: Option<Mapping>, sack: bool) -> Packet {
        let flow = self.world.flows[k];
        let next = flow.isn.wrapping_add(self.client.flows[k].next);
        let ack = self.client.ack(k);
        let base = flow.peer_isn;
        let mut packet = Packet::new(
            Party::Client(k),
            next,
            base.wrapping_add(ack),
            TcpFlags::ACK,
        );
        self.client.acked = self.client.acked.max(self.client.data_ack());
        let mapping = mapping.map(|(ssn, dsn, len)| DssMapping {
            dsn: DataNumber::Long(self.idsn.0.wrapping_add(dsn)),
            ssn,
            len: u16::try_from(len).expect("a mapping"),
            checksum: None,
        });
        let data_ack = self.idsn.1.wrapping_add(self.client.data_ack());
        let dss = Dss {
            data_ack: Some(DataNumber::Long(data_ack)),
            mapping,
            data_fin: false,
        };
        let mut options = vec![TcpOption::Mptcp(MptcpOption::Dss(dss))];
        let blocks = self.client.flows[k].got.sack(ack.into(), base);
        if sack && !blocks.is_empty() && self.world.setup.sack {
            options.push(TcpOption::Sack(blocks));
        }
        packet.options = self.world.options(k, &options);
        packet
    }

    fn server_packet(&self, at: u64) -> Packet {
        let (isn, peer) = (self.world.server_isn, self.world.flows[0].isn);
        let low = |number: u64| u32::try_from(number & 0xffff_ffff).unwrap_or(0);
        let ack = self.server.ack();
        let (seq, number) = (isn.wrapping_add(low(at)), peer.wrapping_add(low(ack)));
        let mut packet = Packet::new(Party::Server, seq, number, TcpFlags::ACK);
        let mut options = Vec::new();
        if self.world.setup.timestamps {
            let (val, ecr) = (self.world.clock(FLOWS), self.world.clock(0));
            options.push(TcpOption::Timestamps(Timestamps { val, ecr }));
        }
        let blocks = self.server.got.sack(ack, peer);
        if !blocks.is_empty() && self.world.setup.sack {
            options.push(TcpOption::Sack(blocks));
        }
        let mut writer = flexcp_wire::OptionWriter::new();
        for option in &options {
            writer.push(option);
        }
        packet.options = writer.finish().to_vec();
        packet
    }

    fn server_data(&mut self, input: &mut Input<'_>) {
        let len = input.len(20_000).max(1);
        if self.server.fin || self.server.next > 1 << 24 {
            return;
        }
        let at = self.server.next;
        self.server.next += u64::from(len);
        self.send_down(at, len);
    }

    fn server_again(&mut self, input: &mut Input<'_>) {
        let outstanding = self.server.next - self.server.peer_acked.min(self.server.next);
        if outstanding == 0 {
            return;
        }
        let skip = u64::from(input.u16()) % outstanding;
        let skip = if input.bool() { skip } else { 0 };
        let at = self.server.peer_acked + skip;
        let most = u32::try_from(self.server.next - at).unwrap_or(20_000);
        self.send_down(at, input.len(most).max(1));
    }

    fn send_down(&mut self, at: u64, len: u32) {
        let mut packet = self.server_packet(at);
        packet.payload = stream(false, at, len);
        if len > 1400 {
            packet.gso = Some(1400);
        }
        self.server.acked = self.server.ack();
        self.send(&packet);
    }

    fn server_ack(&mut self) {
        let at = self.server.next + u64::from(self.server.fin);
        let packet = self.server_packet(at);
        self.server.acked = self.server.ack();
        self.send(&packet);
    }

    fn wait(&mut self, input: &mut Input<'_>) {
        let millis = match input.u8() {
            short @ 0..=199 => u64::from(short),
            long => u64::from(long) * u64::from(input.u8()),
        };
        let out = self
            .world
            .advance(self.world.now + Duration::from_millis(millis));
        self.take(&out);
    }

    fn join(&mut self, input: &mut Input<'_>) {
        let k = 1 + input.below(FLOWS - 1);
        if self.client.flows[k].joined && self.client.flows[k].next > 1 {
            return;
        }
        let packet = match input.below(3) {
            0 => self.world.join_syn(k, input.bool()),
            _ => self.world.join_ack(k),
        };
        let before = self.world.flows[k].peer_isn;
        self.send(&packet);
        if self.world.flows[k].peer_isn != before {
            // A flow of its own, though on the ports of one that is over.
            self.client.reopen(k);
        }
        self.client.flows[k].joined = self.world.flows[k].peer_nonce != 0;
    }

    /// DATA_FIN, or the end of one flow.
    fn client_fin(&mut self, input: &mut Input<'_>) {
        let k = self.flow(input);
        let mut packet = self.client_packet(k, None, false);
        if input.bool() {
            self.client.fin = true;
            let dss = Dss {
                data_ack: Some(DataNumber::Long(
                    self.idsn.1.wrapping_add(self.client.data_ack()),
                )),
                mapping: Some(DssMapping {
                    dsn: DataNumber::Long(self.idsn.0.wrapping_add(self.client.next)),
                    ssn: 0,
                    len: 1,
                    checksum: None,
                }),
                data_fin: true,
            };
            let option = TcpOption::Mptcp(MptcpOption::Dss(dss));
            packet.options = self.world.options(k, &[option]);
        } else {
            packet.flags |= TcpFlags::FIN;
        }
        self.send(&packet);
    }

    fn server_fin(&mut self) {
        self.server.fin = true;
        let mut packet = self.server_packet(self.server.next);
        packet.flags |= TcpFlags::FIN;
        self.server.acked = self.server.ack();
        self.send(&packet);
    }

    fn signal(&mut self, input: &mut Input<'_>) {
        let k = self.flow(input);
        let mut packet = self.client_packet(k, None, false);
        let (client, proxy) = (self.world.client_key, self.world.proxy_key.unwrap_or(0));
        let option = match input.below(4) {
            0 => MptcpOption::Prio(MpPrio {
                backup: input.bool(),
            }),
            1 => MptcpOption::RemoveAddr(RemoveAddr::new(&[input.u8() % 4])),
            2 => {
                let (id, addr) = (input.u8() % 4, self.world.flows[1].client.ip());
                let hmac = Some(keys::add_addr(client, proxy, id, addr, 0));
                MptcpOption::AddAddr(AddAddr {
                    echo: false,
                    id,
                    addr,
                    port: None,
                    hmac,
                })
            }
            _ => {
                let (id, addr) = (1 + input.u8() % 2, self.world.flows[1].local.ip());
                MptcpOption::AddAddr(AddAddr {
                    echo: true,
                    id,
                    addr,
                    port: None,
                    hmac: None,
                })
            }
        };
        packet.options = self.world.options(k, &[TcpOption::Mptcp(option)]);
        self.send(&packet);
    }

    fn reset(&mut self, input: &mut Input<'_>) {
        let k = self.flow(input);
        let packet = match input.below(4) {
            0 => {
                let mut packet = self.server_packet(self.server.next);
                packet.flags |= TcpFlags::RST;
                packet
            }
            1 => {
                let key = self.world.proxy_key.unwrap_or(0);
                let mut packet = self.client_packet(k, None, false);
                let option = MptcpOption::FastClose(MpFastClose { key });
                packet.options = self.world.options(k, &[TcpOption::Mptcp(option)]);
                packet
            }
            _ => {
                let mut packet = self.client_packet(k, None, false);
                packet.flags = TcpFlags::RST;
                packet.options.clear();
                packet
            }
        };
        self.send(&packet);
    }

    /// A packet of a flow whose options somebody has taken away: what comes of it the models do not
    /// follow.
    fn bare(&mut self, input: &mut Input<'_>) {
        self.honest = false;
        let k = self.flow(input);
        let mut packet = self.client_packet(k, None, false);
        packet.options.clear();
        self.send(&packet);
    }

    fn arbitrary(&mut self, input: &mut Input<'_>) {
        self.honest = false;
        let numbers = self.numbers();
        let packet = arbitrary(&self.world, &numbers, input);
        self.send(&packet);
    }

    fn numbers(&self) -> Numbers {
        let low = |number: u64| u32::try_from(number & 0xffff_ffff).unwrap_or(0);
        let flow = |k: usize| (self.client.flows[k].next, self.client.ack(k));
        Numbers {
            flows: std::array::from_fn(flow),
            server: (low(self.server.next), low(self.server.ack())),
            data: (self.client.next, self.client.data_ack()),
        }
    }

    fn send(&mut self, packet: &Packet) {
        self.honest &= self.translates();
        if !self.lose() {
            let out = self.world.send(packet);
            self.take(&out);
        }
    }

    /// The models follow a connection that is being translated; one that is over, or has fallen back,
    /// they do not.
    fn translates(&self) -> bool {
        use ConnectionState::{Closed, HalfClosed, Translating};
        let mut connections = self.world.translator.connections(self.world.now);
        connections
            .next()
            .is_some_and(|view| matches!(view.state, Translating | HalfClosed | Closed))
    }

    fn lose(&mut self) -> bool {
        let lost = self.losses & 1 != 0;
        self.losses >>= 1;
        lost
    }

    /// What FlexCP has sent arrives, unless it is lost.
    fn take(&mut self, out: &[Output]) {
        for output in out {
            self.check(output);
            if self.lose() {
                continue;
            }
            self.world.learn(std::slice::from_ref(output));
            match output.party {
                Party::Client(k) => self.client_gets(k, output),
                Party::Server => self.server_gets(output),
            }
        }
    }

    /// What must be true of every packet of FlexCP's while everybody is honest.
    fn check(&mut self, output: &Output) {
        let reset = output.tcp.flags.intersects(TcpFlags::RST | TcpFlags::SYN);
        if !self.honest || reset {
            return;
        }
        let relative = |number: u32, base: u32| u64::from(number.wrapping_sub(base));
        match output.party {
            Party::Server => {
                let ack = relative(output.tcp.ack, self.world.server_isn);
                assert!(
                    ack <= self.client.acked,
                    "ACK {ack} to the server, {} of the client",
                    self.client.acked
                );
                let at = relative(output.tcp.seq, self.world.flows[0].isn);
                self.check_bytes(true, at, output);
                self.check_view_of_server(ack, output);
            }
            Party::Client(k) => {
                let flow = &self.client.flows[k];
                let ack = output.tcp.ack.wrapping_sub(self.world.flows[k].isn);
                // A FIN of the flow takes a number that the model does not count.
                assert!(
                    ack <= flow.next + 1,
                    "ACK {ack} on flow {k}, sent {}",
                    flow.next
                );
                if let Some(DataNumber::Long(ack)) = output.options.dss.and_then(|d| d.data_ack) {
                    let ack = ack.wrapping_sub(self.idsn.0);
                    let most = self.server.acked.max(1);
                    assert!(ack <= most, "data ACK {ack}, the server's is {most}");
                }
                let ssn = output.tcp.seq.wrapping_sub(self.world.flows[k].peer_isn);
                self.check_down(k, ssn, output);
            }
        }
    }

    /// The server's view of the client: a clock and a window that never go back, SACK blocks of what the
    /// client has.
    fn check_view_of_server(&mut self, ack: u64, output: &Output) {
        if let Some(Timestamps { val, .. }) = output.options.timestamps {
            let known = self.server.clock.get_or_insert(val);
            assert!(
                val.wrapping_sub(*known).cast_signed() >= 0,
                "TSval {val} after {known}"
            );
            *known = val;
        }
        let scale = match self.world.setup.scales {
            (Some(client), Some(_)) => client,
            _ => 0,
        };
        let edge = ack + (u64::from(output.tcp.window) << scale);
        // What scaling rounds off may come off (RFC 7323 section 2.4).
        let known = self.server.edge;
        assert!(
            edge + (1 << scale) > known,
            "right window edge {edge} after {known}"
        );
        self.server.edge = edge.max(known);
        for &(left, right) in output.options.sack.as_slice() {
            let place = |edge: u32| u64::from(edge.wrapping_sub(self.world.server_isn));
            let (left, right) = (place(left), place(right));
            assert!(
                self.client.seen.holds(left, right),
                "SACK {left}:{right} of what never came"
            );
        }
    }

    /// The payload of a packet to the client is where its mapping says.
    fn check_down(&mut self, k: usize, ssn: u32, output: &Output) {
        let len = u32::try_from(output.payload.len()).expect("a packet");
        let Some((mapping, _)) = mapping_of(output, self.idsn.1) else {
            if len > 0 && k == 0 {
                self.check_bytes(false, ssn.into(), output);
            }
            return;
        };
        if len == 0 {
            return;
        }
        self.client.check_mapping(k, mapping);
        let (start, dsn, mapped) = mapping;
        assert!(
            start <= ssn && ssn + len <= start + mapped,
            "payload outside its mapping"
        );
        let at = dsn + u64::from(ssn - start);
        if output.filler {
            let end = at + u64::from(len);
            assert!(
                end <= self.client.acked,
                "filler for {at}..{end}, the client has ACKed {}",
                self.client.acked
            );
        } else {
            self.check_bytes(false, at, output);
        }
    }

    fn check_bytes(&self, up: bool, at: u64, output: &Output) {
        let wrong = (at..)
            .zip(&output.payload)
            .find(|&(at, &found)| byte(up, at) != found);
        assert!(
            wrong.is_none(),
            "wrong byte (at, found) {wrong:?}, packet from {at}, up {up}"
        );
    }

    fn client_gets(&mut self, k: usize, output: &Output) {
        let flow = self.world.flows[k];
        let ack = output.tcp.ack.wrapping_sub(flow.isn);
        let known = &mut self.client.flows[k];
        if ack <= known.next {
            known.acked = known.acked.max(ack);
        }
        let ssn = output.tcp.seq.wrapping_sub(flow.peer_isn);
        let len = u32::try_from(output.payload.len()).unwrap_or(0);
        match mapping_of(output, self.idsn.1) {
            Some(((start, dsn, mapped), fin)) => {
                if fin {
                    self.client.fin_got = Some(dsn + u64::from(mapped));
                }
                if len > 0 && ssn >= start && ssn < start.saturating_add(1 << 20) {
                    self.client
                        .take(k, (ssn, dsn + u64::from(ssn - start), len));
                }
            }
            None if k == 0 && len > 0 && ssn < 1 << 25 => {
                self.client.take(k, (ssn, ssn.into(), len));
            }
            None => {}
        }
    }

    fn server_gets(&mut self, output: &Output) {
        let relative = |number: u32, base: u32| u64::from(number.wrapping_sub(base));
        let at = relative(output.tcp.seq, self.world.flows[0].isn);
        let end = at + output.payload.len() as u64;
        if end < 1 << 26 {
            self.server.got.add(at, end);
            if output.tcp.flags.contains(TcpFlags::FIN) {
                self.server.fin_got = Some(end);
            }
        }
        let ack = relative(output.tcp.ack, self.world.server_isn);
        if ack <= self.server.next {
            self.server.peer_acked = self.server.peer_acked.max(ack);
        }
    }
}

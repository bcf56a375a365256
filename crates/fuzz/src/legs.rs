//! Target `legs`: a client with several flows, a server, and time. The input chooses who does what next
//! and which packets are lost; numbers are right unless it asks for an arbitrary packet. As long as
//! everybody is honest, every byte that comes out must be the one that belongs there. `box_legs` is the same of an aggregation box.

use std::time::Duration;

use flexcp_testkit::keys;
use flexcp_translator::ConnectionState;
use flexcp_wire::{
    AddAddr, DataNumber, Dss, DssMapping, MpFastClose, MpPrio, MptcpOption, RemoveAddr, TcpFlags,
    TcpOption, Timestamps,
};

use crate::ends::{Client, Mapping, Server, mapping_of, stream};
use crate::input::Input;
use crate::opening::Stage;
use crate::output::Output;
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
    run(setup, input);
}

/// Target: the same where FlexCP is an aggregation box, and the end with TCP has opened the connection. There may be an aggregation
/// server at the far end; uplinks come and go.
pub fn target_of_box(data: &[u8]) {
    let mut input = Input::new(data);
    run(Setup::read_of_box(&mut input), input);
}

fn run(setup: Setup, mut input: Input<'_>) {
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
    let mut server = Server::new();
    client.behind(world.preamble);
    server.behind(world.preamble);
    let mut legs = Legs {
        world,
        client,
        server,
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
        if !self.client.may_send(k, self.client.next) {
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
        if k != other && !self.client.may_send(other, dsn) {
            return;
        }
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
            packet.window = self.window(input.u16());
        }
        self.send(&packet);
    }

    /// A packet of the client's with all that it knows to say.
    fn client_packet(&mut self, k: usize, mapping: Option<Mapping>, sack: bool) -> Packet {
        let flow = self.world.flows[k];
        let known = &self.client.flows[k];
        let next = flow.isn.wrapping_add(known.next + u32::from(known.fin));
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
        packet.window = self.window(packet.window);
        packet
    }

    /// The window field of the client's next packet: what the input wants, but the right edge never moves left
    /// (RFC 8684 section 3.3.4).
    fn window(&mut self, wanted: u16) -> u16 {
        let scale = self.client_scale();
        let ack = self.client.data_ack();
        let owed = self.client.edge.saturating_sub(ack).div_ceil(1 << scale);
        let window = wanted.max(u16::try_from(owed).unwrap_or(u16::MAX));
        let edge = ack + (u64::from(window) << scale);
        self.client.edge = self.client.edge.max(edge);
        window
    }

    /// Shift of the client's windows.
    const fn client_scale(&self) -> u8 {
        match self.world.setup.scales {
            (Some(client), Some(_)) => client,
            _ => 0,
        }
    }

    /// Shift of the server's windows, as the client is told them.
    const fn server_scale(&self) -> u8 {
        match self.world.setup.scales {
            (Some(_), Some(server)) => server,
            _ => 0,
        }
    }

    fn server_packet(&self, at: u64) -> Packet {
        let (isn, peer) = (self.world.server_isn, self.world.flows[0].isn);
        let low = |number: u64| u32::try_from(number & 0xffff_ffff).unwrap_or(0);
        let ack = self.server.ack();
        let (seq, number) = (isn.wrapping_add(low(at)), peer.wrapping_add(low(ack)));
        let mut packet = Packet::new(Party::Server, seq, number, TcpFlags::ACK);
        let mut options = Vec::new();
        if self.world.setup.timestamps {
            let (val, ecr) = (self.world.clock(FLOWS), self.world.heard[FLOWS]);
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
        let len = self.server.room(input.len(20_000).max(1));
        if self.server.fin || self.server.next > 1 << 24 || len == 0 {
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
        if self.client.flows[k].joined {
            return;
        }
        let asked = self.world.setup.aggregation.is_some();
        let heard = self.world.flows[k].peer_nonce != 0;
        let packet = match input.below(3) {
            _ if asked && heard => self.world.join_answer(k, input.u8() > 200),
            _ if asked => return,
            0 => self.world.join_syn(k, input.bool()),
            _ if !heard => return,
            _ => self.world.join_ack(k),
        };
        let before = self.world.flows[k].peer_isn;
        self.send(&packet);
        if self.world.flows[k].peer_isn != before {
            // A flow of its own, though on the ports of one that is over.
            self.client.reopen(k);
        }
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
            packet.seq = self.world.flows[k]
                .isn
                .wrapping_add(self.client.flows[k].next);
            packet.flags |= TcpFlags::FIN;
            self.client.flows[k].fin = true;
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
        if self.world.setup.aggregation.is_some() && input.u8() > 127 {
            let out = self.world.change_uplinks(input.u8());
            return self.take(&out);
        }
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
                let hmac = Some(keys::add_addr((client, proxy), id, addr, None));
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
        self.world.note_dishonest();
        let k = self.flow(input);
        let mut packet = self.client_packet(k, None, false);
        packet.options.clear();
        self.send(&packet);
    }

    fn arbitrary(&mut self, input: &mut Input<'_>) {
        self.honest = false;
        self.world.note_dishonest();
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
        if self.honest && self.world.setup.aggregation.is_none() {
            // Or the checker would ask less than it can.
            let breach = self.world.checker.breaches().next();
            assert_eq!(breach, None, "held against honest ends");
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
            if self.lose() {
                continue;
            }
            let before = self.world.flows;
            self.world.learn(std::slice::from_ref(output));
            match output.party {
                Party::Client(k) if output.tcp.flags == TcpFlags::SYN => {
                    // FlexCP asks: again, or for a flow of its own.
                    if before[k].peer_isn != output.tcp.seq {
                        self.client.reopen(k);
                    }
                }
                Party::Client(k) => self.client_gets(k, output),
                Party::Server => self.server_gets(output),
            }
        }
    }

    fn client_gets(&mut self, k: usize, output: &Output) {
        let flow = self.world.flows[k];
        let ack = output.tcp.ack.wrapping_sub(flow.isn);
        let known = &mut self.client.flows[k];
        if ack <= known.next {
            known.acked = known.acked.max(ack);
        }
        if !output.tcp.flags.intersects(TcpFlags::RST | TcpFlags::SYN) {
            // The answer to the third packet of a join, at the latest.
            known.joined = true;
        }
        if let Some(Dss {
            data_ack: Some(DataNumber::Long(ack)),
            ..
        }) = output.options.dss
        {
            let window = u64::from(output.tcp.window) << self.server_scale();
            let edge = ack.wrapping_sub(self.idsn.0) + window;
            self.client.peer_edge = self.client.peer_edge.max(edge);
        }
        let ssn = output.tcp.seq.wrapping_sub(flow.peer_isn);
        let len = u32::try_from(output.payload.len()).unwrap_or(0);
        match mapping_of(output, self.idsn.1) {
            Some(((start, dsn, mapped), fin)) => {
                if fin {
                    self.client.fin_got = Some(dsn + u64::from(mapped));
                }
                if len > 0 && ssn >= start && ssn < start.saturating_add(1 << 20) {
                    let at = dsn + u64::from(ssn - start);
                    self.compare(false, at, &output.payload);
                    self.client.take(k, (ssn, at, len));
                }
            }
            None if k == 0 && len > 0 && ssn < 1 << 25 => {
                self.client.take(k, (ssn, ssn.into(), len));
            }
            None => {}
        }
    }

    /// Where nobody else does: what comes out is what went in at that place, or filler.
    fn compare(&self, up: bool, at: u64, payload: &[u8]) {
        if !self.honest
            || self.world.setup.aggregation.is_none()
            || payload.iter().all(|byte| *byte == 0)
        {
            return;
        }
        let len = u32::try_from(payload.len()).unwrap_or(0);
        assert!(payload == stream(up, at, len), "other bytes at {at}");
    }

    fn server_gets(&mut self, output: &Output) {
        let relative = |number: u32, base: u32| u64::from(number.wrapping_sub(base));
        let at = relative(output.tcp.seq, self.world.flows[0].isn);
        let end = at + output.payload.len() as u64;
        if end < 1 << 26 {
            self.compare(true, at, &output.payload);
            self.server.got.add(at, end);
            if output.tcp.flags.contains(TcpFlags::FIN) {
                self.server.fin_got = Some(end);
            }
        }
        let ack = relative(output.tcp.ack, self.world.server_isn);
        if ack <= self.server.next {
            self.server.peer_acked = self.server.peer_acked.max(ack);
            if !output.tcp.flags.contains(TcpFlags::SYN) {
                let window = u64::from(output.tcp.window) << self.client_scale();
                self.server.peer_edge = self.server.peer_edge.max(ack + window);
            }
        }
    }
}

//! Target `stream`: one connection, brought as far as the input says, then any packets: arbitrary
//! numbers, flags, options, lengths and segmentation, most of them near what would be right.

use std::time::Duration;

use flexcp_testkit::keys;
use flexcp_wire::{
    AddAddr, CapableFlags, CapableKeys, ChecksumState, DataNumber, Dss, DssMapping, MpCapable,
    MpFail, MpFastClose, MpJoin, MpPrio, MptcpOption, OptionWriter, RemoveAddr, SackBlocks,
    TcpFlags, TcpOption, Timestamps,
};

use crate::input::Input;
use crate::opening::Stage;
use crate::options;
use crate::output::Output;
use crate::world::{FLOWS, Packet, Party, Setup, World};

/// Steps of one input at most.
const MAX_STEPS: usize = 96;

/// Where everybody is, so that packets can be near it. Relative: a SYN has number 0.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Numbers {
    /// The next number of each flow's client, and of FlexCP on it.
    pub(crate) flows: [(u32, u32); FLOWS],
    /// The next number of the server, and of its client.
    pub(crate) server: (u32, u32),
    /// Behind the client's data, and behind what came down to it.
    pub(crate) data: (u64, u64),
}

impl Default for Numbers {
    fn default() -> Self {
        Self {
            flows: [(1, 1); FLOWS],
            server: (1, 1),
            data: (1, 1),
        }
    }
}

/// Target.
pub fn target(data: &[u8]) {
    let mut input = Input::new(data);
    run(Setup::read(&mut input), input);
}

/// Target: the same of an aggregation box, from the SYN of the client in its LAN on.
pub fn target_of_box(data: &[u8]) {
    let mut input = Input::new(data);
    run(Setup::read_of_box(&mut input), input);
}

fn run(setup: Setup, mut input: Input<'_>) {
    let mut world = World::new(setup);
    world.note_dishonest();
    world.open(Stage::from_byte(input.u8()));
    let mut numbers = Numbers::default();
    for _ in 0..MAX_STEPS {
        if input.is_empty() {
            break;
        }
        step(&mut world, &mut numbers, &mut input);
        let _ = world.translator.connections(world.now).count();
    }
    world.run_down();
}

fn step(world: &mut World, numbers: &mut Numbers, input: &mut Input<'_>) {
    let out = match input.u8() {
        0..=15 => {
            let millis = match input.u8() {
                short @ 0..=199 => u64::from(short),
                long => u64::from(long) * u64::from(input.u16()),
            };
            // Aggregation servers that do not answer are asked again and again.
            let asked = world.setup.aggregation.is_some();
            let millis = if asked { millis.min(300_000) } else { millis };
            world.advance(world.now + Duration::from_millis(millis))
        }
        16..=23 => handshake(world, input),
        _ => {
            let packet = arbitrary(world, numbers, input);
            note_sent(world, numbers, &packet);
            world.send(&packet)
        }
    };
    world.learn(&out);
    note_outputs(world, numbers, &out);
}

/// A packet of a handshake, at the wrong time more often than not.
fn handshake(world: &mut World, input: &mut Input<'_>) -> Vec<Output> {
    let k = 1 + input.below(FLOWS - 1);
    let asked = world.setup.aggregation.is_some();
    let mut packet = match input.below(5) {
        0 if asked => world.syn_of_lan(),
        1 if asked => world.answer_of_far(),
        2 if asked => world.third_of_lan(),
        3 if asked && input.bool() => return world.change_uplinks(input.u8()),
        3 if asked && input.bool() => world.some_answer(input),
        3 if asked => world.confirmation(),
        _ if asked => world.join_answer(k, input.bool()),
        0 => world.syn(),
        1 => world.syn_ack(),
        2 => world.third(),
        3 => world.join_syn(k, input.bool()),
        _ => world.join_ack(k),
    };
    packet.seq = packet.seq.wrapping_add(input.delta());
    world.send(&packet)
}

/// Any packet.
pub(crate) fn arbitrary(world: &World, numbers: &Numbers, input: &mut Input<'_>) -> Packet {
    let from = match input.below(8) {
        0 | 1 => Party::Client(0),
        2 | 3 => Party::Client(1),
        4 => Party::Client(2 + input.below(FLOWS - 2)),
        _ => Party::Server,
    };
    let ((own, other), (isn, peer_isn)) = match from {
        Party::Client(k) => (
            numbers.flows[k],
            (world.flows[k].isn, world.flows[k].peer_isn),
        ),
        Party::Server => (numbers.server, (world.server_isn, world.flows[0].isn)),
    };
    let seq = isn.wrapping_add(own).wrapping_add(input.delta());
    let ack = peer_isn.wrapping_add(other).wrapping_add(input.delta());
    let flags = match input.u8() {
        0..=159 => TcpFlags::ACK,
        160..=199 => TcpFlags::ACK | TcpFlags::PSH,
        200..=215 => TcpFlags::ACK | TcpFlags::FIN,
        216..=223 => TcpFlags::ACK | TcpFlags::RST,
        224..=227 => TcpFlags::RST,
        _ => TcpFlags(input.u16() & 0x1ff),
    };
    let mut packet = Packet::new(from, seq, ack, flags);
    let len = if input.bool() { input.len(65_535) } else { 0 };
    packet.payload = vec![0x42; usize::try_from(len).unwrap_or(0)];
    packet.options = some_options(world, numbers, from, seq.wrapping_sub(isn), len, input);
    let form = input.u8();
    packet.checksum = match form & 3 {
        0 | 1 => ChecksumState::Verified,
        2 => ChecksumState::Partial,
        _ => ChecksumState::Complete,
    };
    packet.broken = form & 0xf3 == 0xf3;
    packet.gso = (form & 4 != 0).then(|| input.u16());
    if form & 8 != 0 {
        packet.window = input.u16();
    }
    if flags.contains(TcpFlags::URG) {
        packet.urgent = input.u16();
    }
    packet
}

/// Options of a packet: a set of likely ones, any MPTCP one, or raw bytes.
fn some_options(
    world: &World,
    numbers: &Numbers,
    from: Party,
    ssn: u32,
    len: u32,
    input: &mut Input<'_>,
) -> Vec<u8> {
    let mut writer = OptionWriter::new();
    let form = input.u8();
    if form == 0xff {
        let mut raw = input.bytes(40).to_vec();
        raw.resize(raw.len().next_multiple_of(4), 1);
        return raw;
    }
    if world.setup.timestamps || form & 0x40 != 0 {
        let k = match from {
            Party::Client(k) => k,
            Party::Server => FLOWS,
        };
        let val = world.clock(k).wrapping_add(input.delta());
        let ecr = world.heard[k].wrapping_add(input.delta());
        writer.push(&TcpOption::Timestamps(Timestamps { val, ecr }));
    }
    if form & 0x30 == 0x30 {
        writer.push(&TcpOption::Sack(some_blocks(world, numbers, from, input)));
    }
    match form & 0x0f {
        0..=2 => {}
        3..=10 if matches!(from, Party::Client(_)) => {
            let dss = some_dss(world, numbers, ssn, len, input);
            writer.push(&TcpOption::Mptcp(MptcpOption::Dss(dss)));
        }
        11..=13 => {
            let dss = some_dss(world, numbers, ssn, 0, input);
            writer.push(&TcpOption::Mptcp(MptcpOption::Dss(dss)));
            writer.push(&TcpOption::Mptcp(signal(world, from, input)));
        }
        14 => {
            writer.push(&TcpOption::Mptcp(options::mptcp(input)));
        }
        _ => {
            writer.push(&TcpOption::Mptcp(signal(world, from, input)));
        }
    }
    writer.finish().to_vec()
}

fn some_blocks(world: &World, numbers: &Numbers, from: Party, input: &mut Input<'_>) -> SackBlocks {
    let base = match from {
        Party::Client(k) => world.flows[k].peer_isn.wrapping_add(numbers.flows[k].1),
        Party::Server => world.flows[0].isn.wrapping_add(numbers.server.1),
    };
    let mut blocks = SackBlocks::new();
    for _ in 0..=input.below(4) {
        let left = base
            .wrapping_sub(u32::from(input.u8()) * 16)
            .wrapping_add(input.delta());
        blocks.push(left, left.wrapping_add(input.len(65_535)));
    }
    blocks
}

/// A DSS whose numbers are near the right ones.
fn some_dss(world: &World, numbers: &Numbers, ssn: u32, len: u32, input: &mut Input<'_>) -> Dss {
    let form = input.u8();
    let number = |number: u64, long: bool| {
        if long {
            DataNumber::Long(number)
        } else {
            #[expect(
                clippy::cast_possible_truncation,
                reason = "the low half is what is sent"
            )]
            DataNumber::Short(number as u32)
        }
    };
    let spread = |delta: u32| i64::from(delta.cast_signed()).cast_unsigned();
    let data_ack = (form & 1 == 0).then(|| {
        let idsn = keys::idsn(world.proxy_key.unwrap_or(0));
        let ack = idsn
            .wrapping_add(numbers.data.1)
            .wrapping_add(spread(input.delta()));
        number(ack, form & 2 == 0)
    });
    let data_fin = form & 0xc0 == 0xc0;
    let mapping = (len > 0 || data_fin || form & 0x20 != 0).then(|| {
        let idsn = keys::idsn(world.client_key);
        let dsn = idsn
            .wrapping_add(numbers.data.0)
            .wrapping_add(spread(input.delta()));
        let len = len
            .wrapping_add(u32::from(data_fin))
            .wrapping_add(input.delta());
        DssMapping {
            dsn: number(dsn, form & 4 == 0),
            ssn: if len == 0 {
                0
            } else {
                ssn.wrapping_add(input.delta())
            },
            len: u16::try_from(len & 0xffff).unwrap_or(0),
            checksum: (form & 0x1f == 0x1f).then(|| input.u16()),
        }
    });
    Dss {
        data_ack,
        mapping,
        data_fin,
    }
}

/// A signal that is right, or nearly.
fn signal(world: &World, from: Party, input: &mut Input<'_>) -> MptcpOption {
    let (client, proxy) = (world.client_key, world.proxy_key.unwrap_or(0));
    let wrong = u64::from(input.u8() == 0xff);
    let k = match from {
        Party::Client(k) => k,
        Party::Server => 0,
    };
    match input.below(10) {
        0 => MptcpOption::Prio(MpPrio {
            backup: input.bool(),
        }),
        1 => MptcpOption::RemoveAddr(RemoveAddr::new(&[input.u8() & 7, input.u8()])),
        2 | 3 => {
            let (echo, id) = (input.bool(), input.u8() & 7);
            let addr = world.flows[input.below(FLOWS)].client.ip();
            let hmac = keys::add_addr((client, proxy), id, addr, None) ^ wrong;
            MptcpOption::AddAddr(AddAddr {
                echo,
                id,
                addr,
                port: None,
                hmac: (!echo).then_some(hmac),
            })
        }
        4 => MptcpOption::FastClose(MpFastClose { key: proxy ^ wrong }),
        5 => MptcpOption::Fail(MpFail { dsn: input.u64() }),
        6 => {
            let flow = world.flows[k];
            let mut hmac = keys::join_ack((client, proxy), (flow.nonce, flow.peer_nonce));
            hmac[0] ^= u8::from(wrong != 0);
            MptcpOption::Join(MpJoin::Ack { hmac })
        }
        7 => MptcpOption::Capable(MpCapable {
            version: 1,
            flags: CapableFlags::HMAC_SHA256,
            keys: CapableKeys::AckData {
                sender: client,
                receiver: proxy ^ wrong,
                data_len: input.u16(),
                checksum: None,
            },
        }),
        _ => options::mptcp(input),
    }
}

fn note_sent(world: &World, numbers: &mut Numbers, packet: &Packet) {
    let len = u32::try_from(packet.payload.len()).unwrap_or(0);
    let near = |number: u32, known: u32| number.wrapping_sub(known) < 1 << 20;
    match packet.from {
        Party::Client(k) => {
            let end = packet
                .seq
                .wrapping_sub(world.flows[k].isn)
                .wrapping_add(len);
            if near(end, numbers.flows[k].0) {
                numbers.flows[k].0 = end;
            }
            numbers.data.0 += u64::from(len);
        }
        Party::Server => {
            let end = packet.seq.wrapping_sub(world.server_isn).wrapping_add(len);
            if near(end, numbers.server.0) {
                numbers.server.0 = end;
            }
        }
    }
}

/// Takes what FlexCP has sent as seen.
fn note_outputs(world: &World, numbers: &mut Numbers, out: &[Output]) {
    for output in out {
        let len = u32::try_from(output.payload.len()).unwrap_or(0);
        match output.party {
            Party::Client(k) => {
                let end = output
                    .tcp
                    .seq
                    .wrapping_sub(world.flows[k].peer_isn)
                    .wrapping_add(len);
                numbers.flows[k].1 = end.max(1);
                let end = mapped_end(world, output);
                numbers.data.1 = end.unwrap_or(numbers.data.1);
            }
            Party::Server => {
                let end = output
                    .tcp
                    .seq
                    .wrapping_sub(world.flows[0].isn)
                    .wrapping_add(len);
                numbers.server.1 = end.max(1);
            }
        }
    }
}

fn mapped_end(world: &World, output: &Output) -> Option<u64> {
    let mapping = output.options.dss?.mapping?;
    let DataNumber::Long(dsn) = mapping.dsn else {
        return None; // what FlexCP stepped aside for
    };
    let end = dsn.wrapping_add(u64::from(mapping.len));
    Some(end.wrapping_sub(keys::idsn(world.proxy_key.unwrap_or(0))))
}

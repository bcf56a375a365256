//! Target `icmp`: a connection with joined flows, some data, and ICMP errors about its packets, most of them
//! right: type, quoted addresses, ports and numbers, and how much is quoted.

use flexcp_testkit::{icmp_error, ip_header, quoted};
use flexcp_wire::{Ends, Offload, TcpFlags, protocol};

use crate::input::Input;
use crate::opening::Stage;
use crate::stream::{Numbers, arbitrary};
use crate::world::{FLOWS, Packet, Party, Setup, World};

/// Steps of one input at most.
const MAX_STEPS: usize = 64;

/// Target.
pub fn target(data: &[u8]) {
    let mut input = Input::new(data);
    let mut world = World::new(Setup::read(&mut input));
    world.open(Stage::from_byte(input.u8()));
    for _ in 0..MAX_STEPS {
        if input.is_empty() {
            break;
        }
        match input.u8() {
            0..=39 => {
                let packet = arbitrary(&world, &Numbers::default(), &mut input);
                let _ = world.send(&packet);
            }
            40..=79 => {
                let mut packet = Packet::new(
                    Party::Server,
                    world.server_isn.wrapping_add(1 + u32::from(input.u8())),
                    world.flows[0].isn.wrapping_add(1),
                    TcpFlags::ACK,
                );
                packet.payload = vec![7; usize::from(input.u8())];
                let _ = world.send(&packet);
            }
            _ => error(&mut world, &mut input),
        }
    }
    world.run_down();
}

/// An error about a packet that FlexCP has sent, or could have.
fn error(world: &mut World, input: &mut Input<'_>) {
    let leg = input.below(FLOWS + 1);
    let (src, dst, isn) = match world.flows.get(leg) {
        Some(flow) => (flow.local, flow.client, flow.peer_isn),
        None => (world.source, world.server, world.flows[0].isn),
    };
    let seq = isn.wrapping_add(1).wrapping_add(input.delta());
    let mut quoted = quoted(Ends { from: src, to: dst }, seq);
    quoted.resize(quoted.len() + input.below(64), 0x33);
    let form = input.u8();
    if form & 0x80 != 0 {
        let at = input.below(quoted.len());
        quoted[at] = input.u8();
    }
    if form & 0x40 != 0 {
        let count = input.below(quoted.len());
        quoted.truncate(count);
    }
    let v6 = dst.is_ipv6() ^ (form & 0x3f == 0x3f);
    let (kind, code) = match (input.below(6), v6) {
        (0 | 1, false) => (3, 4),
        (0 | 1, true) => (2, 0),
        (2, false) => (3, input.u8() % 16),
        (2, true) => (1, input.u8() % 8),
        (3, false) => (11, 0),
        (3, true) => (3, 0),
        _ => (input.u8(), input.u8()),
    };
    let mtu = match input.u8() {
        0..=63 => 1400,
        64..=127 => u32::from(input.u16()),
        _ => input.u32(),
    };
    // From a router of the family of the packet.
    let router = world.flows.iter().find(|flow| flow.client.is_ipv6() == v6);
    let (from, to) = match router {
        Some(flow) => (flow.client.ip(), src.ip()),
        None => (dst.ip(), src.ip()),
    };
    let to = if to.is_ipv6() == v6 { to } else { from };
    let upper = if v6 { protocol::ICMPV6 } else { protocol::ICMP };
    let ip = ip_header(from, to, upper);
    let mut packet = icmp_error(&ip, (kind, code), mtu, &quoted);
    // The last bit of the ICMP checksum.
    packet[ip.emitted_len() + 3] ^= u8::from(input.u8() == 0xff);
    world.send_raw(&packet, Offload::default());
}

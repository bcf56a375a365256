//! Anything may come from the network: no packet panics, what goes out is well-formed (the harness
//! checks each packet), and every packet is accounted for.

use flexcp_wire::{ChecksumState, Gso, GsoKind, Offload};
use proptest::prelude::*;
use proptest::sample::select;

use crate::support::{Leg, Scenario, Setup};

/// Packets of a conversation, as (from the server, line).
const LINES: &[(bool, &str)] = &[
    (
        false,
        "S 0:0(0) win 65535 <mss 1460,sackok,ts 1000 0,ws 8,capable>",
    ),
    (false, "S 0:0(0) win 65535 <mss 1460,sackok,ws 8,join>"),
    (false, ". 1:1(0) ack 1 win 512 <ts 1001 5000,capable>"),
    (false, ". 1:1(0) ack 1 win 512 <join>"),
    (false, "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1>"),
    (
        false,
        "P. 101:201(100) ack 101 <ts 1009 5009,dss ack 101 map 101:201@101>",
    ),
    (false, "P. 51:151(100) ack 1 <dss ack 1 map 51:151@51>"),
    (false, "P. 1:201(200) ack 1"),
    (
        false,
        "P. 1:4001(4000) ack 1 <dss ack 1 map 1:4001@1> gso 1000",
    ),
    (false, ". 1:1(0) ack 101 <dss ack 101>"),
    (false, ". 1:1(0) ack 1 <sack 101:201 301:401,dss ack 1>"),
    (false, ". 1:1(0) ack 1 <dss ack 1,prio b>"),
    (false, ". 1:1(0) ack 1 <dss ack 1,rm-addr 0 1>"),
    (false, ". 1:1(0) ack 1 <add-addr id 1 10.7.0.1 echo>"),
    (false, ". 1:1(0) ack 1 <add-addr id 3 10.7.0.3>"),
    (false, ". 1:1(0) ack 1 <dss ack 1 fin 1>"),
    (false, "P. 1:101(100) ack 1 <dss ack 1 map 1:101@1 fin>"),
    (false, "F. 1:1(0) ack 1 <dss ack 1>"),
    (false, "R. 1:1(0) ack 1 <fastclose>"),
    (false, ". 1:1(0) ack 1 <fastclose bad>"),
    (false, "R 1:1(0) <rst reason 1>"),
    (false, ". 1:1(0) ack 1 <fail 1>"),
    (false, "P. 1:101(100) ack 1 <dss ack 1 infinite 1@1>"),
    (
        true,
        "S. 0:0(0) ack 1 win 65160 <mss 1460,sackok,ts 5000 1000,ws 7>",
    ),
    (true, ". 1:1(0) ack 1"),
    (true, "P. 1:101(100) ack 1"),
    (true, "P. 101:201(100) ack 101 win 64 <ts 5009 1009>"),
    (true, "P. 1:201(200) ack 1"),
    (true, "P. 301:401(100) ack 1"),
    (true, "P. 1:4001(4000) ack 1 gso 1000"),
    (true, ". 1:1(0) ack 1 win 64 <sack 51:101 201:301>"),
    (true, "FP. 1:101(100) ack 1"),
    (true, "F. 1:1(0) ack 2"),
    (true, "R. 1:1(0) ack 1 win 0"),
];

/// One thing that happens.
#[derive(Clone, Debug)]
enum Event {
    Packet {
        line: usize,
        flow: usize,
        edits: Vec<Edit>,
        partial: bool,
    },
    Wait(u64),
    Bytes(Vec<u8>),
}

/// A change to a packet's bytes. Positions count modulo the length.
#[derive(Clone, Debug)]
enum Edit {
    Set(usize, u8),
    Flip(usize, u8),
    Cut(usize),
    Grow(u8),
    /// To the whole 32-bit number at a header field.
    Number(usize, u32),
}

fn edit() -> impl Strategy<Value = Edit> {
    prop_oneof![
        (0..140_usize, any::<u8>()).prop_map(|(at, byte)| Edit::Set(at, byte)),
        (20..110_usize, 0..8_u8).prop_map(|(at, bit)| Edit::Flip(at, bit)),
        (0..200_usize).prop_map(Edit::Cut),
        any::<u8>().prop_map(Edit::Grow),
        (select(vec![24_usize, 28, 44, 48, 56, 60, 64]), any::<u32>())
            .prop_map(|(at, number)| Edit::Number(at, number)),
        (select(vec![24_usize, 28]), 0..5000_u32, any::<bool>()).prop_map(|(at, delta, back)| {
            Edit::Number(
                at,
                if back {
                    0_u32.wrapping_sub(delta)
                } else {
                    delta
                },
            )
        }),
    ]
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        12 => (0..LINES.len(), 0..4_usize, prop::collection::vec(edit(), 0..4), any::<bool>())
            .prop_map(|(line, flow, edits, partial)| Event::Packet { line, flow, edits, partial }),
        2 => prop_oneof![0..50_u64, 0..5000_u64, 0..8_000_000_u64].prop_map(Event::Wait),
        1 => prop::collection::vec(any::<u8>(), 0..120).prop_map(Event::Bytes),
    ]
}

fn apply(bytes: &mut Vec<u8>, edits: &[Edit]) {
    for edit in edits {
        let len = bytes.len().max(1);
        match *edit {
            Edit::Set(at, byte) if !bytes.is_empty() => bytes[at % len] = byte,
            Edit::Flip(at, bit) if !bytes.is_empty() => bytes[at % len] ^= 1 << bit,
            Edit::Cut(at) => bytes.truncate(at),
            Edit::Grow(count) => bytes.extend(std::iter::repeat_n(0xee, count.into())),
            // A small number is relative to what stands there.
            Edit::Number(at, number) if at + 4 <= bytes.len() => {
                let field: [u8; 4] = bytes[at..at + 4].try_into().expect("4 bytes");
                let is_relative = number.wrapping_add(5000) < 10_000;
                let base = if is_relative {
                    u32::from_be_bytes(field)
                } else {
                    0
                };
                let changed = base.wrapping_add(number);
                bytes[at..at + 4].copy_from_slice(&changed.to_be_bytes());
            }
            Edit::Set(..) | Edit::Flip(..) | Edit::Number(..) => {}
        }
    }
}

/// Plays the events; whatever they are, nothing panics and little goes out.
fn play(mut t: Scenario, events: &[Event]) {
    let mut now = 0;
    for event in events {
        let outcome = match event {
            Event::Packet {
                line,
                flow,
                edits,
                partial,
            } => {
                let (of_server, text) = LINES[*line];
                let leg = if of_server {
                    Leg::Server {
                        connection: 0,
                        backend: 0,
                    }
                } else {
                    Leg::Client(*flow)
                };
                let (mut bytes, mut offload) = t.bytes(leg, text);
                if offload.checksum == ChecksumState::Complete {
                    offload.checksum = if *partial {
                        ChecksumState::Partial
                    } else {
                        ChecksumState::Verified
                    };
                }
                apply(&mut bytes, edits);
                t.raw(text.into(), &bytes, offload)
            }
            Event::Wait(millis) => {
                now += millis;
                t.at(now);
                t.timeout()
            }
            Event::Bytes(bytes) => t.raw("bytes".into(), bytes, Offload::default()),
        };
        assert!(outcome.lines().len() <= 24, "{:?}", outcome.lines());
        let _ = t.view();
    }
    let _ = t.moved();
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_dropped_or_passed_on(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut t = Scenario::two_subflows();
        let before: u64 = t.translator.drops().iter().map(|(_, count)| count).sum();
        let outcome = t.raw("bytes".into(), &bytes, Offload::default());
        let after: u64 = t.translator.drops().iter().map(|(_, count)| count).sum();
        prop_assert!(after == before + 1 || outcome.lines().len() == 1);
        let _ = t.moved();
    }

    #[test]
    fn any_tcp_header_and_options_on_a_known_flow_are_survived(
        header in prop::collection::vec(any::<u8>(), 8..60),
        offset in 5..16_u8,
        size in prop::option::of(1..1500_u16),
        v6 in any::<bool>(),
    ) {
        let setup = if v6 { Setup::new().v6() } else { Setup::new() };
        let mut t = setup.ts().two_subflows();
        let (mut bytes, _) = t.bytes(Leg::Client(1), "P. 1:201(200) ack 1 win 512");
        let tcp = if v6 { 40 } else { 20 };
        // Ports and sequence number stay, so that it reaches the subflow.
        let end = (tcp + 8 + header.len()).min(bytes.len());
        bytes[tcp + 8..end].copy_from_slice(&header[..end - tcp - 8]);
        bytes[tcp + 12] = offset << 4;
        let kind = if v6 { GsoKind::TcpV6 } else { GsoKind::TcpV4 };
        let gso = size.map(|size| Gso { kind, size, ecn: false });
        let offload = Offload { checksum: ChecksumState::Partial, gso };
        let outcome = t.raw("header".into(), &bytes, offload);
        prop_assert!(outcome.lines().len() <= 12);
        let _ = t.moved();
    }

    #[test]
    fn any_conversation_over_two_subflows_is_survived(
        events in prop::collection::vec(event(), 1..40),
    ) {
        play(Setup::new().ts().announce("10.7.0.1").two_subflows(), &events);
    }

    #[test]
    fn any_conversation_over_two_families_is_survived(
        events in prop::collection::vec(event(), 1..40),
    ) {
        play(Setup::new().mixed().two_subflows(), &events);
    }

    #[test]
    fn any_conversation_from_the_handshake_on_is_survived(
        events in prop::collection::vec(event(), 1..40),
    ) {
        play(Setup::new().ts().syn_received(), &events);
    }

    #[test]
    fn any_conversation_at_the_wrap_is_survived(events in prop::collection::vec(event(), 1..40)) {
        play(Setup::new().isns(u32::MAX - 50, u32::MAX - 50).two_subflows(), &events);
    }

    #[test]
    fn any_conversation_with_a_back_end_is_survived(events in prop::collection::vec(event(), 1..40)) {
        play(Setup::new().backends(2).limits(|limits| limits.mappings = 3).two_subflows(), &events);
    }

    #[test]
    fn any_conversation_with_little_memory_is_survived(events in prop::collection::vec(event(), 1..40)) {
        play(Setup::new().limits(|limits| limits.memory = 4096).two_subflows(), &events);
    }
}

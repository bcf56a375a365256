//! Packets of several segments through the programs, both ways, in every state of their checksum: what is taken, within
//! which bounds, and what leaves, whole and cut into segments by the kernel.

use std::net::IpAddr;

use flexcp_io::LinkHeader;
use flexcp_translator::{FastPath, FlowEntry, MappingRun};
use flexcp_wire::{ChecksumState, Gso, GsoKind, Offload, TcpFlags};

use crate::offload_packets::{
    NOW, Out, PORTS, Packet, ack_up, addr, alike, data_down, data_up_with, dss, entry, read_part,
    slot_of, timestamps,
};
use crate::offload_ups::brought_by;
use crate::tap::{Line, Passed};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("offload_gso_down_leaves_whole", down_whole),
    ("offload_gso_up_leaves_whole", up_whole),
    ("offload_gso_leaves_in_segments", in_segments),
    (
        "offload_gso_down_with_an_ack_for_another_subflow",
        with_an_ack,
    ),
    ("offload_gso_bounds", bounds),
    ("offload_gso_of_the_longest_packets", longest),
    ("offload_checksums_of_single_segments", single_segments),
];

pub(crate) const STATES: [ChecksumState; 3] = [
    ChecksumState::Partial,
    ChecksumState::Verified,
    ChecksumState::Complete,
];
/// Three segments, and a short one.
pub(crate) const SIZE: u16 = 1_000;
pub(crate) const PAYLOAD: usize = 3_017;
/// What FlexCP addresses servers from, in reverse mode.
const SOURCE: [u8; 4] = [198, 51, 100, 9];

/// The programs between two devices, and connections to install.
pub(crate) struct Rig {
    pub(crate) line: Line,
    path: Box<dyn FastPath>,
}

impl Rig {
    pub(crate) fn new(segments: bool) -> Self {
        Self::between([LinkHeader::Ethernet; 2], segments)
    }

    /// The same from a device to another whose packets have these headers.
    pub(crate) fn between(headers: [LinkHeader; 2], segments: bool) -> Self {
        let mut line = Line::between(headers, 4, segments);
        let path = Box::new(line.fast_path(4));
        Self { line, path }
    }

    pub(crate) fn run(
        &mut self,
        entry: &FlowEntry,
        packet: &Packet,
        offload: Offload,
    ) -> (Passed, FlowEntry) {
        let slot = slot_of(self.path.install(None, entry, None));
        let packet = packet.bytes_in(offload.checksum);
        let passed = self.line.pass(NOW, &packet, offload);
        let back = self.path.evict(slot);
        self.path.release(slot);
        (passed, back)
    }

    /// The packet is translated. What leaves, and the flow entry after it.
    #[track_caller]
    pub(crate) fn takes(
        &mut self,
        entry: &FlowEntry,
        packet: &Packet,
        offload: Offload,
    ) -> (Frames, FlowEntry) {
        let (passed, back) = self.run(entry, packet, offload);
        let Passed::Translated(frames) = passed else {
            panic!("{passed:?}: {:?}", self.line.counted);
        };
        (frames, back)
    }

    /// The packet goes to the translator, for this reason, and the flow entry stays as it was.
    #[track_caller]
    pub(crate) fn passes(
        &mut self,
        why: &str,
        entry: &FlowEntry,
        packet: &Packet,
        offload: Offload,
    ) {
        let (passed, back) = self.run(entry, packet, offload);
        assert!(matches!(passed, Passed::Up), "{passed:?}");
        assert_eq!(self.line.counted, [why]);
        assert_eq!(back, *entry, "the entry of a packet that was not taken");
    }
}

pub(crate) type Frames = Vec<(Vec<u8>, Offload)>;

/// What is said of a packet in segments of `size`.
pub(crate) fn train(packet: &Packet, size: u16, checksum: ChecksumState) -> Offload {
    let kind = if packet.ip.is_v6() {
        GsoKind::TcpV6
    } else {
        GsoKind::TcpV4
    };
    let gso = Gso {
        kind,
        size,
        ecn: false,
    };
    Offload {
        checksum,
        gso: Some(gso),
    }
}

/// A packet and a flow entry of both families.
pub(crate) fn families(entry: &FlowEntry, packet: &Packet) -> [(FlowEntry, Packet); 2] {
    let six = FlowEntry {
        family: 6,
        ..*entry
    };
    [(*entry, packet.clone()), (six, packet.six())]
}

/// The server's side has other addresses than the client's, as in reverse mode.
pub(crate) fn elsewhere() -> FlowEntry {
    FlowEntry {
        server_addr: addr([203, 0, 113, 81]),
        source_addr: addr(SOURCE),
        ..entry()
    }
}

/// Windows that the largest packet fits in.
fn wide() -> FlowEntry {
    let mut entry = entry();
    entry.down_edge += 100_000;
    entry.server_edge += 100_000;
    entry.subflows[0].snd_edge = entry.subflows[0].snd_edge.wrapping_add(100_000);
    entry
}

pub(crate) fn train_down(entry: &FlowEntry, payload: usize) -> Packet {
    let mut packet = data_down(entry);
    packet.payload = payload;
    packet.tcp.flags = TcpFlags::ACK | TcpFlags::PSH;
    packet
}

pub(crate) fn train_up(entry: &FlowEntry, payload: usize) -> Packet {
    let ssn = entry.subflows[0].rcv_high.wrapping_sub(1_000);
    let len = u16::try_from(payload).unwrap();
    let mut packet = data_up_with(entry, true, true, (entry.up_next, ssn, len));
    packet.payload = payload;
    packet.tcp.flags = TcpFlags::ACK | TcpFlags::PSH;
    packet
}

/// Options of data down: the mapping is that of the whole packet.
fn mapped(entry: &FlowEntry, payload: usize) -> Vec<u8> {
    let ssn = entry.subflows[0].snd_next.wrapping_sub(2_000);
    let len = u16::try_from(payload).unwrap();
    let mut options = timestamps(9_001, 6_895);
    options.extend(dss(
        entry.up_acked,
        true,
        Some((entry.down_next, ssn, len)),
        true,
    ));
    options
}

fn down_whole() {
    let mut rig = Rig::new(false);
    let entry = entry();
    for (entry, packet) in families(&entry, &train_down(&entry, PAYLOAD)) {
        for state in STATES {
            let carried = train(&packet, SIZE, state);
            let (frames, back) = rig.takes(&entry, &packet, carried);
            let [(frame, left)] = frames.as_slice() else {
                panic!("{} frames", frames.len());
            };
            // However it came in, a packet of several segments leaves with checksums to complete.
            assert_eq!(*left, train(&packet, SIZE, ChecksumState::Partial));
            let out = read_part(frame, left.checksum, 0);
            assert_eq!((out.ip.ttl, out.payload), (63, PAYLOAD));
            assert_eq!(out.tcp.seq, entry.subflows[0].snd_next);
            assert_eq!(out.tcp.flags, packet.tcp.flags);
            assert_eq!(out.options, mapped(&entry, PAYLOAD));
            let run = MappingRun {
                ssn: entry.subflows[0].snd_next,
                len: u16::try_from(PAYLOAD).unwrap(),
                count: 1,
            };
            assert_eq!((back.runs[0], back.runs_used), (run, 1));
            assert_eq!(back.down_next, entry.down_next + PAYLOAD as u64);
            assert_eq!(back.subflows[0].bytes_down, PAYLOAD as u64);
        }
    }
}

fn up_whole() {
    let mut rig = Rig::new(false);
    let entry = elsewhere();
    for (entry, packet) in families(&entry, &train_up(&entry, PAYLOAD)) {
        for state in STATES {
            let carried = train(&packet, SIZE, state);
            let (frames, back) = rig.takes(&entry, &packet, carried);
            let [(frame, left)] = frames.as_slice() else {
                panic!("{} frames", frames.len());
            };
            assert_eq!(*left, train(&packet, SIZE, ChecksumState::Partial));
            let out = read_part(frame, left.checksum, 0);
            assert_eq!((out.ip.ttl, out.payload), (63, PAYLOAD));
            let source = if out.ip.is_v6() {
                alike(SOURCE)
            } else {
                IpAddr::from(SOURCE)
            };
            assert_eq!(out.ip.src, source);
            assert_eq!(out.tcp.seq, entry.seq_up);
            assert_eq!(out.tcp.flags, packet.tcp.flags);
            // Padding in place of the DSS.
            let mut options = timestamps(7_050, 9_000);
            options.resize(packet.options.len(), 1);
            assert_eq!(out.options, options);
            assert_eq!(back.up_next, entry.up_next + PAYLOAD as u64);
            assert_eq!(back.subflows[0].bytes_up, PAYLOAD as u64);
        }
    }
}

/// What the kernel makes of a packet that leaves by a device without offloads.
fn in_segments() {
    let mut rig = Rig::new(true);
    let entry = entry();
    let down = train_down(&entry, PAYLOAD);
    let up = train_up(&entry, PAYLOAD);
    for (is_down, packet) in [(true, down), (false, up)] {
        for (entry, packet) in families(&entry, &packet) {
            for state in STATES {
                let carried = train(&packet, SIZE, state);
                let (frames, _) = rig.takes(&entry, &packet, carried);
                let first = if is_down {
                    entry.subflows[0].snd_next
                } else {
                    entry.seq_up
                };
                let outs = segments(&frames, first, PAYLOAD);
                let sizes: Vec<_> = outs.iter().map(|out| out.payload).collect();
                assert_eq!(sizes, [1_000, 1_000, 1_000, 17]);
                for (_, left) in &frames {
                    assert_ne!(left.checksum, ChecksumState::Partial);
                }
                for (at, out) in outs.iter().enumerate() {
                    let is_last = at == 3;
                    assert_eq!(out.tcp.flags.contains(TcpFlags::PSH), is_last);
                    if is_down {
                        assert_eq!(out.options, mapped(&entry, PAYLOAD));
                    } else {
                        assert_eq!(out.options[..12], timestamps(7_050, 9_000));
                    }
                }
            }
        }
    }
}

/// Segments that stand one behind the other, `payload` bytes in all. `first`: their first byte's number.
#[track_caller]
pub(crate) fn segments(frames: &Frames, first: u32, payload: usize) -> Vec<Out> {
    let mut outs = Vec::new();
    let mut at = 0;
    for (frame, left) in frames {
        assert_eq!(left.gso, None);
        let out = read_part(frame, left.checksum, at);
        let sent = u32::try_from(at).unwrap();
        assert_eq!(out.tcp.seq, first.wrapping_add(sent));
        at += out.payload;
        outs.push(out);
    }
    assert_eq!(at, payload);
    outs
}

/// The packet leaves as a clone, and what is left of it is cut to the ACK.
fn with_an_ack() {
    let mut rig = Rig::new(false);
    let entry = brought_by(&[(1, 0, 4_000)]);
    let mut several = train_down(&entry, PAYLOAD);
    several.tcp.ack += 1_000;
    let mut one = several.clone();
    one.payload = 1_000;
    for (entry, packet) in families(&entry, &several) {
        for state in STATES {
            let carried = train(&packet, SIZE, state);
            let left = train(&packet, SIZE, ChecksumState::Partial);
            data_and_its_ack(&mut rig, &entry, &packet, (carried, left));
        }
    }
    for (entry, packet) in families(&entry, &one) {
        for checksum in STATES {
            let carried = Offload {
                checksum,
                gso: None,
            };
            data_and_its_ack(&mut rig, &entry, &packet, (carried, carried));
        }
    }
}

/// `carried`: what is said of the packet as it comes, and as it leaves.
pub(crate) fn data_and_its_ack(
    rig: &mut Rig,
    entry: &FlowEntry,
    packet: &Packet,
    carried: (Offload, Offload),
) {
    let (frames, back) = rig.takes(entry, packet, carried.0);
    let [(data, data_left), (ack, ack_left)] = frames.as_slice() else {
        panic!("{} frames", frames.len());
    };
    assert_eq!(data_left.gso, carried.1.gso);
    let partial = |offload: &Offload| offload.checksum == ChecksumState::Partial;
    assert_eq!(partial(data_left), partial(&carried.1));
    let out = read_part(data, data_left.checksum, 0);
    assert_eq!((out.payload, out.tcp.dst_port), (packet.payload, PORTS[0]));
    // The ACK is one packet, and complete.
    assert_eq!(ack_left.gso, None);
    assert!(!partial(ack_left));
    let own = read_part(ack, ack_left.checksum, 0);
    assert_eq!((own.payload, own.tcp.dst_port), (0, PORTS[1]));
    assert_eq!(own.tcp.flags, TcpFlags::ACK);
    let mut options = timestamps(9_001, 6_900);
    options.extend(dss(entry.up_acked + 1_000, true, None, false));
    assert_eq!(own.options, options);
    assert_eq!((back.packets_down, back.packets_made), (1, 1));
}

fn bounds() {
    let mut rig = Rig::new(false);
    bounds_of_segments(&mut rig);
    bounds_of_windows(&mut rig);
}

/// A segment grows by the mapping down, and keeps its options up; it has to fit the receiver's MSS and the way out.
fn bounds_of_segments(rig: &mut Rig) {
    let entry = entry();
    for (mut entry, packet) in families(&entry, &train_down(&entry, PAYLOAD)) {
        let carried = train(&packet, SIZE, ChecksumState::Partial);
        entry.subflows[0].mss = 1_039;
        rig.passes("too_long", &entry, &packet, carried);
        entry.subflows[0].mss = 1_040;
        rig.takes(&entry, &packet, carried);
        // A short last segment makes no difference, nor does a whole one.
        let mut even = packet.clone();
        even.payload = 3_000;
        rig.takes(&entry, &even, carried);
        // The way out takes 1,500 bytes.
        entry.subflows[0].mss = 2_000;
        let most = if packet.ip.is_v6() { 1_400 } else { 1_420 };
        let carried = train(&packet, most, ChecksumState::Partial);
        rig.takes(&entry, &packet, carried);
        let carried = train(&packet, most + 1, ChecksumState::Partial);
        rig.passes("route", &entry, &packet, carried);
    }
    for (mut entry, packet) in families(&entry, &train_up(&entry, PAYLOAD)) {
        let carried = train(&packet, SIZE, ChecksumState::Partial);
        let options = u32::try_from(packet.options.len()).unwrap();
        entry.server_mss = 1_000 + options - 1;
        rig.passes("too_long", &entry, &packet, carried);
        entry.server_mss += 1;
        rig.takes(&entry, &packet, carried);
    }
}

/// All of the packet counts, not its first segment.
fn bounds_of_windows(rig: &mut Rig) {
    let entry = entry();
    let payload = PAYLOAD as u64;
    for (mut entry, packet) in families(&entry, &train_down(&entry, PAYLOAD)) {
        let carried = train(&packet, SIZE, ChecksumState::Partial);
        entry.down_edge = entry.down_next + payload - 1;
        rig.passes("window", &entry, &packet, carried);
        entry.down_edge += 1;
        rig.takes(&entry, &packet, carried);
    }
    for (mut entry, packet) in families(&entry, &train_up(&entry, PAYLOAD)) {
        let carried = train(&packet, SIZE, ChecksumState::Partial);
        entry.server_edge = entry.up_next + payload - 1;
        rig.passes("window", &entry, &packet, carried);
        entry.server_edge += 1;
        rig.takes(&entry, &packet, carried);
        // The mapping has to hold all of it.
        let mut beyond = packet.clone();
        beyond.payload += 1;
        rig.passes("mapping", &entry, &beyond, carried);
    }
}

/// What leaves is no longer than an IP packet may be; the mapping grows with it. The kernel cuts what is that long,
/// because the link's header is more than a device takes whole.
fn longest() {
    let mut rig = Rig::new(false);
    let entry = wide();
    for (entry, mut packet) in families(&entry, &train_down(&entry, PAYLOAD)) {
        // With timestamps and a mapping.
        packet.payload = 65_535 - packet.ip.header_len - 60;
        for state in STATES {
            let carried = train(&packet, SIZE, state);
            let (frames, back) = rig.takes(&entry, &packet, carried);
            let first = entry.subflows[0].snd_next;
            for out in segments(&frames, first, packet.payload) {
                assert_eq!(out.options, mapped(&entry, packet.payload));
            }
            assert_eq!(usize::from(back.runs[0].len), packet.payload);
        }
        packet.payload += 1;
        let carried = train(&packet, SIZE, ChecksumState::Partial);
        rig.passes("too_long", &entry, &packet, carried);
    }
    let longest = 65_535 - 20 - 20 - train_up(&entry, PAYLOAD).options.len();
    for (entry, mut packet) in families(&entry, &train_up(&entry, longest)) {
        let is_v6 = packet.ip.is_v6();
        packet.payload = if is_v6 { longest - 20 } else { longest };
        let carried = train(&packet, SIZE, ChecksumState::Partial);
        let (frames, _) = rig.takes(&entry, &packet, carried);
        segments(&frames, entry.seq_up, packet.payload);
        // An IPv6 packet may be longer than that.
        if is_v6 {
            packet.payload += 1;
            rig.passes("too_long", &entry, &packet, carried);
        }
    }
}

/// One segment, in each state of its checksum: the programs adjust what is to be adjusted in it.
fn single_segments() {
    let mut rig = Rig::new(false);
    let entry = entry();
    let mut both = data_down(&entry);
    both.tcp.ack += 1_000;
    let up = data_up_with(
        &entry,
        true,
        true,
        (
            entry.up_next,
            entry.subflows[0].rcv_high.wrapping_sub(1_000),
            500,
        ),
    );
    for (entry, packet) in [
        (entry, data_down(&entry)),
        (entry, both),
        (elsewhere(), up),
        (elsewhere(), ack_up(&entry)),
    ] {
        for (entry, packet) in families(&entry, &packet) {
            for checksum in STATES {
                let carried = Offload {
                    checksum,
                    gso: None,
                };
                let (frames, _) = rig.takes(&entry, &packet, carried);
                let [(frame, left)] = frames.as_slice() else {
                    panic!("{} frames", frames.len());
                };
                let partial = |state| state == ChecksumState::Partial;
                assert_eq!(partial(left.checksum), partial(checksum));
                let out = read_part(frame, left.checksum, 0);
                assert_eq!(out.payload, packet.payload);
            }
            // Nobody has looked at it, or somebody has.
            let mut wrong = packet.clone();
            wrong.damage = Some((wrong.bytes().len() - 1, 1));
            let unseen = Offload::default();
            rig.passes("checksum", &entry, &wrong, unseen);
        }
    }
}

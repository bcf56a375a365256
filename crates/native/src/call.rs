//! The call into the program, and the layouts that both sides have of it (`kernel/native.c`).

use flexcp_translator::FlowEntry;

/// An entry of the programs' map of flows: the ends of packets as they stand in them (`struct flow_key`), and whose
/// packets those are (`struct flow_ref`).
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Flow {
    pub(crate) from: [u8; 16],
    pub(crate) to: [u8; 16],
    pub(crate) from_port: [u8; 2],
    pub(crate) to_port: [u8; 2],
    pub(crate) slot: u32,
    /// The subflow's index, or [`LEG_SERVER`].
    pub(crate) leg: u32,
}

/// A way out of the only device there is.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Way {
    /// `AF_INET` or `AF_INET6`, of the packets that take it; 0: both.
    pub family: u32,
    /// Where it leads to, an IPv4 address in the first four bytes; zeros: anywhere.
    pub to: [u8; 16],
    /// The traffic class of IPv4 packets that take it; 0: all.
    pub tos: u32,
    /// Longest segment that it takes, with its IP header.
    pub mtu: u32,
    /// Last byte of the link layer's address of whoever is next; 0: there is no way.
    pub neighbour: u32,
}

/// The leg of the server's packets.
pub(crate) const LEG_SERVER: u32 = 0xff;

/// `struct settings`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Settings {
    device: u32,
    mark: u32,
    sockets: u32,
    spare: u32,
    now: u64,
}

/// `struct sent`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Sent {
    bytes: *mut u8,
    len: u32,
    gso_size: u32,
    partial: u32,
}

/// `struct call`.
#[repr(C)]
struct Call {
    flows: *const Flow,
    entries: *mut FlowEntry,
    gates: *mut u64,
    carried: *mut u64,
    reasons: *mut u64,
    ways: *const Way,
    settings: Settings,
    way_count: u32,
    flow_count: u32,
    slots: u32,
    sent_count: u32,
    sent: [Sent; 2],
}

/// `struct arrival`.
#[repr(C)]
struct Arrival {
    packet: *const u8,
    len: u32,
    gso_size: u32,
    partial: u32,
    verified: u32,
    overheard: u32,
    bare: u32,
}

/// Numbers of the programs' headers that the translator has, too, and of the emulation.
#[repr(C)]
#[derive(Debug)]
#[non_exhaustive]
pub struct Constants {
    /// Bytes of `struct flow_entry`.
    pub entry: u32,
    /// How many reasons there are.
    pub reasons: u32,
    /// Longest frame.
    pub room: u32,
    /// What an answer may take beyond two round trips, in microseconds.
    pub jitter: u32,
    /// Subflows of a flow entry.
    pub subflows: u32,
    /// Runs of mappings of a flow entry.
    pub runs: u32,
    /// Stretches of the client's data on each subflow of a flow entry.
    pub ups: u32,
    /// Holes of a flow entry.
    pub holes: u32,
    /// The largest distance at which numbers are believed.
    pub max_run: u32,
    /// The least.
    pub min_span: u32,
    /// Number of the reason of an ACK that tells nothing new, and is dropped.
    pub stale_ack: u32,
    /// Number of the reason of a packet that the kernel could not change.
    pub rewrite_failed: u32,
}

mod c {
    use super::{Arrival, Call, Constants};

    unsafe extern "C" {
        pub(super) static native_constants: Constants;
        pub(super) fn native_run(call: *mut Call, arrival: *const Arrival) -> i32;
    }
}

/// The constants of the programs as they were compiled.
#[must_use]
pub fn constants() -> &'static Constants {
    // SAFETY: a constant of the C side, of the same layout: words of 32 bits.
    unsafe { &c::native_constants }
}

/// What the program works on.
#[derive(Debug)]
pub(crate) struct Maps<'a> {
    pub(crate) flows: &'a [Flow],
    pub(crate) entries: &'a mut [FlowEntry],
    pub(crate) gates: &'a mut [u64],
    pub(crate) carried: &'a mut [u64],
    pub(crate) reasons: &'a mut [u64],
    pub(crate) ways: &'a [Way],
}

/// A packet, from its IP header on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packet<'a> {
    pub(crate) bytes: &'a [u8],
    /// Payload of a segment; 0: it is one segment.
    pub(crate) gso_size: u32,
    /// The checksum is still to be completed.
    pub(crate) partial: bool,
    /// The checksum has been verified.
    pub(crate) verified: bool,
    /// It is addressed to another station.
    pub(crate) overheard: bool,
    /// It comes without an Ethernet header.
    pub(crate) bare: bool,
}

/// A frame that has left, from the link layer's header on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Left {
    pub(crate) bytes: Vec<u8>,
    pub(crate) gso_size: u32,
    pub(crate) partial: bool,
}

/// Length of the link layer's header.
pub(crate) const ETHERNET: usize = 14;

/// Shows the program a packet at `now`, in microseconds; its verdict, and what has left.
pub(crate) fn run(maps: Maps<'_>, now: u64, packet: Packet<'_>) -> (i32, Vec<Left>) {
    let constants = constants();
    let room = constants.room as usize;
    assert_eq!(
        constants.entry as usize,
        size_of::<FlowEntry>(),
        "struct flow_entry"
    );
    assert_eq!(constants.reasons as usize, maps.reasons.len());
    assert_eq!(maps.entries.len(), maps.gates.len());
    assert_eq!(maps.entries.len(), maps.carried.len());
    let slots = u32::try_from(maps.entries.len()).expect("few slots");
    assert!(maps.flows.iter().all(|flow| flow.slot < slots));
    assert!(packet.bytes.len() <= room - ETHERNET, "too long a packet");
    let mut buffers = [vec![0; room], vec![0; room]];
    let mut call = Call {
        flows: maps.flows.as_ptr(),
        entries: maps.entries.as_mut_ptr(),
        gates: maps.gates.as_mut_ptr(),
        carried: maps.carried.as_mut_ptr(),
        reasons: maps.reasons.as_mut_ptr(),
        ways: maps.ways.as_ptr(),
        settings: Settings {
            device: 1,
            mark: 1,
            sockets: 0,
            spare: 0,
            now,
        },
        way_count: u32::try_from(maps.ways.len()).expect("few ways"),
        flow_count: u32::try_from(maps.flows.len()).expect("few flows"),
        slots,
        sent_count: 0,
        sent: buffers.each_mut().map(|buffer| Sent {
            bytes: buffer.as_mut_ptr(),
            len: 0,
            gso_size: 0,
            partial: 0,
        }),
    };
    let arrival = Arrival {
        packet: packet.bytes.as_ptr(),
        len: u32::try_from(packet.bytes.len()).expect("at most 64 KB"),
        gso_size: packet.gso_size,
        partial: packet.partial.into(),
        verified: packet.verified.into(),
        overheard: packet.overheard.into(),
        bare: packet.bare.into(),
    };
    // SAFETY: layouts are those of `kernel/native.c`. The tables are exclusively borrowed, as long as their counts say and
    // unchanged in place while this runs; flow entries and reasons are as large as the C side's types, which was compared
    // above; each buffer has the room that the C side has for a frame, and the packet fits into that. The C side keeps
    // no pointer beyond the call, and its own state is the thread's.
    let verdict = unsafe { c::native_run(&raw mut call, &raw const arrival) };
    let sent = call.sent.iter().take(call.sent_count as usize);
    let left = sent.zip(buffers).map(|(sent, mut buffer)| {
        buffer.truncate(sent.len as usize);
        Left {
            bytes: buffer,
            gso_size: sent.gso_size,
            partial: sent.partial != 0,
        }
    });
    (verdict, left.collect())
}

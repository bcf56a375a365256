//! The fast path's programs under the translator, packet by packet: the simulator's clients, servers and faults
//! around the translator with the real programs in the kernel, held against the wire's rules.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use flexcp_io::{KernelFastPath, LinkHeader, Offload, PacketSocket};
use flexcp_simulator::{Kernel, Offloaded, Taken, run_on, seeds};
use flexcp_translator::{EntrySubflow, FastPath, FlowEntry, Installed};
use flexcp_wire::{ChecksumState, Offload as Carried};

use crate::host::{ip, set_sysctl};
use crate::offload_packets::slot_of;
use crate::tap::{ETHERNET, Line, Passed};

pub(crate) const TESTS: &[(&str, fn())] = &[
    (
        "offload_installed_connection_comes_back_as_it_was",
        comes_back,
    ),
    ("offload_simulated_connections_are_translated_alike", twins),
    (
        "offload_simulated_connections_without_ethernet_headers",
        twins_without_headers,
    ),
];

/// Where packets would leave: what leaves beside the packet in hand is seen at the other end.
pub(crate) fn network() {
    ip("link add out type veth peer name peer");
    ip("link set peer up");
    ways();
}

/// All ways lead out of the device `out`.
pub(crate) fn ways() {
    for key in ["ipv4/conf/all/forwarding", "ipv6/conf/all/forwarding"] {
        set_sysctl(key, "1");
    }
    set_sysctl("ipv6/conf/out/accept_dad", "0");
    ip("link set out up");
    ip("addr add 192.0.2.1/24 dev out");
    ip("neigh add 192.0.2.2 lladdr 02:00:00:00:00:02 dev out");
    ip("route add default via 192.0.2.2");
    ip("-6 addr add 2001:db8:ffff::1/64 dev out nodad");
    ip("-6 neigh add 2001:db8:ffff::2 lladdr 02:00:00:00:00:02 dev out");
    ip("-6 route add default via 2001:db8:ffff::2");
}

/// The same where `out` has no Ethernet header: nobody there has an address of the link's.
pub(crate) fn ways_without_neighbours() {
    for key in ["ipv4/conf/all/forwarding", "ipv6/conf/all/forwarding"] {
        set_sysctl(key, "1");
    }
    set_sysctl("ipv6/conf/out/router_solicitations", "0");
    ip("link set out up");
    ip("addr add 192.0.2.1 peer 192.0.2.2 dev out");
    ip("route add default dev out");
    ip("-6 route add default dev out");
}

fn comes_back() {
    network();
    let mut offload = Offload::load(1, 16).unwrap_or_else(|error| panic!("{error}"));
    let mut path = offload.fast_path(16).unwrap();
    let mut entry = FlowEntry {
        down_next: 0x0123_4567_89ab_cdef,
        ..FlowEntry::default()
    };
    for (at, subflow) in entry.subflows.iter_mut().enumerate() {
        *subflow = EntrySubflow {
            installed: 1,
            remote_port: u16::try_from(at).unwrap(),
            bytes_down: 77,
            ..EntrySubflow::default()
        };
    }
    entry.runs[127].ssn = 99;
    let slots: Vec<_> = (0..16)
        .map(|port| {
            entry.source_port = port;
            slot_of(path.install(None, &entry, None))
        })
        .collect();
    let full = path.install(None, &entry, None);
    assert_eq!(full, Installed::NoRoom, "there are 16 slots");
    entry.source_port = 5;
    assert_eq!(path.evict(slots[5]), entry);
    path.release(slots[5]);
    assert_eq!(path.install(None, &entry, None), Installed::Slot(slots[5]));
}

/// What leaves beside the packet that is tried: the ACKs for other subflows.
#[derive(Debug)]
pub(crate) struct Beside(PacketSocket);

impl Beside {
    /// At the other end of [`network`].
    pub(crate) fn open() -> Self {
        Self(PacketSocket::open("peer").unwrap())
    }

    /// What has left since, from the link layer's header on.
    pub(crate) fn frames(&self) -> Vec<Vec<u8>> {
        const TCP: u8 = 6;
        let mut buf = vec![0; PacketSocket::FRAME_BUFFER];
        let mut frames = Vec::new();
        while let Some(frame) = self.0.receive(&mut buf).unwrap() {
            let protocol = if frame.bytes[12] == 8 { 14 + 9 } else { 14 + 6 };
            // The kernel itself looks for neighbours now and then.
            if frame.bytes.get(protocol) == Some(&TCP) {
                frames.push(frame.bytes.to_vec());
            }
        }
        frames
    }
}

/// The programs, one packet at a time.
#[derive(Debug)]
struct Programs {
    line: Rc<RefCell<Line>>,
    path: Option<KernelFastPath>,
}

impl Kernel for Programs {
    fn fast_path(&mut self) -> Box<dyn FastPath> {
        Box::new(self.path.take().expect("asked once"))
    }

    fn translate(&mut self, now: u64, packet: &[u8], offload: Carried) -> Taken {
        match self.line.borrow_mut().pass(now, packet, offload) {
            Passed::Translated(frames) => {
                let packets = frames.into_iter().map(|(mut frame, mut offload)| {
                    frame.drain(..ETHERNET);
                    // Not the kernel, but the wire's rules are to say whether it is right.
                    if offload.checksum == ChecksumState::Verified {
                        offload.checksum = ChecksumState::Complete;
                    }
                    (frame, offload)
                });
                let mut packets: Vec<_> = packets.collect();
                // The translator hands out the packet itself, and then the ACK beside it. The programs send the one beside
                // data last, and the one beside an ACK first.
                packets.reverse();
                packets.sort_by_key(|(packet, _)| std::cmp::Reverse(packet.len()));
                Taken::Translated(packets)
            }
            Passed::Up => Taken::No,
            Passed::Dropped => Taken::Dropped,
        }
    }
}

/// The loopback device: any that forwards does.
pub(crate) const DEVICE: u32 = 1;

/// Seeds that are always run.
const FIXED: Range<u64> = 1..61;
/// Seeds that one load of the programs is for: to load them takes longer than a seed.
const PER_LOAD: u32 = 64;
/// Connections that a seed may install at once.
const SLOTS: u32 = 64;

/// What the fast path took of some seeds.
#[derive(Clone, Copy, Default, Debug)]
struct Share {
    seeds: usize,
    packets: u64,
    offloaded: Offloaded,
    /// Seeds behind a part of which nothing was compared.
    parted: usize,
}

impl Share {
    fn add(&mut self, packets: u64, taken: Offloaded) {
        self.seeds += 1;
        self.packets += packets;
        self.offloaded.packets += taken.packets;
        self.offloaded.trains += taken.trains;
        self.parted += usize::from(taken.parted);
    }
}

fn twins() {
    twins_over([LinkHeader::Ethernet; 2]);
}

fn twins_without_headers() {
    twins_over([LinkHeader::Nothing; 2]);
}

fn twins_over(headers: [LinkHeader; 2]) {
    let traced = std::env::var_os("FLEXCP_TRACE").is_some();
    let (mut all, mut fixed) = (Share::default(), Share::default());
    let mut failed = Vec::new();
    let line = Rc::new(RefCell::new(Line::between(
        headers,
        SLOTS * PER_LOAD,
        false,
    )));
    let (mut loaded_for, mut failed_here) = (0, false);
    for seed in seeds(FIXED, 60) {
        // A seed that fails leaves connections behind.
        if loaded_for == PER_LOAD || failed_here {
            line.borrow_mut().reload(SLOTS * PER_LOAD);
            loaded_for = 0;
        }
        loaded_for += 1;
        let kernel = Programs {
            path: Some(line.borrow_mut().fast_path(SLOTS)),
            line: Rc::clone(&line),
        };
        let (outcome, taken) = run_on(Box::new(kernel), seed, traced);
        all.add(outcome.packets, taken);
        if FIXED.contains(&seed) {
            fixed.add(outcome.packets, taken);
        }
        failed_here = !outcome.failures.is_empty();
        if failed_here {
            failed.push((seed, outcome.failures.join("\n  ")));
        }
    }
    println!("{all:?}; {:?}", line.borrow().reasons());
    if let Some((seed, why)) = failed.first() {
        let seeds: Vec<_> = failed.iter().map(|(seed, _)| seed).collect();
        panic!(
            "seeds {seeds:?}; the first alone: FLEXCP_SEED={seed} FLEXCP_TRACE=1 cargo test -p flexcp-io --test netns \
             offload_simulated\n{why}"
        );
    }
    // Half of the seeds are steered: a mode is asked more rarely of what the programs carry. Of 1,200 seeds 82 did.
    assert!(all.parted <= 4 + all.seeds / 8, "{all:?}");
    // Most of a simulated connection is its beginning, its end and what faults do to it: the fixed seeds reach 2.5 % and 434
    // trains. Of others 256 together reach between 6 and 10 %, some alone nothing.
    if fixed.seeds == FIXED.count() {
        assert!(
            fixed.offloaded.packets * 50 > fixed.packets && fixed.offloaded.trains > 350,
            "the fast path takes hardly anything: {fixed:?}"
        );
    }
}

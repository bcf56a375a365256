//! The fast path's programs under the translator, packet by packet: the simulator's clients, servers and faults
//! around the translator with the real programs in the kernel, held against the wire's rules.

use std::cell::RefCell;
use std::rc::Rc;

use flexcp_io::{KernelFastPath, Offload, PacketSocket, Tried};
use flexcp_simulator::{Kernel, Taken, run_on};
use flexcp_translator::{FastPath, Lease, LeaseSubflow, Lent};

use crate::host::{ip, set_sysctl};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("offload_lent_connection_comes_back_as_it_was", comes_back),
    ("offload_simulated_connections_are_translated_alike", seeds),
];

/// The slot that a connection got.
pub(crate) fn slot_of(lent: Lent) -> u32 {
    let Lent::Slot(slot) = lent else {
        panic!("not lent: {lent:?}");
    };
    slot
}

/// Where the simulator's packets would leave.
pub(crate) fn network() {
    ip("link add out type veth peer name peer");
    for key in ["ipv4/conf/all/forwarding", "ipv6/conf/all/forwarding"] {
        set_sysctl(key, "1");
    }
    set_sysctl("ipv6/conf/out/accept_dad", "0");
    ip("link set peer up");
    ip("link set out up");
    ip("addr add 192.0.2.1/24 dev out");
    ip("neigh add 192.0.2.2 lladdr 02:00:00:00:00:02 dev out");
    ip("route add default via 192.0.2.2");
    ip("-6 addr add 2001:db8:ffff::1/64 dev out nodad");
    ip("-6 neigh add 2001:db8:ffff::2 lladdr 02:00:00:00:00:02 dev out");
    ip("-6 route add default via 2001:db8:ffff::2");
}

fn comes_back() {
    network();
    let mut offload = Offload::load(1, 16).unwrap_or_else(|error| panic!("{error}"));
    let mut path = offload.fast_path(16).unwrap();
    let mut lease = Lease {
        down_next: 0x0123_4567_89ab_cdef,
        ..Lease::default()
    };
    for (at, subflow) in lease.subflows.iter_mut().enumerate() {
        *subflow = LeaseSubflow {
            lent: 1,
            remote_port: u16::try_from(at).unwrap(),
            bytes_down: 77,
            ..LeaseSubflow::default()
        };
    }
    lease.runs[127].ssn = 99;
    let slots: Vec<_> = (0..16)
        .map(|port| {
            lease.source_port = port;
            slot_of(path.lend(None, &lease, None))
        })
        .collect();
    let full = path.lend(None, &lease, None);
    assert_eq!(full, Lent::NoRoom, "there are 16 slots");
    lease.source_port = 5;
    assert_eq!(path.take_back(slots[5]), lease);
    path.release(slots[5]);
    assert_eq!(path.lend(None, &lease, None), Lent::Slot(slots[5]));
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
    offload: Rc<RefCell<Offload>>,
    path: Option<KernelFastPath>,
    beside: Beside,
}

impl Kernel for Programs {
    fn fast_path(&mut self) -> Box<dyn FastPath> {
        Box::new(self.path.take().expect("asked once"))
    }

    fn translate(&mut self, now: u64, packet: &[u8]) -> Taken {
        const ETHERNET: usize = 14;
        // A test's packet has to fit one page, with room around it.
        if packet.len() > 3000 {
            return Taken::No;
        }
        // Without addresses, as on the loopback device: it is for this machine.
        let mut frame = vec![0; ETHERNET];
        let protocol: [u8; 2] = if packet[0] >> 4 == 4 {
            [8, 0]
        } else {
            [0x86, 0xdd]
        };
        frame[12..].copy_from_slice(&protocol);
        frame.extend_from_slice(packet);
        let out = self.offload.borrow_mut().try_packet(DEVICE, now, &frame);
        match out.unwrap_or_else(|error| panic!("{error}")) {
            Tried::Translated(out) => {
                let beside = self.beside.frames();
                let all = std::iter::once(out).chain(beside);
                let mut all: Vec<_> = all.map(|frame| frame[ETHERNET..].to_vec()).collect();
                // Data leaves before the ACK beside it.
                all.sort_by_key(|packet| std::cmp::Reverse(packet.len()));
                Taken::Translated(all)
            }
            Tried::Passed => Taken::No,
            Tried::Dropped => Taken::Dropped,
        }
    }
}

/// The loopback device: any that forwards does.
pub(crate) const DEVICE: u32 = 1;

fn seeds() {
    network();
    let from: u64 = std::env::var("FLEXCP_SEED").map_or(1, |seed| seed.parse().unwrap());
    let count: u64 = std::env::var("FLEXCP_SEEDS").map_or(60, |count| count.parse().unwrap());
    let traced = std::env::var_os("FLEXCP_TRACE").is_some();
    let (mut packets, mut offloaded) = (0, 0);
    let mut failed = Vec::new();
    let mut reasons = Vec::new();
    for seed in from..from + count {
        let mut offload = Offload::load(DEVICE, 64).unwrap_or_else(|error| panic!("{error}"));
        let path = offload.fast_path(64).unwrap();
        let counts = offload.reasons().unwrap();
        let kernel = Programs {
            offload: Rc::new(RefCell::new(offload)),
            path: Some(path),
            beside: Beside::open(),
        };
        let (outcome, taken) = run_on(Box::new(kernel), seed, traced);
        packets += outcome.packets;
        offloaded += taken;
        for (at, (name, count)) in counts.counts().into_iter().enumerate() {
            if reasons.len() <= at {
                reasons.push((name, 0));
            }
            reasons[at].1 += count;
        }
        if !outcome.failures.is_empty() {
            failed.push(format!("seed {seed}: {}", outcome.failures.join("\n  ")));
        }
    }
    println!("{packets} packets, {offloaded} of them in the kernel; {reasons:?}");
    assert!(
        failed.is_empty(),
        "{} seeds\n{}",
        failed.len(),
        failed.join("\n")
    );
    assert!(
        offloaded * 50 > packets,
        "the fast path takes hardly anything"
    );
}

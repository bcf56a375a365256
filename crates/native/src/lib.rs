//! The offload's programs (`bpf/`), compiled for the machine that runs the tests: the oracle of what the kernel
//! translates. Nothing here restates a rule; one frame in memory stands for the kernel's (`kernel/bpf/bpf_helpers.h`).
//!
//! For tests alone: `scripts/lint` refuses a crate that depends on this one other than for its tests. The call into C
//! needs `unsafe`, which no other crate but `flexcp-io` has.
#![deny(
    clippy::undocumented_unsafe_blocks,
    reason = "each unsafe block tells why it is sound"
)]

mod call;

use std::sync::{Arc, Mutex, MutexGuard};

use flexcp_translator::{FastPath, FlowEntry, Installed};
use flexcp_wire::{ChecksumState, Gso, GsoKind, Offload};

pub use self::call::{Constants, Way, constants};
use self::call::{ETHERNET, Flow, LEG_SERVER, Left, Maps, Packet, run};

/// The programs with their maps, as a fast path of one translator. Clones are the same.
#[derive(Clone, Default, Debug)]
pub struct Programs(Arc<Mutex<Tables>>);

/// What the programs did with a packet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Passed {
    /// These frames leave in its place, in this order.
    Translated(Vec<Sent>),
    /// It is the translator's.
    Up,
    /// It is nobody's.
    Dropped,
}

/// A frame that leaves.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sent {
    /// From the link layer's header on.
    pub frame: Vec<u8>,
    /// What is still to be done about it.
    pub offload: Offload,
}

impl Sent {
    /// From the IP header on.
    #[must_use]
    pub fn packet(&self) -> &[u8] {
        &self.frame[ETHERNET..]
    }
}

/// What leaves in place of a packet, as the translator hands it out: what the packet has become, then ACKs for other
/// subflows. Of the programs' frames such an ACK is behind data, but before an ACK.
pub fn as_handed_out(sent: &mut [Sent]) {
    sent.reverse();
    sent.sort_by_key(|sent| std::cmp::Reverse(sent.frame.len()));
}

/// The maps, and what the kernel knows of its surroundings.
#[derive(Debug)]
struct Tables {
    flows: Vec<Flow>,
    entries: Vec<FlowEntry>,
    gates: Vec<u64>,
    /// Bytes that each slot has carried on an account, and has not told.
    carried: Vec<u64>,
    /// The same on accounts that their slots have no more.
    left: Vec<(u32, u64)>,
    /// Slots that somebody has.
    taken: Vec<bool>,
    reasons: Vec<u64>,
    ways: Vec<Way>,
}

impl Default for Tables {
    fn default() -> Self {
        Self {
            flows: Vec::new(),
            entries: Vec::new(),
            gates: Vec::new(),
            carried: Vec::new(),
            left: Vec::new(),
            taken: Vec::new(),
            reasons: vec![0; constants().reasons as usize],
            ways: vec![ANYWHERE],
        }
    }
}

/// To anywhere over the same neighbour.
pub const ANYWHERE: Way = Way {
    family: 0,
    to: [0; 16],
    tos: 0,
    mtu: 65_535,
    neighbour: 2,
};

/// Of a gate (`bpf/maps.h`): the flow entry is the programs'.
const OPEN: u64 = 1;
/// The same: a packet that has gone up.
const ONE_UP: u64 = 2;
/// Verdicts (`linux/pkt_cls.h`).
const PASS: i32 = -1;
const SHOT: i32 = 2;
const REDIRECT: i32 = 7;

impl Programs {
    /// Shows the programs a packet, from its IP header on, at `now`, in microseconds.
    ///
    /// # Panics
    /// When the programs return what no program may, or lose a packet over something that the emulation refuses.
    #[must_use]
    pub fn pass(&self, now: u64, packet: &[u8], offload: Offload) -> Passed {
        self.run(now, packet, offload, (false, false))
    }

    /// The same for a packet that is addressed to another station, as on a bridge.
    ///
    /// # Panics
    /// As [`pass`](Self::pass).
    #[must_use]
    pub fn overhear(&self, now: u64, packet: &[u8], offload: Offload) -> Passed {
        self.run(now, packet, offload, (true, false))
    }

    /// The same for a packet that comes from a device without Ethernet headers. It leaves by an Ethernet device.
    ///
    /// # Panics
    /// As [`pass`](Self::pass).
    #[must_use]
    pub fn pass_bare(&self, now: u64, packet: &[u8], offload: Offload) -> Passed {
        self.run(now, packet, offload, (false, true))
    }

    /// Before all others there are these ways.
    pub fn add_ways(&self, ways: &[Way]) {
        self.tables().ways.splice(..0, ways.iter().copied());
    }

    fn run(
        &self,
        now: u64,
        packet: &[u8],
        offload: Offload,
        (overheard, bare): (bool, bool),
    ) -> Passed {
        let packet = Packet {
            bytes: packet,
            gso_size: offload.gso.map_or(0, |gso| gso.size.into()),
            partial: offload.checksum == ChecksumState::Partial,
            verified: offload.checksum == ChecksumState::Verified,
            overheard,
            bare,
        };
        let mut tables = self.tables();
        let Tables {
            flows,
            entries,
            gates,
            carried,
            reasons,
            ways,
            ..
        } = &mut *tables;
        let maps = Maps {
            flows,
            entries,
            gates,
            carried,
            reasons,
            ways,
        };
        let (verdict, left) = run(maps, now, packet);
        match (verdict, left.is_empty()) {
            (PASS, true) => Passed::Up,
            (SHOT, true) => {
                let failed = reasons[constants().rewrite_failed as usize];
                assert_eq!(failed, 0, "a packet was not rewritten, and is lost");
                Passed::Dropped
            }
            (REDIRECT, false) => Passed::Translated(left.into_iter().map(outgoing).collect()),
            (verdict, _) => panic!("the program says {verdict}, {left:?} left"),
        }
    }

    /// How many packets were counted, by reason, in the order of `enum reason`.
    #[must_use]
    pub fn reasons(&self) -> Vec<u64> {
        self.tables().reasons.clone()
    }

    /// What is installed.
    #[must_use]
    pub fn entries(&self) -> Vec<FlowEntry> {
        self.tables().installed().copied().collect()
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        // A test that fails while it has them says why by itself.
        self.0.lock().unwrap_or_else(|broken| broken.into_inner())
    }
}

fn outgoing(left: Left) -> Sent {
    let kind = if left.bytes[ETHERNET] >> 4 == 6 {
        GsoKind::TcpV6
    } else {
        GsoKind::TcpV4
    };
    let gso = u16::try_from(left.gso_size).ok().filter(|&size| size != 0);
    let offload = Offload {
        checksum: if left.partial {
            ChecksumState::Partial
        } else {
            ChecksumState::Complete
        },
        gso: gso.map(|size| Gso {
            kind,
            size,
            ecn: false,
        }),
    };
    Sent {
        frame: left.bytes,
        offload,
    }
}

impl Tables {
    fn is_open(&self, slot: usize) -> bool {
        self.gates[slot] & OPEN != 0
    }

    fn installed(&self) -> impl Iterator<Item = &FlowEntry> {
        let open = (0..self.entries.len()).filter(|&slot| self.is_open(slot));
        open.map(|slot| &self.entries[slot])
    }

    /// What a slot has carried is told of the account that it has.
    fn settle(&mut self, slot: usize) {
        let bytes = std::mem::take(&mut self.carried[slot]);
        if bytes > 0 {
            self.left.push((self.entries[slot].account, bytes));
        }
    }

    /// The flows of a flow entry lead to its slot, and no others.
    fn lead_to(&mut self, slot: usize) {
        let entry = self.entries[slot];
        let slot = u32::try_from(slot).expect("few slots");
        let server = Flow {
            from: entry.server_addr,
            to: entry.source_addr,
            from_port: entry.server_port.to_be_bytes(),
            to_port: entry.source_port.to_be_bytes(),
            slot,
            leg: LEG_SERVER,
        };
        let subflows = (0..).zip(&entry.subflows);
        let installed = subflows.filter(|(_, subflow)| subflow.installed == 1);
        let clients = installed.map(|(leg, subflow)| Flow {
            from: subflow.remote_addr,
            to: subflow.local_addr,
            from_port: subflow.remote_port.to_be_bytes(),
            to_port: subflow.local_port.to_be_bytes(),
            slot,
            leg,
        });
        self.flows.retain(|flow| flow.slot != slot);
        // What is found first is of the connection that has those ends now.
        let known = std::mem::take(&mut self.flows);
        self.flows = std::iter::once(server)
            .chain(clients)
            .chain(known)
            .collect();
    }
}

impl FastPath for Programs {
    fn install(&mut self, slot: Option<u32>, entry: &FlowEntry, passed: Option<u32>) -> Installed {
        if let (Some(slot), Some(_)) = (slot, passed)
            && self.punted(slot) != passed
        {
            return Installed::NotNow;
        }
        let mut tables = self.tables();
        let free = tables.taken.iter().position(|taken| !taken);
        let slot = match slot {
            Some(slot) => slot as usize,
            None => free.unwrap_or(tables.taken.len()),
        };
        if slot == tables.taken.len() {
            tables.entries.push(*entry);
            tables.gates.push(0);
            tables.carried.push(0);
            tables.taken.push(true);
        }
        assert!(!tables.is_open(slot), "installed twice");
        tables.settle(slot);
        tables.entries[slot] = *entry;
        tables.taken[slot] = true;
        tables.gates[slot] |= OPEN;
        tables.lead_to(slot);
        Installed::Slot(u32::try_from(slot).expect("few slots"))
    }

    fn evict(&mut self, slot: u32) -> FlowEntry {
        let slot = slot as usize;
        let mut tables = self.tables();
        assert!(tables.taken[slot], "evicted without a slot");
        tables.gates[slot] &= !OPEN;
        tables.entries[slot]
    }

    fn peek(&self, slot: u32) -> FlowEntry {
        let tables = self.tables();
        assert!(
            tables.is_open(slot as usize),
            "looked at without being installed"
        );
        tables.entries[slot as usize]
    }

    fn peek_all(&self, each: &mut dyn FnMut(&FlowEntry)) {
        self.tables().installed().for_each(each);
    }

    fn release(&mut self, slot: u32) {
        let mut tables = self.tables();
        let place = slot as usize;
        assert!(
            !tables.is_open(place) && tables.taken[place],
            "released while installed"
        );
        tables.taken[place] = false;
        tables.gates[place] = 0;
        tables.flows.retain(|flow| flow.slot != slot);
    }

    fn carried(&mut self, each: &mut dyn FnMut(u32, u64)) {
        let mut tables = self.tables();
        (0..tables.entries.len()).for_each(|slot| tables.settle(slot));
        tables
            .left
            .drain(..)
            .for_each(|(account, bytes)| each(account, bytes));
    }

    fn held(&self) -> u32 {
        let held = self.tables().taken.iter().filter(|taken| **taken).count();
        u32::try_from(held).expect("few slots")
    }

    fn punted(&self, slot: u32) -> Option<u32> {
        let gate = self.tables().gates[slot as usize];
        Some(u32::try_from((gate / ONE_UP) & u64::from(u32::MAX)).expect("the low half"))
    }
}

//! Slots of the fast path in the kernel: what leads to them while a connection has one, and that nothing does
//! afterwards.

use flexcp_io::{KernelFastPath, Offload, Reasons, Tried};
use flexcp_translator::{FastPath as _, FlowEntry};

use crate::offload::{Beside, DEVICE, network};
use crate::offload_packets::slot_of;
use crate::offload_packets::{CLIENTS, NOW, PORTS, Packet, data_down, data_up, entry};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("offload_slot_is_empty_when_it_is_released", released),
    (
        "offload_slot_that_is_used_again_has_no_flow_of_before",
        reused,
    ),
    (
        "offload_flow_that_is_not_installed_again_leads_nowhere",
        fewer,
    ),
    ("offload_flow_that_another_slot_has_taken_stays_its", taken),
    ("offload_slots_run_out_and_come_back", exhausted),
];

struct Slots {
    offload: Offload,
    path: KernelFastPath,
    reasons: Reasons,
    _beside: Beside,
}

impl Slots {
    fn new(slots: u32) -> Self {
        network();
        let mut offload = Offload::load(DEVICE, slots).unwrap_or_else(|error| panic!("{error}"));
        Self {
            path: offload.fast_path(slots).unwrap(),
            reasons: offload.reasons().unwrap(),
            offload,
            _beside: Beside::open(),
        }
    }

    /// Slots that are taken, flows that lead to them, open gates.
    fn held(&self) -> (u32, u64, u64) {
        let [(flows, count), (open, gates)] = self.reasons.held();
        assert_eq!((flows, open), ("offload_flows", "offload_open"));
        (self.path.held(), count, gates)
    }

    fn install(&mut self, slot: Option<u32>, entry: &FlowEntry) -> u32 {
        slot_of(self.path.install(slot, entry, None))
    }

    fn is_translated(&mut self, packet: &Packet) -> bool {
        match self
            .offload
            .try_packet(DEVICE, NOW, &packet.frame())
            .unwrap()
        {
            Tried::Translated(_) => true,
            Tried::Passed => false,
            Tried::Dropped => panic!("dropped"),
        }
    }

    /// Whether the packet's flow is known: then it is translated, or the reason why not is counted.
    fn leads_somewhere(&mut self, packet: &Packet) -> bool {
        let before = self.reasons.counts();
        self.offload
            .try_packet(DEVICE, NOW, &packet.frame())
            .unwrap();
        self.reasons.counts() != before
    }
}

/// Data of the client's on its second subflow.
fn joined() -> Packet {
    let mut packet = data_up(&entry());
    packet.ip.src = CLIENTS[1].into();
    packet.tcp.src_port = PORTS[1];
    packet
}

/// The same connection from other ports of the client's and the server's.
fn other() -> FlowEntry {
    let mut entry = entry();
    entry.server_port = 81;
    entry
        .subflows
        .iter_mut()
        .for_each(|subflow| subflow.remote_port += 100);
    entry
        .subflows
        .iter_mut()
        .for_each(|subflow| subflow.local_port = 81);
    entry
}

fn released() {
    let mut slots = Slots::new(2);
    assert_eq!(slots.held(), (0, 0, 0));
    let slot = slots.install(None, &entry());
    assert_eq!(slots.held(), (1, 3, 1));
    slots.path.evict(slot);
    assert_eq!(slots.held(), (1, 3, 0));
    slots.path.release(slot);
    assert_eq!(slots.held(), (0, 0, 0));
    assert!(!slots.leads_somewhere(&data_up(&entry())));
    // Of one that is still installed, too.
    let slot = slots.install(None, &entry());
    slots.path.release(slot);
    assert_eq!(slots.held(), (0, 0, 0));
}

fn reused() {
    let mut slots = Slots::new(1);
    let first = slots.install(None, &entry());
    assert!(slots.is_translated(&data_up(&entry())));
    slots.path.evict(first);
    slots.path.release(first);
    let second = slots.install(None, &other());
    assert_eq!(first, second);
    assert_eq!(slots.held(), (1, 3, 1));
    // Packets of the connection that had the slot find nothing, and the flow entry is as it was.
    for packet in [data_up(&entry()), joined(), data_down(&entry())] {
        assert!(!slots.leads_somewhere(&packet));
    }
    assert_eq!(slots.path.evict(second), other());
}

fn fewer() {
    let mut slots = Slots::new(1);
    let both = entry();
    let slot = slots.install(None, &both);
    assert!(slots.leads_somewhere(&joined()));
    slots.path.evict(slot);
    let mut one = both;
    one.subflows[1].installed = 0;
    slots.install(Some(slot), &one);
    assert_eq!(slots.held(), (1, 2, 1));
    assert!(!slots.leads_somewhere(&joined()));
    assert!(slots.is_translated(&data_up(&entry())));
}

fn taken() {
    let mut slots = Slots::new(2);
    let first = slots.install(None, &entry());
    slots.path.evict(first);
    let second = slots.install(None, &entry());
    assert_ne!(first, second);
    slots.path.release(first);
    assert_eq!(slots.held(), (1, 3, 1));
    assert!(slots.is_translated(&data_up(&entry())));
    assert_ne!(slots.path.evict(second), entry());
}

fn exhausted() {
    let mut slots = Slots::new(1);
    let slot = slots.install(None, &entry());
    let refused = slots.path.install(None, &other(), None);
    assert_eq!(refused, flexcp_translator::Installed::NoRoom);
    assert_eq!(slots.held(), (1, 3, 1));
    slots.path.release(slot);
    slots.install(None, &other());
    assert_eq!(slots.held(), (1, 3, 1));
}

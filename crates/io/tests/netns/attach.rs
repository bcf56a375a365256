//! How the offload's programs get at packets: by tcx and by clsact, beside what others have at the device, and what becomes of
//! them when the process does not end in order.

use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::Duration;

use flexcp_io::{
    Hook, KernelFastPath, KernelTables, LinkHeader, Offload, OffloadError, PacketSocket, Plan, Tun,
};
use flexcp_translator::{FastPath as _, FlowEntry};

use crate::host::{CRASH_OFFLOAD, DEVICE, ip, journal, plan};
use crate::offload::Beside;
use crate::offload_packets::slot_of;
use crate::offload_packets::{Packet, data_down, entry};
use crate::tables::{self, Other};

pub(crate) const TESTS: &[(&str, fn())] = &[
    (
        "loaded_programs_are_attached_and_used_without_the_right_to_load",
        used_without_the_right_to_load,
    ),
    ("offload_attached_by_tcx_translates", || {
        if has_tcx() {
            translates(Hook::Tcx);
        } else {
            refused_by_tcx();
        }
    }),
    ("offload_attached_by_clsact_translates", || {
        translates(Hook::Clsact);
    }),
    ("offload_leaves_other_packets_to_foreign_filters", || {
        let hooks = [Hook::Tcx, Hook::Clsact].into_iter();
        network();
        for hook in hooks.skip(usize::from(!has_tcx())) {
            leaves_the_rest(hook);
        }
    }),
    (
        "offload_by_clsact_leaves_a_foreign_qdisc_as_it_was",
        foreign_qdisc,
    ),
    (
        "offload_by_clsact_leaves_its_qdisc_to_who_uses_it",
        used_qdisc,
    ),
    (
        "offload_by_clsact_where_its_priority_is_taken",
        taken_priority,
    ),
    ("offload_by_clsact_ends_with_a_crash", crash),
    (
        "offload_stays_at_a_renamed_device_and_follows_a_new_one",
        || {
            let hooks = [Hook::Tcx, Hook::Clsact].into_iter();
            hooks.skip(usize::from(!has_tcx())).for_each(follows);
        },
    ),
];

/// By the kernel's number: tcx came with Linux 6.6.
fn has_tcx() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release
        .split(['.', '-'])
        .map_while(|word| word.parse().ok());
    let version: (u32, u32) = (numbers.next().unwrap(), numbers.next().unwrap());
    let hook = Hook::of_this_kernel();
    assert_eq!(hook == Hook::Tcx, version >= (6, 6), "{release}: {hook}");
    version >= (6, 6)
}

pub(crate) fn tc(arguments: &str) -> String {
    // What stands in quotes is one.
    let words = arguments.split('"').enumerate().flat_map(|(at, part)| {
        let quoted = (at % 2 == 1).then_some(part);
        let free = (at % 2 == 0).then(|| part.split_whitespace());
        quoted.into_iter().chain(free.into_iter().flatten())
    });
    let output = Command::new("tc").args(words).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "tc {arguments}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// A filter of somebody else's, which sees the packets to the client, counts them and says `verdict`.
fn add_foreign(side: &str, preference: u16, verdict: &str) {
    tc(&format!(
        "filter add dev out {side} pref {preference} protocol ip u32 match ip dst 198.51.100.1/32 \
         action mirred egress mirror dev sink {verdict}"
    ));
}

/// The network, with a device for what foreign filters do.
fn network() {
    crate::offload::network();
    ip("link add sink type veth peer name drain");
    ip("link set sink up");
}

/// All that hangs on `out`.
fn state() -> String {
    tc("qdisc show dev out")
        + &tc("filter show dev out ingress")
        + &tc("filter show dev out egress")
}

/// The device that the programs are at.
const OUT: (&str, LinkHeader) = ("out", LinkHeader::Ethernet);

/// FlexCP as far as packets go by the programs.
struct Running {
    tables: KernelTables,
    offload: Offload,
    _path: KernelFastPath,
    _tun: Tun,
}

impl Running {
    /// Attached to `out` of [`network`].
    fn start(hook: Hook, journal: PathBuf) -> Result<Self, OffloadError> {
        let tun = Tun::open(DEVICE).unwrap();
        let plan = Plan {
            diversions: vec![],
            ..plan(journal)
        };
        let mut tables = KernelTables::install(&plan, &mut |_| {}).unwrap();
        let mut offload = Offload::load(tun.index(), 4).unwrap();
        offload.attach(OUT, hook, &mut tables, &mut |_| {})?;
        let mut path = offload.fast_path(4).unwrap();
        slot_of(path.install(None, &punctual(), None));
        Ok(Self {
            tables,
            offload,
            _path: path,
            _tun: tun,
        })
    }

    fn stop(self) {
        drop(self.offload);
        self.tables.remove(&mut |_| {}).unwrap();
    }
}

/// A connection whose client is never late.
fn punctual() -> FlowEntry {
    let mut entry = entry();
    entry.subflows[0].outstanding_since = u64::MAX / 2;
    entry
}

/// The other end of the wire.
struct Peer {
    socket: PacketSocket,
    seen: Beside,
    entry: FlowEntry,
}

impl Peer {
    fn new() -> Self {
        Self {
            socket: PacketSocket::open("peer").unwrap(),
            seen: Beside::open(),
            entry: punctual(),
        }
    }

    /// Whether the server's next data of the connection leaves translated.
    fn next_is_translated(&mut self) -> bool {
        let packet = data_down(&self.entry);
        let translated = self.comes_back(&packet);
        self.entry.seq_down = self.entry.seq_down.wrapping_add(1_000);
        translated
    }

    /// Sends the packet to `out`; whether it leaves there with a DSS, and not as the stack forwards it.
    fn comes_back(&self, packet: &Packet) -> bool {
        let mut frame = packet.frame();
        frame[..6].copy_from_slice(&hardware_address());
        self.seen.frames();
        let (header, packet_of_ip) = frame.split_at(14);
        self.socket.send(header, packet_of_ip).unwrap();
        for _ in 0..20 {
            if let Some(left) = self.seen.frames().first() {
                let header = usize::from(left[14 + 20 + 12] >> 4) * 4;
                assert_eq!(left.len(), 14 + 20 + header + packet.payload);
                return header == 20 + 12 + 28;
            }
            thread::sleep(Duration::from_millis(5));
        }
        panic!("neither translated nor forwarded");
    }
}

/// Of `out`.
fn hardware_address() -> [u8; 6] {
    let text = ip("-oneline link show out");
    let address = text.split_once("link/ether ").unwrap().1;
    let bytes = address[..17].split(':');
    let bytes: Vec<u8> = bytes
        .map(|byte| u8::from_str_radix(byte, 16).unwrap())
        .collect();
    bytes.try_into().unwrap()
}

fn translates(hook: Hook) {
    network();
    let before = state();
    let journal = journal();
    let running = Running::start(hook, journal.clone()).unwrap();
    let filter = "pref 65117 bpf chain 0 handle 0x75 flexcp_offload direct-action";
    assert_eq!(
        state().contains(filter),
        hook == Hook::Clsact,
        "{}",
        state()
    );
    let mut peer = Peer::new();
    assert!(peer.next_is_translated() && peer.next_is_translated());
    assert_eq!(
        running.offload.reasons().unwrap().counts()[0],
        ("translated", 2)
    );
    running.stop();
    assert_eq!(state(), before);
    assert!(!journal.exists());
    assert!(!peer.next_is_translated());
}

/// What the daemon keeps is enough for all that it does with loaded programs, here on one thread.
fn used_without_the_right_to_load() {
    network();
    let tun = Tun::open(DEVICE).unwrap();
    let plan = Plan {
        diversions: vec![],
        ..plan(journal())
    };
    let mut tables = KernelTables::install(&plan, &mut |_| {}).unwrap();
    let mut offload = Offload::load(tun.index(), 4).unwrap();
    flexcp_io::renounce_loading().unwrap();
    let refused = Offload::load(tun.index(), 4).unwrap_err().to_string();
    assert!(refused.contains("CAP_BPF"), "{refused}");

    let hooks = [Hook::of_this_kernel(), Hook::Clsact];
    for hook in &hooks[usize::from(hooks[0] == hooks[1])..] {
        offload
            .attach(OUT, *hook, &mut tables, &mut |_| {})
            .unwrap();
    }
    let mut path = offload.fast_path(4).unwrap();
    let slot = slot_of(path.install(None, &punctual(), None));
    let mut peer = Peer::new();
    assert!(peer.next_is_translated());
    let reasons = offload.reasons().unwrap();
    assert_eq!(reasons.counts()[0], ("translated", 1));
    assert_eq!(reasons.held()[1], ("offload_open", 1));
    assert_eq!(path.evict(slot).packets_down, 1);
    path.release(slot);
    assert_eq!(reasons.held()[0], ("offload_flows", 0));
    drop(offload);
    tables.remove(&mut |_| {}).unwrap();
}

fn follows(hook: Hook) {
    let index = || -> u32 {
        let interfaces = flexcp_io::interfaces().unwrap();
        let out = interfaces.iter().find(|interface| interface.name == "out");
        out.unwrap().index
    };
    crate::offload::network();
    let journal = journal();
    let mut running = Running::start(hook, journal.clone()).unwrap();
    let mut peer = Peer::new();
    assert!(peer.next_is_translated());
    // Kernels before 6.2 rename no device that is up.
    ip("link set out down");
    ip("link set out name other");
    ip("link set other name out");
    ip("addr flush dev out");
    crate::offload::ways();
    assert!(peer.next_is_translated());

    let gone = index();
    ip("link delete out");
    crate::offload::network();
    assert_ne!(index(), gone);
    let Running {
        tables, offload, ..
    } = &mut running;
    offload.forget(gone, tables).unwrap();
    offload.attach(OUT, hook, tables, &mut |_| {}).unwrap();
    peer = Peer {
        entry: peer.entry,
        ..Peer::new()
    };
    assert!(peer.next_is_translated());
    let noted = std::fs::read_to_string(&journal).unwrap();
    let filters = noted.matches("\"made_qdisc\"").count();
    assert_eq!(filters, usize::from(hook == Hook::Clsact), "{noted}");
    running.stop();
    ip("link delete out");
}

/// A kernel without tcx says so.
fn refused_by_tcx() {
    network();
    let error = Running::start(Hook::Tcx, journal())
        .map(|_| ())
        .unwrap_err();
    assert!(matches!(error, OffloadError::Program(_)), "{error}");
}

/// Packets that the foreign filter of this preference has seen.
fn seen_by(preference: u16) -> u32 {
    let text = tc(&format!("-s filter show dev out ingress pref {preference}"));
    let words: Vec<_> = text.split_whitespace().collect();
    let at = words.iter().position(|word| *word == "pkt").unwrap();
    words[at - 1].parse().unwrap()
}

fn leaves_the_rest(hook: Hook) {
    tc("qdisc add dev out clsact");
    add_foreign("ingress", 10, "continue");
    add_foreign("ingress", 65_200, "pass");
    let running = Running::start(hook, journal()).unwrap();
    let mut peer = Peer::new();
    assert!(peer.next_is_translated());
    let (before, behind) = (seen_by(10), seen_by(65_200));
    assert_eq!((before, behind), (u32::from(hook == Hook::Clsact), 0));
    let mut other = data_down(&peer.entry);
    other.tcp.src_port += 1;
    assert!(!peer.comes_back(&other));
    assert_eq!((seen_by(10), seen_by(65_200)), (before + 1, 1));
    running.stop();
    tc("qdisc del dev out clsact");
}

fn foreign_qdisc() {
    network();
    tc("qdisc add dev out clsact");
    add_foreign("egress", 3, "continue");
    // At our handle, but not ours.
    tc(r#"filter add dev out ingress pref 65116 handle 0x75 bpf bytecode "1,6 0 0 0""#);
    let before = state();
    let running = Running::start(Hook::Clsact, journal()).unwrap();
    assert_ne!(state(), before);
    let mut peer = Peer::new();
    assert!(peer.next_is_translated());
    running.stop();
    assert_eq!(state(), before);
}

fn used_qdisc() {
    network();
    let none = state();
    let running = Running::start(Hook::Clsact, journal()).unwrap();
    add_foreign("egress", 3, "continue");
    running.stop();
    let left = state();
    assert!(
        left.contains("clsact") && left.contains("pref 3 u32"),
        "{left}"
    );
    tc("filter del dev out egress pref 3");
    // Once it is nobody's, nobody takes it away.
    let running = Running::start(Hook::Clsact, journal()).unwrap();
    running.stop();
    assert!(state().contains("clsact"));
    tc("qdisc del dev out clsact");
    assert_eq!(state(), none);
}

fn taken_priority() {
    network();
    tc("qdisc add dev out clsact");
    add_foreign("ingress", 65_117, "continue");
    let before = state();
    let journal = journal();
    let error = Running::start(Hook::Clsact, journal.clone())
        .map(|_| ())
        .unwrap_err();
    let words = error.to_string();
    assert!(
        words.starts_with("cannot attach a filter to out: "),
        "{words}"
    );
    assert!(
        words.ends_with("; a filter of another program may stand at priority 65117"),
        "{words}"
    );
    assert_eq!(state(), before);
    assert!(!journal.exists());
}

/// The child's part: attaches by clsact, installs, and waits to be killed.
pub(crate) fn attach_and_hang(journal: PathBuf) -> ! {
    let _running = Running::start(Hook::Clsact, journal).unwrap();
    tables::hang()
}

/// The filter stays, and the gate of the connection open. But nothing is translated any more, as the device is gone; the
/// next start takes back what is left.
fn crash() {
    network();
    let before = state();
    let journal = journal();
    let other = Other::start_as(CRASH_OFFLOAD, &journal);
    let mut peer = Peer::new();
    assert!(peer.next_is_translated() && peer.next_is_translated());
    other.kill();
    let left = state();
    assert!(
        left.contains("clsact") && left.contains("flexcp_offload"),
        "{left}"
    );
    assert!(
        !peer.next_is_translated(),
        "by a program whose process is gone"
    );
    // Also not when there is a device of that name again: it is another one.
    let running = Running::start(Hook::Clsact, journal.clone()).unwrap();
    assert_eq!(state().matches("handle 0x75").count(), 1, "{}", state());
    peer.entry = punctual();
    assert!(peer.next_is_translated());
    running.stop();
    assert_eq!(state(), before);

    // Or whoever cleans up.
    Other::start_as(CRASH_OFFLOAD, &journal).kill();
    assert!(state().contains("flexcp_offload"));
    let mut lines = Vec::new();
    KernelTables::clean_up(&journal, &mut |line| lines.push(line.to_owned())).unwrap();
    assert_eq!(state(), before);
    for line in ["filter: out removed", "qdisc: clsact of out removed"] {
        assert!(lines.contains(&line.to_owned()), "{lines:#?}");
    }
    assert!(!journal.exists());
}

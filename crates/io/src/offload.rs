//! The fast path in the kernel: loads the programs of `bpf/offload.bpf.c`, attaches them to the ingress of
//! devices, and installs connections in them.
//!
//! A connection lives in a slot: its [`FlowEntry`] in one map, the flows that lead to it in another, and a gate that
//! says whose it is. The gate is shared memory, so closing it costs no system call; the flow entry is then read under
//! the lock that the programs change it under.
//!
//! The programs end with the process that installed in them, however it ends: they ask the kernel for routes as from FlexCP's
//! device, which goes with it, and without a route they translate nothing. So a filter that a crash has left ([`Hook`])
//! passes all packets on until the next start takes it back.

mod attach;
mod bare;
mod errors;
mod guard;
mod paid;
mod parts;
mod reasons;
mod refusal;
mod words;

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use aya::maps::{Array, HashMap, Map, MapData, MapError, PerCpuArray};
use aya::programs::tc::SchedClassifierLinkId;
use aya::programs::{ProgramError, SchedClassifier, TestRunOptions};
use aya::{Ebpf, EbpfError, TestRun as _, include_bytes_aligned};
use flexcp_translator::{
    ENTRY_HOLES, ENTRY_RUNS, ENTRY_SUBFLOWS, ENTRY_UPS, FastPath, FlowEntry, Installed,
};
use flexcp_wire::Ends;

pub use self::attach::Hook;
pub use self::errors::OwnEnds;
use self::guard::Guard;
use self::paid::Paid;
pub use self::parts::LeftOut;
use self::reasons::REASONS;
pub use self::reasons::Reasons;
pub use self::refusal::Refusal;
use self::words::Words;
use crate::kernel::{KernelError, LinkHeader};

/// The programs, compiled by `make bpf`.
static OBJECT: &[u8] = include_bytes_aligned!("../../../bpf/offload.bpf.o");

/// The program for devices whose packets come with an Ethernet header.
const PROGRAM: &str = "flexcp_offload";
/// Flows of a connection at most: the server's and the subflows'.
const FLOWS: usize = ENTRY_SUBFLOWS + 1;
/// Lowest bit of a gate: the flow entry is the programs'.
const OPEN: u64 = 1;
/// The rest counts packets that went up.
const ONE_UP: u64 = 2;
/// `flow_ref.leg` of the server's packets.
const LEG_SERVER: u32 = 0xff;
/// Read or write a value under its lock (`BPF_F_LOCK`).
const LOCKED: u64 = 4;

/// What stands in the way of the fast path.
#[derive(thiserror::Error, Debug)]
pub enum OffloadError {
    /// The kernel takes no programs, or not these.
    #[error("the kernel does not load the offload's programs: {}; it takes CAP_BPF", chain(.0))]
    Load(#[from] EbpfError),
    /// The verifier refuses the program, whatever is left out, or the process may not ask.
    #[error("the kernel refuses the offload's program: {}; {}", .0, advice(.0))]
    Refused(Refusal),
    /// The program could not be attached, or not be used.
    #[error("the kernel does not use the offload's program: {}", chain(.0))]
    Program(#[from] ProgramError),
    /// A filter could not be made.
    #[error(transparent)]
    Filter(#[from] KernelError),
    /// A map could not be used.
    #[error("a map of the offload can't be used: {0}")]
    Map(#[from] MapError),
    /// What is shared with the programs could not be mapped into memory.
    #[error("what the offload's programs share can't be mapped into memory: {0}")]
    Words(io::Error),
    /// No descriptor is left for a map.
    #[error("no file descriptor for a map of the offload: {0}; raise LimitNOFILE")]
    Descriptor(io::Error),
    /// Nobody knew of devices without Ethernet headers when there was still the right to load their program.
    #[error(
        "FlexCP started when there was no device without Ethernet headers, and none was named; start it anew"
    )]
    Late,
    /// The object file lacks a part: a defect of the build.
    #[error("the offload's object file has no {0}; build it anew with `make bpf`")]
    Missing(&'static str),
}

fn advice(refusal: &Refusal) -> &'static str {
    if refusal.is_by_verifier() {
        LeftOut::FULL_TEXT
    } else {
        "it takes CAP_BPF and CAP_PERFMON"
    }
}

/// An error and what it stems from.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// The loaded programs. They work until this is dropped.
#[derive(Debug)]
pub struct Offload {
    ebpf: Ebpf,
    gates: Arc<Words>,
    carried: Arc<Words>,
    next_slot: u32,
    slots: u32,
    left_out: Option<LeftOut>,
    told: Settings,
    /// See [`Offload::beside_conntrack`].
    conntrack: Arc<AtomicU32>,
    /// By the index of their device, and for what it is.
    links: Vec<(u32, LinkHeader, SchedClassifierLinkId)>,
}

/// What became of a packet in [`Offload::try_packet`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Tried {
    /// It leaves as this frame.
    Translated(Vec<u8>),
    /// It is for the translator.
    Passed,
    /// The translator would drop it, too.
    Dropped,
}

/// What the programs are told (`struct settings`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Settings {
    device: u32,
    mark: u32,
    /// 1: packets of connections that this host's sockets have get the mark, too.
    sockets: u32,
    spare: u32,
    now: u64,
}

/// A packet's ends as they stand in it (`struct flow_key`).
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct FlowKey {
    from: [u8; 16],
    to: [u8; 16],
    from_port: [u8; 2],
    to_port: [u8; 2],
}

impl FlowKey {
    fn of(ends: Ends) -> Self {
        Self {
            from: octets(ends.from.ip()),
            to: octets(ends.to.ip()),
            from_port: ends.from.port().to_be_bytes(),
            to_port: ends.to.port().to_be_bytes(),
        }
    }
}

/// An address as it stands in a packet, an IPv4 one in the first four bytes.
fn octets(addr: IpAddr) -> [u8; 16] {
    match addr {
        IpAddr::V4(addr) => {
            let mut octets = [0; 16];
            octets[..4].copy_from_slice(&addr.octets());
            octets
        }
        IpAddr::V6(addr) => addr.octets(),
    }
}

/// Whose packets those are (`struct flow_ref`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct FlowRef {
    slot: u32,
    leg: u32,
}

/// A [`FlowEntry`] as a map's value.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
struct Value(FlowEntry);

/// The fields of a flow entry, one by one: what a struct has beyond its fields is padding.
const ENTRY_FIELDS: usize = 8
    + 32
    + 4
    + 3 * 4
    + 6 * 8
    + 20 * 4
    + 5 * 8
    + ENTRY_HOLES * 2 * 4
    + ENTRY_SUBFLOWS * (32 + 4 + 4 + 19 * 4 + 4 + 4 + 4 + 8 + 24 + 5 * 8)
    + ENTRY_SUBFLOWS * ENTRY_UPS * 2 * 4
    + ENTRY_RUNS * (4 + 4);
const _: () = assert!(size_of::<Value>() == ENTRY_FIELDS);

// SAFETY: `repr(C)` of integers without padding, as asserted above: every byte is initialised, and every pattern of bytes is
// a value.
unsafe impl aya::Pod for Value {}
// SAFETY: the same, four words of 32 bits before one of 64.
unsafe impl aya::Pod for Settings {}
// SAFETY: the same, bytes alone.
unsafe impl aya::Pod for FlowKey {}
// SAFETY: the same, two words of 32 bits.
unsafe impl aya::Pod for FlowRef {}

/// In place of a zone: conntrack is not in use.
const NO_CONNTRACK: u32 = u32::MAX;

impl Offload {
    /// Loads the programs with room for `slots` connections. Packets are routed as if they came from the
    /// interface with the index `device`. Parts that the kernel refuses are left out.
    ///
    /// # Errors
    /// When the kernel can't or may not.
    pub fn load(device: u32, slots: u32) -> Result<Self, OffloadError> {
        Self::load_but(device, slots, 0)
    }

    /// The same; the verifier is made to refuse the parts whose bits are in `refused`. For tests.
    ///
    /// # Errors
    /// When the kernel can't or may not.
    pub fn load_but(device: u32, slots: u32, refused: u32) -> Result<Self, OffloadError> {
        let (ebpf, left_out) = parts::load(slots, refused)?;
        let words = |name| -> Result<Arc<Words>, OffloadError> {
            let map = another_fd(&ebpf, name)?;
            let words = Words::map(map.as_fd(), slots).map_err(OffloadError::Words)?;
            Ok(Arc::new(words))
        };
        let (gates, carried) = (words("gates")?, words("carried")?);
        let mut offload = Self {
            ebpf,
            gates,
            carried,
            next_slot: 0,
            slots,
            left_out,
            told: Settings {
                device,
                mark: 0,
                sockets: 0,
                spare: 0,
                now: 0,
            },
            conntrack: Arc::new(AtomicU32::new(NO_CONNTRACK)),
            links: Vec::new(),
        };
        offload.tell(offload.told)?;
        Ok(offload)
    }

    /// The parts that the kernel refused.
    #[must_use]
    pub fn left_out(&self) -> Option<&LeftOut> {
        self.left_out.as_ref()
    }

    /// A fast path with `slots` of the slots, for one translator.
    ///
    /// # Errors
    /// When the process has no file descriptor left.
    pub fn fast_path(&mut self, slots: u32) -> Result<KernelFastPath, OffloadError> {
        let first = self.next_slot;
        let end = first.saturating_add(slots).min(self.slots);
        self.next_slot = end;
        let map = |name| -> Result<Map, OffloadError> {
            let data = MapData::from_fd(another_fd(&self.ebpf, name)?)?;
            Ok(Map::from_map_data(data)?)
        };
        Ok(KernelFastPath {
            entries: Array::try_from(map("entries")?)?,
            flows: HashMap::try_from(map("flows")?)?,
            plains: (self.told.mark != 0)
                .then(|| HashMap::try_from(map("plains")?).map_err(OffloadError::from))
                .transpose()?,
            guard: Guard::new(Arc::clone(&self.conntrack)),
            syns: HashMap::try_from(map("syns")?)?,
            gates: Arc::clone(&self.gates),
            paid: Paid::new(Arc::clone(&self.carried), first..end),
            first,
            free: (first..end).rev().collect(),
            taken: vec![[None; FLOWS]; (end - first) as usize],
            own: Vec::new(),
        })
    }

    /// A reader of what the programs have counted.
    ///
    /// # Errors
    /// When the process has no file descriptor left.
    pub fn reasons(&self) -> Result<Reasons, OffloadError> {
        let data = MapData::from_fd(another_fd(&self.ebpf, "reasons")?)?;
        let counts = PerCpuArray::try_from(Map::from_map_data(data)?)?;
        if counts.len() as usize != REASONS.len() {
            return Err(OffloadError::Missing("counter for each reason"));
        }
        let flows = MapData::from_fd(another_fd(&self.ebpf, "flows")?)?;
        Ok(Reasons {
            counts,
            flows: HashMap::try_from(Map::from_map_data(flows)?)?,
            gates: Arc::clone(&self.gates),
        })
    }

    /// Sets the programs' time, in microseconds. For tests.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn set_time(&mut self, device: u32, now: u64) -> Result<(), OffloadError> {
        self.tell(Settings {
            device,
            now,
            ..self.told
        })
    }

    /// Conntrack is in use from here on, and the clients' legs of services on the path are in its zone `zone`: what it
    /// translates is not installed.
    pub fn beside_conntrack(&self, zone: u16) {
        self.conntrack.store(zone.into(), Ordering::Relaxed);
    }

    /// Has the programs mark packets of plain TCP with these bits, which lead them past FlexCP's routing rules. 0: they
    /// mark none, and [`KernelFastPath`] lets none pass by.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn mark(&mut self, mark: u32) -> Result<(), OffloadError> {
        self.tell(Settings { mark, ..self.told })
    }

    /// Has the programs mark packets of connections that this host's sockets have: the translator may leave connections to those.
    /// Gives why they can't, if they can't.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn leave_to_sockets(&mut self) -> Result<Option<&'static str>, OffloadError> {
        let left_out = self.left_out.as_ref();
        if left_out.is_some_and(LeftOut::keeps_from_sockets) {
            return Ok(Some(
                "the kernel refuses the part of the programs that it takes",
            ));
        }
        if self.told.mark == 0 {
            return Ok(Some("the programs mark nothing"));
        }
        self.tell(Settings {
            sockets: 1,
            ..self.told
        })?;
        Ok(None)
    }

    /// Sets the programs' time, in microseconds, and runs one packet, from the link layer's header on, through
    /// them: one segment, whose checksum nobody has looked at. For tests.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn try_packet(
        &mut self,
        device: u32,
        now: u64,
        packet: &[u8],
    ) -> Result<Tried, OffloadError> {
        const SHOT: u32 = 2;
        const REDIRECT: u32 = 7;
        self.set_time(device, now)?;
        let mut out = vec![0; packet.len() + 256];
        let mut options = TestRunOptions {
            data_in: Some(packet),
            data_out: Some(&mut out),
            ..TestRunOptions::default()
        };
        options.repeat = 1;
        let result = self.program(LinkHeader::Ethernet)?.test_run(options)?;
        let len = result.data_size_out as usize;
        out.truncate(len);
        Ok(match result.return_value {
            REDIRECT => Tried::Translated(out),
            SHOT => Tried::Dropped,
            _ => Tried::Passed,
        })
    }

    /// The program for devices whose packets have that header.
    fn program(&mut self, header: LinkHeader) -> Result<&mut SchedClassifier, OffloadError> {
        let name = match header {
            LinkHeader::Ethernet => PROGRAM,
            LinkHeader::Nothing => bare::PROGRAM,
            LinkHeader::Other => return Err(OffloadError::Missing("program for such a device")),
        };
        let program = self.ebpf.program_mut(name);
        let program = program.ok_or(OffloadError::Missing("program"))?;
        Ok(program.try_into()?)
    }

    fn tell(&mut self, settings: Settings) -> Result<(), OffloadError> {
        let map = self.ebpf.map_mut("settings");
        let map = map.ok_or(OffloadError::Missing("settings"))?;
        let mut told: Array<_, Settings> = Array::try_from(map)?;
        told.set(0, settings, 0)?;
        self.told = settings;
        Ok(())
    }
}

/// A share of the slots, for one translator.
pub struct KernelFastPath {
    entries: Array<MapData, Value>,
    flows: HashMap<MapData, FlowKey, FlowRef>,
    /// Flows of plain TCP, with the family of each; `None`: those can't pass by.
    plains: Option<HashMap<MapData, FlowKey, u32>>,
    /// SYNs that have passed the programs, if those mark what follows them.
    syns: HashMap<MapData, FlowKey, u32>,
    guard: Guard,
    gates: Arc<Words>,
    paid: Paid,
    first: u32,
    free: Vec<u32>,
    /// The flows that lead to each slot.
    taken: Vec<[Option<FlowKey>; FLOWS]>,
    /// Servers whose packets come in on no device.
    own: Vec<[u8; 16]>,
}

impl FastPath for KernelFastPath {
    fn install(&mut self, slot: Option<u32>, entry: &FlowEntry, passed: Option<u32>) -> Installed {
        if self.own.contains(&entry.server_addr) {
            return Installed::NoRoom;
        }
        if self.is_forbidden(slot, entry) {
            return Installed::Never;
        }
        let held = slot.is_some();
        let Some(slot) = slot.or_else(|| self.free.pop()) else {
            return Installed::NoRoom;
        };
        self.paid.set_account(slot, entry.account);
        let known =
            self.lead_to(slot, entry) && self.entries.set(slot, Value(*entry), LOCKED).is_ok();
        if !known {
            self.forget(slot, &[None; FLOWS]);
            if !held {
                self.free.push(slot);
            }
            return Installed::NoRoom;
        }
        if self.open(slot, passed) {
            Installed::Slot(slot)
        } else {
            Installed::NotNow
        }
    }

    fn evict(&mut self, slot: u32) -> FlowEntry {
        self.gates.of(slot).fetch_and(!OPEN, Ordering::SeqCst);
        // Whoever had the lock before has done its work; whoever gets it later sees the gate. The element is there, as
        // it is for every slot, the map is open, and for a copy of so few bytes the kernel waits for memory.
        let value = self.entries.get(&slot, LOCKED);
        value.expect("a slot that was installed can be read").0
    }

    fn peek(&self, slot: u32) -> FlowEntry {
        let value = self.entries.get(&slot, LOCKED);
        value.expect("a slot that is installed can be read").0
    }

    fn peek_all(&self, each: &mut dyn FnMut(&FlowEntry)) {
        let slots = u32::try_from(self.taken.len()).unwrap_or(0);
        for slot in (self.first..).take(slots as usize) {
            if self.gates.of(slot).load(Ordering::Relaxed) & OPEN != 0 {
                each(&self.peek(slot));
            }
        }
    }

    fn release(&mut self, slot: u32) {
        self.gates.of(slot).fetch_and(!OPEN, Ordering::SeqCst);
        self.paid.set_account(slot, 0);
        self.forget(slot, &[None; FLOWS]);
        self.free.push(slot);
    }

    fn carried(&mut self, each: &mut dyn FnMut(u32, u64)) {
        self.paid.pay_in(each);
    }

    fn held(&self) -> u32 {
        u32::try_from(self.taken.len() - self.free.len()).unwrap_or(u32::MAX)
    }

    fn punted(&self, slot: u32) -> Option<u32> {
        Some(up_by(self.gates.of(slot).load(Ordering::SeqCst)))
    }

    fn leaves_to_socket(&mut self, ends: Ends) -> bool {
        self.syns.remove(&FlowKey::of(ends)).is_ok()
    }

    fn leave_out(&mut self, servers: &[IpAddr]) {
        // As a flow entry has them.
        let bytes = |server: &IpAddr| {
            let mut bytes = [0; 16];
            match server {
                IpAddr::V4(v4) => bytes[..4].copy_from_slice(&v4.octets()),
                IpAddr::V6(v6) => bytes = v6.octets(),
            }
            bytes
        };
        self.own = servers.iter().map(bytes).collect();
    }

    fn pass_by(&mut self, ends: Ends) -> bool {
        let Some(plains) = &mut self.plains else {
            return false;
        };
        let family = if ends.to.is_ipv6() { 6 } else { 4 };
        let back = Ends {
            from: ends.to,
            to: ends.from,
        };
        // Both or none: of one direction alone netfilter would see half a connection.
        let there = FlowKey::of(ends);
        if plains.insert(there, family, 0).is_err() {
            return false;
        }
        let both = plains.insert(FlowKey::of(back), family, 0).is_ok();
        if !both {
            let _ = plains.remove(&there);
        }
        both
    }
}

/// The packets that have gone up by a gate, modulo 2^32.
fn up_by(gate: u64) -> u32 {
    u32::try_from((gate / ONE_UP) & u64::from(u32::MAX)).unwrap_or(0)
}

impl KernelFastPath {
    /// Opens the gate of a slot, if `passed` packets and no more have gone up by it: the same word counts them, so that
    /// none slips through between a look and the opening.
    fn open(&self, slot: u32, passed: Option<u32>) -> bool {
        let gate = self.gates.of(slot);
        let Some(passed) = passed else {
            gate.fetch_or(OPEN, Ordering::SeqCst);
            return true;
        };
        let open = |word| (up_by(word) == passed).then_some(word | OPEN);
        gate.fetch_update(Ordering::SeqCst, Ordering::SeqCst, open)
            .is_ok()
    }

    /// Whether a flow of `entry` that does not lead to its slot yet has to pass netfilter.
    fn is_forbidden(&mut self, slot: Option<u32>, entry: &FlowEntry) -> bool {
        let known = slot.map_or([None; FLOWS], |slot| {
            self.taken[(slot - self.first) as usize]
        });
        let new = flows(entry).into_iter().zip(known).enumerate();
        let new = new.filter(|(_, (flow, known))| flow != known);
        new.filter_map(|(index, (flow, _))| Some((flow?, index == 0)))
            .any(|(flow, down)| self.guard.forbids(&flow, down, entry.family))
    }

    /// Makes the flows of `entry`, and no others, lead to `slot`.
    fn lead_to(&mut self, slot: u32, entry: &FlowEntry) -> bool {
        let wanted = flows(entry);
        self.forget(slot, &wanted);
        let known = self.taken[(slot - self.first) as usize];
        for (index, flow) in wanted.iter().enumerate() {
            let Some(flow) = flow.filter(|flow| known[index] != Some(*flow)) else {
                continue;
            };
            let leg = u32::try_from(index).map_or(LEG_SERVER, |index| {
                index.checked_sub(1).unwrap_or(LEG_SERVER)
            });
            if self.flows.insert(flow, FlowRef { slot, leg }, 0).is_err() {
                return false;
            }
            self.taken[(slot - self.first) as usize][index] = Some(flow);
        }
        true
    }

    /// Removes the flows that lead to `slot`, except for those in `wanted`.
    fn forget(&mut self, slot: u32, wanted: &[Option<FlowKey>; FLOWS]) {
        let known = &mut self.taken[(slot - self.first) as usize];
        for (known, wanted) in known.iter_mut().zip(wanted) {
            if known != wanted
                && let Some(flow) = known.take()
            {
                // Another connection may have got the same ends since.
                let ours = self
                    .flows
                    .get(&flow, 0)
                    .is_ok_and(|found| found.slot == slot);
                if ours {
                    let _ = self.flows.remove(&flow);
                }
            }
        }
    }
}

impl std::fmt::Debug for KernelFastPath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KernelFastPath")
            .field("first", &self.first)
            .field("free", &self.free.len())
            .finish_non_exhaustive()
    }
}

/// The flows of a flow entry: first the server's, then the subflows'.
fn flows(entry: &FlowEntry) -> [Option<FlowKey>; FLOWS] {
    let mut flows = [None; FLOWS];
    flows[0] = Some(FlowKey {
        from: entry.server_addr,
        to: entry.source_addr,
        from_port: entry.server_port.to_be_bytes(),
        to_port: entry.source_port.to_be_bytes(),
    });
    for (flow, subflow) in flows[1..].iter_mut().zip(&entry.subflows) {
        *flow = (subflow.installed == 1).then(|| FlowKey {
            from: subflow.remote_addr,
            to: subflow.local_addr,
            from_port: subflow.remote_port.to_be_bytes(),
            to_port: subflow.local_port.to_be_bytes(),
        });
    }
    flows
}

/// Another descriptor of the map `name`.
fn another_fd(ebpf: &Ebpf, name: &'static str) -> Result<OwnedFd, OffloadError> {
    let Some(
        Map::Array(data) | Map::HashMap(data) | Map::LruHashMap(data) | Map::PerCpuArray(data),
    ) = ebpf.map(name)
    else {
        return Err(OffloadError::Missing(name));
    };
    let copy = data.fd().as_fd().try_clone_to_owned();
    copy.map_err(OffloadError::Descriptor)
}

//! Which worker a packet comes to: loads the program of `bpf/placement.bpf.c`, which chooses the queue of the TUN
//! device for each packet, and tells it the rules and the flows that workers claim.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use aya::maps::{Array, HashMap, Map, MapData, MapError};
use aya::programs::{ProgramError, SocketFilter, TestRunOptions};
use aya::{Ebpf, EbpfError, EbpfLoader, TestRun as _, include_bytes_aligned};
use flexcp_placement::{FlowMap, Pair, Rules};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Setter, ioctl, opcode};

use crate::offload::Refusal;
use crate::tun::Tun;

/// The program, compiled by `make bpf`.
static OBJECT: &[u8] = include_bytes_aligned!("../../../bpf/placement.bpf.o");

const PROGRAM: &str = "flexcp_place";
/// Ranges of ports from one address to one back end that the program knows (`RANGES`).
const RANGES: usize = 4;
// linux/if_tun.h
const TUNSETSTEERINGEBPF: Opcode = opcode::read::<libc::c_int>(b'T', 224);

/// Where packets go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// To the worker that owns them.
    Owner,
    /// Each to the next worker, so that nearly all have to be handed over: to measure what placement is worth.
    Scatter,
}

/// What stands in the way of the placement program.
#[derive(thiserror::Error, Debug)]
pub enum PlacementError {
    /// The kernel takes no programs, or not this one.
    #[error(
        "the kernel does not load the placement program: {}; it takes Linux 5.17 or newer and CAP_BPF",
        super::offload::chain(.0)
    )]
    Load(#[from] EbpfError),
    /// The verifier refuses the program, or the process may not ask.
    #[error(
        "the kernel refuses the placement program: {0}; it takes Linux 5.17 or newer and CAP_BPF"
    )]
    Refused(Refusal),
    /// The program could not be used.
    #[error("the kernel does not use the placement program: {}", super::offload::chain(.0))]
    Program(#[from] ProgramError),
    /// A map could not be used.
    #[error("a map of the placement program can't be used: {0}")]
    Map(#[from] MapError),
    /// The device does not take the program.
    #[error("the TUN device takes no placement program (TUNSETSTEERINGEBPF): {0}")]
    Attach(io::Error),
    /// The process has no file descriptor left.
    #[error("no file descriptor for a map of the placement program: {0}")]
    Descriptor(io::Error),
    /// The object file lacks a part: a defect of the build.
    #[error("the placement program's object file has no {0}; build it anew with `make bpf`")]
    Missing(&'static str),
}

/// The loaded program. A device that it was attached to keeps it.
#[derive(Debug)]
pub struct PlacementProgram {
    ebpf: Ebpf,
    scatter: bool,
}

/// What the program is told (`struct settings`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Settings {
    key0: u64,
    key1: u64,
    workers: u32,
    scatter: u32,
    back_ends: u32,
    pad: u32,
}

/// An address and port that FlexCP connects to, or zeros where clients name them, and from where (`struct back_end`).
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct BackEnd {
    addr: [u8; 16],
    source: [u8; 16],
    port: [u8; 2],
    pad: [u8; 2],
}

/// FlexCP's ports there (`struct ports`); what is not used has its first behind its last.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Ports {
    first: [u16; RANGES],
    last: [u16; RANGES],
}

/// `struct pair`.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
struct Key([u8; 36]);

// SAFETY: `repr(C)` of integers without padding (16 + 16 bytes): every byte is initialised, and every pattern of
// bytes is a value.
unsafe impl aya::Pod for Settings {}
// SAFETY: the same, bytes alone.
unsafe impl aya::Pod for BackEnd {}
// SAFETY: the same, two bytes each.
unsafe impl aya::Pod for Ports {}
// SAFETY: the same, bytes alone.
unsafe impl aya::Pod for Key {}

impl PlacementProgram {
    /// Loads the program with `rules`, and room for so many flows that workers claim.
    ///
    /// # Errors
    /// When the kernel can't or may not.
    pub fn load(rules: &Rules, target: Target, flows: u32) -> Result<Self, PlacementError> {
        let known = back_ends(rules);
        let count = u32::try_from(known.len()).unwrap_or(u32::MAX);
        let room = count.saturating_mul(2).max(ROOM);
        let mut ebpf = EbpfLoader::new()
            .map_max_entries("flows", flows.max(1))
            .map_max_entries("back_ends", room)
            .load(OBJECT)?;
        let program: &mut SocketFilter = ebpf
            .program_mut(PROGRAM)
            .ok_or(PlacementError::Missing("program"))?
            .try_into()?;
        match program.load().map_err(Refusal::of) {
            Ok(()) => {}
            Err(Ok(refusal)) => return Err(PlacementError::Refused(refusal)),
            Err(Err(other)) => return Err(other.into()),
        }
        let scatter = target == Target::Scatter;
        let steering = Self { ebpf, scatter };
        steering.back_ends()?.change(rules)?;
        Ok(steering)
    }

    /// What the program knows of back ends, to be changed while it is in use.
    ///
    /// # Errors
    /// When the process has no file descriptor left.
    pub fn back_ends(&self) -> Result<PlacedBackEnds, PlacementError> {
        let settings = Map::from_map_data(MapData::from_fd(self.fd("settings")?)?)?;
        let back_ends = Map::from_map_data(MapData::from_fd(self.fd("back_ends")?)?)?;
        Ok(PlacedBackEnds {
            settings: Array::try_from(settings)?,
            back_ends: HashMap::try_from(back_ends)?,
            scatter: self.scatter,
        })
    }

    /// From now on the program chooses the queue of each packet that comes to `device`: queues count from 0 in the
    /// order in which they were opened. To be called with any of them.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn attach(&self, device: &Tun) -> Result<(), PlacementError> {
        let program = self.program()?.fd()?.as_fd().as_raw_fd();
        // SAFETY: TUNSETSTEERINGEBPF reads an int, the program's descriptor.
        let attached = unsafe {
            ioctl(
                device,
                Setter::<TUNSETSTEERINGEBPF, libc::c_int>::new(program),
            )
        };
        attached.map_err(|errno: Errno| PlacementError::Attach(errno.into()))
    }

    /// The map of claimed flows for one worker.
    ///
    /// # Errors
    /// When the process has no file descriptor left.
    pub fn flows(&self, worker: u16) -> Result<ClaimedFlows, PlacementError> {
        let fd = self.fd("flows")?;
        let map = Map::from_map_data(MapData::from_fd(fd)?)?;
        Ok(ClaimedFlows {
            flows: HashMap::try_from(map)?,
            worker: worker.into(),
        })
    }

    /// The queue that the program chooses for a packet, from its IP header on. For tests.
    ///
    /// # Errors
    /// When the kernel refuses, as it does packets shorter than an Ethernet header.
    pub fn try_packet(&self, packet: &[u8]) -> Result<u32, PlacementError> {
        // The kernel takes an Ethernet header away before it runs the program, as it would for a socket.
        let mut frame = vec![0; 14];
        let protocol: [u8; 2] = match packet.first().map(|first| first >> 4) {
            Some(6) => [0x86, 0xdd],
            _ => [8, 0],
        };
        frame[12..].copy_from_slice(&protocol);
        frame.extend_from_slice(packet);
        let options = TestRunOptions {
            data_in: Some(&frame),
            ..TestRunOptions::default()
        };
        Ok(self.program()?.test_run(options)?.return_value)
    }

    fn program(&self) -> Result<&SocketFilter, PlacementError> {
        let program = self.ebpf.program(PROGRAM);
        Ok(program
            .ok_or(PlacementError::Missing("program"))?
            .try_into()?)
    }

    fn fd(&self, map: &'static str) -> Result<OwnedFd, PlacementError> {
        match self.ebpf.map(map) {
            Some(Map::HashMap(data) | Map::Array(data)) => {
                let fd = data.fd().as_fd().try_clone_to_owned();
                fd.map_err(PlacementError::Descriptor)
            }
            _ => Err(PlacementError::Missing(map)),
        }
    }
}

/// The back ends whose packets go by the port that FlexCP chose, as the program knows them. It works as long as the device
/// has the program.
pub struct PlacedBackEnds {
    settings: Array<MapData, Settings>,
    back_ends: HashMap<MapData, BackEnd, Ports>,
    scatter: bool,
}

impl PlacedBackEnds {
    /// From here on the program knows those of `rules`; `workers` and `hash_keys` are as before. Those that stay are known
    /// at every moment.
    ///
    /// # Errors
    /// When there is no room for all of them, or the kernel refuses: then workers hand over what comes from the others.
    pub fn change(&mut self, rules: &Rules) -> Result<(), PlacementError> {
        let known = back_ends(rules);
        let settings = Settings {
            key0: rules.hash_keys.0,
            key1: rules.hash_keys.1,
            workers: rules.workers.into(),
            scatter: u32::from(self.scatter),
            back_ends: u32::try_from(known.len()).unwrap_or(u32::MAX),
            pad: 0,
        };
        self.settings.set(0, settings, 0)?;
        let there: Vec<BackEnd> = self.back_ends.keys().collect::<Result<_, _>>()?;
        for gone in there {
            if !known.iter().any(|(known, _)| *known == gone) {
                self.back_ends.remove(&gone)?;
            }
        }
        for (back_end, ports) in known {
            self.back_ends.insert(back_end, ports, 0)?;
        }
        Ok(())
    }
}

impl std::fmt::Debug for PlacedBackEnds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PlacedBackEnds").finish_non_exhaustive()
    }
}

/// The program's map of claimed flows, as one worker uses it. It works as long as the device has the program.
pub struct ClaimedFlows {
    flows: HashMap<MapData, Key, u32>,
    worker: u32,
}

impl FlowMap for ClaimedFlows {
    fn claim(&mut self, flow: Pair) -> bool {
        self.flows.insert(Key(flow.bytes()), self.worker, 0).is_ok()
    }

    fn give_up(&mut self, flow: Pair) {
        let key = Key(flow.bytes());
        let ours = self
            .flows
            .get(&key, 0)
            .is_ok_and(|worker| worker == self.worker);
        if ours {
            let _ = self.flows.remove(&key);
        }
    }
}

impl std::fmt::Debug for ClaimedFlows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClaimedFlows")
            .field("worker", &self.worker)
            .finish_non_exhaustive()
    }
}

/// Each address of a back end with each of FlexCP's, and the ports of all services that have both. More ranges
/// than the program knows are left out: then workers hand packets over.
fn back_ends(rules: &Rules) -> Vec<(BackEnd, Ports)> {
    let mut known: Vec<(BackEnd, Vec<(u16, u16)>)> = vec![];
    for service in &rules.back_ends {
        let range = (*service.ports.start(), *service.ports.end());
        let addrs = match &service.addrs {
            Some(addrs) => addrs.iter().copied().map(Some).collect(),
            None => vec![None],
        };
        let sources = || service.sources.iter().copied();
        for (addr, source) in addrs
            .into_iter()
            .flat_map(|addr| sources().map(move |source| (addr, source)))
        {
            let key = back_end(addr, source);
            match known.iter_mut().find(|(known, _)| *known == key) {
                Some((_, ranges)) if ranges.contains(&range) => {}
                Some((_, ranges)) => ranges.push(range),
                None => known.push((key, vec![range])),
            }
        }
    }
    let ports = |ranges: Vec<(u16, u16)>| {
        let mut ports = Ports {
            first: [1; RANGES],
            last: [0; RANGES],
        };
        for (at, (first, last)) in ranges.into_iter().take(RANGES).enumerate() {
            (ports.first[at], ports.last[at]) = (first, last);
        }
        ports
    };
    known
        .into_iter()
        .map(|(key, ranges)| (key, ports(ranges)))
        .collect()
}

/// The program's key; `addr`: `None` where clients name the server.
fn back_end(addr: Option<SocketAddr>, source: IpAddr) -> BackEnd {
    BackEnd {
        addr: addr.map_or([0; 16], |addr| octets(addr.ip())),
        source: octets(source),
        port: addr.map_or([0; 2], |addr| addr.port().to_be_bytes()),
        pad: [0; 2],
    }
}

/// As packets' addresses stand in the program's keys.
fn octets(addr: IpAddr) -> [u8; 16] {
    match addr {
        IpAddr::V4(addr) => addr.to_ipv6_mapped().octets(),
        IpAddr::V6(addr) => addr.octets(),
    }
}

/// Back ends that the program has room for, or twice as many as it begins with: the configuration may change.
const ROOM: u32 = 1024;

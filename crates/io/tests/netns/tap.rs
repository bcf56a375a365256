//! A packet's whole way through the programs: frames are written into a TAP device at whose ingress the programs are,
//! and what they send out of another one is read there. Either may be a TUN device, whose packets have no Ethernet header. Checksum, segmentation and redirection are the kernel's own;
//! what runs one packet by itself (BPF_PROG_TEST_RUN) has no GSO packets of TCP.
//!
//! Everything happens inside of the write: the kernel hands what is written to the programs, and what they redirect to
//! the other device's queue.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;

use flexcp_io::{Hook, KernelFastPath, LinkHeader, Offload as Programs};
use flexcp_wire::{ChecksumState, Offload, VNET_HEADER_LEN, emit_vnet, parse_vnet, protocol};
use rustix::io::Errno;
use rustix::ioctl::{IntegerSetter, Opcode, Updater, ioctl, opcode};

use crate::attach::tc;
use crate::host::{ip, set_sysctl};
use crate::offload::{DEVICE, ways, ways_without_neighbours};

/// The first bytes of a frame: destination, source, protocol.
pub(crate) const ETHERNET: usize = 14;
/// The device's address that the programs are at.
const NEAR: [u8; 6] = [2, 0, 0, 0, 0, 0x10];

/// Frames with their virtio-net headers.
#[derive(Debug)]
struct Tap {
    file: File,
    /// Bytes of the link layer's header.
    link: usize,
}

impl Tap {
    /// Makes the device `name`, whose packets have that header. `segments`: what leaves by it is cut into segments and its
    /// checksums are completed; otherwise it leaves as it is.
    fn open(name: &str, header: LinkHeader, segments: bool) -> Self {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK)
            .open("/dev/net/tun")
            .unwrap();
        let mut request = [0_u8; size_of::<libc::ifreq>()];
        request[..name.len()].copy_from_slice(name.as_bytes());
        let (kind, link) = match header {
            LinkHeader::Ethernet => (libc::IFF_TAP, ETHERNET),
            _ => (libc::IFF_TUN, 0),
        };
        let flags = kind | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
        let flags = u16::try_from(flags).unwrap().to_ne_bytes();
        request[libc::IFNAMSIZ..libc::IFNAMSIZ + 2].copy_from_slice(&flags);
        let offloads = if segments { 0 } else { OFFLOADS };
        // SAFETY: TUNSETIFF reads and writes a `struct ifreq`, as large as `request` is; TUNSETOFFLOAD takes the flags
        // themselves, no pointer.
        unsafe {
            ioctl(&file, Updater::<TUNSETIFF, _>::new(&mut request)).unwrap();
            ioctl(
                &file,
                IntegerSetter::<TUNSETOFFLOAD>::new_usize(offloads as usize),
            )
            .unwrap();
        }
        Self { file, link }
    }

    fn send(&self, packet: &[u8], offload: Offload) {
        let (ip_len, tcp_len, version) = header_lengths(packet);
        let mut vnet = [0; VNET_HEADER_LEN];
        emit_vnet(&offload, self.link + ip_len, tcp_len, &mut vnet);
        let mut frame = vnet.to_vec();
        if self.link > 0 {
            frame.extend(NEAR);
            frame.extend([2, 0, 0, 0, 0, 0x11]);
            let protocol: u16 = if version == 6 { 0x86dd } else { 0x0800 };
            frame.extend(protocol.to_be_bytes());
        }
        frame.extend(packet);
        assert_eq!(rustix::io::write(&self.file, &frame).unwrap(), frame.len());
    }

    /// The next packet of `protocol` that has left, behind as many bytes as an Ethernet header has.
    fn receive(&self, protocol: u8) -> Option<(Vec<u8>, Offload)> {
        let mut buf = vec![0; VNET_HEADER_LEN + ETHERNET + 65_536];
        loop {
            let len = match rustix::io::read(&self.file, &mut buf) {
                Ok(len) => len,
                Err(Errno::AGAIN) => return None,
                Err(error) => panic!("{error}"),
            };
            let (vnet, frame) = buf[..len].split_first_chunk::<VNET_HEADER_LEN>().unwrap();
            let packet = &frame[self.link..];
            // The kernel itself looks for neighbours now and then.
            let kind = if packet[0] >> 4 == 4 {
                packet[9]
            } else {
                packet[6]
            };
            if kind != protocol {
                continue;
            }
            let offload = parse_vnet(vnet).unwrap();
            if offload.checksum == ChecksumState::Partial {
                let start = usize::from(u16::from_ne_bytes([vnet[6], vnet[7]]));
                assert_eq!(
                    start,
                    self.link + header_lengths(packet).0,
                    "start of the checksum"
                );
            }
            let mut whole = vec![0; ETHERNET - self.link];
            whole.extend(frame);
            return Some((whole, offload));
        }
    }
}

/// Lengths of the IP and the TCP header, and the version.
fn header_lengths(packet: &[u8]) -> (usize, usize, u8) {
    let version = packet[0] >> 4;
    let ip_len = if version == 4 {
        usize::from(packet[0] & 15) * 4
    } else {
        40
    };
    let tcp_len = packet
        .get(ip_len + 12)
        .map_or(0, |byte| usize::from(byte >> 4) * 4);
    (ip_len, tcp_len, version)
}

/// What became of a packet.
#[derive(Debug)]
pub(crate) enum Passed {
    /// These frames have left, in this order.
    Translated(Vec<(Vec<u8>, Offload)>),
    /// It is the translator's.
    Up,
    /// It is nobody's.
    Dropped,
}

/// The programs between two devices.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) programs: Programs,
    near: Tap,
    out: Tap,
    /// What packets have before the IP header on each.
    headers: [LinkHeader; 2],
    /// As the programs counted before the packet in hand.
    counts: Vec<(&'static str, u64)>,
    /// What the last packet was counted as.
    pub(crate) counted: Vec<&'static str>,
    /// By programs that were loaded before.
    counted_before: Vec<(&'static str, u64)>,
}

impl Line {
    /// Two devices whose packets have these headers, ways, and programs with `slots`. `segments`: packets leave cut into
    /// segments, as on a link.
    pub(crate) fn between([from, to]: [LinkHeader; 2], slots: u32, segments: bool) -> Self {
        let near = Tap::open("near", from, false);
        let out = Tap::open("out", to, segments);
        if from == LinkHeader::Ethernet {
            ip("link set near address 02:00:00:00:00:10");
        }
        ip("link set near up");
        if to == LinkHeader::Ethernet {
            ways();
            ip("neigh add 192.0.2.3 lladdr 02:00:00:00:00:03 dev out");
        } else {
            ways_without_neighbours();
        }
        // What goes up comes to nothing: the translator has the packet already.
        set_sysctl("ipv4/conf/near/forwarding", "0");
        set_sysctl("ipv6/conf/near/disable_ipv6", "1");
        if Hook::of_this_kernel() == Hook::Clsact {
            tc("qdisc add dev near clsact");
            tc("qdisc add dev out clsact");
        }
        let programs = attached([from, to], slots);
        let counts = programs.reasons().unwrap().counts();
        Self {
            programs,
            near,
            out,
            headers: [from, to],
            counted_before: counts.clone(),
            counts,
            counted: Vec::new(),
        }
    }

    /// Programs as they were at first, with `slots`. What fast paths of the others hold is nobody's any more.
    pub(crate) fn reload(&mut self, slots: u32) {
        self.counted_before = self.reasons();
        self.programs = attached(self.headers, slots);
        self.counts = self.programs.reasons().unwrap().counts();
    }

    /// How packets were counted, by all programs that were loaded.
    pub(crate) fn reasons(&self) -> Vec<(&'static str, u64)> {
        let all = self.counts.iter().zip(&self.counted_before);
        all.map(|(now, before)| (now.0, now.1 + before.1)).collect()
    }

    pub(crate) fn fast_path(&mut self, slots: u32) -> KernelFastPath {
        self.programs.fast_path(slots).unwrap()
    }

    /// Sends a packet of ICMPv6 through, and has `out` for FlexCP's device: what arrives there, from its IP header on.
    pub(crate) fn hand_over(&mut self, now: u64, packet: &[u8]) -> Option<Vec<u8>> {
        self.programs.set_time(device("out"), now).unwrap();
        // What the kernel itself has to say to its neighbours.
        while self.out.receive(protocol::ICMPV6).is_some() {}
        self.near.send(packet, Offload::default());
        let (frame, _) = self.out.receive(protocol::ICMPV6)?;
        Some(frame[ETHERNET..].to_vec())
    }

    /// Sends an IP packet through at a time in microseconds.
    pub(crate) fn pass(&mut self, now: u64, packet: &[u8], offload: Offload) -> Passed {
        self.programs.set_time(DEVICE, now).unwrap();
        self.near.send(packet, offload);
        let mut frames = Vec::new();
        frames.extend(std::iter::from_fn(|| self.out.receive(protocol::TCP)));
        let counts = self.programs.reasons().unwrap().counts();
        let moved = counts.iter().zip(&self.counts);
        let moved = moved.filter(|(after, before)| after.1 != before.1);
        self.counted = moved.map(|(after, _)| after.0).collect();
        self.counts = counts;
        match (self.counted.as_slice(), frames.is_empty()) {
            (["translated"], false) => Passed::Translated(frames),
            (["stale_ack"], true) => Passed::Dropped,
            ([] | [_], true) if !self.counted.contains(&"rewrite_failed") => Passed::Up,
            (counted, _) => panic!("counted as {counted:?}, {} frames left", frames.len()),
        }
    }
}

/// The index of a device.
fn device(name: &str) -> u32 {
    let all = flexcp_io::interfaces().unwrap();
    let found = all.iter().find(|interface| interface.name == name);
    found.unwrap().index
}

/// Programs at the device where packets come in. They know the other one, too, if nobody there has an address.
fn attached([from, to]: [LinkHeader; 2], slots: u32) -> Programs {
    let mut programs = Programs::load(DEVICE, slots).unwrap_or_else(|error| panic!("{error}"));
    if from == LinkHeader::Nothing || to == LinkHeader::Nothing {
        programs
            .load_bare()
            .unwrap_or_else(|error| panic!("{error}"));
    }
    programs.attach_alone("near", from).unwrap();
    if to == LinkHeader::Nothing {
        programs.attach_alone("out", to).unwrap();
    }
    programs
}

const OFFLOADS: libc::c_uint = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6;
const TUNSETIFF: Opcode = opcode::write::<libc::c_int>(b'T', 202);
const TUNSETOFFLOAD: Opcode = opcode::write::<libc::c_uint>(b'T', 208);

//! Raw access to a leg: sending forged packets to FlexCP, and seeing what comes from where.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use anyhow::{Context as _, Result};
use flexcp_io::PacketSocket;
use flexcp_wire::{IpHeader, TcpFlags, TcpHeader, protocol};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::forge::{FORGED_TTL, is_spoofed};
use crate::namespace::Namespace;

/// Where forged packets enter: an interface, and the station behind it.
#[derive(Debug)]
pub(super) struct Muzzle {
    socket: PacketSocket,
    header: [u8; 14],
}

impl Muzzle {
    /// On `interface` of a namespace; the packets go to `peer`'s interface `peer_interface`.
    pub(super) fn open(
        namespace: &Namespace,
        interface: &str,
        peer: &Namespace,
        peer_interface: &str,
    ) -> Result<Self> {
        let listing = peer.ip(&format!("-o link show {peer_interface}"))?;
        let mac = listing
            .split_whitespace()
            .skip_while(|word| *word != "link/ether")
            .nth(1);
        let mac = mac.context("an interface without a MAC address")?;
        // A locally administered source that nobody has, then the type: IPv4.
        let mut header = [0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0x66, 8, 0];
        for (byte, text) in header.iter_mut().zip(mac.split(':')) {
            *byte = u8::from_str_radix(text, 16).context("not a MAC address")?;
        }
        Ok(Self {
            socket: namespace.run(|| Ok(PacketSocket::open(interface)?))?,
            header,
        })
    }

    /// Sends a packet; false when the kernel took it not.
    pub(super) fn send(&self, packet: &[u8]) -> bool {
        self.socket.send(&self.header, packet).is_ok()
    }
}

/// Numbers of the last packet of a flow that was seen.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Numbers {
    /// The sequence number behind it.
    pub(super) next: u32,
    /// What it acknowledged.
    pub(super) ack: u32,
}

/// What was seen at an interface.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// By source and destination.
    pub(super) flows: HashMap<(SocketAddr, SocketAddr), Numbers>,
    /// Packets and bytes (from the IP header on) to the addresses that spoofed packets claimed to be from.
    pub(super) to_spoofed: (u64, u64),
    /// Bytes of SYN/ACKs, whomever they were for.
    pub(super) syn_acks: u64,
    /// SYNs, whomever they were for.
    pub(super) syns: u64,
    /// Packets to this address are kept.
    pub(super) keep_to: Option<SocketAddr>,
    pub(super) kept: Vec<Vec<u8>>,
}

/// Watches what comes in on an interface, on a thread, until it is dropped.
#[derive(Debug)]
pub(super) struct Watch {
    seen: Arc<Mutex<Seen>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    pub(super) fn start(namespace: &Namespace, interface: &str) -> Result<Self> {
        let socket = namespace.run(|| Ok(PacketSocket::open(interface)?))?;
        let seen = Arc::new(Mutex::new(Seen::default()));
        let stop = Arc::new(AtomicBool::new(false));
        let (to, ended) = (Arc::clone(&seen), Arc::clone(&stop));
        let thread = thread::spawn(move || {
            let mut buffer = vec![0; PacketSocket::FRAME_BUFFER];
            while !ended.load(Ordering::Relaxed) {
                match socket.receive(&mut buffer) {
                    Ok(Some(frame)) => note(&to, frame.bytes),
                    Ok(None) | Err(_) => wait(&socket),
                }
            }
        });
        Ok(Self {
            seen,
            stop,
            thread: Some(thread),
        })
    }

    pub(super) fn seen(&self) -> MutexGuard<'_, Seen> {
        lock(&self.seen)
    }

    pub(super) fn numbers(&self, from: SocketAddr, to: SocketAddr) -> Option<Numbers> {
        self.seen().flows.get(&(from, to)).copied()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn note(seen: &Mutex<Seen>, frame: &[u8]) {
    let Some(packet) = frame.get(14..) else {
        return;
    };
    let Ok(ip) = IpHeader::parse(packet) else {
        return;
    };
    let mut seen = lock(seen);
    if is_spoofed(ip.dst) {
        seen.to_spoofed.0 += 1;
        seen.to_spoofed.1 += u64::try_from(ip.total_len).unwrap_or_default();
    }
    if ip.protocol != protocol::TCP {
        return;
    }
    let segment = &packet[ip.header_len..ip.total_len];
    let Ok((tcp, _)) = TcpHeader::parse(segment) else {
        return;
    };
    let (from, to) = (
        SocketAddr::new(ip.src, tcp.src_port),
        SocketAddr::new(ip.dst, tcp.dst_port),
    );
    if seen.keep_to == Some(to) {
        seen.kept.push(packet[..ip.total_len].to_vec());
    }
    if tcp.flags.contains(TcpFlags::SYN | TcpFlags::ACK) {
        seen.syn_acks += u64::try_from(ip.total_len).unwrap_or_default();
    } else if tcp.flags.contains(TcpFlags::SYN) {
        seen.syns += 1;
    }
    // What the attacker sent itself tells nothing of the connection.
    if ip.ttl == FORGED_TTL || is_spoofed(ip.dst) || tcp.flags.contains(TcpFlags::RST) {
        return;
    }
    let len = u32::try_from(segment.len() - tcp.header_len).unwrap_or_default();
    let control = tcp.flags.intersects(TcpFlags::SYN | TcpFlags::FIN);
    let next = tcp.seq.wrapping_add(len).wrapping_add(u32::from(control));
    let numbers = Numbers { next, ack: tcp.ack };
    seen.flows.insert((from, to), numbers);
}

fn wait(socket: &PacketSocket) {
    let mut fds = [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN)];
    let limit = Timespec {
        tv_sec: 0,
        tv_nsec: 20_000_000,
    };
    let _ = poll(&mut fds, Some(&limit));
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

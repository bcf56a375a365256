//! The emulator's loop: frames in, packets through the paths, frames out.

use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Instant;

use flexcp_faults::{Path, Time, segments};
use flexcp_io::{PacketSocket, ReceivedFrame, run_promptly};
use flexcp_wire::Sum;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{LinkCounters, Request, Sockets};
use crate::fault::Direction;

/// Both directions of a link, at work.
pub(super) struct Carrier {
    /// Where packets come in, by end: 0 is where `up` begins.
    inlets: [PacketSocket; 2],
    /// Where they go out.
    outlets: [PacketSocket; 2],
    /// By the end where they begin.
    paths: [Path; 2],
    /// Addresses of the stations behind both ends, as far as they have been heard.
    stations: [Option<Mac>; 2],
    /// Frames that the socket of that end did not take.
    unsent: [u64; 2],
    requests: Receiver<Request>,
    wake: Arc<OwnedFd>,
    start: Instant,
}

impl Carrier {
    pub(super) fn new(
        Sockets { inlets, outlets }: Sockets,
        paths: [Path; 2],
        requests: Receiver<Request>,
        wake: Arc<OwnedFd>,
    ) -> Self {
        Self {
            inlets,
            outlets,
            paths,
            stations: [None; 2],
            unsent: [0; 2],
            requests,
            wake,
            start: Instant::now(),
        }
    }

    /// Carries packets until it is told to stop.
    pub(super) fn run(mut self) {
        // Delays are worth no more than the moment when this runs. Where it is forbidden, so be it.
        let _ = run_promptly();
        let mut buffer = vec![0; PacketSocket::FRAME_BUFFER];
        loop {
            if !self.obey() {
                return;
            }
            let mut busy = false;
            for end in [0, 1] {
                busy |= self.take(end, &mut buffer);
                self.give(end);
            }
            if !busy {
                self.wait();
            }
        }
    }

    /// Does what was asked for; false at the end.
    fn obey(&mut self) -> bool {
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        loop {
            match self.requests.try_recv() {
                Ok(Request::Set(direction, faults)) => {
                    let now = self.now();
                    self.paths[begin(direction)].set_faults(now, faults.0);
                }
                Ok(Request::Count(answer)) => {
                    let [up, down] = [0, 1].map(|end: usize| *self.paths[end].counters());
                    let unsent = [self.unsent[1], self.unsent[0]];
                    let _ = answer.send(LinkCounters { up, down, unsent });
                }
                Err(TryRecvError::Empty) => return true,
                Ok(Request::Stop) | Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    /// Takes frames in at one end; true when more may be waiting.
    fn take(&mut self, end: usize, buffer: &mut [u8]) -> bool {
        for _ in 0..BATCH {
            // An interface that went down reports it once; it may come back.
            let Ok(Some(frame)) = self.inlets[end].receive(buffer) else {
                return false;
            };
            let Some((header, packet)) = frame.bytes.split_first_chunk::<ETHERNET_LEN>() else {
                continue;
            };
            let [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, t0, t1] = *header;
            self.stations[end] = Some([s0, s1, s2, s3, s4, s5]);
            if d0 & 1 == 0 {
                self.stations[1 - end] = Some([d0, d1, d2, d3, d4, d5]);
            }
            if !matches!(u16::from_be_bytes([t0, t1]), IPV4 | IPV6) {
                self.unsent[1 - end] +=
                    u64::from(self.outlets[1 - end].send(header, packet).is_err());
                continue;
            }
            let now = Time::from(self.start.elapsed());
            for packet in complete(&frame, packet) {
                self.paths[end].send(now, packet);
            }
        }
        true
    }

    /// Sends what has come out of the path that begins at `end`.
    fn give(&mut self, end: usize) {
        while let Some(packet) = self.paths[end].receive(self.now()) {
            let header = self.ethernet(end, &packet);
            self.unsent[1 - end] +=
                u64::from(self.outlets[1 - end].send(&header, &packet).is_err());
        }
    }

    /// The Ethernet header of a packet from `end`.
    fn ethernet(&self, end: usize, packet: &[u8]) -> [u8; ETHERNET_LEN] {
        let multicast = match packet {
            // RFC 2464 section 7; RFC 1112 section 6.4.
            [first, ..] if first >> 4 == 6 => packet
                .get(24..40)
                .filter(|to| to[0] == 0xff)
                .map(|to| [0x33, 0x33, to[12], to[13], to[14], to[15]]),
            _ => packet
                .get(16..20)
                .filter(|to| to[0] >> 4 == 0xe)
                .map(|to| [1, 0, 0x5e, to[1] & 0x7f, to[2], to[3]]),
        };
        let to = multicast.or(self.stations[1 - end]).unwrap_or([0xff; 6]);
        let from = self.stations[end].unwrap_or_default();
        let mut header = [0; ETHERNET_LEN];
        header[..6].copy_from_slice(&to);
        header[6..12].copy_from_slice(&from);
        let is_v6 = packet.first().is_some_and(|first| first >> 4 == 6);
        let kind = if is_v6 { IPV6 } else { IPV4 };
        header[12..].copy_from_slice(&kind.to_be_bytes());
        header
    }

    /// Sleeps until there is something to do.
    fn wait(&self) {
        let due = self.paths.iter().filter_map(Path::poll_timeout).min();
        let timeout = due.map(|due| due.since(self.now()));
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let mut fds = [
            PollFd::new(&self.inlets[0], PollFlags::IN),
            PollFd::new(&self.inlets[1], PollFlags::IN),
            PollFd::from_borrowed_fd(self.wake.as_fd(), PollFlags::IN),
        ];
        // An interruption is as good as an event: the loop looks at everything.
        let _ = poll(&mut fds, timeout.as_ref());
    }

    fn now(&self) -> Time {
        Time::from(self.start.elapsed())
    }
}

/// The packets of a frame as they would be on a wire.
fn complete(frame: &ReceivedFrame<'_>, packet: &[u8]) -> Vec<Vec<u8>> {
    if let Some(size) = frame.segment_size {
        return segments(packet, size.into());
    }
    let mut packet = packet.to_vec();
    if let Some((start, offset)) = frame.checksum
        && let Some(start) = start.checked_sub(ETHERNET_LEN)
        && start + offset + 2 <= packet.len()
    {
        // The sum of the pseudo-header stands in the field.
        let checksum = match Sum::of(&packet[start..]).checksum() {
            0 => 0xffff, // for UDP, 0 means none
            checksum => checksum,
        };
        let at = start + offset;
        packet[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
    }
    vec![packet]
}

/// The end where a direction begins.
const fn begin(direction: Direction) -> usize {
    match direction {
        Direction::Up => 0,
        Direction::Down => 1,
    }
}

type Mac = [u8; 6];

const ETHERNET_LEN: usize = 14;
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;

/// Frames taken in before something is given out.
const BATCH: usize = 32;

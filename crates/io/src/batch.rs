//! Small packets that go out together, one write right behind the other.
//!
//! The device takes packets one by one, and forwards each before its write returns. Where another CPU receives
//! them, each wakes that CPU by an interrupt, unless it still works on the one before: dear in a virtual
//! machine. Packets that leave back to back save most of these.

use std::io;

use flexcp_translator::{Frame, Transmit, supersedes};
use flexcp_wire::VNET_HEADER_LEN;

use crate::tun::{Tun, put, put_transmit};

/// Packets that have not been written yet, in the order in which they go out.
///
/// Nothing may be taken to be on its way before [`flush`](Self::flush). An ACK goes out only if no other packet says
/// the same before that ([`supersedes`]).
#[derive(Debug)]
pub struct SendBatch {
    bytes: Box<[u8]>,
    kept: [Kept; PACKETS],
    len: usize,
    failed: u64,
    superseded: u64,
}

/// One of them.
#[derive(Clone, Copy, Default, Debug)]
struct Kept {
    /// Where it ends in `bytes`; its virtio-net header comes first.
    end: usize,
    /// Its ports, as they stand in it.
    ports: Option<[u8; 4]>,
    new_ack: bool,
    superseded: bool,
}

impl SendBatch {
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        Self {
            bytes: vec![0; BYTES].into_boxed_slice(),
            kept: [Kept::default(); PACKETS],
            len: 0,
            failed: 0,
            superseded: 0,
        }
    }

    /// Keeps the frame as it stands now; one that is large is written behind what is kept.
    pub fn send(&mut self, tun: &Tun, frame: &mut Frame<'_>) {
        if frame.packet().len() > LARGEST {
            self.leave_out(self.superseded_by(frame.packet()));
            self.send_at_once(tun, frame);
            return;
        }
        let new_ack = frame.is_new_ack();
        let written = put(frame, self.room());
        self.keep(tun, written, new_ack);
    }

    /// Writes the frame behind what is kept.
    pub fn send_at_once(&mut self, tun: &Tun, frame: &mut Frame<'_>) {
        self.flush(tun);
        self.failed += u64::from(tun.send(frame).is_err());
    }

    /// Keeps a packet that the translator made, see [`Tun::send_transmit`], or writes it.
    pub fn send_transmit(&mut self, tun: &Tun, transmit: &Transmit, frame_buffer: &[u8]) {
        if transmit.packet_len() > LARGEST {
            self.flush(tun);
            self.failed += u64::from(tun.send_transmit(transmit, frame_buffer).is_err());
            return;
        }
        let written = put_transmit(transmit, frame_buffer, self.room());
        self.keep(tun, written, false);
    }

    /// Writes what is kept.
    pub fn flush(&mut self, tun: &Tun) {
        let mut start = 0;
        for kept in &self.kept[..self.len] {
            if !kept.superseded {
                self.failed += u64::from(tun.write(&self.bytes[start..kept.end]).is_err());
            }
            start = kept.end;
        }
        self.len = 0;
    }

    /// Packets that are kept.
    #[must_use]
    pub const fn kept(&self) -> usize {
        self.len
    }

    /// Packets that the device has not taken, or that did not fit their offload.
    #[must_use]
    pub const fn failed(&self) -> u64 {
        self.failed
    }

    /// ACKs that were not sent, as a packet kept behind them says the same.
    #[must_use]
    pub const fn superseded(&self) -> u64 {
        self.superseded
    }

    fn start_of(&self, index: usize) -> usize {
        index
            .checked_sub(1)
            .map_or(0, |before| self.kept[before].end)
    }

    fn room(&mut self) -> &mut [u8] {
        let start = self.start_of(self.len);
        &mut self.bytes[start..]
    }

    fn keep(&mut self, tun: &Tun, written: io::Result<usize>, new_ack: bool) {
        let Ok(written) = written else {
            self.failed += 1;
            return;
        };
        let start = self.start_of(self.len);
        let end = start + written;
        let packet = &self.bytes[start + VNET_HEADER_LEN..end];
        let (ports, earlier) = (ports_of(packet), self.superseded_by(packet));
        self.leave_out(earlier);
        self.kept[self.len] = Kept {
            end,
            ports,
            new_ack,
            superseded: false,
        };
        self.len += 1;
        if self.len == PACKETS || BYTES - end < VNET_HEADER_LEN + LARGEST {
            self.flush(tun);
        }
    }

    /// The ACK that is kept and that goes without saying when `packet` comes behind it.
    fn superseded_by(&self, packet: &[u8]) -> Option<usize> {
        let ports = ports_of(packet)?;
        let of_flow = |kept: &Kept| kept.ports == Some(ports);
        let last = self.kept[..self.len].iter().rposition(of_flow)?;
        let earlier = &self.bytes[self.start_of(last) + VNET_HEADER_LEN..self.kept[last].end];
        (self.kept[last].new_ack && supersedes(packet, earlier)).then_some(last)
    }

    fn leave_out(&mut self, ack: Option<usize>) {
        if let Some(index) = ack {
            self.kept[index].superseded = true;
            self.superseded += 1;
        }
    }
}

/// Where TCP has its ports. Other packets may seem to have some.
fn ports_of(packet: &[u8]) -> Option<[u8; 4]> {
    let ip_header_len = match packet.first()? >> 4 {
        4 => usize::from(packet[0] & 0xf) * 4,
        _ => 40,
    };
    packet.get(ip_header_len..)?.first_chunk().copied()
}

impl Default for SendBatch {
    fn default() -> Self {
        Self::new()
    }
}

/// Packets that wait for others at most.
const PACKETS: usize = 64;

/// Bytes of the largest packet that is kept: to write one is dearer than to copy it.
const LARGEST: usize = 8 << 10;

/// Bytes that wait for others at most.
const BYTES: usize = 256 << 10;

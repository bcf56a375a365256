//! Small packets that go out together, one write right behind the other.
//!
//! The device takes packets one by one, and forwards each before its write returns. Where another CPU receives
//! them, each wakes that CPU by an interrupt, unless it still works on the one before: dear in a virtual
//! machine. Packets that leave back to back save most of these.

use std::io;

use flexcp_translator::{Frame, Transmit};
use flexcp_wire::VNET_HEADER_LEN;

use crate::tun::{Tun, put, put_transmit};

/// Packets that have not been written yet, in the order in which they go out.
///
/// Nothing may be taken to be on its way before [`flush`](Self::flush).
#[derive(Debug)]
pub struct SendBatch {
    bytes: Box<[u8]>,
    /// Where each packet, its virtio-net header first, ends in `bytes`.
    ends: [usize; PACKETS],
    len: usize,
    failed: u64,
}

impl SendBatch {
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        Self {
            bytes: vec![0; PACKETS * (VNET_HEADER_LEN + LARGEST)].into_boxed_slice(),
            ends: [0; PACKETS],
            len: 0,
            failed: 0,
        }
    }

    /// Keeps the frame as it stands now; one that is large, or that `at_once` says, is written behind what is kept.
    pub fn send(&mut self, tun: &Tun, frame: &mut Frame<'_>, at_once: bool) {
        if at_once || frame.packet().len() > LARGEST {
            self.flush(tun);
            self.failed += u64::from(tun.send(frame).is_err());
            return;
        }
        let written = put(frame, self.room());
        self.keep(tun, written);
    }

    /// The same with a packet that the translator made, see [`Tun::send_transmit`].
    pub fn send_transmit(
        &mut self,
        tun: &Tun,
        transmit: &Transmit,
        frame_buffer: &[u8],
        at_once: bool,
    ) {
        if at_once || transmit.packet_len() > LARGEST {
            self.flush(tun);
            self.failed += u64::from(tun.send_transmit(transmit, frame_buffer).is_err());
            return;
        }
        let written = put_transmit(transmit, frame_buffer, self.room());
        self.keep(tun, written);
    }

    /// Writes what is kept.
    pub fn flush(&mut self, tun: &Tun) {
        let mut start = 0;
        for end in &self.ends[..self.len] {
            self.failed += u64::from(tun.write(&self.bytes[start..*end]).is_err());
            start = *end;
        }
        self.len = 0;
    }

    /// Packets that the device has not taken, or that did not fit their offload.
    #[must_use]
    pub const fn failed(&self) -> u64 {
        self.failed
    }

    fn start(&self) -> usize {
        self.len.checked_sub(1).map_or(0, |last| self.ends[last])
    }

    fn room(&mut self) -> &mut [u8] {
        let start = self.start();
        &mut self.bytes[start..]
    }

    fn keep(&mut self, tun: &Tun, written: io::Result<usize>) {
        let Ok(written) = written else {
            self.failed += 1;
            return;
        };
        self.ends[self.len] = self.start() + written;
        self.len += 1;
        if self.len == PACKETS {
            self.flush(tun);
        }
    }
}

impl Default for SendBatch {
    fn default() -> Self {
        Self::new()
    }
}

/// Packets that wait for others at most.
const PACKETS: usize = 16;

/// Bytes of the largest packet that is kept: any that an Ethernet link carries in one piece.
const LARGEST: usize = 1500;

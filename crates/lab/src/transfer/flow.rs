//! The two verbs both sides share: send a stretch of payload, receive one.

use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

use super::payload::Payload;
use super::report::Failure;

/// A step that failed, and which it was.
pub(crate) type Step<T> = Result<T, Failure>;

pub(crate) fn during<T>(what: &'static str, result: io::Result<T>) -> Step<T> {
    result.map_err(|error| Failure::new(what, &error.into()))
}

/// Sends payload and keeps count.
#[derive(Debug)]
pub(crate) struct Sending {
    payload: Payload,
    buffer: Vec<u8>,
    /// Bytes sent so far.
    pub(crate) sent: u64,
    pub(crate) longest_gap: Duration,
    /// Bytes a second.
    rate: Option<u64>,
}

impl Sending {
    pub(crate) fn new(seed: u64, buffer_len: usize) -> Self {
        let buffer = vec![0; buffer_len];
        Self {
            payload: Payload::new(seed),
            buffer,
            sent: 0,
            longest_gap: Duration::ZERO,
            rate: None,
        }
    }

    /// Sends no faster than this; a piece every ten milliseconds, or as often as there is one of 1000 bytes.
    pub(crate) fn paced(mut self, rate: Option<u64>) -> Self {
        if let Some(rate) = rate {
            let piece = usize::try_from((rate / 100).max(1000)).unwrap_or(usize::MAX);
            self.buffer.truncate(piece);
        }
        self.rate = rate;
        self
    }

    /// Sends the next `bytes` bytes.
    pub(crate) fn send(&mut self, to: &mut impl Write, bytes: u64) -> Step<()> {
        let (start, end) = (self.sent, self.sent + bytes);
        let began = Instant::now();
        let mut last = began;
        while self.sent < end {
            if let Some(rate) = self.rate {
                let micros = (self.sent - start).saturating_mul(1_000_000) / rate.max(1);
                let due = began + Duration::from_micros(micros);
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
                // The pause is ours, not a stall of the network.
                last = Instant::now();
            }
            let room = self.buffer.len();
            let len = usize::try_from(end - self.sent).map_or(room, |left| left.min(room));
            self.payload.fill(self.sent, &mut self.buffer[..len]);
            let mut chunk = &self.buffer[..len];
            while !chunk.is_empty() {
                let written = to.write(chunk);
                let now = Instant::now();
                self.longest_gap = self.longest_gap.max(now - last);
                let written = during("write", written)?;
                last = now;
                chunk = &chunk[written..];
                self.sent += written as u64;
            }
        }
        Ok(())
    }
}

/// Receives payload, checks it and keeps count.
#[derive(Debug)]
pub(crate) struct Receiving {
    payload: Payload,
    buffer: Vec<u8>,
    scratch: Vec<u8>,
    /// Bytes received so far and found right.
    pub(crate) received: u64,
    pub(crate) longest_gap: Duration,
    /// Bytes a second, for a slow reader.
    rate: Option<u64>,
}

impl Receiving {
    pub(crate) fn new(seed: u64, buffer_len: usize, rate: Option<u64>) -> Self {
        Self {
            payload: Payload::new(seed),
            buffer: vec![0; buffer_len],
            scratch: vec![],
            received: 0,
            longest_gap: Duration::ZERO,
            rate,
        }
    }

    /// Receives exactly `bytes` more; an early end is a failure.
    pub(crate) fn receive(&mut self, from: &mut impl Read, bytes: u64) -> Step<()> {
        let end = self.received + bytes;
        let start = self.received;
        let began = Instant::now();
        let mut last = began;
        while self.received < end {
            let room = self.buffer.len();
            let len = usize::try_from(end - self.received).map_or(room, |left| left.min(room));
            let read = from.read(&mut self.buffer[..len]);
            let now = Instant::now();
            self.longest_gap = self.longest_gap.max(now - last);
            let len = during("read", read)?;
            last = now;
            if len == 0 {
                let error = io::Error::from(io::ErrorKind::UnexpectedEof);
                return during("read", Err(error));
            }
            self.accept(len)?;
            if let Some(rate) = self.rate {
                let micros = (self.received - start).saturating_mul(1_000_000) / rate.max(1);
                let due = began + Duration::from_micros(micros);
                std::thread::sleep(due.saturating_duration_since(now));
                // The pause is ours, not a stall of the network.
                last = Instant::now();
            }
        }
        Ok(())
    }

    /// Checks the first `len` bytes of the buffer.
    fn accept(&mut self, len: usize) -> Step<()> {
        let checked = self
            .payload
            .check(self.received, &self.buffer[..len], &mut self.scratch);
        checked.map_err(|mismatch| Failure::new("check", &mismatch.into()))?;
        self.received += len as u64;
        Ok(())
    }
}

/// The peer must close now and send nothing more.
pub(crate) fn expect_end(from: &mut impl Read) -> Step<()> {
    match during("read", from.read(&mut [0; 1]))? {
        0 => Ok(()),
        _ => Err(Failure::new(
            "check",
            &anyhow!("more bytes than were asked for"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paced_sender_takes_its_time_and_sends_all() {
        let mut sending = Sending::new(1, 64 << 10).paced(Some(200_000));
        let mut got = vec![];
        let began = Instant::now();
        sending.send(&mut got, 9_000).expect("room");
        // Pieces of 2000 bytes, the last of five 40 ms after the first.
        assert!(began.elapsed() >= Duration::from_millis(40));
        let mut all = vec![0; 9_000];
        Payload::new(1).fill(0, &mut all);
        assert!(got == all, "what was sent is not what was to be sent");
    }
}

//! What a connection is to do, and how the client tells the server.

use std::io::{Read, Write};

use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, Serialize};

/// The order of events on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// The server sends, then closes.
    Down,
    /// The client sends and shuts down; the server says what it got and closes.
    Up,
    /// Both send at once, each shuts down when done.
    Both,
    /// The client sends and shuts down; only then the server sends, then closes.
    UpThenDown,
    /// The server sends and shuts down; only then the client sends, then closes.
    DownThenUp,
    /// The client sends `up` bytes, the server `down` bytes, `rounds` times.
    PingPong,
    /// The server sends; when the client has it all and says so, the server resets.
    ServerReset,
    /// The client reads `up` of the `down` bytes, then resets.
    ClientAbort,
    /// Nothing is sent; the client closes after a pause.
    Hold,
}

/// One connection's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// Order of events.
    pub mode: Mode,
    /// Bytes from the client to the server.
    pub up: u64,
    /// Bytes from the server to the client.
    pub down: u64,
    /// Number of exchanges ([`Mode::PingPong`]).
    pub rounds: u32,
    /// Pause between rounds, or time to hold the connection, in milliseconds.
    pub pause_ms: u64,
    /// Chooses the payload.
    pub seed: u64,
    /// Bytes a second that whoever sends sends no faster than; `None`: as fast as it can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<u64>,
}

impl Job {
    /// A job of this mode that moves that many bytes each way.
    pub fn new(mode: Mode, up: u64, down: u64) -> Self {
        Self {
            mode,
            up,
            down,
            rounds: 1,
            pause_ms: 0,
            seed: 1,
            rate: None,
        }
    }

    /// The server sends `bytes`.
    pub fn down(bytes: u64) -> Self {
        Self::new(Mode::Down, 0, bytes)
    }

    /// The client sends `bytes`.
    pub fn up(bytes: u64) -> Self {
        Self::new(Mode::Up, bytes, 0)
    }

    /// Both send `bytes` at once.
    pub fn both(bytes: u64) -> Self {
        Self::new(Mode::Both, bytes, bytes)
    }

    /// `rounds` exchanges of `bytes` each way.
    pub fn ping_pong(rounds: u32, bytes: u64) -> Self {
        Self {
            rounds,
            ..Self::new(Mode::PingPong, bytes, bytes)
        }
    }

    /// Connects, waits and closes.
    pub fn hold(pause_ms: u64) -> Self {
        Self::new(Mode::Hold, 0, 0).pause_ms(pause_ms)
    }

    /// Sets the pause between rounds, or the time to hold.
    pub fn pause_ms(mut self, pause_ms: u64) -> Self {
        self.pause_ms = pause_ms;
        self
    }

    /// Sets the seed of the payload.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Sets how fast either side sends, in bytes a second.
    pub fn rate(mut self, bytes_per_second: u64) -> Self {
        self.rate = Some(bytes_per_second);
        self
    }

    /// Seed of what the client sends.
    pub(crate) fn seed_up(&self) -> u64 {
        self.seed.wrapping_mul(2)
    }

    /// Seed of what the server sends.
    pub(crate) fn seed_down(&self) -> u64 {
        self.seed.wrapping_mul(2).wrapping_add(1)
    }

    pub(crate) fn send(&self, to: &mut impl Write) -> std::io::Result<()> {
        to.write_all(&padded(self))
    }

    /// `None` when the peer closed without a word.
    pub(crate) fn receive(from: &mut impl Read) -> Result<Option<Self>> {
        let mut line = [0; REQUEST_LEN];
        let mut have = 0;
        while have < REQUEST_LEN {
            match from.read(&mut line[have..])? {
                0 if have == 0 => return Ok(None),
                0 => anyhow::bail!("the request ended after {have} bytes"),
                n => have += n,
            }
        }
        serde_json::from_slice(&line)
            .map(Some)
            .context("not a request of ours")
    }
}

/// What the server says at the end about what it received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Verdict {
    /// Bytes received and found right.
    pub(crate) up: u64,
    /// Longest time between two reads, in microseconds.
    pub(crate) gap_us: u64,
}

impl Verdict {
    pub(crate) fn to_bytes(self) -> [u8; REQUEST_LEN] {
        padded(&self)
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self> {
        ensure!(
            bytes.len() == REQUEST_LEN,
            "the server's verdict is {} bytes long",
            bytes.len()
        );
        serde_json::from_slice(bytes).context("not a verdict of ours")
    }
}

/// JSON and blanks, always of the same length.
fn padded(message: &impl Serialize) -> [u8; REQUEST_LEN] {
    let mut line = [b' '; REQUEST_LEN];
    let json = serde_json::to_vec(message).unwrap_or_default();
    assert!(json.len() < REQUEST_LEN, "request too long");
    line[..json.len()].copy_from_slice(&json);
    line[REQUEST_LEN - 1] = b'\n';
    line
}

/// Length of a request and of a verdict.
pub(crate) const REQUEST_LEN: usize = 224;

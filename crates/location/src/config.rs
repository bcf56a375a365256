//! What a locator is to do.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::net::SocketAddr;
use core::time::Duration;

use crate::choice::Margin;
use crate::probe::{self, Key};
use crate::rate::Rate;
use crate::train;

/// An aggregation server.
#[derive(Clone, Debug)]
pub struct Server {
    /// Its name, for the table and the sentences.
    pub name: String,
    /// Where it answers probes. Its family says which headers count.
    pub probe: SocketAddr,
    /// The key that it shares with this box; without one it is not probed, and known by handshakes and transfers alone.
    pub key: Option<Key>,
}

/// An uplink.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Uplink {
    /// Its name.
    pub name: String,
    /// The rate towards the box that the operator knows it to have: no estimate goes beyond it.
    pub line: Option<Rate>,
}

/// What a locator is to do.
#[derive(Clone, Debug)]
pub struct Config {
    /// The servers, in the operator's order; at least one.
    pub servers: Vec<Server>,
    /// The uplinks; at least one.
    pub uplinks: Vec<Uplink>,
    /// The content server to which servers are asked for their own leg, if to any.
    pub content: Option<SocketAddr>,
    /// Time between two rounds of probes over a path. It grows as needed to keep within the budget.
    pub interval: Duration,
    /// How far a round is moved at random, in thousandths of the interval, to either side.
    pub jitter: u32,
    /// How long another server has to be better before it is used, and the shortest time between two switches.
    pub hold: Duration,
    /// By how much it has to be better.
    pub margin: Margin,
    /// Without a connection for so long there are no probes.
    pub idle: Duration,
    /// Most bytes of probes in any hour, both ways, with headers.
    pub bytes_per_hour: u64,
    /// Most of them for one server.
    pub server_bytes_per_hour: u64,
    /// Bytes of a datagram in a train: at most what no path has to fragment.
    pub packet: u16,
    /// Most packets of a train.
    pub train: u16,
}

impl Config {
    /// Most servers.
    pub const SERVERS: usize = 32;
    /// Most uplinks.
    pub const UPLINKS: usize = 16;

    /// With what is usual.
    #[must_use]
    pub const fn new(servers: Vec<Server>, uplinks: Vec<Uplink>) -> Self {
        Self {
            servers,
            uplinks,
            content: None,
            interval: Duration::from_secs(300),
            jitter: 100,
            hold: Duration::from_secs(120),
            margin: Margin(100),
            idle: Duration::from_secs(600),
            bytes_per_hour: 64 << 20,
            server_bytes_per_hour: 32 << 20,
            packet: 1200,
            train: train::MOST,
        }
    }

    /// Whether it can be done.
    ///
    /// # Errors
    /// [`ConfigError`] says what is wrong.
    pub fn check(&self) -> Result<(), ConfigError> {
        let count = |what, count: usize, most| match count {
            0 => Err(ConfigError::None(what)),
            count if count > most => Err(ConfigError::TooMany { what, count, most }),
            _ => Ok(()),
        };
        count("servers", self.servers.len(), Self::SERVERS)?;
        count("uplinks", self.uplinks.len(), Self::UPLINKS)?;
        between("interval", self.interval.as_secs(), 10, 86_400)?;
        between("jitter", self.jitter.into(), 0, 500)?;
        between("hold", self.hold.as_secs(), 1, 86_400)?;
        between("margin", self.margin.0.into(), 0, 10_000)?;
        between("idle", self.idle.as_secs(), 1, 86_400)?;
        let least = u64::from(train::LEAST) * u64::from(self.packet) * 4;
        between("bytes_per_hour", self.bytes_per_hour, least, u64::MAX)?;
        between(
            "server_bytes_per_hour",
            self.server_bytes_per_hour,
            least,
            u64::MAX,
        )?;
        let longest = probe::LONGEST as u64;
        between("packet", self.packet.into(), 500, longest)?;
        let (least, most) = (train::LEAST.into(), train::MOST.into());
        between("train", self.train.into(), least, most)
    }
}

fn between(what: &'static str, is: u64, least: u64, most: u64) -> Result<(), ConfigError> {
    if (least..=most).contains(&is) {
        return Ok(());
    }
    Err(ConfigError::Range {
        what,
        is,
        least,
        most,
    })
}

/// What is wrong with a configuration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConfigError {
    /// There are none of these.
    None(&'static str),
    /// There are too many of these.
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many there are.
        count: usize,
        /// How many there may be.
        most: usize,
    },
    /// A value is out of its range.
    Range {
        /// Which; times are in seconds.
        what: &'static str,
        /// What it is.
        is: u64,
        /// Its least value.
        least: u64,
        /// Its greatest value.
        most: u64,
    },
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None(what) => write!(f, "there are no {what}: name one at least"),
            Self::TooMany { what, count, most } => {
                write!(f, "there are {count} {what}: name {most} at most")
            }
            Self::Range {
                what,
                is,
                least,
                most,
            } => write!(f, "{what} is {is}: it has to be from {least} to {most}"),
        }
    }
}

impl core::error::Error for ConfigError {}

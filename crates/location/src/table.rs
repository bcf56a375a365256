//! The table that a choice is made by: the paper's `<(B_1, D_1), ..., (B_N, D_N), (Bs, Ds)>` for each server.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use crate::estimate::Estimate;
use crate::leg::Leg;
use crate::rate::Rate;
use crate::time::Time;

/// What is known of all servers.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Table {
    /// Names of the uplinks.
    pub uplinks: Vec<String>,
    /// The servers, in the order of the configuration.
    pub servers: Vec<ServerRow>,
    /// Each path has been measured, or has been found not to be measurable.
    pub is_complete: bool,
}

/// What is known of a server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServerRow {
    /// Its name.
    pub name: String,
    /// One for each uplink.
    pub paths: Vec<PathRow>,
    /// Its own leg, as it reports it.
    pub leg: Option<Leg>,
    /// When that was measured.
    pub leg_at: Option<Time>,
    /// Whether it can be reached.
    pub reach: Reach,
    /// Whether it answers probes.
    pub probing: Probing,
}

/// What is known of a server over one uplink.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PathRow {
    /// There is such a path: the uplink is there, and has an address of the server's family.
    pub is_usable: bool,
    /// Whether the server has answered over it of late; `None` before it was tried.
    pub is_alive: Option<bool>,
    /// Round trip.
    pub delay: Option<Duration>,
    /// When that was measured.
    pub delay_at: Option<Time>,
    /// Bandwidth towards the box.
    pub down: Option<Estimate>,
    /// Bandwidth towards the server.
    pub up: Option<Estimate>,
    /// Probes of the last round that were lost, in thousandths.
    pub loss: u32,
}

/// Whether a server can be reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    /// It has answered over one of the uplinks at least.
    Yes,
    /// It has not answered over any.
    No,
    /// It was not tried yet.
    Unknown,
}

/// Whether a server answers probes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Probing {
    /// It does.
    Answers,
    /// It has a key, but does not answer: it is known by handshakes and real transfers alone.
    Silent,
    /// It has no key: it is known by handshakes and real transfers alone.
    Keyless,
    /// It was not tried yet.
    Unknown,
}

impl fmt::Display for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Yes => "reachable",
            Self::No => "not reachable",
            Self::Unknown => "not tried yet",
        })
    }
}

impl fmt::Display for Probing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Answers => "answers probes",
            Self::Silent => "does not answer probes: handshakes and transfers alone",
            Self::Keyless => "has no key: handshakes and transfers alone",
            Self::Unknown => "not probed yet",
        })
    }
}

impl ServerRow {
    /// Uplinks whose rate is known and counts.
    pub fn counting(&self) -> impl Iterator<Item = (usize, Rate)> + '_ {
        self.paths.iter().enumerate().filter_map(|(uplink, path)| {
            let counts = path.is_usable && path.is_alive != Some(false);
            path.down.filter(|_| counts).map(|down| (uplink, down.rate))
        })
    }

    /// The sum of the `B_i`; `None` when none is known.
    #[must_use]
    pub fn sum(&self) -> Option<Rate> {
        self.counting().next()?;
        Some(self.counting().map(|(_, rate)| rate).sum())
    }

    /// What the server's own leg lets through, if it is known.
    #[must_use]
    pub fn own_rate(&self) -> Option<Rate> {
        self.leg.and_then(|leg| leg.rate)
    }

    /// The paper's aggregation bandwidth, `min(B_1 + ... + B_N, Bs)`. A leg that is not known bounds nothing.
    #[must_use]
    pub fn throughput(&self) -> Option<Rate> {
        let sum = self.sum()?;
        Some(self.own_rate().map_or(sum, |own| own.min(sum)))
    }

    /// The delay to the content server: the shortest of the `D_i`, and `Ds` if it is known. A connection's opening and its
    /// first bytes take the shortest path.
    #[must_use]
    pub fn delay(&self) -> Option<Duration> {
        let usable = |path: &&PathRow| path.is_usable && path.is_alive != Some(false);
        let paths = self.paths.iter().filter(usable);
        let shortest = paths.filter_map(|path| path.delay).min()?;
        let own = self.leg.and_then(|leg| leg.delay);
        Some(shortest + own.unwrap_or_default())
    }
}

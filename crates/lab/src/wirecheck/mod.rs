//! The rules of the wire, checked on captures that were taken on both sides of FlexCP.
//!
//! Files are merged by time. A capture does not say which way a packet went: who has sent a flow's SYN tells, the client to a
//! proxy, FlexCP over a box's uplinks, so flows whose SYN was not captured can't be judged.

mod flows;
mod frames;
mod packets;
mod source;

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail, ensure};
use flexcp_invariants::{Checker, Observation, Options, Violation};
pub use flexcp_invariants::{Preamble, Rule};
use flexcp_wire::{ChecksumState, Offload};

use flows::{Flows, Side};
pub use packets::{Taken, packets};
use source::{Belief, Head, Source};

/// Captures to check.
#[derive(Clone, Debug)]
pub struct WireCheck {
    /// From the interfaces on the side of the ends with MPTCP: of a proxy's clients, or a box's uplinks.
    pub client: Vec<PathBuf>,
    /// From those on the side of the ends with TCP: of a proxy's servers, or the LAN of a box.
    pub server: Vec<PathBuf>,
    /// The interfaces cut packets and complete checksums by software before they were captured
    /// (`ethtool -K ... off`), so that lengths and checksums are those of the wire.
    pub offloads_off: bool,
    /// Programs in the kernel translate, too: those of two processors, on which packets of two subflows have come, send
    /// at the same time, and which packet reaches a device first is chance.
    pub offload: bool,
    /// FlexCP is an aggregation box: the ends with TCP open, and it asks the others for MPTCP. How each opening goes is judged as well.
    pub aggregates: bool,
    /// Where FlexCP has clients name their server, and how: what they say before their stream is judged as well. Of a box, its
    /// aggregation servers, and how they are spoken to.
    pub explicit: Vec<(SocketAddr, Preamble)>,
}

/// What the captures say.
#[derive(Debug)]
pub struct Findings {
    /// TCP packets that were judged.
    pub packets: u64,
    /// Flows whose SYN was seen, of the ends with MPTCP and of those with TCP.
    pub flows: [usize; 2],
    /// TCP packets of flows whose SYN was not captured, or came to a box from the far end of an uplink.
    pub strays: u64,
    /// Packets that those of another processor overtook: by 50 us at most, ACKs alone by 20 ms.
    pub overtaken: u64,
    /// How often a rule was broken.
    pub violations: u64,
    /// The first of them.
    pub found: Vec<Found>,
}

/// A broken rule and the packet that broke it.
#[derive(Debug)]
pub struct Found {
    /// The file.
    pub file: PathBuf,
    /// The packet's place in it, from 1.
    pub number: u64,
    /// Which rule, when (microseconds since 1970), and how.
    pub violation: Violation,
}

impl WireCheck {
    /// Checks all files together. A rule is broken if it is whichever of place and clock is believed.
    ///
    /// # Errors
    ///
    /// A file can't be read, or nothing in the captures can be judged.
    pub fn run(&self) -> Result<Findings> {
        let by_place = self.read(Belief::Place)?;
        if by_place.violations == 0 {
            return Ok(by_place);
        }
        Ok(by_place.unless_clean(self.read(Belief::Clock)?))
    }

    fn read(&self, belief: Belief) -> Result<Findings> {
        let mut files = vec![];
        for (side, paths) in [(Side::Client, &self.client), (Side::Server, &self.server)] {
            for path in paths {
                files.push(Source::open(side, path, self.offload, belief)?);
            }
        }
        let options = Options {
            checksums: self.offloads_off,
            segments: self.offloads_off,
            asks: self.aggregates,
            ..Options::capture()
        };
        let mut judge = Judge::new(options);
        let mut flows = Flows::of_proxy();
        if self.aggregates {
            judge.checker.expect_errands(self.explicit.iter().copied());
            flows = Flows::of_box(&self.client)?;
        } else {
            for &(listen, preamble) in &self.explicit {
                judge.checker.expect_preambles(listen, preamble);
            }
        }
        for file in &mut files {
            file.advance(&mut flows)?;
        }
        // What comes in goes first: what went out in the same moment may be caused by it.
        while let Some(file) = files
            .iter_mut()
            .filter(|file| file.head.is_some())
            .min_by_key(|file| file.order())
        {
            if let Some(head) = file.head.take() {
                judge.packet(file.frames.path(), &head);
            }
            file.advance(&mut flows)?;
        }
        let strays = files.iter().map(|file| file.strays).sum();
        let overtaken = files.iter().map(|file| file.overtaken).sum();
        judge.findings(flows.count(), strays, overtaken)
    }
}

/// So many packets may be overtaken in any capture, and one in a thousand.
const OVERTAKEN_FEW: u64 = 2;

/// Puts packets before the checker and remembers which one broke a rule.
struct Judge {
    checker: Checker,
    found: Vec<Found>,
    time: u64,
}

impl Judge {
    fn new(options: Options) -> Self {
        Self {
            checker: Checker::new(options, None),
            found: vec![],
            time: 0,
        }
    }

    fn packet(&mut self, file: &Path, head: &Head) {
        self.time = self.time.max(head.frame.time / 1000);
        let offload = Offload {
            checksum: ChecksumState::Complete,
            gso: None,
        };
        let seen = Observation::whole(self.time, head.point, &head.frame.packet, offload);
        let Some(seen) = seen else {
            return;
        };
        self.checker.observe(&seen);
        for violation in self.checker.violations().iter().skip(self.found.len()) {
            self.found.push(Found {
                file: file.to_owned(),
                number: head.frame.number,
                violation: violation.clone(),
            });
        }
    }

    fn findings(self, flows: [usize; 2], strays: u64, overtaken: u64) -> Result<Findings> {
        for (side, flows) in ["MPTCP", "TCP"].iter().zip(flows) {
            if flows == 0 {
                bail!("no SYN in the captures of the side with {side}: nothing can be judged");
            }
        }
        Ok(Findings {
            packets: self.checker.packets(),
            flows,
            strays,
            overtaken,
            violations: self.checker.violation_count(),
            found: self.found,
        })
    }
}

impl Findings {
    /// These, unless another reading of the same captures breaks no rule.
    fn unless_clean(self, other: Self) -> Self {
        if other.violations == 0 { other } else { self }
    }

    /// # Errors
    ///
    /// Rules were broken; the text tells which, and by which packets. Or too many packets were overtaken.
    pub fn ok(&self) -> Result<()> {
        ensure!(self.violations == 0, "{self}");
        let few = OVERTAKEN_FEW + self.packets / 1000;
        ensure!(self.overtaken <= few, "{self}; {few} may be overtaken");
        Ok(())
    }
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for found in &self.found {
            let file = found.file.file_name().unwrap_or_default().display();
            writeln!(f, "{file} #{}: {}", found.number, found.violation)?;
        }
        let [client, server] = self.flows;
        write!(
            f,
            "{} packets of {client} flows with MPTCP and {server} with TCP: {} violations",
            self.packets, self.violations
        )?;
        if self.overtaken > 0 {
            write!(f, "; {} packets overtaken", self.overtaken)?;
        }
        if self.strays > 0 {
            write!(
                f,
                "; {} packets of flows without a SYN, or of others, not judged",
                self.strays
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_is_broken_only_if_it_is_by_both_readings() {
        let read = |violations, packets| Findings {
            packets,
            flows: [1, 1],
            strays: 0,
            overtaken: 0,
            violations,
            found: vec![],
        };
        assert_eq!(read(2, 1).unless_clean(read(0, 2)).packets, 2);
        assert_eq!(read(2, 1).unless_clean(read(1, 2)).packets, 1);
    }

    #[test]
    fn many_packets_overtaken_are_a_finding() {
        let overtaken = |overtaken| Findings {
            packets: 3000,
            flows: [1, 1],
            strays: 0,
            overtaken,
            violations: 0,
            found: vec![],
        };
        assert!(overtaken(5).ok().is_ok());
        assert!(overtaken(6).ok().is_err());
    }
}

//! The kernel's own counters as oracle: MIBs, interface bytes, the kernel log.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::process::Command;

use anyhow::{Context as _, Result};
use serde::Serialize;

use crate::namespace::Namespace;
use crate::process::text;
use crate::topology::Lab;

/// All MIB counters of a namespace at one moment.
///
/// Those of `MPTcpExt` and `TcpExt` have their bare names, which do not
/// collide; those of /proc/net/snmp are prefixed: `TcpInCsumErrors`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Mib(BTreeMap<String, i64>);

impl Mib {
    /// Reads the counters of a namespace.
    pub fn read(namespace: &Namespace) -> Result<Self> {
        let mut mib = Self::default();
        for file in ["netstat", "snmp"] {
            mib.parse(&namespace.proc_net(file)?);
        }
        // One counter a line there: "Ip6InReceives   12".
        for line in namespace.proc_net("snmp6")?.lines() {
            let mut words = line.split_whitespace();
            if let (Some(name), Some(Ok(value))) = (words.next(), words.next().map(str::parse)) {
                mib.0.insert(name.to_owned(), value);
            }
        }
        Ok(mib)
    }

    /// A counter's value; 0 for one that this kernel does not have.
    pub fn get(&self, name: &str) -> i64 {
        self.0.get(name).copied().unwrap_or(0)
    }

    /// What moved since `before`, by how much.
    pub fn since(&self, before: &Self) -> Self {
        let moved = self
            .0
            .iter()
            .map(|(name, value)| (name.clone(), value - before.get(name)));
        Self(moved.filter(|(_, delta)| *delta != 0).collect())
    }

    /// All counters and their values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, i64)> {
        self.0.iter().map(|(name, value)| (name.as_str(), *value))
    }

    /// The counters that tell what happened.
    pub fn telling(&self) -> Self {
        let telling = |name: &str| {
            let prefixes = [
                "MP",
                "DSS",
                "Dss",
                "Icmp",
                "TcpRetrans",
                "TcpOutRsts",
                "TcpEstabResets",
            ];
            FORBIDDEN.contains(&name) || prefixes.iter().any(|prefix| name.starts_with(prefix))
        };
        let kept = self.0.iter().filter(|(name, _)| telling(name));
        Self(kept.map(|(name, value)| (name.clone(), *value)).collect())
    }

    /// For whoever reads a failure.
    fn story(&self) -> String {
        let telling = self.telling();
        let words = telling
            .iter()
            .map(|(name, value)| format!("{name} {value}"));
        words.collect::<Vec<_>>().join(", ")
    }

    /// Reads pairs of lines: names, then values.
    fn parse(&mut self, text: &str) {
        let mut lines = text.lines();
        while let (Some(names), Some(values)) = (lines.next(), lines.next()) {
            let group = names.split(':').next().unwrap_or_default();
            let prefix = if group.ends_with("Ext") { "" } else { group };
            let pairs = names
                .split_whitespace()
                .zip(values.split_whitespace())
                .skip(1);
            for (name, value) in pairs {
                self.0
                    .insert(format!("{prefix}{name}"), value.parse().unwrap_or(0));
            }
        }
    }
}

/// Counters that must not move in a run unless the case says so.
///
/// O3 of the reliability brief, for client and servers alike.
pub const FORBIDDEN: &[&str] = &[
    "DSSNotMatching",
    "DSSNoMatchTCP",
    "DSSCorruptionFallback",
    "DSSCorruptionReset",
    "DataCsumErr",
    "NoDSSInWindow",
    "RcvWndConflict",
    "MPJoinAckHMacFailure",
    "MPJoinSynAckHMacFailure",
    "AddAddrDrop",
    "MPCapableFallbackACK",
    "MPCapableFallbackSYNACK",
    "MPCapableDataFallback",
    "DssFallback",
    "SimultConnectFallback",
    "FallbackFailed",
    "InfiniteMapRx",
    "InfiniteMapTx",
    "MPFailRx",
    "MPFailTx",
    "Blackhole",
    "MPRstRx",
    "MPRstTx",
    "MPFastcloseRx",
    "MPFastcloseTx",
    "PAWSEstab",
    "PAWSActive",
    "PAWSOldAck",
    "TSEcrRejected",
    "TCPChallengeACK",
    "TCPSACKReneging",
    "TCPSACKDiscard",
    "BeyondWindow",
    "OutOfWindowIcmps",
    "TCPZeroWindowDrop",
    "TCPACKSkippedSynRecv",
    "TCPACKSkippedPAWS",
    "TCPACKSkippedSeq",
    "TCPACKSkippedFinWait2",
    "TCPACKSkippedTimeWait",
    "TCPACKSkippedChallenge",
    "TcpInCsumErrors",
    "TcpInErrs",
];

/// What FlexCP cannot rule out. `PAWSEstab`: the kernel reorders packets between FlexCP and an end when
/// their sender moves to another core, or the offload takes over from a worker, and the timestamps of the later
/// one are newer; `PAWSOldAck` and `TCPACKSkippedPAWS` are the same of a bare ACK and of the answer.
/// `TCPSACKReneging`: a SACK says that a subflow has the data; when it dies with a hole before them, the data come again.
pub const REORDERED_OR_RENEGED: &[&str] = &[
    "PAWSEstab",
    "PAWSOldAck",
    "TCPACKSkippedPAWS",
    "TCPSACKReneging",
];

/// What the kernel's own MPTCP sender brings about at its receiver now and then.
///
/// It takes the connection's window from the subflow at hand, whose own idea of
/// it may be of another moment, and so sends beyond the receiver's window. Seen
/// from kernel to kernel as well as through FlexCP; captures of the latter show
/// no window that is wider than what the server gave.
pub const WINDOW_OVERRUN: &[&str] = &["BeyondWindow", "TCPZeroWindowDrop", "TCPACKSkippedSeq"];

/// Reasons why an MPTCP connection may have become a TCP connection.
pub const FALLBACKS: &[&str] = &[
    "MPCapableFallbackACK",
    "MPCapableFallbackSYNACK",
    "MPCapableDataFallback",
    "DssFallback",
    "InfiniteMapRx",
    "InfiniteMapTx",
    "SimultConnectFallback",
    "MD5SigFallback",
    "DSSCorruptionFallback",
    "Blackhole",
];

/// Which end a counter belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The client.
    Client,
    /// All servers, added up.
    Servers,
}

/// Watches the counters of both ends, and the kernel log, over a run.
#[derive(Debug)]
pub struct Oracle {
    client: Mib,
    servers: Vec<Mib>,
    log: KernelLog,
}

impl Oracle {
    /// Takes the values from which deltas are counted.
    pub fn start(lab: &Lab) -> Result<Self> {
        Ok(Self {
            client: Mib::read(lab.client())?,
            servers: lab.servers().iter().map(Mib::read).collect::<Result<_>>()?,
            log: KernelLog::mark()?,
        })
    }

    /// What moved at the client since the start.
    pub fn client(&self, lab: &Lab) -> Result<Mib> {
        Ok(Mib::read(lab.client())?.since(&self.client))
    }

    /// What moved at one server, from 1, since the start.
    pub fn server(&self, lab: &Lab, number: u8) -> Result<Mib> {
        Ok(Mib::read(lab.server(number))?.since(&self.servers[usize::from(number) - 1]))
    }

    /// Checks a run against what the case expects; an error lists all complaints.
    pub fn check(&self, lab: &Lab, expect: &Expect) -> Result<()> {
        let client = self.client(lab)?;
        let mut servers = Mib::default();
        for number in (1..).take(lab.servers().len()) {
            for (name, value) in self.server(lab, number)?.iter() {
                *servers.0.entry(name.to_owned()).or_default() += value;
            }
        }
        let mut complaints = vec![];
        for (end, mib) in [(End::Client, &client), (End::Servers, &servers)] {
            expect.judge(end, mib, &mut complaints);
        }
        complaints.extend(self.log.complaints()?);
        if complaints.is_empty() {
            return Ok(());
        }
        let story = format!(
            "{}\n  client: {}\n  servers: {}",
            complaints.join("; "),
            client.story(),
            servers.story()
        );
        Err(Complaints(story).into())
    }
}

/// Counters that moved, or did not, against what the case expects.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Complaints(String);

/// What a case expects of the counters beyond [`FORBIDDEN`] ones staying at 0.
#[derive(Clone, Debug, Default)]
pub struct Expect {
    /// Names that may move although they are forbidden.
    allowed: Vec<(Option<End>, &'static str)>,
    ranges: Vec<(End, &'static str, RangeInclusive<i64>)>,
}

impl Expect {
    /// No forbidden counter moves.
    pub fn clean() -> Self {
        Self::default()
    }

    /// This one may move, at either end.
    pub fn allow(mut self, name: &'static str) -> Self {
        self.allowed.push((None, name));
        self
    }

    /// These may move, at either end.
    pub fn allow_all(mut self, names: &[&'static str]) -> Self {
        self.allowed.extend(names.iter().map(|name| (None, *name)));
        self
    }

    /// These may move at one end.
    pub fn allow_at(mut self, end: End, names: &[&'static str]) -> Self {
        self.allowed
            .extend(names.iter().map(|name| (Some(end), *name)));
        self
    }

    /// This one moves by exactly that much.
    pub fn exactly(self, end: End, name: &'static str, value: i64) -> Self {
        self.between(end, name, value..=value)
    }

    /// This one moves by that much or more.
    pub fn at_least(self, end: End, name: &'static str, value: i64) -> Self {
        self.between(end, name, value..=i64::MAX)
    }

    /// This one moves by an amount in `range`.
    pub fn between(mut self, end: End, name: &'static str, range: RangeInclusive<i64>) -> Self {
        self.ranges.push((end, name, range));
        self.allowed.push((Some(end), name));
        self
    }

    fn judge(&self, end: End, mib: &Mib, complaints: &mut Vec<String>) {
        for name in FORBIDDEN {
            let allowed = |(at, allowed): &(Option<End>, &str)| {
                allowed == name && at.is_none_or(|at| at == end)
            };
            let value = mib.get(name);
            if value != 0 && !self.allowed.iter().any(allowed) {
                complaints.push(format!("{end:?}: {name} moved by {value}"));
            }
        }
        for (_, name, range) in self.ranges.iter().filter(|(at, ..)| *at == end) {
            let value = mib.get(name);
            if !range.contains(&value) {
                let (low, high) = range.clone().into_inner();
                let wanted = match (low, high) {
                    (low, i64::MAX) => format!("{low} or more"),
                    (low, high) if low == high => low.to_string(),
                    (low, high) => format!("{low} to {high}"),
                };
                complaints.push(format!(
                    "{end:?}: {name} moved by {value}, expected {wanted}"
                ));
            }
        }
    }
}

/// A place in the kernel's log; trouble reported after it is a failure.
#[derive(Debug)]
pub struct KernelLog {
    /// Number of alarming lines that were there already.
    alarms: usize,
}

impl KernelLog {
    /// Remembers the place.
    pub fn mark() -> Result<Self> {
        Ok(Self {
            alarms: alarms()?.len(),
        })
    }

    pub(crate) fn complaints(&self) -> Result<Vec<String>> {
        let alarms = alarms()?;
        let new = alarms.get(self.alarms..).unwrap_or_default();
        Ok(new
            .iter()
            .map(|line| format!("kernel log: {line}"))
            .collect())
    }
}

fn alarms() -> Result<Vec<String>> {
    let log = text(Command::new("dmesg").arg("--notime")).context("reading the kernel log")?;
    let alarming = |line: &&str| ALARMS.iter().any(|alarm| line.contains(alarm));
    Ok(log.lines().filter(alarming).map(str::to_owned).collect())
}

/// Bytes and packets of one interface, as its owner sees them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct InterfaceBytes {
    /// Bytes received.
    pub rx: u64,
    /// Bytes sent.
    pub tx: u64,
}

/// Reads the byte counters of every interface in a namespace.
pub fn interfaces(namespace: &Namespace) -> Result<BTreeMap<String, InterfaceBytes>> {
    let text = namespace.proc_net("dev")?;
    let rows = text.lines().filter_map(|line| {
        let (name, numbers) = line.split_once(':')?;
        let numbers: Vec<u64> = numbers
            .split_whitespace()
            .map(str::parse)
            .collect::<Result<_, _>>()
            .ok()?;
        let counts = InterfaceBytes {
            rx: *numbers.first()?,
            tx: *numbers.get(8)?,
        };
        Some((name.trim().to_owned(), counts))
    });
    Ok(rows.collect())
}

const ALARMS: &[&str] = &["WARNING:", "BUG:", "Oops", "general protection fault"];

#[cfg(test)]
mod tests {
    use super::*;

    fn mib(text: &str) -> Mib {
        let mut mib = Mib::default();
        mib.parse(text);
        mib
    }

    #[test]
    fn netstat_pairs_names_with_values() {
        let mib = mib("TcpExt: A B\nTcpExt: 1 2\nTcp: InErrs MaxConn\nTcp: 3 -1\n");
        assert_eq!((mib.get("A"), mib.get("B")), (1, 2));
        assert_eq!((mib.get("TcpInErrs"), mib.get("TcpMaxConn")), (3, -1));
        assert_eq!(mib.get("Missing"), 0);
    }

    #[test]
    fn forbidden_counter_complains_unless_allowed() {
        let moved = mib("MPTcpExt: DssFallback MPJoinSynAckRx\nMPTcpExt: 1 1\n");
        let mut complaints = vec![];
        Expect::clean().judge(End::Client, &moved, &mut complaints);
        assert_eq!(complaints, ["Client: DssFallback moved by 1"]);

        complaints.clear();
        Expect::clean()
            .allow("DssFallback")
            .judge(End::Client, &moved, &mut complaints);
        assert!(complaints.is_empty());

        let expect = Expect::clean()
            .exactly(End::Client, "DssFallback", 1)
            .exactly(End::Client, "MPJoinSynAckRx", 2);
        expect.judge(End::Client, &moved, &mut complaints);
        assert_eq!(
            complaints,
            ["Client: MPJoinSynAckRx moved by 1, expected 2"]
        );
    }
}

//! The kernel's own counters as oracle: MIBs and interface bytes.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use anyhow::Result;
use serde::Serialize;

use crate::complaint::{Complaint, Complaints};
use crate::conduct::{Allowance, Conduct};
use crate::kernel_log::KernelLog;
use crate::namespace::Namespace;
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

    /// Whether this kernel counts that. To be asked of what was read, not of what moved.
    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Of these counters, for judges' own tests.
    #[cfg(test)]
    pub(crate) fn of(counters: &[(&str, i64)]) -> Self {
        let owned = counters
            .iter()
            .map(|(name, value)| ((*name).to_owned(), *value));
        Self(owned.collect())
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

/// What a subflow that dies with a hole before SACKed data brings about: the SACK said that the subflow has them, and
/// the data come again.
pub const RENEGED: &[&str] = &["TCPSACKReneging"];

/// What an end sees of packets that overtook each other between FlexCP and it: the timestamps of the later one are
/// newer. `PAWSOldAck` and `TCPACKSkippedPAWS` are the same of a bare ACK and of the answer.
pub const OVERTAKEN: &[&str] = &["PAWSEstab", "PAWSOldAck", "TCPACKSkippedPAWS"];

/// The same of a bare ACK whose timestamp is of the same millisecond as that of the data which overtook it: what is old
/// about it is its sequence number, and the kernel answers one such ACK in half a second (`tcp_oow_rate_limited`).
pub(crate) const OVERTAKEN_WITHIN_A_TICK: &[&str] = &["TCPACKSkippedSeq"];

/// What a client gets from itself for packets that it could not send whole, which its `IpFragFails` counts.
///
/// At the first mapping with numbers of 64 bits its data ACKs become longer on all subflows (`use_64bit_ack`), and what
/// another processor is just about to send has been measured for the shorter ones.
const TOO_LONG_FOR_ITSELF: &[&str] = &["OutOfWindowIcmps"];

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

    /// Checks a run without FlexCP against what the case expects of both ends and the kernel's log; an error lists
    /// all complaints.
    pub fn check(&self, lab: &Lab, expect: &Expect) -> Result<()> {
        self.judge(lab, expect, None)
    }

    /// The same of a run through FlexCP, which is judged as well.
    pub fn check_with(&self, lab: &Lab, expect: &Expect, flexcp: &Conduct) -> Result<()> {
        self.judge(lab, expect, Some(flexcp))
    }

    fn judge(&self, lab: &Lab, expect: &Expect, flexcp: Option<&Conduct>) -> Result<()> {
        let client = self.client(lab)?;
        let servers = self.all_servers(lab)?;
        let mut complaints = vec![];
        let expect = &expect.clone().explained_by(&client);
        for (end, mib) in [(End::Client, &client), (End::Servers, &servers)] {
            expect.judge(end, mib, &mut complaints);
        }
        if let Some(conduct) = flexcp {
            conduct.judge(expect.allowances(), &mut complaints);
            Conduct::judge_resets(&servers, expect.allowances(), &mut complaints);
            if !expect.is_disturbed() {
                conduct.judge_undisturbed(
                    [&client, &servers],
                    expect.allowances(),
                    &mut complaints,
                );
            }
        }
        complaints.extend(self.log.complaints()?.into_iter().map(Complaint::certain));
        let allowed = flexcp.map_or_else(String::new, |flexcp| flexcp.story(expect.allowances()));
        let (client, servers) = (client.story(), servers.story());
        let story = format!("client: {client}\n  servers: {servers}\n  allowed: {allowed}");
        Complaints::of(complaints, &story)
    }

    /// What moved at all servers, added up.
    fn all_servers(&self, lab: &Lab) -> Result<Mib> {
        let mut servers = Mib::default();
        for number in (1..).take(lab.servers().len()) {
            for (name, value) in self.server(lab, number)?.iter() {
                *servers.0.entry(name.to_owned()).or_default() += value;
            }
        }
        Ok(servers)
    }
}

/// What a case expects of the counters beyond [`FORBIDDEN`] ones staying at 0.
#[derive(Clone, Debug, Default)]
pub struct Expect {
    /// Names that may move although they are forbidden.
    allowed: Vec<(Option<End>, &'static str)>,
    ranges: Vec<(End, &'static str, RangeInclusive<i64>)>,
    /// Counters of FlexCP's own that may move, and why.
    own: Vec<Allowance>,
    /// Why packets may be lost or come late in this case.
    disturbed: Option<&'static str>,
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

    /// These may move by so much at one end, where the case says nothing of them.
    pub fn up_to(mut self, end: End, names: &[&'static str], most: i64) -> Self {
        for name in names {
            let mut allowed = self.allowed.iter();
            if !allowed.any(|(at, allowed)| allowed == name && at.is_none_or(|at| at == end)) {
                self = self.between(end, name, 0..=most);
            }
        }
        self
    }

    /// What the client brings about by itself, as far as its own counters say so, may move.
    fn explained_by(self, client: &Mib) -> Self {
        let too_long = client.get("IpFragFails") + client.get("Ip6FragFails");
        self.up_to(End::Client, TOO_LONG_FOR_ITSELF, too_long)
    }

    /// This counter of FlexCP's own may move (a drop reason, for instance), for this reason; see
    /// [`MUST_STAY`](crate::MUST_STAY).
    pub fn own(mut self, name: &'static str, reason: &'static str) -> Self {
        self.own.push(Allowance { name, reason });
        self
    }

    /// The case has links or peers that lose packets or hold them up, for this reason: retransmissions are not judged.
    pub fn disturbed(mut self, reason: &'static str) -> Self {
        self.disturbed = Some(reason);
        self
    }

    /// Whether packets may be lost or come late.
    pub fn is_disturbed(&self) -> bool {
        self.disturbed.is_some()
    }

    pub(crate) fn allowances(&self) -> &[Allowance] {
        &self.own
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

    pub(crate) fn judge(&self, end: End, mib: &Mib, complaints: &mut Vec<Complaint>) {
        for name in FORBIDDEN {
            let allowed = |(at, allowed): &(Option<End>, &str)| {
                allowed == name && at.is_none_or(|at| at == end)
            };
            let value = mib.get(name);
            if value != 0 && !self.allowed.iter().any(allowed) {
                let text = format!("{end:?}: {name} moved by {value}");
                complaints.push(Complaint::about(name, text));
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
                let text = format!("{end:?}: {name} moved by {value}, expected {wanted}");
                complaints.push(Complaint::about(name, text));
            }
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn mib(text: &str) -> Mib {
        let mut mib = Mib::default();
        mib.parse(text);
        mib
    }

    fn texts(complaints: &[Complaint]) -> Vec<&str> {
        complaints.iter().map(Complaint::text).collect()
    }

    #[test]
    fn netstat_pairs_names_with_values() {
        let mib = mib("TcpExt: A B\nTcpExt: 1 2\nTcp: InErrs MaxConn\nTcp: 3 -1\n");
        assert_eq!((mib.get("A"), mib.get("B")), (1, 2));
        assert_eq!((mib.get("TcpInErrs"), mib.get("TcpMaxConn")), (3, -1));
        assert_eq!(mib.get("Missing"), 0);
    }

    #[test]
    fn errors_that_a_client_sends_to_itself_are_no_more_than_it_could_not_send() {
        let complaints = |end: End, errors: i64| {
            let client = Mib::of(&[("IpFragFails", 10), ("OutOfWindowIcmps", errors)]);
            let mut complaints = vec![];
            let expect = Expect::clean().explained_by(&client);
            expect.judge(end, &client, &mut complaints);
            complaints.len()
        };
        let at_client = [complaints(End::Client, 10), complaints(End::Client, 11)];
        assert_eq!(at_client, [0, 1]);
        assert_eq!(complaints(End::Servers, 1), 1);
    }

    #[test]
    fn forbidden_counter_complains_unless_allowed() {
        let moved = mib("MPTcpExt: DssFallback MPJoinSynAckRx\nMPTcpExt: 1 1\n");
        let mut complaints = vec![];
        Expect::clean().judge(End::Client, &moved, &mut complaints);
        assert_eq!(texts(&complaints), ["Client: DssFallback moved by 1"]);

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
            texts(&complaints),
            ["Client: MPJoinSynAckRx moved by 1, expected 2"]
        );
    }
}

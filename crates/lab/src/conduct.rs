//! What FlexCP says of itself, judged: drops, failed sends, resets and refusals that no case asked for, and what the
//! kernels at both ends had to send again although nothing was lost on the links.

use std::collections::BTreeMap;

use anyhow::Result;
use flexcp_testkit::Stats;

use crate::complaint::{Complaint, RETRANSMITTED};
use crate::counters::{End, Expect, Mib, OVERTAKEN, OVERTAKEN_WITHIN_A_TICK, RENEGED};
use crate::daemon::FlexCp;

/// A counter of FlexCP's own that may move in a case, and why.
#[derive(Clone, Copy, Debug)]
pub struct Allowance {
    pub(crate) name: &'static str,
    pub(crate) reason: &'static str,
}

/// The counters of `flexcp show stats`, all groups in one.
#[derive(Clone, Debug, Default)]
pub struct Conduct {
    counters: BTreeMap<String, u64>,
    /// Names of the reasons for which packets are dropped.
    drops: Vec<String>,
}

impl Conduct {
    /// Asks a running FlexCP.
    pub fn read(flexcp: &FlexCp) -> Result<Self> {
        Self::of(&flexcp.show_stats()?)
    }

    /// From the answer of `flexcp show stats --json`.
    pub fn of(stats: &Stats) -> Result<Self> {
        let mut conduct = Self::default();
        for group in GROUPS {
            for (name, value) in stats.group(group)? {
                conduct.counters.insert(name.to_owned(), value);
                if group == "drops" {
                    conduct.drops.push(name.to_owned());
                }
            }
        }
        Ok(conduct)
    }

    /// A counter's value; 0 for one that there is not.
    pub fn get(&self, name: &str) -> u64 {
        self.counters.get(name).copied().unwrap_or(0)
    }

    /// What kernels may count by what FlexCP itself has counted as the cause, where the case says nothing of it.
    pub fn explain(&self, expect: Expect) -> Result<Expect> {
        let sum = |names: &[&str]| -> Result<i64> {
            let sum: u64 = names.iter().map(|name| self.get(name)).sum();
            Ok(i64::try_from(sum)?)
        };
        // When a connection is installed, the programs pass by what its worker has just written, and the other way round.
        let installed = sum(&["offload_installed", "offload_evicted"])?;
        // Data that had been SACKed comes again: on another subflow, or because the server threw it away.
        let let_go = sum(&["subflow_switch", "filler_tx", "window_overrun", "let_go_up"])?;
        // What moves to another subflow goes by the window that the client told last, on whichever subflow.
        let moved = sum(&["subflow_switch"])?;
        let at_both = [End::Client, End::Servers];
        let expect = at_both.into_iter().fold(expect, |expect, end| {
            expect
                .up_to(end, OVERTAKEN, installed)
                .up_to(end, OVERTAKEN_WITHIN_A_TICK, installed)
                .up_to(end, RENEGED, let_go)
        });
        // Two processors of the end with MPTCP write the connection's window at once (mptcp_set_rwin).
        let joined = self.get("mp_join_ack_rx") + self.get("mp_join_synack_rx");
        let windows = if joined > 0 { WINDOWS_AT_ONCE } else { 0 };
        Ok(expect
            .up_to(End::Client, &["TCPZeroWindowDrop"], moved)
            .up_to(End::Client, &["RcvWndConflict"], windows))
    }

    /// Every drop reason and every counter of [`MUST_STAY`] that moved has to be among the allowances.
    pub(crate) fn judge(&self, allowed: &[Allowance], complaints: &mut Vec<Complaint>) {
        let drops = self.drops.iter().map(String::as_str);
        let watched = drops.filter(|name| *name != STALE_ACK);
        let packets = self.get("packets_in");
        for name in watched.chain(MUST_STAY.iter().copied()) {
            let value = self.get(name);
            let late = LATE.contains(&name) && value <= LATE_FEW + packets / 1000;
            if value != 0 && !late && !allowed.iter().any(|allowance| allowance.name == name) {
                complaints.push(Complaint::certain(format!(
                    "FlexCP: {name} moved by {value}"
                )));
            }
        }
        let stale = self.get(STALE_ACK);
        let named = allowed.iter().any(|allowance| allowance.name == STALE_ACK);
        if !named && stale > STALE_FEW + packets / STALE_OF {
            let text = format!("FlexCP: {STALE_ACK} moved by {stale} in {packets} packets");
            complaints.push(Complaint::certain(text));
        }
    }

    /// What moved and was allowed to, with the reasons.
    pub(crate) fn story(&self, allowed: &[Allowance]) -> String {
        let moved = allowed
            .iter()
            .filter(|allowance| self.get(allowance.name) != 0);
        let words =
            moved.map(|Allowance { name, reason }| format!("{name} {} ({reason})", self.get(name)));
        words.collect::<Vec<_>>().join(", ")
    }

    /// A server whose connection somebody else than itself reset: FlexCP, for whatever reason.
    pub(crate) fn judge_resets(
        servers: &Mib,
        allowed: &[Allowance],
        complaints: &mut Vec<Complaint>,
    ) {
        // The kernel counts the connections that it resets itself, too.
        let resets = servers.get("TcpEstabResets");
        let named = allowed
            .iter()
            .any(|allowance| allowance.name == SERVER_RESET);
        if resets != 0 && !named {
            let text = format!("Servers: TcpEstabResets moved by {resets}");
            complaints.push(Complaint::certain(text));
        }
    }

    /// Where nothing is lost on the links, next to nothing is sent again: at the client and at the servers.
    pub(crate) fn judge_undisturbed(
        &self,
        ends: [&Mib; 2],
        allowed: &[Allowance],
        complaints: &mut Vec<Complaint>,
    ) {
        if allowed
            .iter()
            .any(|allowance| allowance.name == RETRANSMITTED)
        {
            return;
        }
        let [client, servers] = ends;
        for (end, mib, other) in [("Client", client, servers), ("Servers", servers, client)] {
            let sent = mib.get("TcpOutSegs");
            // A probe of the tail goes out a few milliseconds after the last segment, whether it was lost or not. What
            // the other end has refused, as it was beyond its window, comes again as well.
            let explained = mib.get("TCPLossProbes") + other.get("BeyondWindow");
            let again = (mib.get("TcpRetransSegs") - explained).max(0);
            let bound = AGAIN_FEW + sent * AGAIN_PER_MYRIAD / 10_000;
            if again > bound {
                let text = format!("{end}: {again} of {sent} segments sent again, {bound} may be");
                complaints.push(Complaint::about(RETRANSMITTED, text));
            }
            let elsewhere = mib.get("MPTCPRetrans");
            if elsewhere > bound {
                let text = format!("{end}: MPTCPRetrans moved by {elsewhere}, {bound} may be");
                complaints.push(Complaint::about(RETRANSMITTED, text));
            }
        }
    }
}

/// Counters of FlexCP's that stay at 0 when honest clients and servers meet on links that lose nothing; the drop
/// reasons are judged as well, all but `stale_ack`.
pub const MUST_STAY: &[&str] = &[
    "plain_syn",
    "overload_plain",
    "half_open_evicted",
    "end_to_end",
    "fallback_handshake",
    "fallback_established",
    "mp_join_no_token",
    "mp_join_ack_hmac_failure",
    "mp_join_refused",
    "path_mtu_lowered",
    "mp_fail_rx",
    "mp_fastclose_tx",
    "mp_rst_tx",
    "memory_refused",
    "memory_trimmed",
    "backend_skipped",
    "backend_marked",
    "malformed_rx",
    "receive_failed",
    "send_failed",
    "handover_lost",
    "placement_full",
];

/// Name of an allowance: connections of servers are reset.
pub const SERVER_RESET: &str = "server_reset";

/// Name of an allowance: segments are sent again although no link loses any.
pub const SENT_AGAIN: &str = RETRANSMITTED;

/// Dropped all the time: a client acknowledges on each of its subflows, and what tells the server nothing new would
/// look like a duplicate to it. So does an ACK of the subflow alone: Linux sends one for each packet that arrives while
/// its reader has the socket, and the data ACK only when that is done. A share of the packets is bounded instead.
const STALE_ACK: &str = "stale_ack";

/// So many of them may be in any case.
const STALE_FEW: u64 = 50;

/// One in so many packets may be, too: the reader of a client on a busy machine makes them one in fifteen.
const STALE_OF: u64 = 8;

/// What waits for a worker while its connection is installed, and the worker gets no processor: the programs have gone more than
/// two windows ahead by then. A connection with packets that wait is not installed, as far as the counts tell. Their share is
/// bounded.
const LATE: &[&str] = &["out_of_window", "ack_of_unsent"];

/// So many of them may be in any case, and one in a thousand packets.
const LATE_FEW: u64 = 20;

/// Windows that a client of several subflows may write at once in a case; two at most have been seen.
const WINDOWS_AT_ONCE: i64 = 8;

/// Segments that may be sent again in any case: GSO packets that overtake what waits in a queue when their connection is
/// installed in the offload or evicted, 280 segments at most on a busy machine. So a loss shows in the transfers of a
/// gigabyte, and in what the counters of packets say, not here in small ones.
const AGAIN_FEW: i64 = 500;

/// Of 10,000 further ones. Such overtaking costs up to 62 on a busy machine; a loss of one in a hundred costs 100.
const AGAIN_PER_MYRIAD: i64 = 70;

/// The groups of `flexcp show stats` that are judged.
pub(crate) const GROUPS: [&str; 3] = ["counters", "drops", "carrier"];

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn texts(complaints: &[Complaint]) -> Vec<&str> {
        complaints.iter().map(Complaint::text).collect()
    }

    /// Groups that are not there are empty.
    fn conduct(stats: &Value) -> Conduct {
        let mut stats = stats.clone();
        for group in GROUPS
            .iter()
            .filter(|group| stats.get(group).is_none())
            .collect::<Vec<_>>()
        {
            stats[group] = json!({});
        }
        Conduct::of(&stats.into()).expect("numbers")
    }

    #[test]
    fn group_that_is_not_there_is_told() {
        let stats = json!({"counters": {}, "carrier": {}});
        assert!(Conduct::of(&stats.into()).is_err());
    }

    #[test]
    fn drop_that_nobody_named_is_a_complaint() {
        let stats =
            json!({"drops": {"no_mapping": 2, "stale_ack": 3}, "counters": {"packets_in": 900}});
        let mut complaints = vec![];
        conduct(&stats).judge(&[], &mut complaints);
        assert_eq!(texts(&complaints), ["FlexCP: no_mapping moved by 2"]);

        complaints.clear();
        let reason = "the option is stripped";
        let name = "no_mapping";
        conduct(&stats).judge(&[Allowance { name, reason }], &mut complaints);
        assert!(complaints.is_empty());
    }

    #[test]
    fn late_packets_are_a_complaint_when_they_are_many() {
        let complain = |late: u64| {
            let stats =
                json!({"drops": {"ack_of_unsent": late}, "counters": {"packets_in": 10_000}});
            let mut complaints = vec![];
            conduct(&stats).judge(&[], &mut complaints);
            complaints.len()
        };
        assert_eq!([complain(30), complain(31)], [0, 1]);
    }

    #[test]
    fn packets_that_flexcp_could_not_send_are_a_complaint() {
        for name in [
            "send_failed",
            "receive_failed",
            "handover_lost",
            "malformed_rx",
        ] {
            let stats = json!({"carrier": {name: 1}});
            let mut complaints = vec![];
            conduct(&stats).judge(&[], &mut complaints);
            assert_eq!(texts(&complaints), [format!("FlexCP: {name} moved by 1")]);
        }
    }

    #[test]
    fn reset_refused_join_and_plain_syn_are_complaints() {
        for name in [
            "mp_rst_tx",
            "mp_join_refused",
            "plain_syn",
            "fallback_established",
        ] {
            let stats = json!({"counters": {name: 1}});
            let mut complaints = vec![];
            conduct(&stats).judge(&[], &mut complaints);
            assert_eq!(texts(&complaints), [format!("FlexCP: {name} moved by 1")]);
        }
    }

    #[test]
    fn stale_acks_are_a_complaint_when_they_are_many() {
        let stats = json!({"drops": {"stale_ack": 200}, "counters": {"packets_in": 1000}});
        let mut complaints = vec![];
        conduct(&stats).judge(&[], &mut complaints);
        assert_eq!(complaints.len(), 1);
    }

    #[test]
    fn packets_that_overtook_others_need_a_cause() {
        let complaints = |name: &str, installed: u64, moved: i64| {
            let stats = json!({"counters": {"offload_installed": installed}});
            let expect = conduct(&stats)
                .explain(Expect::clean())
                .expect("small numbers");
            let mut complaints = vec![];
            expect.judge(End::Client, &Mib::of(&[(name, moved)]), &mut complaints);
            complaints.len()
        };
        for name in ["PAWSEstab", "TCPACKSkippedSeq"] {
            let seen = [(0, 1), (3, 2), (3, 4)]
                .map(|(installed, moved)| complaints(name, installed, moved));
            assert_eq!(seen, [1, 0, 1], "{name}");
        }
    }

    #[test]
    fn windows_that_a_client_writes_at_once_take_several_subflows_and_are_few() {
        let complaints = |joins: u64, moved: i64| {
            let stats = json!({"counters": {"mp_join_ack_rx": joins}});
            let expect = conduct(&stats).explain(Expect::clean());
            let moved = Mib::of(&[("RcvWndConflict", moved)]);
            let mut complaints = vec![];
            let expect = expect.expect("small numbers");
            expect.judge(End::Client, &moved, &mut complaints);
            complaints.len()
        };
        assert_eq!(
            [complaints(0, 1), complaints(1, 8), complaints(1, 9)],
            [1, 0, 1]
        );
    }

    #[test]
    fn reset_of_a_servers_connection_is_a_complaint() {
        let mut complaints = vec![];
        Conduct::judge_resets(&Mib::of(&[("TcpEstabResets", 1)]), &[], &mut complaints);
        assert_eq!(texts(&complaints), ["Servers: TcpEstabResets moved by 1"]);
    }

    fn again(client: &[(&str, i64)]) -> usize {
        let mut complaints = vec![];
        let ends = [&Mib::of(client), &Mib::default()];
        Conduct::default().judge_undisturbed(ends, &[], &mut complaints);
        complaints.len()
    }

    #[test]
    fn one_segment_in_a_hundred_sent_again_is_a_complaint() {
        assert_eq!(
            again(&[("TcpOutSegs", 700_000), ("TcpRetransSegs", 7000)]),
            1
        );
        assert_eq!(
            again(&[("TcpOutSegs", 700_000), ("TcpRetransSegs", 5000)]),
            0
        );
    }

    #[test]
    fn probes_of_the_tail_are_not_taken_for_losses() {
        let probes = [
            ("TcpOutSegs", 1000),
            ("TcpRetransSegs", 800),
            ("TCPLossProbes", 790),
        ];
        assert_eq!(again(&probes), 0);
    }

    #[test]
    fn what_the_server_refused_comes_again() {
        let client = Mib::of(&[("TcpOutSegs", 18_000), ("TcpRetransSegs", 690)]);
        let complaints = |refused: i64| {
            let servers = Mib::of(&[("BeyondWindow", refused)]);
            let mut complaints = vec![];
            Conduct::default().judge_undisturbed([&client, &servers], &[], &mut complaints);
            complaints.len()
        };
        assert_eq!([complaints(60), complaints(70)], [1, 0]);
    }

    #[test]
    fn data_sent_again_on_another_subflow_is_bounded() {
        assert_eq!(again(&[("TcpOutSegs", 50_000), ("MPTCPRetrans", 1000)]), 1);
    }
}

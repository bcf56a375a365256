//! Complaints of judges, and which of them the kernels at both ends bring about by themselves.

use std::fmt;

use anyhow::Result;

/// Something that was not as it has to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Complaint {
    text: String,
    /// Whether the kernels at both ends bring it about without FlexCP's help, now and then.
    kernels: bool,
}

impl Complaint {
    /// About a counter.
    pub(crate) fn about(counter: &str, text: String) -> Self {
        let kernels = BY_THEMSELVES.contains(&counter);
        Self { text, kernels }
    }

    /// Nothing but a fault brings it about.
    pub(crate) fn certain(text: String) -> Self {
        Self {
            text,
            kernels: false,
        }
    }

    /// What it is.
    pub fn text(&self) -> &str {
        &self.text
    }
}

/// All complaints about a run.
#[derive(Debug)]
pub struct Complaints {
    list: Vec<Complaint>,
    story: String,
}

impl Complaints {
    /// An error if there are any; `story` is for whoever reads it.
    pub(crate) fn of(list: Vec<Complaint>, story: &str) -> Result<()> {
        if list.is_empty() {
            return Ok(());
        }
        let story = story.to_owned();
        Err(Self { list, story }.into())
    }

    /// Whether nothing has failed but counters that the kernels at both ends move by themselves, so that another attempt
    /// may tell more. What only FlexCP can cause (its own counters, rules of the wire, bytes, resets, stalls, leftovers)
    /// stands, and everything beside it.
    pub fn worth_another_attempt(failure: &anyhow::Error) -> bool {
        let complaints = failure.downcast_ref::<Self>();
        complaints.is_some_and(|all| all.list.iter().all(|complaint| complaint.kernels))
    }
}

impl fmt::Display for Complaints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<_> = self.list.iter().map(Complaint::text).collect();
        write!(f, "{}\n  {}", texts.join("; "), self.story)
    }
}

impl std::error::Error for Complaints {}

/// Counters that kernels move by themselves, with no FlexCP between them, mostly when their threads wait for a processor.
const BY_THEMSELVES: &[&str] = &[
    // A client's subflows compete for the window of the connection: segments that fill it to the last byte.
    "BeyondWindow",
    "RcvWndConflict",
    "TCPZeroWindowDrop",
    "TCPACKSkippedSeq",
    // Packets that overtake each other when their sender moves to another core.
    "PAWSEstab",
    "PAWSOldAck",
    "TCPACKSkippedPAWS",
    // A client that is done before it has come to join, and a subflow that is given up meanwhile.
    "MPJoinSynAckRx",
    "MPJoinSynTx",
    // Timers that are due before the answer has had its turn.
    RETRANSMITTED,
    // What was sent again so is known already: a data packet that says so (D-SACK) says it once more for each segment that
    // GSO makes of it, and more often than it was sent again its sender does not believe it.
    "TCPSACKDiscard",
    // A neighbour that does not answer in time: the end's own kernel says so.
    "OutOfWindowIcmps",
];

/// Name of complaints about retransmissions; no counter of this name exists.
pub(crate) const RETRANSMITTED: &str = "retransmitted";

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(counters: &[&str]) -> anyhow::Error {
        let about = |name: &&str| Complaint::about(name, format!("{name} moved"));
        let list = counters.iter().map(about).collect();
        let failure = Complaints::of(list, "").expect_err("complaints");
        failure.context("the story of the case")
    }

    #[test]
    fn counters_of_the_kernels_are_worth_another_attempt() {
        let moved = failure(&["RcvWndConflict", "PAWSEstab"]);
        assert!(Complaints::worth_another_attempt(&moved));
    }

    #[test]
    fn what_only_flexcp_causes_is_not() {
        for name in [
            "DSSNotMatching",
            "TcpInCsumErrors",
            "MPJoinAckHMacFailure",
            "MPRstRx",
            "stale_ack",
            "no_mapping",
        ] {
            assert!(!Complaints::worth_another_attempt(&failure(&[name])));
            let among = failure(&["RcvWndConflict", name]);
            assert!(!Complaints::worth_another_attempt(&among), "{name}");
        }
        let certain = Complaint::certain("kernel log: BUG: something".to_owned());
        let certain = Complaints::of(vec![certain], "").expect_err("a complaint");
        assert!(!Complaints::worth_another_attempt(&certain));
        for other in ["rules of the wire were broken", "wrong bytes at the server"] {
            assert!(!Complaints::worth_another_attempt(&anyhow::anyhow!(other)));
        }
    }
}

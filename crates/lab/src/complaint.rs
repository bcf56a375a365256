//! Complaints of judges, and which of them a machine that is too slow can bring about by itself.

use std::fmt;

use anyhow::Result;

/// Something that was not as it has to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Complaint {
    text: String,
    /// Whether kernels that do not get the processor bring it about without FlexCP's help.
    machine: bool,
}

impl Complaint {
    /// About a counter.
    pub(crate) fn about(counter: &str, text: String) -> Self {
        let machine = STARVED.contains(&counter);
        Self { text, machine }
    }

    /// Nothing but a fault brings it about.
    pub(crate) fn certain(text: String) -> Self {
        Self {
            text,
            machine: false,
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

    /// Whether a machine that is too slow brings about each of them by itself. If one is not of that kind, all of
    /// them stand.
    pub fn may_be_the_machine(&self) -> bool {
        self.list.iter().all(|complaint| complaint.machine)
    }
}

impl fmt::Display for Complaints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<_> = self.list.iter().map(Complaint::text).collect();
        write!(f, "{}\n  {}", texts.join("; "), self.story)
    }
}

impl std::error::Error for Complaints {}

/// Counters that kernels move by themselves, with no FlexCP between them, when their threads wait for a processor.
const STARVED: &[&str] = &[
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
];

/// Name of complaints about retransmissions; no counter of this name exists.
pub(crate) const RETRANSMITTED: &str = "retransmitted";

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(counters: &[&str]) -> Complaints {
        let about = |name: &&str| Complaint::about(name, format!("{name} moved"));
        Complaints {
            list: counters.iter().map(about).collect(),
            story: String::new(),
        }
    }

    #[test]
    fn counters_of_a_starved_kernel_may_be_the_machine() {
        assert!(complaints(&["RcvWndConflict", "PAWSEstab"]).may_be_the_machine());
    }

    #[test]
    fn what_only_flexcp_causes_is_never_the_machine() {
        for name in [
            "DSSNotMatching",
            "TcpInCsumErrors",
            "MPJoinAckHMacFailure",
            "MPRstRx",
            "stale_ack",
        ] {
            assert!(!complaints(&[name]).may_be_the_machine(), "{name}");
            assert!(
                !complaints(&["RcvWndConflict", name]).may_be_the_machine(),
                "{name}"
            );
        }
        let certain = Complaint::certain("kernel log: BUG: something".to_owned());
        assert!(
            !Complaints {
                list: vec![certain],
                story: String::new()
            }
            .may_be_the_machine()
        );
    }
}

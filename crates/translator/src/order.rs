//! What an operator, or the program that FlexCP is part of, asks of single connections.

use alloc::sync::Arc;
use core::fmt;

use crate::steering::{Rule, Target};

/// What is to be done with a connection.
#[derive(Clone, Debug)]
pub enum Order {
    /// Its new data goes down that path from here on. The rule's hold time begins anew: its mode may move it again when that
    /// is over.
    Move(Target),
    /// It is steered by this rule, whatever else that says of connections, in place of the operator's; `None`: by those.
    Steer(Option<Arc<Rule>>),
    /// A subflow is for when others fail, or no more. FlexCP keeps to that, and tells the client (`MP_PRIO`, RFC 8684 section
    /// 3.3.8), which does so for what it sends.
    SetBackup {
        /// Its number in the connection.
        subflow: u8,
        /// Whether it is.
        backup: bool,
    },
    /// Both ends are told that it is over.
    Close,
}

/// What came of an order that was not refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ordered {
    /// It is carried out.
    Done,
    /// It was so already.
    Already,
}

/// Why an order is refused; nothing has changed then.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Refused {
    /// No connection has the id.
    Unknown,
    /// The connection is not translated from MPTCP: it is plain TCP, it opens, or it is over.
    NotTranslated,
    /// The kernel forwards it by itself, so that nobody here knows its numbers.
    PassedBy,
    /// It has no such subflow, or none of that access.
    NoSubflow,
    /// The subflow carries no data: it is joining or closing.
    NotCarrying,
    /// The client closes the subflow.
    Leaving,
    /// The subflow's path counts as failed.
    Failed,
    /// The client, or an operator, wants the subflow when no other is left.
    Backup,
    /// The subflow misses data that the client has from another one: what is sent there would wait.
    Hole,
    /// The mode shares the connections of a rule out, which a single one is not.
    Shares,
}

impl Refused {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Unknown,
        Self::NotTranslated,
        Self::PassedBy,
        Self::NoSubflow,
        Self::NotCarrying,
        Self::Leaving,
        Self::Failed,
        Self::Backup,
        Self::Hole,
        Self::Shares,
    ];

    /// For output: one lower-case word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::NotTranslated => "not_translated",
            Self::PassedBy => "passed_by",
            Self::NoSubflow => "no_subflow",
            Self::NotCarrying => "not_carrying",
            Self::Leaving => "leaving",
            Self::Failed => "failed",
            Self::Backup => "backup",
            Self::Hole => "hole",
            Self::Shares => "shares",
        }
    }

    const fn message(self) -> &'static str {
        match self {
            Self::Unknown => {
                "there is no such connection; it may be over, list the connections again"
            }
            Self::NotTranslated => {
                "the connection is not translated from MPTCP: it is plain TCP, opens, or is over"
            }
            Self::PassedBy => {
                "the kernel forwards the connection by itself; its ends alone can close it"
            }
            Self::NoSubflow => "the connection has no such subflow; list it to see which it has",
            Self::NotCarrying => "the subflow carries no data: it is joining or closing",
            Self::Leaving => "the client closes the subflow",
            Self::Failed => "the subflow's path counts as failed: its client does not answer there",
            Self::Backup => {
                "the subflow is for when no other is left, as its client or an operator wants"
            }
            Self::Hole => {
                "the subflow misses data that the client has from another one; ask again in a second"
            }
            Self::Shares => {
                "the mode shares the connections of a rule out; set a rule with it instead"
            }
        }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message())
    }
}

impl core::error::Error for Refused {}

/// What came of an order to several connections.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Tally {
    /// Connections with which it was carried out.
    pub done: u64,
    /// Those with which it was so already.
    pub already: u64,
    refused: [u64; Refused::ALL.len()],
}

impl Tally {
    /// Counts what came of it with one more.
    pub const fn count(&mut self, outcome: Result<Ordered, Refused>) {
        match outcome {
            Ok(Ordered::Done) => self.done += 1,
            Ok(Ordered::Already) => self.already += 1,
            Err(reason) => self.refused[reason as usize] += 1,
        }
    }

    /// Adds what came of it elsewhere.
    pub fn add(&mut self, other: &Self) {
        self.done += other.done;
        self.already += other.already;
        for (sum, more) in self.refused.iter_mut().zip(other.refused) {
            *sum += more;
        }
    }

    /// Connections that refused it, by the reason; those reasons alone that there were.
    pub fn refused(&self) -> impl Iterator<Item = (Refused, u64)> {
        let all = Refused::ALL.into_iter().zip(self.refused);
        all.filter(|(_, count)| *count > 0)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn tally_counts_refusals_by_their_reason() {
        let mut tally = Tally::default();
        let outcomes = [
            Ok(Ordered::Done),
            Err(Refused::Hole),
            Ok(Ordered::Already),
            Err(Refused::Hole),
            Err(Refused::Unknown),
        ];
        outcomes
            .into_iter()
            .for_each(|outcome| tally.count(outcome));
        let mut sum = tally;
        sum.add(&tally);
        assert_eq!((sum.done, sum.already), (2, 2));
        let refused: Vec<_> = sum.refused().collect();
        assert_eq!(refused, [(Refused::Unknown, 2), (Refused::Hole, 4)]);
    }

    #[test]
    fn reasons_stand_in_their_order() {
        for (place, reason) in Refused::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, place, "{}", reason.name());
        }
    }
}

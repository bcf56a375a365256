//! One subflow of a client: TCP with numbers of its own, and the mappings in both directions.

use std::collections::VecDeque;
use std::net::SocketAddr;

use crate::net::earlier;
use crate::stack::Stack;
use crate::tcp::{Receiver, Sender};

/// Life of a subflow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// Has sent its SYN.
    SynSent,
    /// Has answered one.
    SynReceived,
    /// A join that has sent its third packet and waits for an ACK.
    Joining,
    /// Carries data.
    Open,
    /// Over.
    Closed,
}

/// `[ssn, ssn + len)` carries `[dsn, dsn + len)`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Mapping {
    /// Position on the subflow.
    pub(crate) ssn: u64,
    /// Position in the data.
    pub(crate) dsn: u64,
    /// Bytes.
    pub(crate) len: u64,
    /// DATA_FIN is counted behind the last byte.
    pub(crate) fin: bool,
}

/// One subflow.
#[derive(Debug)]
pub(crate) struct Subflow {
    /// Where it stands.
    pub(crate) state: State,
    /// Over which link.
    pub(crate) link: usize,
    /// Ends.
    pub(crate) local: SocketAddr,
    /// Of the proxy, or of the server in transparent mode.
    pub(crate) remote: SocketAddr,
    /// The client's address id.
    pub(crate) address_id: u8,
    /// That of whoever has asked for it.
    pub(crate) peer_id: u8,
    /// Used only when no other is left.
    pub(crate) backup: bool,
    /// Number of the SYN, and of its answer.
    pub(crate) isn: u32,
    /// The proxy's.
    pub(crate) remote_isn: u32,
    /// Nonces of the join.
    pub(crate) nonce: u32,
    /// The proxy's.
    pub(crate) remote_nonce: u32,
    /// Both SYNs offer a window scale.
    pub(crate) scales: bool,
    /// Window shifts: offered, and of the windows received.
    pub(crate) scale: u8,
    /// The proxy's.
    pub(crate) remote_scale: u8,
    /// SACK agreed on.
    pub(crate) sack: bool,
    /// Timestamps: what the clock shows at time 0.
    pub(crate) clock: Option<u32>,
    /// Latest TSval in order.
    pub(crate) recent: u32,
    /// The last ACK sent.
    pub(crate) last_ack: u64,
    /// Sending half.
    pub(crate) sender: Sender,
    /// Receiving half.
    pub(crate) receiver: Receiver,
    /// Declared by the client.
    pub(crate) out: VecDeque<Mapping>,
    /// Declared by the proxy.
    pub(crate) into: VecDeque<Mapping>,
    /// For the SYN and the third packet of a join, and for the last FIN.
    pub(crate) timer: Option<u64>,
    /// Times that it expired.
    pub(crate) tries: u32,
    /// What it carried has been given to others.
    pub(crate) abandoned: bool,
    /// When the next keepalive is due.
    pub(crate) keepalive: Option<u64>,
    /// When it was closed.
    pub(crate) closed_at: u64,
}

impl Subflow {
    /// Before its SYN.
    #[must_use]
    pub(crate) fn new(
        stack: &Stack,
        link: usize,
        local: SocketAddr,
        remote: SocketAddr,
        isn: u32,
        clock: Option<u32>,
    ) -> Self {
        Self {
            state: State::SynSent,
            link,
            local,
            remote,
            address_id: 0,
            peer_id: 0,
            backup: false,
            isn,
            remote_isn: 0,
            nonce: 0,
            remote_nonce: 0,
            scales: false,
            scale: 0,
            remote_scale: 0,
            sack: false,
            clock,
            recent: 0,
            last_ack: 0,
            sender: Sender::new(stack.tuning, 536),
            receiver: Receiver::new(stack.ack_delay, stack.ack_every, stack.reports_duplicates),
            out: VecDeque::new(),
            into: VecDeque::new(),
            timer: None,
            tries: 0,
            abandoned: false,
            keepalive: None,
            closed_at: 0,
        }
    }

    /// Whether data may go on it.
    #[must_use]
    pub(crate) fn is_open(&self) -> bool {
        self.state == State::Open
    }

    /// The mapping of the client's that holds this position.
    #[must_use]
    pub(crate) fn mapping_out(&self, ssn: u64) -> Option<Mapping> {
        let index = self.out.partition_point(|m| m.ssn + m.len <= ssn);
        self.out.get(index).copied().filter(|m| m.ssn <= ssn)
    }

    /// The mapping of the proxy's that holds this position.
    #[must_use]
    pub(crate) fn mapping_in(&self, ssn: u64) -> Option<Mapping> {
        let index = self.into.partition_point(|m| m.ssn + m.len <= ssn);
        self.into.get(index).copied().filter(|m| m.ssn <= ssn)
    }

    /// Takes a mapping of the proxy's; `false`: it contradicts another.
    pub(crate) fn learn(&mut self, new: Mapping) -> bool {
        let index = self.into.partition_point(|m| m.ssn + m.len <= new.ssn);
        match self.into.get(index) {
            Some(known) if known.ssn < new.ssn + new.len => {
                known.ssn == new.ssn && known.dsn == new.dsn && known.len == new.len
            }
            _ => {
                self.into.insert(index, new);
                true
            }
        }
    }

    /// Lets go of mappings that are done with.
    pub(crate) fn release(&mut self) {
        let una = self.sender.una;
        while self.out.front().is_some_and(|m| m.ssn + m.len <= una) {
            self.out.pop_front();
        }
        let nxt = self.receiver.nxt;
        while self.into.front().is_some_and(|m| m.ssn + m.len <= nxt) {
            self.into.pop_front();
        }
    }

    /// PAWS (RFC 7323 section 5.3).
    pub(crate) fn is_timely(&mut self, from: i64, val: Option<u32>) -> bool {
        let (Some(_), Some(val)) = (self.clock, val) else {
            return true;
        };
        if earlier(val, self.recent) {
            return false;
        }
        if from <= self.last_ack.cast_signed() {
            self.recent = val;
        }
        true
    }

    /// When something of its own is due.
    #[must_use]
    pub(crate) fn deadline(&self) -> Option<u64> {
        match self.state {
            State::SynSent | State::SynReceived | State::Joining => self.timer,
            State::Open => [
                self.sender.deadline(),
                self.receiver.deadline(),
                self.keepalive,
                self.timer,
            ]
            .into_iter()
            .flatten()
            .min(),
            State::Closed => None,
        }
    }
}

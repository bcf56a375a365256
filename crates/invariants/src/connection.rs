//! One connection as it can be told from its packets.

use std::net::SocketAddr;

use flexcp_wire::DataNumber;

use crate::asking::Asking;
use crate::causes::{Bounds, Course};
use crate::clock::Sent;
use crate::conduct::{Breach, FAR, OVERRUN, Side, span};
use crate::content::{Oracle, Remembered};
use crate::front::Front;
use crate::position::{ORIGIN, from_dsn, from_seq, from_short_dsn};
use crate::ranges::Ranges;
use crate::subflow::Subflow;
use crate::{Direction, Rule};

/// How far a connection has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    /// The client has not proved its keys.
    Handshake,
    /// MPTCP at the client, TCP at the server.
    Translated,
    /// The same numbers on both sides: never MPTCP, or fallen back.
    Plain,
}

/// One direction of the data.
#[derive(Debug)]
pub(crate) struct Stream {
    direction: Direction,
    /// Initial sequence number on the TCP side.
    pub(crate) isn: u32,
    /// Initial data sequence number.
    pub(crate) idsn: u64,
    /// Bytes that stand before it: of a preamble, or the answer to one.
    pub(crate) lead: u64,
    /// Behind what the sender has sent, its FIN not counted.
    pub(crate) sent: u64,
    /// The sender's FIN or DATA_FIN.
    pub(crate) fin: Option<u64>,
    /// What the receiver has acknowledged; behind the FIN when that is included.
    pub(crate) acked: u64,
    /// What the receiver has: acknowledged, or said by SACK.
    pub(crate) has: Ranges,
    /// What the proxy has sent to the receiver, FIN and DATA_FIN counted; noted among hostile ends.
    pub(crate) carried: Ranges,
    /// Furthest right edge that the receiver has offered.
    pub(crate) edge: u64,
    /// The largest window that it has offered, in bytes.
    pub(crate) widest: u64,
    /// The same since its SYN/ACK, and before it broke the protocol: from then on the proxy may not believe it.
    pub(crate) last_edge: u64,
    /// What came from the sender in packets that end beyond the right edge: the proxy may ACK it on its subflow
    /// all the same (RFC 8684 section 3.3.6: the sender keeps it until the data ACK).
    pub(crate) overrun: Ranges,
    /// What the sender has said in packets that the proxy need not have believed: it may not know of it.
    pub(crate) unheard: Ranges,
    /// Packets with what was next on their subflow that came again since the receiver's ACK moved on.
    pub(crate) repeated: u64,
    /// What the proxy has acknowledged to the sender.
    pub(crate) ack_out: u64,
    /// A byte that the receiver has acknowledged, sent once more with another value: Linux asks for a window that way
    /// (`mptcp_sendmsg_frag`), with a byte of what comes next.
    pub(crate) probe: Option<(u64, u8)>,
    pub(crate) remembered: Remembered,
}

impl Stream {
    pub(crate) fn new(direction: Direction, isn: u32) -> Self {
        Self {
            direction,
            isn,
            idsn: 0,
            lead: 0,
            sent: ORIGIN,
            fin: None,
            acked: ORIGIN,
            has: Ranges::new(),
            carried: Ranges::new(),
            edge: ORIGIN,
            widest: 0,
            last_edge: ORIGIN,
            overrun: Ranges::new(),
            unheard: Ranges::new(),
            repeated: 0,
            ack_out: ORIGIN,
            probe: None,
            remembered: Remembered::default(),
        }
    }

    /// Position of a TCP sequence number.
    pub(crate) fn at_seq(&self, seq: u32) -> u64 {
        from_seq(seq, self.isn, self.sent)
    }

    /// Position of a data sequence number.
    pub(crate) fn at_dsn(&self, number: DataNumber, reference: u64) -> u64 {
        match number {
            DataNumber::Long(dsn) => from_dsn(dsn, self.idsn),
            DataNumber::Short(low) => from_short_dsn(low, self.idsn, reference),
        }
    }

    /// Behind what the sender has sent, its FIN counted.
    pub(crate) fn end(&self) -> u64 {
        self.fin.map_or(self.sent, |fin| fin.max(self.sent) + 1)
    }

    /// The receiver has everything below `ack`.
    pub(crate) fn acknowledge(&mut self, ack: u64) {
        if ack > self.acked {
            self.acked = ack;
            self.repeated = 0;
            self.has.release(ack);
        }
    }

    /// Whether the receiver has said that it has all of this.
    pub(crate) fn receiver_has(&self, from: u64, to: u64) -> bool {
        let from = from.max(self.acked);
        from >= to || self.has.contains(from, to)
    }

    /// Whether all of this has come to the receiver by its own words, or overran its window.
    pub(crate) fn is_accounted_for(&self, from: u64, to: u64) -> bool {
        let mut at = from.max(self.acked);
        while at < to {
            let known = [&self.has, &self.overrun].map(|ranges| ranges.range_at(at));
            let Some((_, right)) = known.into_iter().flatten().max_by_key(|range| range.1) else {
                return false;
            };
            at = right;
        }
        true
    }

    /// Takes bytes that came in.
    pub(crate) fn note(&mut self, at: u64, bytes: &[u8], len: u64, remembers: bool) {
        self.sent = self.sent.max(at + len);
        if remembers && at >= self.acked.min(self.ack_out) {
            self.remembered.note(at, bytes);
        }
    }

    /// Whether bytes that go out are those that came in.
    pub(crate) fn matches(
        &self,
        oracle: Option<&dyn Oracle>,
        client: SocketAddr,
        at: u64,
        bytes: &[u8],
    ) -> bool {
        match oracle {
            Some(oracle) => {
                let start = ORIGIN + self.lead;
                at >= start && oracle.matches(client, self.direction, at - start, bytes)
            }
            None => self.remembered.matches(at, bytes),
        }
    }
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Connection {
    /// The client's first address.
    pub(crate) client: SocketAddr,
    pub(crate) mode: Mode,
    /// Nobody has asked for another subflow, and the numbers of the initial one have been those of the TCP side so far.
    /// See [`Self::is_identity`].
    pub(crate) identity: bool,
    /// The client has given a reason to fall back.
    pub(crate) may_fall_back: bool,
    /// The proxy's key and the client's.
    pub(crate) proxy_key: Option<u64>,
    pub(crate) client_key: Option<u64>,
    /// Ends towards the server: what it sees as its client, and itself.
    pub(crate) server: Option<(SocketAddr, SocketAddr)>,
    pub(crate) server_scale: u8,
    pub(crate) server_scales: bool,
    pub(crate) server_sack: bool,
    pub(crate) server_timestamps: bool,
    /// Payload and options that the server takes in one segment.
    pub(crate) server_mss: u64,
    pub(crate) server_answered: bool,
    pub(crate) server_clock: Sent,
    pub(crate) server_reset: bool,
    /// The proxy has reset it: what still passes is between the ends.
    pub(crate) over: bool,
    /// TSvals towards the server, the latest one, and the right edge.
    pub(crate) tsvals_out: Sent,
    pub(crate) last_tsval_out: Option<u32>,
    pub(crate) edge_out: Option<u64>,
    pub(crate) up: Stream,
    pub(crate) down: Stream,
    pub(crate) subflows: Vec<Subflow>,
    /// Joins that the proxy has answered.
    pub(crate) joins: u64,
    /// What the ends do is held against them.
    pub(crate) hostile: bool,
    /// How each side has broken the protocol first.
    pub(crate) breaches: [Option<Breach>; 2],
    pub(crate) last_packet: u64,
    /// What is acknowledged is kept for so many bytes more: the proxy may have queued packets that it
    /// sends on after an ACK was captured.
    pub(crate) lag: u64,
    /// When the client was last told more by a data ACK, and on which subflow.
    pub(crate) acked_last: (u64, usize),
    pub(crate) course: Course,
    /// What there is beside where the proxy opens it.
    pub(crate) asking: Option<Asking>,
    /// What stands before its streams, where the client names its server.
    pub(crate) front: Option<Front>,
}

impl Connection {
    pub(crate) fn new(time: u64, initial: Subflow) -> Self {
        Self {
            client: initial.client,
            mode: Mode::Handshake,
            identity: true,
            may_fall_back: false,
            proxy_key: None,
            client_key: None,
            server: None,
            server_scale: 0,
            server_scales: false,
            server_sack: false,
            server_timestamps: false,
            server_mss: u64::MAX,
            server_answered: false,
            server_clock: Sent::default(),
            server_reset: false,
            over: false,
            tsvals_out: Sent::default(),
            last_tsval_out: None,
            edge_out: None,
            up: Stream::new(Direction::Up, initial.isn_client),
            down: Stream::new(Direction::Down, 0),
            subflows: vec![initial],
            joins: 0,
            hostile: false,
            breaches: [None; 2],
            last_packet: time,
            lag: 0,
            acked_last: (time, 0),
            course: Course::default(),
            asking: None,
            front: None,
        }
    }

    /// Whether a client's number, `start` on subflow `index`, lies so far from what is acknowledged there that the
    /// packet counts for nothing (RFC 9293 section 3.10.7.4): further than anything honest would bring news.
    pub(crate) fn is_strange_up(&self, index: usize, start: u64) -> bool {
        let span = if self.translates() {
            span(self.up.widest)
        } else {
            FAR
        };
        self.hostile && start.abs_diff(self.subflows[index].ack_out) > span
    }

    /// The same of a server's data.
    pub(crate) fn is_strange_down(&self, start: u64, end: u64) -> bool {
        let (behind, ahead) = if self.translates() {
            let room = self.down.edge.saturating_sub(self.down.acked);
            (self.down.widest.max(OVERRUN), room + OVERRUN)
        } else {
            (FAR, FAR)
        };
        // Which of a dishonest client's ACKs came in packets that were dropped, nobody can say.
        let known = self.trusts(Side::Client);
        let acked = if known { self.down.acked } else { ORIGIN };
        self.hostile && (start + behind < acked || end > self.down.acked + ahead)
    }

    /// Somebody asks for another subflow with this connection's token. Whatever the proxy answers, the connection can't
    /// fall back from then on: when the client gives the join up, it may send its data again under fresh numbers.
    pub(crate) fn note_join(&mut self) {
        self.identity &= self.mode != Mode::Translated;
    }

    /// Whether there is only the initial subflow, with the numbers of the TCP side, and nobody has asked for another.
    pub(crate) const fn is_identity(&self) -> bool {
        self.identity
    }

    /// Whether the proxy has to translate, and to judge numbers by the windows that it knows.
    pub(crate) fn translates(&self) -> bool {
        self.mode == Mode::Translated && !self.may_relay()
    }

    /// Whether the packets of hostile ends may be relayed as they are.
    pub(crate) fn may_relay(&self) -> bool {
        let plain = self.mode != Mode::Translated && !self.trusts_both();
        self.hostile && (plain || self.may_fall_back)
    }

    /// Lets go of what is acknowledged at both levels.
    pub(crate) fn release(&mut self) {
        let (up, down) = (self.up.ack_out, self.down.acked - self.lag);
        for subflow in &mut self.subflows {
            subflow.up.release(subflow.ack_out, up);
            subflow.down.release(subflow.client_ack - self.lag, down);
        }
        let up_floor = up.min(self.up.acked) - self.lag;
        self.up.remembered.release(up_floor);
        self.up.overrun.release(up_floor);
        self.up.unheard.release(up_floor);
        self.down.remembered.release(down.min(self.down.ack_out));
    }

    /// Mappings and ranges held: for bounds on memory.
    pub(crate) fn held(&self) -> usize {
        let of_subflow = |subflow: &Subflow| subflow.up.len() + subflow.down.len();
        self.subflows.iter().map(of_subflow).sum::<usize>()
            + self.up.has.as_slice().len()
            + self.down.has.as_slice().len()
    }
}

/// Where a check reports to.
pub(crate) struct Report<'a> {
    pub(crate) found: &'a mut Vec<(Rule, String)>,
    pub(crate) oracle: Option<&'a dyn Oracle>,
    pub(crate) exact_echo: bool,
    /// Of the packet, in microseconds.
    pub(crate) time: u64,
    pub(crate) bounds: Option<Bounds>,
}

impl Report<'_> {
    pub(crate) fn add(&mut self, rule: Rule, text: impl Into<String>) {
        self.found.push((rule, text.into()));
    }

    /// Reports when `holds` does not.
    pub(crate) fn expect(&mut self, holds: bool, rule: Rule, text: impl FnOnce() -> String) {
        if !holds {
            self.found.push((rule, text()));
        }
    }
}

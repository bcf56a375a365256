//! A model MPTCP client (RFC 8684): data in one number space, over subflows with their own.

mod answer;
mod errand;
mod handshake;
mod plan;
mod preamble;
mod receive;
mod schedule;
mod send;
mod subflow;

use std::net::SocketAddr;

use flexcp_invariants::{Direction, Ranges};
use flexcp_wire::TcpFlags;

use self::answer::Answering;
pub(crate) use self::handshake::capable;
pub(crate) use self::plan::{Action, MptcpPlan, Scheduler};
use self::preamble::Front;
pub(crate) use self::preamble::Outcome;
use self::subflow::{State, Subflow};
use flexcp_testkit::{Random, keys};

use crate::explicit::Speech;
use crate::net::{Incoming, Outbox};
use crate::payload::Payload;
use crate::stack::{App, Reader, Stack};

/// How far the connection has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// Nothing sent yet, or the SYN.
    Connecting,
    /// MPTCP.
    Multipath,
    /// TCP: never asked for more, or was not given more.
    Plain,
    /// Everything transferred, both directions closed.
    Closed,
    /// Reset by either end.
    Reset,
}

/// After the end of the connection a subflow is closed in this time.
const FIN_TIMEOUT: u64 = 90_000_000;

/// A model client.
#[derive(Debug)]
pub(crate) struct Client {
    stack: Stack,
    app: App,
    plan: MptcpPlan,
    /// Where it stands.
    pub(crate) phase: Phase,
    /// Its address on each link.
    addresses: Vec<SocketAddr>,
    remote: SocketAddr,
    next_port: u16,
    key: u64,
    idsn: u64,
    remote_key: u64,
    remote_idsn: u64,
    remote_token: u32,
    /// The proxy has shown that it has the keys: a DSS came.
    confirmed: bool,
    subflows: Vec<Subflow>,
    turn: usize,
    next_action: usize,
    heard: usize,

    /// Data that goes up: acknowledged, given to subflows, there is.
    pub(crate) una: u64,
    nxt: u64,
    edge: u64,
    wants_close: bool,
    began: bool,
    /// Up to where it may write.
    open_to: u64,
    front: Option<Front>,
    again: Ranges,
    data_timer: Option<u64>,
    data_tries: u32,
    resend_fin: bool,
    probe: Option<usize>,

    /// Data that came down.
    data_in: u64,
    ahead: Ranges,
    fin_in: Option<u64>,
    reader: Reader,

    out: Payload,
    into: Payload,
    random: Random,
    rejoin_at: Option<u64>,
    /// Joins in a row that have come to nothing.
    refused: u32,
    /// What went wrong.
    pub(crate) failure: Option<String>,
    /// Packets dropped by PAWS.
    pub(crate) paws: u64,
    /// Pieces dropped after the subflow's ACK.
    pub(crate) dropped: u64,
    /// It is the one that is connected to.
    answers: Option<Answering>,
}

/// What makes a client.
#[derive(Debug)]
pub(crate) struct Setup {
    /// TCP.
    pub(crate) stack: Stack,
    /// Application.
    pub(crate) app: App,
    /// MPTCP.
    pub(crate) plan: MptcpPlan,
    /// Address on each link; the first is where it starts.
    pub(crate) addresses: Vec<SocketAddr>,
    /// Whom it connects to.
    pub(crate) remote: SocketAddr,
    /// Number of its first SYN.
    pub(crate) isn: u32,
    /// Key.
    pub(crate) key: u64,
    /// Its choices.
    pub(crate) random: Random,
    /// It names its server.
    pub(crate) speech: Option<Speech>,
}

impl Client {
    /// Before its SYN.
    #[must_use]
    pub(crate) fn new(setup: Setup) -> Self {
        let Setup {
            stack,
            mut app,
            plan,
            addresses,
            remote,
            isn,
            key,
            random,
            speech,
        } = setup;
        let front = speech.map(|speech| Front::new(speech, app.reads));
        if let Some(front) = &front {
            app.writes += front.says();
            // Not known before the answer has come.
            app.reads = u64::MAX;
        }
        let first = addresses[0];
        let subflow = Subflow::new(&stack, 0, first, remote, isn, stack.timestamps);
        Self {
            stack,
            app,
            plan,
            phase: Phase::Connecting,
            next_port: first.port(),
            remote,
            key,
            idsn: keys::idsn(key),
            remote_key: 0,
            remote_idsn: 0,
            remote_token: 0,
            confirmed: false,
            subflows: vec![subflow],
            turn: 0,
            next_action: 0,
            heard: 0,
            una: 0,
            nxt: 0,
            edge: 0,
            wants_close: false,
            began: false,
            open_to: 0,
            front,
            again: Ranges::new(),
            data_timer: None,
            data_tries: 0,
            resend_fin: false,
            probe: None,
            data_in: 0,
            ahead: Ranges::new(),
            fin_in: None,
            reader: Reader::new(app, stack.buffer),
            out: Payload::of(first, Direction::Up),
            into: Payload::of(first, Direction::Down),
            addresses,
            random,
            rejoin_at: None,
            refused: 0,
            failure: None,
            paws: 0,
            dropped: 0,
            answers: None,
        }
    }

    /// Sends the SYN.
    pub(crate) fn start(&mut self, now: u64, outbox: &mut Outbox) {
        self.note_start(now);
        self.reader.advance(now, 0, 1460);
        self.send_syn(now, 0, outbox);
    }

    /// Everything was transferred and closed.
    #[must_use]
    pub(crate) fn is_done(&self) -> bool {
        self.phase == Phase::Closed && self.has_no_subflow()
    }

    /// Whether it has everything, and all of its own data is acknowledged, but it has no subflow to hear of its end on, and whoever
    /// opens them has none to open any more: it gives up (RFC 8684 section 3.3.3).
    #[must_use]
    pub(crate) fn is_left_behind(&self) -> bool {
        let acked = self.una >= self.app.writes && self.has_read_all();
        self.is_answering() && acked && self.has_no_subflow()
    }

    /// Whether it has no subflow, and takes none at the only address that there is.
    #[must_use]
    pub(crate) fn is_cut_off(&self) -> bool {
        self.takes_no_joins() && self.has_no_subflow()
    }

    fn has_no_subflow(&self) -> bool {
        self.subflows.iter().all(|s| s.state == State::Closed)
    }

    /// What moves while the connection goes on: bytes both ways, and subflows that are over once no byte is left.
    #[must_use]
    pub(crate) fn progress(&self) -> u64 {
        let over = self.subflows.iter().filter(|s| s.state == State::Closed);
        let closed = if self.phase == Phase::Closed {
            over.count() as u64
        } else {
            0
        };
        self.una + self.data_in + self.reader.read + closed
    }

    /// Whether it uses MPTCP.
    #[must_use]
    pub(crate) const fn asks_for_mptcp(&self) -> bool {
        self.plan.enabled
    }

    /// All data is acknowledged, DATA_FIN included.
    fn has_sent_all(&self) -> bool {
        self.wants_close && self.una == self.app.writes + 1
    }

    /// The end of the server's data has been read.
    fn has_read_all(&self) -> bool {
        self.fin_in
            .is_some_and(|fin| self.data_in == fin + 1 && self.reader.read == fin)
    }

    /// Behind the last byte of data in order.
    fn data_end(&self) -> u64 {
        self.fin_in
            .map_or(self.data_in, |fin| self.data_in.min(fin))
    }

    /// When [`timeout`](Self::timeout) wants to be called.
    #[must_use]
    pub(crate) fn deadline(&self) -> Option<u64> {
        let of_subflows = self.subflows.iter().filter_map(Subflow::deadline).min();
        if matches!(self.phase, Phase::Closed | Phase::Reset) {
            return of_subflows.filter(|_| self.phase == Phase::Closed);
        }
        let action = self
            .plan
            .actions
            .get(self.next_action)
            .map(|action| action.0);
        let action = action.filter(|_| self.phase == Phase::Multipath);
        let starts =
            (!self.began && self.phase != Phase::Connecting).then_some(self.app.writes_from);
        [
            of_subflows,
            self.data_timer,
            self.reader.deadline(),
            self.rejoin_at,
            self.next_gate(),
            self.app
                .aborts_at
                .filter(|_| self.phase != Phase::Connecting),
            action,
            starts,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Does what is due.
    pub(crate) fn timeout(&mut self, now: u64, outbox: &mut Outbox) {
        for index in 0..self.subflows.len() {
            self.subflow_timeout(now, index, outbox);
        }
        if !matches!(self.phase, Phase::Multipath | Phase::Plain) {
            return;
        }
        if self.app.aborts_at.is_some_and(|at| at <= now) {
            self.abort(now, true, outbox);
            return;
        }
        if self.data_timer.is_some_and(|due| due <= now) {
            self.data_timeout(now);
        }
        if self.phase == Phase::Multipath {
            while let Some(&(at, action)) = self.plan.actions.get(self.next_action)
                && at <= now
            {
                self.next_action += 1;
                self.act(now, action, outbox);
            }
            self.join_again(now, outbox);
        }
        self.work(now, outbox);
    }

    /// Takes a packet.
    pub(crate) fn receive(&mut self, now: u64, packet: &Incoming<'_>, outbox: &mut Outbox) {
        let opens = self.is_answering() && packet.has(TcpFlags::SYN) && !packet.has(TcpFlags::ACK);
        let lives = |s: &Subflow| !opens || s.state != State::Closed;
        let known = |s: &Subflow| s.local == packet.to && s.remote == packet.from && lives(s);
        let Some(index) = self.subflows.iter().rposition(known) else {
            self.receive_stranger(now, packet, outbox);
            return;
        };
        if self.failure.is_some() {
            return;
        }
        match self.subflows[index].state {
            State::SynSent => self.receive_syn_ack(now, index, packet, outbox),
            State::SynReceived => self.receive_third(now, index, packet, outbox),
            State::Joining | State::Open => self.receive_open(now, index, packet, outbox),
            State::Closed => self.receive_late(now, index, packet, outbox),
        }
        match self.phase {
            Phase::Multipath | Phase::Plain => self.work(now, outbox),
            Phase::Closed => self.transmit(now, outbox),
            Phase::Connecting | Phase::Reset => {}
        }
    }

    /// The application's turn, then the subflows'.
    fn work(&mut self, now: u64, outbox: &mut Outbox) {
        let end = self.data_end();
        let mss = self.subflows[0].sender.mss;
        if self.reader.advance(now, end, mss) {
            let index = self.answering();
            self.subflows[index].receiver.ack_now = true;
        }
        if now >= self.app.writes_from {
            self.began = true;
            let eof = self.has_read_all();
            self.wants_close |= !self.app.closes_last || eof;
            self.look_at_gates(now);
            self.schedule(now);
        }
        self.transmit(now, outbox);
        self.close_when_done(now, outbox);
    }

    /// A subflow for what belongs to none in particular.
    fn answering(&self) -> usize {
        if self.subflows[self.heard].is_open() {
            return self.heard;
        }
        self.subflows
            .iter()
            .position(Subflow::is_open)
            .unwrap_or(self.heard)
    }

    fn close_when_done(&mut self, now: u64, outbox: &mut Outbox) {
        if self.phase == Phase::Plain {
            let subflow = &self.subflows[0];
            if subflow.sender.fin && subflow.sender.is_done() && self.has_read_all() {
                self.phase = Phase::Closed;
                self.subflows[0].state = State::Closed;
                self.subflows[0].closed_at = now;
            }
            return;
        }
        if !self.has_sent_all() || !self.has_read_all() {
            return;
        }
        self.phase = Phase::Closed;
        self.data_timer = None;
        for index in 0..self.subflows.len() {
            match self.subflows[index].state {
                State::SynSent | State::SynReceived => {
                    self.subflows[index].state = State::Closed;
                }
                State::Joining => self.reset_subflow(now, index, outbox),
                State::Open => {
                    self.subflows[index].sender.fin = true;
                    self.subflows[index].timer = Some(now + FIN_TIMEOUT);
                    self.subflows[index].tries = 0;
                }
                State::Closed => {}
            }
        }
        self.transmit(now, outbox);
    }

    /// Gives up: for whoever watches.
    #[must_use]
    pub(crate) fn summary(&self) -> String {
        use std::fmt::Write;
        let mut text = format!(
            "{:?} confirmed {} up {}..{} of {} edge {} fin {} again {:?}; down {} ahead {:?} fin {:?} read {} edge {}",
            self.phase,
            self.confirmed,
            self.una,
            self.nxt,
            self.app.writes,
            self.edge,
            self.wants_close,
            self.again.as_slice().len(),
            self.data_in,
            self.ahead.as_slice().first(),
            self.fin_in,
            self.reader.read,
            self.reader.edge,
        );
        for s in &self.subflows {
            let _ = write!(
                text,
                "\n    {:?} link {} {} out {}..{} of {} in {} hole {} backup {} tries {}",
                s.state,
                s.link,
                s.local,
                s.sender.una,
                s.sender.nxt,
                s.sender.end,
                s.receiver.nxt,
                s.receiver.has_hole(),
                s.backup,
                s.sender.rtt.backoffs(),
            );
        }
        text
    }
}

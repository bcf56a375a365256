//! One subflow: the client's end of it, and FlexCP's.

use core::time::Duration;

use flexcp_wire::{Ends, Ssn, TcpFlags};

use super::clock::{SubflowClock, later};
use super::close::FIN_PAUSE;
use super::delivery::Delivery;
use super::hole::Filler;
use super::rtt::Rtt;
use super::told::Told;
use crate::access::{AccessId, Accesses};
use crate::arrivals::Traffic;
use crate::dtree::Lane;
use crate::endpoint::Endpoint;
use crate::record::Recorded;
use crate::segment::Segment;
use crate::time::Instant;
use crate::way::Way;

/// MSS of a peer that does not say (RFC 9293 section 3.7.1).
const DEFAULT_MSS_V4: u16 = 536;
const DEFAULT_MSS_V6: u16 = 1220;

/// What an answer may take beyond two round trips at least before it is overdue: less than the two ticks (8 ms at 250 Hz)
/// after which Linux probes.
pub(crate) const JITTER: Duration = Duration::from_millis(5);

/// Life of a subflow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SubflowState {
    /// A join that has been answered; the client has not authenticated itself.
    Joining,
    /// Carries data.
    Established,
    /// The client has sent its FIN, and FlexCP its own with the ACK; nothing more goes down.
    Closing,
    /// Over. The slot may be taken by another.
    Closed,
}

/// One subflow. Sequence numbers are those in its TCP headers.
#[derive(Debug)]
pub(crate) struct Subflow {
    pub(crate) state: SubflowState,
    /// The peer's end.
    pub(crate) remote: Endpoint,
    /// FlexCP's end, as the peer addresses it.
    pub(crate) local: Endpoint,
    /// By which packets leave for the peer's end.
    pub(crate) way: Way,
    pub(crate) agreed: Agreed,
    pub(crate) send: Sending,
    pub(crate) recv: Receiving,
    pub(crate) path: PathHealth,
    pub(crate) join: Join,
    /// FlexCP has reset it, for this reason (RFC 8684 section 3.6).
    pub(crate) given_up: Option<u8>,
    /// The peer's timestamps on it; `None` when they are not used.
    pub(crate) clock: Option<SubflowClock>,
    /// When it came to be.
    pub(crate) opened: Instant,
    /// What outlives the process of it.
    pub(crate) recorded: Recorded,
    pub(crate) traffic: Traffic,
}

/// What the SYNs of a subflow have agreed on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Agreed {
    /// Number of the peer's SYN, or of the last byte that it carried: mappings count from there, as the data of a SYN has no
    /// DSN.
    pub(crate) isn_remote: Ssn,
    /// Bytes that the peer's SYN carried, where FlexCP has taken them.
    pub(crate) syn_data: u16,
    /// What has become of that since.
    pub(crate) syn_again: SynAgain,
    /// Number of FlexCP's SYN.
    pub(crate) isn_local: Ssn,
    /// Largest payload plus options that the peer takes in a segment.
    pub(crate) mss: u16,
    /// The peer offered window scaling in its SYN.
    pub(crate) scales: bool,
    /// Shift of the windows that the peer offers.
    pub(crate) window_scale: u8,
    pub(crate) sack: bool,
    /// ECN (RFC 3168).
    pub(crate) ecn: bool,
}

/// Whether a peer whose SYN carried data has sent it again without.
///
/// Linux puts its keys into the packet behind the last SYN that it sent. So that SYN is ACKed alone, unless the data has been: the peer
/// sends the data again, with the keys.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) enum SynAgain {
    #[default]
    No,
    /// Before it was answered: so many bytes, which FlexCP has, come once more.
    Unanswered(u16),
    /// After the data was ACKed. Where that has arrived since, the keys never come.
    Answered,
}

/// What goes out on a subflow.
#[derive(Debug)]
pub(crate) struct Sending {
    /// Mappings of what went out.
    pub(crate) lane: Lane,
    /// The next number to go out.
    pub(crate) next: Ssn,
    /// Everything before it is ACKed.
    pub(crate) una: Ssn,
    /// The furthest right edge of the window that the peer has offered on this subflow.
    pub(crate) edge: Option<Ssn>,
    /// Number of FlexCP's FIN, once it was sent.
    pub(crate) fin: Option<Ssn>,
    /// When the FIN is repeated, unless it is ACKed before.
    pub(crate) fin_due: Option<Instant>,
    /// Times that it was repeated.
    pub(crate) fin_copies: u8,
    /// Filler went out: what comes twice to the peer is no news for the TCP leg.
    pub(crate) filled: bool,
    /// What is being done about a hole that the data ACK has overtaken.
    pub(crate) filler: Option<Filler>,
}

/// What comes in on a subflow.
#[derive(Debug)]
pub(crate) struct Receiving {
    /// Mappings of what came in.
    pub(crate) lane: Lane,
    /// What FlexCP ACKs: everything before it has reached the peer of the TCP leg.
    pub(crate) ack: Ssn,
    /// Behind the last number that the peer has sent. A mapping may be declared further ahead, and its
    /// data reach the TCP leg from another subflow first: an ACK beyond this would be one of unsent data.
    pub(crate) high: Ssn,
    /// What the peer was told by SACK.
    pub(crate) told: Told,
    /// Number of the peer's FIN, once it was seen.
    pub(crate) fin: Option<Ssn>,
    /// It is ACKed, with everything before it.
    pub(crate) fin_acked: bool,
}

/// Bytes that a subflow that was joined takes before its client has told a window there: Linux offers 64,240 and more by
/// default. What a client drops that offers less the server repeats.
const UNTOLD_WINDOW: u32 = 60_000;

/// How well a path serves: what is measured on its subflow, and what its peer wants.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PathHealth {
    /// The peer wants it used when no other is left (RFC 8684 section 3.3.8).
    pub(crate) backup: bool,
    /// Silent while data was outstanding: nothing new goes out until the peer is heard.
    pub(crate) suspect: bool,
    /// How long the latest answer took that the path was suspected for, in milliseconds: so much later than two round trips the
    /// next ones may come, too. Linux withholds an ACK for 40 ms while the application has not read.
    pub(crate) late: u8,
    /// ACKs in a row that moved on without saying a data ACK: options are being stripped.
    pub(crate) bare_acks: u8,
    /// Last packet from the peer.
    pub(crate) last_heard: Instant,
    /// When the first byte that is not ACKed went out, or the peer last showed that something
    /// arrived: its ACK moved on, or it sent a bare ACK. Data of the peer's shows nothing of the kind.
    pub(crate) outstanding_since: Instant,
    pub(crate) timed: Timed,
    pub(crate) rtt: Rtt,
    pub(crate) delivery: Delivery,
}

/// What gives the next RTT sample.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) enum Timed {
    /// Nothing that is on its way.
    #[default]
    Nothing,
    /// The ACK of this number, which went out then.
    Number(Ssn, Instant),
    /// The same of a number that something is missing before: SACK alone says when it comes.
    Behind(Ssn, Instant),
    /// The echo of this TSval, which went out then to a peer that had nothing to ACK.
    Echo(u32, Instant),
    /// Nothing; the last sample was taken then.
    Measured(Instant),
}

/// What makes a joined subflow the connection's (RFC 8684 section 3.2).
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Join {
    /// Nonces: the peer's and FlexCP's.
    pub(crate) nonces: (u32, u32),
    /// The peer's address id; 0 for the initial subflow.
    pub(crate) address_id: u8,
    /// The peer has authenticated itself.
    pub(crate) proved: bool,
    /// Place of the uplink that it is on, where FlexCP has asked for it.
    pub(super) uplink: u8,
    /// The peer had an earlier connection from its port, and was told that this is over.
    pub(super) earlier_ended: bool,
}

impl Subflow {
    /// From the peer's SYN.
    pub(crate) fn new(now: Instant, syn: &Segment, isn_local: Ssn) -> Self {
        let isn_remote = Ssn(syn.tcp.seq);
        Self {
            state: SubflowState::Joining,
            remote: syn.source().into(),
            local: syn.destination().into(),
            way: Way::OTHER,
            agreed: Agreed::new(syn, isn_local),
            send: Sending::from(isn_local),
            recv: Receiving::from(isn_remote),
            path: PathHealth::new(now, isn_local.add(1)),
            join: Join::default(),
            given_up: None,
            clock: None,
            opened: now,
            recorded: Recorded::No,
            traffic: Traffic::default(),
        }
    }

    /// Towards a peer that is sent a SYN with this number. `ends`: of packets to it.
    pub(super) fn towards(now: Instant, ends: Ends, isn_local: Ssn) -> Self {
        Self {
            state: SubflowState::Joining,
            remote: ends.to.into(),
            local: ends.from.into(),
            way: Way::OTHER,
            agreed: Agreed::unanswered(isn_local),
            send: Sending::from(isn_local),
            recv: Receiving::from(Ssn(0)),
            path: PathHealth::new(now, isn_local.add(1)),
            join: Join::default(),
            given_up: None,
            clock: None,
            opened: now,
            recorded: Recorded::No,
            traffic: Traffic::default(),
        }
    }

    /// The same, of a SYN with data, of which FlexCP takes so many bytes, and ACKs them with its own.
    pub(crate) fn behind_data(now: Instant, syn: &Segment, isn_local: Ssn, taken: usize) -> Self {
        let mut subflow = Self::new(now, syn, isn_local);
        let len = u16::try_from(taken).unwrap_or(u16::MAX);
        subflow.agreed.syn_data = len;
        subflow.agreed.isn_remote = subflow.agreed.isn_remote.add(len.into());
        subflow.recv = Receiving::from(subflow.agreed.isn_remote);
        subflow
    }

    /// Number of the peer's SYN.
    pub(crate) fn syn_number(&self) -> Ssn {
        self.agreed.isn_remote.sub(self.agreed.syn_data.into())
    }

    /// The peer sends its SYN again, without what it carried. `answered`: a SYN/ACK has gone that ACKs that.
    pub(crate) fn note_syn_again(&mut self, answered: bool) {
        let len = self.agreed.syn_data;
        if len == 0 {
            return;
        }
        if answered {
            self.agreed.syn_again = SynAgain::Answered;
        } else {
            self.count_from(self.syn_number(), 0);
            self.agreed.syn_again = SynAgain::Unanswered(len);
        }
    }

    /// What its SYN carried has come with it after all: before it was answered by TCP alone, or with the keys and without a mapping.
    pub(crate) fn take_syn_data(&mut self) {
        if let SynAgain::Unanswered(len) = self.agreed.syn_again {
            self.count_from(self.agreed.isn_remote.add(len.into()), len);
        }
        self.agreed.syn_again = SynAgain::No;
    }

    /// Mappings count from here, behind so many bytes of the SYN.
    fn count_from(&mut self, isn: Ssn, syn_data: u16) {
        self.agreed.isn_remote = isn;
        self.agreed.syn_data = syn_data;
        self.recv = Receiving::from(isn);
    }

    /// Ends of a packet to the client.
    pub(crate) fn ends(&self) -> Ends {
        Ends {
            from: self.local.addr(),
            to: self.remote.addr(),
        }
    }

    /// Ends of a packet from the client, as the flow table knows them.
    pub(crate) fn flow(&self) -> Ends {
        Ends {
            from: self.remote.addr(),
            to: self.local.addr(),
        }
    }

    /// The access that it is of.
    pub(crate) fn access(&self, accesses: &Accesses) -> Option<AccessId> {
        let (remote, local) = (self.remote.addr().ip(), self.local.addr().ip());
        accesses.of(remote, local, self.way)
    }

    /// Whether data can go down on it.
    pub(crate) fn carries(&self) -> bool {
        self.state == SubflowState::Established
    }

    /// Whether what went down on it may still arrive: FlexCP's FIN stands behind the rest.
    pub(crate) fn delivers(&self) -> bool {
        matches!(
            self.state,
            SubflowState::Established | SubflowState::Closing
        )
    }

    /// Whether it takes up a place among the connection's subflows.
    pub(crate) fn lives(&self) -> bool {
        self.state != SubflowState::Closed
    }

    /// A number as a DSS option says it: relative to the SYN.
    pub(crate) const fn relative(&self, ssn: Ssn) -> u32 {
        ssn.since(self.agreed.isn_local)
    }

    /// The number that the client's DSS option means.
    pub(crate) const fn absolute(&self, relative: u32) -> Ssn {
        self.agreed.isn_remote.add(relative)
    }

    /// The number that FlexCP ACKs, the peer's FIN counted once that is.
    pub(crate) fn ack_number(&self) -> Ssn {
        if self.recv.has_acked_fin() {
            self.recv.ack.add(1)
        } else {
            self.recv.ack
        }
    }

    /// Notes what the client's packet says about the path and its clock. Call it after
    /// [`take_ack`](Self::take_ack).
    pub(crate) fn heard(&mut self, now: Instant, segment: &Segment) {
        self.path.last_heard = now;
        self.recv.high = self
            .recv
            .high
            .max(Ssn(segment.tcp.seq).add(segment.payload_len()));
        if segment.payload.is_empty() {
            self.path.outstanding_since = now;
        }
        self.take_blocks(now, segment);
        let next = !segment.payload.is_empty() && !Ssn(segment.tcp.seq).after(self.recv.ack);
        if let (Some(clock), Some(timestamps)) = (&mut self.clock, segment.options.timestamps) {
            clock.heard(timestamps, next);
            self.take_echo(now, timestamps.ecr);
        }
    }

    /// Takes an RTT sample from SACK blocks: what is timed has come though something before it is missing. Its ACK would time the
    /// repair.
    fn take_blocks(&mut self, now: Instant, segment: &Segment) {
        let (Timed::Number(timed, sent) | Timed::Behind(timed, sent)) = self.path.timed else {
            return;
        };
        if segment.options.sack.is_empty() || !timed.after(self.send.una) {
            return;
        }
        self.path.timed = Timed::Behind(timed, sent);
        let blocks = segment.options.sack.iter();
        let mut blocks = blocks.map(|&(left, right)| (Ssn(left), Ssn(right)));
        let holds = |(left, right): (Ssn, Ssn)| timed.after(left) && !timed.after(right);
        if blocks.clone().any(holds) {
            self.take_timed(now);
        } else if blocks.any(|(left, _)| !timed.after(left)) {
            // It is missing itself.
            self.path.timed = Timed::Nothing;
        }
    }

    /// Takes the client's subflow ACK. `false`: it ACKs what was never sent, or is `span` old.
    pub(crate) fn take_ack(&mut self, now: Instant, ack: Ssn, span: u32) -> bool {
        if ack.after(self.send.next) || ack.before(self.send.una.sub(span)) {
            return false;
        }
        self.take_sample(now, ack);
        if ack.after(self.send.una) {
            self.send.una = ack;
            self.path.note_answer(now);
            self.path.outstanding_since = now;
            let rtt = self.rtt();
            self.path.delivery.acked(now, ack, self.send.next, rtt);
            if self.send.fin_due.is_some() || self.send.fin_copies > 0 {
                self.expect_fin_ack(now);
            }
        }
        true
    }

    /// Notes the right edge of the client's window, as this subflow was told.
    pub(crate) fn take_window(&mut self, edge: Ssn) {
        self.send.edge = Some(self.send.edge.map_or(edge, |known| known.max(edge)));
    }

    /// Whether the client expects `len` more bytes on this subflow.
    pub(crate) fn has_room(&self, len: u32) -> bool {
        self.send
            .edge
            .is_some_and(|edge| !self.send.next.add(len).after(edge))
    }

    /// Whether the client, which has yet to tell a window on this subflow, expects `len` more bytes: as many as it offers
    /// when it joins.
    pub(crate) fn has_room_untold(&self, len: u32) -> bool {
        let outstanding = self.send.next.since(self.send.una);
        self.send.edge.is_none() && outstanding.saturating_add(len) <= UNTOLD_WINDOW
    }

    /// The client ACKs what stands before FlexCP's FIN: the path works, so the copies count anew.
    fn expect_fin_ack(&mut self, now: Instant) {
        if self.send.fin.is_some_and(|fin| !self.send.una.after(fin)) {
            self.send.fin_copies = 0;
            self.send.fin_due = Some(now + FIN_PAUSE);
        }
    }

    /// Notes that `len` new bytes went down: they are the next to be timed, unless others are.
    pub(crate) fn sent_new(&mut self, now: Instant, len: u32) {
        self.sent_new_hole(now, len);
        if !matches!(self.path.timed, Timed::Number(..) | Timed::Behind(..)) {
            self.path.timed = Timed::Number(self.send.next, now);
        }
        self.traffic.bytes_down += u64::from(len);
    }

    /// Notes that `len` numbers are kept for data that is still to come.
    pub(crate) fn sent_new_hole(&mut self, now: Instant, len: u32) {
        let was_idle = self.send.una == self.send.next;
        if was_idle {
            self.path.outstanding_since = now;
        }
        self.send.next = self.send.next.add(len);
        self.path
            .delivery
            .sent(now, self.send.una, was_idle, self.send.next);
    }

    /// What is being timed is ambiguous.
    pub(crate) const fn stop_timing(&mut self) {
        if let Timed::Number(..) | Timed::Behind(..) = self.path.timed {
            self.path.timed = Timed::Nothing;
        }
    }

    /// Notes that `len` bytes from `ssn` on went down again. If what is being timed is among them it is ambiguous (Karn's rule);
    /// what stands before them is not, nor what stands behind them, where SACK says when it comes.
    pub(crate) fn sent_again(&mut self, ssn: Ssn, len: u32) {
        if let Timed::Number(timed, sent) | Timed::Behind(timed, sent) = self.path.timed
            && timed.after(ssn)
        {
            self.path.timed = if self.agreed.sack && timed.after(ssn.add(len)) {
                Timed::Behind(timed, sent)
            } else {
                Timed::Nothing
            };
        }
        self.traffic.bytes_down += u64::from(len);
        self.traffic.retransmitted_down += u64::from(len);
    }

    /// Whether data is outstanding and the client has not shown for `silence`, and two round trips, that
    /// anything arrives; or an answer is overdue.
    ///
    /// A fast retransmission comes one round trip after the last packet it answers to.
    pub(crate) fn is_silent(&self, now: Instant, silence: Duration) -> bool {
        let round_trips = self.rtt().map_or(Duration::ZERO, |rtt| rtt * 2);
        self.is_mute(now, silence.max(round_trips)) || self.is_overdue(now, silence)
    }

    /// Whether the client should have answered by now: it ACKs every other full segment at once (RFC 9293
    /// section 3.8.6.3), and two round trips are over. At most `silence`, or two round trips, are waited.
    pub(crate) fn is_overdue(&self, now: Instant, silence: Duration) -> bool {
        let owes = self.send.next.since(self.send.una) >= u32::from(self.agreed.mss) * 2;
        owes && self.rtt().is_some() && now >= self.answer_due(silence)
    }

    /// When the client should have answered what is outstanding: two round trips after that went down, and what its answers
    /// may be late, at most `silence` or two round trips; after `silence` while the round trip is not known.
    pub(crate) fn answer_due(&self, silence: Duration) -> Instant {
        let late = JITTER.max(Duration::from_millis(self.path.late.into()));
        let limit = |rtt: Duration| (rtt * 2 + late).min(silence.max(rtt * 2));
        self.path.outstanding_since + self.rtt().map_or(silence, limit)
    }

    /// Whether data is outstanding and the client has not shown for so long that anything arrives.
    pub(crate) fn is_mute(&self, now: Instant, limit: Duration) -> bool {
        self.send.una != self.send.next && now.since(self.path.outstanding_since) >= limit
    }

    /// The smoothed RTT of data.
    pub(crate) fn rtt(&self) -> Option<Duration> {
        self.path.rtt.smoothed()
    }

    /// Takes an RTT sample, if what is being timed is ACKed: data, or FlexCP's SYN.
    pub(crate) fn take_sample(&mut self, now: Instant, ack: Ssn) {
        match self.path.timed {
            Timed::Number(timed, _) if !ack.before(timed) => self.take_timed(now),
            Timed::Behind(timed, _) if !ack.before(timed) => self.path.timed = Timed::Nothing,
            _ => {}
        }
    }

    /// What is timed has come.
    fn take_timed(&mut self, now: Instant) {
        let (Timed::Number(timed, sent) | Timed::Behind(timed, sent)) = self.path.timed else {
            return;
        };
        self.path.timed = Timed::Measured(now);
        let sample = now.since(sent);
        if sample.is_zero() {
            return;
        }
        // Data is timed by the number behind its last byte, so never by the one behind the SYN.
        if self.relative(timed) == 1 {
            self.path.rtt.sample_handshake(now, sample);
        } else {
            self.path.rtt.sample(now, sample);
        }
    }

    /// Notes that FlexCP's SYN goes out for the first time: its ACK gives an RTT sample.
    pub(crate) fn sent_syn(&mut self, now: Instant) {
        self.path.timed = Timed::Number(self.send.next, now);
        self.path.delivery = Delivery::new(now, self.send.una);
    }

    /// Notes that FlexCP's SYN goes out again (Karn's rule).
    pub(crate) const fn sent_syn_again(&mut self) {
        self.path.timed = Timed::Nothing;
    }

    /// Whether the path carries nothing and has not been measured for `pause`; the peer has to use timestamps.
    pub(crate) fn is_to_be_measured(&self, now: Instant, pause: Duration) -> bool {
        let at_rest = self.send.una == self.send.next && self.clock.is_some();
        let due = match self.path.timed {
            Timed::Nothing | Timed::Number(..) | Timed::Behind(..) => true,
            Timed::Echo(_, at) | Timed::Measured(at) => now.since(at) >= pause,
        };
        at_rest && due
    }

    /// Whether an echo is waited for, on a path that carries nothing, not longer than `most`.
    pub(crate) fn is_being_measured(&self, now: Instant, most: Duration) -> bool {
        matches!(self.path.timed, Timed::Echo(_, at) if now.since(at) <= most)
    }

    /// Whether the path has been measured since then, or can't be while it carries nothing.
    pub(crate) fn is_known_since(&self, then: Instant) -> bool {
        self.clock.is_none() || matches!(self.path.timed, Timed::Measured(at) if at > then)
    }

    /// Notes that a packet with this TSval goes out on a path at rest: the echo gives an RTT sample.
    pub(crate) const fn sent_echoed(&mut self, now: Instant, val: u32) {
        self.path.timed = Timed::Echo(val, now);
    }

    /// Takes an RTT sample, if this is the echo that is waited for.
    fn take_echo(&mut self, now: Instant, echo: u32) {
        if let Timed::Echo(val, sent) = self.path.timed
            && !later(val, echo)
        {
            self.path.timed = Timed::Measured(now);
            let sample = now.since(sent);
            if !sample.is_zero() {
                self.path.rtt.restart(now, sample);
            }
        }
    }
}

impl Agreed {
    fn new(syn: &Segment, isn_local: Ssn) -> Self {
        let default_mss = if syn.ip.is_v6() {
            DEFAULT_MSS_V6
        } else {
            DEFAULT_MSS_V4
        };
        Self {
            isn_remote: Ssn(syn.tcp.seq),
            syn_data: 0,
            syn_again: SynAgain::No,
            isn_local,
            mss: syn.options.mss.unwrap_or(default_mss),
            scales: syn.options.window_scale.is_some(),
            window_scale: syn.options.window_scale.unwrap_or(0),
            sack: syn.options.sack_permitted,
            ecn: false,
        }
    }

    /// Nothing yet: the SYN with this number waits for its answer.
    const fn unanswered(isn_local: Ssn) -> Self {
        Self {
            isn_remote: Ssn(0),
            syn_data: 0,
            syn_again: SynAgain::No,
            isn_local,
            mss: DEFAULT_MSS_V4,
            scales: false,
            window_scale: 0,
            sack: false,
            ecn: false,
        }
    }

    /// What the peer's SYN/ACK says of it.
    pub(super) fn answered_by(&mut self, answer: &Segment) {
        let ecn = self.ecn && answer.has(TcpFlags::ECE);
        *self = Self {
            ecn,
            ..Self::new(answer, self.isn_local)
        };
    }
}

impl Sending {
    /// Nothing has gone out behind the SYN with this number.
    fn from(isn: Ssn) -> Self {
        Self {
            lane: Lane::default(),
            next: isn.add(1),
            una: isn.add(1),
            edge: None,
            fin: None,
            fin_due: None,
            fin_copies: 0,
            filled: false,
            filler: None,
        }
    }
}

impl Receiving {
    /// Nothing has come in behind the SYN with this number.
    pub(super) fn from(isn: Ssn) -> Self {
        Self {
            lane: Lane::default(),
            ack: isn.add(1),
            high: isn.add(1),
            told: Told::default(),
            fin: None,
            fin_acked: false,
        }
    }
}

impl PathHealth {
    /// Notes that what went out is ACKed. A path that was suspected in vain is waited for longer from then on, one that was
    /// dead no longer than at first.
    fn note_answer(&mut self, now: Instant) {
        if self.suspect {
            self.suspect = false;
            let took = now.since(self.outstanding_since).as_millis();
            self.late = u8::try_from(took).map_or(0, |took| took.max(self.late));
        }
    }

    /// The SYN that is timed has carried data, too: the number behind it is this one.
    pub(super) const fn move_timed_syn(&mut self, behind: Ssn) {
        if let Timed::Number(_, sent) = self.timed {
            self.timed = Timed::Number(behind, sent);
        }
    }

    fn new(now: Instant, una: Ssn) -> Self {
        Self {
            backup: false,
            suspect: false,
            late: 0,
            bare_acks: 0,
            last_heard: now,
            outstanding_since: now,
            timed: Timed::Nothing,
            rtt: Rtt::default(),
            delivery: Delivery::new(now, una),
        }
    }
}

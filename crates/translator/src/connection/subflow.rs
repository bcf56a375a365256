//! One subflow: the client's end of it, and FlexCP's.

use core::time::Duration;

use flexcp_wire::{Ends, Ssn};

use super::clock::SubflowClock;
use super::close::FIN_PAUSE;
use super::hole::Filler;
use super::told::Told;
use crate::dtree::Lane;
use crate::endpoint::Endpoint;
use crate::record::Recorded;
use crate::segment::Segment;
use crate::time::Instant;

/// MSS of a peer that does not say (RFC 9293 section 3.7.1).
const DEFAULT_MSS_V4: u16 = 536;
const DEFAULT_MSS_V6: u16 = 1220;

/// What an answer may take beyond two round trips before it is overdue: less than the two ticks (8 ms at 250 Hz)
/// after which Linux probes.
const JITTER: Duration = Duration::from_millis(5);

/// Life of a subflow. FlexCP never opens one, so there is no state before the client's SYN.
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
    /// The client's end.
    pub(crate) remote: Endpoint,
    /// What the client addresses.
    pub(crate) local: Endpoint,
    /// The client's address id; 0 for the initial subflow.
    pub(crate) address_id: u8,
    pub(crate) backup: bool,
    /// Silent while data was outstanding: nothing new goes down until the client is heard on it.
    pub(crate) suspect: bool,
    /// ECN was negotiated on it (RFC 3168).
    pub(crate) ecn: bool,
    pub(crate) sack: bool,
    /// Largest payload plus options that the client takes in a segment.
    pub(crate) mss: u16,
    /// The client offered window scaling in its SYN.
    pub(crate) scales: bool,
    /// Shift of the windows that the client offers on it.
    pub(crate) window_scale: u8,
    /// Initial numbers: of the client's SYN, and of the SYN/ACK to it.
    pub(crate) isn_remote: Ssn,
    pub(crate) isn_local: Ssn,

    /// Mappings of data that went down on it.
    pub(crate) down: Lane,
    /// The next number to go down.
    pub(crate) snd_next: Ssn,
    /// Everything before it is ACKed by the client.
    pub(crate) snd_una: Ssn,
    /// The furthest right edge of the client's window that it has offered on this subflow.
    pub(crate) snd_edge: Option<Ssn>,
    /// Mappings of data that came up on it.
    pub(crate) up: Lane,
    /// What FlexCP ACKs to the client: everything before it has reached the server.
    pub(crate) rcv_ack: Ssn,
    /// Behind the last number that the client has sent. A mapping may be declared further ahead, and its
    /// data reach the server on another subflow first: an ACK beyond this would be one of unsent data.
    pub(crate) rcv_high: Ssn,
    /// What the client was told by SACK.
    pub(crate) told: Told,
    /// Number of the client's FIN on this subflow, once it was seen.
    pub(crate) fin_remote: Option<Ssn>,
    /// Number of FlexCP's FIN on this subflow, once it was sent.
    pub(crate) fin_local: Option<Ssn>,
    /// When that is repeated, unless the client ACKs it before, and how often it was.
    pub(crate) fin_due: Option<Instant>,
    pub(crate) fin_copies: u8,
    /// Its client has authenticated itself on it.
    pub(crate) proved: bool,
    /// FlexCP has reset it, for this reason (RFC 8684 section 3.6).
    pub(crate) given_up: Option<u8>,

    /// The client's timestamps on it; `None` when they are not used.
    pub(crate) clock: Option<SubflowClock>,
    /// Nonces of the join: the client's and FlexCP's.
    pub(crate) nonces: (u32, u32),
    /// When it came to be.
    pub(crate) opened: Instant,
    /// Last packet from the client.
    pub(crate) last_heard: Instant,
    /// When the first byte that is not ACKed went down, or the client last showed that something
    /// arrived: its ACK moved on, or it sent a bare ACK. Data of the client's shows nothing of the kind.
    pub(crate) outstanding_since: Instant,
    /// A number whose ACK gives the next RTT sample, and when it went down.
    pub(crate) timed: Option<(Ssn, Instant)>,
    /// Smoothed RTT in microseconds (RFC 6298).
    pub(crate) srtt: Option<u32>,
    /// What is being done about a hole that the data ACK has overtaken.
    pub(crate) filler: Option<Filler>,
    /// Filler went down on it: what comes twice to the client is no news for the server.
    pub(crate) filled: bool,
    /// ACKs in a row that moved on without saying a data ACK: options are being stripped.
    pub(crate) bare_acks: u8,

    /// What outlives the process of it.
    pub(crate) recorded: Recorded,
    pub(crate) bytes_up: u64,
    pub(crate) bytes_down: u64,
    pub(crate) retransmitted_down: u64,
}

impl Subflow {
    /// From the client's SYN.
    pub(crate) fn new(now: Instant, syn: &Segment, isn_local: Ssn) -> Self {
        let isn_remote = Ssn(syn.tcp.seq);
        let default_mss = if syn.ip.is_v6() {
            DEFAULT_MSS_V6
        } else {
            DEFAULT_MSS_V4
        };
        Self {
            state: SubflowState::Joining,
            remote: syn.source().into(),
            local: syn.destination().into(),
            address_id: 0,
            backup: false,
            suspect: false,
            ecn: false,
            sack: syn.options.sack_permitted,
            mss: syn.options.mss.unwrap_or(default_mss),
            scales: syn.options.window_scale.is_some(),
            window_scale: syn.options.window_scale.unwrap_or(0),
            isn_remote,
            isn_local,
            down: Lane::default(),
            snd_next: isn_local.add(1),
            snd_una: isn_local.add(1),
            snd_edge: None,
            up: Lane::default(),
            rcv_ack: isn_remote.add(1),
            rcv_high: isn_remote.add(1),
            told: Told::default(),
            fin_remote: None,
            fin_local: None,
            fin_due: None,
            fin_copies: 0,
            proved: false,
            given_up: None,
            clock: None,
            nonces: (0, 0),
            opened: now,
            last_heard: now,
            outstanding_since: now,
            timed: None,
            srtt: None,
            filler: None,
            filled: false,
            bare_acks: 0,
            recorded: Recorded::No,
            bytes_up: 0,
            bytes_down: 0,
            retransmitted_down: 0,
        }
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
    pub(crate) const fn relative_down(&self, ssn: Ssn) -> u32 {
        ssn.since(self.isn_local)
    }

    /// The number that the client's DSS option means.
    pub(crate) const fn absolute_up(&self, relative: u32) -> Ssn {
        self.isn_remote.add(relative)
    }

    /// The number that FlexCP ACKs, its FIN counted once everything before it is ACKed.
    pub(crate) fn ack_number(&self) -> Ssn {
        if self.fin_remote == Some(self.rcv_ack) {
            self.rcv_ack.add(1)
        } else {
            self.rcv_ack
        }
    }

    /// Notes what the client's packet says about the path and its clock. Call it after
    /// [`take_ack`](Self::take_ack).
    pub(crate) fn heard(&mut self, now: Instant, segment: &Segment) {
        self.last_heard = now;
        self.rcv_high = self
            .rcv_high
            .max(Ssn(segment.tcp.seq).add(segment.payload_len()));
        if segment.payload.is_empty() {
            self.outstanding_since = now;
        }
        if self.snd_una == self.snd_next {
            self.suspect = false;
        }
        let next = !segment.payload.is_empty() && !Ssn(segment.tcp.seq).after(self.rcv_ack);
        if let (Some(clock), Some(timestamps)) = (&mut self.clock, segment.options.timestamps) {
            clock.heard(timestamps, next);
        }
    }

    /// Takes the client's subflow ACK. `false`: it ACKs what was never sent, or is `span` old.
    pub(crate) fn take_ack(&mut self, now: Instant, ack: Ssn, span: u32) -> bool {
        if ack.after(self.snd_next) || ack.before(self.snd_una.sub(span)) {
            return false;
        }
        if ack.after(self.snd_una) {
            self.snd_una = ack;
            self.outstanding_since = now;
            self.suspect = false;
            if self.fin_due.is_some() || self.fin_copies > 0 {
                self.expect_fin_ack(now);
            }
            if let Some((timed, sent)) = self.timed
                && !ack.before(timed)
            {
                self.timed = None;
                self.sample_rtt(now.since(sent));
            }
        }
        true
    }

    /// Notes the right edge of the client's window, as this subflow was told.
    pub(crate) fn take_window(&mut self, edge: Ssn) {
        self.snd_edge = Some(self.snd_edge.map_or(edge, |known| known.max(edge)));
    }

    /// Whether the client expects `len` more bytes on this subflow.
    pub(crate) fn has_room(&self, len: u32) -> bool {
        self.snd_edge
            .is_some_and(|edge| !self.snd_next.add(len).after(edge))
    }

    /// The client ACKs what stands before FlexCP's FIN: the path works, so the copies count anew.
    fn expect_fin_ack(&mut self, now: Instant) {
        if self.fin_local.is_some_and(|fin| !self.snd_una.after(fin)) {
            self.fin_copies = 0;
            self.fin_due = Some(now + FIN_PAUSE);
        }
    }

    /// Notes that `len` new bytes went down: they are the next to be timed, unless others are.
    pub(crate) fn sent_new(&mut self, now: Instant, len: u32) {
        if self.snd_una == self.snd_next {
            self.outstanding_since = now;
        }
        self.snd_next = self.snd_next.add(len);
        if self.timed.is_none() {
            self.timed = Some((self.snd_next, now));
        }
        self.bytes_down += u64::from(len);
    }

    /// Notes that `len` numbers are kept for data that is still to come.
    pub(crate) fn sent_new_hole(&mut self, now: Instant, len: u32) {
        if self.snd_una == self.snd_next {
            self.outstanding_since = now;
        }
        self.snd_next = self.snd_next.add(len);
    }

    /// Notes that `len` bytes went down again: what is being timed is ambiguous (Karn's rule).
    pub(crate) fn sent_again(&mut self, len: u32) {
        self.timed = None;
        self.bytes_down += u64::from(len);
        self.retransmitted_down += u64::from(len);
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
        let owes = self.snd_next.since(self.snd_una) >= u32::from(self.mss) * 2;
        owes && self.rtt().is_some() && now >= self.answer_due(silence)
    }

    /// When the client should have answered what is outstanding: two round trips after that went down, at most
    /// `silence` or two round trips; after `silence` while the round trip is not known.
    pub(crate) fn answer_due(&self, silence: Duration) -> Instant {
        let limit = |rtt: Duration| (rtt * 2 + JITTER).min(silence.max(rtt * 2));
        self.outstanding_since + self.rtt().map_or(silence, limit)
    }

    fn is_mute(&self, now: Instant, limit: Duration) -> bool {
        self.snd_una != self.snd_next && now.since(self.outstanding_since) >= limit
    }

    /// The smoothed RTT.
    pub(crate) fn rtt(&self) -> Option<Duration> {
        self.srtt
            .map(|micros| Duration::from_micros(u64::from(micros)))
    }

    /// RFC 6298 section 2: alpha = 1/8. Never 0, which a flow entry takes for unknown.
    fn sample_rtt(&mut self, sample: Duration) {
        let micros = u32::try_from(sample.as_micros()).map_or(u32::MAX, |micros| micros.max(1));
        self.srtt = Some(
            self.srtt
                .map_or(micros, |srtt| srtt - srtt / 8 + micros / 8),
        );
    }
}

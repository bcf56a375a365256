//! The TCP end that answers a client until its server is known, or because there will be none.
//!
//! To the rest of the translator it is a server like any other: a SYN goes there, and what it says comes from there. So the
//! MPTCP side of a client whose preamble comes after the handshake (SOCKS5, RFC 1928; Convert, RFC 8803 section 4.1) is that of
//! every client: joins, fallbacks, closes and repetitions are nothing of its own.
//!
//! It takes the preamble and not a byte behind it, so nothing of the stream is kept: what comes too early the client repeats.

use alloc::vec::Vec;
use core::time::Duration;

use flexcp_preamble::{Dialogue, Gate, Turn};
use flexcp_wire::{Ends, OptionWriter, TcpFlags, TcpOption, TcpSeq, Timestamps};

use crate::frame::Transmit;
use crate::segment::{Outgoing, Segment};
use crate::time::Instant;

/// What it takes before it has to be told more: longer than any preamble (a Convert message has at most 1,020 bytes, RFC 8803
/// section 6.1; those of SOCKS5 together fewer than that).
const WINDOW: u32 = 2048;
/// Shift of the windows that the client is told: what Linux offers most often.
pub(super) const SCALE: u8 = 7;
/// What is not ACKed goes again after that, then after twice as long each time.
const PAUSE: Duration = Duration::from_millis(300);
/// So often, and then the client is given up.
const MAX_COPIES: u8 = 8;
/// TCP options at most.
const OPTIONS: usize = 40;

/// How far it has come with the client's TCP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// The SYN has not come.
    Listens,
    /// Its SYN/ACK is not ACKed.
    Answered,
    Open,
    /// Reset.
    Over,
}

/// What becomes of what the client sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Hears {
    /// It is the preamble.
    Preamble,
    /// It is the stream's, and has to wait for a server.
    Stream,
    /// Nobody wants it: the client is refused.
    Nothing,
}

/// What follows the data of a client's SYN.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Then {
    /// More of its preamble.
    Preamble,
    /// Its stream: it has said whom it wants.
    Stream,
    /// Nothing that anybody wants.
    Nothing,
}

/// What the client's SYN has offered.
#[derive(Clone, Copy, Debug)]
struct Offered {
    mss: u16,
    scale: Option<u8>,
    sack: bool,
    timestamps: bool,
}

/// The TCP end that stands in a server's place.
#[derive(Debug)]
pub(crate) struct Responder {
    dialogue: Dialogue,
    /// From here to the client's side of the TCP leg.
    ends: Ends,
    state: State,
    hears: Hears,
    offered: Offered,
    /// The MSS that the client is told.
    mss: u16,
    /// What it has said, from the first byte on that is not ACKed.
    said: Vec<u8>,
    /// Number of that byte.
    una: TcpSeq,
    /// Its FIN stands behind that.
    closes: bool,
    /// The next number of the client's.
    next: TcpSeq,
    /// The client has sent its FIN, and it was taken.
    ended: bool,
    /// Right edge of the window that the client is told.
    edge: TcpSeq,
    clock: Clock,
    /// The window that the client offered last, as its packet had it.
    offers: u16,
    repeat: Repeat,
}

/// Its timestamps (RFC 7323), in milliseconds from a beginning that nobody can guess.
#[derive(Clone, Copy, Debug)]
struct Clock {
    base: u32,
    /// The latest of the client's.
    heard: u32,
}

/// When what is not ACKed goes again.
#[derive(Clone, Copy, Default, Debug)]
struct Repeat {
    due: Option<Instant>,
    copies: u8,
}

impl Responder {
    /// Between these ends, with an unpredictable number for its SYN and for its clock.
    pub(crate) fn new(dialogue: Dialogue, ends: Ends, (isn, base): (u32, u32), mss: u16) -> Self {
        Self {
            dialogue,
            ends,
            state: State::Listens,
            hears: Hears::Preamble,
            offered: Offered {
                mss: 536,
                scale: None,
                sack: false,
                timestamps: false,
            },
            mss,
            said: Vec::new(),
            una: TcpSeq(isn),
            closes: false,
            next: TcpSeq(0),
            ended: false,
            edge: TcpSeq(0),
            clock: Clock { base, heard: 0 },
            offers: 0,
            repeat: Repeat::default(),
        }
    }

    /// What came with the client's SYN has been heard already, this is the answer, and what follows is the stream's or nobody's.
    pub(crate) fn begin(&mut self, said: &[u8], then: Then) {
        self.said.extend_from_slice(said);
        match then {
            Then::Preamble => {}
            Then::Stream => self.hears = Hears::Stream,
            Then::Nothing => self.close(),
        }
    }

    /// A segment of the client's, with its payload. What goes back is put behind `out`.
    pub(crate) fn receive(
        &mut self,
        now: Instant,
        (segment, payload): (&Segment, &[u8]),
        gate: &dyn Gate,
        out: &mut Vec<Transmit>,
    ) -> Turn {
        if self.state == State::Over {
            return Turn::Listen;
        }
        if segment.has(TcpFlags::RST) {
            self.state = State::Over;
            return Turn::Listen;
        }
        if segment.has(TcpFlags::SYN) {
            self.take_syn(now, segment, out);
            return Turn::Listen;
        }
        if self.state == State::Listens || !segment.has(TcpFlags::ACK) {
            return Turn::Listen;
        }
        if let Some(timestamps) = segment.options.timestamps {
            self.clock.heard = timestamps.val;
        }
        self.offers = segment.tcp.window;
        let opens = self.state == State::Answered;
        if !self.take_ack(TcpSeq(segment.tcp.ack), now) {
            out.push(self.packet(now, TcpFlags::ACK));
            return Turn::Listen;
        }
        let (next, said) = (self.next, self.said.len());
        let turn = self.take_data(segment, payload, gate);
        self.follow(&turn);
        let asks = segment.sequence_len() > 0 || TcpSeq(segment.tcp.seq) != next;
        if opens || self.said.len() > said || self.next != next && self.closes {
            self.send(now, out);
        } else if asks {
            out.push(self.packet(now, TcpFlags::ACK));
        }
        turn
    }

    fn take_syn(&mut self, now: Instant, segment: &Segment, out: &mut Vec<Transmit>) {
        let options = &segment.options;
        if self.state == State::Listens {
            self.state = State::Answered;
            self.next = TcpSeq(segment.tcp.seq).add(1);
            self.edge = self.next.add(WINDOW);
            self.offered = Offered {
                mss: options.mss.unwrap_or(536),
                scale: options.window_scale,
                sack: options.sack_permitted,
                timestamps: options.timestamps.is_some(),
            };
        }
        if let Some(timestamps) = options.timestamps {
            self.clock.heard = timestamps.val;
        }
        let same = TcpSeq(segment.tcp.seq).add(1) == self.next;
        if self.state != State::Answered || !same {
            out.push(self.packet(now, TcpFlags::ACK));
            return;
        }
        let mut outgoing = self.outgoing(now, self.una, TcpFlags::SYN | TcpFlags::ACK);
        // Not scaled (RFC 7323 section 2.2).
        outgoing.window = u16::try_from(WINDOW).unwrap_or(u16::MAX);
        outgoing.options = self.syn_options(now);
        out.push(outgoing.own());
    }

    fn syn_options(&self, now: Instant) -> OptionWriter {
        let mut options = OptionWriter::default();
        options.push(&TcpOption::Mss(self.mss));
        if self.offered.sack {
            options.push(&TcpOption::SackPermitted);
        }
        if self.offered.timestamps {
            options.push(&TcpOption::Timestamps(self.timestamps(now)));
        }
        if self.offered.scale.is_some() {
            options.push(&TcpOption::WindowScale(SCALE));
        }
        options
    }

    /// What the client ACKs. `false`: it is nothing that has been sent.
    fn take_ack(&mut self, ack: TcpSeq, now: Instant) -> bool {
        let syn = u32::from(self.state == State::Answered);
        let outstanding = syn + self.outstanding();
        let acked = ack.since(self.una);
        if ack.before(self.una) {
            return syn == 0;
        }
        // Nothing goes before the SYN is ACKed.
        if acked > outstanding || (syn == 1 && acked != 1) {
            return false;
        }
        let bytes = (acked - syn.min(acked)).min(self.said_len());
        self.said.drain(..bytes as usize);
        self.una = ack;
        self.state = State::Open;
        // The FIN is behind what was ACKed, or is ACKed itself.
        self.closes &= acked < outstanding || outstanding == syn;
        if acked > 0 {
            self.repeat = Repeat {
                due: (self.outstanding() > 0).then_some(now + PAUSE),
                copies: 0,
            };
        }
        true
    }

    /// The client has ACKed this, on its way to the server that has taken over.
    pub(crate) fn note_ack(&mut self, ack: TcpSeq) {
        let acked = ack.offset_from(self.una);
        // The server's own bytes stand behind: more than was said is ACKed then.
        if let Ok(acked) = u32::try_from(acked) {
            let bytes = acked.min(self.said_len());
            self.said.drain(..bytes as usize);
            self.una = self.una.add(bytes);
        }
    }

    /// Takes the client's data as far as it is the preamble's, and its FIN behind that.
    fn take_data(&mut self, segment: &Segment, payload: &[u8], gate: &dyn Gate) -> Turn {
        let seq = TcpSeq(segment.tcp.seq);
        let end = seq.add(segment.payload_len());
        if seq.after(self.next) || end.before(self.next) {
            return Turn::Listen;
        }
        let fresh = payload.get(self.next.since(seq) as usize..).unwrap_or(&[]);
        let (taken, turn) = match self.hears {
            Hears::Preamble => self.dialogue.hear(fresh, gate, &mut self.said),
            Hears::Stream => (0, Turn::Listen),
            Hears::Nothing => (fresh.len(), Turn::Listen),
        };
        let taken = if matches!(turn, Turn::Told | Turn::Close(_)) {
            fresh.len()
        } else {
            taken
        };
        self.next = self.next.add(u32::try_from(taken).unwrap_or(0));
        let waits = self.hears == Hears::Stream || matches!(turn, Turn::Connect(_));
        if segment.has(TcpFlags::FIN) && self.next == end && !waits {
            self.next = self.next.add(1);
            self.ended = true;
            self.closes |= self.hears == Hears::Preamble;
            self.hears = Hears::Nothing;
        }
        turn
    }

    fn follow(&mut self, turn: &Turn) {
        match turn {
            Turn::Listen => {}
            Turn::Connect(_) => self.hears = Hears::Stream,
            Turn::Told | Turn::Close(_) => self.close(),
            Turn::Reset(_) => self.hears = Hears::Nothing,
        }
    }

    /// It sends its FIN behind what it has said.
    fn close(&mut self) {
        self.hears = Hears::Nothing;
        self.closes = true;
    }

    /// Says that the client is connected, from where and with which options of the server's SYN/ACK.
    pub(crate) fn grant(&mut self, from: core::net::SocketAddr, options: &[u8]) {
        self.dialogue.grant(from, options, &mut self.said);
    }

    /// Says that it is not, and closes.
    pub(crate) fn refuse(&mut self, why: flexcp_preamble::Refusal) {
        self.dialogue.refuse(why, &mut self.said);
        self.close();
    }

    /// Sends all that is not ACKed.
    pub(crate) fn send(&mut self, now: Instant, out: &mut Vec<Transmit>) {
        if self.state != State::Open {
            return;
        }
        if self.outstanding() == 0 {
            out.push(self.packet(now, TcpFlags::ACK));
            return;
        }
        let most = usize::from(self.offered.mss).saturating_sub(OPTIONS).max(1);
        let mut seq = self.una;
        let mut parts = self.said.chunks(most).peekable();
        while let Some(part) = parts.next() {
            let last = parts.peek().is_none();
            let fin = if self.closes && last {
                TcpFlags::FIN
            } else {
                TcpFlags::default()
            };
            let flags = TcpFlags::ACK | TcpFlags::PSH | fin;
            out.push(self.outgoing(now, seq, flags).with_payload(part.into()));
            seq = seq.add(u32::try_from(part.len()).unwrap_or(0));
        }
        if self.said.is_empty() {
            let flags = TcpFlags::ACK | TcpFlags::FIN;
            out.push(self.outgoing(now, seq, flags).own());
        }
        let pause = PAUSE * (1 << self.repeat.copies.min(7));
        self.repeat.due = Some(now + pause);
    }

    /// What is not ACKed goes again, if it is time. `false`: it has gone too often.
    pub(crate) fn repeat(&mut self, now: Instant, out: &mut Vec<Transmit>) -> bool {
        if self.repeat.due.is_none_or(|due| now < due) {
            return true;
        }
        self.repeat.copies += 1;
        if self.repeat.copies > MAX_COPIES {
            return false;
        }
        self.send(now, out);
        true
    }

    /// Nobody is served any more.
    pub(crate) const fn give_up(&mut self) {
        self.state = State::Over;
    }

    /// When [`repeat`](Self::repeat) has something to do.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.repeat.due.filter(|_| self.state == State::Open)
    }

    /// The client is not there, or not any more.
    pub(crate) fn is_over(&self) -> bool {
        self.state == State::Over
    }

    /// Whether the client has shown where it is, and not both have closed.
    pub(crate) fn is_open(&self) -> bool {
        let closed = self.ended && self.outstanding() == 0;
        self.state == State::Open && !closed
    }

    /// Whether all that it has said is ACKed.
    pub(crate) fn is_heard(&self) -> bool {
        self.outstanding() == 0
    }

    fn said_len(&self) -> u32 {
        u32::try_from(self.said.len()).unwrap_or(u32::MAX)
    }

    /// Numbers that are sent and not ACKed, the SYN aside.
    fn outstanding(&self) -> u32 {
        self.said_len() + u32::from(self.closes)
    }

    /// The number behind all that it has said: that of the server's first byte.
    pub(crate) fn end(&self) -> TcpSeq {
        self.una.add(self.said_len())
    }

    /// The client's next number.
    pub(crate) const fn next(&self) -> TcpSeq {
        self.next
    }

    /// The client's options, as its SYN to a server has them.
    pub(crate) fn call_options(&self) -> OptionWriter {
        let mut options = OptionWriter::default();
        options.push(&TcpOption::Mss(self.offered.mss));
        if self.offered.sack {
            options.push(&TcpOption::SackPermitted);
        }
        if self.offered.timestamps {
            options.push(&TcpOption::Timestamps(Timestamps {
                val: self.clock.heard,
                ecr: 0,
            }));
        }
        if let Some(scale) = self.offered.scale {
            options.push(&TcpOption::WindowScale(scale));
        }
        options
    }

    /// What it says comes from a server from here on.
    pub(crate) const fn stand_for(&mut self, flow: Ends) {
        self.ends = flow;
    }

    /// What the client has yet to say to a server that begins behind all that is said here: it ACKs what it has ACKed here, and
    /// offers the window that it has offered.
    pub(crate) fn acknowledgment(&self) -> Outgoing {
        let mut options = OptionWriter::default();
        if self.offered.timestamps {
            options.push(&TcpOption::Timestamps(Timestamps {
                val: self.clock.heard,
                // Of what was before the server nothing is echoed to it.
                ecr: self.clock.base,
            }));
        }
        Outgoing {
            ends: self.ends.reversed(),
            seq: self.next.0,
            ack: self.una.0,
            flags: TcpFlags::ACK,
            window: self.offers,
            urgent: 0,
            keep_ecn: false,
            flow_label: 0,
            options,
        }
    }

    /// The shifts of windows: the client's, and what the client was told.
    pub(crate) const fn scales(&self) -> Option<(u8, u8)> {
        match self.offered.scale {
            Some(scale) => Some((scale, SCALE)),
            None => None,
        }
    }

    /// Whether the client uses them, and what its own clock shows.
    pub(crate) fn clock_now(&self, now: Instant) -> Option<u32> {
        self.offered.timestamps.then(|| self.timestamps(now).val)
    }

    /// The latest of the client's timestamps.
    pub(crate) const fn clock_heard(&self) -> u32 {
        self.clock.heard
    }

    /// The client is told the server's window from here on.
    pub(crate) fn offer(&mut self, window: u32) {
        self.edge = self.edge.max(self.next.add(window));
    }

    /// The server that has taken over has ACKed this, and offers so much behind it: what goes again says so. A receiver drops what
    /// ACKs far less than it knows to be ACKed (RFC 5961 section 5.2).
    pub(crate) fn follow_server(&mut self, acked: TcpSeq, window: u16) {
        let scale = self.offered.scale.map_or(0, |_| SCALE);
        self.next = acked;
        self.edge = acked.add(u32::from(window) << scale);
    }

    /// Bytes that it has allocated.
    pub(crate) fn memory(&self) -> usize {
        self.said.capacity() + self.dialogue.memory()
    }

    fn timestamps(&self, now: Instant) -> Timestamps {
        #[allow(clippy::cast_possible_truncation, reason = "timestamps wrap")]
        let millis = (now.0 / 1000) as u32;
        Timestamps {
            val: self.clock.base.wrapping_add(millis),
            ecr: self.clock.heard,
        }
    }

    /// A packet without payload, behind all that it has said.
    fn packet(&self, now: Instant, flags: TcpFlags) -> Transmit {
        self.outgoing(now, self.end(), flags).own()
    }

    fn outgoing(&self, now: Instant, seq: TcpSeq, flags: TcpFlags) -> Outgoing {
        let mut options = OptionWriter::default();
        if self.offered.timestamps {
            options.push(&TcpOption::Timestamps(self.timestamps(now)));
        }
        let scale = self.offered.scale.map_or(0, |_| SCALE);
        let window = self.edge.since(self.next) >> scale;
        Outgoing {
            ends: self.ends,
            seq: seq.0,
            ack: self.next.0,
            flags,
            window: u16::try_from(window).unwrap_or(u16::MAX),
            urgent: 0,
            keep_ecn: false,
            flow_label: 0,
            options,
        }
    }
}

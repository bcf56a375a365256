//! A TCP server's socket.

mod opener;

use std::net::SocketAddr;

use flexcp_invariants::Direction;
use flexcp_testkit::Random;
use flexcp_wire::{OptionWriter, SackBlocks, TcpFlags, TcpOption, Timestamps};

use crate::explicit::Fate;
use crate::net::{Incoming, Outbox, Outgoing, earlier};
use crate::payload::Payload;
use crate::stack::{App, Reader, Stack};
use crate::tcp::{Chunk, Receiver, Sender, number, unwrap};
use crate::told::Told;

/// Life of the socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// Waits for a SYN, or for its time to send one.
    Listen,
    /// Has sent its SYN.
    SynSent,
    /// Has answered it.
    SynReceived,
    /// Open, until both sides have closed.
    Open,
    /// Over; answers what still comes.
    Closed,
    /// Ended by a RST, or sent one.
    Reset,
}

/// A TCP server's socket.
#[derive(Debug)]
pub(crate) struct Server {
    stack: Stack,
    app: App,
    local: SocketAddr,
    remote: SocketAddr,
    /// Where it stands.
    pub(crate) state: State,
    isn: u32,
    remote_isn: u32,
    scale: u8,
    remote_scale: u8,
    sack: bool,
    clock: Option<u32>,
    /// Latest TSval in order (RFC 7323 TS.Recent), and the last ACK.
    recent: u32,
    last_ack: u64,
    sender: Sender,
    receiver: Receiver,
    reader: Reader,
    out: Payload,
    into: Payload,
    syn_timer: Option<u64>,
    syn_tries: u32,
    last_heard: u64,
    keepalive: Option<u64>,
    began: bool,
    random: Random,
    /// What went wrong.
    pub(crate) failure: Option<String>,
    /// Packets dropped by PAWS.
    pub(crate) paws: u64,
    /// What it received was more than one could send.
    remote_mss: u64,
    /// Whether it takes connections.
    fate: Fate,
    /// What it wants to hear first.
    told: Told,
    /// It is the one that opens.
    opens: bool,
    /// It asks for MPTCP then, and is content without.
    asks: bool,
}

impl Server {
    /// `client` is the client's first address, by which the bytes are known.
    #[must_use]
    pub(crate) fn new(
        stack: Stack,
        app: App,
        local: SocketAddr,
        client: SocketAddr,
        isn: u32,
        random: Random,
    ) -> Self {
        Self {
            stack,
            app,
            local,
            remote: client,
            state: State::Listen,
            isn,
            remote_isn: 0,
            scale: 0,
            remote_scale: 0,
            sack: false,
            clock: None,
            recent: 0,
            last_ack: 0,
            sender: Sender::new(stack.tuning, 536),
            receiver: Receiver::new(stack.ack_delay, stack.ack_every, stack.reports_duplicates),
            reader: Reader::new(app, stack.buffer),
            out: Payload::of(client, Direction::Down),
            into: Payload::of(client, Direction::Up),
            syn_timer: None,
            syn_tries: 0,
            last_heard: 0,
            keepalive: None,
            began: false,
            random,
            failure: None,
            paws: 0,
            remote_mss: 536,
            fate: Fate::Granted,
            told: Told::nothing(),
            opens: false,
            asks: false,
        }
    }

    /// The same, of a client that names it.
    pub(crate) const fn meets(mut self, fate: Fate) -> Self {
        self.fate = fate;
        self
    }

    /// The same, which wants to hear this first.
    pub(crate) fn wants(mut self, told: Told) -> Self {
        self.told = told;
        self
    }

    /// Whether everything was transferred and both sides have closed.
    #[must_use]
    pub(crate) fn is_done(&self) -> bool {
        self.state == State::Closed
    }

    /// Bytes that the client has acknowledged.
    #[must_use]
    pub(crate) const fn acknowledged(&self) -> u64 {
        self.sender.una
    }

    /// When [`timeout`](Self::timeout) wants to be called.
    #[must_use]
    pub(crate) fn deadline(&self) -> Option<u64> {
        match self.state {
            State::Listen | State::Closed | State::Reset => None,
            State::SynSent | State::SynReceived => self.syn_timer,
            State::Open => [
                self.sender.deadline(),
                self.receiver.deadline(),
                self.reader.deadline(),
                self.app.aborts_at,
                self.keepalive,
                (!self.began).then_some(self.app.writes_from),
            ]
            .into_iter()
            .flatten()
            .min(),
        }
    }

    /// Does what is due.
    pub(crate) fn timeout(&mut self, now: u64, outbox: &mut Outbox) {
        match self.state {
            State::SynReceived if self.syn_timer.is_some_and(|due| due <= now) => {
                self.syn_tries += 1;
                self.send_syn_ack(now, outbox);
            }
            State::SynSent if self.syn_timer.is_some_and(|due| due <= now) => {
                self.syn_tries += 1;
                self.send_syn(now, outbox);
            }
            State::Open => {
                if self.app.aborts_at.is_some_and(|at| at <= now) {
                    self.abort(now, outbox);
                    return;
                }
                self.sender.timeout(now);
                self.receiver.timeout(now);
                if self.keepalive.is_some_and(|due| due <= now) {
                    self.send_keepalive(now, outbox);
                }
                self.work(now, outbox);
            }
            _ => {}
        }
    }

    /// Takes a packet.
    pub(crate) fn receive(&mut self, now: u64, packet: &Incoming<'_>, outbox: &mut Outbox) {
        if packet.to != self.local || self.fate == Fate::Refused {
            refuse_any(packet, outbox);
            return;
        }
        if self.fate != Fate::Granted {
            return;
        }
        if self.state == State::SynSent {
            self.receive_answer(now, packet, outbox);
            return;
        }
        if packet.has(TcpFlags::SYN) {
            self.receive_syn(now, packet, outbox);
            return;
        }
        if packet.from != self.remote && self.state != State::Listen {
            refuse(packet, outbox);
            return;
        }
        match self.state {
            State::Listen | State::SynSent | State::Reset => refuse(packet, outbox),
            State::Closed => self.receive_late(now, packet, outbox),
            State::SynReceived | State::Open => self.receive_open(now, packet, outbox),
        }
    }

    fn receive_syn(&mut self, now: u64, packet: &Incoming<'_>, outbox: &mut Outbox) {
        if packet.has(TcpFlags::ACK) {
            if self.opens && self.state == State::Open {
                // The third packet was lost.
                self.send_ack(now, outbox);
            } else if self.opens && self.state == State::Reset {
                refuse(packet, outbox);
            }
            return;
        }
        match self.state {
            State::Listen => {}
            State::SynReceived if self.first(packet) == self.remote_isn => {
                self.send_syn_ack(now, outbox);
                return;
            }
            State::Open => {
                // A challenge (RFC 5961 section 4).
                self.send_ack(now, outbox);
                return;
            }
            _ => return,
        }
        self.remote = packet.from;
        self.agree(now, packet);
        self.state = State::SynReceived;
        self.send_syn_ack(now, outbox);
    }

    /// What both SYNs offer.
    fn agree(&mut self, now: u64, packet: &Incoming<'_>) {
        let options = &packet.options;
        self.remote_isn = self.first(packet);
        let scales = options.window_scale.is_some() && self.stack.window_scale.is_some();
        if scales {
            self.scale = self.stack.window_scale.unwrap_or(0).min(14);
            self.remote_scale = options.window_scale.unwrap_or(0).min(14);
        }
        self.sack = options.sack_permitted && self.stack.sack;
        if let (Some(timestamps), Some(base)) = (options.timestamps, self.stack.timestamps) {
            self.clock = Some(base);
            self.recent = timestamps.val;
        }
        let default = if packet.from.is_ipv4() { 536 } else { 1220 };
        self.remote_mss = u64::from(options.mss.unwrap_or(default));
        let taken = if self.clock.is_some() { 12 } else { 0 };
        let own = self.stack.mss.unwrap_or(1460);
        let mss = self.remote_mss.min(own.into()) - taken;
        self.sender = Sender::new(self.stack.tuning, mss);
        self.sender.edge = packet.tcp.window.into();
        self.reader.advance(now, 0, mss);
    }

    /// The number of a SYN, as if there were no header before the stream.
    fn first(&self, syn: &Incoming<'_>) -> u32 {
        syn.tcp.seq.wrapping_add(self.told.len())
    }

    fn send_syn_ack(&mut self, now: u64, outbox: &mut Outbox) {
        self.syn_timer = Some(now + (1_000_000 << self.syn_tries.min(4)));
        let mut options = OptionWriter::new();
        if let Some(mss) = self.stack.mss {
            options.push(&TcpOption::Mss(mss));
        }
        if self.sack {
            options.push(&TcpOption::SackPermitted);
        }
        self.push_timestamps(now, &mut options);
        if self.scale > 0 || self.remote_scale > 0 || self.stack.window_scale == Some(0) {
            options.push(&TcpOption::WindowScale(self.scale));
        }
        let window = u16::try_from(self.reader.edge).unwrap_or(u16::MAX);
        let outgoing = Outgoing {
            from: self.local,
            to: self.remote,
            seq: self.isn,
            ack: self
                .remote_isn
                .wrapping_add(1)
                .wrapping_sub(self.told.len()),
            flags: TcpFlags::SYN | TcpFlags::ACK,
            window,
            options,
        };
        outbox.send(outgoing, &[]);
    }

    fn push_timestamps(&self, now: u64, options: &mut OptionWriter) {
        if let Some(base) = self.clock {
            options.push(&TcpOption::Timestamps(Timestamps {
                val: clock_at(base, now),
                ecr: self.recent,
            }));
        }
    }

    fn receive_open(&mut self, now: u64, packet: &Incoming<'_>, outbox: &mut Outbox) {
        let from = unwrap(packet.tcp.seq, self.remote_isn, self.receiver.nxt);
        if packet.has(TcpFlags::RST) {
            if from == self.receiver.nxt.cast_signed() - i64::from(self.told.missing()) {
                self.state = State::Reset;
            } else {
                self.send_ack(now, outbox);
            }
            return;
        }
        if !packet.has(TcpFlags::ACK) || !self.is_timely(from, packet) {
            return;
        }
        if self.failure.is_some() {
            return;
        }
        let ack = unwrap(packet.tcp.ack, self.isn, self.sender.una);
        if ack > self.sender.nxt.cast_signed() {
            self.failure = Some(format!("server: ACK of unsent {ack} > {}", self.sender.nxt));
            return;
        }
        if self.state == State::SynReceived {
            if ack < 0 {
                return;
            }
            self.state = State::Open;
            self.syn_timer = None;
        }
        self.last_heard = now;
        self.keepalive = self.stack.keepalive.map(|pause| now + pause);
        self.take_ack(now, ack, packet);
        if self.told.missing() == 0 {
            self.take_data(now, from, packet);
        } else {
            self.receiver.ack_now = !packet.is_empty();
            if !self.told.take(from, packet.payload) {
                self.failure = Some(format!("server: another header at {from}"));
            }
        }
        self.work(now, outbox);
    }

    /// PAWS (RFC 7323 section 5.3).
    fn is_timely(&mut self, from: i64, packet: &Incoming<'_>) -> bool {
        let (Some(_), Some(timestamps)) = (self.clock, packet.options.timestamps) else {
            return true;
        };
        if earlier(timestamps.val, self.recent) {
            self.paws += 1;
            self.receiver.ack_now = true;
            return false;
        }
        if from <= self.last_ack.cast_signed() - i64::from(self.told.missing()) {
            self.recent = timestamps.val;
        }
        true
    }

    fn take_ack(&mut self, now: u64, ack: i64, packet: &Incoming<'_>) {
        let Ok(ack) = u64::try_from(ack) else {
            return;
        };
        let mut blocks = [(0, 0); 4];
        let mut count = 0;
        for &(left, right) in packet.options.sack.as_slice() {
            let left = unwrap(left, self.isn, self.sender.una);
            let right = unwrap(right, self.isn, self.sender.una);
            if left >= 0 && left < right {
                blocks[count] = (left.cast_unsigned(), right.cast_unsigned());
                count += 1;
            }
        }
        let window = u64::from(packet.tcp.window) << self.remote_scale;
        let echo = self.echo_time(now, packet);
        let bare = packet.is_empty() && !packet.has(TcpFlags::FIN);
        let mss = self.sender.mss;
        let _ = mss;
        self.sender
            .acknowledge(now, ack, &blocks[..count], ack + window, bare, echo);
    }

    /// When the packet that this one echoes was sent.
    fn echo_time(&self, now: u64, packet: &Incoming<'_>) -> Option<u64> {
        let base = self.clock?;
        let echo = packet.options.timestamps?.ecr;
        let age = clock_at(base, now).wrapping_sub(echo);
        now.checked_sub(u64::from(age) * 1000)
    }

    fn take_data(&mut self, now: u64, from: i64, packet: &Incoming<'_>) {
        let to = from + packet.len().cast_signed();
        let fin = packet.has(TcpFlags::FIN);
        if packet.is_empty() && !fin {
            if from != self.receiver.nxt.cast_signed() {
                // A probe or a keepalive, or something lost: answered (RFC 9293 section 3.10.7.4).
                self.receiver.ack_now = from < self.receiver.nxt.cast_signed();
            }
            return;
        }
        if to <= 0 && !fin {
            // The header, once more.
            self.receiver.ack_now = true;
            return;
        }
        let skip = usize::try_from(-from)
            .unwrap_or(0)
            .min(packet.payload.len());
        let (from, to) = (from.max(0).cast_unsigned(), to.max(0).cast_unsigned());
        if !self.into.matches(from, &packet.payload[skip..]) {
            self.failure = Some(format!("server: other bytes at {from}"));
        }
        if to > self.app.reads || (fin && to != self.app.reads) {
            self.failure = Some(format!(
                "server: {from}..{to} fin {fin} of {}",
                self.app.reads
            ));
        }
        self.receiver.take(now, from, to, fin, self.reader.edge);
        if now < self.stack.reneges_until && self.random.chance(self.stack.reneges) {
            self.receiver.renege();
        }
    }

    fn work(&mut self, now: u64, outbox: &mut Outbox) {
        let end = self.receiver.data_end();
        if self.reader.advance(now, end, self.sender.mss) {
            self.receiver.ack_now = true;
        }
        let eof = self.receiver.is_closed() && self.reader.read == end;
        if now >= self.app.writes_from {
            self.began = true;
            self.sender.end = self.app.writes;
            self.sender.fin = !self.app.closes_last || eof;
        }
        // Differing segment sizes make what is sent again fall differently.
        let mss = self.sender.mss;
        while let Some(chunk) = self.sender.next(now, |_| u64::MAX) {
            let cut = chunk.again && chunk.len > 100 && self.random.one_in(16);
            self.send_chunk(now, chunk, outbox);
            if cut {
                self.sender.mss = (mss / 2).max(64);
            }
        }
        self.sender.mss = mss;
        if self.receiver.ack_now {
            self.send_ack(now, outbox);
        }
        if self.sender.fin && self.sender.is_done() && eof {
            self.state = State::Closed;
        }
    }

    fn send_chunk(&mut self, now: u64, chunk: Chunk, outbox: &mut Outbox) {
        let seq = number(chunk.from, self.isn);
        let mut flags = TcpFlags::ACK;
        if chunk.fin {
            flags |= TcpFlags::FIN;
        }
        let seq = if chunk.probe {
            seq.wrapping_sub(1)
        } else {
            seq
        };
        if chunk.len > 0
            && (chunk.from + chunk.len == self.sender.end || chunk.len < self.sender.mss)
        {
            flags |= TcpFlags::PSH;
        }
        let len = usize::try_from(chunk.len).unwrap_or(0);
        let payload = self.out.bytes(chunk.from, len);
        self.send_segment(now, seq, flags, payload, outbox);
    }

    fn send_segment(
        &mut self,
        now: u64,
        seq: u32,
        flags: TcpFlags,
        payload: &[u8],
        outbox: &mut Outbox,
    ) {
        let mut options = OptionWriter::new();
        self.push_timestamps(now, &mut options);
        if self.sack && payload.is_empty() {
            let room = (options.remaining() - 4) / 8;
            let mut sack = SackBlocks::new();
            for (from, to) in self.receiver.blocks(room.min(4)) {
                let left = number(from, self.remote_isn);
                sack.push(left, number(to, self.remote_isn));
            }
            if !sack.is_empty() {
                options.push(&TcpOption::Sack(sack));
            }
        }
        self.receiver.acknowledged();
        self.last_ack = self.receiver.nxt;
        let outgoing = Outgoing {
            from: self.local,
            to: self.remote,
            seq,
            ack: number(self.receiver.nxt, self.remote_isn).wrapping_sub(self.told.missing()),
            flags,
            window: self.reader.window(self.receiver.nxt, self.scale),
            options,
        };
        outbox.send(outgoing, payload);
    }

    fn send_ack(&mut self, now: u64, outbox: &mut Outbox) {
        let seq = number(self.sender.nxt, self.isn);
        self.send_segment(now, seq, TcpFlags::ACK, &[], outbox);
    }

    fn send_keepalive(&mut self, now: u64, outbox: &mut Outbox) {
        self.keepalive = self.stack.keepalive.map(|pause| now + pause);
        if self.sender.una == self.sender.nxt {
            let seq = number(self.sender.nxt, self.isn).wrapping_sub(1);
            self.send_segment(now, seq, TcpFlags::ACK, &[], outbox);
        }
    }

    fn abort(&mut self, now: u64, outbox: &mut Outbox) {
        let seq = number(self.sender.nxt, self.isn);
        self.state = State::Reset;
        self.send_segment(now, seq, TcpFlags::RST | TcpFlags::ACK, &[], outbox);
    }

    /// After the end: a FIN or data that comes again is acknowledged again.
    fn receive_late(&mut self, now: u64, packet: &Incoming<'_>, outbox: &mut Outbox) {
        if packet.has(TcpFlags::RST) {
            return;
        }
        let from = unwrap(packet.tcp.seq, self.remote_isn, self.receiver.nxt);
        let takes = !packet.is_empty() || packet.has(TcpFlags::FIN);
        if takes || from < self.receiver.nxt.cast_signed() {
            self.send_ack(now, outbox);
        }
    }
}

impl Server {
    /// For whoever watches.
    #[must_use]
    pub(crate) fn summary(&self) -> String {
        format!(
            "{:?} out {}..{} of {} edge {} backoffs {}; in {} fin {:?} hole {} read {} edge {}",
            self.state,
            self.sender.una,
            self.sender.nxt,
            self.sender.limit(),
            self.sender.edge,
            self.sender.rtt.backoffs(),
            self.receiver.nxt,
            self.receiver.fin,
            self.receiver.has_hole(),
            self.reader.read,
            self.reader.edge,
        )
    }
}

/// What a clock of milliseconds shows.
#[must_use]
pub(crate) const fn clock_at(base: u32, now: u64) -> u32 {
    base.wrapping_add((now / 1000) as u32)
}

/// RST to a packet that belongs to nothing (RFC 9293 section 3.10.7.1).
pub(crate) fn refuse(packet: &Incoming<'_>, outbox: &mut Outbox) {
    if packet.has(TcpFlags::RST) || !packet.has(TcpFlags::ACK) {
        return;
    }
    let outgoing = Outgoing {
        from: packet.to,
        to: packet.from,
        seq: packet.tcp.ack,
        ack: 0,
        flags: TcpFlags::RST,
        window: 0,
        options: OptionWriter::new(),
    };
    outbox.send(outgoing, &[]);
}

/// The same, and to a SYN.
pub(crate) fn refuse_any(packet: &Incoming<'_>, outbox: &mut Outbox) {
    if !packet.has(TcpFlags::SYN) || packet.has(TcpFlags::ACK) {
        return refuse(packet, outbox);
    }
    let outgoing = Outgoing {
        from: packet.to,
        to: packet.from,
        seq: 0,
        ack: packet
            .tcp
            .seq
            .wrapping_add(1)
            .wrapping_add(packet.len() as u32),
        flags: TcpFlags::RST | TcpFlags::ACK,
        window: 0,
        options: OptionWriter::new(),
    };
    outbox.send(outgoing, &[]);
}

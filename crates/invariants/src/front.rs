//! Clients that name their server: what they say before their stream, which no server gets, and what they are answered, which no
//! server sends.
//!
//! Positions count from the first byte that the client says, and from the first that it is answered: of the preamble and the answer
//! on the client's side. On the server's side the first byte stands as far behind the origin as they are long.

use std::net::SocketAddr;

use flexcp_wire::TcpFlags;

use crate::Rule;
use crate::clock::Sent;
use crate::connection::{Connection, Report};
use crate::from_server::Part;
use crate::packet::View;
use crate::position::{ORIGIN, from_seq, low};
use crate::preamble::{Answer, Head, Named, Preamble, Read, names};

/// A preamble and its answer, as far as they have passed.
#[derive(Debug)]
pub(crate) struct Front {
    preamble: Preamble,
    /// Bytes of the client's SYN, and how many of them the proxy has ACKed with its SYN/ACK.
    in_syn: u64,
    pub(crate) taken: u64,
    says: Head,
    hears: Head,
    named: Option<Named>,
    /// Length of the preamble, and of the answer to a client that is connected.
    pub(crate) said: Option<u64>,
    pub(crate) answered: Option<u64>,
    /// The client is not connected: what it is told comes from the proxy alone, which takes all that it sends.
    ends: bool,
    /// A part of the answer has come again with an ACK that only an end can follow: the proxy repeats the answer from the first byte
    /// that the client lacks.
    ends_next: bool,
    /// Number of the server's SYN/ACK.
    server_isn: Option<u32>,
    /// What the server has sent since, before the answer was seen that tells where that stands.
    early: Vec<Part>,
    /// The client was answered before its server: numbers, clock and windows are the proxy's.
    pub(crate) hosted: bool,
    /// The clock that such a client has been shown.
    pub(crate) clock: Sent,
}

impl Front {
    /// Before the client's SYN.
    pub(crate) fn new(preamble: Preamble) -> Self {
        Self {
            preamble,
            in_syn: 0,
            taken: 0,
            says: Head::default(),
            hears: Head::default(),
            named: None,
            said: None,
            answered: None,
            ends: false,
            ends_next: false,
            server_isn: None,
            early: vec![],
            hosted: false,
            clock: Sent::default(),
        }
    }

    /// The server has sent this before it is known where it stands.
    pub(crate) fn keep(&mut self, part: Part) {
        self.early.push(part);
    }

    /// The client says this.
    fn hear(&mut self, at: u64, bytes: &[u8]) {
        let whole = self.said.is_some_and(|said| at >= said.max(self.in_syn));
        if whole || self.ends {
            return;
        }
        self.says.put(at, bytes);
        if self.said.is_some() {
            return;
        }
        match self.preamble.read(&self.says.bytes) {
            Read::More => {}
            Read::Whole((named, len)) => {
                self.named = Some(named);
                self.said = Some(len as u64);
            }
            Read::Wrong => self.ends = true,
        }
    }

    /// The proxy answers this, the answer not being complete. `false`: it has answered something else before.
    fn answer(&mut self, at: u64, bytes: &[u8]) -> bool {
        let same = self.hears.put(at, bytes);
        match self.preamble.read_answer(&self.hears.bytes) {
            Read::Whole((Answer::Connected, len)) if !self.ends => self.answered = Some(len as u64),
            Read::More | Read::Whole((Answer::Connected, _)) => {}
            Read::Whole(_) | Read::Wrong => self.ends = true,
        }
        same
    }

    /// Whether the client has named this server, as far as that can be told.
    pub(crate) fn names(&self, server: SocketAddr) -> bool {
        self.named.is_some_and(|named| names(named, server))
    }

    /// How much the client may be ACKed on the proxy's own account; `None`: whatever it has sent.
    fn takes(&self, closed: bool) -> Option<u64> {
        if self.ends || self.ends_next || (closed && self.said.is_none()) {
            return None;
        }
        let come = self.says.bytes.len() as u64;
        Some(
            self.said
                .map_or(come, |said| come.min(said))
                .max(self.taken),
        )
    }

    /// Whether the numbers of the server's leg are known.
    pub(crate) const fn is_placed(&self) -> bool {
        self.server_isn.is_some() && (!self.hosted || self.answered.is_some())
    }
}

impl Connection {
    /// The number before the client's first byte, as the server's leg has it.
    pub(crate) fn isn_to_server(&self) -> Option<u32> {
        let Some(front) = &self.front else {
            return Some(self.up.isn);
        };
        Some(self.up.isn.wrapping_add(low(front.said?)))
    }

    /// The number before the first byte that the client gets on its initial subflow: the server's, if there is no answer before that.
    pub(crate) fn isn_to_client(&self) -> u32 {
        let proxy = self.subflows[0].isn_proxy.unwrap_or(0);
        self.front.as_ref().map_or(self.down.isn, |_| proxy)
    }

    /// Whether no server has answered a client that names one, whose patience and the proxy's have an end.
    pub(crate) const fn is_not_served(&self) -> bool {
        self.front.is_some() && !self.server_answered
    }

    /// Whether the client has been told that it is not connected.
    pub(crate) fn is_refused(&self) -> bool {
        self.front.as_ref().is_some_and(|front| front.ends)
    }

    /// Whether the server's leg can be held against the client's: without a preamble from its SYN/ACK on.
    pub(crate) fn is_placed(&self) -> bool {
        self.front.as_ref().is_none_or(|front| front.is_placed())
    }

    /// Whether the client's data may be these bytes, as far as its beginning is known.
    pub(crate) fn said_these(&self, at: u64, bytes: &[u8]) -> bool {
        let front = self.front.as_ref().filter(|_| at >= ORIGIN);
        front.is_none_or(|front| front.says.matches(at - ORIGIN, bytes))
    }

    /// Whether the client was answered before its server: windows may be rounded twice, by the shifts of both legs.
    pub(crate) fn is_hosted(&self) -> bool {
        self.front.as_ref().is_some_and(|front| front.hosted)
    }

    /// The data of the client's SYN.
    pub(crate) fn note_syn_data(&mut self, packet: &View<'_>) {
        let Some(front) = &mut self.front else {
            return;
        };
        front.in_syn = front.in_syn.max(packet.payload_len);
        front.hear(0, packet.bytes());
        let end = ORIGIN + front.in_syn;
        self.up.sent = self.up.sent.max(end);
        let subflow = &mut self.subflows[0];
        subflow.client_sent = subflow.client_sent.max(end);
        self.note_said();
    }

    /// Data of the client's.
    pub(crate) fn note_preamble(&mut self, at: u64, bytes: &[u8]) {
        if let Some(front) = &mut self.front {
            front.hear(at.saturating_sub(ORIGIN), bytes);
        }
    }

    /// Bytes that the client's SYN on a subflow carried for good: numbers in DSS options count behind them, and data numbers, too.
    pub(crate) fn bytes_in_syn(&self, index: usize) -> u64 {
        let front = self.front.as_ref().filter(|_| index == 0);
        front.map_or(0, |front| front.taken)
    }

    /// What the proxy may ACK of what the client has sent so far, no server being asked.
    pub(crate) fn note_said(&mut self) {
        let Some(front) = &self.front else {
            return;
        };
        self.up.lead = front.said.unwrap_or(0);
        let end = match front.takes(self.up.fin.is_some()) {
            Some(len) => ORIGIN + len,
            None if self.server_answered => return,
            None => self.up.end(),
        };
        self.up.acknowledge(end);
    }

    /// A SYN/ACK on the initial subflow, the `first` one for its SYN. `false`: it ACKs what it may not.
    pub(crate) fn take_syn_data(&mut self, packet: &View<'_>, first: bool) -> bool {
        let isn = self.subflows[0].isn_client;
        let acked = u64::from(packet.tcp.ack.wrapping_sub(isn).wrapping_sub(1));
        let plain = packet.options.capable.is_none();
        let Some(front) = &mut self.front else {
            return acked == 0;
        };
        if plain && !first && acked == front.in_syn {
            // A client that says its SYN again without MPTCP, and without data, has no keys to say that with once more.
            front.taken = acked;
            self.subflows[0].ack_out = ORIGIN + acked;
        }
        if first {
            let within = acked.min(front.in_syn);
            front.taken = within;
            front.hosted = !self.server_answered;
            if let Some(server) = front.server_isn {
                // The numbers agree behind the answer.
                self.down.isn = packet.tcp.seq;
                self.down.lead = server.wrapping_sub(packet.tcp.seq).into();
                self.down.ack_out = ORIGIN + self.down.lead;
            }
            self.subflows[0].ack_out = ORIGIN + within;
            self.note_said();
        }
        self.bytes_in_syn(0) == acked
    }

    /// The server has answered with this number.
    pub(crate) fn note_server_isn(&mut self, isn: u32) {
        match &mut self.front {
            Some(front) => front.server_isn = Some(isn),
            None => self.down.isn = isn,
        }
    }

    /// I19: what goes to a client before its server's first byte is an answer. Returns how many of the bytes are of that.
    pub(crate) fn judge_answer_bytes(
        &mut self,
        to: u64,
        packet: &View<'_>,
        report: &mut Report<'_>,
    ) -> u64 {
        let Some(front) = &mut self.front else {
            return 0;
        };
        let (at, len) = (to.saturating_sub(ORIGIN), packet.payload_len);
        let bytes = packet.bytes();
        let known = front.answered;
        let own = known.map_or(len, |end| end.saturating_sub(at).min(len));
        if own == 0 {
            return 0;
        }
        let part = &bytes[..bytes.len().min(usize::try_from(own).unwrap_or(0))];
        let again = at + own <= front.hears.bytes.len() as u64;
        let superfluous = to + own <= self.down.acked && part.iter().all(|byte| *byte == 0);
        let same = superfluous || front.answer(at, part);
        report.expect(same, Rule::SameBytes, || "another answer".into());
        let own = front.answered.map_or(own, |end| end - at.min(end)).min(len);
        self.down.sent = self.down.sent.max(to + own);
        if known.is_none() {
            self.judge_grant(report);
        }
        self.judge_own_end(again, packet, report);
        self.note_said();
        own
    }

    /// I19: all that a client has sent is ACKed only where it is told that it is not connected, in this packet or, if that says
    /// something `again`, in the next.
    fn judge_own_end(&mut self, again: bool, packet: &View<'_>, report: &mut Report<'_>) {
        let closed = self.up.fin.is_some();
        let acked = packet.options.data_ack().map_or_else(
            || from_seq(packet.tcp.ack, self.subflows[0].isn_client, self.up.end()),
            |number| self.up.at_dsn(number, self.up.ack_out),
        );
        let Some(front) = self.front.as_mut().filter(|_| !self.server_answered) else {
            return;
        };
        if again {
            front.ends_next |= front.takes(closed).is_some_and(|len| acked > ORIGIN + len);
        } else if std::mem::take(&mut front.ends_next) {
            report.expect(front.ends, Rule::AckToClient, || {
                "ACK of what was for a server, and no end of the client's".into()
            });
        }
    }

    /// I19: the client is told that it is connected once its server has answered, and the server's stream stands behind that.
    fn judge_grant(&mut self, report: &mut Report<'_>) {
        let Some(front) = &self.front else {
            return;
        };
        let Some(len) = front.answered else {
            return;
        };
        let Some(server) = front.server_isn else {
            report.add(
                Rule::Preamble,
                "connected with a server that has not answered",
            );
            return;
        };
        let isn = server.wrapping_sub(low(len));
        report.expect(front.hosted || self.down.isn == isn, Rule::Preamble, || {
            let between = server.wrapping_sub(self.down.isn);
            format!("an answer of {len} bytes where the numbers have room for {between}")
        });
        self.down.isn = isn;
        self.down.lead = len;
        self.down.ack_out = ORIGIN + len;
        let front = self.front.as_mut();
        let early = front.map(|front| std::mem::take(&mut front.early));
        for part in early.unwrap_or_default() {
            self.take_part(&part);
        }
    }

    /// Place of a timestamp for a client that was answered before its server: it is shown the proxy's clock, which the server's goes
    /// on from. What it echoes of that has to be the server's own to the server.
    pub(crate) fn hosted_clock(&mut self, val: u32) -> Option<u64> {
        let front = self.front.as_mut().filter(|front| front.hosted)?;
        let at = front.clock.unwrap(val);
        front.clock.note(val);
        Some(at)
    }

    /// I10: that clock does not go back, but for a packet of the server's that is late itself.
    pub(crate) fn judge_hosted_clock(&mut self, index: usize, val: u64, report: &mut Report<'_>) {
        let late = self.server_clock.is_late();
        let last = &mut self.subflows[index].last_tsval_out;
        let before = last.unwrap_or(val);
        report.expect(val >= before || late, Rule::Timestamps, || {
            format!("TSval goes back by {}", before - val)
        });
        *last = Some(before.max(val));
    }

    /// Whether the client may not have all that the proxy answers.
    pub(crate) fn has_answer_under_way(&self) -> bool {
        let front = self.front.as_ref();
        front.is_some_and(|front| {
            front
                .answered
                .is_none_or(|len| self.down.acked < ORIGIN + len)
        })
    }

    /// The proxy ends what it says itself, as long as no server speaks.
    pub(crate) fn note_own_end(&mut self, at: u64) {
        if self.front.is_some() && !self.server_answered {
            self.down.fin.get_or_insert(at);
        }
    }

    /// I19: the SYN to the server goes to whom the client has named, and its number is that of the preamble's last byte.
    pub(crate) fn judge_call(&mut self, packet: &View<'_>, report: &mut Report<'_>) {
        let number = self.isn_to_server();
        let Some(front) = &self.front else {
            return;
        };
        report.expect(number == Some(packet.tcp.seq), Rule::Preamble, || {
            format!("SYN with the number {}, not {number:?}", packet.tcp.seq)
        });
        report.expect(front.names(packet.destination()), Rule::Preamble, || {
            "SYN to a server that the client has not named".into()
        });
        report.expect(packet.payload_len == 0, Rule::Preamble, || {
            "data in the SYN to the server".into()
        });
    }

    /// I19: what goes to the server before it is known what its first byte is to the client.
    pub(crate) fn judge_early(&self, packet: &View<'_>, report: &mut Report<'_>) {
        let Some(server) = self.front.as_ref().and_then(|front| front.server_isn) else {
            return;
        };
        let next = self.isn_to_server().map(|isn| isn.wrapping_add(1));
        let bare = packet.payload_len == 0 && !packet.has(TcpFlags::FIN);
        let first = packet.tcp.ack == server.wrapping_add(1) && Some(packet.tcp.seq) == next;
        report.expect(bare && first, Rule::Preamble, || {
            "more than an ACK to the server of a client that has not been answered".into()
        });
    }

    /// Position of a number on the initial subflow, while that has those of the server's leg.
    pub(crate) fn at_seq_of_client(&self, seq: u32) -> u64 {
        from_seq(seq, self.isn_to_client(), self.down.sent)
    }
}

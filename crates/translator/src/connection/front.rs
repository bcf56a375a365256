//! The front of both streams: a client's preamble, which ends here, and the answer to it, which begins here; or the header that tells
//! a back end of its client.
//!
//! The preamble comes in the client's SYN (0-RTT Convert, RFC 8803 section 4.2) and its answer goes before the server's first
//! byte. FlexCP knows the server before it answers, so it picks both its initial sequence numbers such that the numbers of the
//! two legs agree behind that: the server's leg starts at the client's number plus the length of the preamble, the client's at
//! the server's number minus the length of the answer. From there on nothing else in the connection knows of a preamble.
//!
//! What neither end can repeat is kept until it is ACKed: the answer, and data that stood behind the preamble in the SYN, which
//! FlexCP has ACKed with it (a Linux client leaves MPTCP if a part of it is left). Both go once the client has shown where it is.
//!
//! A header of the PROXY protocol is such data that no client has sent: the server's leg starts before the client's number by its
//! length, so the client's first byte has one number on both legs. The client knows nothing of it, and is told nothing of its ACKs.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::net::SocketAddr;
use core::time::Duration;

use flexcp_preamble::Dialogue;
use flexcp_wire::{
    DataNumber, Dsn, DssMapping, Ends, PROXY_HEADER_MAX_LEN, ProxyHeader, TcpFlags, TcpSeq,
};

use super::credit::bytes_of;
use super::subflow::SynAgain;
use super::{Connection, Context, Shift};
use crate::counters::DropReason;
use crate::endpoint::Backend;
use crate::frame::{Frame, Transmit, Verdict};
use crate::handle::INITIAL;
use crate::segment::{Outgoing, Segment};
use crate::time::Instant;

/// What is not ACKed goes again after that, then after twice as long each time.
const PAUSE: Duration = Duration::from_millis(300);
/// How often that doubles at most.
const MAX_DOUBLINGS: u8 = 7;
/// TCP options at most.
const OPTIONS: u16 = 40;
/// A header that has not been ACKed after so many copies, 76 s in all, never will be. A server whose queue is full takes as long.
const HEADER_COPIES: u8 = 8;

/// What is yet to be said or to arrive.
#[derive(Debug)]
pub(crate) struct Front {
    /// With the client, who waits for the outcome; `None`: with none, and the client knows of nothing.
    dialogue: Option<Dialogue>,
    /// What the server gets first: data behind the preamble in the client's SYN, or a header.
    early: Box<[u8]>,
    /// The server has ACKed that.
    delivered: bool,
    /// What the client is answered; nothing until the server has answered.
    answer: Box<[u8]>,
    /// When what is not ACKed goes again.
    due: Option<Instant>,
    /// Times that it went.
    copies: u8,
    /// The client's window as its last packet says it, while it is only relayed.
    window: u16,
}

impl Front {
    /// Behind a preamble: with what came along.
    pub(crate) fn new(dialogue: Dialogue, early: &[u8]) -> Self {
        Self::of(Some(dialogue), early)
    }

    /// A header of the PROXY protocol, version 2, before the stream of a client who has opened a flow with these ends.
    pub(crate) fn header(ends: Ends) -> Self {
        let mut bytes = [0; PROXY_HEADER_MAX_LEN];
        let len = ProxyHeader { ends }.emit(&mut bytes);
        Self::of(None, &bytes[..len])
    }

    fn of(dialogue: Option<Dialogue>, early: &[u8]) -> Self {
        Self {
            dialogue,
            early: early.into(),
            delivered: early.is_empty(),
            answer: Box::default(),
            due: None,
            copies: 0,
            window: 0,
        }
    }

    /// Whether it is a header that the client knows nothing of.
    pub(crate) const fn is_header(&self) -> bool {
        self.dialogue.is_none()
    }

    /// Nothing goes on of it but the client's dialogue, if there is one.
    pub(crate) fn into_dialogue(self) -> Option<Dialogue> {
        self.dialogue
    }

    /// The client says this window.
    pub(super) const fn note_window(&mut self, window: u16) {
        self.window = window;
    }

    /// Bytes that it has allocated.
    pub(crate) fn memory(&self) -> usize {
        let dialogue = self.dialogue.as_ref().map_or(0, Dialogue::memory);
        size_of::<Self>() + dialogue + self.early.len() + self.answer.len()
    }

    /// When what is not ACKed goes again.
    pub(crate) const fn due(&self) -> Option<Instant> {
        self.due
    }

    #[allow(clippy::cast_possible_truncation, reason = "each came in one packet")]
    const fn early_len(&self) -> u32 {
        self.early.len() as u32
    }

    #[allow(
        clippy::cast_possible_truncation,
        reason = "a message is at most 1,020 bytes long"
    )]
    const fn answer_len(&self) -> u32 {
        self.answer.len() as u32
    }
}

impl Connection {
    /// The same connection behind a preamble.
    pub(crate) fn behind(mut self, front: Front) -> Self {
        self.tcp.isn_local = self.tcp.isn_local.sub(front.early_len());
        self.front = Some(Box::new(front));
        self
    }

    /// Whether the client's streams begin with what is FlexCP's.
    pub(crate) fn has_preamble(&self) -> bool {
        self.front.is_some() || self.hosted.is_some() || self.has_errand()
    }

    /// A responder is its server from here on, who has not been sent a SYN: nothing that came with the client's goes there.
    /// The numbers up begin with the SYN that the responder gets, and not behind the message as a server's do.
    pub(crate) fn turn_to(&mut self, responder: Backend) {
        self.tcp.source = responder.source.into();
        self.tcp.backend = responder.addr.into();
        self.tcp.isn_local = TcpSeq(self.subflow(INITIAL).agreed.isn_remote.0);
        self.numbers.to_tcp = Shift::between(self.tcp.isn_local, Dsn(0));
    }

    /// Length of the answer that goes before the server's first byte.
    pub(crate) fn answer_len(&self) -> u32 {
        self.front.as_ref().map_or(0, |front| front.answer_len())
    }

    /// The window of the server's SYN/ACK as the client is told it: what came with its SYN takes a part of that.
    pub(crate) fn window_behind_early(&self, window: u16) -> u16 {
        let early = self.front.as_ref().map_or(0, |front| front.early.len());
        window.saturating_sub(u16::try_from(early).unwrap_or(u16::MAX))
    }

    /// The server has answered with these options: what that means to the client.
    pub(crate) fn compose_answer(&mut self, options: &[u8]) {
        let from: SocketAddr = self.tcp.source.addr();
        if let Some(front) = &mut self.front
            && let Some(dialogue) = &mut front.dialogue
        {
            let mut answer = Vec::new();
            dialogue.grant(from, options, &mut answer);
            front.answer = answer.into();
        }
    }

    /// What the client has of the server's data, for the server: it knows nothing of an answer before its first byte.
    pub(crate) fn acked_to_tcp(&self) -> Dsn {
        let acked = self.to_mptcp.acked;
        match &self.front {
            Some(front) => acked.max(self.answer_end(front)),
            None => acked,
        }
    }

    fn answer_end(&self, front: &Front) -> Dsn {
        let first = self.mptcp.key.idsn.add(1);
        first.add(front.answer_len().into())
    }

    /// A header that the server has not ACKed, and that has gone.
    fn sent_header(&self) -> Option<&Front> {
        let front = self.front.as_deref();
        front.filter(|front| front.is_header() && front.due.is_some())
    }

    /// Number of the first byte of a header that the server has not ACKed: it may expect that, whatever has gone since.
    pub(super) fn header_seq(&self) -> Option<TcpSeq> {
        self.sent_header().map(|_| self.tcp.isn_local.add(1))
    }

    /// The server has not ACKed its header, however often that has gone.
    pub(super) fn has_lost_header(&self) -> bool {
        self.sent_header()
            .is_some_and(|front| front.copies >= HEADER_COPIES)
    }

    /// Behind a header, the client's number that the server's ACK stands for: an ACK of less speaks of the header alone.
    pub(super) fn ack_of_header(&self, segment: &Segment) -> Option<TcpSeq> {
        let first = TcpSeq(self.subflow(INITIAL).agreed.isn_remote.add(1).0);
        let speaks = segment.has(TcpFlags::ACK) && TcpSeq(segment.tcp.ack).before(first);
        (self.front.is_some() && speaks).then_some(first)
    }

    /// A packet of the server's says nothing but how far the server is with its header.
    pub(super) fn is_of_header_alone(&self, segment: &Segment) -> bool {
        let control = TcpFlags::SYN | TcpFlags::FIN | TcpFlags::RST;
        let bare = segment.payload.is_empty() && !segment.tcp.flags.intersects(control);
        bare && self.ack_of_header(segment).is_some()
    }

    /// The server repeats its SYN/ACK: nothing has come there since, and its header goes again. `false`: it has got that, or has none.
    pub(super) fn repeat_header(&mut self, ctx: &mut Context<'_>, segment: &Segment) -> bool {
        let same = TcpSeq(segment.tcp.ack) == self.tcp.isn_local.add(1)
            && TcpSeq(segment.tcp.seq) == self.tcp.isn_remote;
        let repeats = self.sent_header().is_some() && same;
        if repeats {
            self.send_front(ctx);
        }
        repeats
    }

    /// The packet that has shown where the client is, as it is about to go to the server: what the server gets first goes before it,
    /// or in its place where it says nothing else. A server that has answered by a cookie (RFC 4987 section 3.6) knows its next
    /// number alone.
    pub(super) fn begin_front(
        &mut self,
        ctx: &mut Context<'_>,
        verdict: Verdict,
        segment: &Segment,
        frame: &Frame<'_>,
    ) -> Verdict {
        let front = self.front.as_deref();
        let is_header = front.is_some_and(Front::is_header);
        let goes_first = front.is_some_and(|front| !front.delivered);
        self.send_front(ctx);
        ctx.counters.proxy_headers += u64::from(is_header);
        if !goes_first || verdict != Verdict::Forward {
            return verdict;
        }
        let control = TcpFlags::FIN | TcpFlags::RST;
        if segment.payload.is_empty() && !segment.tcp.flags.intersects(control) {
            return Verdict::Consume;
        }
        let Some(behind) = Transmit::of(frame.packet(), frame.offload) else {
            return verdict;
        };
        ctx.send(behind);
        Verdict::Consume
    }

    /// What the server has got of the client's data. The client may yet have to say the data of its SYN again, which the server has
    /// from FlexCP: nothing is ACKed that it has not sent.
    pub(super) fn acked_of_client(&self, ack: Dsn) -> Dsn {
        let ack = self.acked_behind_promise(ack);
        let SynAgain::Unanswered(len) = self.subflow(INITIAL).agreed.syn_again else {
            return ack;
        };
        let first = self.dsn_to_tcp(TcpSeq(self.subflow(INITIAL).agreed.isn_remote.add(1).0));
        let again = !ack.after(first.add(len.into()));
        if again {
            ack.min(self.to_tcp.next)
        } else {
            ack
        }
    }

    /// When what is not ACKed goes again, while there is a connection.
    pub(crate) fn front_due(&self) -> Option<Instant> {
        let relays = self.phase.is_relayed() && !self.phase.relayed().reset;
        let goes_on = self.phase.is_established() || relays;
        let front = self.front.as_deref().filter(|_| goes_on);
        front.and_then(Front::due)
    }

    /// The server ACKs.
    pub(crate) fn note_delivered(&mut self, ack: TcpSeq) {
        let first = self.tcp.isn_local.add(1);
        if let Some(front) = &mut self.front {
            front.delivered |= !ack.before(first.add(front.early_len()));
        }
        self.let_go_front();
    }

    /// Lets go of what both ends have.
    pub(crate) fn let_go_front(&mut self) {
        let done = |front: &Front| {
            let answered = self.tcp.syn.answered && front.answer_len() > 0;
            let heard = answered && !self.to_mptcp.acked.before(self.answer_end(front));
            front.delivered && (heard || front.is_header())
        };
        if self.front.as_deref().is_some_and(done) {
            self.front = None;
        }
    }

    /// The client has shown where it is, or what went has not been ACKed in time: it is answered, and the server gets what came
    /// with the SYN.
    pub(crate) fn send_front(&mut self, ctx: &mut Context<'_>) {
        let Some(front) = &mut self.front else {
            return;
        };
        front.due = Some(ctx.now + PAUSE * (1 << front.copies.min(MAX_DOUBLINGS)));
        ctx.counters.front_repeated += u64::from(front.copies > 0);
        front.copies = front.copies.saturating_add(1);
        self.send_early(ctx);
        if self.phase.is_relayed() {
            self.send_plain_answer(ctx);
        } else {
            self.send_answer(ctx);
        }
    }

    fn send_early(&self, ctx: &mut Context<'_>) {
        let Some(front) = self.front.as_deref().filter(|front| !front.delivered) else {
            return;
        };
        let most = usize::from(self.tcp.mss.saturating_sub(OPTIONS).max(1));
        let mut seq = self.tcp.isn_local.add(1);
        for part in front.early.chunks(most) {
            let mut outgoing = self.own_to_tcp(seq, TcpFlags::PSH | TcpFlags::ACK);
            if self.phase.is_relayed() {
                outgoing.window = self.window_behind_answer(front.window);
            }
            ctx.send(outgoing.with_payload(part.into()));
            seq = seq.add(u32::try_from(part.len()).unwrap_or(0));
        }
    }

    /// What is left for the server of a window as the client's packet says it: what the client has not ACKed of its answer takes
    /// a part.
    fn window_behind_answer(&self, window: u16) -> u16 {
        let owed = self.acked_to_tcp().since(self.to_mptcp.acked);
        let scale = self.subflow(INITIAL).agreed.window_scale;
        let left = (u64::from(window) << scale).saturating_sub(owed) >> scale;
        u16::try_from(left).unwrap_or(window)
    }

    /// Numbers are the same on both legs, and nothing is mapped.
    fn send_plain_answer(&mut self, ctx: &mut Context<'_>) {
        let Some(front) = self.front.as_deref() else {
            return;
        };
        if !self.to_mptcp.acked.before(self.answer_end(front)) {
            return;
        }
        let subflow = self.subflow(INITIAL);
        let most = usize::from(subflow.agreed.mss.saturating_sub(OPTIONS).max(1));
        let mut seq = subflow.agreed.isn_local.add(1);
        for part in front.answer.chunks(most) {
            let mut outgoing = self.own_to_mptcp(INITIAL, TcpFlags::PSH | TcpFlags::ACK);
            outgoing.seq = seq.0;
            ctx.send(outgoing.with_payload(part.into()));
            seq = seq.add(u32::try_from(part.len()).unwrap_or(0));
        }
        self.to_mptcp.next = self.to_mptcp.next.max(self.answer_end(front));
    }

    /// As data of the server's: it goes down whichever subflow that would go down.
    fn send_answer(&mut self, ctx: &mut Context<'_>) {
        let Some(front) = self.front.as_deref() else {
            return;
        };
        let (answer, end) = (front.answer.clone(), self.answer_end(front));
        let mut from = self.to_mptcp.acked;
        while from.before(end) {
            let Some(placed) = self.place_part(ctx, &mut from, end) else {
                return;
            };
            let (dsn, ssn, len) = placed.mapping;
            let mapping = DssMapping {
                dsn: DataNumber::Long(dsn.0),
                ssn: self.subflow(placed.subflow).relative(ssn),
                len: u16::try_from(len).unwrap_or(u16::MAX),
                checksum: None,
            };
            let start = answer.len() - usize::try_from(end.since(placed.dsn)).unwrap_or(0);
            let bytes = &answer[start..][..placed.len as usize];
            let most = self
                .subflow(placed.subflow)
                .agreed
                .mss
                .saturating_sub(OPTIONS);
            let mut at = placed.ssn;
            for part in bytes.chunks(most.max(1).into()) {
                let mut outgoing = self.own_to_mptcp(placed.subflow, TcpFlags::PSH | TcpFlags::ACK);
                outgoing.seq = at.0;
                self.push_dss(&mut outgoing, Some(mapping), false);
                ctx.send(outgoing.with_payload(part.into()));
                at = at.add(u32::try_from(part.len()).unwrap_or(0));
            }
        }
    }

    /// The server's SYN/ACK for a client without MPTCP: the answer goes with it (RFC 8803 section 4.2).
    pub(crate) fn answer_in_syn_ack(
        &mut self,
        ctx: &mut Context<'_>,
        segment: &Segment,
        frame: &mut Frame<'_>,
    ) -> Verdict {
        if let Err(reason) = self.take_syn_ack(ctx, segment, frame) {
            return Verdict::Drop(reason);
        }
        let mut outgoing = self.syn_ack_to_client(segment);
        let answer = match &self.front {
            Some(front) => front.answer.clone(),
            None => Box::default(),
        };
        if answer.is_empty() {
            return self.forward_syn_ack(ctx.now, segment, frame, outgoing);
        }
        if self.may_answer(bytes_of(&mut outgoing, &(0..answer.len()))) {
            if let Some(front) = &self.front {
                self.to_mptcp.next = self.to_mptcp.next.max(self.answer_end(front));
            }
            self.last_packet = ctx.now;
            ctx.send(outgoing.with_payload(answer));
            return Verdict::Consume;
        }
        self.forward_syn_ack(ctx.now, segment, frame, outgoing)
    }

    /// Sends a SYN/ACK on, if the client's address may get that much. One that may not go there is no sign of life: a server could
    /// keep what a client has left for as long as it likes.
    pub(crate) fn forward_syn_ack(
        &mut self,
        now: Instant,
        segment: &Segment,
        frame: &mut Frame<'_>,
        mut outgoing: Outgoing,
    ) -> Verdict {
        let answers = self
            .front
            .as_deref()
            .is_some_and(|front| !front.is_header());
        let payload = if answers {
            // The number behind the SYN is the answer's.
            segment.payload.end..segment.payload.end
        } else {
            segment.payload.clone()
        };
        if !self.may_answer(bytes_of(&mut outgoing, &payload)) {
            return Verdict::Drop(DropReason::Unproved);
        }
        self.last_packet = now;
        match outgoing.forward(frame, segment, payload, u16::MAX) {
            Ok(()) => Verdict::Forward,
            Err(reason) => Verdict::Drop(reason),
        }
    }
}

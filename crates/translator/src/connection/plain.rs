//! Plain TCP: connections that never were MPTCP, and those that have fallen back. Numbers are the same
//! on both sides; addresses may differ, and MPTCP options stay behind.

use flexcp_wire::{
    DataNumber, Dsn, Dss, Ends, MptcpOption, OptionWriter, TcpFlags, TcpOption, TcpOptions, TcpSeq,
};

use super::{Connection, Context, Shift};
use crate::counters::DropReason;
use crate::frame::{Frame, Verdict};
use crate::handle::INITIAL;
use crate::segment::{Outgoing, Segment};
use crate::time::Instant;

/// Plain connections' windows are not followed: no honest number is further from what is acknowledged.
const NEAR: u64 = 1 << 30;

impl Connection {
    /// Client to server.
    pub(crate) fn relay_to_tcp(
        &mut self,
        ctx: &mut Context<'_>,
        segment: &Segment,
        frame: &mut Frame<'_>,
    ) -> Verdict {
        self.last_packet = ctx.now;
        if segment.has(TcpFlags::SYN) && self.was_connected_on() {
            return self.ack_repeated_answer(ctx);
        }
        if segment.has(TcpFlags::SYN) && self.asks() && !self.phase.is_plain() {
            return self.forward_answer(segment, frame);
        }
        let subflow = self.subflow_mut(INITIAL);
        subflow.path.last_heard = ctx.now;
        subflow.traffic.bytes_up += u64::from(segment.payload_len());
        let seq = self.dsn_to_tcp(TcpSeq(segment.tcp.seq));
        let exact = seq == self.to_tcp.acked || seq == self.to_tcp.next;
        self.note_plain_reset(ctx, segment, exact);
        if !segment.has(TcpFlags::RST) && is_near(seq, self.to_tcp.acked) {
            let next = seq.add(u64::from(segment.sequence_len()));
            if segment.has(TcpFlags::FIN) && next.after(self.to_tcp.acked) {
                self.to_tcp.fin = Some(next.sub(1));
            }
            self.to_tcp.next = self.to_tcp.next.max(next);
            if segment.has(TcpFlags::ACK) {
                self.take_plain_ack_to_tcp(segment);
            }
            self.follow_plain_peer(ctx.now, segment);
        }
        if self.front.is_some() {
            return self.relay_behind_front(ctx, segment, frame);
        }
        if let Some(first) = self.stream_start()
            && seq.before(first)
            && !segment.payload.is_empty()
        {
            return self.relay_behind_preamble((first, seq), segment, frame);
        }
        relay(self.server_ends(), segment, frame)
    }

    /// The same without what the client repeats of its preamble, which is not the server's to see. Where nothing else is left, the
    /// server is made to ACK anew what it has got before. `first`: the stream's first number, `seq`: the packet's.
    fn relay_behind_preamble(
        &self,
        (first, seq): (Dsn, Dsn),
        segment: &Segment,
        frame: &mut Frame<'_>,
    ) -> Verdict {
        let before = usize::try_from(first.offset_from(seq)).unwrap_or(usize::MAX);
        let cut = before.min(segment.payload.len());
        let is_left = cut < segment.payload.len() || segment.has(TcpFlags::FIN);
        let seq = if is_left {
            TcpSeq(segment.tcp.seq).add(u32::try_from(cut).unwrap_or(0))
        } else {
            self.seq_to_tcp(first.sub(1))
        };
        let change = Change {
            behind: Some((seq, cut)),
            ..Change::default()
        };
        relay_with(self.server_ends(), segment, frame, change)
    }

    /// The same while something before the streams has not arrived: the server knows nothing of an answer before its first byte.
    fn relay_behind_front(
        &mut self,
        ctx: &mut Context<'_>,
        segment: &Segment,
        frame: &mut Frame<'_>,
    ) -> Verdict {
        let ack = TcpSeq(segment.tcp.ack).max(self.tcp.isn_remote.add(1));
        self.note_plain_window(segment);
        let mut answers = true;
        if let Some(front) = &mut self.front {
            front.note_window(segment.tcp.window);
            answers = !front.is_header();
        }
        self.let_go_front();
        let waits = self.front.as_ref();
        let shown = waits.is_some_and(|front| front.due().is_none()) && self.phase.relayed().proved;
        let further = segment.has(TcpFlags::ACK) && ack != TcpSeq(segment.tcp.ack);
        let change = Change {
            ack: segment.has(TcpFlags::ACK).then_some(ack),
            window: further.then(|| self.window_to_tcp()),
            no_sack: answers,
            ..Change::default()
        };
        let verdict = relay_with(self.server_ends(), segment, frame, change);
        if shown {
            return self.begin_front(ctx, verdict, segment, frame);
        }
        verdict
    }

    /// Server to client.
    pub(crate) fn relay_to_mptcp(
        &mut self,
        ctx: &mut Context<'_>,
        segment: &Segment,
        frame: &mut Frame<'_>,
    ) -> Verdict {
        self.last_packet = ctx.now;
        if segment.has(TcpFlags::SYN)
            && let Some(verdict) = self.answer_syn_of_plain(ctx, segment)
        {
            return verdict;
        }
        self.note_opener_there(segment);
        if segment.has(TcpFlags::SYN) && !self.phase.relayed().proved {
            self.tcp.syn.answered = true;
            self.tcp.isn_remote = TcpSeq(segment.tcp.seq);
            self.numbers.to_mptcp = Shift::between(self.tcp.isn_remote, self.mptcp.key.idsn);
        }
        self.subflow_mut(INITIAL).traffic.bytes_down += u64::from(segment.payload_len());
        let seq = self.dsn_to_mptcp(TcpSeq(segment.tcp.seq));
        let exact = seq == self.to_mptcp.acked || seq == self.to_mptcp.next;
        self.note_plain_reset(ctx, segment, exact);
        let ends = self.subflow(INITIAL).ends();
        if !self.may_relay(ends, segment, frame) {
            return Verdict::Drop(DropReason::Unproved);
        }
        if !segment.has(TcpFlags::RST) && is_near(seq, self.to_mptcp.acked) {
            let next = seq.add(u64::from(segment.sequence_len()));
            if segment.has(TcpFlags::FIN) && next.after(self.to_mptcp.acked) {
                self.to_mptcp.fin = Some(next.sub(1));
            }
            self.to_mptcp.next = self.to_mptcp.next.max(next);
            let ack = self.dsn_to_tcp(TcpSeq(segment.tcp.ack));
            if segment.has(TcpFlags::ACK) && !ack.after(self.to_tcp.next) {
                // What FlexCP says to the peer by itself says so, too.
                let speaks = self.hosted.is_some() || self.was_connected_on();
                if !ack.before(self.to_tcp.acked) && speaks {
                    self.tcp.window.offered = segment.tcp.window;
                }
                self.to_tcp.acked = self.to_tcp.acked.max(ack);
                self.note_delivered(TcpSeq(segment.tcp.ack));
            }
            self.follow_plain_opener(segment);
        }
        if self.is_of_header_alone(segment) {
            return Verdict::Consume;
        }
        relay_with(ends, segment, frame, self.change_to_mptcp(segment))
    }

    /// The server's SYN where FlexCP answers it; `None`: it passes.
    fn answer_syn_of_plain(&mut self, ctx: &mut Context<'_>, segment: &Segment) -> Option<Verdict> {
        if self.has_errand() {
            return Some(self.repeat_to_opener(ctx, segment));
        }
        if self.was_connected_on() {
            // The aggregation server was asked by FlexCP's SYN, which has another number, and tells whom to connect with.
            return Some(self.challenge_opener(ctx));
        }
        self.repeat_header(ctx, segment).then_some(Verdict::Consume)
    }

    /// What changes in a packet of the server's for the client.
    fn change_to_mptcp(&self, segment: &Segment) -> Change<'static> {
        if segment.has(TcpFlags::SYN)
            && let Some(change) = self.repeated_behind_answer(segment)
        {
            return change;
        }
        let ack = self.ack_of_header(segment);
        let control = TcpFlags::SYN | TcpFlags::FIN | TcpFlags::RST;
        let is_ack = segment.payload.is_empty() && !segment.tcp.flags.intersects(control);
        let dss = Dss {
            data_ack: Some(DataNumber::Long(self.to_tcp.acked.0)),
            mapping: None,
            data_fin: false,
        };
        let extra = (self.phase.relayed().wants_data_acks && is_ack)
            .then_some(TcpOption::Mptcp(MptcpOption::Dss(dss)));
        Change {
            ack,
            // What is SACKed stands behind the header, where the client would see no hole.
            no_sack: ack.is_some(),
            extra,
            ..Change::default()
        }
    }

    /// The server's SYN/ACK again, behind an answer of FlexCP's: with the numbers that it had for the client. `None`: those are the
    /// server's.
    fn repeated_behind_answer(&self, segment: &Segment) -> Option<Change<'static>> {
        let seq = self.seq_to_mptcp(self.mptcp.key.idsn);
        let same = TcpSeq(segment.tcp.seq) == self.tcp.isn_remote;
        let acked = self.subflow(INITIAL).agreed.isn_remote.add(1);
        (same && seq != self.tcp.isn_remote).then(|| Change {
            ack: Some(TcpSeq(acked.0)),
            // Where its data would stand the answer does.
            behind: Some((seq, segment.payload.len())),
            ..Change::default()
        })
    }

    /// The server's answer to the SYN, which is a RST, for the client: it believes one that ACKs its own.
    pub(crate) fn relay_refusal(&self, segment: &Segment, frame: &mut Frame<'_>) -> Verdict {
        let change = Change {
            ack: self.ack_of_header(segment),
            ..Change::default()
        };
        relay_with(self.subflow(INITIAL).ends(), segment, frame, change)
    }

    /// The room that a client without MPTCP offers: what FlexCP sends of its own has it in its window.
    fn note_plain_window(&mut self, segment: &Segment) {
        let scale = if segment.has(TcpFlags::SYN) {
            0
        } else {
            self.subflow(INITIAL).agreed.window_scale
        };
        let offered = u64::from(segment.tcp.window) << scale;
        let edge = self.to_mptcp.acked.add(offered);
        self.to_mptcp.edge = self.to_mptcp.edge.max(edge);
    }

    /// The clock and the room of an aggregation server that has TCP alone: FlexCP answers a SYN that its client says again in its
    /// place. The clock of a client, too, for which FlexCP repeats to the server what came with the SYN.
    fn follow_plain_peer(&mut self, now: Instant, segment: &Segment) {
        let ack = self.dsn_to_mptcp(TcpSeq(segment.tcp.ack));
        let fits = segment.has(TcpFlags::ACK) && ack == self.to_mptcp.acked;
        if fits && self.was_connected_on() {
            self.note_plain_window(segment);
        }
        if self.speaks_in_place() {
            self.follow_peer_clock(now, segment);
        }
    }

    /// Whether FlexCP says something itself in the place of either end.
    fn speaks_in_place(&self) -> bool {
        self.was_connected_on() || self.front.is_some()
    }

    /// The clock of the TCP leg, where FlexCP ACKs in its place a SYN/ACK that an aggregation server says again, or repeats a
    /// client's answer: PAWS drops what is older than what the other end has got from there (RFC 7323 section 5.3).
    fn follow_plain_opener(&mut self, segment: &Segment) {
        let timestamps = segment
            .options
            .timestamps
            .filter(|_| self.speaks_in_place());
        if let (Some(clock), Some(timestamps)) = (&mut self.tcp.clock, timestamps) {
            clock.heard(timestamps.val);
        }
    }

    /// The client's ACK: the first that could not have been guessed proves where the client is.
    fn take_plain_ack_to_tcp(&mut self, segment: &Segment) {
        let ack = self.dsn_to_mptcp(TcpSeq(segment.tcp.ack));
        if ack.after(self.to_mptcp.next) || !is_near(ack, self.to_mptcp.acked) {
            return;
        }
        self.to_mptcp.acked = self.to_mptcp.acked.max(ack);
        let proves = self.tcp.syn.answered && ack.after(self.mptcp.key.idsn);
        if let Some(relayed) = self.phase.relayed_mut() {
            relayed.proved |= proves;
        }
    }

    /// A RST goes through as it is, for its receiver to judge. One with the number that the receiver
    /// expects (RFC 5961 section 3.2) lets the state go soon, unless traffic shows that it was refused.
    fn note_plain_reset(&mut self, ctx: &Context<'_>, segment: &Segment, exact: bool) {
        let Some(relayed) = self.phase.relayed_mut() else {
            return;
        };
        if !segment.has(TcpFlags::RST) {
            relayed.reset = false;
        } else if exact {
            relayed.reset = true;
            self.last_packet = ctx.now + ctx.config.timeouts.linger / 2;
        }
    }
}

/// Whether a number may be from this connection and not from somebody who only knows its ends.
fn is_near(number: Dsn, acked: Dsn) -> bool {
    number.offset_from(acked).unsigned_abs() <= NEAR
}

/// Writes the packet with other addresses and without MPTCP options.
pub(crate) fn relay(ends: Ends, segment: &Segment, frame: &mut Frame<'_>) -> Verdict {
    relay_with(ends, segment, frame, Change::default())
}

/// What changes beside the addresses.
#[derive(Default)]
struct Change<'a> {
    /// Another ACK.
    ack: Option<TcpSeq>,
    /// Another window, as the packet has it.
    window: Option<u16>,
    /// SACK blocks stay behind.
    no_sack: bool,
    /// One option more, if there is room.
    extra: Option<TcpOption<'a>>,
    /// Another number, and so many bytes of the payload stay behind, with what is urgent.
    behind: Option<(TcpSeq, usize)>,
}

/// Writes the packet with such changes.
fn relay_with(ends: Ends, segment: &Segment, frame: &mut Frame<'_>, change: Change<'_>) -> Verdict {
    let mut options = OptionWriter::default();
    for option in TcpOptions::new(segment.option_bytes(frame)).flatten() {
        let stays = match option {
            TcpOption::Mptcp(_) => true,
            TcpOption::Sack(_) => change.no_sack,
            _ => false,
        };
        if !stays {
            options.push(&option);
        }
    }
    if let Some(extra) = change.extra {
        options.push(&extra);
    }
    let (seq, cut) = change.behind.unwrap_or((TcpSeq(segment.tcp.seq), 0));
    let (flags, urgent) = match cut {
        0 => (segment.tcp.flags, segment.tcp.urgent),
        // Its pointer counts from the packet's first byte.
        _ => (segment.tcp.flags.without(TcpFlags::URG), 0),
    };
    let outgoing = Outgoing {
        ends,
        seq: seq.0,
        ack: change.ack.map_or(segment.tcp.ack, |ack| ack.0),
        flags,
        window: change.window.unwrap_or(segment.tcp.window),
        urgent,
        keep_ecn: true,
        flow_label: segment.ip.flow_label,
        options,
    };
    let payload = segment.payload.start + cut..segment.payload.end;
    match outgoing.forward(frame, segment, payload, u16::MAX) {
        Ok(()) => Verdict::Forward,
        Err(reason) => Verdict::Drop(reason),
    }
}

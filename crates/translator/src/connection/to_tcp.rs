//! Client to server: packets of the subflows become packets of one TCP connection.

use flexcp_wire::{Dsn, Ssn, TcpFlags, TcpOption, TcpSeq};

use super::acknowledge::{AckNews, DataBlocks};
use super::clock::ServerClock;
use super::declare::Declared;
use super::subflow::SynAgain;
use super::{Connection, Context, Phase};
use crate::cause::Rst;
use crate::counters::DropReason;
use crate::frame::{Frame, Verdict};
use crate::handle::{INITIAL, SubflowIndex};
use crate::hosted::Hosted;
use crate::segment::{Outgoing, Segment};

/// Numbers further away than this from where they should be are never believed.
pub(crate) const FAR: u32 = 1 << 30;
/// Numbers nearer than this always are: a SYN offers such a window.
pub(crate) const MIN_SPAN: u32 = 1 << 17;
/// A packet is never split in more pieces: honest mappings hold many packets, not the other way round.
const MAX_PIECES: usize = 8;
/// The smallest segment that is cut for a server, whatever MSS it claims: Linux goes no lower than this
/// either, and a claim of a few bytes would turn one packet into thousands.
const MIN_SEGMENT: u16 = 48;
/// So many ACKs in a row without a data ACK, and the path of a joined subflow strips options.
const MAX_BARE_ACKS: u8 = 3;
/// What is next on a subflow has to come again so often before it is in the way of what the server waits for: a path
/// may double a packet, and another path bring late what has never been seen.
pub(super) const PATIENCE: u8 = 3;

/// Part of a payload and its place in the data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Piece {
    /// Offset in the payload.
    at: u32,
    dsn: Dsn,
    len: u32,
}

/// Pieces of one payload.
#[derive(Default, Debug)]
struct Pieces {
    pieces: [Option<Piece>; MAX_PIECES],
    len: usize,
}

impl Connection {
    /// A packet on a subflow that has authenticated itself.
    pub(crate) fn handle_to_tcp(
        &mut self,
        ctx: &mut Context<'_>,
        index: SubflowIndex,
        segment: &Segment,
        frame: &mut Frame<'_>,
    ) -> Verdict {
        self.translate_to_tcp(ctx, index, segment, frame)
            .unwrap_or_else(|verdict| verdict)
    }

    /// The way of such a packet; `Err`: where it ends before its time.
    fn translate_to_tcp(
        &mut self,
        ctx: &mut Context<'_>,
        index: SubflowIndex,
        segment: &Segment,
        frame: &mut Frame<'_>,
    ) -> Result<Verdict, Verdict> {
        let subflow_acked = self.admit_to_tcp(ctx, index, segment)?;
        let news = self.acknowledge_to_tcp(ctx, index, segment, subflow_acked)?;
        self.note_confirmed(ctx, segment);
        let control = self.take_control(ctx, index, segment);
        let declared = self.learn_to_tcp(ctx, index, segment, frame)?;
        let control = self.take_subflow_fin(ctx, index, segment) || control;
        if let Phase::Closed(_) = self.phase {
            return Ok(self.answer_closed_client(ctx, index, segment));
        }
        let verdict = if segment.payload.is_empty() {
            self.forward_control(ctx, index, segment, frame, news, control)
        } else {
            self.forward_data(ctx, index, segment, frame, declared)
        };
        self.answer_subflow_fin(ctx, index, segment.has(TcpFlags::FIN));
        self.note_finished(ctx);
        if !segment.payload.is_empty() {
            // Its paths are told apart for what it sends, too.
            self.steer_data(ctx);
        }
        Ok(verdict)
    }

    /// Whether it can be the client's, and what it ACKs on its subflow: whether that is more than before.
    fn admit_to_tcp(
        &mut self,
        ctx: &mut Context<'_>,
        index: SubflowIndex,
        segment: &Segment,
    ) -> Result<bool, Verdict> {
        let seq = Ssn(segment.tcp.seq);
        let (span, span_down) = (self.span_to_tcp(), self.span_to_mptcp());
        let subflow = self.subflow_mut(index);
        // Whatever its number (RFC 5961 section 4): the client may have rebooted.
        if segment.has(TcpFlags::SYN) {
            return Err(self.challenge(ctx, index));
        }
        if seq.offset_from(subflow.recv.ack).unsigned_abs() > span {
            return Err(Verdict::Drop(DropReason::OutOfWindow));
        }
        if segment.has(TcpFlags::RST) {
            return Err(self.handle_subflow_reset(ctx, index, segment));
        }
        if !segment.has(TcpFlags::ACK) {
            return Err(Verdict::Drop(DropReason::Unexpected));
        }
        let una = subflow.send.una;
        if ctx.astray && Ssn(segment.tcp.ack).after(subflow.send.next) {
            return Err(self.end_astray_by_client(ctx, index, segment));
        }
        if !subflow.take_ack(ctx.now, Ssn(segment.tcp.ack), span_down) {
            return Err(Verdict::Drop(DropReason::AckOfUnsent));
        }
        Ok(subflow.send.una != una)
    }

    /// Notes that the client was heard, and what it ACKs of the connection's data. `subflow_acked`: it ACKs more of its
    /// subflow than before.
    fn acknowledge_to_tcp(
        &mut self,
        ctx: &mut Context<'_>,
        index: SubflowIndex,
        segment: &Segment,
        subflow_acked: bool,
    ) -> Result<AckNews, Verdict> {
        let seq = Ssn(segment.tcp.seq);
        let subflow = self.subflow_mut(index);
        let old = seq.before(subflow.recv.ack);
        let end = seq.add(segment.payload_len());
        let repeats_next = seq == subflow.recv.ack && !end.after(subflow.recv.high) && end != seq;
        subflow.heard(ctx.now, segment);
        self.let_go_spare(index);
        self.to_tcp.repeated = self.to_tcp.repeated.saturating_add(repeats_next.into());
        // Nobody answers an ACK that data has overtaken.
        let repeats = old && (!segment.payload.is_empty() || self.is_probe(index, segment));
        self.mptcp.owed |= u8::from(repeats) << index;
        if index == INITIAL {
            self.tcp.label = segment.ip.flow_label;
        }
        self.mptcp.heard = index;
        self.last_packet = ctx.now;
        if let Some(key) = segment.options.fast_close {
            return Err(self.handle_fast_close(ctx, key));
        }
        let Some(mut news) = self.take_data_ack(index, segment) else {
            return Err(Verdict::Drop(DropReason::AckOfUnsent));
        };
        news.subflow_acked = subflow_acked;
        self.let_go_front();
        self.release_to_mptcp();
        self.watch_holes(ctx, index, news.acked);
        Ok(news)
    }

    /// A packet after both ends have closed.
    fn answer_closed_client(
        &mut self,
        ctx: &mut Context<'_>,
        index: SubflowIndex,
        segment: &Segment,
    ) -> Verdict {
        self.linger(ctx);
        self.advance_subflow_ack(index, &DataBlocks::default());
        let data_fin = segment.options.dss.as_ref().is_some_and(|dss| dss.data_fin);
        let wants_ack = data_fin || !segment.payload.is_empty() || self.is_probe(index, segment);
        if wants_ack && !segment.has(TcpFlags::FIN) {
            // The last data ACK has got lost, or the window that lets the subflow's FIN go.
            self.acknowledge_with_fin(ctx, index);
        }
        self.answer_subflow_fin(ctx, index, segment.has(TcpFlags::FIN));
        Verdict::Consume
    }

    /// How far numbers of the client's may lie from what is acknowledged (RFC 9293 section 3.10.7.4): the
    /// largest window that it was ever offered, twice, as a subflow may carry what others carried before.
    pub(crate) fn span_to_tcp(&self) -> u32 {
        self.tcp.window.max.saturating_mul(2).clamp(MIN_SPAN, FAR)
    }

    /// The same for the numbers that it acknowledges (RFC 5961 section 5.2).
    pub(crate) fn span_to_mptcp(&self) -> u32 {
        self.to_mptcp.window.saturating_mul(2).clamp(MIN_SPAN, FAR)
    }

    /// Lets go of downstream mappings that are done with.
    fn release_to_mptcp(&mut self) {
        let data_acked = self.to_mptcp.acked;
        for subflow in &mut self.mptcp.subflows {
            subflow.send.lane.release(subflow.send.una, data_acked);
        }
    }

    /// A packet with payload.
    fn forward_data(
        &mut self,
        ctx: &mut Context<'_>,
        index: SubflowIndex,
        segment: &Segment,
        frame: &mut Frame<'_>,
        declared: Declared,
    ) -> Verdict {
        let mut pieces = match self.pieces_to_tcp(index, segment, declared) {
            Ok(pieces) => pieces,
            Err(DropReason::NoMapping) => return self.handle_unmapped(ctx, index, segment, frame),
            Err(reason) => return Verdict::Drop(reason),
        };
        self.subflow_mut(index).traffic.bytes_up += u64::from(segment.payload_len());
        if let Some(first) = self.stream_start() {
            // What the client repeats of its preamble is not the server's to see.
            pieces.keep_from(first);
        }
        let mut rest = pieces.pieces.iter().take(pieces.len).flatten();
        let Some(&first) = rest.next() else {
            return Verdict::Drop(DropReason::NoMapping);
        };
        for &piece in rest {
            let (outgoing, limit) = self.data_to_tcp(ctx, index, segment, piece);
            let start = segment.payload.start + piece.at as usize;
            let payload = start..start + piece.len as usize;
            let transmit = outgoing.piece(frame, &segment.ip, payload, limit);
            ctx.send(transmit);
        }
        self.let_go_to_tcp(ctx, index, segment, &pieces);
        let (outgoing, limit) = self.data_to_tcp(ctx, index, segment, first);
        let start = segment.payload.start + first.at as usize;
        match outgoing.forward(frame, segment, start..start + first.len as usize, limit) {
            Ok(()) => Verdict::Forward,
            Err(reason) => Verdict::Drop(reason),
        }
    }

    /// ACKs data at the head of a subflow though the server may refuse it: the client keeps it until the data ACK
    /// (RFC 8684 section 3.3.6), and Linux sends data anew, as it has to with what another path has lost or the server
    /// has thrown away, only on a subflow where nothing is outstanding. So what stands in the way has to go: data
    /// beyond the server's window, which moves no sooner than that (Linux takes the connection's window from whichever
    /// subflow it sends on and overruns it now and then); and what is repeated again and again while no subflow will
    /// bring what the server waits for.
    fn let_go_to_tcp(
        &mut self,
        ctx: &mut Context<'_>,
        index: SubflowIndex,
        segment: &Segment,
        pieces: &Pieces,
    ) {
        let start = Ssn(segment.tcp.seq);
        let end = start.add(segment.payload_len());
        if self.numbers.identity || start != self.subflow(index).recv.ack {
            return;
        }
        let edge = self.server_edge();
        let overruns = |piece: &Piece| piece.dsn.add(piece.len.into()).after(edge);
        let mut pieces = pieces.pieces.iter().take(pieces.len).flatten();
        let overrun = pieces.any(overruns);
        let in_the_way = self.to_tcp.repeated >= PATIENCE && self.nobody_brings(self.to_tcp.acked);
        if !overrun && !in_the_way {
            return;
        }
        let subflow = self.subflow_mut(index);
        while let Some((ssn, _, len)) = subflow.recv.lane.front()
            && ssn.before(end)
        {
            subflow.recv.lane.advance_front(len.min(end.since(ssn)));
        }
        subflow.recv.ack = end;
        self.reach_fin(index);
        if overrun {
            ctx.counters.window_overrun += 1;
        } else {
            ctx.counters.let_go_up += 1;
        }
        self.send_ack(ctx, index, TcpFlags::ACK);
    }

    /// Whether the client has this data outstanding on no subflow: it was ACKed where it came, as the server had it
    /// (and may have thrown it away since, RFC 2018 section 8), or as it lay beyond the window. With a server that does not
    /// use SACK it has to be next on its subflow: what stands before it there may be with the server, which cannot say so,
    /// and after a timeout the client repeats nothing else.
    fn nobody_brings(&self, dsn: Dsn) -> bool {
        let sack = self.tcp.sack;
        let brings = |index| {
            let subflow = self.subflow(index);
            let lane = &subflow.recv.lane;
            let next = || lane.front().is_some_and(|(_, next, _)| next == dsn);
            subflow.lives() && lane.by_dsn(dsn).is_some() && (sack || next())
        };
        let data = dsn.before(self.to_tcp.next) && self.to_tcp.fin != Some(dsn);
        data && !self.indices().any(brings)
    }

    /// Where the payload belongs in the data.
    fn pieces_to_tcp(
        &self,
        index: SubflowIndex,
        segment: &Segment,
        declared: Declared,
    ) -> Result<Pieces, DropReason> {
        let subflow = self.subflow(index);
        let start = Ssn(segment.tcp.seq);
        let end = start.add(segment.payload_len());
        let mut pieces = Pieces::default();
        let mut at = start;
        while at.before(end) {
            let known = subflow.recv.lane.by_ssn(at).or_else(|| match declared {
                Declared::Mapping { dsn, ssn, len }
                    if !at.before(ssn) && at.before(ssn.add(len)) =>
                {
                    let offset = at.since(ssn);
                    Some((dsn.add(u64::from(offset)), len - offset))
                }
                _ => subflow.recv.lane.by_ssn_late(at),
            });
            let (dsn, known) = known.ok_or(DropReason::NoMapping)?;
            let len = known.min(end.since(at));
            pieces.push(Piece {
                at: at.since(start),
                dsn,
                len,
            })?;
            at = at.add(len);
        }
        Ok(pieces)
    }

    /// The client's first byte that is for the server, where a responder was in its place before, or where the client says the data of
    /// its SYN again.
    pub(super) fn stream_start(&self) -> Option<Dsn> {
        let hosted = self.hosted.as_deref().and_then(Hosted::stream_start);
        let hosted = hosted.or_else(|| self.asking.as_deref()?.stream_start);
        let agreed = &self.subflow(INITIAL).agreed;
        hosted.or_else(|| {
            let again = matches!(agreed.syn_again, SynAgain::Unanswered(_));
            again.then(|| self.dsn_to_tcp(self.tcp.isn_local.add(1)))
        })
    }

    /// Headers for part of the payload, DATA_FIN included when it comes right behind.
    fn data_to_tcp(
        &mut self,
        ctx: &mut Context<'_>,
        index: SubflowIndex,
        segment: &Segment,
        piece: Piece,
    ) -> (Outgoing, u16) {
        let end = piece.dsn.add(u64::from(piece.len));
        let fin = self.to_tcp.fin == Some(end);
        self.to_tcp.next = self.to_tcp.next.max(end.add(u64::from(fin)));
        let mut flags = segment.tcp.flags.without(TcpFlags::FIN);
        if fin {
            flags = flags.with(TcpFlags::FIN);
        }
        let seq = self.seq_to_tcp(piece.dsn);
        let seq = match self.stream_start() {
            // Whoever repeats its preamble waits for an ACK, which the server gives for what it has got before.
            Some(first) if piece.len == 0 && !fin => self.seq_to_tcp(first.sub(1)),
            _ => seq,
        };
        let (mut outgoing, _) = self.headers_to_tcp(ctx, index, segment, seq, flags);
        if piece.at > 0 {
            outgoing.urgent = 0;
            outgoing.flags = outgoing.flags.without(TcpFlags::URG).without(TcpFlags::CWR);
        }
        let options = u16::try_from(outgoing.options.finish().len()).unwrap_or(40);
        let limit = self.tcp.mss.saturating_sub(options).max(MIN_SEGMENT);
        (outgoing, limit)
    }

    /// Whether a packet without data counts as a duplicate ACK where the server's data goes down (RFC 5681 section 2).
    fn may_count(&self, index: SubflowIndex, segment: &Segment, probe: bool) -> bool {
        index == self.carrier()
            && !segment.has(TcpFlags::FIN)
            && (probe || !Ssn(segment.tcp.seq).before(self.subflow(index).recv.ack))
    }

    /// A packet without payload: an ACK, a probe, DATA_FIN, or something for FlexCP alone.
    fn forward_control(
        &mut self,
        ctx: &mut Context<'_>,
        index: SubflowIndex,
        segment: &Segment,
        frame: &mut Frame<'_>,
        news: AckNews,
        control: bool,
    ) -> Verdict {
        let data_fin = segment.options.dss.as_ref().is_some_and(|dss| dss.data_fin);
        let Some(seq) = self.control_seq(index, segment, data_fin) else {
            return Verdict::Drop(DropReason::Unexpected);
        };
        let mut flags = segment.tcp.flags.without(TcpFlags::FIN);
        if data_fin {
            flags = flags.with(TcpFlags::FIN);
            self.to_tcp.next = self.to_tcp.next.max(self.dsn_to_tcp(seq).add(1));
        }
        let probe = self.is_probe(index, segment);
        if probe && index != self.carrier() && self.tcp.window.offered > 0 {
            // A keepalive of this subflow alone. While the window is closed it may be a probe, which only
            // the server can answer.
            self.mptcp.owed &= !(1 << index);
            self.send_ack(ctx, index, TcpFlags::ACK);
            return Verdict::Consume;
        }
        let clock = self.tcp.clock;
        let (mut outgoing, sacked) = self.headers_to_tcp(ctx, index, segment, seq, flags);
        let duplicate = !control && !news.subflow_acked && self.may_count(index, segment, probe);
        if self.note_bare_ack(ctx, index, segment) {
            self.take_back_clock(clock);
            return Verdict::Consume;
        }
        let answers = self.mptcp.asked & (1 << index) != 0;
        self.mptcp.asked &= !(1 << index);
        let useful =
            news.acked || news.window || data_fin || probe || sacked || duplicate || answers;
        if !useful {
            self.take_back_clock(clock);
            let done = control || segment.has(TcpFlags::FIN);
            let stale = Verdict::Drop(DropReason::StaleAck);
            return if done { Verdict::Consume } else { stale };
        }
        outgoing.urgent = 0;
        let nothing_outstanding = self.to_mptcp.acked == self.to_mptcp.next;
        frame.set_new_ack(!probe && !answers && (news.acked || nothing_outstanding));
        match outgoing.forward(frame, segment, segment.payload.clone(), u16::MAX) {
            Ok(()) => Verdict::Forward,
            Err(reason) => Verdict::Drop(reason),
        }
    }

    /// A packet whose headers were made stays here: the clock that the server sees stands where it stood. From what
    /// it has not seen a clock that leaps would go on, half way round in two leaps, and be an older one to it.
    const fn take_back_clock(&mut self, before: Option<ServerClock>) {
        if let (Some(clock), Some(before)) = (&mut self.tcp.clock, &before) {
            clock.take_back(before);
        }
    }

    /// The number to write in a packet without payload: DATA_FIN's own, the one before the server's ACK
    /// for a probe, else the next.
    fn control_seq(
        &self,
        index: SubflowIndex,
        segment: &Segment,
        data_fin: bool,
    ) -> Option<TcpSeq> {
        if data_fin {
            return self.to_tcp.fin.map(|fin| self.seq_to_tcp(fin));
        }
        Some(if self.is_probe(index, segment) {
            self.seq_to_tcp(self.to_tcp.acked.sub(1))
        } else {
            self.bare_seq_to_tcp()
        })
    }

    /// The number before the next, its FIN's counted, and no payload: the client wants an answer (keepalive,
    /// zero-window probe; RFC 9293 section 3.8.4). An older one is of an ACK that data has overtaken, which is
    /// nobody's question.
    fn is_probe(&self, index: SubflowIndex, segment: &Segment) -> bool {
        segment.payload.is_empty()
            && !segment.has(TcpFlags::FIN)
            && Ssn(segment.tcp.seq).add(1) == self.subflow(index).ack_number()
    }

    /// The subflow whose duplicate ACKs are real ones: it carries what the client waits for.
    pub(crate) fn carrier(&self) -> SubflowIndex {
        let lives = |&index: &SubflowIndex| self.subflow(index).lives();
        let nothing_missing = self.to_mptcp.acked == self.to_mptcp.next || self.numbers.identity;
        let carries = |index: &SubflowIndex| {
            let holds = || self.subflow(*index).send.lane.by_dsn(self.to_mptcp.acked);
            lives(index) && (nothing_missing || holds().is_some())
        };
        let active = Some(self.mptcp.active);
        active
            .filter(carries)
            .or_else(|| self.indices().find(carries))
            .or_else(|| active.filter(lives))
            .or_else(|| self.indices().find(lives))
            .unwrap_or(self.mptcp.active)
    }

    /// The header fields that every packet to the server shares, and whether there is a SACK among
    /// them.
    fn headers_to_tcp(
        &mut self,
        ctx: &mut Context<'_>,
        index: SubflowIndex,
        segment: &Segment,
        seq: TcpSeq,
        flags: TcpFlags,
    ) -> (Outgoing, bool) {
        let mut options = flexcp_wire::OptionWriter::default();
        let clock = self.subflow(index).clock;
        if let Some(server) = &mut self.tcp.clock {
            let timestamps = server.translate(ctx.now, clock.as_ref(), segment.options.timestamps);
            options.push(&TcpOption::Timestamps(timestamps));
        }
        let room = (options.remaining().saturating_sub(4) / 8).min(4);
        let sack = self.sack_to_tcp(index, segment, room);
        if !sack.is_empty() {
            options.push(&TcpOption::Sack(sack));
        }
        let outgoing = Outgoing {
            ends: self.server_ends(),
            seq: seq.0,
            ack: self.seq_to_mptcp(self.acked_to_tcp()).0,
            flags,
            window: self.window_to_tcp(),
            urgent: segment.tcp.urgent,
            keep_ecn: self.subflow(index).agreed.ecn,
            flow_label: self.tcp.label,
            options,
        };
        (outgoing, !sack.is_empty())
    }

    /// Counts ACKs that move on without a data ACK. `true`: options are being stripped on this joined
    /// subflow, and it has been reset (RFC 8684 section 3.7).
    fn note_bare_ack(
        &mut self,
        ctx: &mut Context<'_>,
        index: SubflowIndex,
        segment: &Segment,
    ) -> bool {
        if self.numbers.identity {
            return false;
        }
        let subflow = self.subflow_mut(index);
        if segment.options.mptcp {
            subflow.path.bare_acks = 0;
            return false;
        }
        subflow.path.bare_acks += 1;
        if subflow.path.bare_acks < MAX_BARE_ACKS {
            return false;
        }
        self.note_stripped(ctx, index);
        self.reset_subflow(ctx, index, Rst::Stripped);
        true
    }
}

impl Pieces {
    /// Adds a piece, joined with the last one when it continues it.
    fn push(&mut self, piece: Piece) -> Result<(), DropReason> {
        if let Some(Some(last)) = self.len.checked_sub(1).and_then(|i| self.pieces.get_mut(i))
            && last.dsn.add(u64::from(last.len)) == piece.dsn
        {
            last.len += piece.len;
            return Ok(());
        }
        let slot = self
            .pieces
            .get_mut(self.len)
            .ok_or(DropReason::BadMapping)?;
        *slot = Some(piece);
        self.len += 1;
        Ok(())
    }

    /// Leaves nothing of what comes before `first`: of a piece that does no byte is left.
    fn keep_from(&mut self, first: Dsn) {
        for piece in self.pieces.iter_mut().flatten() {
            let before = u64::try_from(first.offset_from(piece.dsn)).unwrap_or(0);
            let cut = u32::try_from(before).map_or(piece.len, |before| before.min(piece.len));
            piece.at += cut;
            piece.dsn = piece.dsn.add(cut.into());
            piece.len -= cut;
        }
    }
}

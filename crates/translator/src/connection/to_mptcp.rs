//! Server to client: packets of the TCP connection go down on one subflow, with a DSS each.

use flexcp_wire::{
    DataNumber, Dsn, Dss, DssMapping, MptcpOption, SackBlocks, TcpFlags, TcpOption, TcpSeq,
};

use super::acknowledge::DataBlocks;
use super::place::Placed;
use super::{Connection, Context, Phase, SubflowState};
use crate::counters::DropReason;
use crate::frame::{Frame, Verdict};
use crate::handle::{SubflowIndex, SubflowSet};
use crate::segment::{Outgoing, Segment};

/// What a window is taken for at least: that of a SYN, which counts before any other is known.
const SLACK: u64 = 1 << 16;

/// A packet of the server's is cut in so many pieces at most. Only a repeated one can belong to more
/// mappings than that; its end comes again when its start has arrived.
const MAX_PIECES: u8 = 32;

/// ECN bits of the IP header: their mask, and "congestion experienced" (RFC 3168).
const ECN: u8 = 3;
const CE: u8 = 3;

/// A packet of the server's, and what has been learnt from it.
pub(super) struct ServerPacket<'a> {
    pub(super) segment: &'a Segment,
    /// Its data: `[dsn, end)`.
    pub(super) dsn: Dsn,
    pub(super) end: Dsn,
    /// It carries a FIN that is believed.
    pub(super) fin: bool,
    /// Its SACK blocks.
    pub(super) blocks: DataBlocks,
    /// Subflows that have to be told: their ACK has moved, or the window has opened.
    pub(super) moved: SubflowSet,
    /// The window had been used up, and there is room again.
    pub(super) opened: bool,
}

impl Connection {
    /// A packet of the server's on an established connection.
    pub(crate) fn handle_to_mptcp(
        &mut self,
        ctx: &mut Context<'_>,
        segment: &Segment,
        frame: &mut Frame<'_>,
    ) -> Verdict {
        self.translate_to_mptcp(ctx, segment, frame)
            .unwrap_or_else(|verdict| verdict)
    }

    /// The way of such a packet; `Err`: where it ends before its time.
    fn translate_to_mptcp(
        &mut self,
        ctx: &mut Context<'_>,
        segment: &Segment,
        frame: &mut Frame<'_>,
    ) -> Result<Verdict, Verdict> {
        if segment.has(TcpFlags::SYN) && self.has_errand() {
            return Err(self.repeat_to_opener(ctx, segment));
        }
        if segment.has(TcpFlags::SYN) && self.asks() {
            // Its connection is there (RFC 5961 section 4).
            return Err(self.challenge_opener(ctx));
        }
        if segment.has(TcpFlags::SYN) {
            if self.repeat_header(ctx, segment) {
                return Ok(Verdict::Consume);
            }
            return Ok(self.handle_syn_ack(ctx, segment, frame));
        }
        let dsn = self.dsn_to_mptcp(TcpSeq(segment.tcp.seq));
        let end = dsn.add(u64::from(segment.payload_len()));
        let ack = self.admit_to_mptcp(ctx, segment, dsn, end)?;
        self.note_opener_there(segment);
        let (blocks, moved, opened) = self.acknowledge_to_mptcp(ctx, segment, ack);
        if self.is_of_header_alone(segment) {
            return Ok(Verdict::Consume);
        }
        let mut packet = ServerPacket {
            segment,
            dsn,
            end,
            fin: false,
            blocks,
            moved,
            opened,
        };
        self.learn_fin_to_mptcp(ctx, &mut packet)?;
        let verdict = self.forward_to_mptcp(ctx, &packet, frame);
        if let Verdict::Drop(DropReason::NoSubflow | DropReason::Congestion) = verdict {
            // Its data comes again; what it ACKs has been believed, and may be said but once.
            self.send_acks(ctx, &packet.blocks, moved & self.living());
        }
        for index in self.indices() {
            if moved & (1 << index) != 0 {
                self.answer_subflow_fin(ctx, index, false);
                self.confirm_fins(ctx, index);
            }
        }
        self.announce_start(ctx);
        self.note_finished(ctx);
        Ok(verdict)
    }

    /// Whether it can be the server's; what it ACKs of the client's data.
    fn admit_to_mptcp(
        &mut self,
        ctx: &mut Context<'_>,
        segment: &Segment,
        dsn: Dsn,
        end: Dsn,
    ) -> Result<Dsn, Verdict> {
        // RFC 9293 section 3.10.7.4: only what the client has room for, or had not long ago.
        let span = u64::from(self.to_mptcp.window).max(SLACK);
        if dsn.before(self.to_mptcp.acked.sub(span)) || end.after(self.to_mptcp.edge.add(SLACK)) {
            return Err(Verdict::Drop(DropReason::OutOfWindow));
        }
        if segment.has(TcpFlags::RST) {
            return Err(self.handle_server_reset(ctx, dsn));
        }
        if !segment.has(TcpFlags::ACK) {
            return Err(Verdict::Drop(DropReason::Unexpected));
        }
        let ack = self.acked_of_client(self.dsn_to_tcp(TcpSeq(segment.tcp.ack)));
        // RFC 5961 section 5.2.
        let oldest = self.to_tcp.acked.sub(u64::from(self.span_to_tcp()));
        if ack.after(self.to_tcp.next) && ctx.astray {
            return Err(self.end_astray_by_server(ctx, segment));
        }
        if ack.after(self.to_tcp.next) || ack.before(oldest) {
            return Err(Verdict::Drop(DropReason::AckOfUnsent));
        }
        Ok(ack)
    }

    /// Notes what the server ACKs: the SACK blocks, the subflows that have to be told, and whether a window that had been
    /// used up has opened.
    fn acknowledge_to_mptcp(
        &mut self,
        ctx: &mut Context<'_>,
        segment: &Segment,
        ack: Dsn,
    ) -> (DataBlocks, SubflowSet, bool) {
        self.last_packet = ctx.now;
        self.mptcp.label = segment.ip.flow_label;
        self.note_delivered(TcpSeq(segment.tcp.ack));
        let opened = self.take_server_header(ack, segment);
        let waited = self.to_tcp.acked;
        let blocks = self.take_server_ack(ack, segment);
        if self.to_tcp.acked != waited {
            self.believe_echo(waited, segment);
        }
        let mut moved = self.advance_all(&blocks);
        if opened {
            moved |= self.tell_reopened(ctx);
        }
        (blocks, moved, opened)
    }

    /// Learns the end of the server's data, if the packet brings it.
    fn learn_fin_to_mptcp(
        &mut self,
        ctx: &mut Context<'_>,
        packet: &mut ServerPacket<'_>,
    ) -> Result<(), Verdict> {
        let ServerPacket {
            segment, dsn, end, ..
        } = *packet;
        // Before what it ends has been seen a FIN may be anybody's, and nothing would take it back: the client
        // believes it too. The server repeats it.
        let fin = segment.has(TcpFlags::FIN) && !dsn.after(self.to_mptcp.next);
        let contradicts = |known: Dsn| (fin && end != known) || (dsn != end && end.after(known));
        if self.to_mptcp.fin.is_some_and(contradicts) {
            self.send_acks(ctx, &packet.blocks, packet.moved);
            return Err(Verdict::Drop(DropReason::Unexpected));
        }
        if fin && !end.before(self.to_mptcp.acked) {
            self.to_mptcp.fin = Some(end);
        }
        packet.fin = fin;
        Ok(())
    }

    /// Notes the server's window and clock. `true`: the window had been used up, and there is room again.
    fn take_server_header(&mut self, ack: Dsn, segment: &Segment) -> bool {
        let opened = self.take_server_window(ack, self.window_behind(ack, segment));
        if let (Some(clock), Some(timestamps)) = (&mut self.tcp.clock, segment.options.timestamps) {
            clock.heard(timestamps.val);
        }
        opened
    }

    /// The server's window, unscaled, behind what it counts as ACKing: it may have ACKed more ([`Self::acked_of_client`]).
    fn window_behind(&self, ack: Dsn, segment: &Segment) -> u16 {
        let scale = self.tcp.window.scale.unwrap_or(0);
        let ahead = self.dsn_to_tcp(TcpSeq(segment.tcp.ack)).since(ack) >> scale;
        u16::try_from(ahead).map_or(u16::MAX, |ahead| segment.tcp.window.saturating_add(ahead))
    }

    /// Notes the server's window, unscaled. `true`: it had been used up, and there is room again.
    pub(super) fn take_server_window(&mut self, ack: Dsn, offered: u16) -> bool {
        let mut opened = false;
        let scale = self.tcp.window.scale.unwrap_or(0);
        let window = |unscaled: u16| u32::from(unscaled) << scale;
        let edge = self
            .to_tcp
            .acked
            .add(window(self.tcp.window.offered).into());
        let new = ack.add(window(offered).into());
        self.tcp.window.edge = Some(self.tcp.window.edge.map_or(new, |known| known.max(new)));
        // A packet that was overtaken does not take the window back: what moves the right edge to the left
        // without ACKing anything is older, as no server goes back on its word (RFC 8684 section 3.3.4).
        let grows = ack.after(self.to_tcp.acked) || !new.before(edge) || self.tcp.window.of_syn;
        if !ack.before(self.to_tcp.acked) && grows {
            self.tcp.window.of_syn = false;
            let used_up = !edge.after(self.to_tcp.next.add(u64::from(self.tcp.mss) * 2));
            opened = used_up && new.after(edge);
            self.tcp.window.offered = offered;
            self.tcp.window.max = self.tcp.window.max.max(window(offered));
        }
        opened
    }

    /// The subflows that can be told something.
    pub(crate) fn living(&self) -> SubflowSet {
        let told = |&index: &SubflowIndex| {
            matches!(
                self.subflow(index).state,
                SubflowState::Established | SubflowState::Closing
            )
        };
        self.indices()
            .filter(told)
            .fold(0, |set, index| set | 1 << index)
    }

    /// Moves the ACKs of all subflows; those that moved.
    fn advance_all(&mut self, blocks: &DataBlocks) -> SubflowSet {
        let mut moved = 0;
        for index in self.indices() {
            if !self.subflow(index).lives() {
                continue;
            }
            if self.advance_subflow_ack(index, blocks) {
                moved |= 1 << index;
            }
            self.note_told(index, blocks);
        }
        moved
    }

    fn forward_to_mptcp(
        &mut self,
        ctx: &mut Context<'_>,
        packet: &ServerPacket<'_>,
        frame: &mut Frame<'_>,
    ) -> Verdict {
        let &ServerPacket { dsn, end, fin, .. } = packet;
        let behind = end.add(u64::from(fin));
        if (dsn != end || fin) && !behind.after(self.to_mptcp.acked) {
            // The client has it all; the server missed the ACK. The client's subflows may be gone.
            self.send_acks(ctx, &packet.blocks, packet.moved);
            let mut ack = self.own_to_tcp(self.bare_seq_to_tcp(), TcpFlags::ACK);
            if self.tcp.sack && dsn != end {
                let mut duplicate = SackBlocks::default();
                duplicate.push(self.seq_to_mptcp(dsn).0, self.seq_to_mptcp(end).0);
                ack.options.push(&TcpOption::Sack(duplicate));
            }
            ctx.send(ack.own());
            self.linger(ctx);
            return Verdict::Consume;
        }
        if let Phase::Closed(_) = self.phase {
            return Verdict::Consume;
        }
        if dsn == end && !fin {
            return self.forward_ack_to_mptcp(ctx, packet, frame);
        }
        if dsn.before(self.to_mptcp.next) {
            self.note_server_retransmission(ctx, dsn, end);
        } else {
            self.note_server_probe(ctx);
        }
        let from = dsn.max(self.to_mptcp.acked);
        if from == end {
            return self.forward_fin(ctx, packet, frame);
        }
        self.forward_data_to_mptcp(ctx, from, packet, frame)
    }

    /// Data, in as many pieces as there are mappings and subflows that it belongs to.
    fn forward_data_to_mptcp(
        &mut self,
        ctx: &mut Context<'_>,
        from: Dsn,
        packet: &ServerPacket<'_>,
        frame: &mut Frame<'_>,
    ) -> Verdict {
        let &ServerPacket { segment, end, .. } = packet;
        if segment.ip.traffic_class & ECN == CE
            && let Some(active) = self.usable_active(ctx)
            && !self.subflow(active).agreed.ecn
        {
            // The mark can't be passed on, and the server has to hear of it (RFC 6040 section 4.2).
            return Verdict::Drop(DropReason::Congestion);
        }
        let mut from = from;
        let in_packet = |dsn: Dsn| segment.payload.end - usize_of(end.since(dsn));
        let Some(first) = self.place_part(ctx, &mut from, end) else {
            self.repeat_resets(ctx);
            return Verdict::Drop(DropReason::NoSubflow);
        };
        if let Some(clock) = &mut self.tcp.clock
            && first.again
            && first.dsn == self.to_mptcp.acked
        {
            clock.note_repetition();
            self.to_mptcp.repeated_on = first.subflow;
        }
        let payload = in_packet(first.dsn)..in_packet(first.dsn) + first.len as usize;
        self.keep_spare(ctx, &first, frame.buffer(payload.clone()));
        let redundant = self.send_redundant(ctx, &first, packet, frame);
        let (last, rest) = self.send_rest(ctx, &first, &mut from, packet, frame);
        let copies = self.send_copies(ctx, &first, packet, frame);
        let told = 1 << first.subflow | redundant | rest | copies;
        self.mptcp.owed &= !told;
        self.installation.hold.tell(told);
        let mut outgoing = self.data_headers(&first, packet);
        let limit = self.segment_limit(first.subflow, &mut outgoing);
        self.send_acks(ctx, &packet.blocks, packet.moved & !told);
        if let Err(reason) = outgoing.forward(frame, segment, payload, limit) {
            return Verdict::Drop(reason);
        }
        if packet.fin && from == end {
            self.send_data_fin(ctx, last, end);
        }
        Verdict::Forward
    }

    /// Sends what stands behind the first piece, one by one. The subflow of the last piece, and all of them.
    fn send_rest(
        &mut self,
        ctx: &mut Context<'_>,
        first: &Placed,
        from: &mut Dsn,
        packet: &ServerPacket<'_>,
        frame: &Frame<'_>,
    ) -> (SubflowIndex, SubflowSet) {
        let mut last = first.subflow;
        let mut told = 0;
        let mut pieces = 1;
        let mut again = if first.again { first.len } else { 0 };
        while from.before(packet.end) {
            if pieces == MAX_PIECES {
                ctx.counters.retransmission_cut += 1;
                break;
            }
            pieces += 1;
            let Some(placed) = self.place_part(ctx, from, packet.end) else {
                break;
            };
            last = placed.subflow;
            told |= 1 << placed.subflow | self.send_redundant(ctx, &placed, packet, frame);
            again += if placed.again { placed.len } else { 0 };
            self.send_piece(ctx, &placed, packet, frame);
        }
        if again > 0 {
            let size = frame.offload.gso.map_or(again, |gso| gso.size.into());
            self.tcp.repeated.add(again, size);
        }
        (last, told)
    }

    /// New data over the other paths, too, as the mode wants it. Those subflows.
    fn send_redundant(
        &mut self,
        ctx: &mut Context<'_>,
        first: &Placed,
        packet: &ServerPacket<'_>,
        frame: &Frame<'_>,
    ) -> SubflowSet {
        let mut told = 0;
        for placed in self.copy_places(ctx, first) {
            told |= 1 << placed.subflow;
            ctx.counters.copied_down_bytes += u64::from(placed.len);
            self.count_carried(ctx, placed.subflow, placed.len, false);
            self.send_piece(ctx, &placed, packet, frame);
        }
        told
    }

    /// While no path is known to deliver: what the server repeats goes over the others, too. Those subflows.
    fn send_copies(
        &mut self,
        ctx: &mut Context<'_>,
        first: &Placed,
        packet: &ServerPacket<'_>,
        frame: &Frame<'_>,
    ) -> SubflowSet {
        let mut told = 0;
        if !self.may_copy(ctx) {
            return told;
        }
        for placed in self.other_places(ctx, first) {
            told |= 1 << placed.subflow;
            ctx.counters.retransmitted_down_bytes += u64::from(placed.len);
            self.count_carried(ctx, placed.subflow, placed.len, placed.again);
            self.send_piece(ctx, &placed, packet, frame);
        }
        self.repeat_spare(ctx, told | 1 << first.subflow);
        told
    }

    /// A piece of a packet that does not go in its place.
    fn send_piece(
        &self,
        ctx: &mut Context<'_>,
        placed: &Placed,
        packet: &ServerPacket<'_>,
        frame: &Frame<'_>,
    ) {
        let &ServerPacket { segment, end, .. } = packet;
        let mut outgoing = self.data_headers(placed, packet);
        outgoing.urgent = 0;
        outgoing.flags = outgoing.flags.without(TcpFlags::URG).without(TcpFlags::CWR);
        let start = segment.payload.end - usize_of(end.since(placed.dsn));
        let limit = self.segment_limit(placed.subflow, &mut outgoing);
        let payload = start..start + placed.len as usize;
        ctx.send(outgoing.piece(frame, &segment.ip, payload, limit));
    }

    /// Places the next part of a packet and moves `from` behind it.
    pub(super) fn place_part(
        &mut self,
        ctx: &mut Context<'_>,
        from: &mut Dsn,
        end: Dsn,
    ) -> Option<Placed> {
        let len = u32::try_from(end.since(*from)).ok()?;
        let placed = self
            .place(ctx, *from, len)
            .filter(|placed| placed.len > 0)?;
        if placed.again {
            ctx.counters.retransmitted_down_bytes += u64::from(placed.len);
        }
        self.count_carried(ctx, placed.subflow, placed.len, placed.again);
        *from = from.add(u64::from(placed.len));
        Some(placed)
    }

    /// Headers for a piece of data.
    fn data_headers(&self, placed: &Placed, packet: &ServerPacket<'_>) -> Outgoing {
        let (dsn, ssn, len) = placed.mapping;
        let subflow = self.subflow(placed.subflow);
        let mapping = DssMapping {
            dsn: DataNumber::Long(dsn.0),
            ssn: subflow.relative(ssn),
            len: u16::try_from(len).unwrap_or(u16::MAX),
            checksum: None,
        };
        let mut outgoing = self.headers_to_mptcp(placed.subflow, packet.segment);
        outgoing.seq = placed.ssn.0;
        if self.uses_up_small_window(placed) {
            outgoing.flags = outgoing.flags.with(TcpFlags::PSH);
        }
        self.push_dss(&mut outgoing, Some(mapping), false);
        self.push_sack(placed.subflow, &mut outgoing, &packet.blocks);
        outgoing
    }

    /// Whether the server has to wait for the client's ACK after this piece: no other of its length fits into
    /// the client's small window. A Linux client whose window holds one segment delays each ACK by 40 ms, but
    /// answers what is pushed as soon as its application has read it.
    fn uses_up_small_window(&self, placed: &Placed) -> bool {
        let next = placed.dsn.add(u64::from(placed.len) * 2);
        self.has_small_window() && next.after(self.to_mptcp.edge)
    }

    /// A packet without data: to each subflow whose ACK moved or whose data it SACKs, else to where the
    /// client was heard last.
    fn forward_ack_to_mptcp(
        &mut self,
        ctx: &mut Context<'_>,
        packet: &ServerPacket<'_>,
        frame: &mut Frame<'_>,
    ) -> Verdict {
        let ServerPacket {
            segment,
            blocks,
            moved,
            ..
        } = packet;
        let sacked = self.sacked_to_mptcp(blocks);
        let targets = moved | sacked | (self.mptcp.owed & self.living());
        self.mptcp.owed = 0;
        let Some(fallback) = self.answering() else {
            return Verdict::Drop(DropReason::NoSubflow);
        };
        // The number before the next asks for an answer (keepalive, zero-window probe; RFC 9293 section 3.8.4); an
        // older one is of an ACK that data has overtaken.
        let asks = packet.dsn.add(1) == self.to_mptcp.acked;
        if targets == 0 && !asks && packet.dsn.before(self.to_mptcp.acked) {
            return Verdict::Drop(DropReason::StaleAck);
        }
        if !asks && targets == *moved && self.holds_ack(ctx, packet) {
            return Verdict::Consume;
        }
        let first = self
            .indices()
            .find(|index| targets & (1 << index) != 0)
            .unwrap_or(fallback);
        self.installation.hold.tell(targets | 1 << first);
        self.send_acks(ctx, blocks, targets & !(1 << first));
        let mut outgoing = self.headers_to_mptcp(first, segment);
        if asks {
            outgoing.seq = self.subflow(first).send.una.sub(1).0;
            self.mptcp.asked |= 1 << first;
        }
        self.push_dss(&mut outgoing, None, false);
        self.push_sack(first, &mut outgoing, blocks);
        frame.set_new_ack(!asks && moved & (1 << first) != 0);
        match outgoing.forward(frame, segment, segment.payload.clone(), u16::MAX) {
            Ok(()) => Verdict::Forward,
            Err(reason) => Verdict::Drop(reason),
        }
    }

    /// Subflows some of whose data the server has beyond a hole.
    fn sacked_to_mptcp(&self, blocks: &DataBlocks) -> SubflowSet {
        let is_sacked = |&index: &SubflowIndex| {
            self.subflow(index).lives() && !self.sack_to_mptcp(index, blocks, 1).is_empty()
        };
        self.indices()
            .filter(is_sacked)
            .fold(0, |set, index| set | 1 << index)
    }

    /// Whether an ACK that says nothing but how far the server is waits until the connection is installed (see
    /// [`hold`](crate::hold)).
    fn holds_ack(&mut self, ctx: &mut Context<'_>, packet: &ServerPacket<'_>) -> bool {
        let holds = packet.moved != 0
            && !packet.opened
            && self.installation.hold.is_allowed()
            && self.eligible(ctx.config, ctx.services, false).is_some();
        if holds {
            ctx.counters.acks_held += 1;
            self.installation.hold.owe(packet.moved);
        }
        holds
    }

    /// The newest ACK to each of `targets`.
    pub(crate) fn send_new_acks(&self, ctx: &mut Context<'_>, targets: SubflowSet) {
        self.send_acks(ctx, &DataBlocks::default(), targets);
    }

    /// ACKs of FlexCP's own to each of `targets`.
    pub(crate) fn send_acks(
        &self,
        ctx: &mut Context<'_>,
        blocks: &DataBlocks,
        targets: SubflowSet,
    ) {
        for index in self.indices().filter(|index| targets & (1 << index) != 0) {
            let mut outgoing = self.own_to_mptcp(index, TcpFlags::ACK);
            self.push_dss(&mut outgoing, None, false);
            self.push_sack(index, &mut outgoing, blocks);
            ctx.send(outgoing.own());
        }
    }

    /// One ACK of FlexCP's own, completed with the data ACK.
    pub(crate) fn send_ack(&self, ctx: &mut Context<'_>, index: SubflowIndex, flags: TcpFlags) {
        let mut outgoing = self.own_to_mptcp(index, flags);
        self.push_dss(&mut outgoing, None, false);
        ctx.send(outgoing.own());
    }

    /// Adds the DSS, or the keys that stand in its place before the peer has them: always with the data ACK, which alone makes the window valid, and always with
    /// 64-bit numbers, which any client has to take.
    pub(crate) fn push_dss(
        &self,
        outgoing: &mut Outgoing,
        mapping: Option<DssMapping>,
        data_fin: bool,
    ) {
        if let Some(keys) = self.keys_to_peer(outgoing, mapping.as_ref(), data_fin) {
            let keys = MptcpOption::Capable(keys);
            outgoing.options.push(&TcpOption::Mptcp(keys));
            return;
        }
        let data_ack = Some(DataNumber::Long(self.to_tcp.acked.0));
        let dss = Dss {
            data_ack,
            mapping,
            data_fin,
        };
        outgoing
            .options
            .push(&TcpOption::Mptcp(MptcpOption::Dss(dss)));
    }

    /// Adds as many SACK blocks as there is room for.
    fn push_sack(&self, index: SubflowIndex, outgoing: &mut Outgoing, blocks: &DataBlocks) {
        let room = (outgoing.options.remaining().saturating_sub(4) / 8).min(4);
        let sack = self.sack_to_mptcp(index, blocks, room);
        if room > 0 && !sack.is_empty() {
            outgoing.options.push(&TcpOption::Sack(sack));
        }
    }

    /// The header fields that every packet of the server's shares on its way down.
    pub(super) fn headers_to_mptcp(&self, index: SubflowIndex, segment: &Segment) -> Outgoing {
        let subflow = self.subflow(index);
        let mut options = flexcp_wire::OptionWriter::default();
        if let (Some(clock), Some(server), Some(timestamps)) =
            (&subflow.clock, &self.tcp.clock, segment.options.timestamps)
        {
            options.push(&TcpOption::Timestamps(clock.answer(server, timestamps.ecr)));
        }
        Outgoing {
            ends: subflow.ends(),
            seq: subflow.send.next.0,
            ack: subflow.ack_number().0,
            flags: segment.tcp.flags.without(TcpFlags::FIN),
            window: self.window_to_mptcp(index),
            urgent: segment.tcp.urgent,
            keep_ecn: subflow.agreed.ecn,
            flow_label: self.mptcp.label,
            options,
        }
    }

    /// Largest payload of one segment beside these options.
    fn segment_limit(&self, index: SubflowIndex, outgoing: &mut Outgoing) -> u16 {
        let options = u16::try_from(outgoing.options.finish().len()).unwrap_or(40);
        self.subflow(index)
            .agreed
            .mss
            .saturating_sub(options)
            .max(1)
    }
}

/// A distance inside one packet.
fn usize_of(distance: u64) -> usize {
    usize::try_from(distance).unwrap_or(usize::MAX)
}

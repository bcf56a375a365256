//! Plain TCP: connections that never were MPTCP, and those that have fallen back. Numbers are the same
//! on both sides; addresses may differ, and MPTCP options stay behind.

use flexcp_wire::{
    DataNumber, Dss, MptcpOption, OptionWriter, TcpFlags, TcpOption, TcpOptions, TcpSeq,
};

use super::{Connection, Context, INITIAL};
use crate::frame::{Frame, Verdict};
use crate::segment::{Ends, Outgoing, Segment};

impl Connection {
    /// Client to server.
    pub(crate) fn relay_up(
        &mut self,
        ctx: &mut Context<'_>,
        segment: &Segment,
        frame: &mut Frame<'_>,
    ) -> Verdict {
        self.last_packet = ctx.now;
        let subflow = self.subflow_mut(INITIAL);
        subflow.last_heard = ctx.now;
        subflow.bytes_up += u64::from(segment.payload_len());
        let end = TcpSeq(segment.tcp.seq).add(segment.payload_len());
        if segment.has(TcpFlags::FIN) {
            self.up_fin = Some(self.up_dsn(end));
        }
        let next = end.add(u32::from(segment.has(TcpFlags::FIN)));
        self.up_next = self.up_next.max(self.up_dsn(next));
        if segment.has(TcpFlags::ACK) {
            self.down_acked = self.down_dsn(TcpSeq(segment.tcp.ack));
        }
        self.note_plain_reset(ctx, segment);
        relay(self.server_ends(), segment, frame)
    }

    /// Server to client.
    pub(crate) fn relay_down(
        &mut self,
        ctx: &mut Context<'_>,
        segment: &Segment,
        frame: &mut Frame<'_>,
    ) -> Verdict {
        self.last_packet = ctx.now;
        if segment.has(TcpFlags::SYN) {
            self.server.answered = true;
            self.server.isn = TcpSeq(segment.tcp.seq);
        }
        self.subflow_mut(INITIAL).bytes_down += u64::from(segment.payload_len());
        let end = TcpSeq(segment.tcp.seq).add(segment.payload_len());
        if segment.has(TcpFlags::FIN) {
            self.down_fin = Some(self.down_dsn(end));
        }
        let next = end.add(u32::from(segment.has(TcpFlags::FIN)));
        self.down_next = self.down_next.max(self.down_dsn(next));
        if segment.has(TcpFlags::ACK) {
            self.up_acked = self.up_dsn(TcpSeq(segment.tcp.ack));
        }
        self.note_plain_reset(ctx, segment);
        let control = TcpFlags::SYN | TcpFlags::FIN | TcpFlags::RST;
        let is_ack = segment.payload.is_empty() && !segment.tcp.flags.intersects(control);
        let dss = Dss {
            data_ack: Some(DataNumber::Long(self.up_acked.0)),
            mapping: None,
            data_fin: false,
        };
        let extra =
            (self.acks_in_fallback && is_ack).then_some(TcpOption::Mptcp(MptcpOption::Dss(dss)));
        relay_with(self.subflow(INITIAL).ends(), segment, frame, extra)
    }

    /// A RST goes through as it is, for its receiver to judge; the state lingers for a while, as the
    /// receiver may have refused it.
    fn note_plain_reset(&mut self, ctx: &Context<'_>, segment: &Segment) {
        if segment.has(TcpFlags::RST) {
            let linger = ctx.config.timeouts.linger;
            self.up_fin = Some(self.up_acked.sub(1));
            self.down_fin = Some(self.down_acked.sub(1));
            self.last_packet = ctx.now + linger / 2;
        }
    }
}

/// Writes the packet with other addresses and without MPTCP options.
pub(crate) fn relay(ends: Ends, segment: &Segment, frame: &mut Frame<'_>) -> Verdict {
    relay_with(ends, segment, frame, None)
}

/// The same with one option more, if there is room.
fn relay_with(
    ends: Ends,
    segment: &Segment,
    frame: &mut Frame<'_>,
    extra: Option<TcpOption<'_>>,
) -> Verdict {
    let mut options = OptionWriter::default();
    for option in TcpOptions::new(segment.option_bytes(frame)).flatten() {
        if !matches!(option, TcpOption::Mptcp(_)) {
            options.push(&option);
        }
    }
    if let Some(extra) = extra {
        options.push(&extra);
    }
    let outgoing = Outgoing {
        ends,
        seq: segment.tcp.seq,
        ack: segment.tcp.ack,
        flags: segment.tcp.flags,
        window: segment.tcp.window,
        urgent: segment.tcp.urgent,
        keep_ecn: true,
        options,
    };
    match outgoing.forward(frame, segment, segment.payload.clone(), u16::MAX) {
        Ok(()) => Verdict::Forward,
        Err(reason) => Verdict::Drop(reason),
    }
}

//! Plain TCP: connections that never were MPTCP, and those that have fallen back. Numbers are the same
//! on both sides; addresses may differ, and MPTCP options stay behind.

use flexcp_wire::{
    DataNumber, Dsn, Dss, Ends, MptcpOption, OptionWriter, TcpFlags, TcpOption, TcpOptions, TcpSeq,
};

use super::{Connection, Context, INITIAL};
use crate::frame::{Frame, Verdict};
use crate::segment::{Outgoing, Segment};

/// Plain connections' windows are not followed: no honest number is further from what is acknowledged.
const NEAR: u64 = 1 << 30;

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
        let seq = self.up_dsn(TcpSeq(segment.tcp.seq));
        let exact = seq == self.up_acked || seq == self.up_next;
        self.note_plain_reset(ctx, segment, exact);
        if !segment.has(TcpFlags::RST) && is_near(seq, self.up_acked) {
            let next = seq.add(u64::from(segment.sequence_len()));
            if segment.has(TcpFlags::FIN) && next.after(self.up_acked) {
                self.up_fin = Some(next.sub(1));
            }
            self.up_next = self.up_next.max(next);
            if segment.has(TcpFlags::ACK) {
                self.take_plain_ack_up(segment);
            }
        }
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
        if segment.has(TcpFlags::SYN) && !self.proved {
            self.server.answered = true;
            self.server.isn = TcpSeq(segment.tcp.seq);
        }
        self.subflow_mut(INITIAL).bytes_down += u64::from(segment.payload_len());
        let seq = self.down_dsn(TcpSeq(segment.tcp.seq));
        let exact = seq == self.down_acked || seq == self.down_next;
        self.note_plain_reset(ctx, segment, exact);
        if !segment.has(TcpFlags::RST) && is_near(seq, self.down_acked) {
            let next = seq.add(u64::from(segment.sequence_len()));
            if segment.has(TcpFlags::FIN) && next.after(self.down_acked) {
                self.down_fin = Some(next.sub(1));
            }
            self.down_next = self.down_next.max(next);
            let ack = self.up_dsn(TcpSeq(segment.tcp.ack));
            if segment.has(TcpFlags::ACK) && !ack.after(self.up_next) {
                self.up_acked = self.up_acked.max(ack);
            }
        }
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

    /// The client's ACK: the first that could not have been guessed proves where the client is.
    fn take_plain_ack_up(&mut self, segment: &Segment) {
        let ack = self.down_dsn(TcpSeq(segment.tcp.ack));
        if ack.after(self.down_next) || !is_near(ack, self.down_acked) {
            return;
        }
        self.down_acked = self.down_acked.max(ack);
        self.proved |= self.server.answered && ack.after(self.local.idsn);
    }

    /// A RST goes through as it is, for its receiver to judge. One with the number that the receiver
    /// expects (RFC 5961 section 3.2) lets the state go soon, unless traffic shows that it was refused.
    fn note_plain_reset(&mut self, ctx: &Context<'_>, segment: &Segment, exact: bool) {
        if !segment.has(TcpFlags::RST) {
            self.plain_reset = false;
        } else if exact {
            self.plain_reset = true;
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
        flow_label: segment.ip.flow_label,
        options,
    };
    match outgoing.forward(frame, segment, segment.payload.clone(), u16::MAX) {
        Ok(()) => Verdict::Forward,
        Err(reason) => Verdict::Drop(reason),
    }
}

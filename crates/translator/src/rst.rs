//! RSTs of FlexCP's own. They are made here and nowhere else, and none without its cause.

use alloc::collections::VecDeque;

use flexcp_wire::{Ends, MpFastClose, MpTcpRst, MptcpOption, OptionWriter, TcpFlags, TcpOption};

use crate::cause::Rst;
use crate::connection::Context;
use crate::counters::Counters;
use crate::frame::Transmit;
use crate::segment::{Outgoing, Segment};

impl Rst {
    /// What `MP_TCPRST` tells the client of it (RFC 8684 section 3.6).
    pub(crate) const fn reason(self) -> u8 {
        match self {
            Self::NoProof | Self::DssChecksum | Self::LateFallback | Self::UnknownToken => {
                MpTcpRst::MPTCP_ERROR
            }
            Self::WrongHmac | Self::JoinRefused | Self::NotAllowed => MpTcpRst::PROHIBITED,
            Self::Mappings | Self::Memory => MpTcpRst::TOO_MUCH_DATA,
            Self::Stripped | Self::NoMapping => MpTcpRst::MIDDLEBOX,
            Self::Stuck | Self::Hole => MpTcpRst::BAD_PERFORMANCE,
            Self::NoRoom | Self::NoBackend | Self::Draining => MpTcpRst::RESOURCES,
            _ => MpTcpRst::UNSPECIFIED,
        }
    }
}

impl Context<'_> {
    /// Sends the segment as a RST; whether it ACKs something its flags say.
    pub(crate) fn reset(&mut self, outgoing: Outgoing, cause: Rst) {
        send(self.counters, self.outbox, outgoing, cause);
    }
}

fn send(
    counters: &mut Counters,
    outbox: &mut VecDeque<Transmit>,
    mut outgoing: Outgoing,
    cause: Rst,
) {
    outgoing.flags = outgoing.flags.with(TcpFlags::RST);
    counters.decide(cause);
    counters.packets_made += 1;
    outbox.push_back(outgoing.own());
}

/// RST in answer to a segment (RFC 9293 section 3.5.2), not to another RST; MPTCP ones hear why.
pub(crate) fn refuse(
    counters: &mut Counters,
    outbox: &mut VecDeque<Transmit>,
    segment: &Segment,
    cause: Rst,
    reason: u8,
) {
    let mut options = OptionWriter::default();
    if segment.options.mptcp {
        let reset = MpTcpRst {
            // RFC 8684 section 3.6: the client may try again later.
            transient: reason == MpTcpRst::RESOURCES,
            reason,
        };
        options.push(&TcpOption::Mptcp(MptcpOption::Reset(reset)));
    }
    answer(counters, outbox, segment, cause, options);
}

/// The same with `MP_FASTCLOSE` (RFC 8684 section 3.5), whose key makes the client believe that the connection is over.
pub(crate) fn fast_close(
    counters: &mut Counters,
    outbox: &mut VecDeque<Transmit>,
    segment: &Segment,
    cause: Rst,
    key: u64,
) {
    let mut options = OptionWriter::default();
    options.push(&TcpOption::Mptcp(MptcpOption::FastClose(MpFastClose {
        key,
    })));
    answer(counters, outbox, segment, cause, options);
}

fn answer(
    counters: &mut Counters,
    outbox: &mut VecDeque<Transmit>,
    segment: &Segment,
    cause: Rst,
    options: OptionWriter,
) {
    if segment.has(TcpFlags::RST) {
        return;
    }
    let (seq, ack, flags) = if segment.has(TcpFlags::ACK) {
        (segment.tcp.ack, 0, TcpFlags::default())
    } else {
        let ack = segment.tcp.seq.wrapping_add(segment.sequence_len());
        (0, ack, TcpFlags::ACK)
    };
    let outgoing = Outgoing {
        ends: Ends {
            from: segment.destination(),
            to: segment.source(),
        },
        seq,
        ack,
        flags,
        window: 0,
        urgent: 0,
        keep_ecn: false,
        flow_label: segment.ip.flow_label,
        options,
    };
    send(counters, outbox, outgoing, cause);
}

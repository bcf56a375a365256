//! Clients of a box that are answered before their converter's answer: with its SYN/ACK, one round trip sooner.
//!
//! A converter may take a message with the SYN only once it has connected on, as one of FlexCP that splits connections does: Linux
//! sends no answer before the third packet. What its SYN/ACK ACKs then says what the answer will say (RFC 8803 section 4.1 has both
//! in one packet), and the length of that is known. Until it comes nothing behind it is taken, and none of it is ACKed. An answer of
//! another kind resets both ends.

use flexcp_preamble::Heard;
use flexcp_wire::{CONVERT_HEADER_LEN, Dsn, Ssn, TcpFlags};

use super::errand::{Errand, Stage};
use super::{Connection, Context};
use crate::cause::Rst;
use crate::counters::DropReason;
use crate::frame::{Frame, Verdict};
use crate::handle::INITIAL;
use crate::segment::Segment;

/// Bytes of the answer to a message that asks for a connection and for nothing else: a header without a TLV (RFC 8803 section 6.1).
#[allow(clippy::cast_possible_truncation, reason = "four")]
const ANSWER: u32 = CONVERT_HEADER_LEN as u32;

impl Errand {
    /// Whether the server's SYN/ACK, which has just been heard, says that it has connected on.
    pub(super) fn is_promised(&self) -> bool {
        self.early && !self.plain && self.stage == Stage::SaidWithSyn
    }
}

impl Connection {
    /// The server has connected on, and has yet to say so: the TCP leg is answered.
    pub(crate) fn be_promised(&mut self, ctx: &mut Context<'_>) {
        let Some(errand) = self.errand_mut() else {
            return;
        };
        errand.stage = Stage::Promised { there: false };
        // Numbers of the answer count as passed on, and as ACKed they do not.
        self.to_tcp.next = self.connect_opener(false, ANSWER);
        self.send_ack(ctx, INITIAL, TcpFlags::ACK);
        self.answer_opener(ctx);
    }

    /// Bytes that have come of an answer that is yet to come whole; `None`: there is no such.
    fn promised(&self) -> Option<u32> {
        let errand = self.errand()?;
        matches!(errand.stage, Stage::Promised { .. }).then_some(errand.heard)
    }

    /// What the TCP leg has got of the peer's data, which it counts from behind an answer that may be yet to come.
    pub(super) fn acked_behind_promise(&self, ack: Dsn) -> Dsn {
        match (self.promised(), self.mptcp.peer_key) {
            (Some(heard), Some(key)) => ack.min(key.idsn.add(1).add(heard.into())),
            _ => ack,
        }
    }

    /// A packet of the peer's while its answer is yet to come. `Err`: it goes no further; otherwise it passes as any other, but what
    /// there is in it of the answer.
    pub(super) fn hear_promised(
        &mut self,
        ctx: &mut Context<'_>,
        segment: &Segment,
        frame: &Frame<'_>,
    ) -> Result<(), Verdict> {
        let Some(heard) = self.promised() else {
            return Ok(());
        };
        let data_fin = segment.options.dss.as_ref().is_some_and(|dss| dss.data_fin);
        let ends = data_fin || segment.has(TcpFlags::FIN) || segment.has(TcpFlags::RST);
        let says = !segment.payload.is_empty();
        if segment.has(TcpFlags::SYN) || !(says || ends) {
            return Ok(());
        }
        if Ssn(segment.tcp.seq) != self.subflow(INITIAL).recv.ack {
            // What has overtaken the answer comes again.
            return Err(Verdict::Drop(DropReason::Unexpected));
        }
        if !segment.checksum_is_right(frame) {
            return Err(Verdict::Drop(DropReason::Checksum));
        }
        let is_next = says && self.offset_of_answer(segment) == Some(heard.into());
        if !is_next || segment.options.dss.is_none() || segment.has(TcpFlags::RST) {
            return Err(self.break_promise(ctx));
        }
        let Some(errand) = self.errand_mut() else {
            return Ok(());
        };
        let (taken, news) = errand.requester.hear(frame.buffer(segment.payload.clone()));
        errand.heard += u32::try_from(taken).unwrap_or(0);
        match news {
            Heard::More if !ends => Ok(()),
            Heard::Granted if errand.heard == ANSWER => {
                self.keep_promise();
                Ok(())
            }
            _ => Err(self.break_promise(ctx)),
        }
    }

    /// The server has said what was promised.
    fn keep_promise(&mut self) {
        let Some(asking) = &mut self.asking else {
            return;
        };
        match asking.errand.as_deref_mut().map(|errand| &mut errand.stage) {
            Some(Stage::Promised { there: true }) => asking.errand = None,
            Some(stage) => *stage = Stage::Granted,
            None => {}
        }
    }

    /// The server says something else: it was no such server, or has lost the next one.
    fn break_promise(&mut self, ctx: &mut Context<'_>) -> Verdict {
        ctx.counters.server_retracted += 1;
        self.reset_both(ctx, Rst::Retracted);
        self.note_reset(ctx, Rst::Retracted);
        Verdict::Consume
    }
}

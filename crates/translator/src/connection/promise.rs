//! Clients of a box that are answered before their converter's answer: with its SYN/ACK, one round trip sooner.
//!
//! A converter may take a message with the SYN only once it has connected on, as one of FlexCP that splits connections does: Linux
//! sends no answer before the third packet. What its SYN/ACK ACKs then says what the answer will say (RFC 8803 section 4.1 has both
//! in one packet), and the length of that is known. Until it comes nothing behind it is taken, and none of it is ACKed. An answer of
//! another kind resets both ends.

use flexcp_wire::{CONVERT_HEADER_LEN, Dsn, Ssn, TcpFlags};

use super::errand::{Errand, News, Stage};
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
        let errand = self.errand().filter(|_| self.phase.is_established())?;
        matches!(errand.stage, Stage::Promised { .. }).then_some(errand.heard)
    }

    /// What the TCP leg has got of the peer's data, which it counts from behind an answer that may be yet to come.
    pub(super) fn acked_behind_promise(&self, ack: Dsn) -> Dsn {
        match (self.promised(), self.mptcp.peer_key) {
            (Some(heard), Some(key)) => ack.min(key.idsn.add(1).add(heard.into())),
            _ => ack,
        }
    }

    /// Whether the peer has yet to say what it has promised.
    pub(crate) fn awaits_promised(&self) -> bool {
        self.promised().is_some()
    }

    /// A packet of the peer's while its answer is yet to come. `Err`: it goes no further, and any news but none are that the promise is
    /// broken; otherwise it passes as any other, but what there is in it of the answer.
    pub(crate) fn hear_promised(
        &mut self,
        ctx: &Context<'_>,
        segment: &Segment,
        frame: &Frame<'_>,
    ) -> Result<(), News> {
        let Some(heard) = self.promised() else {
            return Ok(());
        };
        if segment.has(TcpFlags::SYN) || segment.options.fast_close.is_some() {
            return Ok(());
        }
        let next = self.subflow(INITIAL).agreed.isn_remote.add(1 + heard);
        let at = Ssn(segment.tcp.seq);
        if at.after(next) {
            // What has overtaken the answer comes again, but shows that the peer has the keys.
            if at.since(next) <= u32::from(u16::MAX) {
                self.note_confirmed(ctx, segment);
            }
            return Err(News::None(Verdict::Drop(DropReason::Unexpected)));
        }
        let known = next.since(at);
        let dss = segment.options.dss.as_ref();
        let (resets, bare) = (segment.has(TcpFlags::RST), !segment.options.mptcp);
        let strange = bare || known > heard;
        if known > 0 && (resets || strange) {
            // Only what is exactly next ends the connection (RFC 5961).
            let reason = if resets {
                DropReason::BlindReset
            } else {
                DropReason::OutOfWindow
            };
            return Err(News::None(Verdict::Drop(reason)));
        }
        let ends = dss.is_some_and(|dss| dss.data_fin) || segment.has(TcpFlags::FIN);
        let says = segment.payload_len() > known;
        if strange || resets || (ends && !says) {
            // Something on the way takes its options away, or it has gone.
            return Err(News::Declined { altogether: true });
        }
        if !says {
            return Ok(());
        }
        if !segment.checksum_is_right(frame) {
            return Err(News::None(Verdict::Drop(DropReason::Checksum)));
        }
        let offset = self.offset_of_answer(segment);
        if offset.map(|offset| offset + i64::from(known)) != Some(heard.into()) {
            return Err(News::Declined { altogether: true });
        }
        let fresh = frame.buffer(segment.payload.clone()).get(known as usize..);
        self.hear_fresh(fresh.unwrap_or_default(), ends)
    }

    /// The next bytes of the peer's, of which the first are of its answer.
    fn hear_fresh(&mut self, fresh: &[u8], ends: bool) -> Result<(), News> {
        let Some(errand) = self.errand_mut() else {
            return Ok(());
        };
        let (taken, heard) = errand.requester.hear(fresh);
        errand.heard += u32::try_from(taken).unwrap_or(0);
        let as_promised = errand.heard == ANSWER;
        match News::of(heard) {
            None if !ends => Ok(()),
            Some(News::Granted(_)) if as_promised => {
                self.keep_promise();
                Ok(())
            }
            None | Some(News::Granted(_)) => Err(News::Declined { altogether: true }),
            Some(news) => Err(news),
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

    /// The server has not connected on, though it has promised to have; `lives`: it has not reset its connection.
    pub(crate) fn break_promise(&mut self, ctx: &mut Context<'_>, lives: bool) {
        ctx.counters.server_retracted += 1;
        if lives {
            self.fast_close_all(ctx, Rst::Retracted);
        }
        self.reset_server(ctx, Rst::Retracted);
        self.note_reset(ctx, Rst::Retracted);
    }
}

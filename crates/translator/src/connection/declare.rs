//! What a client's packet declares about its data (RFC 8684 section 3.3.1), and when the client has left MPTCP.

use flexcp_wire::{CapableKeys, DataNumber, Dsn, Dss, DssMapping, MpCapable, Ssn, TcpFlags};

use super::to_tcp::FAR;
use super::{Connection, Context};
use crate::cause::{Fallback, Rst};
use crate::counters::DropReason;
use crate::dtree::Refused;
use crate::frame::{Frame, Verdict};
use crate::handle::{INITIAL, SubflowIndex};
use crate::segment::Segment;

/// So many packets in a row without any MPTCP option, and the client has fallen back.
const MAX_BARE_PACKETS: u8 = 2;

/// What the packet declares about the client's data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Declared {
    Nothing,
    /// `[dsn, dsn + len)` stands at `ssn`; DATA_FIN not counted.
    Mapping {
        dsn: Dsn,
        ssn: Ssn,
        len: u32,
    },
    /// From now on the subflow's numbers are the data's (RFC 8684 section 3.7).
    Infinite,
}

impl Connection {
    /// Learns the mapping that it brings, unless the client has left MPTCP.
    pub(super) fn learn_to_tcp(
        &mut self,
        ctx: &mut Context<'_>,
        index: SubflowIndex,
        segment: &Segment,
        frame: &mut Frame<'_>,
    ) -> Result<Declared, Verdict> {
        if segment.options.fail {
            return Err(self.handle_fail(ctx, index, segment, frame));
        }
        if self.has_left_mptcp(index, segment) {
            return Err(self.fall_back_for_client(ctx, index, segment, frame, Fallback::NoOption));
        }
        let declared = match self.take_mapping(ctx, index, segment) {
            Ok(Declared::Infinite) => {
                return Err(self.fall_back_for_client(
                    ctx,
                    index,
                    segment,
                    frame,
                    Fallback::Infinite,
                ));
            }
            Ok(declared) => declared,
            Err(reason) => return Err(Verdict::Drop(reason)),
        };
        if self.subflow(index).recv.lane.len() > ctx.config.limits.mappings {
            self.reset_subflow(ctx, index, Rst::Mappings);
            return Err(Verdict::Drop(DropReason::LimitReached));
        }
        Ok(declared)
    }

    /// Whether the client of an undisturbed connection has fallen back: its packets carry no MPTCP option
    /// any more. One packet could be an exception of its stack's; a FIN is its last word.
    fn has_left_mptcp(&mut self, index: SubflowIndex, segment: &Segment) -> bool {
        if !self.numbers.identity || index != INITIAL || !self.phase.is_established() {
            return false;
        }
        let subflow = self.subflow_mut(index);
        if segment.options.mptcp {
            subflow.path.bare_acks = 0;
            return false;
        }
        subflow.path.bare_acks = subflow.path.bare_acks.saturating_add(1);
        segment.payload.is_empty()
            && (subflow.path.bare_acks >= MAX_BARE_PACKETS || segment.has(TcpFlags::FIN))
    }

    /// Takes what the packet declares: a mapping, DATA_FIN, or the end of MPTCP.
    fn take_mapping(
        &mut self,
        ctx: &mut Context<'_>,
        index: SubflowIndex,
        segment: &Segment,
    ) -> Result<Declared, DropReason> {
        let first_data = self.mptcp.peer_key.map(|key| key.idsn.add(1));
        if let (
            Some(dsn),
            Some(MpCapable {
                keys: CapableKeys::AckData { data_len, .. },
                ..
            }),
        ) = (first_data, &segment.options.capable)
        {
            let ssn = self.subflow(index).absolute(1);
            return self.declare_to_tcp(ctx, index, dsn, ssn, u32::from(*data_len));
        }
        let Some(Dss {
            mapping: Some(mapping),
            data_fin,
            ..
        }) = &segment.options.dss
        else {
            return Ok(Declared::Nothing);
        };
        if mapping.checksum.is_some() {
            // Not negotiated (RFC 8684 section 3.3).
            self.reset_subflow(ctx, index, Rst::DssChecksum);
            return Err(DropReason::BadMapping);
        }
        let dsn = self.mapped_dsn(mapping)?;
        if mapping.len == 0 && !data_fin {
            return Ok(Declared::Infinite);
        }
        let data_len = u32::from(mapping.len).saturating_sub(u32::from(*data_fin));
        self.note_data_end(dsn.add(u64::from(data_len)), *data_fin)?;
        if data_len == 0 {
            return Ok(Declared::Nothing);
        }
        let ssn = self.subflow(index).absolute(mapping.ssn);
        self.declare_to_tcp(ctx, index, dsn, ssn, data_len)
    }

    /// The DSN of a mapping's first byte.
    fn mapped_dsn(&self, mapping: &DssMapping) -> Result<Dsn, DropReason> {
        let dsn = match mapping.dsn {
            DataNumber::Long(dsn) => Dsn(dsn),
            DataNumber::Short(low) => self.to_tcp.next.expand(low),
        };
        // What others have carried long since may still come on a subflow that was held up.
        let ahead = dsn.offset_from(self.to_tcp.acked);
        if ahead > i64::from(self.span_to_tcp()) || ahead < -i64::from(FAR) {
            return Err(DropReason::BadMapping);
        }
        Ok(dsn)
    }

    /// A mapping ends here, and with `data_fin` all of the client's data does.
    fn note_data_end(&mut self, end: Dsn, data_fin: bool) -> Result<(), DropReason> {
        if data_fin {
            let too_early = end.before(self.to_tcp.next);
            // It ends behind all that went up.
            if self.to_tcp.fin.map_or(too_early, |known| known != end) {
                return Err(DropReason::BadMapping);
            }
            self.to_tcp.fin = Some(end);
        }
        if self.to_tcp.fin.is_some_and(|fin| end.after(fin)) {
            return Err(DropReason::BadMapping);
        }
        Ok(())
    }

    /// Remembers a mapping of the client's, except for what is acknowledged already.
    fn declare_to_tcp(
        &mut self,
        ctx: &mut Context<'_>,
        index: SubflowIndex,
        dsn: Dsn,
        ssn: Ssn,
        len: u32,
    ) -> Result<Declared, DropReason> {
        let declared = Declared::Mapping { dsn, ssn, len };
        // A client that repeats its data on the same subflow moves the two number spaces apart.
        self.numbers.identity &= self.seq_to_tcp(dsn).0 == ssn.0;
        let held = self.links.charged as usize;
        let subflow = self.subflow_mut(index);
        if ssn.offset_from(subflow.recv.ack).unsigned_abs() > FAR {
            return Err(DropReason::BadMapping);
        }
        let old = if ssn.before(subflow.recv.ack) {
            subflow.recv.ack.since(ssn).min(len)
        } else {
            0
        };
        if old < len {
            let (dsn, ssn) = (dsn.add(u64::from(old)), ssn.add(old));
            let grows = ctx.budget.allows(held, subflow.recv.lane.growth());
            match subflow.recv.lane.insert(dsn, ssn, len - old, grows) {
                Ok(()) => {}
                Err(Refused::Contradiction) => return Err(DropReason::BadMapping),
                Err(Refused::Full) => {
                    ctx.counters.memory_refused += 1;
                    // What is next on the subflow comes again and again: without it nothing there would move.
                    if ssn == subflow.recv.ack {
                        self.reset_subflow(ctx, index, Rst::Memory);
                    }
                    return Err(DropReason::Memory);
                }
            }
        }
        Ok(declared)
    }

    /// Data that no mapping covers: the options are being stripped. The connection falls back while it
    /// still can; otherwise the subflow goes (RFC 8684 section 3.7).
    pub(super) fn handle_unmapped(
        &mut self,
        ctx: &mut Context<'_>,
        index: SubflowIndex,
        segment: &Segment,
        frame: &mut Frame<'_>,
    ) -> Verdict {
        let subflow = self.subflow(index);
        let known = subflow.recv.lane.end().unwrap_or(subflow.recv.ack);
        if Ssn(segment.tcp.seq).after(known) {
            // Its mapping may have been overtaken; it comes again.
            return Verdict::Drop(DropReason::NoMapping);
        }
        // Old data whose mapping has been let go: an ACK is all that it wants.
        let end = Ssn(segment.tcp.seq).add(segment.payload_len());
        if !end.after(self.subflow(index).recv.ack) {
            self.send_ack(ctx, index, TcpFlags::ACK);
            return Verdict::Consume;
        }
        if self.numbers.identity && index == INITIAL && !segment.options.mptcp {
            return self.fall_back_for_client(ctx, index, segment, frame, Fallback::NoMapping);
        }
        if segment.options.mptcp {
            return Verdict::Drop(DropReason::NoMapping);
        }
        self.reset_subflow(ctx, index, Rst::NoMapping);
        Verdict::Drop(DropReason::NoMapping)
    }
}

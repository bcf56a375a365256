//! Holes on a subflow that was left.
//!
//! After a switch the server sends again what the old subflow has lost, and it goes down on the new one.
//! Once the data ACK has passed it the server never sends it again, and on the old subflow everything
//! behind it would wait for ever. The client has those bytes and drops them when they come twice, so the
//! hole can be closed with bytes of no meaning, under the mappings that were declared for it.

use core::num::NonZeroU8;
use core::time::Duration;

use flexcp_wire::{DataNumber, DssMapping, Ssn, TcpFlags};

use super::{Connection, Context, Phase};
use crate::cause::Rst;
use crate::dtree::Mapping;
use crate::handle::SubflowIndex;
use crate::time::Instant;

/// Pause before a filler is sent again, and before the first when the RTT is not known; it doubles with
/// each that gets no answer.
const PAUSE: Duration = Duration::from_millis(200);
/// Shortest pause before the first: a hole may only be an ACK that another path's has overtaken.
const MIN_PAUSE: Duration = Duration::from_millis(10);
/// Doublings of the pause.
const MAX_DOUBLINGS: u8 = 8;
/// The same when the connection is at its end: it will be forgotten soon.
const MAX_DOUBLINGS_CLOSED: u8 = 5;
/// Doublings after which a client that is not heard, and has not closed the subflow, gets no more. Linux takes a path for
/// stale, and sends anew elsewhere what it has there, once nothing came over it during four checks of its own, which are
/// a retransmission timeout apart: fillers that come as often as those would put that off for good.
const MAX_DOUBLINGS_UNHEARD: u8 = 3;
/// So many fillers in vain to a client that is heard, and the subflow is reset.
const MAX_IN_VAIN: u8 = 6;
/// Largest filler packet, within one IP packet.
const MAX_PACKET: u32 = 32 * 1024;
/// The same to a client that is not heard.
const MAX_BLIND_PACKET: u32 = 1024;
/// Packets in one burst at most; it starts with one and doubles with each burst that is ACKed.
const MAX_BURST: NonZeroU8 = NonZeroU8::new(16).expect("more than none");
const TWICE: NonZeroU8 = NonZeroU8::new(2).expect("more than none");

/// Filler on its way into a hole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Filler {
    /// Bursts since the subflow's ACK moved on, to a client that was heard.
    in_vain: u8,
    /// Bursts since then, heard or not: each doubles the pause.
    doublings: u8,
    /// Packets in the next burst.
    burst: NonZeroU8,
    /// The subflow's ACK when it last moved on.
    una: Ssn,
    /// Behind the last burst.
    end: Ssn,
    /// When the next burst is due.
    pub(crate) due: Instant,
}

impl Filler {
    /// Whether the last burst waits for its ACK.
    fn is_outstanding(&self) -> bool {
        self.end.after(self.una)
    }
}

impl Connection {
    /// Whether a subflow misses data that the client has from another one.
    pub(crate) fn has_hole(&self, index: SubflowIndex) -> bool {
        self.hole_at(index, self.subflow(index).send.una).is_some()
    }

    /// Whether filler is on its way into a hole: what stands behind that waits for it.
    pub(crate) fn is_filling(&self, index: SubflowIndex) -> bool {
        let filler = self.subflow(index).send.filler;
        filler.is_some_and(|filler| filler.is_outstanding()) && self.has_hole(index)
    }

    /// The mapping at this number of the subflow, and how many bytes from the number on are behind the data
    /// ACK: the mapping's end may still be the server's to send.
    fn hole_at(&self, index: SubflowIndex, ssn: Ssn) -> Option<(Mapping, u32)> {
        let mut mapping = self.subflow(index).send.lane.mapping_by_ssn(ssn)?;
        let into = ssn.since(mapping.ssn);
        let at = mapping.dsn.add(u64::from(into));
        if !at.before(self.to_mptcp.acked) {
            return None;
        }
        let behind = u32::try_from(self.to_mptcp.acked.since(at)).unwrap_or(u32::MAX);
        let len = behind.min(mapping.len - into);
        if !mapping.declared {
            mapping.len = len;
        }
        Some((mapping, len))
    }

    /// Looks for holes after a packet on `heard`: on that subflow, and on all of them when the data ACK
    /// has moved on and may have overtaken what they miss.
    pub(crate) fn watch_holes(&mut self, ctx: &mut Context<'_>, heard: SubflowIndex, acked: bool) {
        if self.numbers.identity {
            return;
        }
        for index in self.indices() {
            if (acked || index == heard) && self.subflow(index).delivers() {
                self.watch_hole(ctx, index, index == heard);
            }
        }
    }

    fn watch_hole(&mut self, ctx: &mut Context<'_>, index: SubflowIndex, heard: bool) {
        if !self.has_hole(index) {
            self.subflow_mut(index).send.filler = None;
            return;
        }
        let subflow = self.subflow_mut(index);
        let una = subflow.send.una;
        // Its next ACKs may show that there is none.
        let pause = subflow.rtt().map_or(PAUSE, |rtt| (rtt * 2).max(MIN_PAUSE));
        let Some(filler) = &mut subflow.send.filler else {
            subflow.send.filler = Some(Filler {
                in_vain: 0,
                doublings: 0,
                burst: NonZeroU8::MIN,
                una,
                end: una,
                due: ctx.now + pause,
            });
            return;
        };
        if una.after(filler.una) {
            // The client ACKs a burst in several ACKs.
            let filled = filler.is_outstanding() && !una.before(filler.end);
            filler.una = una;
            filler.in_vain = 0;
            filler.doublings = 0;
            filler.due = ctx.now + pause;
            if filled {
                filler.burst = filler.burst.saturating_mul(TWICE).min(MAX_BURST);
                self.fill(ctx, index);
            }
            // Otherwise the subflow's own data is being ACKed: nothing is missing for good.
        } else if heard {
            // The path works again, so there is no reason to wait as if it did not.
            filler.due = filler.due.min(ctx.now + PAUSE);
        }
    }

    /// New data is about to go down on a subflow: what it misses goes before it.
    pub(crate) fn fill_at_once(&mut self, ctx: &mut Context<'_>, index: SubflowIndex) {
        if self.has_hole(index) {
            self.fill(ctx, index);
        }
    }

    /// Fillers whose pause is over.
    pub(crate) fn fill_due(&mut self, ctx: &mut Context<'_>) {
        for index in self.indices() {
            let filler = self.subflow(index).send.filler;
            if let Some(filler) = filler.filter(|filler| filler.due <= ctx.now) {
                self.fill_again(ctx, index, filler);
            }
        }
    }

    /// The pause of this one is over.
    fn fill_again(&mut self, ctx: &mut Context<'_>, index: SubflowIndex, filler: Filler) {
        let subflow = self.subflow(index);
        let silence = ctx.now.since(subflow.path.last_heard);
        let heard = silence < PAUSE * 4;
        let vanished = silence >= ctx.config.timeouts.rejoin;
        let lives = self.phase.is_established();
        // A client that has closed the subflow waits for FlexCP's FIN behind the hole.
        let closes = !lives || subflow.recv.fin.is_some();
        if vanished || !subflow.delivers() || !self.has_hole(index) {
            // Should a vanished client be heard again, its next packet shows the hole.
            self.subflow_mut(index).send.filler = None;
        } else if !closes && !heard && filler.doublings >= MAX_DOUBLINGS_UNHEARD {
            self.subflow_mut(index).send.filler = Some(Filler {
                due: ctx.now + ctx.config.timeouts.rejoin,
                ..filler
            });
        } else if lives && heard && filler.in_vain >= MAX_IN_VAIN {
            // After the end only FlexCP's FIN waits behind the hole, and nobody would repeat a RST.
            self.reset_subflow(ctx, index, Rst::Hole);
        } else {
            self.fill(ctx, index);
        }
    }

    /// Sends one burst from the subflow's ACK on.
    fn fill(&mut self, ctx: &mut Context<'_>, index: SubflowIndex) {
        let most_doublings = match self.phase {
            Phase::Closed(_) => MAX_DOUBLINGS_CLOSED,
            _ => MAX_DOUBLINGS,
        };
        let subflow = self.subflow_mut(index);
        let una = subflow.send.una;
        let known = subflow.send.filler.unwrap_or(Filler {
            in_vain: 0,
            doublings: 0,
            burst: NonZeroU8::MIN,
            una,
            end: una,
            due: ctx.now,
        });
        let pause = PAUSE * (1 << known.doublings);
        // In vain is only what a client that is heard does not ACK, and the other may never have been there.
        let heard = ctx.now.since(subflow.path.last_heard) < PAUSE * 4;
        let most = if heard { u8::MAX } else { MAX_IN_VAIN - 2 };
        let (burst, max_packet) = if heard {
            (known.burst, MAX_PACKET)
        } else {
            (NonZeroU8::MIN, MAX_BLIND_PACKET)
        };
        subflow.send.filler = Some(Filler {
            in_vain: known.in_vain.saturating_add(1).min(most),
            doublings: (known.doublings + 1).min(most_doublings),
            una,
            due: ctx.now + pause,
            ..known
        });
        let mut at = una;
        for _ in 0..burst.get() {
            let Some((mapping, len)) = self.hole_at(index, at) else {
                break;
            };
            let len = len.min(max_packet);
            self.send_filler(ctx, index, mapping, at, len);
            at = at.add(len);
        }
        if let Some(filler) = &mut self.subflow_mut(index).send.filler {
            filler.end = at;
        }
    }

    fn send_filler(
        &mut self,
        ctx: &mut Context<'_>,
        index: SubflowIndex,
        mapping: Mapping,
        at: Ssn,
        len: u32,
    ) {
        let Mapping {
            mut dsn,
            mut ssn,
            len: mut mapped,
            declared,
        } = mapping;
        let subflow = self.subflow_mut(index);
        if !declared {
            // What was reserved and never came is declared by its filler.
            dsn = dsn.add(u64::from(at.since(ssn)));
            subflow.send.lane.declare(dsn, at, len);
            (ssn, mapped) = (at, len);
        }
        let option = DssMapping {
            dsn: DataNumber::Long(dsn.0),
            ssn: subflow.relative(ssn),
            len: u16::try_from(mapped).unwrap_or(u16::MAX),
            checksum: None,
        };
        subflow.send.filled = true;
        // What is timed stands here or behind it: Karn's rule.
        subflow.stop_timing();
        let mss = subflow.agreed.mss;
        let mut outgoing = self.own_to_mptcp(index, TcpFlags::ACK);
        outgoing.seq = at.0;
        self.push_dss(&mut outgoing, Some(option), false);
        let options = u16::try_from(outgoing.options.finish().len()).unwrap_or(40);
        ctx.counters.filler_tx += 1;
        ctx.send(outgoing.filler(len as usize, mss.saturating_sub(options).max(1)));
    }
}

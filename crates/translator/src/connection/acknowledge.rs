//! ACKs, SACKs and windows between the two number spaces.
//!
//! Up: the TCP ACK is the client's data ACK; SACK blocks are subflow numbers and go through the D-tree.
//! Down: the server's ACK is the data ACK, and an ACK of its own for each subflow that brought some of
//! the data (RFC 8684 sections 3.3.2 and 3.3.4).

use flexcp_wire::{DataNumber, Dsn, Dss, SackBlocks, Ssn, TcpSeq};

use super::{Connection, Phase, Subflow};
use crate::handle::{INITIAL, SubflowIndex};
use crate::segment::Segment;

/// Segments that fit into a window that is not small: more than the two after which the client ACKs at once,
/// whatever it takes off for a half that it holds back.
const SMALL_WINDOW: u32 = 4;

/// SACK blocks in data sequence numbers.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct DataBlocks {
    blocks: [(Dsn, Dsn); 4],
    len: usize,
}

impl DataBlocks {
    fn as_slice(&self) -> &[(Dsn, Dsn)] {
        &self.blocks[..self.len]
    }

    fn push(&mut self, left: Dsn, right: Dsn) {
        if let Some(slot) = self.blocks.get_mut(self.len) {
            *slot = (left, right);
            self.len += 1;
        }
    }
}

/// Segments that the server repeated and that went down again: it hears of no more duplicates (RFC 2883)
/// than that. One repeated segment may come twice in two pieces, and a path may double what nobody
/// repeated; a server that is told of duplicates it did not cause distrusts them all.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct RepeatedSegments {
    due: u32,
    /// Payload of the largest of them, in bytes.
    largest: u32,
}

impl RepeatedSegments {
    /// The server has repeated `len` bytes in segments of at most `size`.
    pub(crate) fn add(&mut self, len: u32, size: u32) {
        let size = size.clamp(1, len.max(1));
        self.largest = self.largest.max(size);
        self.due = self.due.saturating_add(len.div_ceil(size));
    }

    /// Whether the server can be told that `len` bytes were duplicates; it will count whole segments.
    fn take(&mut self, len: u32) -> bool {
        let segments = len.div_ceil(self.largest.max(1)).max(1);
        let known = self.due.checked_sub(segments);
        self.due = known.unwrap_or(self.due);
        known.is_some()
    }
}

/// What a client's packet said about the connection.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct AckNews {
    /// The data ACK moved on.
    pub(crate) acked: bool,
    /// The right edge of the window moved on.
    pub(crate) window: bool,
    /// The subflow's own ACK moved on: whatever else it says, it is no duplicate.
    pub(crate) subflow_acked: bool,
}

impl Connection {
    /// Takes the client's data ACK and window. `None`: it acknowledges what was never sent.
    ///
    /// A packet without a data ACK says nothing about the connection, except while the initial subflow
    /// is all there is: then its ACK is the data ACK (options are being stripped, or are not yet there).
    pub(crate) fn take_data_ack(
        &mut self,
        index: SubflowIndex,
        segment: &Segment,
    ) -> Option<AckNews> {
        let subflow = self.subflow_mut(index);
        let window = u32::from(segment.tcp.window) << subflow.agreed.window_scale;
        subflow.take_window(Ssn(segment.tcp.ack).add(window));
        let data_ack = match segment.options.dss {
            Some(Dss {
                data_ack: Some(DataNumber::Long(ack)),
                ..
            }) => Dsn(ack),
            Some(Dss {
                data_ack: Some(DataNumber::Short(ack)),
                ..
            }) => self.to_mptcp.acked.expand(ack),
            _ if self.numbers.identity
                && (!segment.options.mptcp || segment.options.capable.is_some()) =>
            {
                self.dsn_to_mptcp(TcpSeq(segment.tcp.ack))
            }
            _ => {
                return Some(AckNews::default());
            }
        };
        if data_ack.after(self.to_mptcp.next) {
            return None;
        }
        let acked = data_ack.after(self.to_mptcp.acked);
        if acked {
            // What the server may repeat from now on is something else.
            self.to_mptcp.stuck = None;
            let next = self.to_mptcp.acked;
            let lane = &self.subflow(index).send.lane;
            // What was repeated elsewhere may have been lost here, and a client that is a FlexCP ACKs it here all the same.
            let brought =
                self.to_mptcp.repeated_on == index && lane.has_before(next, Ssn(segment.tcp.ack));
            if let Some(clock) = &mut self.tcp.clock {
                clock.take_progress(brought);
            }
        }
        self.to_mptcp.acked = self.to_mptcp.acked.max(data_ack);
        self.to_mptcp.window = self.to_mptcp.window.max(window);
        let edge = data_ack.add(u64::from(window));
        let window = edge.after(self.to_mptcp.edge);
        self.to_mptcp.edge = self.to_mptcp.edge.max(edge);
        Some(AckNews {
            acked,
            window,
            ..AckNews::default()
        })
    }

    /// Whether the client has never offered room for [`SMALL_WINDOW`] full segments.
    pub(crate) fn has_small_window(&self) -> bool {
        self.to_mptcp.window < SMALL_WINDOW * u32::from(self.subflow(INITIAL).agreed.mss)
    }

    /// The window to write in a packet to the server: what is left of the client's, in the scale that
    /// the server knows. Its right edge never moves left.
    pub(crate) fn window_to_tcp(&self) -> u16 {
        let scale = self.subflow(INITIAL).agreed.window_scale;
        let acked = self.acked_to_tcp();
        // A window may be shorter than an answer that the client has not ACKed.
        let left = self.to_mptcp.edge.max(acked).since(acked) >> scale;
        u16::try_from(left).unwrap_or(u16::MAX)
    }

    /// The server's window to write in a packet to the client. A subflow that was joined without
    /// scaling gets what fits.
    pub(crate) fn window_to_mptcp(&self, index: SubflowIndex) -> u16 {
        let window = match self.tcp.window.scale {
            Some(scale) if !self.subflow(index).agreed.scales => {
                u16::try_from(u32::from(self.tcp.window.offered) << scale).unwrap_or(u16::MAX)
            }
            _ => self.tcp.window.offered,
        };
        match self.phase {
            // No data comes behind DATA_FIN, but the subflow's FIN needs room, too.
            Phase::Closed(_) => window.max(1),
            _ => window,
        }
    }

    /// The client's SACK blocks, and what its subflows have ACKed beyond the data ACK, for the server.
    /// At most `room` blocks; the packet's own first, in its order.
    pub(crate) fn sack_to_tcp(
        &mut self,
        index: SubflowIndex,
        segment: &Segment,
        room: usize,
    ) -> SackBlocks {
        let mut blocks = Blocks::new(room);
        if !self.tcp.sack || room == 0 {
            return SackBlocks::default();
        }
        let acked = Ssn(segment.tcp.ack);
        let mut received = segment.options.sack.as_slice();
        // Below the subflow's ACK it is a D-SACK (RFC 2883), which comes first.
        if let Some((&(left, right), rest)) = received.split_first()
            && Ssn(left).before(acked)
        {
            received = rest;
            self.duplicate_to_tcp(index, Ssn(left), Ssn(right), &mut blocks);
        }
        for &(left, right) in received {
            if !Ssn(left).before(acked) {
                self.sack_block_to_tcp(self.subflow(index), Ssn(left), Ssn(right), &mut blocks);
            }
        }
        if !self.numbers.identity {
            self.sack_overtaken(&mut blocks);
        }
        blocks.finish()
    }

    /// A subflow that was switched to has delivered data behind a hole that another one left. What only
    /// runs ahead of the data ACK, without a hole before it, is no business of the server's.
    fn sack_overtaken(&self, blocks: &mut Blocks) {
        let mut reached = self.acked_to_tcp();
        for subflow in self.mptcp.subflows.iter().filter(|s| s.lives()) {
            subflow.send.lane.for_each_in(
                self.to_mptcp.acked,
                self.to_mptcp.next,
                |ssn, dsn, len| {
                    if !subflow.send.una.after(ssn) {
                        return;
                    }
                    let acked = subflow.send.una.since(ssn).min(len);
                    if dsn.after(reached) {
                        let left = self.seq_to_mptcp(dsn);
                        blocks.push(left.0, left.add(acked).0);
                    } else {
                        reached = reached.max(dsn.add(u64::from(acked)));
                    }
                },
            );
        }
    }

    /// A D-SACK: data that came twice, the first part of it that was one with the server too.
    fn duplicate_to_tcp(
        &mut self,
        index: SubflowIndex,
        left: Ssn,
        right: Ssn,
        blocks: &mut Blocks,
    ) {
        let subflow = self.subflow(index);
        if !left.before(right) || right.after(subflow.send.next) || subflow.send.filled {
            return;
        }
        let mut at = left;
        while at.before(right) {
            let Some((dsn, known)) = subflow.send.lane.by_ssn_late(at) else {
                return;
            };
            let len = known.min(right.since(at));
            if !dsn.add(u64::from(len)).after(self.to_mptcp.acked) {
                if self.tcp.repeated.take(len) {
                    let seq = self.seq_to_mptcp(dsn);
                    blocks.push(seq.0, seq.add(len).0);
                }
                return;
            }
            at = at.add(len);
        }
    }

    /// One block of a subflow: it may fall apart in several.
    fn sack_block_to_tcp(&self, subflow: &Subflow, left: Ssn, right: Ssn, blocks: &mut Blocks) {
        if !left.before(right) || right.after(subflow.send.next) {
            return;
        }
        let mut at = left;
        // Data that the connection has by now is no news. What starts at the data ACK, and what follows on that however it is
        // mapped, is held up inside the client by a hole of the subflow; a block there would make no sense to the server.
        let mut held = self.acked_to_tcp();
        while at.before(right) && !blocks.is_full() {
            let Some((dsn, known)) = subflow.send.lane.by_ssn_late(at) else {
                return;
            };
            let len = known.min(right.since(at));
            if dsn.after(held) {
                let seq = self.seq_to_mptcp(dsn);
                blocks.push(seq.0, seq.add(len).0);
            } else {
                held = held.max(dsn.add(u64::from(len)));
            }
            at = at.add(len);
        }
    }

    /// Takes the server's ACK and SACK blocks; the blocks in data sequence numbers.
    pub(crate) fn take_server_ack(&mut self, ack: Dsn, segment: &Segment) -> DataBlocks {
        if ack.after(self.to_tcp.acked) {
            self.to_tcp.acked = ack;
            self.to_tcp.repeated = 0;
        }
        let mut blocks = DataBlocks::default();
        for &(left, right) in segment.options.sack.as_slice() {
            let (left, right) = (
                self.dsn_to_tcp(TcpSeq(left)),
                self.dsn_to_tcp(TcpSeq(right)),
            );
            if left.before(right) && !right.after(self.to_tcp.next) {
                blocks.push(left, right);
            }
        }
        blocks
    }

    /// The server's ACK has moved on from `waited`: what it echoes is the TSval of the packet that brought this, and of
    /// no later copy, which is on its way (RFC 7323 section 4.3). The client takes from it whether it has repeated
    /// something in vain (RFC 3522).
    pub(crate) fn believe_echo(&mut self, waited: Dsn, segment: &Segment) {
        let Some(timestamps) = segment.options.timestamps else {
            return;
        };
        for subflow in &mut self.mptcp.subflows {
            let brought = subflow
                .recv
                .lane
                .front()
                .is_some_and(|(_, dsn, _)| dsn == waited);
            if let Some(clock) = &mut subflow.clock
                && brought
            {
                clock.believe(timestamps.ecr);
            }
        }
    }

    /// Moves the ACK of a subflow over everything that has reached the server, as it says now or the client was told.
    /// `true`: it moved.
    pub(crate) fn advance_subflow_ack(&mut self, index: SubflowIndex, blocks: &DataBlocks) -> bool {
        let up_acked = self.to_tcp.acked;
        let subflow = self.subflow_mut(index);
        let before = subflow.ack_number();
        while let Some((ssn, dsn, len)) = subflow.recv.lane.front() {
            if ssn.after(subflow.recv.ack) || !ssn.before(subflow.recv.high) {
                break;
            }
            let sent = len.min(subflow.recv.high.since(ssn));
            let reached = reached_from(dsn, sent, up_acked, blocks);
            let ack = subflow.recv.ack.max(ssn.add(reached));
            let reached = subflow.recv.told.reach(ack).since(ssn).min(sent);
            if reached == 0 {
                break;
            }
            subflow.recv.ack = subflow.recv.ack.max(ssn.add(reached));
            subflow.recv.lane.advance_front(reached);
        }
        subflow.recv.told.forget_before(subflow.recv.ack);
        self.reach_fin(index);
        self.subflow(index).ack_number() != before
    }

    /// Remembers what the server has of a subflow behind its ACK: the client is told, now or with its next packet.
    pub(crate) fn note_told(&mut self, index: SubflowIndex, blocks: &DataBlocks) {
        let subflow = self.subflow_mut(index);
        let (ack, high) = (subflow.ack_number(), subflow.recv.high);
        let told = &mut subflow.recv.told;
        for &(left, right) in blocks.as_slice() {
            subflow.recv.lane.for_each_in(left, right, |ssn, _, len| {
                let end = ssn.add(len).min(high);
                if ssn.after(ack) && ssn.before(end) {
                    told.note(ssn, end);
                }
            });
        }
    }

    /// The server's SACK blocks as the subflow's own, at most `room`.
    pub(crate) fn sack_to_mptcp(
        &self,
        index: SubflowIndex,
        blocks: &DataBlocks,
        room: usize,
    ) -> SackBlocks {
        let subflow = self.subflow(index);
        if !subflow.agreed.sack || room == 0 {
            return SackBlocks::default();
        }
        let mut sack = Blocks::new(room);
        for &(left, right) in blocks.as_slice() {
            subflow.recv.lane.for_each_in(left, right, |ssn, _, len| {
                // Not what the client has only announced on this subflow: it came over another one.
                let end = ssn.add(len).min(subflow.recv.high);
                if ssn.after(subflow.ack_number()) && ssn.before(end) {
                    sack.push(ssn.0, end.0);
                }
            });
        }
        sack.finish()
    }
}

/// How many bytes of `[dsn, dsn + len)`, from its start on, have reached the server.
fn reached_from(dsn: Dsn, len: u32, acked: Dsn, blocks: &DataBlocks) -> u32 {
    let end = dsn.add(u64::from(len));
    let mut at = acked.min(end).max(dsn);
    while at.before(end) {
        let covering = blocks
            .as_slice()
            .iter()
            .find(|(left, right)| !left.after(at) && right.after(at) && left.after(acked));
        let Some(&(_, right)) = covering else { break };
        at = right.min(end);
    }
    u32::try_from(at.since(dsn)).unwrap_or(len)
}

/// Serial comparison (RFC 1982).
const fn before(a: u32, b: u32) -> bool {
    a.wrapping_sub(b).cast_signed() < 0
}

/// SACK blocks being collected: those that touch are joined, those that are known are left out.
struct Blocks {
    blocks: [(u32, u32); SackBlocks::MAX],
    len: usize,
    room: usize,
}

impl Blocks {
    fn new(room: usize) -> Self {
        Self {
            blocks: [(0, 0); SackBlocks::MAX],
            len: 0,
            room: room.min(SackBlocks::MAX),
        }
    }

    const fn is_full(&self) -> bool {
        self.len >= self.room
    }

    /// Adds a block, joined with all that it touches, in the place of the first of those.
    fn push(&mut self, mut left: u32, mut right: u32) {
        let mut place = None;
        let mut at = 0;
        while at < self.len {
            let (known_left, known_right) = self.blocks[at];
            let apart = before(right, known_left) || before(known_right, left);
            if apart {
                at += 1;
                continue;
            }
            left = if before(known_left, left) {
                known_left
            } else {
                left
            };
            right = if before(right, known_right) {
                known_right
            } else {
                right
            };
            self.blocks.copy_within(at + 1..self.len, at);
            self.len -= 1;
            place = Some(place.map_or(at, |place: usize| place.min(at)));
            // It has grown, and may touch one that it did not touch before.
            at = 0;
        }
        if !self.is_full() {
            let place = place.unwrap_or(self.len);
            self.blocks.copy_within(place..self.len, place + 1);
            self.blocks[place] = (left, right);
            self.len += 1;
        }
    }

    fn finish(self) -> SackBlocks {
        let mut sack = SackBlocks::default();
        for &(left, right) in &self.blocks[..self.len] {
            sack.push(left, right);
        }
        sack
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    fn joined(blocks: &[(u32, u32)], room: usize) -> Vec<(u32, u32)> {
        let mut all = Blocks::new(room);
        for &(left, right) in blocks {
            all.push(left, right);
        }
        all.blocks[..all.len].to_vec()
    }

    #[test]
    fn duplicates_are_counted_in_segments() {
        let mut repeated = RepeatedSegments::default();
        assert!(!repeated.take(1));
        repeated.add(4000, 1400);
        assert!(repeated.take(1401), "two segments of three");
        assert!(!repeated.take(1401));
        assert!(repeated.take(28));
        assert!(!repeated.take(1));
    }

    #[test]
    fn blocks_that_touch_are_one_where_the_first_of_them_stood() {
        assert_eq!(
            joined(&[(10, 20), (40, 50), (20, 30)], 4),
            [(10, 30), (40, 50)]
        );
        assert_eq!(
            joined(&[(60, 70), (10, 20), (40, 50), (15, 45)], 4),
            [(60, 70), (10, 50)]
        );
        assert_eq!(
            joined(&[(10, 20), (12, 15), (30, 40), (5, 50)], 4),
            [(5, 50)]
        );
        assert_eq!(joined(&[(40, 50), (10, 20), (20, 40)], 4), [(10, 50)]);
        let wrap = u32::MAX - 4;
        assert_eq!(joined(&[(wrap, 5), (3, 9)], 4), [(wrap, 9)]);
    }

    #[test]
    fn blocks_beyond_the_room_are_left_out_but_still_join() {
        assert_eq!(
            joined(&[(10, 20), (30, 40), (50, 60)], 2),
            [(10, 20), (30, 40)]
        );
        assert_eq!(
            joined(&[(10, 20), (30, 40), (40, 60)], 2),
            [(10, 20), (30, 60)]
        );
    }
}

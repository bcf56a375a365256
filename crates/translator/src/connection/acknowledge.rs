//! ACKs, SACKs and windows between the two number spaces.
//!
//! Up: the TCP ACK is the client's data ACK; SACK blocks are subflow numbers and go through the D-tree.
//! Down: the server's ACK is the data ACK, and an ACK of its own for each subflow that brought some of
//! the data (RFC 8684 sections 3.3.2 and 3.3.4).

use flexcp_wire::{DataNumber, Dsn, Dss, SackBlocks, Ssn, TcpSeq};

use super::{Connection, INITIAL, Subflow, SubflowIndex};
use crate::segment::Segment;

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

/// What a client's packet said about the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct AckNews {
    /// The data ACK moved on.
    pub(crate) acked: bool,
    /// The right edge of the window moved on.
    pub(crate) window: bool,
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
        let data_ack = match segment.options.dss {
            Some(Dss { data_ack: Some(DataNumber::Long(ack)), .. }) => Dsn(ack),
            Some(Dss { data_ack: Some(DataNumber::Short(ack)), .. }) => self.down_acked.expand(ack),
            _ if self.identity => self.down_dsn(TcpSeq(segment.tcp.ack)),
            _ => return Some(AckNews { acked: false, window: false }),
        };
        if data_ack.after(self.down_next) {
            return None;
        }
        let acked = data_ack.after(self.down_acked);
        self.down_acked = self.down_acked.max(data_ack);
        let scale = self.subflow(index).window_scale;
        let edge = data_ack.add(u64::from(segment.tcp.window) << scale);
        let window = edge.after(self.down_edge);
        self.down_edge = self.down_edge.max(edge);
        Some(AckNews { acked, window })
    }

    /// The window to write in a packet to the server: what is left of the client's, in the scale that
    /// the server knows. Its right edge never moves left.
    pub(crate) fn window_up(&self) -> u16 {
        let scale = self.subflow(INITIAL).window_scale;
        let left = self.down_edge.since(self.down_acked) >> scale;
        u16::try_from(left).unwrap_or(u16::MAX)
    }

    /// The server's window to write in a packet to the client. A subflow that was joined without
    /// scaling gets what fits.
    pub(crate) fn window_down(&self, index: SubflowIndex) -> u16 {
        let scale = match self.server.window_scale {
            Some(scale) if !self.subflow(index).scales => scale,
            _ => return self.server.window,
        };
        u16::try_from(u32::from(self.server.window) << scale).unwrap_or(u16::MAX)
    }

    /// The client's SACK blocks, and what its subflows have ACKed beyond the data ACK, for the server.
    /// At most `room` blocks; the packet's own first, in its order.
    pub(crate) fn sack_up(
        &self,
        index: SubflowIndex,
        segment: &Segment,
        room: usize,
    ) -> SackBlocks {
        let mut blocks = SackBlocks::default();
        if !self.server.sack || room == 0 {
            return blocks;
        }
        let subflow = self.subflow(index);
        for &(left, right) in segment.options.sack.as_slice() {
            self.sack_block_up(subflow, Ssn(left), Ssn(right), room, &mut blocks);
        }
        // A subflow that was switched to has delivered data behind a hole that another one left. What
        // only runs ahead of the data ACK, without a hole before it, is no business of the server's.
        let mut reached = self.down_acked;
        for other in self.subflows.iter().filter(|s| s.lives()) {
            other.down.for_each_in(self.down_acked, self.down_next, |ssn, dsn, len| {
                if blocks.len() >= room || !other.snd_una.after(ssn) {
                    return;
                }
                let acked = other.snd_una.since(ssn).min(len);
                if dsn.after(reached) {
                    let left = self.down_seq(dsn);
                    push_block(&mut blocks, left.0, left.add(acked).0);
                } else {
                    reached = reached.max(dsn.add(u64::from(acked)));
                }
            });
        }
        blocks
    }

    /// One block of a subflow: it may fall apart in several.
    fn sack_block_up(
        &self,
        subflow: &Subflow,
        left: Ssn,
        right: Ssn,
        room: usize,
        blocks: &mut SackBlocks,
    ) {
        if !left.before(right) || right.after(subflow.snd_next) {
            return;
        }
        let mut at = left;
        while at.before(right) && blocks.len() < room {
            let Some((dsn, known)) = subflow.down.by_ssn_late(at) else { return };
            let len = known.min(right.since(at));
            let seq = self.down_seq(dsn);
            push_block(blocks, seq.0, seq.add(len).0);
            at = at.add(len);
        }
    }

    /// Takes the server's ACK and SACK blocks; the blocks in data sequence numbers.
    pub(crate) fn take_server_ack(&mut self, ack: Dsn, segment: &Segment) -> DataBlocks {
        self.up_acked = self.up_acked.max(ack);
        let mut blocks = DataBlocks::default();
        for &(left, right) in segment.options.sack.as_slice() {
            let (left, right) = (self.up_dsn(TcpSeq(left)), self.up_dsn(TcpSeq(right)));
            if left.before(right) && !right.after(self.up_next) {
                blocks.push(left, right);
            }
        }
        blocks
    }

    /// Moves the ACK of a subflow over everything that has reached the server. `true`: it moved.
    pub(crate) fn advance_subflow_ack(&mut self, index: SubflowIndex, blocks: &DataBlocks) -> bool {
        let up_acked = self.up_acked;
        let subflow = self.subflow_mut(index);
        let before = subflow.ack_number();
        while let Some((ssn, dsn, len)) = subflow.up.front() {
            if ssn.after(subflow.rcv_ack) {
                break;
            }
            let reached = reached_from(dsn, len, up_acked, blocks);
            if reached == 0 {
                break;
            }
            subflow.rcv_ack = subflow.rcv_ack.max(ssn.add(reached));
            subflow.up.advance_front(reached);
        }
        subflow.ack_number() != before
    }

    /// The server's SACK blocks as the subflow's own, at most `room`.
    pub(crate) fn sack_down(
        &self,
        index: SubflowIndex,
        blocks: &DataBlocks,
        room: usize,
    ) -> SackBlocks {
        let subflow = self.subflow(index);
        let mut sack = SackBlocks::default();
        if !subflow.sack {
            return sack;
        }
        for &(left, right) in blocks.as_slice() {
            subflow.up.for_each_in(left, right, |ssn, _, len| {
                if sack.len() < room && ssn.after(subflow.rcv_ack) {
                    push_block(&mut sack, ssn.0, ssn.add(len).0);
                }
            });
        }
        sack
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

/// Adds a block, joined with the last one when they touch, unless it is there already.
fn push_block(blocks: &mut SackBlocks, left: u32, right: u32) {
    let known = blocks.as_slice().iter().any(|&(l, r)| {
        left.wrapping_sub(l) <= r.wrapping_sub(l) && right.wrapping_sub(l) <= r.wrapping_sub(l)
    });
    if known {
        return;
    }
    blocks.push(left, right);
}

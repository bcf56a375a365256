//! Whether the ends keep to the protocol, and what they owe each other while they do.
//!
//! Asked only of ends that may be hostile ([`Options::hostile`](crate::Options::hostile)): each packet in is
//! held against what its sender has said and been told before. The first breach is remembered, and from then
//! on the rules that need this side's honesty are not asked any more on that connection. What is said of an
//! honest end here has to be said of every honest end: a network may lose, repeat and delay its packets.

use flexcp_wire::{CapableKeys, Dss, MpJoin, TcpFlags};

use crate::connection::{Connection, Mode, Stream};
use crate::mapping::Mapping;
use crate::packet::View;
use crate::position::{ORIGIN, from_seq};
use crate::ranges::Ranges;
use crate::subflow::Subflow;

/// No window is larger, so nothing honest is further from what is acknowledged.
pub(crate) const FAR: u64 = 1 << 30;

/// An honest client may overrun a window that it was told on another subflow, but not by a whole one.
pub(crate) const OVERRUN: u64 = 1 << 16;

/// How far an honest client's numbers may lie from what is acknowledged, where the largest window is `widest`:
/// twice that, as a subflow may carry again what others have carried, and what windows of SYNs allow at least.
pub(crate) fn span(widest: u64) -> u64 {
    (2 * widest).clamp(2 * OVERRUN, FAR)
}

/// One of the two ends that the proxy stands between.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Side {
    /// It speaks MPTCP.
    Client,
    /// It speaks TCP.
    Server,
}

/// Why an end counts as dishonest.
pub(crate) type Breach = &'static str;

/// `Err` with the breach unless `holds`.
const fn keeps(holds: bool, breach: Breach) -> Result<(), Breach> {
    if holds { Ok(()) } else { Err(breach) }
}

impl Connection {
    /// Notes a breach; the first one counts.
    pub(crate) fn note_breach(&mut self, side: Side, breach: Breach) {
        if self.hostile {
            self.breaches[side as usize].get_or_insert(breach);
        }
    }

    /// Whether the end has kept to the protocol so far.
    pub(crate) const fn trusts(&self, side: Side) -> bool {
        self.breaches[side as usize].is_none()
    }

    /// Whether both have.
    pub(crate) const fn trusts_both(&self) -> bool {
        self.trusts(Side::Client) && self.trusts(Side::Server)
    }

    /// Whether a hostile client's data number is one that no proxy would believe.
    pub(crate) fn is_far(&self, to: u64) -> bool {
        let ahead = to > self.up.acked + span(self.up.widest);
        self.hostile && (ahead || to + FAR < self.up.acked)
    }

    /// A client's packet on subflow `index`, before note is taken of it.
    pub(crate) fn watch_client(&mut self, index: usize, packet: &View<'_>) {
        if self.hostile
            && self.trusts(Side::Client)
            && let Err(breach) = self.client_conduct(index, packet)
        {
            self.note_breach(Side::Client, breach);
        }
    }

    /// A server's packet, before note is taken of it.
    pub(crate) fn watch_server(&mut self, packet: &View<'_>) {
        if self.hostile
            && self.trusts(Side::Server)
            && let Err(breach) = self.server_conduct(packet)
        {
            self.note_breach(Side::Server, breach);
        }
    }

    fn client_conduct(&self, index: usize, packet: &View<'_>) -> Result<(), Breach> {
        let subflow = &self.subflows[index];
        keeps(!packet.options.malformed, "an option that can't be read")?;
        if packet.has(TcpFlags::SYN) {
            let odd = TcpFlags::ACK | TcpFlags::FIN | TcpFlags::RST;
            keeps(!packet.tcp.flags.intersects(odd), "flags beside SYN")?;
            // A repeated one may do without it (RFC 8684 section 3.7).
            let capable = packet.options.capable;
            let same = capable.is_none() || capable == subflow.capable;
            keeps(same, "another MP_CAPABLE")?;
            return keeps(subflow.isn_client == packet.tcp.seq, "another SYN");
        }
        if packet.has(TcpFlags::RST) {
            return Ok(());
        }
        keeps(packet.has(TcpFlags::ACK), "no ACK")?;
        keeps(subflow.isn_proxy.is_some(), "an ACK of no SYN/ACK")?;
        let ack = subflow.down_at(packet.tcp.ack);
        keeps(
            ack >= ORIGIN && ack <= reached(&subflow.carried),
            "ACK of what was not sent",
        )?;
        self.handshake_conduct(index, packet)?;
        keeps(
            packet.segment <= self.server_mss,
            "a segment beyond the MSS",
        )?;
        let complete = packet.options.timestamps.is_some() || !subflow.timestamps;
        keeps(complete, "no timestamps")?;
        if let Some(timestamps) = packet.options.timestamps {
            keeps(
                self.server_clock.has(timestamps.ecr),
                "echo of what was not sent",
            )?;
            keeps(
                subflow.client_clock.is_near(timestamps.val),
                "a clock that jumps",
            )?;
        }
        if self.mode == Mode::Handshake {
            return Ok(());
        }
        self.window_conduct(subflow, packet)?;
        if let Some(number) = packet.options.data_ack() {
            let ack = self.down.at_dsn(number, self.down.acked);
            keeps(
                ack >= ORIGIN && ack <= reached(&self.down.carried),
                "data ACK of what was not sent",
            )?;
        }
        let blocks = packet.options.sack.as_slice().iter();
        let blocks = blocks.map(|&(left, right)| (subflow.down_at(left), subflow.down_at(right)));
        sack_conduct(blocks, ack, &subflow.carried)?;
        self.mapping_conduct(index, packet)
    }

    /// The right edge of the window, while there is one subflow and its packets come in order.
    fn window_conduct(&self, subflow: &Subflow, packet: &View<'_>) -> Result<(), Breach> {
        let ack = match packet.options.data_ack() {
            Some(number) => self.down.at_dsn(number, self.down.acked),
            // Without MPTCP the window counts from the subflow's ACK, which knows of no DATA_FIN.
            None if !packet.options.mptcp => subflow.down_at(packet.tcp.ack) + 1,
            None => return Ok(()),
        };
        let edge = ack.saturating_add(u64::from(packet.tcp.window) << subflow.window_scale);
        let rounding = (1 << subflow.window_scale) - 1;
        let is_old = ack <= self.down.acked && subflow.up_at(packet.tcp.seq) < subflow.client_sent;
        let grows = !self.is_identity() || is_old || edge + rounding >= self.down.edge;
        keeps(grows, "a window that shrinks")
    }

    /// `MP_CAPABLE` and `MP_JOIN` behind the SYN.
    fn handshake_conduct(&self, index: usize, packet: &View<'_>) -> Result<(), Breach> {
        if let Some(capable) = packet.options.capable {
            let (CapableKeys::Ack { sender, receiver }
            | CapableKeys::AckData {
                sender, receiver, ..
            }) = capable.keys
            else {
                return Err("MP_CAPABLE of another kind");
            };
            let right = index == 0
                && capable.version == 1
                && self.proxy_key == Some(receiver)
                && self.client_key.is_none_or(|key| key == sender);
            keeps(right, "other keys")?;
        }
        match packet.options.join {
            None => keeps(
                index == 0 || self.subflows[index].established,
                "a subflow without proof",
            ),
            Some(MpJoin::Ack { .. }) if index == 0 => Err("MP_JOIN on the initial subflow"),
            Some(MpJoin::Ack { hmac }) => keeps(self.proves_join(index, &hmac), "another proof"),
            Some(_) => Err("MP_JOIN of another kind"),
        }
    }

    /// The mapping, the payload under it, and the ends of data and subflow.
    fn mapping_conduct(&self, index: usize, packet: &View<'_>) -> Result<(), Breach> {
        let subflow = &self.subflows[index];
        let start = subflow.up_at(packet.tcp.seq);
        let end = start + packet.payload_len;
        // What is old may have been held up on the way; what is ahead of the window may not be.
        let ahead = start > subflow.ack_out && self.is_strange_up(index, start);
        let near = start >= ORIGIN - 1 && subflow.ack_out.saturating_sub(start) < FAR;
        keeps(near && !ahead, "a number from elsewhere")?;
        let ends_before = |fin: u64| end <= fin + u64::from(packet.payload_len == 0);
        keeps(
            subflow.client_fin.is_none_or(ends_before),
            "data behind the FIN",
        )?;
        if packet.has(TcpFlags::FIN) {
            // What comes behind a lost FIN has the number behind it.
            let last = end + 1 >= subflow.client_sent;
            let same = subflow.client_fin.map_or(last, |fin| fin == end);
            keeps(same, "another FIN")?;
        }
        let dss = packet.options.dss;
        let declared = match dss {
            Some(dss) => self.declared_conduct(subflow, dss)?,
            None => None,
        };
        let mut at = start.max(subflow.ack_out);
        while at < end {
            let new = declared.filter(|new| new.at <= at && at < new.end());
            let Some(mapping) = new.or_else(|| subflow.up.find(at)) else {
                let first = packet.options.capable.is_some();
                let plain = self.is_identity() && index == 0 && (first || !packet.options.mptcp);
                return keeps(plain, "data without a mapping");
            };
            at = mapping.end();
        }
        Ok(())
    }

    /// What a DSS declares; `None`: no data.
    fn declared_conduct(&self, subflow: &Subflow, dss: Dss) -> Result<Option<Mapping>, Breach> {
        let Some(mapping) = dss.mapping else {
            return keeps(!dss.data_fin, "DATA_FIN without a number").map(|()| None);
        };
        keeps(mapping.checksum.is_none(), "a DSS checksum")?;
        let to = self.up.at_dsn(mapping.dsn, self.up.sent);
        let len = u64::from(mapping.len).saturating_sub(dss.data_fin.into());
        let near = to >= ORIGIN && to.abs_diff(self.up.acked) < FAR;
        keeps(near, "a data number from elsewhere")?;
        keeps(to <= self.up.edge + OVERRUN, "data far beyond the window")?;
        let ends_before = self.up.fin.is_none_or(|fin| to + len <= fin);
        keeps(ends_before, "data behind the DATA_FIN")?;
        if dss.data_fin {
            let same = self.up.fin.is_none_or(|fin| fin == to + len);
            keeps(same && to + len >= self.up.sent, "another DATA_FIN")?;
        }
        if len == 0 {
            return keeps(dss.data_fin || self.is_identity(), "an infinite mapping").map(|()| None);
        }
        let at = from_seq(mapping.ssn, 0, subflow.client_sent);
        let near = at >= ORIGIN && at.abs_diff(subflow.ack_out) < FAR;
        keeps(near, "a mapping from elsewhere")?;
        let new = Mapping { at, to, len };
        // What was acknowledged here the server had under the mapping of that time, or it was let go.
        let old = subflow.ack_out.saturating_sub(at).min(len);
        let known = self.up.is_accounted_for(to, to + old);
        keeps(known && !subflow.up.contradicts(new), "another mapping")?;
        Ok(Some(new))
    }

    fn server_conduct(&self, packet: &View<'_>) -> Result<(), Breach> {
        keeps(!packet.options.mptcp, "MPTCP of a server")?;
        if packet.has(TcpFlags::RST) {
            return Ok(());
        }
        keeps(packet.has(TcpFlags::ACK), "no ACK")?;
        if packet.has(TcpFlags::SYN) {
            let same = !self.server_answered || self.down.isn == packet.tcp.seq;
            let answers = packet.tcp.ack == self.up.isn.wrapping_add(1);
            let odd = packet.has(TcpFlags::FIN) || packet.payload_len > 0;
            let echoes = packet
                .options
                .timestamps
                .is_none_or(|ts| self.tsvals_out.has(ts.ecr));
            return keeps(same && answers && echoes && !odd, "another SYN/ACK");
        }
        keeps(self.server_answered, "no SYN/ACK yet")?;
        keeps(
            packet.segment <= self.subflows[0].mss,
            "a segment beyond the MSS",
        )?;
        let complete = packet.options.timestamps.is_some() || !self.server_timestamps;
        keeps(complete, "no timestamps")?;
        if let Some(timestamps) = packet.options.timestamps {
            keeps(
                self.tsvals_out.has(timestamps.ecr),
                "echo of what was not sent",
            )?;
            keeps(
                self.server_clock.is_near(timestamps.val),
                "a clock that jumps",
            )?;
        }
        let ack = self.up.at_seq(packet.tcp.ack);
        keeps(
            ack >= ORIGIN && ack <= reached(&self.up.carried),
            "ACK of what was not sent",
        )?;
        let edge = ack + (u64::from(packet.tcp.window) << self.server_scale);
        let rounding = (1 << self.server_scale) - 1;
        // One that was overtaken by others may look the same, and costs some rules.
        keeps(
            ack < self.up.acked || edge + rounding >= self.up.edge,
            "a window that shrinks",
        )?;
        let blocks = packet.options.sack.as_slice().iter();
        let blocks = blocks.map(|&(left, right)| (self.up.at_seq(left), self.up.at_seq(right)));
        sack_conduct(blocks, ack, &self.up.carried)?;
        let end = self.down.at_seq(packet.tcp.seq) + packet.payload_len;
        let offered = self.edge_out.unwrap_or(self.down.edge);
        let ahead = self.translates() && end > offered + OVERRUN;
        keeps(!ahead, "data far beyond the window")?;
        stream_conduct(&self.down, packet)
    }
}

/// Behind what has been sent without a gap.
fn reached(carried: &Ranges) -> u64 {
    carried.range_at(ORIGIN).map_or(ORIGIN, |range| range.1)
}

/// Where a server's data and FIN stand.
fn stream_conduct(stream: &Stream, packet: &View<'_>) -> Result<(), Breach> {
    let start = stream.at_seq(packet.tcp.seq);
    let end = start + packet.payload_len;
    let near = start >= ORIGIN - 1 && start.abs_diff(stream.acked) < FAR;
    keeps(near, "a number from elsewhere")?;
    let ends_before = |fin: u64| end <= fin + u64::from(packet.payload_len == 0);
    keeps(stream.fin.is_none_or(ends_before), "data behind the FIN")?;
    if packet.has(TcpFlags::FIN) {
        let same = stream.fin.is_none_or(|fin| fin == end);
        keeps(same && end >= stream.sent, "another FIN")?;
    }
    Ok(())
}

/// Blocks inside what was sent, the first perhaps a D-SACK (RFC 2883), that do not overlap.
fn sack_conduct(
    blocks: impl Iterator<Item = (u64, u64)>,
    ack: u64,
    carried: &Ranges,
) -> Result<(), Breach> {
    let mut seen = Ranges::new();
    let mut first = (u64::MAX, u64::MAX);
    for (n, (left, right)) in blocks.enumerate() {
        let duplicate = n == 0 && right <= ack;
        let placed = left < right && carried.contains(left, right);
        keeps(
            placed && (duplicate || left > ack),
            "SACK of what was not sent",
        )?;
        // A D-SACK may lie in the block behind it.
        let holds_first = n == 1 && left <= first.0 && first.1 <= right;
        let apart = holds_first || !seen.intersects(left, right);
        keeps(apart, "SACK blocks that overlap")?;
        first = if n == 0 { (left, right) } else { first };
        seen.insert(left, right);
    }
    Ok(())
}

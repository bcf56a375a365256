//! What a server's packets tell: nothing is held against the server.

use flexcp_wire::TcpFlags;

use crate::conduct::Side;
use crate::connection::Connection;
use crate::content::Oracle;
use crate::packet::View;
use crate::position::ORIGIN;
use crate::subflow::default_mss;

/// A part of a server's stream.
#[derive(Debug)]
pub(crate) struct Part {
    seq: u32,
    len: u64,
    fin: bool,
    /// What there is of it, where bytes are held against those that came in.
    bytes: Vec<u8>,
    remembered: bool,
}

impl Part {
    fn of(packet: &View<'_>, remembered: bool) -> Self {
        Self {
            seq: packet.tcp.seq,
            len: packet.payload_len,
            fin: packet.has(TcpFlags::FIN),
            bytes: if remembered {
                packet.bytes().to_vec()
            } else {
                vec![]
            },
            remembered,
        }
    }
}

impl Connection {
    /// A server's packet.
    pub(crate) fn note_server(&mut self, packet: &View<'_>, oracle: Option<&dyn Oracle>) {
        self.watch_server(packet);
        if let Some(timestamps) = packet.options.timestamps {
            self.server_clock.note(timestamps.val);
        }
        if packet.has(TcpFlags::RST) {
            // Of a server that has been called for the client the proxy tells it in its own words.
            self.server_reset |= self.front.is_none() || self.server_answered;
            return;
        }
        if packet.has(TcpFlags::SYN) {
            if self.asking.is_none() {
                self.take_syn_ack(packet);
            }
            return;
        }
        if !packet.has(TcpFlags::ACK) || !self.server_answered {
            return;
        }
        self.note_opener(packet);
        let start = self.down.at_seq(packet.tcp.seq);
        if self.is_strange_down(start, start + packet.payload_len) {
            return;
        }
        let said = self.up.at_seq(packet.tcp.ack);
        let ack = self.heard_behind_promise(said);
        // Plausible, that is: the server may be asked about data that the checker has not seen placed.
        if ack <= self.up.end() {
            let window = u64::from(packet.tcp.window) << self.server_scale;
            // What a dishonest one has ACKed before, the proxy may not have believed.
            if ack >= self.up.acked || !self.trusts(Side::Server) {
                self.up.widest = self.up.widest.max(window);
            }
            self.up.acknowledge(ack);
            let edge = said + window;
            self.up.edge = self.up.edge.max(edge);
            // Which of a dishonest one's windows the proxy goes by, nobody can say.
            self.up.last_edge = if self.trusts(Side::Server) {
                self.up.last_edge.max(edge)
            } else {
                self.up.last_edge.min(edge)
            };
        }
        for &(left, right) in packet.options.sack.as_slice() {
            let (left, right) = (self.up.at_seq(left), self.up.at_seq(right));
            // A FIN may have come out of order, and lies in a block then.
            let (left, end) = (left.max(self.up.acked), right.min(self.up.sent));
            if left < end && right <= self.up.end() {
                self.up.has.insert(left, end);
            }
        }
        let part = Part::of(packet, oracle.is_none());
        if self.is_placed() {
            let bytes = packet.bytes();
            if self.hostile && !self.down.matches(oracle, self.client, start, bytes) {
                self.note_breach(Side::Server, "other bytes");
            }
            self.take_part(&part);
        } else if let Some(front) = &mut self.front {
            front.keep(part);
        }
        self.release();
    }

    /// A part of the server's stream.
    pub(crate) fn take_part(&mut self, part: &Part) {
        let start = self.down.at_seq(part.seq);
        if part.fin {
            self.down.fin = Some(start + part.len);
        }
        if part.len > 0 {
            self.down
                .note(start, &part.bytes, part.len, part.remembered);
        }
    }

    fn take_syn_ack(&mut self, packet: &View<'_>) {
        if !packet.has(TcpFlags::ACK)
            || self.server_answered
            // Nobody waits for it once the client has been refused.
            || self.is_refused()
            || self.isn_to_server().map(|isn| isn.wrapping_add(1)) != Some(packet.tcp.ack)
        {
            return;
        }
        let options = &packet.options;
        self.server_answered = true;
        self.note_server_isn(packet.tcp.seq);
        self.server_scales = options.window_scale.is_some() && self.subflows[0].scales;
        self.server_scale = options.scale().filter(|_| self.server_scales).unwrap_or(0);
        self.server_sack = options.sack_permitted && self.subflows[0].sack;
        self.server_timestamps = options.timestamps.is_some() && self.subflows[0].timestamps;
        self.server_mss = options
            .mss
            .map_or_else(|| default_mss(packet.ip.is_v6()), u64::from);
        self.up.widest = packet.tcp.window.into();
        // A client that names its server has been offered something before, perhaps.
        let offered = self.front.as_ref().map_or(0, |_| self.up.edge);
        self.up.edge = offered.max(ORIGIN + self.up.lead + self.up.widest);
    }
}

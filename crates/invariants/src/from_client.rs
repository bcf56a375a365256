//! What a client's packets tell: nothing is held against the client.

use flexcp_testkit::keys;
use flexcp_wire::{CapableKeys, DataNumber, MpJoin, TcpFlags};

use crate::conduct::Side;
use crate::connection::{Connection, Mode};
use crate::content::Oracle;
use crate::mapping::Mapping;
use crate::packet::View;
use crate::position::{ORIGIN, from_seq, low};
use crate::subflow::Subflow;

impl Connection {
    /// A client's packet on subflow `index`.
    pub(crate) fn note_client(
        &mut self,
        index: usize,
        packet: &View<'_>,
        oracle: Option<&dyn Oracle>,
    ) {
        if self.subflows[index].answers_forgotten(packet) {
            return;
        }
        self.watch_client(index, packet);
        let subflow = &mut self.subflows[index];
        if let Some(timestamps) = packet.options.timestamps {
            subflow.client_clock.note(timestamps.val);
        }
        if self.asking.is_some() && packet.has(TcpFlags::SYN) {
            self.note_answer_to_asking(index, packet);
            return;
        }
        if packet.has(TcpFlags::SYN) {
            // The client gives MPTCP up, or it asks for something that passes as TCP.
            let plain = packet.options.capable.is_none() || !self.trusts(Side::Client);
            self.may_fall_back |= self.hostile && index == 0 && plain;
            if index == 0 && !packet.has(TcpFlags::ACK) {
                self.down.edge = self.down.edge.max(ORIGIN + u64::from(packet.tcp.window));
                self.note_syn_data(packet);
            }
            return;
        }
        if packet.has(TcpFlags::RST) {
            // What it ACKs counts for nothing: the proxy may not believe it.
            subflow.note_reset(packet.tcp.seq);
            // A join that is not complete ends with the exact number (RFC 5961 section 3.2).
            let next = packet.tcp.seq == subflow.isn_client.wrapping_add(1);
            // The one that answers a SYN of the proxy's has no number yet, unless the SYN/ACK has come before it.
            let exact = next || (self.asking.is_some() && !subflow.replied);
            subflow.refused |= index != 0 && !subflow.established && exact;
            return;
        }
        if !packet.has(TcpFlags::ACK) {
            return;
        }
        if !self.hears_client(index, packet) {
            return;
        }
        if self.mode == Mode::Handshake && index == 0 && self.asking.is_none() {
            self.take_keys(packet);
        }
        if self.mode == Mode::Handshake {
            // Without the keys it means nothing yet: the proxy has to drop it.
            return;
        }
        if let Some(MpJoin::Ack { hmac }) = packet.options.join
            && index != 0
            && !self.subflows[index].refused
            && self.proves_join(index, &hmac)
        {
            self.subflows[index].established = true;
        }
        if self.hostile && index != 0 && !self.subflows[index].established {
            // Anybody can have sent it.
            return;
        }
        if self.is_strange_up(index, self.subflows[index].up_at(packet.tcp.seq)) {
            return;
        }
        self.take_ack(index, packet);
        self.take_sack(index, packet);
        let alone = self.is_identity() || (index == 0 && !self.trusts(Side::Client));
        self.take_data(index, packet, oracle);
        if self.mode == Mode::Translated && alone {
            let dss = packet.options.dss;
            let infinite = dss.is_some_and(|dss| {
                !dss.data_fin && dss.mapping.is_some_and(|mapping| mapping.len == 0)
            });
            self.may_fall_back |= infinite || packet.options.fail || !packet.options.mptcp;
        }
        self.note_said();
        self.release();
    }

    /// The third packet, or data in its place.
    fn take_keys(&mut self, packet: &View<'_>) {
        let keys = packet.options.capable.map(|capable| capable.keys);
        let (
            Some(
                CapableKeys::Ack { sender, receiver }
                | CapableKeys::AckData {
                    sender, receiver, ..
                },
            ),
            Some(proxy),
        ) = (keys, self.proxy_key)
        else {
            let answered = self.server_answered || self.front.is_some();
            if !packet.options.mptcp && answered && self.answers_handshake(packet) {
                self.mode = Mode::Plain;
            }
            return;
        };
        if receiver == proxy {
            self.client_key = Some(sender);
            self.mode = Mode::Translated;
            self.subflows[0].established = true;
            self.up.idsn = keys::idsn(sender).wrapping_sub(self.bytes_in_syn(0));
            self.down.idsn = keys::idsn(proxy);
        }
    }

    /// Whether the packet's numbers are those that follow a SYN/ACK.
    fn answers_handshake(&self, packet: &View<'_>) -> bool {
        let subflow = &self.subflows[0];
        let ahead = subflow.up_at(packet.tcp.seq).wrapping_sub(ORIGIN);
        !self.hostile || (subflow.down_at(packet.tcp.ack) == ORIGIN && ahead <= u64::from(u16::MAX))
    }

    /// Whether the third packet of a join comes from who knows both keys; `true` when the handshake before it
    /// has not been seen.
    pub(crate) fn proves_join(&self, index: usize, hmac: &[u8; 20]) -> bool {
        let (Some(client), Some(proxy), (Some(own), Some(other))) =
            (self.client_key, self.proxy_key, self.subflows[index].nonces)
        else {
            return true;
        };
        !self.hostile || *hmac == keys::join_ack((client, proxy), (own, other))
    }

    fn take_ack(&mut self, index: usize, packet: &View<'_>) {
        let identity = self.is_identity();
        let lone = !self.subflows.iter().skip(1).any(Subflow::has_joined);
        let subflow = &mut self.subflows[index];
        let ack = subflow.down_at(packet.tcp.ack);
        if ack > subflow.proxy_sent {
            return;
        }
        let old = subflow.client_ack;
        subflow.client_ack = old.max(ack);
        // What the subflow has acknowledged has reached the client, whatever becomes of it there.
        for mapping in subflow.down.within(old, ack) {
            self.down.has.insert(mapping.to, mapping.to + mapping.len);
        }
        // A mapping that the proxy has dropped leaves the numbers of a lone subflow those of the TCP side.
        let bare = index == 0 && lone && self.hostile;
        // After a fallback a DSS option means nothing any more.
        let plain = self.mode == Mode::Plain;
        let stripped = plain || !packet.options.mptcp || packet.options.capable.is_some();
        let data_ack = match packet.options.data_ack().filter(|_| !plain) {
            Some(number) => self.down.at_dsn(number, self.down.acked),
            None if stripped && (identity || bare) => self.at_seq_of_client(packet.tcp.ack),
            None => return,
        };
        if data_ack > self.down.end() {
            return;
        }
        if data_ack > self.down.acked {
            self.note_progress();
        }
        self.down.acknowledge(data_ack);
        let window = u64::from(packet.tcp.window) << self.subflows[index].window_scale;
        self.down.edge = self.down.edge.max(data_ack + window);
        self.down.widest = self.down.widest.max(window);
    }

    /// What the client has out of order on a subflow.
    fn take_sack(&mut self, index: usize, packet: &View<'_>) {
        let subflow = &self.subflows[index];
        for &(left, right) in packet.options.sack.as_slice() {
            let (left, right) = (subflow.down_at(left), subflow.down_at(right));
            if right > subflow.proxy_sent {
                continue;
            }
            for mapping in subflow.down.within(left, right) {
                self.down.has.insert(mapping.to, mapping.to + mapping.len);
            }
        }
        // Fallen back, or about to: the same numbers on both sides.
        if self.is_identity() {
            for &(left, right) in packet.options.sack.as_slice() {
                let (left, right) = (self.at_seq_of_client(left), self.at_seq_of_client(right));
                let end = right.min(self.down.sent);
                if left < end && right <= self.down.end() {
                    self.down.has.insert(left, end);
                }
            }
        }
        let acked = self.down.acked;
        self.down.has.release(acked);
    }

    fn take_data(&mut self, index: usize, packet: &View<'_>, oracle: Option<&dyn Oracle>) {
        if self.mode == Mode::Translated {
            // What has fallen back is TCP, whatever options it carries (RFC 8684 section 3.7).
            self.take_mapping(index, packet);
        }
        let identity = self.is_identity();
        let subflow = &mut self.subflows[index];
        let start = subflow.up_at(packet.tcp.seq);
        let end = start + packet.payload_len;
        let next = start <= subflow.ack_out && end > subflow.ack_out;
        self.up.repeated += u64::from(next && end <= subflow.client_sent);
        // A packet without data has the number behind what was sent, too.
        subflow.client_sent = subflow.client_sent.max(end);
        if packet.has(TcpFlags::FIN) {
            subflow.client_fin = Some(end);
            if self.mode == Mode::Plain || (identity && !packet.options.mptcp) {
                self.up.fin = Some(end);
            }
        }
        let bytes = packet.bytes();
        let long_ago = subflow.is_of_long_ago(packet);
        let (mut at, mut overruns) = (start, false);
        while at < end {
            let subflow = &self.subflows[index];
            let (to, len) = match subflow.up.find(at) {
                Some(mapping) => (mapping.data(at), mapping.end().min(end) - at),
                None if identity && index == 0 => (at, end - at),
                None => {
                    at = subflow.up.next_from(at).map_or(end, |next| next.min(end));
                    continue;
                }
            };
            let from = usize::try_from(at - start).unwrap_or(usize::MAX);
            let part = bytes.get(from..).unwrap_or(&[]);
            let part = &part[..part.len().min(usize::try_from(len).unwrap_or(usize::MAX))];
            if !self.up.matches(oracle, self.client, to, part) {
                if self.hostile {
                    self.note_breach(Side::Client, "other bytes");
                } else if let (&[byte], true) = (part, to < self.up.acked) {
                    self.up.probe = Some((to, byte));
                }
            }
            self.note_preamble(to, part);
            self.hear_errand(to, part);
            self.up.note(to, part, len, oracle.is_none());
            if long_ago {
                self.up.unheard.insert(to, to + len);
            }
            overruns |= !identity && to + len > self.up.last_edge;
            at += len;
        }
        // Behind an answer that the proxy waits for, it need not listen yet: neither to data nor to what that is said to be.
        if self.may_drop_behind_answer() {
            for mapping in self.subflows[index].up.around(start, end) {
                self.up.unheard.insert(mapping.to, mapping.to + mapping.len);
            }
        }
        // What stands in the way of what the server waits for may be ACKed as well (RFC 8684 section 3.3.6: the client
        // keeps it), for a client that sends data anew only where nothing is outstanding.
        let again_and_again = self.up.repeated >= self.in_vain() && !identity;
        if overruns || (again_and_again && self.nobody_brings_up()) {
            for mapping in self.subflows[index].up.within(start, end) {
                self.up.overrun.insert(mapping.to, mapping.to + mapping.len);
            }
        }
    }

    /// So often the client repeats in vain before what stands in the way is ACKed. In a capture the proxy may have had an ACK
    /// of the server's before a packet that was captured first, and have counted more than can be seen.
    fn in_vain(&self) -> u64 {
        if self.lag > 0 { 1 } else { 3 }
    }

    /// Whether the client has what the server waits for outstanding on no subflow, as far as the proxy has to know.
    fn nobody_brings_up(&self) -> bool {
        let next = self.up.acked;
        let unheard = self.up.unheard.range_at(next).is_some();
        let mut lives = self
            .subflows
            .iter()
            .filter(|subflow| !subflow.reset && !subflow.lost);
        // Behind what a server without SACK may have, it is not repeated.
        let brings = |subflow: &Subflow| {
            subflow.up.brings(next, subflow.ack_out)
                && (self.server_sack || subflow.up.brings_next(next, subflow.ack_out))
        };
        next < self.up.sent && (unheard || !lives.any(brings))
    }

    /// The mapping and DATA_FIN that the packet declares.
    fn take_mapping(&mut self, index: usize, packet: &View<'_>) {
        let in_syn = self.bytes_in_syn(index);
        if let Some(CapableKeys::AckData { data_len, .. }) =
            packet.options.capable.map(|capable| capable.keys)
        {
            self.subflows[index].up.declare_more(Mapping {
                at: ORIGIN + in_syn,
                to: ORIGIN + in_syn,
                len: data_len.into(),
            });
            if !self.trusts(Side::Client) {
                self.up.sent = self.up.sent.max(ORIGIN + u64::from(data_len));
            }
            return;
        }
        let Some(dss) = packet.options.dss else {
            return;
        };
        let Some(mapping) = dss.mapping else {
            return;
        };
        let to = match mapping.dsn {
            DataNumber::Long(_) => self.up.at_dsn(mapping.dsn, 0),
            DataNumber::Short(_) => self.up.at_dsn(mapping.dsn, self.up.sent),
        };
        if to.abs_diff(self.up.sent) > 1 << 31 || self.is_far(to) {
            return;
        }
        let len = u64::from(mapping.len).saturating_sub(dss.data_fin.into());
        if dss.data_fin {
            self.up.fin = self.up.fin.or(Some(to + len));
        }
        if !self.trusts(Side::Client) {
            // Which of two mappings for the same place counts, or which DATA_FIN, nobody can say.
            self.up.sent = self.up.sent.max(to + len);
        }
        if len == 0 {
            return;
        }
        let subflow = &mut self.subflows[index];
        let isn = 0_u32.wrapping_sub(low(in_syn));
        let at = from_seq(mapping.ssn, isn, subflow.client_sent);
        let mapping = Mapping { at, to, len };
        // What comes on a joined subflow ends that as well, once the proxy has answered its join.
        self.identity &= index != 0 || at == to;
        if mapping.end() > subflow.ack_out {
            subflow.up.declare_more(mapping);
        }
    }
}

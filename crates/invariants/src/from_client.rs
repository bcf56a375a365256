//! What a client's packets tell: nothing is held against the client.

use flexcp_wire::{CapableKeys, DataNumber, MpJoin, TcpFlags};
use sha2::{Digest, Sha256};

use crate::connection::{Connection, Mode};
use crate::mapping::Mapping;
use crate::packet::View;
use crate::position::{ORIGIN, from_seq};

/// Token and initial data sequence number of a key (RFC 8684 section 3.1).
pub(crate) fn derive(key: u64) -> (u32, u64) {
    let hash: [u8; 32] = Sha256::digest(key.to_be_bytes()).into();
    let mut token = [0; 4];
    let mut idsn = [0; 8];
    token.copy_from_slice(&hash[..4]);
    idsn.copy_from_slice(&hash[24..]);
    (u32::from_be_bytes(token), u64::from_be_bytes(idsn))
}

impl Connection {
    /// A client's packet on subflow `index`.
    pub(crate) fn note_client(&mut self, index: usize, packet: &View<'_>, remembers: bool) {
        let subflow = &mut self.subflows[index];
        if let Some(timestamps) = packet.options.timestamps {
            subflow.client_clock.note(timestamps.val);
        }
        if packet.has(TcpFlags::SYN) {
            if index == 0 && !packet.has(TcpFlags::ACK) {
                self.down.edge = self.down.edge.max(ORIGIN + u64::from(packet.tcp.window));
            }
            return;
        }
        if packet.has(TcpFlags::RST) {
            // What it ACKs counts for nothing: the proxy may not believe it.
            subflow.reset = true;
            return;
        }
        if !packet.has(TcpFlags::ACK) {
            return;
        }
        if self.mode == Mode::Handshake && index == 0 {
            self.take_keys(packet);
        }
        if self.mode == Mode::Handshake {
            // Without the keys it means nothing yet: the proxy has to drop it.
            return;
        }
        if let Some(MpJoin::Ack { .. }) = packet.options.join {
            self.subflows[index].established = true;
            self.identity = false;
        }
        self.take_ack(index, packet);
        self.take_sack(index, packet);
        self.take_data(index, packet, remembers);
        if self.mode == Mode::Translated && self.identity {
            let dss = packet.options.dss;
            let infinite = dss.is_some_and(|dss| {
                !dss.data_fin && dss.mapping.is_some_and(|mapping| mapping.len == 0)
            });
            self.may_fall_back |= infinite || packet.options.fail || !packet.options.mptcp;
        }
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
            if !packet.options.mptcp && self.server_answered {
                self.mode = Mode::Plain;
            }
            return;
        };
        if receiver == proxy {
            self.client_key = Some(sender);
            self.mode = Mode::Translated;
            self.subflows[0].established = true;
            self.up.idsn = derive(sender).1;
            self.down.idsn = derive(proxy).1;
        }
    }

    fn take_ack(&mut self, index: usize, packet: &View<'_>) {
        let identity = self.identity;
        let subflow = &mut self.subflows[index];
        let ack = subflow.down_at(packet.tcp.ack);
        if ack > subflow.proxy_sent {
            return;
        }
        let old = subflow.client_ack;
        subflow.client_ack = old.max(ack);
        // What the subflow has acknowledged has reached the client, whatever becomes of it there.
        let mut at = old;
        while at < ack {
            let Some(mapping) = subflow.down.find(at) else {
                break;
            };
            let end = mapping.end().min(ack);
            self.down.has.insert(mapping.data(at), mapping.data(end));
            at = end;
        }
        let data_ack = match packet.options.data_ack() {
            Some(number) => self.down.at_dsn(number, self.down.acked),
            None if identity => from_seq(packet.tcp.ack, self.down.isn, self.down.sent),
            None => return,
        };
        let limit = self.down.fin.map_or(self.down.sent, |fin| fin + 1);
        if data_ack > limit {
            return;
        }
        self.down.acknowledge(data_ack);
        let scale = self.subflows[index].window_scale;
        let edge = data_ack + (u64::from(packet.tcp.window) << scale);
        self.down.edge = self.down.edge.max(edge);
    }

    /// What the client has out of order on a subflow.
    fn take_sack(&mut self, index: usize, packet: &View<'_>) {
        let subflow = &self.subflows[index];
        for &(left, right) in packet.options.sack.as_slice() {
            let (mut at, right) = (subflow.down_at(left), subflow.down_at(right));
            if right > subflow.proxy_sent {
                continue;
            }
            while at < right {
                let Some(mapping) = subflow.down.find(at) else {
                    break;
                };
                let end = mapping.end().min(right);
                self.down.has.insert(mapping.data(at), mapping.data(end));
                at = end;
            }
        }
        // Fallen back, or about to: the same numbers on both sides.
        if self.identity {
            for &(left, right) in packet.options.sack.as_slice() {
                let (left, right) = (self.down.at_seq(left), self.down.at_seq(right));
                let end = right.min(self.down.sent);
                if left < end && right <= self.down.end() {
                    self.down.has.insert(left, end);
                }
            }
        }
        let acked = self.down.acked;
        self.down.has.release(acked);
    }

    fn take_data(&mut self, index: usize, packet: &View<'_>, remembers: bool) {
        self.take_mapping(index, packet);
        let subflow = &mut self.subflows[index];
        let start = subflow.up_at(packet.tcp.seq);
        let end = start + packet.payload_len;
        // A packet without data has the number behind what was sent, too.
        subflow.client_sent = subflow.client_sent.max(end);
        if packet.has(TcpFlags::FIN) {
            subflow.client_fin = Some(end);
            if self.mode == Mode::Plain || (self.identity && !packet.options.mptcp) {
                self.up.fin = Some(end);
            }
        }
        let bytes = packet.bytes();
        let mut at = start;
        while at < end {
            let subflow = &self.subflows[index];
            let (to, len) = match subflow.up.find(at) {
                Some(mapping) => (mapping.data(at), mapping.end().min(end) - at),
                None if self.identity && index == 0 => (at, end - at),
                None => return,
            };
            let from = usize::try_from(at - start).unwrap_or(usize::MAX);
            let part = bytes.get(from..).unwrap_or(&[]);
            let part = &part[..part.len().min(usize::try_from(len).unwrap_or(usize::MAX))];
            self.up.note(to, part, len, remembers);
            at += len;
        }
    }

    /// The mapping and DATA_FIN that the packet declares.
    fn take_mapping(&mut self, index: usize, packet: &View<'_>) {
        if let Some(CapableKeys::AckData { data_len, .. }) =
            packet.options.capable.map(|capable| capable.keys)
            && index == 0
        {
            self.subflows[0].up.declare_more(Mapping {
                at: ORIGIN,
                to: ORIGIN,
                len: data_len.into(),
            });
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
        if to.abs_diff(self.up.sent) > 1 << 31 {
            return;
        }
        let len = u64::from(mapping.len).saturating_sub(dss.data_fin.into());
        if dss.data_fin {
            self.up.fin = self.up.fin.or(Some(to + len));
        }
        if len == 0 {
            return;
        }
        let subflow = &mut self.subflows[index];
        let at = from_seq(mapping.ssn, 0, subflow.client_sent);
        let mapping = Mapping { at, to, len };
        if index != 0 || at != to {
            self.identity = false;
        }
        if mapping.end() > subflow.ack_out {
            subflow.up.declare_more(mapping);
        }
    }
}

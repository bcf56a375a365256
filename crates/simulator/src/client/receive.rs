//! What comes from the proxy on an open subflow.

use flexcp_wire::{AddAddr, DataNumber, Dsn, MptcpOption, TcpFlags, TcpOption};

use super::subflow::{Mapping, State};
use super::{Client, Outcome, Phase};
use crate::net::{Incoming, Outbox};
use crate::server::clock_at;
use crate::tcp::unwrap;

impl Client {
    pub(super) fn receive_open(
        &mut self,
        now: u64,
        index: usize,
        packet: &Incoming<'_>,
        outbox: &mut Outbox,
    ) {
        if packet.has(TcpFlags::SYN) {
            // Our third packet was lost.
            if self.subflows[index].state == State::Joining {
                self.send_join_ack(now, index, outbox);
            } else {
                self.send_ack(now, index, outbox);
            }
            return;
        }
        let subflow = &mut self.subflows[index];
        let from = unwrap(packet.tcp.seq, subflow.remote_isn, subflow.receiver.nxt);
        if packet.has(TcpFlags::RST) {
            self.receive_reset(now, index, from, packet, outbox);
            return;
        }
        if !packet.has(TcpFlags::ACK) {
            return;
        }
        let val = packet.options.timestamps.map(|timestamps| timestamps.val);
        if !subflow.is_timely(from, val) {
            self.paws += 1;
            subflow.receiver.ack_now = true;
            return;
        }
        let ack = unwrap(packet.tcp.ack, subflow.isn, subflow.sender.una);
        if ack > subflow.sender.nxt.cast_signed() {
            self.failure = Some(format!(
                "client: subflow {index} ACK of unsent: {ack} > {}",
                subflow.sender.nxt
            ));
            return;
        }
        subflow.keepalive = self.stack.keepalive.map(|pause| now + pause);
        if subflow.state == State::Joining {
            subflow.state = State::Open;
            subflow.timer = None;
            self.refused = 0;
        }
        self.heard = index;
        self.take_ack(now, index, ack, packet);
        if self.phase == Phase::Plain {
            self.take_plain(now, index, from, packet);
        } else {
            self.take_signals(now, index, packet, outbox);
            self.take_data(now, index, from, packet);
        }
        self.close_subflow_when_done(now, index);
    }

    /// Subflow ACK and data ACK.
    fn take_ack(&mut self, now: u64, index: usize, ack: i64, packet: &Incoming<'_>) {
        let subflow = &mut self.subflows[index];
        let echo = match (subflow.clock, packet.options.timestamps) {
            (Some(base), Some(timestamps)) => {
                let age = clock_at(base, now).wrapping_sub(timestamps.ecr);
                now.checked_sub(u64::from(age) * 1000)
            }
            _ => None,
        };
        let mut blocks = [(0, 0); 4];
        let mut count = 0;
        for &(left, right) in packet.options.sack.as_slice() {
            let left = unwrap(left, subflow.isn, subflow.sender.una);
            let right = unwrap(right, subflow.isn, subflow.sender.una);
            if left >= 0 && left < right {
                blocks[count] = (left.cast_unsigned(), right.cast_unsigned());
                count += 1;
            }
        }
        let bare = packet.is_empty() && !packet.has(TcpFlags::FIN);
        let ack = u64::try_from(ack).unwrap_or(0);
        let window = u64::from(packet.tcp.window) << subflow.remote_scale;
        // Each subflow keeps to the window that it was shown, too (RFC 8684 section 3.3.5).
        subflow
            .sender
            .acknowledge(now, ack, &blocks[..count], ack + window, bare, echo);
        subflow.release();
        if self.phase == Phase::Plain {
            let fin = u64::from(self.subflows[index].sender.is_done() && self.wants_close);
            self.una = self.una.max(ack.min(self.app.writes + fin));
            self.edge = self.edge.max(ack + window);
            return;
        }
        let Some(number) = packet.options.dss.and_then(|dss| dss.data_ack) else {
            return;
        };
        self.confirmed = true;
        let data_ack = self.position_out(number);
        let limit = self.nxt + u64::from(self.wants_close && self.nxt == self.app.writes);
        if data_ack > limit {
            self.failure = Some(format!("client: data ACK of unsent: {data_ack} > {limit}"));
            return;
        }
        if data_ack > self.una {
            self.una = data_ack;
            self.again.release(data_ack);
            self.data_tries = 0;
            self.arm_data_timer(now);
        }
        self.edge = self.edge.max(data_ack + window);
    }

    /// Position of a data ACK.
    fn position_out(&self, number: DataNumber) -> u64 {
        let base = Dsn(self.idsn.wrapping_add(1).wrapping_add(self.una));
        let full = number.expand(base);
        full.0.wrapping_sub(self.idsn).wrapping_sub(1)
    }

    /// Position of a data number of the proxy's.
    fn position_in(&self, number: DataNumber) -> u64 {
        let base = Dsn(self.remote_idsn.wrapping_add(1).wrapping_add(self.data_in));
        let full = number.expand(base);
        full.0.wrapping_sub(self.remote_idsn).wrapping_sub(1)
    }

    /// The SYN/ACK brings the front of the server's data, too (RFC 8803 section 4.2).
    pub(super) fn take_with_syn_ack(&mut self, now: u64, packet: &Incoming<'_>) {
        if packet.is_empty() {
            return;
        }
        if self.phase == Phase::Plain {
            self.take_plain(now, 0, 0, packet);
        } else {
            self.failure = Some("client: data in a SYN/ACK with MP_CAPABLE".into());
        }
    }

    fn take_plain(&mut self, now: u64, index: usize, from: i64, packet: &Incoming<'_>) {
        let fin = packet.has(TcpFlags::FIN);
        if packet.is_empty() && !fin {
            let receiver = &mut self.subflows[index].receiver;
            receiver.ack_now |= from < receiver.nxt.cast_signed();
            return;
        }
        let skip = usize::try_from(-from)
            .unwrap_or(0)
            .min(packet.payload.len());
        let to = (from + packet.len().cast_signed()).max(0).cast_unsigned();
        let from = from.max(0).cast_unsigned();
        if !self.matches_in(from, &packet.payload[skip..]) {
            self.failure = Some(format!("client: other bytes at {from}"));
        }
        let subflow = &mut self.subflows[index];
        subflow
            .receiver
            .take(now, from, to, fin, self.reader.edge + 1);
        self.data_in = subflow.receiver.nxt;
        self.fin_in = subflow.receiver.fin;
        self.check_length();
    }

    fn check_length(&mut self) {
        self.read_answer();
        if self.outcome() == Some(Outcome::Waits) {
            return;
        }
        if self.data_end() > self.app.reads || self.fin_in.is_some_and(|fin| fin != self.app.reads)
        {
            self.failure = Some(format!(
                "client: {} bytes, fin {:?}, of {}",
                self.data_end(),
                self.fin_in,
                self.app.reads
            ));
        }
    }

    fn take_data(&mut self, now: u64, index: usize, from: i64, packet: &Incoming<'_>) {
        self.mapping_of_keys(index, packet);
        if let Some(dss) = packet.options.dss
            && let Some(mapping) = dss.mapping
        {
            let dsn = self.position_in(mapping.dsn);
            let len = u64::from(mapping.len).saturating_sub(dss.data_fin.into());
            if dss.data_fin {
                let with_old_data = len > 0 && dsn + len <= self.data_in;
                self.take_data_fin(dsn + len, index, with_old_data);
            }
            if len > 0 {
                let new = Mapping {
                    ssn: u64::from(mapping.ssn.wrapping_sub(1)),
                    dsn,
                    len,
                    fin: false,
                };
                self.learn(index, new);
            }
        }
        let fin = packet.has(TcpFlags::FIN);
        let subflow = &mut self.subflows[index];
        if packet.is_empty() && !fin {
            subflow.receiver.ack_now |= from < subflow.receiver.nxt.cast_signed();
            return;
        }
        let to = (from + packet.len().cast_signed()).max(0).cast_unsigned();
        let from = from.max(0).cast_unsigned();
        if to > subflow.receiver.nxt && !packet.is_empty() {
            self.check_bytes(index, from, packet.payload);
        }
        let subflow = &mut self.subflows[index];
        let old = subflow.receiver.nxt;
        subflow.receiver.take(now, from, to, fin, u64::MAX);
        let new = subflow.receiver.data_end();
        self.deliver(index, old, new);
        self.subflows[index].release();
    }

    /// Data that came with the keys has the first numbers.
    pub(super) fn learn_first(&mut self, len: u64) {
        let first = Mapping {
            ssn: 0,
            dsn: 0,
            len,
            fin: false,
        };
        self.learn(0, first);
    }

    /// A subflow's relative numbers wrap with it: 2^32 bytes are more than any run transfers.
    fn learn(&mut self, index: usize, new: Mapping) {
        let subflow = &mut self.subflows[index];
        if new.ssn + new.len <= subflow.receiver.nxt {
            return;
        }
        if !subflow.learn(new) {
            self.failure = Some(format!("client: subflow {index} mapping changed: {new:?}"));
        }
    }

    /// The bytes are the server's, or stand for data that is here already.
    fn check_bytes(&mut self, index: usize, from: u64, payload: &[u8]) {
        let to = from + payload.len() as u64;
        let mut at = from.max(self.subflows[index].receiver.nxt);
        while at < to {
            let Some(mapping) = self.subflows[index].mapping_in(at) else {
                self.failure = Some(format!("client: subflow {index} no mapping at {at}"));
                return;
            };
            let end = (mapping.ssn + mapping.len).min(to);
            let dsn = mapping.dsn + (at - mapping.ssn);
            let part = &payload[(at - from) as usize..(end - from) as usize];
            let known = dsn + part.len() as u64 <= self.data_in;
            if !known && !self.matches_in(dsn, part) {
                self.failure = Some(format!("client: other bytes at {dsn}"));
                return;
            }
            at = end;
        }
    }

    /// In-order bytes of a subflow reach the connection.
    fn deliver(&mut self, index: usize, from: u64, to: u64) {
        let mut at = from;
        while at < to {
            let Some(mapping) = self.subflows[index].mapping_in(at) else {
                return;
            };
            let end = (mapping.ssn + mapping.len).min(to);
            let dsn = mapping.dsn + (at - mapping.ssn);
            let dsn_end = (dsn + (end - at)).min(self.reader.edge);
            at = end;
            if dsn_end <= self.data_in {
                continue;
            }
            if self.random.chance(self.plan.drops) {
                self.dropped += 1;
                continue;
            }
            self.ahead.insert(dsn.max(self.data_in), dsn_end);
        }
        if let Some((_, end)) = self.ahead.range_at(self.data_in) {
            self.data_in = end;
            self.ahead.release(end);
            self.note_end(index);
        }
        self.check_length();
    }

    /// As Linux does it (`mptcp_update_rcv_data_fin`): a DATA_FIN is acted on when it is the first one and comes alone,
    /// or when data comes after it. In the mapping of data that is here already it is only noted, and until data comes,
    /// those that follow are passed over.
    fn take_data_fin(&mut self, fin: u64, index: usize, with_old_data: bool) {
        if self.fin_in.is_some_and(|known| known != fin) {
            self.failure = Some(format!("client: DATA_FIN at {fin}, was {:?}", self.fin_in));
            return;
        }
        let noted = self.fin_in.replace(fin).is_some();
        if self.data_in <= fin && (noted || with_old_data) {
            return;
        }
        // It wants a data ACK each time.
        self.subflows[index].receiver.ack_now = true;
        self.note_end(index);
        self.check_length();
    }

    fn note_end(&mut self, index: usize) {
        if self.fin_in == Some(self.data_in) {
            self.data_in += 1;
            self.subflows[index].receiver.ack_now = true;
        }
    }

    fn take_signals(&mut self, now: u64, index: usize, packet: &Incoming<'_>, outbox: &mut Outbox) {
        if let Some(remove) = packet.options.remove_addr.filter(|_| self.is_answering()) {
            for gone in 0..self.subflows.len() {
                if remove.ids().contains(&self.subflows[gone].peer_id) {
                    self.lose_subflow(now, gone);
                }
            }
        }
        if let Some(add_addr) = packet.options.add_addr
            && !add_addr.echo
        {
            let echo = AddAddr {
                echo: true,
                hmac: None,
                ..add_addr
            };
            let mut outgoing = self.headers(now, index, TcpFlags::ACK);
            outgoing
                .options
                .push(&TcpOption::Mptcp(MptcpOption::AddAddr(echo)));
            self.push_data_ack(&mut outgoing.options);
            outbox.send(outgoing, &[]);
        }
    }

    /// RST (RFC 5961 section 3.2); with the key it ends the connection.
    fn receive_reset(
        &mut self,
        now: u64,
        index: usize,
        from: i64,
        packet: &Incoming<'_>,
        outbox: &mut Outbox,
    ) {
        let subflow = &mut self.subflows[index];
        let joining = subflow.state == State::Joining;
        if from != subflow.receiver.nxt.cast_signed() && !joining {
            self.send_ack(now, index, outbox);
            return;
        }
        self.lose_subflow(now, index);
        if let Some(key) = packet.options.fast_close {
            if key == self.key {
                self.phase = Phase::Reset;
                for index in 0..self.subflows.len() {
                    if self.subflows[index].state != State::Closed {
                        self.reset_subflow(now, index, outbox);
                    }
                }
            } else {
                self.failure = Some("client: MP_FASTCLOSE with another key".into());
            }
        } else if self.phase == Phase::Plain {
            self.phase = Phase::Reset;
        }
    }

    /// A packet for a subflow that is over.
    pub(super) fn receive_late(
        &mut self,
        now: u64,
        index: usize,
        packet: &Incoming<'_>,
        outbox: &mut Outbox,
    ) {
        let subflow = &self.subflows[index];
        let closed = subflow.sender.fin && subflow.sender.is_done() && subflow.receiver.is_closed();
        if !closed {
            crate::server::refuse(packet, outbox);
        } else if packet.has(TcpFlags::FIN) || !packet.is_empty() {
            self.send_ack(now, index, outbox);
        }
    }

    /// Both FINs of a subflow are acknowledged.
    fn close_subflow_when_done(&mut self, now: u64, index: usize) {
        let multipath = matches!(self.phase, Phase::Multipath | Phase::Closed);
        let follows = multipath && self.follows_fin();
        let subflow = &mut self.subflows[index];
        if subflow.receiver.is_closed() && follows && !subflow.sender.fin {
            // The proxy closes it: so do we.
            subflow.sender.fin = true;
        }
        if multipath
            && subflow.sender.fin
            && subflow.sender.is_done()
            && subflow.receiver.is_closed()
            && subflow.is_open()
        {
            subflow.state = State::Closed;
            subflow.closed_at = now;
            subflow.receiver.ack_now = true;
            self.abandon(index);
        }
    }
}

//! What the client sends.

use flexcp_wire::{
    AddAddr, CapableKeys, DataNumber, Dss, DssMapping, MpFastClose, MpPrio, MptcpOption,
    OptionWriter, RemoveAddr, SackBlocks, TcpFlags, TcpOption, Timestamps,
};

use super::handshake::capable;
use super::subflow::{Mapping, State};
use super::{Client, Phase};
use crate::net::{Outbox, Outgoing};
use crate::server::clock_at;
use crate::tcp::{Chunk, number};

impl Client {
    /// Everything that may go now.
    pub(super) fn transmit(&mut self, now: u64, outbox: &mut Outbox) {
        for index in 0..self.subflows.len() {
            while let Some(chunk) = self.next_chunk(now, index) {
                self.send_chunk(now, index, chunk, outbox);
            }
        }
        if self.resend_fin {
            self.resend_fin = false;
            self.send_data_fin(now, outbox);
        }
        if let Some(index) = self.probe.take()
            && self.subflows[index].is_open()
        {
            self.send_probe(now, index, outbox);
        }
        for index in 0..self.subflows.len() {
            if self.subflows[index].receiver.ack_now {
                self.send_ack(now, index, outbox);
            }
        }
    }

    fn next_chunk(&mut self, now: u64, index: usize) -> Option<Chunk> {
        let subflow = &mut self.subflows[index];
        if !subflow.is_open() {
            return None;
        }
        if self.phase == Phase::Plain {
            return subflow.sender.next(now, |_| u64::MAX);
        }
        let mappings = &subflow.out;
        let room = |from: u64| {
            let index = mappings.partition_point(|m| m.ssn + m.len <= from);
            mappings.get(index).map_or(0, |m| m.ssn + m.len - from)
        };
        subflow.sender.next(now, room)
    }

    /// Headers and timestamps of a packet with the subflow's next number.
    pub(super) fn headers(&mut self, now: u64, index: usize, flags: TcpFlags) -> Outgoing {
        let subflow = &mut self.subflows[index];
        let mut options = OptionWriter::new();
        if let Some(base) = subflow.clock {
            options.push(&TcpOption::Timestamps(Timestamps {
                val: clock_at(base, now),
                ecr: subflow.recent,
            }));
        }
        subflow.last_ack = subflow.receiver.nxt;
        let window = self.reader.window(self.data_in, subflow.scale);
        Outgoing {
            from: subflow.local,
            to: subflow.remote,
            seq: number(subflow.sender.nxt, subflow.isn),
            ack: number(subflow.receiver.nxt, subflow.remote_isn),
            flags,
            window,
            options,
        }
    }

    fn number_out(&mut self, position: u64) -> DataNumber {
        let dsn = self.idsn.wrapping_add(1).wrapping_add(position);
        if self.random.chance(self.plan.long_numbers) {
            DataNumber::Long(dsn)
        } else {
            DataNumber::Short(dsn as u32)
        }
    }

    fn data_ack(&mut self) -> DataNumber {
        let ack = self.remote_idsn.wrapping_add(1).wrapping_add(self.data_in);
        if self.random.chance(self.plan.long_acks) {
            DataNumber::Long(ack)
        } else {
            DataNumber::Short(ack as u32)
        }
    }

    pub(super) fn push_data_ack(&mut self, options: &mut OptionWriter) {
        let dss = Dss {
            data_ack: Some(self.data_ack()),
            mapping: None,
            data_fin: false,
        };
        options.push(&TcpOption::Mptcp(MptcpOption::Dss(dss)));
    }

    fn send_chunk(&mut self, now: u64, index: usize, chunk: Chunk, outbox: &mut Outbox) {
        let mut flags = TcpFlags::ACK;
        if chunk.fin {
            flags |= TcpFlags::FIN;
        }
        let mut outgoing = self.headers(now, index, flags);
        let subflow = &self.subflows[index];
        let seq = number(chunk.from, subflow.isn);
        outgoing.seq = if chunk.probe {
            seq.wrapping_sub(1)
        } else {
            seq
        };
        let mut at = chunk.from;
        if self.phase != Phase::Plain {
            let mapping = subflow.mapping_out(chunk.from).filter(|_| chunk.len > 0);
            if let Some(mapping) = mapping {
                at = mapping.dsn + (chunk.from - mapping.ssn);
                self.push_mapping(index, mapping, &chunk, &mut outgoing.options);
            } else {
                self.push_data_ack(&mut outgoing.options);
            }
        }
        if chunk.len > 0 && self.random.one_in(4) {
            outgoing.flags |= TcpFlags::PSH;
        }
        // Beside plain data there is room for it only where the proxy has told less than its peer takes.
        if !(self.is_answering() && self.phase == Phase::Plain && chunk.len > 0) {
            self.push_sack(index, &mut outgoing.options);
        }
        self.subflows[index].receiver.acknowledged();
        let payload = self.bytes_out(at, usize::try_from(chunk.len).unwrap_or(0));
        outbox.send(outgoing, &payload);
    }

    fn push_mapping(
        &mut self,
        index: usize,
        mapping: Mapping,
        chunk: &Chunk,
        options: &mut OptionWriter,
    ) {
        if !self.confirmed && mapping.ssn == 0 && index == 0 {
            let keys = CapableKeys::AckData {
                sender: self.key,
                receiver: self.remote_key,
                data_len: u16::try_from(mapping.len).unwrap_or(u16::MAX),
                checksum: None,
            };
            options.push(&TcpOption::Mptcp(MptcpOption::Capable(capable(keys))));
            return;
        }
        let needed = self.plan.repeats_mapping || chunk.again || chunk.from == mapping.ssn;
        if !needed {
            self.push_data_ack(options);
            return;
        }
        let len = mapping.len + u64::from(mapping.fin);
        let dss = Dss {
            data_ack: Some(self.data_ack()),
            mapping: Some(DssMapping {
                dsn: self.number_out(mapping.dsn),
                ssn: (mapping.ssn + 1) as u32,
                len: u16::try_from(len).unwrap_or(u16::MAX),
                checksum: None,
            }),
            data_fin: mapping.fin,
        };
        options.push(&TcpOption::Mptcp(MptcpOption::Dss(dss)));
    }

    fn push_sack(&mut self, index: usize, options: &mut OptionWriter) {
        let subflow = &mut self.subflows[index];
        if !subflow.sack {
            return;
        }
        let room = options.remaining().saturating_sub(4) / 8;
        let mut sack = SackBlocks::new();
        for (from, to) in subflow.receiver.blocks(room.min(4)) {
            let left = number(from, subflow.remote_isn);
            sack.push(left, number(to, subflow.remote_isn));
        }
        if !sack.is_empty() {
            options.push(&TcpOption::Sack(sack));
        }
    }

    /// A packet without data; with the keys until the proxy has shown that it got them.
    pub(super) fn send_ack(&mut self, now: u64, index: usize, outbox: &mut Outbox) {
        let outgoing = self.ack_headers(now, index);
        outbox.send(outgoing, &[]);
    }

    fn ack_headers(&mut self, now: u64, index: usize) -> Outgoing {
        let mut outgoing = self.headers(now, index, TcpFlags::ACK);
        if matches!(self.phase, Phase::Multipath | Phase::Closed) && self.remote_key != 0 {
            if self.confirmed || index != 0 {
                self.push_data_ack(&mut outgoing.options);
            } else {
                let keys = CapableKeys::Ack {
                    sender: self.key,
                    receiver: self.remote_key,
                };
                outgoing
                    .options
                    .push(&TcpOption::Mptcp(MptcpOption::Capable(capable(keys))));
            }
        }
        self.push_sack(index, &mut outgoing.options);
        self.subflows[index].receiver.acknowledged();
        outgoing
    }

    /// An old number, to be answered.
    pub(super) fn send_probe(&mut self, now: u64, index: usize, outbox: &mut Outbox) {
        let mut outgoing = self.ack_headers(now, index);
        let subflow = &self.subflows[index];
        outgoing.seq = number(subflow.sender.una, subflow.isn).wrapping_sub(1);
        outbox.send(outgoing, &[]);
    }

    fn send_data_fin(&mut self, now: u64, outbox: &mut Outbox) {
        let fin = self.app.writes;
        for index in 0..self.subflows.len() {
            if !self.subflows[index].is_open() {
                continue;
            }
            let mut outgoing = self.headers(now, index, TcpFlags::ACK);
            let dss = Dss {
                data_ack: Some(self.data_ack()),
                mapping: Some(DssMapping {
                    dsn: self.number_out(fin),
                    ssn: 0,
                    len: 1,
                    checksum: None,
                }),
                data_fin: true,
            };
            outgoing
                .options
                .push(&TcpOption::Mptcp(MptcpOption::Dss(dss)));
            outbox.send(outgoing, &[]);
            if self.data_tries < 2 {
                break;
            }
        }
    }

    pub(super) fn send_prio(&mut self, now: u64, index: usize, backup: bool, outbox: &mut Outbox) {
        let mut outgoing = self.headers(now, index, TcpFlags::ACK);
        let option = MptcpOption::Prio(MpPrio { backup });
        outgoing.options.push(&TcpOption::Mptcp(option));
        self.push_data_ack(&mut outgoing.options);
        outbox.send(outgoing, &[]);
    }

    pub(super) fn send_add_addr(&mut self, now: u64, outbox: &mut Outbox) {
        let index = self.answering();
        if !self.subflows[index].is_open() {
            return;
        }
        let mut outgoing = self.headers(now, index, TcpFlags::ACK);
        let option = AddAddr {
            echo: false,
            id: 9,
            addr: self.subflows[index].local.ip(),
            port: None,
            hmac: Some(self.random.next()),
        };
        if outgoing
            .options
            .push(&TcpOption::Mptcp(MptcpOption::AddAddr(option)))
        {
            outbox.send(outgoing, &[]);
        }
    }

    /// The address of a subflow is gone: said on another.
    pub(super) fn remove_addr(&mut self, now: u64, index: usize, outbox: &mut Outbox) {
        let id = self.subflows[index].address_id;
        let gone: Vec<usize> = (0..self.subflows.len())
            .filter(|i| self.subflows[*i].address_id == id)
            .collect();
        let other = (0..self.subflows.len())
            .find(|i| self.subflows[*i].is_open() && self.subflows[*i].address_id != id);
        let Some(other) = other else {
            return;
        };
        for index in gone {
            self.lose_subflow(now, index);
        }
        let option = RemoveAddr::new(&[id]);
        let mut outgoing = self.headers(now, other, TcpFlags::ACK);
        outgoing
            .options
            .push(&TcpOption::Mptcp(MptcpOption::RemoveAddr(option)));
        self.push_data_ack(&mut outgoing.options);
        outbox.send(outgoing, &[]);
    }

    /// RST on one subflow.
    pub(super) fn reset_subflow(&mut self, now: u64, index: usize, outbox: &mut Outbox) {
        if self.subflows[index].state != State::SynSent {
            let outgoing = self.headers(now, index, TcpFlags::RST | TcpFlags::ACK);
            outbox.send(outgoing, &[]);
        }
        self.lose_subflow(now, index);
    }

    /// A subflow is over at once.
    pub(super) fn lose_subflow(&mut self, now: u64, index: usize) {
        let subflow = &mut self.subflows[index];
        if subflow.state == State::Closed {
            return;
        }
        if subflow.state != State::Open {
            self.refused += 1;
        }
        subflow.state = State::Closed;
        subflow.closed_at = now;
        subflow.receiver.acknowledged();
        self.abandon(index);
        self.subflows[index].out.clear();
        self.subflows[index].into.clear();
        let last = self.subflows.iter().all(|s| s.state == State::Closed);
        if self.phase == Phase::Multipath && last && !self.is_answering() {
            self.rejoin_at = Some(now + self.join_pause());
        }
    }

    /// Ends the connection.
    pub(super) fn abort(&mut self, now: u64, by_reset: bool, outbox: &mut Outbox) {
        for index in 0..self.subflows.len() {
            let state = std::mem::replace(&mut self.subflows[index].state, State::Closed);
            if !matches!(state, State::Open | State::Joining) {
                continue;
            }
            let mut outgoing = self.headers(now, index, TcpFlags::RST | TcpFlags::ACK);
            // A join that is not complete can't carry the key yet.
            if self.phase == Phase::Multipath && state == State::Open {
                if !by_reset {
                    outgoing.flags = TcpFlags::ACK;
                }
                let option = MptcpOption::FastClose(MpFastClose {
                    key: self.remote_key,
                });
                outgoing.options.push(&TcpOption::Mptcp(option));
            }
            outbox.send(outgoing, &[]);
        }
        self.phase = Phase::Reset;
    }
}

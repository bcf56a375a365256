//! SYNs and their answers, of the connection and of joins (RFC 8684 sections 3.1 and 3.2).

use flexcp_testkit::keys;
use flexcp_wire::{
    CapableFlags, CapableKeys, MpCapable, MpJoin, MptcpOption, OptionWriter, TcpFlags, TcpOption,
    Timestamps,
};

use super::subflow::{State, Subflow};
use super::{Client, Phase};
use crate::net::{Incoming, Outbox, Outgoing};
use crate::server::clock_at;

/// SYNs with `MP_CAPABLE` before the client does without.
const MPTCP_TRIES: u32 = 3;
/// SYNs and third packets of a join.
const JOIN_TRIES: u32 = 6;

/// `MP_CAPABLE` of the client's.
pub(crate) const fn capable(keys: CapableKeys) -> MpCapable {
    MpCapable {
        version: 1,
        flags: CapableFlags::HMAC_SHA256,
        keys,
    }
}

impl Client {
    pub(super) fn send_syn(&mut self, now: u64, index: usize, outbox: &mut Outbox) {
        let subflow = &mut self.subflows[index];
        subflow.timer = Some(now + (1_000_000 << subflow.tries.min(4)));
        let mut options = OptionWriter::new();
        if let Some(mss) = self.stack.mss {
            options.push(&TcpOption::Mss(mss));
        }
        if self.stack.sack {
            options.push(&TcpOption::SackPermitted);
        }
        if let Some(base) = subflow.clock {
            options.push(&TcpOption::Timestamps(Timestamps {
                val: clock_at(base, now),
                ecr: 0,
            }));
        }
        if let Some(scale) = self.stack.window_scale {
            options.push(&TcpOption::WindowScale(scale));
        }
        if index > 0 {
            let join = MpJoin::Syn {
                backup: subflow.backup,
                address_id: subflow.address_id,
                token: self.remote_token,
                nonce: subflow.nonce,
            };
            options.push(&TcpOption::Mptcp(MptcpOption::Join(join)));
        } else if self.plan.enabled && subflow.tries < MPTCP_TRIES {
            options.push(&TcpOption::Mptcp(MptcpOption::Capable(capable(
                CapableKeys::Syn,
            ))));
        }
        let left = self.reader.edge.saturating_sub(self.data_in);
        // Who hears nothing does without data in the SYN.
        let with_data = index == 0 && subflow.tries == 0;
        let data = if with_data {
            self.bytes_of_syn()
        } else {
            [].as_slice().into()
        };
        let subflow = &self.subflows[index];
        let outgoing = Outgoing {
            from: subflow.local,
            to: subflow.remote,
            seq: subflow.isn,
            ack: 0,
            flags: TcpFlags::SYN,
            window: u16::try_from(left).unwrap_or(u16::MAX),
            options,
        };
        outbox.send(outgoing, &data);
    }

    /// Opens another subflow.
    pub(super) fn join(&mut self, now: u64, link: usize, backup: bool, outbox: &mut Outbox) {
        if self.phase != Phase::Multipath || !self.confirmed {
            return;
        }
        let alive = self
            .subflows
            .iter()
            .filter(|s| s.state != State::Closed)
            .count();
        if alive >= 6 {
            return;
        }
        let Some(mut local) = self.addresses.get(link).copied() else {
            return;
        };
        self.next_port += 1;
        local.set_port(self.next_port);
        let isn = if self.random.one_in(2) {
            u32::MAX - self.random.word() % 20_000
        } else {
            self.random.word()
        };
        let clock = self.stack.timestamps.map(|_| self.random.word());
        let mut subflow = Subflow::new(&self.stack, link, local, self.remote, isn, clock);
        subflow.backup = backup;
        subflow.address_id = u8::try_from(link).unwrap_or(0);
        subflow.nonce = self.random.word();
        self.subflows.push(subflow);
        self.send_syn(now, self.subflows.len() - 1, outbox);
    }

    /// SYN and third packet again.
    pub(super) fn handshake_timeout(&mut self, now: u64, index: usize, outbox: &mut Outbox) {
        let subflow = &mut self.subflows[index];
        if subflow.timer.is_none_or(|due| due > now) {
            return;
        }
        subflow.tries += 1;
        if index > 0 && subflow.tries > JOIN_TRIES {
            self.reset_subflow(now, index, outbox);
            return;
        }
        if subflow.state == State::SynSent {
            self.send_syn(now, index, outbox);
        } else {
            self.send_join_ack(now, index, outbox);
        }
    }

    /// What comes while the SYN is out.
    pub(super) fn receive_syn_ack(
        &mut self,
        now: u64,
        index: usize,
        packet: &Incoming<'_>,
        outbox: &mut Outbox,
    ) {
        let in_syn = if index == 0 {
            self.bytes_of_syn().len() as u32
        } else {
            0
        };
        let subflow = &self.subflows[index];
        let acked = packet.tcp.ack.wrapping_sub(subflow.isn.wrapping_add(1));
        let acks = packet.has(TcpFlags::ACK) && acked <= in_syn;
        // A part of it: it goes on as TCP, as Linux does.
        let in_part = acked > 0 && acked < in_syn;
        if packet.has(TcpFlags::RST) {
            if acks {
                self.lose_subflow(now, index);
                if index == 0 {
                    self.phase = Phase::Reset;
                }
            }
            return;
        }
        if !packet.has(TcpFlags::SYN) || !acks {
            return;
        }
        if acked > 0 {
            // Data of the SYN has no data number.
            self.subflows[0].isn = self.subflows[0].isn.wrapping_add(acked);
            self.skip(acked.into());
        }
        self.agree(index, packet);
        if index == 0 {
            self.open_first(now, in_part, packet, outbox);
        } else {
            self.open_join(now, index, packet, outbox);
        }
    }

    /// What both SYNs offer.
    pub(super) fn agree(&mut self, index: usize, packet: &Incoming<'_>) {
        let subflow = &mut self.subflows[index];
        let options = &packet.options;
        subflow.remote_isn = packet.tcp.seq;
        if let (Some(own), Some(remote)) = (self.stack.window_scale, options.window_scale) {
            subflow.scales = true;
            subflow.scale = own.min(14);
            subflow.remote_scale = remote.min(14);
        }
        subflow.sack = self.stack.sack && options.sack_permitted;
        match (subflow.clock, options.timestamps) {
            (Some(_), Some(timestamps)) => subflow.recent = timestamps.val,
            _ => subflow.clock = None,
        }
        let default = if subflow.remote.is_ipv4() { 536 } else { 1220 };
        let own = u64::from(self.stack.mss.unwrap_or(default));
        let remote = u64::from(options.mss.unwrap_or(default));
        // Room for timestamps and the longest DSS.
        let taken = if subflow.clock.is_some() { 12 } else { 0 } + 28;
        let mss = own.min(remote).saturating_sub(taken).max(64);
        subflow.sender = crate::tcp::Sender::new(self.stack.tuning, mss);
        subflow.sender.edge = packet.tcp.window.into();
    }

    fn open_first(&mut self, now: u64, in_part: bool, packet: &Incoming<'_>, outbox: &mut Outbox) {
        self.edge = packet.tcp.window.into();
        self.subflows[0].state = State::Open;
        self.subflows[0].timer = None;
        self.subflows[0].keepalive = self.stack.keepalive.map(|pause| now + pause);
        let keys = packet.options.capable.map(|capable| capable.keys);
        // Who has sent a SYN without it has given MPTCP up, whatever answer is still under way.
        let asks = self.plan.enabled && self.subflows[0].tries < MPTCP_TRIES;
        if let (true, Some(CapableKeys::SynAck { sender })) = (asks && !in_part, keys) {
            self.remote_key = sender;
            (self.remote_token, self.remote_idsn) = (keys::token(sender), keys::idsn(sender));
            self.phase = Phase::Multipath;
        } else {
            self.phase = Phase::Plain;
            let subflow = &mut self.subflows[0];
            subflow.sender.mss += if subflow.clock.is_some() { 16 } else { 28 };
        }
        self.take_with_syn_ack(now, packet);
        self.send_ack(now, 0, outbox);
    }

    fn open_join(&mut self, now: u64, index: usize, packet: &Incoming<'_>, outbox: &mut Outbox) {
        let Some(MpJoin::SynAck { hmac, nonce, .. }) = packet.options.join else {
            self.reset_subflow(now, index, outbox);
            return;
        };
        let subflow = &mut self.subflows[index];
        let expected = keys::join_syn_ack((self.remote_key, self.key), (nonce, subflow.nonce));
        if expected != hmac {
            self.failure = Some("wrong HMAC in the SYN/ACK of a join".into());
            return;
        }
        subflow.remote_nonce = nonce;
        subflow.state = State::Joining;
        subflow.tries = 0;
        self.send_join_ack(now, index, outbox);
    }

    /// The third packet of a join, until it is answered.
    pub(super) fn send_join_ack(&mut self, now: u64, index: usize, outbox: &mut Outbox) {
        let subflow = &mut self.subflows[index];
        subflow.timer = Some(now + (500_000 << subflow.tries.min(4)));
        let nonces = (subflow.nonce, subflow.remote_nonce);
        let hmac = keys::join_ack((self.key, self.remote_key), nonces);
        let mut outgoing = self.headers(now, index, TcpFlags::ACK);
        outgoing
            .options
            .push(&TcpOption::Mptcp(MptcpOption::Join(MpJoin::Ack { hmac })));
        outbox.send(outgoing, &[]);
    }
}

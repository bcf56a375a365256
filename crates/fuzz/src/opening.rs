//! Handshakes done properly, so that what follows gets deep: the initial one and joins.

use flexcp_testkit::keys;
use flexcp_wire::{
    CapableFlags, CapableKeys, MpCapable, MpJoin, MptcpOption, OptionWriter, TcpFlags, TcpOption,
    Timestamps,
};

use crate::output::Output;
use crate::world::{FLOWS, Packet, Party, World};

/// How far a conversation has come before the fuzzer takes over.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Stage {
    Nothing,
    SynSent,
    SynReceived,
    Established,
    OneJoin,
    TwoJoins,
}

impl Stage {
    pub(crate) const fn from_byte(byte: u8) -> Self {
        match byte % 10 {
            0 => Self::Nothing,
            1 => Self::SynSent,
            2 => Self::SynReceived,
            3 | 4 => Self::Established,
            5..=7 => Self::OneJoin,
            _ => Self::TwoJoins,
        }
    }
}

impl World {
    /// Plays the handshakes up to `stage`.
    pub(crate) fn open(&mut self, stage: Stage) {
        if self.setup.aggregation.is_some() {
            return self.open_far(stage);
        }
        if stage >= Stage::SynSent {
            let out = self.send(&self.syn());
            self.learn(&out);
        }
        if stage >= Stage::SynReceived {
            let out = self.send(&self.syn_ack());
            self.learn(&out);
        }
        if stage >= Stage::Established {
            let out = self.send(&self.third());
            self.learn(&out);
        }
        let joins = match stage {
            Stage::OneJoin => 1,
            Stage::TwoJoins => 2,
            _ => 0,
        };
        for k in 1..=joins {
            let out = self.send(&self.join_syn(k, false));
            self.learn(&out);
            if self.flows[k].peer_nonce != 0 {
                let out = self.send(&self.join_ack(k));
                self.learn(&out);
            }
        }
    }

    /// Takes keys, numbers, nonces and clocks out of what FlexCP has sent.
    pub(crate) fn learn(&mut self, outputs: &[Output]) {
        for output in outputs {
            self.hear(output);
            self.learn_asked(output);
            let (Party::Client(k), true) = (output.party, output.tcp.flags.contains(TcpFlags::SYN))
            else {
                continue;
            };
            self.flows[k].peer_isn = output.tcp.seq;
            if let Some(MpCapable {
                keys: CapableKeys::SynAck { sender },
                ..
            }) = output.options.capable
            {
                self.proxy_key = Some(sender);
            }
            if let Some(MpJoin::SynAck { nonce, .. }) = output.options.join {
                self.flows[k].peer_nonce = nonce;
            }
        }
    }

    /// Of a FlexCP that asks: its key, which it shows later than its SYN, and its nonce.
    fn learn_asked(&mut self, output: &Output) {
        let Party::Client(k) = output.party else {
            return;
        };
        if let Some(CapableKeys::Ack { sender, .. } | CapableKeys::AckData { sender, .. }) =
            output.options.capable.map(|capable| capable.keys)
        {
            self.proxy_key = Some(sender);
        }
        if let Some(MpJoin::Syn { nonce, .. }) = output.options.join {
            self.flows[k].peer_nonce = nonce;
        }
    }

    /// Notes the clock that a packet shows its receiver.
    fn hear(&mut self, output: &Output) {
        let heard = match output.party {
            Party::Client(k) => &mut self.heard[k],
            Party::Server => &mut self.heard[FLOWS],
        };
        if let Some(Timestamps { val, .. }) = output.options.timestamps
            && (*heard == 0 || val.wrapping_sub(*heard).cast_signed() > 0)
        {
            *heard = val;
        }
    }

    /// The client's SYN.
    pub(crate) fn syn(&self) -> Packet {
        let mut syn = Packet::new(Party::Client(0), self.flows[0].isn, 0, TcpFlags::SYN);
        let capable = self.capable(CapableKeys::Syn);
        syn.options = self.syn_options(0, self.setup.scales.0, Some(capable), 0);
        syn
    }

    /// The server's SYN/ACK.
    pub(crate) fn syn_ack(&self) -> Packet {
        let ack = self.flows[0].isn.wrapping_add(1);
        let flags = TcpFlags::SYN | TcpFlags::ACK;
        let mut syn_ack = Packet::new(Party::Server, self.server_isn, ack, flags);
        syn_ack.options = self.syn_options(FLOWS, self.setup.scales.1, None, self.heard[FLOWS]);
        syn_ack
    }

    /// The client's third packet.
    pub(crate) fn third(&self) -> Packet {
        let mut third = self.ack_of(0);
        let keys = CapableKeys::Ack {
            sender: self.client_key,
            receiver: self.proxy_key.unwrap_or(0),
        };
        third.options = self.options(0, &[TcpOption::Mptcp(self.capable(keys))]);
        third
    }

    /// SYN of a join.
    pub(crate) fn join_syn(&self, k: usize, backup: bool) -> Packet {
        let flow = self.flows[k];
        let join = MpJoin::Syn {
            backup,
            address_id: flow.id,
            token: keys::token(self.proxy_key.unwrap_or(0)),
            nonce: flow.nonce,
        };
        let mut syn = Packet::new(Party::Client(k), flow.isn, 0, TcpFlags::SYN);
        syn.options = self.syn_options(k, self.setup.scales.0, Some(MptcpOption::Join(join)), 0);
        syn
    }

    /// Third packet of a join.
    pub(crate) fn join_ack(&self, k: usize) -> Packet {
        let flow = self.flows[k];
        let proxy = self.proxy_key.unwrap_or(0);
        let hmac = keys::join_ack((self.client_key, proxy), (flow.nonce, flow.peer_nonce));
        let mut ack = self.ack_of(k);
        ack.options = self.options(
            k,
            &[TcpOption::Mptcp(MptcpOption::Join(MpJoin::Ack { hmac }))],
        );
        ack
    }

    /// The clock of a flow, or of the server (as a flow behind the last).
    pub(crate) fn clock(&self, k: usize) -> u32 {
        let millis = u32::try_from(self.now.0 / 1000 % (1 << 32)).unwrap_or(0);
        let base = u32::try_from(k).unwrap_or(0).wrapping_mul(0x3fff_f000);
        base.wrapping_add(1000).wrapping_add(millis)
    }

    /// Timestamps, when they are used, and `more`, as long as it fits.
    pub(crate) fn options(&self, k: usize, more: &[TcpOption<'_>]) -> Vec<u8> {
        let mut writer = OptionWriter::new();
        if self.setup.timestamps {
            let (val, ecr) = (self.clock(k), self.heard[k]);
            writer.push(&TcpOption::Timestamps(Timestamps { val, ecr }));
        }
        for option in more {
            writer.push(option);
        }
        writer.finish().to_vec()
    }

    pub(crate) const fn capable(&self, keys: CapableKeys) -> MptcpOption {
        MptcpOption::Capable(MpCapable {
            version: 1,
            flags: CapableFlags::HMAC_SHA256,
            keys,
        })
    }

    fn ack_of(&self, k: usize) -> Packet {
        let flow = self.flows[k];
        let (seq, ack) = (flow.isn.wrapping_add(1), flow.peer_isn.wrapping_add(1));
        Packet::new(Party::Client(k), seq, ack, TcpFlags::ACK)
    }

    pub(crate) fn syn_options(
        &self,
        k: usize,
        scale: Option<u8>,
        mptcp: Option<MptcpOption>,
        ecr: u32,
    ) -> Vec<u8> {
        let mut writer = OptionWriter::new();
        writer.push(&TcpOption::Mss(1460));
        if self.setup.sack {
            writer.push(&TcpOption::SackPermitted);
        }
        if self.setup.timestamps {
            let val = self.clock(k);
            writer.push(&TcpOption::Timestamps(Timestamps { val, ecr }));
        }
        if let Some(scale) = scale {
            writer.push(&TcpOption::WindowScale(scale));
        }
        if let Some(mptcp) = mptcp {
            writer.push(&TcpOption::Mptcp(mptcp));
        }
        writer.finish().to_vec()
    }
}

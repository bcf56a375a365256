//! The end with TCP where it is the one that opens: a client in the LAN of an aggregation box.

use flexcp_wire::{CapableKeys, MptcpOption, OptionWriter, TcpFlags, TcpOption, Timestamps};

use super::{Server, State, clock_at};
use crate::client::capable;
use crate::net::{Incoming, Outbox, Outgoing};

impl Server {
    /// The same, which opens; `asks`: for MPTCP.
    pub(crate) const fn opening(mut self, asks: bool) -> Self {
        self.opens = true;
        self.asks = asks;
        self
    }

    /// Sends the SYN.
    pub(crate) fn start(&mut self, now: u64, outbox: &mut Outbox) {
        self.reader.advance(now, 0, 1460);
        self.state = State::SynSent;
        self.send_syn(now, outbox);
    }

    pub(super) fn send_syn(&mut self, now: u64, outbox: &mut Outbox) {
        self.syn_timer = Some(now + (1_000_000 << self.syn_tries.min(4)));
        let mut options = OptionWriter::new();
        if let Some(mss) = self.stack.mss {
            options.push(&TcpOption::Mss(mss));
        }
        if self.stack.sack {
            options.push(&TcpOption::SackPermitted);
        }
        if let Some(base) = self.stack.timestamps {
            options.push(&TcpOption::Timestamps(Timestamps {
                val: clock_at(base, now),
                ecr: 0,
            }));
        }
        if let Some(scale) = self.stack.window_scale {
            options.push(&TcpOption::WindowScale(scale));
        }
        if self.asks {
            options.push(&TcpOption::Mptcp(MptcpOption::Capable(capable(
                CapableKeys::Syn,
            ))));
        }
        let outgoing = Outgoing {
            from: self.local,
            to: self.remote,
            seq: self.isn,
            ack: 0,
            flags: TcpFlags::SYN,
            window: u16::try_from(self.reader.edge).unwrap_or(u16::MAX),
            options,
        };
        outbox.send(outgoing, &[]);
    }

    /// What comes while the SYN is out.
    pub(super) fn receive_answer(&mut self, now: u64, packet: &Incoming<'_>, outbox: &mut Outbox) {
        let acks = packet.has(TcpFlags::ACK) && packet.tcp.ack == self.isn.wrapping_add(1);
        if packet.from != self.remote || !acks {
            return;
        }
        if packet.has(TcpFlags::RST) {
            self.state = State::Reset;
            return;
        }
        if !packet.has(TcpFlags::SYN) {
            return;
        }
        if packet.options.mptcp && !self.asks {
            self.failure = Some("server: MPTCP in a SYN/ACK".into());
        }
        self.agree(now, packet);
        self.state = State::Open;
        self.syn_timer = None;
        self.last_heard = now;
        self.keepalive = self.stack.keepalive.map(|pause| now + pause);
        self.send_ack(now, outbox);
        self.work(now, outbox);
    }
}

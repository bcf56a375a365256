//! The end with MPTCP where it is the one that is connected to, by an aggregation box: SYNs that it answers, and what completes
//! the handshakes (RFC 8684 sections 3.1 and 3.2). Behind them it does what it does as a client.

use std::net::SocketAddr;

use flexcp_testkit::{Random, keys};
use flexcp_wire::{
    CapableFlags, CapableKeys, MpCapable, MpJoin, MpTcpRst, MptcpOption, OptionWriter, TcpFlags,
    TcpOption, Timestamps,
};

use super::errand::Errand;
use super::handshake::capable;
use super::subflow::{State, Subflow};
use super::{Client, Phase};
use crate::key::{find_key, wraps_soon};
use crate::mirror::{AnswerPlan, Greeting, JoinAnswer};
use crate::net::{Incoming, Outbox, Outgoing};
use crate::server::{clock_at, refuse, refuse_any};
use crate::tcp::unwrap;

/// SYN/ACKs to a join that nothing comes of.
const JOIN_ANSWERS: u32 = 6;

/// An end that answers.
#[derive(Debug)]
pub(super) struct Answering {
    plan: AnswerPlan,
    /// The number of its first SYN/ACK.
    isn: u32,
    /// The key that each end got that it has answered, and what further ones come from.
    keys: Vec<(SocketAddr, u64)>,
    further: Random,
    /// It has answered that it speaks MPTCP.
    offers: bool,
    /// The HMACs of these subflows' answers are wrong.
    spoiled: Vec<usize>,
    /// `MP_JOIN` was taken out of the answers of these.
    stripped: Vec<usize>,
    /// It is an aggregation server.
    pub(super) errand: Option<Box<Errand>>,
}

impl Client {
    /// The same, which is connected to; `isn`: the number of its SYN/ACK.
    pub(crate) fn connected_to(mut self, plan: AnswerPlan, isn: u32) -> Self {
        self.subflows.clear();
        let further = Random::for_purpose(self.key, 33);
        self.answers = Some(Answering {
            plan,
            isn,
            keys: vec![],
            further,
            offers: false,
            spoiled: vec![],
            stripped: vec![],
            errand: None,
        });
        self
    }

    /// Whether it is the one that is connected to.
    pub(super) const fn is_answering(&self) -> bool {
        self.answers.is_some()
    }

    /// Whether it closes a subflow because the other end does. One that takes no joins has no other to go on with.
    pub(super) fn follows_fin(&self) -> bool {
        !self.takes_no_joins() || self.has_sent_all()
    }

    /// Whether it takes no joins at its address, which is the only one that it has.
    pub(super) fn takes_no_joins(&self) -> bool {
        let answers = self.answers.as_ref();
        answers.is_some_and(|answers| answers.plan.closed)
    }

    /// What comes for none of its subflows.
    pub(super) fn receive_stranger(
        &mut self,
        now: u64,
        packet: &Incoming<'_>,
        outbox: &mut Outbox,
    ) {
        let opens = packet.has(TcpFlags::SYN) && !packet.has(TcpFlags::ACK);
        let Some(answers) = self.answers.as_ref().filter(|_| opens) else {
            return refuse(packet, outbox);
        };
        if answers.plan.greeting == Greeting::Refuses {
            return refuse_any(packet, outbox);
        }
        if let Some(join) = packet.options.join {
            return self.receive_join(now, join, packet, outbox);
        }
        let lost = answers.plan.greeting == Greeting::Lost && packet.options.mptcp;
        if !lost && self.phase != Phase::Connecting && answers.errand.is_some() {
            return self.answer_beside(packet, outbox);
        }
        if lost || self.phase != Phase::Connecting {
            return;
        }
        // A SYN from elsewhere: whoever has sent the one before has forgotten that.
        self.subflows.clear();
        let isn = answers.isn;
        let speaks = answers.plan.greeting != Greeting::Plain;
        let offers = speaks && packet.options.capable.is_some();
        if let Some(answers) = &mut self.answers {
            answers.offers = offers;
        }
        self.take_key_for(packet.from);
        self.reader.advance(now, 0, 1460);
        let clock = self.stack.timestamps;
        self.take_syn(isn, clock, packet);
        self.take_errand_of_syn(packet.payload);
        let in_syn = self.errand().map_or(0, |errand| errand.in_syn);
        let first = &mut self.subflows[0].remote_isn;
        *first = first.wrapping_add(in_syn as u32);
        self.edge = packet.tcp.window.into();
        self.send_syn_ack(now, 0, outbox);
    }

    /// Each connection has a key of its own (RFC 8684 section 3.1): tokens have to tell them apart, as an answer of an earlier one may
    /// still come.
    fn take_key_for(&mut self, asker: SocketAddr) {
        let Some(answers) = &mut self.answers else {
            return;
        };
        let mut known = answers.keys.iter();
        let known = known.find_map(|(known, key)| (*known == asker).then_some(*key));
        let key = match known {
            Some(key) => key,
            None if answers.keys.is_empty() => self.key,
            None => find_key(&mut answers.further, wraps_soon(self.key)),
        };
        if known.is_none() {
            answers.keys.push((asker, key));
        }
        (self.key, self.idsn) = (key, keys::idsn(key));
    }

    /// The SYN of another connection: whoever listens answers it.
    fn answer_beside(&mut self, packet: &Incoming<'_>, outbox: &mut Outbox) {
        let outgoing = Outgoing {
            from: packet.to,
            to: packet.from,
            seq: self.random.word(),
            ack: packet.tcp.seq.wrapping_add(1),
            flags: TcpFlags::SYN | TcpFlags::ACK,
            window: u16::MAX,
            options: OptionWriter::new(),
        };
        outbox.send(outgoing, &[]);
    }

    fn take_syn(&mut self, isn: u32, clock: Option<u32>, packet: &Incoming<'_>) {
        let mut subflow = Subflow::new(&self.stack, 0, packet.to, packet.from, isn, clock);
        subflow.state = State::SynReceived;
        self.subflows.push(subflow);
        self.agree(self.subflows.len() - 1, packet);
    }

    fn receive_join(&mut self, now: u64, join: MpJoin, packet: &Incoming<'_>, outbox: &mut Outbox) {
        let MpJoin::Syn {
            backup,
            address_id,
            token,
            nonce,
        } = join
        else {
            self.failure = Some("MP_JOIN of another kind in a SYN".into());
            return;
        };
        if token != keys::token(self.key) {
            self.failure = Some("a join with another token".into());
            return;
        }
        if self.phase != Phase::Multipath {
            // Over, or fallen back.
            return refuse_any(packet, outbox);
        }
        let Some(answers) = &self.answers else {
            return;
        };
        if answers.plan.closed {
            self.failure = Some("a join where none is taken".into());
            return;
        }
        let answer = answers.plan.join(now, &mut self.random);
        match answer {
            JoinAnswer::Refused => return self.refuse_join(packet, outbox),
            JoinAnswer::Silent => return,
            JoinAnswer::Granted | JoinAnswer::WrongHmac | JoinAnswer::Stripped => {}
        }
        let isn = self.random.word();
        let clock = self.stack.timestamps.map(|_| self.random.word());
        self.take_syn(isn, clock, packet);
        let index = self.subflows.len() - 1;
        if let Some(answers) = &mut self.answers {
            match answer {
                JoinAnswer::WrongHmac => answers.spoiled.push(index),
                JoinAnswer::Stripped => answers.stripped.push(index),
                _ => {}
            }
        }
        let subflow = &mut self.subflows[index];
        (subflow.backup, subflow.peer_id) = (backup, address_id);
        subflow.remote_nonce = nonce;
        subflow.nonce = self.random.word();
        self.send_syn_ack(now, index, outbox);
    }

    fn refuse_join(&mut self, packet: &Incoming<'_>, outbox: &mut Outbox) {
        let mut options = OptionWriter::new();
        options.push(&TcpOption::Mptcp(MptcpOption::Reset(MpTcpRst {
            transient: self.random.one_in(2),
            reason: MpTcpRst::RESOURCES,
        })));
        let outgoing = Outgoing {
            from: packet.to,
            to: packet.from,
            seq: 0,
            ack: packet.tcp.seq.wrapping_add(1),
            flags: TcpFlags::RST | TcpFlags::ACK,
            window: 0,
            options,
        };
        outbox.send(outgoing, &[]);
    }

    fn send_syn_ack(&mut self, now: u64, index: usize, outbox: &mut Outbox) {
        let subflow = &mut self.subflows[index];
        subflow.timer = Some(now + (1_000_000 << subflow.tries.min(4)));
        let mut options = OptionWriter::new();
        if let Some(mss) = self.stack.mss {
            options.push(&TcpOption::Mss(mss));
        }
        if subflow.sack {
            options.push(&TcpOption::SackPermitted);
        }
        if let Some(base) = subflow.clock {
            options.push(&TcpOption::Timestamps(Timestamps {
                val: clock_at(base, now),
                ecr: subflow.recent,
            }));
        }
        if subflow.scales {
            options.push(&TcpOption::WindowScale(subflow.scale));
        }
        if let Some(option) = self.answer_option(index) {
            options.push(&TcpOption::Mptcp(option));
        }
        let subflow = &self.subflows[index];
        let left = self.reader.edge.saturating_sub(self.data_in);
        let outgoing = Outgoing {
            from: subflow.local,
            to: subflow.remote,
            seq: subflow.isn,
            ack: subflow.remote_isn.wrapping_add(1),
            flags: TcpFlags::SYN | TcpFlags::ACK,
            window: u16::try_from(left).unwrap_or(u16::MAX),
            options,
        };
        let answer = self.answer_with_syn_ack().filter(|_| index == 0);
        outbox.send(outgoing, answer.unwrap_or(&[]));
    }

    /// What an aggregation server without MPTCP says at once.
    fn answer_with_syn_ack(&self) -> Option<&[u8]> {
        let answers = self.answers.as_ref().filter(|answers| !answers.offers)?;
        answers.errand.as_ref()?.with_syn_ack()
    }

    /// What the SYN/ACK of a subflow says of MPTCP.
    fn answer_option(&self, index: usize) -> Option<MptcpOption> {
        let answers = self.answers.as_ref()?;
        if index == 0 {
            let speaks = answers.offers && answers.plan.greeting != Greeting::Stripped;
            let mut capable = capable(CapableKeys::SynAck { sender: self.key });
            capable.flags.0 |= self.answer_flags().0;
            return speaks.then_some(MptcpOption::Capable(capable));
        }
        if answers.stripped.contains(&index) {
            return None;
        }
        let subflow = &self.subflows[index];
        let nonces = (subflow.nonce, subflow.remote_nonce);
        let hmac = keys::join_syn_ack((self.key, self.remote_key), nonces);
        Some(MptcpOption::Join(MpJoin::SynAck {
            backup: false,
            address_id: 0,
            hmac: hmac ^ u64::from(answers.spoiled.contains(&index)),
            nonce: subflow.nonce,
        }))
    }

    fn answer_flags(&self) -> CapableFlags {
        let plan = self.answers.as_ref().map(|answers| &answers.plan);
        let checksums = plan.is_some_and(|plan| plan.greeting == Greeting::Checksums);
        let closed = plan.is_some_and(|plan| plan.closed);
        let flag = |set: bool, flag: CapableFlags| if set { flag.0 } else { 0 };
        CapableFlags(
            flag(checksums, CapableFlags::CHECKSUM) | flag(closed, CapableFlags::NO_JOIN_INITIAL),
        )
    }

    /// SYN/ACKs again.
    pub(super) fn answer_timeout(&mut self, now: u64, index: usize, outbox: &mut Outbox) {
        let subflow = &mut self.subflows[index];
        if subflow.timer.is_none_or(|due| due > now) {
            return;
        }
        subflow.tries += 1;
        if index > 0 && subflow.tries > JOIN_ANSWERS {
            subflow.state = State::Closed;
            return;
        }
        self.send_syn_ack(now, index, outbox);
    }

    /// What comes while the SYN/ACK is out.
    pub(super) fn receive_third(
        &mut self,
        now: u64,
        index: usize,
        packet: &Incoming<'_>,
        outbox: &mut Outbox,
    ) {
        let subflow = &self.subflows[index];
        let from = unwrap(packet.tcp.seq, subflow.remote_isn, 0);
        if packet.has(TcpFlags::SYN) {
            if packet.tcp.seq == subflow.remote_isn && !packet.has(TcpFlags::ACK) {
                self.send_syn_ack(now, index, outbox);
            }
            return;
        }
        if packet.has(TcpFlags::RST) {
            let answers = self.answers.as_ref();
            let listens = answers.is_some_and(|it| it.errand.is_some() || it.plan.listens_on);
            if from == 0 && index == 0 && listens {
                // It listens as before.
                self.subflows.clear();
            } else if from == 0 {
                self.subflows[index].state = State::Closed;
                if index == 0 {
                    self.phase = Phase::Reset;
                }
            }
            return;
        }
        let acked = unwrap(packet.tcp.ack, subflow.isn, 0);
        let answer = self.answer_with_syn_ack().unwrap_or_default().len();
        let answer = i64::try_from(answer).unwrap_or(i64::MAX);
        let answered = index == 0 && answer > 0 && acked == answer;
        // What its SYN/ACK has carried is ACKed with that, sooner or later.
        let fits = answered || (acked == 0 && (index > 0 || answer == 0));
        if !packet.has(TcpFlags::ACK) || !fits {
            return;
        }
        if index == 0 {
            self.complete_first(packet);
        }
        if answered {
            self.skip_answer();
        }
        if index == 0 || self.complete_join(index, packet) {
            self.subflows[index].state = State::Open;
            self.subflows[index].timer = None;
            self.subflows[index].tries = 0;
            self.subflows[index].keepalive = self.stack.keepalive.map(|pause| now + pause);
            // The one that asks waits for that.
            self.subflows[index].receiver.ack_now |= index > 0 || self.phase == Phase::Multipath;
            self.receive_open(now, index, packet, outbox);
        }
    }

    /// The third packet of the connection, or data in its place: without the keys it goes on as TCP, as Linux has it.
    fn complete_first(&mut self, packet: &Incoming<'_>) {
        let offers = self.answers.as_ref().is_some_and(|answers| answers.offers);
        let keys = packet.options.capable.map(|capable| capable.keys);
        let (Some(CapableKeys::Ack { sender, receiver })
        | Some(CapableKeys::AckData {
            sender, receiver, ..
        })) = keys.filter(|_| offers)
        else {
            self.phase = Phase::Plain;
            let subflow = &mut self.subflows[0];
            subflow.sender.mss += if subflow.clock.is_some() { 16 } else { 28 };
            return;
        };
        if receiver != self.key {
            self.failure = Some("another key than the one that was told".into());
        }
        self.remote_key = sender;
        (self.remote_token, self.remote_idsn) = (keys::token(sender), keys::idsn(sender));
        self.confirmed = true;
        self.phase = Phase::Multipath;
    }

    /// Whether a join is complete.
    fn complete_join(&mut self, index: usize, packet: &Incoming<'_>) -> bool {
        let subflow = &self.subflows[index];
        let nonces = (subflow.remote_nonce, subflow.nonce);
        let expected = keys::join_ack((self.remote_key, self.key), nonces);
        match packet.options.join {
            Some(MpJoin::Ack { hmac }) if hmac == expected => true,
            Some(_) => {
                self.failure = Some("wrong HMAC in the third packet of a join".into());
                false
            }
            None => {
                if !packet.is_empty() {
                    self.failure = Some("data on a join that is not complete".into());
                }
                false
            }
        }
    }

    /// The mapping of data that comes with the keys: it begins where the data does.
    pub(super) fn mapping_of_keys(&mut self, index: usize, packet: &Incoming<'_>) {
        let Some(MpCapable {
            keys: CapableKeys::AckData { data_len, .. },
            ..
        }) = packet.options.capable
        else {
            return;
        };
        if index == 0 && data_len > 0 {
            self.learn_first(data_len.into());
        }
    }
}

//! The initial handshake where FlexCP opens the MPTCP leg, as an aggregation box does (RFC 8684 section 3.1): the end of the TCP leg
//! sends a SYN without MPTCP, and the peer on the MPTCP leg is asked for it. Initial sequence numbers pass unchanged, both ways.
//!
//! What the SYN of the TCP leg offers is all that the peer is offered, with a key's place beside; what the peer answers is all that
//! the TCP leg gets, less the room for a DSS. Each packet that carries the first byte carries both keys until the peer has shown by
//! a data ACK that it has them.

use flexcp_wire::{
    CapableFlags, CapableKeys, Dsn, DssMapping, Ends, MpCapable, MptcpOption, OptionWriter, Ssn,
    TcpFlags, TcpOption, TcpSeq, Timestamps,
};

use super::clock::{ServerClock, SubflowClock};
use super::errand::Errand;
use super::handshake::{DSS_LEN, capable, handshake_options};
use super::invited::Invited;
use super::subflow::Receiving;
use super::{Connection, Context, Phase, Relayed, Shift, Subflow, SubflowState};
use crate::auth::Key;
use crate::cause::Fallback;
use crate::counters::DropReason;
use crate::endpoint::Backend;
use crate::frame::{Frame, Verdict};
use crate::handle::{INITIAL, ServiceId};
use crate::segment::{Options, Outgoing, Segment};
use crate::time::Instant;

/// SYNs of the TCP leg that ask the peer for MPTCP; those behind them go without: something on the path may not let the option
/// through (RFC 8684 section 3.1).
const MPTCP_SYNS: u8 = 2;

/// What an aggregation server answers needs no more, in bytes: a header of Convert and one TLV.
const ROOM_FOR_ANSWER: u16 = 64;

/// What the SYN of the TCP leg offers, to be asked for of one peer after the other.
#[derive(Clone, Copy, Debug)]
struct Offer {
    /// Its clock, as it stands in the latest SYN.
    tsval: Option<u32>,
    sack: bool,
    scale: Option<u8>,
    window: u16,
    flags: TcpFlags,
}

/// What a connection has beside that FlexCP has opened the MPTCP leg of.
#[derive(Clone, Debug)]
pub(crate) struct Asking {
    offer: Offer,
    /// SYNs to the present peer.
    syns: u8,
    /// What an aggregation server is asked for, until the TCP leg is connected by it and knows.
    pub(super) errand: Option<alloc::boxed::Box<Errand>>,
    /// Aggregation servers that were asked, by their places.
    pub(super) tried: u16,
    /// The first byte of the stream to TCP, behind an aggregation server's answer.
    pub(super) stream_start: Option<Dsn>,
    /// The peer has shown that it has the keys.
    confirmed: bool,
    /// It takes joins at the address of the initial subflow (flag C).
    pub(super) joinable: bool,
    /// Where else it takes them.
    pub(super) invited: Invited,
    /// Joins over further uplinks.
    pub(super) joins: super::ask_join::Joins,
}

impl Offer {
    fn of(syn: &Segment) -> Self {
        let options = &syn.options;
        Self {
            tsval: options.timestamps.map(|timestamps| timestamps.val),
            sack: options.sack_permitted,
            scale: options.window_scale,
            window: syn.tcp.window,
            flags: syn.tcp.flags,
        }
    }

    /// The window of a SYN with data. Windows of SYNs are not scaled (RFC 7323 section 2.2), but Linux as a server scales that of a SYN
    /// with data for MPTCP's window, and sends far more than there is room for. So it is told what is right either way; the first
    /// packet behind the handshake has the whole window.
    fn window_beside_data(&self) -> u16 {
        let scaled = self.window >> self.scale.unwrap_or(0).min(14);
        scaled.max(ROOM_FOR_ANSWER).min(self.window)
    }

    /// As they stand in a SYN.
    fn options(&self, mss: u16) -> OptionWriter {
        let options = Options {
            sack_permitted: self.sack,
            window_scale: self.scale,
            ..Options::default()
        };
        let timestamps = self.tsval.map(|val| Timestamps { val, ecr: 0 });
        handshake_options(&options, timestamps, mss)
    }
}

impl Asking {
    /// Whether a fast path may carry the connection: the peer has the keys, and joins have been asked for once.
    pub(super) const fn is_steady(&self) -> bool {
        self.confirmed && self.joins.have_begun() && self.errand.is_none()
    }

    /// Bytes that it has allocated.
    pub(super) fn memory(&self) -> usize {
        size_of::<Self>() + self.errand.as_deref().map_or(0, Errand::memory)
    }

    /// Another peer is asked: nothing is known of it.
    pub(super) fn begin_anew(&mut self, errand: Option<Errand>) {
        self.syns = 0;
        self.errand = errand.map(alloc::boxed::Box::new);
        self.confirmed = false;
        self.joinable = true;
        self.invited = Invited::default();
        self.joins = super::ask_join::Joins::default();
    }
}

impl Connection {
    /// A connection that the TCP leg opens with this SYN, towards the peer over one uplink. `ends`: of packets to the peer.
    pub(crate) fn asking(
        now: Instant,
        (service, key): (ServiceId, Key),
        ends: Ends,
        syn: &Segment,
    ) -> Self {
        let isn = Ssn(syn.tcp.seq);
        let tcp = Backend {
            source: syn.destination(),
            addr: syn.source(),
        };
        let initial = Subflow::towards(now, ends, isn);
        let mut connection = Self::new(now, service, initial, tcp, key);
        connection.asking = Some(alloc::boxed::Box::new(Asking {
            offer: Offer::of(syn),
            syns: 0,
            errand: None,
            tried: 0,
            stream_start: None,
            confirmed: false,
            joinable: true,
            invited: Invited::default(),
            joins: super::ask_join::Joins::default(),
        }));
        connection.learn_opener(syn);
        connection
    }

    /// What the SYN of the TCP leg offers.
    fn learn_opener(&mut self, syn: &Segment) {
        let default_mss = if syn.ip.is_v6() { 1220 } else { 536 };
        let tcp = &mut self.tcp;
        tcp.syn.answered = true;
        tcp.isn_remote = TcpSeq(syn.tcp.seq);
        tcp.mss = syn.options.mss.unwrap_or(default_mss);
        tcp.window.max = u32::from(syn.tcp.window);
        self.offer();
    }

    /// The peer is to be asked for what the TCP leg offers.
    pub(super) fn offer(&mut self) {
        let Some(Offer {
            sack,
            scale,
            window,
            flags,
            ..
        }) = self.asking.as_deref().map(|asking| asking.offer)
        else {
            return;
        };
        let tcp = &mut self.tcp;
        (tcp.sack, tcp.window.scale, tcp.window.offered) = (sack, scale, window);
        self.numbers.to_mptcp = Shift::between(tcp.isn_remote, self.mptcp.key.idsn);
        let ecn = TcpFlags::ECE | TcpFlags::CWR;
        self.subflow_mut(INITIAL).agreed.ecn = flags.contains(ecn);
    }

    /// The SYN of the TCP leg, first or repeated, goes to the peer.
    pub(crate) fn ask_peer(
        &mut self,
        ctx: &mut Context<'_>,
        syn: &Segment,
        frame: &mut Frame<'_>,
    ) -> Verdict {
        self.note_opener_syn(ctx, syn);
        if self.has_errand() {
            self.send_syn_to_peer(ctx);
            return Verdict::Consume;
        }
        let (outgoing, _) = self.syn_to_peer(ctx);
        match outgoing.forward(frame, syn, syn.payload.clone(), u16::MAX) {
            Ok(()) => Verdict::Forward,
            Err(reason) => Verdict::Drop(reason),
        }
    }

    /// The SYN of the TCP leg has come, first or again.
    pub(super) fn note_opener_syn(&mut self, ctx: &Context<'_>, syn: &Segment) {
        self.last_packet = ctx.now;
        self.mptcp.label = syn.ip.flow_label;
        if let Some(asking) = &mut self.asking {
            asking.offer.tsval = syn.options.timestamps.map(|timestamps| timestamps.val);
        }
    }

    /// The SYN that asks the peer for what the TCP leg's does, and the data that goes with it.
    fn syn_to_peer(&mut self, ctx: &Context<'_>) -> (Outgoing, &[u8]) {
        let answered = self.phase == Phase::SynReceived;
        let initial = &mut self.mptcp.subflows[usize::from(INITIAL)];
        let mut outgoing = Outgoing {
            ends: initial.ends(),
            seq: initial.agreed.isn_local.0,
            ack: 0,
            flags: TcpFlags::SYN,
            window: 0,
            urgent: 0,
            keep_ecn: true,
            flow_label: self.mptcp.label,
            options: OptionWriter::default(),
        };
        let Some(asking) = &mut self.asking else {
            return (outgoing, &[]);
        };
        asking.syns = asking.syns.saturating_add(1);
        if asking.syns == 1 {
            initial.sent_syn(ctx.now);
        } else {
            initial.sent_syn_again();
        }
        let offers = asking.syns <= MPTCP_SYNS || answered;
        let offer = asking.offer;
        (outgoing.window, outgoing.flags) = (offer.window, offer.flags);
        outgoing.options = offer.options(self.tcp.mss);
        if !offers {
            return (outgoing, &[]);
        }
        let capable = MptcpOption::Capable(capable(CapableKeys::Syn));
        outgoing.options.push(&TcpOption::Mptcp(capable));
        let errand = asking.errand.as_deref();
        let data = errand.map_or(&[][..], Errand::in_syn);
        if !data.is_empty() {
            outgoing.window = offer.window_beside_data();
        }
        (outgoing, data)
    }

    /// Those that were sent have not reached the peer's listener.
    pub(super) fn forget_syns(&mut self) {
        if let Some(asking) = &mut self.asking {
            asking.syns = 0;
        }
    }

    /// The same as a packet of FlexCP's own.
    pub(super) fn send_syn_to_peer(&mut self, ctx: &mut Context<'_>) {
        let (outgoing, data) = self.syn_to_peer(ctx);
        let data = data.into();
        ctx.send(outgoing.with_payload(data));
    }

    /// The peer's SYN/ACK, first or repeated, as far as it settles anything. `Err`: it is dropped.
    pub(crate) fn learn_answer(
        &mut self,
        ctx: &mut Context<'_>,
        segment: &Segment,
    ) -> Result<(), DropReason> {
        let ack = Ssn(segment.tcp.ack);
        let next = self.subflow(INITIAL).agreed.isn_local.add(1);
        let behind = next.add(self.said_in_syn());
        if ack != next && ack != behind {
            return Err(DropReason::AckOfUnsent);
        }
        if self.phase != Phase::SynSent {
            if Ssn(segment.tcp.seq) != self.subflow(INITIAL).agreed.isn_remote {
                return Err(DropReason::Unexpected);
            }
            self.follow_peer_clock(ctx.now, segment);
            return Ok(());
        }
        if ack != next {
            self.said_with_syn(behind.sub(1));
        }
        self.learn_peer(ctx, segment);
        Ok(())
    }

    /// The peer's SYN/ACK, first or repeated: goes to the TCP leg.
    pub(crate) fn take_answer(
        &mut self,
        ctx: &mut Context<'_>,
        segment: &Segment,
        frame: &mut Frame<'_>,
    ) -> Verdict {
        if let Err(reason) = self.learn_answer(ctx, segment) {
            return Verdict::Drop(reason);
        }
        self.last_packet = ctx.now;
        self.tcp.label = segment.ip.flow_label;
        self.forward_answer(segment, frame)
    }

    /// The peer's SYN/ACK goes to the TCP leg, with what the handshake has settled.
    pub(super) fn forward_answer(&self, segment: &Segment, frame: &mut Frame<'_>) -> Verdict {
        let outgoing = self.answer_to_tcp(segment);
        match outgoing.forward(frame, segment, segment.payload.clone(), u16::MAX) {
            Ok(()) => Verdict::Forward,
            Err(reason) => Verdict::Drop(reason),
        }
    }

    /// The peer's SYN/ACK as the TCP leg gets it.
    fn answer_to_tcp(&self, segment: &Segment) -> Outgoing {
        let room = if self.phase.is_plain() { 0 } else { DSS_LEN };
        let mss = self.subflow(INITIAL).agreed.mss.saturating_sub(room);
        let clock = self.tcp.clock.map(|clock| clock.own_to_server().val);
        // A late copy is no older than what the TCP leg has seen since.
        let timestamps = segment.options.timestamps.map(|told| Timestamps {
            val: clock.unwrap_or(told.val),
            ..told
        });
        Outgoing {
            ends: self.server_ends(),
            seq: segment.tcp.seq,
            ack: segment.tcp.ack,
            flags: segment.tcp.flags,
            window: segment.tcp.window,
            urgent: 0,
            keep_ecn: true,
            flow_label: self.tcp.label,
            options: handshake_options(&segment.options, timestamps, mss),
        }
    }

    /// The clock of the peer's initial subflow, where a packet does not pass as data does.
    pub(super) fn follow_peer_clock(&mut self, now: Instant, segment: &Segment) {
        let initial = &mut self.mptcp.subflows[usize::from(INITIAL)];
        if let (Some(clock), Some(initial), Some(timestamps)) = (
            &mut self.tcp.clock,
            &mut initial.clock,
            segment.options.timestamps,
        ) {
            initial.heard(timestamps, false);
            clock.translate(now, Some(initial), Some(timestamps));
        }
    }

    /// What the peer's SYN/ACK settles.
    fn learn_peer(&mut self, ctx: &mut Context<'_>, segment: &Segment) {
        let sack = self.tcp.sack;
        let subflow = self.subflow_mut(INITIAL);
        subflow.take_sample(ctx.now, Ssn(segment.tcp.ack));
        subflow.path.last_heard = ctx.now;
        subflow.agreed.answered_by(segment);
        subflow.agreed.sack &= sack;
        let offered = self.tcp.window.scale;
        self.tcp.isn_local = TcpSeq(segment.tcp.seq);
        self.tcp.sack = self.subflow(INITIAL).agreed.sack;
        // Scaling counts only when both SYNs offer it (RFC 7323 section 2.2).
        let scales = self.subflow(INITIAL).agreed.scales && offered.is_some();
        let subflow = self.subflow_mut(INITIAL);
        subflow.recv = Receiving::from(subflow.agreed.isn_remote);
        subflow.agreed.scales = scales;
        if !scales {
            subflow.agreed.window_scale = 0;
        }
        let window = u32::from(segment.tcp.window);
        subflow.take_window(Ssn(segment.tcp.ack).add(window));
        self.tcp.window.scale = offered.filter(|_| scales);
        // The window of a SYN is not scaled; that of any packet of FlexCP's own will be.
        self.tcp.window.offered >>= self.tcp.window.scale.unwrap_or(0);
        self.to_mptcp.window = self.to_mptcp.window.max(window);
        self.to_mptcp.edge = self.to_mptcp.acked.add(window.into());
        self.learn_peer_clock(ctx.now, segment);
        self.learn_peer_key(ctx, segment);
    }

    /// Timestamps, when both ends use them.
    fn learn_peer_clock(&mut self, now: Instant, segment: &Segment) {
        let opener = self.asking.as_deref().and_then(|asking| asking.offer.tsval);
        let both = opener.zip(segment.options.timestamps);
        self.tcp.clock = both.map(|(val, peer)| {
            let mut clock = ServerClock::start(now, peer);
            clock.start_server(Timestamps { val, ecr: 0 });
            clock
        });
        self.subflow_mut(INITIAL).clock = both.map(|(_, peer)| SubflowClock::initial(peer.val));
    }

    /// Whether the peer speaks MPTCP, in a way that FlexCP does. Otherwise both ends have plain TCP.
    fn learn_peer_key(&mut self, ctx: &mut Context<'_>, segment: &Segment) {
        let isn = TcpSeq(segment.tcp.seq);
        let Some((sender, flags)) = key_of(segment.options.capable.as_ref()) else {
            self.numbers.to_tcp = Shift::between(isn, Dsn(0));
            self.phase = Phase::Plain(Relayed::default());
            ctx.counters.decide(Fallback::Unanswered);
            return;
        };
        let peer = Key::new(sender);
        self.mptcp.peer_key = Some(peer);
        self.numbers.to_tcp = Shift::between(isn, peer.idsn);
        self.to_tcp.next = peer.idsn.add(1);
        self.to_tcp.acked = self.to_tcp.next;
        self.phase = Phase::SynReceived;
        ctx.counters.mp_capable_synack_rx += 1;
        if let Some(asking) = &mut self.asking {
            asking.joinable = !flags.contains(CapableFlags::NO_JOIN_INITIAL);
        }
    }

    /// The answer of the TCP leg to the SYN/ACK: from here on packets are translated.
    pub(crate) fn take_opener_ack(
        &mut self,
        ctx: &mut Context<'_>,
        segment: &Segment,
        frame: &mut Frame<'_>,
    ) -> Verdict {
        let ahead = segment.tcp.seq.wrapping_sub(self.tcp.isn_remote.add(1).0);
        let acks = segment.has(TcpFlags::ACK)
            && segment.tcp.ack == self.tcp.isn_local.add(1).0
            && ahead <= u32::from(u16::MAX);
        if !acks {
            return Verdict::Drop(DropReason::OutOfWindow);
        }
        self.phase = Phase::Established { orphaned: None };
        let initial = self.subflow_mut(INITIAL);
        initial.state = SubflowState::Established;
        initial.join.proved = true;
        if ahead > 0 || (segment.has(TcpFlags::FIN) && segment.payload.is_empty()) {
            // It has overtaken that answer, and there is no room for the keys beside what it needs. Without them the peer would
            // fall back; it comes again. Its window counts all the same: until a scaled one is known, what the peer sends within that
            // of the SYN may look like an overrun.
            self.take_server_window(self.to_tcp.acked, segment.tcp.window);
            self.send_ack(ctx, INITIAL, TcpFlags::ACK);
            return Verdict::Drop(DropReason::Unexpected);
        }
        self.handle_to_mptcp(ctx, segment, frame)
    }

    /// The peer has the keys, if this packet of its says so: further subflows may be asked for.
    pub(super) fn note_confirmed(&mut self, ctx: &Context<'_>, segment: &Segment) {
        let Some(asking) = &mut self.asking else {
            return;
        };
        let acks = segment.options.dss.as_ref();
        if !asking.confirmed && acks.is_some_and(|dss| dss.data_ack.is_some()) {
            asking.confirmed = true;
            asking.joins.begin(ctx.now);
        }
    }

    /// The keys, in place of the DSS of a packet with the first number: that of a packet without data, or of the first data.
    pub(super) fn keys_to_peer(
        &self,
        outgoing: &Outgoing,
        mapping: Option<&DssMapping>,
        data_fin: bool,
    ) -> Option<MpCapable> {
        let asking = self.asking.as_deref()?;
        let initial = self.subflow(INITIAL);
        if asking.confirmed || data_fin || outgoing.ends != initial.ends() {
            return None;
        }
        let (sender, receiver) = (self.mptcp.key.key, self.mptcp.peer_key?.key);
        let keys = match mapping {
            None if outgoing.seq == initial.agreed.isn_local.add(1).0 => {
                CapableKeys::Ack { sender, receiver }
            }
            Some(mapping) if mapping.ssn == 1 => CapableKeys::AckData {
                sender,
                receiver,
                data_len: mapping.len,
                checksum: None,
            },
            _ => return None,
        };
        Some(capable(keys))
    }

    /// Whether FlexCP has opened the MPTCP leg.
    pub(crate) const fn asks(&self) -> bool {
        self.asking.is_some()
    }

    /// Who has opened the connection, and what it addressed; then the ends towards the other side.
    pub(crate) fn opener_ends(&self) -> [core::net::SocketAddr; 4] {
        let initial = self.subflow(INITIAL);
        let mptcp = [initial.remote.addr(), initial.local.addr()];
        let tcp = [self.tcp.source.addr(), self.tcp.backend.addr()];
        if self.asks() {
            [tcp[1], tcp[0], mptcp[1], mptcp[0]]
        } else {
            [mptcp[0], mptcp[1], tcp[0], tcp[1]]
        }
    }

    /// Whether the end that has opened the connection has left it, as it begins another one from the same port with this SYN.
    pub(crate) fn is_left_by_opener(&self, syn: &Segment) -> bool {
        let same = TcpSeq(syn.tcp.seq) == self.tcp.isn_remote;
        let over = match self.phase {
            Phase::SynSent | Phase::SynReceived | Phase::Closed(_) | Phase::Reset(_) => true,
            // A live one is the client's to ask about (RFC 5961 section 4).
            Phase::Plain(relayed) | Phase::Fallback(relayed) => relayed.reset || self.is_finished(),
            Phase::Established { .. } => false,
        };
        !same && over
    }
}

/// The key of a SYN/ACK that FlexCP can go on with: version 1, HMAC-SHA-256, no checksums.
fn key_of(capable: Option<&MpCapable>) -> Option<(u64, CapableFlags)> {
    let &MpCapable {
        version,
        flags,
        keys,
    } = capable?;
    let CapableKeys::SynAck { sender } = keys else {
        return None;
    };
    let wrong = CapableFlags::CHECKSUM.0 | CapableFlags::EXTENSIBILITY.0;
    let fits = version == 1 && flags.contains(CapableFlags::HMAC_SHA256) && flags.0 & wrong == 0;
    fits.then_some((sender, flags))
}

//! The initial handshake (RFC 8684 section 3.1): the client's SYN, the server's SYN/ACK and the
//! client's third packet, which brings its key. Initial sequence numbers pass unchanged.

use flexcp_wire::{
    CapableFlags, CapableKeys, Dss, MpCapable, MptcpOption, OptionWriter, Ssn, TcpFlags, TcpOption,
    TcpSeq, Timestamps,
};

use super::clock::{ServerClock, SubflowClock};
use super::subflow::SynAgain;
use super::{Connection, Context, Phase, Relayed, Shift, SubflowState};
use crate::auth::{Key, same_key};
use crate::cause::{Fallback, PlainSyn};
use crate::counters::DropReason;
use crate::endpoint::Backend;
use crate::frame::{Frame, Verdict};
use crate::handle::{INITIAL, SubflowIndex};
use crate::hosted::Hosted;
use crate::segment::{Options, Outgoing, Segment};
use crate::time::Instant;

/// What a DSS with 64-bit numbers takes of each segment that goes down, padding included.
pub(crate) const DSS_LEN: u16 = 28;
/// Below it nothing useful is left beside the options.
pub(crate) const MIN_MSS: u16 = 88 + DSS_LEN;
/// Segments to and from one end are never marked longer than this when the other said nothing.
const NO_LIMIT: u16 = u16::MAX;

/// What a client's SYN asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Request {
    /// MPTCP that FlexCP can translate.
    Mptcp,
    /// Plain TCP, or something that has to pass as such.
    Plain(PlainSyn),
}

/// Sorts a SYN. Another version, no HMAC-SHA-256, the extensibility flag (RFC 8684 section 3.1), DSS
/// checksums, data in the SYN, and an MSS that leaves no room pass as plain TCP.
pub(crate) fn request(syn: &Segment) -> Request {
    match asks(syn) {
        Request::Mptcp if !syn.payload.is_empty() => Request::Plain(PlainSyn::Data),
        request => request,
    }
}

/// The same where data in the SYN is FlexCP's.
pub(crate) fn asks(syn: &Segment) -> Request {
    let Some(capable) = &syn.options.capable else {
        return Request::Plain(PlainSyn::NoOption);
    };
    let has = |flag: CapableFlags| capable.flags.0 & flag.0 != 0;
    let cause = if capable.version != 1 {
        PlainSyn::Version
    } else if capable.keys != CapableKeys::Syn {
        PlainSyn::Keys
    } else if has(CapableFlags::CHECKSUM) {
        PlainSyn::Checksum
    } else if !has(CapableFlags::HMAC_SHA256) || has(CapableFlags::EXTENSIBILITY) {
        PlainSyn::Algorithm
    } else if syn.options.mss.is_some_and(|mss| mss < MIN_MSS) {
        PlainSyn::SmallMss
    } else {
        return Request::Mptcp;
    };
    Request::Plain(cause)
}

/// FlexCP's own `MP_CAPABLE`: version 1, no checksums.
pub(super) const fn capable(keys: CapableKeys) -> MpCapable {
    MpCapable {
        version: 1,
        flags: CapableFlags::HMAC_SHA256,
        keys,
    }
}

/// Options of a handshake segment that both legs share, with the timestamps that belong on its leg. What FlexCP
/// does not know stays behind: the other end would believe it agreed on.
pub(super) fn handshake_options(
    options: &Options,
    timestamps: Option<Timestamps>,
    mss: u16,
) -> OptionWriter {
    let mut writer = OptionWriter::default();
    writer.push(&TcpOption::Mss(mss));
    if options.sack_permitted {
        writer.push(&TcpOption::SackPermitted);
    }
    if let Some(timestamps) = timestamps {
        writer.push(&TcpOption::Timestamps(timestamps));
    }
    if let Some(shift) = options.window_scale {
        writer.push(&TcpOption::WindowScale(shift));
    }
    writer
}

impl Connection {
    /// The client's answer to the SYN/ACK, or what it sends instead.
    pub(crate) fn handle_answer(
        &mut self,
        ctx: &mut Context<'_>,
        index: SubflowIndex,
        segment: &Segment,
        frame: &mut Frame<'_>,
    ) -> Verdict {
        let without;
        let segment = match self.syn_data_again(segment) {
            Some(known) => {
                self.subflow_mut(INITIAL).take_syn_data();
                without = segment.without_front(known);
                &without
            }
            None => segment,
        };
        if self.take_keys(ctx, segment) {
            let verdict = self.handle_to_tcp(ctx, index, segment, frame);
            return self.begin_front(ctx, verdict, segment, frame);
        }
        if segment.options.mptcp && !self.brings_no_keys(segment) {
            // Data that overtook the packet with the keys comes again. Who knows FlexCP's number is there, and waited for.
            if segment.tcp.ack == self.subflow(INITIAL).agreed.isn_local.add(1).0 {
                self.last_packet = ctx.now;
            }
            return Verdict::Drop(DropReason::NotAuthenticated);
        }
        if !self.answers_handshake(segment) {
            return Verdict::Drop(DropReason::OutOfWindow);
        }
        self.phase = Phase::Fallback(Relayed::default());
        ctx.counters.decide(Fallback::Handshake);
        self.note_stripped(ctx, INITIAL);
        self.relay_to_tcp(ctx, segment, frame)
    }

    /// The client's SYN, first or repeated: goes to the server with the MSS lowered by what a DSS will
    /// take.
    pub(crate) fn forward_syn(
        &mut self,
        ctx: &mut Context<'_>,
        segment: &Segment,
        frame: &mut Frame<'_>,
        end_to_end: bool,
    ) -> Verdict {
        self.last_packet = ctx.now;
        self.tcp.syn.offered_end_to_end = end_to_end;
        self.remember_syn(ctx.now, segment);
        let mut outgoing = self.syn_to_server();
        outgoing.window = segment.tcp.window;
        let payload = if self.front.is_some() || self.hosted.is_some() {
            // Its data is FlexCP's.
            segment.payload.end..segment.payload.end
        } else {
            segment.payload.clone()
        };
        match outgoing.forward(frame, segment, payload, NO_LIMIT) {
            Ok(()) => Verdict::Forward,
            Err(reason) => Verdict::Drop(reason),
        }
    }

    /// The client sends its SYN again. Without MPTCP there are no keys to wait for.
    pub(crate) fn note_syn_again(&mut self, segment: &Segment) {
        let answered = self.tcp.syn.answered;
        let plain = self.phase.is_plain();
        let initial = self.subflow_mut(INITIAL);
        if plain {
            initial.take_syn_data();
        } else if segment.payload.is_empty() {
            initial.note_syn_again(answered);
        }
    }

    /// The client sends the data of its SYN once more, with its keys and without a mapping, as Linux does: so many bytes, which have no
    /// data number.
    fn syn_data_again(&self, segment: &Segment) -> Option<usize> {
        let agreed = &self.subflow(INITIAL).agreed;
        let SynAgain::Unanswered(len) = agreed.syn_again else {
            return None;
        };
        let keys = segment.options.capable.as_ref()?.keys;
        let unmapped = matches!(keys, CapableKeys::Ack { .. }) && segment.options.dss.is_none();
        let first = segment.tcp.seq == agreed.isn_remote.add(1).0;
        let again = unmapped && first && segment.payload.len() == usize::from(len);
        again.then_some(segment.payload.len())
    }

    /// Notes what of the SYN may change when it is sent again.
    pub(crate) fn remember_syn(&mut self, now: Instant, segment: &Segment) {
        self.tcp.label = segment.ip.flow_label;
        if self.tcp.syn.answered {
            // What the server has settled stays; only the client's clock has gone on.
            if let Some(ts) = segment.options.timestamps {
                let subflow = &mut self.mptcp.subflows[usize::from(INITIAL)];
                if let (Some(server), Some(clock)) = (&mut self.tcp.clock, &mut subflow.clock) {
                    server.restart(now, ts);
                    clock.heard(ts, false);
                }
            }
            return;
        }
        // One that was held up on the way may come behind a later one.
        let before = self.tcp.clock;
        let clock = segment.options.timestamps.map(|ts| {
            let mut clock = before.unwrap_or_else(|| ServerClock::start(now, ts));
            clock.restart(now, ts);
            clock
        });
        self.tcp.clock = clock;
        let subflow = self.subflow_mut(INITIAL);
        subflow.clock = clock.map(|clock| SubflowClock::initial(clock.sent));
        subflow.agreed.ecn = segment.has(TcpFlags::ECE) && segment.has(TcpFlags::CWR);
    }

    /// The client's SYN as the server gets it, from what FlexCP remembers of it.
    fn syn_to_server(&self) -> Outgoing {
        let subflow = self.subflow(INITIAL);
        let room = if self.phase.is_plain() { 0 } else { DSS_LEN };
        let ecn = if subflow.agreed.ecn {
            TcpFlags::ECE | TcpFlags::CWR
        } else {
            TcpFlags::default()
        };
        let options = Options {
            sack_permitted: subflow.agreed.sack,
            window_scale: Some(subflow.agreed.window_scale).filter(|_| subflow.agreed.scales),
            ..Options::default()
        };
        let timestamps = self.tcp.clock.map(|clock| clock.own_to_server());
        let mut writer = handshake_options(&options, timestamps, subflow.agreed.mss - room);
        if self.tcp.syn.offered_end_to_end {
            writer.push(&TcpOption::Mptcp(MptcpOption::Capable(capable(
                CapableKeys::Syn,
            ))));
        }
        Outgoing {
            ends: self.server_ends(),
            seq: self.tcp.isn_local.0,
            ack: 0,
            flags: TcpFlags::SYN | ecn,
            window: u16::MAX,
            urgent: 0,
            keep_ecn: true,
            flow_label: self.tcp.label,
            options: writer,
        }
    }

    /// The SYN as a packet of FlexCP's own.
    pub(crate) fn send_syn(&self, ctx: &mut Context<'_>, window: u16) {
        let mut outgoing = self.syn_to_server();
        outgoing.window = window;
        ctx.send(outgoing.own());
    }

    /// The same SYN to another back end.
    pub(crate) fn try_backend(&mut self, ctx: &mut Context<'_>, backend: Backend) {
        self.tcp.source = backend.source.into();
        self.tcp.backend = backend.addr.into();
        self.tcp.syn.tried = self.tcp.syn.tried.saturating_add(1);
        ctx.counters.backend_skipped += 1;
        let outgoing = self.syn_to_server();
        ctx.send(outgoing.own());
    }

    /// The server's SYN/ACK, first or repeated: goes to the client with FlexCP's key.
    pub(crate) fn handle_syn_ack(
        &mut self,
        ctx: &mut Context<'_>,
        segment: &Segment,
        frame: &mut Frame<'_>,
    ) -> Verdict {
        if let Err(reason) = self.take_syn_ack(ctx, segment, frame) {
            return Verdict::Drop(reason);
        }
        if self.phase == Phase::SynSent {
            self.phase = Phase::SynReceived;
        }
        let mut outgoing = self.syn_ack_to_client(segment);
        let keys = CapableKeys::SynAck {
            sender: self.mptcp.key.key,
        };
        let capable = MptcpOption::Capable(capable(keys));
        outgoing.options.push(&TcpOption::Mptcp(capable));
        self.forward_syn_ack(ctx.now, segment, frame, outgoing)
    }

    /// Takes note of the server's SYN/ACK, first or repeated.
    pub(super) fn take_syn_ack(
        &mut self,
        ctx: &Context<'_>,
        segment: &Segment,
        frame: &Frame<'_>,
    ) -> Result<(), DropReason> {
        if TcpSeq(segment.tcp.ack) != self.tcp.isn_local.add(1) {
            return Err(DropReason::AckOfUnsent);
        }
        if !self.tcp.syn.answered {
            self.compose_answer(segment.option_bytes(frame));
            self.learn_server(segment);
            self.subflow_mut(INITIAL).sent_syn(ctx.now);
            self.last_packet = ctx.now;
        } else if TcpSeq(segment.tcp.seq) != self.tcp.isn_remote {
            return Err(DropReason::Unexpected);
        } else {
            self.subflow_mut(INITIAL).sent_syn_again();
        }
        self.mptcp.label = segment.ip.flow_label;
        if let (Some(clock), Some(ts)) = (&mut self.tcp.clock, segment.options.timestamps) {
            clock.heard(ts.val);
        }
        Ok(())
    }

    /// The same for the client, as plain TCP.
    pub(super) fn syn_ack_to_client(&self, segment: &Segment) -> Outgoing {
        let mss = segment.options.mss.unwrap_or(self.tcp.mss);
        let timestamps = self.syn_ack_timestamps(segment);
        let subflow = self.subflow(INITIAL);
        Outgoing {
            ends: subflow.ends(),
            seq: subflow.agreed.isn_local.0,
            ack: subflow.agreed.isn_remote.add(1).0,
            flags: segment.tcp.flags,
            window: self.window_behind_early(segment.tcp.window),
            urgent: 0,
            keep_ecn: true,
            flow_label: self.mptcp.label,
            options: handshake_options(&segment.options, timestamps, mss),
        }
    }

    /// Timestamps of the server's SYN/ACK on the initial subflow. A repeated one may come when other subflows have
    /// carried data: it echoes their clock then, and is older than what the client has heard (RFC 7323 section 5.3).
    fn syn_ack_timestamps(&self, segment: &Segment) -> Option<Timestamps> {
        let clock = self.subflow(INITIAL).clock.as_ref()?;
        let server = self.tcp.clock.as_ref()?;
        let timestamps = segment.options.timestamps?;
        Some(clock.answer(server, timestamps.ecr))
    }

    /// What the server's SYN/ACK settles for the connection.
    fn learn_server(&mut self, segment: &Segment) {
        let options = &segment.options;
        let default_mss = if segment.ip.is_v6() { 1220 } else { 536 };
        self.tcp.syn.answered = true;
        self.tcp.isn_remote = TcpSeq(segment.tcp.seq);
        // The client's first byte is that of an answer that the server has not sent.
        let first = self.tcp.isn_remote.sub(self.answer_len());
        self.numbers.to_mptcp = Shift::between(first, self.mptcp.key.idsn);
        self.tcp.mss = options.mss.unwrap_or(default_mss);
        self.tcp.sack = options.sack_permitted;
        let window = self.window_behind_early(segment.tcp.window);
        // Scaling counts only when both SYNs offer it (RFC 7323 section 2.2).
        let subflow = &mut self.mptcp.subflows[usize::from(INITIAL)];
        self.tcp.window.scale = options.window_scale.filter(|_| subflow.agreed.scales);
        // The window of a SYN is not scaled; that of any packet of FlexCP's own will be.
        self.tcp.window.offered = window >> self.tcp.window.scale.unwrap_or(0);
        self.tcp.window.max = u32::from(segment.tcp.window);
        if options.window_scale.is_none() {
            subflow.agreed.window_scale = 0;
        }
        subflow.agreed.sack &= options.sack_permitted;
        subflow.agreed.ecn &= segment.has(TcpFlags::ECE);
        subflow.agreed.isn_local = Ssn(first.0);
        subflow.send.next = subflow.agreed.isn_local.add(1);
        subflow.send.una = subflow.send.next;
        match (&mut self.tcp.clock, options.timestamps) {
            (Some(clock), Some(timestamps)) => clock.start_server(timestamps),
            _ => {
                self.tcp.clock = None;
                subflow.clock = None;
            }
        }
    }

    /// A server that has answered with this SYN/ACK takes over from a responder, whose numbers, clock and windows go on
    /// ([`Seam`](crate::hosted::Seam)).
    pub(crate) fn take_server(&mut self, backend: Backend, answer: &Segment) {
        let default_mss = if answer.ip.is_v6() { 1220 } else { 536 };
        self.tcp.source = backend.source.into();
        self.tcp.backend = backend.addr.into();
        self.tcp.mss = answer.options.mss.unwrap_or(default_mss);
        // As the responder has agreed to it, the client may.
        self.tcp.sack &= answer.options.sack_permitted;
        let next = self.hosted.as_deref().and_then(Hosted::next);
        let first = next.map(|next| self.dsn_to_tcp(next));
        if let (Some(hosted), Some(first)) = (self.hosted.as_deref_mut(), first) {
            hosted.set_stream_start(first);
        }
        self.forget_rule();
    }

    /// Whether a packet without MPTCP options may be the client's answer to the SYN/ACK: its numbers are
    /// those of the handshake, which nobody off the path knows.
    pub(crate) fn answers_handshake(&self, segment: &Segment) -> bool {
        let ahead = segment
            .tcp
            .seq
            .wrapping_sub(self.subflow(INITIAL).agreed.isn_remote.add(1).0);
        segment.has(TcpFlags::ACK)
            && segment.tcp.ack == self.subflow(INITIAL).agreed.isn_local.add(1).0
            && ahead <= u32::from(u16::MAX)
    }

    /// Whether the client, whose SYN crossed the answer to the first one, has no keys to bring any more: its data ACK, and nothing
    /// else, says that it has FlexCP's. It falls back with the first data that is not mapped (RFC 8684 section 3.7). One that says
    /// more has sent its keys before.
    fn brings_no_keys(&self, segment: &Segment) -> bool {
        let subflow = self.subflow(INITIAL);
        let options = &segment.options;
        let acks_alone = |dss: &Dss| dss.mapping.is_none() && !dss.data_fin;
        subflow.agreed.syn_again == SynAgain::Answered
            && segment.tcp.seq == subflow.agreed.isn_remote.add(1).0
            && options.dss.as_ref().is_some_and(acks_alone)
            && options.capable.is_none()
            && options.prio.is_none()
    }

    /// Takes the client's keys from its third packet, or from its first data when that was lost or came
    /// late. `true`: the connection is established.
    pub(crate) fn take_keys(&mut self, ctx: &mut Context<'_>, segment: &Segment) -> bool {
        let Some(capable) = &segment.options.capable else {
            return false;
        };
        let (CapableKeys::Ack { sender, receiver }
        | CapableKeys::AckData {
            sender, receiver, ..
        }) = capable.keys
        else {
            return false;
        };
        if capable.version != 1 || !same_key(receiver, self.mptcp.key.key) {
            return false;
        }
        let remote = Key::new(sender);
        self.mptcp.peer_key = Some(remote);
        // Its first byte is the one behind the SYN, and behind what that carried.
        let isn = self.subflow(INITIAL).agreed.isn_remote;
        self.numbers.to_tcp = Shift::between(TcpSeq(isn.0), remote.idsn);
        self.to_tcp.next = remote.idsn.add(1);
        self.to_tcp.acked = self.to_tcp.next;
        self.phase = Phase::Established { orphaned: None };
        let initial = self.subflow_mut(INITIAL);
        initial.state = SubflowState::Established;
        initial.join.proved = true;
        ctx.counters.mp_capable_ack_rx += 1;
        true
    }
}

//! The initial handshake (RFC 8684 section 3.1): the client's SYN, the server's SYN/ACK and the
//! client's third packet, which brings its key. Initial sequence numbers pass unchanged.

use core::net::SocketAddr;

use flexcp_wire::{
    CapableFlags, CapableKeys, MpCapable, MptcpOption, OptionWriter, Ssn, TcpFlags, TcpOption,
    TcpSeq, Timestamps,
};

use super::clock::{ServerClock, SubflowClock};
use super::{Connection, Context, INITIAL, Phase, SubflowIndex, SubflowState};
use crate::auth::{Key, same_key};
use crate::cause::{Fallback, PlainSyn};
use crate::counters::DropReason;
use crate::frame::{Frame, Verdict};
use crate::segment::{Options, Outgoing, Segment};
use crate::time::Instant;

/// What a DSS with 64-bit numbers takes of each segment that goes down, padding included.
pub(crate) const DSS_LEN: u16 = 28;
/// Below it nothing useful is left beside the options.
pub(crate) const MIN_MSS: u16 = 88 + DSS_LEN;
/// Segments to and from one end are never marked longer than this when the other said nothing.
const NO_LIMIT: u16 = u16::MAX;

/// A server to connect to, and the address that it will see.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Backend {
    pub(crate) source: SocketAddr,
    pub(crate) addr: SocketAddr,
}

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
    } else if !syn.payload.is_empty() {
        PlainSyn::Data
    } else if syn.options.mss.is_some_and(|mss| mss < MIN_MSS) {
        PlainSyn::SmallMss
    } else {
        return Request::Mptcp;
    };
    Request::Plain(cause)
}

/// FlexCP's own `MP_CAPABLE`: version 1, no checksums.
const fn capable(keys: CapableKeys) -> MpCapable {
    MpCapable {
        version: 1,
        flags: CapableFlags::HMAC_SHA256,
        keys,
    }
}

/// Options of a handshake segment that both legs share, with the timestamps that belong on its leg. What FlexCP
/// does not know stays behind: the other end would believe it agreed on.
fn handshake_options(options: &Options, timestamps: Option<Timestamps>, mss: u16) -> OptionWriter {
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
        if self.take_keys(ctx, segment) {
            return self.handle_up(ctx, index, segment, frame);
        }
        if segment.options.mptcp {
            // Data that overtook the packet with the keys comes again.
            return Verdict::Drop(DropReason::NotAuthenticated);
        }
        if !self.answers_handshake(segment) {
            return Verdict::Drop(DropReason::OutOfWindow);
        }
        self.phase = Phase::Fallback;
        ctx.counters.decide(Fallback::Handshake);
        self.relay_up(ctx, segment, frame)
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
        self.offered_end_to_end = end_to_end;
        self.remember_syn(ctx.now, segment);
        let mut outgoing = self.syn_to_server();
        outgoing.window = segment.tcp.window;
        match outgoing.forward(frame, segment, segment.payload.clone(), NO_LIMIT) {
            Ok(()) => Verdict::Forward,
            Err(reason) => Verdict::Drop(reason),
        }
    }

    /// Notes what of the SYN may change when it is sent again.
    pub(crate) fn remember_syn(&mut self, now: Instant, segment: &Segment) {
        self.label_up = segment.ip.flow_label;
        if self.server.answered {
            // What the server has settled stays; only the client's clock has gone on.
            if let Some(ts) = segment.options.timestamps {
                let subflow = &mut self.subflows[usize::from(INITIAL)];
                if let (Some(server), Some(clock)) = (&mut self.server.clock, &mut subflow.clock) {
                    server.restart(now, ts);
                    clock.heard(ts, false);
                }
            }
            return;
        }
        // One that was held up on the way may come behind a later one.
        let before = self.server.clock;
        let clock = segment.options.timestamps.map(|ts| {
            let mut clock = before.unwrap_or_else(|| ServerClock::start(now, ts));
            clock.restart(now, ts);
            clock
        });
        self.server.clock = clock;
        let subflow = self.subflow_mut(INITIAL);
        subflow.clock = clock.map(|clock| SubflowClock::initial(clock.sent));
        subflow.ecn = segment.has(TcpFlags::ECE) && segment.has(TcpFlags::CWR);
    }

    /// The client's SYN as the server gets it, from what FlexCP remembers of it.
    fn syn_to_server(&self) -> Outgoing {
        let subflow = self.subflow(INITIAL);
        let room = if self.phase == Phase::Plain {
            0
        } else {
            DSS_LEN
        };
        let ecn = if subflow.ecn {
            TcpFlags::ECE | TcpFlags::CWR
        } else {
            TcpFlags::default()
        };
        let options = Options {
            sack_permitted: subflow.sack,
            window_scale: Some(subflow.window_scale).filter(|_| subflow.scales),
            ..Options::default()
        };
        let timestamps = self.server.clock.map(|clock| clock.own_to_server());
        let mut writer = handshake_options(&options, timestamps, subflow.mss - room);
        if self.offered_end_to_end {
            writer.push(&TcpOption::Mptcp(MptcpOption::Capable(capable(
                CapableKeys::Syn,
            ))));
        }
        Outgoing {
            ends: self.server_ends(),
            seq: self.isn_client.0,
            ack: 0,
            flags: TcpFlags::SYN | ecn,
            window: u16::MAX,
            urgent: 0,
            keep_ecn: true,
            flow_label: self.label_up,
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
        self.server.source = backend.source.into();
        self.server.backend = backend.addr.into();
        self.server.tried = self.server.tried.saturating_add(1);
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
        if TcpSeq(segment.tcp.ack) != self.isn_client.add(1) {
            return Verdict::Drop(DropReason::AckOfUnsent);
        }
        if self.phase == Phase::SynSent {
            self.learn_server(segment);
            self.phase = Phase::SynReceived;
        } else if TcpSeq(segment.tcp.seq) != self.server.isn {
            return Verdict::Drop(DropReason::Unexpected);
        }
        self.last_packet = ctx.now;
        self.label_down = segment.ip.flow_label;
        if let (Some(clock), Some(ts)) = (&mut self.server.clock, segment.options.timestamps) {
            clock.heard(ts.val);
        }
        let mss = segment.options.mss.unwrap_or(self.server.mss);
        let timestamps = self.syn_ack_timestamps(segment);
        let mut options = handshake_options(&segment.options, timestamps, mss);
        let keys = CapableKeys::SynAck {
            sender: self.local.key,
        };
        options.push(&TcpOption::Mptcp(MptcpOption::Capable(capable(keys))));
        let outgoing = Outgoing {
            ends: self.subflow(INITIAL).ends(),
            seq: segment.tcp.seq,
            ack: segment.tcp.ack,
            flags: segment.tcp.flags,
            window: segment.tcp.window,
            urgent: 0,
            keep_ecn: true,
            flow_label: self.label_down,
            options,
        };
        match outgoing.forward(frame, segment, segment.payload.clone(), NO_LIMIT) {
            Ok(()) => Verdict::Forward,
            Err(reason) => Verdict::Drop(reason),
        }
    }

    /// Timestamps of the server's SYN/ACK on the initial subflow. A repeated one may come when other subflows have
    /// carried data: it echoes their clock then, and is older than what the client has heard (RFC 7323 section 5.3).
    fn syn_ack_timestamps(&self, segment: &Segment) -> Option<Timestamps> {
        let clock = self.subflow(INITIAL).clock.as_ref()?;
        let server = self.server.clock.as_ref()?;
        let timestamps = segment.options.timestamps?;
        Some(clock.answer(server, timestamps.ecr))
    }

    /// What the server's SYN/ACK settles for the connection.
    fn learn_server(&mut self, segment: &Segment) {
        let options = &segment.options;
        let default_mss = if segment.ip.is_v6() { 1220 } else { 536 };
        self.server.answered = true;
        self.server.isn = TcpSeq(segment.tcp.seq);
        self.server.mss = options.mss.unwrap_or(default_mss);
        self.server.sack = options.sack_permitted;
        // Scaling counts only when both SYNs offer it (RFC 7323 section 2.2).
        let subflow = &mut self.subflows[usize::from(INITIAL)];
        self.server.window_scale = options.window_scale.filter(|_| subflow.scales);
        // The window of a SYN is not scaled; that of any packet of FlexCP's own will be.
        self.server.window = segment.tcp.window >> self.server.window_scale.unwrap_or(0);
        self.server.window_max = u32::from(segment.tcp.window);
        if options.window_scale.is_none() {
            subflow.window_scale = 0;
        }
        subflow.sack &= options.sack_permitted;
        subflow.ecn &= segment.has(TcpFlags::ECE);
        subflow.isn_local = Ssn(segment.tcp.seq);
        subflow.snd_next = subflow.isn_local.add(1);
        subflow.snd_una = subflow.snd_next;
        match (&mut self.server.clock, options.timestamps) {
            (Some(clock), Some(timestamps)) => clock.start_server(timestamps),
            _ => {
                self.server.clock = None;
                subflow.clock = None;
            }
        }
    }

    /// Whether a packet without MPTCP options may be the client's answer to the SYN/ACK: its numbers are
    /// those of the handshake, which nobody off the path knows.
    pub(crate) fn answers_handshake(&self, segment: &Segment) -> bool {
        let ahead = segment.tcp.seq.wrapping_sub(self.isn_client.add(1).0);
        segment.has(TcpFlags::ACK)
            && segment.tcp.ack == self.server.isn.add(1).0
            && ahead <= u32::from(u16::MAX)
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
        if capable.version != 1 || !same_key(receiver, self.local.key) {
            return false;
        }
        let remote = Key::new(sender);
        self.remote = Some(remote);
        self.up_next = remote.idsn.add(1);
        self.up_acked = self.up_next;
        self.phase = Phase::Established;
        let initial = self.subflow_mut(INITIAL);
        initial.state = SubflowState::Established;
        initial.proved = true;
        ctx.counters.mp_capable_ack_rx += 1;
        true
    }
}

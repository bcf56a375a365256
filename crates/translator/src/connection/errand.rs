//! Connections of a box that an aggregation server connects on (T-MPTCP): before their stream the server is told whom the TCP leg
//! has addressed, by Convert with the SYN (RFC 8803) or by SOCKS5 behind the handshake (RFC 1928), and its answer is waited for
//! before the TCP leg is answered. What is refused is refused. A converter's SYN/ACK may say beforehand what its answer will
//! (`promise`).
//!
//! The server gets `L` bytes that the TCP leg has not sent, and sends `D` bytes that the TCP leg does not get. The initial number
//! towards the server is that of the TCP leg less `L`, and the TCP leg is told that of the server plus `D`: behind both each byte has
//! one number, on the initial subflow and the TCP leg.

use alloc::boxed::Box;
use core::time::Duration;

use flexcp_preamble::{Heard, Identity, Protocol, Refusal, Requester, request};
use flexcp_wire::{DataNumber, Dsn, DssMapping, Ends, OptionWriter, Ssn, TcpFlags, TcpSeq};

use super::handshake::{DSS_LEN, handshake_options};
use super::{Connection, Context, Phase, Relayed, Shift, Subflow, SubflowState, ToMptcp, ToTcp};
use crate::cause::Rst;
use crate::config::Approach;
use crate::counters::DropReason;
use crate::frame::{Frame, Transmit, Verdict};
use crate::handle::INITIAL;
use crate::segment::{Options, Outgoing, Segment};
use crate::time::Instant;

/// Until what was said is said again; twice as long each time.
const PAUSE: Duration = Duration::from_millis(300);
/// Doublings at most.
const MAX_DOUBLINGS: u8 = 6;

/// What an aggregation server is asked for, and what has come of it.
#[derive(Clone, Debug)]
pub(super) struct Errand {
    protocol: Protocol,
    /// What the server takes with the SYN says that it has connected on.
    pub(super) early: bool,
    /// All that is said before the stream.
    said: Box<[u8]>,
    pub(super) requester: Requester,
    pub(super) stage: Stage,
    /// Bytes of the answer.
    pub(super) heard: u32,
    /// The server does without MPTCP.
    pub(super) plain: bool,
    /// How often it was said behind the handshake, and when it is again.
    copies: u8,
    due: Option<Instant>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    /// It goes with the SYN (Convert), or behind the handshake.
    Asked,
    /// The server has taken it with the SYN: none of it has a data number.
    SaidWithSyn,
    /// The server has connected on, as its SYN/ACK says: the TCP leg is answered. Its own answer is yet to come.
    Promised {
        /// The TCP leg has shown that it knows.
        there: bool,
    },
    /// The server has connected on, and the TCP leg has not shown that it knows.
    Granted,
}

/// What a packet of an aggregation server's comes to.
#[derive(Debug)]
pub(crate) enum News {
    /// Nothing yet.
    None(Verdict),
    /// It has connected on, as its SYN/ACK says, and its answer will.
    Promised,
    /// It has connected on; so many bytes of the packet's payload are not the stream's.
    Granted(usize),
    /// The server that the TCP leg has addressed is not there.
    Refused(Refusal),
    /// The aggregation server will not, or cannot, connect on.
    Declined {
        /// Whatever it is asked for, it seems.
        altogether: bool,
    },
}

impl News {
    /// What an answer comes to, of which no byte was counted; `None`: it is not complete.
    pub(super) fn of(heard: Heard) -> Option<Self> {
        Some(match heard {
            Heard::More => return None,
            Heard::Granted => Self::Granted(0),
            Heard::Refused(why) if why.is_of_server() => Self::Refused(why),
            Heard::Refused(why) => Self::Declined {
                altogether: matches!(why, Refusal::ClientLimit | Refusal::NoRoom(_)),
            },
            Heard::Failed(_) => Self::Declined { altogether: true },
        })
    }
}

impl Errand {
    /// To a server that is asked so, on behalf of a connection with `to`.
    pub(super) fn new(approach: &Approach, to: core::net::SocketAddr) -> Self {
        let identity = approach.user.as_ref().map(|user| Identity {
            user: &user.name,
            password: &user.password,
        });
        let identity = identity.filter(|_| approach.protocol == Protocol::Socks5);
        Self {
            protocol: approach.protocol,
            early: approach.early && approach.protocol == Protocol::Convert,
            said: request(approach.protocol, to, identity),
            requester: Requester::new(approach.protocol, to, identity.is_some()),
            stage: Stage::Asked,
            heard: 0,
            plain: false,
            copies: 0,
            due: None,
        }
    }

    /// What goes with the SYN.
    pub(super) fn in_syn(&self) -> &[u8] {
        match self.protocol {
            Protocol::Convert if self.stage == Stage::Asked => &self.said,
            _ => &[],
        }
    }

    #[allow(
        clippy::cast_possible_truncation,
        reason = "a message is at most 1,020 bytes long"
    )]
    const fn len(&self) -> u32 {
        self.said.len() as u32
    }

    /// Bytes that it has allocated.
    pub(super) fn memory(&self) -> usize {
        size_of::<Self>() + self.said.len() + self.requester.memory()
    }
}

impl Connection {
    pub(super) fn errand(&self) -> Option<&Errand> {
        self.asking.as_deref()?.errand.as_deref()
    }

    pub(super) fn errand_mut(&mut self) -> Option<&mut Errand> {
        self.asking.as_deref_mut()?.errand.as_deref_mut()
    }

    /// Whether an aggregation server is on the way to connect on, or the TCP leg has yet to show that it knows.
    pub(crate) fn has_errand(&self) -> bool {
        self.errand().is_some()
    }

    /// Whether the server has connected on, and the TCP leg has yet to show that it knows.
    pub(crate) fn has_granted_errand(&self) -> bool {
        let knows_not = |errand: &Errand| {
            matches!(
                errand.stage,
                Stage::Granted | Stage::Promised { there: false }
            )
        };
        self.errand().is_some_and(knows_not)
    }

    /// When what was said is said again.
    pub(super) fn errand_due(&self) -> Option<Instant> {
        let errand = self.errand().filter(|_| self.phase == Phase::SynReceived)?;
        errand.due
    }

    /// Whom the connection goes by: the aggregation server, or the server itself.
    pub(crate) fn asked_server(&self) -> core::net::SocketAddr {
        if self.asks() {
            self.subflow(INITIAL).remote.addr()
        } else {
            self.tcp.backend.addr()
        }
    }

    /// Where the SYN to it came from, and its number.
    pub(crate) fn asked_from(&self) -> (core::net::SocketAddr, TcpSeq) {
        if self.asks() {
            let initial = self.subflow(INITIAL);
            (initial.local.addr(), TcpSeq(initial.agreed.isn_local.0))
        } else {
            (self.tcp.source.addr(), self.tcp.isn_local)
        }
    }

    /// Aggregation servers that were asked already, a bit for each place.
    pub(crate) fn tried_servers(&self) -> u16 {
        self.asking.as_deref().map_or(0, |asking| asking.tried)
    }

    /// From here on the connection goes by another peer over `ends`: the aggregation server at `place`, asked by `approach`, or the
    /// server itself. The peer before it, if it has answered, is told that nothing comes of it. Its SYN is the caller's to send.
    pub(crate) fn turn_to_peer(
        &mut self,
        ctx: &mut Context<'_>,
        ends: Ends,
        by: Option<(usize, &Approach)>,
    ) {
        self.leave_peer(ctx);
        self.set_peer(ctx.now, ends, by);
    }

    /// The same for a connection that has no peer yet.
    pub(crate) fn set_peer(&mut self, now: Instant, ends: Ends, by: Option<(usize, &Approach)>) {
        let errand = by.map(|(_, approach)| Errand::new(approach, self.tcp.source.addr()));
        let said = errand.as_ref().map_or(0, Errand::len);
        let isn = Ssn(self.tcp.isn_remote.sub(said).0);
        self.mptcp.subflows[usize::from(INITIAL)] = Subflow::towards(now, ends, isn);
        self.mptcp.peer_key = None;
        self.phase = Phase::SynSent;
        self.to_tcp = ToTcp::default();
        self.to_mptcp = ToMptcp::new(self.mptcp.key.idsn);
        self.numbers.identity = true;
        if let Some(asking) = &mut self.asking {
            asking.begin_anew(errand);
            asking.tried |= by.map_or(0, |(place, _)| 1 << place);
        }
        self.offer();
    }

    /// Asks the peer with a SYN of FlexCP's own.
    pub(crate) fn ask_peer_anew(&mut self, ctx: &mut Context<'_>) {
        self.send_syn_to_peer(ctx);
    }

    /// Bytes that a SYN/ACK may take with the SYN.
    pub(super) fn said_in_syn(&self) -> u32 {
        let errand = self.errand().filter(|_| self.phase == Phase::SynSent);
        errand.map_or(0, |errand| {
            if errand.in_syn().is_empty() {
                0
            } else {
                errand.len()
            }
        })
    }

    /// Whether a segment ACKs the SYN and all that went with it.
    pub(crate) fn is_behind_syn(&self, segment: &Segment) -> bool {
        let next = self.subflow(INITIAL).agreed.isn_local.add(1);
        segment.has(TcpFlags::ACK) && Ssn(segment.tcp.ack) == next.add(self.said_in_syn())
    }

    /// The peer has taken what went with the SYN, up to the number `last`: what follows counts from there.
    pub(super) fn said_with_syn(&mut self, last: Ssn) {
        let initial = self.subflow_mut(INITIAL);
        initial.agreed.isn_local = last;
        initial.send.next = last.add(1);
        initial.send.una = last.add(1);
        initial.path.move_timed_syn(last.add(1));
        if let Some(errand) = self.errand_mut() {
            errand.stage = Stage::SaidWithSyn;
        }
    }

    /// The SYN/ACK of an aggregation server: it is told what it has not taken, and what it says is heard.
    pub(crate) fn take_server_answer(
        &mut self,
        ctx: &mut Context<'_>,
        segment: &Segment,
        frame: &Frame<'_>,
    ) -> News {
        let first = self.phase == Phase::SynSent;
        if let Err(reason) = self.learn_answer(ctx, segment) {
            return News::None(Verdict::Drop(reason));
        }
        self.last_packet = ctx.now;
        self.tcp.label = segment.ip.flow_label;
        if first {
            self.begin_errand();
        }
        if self.errand().is_some_and(Errand::is_promised) && segment.payload.is_empty() {
            return News::Promised;
        }
        self.say(ctx);
        if segment.payload.is_empty() {
            return News::None(Verdict::Consume);
        }
        // The number behind the SYN is the first of the data.
        self.hear_bytes(ctx, (Ssn(segment.tcp.seq).add(1), 0), segment, frame)
    }

    /// The server has answered the SYN: numbers up are settled.
    fn begin_errand(&mut self) {
        let plain = self.phase.is_plain();
        let initial = self.subflow(INITIAL);
        let isn = TcpSeq(initial.agreed.isn_local.0);
        self.numbers.to_mptcp = Shift::between(isn, self.mptcp.key.idsn);
        self.phase = Phase::SynReceived;
        let Some(errand) = self.errand_mut() else {
            return;
        };
        errand.plain = plain;
        if errand.stage == Stage::Asked {
            let len = errand.len();
            self.subflow_mut(INITIAL).send.next = Ssn(isn.add(1).add(len).0);
            self.to_mptcp.next = self.to_mptcp.next.add(len.into());
        }
    }

    /// Says what the server has not ACKed, or shows it that FlexCP is there.
    fn say(&mut self, ctx: &mut Context<'_>) {
        let Some(errand) = self.errand_mut() else {
            return;
        };
        errand.due = Some(ctx.now + PAUSE * (1 << errand.copies.min(MAX_DOUBLINGS)));
        errand.copies = errand.copies.saturating_add(1);
        let (plain, len) = (errand.plain, errand.len());
        let owed = errand.stage == Stage::Asked;
        let said = errand.said.clone();
        let initial = self.subflow(INITIAL);
        let first = initial.agreed.isn_local.add(1);
        let (owed, next) = (owed && initial.send.una == first, initial.send.next);
        let flags = if owed {
            TcpFlags::PSH | TcpFlags::ACK
        } else {
            TcpFlags::ACK
        };
        let mut outgoing = self.own_to_mptcp(INITIAL, flags);
        outgoing.seq = if owed { first.0 } else { next.0 };
        if !plain {
            let mapping = owed.then(|| DssMapping {
                dsn: DataNumber::Long(self.mptcp.key.idsn.add(1).0),
                ssn: 1,
                len: u16::try_from(len).unwrap_or(u16::MAX),
                checksum: None,
            });
            self.push_dss(&mut outgoing, mapping, false);
        }
        let payload = if owed { said } else { Box::default() };
        ctx.send(outgoing.with_payload(payload));
    }

    /// What was said is said again.
    pub(super) fn repeat_errand(&mut self, ctx: &mut Context<'_>) {
        self.say(ctx);
    }

    /// A packet of an aggregation server's behind its SYN/ACK, while it has not connected on.
    pub(crate) fn hear_server(
        &mut self,
        ctx: &mut Context<'_>,
        segment: &Segment,
        frame: &Frame<'_>,
    ) -> News {
        if !segment.has(TcpFlags::ACK) {
            return News::None(Verdict::Drop(DropReason::Unexpected));
        }
        let initial = self.subflow(INITIAL);
        let (first, ack) = (initial.agreed.isn_local.add(1), Ssn(segment.tcp.ack));
        if ack.before(first) || ack.after(initial.send.next) {
            return News::None(Verdict::Drop(DropReason::AckOfUnsent));
        }
        let far = Ssn(segment.tcp.seq).offset_from(initial.recv.ack);
        if far.unsigned_abs() > u32::from(u16::MAX) {
            return News::None(Verdict::Drop(DropReason::OutOfWindow));
        }
        let una = initial.send.una.max(ack);
        self.last_packet = ctx.now;
        self.subflow_mut(INITIAL).send.una = una;
        self.subflow_mut(INITIAL).heard(ctx.now, segment);
        self.note_confirmed(ctx, segment);
        let plain = self.errand().is_some_and(|errand| errand.plain);
        if !plain && self.take_data_ack(INITIAL, segment).is_none() {
            return News::None(Verdict::Drop(DropReason::AckOfUnsent));
        }
        let bare = segment.payload.is_empty();
        if !bare && !plain && segment.options.dss.is_none() {
            // Something on the way takes its options away.
            return News::Declined { altogether: true };
        }
        let news = match self.offset_of_answer(segment) {
            _ if bare => News::None(Verdict::Consume),
            Some(offset) => self.hear_bytes(ctx, (Ssn(segment.tcp.seq), offset), segment, frame),
            None => News::None(Verdict::Drop(DropReason::NoMapping)),
        };
        match news {
            // It ends what it has not answered. A refusal may come with its end.
            News::None(Verdict::Consume) if self.ends_here(segment) => {
                News::Declined { altogether: true }
            }
            news => news,
        }
    }

    /// Whether the peer ends its stream behind what has been heard of it: the subflow by a FIN, or the connection by `DATA_FIN`. What
    /// has overtaken the rest of an answer says nothing yet.
    fn ends_here(&self, segment: &Segment) -> bool {
        let end = Ssn(segment.tcp.seq).add(segment.payload_len());
        let closes = segment.has(TcpFlags::FIN) && end == self.subflow(INITIAL).recv.ack;
        let dss = segment.options.dss.as_ref().filter(|dss| dss.data_fin);
        let mapping = dss.and_then(|dss| dss.mapping.as_ref());
        closes
            || mapping.is_some_and(|mapping| {
                let fin = self.dsn_of_peer(mapping.dsn).add(mapping.len.into()).sub(1);
                fin == self.to_tcp.next
            })
    }

    /// A data number of the peer's, near the first.
    fn dsn_of_peer(&self, number: DataNumber) -> Dsn {
        let first = self.mptcp.peer_key.map_or(Dsn(0), |key| key.idsn);
        match number {
            DataNumber::Long(dsn) => Dsn(dsn),
            DataNumber::Short(dsn) => first.expand(dsn),
        }
    }

    /// How far the payload of a packet behind the SYN/ACK is from the first byte of the answer, in data numbers. `None`: no mapping
    /// says it.
    pub(super) fn offset_of_answer(&self, segment: &Segment) -> Option<i64> {
        let ssn = Ssn(segment.tcp.seq).since(self.subflow(INITIAL).agreed.isn_remote);
        let dss = segment.options.dss.as_ref();
        let Some(mapping) = dss.and_then(|dss| dss.mapping.as_ref()) else {
            return (self.numbers.identity).then(|| i64::from(ssn) - 1);
        };
        let within = ssn.wrapping_sub(mapping.ssn);
        let first = self.mptcp.peer_key.map_or(Dsn(0), |key| key.idsn).add(1);
        let dsn = self.dsn_of_peer(mapping.dsn).add(within.into());
        let offset = dsn.offset_from(first);
        (within < mapping.len.into() && offset >= 0).then_some(offset)
    }

    /// The payload, whose first byte has the number `at` on the subflow, and is so far from the first byte of the answer. A server may
    /// map anew, behind itself, what it has sent and has no ACK of.
    fn hear_bytes(
        &mut self,
        ctx: &mut Context<'_>,
        (at, offset): (Ssn, i64),
        segment: &Segment,
        frame: &Frame<'_>,
    ) -> News {
        let next = self.subflow(INITIAL).recv.ack;
        if at.after(next) {
            self.say(ctx);
            return News::None(Verdict::Drop(DropReason::Unexpected));
        }
        let acked = usize::try_from(next.since(at)).unwrap_or(usize::MAX);
        let bytes = frame.buffer(segment.payload.clone());
        let bytes = bytes.get(acked..).unwrap_or_default();
        let Some(errand) = self.errand_mut() else {
            return News::None(Verdict::Drop(DropReason::Unexpected));
        };
        let from = offset + i64::from(next.since(at));
        let Ok(known) = usize::try_from(i64::from(errand.heard) - from) else {
            // What stands next on the subflow is no part of what is heard next.
            return News::Declined { altogether: true };
        };
        let known = known.min(bytes.len());
        let (taken, heard) = errand.requester.hear(&bytes[known..]);
        errand.heard += u32::try_from(taken).unwrap_or(0);
        let so_far = errand.heard;
        let len = u32::try_from(known + taken).unwrap_or(0);
        let straight = from == i64::from(next.since(self.subflow(INITIAL).agreed.isn_remote)) - 1;
        self.numbers.identity &= straight || bytes.is_empty();
        self.subflow_mut(INITIAL).recv.ack = next.add(len);
        if let Some(key) = self.mptcp.peer_key {
            self.to_tcp.next = key.idsn.add(1).add(so_far.into());
            self.to_tcp.acked = self.to_tcp.next;
        }
        match News::of(heard) {
            None => {
                self.say(ctx);
                News::None(Verdict::Consume)
            }
            Some(News::Granted(_)) => News::Granted(acked + known + taken),
            Some(news) => news,
        }
    }

    /// The server has connected on: the TCP leg is answered, and packets are translated, or relayed, from here on.
    pub(crate) fn be_granted(&mut self, ctx: &mut Context<'_>) {
        let Some(errand) = self.errand_mut() else {
            return;
        };
        errand.stage = Stage::Granted;
        let (plain, heard) = (errand.plain, errand.heard);
        let start = self.connect_opener(plain, heard);
        // What the server repeats of its answer is not the TCP leg's to see.
        (self.to_tcp.next, self.to_tcp.acked) = (start, start);
        let mut ack = self.own_to_mptcp(INITIAL, TcpFlags::ACK);
        if !plain {
            self.push_dss(&mut ack, None, false);
        }
        ctx.send(ack.own());
        self.answer_opener(ctx);
    }

    /// The server's answer has so many bytes: the first of the stream stands behind it, where packets are translated, or relayed, from
    /// here on.
    pub(super) fn connect_opener(&mut self, plain: bool, answer: u32) -> Dsn {
        if let Some(errand) = self.errand_mut() {
            errand.due = None;
        }
        let initial = self.subflow_mut(INITIAL);
        initial.send.una = initial.send.next;
        let isn = TcpSeq(initial.agreed.isn_remote.0);
        self.to_mptcp.acked = self.to_mptcp.next;
        self.tcp.isn_local = isn.add(answer);
        if plain {
            self.phase = Phase::Plain(Relayed::default());
        } else {
            self.phase = Phase::Established { orphaned: None };
            let initial = self.subflow_mut(INITIAL);
            initial.state = SubflowState::Established;
            initial.join.proved = true;
        }
        let start = self.dsn_to_tcp(self.tcp.isn_local.add(1));
        if let Some(asking) = &mut self.asking {
            asking.stream_start = Some(start);
        }
        start
    }

    /// Whether an aggregation server has connected on.
    pub(super) fn was_connected_on(&self) -> bool {
        let asking = self.asking.as_deref();
        asking.is_some_and(|asking| asking.stream_start.is_some())
    }

    /// The SYN/ACK of such a server, which comes again where it has TCP alone: it has not heard that it was answered. Its numbers are
    /// none of the TCP leg's.
    pub(super) fn ack_repeated_answer(&self, ctx: &mut Context<'_>) -> Verdict {
        let ack = self.own_to_mptcp(INITIAL, TcpFlags::ACK);
        ctx.send(ack.own());
        Verdict::Consume
    }

    /// The stream's bytes that have come with the answer go behind the SYN/ACK.
    pub(crate) fn forward_behind_answer(
        &mut self,
        ctx: &mut Context<'_>,
        segment: &Segment,
        frame: &mut Frame<'_>,
    ) -> Verdict {
        let verdict = if self.phase.is_established() {
            self.handle_to_tcp(ctx, INITIAL, segment, frame)
        } else {
            self.relay_to_tcp(ctx, segment, frame)
        };
        // Its numbers were heard with the answer, but nothing has come twice.
        self.to_tcp.repeated = 0;
        if verdict != Verdict::Forward {
            return verdict;
        }
        let Some(behind) = Transmit::of(frame.packet(), frame.offload) else {
            return verdict;
        };
        ctx.send(behind);
        Verdict::Consume
    }

    /// The SYN/ACK to the TCP leg: what the aggregation server agrees to, as the server behind it is not heard.
    pub(crate) fn answer_opener(&self, ctx: &mut Context<'_>) {
        let room = if self.phase.is_plain() { 0 } else { DSS_LEN };
        let agreed = &self.subflow(INITIAL).agreed;
        let options = Options {
            sack_permitted: self.tcp.sack,
            window_scale: Some(agreed.window_scale).filter(|_| agreed.scales),
            ..Options::default()
        };
        let timestamps = self.tcp.clock.map(|clock| clock.own_to_server());
        let ecn = if agreed.ecn {
            TcpFlags::ECE
        } else {
            TcpFlags::default()
        };
        let outgoing = Outgoing {
            ends: self.server_ends(),
            seq: self.tcp.isn_local.0,
            ack: self.tcp.isn_remote.add(1).0,
            flags: TcpFlags::SYN | TcpFlags::ACK | ecn,
            window: self.room_behind_message(),
            urgent: 0,
            keep_ecn: false,
            flow_label: self.tcp.label,
            options: handshake_options(&options, timestamps, agreed.mss.saturating_sub(room)),
        };
        ctx.send(outgoing.own());
    }

    /// The aggregation server's window behind what it was told, which has taken a part of that: what the TCP leg may send. Windows in
    /// a SYN are not scaled (RFC 7323 section 2.2).
    fn room_behind_message(&self) -> u16 {
        let sending = &self.subflow(INITIAL).send;
        let edge = sending.edge.unwrap_or(sending.next).max(sending.next);
        u16::try_from(edge.since(sending.next)).unwrap_or(u16::MAX)
    }

    /// The TCP leg says its SYN again: it is answered anew once there is something to say.
    pub(crate) fn repeat_to_opener(&mut self, ctx: &mut Context<'_>, syn: &Segment) -> Verdict {
        self.note_opener_syn(ctx, syn);
        if self.has_granted_errand() {
            if let (Some(clock), Some(timestamps)) = (&mut self.tcp.clock, syn.options.timestamps) {
                clock.start_server(timestamps);
            }
            self.answer_opener(ctx);
        }
        Verdict::Consume
    }

    /// A packet of the TCP leg's behind its SYN: it knows that it is connected, if this ACKs the answer.
    pub(crate) fn note_opener_there(&mut self, segment: &Segment) {
        let acks = segment.has(TcpFlags::ACK)
            && !TcpSeq(segment.tcp.ack).before(self.tcp.isn_local.add(1));
        let Some(asking) = self.asking.as_deref_mut().filter(|_| acks) else {
            return;
        };
        match asking.errand.as_deref_mut().map(|errand| &mut errand.stage) {
            Some(Stage::Granted) => asking.errand = None,
            Some(Stage::Promised { there }) => *there = true,
            _ => {}
        }
    }

    /// The aggregation server has reset its connection, and hears no more.
    pub(crate) const fn lose_peer(&mut self) {
        self.phase = Phase::SynSent;
    }

    /// The aggregation server hears that nothing comes of it: by `MP_FASTCLOSE` if it speaks MPTCP, as a RST alone would leave it with a
    /// connection that waits for another subflow (RFC 8684 section 3.5).
    pub(crate) fn leave_peer(&self, ctx: &mut Context<'_>) {
        if self.phase == Phase::SynReceived {
            self.fast_close_all(ctx, Rst::Declined);
        }
    }

    /// The TCP leg hears that its server is not there, and the aggregation server that nothing comes of it.
    pub(crate) fn refuse_opener(&self, ctx: &mut Context<'_>, cause: Rst) {
        let outgoing = Outgoing {
            ends: self.server_ends(),
            seq: 0,
            ack: self.tcp.isn_remote.add(1).0,
            flags: TcpFlags::ACK,
            window: 0,
            urgent: 0,
            keep_ecn: false,
            flow_label: 0,
            options: OptionWriter::default(),
        };
        ctx.reset(outgoing, cause);
        self.leave_peer(ctx);
    }
}

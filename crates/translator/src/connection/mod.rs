//! One connection: an MPTCP client with its subflows on one side, a TCP server on the other.
//!
//! Directions are seen from the client: up is towards the server, down is towards the client. Data is
//! counted in 64-bit data sequence numbers on both sides; `up_seq`, `up_dsn`, `down_seq` and
//! `down_dsn` move between them and the server's TCP sequence numbers.

mod acknowledge;
mod clock;
mod close;
mod declare;
mod down;
mod entry;
mod handshake;
mod hole;
mod icmp;
mod join;
mod opening;
mod path;
mod place;
mod plain;
mod spare;
mod subflow;
mod told;
mod up;
mod view;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::time::Duration;

use flexcp_wire::{Dsn, TcpFlags, TcpOption, TcpSeq};

use self::acknowledge::RepeatedSegments;
use self::clock::ServerClock;
use self::close::Challenges;
pub(crate) use self::handshake::{Backend, Request, request};
pub(crate) use self::icmp::IcmpVerdict;
use self::opening::Opening;
pub(crate) use self::plain::relay;
use self::spare::Spare;
pub(crate) use self::subflow::{Subflow, SubflowState};
use crate::auth::{Key, SecretStream};
use crate::budget::Budget;
use crate::cause::Rst;
use crate::config::{ServiceId, Settings};
use crate::counters::Counters;
use crate::endpoint::Endpoint;
use crate::frame::Transmit;
use crate::half_open::HalfOpenLinks;
use crate::install::Installation;
use crate::segment::{Ends, Outgoing};
use crate::service::Services;
use crate::time::Instant;

/// Index of a subflow in its connection; the initial one is 0.
pub(crate) type SubflowIndex = u8;

/// Set of subflows, by index: bit n is subflow n.
pub(crate) type SubflowSet = u8;

/// The initial subflow.
pub(crate) const INITIAL: SubflowIndex = 0;

/// A connection without a packet for so long gives back memory that stands ready for mappings.
const RESTING: Duration = Duration::from_secs(10);

/// What a connection may use of the translator while it handles a packet.
pub(crate) struct Context<'a> {
    pub(crate) now: Instant,
    pub(crate) config: &'a Settings,
    pub(crate) services: &'a Services,
    pub(crate) counters: &'a mut Counters,
    /// As it was before the packet.
    pub(crate) budget: &'a Budget,
    /// Packets may have gone past FlexCP not long ago.
    pub(crate) astray: bool,
    pub(crate) secrets: &'a mut SecretStream,
    pub(crate) outbox: &'a mut VecDeque<Transmit>,
    /// Subflows whose flows the connection has no use for any more.
    pub(crate) gone: &'a mut Vec<SubflowIndex>,
}

impl Context<'_> {
    /// Queues a packet that FlexCP makes.
    pub(crate) fn send(&mut self, transmit: Transmit) {
        self.counters.packets_made += 1;
        self.outbox.push_back(transmit);
    }
}

/// Life of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// The client's SYN went to the server.
    SynSent,
    /// The server's SYN/ACK went to the client, with FlexCP's key.
    SynReceived,
    /// The client has proved its keys: packets are translated.
    Established,
    /// Plain TCP from the start; only addresses are translated.
    Plain,
    /// MPTCP that has fallen back; as `Plain`.
    Fallback,
    /// Both directions are closed and acknowledged; stragglers are answered until then.
    Closed(Instant),
    /// Reset; stragglers are answered with a reset until then.
    Reset(Instant),
}

/// The TCP side.
#[derive(Debug)]
pub(crate) struct ServerLeg {
    /// What the server sees as its client.
    pub(crate) source: Endpoint,
    /// The server.
    pub(crate) backend: Endpoint,
    /// Back ends tried so far, one that was tried again included.
    pub(crate) tried: u8,
    /// It owes an answer to the SYN (reverse mode); `None`: it has answered.
    pub(crate) asked: Option<Asked>,
    /// It has answered the SYN.
    pub(crate) answered: bool,
    pub(crate) isn: TcpSeq,
    pub(crate) mss: u16,
    /// Shift of the windows that the server offers; `None`: it does without scaling, and so does the
    /// initial subflow.
    pub(crate) window_scale: Option<u8>,
    pub(crate) sack: bool,
    /// Window that the server offered last, unscaled.
    pub(crate) window: u16,
    /// That was in its SYN/ACK, unscaled, which a smaller one may follow.
    pub(crate) window_of_syn: bool,
    /// The largest window that the server ever offered, in bytes.
    pub(crate) window_max: u32,
    /// The furthest right edge that it offered since its SYN/ACK.
    pub(crate) edge: Option<Dsn>,
    /// Of its data, what it may still hear about as duplicates.
    pub(crate) repeated: RepeatedSegments,
    /// Timestamps, when client and server have agreed on them.
    pub(crate) clock: Option<ServerClock>,
    /// Challenge ACKs to it.
    pub(crate) challenges: Challenges,
}

/// A SYN that a back end has to answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    /// When it was sent to this back end first.
    pub(crate) at: Instant,
    /// When it goes to another one by itself; `None`: when the client repeats it.
    pub(crate) due: Option<Instant>,
    /// The client has repeated it since: which one an answer is to, nobody can tell.
    pub(crate) again: bool,
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) service: ServiceId,
    pub(crate) phase: Phase,
    pub(crate) server: ServerLeg,
    pub(crate) local: Key,
    /// The client's key, known from its third packet on.
    pub(crate) remote: Option<Key>,
    pub(crate) subflows: Vec<Subflow>,
    /// Where new data goes down.
    pub(crate) active: SubflowIndex,
    /// The subflow that the client was heard on last.
    pub(crate) heard: SubflowIndex,
    /// Subflows on which the client has repeated what was ACKed there: it has missed that, and the server's
    /// answer has to go there, whatever else it is about.
    pub(crate) owed: SubflowSet,
    /// Subflows on which the server's probe went down: their next ACK is the answer, whatever it says.
    pub(crate) asked: SubflowSet,
    /// Initial sequence number of the client, on the initial subflow and towards the server.
    pub(crate) isn_client: TcpSeq,
    /// The SYN to the server carried `MP_CAPABLE`.
    pub(crate) offered_end_to_end: bool,
    /// So far SSN and TCP sequence numbers of the initial subflow are the same, and nobody ever asked for
    /// another subflow: only then can the connection fall back (RFC 8684 section 3.7).
    pub(crate) identity: bool,

    /// Fallen back because the client's options do not come through: it still wants data ACKs.
    pub(crate) acks_in_fallback: bool,

    /// Behind the last data that went up, DATA_FIN included.
    pub(crate) up_next: Dsn,
    /// The server's ACK.
    pub(crate) up_acked: Dsn,
    /// The client's DATA_FIN.
    pub(crate) up_fin: Option<Dsn>,
    /// Behind the last data that went down, DATA_FIN included.
    pub(crate) down_next: Dsn,
    /// The client's data ACK.
    pub(crate) down_acked: Dsn,
    /// The server's FIN.
    pub(crate) down_fin: Option<Dsn>,
    /// When it first went down without data.
    pub(crate) down_fin_sent: Option<Instant>,
    /// Right edge of the client's window: the furthest that was offered.
    pub(crate) down_edge: Dsn,
    /// The largest window that the client ever offered, in bytes.
    pub(crate) client_window: u32,
    /// IPv6 flow label of what goes up: the initial subflow's. 0 for IPv4.
    pub(crate) label_up: u32,
    /// IPv6 flow label of what goes down: the server's. 0 for IPv4.
    pub(crate) label_down: u32,

    pub(crate) announce: Announcements,
    pub(crate) opened: Instant,
    pub(crate) last_packet: Instant,
    /// Since when there is no subflow left.
    pub(crate) orphaned: Option<Instant>,
    /// The client of a plain connection has ACKed what only the server's answer could tell it.
    pub(crate) proved: bool,
    /// The kernel forwards it by itself.
    pub(crate) passed_by: bool,
    /// An end of a plain connection has reset it; what still comes says that the other has not believed it.
    pub(crate) plain_reset: bool,
    /// Since when the server repeats what no subflow can deliver.
    pub(crate) stuck: Option<Instant>,
    /// The server's window is open again, and some subflows have yet to hear of it.
    pub(crate) opening: Option<Opening>,
    /// Packets with what is next on their subflow that the client has repeated since the server's ACK moved on.
    pub(crate) repeated_up: u8,
    /// When all subflows were suspect and another was tried.
    pub(crate) tried_other: Instant,
    /// When the server's data last went over more than one subflow, or again from a copy.
    pub(crate) copied: Instant,
    /// A copy of the server's data on a subflow that has yet to be heard.
    pub(crate) spare: Option<Box<Spare>>,
    /// Challenge ACKs to the client.
    pub(crate) challenges: Challenges,
    pub(crate) half_open: HalfOpenLinks,
    /// When the timer queue will look at the connection; `None`: it is not in the queue.
    pub(crate) armed: Option<Instant>,
    /// Bytes that it counts with in the budget.
    pub(crate) charged: u32,
    /// What the fast path has to do with it.
    pub(crate) installation: Installation,
}

/// `ADD_ADDR`s that the client has not echoed yet.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Announcements {
    pub(crate) started: bool,
    /// Bit n: the service's n-th address.
    pub(crate) pending: u16,
    /// Copies of the first pending one that have been sent.
    pub(crate) copies: u8,
    /// When the next copy is due; `None`: not started, or done.
    pub(crate) due: Option<Instant>,
}

impl ServerLeg {
    /// Of a server that has been sent a SYN.
    fn towards(backend: Backend) -> Self {
        Self {
            source: backend.source.into(),
            backend: backend.addr.into(),
            tried: 1,
            asked: None,
            answered: false,
            isn: TcpSeq(0),
            mss: 0,
            window_scale: None,
            sack: false,
            window: 0,
            window_of_syn: true,
            edge: None,
            repeated: RepeatedSegments::default(),
            window_max: 0,
            clock: None,
            challenges: Challenges::default(),
        }
    }
}

impl Connection {
    pub(crate) fn new(
        now: Instant,
        service: ServiceId,
        initial: Subflow,
        backend: Backend,
        local: Key,
    ) -> Self {
        let isn_client = TcpSeq(initial.isn_remote.0);
        Self {
            service,
            phase: Phase::SynSent,
            server: ServerLeg::towards(backend),
            local,
            remote: None,
            subflows: alloc::vec![initial],
            active: INITIAL,
            heard: INITIAL,
            owed: 0,
            asked: 0,
            isn_client,
            offered_end_to_end: false,
            identity: true,
            acks_in_fallback: false,
            up_next: Dsn(0),
            up_acked: Dsn(0),
            up_fin: None,
            down_next: local.idsn.add(1),
            down_acked: local.idsn.add(1),
            down_fin: None,
            down_fin_sent: None,
            down_edge: local.idsn.add(1),
            client_window: 0,
            label_up: 0,
            label_down: 0,
            announce: Announcements::default(),
            opened: now,
            last_packet: now,
            orphaned: None,
            proved: false,
            passed_by: false,
            plain_reset: false,
            stuck: None,
            opening: None,
            repeated_up: 0,
            tried_other: now,
            copied: now,
            spare: None,
            challenges: Challenges::default(),
            half_open: HalfOpenLinks::default(),
            armed: None,
            charged: 0,
            installation: Installation::default(),
        }
    }

    pub(crate) fn subflow(&self, index: SubflowIndex) -> &Subflow {
        &self.subflows[usize::from(index)]
    }

    pub(crate) fn subflow_mut(&mut self, index: SubflowIndex) -> &mut Subflow {
        &mut self.subflows[usize::from(index)]
    }

    /// Indices of all subflow slots.
    #[allow(
        clippy::cast_possible_truncation,
        reason = "a connection has at most 8 subflows"
    )]
    pub(crate) fn indices(&self) -> impl Iterator<Item = SubflowIndex> + use<> {
        0..self.subflows.len() as SubflowIndex
    }

    /// The packets from the server, as the flow table knows them.
    pub(crate) fn server_flow(&self) -> Ends {
        Ends {
            from: self.server.backend.addr(),
            to: self.server.source.addr(),
        }
    }

    /// The ends of a packet to the server.
    pub(crate) fn server_ends(&self) -> Ends {
        Ends {
            from: self.server.source.addr(),
            to: self.server.backend.addr(),
        }
    }

    /// The server sees the client's own address and port (transparent mode).
    pub(crate) fn keeps_ends(&self) -> bool {
        self.server_ends() == self.subflow(INITIAL).flow()
    }

    /// TCP sequence number of the client's data.
    #[allow(clippy::cast_possible_truncation, reason = "TCP sees the low 32 bits")]
    pub(crate) fn up_seq(&self, dsn: Dsn) -> TcpSeq {
        let idsn = self.remote.map_or(Dsn(0), |key| key.idsn);
        self.isn_client.add(dsn.since(idsn) as u32)
    }

    /// Data sequence number of the client's data, the one nearest to what went up last.
    pub(crate) fn up_dsn(&self, seq: TcpSeq) -> Dsn {
        let distance = seq.offset_from(self.up_seq(self.up_next));
        Dsn(self.up_next.0.wrapping_add_signed(i64::from(distance)))
    }

    /// TCP sequence number of the server's data.
    #[allow(clippy::cast_possible_truncation, reason = "TCP sees the low 32 bits")]
    pub(crate) fn down_seq(&self, dsn: Dsn) -> TcpSeq {
        self.server.isn.add(dsn.since(self.local.idsn) as u32)
    }

    /// Data sequence number of the server's data, the one nearest to what went down last.
    pub(crate) fn down_dsn(&self, seq: TcpSeq) -> Dsn {
        let distance = seq.offset_from(self.down_seq(self.down_next));
        Dsn(self.down_next.0.wrapping_add_signed(i64::from(distance)))
    }

    /// The client has not shown yet that it is where its packets say.
    pub(crate) const fn is_half_open(&self) -> bool {
        match self.phase {
            Phase::SynSent | Phase::SynReceived => true,
            Phase::Plain => !self.proved && !self.passed_by,
            _ => false,
        }
    }

    /// The SYN has gone to a back end, and there is no answer yet (reverse mode).
    pub(crate) const fn awaits_server(&self) -> bool {
        let opens = matches!(self.phase, Phase::SynSent | Phase::Plain);
        opens && self.server.asked.is_some() && !self.server.answered
    }

    /// Both directions are closed and acknowledged.
    pub(crate) fn is_finished(&self) -> bool {
        let done = |fin: Option<Dsn>, acked: Dsn| fin.is_some_and(|fin| acked.after(fin));
        done(self.up_fin, self.up_acked) && done(self.down_fin, self.down_acked)
    }

    /// A segment of FlexCP's own on a subflow, with the timestamps that belong there.
    pub(crate) fn own_down(&self, index: SubflowIndex, flags: TcpFlags) -> Outgoing {
        let subflow = self.subflow(index);
        let mut outgoing = Outgoing {
            ends: subflow.ends(),
            seq: subflow.snd_next.0,
            ack: subflow.ack_number().0,
            flags,
            window: self.window_down(index),
            urgent: 0,
            keep_ecn: false,
            flow_label: self.label_down,
            options: flexcp_wire::OptionWriter::default(),
        };
        if let (Some(clock), Some(server)) = (&subflow.clock, &self.server.clock) {
            let timestamps = TcpOption::Timestamps(clock.own(server));
            outgoing.options.push(&timestamps);
        }
        outgoing
    }

    /// Right edge of the server's window: the furthest since its SYN/ACK. A later one may lie further left only
    /// by what scaling rounds off (RFC 7323 section 2.4).
    pub(crate) fn server_edge(&self) -> Dsn {
        let scale = self.server.window_scale.unwrap_or(0);
        let offered = u64::from(self.server.window) << scale;
        let at_first = self.up_acked.add(offered);
        let known = self.server.edge.unwrap_or(at_first);
        known.max(self.up_acked)
    }

    /// Sequence number of a packet to the server without data: behind all that went up, or the edge of its
    /// window where the client has overrun that. Beyond it a server takes nothing, not even the ACK (RFC 9293
    /// section 3.10.7.4).
    pub(crate) fn bare_seq_up(&self) -> TcpSeq {
        self.up_seq(self.up_next.min(self.server_edge()))
    }

    /// A segment of FlexCP's own to the server.
    pub(crate) fn own_up(&self, seq: TcpSeq, flags: TcpFlags) -> Outgoing {
        let mut outgoing = Outgoing {
            ends: self.server_ends(),
            seq: seq.0,
            ack: self.down_seq(self.down_acked).0,
            flags,
            window: self.window_up(),
            urgent: 0,
            keep_ecn: false,
            flow_label: self.label_up,
            options: flexcp_wire::OptionWriter::default(),
        };
        if let Some(clock) = &self.server.clock {
            outgoing
                .options
                .push(&TcpOption::Timestamps(clock.own_to_server()));
        }
        outgoing
    }

    /// When fillers and FINs are due.
    fn repeats(&self) -> impl Iterator<Item = Instant> + '_ {
        let filler = |subflow: &Subflow| subflow.filler.map(|filler| filler.due);
        let due = move |subflow| filler(subflow).into_iter().chain(subflow.fin_due);
        self.subflows.iter().flat_map(due)
    }

    /// Since when the client has left the connection without a subflow, or with one that it has closed and
    /// on which nothing is heard of it.
    fn abandoned(&self) -> Option<Instant> {
        let closing = |s: &&Subflow| s.lives() && s.state != SubflowState::Joining;
        let living = self.subflows.iter().filter(closing);
        self.orphaned
            .map(|since| living.map(|s| s.last_heard).fold(since, Instant::max))
    }

    /// When an idle connection gives back memory that it does not need now.
    fn resting(&self) -> Option<Instant> {
        let spare = |s: &Subflow| s.up.has_room_to_spare() || s.down.has_room_to_spare();
        let any = self.subflows.iter().any(spare);
        any.then(|| self.last_packet + RESTING)
    }

    /// When [`handle_timeout`](Self::handle_timeout) has something to do, at the earliest.
    pub(crate) fn deadline(&self, config: &Settings) -> Instant {
        let timeouts = &config.timeouts;
        let idle = self.last_packet + timeouts.idle;
        match self.phase {
            _ if self.is_half_open() => {
                let over = self.last_packet + timeouts.half_open;
                let asked = self.server.asked.filter(|_| self.awaits_server());
                asked
                    .and_then(|asked| asked.due)
                    .map_or(over, |due| due.min(over))
            }
            Phase::Closed(until) => self.repeats().fold(until, Instant::min),
            Phase::Reset(until) => until,
            Phase::SynSent | Phase::SynReceived | Phase::Plain | Phase::Fallback => {
                if self.is_finished() || self.plain_reset || self.passed_by {
                    self.last_packet + timeouts.linger
                } else {
                    idle
                }
            }
            Phase::Established => {
                let orphaned = self.abandoned().map(|since| since + timeouts.rejoin);
                let joins = self
                    .subflows
                    .iter()
                    .filter(|s| s.state == SubflowState::Joining)
                    .map(|s| s.opened + timeouts.half_open / 4);
                let closing = self
                    .subflows
                    .iter()
                    .filter(|s| s.state == SubflowState::Closing)
                    .map(|s| s.last_heard + timeouts.linger);
                self.repeats()
                    .chain(joins)
                    .chain(closing)
                    .chain(orphaned)
                    .chain(self.announce.due)
                    .chain(self.opening_due(timeouts.silence))
                    .chain(self.resting())
                    .fold(idle, Instant::min)
            }
        }
    }

    /// Does what is due. `false`: the connection is over and leaves the table.
    pub(crate) fn handle_timeout(&mut self, ctx: &mut Context<'_>) -> bool {
        let timeouts = ctx.config.timeouts;
        let over = |since: Instant, limit| ctx.now >= since + limit;
        match self.phase {
            _ if self.is_half_open() => !over(self.last_packet, timeouts.half_open),
            Phase::Closed(until) => {
                self.fill_due(ctx);
                self.repeat_fins(ctx);
                ctx.now < until
            }
            Phase::Reset(until) => ctx.now < until,
            Phase::SynSent | Phase::SynReceived | Phase::Plain | Phase::Fallback => {
                let limit = if self.is_finished() || self.plain_reset || self.passed_by {
                    timeouts.linger
                } else {
                    timeouts.idle
                };
                !over(self.last_packet, limit)
            }
            Phase::Established => {
                let abandoned = self.abandoned();
                let idle = over(self.last_packet, timeouts.idle);
                if idle || abandoned.is_some_and(|since| over(since, timeouts.rejoin)) {
                    // An end that does not believe the RST's number says which one it will.
                    let cause = if idle { Rst::Idle } else { Rst::Abandoned };
                    self.reset_both(ctx, cause);
                    self.phase = Phase::Reset(ctx.now + timeouts.linger);
                    return true;
                }
                self.expire_subflows(ctx);
                self.announce_due(ctx);
                self.repeat_opening(ctx);
                self.fill_due(ctx);
                self.repeat_fins(ctx);
                if self.resting().is_some_and(|at| ctx.now >= at) {
                    for subflow in &mut self.subflows {
                        subflow.up.give_back();
                        subflow.down.give_back();
                    }
                }
                true
            }
        }
    }
}

//! One connection: MPTCP with its subflows on one leg, TCP on the other.
//!
//! Data moves in two directions, whoever opened the connection: *to TCP*, where n subflows merge into one stream, and *to
//! MPTCP*, where one stream is placed on subflows. It is counted in 64-bit data sequence numbers; [`NumberMap`] has what
//! moves between them and the sequence numbers of the TCP leg. Who opened the connection, and so who answers, is read in
//! `handshake`, `join`, `close` and `view`, and in `asking` and `ask_join`, where FlexCP has opened the MPTCP leg.

mod acknowledge;
mod arrival;
mod ask_join;
mod asking;
mod carried;
mod choice;
mod clock;
mod close;
mod credit;
mod declare;
mod delivery;
mod entry;
mod errand;
mod fin;
mod front;
mod handshake;
mod hole;
mod icmp;
mod invited;
mod join;
mod leave;
mod links;
mod memory;
mod mptcp_leg;
mod numbers;
mod ordered;
mod path;
mod phase;
mod place;
mod plain;
mod promise;
mod redundant;
mod reopened;
mod rtt;
mod spare;
mod stamp;
mod standby;
mod steer;
mod stream;
mod subflow;
mod tcp_leg;
mod tell;
mod timer;
mod to_mptcp;
mod to_tcp;
mod told;
mod view;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::ops::Range;

use flexcp_wire::{Dsn, Ends, TcpFlags, TcpOption, TcpSeq};

pub use self::ask_join::MAX_UPLINKS;
pub(crate) use self::asking::Asking;
pub(crate) use self::credit::{Credit, bytes_of};
pub(crate) use self::errand::News;
pub(crate) use self::front::Front;
pub(crate) use self::handshake::{MIN_MSS, Request, asks, request};
pub(crate) use self::icmp::IcmpVerdict;
pub(crate) use self::links::{HalfOpenLinks, Links, NOBODY};
pub(crate) use self::mptcp_leg::MptcpLeg;
pub(crate) use self::numbers::{NumberMap, Shift};
pub(crate) use self::phase::{Phase, Relayed};
pub(crate) use self::plain::relay;
pub(crate) use self::stream::{ToMptcp, ToTcp};
#[cfg(feature = "internals")]
pub(crate) use self::subflow::JITTER;
pub(crate) use self::subflow::{Subflow, SubflowState};
pub(crate) use self::tcp_leg::{Asked, TcpLeg};
#[cfg(feature = "internals")]
pub(crate) use self::to_tcp::{FAR, MIN_SPAN};
use crate::arrivals::Arrivals;
use crate::auth::{Key, SecretStream};
use crate::budget::Budget;
use crate::config::Settings;
use crate::counters::Counters;
use crate::endpoint::Backend;
use crate::event::Events;
use crate::frame::Transmit;
use crate::handle::{INITIAL, ServiceId, SubflowIndex};
use crate::hosted::Hosted;
use crate::offload::Installation;
use crate::segment::Outgoing;
use crate::service::Services;
use crate::steering::Ledger;
use crate::time::Instant;

/// What a connection may use of the translator while it handles a packet.
pub(crate) struct Context<'a> {
    pub(crate) now: Instant,
    pub(crate) config: &'a Settings,
    pub(crate) services: &'a Services,
    pub(crate) counters: &'a mut Counters,
    pub(crate) events: &'a mut Events,
    /// What connections carry, for modes that share them out.
    pub(crate) ledger: &'a mut Ledger,
    /// What comes over each access, and who knows by which way packets leave.
    pub(crate) arrivals: &'a mut Arrivals,
    /// As it was before the packet.
    pub(crate) budget: Budget,
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

/// One connection.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) service: ServiceId,
    pub(crate) phase: Phase,
    pub(crate) mptcp: MptcpLeg,
    pub(crate) tcp: TcpLeg,
    pub(crate) numbers: NumberMap,
    pub(crate) to_tcp: ToTcp,
    pub(crate) to_mptcp: ToMptcp,
    pub(crate) opened: Instant,
    pub(crate) last_packet: Instant,
    pub(crate) links: Links,
    /// What the fast path has to do with it.
    pub(crate) installation: Installation,
    /// What stands before its streams, until both ends have it.
    pub(crate) front: Option<Box<Front>>,
    /// What FlexCP does in its server's place.
    pub(crate) hosted: Option<Box<Hosted>>,
    /// What it has beside where FlexCP has opened the MPTCP leg.
    pub(crate) asking: Option<Box<Asking>>,
    /// What its client may have, where that names its server.
    pub(crate) credit: Credit,
}

impl Connection {
    pub(crate) fn new(
        now: Instant,
        service: ServiceId,
        initial: Subflow,
        backend: Backend,
        key: Key,
    ) -> Self {
        // Initial sequence numbers pass unchanged.
        let isn = TcpSeq(initial.agreed.isn_remote.0);
        Self {
            service,
            phase: Phase::SynSent,
            numbers: NumberMap::new(isn),
            mptcp: MptcpLeg::new(now, key, initial),
            tcp: TcpLeg::towards(backend, isn),
            to_tcp: ToTcp::default(),
            to_mptcp: ToMptcp::new(key.idsn),
            opened: now,
            last_packet: now,
            links: Links::default(),
            installation: Installation::default(),
            front: None,
            hosted: None,
            asking: None,
            credit: Credit::default(),
        }
    }

    pub(crate) fn subflow(&self, index: SubflowIndex) -> &Subflow {
        &self.mptcp.subflows[usize::from(index)]
    }

    pub(crate) fn subflow_mut(&mut self, index: SubflowIndex) -> &mut Subflow {
        &mut self.mptcp.subflows[usize::from(index)]
    }

    /// Indices of all subflow slots.
    #[allow(
        clippy::cast_possible_truncation,
        reason = "a connection has at most 8 subflows"
    )]
    pub(crate) const fn indices(&self) -> Range<SubflowIndex> {
        0..self.mptcp.subflows.len() as SubflowIndex
    }

    /// The packets from the server, as the flow table knows them.
    pub(crate) fn server_flow(&self) -> Ends {
        Ends {
            from: self.tcp.backend.addr(),
            to: self.tcp.source.addr(),
        }
    }

    /// The ends of a packet to the server.
    pub(crate) fn server_ends(&self) -> Ends {
        Ends {
            from: self.tcp.source.addr(),
            to: self.tcp.backend.addr(),
        }
    }

    /// The server sees the client's own address and port (transparent mode).
    pub(crate) fn keeps_ends(&self) -> bool {
        self.server_ends() == self.subflow(INITIAL).flow()
    }

    /// TCP sequence number of data that goes to the TCP leg.
    pub(crate) const fn seq_to_tcp(&self, dsn: Dsn) -> TcpSeq {
        self.numbers.to_tcp.seq(dsn)
    }

    /// Data sequence number of data that goes to the TCP leg, the one nearest to what went there last.
    pub(crate) fn dsn_to_tcp(&self, seq: TcpSeq) -> Dsn {
        self.numbers.to_tcp.dsn(seq, self.to_tcp.next)
    }

    /// TCP sequence number of data that the TCP leg brings.
    pub(crate) const fn seq_to_mptcp(&self, dsn: Dsn) -> TcpSeq {
        self.numbers.to_mptcp.seq(dsn)
    }

    /// Data sequence number of data that the TCP leg brings, the one nearest to what went to a subflow last.
    pub(crate) fn dsn_to_mptcp(&self, seq: TcpSeq) -> Dsn {
        self.numbers.to_mptcp.dsn(seq, self.to_mptcp.next)
    }

    /// The client has not shown yet that it is where its packets say.
    pub(crate) fn is_half_open(&self) -> bool {
        match self.phase {
            Phase::SynSent | Phase::SynReceived => true,
            Phase::Established { .. } => self.has_granted_errand(),
            Phase::Plain(relayed) => !relayed.proved && !relayed.passed_by,
            _ => false,
        }
    }

    /// The SYN has gone to a back end, or an aggregation server, and there is no answer yet.
    pub(crate) const fn awaits_server(&self) -> bool {
        let opens = match self.asking {
            Some(_) => matches!(self.phase, Phase::SynSent),
            None => {
                matches!(self.phase, Phase::SynSent | Phase::Plain(_)) && !self.tcp.syn.answered
            }
        };
        opens && self.tcp.syn.asked.is_some()
    }

    /// Both directions are closed and acknowledged.
    pub(crate) fn is_finished(&self) -> bool {
        let done = |fin: Option<Dsn>, acked: Dsn| fin.is_some_and(|fin| acked.after(fin));
        done(self.to_tcp.fin, self.to_tcp.acked) && done(self.to_mptcp.fin, self.to_mptcp.acked)
    }

    /// A segment of FlexCP's own on a subflow, with the timestamps that belong there.
    pub(crate) fn own_to_mptcp(&self, index: SubflowIndex, flags: TcpFlags) -> Outgoing {
        let subflow = self.subflow(index);
        let mut outgoing = Outgoing {
            ends: subflow.ends(),
            seq: subflow.send.next.0,
            ack: subflow.ack_number().0,
            flags,
            window: self.window_to_mptcp(index),
            urgent: 0,
            keep_ecn: false,
            flow_label: self.mptcp.label,
            options: flexcp_wire::OptionWriter::default(),
        };
        if let (Some(clock), Some(server)) = (&subflow.clock, &self.tcp.clock) {
            let timestamps = TcpOption::Timestamps(clock.own(server));
            outgoing.options.push(&timestamps);
        }
        outgoing
    }

    /// Right edge of the server's window: the furthest since its SYN/ACK. A later one may lie further left only
    /// by what scaling rounds off (RFC 7323 section 2.4).
    pub(crate) fn server_edge(&self) -> Dsn {
        let scale = self.tcp.window.scale.unwrap_or(0);
        let offered = u64::from(self.tcp.window.offered) << scale;
        let at_first = self.to_tcp.acked.add(offered);
        let known = self.tcp.window.edge.unwrap_or(at_first);
        known.max(self.to_tcp.acked)
    }

    /// Sequence number of a packet to the server without data: behind all that went up, or the edge of its
    /// window where the client has overrun that. Beyond it a server takes nothing, not even the ACK (RFC 9293
    /// section 3.10.7.4).
    pub(crate) fn bare_seq_to_tcp(&self) -> TcpSeq {
        self.seq_to_tcp(self.to_tcp.next.min(self.server_edge()))
    }

    /// A segment of FlexCP's own to the server.
    pub(crate) fn own_to_tcp(&self, seq: TcpSeq, flags: TcpFlags) -> Outgoing {
        let mut outgoing = Outgoing {
            ends: self.server_ends(),
            seq: seq.0,
            ack: self.seq_to_mptcp(self.acked_to_tcp()).0,
            flags,
            window: self.window_to_tcp(),
            urgent: 0,
            keep_ecn: false,
            flow_label: self.tcp.label,
            options: flexcp_wire::OptionWriter::default(),
        };
        if let Some(clock) = &self.tcp.clock {
            outgoing
                .options
                .push(&TcpOption::Timestamps(clock.own_to_server()));
        }
        outgoing
    }
}

//! The entry: one packet or timer at a time goes to its connection, or makes one.

mod opening;
#[cfg(test)]
mod tests;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::time::Duration;

use flexcp_wire::{ChecksumState, TcpFlags};

use crate::astray::Astray;
use crate::auth::SecretStream;
use crate::budget::Budget;
use crate::cause::Rst;
use crate::config::Settings;
use crate::connection::{INITIAL, Phase, SubflowIndex, SubflowState, relay};
use crate::counters::DropReason;
use crate::drain::Drain;
use crate::install::{Installer, LOOK};
use crate::keys::Keys;
use crate::orphan::Orphans;
use crate::record::Registry;
use crate::rst::refuse;
use crate::segment::{Ends, Segment};
use crate::service::{Match, Services};
use crate::table::{ConnectionId, FlowRef, Leg, Table};
use crate::{Config, ConnectionView, Counters, Drops, Frame, Gauges, Instant, Transmit, Verdict};

/// Packets that may wait to be sent before memory for more is asked for.
const OUTBOX: usize = 64;

/// Before the timer looks again at a connection whose deadline stays overdue.
pub(crate) const TIMER_PROGRESS: Duration = Duration::from_millis(1);

/// The furthest that a timer is set ahead.
const FURTHEST_TIMER: Duration = Duration::from_secs(60);

/// A half-open connection of this age makes room for another: honest clients answer sooner.
pub(crate) const STALE_HANDSHAKE: Duration = Duration::from_secs(3);

/// The translator of one worker.
///
/// Feed it with [`handle_packet`](Self::handle_packet) and
/// [`handle_timeout`](Self::handle_timeout). **After each of them carry out the verdict, then drain
/// [`poll_transmit`](Self::poll_transmit) until `None`**: pieces of a split packet borrow the payload
/// of the frame just handled. [`poll_timeout`](Self::poll_timeout) may change after either.
#[derive(Debug)]
pub struct Translator {
    pub(crate) config: Settings,
    pub(crate) services: Services,
    pub(crate) table: Table,
    pub(crate) secrets: SecretStream,
    pub(crate) keys: Keys,
    pub(crate) outbox: VecDeque<Transmit>,
    pub(crate) gone: Vec<SubflowIndex>,
    pub(crate) counters: Counters,
    pub(crate) budget: Budget,
    pub(crate) installer: Option<Installer>,
    pub(crate) drain: Drain,
    pub(crate) registry: Option<Box<dyn Registry>>,
    pub(crate) orphans: Option<Orphans>,
    pub(crate) astray: Option<Astray>,
    drops: Drops,
}

/// Borrows what a connection may use, beside the table that holds it.
macro_rules! context {
    ($self:ident, $now:expr) => {
        $crate::connection::Context {
            now: $now,
            config: &$self.config,
            services: &$self.services,
            counters: &mut $self.counters,
            budget: &$self.budget,
            astray: $self.astray.is_some(),
            secrets: &mut $self.secrets,
            outbox: &mut $self.outbox,
            gone: &mut $self.gone,
        }
    };
}
pub(crate) use context;

impl Translator {
    /// `seed` must be unpredictable: keys, nonces and sequence numbers are derived from it. The same
    /// seed and the same calls give the same packets.
    #[must_use]
    pub fn new(config: Config, seed: [u8; 32]) -> Self {
        let mut secrets = SecretStream::new(seed);
        let hash_keys = (secrets.next_u64(), secrets.next_u64());
        Self {
            keys: Keys::new(secrets.branch(), config.share),
            services: Services::new(config.services, config.share),
            budget: Budget::new(config.limits.memory),
            config: Settings {
                limits: config.limits,
                timeouts: config.timeouts,
            },
            table: Table::new(hash_keys),
            secrets,
            outbox: VecDeque::with_capacity(OUTBOX),
            gone: Vec::with_capacity(OUTBOX),
            counters: Counters::default(),
            installer: None,
            drain: Drain::default(),
            registry: None,
            orphans: None,
            astray: None,
            drops: Drops::default(),
        }
    }

    /// Translates the packet in `frame`.
    pub fn handle_packet(&mut self, now: Instant, frame: &mut Frame<'_>) -> Verdict {
        self.counters.packets_in += 1;
        let verdict = match Segment::parse(frame) {
            Ok(segment) => self.handle_segment(now, &segment, frame),
            Err(reason @ (DropReason::NotTcp | DropReason::Fragment)) => {
                self.handle_other(now, frame, reason)
            }
            Err(reason) => Verdict::Drop(reason),
        };
        match verdict {
            Verdict::Forward => self.counters.packets_forwarded += 1,
            Verdict::Consume => self.counters.packets_consumed += 1,
            Verdict::Drop(reason) => self.drops.count(reason),
        }
        verdict
    }

    /// Does what is due at `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.tend_orphans(now);
        self.tend_astray(now);
        while let Some(id) = self.table.pop_timer(now) {
            if self.leave_installed(now, id) {
                continue;
            }
            self.evict(now, id);
            self.lose_patience(now, id);
            let Some(connection) = self.table.get_mut(id) else {
                continue;
            };
            let mut ctx = context!(self, now);
            let stays = connection.handle_timeout(&mut ctx);
            // Never at once again: whatever its deadline, this loop ends.
            self.settle_at(now, now + TIMER_PROGRESS, id);
            if stays {
                self.install_again(now, id);
            } else {
                self.remove(id);
            }
        }
        self.probe_backends(now);
    }

    /// When [`handle_timeout`](Self::handle_timeout) wants to be called; `None`: not before another
    /// packet.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let orphans = self.orphans.as_ref().map(Orphans::due);
        let astray = self.astray.as_ref().map(Astray::due);
        let times = [self.table.next_timer(), self.probes_due(), orphans, astray];
        times.into_iter().flatten().min()
    }

    /// A packet that wants to be sent.
    #[must_use]
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        self.outbox.pop_front()
    }

    /// What has been done so far.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// What has been dropped so far, and why.
    #[must_use]
    pub const fn drops(&self) -> &Drops {
        &self.drops
    }

    /// What is held now.
    #[must_use]
    pub fn gauges(&self) -> Gauges {
        let slots = self.installer.as_ref().map_or(0, Installer::held);
        Gauges {
            offload_slots: u64::from(slots),
            ..self.budget.gauges(self.table.gauges())
        }
    }

    /// Bytes of memory that its connections may take: what `memory_bytes` among the gauges stays below.
    #[must_use]
    pub const fn memory_budget(&self) -> usize {
        self.config.limits.memory
    }

    /// The connections that there are as they are now, the installed ones too. Costs one pass over the table; not for the packet
    /// path.
    pub fn connections(&self, now: Instant) -> impl Iterator<Item = ConnectionView> + '_ {
        self.table
            .iter()
            .map(move |connection| connection.view(now, self.peek(connection).as_ref()))
    }

    fn handle_segment(
        &mut self,
        now: Instant,
        segment: &Segment,
        frame: &mut Frame<'_>,
    ) -> Verdict {
        let ends = Ends {
            from: segment.source(),
            to: segment.destination(),
        };
        let not_opening = TcpFlags::ACK | TcpFlags::RST | TcpFlags::FIN;
        let is_syn = segment.has(TcpFlags::SYN) && !segment.tcp.flags.intersects(not_opening);
        let flow = self.table.find(ends);
        let changes = flow.is_some_and(|flow| self.translates(flow.id))
            || (is_syn && (flow.is_some() || self.may_open(segment)))
            || (flow.is_none() && self.is_orphaned(ends));
        // What changes a connection's state, or opens one, has to be what its sender sent.
        if changes && frame.offload.checksum == ChecksumState::Complete {
            if !segment.checksum_is_right(frame) {
                return Verdict::Drop(DropReason::Checksum);
            }
            frame.offload.checksum = ChecksumState::Verified;
        }
        let Some(flow) = flow else {
            return if is_syn {
                self.handle_syn(now, segment, frame)
            } else {
                self.handle_orphan(ends, segment)
                    .or_else(|| self.handle_probed(now, segment, frame))
                    .unwrap_or_else(|| self.handle_unknown(segment))
            };
        };
        self.evict(now, flow.id);
        if is_syn && let Some(verdict) = self.handle_syn_on(now, flow, segment, frame) {
            return verdict;
        }
        let verdict = match flow.leg {
            Leg::Subflow(index) => self.handle_client(now, flow.id, index, segment, frame),
            Leg::Server => {
                self.allow_hold(now, flow.id);
                self.handle_server(now, flow.id, segment, frame)
            }
        };
        self.pass_by_connection(now, flow.id);
        self.settle(now, flow.id);
        self.note_course(now, flow.id, verdict, segment.payload.is_empty());
        verdict
    }

    /// Whether the connection's packets are more than relayed.
    fn translates(&mut self, id: ConnectionId) -> bool {
        let phase = self.table.get_mut(id).map(|connection| connection.phase);
        phase.is_some_and(|phase| !matches!(phase, Phase::Plain | Phase::Fallback))
    }

    /// A packet of a known client.
    fn handle_client(
        &mut self,
        now: Instant,
        id: ConnectionId,
        index: u8,
        segment: &Segment,
        frame: &mut Frame<'_>,
    ) -> Verdict {
        let Some(connection) = self.table.get_mut(id) else {
            return Verdict::Consume;
        };
        let mut ctx = context!(self, now);
        match connection.phase {
            Phase::SynSent | Phase::SynReceived if segment.has(TcpFlags::SYN) => {
                self.repeat_syn(now, id, segment, frame)
            }
            Phase::SynSent => relay(connection.server_ends(), segment, frame),
            Phase::SynReceived if segment.has(TcpFlags::RST) => {
                // The server judges for itself; FlexCP believes the exact number (RFC 5961).
                let is_exact = segment.tcp.seq == connection.isn_client.add(1).0;
                let verdict = relay(connection.server_ends(), segment, frame);
                if is_exact {
                    self.remove(id);
                }
                verdict
            }
            Phase::SynReceived => connection.handle_answer(&mut ctx, index, segment, frame),
            Phase::Established | Phase::Closed(_) => match connection.subflow(index).state {
                SubflowState::Joining => connection.handle_joining(&mut ctx, index, segment),
                SubflowState::Established | SubflowState::Closing => {
                    connection.handle_up(&mut ctx, index, segment, frame)
                }
                // A RST says nothing new there, and never has an answer.
                SubflowState::Closed if segment.has(TcpFlags::RST) => Verdict::Consume,
                SubflowState::Closed => {
                    if connection.answer_closed(&mut ctx, index, segment) {
                        return Verdict::Consume;
                    }
                    self.refuse(segment, Rst::SubflowClosed);
                    Verdict::Drop(DropReason::NoSubflow)
                }
            },
            Phase::Plain if segment.has(TcpFlags::SYN) && !connection.server.answered => {
                self.repeat_syn(now, id, segment, frame)
            }
            // None can be there, as a join ends `Connection::identity`; it would not be the server's.
            Phase::Fallback if index != INITIAL => Verdict::Drop(DropReason::Unexpected),
            Phase::Plain | Phase::Fallback => connection.relay_up(&mut ctx, segment, frame),
            Phase::Reset(_) => connection.answer_reset_client(&mut ctx, index, segment),
        }
    }

    /// A packet of a known server.
    fn handle_server(
        &mut self,
        now: Instant,
        id: ConnectionId,
        segment: &Segment,
        frame: &mut Frame<'_>,
    ) -> Verdict {
        let Some(connection) = self.table.get_mut(id) else {
            return Verdict::Consume;
        };
        let mut ctx = context!(self, now);
        match connection.phase {
            Phase::SynSent | Phase::SynReceived if segment.has(TcpFlags::RST) => {
                self.handle_refusal(now, id, segment, frame)
            }
            Phase::SynSent | Phase::SynReceived
                if segment.has(TcpFlags::SYN) && segment.has(TcpFlags::ACK) =>
            {
                self.handle_syn_ack(now, id, segment, frame)
            }
            // The server still knows an earlier connection: a challenge ACK (RFC 5961), whose answer ends that, or its
            // data. On the client's own ports that is the client's: anybody can have sent the SYN, and what is only
            // forwarded FlexCP does not know. On a port of FlexCP's it may be another client's.
            Phase::SynSent if segment.payload.is_empty() || connection.keeps_ends() => {
                relay(connection.subflow(INITIAL).ends(), segment, frame)
            }
            Phase::SynSent | Phase::SynReceived => Verdict::Drop(DropReason::Unexpected),
            Phase::Established | Phase::Closed(_) => {
                connection.handle_down(&mut ctx, segment, frame)
            }
            Phase::Plain if segment.has(TcpFlags::RST) && !connection.server.answered => {
                self.handle_refusal(now, id, segment, frame)
            }
            Phase::Plain if !connection.server.answered => {
                let verdict = connection.relay_down(&mut ctx, segment, frame);
                self.note_answer(now, id, segment);
                verdict
            }
            Phase::Plain | Phase::Fallback => connection.relay_down(&mut ctx, segment, frame),
            Phase::Reset(_) => connection.answer_reset_server(&mut ctx, segment),
        }
    }

    /// A packet that belongs to nothing known. On the path it goes on; where FlexCP is the end, or was
    /// before it lost its state, it is told that there is nobody here.
    fn handle_unknown(&mut self, segment: &Segment) -> Verdict {
        let to = self.services.find(segment.destination());
        let from = self.services.find(segment.source());
        let on_path = |found| matches!(found, Some(Match::Transparent { .. }));
        // MPTCP that FlexCP alone could have spoken: its numbers mean nothing to the server.
        let lost = segment.options.mptcp
            && matches!(
                to,
                Some(Match::Transparent {
                    end_to_end: false,
                    ..
                })
            );
        if !lost && (on_path(to) || on_path(from)) {
            if !segment
                .tcp
                .flags
                .intersects(TcpFlags::SYN | TcpFlags::FIN | TcpFlags::RST)
            {
                self.pass_by(Ends {
                    from: segment.source(),
                    to: segment.destination(),
                });
            }
            return Verdict::Forward;
        }
        self.refuse(segment, Rst::NoConnection);
        Verdict::Drop(DropReason::NoConnection)
    }

    /// RST in answer to a segment (RFC 9293 section 3.5.2), not to another RST.
    pub(crate) fn refuse(&mut self, segment: &Segment, cause: Rst) {
        let reason = cause.reason();
        refuse(&mut self.counters, &mut self.outbox, segment, cause, reason);
    }

    /// After a connection has handled something: flows that it gave up leave the table, and its next
    /// deadline enters the queue.
    pub(crate) fn settle(&mut self, now: Instant, id: ConnectionId) {
        self.settle_at(now, now, id);
        if self.budget.is_short() {
            self.collect(now, id);
            self.reclaim(now);
        }
    }

    /// The same with `overdue` in place of a deadline that is not ahead. One that is stays as it is: nobody can tell from
    /// its time whether the connection has been installed.
    pub(crate) fn settle_at(&mut self, now: Instant, overdue: Instant, id: ConnectionId) {
        self.forget_gone(id);
        let Some(connection) = self.table.get_mut(id) else {
            return;
        };
        let mut deadline = connection.deadline(&self.config);
        if connection.installation.waits_with_slot() {
            deadline = deadline.min(now + LOOK);
        }
        // A far deadline is looked at again before: most are put off, and those must not fill the queue.
        let deadline = deadline.min(now + FURTHEST_TIMER);
        let deadline = if deadline > now { deadline } else { overdue };
        self.budget.charge(connection);
        self.table.update_half_open(id);
        self.table.arm(id, deadline);
    }

    fn forget_gone(&mut self, id: ConnectionId) {
        while let Some(index) = self.gone.pop() {
            let leg = Leg::Subflow(index);
            self.table.remove_flow(FlowRef { id, leg });
        }
        self.register(id);
    }

    pub(crate) fn remove(&mut self, id: ConnectionId) {
        self.release(id);
        self.unregister(id);
        if self.table.get_mut(id).is_some() {
            self.counters.connections_closed += 1;
            self.discharge(id);
            self.table.remove(id);
        }
    }
}

//! The entry: one packet or timer at a time goes to its connection, or makes one.

mod accounts;
mod ahead;
mod asking;
mod astray;
mod bypass;
mod calling;
mod drain;
mod events;
mod explicit;
mod flows;
mod hand;
mod hold;
mod hosting;
mod icmp;
mod install;
mod judge;
mod listing;
mod memory;
mod opening;
mod orders;
mod orphan;
mod probe;
mod records;
mod reload;
mod room;
mod routes;
mod split;
#[cfg(test)]
pub(crate) mod tests;

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::time::Duration;

use flexcp_wire::{ChecksumState, Ends, TcpFlags};

use self::accounts::Accounts;
pub use self::ahead::Ahead;
use self::astray::Astray;
use self::drain::Drain;
use self::hand::Settled;
pub use self::hold::LONGEST_QUEUE;
use self::hosting::Guests;
use self::install::Installer;
pub use self::listing::{Cursor, Filter, Place};
use self::orphan::Orphans;
use self::records::Records;
use crate::auth::{Key, SecretStream};
use crate::budget::Budget;
use crate::cause::Rst;
use crate::config::Settings;
use crate::counters::DropReason;
use crate::event::Events;
use crate::handle::{INITIAL, SubflowIndex};
use crate::keys::Keys;
use crate::rst::refuse;
use crate::segment::Segment;
use crate::service::{Match, Services};
use crate::steering::Rules;
use crate::table::{ConnectionId, FlowRef, Leg, Table};
use crate::{Config, Counters, Drops, Frame, Gauges, Instant, Step, Transmit, Verdict};

/// Packets that may wait to be sent before memory for more is asked for.
const OUTBOX: usize = 64;

/// Before the timer looks again at a connection whose deadline stays overdue.
pub(crate) const TIMER_PROGRESS: Duration = Duration::from_millis(1);

/// The furthest that a timer is set ahead.
const FURTHEST_TIMER: Duration = Duration::from_secs(60);

/// A half-open connection of this age makes room for another: honest clients answer sooner.
pub(crate) const STALE_HANDSHAKE: Duration = Duration::from_secs(3);

/// The translator of one worker. It takes packets and the time, and gives verdicts and packets.
///
/// **On the way of packets** a carrier calls, in this order:
///
/// 1. [`handle_packet`](Self::handle_packet) with each packet, and [`handle_timeout`](Self::handle_timeout) when
///    [`poll_timeout`](Self::poll_timeout) says so. A packet's [`Step`] says what becomes of it.
/// 2. [`sent`](Self::sent), if the step says [`Install::BeforeSent`](crate::Install::BeforeSent) and all earlier packets are
///    on their way. Then the packet is sent.
/// 3. [`poll_flow_event`](Self::poll_flow_event) until `None`, where somebody brings packets to several translators.
/// 4. **[`poll_transmit`](Self::poll_transmit) until `None`, after every call that takes `now`**: pieces of a split packet
///    borrow the payload of the frame just handled.
/// 5. [`sent`](Self::sent), if the step says [`Install::WhenSent`](crate::Install::WhenSent) and all that is on its way.
/// 6. [`idle`](Self::idle) when no packet waits, or [`busy`](Self::busy) when more wait than are handled at a time.
///    [`make_keys`](Self::make_keys) uses the time when nothing is to be done.
///
/// [`poll_timeout`](Self::poll_timeout) may change after any of them. [`poll_backend`](Self::poll_backend) and
/// [`poll_event`](Self::poll_event) tell what has become known; whoever does not ask misses nothing but that.
///
/// **Before the first packet**: [`set_fast_path`](Self::set_fast_path), [`set_registry`](Self::set_registry),
/// [`set_ways`](Self::set_ways), [`adopt`](Self::adopt), [`watch_flows`](Self::watch_flows),
/// [`keep_events`](Self::keep_events).
///
/// **Looking** changes nothing: [`counters`](Self::counters), [`totals`](Self::totals) (with what is installed),
/// [`drops`](Self::drops), [`gauges`](Self::gauges), [`list`](Self::list), [`dependent`](Self::dependent),
/// [`backends`](Self::backends), [`access_totals`](Self::access_totals).
///
/// **What it does** changes by [`configure`](Self::configure), [`keep_services`](Self::keep_services) and
/// [`leave_out`](Self::leave_out); what a configuration leaves behind ends by [`end_stranded`](Self::end_stranded) and
/// [`forget_stranded`](Self::forget_stranded). [`drain`](Self::drain), then [`end_some`](Self::end_some), are its own end.
#[derive(Debug)]
pub struct Translator {
    pub(crate) config: Settings,
    pub(crate) services: Services,
    pub(crate) table: Table,
    pub(crate) keys: Keys,
    pub(crate) outbox: VecDeque<Transmit>,
    pub(crate) gone: Vec<SubflowIndex>,
    pub(crate) counters: Counters,
    pub(crate) events: Events,
    pub(crate) accounts: Accounts,
    pub(crate) budget: Budget,
    pub(crate) installer: Option<Installer>,
    pub(crate) drain: Drain,
    pub(crate) records: Records,
    pub(crate) guests: Guests,
    drops: Drops,
}

/// A connection is not there although something has led to it: a defect, for which nobody pays but its packet.
pub(crate) fn lost() -> Verdict {
    debug_assert!(false, "a connection that is known has gone");
    Verdict::Drop(DropReason::NoConnection)
}

/// Borrows what a connection may use, beside the table that holds it.
macro_rules! context {
    ($self:ident, $now:expr) => {
        $crate::connection::Context {
            now: $now,
            config: &$self.config,
            services: &$self.services,
            counters: &mut $self.counters,
            events: &mut $self.events,
            ledger: &mut $self.accounts.ledger,
            arrivals: &mut $self.accounts.arrivals,
            budget: $self.budget,
            astray: $self.records.astray.is_some(),
            secrets: &mut $self.keys.numbers,
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
    pub fn new(mut config: Config, seed: [u8; 32]) -> Self {
        let mut secrets = SecretStream::new(seed);
        let hash_keys = (secrets.next_u64(), secrets.next_u64());
        let mut accounts = Accounts::default();
        let (services, share) = (core::mem::take(&mut config.services), config.share);
        let settings = Settings::new(config, &Rules::default(), &mut accounts);
        Self {
            keys: Keys::new(secrets, share),
            services: Services::new(services, share),
            budget: Budget::new(settings.limits.memory),
            config: settings,
            accounts,
            table: Table::new(hash_keys),
            outbox: VecDeque::with_capacity(OUTBOX),
            gone: Vec::with_capacity(OUTBOX),
            counters: Counters::default(),
            events: Events::default(),
            installer: None,
            drain: Drain::default(),
            records: Records::default(),
            guests: Guests::new(seed),
            drops: Drops::default(),
        }
    }

    /// Translates the packet in `frame`.
    pub fn handle_packet(&mut self, now: Instant, frame: &mut Frame<'_>) -> Step {
        self.counters.packets_in += 1;
        // The last hosted client may leave with what it has for its responder.
        let hosts = self.guests.any();
        let step = match Segment::parse(frame) {
            Ok(segment) => self.handle_segment(now, &segment, frame),
            Err(reason @ (DropReason::NotTcp | DropReason::Fragment)) => {
                self.handle_other(now, frame, reason).into()
            }
            Err(reason) => Verdict::Drop(reason).into(),
        };
        let step = if hosts || self.guests.any() {
            self.cross(now, step, frame)
        } else {
            step
        };
        match step.verdict {
            Verdict::Forward => self.counters.packets_forwarded += 1,
            Verdict::Consume => self.counters.packets_consumed += 1,
            Verdict::Drop(reason) => self.drops.count(reason),
        }
        step
    }

    /// Does what is due at `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.tend_orphans(now);
        self.tend_astray(now);
        self.tend_accounts(now);
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
            if stays {
                self.join_uplinks(now, id);
            }
            // Never at once again: whatever its deadline, this loop ends.
            self.settle_at(now, now + TIMER_PROGRESS, id);
            if stays {
                self.tend_hosted(now, id);
                self.pass_by_known(now, id);
                self.install_again(now, id);
            } else {
                self.remove(id);
            }
        }
        if self.guests.any() {
            self.exchange(now, None);
        }
        self.check_backends(now);
        self.probe_backends(now);
    }

    /// When [`handle_timeout`](Self::handle_timeout) wants to be called; `None`: not before another
    /// packet.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let orphans = self.records.orphans.as_ref().map(Orphans::due);
        let astray = self.records.astray.as_ref().map(Astray::due);
        let accounts = self.accounts_due();
        let times = [
            self.table.next_timer(),
            self.probes_due(),
            self.checks_due(),
            orphans,
            astray,
            accounts,
        ];
        times.into_iter().flatten().min()
    }

    /// A packet that wants to be sent.
    #[must_use]
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        loop {
            let mut transmit = self.outbox.pop_front()?;
            if !self.guests.any() || self.cross_transmit(&mut transmit) {
                return Some(transmit);
            }
            // It does not leave.
            self.counters.packets_made -= 1;
        }
    }

    /// Makes keys for connections to come, `most` of them; to be called when nothing else is to be done.
    pub fn make_keys(&mut self, most: usize) {
        self.keys.make_ahead(most);
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

    fn handle_segment(&mut self, now: Instant, segment: &Segment, frame: &mut Frame<'_>) -> Step {
        let ends = Ends {
            from: segment.source(),
            to: segment.destination(),
        };
        if self.is_made_up(ends) {
            return Verdict::Drop(DropReason::Spoofed).into();
        }
        let is_syn = segment.is_syn();
        let flow = self.table.find(ends);
        if let Some(flow) = flow.filter(|_| self.guests.any())
            && let Some(step) = self.handle_hosted(now, flow, segment, frame)
        {
            return step;
        }
        // What changes a connection's state, or opens one, has to be what its sender sent.
        if frame.offload.checksum == ChecksumState::Complete
            && self.changes_state(flow, ends, segment, is_syn)
        {
            if !segment.checksum_is_right(frame) {
                return Verdict::Drop(DropReason::Checksum).into();
            }
            frame.offload.checksum = ChecksumState::Verified;
        }
        let verdict = match flow {
            Some(flow) if is_syn => {
                self.evict(now, flow.id);
                match self.handle_syn_on(now, flow, segment, frame) {
                    Some(verdict) => verdict,
                    None => return self.handle_known(now, flow, segment, frame),
                }
            }
            Some(flow) => return self.handle_known(now, flow, segment, frame),
            None if is_syn => self.handle_syn(now, segment, frame),
            None => self
                .handle_orphan(ends, segment)
                .or_else(|| self.handle_probed(now, segment, frame))
                .unwrap_or_else(|| self.handle_unknown(segment)),
        };
        verdict.into()
    }

    /// Whether more comes of a packet than that it is passed on.
    fn changes_state(
        &self,
        flow: Option<FlowRef>,
        ends: Ends,
        segment: &Segment,
        is_syn: bool,
    ) -> bool {
        match flow.and_then(|flow| self.table.get(flow.id)) {
            Some(connection) => is_syn || !connection.phase.is_relayed(),
            None => (is_syn && self.may_open(segment)) || self.is_orphaned(ends),
        }
    }

    /// A key whose token is free and names this worker.
    pub(crate) fn fresh_key(&mut self) -> Key {
        loop {
            let key = self.keys.next();
            if self.table.find_token(key.token).is_none() {
                return key;
            }
        }
    }

    /// A packet that belongs to nothing known. On the path it goes on; where FlexCP is the end, or was
    /// before it lost its state, it is told that there is nobody here.
    fn handle_unknown(&mut self, segment: &Segment) -> Verdict {
        let to = self.services.find(segment.destination());
        let from = self.services.find(segment.source());
        let on_path = |found| matches!(found, Some(Match::Transparent { .. } | Match::Box { .. }));
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
            let flags = segment.tcp.flags;
            let ends = flags.intersects(TcpFlags::SYN | TcpFlags::FIN | TcpFlags::RST);
            // A server of a box's clients speaks to an end of FlexCP's, which may be used again: whoever uses it next must not pass
            // by, too.
            let may_be_ours = matches!(from, Some(Match::Box { .. }));
            if !ends && !may_be_ours {
                self.pass_by(Ends {
                    from: segment.source(),
                    to: segment.destination(),
                });
            }
            return Verdict::Forward;
        }
        if self.services.is_relayed(segment.destination()) {
            // Whoever has the socket answers, or says that nobody has.
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
        if let Some(mut hand) = self.hand(now, id) {
            let settled = hand.settle(overdue);
            self.note_settled(id, settled);
        }
    }

    /// What a settled connection changes in the tables.
    fn note_settled(&mut self, id: ConnectionId, settled: Settled) {
        self.forget_gone(id);
        let opened = settled.half_open_changes && self.table.update_half_open(id);
        if let Some(deadline) = settled.arm {
            self.table.arm(id, deadline);
        }
        if opened && let Some(connection) = self.table.get_mut(id) {
            connection.arrives(&self.config.accesses, &mut self.accounts.arrivals);
            connection.tell_opened(&mut self.events);
        }
    }

    /// Flows that a connection gave up leave the table.
    pub(crate) fn forget_gone(&mut self, id: ConnectionId) {
        while let Some(index) = self.gone.pop() {
            let leg = Leg::Subflow(index);
            self.table.remove_flow(FlowRef { id, leg });
        }
    }

    pub(crate) fn remove(&mut self, id: ConnectionId) {
        self.release(id);
        self.unregister(id);
        if let Some(connection) = self.table.get_mut(id) {
            connection.tell_removed(&mut self.events);
            connection.leaves(&self.config.accesses, &mut self.accounts.arrivals);
            let of = (connection.service, connection.asked_server());
            self.services.note_closed(of.0, of.1);
            self.counters.connections_closed += 1;
            let client = connection.subflow(INITIAL).ends().to.ip();
            self.guests.leave(
                connection.hosted.is_some(),
                client,
                connection.credit.standing,
            );
            self.discharge(id);
            self.table.remove(id);
        }
    }
}

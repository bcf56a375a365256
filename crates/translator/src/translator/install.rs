//! When a connection is installed in the fast path, and when it is evicted.
//!
//! A connection is installed once it runs its steady course: some packets in a row that were forwarded, and nothing else
//! to say. It is evicted before anything looks at it or changes it: any packet, timer or ICMP error that comes up to
//! the translator.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::net::IpAddr;
use core::time::Duration;

use flexcp_wire::Ends;

use super::hand::Hand;
use super::hold::Holds;
use super::{TIMER_PROGRESS, Translator};
use crate::connection::Connection;
use crate::offload::{FEW, FastPath, FlowEntry, Installation, Installed};
use crate::table::ConnectionId;
use crate::{Counters, Instant, ServiceId, Verdict};

/// So many packets in a row, and a connection runs its steady course.
const STEADY: u8 = 2;
/// The same for one that has no slot yet: one that ends after a few packets is not worth the calls.
const FIRST: u8 = 20;
/// An installed connection is evicted and looked at after this time: the fast path keeps no timers.
pub(crate) const LOOK: Duration = Duration::from_secs(2);
/// One whose last packet is older than this then has no need of the fast path.
const QUIET: Duration = Duration::from_secs(1);
/// Connections that may wait to be installed.
const READY: usize = 1024;
/// Pause after the fast path had no room for a connection.
const REFUSED: Duration = Duration::from_secs(1);

/// The fast path, and how eagerly connections are installed in it.
#[derive(Debug)]
pub(crate) struct Installer {
    fast_path: Box<dyn FastPath>,
    /// Packets in a row before a connection is installed.
    steady: u8,
    /// The same before it is installed for the first time.
    first: u8,
    /// Then it is installed at once: for tests.
    eager: bool,
    /// Also connections that the fast path could do nothing for, as they go without timestamps: for tests.
    untimed: bool,
    /// Connections that are installed as soon as nothing of theirs waits on its way to the translator.
    ready: Vec<ConnectionId>,
    /// There is no such moment: more packets wait than are handled at a time.
    backlog: bool,
    /// Then: the connection whose turn it is with the packet just handled.
    due: Option<ConnectionId>,
    /// When it had no room for a connection last.
    refused: Option<Instant>,
    /// Connections whose ACKs are held until they are installed.
    pub(crate) holds: Holds,
}

/// Whether a connection goes on as it does, or is to be installed with the packet just handled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Course {
    Goes,
    Due {
        /// Before the packet is sent, not behind it.
        before_sent: bool,
    },
    /// At once: for tests.
    Eager,
}

/// What came of an attempt to install a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Attempt {
    Installed,
    /// Another of its packets is on its way.
    NotNow,
    Refused,
}

impl Installer {
    /// The connection is to be installed with the packet just handled.
    const fn put_due(&mut self, id: ConnectionId, before_sent: bool) -> Course {
        self.due = Some(id);
        Course::Due { before_sent }
    }

    /// See [`FastPath::carried`].
    pub(crate) fn carried(&mut self, each: &mut dyn FnMut(u32, u64)) {
        self.fast_path.carried(each);
    }

    /// See [`FastPath::pass_by`].
    pub(crate) fn passes_by(&mut self, ends: Ends) -> bool {
        self.fast_path.pass_by(ends)
    }

    /// See [`FastPath::leaves_to_socket`].
    pub(crate) fn leaves_to_socket(&mut self, ends: Ends) -> bool {
        self.fast_path.leaves_to_socket(ends)
    }

    /// See [`FastPath::leave_out`].
    pub(crate) fn leave_out(&mut self, servers: &[IpAddr]) {
        self.fast_path.leave_out(servers);
    }

    /// Slots that connections hold, as the fast path knows.
    pub(crate) fn held(&self) -> u32 {
        self.fast_path.held()
    }

    /// More packets wait than are handled at a time.
    pub(crate) const fn is_behind(&self) -> bool {
        self.backlog
    }

    /// A connection has been installed in this slot, and is to be looked at then.
    fn note_installed(&self, installation: &mut Installation, slot: u32, look: Instant) {
        installation.unseen = installation.slot().is_none();
        if installation.unseen {
            installation.take_slot(slot);
            let passed = self.fast_path.punted(slot).unwrap_or(0);
            installation.start_from(installation.handled.wrapping_sub(passed));
        }
        installation.installed = true;
        installation.look = look;
    }

    /// Packets in a row after which the connection is installed.
    fn enough(&self, installation: &Installation, alone: bool) -> u8 {
        if self.backlog && installation.bounced {
            self.first
        } else if alone && self.backlog {
            1
        } else if installation.slot().is_some() {
            self.steady
        } else {
            self.first
        }
    }
}

impl Hand<'_> {
    /// Evicts the connection if it is installed: before any use of it.
    pub(super) fn evict(&mut self) {
        let (Some(installer), Some(slot)) = (&mut self.installer, self.connection.installed_slot())
        else {
            return;
        };
        let now = self.ctx.now;
        let entry = installer.fast_path.evict(slot);
        let packets = entry.packets_down + entry.packets_up;
        self.connection.installation.note_return(now, packets);
        self.connection.import(&entry);
        // The fast path knows no holes.
        let heard = self.connection.mptcp.heard;
        self.connection.watch_holes(&mut self.ctx, heard, true);
        self.charge();
        count_evicted(self.ctx.counters, &entry);
    }

    /// After a packet, `bare` when it carried no data: whether the connection has run its steady course for a while, and
    /// is to be installed.
    pub(super) fn note_course(&mut self, verdict: Verdict, bare: bool) -> Course {
        let Some(installer) = &mut self.installer else {
            return Course::Goes;
        };
        installer.due = None;
        installer.holds.count_turn();
        if self.connection.may_pass_by() {
            installer.due = Some(self.id);
            return Course::Due { before_sent: false };
        }
        let installation = &mut self.connection.installation;
        let alone = installation.is_alone(&*installer.fast_path);
        if installation.hold.is_held() {
            let now = self.ctx.now;
            if installer.holds.note(now, self.id, &mut installation.hold) {
                installation.watch_lost(&*installer.fast_path);
            }
            if alone == Some(true) {
                return installer.put_due(self.id, false);
            }
        }
        if verdict != Verdict::Forward || !self.ctx.outbox.is_empty() {
            installation.steady = 0;
            return Course::Goes;
        }
        installation.steady = installation.steady.saturating_add(1);
        let enough = installer.enough(installation, alone == Some(true));
        if installation.steady < enough {
            return Course::Goes;
        }
        let before_sent = bare && alone != Some(false);
        if installer.eager {
            return Course::Eager;
        }
        if installer.backlog && (before_sent || alone == Some(true)) {
            return installer.put_due(self.id, before_sent);
        }
        if installation.steady == enough && installer.ready.len() < READY {
            installer.ready.push(self.id);
        } else if installation.steady == enough {
            // With its next packet, then.
            installation.steady -= 1;
        }
        Course::Goes
    }
}

impl Connection {
    /// Its slot with the fast path, if it is installed there.
    fn installed_slot(&self) -> Option<u32> {
        let installation = &self.installation;
        installation.slot().filter(|_| installation.is_installed())
    }
}

impl Translator {
    /// Sets who translates what runs its steady course. Call it once.
    pub fn set_fast_path(&mut self, fast_path: Box<dyn FastPath>) {
        self.installer = Some(Installer {
            fast_path,
            steady: STEADY,
            first: FIRST,
            eager: false,
            untimed: false,
            ready: Vec::with_capacity(READY),
            backlog: false,
            due: None,
            refused: None,
            holds: Holds::new(),
        });
    }

    /// Connections are installed at every opportunity; `untimed`: even those without timestamps.
    #[cfg(feature = "internals")]
    pub(crate) const fn install_eagerly(&mut self, untimed: bool) {
        if let Some(installer) = &mut self.installer {
            installer.steady = 1;
            installer.first = 1;
            installer.eager = true;
            installer.untimed = untimed;
        }
    }

    /// Connections are installed for the first time as soon as they are later on.
    #[cfg(feature = "internals")]
    pub(crate) const fn install_soon(&mut self) {
        if let Some(installer) = &mut self.installer {
            installer.first = installer.steady;
        }
    }

    /// Keeps the connections of these services from the fast path from here on, and evicts those that are offloaded: as when
    /// it would not do to their packets what the host's own rules ask for. Also for a fast path that is yet to be set.
    pub fn keep_services(&mut self, now: Instant, kept: &[ServiceId]) {
        self.services.keep(kept);
        let services = &self.services;
        let of_those = |connection: &Connection| {
            connection.installation.slot().is_some() && services.is_kept(connection.service)
        };
        for id in self.table.ids_where(of_those) {
            self.evict(now, id);
            self.release(id);
        }
    }

    /// Evicts whatever is installed. The next packet of each connection may install it again.
    #[cfg(feature = "internals")]
    pub fn evict_all(&mut self, now: Instant) {
        let Some(installer) = &self.installer else {
            return;
        };
        let steady = installer.steady.saturating_sub(1);
        for id in self
            .table
            .ids_where(|connection| connection.installation.installed)
        {
            self.evict(now, id);
            if let Some(connection) = self.table.get_mut(id) {
                connection.installation.steady = steady;
            }
        }
    }

    /// Evicts a connection if it is installed: before any use of it.
    pub(crate) fn evict(&mut self, now: Instant, id: ConnectionId) {
        if let Some(mut hand) = self.hand(now, id) {
            hand.evict();
        }
    }

    /// No packet waits to be handled, and all that was forwarded is on its way: installs what has run its steady course. A
    /// packet that did wait would find its place taken by a later one, and the connection be evicted at once. ACKs that
    /// were held wait in [`poll_transmit`](Self::poll_transmit) afterwards.
    pub fn idle(&mut self, now: Instant) {
        if let Some(installer) = &mut self.installer {
            installer.backlog = false;
            let due = installer.due.take();
            self.pass_by_due(now, due);
        }
        self.end_holds(now);
        while let Some(installer) = &mut self.installer
            && let Some(id) = installer.ready.pop()
        {
            let Some(connection) = self.table.get_mut(id) else {
                continue;
            };
            let installation = &mut connection.installation;
            let enough = installer.enough(installation, false);
            if installation.installed || installation.steady < enough {
                continue;
            }
            if installation.is_alone_at_last(&*installer.fast_path) {
                self.install(now, id);
            } else {
                // Another is on its way that nobody has seen wait: with that.
                installation.steady = enough - 1;
            }
        }
    }

    /// Packets wait, and go on waiting: until [`idle`](Self::idle) is called, a connection whose turn it is waits for
    /// [`sent`](Self::sent). ACKs that were held too long may wait in [`poll_transmit`](Self::poll_transmit) afterwards.
    pub fn busy(&mut self, now: Instant) {
        if let Some(installer) = &mut self.installer {
            installer.backlog = true;
            self.end_overdue_holds(now);
        }
    }

    /// What a [`Step`](crate::Step) asked to be called for: installs the connection of the packet just handled. All that
    /// has been forwarded before has to be on its way: what the fast path translates would overtake it. ACKs that were
    /// held for this wait in [`poll_transmit`](Self::poll_transmit) afterwards.
    pub fn sent(&mut self, now: Instant) {
        let due = self.installer.as_mut();
        let due = due.and_then(|installer| installer.due.take());
        let Some(id) = due.filter(|_| !self.pass_by_due(now, due)) else {
            return;
        };
        let Some(connection) = self.table.get_mut(id) else {
            return;
        };
        if connection.installation.installed {
            return;
        }
        match self.install(now, id) {
            // That one will do it.
            Attempt::Installed | Attempt::NotNow => {}
            Attempt::Refused => self.release_in_vain(now, id),
        }
    }

    /// No packet waits: whether none of the connection's is on its way.
    pub(crate) fn is_alone_at_last(&mut self, id: ConnectionId) -> bool {
        let (Some(installer), Some(connection)) = (&self.installer, self.table.get_mut(id)) else {
            return false;
        };
        connection
            .installation
            .is_alone_at_last(&*installer.fast_path)
    }

    /// See [`Installation::write_off_lost`].
    pub(crate) fn has_lost_the_rest(&mut self, id: ConnectionId) -> bool {
        let (Some(installer), Some(connection)) = (&self.installer, self.table.get_mut(id)) else {
            return false;
        };
        connection
            .installation
            .write_off_lost(&*installer.fast_path)
    }

    /// After a look at a connection that has a slot: installs it again if it was installed and is still of use. One that has
    /// become quiet leaves the slot to others, and so does one of few packets while there is no room for others.
    pub(crate) fn install_again(&mut self, now: Instant, id: ConnectionId) {
        let (Some(installer), Some(connection)) = (&self.installer, self.table.get_mut(id)) else {
            return;
        };
        let installation = &connection.installation;
        if !installation.waits_with_slot() {
            return;
        }
        let crowded = installer
            .refused
            .is_some_and(|refused| now.since(refused) <= LOOK);
        let idles = installation.look == now && u64::from(installation.carried) < FEW;
        if now.since(connection.last_packet) > QUIET || (crowded && idles) {
            self.release(id);
        } else if connection.installation.look == now {
            self.install(now, id);
        }
    }

    /// An installed connection's timer. `true`: it is not time to look at it.
    pub(crate) fn leave_installed(&mut self, now: Instant, id: ConnectionId) -> bool {
        let Some(connection) = self.table.get_mut(id) else {
            return false;
        };
        let look = connection.installation.look;
        let waits = connection.installation.installed && now < look;
        if waits {
            self.table.arm(id, look);
        }
        waits
    }

    /// A connection leaves the table, or has no use for its slot: that is free.
    pub(crate) fn release(&mut self, id: ConnectionId) {
        let (Some(installer), Some(connection)) = (&mut self.installer, self.table.get_mut(id))
        else {
            return;
        };
        let Some(slot) = connection.installation.slot() else {
            return;
        };
        connection.installation.forget_slot();
        let returned = connection
            .installation
            .installed
            .then(|| installer.fast_path.evict(slot));
        installer.fast_path.release(slot);
        if let Some(entry) = returned {
            count_evicted(&mut self.counters, &entry);
        }
    }

    pub(crate) fn install(&mut self, now: Instant, id: ConnectionId) -> Attempt {
        let (Some(installer), Some(connection)) = (&mut self.installer, self.table.get_mut(id))
        else {
            return Attempt::Refused;
        };
        connection.installation.steady = 0;
        if now < connection.installation.look || self.services.is_kept(connection.service) {
            return Attempt::Refused;
        }
        let deadline = connection.deadline(&self.config);
        // An installed connection's timer would come too late for the one; the next packet of the server's takes another
        // path in the other case, which the fast path would not.
        let is_late = deadline < now + TIMER_PROGRESS;
        let limits = connection.limits(now, &self.config, &self.accounts.ledger);
        if is_late || limits.moves {
            return Attempt::Refused;
        }
        let Some(entry) = connection.entry(&self.config, &self.services, installer.untimed) else {
            return Attempt::Refused;
        };
        let installation = &mut connection.installation;
        let held = installation.slot();
        let known = held.and_then(|slot| installer.fast_path.punted(slot));
        let passed = known.map(|_| installation.expected());
        let slot = match installer
            .fast_path
            .install(held, &entry.limited(&limits), passed)
        {
            Installed::Slot(slot) => slot,
            Installed::NotNow => return Attempt::NotNow,
            Installed::NoRoom => {
                self.counters.offload_refused += 1;
                installer.refused = Some(now);
                installation.look = now + REFUSED;
                return Attempt::Refused;
            }
            Installed::Never => {
                self.counters.offload_kept += 1;
                installation.look = Instant(u64::MAX);
                return Attempt::Refused;
            }
        };
        self.counters.offload_installed += 1;
        let look = deadline.min(now + limits.look(LOOK));
        installer.note_installed(&mut connection.installation, slot, look);
        self.table.arm(id, look);
        self.release_hold(now, id);
        Attempt::Installed
    }

    /// What the translator has done since it was made, and the fast path with the connections that it has now. Those stay
    /// installed.
    #[must_use]
    pub fn totals(&self) -> Counters {
        let mut counters = self.counters;
        if let Some(installer) = &self.installer {
            installer
                .fast_path
                .peek_all(&mut |entry| counters.add_installed(entry));
        }
        counters
    }

    /// A connection as the fast path has it now, if it is installed.
    pub(crate) fn peek(&self, connection: &Connection) -> Option<FlowEntry> {
        let slot = connection
            .installation
            .slot()
            .filter(|_| connection.installation.installed)?;
        Some(self.installer.as_ref()?.fast_path.peek(slot))
    }
}

/// What the fast path has done with a connection.
fn count_evicted(counters: &mut Counters, entry: &FlowEntry) {
    counters.offload_evicted += 1;
    counters.add_installed(entry);
}

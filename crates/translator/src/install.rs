//! When a connection is installed in the fast path, and when it is evicted.
//!
//! Installed is what runs its steady course: some packets in a row that were forwarded, and nothing else to say. Taken
//! back it is before anything looks at it or changes it: any packet, timer or ICMP error that comes up to the
//! translator.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::net::IpAddr;
use core::time::Duration;

use crate::connection::Connection;
use crate::hold::{Hold, Holds};
use crate::offload::{FastPath, FlowEntry, Installed};
use crate::segment::Ends;
use crate::table::ConnectionId;
use crate::translator::{TIMER_PROGRESS, Translator, context};
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
/// While others are refused, a connection that was installed for [`LOOK`] and needed it for fewer packets than these makes room.
const FEW: u64 = 64;

/// One that was installed for fewer packets than these came back at once: as when its client sends anew what got lost. Where
/// packets wait, it is not installed before as many in a row as one that has no slot.
const AT_ONCE: u32 = 8;

/// So many packets in a row behind which others seemed to be on their way, and the fewest of those have got lost.
const LONG: u16 = 4096;
/// What such a packet weighs when none waits: as many as these, handled while others wait.
const EMPTY: u16 = LONG / 4;

/// No slot has this number.
const NO_SLOT: u32 = u32::MAX;

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
    due: Option<Due>,
    /// When it had no room for a connection last.
    refused: Option<Instant>,
    /// Connections whose ACKs are held until they are installed.
    pub(crate) holds: Holds,
}

/// A connection that is to be installed with its last packet.
#[derive(Clone, Copy, Debug)]
struct Due {
    id: ConnectionId,
    /// Before the packet is sent, not behind it.
    before_sent: bool,
}

/// What the fast path has to do with a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Installation {
    /// The slot that it has with the fast path, installed or not; [`NO_SLOT`].
    slot: u32,
    /// It is the fast path's for now.
    installed: bool,
    /// Packets in a row that were forwarded, and nothing else happened.
    steady: u8,
    /// While it is installed: when to look at it. Otherwise: it is not offered before.
    look: Instant,
    /// Packets that the fast path has translated when it was installed last; no more than counts.
    carried: u32,
    /// Packets that were handled since it has the slot.
    handled: u32,
    /// The most by which those were ahead of what passed the fast path: then none was on its way.
    ahead: u32,
    /// Packets in a row behind which others were on their way.
    followed: u16,
    /// The fewest that were on their way behind one of those.
    fewest: u16,
    /// It was installed last without a slot before, so that nobody knew what was on its way.
    unseen: bool,
    /// It came back at once then, although none was on its way.
    bounced: bool,
    /// ACKs that are held until it is installed.
    pub(crate) hold: Hold,
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
    /// See [`FastPath::pass_by`].
    pub(crate) fn passes_by(&mut self, ends: Ends) -> bool {
        self.fast_path.pass_by(ends)
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

    /// Packets in a row after which the connection is installed.
    const fn enough(&self, installation: &Installation, alone: bool) -> u8 {
        if self.backlog && installation.bounced {
            self.first
        } else if alone && self.backlog {
            1
        } else if installation.slot != NO_SLOT {
            self.steady
        } else {
            self.first
        }
    }
}

impl Default for Installation {
    fn default() -> Self {
        Self {
            slot: NO_SLOT,
            installed: false,
            steady: 0,
            look: Instant::default(),
            carried: 0,
            handled: 0,
            ahead: 0,
            followed: 0,
            fewest: u16::MAX,
            unseen: false,
            bounced: false,
            hold: Hold::default(),
        }
    }
}

impl Installation {
    fn slot(&self) -> Option<u32> {
        Some(self.slot).filter(|&slot| slot != NO_SLOT)
    }

    /// Counts a packet; whether no other of the connection is on its way to the translator, as far as the fast path
    /// knows.
    ///
    /// What was on its way when the connection got its slot has not been counted there, and what gets lost on the way
    /// is not counted here: the first shows as it comes, the second makes this say no for a while. The while over, the
    /// fewest that were on their way count as none.
    fn is_alone(&mut self, fast_path: &dyn FastPath) -> Option<bool> {
        self.handled = self.handled.wrapping_add(1);
        if self.followed >= LONG {
            self.start_from(self.ahead.wrapping_sub(self.fewest.into()));
        }
        self.weigh(fast_path, 1)
    }

    /// The same for one that waits to be installed, now that no packet waits.
    fn is_alone_at_last(&mut self, fast_path: &dyn FastPath) -> bool {
        self.weigh(fast_path, EMPTY) != Some(false)
    }

    fn weigh(&mut self, fast_path: &dyn FastPath, weight: u16) -> Option<bool> {
        let passed = fast_path.punted(self.slot()?)?;
        let ahead = self.handled.wrapping_sub(passed);
        let behind = self.ahead.wrapping_sub(ahead).cast_signed();
        if behind > 0 {
            self.followed = self.followed.saturating_add(weight);
            self.fewest = self.fewest.min(u16::try_from(behind).unwrap_or(u16::MAX));
        } else {
            self.start_from(ahead);
        }
        // Below 0 the packet was on its way unknown to the counts, and others may be.
        Some(behind == 0)
    }

    /// None is on its way when so many more were handled than have passed.
    const fn start_from(&mut self, ahead: u32) {
        self.ahead = ahead;
        self.followed = 0;
        self.fewest = u16::MAX;
    }

    /// Notes from now on how many seem to be on their way at least.
    fn watch_lost(&mut self, fast_path: &dyn FastPath) {
        self.fewest = u16::MAX;
        self.weigh(fast_path, 0);
    }

    /// All that was on its way when [`watch_lost`](Self::watch_lost) was called is here or lost, and so is everything since:
    /// the fewest that seemed to be on their way count as none, if it is those.
    fn write_off_lost(&mut self, fast_path: &dyn FastPath) -> bool {
        if self.weigh(fast_path, 0) == Some(false) {
            self.start_from(self.ahead.wrapping_sub(self.fewest.into()));
        }
        self.weigh(fast_path, 0) == Some(true)
    }

    /// It has a slot, and would be installed if it were ready.
    pub(crate) fn may_be_installed(&self, now: Instant) -> bool {
        self.waits_with_slot() && self.look <= now
    }

    /// The fast path has given it back after so many packets.
    fn note_return(&mut self, now: Instant, packets: u64) {
        self.carried = u32::try_from(packets).unwrap_or(u32::MAX);
        self.bounced = !self.unseen && self.carried < AT_ONCE;
        if !self.unseen && packets < FEW {
            self.hold.pause(now);
        }
    }

    /// Packets that have passed when none is on its way.
    const fn expected(&self) -> u32 {
        self.handled.wrapping_sub(self.ahead)
    }

    /// The connection is installed.
    pub(crate) const fn is_installed(&self) -> bool {
        self.installed
    }

    /// The connection has a slot with the fast path, and is not installed.
    pub(crate) const fn waits_with_slot(&self) -> bool {
        self.slot != NO_SLOT && !self.installed
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

    /// Takes a connection back if it is installed: before any use of it.
    pub(crate) fn evict(&mut self, now: Instant, id: ConnectionId) {
        let Some(installer) = &mut self.installer else {
            return;
        };
        let Some(connection) = self.table.get_mut(id) else {
            return;
        };
        let Some(slot) = connection
            .installation
            .slot()
            .filter(|_| connection.installation.installed)
        else {
            return;
        };
        connection.installation.installed = false;
        connection.installation.steady = 0;
        connection.installation.look = now;
        let entry = installer.fast_path.evict(slot);
        let packets = entry.packets_down + entry.packets_up;
        connection.installation.note_return(now, packets);
        connection.import(&entry);
        let mut ctx = context!(self, now);
        // The fast path knows no holes.
        connection.watch_holes(&mut ctx, connection.heard, true);
        self.charge(id);
        self.count_returned(&entry);
    }

    /// After a packet, `bare` when it carried no data: installs the connection once it has run its steady course for a
    /// while.
    pub(crate) fn note_course(
        &mut self,
        now: Instant,
        id: ConnectionId,
        verdict: Verdict,
        bare: bool,
    ) {
        let Some(installer) = &mut self.installer else {
            return;
        };
        installer.due = None;
        installer.holds.count_turn();
        let Some(connection) = self.table.get_mut(id) else {
            return;
        };
        let installation = &mut connection.installation;
        let alone = installation.is_alone(&*installer.fast_path);
        if installation.hold.is_held() {
            if installer.holds.note(now, id, &mut installation.hold) {
                installation.watch_lost(&*installer.fast_path);
            }
            if alone == Some(true) {
                let before_sent = false;
                installer.due = Some(Due { id, before_sent });
                return;
            }
        }
        if verdict != Verdict::Forward || !self.outbox.is_empty() {
            installation.steady = 0;
            return;
        }
        installation.steady = installation.steady.saturating_add(1);
        let enough = installer.enough(installation, alone == Some(true));
        if installation.steady < enough {
            return;
        }
        let before_sent = bare && alone != Some(false);
        if installer.eager {
            self.install(now, id);
        } else if installer.backlog && (before_sent || alone == Some(true)) {
            installer.due = Some(Due { id, before_sent });
        } else if installation.steady == enough && installer.ready.len() < READY {
            installer.ready.push(id);
        } else if installation.steady == enough {
            // With its next packet, then.
            installation.steady -= 1;
        }
    }

    /// Installs what has run its steady course. Call it when no packet waits to be handled: one that does would find
    /// its place taken by a later one, and the connection be evicted at once. ACKs that were held wait in
    /// [`poll_transmit`](Self::poll_transmit) afterwards.
    pub fn install_ready(&mut self, now: Instant) {
        if let Some(installer) = &mut self.installer {
            installer.backlog = false;
            installer.due = None;
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

    /// Packets wait, and go on waiting: until [`install_ready`](Self::install_ready) is called, a connection whose turn it is
    /// waits for [`install_due`](Self::install_due).
    ///
    /// With an ACK that is just before that is sent ([`installs_before_sent`](Self::installs_before_sent)): what the ACK calls
    /// forth then finds the fast path, and joins no queue. With data that would be wrong, as a later packet might
    /// overtake it ([`installs_when_sent`](Self::installs_when_sent)). Neither while the fast path says that others of its
    /// packets are on their way here: those would evict it.
    ///
    /// ACKs that were held too long may wait in [`poll_transmit`](Self::poll_transmit) afterwards.
    pub fn note_backlog(&mut self, now: Instant) {
        if let Some(installer) = &mut self.installer {
            installer.backlog = true;
            self.end_overdue_holds(now);
        }
    }

    /// Whether [`install_due`](Self::install_due) is to be called before the packet just handled is sent.
    #[must_use]
    pub fn installs_before_sent(&self) -> bool {
        let due = self.installer.as_ref().and_then(|installer| installer.due);
        due.is_some_and(|due| due.before_sent)
    }

    /// Whether [`install_due`](Self::install_due) is to be called as soon as the packet just handled, and all that it called
    /// forth, is sent.
    #[must_use]
    pub fn installs_when_sent(&self) -> bool {
        let due = self.installer.as_ref().and_then(|installer| installer.due);
        due.is_some_and(|due| !due.before_sent)
    }

    /// Installs the connection of the packet just handled. All that has been forwarded before has to be on its way: what
    /// the fast path translates would overtake it. ACKs that were held for this wait in
    /// [`poll_transmit`](Self::poll_transmit) afterwards.
    pub fn install_due(&mut self, now: Instant) {
        let due = self
            .installer
            .as_mut()
            .and_then(|installer| installer.due.take());
        let Some(Due { id, .. }) = due else {
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

    /// After a look at a connection that has a slot: installs it on if it was installed and is still of use. One that has
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
        connection.installation.slot = NO_SLOT;
        let returned = connection
            .installation
            .installed
            .then(|| installer.fast_path.evict(slot));
        installer.fast_path.release(slot);
        if let Some(entry) = returned {
            self.count_returned(&entry);
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
        if deadline < now + TIMER_PROGRESS {
            // An installed connection's timer would come too late for it.
            return Attempt::Refused;
        }
        let Some(entry) = connection.entry(&self.config, &self.services, installer.untimed) else {
            return Attempt::Refused;
        };
        let installation = &mut connection.installation;
        let held = installation.slot();
        let known = held.and_then(|slot| installer.fast_path.punted(slot));
        let passed = known.map(|_| installation.expected());
        let slot = match installer.fast_path.install(held, &entry, passed) {
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
        let look = deadline.min(now + LOOK);
        connection.installation.unseen = held.is_none();
        if held.is_none() {
            connection.installation.slot = slot;
            let passed = installer.fast_path.punted(slot).unwrap_or(0);
            let installation = &mut connection.installation;
            installation.start_from(installation.handled.wrapping_sub(passed));
        }
        connection.installation.installed = true;
        connection.installation.look = look;
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

    /// What the fast path has done with a connection.
    fn count_returned(&mut self, entry: &FlowEntry) {
        self.counters.offload_evicted += 1;
        self.counters.add_installed(entry);
    }
}

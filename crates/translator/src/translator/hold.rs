//! ACKs of a server's that are held back until their connection is installed.
//!
//! A client's ACKs call forth its next packets. Where packets go on waiting for the translator, as when many clients send
//! at a time, one of each connection is among them at any moment, and none is ever installed. So an ACK alone is held back
//! while others of its connection are on their way: the client comes to a stop within a window, the last of those is
//! handled, the connection is installed, and each subflow that is owed an ACK gets one of FlexCP's own, with the newest numbers.
//! One ACK for several, and later, is what networks do to ACKs at all times; the bounds below keep it from being so late
//! that the client believes its data lost.

use alloc::collections::VecDeque;
use core::time::Duration;

use super::hand::Hand;
use super::install::{Attempt, Installer};
use super::{Translator, context};
use crate::Instant;
use crate::offload::Hold;
use crate::table::ConnectionId;

/// Packets that may wait for a translator at a time: in the queue of its device.
pub const LONGEST_QUEUE: u32 = 10_000;

/// Whatever was on its way is here, or lost, once so many packets were handled: those of the queue, and of the CPUs'
/// queues before it.
const TURN: u64 = LONGEST_QUEUE as u64 + 1_000;
/// The least that a client waits for an ACK before it sends anew (Linux: 200 ms beyond a round trip, and that has the queue
/// in it).
const LONGEST: Duration = Duration::from_millis(200);
/// Connections whose ACKs are held at a time.
const CONNECTIONS: usize = 1024;

/// Connections with ACKs that are held, the first one first.
#[derive(Debug)]
pub(crate) struct Holds {
    queue: VecDeque<Held>,
    /// Packets of connections that were handled so far.
    turns: u64,
}

/// One of them; it stays here when its ACKs have been sent before their time.
#[derive(Clone, Copy, Debug)]
struct Held {
    id: ConnectionId,
    /// Its ACKs are held no longer: the connection's [`Hold::at`] then.
    until: Instant,
    /// When [`Holds::turns`] says so, none of its packets is on its way that was when the first ACK was held.
    turned: u64,
}

impl Holds {
    pub(crate) fn new() -> Self {
        Self {
            queue: VecDeque::with_capacity(CONNECTIONS),
            turns: 0,
        }
    }

    /// A packet of a connection has been handled.
    pub(crate) const fn count_turn(&mut self) {
        self.turns += 1;
    }

    /// ACKs of the connection are held. `true`: from now on, and for a while.
    pub(crate) fn note(&mut self, now: Instant, id: ConnectionId, hold: &mut Hold) -> bool {
        let is_first = !hold.is_queued;
        if is_first {
            hold.is_queued = true;
            hold.at = self.queue(now, id);
        }
        is_first
    }

    fn queue(&mut self, now: Instant, id: ConnectionId) -> Instant {
        let until = now + LONGEST;
        self.queue.push_back(Held {
            id,
            until,
            turned: self.turns + TURN,
        });
        until
    }
}

impl Hand<'_> {
    /// Before a packet of the TCP leg: whether its ACK may be held.
    pub(super) fn allow_hold(&mut self) {
        let Some(installer) = &self.installer else {
            return;
        };
        let now = self.ctx.now;
        let installation = &mut self.connection.installation;
        let hold = &installation.hold;
        let in_time = if hold.is_queued {
            now < hold.at
        } else {
            hold.at <= now && installer.holds.queue.len() < CONNECTIONS
        };
        installation.hold.allowed =
            in_time && installer.is_behind() && installation.may_be_installed(now);
    }
}

impl Translator {
    /// Sends the ACKs of a connection that are held.
    pub(crate) fn release_hold(&mut self, now: Instant, id: ConnectionId) {
        let Some(connection) = self.table.get_mut(id) else {
            return;
        };
        let hold = &mut connection.installation.hold;
        if !hold.is_queued {
            return;
        }
        let owed = hold.subflows;
        *hold = Hold {
            at: now,
            ..Hold::default()
        };
        if connection.phase.is_established() {
            let mut ctx = context!(self, now);
            connection.send_new_acks(&mut ctx, owed & connection.living());
        }
    }

    /// Releases what is held for too long. Its connection is installed if those that seem to be on their way must be lost.
    pub(crate) fn end_overdue_holds(&mut self, now: Instant) {
        while let Some(installer) = &mut self.installer
            && let Some(&held) = installer.holds.queue.front()
            && (held.until <= now || held.turned <= installer.holds.turns)
        {
            installer.holds.queue.pop_front();
            if !self.is_current(held) {
                continue;
            }
            if held.turned <= self.turns() && self.has_lost_the_rest(held.id) {
                self.install_held(now, held.id);
            } else {
                self.release_in_vain(now, held.id);
            }
        }
    }

    /// No packet waits: releases all that is held, and installs whose packets are all here.
    pub(crate) fn end_holds(&mut self, now: Instant) {
        while let Some(installer) = &mut self.installer
            && let Some(held) = installer.holds.queue.pop_front()
        {
            if !self.is_current(held) {
                continue;
            }
            if self.is_alone_at_last(held.id) {
                self.install_held(now, held.id);
            } else {
                self.release_hold(now, held.id);
            }
        }
    }

    /// Installs a connection none of whose packets is on its way any more.
    fn install_held(&mut self, now: Instant, id: ConnectionId) {
        if self.install(now, id) != Attempt::Installed {
            self.release_in_vain(now, id);
        }
    }

    /// Sends the ACKs of a connection that are held, although it is not installed, and holds none for a while.
    pub(crate) fn release_in_vain(&mut self, now: Instant, id: ConnectionId) {
        self.release_hold(now, id);
        if let Some(connection) = self.table.get_mut(id) {
            connection.installation.hold.pause(now);
        }
    }

    /// Whether ACKs of a connection that stood in the queue are held still.
    fn is_current(&mut self, held: Held) -> bool {
        let Some(connection) = self.table.get_mut(held.id) else {
            return false;
        };
        let hold = &mut connection.installation.hold;
        let is_its_place = hold.is_queued && hold.at == held.until;
        if is_its_place && !hold.is_held() {
            // Other packets have told all that they would.
            *hold = Hold::default();
        }
        is_its_place && hold.is_held()
    }

    /// So many packets of other connections have been handled.
    #[cfg(feature = "internals")]
    pub(crate) fn count_turns(&mut self, count: u32) {
        if let Some(installer) = &mut self.installer {
            (0..count).for_each(|_| installer.holds.count_turn());
        }
    }

    /// ACKs of so many other connections are held.
    #[cfg(feature = "internals")]
    pub(crate) fn fill_holds(&mut self, now: Instant, count: u32) {
        if let Some(installer) = &mut self.installer {
            for _ in 0..count {
                installer.holds.queue(now, ConnectionId::MAX);
            }
        }
    }

    fn turns(&self) -> u64 {
        let installer = self.installer.as_ref();
        installer.map_or(0, |installer: &Installer| installer.holds.turns)
    }
}

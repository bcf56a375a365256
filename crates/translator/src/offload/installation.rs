//! What a connection and the fast path have to do with each other: the slot, how steadily its packets come, how many are
//! on their way, and which ACKs wait until it is installed.

use core::time::Duration;

use super::FastPath;
use crate::handle::SubflowSet;
use crate::time::Instant;

/// One that was installed for fewer packets than these came back at once: as when its client sends anew what got lost. Where
/// packets wait, it is not installed before as many in a row as one that has no slot.
const AT_ONCE: u32 = 8;
/// A connection that was evicted after fewer packets than these needed the fast path little: it makes room for others
/// while those are refused, and none of its ACKs is held for a while.
pub(crate) const FEW: u64 = 64;

/// So many packets in a row behind which others seemed to be on their way, and the fewest of those have got lost.
const LONG: u16 = 4096;
/// What such a packet weighs when none waits: as many as these, handled while others wait.
const EMPTY: u16 = LONG / 4;

/// No slot has this number.
const NO_SLOT: u32 = u32::MAX;

/// Pause after ACKs were held in vain.
const PAUSE: Duration = Duration::from_millis(100);

/// What the fast path has to do with a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Installation {
    /// The slot that it has with the fast path, installed or not; [`NO_SLOT`].
    slot: u32,
    /// It is the fast path's for now.
    pub(crate) installed: bool,
    /// Packets in a row that were forwarded, and nothing else happened.
    pub(crate) steady: u8,
    /// While it is installed: when to look at it. Otherwise: it is not offered before.
    pub(crate) look: Instant,
    /// Packets that the fast path has translated when it was installed last; no more than counts.
    pub(crate) carried: u32,
    /// Packets that were handled since it has the slot.
    pub(crate) handled: u32,
    /// The most by which those were ahead of what passed the fast path: then none was on its way.
    pub(crate) ahead: u32,
    /// Packets in a row behind which others were on their way.
    pub(crate) followed: u16,
    /// The fewest that were on their way behind one of those.
    pub(crate) fewest: u16,
    /// It was installed last without a slot before, so that nobody knew what was on its way.
    pub(crate) unseen: bool,
    /// It came back at once then, although none was on its way.
    pub(crate) bounced: bool,
    /// ACKs that are held until it is installed.
    pub(crate) hold: Hold,
}

/// What a connection knows of its ACKs that are held.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Hold {
    /// An ACK alone may be held.
    pub(crate) allowed: bool,
    /// Subflows that are owed one.
    pub(crate) subflows: SubflowSet,
    /// The connection stands in the queue of [`Holds`].
    pub(crate) is_queued: bool,
    /// Then: its place there, and when they get it at the latest. Otherwise: none is held before.
    pub(crate) at: Instant,
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
    pub(crate) fn slot(&self) -> Option<u32> {
        Some(self.slot).filter(|&slot| slot != NO_SLOT)
    }

    /// Counts a packet; whether no other of the connection is on its way to the translator, as far as the fast path
    /// knows.
    ///
    /// What was on its way when the connection got its slot has not been counted there, and what gets lost on the way
    /// is not counted here: the first shows as it comes, the second makes this say no for a while. The while over, the
    /// fewest that were on their way count as none.
    pub(crate) fn is_alone(&mut self, fast_path: &dyn FastPath) -> Option<bool> {
        self.handled = self.handled.wrapping_add(1);
        if self.followed >= LONG {
            self.start_from(self.ahead.wrapping_sub(self.fewest.into()));
        }
        self.weigh(fast_path, 1)
    }

    /// The same for one that waits to be installed, now that no packet waits.
    pub(crate) fn is_alone_at_last(&mut self, fast_path: &dyn FastPath) -> bool {
        self.weigh(fast_path, EMPTY) != Some(false)
    }

    pub(crate) fn weigh(&mut self, fast_path: &dyn FastPath, weight: u16) -> Option<bool> {
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

    /// It has this slot from now on.
    pub(crate) const fn take_slot(&mut self, slot: u32) {
        self.slot = slot;
    }

    /// It has no slot any more.
    pub(crate) const fn forget_slot(&mut self) {
        self.slot = NO_SLOT;
    }

    /// None is on its way when so many more were handled than have passed.
    pub(crate) const fn start_from(&mut self, ahead: u32) {
        self.ahead = ahead;
        self.followed = 0;
        self.fewest = u16::MAX;
    }

    /// Notes from now on how many seem to be on their way at least.
    pub(crate) fn watch_lost(&mut self, fast_path: &dyn FastPath) {
        self.fewest = u16::MAX;
        self.weigh(fast_path, 0);
    }

    /// All that was on its way when [`watch_lost`](Self::watch_lost) was called is here or lost, and so is everything since:
    /// the fewest that seemed to be on their way count as none, if it is those.
    pub(crate) fn write_off_lost(&mut self, fast_path: &dyn FastPath) -> bool {
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
    pub(crate) fn note_return(&mut self, now: Instant, packets: u64) {
        self.installed = false;
        self.steady = 0;
        self.look = now;
        self.carried = u32::try_from(packets).unwrap_or(u32::MAX);
        self.bounced = !self.unseen && self.carried < AT_ONCE;
        if !self.unseen && packets < FEW {
            self.hold.pause(now);
        }
    }

    /// Packets that have passed when none is on its way.
    pub(crate) const fn expected(&self) -> u32 {
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

impl Hold {
    /// Whether an ACK alone may be held, with which a packet of the server's comes.
    pub(crate) const fn is_allowed(&self) -> bool {
        self.allowed
    }

    /// Subflows are owed an ACK.
    pub(crate) const fn owe(&mut self, subflows: SubflowSet) {
        self.subflows |= subflows;
    }

    /// A packet tells them all that an ACK would.
    pub(crate) const fn tell(&mut self, subflows: SubflowSet) {
        self.subflows &= !subflows;
    }

    /// Some are owed an ACK.
    pub(crate) const fn is_held(&self) -> bool {
        self.subflows != 0
    }

    /// ACKs were held, and it has come to little.
    pub(crate) fn pause(&mut self, now: Instant) {
        self.is_queued = false;
        self.at = now + PAUSE;
    }
}

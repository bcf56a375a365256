//! Uplinks of a box that lose their addresses for a while: one at a time, and all are there once the faults are over.
//!
//! Drawn apart from the rest of a seed, so that other seeds are what they were before there was any of this.

use flexcp_testkit::Random;

use crate::swarm::{MILLI, Plan, SECOND};

/// An uplink loses its address, or gets it back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct UplinkChange {
    /// When, in microseconds.
    pub(crate) at: u64,
    /// Of which link.
    pub(crate) link: usize,
}

impl Plan {
    /// Draws when uplinks are lost: never in three quarters of the seeds.
    pub(crate) fn draw_uplink_changes(&mut self) {
        let mut random = Random::for_purpose(self.seed, 22);
        let links = self.links.len() as u64;
        if links < 2 || !random.one_in(4) {
            return;
        }
        let mut at = 0;
        for _ in 0..random.between(1, 4) {
            let pause = random.pick(&[20, 300, 1000]) * MILLI;
            let from = at + random.below(pause) + MILLI;
            let most = random.pick(&[100 * MILLI, SECOND, 3 * SECOND]);
            let to = from + random.below(most) + MILLI;
            if to >= self.calm {
                break;
            }
            let link = random.below(links) as usize;
            self.uplinks
                .extend([from, to].map(|at| UplinkChange { at, link }));
            at = to;
        }
        // The box forgets a handshake on an uplink that is lost, and its host resets that.
        for connection in &mut self.connections {
            let answers = connection.answers.iter_mut();
            answers.for_each(|answers| answers.listens_on = true);
        }
    }

    /// The uplink has no address, or has one again.
    pub(crate) const fn change_uplink(&mut self, change: UplinkChange) {
        self.lost ^= 1 << change.link;
    }

    /// Whether a packet to hosts of this number, of the box's own uplinks, is for the box's host.
    pub(crate) fn is_for_host(&self, net: u8) -> bool {
        self.is_mirrored() && (1..=self.links.len()).contains(&net.into())
    }

    /// The same of the link whose hosts have this number.
    pub(crate) fn has_lost_net(&self, net: u8) -> bool {
        let link = usize::from(net).checked_sub(1);
        link.is_some_and(|link| link < self.links.len() && self.has_lost(link))
    }

    /// Whether the box has no address on the uplink of this link.
    pub(crate) const fn has_lost(&self, link: usize) -> bool {
        self.lost & (1 << link) != 0
    }
}

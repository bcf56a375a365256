//! What a connection has carried each time its mode was asked, and how fast that was.

use core::time::Duration;

use super::{Connection, Subflow};
use crate::handle::SubflowIndex;
use crate::steering::{Load, expected_of_another};

/// In microseconds.
const SECOND: u64 = 1_000_000;

/// Bytes of payload on all subflows up to the last time, of which the low halves are enough: differences are taken.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Carried {
    down: u32,
    up: u32,
    /// Bytes per second that went down before that, smoothed over a second.
    rate: u32,
}

impl Carried {
    /// Bytes per second that went down, smoothed over a second.
    pub(super) const fn rate(self) -> u32 {
        self.rate
    }

    /// So much has been carried by now; `since`: that was looked at so long ago. `true`: it was less then.
    fn note(&mut self, (up, down): (u32, u32), since: Option<Duration>) -> bool {
        let bytes = u64::from(down.wrapping_sub(self.down));
        let more = bytes > 0 || up != self.up;
        (self.up, self.down) = (up, down);
        let Some(micros) = since.and_then(|since| u64::try_from(since.as_micros()).ok()) else {
            return more;
        };
        let rate = bytes.saturating_mul(SECOND) / micros.max(1);
        // What is a second old counts no more.
        let part = if self.rate == 0 {
            SECOND
        } else {
            micros.min(SECOND)
        };
        let before = u64::from(self.rate) * (SECOND - part);
        let smoothed = (before + rate.min(u32::MAX.into()) * part) / SECOND;
        self.rate = u32::try_from(smoothed).unwrap_or(u32::MAX);
        more
    }
}

impl Subflow {
    /// What it has carried up and down.
    #[allow(clippy::cast_possible_truncation, reason = "differences are taken")]
    const fn carried(&self) -> (u32, u32) {
        (self.traffic.bytes_up as u32, self.traffic.bytes_down as u32)
    }
}

impl Connection {
    /// Notes what has been carried since the mode was asked; `since`: so long ago. `true`: there was something.
    pub(super) fn note_carried(&mut self, since: Option<Duration>) -> bool {
        let each = self.mptcp.subflows.iter().map(Subflow::carried);
        let sum = each.fold((0_u32, 0_u32), |(up, down), (more_up, more_down)| {
            (up.wrapping_add(more_up), down.wrapping_add(more_down))
        });
        self.mptcp.steered.carried.note(sum, since)
    }

    /// Another subflow takes this one's place, and what it carried is no part of the sums any more.
    pub(super) fn forget_carried(&mut self, index: SubflowIndex) {
        let (up, down) = self.subflow(index).carried();
        let carried = &mut self.mptcp.steered.carried;
        carried.up = carried.up.wrapping_sub(up);
        carried.down = carried.down.wrapping_sub(down);
    }

    /// Bytes per second to be expected of it, by what it carried itself or others of its rule.
    pub(super) fn expected(&self, loads: impl Iterator<Item = Load>) -> u64 {
        match self.mptcp.steered.carried.rate {
            0 => expected_of_another(loads),
            known => known.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_up_is_carried_and_has_no_rate() {
        let mut carried = Carried::default();
        let second = Some(Duration::from_secs(1));
        assert!(!carried.note((0, 0), None));
        assert!(carried.note((1000, 0), second));
        assert!(!carried.note((1000, 0), second));
        assert_eq!(carried.rate(), 0);
        assert!(carried.note((1000, 500), second));
        assert_eq!(carried.rate(), 500);
    }
}

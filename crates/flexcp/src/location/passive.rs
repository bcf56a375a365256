//! What uplinks carry, as the kernel counts it: a lower bound for the server that is in use.

use std::time::Duration;

use flexcp_location::{Time, Transfer};

/// What one uplink has brought, as it was looked at last.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Brought {
    last: Option<(u64, Time)>,
    /// Of that, probes since then.
    probes: u64,
}

impl Brought {
    /// Bytes of a probe have come.
    pub(super) fn probe(&mut self, bytes: usize) {
        self.probes += bytes as u64;
    }

    /// What has come since the last look but probes, if there was one, when the interface's count is `bytes`.
    pub(super) fn look(&mut self, bytes: Option<u64>, now: Time) -> Option<Transfer> {
        let probes = std::mem::take(&mut self.probes);
        let before = std::mem::replace(&mut self.last, bytes.map(|bytes| (bytes, now)));
        let ((before, then), bytes) = (before?, bytes?);
        Some(Transfer {
            // An interface that was made anew counts from zero.
            bytes: bytes.checked_sub(before)?.saturating_sub(probes),
            busy: now.since(then),
            by_path: false,
        })
    }
}

/// What all interfaces have received so far, as the kernel counts it.
#[derive(Default, Debug)]
pub(super) struct Received(String);

impl Received {
    /// As it is now.
    pub(super) fn now() -> Self {
        Self(std::fs::read_to_string("/proc/net/dev").unwrap_or_default())
    }

    /// Bytes of one of them, if it is there.
    pub(super) fn by(&self, interface: &str) -> Option<u64> {
        let mut lines = self.0.lines().filter_map(|line| line.split_once(':'));
        let (_, counts) = lines.find(|(name, _)| name.trim() == interface)?;
        counts.split_whitespace().next()?.parse().ok()
    }
}

/// Looks that are further apart say nothing about the second between them.
pub(super) fn is_prompt(transfer: &Transfer) -> bool {
    transfer.busy < Duration::from_secs(3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_between_two_looks_are_those_of_connections_without_probes() {
        let mut brought = Brought::default();
        assert_eq!(brought.look(Some(1000), Time::from_secs(1)), None);
        brought.probe(200);
        let transfer = brought.look(Some(5000), Time::from_secs(2)).unwrap();
        assert_eq!(
            (transfer.bytes, transfer.busy),
            (3800, Duration::from_secs(1))
        );
        assert!(!transfer.by_path && is_prompt(&transfer));
        let transfer = brought.look(Some(6000), Time::from_secs(5)).unwrap();
        assert_eq!(transfer.bytes, 1000);
        assert!(!is_prompt(&transfer));
        // It was made anew, and is gone.
        assert_eq!(brought.look(Some(100), Time::from_secs(6)), None);
        assert_eq!(brought.look(None, Time::from_secs(7)), None);
        assert_eq!(brought.look(Some(100), Time::from_secs(8)), None);
        let received =
            Received("Inter-| Receive\n face |bytes packets\n  a1: 77 5 0\n a11:8 1\n".into());
        assert_eq!(
            ["a1", "a11", "a"].map(|name| received.by(name)),
            [Some(77), Some(8), None]
        );
        assert!(Received::now().by("lo").is_some());
    }
}

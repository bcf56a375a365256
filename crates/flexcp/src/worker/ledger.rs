//! Where every packet has gone. A worker counts packets at its device, at the rings to other workers and in its
//! batch; the translator counts what it does with each. The two have nothing in common but the packets, so whatever
//! gets lost without a reason, or comes from nowhere, shows.

use super::Snapshot;

/// Packets that one side has counted and the other has not; all are 0 unless there is a defect.
///
/// The equations hold whenever a worker answers, for each worker and so for the sum of all, however far apart they
/// are asked: a packet under way in a ring has been handed over by one worker and not been taken by the other.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Unaccounted {
    /// From the device or a ring on to the translator or another ring:
    /// `device_rx + taken_over = malformed_rx + handed_over + handover_lost + packets_in`.
    pub received: u64,
    /// In the translator: `packets_in = packets_forwarded + packets_consumed + dropped by reason`.
    pub translated: u64,
    /// From the translator to the device:
    /// `packets_forwarded + packets_made = device_tx + acks_superseded + send_failed + kept`.
    pub sent: u64,
}

impl Unaccounted {
    /// What a worker can't account for. What the fast path has translated came by no worker and is left out.
    #[must_use]
    pub fn of(worker: &Snapshot) -> Self {
        let Snapshot {
            counters,
            drops,
            carrier,
            kept,
            ..
        } = worker;
        let elsewhere = counters.offload_packets_down + counters.offload_packets_up;
        let dropped: u64 = drops.iter().map(|(_, count)| count).sum();
        let received = carrier.device_rx + carrier.taken_over;
        let passed_on = carrier.malformed_rx + carrier.handed_over + carrier.handover_lost;
        let outgoing = counters.packets_forwarded + counters.packets_made;
        let left = carrier.device_tx + carrier.acks_superseded + carrier.send_failed;
        Self {
            received: (received + elsewhere).abs_diff(passed_on + counters.packets_in),
            translated: counters
                .packets_in
                .abs_diff(counters.packets_forwarded + counters.packets_consumed + dropped),
            sent: outgoing.abs_diff(left + kept + elsewhere + counters.offload_packets_made),
        }
    }

    /// Name and value of each.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        [
            ("received", self.received),
            ("translated", self.translated),
            ("sent", self.sent),
        ]
        .into_iter()
    }
}

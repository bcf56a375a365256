//! Whether FlexCP's books are right: every packet accounted for, as it says itself and as the kernel counts at its
//! device, and nothing held when no connection is left.

use anyhow::{Context as _, Result, ensure};
use flexcp_testkit::Stats;

use crate::namespace::Namespace;

/// Packets that passed FlexCP's device, as the kernel counts them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DevicePackets {
    /// Given to FlexCP.
    given: u64,
    /// Taken from FlexCP.
    taken: u64,
}

impl DevicePackets {
    /// Reads the counters of the device `name`. What the device transmits FlexCP receives, and the other way round.
    pub(crate) fn read(namespace: &Namespace, name: &str) -> Result<Self> {
        Self::parse(&namespace.proc_net("dev")?, name)
            .with_context(|| format!("/proc/net/dev has no {name}"))
    }

    fn parse(dev: &str, name: &str) -> Option<Self> {
        let lines = dev.lines().filter_map(|line| line.split_once(':'));
        let (_, numbers) = lines.into_iter().find(|(known, _)| known.trim() == name)?;
        let number = |at| numbers.split_whitespace().nth(at)?.parse().ok();
        Some(Self {
            given: number(9)?,
            taken: number(1)?,
        })
    }
}

/// Holds `flexcp show stats --json` against what the kernel has counted at the device.
pub(crate) fn judge(stats: &Stats, device: DevicePackets) -> Result<()> {
    let unaccounted = stats.group("unaccounted")?;
    let lost: Vec<_> = unaccounted
        .iter()
        .filter(|(_, count)| *count != 0)
        .collect();
    ensure!(
        !unaccounted.is_empty() && lost.is_empty(),
        "FlexCP can't account for packets: {lost:?}"
    );
    let said = DevicePackets {
        given: stats.number("carrier.device_rx")?,
        taken: stats.number("carrier.device_tx")?,
    };
    ensure!(
        said == device,
        "at FlexCP's device the kernel counts {device:?}, FlexCP {said:?}"
    );
    if !stats.group("offload")?.is_empty() {
        let counted =
            stats.counter("offload_packets_up")? + stats.counter("offload_packets_down")?;
        // A packet that could not be rewritten has been counted in its flow entry, and is lost.
        let translated =
            stats.number("offload.translated")? + stats.number("offload.rewrite_failed")?;
        ensure!(
            counted == translated,
            "the offload has translated {translated} packets, its entries count {counted}"
        );
    }
    if stats.number("connections")? == 0 {
        let gauges = stats.group("gauges")?;
        let held: Vec<_> = gauges.iter().filter(|(_, count)| *count != 0).collect();
        ensure!(
            !gauges.is_empty() && held.is_empty(),
            "no connection is left, and FlexCP holds {held:?}"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const DEVICE: DevicePackets = DevicePackets {
        given: 10,
        taken: 12,
    };

    fn right() -> Value {
        json!({
            "unaccounted": {"received": 0, "translated": 0, "sent": 0},
            "carrier": {"device_rx": 10, "device_tx": 12},
            "counters": {"offload_packets_up": 3, "offload_packets_down": 4},
            "offload": {"translated": 6, "rewrite_failed": 1},
            "gauges": {"flows": 0, "in_rings": 0},
            "connections": 0,
        })
    }

    fn complaint(change: impl FnOnce(&mut Value)) -> String {
        let mut stats = right();
        change(&mut stats);
        judge(&stats.into(), DEVICE)
            .expect_err("it is wrong")
            .to_string()
    }

    #[test]
    fn books_that_are_right_pass() {
        judge(&right().into(), DEVICE).expect("right");
    }

    #[test]
    fn packet_that_nobody_accounts_for_is_named() {
        let said = complaint(|stats| stats["unaccounted"]["sent"] = json!(1));
        assert_eq!(said, "FlexCP can't account for packets: [(\"sent\", 1)]");
        complaint(|stats| stats["unaccounted"] = json!({}));
    }

    #[test]
    fn packet_that_only_one_side_of_the_device_counts() {
        complaint(|stats| stats["carrier"]["device_rx"] = json!(9));
        complaint(|stats| stats["carrier"]["device_tx"] = json!(13));
    }

    #[test]
    fn packet_that_the_offload_translated_and_no_entry_counts() {
        complaint(|stats| stats["offload"]["translated"] = json!(7));
        let mut without = right();
        without["offload"] = json!({});
        judge(&without.into(), DEVICE).expect("no offload");
    }

    #[test]
    fn something_is_held_when_no_connection_is_left() {
        let said = complaint(|stats| stats["gauges"]["flows"] = json!(1));
        assert_eq!(
            said,
            "no connection is left, and FlexCP holds [(\"flows\", 1)]"
        );
        let mut with = right();
        with["gauges"]["flows"] = json!(2);
        with["connections"] = json!(1);
        judge(&with.into(), DEVICE).expect("a connection has flows");
    }

    #[test]
    fn device_counters_are_read() {
        let dev = "Inter-|   Receive  |  Transmit\n face |bytes packets errs\n    lo: 1 2 3 4 5 6 7 8 9 10 11 12\n\
                   flexcp0: 5000 12 0 0 0 0 0 0 4000 10 0 3 0 0 0 0\n";
        assert_eq!(DevicePackets::parse(dev, "flexcp0"), Some(DEVICE));
        assert_eq!(DevicePackets::parse(dev, "flexcp1"), None);
    }
}

//! Decisions and their causes: what the counters say of them, and what can be seen.

use std::time::Duration;

use flexcp_invariants::Bounds;
use flexcp_translator::{Causes, Config, Counters, Limits, Mode, Rule};
use flexcp_wire::{IpHeader, TcpFlags, TcpHeader};

use super::Scenario;
use super::twin::Out;

/// So many ports towards the back ends do for all tests that do not want them to run out.
const PORTS: usize = 100;

/// What the checker has to know of a configuration.
pub(super) fn bounds(config: &Config) -> Bounds {
    let (limits, timeouts) = (config.limits, config.timeouts);
    let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let few = |mode: &Mode| match mode {
        Mode::Reverse { source_ports, .. }
        | Mode::Explicit { source_ports, .. }
        | Mode::Box { source_ports, .. } => source_ports.len() < PORTS,
        Mode::Transparent { .. } => false,
    };
    let redundant = |rule: &Rule| format!("{:?}", rule.mode).starts_with("Redundant");
    let many = Limits::default();
    let scarce = limits.connections < many.connections || limits.half_open < many.half_open;
    Bounds {
        subflows: limits.subflows,
        joins: limits.half_open_joins,
        mappings: limits.mappings,
        crowded: scarce || config.services.iter().any(|service| few(&service.mode)),
        short_of_memory: limits.memory < many.memory,
        ending: false,
        redundant: config.rules.iter().any(redundant),
        half_open: micros(timeouts.half_open),
        rejoin: micros(timeouts.rejoin),
        idle: micros(timeouts.idle),
        add_addr: micros(timeouts.add_addr),
        silence: micros(timeouts.silence),
    }
}

/// Each decision has been counted with its cause, and no RST was made without.
pub(super) fn judge(before: &Counters, after: &Counters, made: &[Out]) {
    let of = |causes: &Causes, group: &str| -> u64 {
        let named = causes.iter().filter(|(decision, ..)| *decision == group);
        named.map(|(_, _, count)| count).sum()
    };
    let is_rst = |out: &&Out| {
        let ip = IpHeader::parse(&out.bytes).expect("an IP packet");
        let tcp = out.bytes.get(ip.header_len..).map(TcpHeader::parse);
        ip.protocol == 6
            && tcp.is_some_and(|tcp| tcp.expect("a segment").0.flags.contains(TcpFlags::RST))
    };
    let rsts = made.iter().filter(is_rst).count();
    let counted = of(&after.causes, "rst") - of(&before.causes, "rst");
    assert_eq!(
        counted, rsts as u64,
        "RSTs without a cause, or causes without a RST"
    );
    for (group, total) in [
        ("plain_syn", after.plain_syn),
        ("join_refused", after.mp_join_refused),
        ("subflow_switch", after.subflow_switch),
        ("half_open_evicted", after.half_open_evicted),
        (
            "fallback",
            after.fallback_handshake + after.fallback_established,
        ),
    ] {
        assert_eq!(of(&after.causes, group), total, "{group} without a cause");
    }
}

impl Scenario {
    /// What has been decided so far and why: `rst.stuck+1 subflow_switch.failed+1`.
    pub(crate) fn why(&self) -> String {
        let causes = self.translator.counters().causes;
        let decided = causes.iter().filter(|(.., count)| *count > 0);
        let words = decided.map(|(decision, cause, count)| format!("{decision}.{cause}+{count}"));
        words.collect::<Vec<_>>().join(" ")
    }
}

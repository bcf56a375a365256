//! What the programs count.

use std::sync::Arc;

use aya::maps::{HashMap, MapData, PerCpuArray};

use super::words::Words;
use super::{FlowKey, FlowRef, OPEN};

/// What the programs count, and what that means, in the order of `enum reason`: packets that were translated, and why
/// others of installed connections go to the translator.
pub(super) const REASONS: [(&str, &str); 25] = [
    ("translated", "Translated in the kernel."),
    (
        "not_installed",
        "Its connection was not installed just then.",
    ),
    (
        "flags",
        "A TCP flag that is not of the steady course (SYN, FIN, RST, URG, ECN).",
    ),
    (
        "options",
        "TCP options that are not expected, or none where some have to be.",
    ),
    (
        "checksum",
        "Its checksum is wrong, or nobody has looked at it and the programs could not.",
    ),
    (
        "ip_header",
        "IP options, a TTL at its end, or marked by ECN.",
    ),
    (
        "too_long",
        "Too long with the options that it would get, or to be moved.",
    ),
    (
        "route",
        "The kernel knows no way for it, or no neighbour, or the way's MTU is too small.",
    ),
    ("repeated", "Data that has passed before."),
    (
        "ahead",
        "Data that has overtaken more than can be kept account of.",
    ),
    (
        "sequence_up",
        "A number of the client's that is not expected.",
    ),
    (
        "mapping",
        "A mapping that does not fit those that are known.",
    ),
    ("ack", "An ACK that is not expected."),
    (
        "window",
        "A window that has to be changed for the other side.",
    ),
    (
        "overdue",
        "An answer of the client's is overdue: its path may have failed.",
    ),
    ("no_room", "No room for what has to be remembered of it."),
    (
        "no_news",
        "An ACK that says nothing new: a duplicate or a probe.",
    ),
    (
        "several",
        "It is for more subflows than the programs can tell.",
    ),
    ("hole", "It lies behind a hole on its subflow."),
    (
        "rewrite_failed",
        "The kernel could not change it: it is lost.",
    ),
    (
        "stale_ack",
        "An ACK that tells the server nothing new: dropped, as the translator would.",
    ),
    (
        "left_out",
        "The part of the programs that translates it was refused by the kernel.",
    ),
    ("plain", "Plain TCP that the kernel forwards by itself."),
    (
        "slow",
        "Its path has become slower than its steering rule has patience with.",
    ),
    (
        "socket",
        "Of a connection that a socket of this host has, as split ones do.",
    ),
];

/// What the programs have counted.
pub struct Reasons {
    pub(super) counts: PerCpuArray<MapData, u64>,
    pub(super) flows: HashMap<MapData, FlowKey, FlowRef>,
    pub(super) gates: Arc<Words>,
}

impl Reasons {
    /// The name of each count, and what it means.
    #[must_use]
    pub const fn meanings() -> &'static [(&'static str, &'static str)] {
        &REASONS
    }

    /// Packets of connections that were installed once: translated in the kernel, or why not, by reason.
    #[must_use]
    pub fn counts(&self) -> Vec<(&'static str, u64)> {
        let count = |(index, (name, _)): (usize, (&'static str, &str))| {
            let index = u32::try_from(index).unwrap_or(u32::MAX);
            let counted = self.counts.get(&index, 0);
            (name, counted.map_or(0, |counted| counted.iter().sum()))
        };
        REASONS.into_iter().enumerate().map(count).collect()
    }

    /// What the programs hold now: `offload_flows`, entries of their table, counted one by one, and `offload_open`,
    /// slots whose flow entry is theirs. Not for the packet path.
    #[must_use]
    pub fn held(&self) -> [(&'static str, u64); 2] {
        let number = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        let flows = self.flows.keys().filter(Result::is_ok).count();
        [
            ("offload_flows", number(flows)),
            ("offload_open", number(self.gates.count(OPEN))),
        ]
    }
}

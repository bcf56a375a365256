//! The cases: a rule each, and what is done under it.

use anyhow::Result;

use super::load::Sizes;
use super::{balance, copies, delay, flows, priority, standby};
use crate::aim::Line;

/// A rule and its load.
pub(super) struct Case {
    pub(super) name: &'static str,
    /// Lines of the rule, as a configuration has them.
    pub(super) rule: &'static str,
    load: Load,
}

/// What is done, and by what it is judged.
#[derive(Clone, Copy)]
enum Load {
    /// Transfers one after another: so many percent of the bytes come over `a`.
    Balance(f64, Sizes),
    /// Connections at once: how many take each path.
    Flows(flows::Spread),
    /// The path of the active access is cut, and comes back.
    Standby,
    /// More is asked for than the preferred access carries, and then less.
    Priority,
    /// The path that is longer becomes the shorter one, and the other way round.
    Delay,
    /// Each path is cut in turn.
    Copies,
}

impl Case {
    pub(super) fn run(&self, rule: &str, seed: u64) -> Result<Vec<Line>> {
        match self.load {
            Load::Balance(percent, sizes) => balance::run(rule, percent, sizes, seed),
            Load::Flows(spread) => flows::run(rule, spread),
            Load::Standby => standby::run(rule),
            Load::Priority => priority::run(rule),
            Load::Delay => delay::run(rule),
            Load::Copies => copies::run(rule),
        }
    }
}

const EQUAL: Sizes = Sizes::Equal(500_000);
const HEAVY: Sizes = Sizes::Pareto {
    alpha: 1.2,
    least: 10_000,
    most: 50_000_000,
};

/// Loads are measured against weights: limits that a path could break are left out.
const HALVES: &str =
    "mode = \"load-balancing\"\nweights = { a = 50, b = 50 }\nhold = \"1s\"\nfail_back = \"2s\"";
const THIRTY: &str =
    "mode = \"load-balancing\"\nweights = { a = 30, b = 70 }\nhold = \"1s\"\nfail_back = \"2s\"";

/// All of them.
pub(super) const CASES: &[Case] = &[
    Case {
        name: "balance-50-equal",
        rule: HALVES,
        load: Load::Balance(50.0, EQUAL),
    },
    Case {
        name: "balance-30-equal",
        rule: THIRTY,
        load: Load::Balance(30.0, EQUAL),
    },
    Case {
        name: "balance-50-heavy",
        rule: HALVES,
        load: Load::Balance(50.0, HEAVY),
    },
    Case {
        name: "balance-30-heavy",
        rule: THIRTY,
        load: Load::Balance(30.0, HEAVY),
    },
    Case {
        name: "round-robin",
        rule: "mode = \"round-robin\"",
        load: Load::Flows(flows::Spread::Even),
    },
    Case {
        name: "random",
        rule: "mode = \"random\"",
        load: Load::Flows(flows::Spread::Random),
    },
    Case {
        name: "active-standby",
        rule: "mode = \"active-standby\"\naccesses = [\"b\", \"a\"]\nhold = \"1s\"\nfail_back = \"2s\"",
        load: Load::Standby,
    },
    Case {
        name: "priority",
        rule: "mode = \"priority\"\naccesses = [\"a\", \"b\"]\nmax_rtt = \"50ms\"\nhold = \"1s\"\nfail_back = \"2s\"",
        load: Load::Priority,
    },
    Case {
        name: "smallest-delay",
        rule: "mode = \"smallest-delay\"\nhold = \"1s\"",
        load: Load::Delay,
    },
    Case {
        name: "redundant",
        rule: "mode = \"redundant\"",
        load: Load::Copies,
    },
];

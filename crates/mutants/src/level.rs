//! The tests as levels, those without root first, the cheapest first: which of them can notice a bug in which crate.

use crate::list::Bug;

/// Cargo's profile in which a level is built.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Profile {
    Test,
    /// That, and nothing optimised: for tests that take longer to build than to run.
    Quick,
    /// Nearly the release, built in half the time, with every check on.
    Fuzz,
}

/// Tests that are built and run together.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Level {
    pub(crate) name: &'static str,
    pub(crate) package: &'static str,
    /// Which of its targets, as arguments of `cargo test`.
    pub(crate) targets: &'static [&'static str],
    /// Which of its tests; empty: all.
    pub(crate) filter: &'static str,
    pub(crate) profile: Profile,
    pub(crate) needs_root: bool,
}

const ALL: &[&str] = &["--lib", "--tests"];
/// Those of `flexcp-location` without its network in virtual time, which takes longer.
const ALONE: &[&str] = &[
    "--lib",
    "--test",
    "choice",
    "--test",
    "codec",
    "--test",
    "responder",
];
const OWN: &[&str] = &["--lib", "--bins"];

const fn free(
    name: &'static str,
    package: &'static str,
    targets: &'static [&'static str],
) -> Level {
    Level {
        name,
        package,
        targets,
        filter: "",
        profile: Profile::Test,
        needs_root: false,
    }
}

const fn root(
    name: &'static str,
    package: &'static str,
    test: &'static [&'static str],
    filter: &'static str,
) -> Level {
    Level {
        name,
        package,
        targets: test,
        filter,
        profile: Profile::Test,
        needs_root: true,
    }
}

const fn e2e(name: &'static str, filter: &'static str) -> Level {
    Level {
        name,
        package: "flexcp-lab",
        targets: &["--test", "e2e"],
        filter,
        profile: Profile::Fuzz,
        needs_root: true,
    }
}

const NETNS: &[&str] = &["--test", "netns"];

static WIRE: Level = free("wire", "flexcp-wire", ALL);
static TESTKIT: Level = free("testkit", "flexcp-testkit", ALL);
static PLACEMENT: Level = free("placement", "flexcp-placement", ALL);
static LOCATION: Level = free("location", "flexcp-location", ALONE);
static LOCATION_NETWORK: Level = free(
    "location network",
    "flexcp-location",
    &["--test", "network"],
);
static FAULTS: Level = free("faults", "flexcp-faults", ALL);
static INVARIANTS: Level = free("invariants", "flexcp-invariants", ALL);
static PREAMBLE: Level = free("preamble", "flexcp-preamble", ALL);
static AGGREGATION: Level = Level {
    profile: Profile::Quick,
    ..free(
        "aggregation",
        "flexcp-translator",
        &["--test", "aggregation"],
    )
};
static SCENARIOS: Level = free("scenarios", "flexcp-translator", ALL);
static FUZZ: Level = free("fuzz", "flexcp-fuzz", ALL);
static SIMULATOR: Level = free("simulator", "flexcp-simulator", ALL);
static CASES: Level = free("rules", "flexcp-io", &["--test", "rules"]);
static NATIVE: Level = free("native", "flexcp-simulator", &["--test", "native"]);
static IO: Level = free("io", "flexcp-io", &["--lib", "--test", "allocations"]);
static FLEXCP: Level = free("flexcp", "flexcp", OWN);
static LAB: Level = free("lab", "flexcp-lab", OWN);

static RULES: Level = root("programs", "flexcp-io", NETNS, "offload_");
static KERNEL: Level = root("netns", "flexcp-io", NETNS, "");
static CLI: Level = root("cli", "flexcp", &["--test", "cli"], "");

static E2E_OFFLOAD: Level = e2e("e2e offload", "offload::");
static E2E_TRANSFER: Level = e2e("e2e transfer", "transfer::");
static E2E_PATH: Level = e2e("e2e path", "path::");
static E2E_CLOSE: Level = e2e("e2e close", "close::");
static E2E_FALLBACK: Level = e2e("e2e fallback", "fallback::");
static E2E_REVERSE: Level = e2e("e2e reverse", "reverse::");
static E2E_OPERATION: Level = e2e("e2e operation", "operation::");
static E2E_WORKERS: Level = e2e("e2e workers", "workers::");
static E2E_BESIDE: Level = e2e("e2e beside", "beside::");
static E2E_DEVICE: Level = e2e("e2e device", "device::");
static E2E_ENDINGS: Level = e2e("e2e endings", "endings::");
static E2E_WATCH: Level = e2e("e2e watch", "watch::");

/// How the names of bugs of the aggregation box begin.
const BOX: &str = "box: ";

/// The levels for a bug, in the order in which they are tried: those of its area, and before them, where it is the
/// box's, the box's own scenarios, which are built sooner than all.
pub(crate) fn levels_of(bug: &Bug) -> Vec<&'static Level> {
    let mut levels = levels(bug.area(), &bug.place);
    if bug.name.starts_with(BOX) && levels.contains(&&SCENARIOS) {
        levels.insert(0, &AGGREGATION);
    }
    levels
}

/// The levels for bugs in an area (`bpf` or a crate).
fn levels(area: &str, place: &str) -> Vec<&'static Level> {
    match area {
        "wire" => vec![&WIRE, &SCENARIOS, &FUZZ, &SIMULATOR],
        "testkit" => vec![&TESTKIT, &WIRE, &INVARIANTS, &SCENARIOS, &SIMULATOR, &LAB],
        "preamble" => vec![&PREAMBLE, &SCENARIOS, &FUZZ, &SIMULATOR],
        "placement" => vec![&PLACEMENT, &SCENARIOS, &FLEXCP, &KERNEL, &CLI, &E2E_WORKERS],
        "location" => vec![&LOCATION, &LOCATION_NETWORK],
        "faults" => vec![&FAULTS, &SIMULATOR, &LAB],
        "invariants" => vec![&INVARIANTS, &SCENARIOS, &FUZZ, &SIMULATOR],
        "simulator" => vec![&SIMULATOR],
        "translator" => vec![
            &SCENARIOS,
            &FUZZ,
            &SIMULATOR,
            &CLI,
            &E2E_TRANSFER,
            &E2E_OFFLOAD,
            &E2E_CLOSE,
            &E2E_FALLBACK,
            &E2E_PATH,
        ],
        "io" => vec![
            &IO,
            &KERNEL,
            &CLI,
            &E2E_TRANSFER,
            &E2E_OFFLOAD,
            &E2E_OPERATION,
            &E2E_REVERSE,
            &E2E_WORKERS,
            &E2E_BESIDE,
            &E2E_DEVICE,
            &E2E_ENDINGS,
            &E2E_WATCH,
        ],
        "flexcp" => vec![
            &FLEXCP,
            &CLI,
            &E2E_TRANSFER,
            &E2E_OFFLOAD,
            &E2E_OPERATION,
            &E2E_REVERSE,
            &E2E_WORKERS,
            &E2E_BESIDE,
            &E2E_DEVICE,
            &E2E_ENDINGS,
            &E2E_WATCH,
        ],
        "bpf" if place.contains("placement") => vec![&KERNEL, &E2E_WORKERS],
        "bpf" => vec![
            &CASES,
            &SCENARIOS,
            &NATIVE,
            &RULES,
            &E2E_OFFLOAD,
            &E2E_TRANSFER,
            &E2E_CLOSE,
            &E2E_PATH,
        ],
        _ => vec![&LAB, &E2E_TRANSFER],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_without_root_come_first() {
        for area in [
            "wire",
            "testkit",
            "placement",
            "preamble",
            "location",
            "faults",
            "invariants",
            "simulator",
            "translator",
            "io",
            "flexcp",
            "bpf",
            "lab",
        ] {
            let levels = levels(area, area);
            assert!(levels.is_sorted_by_key(|level| level.needs_root), "{area}");
            assert!(!levels.is_empty(), "{area}");
        }
    }
    #[test]
    fn bugs_of_the_box_are_tried_by_its_scenarios_first() {
        let mut bug = Bug {
            name: "box: one".into(),
            place: "translator".into(),
            ..Bug::default()
        };
        assert_eq!(levels_of(&bug).first(), Some(&&AGGREGATION));
        bug.name = "one in a box: two".into();
        assert_eq!(levels_of(&bug), levels("translator", "translator"));
        bug.place = "location".into();
        bug.name = "box: three".into();
        assert_eq!(levels_of(&bug), levels("location", "location"));
    }
}

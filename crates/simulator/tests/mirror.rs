//! Seeds in mirror: FlexCP is an aggregation box between clients with TCP and servers with MPTCP.
#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;

use flexcp_simulator::{
    Errands, Outcome, run_mirrored, run_mirrored_installed, run_mirrored_undisturbed,
    run_mirrored_unsteered, seeds, steers,
};

const SEEDS: u64 = 1000;
/// Fresh ones beside them.
const FRESH: u64 = 200;
/// Seeds that run once more without what disturbs.
const UNDISTURBED: u64 = 150;
/// Every so many, a seed runs once more, with what runs its steady course installed in a fast path.
const INSTALLED: u64 = 5;

/// Seeds that failed, and over what, when nothing was steered.
const FAILED: &[(u64, &str)] = &[
    (
        195,
        "data overtook the client's answer, and its server fell back as the keys came behind that",
    ),
    (
        20,
        "the checker did not know that a server falls back before anything goes down without MPTCP",
    ),
    (
        2398,
        "the checker knew the keys with the first byte alone, not with the rest of its mapping",
    ),
    (
        2837,
        "the checker knew of no packet that is for the box itself",
    ),
    (
        18_375,
        "the checker believed that a server that has fallen back reads data ACKs",
    ),
    (
        172,
        "the checker did not count the packet that showed a fallback",
    ),
];

/// The same, as they are.
const FAILED_AS_STEERED: &[(u64, &str)] = &[
    (
        10_824,
        "the SYN/ACK of an aggregation server with TCP came again, and was taken for an answer",
    ),
    (
        4212,
        "an aggregation server was left that mapped a part of its answer anew, behind itself",
    ),
    (3001, "a SYN with a message of Convert was timed as data"),
    (
        5030,
        "the checker thought data known that had come before the answer",
    ),
];

#[test]
fn mirrored_seeds_that_failed() {
    for &(seed, what) in FAILED_AS_STEERED {
        let failures = run_mirrored(seed, false).failures;
        assert_eq!(failures, [""; 0], "seed {seed}: {what}");
    }
    for &(seed, what) in FAILED {
        let failures = run_mirrored_unsteered(seed).failures;
        assert_eq!(failures, [""; 0], "seed {seed}: {what}");
    }
}

/// Without faults, resets and limits every server is asked for MPTCP, and answers with it; FlexCP resets nothing.
#[test]
fn undisturbed_mirrored_seeds() {
    for seed in 0..UNDISTURBED {
        let failures = run_mirrored_undisturbed(seed, false).failures;
        assert_eq!(failures, [""; 0], "seed {seed}, undisturbed");
    }
}

#[test]
fn first_mirrored_seeds_and_fresh_ones() {
    let all = seeds(0..SEEDS, FRESH);
    let (next, installed) = (AtomicUsize::new(0), AtomicU64::new(0));
    let work = || {
        let (mut failed, mut errands) = (vec![], Errands::default());
        while let Some(&seed) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
            let outcome = run_mirrored(seed, false);
            errands += outcome.errands;
            if seed.is_multiple_of(INSTALLED) {
                // That one shows too that a run is what its seed says.
                let (again, times) = run_mirrored_installed(seed);
                assert!(
                    outcome == again || steers(seed),
                    "seed {seed} runs differently when installed"
                );
                assert_eq!(again.failures, [""; 0], "seed {seed}, installed");
                installed.fetch_add(times, Ordering::Relaxed);
            }
            if !outcome.failures.is_empty() {
                failed.push(outcome);
            }
        }
        (failed, errands)
    };
    let workers = thread::available_parallelism().map_or(1, usize::from);
    let found: Vec<(Vec<Outcome>, Errands)> = thread::scope(|scope| {
        let running: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        let running = running.into_iter();
        running
            .map(|worker| worker.join().expect("a worker ends"))
            .collect()
    });
    let mut errands = Errands::default();
    found.iter().for_each(|(_, some)| errands += *some);
    let failed: Vec<Outcome> = found.into_iter().flat_map(|(failed, _)| failed).collect();
    let seeds: Vec<u64> = failed.iter().map(|outcome| outcome.seed).collect();
    let first = failed.first().map_or("", |outcome| &outcome.failures[0]);
    assert!(
        failed.is_empty(),
        "seeds {seeds:?} fail (`simulator --mirror --seed N --trace` shows one), the first of them: {first}"
    );
    // A few seeds alone may be of those that install nothing.
    if all.len() as u64 >= SEEDS {
        assert!(installed.into_inner() > SEEDS / 10, "little was installed");
        assert_eq!(missing(&errands), [""; 0], "{errands:?}");
    }
}

/// What the seeds should have brought about, each at least once in fifty of them, and have not.
fn missing(errands: &Errands) -> Vec<&'static str> {
    let [convert, socks5] = errands.granted;
    let all = [
        ("granted by Convert", convert),
        ("granted by SOCKS5", socks5),
        ("answered with a converter's SYN/ACK", errands.early),
        ("refused", errands.refused),
        ("declined", errands.declined),
        ("skipped", errands.skipped),
        ("bypassed", errands.bypassed),
        ("excepted", errands.excepted),
        ("probes", errands.probes),
        ("withdrawals", errands.withdrawals),
    ];
    let few = all.iter().filter(|(_, count)| *count < SEEDS / 50);
    few.map(|(name, _)| *name).collect()
}

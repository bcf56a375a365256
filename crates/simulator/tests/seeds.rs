//! The first seeds, each a run of its own, fresh ones that no run has had, and those further on that once failed.
#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;

use flexcp_simulator::{Outcome, run, run_at_once, run_installed, run_undisturbed, seeds, steers};

const SEEDS: u64 = 2000;
/// Fresh ones beside them.
const FRESH: u64 = 200;
/// So many that fail are enough: a defect in all of them would take hours.
const ENOUGH: u64 = 8;
/// Seeds that run once more without what disturbs.
const UNDISTURBED: u64 = 300;
/// Every so many, a seed runs twice.
const TWICE: u64 = 50;
/// Every so many, with what runs its steady course installed in a fast path.
const INSTALLED: u64 = 10;

/// Seeds that failed, and over what, when carriers kept no packets and nothing was steered.
const FAILED: &[(u64, &str)] = &[
    (
        7_001_198,
        "an echo behind the FINs of its subflow was none, and the address was announced again",
    ),
    (7_021_912, "the same, of a short connection"),
    (
        7_007_377,
        "a DATA_FIN with data that another subflow had brought was noted, and never acted on",
    ),
    (7_013_465, "the same, with a client that said nothing"),
    (7_019_816, "the same at the end of 587 KB"),
    (
        1_500_095_693,
        "FlexCP's FIN on a subflow got lost five times, and was not repeated any more",
    ),
    (
        1_400_000_653,
        "the checker wanted a join that a late REMOVE_ADDR had ended answered as before",
    ),
    (
        1_300_037_280,
        "reset: a copy of the SYN that was held up on the way opened the connection anew",
    ),
    (
        1_000_010_409,
        "the echo of a copy on its way kept the client's RTO below the server's delayed ACKs",
    ),
    (
        800_044_462,
        "the reset of a subflow that was given up got lost, and its slot was another's when it should be repeated",
    ),
    (
        700_079_793,
        "two bits flipped on the way of a plain connection cancelled in the checksum",
    ),
    (
        300_016_311,
        "the client took small mappings for slivers of a window, and sent one in each round trip",
    ),
    (
        400_086_398,
        "closed: a keepalive behind the client's FIN was not answered",
    ),
    (
        22_692,
        "the server threw away what it had SACKed, and nobody brought it again",
    ),
    (
        437,
        "closed: nobody answered the window probe before a subflow's FIN",
    ),
    (
        1_024_827,
        "closed: a client without subflows could not join for the ACK of its DATA_FIN",
    ),
    (
        3_200_003_254,
        "a backup was tried, and left as soon as another was heard",
    ),
    (
        3_200_008_477,
        "what came again in its place counted as a path on trial",
    ),
    (
        7_000_017_278,
        "a dead path's only subflow was reset, as if the client could not take what it does not get",
    ),
    (14_606, "a join that made room for another came again"),
    (
        4_200_000_389,
        "a join that was refused and came again counted as none",
    ),
    (9365, "a path that was dead until shortly before the end"),
    (1_016_569, "an abort while a join was half open"),
    (1_024_863, "one subflow carried more than the window"),
    (1_010_607, "a window smaller than a segment"),
    (
        2_018_125,
        "the answer to the server's window probe was taken for stale",
    ),
    (
        2_049_345,
        "closed: the server's last window left no room for a subflow's FIN",
    ),
    (1_038_211, "closed: client data again behind FlexCP's FIN"),
    (
        1_026_936,
        "closed: filler in vain, and a reset that got lost",
    ),
    (
        2_043_007,
        "a client gave MPTCP up while the answer was under way",
    ),
    (1_031_737, "a reset that was not believed, and its ACK"),
    (
        2_003_722,
        "delayed ACKs as slow as the retransmission timeout",
    ),
    (2_003_182, "much to transfer in small segments"),
    (
        3_022_563,
        "a window that rounds down counted as one taken back",
    ),
    (10_023_575, "the same, over two subflows"),
    (
        2_100_021_173,
        "a hole before FlexCP's FIN was filled again after 51 s only",
    ),
    (
        6172,
        "the last subflow was closed by the client, which had more to say",
    ),
];

#[test]
fn seeds_that_failed() {
    for &(seed, what) in FAILED {
        let failures = run_at_once(seed).failures;
        assert_eq!(failures, Vec::<String>::new(), "seed {seed}: {what}");
    }
}

/// The same since rules steer.
const FAILED_STEERED: &[(u64, &str)] = &[
    (
        7_009_589,
        "paths of a connection at rest were measured, and it was never idle",
    ),
    (
        7_006_948,
        "the checker saw no cause to leave a path that had had no room when no rule steered any more",
    ),
    (
        7_016_714,
        "the checker saw no cause to take another path twice while the active one was on trial",
    ),
    (
        8_000_643,
        "the checker wanted MPTCP answered for a client that had reset its connection before",
    ),
    (
        10_021_216,
        "the checker wanted such a client's server to go without a RST",
    ),
    (
        30_009_608,
        "the checker took a subflow's ACK beside an option for the connection's",
    ),
    (
        40_006_059,
        "the checker believed a reset that the proxy did not",
    ),
    (
        30_029_583,
        "a client waited for ever where the reset of a subflow had got lost",
    ),
    (
        50_021_127,
        "the checker believed an echo on a subflow that the proxy had given up",
    ),
    (
        20_011_851,
        "a join took the place of the active subflow, and was told to have carried what that had",
    ),
    (
        1_000_719_381,
        "an address that was due while no subflow lived was not announced when one came",
    ),
    (
        1_000_806_588,
        "data of a SYN that came again without was ACKed before the client had sent it again",
    ),
    (
        1_000_804_713,
        "what a client's SYN had carried came again as data, and the numbers behind it were wrong",
    ),
    (
        1_000_814_805,
        "a server that had been called and repeated its SYN/ACK was shown an earlier time",
    ),
    (
        1_000_827_953,
        "a window was rounded twice while an answer was ACKed",
    ),
    (
        1_000_815_473,
        "an answer went again with an ACK of long ago, and was dropped",
    ),
    (
        2_000_003_824,
        "a SYN/ACK that was repeated behind an answer had the server's number",
    ),
    (
        2_000_014_189,
        "early data offered what the client kept for the answer",
    ),
    (
        1_000_823_073,
        "the checker saw no cause to leave a path that owed an ACK of the proxy's own answer",
    ),
    (
        1_000_822_660,
        "the checker believed that the proxy had heard a packet that it had to drop",
    ),
    (
        3_000_022_782,
        "what a server without SACK lacked stood behind what it had, and never came",
    ),
    (
        3_000_021_382,
        "a join that was refused had taken another's place before",
    ),
    (
        3_000_034_074,
        "a server that repeated its SYN/ACK kept what a client had left",
    ),
    (
        3_000_033_413,
        "the checker believed a reset with another number than the next",
    ),
    (
        4_000_018_016,
        "the checker saw no cause to reset a server that answered when its client had been refused",
    ),
];

#[test]
fn steered_seeds_that_failed() {
    for &(seed, what) in FAILED_STEERED {
        assert_eq!(run(seed).failures, [""; 0], "seed {seed}: {what}");
    }
}

/// A look at an installed connection shortly before a deadline put that off.
#[test]
fn seeds_that_differed_when_installed() {
    for seed in [7_000_007_362, 7_000_011_206] {
        assert_eq!(run(seed), run_installed(seed).0, "seed {seed}");
    }
}

/// Without faults, resets and limits every request and every join is accepted, and FlexCP resets nothing.
#[test]
fn undisturbed_seeds() {
    for seed in 0..UNDISTURBED {
        let failures = run_undisturbed(seed).failures;
        assert_eq!(failures, Vec::<String>::new(), "seed {seed}, undisturbed");
    }
}

#[test]
fn first_seeds_and_fresh_ones() {
    let all = seeds(0..SEEDS, FRESH);
    let next = AtomicUsize::new(0);
    let installed = AtomicU64::new(0);
    let left_out = AtomicU64::new(0);
    let led = AtomicU64::new(0);
    let bad = AtomicU64::new(0);
    let work = || {
        let mut failed = vec![];
        loop {
            if bad.load(Ordering::Relaxed) >= ENOUGH {
                return failed;
            }
            let Some(&seed) = all.get(next.fetch_add(1, Ordering::Relaxed)) else {
                return failed;
            };
            let outcome = run(seed);
            if seed.is_multiple_of(TWICE) {
                assert_eq!(outcome, run(seed), "I13: seed {seed} runs differently");
            }
            if seed.is_multiple_of(INSTALLED) {
                let (again, times) = run_installed(seed);
                assert!(
                    outcome == again || steers(seed),
                    "seed {seed} runs differently when installed"
                );
                assert_eq!(again.failures, [""; 0], "seed {seed}, installed");
                installed.fetch_add(times, Ordering::Relaxed);
            }
            left_out.fetch_add(outcome.left_out, Ordering::Relaxed);
            led.fetch_add(outcome.led, Ordering::Relaxed);
            if !outcome.failures.is_empty() {
                bad.fetch_add(1, Ordering::Relaxed);
                failed.push(outcome);
            }
        }
    };
    let workers = thread::available_parallelism().map_or(1, usize::from);
    let failed: Vec<Outcome> = thread::scope(|scope| {
        let running: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        running
            .into_iter()
            .flat_map(|worker| worker.join().expect("a worker ends"))
            .collect()
    });
    let seeds: Vec<u64> = failed.iter().map(|outcome| outcome.seed).collect();
    let first = failed.iter().map(|outcome| &outcome.failures[0]).next();
    assert!(
        failed.is_empty(),
        "seeds {seeds:?} fail (`simulator --seed N --trace` shows one), the first of them: {}",
        first.map_or("", String::as_str)
    );
    // A few seeds alone may be of those that install nothing.
    if all.len() as u64 >= SEEDS {
        assert!(installed.into_inner() > SEEDS, "little was installed");
        let left_out = left_out.into_inner();
        assert!(left_out > SEEDS, "carriers left out {left_out} ACKs");
        let led = led.into_inner();
        assert!(led > SEEDS / 8, "modes have made {led} moves");
    }
}

//! The kernel's programs, compiled for this machine, under the translator: what they translate has to be what a
//! translator without them sends. `io/tests/netns/offload.rs` does the same in the kernel, as root.
#![forbid(unsafe_code)]

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use flexcp_native::{Passed, Programs, Sent, as_handed_out};
use flexcp_simulator::{Kernel, Offloaded, Outcome, Taken, run_mirrored_on, run_on, seeds};
use flexcp_translator::FastPath;
use flexcp_wire::Offload;

/// The programs under one translator.
#[derive(Default, Debug)]
struct Native(Programs);

impl Kernel for Native {
    fn fast_path(&mut self) -> Box<dyn FastPath> {
        Box::new(self.0.clone())
    }

    fn translate(&mut self, now: u64, packet: &[u8], offload: Offload) -> Taken {
        match self.0.pass(now, packet, offload) {
            Passed::Translated(mut sent) => {
                as_handed_out(&mut sent);
                let packet = |sent: Sent| (sent.packet().to_vec(), sent.offload);
                Taken::Translated(sent.into_iter().map(packet).collect())
            }
            Passed::Up => Taken::No,
            Passed::Dropped => Taken::Dropped,
        }
    }
}

/// Seeds that are always run.
const FIXED: Range<u64> = 0..1000;
/// Fresh ones beside them.
const FRESH: u64 = 200;

/// What the programs took of some seeds.
#[derive(Clone, Copy, Default, Debug)]
struct Share {
    seeds: u64,
    packets: u64,
    taken: u64,
    /// Of the fixed seeds alone: how many there are of others differs by ten times.
    trains: u64,
    /// Seeds behind a part of which nothing was compared.
    parted: u64,
}

/// The share of some seeds, and the seeds that failed.
#[derive(Default, Debug)]
struct Found {
    share: Share,
    failed: Vec<(u64, String)>,
}

/// How a seed is run.
type Run = fn(Box<dyn Kernel>, u64, bool) -> (Outcome, Offloaded);

fn try_seed(run: Run, seed: u64, traced: bool, found: &Mutex<Found>) {
    let (outcome, taken) = run(Box::<Native>::default(), seed, traced);
    let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
    let share = &mut found.share;
    share.seeds += 1;
    share.packets += outcome.packets;
    share.taken += taken.packets;
    if FIXED.contains(&seed) {
        share.trains += taken.trains;
    }
    share.parted += u64::from(taken.parted);
    if !outcome.failures.is_empty() {
        found.failed.push((seed, outcome.failures.join("\n  ")));
    }
}

fn try_seeds(run: Run, fresh: u64) -> Share {
    let traced = std::env::var_os("FLEXCP_TRACE").is_some();
    let all = seeds(FIXED, fresh);
    let (next, found) = (AtomicUsize::new(0), Mutex::default());
    let work = || {
        while let Some(&seed) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
            try_seed(run, seed, traced, &found);
        }
    };
    let workers = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| (0..workers).for_each(|_| drop(scope.spawn(work))));
    let Found { share, mut failed } = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    failed.sort();
    println!("{share:?}");
    if let Some((seed, why)) = failed.first() {
        let seeds: Vec<_> = failed.iter().map(|(seed, _)| seed).collect();
        panic!(
            "seeds {seeds:?}; the first alone: FLEXCP_SEED={seed} FLEXCP_TRACE=1 cargo test -p flexcp-simulator --test \
             native\n{why}"
        );
    }
    // Some seeds alone install nothing, and trains are those of the fixed ones.
    if all.first() == Some(&FIXED.start) && share.seeds >= FIXED.end {
        assert!(
            share.taken * 50 > share.packets && share.trains > 5 * FIXED.end,
            "the programs take hardly anything: {share:?}"
        );
    }
    share
}

#[test]
fn simulated_connections_are_translated_alike() {
    let share = try_seeds(run_on, FRESH);
    // Half of the seeds are steered: a mode is asked more rarely of what the programs carry. Of 1,200 seeds 82 did.
    assert!(share.parted <= 4 + share.seeds / 8, "{share:?}");
}

/// The same where FlexCP is a box.
#[test]
fn connections_of_a_box_are_translated_alike() {
    let share = try_seeds(run_mirrored_on, FRESH);
    assert!(share.parted <= 4 + share.seeds / 8, "{share:?}");
}

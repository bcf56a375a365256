//! How the daemon stops: it takes no connection any more, those that are there have some time, and both ends of what is
//! left then are told.

use std::thread;
use std::time::{Duration, Instant};

use tracing::{info, warn};

use crate::split::Tally;
use crate::worker::WorkerHandle;

/// Between two looks at whether a connection is left.
const LOOK: Duration = Duration::from_millis(50);

/// When the ends are told: nothing repeats a RST that is lost, and one whose number an end does not believe is
/// answered once it has come.
pub(crate) const TOLD_AT: [Duration; 3] = [
    Duration::ZERO,
    Duration::from_millis(150),
    Duration::from_millis(450),
];

/// From the first of those to the end of the daemon.
pub(crate) const TELLING: Duration = Duration::from_millis(600);

/// Lets connections end by themselves for at most `limit`, then tells both ends of the others; split ones are told when the relay
/// ends. `hurried` waits for at most so
/// long, and says whether the time is to be cut short.
pub(crate) fn drain(
    workers: &[WorkerHandle],
    split: &Tally,
    hurried: &mut dyn FnMut(Duration) -> bool,
    limit: Duration,
) {
    workers.iter().for_each(WorkerHandle::drain);
    let begun = Instant::now();
    let mut left = dependent(workers) + open(split);
    if left > 0 {
        info!("drains: {left} connections have {limit:?} to end");
    }
    while left > 0 && begun.elapsed() < limit {
        let rest = limit.saturating_sub(begun.elapsed());
        if hurried(rest.min(LOOK)) {
            break;
        }
        left = dependent(workers) + open(split);
    }
    if left > 0 {
        warn!("{left} connections have not ended: both ends of each are told");
        tell(workers);
    }
}

/// Tells the ends several times, and gives them time to object.
fn tell(workers: &[WorkerHandle]) {
    let begun = Instant::now();
    for at in TOLD_AT {
        thread::sleep(at.saturating_sub(begun.elapsed()));
        for worker in workers {
            // One that has ended tells nobody; the others do.
            let _ = worker.end();
        }
    }
    thread::sleep(TELLING.saturating_sub(begun.elapsed()));
}

/// Split connections that there are.
fn open(split: &Tally) -> usize {
    usize::try_from(split.open()).unwrap_or(usize::MAX)
}

fn dependent(workers: &[WorkerHandle]) -> usize {
    let of = |worker: &WorkerHandle| worker.dependent().unwrap_or(0);
    workers.iter().map(of).sum()
}

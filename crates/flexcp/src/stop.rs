//! How the daemon stops: it takes no connection any more, those that are there have some time, and both ends of what is
//! left then are told.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use flexcp_io::{Signal, Signals, Waker};
use tracing::{info, warn};

use crate::worker::WorkerHandle;

/// Between two looks at whether a connection is left.
const LOOK: Duration = Duration::from_millis(50);

/// When the ends are told: nothing repeats a RST that is lost, and one whose number an end does not believe is
/// answered once it has come.
const TOLD_AT: [Duration; 3] = [
    Duration::ZERO,
    Duration::from_millis(150),
    Duration::from_millis(450),
];

/// From the first of those to the end of the daemon.
const TELLING: Duration = Duration::from_millis(600);

/// Lets connections end by themselves for at most `limit`, then tells both ends of the others. A further signal to end
/// cuts the time short; so does the end of a worker, which `ended` tells.
///
/// # Errors
/// When signals can't be read.
pub(crate) fn drain(
    workers: &[WorkerHandle],
    signals: &Signals,
    ended: &Waker,
    limit: Duration,
) -> io::Result<()> {
    workers.iter().for_each(WorkerHandle::drain);
    let begun = Instant::now();
    let mut left = dependent(workers);
    if left > 0 {
        info!("drains: {left} connections have {limit:?} to end");
    }
    while left > 0 && begun.elapsed() < limit {
        let rest = limit.saturating_sub(begun.elapsed());
        if is_over(signals, ended, rest.min(LOOK))? {
            break;
        }
        left = dependent(workers);
    }
    if left > 0 {
        warn!("{left} connections have not ended: both ends of each are told");
        tell(workers);
    }
    Ok(())
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

/// Whether somebody wants the end at once, after waiting at most so long.
fn is_over(signals: &Signals, ended: &Waker, wait: Duration) -> io::Result<bool> {
    let ready = flexcp_io::wait(signals, ended, Some(wait))?;
    while let Some(signal) = signals.next()? {
        if signal != Signal::Hangup {
            info!("told to stop again, does not wait for connections");
            return Ok(true);
        }
    }
    Ok(ready.woken)
}

fn dependent(workers: &[WorkerHandle]) -> usize {
    let of = |worker: &WorkerHandle| worker.dependent().unwrap_or(0);
    workers.iter().map(of).sum()
}

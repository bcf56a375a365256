//! The service manager's watchdog: it restarts FlexCP when it has not heard for some time that all workers answer.

use std::time::{Duration, Instant};

use sd_notify::NotifyState;
use tracing::warn;

use crate::worker::WorkerHandle;

/// Reports, on whichever thread calls it, for as long as the workers answer.
pub struct Watchdog<'a> {
    workers: &'a [WorkerHandle],
    /// Between two reports; `None`: nobody wants to hear any.
    every: Option<Duration>,
    next: Instant,
    /// Whether the log says that a worker does not answer.
    said: bool,
}

impl<'a> Watchdog<'a> {
    /// One for the manager that has started this process, if it asks for reports.
    #[must_use]
    pub fn new(workers: &'a [WorkerHandle]) -> Self {
        Self::wanted(workers, sd_notify::watchdog_enabled())
    }

    /// `limit`: how long the manager waits for a report. Several fit into that, as a busy machine delays some.
    fn wanted(workers: &'a [WorkerHandle], limit: Option<Duration>) -> Self {
        Self {
            workers,
            every: limit.map(|limit| limit / REPORTS),
            next: Instant::now(),
            said: false,
        }
    }

    /// How long [`tend`](Self::tend) need not be called; `None`: never.
    #[must_use]
    pub fn timeout(&self) -> Option<Duration> {
        self.every?;
        Some(self.next.saturating_duration_since(Instant::now()))
    }

    /// Asks the workers, when that is due, and reports to `notify` if all of them answer.
    pub fn tend(&mut self, notify: impl FnOnce(NotifyState<'_>)) {
        let Some(every) = self.every.filter(|_| Instant::now() >= self.next) else {
            return;
        };
        let silent = WorkerHandle::silent(self.workers, every);
        if silent.is_empty() {
            notify(NotifyState::Watchdog);
        } else if !self.said {
            warn!(
                "worker {silent:?} does not answer: the service manager is going to restart flexcp"
            );
        }
        self.said = !silent.is_empty();
        self.next = Instant::now() + every;
    }
}

/// So many in the time that the service manager waits for one.
const REPORTS: u32 = 4;

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::Receiver;
    use std::thread;

    use flexcp_io::Waker;

    use super::*;
    use crate::worker::Request;

    const LIMIT: Duration = Duration::from_millis(400);

    fn worker() -> (WorkerHandle, Receiver<Request>) {
        WorkerHandle::new(Arc::new(Waker::new().unwrap()))
    }

    /// A worker that answers what it is asked so many times.
    fn played(times: usize) -> WorkerHandle {
        let (handle, requests) = worker();
        thread::spawn(move || {
            for request in requests.iter().take(times) {
                let Request::Ping(answer) = request else {
                    panic!("{request:?}");
                };
                answer.try_send(()).unwrap();
            }
            thread::park();
        });
        handle
    }

    /// Reports while `watchdog` is tended for `limit`.
    fn reports(watchdog: &mut Watchdog<'_>, limit: Duration) -> usize {
        let mut reports = 0;
        let end = Instant::now() + limit;
        while Instant::now() < end {
            watchdog.tend(|state| {
                assert!(matches!(state, NotifyState::Watchdog));
                reports += 1;
            });
            thread::sleep(watchdog.timeout().unwrap());
        }
        reports
    }

    #[test]
    fn reports_while_all_workers_answer() {
        let workers = [played(usize::MAX), played(usize::MAX)];
        let mut watchdog = Watchdog::wanted(&workers, Some(LIMIT));
        assert!(reports(&mut watchdog, LIMIT) >= 2);
    }

    #[test]
    fn is_silent_once_a_worker_is() {
        let workers = [played(usize::MAX), played(2)];
        let mut watchdog = Watchdog::wanted(&workers, Some(LIMIT));
        assert_eq!(reports(&mut watchdog, 3 * LIMIT), 2);
        let workers = [worker().0];
        let mut watchdog = Watchdog::wanted(&workers, Some(LIMIT));
        assert_eq!(reports(&mut watchdog, LIMIT), 0, "a worker that has ended");
    }

    #[test]
    fn asks_nobody_when_nobody_wants_to_hear() {
        let (handle, requests) = worker();
        let workers = [handle];
        let mut watchdog = Watchdog::wanted(&workers, None);
        assert_eq!(watchdog.timeout(), None);
        watchdog.tend(|_| panic!("a report"));
        assert!(requests.try_recv().is_err());
    }
}

//! The watcher: a thread that owns what FlexCP has changed in the kernel, and looks after it while packets flow.
//!
//! It wakes up when something in the kernel's tables changes, puts back what is FlexCP's own
//! ([`Watch`]), brings the offload to devices that have come, and tells what it may not change
//! ([`Expected`]): in the log once when it begins and once when it is over, to the service manager, and to who asks. It
//! never touches a packet. [`WatchHandle::end`] gives the kernel's tables back, to be taken back.

mod backends;
mod closing;
mod drained;
mod facts;
mod reload;
mod telling;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, SyncSender};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use std::{io, mem};

use std::os::fd::AsFd as _;

use flexcp_io::{
    Changes, KernelError, KernelTables, Look, Mended, NetlinkError, Waker, Watch, monotonic_micros,
    wait_for_any,
};
use sd_notify::NotifyState;
use tracing::{debug, info, warn};

use self::backends::Backends;
use self::closing::Closing;
pub use self::facts::Expected;
use self::facts::{Found, Problem};
pub use self::reload::{ChangeError, Reloads, Wanted};
use crate::beside::Beside;
use crate::control::status::{ServiceStatus, State, Status};
use crate::control::view::Numbers;
use crate::control::{Names, VERSION};
use crate::generation::Generation;
use crate::offload::Running;
use crate::orders::{Order, Unknown};
#[cfg(test)]
use crate::rulebook::Kept;
use crate::rulebook::{Change, Set};
use crate::worker::{Marks, WorkerHandle};

/// What is looked after, and how it is.
#[derive(Debug)]
pub struct Watcher {
    /// `None`: the kernel tells nothing any more.
    watch: Option<Watch>,
    tables: KernelTables,
    offload: Running,
    expected: Expected,
    found: Found,
    problems: Vec<Problem>,
    beside: Beside,
    /// Hears of changes to the host's other rules; `None`: the kernel does not tell of them.
    changes: Option<Changes>,
    /// When they have to be looked at again, and the back ends with them.
    beside_due: u64,
    /// When they and the back ends were looked at last.
    beside_at: u64,
    backends: Backends,
    /// The configurations that connections go by.
    reloads: Reloads,
    /// They hear when packets may have passed them by.
    workers: Vec<WorkerHandle>,
    mended: Tally,
    began: u64,
    /// Whether the service manager has heard that packets flow. Others may read it.
    was_ready: Arc<AtomicBool>,
}

/// What has been put back so far.
#[derive(Clone, Copy, Default, Debug)]
struct Tally {
    times: u64,
    last: Option<u64>,
    rules: u64,
    routes: u64,
    device: u64,
    offload: u64,
}

/// What has become of what was looked after.
#[derive(Debug)]
pub struct Ended {
    /// To be taken back.
    pub tables: KernelTables,
    /// Ends when it is dropped.
    pub offload: Running,
    /// An error when FlexCP can't go on.
    pub outcome: Result<(), KernelError>,
}

/// The running thread.
#[derive(Debug)]
pub struct WatchHandle {
    thread: Option<JoinHandle<Ended>>,
    status: StatusHandle,
}

/// Asks the watcher.
#[derive(Clone, Debug)]
pub struct StatusHandle {
    requests: Sender<Request>,
    waker: Arc<Waker>,
    ready: Arc<AtomicBool>,
}

/// What has come of a change of rules.
#[derive(Debug)]
pub(crate) struct Steered {
    /// The configuration in force.
    pub(crate) generation: Arc<Generation>,
    /// The rules that are set.
    pub(crate) set: Set,
    /// So many of them are new, where some were changed.
    pub(crate) new: usize,
}

/// The services as they stand, those of the configuration in force.
#[derive(Debug)]
pub(crate) struct ServicesNow {
    pub(crate) generation: Arc<Generation>,
    /// In its order.
    pub(crate) status: Vec<ServiceStatus>,
    /// Services whose connections have some time to end, and when that is over, in microseconds.
    pub(crate) closings: Vec<(String, u64)>,
}

#[derive(Debug)]
enum Request {
    Status(SyncSender<Status>),
    Names(SyncSender<Names>),
    Generation(SyncSender<Arc<Generation>>),
    RulesSet(SyncSender<Set>),
    Steer(Change, bool, SyncSender<Result<Steered, ChangeError>>),
    Order(Order, SyncSender<Result<Steered, Unknown>>),
    Services(SyncSender<ServicesNow>),
    Change(
        Box<Wanted>,
        SyncSender<Result<Arc<Generation>, ChangeError>>,
    ),
    End,
}

impl Watcher {
    /// Looks after `tables` and `offload`. `watch` was opened before the tables were installed.
    #[must_use]
    pub fn new(
        watch: Watch,
        tables: KernelTables,
        offload: Running,
        expected: Expected,
        beside: Beside,
        reloads: Reloads,
        (workers, marks): (Vec<WorkerHandle>, Vec<Arc<Marks>>),
    ) -> Self {
        Self {
            watch: Some(watch),
            tables,
            offload,
            expected,
            found: Found::default(),
            problems: Vec::new(),
            beside,
            changes: heard(),
            beside_due: 0,
            beside_at: 0,
            backends: Backends::new(reloads.force().current(), marks),
            reloads,
            workers,
            mended: Tally::default(),
            began: monotonic_micros(),
            was_ready: Arc::new(AtomicBool::new(false)),
        }
    }

    /// Starts the thread; `tell` is called when FlexCP can't go on.
    ///
    /// # Errors
    /// When the kernel gives no thread or no file descriptor. Everything has been taken back then.
    pub fn spawn(self, tell: impl Fn() + Send + 'static) -> io::Result<WatchHandle> {
        let waker = Arc::new(Waker::new()?);
        let (requests, asked) = mpsc::channel();
        let bell = Arc::clone(&waker);
        let ready = Arc::clone(&self.was_ready);
        let run = move || {
            let ended = self.run(&asked, &bell);
            if ended.outcome.is_err() {
                tell();
            }
            ended
        };
        let thread = thread::Builder::new().name("watch".into()).spawn(run)?;
        let status = StatusHandle {
            requests,
            waker,
            ready,
        };
        Ok(WatchHandle {
            thread: Some(thread),
            status,
        })
    }

    fn run(mut self, asked: &Receiver<Request>, bell: &Waker) -> Ended {
        let outcome = self.watch(asked, bell);
        Ended {
            tables: self.tables,
            offload: self.offload,
            outcome,
        }
    }

    /// Until told to end, or until FlexCP can't go on.
    fn watch(&mut self, asked: &Receiver<Request>, bell: &Waker) -> Result<(), KernelError> {
        loop {
            let now = monotonic_micros();
            if now >= self.beside_due {
                (self.beside_at, self.beside_due) = (now, now + BESIDE);
                let marks = self.backends.look(now);
                if self.beside.look(&mut self.tables, &mut self.offload) || marks {
                    self.look(now)?;
                }
            }
            if self.is_look_due(now) {
                self.look(now)?;
            }
            self.tend_drained(now);
            for request in asked.try_iter() {
                if self.answer(request).is_break() {
                    return Ok(());
                }
            }
            if let Err(error) = self.sleep(bell) {
                self.watch = None;
                self.update(vec![told(format!(
                    "changes in the kernel are not noticed any more: {error}"
                ))]);
            }
        }
    }

    /// Answers what was asked. It breaks when that is the end.
    fn answer(&mut self, request: Request) -> ControlFlow<()> {
        match request {
            // Who asked may be gone.
            Request::Status(answer) => drop(answer.try_send(self.status())),
            Request::Names(answer) => {
                drop(answer.try_send(self.reloads.force().names()));
            }
            Request::Generation(answer) => {
                let current = self.reloads.force().current();
                drop(answer.try_send(Arc::clone(current)));
            }
            Request::RulesSet(answer) => {
                drop(answer.try_send(self.reloads.book.set().clone()));
            }
            Request::Steer(change, moves, answer) => {
                drop(answer.try_send(self.steer(change, moves)));
            }
            Request::Order(order, answer) => {
                drop(answer.try_send(self.order(&order)));
            }
            Request::Services(answer) => drop(answer.try_send(self.services())),
            Request::Change(wanted, answer) => {
                drop(answer.try_send(self.change(*wanted)));
            }
            Request::End => return ControlFlow::Break(()),
        }
        ControlFlow::Continue(())
    }

    /// Until something happens, or a look is due.
    fn sleep(&mut self, bell: &Waker) -> Result<(), NetlinkError> {
        let due = [
            self.watch.as_ref().and_then(Watch::due),
            Some(self.beside_due),
            self.reloads.due(),
        ];
        let due = due.into_iter().flatten().min();
        let until = due.map(|due| Duration::from_micros(due.saturating_sub(monotonic_micros())));
        let patience = (!self.was_ready()).then_some(START_TOLD);
        let timeout = [until, patience].into_iter().flatten().min();
        let carriers = [
            self.watch.as_ref().map(Watch::as_fd),
            self.changes.as_ref().map(Changes::as_fd),
        ];
        let carriers: Vec<_> = carriers.into_iter().flatten().collect();
        if let Err(error) = wait_for_any(&carriers, bell, timeout) {
            debug!("watch: {error}");
        }
        if !self.was_ready() {
            self.notify();
        }
        if self.changes.as_mut().is_some_and(Changes::drain) {
            self.beside_due = self.beside_due.min(self.beside_at + BESIDE_SOON);
        }
        match &mut self.watch {
            Some(watch) => watch.note(monotonic_micros()),
            None => Ok(()),
        }
    }

    fn look(&mut self, now: u64) -> Result<(), KernelError> {
        // What the host has changed itself is nothing to be put back; nor do connections on a lost uplink wait for that.
        self.leave_uplinks();
        self.follow_ways();
        let Some(watch) = &mut self.watch else {
            return Ok(());
        };
        let Look {
            found,
            put_back,
            problems,
        } = watch.look(&mut self.tables, now)?;
        // Without what is missing nothing comes here.
        let stops = !found.is_empty() && (!put_back || found.failed > 0);
        let problems = problems.into_iter();
        let mut problems: Vec<_> = problems
            .map(|line| Problem {
                stops,
                ..told(line)
            })
            .collect();
        if put_back {
            self.mended.note(found, now);
        }
        if put_back && !found.is_empty() {
            self.workers.iter().for_each(WorkerHandle::note_astray);
        }
        if !self.reloads.ways.is_empty() {
            self.workers.iter().for_each(WorkerHandle::note_routes);
        }
        self.follow_uplinks();
        if let Some(host) = self.expected.find() {
            let new = self.offload.follow(&host.interfaces, &mut self.tables);
            if !new.is_empty() {
                info!("offload: on {} now, too", new.join(", "));
                self.mended.offload += new.len() as u64;
            }
            self.note_found(host);
            problems.extend(self.expected.judge(&self.found));
        }
        problems.extend(self.reloads.uplink_ways.problems().map(told));
        let beside = self.beside.problems().iter();
        problems.extend(beside.map(|line| told(line.clone())));
        problems.extend_from_slice(self.backends.problems());
        self.update(problems);
        Ok(())
    }

    /// Tells what has begun and what is over.
    fn update(&mut self, problems: Vec<Problem>) {
        let before = mem::replace(&mut self.problems, problems);
        let first = !self.was_ready() && before.is_empty();
        let new = |list: &[Problem], line: &str| list.iter().all(|problem| problem.line != line);
        let begun = self.problems.iter().filter(|now| new(&before, &now.line));
        begun.for_each(|problem| warn!("{}", problem.line));
        let over = before.iter().filter(|then| new(&self.problems, &then.line));
        over.for_each(|problem| info!("over: {}", problem.line));
        if before != self.problems || first {
            self.notify();
        }
    }

    /// Tells the service manager, if there is one.
    fn notify(&mut self) {
        let status = self.status();
        let line = summary(&status);
        let mut states = vec![NotifyState::Status(&line)];
        if status.state == State::Waiting && !self.was_ready() {
            // Whoever waits for an interface is not late.
            let longer = START_TOLD.as_micros() * 3;
            states.push(NotifyState::ExtendTimeoutUsec(
                u32::try_from(longer).unwrap_or(u32::MAX),
            ));
        } else if !self.was_ready() {
            self.was_ready.store(true, Ordering::Relaxed);
            info!("{line}");
            states.push(NotifyState::Ready);
        }
        if let Err(error) = sd_notify::notify(&states) {
            debug!("can't notify the service manager: {error}");
        }
    }

    fn was_ready(&self) -> bool {
        self.was_ready.load(Ordering::Relaxed)
    }

    fn services(&self) -> ServicesNow {
        let mut status = self.expected.status(&self.problems, &self.found);
        self.backends.add_to(&mut status, monotonic_micros());
        ServicesNow {
            generation: Arc::clone(self.reloads.force().current()),
            status,
            closings: self.reloads.closings.iter().map(Closing::facts).collect(),
        }
    }

    fn status(&self) -> Status {
        let now = monotonic_micros();
        let mut services = self.expected.status(&self.problems, &self.found);
        self.backends.add_to(&mut services, now);
        let state = if self.problems.is_empty() {
            State::Ready
        } else if services.iter().any(|service| service.passes) {
            State::Degraded
        } else {
            State::Waiting
        };
        let problems = self.problems.iter();
        Status {
            version: VERSION,
            release: env!("CARGO_PKG_VERSION").into(),
            generation: self.reloads.force().current().number,
            draining: self.reloads.force().draining(),
            drained: self.reloads.force().drained(),
            uptime_us: now.saturating_sub(self.began),
            state,
            problems: problems.map(|problem| problem.line.clone()).collect(),
            split_on: self.reloads.relay.ends().to_vec(),
            mended_times: self.mended.times,
            mended_ago_us: self.mended.last.map(|last| now.saturating_sub(last)),
            mended: self.mended.numbers(),
            offload: self.offload.notes(),
            services,
        }
    }
}

impl WatchHandle {
    /// For who wants to know how it is.
    #[must_use]
    pub fn status(&self) -> StatusHandle {
        self.status.clone()
    }

    /// Ends the thread; gives `None` if it panicked.
    #[must_use]
    pub fn end(mut self) -> Option<Ended> {
        self.stop()
    }

    fn stop(&mut self) -> Option<Ended> {
        let thread = self.thread.take()?;
        // When it has ended by itself, all the better.
        let _ = self.status.requests.send(Request::End);
        self.status.waker.wake();
        thread.join().ok()
    }
}

impl Drop for WatchHandle {
    fn drop(&mut self) {
        // Everything is taken back with what it gives.
        drop(self.stop());
    }
}

impl StatusHandle {
    /// A watcher that always answers the same.
    #[cfg(test)]
    pub(crate) fn played(status: Status, names: Names, generation: Generation) -> Self {
        let (mut book, _) =
            crate::rulebook::Rulebook::begin(Kept::default(), generation.config.clone());
        let mut generation = Arc::new(generation);
        let (requests, asked) = mpsc::channel();
        thread::spawn(move || {
            for request in asked {
                match request {
                    Request::Status(answer) => answer.send(status.clone()).unwrap(),
                    Request::Names(answer) => answer.send(names.clone()).unwrap(),
                    Request::Generation(answer) => answer.send(Arc::clone(&generation)).unwrap(),
                    Request::RulesSet(answer) => answer.send(book.set().clone()).unwrap(),
                    Request::Steer(change, _, answer) => {
                        let wanted = book.wanted(&generation.config, change);
                        let steered = wanted.map(|wanted| {
                            let new = wanted.new;
                            generation = Arc::new(generation.with_rules(book.note(wanted)));
                            Steered {
                                generation: Arc::clone(&generation),
                                set: book.set().clone(),
                                new,
                            }
                        });
                        answer.send(steered.map_err(Into::into)).unwrap();
                    }
                    Request::Order(order, answer) => {
                        let orders = generation.orders.with(&generation.config, &order);
                        let ordered = orders.map(|orders| {
                            let orders = Arc::new(orders);
                            book.note_orders(&orders);
                            generation = Arc::new(generation.with_orders(orders));
                            Steered {
                                generation: Arc::clone(&generation),
                                set: book.set().clone(),
                                new: 0,
                            }
                        });
                        answer.send(ordered).unwrap();
                    }
                    Request::Services(answer) => {
                        let now = ServicesNow {
                            generation: Arc::clone(&generation),
                            status: played(&status.services, &generation),
                            closings: vec![("shop".into(), u64::MAX)],
                        };
                        answer.send(now).unwrap();
                    }
                    Request::Change(..) | Request::End => {}
                }
            }
        });
        let waker = Arc::new(Waker::new().unwrap());
        Self {
            requests,
            waker,
            ready: Arc::default(),
        }
    }

    /// Whether the service manager has heard that packets flow.
    pub(crate) fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Relaxed)
    }

    /// How it is.
    ///
    /// # Errors
    /// When the watcher has ended or does not answer.
    pub fn status(&self) -> Result<Status, Unwatched> {
        self.ask(Request::Status, PATIENCE)
    }

    /// What services and accesses are called.
    ///
    /// # Errors
    /// When the watcher has ended or does not answer.
    pub(crate) fn names(&self) -> Result<Names, Unwatched> {
        self.ask(Request::Names, PATIENCE)
    }

    /// The configuration in force.
    ///
    /// # Errors
    /// When the watcher has ended or does not answer.
    pub(crate) fn generation(&self) -> Result<Arc<Generation>, Unwatched> {
        self.ask(Request::Generation, PATIENCE)
    }

    /// Has `wanted` take effect, and waits until it has.
    ///
    /// # Errors
    /// When it can't; then everything is as it was.
    pub(crate) fn change(&self, wanted: Wanted) -> Result<Arc<Generation>, ChangeError> {
        let request = |answer| Request::Change(Box::new(wanted), answer);
        self.ask(request, CHANGE)?
    }

    /// The rules that were set.
    ///
    /// # Errors
    /// When the watcher has ended or does not answer.
    pub(crate) fn rules_set(&self) -> Result<Set, Unwatched> {
        self.ask(Request::RulesSet, PATIENCE)
    }

    /// Changes the rules, and waits until they are in force. `moves`: connections that are there are judged by them at once.
    ///
    /// # Errors
    /// When there is something wrong with the change; then everything is as it was.
    pub(crate) fn steer(&self, change: Change, moves: bool) -> Result<Steered, ChangeError> {
        self.ask(|answer| Request::Steer(change, moves, answer), CHANGE)?
    }

    /// Tells something about a service, and waits until that is in force.
    ///
    /// # Errors
    /// When there is no such service or back end; then everything is as it was.
    pub(crate) fn order(&self, order: Order) -> Result<Result<Steered, Unknown>, Unwatched> {
        self.ask(|answer| Request::Order(order, answer), CHANGE)
    }

    /// The services as they stand.
    ///
    /// # Errors
    /// When the watcher has ended or does not answer.
    pub(crate) fn services(&self) -> Result<ServicesNow, Unwatched> {
        self.ask(Request::Services, PATIENCE)
    }

    fn ask<T>(
        &self,
        request: impl FnOnce(SyncSender<T>) -> Request,
        patience: Duration,
    ) -> Result<T, Unwatched> {
        let (answer, answered) = mpsc::sync_channel(1);
        self.requests.send(request(answer)).map_err(|_| Unwatched)?;
        self.waker.wake();
        answered.recv_timeout(patience).map_err(|_| Unwatched)
    }
}

impl Tally {
    fn note(&mut self, found: Mended, now: u64) {
        let mut done = found;
        done.failed = 0;
        if done.is_empty() {
            return;
        }
        warn!("put back: {done}; somebody had changed them (ip monitor shows who does)");
        self.times += 1;
        self.last = Some(now);
        self.rules += u64::from(found.rules);
        self.routes += u64::from(found.routes);
        self.device += u64::from(found.device);
    }

    fn numbers(self) -> Numbers {
        let numbers = [
            ("rules", self.rules),
            ("routes", self.routes),
            ("device", self.device),
            ("offload", self.offload),
        ];
        Numbers(numbers.map(|(name, count)| (name.into(), count)).into())
    }
}

/// The services of a generation, those of which nothing is known as well.
#[cfg(test)]
fn played(known: &[ServiceStatus], generation: &Generation) -> Vec<ServiceStatus> {
    let services = generation.config.services.iter().map(|service| {
        let name = &service.name.value;
        let known = known.iter().find(|status| status.name == *name).cloned();
        known.unwrap_or_else(|| ServiceStatus {
            name: name.clone(),
            mode: service.mode.name().into(),
            passes: true,
            interfaces: vec![],
            marked_backends: vec![],
        })
    });
    services.collect()
}

/// A problem of all services that lets packets through.
fn told(line: String) -> Problem {
    Problem {
        line,
        service: None,
        stops: false,
    }
}

/// "ready", or the state with its first reason.
fn summary(status: &Status) -> String {
    let mut line = status.state.name().to_owned();
    if let Some(problem) = status.problems.first() {
        line += &format!(": {problem}");
    }
    match status.problems.len() {
        0 | 1 => {}
        several => line += &format!(" (and {} more; flexcp show status)", several - 1),
    }
    line
}

/// The watcher is gone.
#[derive(thiserror::Error, Debug)]
#[error("flexcp is ending, and does not watch the kernel any more")]
pub struct Unwatched;

/// What tells of changes to the host's other rules, if there is anything.
fn heard() -> Option<Changes> {
    let changes = Changes::open();
    changes
        .inspect_err(|error| warn!("{error}; looks at the host's rules once a second"))
        .ok()
}

/// Between two looks at the host's other rules and the back ends, in microseconds: nobody tells of all of them.
const BESIDE: u64 = 1_000_000;
/// The same, when the kernel has told of a change. A host whose rules change all the time is looked at so often.
const BESIDE_SOON: u64 = 100_000;
/// So often the service manager hears that the start takes time.
const START_TOLD: Duration = Duration::from_secs(20);
/// How long a look may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long another configuration may take: each worker has its time to answer.
const CHANGE: Duration = Duration::from_secs(120);

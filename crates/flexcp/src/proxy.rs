//! A running proxy, and the handle on it.

mod start;
pub(crate) mod ways;

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use flexcp_io::{KernelError, KernelTables, Tun, TunError, Waker, Watch};
use tracing::{info, warn};

use self::start::{Made, Workers};
use crate::beside::Beside;
use crate::config::live::{self, ThisHost};
use crate::config::rule::Rule;
use crate::config::{self, Config, Diagnostics, check, fixed, plan};
use crate::control::status::Status;
use crate::control::view::{Connections, Stats};
use crate::control::{self, Asked, BindError, Names, SocketFile};
use crate::generation::{Generation, InForce};
use crate::leftover;
use crate::location::Locating;
use crate::offload;
use crate::rulebook::{Keeper, KeptError, Rulebook};
use crate::split::{Relay, SplitError};
use crate::stop;
use crate::uplinks;
use crate::watch::{
    ChangeError, Ended, Expected, Reloads, Unwatched, Wanted, WatchHandle, Watcher,
};
use crate::worker::WorkerHandle;

/// A running proxy.
///
/// [`start`](Self::start) makes the device, changes the kernel's tables and runs the threads: the workers, which translate; the
/// watcher, which owns what was changed in the kernel; the control socket's. From then on packets flow, whatever the owner of
/// this value does. Its calls may come from any thread, one at a time, and none of them is on the way of a packet:
///
/// - [`reload`](Self::reload) puts another configuration into force, and waits until it is: some milliseconds for each worker
///   and each rule that differs. When it can't, nothing has changed.
/// - [`change`](Self::change) is the same for a part of the configuration that is in force.
/// - [`status`](Self::status), [`stats`](Self::stats) and [`connections`](Self::connections) wait for the watcher and the
///   workers, which answer between two batches of packets.
/// - [`stop`](Self::stop) lets connections end for as long as the configuration says, tells the others, and takes everything
///   back. It takes that long.
///
/// A worker or the watcher can come to its end by itself, as when somebody deletes the device: then what
/// [`ended`](Self::ended) gives is rung, and `stop` says why. A proxy that is dropped instead of stopped takes everything back,
/// too; its connections lose each other without a word.
///
/// Threads that are made here have the signals blocked that the calling thread has blocked.
pub struct Proxy {
    /// `None` once it is stopped.
    running: Option<Running>,
    generation: Arc<Generation>,
    /// The file that the configuration in force was read from.
    found: Diagnostics,
    /// Its rules.
    of_file: Vec<Rule>,
    /// `connections` in `[limits]` at the start.
    room: i64,
    ended: Arc<Waker>,
    asked: Arc<Asked>,
    _socket_file: SocketFile,
}

/// What runs. The watcher ends first: what the kernel brings no more, the workers need not translate.
#[derive(Debug)]
struct Running {
    watch: WatchHandle,
    workers: Workers,
}

impl Proxy {
    /// Starts a proxy that does what `config` says, once that fits the host. What does not goes to `found`, which has what
    /// was found when `config` was read.
    ///
    /// # Errors
    /// When something does not work; whatever was changed in the kernel by then has been taken back.
    pub fn start(config: Config, found: &mut Diagnostics) -> Result<Self, ProxyError> {
        let (keeper, of_file) = (Keeper::new(plan::rules_file(&config)), config.rules.clone());
        let (book, config) = Rulebook::begin(keeper.read()?, config);
        let (sources, kept) = fit(&config, found)?;
        if !start::may_administer_network() {
            return Err(ProxyError::NotPermitted);
        }
        let uplinks = uplinks::find(&config);
        let first = Generation::first(config, sources).with_uplinks(uplinks);
        let generation = Arc::new(first.ordered(Arc::clone(&book.set().orders)));
        let config = &generation.config;

        // From here on, each guard takes back what it stands for when it goes out of scope: the last first.
        let (control, socket_file) = start::bind(config)?;
        let cookie_secret = flexcp_io::random_bytes().map_err(ProxyError::Random)?;
        let relay = Relay::bind(&generation, cookie_secret)?;
        let tuns = start::open_queues(config, kept)?;
        let device = tuns.first().map_or(0, Tun::index);
        let mut made = start::make_workers(tuns, &generation, (cookie_secret, relay.handle()))?;
        let events = Watch::open().map_err(KernelError::from)?;
        let plan = start::plan(&generation);
        let mut kernel = KernelTables::install(&plan, &mut report)?;
        leftover::hand_over(leftover::read(config), &mut made.workers, config);

        let ended = Arc::new(Waker::new().map_err(ProxyError::Worker)?);
        let sorting = (made.rules.clone(), made.placement.take());
        let force = InForce::new(Arc::clone(&generation));
        let locating = Locating::new(&made.handles).map_err(ProxyError::Worker)?;
        let beside = (relay.handle(), locating.handle());
        let reloads = Reloads::new(force, book, sorting, (relay, locating));
        let marks = made.marks.clone();
        let workers = Made::spawn(made, &ended)?;
        let handles = &workers.handles;
        let (offload, reasons) = offload::start(config, device, handles, &mut kernel);
        let watch = Watching {
            expected: Expected::new(config, &generation.sources, &plan),
            events,
            kernel,
            offload,
            reloads,
        };
        let watch = watch.begin(handles, marks, &ended)?;
        let asked = start::asked(handles, (reasons, beside), watch.status(), keeper);
        start::serve(control, Arc::clone(&asked)).map_err(ProxyError::Worker)?;
        Ok(Self {
            running: Some(Running { watch, workers }),
            found: found.without_findings(),
            of_file,
            room: config.limits.connections.value,
            generation,
            ended,
            asked,
            _socket_file: socket_file,
        })
    }

    /// Puts `config` into force. Services that it has as before keep everything; what went is drained. `found` has what was
    /// found when `config` was read; what can't change in a running process, or does not fit the host, is added.
    ///
    /// Gives the number of the configuration, which is 1 at the start.
    ///
    /// # Errors
    /// When it can't be put into force: the one before stays in force, unchanged.
    pub fn reload(&mut self, config: Config, found: &mut Diagnostics) -> Result<u64, ReloadError> {
        fixed::check(&self.generation.config, &config, self.room, found);
        let host = ThisHost {
            kept: Some(self.generation.config.device.name.value.clone()),
            relays: config::relays(&self.generation.config),
        };
        let mut sources = live::check(&config, &host, found);
        if found.has_errors() {
            return Err(ReloadError::Invalid {
                file: found.file().into(),
                errors: found.errors(),
            });
        }
        self.keep_sources(&config, &mut sources);
        let of_file = config.rules.clone();
        let wanted = Wanted { config, sources };
        self.generation = self.asked.watch.change(wanted)?;
        self.found = found.without_findings();
        self.of_file = of_file;
        Ok(self.generation.number)
    }

    /// Changes a part of the configuration in force, as [`reload`](Self::reload) does. `found` gets what is wrong with it, at
    /// the places in the file that the configuration was read from.
    ///
    /// # Errors
    /// As of [`reload`](Self::reload).
    pub fn change(
        &mut self,
        edit: impl FnOnce(&mut Config),
        found: &mut Diagnostics,
    ) -> Result<u64, ReloadError> {
        let mut config = self.generation.config.clone();
        config.rules = self.of_file.clone();
        edit(&mut config);
        *found = self.found.clone();
        check::check(&config, found);
        self.reload(config, found)
    }

    /// The configuration in force, but for rules that the API has set since.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.generation.config
    }

    /// Whether packets get through.
    ///
    /// # Errors
    /// When the watcher has ended.
    pub fn status(&self) -> Result<Status, Unwatched> {
        self.asked.watch.status()
    }

    /// Whether packets have flowed, as the service manager was told: not before the first interface of a service is there.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.asked.watch.is_ready()
    }

    /// What has been done so far.
    ///
    /// # Errors
    /// When a worker has ended.
    pub fn stats(&self) -> Result<Stats, String> {
        control::stats(&self.asked)
    }

    /// The connections that there are.
    ///
    /// # Errors
    /// When a worker has ended.
    pub fn connections(&self) -> Result<Connections, String> {
        control::all_connections(&self.asked)
    }

    /// What services and accesses are called.
    pub(crate) fn names(&self) -> Result<Names, Unwatched> {
        self.asked.watch.names()
    }

    /// The workers, to ask whether they live.
    #[must_use]
    pub fn workers(&self) -> &[WorkerHandle] {
        &self.asked.workers
    }

    /// Is rung when a worker or the watcher has ended by itself: the proxy is to be [stopped](Self::stop).
    #[must_use]
    pub fn ended(&self) -> &Arc<Waker> {
        &self.ended
    }

    /// Takes no connection any more, lets those that are there end for as long as `timeouts.drain` says, tells both
    /// ends of the others, and takes everything back. `hurried` may sleep for the time that it is given, and says whether
    /// the connections are not to be waited for any more.
    ///
    /// # Errors
    /// Why a thread has ended by itself, or what could not be taken back.
    pub fn stop(mut self, hurried: &mut dyn FnMut(Duration) -> bool) -> Result<(), ProxyError> {
        let limit = self.generation.config.timeouts.drain.value;
        stop::drain(&self.asked.workers, &self.asked.split.tally, hurried, limit);
        self.take_back()
    }

    /// The same without a word to anybody.
    ///
    /// # Errors
    /// As of [`stop`](Self::stop).
    pub fn break_off(mut self) -> Result<(), ProxyError> {
        self.take_back()
    }

    fn take_back(&mut self) -> Result<(), ProxyError> {
        let Some(Running { watch, workers }) = self.running.take() else {
            return Ok(());
        };
        if let Ok(set) = self.asked.watch.rules_set()
            && let Err(error) = self.asked.keeper.save(&set, "end")
        {
            warn!("what the API has set is not kept: {error}");
        }
        let Ended {
            tables: kernel,
            offload,
            outcome,
        } = watch.end().ok_or(ProxyError::Panicked)?;
        // The kernel goes first: what it brings no more, the worker need not translate.
        drop(offload);
        let removed = kernel.remove(&mut report);
        let stopped = workers.stop();
        outcome?;
        stopped?;
        leftover::forget(&self.generation.config);
        // Whoever can't be told has kept none.
        let _ = flexcp_io::let_queues_go();
        removed?;
        Ok(())
    }

    /// Services that are as they were keep the addresses towards their back ends that the host still has: the kernel may
    /// choose others by now, which come first, for new connections.
    fn keep_sources(&self, config: &Config, sources: &mut [Vec<IpAddr>]) {
        let own = live::own_addresses();
        let before = &self.generation;
        let known = before.config.services.iter().zip(&before.sources);
        for (service, sources) in config.services.iter().zip(sources) {
            let same = |old: &&config::file::Service| {
                old.name.value == service.name.value && !service.names_sources()
            };
            let mut of_it = known.clone().filter(|(old, _)| same(old));
            let Some((_, old)) = of_it.next() else {
                continue;
            };
            for address in old.iter().filter(|address| own.contains(address)) {
                if !sources.contains(address) {
                    sources.push(*address);
                }
            }
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // Whoever wants to know about errors calls `stop`.
        let _ = self.take_back();
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy")
            .field("generation", &self.generation.number)
            .finish_non_exhaustive()
    }
}

/// What the watcher is to look after.
#[derive(Debug)]
struct Watching {
    expected: Expected,
    events: Watch,
    kernel: KernelTables,
    offload: offload::Running,
    reloads: Reloads,
}

impl Watching {
    /// Offloads what the host's other rules allow, and watches the kernel from here on. The service manager hears from the
    /// watcher that packets flow.
    fn begin(
        mut self,
        handles: &[WorkerHandle],
        marks: Vec<Arc<crate::worker::Marks>>,
        ended: &Arc<Waker>,
    ) -> Result<WatchHandle, ProxyError> {
        let force = self.reloads.force();
        self.offload.take_errors(&force.own_ends());
        if self.reloads.splits() {
            self.offload.leave_to_sockets();
        }
        // They hold from the first connection on.
        let mut beside = Beside::new(force, handles.to_vec());
        beside.look(&mut self.kernel, &mut self.offload);
        self.offload.install(handles);
        if let Err(error) = flexcp_io::renounce_loading() {
            warn!("keeps the capabilities that loading programs takes: {error}");
        }
        crate::names::warn_if_unknowable(&force.current().config);
        let config = force.current().config.clone();
        // Not before: a thread that is made while the process may load programs would keep that right.
        self.reloads
            .run_beside(&marks)
            .map_err(ProxyError::Worker)?;
        for line in config::summary(&config) {
            info!("service {line}");
        }
        let watcher = Watcher::new(
            self.events,
            self.kernel,
            self.offload,
            self.expected,
            beside,
            self.reloads,
            (handles.to_vec(), marks),
        );
        let tell = Arc::clone(ended);
        watcher
            .spawn(move || tell.wake())
            .map_err(ProxyError::Worker)
    }
}

/// Whether `config` fits the host; the addresses towards each service's back ends, and the device's queues that the service
/// manager has kept.
fn fit(
    config: &Config,
    found: &mut Diagnostics,
) -> Result<(Vec<Vec<IpAddr>>, Vec<Tun>), ProxyError> {
    let device = &config.device.name.value;
    let kept = flexcp_io::kept_queues(device)?;
    let host = ThisHost {
        kept: (!kept.is_empty()).then(|| device.clone()),
        relays: Vec::new(),
    };
    let sources = live::check(config, &host, found);
    if found.has_errors() {
        return Err(ProxyError::Invalid {
            file: found.file().into(),
            errors: found.errors(),
        });
    }
    Ok((sources, kept))
}

/// What is not taken back is for somebody to look at.
fn report(change: &str) {
    match change.starts_with("journal: ") {
        true => warn!("{change}"),
        false => info!("kernel: {change}"),
    }
}

/// Another configuration can't be put into force; the one before is.
#[derive(thiserror::Error, Debug)]
pub enum ReloadError {
    /// It can't be, whatever the kernel says: the diagnostics say where and why.
    #[error("{file}: {errors} error{s}", s = if *errors == 1 { "" } else { "s" })]
    Invalid {
        /// The configuration file.
        file: String,
        /// How many.
        errors: usize,
    },
    /// The kernel does not take it, or not now.
    #[error(transparent)]
    Change(#[from] ChangeError),
}

/// A proxy can't run, or can't go on.
#[derive(thiserror::Error, Debug)]
pub enum ProxyError {
    /// The control socket can't be bound.
    #[error(transparent)]
    Control(#[from] BindError),
    /// The device can't be read any more.
    #[error(
        "the device can't be read any more: {0}; if somebody has deleted it, start flexcp anew"
    )]
    Device(io::Error),
    /// The configuration does not fit the host: the diagnostics say where and why.
    #[error("{file}: {errors} error{s}, does not start", s = if *errors == 1 { "" } else { "s" })]
    Invalid {
        /// The configuration file.
        file: String,
        /// How many.
        errors: usize,
    },
    /// The kernel's tables can't be changed.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The process may not change the network.
    #[error(
        "no permission to change the network: run flexcp as root or with the capability CAP_NET_ADMIN"
    )]
    NotPermitted,
    /// The rules that were kept can't be read.
    #[error(transparent)]
    Rules(#[from] KeptError),
    /// A defect of FlexCP.
    #[error("the worker panicked, which is a defect of flexcp; the message above says where")]
    Panicked,
    /// The kernel gives no random numbers.
    #[error("no random numbers from the kernel: {0}")]
    Random(io::Error),
    /// Connections of a service can't be split.
    #[error(transparent)]
    Split(#[from] SplitError),
    /// The state directory can't be made.
    #[error("can't make the state directory {path}: {error}", path = path.display())]
    StateDir {
        /// The directory.
        path: PathBuf,
        /// The kernel's reason.
        error: io::Error,
    },
    /// The device can't be made.
    #[error(transparent)]
    Tun(#[from] TunError),
    /// The kernel gives no thread or no file descriptor.
    #[error("can't start a thread: {0}")]
    Worker(io::Error),
}

//! `flexcp run`: starts everything in order, waits, and takes everything back.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use flexcp_io::{
    KernelError, KernelTables, PlacementError, PlacementProgram, Signal, Signals, Target, Tun,
    TunError, Waker, Watch,
};
use flexcp_placement::Exceptions;
use sd_notify::NotifyState;
use tracing::{info, warn};

use crate::beside::Beside;
use crate::config::file;
use crate::config::live::{self, ThisHost};
use crate::config::span::Severity;
use crate::config::{self, Config, Diagnostics, ReadError, plan};
use crate::control::{Asked, BindError, Control, Named, SocketFile};
use crate::leftover;
use crate::offload;
use crate::stop;
use crate::watch::{Ended, Expected, WatchHandle, Watcher};
use crate::watchdog::Watchdog;
use crate::worker::{self, Worker, WorkerHandle};

/// Runs FlexCP as the file `path` says, until a signal ends it. To be called before the process has
/// other threads, as signals are blocked first.
///
/// # Errors
/// When something does not work; whatever was changed in the kernel by then has been taken back.
pub fn run(path: &Path) -> Result<(), RunError> {
    let signals = Signals::block().map_err(RunError::Signals)?;
    info!(
        "flexcp {} starts with {}",
        env!("CARGO_PKG_VERSION"),
        path.display()
    );
    let Checked {
        config,
        sources,
        kept,
    } = checked(path)?;
    if !may_administer_network() {
        return Err(RunError::NotPermitted);
    }

    // From here on, each guard takes back what it stands for when it goes out of scope: the last
    // first.
    let (control, _socket_file) = bind(&config)?;
    let tuns = open_queues(&config, kept)?;
    let device = tuns.first().map_or(0, Tun::index);
    let (mut workers, handles) = make_workers(tuns, &config, &sources)?;
    let plan = plan::kernel(&config, &sources, &live::own_addresses());
    let events = Watch::open().map_err(KernelError::from)?;
    let mut kernel = KernelTables::install(&plan, &mut report)?;
    let left = leftover::read(&config);
    leftover::hand_over(left, &mut workers, &config);

    let ended = Arc::new(Waker::new().map_err(RunError::Worker)?);
    let spawn = |worker| {
        let tell = Arc::clone(&ended);
        worker::spawn(worker, move || tell.wake()).map_err(RunError::Worker)
    };
    let workers: Vec<_> = workers.into_iter().map(spawn).collect::<Result<_, _>>()?;
    let (offload, reasons) = offload::start(&config, device, &handles, &mut kernel);
    let expected = Expected::new(&config, &sources, &plan);
    let watch = watch(&config, expected, &handles, events, kernel, offload, &ended)?;
    let asked = Asked {
        workers: handles.clone(),
        offload: reasons,
        watch: watch.status(),
        services: named(&config),
    };
    serve(control, asked).map_err(RunError::Worker)?;

    let reason = until_ended(&signals, &ended, Watchdog::new(&handles));
    notify(NotifyState::Stopping);
    if reason.is_ok() {
        let limit = config.timeouts.drain.value;
        stop::drain(&handles, &signals, &ended, limit).map_err(RunError::Signals)?;
    }
    take_back(&config, watch, &handles, workers)?;
    reason?;
    info!("everything taken back, ends");
    Ok(())
}

/// The control socket, and the directory for what outlives the process.
fn bind(config: &Config) -> Result<(Control, SocketFile), RunError> {
    let socket = &config.control.socket.value;
    let bound = Control::bind(socket)?;
    info!("control socket at {}", socket.display());
    let state_dir = &config.control.state_dir.value;
    std::fs::create_dir_all(state_dir).map_err(|error| RunError::StateDir {
        path: state_dir.clone(),
        error,
    })?;
    Ok(bound)
}

/// A worker for each queue, and the handles to them.
fn make_workers(
    tuns: Vec<Tun>,
    config: &Config,
    sources: &[Vec<IpAddr>],
) -> Result<(Vec<Worker>, Vec<WorkerHandle>), RunError> {
    let queues = queues(tuns, config, sources);
    let hash_keys = hash_keys().map_err(RunError::Random)?;
    let exceptions = exceptions(config, &queues, hash_keys);
    let (mut workers, handles): (Vec<_>, Vec<_>) = Worker::all(queues, hash_keys)
        .map_err(RunError::Worker)?
        .into_iter()
        .unzip();
    for (worker, exceptions) in workers.iter_mut().zip(exceptions) {
        worker.set_exceptions(exceptions);
    }
    if config.device.pin.value {
        workers.iter_mut().for_each(Worker::pin);
    }
    Ok((workers, handles))
}

/// Installs to the offload what the host's other rules allow, and watches the kernel from here on. The service manager hears
/// from the watcher that packets flow.
fn watch(
    config: &Config,
    expected: Expected,
    handles: &[WorkerHandle],
    events: Watch,
    mut kernel: KernelTables,
    mut offload: offload::Running,
    ended: &Arc<Waker>,
) -> Result<WatchHandle, RunError> {
    // They hold from the first connection on.
    let mut beside = Beside::new(config, handles.to_vec());
    beside.look(&mut kernel, &mut offload);
    offload.install(handles);
    if let Err(error) = flexcp_io::renounce_loading() {
        warn!("keeps the capabilities that loading programs takes: {error}");
    }
    for line in config::summary(config) {
        info!("service {line}");
    }
    let handles = handles.to_vec();
    let watcher = Watcher::new(events, kernel, offload, expected, beside, handles, config);
    let tell = Arc::clone(ended);
    watcher.spawn(move || tell.wake()).map_err(RunError::Worker)
}

/// Ends the watcher and the workers, and takes back what the kernel was given.
fn take_back(
    config: &Config,
    watch: WatchHandle,
    handles: &[WorkerHandle],
    workers: Vec<JoinHandle<io::Result<()>>>,
) -> Result<(), RunError> {
    let Ended {
        tables: kernel,
        offload,
        outcome,
    } = watch.end().ok_or(RunError::Panicked)?;
    // The kernel goes first: what it brings no more, the worker need not translate.
    drop(offload);
    let removed = kernel.remove(&mut report);
    handles.iter().for_each(WorkerHandle::stop);
    outcome?;
    workers.into_iter().try_for_each(joined)?;
    leftover::forget(config);
    // Whoever can't be told has kept none.
    let _ = flexcp_io::let_queues_go();
    removed?;
    Ok(())
}

/// What is not taken back is for somebody to look at.
fn report(change: &str) {
    match change.starts_with("journal: ") {
        true => warn!("{change}"),
        false => info!("kernel: {change}"),
    }
}

/// A queue of the device for each worker. The service manager keeps them if the process dies, so that the device outlives
/// it; those that it has kept, `tuns`, are used again.
fn open_queues(config: &Config, mut tuns: Vec<Tun>) -> Result<Vec<Tun>, RunError> {
    let (name, count) = (
        &config.device.name.value,
        usize::from(plan::workers(config)),
    );
    tuns.truncate(count);
    if tuns.is_empty() {
        tuns.push(Tun::open(name)?);
        info!("device {name} made");
    } else {
        info!("device {name}: an earlier run's, kept by the service manager");
    }
    while let Some(first) = tuns.first().filter(|_| tuns.len() < count) {
        tuns.push(first.another_queue()?);
    }
    if let Err(error) = flexcp_io::keep_queues(tuns.iter()) {
        warn!("the service manager can't keep the device if flexcp is killed: {error}");
    }
    Ok(tuns)
}

/// The queues, each with what its translator is told.
fn queues(
    tuns: Vec<Tun>,
    config: &Config,
    sources: &[Vec<IpAddr>],
) -> Vec<(Tun, flexcp_translator::Config)> {
    let told = (0..).map(|worker| plan::translator(config, sources, worker));
    tuns.into_iter().zip(told).collect()
}

fn hash_keys() -> io::Result<(u64, u64)> {
    let key = || flexcp_io::random_bytes().map(u64::from_ne_bytes);
    Ok((key()?, key()?))
}

/// Brings packets to their workers as wanted, where the kernel can; otherwise the log says what is missing. Gives
/// what each worker claims flows in, when packets come to their owners.
fn exceptions(
    config: &Config,
    queues: &[(Tun, flexcp_translator::Config)],
    hash_keys: (u64, u64),
) -> Vec<Exceptions> {
    let target = match config.device.placement.value {
        file::Placement::Owner => Target::Owner,
        file::Placement::Scatter => Target::Scatter,
        file::Placement::Kernel => return vec![],
    };
    if queues.len() < 2 {
        return vec![];
    }
    let placed = place(queues, hash_keys, target);
    match &placed {
        Ok(_) if target == Target::Owner => info!("placement: packets come to their worker"),
        Ok(_) => warn!("placement: packets are scattered, to measure what handing over costs"),
        Err(error) => warn!("no placement: {error}; workers hand packets over"),
    }
    placed.unwrap_or_default()
}

fn place(
    queues: &[(Tun, flexcp_translator::Config)],
    hash_keys: (u64, u64),
    target: Target,
) -> Result<Vec<Exceptions>, PlacementError> {
    let Some((device, told)) = queues.first() else {
        return Ok(vec![]);
    };
    let share = plan::claimed_flows(told);
    let all = share.saturating_mul(queues.len());
    let rules = told.placement(hash_keys);
    let program = PlacementProgram::load(&rules, target, u32::try_from(all).unwrap_or(u32::MAX))?;
    program.attach(device)?;
    if target == Target::Scatter {
        return Ok(vec![]);
    }
    let of = |worker| Ok(Exceptions::new(Box::new(program.flows(worker)?), share));
    (0..rules.workers).map(of).collect()
}

/// What a start needs to know.
struct Checked {
    config: Config,
    /// The addresses towards each service's back ends.
    sources: Vec<Vec<IpAddr>>,
    /// The device's queues that the service manager has kept.
    kept: Vec<Tun>,
}

/// What is there when nothing is wrong. Otherwise everything that is wrong has gone to standard error.
fn checked(path: &Path) -> Result<Checked, RunError> {
    let (config, mut found) = config::load(path)?;
    let Some(config) = config else {
        return Err(invalid(&found));
    };
    let device = &config.device.name.value;
    let kept = flexcp_io::kept_queues(device)?;
    let host = ThisHost {
        kept: (!kept.is_empty()).then(|| device.clone()),
    };
    let sources = live::check(&config, &host, &mut found);
    if found.has_errors() {
        return Err(invalid(&found));
    }
    for warning in found.found() {
        warn!("{}", found.render(warning));
    }
    Ok(Checked {
        config,
        sources,
        kept,
    })
}

fn invalid(found: &Diagnostics) -> RunError {
    for error in found
        .found()
        .into_iter()
        .filter(|found| found.severity == Severity::Error)
    {
        eprintln!("{}", found.render(error));
    }
    RunError::Invalid {
        file: found.file().into(),
        errors: found.errors(),
    }
}

/// Answers requests on a thread of its own, which ends with the process.
fn serve(control: Control, asked: Asked) -> io::Result<()> {
    thread::Builder::new()
        .name("control".into())
        .spawn(move || control.serve(&asked))
        .map(drop)
}

fn named(config: &Config) -> Vec<Named> {
    let named = config.services.iter().map(|service| Named {
        name: service.name.value.clone(),
        mode: service.mode.name(),
    });
    named.collect()
}

/// Waits for a signal to end, or for the end of a worker or the watcher.
fn until_ended(
    signals: &Signals,
    ended: &Waker,
    mut watchdog: Watchdog<'_>,
) -> Result<(), RunError> {
    loop {
        watchdog.tend(notify);
        let timeout = watchdog.timeout();
        let ready = flexcp_io::wait(signals, ended, timeout).map_err(RunError::Signals)?;
        while let Some(signal) = signals.next().map_err(RunError::Signals)? {
            match signal {
                Signal::Terminate => info!("SIGTERM, stops"),
                Signal::Interrupt => info!("SIGINT, stops"),
                Signal::Hangup => {
                    warn!("SIGHUP: the configuration can't be reloaded yet; restart flexcp");
                    continue;
                }
            }
            return Ok(());
        }
        if ready.woken {
            // Why it has ended, joining it will tell.
            return Ok(());
        }
    }
}

fn joined(worker: JoinHandle<io::Result<()>>) -> Result<(), RunError> {
    match worker.join() {
        Ok(result) => result.map_err(RunError::Device),
        Err(_) => Err(RunError::Panicked),
    }
}

/// Whether the process has `CAP_NET_ADMIN`. The kernel has the last word: this is for an answer
/// before anything was changed.
fn may_administer_network() -> bool {
    const CAP_NET_ADMIN: u64 = 12;
    let Ok(status) = std::fs::read_to_string("/proc/self/status") else {
        return true;
    };
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
    effective.is_none_or(|set| set >> CAP_NET_ADMIN & 1 == 1)
}

/// Tells the service manager, if there is one.
fn notify(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        warn!("can't notify the service manager: {error}");
    }
}

/// FlexCP can't run, or can't go on.
#[derive(thiserror::Error, Debug)]
pub enum RunError {
    /// The control socket can't be bound.
    #[error(transparent)]
    Control(#[from] BindError),
    /// The device can't be read any more.
    #[error(
        "the device can't be read any more: {0}; if somebody has deleted it, start flexcp anew"
    )]
    Device(io::Error),
    /// What is wrong with the file has been said.
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
    /// A defect of FlexCP.
    #[error("the worker panicked, which is a defect of flexcp; the message above says where")]
    Panicked,
    /// The kernel gives no random numbers.
    #[error("no random numbers from the kernel: {0}")]
    Random(io::Error),
    /// The file can't be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// Signals can't be read.
    #[error("signals can't be read: {0}")]
    Signals(io::Error),
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

//! What a start takes: the device's queues, workers, the program that brings packets to them.

use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use flexcp_io::{
    PlacedBackEnds, PlacementError, PlacementProgram, Plan, Reasons, Target, Tun, Waker,
};
use flexcp_placement::{Exceptions, Rules};
use tracing::{info, warn};

use super::{ProxyError, ways};
use crate::config::{Config, file, live, plan};
use crate::control::{Asked, Control, Floors, SocketFile};
use crate::generation::Generation;
use crate::location::LocationHandle;
use crate::rulebook::Keeper;
use crate::split::RelayHandle;
use crate::uplinks;
use crate::watch::StatusHandle;
use crate::worker::{self, Marks, Worker, WorkerHandle};

/// What is to be changed in the kernel at the start.
pub(super) fn plan(generation: &Generation) -> Plan {
    let config = &generation.config;
    Plan {
        uplinks: uplinks::ways::first(config),
        ..plan::kernel(config, &generation.sources, &live::own_addresses())
    }
}

/// The workers: they end with this.
#[derive(Debug)]
pub(super) struct Workers {
    pub(super) handles: Vec<WorkerHandle>,
    threads: Vec<JoinHandle<io::Result<()>>>,
}

/// Workers that have not begun yet.
#[derive(Debug)]
pub(super) struct Made {
    pub(super) workers: Vec<Worker>,
    pub(super) handles: Vec<WorkerHandle>,
    /// Where each notes which back ends it has marked.
    pub(super) marks: Vec<Arc<Marks>>,
    /// By which they sort packets.
    pub(super) rules: Rules,
    /// What the placement program knows of back ends; `None`: there is none.
    pub(super) placement: Option<PlacedBackEnds>,
}

impl Made {
    /// Runs the workers. `ended` is rung when one of them ends.
    pub(super) fn spawn(self, ended: &Arc<Waker>) -> Result<Workers, ProxyError> {
        let mut running = Workers {
            handles: self.handles,
            threads: Vec::new(),
        };
        for worker in self.workers {
            let tell = Arc::clone(ended);
            let thread = worker::spawn(worker, move || tell.wake()).map_err(ProxyError::Worker)?;
            running.threads.push(thread);
        }
        Ok(running)
    }
}

impl Workers {
    /// Ends them.
    pub(super) fn stop(mut self) -> Result<(), ProxyError> {
        self.end()
    }

    fn end(&mut self) -> Result<(), ProxyError> {
        self.handles.iter().for_each(WorkerHandle::stop);
        let ended = self.threads.drain(..).map(joined);
        // All of them, before the first error is told.
        ended.fold(Ok(()), Result::and)
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        // Whoever wants to know about errors calls `stop`.
        let _ = self.end();
    }
}

/// The control socket, and the directory for what outlives the process.
pub(super) fn bind(config: &Config) -> Result<(Control, SocketFile), ProxyError> {
    let socket = &config.control.socket.value;
    let bound = Control::bind(socket, plan::listen(config))?;
    info!("control socket at {}", socket.display());
    if let Some(address) = bound.0.tcp_address() {
        info!("control: listens on {address} for who has the token");
    }
    let state_dir = &config.control.state_dir.value;
    std::fs::create_dir_all(state_dir).map_err(|error| ProxyError::StateDir {
        path: state_dir.clone(),
        error,
    })?;
    Ok(bound)
}

/// A worker for each queue.
pub(super) fn make_workers(
    tuns: Vec<Tun>,
    generation: &Generation,
    (cookie_secret, relay): ([u8; 32], RelayHandle),
) -> Result<Made, ProxyError> {
    let config = &generation.config;
    let queues = (0..).map(|worker| generation.translator(worker));
    let queues: Vec<_> = tuns.into_iter().zip(queues).collect();
    let hash_keys = hash_keys().map_err(ProxyError::Random)?;
    let rules = generation.translator(0).placement(hash_keys);
    let (exceptions, placement) = placement(config, &queues, &rules);
    let (mut workers, handles): (Vec<_>, Vec<_>) = Worker::all(queues, hash_keys, cookie_secret)
        .map_err(ProxyError::Worker)?
        .into_iter()
        .unzip();
    for (worker, exceptions) in workers.iter_mut().zip(exceptions) {
        worker.set_exceptions(exceptions);
    }
    let each = workers.iter_mut();
    each.for_each(|worker| worker.set_relay(relay.clone()));
    let by_way = config.accesses.iter().any(|it| !it.interfaces.is_empty());
    for worker in workers.iter_mut().filter(|_| by_way) {
        if let Some(ways) = ways::open(config) {
            worker.set_ways(ways);
        }
    }
    let host = live::own_addresses();
    handles
        .iter()
        .for_each(|handle| handle.note_host_addresses(&host));
    if config.device.pin.value {
        workers.iter_mut().for_each(Worker::pin);
    }
    Ok(Made {
        marks: workers.iter().map(Worker::marks).collect(),
        workers,
        handles,
        rules,
        placement,
    })
}

/// A queue of the device for each worker. The service manager keeps them if the process dies, so that the device outlives
/// it; those that it has kept, `tuns`, are used again.
pub(super) fn open_queues(config: &Config, mut tuns: Vec<Tun>) -> Result<Vec<Tun>, ProxyError> {
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

fn hash_keys() -> io::Result<(u64, u64)> {
    let key = || flexcp_io::random_bytes().map(u64::from_ne_bytes);
    Ok((key()?, key()?))
}

/// Brings packets to their workers as wanted, where the kernel can; otherwise the log says what is missing. Gives
/// what each worker claims flows in, when packets come to their owners, and what the program knows of back ends.
fn placement(
    config: &Config,
    queues: &[(Tun, flexcp_translator::Config)],
    rules: &Rules,
) -> (Vec<Exceptions>, Option<PlacedBackEnds>) {
    let target = match config.device.placement.value {
        file::Placement::Owner => Target::Owner,
        file::Placement::Scatter => Target::Scatter,
        file::Placement::Kernel => return (vec![], None),
    };
    let Some((device, told)) = queues.first().filter(|_| queues.len() > 1) else {
        return (vec![], None);
    };
    match place(device, plan::claimed_flows(told), rules, target) {
        Ok((exceptions, back_ends)) => {
            match target {
                Target::Owner => info!("placement: packets come to their worker"),
                Target::Scatter => {
                    warn!("placement: packets are scattered, to measure what handing over costs");
                }
            }
            (exceptions, Some(back_ends))
        }
        Err(error) => {
            warn!("no placement: {error}; workers hand packets over");
            (vec![], None)
        }
    }
}

/// `share`: flows that a worker may claim.
fn place(
    device: &Tun,
    share: usize,
    rules: &Rules,
    target: Target,
) -> Result<(Vec<Exceptions>, PlacedBackEnds), PlacementError> {
    let all = share.saturating_mul(rules.workers.into());
    let placement = PlacementProgram::load(rules, target, u32::try_from(all).unwrap_or(u32::MAX))?;
    placement.attach(device)?;
    let back_ends = placement.back_ends()?;
    if target == Target::Scatter {
        return Ok((vec![], back_ends));
    }
    let of = |worker| Ok(Exceptions::new(Box::new(placement.flows(worker)?), share));
    let exceptions = (0..rules.workers)
        .map(of)
        .collect::<Result<_, PlacementError>>()?;
    Ok((exceptions, back_ends))
}

/// Whom requests are about.
pub(super) fn asked(
    workers: &[WorkerHandle],
    (offload, (split, location)): (Option<Reasons>, (RelayHandle, LocationHandle)),
    watch: StatusHandle,
    keeper: Keeper,
) -> Arc<Asked> {
    Arc::new(Asked {
        workers: workers.to_vec(),
        offload,
        split,
        location,
        watch,
        keeper: Arc::new(keeper),
        floors: Floors::default(),
    })
}

/// Answers requests on a thread of its own, which ends when the socket's file goes.
pub(super) fn serve(control: Control, asked: Arc<Asked>) -> io::Result<()> {
    thread::Builder::new()
        .name("control".into())
        .spawn(move || control.serve(asked))
        .map(drop)
}

fn joined(worker: JoinHandle<io::Result<()>>) -> Result<(), ProxyError> {
    match worker.join() {
        Ok(result) => result.map_err(ProxyError::Device),
        Err(_) => Err(ProxyError::Panicked),
    }
}

/// Whether the process has `CAP_NET_ADMIN`. The kernel has the last word: this is for an answer
/// before anything was changed.
pub(super) fn may_administer_network() -> bool {
    const CAP_NET_ADMIN: u64 = 12;
    let Ok(status) = std::fs::read_to_string("/proc/self/status") else {
        return true;
    };
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
    effective.is_none_or(|set| set >> CAP_NET_ADMIN & 1 == 1)
}

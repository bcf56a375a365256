//! A worker: one thread that owns one queue of the device and one translator, and takes every packet
//! from the one through the other and back. It takes no lock and allocates nothing for a packet. Small packets
//! go out together, before the worker sleeps or installs a connection.
//!
//! Others reach it through a [`WorkerHandle`]: what they ask is answered between two batches. Workers beside
//! each other have nothing in common but the rings between them.

mod ahead;
mod handover;
mod ledger;
mod listeners;
mod marks;
mod memory;
mod order;
mod page;
mod reload;
mod request;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender, SyncSender};
use std::thread;
use std::time::Duration;

use flexcp_io::{PacketBuffer, SendBatch, Tun, Waker};
use flexcp_placement::Exceptions;
use flexcp_translator::{
    AccessTotals, BackendView, Config, Counters, Cursor, Drops, FastPath, Frame, Gauges, Install,
    Instant, Meaning, Registry, ServiceId, StableId, Step, SubflowRecord, Translator, Verdict,
    Ways,
};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tracing::{info, warn};

use crate::denied::Denied;
use crate::names::Names;
use crate::split::RelayHandle;

pub use self::ledger::Unaccounted;
pub use self::listeners::{Ear, Heard};
pub use self::marks::Marks;
pub use self::page::Page;
pub use self::reload::Configure;

pub(crate) use self::listeners::Listener;
pub(crate) use self::reload::Whose;
pub(crate) use self::request::Request;

use self::handover::{Handover, Sorted};
use self::listeners::Listeners;
use self::memory::Memory;
use self::reload::Finding;

/// A worker that has not begun yet.
pub struct Worker {
    number: usize,
    path: Path,
    buffer: PacketBuffer,
    /// To and from the others, when there are any.
    handover: Option<Handover>,
    requests: Receiver<Request>,
    /// Some of them may be left from the last time.
    unanswered: bool,
    waker: Arc<Waker>,
    /// Itself, for whoever has an answer for it later.
    own: WorkerHandle,
    names: Names,
    listeners: Listeners,
    /// Stays on a CPU of its own.
    pinned: bool,
    /// Who waits until the ends of all connections have been told that they are over.
    ending: Option<SyncSender<()>>,
    /// The same of some of them, the first before the others.
    stranded: VecDeque<(Whose, SyncSender<()>)>,
    /// Where it is among connections that are judged by other rules at once.
    judging: Option<Cursor>,
    /// Where it is among connections whose ways are asked for.
    finding: Option<Finding>,
    /// Where it is among connections that follow their uplinks.
    following: Option<Cursor>,
}

/// From the device through the translator and back.
struct Path {
    tun: Tun,
    /// Packets that are not on their way yet. Empty whenever a connection may be installed.
    batch: SendBatch,
    translator: Translator,
    /// The packet just handled asked for its connection to be installed once all is sent.
    installs_when_sent: bool,
    carrier: CarrierCounters,
    memory: Memory,
    denied: Denied,
    /// Calls servers of split connections.
    relay: Option<RelayHandle>,
    /// For others to read.
    marks: Arc<Marks>,
}

/// How others reach a worker.
#[derive(Clone, Debug)]
pub struct WorkerHandle {
    requests: Sender<Request>,
    waker: Arc<Waker>,
}

/// What a worker has done so far.
#[derive(Clone, Copy, Debug)]
pub struct Snapshot {
    /// What the translator has done.
    pub counters: Counters,
    /// What the translator has dropped.
    pub drops: Drops,
    /// What passed the device, and what went wrong there.
    pub carrier: CarrierCounters,
    /// What the translator holds now.
    pub gauges: Gauges,
    /// Bytes of memory that its connections may take.
    pub memory_budget: u64,
    /// Packets that wait to be written.
    pub kept: u64,
    /// Flows that it has in the placement program's map now.
    pub claimed_flows: u64,
}

macro_rules! carrier_counters {
    ($($(#[doc = $meaning:literal])* $field:ident),* $(,)?) => {
        /// What became of packets between the translator and the device.
        #[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
        pub struct CarrierCounters {
            $($(#[doc = $meaning])* pub $field: u64,)*
        }

        impl CarrierCounters {
            /// The name of each, and the lines that say what it means.
            pub const MEANINGS: &'static [Meaning] = &[$((stringify!($field), &[$($meaning),*])),*];

            /// Name and value of each counter.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($field), self.$field)),*].into_iter()
            }
        }
    };
}

carrier_counters! {
    /// Packets that the device gave.
    device_rx,
    /// Packets that the device took.
    device_tx,
    /// Packets that came with a virtio-net header nobody agreed on.
    malformed_rx,
    /// Reads that brought an error instead of a packet.
    receive_failed,
    /// Packets that the device did not take.
    send_failed,
    /// Packets that came to the wrong worker and went on to another.
    handed_over,
    /// Packets that came to another worker, which has handed them over.
    taken_over,
    /// Packets for another worker that were lost because the other one lags behind.
    handover_lost,
    /// Flows whose packets others have to hand over, as the placement program's map had no room for them.
    placement_full,
    /// ACKs that were not sent, as a later packet sent together with them says the same.
    acks_superseded,
}

impl Worker {
    /// A worker for each queue, and the handles to them. The first queue is for the translator that the first
    /// of `configs` tells what to do, and so on. `hash_keys`, of what names the owner of a packet, must be
    /// unpredictable, as must `cookie_secret`, with which all make cookies: one's client may come to another next time.
    ///
    /// # Errors
    /// When the process has no file descriptor left, or no randomness is to be had.
    pub fn all(
        queues: Vec<(Tun, Config)>,
        hash_keys: (u64, u64),
        cookie_secret: [u8; 32],
    ) -> io::Result<Vec<(Self, WorkerHandle)>> {
        let (tuns, configs): (Vec<_>, Vec<_>) = queues.into_iter().unzip();
        let wakers = tuns.iter().map(|_| Waker::new().map(Arc::new));
        let wakers: Vec<_> = wakers.collect::<io::Result<_>>()?;
        let handovers: Vec<_> = if tuns.len() > 1 {
            let ends = Handover::connect(&configs, &wakers, hash_keys);
            ends.into_iter().map(Some).collect()
        } else {
            vec![None]
        };
        let mut workers = vec![];
        let memories = Memory::watch(tuns.len())?;
        let parts = tuns.into_iter().zip(configs).zip(wakers).zip(handovers);
        for (number, ((((tun, config), waker), handover), memory)) in
            parts.zip(memories).enumerate()
        {
            let marks = Arc::new(Marks::new(&config));
            let (handle, requests) = WorkerHandle::new(Arc::clone(&waker));
            let mut translator = Translator::new(config, flexcp_io::random_bytes()?);
            translator.set_cookie_secret(cookie_secret);
            let worker = Self {
                number,
                path: Path {
                    tun,
                    batch: SendBatch::new(),
                    translator,
                    installs_when_sent: false,
                    carrier: CarrierCounters::default(),
                    memory,
                    denied: Denied::default(),
                    relay: None,
                    marks,
                },
                buffer: PacketBuffer::new(),
                handover,
                requests,
                unanswered: false,
                waker,
                own: handle.clone(),
                names: Names::default(),
                listeners: Listeners::new(number),
                pinned: false,
                ending: None,
                stranded: VecDeque::new(),
                judging: None,
                finding: None,
                following: None,
            };
            workers.push((worker, handle));
        }
        Ok(workers)
    }

    /// A program in the kernel brings packets to their worker, and this one claims what is not where its ends
    /// say. Nothing happens when there is no other worker.
    pub fn set_exceptions(&mut self, exceptions: Exceptions) {
        if let Some(handover) = &mut self.handover {
            handover.set_exceptions(exceptions);
            self.path.translator.watch_flows();
        }
    }

    /// Writes down the subflows of its connections for the next run, which tells their ends what has become of them
    /// if this one is killed.
    pub fn write_down(&mut self, registry: Box<dyn Registry>) {
        self.path.translator.set_registry(registry);
    }

    /// Sets who knows by which way packets leave, as the accesses of its configuration number them.
    pub fn set_ways(&mut self, ways: Box<dyn Ways>) {
        self.path.translator.set_ways(ways);
    }

    /// Tells the ends of what an earlier run has left behind. `workers`: how many do.
    pub fn adopt(&mut self, left: Vec<SubflowRecord>, workers: usize) {
        let share = (self.number, workers);
        self.path.translator.adopt(now(), left, share);
    }

    /// Makes it stay on the CPU that has its number among those that the process may use.
    pub fn pin(&mut self) {
        self.pinned = true;
    }

    /// Works until it is told to stop.
    ///
    /// # Errors
    /// When the device can't be read any more, as when it was deleted.
    pub fn run(mut self) -> io::Result<()> {
        if self.pinned {
            match pin(self.number) {
                Ok(cpu) => info!("worker {} stays on CPU {cpu}", self.number),
                Err(error) => warn!("worker {} can't stay on one CPU: {error}", self.number),
            }
        }
        self.path.translator.make_keys(usize::MAX);
        loop {
            let due = self.path.translator.poll_timeout();
            let timeout = due.map(|due| due.since(now()));
            let may_sleep = self.handover.as_ref().is_none_or(Handover::may_sleep);
            let telling = self.ending.is_some() || !self.stranded.is_empty();
            let telling = telling || self.judging.is_some() || self.finding.is_some();
            let telling = telling || self.following.is_some();
            let timeout = if may_sleep && !telling && !self.unanswered {
                timeout
            } else {
                Some(Duration::ZERO)
            };
            let ready = flexcp_io::wait(&self.path.tun, &self.waker, timeout)?;
            if let Some(handover) = &self.handover {
                handover.has_woken();
            }
            if ready.packets {
                self.batch()?;
            }
            self.take_parcels();
            let handover = self.handover.as_mut();
            self.path.handle_timeout(handover, &self.buffer);
            self.path.note_marks();
            self.path.denied.tell(now(), &mut self.path.translator);
            self.look_up();
            self.call_ahead();
            self.tell_ends();
            self.listeners.pass_on(&mut self.path.translator);
            self.tell_stranded();
            self.judge_some();
            self.find_some_ways();
            self.follow_some_uplinks();
            if (ready.woken || self.unanswered) && self.answer().is_break() {
                return Ok(());
            }
        }
    }

    /// Takes a bounded number of packets, so that timers and requests have their turn.
    fn batch(&mut self) -> io::Result<()> {
        let path = &mut self.path;
        for _ in 0..BATCH {
            let Some(frame) = path.tun.receive(&mut self.buffer)? else {
                path.install_ready();
                path.translator.make_keys(KEYS);
                return Ok(());
            };
            let (range, offload) = (frame.range(), frame.offload);
            let handover = self.handover.as_mut();
            let sorted = handover.map_or(Sorted::Ours, |handover| {
                handover.sort(&path.translator, &mut self.buffer, range.clone(), offload)
            });
            if path.carrier.is_ours(sorted) {
                path.translate(&mut self.buffer.frame(range, offload));
                path.transmit(self.handover.as_mut(), &self.buffer);
            }
        }
        path.batch.flush(&path.tun);
        path.translator.busy(now());
        path.send_held();
        Ok(())
    }

    /// Takes what others have handed over, a bounded number again.
    fn take_parcels(&mut self) {
        let (Some(handover), path) = (&mut self.handover, &mut self.path) else {
            return;
        };
        for _ in 0..BATCH {
            let Some((from, mut parcel)) = handover.take() else {
                break;
            };
            path.carrier.taken_over += 1;
            let (range, offload) = (parcel.range.clone(), parcel.offload);
            let sorted = if parcel.is_owned() {
                Sorted::Ours
            } else {
                handover.sort(&path.translator, &mut parcel.buffer, range.clone(), offload)
            };
            if path.carrier.is_ours(sorted) {
                path.translate(&mut parcel.buffer.frame(range, offload));
                path.transmit(Some(handover), &parcel.buffer);
            }
            handover.give_back(from, parcel.buffer);
        }
        path.batch.flush(&path.tun);
    }

    /// Tells the ends of some connections that those are over, when that is asked for; of the others in the next round,
    /// so that packets have their turn.
    fn tell_ends(&mut self) {
        let Some(done) = self.ending.take() else {
            return;
        };
        let more = self.path.translator.end_some(now(), BATCH);
        self.path.transmit(self.handover.as_mut(), &self.buffer);
        self.path.batch.flush(&self.path.tun);
        if more {
            self.ending = Some(done);
        } else {
            let _ = done.try_send(());
        }
    }

    /// Has the names resolved that clients have asked for.
    fn look_up(&mut self) {
        while let Some(lookup) = self.path.translator.poll_lookup() {
            if let Err(id) = self.names.ask(lookup, &self.own) {
                self.take_addresses(id, &[]);
            }
        }
    }

    /// A name has been resolved.
    pub(super) fn take_addresses(&mut self, id: StableId, addrs: &[IpAddr]) {
        self.path.translator.resolved(now(), id, addrs);
        self.path.transmit(self.handover.as_mut(), &self.buffer);
        self.path.batch.flush(&self.path.tun);
    }
}

impl Path {
    fn snapshot(&self, handover: Option<&Handover>) -> Snapshot {
        Snapshot {
            counters: self.translator.totals(),
            drops: *self.translator.drops(),
            gauges: self.translator.gauges(),
            memory_budget: count(self.translator.memory_budget()),
            kept: count(self.batch.kept()),
            claimed_flows: handover.map_or(0, |handover| count(handover.claimed())),
            carrier: CarrierCounters {
                device_rx: self.tun.received(),
                device_tx: self.tun.sent(),
                malformed_rx: self.tun.malformed(),
                receive_failed: self.tun.failed(),
                send_failed: self.batch.failed(),
                placement_full: handover.map_or(0, Handover::refused),
                acks_superseded: self.batch.superseded(),
                ..self.carrier
            },
        }
    }

    fn translate(&mut self, frame: &mut Frame<'_>) {
        let Step { verdict, install } = self.translator.handle_packet(now(), frame);
        self.installs_when_sent = install == Install::WhenSent;
        if install == Install::BeforeSent {
            self.install_due();
            self.batch.send_at_once(&self.tun, frame);
        } else if verdict == Verdict::Forward {
            self.batch.send(&self.tun, frame);
        }
    }

    /// Sends what the translator has made; its payload may stand in the packet just handled. The answers will
    /// come to this worker. Then the connection may be installed.
    fn transmit(&mut self, handover: Option<&mut Handover>, buffer: &PacketBuffer) {
        if let Some(handover) = handover {
            handover.update(&mut self.translator);
        }
        while let Some(transmit) = self.translator.poll_transmit() {
            self.batch
                .send_transmit(&self.tun, &transmit, buffer.as_bytes());
        }
        if std::mem::take(&mut self.installs_when_sent) {
            self.install_due();
        }
    }

    fn install_due(&mut self) {
        self.batch.flush(&self.tun);
        self.translator.sent(now());
        self.send_held();
    }

    fn install_ready(&mut self) {
        self.batch.flush(&self.tun);
        self.translator.idle(now());
        self.send_held();
    }

    /// Sends ACKs that waited for their connection to be installed, at once: what they call forth finds the fast path.
    fn send_held(&mut self) {
        while let Some(transmit) = self.translator.poll_transmit() {
            self.batch.send_transmit(&self.tun, &transmit, &[]);
        }
        self.batch.flush(&self.tun);
    }

    fn note_marks(&mut self) {
        while let Some(state) = self.translator.poll_backend() {
            self.marks.note(state);
        }
    }

    fn handle_timeout(&mut self, handover: Option<&mut Handover>, buffer: &PacketBuffer) {
        let due = self.translator.poll_timeout();
        if due.is_some_and(|due| due <= now()) {
            self.translator.handle_timeout(now());
            self.transmit(handover, buffer);
            self.batch.flush(&self.tun);
            let counters = self.translator.counters();
            let open = counters.connections_opened - counters.connections_closed;
            self.memory.note(open);
        }
    }
}

impl WorkerHandle {
    /// A handle, and where its requests come out.
    pub(crate) fn new(waker: Arc<Waker>) -> (Self, Receiver<Request>) {
        let (requests, receiver) = mpsc::channel();
        (Self { requests, waker }, receiver)
    }

    /// What the worker has done so far.
    ///
    /// # Errors
    /// When it has ended or does not answer.
    pub fn stats(&self) -> Result<Snapshot, Gone> {
        self.ask(Request::Stats)
    }

    /// The back ends of the present services as they stand, in the order of the configuration.
    ///
    /// # Errors
    /// When it has ended or does not answer.
    pub fn backends(&self) -> Result<Vec<BackendView>, Gone> {
        self.ask(Request::Backends)
    }

    /// What has come over each access so far, in the order of the configuration; last, over none.
    ///
    /// # Errors
    /// When it has ended or does not answer.
    pub fn access_totals(&self) -> Result<Vec<AccessTotals>, Gone> {
        self.ask(Request::AccessTotals)
    }

    /// From here on the worker installs what needs no decision to a fast path.
    pub fn offload(&self, fast_path: Box<dyn FastPath>) {
        // When the worker is gone already, it has nothing to install.
        let _ = self.requests.send(Request::Offload(fast_path));
        self.waker.wake();
    }

    /// From here on the worker offloads no connection of these services.
    pub fn keep(&self, kept: Vec<ServiceId>) {
        // When the worker is gone already, it installs none.
        let _ = self.requests.send(Request::Keep(kept));
        self.waker.wake();
    }

    /// Packets may have passed by for a while: the worker asks the ends of its connections.
    pub fn note_astray(&self) {
        // When it is gone already, it has none.
        let _ = self.requests.send(Request::Astray);
        self.waker.wake();
    }

    /// The name that a connection of its waits for has these addresses.
    pub(crate) fn tell_addresses(&self, id: StableId, addrs: Vec<IpAddr>) {
        // When it is gone already, nobody waits.
        let _ = self.requests.send(Request::Resolved(id, addrs));
        self.waker.wake();
    }

    /// From here on the worker opens no connection.
    pub fn drain(&self) {
        // When it is gone already, it opens none.
        let _ = self.requests.send(Request::Drain);
        self.waker.wake();
    }

    /// Connections whose ends lose each other when the worker ends.
    ///
    /// # Errors
    /// When it has ended or does not answer.
    pub fn dependent(&self) -> Result<usize, Gone> {
        self.ask(Request::Dependent)
    }

    /// Has the worker tell the ends of those connections that they are over, and waits until it has.
    ///
    /// # Errors
    /// When it has ended or does not answer.
    pub fn end(&self) -> Result<(), Gone> {
        self.ask(Request::End)
    }

    /// The numbers of those of `workers` that give no sign of life in `patience`.
    #[must_use]
    pub fn silent(workers: &[Self], patience: Duration) -> Vec<usize> {
        let end = std::time::Instant::now() + patience;
        let asked = workers.iter().map(|worker| {
            let (answer, answered) = mpsc::sync_channel(1);
            let _ = worker.requests.send(Request::Ping(answer));
            worker.waker.wake();
            answered
        });
        let answered: Vec<_> = asked.collect();
        let is_silent = |answered: &Receiver<()>| {
            let left = end.saturating_duration_since(std::time::Instant::now());
            answered.recv_timeout(left).is_err()
        };
        let silent = answered.iter().enumerate();
        silent
            .filter(|(_, answered)| is_silent(answered))
            .map(|(number, _)| number)
            .collect()
    }

    /// Tells the worker to end.
    pub fn stop(&self) {
        // When it is gone already, all the better.
        let _ = self.requests.send(Request::Stop);
        self.waker.wake();
    }

    fn ask<T>(&self, request: impl FnOnce(SyncSender<T>) -> Request) -> Result<T, Gone> {
        let (answer, answered) = mpsc::sync_channel(1);
        self.requests.send(request(answer)).map_err(|_| Gone)?;
        self.waker.wake();
        answered.recv_timeout(PATIENCE).map_err(|_| Gone)
    }
}

impl CarrierCounters {
    /// Counts what became of a packet just received; whether it is for the translator here.
    fn is_ours(&mut self, sorted: Sorted) -> bool {
        match sorted {
            Sorted::Ours => {}
            Sorted::HandedOver => self.handed_over += 1,
            Sorted::Lost => self.handover_lost += 1,
        }
        sorted == Sorted::Ours
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker")
            .field("device", &self.path.tun.name())
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}

/// Runs `worker` on a thread of its own. `ended` is called on that thread when the worker has ended,
/// for whatever reason.
///
/// # Errors
/// When the kernel gives no thread.
pub fn spawn(
    worker: Worker,
    ended: impl FnOnce() + Send + 'static,
) -> io::Result<thread::JoinHandle<io::Result<()>>> {
    struct Ended<F: FnOnce()>(Option<F>);

    impl<F: FnOnce()> Drop for Ended<F> {
        fn drop(&mut self) {
            if let Some(ended) = self.0.take() {
                ended();
            }
        }
    }

    thread::Builder::new()
        .name(format!("worker-{}", worker.number))
        .spawn(move || {
            // Called after a panic, too.
            let _ended = Ended(Some(ended));
            // What it takes to load programs, which is going on elsewhere.
            let _ = flexcp_io::renounce_loading();
            worker.run()
        })
}

/// Keeps the calling thread on the `number`-th CPU of those that it may use, counted round. Gives the CPU.
fn pin(number: usize) -> io::Result<usize> {
    let allowed = sched_getaffinity(None)?;
    let cpus: Vec<_> = (0..CpuSet::MAX_CPU)
        .filter(|cpu| allowed.is_set(*cpu))
        .collect();
    let cpu = cpus.get(number % cpus.len().max(1)).copied();
    let cpu = cpu.ok_or_else(|| io::Error::other("there is no CPU to run on"))?;
    let mut only = CpuSet::new();
    only.set(cpu);
    sched_setaffinity(None, &only)?;
    Ok(cpu)
}

/// The worker has ended, or does not answer.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error, Debug)]
#[error("the worker does not answer")]
pub struct Gone;

fn count(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}

pub(crate) fn now() -> Instant {
    Instant(flexcp_io::monotonic_micros())
}

/// Packets between two looks at timers and requests.
const BATCH: usize = 64;

/// Keys that are made ahead when the queue is empty: a packet that comes meanwhile waits for them.
const KEYS: usize = 4;

/// How long whoever asks waits for an answer.
const PATIENCE: Duration = Duration::from_secs(10);

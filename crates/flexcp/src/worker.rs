//! A worker: one thread that owns one queue of the device and one translator, and takes every packet
//! from the one through the other and back. It takes no lock and allocates nothing for a packet.
//!
//! Others reach it through a [`WorkerHandle`]: what they ask is answered between two batches.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender, SyncSender};
use std::thread;
use std::time::Duration;

use flexcp_io::{PacketBuffer, Tun, Waker};
use flexcp_translator::{Config, ConnectionView, Counters, Drops, Instant, Translator, Verdict};

/// A worker that has not begun yet.
pub struct Worker {
    tun: Tun,
    translator: Translator,
    buffer: PacketBuffer,
    carrier: CarrierCounters,
    requests: Receiver<Request>,
    waker: Arc<Waker>,
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
    /// What went wrong at the device.
    pub carrier: CarrierCounters,
}

/// Packets that were lost between the translator and the device.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct CarrierCounters {
    /// Packets that came with a virtio-net header nobody agreed on.
    pub malformed_rx: u64,
    /// Packets that the device did not take.
    pub send_failed: u64,
}

/// What can be asked of a worker.
#[derive(Debug)]
pub(crate) enum Request {
    /// What has been done so far.
    Stats(SyncSender<Snapshot>),
    /// The connections that there are.
    Connections(SyncSender<Vec<ConnectionView>>),
    /// Nothing more: end.
    Stop,
}

impl Worker {
    /// A worker for the queue `tun`, and the handle to it. `seed` must be unpredictable.
    ///
    /// # Errors
    /// When the process has no file descriptor left.
    pub fn new(tun: Tun, config: Config, seed: [u8; 32]) -> io::Result<(Self, WorkerHandle)> {
        let waker = Arc::new(Waker::new()?);
        let (handle, requests) = WorkerHandle::new(Arc::clone(&waker));
        let worker = Self {
            tun,
            translator: Translator::new(config, seed),
            buffer: PacketBuffer::new(),
            carrier: CarrierCounters::default(),
            requests,
            waker,
        };
        Ok((worker, handle))
    }

    /// Works until it is told to stop.
    ///
    /// # Errors
    /// When the device can't be read any more, as when it was deleted.
    pub fn run(mut self) -> io::Result<()> {
        loop {
            let timeout = self.translator.poll_timeout().map(|due| due.since(now()));
            let ready = flexcp_io::wait(&self.tun, &self.waker, timeout)?;
            if ready.packets {
                self.batch()?;
            }
            if self
                .translator
                .poll_timeout()
                .is_some_and(|due| due <= now())
            {
                self.translator.handle_timeout(now());
                self.transmit();
            }
            if ready.woken && self.answer().is_break() {
                return Ok(());
            }
        }
    }

    /// Takes a bounded number of packets, so that timers and requests have their turn.
    fn batch(&mut self) -> io::Result<()> {
        for _ in 0..BATCH {
            let Some(mut frame) = self.tun.receive(&mut self.buffer)? else {
                break;
            };
            if self.translator.handle_packet(now(), &mut frame) == Verdict::Forward
                && self.tun.send(&mut frame).is_err()
            {
                self.carrier.send_failed += 1;
            }
            self.transmit();
        }
        Ok(())
    }

    /// Sends what the translator has made; its payload may stand in the packet just handled.
    fn transmit(&mut self) {
        while let Some(transmit) = self.translator.poll_transmit() {
            if self
                .tun
                .send_transmit(&transmit, self.buffer.as_bytes())
                .is_err()
            {
                self.carrier.send_failed += 1;
            }
        }
    }

    fn answer(&self) -> std::ops::ControlFlow<()> {
        for request in self.requests.try_iter() {
            // Whoever asked may have given up since.
            match request {
                Request::Stats(answer) => drop(answer.try_send(self.snapshot())),
                Request::Connections(answer) => {
                    drop(answer.try_send(self.translator.connections(now()).collect()));
                }
                Request::Stop => return std::ops::ControlFlow::Break(()),
            }
        }
        std::ops::ControlFlow::Continue(())
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot {
            counters: *self.translator.counters(),
            drops: *self.translator.drops(),
            carrier: CarrierCounters {
                malformed_rx: self.tun.malformed(),
                ..self.carrier
            },
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

    /// The worker's connections.
    ///
    /// # Errors
    /// When it has ended or does not answer.
    pub fn connections(&self) -> Result<Vec<ConnectionView>, Gone> {
        self.ask(Request::Connections)
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
    /// Name and value of each counter.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        [
            ("malformed_rx", self.malformed_rx),
            ("send_failed", self.send_failed),
        ]
        .into_iter()
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker")
            .field("device", &self.tun.name())
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
        .name("worker-0".into())
        .spawn(move || {
            // Called after a panic, too.
            let _ended = Ended(Some(ended));
            worker.run()
        })
}

/// The worker has ended, or does not answer.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error, Debug)]
#[error("the worker does not answer")]
pub struct Gone;

fn now() -> Instant {
    Instant(flexcp_io::monotonic_micros())
}

/// Packets between two looks at timers and requests.
const BATCH: usize = 64;

/// How long whoever asks waits for an answer.
const PATIENCE: Duration = Duration::from_secs(10);

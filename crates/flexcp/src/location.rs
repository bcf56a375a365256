//! Which aggregation servers boxes use, by measurement (Proxy Location Selection), and what answers the probes of boxes.
//!
//! One thread does both: for each box whose servers are chosen by measurement it sends what the [`Locator`](flexcp_location::Locator)
//! wants sent, tells it what comes back, and tells the workers the order of the servers; for `[responder]` it answers. It is there
//! as soon as the configuration asks for either, and is told by the watcher what is in force.

pub mod keyfile;

mod answering;
mod choosing;
mod handshake;
mod passive;

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, SyncSender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use flexcp_io::{Waker, monotonic_micros, wait_for_openings};
use flexcp_location::{Counters, ResponderCounters, Table, Time};
use flexcp_translator::ServiceId;
use tracing::{debug, warn};

use self::answering::Answering;
use self::choosing::{Choosing, Setup};
use crate::config::{Config, location};
use crate::generation::Generation;
use crate::worker::{Ear, Listener, Marks, WorkerHandle};

/// What the thread is told and asked.
#[derive(Debug)]
enum Request {
    /// What is in force, and where the workers note their marks.
    Follow(Arc<Generation>, Vec<Arc<Marks>>),
    /// How it stands.
    Tell(SyncSender<Facts>),
    /// Somebody wants to hear of each choice from here on.
    Listen(Listener<Chosen>),
    /// To end.
    End,
}

/// How the choices and the responder stand.
#[derive(Clone, Default, Debug)]
pub(crate) struct Facts {
    pub(crate) boxes: Vec<BoxFacts>,
    pub(crate) responder: Option<ResponderFacts>,
}

/// How the choice of one box stands.
#[derive(Clone, Debug)]
pub(crate) struct BoxFacts {
    pub(crate) service: ServiceId,
    pub(crate) table: Table,
    /// Servers by their places in the configuration, the one in use first.
    pub(crate) order: Vec<usize>,
    /// Why that one is in use.
    pub(crate) reason: Option<String>,
    /// Bytes of probes in the last hour, and what they may be.
    pub(crate) bytes: [u64; 2],
    pub(crate) counters: Counters,
    /// When it stood so, on the clock of the table.
    pub(crate) at: Time,
}

/// Another aggregation server is used for a box's new connections.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Chosen {
    /// When, on the clock of events.
    pub(crate) at: Time,
    pub(crate) service: ServiceId,
    /// The name and the address of the one before; `None` at the first choice.
    pub(crate) from: Option<(String, SocketAddr)>,
    pub(crate) to: (String, SocketAddr),
    /// Why, in a sentence that begins with the name.
    pub(crate) reason: String,
}

/// How the responder stands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResponderFacts {
    pub(crate) sessions: usize,
    pub(crate) counters: ResponderCounters,
}

/// Asks the thread.
#[derive(Clone, Debug)]
pub(crate) struct LocationHandle {
    requests: Sender<Request>,
    waker: Arc<Waker>,
    /// There is a thread: nobody else would take what is asked.
    runs: Arc<AtomicBool>,
}

/// The thread, and what it takes to start it.
#[derive(Debug)]
pub(crate) struct Locating {
    handle: LocationHandle,
    /// `None`: it runs.
    waiting: Option<(Receiver<Request>, Vec<WorkerHandle>)>,
    thread: Option<JoinHandle<()>>,
}

impl Locating {
    /// For these workers. There is no thread before [`follow`](Self::follow) finds something to do.
    pub(crate) fn new(workers: &[WorkerHandle]) -> io::Result<Self> {
        let (requests, asked) = mpsc::channel();
        let waker = Arc::new(Waker::new()?);
        Ok(Self {
            handle: LocationHandle {
                requests,
                waker,
                runs: Arc::default(),
            },
            waiting: Some((asked, workers.to_vec())),
            thread: None,
        })
    }

    /// For who wants to know how it stands.
    pub(crate) fn handle(&self) -> LocationHandle {
        self.handle.clone()
    }

    /// This is in force from here on, and the workers note their marks there.
    pub(crate) fn follow(&mut self, generation: &Arc<Generation>, marks: &[Arc<Marks>]) {
        if is_needed(&generation.config)
            && let Some((asked, workers)) = self.waiting.take()
        {
            let waker = Arc::clone(&self.handle.waker);
            let run = move || Location::new(workers, waker).run(&asked);
            match thread::Builder::new().name("location".into()).spawn(run) {
                Ok(thread) => {
                    self.thread = Some(thread);
                    self.handle.runs.store(true, Ordering::Relaxed);
                }
                Err(error) => {
                    warn!("servers are not probed, nor probes answered: no thread: {error}")
                }
            }
        }
        if self.thread.is_some() {
            let follow = Request::Follow(Arc::clone(generation), marks.to_vec());
            self.handle.tell(follow);
        }
    }
}

impl Drop for Locating {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.handle.runs.store(false, Ordering::Relaxed);
            self.handle.tell(Request::End);
            // What it would have said of a panic stands in the log.
            let _ = thread.join();
        }
    }
}

impl LocationHandle {
    /// One that answers nobody.
    #[cfg(test)]
    pub(crate) fn idle() -> Self {
        let (requests, _) = mpsc::channel();
        let waker = Arc::new(Waker::new().expect("a descriptor"));
        Self {
            requests,
            waker,
            runs: Arc::default(),
        }
    }

    /// One whose thread is played: whoever listens is handed over.
    #[cfg(test)]
    pub(crate) fn played() -> (Self, Receiver<Listener<Chosen>>) {
        let (requests, asked) = mpsc::channel();
        let (tell, told) = mpsc::channel();
        thread::spawn(move || {
            for request in asked {
                if let Request::Listen(listener) = request {
                    tell.send(listener).expect("somebody to take it");
                }
            }
        });
        let handle = Self {
            requests,
            runs: Arc::new(AtomicBool::new(true)),
            ..Self::idle()
        };
        (handle, told)
    }

    fn tell(&self, request: Request) {
        // When it has ended there is nobody to tell.
        let _ = self.requests.send(request);
        self.waker.wake();
    }

    /// Each choice from here on; so many wait for who listens. `None`: there is no thread that chooses.
    pub(crate) fn listen(&self, room: usize) -> Option<Ear<Chosen>> {
        if !self.runs.load(Ordering::Relaxed) {
            return None;
        }
        let (listener, ear) = Ear::new(room);
        self.tell(Request::Listen(listener));
        Some(ear)
    }

    /// How all stand; nothing when the configuration in force has neither a measured choice nor a responder.
    ///
    /// # Errors
    /// When the thread has ended or does not answer.
    pub(crate) fn facts(&self, config: &Config) -> Result<Facts, Unlocated> {
        if !is_needed(config) {
            return Ok(Facts::default());
        }
        let (answer, answered) = mpsc::sync_channel(1);
        self.tell(Request::Tell(answer));
        answered.recv_timeout(PATIENCE).map_err(|_| Unlocated)
    }
}

/// Whether there is anything for the thread to do.
fn is_needed(config: &Config) -> bool {
    config.responder.is_some() || location::is_measured(config)
}

/// The thread is gone, or does not answer.
#[derive(thiserror::Error, Debug)]
#[error("the thread that chooses servers does not answer; see what the log says of it")]
pub(crate) struct Unlocated;

/// What the thread has.
#[derive(Debug)]
struct Location {
    workers: Vec<WorkerHandle>,
    waker: Arc<Waker>,
    boxes: Vec<Choosing>,
    responder: Option<Answering>,
    listeners: Vec<Listener<Chosen>>,
    /// When the workers and the uplinks are looked at next.
    look: Time,
    buffer: [u8; BUFFER],
}

impl Location {
    fn new(workers: Vec<WorkerHandle>, waker: Arc<Waker>) -> Self {
        Self {
            workers,
            waker,
            boxes: Vec::new(),
            responder: None,
            listeners: Vec::new(),
            look: now(),
            buffer: [0; BUFFER],
        }
    }

    /// Until it is told to end.
    fn run(mut self, asked: &Receiver<Request>) {
        loop {
            for request in asked.try_iter() {
                match request {
                    Request::Follow(generation, marks) => self.follow(&generation, &marks),
                    Request::Tell(answer) => drop(answer.try_send(self.facts())),
                    Request::Listen(listener) => self.listeners.push(listener),
                    Request::End => return,
                }
            }
            if now() >= self.look {
                self.look = now() + LOOK;
                for choosing in &mut self.boxes {
                    choosing.look(&self.workers, now());
                }
                if let Some(responder) = &mut self.responder {
                    responder.look();
                }
            }
            for choosing in &mut self.boxes {
                let chosen = choosing.work(&self.workers, &mut self.buffer);
                tell(&mut self.listeners, &chosen);
            }
            if let Some(responder) = &mut self.responder {
                responder.work(&mut self.buffer);
            }
            if let Err(error) = self.sleep() {
                // Not in a loop that takes all of a CPU.
                warn!("location: {error}");
                thread::sleep(LOOK);
            }
        }
    }

    fn sleep(&self) -> io::Result<()> {
        let mut due = self.look;
        let (mut carriers, mut opening): (Vec<BorrowedFd<'_>>, Vec<BorrowedFd<'_>>) =
            (Vec::new(), Vec::new());
        for choosing in &self.boxes {
            carriers.extend(choosing.sockets());
            opening.extend(choosing.handshakes.fds());
            due = due.min(choosing.due(now()).unwrap_or(due));
        }
        if let Some(responder) = &self.responder {
            carriers.extend(responder.sockets());
            opening.extend(responder.handshakes.fds());
        }
        let timeout = due.since(now());
        wait_for_openings(&carriers, &opening, &self.waker, Some(timeout)).map(drop)
    }

    fn follow(&mut self, generation: &Arc<Generation>, marks: &[Arc<Marks>]) {
        let config = &generation.config;
        let mut before = std::mem::take(&mut self.boxes);
        let services = config.services.iter().zip(&generation.ids).enumerate();
        for (at, (service, &id)) in services {
            let Some(setup) = Setup::of(service) else {
                continue;
            };
            let known = before.iter().position(|known| known.setup == setup);
            let known = known.map(|at| before.swap_remove(at));
            let Some(mut choosing) = known.or_else(|| Choosing::new(setup)) else {
                continue;
            };
            let uplinks = generation.uplinks().get(at);
            choosing.follow(id, uplinks.map_or(&[], Vec::as_slice), marks, now());
            choosing.tell_workers(&self.workers);
            self.boxes.push(choosing);
        }
        // Whose order is fixed from here on; ids of services that are gone mean nothing to the workers, or another service.
        let names = config.services.iter().map(|service| &service.name.value);
        let known: Vec<_> = names.zip(&generation.ids).collect();
        for gone in before {
            let is_there = |(name, _): &&(&String, &ServiceId)| **name == gone.setup.service;
            let is_chosen = self
                .boxes
                .iter()
                .any(|it| it.setup.service == gone.setup.service);
            if let Some((_, id)) = known.iter().find(is_there).filter(|_| !is_chosen) {
                self.workers
                    .iter()
                    .for_each(|worker| worker.prefer_servers(**id, &[]));
            }
        }
        self.responder = Answering::followed(self.responder.take(), config.responder.as_ref());
        debug!("location: follows configuration {}", generation.number);
    }

    fn facts(&mut self) -> Facts {
        Facts {
            boxes: self.boxes.iter_mut().map(Choosing::facts).collect(),
            responder: self.responder.as_ref().map(Answering::facts),
        }
    }
}

/// Tells those who listen, and forgets those who do so no more.
fn tell(listeners: &mut Vec<Listener<Chosen>>, all: &[Chosen]) {
    for chosen in all {
        listeners.retain(|listener| !listener.is_deaf());
        for listener in &mut *listeners {
            listener.tell(chosen.clone());
        }
    }
}

/// The clock of locators and responders.
fn now() -> Time {
    Time(monotonic_micros())
}

/// Between two looks at workers, uplinks and sockets that could not be bound.
const LOOK: Duration = Duration::from_secs(1);
/// Room for the longest datagram, and for one more byte: longer ones are none of ours.
const BUFFER: usize = flexcp_location::probe::LONGEST + 1;
/// How long whoever asks waits.
const PATIENCE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker;

    const BOX: &str = "[[service]]\nname = 'home'\nmode = 'box'\ninterfaces = ['lan0']\n\
        destinations = ['0.0.0.0/0']\nuplinks = ['dsl0', 'lte0']\nservers = [\
        { address = '203.0.113.5:7124', mode = 'convert' }, { address = '203.0.113.6:7124', mode = 'convert' }]\n";

    fn generation(choose: &str) -> Arc<Generation> {
        let text = format!("{BOX}choose = '{choose}'\n");
        let config = crate::config::parse("f", &text).0.expect("a configuration");
        Arc::new(Generation::first(config, vec![vec![]]))
    }

    /// What a worker has been told since it was looked at last.
    fn told(requests: &Receiver<worker::Request>) -> Vec<Vec<SocketAddr>> {
        let orders = requests.try_iter().map(|request| match request {
            worker::Request::PreferServers(ServiceId(0), order) => order,
            other => panic!("{other:?}"),
        });
        orders.collect()
    }

    #[test]
    fn workers_are_told_the_order_and_when_it_is_the_files_again() {
        let waker = Arc::new(Waker::new().unwrap());
        let (handle, requests) = WorkerHandle::new(Arc::clone(&waker));
        let mut location = Location::new(vec![handle], waker);
        let addrs = ["203.0.113.5:7124", "203.0.113.6:7124"];
        let addrs = addrs.map(|addr| addr.parse::<SocketAddr>().unwrap());
        location.follow(&generation("throughput"), &[]);
        assert_eq!(told(&requests), [addrs]);
        assert_eq!(location.facts().boxes[0].order, [0, 1]);
        // What was measured holds over a reload that changes nothing of it, and another policy begins anew.
        let measured = |location: &Location| location.boxes[0].setup.clone();
        let before = measured(&location);
        location.follow(&generation("throughput"), &[]);
        assert!(measured(&location) == before);
        location.follow(&generation("latency"), &[]);
        assert!(measured(&location) != before);
        assert_eq!(told(&requests), [addrs, addrs]);
        location.follow(&generation("fixed"), &[]);
        assert_eq!(told(&requests), [vec![]]);
        assert!(location.facts().boxes.is_empty());
    }

    #[test]
    fn thread_is_there_when_there_is_something_to_measure_and_ends_with_its_handle() {
        let mut locating = Locating::new(&[]).unwrap();
        let fixed = generation("fixed");
        locating.follow(&fixed, &[]);
        assert!(locating.thread.is_none());
        let handle = locating.handle();
        assert!(handle.facts(&fixed.config).unwrap().boxes.is_empty());
        assert!(handle.listen(4).is_none(), "nothing would ever be heard");
        let measured = generation("throughput");
        locating.follow(&measured, &[]);
        let facts = handle.facts(&measured.config).unwrap();
        assert_eq!(facts.boxes.len(), 1);
        assert!(!facts.boxes[0].table.is_complete);
        let mut ear = handle.listen(4).expect("a thread");
        assert!(ear.hear().is_none() && !ear.is_over());
        drop(locating);
        assert!(handle.facts(&measured.config).is_err());
        assert!(ear.is_over() && handle.listen(4).is_none());
    }

    #[test]
    fn who_listens_hears_each_choice_and_who_has_gone_is_forgotten() {
        let chosen = Chosen {
            at: Time(7),
            service: ServiceId(0),
            from: None,
            to: ("fra".into(), ([203, 0, 113, 5], 7124).into()),
            reason: "fra: 47.3 Mbit/s over dsl0".into(),
        };
        let (listener, mut ear) = Ear::new(2);
        let (gone, _) = Ear::new(2);
        let mut listeners = vec![listener, gone];
        tell(&mut listeners, &vec![chosen.clone(); 3]);
        assert_eq!(listeners.len(), 1);
        assert_eq!(ear.hear(), Some(chosen));
        assert_eq!(ear.take_lost(), 1, "there is room for two");
    }
}

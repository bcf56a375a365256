//! The load: connections that exchange one object after the other, on as few threads as there are CPUs.
//!
//! It runs on threads of this process, in the namespace of whoever calls it. What it receives it reads,
//! as an application would, and counts; every answer must have the length that was asked for.

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use flexcp_lab::cpu::{Sample, Use};
use flexcp_lab::transfer::Proto;
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use socket2::{Domain, SockRef, Socket, Type};

use crate::http::Head;

/// What goes over a connection again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exchange {
    /// An object of that many bytes from the web server.
    Get(u64),
    /// An object of that many bytes to the sink.
    Put(u64),
}

/// A load.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    /// The server, or the proxy in its place.
    pub(crate) to: SocketAddr,
    /// Own addresses, taken by turns; the kernel's choice when there are none.
    pub(crate) from: Vec<IpAddr>,
    /// Protocol of the sockets.
    pub(crate) proto: Proto,
    /// Connections at once.
    pub(crate) connections: usize,
    /// What goes over them.
    pub(crate) exchange: Exchange,
    /// A connection for every object; its time starts with the SYN.
    pub(crate) reconnect: bool,
    /// Not counted: slow start, and joining.
    pub(crate) warm: Duration,
    /// Counted.
    pub(crate) time: Duration,
    /// Ends when that many objects are there, before the time is over.
    pub(crate) enough: Option<usize>,
}

/// What came of it, within the time that is counted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    /// Bytes of objects.
    pub(crate) bytes: u64,
    /// How long each object took, in microseconds, in no order.
    pub(crate) micros: Vec<f64>,
    /// Connections that failed, warm-up included.
    pub(crate) failures: usize,
    /// The first of the failures.
    pub(crate) failure: Option<String>,
    /// CPU time meanwhile.
    pub(crate) cpu: Use,
    /// CPU seconds that are charged to the process asked for.
    pub(crate) cpu_of_process: f64,
}

impl Load {
    /// Runs it, in the namespace of the calling thread. `process` is whose CPU time is to be told.
    ///
    /// # Errors
    /// When nothing came of it at all, or the machine has no more sockets.
    pub(crate) fn run(&self, process: Option<u32>) -> Result<Outcome> {
        let cpus = thread::available_parallelism().map_or(1, usize::from);
        let threads = cpus.min(self.connections).max(1);
        let phase = AtomicU8::new(WARM);
        let mut outcome = thread::scope(|scope| {
            let workers: Vec<_> = (0..threads)
                .map(|number| {
                    let phase = &phase;
                    let share = (self.connections + threads - 1 - number) / threads;
                    let enough = self.enough.map(|enough| enough.div_ceil(threads));
                    scope.spawn(move || {
                        let worker = Worker::new(self, phase, share, enough)?;
                        worker.run()
                    })
                })
                .collect();
            thread::sleep(self.warm);
            let before = Sample::take();
            phase.store(COUNT, Ordering::Relaxed);
            let end = Instant::now() + self.time;
            while Instant::now() < end && !workers.iter().all(thread::ScopedJoinHandle::is_finished)
            {
                let left = end.saturating_duration_since(Instant::now());
                thread::sleep(left.min(Duration::from_millis(20)));
            }
            let after = Sample::take();
            phase.store(STOP, Ordering::Relaxed);
            let mut outcome = Outcome::default();
            for worker in workers {
                let joined = worker.join().map_err(|_| anyhow!("a load panicked"))?;
                outcome.add(joined?);
            }
            let (before, after) = (before?, after?);
            outcome.cpu = after.since(&before);
            outcome.cpu_of_process =
                process.map_or(0.0, |process| after.of_tree_since(&before, process));
            anyhow::Ok(outcome)
        })?;
        if outcome.micros.is_empty() && outcome.bytes == 0 {
            let why = outcome.failure.take();
            bail!("nothing arrived: {}", why.as_deref().unwrap_or("no error"));
        }
        Ok(outcome)
    }

    fn connect(&self, number: usize) -> io::Result<TcpStream> {
        let protocol = match self.proto {
            Proto::Tcp => socket2::Protocol::TCP,
            Proto::Mptcp => socket2::Protocol::MPTCP,
        };
        let socket = Socket::new(Domain::for_address(self.to), Type::STREAM, Some(protocol))?;
        if !self.from.is_empty() {
            let own = self.from[number % self.from.len()];
            socket.set_reuse_address(true)?;
            socket.bind(&SocketAddr::new(own, 0).into())?;
        }
        socket.set_nonblocking(true)?;
        socket.set_tcp_nodelay(true)?;
        match socket.connect(&self.to.into()) {
            Err(error) if error.raw_os_error() != Some(Errno::INPROGRESS.raw_os_error()) => {
                Err(error)
            }
            _ => Ok(socket.into()),
        }
    }

    fn request(&self) -> Vec<u8> {
        let close = if self.reconnect {
            "Connection: close\r\n"
        } else {
            ""
        };
        let (line, body) = match self.exchange {
            Exchange::Get(bytes) => (format!("GET /{bytes} HTTP/1.1\r\n"), 0),
            Exchange::Put(bytes) => {
                let line = format!("PUT /count HTTP/1.1\r\nContent-Length: {bytes}\r\n");
                (line, usize::try_from(bytes).unwrap_or(usize::MAX))
            }
        };
        let mut request = format!("{line}Host: bench\r\n{close}\r\n").into_bytes();
        request.resize(request.len() + body, b'u');
        request
    }
}

impl Outcome {
    fn add(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.micros.extend(other.micros);
        self.failures += other.failures;
        self.failure = self.failure.take().or(other.failure);
    }
}

/// One thread and its connections.
struct Worker<'a> {
    load: &'a Load,
    phase: &'a AtomicU8,
    enough: Option<usize>,
    epoll: OwnedFd,
    slots: Vec<Slot>,
    request: Vec<u8>,
    buffer: Vec<u8>,
    outcome: Outcome,
}

struct Slot {
    stream: Option<TcpStream>,
    /// What it waits for.
    interest: epoll::EventFlags,
    state: State,
    began: Instant,
}

enum State {
    Connecting,
    /// That much of the request is on its way.
    Sending(usize),
    /// What there is of the head.
    Head(Vec<u8>),
    /// Bytes of the body still to come, and the end of a body worth looking at.
    Body(u64, Vec<u8>),
    /// All is there; the server closes now.
    Closing,
}

/// What an event led to.
enum Step {
    /// Wait for the next one.
    Wait,
    Done,
    Closed,
}

impl<'a> Worker<'a> {
    fn new(
        load: &'a Load,
        phase: &'a AtomicU8,
        connections: usize,
        enough: Option<usize>,
    ) -> Result<Self> {
        let mut worker = Self {
            load,
            phase,
            enough,
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            slots: vec![],
            request: load.request(),
            buffer: vec![0; BUFFER],
            outcome: Outcome::default(),
        };
        for number in 0..connections {
            worker.slots.push(Slot {
                stream: None,
                interest: epoll::EventFlags::OUT,
                state: State::Connecting,
                began: Instant::now(),
            });
            worker.open(number)?;
        }
        Ok(worker)
    }

    fn run(mut self) -> Result<Outcome> {
        let mut events = Vec::with_capacity(256);
        let limit = Timespec {
            tv_sec: 0,
            tv_nsec: 20_000_000,
        };
        while self.phase.load(Ordering::Relaxed) != STOP && !self.has_enough() {
            events.clear();
            match epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&limit)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error).context("epoll"),
            }
            for event in &events {
                let number = usize::try_from(event.data.u64()).unwrap_or(usize::MAX);
                self.react(number)?;
            }
        }
        Ok(self.outcome)
    }

    fn has_enough(&self) -> bool {
        self.enough
            .is_some_and(|enough| self.outcome.micros.len() >= enough)
    }

    /// Opens the connection of a slot, anew if it had one.
    fn open(&mut self, number: usize) -> Result<()> {
        let slot = &mut self.slots[number];
        // The old one first: closing it takes it out of the epoll set.
        slot.stream = None;
        slot.began = Instant::now();
        slot.state = State::Connecting;
        let stream = self.load.connect(number).context("connecting")?;
        let data = epoll::EventData::new_u64(number as u64);
        slot.interest = epoll::EventFlags::OUT;
        epoll::add(&self.epoll, &stream, data, slot.interest)?;
        slot.stream = Some(stream);
        Ok(())
    }

    fn react(&mut self, number: usize) -> Result<()> {
        match self.step(number) {
            Ok(Step::Wait) => Ok(()),
            Ok(Step::Done) if self.load.reconnect => {
                self.note(number);
                self.slots[number].state = State::Closing;
                Ok(())
            }
            Ok(Step::Done) => {
                self.note(number);
                self.slots[number].began = Instant::now();
                self.slots[number].state = State::Sending(0);
                self.react(number)
            }
            Ok(Step::Closed) => self.open(number),
            Err(error) => {
                self.outcome.failures += 1;
                let told = || format!("{error:#}");
                self.outcome.failure.get_or_insert_with(told);
                ensure!(
                    self.outcome.failures < MANY_FAILURES,
                    "{MANY_FAILURES} failures: {error:#}"
                );
                self.open(number)
            }
        }
    }

    fn note(&mut self, number: usize) {
        if self.counts() {
            let took = self.slots[number].began.elapsed();
            self.outcome.micros.push(took.as_secs_f64() * 1e6);
        }
    }

    fn counts(&self) -> bool {
        self.phase.load(Ordering::Relaxed) == COUNT
    }

    fn step(&mut self, number: usize) -> Result<Step> {
        let slot = &mut self.slots[number];
        let Some(stream) = &mut slot.stream else {
            return Ok(Step::Wait);
        };
        match &mut slot.state {
            State::Connecting => {
                if let Some(error) = SockRef::from(&*stream).take_error()? {
                    return Err(error).context("connecting");
                }
                slot.state = State::Sending(0);
                self.step(number)
            }
            State::Sending(sent) => {
                let Some(written) = again(stream.write(&self.request[*sent..]))? else {
                    return self.interest(number, epoll::EventFlags::OUT);
                };
                *sent += written;
                let done = *sent == self.request.len();
                if done {
                    slot.state = State::Head(vec![]);
                }
                if matches!(self.load.exchange, Exchange::Put(_)) && self.counts() {
                    self.outcome.bytes += written as u64;
                }
                let direction = if done {
                    epoll::EventFlags::IN
                } else {
                    epoll::EventFlags::OUT
                };
                self.interest(number, direction)
            }
            State::Head(_) | State::Body(..) => {
                let Some(len) = again(stream.read(&mut self.buffer))? else {
                    return Ok(Step::Wait);
                };
                ensure!(len > 0, "closed before the answer was complete");
                self.receive(number, len)
            }
            State::Closing => match again(stream.read(&mut self.buffer))? {
                None => Ok(Step::Wait),
                Some(0) => Ok(Step::Closed),
                Some(_) => bail!("more bytes than were asked for"),
            },
        }
    }

    fn interest(&mut self, number: usize, flags: epoll::EventFlags) -> Result<Step> {
        let slot = &mut self.slots[number];
        if let Some(stream) = slot.stream.as_ref().filter(|_| slot.interest != flags) {
            let data = epoll::EventData::new_u64(number as u64);
            epoll::modify(&self.epoll, stream, data, flags)?;
            slot.interest = flags;
        }
        Ok(Step::Wait)
    }

    /// Takes the first `len` bytes of the buffer.
    fn receive(&mut self, number: usize, len: usize) -> Result<Step> {
        let counts = self.counts();
        let slot = &mut self.slots[number];
        let arrived = if let State::Head(head) = &mut slot.state {
            let earlier = head.len();
            // A head is short; the body behind it is only counted.
            head.extend_from_slice(&self.buffer[..len.min(LONGEST_HEAD)]);
            let Some(read) = Head::read(head)? else {
                return Ok(Step::Wait);
            };
            read.expect_ok()?;
            let (body, arrived) = (read.body, earlier + len - read.len);
            if let Exchange::Get(bytes) = self.load.exchange {
                ensure!(body == bytes, "{body} bytes instead of {bytes}");
            }
            slot.state = State::Body(body, vec![]);
            arrived
        } else {
            len
        };
        let State::Body(left, tail) = &mut slot.state else {
            bail!("a body without a head");
        };
        *left = left
            .checked_sub(arrived as u64)
            .context("more bytes than were asked for")?;
        match self.load.exchange {
            Exchange::Get(_) if counts => self.outcome.bytes += arrived as u64,
            Exchange::Get(_) => {}
            Exchange::Put(bytes) => {
                tail.extend_from_slice(&self.buffer[len - arrived..len]);
                if *left == 0 {
                    let said = std::str::from_utf8(tail)?;
                    ensure!(
                        said == bytes.to_string(),
                        "the sink got {said} of {bytes} bytes"
                    );
                }
            }
        }
        Ok(if *left == 0 { Step::Done } else { Step::Wait })
    }
}

/// `None` when it would block.
fn again(result: io::Result<usize>) -> Result<Option<usize>> {
    match result {
        Ok(len) => Ok(Some(len)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Before, within and after the time that is counted.
const WARM: u8 = 0;
const COUNT: u8 = 1;
const STOP: u8 = 2;

/// Bytes taken from a connection at a time.
const BUFFER: usize = 256 << 10;

/// Bytes in which the head of an answer must end.
const LONGEST_HEAD: usize = 1024;

/// Something is wrong altogether.
const MANY_FAILURES: usize = 1000;

//! The server side of a transfer: does what each client's request says.

use std::io::{Read as _, Write as _};
use std::net::{Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{Domain, SockRef, Socket, Type};

use super::Proto;
use super::flow::{Receiving, Sending, Step, during, expect_end};
use super::job::{Job, Mode, Verdict};
use super::report::{Failure, ServerReport};
use crate::namespace::Namespace;

/// How a server listens.
#[derive(Clone, Copy, Debug)]
pub struct ServeOptions {
    /// Port, on all addresses of both IP versions.
    pub port: u16,
    /// Protocol of the listening socket.
    pub proto: Proto,
    /// Bytes that the server sends before the client has said anything.
    pub banner: u64,
    /// A connection without progress for that long is given up.
    pub patience: Duration,
}

impl ServeOptions {
    /// Plain TCP, no banner.
    pub fn tcp(port: u16) -> Self {
        Self {
            port,
            proto: Proto::Tcp,
            banner: 0,
            patience: Duration::from_secs(30),
        }
    }

    /// MPTCP, no banner.
    pub fn mptcp(port: u16) -> Self {
        Self {
            proto: Proto::Mptcp,
            ..Self::tcp(port)
        }
    }

    /// Makes the server speak first.
    pub fn banner(mut self, bytes: u64) -> Self {
        self.banner = bytes;
        self
    }
}

/// A server on threads of this process, in a lab's namespace or our own.
///
/// Dropping it closes the listener and all connections.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    options: ServeOptions,
    stop: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    reports: Vec<ServerReport>,
    /// Number of connections accepted.
    accepted: usize,
    /// Connections being served, by their number.
    open: Vec<(usize, TcpStream)>,
}

impl Server {
    /// Starts serving inside a namespace.
    pub fn start(namespace: &Namespace, options: ServeOptions) -> Result<Self> {
        Self::serve(namespace.run(|| listen(&options))?, options)
    }

    /// Starts serving in the namespace of this process.
    pub fn start_here(options: ServeOptions) -> Result<Self> {
        Self::serve(listen(&options)?, options)
    }

    fn serve(listener: TcpListener, options: ServeOptions) -> Result<Self> {
        let shared = Arc::new(Shared {
            options,
            stop: AtomicBool::new(false),
            state: Mutex::default(),
        });
        let acceptor = {
            let shared = Arc::clone(&shared);
            thread::Builder::new()
                .name("acceptor".into())
                .spawn(move || shared.accept(&listener))?
        };
        Ok(Self {
            shared,
            acceptor: Some(acceptor),
        })
    }

    /// Reports of all connections that have ended so far.
    pub fn reports(&self) -> Vec<ServerReport> {
        self.shared.state().reports.clone()
    }

    /// Reports of connections that have ended since the last call.
    pub fn take_reports(&self) -> Vec<ServerReport> {
        std::mem::take(&mut self.shared.state().reports)
    }

    /// Number of connections accepted so far.
    pub fn accepted(&self) -> usize {
        self.shared.state().accepted
    }

    /// Waits until `count` connections have ended; gives their reports.
    pub fn wait_for(&self, count: usize, limit: Duration) -> Result<Vec<ServerReport>> {
        let deadline = Instant::now() + limit;
        loop {
            let reports = self.reports();
            if reports.len() >= count {
                return Ok(reports);
            }
            ensure!(
                Instant::now() < deadline,
                "after {limit:?} the server has finished {} of {count} connections (accepted {})",
                reports.len(),
                self.accepted()
            );
            thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
        for (_, stream) in self.shared.state().open.drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        while !self.stop.load(Ordering::Relaxed) {
            if !wait_readable(listener) {
                continue;
            }
            let Ok((stream, peer)) = listener.accept() else {
                continue;
            };
            let number = {
                let mut state = self.state();
                state.accepted += 1;
                let number = state.accepted;
                state
                    .open
                    .extend(stream.try_clone().map(|stream| (number, stream)));
                number
            };
            let shared = Arc::clone(self);
            let serve = move || shared.serve_one(number, stream, peer);
            // A thousand of these at once: small stacks.
            let _ = thread::Builder::new().stack_size(STACK).spawn(serve);
        }
    }

    fn serve_one(&self, number: usize, stream: TcpStream, peer: SocketAddr) {
        let began = Instant::now();
        // The copy goes first: a socket is only closed, or reset, with its last descriptor.
        let forget = || self.state().open.retain(|(open, _)| *open != number);
        let mut session = Session::new(stream, &self.options);
        let failure = session.run(&self.options, &forget).err();
        let Session { job, up, down, .. } = session;
        let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
        let total_us = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
        forget();
        self.state().reports.push(ServerReport {
            peer,
            job,
            up,
            down,
            total_us,
            failure,
        });
    }
}

/// One connection being served.
struct Session {
    stream: TcpStream,
    job: Option<Job>,
    up: u64,
    down: u64,
}

impl Session {
    fn new(stream: TcpStream, options: &ServeOptions) -> Self {
        let _ = stream.set_nonblocking(false);
        let _ = stream.set_nodelay(true);
        let _ = stream.set_read_timeout(Some(options.patience));
        let _ = stream.set_write_timeout(Some(options.patience));
        Self {
            stream,
            job: None,
            up: 0,
            down: 0,
        }
    }

    fn run(&mut self, options: &ServeOptions, forget: &dyn Fn()) -> Step<()> {
        if options.banner > 0 {
            Sending::new(BANNER_SEED, BUFFER).send(&mut self.stream, options.banner)?;
        }
        let job = Job::receive(&mut self.stream).map_err(|error| Failure::new("read", &error))?;
        let Some(job) = job else { return Ok(()) };
        self.job = Some(job);

        let mut sending = Sending::new(job.seed_down(), BUFFER).paced(job.rate);
        let mut receiving = Receiving::new(job.seed_up(), BUFFER, None);
        let result = self.obey(&job, &mut sending, &mut receiving, forget);
        self.up = receiving.received;
        self.down = sending.sent;
        result
    }

    fn obey(
        &mut self,
        job: &Job,
        sending: &mut Sending,
        receiving: &mut Receiving,
        forget: &dyn Fn(),
    ) -> Step<()> {
        let stream = &mut self.stream;
        match job.mode {
            Mode::Down => {
                sending.send(stream, job.down)?;
                during("write", stream.shutdown(Shutdown::Write))?;
                expect_end(stream)
            }
            Mode::Up | Mode::UpThenDown => {
                receiving.receive(stream, job.up)?;
                expect_end(stream)?;
                sending.send(stream, job.down)?;
                verdict(stream, receiving)
            }
            Mode::Both => {
                let mut reader = during("read", stream.try_clone())?;
                let (received, sent) = thread::scope(|scope| {
                    let received = scope.spawn(|| {
                        receiving.receive(&mut reader, job.up)?;
                        expect_end(&mut reader)
                    });
                    let sent = sending.send(stream, job.down);
                    if sent.is_err() {
                        // Nothing more will come of what the other thread waits for.
                        let _ = stream.shutdown(Shutdown::Both);
                    }
                    (received.join(), sent)
                });
                sent?;
                received.unwrap_or_else(|_| unreachable!("the receiving thread never panics"))?;
                verdict(stream, receiving)
            }
            Mode::DownThenUp => {
                sending.send(stream, job.down)?;
                during("write", stream.shutdown(Shutdown::Write))?;
                receiving.receive(stream, job.up)?;
                expect_end(stream)
            }
            Mode::PingPong => {
                for _ in 0..job.rounds {
                    receiving.receive(stream, job.up)?;
                    sending.send(stream, job.down)?;
                }
                expect_end(stream)
            }
            Mode::ServerReset => {
                sending.send(stream, job.down)?;
                during("read", stream.read_exact(&mut [0]))?;
                forget();
                reset(stream)
            }
            // Ends with an error, which is what the client's abort looks like.
            Mode::ClientAbort => {
                sending.send(stream, job.down)?;
                expect_end(stream)
            }
            Mode::Hold => expect_end(stream),
        }
    }
}

/// Makes the close that follows a reset.
pub(super) fn reset(stream: &TcpStream) -> Step<()> {
    during(
        "write",
        SockRef::from(stream).set_linger(Some(Duration::ZERO)),
    )
}

fn verdict(stream: &mut TcpStream, receiving: &Receiving) -> Step<()> {
    let gap_us = u64::try_from(receiving.longest_gap.as_micros()).unwrap_or(u64::MAX);
    let verdict = Verdict {
        up: receiving.received,
        gap_us,
    };
    during("write", stream.write_all(&verdict.to_bytes()))?;
    during("write", stream.shutdown(Shutdown::Write))
}

fn listen(options: &ServeOptions) -> Result<TcpListener> {
    let address = SocketAddr::from((Ipv6Addr::UNSPECIFIED, options.port));
    let bind = || -> std::io::Result<TcpListener> {
        let socket = Socket::new(Domain::IPV6, Type::STREAM, Some(options.proto.socket2()))?;
        socket.set_only_v6(false)?;
        socket.set_reuse_address(true)?;
        socket.bind(&address.into())?;
        socket.listen(4096)?;
        socket.set_nonblocking(true)?;
        Ok(socket.into())
    };
    bind().with_context(|| format!("listening on port {} ({:?})", options.port, options.proto))
}

/// Waits a little; false when there is nothing to accept yet.
fn wait_readable(listener: &TcpListener) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN)];
    let limit = Timespec {
        tv_sec: 0,
        tv_nsec: 20_000_000,
    };
    poll(&mut fds, Some(&limit)).is_ok_and(|ready| ready > 0)
}

/// Seed of the banner.
pub(super) const BANNER_SEED: u64 = 0xba44e5;

/// Bytes given to the kernel, or taken, at a time.
pub(super) const BUFFER: usize = 64 << 10;

/// Stack of a connection's thread.
pub(super) const STACK: usize = 128 << 10;

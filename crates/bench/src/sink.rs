//! Where uploads end: an HTTP server that says how much has arrived, or what it hashes to.
//!
//! nginx reads a body that nobody wants in pieces of 4 KB, which would be most of what an upload costs.
//! The sink also keeps connections that say nothing, for the memory they take.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use anyhow::{Context as _, Result};
use flexcp_lab::Namespace;
use flexcp_lab::transfer::Proto;
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use sha2::{Digest as _, Sha256};
use socket2::{Domain, Socket, Type};

use crate::http::Head;

/// A running sink. Dropping it closes all its connections.
#[derive(Debug)]
pub(crate) struct Sink {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
}

impl Sink {
    /// Listens on these ports in a namespace.
    pub(crate) fn start(namespace: &Namespace, proto: Proto, ports: &[u16]) -> Result<Self> {
        namespace.run(|| Self::start_here(proto, ports))
    }

    /// Listens in the namespace of the calling thread.
    pub(crate) fn start_here(proto: Proto, ports: &[u16]) -> Result<Self> {
        let listeners = ports.iter().map(|port| listen(proto, *port));
        let listeners = listeners.collect::<Result<Vec<_>>>()?;
        let listeners = Arc::new(listeners);
        let shared = Arc::new(Shared::default());
        let mut threads = vec![];
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            let worker = Worker::new(Arc::clone(&listeners), Arc::clone(&shared))?;
            let run = move || {
                if let Err(error) = worker.run() {
                    eprintln!("bench: sink: {error:#}");
                }
            };
            threads.push(thread::Builder::new().name("sink".into()).spawn(run)?);
        }
        Ok(Self { shared, threads })
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

struct Worker {
    listeners: Arc<Vec<TcpListener>>,
    shared: Arc<Shared>,
    epoll: OwnedFd,
    /// By number; the epoll data are the numbers of the listeners, then these.
    connections: Vec<Option<Connection>>,
    free: Vec<usize>,
    buffer: Vec<u8>,
}

struct Connection {
    stream: TcpStream,
    head: Vec<u8>,
    body: Option<Body>,
}

struct Body {
    wanted: u64,
    left: u64,
    hash: Option<Sha256>,
}

impl Worker {
    fn new(listeners: Arc<Vec<TcpListener>>, shared: Arc<Shared>) -> Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for (number, listener) in (0..).zip(listeners.iter()) {
            let data = epoll::EventData::new_u64(number);
            epoll::add(&epoll, listener, data, epoll::EventFlags::IN)?;
        }
        Ok(Self {
            listeners,
            shared,
            epoll,
            connections: vec![],
            free: vec![],
            buffer: vec![0; BUFFER],
        })
    }

    fn run(mut self) -> Result<()> {
        let mut events = Vec::with_capacity(256);
        let limit = Timespec {
            tv_sec: 0,
            tv_nsec: 20_000_000,
        };
        while !self.shared.stop.load(Ordering::Relaxed) {
            events.clear();
            match epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&limit)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error).context("epoll"),
            }
            for event in &events {
                let number = usize::try_from(event.data.u64()).unwrap_or(usize::MAX);
                match number.checked_sub(self.listeners.len()) {
                    None => self.accept(number)?,
                    Some(number) => self.receive(number),
                }
            }
        }
        Ok(())
    }

    /// Takes one connection; the other threads may be quicker.
    fn accept(&mut self, listener: usize) -> Result<()> {
        let Ok((stream, _)) = self.listeners[listener].accept() else {
            return Ok(());
        };
        stream.set_nonblocking(true)?;
        let _ = stream.set_nodelay(true);
        let number = self.free.pop().unwrap_or_else(|| {
            self.connections.push(None);
            self.connections.len() - 1
        });
        let data = epoll::EventData::new_u64((self.listeners.len() + number) as u64);
        epoll::add(&self.epoll, &stream, data, epoll::EventFlags::IN)?;
        self.connections[number] = Some(Connection {
            stream,
            head: vec![],
            body: None,
        });
        Ok(())
    }

    fn receive(&mut self, number: usize) {
        let Some(connection) = &mut self.connections[number] else {
            return;
        };
        let ended = match connection.stream.read(&mut self.buffer) {
            Ok(0) => true,
            Ok(len) => connection.take(&self.buffer[..len]).is_err(),
            Err(error) => !matches!(
                error.kind(),
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
            ),
        };
        if ended {
            self.connections[number] = None;
            self.free.push(number);
        }
    }
}

impl Connection {
    /// Takes what has arrived; answers when the body is complete.
    fn take(&mut self, arrived: &[u8]) -> Result<()> {
        let head;
        let mut bytes = arrived;
        if self.body.is_none() {
            self.head.extend_from_slice(arrived);
            head = std::mem::take(&mut self.head);
            let Some(read) = Head::read(&head)? else {
                self.head = head;
                return Ok(());
            };
            self.body = Some(Body {
                wanted: read.body,
                left: read.body,
                hash: (read.path() == "/sha").then(Sha256::new),
            });
            bytes = &head[read.len..];
        }
        let Some(body) = &mut self.body else {
            return Ok(());
        };
        let more = bytes.len() as u64;
        body.left = body.left.checked_sub(more).context("more than a body")?;
        if let Some(hash) = &mut body.hash {
            hash.update(bytes);
        }
        if body.left > 0 {
            return Ok(());
        }
        let said = match body.hash.take() {
            Some(hash) => hex(&hash.finalize()),
            None => body.wanted.to_string(),
        };
        self.body = None;
        let len = said.len();
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {len}\r\n\r\n{said}");
        // A socket that has nothing to send takes that much.
        self.stream.write_all(answer.as_bytes())?;
        Ok(())
    }
}

/// Lower-case hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn listen(proto: Proto, port: u16) -> Result<TcpListener> {
    let protocol = match proto {
        Proto::Tcp => socket2::Protocol::TCP,
        Proto::Mptcp => socket2::Protocol::MPTCP,
    };
    let bind = || -> io::Result<TcpListener> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(protocol))?;
        socket.set_reuse_address(true)?;
        socket.bind(&SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)).into())?;
        socket.listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        Ok(socket.into())
    };
    bind().with_context(|| format!("listening on port {port}"))
}

/// Bytes taken from a connection at a time.
const BUFFER: usize = 256 << 10;

/// Connections that wait to be accepted; the namespace's limit is raised to it.
pub(crate) const BACKLOG: i32 = 16_384;

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Connection, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let connection = Connection {
            stream: listener.accept().unwrap().0,
            head: vec![],
            body: None,
        };
        (connection, client)
    }

    fn answer(client: &mut TcpStream) -> String {
        let mut bytes = vec![0; 4096];
        let len = client.read(&mut bytes).unwrap();
        let text = String::from_utf8(bytes[..len].to_vec()).unwrap();
        text.split("\r\n\r\n").nth(1).unwrap().to_owned()
    }

    #[test]
    fn sink_counts_bodies_however_they_are_cut() {
        let (mut connection, mut client) = pair();
        let request = b"PUT /count HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello";
        for cut in 1..request.len() {
            connection.take(&request[..cut]).unwrap();
            connection.take(&request[cut..]).unwrap();
            assert_eq!(answer(&mut client), "5", "{cut}");
        }
        assert!(connection.take(&[&request[..], b"!"].concat()).is_err());
    }

    #[test]
    fn sink_hashes_when_asked() {
        let (mut connection, mut client) = pair();
        connection
            .take(b"PUT /sha HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc")
            .unwrap();
        let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(answer(&mut client), expected);
    }
}

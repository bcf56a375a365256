//! Many connections that are open and idle, in processes of their own: none may have more open files
//! than the system allows.
//!
//! Each process says on standard output what it has, and ends when its standard input does.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, io, thread};

use anyhow::{Context as _, Result, anyhow, ensure};
use flexcp_lab::Namespace;
use flexcp_lab::transfer::{Proto, raise_file_limit};
use socket2::{Domain, Socket, Type};

use crate::sink::Sink;

/// A process of this program in a namespace. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Helper {
    child: Child,
    stdin: Option<ChildStdin>,
    said: BufReader<std::process::ChildStdout>,
}

impl Helper {
    /// A sink on one port.
    pub(crate) fn sink(namespace: &Namespace, proto: Proto, port: u16) -> Result<Self> {
        let mut helper = Self::start(namespace, &["sink", name(proto), &port.to_string()])?;
        helper.line()?;
        Ok(helper)
    }

    /// That many connections from one of our addresses.
    pub(crate) fn connections(
        namespace: &Namespace,
        proto: Proto,
        (from, to): (IpAddr, SocketAddr),
        count: usize,
    ) -> Result<Self> {
        let (from, to, count) = (from.to_string(), to.to_string(), count.to_string());
        Self::start(namespace, &["hold", name(proto), &from, &to, &count])
    }

    fn start(namespace: &Namespace, words: &[&str]) -> Result<Self> {
        let mut command: Command = namespace.command(env::current_exe()?);
        let mut child = command
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let stdin = child.stdin.take();
        let said = child.stdout.take().context("no pipe")?;
        Ok(Self {
            child,
            stdin,
            said: BufReader::new(said),
        })
    }

    /// Its next line: for connections, how many are open.
    pub(crate) fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.said.read_line(&mut line)?;
        ensure!(!line.is_empty(), "a helper has ended too early");
        Ok(line.trim().to_owned())
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.stdin = None;
        let _ = self.child.wait();
    }
}

fn name(proto: Proto) -> &'static str {
    match proto {
        Proto::Tcp => "tcp",
        Proto::Mptcp => "mptcp",
    }
}

/// What `bench sink` does.
pub(crate) fn serve(proto: Proto, port: u16) -> Result<()> {
    raise_file_limit()?;
    let sink = Sink::start_here(proto, &[port])?;
    println!("ready");
    wait_for_end()?;
    drop(sink);
    Ok(())
}

/// What `bench hold` does.
pub(crate) fn hold(proto: Proto, from: IpAddr, to: SocketAddr, count: usize) -> Result<()> {
    raise_file_limit()?;
    let deadline = Instant::now() + CONNECTING;
    let share = count.div_ceil(THREADS);
    let held = thread::scope(|scope| {
        let open = || {
            let mut open = vec![];
            let mut failure = None;
            while open.len() < share && failure.is_none() && Instant::now() < deadline {
                match connect(proto, from, to) {
                    Ok(stream) => open.push(stream),
                    Err(error) => failure = Some(error),
                }
            }
            (open, failure)
        };
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(open)).collect();
        let joined = threads.into_iter().map(thread::ScopedJoinHandle::join);
        joined.collect::<thread::Result<Vec<_>>>()
    });
    let held = held.map_err(|_| anyhow!("a connecting thread panicked"))?;
    let open: usize = held.iter().map(|(open, _)| open.len()).sum();
    let failure = held.iter().find_map(|(_, failure)| failure.as_ref());
    println!(
        "{open} {}",
        failure.map_or_else(String::new, |error| format!("{error:#}"))
    );
    wait_for_end()
}

/// A connection that has been used once.
fn connect(proto: Proto, from: IpAddr, to: SocketAddr) -> Result<TcpStream> {
    let protocol = match proto {
        Proto::Tcp => socket2::Protocol::TCP,
        Proto::Mptcp => socket2::Protocol::MPTCP,
    };
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(protocol))?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.set_write_timeout(Some(PATIENCE))?;
    socket.bind(&SocketAddr::new(from, 0).into())?;
    socket.connect(&to.into()).context("connecting")?;
    let mut stream = TcpStream::from(socket);
    stream.write_all(b"PUT /count HTTP/1.1\r\nContent-Length: 0\r\n\r\n")?;
    let mut answer = [0; 200];
    let len = stream.read(&mut answer).context("no answer")?;
    ensure!(answer[..len].starts_with(b"HTTP/1.1 200 "), "no answer");
    Ok(stream)
}

fn wait_for_end() -> Result<()> {
    io::stdin().read_to_end(&mut vec![])?;
    Ok(())
}

/// Connections that are being opened at a time, of one process.
const THREADS: usize = 2;

/// For all connections of one process, and for one step of a connection.
const CONNECTING: Duration = Duration::from_secs(180);
const PATIENCE: Duration = Duration::from_secs(10);

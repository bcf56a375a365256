//! The client side of a transfer.

use std::io::{Read, Write as _};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use socket2::{Domain, SockRef, Socket, Type};

use super::Proto;
use super::flow::{Receiving, Sending, Step, during, expect_end};
use super::job::{Job, Mode, REQUEST_LEN, Verdict};
use super::named::{Named, connect_message};
use super::report::{Failure, Report};
use super::serve::{BANNER_SEED, BUFFER, STACK, reset};
use crate::namespace::Namespace;

/// How to connect.
#[derive(Clone, Debug)]
pub struct Client {
    to: SocketAddr,
    from: Option<IpAddr>,
    proto: Proto,
    banner: u64,
    read_rate: Option<u64>,
    receive_buffer: Option<usize>,
    patience: Duration,
    head_start: Duration,
    aborts: bool,
    /// The server that a proxy at `to` is asked for.
    server: Option<Named>,
}

impl Client {
    /// A client of the server at `to`.
    pub fn new(to: SocketAddr, proto: Proto) -> Self {
        Self {
            to,
            from: None,
            proto,
            banner: 0,
            read_rate: None,
            receive_buffer: None,
            patience: Duration::from_secs(30),
            head_start: Duration::ZERO,
            aborts: false,
            server: None,
        }
    }

    /// An MPTCP client.
    pub fn mptcp(to: SocketAddr) -> Self {
        Self::new(to, Proto::Mptcp)
    }

    /// A plain TCP client.
    pub fn tcp(to: SocketAddr) -> Self {
        Self::new(to, Proto::Tcp)
    }

    /// Binds the (initial) flow to this address.
    pub fn from(mut self, address: IpAddr) -> Self {
        self.from = Some(address);
        self
    }

    /// Reaches an IPv4 server from an IPv6 socket, by its mapped address.
    ///
    /// Linux opens subflows of the other family on IPv6 sockets only.
    pub fn mapped(mut self) -> Self {
        if let IpAddr::V4(address) = self.to.ip() {
            self.to.set_ip(address.to_ipv6_mapped().into());
        }
        self
    }

    /// Expects that many bytes before it says anything.
    pub fn banner(mut self, bytes: u64) -> Self {
        self.banner = bytes;
        self
    }

    /// Reads no faster than this.
    pub fn read_rate(mut self, bytes_per_second: u64) -> Self {
        self.read_rate = Some(bytes_per_second);
        self
    }

    /// Sets SO_RCVBUF.
    pub fn receive_buffer(mut self, bytes: usize) -> Self {
        self.receive_buffer = Some(bytes);
        self
    }

    /// How long it waits without progress before it gives up (default 30 s).
    pub fn patience(mut self, limit: Duration) -> Self {
        self.patience = limit;
        self
    }

    /// Waits that long between connecting and asking, as a client does that connects ahead: subflows join meanwhile.
    pub fn head_start(mut self, pause: Duration) -> Self {
        self.head_start = pause;
        self
    }

    /// Resets the connection when it gives up. The kernel would go on for minutes to bring the peer what was written before.
    pub fn aborts(mut self) -> Self {
        self.aborts = true;
        self
    }

    /// Takes the server at `to` for a converter, and asks it in the SYN for a connection with this one (RFC 8803). What is to be
    /// done stands behind that in the SYN.
    pub fn convert(self, server: SocketAddr) -> Self {
        self.names(Named::InSyn(server))
    }

    /// The same once it is connected.
    pub fn convert_late(self, server: SocketAddr) -> Self {
        self.names(Named::Late(server))
    }

    /// Takes the server at `to` for one of SOCKS5, and asks it for a connection with this host, an address or a name, and port.
    pub fn socks5(self, host: &str, port: u16) -> Self {
        self.names(Named::Socks5(host.into(), port))
    }

    fn names(mut self, server: Named) -> Self {
        self.server = Some(server);
        self
    }

    /// Does one job from inside a namespace.
    pub fn run_in(&self, namespace: &Namespace, job: &Job) -> Result<Report> {
        namespace.run(|| Ok(self.run(job)))
    }

    /// Does one job on each of `count` connections, all open at the same time.
    pub fn run_many_in(
        &self,
        namespace: &Namespace,
        count: usize,
        job: &Job,
    ) -> Result<Vec<Report>> {
        namespace.run(|| self.run_many(count, job))
    }

    /// Does one job.
    pub fn run(&self, job: &Job) -> Report {
        self.attempt(job, BUFFER, || ())
    }

    /// Does one job on each of `count` connections, all open at the same time.
    ///
    /// Each has its own seed. No job starts before all are connected or failed.
    pub fn run_many(&self, count: usize, job: &Job) -> Result<Vec<Report>> {
        super::raise_file_limit()?;
        let all_connected = Barrier::new(count);
        let buffer = if count > 64 { 16 << 10 } else { BUFFER };
        thread::scope(|scope| {
            let mut threads = vec![];
            for number in (0..).take(count) {
                let job = job.seed(job.seed.wrapping_add(number));
                let all_connected = &all_connected;
                let work = move || {
                    self.attempt(&job, buffer, || {
                        all_connected.wait();
                    })
                };
                threads.push(
                    thread::Builder::new()
                        .stack_size(STACK)
                        .spawn_scoped(scope, work)?,
                );
            }
            let joined = threads.into_iter().map(|thread| thread.join());
            joined
                .map(|report| report.map_err(|_| anyhow!("a client panicked")))
                .collect()
        })
    }

    /// `connected` is called once, whether or not the connection came about.
    fn attempt(&self, job: &Job, buffer: usize, connected: impl FnOnce()) -> Report {
        let mut report = Report::default();
        let began = Instant::now();
        let mut first = vec![];
        let stream = during(
            "connect",
            job.send(&mut first).and_then(|()| self.connect(&first)),
        );
        report.connect_us = micros(began.elapsed());
        connected();
        thread::sleep(self.head_start);
        let began = Instant::now();
        let result = stream.and_then(|stream| {
            report.local = stream.local_addr().ok();
            self.perform(stream, job, buffer, &mut report)
        });
        report.total_us = micros(began.elapsed());
        report.failure = result.err();
        report
    }

    /// Connects, and says this as the first of the stream: with Convert in the SYN, otherwise once the client is connected with
    /// the server that it names.
    ///
    /// # Errors
    /// As of sockets, or of the proxy's refusal.
    pub fn open(&self, first: &[u8]) -> std::io::Result<TcpStream> {
        let mut stream = self.connect(first)?;
        if let Some(server) = &self.server {
            server.ask(&mut stream)?;
        }
        if !matches!(self.server, Some(Named::InSyn(_))) {
            stream.write_all(first)?;
        }
        Ok(stream)
    }

    /// `first` goes with a SYN that names the server.
    fn connect(&self, first: &[u8]) -> std::io::Result<TcpStream> {
        let domain = Domain::for_address(self.to);
        let socket = Socket::new(domain, Type::STREAM, Some(self.proto.socket2()))?;
        if let Some(address) = self.from {
            socket.bind(&SocketAddr::new(address, 0).into())?;
        }
        if let Some(bytes) = self.receive_buffer {
            socket.set_recv_buffer_size(bytes)?;
        }
        // The kernel also counts the connect against SO_SNDTIMEO.
        socket.set_write_timeout(Some(self.patience))?;
        socket.set_read_timeout(Some(self.patience))?;
        match self.server {
            Some(Named::InSyn(server)) => {
                let mut said = connect_message(server);
                said.extend_from_slice(first);
                let sent = socket.send_to_with_flags(&said, &self.to.into(), MSG_FASTOPEN)?;
                if sent < said.len() {
                    return Err(std::io::ErrorKind::WriteZero.into());
                }
            }
            _ => socket.connect(&self.to.into())?,
        }
        socket.set_tcp_nodelay(true)?;
        Ok(socket.into())
    }

    fn perform(
        &self,
        mut stream: TcpStream,
        job: &Job,
        buffer: usize,
        report: &mut Report,
    ) -> Step<()> {
        if let Some(server) = &self.server {
            during("read", server.ask(&mut stream))?;
        }
        if self.banner > 0 {
            let mut banner = Receiving::new(BANNER_SEED, buffer, None);
            banner.receive(&mut stream, self.banner)?;
        }
        if !matches!(self.server, Some(Named::InSyn(_))) {
            during("write", job.send(&mut stream))?;
        }
        let mut sending = Sending::new(job.seed_up(), buffer).paced(job.rate);
        let mut receiving = Receiving::new(job.seed_down(), buffer, self.read_rate);
        // A socket is reset with its last descriptor.
        let last = self.aborts.then(|| stream.try_clone());
        let result = exchange(stream, job, &mut sending, &mut receiving, report);
        if let (Err(_), Some(Ok(last))) = (&result, &last) {
            reset(last)?;
        }
        report.up = sending.sent;
        report.down = receiving.received;
        let only_sending = receiving.received == 0;
        let gap = if only_sending {
            sending.longest_gap
        } else {
            receiving.longest_gap
        };
        report.longest_gap_us = micros(gap);
        result
    }
}

/// Data goes with the SYN (`MSG_FASTOPEN`).
const MSG_FASTOPEN: i32 = 0x2000_0000;

/// The client's part of a job; takes the stream so that it is closed at the end.
fn exchange(
    mut stream: TcpStream,
    job: &Job,
    sending: &mut Sending,
    receiving: &mut Receiving,
    report: &mut Report,
) -> Step<()> {
    let pause = Duration::from_millis(job.pause_ms);
    match job.mode {
        Mode::Down => {
            receiving.receive(&mut stream, job.down)?;
            expect_end(&mut stream)
        }
        Mode::Up | Mode::UpThenDown => {
            sending.send(&mut stream, job.up)?;
            during("write", stream.shutdown(Shutdown::Write))?;
            receiving.receive(&mut stream, job.down)?;
            verdict(&mut stream, sending, report)
        }
        Mode::Both => {
            let mut writer = during("write", stream.try_clone())?;
            let (sent, received) = thread::scope(|scope| {
                let sent = scope.spawn(|| {
                    sending.send(&mut writer, job.up)?;
                    during("write", writer.shutdown(Shutdown::Write))
                });
                let received = receiving.receive(&mut stream, job.down);
                if received.is_err() {
                    // Nobody will ever take what the other thread is sending.
                    let _ = stream.shutdown(Shutdown::Both);
                }
                (sent.join(), received)
            });
            let sent = sent.unwrap_or_else(|_| unreachable!("the sending thread never panics"));
            of_both(sent, received)?;
            verdict(&mut stream, sending, report)
        }
        Mode::DownThenUp => {
            receiving.receive(&mut stream, job.down)?;
            expect_end(&mut stream)?;
            sending.send(&mut stream, job.up)
        }
        Mode::PingPong => {
            for _ in 0..job.rounds {
                sending.send(&mut stream, job.up)?;
                receiving.receive(&mut stream, job.down)?;
                thread::sleep(pause);
            }
            during("write", stream.shutdown(Shutdown::Write))?;
            expect_end(&mut stream)
        }
        Mode::ServerReset => {
            receiving.receive(&mut stream, job.down)?;
            during("write", stream.write_all(b"!"))?;
            let told = Instant::now();
            let result = expect_end(&mut stream);
            report.reset_us = Some(micros(told.elapsed()));
            result
        }
        Mode::ClientAbort => {
            receiving.receive(&mut stream, job.up)?;
            reset(&stream)
        }
        Mode::Hold => {
            thread::sleep(pause);
            // Whatever happened meanwhile is on the socket.
            match SockRef::from(&stream).take_error() {
                Ok(Some(error)) | Err(error) => during("read", Err(error)),
                Ok(None) => Ok(()),
            }
        }
    }
}

/// What became of a stream whose two directions had a thread each.
///
/// A socket tells of a reset once, to the first that asks, here who writes; who reads is told of an end from then on. After an end it is
/// another error that is told (Linux, `tcp_reset`), so no end of a stream hides behind a reset.
fn of_both(sent: Step<()>, received: Step<()>) -> Step<()> {
    let is_reset = |failure: &Failure| failure.kind == "ECONNRESET";
    match (sent, received) {
        (Err(sent), Err(received)) if is_reset(&sent) && received.kind == "eof" => Err(sent),
        (sent, received) => received.and(sent),
    }
}

/// Reads what the server says it got, to the end of the connection.
fn verdict(stream: &mut impl Read, sending: &Sending, report: &mut Report) -> Step<()> {
    let mut bytes = vec![];
    during(
        "read",
        stream.take(2 * REQUEST_LEN as u64).read_to_end(&mut bytes),
    )?;
    let verdict = Verdict::from_bytes(&bytes).map_err(|error| Failure::new("check", &error))?;
    report.server_gap_us = Some(verdict.gap_us);
    if verdict.up != sending.sent {
        let error = anyhow!("the server got {} of {} bytes", verdict.up, sending.sent);
        return Err(Failure::new("check", &error));
    }
    Ok(())
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(kind: &str) -> Step<()> {
        Err(Failure {
            kind: kind.to_owned(),
            during: "made up",
            message: String::new(),
        })
    }

    #[test]
    fn reset_that_was_told_to_the_writer_is_no_end_for_the_reader() {
        let kind = |sent, received| of_both(sent, received).expect_err("a failure").kind;
        assert_eq!(kind(failed("ECONNRESET"), failed("eof")), "ECONNRESET");
        // An end is followed by EPIPE, whether a reset came after it or not.
        assert_eq!(kind(failed("EPIPE"), failed("eof")), "eof");
        assert_eq!(kind(Ok(()), failed("eof")), "eof");
        assert_eq!(kind(failed("ECONNRESET"), failed("data")), "data");
        assert_eq!(kind(failed("timeout"), Ok(())), "timeout");
        assert!(of_both(Ok(()), Ok(())).is_ok());
    }
}

//! A SOCKS5 server on this host, for programs that speak that, and what carries bytes from one end to the other.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use flexcp_preamble::{Cookie, Dialogue, Gate, Protocol, Refusal, Target, Turn, Wish};
use rustix::net::sockopt;

use super::{Begun, Refused, Unconnected, begin, begin_to};

/// A program has to say whom it wants within this time.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of the stack of a thread, of which each connection has two.
const STACK: usize = 128 << 10;
/// Bytes that are read at a time.
const BUFFER: usize = 64 << 10;

/// A SOCKS5 server whose connections go by a converter.
#[derive(Debug)]
pub struct Local {
    listener: TcpListener,
    by: SocketAddr,
    grant: Grant,
}

/// When a program is told that it is connected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Grant {
    /// Once the converter has its message: a round trip earlier. If the converter then refuses, the program's connection is reset.
    Early,
    /// Once the converter has connected it. If the converter refuses, the program is told why.
    Answered,
}

/// Whoever reaches the listener may come in: it stands on this host.
struct Open;

impl Gate for Open {
    fn asks_password(&self) -> bool {
        false
    }

    fn knows(&self, _: &[u8], _: &[u8]) -> bool {
        false
    }

    fn judge_cookie(&self, _: Option<&[u8]>) -> Cookie {
        Cookie::Right
    }
}

impl Local {
    /// Listens at `at`; connections go by the converter at `by`.
    ///
    /// # Errors
    /// Why nobody can listen there.
    pub fn listen(at: SocketAddr, by: SocketAddr, grant: Grant) -> io::Result<Self> {
        let listener = TcpListener::bind(at)?;
        Ok(Self {
            listener,
            by,
            grant,
        })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// Why the kernel does not say.
    pub fn addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until the listener fails.
    ///
    /// # Errors
    /// Why it has.
    pub fn serve(&self) -> io::Result<()> {
        loop {
            let (stream, _) = match self.listener.accept() {
                Ok(accepted) => accepted,
                // Of one connection, or of all for now.
                Err(error) if is_passing(&error) => {
                    thread::sleep(Duration::from_millis(10));
                    continue;
                }
                Err(error) => return Err(error),
            };
            let (by, grant) = (self.by, self.grant);
            // Without a thread the program sees its connection closed.
            let _ = start(move || {
                let _ = serve_one(stream, by, grant);
            });
        }
    }
}

fn is_passing(error: &io::Error) -> bool {
    let out_of_files = [24, 23].map(Some).contains(&error.raw_os_error());
    out_of_files
        || matches!(
            error.kind(),
            io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted
        )
}

fn start(work: impl FnOnce() + Send + 'static) -> io::Result<thread::JoinHandle<()>> {
    thread::Builder::new().stack_size(STACK).spawn(work)
}

fn serve_one(mut program: TcpStream, by: SocketAddr, grant: Grant) -> io::Result<()> {
    program.set_nodelay(true)?;
    program.set_read_timeout(Some(PATIENCE))?;
    let mut dialogue = Dialogue::new(Protocol::Socks5);
    let Some((wish, early)) = hear(&mut dialogue, &mut program)? else {
        return Ok(());
    };
    program.set_read_timeout(None)?;
    let mut is_granted = false;
    let settled = begin_as_wished(by, &wish).and_then(|mut begun| {
        begun.say(&early);
        is_granted = begun.may_speak() && grant == Grant::Early;
        if is_granted {
            tell(&dialogue, &mut program).map_err(Unconnected::Program)?;
        }
        begun.settle(is_granted.then_some(&program))
    });
    match settled {
        Ok(settled) => {
            if !is_granted {
                tell(&dialogue, &mut program)?;
            }
            let reader = (!settled.is_over).then(|| program.try_clone());
            let up = relay(reader.transpose()?, &settled.server, &mut program)?;
            program.shutdown(Shutdown::Write)?;
            let _ = up.join();
            Ok(())
        }
        Err(error) if is_granted => {
            eprintln!("flexcp: {}: {error}", named(&wish));
            // A reset: the program was told that it is connected, and an end of the stream would be an empty answer.
            Ok(sockopt::set_socket_linger(&program, Some(Duration::ZERO))?)
        }
        Err(error) => {
            let mut said = Vec::new();
            dialogue.refuse(refusal(&error), &mut said);
            program.write_all(&said)
        }
    }
}

/// Tells a program that it is connected.
fn tell(dialogue: &Dialogue, program: &mut TcpStream) -> io::Result<()> {
    let from = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
    let mut said = Vec::new();
    dialogue.grant(from, &[], &mut said);
    program.write_all(&said)
}

/// Hears a program until it has said whom it wants: that, and what came behind. `None`: it has been told that it can't have it.
fn hear(dialogue: &mut Dialogue, program: &mut TcpStream) -> io::Result<Option<(Wish, Vec<u8>)>> {
    let mut buffer = [0; 1024];
    loop {
        let len = program.read(&mut buffer)?;
        if len == 0 {
            return Ok(None);
        }
        let mut said = Vec::new();
        let (taken, turn) = dialogue.hear(&buffer[..len], &Open, &mut said);
        program.write_all(&said)?;
        match turn {
            Turn::Listen => {}
            Turn::Connect(wish) => return Ok(Some((wish, buffer[taken..len].to_vec()))),
            Turn::Told | Turn::Close(_) | Turn::Reset(_) => return Ok(None),
        }
    }
}

fn begin_as_wished(by: SocketAddr, wish: &Wish) -> Result<Begun, Unconnected> {
    match &wish.to {
        Target::Ip(addr) => begin_to(by, SocketAddr::new(*addr, wish.port)),
        Target::Name(name) => begin(by, &String::from_utf8_lossy(name), wish.port),
    }
}

fn named(wish: &Wish) -> String {
    match &wish.to {
        Target::Ip(addr) => SocketAddr::new(*addr, wish.port).to_string(),
        // Whatever a program calls a name does nothing to a terminal.
        Target::Name(name) => format!("{} port {}", name.escape_ascii(), wish.port),
    }
}

const fn refusal(error: &Unconnected) -> Refusal {
    match error {
        Unconnected::NoName(_) => Refusal::NoName,
        Unconnected::Refused(Refused::NotAuthorized) => Refusal::NotAllowed,
        Unconnected::Refused(Refused::Reset) => Refusal::Reset,
        Unconnected::Refused(Refused::Unreachable(code)) => Refusal::Unreachable {
            code: *code,
            is_v6: false,
        },
        Unconnected::Refused(Refused::Failed) => Refusal::Expired,
        _ => Refusal::NoNetwork,
    }
}

/// Carries what `reader` gives to the server, in a thread of its own, and what the server says to `writer`, until the server has
/// nothing more to say. The thread ends when the reader does, and the server then hears the end; without a reader it does at once.
///
/// # Errors
/// When no thread is to be had, or the server's end or the writer fails.
pub fn relay(
    reader: Option<impl Read + Send + 'static>,
    server: &TcpStream,
    writer: &mut impl Write,
) -> io::Result<thread::JoinHandle<()>> {
    let mut requests = server.try_clone()?;
    let up = start(move || {
        if let Some(mut reader) = reader {
            let _ = carry(&mut reader, &mut requests);
        }
        let _ = requests.shutdown(Shutdown::Write);
    })?;
    let mut answers = server;
    match carry(&mut answers, writer) {
        Ok(()) => Ok(up),
        Err(error) => {
            // Nobody hears the server any more, or it is gone.
            let _ = server.shutdown(Shutdown::Both);
            Err(error)
        }
    }
}

/// Each piece goes on at once, also through a buffered output: what is said on both sides in turn must not wait for more.
fn carry(from: &mut impl Read, to: &mut impl Write) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER];
    loop {
        let len = match from.read(&mut buffer) {
            Ok(0) => return to.flush(),
            Ok(len) => len,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        to.write_all(&buffer[..len])?;
        to.flush()?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flexcp_wire::CONVERT_VERSION;

    /// A converter that takes this message and gives this answer, then says what it hears.
    fn converter(answer: &'static [u8]) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut message = [0; 24];
            stream.read_exact(&mut message).unwrap();
            assert_eq!(message[..4], [CONVERT_VERSION, 6, 0x22, 0x63]);
            assert_eq!(message[6..8], 80_u16.to_be_bytes());
            assert_eq!(message[20..], [192, 0, 2, 7]);
            stream.write_all(answer).unwrap();
            let mut heard = Vec::new();
            stream.read_to_end(&mut heard).unwrap();
            stream.write_all(&heard).unwrap();
        });
        at
    }

    fn local(by: SocketAddr) -> SocketAddr {
        let local = Local::listen("127.0.0.1:0".parse().unwrap(), by, Grant::Early).unwrap();
        let at = local.addr().unwrap();
        thread::spawn(move || local.serve());
        at
    }

    /// A program that asks for 192.0.2.7:80 and says this: what it hears.
    fn program(at: SocketAddr, early: bool) -> Vec<u8> {
        let mut stream = TcpStream::connect(at).unwrap();
        let request = [5, 1, 0, 5, 1, 0, 1, 192, 0, 2, 7, 0, 80];
        let said = [&request[..], if early { b"early" } else { b"" }].concat();
        stream.write_all(&said).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut heard = Vec::new();
        stream.read_to_end(&mut heard).unwrap();
        heard
    }

    #[test]
    fn program_reaches_its_server_by_the_converter() {
        for early in [false, true] {
            let heard = program(local(converter(&[1, 1, 0x22, 0x63])), early);
            let granted = [5, 0, 5, 0, 0, 1, 0, 0, 0, 0, 0, 0];
            assert_eq!(heard[..12], granted);
            assert_eq!(&heard[12..], if early { &b"early"[..] } else { b"" });
        }
    }

    #[test]
    fn program_is_told_why_it_does_not() {
        let cases: [(&[u8], u8); 4] = [
            (&[1, 2, 0x22, 0x63, 30, 1, 32, 0], 2),
            (&[1, 2, 0x22, 0x63, 30, 1, 96, 0], 5),
            (&[1, 2, 0x22, 0x63, 30, 1, 97, 1], 4),
            (b"HTTP/1.1 400 Bad Request\r\n\r\n", 3),
        ];
        for (answer, code) in cases {
            let heard = program(local(converter(answer)), false);
            assert_eq!(heard[..4], [5, 0, 5, code], "{answer:?}");
        }
    }

    #[test]
    fn whatever_is_not_socks_is_closed() {
        let at = local("127.0.0.1:9".parse().unwrap());
        let mut stream = TcpStream::connect(at).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        let mut heard = Vec::new();
        let _ = stream.read_to_end(&mut heard);
        assert!(heard.is_empty(), "{heard:?}");
    }
}

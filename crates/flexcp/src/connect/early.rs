//! What a program says before the converter has answered: it goes there at once, and is kept, as another connection may have to
//! hear it again.

use std::io::{self, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::Unconnected;
use super::asking::{Asked, Asking, Outcome};

/// A converter has to answer within this time: it waits for the server.
const PATIENCE: Duration = Duration::from_secs(30);
/// So many bytes a program may say before there is an answer.
const KEPT: usize = 64 << 10;

/// A connection by a converter that has yet to answer.
#[derive(Debug)]
pub struct Begun {
    asking: Asking,
    asked: Asked,
    /// What the program has said.
    kept: Vec<u8>,
    /// It says no more.
    is_over: bool,
}

/// A connection by a converter.
#[derive(Debug)]
pub struct Settled {
    /// What goes here goes to the server.
    pub server: TcpStream,
    /// The program has said all that it had to say.
    pub is_over: bool,
}

impl Begun {
    pub(super) fn new(asking: Asking) -> Result<Self, Unconnected> {
        let asked = asking.ask()?;
        Ok(Self {
            asking,
            asked,
            kept: Vec::new(),
            is_over: false,
        })
    }

    /// Whether the converter has the message already, so that a program loses no round trip if it speaks now. What it says is
    /// lost if the converter then refuses.
    #[must_use]
    pub fn may_speak(&self) -> bool {
        self.asked.is_heard
    }

    /// The program has said this.
    pub fn say(&mut self, bytes: &[u8]) {
        self.kept.extend_from_slice(bytes);
        if self.may_speak() {
            // The converter tells better than this what is wrong.
            let _ = self.asked.stream.write_all(bytes);
        }
    }

    /// Waits for the converter's answer, and for that on another connection where it wants one. With a `program` that
    /// [may speak](Self::may_speak) what it says goes there meanwhile.
    ///
    /// # Errors
    /// What the last server has come to.
    pub fn settle(mut self, program: Option<&impl AsFd>) -> Result<Settled, Unconnected> {
        loop {
            let until = Instant::now() + PATIENCE;
            if let Some(program) = program.filter(|_| self.may_speak()) {
                self.listen(program, until)
                    .map_err(Unconnected::Converter)?;
            }
            let left = until.saturating_duration_since(Instant::now());
            let answer = self.asked.take_answer(left.max(Duration::from_millis(1)))?;
            match self.asking.judge(answer)? {
                Outcome::Connected => return self.connected().map_err(Unconnected::Converter),
                Outcome::Again => {
                    let kept = std::mem::take(&mut self.kept);
                    self.asked = self.asking.ask()?;
                    self.say(&kept);
                }
            }
        }
    }

    fn connected(mut self) -> io::Result<Settled> {
        if !self.may_speak() {
            self.asked.stream.write_all(&self.kept)?;
        }
        Ok(Settled {
            server: self.asked.stream,
            is_over: self.is_over,
        })
    }

    /// Takes what the program says until the converter does, or it is too late.
    fn listen(&mut self, program: &impl AsFd, until: Instant) -> io::Result<()> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let is_heard = !self.is_over && self.kept.len() < KEPT;
            let [converter, program_speaks] = ready(&self.asked.stream, program, is_heard, left)?;
            if converter || left.is_zero() {
                return Ok(());
            }
            if program_speaks {
                self.take(program);
            }
        }
    }

    /// Takes what the program has to say at this moment.
    fn take(&mut self, program: &impl AsFd) {
        let mut buffer = [0; 4096];
        match rustix::io::read(program, &mut buffer) {
            Ok(len @ 1..) => self.say(&buffer[..len]),
            Err(Errno::INTR | Errno::AGAIN) => {}
            // Whoever carries the answer to a program that is gone hears of that.
            Ok(0) | Err(_) => self.is_over = true,
        }
    }
}

/// Which of the two has something to read, or is gone. `second` counts if it `is_heard`.
fn ready(
    first: &impl AsFd,
    second: &impl AsFd,
    is_heard: bool,
    patience: Duration,
) -> io::Result<[bool; 2]> {
    let mut fds = [
        PollFd::new(first, PollFlags::IN),
        PollFd::new(second, PollFlags::IN),
    ];
    let fds = &mut fds[..if is_heard { 2 } else { 1 }];
    let patience = Timespec::try_from(patience).map_err(io::Error::other)?;
    match poll(fds, Some(&patience)) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    let speaks = |at: usize| fds.get(at).is_some_and(|fd| !fd.revents().is_empty());
    Ok([speaks(0), speaks(1)])
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener};
    use std::thread;

    use super::*;

    const SERVER: &str = "192.0.2.1:80";
    const GRANTED: &[u8] = &[1, 1, 0x22, 0x63];
    const MISSING_COOKIE: &[u8] = &[1, 4, 0x22, 0x63, 30, 3, 3, 0, 1, 2, 3, 4, 5, 6, 7, 8];
    const NOT_AUTHORIZED: &[u8] = &[1, 2, 0x22, 0x63, 30, 1, 32, 0];

    /// What a converter hears on one connection before it answers that, and what it hears then until its end.
    type Talk = (&'static [u8], &'static [u8], &'static [u8]);

    fn converter(talk: Vec<Talk>) -> (SocketAddr, thread::JoinHandle<()>) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let by = listener.local_addr().unwrap();
        let serve = move || {
            for (before, answer, after) in talk {
                let (mut stream, _) = listener.accept().unwrap();
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                let mut message = [0; 4];
                stream.read_exact(&mut message).unwrap();
                let rest = usize::from(message[1]) * 4 - 4;
                let mut heard = vec![0; rest + before.len()];
                stream.read_exact(&mut heard).unwrap();
                assert_eq!(&heard[rest..], before);
                stream.write_all(answer).unwrap();
                let mut heard = Vec::new();
                stream.read_to_end(&mut heard).unwrap();
                assert_eq!(heard, after);
            }
        };
        (by, thread::spawn(serve))
    }

    /// A connection whose converter is taken to have the message with the SYN.
    fn begun(by: SocketAddr) -> Begun {
        let mut begun = Begun::new(Asking::new(by, [SERVER.parse().unwrap()].into())).unwrap();
        begun.asked.is_heard = true;
        begun
    }

    /// A program, and what is read of it.
    fn program() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let program = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (program, listener.accept().unwrap().0)
    }

    #[test]
    fn program_is_heard_before_the_converter_answers() {
        let (by, served) = converter(vec![(b"firstthen", GRANTED, b"last")]);
        let (mut program, read) = program();
        let mut begun = begun(by);
        begun.say(b"first");
        program.write_all(b"then").unwrap();
        let mut settled = begun.settle(Some(&read)).unwrap();
        assert!(!settled.is_over);
        settled.server.write_all(b"last").unwrap();
        drop(settled);
        served.join().unwrap();
    }

    #[test]
    fn end_of_what_a_program_says_is_kept() {
        let (by, served) = converter(vec![(b"all", GRANTED, b"")]);
        let (mut program, read) = program();
        program.write_all(b"all").unwrap();
        program.shutdown(Shutdown::Write).unwrap();
        let mut begun = begun(by);
        // The answer is there before the end, or behind it.
        while !begun.is_over {
            let [_, speaks] = ready(&begun.asked.stream, &read, true, PATIENCE).unwrap();
            if speaks {
                begun.take(&read);
            }
        }
        let settled = begun.settle(Some(&read)).unwrap();
        assert!(settled.is_over);
        drop(settled);
        served.join().unwrap();
    }

    #[test]
    fn connection_with_a_cookie_hears_all_again() {
        // What follows the first answer is nobody's. The second connection has no data in its SYN and has to wait.
        let talk = vec![
            (&b"early"[..], MISSING_COOKIE, &b""[..]),
            (b"", GRANTED, b"early"),
        ];
        let (by, served) = converter(talk);
        let (mut program, read) = program();
        program.write_all(b"early").unwrap();
        let settled = begun(by).settle(Some(&read)).unwrap();
        drop(settled);
        served.join().unwrap();
    }

    #[test]
    fn program_is_not_read_without_a_converter_that_has_the_message() {
        let (by, served) = converter(vec![(b"", GRANTED, b"")]);
        let (mut program, mut read) = program();
        program.write_all(b"later").unwrap();
        let mut begun = begun(by);
        begun.asked.is_heard = false;
        drop(begun.settle(Some(&read)).unwrap());
        let mut later = [0; 5];
        read.read_exact(&mut later).unwrap();
        served.join().unwrap();
    }

    #[test]
    fn refusal_ends_it() {
        let (by, served) = converter(vec![(b"", NOT_AUTHORIZED, b"")]);
        let (_program, read) = program();
        let refused = begun(by).settle(Some(&read)).unwrap_err();
        let told = "the converter does not allow that server; its `allow` and `ports` say which";
        assert_eq!(refused.to_string(), told);
        served.join().unwrap();
    }
}

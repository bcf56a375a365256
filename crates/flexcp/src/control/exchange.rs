//! One client's exchange with a bound on all of it: however it dribbles, its time is up at a moment that is fixed when it
//! comes.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use super::action::{Action, Refusal, VERSION};

/// Reads one request. A client that has not sent all of it in `patience` is cut off.
pub(super) fn request(
    client: &UnixStream,
    patience: Duration,
) -> io::Result<Result<Action, String>> {
    let mut line = Vec::new();
    BufReader::new(Until::from_now(client, patience))
        .take(REQUEST_MAX)
        .read_until(b'\n', &mut line)?;
    Ok(serde_json::from_slice(&line).map_err(|error| format!("not a request: {error}")))
}

/// Writes one answer, which the client has to take in `patience`.
pub(super) fn answer(
    client: &UnixStream,
    answer: Result<Vec<u8>, String>,
    patience: Duration,
) -> io::Result<()> {
    let mut line = match answer {
        Ok(line) => line,
        Err(error) => refusal(error)?,
    };
    line.push(b'\n');
    send(client, &line, patience)
}

/// Writes a piece of an answer, which the client has to take in `patience`.
pub(super) fn send(client: &UnixStream, piece: &[u8], patience: Duration) -> io::Result<()> {
    Until::from_now(client, patience).write_all(piece)
}

/// Tells a client that it is not served, without waiting for it.
pub(super) fn refuse(client: &UnixStream, error: &str) -> io::Result<()> {
    client.set_nonblocking(true)?;
    // Had it to be thrown away unread, the client would be told of a broken connection instead.
    let _ = (&*client).read(&mut [0; 1024]);
    let mut line = refusal(error.into())?;
    line.push(b'\n');
    (&*client).write_all(&line)
}

fn refusal(error: String) -> io::Result<Vec<u8>> {
    Ok(serde_json::to_vec(&Refusal {
        version: VERSION,
        error,
    })?)
}

/// A socket until its time is up.
struct Until<'a> {
    socket: &'a UnixStream,
    end: Instant,
}

impl<'a> Until<'a> {
    fn from_now(socket: &'a UnixStream, patience: Duration) -> Self {
        let end = Instant::now() + patience;
        Self { socket, end }
    }

    /// What is left of the time; never nothing, which would mean for ever.
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(Some(left))
    }
}

impl Read for Until<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.socket.set_read_timeout(self.left()?)?;
        self.socket.read(buffer)
    }
}

impl Write for Until<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.set_write_timeout(self.left()?)?;
        self.socket.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Requests are short; in bytes.
const REQUEST_MAX: u64 = 4096;

//! Who changes rules over the API: one connection for all its requests.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};

/// How long an answer may take: one that waits for the file waits for a second and the disk.
const ANSWERED: Duration = Duration::from_secs(10);

/// A connection to the API.
#[derive(Debug)]
pub(super) struct Caller {
    stream: BufReader<UnixStream>,
}

impl Caller {
    /// A connection to the API behind this socket.
    ///
    /// # Errors
    /// Nobody listens there.
    pub(super) fn open(socket: &Path) -> Result<Self> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(ANSWERED))?;
        Ok(Self {
            stream: BufReader::new(stream),
        })
    }

    /// Sends a request; status and answer.
    ///
    /// # Errors
    /// There is no answer, or it is none of HTTP's with a length.
    pub(super) fn ask(&mut self, method: &str, target: &str, body: &str) -> Result<(u16, String)> {
        let request = format!(
            "{method} {target} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        self.stream.get_mut().write_all(request.as_bytes())?;
        self.answer()
            .with_context(|| format!("the answer to {method} {target}"))
    }

    fn answer(&mut self) -> Result<(u16, String)> {
        let status = self.line()?;
        let code = status.split(' ').nth(1).context("no status")?.parse()?;
        let mut length = None;
        loop {
            let line = self.line()?.to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(value) = line.strip_prefix("content-length:") {
                length = Some(value.trim().parse()?);
            }
        }
        let mut body = vec![0; length.context("it has no length")?];
        self.stream.read_exact(&mut body)?;
        Ok((code, String::from_utf8(body)?))
    }

    /// The next line of the head.
    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        let line = line.strip_suffix("\r\n").context("the answer ends")?;
        Ok(line.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller() -> (UnixStream, Caller) {
        let (far, near) = UnixStream::pair().expect("sockets");
        let caller = Caller {
            stream: BufReader::new(near),
        };
        (far, caller)
    }

    #[test]
    fn answers_are_told_apart_by_their_length() {
        let (mut far, mut caller) = caller();
        far.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 2\r\n\r\n{}HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
            .expect("written");
        assert_eq!(caller.answer().expect("whole"), (400, "{}".into()));
        assert_eq!(caller.answer().expect("whole"), (200, String::new()));
    }

    #[test]
    fn answer_without_length_or_end_is_none() {
        for answer in [
            "HTTP/1.1 200 OK\r\n\r\n",
            "HTTP/1.1 200 OK\r\n",
            "nothing\r\n\r\n",
        ] {
            let (mut far, mut caller) = caller();
            far.write_all(answer.as_bytes()).expect("written");
            drop(far);
            assert!(caller.answer().is_err(), "{answer:?}");
        }
    }
}

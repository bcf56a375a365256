//! The operator's end of the control socket: requests of HTTP/1.1, one behind the other on a connection.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::VERSION;
use super::fault::Fault;

/// What can be asked.
pub mod target {
    /// Answered by [`Stats`](super::super::view::Stats).
    pub const STATS: &str = "/v1/stats";
    /// Answered by [`Status`](super::super::status::Status).
    pub const STATUS: &str = "/v1/status";
    /// Answered by [`Accesses`](super::super::view::Accesses).
    pub const ACCESSES: &str = "/v1/accesses";
    /// Answered by [`Services`](super::super::view::Services).
    pub const SERVICES: &str = "/v1/services";
    /// Answered by [`Servers`](super::super::view::Servers).
    pub const SERVERS: &str = "/v1/servers";
    /// Answered by [`Connections`](super::super::view::Connections), in pieces.
    pub const CONNECTIONS: &str = "/v1/connections";
    /// Answered by an [`Event`](super::super::view::Event) a line.
    pub const EVENTS: &str = "/v1/events";
    /// Answered by [`Rules`](super::super::view::Rules), also when they are set, changed or taken back.
    pub const RULES: &str = "/v1/rules";
    /// Answered by [`MarSet`](super::super::view::MarSet).
    pub const MAR: &str = "/v1/mar";

    /// Answered by [`OneRule`](super::super::view::OneRule).
    #[must_use]
    pub fn rule(name: &str) -> String {
        format!("{RULES}/{}", segment(name))
    }

    /// To tell something about a service's back end; answered by [`OneService`](super::super::view::OneService).
    #[must_use]
    pub fn backend(service: &str, address: &str) -> String {
        let (service, address) = (segment(service), segment(address));
        format!("{SERVICES}/{service}/backends/{address}")
    }

    /// To drain a service, or not any more; answered as [`backend`] is.
    #[must_use]
    pub fn drain(service: &str) -> String {
        format!("{SERVICES}/{}/drain", segment(service))
    }

    /// A segment of a path (RFC 3986 section 3.3): what has a meaning there is escaped, and dots, of which one or two alone
    /// have, too.
    fn segment(text: &str) -> String {
        let mut escaped = String::new();
        for byte in text.bytes() {
            if byte.is_ascii_alphanumeric() || b"-_~:".contains(&byte) {
                escaped.push(char::from(byte));
            } else {
                escaped += &format!("%{byte:02X}");
            }
        }
        escaped
    }
}

/// Whoever asks the FlexCP that listens on a control socket. It keeps its connection from one question to the next.
#[derive(Debug)]
pub struct Client {
    path: PathBuf,
    kept: Option<BufReader<UnixStream>>,
}

/// An answer in the version of the API that we speak.
#[derive(Clone, Debug)]
pub struct Answer(String);

impl Answer {
    /// The line of JSON that was answered.
    #[must_use]
    pub fn line(&self) -> &str {
        &self.0
    }

    /// What it says.
    ///
    /// # Errors
    /// When it is not the answer to what was asked.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_str(&self.0)
    }
}

impl Client {
    /// A client of the control socket `path`, which is opened when something is asked.
    #[must_use]
    pub fn new(path: &Path) -> Self {
        Self {
            path: path.into(),
            kept: None,
        }
    }

    /// Asks for a [`target`].
    ///
    /// # Errors
    /// When FlexCP is not running, doesn't answer, or refuses.
    pub fn ask(&mut self, target: &str) -> Result<Answer, ClientError> {
        let body = self.request(target)?;
        self.answer(body)
    }

    /// Asks for something to be done.
    ///
    /// # Errors
    /// When FlexCP is not running, doesn't answer, or refuses.
    pub fn send(
        &mut self,
        method: &'static str,
        target: &str,
        body: Option<&str>,
    ) -> Result<Answer, ClientError> {
        // On a connection that might be over nobody would know whether it was done.
        self.kept = None;
        let body = self.request_of(&Request {
            method,
            target,
            body,
        })?;
        self.answer(body)
    }

    fn answer(&mut self, mut body: Body) -> Result<Answer, ClientError> {
        let mut answer = String::new();
        let read = body.read_to_string(&mut answer);
        let (head, socket) = body.end();
        self.kept = socket;
        read.map_err(|error| self.broken(error))?;
        judge(head.status, &answer).map_err(|wrong| self.said(wrong))?;
        Ok(Answer(answer.trim_end().into()))
    }

    /// Sends a request, and gives its answer from behind the head on. The connection is kept anew with [`Self::keep`].
    pub(super) fn request(&mut self, target: &str) -> Result<Body, ClientError> {
        self.request_of(&Request {
            method: "GET",
            target,
            body: None,
        })
    }

    fn request_of(&mut self, request: &Request<'_>) -> Result<Body, ClientError> {
        // The daemon hangs up on whoever has not asked for a while.
        if let Some(kept) = self.kept.take()
            && let Ok(body) = exchange(kept, request)
        {
            return Ok(body);
        }
        let socket = self.connect()?;
        exchange(BufReader::new(socket), request).map_err(|error| match error.kind() {
            io::ErrorKind::InvalidData => ClientError::Foreign {
                path: self.path.clone(),
            },
            _ => self.broken(error),
        })
    }

    /// Keeps the connection of an answer that has been read.
    pub(super) fn keep(&mut self, body: Body) {
        self.kept = body.end().1;
    }

    /// The number of the connection that is kept.
    #[cfg(test)]
    pub(super) fn inode(&self) -> Option<u64> {
        let kept = self.kept.as_ref()?;
        Some(rustix::fs::fstat(kept.get_ref()).unwrap().st_ino)
    }

    fn connect(&self) -> Result<UnixStream, ClientError> {
        UnixStream::connect(&self.path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                let path = self.path.clone();
                match flexcp_io::diverting_device() {
                    Some(device) => ClientError::Unreachable { path, device },
                    None => ClientError::NotRunning { path },
                }
            }
            _ => ClientError::Connect {
                path: self.path.clone(),
                error,
            },
        })
    }

    pub(super) fn broken(&self, error: io::Error) -> ClientError {
        ClientError::Broken {
            path: self.path.clone(),
            error,
        }
    }

    pub(super) fn ended(&self) -> ClientError {
        ClientError::Ended {
            path: self.path.clone(),
        }
    }

    pub(super) fn said(&self, wrong: Wrong) -> ClientError {
        match wrong {
            Wrong::Refused(fault) => ClientError::Refused(fault),
            Wrong::Version(answered) => ClientError::Version { answered },
            Wrong::Json(error) => self.broken(error.into()),
        }
    }
}

/// What is asked.
struct Request<'a> {
    method: &'static str,
    target: &'a str,
    body: Option<&'a str>,
}

/// Why an answer is none.
pub(super) enum Wrong {
    Refused(Fault),
    Version(u32),
    Json(serde_json::Error),
}

/// Whether an answer is in our version of the API, and no refusal.
pub(super) fn judge(status: u16, answer: &str) -> Result<(), Wrong> {
    let envelope: Envelope = serde_json::from_str(answer).map_err(Wrong::Json)?;
    envelope.judge(status)
}

/// What every answer has.
#[derive(Default, Deserialize)]
pub(super) struct Envelope {
    /// 0 before it is known.
    pub(super) version: u32,
    pub(super) error: Option<Fault>,
}

impl Envelope {
    /// It is known to be a refusal, or an answer in another version.
    pub(super) const fn says_no(&self) -> bool {
        self.error.is_some() || (self.version != 0 && self.version != VERSION)
    }

    pub(super) fn judge(self, status: u16) -> Result<(), Wrong> {
        match (self.version, self.error) {
            (VERSION, Some(error)) => Err(Wrong::Refused(error)),
            (VERSION, None) if matches!(status, 200 | 201) => Ok(()),
            (VERSION, None) => Err(Wrong::Refused(Fault::new(
                "flexcp",
                &format!("status {status} of HTTP"),
            ))),
            (version, _) => Err(Wrong::Version(version)),
        }
    }
}

/// Sends a request on a connection, and reads the head of its answer.
fn exchange(mut socket: BufReader<UnixStream>, request: &Request<'_>) -> io::Result<Body> {
    let stream = socket.get_mut();
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let Request {
        method,
        target,
        body,
    } = request;
    let mut text = format!("{method} {target} HTTP/1.1\r\nhost: localhost\r\n");
    if let Some(body) = body {
        text += &format!("content-length: {}\r\n\r\n{body}", body.len());
    } else {
        text += "\r\n";
    }
    let asked = stream.write_all(text.as_bytes());
    // A daemon that has no time for us may say so before it is asked.
    match head(&mut socket) {
        Ok(head) => Ok(Body {
            left: head.left,
            head,
            socket,
        }),
        Err(error) => asked.and(Err(error)),
    }
}

/// What stands before an answer's body.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    pub(super) status: u16,
    left: Left,
    /// The daemon hangs up behind it.
    is_last: bool,
}

/// What is to come of a body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Left {
    /// So many bytes.
    Bytes(u64),
    /// So many bytes of a chunk, the end of its line, and more chunks.
    Chunk(u64),
    /// Chunks.
    Chunks,
    Nothing,
}

fn head(socket: &mut BufReader<UnixStream>) -> io::Result<Head> {
    let mut text = Vec::new();
    while !text.ends_with(b"\r\n\r\n") {
        let read = (&mut *socket)
            .take(HEAD - text.len() as u64)
            .read_until(b'\n', &mut text)?;
        if read == 0 {
            return Err(match text.is_empty() {
                true => io::ErrorKind::UnexpectedEof.into(),
                false => io::ErrorKind::InvalidData.into(),
            });
        }
        if text.len() >= b"HTTP/1.".len() && !text.starts_with(b"HTTP/1.") {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
    let mut headers = [httparse::EMPTY_HEADER; 32];
    let mut response = httparse::Response::new(&mut headers);
    let parsed = response.parse(&text);
    let (Ok(httparse::Status::Complete(_)), Some(status)) = (parsed, response.code) else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    let value = |name: &str| {
        let mut of_name = response
            .headers
            .iter()
            .filter(|header| header.name.eq_ignore_ascii_case(name));
        of_name
            .next()
            .and_then(|header| std::str::from_utf8(header.value).ok())
    };
    let length = value("content-length").and_then(|length| length.parse().ok());
    Ok(Head {
        status,
        left: match (value("transfer-encoding"), length) {
            (Some(_), _) => Left::Chunks,
            (None, Some(length)) => Left::Bytes(length),
            (None, None) => return Err(io::ErrorKind::InvalidData.into()),
        },
        is_last: value("connection").is_some_and(|value| value.eq_ignore_ascii_case("close")),
    })
}

/// An answer's body, which is read from the connection.
#[derive(Debug)]
pub(super) struct Body {
    pub(super) head: Head,
    left: Left,
    socket: BufReader<UnixStream>,
}

impl Body {
    /// From here on nothing may come for as long as it likes.
    pub(super) fn wait(&self) -> io::Result<()> {
        self.socket.get_ref().set_read_timeout(None)
    }

    /// The connection, if the answer has been read to its end and another may follow.
    fn end(self) -> (Head, Option<BufReader<UnixStream>>) {
        let goes_on = self.left == Left::Nothing && !self.head.is_last;
        (self.head, goes_on.then_some(self.socket))
    }

    /// The length of the next chunk.
    fn chunk(&mut self) -> io::Result<u64> {
        let line = self.line()?;
        let length = line.split(';').next().unwrap_or_default().trim();
        let length = u64::from_str_radix(length, 16);
        let length = length.map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
        if length == 0 {
            while !self.line()?.is_empty() {}
        }
        Ok(length)
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        (&mut self.socket).take(HEAD).read_line(&mut line)?;
        if !line.ends_with('\n') {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(line.trim_end().into())
    }
}

impl Read for Body {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.left == Left::Chunks {
            self.left = match self.chunk()? {
                0 => Left::Nothing,
                length => Left::Chunk(length),
            };
        }
        let (Left::Bytes(left) | Left::Chunk(left)) = self.left else {
            return Ok(0);
        };
        let read = (&mut self.socket).take(left).read(buffer)?;
        if read == 0 && left > 0 && !buffer.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let left = left - read as u64;
        self.left = match self.left {
            Left::Chunk(_) if left == 0 => {
                self.line()?;
                Left::Chunks
            }
            Left::Chunk(_) => Left::Chunk(left),
            _ if left == 0 => Left::Nothing,
            _ => Left::Bytes(left),
        };
        Ok(read)
    }
}

/// No answer.
#[derive(thiserror::Error, Debug)]
pub enum ClientError {
    /// The exchange broke off.
    #[error("no answer from flexcp on {path}: {error}", path = path.display())]
    Broken {
        /// The socket.
        path: PathBuf,
        /// What happened.
        error: io::Error,
    },
    /// The socket is there and can't be opened.
    #[error("can't open the control socket {path}: {error}", path = path.display())]
    Connect {
        /// The socket.
        path: PathBuf,
        /// The kernel's reason.
        error: io::Error,
    },
    /// It has told all that happened to its end.
    #[error("the flexcp that listened on {path} has ended", path = path.display())]
    Ended {
        /// The socket.
        path: PathBuf,
    },
    /// Whoever listens does not answer in HTTP.
    #[error(
        "what listens on {path} does not speak HTTP; if it is a flexcp of an older version, restart it or use that \
         version's flexcp", path = path.display()
    )]
    Foreign {
        /// The socket.
        path: PathBuf,
    },
    /// Nobody listens.
    #[error(
        "flexcp is not running: nobody listens on the control socket {path}; if it has another one, \
         name it with --socket or --config", path = path.display()
    )]
    NotRunning {
        /// The socket.
        path: PathBuf,
    },
    /// Nobody listens, and yet one is running.
    #[error(
        "flexcp is running here with the device {device}, but nobody listens on the control socket {path}: name the \
         one it has with --socket or --config, or restart it if that file was removed", path = path.display()
    )]
    Unreachable {
        /// The socket.
        path: PathBuf,
        /// The running FlexCP's device.
        device: String,
    },
    /// The daemon can't carry it out.
    #[error("flexcp refuses: {0}")]
    Refused(Fault),
    /// The daemon is another version.
    #[error(
        "the running flexcp answers in version {answered} of the API, and this is version {VERSION}; use the same version of both"
    )]
    Version {
        /// What it said.
        answered: u32,
    },
}

/// For an answer, or for the next piece of one: of a million connections the first that a filter fits may stand last.
const PATIENCE: Duration = Duration::from_secs(20);

/// Of an answer's head, or a line between chunks, at most; in bytes.
const HEAD: u64 = 16 << 10;

//! The operator's end of the control socket.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::action::{Action, VERSION};

/// An answer in the version of the protocol that we speak.
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

/// Asks the FlexCP that listens on the control socket `path`.
///
/// # Errors
/// When it is not running, doesn't answer, or refuses.
pub fn ask(path: &Path, action: &Action) -> Result<Answer, ClientError> {
    let broken = |error| ClientError::Broken {
        path: path.into(),
        error,
    };
    let socket = connect(path)?;
    let asked = send(&socket, action);
    let mut answer = String::new();
    let read = BufReader::new(&socket).read_line(&mut answer);
    read.map_err(broken)?;
    // A daemon that has no time for us may say so before it is asked.
    if answer.is_empty() {
        asked.map_err(broken)?;
        return Err(broken(io::ErrorKind::UnexpectedEof.into()));
    }
    let envelope: Envelope = serde_json::from_str(&answer).map_err(|error| broken(error.into()))?;
    envelope.judge()?;
    Ok(Answer(answer.trim_end().into()))
}

/// Opens the control socket `path`.
pub(super) fn connect(path: &Path) -> Result<UnixStream, ClientError> {
    UnixStream::connect(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            let path = path.into();
            match flexcp_io::diverting_device() {
                Some(device) => ClientError::Unreachable { path, device },
                None => ClientError::NotRunning { path },
            }
        }
        _ => ClientError::Connect {
            path: path.into(),
            error,
        },
    })
}

/// Sends a request, whose answer is to come in a bounded time.
pub(super) fn send(mut socket: &UnixStream, action: &Action) -> io::Result<()> {
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.set_write_timeout(Some(PATIENCE))?;
    let mut request = serde_json::to_vec(action)?;
    request.push(b'\n');
    socket.write_all(&request)
}

/// What every answer has.
#[derive(Default, Deserialize)]
pub(super) struct Envelope {
    /// 0 before it is known.
    pub(super) version: u32,
    pub(super) error: Option<String>,
}

impl Envelope {
    /// It is known to be a refusal, or an answer in another version.
    pub(super) const fn says_no(&self) -> bool {
        self.error.is_some() || (self.version != 0 && self.version != VERSION)
    }

    /// Whether it is an answer in our version of the protocol, and no refusal.
    pub(super) fn judge(self) -> Result<(), ClientError> {
        match (self.version, self.error) {
            (VERSION, None) => Ok(()),
            (VERSION, Some(error)) => Err(ClientError::Refused(error)),
            (version, _) => Err(ClientError::Version { answered: version }),
        }
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
    Refused(String),
    /// The daemon is another version.
    #[error(
        "the running flexcp answers in version {answered} of the protocol, and this is version {VERSION}; use the same version of both"
    )]
    Version {
        /// What it said.
        answered: u32,
    },
}

/// For an answer, or for the next piece of one: of a million connections the first that a filter fits may stand last.
const PATIENCE: Duration = Duration::from_secs(20);

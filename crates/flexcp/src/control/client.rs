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
pub fn ask(path: &Path, action: Action) -> Result<Answer, ClientError> {
    let socket = UnixStream::connect(path).map_err(|error| match error.kind() {
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
    })?;
    let broken = |error| ClientError::Broken {
        path: path.into(),
        error,
    };
    let answer = exchange(&socket, action).map_err(broken)?;
    let envelope: Envelope = serde_json::from_str(&answer).map_err(|error| broken(error.into()))?;
    match envelope {
        Envelope {
            version: VERSION,
            error: None,
        } => Ok(Answer(answer.trim_end().into())),
        Envelope {
            version: VERSION,
            error: Some(error),
        } => Err(ClientError::Refused(error)),
        Envelope { version, .. } => Err(ClientError::Version { answered: version }),
    }
}

/// What every answer has.
#[derive(Deserialize)]
struct Envelope {
    version: u32,
    error: Option<String>,
}

fn exchange(mut socket: &UnixStream, action: Action) -> io::Result<String> {
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.set_write_timeout(Some(PATIENCE))?;
    let mut request = serde_json::to_vec(&action)?;
    request.push(b'\n');
    let asked = socket.write_all(&request);
    let mut answer = String::new();
    BufReader::new(socket).read_line(&mut answer)?;
    // A daemon that has no time for us may say so before it is asked.
    if answer.is_empty() {
        asked.and_then(|()| Err(io::ErrorKind::UnexpectedEof.into()))
    } else {
        Ok(answer)
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

/// A daemon with a million connections takes a while to list them.
const PATIENCE: Duration = Duration::from_secs(20);

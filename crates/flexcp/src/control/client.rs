//! The operator's end of the control socket.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use super::action::{Action, VERSION};

/// Asks the FlexCP that listens on the control socket `path`; gives its answer as it is.
///
/// # Errors
/// When it is not running, doesn't answer, or refuses.
pub fn ask(path: &Path, action: Action) -> Result<Value, ClientError> {
    let socket = UnixStream::connect(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            ClientError::NotRunning { path: path.into() }
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
    let answer: Value = serde_json::from_str(&answer).map_err(|error| broken(error.into()))?;
    if let Some(error) = answer["error"].as_str() {
        return Err(ClientError::Refused(error.into()));
    }
    if answer["version"] != VERSION {
        return Err(ClientError::Version {
            answered: answer["version"].to_string(),
        });
    }
    Ok(answer)
}

fn exchange(mut socket: &UnixStream, action: Action) -> io::Result<String> {
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.set_write_timeout(Some(PATIENCE))?;
    let mut request = serde_json::to_vec(&action)?;
    request.push(b'\n');
    socket.write_all(&request)?;
    let mut answer = String::new();
    socket.read_to_string(&mut answer)?;
    Ok(answer)
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
    /// The daemon can't carry it out.
    #[error("flexcp refuses: {0}")]
    Refused(String),
    /// The daemon is another version.
    #[error(
        "the running flexcp answers in version {answered} of the protocol, and this is version {VERSION}; use the same version of both"
    )]
    Version {
        /// What it said.
        answered: String,
    },
}

/// A daemon with a million connections takes a while to list them.
const PATIENCE: Duration = Duration::from_secs(20);

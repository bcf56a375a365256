//! Binding the control socket.

use std::io;
use std::net::SocketAddr;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::Mode;
use tokio::sync::oneshot;

use super::gate::TokenError;

/// Binds the socket `path`, which the daemon's own user alone may open.
pub(super) fn unix(path: &Path) -> Result<UnixListener, BindError> {
    let wrong = |error| BindError::Bind {
        path: path.into(),
        error,
    };
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory).map_err(|error| BindError::Directory {
            path: directory.into(),
            error,
        })?;
    }
    let listener = match bind_private(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            if UnixStream::connect(path).is_ok() {
                return Err(BindError::Busy { path: path.into() });
            }
            // Nobody answers: what a crashed daemon left. Only a socket is removed.
            if !is_socket(path) {
                return Err(BindError::NotASocket { path: path.into() });
            }
            std::fs::remove_file(path).map_err(wrong)?;
            bind_private(path).map_err(wrong)?
        }
        other => other.map_err(wrong)?,
    };
    listener.set_nonblocking(true).map_err(wrong)?;
    Ok(listener)
}

/// Binds the TCP address `listen`.
pub(super) fn tcp(listen: SocketAddr) -> Result<std::net::TcpListener, BindError> {
    let bound = std::net::TcpListener::bind(listen).and_then(|listener| {
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    bound.map_err(|error| BindError::Listen { listen, error })
}

/// Removes the socket's file when dropped, and ends the thread that serves.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// The thread ends when this goes.
    _serving: oneshot::Sender<()>,
}

impl SocketFile {
    pub(super) const fn new(path: PathBuf, serving: oneshot::Sender<()>) -> Self {
        Self {
            path,
            _serving: serving,
        }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // It may be gone already, and there is nobody to tell.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Binds `path` so that it is never open to others, not even for a moment: the file gets the mode
/// that the socket has.
fn bind_private(path: &Path) -> io::Result<UnixListener> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

    let address = SocketAddrUnix::new(path)?;
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

fn is_socket(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    std::fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket())
}

/// The control socket can't be bound.
#[derive(thiserror::Error, Debug)]
pub enum BindError {
    /// The kernel refuses.
    #[error("can't bind the control socket {path}: {error}", path = path.display())]
    Bind {
        /// The socket.
        path: PathBuf,
        /// The kernel's reason.
        error: io::Error,
    },
    /// Another FlexCP answers there.
    #[error(
        "another flexcp is running: it answers on the control socket {path}; stop it, or give this \
         one a network namespace and a [control] section of its own", path = path.display()
    )]
    Busy {
        /// The socket.
        path: PathBuf,
    },
    /// The socket's directory can't be made.
    #[error("can't make the directory {path} for the control socket: {error}", path = path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The kernel's reason.
        error: io::Error,
    },
    /// The address of TCP can't be bound.
    #[error("can't listen on {listen} (`listen` in [control]): {error}")]
    Listen {
        /// The address.
        listen: SocketAddr,
        /// The kernel's reason.
        error: io::Error,
    },
    /// Something else has that name.
    #[error("can't bind the control socket {path}: a file of that name is in the way", path = path.display())]
    NotASocket {
        /// The file.
        path: PathBuf,
    },
    /// There is nothing to run the thread with.
    #[error("can't start the thread of the control socket: {0}")]
    Runtime(io::Error),
    /// The token of TCP is no good.
    #[error(transparent)]
    Token(#[from] TokenError),
}

/// Requests that may wait for their turn.
const BACKLOG: i32 = 128;

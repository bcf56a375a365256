//! The daemon's end of the control socket.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use flexcp_translator::Causes;
use rustix::fs::Mode;
use tracing::{debug, warn};

use super::action::{Action, Refusal, VERSION};
use super::view::{Connections, Numbers, Stats};
use crate::watch::StatusHandle;
use crate::worker::{Gone, Unaccounted, WorkerHandle};
use flexcp_io::Reasons;

/// The bound control socket.
#[derive(Debug)]
pub struct Control {
    listener: UnixListener,
}

/// What a service is called in answers.
#[derive(Clone, Debug)]
pub struct Named {
    /// Its name.
    pub name: String,
    /// Its mode's name.
    pub mode: &'static str,
}

/// Who knows the answers.
pub struct Asked {
    /// About packets and connections.
    pub workers: Vec<WorkerHandle>,
    /// What the offload's programs have counted; `None` without them.
    pub offload: Option<Reasons>,
    /// About the kernel.
    pub watch: StatusHandle,
    /// What services are called.
    pub services: Vec<Named>,
}

impl Control {
    /// Binds the socket `path`, which the daemon's own user alone may open. Its file goes away with
    /// the second value: the thread that [serves](Self::serve) ends only with the process.
    ///
    /// # Errors
    /// When another FlexCP answers there, or the kernel refuses.
    pub fn bind(path: &Path) -> Result<(Self, SocketFile), BindError> {
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
        Ok((Self { listener }, SocketFile(path.into())))
    }

    /// Answers requests for as long as the process lives, or until `accept` fails.
    pub fn serve(self, asked: &Asked) {
        for client in self.listener.incoming() {
            match client {
                Ok(client) => {
                    if let Err(error) = answer(&client, asked) {
                        debug!("control: {error}");
                    }
                }
                Err(error) => {
                    warn!("the control socket takes no more requests: {error}");
                    return;
                }
            }
        }
    }
}

/// Removes the socket's file when dropped.
#[derive(Debug)]
pub struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // It may be gone already, and there is nobody to tell.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Reads one request and writes one answer.
fn answer(client: &UnixStream, asked: &Asked) -> io::Result<()> {
    client.set_read_timeout(Some(PATIENCE))?;
    client.set_write_timeout(Some(PATIENCE))?;
    let mut line = Vec::new();
    BufReader::new(client)
        .take(REQUEST_MAX)
        .read_until(b'\n', &mut line)?;
    let answer = match serde_json::from_slice(&line) {
        Ok(action) => carry_out(action, asked),
        Err(error) => Err(format!("not a request: {error}")),
    };
    let mut answer = match answer {
        Ok(answer) => answer,
        Err(error) => serde_json::to_vec(&Refusal {
            version: VERSION,
            error,
        })?,
    };
    answer.push(b'\n');
    (&*client).write_all(&answer)
}

fn carry_out(action: Action, asked: &Asked) -> Result<Vec<u8>, String> {
    let answer = match action {
        Action::Stats => stats(asked)
            .map_err(|error| error.to_string())
            .map(|stats| serde_json::to_vec(&stats)),
        Action::Connections => connections(&asked.workers, &asked.services)
            .map_err(|error| error.to_string())
            .map(|connections| serde_json::to_vec(&connections)),
        Action::Status => (asked.watch.status())
            .map_err(|error| error.to_string())
            .map(|status| serde_json::to_vec(&status)),
    };
    answer?.map_err(|error| error.to_string())
}

fn stats(asked: &Asked) -> Result<Stats, Gone> {
    let [mut counters, mut drops, mut carrier, mut offload] = [const { Numbers(Vec::new()) }; 4];
    let [mut unaccounted, mut gauges] = [const { Numbers(Vec::new()) }; 2];
    let mut causes = BTreeMap::new();
    for worker in &asked.workers {
        let snapshot = worker.stats()?;
        counters.add(snapshot.counters.iter());
        drops.add(snapshot.drops.iter());
        add_causes(&mut causes, &snapshot.counters.causes);
        carrier.add(snapshot.carrier.iter());
        unaccounted.add(Unaccounted::of(&snapshot).iter());
        gauges.add(snapshot.gauges.iter());
        let beside = [
            ("kept", snapshot.kept),
            ("claimed_flows", snapshot.claimed_flows),
        ];
        gauges.add(beside.into_iter());
    }
    let count = |numbers: &Numbers, name| numbers.get(name).unwrap_or_default();
    let in_rings = count(&carrier, "handed_over").saturating_sub(count(&carrier, "taken_over"));
    gauges.add([("in_rings", in_rings)].into_iter());
    if let Some(reasons) = &asked.offload {
        offload.add(reasons.counts().into_iter());
        gauges.add(reasons.held().into_iter());
    }
    let connections = count(&counters, "connections_opened")
        .saturating_sub(count(&counters, "connections_closed"));
    Ok(Stats {
        version: VERSION,
        counters,
        drops,
        causes,
        carrier,
        offload,
        unaccounted,
        gauges,
        // While all is taken back the watcher is gone.
        offload_notes: asked
            .watch
            .status()
            .map_or_else(|_| Vec::new(), |status| status.offload),
        connections,
    })
}

/// Adds one worker's decisions, grouped.
fn add_causes(groups: &mut BTreeMap<String, Numbers>, causes: &Causes) {
    for (decision, cause, count) in causes.iter() {
        let group = groups.entry(decision.into());
        let group = group.or_insert_with(|| Numbers(Vec::new()));
        group.add([(cause, count)].into_iter());
    }
}

fn connections(workers: &[WorkerHandle], services: &[Named]) -> Result<Connections, Gone> {
    let mut views = Vec::new();
    for worker in workers {
        views.extend(worker.connections()?);
    }
    Ok(Connections::new(views, services))
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
    /// Something else has that name.
    #[error("can't bind the control socket {path}: a file of that name is in the way", path = path.display())]
    NotASocket {
        /// The file.
        path: PathBuf,
    },
}

/// How long a client may take to ask or to read its answer; others wait for it meanwhile.
const PATIENCE: Duration = Duration::from_secs(2);

/// Requests that may wait for their turn.
const BACKLOG: i32 = 16;

/// Requests are short.
const REQUEST_MAX: u64 = 4096;

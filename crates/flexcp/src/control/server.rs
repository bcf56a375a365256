//! The daemon's end of the control socket.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, Scope};
use std::time::{Duration, Instant};

use flexcp_translator::{Causes, ConnectionView, Cursor, Filter, ServiceId};
use rustix::fs::Mode;
use serde::Serialize;
use tracing::{debug, warn};

use super::action::{Action, VERSION, Wanted};
use super::places::Places;
use super::view::{Connection, Connections, Numbers, Stats};
use super::{accesses, events, exchange, listing};
use crate::watch::StatusHandle;
use crate::worker::{Page, Unaccounted, WorkerHandle};
use flexcp_io::Reasons;

/// The bound control socket.
#[derive(Debug)]
pub struct Control {
    listener: UnixListener,
}

/// What a service is called in answers.
#[derive(Clone, Debug)]
pub struct Named {
    /// Its id.
    pub id: ServiceId,
    /// Its name.
    pub name: String,
    /// Its mode's name.
    pub mode: &'static str,
}

/// What things are called that have numbers inside.
#[derive(Clone, Default, Debug)]
pub struct Names {
    /// The services, those that are drained too.
    pub services: Vec<Named>,
    /// The accesses, in their order.
    pub accesses: Vec<String>,
}

/// Who knows the answers.
pub struct Asked {
    /// About packets and connections.
    pub workers: Vec<WorkerHandle>,
    /// What the offload's programs have counted; `None` without them.
    pub offload: Option<Reasons>,
    /// About the kernel.
    pub watch: StatusHandle,
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

    /// Answers requests for as long as the process lives, a bounded number of clients at a time. Nothing that a client
    /// does or omits delays another, and no error of `accept` is the end.
    pub fn serve(self, asked: &Asked) {
        let daemon = Daemon {
            asked,
            clients: AtomicUsize::new(0),
            listings: Places::new(LISTINGS),
            listeners: Places::new(LISTENERS),
        };
        thread::scope(|scope| {
            let mut said: Option<Instant> = None;
            loop {
                match self.listener.accept() {
                    Ok((client, _)) => daemon.admit(scope, client),
                    // A client waits in the backlog until there is, say, a file descriptor for it.
                    Err(error) => {
                        if said.is_none_or(|said| said.elapsed() > SILENCE) {
                            warn!("control: can't take a request now: {error}; tries again");
                            said = Some(Instant::now());
                        }
                        thread::sleep(PAUSE);
                    }
                }
            }
        });
    }
}

/// What clients are answered from.
struct Daemon<'a> {
    asked: &'a Asked,
    /// That are being served.
    clients: AtomicUsize,
    /// Those of them that are being told the connections, which may be many.
    listings: Places,
    /// Those of them that are being told what happens.
    listeners: Places,
}

impl Daemon<'_> {
    /// Serves `client` on a thread of its own, or tells it that there are too many.
    fn admit<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>, client: UnixStream) {
        let client = Arc::new(client);
        // This thread alone adds.
        let among_them = self.clients.fetch_add(1, Ordering::Relaxed) < CLIENTS;
        let served = Arc::clone(&client);
        let thread = thread::Builder::new()
            .name("control".into())
            .stack_size(STACK);
        let spawned = among_them.then(|| {
            thread.spawn_scoped(scope, move || {
                if let Err(error) = self.serve(&served) {
                    debug!("control: {error}");
                }
                self.clients.fetch_sub(1, Ordering::Relaxed);
            })
        });
        let refusal = match spawned {
            Some(Ok(_)) => return,
            Some(Err(error)) => format!("no thread to answer on: {error}; ask again later"),
            None => format!("{CLIENTS} clients are being served already; ask again later"),
        };
        self.clients.fetch_sub(1, Ordering::Relaxed);
        if let Err(error) = exchange::refuse(&client, &refusal) {
            debug!("control: {error}");
        }
    }

    fn serve(&self, client: &UnixStream) -> io::Result<()> {
        let answer = match exchange::request(client, PATIENCE)? {
            Ok(Action::Stats) => stats(self.asked).and_then(json),
            Ok(Action::Status) => {
                let status = self.asked.watch.status();
                status.map_err(|gone| gone.to_string()).and_then(json)
            }
            Ok(Action::Accesses) => match self.listings.take(TURN) {
                Some(_place) => accesses::sums(self.asked).and_then(json),
                None => Err(full()),
            },
            Ok(Action::Connections(wanted)) => match self.list(&wanted, client) {
                Ok(told) => return told,
                Err(error) => Err(error),
            },
            Ok(Action::Events) => match self.listeners.take(Duration::ZERO) {
                Some(_place) => return events::tell(self.asked, client),
                None => Err(format!(
                    "{LISTENERS} clients are listening already; end one of them"
                )),
            },
            Err(error) => Err(error),
        };
        exchange::answer(client, answer, PATIENCE)
    }

    /// Tells the connections, or says why not.
    fn list(&self, wanted: &Wanted, client: &UnixStream) -> Result<io::Result<()>, String> {
        let names = self.asked.watch.names();
        let names = names.map_err(|gone| gone.to_string())?;
        let filter = wanted.filter(&names)?;
        let Some(_place) = self.listings.take(TURN) else {
            return Err(full());
        };
        Ok(listing::tell(self.asked, &names, filter, client))
    }
}

fn full() -> String {
    format!("{LISTINGS} clients are being told the connections already; ask again later")
}

fn json(answer: impl Serialize) -> Result<Vec<u8>, String> {
    serde_json::to_vec(&answer).map_err(|error| error.to_string())
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

pub(crate) fn stats(asked: &Asked) -> Result<Stats, String> {
    let [mut counters, mut drops, mut carrier, mut offload] = [const { Numbers(Vec::new()) }; 4];
    let [mut unaccounted, mut gauges] = [const { Numbers(Vec::new()) }; 2];
    let mut causes = BTreeMap::new();
    let mut memory_budget = 0;
    for worker in &asked.workers {
        let snapshot = worker.stats().map_err(|gone| gone.to_string())?;
        counters.add(snapshot.counters.iter());
        drops.add(snapshot.drops.iter());
        add_causes(&mut causes, &snapshot.counters.causes);
        carrier.add(snapshot.carrier.iter());
        unaccounted.add(Unaccounted::of(&snapshot).iter());
        gauges.add(snapshot.gauges.iter());
        memory_budget += snapshot.memory_budget;
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
        memory_budget,
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

/// The connections that there are, all at once.
pub(crate) fn all_connections(asked: &Asked) -> Result<Connections, String> {
    let names = asked.watch.names().map_err(|gone| gone.to_string())?;
    let mut connections = Vec::new();
    each_connection(asked, |view| {
        connections.push(Connection::new(view, &names));
    })?;
    Ok(Connections {
        version: VERSION,
        connections,
    })
}

/// Goes through the connections of all workers, a page at a time.
pub(super) fn each_connection(
    asked: &Asked,
    mut each: impl FnMut(ConnectionView),
) -> Result<(), String> {
    let filter = Arc::new(Filter::default());
    let mut page = Page::default();
    for worker in &asked.workers {
        page.next = Some(Cursor::default());
        while let Some(from) = page.next {
            let answer = worker.page(from, &filter, page);
            page = answer.map_err(|gone| gone.to_string())?;
            page.views.drain(..).for_each(&mut each);
        }
    }
    Ok(())
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

/// Clients that are served at a time.
const CLIENTS: usize = 64;

/// How long a client may take to ask, and to take a short answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// Clients of those that are told the connections at a time: others have room beside slow ones.
const LISTINGS: usize = 8;

/// Clients of those that are told what happens.
const LISTENERS: usize = 8;

/// How long a client waits for its turn to be told the connections.
const TURN: Duration = Duration::from_secs(5);

/// Between two tries.
const PAUSE: Duration = Duration::from_millis(50);

/// Between two lines of the log about the same.
const SILENCE: Duration = Duration::from_secs(60);

/// Of a thread that serves a client, in bytes.
const STACK: usize = 256 << 10;

/// Requests that may wait for their turn.
const BACKLOG: i32 = 128;

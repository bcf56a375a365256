//! The relay's thread: accepts clients, calls a back end for each, carries bytes until one end is done, and does what it is told.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use flexcp_translator::{
    Admission, BackendView, Config, EndCause, EventKind, MarkReason, ServiceId,
};
use rustix::net::sockopt;
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::{AbortHandle, LocalSet};
use tokio::time::sleep;
use tracing::{debug, info, warn};

use super::ahead::{self, Called};
use super::carry::{self, Counted, Pool};
use super::connections::{Connections, Ends, Live};
use super::guest::{self, Guest, Heard, Visit};
use super::servers::{self, Servers};
use super::tally::{Tally, count};
use super::{Order, Told};
use crate::denied::Denied;
use crate::names::WAITING;
use crate::worker::now;

/// After an error of `accept` that is no client's, such as when there are no file descriptors.
const PAUSE: Duration = Duration::from_millis(100);
/// Back ends that a client waits for at most.
const MOST_TRIED: usize = 8;

/// What all connections use.
pub(super) struct Shared {
    pub(super) tally: Arc<Tally>,
    /// Whom clients may name that name their server.
    pub(super) admission: RefCell<Admission>,
    pub(super) denied: RefCell<Denied>,
    /// Room for names that are being resolved, or wait for that.
    pub(super) lookups: Arc<Semaphore>,
    /// Servers that clients have named in their SYNs.
    pub(super) called: Called,
    pool: Pool,
    idle: Cell<Duration>,
    room: Cell<u64>,
    servers: RefCell<HashMap<ServiceId, Servers>>,
    /// Services by where their clients come in.
    ends: RefCell<HashMap<SocketAddr, ServiceId>>,
    /// What is there.
    connections: Rc<Connections>,
}

/// Serves until it is told to end, or nobody can tell it anything any more.
pub(super) fn serve(
    runtime: &Runtime,
    mut orders: mpsc::UnboundedReceiver<Order>,
    (tally, cookie_secret): (&Arc<Tally>, [u8; 32]),
) {
    let shared = Rc::new(Shared {
        tally: Arc::clone(tally),
        admission: RefCell::new(Admission::new(Config::default(), cookie_secret)),
        denied: RefCell::default(),
        lookups: Arc::new(Semaphore::new(WAITING)),
        called: Called::default(),
        pool: Pool::default(),
        idle: Cell::default(),
        room: Cell::default(),
        connections: Rc::new(Connections::new(Arc::clone(tally))),
        servers: RefCell::default(),
        ends: RefCell::default(),
    });
    let all = LocalSet::new();
    all.block_on(runtime, async {
        let mut listeners = HashMap::new();
        tokio::task::spawn_local(ahead::forget(Rc::clone(&shared)));
        while let Some(order) = orders.recv().await {
            match order {
                Order::Change(told, new) => change(&shared, &mut listeners, &told, new),
                // Who asked may be gone.
                Order::List(answer) => {
                    let _ = answer.try_send(shared.connections.views());
                }
                Order::Close(id, answer) => {
                    let _ = answer.try_send(shared.connections.close(id));
                }
                Order::Backends(answer) => {
                    let _ = answer.try_send(shared.backends());
                }
                Order::Listen(listener) => shared.connections.add_listener(listener),
                Order::EndServices(services) => shared.connections.end(&services),
                Order::Call(ahead, whose) => ahead::call(&shared, ahead, whose),
                Order::Host(addrs) => shared.admission.borrow_mut().set_host_addresses(addrs),
                Order::End => break,
            }
        }
    });
    // Connections are dropped with it: each resets its ends.
    drop(all);
}

/// Goes by `told`, and listens at `new`, too.
fn change(
    shared: &Rc<Shared>,
    listeners: &mut HashMap<SocketAddr, AbortHandle>,
    told: &Told,
    new: Vec<(SocketAddr, TcpListener)>,
) {
    let ends = told.ends().into_iter();
    let ends: HashMap<_, _> = ends.map(|(end, service)| (end, service.id)).collect();
    listeners.retain(|end, listener| {
        let stays = ends.contains_key(end);
        if !stays {
            info!("split: listens on {end} no more");
            listener.abort();
        }
        stays
    });
    *shared.ends.borrow_mut() = ends;
    shared.admission.borrow_mut().configure(told.config.clone());
    shared.idle.set(told.idle);
    shared
        .room
        .set(u64::try_from(told.room).unwrap_or(u64::MAX));
    let mut servers = shared.servers.borrow_mut();
    let old = std::mem::take(&mut *servers);
    let services = told.services.iter();
    servers.extend(services.map(|service| {
        let known = old.get(&service.id);
        (service.id, Servers::new(service, known))
    }));
    for (end, listener) in new {
        match tokio::net::TcpListener::from_std(listener) {
            Ok(listener) => {
                let accepts = accept_all(Rc::clone(shared), end, listener);
                let task = tokio::task::spawn_local(accepts);
                listeners.insert(end, task.abort_handle());
            }
            Err(error) => warn!("split: {end}: {error}"),
        }
    }
}

/// Takes every client that comes to `end`.
async fn accept_all(shared: Rc<Shared>, end: SocketAddr, listener: tokio::net::TcpListener) {
    loop {
        match listener.accept().await {
            Ok((client, addr)) => {
                let service = shared.ends.borrow().get(&end).copied();
                let client = Ends::new(client, (addr, end), service, &shared.connections);
                if shared.tally.open() > shared.room.get() {
                    count(&shared.tally.refused_room);
                    continue;
                }
                let live = Rc::clone(&client.live);
                let task = tokio::task::spawn_local(relay(client, Rc::clone(&shared)));
                live.set_task(task.abort_handle());
            }
            Err(error) => {
                debug!("split: {end}: {error}");
                if !is_of_client(&error) {
                    sleep(PAUSE).await;
                }
            }
        }
    }
}

/// The client has gone before it was accepted, and the next may be there.
fn is_of_client(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::ConnectionAborted
}

async fn relay(mut ends: Ends, shared: Rc<Shared>) {
    let Some(service) = ends.live.service else {
        return;
    };
    let end = match serve_client(&mut ends, &shared, service).await {
        Ok(end) => end,
        Err(error) => {
            debug!("split: {}: {error}", ends.live.client);
            of_error(&error)
        }
    };
    ends.over(end);
}

/// A kept-alive end that does not answer is as good as gone.
fn of_error(error: &io::Error) -> EndCause {
    match error.kind() {
        io::ErrorKind::TimedOut => EndCause::Idle,
        _ => EndCause::Reset,
    }
}

/// Connects the client with a server, and carries bytes until both ends have come to their end. Unless that is how it ends, it is to
/// be reset.
async fn serve_client(
    ends: &mut Ends,
    shared: &Rc<Shared>,
    service: ServiceId,
) -> io::Result<EndCause> {
    let live = Rc::clone(&ends.live);
    prepare(&ends.client, shared.idle.get());
    let dialogue = shared.admission.borrow().dialogue(service);
    // Its place among its client's connections, for as long as it has one.
    let visit;
    let (server, addr, first) = if let Some(dialogue) = dialogue {
        visit = match Visit::begin(shared, service, &live) {
            Some(visit) => visit,
            None => return Ok(EndCause::Reset),
        };
        let guest = Guest {
            visit: &visit,
            client: &ends.client,
            live: &live,
            service,
            dialogue,
        };
        match guest.hear().await? {
            Heard::Connected(server, addr, first) => (server, addr, first),
            Heard::Told => return Ok(EndCause::Finished),
            Heard::Reset => return Ok(EndCause::Reset),
        }
    } else {
        // The kernel repeats a SYN, and other back ends may be tried: nobody is called by who may be anybody.
        guest::proved(&ends.client).await?;
        let Some((server, addr)) = shared.call(service).await else {
            count(&shared.tally.refused_server);
            debug!("split: {}: no back end answers", live.client);
            return Ok(EndCause::Reset);
        };
        (
            server,
            addr,
            shared.header(service, &live).unwrap_or_default(),
        )
    };
    prepare(&server, shared.idle.get());
    let both = ends.connected(server, addr)?;
    carry::say(both.1, &first).await?;
    carry_both(both, shared, &live).await?;
    Ok(EndCause::Finished)
}

async fn carry_both(
    (client, server): (&TcpStream, &TcpStream),
    shared: &Shared,
    live: &Live,
) -> io::Result<()> {
    let (tally, pool) = (&shared.tally, &shared.pool);
    let counted = Counted {
        bytes: [&tally.bytes_up, &live.up],
        last: &live.last,
    };
    let up = carry::carry(client, server, pool, counted);
    let counted = Counted {
        bytes: [&tally.bytes_down, &live.down],
        last: &live.last,
    };
    let down = carry::carry(server, client, pool, counted);
    carry::both(up, down).await
}

/// Bytes go on at once, and an end that is silent for long is asked whether it is there.
fn prepare(socket: &TcpStream, idle: Duration) {
    // A socket that can't is none the worse.
    let _ = socket.set_nodelay(true);
    let _ = sockopt::set_socket_keepalive(socket, true);
    let _ = sockopt::set_tcp_keepidle(socket, idle.min(MOST_IDLE));
}

/// What the kernel takes for TCP_KEEPIDLE.
const MOST_IDLE: Duration = Duration::from_secs(32_767);

impl Shared {
    /// What a back end of the service is told of the client.
    fn header(&self, service: ServiceId, live: &Live) -> Option<Vec<u8>> {
        let servers = self.servers.borrow();
        servers.get(&service)?.header(live.client, live.local)
    }

    /// The address of the service towards a server.
    pub(super) fn source(&self, service: ServiceId, addr: SocketAddr) -> Option<IpAddr> {
        let servers = self.servers.borrow();
        servers.get(&service)?.source(addr)
    }

    /// Whether another connection finds room.
    pub(super) fn has_room(&self) -> bool {
        self.tally.open() < self.room.get()
    }

    /// The back ends as the relay has found them.
    fn backends(&self) -> Vec<BackendView> {
        let servers = self.servers.borrow();
        let each = servers.iter();
        let views = each.flat_map(|(&service, servers)| servers.views(service));
        let mut views: Vec<BackendView> = views.collect();
        for view in &mut views {
            view.connections = self.connections.with(view.service, view.addr);
        }
        views
    }

    /// A back end of the service that answers.
    async fn call(&self, service: ServiceId) -> Option<(TcpStream, SocketAddr)> {
        let mut tried = Vec::new();
        while tried.len() < MOST_TRIED {
            let (backend, source) = {
                let mut servers = self.servers.borrow_mut();
                servers.get_mut(&service)?.next(now(), &tried)?
            };
            let answer = servers::connect((backend, source), servers::PATIENCE).await;
            let failed = answer.as_ref().err().map(servers::reason);
            self.note(service, backend, failed);
            match answer {
                Ok(server) => return Some((server, backend)),
                Err(error) => debug!("split: back end {backend}: {error}"),
            }
            count(&self.tally.server_skipped);
            tried.push(backend);
        }
        None
    }

    /// Whether a back end answers, as it has turned out.
    fn note(&self, service: ServiceId, backend: SocketAddr, failed: Option<MarkReason>) {
        let mut servers = self.servers.borrow_mut();
        let of_service = servers.get_mut(&service);
        if !of_service.is_some_and(|of_service| of_service.note(backend, failed, now())) {
            return;
        }
        self.connections.tell(service, || match failed {
            Some(reason) => EventKind::BackendMarked { backend, reason },
            None => EventKind::BackendBack { backend },
        });
    }
}

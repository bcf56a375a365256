//! The relay's thread: accepts clients, calls a back end for each, carries bytes until one end is done, and does what it is told.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use flexcp_translator::{Admission, Config, ServiceId};
use rustix::net::sockopt;
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::{AbortHandle, LocalSet};
use tokio::time::{Instant, sleep};
use tracing::{debug, info, warn};

use super::carry::{self, Counted, Pool};
use super::guest::{self, Guest, Heard, Visit};
use super::servers::{self, Servers};
use super::tally::{Tally, count};
use super::{Order, Told, View};
use crate::denied::Denied;
use crate::names::WAITING;

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
    pool: Pool,
    idle: Cell<Duration>,
    room: Cell<u64>,
    servers: RefCell<HashMap<ServiceId, Servers>>,
    /// Services by where their clients come in.
    ends: RefCell<HashMap<SocketAddr, ServiceId>>,
    next_id: Cell<u32>,
    /// The connections that there are, by their ids.
    live: RefCell<BTreeMap<u32, Rc<Live>>>,
}

/// A connection, as others may see it.
pub(super) struct Live {
    id: u32,
    service: Option<ServiceId>,
    pub(super) client: SocketAddr,
    /// What the client addressed.
    pub(super) local: SocketAddr,
    /// The back end that has answered, and the address that it sees.
    server: Cell<Option<(SocketAddr, SocketAddr)>>,
    since: Instant,
    /// When bytes were carried last.
    last: Cell<Instant>,
    /// Bytes from the client that the back end's socket has taken.
    up: AtomicU64,
    /// The same of the back end's.
    down: AtomicU64,
    /// Its end.
    task: RefCell<Option<AbortHandle>>,
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
        pool: Pool::default(),
        idle: Cell::default(),
        room: Cell::default(),
        next_id: Cell::new(1),
        live: RefCell::default(),
        servers: RefCell::default(),
        ends: RefCell::default(),
    });
    let all = LocalSet::new();
    all.block_on(runtime, async {
        let mut listeners = HashMap::new();
        while let Some(order) = orders.recv().await {
            match order {
                Order::Change(told, new) => change(&shared, &mut listeners, &told, new),
                Order::List(answer) => {
                    // Who asked may be gone.
                    let _ = answer.try_send(shared.views());
                }
                Order::Close(id, answer) => {
                    let _ = answer.try_send(shared.close(id));
                }
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
                count(&shared.tally.accepted);
                let client = Ends::new(client, addr, end, &shared);
                if shared.tally.open() > shared.room.get() {
                    count(&shared.tally.refused_room);
                    continue;
                }
                let live = Rc::clone(&client.live);
                let task = tokio::task::spawn_local(relay(client));
                *live.task.borrow_mut() = Some(task.abort_handle());
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

/// A client, and its server once there is one. Unless they have come to their end, both are reset when this is dropped.
struct Ends {
    client: TcpStream,
    server: Option<TcpStream>,
    over: bool,
    live: Rc<Live>,
    shared: Rc<Shared>,
}

impl Ends {
    fn new(client: TcpStream, addr: SocketAddr, local: SocketAddr, shared: &Rc<Shared>) -> Self {
        let id = shared.fresh_id();
        let live = Rc::new(Live {
            id,
            service: shared.ends.borrow().get(&local).copied(),
            client: addr,
            local,
            server: Cell::default(),
            since: Instant::now(),
            last: Cell::new(Instant::now()),
            up: AtomicU64::default(),
            down: AtomicU64::default(),
            task: RefCell::default(),
        });
        shared.live.borrow_mut().insert(id, Rc::clone(&live));
        Self {
            client,
            server: None,
            over: false,
            live,
            shared: Rc::clone(shared),
        }
    }
}

impl Drop for Ends {
    fn drop(&mut self) {
        let tally = &self.shared.tally;
        count(&tally.ended);
        self.shared.live.borrow_mut().remove(&self.live.id);
        if self.over {
            return;
        }
        count(&tally.reset);
        carry::reset(&self.client);
        if let Some(server) = &self.server {
            carry::reset(server);
        }
    }
}

async fn relay(mut ends: Ends) {
    let live = Rc::clone(&ends.live);
    let Some(service) = live.service else {
        return;
    };
    match serve_client(&mut ends, service).await {
        Ok(over) => ends.over = over,
        Err(error) => debug!("split: {}: {error}", live.client),
    }
}

/// Connects the client with a server, and carries bytes until both ends have come to their end. `false`: it is to be reset.
async fn serve_client(ends: &mut Ends, service: ServiceId) -> io::Result<bool> {
    let (shared, live) = (Rc::clone(&ends.shared), Rc::clone(&ends.live));
    prepare(&ends.client, shared.idle.get());
    let dialogue = shared.admission.borrow().dialogue(service);
    // Its place among its client's connections, for as long as it has one.
    let visit;
    let (server, addr, first) = if let Some(dialogue) = dialogue {
        visit = match Visit::begin(&shared, service, &live) {
            Some(visit) => visit,
            None => return Ok(false),
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
            Heard::Told => return Ok(true),
            Heard::Reset => return Ok(false),
        }
    } else {
        // The kernel repeats a SYN, and other back ends may be tried: nobody is called by who may be anybody.
        guest::proved(&ends.client).await?;
        let Some((server, addr)) = shared.call(service).await else {
            count(&shared.tally.refused_server);
            debug!("split: {}: no back end answers", live.client);
            return Ok(false);
        };
        (
            server,
            addr,
            shared.header(service, &live).unwrap_or_default(),
        )
    };
    live.server
        .set(server.local_addr().ok().map(|source| (addr, source)));
    prepare(&server, shared.idle.get());
    let server = &*ends.server.insert(server);
    carry::say(server, &first).await?;
    carry_both(&ends.client, server, &shared, &live).await?;
    Ok(true)
}

async fn carry_both(
    client: &TcpStream,
    server: &TcpStream,
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
    fn views(&self) -> Vec<View> {
        let live = self.live.borrow();
        let view = |live: &Rc<Live>| View {
            id: live.id,
            service: live.service,
            client: live.client,
            local: live.local,
            source: live.server.get().map(|(_, source)| source),
            server: live.server.get().map(|(server, _)| server),
            age: live.since.elapsed(),
            idle: live.last.get().elapsed(),
            bytes_up: live.up.load(Ordering::Relaxed),
            bytes_down: live.down.load(Ordering::Relaxed),
        };
        live.values().map(view).collect()
    }

    /// Resets both ends of a connection. `false`: there is none with this id.
    fn close(&self, id: u32) -> bool {
        let live = self.live.borrow();
        let Some(live) = live.get(&id) else {
            return false;
        };
        if let Some(task) = &*live.task.borrow() {
            task.abort();
        }
        true
    }

    /// One that no connection has.
    fn fresh_id(&self) -> u32 {
        loop {
            let id = self.next_id.get();
            self.next_id.set(id.wrapping_add(1));
            if !self.live.borrow().contains_key(&id) {
                return id;
            }
        }
    }

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

    /// A back end of the service that answers.
    async fn call(&self, service: ServiceId) -> Option<(TcpStream, SocketAddr)> {
        let mut tried = Vec::new();
        while tried.len() < MOST_TRIED {
            let (addr, source) = {
                let mut servers = self.servers.borrow_mut();
                servers.get_mut(&service)?.next(Instant::now(), &tried)?
            };
            let answer = servers::connect((addr, source), servers::PATIENCE).await;
            let failed = answer.is_err().then(Instant::now);
            if let Some(servers) = self.servers.borrow_mut().get_mut(&service) {
                servers.note(addr, failed);
            }
            match answer {
                Ok(server) => return Some((server, addr)),
                Err(error) => debug!("split: back end {addr}: {error}"),
            }
            count(&self.tally.server_skipped);
            tried.push(addr);
        }
        None
    }
}

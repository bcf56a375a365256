//! Split connections: the kernel's MPTCP has the client's end, and a relay on a thread of its own carries bytes between that and a
//! connection of plain TCP with a back end.
//!
//! The translator decides at a SYN what carries its connection (`translator/split.rs`), and sends those that are split on to the
//! host's own sockets. The offload's programs mark the packets that follow, so that they never visit the device. What arrives here
//! is a connection that the kernel has accepted.

mod ahead;
mod carry;
mod connections;
mod guest;
mod listen;
mod serve;
mod servers;
mod tally;

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use flexcp_translator::{Ahead, BackendView, Mode, Part, ServiceId};
use tokio::runtime;
use tokio::sync::mpsc;
use tracing::{info, warn};

pub(crate) use self::tally::Tally;
use crate::config::live::own_addresses;
use crate::generation::Generation;
use crate::names::AT_ONCE;
use crate::worker::{Ear, Listener, WorkerHandle};

/// What the relay is told of a service.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Relayed {
    id: ServiceId,
    name: String,
    /// Where clients connect to.
    listen: Vec<SocketAddr>,
    /// Where they join beside.
    announced: Vec<SocketAddr>,
    backends: Vec<SocketAddr>,
    /// What each of them takes of new connections.
    parts: Vec<Part>,
    /// A header of the PROXY protocol tells them of the client.
    tells_clients: bool,
    /// Addresses towards them.
    sources: Vec<IpAddr>,
}

/// What the relay goes by.
#[derive(Clone, Default, Debug)]
struct Told {
    services: Vec<Relayed>,
    /// As a translator has it that were the only one: whom clients may name.
    config: flexcp_translator::Config,
    /// Connections at a time.
    room: usize,
    /// Without a packet for so long, an end is asked whether it is still there.
    idle: Duration,
}

/// The relay. It ends with this: its connections are reset.
#[derive(Debug)]
pub(crate) struct Relay {
    /// Where it listens.
    ends: Vec<SocketAddr>,
    /// Bound, and not running yet.
    bound: Vec<(SocketAddr, TcpListener)>,
    told: Told,
    /// What cookies of Convert are made with.
    cookie_secret: [u8; 32],
    handle: RelayHandle,
    /// What its thread is told, until there is one.
    orders: Option<mpsc::UnboundedReceiver<Order>>,
    thread: Option<JoinHandle<()>>,
}

/// A split connection as it stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct View {
    /// No other has it meanwhile.
    pub(crate) id: u32,
    /// `None`: its service has just gone.
    pub(crate) service: Option<ServiceId>,
    pub(crate) client: SocketAddr,
    /// What the client addressed.
    pub(crate) local: SocketAddr,
    /// The address that the back end sees.
    pub(crate) source: Option<SocketAddr>,
    /// The back end; `None`: none has answered yet.
    pub(crate) server: Option<SocketAddr>,
    pub(crate) age: Duration,
    /// Since bytes were carried last.
    pub(crate) idle: Duration,
    /// Bytes from the client that the back end's socket has taken.
    pub(crate) bytes_up: u64,
    /// Bytes from the back end that the client's socket has taken.
    pub(crate) bytes_down: u64,
}

/// Asks the relay. Without one, it has no connections.
#[derive(Clone, Debug)]
pub(crate) struct RelayHandle {
    orders: mpsc::UnboundedSender<Order>,
    /// Somebody takes them.
    runs: Arc<AtomicBool>,
    pub(crate) tally: Arc<Tally>,
}

/// What the relay's thread is told.
#[derive(Debug)]
enum Order {
    /// Tells of all connections.
    List(SyncSender<Vec<View>>),
    /// Resets one; the answer is whether it was there.
    Close(u32, SyncSender<bool>),
    /// Tells of the back ends, as it has found them.
    Backends(SyncSender<Vec<BackendView>>),
    /// Tells it what happens from here on.
    Listen(Listener),
    /// Calls a server before its client's SYN goes on, and tells the worker whether it has answered.
    Call(Ahead, WorkerHandle),
    /// Resets all connections of these services.
    EndServices(Vec<ServiceId>),
    /// Goes by this from here on, and listens there, too; at `Told`'s ends alone.
    Change(Box<Told>, Vec<(SocketAddr, TcpListener)>),
    /// The host has these addresses from here on.
    Host(Vec<IpAddr>),
    /// Resets all connections.
    End,
}

/// The relay can't listen.
#[derive(thiserror::Error, Debug)]
pub enum SplitError {
    /// The kernel has no MPTCP, or it is switched off.
    #[error(
        "connections can't be split: the kernel makes no MPTCP socket ({0}); `sysctl net.mptcp.enabled=1` may allow it, or leave \
         `carrier` out"
    )]
    NoMptcp(io::Error),
    /// The process may make no such sockets.
    #[error(
        "connections can't be split: {0}; under systemd, the drop-in sockets.conf (RestrictAddressFamilies=AF_INET AF_INET6) \
         allows it"
    )]
    NoFamily(io::Error),
    /// Somebody else listens there, or the address is not the host's.
    #[error("connections of service {service} can't be split: {end}: {error}{hint}")]
    Bind {
        /// The service.
        service: String,
        /// Where clients would connect to.
        end: SocketAddr,
        /// The kernel's reason.
        error: io::Error,
        /// What may help.
        hint: &'static str,
    },
}

impl Told {
    fn new(generation: &Generation) -> Self {
        let mut told = generation.translator(0);
        let limits = &generation.config.limits;
        // There is one relay for all workers.
        told.limits.client_connections = whole(limits.client_connections.value);
        told.limits.client_rate = whole(limits.client_rate.value);
        let services = told.services.clone().into_iter().filter_map(|service| {
            service.intake.carrier?;
            let (listen, backends, source) = match service.mode {
                Mode::Reverse {
                    listen,
                    backends,
                    source,
                    ..
                } => (listen, backends, source),
                Mode::Explicit { listen, source, .. } => (listen, vec![], source),
                Mode::Transparent { .. } | Mode::Box { .. } => return None,
            };
            let ports: Vec<_> = listen.iter().map(SocketAddr::port).collect();
            let announced = service.announce.iter().flat_map(|announce| {
                let ports = announce
                    .port
                    .map_or_else(|| ports.clone(), |port| vec![port]);
                let at = |port| SocketAddr::new(announce.addr, port);
                ports.into_iter().map(at)
            });
            Some(Relayed {
                id: service.id,
                name: service.name,
                announced: announced.collect(),
                listen,
                backends,
                parts: service.intake.parts,
                tells_clients: service.intake.proxy_header,
                sources: source,
            })
        });
        Self {
            services: services.collect(),
            config: told,
            room: whole(limits.connections.value),
            idle: generation.config.timeouts.idle.value,
        }
    }

    /// Where it listens, and the service whose clients come there. One that several name is the first's.
    fn ends(&self) -> Vec<(SocketAddr, &Relayed)> {
        let mut ends: Vec<(SocketAddr, &Relayed)> = Vec::new();
        for service in &self.services {
            for end in service.listen.iter().chain(&service.announced) {
                if ends.iter().all(|(known, _)| known != end) {
                    ends.push((*end, service));
                }
            }
        }
        ends
    }
}

fn whole(limit: i64) -> usize {
    usize::try_from(limit).unwrap_or(usize::MAX)
}

/// Whether the relay's sockets take data of SYNs, as the host is at present.
pub(crate) fn takes_syn_data() -> bool {
    listen::takes_syn_data()
}

impl Relay {
    /// Listens where services of `generation` may be split. Nothing runs yet. `cookie_secret`: as the workers have it.
    ///
    /// # Errors
    /// When the kernel does not allow it.
    pub(crate) fn bind(
        generation: &Generation,
        cookie_secret: [u8; 32],
    ) -> Result<Self, SplitError> {
        let told = Told::new(generation);
        let bound = listen::all(&told, &[])?;
        let (orders, told_by) = mpsc::unbounded_channel();
        Ok(Self {
            ends: bound.iter().map(|(end, _)| *end).collect(),
            bound,
            told,
            cookie_secret,
            handle: RelayHandle {
                orders,
                runs: Arc::default(),
                tally: Arc::default(),
            },
            orders: Some(told_by),
            thread: None,
        })
    }

    /// For who wants to know what it does.
    pub(crate) fn handle(&self) -> RelayHandle {
        self.handle.clone()
    }

    /// Where it listens.
    pub(crate) fn ends(&self) -> &[SocketAddr] {
        &self.ends
    }

    /// Whether it has anything to do.
    pub(crate) fn is_needed(&self) -> bool {
        !self.told.services.is_empty()
    }

    /// Accepts clients from here on.
    ///
    /// # Errors
    /// When the kernel gives no thread.
    pub(crate) fn run(&mut self) -> io::Result<()> {
        let Some(orders) = self.orders.take_if(|_| !self.told.services.is_empty()) else {
            return Ok(());
        };
        // Names are resolved on threads beside its own.
        let runtime = runtime::Builder::new_current_thread()
            .max_blocking_threads(AT_ONCE)
            .thread_name("name")
            .enable_all()
            .build()?;
        let (tally, secret) = (Arc::clone(&self.handle.tally), self.cookie_secret);
        let serve = move || serve::serve(&runtime, orders, (&tally, secret));
        self.thread = Some(thread::Builder::new().name("relay".into()).spawn(serve)?);
        self.handle.runs.store(true, Ordering::Relaxed);
        for (end, _) in &self.bound {
            info!("split: listens on {end}");
        }
        let bound = std::mem::take(&mut self.bound);
        self.tell(Order::Host(own_addresses()));
        self.tell(Order::Change(Box::new(self.told.clone()), bound));
        Ok(())
    }

    /// The host has these addresses from here on: clients that name their server get them by a prefix of nothing else.
    pub(crate) fn note_host_addresses(&self, addrs: &[IpAddr]) {
        if self.thread.is_some() {
            self.tell(Order::Host(addrs.to_vec()));
        }
    }

    /// The time of these services is over: both ends of each of their connections are reset.
    pub(crate) fn end_services(&self, services: Vec<ServiceId>) {
        if self.thread.is_some() && !services.is_empty() {
            self.tell(Order::EndServices(services));
        }
    }

    /// Whoever has ended does nothing more.
    fn tell(&self, order: Order) {
        let _ = self.handle.orders.send(order);
    }

    /// Listens where services of `generation` may be split, and goes by it. Where nothing can be bound, nothing has changed.
    ///
    /// # Errors
    /// When the kernel does not allow it.
    pub(crate) fn change(&mut self, generation: &Generation) -> Result<(), SplitError> {
        let told = Told::new(generation);
        let new = listen::all(&told, &self.ends)?;
        self.ends = told.ends().into_iter().map(|(end, _)| end).collect();
        self.told = told.clone();
        if self.thread.is_some() {
            self.tell(Order::Change(Box::new(told), new));
        } else {
            self.bound.retain(|(end, _)| self.ends.contains(end));
            self.bound.extend(new);
        }
        if let Err(error) = self.run() {
            warn!("split: no thread for the relay: {error}");
        }
        Ok(())
    }
}

impl RelayHandle {
    /// One whose relay does not run.
    #[cfg(test)]
    pub(crate) fn idle() -> Self {
        Self {
            orders: mpsc::unbounded_channel().0,
            runs: Arc::default(),
            tally: Arc::default(),
        }
    }

    /// All connections; none when the relay does not answer.
    pub(crate) fn list(&self) -> Vec<View> {
        self.ask(Order::List).unwrap_or_default()
    }

    /// Resets both ends of a connection. `false`: there is none with this id.
    pub(crate) fn close(&self, id: u32) -> bool {
        self.ask(|answer| Order::Close(id, answer)).unwrap_or(false)
    }

    /// The back ends of services that may be split, as the relay has found them, with its connections.
    pub(crate) fn backends(&self) -> Vec<BackendView> {
        self.ask(Order::Backends).unwrap_or_default()
    }

    /// What happens from here on; so many events wait. `None`: the relay does not run.
    pub(crate) fn listen(&self, room: usize) -> Option<Ear> {
        if !self.runs() {
            return None;
        }
        let (listener, ear) = Ear::new(room);
        // It hears at once of a relay that has gone.
        let _ = self.orders.send(Order::Listen(listener));
        Some(ear)
    }

    /// Has a server called, of which the worker will hear. `false`: the relay does not run.
    pub(crate) fn call(&self, ahead: Ahead, whose: WorkerHandle) -> bool {
        self.runs() && self.orders.send(Order::Call(ahead, whose)).is_ok()
    }

    /// Whether it can be told anything.
    fn runs(&self) -> bool {
        self.runs.load(Ordering::Relaxed)
    }

    fn ask<T>(&self, order: impl FnOnce(SyncSender<T>) -> Order) -> Option<T> {
        if !self.runs() {
            return None;
        }
        let (answer, answered) = std::sync::mpsc::sync_channel(1);
        self.orders.send(order(answer)).ok()?;
        answered.recv_timeout(PATIENCE).ok()
    }
}

/// How long the relay may take for an answer.
const PATIENCE: Duration = Duration::from_secs(2);

impl Drop for Relay {
    fn drop(&mut self) {
        self.handle.runs.store(false, Ordering::Relaxed);
        self.tell(Order::End);
        if let Some(thread) = self.thread.take() {
            // When it has ended by itself, all the better.
            let _ = thread.join();
        }
    }
}

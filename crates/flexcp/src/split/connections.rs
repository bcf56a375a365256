//! The split connections that there are: what others may see of them, hear of them, and ask of them.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flexcp_translator::{ConnectionEnds, EndCause, Event, EventKind, Rst, ServiceId, StableId};
use tokio::net::TcpStream;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::tally::{Tally, count};
use super::{View, carry};
use crate::worker::{Heard, Listener, now};

/// All of them, and who hears of what happens to them.
pub(super) struct Connections {
    tally: Arc<Tally>,
    next_id: Cell<u32>,
    /// By their ids.
    live: RefCell<BTreeMap<u32, Rc<Live>>>,
    listeners: RefCell<Vec<Listener>>,
}

/// A connection, as others may see it.
pub(super) struct Live {
    id: u32,
    pub(super) service: Option<ServiceId>,
    pub(super) client: SocketAddr,
    /// What the client addressed.
    pub(super) local: SocketAddr,
    /// The back end that has answered, and the address that it sees.
    server: Cell<Option<(SocketAddr, SocketAddr)>>,
    since: Instant,
    /// When bytes were carried last.
    pub(super) last: Cell<Instant>,
    /// Bytes from the client that the back end's socket has taken.
    pub(super) up: AtomicU64,
    /// The same of the back end's.
    pub(super) down: AtomicU64,
    /// What its end will be, unless it comes to another.
    end: Cell<EndCause>,
    /// Its end.
    task: RefCell<Option<AbortHandle>>,
}

/// A client, and its server once there is one. Unless they have come to their end, both are reset when this is dropped.
pub(super) struct Ends {
    pub(super) client: TcpStream,
    pub(super) server: Option<TcpStream>,
    pub(super) live: Rc<Live>,
    all: Rc<Connections>,
}

impl Connections {
    pub(super) fn new(tally: Arc<Tally>) -> Self {
        Self {
            tally,
            next_id: Cell::new(1),
            live: RefCell::default(),
            listeners: RefCell::default(),
        }
    }

    /// What is there.
    pub(super) fn views(&self) -> Vec<View> {
        let live = self.live.borrow();
        live.values().map(|live| live.view()).collect()
    }

    /// Resets both ends of a connection. `false`: there is none with this id.
    pub(super) fn close(&self, id: u32) -> bool {
        let live = self.live.borrow();
        let found = live.get(&id);
        if let Some(live) = found {
            live.abort(Rst::Asked);
        }
        found.is_some()
    }

    /// Resets both ends of all connections of these services.
    pub(super) fn end(&self, services: &[ServiceId]) {
        let live = self.live.borrow();
        let of = |live: &&Rc<Live>| live.service.is_some_and(|id| services.contains(&id));
        live.values()
            .filter(of)
            .for_each(|live| live.abort(Rst::Ending));
    }

    /// Connections with a back end of a service.
    pub(super) fn with(&self, service: ServiceId, backend: SocketAddr) -> u64 {
        let live = self.live.borrow();
        let is = |live: &&Rc<Live>| {
            let server = live.server.get().map(|(server, _)| server);
            (live.service, server) == (Some(service), Some(backend))
        };
        u64::try_from(live.values().filter(is).count()).unwrap_or(u64::MAX)
    }

    /// It hears of what happens from here on.
    pub(super) fn add_listener(&self, listener: Listener) {
        self.listeners.borrow_mut().push(listener);
    }

    /// Tells those who listen.
    pub(super) fn tell(&self, service: ServiceId, kind: impl FnOnce() -> EventKind) {
        let mut listeners = self.listeners.borrow_mut();
        if listeners.is_empty() {
            return;
        }
        listeners.retain(|listener| !listener.is_deaf());
        let heard = Heard {
            at: now(),
            worker: None,
            event: Event {
                service,
                kind: kind(),
            },
        };
        for listener in listeners.iter_mut() {
            listener.tell(heard.clone());
        }
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
}

impl Live {
    fn view(&self) -> View {
        View {
            id: self.id,
            service: self.service,
            client: self.client,
            local: self.local,
            source: self.server.get().map(|(_, source)| source),
            server: self.server.get().map(|(server, _)| server),
            age: self.since.elapsed(),
            idle: self.last.get().elapsed(),
            bytes_up: self.up.load(Ordering::Relaxed),
            bytes_down: self.down.load(Ordering::Relaxed),
        }
    }

    /// Of the client's packets.
    pub(super) const fn ends_of_client(&self) -> flexcp_wire::Ends {
        flexcp_wire::Ends {
            from: self.client,
            to: self.local,
        }
    }

    fn ends(&self) -> ConnectionEnds {
        ConnectionEnds {
            id: StableId::of_number(self.id),
            client: self.client,
            server: self.local,
            token: None,
        }
    }

    /// Its end, which can come at any time.
    pub(super) fn set_task(&self, task: AbortHandle) {
        *self.task.borrow_mut() = Some(task);
    }

    fn abort(&self, cause: Rst) {
        if let Some(task) = &*self.task.borrow() {
            self.end.set(EndCause::Rst(cause));
            task.abort();
        }
    }
}

impl Ends {
    pub(super) fn new(
        client: TcpStream,
        (addr, local): (SocketAddr, SocketAddr),
        service: Option<ServiceId>,
        all: &Rc<Connections>,
    ) -> Self {
        count(&all.tally.accepted);
        let id = all.fresh_id();
        let live = Rc::new(Live {
            id,
            service,
            client: addr,
            local,
            server: Cell::default(),
            since: Instant::now(),
            last: Cell::new(Instant::now()),
            up: AtomicU64::default(),
            down: AtomicU64::default(),
            end: Cell::new(EndCause::Rst(Rst::Ending)),
            task: RefCell::default(),
        });
        all.live.borrow_mut().insert(id, Rc::clone(&live));
        Self {
            client,
            server: None,
            live,
            all: Rc::clone(all),
        }
    }

    /// Its back end, which has this address, has answered. Gives the sockets of both: the client's first.
    ///
    /// # Errors
    /// It has gone.
    pub(super) fn connected(
        &mut self,
        server: TcpStream,
        backend: SocketAddr,
    ) -> io::Result<(&TcpStream, &TcpStream)> {
        let source = server.local_addr();
        let server = self.server.insert(server);
        let source = source?;
        self.live.server.set(Some((backend, source)));
        if let Some(service) = self.live.service {
            self.all.tell(service, || EventKind::Opened {
                connection: self.live.ends(),
                source,
                backend,
            });
        }
        Ok((&self.client, server))
    }

    /// It has come to this end.
    pub(super) fn over(&self, cause: EndCause) {
        self.live.end.set(cause);
    }
}

impl Drop for Ends {
    fn drop(&mut self) {
        let (tally, live) = (&self.all.tally, &self.live);
        count(&tally.ended);
        self.all.live.borrow_mut().remove(&live.id);
        let cause = live.end.get();
        // Only what has opened closes.
        if let Some((service, _)) = live.service.zip(live.server.get()) {
            self.all.tell(service, || EventKind::Closed {
                connection: live.ends(),
                cause,
            });
        }
        if cause == EndCause::Finished {
            return;
        }
        count(&tally.reset);
        carry::reset(&self.client);
        if let Some(server) = &self.server {
            carry::reset(server);
        }
    }
}

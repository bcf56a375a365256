//! FlexCP inside another program: the paper's proxy socket. A program binds a [`Listener`], accepts connections that are
//! proxied, reads what they do, and says down which of its paths each of them goes.
//!
//! Packets flow from [`Setup::bind`] on, whatever the program does: what it accepts is a handle on a connection that goes on
//! by itself. Rules, and the API with `flexcp show`, are there as in the daemon.
//!
//! ```no_run
//! use flexcp::listener::{Setup, Target};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let setup = Setup::read("/etc/flexcp/flexcp.toml".as_ref())?;
//! let lte = setup.access("lte").ok_or("no access lte")?;
//! let mut listener = setup.bind()?;
//! loop {
//!     let proxied = listener.accept()?;
//!     println!("{} > {}", proxied.client(), proxied.server());
//!     if proxied.service() == "video" {
//!         proxied.pin(Target::Access(lte))?;
//!     }
//! }
//! # }
//! ```
//!
//! A steering mode of the program's own is a [`SteeringMode`]: for all connections of a rule
//! ([`Setup::steer`]), or for one ([`Proxied::set_mode`]). `examples/proxy_socket.rs` has one.

mod proxied;

use std::collections::{HashSet, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

pub use flexcp_translator::{
    AccessId, ConnectionState, ConnectionView, Flow, Move, PathQuality, Pinned, Refused, StableId,
    SteeredPath, SteeringMode, SubflowSwitch, SubflowView, Target, View,
};
use flexcp_translator::{ConnectionEnds, Cursor, EventKind, Filter, ServiceId};

pub use self::proxied::{Proxied, ProxiedError};
use crate::config::{self, Config, Diagnostics, ReadError};
use crate::control::Names;
use crate::proxy::{Proxy, ProxyError};
use crate::watch::Unwatched;
use crate::worker::{Ear, Gone, Page, WorkerHandle};

/// A configuration, before it is in force.
#[derive(Debug)]
pub struct Setup {
    config: Config,
    found: Diagnostics,
}

/// A proxy that runs, and what it has accepted.
///
/// Dropped, it takes everything back at once; [`stop`](Self::stop) lets connections end before.
#[derive(Debug)]
pub struct Listener {
    proxy: Proxy,
    ears: Vec<Ear>,
    /// Accepted, and not asked for yet.
    waiting: VecDeque<Proxied>,
    /// Those that were there when the listening began: they are not accepted again.
    early: HashSet<StableId>,
    names: Names,
    /// When those were asked for.
    named: Instant,
    missed: u64,
}

/// A proxy can't be set up.
#[derive(thiserror::Error, Debug)]
pub enum SetupError {
    /// The configuration has errors: a line each, with its place, and what would be right.
    #[error("{0}")]
    Invalid(Diagnostics),
    /// No rule has the name.
    #[error("there is no rule `{0}`; write a [[rule]] of that name")]
    NoRule(String),
    /// The proxy does not start.
    #[error(transparent)]
    Proxy(#[from] ProxyError),
    /// The file can't be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The proxy ends again.
    #[error(transparent)]
    Ended(#[from] AcceptError),
}

/// No connection will be accepted any more.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error, Debug)]
#[error("the proxy has ended by itself; stop it to hear why")]
pub struct AcceptError;

impl Setup {
    /// Reads the configuration file `path`.
    ///
    /// # Errors
    /// When it can't be read, or something is wrong with it.
    pub fn read(path: &Path) -> Result<Self, SetupError> {
        Self::of(config::load(path)?)
    }

    /// The configuration that stands in `text`, as in a file.
    ///
    /// # Errors
    /// When something is wrong with it.
    pub fn parse(text: &str) -> Result<Self, SetupError> {
        Self::of(config::parse("the configuration", text))
    }

    fn of((config, found): (Option<Config>, Diagnostics)) -> Result<Self, SetupError> {
        match config {
            Some(config) if !found.has_errors() => Ok(Self { config, found }),
            _ => Err(SetupError::Invalid(found)),
        }
    }

    /// The access with this name, as modes and [`Target`] know it.
    #[must_use]
    pub fn access(&self, name: &str) -> Option<AccessId> {
        let mut numbered = (0..).map(AccessId).zip(&self.config.accesses);
        let found = numbered.find(|(_, access)| access.name.value == name);
        found.map(|(id, _)| id)
    }

    /// The connections of a rule of the configuration are steered by `mode`, in place of the mode that it names. Its hold
    /// time, its fail-back delay and all else that it says hold. Rules that a client of the API sets take its place, as they
    /// do the file's.
    ///
    /// The mode is asked on the thread that translates: it has to be quick, and must not panic.
    ///
    /// # Errors
    /// When there is no such rule.
    pub fn steer(mut self, rule: &str, mode: Arc<dyn SteeringMode>) -> Result<Self, SetupError> {
        let mut rules = self.config.rules.iter_mut();
        match rules.find(|known| known.name.value == rule) {
            Some(known) => known.own_mode = Some(mode),
            None => return Err(SetupError::NoRule(rule.into())),
        }
        Ok(self)
    }

    /// Starts the proxy: from here on packets flow.
    ///
    /// # Errors
    /// When it does not fit the host, or the kernel does not allow it; nothing is left changed then.
    pub fn bind(self) -> Result<Listener, SetupError> {
        let Self { config, mut found } = self;
        let proxy = Proxy::start(config, &mut found).map_err(|error| match error {
            ProxyError::Invalid { .. } => SetupError::Invalid(found),
            error => SetupError::Proxy(error),
        })?;
        Ok(Listener::new(proxy)?)
    }
}

impl Listener {
    fn new(proxy: Proxy) -> Result<Self, AcceptError> {
        let workers = proxy.workers();
        let ears = workers.iter().map(|worker| worker.listen(ROOM)).collect();
        let mut listener = Self {
            names: proxy.names()?,
            named: Instant::now(),
            ears,
            waiting: VecDeque::new(),
            early: HashSet::new(),
            missed: 0,
            proxy,
        };
        listener.take_early()?;
        Ok(listener)
    }

    /// Waits for the next connection whose client has shown that it is there. Each comes once.
    ///
    /// # Errors
    /// When the proxy has ended by itself, as when somebody deletes its device.
    pub fn accept(&mut self) -> Result<Proxied, AcceptError> {
        loop {
            if let Some(proxied) = self.accept_within(LONG)? {
                return Ok(proxied);
            }
        }
    }

    /// The same for at most so long; `None`: none has come.
    ///
    /// # Errors
    /// As of [`accept`](Self::accept).
    pub fn accept_within(&mut self, patience: Duration) -> Result<Option<Proxied>, AcceptError> {
        let began = Instant::now();
        loop {
            // Not before: what nobody asks for waits in the rings, which are bounded.
            if self.waiting.is_empty() {
                self.listen()?;
            }
            if let Some(proxied) = self.waiting.pop_front() {
                return Ok(Some(proxied));
            }
            if self.ears.iter().any(Ear::is_over) {
                return Err(AcceptError);
            }
            let left = patience.saturating_sub(began.elapsed());
            if left.is_zero() {
                return Ok(None);
            }
            // Workers wake nobody.
            thread::sleep(PAUSE.min(left));
        }
    }

    /// Events that were lost, connections that have opened among them perhaps: more happened than was taken in time. They go
    /// on as the rules have it.
    #[must_use]
    pub const fn missed(&self) -> u64 {
        self.missed
    }

    /// The proxy itself: its state, its counters, all its connections.
    #[must_use]
    pub const fn proxy(&self) -> &Proxy {
        &self.proxy
    }

    /// The same, to put another configuration into force. Modes that [`Setup::steer`] has set are in the one before.
    pub const fn proxy_mut(&mut self) -> &mut Proxy {
        &mut self.proxy
    }

    /// Accepts no connection any more, lets those that are there end for as long as `timeouts.drain` of the configuration says,
    /// tells both ends of the others, and takes everything back.
    ///
    /// # Errors
    /// Why the proxy has ended by itself, or what could not be taken back.
    pub fn stop(self) -> Result<(), ProxyError> {
        self.proxy.stop(&mut |wait| {
            thread::sleep(wait);
            false
        })
    }

    /// Those that have opened before anybody listened.
    fn take_early(&mut self) -> Result<(), AcceptError> {
        let filter = Arc::new(Filter::default());
        let mut page = Page::default();
        for worker in self.proxy.workers().to_vec() {
            page.next = Some(Cursor::default());
            while let Some(from) = page.next {
                page = worker.page(from, &filter, page)?;
                for view in page.views.drain(..) {
                    if view.state != ConnectionState::Handshake {
                        self.early.insert(view.id);
                        let service = self.service(view.service)?;
                        let proxied = Proxied::listed(&view, service, worker.clone());
                        self.waiting.push_back(proxied);
                    }
                }
            }
        }
        Ok(())
    }

    /// Takes what has been told since.
    fn listen(&mut self) -> Result<(), AcceptError> {
        for number in 0..self.ears.len() {
            for _ in 0..AT_ONCE {
                let ear = &mut self.ears[number];
                self.missed += ear.take_lost();
                let Some(heard) = ear.hear() else {
                    break;
                };
                let kind = heard.event.kind;
                let EventKind::Opened {
                    connection,
                    source,
                    backend,
                } = kind
                else {
                    continue;
                };
                let is_new = !self.early.remove(&connection.id);
                if let Some(worker) = self.worker(number).filter(|_| is_new) {
                    let service = self.service(heard.event.service)?;
                    let ConnectionEnds {
                        id, client, server, ..
                    } = connection;
                    let ends = [client, server, source, backend];
                    self.waiting
                        .push_back(Proxied::new(id, ends, service, worker));
                }
            }
        }
        Ok(())
    }

    fn worker(&self, number: usize) -> Option<WorkerHandle> {
        self.proxy.workers().get(number).cloned()
    }

    /// What a service is called, as of a second ago at most.
    fn service(&mut self, id: ServiceId) -> Result<Arc<str>, AcceptError> {
        if self.named.elapsed() > FRESH {
            self.names = self.proxy.names()?;
            self.named = Instant::now();
        }
        let named = self.names.services.iter().find(|named| named.id == id);
        Ok(named.map_or("?", |named| &named.name).into())
    }
}

impl From<Gone> for AcceptError {
    fn from(_: Gone) -> Self {
        Self
    }
}

impl From<Unwatched> for AcceptError {
    fn from(_: Unwatched) -> Self {
        Self
    }
}

/// Events that wait at each worker: those of a busy second.
const ROOM: usize = 8192;

/// Events of one worker that are taken before another has its turn.
const AT_ONCE: usize = 1024;

/// Between two looks at what has been told.
const PAUSE: Duration = Duration::from_millis(2);

/// How old names may be.
const FRESH: Duration = Duration::from_secs(1);

/// Longer than anybody waits.
const LONG: Duration = Duration::from_secs(3600);

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "[[access]]\nname = 'dsl'\nclients = ['10.1.0.0/16']\n[[access]]\nname = 'lte'\n\
        clients = ['10.2.0.0/16']\n[[rule]]\nname = 'all'\nmode = 'smallest-delay'\nhold = '3s'\n\
        [[service]]\nname = 'web'\nmode = 'transparent'\ndestinations = ['10.9.0.0/16']\n";

    #[derive(Debug)]
    struct Mine;

    impl SteeringMode for Mine {
        fn choose(&self, _: &View<'_>) -> Option<Move> {
            None
        }
    }

    #[test]
    fn accesses_are_known_by_their_names() {
        let setup = Setup::parse(FILE).unwrap();
        assert_eq!(setup.access("lte"), Some(AccessId(1)));
        assert_eq!(setup.access("5g"), None);
    }

    #[test]
    fn mode_of_ones_own_takes_the_place_of_a_rules() {
        let setup = Setup::parse(FILE).unwrap().steer("all", Arc::new(Mine));
        let config = setup.unwrap().config;
        let told = config::plan::translator(&config, &[vec![]], &[ServiceId(0)], 0);
        assert_eq!(format!("{:?}", told.rules[0].mode), "Mine");
        assert_eq!(told.rules[0].hold, Duration::from_secs(3));
        let refused = Setup::parse(FILE).unwrap().steer("some", Arc::new(Mine));
        assert_eq!(
            refused.unwrap_err().to_string(),
            "there is no rule `some`; write a [[rule]] of that name"
        );
    }

    #[test]
    fn what_is_wrong_with_a_configuration_is_said_with_its_place() {
        let said = |text| Setup::parse(text).unwrap_err().to_string();
        let wrong = said("[[service]]\nname = 'web'\nmode = 'sideways'\n");
        assert!(wrong.starts_with("the configuration:"), "{wrong}");
        assert!(wrong.contains("sideways"), "{wrong}");
        assert!(said("= 1").starts_with("the configuration:1"));
        let read = Setup::read("/nowhere/flexcp.toml".as_ref());
        assert!(matches!(read, Err(SetupError::Read(_))), "{read:?}");
    }
}

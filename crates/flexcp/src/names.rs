//! Names that clients ask for, resolved as the host resolves names: in threads of their own, as that takes as long as it takes.

use std::fmt;
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread;

use flexcp_translator::{Lookup, Protocol, StableId};
use rustix::net::{AddressFamily, SocketType};
use tracing::warn;

use crate::config::file::{Config, Mode};
use crate::worker::WorkerHandle;

/// Names that are resolved at a time.
pub(crate) const AT_ONCE: usize = 16;
/// Names that may wait: more are unknown at once. A client waits ten seconds for its name.
pub(crate) const WAITING: usize = 256;

/// The way to what resolves names for one worker, which starts with the first name.
#[derive(Debug, Default)]
pub(crate) struct Names(Option<SyncSender<Asked>>);

/// A name, and who wants to know.
struct Asked {
    lookup: Lookup,
    whose: WorkerHandle,
}

impl fmt::Debug for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lookup.fmt(f)
    }
}

impl Names {
    /// Hands the name on. Back comes its connection if nobody can take it.
    pub(crate) fn ask(&mut self, lookup: Lookup, whose: &WorkerHandle) -> Result<(), StableId> {
        let id = lookup.id;
        let asked = Asked {
            lookup,
            whose: whose.clone(),
        };
        let names = self.0.get_or_insert_with(start);
        names.try_send(asked).map_err(|_| id)
    }
}

/// Says in the log when services want names and this process can't ask for them.
pub(crate) fn warn_if_unknowable(config: &Config) {
    let mut modes = config.services.iter().map(|service| &service.mode);
    let by_name = |mode: &Mode| {
        let protocol = Protocol::Socks5;
        matches!(mode, Mode::Explicit { protocol: spoken, .. } if *spoken == protocol)
    };
    if !modes.any(by_name) {
        return;
    }
    let asks = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None);
    if let Err(error) = asks {
        warn!(
            "names that clients of SOCKS5 ask for can't be resolved: {error}; under systemd, the drop-in \
             sockets.conf (RestrictAddressFamilies=AF_INET AF_INET6) allows it"
        );
    }
}

/// Starts what resolves names. Without it, they are unknown.
fn start() -> SyncSender<Asked> {
    let (sender, receiver) = mpsc::sync_channel(WAITING);
    let builder = thread::Builder::new().name("names".into());
    if let Err(error) = builder.spawn(move || resolve_all(&receiver)) {
        warn!("the thread that resolves names can't be started: {error}");
    }
    sender
}

/// Resolves each name in a thread of its own, some at a time, until nobody can ask any more.
fn resolve_all(asked: &Receiver<Asked>) {
    let (done, ended) = mpsc::channel();
    let mut running = 0;
    while let Ok(Asked { lookup, whose }) = asked.recv() {
        running -= ended.try_iter().count();
        while running >= AT_ONCE && ended.recv().is_ok() {
            running -= 1;
        }
        let done = done.clone();
        let id = lookup.id;
        let told = whose.clone();
        let resolve = move || {
            told.tell_addresses(id, addresses(&lookup.name));
            let _ = done.send(());
        };
        match thread::Builder::new().name("name".into()).spawn(resolve) {
            Ok(_) => running += 1,
            Err(_) => whose.tell_addresses(id, Vec::new()),
        }
    }
}

/// The name's addresses, the one to be tried first first; none if there are none.
pub(crate) fn addresses(name: &str) -> Vec<IpAddr> {
    let found = (name, 0).to_socket_addrs();
    let mut addrs: Vec<_> = found.into_iter().flatten().map(|addr| addr.ip()).collect();
    addrs.dedup();
    addrs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_resolved_as_the_host_does() {
        let local = addresses("localhost");
        assert!(
            local.iter().all(IpAddr::is_loopback) && !local.is_empty(),
            "{local:?}"
        );
        assert_eq!(
            addresses("10.0.0.1"),
            ["10.0.0.1".parse::<IpAddr>().unwrap()]
        );
        assert!(addresses("no.such.name.invalid").is_empty());
    }
}

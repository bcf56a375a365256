//! The link emulator: carries packets between two interfaces through the fault model, in real time.
//!
//! The kernel here may have no netem, and netem has neither middleboxes nor a simulator that shares
//! its model. An [`Emulator`] is a thread of its own, with raw sockets on both interfaces. What comes
//! in on one goes through a [`Path`] and leaves on the other. Faults are for IP; ARP passes at once.
//! Packets of several segments are cut, and partial checksums completed, before any fault meets them.

mod carry;
mod selftest;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use flexcp_faults::{Counters, Faults, Path};
use flexcp_io::PacketSocket;
use rustix::event::{EventfdFlags, eventfd};
use serde_json::{Map, Value, json};

pub use selftest::{Arrivals, Findings, SelfTest, percentile};

use crate::fault::Direction;
use crate::namespace::Namespace;

/// What to emulate.
#[derive(Clone, Debug, Default)]
pub struct LinkSpec {
    /// Faults of packets from the first interface to the second.
    pub up: Faults,
    /// Faults of packets from the second interface to the first.
    pub down: Faults,
    /// Decides the luck of every packet.
    pub seed: u64,
}

/// A running link. Dropping it ends it: nothing passes any more.
#[derive(Debug)]
pub struct Emulator {
    commands: Sender<Request>,
    wake: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

/// What the fault model counted, and what the emulator itself did.
#[derive(Clone, Copy, Debug, Default)]
pub struct LinkCounters {
    /// Packets from the first interface to the second.
    pub up: Counters,
    /// Packets from the second interface to the first.
    pub down: Counters,
    /// Frames that the second interface, then the first one, did not take: too long, down, or busy.
    pub unsent: [u64; 2],
}

impl LinkCounters {
    /// Packets lost, both ways, whatever the cause.
    pub fn lost(&self) -> u64 {
        self.up.lost() + self.down.lost() + self.unsent.iter().sum::<u64>()
    }

    /// All that are not zero.
    pub fn to_json(&self) -> Value {
        let moved = |counters: &Counters| {
            let moved = counters.iter().filter(|(_, value)| *value != 0);
            moved
                .map(|(name, value)| (name.to_owned(), value.into()))
                .collect::<Map<_, _>>()
        };
        json!({"up": moved(&self.up), "down": moved(&self.down), "unsent": self.unsent})
    }
}

/// By end: where packets come in, and where they go out.
#[derive(Debug)]
struct Sockets {
    inlets: [PacketSocket; 2],
    outlets: [PacketSocket; 2],
}

#[derive(Debug)]
enum Request {
    Set(Direction, Faults),
    Count(Sender<LinkCounters>),
    Stop,
}

impl Emulator {
    /// Starts carrying packets between two interfaces of a namespace.
    pub fn start(namespace: &Namespace, interfaces: [&str; 2], spec: LinkSpec) -> Result<Self> {
        Self::start_from(namespace, interfaces, interfaces, spec)
    }

    /// The same where packets of either end come in by another interface than they go out by.
    pub fn start_from(
        namespace: &Namespace,
        inlets: [&str; 2],
        outlets: [&str; 2],
        spec: LinkSpec,
    ) -> Result<Self> {
        let sockets = namespace.run(|| Sockets::open(inlets, outlets))?;
        Self::carry(sockets, spec)
    }

    /// The same between two interfaces of this thread's namespace.
    pub fn start_here(interfaces: [&str; 2], spec: LinkSpec) -> Result<Self> {
        Self::carry(Sockets::open(interfaces, interfaces)?, spec)
    }

    /// Replaces the faults of one direction; see [`Path::set_faults`].
    pub fn set_faults(&self, direction: Direction, faults: Faults) -> Result<()> {
        self.request(Request::Set(direction, faults))
    }

    /// What happened so far.
    pub fn counters(&self) -> Result<LinkCounters> {
        let (sender, answer) = mpsc::channel();
        self.request(Request::Count(sender))?;
        answer
            .recv_timeout(Duration::from_secs(5))
            .context("the link emulator does not answer")
    }

    fn carry(sockets: Sockets, spec: LinkSpec) -> Result<Self> {
        let (commands, requests) = mpsc::channel();
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let wake = Arc::new(eventfd(0, flags).map_err(io::Error::from)?);
        let (up, down) = Path::pair(spec.up.0, spec.down.0, spec.seed);
        let carrier = carry::Carrier::new(sockets, [up, down], requests, Arc::clone(&wake));
        let thread = thread::Builder::new()
            .name("link".to_owned())
            .spawn(move || carrier.run())?;
        Ok(Self {
            commands,
            wake,
            thread: Some(thread),
        })
    }

    fn request(&self, request: Request) -> Result<()> {
        let sent = self.commands.send(request);
        sent.map_err(|_| anyhow!("the link emulator has ended"))?;
        // Fails only when the counter is full; then it is awake.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
        Ok(())
    }
}

impl Sockets {
    fn open(inlets: [&str; 2], outlets: [&str; 2]) -> Result<Self> {
        let both = |interfaces: [&str; 2], open: fn(&str) -> io::Result<PacketSocket>| {
            let [first, second] = interfaces.map(|interface| {
                open(interface).with_context(|| format!("a raw socket on interface {interface}"))
            });
            anyhow::Ok([first?, second?])
        };
        Ok(Self {
            inlets: both(inlets, PacketSocket::open)?,
            outlets: both(outlets, PacketSocket::open_to_send)?,
        })
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        let _ = self.request(Request::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

//! What happens to connections, told as it happens, for as long as the client stays. Events wait in a ring from each worker, the
//! relay, and the thread that chooses servers, for this client, which is looked at every few milliseconds: a worker wakes nobody, and what a client does not read is lost
//! to that client alone.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use serde::Serialize;
use tokio::sync::OwnedSemaphorePermit;

use super::VERSION;
use super::pieces::Out;
use super::routes::Daemon;
use super::server::{Asked, Names};
use super::view::Event;
use crate::location::Chosen;
use crate::worker::Ear;

/// What a client hears by.
pub(super) struct Ears {
    workers: Vec<Ear>,
    /// The relay may begin, and end, while the client listens.
    relay: Option<Ear>,
    /// What chooses servers may begin meanwhile, too.
    choice: Option<Ear<Chosen>>,
}

impl Ears {
    /// They hear of what happens from now on.
    pub(super) fn new(asked: &Asked) -> Self {
        let workers = asked.workers.iter();
        Self {
            workers: workers.map(|worker| worker.listen(ROOM)).collect(),
            relay: asked.split.listen(ROOM),
            choice: asked.location.listen(CHOICES),
        }
    }

    /// Listens to what has begun meanwhile.
    fn follow(&mut self, asked: &Asked) {
        self.workers.retain(|ear| !ear.is_over());
        if self.relay.as_ref().is_none_or(Ear::is_over) {
            self.relay = asked.split.listen(ROOM);
        }
        if self.choice.as_ref().is_none_or(Ear::is_over) {
            self.choice = asked.location.listen(CHOICES);
        }
    }

    /// What has to do with connections.
    fn all(&mut self) -> impl Iterator<Item = &mut Ear> {
        self.workers.iter_mut().chain(&mut self.relay)
    }

    /// Nothing will be heard any more: without connections no server is chosen.
    fn are_over(&self) -> bool {
        self.workers.iter().chain(&self.relay).all(Ear::is_over)
    }
}

/// Sends a line for each event, until the client or all workers have gone.
pub(super) async fn tell(
    daemon: Arc<Daemon>,
    mut ears: Ears,
    out: Out,
    place: OwnedSemaphorePermit,
) {
    let mut lines = vec![];
    push(&mut lines, &Event::Listening { version: VERSION });
    let mut services = Services::default();
    loop {
        // The clock of events started at another time.
        let origin = unix_micros().saturating_sub(flexcp_io::monotonic_micros());
        ears.follow(&daemon.asked);
        for ear in ears.all() {
            for heard in std::iter::from_fn(|| ear.hear()).take(AT_ONCE) {
                let names = services.now(&daemon).await;
                push(&mut lines, &Event::new(heard, origin, names));
            }
            push_lost(&mut lines, ear.take_lost());
        }
        if let Some(ear) = &mut ears.choice {
            while let Some(chosen) = ear.hear() {
                let names = services.now(&daemon).await;
                push(&mut lines, &Event::chosen(chosen, origin, names));
            }
            push_lost(&mut lines, ear.take_lost());
        }
        if !lines.is_empty() {
            let sent = out.send(std::mem::take(&mut lines).into()).await;
            if sent.is_err() {
                break;
            }
        } else if ears.are_over() {
            break;
        } else {
            tokio::select! {
                () = tokio::time::sleep(PAUSE) => {}
                () = out.closed() => break,
            }
        }
    }
    drop(place);
}

/// What services are called: a reload may change that.
#[derive(Default)]
struct Services {
    names: Names,
    asked: Option<Instant>,
}

impl Services {
    /// As of less than a second ago; as they were last while the watcher does not answer.
    async fn now(&mut self, daemon: &Daemon) -> &Names {
        if self.asked.is_none_or(|at| at.elapsed() > FRESH) {
            self.asked = Some(Instant::now());
            if let Ok(Ok(names)) = daemon.ask(|asked| asked.watch.names()).await {
                self.names = names;
            }
        }
        &self.names
    }
}

fn push_lost(lines: &mut Vec<u8>, count: u64) {
    if count > 0 {
        push(lines, &Event::Lost { count });
    }
}

fn push(lines: &mut Vec<u8>, event: &impl Serialize) {
    // It goes to memory, and all of it has a form in JSON.
    let _ = serde_json::to_writer(&mut *lines, event);
    lines.push(b'\n');
}

fn unix_micros() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| {
        u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
    })
}

/// Events that wait for one client at each worker: those of a busy second. They take 2 MB.
const ROOM: usize = 8192;

/// Choices of servers that wait for one client: a box has one in a hold time, which is some seconds.
const CHOICES: usize = 256;

/// Events of one worker that are told before another has its turn.
const AT_ONCE: usize = 256;

/// Between two looks at rings that were empty.
const PAUSE: Duration = Duration::from_millis(20);

/// For so long the services are believed to be called as they were.
const FRESH: Duration = Duration::from_secs(1);

//! What happens to connections, told as it happens, for as long as the client stays. Events wait in a ring from each worker
//! to this client's thread, which looks every few milliseconds: a worker wakes nobody, and what a client does not read is
//! lost to that client alone.

use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;

use super::action::VERSION;
use super::server::{Asked, Names};
use super::view::Event;
use crate::worker::{Ear, WorkerHandle};

/// Writes a line for each event from now on, until the client or all workers have gone.
pub(super) fn tell(asked: &Asked, client: &UnixStream) -> io::Result<()> {
    // A client that does not read may take as long as it likes: it keeps nothing but this thread.
    client.set_write_timeout(None)?;
    let listen = |worker: &WorkerHandle| worker.listen(ROOM);
    let mut ears: Vec<Ear> = asked.workers.iter().map(listen).collect();
    let mut lines = vec![];
    push(&mut lines, &Event::Listening { version: VERSION })?;
    let mut services = Services::default();
    let mut idle = 0;
    loop {
        // The clock of events started at another time.
        let origin = unix_micros().saturating_sub(flexcp_io::monotonic_micros());
        for ear in &mut ears {
            for heard in std::iter::from_fn(|| ear.hear()).take(AT_ONCE) {
                push(&mut lines, &Event::new(heard, origin, services.now(asked)))?;
            }
            let count = ear.take_lost();
            if count > 0 {
                push(&mut lines, &Event::Lost { count })?;
            }
        }
        ears.retain(|ear| !ear.is_over());
        if !lines.is_empty() {
            (&*client).write_all(&lines)?;
            lines.clear();
            idle = 0;
        } else if ears.is_empty() || (idle % LOOK == 0 && !is_there(client)) {
            return Ok(());
        } else {
            thread::sleep(PAUSE);
            idle += 1;
        }
    }
}

/// What services are called: a reload may change that.
#[derive(Default)]
struct Services {
    names: Names,
    asked: Option<Instant>,
}

impl Services {
    /// As of less than a second ago; as they were last while the watcher does not answer.
    fn now(&mut self, asked: &Asked) -> &Names {
        if self.asked.is_none_or(|at| at.elapsed() > FRESH) {
            self.asked = Some(Instant::now());
            if let Ok(names) = asked.watch.names() {
                self.names = names;
            }
        }
        &self.names
    }
}

fn push(lines: &mut Vec<u8>, event: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *lines, event)?;
    lines.push(b'\n');
    Ok(())
}

/// Whether the client may still read: it may have said that it will ask nothing more.
fn is_there(client: &UnixStream) -> bool {
    // These two are told without being asked for.
    let mut fds = [PollFd::new(client, PollFlags::empty())];
    let at_once = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let looked = poll(&mut fds, Some(&at_once));
    looked.is_err() || !fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
}

fn unix_micros() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| {
        u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
    })
}

/// Events that wait for one client at each worker: those of a busy second. They take 2 MB.
const ROOM: usize = 8192;

/// Events of one worker that are told before another has its turn.
const AT_ONCE: usize = 256;

/// Between two looks at rings that were empty.
const PAUSE: Duration = Duration::from_millis(20);

/// For so long the services are believed to be called as they were.
const FRESH: Duration = Duration::from_secs(1);

/// Of so many such looks one is whether the client is there.
const LOOK: u32 = 10;

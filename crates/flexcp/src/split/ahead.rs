//! Servers that clients have named in their SYNs. They are called before the kernel's socket gets the SYN, and taken once that has
//! accepted its client.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use flexcp_translator::Ahead;
use flexcp_wire::Ends;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use super::guest::{LATE, ONE_SYN, Visit};
use super::serve::Shared;
use super::servers;
use crate::worker::WorkerHandle;

/// Servers that are called, or wait for their client, at most: other SYNs do not wait.
const MOST: usize = 256;
/// So long a SYN waits: less than a box waits for a SYN/ACK before it asks another converter (250 ms), less a round trip.
const PATIENCE: Duration = Duration::from_millis(150);

/// Servers that no client has taken yet, by its ends.
#[derive(Default)]
pub(super) struct Called(RefCell<HashMap<Ends, Call>>);

struct Call {
    server: SocketAddr,
    since: Instant,
    /// The client's place, until it is accepted.
    visit: Option<Visit>,
    /// Ends with the server's answer.
    task: JoinHandle<io::Result<TcpStream>>,
}

impl Called {
    /// The server that was called for the client between these ends, once it has answered; `None`: it has not, or was not called.
    pub(super) async fn take(&self, ends: Ends, server: SocketAddr) -> Option<TcpStream> {
        let call = self.0.borrow_mut().remove(&ends)?;
        if call.server != server {
            call.task.abort();
            return None;
        }
        call.task.await.ok()?.ok()
    }

    /// The place of the client between these ends, which has been accepted.
    pub(super) fn take_visit(&self, ends: Ends) -> Option<Visit> {
        self.0.borrow_mut().get_mut(&ends)?.visit.take()
    }

    /// Hangs up where no client has come.
    fn forget_old(&self) {
        self.0.borrow_mut().retain(|_, call| {
            let stays = call.since.elapsed() < LATE;
            if !stays {
                call.task.abort();
            }
            stays
        });
    }
}

/// Calls the server, and tells the worker whether it has answered in time.
pub(super) fn call(shared: &Rc<Shared>, ahead: Ahead, whose: WorkerHandle) {
    let mut called = shared.called.0.borrow_mut();
    let known = called.get(&ahead.ends).map(|call| call.server);
    let is_room = known.is_none() && called.len() < MOST && shared.has_room();
    let visit = is_room.then(|| Visit::enter(shared, ahead.service, ahead.ends.from.ip()));
    let visit = visit.flatten().filter(Visit::may_be_connected);
    if visit.is_none() {
        // What the kernel has answered already is not answered anew.
        whose.tell_called(ahead.ends, known == Some(ahead.server));
        return;
    }
    let source = shared.source(ahead.service, ahead.server);
    let task = tokio::task::spawn_local(async move {
        let mut call = pin!(servers::connect((ahead.server, source), ONE_SYN));
        let in_time = timeout(PATIENCE, &mut call).await;
        let connected = matches!(in_time, Ok(Ok(_)));
        whose.tell_called(ahead.ends, connected);
        match in_time {
            Ok(answer) => answer,
            Err(_) => call.await,
        }
    });
    let call = Call {
        server: ahead.server,
        since: Instant::now(),
        visit,
        task,
    };
    called.insert(ahead.ends, call);
}

/// Hangs up now and then where no client has come.
pub(super) async fn forget(shared: Rc<Shared>) {
    loop {
        sleep(LATE / 10).await;
        shared.called.forget_old();
    }
}

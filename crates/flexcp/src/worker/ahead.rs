//! Servers that clients of split connections have named in their SYNs: the relay calls them, and the SYNs wait for that.

use flexcp_wire::Ends;

use super::{Request, Worker, WorkerHandle};
use crate::split::RelayHandle;

impl Worker {
    /// Sets who calls servers before their clients' SYNs go on.
    pub(crate) fn set_relay(&mut self, relay: RelayHandle) {
        self.path.relay = Some(relay);
    }

    /// Has the servers called that are wanted.
    pub(super) fn call_ahead(&mut self) {
        while let Some(ahead) = self.path.translator.poll_ahead() {
            let relay = self.path.relay.as_ref();
            if !relay.is_some_and(|relay| relay.call(ahead, self.own.clone())) {
                self.take_called(ahead.ends, false);
            }
        }
    }

    /// A server has answered, or has not.
    pub(super) fn take_called(&mut self, ends: Ends, connected: bool) {
        self.path.translator.called_ahead(ends, connected);
        self.path.transmit(self.handover.as_mut(), &self.buffer);
        self.path.batch.flush(&self.path.tun);
    }
}

impl WorkerHandle {
    /// The server that was called ahead has answered, or has not.
    pub(crate) fn tell_called(&self, ends: Ends, connected: bool) {
        // When it is gone already, nobody waits.
        let _ = self.requests.send(Request::Called(ends, connected));
        self.waker.wake();
    }
}

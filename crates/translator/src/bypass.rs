//! Plain TCP on the path: its packets pass unchanged, so the kernel can forward them without a visit here.

use flexcp_wire::Ends;

use crate::Instant;
use crate::connection::{Connection, Phase};
use crate::table::ConnectionId;
use crate::translator::Translator;

impl Translator {
    /// What passes between these ends, in both directions, is the kernel's from here on, until the next SYN between them;
    /// if it can be.
    pub(crate) fn pass_by(&mut self, ends: Ends) -> bool {
        let passes = self
            .installer
            .as_mut()
            .is_some_and(|installer| installer.passes_by(ends));
        self.counters.passed_by += u64::from(passes);
        passes
    }

    /// The same of a connection that has turned out to be plain, or has fallen back. What still comes of it is relayed for
    /// a while, then it is forgotten.
    pub(crate) fn pass_by_connection(&mut self, now: Instant, id: ConnectionId) {
        let Some(connection) = self.table.get_mut(id) else {
            return;
        };
        if !connection.may_pass_by() {
            return;
        }
        let ends = connection.server_ends();
        connection.passed_by = self
            .installer
            .as_mut()
            .is_some_and(|installer| installer.passes_by(ends));
        if connection.passed_by {
            connection.last_packet = now;
            self.counters.passed_by += 1;
        }
    }
}

impl Connection {
    /// Whether nothing of its packets is changed, and no end waits for what FlexCP alone would say.
    fn may_pass_by(&self) -> bool {
        let plain = match self.phase {
            Phase::Plain => self.server.answered,
            Phase::Fallback => !self.acks_in_fallback,
            _ => false,
        };
        plain && !self.passed_by && self.keeps_ends()
    }
}

//! Plain TCP on the path: its packets pass unchanged, so the kernel can forward them without a visit here.

use flexcp_wire::Ends;

use super::Translator;
use super::hand::Hand;
use crate::Instant;
use crate::connection::{Connection, Phase};
use crate::table::ConnectionId;

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

    /// The packet in hand has been sent, and the connection whose turn it is passes by from here on, if it can. `true`: it was
    /// its turn for that.
    pub(super) fn pass_by_due(&mut self, now: Instant, due: Option<ConnectionId>) -> bool {
        let known = due.and_then(|id| self.table.get_mut(id).map(|connection| (id, connection)));
        let Some((id, _)) = known.filter(|(_, connection)| connection.may_pass_by()) else {
            return false;
        };
        self.pass_by_known(now, id);
        true
    }

    /// The same of a connection that has turned out to be plain, or has fallen back, and of which no packet is in hand: what
    /// the kernel forwards would overtake it. What still comes of it is relayed for a while, then it is forgotten.
    pub(super) fn pass_by_known(&mut self, now: Instant, id: ConnectionId) {
        let Some(mut hand) = self.hand(now, id) else {
            return;
        };
        hand.pass_by();
        if hand.connection.phase.relayed().passed_by {
            // The fast path asks for the flow first.
            self.release(id);
            self.settle(now, id);
        }
    }
}

impl Hand<'_> {
    fn pass_by(&mut self) {
        if !self.connection.may_pass_by() {
            return;
        }
        let ends = self.connection.server_ends();
        let installer = self.installer.as_mut();
        let passes = installer.is_some_and(|installer| installer.passes_by(ends));
        let Some(relayed) = self.connection.phase.relayed_mut() else {
            return;
        };
        relayed.passed_by = passes;
        relayed.kept = !passes;
        if passes {
            self.connection.last_packet = self.ctx.now;
            self.ctx.counters.passed_by += 1;
        }
    }
}

impl Connection {
    /// Whether nothing of its packets is changed, and no end waits for what FlexCP alone would say.
    pub(super) fn may_pass_by(&self) -> bool {
        let plain = match self.phase {
            Phase::Plain(_) => self.tcp.syn.answered,
            Phase::Fallback(_) => !self.phase.relayed().wants_data_acks,
            _ => false,
        };
        let relayed = self.phase.relayed();
        let decided = relayed.passed_by || relayed.kept;
        plain && !decided && !relayed.midway && self.keeps_ends()
    }
}

//! Who hears that the server's window, which had been used up, is open again.
//!
//! Nobody repeats that, and one path may be dead, so every subflow has to hear of it. But a path whose client was not
//! heard since it last heard so is told only if the client does not send: Linux takes a path for stale, and sends anew
//! elsewhere all that it has there, once nothing came over it during four checks, which are a retransmission timeout
//! apart. Each of them brings one piece anew, with which the window opens again; would the dead path hear of it each
//! time, the connection would go on piece by piece.

use core::time::Duration;

use flexcp_wire::Dsn;

use super::acknowledge::DataBlocks;
use super::{Connection, Context, SubflowIndex, SubflowSet};
use crate::time::Instant;

impl Connection {
    /// The window has opened beyond `edge`. The subflows that hear of it now.
    pub(crate) fn tell_opening(&mut self, ctx: &Context<'_>, edge: Dsn) -> SubflowSet {
        let living = self.living();
        let unheard = living & self.unheard_since_opening();
        let at_once = match living & !unheard {
            0 => living,
            heard => heard,
        };
        for index in self.indices().filter(|index| at_once & (1 << index) != 0) {
            self.subflow_mut(index).told_opening = ctx.now;
        }
        self.opening = (at_once != living).then_some(edge);
        at_once
    }

    /// When those hear of it that the client was not heard on since they last did.
    pub(crate) fn opening_due(&self, silence: Duration) -> Option<Instant> {
        self.opening?;
        let told = self.subflows.iter().map(|subflow| subflow.told_opening);
        Some(told.max()? + silence)
    }

    /// Tells them, once that is due, unless the client sends what it has room for now.
    pub(crate) fn repeat_opening(&mut self, ctx: &mut Context<'_>) {
        let due = self.opening_due(ctx.config.timeouts.silence);
        if due.is_none_or(|due| ctx.now < due) {
            return;
        }
        let waits = |edge: Dsn| !self.up_next.after(edge);
        if self.opening.is_some_and(waits) {
            let unheard = self.living() & self.unheard_since_opening();
            self.send_acks(ctx, &DataBlocks::default(), unheard);
        }
        self.opening = None;
    }

    /// The subflows on which the client was not heard since they last heard of it.
    fn unheard_since_opening(&self) -> SubflowSet {
        let unheard = |&index: &SubflowIndex| {
            let subflow = self.subflow(index);
            subflow.last_heard < subflow.told_opening
        };
        let subflows = self.indices().filter(unheard);
        subflows.fold(0, |set, index| set | 1 << index)
    }
}

//! Who hears that the server's window, which had been used up, is open again.
//!
//! Nobody repeats that, and one path may be dead, so every subflow has to hear of it. But a path whose client was not
//! heard lately is told only if the client sends nothing: what it sends has an ACK with the new window, and its timers
//! run until that comes. Linux takes a path for stale, and sends anew elsewhere all
//! that it has there, once nothing came over it during four checks, which are a retransmission timeout apart. Each of
//! them brings one piece anew, with which the window opens again; would the dead path hear of it each time, the
//! connection would go on piece by piece.

use core::time::Duration;

use super::acknowledge::DataBlocks;
use super::{Connection, Context};
use crate::handle::{SubflowIndex, SubflowSet};
use crate::time::Instant;

/// An opening of which some subflows have yet to hear.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reopened {
    /// When the others heard of it.
    told: Instant,
    /// What the client had sent by then.
    sent: u32,
}

impl Connection {
    /// The window has opened. The subflows that hear of it now.
    pub(crate) fn tell_reopened(&mut self, ctx: &Context<'_>) -> SubflowSet {
        let silence = ctx.config.timeouts.silence;
        let living = self.living();
        let lately = |at: Instant| ctx.now.since(at) < silence;
        let at_once = match living & self.heard_when(lately) {
            0 => living,
            heard => heard,
        };
        self.mptcp.reopened = (at_once != living).then(|| Reopened {
            told: ctx.now,
            sent: self.sent_to_tcp(),
        });
        at_once
    }

    /// When those hear of it that the client was not heard on since.
    pub(crate) fn reopened_due(&self, silence: Duration) -> Option<Instant> {
        self.mptcp.reopened.map(|reopened| reopened.told + silence)
    }

    /// Tells them, unless the client has sent since.
    pub(crate) fn repeat_reopened(&mut self, ctx: &mut Context<'_>) {
        let Some(Reopened { told, sent }) = self.mptcp.reopened.take() else {
            return;
        };
        if self.sent_to_tcp() == sent {
            let unheard = self.living() & self.heard_when(|at| at < told);
            self.send_acks(ctx, &DataBlocks::default(), unheard);
        }
    }

    /// What the client has sent on all subflows, anew or again under fresh numbers: bytes from an origin of its own.
    fn sent_to_tcp(&self) -> u32 {
        let sent = self
            .mptcp
            .subflows
            .iter()
            .map(|subflow| subflow.recv.high.0);
        sent.fold(0, u32::wrapping_add)
    }

    /// The subflows on which the client was last heard at such a time.
    fn heard_when(&self, fits: impl Fn(Instant) -> bool) -> SubflowSet {
        let heard = |index: &SubflowIndex| fits(self.subflow(*index).path.last_heard);
        let subflows = self.indices().filter(heard);
        subflows.fold(0, |set, index| set | 1 << index)
    }
}

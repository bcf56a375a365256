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

/// What a client with data of its own may take before it sends again: a retransmission timeout (RFC 6298 section 2.4).
/// Only a client that is silent for longer waits for the window.
const RETRANSMISSION: Duration = Duration::from_secs(1);

/// How often [`RETRANSMISSION`] doubles at most, as the timeout of a client does that gets no answer.
const MAX_DOUBLINGS: u8 = 4;

/// The last opening of which some subflows were not told at once.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Reopened {
    /// When the others heard of it.
    told: Instant,
    /// What the client had sent by then.
    sent: u32,
    due: Due,
    /// Times in a row that subflows heard of an opening on which nobody was heard.
    unheard: u8,
}

/// Who hears of an opening next, if the client sends nothing.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
enum Due {
    #[default]
    Nobody,
    /// Those that heard of it: the packet may be lost.
    Heard,
    All,
}

impl Connection {
    /// The window has opened. The subflows that hear of it now.
    pub(crate) fn tell_reopened(&mut self, ctx: &Context<'_>) -> SubflowSet {
        let silence = ctx.config.timeouts.silence;
        let living = self.living();
        let heard = living & self.heard_when(|at| ctx.now.since(at) < silence);
        let at_once = if heard == 0 { living } else { heard };
        let sent = self.sent_to_tcp();
        let reopened = &mut self.mptcp.reopened;
        reopened.told = ctx.now;
        reopened.sent = sent;
        reopened.due = if at_once == living {
            Due::Nobody
        } else {
            Due::Heard
        };
        if heard == living {
            reopened.unheard = 0;
        }
        at_once
    }

    /// When subflows hear of it that were not told at once, or may have missed it.
    pub(crate) fn reopened_due(&self, silence: Duration) -> Option<Instant> {
        let reopened = self.mptcp.reopened;
        let wait = match reopened.due {
            Due::Nobody => return None,
            Due::Heard => silence,
            Due::All => RETRANSMISSION * (1 << reopened.unheard.min(MAX_DOUBLINGS)),
        };
        Some(reopened.told + wait.max(silence))
    }

    /// Tells them, unless the client has sent since.
    pub(crate) fn repeat_reopened(&mut self, ctx: &mut Context<'_>) {
        let silence = ctx.config.timeouts.silence;
        let Reopened {
            told, sent, due, ..
        } = self.mptcp.reopened;
        self.mptcp.reopened.due = Due::Nobody;
        if self.sent_to_tcp() != sent {
            return;
        }
        let mut hear = self.living() & self.heard_when(|at| at <= told);
        if due == Due::Heard {
            self.mptcp.reopened.due = Due::All;
            hear &= self.heard_when(|at| told.since(at) < silence);
        } else {
            self.mptcp.reopened.unheard = self.mptcp.reopened.unheard.saturating_add(1);
        }
        self.send_acks(ctx, &DataBlocks::default(), hear);
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
